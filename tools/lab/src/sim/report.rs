//! Reports of figures: tables, the paper's headline numbers beside ours, and why they differ.

use castnet_console::output::{Page, Report};
use castnet_console::plot::{Axes, Panel};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// A headline number of the paper counts as met up to this relative distance.
pub(crate) const TOLERANCE: f64 = 0.10;

/// A value in a table.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    Text(String),
    Number(f64),
    Count(usize),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value) => number(*value),
            Self::Count(count) => count.to_string(),
        }
    }
}

/// Three digits, or all before the point.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. | 0.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// A table. In JSON each row is a map from column to value.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

struct Row<'a>(&'a [&'static str], &'a [Cell]);

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.1.len()))?;
        for (column, cell) in self.0.iter().zip(self.1) {
            map.serialize_entry(&column.replace(' ', "_"), cell)?;
        }
        map.end()
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.rows.iter().map(|row| Row(&self.columns, row)))
    }
}

/// A headline number of the paper, and ours.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Headline {
    pub(crate) what: String,
    /// The paper's, as a range; both are equal for a single number.
    pub(crate) paper: (f64, f64),
    /// Ours, as a range.
    pub(crate) castnet: (f64, f64),
    /// Why it is outside of [`TOLERANCE`].
    pub(crate) reason: Option<String>,
    /// How the paper's number is meant.
    pub(crate) relation: Relation,
}

/// Relation of our number to the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Relation {
    About,
    Exactly,
    AtLeast,
    AtMost,
}

impl Headline {
    /// One number.
    pub(crate) fn single(what: &str, paper: f64, castnet: f64) -> Self {
        Self::range(what, (paper, paper), (castnet, castnet))
    }

    pub(crate) fn range(what: &str, paper: (f64, f64), castnet: (f64, f64)) -> Self {
        Self {
            what: what.to_owned(),
            paper,
            castnet,
            reason: None,
            relation: Relation::About,
        }
    }

    /// A number that follows from a rule. All of ours must be equal to it.
    pub(crate) fn exact(what: &str, paper: f64, castnet: (f64, f64)) -> Self {
        Self {
            relation: Relation::Exactly,
            ..Self::range(what, (paper, paper), castnet)
        }
    }

    /// The paper has a bound, and no number.
    pub(crate) fn bound(what: &str, relation: Relation, paper: f64, castnet: f64) -> Self {
        Self {
            relation,
            ..Self::single(what, paper, castnet)
        }
    }

    /// Gives the reason, if it needs one.
    pub(crate) fn because(self, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        self.because_of_ends(&reason, &reason)
    }

    /// Gives a reason for each end of the range that needs one.
    pub(crate) fn because_of_ends(mut self, low: &str, high: &str) -> Self {
        let [low_met, high_met] = self.ends_met();
        self.reason = match (low_met, high_met) {
            (true, true) => None,
            (false, true) => Some(low.to_owned()),
            (true, false) => Some(high.to_owned()),
            (false, false) if low == high => Some(low.to_owned()),
            (false, false) => Some(format!("{low}. {high}")),
        };
        self
    }

    /// Both ends are within [`TOLERANCE`] of the paper's.
    pub(crate) fn is_met(&self) -> bool {
        self.ends_met() == [true, true]
    }

    fn ends_met(&self) -> [bool; 2] {
        let near = |ours: f64, paper: f64| match self.relation {
            Relation::About => (ours / paper - 1.0).abs() <= TOLERANCE,
            Relation::Exactly => (ours - paper).abs() < 1e-9,
            Relation::AtLeast => ours >= paper,
            Relation::AtMost => ours <= paper,
        };
        [
            near(self.castnet.0, self.paper.0),
            near(self.castnet.1, self.paper.1),
        ]
    }

    fn cells(&self) -> Vec<String> {
        let range = |(low, high): (f64, f64)| match low.to_bits() == high.to_bits() {
            true => number(low),
            false => format!("{} to {}", number(low), number(high)),
        };
        let verdict = match (self.is_met(), &self.reason, self.relation) {
            (true, _, Relation::About) => "within 10 %",
            (true, _, Relation::Exactly) => "equal",
            (true, ..) => "holds",
            (false, Some(_), _) => "see below",
            (false, None, _) => "differs",
        };
        let bound = match self.relation {
            Relation::About | Relation::Exactly => "",
            Relation::AtLeast => "at least ",
            Relation::AtMost => "at most ",
        };
        vec![
            self.what.clone(),
            format!("{bound}{}", range(self.paper)),
            range(self.castnet),
            verdict.to_owned(),
        ]
    }
}

/// The report of one figure or table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FigureReport {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What was simulated, in sentences.
    pub(crate) setting: String,
    pub(crate) table: Table,
    pub(crate) headlines: Vec<Headline>,
    /// Handled events of all simulations; 0 if nothing was simulated.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) events: u64,
    #[serde(skip)]
    pub(crate) plot: Plot,
}

fn is_zero(events: &u64) -> bool {
    *events == 0
}

/// Panels with their axes. Without panels, nothing is drawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plot {
    pub(crate) axes: Axes,
    pub(crate) panels: Vec<Panel>,
}

/// All reports of a command.
#[derive(Debug, Serialize)]
pub(crate) struct Reports {
    pub(crate) figures: Vec<FigureReport>,
    pub(crate) plots: Vec<String>,
}

impl Report for Reports {
    fn page(&self, page: &mut Page) {
        for figure in &self.figures {
            page.title(format!("{}: {}", figure.name, figure.title));
            page.line(&figure.setting);
            page.line("");
            let rows = figure.table.rows.iter();
            let rows = rows.map(|row| row.iter().map(Cell::text).collect()).collect();
            page.table(&figure.table.columns, rows);
            page.line("");
            let columns = ["headline", "paper", "castnet", ""];
            page.table(&columns, figure.headlines.iter().map(Headline::cells).collect());
            for headline in &figure.headlines {
                if let Some(reason) = &headline.reason {
                    page.line(format!("{}: {reason}", headline.what));
                }
            }
        }
        for plot in &self.plots {
            page.line(format!("Drawn: {plot}"));
        }
    }
}
