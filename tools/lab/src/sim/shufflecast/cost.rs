//! The model of power and capital cost (6.1), figures 6(b) and 6(c).

use std::path::PathBuf;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, write_stdout};
use castnet_console::plot::{Axes, Curve, Panel};
use castnet_planner::shufflecast::Shufflecast;
use clap::Args;

use super::assumptions::{self, Assumptions, Rate};
use super::range;
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Reports, Table};

/// Power: overlay over Shufflecast, and IP multicast over Shufflecast (6.1, b).
const POWER: [(f64, f64); 2] = [(1.5, 1.77), (1.55, 1.85)];
/// Cost: IP multicast over Shufflecast (6.1, c).
const COST: (f64, f64) = (1.57, 1.89);
/// USD per ToR of a 4,4-Shufflecast from 10 to 100 Gb/s (6.1, c).
const PER_TOR: (f64, f64) = (487.0, 1867.0);

#[derive(Debug, Args)]
#[command(after_help = "Without a file, the assumptions are those of the paper.

Examples:
  castnet-lab sim shufflecast cost --svg cost.svg
  castnet-lab sim shufflecast cost --example > ours.toml
  castnet-lab sim shufflecast cost --assumptions ours.toml --output json")]
pub(super) struct CostCommand {
    /// Sizes, prices and power of parts
    #[arg(long, value_name = "FILE")]
    assumptions: Option<PathBuf>,
    /// Prints the file with the paper's assumptions
    #[arg(long, exclusive = true)]
    example: bool,
    /// Draws a plot of each figure, with the name of the figure before the extension
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl CostCommand {
    pub(super) fn run(self, output: Output) -> Outcome {
        if self.example {
            return write_stdout(assumptions::PAPER);
        }
        let assumptions = match self.assumptions {
            Some(file) => Assumptions::read(&file)?,
            None => Assumptions::from_toml(assumptions::PAPER).map_err(Failure::failed)?,
        };
        Reports::of(figures(&assumptions)).show(self.svg, output)
    }
}

/// What one multicast to all ToRs occupies. As many transceivers as ports.
struct Parts {
    ports: usize,
    cables: f64,
}

impl Parts {
    fn watt(&self, rate: &Rate) -> f64 {
        self.ports as f64 * rate.watt()
    }

    fn usd(&self, rate: &Rate, assumed: &Assumptions) -> f64 {
        self.ports as f64 * rate.usd() + self.cables * assumed.cable_usd
    }
}

/// A chain through all ToRs: each receives and sends (6.1, b). Its cables are those of the unicast network.
fn overlay(fabric: Shufflecast) -> Parts {
    Parts {
        ports: 2 * fabric.size(),
        cables: 0.0,
    }
}

/// A tree of switches with the fewest layers, in which all ToRs are in the lowest layer (figure 1): a link for each ToR and for
/// each switch but the root, with a port at both ends.
fn ip_multicast(tors: usize, switch_ports: usize) -> Parts {
    let (mut links, mut layer) = (tors, tors);
    while layer > switch_ports {
        // A port of each switch leads up.
        layer = layer.div_ceil(switch_ports - 1);
        links += layer;
    }
    Parts {
        ports: 2 * links,
        cables: links as f64,
    }
}

/// Each ToR receives at a port, each relay sends by another. Each output of a splitter is a one-way fiber.
fn shufflecast(fabric: Shufflecast, assumed: &Assumptions) -> Parts {
    Parts {
        ports: fabric.size() + relays(fabric),
        cables: fabric.size() as f64 / assumed.tree_fibers,
    }
}

/// Of a multicast, the source among them: a partition of each column (lemma 3.2). Each has a splitter.
fn relays(fabric: Shufflecast) -> usize {
    fabric.size() / fabric.p()
}

fn figures(assumed: &Assumptions) -> Vec<FigureReport> {
    vec![power(assumed), cost(assumed)]
}

fn power(assumed: &Assumptions) -> FigureReport {
    let (mut rows, mut ratios) = (Vec::new(), Vec::new());
    for fabric in &assumed.fabrics {
        let ours = shufflecast(*fabric, assumed);
        let others = [
            overlay(*fabric),
            ip_multicast(fabric.size(), assumed.switch_ports),
        ];
        let ratio = others
            .each_ref()
            .map(|parts| parts.ports as f64 / ours.ports as f64);
        for rate in &assumed.rates {
            let mut row = vec![
                Cell::Text(fabric.to_string()),
                Cell::Count(fabric.size()),
                Cell::Text(rate.name.clone()),
            ];
            row.extend(others.iter().chain([&ours]).map(|parts| Cell::Count(parts.ports)));
            row.extend(
                others
                    .iter()
                    .chain([&ours])
                    .map(|parts| Cell::Number(parts.watt(rate))),
            );
            row.extend(ratio.map(Cell::Number));
            rows.push(row);
        }
        ratios.push((fabric.size(), ratio));
    }
    let names = [
        "peer-to-peer overlay over Shufflecast",
        "IP multicast over Shufflecast",
    ];
    let headline = |i: usize| {
        Headline::range(
            names[i],
            POWER[i],
            range(ratios.iter().map(|(_, ratio)| ratio[i])),
        )
    };
    let curve = |i: usize| curve(names[i], ratios.iter().map(|(tors, ratio)| (*tors, ratio[i])));
    FigureReport {
        name: "fig6b",
        title: "Power of one multicast to all ToRs",
        setting: format!(
            "Active ports, each with a transceiver. Overlay: a chain, two ports of each ToR. IP multicast: a tree of {}-port switches below which all\n\
             ToRs are. Shufflecast: a port of each ToR, and one more of each relay. The ratio is the same at each data rate.",
            assumed.switch_ports
        ),
        table: Table {
            columns: vec![
                "fabric",
                "tors",
                "rate",
                "overlay ports",
                "ip ports",
                "ports",
                "overlay w",
                "ip w",
                "w",
                "overlay ratio",
                "ip ratio",
            ],
            rows,
        },
        headlines: vec![headline(0), headline(1)],
        events: 0,
        plot: plot("Figure 6(b)", vec![curve(0), curve(1)]),
    }
}

fn cost(assumed: &Assumptions) -> FigureReport {
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    let [mut without, mut with, mut per_tor] = [const { Vec::new() }; 3];
    for rate in &assumed.rates {
        let mut points = Vec::new();
        for fabric in &assumed.fabrics {
            let splitter = assumed.splitter_usd(*fabric);
            let ip = ip_multicast(fabric.size(), assumed.switch_ports).usd(rate, assumed);
            let ours = shufflecast(*fabric, assumed).usd(rate, assumed);
            let splitters = relays(*fabric) as f64 * splitter;
            without.push(ip / ours);
            with.push(ip / (ours + splitters));
            // All that a ToR has (6.1): p ports, each with transceiver and cable, and a splitter.
            let tor = fabric.p() as f64 * (rate.usd() + assumed.cable_usd) + splitter;
            if (fabric.p(), fabric.k()) == (4, 4) {
                per_tor.push(tor);
            }
            points.push((fabric.size(), ip / ours));
            let mut row = vec![
                Cell::Text(fabric.to_string()),
                Cell::Count(fabric.size()),
                Cell::Text(rate.name.clone()),
            ];
            row.extend([ip, ours, splitters, ip / ours, ip / (ours + splitters), tor].map(Cell::Number));
            rows.push(row);
        }
        curves.push(curve(&rate.name, points.into_iter()));
    }
    let ratio = |what: &str, ratios: Vec<f64>| Headline::range(what, COST, range(ratios.into_iter()));
    let mut headlines = vec![
        ratio("IP multicast over Shufflecast without splitters", without),
        ratio("IP multicast over Shufflecast with splitters", with),
    ];
    if !per_tor.is_empty() {
        headlines.push(Headline::range(
            "4,4: USD per ToR",
            PER_TOR,
            range(per_tor.into_iter()),
        ));
    }
    FigureReport {
        name: "fig6c",
        title: "Capital cost of one multicast to all ToRs",
        setting: format!(
            "Ports and transceivers as in fig6b, and cables: one for each link of the tree of switches; {} one-way fibers behind splitters share one.\n\
             A splitter for each relay, shown apart. USD per ToR is the price of all that a ToR has: p ports, transceivers and cables, and a splitter.",
            assumed.tree_fibers
        ),
        table: Table {
            columns: vec![
                "fabric",
                "tors",
                "rate",
                "ip usd",
                "usd",
                "splitters usd",
                "ip ratio",
                "with splitters",
                "usd per tor",
            ],
            rows,
        },
        headlines,
        events: 0,
        plot: plot("Figure 6(c)", curves),
    }
}

/// In the order of sizes.
fn curve(name: &str, points: impl Iterator<Item = (usize, f64)>) -> Curve {
    let mut points: Vec<_> = points.map(|(tors, ratio)| (tors as f64, ratio)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let name = name.to_owned();
    Curve { name, points }
}

fn plot(title: &str, curves: Vec<Curve>) -> Plot {
    let title = title.to_owned();
    Plot {
        axes: Axes::logarithmic("ToRs", "times Shufflecast's"),
        panels: vec![Panel { title, curves }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paper() -> Assumptions {
        Assumptions::from_toml(assumptions::PAPER).expect("no faults")
    }

    /// Section 2.2 and figure 1: 175 % and 107 % more ports than the ToRs' own; 6.1: 16, 22 and 12 ports.
    #[test]
    fn ports_are_those_of_the_papers_examples() {
        assert_eq!(ip_multicast(8, 4).ports, 8 + 14);
        assert_eq!(ip_multicast(192, 32).ports - 192, 206);
        assert_eq!(ip_multicast(32, 32).ports, 64);
        let fabric = Shufflecast::new(2, 2).expect("a Shufflecast");
        assert_eq!(
            (overlay(fabric).ports, shufflecast(fabric, &paper()).ports),
            (16, 12)
        );
    }

    /// To the paper's digits; it cuts 1.777 to 1.77.
    #[test]
    fn ratios_are_the_papers() {
        let figures = figures(&paper());
        let [power, cost] = [0, 1].map(|i: usize| &figures[i].headlines);
        for (headline, digits) in [(&power[0], 0.008), (&power[1], 0.005), (&cost[0], 0.005)] {
            let near = |ours: f64, paper: f64| (ours - paper).abs() < digits;
            assert!(near(headline.castnet.0, headline.paper.0), "{headline:?}");
            assert!(near(headline.castnet.1, headline.paper.1), "{headline:?}");
        }
        assert!(cost.iter().all(Headline::is_met), "{cost:?}");
    }

    #[test]
    fn faults_of_a_file_have_line_and_key() {
        let faults = |from: &str, to: &str| {
            assert!(assumptions::PAPER.contains(from), "{from}");
            let text = assumptions::PAPER.replace(from, to);
            Assumptions::from_toml(&text)
                .map(|_| ())
                .expect_err(to)
                .to_string()
        };
        assert_eq!(
            faults("switch_ports = 32", "switch_ports = 2"),
            "9:16: switch_ports: 2 is not in 3 to 1024"
        );
        assert!(faults("port_usd = 55.5", "port_usd = 0").contains("rates[0].port_usd: 0 is not above 0"));
        let port = faults("port_watt = 2.64", "port_watt = -1");
        assert_eq!(port, "14:13: rates[0].port_watt: -1 is no number of 0 to 1e9");
        assert!(
            faults("usd = 37.37", "used = 37.37")
                .contains("cable.used: unknown field, did you mean \"usd\"?")
        );
        assert!(faults("\"5,2\"", "\"5\"").contains("fabrics[0]: \"5\" is not P,K, such as 4,3"));
        assert!(faults("\"5,2\"", "\"9,2\"").contains("fabrics[0]: no splitter has 9 outputs or more"));
        assert!(
            faults("budget_db = 18", "budget_db = 10")
                .contains("rates[1].budget_db: 10 dB do not compensate the 10.6 dB")
        );
        assert!(faults("tree_fibers = 2", "tree_fibers = 3").contains("cable.tree_fibers: 3 is not 1 or 2"));
        assert!(
            faults("loss_db = 4", "loss_db = nan")
                .contains("splitters[0].loss_db: nan is no number of 0 to 1e9")
        );
        let empty = Assumptions::from_toml("fabrics = []\nrates = 3")
            .map(|_| ())
            .expect_err("faults")
            .to_string();
        assert!(
            empty.contains("1:11: fabrics: is empty: give at least one"),
            "{empty}"
        );
        assert!(
            empty.contains("2:9: rates: a whole number where a list belongs"),
            "{empty}"
        );
        assert!(empty.contains("cable: missing: a table: [cable]"), "{empty}");
    }
}
