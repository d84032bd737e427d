//! Live traces and captured frames for subscribers, in bounded queues that the worker drains. Without subscribers the cost is a branch
//! per batch. With subscribers, frames that one may want take the slow path and may cause allocations; for others port and destination
//! are checked. A capture copies the bytes that it keeps, and nothing else. Only frames that a live trace may want are recorded: that
//! takes time for the paths of a group.

use core::net::Ipv4Addr;
use std::collections::VecDeque;

use castnet_wire::ethernet::{ETHERTYPE_AT, ETHERTYPE_IPV4};
use castnet_wire::{DropReason, Ethernet, FrameBuf, FrameFilter, Ipv4, McstId, Nanos, PortId};

use crate::observe::addresses::{Addresses, addresses};
use crate::observe::trace::{Observer, Recorder, Step, Trace, Verdict};
use crate::port_set::PortSet;

const QUEUE_MAX: usize = 1024;
/// Steps of traces, and frames in them, that an iteration records before it leaves further traces out: for a subscriber of the frames of a
/// port, so that no port and no other subscriber uses up its share, and in all, about a millisecond.
const RECORDED_AT_PORT_MAX: usize = 64;
const RECORDED_MAX: usize = 2048;

/// Most subscribers of an engine, live traces and captures together.
pub const TAPS_MAX: usize = 8;

/// A subscriber's number, below [`TAPS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TapId(u8);

impl TapId {
    /// All subscriber numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..TAPS_MAX as u8).map(Self)
    }

    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The destination that a received frame must have, so that it or, unless `incoming`, a frame that it causes is wanted; `None` for any.
/// The destination of a group's frame is the address of the group.
fn destination(filter: &FrameFilter, incoming: bool) -> Option<Ipv4Addr> {
    let group = filter.group.map(|group| group.0);
    group.or(filter.dst.filter(|_| incoming))
}

/// Excludes received frames that need not be recorded.
#[derive(Clone, Copy, Debug, Default)]
struct Gate {
    ports: PortSet,
    /// Destinations of frames that may be wanted: the first `count` entries. Without a count, all.
    addresses: [[u8; 4]; TAPS_MAX],
    count: Option<u8>,
}

impl Gate {
    /// False only for IPv4 without tags and options to other addresses.
    #[inline(always)]
    fn passes(&self, head: &[u8]) -> bool {
        let (Some(count), Some(first)) = (self.count, head.first_chunk::<{ Ethernet::LEN + Ipv4::LEN }>())
        else {
            return true;
        };
        let [.., a, b, c, d] = *first;
        let mut wanted = first[ETHERTYPE_AT..Ethernet::LEN] != ETHERTYPE_IPV4.to_be_bytes();
        for address in self.addresses.iter().take(count.into()) {
            wanted |= [a, b, c, d] == *address;
        }
        wanted
    }
}

/// Direction and verdict of a captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Received, and forwarded or absorbed.
    In,
    /// Received and dropped.
    Dropped(DropReason),
    /// Sent.
    Out,
}

impl Seen {
    /// The drop reason, if the frame was dropped.
    pub fn dropped(self) -> Option<DropReason> {
        match self {
            Self::Dropped(reason) => Some(reason),
            Self::In | Self::Out => None,
        }
    }
}

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Time at which its batch was processed.
    pub at: Nanos,
    /// Ingress or egress port.
    pub port: PortId,
    /// Direction and verdict.
    pub seen: Seen,
    /// The group of the frame.
    pub group: Option<McstId>,
    /// Its length on the wire, without FCS.
    pub length: usize,
    /// Its first bytes, up to the length of the subscription.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
struct Subscription {
    filter: FrameFilter,
    left: u64,
    /// Frames lost because its queue was full, since last read.
    lost: u64,
    /// Frames that it wants and that were not recorded, since last read.
    skipped: u64,
    /// Steps and frames that this iteration has recorded, by the port of their frame.
    recorded: [usize; PortId::COUNT],
}

impl Subscription {
    fn wants(
        &self,
        port: PortId,
        group: Option<McstId>,
        seen: Seen,
        addresses: impl FnOnce() -> Addresses,
    ) -> bool {
        let (filter, dropped) = (&self.filter, seen.dropped());
        let by_address = || {
            let (src, dst) = addresses();
            (filter.src.is_none() || filter.src == src) && (filter.dst.is_none() || filter.dst == dst)
        };
        self.left > 0
            && filter.port.is_none_or(|p| p == port)
            && (filter.group.is_none() || filter.group == group)
            && (!filter.drops || dropped.is_some())
            && (filter.reason.is_none() || filter.reason == dropped)
            && ((filter.src.is_none() && filter.dst.is_none()) || by_address())
    }

    fn put<T>(&mut self, waiting: &mut VecDeque<T>, item: impl FnOnce() -> T) {
        self.left -= 1;
        if waiting.len() < QUEUE_MAX {
            waiting.push_back(item());
        } else {
            self.lost += 1;
        }
    }
}

#[derive(Debug)]
enum Queue {
    Traces(VecDeque<Trace>),
    Captured(Capture),
}

#[derive(Debug)]
struct Capture {
    waiting: VecDeque<Captured>,
    /// The most bytes to keep of each frame.
    length_max: usize,
    /// Sent because of the present frame, which comes before them: those for which there is room.
    sent: Vec<Captured>,
    /// The number of further ones.
    more: u64,
}

impl Capture {
    fn new(length_max: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            length_max,
            sent: Vec::new(),
            more: 0,
        }
    }

    /// Puts the sent frames behind the present one.
    fn put_sent(&mut self, subscription: &mut Subscription) {
        for captured in self.sent.drain(..) {
            if subscription.left > 0 {
                subscription.put(&mut self.waiting, || captured);
            }
        }
        let lost = std::mem::take(&mut self.more).min(subscription.left);
        subscription.left -= lost;
        subscription.lost += lost;
    }
}

#[derive(Debug)]
struct Tap {
    id: TapId,
    subscription: Subscription,
    queue: Queue,
}

impl Tap {
    fn is_trace(&self) -> bool {
        matches!(self.queue, Queue::Traces(_))
    }

    /// Whether it has room and time for one more trace of a frame of this port.
    fn has_room(&self, ingress: PortId) -> bool {
        let Queue::Traces(waiting) = &self.queue else {
            return false;
        };
        waiting.len() < QUEUE_MAX && self.subscription.recorded[ingress.index()] < RECORDED_AT_PORT_MAX
    }

    /// True if it wants only received frames. Sent frames are only captured, and never dropped.
    fn is_incoming(&self) -> bool {
        let filter = &self.subscription.filter;
        self.is_trace() || filter.drops || filter.reason.is_some()
    }

    /// True if it may want this frame, or one sent because of it.
    fn may_want(&self, ingress: PortId, (src, dst): Addresses) -> bool {
        let (filter, incoming) = (&self.subscription.filter, self.is_incoming());
        self.subscription.left > 0
            && filter.group.is_none_or(|group| dst == Some(group.0))
            && (!incoming
                || filter.port.is_none_or(|port| port == ingress)
                    && (filter.src.is_none() || filter.src == src)
                    && (filter.dst.is_none() || filter.dst == dst))
    }
}

/// The subscribers of an engine to traces and captured frames.
#[derive(Debug, Default)]
pub struct Taps {
    all: Vec<Tap>,
    wanting: bool,
    /// One wants frames that are sent.
    wanting_sent: bool,
    gate: Gate,
    lost: u64,
    /// The first bytes of the received frame, as many as are kept.
    received: Vec<u8>,
    /// Steps and frames that this iteration has recorded in all.
    recorded: usize,
}

impl Taps {
    /// Lets traces be recorded again.
    pub(crate) fn begin_iteration(&mut self) {
        for tap in &mut self.all {
            tap.subscription.recorded = [0; PortId::COUNT];
        }
        self.recorded = 0;
    }

    /// Counts what was recorded for those who may have wanted it.
    fn count_recorded(&mut self, ingress: PortId, addresses: Addresses, steps: usize) {
        self.recorded += steps;
        for tap in self.all.iter_mut().filter(|tap| tap.is_trace()) {
            if tap.may_want(ingress, addresses) {
                tap.subscription.recorded[ingress.index()] += steps;
            }
        }
    }

    /// True if a subscriber wants frames that timers cause.
    pub(crate) fn want_sent(&self) -> bool {
        self.wanting_sent
    }

    /// Traces the next `count` frames that match, for [`Taps::pop_trace`]. Replaces an earlier subscription of the same id.
    pub fn arm_trace(&mut self, id: TapId, filter: FrameFilter, count: u64) {
        self.arm(id, filter, count, Queue::Traces(VecDeque::new()));
    }

    /// As [`Taps::arm_trace`], but captures up to `length_max` bytes of each frame, for [`Taps::pop_captured`].
    pub fn arm_capture(&mut self, id: TapId, filter: FrameFilter, length_max: usize, count: u64) {
        self.arm(id, filter, count, Queue::Captured(Capture::new(length_max)));
    }

    fn arm(&mut self, id: TapId, filter: FrameFilter, left: u64, queue: Queue) {
        self.disarm(id);
        let subscription = Subscription {
            filter,
            left,
            lost: 0,
            skipped: 0,
            recorded: [0; PortId::COUNT],
        };
        self.all.push(Tap {
            id,
            subscription,
            queue,
        });
        self.update_wanting();
    }

    /// Removes a subscriber and its queue.
    pub fn disarm(&mut self, id: TapId) {
        self.all.retain(|tap| tap.id != id);
        self.update_wanting();
    }

    fn update_wanting(&mut self) {
        let mut gate = Gate {
            count: Some(0),
            ..Gate::default()
        };
        (self.wanting, self.wanting_sent) = (false, false);
        for tap in self.all.iter().filter(|tap| tap.subscription.left > 0) {
            self.wanting = true;
            let (filter, incoming) = (&tap.subscription.filter, tap.is_incoming());
            self.wanting_sent |= !incoming;
            match filter.port.filter(|_| incoming) {
                Some(port) => gate.ports.insert(port),
                None => gate.ports = PortSet::ALL,
            }
            gate.count = gate
                .count
                .zip(destination(filter, incoming))
                .map(|(count, address)| {
                    if let Some(entry) = gate.addresses.get_mut(usize::from(count)) {
                        *entry = address.octets();
                    }
                    count + 1
                });
        }
        self.gate = gate;
    }

    /// True if no frame of a batch need be recorded.
    #[inline]
    pub(crate) fn want_none<B: FrameBuf>(&self, ingress: PortId, batch: &[B]) -> bool {
        !self.wanting
            || !self.gate.ports.contains(ingress)
            || !batch.iter().any(|frame| self.gate.passes(frame.head()))
    }

    /// True if this frame, or one sent because of it, may be wanted.
    pub(crate) fn may_want(&self, ingress: PortId, frame: &impl FrameBuf) -> bool {
        let found = addresses(frame);
        self.all.iter().any(|tap| tap.may_want(ingress, found))
    }

    fn find(&mut self, id: TapId) -> Option<&mut Tap> {
        self.all.iter_mut().find(|tap| tap.id == id)
    }

    /// Frames that a subscriber still wants; 0 without subscriber.
    pub fn left(&self, id: TapId) -> u64 {
        let tap = self.all.iter().find(|tap| tap.id == id);
        tap.map_or(0, |tap| tap.subscription.left)
    }

    /// Removes and returns the oldest trace of a subscriber.
    pub fn pop_trace(&mut self, id: TapId) -> Option<Trace> {
        match &mut self.find(id)?.queue {
            Queue::Traces(waiting) => waiting.pop_front(),
            Queue::Captured(_) => None,
        }
    }

    /// Removes and returns the oldest captured frame of a subscriber.
    pub fn pop_captured(&mut self, id: TapId) -> Option<Captured> {
        match &mut self.find(id)?.queue {
            Queue::Captured(capture) => capture.waiting.pop_front(),
            Queue::Traces(_) => None,
        }
    }

    /// Frames lost since the last call: because the subscriber's queue was full, and traces left out as the iterations had no time for more.
    /// The latter do not count in what the subscriber wants.
    pub fn take_lost(&mut self, id: TapId) -> (u64, u64) {
        let (full, skipped) = self.find(id).map_or((0, 0), |tap| {
            let Subscription { lost, skipped, .. } = &mut tap.subscription;
            (std::mem::take(lost), std::mem::take(skipped))
        });
        self.lost += full + skipped;
        (full, skipped)
    }

    /// The sum of all values that [`Taps::take_lost`] has returned.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Passes a trace to the subscribers that want it.
    fn take_trace(&mut self, trace: Trace, seen: Seen, addresses: Addresses) {
        let mut takers = self.all.iter_mut().filter_map(|tap| match &mut tap.queue {
            Queue::Traces(waiting)
                if tap
                    .subscription
                    .wants(trace.ingress, trace.group, seen, || addresses) =>
            {
                Some((&mut tap.subscription, waiting))
            }
            _ => None,
        });
        let mut next = takers.next();
        while let Some((subscription, waiting)) = next {
            next = takers.next();
            if next.is_none() {
                subscription.put(waiting, || trace);
                break;
            }
            subscription.put(waiting, || trace.clone());
        }
    }

    /// Counts a frame that was not recorded, for those who want its trace. They get a later one in its place.
    fn skip_trace(&mut self, ingress: PortId, group: Option<McstId>, seen: Seen, addresses: Addresses) {
        for tap in self.all.iter_mut().filter(|tap| tap.is_trace()) {
            if tap.subscription.wants(ingress, group, seen, || addresses) {
                tap.subscription.skipped += 1;
            }
        }
    }

    fn captures(&mut self) -> impl Iterator<Item = (&mut Subscription, &mut Capture)> {
        self.all.iter_mut().filter_map(|tap| match &mut tap.queue {
            Queue::Captured(capture) => Some((&mut tap.subscription, capture)),
            Queue::Traces(_) => None,
        })
    }

    /// Captures a sent frame for the subscribers that want it and have room for it.
    fn take_sent(&mut self, at: Nanos, port: PortId, group: Option<McstId>, frame: &impl FrameBuf) {
        for (subscription, capture) in self.captures() {
            if !subscription.wants(port, group, Seen::Out, || addresses(frame)) {
                continue;
            }
            let room = QUEUE_MAX.saturating_sub(capture.waiting.len()) as u64;
            if capture.sent.len() as u64 >= room.min(subscription.left) {
                capture.more += 1;
                continue;
            }
            let length = frame.length();
            let mut bytes = vec![0; length.min(capture.length_max)];
            frame.copy_to(&mut bytes);
            capture.sent.push(Captured {
                at,
                port,
                seen: Seen::Out,
                group,
                length,
                bytes,
            });
        }
    }
}

/// A received frame. Its bytes are in [`Taps::received`].
#[derive(Clone, Copy, Debug)]
struct Received {
    ingress: PortId,
    addresses: Addresses,
    length: usize,
}

/// Observes one frame, or what timers cause, for the subscribers. It has them meanwhile.
#[derive(Debug)]
pub(crate) struct Watch {
    taps: Taps,
    at: Nanos,
    group: Option<McstId>,
    received: Option<Received>,
    /// If a subscriber may want the trace, and there is time and room for it.
    recorder: Option<Recorder>,
}

impl Watch {
    pub(crate) fn of_timers(taps: Taps, at: Nanos) -> Self {
        Self {
            taps,
            at,
            group: None,
            received: None,
            recorder: None,
        }
    }

    pub(crate) fn of_frame(mut taps: Taps, at: Nanos, ingress: PortId, frame: &impl FrameBuf) -> Self {
        let (addresses, length) = (addresses(frame), frame.length());
        let (mut keep, mut traces) = (0, false);
        for tap in taps.all.iter().filter(|tap| tap.may_want(ingress, addresses)) {
            match &tap.queue {
                Queue::Traces(_) => traces |= tap.has_room(ingress),
                Queue::Captured(capture) => keep = keep.max(capture.length_max.min(length)),
            }
        }
        traces &= taps.recorded < RECORDED_MAX;
        taps.received.resize(keep, 0);
        frame.copy_to(&mut taps.received);
        Self {
            received: Some(Received {
                ingress,
                addresses,
                length,
            }),
            recorder: traces.then(|| Recorder::new(at, ingress, frame.segments().concat())),
            ..Self::of_timers(taps, at)
        }
    }

    /// The subscribers, with what they get.
    pub(crate) fn finish(mut self) -> Taps {
        for (subscription, capture) in self.taps.captures() {
            capture.put_sent(subscription);
        }
        self.taps.update_wanting();
        self.taps
    }

    /// As [`Watch::finish`], for a frame with this verdict.
    pub(crate) fn finish_frame(mut self, verdict: Verdict) -> Taps {
        let seen = match verdict {
            Verdict::Dropped(reason) => Seen::Dropped(reason),
            _ => Seen::In,
        };
        let (at, group) = (self.at, self.group);
        if let Some(Received {
            ingress,
            addresses,
            length,
        }) = self.received
        {
            let received = std::mem::take(&mut self.taps.received);
            for (subscription, capture) in self.taps.captures() {
                if subscription.wants(ingress, group, seen, || addresses) {
                    subscription.put(&mut capture.waiting, || Captured {
                        at,
                        port: ingress,
                        seen,
                        group,
                        length,
                        bytes: received.get(..capture.length_max).unwrap_or(&received).to_vec(),
                    });
                }
            }
            self.taps.received = received;
            match self.recorder.take().map(|recorder| recorder.finish(verdict)) {
                Some(trace) => {
                    let steps = 1 + trace.steps.len() + trace.sent.len();
                    self.taps.count_recorded(ingress, addresses, steps);
                    self.taps.take_trace(trace, seen, addresses);
                }
                None => self.taps.skip_trace(ingress, group, seen, addresses),
            }
        }
        self.finish()
    }
}

impl Observer for Watch {
    fn step(&mut self, step: impl FnOnce() -> Step) {
        if let Some(recorder) = &mut self.recorder {
            recorder.step(step);
        }
    }

    fn group(&mut self, mcst_id: McstId) {
        self.group = Some(mcst_id);
        if let Some(recorder) = &mut self.recorder {
            recorder.group(mcst_id);
        }
    }

    fn sent(&mut self, port: PortId, frame: &impl FrameBuf) {
        self.taps.take_sent(self.at, port, self.group, frame);
        if let Some(recorder) = &mut self.recorder {
            recorder.sent(port, frame);
        }
    }
}
