//! The collectives in flight, with the senders and receivers of their packets. Positions count the group's packets in 64 bits and never
//! wrap. Only `bridge` converts them from and to the 24 bits on the wire.

mod count;

use self::count::{STRIDE, Tally};
use crate::translated::{EndpointConfig, EndpointId, PacketShape};
use alloc::boxed::Box;
use alloc::vec;
use castnet_wire::{Call, CallFlags, Control, DataType, Opcode, Operation, Primitive, Verdict};

const NO_CALL: Call = Call {
    primitive: Primitive::AllReduce,
    root: 0,
    roots: 1,
    operation: Operation::Sum,
    data_type: DataType::U8,
    flags: CallFlags(0),
    elements: 0,
    packets: 0,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Collective {
    /// The position of its control message; data follows.
    pub(super) start: u64,
    /// Of the first received control message. It defines the mapping of packets, unless ranks disagree.
    pub(super) call: Call,
    /// Merged of all endpoints received so far; later the result.
    pub(super) control: Control,
    /// The endpoint with the root rank of each block behind it; without meaning for AllReduce.
    roots: Roots,
}

/// Endpoints of the roots of a call, one for each block.
pub(super) type Roots = [EndpointId; Call::ROOTS_MAX as usize];

/// The endpoints with the root ranks of a call behind them. `None` if a root is behind none of them. One walk: a rank may ask for it with each
/// of its frames.
pub(super) fn roots(call: &Call, endpoints: &[EndpointConfig]) -> Option<Roots> {
    let (mut roots, mut found) = (Roots::default(), 0);
    if call.primitive == Primitive::AllReduce {
        return Some(roots);
    }
    for (endpoint, config) in endpoints.iter().enumerate() {
        for rank in config.ranks.as_slice() {
            let nth = rank.wrapping_sub(call.root);
            if nth < call.roots
                && let Some(root) = roots.get_mut(usize::from(nth))
            {
                *root = EndpointId::new(endpoint)?;
                found += 1;
            }
        }
    }
    (found == call.roots).then_some(roots)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// From the endpoint to this switch.
    Sends,
    /// From this switch to the endpoint.
    Receives,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Control messages and AllReduce: up the tree, then down.
    UpDown,
    /// All other endpoints send to this one.
    Gather(EndpointId),
    /// This endpoint sends to all others.
    Scatter(EndpointId),
}

impl Collective {
    const EMPTY: Self = Self {
        start: 0,
        call: NO_CALL,
        control: Control {
            sequence: 0,
            rank: 0,
            call: NO_CALL,
            verdict: Verdict::Agreed,
        },
        roots: match EndpointId::new(0) {
            Some(id) => [id; Call::ROOTS_MAX as usize],
            None => panic!("an index below the maximum"),
        },
    };

    pub(super) fn end(&self) -> u64 {
        self.start + 1 + self.call.all_packets()
    }

    /// The block of a data packet.
    fn block(&self, g: u64) -> u64 {
        match self.call.roots {
            1 => 0,
            _ => (g - self.start - 1) / u64::from(self.call.packets),
        }
    }

    fn root(&self, g: u64) -> EndpointId {
        // A call has at most `ROOTS_MAX` blocks.
        self.roots[self.block(g) as usize % self.roots.len()]
    }

    /// The roots of its blocks.
    fn roots(&self) -> &[EndpointId] {
        let blocks = usize::from(self.call.roots);
        self.roots.get(..blocks).unwrap_or(&self.roots)
    }

    /// Packets from `from` to before `to`, both in this collective, for which `endpoint` has this role.
    fn count(&self, endpoint: EndpointId, role: Role, from: u64, to: u64) -> u64 {
        let (mut g, mut count) = (from, 0);
        while g < to {
            let end = self.part_end(g).min(to);
            if self.involves(endpoint, role, g) {
                count += end - g;
            }
            g = end;
        }
        count
    }

    /// All packets for which `endpoint` has this role: at least the control message.
    fn packets(&self, endpoint: EndpointId, role: Role) -> u64 {
        self.count(endpoint, role, self.start, self.end())
    }

    /// The position of the packet `index` of this role, from 0; the end of the collective if it has fewer.
    fn position(&self, endpoint: EndpointId, role: Role, index: u64) -> u64 {
        let (mut g, mut left) = (self.start, index);
        while g < self.end() {
            let end = self.part_end(g);
            if self.involves(endpoint, role, g) {
                if left < end - g {
                    return g + left;
                }
                left -= end - g;
            }
            g = end;
        }
        g
    }

    /// The first packet of a block.
    fn block_start(&self, block: u64) -> u64 {
        self.start + 1 + block * u64::from(self.call.packets)
    }

    pub(super) fn flow(&self, g: u64) -> Flow {
        match self.call.primitive {
            _ if g == self.start => Flow::UpDown,
            Primitive::AllReduce => Flow::UpDown,
            Primitive::Reduce => Flow::Gather(self.root(g)),
            Primitive::Broadcast => Flow::Scatter(self.root(g)),
        }
    }

    pub(super) fn involves(&self, endpoint: EndpointId, role: Role, g: u64) -> bool {
        match self.flow(g) {
            Flow::UpDown => true,
            Flow::Gather(root) => (endpoint == root) == (role == Role::Receives),
            Flow::Scatter(root) => (endpoint == root) == (role == Role::Sends),
        }
    }

    /// The first position from `g` on for which `endpoint` has this role, or the end.
    pub(super) fn settle(&self, endpoint: EndpointId, role: Role, mut g: u64) -> u64 {
        while g < self.end() && !self.involves(endpoint, role, g) {
            g = self.part_end(g);
        }
        g
    }

    /// The end of the part of `g`: the control message alone, or all data of a block.
    pub(super) fn part_end(&self, g: u64) -> u64 {
        if g == self.start {
            g + 1
        } else {
            self.block_start(self.block(g) + 1)
        }
    }

    /// Messages that end in the packets from `from` to before `to`, both within one part.
    pub(super) fn messages(&self, from: u64, to: u64, message_packets: u16) -> u32 {
        if from == self.start {
            return 1;
        }
        let packets = u64::from(self.call.packets);
        let per_message = u64::from(self.per_message(message_packets));
        let start = self.block_start(self.block(from));
        let complete = |g: u64| match g - start {
            all if all == packets => all.div_ceil(per_message),
            some => some / per_message,
        };
        (complete(to) - complete(from)) as u32
    }

    /// Whether the packet at `g` continues a message.
    pub(super) fn is_in_message(&self, g: u64, message_packets: u16) -> bool {
        let per_message = u64::from(self.per_message(message_packets));
        g > self.start && !(g - self.block_start(self.block(g))).is_multiple_of(per_message)
    }

    /// The end of the message that begins at `g`.
    pub(super) fn message_end(&self, g: u64, message_packets: u16) -> u64 {
        let end = self.part_end(g);
        match g == self.start {
            true => end,
            false => end.min(g + u64::from(self.per_message(message_packets))),
        }
    }

    /// Bytes of the data message that begins at `g`.
    pub(super) fn message_bytes(&self, g: u64, pmtu: u16, message_packets: u16) -> u32 {
        let (begin, pmtu) = (self.block_start(self.block(g)), u64::from(pmtu));
        let upto = |g: u64| ((g - begin) * pmtu).min(self.call.bytes());
        (upto(self.message_end(g, message_packets)) - upto(g)) as u32
    }

    fn per_message(&self, message_packets: u16) -> u32 {
        match message_packets {
            0 => self.call.packets.max(1),
            m => m.into(),
        }
    }

    /// The required shape of the data packet at `g` (docs/control-message.md). The last packet and the last message of a block may be
    /// shorter.
    pub(super) fn cut(&self, g: u64, pmtu: u16, message_packets: u16) -> PacketShape {
        // The number of packets has 32 bits.
        let index = (g - self.block_start(self.block(g))) as u32;
        let left = self
            .call
            .bytes()
            .saturating_sub(u64::from(index) * u64::from(pmtu));
        let payload = left.min(pmtu.into()) as u16;
        let per_message = self.per_message(message_packets);
        let place = index % per_message;
        let is_last = place + 1 == per_message || index + 1 == self.call.packets;
        PacketShape {
            opcode: match (place == 0, is_last) {
                (true, true) => Opcode::SendOnly,
                (true, false) => Opcode::SendFirst,
                (false, false) => Opcode::SendMiddle,
                (false, true) => Opcode::SendLast,
            },
            payload,
            pad: (payload.wrapping_neg() % 4) as u8,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Calls {
    ring: Box<[Collective]>,
    first: u32,
    count: u32,
    end: u64,
    /// Before the oldest collective in flight.
    oldest: Tally,
    /// Before the next collective.
    next: Tally,
    /// Before each collective in flight, except the oldest, whose number is a multiple of [`STRIDE`]. Otherwise zero. Without any, all
    /// that are in flight may be visited.
    checkpoints: Box<[Tally]>,
}

impl Calls {
    /// `endpoints`: those for which packets are counted, or 0.
    pub(super) fn new(max: u16, endpoints: usize) -> Self {
        let max = usize::from(max.clamp(2, 1 << 15)).next_power_of_two();
        let checkpoints = match max / STRIDE as usize {
            0 | 1 => 0,
            _ if endpoints == 0 => 0,
            many => many,
        };
        let endpoints = if checkpoints == 0 { 0 } else { endpoints };
        Self {
            ring: vec![Collective::EMPTY; max].into_boxed_slice(),
            first: 0,
            count: 0,
            end: 0,
            oldest: Tally::new(endpoints),
            next: Tally::new(endpoints),
            checkpoints: vec![Tally::new(endpoints); checkpoints].into_boxed_slice(),
        }
    }

    /// `of` has the same size; this ring is new.
    pub(super) fn copy_state(&mut self, of: &Self) {
        for index in (0..of.count).map(|nth| of.index(nth)) {
            self.ring[index] = of.ring[index].clone();
        }
        (self.first, self.count, self.end) = (of.first, of.count, of.end);
        self.oldest.copy(&of.oldest);
        self.next.copy(&of.next);
        for section in 1..=of.section(of.count.saturating_sub(1)) {
            let index = of.index(of.section_start(section)) / STRIDE as usize;
            if let Some((own, of)) = self.checkpoints.get_mut(index).zip(of.checkpoints.get(index)) {
                own.copy(of);
            }
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn next_sequence(&self) -> u32 {
        self.first.wrapping_add(self.count)
    }

    pub(super) fn is_full(&self) -> bool {
        self.count as usize == self.ring.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let tally = size_of_val(&*self.next.as_root);
        size_of_val(&*self.ring) + size_of_val(&*self.checkpoints) + (self.checkpoints.len() + 2) * tally
    }

    /// `control` is the first received control message of the new collective.
    pub(super) fn push(&mut self, control: &Control, roots: Roots) -> usize {
        let index = self.index(self.count);
        self.ring[index] = Collective {
            start: self.end,
            call: control.call,
            control: *control,
            roots,
        };
        if self.count > 0
            && self.next_sequence().is_multiple_of(STRIDE)
            && let Some(checkpoint) = self.checkpoints.get_mut(index / STRIDE as usize)
        {
            checkpoint.copy(&self.next);
        }
        self.next.add(&self.ring[index]);
        self.end = self.ring[index].end();
        self.count += 1;
        index
    }

    /// Removes collectives that end at or before `base` and before `limit`.
    pub(super) fn retire(&mut self, base: u64, limit: u64) {
        while self.count > 0 {
            let index = self.index(0);
            let end = self.ring[index].end();
            if end > base || end >= limit {
                break;
            }
            self.oldest.add(&self.ring[index]);
            self.ring[index] = Collective::EMPTY;
            self.first = self.first.wrapping_add(1);
            self.count -= 1;
            let oldest = self.index(0);
            if self.count > 0
                && self.first.is_multiple_of(STRIDE)
                && let Some(checkpoint) = self.checkpoints.get_mut(oldest / STRIDE as usize)
            {
                checkpoint.clear();
            }
        }
    }

    /// The ring index of the collective of `g`.
    #[inline(always)]
    pub(super) fn find(&self, g: u64) -> Option<usize> {
        #[cfg(test)]
        VISITED.set(VISITED.get() + 1);
        let oldest = self.index(0);
        if self.count == 0 || g < self.ring[oldest].start || g >= self.end {
            return None;
        }
        if g < self.ring[oldest].end() {
            return Some(oldest);
        }
        Some(self.index(self.search(g)))
    }

    /// The collective in flight, counted from the oldest one, of a position in one of them.
    fn search(&self, g: u64) -> u32 {
        let (mut low, mut high) = (0, self.count);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.nth(middle).start <= g {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// A collective in flight, counted from the oldest one.
    fn nth(&self, nth: u32) -> &Collective {
        #[cfg(test)]
        VISITED.set(VISITED.get() + 1);
        &self.ring[self.index(nth)]
    }

    fn nth_of(&self, g: u64) -> Option<u32> {
        if self.count == 0 || g >= self.end {
            return None;
        }
        let oldest = self.nth(0);
        match g < oldest.end() {
            true => (oldest.start <= g).then_some(0),
            false => Some(self.search(g)),
        }
    }

    pub(super) fn get(&self, index: usize) -> &Collective {
        &self.ring[index & (self.ring.len() - 1)]
    }

    /// Without meaning if none is in flight.
    #[inline]
    pub(super) fn oldest(&self) -> &Collective {
        &self.ring[self.index(0)]
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut Collective {
        &mut self.ring[index]
    }

    /// The end of the oldest one in flight.
    pub(super) fn oldest_end(&self) -> Option<u64> {
        (self.count > 0).then(|| self.oldest().end())
    }

    /// With their numbers, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Collective)> {
        (0..self.count).map(|i| (self.first.wrapping_add(i), &self.ring[self.index(i)]))
    }

    /// The collective in flight of `g`, and those behind it.
    pub(super) fn from(&self, g: u64) -> impl Iterator<Item = &Collective> {
        let nth = self.nth_of(g).unwrap_or(self.count);
        (nth..self.count).map(|nth| self.nth(nth))
    }

    /// The first position from `g` on for which `endpoint` has this role.
    pub(super) fn settle(&self, endpoint: EndpointId, role: Role, g: u64) -> u64 {
        match self.find(g) {
            Some(index) => self.ring[index].settle(endpoint, role, g),
            None => g,
        }
    }

    fn index(&self, nth: u32) -> usize {
        self.first.wrapping_add(nth) as usize & (self.ring.len() - 1)
    }
}

#[cfg(test)]
std::thread_local! {
    /// How often a collective was looked at, for tests that count work.
    pub(crate) static VISITED: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// In the slot of a control message; not compared.
pub(super) const NO_SHAPE: PacketShape = PacketShape {
    opcode: Opcode::SendOnlyImm,
    payload: 0,
    pad: 0,
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn endpoint(index: usize) -> EndpointId {
        EndpointId::new(index).unwrap()
    }

    fn ring() -> impl Strategy<Value = Calls> {
        let call = (0u8..3, 0u8..4, prop_oneof![Just(0u32), 1u32..9], 1u16..=8);
        (proptest::collection::vec(call, 1..20), 0u64..40).prop_map(|(picks, base)| {
            let mut calls = Calls::new(32, 4);
            calls.first = u32::MAX - 3;
            picks.into_iter().for_each(|pick| push(&mut calls, pick));
            calls.retire(base, u64::MAX);
            calls
        })
    }

    type Pick = (u8, u8, u32, u16);

    fn push(calls: &mut Calls, (primitive, root, packets, roots): Pick) {
        let primitive =
            [Primitive::AllReduce, Primitive::Reduce, Primitive::Broadcast][usize::from(primitive)];
        let many = primitive != Primitive::AllReduce && packets > 0;
        let call = Call {
            primitive,
            roots: if many { roots } else { 1 },
            packets,
            ..NO_CALL
        };
        let control = Control {
            sequence: calls.next_sequence(),
            call,
            ..Collective::EMPTY.control
        };
        calls.push(
            &control,
            std::array::from_fn(|block| endpoint((usize::from(root) + block) % 4)),
        );
    }

    /// Several sections, of calls of which some were retired before others came.
    fn large_ring() -> impl Strategy<Value = Calls> {
        let call = (
            0u8..3,
            0u8..4,
            prop_oneof![2 => Just(0u32), 1 => 1u32..5],
            1u16..=8,
        );
        (proptest::collection::vec(call, 1..900), 1u32..256, 0u32..300).prop_map(|(picks, step, last)| {
            let mut calls = Calls::new(256, 4);
            calls.first = u32::MAX - 300;
            for pick in picks {
                if calls.is_full() {
                    retire(&mut calls, step);
                }
                push(&mut calls, pick);
            }
            retire(&mut calls, last);
            calls
        })
    }

    fn retire(calls: &mut Calls, count: u32) {
        let end = match count {
            0 => 0,
            _ if count > calls.count => calls.end,
            _ => calls.nth(count - 1).end(),
        };
        calls.retire(end, u64::MAX);
    }

    /// The slow twin of `count`, by a walk over all parts of calls.
    fn walked(calls: &Calls, endpoint: EndpointId, role: Role, from: u64, to: u64) -> u64 {
        let (mut g, mut count) = (from, 0);
        while g < to
            && let Some(index) = calls.find(g)
        {
            let call = calls.get(index);
            let end = call.part_end(g).min(to);
            if call.involves(endpoint, role, g) {
                count += end - g;
            }
            g = end;
        }
        count
    }

    /// Each repeated PSN of a rank, and each repeated packet to one, is converted: of a full window of barriers, few are visited.
    #[test]
    fn few_of_a_full_window_of_calls_are_visited() {
        const MANY: u64 = 1 << 15;
        let mut calls = Calls::new(MANY as u16, 64);
        (0..MANY).for_each(|_| push(&mut calls, (0, 0, 0, 1)));
        assert!(calls.is_full());
        for (n, role) in [0, 1, 100, MANY / 2 + 5, MANY - 1]
            .into_iter()
            .flat_map(|n| [(n, Role::Sends), (n, Role::Receives)])
        {
            VISITED.set(0);
            assert_eq!(calls.forward(endpoint(3), role, 0, n, MANY), Some(n));
            assert_eq!(calls.count(endpoint(3), role, 0, n), n);
            let visited = VISITED.get();
            assert!(visited < 6 * STRIDE, "{n}: {visited}");
        }
    }

    /// The collective of `g`, by a linear scan.
    fn of(calls: &Calls, g: u64) -> Option<&Collective> {
        calls.iter().map(|(_, c)| c).find(|c| c.start <= g && g < c.end())
    }

    proptest! {
        /// The mapping agrees with a walk over all packets.
        #[test]
        fn forward_and_count_agree_with_a_walk(calls in ring(), e in 0u8..4, sends: bool, skip in 0u64..60, length in 0u64..80) {
            let (e, role) = (endpoint(e.into()), if sends { Role::Sends } else { Role::Receives });
            let oldest = calls.iter().map(|(_, c)| c.start).next().unwrap_or(calls.end());
            let from = (oldest + skip).min(calls.end());
            let to = (from + length).min(calls.end());
            let goes: Vec<u64> = (from..calls.end())
                .filter(|&g| of(&calls, g).is_some_and(|c| c.involves(e, role, g)))
                .collect();
            let below = goes.iter().filter(|&&g| g < to).count();
            prop_assert_eq!(calls.count(e, role, from, to), below as u64);
            prop_assert_eq!(calls.settle(e, role, from), goes.first().copied().unwrap_or(calls.end()));
            for n in 0..=goes.len() as u64 + 1 {
                let expected = match goes.get(n as usize) {
                    Some(&g) => Some(g),
                    None if n == goes.len() as u64 => Some(calls.end()),
                    None => None,
                };
                prop_assert_eq!(calls.forward(e, role, from, n, calls.end()), expected, "{}", n);
            }
            for g in from..calls.end() + 1 {
                let found = calls.find(g).map(|i| calls.get(i).start);
                prop_assert_eq!(found, of(&calls, g).map(|c| c.start));
            }
        }

        /// With checkpoints, as well. A copy has the same ones.
        #[test]
        fn a_search_agrees_with_a_walk(
            calls in large_ring(), e in 0u8..4, sends: bool,
            queries in proptest::collection::vec((any::<u32>(), any::<u32>()), 1..20),
        ) {
            let mut copy = Calls::new(256, 4);
            copy.copy_state(&calls);
            prop_assert_eq!(&copy, &calls);
            let (e, role) = (endpoint(e.into()), if sends { Role::Sends } else { Role::Receives });
            let oldest = calls.iter().map(|(_, c)| c.start).next().unwrap_or(calls.end());
            let length = calls.end() - oldest;
            for (from, to) in queries {
                let from = oldest + u64::from(from) % (length + 1);
                let to = from + u64::from(to) % (calls.end() - from + 1);
                let count = walked(&calls, e, role, from, to);
                prop_assert_eq!(calls.count(e, role, from, to), count);
                prop_assert_eq!(calls.forward(e, role, from, count, u64::MAX), Some(calls.settle(e, role, to)));
                let all = walked(&calls, e, role, from, calls.end());
                prop_assert_eq!(calls.forward(e, role, from, all, calls.end()), Some(calls.end()));
                prop_assert_eq!(calls.forward(e, role, from, all + 1, u64::MAX), None);
            }
        }

        #[test]
        fn messages_are_counted_where_they_end(packets in 1u32..40, m in 0u16..12, from in 0u64..40, length in 0u64..40) {
            let call = Collective { call: Call { packets, ..NO_CALL }, start: 7, ..Collective::EMPTY };
            let (from, to) = (from.min(u64::from(packets)), (from + length).min(u64::from(packets)));
            let ends = |i: u64| i + 1 == u64::from(packets) || (m > 0 && (i + 1).is_multiple_of(u64::from(m)));
            let walked = (from..to).filter(|&i| ends(i)).count() as u32;
            prop_assert_eq!(call.messages(8 + from, 8 + to, m), walked);
            prop_assert_eq!(call.messages(7, 8, m), 1);
            let continues = (1..u64::from(packets)).contains(&from) && !ends(from - 1);
            prop_assert_eq!(from < u64::from(packets) && call.is_in_message(8 + from, m), continues);
        }
    }
}
