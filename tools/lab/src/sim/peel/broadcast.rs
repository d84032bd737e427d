//! Figure 1: how often a Broadcast uses the links between leaf and spine switches.

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_topology::Topology;

use super::Extent;
use super::group::{is_inner, planned};
use crate::sim::figures::Failed;
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Table};

/// Hosts at each leaf.
const HOSTS: [u32; 2] = [1, 2];
/// As in section 4.
const SPINES: usize = 16;
/// Leaves of the headlines.
const LEAVES: u32 = 8;

/// Uses of links between leaf and spine by a Broadcast to all hosts.
#[derive(Clone, Copy, Debug)]
struct Point {
    leaves: u32,
    /// At each leaf.
    hosts: u32,
    ring: u32,
    binary_tree: u32,
    multicast: u32,
}

impl Point {
    fn new(leaves: u32, hosts: u32) -> Result<Self, Failed> {
        let t = Topology::leaf_spine(leaves as usize, SPINES, hosts as usize)?;
        let members: Vec<u32> = (0..leaves * hosts).collect();
        let links = planned(&t, &members)?.links();
        let inner = links
            .iter()
            .filter_map(|link| t.link(*link))
            .filter(|link| is_inner(link));
        // Each host but the first receives from another one: a link up and one down, unless both are at one leaf.
        let unicasts = |from: fn(u32) -> u32| {
            let crossing = |to: &u32| from(*to) / hosts != to / hosts;
            (1..leaves * hosts).filter(crossing).count() as u32 * 2
        };
        Ok(Self {
            leaves,
            hosts,
            ring: unicasts(|to| to - 1),
            binary_tree: unicasts(|to| (to - 1) / 2),
            multicast: inner.count() as u32,
        })
    }

    fn by_ring(&self) -> f64 {
        f64::from(self.ring) / f64::from(self.multicast)
    }

    fn by_tree(&self) -> f64 {
        f64::from(self.binary_tree) / f64::from(self.multicast)
    }
}

pub(super) fn fig1(extent: Extent) -> Result<FigureReport, Failed> {
    let leaves: &[u32] = match extent.quick {
        true => &[2, 8, 16],
        false => &[2, 4, 6, 7, 8, 10, 12, 16, 32, 48],
    };
    let mut points = Vec::new();
    for hosts in HOSTS {
        for leaves in leaves {
            points.push(Point::new(*leaves, hosts)?);
        }
    }
    let at = Point::new(LEAVES, 1)?;
    let paper = (1.7, 1.8);
    let both = |value: f64| (value, value);
    Ok(FigureReport {
        name: "fig1",
        title: "Uses of core links by a Broadcast",
        setting: format!(
            "Leaf-spine, {SPINES} spines, no failures; all hosts are members, in order. Core links are those between leaf and spine, each\n\
             counted as often as it carries the message. Ring: each host sends to the next. Binary tree: host i receives from host\n\
             (i - 1) / 2. Multicast: the planner's tree."
        ),
        table: table(&points),
        headlines: vec![
            Headline::range(
                "ring over multicast, 8 leaves with a host each",
                paper,
                both(at.by_ring()),
            ),
            Headline::range(
                "binary tree over multicast, 8 leaves with a host each",
                paper,
                both(at.by_tree()),
            ),
        ],
        events: 0,
        plot: plot(&points),
    })
}

fn table(points: &[Point]) -> Table {
    let row = |point: &Point| {
        let count = |number: u32| Cell::Count(number as usize);
        vec![
            count(point.leaves),
            count(point.hosts),
            count(point.ring),
            count(point.binary_tree),
            count(point.multicast),
            Cell::Number(point.by_ring()),
            Cell::Number(point.by_tree()),
        ]
    };
    Table {
        columns: vec![
            "leaves",
            "hosts per leaf",
            "ring",
            "binary tree",
            "multicast",
            "ring over multicast",
            "tree over multicast",
        ],
        rows: points.iter().map(row).collect(),
    }
}

fn plot(points: &[Point]) -> Plot {
    let panel = |hosts: u32| {
        let curve = |name: &str, value: fn(&Point) -> f64| Curve {
            name: name.to_owned(),
            points: points
                .iter()
                .filter(|point| point.hosts == hosts)
                .map(|point| (f64::from(point.leaves), value(point)))
                .collect(),
        };
        Panel {
            title: format!("hosts per leaf: {hosts}"),
            curves: vec![
                curve("ring", |point| f64::from(point.ring)),
                curve("binary tree", |point| f64::from(point.binary_tree)),
                curve("multicast", |point| f64::from(point.multicast)),
            ],
        }
    };
    Plot {
        axes: Axes::linear("leaves", "uses of core links"),
        panels: HOSTS.map(panel).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multicast_uses_one_core_link_for_each_leaf() {
        for (leaves, hosts) in [(2, 1), (8, 1), (5, 3)] {
            let point = Point::new(leaves, hosts).expect("a point");
            assert_eq!(point.multicast, leaves);
            assert_eq!(point.ring, 2 * (leaves - 1), "one crossing to each further leaf");
            assert!(point.binary_tree >= point.ring, "{point:?}");
        }
    }
}
