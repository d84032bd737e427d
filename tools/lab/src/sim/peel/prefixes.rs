//! Packets and links of groups whose ToRs are covered by prefixes, beside the optimal tree.

use std::collections::{BTreeMap, BTreeSet};

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_planner::prefix::{Cover, PrefixError, Space};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Extent;
use crate::sim::figures::Failed;
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Relation, Table};

/// ToRs of a group in a fat tree of switches with `k` ports.
#[derive(Clone, Debug)]
struct Racks {
    k: u32,
    /// Members at each ToR.
    each: u32,
    /// By number. The source is at the first one.
    tors: Vec<u32>,
}

/// How the ToRs of a group lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// Consecutive, from a multiple of their number on.
    Aligned,
    /// Consecutive, from any ToR on, but so many percent of the ToRs that are passed belong to others.
    Gaps(u32),
    /// Any.
    Spread,
}

impl Placement {
    const EACH: [Self; 6] = [
        Self::Aligned,
        Self::Gaps(0),
        Self::Gaps(10),
        Self::Gaps(25),
        Self::Gaps(50),
        Self::Spread,
    ];

    fn name(self) -> String {
        match self {
            Self::Aligned => "aligned".to_owned(),
            Self::Gaps(0) => "packed".to_owned(),
            Self::Gaps(percent) => format!("{percent} % gaps"),
            Self::Spread => "spread".to_owned(),
        }
    }

    /// ToRs of a group.
    fn draw(self, Setting { k, tors: count, each }: Setting, rng: &mut ChaCha8Rng) -> Racks {
        let all = k * k / 2;
        let consecutive = |first: u32| (0..all).map(move |number| (first + number) % all);
        let tors = match self {
            Self::Aligned => {
                let first = rng.random_range(0..all / count) * count;
                consecutive(first).take(count as usize).collect()
            }
            Self::Gaps(percent) => {
                let first = rng.random_range(0..all);
                let mut left_out = all - count;
                let is_taken = |_: &u32| {
                    let is_gap = left_out > 0 && rng.random_ratio(percent, 100);
                    left_out -= u32::from(is_gap);
                    !is_gap
                };
                consecutive(first).filter(is_taken).take(count as usize).collect()
            }
            Self::Spread => {
                let mut tors: Vec<u32> = (0..all).collect();
                tors.shuffle(rng);
                tors.truncate(count as usize);
                tors
            }
        };
        Racks { k, each, tors }
    }
}

/// What a multicast of one packet costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    /// Packets that the source sends.
    packets: u32,
    /// Copies that ToRs drop.
    over: u32,
    /// Copies on all links, those to hosts included.
    links: u32,
}

impl Cost {
    /// A packet to the source's ToR, if all members are there.
    fn at_least_one(self) -> Self {
        match self.packets {
            0 => Self {
                packets: 1,
                links: self.links + 1,
                ..self
            },
            _ => self,
        }
    }
}

/// Links of a packet from the source to the aggregation switch of another pod.
const TO_POD: u32 = 4;
/// And to one of its own.
const TO_AGGREGATION: u32 = 2;
/// And to the core.
const TO_CORE: u32 = 3;

/// Which of the covers of a pod is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// No ToR too many.
    Exact,
    /// The fewest links: a packet costs those that it takes to the pod, an over-covered ToR one.
    Packed,
}

impl Racks {
    fn half(&self) -> u32 {
        self.k / 2
    }

    /// ToRs by pod, as identifiers in the pod, without that of the source.
    fn pods(&self) -> BTreeMap<u32, BTreeSet<u32>> {
        let mut pods: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for tor in self.tors.iter().skip(1) {
            pods.entry(tor / self.half())
                .or_default()
                .insert(tor % self.half());
        }
        pods
    }

    /// Pod of the source, and its ToR there.
    fn source(&self) -> (u32, u32) {
        let first = self.tors.first().copied().unwrap_or_default();
        (first / self.half(), first % self.half())
    }

    /// Links to the receivers, the last ones of all paths.
    fn hosts(&self) -> u32 {
        self.tors.len() as u32 * self.each - 1
    }

    /// Links of the smallest tree (lemma 2.1): one to each node but the source.
    fn optimum(&self) -> u32 {
        let source = 1;
        let pods = self.pods();
        let (own, _) = self.source();
        let tors: usize = pods.values().map(BTreeSet::len).sum();
        let others = pods.keys().filter(|pod| **pod != own).count() as u32;
        let up = u32::from(tors > 0) + u32::from(others > 0);
        self.hosts() + source + up + tors as u32 + others
    }

    /// Links of a path over the members by number, which is a ring that ends before the source: 2 to a host at the same ToR, 4 in the pod, 6 beyond.
    fn ring(&self) -> u32 {
        let inside = self.tors.len() as u32 * (self.each - 1) * 2;
        let mut tors = self.tors.clone();
        tors.sort_unstable();
        let hop = |pair: &[u32]| match pair {
            [a, b] if a / self.half() == b / self.half() => 4,
            _ => 6,
        };
        inside + tors.windows(2).map(hop).sum::<u32>()
    }

    /// One packet for each prefix of each pod. A rule sends no copy to the port where the packet came in, so the source's ToR
    /// is covered for free.
    fn covered(&self, choice: Choice) -> Result<Cost, PrefixError> {
        let space = Space::new(self.half())?;
        let (own, tor) = self.source();
        let mut cost = Cost {
            links: self.hosts(),
            ..Cost::default()
        };
        for (pod, tors) in self.pods() {
            let (path, free) = match pod == own {
                true => (TO_AGGREGATION, [tor].into()),
                false => (TO_POD, BTreeSet::new()),
            };
            let links = |cover: &Cover| cover.prefixes.len() as u32 * path + cover.over;
            let cover = match choice {
                Choice::Exact => Some(space.cover(&tors, &free)?),
                Choice::Packed => space
                    .pack(&tors, &free, self.half() as usize)?
                    .into_iter()
                    .min_by_key(links),
            };
            let cover = cover.unwrap_or_default();
            cost.packets += cover.prefixes.len() as u32;
            cost.over += cover.over;
            cost.links += links(&cover) + tors.len() as u32;
        }
        Ok(cost.at_least_one())
    }

    /// One packet to the core, which sends one for each prefix to each pod, that of the source included.
    fn by_core(&self) -> Result<Cost, PrefixError> {
        let (own, _) = self.source();
        let pods = self.pods();
        if pods.keys().all(|pod| *pod == own) {
            return self.covered(Choice::Exact);
        }
        let space = Space::new(self.half())?;
        let mut links = self.hosts() + TO_CORE;
        for tors in pods.values() {
            links += (space.cover(tors, &BTreeSet::new())?.prefixes.len() + tors.len()) as u32;
        }
        Ok(Cost {
            packets: 1,
            over: 0,
            links,
        })
    }

    /// As [`Racks::covered`] with [`Choice::Exact`], but core switches have rules for blocks of pods too. A packet has a prefix
    /// of pods and one of ToRs; pods with the same ToRs share packets.
    fn by_pod_prefixes(&self) -> Result<Cost, PrefixError> {
        let (tors_of, pods_of) = (Space::new(self.half())?, Space::new(self.k)?);
        let (own, tor) = self.source();
        let mut alike: BTreeMap<BTreeSet<u32>, BTreeSet<u32>> = BTreeMap::new();
        let mut cost = Cost {
            links: self.hosts(),
            ..Cost::default()
        };
        for (pod, tors) in self.pods() {
            if pod == own {
                let packets = tors_of.cover(&tors, &[tor].into())?.prefixes.len() as u32;
                cost.packets += packets;
                cost.links += packets * TO_AGGREGATION + tors.len() as u32;
            } else {
                alike.entry(tors).or_default().insert(pod);
            }
        }
        for (tors, pods) in alike {
            let blocks = tors_of.cover(&tors, &BTreeSet::new())?.prefixes.len() as u32;
            let packets = blocks * pods_of.cover(&pods, &[own].into())?.prefixes.len() as u32;
            let count = pods.len() as u32;
            cost.packets += packets;
            cost.links += packets * TO_CORE + count * (blocks + tors.len() as u32);
        }
        Ok(cost.at_least_one())
    }
}

/// Sums over the draws of one placement.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    draws: u32,
    optimum: u32,
    ring: u32,
    exact: Cost,
    packed: Cost,
    core: Cost,
    pod_prefixes: Cost,
}

impl Point {
    fn add(&mut self, racks: &Racks) -> Result<(), PrefixError> {
        self.draws += 1;
        self.optimum += racks.optimum();
        self.ring += racks.ring();
        self.exact.add(racks.covered(Choice::Exact)?);
        self.packed.add(racks.covered(Choice::Packed)?);
        self.core.add(racks.by_core()?);
        self.pod_prefixes.add(racks.by_pod_prefixes()?);
        Ok(())
    }

    fn mean(&self, sum: u32) -> f64 {
        f64::from(sum) / f64::from(self.draws)
    }

    /// Relative to the optimum.
    fn links(&self, cost: Cost) -> f64 {
        f64::from(cost.links) / f64::from(self.optimum)
    }
}

impl Cost {
    fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.over += other.over;
        self.links += other.links;
    }
}

/// Groups of one size in one fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    k: u32,
    tors: u32,
    /// Members at each ToR.
    each: u32,
}

impl Setting {
    fn hosts(self) -> u32 {
        self.tors * self.each
    }

    fn point(self, placement: Placement, extent: Extent) -> Result<Point, Failed> {
        let mut rng = ChaCha8Rng::seed_from_u64(extent.seed);
        let mut point = Point::default();
        for _ in 0..extent.draws {
            point.add(&placement.draw(self, &mut rng))?;
        }
        Ok(point)
    }
}

/// 512 GPUs of section 4, with eight at a host.
const PAPER: Setting = Setting {
    k: 8,
    tors: 16,
    each: 4,
};

pub(super) fn prefixes(extent: Extent) -> Result<FigureReport, Failed> {
    let settings = [(8, 4, 4), (8, 16, 4), (8, 16, 1), (64, 16, 32), (64, 128, 32)];
    let mut rows = Vec::new();
    for (k, tors, each) in settings {
        for placement in Placement::EACH {
            let setting = Setting { k, tors, each };
            rows.push((setting, placement, setting.point(placement, extent)?));
        }
    }
    let range = |is_shown: &dyn Fn(&Setting) -> bool, value: &dyn Fn(&Point) -> f64| {
        let values = rows.iter().filter(|(setting, ..)| is_shown(setting));
        let values = values.map(|(.., point)| value(point));
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        })
    };
    let is_paper = |setting: &Setting| *setting == PAPER;
    let above =
        |cost: fn(&Point) -> Cost| range(&is_paper, &|point| (point.links(cost(point)) - 1.0) * 100.0);
    let saved = |point: &Point| (1.0 - f64::from(point.exact.links) / f64::from(point.ring)) * 100.0;
    let (few, many) = range(&is_paper, &|point| point.mean(point.exact.packets));
    let (fewer, most) = range(&|setting| setting.k == PAPER.k && setting.each == 1, &saved);
    Ok(FigureReport {
        name: "prefixes",
        title: "Packets and links of groups that are covered by prefixes",
        setting: format!(
            "Fat trees of switches with k ports, no failures. Aligned: consecutive ToRs from a multiple of their number on; packed: from\n\
             any ToR on; gaps: so many percent of the ToRs on the way belong to others; spread: any ToRs. Each has as many members.\n\
             Means of {} draws, seed {}. Links are copies of one packet on all links, relative to the smallest tree. Exact: one packet\n\
             for each prefix of each pod. Packed: the fewest links, with over-covered ToRs that drop copies. Core: the source sends one\n\
             packet, and the core one for each prefix. Pod prefixes: as exact, but cores have prefixes of pods too. Ring: of hosts.",
            extent.draws, extent.seed,
        ),
        table: table(&rows),
        headlines: vec![
            Headline::range(
                "percent above the smallest tree, 512 GPUs; the paper's: time",
                (18.0, 23.0),
                above(|point| point.exact),
            )
            .because(format!(
                "the paper gives times, and not how its GPUs lie. The source's own link carries {few:.1} to {many:.1} packets for each packet\n\
                 of the message, so a long message would take as many times as long. The paper's times leave little more than one: its\n\
                 source cannot send a packet for each pod"
            )),
            Headline::bound(
                "the same with programmable cores",
                Relation::AtMost,
                1.4,
                above(|point| point.core).1,
            )
            .because(
                "a lone ToR costs a packet of the core, and the pod of the source is reached over the core too: one link more even where\n\
                 the group is aligned. The paper's number is that of one placement, which it does not give",
            ),
            Headline::range(
                "percent fewer links than a ring, 512 GPUs",
                (23.0, 23.0),
                range(&is_paper, &saved),
            )
            .because(format!(
                "the paper does not say how large and how scattered these groups are. With one member at each of 16 ToRs it is {fewer:.1} to\n\
                 {most:.1} %"
            )),
        ],
        events: 0,
        plot: plot(&rows),
    })
}

type Row = (Setting, Placement, Point);

fn table(rows: &[Row]) -> Table {
    let row = |(setting, placement, point): &Row| {
        let mean = |sum| Cell::Number(point.mean(sum));
        let links = |cost| Cell::Number(point.links(cost));
        vec![
            Cell::Count(setting.k as usize),
            Cell::Count(setting.tors as usize),
            Cell::Count(setting.hosts() as usize),
            Cell::Text(placement.name()),
            mean(point.exact.packets),
            links(point.exact),
            mean(point.packed.packets),
            mean(point.packed.over),
            links(point.packed),
            links(point.core),
            mean(point.pod_prefixes.packets),
            links(point.pod_prefixes),
            Cell::Number(f64::from(point.ring) / f64::from(point.optimum)),
        ]
    };
    Table {
        columns: vec![
            "k",
            "tors",
            "hosts",
            "placement",
            "exact packets",
            "exact links",
            "packed packets",
            "over tors",
            "packed links",
            "core links",
            "pod prefix packets",
            "pod prefix links",
            "ring links",
        ],
        rows: rows.iter().map(row).collect(),
    }
}

fn plot(rows: &[Row]) -> Plot {
    let mut panels: Vec<Panel> = Vec::new();
    for of in rows.chunk_by(|a, b| a.0 == b.0) {
        let curve = |name: &str, value: fn(&Point) -> f64| Curve {
            name: name.to_owned(),
            points: of
                .iter()
                .filter_map(|(_, placement, point)| match placement {
                    Placement::Gaps(percent) => Some((f64::from(*percent), value(point))),
                    _ => None,
                })
                .collect(),
        };
        let title = of.first().map(|(setting, ..)| {
            format!(
                "k = {}, {} hosts at {} ToRs",
                setting.k,
                setting.hosts(),
                setting.tors
            )
        });
        panels.push(Panel {
            title: title.unwrap_or_default(),
            curves: vec![
                curve("exact", |point| point.links(point.exact)),
                curve("packed", |point| point.links(point.packed)),
                curve("core", |point| point.links(point.core)),
                curve("pod prefixes", |point| point.links(point.pod_prefixes)),
                curve("ring", |point| f64::from(point.ring) / f64::from(point.optimum)),
            ],
        });
    }
    Plot {
        axes: Axes::linear(
            "percent of ToRs that are gaps",
            "links over those of the smallest tree",
        ),
        panels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::peel::group::planned;
    use castnet_topology::Topology;

    fn racks(tors: &[u32], each: u32) -> Racks {
        Racks {
            k: 8,
            each,
            tors: tors.to_vec(),
        }
    }

    /// In a fat tree without failures the planner's tree is the smallest (lemma 2.1).
    #[test]
    fn the_smallest_tree_is_that_of_the_planner() {
        let t = Topology::fat_tree(8).expect("a fabric");
        for tors in [
            &[3][..],
            &[0, 1],
            &[5, 4, 6],
            &[0, 31],
            &[2, 3, 8, 9, 30],
            &[7, 0, 1, 2, 3],
        ] {
            for each in [2, 4] {
                let group = racks(tors, each);
                let hosts = tors
                    .iter()
                    .flat_map(|tor| (0..each).map(move |host| tor * 4 + host));
                let tree = planned(&t, &hosts.collect::<Vec<u32>>()).expect("a tree");
                assert_eq!(tree.links().len() as u32, group.optimum(), "{group:?}");
            }
        }
    }

    #[test]
    fn costs_are_those_that_can_be_counted() {
        // Four full pods: one packet each. Own pod: 2 + 3 ToRs; others: 4 + 4 ToRs.
        let all: Vec<u32> = (0..16).collect();
        let full = racks(&all, 4);
        let cost = |packets, over, links| Cost { packets, over, links };
        assert_eq!(full.covered(Choice::Exact), Ok(cost(4, 0, 63 + 5 + 3 * 8)));
        // The core needs two packets for the ToRs 1 to 3 of the source's pod.
        assert_eq!(full.by_core(), Ok(cost(1, 0, 63 + 3 + 2 + 3 + 3 * 5)));
        // The pods 1 to 3 have one prefix, as that of the source gets no copy.
        assert_eq!(full.by_pod_prefixes(), Ok(cost(2, 0, 63 + 5 + 3 + 3 * 5)));
        assert_eq!((full.optimum(), full.ring()), (84, 162));
        // Three of four ToRs of another pod: a packet more than one ToR too many costs.
        let gap = racks(&[0, 4, 5, 6], 1);
        assert_eq!(gap.covered(Choice::Exact), Ok(cost(2, 0, 3 + 8 + 3)));
        assert_eq!(gap.covered(Choice::Packed), Ok(cost(1, 1, 3 + 4 + 1 + 3)));
        let one = racks(&[9], 4);
        for alone in [one.covered(Choice::Exact), one.by_core(), one.by_pod_prefixes()] {
            assert_eq!(alone, Ok(cost(1, 0, 4)));
        }
    }

    #[test]
    fn no_cover_has_fewer_links_than_the_smallest_tree() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        for placement in Placement::EACH {
            for _ in 0..200 {
                let group = placement.draw(PAPER, &mut rng);
                let distinct: BTreeSet<&u32> = group.tors.iter().collect();
                assert_eq!(distinct.len(), 16, "{group:?}");
                let links = |cost: Result<Cost, PrefixError>| cost.expect("a cover").links;
                let exact = links(group.covered(Choice::Exact));
                let packed = links(group.covered(Choice::Packed));
                let (core, pods) = (links(group.by_core()), links(group.by_pod_prefixes()));
                assert!(packed <= exact && pods <= exact, "{group:?}");
                assert!(packed.min(core).min(pods) >= group.optimum(), "{group:?}");
            }
        }
    }
}
