//! Output of commands: tables for people and JSON for machines, from the same data.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use castnet_wire::CounterSet;
use clap::ValueEnum;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Serialize, Serializer};
use terminal_size::terminal_size_of;

use crate::exit::{self, Failure, Outcome};
use crate::stderr::Lines;
use crate::units::{bytes, count};

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables and sentences for people.
    #[default]
    Table,
    /// JSON for machines: one object or array; for what goes on (`--watch`, live traces, runs of a bench) one object a line.
    Json,
}

/// Result of a command: its fields are the JSON, the page is for people.
pub trait Report: Serialize {
    /// Writes it for people.
    fn page(&self, page: &mut Page);
}

/// A line of a table. A list of them is a [`Report`].
pub trait Row: Serialize {
    /// Column names. That of a field is the field's own: `data_in` is shown as DATA IN.
    const COLUMNS: &'static [&'static str];

    /// As many cells as there are columns.
    fn cells(&self) -> Vec<String>;
}

/// Implements [`Row`]: `columns!(row: Type => row { a, b } (row.counters) { c })`. A column can have another heading,
/// `a as "heading"`, or be a method, `a()`.
#[macro_export]
macro_rules! columns {
    ($row:ident: $type:ty => $($of:tt { $($field:ident $(($($none:tt)*))? $(as $heading:literal)?),+ $(,)? })+) => {
        impl $crate::output::Row for $type {
            const COLUMNS: &'static [&'static str] = &[$($($crate::heading!($field $($heading)?),)+)+];

            fn cells(&self) -> Vec<String> {
                let $row = self;
                vec![$($($crate::output::Cell::cell(&$of.$field $(($($none)*))?, stringify!($field)),)+)+]
            }
        }
    };
}

/// The heading of a column.
#[doc(hidden)]
#[macro_export]
macro_rules! heading {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $heading:literal) => {
        $heading
    };
}

/// A value in a table.
pub trait Cell {
    /// For people. `name` is that of the field: a field named bytes is shown as a size.
    fn cell(&self, name: &str) -> String;
}

impl Cell for u64 {
    fn cell(&self, name: &str) -> String {
        if name.contains("bytes") {
            bytes(*self)
        } else {
            count(*self)
        }
    }
}

macro_rules! plain_cells {
    ($($type:ty)*) => {$(
        impl Cell for $type {
            fn cell(&self, _: &str) -> String {
                self.to_string()
            }
        }
    )*};
}
plain_cells! { u32 usize String &str }

impl<T: Cell> Cell for Option<T> {
    fn cell(&self, name: &str) -> String {
        self.as_ref()
            .map_or_else(|| "-".to_owned(), |value| value.cell(name))
    }
}

/// Serializes counters as a map from name to value.
pub fn named<C: CounterSet, S: Serializer>(counters: &C, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(counters.fields())
}

/// Text with titles, sentences, facts and tables.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// A heading after an empty line.
    pub fn title(&mut self, text: impl AsRef<str>) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(text);
    }

    /// One or more lines.
    pub fn line(&mut self, text: impl AsRef<str>) {
        self.text.push_str(text.as_ref().trim_end());
        self.text.push('\n');
    }

    /// Aligned names and values, one pair per line.
    pub fn facts(&mut self, facts: &[(&str, String)]) {
        let width = facts
            .iter()
            .map(|(name, _)| name.chars().count())
            .max()
            .unwrap_or(0);
        for (name, value) in facts {
            self.line(format!("  {name:width$}  {value}"));
        }
    }

    /// A table, with columns of figures aligned to the right.
    pub fn table(&mut self, columns: &[&str], rows: Vec<Vec<String>>) {
        let header: Vec<String> = columns.iter().map(|column| capitals(column)).collect();
        let figures: Vec<bool> = (0..columns.len())
            .map(|i| {
                let mut cells = rows
                    .iter()
                    .filter_map(|row| row.get(i))
                    .filter(|cell| !cell.is_empty())
                    .peekable();
                cells.peek().is_some() && cells.all(|cell| is_figure(cell))
            })
            .collect();
        let terminal = terminal_size_of(io::stdout()).map(|(width, _)| width.0);
        match widths(&header, &rows, terminal) {
            Some(widths) => self.aligned(&header, &rows, &figures, &widths),
            None => self.wrapped(header, rows, &figures, terminal),
        }
    }

    /// Rows that need no more than their widths. A fabric has a hundred thousand.
    fn aligned(&mut self, header: &[String], rows: &[Vec<String>], figures: &[bool], widths: &[usize]) {
        for row in std::iter::once(header).chain(rows.iter().map(Vec::as_slice)) {
            let start = self.text.len();
            for ((cell, is_figure), width) in row.iter().zip(figures).zip(widths) {
                if self.text.len() > start {
                    self.text.push_str("  ");
                }
                let pad = width - cell.len();
                let (before, after) = if *is_figure { (pad, 0) } else { (0, pad) };
                self.text.extend(std::iter::repeat_n(' ', before));
                self.text.push_str(cell);
                self.text.extend(std::iter::repeat_n(' ', after));
            }
            self.text.truncate(start + self.text[start..].trim_end().len());
            self.text.push('\n');
        }
    }

    /// Rows in as many lines as a terminal of so many columns needs. One that is too narrow for the longest words wraps lines itself: no word
    /// is split here.
    fn wrapped(
        &mut self,
        header: Vec<String>,
        rows: Vec<Vec<String>>,
        figures: &[bool],
        terminal: Option<u16>,
    ) {
        let all = || std::iter::once(&header).chain(&rows);
        let longest = |i: usize| {
            let cells = all().filter_map(|row| row.get(i));
            let words = cells.flat_map(|cell| cell.split_whitespace());
            words.map(|word| word.chars().count()).max().unwrap_or(0)
        };
        // A column has a space on each side.
        let least: Vec<usize> = (0..header.len()).map(|i| longest(i) + 2).collect();
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(header);
        table.add_rows(rows);
        if let Some(terminal) = terminal.filter(|width| least.iter().sum::<usize>() <= usize::from(*width)) {
            table
                .set_width(terminal)
                .set_content_arrangement(ContentArrangement::Dynamic);
            let least = least.iter().map(|width| Width::Fixed(*width as u16));
            table.set_constraints(least.map(ColumnConstraint::LowerBoundary));
        }
        for (i, _) in figures.iter().enumerate().filter(|(_, figure)| **figure) {
            if let Some(column) = table.column_mut(i) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for line in table.lines() {
            self.line(line.strip_prefix(' ').unwrap_or(&line));
        }
    }

    /// A table of [`Row`]s; `empty` if there are none.
    pub fn rows<R: Row>(&mut self, rows: &[R], empty: &str) {
        if rows.is_empty() {
            self.line(empty);
        } else {
            self.table(R::COLUMNS, rows.iter().map(Row::cells).collect());
        }
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The widths of the columns, if all cells are there, have a plain width, and fit the terminal beside each other.
fn widths(header: &[String], rows: &[Vec<String>], terminal: Option<u16>) -> Option<Vec<usize>> {
    let is_plain = |cell: &String| cell.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
    let mut widths = vec![0; header.len()];
    for row in std::iter::once(header).chain(rows.iter().map(Vec::as_slice)) {
        if row.len() != header.len() || !row.iter().all(is_plain) {
            return None;
        }
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let total: usize = widths.iter().map(|width| width + 2).sum();
    let fits = terminal.is_none_or(|columns| total <= columns.into());
    fits.then_some(widths)
}

/// The heading of a column in capitals, but for units that these would change: Gb/s are bits, GB/s bytes.
fn capitals(column: &str) -> String {
    let word = |word: &str| match word.contains('/') && word.contains(char::is_uppercase) {
        true => word.to_owned(),
        false => word.to_uppercase(),
    };
    let words: Vec<String> = column.split(['_', ' ']).map(word).collect();
    words.join(" ")
}

/// `12`, `1 234`, `1.5 KiB`, `2.31 Gb/s`, `-`; not addresses or versions.
fn is_figure(cell: &str) -> bool {
    cell == "-"
        || (cell.starts_with(|c: char| c.is_ascii_digit())
            && cell.matches('.').count() < 2
            && !cell.contains([':', '/'])
            && !cell.starts_with("0x"))
        || (cell.ends_with("b/s") && cell.starts_with(|c: char| c.is_ascii_digit()))
}

/// A list as a report: a JSON array, or a table.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Rows<R> {
    rows: Vec<R>,
    #[serde(skip)]
    empty: &'static str,
}

impl<R: Row> Rows<R> {
    /// `empty` is the sentence for people if there are no rows.
    pub fn new(rows: Vec<R>, empty: &'static str) -> Self {
        Self { rows, empty }
    }
}

impl<R: Row> Report for Rows<R> {
    fn page(&self, page: &mut Page) {
        page.rows(&self.rows, self.empty);
    }
}

/// A sentence about what was done, and its facts for machines.
#[derive(Debug, Serialize)]
pub struct Done<T: Serialize> {
    /// The facts.
    #[serde(flatten)]
    pub facts: T,
    /// The sentence.
    #[serde(skip)]
    pub sentence: String,
}

impl<T: Serialize> Report for Done<T> {
    fn page(&self, page: &mut Page) {
        page.line(&self.sentence);
    }
}

/// Prints reports.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
}

impl Output {
    /// Prints to stdout in `format`.
    pub fn new(format: Format) -> Self {
        Self { format }
    }

    /// Whether the format is JSON.
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Prints the only report of a command.
    pub fn show<R: Report>(self, report: &R) -> Outcome {
        write_stdout(&self.render(report, true)?)
    }

    /// Prints the only report of a command. Returns its verdict if that is a failure, else the error of printing.
    ///
    /// # Errors
    /// Those of both.
    pub fn conclude<R: Report>(self, report: &R, verdict: Outcome) -> Outcome {
        let shown = self.show(report);
        verdict.and(shown)
    }

    /// Prints one of several reports, in JSON one per line.
    pub fn show_next<R: Report>(self, report: &R) -> Outcome {
        write_stdout(&self.render(report, false)?)
    }

    /// Prints a report to stderr, where stdout has the data; in JSON on one line.
    ///
    /// # Errors
    /// It cannot be shown. Errors of stderr are ignored.
    pub fn remark_report<R: Report>(self, report: &R) -> Outcome {
        remark(self.render(report, false)?.trim_end());
        Ok(())
    }

    fn render<R: Report>(self, report: &R, pretty: bool) -> Outcome<String> {
        match self.format {
            Format::Table => {
                let mut page = Page::default();
                report.page(&mut page);
                Ok(page.text)
            }
            Format::Json => {
                let json = if pretty {
                    serde_json::to_string_pretty(report)
                } else {
                    serde_json::to_string(report)
                };
                json.map(|text| text + "\n").map_err(Failure::failed)
            }
        }
    }

    /// Prints to stderr. Errors of stderr are ignored.
    pub fn failure(self, failure: &Failure) {
        if !failure.quiet {
            let text = if self.is_json() {
                failure.json()
            } else {
                failure.text()
            };
            let _ = io::stderr().write_all(printable(&text).as_bytes());
        }
    }

    /// A progress bar, or a spinner without `length`; hidden without a terminal. `template` is indicatif's.
    pub fn bar(self, length: Option<u64>, template: &str) -> ProgressBar {
        let bar = match length {
            _ if !io::stderr().is_terminal() => return ProgressBar::hidden(),
            Some(length) => ProgressBar::new(length),
            None => ProgressBar::new_spinner(),
        };
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    }

    /// A progress bar for bytes.
    pub fn byte_bar(self, length: Option<u64>) -> ProgressBar {
        let template = match length {
            Some(_) => "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            None => "{msg} {spinner} {bytes} {bytes_per_sec}",
        };
        self.bar(length, template)
    }
}

/// Whether a terminal may take the character for a command, or show what stands around it in another order.
fn is_unprintable(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text as a terminal may get it, with `\u001b` for ESC. Names and reasons come from switches, hosts and neighbours, who may be hostile. In
/// JSON it means the same as before.
fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return text.into();
    }
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        // All of them have four digits.
        let _ = match is_unprintable(c) {
            true => write!(printable, "\\u{:04x}", u32::from(c)),
            false => printable.write_char(c),
        };
    }
    printable.into()
}

/// Writes text to stdout and flushes it.
pub fn write_stdout(text: &str) -> Outcome {
    write_raw(&printable(text))
}

/// Clears the terminal.
pub(crate) fn clear() -> Outcome {
    write_raw("\x1b[2J\x1b[H")
}

fn write_raw(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => error.into(),
        _ => exit::not_written(format_args!("cannot write to stdout: {error}"), &error),
    })
}

/// Writes a remark for people to stderr.
pub fn remark(text: &str) {
    // One write, so that lines of several processes do not mix.
    let _ = Lines.write_all(format!("{}\n", printable(text)).as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Serialize)]
    struct Counter {
        port: &'static str,
        frames: u64,
    }

    impl Row for Counter {
        const COLUMNS: &'static [&'static str] = &["port", "frames"];
        fn cells(&self) -> Vec<String> {
            vec![self.port.to_owned(), crate::units::count(self.frames)]
        }
    }

    fn page<R: Report>(report: &R) -> String {
        Output::new(Format::Table).render(report, true).expect("text")
    }

    #[test]
    fn units_of_headings_stay_as_they_are() {
        for (column, heading) in [
            ("Gb/s in", "Gb/s IN"),
            ("GB/s", "GB/s"),
            ("M/s out", "M/s OUT"),
            ("frames/s", "FRAMES/S"),
            ("queued_bytes", "QUEUED BYTES"),
        ] {
            assert_eq!(capitals(column), heading);
        }
    }

    #[test]
    fn no_text_reaches_a_terminal_as_a_command() {
        for (text, shown) in [
            ("leaf1\tup\n", "leaf1\tup\n"),
            ("\x1b]0;owned\x07", "\\u001b]0;owned\\u0007"),
            ("\u{9b}2J\r\x7f", "\\u009b2J\\u000d\\u007f"),
            ("a\u{202e}b\u{2066}c\u{2028}d", "a\\u202eb\\u2066c\\u2028d"),
            ("München", "München"),
        ] {
            assert_eq!(printable(text), shown);
            let json = serde_json::to_string(text).expect("JSON");
            assert_eq!(
                serde_json::from_str::<String>(&printable(&json)).expect("JSON"),
                text
            );
        }
    }

    #[test]
    fn figures_stand_right_and_names_left() {
        let rows = Rows::new(
            vec![
                Counter {
                    port: "h1",
                    frames: 7,
                },
                Counter {
                    port: "spine",
                    frames: 12_345,
                },
            ],
            "",
        );
        assert_eq!(page(&rows), "PORT   FRAMES\nh1          7\nspine  12 345\n");
    }

    #[test]
    fn an_empty_list_says_so_to_people_and_is_an_array_to_machines() {
        let rows = Rows::<Counter>::new(vec![], "no ports");
        assert_eq!(page(&rows), "no ports\n");
        assert_eq!(
            Output::new(Format::Json).render(&rows, true).expect("JSON"),
            "[]\n"
        );
    }

    #[test]
    fn a_report_that_cannot_be_shown_keeps_its_verdict() {
        // JSON has no keys that are tuples.
        #[derive(Serialize)]
        struct Unshown(std::collections::BTreeMap<(u8, u8), u8>);
        impl Report for Unshown {
            fn page(&self, _: &mut Page) {}
        }
        let report = Unshown([((1, 2), 3)].into());
        let ended = |verdict| Output::new(Format::Json).conclude(&report, verdict);
        let failure = ended(Err(Failure::refused("wrong"))).expect_err("the verdict");
        assert_eq!((failure.code(), failure.what.as_str()), (3, "wrong"));
        assert_eq!(ended(Ok(())).map_err(|failure| failure.code()), Err(1));
    }

    #[test]
    fn json_is_the_same_data_one_object_a_line_when_it_goes_on() {
        let rows = Rows::new(
            vec![Counter {
                port: "h1",
                frames: 7,
            }],
            "",
        );
        let line = Output::new(Format::Json).render(&rows, false).expect("JSON");
        assert_eq!(line, "[{\"port\":\"h1\",\"frames\":7}]\n");
    }

    proptest! {
        #[test]
        fn what_needs_no_wrapping_is_as_if_it_was_wrapped(
            rows in proptest::collection::vec(proptest::collection::vec("[a-z]{0,3}[0-9]{0,4}( [a-z0-9]{1,4})?", 3), 0..6),
        ) {
            let columns = ["a", "long_name", "c"];
            let mut page = Page::default();
            page.table(&columns, rows.clone());
            let is_figure = |i: usize| {
                let mut cells = rows.iter().map(|row| &row[i]).filter(|cell| !cell.is_empty()).peekable();
                cells.peek().is_some() && cells.all(|cell| is_figure(cell))
            };
            let figures = [0, 1, 2].map(is_figure);
            let mut wrapped = Page::default();
            wrapped.wrapped(["A", "LONG NAME", "C"].map(str::to_owned).to_vec(), rows, &figures, None);
            prop_assert_eq!(page.text(), wrapped.text());
        }

        /// However narrow a terminal is, each word stays whole; where the words fit, so do the lines.
        #[test]
        fn no_word_is_split(
            rows in proptest::collection::vec(proptest::collection::vec("([a-z0-9:]{1,12} ){0,6}", 3), 1..6), terminal in 0u16..100,
        ) {
            let header = ["A", "LONG NAME", "C"].map(str::to_owned).to_vec();
            let words = |text: &str| {
                let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
                words.sort();
                words
            };
            let all = words(&[&header[..], &rows.concat()].concat().join(" "));
            let mut page = Page::default();
            page.wrapped(header.clone(), rows.clone(), &[false; 3], Some(terminal));
            prop_assert_eq!(words(page.text()), all);
            let longest = |i: usize| {
                let cells = rows.iter().map(|row| &row[i]).chain([&header[i]]);
                cells.flat_map(|cell| cell.split_whitespace()).map(str::len).max().unwrap_or(0)
            };
            if (0..3).map(|i| longest(i) + 2).sum::<usize>() <= usize::from(terminal) {
                prop_assert!(page.text().lines().all(|line| line.len() <= terminal.into()), "{}", page.text());
            }
        }
    }

    #[test]
    fn addresses_are_no_figures() {
        for (cell, figure) in [
            ("12", true),
            ("1.5 KiB", true),
            ("-", true),
            ("2.31 Gb/s", true),
            ("10.0.0.1", false),
            ("10.0.0.0/24", false),
        ] {
            assert_eq!(is_figure(cell), figure, "{cell}");
        }
    }

    #[test]
    fn facts_line_up() {
        let mut page = Page::default();
        page.facts(&[("a", "1".to_owned()), ("long", "2".to_owned())]);
        assert_eq!(page.text(), "  a     1\n  long  2\n");
    }
}
