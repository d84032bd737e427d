//! Tables with results, as text, Markdown and JSON.

use std::fmt::{self, Write};

use serde_json::{Value, json};

use super::counts::{Counter, Counts};
use super::measure::{Measured, Run};
use super::reason::{self, Evidence, Reason};
use super::spec::{CellSpec, RowSpec, TableSpec};

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) paper: f64,
    /// Our value, counted like the paper's.
    pub(crate) ours: f64,
    /// Time from the first call to the last return.
    pub(crate) returned: f64,
    /// Of other methods, with times rounded up as in the paper.
    pub(crate) others: Vec<f64>,
    /// What appendix F.4 expects, under loss.
    expected: Option<f64>,
    pub(crate) reason: Option<Reason>,
    /// Sum over its runs, and their number.
    counts: (Counts, usize),
}

impl Cell {
    pub(crate) fn ratio(&self) -> f64 {
        self.ours / self.paper
    }

    /// The mean over its runs.
    fn counted(&self, counter: &Counter) -> f64 {
        let (counts, runs) = &self.counts;
        (counter.of)(counts) / (*runs).max(1) as f64
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) spec: TableSpec,
    /// By row of the spec.
    pub(crate) cells: Vec<Vec<Cell>>,
}

fn cell(spec: &CellSpec, row: Option<Reason>, of: &impl Fn(&Run) -> Measured) -> Cell {
    let times_of = |run: &Run| of(run).times;
    let times = spec.sample.times(times_of);
    let time = spec.counting.of(&times);
    let value = |time| spec.figure.value(time, times_of);
    let others: Vec<f64> = spec
        .others
        .iter()
        .map(|(sample, counting)| value(spec.figure.rounded(counting.of(&sample.times(times_of)))))
        .collect();
    let ours = value(time);
    let counts = spec.sample.counts(|run| of(run).counts);
    let counted = spec
        .lossy
        .and_then(|lossy| reason::counted(&counts.0, lossy.least));
    Cell {
        paper: spec.paper,
        ours,
        returned: value(times.returned),
        reason: reason::of(Evidence {
            paper: spec.paper,
            ours,
            rounded: value(spec.figure.rounded(time)),
            others: &others,
            row,
            cell: spec.reason.or(counted),
            counts: &counts.0,
        }),
        others,
        expected: None,
        counts,
    }
}

impl Table {
    pub(crate) fn new(spec: TableSpec, of: impl Fn(&Run) -> Measured) -> Self {
        let row = |row: &RowSpec| {
            let mut cells: Vec<Cell> = row.cells.iter().map(|c| cell(c, row.reason, &of)).collect();
            let lossless = cells.first().map_or(f64::NAN, |cell| cell.ours);
            for (cell, spec) in cells.iter_mut().zip(&row.cells) {
                cell.expected = spec.lossy.map(|lossy| lossless * lossy.expected);
            }
            cells
        };
        let cells = spec.rows.iter().map(row).collect();
        Self { spec, cells }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (&RowSpec, &Vec<Cell>)> {
        self.spec.rows.iter().zip(&self.cells)
    }

    /// Name and cells of each line, without the header.
    fn lines(&self) -> Vec<(String, Vec<String>)> {
        let decimals = if self.spec.unit == "s" { 3 } else { 2 };
        let value = |number| value(number, decimals);
        let mut lines = Vec::new();
        for (row, cells) in self.rows() {
            let mut line = |what: &str, text: &dyn Fn(&Cell) -> String| {
                lines.push((format!("{}: {what}", row.name), cells.iter().map(text).collect()));
            };
            let theirs = cells.iter().any(|cell| !cell.paper.is_nan());
            if theirs {
                line("paper", &|c| value(c.paper));
            }
            line("castnet", &|c| value(c.ours));
            line("calls return", &|c| value(c.returned));
            for (i, name) in row.others.iter().enumerate() {
                line(name, &|c| value(c.others[i]));
            }
            if cells.iter().any(|cell| cell.expected.is_some()) {
                line("F.4 expects", &|c| value(c.expected.unwrap_or(f64::NAN)));
            }
            if theirs {
                line("ratio", &|c| {
                    format!("{:.2}{}", c.ratio(), c.reason.map_or(' ', |r| r.letter))
                });
            }
            for counter in self.spec.counters {
                line(counter.name, &|c| self::value(c.counted(counter), 1));
            }
        }
        lines
    }

    pub(crate) fn markdown(&self) -> String {
        let TableSpec {
            number,
            title,
            columns,
            ..
        } = &self.spec;
        let mut text = format!("### Table {number}: {title}\n\n| |");
        for column in columns {
            let _ = write!(text, " {column} |");
        }
        text += "\n|---|";
        columns.iter().for_each(|_| text += "---:|");
        for (name, values) in self.lines() {
            let bold = if name.ends_with("ratio") { "**" } else { "" };
            let _ = write!(text, "\n| {name} |");
            for value in values {
                let _ = write!(text, " {bold}{}{bold} |", value.trim_end());
            }
        }
        text + "\n"
    }

    pub(crate) fn json(&self) -> Value {
        let counters = self.spec.counters;
        let cell = |(column, cell): (&String, &Cell)| {
            let counts = counters
                .iter()
                .map(|c| (c.name.to_owned(), json!(cell.counted(c))));
            json!({
                "column": column,
                "paper": cell.paper,
                "castnet": cell.ours,
                "returned": cell.returned,
                "ratio": cell.ratio(),
                "others": cell.others,
                "f4": cell.expected,
                "reason": cell.reason.map(|r| r.letter.to_string()),
                "band": cell.reason.map(|r| r.band),
                "counts": Value::Object(counts.collect()),
            })
        };
        let row = |(row, cells): (&RowSpec, &Vec<Cell>)| {
            json!({
                "name": row.name,
                "others": row.others,
                "cells": self.spec.columns.iter().zip(cells).map(cell).collect::<Vec<_>>(),
            })
        };
        json!({
            "table": self.spec.number,
            "title": self.spec.title,
            "unit": self.spec.unit,
            "rows": self.rows().map(row).collect::<Vec<_>>(),
        })
    }
}

fn value(value: f64, decimals: usize) -> String {
    match value {
        1000.0.. => format!("{value:.0}"),
        _ => format!("{value:.decimals$}"),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Table {}: {}", self.spec.number, self.spec.title)?;
        let lines = self.lines();
        let width = lines
            .iter()
            .map(|(name, _)| name.len() + 1)
            .max()
            .unwrap_or(0)
            .max(30);
        write!(f, "{:width$}", "")?;
        for column in &self.spec.columns {
            write!(f, "{:>8} ", column)?;
        }
        writeln!(f)?;
        for (name, values) in lines {
            write!(f, "{name:width$}")?;
            for value in values {
                // A letter is appended outside the column.
                match value.ends_with(|c: char| !c.is_ascii_digit()) {
                    true => write!(f, "{value:>9}")?,
                    false => write!(f, "{value:>8} ")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
