//! Event-driven simulation of broadcasts: trains of packets over links. docs/peel.md gives the model and its reasons.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use castnet_endpoint::{Reaction, ReactionConfig};
use castnet_rules::BitRate;
use castnet_wire::Nanos;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::fabric::{DirectedLink, Fabric, Tree};
use crate::sim::figures::Failed;

/// Time in picoseconds: a byte takes 80 of them at 100 Gb/s.
pub(super) type Picos = u64;

pub(super) const MICRO: Picos = 1_000_000;
pub(super) const MILLI: Picos = 1_000 * MICRO;
pub(super) const SECOND: Picos = 1_000 * MILLI;
/// Of all links, in bits per second.
pub(super) const LINE: u64 = 100_000_000_000;
/// Picoseconds of a byte on a link.
pub(super) const BYTE: Picos = 8 * SECOND / LINE;
/// Propagation delay of a link.
pub(super) const DELAY: Picos = MICRO;
/// Bytes of a packet: a switch forwards a packet when it has all of it.
pub(super) const MTU: u64 = 4096;
/// The least time between two CNPs of a receiver, and between two reactions of a guarded sender.
const INTERVAL: Picos = 50 * MICRO;
/// A CNP takes six links, and waits nowhere.
const CNP_DELAY: Picos = 6 * DELAY;

/// Bytes over NVLink at 900 GB/s.
pub(super) fn nvlink(bytes: u64) -> Picos {
    bytes * 10 / 9
}

/// What limits the CNPs of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Each receiver sends one in 50 us, as in DCQCN. The sender reacts to each.
    Receivers,
    /// The sender reacts once in 50 us (PEEL's guard timer). Receivers send one for each marked train.
    Guard,
}

/// Parameters of switches and senders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    /// Of multicast flows. Unicast flows have [`Limit::Receivers`].
    pub(super) multicast: Limit,
    /// Whether senders react to congestion at all.
    pub(super) is_controlled: bool,
    /// Bytes from one port that a switch keeps, before it sends PAUSE there.
    pub(super) pause_bytes: u64,
    /// Bytes of a queue from which on packets are marked, and from which on all are.
    pub(super) mark_bytes: (u64, u64),
    /// Probability of a mark just below the second one.
    pub(super) mark_most: f64,
}

impl Config {
    /// Section 4 of the paper: 12 MB per switch, PAUSE at 11 % free. Each of the eight ports has as much of the rest.
    pub(super) const PAPER: Self = Self {
        multicast: Limit::Guard,
        is_controlled: true,
        pause_bytes: 12_000_000 * 89 / 100 / 8,
        mark_bytes: (5_000, 200_000),
        mark_most: 0.01,
    };

    /// RESUME is sent when so many bytes are fewer.
    const HYSTERESIS: u64 = 5 * MTU;
}

/// One broadcast: who sends what to whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) bytes: u64,
    /// Bytes that a link carries without other traffic between.
    pub(super) train: u64,
    /// Bytes that a rank passes on at once: it has received all of them.
    pub(super) block: u64,
    /// The first one is the source.
    pub(super) ranks: Vec<PlannedRank>,
    pub(super) flows: Vec<PlannedFlow>,
    /// From the last train at a rank until all its GPUs have it.
    pub(super) inside: Picos,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedRank {
    pub(super) host: u32,
    /// Ranks at the same host that it passes blocks to, over NVLink.
    pub(super) near: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedFlow {
    /// The rank that sends.
    pub(super) from: u32,
    /// The rank that receives; `None`: all those at the hosts where the trees end.
    pub(super) to: Option<u32>,
    /// Each train is sent once over each of these.
    pub(super) trees: Vec<Tree>,
    /// The trees from that time on, counted from the start of the broadcast.
    pub(super) refined: Option<(Picos, Vec<Tree>)>,
    /// Counted from the start of the broadcast.
    pub(super) start: Picos,
}

/// What is known of a broadcast at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completion {
    /// From the arrival until the last GPU has the message.
    pub(super) time: Picos,
}

/// Sums over all broadcasts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) events: u64,
    /// Bytes of all copies on all links.
    pub(super) link_bytes: u64,
    /// Bytes that reached a rank over the fabric.
    pub(super) delivered_bytes: u64,
    /// Bytes that an over-covered ToR dropped.
    pub(super) over_bytes: u64,
    pub(super) marked_trains: u64,
    /// Reactions of senders.
    pub(super) cuts: u64,
    pub(super) pauses: u64,
}

const NONE: u32 = u32::MAX;

/// A copy of a train on a link or in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TrainCopy {
    flow: u32,
    tree: u32,
    branch: u16,
    is_marked: bool,
    bytes: u32,
    /// Where the switch keeps it; [`NONE`] at the source.
    stored: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The link is free.
    Free(DirectedLink),
    /// A switch has the first packet of a train.
    Head(TrainCopy),
    /// A host has the last packet of a train.
    Tail(TrainCopy),
    /// A rank has bytes over NVLink.
    Near {
        job: u32,
        rank: u32,
        bytes: u64,
    },
    Cnp(u32),
    /// A flow of the host may send again.
    Wake(u32),
    /// The broadcast begins.
    Start(u32),
}

/// A train in a switch, until the last of its copies is sent.
#[derive(Clone, Copy, Debug, Default)]
struct Stored {
    /// The link that it came from.
    link: DirectedLink,
    bytes: u32,
    copies: u32,
}

#[derive(Clone, Debug, Default)]
struct LinkState {
    busy_until: Picos,
    queue: VecDeque<TrainCopy>,
    queue_bytes: u64,
    /// Bytes from this link in the switch where it ends.
    kept_bytes: u64,
    is_paused: bool,
}

#[derive(Debug, Default)]
struct Host {
    /// Flows that have bytes left, and which of them is next.
    flows: Vec<u32>,
    next: usize,
    wake_at: Picos,
}

#[derive(Debug)]
struct Flow {
    job: u32,
    host: u32,
    /// [`NONE`]: all ranks.
    to: u32,
    trees: Vec<u32>,
    refined: Option<(Picos, Vec<u32>)>,
    /// The tree that the next copy of the current train takes.
    tree: usize,
    sent: u64,
    available: u64,
    next_at: Picos,
    reaction: Option<Box<Reaction>>,
    /// By receiving rank: no CNP until then.
    quiet_until: BTreeMap<u32, Picos>,
}

#[derive(Debug)]
struct Job {
    arrival: Picos,
    bytes: u64,
    train: u64,
    block: u64,
    inside: Picos,
    /// Bytes that each rank has.
    received: Vec<u64>,
    /// Ranks at the same host, and flows, that a rank passes blocks to.
    near: Vec<Vec<u32>>,
    onward: Vec<Vec<u32>>,
    /// By host, for plans with one rank at each host.
    rank_at: Vec<u32>,
    missing: u32,
}

/// All state of a run.
pub(super) struct Network<'f> {
    fabric: &'f Fabric,
    config: Config,
    reaction: ReactionConfig,
    now: Picos,
    number: u64,
    events: BinaryHeap<Reverse<(Picos, u64, Event)>>,
    links: Vec<LinkState>,
    hosts: Vec<Host>,
    trees: Vec<Tree>,
    flows: Vec<Flow>,
    jobs: Vec<Job>,
    stored: Vec<Stored>,
    unused: Vec<u32>,
    completions: Vec<Option<Completion>>,
    totals: Totals,
    rng: ChaCha8Rng,
}

/// Runs broadcasts that arrive at the given times until all are complete. `plan` makes the plan of one when it arrives.
///
/// # Errors
/// Those of `plan`; a broadcast that never completes.
pub(super) fn simulate(
    fabric: &Fabric,
    config: Config,
    seed: u64,
    arrivals: &[Picos],
    mut plan: impl FnMut(usize) -> Result<Plan, Failed>,
) -> Result<(Vec<Completion>, Totals), Failed> {
    let rate = |bits| BitRate::new(bits).ok_or("a rate");
    // DCQCN's paper has 40 Gb/s. Its steps grow with the rate.
    let mut reaction = ReactionConfig {
        additive: rate(100_000_000)?,
        hyper: rate(1_000_000_000)?,
        ..ReactionConfig::new(rate(LINE)?)
    };
    reaction.guard = Nanos::ZERO;
    let mut network = Network {
        fabric,
        config,
        reaction,
        now: 0,
        number: 0,
        events: BinaryHeap::new(),
        links: vec![LinkState::default(); fabric.links()],
        hosts: (0..fabric.hosts()).map(|_| Host::default()).collect(),
        trees: Vec::new(),
        flows: Vec::new(),
        jobs: Vec::new(),
        stored: Vec::new(),
        unused: Vec::new(),
        completions: vec![None; arrivals.len()],
        totals: Totals::default(),
        rng: ChaCha8Rng::seed_from_u64(seed),
    };
    for (index, at) in arrivals.iter().enumerate() {
        network.schedule(*at, Event::Start(index as u32));
    }
    while let Some(Reverse((at, _, event))) = network.events.pop() {
        network.now = at;
        network.totals.events += 1;
        match event {
            Event::Start(index) => network.start(index, plan(index as usize)?),
            _ => network.handle(event),
        }
    }
    let completions: Option<Vec<Completion>> = network.completions.into_iter().collect();
    let completions = completions.ok_or("a broadcast did not complete")?;
    Ok((completions, network.totals))
}

impl Network<'_> {
    fn schedule(&mut self, at: Picos, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Free(link) => self.try_send(link),
            Event::Head(copy) => self.handle_head(copy),
            Event::Tail(copy) => self.handle_tail(copy),
            Event::Near { job, rank, bytes } => self.receive(job, rank, bytes),
            Event::Cnp(flow) => self.handle_cnp(flow),
            Event::Wake(host) => {
                self.hosts[host as usize].wake_at = 0;
                self.pull(host);
            }
            Event::Start(_) => {}
        }
    }

    fn start(&mut self, index: u32, plan: Plan) {
        let job = self.jobs.len() as u32;
        debug_assert_eq!(job, index, "arrivals are in order");
        let ranks = plan.ranks.len();
        let mut state = Job {
            arrival: self.now,
            bytes: plan.bytes,
            train: plan.train,
            block: plan.block,
            inside: plan.inside,
            received: vec![0; ranks],
            near: Vec::new(),
            onward: vec![Vec::new(); ranks],
            rank_at: vec![NONE; self.hosts.len()],
            missing: ranks as u32,
        };
        for (rank, planned) in plan.ranks.into_iter().enumerate() {
            state.rank_at[planned.host as usize] = rank as u32;
            state.near.push(planned.near);
        }
        for flow in plan.flows {
            state.onward[flow.from as usize].push(self.flows.len() as u32);
            // All trees begin at the link of the sender.
            let first = flow.trees.first().and_then(|tree| tree.branches().first());
            let host = first.and_then(|branch| self.fabric.leads_to(branch.link ^ 1));
            let host = host.unwrap_or_default();
            let trees = self.keep(flow.trees);
            let refined = flow
                .refined
                .map(|(after, trees)| (self.now + after, self.keep(trees)));
            self.flows.push(Flow {
                job,
                host,
                to: flow.to.unwrap_or(NONE),
                trees,
                refined,
                tree: 0,
                sent: 0,
                available: 0,
                next_at: self.now + flow.start,
                reaction: None,
                quiet_until: BTreeMap::new(),
            });
        }
        let bytes = state.bytes;
        self.jobs.push(state);
        self.receive(job, 0, bytes);
    }

    fn keep(&mut self, trees: Vec<Tree>) -> Vec<u32> {
        let first = self.trees.len() as u32;
        self.trees.extend(trees);
        (first..self.trees.len() as u32).collect()
    }

    /// A rank has more bytes. It passes on the blocks that are complete now.
    fn receive(&mut self, job: u32, rank: u32, bytes: u64) {
        let now = self.now;
        let state = &mut self.jobs[job as usize];
        let complete = |received: u64| match received == state.bytes {
            true => received,
            false => received / state.block * state.block,
        };
        let before = state.received[rank as usize];
        let after = before + bytes;
        let (passed, available) = (complete(before), complete(after));
        state.received[rank as usize] = after;
        debug_assert!(after <= state.bytes, "no rank has a byte twice");
        if after == state.bytes {
            state.missing -= 1;
            if state.missing == 0 {
                self.completions[job as usize] = Some(Completion {
                    time: now + state.inside - state.arrival,
                });
            }
        }
        if available == passed {
            return;
        }
        let block = state.block;
        let near = std::mem::take(&mut state.near[rank as usize]);
        let onward = std::mem::take(&mut state.onward[rank as usize]);
        for next in &near {
            // One block after the other.
            let mut left = available - passed;
            let mut at = now;
            while left > 0 {
                let bytes = left.min(block);
                left -= bytes;
                at += nvlink(bytes);
                self.schedule(
                    at,
                    Event::Near {
                        job,
                        rank: *next,
                        bytes,
                    },
                );
            }
        }
        for number in &onward {
            let flow = &mut self.flows[*number as usize];
            let host = flow.host;
            if flow.sent == flow.available {
                self.hosts[host as usize].flows.push(*number);
            }
            flow.available = available;
            self.pull(host);
        }
        let state = &mut self.jobs[job as usize];
        state.near[rank as usize] = near;
        state.onward[rank as usize] = onward;
    }

    /// Sends the next copy of a flow of this host, if the link is free: flows take turns.
    fn pull(&mut self, host: u32) {
        let link = self.fabric.uplink(host);
        let state = &self.links[link as usize];
        if state.busy_until > self.now || state.is_paused {
            return;
        }
        let here = &mut self.hosts[host as usize];
        let count = here.flows.len();
        let mut earliest = Picos::MAX;
        let mut chosen = None;
        for step in 0..count {
            let index = (here.next + step) % count;
            let at = self.flows[here.flows[index] as usize].next_at;
            if at <= self.now {
                chosen = Some(index);
                break;
            }
            earliest = earliest.min(at);
        }
        let Some(index) = chosen else {
            if earliest < Picos::MAX && (here.wake_at == 0 || earliest < here.wake_at) {
                here.wake_at = earliest;
                self.schedule(earliest, Event::Wake(host));
            }
            return;
        };
        let number = here.flows[index];
        here.next = index + 1;
        let (copy, is_last) = self.next_copy(number);
        if is_last {
            let here = &mut self.hosts[host as usize];
            here.flows.remove(index);
            here.next = index;
        }
        self.send(link, copy);
    }

    /// The next copy of a flow, and whether the flow has no more bytes for now. Sets the time of the copy after it.
    fn next_copy(&mut self, number: u32) -> (TrainCopy, bool) {
        let now = self.now;
        let flow = &mut self.flows[number as usize];
        let job = &self.jobs[flow.job as usize];
        if flow.tree == 0
            && let Some((at, _)) = flow.refined
            && now >= at
            && let Some((_, trees)) = flow.refined.take()
        {
            flow.trees = trees;
        }
        let bytes = job.train.min(flow.available - flow.sent);
        let copy = TrainCopy {
            flow: number,
            tree: flow.trees[flow.tree],
            branch: 0,
            is_marked: false,
            bytes: bytes as u32,
            stored: NONE,
        };
        flow.tree += 1;
        if flow.tree == flow.trees.len() {
            flow.tree = 0;
            flow.sent += bytes;
        }
        flow.next_at = now;
        if let Some(reaction) = &mut flow.reaction {
            let time = Nanos(now / 1000);
            reaction.advance(time);
            reaction.count(time, bytes);
            let rate = reaction.rate().bits_per_second();
            flow.next_at += (u128::from(bytes * 8) * u128::from(SECOND) / u128::from(rate)) as Picos;
        }
        (copy, flow.sent == flow.available)
    }

    /// Begins to send a copy. The link is free.
    fn send(&mut self, link: DirectedLink, copy: TrainCopy) {
        let bytes = u64::from(copy.bytes);
        let end = self.now + bytes * BYTE;
        self.links[link as usize].busy_until = end;
        self.totals.link_bytes += bytes;
        self.schedule(end, Event::Free(link));
        match self.fabric.leads_to(link) {
            Some(_) => self.schedule(end + DELAY, Event::Tail(copy)),
            None => self.schedule(self.now + DELAY + bytes.min(MTU) * BYTE, Event::Head(copy)),
        }
        if copy.stored != NONE {
            self.release(copy.stored);
        }
    }

    /// One of the copies of a train has left.
    fn release(&mut self, stored: u32) {
        let entry = &mut self.stored[stored as usize];
        entry.copies -= 1;
        if entry.copies > 0 {
            return;
        }
        let Stored { link, bytes, .. } = *entry;
        self.unused.push(stored);
        let state = &mut self.links[link as usize];
        state.kept_bytes -= u64::from(bytes);
        if state.is_paused && state.kept_bytes + Config::HYSTERESIS <= self.config.pause_bytes {
            state.is_paused = false;
            // Not within this call: the link that is sending now comes first.
            self.schedule(self.now, Event::Free(link));
        }
    }

    fn try_send(&mut self, link: DirectedLink) {
        if self.fabric.is_uplink(link) {
            if let Some(host) = self.fabric.leads_to(link ^ 1) {
                self.pull(host);
            }
            return;
        }
        let state = &mut self.links[link as usize];
        if state.busy_until > self.now || state.is_paused {
            return;
        }
        if let Some(copy) = state.queue.pop_front() {
            state.queue_bytes -= u64::from(copy.bytes);
            self.send(link, copy);
        }
    }

    /// A switch has the first packet of a train: copies are queued at the links behind.
    fn handle_head(&mut self, copy: TrainCopy) {
        let branch = self.trees[copy.tree as usize].branch(copy.branch);
        let behind = branch.behind();
        if behind.is_empty() {
            self.totals.over_bytes += u64::from(copy.bytes);
            return;
        }
        let entry = Stored {
            link: branch.link,
            bytes: copy.bytes,
            copies: behind.len() as u32,
        };
        let stored = match self.unused.pop() {
            Some(stored) => stored,
            None => {
                self.stored.push(Stored::default());
                self.stored.len() as u32 - 1
            }
        };
        self.stored[stored as usize] = entry;
        self.links[branch.link as usize].kept_bytes += u64::from(copy.bytes);
        for index in behind {
            let link = self.trees[copy.tree as usize].branch(index).link;
            let is_marked = copy.is_marked || self.marks(link, copy.bytes.into());
            self.totals.marked_trains += u64::from(is_marked && !copy.is_marked);
            let state = &mut self.links[link as usize];
            state.queue_bytes += u64::from(copy.bytes);
            state.queue.push_back(TrainCopy {
                branch: index,
                is_marked,
                stored,
                ..copy
            });
            self.try_send(link);
        }
        let state = &mut self.links[branch.link as usize];
        if !state.is_paused && state.kept_bytes >= self.config.pause_bytes {
            state.is_paused = true;
            self.totals.pauses += 1;
        }
    }

    /// Whether a packet of a train is marked that comes to the queue of this link now.
    fn marks(&mut self, link: DirectedLink, bytes: u64) -> bool {
        let state = &self.links[link as usize];
        let queued = state.queue_bytes + state.busy_until.saturating_sub(self.now) / BYTE;
        let (least, most) = self.config.mark_bytes;
        if queued <= least {
            return false;
        }
        if queued >= most {
            return true;
        }
        let of_packet = self.config.mark_most * (queued - least) as f64 / (most - least) as f64;
        let packets = bytes.div_ceil(MTU) as i32;
        self.rng.random_bool(1.0 - (1.0 - of_packet).powi(packets))
    }

    /// A host has a train.
    fn handle_tail(&mut self, copy: TrainCopy) {
        let (job, to) = {
            let flow = &self.flows[copy.flow as usize];
            (flow.job, flow.to)
        };
        let rank = match to {
            NONE => {
                let branch = self.trees[copy.tree as usize].branch(copy.branch);
                let host = self.fabric.leads_to(branch.link).unwrap_or(0);
                self.jobs[job as usize].rank_at[host as usize]
            }
            to => to,
        };
        self.totals.delivered_bytes += u64::from(copy.bytes);
        if copy.is_marked && self.config.is_controlled {
            let is_limited = to != NONE || self.config.multicast == Limit::Receivers;
            let quiet = self.flows[copy.flow as usize]
                .quiet_until
                .entry(rank)
                .or_default();
            if *quiet <= self.now {
                if is_limited {
                    *quiet = self.now + INTERVAL;
                }
                self.schedule(self.now + CNP_DELAY, Event::Cnp(copy.flow));
            }
        }
        self.receive(job, rank, copy.bytes.into());
    }

    fn handle_cnp(&mut self, number: u32) {
        let flow = &mut self.flows[number as usize];
        let is_guarded = flow.to == NONE && self.config.multicast == Limit::Guard;
        if flow.sent == self.jobs[flow.job as usize].bytes {
            return;
        }
        let config = ReactionConfig {
            guard: Nanos(if is_guarded { INTERVAL / 1000 } else { 0 }),
            ..self.reaction
        };
        let reaction = flow
            .reaction
            .get_or_insert_with(|| Box::new(Reaction::new(config)));
        self.totals.cuts += u64::from(reaction.handle_cnp(Nanos(self.now / 1000)));
    }
}

impl Totals {
    pub(super) fn add(&mut self, other: Self) {
        self.events += other.events;
        self.link_bytes += other.link_bytes;
        self.delivered_bytes += other.delivered_bytes;
        self.over_bytes += other.over_bytes;
        self.marked_trains += other.marked_trains;
        self.cuts += other.cuts;
        self.pauses += other.pauses;
    }
}
