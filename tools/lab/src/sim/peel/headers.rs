//! Figure 3: the header of a Bloom filter that names all links of a tree, beside that of a prefix.

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_planner::prefix::Space;

use crate::sim::figures::Failed;
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Relation, Table};

/// Bytes of a packet that the header is compared with.
const MTU: f64 = 1500.0;
/// False positive rates.
const RATES: [f64; 3] = [0.01, 0.05, 0.2];
/// The rate that the paper calls aggressive.
const GENEROUS: f64 = 0.2;
/// Ports of a switch: rows of the table.
const PORTS: [u32; 9] = [8, 16, 24, 32, 40, 48, 64, 96, 128];
/// The largest fabric of the paper.
const PORTS_MAX: u32 = 128;

/// The tree of a group of consecutive hosts in a fat tree without failures, beginning at the first one, which is the source.
#[derive(Clone, Copy, Debug)]
struct FatTree {
    /// Ports of a switch.
    k: u32,
    hosts: u32,
}

impl FatTree {
    /// The group is one of so many equal parts of all hosts.
    fn part(k: u32, parts: u32) -> Self {
        let hosts = (k * k * k / 4 / parts).max(1);
        Self { k, hosts }
    }

    fn tors(self) -> u32 {
        self.hosts.div_ceil(self.k / 2)
    }

    fn pods(self) -> u32 {
        self.tors().div_ceil(self.k / 2)
    }

    /// Switches of the tree: one aggregation switch in each pod, one core switch.
    fn switches(self) -> u32 {
        match (self.tors(), self.pods()) {
            (1, _) => 1,
            (tors, 1) => tors + 1,
            (tors, pods) => tors + pods + 1,
        }
    }

    /// Links of the tree that leave a switch: one to each node of the tree but the source and the source's ToR.
    fn outgoing(self) -> u32 {
        self.hosts - 1 + self.switches() - 1
    }

    /// Bytes of a Bloom filter of these links.
    fn filter(self, rate: f64) -> f64 {
        (filter_bits(self.outgoing(), rate) / 8.0).ceil()
    }

    /// Bytes on all links in percent of those of the tree without a header, less 100. Each port of the switches that is not in
    /// the tree matches at the rate of false positives. Copies of copies are not counted.
    fn overhead(self, rate: f64) -> f64 {
        let (switches, outgoing) = (f64::from(self.switches()), f64::from(self.outgoing()));
        let others = switches * (f64::from(self.k) - 1.0) - outgoing;
        let copies = 1.0 + rate * others / (outgoing + 1.0);
        ((1.0 + self.filter(rate) / MTU) * copies - 1.0) * 100.0
    }
}

/// Bits of a filter of so many elements, with the best number of hash functions.
fn filter_bits(elements: u32, rate: f64) -> f64 {
    f64::from(elements) * (1.0 / rate).log2() / std::f64::consts::LN_2
}

/// The least even number of ports at which the filter is longer than a packet.
fn exceeds(fabric: impl Fn(u32) -> FatTree) -> Option<u32> {
    let even = (2..=PORTS_MAX).step_by(2);
    even.into_iter().find(|k| fabric(*k).filter(GENEROUS) > MTU)
}

/// The least and the largest share of all hosts, in percent, with which the filter is longer than a packet from `k` ports on.
fn shares(k: u32) -> Option<(u32, u32)> {
    let share = |percent: u32| {
        move |k: u32| FatTree {
            k,
            hosts: (k * k * k / 4 * percent / 100).max(1),
        }
    };
    let mut met = (1..=100).filter(|percent| exceeds(share(*percent)) == Some(k));
    let first = met.next()?;
    Some((first, met.next_back().unwrap_or(first)))
}

pub(super) fn fig3() -> Result<FigureReport, Failed> {
    let mut rows = Vec::new();
    for k in PORTS {
        let tors = Space::new(k / 2)?;
        for parts in [1, 4] {
            let tree = FatTree::part(k, parts);
            let mut cells = vec![Cell::Count(k as usize), Cell::Count(tree.hosts as usize)];
            cells.push(Cell::Count(tree.outgoing() as usize));
            cells.extend(RATES.map(|rate| Cell::Number(tree.filter(rate))));
            cells.push(Cell::Number(tree.overhead(GENEROUS)));
            cells.push(Cell::Count(tors.header_bits().into()));
            cells.push(Cell::Count(tors.rules().count()));
            rows.push(cells);
        }
    }
    let [small, large] = [64, PORTS_MAX].map(|k| Space::new(k / 2));
    let (small, large) = (small?, large?);
    // "Once k > 32".
    let paper = 34;
    let first = |parts| exceeds(|k| FatTree::part(k, parts)).map_or(f64::INFINITY, f64::from);
    let met_with = shares(paper).map_or("no share of the hosts".to_owned(), |(low, high)| {
        match low == high {
            true => format!("groups of {low} % of the hosts"),
            false => format!("groups of {low} to {high} % of the hosts"),
        }
    });
    let beyond = (paper..=PORTS_MAX).step_by(2);
    let least = beyond.map(|k| FatTree::part(k, 1).overhead(GENEROUS));
    Ok(FigureReport {
        name: "fig3",
        title: "Size of headers over the ports of a switch",
        setting: "Fat trees of switches with k ports, no failures. The group: all hosts, or the first quarter of them. The filter has each link of\n\
             the tree that leaves a switch, with the best number of hash functions: bytes for a false positive rate of 1, 5 and\n\
             20 %. Overhead is that of 20 %: header and first false copies, in percent of the bytes of the tree with packets of 1500 bytes. The\n\
             prefix is one of the ToRs of a pod: bits of its header, and rules of an aggregation switch."
            .to_owned(),
        table: Table {
            columns: vec![
                "k",
                "group",
                "links",
                "1 percent",
                "5 percent",
                "20 percent",
                "overhead percent",
                "prefix bits",
                "prefix rules",
            ],
            rows,
        },
        headlines: vec![
            Headline::single("least k with a filter over 1500 bytes, all hosts", f64::from(paper), first(1)).because(
                format!(
                    "the paper does not say how large its groups are. The filter passes 1500 bytes at k = 34 with {met_with}; with a half\n\
                     at k = {}, with a quarter at k = {}",
                    first(2),
                    first(4),
                ),
            ),
            Headline::bound(
                "overhead at 20 % in percent, all hosts, k over 32, least",
                Relation::AtLeast,
                100.0,
                least.fold(f64::INFINITY, f64::min),
            ),
            Headline::single("rules of a prefix, k = 64", 63.0, small.rules().count() as f64),
            Headline::single("rules of a prefix, k = 128", 127.0, large.rules().count() as f64),
            Headline::bound(
                "bytes of the header of a prefix, k = 128",
                Relation::AtMost,
                8.0,
                f64::from(large.header_bits()) / 8.0,
            ),
        ],
        events: 0,
        plot: plot()?,
    })
}

fn plot() -> Result<Plot, Failed> {
    let ports = || (8..=PORTS_MAX).step_by(8);
    let line = |name: String, bytes: &dyn Fn(u32) -> f64| Curve {
        name,
        points: ports().map(|k| (f64::from(k), bytes(k))).collect(),
    };
    let mut prefix = Vec::new();
    for k in ports() {
        let bits = Space::new(k / 2)?.header_bits();
        prefix.push((f64::from(k), f64::from(bits) / 8.0));
    }
    let panel = |title: &str, parts| {
        let filter = |rate: f64| {
            let name = format!("filter, {} %", rate * 100.0);
            line(name, &|k| FatTree::part(k, parts).filter(rate))
        };
        let mut curves = RATES.map(filter).to_vec();
        curves.push(Curve {
            name: "prefix".to_owned(),
            points: prefix.clone(),
        });
        curves.push(line("1500 bytes".to_owned(), &|_| MTU));
        Panel {
            title: title.to_owned(),
            curves,
        }
    };
    Ok(Plot {
        axes: Axes::logarithmic("ports of a switch", "bytes"),
        panels: vec![
            panel("groups of all hosts", 1),
            panel("a quarter of the hosts", 4),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::peel::group::planned;
    use castnet_topology::Topology;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn the_links_are_those_of_the_planner() {
        for k in [4, 6, 8] {
            let t = Topology::fat_tree(k as usize).expect("a fabric");
            for hosts in [2, k / 2, k / 2 + 1, k * k / 4, k * k / 4 + 1, k * k * k / 4] {
                let group = FatTree { k, hosts };
                let members: Vec<u32> = (0..hosts).collect();
                let tree = planned(&t, &members).expect("a tree");
                // The source's own link leaves no switch.
                assert_eq!(tree.links().len() as u32, group.outgoing() + 1, "{group:?}");
                let hosts = hosts as usize;
                assert_eq!(tree.nodes().len(), group.switches() as usize + hosts, "{group:?}");
            }
        }
    }

    /// A filter of the computed size has the rate that it is computed for.
    #[test]
    fn a_filter_of_that_size_has_the_false_positives() {
        let elements = 2000;
        for rate in [0.01, 0.2] {
            let bits = filter_bits(elements, rate).ceil() as usize;
            let hashes = (1.0 / rate).log2().round() as usize;
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            let mut places = || (0..hashes).map(|_| rng.random_range(0..bits)).collect::<Vec<_>>();
            let mut filter = vec![false; bits];
            for _ in 0..elements {
                places().into_iter().for_each(|place| filter[place] = true);
            }
            let tries = 50_000;
            let hits = (0..tries)
                .filter(|_| places().into_iter().all(|place| filter[place]))
                .count();
            let found = hits as f64 / f64::from(tries);
            assert!((found / rate - 1.0).abs() < 0.15, "{rate}: {found}");
        }
    }

    #[test]
    fn the_header_of_a_prefix_stays_short() {
        let report = fig3().expect("it is computed");
        for headline in &report.headlines {
            assert!(headline.is_met() || headline.reason.is_some(), "{headline:?}");
        }
        let unmet = report.headlines.iter().filter(|headline| !headline.is_met());
        assert_eq!(unmet.count(), 1, "the paper does not give the size of its groups");
    }
}
