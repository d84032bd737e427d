//! All members behind one port.

use castnet_wire::icrc::Shift;
use castnet_wire::{Batch, EmitError, FrameBuf, Nanos};
use serde::Serialize;

use crate::bucket::Bucket;
use crate::class::{Class, FLOWS_TRIED_MAX, QUANTUM, Scheduler};
use crate::counts::{Counts, FlowCounts};
use crate::flow::{Flow, Kind};
use crate::latency::{Latency, Times};
use crate::plan::{Plan, PlanError};
use crate::scenario::{Check, Pattern};
use crate::seen::Seen;
use crate::template::Shifts;

const _: () = assert!(size_of::<Shift>() == 4096, "templates share their operators");

/// Plays the members that a plan assigns to one port. `B` is the type of its frames.
pub struct Host<B> {
    flows: Vec<Flow<B>>,
    names: Vec<(String, &'static str, Pattern)>,
    /// Index of the flow by group address and member QPN, sorted.
    by_address: Vec<((u32, u32), usize)>,
    /// The last match: frames of one flow often come in sequence.
    last: ((u32, u32), usize),
    /// Receivers that answer other patterns. Answers are sent first and do not count towards shares.
    answering: Class,
    driving: Vec<Class>,
    /// Flows that both drive and answer.
    ranks: Vec<usize>,
    scheduler: Scheduler,
    counts: Counts,
    times: Option<Times>,
    check: Check,
    name: String,
    stopped: bool,
}

/// Report of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowReport {
    /// Name of the host.
    pub host: String,
    /// Name of the group.
    pub group: String,
    /// Pattern of the flow.
    pub pattern: Pattern,
    /// `source`, `receiver` or `rank`.
    pub role: &'static str,
    /// Counters of the flow.
    #[serde(flatten)]
    pub counts: FlowCounts,
}

/// Report of a host.
#[derive(Clone, Debug)]
pub struct HostReport {
    /// Name of the host.
    pub name: String,
    /// Totals of the host.
    pub counts: Counts,
    /// Reports of its flows.
    pub flows: Vec<FlowReport>,
    times: Option<Times>,
}

impl HostReport {
    /// Latency of the data of all these hosts; `None` if no data carried timestamps.
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
    /// The host at index `place` of the plan. `gather` allocates a frame with these bytes in the memory of `B`. Fails
    /// if the index is out of range, or no buffer is free or long enough.
    pub fn new(plan: &Plan, place: usize, gather: impl FnMut(&[u8]) -> Option<B>) -> Result<Self, PlanError> {
        let mut gather = gather;
        let host = plan.hosts.get(place).ok_or(PlanError::NoHost(place))?;
        let mut shifts = Shifts::default();
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
            answering,
            driving: driving.into_iter().map(|(_, class)| class).collect(),
            ranks,
            scheduler: Scheduler::default(),
            counts: Counts::default(),
            times: Times::new(),
            check: plan.scenario.check,
            name: host.name.clone(),
            stopped: false,
        })
    }

    /// Disables all windows: the host sends without waiting for acknowledgements.
    pub fn unbind(&mut self) {
        self.flows.iter_mut().for_each(Flow::unbind);
    }

    /// Ends new traffic. Received frames are still answered, and refused data is retransmitted.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Totals so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Adds frames to `batch` until it is full or nothing is to be sent. `make` replicates a frame, with the first
    /// [`crate::HEADER`] bytes and the trailer private to the replica.
    pub fn fill(&mut self, now: Nanos, batch: &mut Batch<B>, mut make: impl FnMut(&B) -> Option<B>) {
        let before = batch.len();
        let stopped = self.stopped;
        while !batch.is_full()
            && serve(
                &mut self.answering,
                &mut self.flows,
                now,
                stopped,
                batch,
                &mut make,
            )
            .0 > 0
        {}
        for rank in 0..self.ranks.len() {
            let flow = &mut self.flows[self.ranks[rank]];
            while !batch.is_full()
                && let Some(frame) = flow.answer(&mut make)
            {
                batch.push(frame);
            }
        }
        let mut idle = 0;
        while !batch.is_full()
            && let Some(chosen) = self.scheduler.choose(&mut self.driving, idle)
        {
            let class = &mut self.driving[chosen];
            let (served, new) = serve(class, &mut self.flows, now, stopped, batch, &mut make);
            self.counts.driven += new;
            if served == 0 {
                idle |= 1 << chosen;
                self.scheduler.skip_idle(&mut self.driving[chosen]);
            }
        }
        for frame in &batch[before..] {
            self.counts.sent += 1;
            self.counts.sent_bytes += frame.length() as u64;
        }
    }

    /// Handles a received frame.
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

    /// The report of the host.
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

/// Sends up to a quantum of frames of one flow. Returns the number of frames, and of new ones.
#[inline]
fn serve<B: FrameBuf>(
    class: &mut Class,
    flows: &mut [Flow<B>],
    now: Nanos,
    stopped: bool,
    batch: &mut Batch<B>,
    make: &mut impl FnMut(&B) -> Option<B>,
) -> (usize, u64) {
    let (mut served, mut driven) = (0, 0);
    for _ in 0..class.flows.len().min(FLOWS_TRIED_MAX) {
        let flow = &mut flows[class.flows[class.cursor]];
        while served < QUANTUM && !batch.is_full() {
            if class.bucket.as_mut().is_some_and(|bucket| !bucket.has(now)) {
                break;
            }
            let spent = class.left == Some(0);
            let Some((frame, new)) = flow.next(now, stopped, spent, make) else {
                break;
            };
            if new {
                driven += 1;
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
        class.next_flow();
        if served > 0 {
            class.record(served);
            break;
        }
    }
    (served, driven)
}

impl From<EmitError> for PlanError {
    fn from(error: EmitError) -> Self {
        Self::Frame(error.to_string())
    }
}
