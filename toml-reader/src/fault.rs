use std::fmt;

/// A fault of a file. Displays as `12:8: groups[0].pmtu: 1500 is no path MTU`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// For example `groups[1].endpoints[2].host.qpn`; empty for the whole file.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Most faults that are shown to people: a file that is meant for something else has thousands.
pub const SHOWN_MAX: usize = 20;

/// All faults of a file, ordered by position; at least one. Displays one line per fault, of the first [`SHOWN_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Shown before line and column.
    pub file: Option<String>,
    /// At least one.
    pub faults: Vec<Fault>,
}

impl Faults {
    /// Sets the name of the file.
    #[must_use]
    pub fn in_file(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().take(SHOWN_MAX).enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            if let Some(file) = &self.file {
                write!(f, "{file}:")?;
            }
            write!(f, "{fault}")?;
        }
        match self.faults.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for Faults {}
