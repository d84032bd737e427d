//! Counting of the packets that an endpoint sends or receives over the collectives in flight: by checkpoints, so that the work does not
//! grow with their number.

use super::{Calls, Collective, Role};
use crate::translated::EndpointId;
use alloc::boxed::Box;
use alloc::vec;
use castnet_wire::Primitive;

/// Collectives from one checkpoint to the next. Counting starts at a checkpoint, and so visits at most so many of them.
pub(super) const STRIDE: u32 = 64;

/// The numbers of packets before a collective. Only differences are used, so it does not matter where they start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tally {
    /// Of an endpoint that is no root.
    sends: u64,
    receives: u64,
    /// By endpoint: the packets that it sends as a root and others receive, less those that it receives as a root and others send.
    pub(super) as_root: Box<[i64]>,
}

impl Tally {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            as_root: vec![0; endpoints].into_boxed_slice(),
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, collective: &Collective) {
        let (all, packets) = (collective.call.all_packets(), i64::from(collective.call.packets));
        let (sends, receives, as_root) = match collective.call.primitive {
            Primitive::AllReduce => (all, all, 0),
            Primitive::Reduce => (all, 0, -packets),
            Primitive::Broadcast => (0, all, packets),
        };
        self.sends += 1 + sends;
        self.receives += 1 + receives;
        if as_root != 0 {
            for root in collective.roots() {
                if let Some(sum) = self.as_root.get_mut(root.index()) {
                    *sum += as_root;
                }
            }
        }
    }

    fn of(&self, endpoint: EndpointId, role: Role) -> u64 {
        let as_root = self.as_root.get(endpoint.index()).copied().unwrap_or(0);
        match role {
            Role::Sends => self.sends.wrapping_add_signed(as_root),
            Role::Receives => self.receives.wrapping_add_signed(-as_root),
        }
    }

    /// Does not allocate: both have the same endpoints.
    pub(super) fn copy(&mut self, of: &Self) {
        (self.sends, self.receives) = (of.sends, of.receives);
        self.as_root.clone_from(&of.as_root);
    }

    pub(super) fn clear(&mut self) {
        (self.sends, self.receives) = (0, 0);
        self.as_root.fill(0);
    }
}

impl Calls {
    /// Packets from `from` to before `to` for which `endpoint` has this role.
    pub(crate) fn count(&self, endpoint: EndpointId, role: Role, from: u64, to: u64) -> u64 {
        let to = to.min(self.end);
        let Some(first) = self.nth_of(from).filter(|_| from < to) else {
            return 0;
        };
        let (begin, last) = (self.nth(first), self.nth_of(to).unwrap_or(self.count));
        if first == last {
            return begin.count(endpoint, role, from, to);
        }
        let behind = match last == self.count {
            true => 0,
            false => {
                let end = self.nth(last);
                end.count(endpoint, role, end.start, to)
            }
        };
        begin.count(endpoint, role, from, begin.end())
            + self.between(endpoint, role, first + 1, last)
            + behind
    }

    /// The position `count` packets of this role after `from`, settled; `None` if that is past `limit`.
    pub(crate) fn forward(
        &self,
        endpoint: EndpointId,
        role: Role,
        from: u64,
        count: u64,
        limit: u64,
    ) -> Option<u64> {
        let to = match self.nth_of(from) {
            Some(nth) => {
                let call = self.nth(nth);
                let before = call.count(endpoint, role, call.start, from);
                self.position(endpoint, role, nth, before + count)?
            }
            None if count == 0 => from,
            None => return None,
        };
        (to <= limit).then_some(to)
    }

    /// The position of the packet `index` of this role, counted from the collective `nth` on: the end of all if it is the next one.
    fn position(&self, endpoint: EndpointId, role: Role, nth: u32, index: u64) -> Option<u64> {
        let walk = |section: u32, from: u32, mut left: u64| {
            for nth in from..self.section_start(section + 1).min(self.count) {
                let call = self.nth(nth);
                let packets = call.packets(endpoint, role);
                if left < packets {
                    return Ok(call.position(endpoint, role, left));
                }
                left -= packets;
            }
            Err(left)
        };
        let (here, last) = (self.section(nth), self.section(self.count - 1));
        let mut left = match walk(here, nth, index) {
            Ok(g) => return Some(g),
            Err(left) => left,
        };
        if here < last {
            let before = |section: u32| self.checkpoint(section).of(endpoint, role);
            let target = before(here + 1) + left;
            let (mut low, mut high) = (here + 1, last + 1);
            while high - low > 1 {
                let middle = low.midpoint(high);
                if before(middle) <= target {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            left = match walk(low, self.section_start(low), target - before(low)) {
                Ok(g) => return Some(g),
                Err(left) => left,
            };
        }
        (left == 0).then_some(self.end)
    }

    /// Packets of this role in the collectives `from` to before `to`.
    fn between(&self, endpoint: EndpointId, role: Role, from: u32, to: u32) -> u64 {
        let sum =
            |from: u32, to: u32| -> u64 { (from..to).map(|nth| self.nth(nth).packets(endpoint, role)).sum() };
        if to - from <= STRIDE || self.checkpoints.is_empty() {
            return sum(from, to);
        }
        let before = |nth: u32| match nth == self.count {
            true => self.next.of(endpoint, role),
            false => {
                let section = self.section(nth);
                self.checkpoint(section).of(endpoint, role) + sum(self.section_start(section), nth)
            }
        };
        before(to) - before(from)
    }

    /// The section of a collective in flight: 0 from the oldest one on, then one more from each checkpoint on.
    pub(super) fn section(&self, nth: u32) -> u32 {
        match self.checkpoints.is_empty() {
            true => 0,
            false => (self.first % STRIDE + nth) / STRIDE,
        }
    }

    /// The first collective of a section; without checkpoints, section 0 has no end.
    pub(super) fn section_start(&self, section: u32) -> u32 {
        match section {
            0 => 0,
            _ if self.checkpoints.is_empty() => u32::MAX,
            _ => section * STRIDE - self.first % STRIDE,
        }
    }

    /// Before the first collective of a section, some of which are in flight.
    fn checkpoint(&self, section: u32) -> &Tally {
        let index = self.index(self.section_start(section)) / STRIDE as usize;
        match section {
            0 => &self.oldest,
            _ => self.checkpoints.get(index).unwrap_or(&self.oldest),
        }
    }
}
