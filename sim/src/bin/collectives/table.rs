//! Tables, as text.

use std::fmt;

use castnet_comm::machine::Collective;

use crate::reason;

/// What stands above all tables.
pub(crate) const HEAD: &str = "\
EPIC, appendix K: 8 ranks, star (ring: rank to rank), 100 Gb/s, 1 us a link. Path MTU 4096, 82 bytes of headers, preamble and
gap per packet, window 64 packets, messages of 16, QP time-out 32.8 us, no congestion control, hosts and switch that take no
time. Throughput in Gibit/s, which is what the paper's Gbps are. A collective has ended where all have their results and what
was sent is acknowledged, as the paper counts; 'in place' is what a program sees: all have their results.
";

/// One cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// What the paper has.
    pub(crate) paper: f64,
    /// What came out here, counted as there.
    pub(crate) ours: f64,
    /// The same with the time rounded up to whole microseconds, as there.
    pub(crate) rounded: f64,
    /// Where only results count.
    pub(crate) results: f64,
}

impl Cell {
    pub(crate) fn ratio(&self) -> f64 {
        self.ours / self.paper
    }

    /// Whether it is within 10 % of the paper.
    pub(crate) fn is_near(&self) -> bool {
        near(self.ratio())
    }

    /// Whether it would be, rounded as there.
    pub(crate) fn is_near_rounded(&self) -> bool {
        near(self.rounded / self.paper)
    }
}

fn near(ratio: f64) -> bool {
    (0.9..=1.1).contains(&ratio)
}

/// A table of the paper.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) number: u32,
    pub(crate) title: String,
    pub(crate) collective: Collective,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<Cell>)>,
}

fn value(value: f64) -> String {
    if value >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Table {}: {}", self.number, self.title)?;
        write!(f, "{:27}", "")?;
        for column in &self.columns {
            write!(f, "{column:>9}")?;
        }
        writeln!(f)?;
        for (name, cells) in &self.rows {
            let mut line = |what: &str, text: &dyn Fn(&Cell) -> String| {
                write!(f, "{name:17} {what:9}")?;
                for cell in cells {
                    write!(f, "{:>9}", text(cell))?;
                }
                writeln!(f)
            };
            line("paper", &|c| value(c.paper))?;
            line("castnet", &|c| value(c.ours))?;
            line("in place", &|c| value(c.results))?;
            line("ratio", &|c| {
                let reason = reason::of(self, name, c).map_or(' ', |r| r.letter);
                format!("{:.2}{reason}", c.ratio())
            })?;
        }
        Ok(())
    }
}
