//! The assumptions of the power and cost model, from a file.

use std::path::Path;
use std::str::FromStr;

use castnet_console::exit::{self, Outcome};
use castnet_console::settings;
use castnet_planner::shufflecast::Shufflecast;
use castnet_toml_reader::{Faults, Table, Value};

/// The paper's (table 1, sections 2.2 and 6.1).
pub(super) const PAPER: &str = include_str!("assumptions.toml");

pub(super) struct Assumptions {
    /// At least one.
    pub(super) fabrics: Vec<Shufflecast>,
    /// Of each switch of the packet-switched core.
    pub(super) switch_ports: usize,
    /// At least one.
    pub(super) rates: Vec<Rate>,
    splitters: Vec<Splitter>,
    /// USD of a duplex cable.
    pub(super) cable_usd: f64,
    /// One-way fibers of a tree that share a cable.
    pub(super) tree_fibers: f64,
}

/// A port of a switch, and a transceiver, at a data rate.
pub(super) struct Rate {
    pub(super) name: String,
    port_watt: f64,
    port_usd: f64,
    transceiver_watt: f64,
    transceiver_usd: f64,
    budget_db: f64,
}

impl Rate {
    /// Of a port with its transceiver.
    pub(super) fn watt(&self) -> f64 {
        self.port_watt + self.transceiver_watt
    }

    /// Of a port with its transceiver.
    pub(super) fn usd(&self) -> f64 {
        self.port_usd + self.transceiver_usd
    }
}

struct Splitter {
    outputs: usize,
    usd: f64,
    loss_db: f64,
}

/// A number of 0 to 1e9.
struct Amount(f64);

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|n: &f64| (0.0..=1e9).contains(n));
        let number = number.ok_or_else(|| format!("{text} is no number of 0 to 1e9"))?;
        Ok(Self(number))
    }
}

fn amount(value: Value<'_>) -> Option<f64> {
    value.number_or_text().map(|Amount(amount)| amount)
}

fn positive(value: Value<'_>) -> Option<f64> {
    let amount = amount(value)?;
    if amount == 0.0 {
        value.fault("0 is not above 0");
    }
    Some(amount)
}

impl Assumptions {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Outcome<Self> {
        let text = exit::read_text(path)?;
        Self::from_toml(&text).map_err(|faults| {
            settings::faulty(path, faults)
                .next("castnet-lab sim shufflecast cost --example shows a file with all keys")
        })
    }

    /// All faults are reported, each with line, column and key.
    pub(super) fn from_toml(text: &str) -> Result<Self, Faults> {
        castnet_toml_reader::read(text, &[], |file| {
            let fabrics = file.need("fabrics", "a list such as [\"4,3\"]", |v| {
                filled(&v, |fabric| fabric.parse())
            });
            // With fewer ports, a layer would have as many switches as the one below.
            let ports = file.need("switch_ports", "a number of ports, 3 to 1024", |v| {
                v.number(3..=1024, "is not in 3 to 1024")
            });
            let rates = file.need("rates", "a list of data rates: [[rates]]", |v| filled(&v, rate));
            let splitters = file.need("splitters", "a list of splitters: [[splitters]]", |v| {
                filled(&v, splitter)
            });
            let cable = file.need("cable", "a table: [cable]", |v| cable(&v.table("a table")?));
            let (cable_usd, tree_fibers) = cable?;
            let read = Self {
                fabrics: fabrics?,
                switch_ports: ports?,
                rates: rates?,
                splitters: splitters?,
                cable_usd,
                tree_fibers,
            };
            read.check(file);
            Some(read)
        })
    }

    /// Each Shufflecast has a splitter, and each transceiver compensates its loss.
    fn check(&self, file: &Table<'_>) {
        for (i, fabric) in self.fabrics.iter().enumerate() {
            let Some(splitter) = self.splitter(*fabric) else {
                let message = format!("no splitter has {} outputs or more", fabric.p());
                file.fault_at(&format!("fabrics[{i}]"), message);
                continue;
            };
            for (j, rate) in self.rates.iter().enumerate() {
                if rate.budget_db < splitter.loss_db {
                    let message = format!(
                        "{} dB do not compensate the {} dB of the splitter of {fabric}",
                        rate.budget_db, splitter.loss_db
                    );
                    file.fault_at(&format!("rates[{j}].budget_db"), message);
                }
            }
        }
    }

    fn splitter(&self, fabric: Shufflecast) -> Option<&Splitter> {
        let fitting = self
            .splitters
            .iter()
            .filter(|splitter| splitter.outputs >= fabric.p());
        fitting.min_by_key(|splitter| splitter.outputs)
    }

    /// USD of the splitter of a ToR.
    pub(super) fn splitter_usd(&self, fabric: Shufflecast) -> f64 {
        self.splitter(fabric).map_or(f64::NAN, |splitter| splitter.usd)
    }
}

/// A list with at least one value.
fn filled<T>(list: &Value<'_>, read: impl FnMut(Value<'_>) -> Option<T>) -> Option<Vec<T>> {
    let values: Vec<T> = list.list("a list")?.filter_map(read).collect();
    if values.is_empty() && list.faulty().is_empty() {
        list.fault("is empty: give at least one");
    }
    Some(values)
}

fn rate(value: Value<'_>) -> Option<Rate> {
    let table = value.table("a data rate")?;
    let need = |name| table.need(name, "a number", amount);
    // Ratios divide by the power and the price of ports.
    let port = |name| table.need(name, "a number above 0", positive);
    let (port_watt, port_usd) = (port("port_watt"), port("port_usd"));
    let (transceiver_watt, transceiver_usd) = (need("transceiver_watt"), need("transceiver_usd"));
    Some(Rate {
        name: table.need("name", "a name in quotes", Value::string)?,
        budget_db: need("budget_db")?,
        port_watt: port_watt?,
        port_usd: port_usd?,
        transceiver_watt: transceiver_watt?,
        transceiver_usd: transceiver_usd?,
    })
}

fn splitter(value: Value<'_>) -> Option<Splitter> {
    let table = value.table("a splitter")?;
    let need = |name| table.need(name, "a number", amount);
    let (usd, loss_db) = (need("usd"), need("loss_db"));
    Some(Splitter {
        outputs: table.need("outputs", "a number of outputs", |v| {
            v.number(2..=1024, "is not in 2 to 1024")
        })?,
        usd: usd?,
        loss_db: loss_db?,
    })
}

fn cable(table: &Table<'_>) -> Option<(f64, f64)> {
    let usd = table.need("usd", "a number", amount);
    let fibers: Option<u8> = table.need("tree_fibers", "1 or 2", |v| v.number(1..=2, "is not 1 or 2"));
    Some((usd?, f64::from(fibers?)))
}
