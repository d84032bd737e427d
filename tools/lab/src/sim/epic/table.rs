//! Tables with results, as text, Markdown and JSON.

use std::fmt::{self, Write};

use serde_json::{Value, json};

use super::measure::{Run, Times};
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
    pub(crate) reason: Option<Reason>,
}

impl Cell {
    pub(crate) fn ratio(&self) -> f64 {
        self.ours / self.paper
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) spec: TableSpec,
    /// By row of the spec.
    pub(crate) cells: Vec<Vec<Cell>>,
}

fn cell(spec: &CellSpec, row: Option<Reason>, of: &impl Fn(&Run) -> Times) -> Cell {
    let times = spec.sample.times(of);
    let time = spec.counting.of(&times);
    let value = |time| spec.figure.value(time, of);
    let others: Vec<f64> = spec
        .others
        .iter()
        .map(|(sample, counting)| value(spec.figure.rounded(counting.of(&sample.times(of)))))
        .collect();
    let ours = value(time);
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
            cell: spec.reason,
        }),
        others,
    }
}

impl Table {
    pub(crate) fn new(spec: TableSpec, of: impl Fn(&Run) -> Times) -> Self {
        let row = |row: &RowSpec| row.cells.iter().map(|c| cell(c, row.reason, &of)).collect();
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
            if theirs {
                line("ratio", &|c| {
                    format!("{:.2}{}", c.ratio(), c.reason.map_or(' ', |r| r.letter))
                });
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
        let cell = |(column, cell): (&String, &Cell)| {
            json!({
                "column": column,
                "paper": cell.paper,
                "castnet": cell.ours,
                "returned": cell.returned,
                "ratio": cell.ratio(),
                "others": cell.others,
                "reason": cell.reason.map(|r| r.letter.to_string()),
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
        write!(f, "{:30}", "")?;
        for column in &self.spec.columns {
            write!(f, "{:>8} ", column)?;
        }
        writeln!(f)?;
        for (name, values) in self.lines() {
            write!(f, "{name:30}")?;
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
