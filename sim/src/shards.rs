//! Runs on several threads.
//!
//! The nodes are divided into shards, each with its own events and thread. A frame needs some time to get to another shard, at least that of
//! the shortest link between shards: the lookahead. So what happens in one shard within a window of that length changes nothing in another
//! shard before the next window, and the threads meet only between windows, where each gets the frames that others have sent to it.
//!
//! The results are those of one thread. The order of events at the same node does not depend on shards, because their keys do not, and those
//! with the same key come from one node. The order of events at different nodes has no effect, with three exceptions, which keep a simulation
//! on one thread: an observer, a trace, and links whose faults draw random numbers from one generator.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use castnet_wire::Nanos;

use crate::link::Direction;
use crate::node::{Node, NodeId};
use crate::queue::{EventQueue, Key};
use crate::simulation::{End, Event, Simulation};
use crate::watch::Watch;

/// Virtual time between decisions on whether to use threads.
const SPAN: Nanos = Nanos::from_micros(100);
/// Windows for which it is worth while to divide the simulation.
const WINDOWS_MIN: u64 = 16;

/// A frame for another shard.
pub(crate) struct Mail {
    pub(crate) key: Key,
    pub(crate) event: Event,
}

/// How a simulation is divided.
#[derive(Default)]
pub(crate) struct Shards {
    count: usize,
    /// The shard of each node.
    of_node: Vec<usize>,
    /// Events of the last [`SPAN`].
    events: u64,
    /// Events per window from which threads save more time than they cost.
    events_min: u64,
    /// How often threads ran.
    runs: u64,
}

impl Shards {
    /// Divides nodes among at most `most` shards. Hosts are in the shard of their switch, since their links may have no delay. These switches
    /// are dealt out in turn, since hosts near each other often have the same load. Each other switch is where most of its neighbours are.
    pub(crate) fn new(most: usize, nodes: &[Node], directions: &[Direction]) -> Self {
        if most < 2 {
            return Self::default();
        }
        let mut neighbours = vec![Vec::new(); nodes.len()];
        for Direction { from, to, .. } in directions {
            neighbours[from.0.0].push(to.0.0);
        }
        let mut shards = vec![None; nodes.len()];
        let mut links = vec![0; most];
        let mut dealt = (0..most).cycle();
        for (switch, near) in neighbours.iter().enumerate() {
            let hosts = near.iter().copied().filter(|node| nodes[*node].host().is_some());
            let hosts: Vec<usize> = hosts.collect();
            if nodes[switch].switch().is_some() && !hosts.is_empty() {
                let shard = dealt.next().unwrap_or_default();
                links[shard] += near.len();
                hosts
                    .iter()
                    .chain([&switch])
                    .for_each(|node| shards[*node] = Some(shard));
            }
        }
        // Each iteration goes one link further from the hosts.
        loop {
            let before = shards.iter().flatten().count();
            for node in 0..nodes.len() {
                let near = |shard| {
                    neighbours[node]
                        .iter()
                        .filter(|near| shards[**near] == Some(shard))
                        .count()
                };
                let best = (0..most).max_by_key(|shard| (near(*shard), std::cmp::Reverse(links[*shard])));
                if let Some(shard) = best.filter(|shard| shards[node].is_none() && near(*shard) > 0) {
                    links[shard] += neighbours[node].len();
                    shards[node] = Some(shard);
                }
            }
            if shards.iter().flatten().count() == before {
                break;
            }
        }
        let of_node: Vec<usize> = shards.into_iter().map(Option::unwrap_or_default).collect();
        Self {
            count: of_node.iter().max().map_or(0, |last| last + 1),
            of_node,
            events: 0,
            events_min: 512,
            runs: 0,
        }
    }

    fn ends(&self, direction: &Direction) -> [usize; 2] {
        [direction.from, direction.to].map(|(NodeId(node), _)| self.of_node[node])
    }
}

/// What shards give to each other before a window.
struct Exchange {
    /// When the next event of each shard is, with that of its mail.
    next: Vec<AtomicU64>,
    /// By sender and recipient.
    mail: Vec<Vec<Mutex<Vec<Mail>>>>,
}

impl Exchange {
    fn new(shards: usize) -> Self {
        let row = |_| (0..shards).map(|_| Mutex::default()).collect();
        Self {
            next: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            mail: (0..shards).map(row).collect(),
        }
    }
}

/// Where threads wait for each other. A window takes a millisecond at most, so a thread that waits keeps its processor while no other thread
/// needs it.
#[derive(Default)]
struct Barrier {
    waiting: AtomicUsize,
    /// How often all have met.
    met: AtomicUsize,
    is_broken: AtomicBool,
}

impl Barrier {
    /// Checks of the barrier before a thread offers its processor to others.
    const SPINS: u32 = 1000;

    fn wait(&self, threads: usize) {
        let met = self.met.load(Ordering::Relaxed);
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.waiting.store(0, Ordering::Relaxed);
            self.met.store(met + 1, Ordering::Release);
        }
        let mut spins = 0;
        while self.met.load(Ordering::Acquire) == met {
            assert!(
                !self.is_broken.load(Ordering::Relaxed),
                "another thread has panicked"
            );
            spins += 1;
            match spins < Self::SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    }
}

/// A thread that others wait for.
struct Present<'a>(&'a Barrier);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

impl<W: Watch> Simulation<W> {
    /// Handles events until none is left, or until `deadline`. On several threads ([`SimConfig::threads`](crate::SimConfig::threads)) while
    /// that is faster, if nothing observes frames, the trace is off, and no link has faults.
    pub fn run(&mut self, deadline: Nanos) -> End {
        while W::SEES_NOTHING
            && self.shards.count > 1
            && !self.trace.is_on()
            && !self.has_chance
            && let Some(start) = self.next_at(deadline).filter(|start| *start < deadline)
        {
            let action = self.actions.keys().next().map(|key| key.at);
            let end = action.into_iter().fold(deadline.min(start + SPAN), Nanos::min);
            let (span, before) = (end.since(start).0, self.events);
            // First what takes no time, since most networks have few events.
            if self.shards.events >= self.shards.events_min * WINDOWS_MIN
                && let Some(lookahead) = self.lookahead()
                && self.shards.events * lookahead.0 >= self.shards.events_min * SPAN.0
                && span >= WINDOWS_MIN * lookahead.0
            {
                self.run_shards(end, lookahead);
            }
            self.run_until(end, |_| false);
            self.shards.events = (self.events - before) * SPAN.0 / span.max(1);
        }
        self.run_until(deadline, |_| false)
    }

    /// The least time that a frame needs to get to another shard. `None`: none, or there are no frames between shards.
    fn lookahead(&self) -> Option<Nanos> {
        let between = self.directions.iter().filter(|direction| {
            let [from, to] = self.shards.ends(direction);
            from != to
        });
        let times = between.map(|direction| direction.profile.delay + direction.profile.serialization(0));
        times.min().filter(|lookahead| *lookahead > Nanos::ZERO)
    }

    /// Handles events before `end`.
    fn run_shards(&mut self, end: Nanos, lookahead: Nanos) {
        let count = self.shards.count;
        let mut shards = self.divide();
        // Two, in turn: a shard may be a window ahead of another one, which still reads.
        let exchanges = [Exchange::new(count), Exchange::new(count)];
        let barrier = Barrier::default();
        std::thread::scope(|scope| {
            let (exchanges, barrier) = (&exchanges, &barrier);
            let mut shards = shards.iter_mut().enumerate();
            let first = shards.next();
            for (own, shard) in shards {
                scope.spawn(move || shard.run_windows(own, exchanges, barrier, end, lookahead));
            }
            if let Some((own, shard)) = first {
                shard.run_windows(own, exchanges, barrier, end, lookahead);
            }
        });
        self.unite(shards);
        self.shards.runs += 1;
    }

    fn run_windows(
        &mut self,
        own: usize,
        exchanges: &[Exchange; 2],
        barrier: &Barrier,
        end: Nanos,
        lookahead: Nanos,
    ) {
        let _present = Present(barrier);
        for exchange in exchanges.iter().cycle() {
            let mut next = self.queue.earliest().map(|at| at.0);
            for (outbox, mail) in self.outboxes.iter_mut().zip(&exchange.mail[own]) {
                next = next
                    .into_iter()
                    .chain(outbox.iter().map(|mail| mail.key.at.0))
                    .min();
                core::mem::swap(outbox, &mut *mail.lock().unwrap_or_else(PoisonError::into_inner));
            }
            exchange.next[own].store(next.unwrap_or(u64::MAX), Ordering::Relaxed);
            barrier.wait(self.outboxes.len());
            for mail in exchange.mail.iter().map(|of_sender| &of_sender[own]) {
                let mut mail = mail.lock().unwrap_or_else(PoisonError::into_inner);
                mail.drain(..)
                    .for_each(|Mail { key, event }| self.queue.push(key, event));
            }
            let next = exchange
                .next
                .iter()
                .map(|next| Nanos(next.load(Ordering::Relaxed)));
            let start = next.min().unwrap_or(end);
            if start >= end {
                break;
            }
            // The window is at least a nanosecond long.
            let last = Nanos(end.min(start + lookahead).0 - 1);
            while self.queue.next(last).is_some() {
                self.step(last);
            }
        }
    }

    fn divide(&mut self) -> Vec<Simulation> {
        let count = self.shards.count;
        let mut shards: Vec<Simulation> = (0..count).map(|_| self.shard(count)).collect();
        for (number, shard) in shards.iter_mut().enumerate() {
            shard.nodes.resize_with(self.nodes.len(), || Node::ELSEWHERE);
            shard.directions.clone_from(&self.directions);
            for direction in &mut shard.directions {
                let [from, to] = self.shards.ends(direction);
                direction.shard = (from == number && to != number).then_some(to);
            }
        }
        self.swap_nodes(&mut shards);
        let mut queue = core::mem::replace(&mut self.queue, EventQueue::new());
        while let Some((key, event)) = queue.pop() {
            let NodeId(node) = self.recipient(&event);
            shards[self.shards.of_node[node]].queue.push(key, event);
        }
        shards
    }

    fn unite(&mut self, mut shards: Vec<Simulation>) {
        self.swap_nodes(&mut shards);
        for (number, direction) in self.directions.iter_mut().enumerate() {
            let [from, to] = self.shards.ends(direction);
            let delivered = shards[to].directions[number].stats.delivered;
            core::mem::swap(direction, &mut shards[from].directions[number]);
            direction.stats.delivered = delivered;
            direction.shard = None;
        }
        for mut shard in shards {
            self.now = self.now.max(shard.now);
            self.events += shard.events;
            shard
                .storms
                .into_iter()
                .for_each(|storm| self.record_storm(storm));
            while let Some((key, event)) = shard.queue.pop() {
                self.queue.push(key, event);
            }
        }
    }

    /// Moves the nodes to their shards, or back.
    fn swap_nodes(&mut self, shards: &mut [Simulation]) {
        for (node, shard) in self.shards.of_node.iter().enumerate() {
            core::mem::swap(&mut self.nodes[node], &mut shards[*shard].nodes[node]);
        }
    }
}
