//! Figures 8, 9 and 12: completion times of one Broadcast over the size of the message.

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_console::units::bytes;
use castnet_sim::HostCost;
use castnet_wire::Nanos;

use super::Extent;
use crate::sim::figures::Failed;
use crate::sim::lab::{Broadcast, Fabric, Method, Times};
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Table};

/// Completion times of the three methods for one size, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Point {
    bytes: u64,
    cepheus: f64,
    chain: f64,
    tree: f64,
}

impl Point {
    fn by_chain(&self) -> f64 {
        self.chain / self.cepheus
    }

    fn by_tree(&self) -> f64 {
        self.tree / self.cepheus
    }
}

/// A comparison over sizes.
struct Sweep<'a> {
    fabric: &'a Fabric,
    members: u16,
    /// Slices of the chain.
    slices: u16,
    host_cost: HostCost,
    whole: u64,
}

impl Sweep<'_> {
    fn run(&self, sizes: impl Iterator<Item = u64>) -> Result<(Vec<Point>, u64), Failed> {
        let mut events = 0;
        let mut points = Vec::new();
        for bytes in sizes {
            let mut time = |method| -> Result<f64, Failed> {
                let broadcast = Broadcast {
                    host_cost: self.host_cost,
                    ..Broadcast::new(method, self.members, bytes)
                };
                let times: Times = broadcast.measure(self.fabric, self.whole)?;
                events += times.events;
                Ok(times.arrived)
            };
            points.push(Point {
                bytes,
                cepheus: time(Method::Cepheus)?,
                chain: time(Method::Chain { slices: self.slices })?,
                tree: time(Method::BinomialTree)?,
            });
        }
        Ok((points, events))
    }
}

fn table(points: &[Point]) -> Table {
    let row = |point: &Point| {
        let micros = |nanos: f64| Cell::Number(nanos / 1e3);
        vec![
            Cell::Text(bytes(point.bytes)),
            micros(point.cepheus),
            micros(point.chain),
            micros(point.tree),
            Cell::Number(point.by_chain()),
            Cell::Number(point.by_tree()),
        ]
    };
    Table {
        columns: vec![
            "message",
            "cepheus us",
            "chain us",
            "tree us",
            "chain over cepheus",
            "tree over cepheus",
        ],
        rows: points.iter().map(row).collect(),
    }
}

fn plot(title: &str, points: &[Point]) -> Plot {
    let curve = |name: &str, time: fn(&Point) -> f64| Curve {
        name: name.to_owned(),
        points: points.iter().map(|p| (p.bytes as f64, time(p) / 1e3)).collect(),
    };
    Plot {
        axes: Axes::logarithmic("bytes", "us"),
        panels: vec![Panel {
            title: title.to_owned(),
            curves: vec![
                curve("Cepheus", |p| p.cepheus),
                curve("chain", |p| p.chain),
                curve("binomial tree", |p| p.tree),
            ],
        }],
    }
}

fn range(points: &[Point], value: impl Fn(&Point) -> f64) -> (f64, f64) {
    points
        .iter()
        .map(value)
        .fold((f64::MAX, 0.0), |(low, high), v| (low.min(v), high.max(v)))
}

/// 64 B times powers of four.
fn sizes(least: u64, most: u64, step: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(least), move |size| Some(size * step)).take_while(move |size| *size <= most)
}

pub(super) fn fig12(extent: Extent) -> Result<FigureReport, Failed> {
    let fabric = Fabric::fat_tree(extent.threads)?;
    let members = if extent.quick { 64 } else { 512 };
    let sweep = Sweep {
        fabric: &fabric,
        members,
        slices: members,
        host_cost: HostCost::default(),
        whole: extent.whole,
    };
    let (points, events) = sweep.run(sizes(64, 1 << 30, if extent.quick { 256 } else { 4 }))?;
    // The shortest and the longest message.
    let at_end = |point: Option<&Point>, value: fn(&Point) -> f64| point.map_or(f64::NAN, value);
    let (first, last) = (points.first(), points.last());
    let headline = |what: &str, paper, ours| {
        Headline::single(what, paper, ours)
            .because(format!("the group has {members} members, the paper's 512"))
    };
    let title = "Multicast in a fabric of 1,024 hosts: time until the last receiver has the message";
    Ok(FigureReport {
        name: "fig12",
        title,
        setting: format!(
            "Fat tree of three tiers, 1,024 hosts, edge switches of 64 ports, 100 Gb/s, 1 us per link, path MTU 4096, no loss. The first\n\
             {members} hosts are the group. The chain sends {members} slices, the tree whole messages, those over 8 KiB one after the other.\n\
             Hosts and switches take no time. Messages over {} are continued at the rate of the second half of that one.",
            bytes(extent.whole),
        ),
        table: table(&points),
        headlines: vec![
            headline("chain over Cepheus, 64 B", 164.0, at_end(first, Point::by_chain)),
            headline("tree over Cepheus, 64 B", 4.5, at_end(first, Point::by_tree)),
            headline("chain over Cepheus, 1 GiB", 2.1, at_end(last, Point::by_chain)),
            headline("tree over Cepheus, 1 GiB", 8.9, at_end(last, Point::by_tree)),
        ],
        events,
        plot: plot(title, &points),
    })
}

/// Time of the testbed's hosts and links, which the paper does not give: together 1.4 us for a small message between two hosts,
/// as RNICs of this generation have it.
pub(super) const TESTBED_DELAY: Nanos = Nanos(300);
const TESTBED_COST: HostCost = HostCost {
    send: Nanos(400),
    receive: Nanos(400),
    copy_per_kib: Nanos::ZERO,
};

/// MPI's messages between two hosts: matching and copies cost as much again.
const MPI_COST: HostCost = HostCost {
    send: Nanos(800),
    receive: Nanos(800),
    copy_per_kib: Nanos::ZERO,
};

fn testbed(extent: Extent, least: u64, most: u64) -> Result<(Vec<Point>, Vec<Point>, u64), Failed> {
    let fabric = Fabric::testbed(TESTBED_DELAY)?;
    let step = if extent.quick { 64 } else { 4 };
    let run = |host_cost| {
        let sweep = Sweep {
            fabric: &fabric,
            members: 4,
            slices: 4,
            host_cost,
            whole: extent.whole,
        };
        sweep.run(sizes(least, most, step))
    };
    let ((points, events), (mpi, more)) = (run(TESTBED_COST)?, run(MPI_COST)?);
    let mixed = points.iter().zip(&mpi).map(|(verbs, mpi)| Point {
        cepheus: verbs.cepheus,
        ..*mpi
    });
    Ok((points.clone(), mixed.collect(), events + more))
}

const TESTBED: &str = "One source, three receivers, one switch, 100 Gb/s, path MTU 4096, no loss. Each link takes 300 ns, a host 400 ns to post a
message and 400 ns to take one. The chain sends 4 slices, the tree whole messages, those over 8 KiB one after the other.";

/// The reason where a ratio of the testbed differs: ratios with the cost of MPI in chain and tree, but not in Cepheus.
fn with_mpi((low, high): (f64, f64)) -> String {
    format!(
        "a cost that is the same in all hosts leaves the ratio of hops: 3 of the chain, 2 of the tree. With 800 ns instead of 400 ns in\n\
         the hosts of chain and tree, for MPI's matching and copies, but not in those of Cepheus: {low:.2} to {high:.2}"
    )
}

pub(super) fn fig8(extent: Extent) -> Result<FigureReport, Failed> {
    let (points, mpi, events) = testbed(extent, 64, 8 << 10)?;
    let title = "Broadcast of small messages to three receivers";
    let headline = |what: &str, paper, value: fn(&Point) -> f64| {
        Headline::range(what, paper, range(&points, value)).because(with_mpi(range(&mpi, value)))
    };
    Ok(FigureReport {
        name: "fig8",
        title,
        setting: TESTBED.to_owned(),
        headlines: vec![
            headline("chain over Cepheus", (3.0, 5.2), Point::by_chain),
            headline("tree over Cepheus", (2.5, 3.5), Point::by_tree),
        ],
        table: table(&points),
        events,
        plot: plot(title, &points),
    })
}

/// Time of Cepheus for 256 MB in the paper's testbed (V.A), in nanoseconds.
const PAPER_256_MB: f64 = 24.4e6;

pub(super) fn fig9(extent: Extent) -> Result<FigureReport, Failed> {
    let (points, mpi, events) = testbed(extent, 16 << 10, 512 << 20)?;
    let title = "Broadcast of large messages to three receivers";
    let headline = |what: &str, paper, value: fn(&Point) -> f64| {
        let ours = range(&points, value);
        let rate = points.last().map_or(f64::NAN, |p| p.bytes as f64 / p.cepheus);
        let slower = PAPER_256_MB / (256e6 / rate);
        let low = format!(
            "the paper's Cepheus takes 24.4 ms for 256 MB, ours {:.1} ms; with the paper's time the least ratio is {:.2}",
            256e6 / rate / 1e6,
            ours.0 / slower,
        );
        Headline::range(what, paper, ours).because_of_ends(&low, &with_mpi(range(&mpi, value)))
    };
    Ok(FigureReport {
        name: "fig9",
        title,
        setting: TESTBED.to_owned(),
        headlines: vec![
            headline("chain over Cepheus", (1.3, 2.8), Point::by_chain),
            headline("tree over Cepheus", (2.0, 2.8), Point::by_tree),
        ],
        table: table(&points),
        events,
        plot: plot(title, &points),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Extent = Extent {
        threads: 2,
        quick: true,
        whole: 1 << 20,
    };

    /// A group of `n` in one or several racks: the tree needs log2(n) hops or times the rate, the chain of n slices (2n - 2) / n
    /// times the time of Cepheus.
    #[test]
    fn large_messages_take_as_many_times_the_link_as_each_method_uses_it() {
        let report = fig12(QUICK).expect("it runs");
        let ours: Vec<f64> = report.headlines.iter().map(|h| h.castnet.0).collect();
        let [chain_short, tree_short, chain_long, tree_long] = ours[..] else {
            panic!("{:?}", report.headlines);
        };
        // 64 hosts in two racks: 62 hops of two links and one of four; the longest path has four links.
        assert!((chain_short / (128.0 / 4.0) - 1.0).abs() < 0.02, "{chain_short}");
        // One hop of four links and five of two.
        assert!((tree_short / (14.0 / 4.0) - 1.0).abs() < 0.05, "{tree_short}");
        assert!((chain_long / (126.0 / 64.0) - 1.0).abs() < 0.01, "{chain_long}");
        assert!((tree_long / 6.0 - 1.0).abs() < 0.01, "{tree_long}");
    }

    #[test]
    fn a_long_message_is_continued_as_it_would_be_simulated() {
        let fabric = Fabric::fat_tree(2).expect("a fabric");
        for method in [
            Method::Cepheus,
            Method::Chain { slices: 40 },
            Method::BinomialTree,
            Method::Unicasts,
        ] {
            let members = if method == Method::Unicasts { 4 } else { 40 };
            let broadcast = Broadcast::new(method, members, 8 << 20);
            let whole = broadcast.measure(&fabric, 8 << 20).expect("it runs");
            let continued = broadcast.measure(&fabric, 1 << 20).expect("it runs");
            for (whole, continued) in [
                (whole.arrived, continued.arrived),
                (whole.returned, continued.returned),
            ] {
                assert!(
                    (continued / whole - 1.0).abs() < 0.003,
                    "{method:?}: {continued} and {whole}"
                );
            }
        }
    }

    #[test]
    fn on_the_testbed_the_chain_has_three_hops_and_the_tree_two() {
        let small = fig8(QUICK).expect("it runs");
        let large = fig9(QUICK).expect("it runs");
        let chain = &small.headlines[0];
        assert!((chain.castnet.0 - 3.0).abs() < 0.05, "{chain:?}");
        // Four slices over three hops: 6 / 4.
        let chain = &large.headlines[0];
        assert!((chain.castnet.0 - 1.5).abs() < 0.02, "{chain:?}");
        for tree in [&small.headlines[1], &large.headlines[1]] {
            assert!((1.95..2.5).contains(&tree.castnet.0), "{tree:?}");
        }
        for headline in small.headlines.iter().chain(&large.headlines) {
            assert!(headline.is_met() || headline.reason.is_some(), "{headline:?}");
        }
    }
}
