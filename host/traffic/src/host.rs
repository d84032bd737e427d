//! All members behind one port.

use castnet_wire::icrc::Shift;
use castnet_wire::{Batch, EmitError, FrameBuf, Nanos};
use serde::Serialize;

use crate::bucket::Bucket;
use crate::class::{ASKED, Class, QUANTUM, Turns};
use crate::counts::{Counts, FlowCounts};
use crate::flow::{Flow, Kind};
use crate::latency::{Latency, Times};
use crate::plan::{Plan, PlanError};
use crate::scenario::{Check, Pattern};
use crate::seen::Seen;
use crate::template::Shifts;

const _: () = assert!(size_of::<Shift>() == 4096, "templates share their operators");

/// Plays the members that a plan puts behind one port. Frames are held as `B`s.
pub struct Host<B> {
    flows: Vec<Flow<B>>,
    names: Vec<(String, &'static str, Pattern)>,
    /// By address of the group and QP of the member, sorted.
    by_address: Vec<((u32, u32), usize)>,
    /// What was found last: frames come in runs.
    last: ((u32, u32), usize),
    /// Receivers of what others' patterns send: answers come first, and have no share.
    answering: Vec<Class>,
    driving: Vec<Class>,
    /// Flows that drive and answer as well.
    ranks: Vec<usize>,
    turns: Turns,
    counts: Counts,
    times: Option<Times>,
    check: Check,
    name: String,
    stopped: bool,
}

/// What a flow came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowReport {
    /// The host.
    pub host: String,
    /// The group.
    pub group: String,
    /// Of what.
    pub pattern: Pattern,
    /// `source`, `receiver` or `rank`.
    pub role: &'static str,
    /// What it has seen.
    #[serde(flatten)]
    pub counts: FlowCounts,
}

/// What a host came to.
#[derive(Clone, Debug)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// Its totals.
    pub counts: Counts,
    /// Its flows.
    pub flows: Vec<FlowReport>,
    times: Option<Times>,
}

impl HostReport {
    /// How long the data of all these hosts took. `None` where none had a time in it.
    pub fn latency<'a>(hosts: impl IntoIterator<Item = &'a Self>) -> Option<Latency> {
        let mut all = Times::new()?;
        hosts
            .into_iter()
            .filter_map(|h| h.times.as_ref())
            .for_each(|t| all.add(t));
        all.summary()
    }
}

impl<B: FrameBuf> Host<B> {
    /// The host at a place of the plan. `gather` makes a frame of these bytes in the memory in which `B`s live.
    ///
    /// # Errors
    /// No such place; no buffer, or none that is long enough.
    pub fn new(plan: &Plan, place: usize, gather: impl FnMut(&[u8]) -> Option<B>) -> Result<Self, PlanError> {
        let mut gather = gather;
        let host = plan.hosts.get(place).ok_or(PlanError::NoHost(place))?;
        let mut shifts = Shifts::new();
        let (mut flows, mut names, mut by_address, mut ranks) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut answering = Class::new(1);
        let each = plan.share(place, Pattern::Aggregate).each;
        let mut driving: Vec<(Pattern, Class)> = Vec::new();
        for (index, flow) in host.flows.iter().enumerate() {
            let mut made = flow.make(&plan.scenario, &mut shifts, &mut gather)?;
            by_address.push(((flow.mcst_id.0.to_bits(), flow.qpn.value()), index));
            names.push((flow.group.clone(), flow.role.name(), flow.pattern));
            if let Kind::Rank(rank) = &mut made.kind {
                ranks.push(index);
                if let Some(packets) = each {
                    rank.limit(packets);
                }
            }
            if flow.is_silent() {
                flows.push(made);
                continue;
            }
            if flow.drives() {
                let class = match driving.iter().position(|(pattern, _)| *pattern == flow.pattern) {
                    Some(found) => &mut driving[found].1,
                    None => {
                        let share = plan.share(place, flow.pattern);
                        let mut class = Class::new(share.weight);
                        class.left = share.frames;
                        class.bits = share.bits;
                        class.bucket = share.rate.map(|rate| {
                            let frame = if share.bits { 8.0 * 4200.0 } else { 1.0 };
                            Bucket::new(rate, 32.0 * frame)
                        });
                        driving.push((flow.pattern, class));
                        &mut driving.last_mut().ok_or(PlanError::NoHost(place))?.1
                    }
                };
                class.flows.push(index);
            } else {
                answering.flows.push(index);
            }
            flows.push(made);
        }
        by_address.sort_unstable();
        Ok(Self {
            flows,
            names,
            by_address,
            last: ((0, 0), usize::MAX),
            answering: if answering.flows.is_empty() {
                Vec::new()
            } else {
                vec![answering]
            },
            driving: driving.into_iter().map(|(_, class)| class).collect(),
            ranks,
            turns: Turns::default(),
            counts: Counts::default(),
            times: Times::new(),
            check: plan.scenario.check,
            name: host.name.clone(),
            stopped: false,
        })
    }

    /// From now on nothing is waited for: it sends as if all that it sends were answered at once.
    pub fn unbind(&mut self) {
        self.flows.iter_mut().for_each(Flow::unbind);
    }

    /// Nothing new from now on; what came is still answered, and what was refused is sent again.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Its totals so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Adds frames to `batch` until it is full or nothing is to be sent. `make` makes a replica of a frame whose first
    /// [`crate::template::HEADER`] bytes and trailer are its own.
    pub fn fill(&mut self, now: Nanos, batch: &mut Batch<B>, mut make: impl FnMut(&B) -> Option<B>) {
        let before = batch.len();
        for class in 0..self.answering.len() {
            while !batch.is_full() && self.serve_answers(class, now, batch, &mut make) > 0 {}
        }
        for rank in 0..self.ranks.len() {
            let flow = &mut self.flows[self.ranks[rank]];
            while !batch.is_full()
                && let Some(frame) = flow.answer(&mut make)
            {
                batch.push(frame);
            }
        }
        let mut silent = 0;
        while !batch.is_full()
            && let Some(chosen) = self.turns.choose(&mut self.driving, silent)
        {
            if self.serve(chosen, now, batch, &mut make) == 0 {
                silent |= 1 << chosen;
                self.turns.silent(&mut self.driving[chosen]);
            }
        }
        for frame in &batch[before..] {
            self.counts.sent += 1;
            self.counts.sent_bytes += frame.length() as u64;
        }
    }

    /// Up to a quantum of answers of one flow.
    fn serve_answers(
        &mut self,
        class: usize,
        now: Nanos,
        batch: &mut Batch<B>,
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> usize {
        let class = &mut self.answering[class];
        let mut served = 0;
        for _ in 0..class.flows.len().min(ASKED) {
            let flow = &mut self.flows[class.flows[class.cursor]];
            while served < QUANTUM
                && !batch.is_full()
                && let Some((frame, _)) = flow.next(now, self.stopped, false, make)
            {
                batch.push(frame);
                served += 1;
            }
            class.turn();
            if served > 0 {
                break;
            }
        }
        served
    }

    /// Up to a quantum of frames of one pattern, all of one flow.
    fn serve(
        &mut self,
        chosen: usize,
        now: Nanos,
        batch: &mut Batch<B>,
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> usize {
        let class = &mut self.driving[chosen];
        let mut served = 0;
        for _ in 0..class.flows.len().min(ASKED) {
            let flow = &mut self.flows[class.flows[class.cursor]];
            while served < QUANTUM && !batch.is_full() {
                if class.bucket.as_mut().is_some_and(|bucket| !bucket.has(now)) {
                    break;
                }
                let spent = class.left == Some(0);
                let Some((frame, new)) = flow.next(now, self.stopped, spent, make) else {
                    break;
                };
                if new {
                    self.counts.driven += 1;
                    if let Some(left) = &mut class.left {
                        *left = left.saturating_sub(1);
                    }
                }
                if let Some(bucket) = &mut class.bucket {
                    bucket.take(if class.bits {
                        8.0 * frame.length() as f64
                    } else {
                        1.0
                    });
                }
                batch.push(frame);
                served += 1;
            }
            class.turn();
            if served > 0 {
                class.served(served);
                break;
            }
        }
        served
    }

    /// A frame that came.
    #[inline]
    pub fn take(&mut self, now: Nanos, frame: &impl FrameBuf) {
        self.counts.received += 1;
        self.counts.received_bytes += frame.length() as u64;
        let found =
            Seen::read(frame.head()).and_then(|seen| Some((seen, self.find((seen.src, seen.qpn.value()))?)));
        let Some((seen, index)) = found else {
            self.counts.others += 1;
            return;
        };
        let check = self.check.wants(self.counts.received);
        self.flows[index].take(now, &seen, frame, check, self.times.as_mut());
    }

    #[inline]
    fn find(&mut self, address: (u32, u32)) -> Option<usize> {
        if self.last.0 == address && self.last.1 != usize::MAX {
            return Some(self.last.1);
        }
        let at = self.by_address.binary_search_by_key(&address, |(a, _)| *a).ok()?;
        let index = self.by_address[at].1;
        self.last = (address, index);
        Some(index)
    }

    /// What it came to.
    pub fn report(&self) -> HostReport {
        let flows = self
            .flows
            .iter()
            .zip(&self.names)
            .map(|(flow, (group, role, pattern))| FlowReport {
                host: self.name.clone(),
                group: group.clone(),
                pattern: *pattern,
                role,
                counts: flow.counts,
            });
        HostReport {
            name: self.name.clone(),
            counts: self.counts,
            flows: flows.collect(),
            times: self.times.clone(),
        }
    }
}

impl From<EmitError> for PlanError {
    fn from(error: EmitError) -> Self {
        Self::Frame(error.to_string())
    }
}
