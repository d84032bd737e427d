//! Configuration files: read from TOML, each fault named with file, line, column and field.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use castnet_rules::RuleSet;
use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::exit::{self, Failure, Outcome};

/// Something wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The field's path; empty where it cannot be told.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.field.is_empty() { "" } else { ": " };
        write!(
            f,
            "{}:{}: {}{colon}{}",
            self.line, self.column, self.field, self.message
        )
    }
}

/// A file's text, and the faults that were found in it so far.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    text: String,
    faults: Vec<Fault>,
}

impl File {
    /// Reads the file at `path` and its table; faults of TOML itself and of the types are told at once.
    pub fn read<T: DeserializeOwned>(path: &Path) -> Outcome<(Self, T)> {
        Self::parse(path, exit::read_text(path)?)
    }

    fn parse<T: DeserializeOwned>(path: &Path, text: String) -> Outcome<(Self, T)> {
        let mut file = Self {
            path: path.to_owned(),
            text,
            faults: Vec::new(),
        };
        match toml::from_str(&file.text) {
            Ok(table) => Ok((file, table)),
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                let field = file.key_at(span.start);
                file.fault(span, field, error.message());
                Err(file.failure())
            }
        }
    }

    /// Notes a fault.
    pub fn fault(&mut self, at: Range<usize>, field: impl Into<String>, message: impl fmt::Display) {
        let before = self.text.get(..at.start).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        self.faults.push(Fault {
            line,
            column,
            field: field.into(),
            message: message.to_string(),
        });
    }

    /// Reads a text as a `T`; a text that is none becomes a fault of `field`.
    pub fn text<T>(&mut self, field: &str, value: Option<&Spanned<String>>) -> Option<T>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        let value = value?;
        match value.get_ref().parse() {
            Ok(read) => Some(read),
            Err(error) => {
                self.fault(value.span(), field, error);
                None
            }
        }
    }

    /// The path, taken from this file's folder where it is relative.
    pub fn beside(&self, path: PathBuf) -> PathBuf {
        self.path
            .parent()
            .map(|folder| folder.join(&path))
            .unwrap_or(path)
    }

    /// Ends the reading: fails where there was a fault.
    pub fn finish(self) -> Outcome {
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(self.failure())
        }
    }

    fn failure(&self) -> Failure {
        let lines: Vec<_> = self
            .faults
            .iter()
            .map(|f| format!("{}:{f}", self.path.display()))
            .collect();
        Failure::usage(lines.join("\n")).next("deploy/ has examples of all configuration files")
    }

    /// The key of the line at `at`, if the line has one.
    fn key_at(&self, at: usize) -> String {
        let start = self
            .text
            .get(..at)
            .and_then(|t| t.rfind('\n'))
            .map_or(0, |n| n + 1);
        let line = self
            .text
            .get(start..)
            .and_then(|t| t.lines().next())
            .unwrap_or_default();
        match line.split_once('=') {
            Some((key, _)) if !key.trim_start().starts_with(['#', '[']) => key.trim().to_owned(),
            _ => String::new(),
        }
    }
}

/// Reads a rule file. The failure names the line, column and field of each fault.
pub fn read_rules(path: &Path) -> Outcome<RuleSet> {
    let text = exit::read_text(path)?;
    RuleSet::from_toml(&text).map_err(|faults| {
        Failure::usage(faults.in_file(path.display().to_string())).next(format!(
            "castnet rules check {}\ncastnet rules example",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_proto::transport::Address;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        listen: Option<Spanned<String>>,
        agent: Option<Spanned<String>>,
        #[allow(dead_code)]
        count: Option<u32>,
    }

    fn read(text: &str) -> Outcome<(File, Table)> {
        File::parse(Path::new("/etc/castnet/x.toml"), text.to_owned())
    }

    #[test]
    fn faults_of_toml_and_types_have_line_column_and_field() {
        let what = |text: &str| read(text).expect_err("a fault").what;
        assert!(
            what("listen = \"x\"\ncount = true\n").starts_with("/etc/castnet/x.toml:2:9: count: "),
            "{}",
            what("listen = \"x\"\ncount = true\n")
        );
        assert!(
            what("colour = 1\n").contains("x.toml:1:1: colour: unknown field"),
            "{}",
            what("colour = 1\n")
        );
        assert!(what("\n\nlisten =\n").starts_with("/etc/castnet/x.toml:3:"));
    }

    #[test]
    fn all_faults_of_values_are_told_together() {
        let (mut file, table) = read("listen = \"here\"\n  agent = \"there\"\n").expect("TOML");
        let listen: Option<Address> = file.text("listen", table.listen.as_ref());
        let agent: Option<Address> = file.text("agent", table.agent.as_ref());
        assert!(listen.is_none() && agent.is_none());
        let failure = file.finish().expect_err("two faults");
        let lines: Vec<_> = failure.what.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with("/etc/castnet/x.toml:1:10: listen: "),
            "{}",
            lines[0]
        );
        assert!(
            lines[1].starts_with("/etc/castnet/x.toml:2:11: agent: "),
            "{}",
            lines[1]
        );
        assert_eq!(failure.code(), 2);
    }

    #[test]
    fn paths_are_taken_from_the_files_folder() {
        let (file, _) = read("").expect("TOML");
        assert_eq!(file.beside("a.toml".into()), Path::new("/etc/castnet/a.toml"));
        assert_eq!(file.beside("/b.toml".into()), Path::new("/b.toml"));
        assert!(file.finish().is_ok());
    }
}
