//! Figures 7 and 8: time of hosts in a broadcast whose processes are late.

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_console::units::bytes;
use castnet_wire::Nanos;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Extent;
use super::casts::{Cast, Level, Scheme, by_packets};
use crate::sim::figures::Failed;
use crate::sim::parallel::{self, processors};
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Relation, Table};

/// Average skews, in microseconds.
const SKEWS: [u32; 12] = [0, 20, 40, 60, 80, 100, 150, 200, 250, 300, 350, 400];
/// Indices of those of a quick run: the first and the last.
const ENDS: [usize; 2] = [0, 11];
/// The skew of the paper's numbers.
const LAST: u32 = 400;

/// The average time of a host in the call, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) nodes: u16,
    pub(super) bytes: u64,
    /// Average skew in microseconds.
    pub(super) skew: u32,
    pub(super) nic: f64,
    pub(super) host: f64,
    events: u64,
}

impl Point {
    pub(super) fn factor(&self) -> f64 {
        self.host / self.nic
    }
}

/// The time that each process computes before its call. As in the paper (7.3), each but the root draws from half of `max` before to
/// half of `max` after the others; who draws less than 0 does not compute. `max` is three times the average skew.
pub(super) fn delays(skew: u32, nodes: u16, calls: u32, seed: u64) -> Vec<Vec<Nanos>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let half = i64::from(skew) * 1500;
    let mut draw = |node| match node {
        0 => Nanos::ZERO,
        _ => Nanos(rng.random_range(-half..=half).max(0) as u64),
    };
    (0..calls).map(|_| (0..nodes).map(&mut draw).collect()).collect()
}

/// The time of both schemes. They and all sizes have the same skews.
fn measure(extent: &Extent, (nodes, size, skew): (u16, u64, u32)) -> Result<Point, Failed> {
    let delays = delays(skew, nodes, extent.calls, extent.seed);
    measure_with(extent, &delays, (nodes, size, skew))
}

fn measure_with(
    extent: &Extent,
    delays: &[Vec<Nanos>],
    (nodes, size, skew): (u16, u64, u32),
) -> Result<Point, Failed> {
    let mut events = 0;
    let mut mean = |scheme| -> Result<f64, Failed> {
        let cast = Cast {
            scheme,
            level: Level::Mpi,
            nodes,
            bytes: size,
        };
        let (calls, more) = cast.calls(&extent.costs, delays)?;
        events += more;
        let sum: f64 = calls.iter().flatten().map(|call| call.in_call).sum();
        Ok(sum / (calls.len() * usize::from(nodes)) as f64)
    };
    Ok(Point {
        nodes,
        bytes: size,
        skew,
        nic: mean(Scheme::Nic(by_packets(&extent.costs, size)?))?,
        host: mean(Scheme::Tree)?,
        events,
    })
}

pub(super) fn points(extent: &Extent, nodes: &[u16], sizes: &[u64]) -> Result<Vec<Point>, Failed> {
    let skews = extent.of(&SKEWS, ENDS);
    let mut runs = Vec::new();
    for nodes in nodes {
        for size in sizes {
            runs.extend(skews.iter().map(|skew| (*nodes, *size, *skew)));
        }
    }
    parallel::map(&runs, processors(), true, |run| measure(extent, *run))
}

fn setting(extent: &Extent) -> String {
    format!(
        "NIC: postal tree of relays. Hosts: binomial tree. All processes begin at once; each but the root computes first, for -max/2 to max/2, if\n\
         that is above 0. The average skew is max/3. Time from a process' call until it has the data and has posted what it passes on; mean of all processes and of\n\
         {} calls, seed {}.\n{}",
        extent.calls,
        extent.seed,
        extent.costs.text(extent.costs.mpi),
    )
}

fn table(points: &[Point]) -> Table {
    let row = |point: &Point| {
        vec![
            Cell::Count(point.nodes.into()),
            Cell::Text(bytes(point.bytes)),
            Cell::Count(point.skew as usize),
            Cell::Number(point.nic / 1e3),
            Cell::Number(point.host / 1e3),
            Cell::Number(point.factor()),
        ]
    };
    Table {
        columns: vec!["nodes", "message", "skew us", "nic us", "hosts us", "factor"],
        rows: points.iter().map(row).collect(),
    }
}

/// A curve over the skew.
fn curve(name: String, points: &[Point], value: impl Fn(&Point) -> f64) -> Curve {
    let at = |point: &Point| (point.skew.into(), value(point));
    Curve {
        name,
        points: points.iter().map(at).collect(),
    }
}

/// Runs of points that differ in the skew alone.
fn groups(points: &[Point]) -> impl Iterator<Item = &[Point]> {
    points.chunk_by(|a, b| (a.nodes, a.bytes) == (b.nodes, b.bytes))
}

/// The factor of a broadcast with the last skew.
fn last(points: &[Point], nodes: u16, size: u64) -> f64 {
    let found = points
        .iter()
        .find(|p| (p.nodes, p.bytes, p.skew) == (nodes, size, LAST));
    found.map_or(f64::NAN, Point::factor)
}

fn report(
    (name, title): (&'static str, &'static str),
    extent: &Extent,
    points: &[Point],
    headlines: Vec<Headline>,
    panels: Vec<Panel>,
) -> FigureReport {
    FigureReport {
        name,
        title,
        setting: setting(extent),
        table: table(points),
        headlines,
        events: points.iter().map(|point| point.events).sum(),
        plot: Plot {
            axes: Axes::linear("average skew, us", "us, or times"),
            panels,
        },
    }
}

const NODES: u16 = 16;

/// The factor with the last skew, if the root begins later than the others by the time of a message between two hosts.
fn late_root(extent: &Extent, size: u64) -> Result<f64, Failed> {
    let hop = Cast {
        scheme: Scheme::Unicasts,
        level: Level::Mpi,
        nodes: 2,
        bytes: 1,
    };
    let (hop, _) = hop.arrived(&extent.costs)?;
    let mut delays = delays(LAST, NODES, extent.calls, extent.seed);
    for root in delays.iter_mut().filter_map(|delays| delays.first_mut()) {
        *root = Nanos(hop as u64);
    }
    Ok(measure_with(extent, &delays, (NODES, size, LAST))?.factor())
}

pub(super) fn fig7(extent: Extent) -> Result<FigureReport, Failed> {
    let sizes = extent.of(&[2, 4, 8, 2 << 10, 4 << 10, 8 << 10], [1, 3, 4, 5]);
    let points = points(&extent, &[NODES], &sizes)?;
    let is_small = |size: &u64| *size <= 8;
    let mut headlines = Vec::new();
    for (size, paper) in [(4, 5.82), (2 << 10, 2.9), (4 << 10, 2.22), (8 << 10, 2.01)] {
        let what = format!("{}, {LAST} us", bytes(size));
        let headline = Headline::single(&what, paper, last(&points, NODES, size)).because(format!(
            "here all leave the barrier before the broadcast at once. If the root leaves it later by the time of a message between two hosts, it is\n\
             {:.2}: then the processes that are not late wait longer, with NICs as with hosts",
            late_root(&extent, size)?,
        ));
        headlines.push(headline);
    }
    let panel = |title: &str, is_drawn: &dyn Fn(&u64) -> bool, times: bool| {
        let mut curves = Vec::new();
        for group in groups(&points).filter(|group| is_drawn(&group[0].bytes)) {
            let size = bytes(group[0].bytes);
            if times {
                curves.push(curve(format!("{size}, NICs"), group, |p| p.nic / 1e3));
                curves.push(curve(format!("{size}, hosts"), group, |p| p.host / 1e3));
            } else {
                curves.push(curve(size, group, Point::factor));
            }
        }
        let title = title.to_owned();
        Panel { title, curves }
    };
    let is_large = |size: &u64| !is_small(size);
    let panels = vec![
        panel("small messages", &is_small, true),
        panel("small messages, factor", &is_small, false),
        panel("large messages", &is_large, true),
        panel("large messages, factor", &is_large, false),
    ];
    let title = "Time of hosts in a broadcast over the skew of processes, 16 nodes";
    Ok(report(("fig7", title), &extent, &points, headlines, panels))
}

pub(super) fn fig8(extent: Extent) -> Result<FigureReport, Failed> {
    let sizes = [4, 4 << 10];
    let points = points(&extent, &[4, 8, 16], &sizes)?;
    let mut headlines = Vec::new();
    let mut panels = Vec::new();
    for size in sizes {
        for (few, more) in [(4, 8), (8, 16)] {
            let what = format!(
                "factor of {more} nodes over that of {few}, {}, {LAST} us",
                bytes(size)
            );
            let ours = last(&points, more, size) / last(&points, few, size);
            headlines.push(Headline::bound(&what, Relation::AtLeast, 1.0, ours));
        }
        let of_size = groups(&points).filter(|group| group[0].bytes == size);
        let curves = of_size.map(|group| curve(format!("{} nodes", group[0].nodes), group, Point::factor));
        panels.push(Panel {
            title: format!("{}, factor", bytes(size)),
            curves: curves.collect(),
        });
    }
    let title = "Factor in the time of hosts over the skew of processes, by the number of nodes";
    Ok(report(("fig8", title), &extent, &points, headlines, panels))
}
