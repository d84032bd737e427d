//! The report: tables for people, JSON for machines.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::measure::Rate;
use crate::options::Name;

/// Bytes of a RoCEv2 frame without its payload: Ethernet, IPv4, UDP, BTH and ICRC.
pub const HEADERS: usize = 14 + 20 + 8 + 12 + 4;

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Setting {
    /// Bytes of payload; a RoCEv2 frame has 58 more.
    pub payload: usize,
    /// Number of ports that each frame leaves by.
    pub fanout: usize,
}

/// Results of one switch in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The switch.
    pub name: Name,
    /// The setting.
    #[serde(flatten)]
    pub setting: Setting,
    /// Median of the turns, by frames out.
    pub median: Rate,
    /// All turns.
    pub turns: Vec<Rate>,
}

/// A switch that was not measured, or not in all settings.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// The switch.
    pub name: Name,
    /// The reason, and what to install.
    pub why: String,
}

/// A goal, for the ratio of two results.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What is compared.
    pub what: String,
    /// The bound, such as `>= 2.5`.
    pub wanted: String,
    /// The ratio; `None` if something was not measured.
    pub found: Option<f64>,
    /// Whether it is met.
    pub met: Option<bool>,
}

/// The report of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Processor and kernel.
    pub machine: String,
    /// The core of the switches.
    pub core: usize,
    /// DPDK's version, and the memory of buffers; empty without DPDK.
    pub dpdk: String,
    /// Duration of a measurement.
    pub seconds: f64,
    /// Number of turns.
    pub turns: u32,
    /// Results.
    pub cells: Vec<Cell>,
    /// Switches without all results.
    pub left_out: Vec<LeftOut>,
    /// Goals.
    pub goals: Vec<Goal>,
}

/// Columns of the first table.
const COLUMNS: [Name; 5] = [
    Name::Copy,
    Name::Castnet,
    Name::Ipv4Multicast,
    Name::Ovs,
    Name::Testpmd,
];

impl Report {
    /// Adds the result of a turn.
    pub fn add(&mut self, name: Name, setting: Setting, rate: Rate) {
        let cell = match self
            .cells
            .iter_mut()
            .find(|c| c.name == name && c.setting == setting)
        {
            Some(cell) => cell,
            None => {
                self.cells.push(Cell {
                    name,
                    setting,
                    median: rate,
                    turns: Vec::new(),
                });
                self.cells.last_mut().expect("just pushed")
            }
        };
        cell.turns.push(rate);
        let mut sorted = cell.turns.clone();
        sorted.sort_by(|a, b| a.mfps_out.total_cmp(&b.mfps_out));
        cell.median = sorted[sorted.len() / 2];
    }

    /// Median of a switch in a setting.
    pub fn rate(&self, name: Name, setting: Setting) -> Option<Rate> {
        let cell = self
            .cells
            .iter()
            .find(|c| c.name == name && c.setting == setting)?;
        Some(cell.median)
    }

    fn out(&self, name: Name, payload: usize, fanout: usize) -> Option<f64> {
        self.rate(name, Setting { payload, fanout })
            .map(|rate| rate.mfps_out)
    }

    fn over(&self, setting: Setting, other: Name) -> Option<f64> {
        let castnet = match other {
            Name::BridgeRuns => Name::CastnetVethRuns,
            _ if other.over_veth() => Name::CastnetVeth,
            _ => Name::Castnet,
        };
        Some(self.rate(castnet, setting)?.mfps_out / self.rate(other, setting)?.mfps_out)
    }

    fn settings(&self, over_veth: bool) -> Vec<Setting> {
        let of = self
            .cells
            .iter()
            .filter(|c| c.name.over_veth() == over_veth && c.name != Name::CastnetTwo);
        let mut settings: Vec<_> = of.map(|c| c.setting).collect();
        settings.sort_unstable();
        settings.dedup();
        settings
    }

    /// Compares the results with the goals.
    pub fn judge(&mut self) {
        let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
        let kib = Setting {
            payload: 1024,
            fanout: 8,
        };
        let mut goals = vec![
            at_least(
                "1 to 8 at 1 KiB, castnet over ipv4_multicast",
                2.5,
                self.over(kib, Name::Ipv4Multicast),
            ),
            at_least(
                "1 to 8 at 1 KiB, castnet over OVS-DPDK",
                4.0,
                self.over(kib, Name::Ovs),
            ),
        ];
        for payload in [64, 1024, 4096] {
            let found = self.over(Setting { payload, fanout: 1 }, Name::Testpmd);
            goals.push(at_least(
                &format!("1 to 1 at {}, castnet over testpmd", bytes(payload)),
                0.6,
                found,
            ));
        }
        let out = |payload| self.out(Name::Castnet, payload, 8);
        let found = ratio(out(1024), out(4096));
        goals.push(Goal {
            what: "1 to 8, cost of a copy at 4 KiB over that at 1 KiB".into(),
            wanted: "<= 1.3".into(),
            found,
            met: found.map(|f| f <= 1.3),
        });
        let two = ratio(self.out(Name::CastnetTwo, 1024, 8), out(1024));
        goals.push(at_least("1 to 8 at 1 KiB, two workers over one", 1.8, two));
        self.goals = goals;
    }

    /// Both tables, the goals, and the switches that are left out.
    pub fn page(&self) -> String {
        let mut text = format!(
            "{}, core {}; {} s a turn, medians of {} turns\n",
            self.machine, self.core, self.seconds, self.turns
        );
        let settings = self.settings(false);
        if !settings.is_empty() {
            text.push_str(&format!(
                "\nMillion frames in and out per second of one core, net_pcap in, net_null out ({})\n\n",
                self.dpdk
            ));
            text.push_str(&self.over_dpdk(&settings));
        }
        let settings = self.settings(true);
        if !settings.is_empty() {
            text.push_str("\nFlooding over veth pairs, million frames in and out per second of one core\n\n");
            let columns = [
                Name::CastnetVeth,
                Name::Bridge,
                Name::CastnetVethRuns,
                Name::BridgeRuns,
            ];
            let others = [Name::Bridge, Name::BridgeRuns];
            text.push_str(&self.table(&settings, &self.measured(&columns), &self.measured(&others)));
        }
        if self.goals.iter().any(|goal| goal.found.is_some()) {
            text.push('\n');
            text.push_str(&self.goals_table());
        }
        let ours = self.cells.iter().filter(|c| !c.name.over_veth());
        let busy = ours.map(|c| c.median.share).fold(1.0, f64::min);
        if busy < 0.9 {
            text.push_str(&format!(
                "\nOthers used this core as well: a switch had it for {:.0} % of its time at worst. Time is of the threads\n\
                 that move frames, so this distorts little, but caches are shared: measure again on a quiet machine.\n",
                busy * 100.0
            ));
        }
        for LeftOut { name, why } in &self.left_out {
            let over = if name.over_veth() { " over veth pairs" } else { "" };
            text.push_str(&format!("\nleft out: {}{over}: {why}", name.label()));
        }
        if !self.left_out.is_empty() {
            text.push('\n');
        }
        text
    }

    fn measured(&self, names: &[Name]) -> Vec<Name> {
        let is_measured = |name: &Name| self.cells.iter().any(|c| c.name == *name);
        names.iter().copied().filter(is_measured).collect()
    }

    fn over_dpdk(&self, settings: &[Setting]) -> String {
        let others = [Name::Copy, Name::Ipv4Multicast, Name::Ovs, Name::Testpmd];
        let mut text = self.table(settings, &self.measured(&COLUMNS), &self.measured(&others));
        for cell in self.cells.iter().filter(|c| c.name == Name::CastnetTwo) {
            let Setting { payload, fanout } = cell.setting;
            text.push_str(&format!(
                "\nTwo workers, each with a group and a core of its own, 1 to {fanout} at {}: {} together\n",
                bytes(payload),
                figures(Some(cell.median))
            ));
        }
        text
    }

    /// One row per setting: rates, then ratios of castnet to others.
    fn table(&self, settings: &[Setting], names: &[Name], others: &[Name]) -> String {
        let others = if self
            .cells
            .iter()
            .any(|c| matches!(c.name, Name::Castnet | Name::CastnetVeth | Name::CastnetVethRuns))
        {
            others
        } else {
            &[]
        };
        let header = ["payload", "to"].map(String::from).into_iter();
        let header = header.chain(names.iter().map(|n| n.label().to_owned()));
        let header = header.chain(others.iter().map(|n| format!("/ {}", n.label())));
        let rows = settings.iter().map(|&setting| {
            let row = [bytes(setting.payload), setting.fanout.to_string()].into_iter();
            let row = row.chain(names.iter().map(|&n| figures(self.rate(n, setting))));
            let ratio = |n: &Name| {
                self.over(setting, *n)
                    .map_or_else(|| "-".into(), |r| format!("{r:.2}"))
            };
            row.chain(others.iter().map(ratio)).collect()
        });
        lines(header.collect(), rows.collect(), 0)
    }

    fn goals_table(&self) -> String {
        let header = ["goal", "wanted", "found", ""].map(String::from);
        let rows = self.goals.iter().map(|goal| {
            let found = goal.found.map_or_else(|| "-".into(), |f| format!("{f:.2}"));
            let met = match goal.met {
                Some(true) => "reached",
                Some(false) => "not reached",
                None => "not measured",
            };
            vec![goal.what.clone(), goal.wanted.clone(), found, met.to_owned()]
        });
        lines(header.into(), rows.collect(), 1)
    }
}

fn at_least(what: &str, wanted: f64, found: Option<f64>) -> Goal {
    Goal {
        what: what.to_owned(),
        wanted: format!(">= {wanted}"),
        found,
        met: found.map(|f| f >= wanted),
    }
}

fn bytes(payload: usize) -> String {
    match payload {
        1024.. if payload.is_multiple_of(1024) => format!("{} KiB", payload / 1024),
        _ => format!("{payload} B"),
    }
}

fn figures(rate: Option<Rate>) -> String {
    rate.map_or_else(|| "-".into(), |r| format!("{:.2} > {:.2}", r.mfps_in, r.mfps_out))
}

/// A table without lines; columns after the first `left` are right-aligned.
fn lines(header: Vec<String>, rows: Vec<Vec<String>>, left: usize) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.iter().map(|h| h.to_uppercase()))
        .add_rows(rows);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Report {
        let mut report = Report {
            machine: "a processor, 2 cores, Linux 6.1".into(),
            dpdk: "DPDK 22.11, hugepages".into(),
            core: 1,
            seconds: 1.0,
            turns: 3,
            ..Report::default()
        };
        let figures = [
            (Name::Copy, 40.0),
            (Name::Castnet, 20.0),
            (Name::Ipv4Multicast, 10.0),
            (Name::Bridge, 1.0),
            (Name::CastnetVeth, 2.5),
        ];
        for payload in [64, 1024, 4096] {
            for fanout in [1, 4, 8] {
                for (name, out) in figures {
                    // The middle one of three counts.
                    for factor in [2.0, 1.0, 0.1] {
                        let mfps_out = out * factor / (1.0 + payload as f64 / 40_960.0);
                        let rate = Rate {
                            mfps_in: mfps_out / fanout as f64,
                            mfps_out,
                            share: 0.8,
                        };
                        report.add(name, Setting { payload, fanout }, rate);
                    }
                }
            }
        }
        let two = Rate {
            mfps_in: 4.0,
            mfps_out: 39.0,
            share: 1.0,
        };
        report.add(
            Name::CastnetTwo,
            Setting {
                payload: 1024,
                fanout: 8,
            },
            two,
        );
        report.left_out.push(LeftOut {
            name: Name::Ovs,
            why: "needs ovsdb-server (package x)".into(),
        });
        report.judge();
        report
    }

    #[test]
    fn people_read_figures_ratios_goals_and_who_is_missing() {
        let page = sample().page();
        for line in [
            "Million frames in and out per second of one core, net_pcap in, net_null out (DPDK 22.11, hugepages)",
            " PAYLOAD  TO      COPY LOOP        CASTNET  IPV4_MULTICAST  / COPY LOOP  / IPV4_MULTICAST",
            "    64 B   8  4.99 > 39.94  2.50 > 19.97    1.25 > 9.98         0.50              2.00",
            "   4 KiB   1  36.36 > 36.36  18.18 > 18.18    9.09 > 9.09         0.50              2.00",
            "left out: OVS-DPDK: needs ovsdb-server (package x)",
        ] {
            let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            let found = page.lines().any(|l| squeezed(l) == squeezed(line));
            assert!(found, "no line {line} in\n{page}");
        }
        assert!(page.contains("4.00 > 39.00 together"), "{page}");
        assert!(page.contains("80 % of its time"), "{page}");
        assert!(page.contains("Flooding over veth pairs"), "{page}");
    }

    #[test]
    fn goals_are_judged_where_both_were_measured() {
        let report = sample();
        let met: Vec<_> = report.goals.iter().map(|goal| goal.met).collect();
        let expected = [Some(false), None, None, None, None, Some(true), Some(true)];
        assert_eq!(met, expected, "{:?}", report.goals);
    }

    #[test]
    fn machines_read_the_same() {
        let json = serde_json::to_value(sample()).expect("JSON");
        let cell = &json["cells"][0];
        assert_eq!((&cell["name"], &cell["payload"]), (&"copy".into(), &64.into()));
        assert_eq!(cell["turns"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["left_out"][0]["name"], "ovs");
        assert!(
            json["goals"][0]["found"]
                .as_f64()
                .is_some_and(|f| (f - 2.0).abs() < 1e-9)
        );
    }
}
