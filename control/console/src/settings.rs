//! Configuration files: their faults as failures of a command.

use std::path::{Path, PathBuf};

use castnet_rules::RuleSet;
use castnet_toml_reader::{Faults, Table, Value};

use crate::exit::{self, Failure, Outcome};

/// Reads a file by `read`. The failure has all faults, each with file, line, column and field.
pub fn read<T>(path: &Path, read: impl FnOnce(&Table<'_>) -> Option<T>) -> Outcome<T> {
    let text = exit::read_text(path)?;
    castnet_toml_reader::read(&text, &[], read)
        .map_err(|faults| faulty(path, faults).next("deploy/ has examples of all configuration files"))
}

/// The failure of reading a file with faults.
pub fn faulty(path: &Path, faults: Faults) -> Failure {
    Failure::usage(faults.in_file(path.display().to_string()))
}

/// A path in `file`, relative to the folder of `file`.
pub fn beside(file: &Path, value: Value<'_>) -> Option<PathBuf> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let text = value.text()?;
    let named = match text.is_empty() {
        true => Err("is empty: write a path"),
        false => Ok(folder.join(text)),
    };
    value.accept(named)
}

/// Reads a rule file.
pub fn read_rules(path: &Path) -> Outcome<RuleSet> {
    let text = exit::read_text(path)?;
    RuleSet::from_toml(&text).map_err(|faults| {
        let next = format!("castnet rules check {}\ncastnet rules example", path.display());
        faulty(path, faults).next(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_proto::transport::Address;

    use crate::units::{Ratio, Size, Span};

    const FILE: &str = "/etc/castnet/x.toml";

    fn read(text: &str) -> Result<Option<Address>, Failure> {
        let read = |t: &Table<'_>| {
            let (listen, _agent) = (
                t.get("listen", Value::parse),
                t.get("agent", Value::parse::<Address>),
            );
            t.get("count", |v| v.number::<u32>(0..=9, "is more than 9"));
            Some(listen)
        };
        castnet_toml_reader::read(text, &[], read).map_err(|faults| faulty(Path::new(FILE), faults))
    }

    #[test]
    fn faults_of_toml_and_types_have_line_column_and_field() {
        let what = |text: &str| read(text).expect_err("a fault").what;
        assert!(
            what("listen = \"x\"\ncount = true\n").contains("/etc/castnet/x.toml:2:9: count: "),
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
    fn all_faults_of_a_file_are_reported_together() {
        let failure =
            read("listen = \"here\"\n  agent = \"there\"\ncount = 10\ncolour = 1").expect_err("faults");
        let lines: Vec<_> = failure.what.lines().collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        for (line, start) in
            lines
                .iter()
                .zip(["1:10: listen: ", "2:11: agent: ", "3:9: count: ", "4:1: colour: "])
        {
            assert!(line.starts_with(&format!("{FILE}:{start}")), "{line}");
        }
        assert_eq!(failure.code(), 2);
    }

    /// A file that is meant for something else does not flood the terminal.
    #[test]
    fn the_first_faults_of_a_file_are_shown_and_the_others_counted() {
        let shown = |fields: usize| {
            let text: String = (0..fields).map(|n| format!("field{n} = 1\n")).collect();
            let what = read(&text).expect_err("faults").what;
            let last = what.lines().last().unwrap_or_default().to_owned();
            (what.lines().count(), last)
        };
        let (lines, last) = shown(20);
        assert!(lines == 20 && last.contains("x.toml:20:1: field19: "), "{last}");
        assert_eq!(shown(1498), (21, "and 1478 more".to_owned()));
    }

    #[test]
    fn paths_are_relative_to_the_folder_of_the_file() {
        let text = "a = \"a.toml\"\nb = \"/b.toml\"";
        let paths = castnet_toml_reader::read(text, &[], |t| {
            Some(["a", "b"].map(|name| t.get(name, |v| beside(Path::new(FILE), v))))
        });
        assert_eq!(
            paths,
            Ok([Some("/etc/castnet/a.toml".into()), Some("/b.toml".into())])
        );
    }

    #[test]
    fn files_may_write_numbers_or_text() {
        let text = "a = 1500\nb = \"1MiB\"\nloss = \"1%\"\nwait = 0.5";
        let read = castnet_toml_reader::read(text, &[], |t| {
            let sizes = ["a", "b"].map(|name| t.get(name, Value::number_or_text));
            let (loss, wait) = (
                t.get("loss", Value::number_or_text),
                t.get("wait", Value::number_or_text),
            );
            Some((sizes, loss, wait))
        });
        let half_a_second = Span(std::time::Duration::from_millis(500));
        assert_eq!(
            read,
            Ok((
                [Some(Size(1500)), Some(Size(1 << 20))],
                Some(Ratio(0.01)),
                Some(half_a_second)
            ))
        );
    }
}
