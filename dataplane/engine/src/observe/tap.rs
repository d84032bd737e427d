//! What an engine hands to subscribers: live traces and captured frames, in bounded queues that the worker drains. While
//! no subscriber wants frames, it costs a branch per batch. Else frames that one may want take the slow path, are recorded and
//! may allocate; for all others it costs a look at their port and destination.

use core::net::Ipv4Addr;
use std::collections::VecDeque;

use castnet_wire::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4};
use castnet_wire::{DropReason, FrameBuf, McstId, Nanos, PortId};

use crate::observe::trace::{Trace, Verdict};
use crate::port_set::PortSet;

/// Traces or captured frames that wait for the worker, of each subscriber.
const QUEUE_MAX: usize = 1024;

/// Subscribers that an engine takes at once, live traces and captures together.
pub const TAPS_MAX: usize = 8;

/// A subscriber's number, below [`TAPS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TapId(u8);

impl TapId {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..TAPS_MAX as u8).map(Self)
    }

    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which frames are wanted. It sees them whole, however little of them is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFilter {
    /// That came in here or, in a capture, left here; `None` for anywhere.
    pub port: Option<PortId>,
    /// That belong to this group; `None` for any frame.
    pub group: Option<McstId>,
    /// From this address; `None` for any. Of a malformed frame, as far as it has one.
    pub src: Option<Ipv4Addr>,
    /// To this address; `None` for any, likewise.
    pub dst: Option<Ipv4Addr>,
    /// Only those that were dropped.
    pub drops: bool,
    /// Only those that were dropped for this reason.
    pub reason: Option<DropReason>,
}

impl FrameFilter {
    /// The destination that a frame must have to be wanted, or to make one leave that is. `incoming`: only frames that come in
    /// are. A frame of a group is for its address.
    fn destination(&self, incoming: bool) -> Option<Ipv4Addr> {
        let group = self.group.map(|group| group.0);
        group.or(self.dst.filter(|_| incoming))
    }

    fn wants(&self, port: PortId, group: Option<McstId>, dropped: Option<DropReason>, frame: &[u8]) -> bool {
        let by_address = || {
            let (src, dst) = addresses(frame);
            (self.src.is_none() || self.src == src) && (self.dst.is_none() || self.dst == dst)
        };
        self.port.is_none_or(|p| p == port)
            && (self.group.is_none() || self.group == group)
            && (!self.drops || dropped.is_some())
            && (self.reason.is_none() || self.reason == dropped)
            && ((self.src.is_none() && self.dst.is_none()) || by_address())
    }
}

/// Which incoming frames have to be recorded, as far as can be told before anything is done with them.
#[derive(Clone, Copy, Debug, Default)]
struct Gate {
    /// Frames that came in here may be wanted.
    ports: PortSet,
    /// To these addresses, `count` of them; where there is no count, to any.
    addresses: [[u8; 4]; TAPS_MAX],
    count: Option<u8>,
}

impl Gate {
    /// Whether a frame must be looked at further: only plain IPv4 to other addresses need not.
    #[inline(always)]
    fn passes(&self, head: &[u8]) -> bool {
        let (Some(count), Some(first)) = (self.count, head.first_chunk::<34>()) else {
            return true;
        };
        let [.., a, b, c, d] = *first;
        let mut wanted = first[12..14] != ETHERTYPE_IPV4.to_be_bytes();
        for address in self.addresses.iter().take(count.into()) {
            wanted |= [a, b, c, d] == *address;
        }
        wanted
    }
}

/// Source and destination of the outermost IPv4 or ARP header, as far as they are there: nothing else need be right.
fn addresses(frame: &[u8]) -> (Option<Ipv4Addr>, Option<Ipv4Addr>) {
    const TAGS: [u16; 3] = [0x8100, 0x88A8, 0x9100];
    let bytes = |at: usize| frame.get(at..)?.first_chunk::<2>().copied();
    let ethertype = |at: usize| bytes(at).map(u16::from_be_bytes);
    let mut at = 12;
    while ethertype(at).is_some_and(|kind| TAGS.contains(&kind)) {
        at += 4;
    }
    let (src, dst) = match ethertype(at) {
        Some(ETHERTYPE_IPV4) => (12, 16),
        Some(ETHERTYPE_ARP) => (14, 24),
        _ => return (None, None),
    };
    let address = |offset: usize| {
        let octets = frame.get(at + 2 + offset..)?.first_chunk::<4>()?;
        Some(Ipv4Addr::from(*octets))
    };
    (address(src), address(dst))
}

/// Where a captured frame was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It came in and went on or was absorbed.
    In,
    /// It came in and was dropped.
    Dropped(DropReason),
    /// It left.
    Out,
}

impl Seen {
    /// Why it was dropped, where it was.
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
    /// When its batch was taken in.
    pub at: Nanos,
    /// Where it came in or left.
    pub port: PortId,
    /// Which of these.
    pub seen: Seen,
    /// The group it belongs to.
    pub group: Option<McstId>,
    /// Its length on the wire, without FCS.
    pub length: usize,
    /// Its first bytes, as many as were asked for.
    pub bytes: Vec<u8>,
}

/// What one subscriber wants, and how much of it there was.
#[derive(Debug)]
struct Wish {
    filter: FrameFilter,
    /// Frames that it still wants.
    left: u64,
    /// Those that found its queue full, since this was read last.
    lost: u64,
}

impl Wish {
    fn wants(&self, port: PortId, group: Option<McstId>, seen: Seen, frame: &[u8]) -> bool {
        self.left > 0 && self.filter.wants(port, group, seen.dropped(), frame)
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

/// What waits for a subscriber.
#[derive(Debug)]
enum Queue {
    Traces(VecDeque<Trace>),
    /// With the bytes of each frame that are kept.
    Captured(VecDeque<Captured>, usize),
}

/// One subscriber.
#[derive(Debug)]
struct Tap {
    id: TapId,
    wish: Wish,
    queue: Queue,
}

impl Tap {
    /// Whether it wants only frames that come in: what leaves is captured, and was not dropped.
    fn is_incoming(&self) -> bool {
        let filter = &self.wish.filter;
        matches!(self.queue, Queue::Traces(_)) || filter.drops || filter.reason.is_some()
    }

    /// Whether it may want this frame, or one that leaves because of it.
    fn may_want(&self, ingress: PortId, (src, dst): (Option<Ipv4Addr>, Option<Ipv4Addr>)) -> bool {
        let (filter, incoming) = (&self.wish.filter, self.is_incoming());
        self.wish.left > 0
            && filter.group.is_none_or(|group| dst == Some(group.0))
            && (!incoming
                || filter.port.is_none_or(|port| port == ingress)
                    && (filter.src.is_none() || filter.src == src)
                    && (filter.dst.is_none() || filter.dst == dst))
    }
}

/// The subscribers with their filters and queues.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    /// At most [`TAPS_MAX`].
    all: Vec<Tap>,
    /// Whether one of them still wants frames.
    wanting: bool,
    gate: Gate,
    lost: u64,
}

impl Taps {
    /// Whether frames must be recorded.
    pub(crate) fn armed(&self) -> bool {
        self.wanting
    }

    pub(crate) fn arm_trace(&mut self, id: TapId, filter: FrameFilter, count: u64) {
        self.arm(id, filter, count, Queue::Traces(VecDeque::new()));
    }

    pub(crate) fn arm_capture(&mut self, id: TapId, filter: FrameFilter, length_max: usize, count: u64) {
        self.arm(id, filter, count, Queue::Captured(VecDeque::new(), length_max));
    }

    fn arm(&mut self, id: TapId, filter: FrameFilter, left: u64, queue: Queue) {
        self.disarm(id);
        let wish = Wish {
            filter,
            left,
            lost: 0,
        };
        self.all.push(Tap { id, wish, queue });
        self.update_wanting();
    }

    pub(crate) fn disarm(&mut self, id: TapId) {
        self.all.retain(|tap| tap.id != id);
        self.update_wanting();
    }

    fn update_wanting(&mut self) {
        let mut gate = Gate {
            count: Some(0),
            ..Gate::default()
        };
        self.wanting = false;
        for tap in self.all.iter().filter(|tap| tap.wish.left > 0) {
            self.wanting = true;
            let (filter, incoming) = (&tap.wish.filter, tap.is_incoming());
            match filter.port.filter(|_| incoming) {
                Some(port) => gate.ports.insert(port),
                None => gate.ports = PortSet::ALL,
            }
            gate.count = gate
                .count
                .zip(filter.destination(incoming))
                .map(|(count, address)| {
                    if let Some(entry) = gate.addresses.get_mut(usize::from(count)) {
                        *entry = address.octets();
                    }
                    count + 1
                });
        }
        self.gate = gate;
    }

    /// Whether no frame of a batch need be recorded.
    #[inline]
    pub(crate) fn want_none<B: FrameBuf>(&self, ingress: PortId, batch: &[B]) -> bool {
        !self.wanting
            || !self.gate.ports.contains(ingress)
            || !batch.iter().any(|frame| self.gate.passes(frame.head()))
    }

    /// Whether this frame must be recorded: it may be wanted, or one that leaves because of it.
    pub(crate) fn may_want(&self, ingress: PortId, frame: &impl FrameBuf) -> bool {
        let head = frame.head();
        let found = addresses(head);
        // Behind more tags than a head has room for.
        let hidden = found == (None, None) && head.len() < frame.length();
        hidden || self.all.iter().any(|tap| tap.may_want(ingress, found))
    }

    fn find(&mut self, id: TapId) -> Option<&mut Tap> {
        self.all.iter_mut().find(|tap| tap.id == id)
    }

    pub(crate) fn left(&self, id: TapId) -> u64 {
        let tap = self.all.iter().find(|tap| tap.id == id);
        tap.map_or(0, |tap| tap.wish.left)
    }

    pub(crate) fn pop_trace(&mut self, id: TapId) -> Option<Trace> {
        match &mut self.find(id)?.queue {
            Queue::Traces(waiting) => waiting.pop_front(),
            Queue::Captured(..) => None,
        }
    }

    pub(crate) fn pop_captured(&mut self, id: TapId) -> Option<Captured> {
        match &mut self.find(id)?.queue {
            Queue::Captured(waiting, _) => waiting.pop_front(),
            Queue::Traces(_) => None,
        }
    }

    /// What a subscriber lost since this was asked last.
    pub(crate) fn take_lost(&mut self, id: TapId) -> u64 {
        let lost = self.find(id).map_or(0, |tap| std::mem::take(&mut tap.wish.lost));
        self.lost += lost;
        lost
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Takes what was recorded of a frame that came in.
    pub(crate) fn take(&mut self, trace: Trace) {
        let seen = match trace.verdict {
            Verdict::Dropped(reason) => Seen::Dropped(reason),
            _ => Seen::In,
        };
        self.capture(trace.at, trace.ingress, seen, trace.group, &trace.frame);
        self.take_sent(&trace);
        let mut takers = self.all.iter_mut().filter_map(|tap| match &mut tap.queue {
            Queue::Traces(waiting) if tap.wish.wants(trace.ingress, trace.group, seen, &trace.frame) => {
                Some((&mut tap.wish, waiting))
            }
            _ => None,
        });
        let mut next = takers.next();
        while let Some((wish, waiting)) = next {
            next = takers.next();
            if next.is_none() {
                wish.put(waiting, || trace);
                break;
            }
            wish.put(waiting, || trace.clone());
        }
        self.update_wanting();
    }

    /// Takes the frames that were recorded as sent, of a frame or of a timer.
    pub(crate) fn take_sent(&mut self, trace: &Trace) {
        for sent in &trace.sent {
            self.capture(trace.at, sent.port, Seen::Out, sent.group, &sent.bytes);
        }
        self.update_wanting();
    }

    fn capture(&mut self, at: Nanos, port: PortId, seen: Seen, group: Option<McstId>, bytes: &[u8]) {
        for Tap { wish, queue, .. } in &mut self.all {
            if let Queue::Captured(waiting, length_max) = queue
                && wish.wants(port, group, seen, bytes)
            {
                wish.put(waiting, || Captured {
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
