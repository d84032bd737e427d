//! Live traces and captured frames for subscribers, in bounded queues that the worker drains. Without subscribers the cost is a branch
//! per batch. With subscribers, frames that one may want take the slow path, are recorded and may cause allocations; for others port
//! and destination are checked.

use core::net::Ipv4Addr;
use std::collections::VecDeque;

use castnet_wire::ethernet::{ETHERTYPE_ARP, ETHERTYPE_AT, ETHERTYPE_IPV4, is_tag};
use castnet_wire::layout;
use castnet_wire::{Arp, DropReason, Ethernet, FrameBuf, FrameFilter, Ipv4, McstId, Nanos, PortId, VlanTag};

use crate::observe::trace::{Trace, Verdict};
use crate::port_set::PortSet;

const QUEUE_MAX: usize = 1024;

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

/// Of the outermost IPv4 or ARP header. The frame may be malformed otherwise.
fn addresses(frame: &[u8]) -> (Option<Ipv4Addr>, Option<Ipv4Addr>) {
    let bytes = |at: usize| frame.get(at..)?.first_chunk::<2>().copied();
    let ethertype = |at: usize| bytes(at).map(u16::from_be_bytes);
    let mut at = ETHERTYPE_AT;
    while ethertype(at).is_some_and(is_tag) {
        at += VlanTag::LEN;
    }
    let (src, dst) = match ethertype(at) {
        Some(ETHERTYPE_IPV4) => (layout::SRC.start, layout::DST.start),
        Some(ETHERTYPE_ARP) => (Arp::SENDER_IP.start, Arp::TARGET_IP.start),
        _ => return (None, None),
    };
    let address = |offset: usize| {
        let octets = frame.get(at + 2 + offset..)?.first_chunk::<4>()?;
        Some(Ipv4Addr::from(*octets))
    };
    (address(src), address(dst))
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
}

impl Subscription {
    fn wants(&self, port: PortId, group: Option<McstId>, seen: Seen, frame: &[u8]) -> bool {
        let (filter, dropped) = (&self.filter, seen.dropped());
        let by_address = || {
            let (src, dst) = addresses(frame);
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
    /// With the most bytes to keep of each frame.
    Captured(VecDeque<Captured>, usize),
}

#[derive(Debug)]
struct Tap {
    id: TapId,
    subscription: Subscription,
    queue: Queue,
}

impl Tap {
    /// True if it wants only received frames. Sent frames are only captured, and never dropped.
    fn is_incoming(&self) -> bool {
        let filter = &self.subscription.filter;
        matches!(self.queue, Queue::Traces(_)) || filter.drops || filter.reason.is_some()
    }

    /// True if it may want this frame, or one sent because of it.
    fn may_want(&self, ingress: PortId, (src, dst): (Option<Ipv4Addr>, Option<Ipv4Addr>)) -> bool {
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
    gate: Gate,
    lost: u64,
}

impl Taps {
    pub(crate) fn armed(&self) -> bool {
        self.wanting
    }

    /// Traces the next `count` frames that match, for [`Taps::pop_trace`]. Replaces an earlier subscription of the same id.
    pub fn arm_trace(&mut self, id: TapId, filter: FrameFilter, count: u64) {
        self.arm(id, filter, count, Queue::Traces(VecDeque::new()));
    }

    /// As [`Taps::arm_trace`], but captures up to `length_max` bytes of each frame, for [`Taps::pop_captured`].
    pub fn arm_capture(&mut self, id: TapId, filter: FrameFilter, length_max: usize, count: u64) {
        self.arm(id, filter, count, Queue::Captured(VecDeque::new(), length_max));
    }

    fn arm(&mut self, id: TapId, filter: FrameFilter, left: u64, queue: Queue) {
        self.disarm(id);
        let subscription = Subscription {
            filter,
            left,
            lost: 0,
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
        self.wanting = false;
        for tap in self.all.iter().filter(|tap| tap.subscription.left > 0) {
            self.wanting = true;
            let (filter, incoming) = (&tap.subscription.filter, tap.is_incoming());
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
        let head = frame.head();
        let found = addresses(head);
        // The addresses may lie behind more tags than fit into the head.
        let hidden = found == (None, None) && head.len() < frame.length();
        hidden || self.all.iter().any(|tap| tap.may_want(ingress, found))
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
            Queue::Captured(..) => None,
        }
    }

    /// Removes and returns the oldest captured frame of a subscriber.
    pub fn pop_captured(&mut self, id: TapId) -> Option<Captured> {
        match &mut self.find(id)?.queue {
            Queue::Captured(waiting, _) => waiting.pop_front(),
            Queue::Traces(_) => None,
        }
    }

    /// Frames lost since the last call because the subscriber's queue was full.
    pub fn take_lost(&mut self, id: TapId) -> u64 {
        let lost = self
            .find(id)
            .map_or(0, |tap| std::mem::take(&mut tap.subscription.lost));
        self.lost += lost;
        lost
    }

    /// The sum of all values that [`Taps::take_lost`] has returned.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Passes the trace of a received frame to the subscribers that want it.
    pub(crate) fn take(&mut self, trace: Trace) {
        let seen = match trace.verdict {
            Verdict::Dropped(reason) => Seen::Dropped(reason),
            _ => Seen::In,
        };
        self.capture(trace.at, trace.ingress, seen, trace.group, &trace.frame);
        self.take_sent(&trace);
        let mut takers = self.all.iter_mut().filter_map(|tap| match &mut tap.queue {
            Queue::Traces(waiting)
                if tap
                    .subscription
                    .wants(trace.ingress, trace.group, seen, &trace.frame) =>
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
        self.update_wanting();
    }

    /// Passes the sent frames of a trace, which a frame or a timer has caused.
    pub(crate) fn take_sent(&mut self, trace: &Trace) {
        for sent in &trace.sent {
            self.capture(trace.at, sent.port, Seen::Out, sent.group, &sent.bytes);
        }
        self.update_wanting();
    }

    fn capture(&mut self, at: Nanos, port: PortId, seen: Seen, group: Option<McstId>, bytes: &[u8]) {
        for Tap {
            subscription, queue, ..
        } in &mut self.all
        {
            if let Queue::Captured(waiting, length_max) = queue
                && subscription.wants(port, group, seen, bytes)
            {
                subscription.put(waiting, || Captured {
                    at,
                    port,
                    seen,
                    group,
                    length: bytes.len(),
                    bytes: bytes.get(..*length_max).unwrap_or(bytes).to_vec(),
                });
            }
        }
    }
}
