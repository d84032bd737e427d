//! How each scheme broadcasts: its ranks, flows and trees.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use castnet_planner::prefix::{PrefixError, Space};
use castnet_planner::{LinkLoad, Tree as PlannedTree};
use castnet_topology::Topology;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::fabric::{Fabric, Tree, TreeBuilder};
use super::network::{MILLI, Picos, Plan, PlannedFlow, PlannedRank, nvlink};
use crate::sim::figures::Failed;
use crate::sim::peel::group::planned_beside;

/// GPUs of a host. They share its link.
pub(super) const GPUS: u32 = 8;
/// Ring and tree pass on an eighth of the message at once, as in the paper.
const BLOCKS: u64 = 8;
/// The planner counts the trees of so many groups before.
const TREES_BESIDE: usize = 4;

/// A way to broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scheme {
    /// From GPU to GPU by number.
    Ring,
    /// A binary tree of hosts: host i receives from host (i - 1) / 2.
    Tree,
    /// A binary tree of GPUs in the same order. Most of its edges are between hosts.
    TreeOfGpus,
    /// The smallest tree, without set-up delay.
    Optimal,
    /// The smallest tree to one host at each ToR after the set-up delay. That host sends to the others there.
    Orca,
    /// The same without set-up delay.
    OrcaAtOnce,
    /// The smallest tree to all hosts after the set-up delay.
    OrcaToHosts,
    /// One packet for each prefix of each pod, no ToR too many.
    Peel,
    /// As [`Scheme::Peel`]. After the set-up delay one packet, and the core switch sends one with one prefix to each pod.
    PeelCores,
    /// One packet: core switches have prefixes of pods too. The smallest blocks of pods and of ToRs that contain the group.
    PeelOne,
    /// As [`Scheme::PeelOne`], and then as [`Scheme::PeelCores`].
    PeelOneCores,
}

impl Scheme {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::TreeOfGpus => "tree of GPUs",
            Self::Optimal => "optimal",
            Self::Orca => "Orca",
            Self::OrcaAtOnce => "Orca, no set-up",
            Self::OrcaToHosts => "Orca, to hosts",
            Self::Peel => "PEEL",
            Self::PeelCores => "PEEL + cores",
            Self::PeelOne => "PEEL, one packet",
            Self::PeelOneCores => "one packet + cores",
        }
    }

    /// Whether the controller sets something up.
    fn is_set_up(self) -> bool {
        matches!(
            self,
            Self::Orca | Self::OrcaToHosts | Self::PeelCores | Self::PeelOneCores
        )
    }
}

/// The set-up delay of the controller, N(10 ms, 5 ms), at least 0.
pub(super) fn set_up(rng: &mut ChaCha8Rng) -> Picos {
    // Box and Muller.
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * rng.random::<f64>()).cos();
    ((10.0 + 5.0 * normal).max(0.0) * MILLI as f64) as Picos
}

/// Bytes that a link carries at once, and that agents pass on: a 64th of the message, 8 KiB to 1 MiB.
pub(super) fn train(bytes: u64) -> u64 {
    (bytes / 64).clamp(8 << 10, 1 << 20)
}

/// Makes the plans of one scheme in one fabric.
pub(super) struct Planner<'f> {
    pub(super) topology: &'f Topology,
    pub(super) fabric: &'f Fabric,
    pub(super) scheme: Scheme,
    beside: VecDeque<PlannedTree>,
}

impl<'f> Planner<'f> {
    pub(super) fn new(topology: &'f Topology, fabric: &'f Fabric, scheme: Scheme) -> Self {
        Self {
            topology,
            fabric,
            scheme,
            beside: VecDeque::new(),
        }
    }

    /// The plan of a broadcast from the first of these hosts to the others. The others are in the order of the ring.
    pub(super) fn plan(&mut self, members: &[u32], bytes: u64, rng: &mut ChaCha8Rng) -> Result<Plan, Failed> {
        // Drawn for all schemes, so that what follows is the same for all.
        let delay = set_up(rng);
        let delay = if self.scheme.is_set_up() { delay } else { 0 };
        let plan = Plan {
            bytes,
            train: train(bytes),
            block: bytes / BLOCKS,
            ..Plan::default()
        };
        match self.scheme {
            Scheme::Ring => self.over_gpus(plan, members, |rank| rank - 1, rng),
            Scheme::TreeOfGpus => self.over_gpus(plan, members, |rank| (rank - 1) / 2, rng),
            Scheme::Tree => self.over_hosts(plan, members, rng),
            Scheme::Orca | Scheme::OrcaAtOnce => self.by_agents(plan, members, delay, rng),
            Scheme::Optimal | Scheme::OrcaToHosts => {
                let tree = self.smallest(members)?;
                Ok(multicast(plan, members, vec![tree], delay, None))
            }
            Scheme::Peel => Ok(multicast(plan, members, self.by_prefixes(members, rng)?, 0, None)),
            Scheme::PeelOne => Ok(multicast(plan, members, self.by_one(members, rng)?, 0, None)),
            Scheme::PeelCores | Scheme::PeelOneCores => {
                let trees = match self.scheme {
                    Scheme::PeelCores => self.by_prefixes(members, rng)?,
                    _ => self.by_one(members, rng)?,
                };
                let refined = self.by_core(members, rng)?;
                Ok(multicast(plan, members, trees, 0, Some((delay, refined))))
            }
        }
    }

    fn unicast(&self, from: (u32, u32), to: (u32, u32), rng: &mut ChaCha8Rng) -> Result<PlannedFlow, Failed> {
        let path = self.fabric.path(from.1, to.1, rng)?;
        Ok(PlannedFlow {
            from: from.0,
            to: Some(to.0),
            trees: vec![Tree::path(&path)],
            refined: None,
            start: 0,
        })
    }

    /// Each GPU receives from the one of number `parent`.
    fn over_gpus(
        &self,
        mut plan: Plan,
        members: &[u32],
        parent: fn(u32) -> u32,
        rng: &mut ChaCha8Rng,
    ) -> Result<Plan, Failed> {
        let gpus = members.iter().flat_map(|host| [*host; GPUS as usize]);
        plan.ranks = gpus
            .map(|host| PlannedRank {
                host,
                near: Vec::new(),
            })
            .collect();
        for rank in 1..plan.ranks.len() as u32 {
            let above = parent(rank);
            let (from, to) = (plan.ranks[above as usize].host, plan.ranks[rank as usize].host);
            match from == to {
                true => plan.ranks[above as usize].near.push(rank),
                false => plan.flows.push(self.unicast((above, from), (rank, to), rng)?),
            }
        }
        Ok(plan)
    }

    fn over_hosts(&self, plan: Plan, members: &[u32], rng: &mut ChaCha8Rng) -> Result<Plan, Failed> {
        let mut plan = of_hosts(plan, members);
        plan.block = plan.bytes / BLOCKS;
        for (rank, host) in members.iter().enumerate().skip(1) {
            let above = (rank - 1) / 2;
            let from = (above as u32, members[above]);
            plan.flows.push(self.unicast(from, (rank as u32, *host), rng)?);
        }
        Ok(plan)
    }

    /// The planner's tree beside those of the groups before.
    fn smallest(&mut self, members: &[u32]) -> Result<Tree, Failed> {
        let mut load = LinkLoad::new();
        self.beside.iter().for_each(|tree| load.add(tree));
        let tree = planned_beside(self.topology, &load, members)?;
        let of_links = Tree::planned(self.topology, &tree)?;
        self.beside.push_back(tree);
        if self.beside.len() > TREES_BESIDE {
            self.beside.pop_front();
        }
        Ok(of_links)
    }

    /// A tree to one host at each ToR, and flows from there to the others. The source is that of its own ToR.
    fn by_agents(
        &mut self,
        plan: Plan,
        members: &[u32],
        delay: Picos,
        rng: &mut ChaCha8Rng,
    ) -> Result<Plan, Failed> {
        let mut plan = of_hosts(plan, members);
        let mut agents: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        let mut order = Vec::new();
        for (rank, host) in members.iter().enumerate() {
            let tor = host / self.fabric.at_tor;
            match agents.get(&tor) {
                Some(agent) => {
                    let flow = self.unicast(*agent, (rank as u32, *host), rng)?;
                    plan.flows.push(PlannedFlow { start: delay, ..flow });
                }
                None => {
                    agents.insert(tor, (rank as u32, *host));
                    order.push(*host);
                }
            }
        }
        if order.len() > 1 {
            let tree = self.smallest(&order)?;
            plan.flows.push(PlannedFlow {
                from: 0,
                to: None,
                trees: vec![tree],
                refined: None,
                start: delay,
            });
        }
        Ok(plan)
    }

    /// Members without the source, by ToR.
    fn by_tor(&self, members: &[u32]) -> BTreeMap<u32, Vec<u32>> {
        let mut tors: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for host in members.iter().skip(1) {
            tors.entry(host / self.fabric.at_tor).or_default().push(*host);
        }
        tors
    }

    /// ToRs with receivers but that of the source, by pod, as identifiers in the pod.
    fn pods(&self, members: &[u32]) -> BTreeMap<u32, BTreeSet<u32>> {
        let own = self.tor(members);
        let in_pod = self.fabric.in_pod;
        let mut pods: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for tor in self.by_tor(members).into_keys().filter(|tor| *tor != own) {
            pods.entry(tor / in_pod).or_default().insert(tor % in_pod);
        }
        pods
    }

    /// ToR of the source.
    fn tor(&self, members: &[u32]) -> u32 {
        members.first().copied().unwrap_or_default() / self.fabric.at_tor
    }

    fn space(&self) -> Result<Space, PrefixError> {
        Space::new(self.fabric.in_pod)
    }

    /// Adds the links from a switch to these ToRs, and to the receivers there. A ToR without receivers drops the copy, as that of
    /// the source does.
    fn fan_out(
        &self,
        builder: &mut TreeBuilder,
        above: Option<usize>,
        from: castnet_topology::NodeId,
        tors: impl IntoIterator<Item = u32>,
        members: &[u32],
    ) -> Result<(), Failed> {
        let receivers = self.by_tor(members);
        let own = self.tor(members);
        for tor in tors {
            let last = builder.merge(above, &self.fabric.descend(from, tor)?);
            for host in receivers.get(&tor).filter(|_| tor != own).into_iter().flatten() {
                builder.add(last, self.fabric.uplink(*host) ^ 1);
            }
        }
        Ok(())
    }

    /// Trees as they grow, and then: the source's ToR sends the first packet to its own receivers too.
    fn finish(&self, mut builders: Vec<TreeBuilder>, members: &[u32]) -> Vec<Tree> {
        let source = members.first().copied().unwrap_or_default();
        if builders.is_empty() {
            let mut builder = TreeBuilder::default();
            builder.add(None, self.fabric.uplink(source));
            builders.push(builder);
        }
        if let Some(builder) = builders.first_mut() {
            let receivers = self.by_tor(members);
            for host in receivers.get(&self.tor(members)).into_iter().flatten() {
                builder.add(Some(0), self.fabric.uplink(*host) ^ 1);
            }
        }
        builders.into_iter().map(TreeBuilder::build).collect()
    }

    /// One packet for each prefix of each pod.
    fn by_prefixes(&self, members: &[u32], rng: &mut ChaCha8Rng) -> Result<Vec<Tree>, Failed> {
        let (space, in_pod) = (self.space()?, self.fabric.in_pod);
        let own = self.tor(members);
        let source = members.first().copied().unwrap_or_default();
        let mut builders = Vec::new();
        for (pod, tors) in self.pods(members) {
            let (layers, free) = match pod == own / in_pod {
                true => (1, [own % in_pod].into()),
                false => (2, BTreeSet::new()),
            };
            for prefix in space.cover(&tors, &free)?.prefixes {
                let (up, top) = self.fabric.climb(source, layers, rng)?;
                let mut builder = TreeBuilder::default();
                let above = builder.extend(None, &up);
                let ids = space.ids(prefix).map(|id| pod * in_pod + id);
                self.fan_out(&mut builder, above, top, ids.filter(|tor| *tor != own), members)?;
                builders.push(builder);
            }
        }
        Ok(self.finish(builders, members))
    }

    /// One packet to the smallest blocks of pods and of ToRs that contain all. The core sends copies back to the source's pod too.
    fn by_one(&self, members: &[u32], rng: &mut ChaCha8Rng) -> Result<Vec<Tree>, Failed> {
        let (space, in_pod) = (self.space()?, self.fabric.in_pod);
        let own = self.tor(members);
        let source = members.first().copied().unwrap_or_default();
        let pods = self.pods(members);
        let ids: BTreeSet<u32> = pods.values().flatten().copied().collect();
        if pods.is_empty() {
            return Ok(self.finish(Vec::new(), members));
        }
        let is_inside = pods.keys().all(|pod| *pod == own / in_pod);
        let layers = if is_inside { 1 } else { 2 };
        let (up, top) = self.fabric.climb(source, layers, rng)?;
        let mut builder = TreeBuilder::default();
        let above = builder.extend(None, &up);
        let all = self.fabric.hosts() / (self.fabric.at_tor * in_pod);
        let pods = block(Space::new(all)?, &pods.into_keys().collect())?;
        let ids = block(space, &ids)?;
        for pod in pods {
            let tors = ids.iter().map(|id| pod * in_pod + id);
            // An aggregation switch sends no copy back to the port where the packet came in.
            let tors = tors.filter(|tor| !is_inside || *tor != own);
            self.fan_out(&mut builder, above, top, tors, members)?;
        }
        Ok(self.finish(vec![builder], members))
    }

    /// One packet to the core, which sends one to each pod: to the smallest block that contains the ToRs there.
    fn by_core(&self, members: &[u32], rng: &mut ChaCha8Rng) -> Result<Vec<Tree>, Failed> {
        let (space, in_pod) = (self.space()?, self.fabric.in_pod);
        let own = self.tor(members);
        let source = members.first().copied().unwrap_or_default();
        let pods = self.pods(members);
        if pods.keys().all(|pod| *pod == own / in_pod) {
            return self.by_one(members, rng);
        }
        let (up, top) = self.fabric.climb(source, 2, rng)?;
        let mut builder = TreeBuilder::default();
        let core = builder.extend(None, &up);
        for (pod, tors) in pods {
            let tors = block(space, &tors)?.into_iter().map(|id| pod * in_pod + id);
            self.fan_out(&mut builder, core, top, tors, members)?;
        }
        Ok(self.finish(vec![builder], members))
    }
}

/// The smallest block of identifiers that contains these.
fn block(space: Space, ids: &BTreeSet<u32>) -> Result<Vec<u32>, PrefixError> {
    let covers = space.pack(ids, &BTreeSet::new(), 1)?;
    let prefixes = covers.into_iter().flat_map(|cover| cover.prefixes);
    Ok(prefixes.flat_map(|prefix| space.ids(prefix)).collect())
}

/// One rank at each host; its other GPUs get each train over NVLink.
fn of_hosts(plan: Plan, members: &[u32]) -> Plan {
    let ranks = members.iter().map(|host| PlannedRank {
        host: *host,
        near: Vec::new(),
    });
    Plan {
        block: plan.train,
        inside: nvlink(plan.train) * u64::from(GPUS - 1),
        ranks: ranks.collect(),
        ..plan
    }
}

/// One flow from the source to all.
fn multicast(
    plan: Plan,
    members: &[u32],
    trees: Vec<Tree>,
    start: Picos,
    refined: Option<(Picos, Vec<Tree>)>,
) -> Plan {
    let flow = PlannedFlow {
        from: 0,
        to: None,
        trees,
        refined,
        start,
    };
    Plan {
        flows: vec![flow],
        ..of_hosts(plan, members)
    }
}
