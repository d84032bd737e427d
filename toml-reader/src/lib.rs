//! Reads TOML files field by field, and reports all faults of a file at once.
//!
//! A function takes each field of a table. A wrong value is recorded as a fault, and reading continues. Fields that
//! were not taken are unknown, which is a fault too.
//!
//! ```
//! let read = |text| {
//!     castnet_toml_reader::read(text, &[], |file| {
//!         let name = file.need("name", "a name in quotes", |v| v.string());
//!         let ports = file.optional("ports", 4, |v| v.number(1..=64, "is no number of ports: 1 to 64"));
//!         Some((name?, ports?))
//!     })
//! };
//! assert_eq!(read("name = \"leaf\""), Ok(("leaf".to_string(), 4)));
//! assert_eq!(
//!     read("ports = 70\nnames = \"leaf\"").unwrap_err().to_string(),
//!     "1:1: name: missing: a name in quotes\n\
//!      1:9: ports: 70 is no number of ports: 1 to 64\n\
//!      2:1: names: unknown field, did you mean \"name\"?; allowed: name, ports"
//! );
//! ```
#![forbid(unsafe_code)]

mod fault;
mod table;
mod value;

pub use fault::{Fault, Faults, SHOWN_MAX};
pub use table::Table;
pub use value::{Value, join};

use std::cell::RefCell;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Faults: byte offset, field and message.
struct Reader {
    faults: RefCell<Vec<(usize, String, String)>>,
    /// New and old names.
    renamed: &'static [(&'static str, &'static str)],
}

impl Reader {
    fn fault(&self, at: usize, field: String, message: String) {
        self.faults.borrow_mut().push((at, field, message));
    }

    /// Also under its old name.
    fn field<'a>(&self, table: &'a DeTable<'a>, name: &str) -> Option<(&'a str, &'a Spanned<DeValue<'a>>)> {
        let old = self.renamed.iter().find(|(new, _)| *new == name);
        let entry = table.get_key_value(name).or_else(|| table.get_key_value(old?.1));
        entry.map(|(key, value)| (key.get_ref().as_ref(), value))
    }
}

/// Parses `text` and calls `read` with the document. `read` returns `None` if a fault prevents a result. Fields in
/// `renamed` (new name, old name) are accepted under both names; their faults have the new name.
///
/// # Errors
/// All faults, ordered by position. If the text is not TOML, only that is reported.
pub fn read<T>(
    text: &str,
    renamed: &'static [(&'static str, &'static str)],
    read: impl FnOnce(&Table<'_>) -> Option<T>,
) -> Result<T, Faults> {
    let faults = RefCell::default();
    let reader = Reader { faults, renamed };
    let (document, errors) = DeTable::parse_recoverable(text);
    // After a syntax error the parsed values are unreliable.
    let result = match errors.is_empty() {
        true => {
            let document = Spanned::new(0..0, DeValue::Table(document.into_inner()));
            let table = Value::root(&reader, &document).table("a table");
            table.and_then(|table| read(&table))
        }
        false => {
            for error in errors {
                let at = error.span().map_or(0, |span| span.start);
                reader.fault(at, String::new(), error.message().into());
            }
            None
        }
    };
    let mut faults = reader.faults.into_inner();
    if let Some(result) = result.filter(|_| faults.is_empty()) {
        return Ok(result);
    }
    faults.sort_by_key(|(at, ..)| *at);
    faults.dedup();
    let (mut line, mut column, mut position) = (1, 1, 0);
    let faults = faults.into_iter().map(|(at, field, message)| {
        for c in text.get(position..at).unwrap_or_default().chars() {
            (line, column) = if c == '\n' {
                (line + 1, 1)
            } else {
                (line, column + 1)
            };
        }
        position = at;
        Fault {
            line,
            column,
            field,
            message,
        }
    });
    Err(Faults {
        file: None,
        faults: faults.collect(),
    })
}
