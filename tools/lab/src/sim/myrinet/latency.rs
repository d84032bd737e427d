//! Figures 4 to 6: latency of multisend, multicast and broadcast over the size of the message.

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_console::units::bytes;
use castnet_group::TreeShape;

use super::Extent;
use super::casts::{Cast, Level, Scheme, by_packets, optimal};
use super::machines::Costs;
use crate::sim::figures::Failed;
use crate::sim::parallel::{self, processors};
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Relation, Table};

/// Latency of both schemes, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) nodes: u16,
    pub(super) bytes: u64,
    /// In the tree that counts in packets.
    pub(super) nic: f64,
    /// In the paper's tree, which counts in messages.
    pub(super) whole: f64,
    pub(super) host: f64,
    events: u64,
}

impl Point {
    pub(super) fn factor(&self) -> f64 {
        self.host / self.nic
    }

    fn factor_whole(&self) -> f64 {
        self.host / self.whole
    }
}

/// Each number of nodes with each size.
fn each(
    nodes: &[u16],
    sizes: &[u64],
    measure: impl Fn(u16, u64) -> Result<Point, Failed> + Sync,
) -> Result<Vec<Point>, Failed> {
    let of = |nodes: &u16| sizes.iter().map(|size| (*nodes, *size)).collect::<Vec<_>>();
    let runs: Vec<_> = nodes.iter().flat_map(of).collect();
    parallel::map(&runs, processors(), false, |(nodes, size)| measure(*nodes, *size))
}

/// A multisend beside unicasts. The source waits for the acknowledgement of the last destination.
fn multisend(costs: &Costs, nodes: u16, bytes: u64) -> Result<Point, Failed> {
    let time = |scheme| {
        let level = Level::Gm;
        let cast = Cast {
            scheme,
            level,
            nodes,
            bytes,
        };
        cast.acknowledged(costs)
    };
    let (nic, events) = time(Scheme::Nic(TreeShape::Star))?;
    let (host, more) = time(Scheme::Unicasts)?;
    Ok(Point {
        nodes,
        bytes,
        nic,
        whole: nic,
        host,
        events: events + more,
    })
}

/// Time until the message with which the last host answers.
fn answered(costs: &Costs, cast: Cast) -> Result<(f64, u64), Failed> {
    let answer = Cast {
        scheme: Scheme::Unicasts,
        nodes: 2,
        bytes: 1,
        ..cast
    };
    let ((there, events), (back, more)) = (cast.arrived(costs)?, answer.arrived(costs)?);
    Ok((there + back, events + more))
}

/// A multicast beside a tree of hosts.
pub(super) fn multicast(costs: &Costs, level: Level, nodes: u16, bytes: u64) -> Result<Point, Failed> {
    let mut events = 0;
    let mut time = |scheme| -> Result<f64, Failed> {
        let cast = Cast {
            scheme,
            level,
            nodes,
            bytes,
        };
        let (time, more) = answered(costs, cast)?;
        events += more;
        Ok(time)
    };
    Ok(Point {
        nodes,
        bytes,
        nic: time(Scheme::Nic(by_packets(costs, bytes)?))?,
        whole: time(Scheme::Nic(optimal(costs, bytes)?))?,
        host: time(Scheme::Tree)?,
        events,
    })
}

/// The greatest factor on so many nodes of messages of a length.
fn most(points: &[Point], nodes: u16, is_meant: impl Fn(u64) -> bool, value: fn(&Point) -> f64) -> f64 {
    let meant = points.iter().filter(|p| p.nodes == nodes && is_meant(p.bytes));
    meant.map(value).fold(0.0, f64::max)
}

fn plot(points: &[Point], name: impl Fn(u16) -> String) -> Plot {
    let groups = || points.chunk_by(|a, b| a.nodes == b.nodes);
    let curve = |name: String, group: &[Point], value: fn(&Point) -> f64| Curve {
        name,
        points: group.iter().map(|p| (p.bytes as f64, value(p))).collect(),
    };
    let mut times = Vec::new();
    for group in groups() {
        let name = name(group[0].nodes);
        times.push(curve(format!("{name}, NICs"), group, |p| p.nic / 1e3));
        times.push(curve(format!("{name}, hosts"), group, |p| p.host / 1e3));
    }
    let factors = groups().map(|group| curve(name(group[0].nodes), group, Point::factor));
    Plot {
        axes: Axes::logarithmic("bytes", "us, or times"),
        panels: vec![
            Panel {
                title: "latency".to_owned(),
                curves: times,
            },
            Panel {
                title: "factor".to_owned(),
                curves: factors.collect(),
            },
        ],
    }
}

/// Powers of two of bytes up to 16 KiB.
fn sizes(extent: &Extent) -> Vec<u64> {
    let all: Vec<u64> = (0..=14).map(|power| 1 << power).collect();
    extent.of(&all, [0, 7, 9, 12, 13, 14])
}

/// The longest message of figures 4 and 5.
const LARGE: u64 = 16 << 10;

pub(super) fn fig4(extent: Extent) -> Result<FigureReport, Failed> {
    let nodes = extent.of(&[4, 5, 9], [1, 2]);
    let points = each(&nodes, &sizes(&extent), |nodes, size| {
        multisend(&extent.costs, nodes, size)
    })?;
    let row = |point: &Point| {
        vec![
            Cell::Count(usize::from(point.nodes) - 1),
            Cell::Text(bytes(point.bytes)),
            Cell::Number(point.nic / 1e3),
            Cell::Number(point.host / 1e3),
            Cell::Number(point.factor()),
        ]
    };
    let large = |nodes| most(&points, nodes, |size| size == LARGE, Point::factor);
    let small = |nodes| most(&points, nodes, |size| size <= 128, Point::factor);
    let first = |nodes| points.iter().find(|point| point.nodes == nodes);
    // Time of one more destination, for the shortest message.
    let more = |value: fn(&Point) -> f64| {
        let [few, many] = [5, 9].map(|nodes| first(nodes).map_or(f64::NAN, value));
        (many - few) / 4.0
    };
    let (nic, host) = (more(|p| p.nic), more(|p| p.host));
    Ok(FigureReport {
        name: "fig4",
        title: "Multisend by the NIC beside unicasts: time until the last acknowledgement",
        setting: format!(
            "One source; the destinations do not pass data on. The cost of a request to send is set by the first number.\n{}",
            extent.costs.text(extent.costs.gm)
        ),
        table: Table {
            columns: vec!["destinations", "message", "nic us", "hosts us", "factor"],
            rows: points.iter().map(row).collect(),
        },
        headlines: vec![
            Headline::single("greatest, up to 128 bytes, 4 destinations", 2.05, small(5)),
            Headline::single("the same, 8 destinations", 2.05, small(9)).because(format!(
                "one more destination takes {:.1} us by a unicast and {:.1} us by the NIC, whatever their number. So the factor grows towards {:.1}.\n\
                 The paper has 2.05 as the greatest of all, and gives no number for 8",
                host / 1e3,
                nic / 1e3,
                host / nic,
            )),
            Headline::bound("16 KiB, 4 destinations", Relation::AtMost, 1.0, large(5)),
            Headline::bound("16 KiB, 8 destinations", Relation::AtMost, 1.0, large(9)),
        ],
        events: points.iter().map(|point| point.events).sum(),
        plot: plot(&points, |nodes| format!("to {}", nodes - 1)),
    })
}

/// The numbers of nodes of the paper.
const NODES: [u16; 3] = [4, 8, 16];
const MOST: u16 = 16;

fn table(points: &[Point]) -> Table {
    let row = |point: &Point| {
        vec![
            Cell::Count(point.nodes.into()),
            Cell::Text(bytes(point.bytes)),
            Cell::Number(point.nic / 1e3),
            Cell::Number(point.whole / 1e3),
            Cell::Number(point.host / 1e3),
            Cell::Number(point.factor()),
            Cell::Number(point.factor_whole()),
        ]
    };
    Table {
        columns: vec![
            "nodes",
            "message",
            "nic us",
            "whole us",
            "hosts us",
            "factor",
            "factor whole",
        ],
        rows: points.iter().map(row).collect(),
    }
}

/// What the tables of both levels show.
const TREES: &str = "NIC: postal tree of relays, which counts in packets. Whole: the same tree, which counts in messages, as the paper's. Hosts: binomial\n\
     tree. Time until the answer of the last host.";

pub(super) fn fig5(extent: Extent) -> Result<FigureReport, Failed> {
    let points = each(&NODES, &sizes(&extent), |nodes, size| {
        multicast(&extent.costs, Level::Gm, nodes, size)
    })?;
    let is_small = |size| size <= 512;
    let large = |value| most(&points, MOST, |size| size == LARGE, value);
    let factor = |scheme, point: &Point| -> Result<f64, Failed> {
        let cast = Cast {
            scheme,
            level: Level::Gm,
            nodes: MOST,
            bytes: point.bytes,
        };
        Ok(point.host / answered(&extent.costs, cast)?.0)
    };
    let of_16 = || points.iter().filter(|point| point.nodes == MOST);
    let stars: Result<Vec<f64>, _> = of_16()
        .filter(|point| is_small(point.bytes))
        .map(|point| factor(Scheme::Nic(TreeShape::Star), point))
        .collect();
    let star = stars?.into_iter().fold(0.0, f64::max);
    let last = of_16().next_back().ok_or("no point")?;
    // Hosts in turn over NICs.
    let in_turn = large(Point::factor) / factor(Scheme::TreeInTurn, last)?;
    Ok(FigureReport {
        name: "fig5",
        title: "Multicast by NICs beside a tree of hosts, at the GM level",
        setting: format!("{TREES}\n{}", extent.costs.text(extent.costs.gm)),
        headlines: vec![
            Headline::single(
                "greatest, up to 512 bytes, 16 nodes",
                1.48,
                most(&points, MOST, is_small, Point::factor),
            )
            .because(format!(
                "the tree changes its shape with the size of the message, and with it the factor: for 1 byte it is {:.2}. If the NIC of the source sends\n\
                 to all 15, it is {star:.2}: that is the tree for a latency of 14 copies and more. The paper does not give its latency",
                of_16().next().map_or(f64::NAN, Point::factor),
            )),
            Headline::single("16 KiB, 16 nodes", 1.86, large(Point::factor)),
            Headline::single("16 KiB, 16 nodes, whole", 1.86, large(Point::factor_whole)).because(
                "counted in messages, a hop takes little longer than one more copy, so the tree is nearly binomial, and the NIC of the source makes\n\
                 many copies of each packet. The tree that counts in packets has at most one more child at a source than at a relay",
            ),
            Headline::single("16 KiB, 16 nodes, hosts in turn", 1.86, in_turn).because(
                "hosts send packets to all their children in turn, as GM, which has a queue for each destination. If they send one message after the\n\
                 other, the first child can begin sooner",
            ),
        ],
        table: table(&points),
        events: points.iter().map(|point| point.events).sum(),
        plot: plot(&points, |nodes| format!("{nodes} nodes")),
    })
}

/// The longest message that MPICH-GM sends eagerly.
const EAGER_MAX: u64 = 16_287;

pub(super) fn fig6(extent: Extent) -> Result<FigureReport, Failed> {
    let mut sizes = sizes(&extent);
    sizes.pop();
    sizes.push(EAGER_MAX);
    let points = each(&NODES, &sizes, |nodes, size| {
        multicast(&extent.costs, Level::Mpi, nodes, size)
    })?;
    let factor = |size, value| most(&points, MOST, |other| other == size, value);
    let of_16 = points.iter().filter(|point| point.nodes == MOST);
    let least = of_16.map(Point::factor).fold(f64::MAX, f64::min);
    let dip = |value| factor(EAGER_MAX, value) / factor(8 << 10, value);
    Ok(FigureReport {
        name: "fig6",
        title: "Broadcast by NICs beside a tree of hosts, at the MPI level",
        setting: format!("{TREES}\n{}", extent.costs.text(extent.costs.mpi)),
        headlines: vec![
            Headline::single(
                "greatest, up to 512 bytes, 16 nodes",
                1.78,
                most(&points, MOST, |size| size <= 512, Point::factor),
            ),
            Headline::single("8 KiB, 16 nodes", 2.02, factor(8 << 10, Point::factor)),
            Headline::bound("least, 16 nodes", Relation::AtLeast, 1.3, least),
            Headline::bound(
                "16,287 bytes over 8 KiB, whole",
                Relation::AtMost,
                1.0,
                dip(Point::factor_whole),
            ),
            Headline::bound(
                "16,287 bytes over 8 KiB",
                Relation::AtMost,
                1.0,
                dip(Point::factor),
            ).because(
                "of four packets the tree that counts in packets passes on more while others come than of two. The tree that counts in messages has\n\
                 the dip",
            ),
        ],
        table: table(&points),
        events: points.iter().map(|point| point.events).sum(),
        plot: plot(&points, |nodes| format!("{nodes} nodes")),
    })
}
