//! Broadcasts that arrive at random, and their completion times.

use castnet_topology::{LinkId, Topology};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::fabric::Fabric;
use super::network::{self, BYTE, Completion, Config, MICRO, Picos, SECOND, Totals};
use super::schemes::{GPUS, Planner, Scheme, train};
use crate::sim::figures::Failed;
use crate::sim::peel::group::is_inner;

/// The two fabrics of section 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Eight ports, 128 hosts.
    FatTree,
    /// 16 spines, 48 leaves, two hosts each. So many percent of the links between switches have failed, other ones for each part of a run.
    LeafSpine { failed: u32 },
}

impl Kind {
    fn topology(self, seed: u64) -> Result<Topology, Failed> {
        match self {
            Self::FatTree => Ok(Topology::fat_tree(8)?),
            Self::LeafSpine { failed } => {
                let mut t = Topology::leaf_spine(48, 16, 2)?;
                let inner = t.links().filter(|(_, link)| is_inner(link));
                let mut inner: Vec<LinkId> = inner.map(|(id, _)| id).collect();
                inner.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
                for link in &inner[..inner.len() * failed as usize / 100] {
                    t.set_link_up(*link, false);
                }
                Ok(t)
            }
        }
    }

    fn fabric(self, t: &Topology) -> Result<Fabric, Failed> {
        match self {
            Self::FatTree => Fabric::new(t, 4, 4),
            Self::LeafSpine { .. } => Fabric::new(t, 2, 48),
        }
    }
}

/// How the hosts of a group lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Consecutive hosts, from the first one of any ToR on.
    Packed,
    /// Consecutive hosts, from a multiple of their number on.
    Aligned,
    /// Any hosts.
    Spread,
}

impl Placement {
    /// The members by number, beginning with the source, which is any of them.
    fn draw(self, count: u32, fabric: &Fabric, rng: &mut ChaCha8Rng) -> Vec<u32> {
        let all = fabric.hosts();
        let count = count.clamp(2, all);
        let consecutive = |first: u32| (0..count).map(|number| (first + number) % all).collect();
        let mut members: Vec<u32> = match self {
            Self::Packed => consecutive(rng.random_range(0..all / fabric.at_tor) * fabric.at_tor),
            Self::Aligned => consecutive(rng.random_range(0..all / count) * count),
            Self::Spread => {
                let mut hosts: Vec<u32> = (0..all).collect();
                hosts.shuffle(rng);
                hosts.truncate(count as usize);
                hosts.sort_unstable();
                hosts
            }
        };
        let source = rng.random_range(0..members.len());
        members.rotate_left(source);
        members
    }
}

/// Broadcasts of one scheme.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) kind: Kind,
    pub(super) scheme: Scheme,
    pub(super) placement: Placement,
    /// GPUs of a group.
    pub(super) gpus: u32,
    pub(super) bytes: u64,
    /// What the links to hosts carry on average, if each receiver gets each message once, relative to their rate. 0: one broadcast
    /// after the other.
    pub(super) load: f64,
    pub(super) broadcasts: u32,
    /// Each with other failed links, and the network empty at its start.
    pub(super) parts: u32,
    pub(super) seed: u64,
    pub(super) config: Config,
}

/// Results of a run. Times are in seconds.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Completion times, the shortest first.
    pub(super) times: Vec<f64>,
    pub(super) totals: Totals,
    /// Bytes of all copies on all links for each byte of the messages.
    pub(super) links: f64,
}

impl Measured {
    pub(super) fn mean(&self) -> f64 {
        self.times.iter().sum::<f64>() / self.times.len().max(1) as f64
    }

    /// The 99th percentile.
    pub(super) fn tail(&self) -> f64 {
        let index = (self.times.len() * 99).div_ceil(100).saturating_sub(1);
        self.times.get(index).copied().unwrap_or_default()
    }
}

/// Time of a message on one link, in picoseconds.
pub(super) fn line_time(bytes: u64) -> Picos {
    bytes * BYTE
}

impl Run {
    /// About as long as it takes, compared with other runs.
    pub(super) fn cost(&self) -> u64 {
        let of_scheme = match self.scheme {
            Scheme::TreeOfGpus => 30,
            Scheme::Tree => 4,
            _ => 1,
        };
        let trains = self.bytes / train(self.bytes);
        trains * u64::from(self.gpus) * u64::from(self.broadcasts) * of_scheme
    }

    /// Runs of the same seed have the same groups, arrivals and set-up delays, whatever the scheme.
    pub(super) fn measure(&self) -> Result<Measured, Failed> {
        let parts = self.parts.max(1);
        let mut all: Vec<Completion> = Vec::new();
        let mut totals = Totals::default();
        for part in 0..parts {
            let seed = self.seed * 1000 + u64::from(part);
            let share = self.broadcasts / parts + u32::from(part < self.broadcasts % parts);
            let (completions, of_part) = self.part(seed, share)?;
            all.extend(completions);
            totals.add(of_part);
        }
        let mut times: Vec<f64> = all
            .iter()
            .map(|completion| completion.time as f64 / SECOND as f64)
            .collect();
        times.sort_by(f64::total_cmp);
        let sent = self.bytes as f64 * times.len() as f64;
        Ok(Measured {
            links: totals.link_bytes as f64 / sent,
            times,
            totals,
        })
    }

    fn part(&self, seed: u64, broadcasts: u32) -> Result<(Vec<Completion>, Totals), Failed> {
        let topology = self.kind.topology(seed)?;
        let fabric = self.kind.fabric(&topology)?;
        let mut planner = Planner::new(&topology, &fabric, self.scheme);
        let arrivals = self.arrivals(&fabric, seed, broadcasts);
        network::simulate(&fabric, self.config, seed, &arrivals, |index| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(index as u64 + 1);
            let members = self.placement.draw(self.gpus / GPUS, &fabric, &mut rng);
            planner.plan(&members, self.bytes, &mut rng)
        })
    }

    /// A Poisson process.
    fn arrivals(&self, fabric: &Fabric, seed: u64, broadcasts: u32) -> Vec<Picos> {
        let receivers = f64::from((self.gpus / GPUS).max(2) - 1);
        let line = line_time(self.bytes);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut at = 0;
        let gap = |rng: &mut ChaCha8Rng| match self.load > 0.0 {
            true => {
                let mean = line as f64 * receivers / (f64::from(fabric.hosts()) * self.load);
                (-mean * (1.0 - rng.random::<f64>()).ln()) as Picos
            }
            // Longer than any scheme and set-up takes.
            false => 200 * line + 100_000 * MICRO,
        };
        (0..broadcasts)
            .map(|_| {
                at += gap(&mut rng);
                at
            })
            .collect()
    }
}
