//! A worker's ports: the receive sides and the batches gathered for sending.

use castnet_engine::{Egress, PortSet};
use castnet_port::{BATCH, Batch, FrameBuf, Memory, MemoryPort, PoolBuf, Port};
use castnet_wire::{DropReason, Drops, Nanos, PortId};

use crate::meter::{Meter, Part};

pub(crate) struct PortSlot<M: Memory> {
    pub(crate) id: PortId,
    pub(crate) port: MemoryPort<M>,
    pub(crate) receives: bool,
    pub(crate) reports_link: bool,
    /// Up or not, and the MTU, as last reported to control.
    pub(crate) reported_link: (bool, usize),
    pub(crate) speed_mbps: Option<u32>,
    /// Between this port and an engine.
    pub(crate) drops: Drops,
    out: Batch<M::Buf>,
}

/// In the order of the configuration.
pub(crate) struct Outputs<M: Memory> {
    pub(crate) slots: Vec<PortSlot<M>>,
    /// [`NO_SLOT`] for ports that the switch does not have.
    slot_of_port: [u8; PortId::COUNT],
    /// Slots with gathered frames, one bit each.
    waiting: u64,
    /// Ports that send frames of several segments, one bit each by port number.
    multi_segment: u64,
    memory: M,
    /// The meter is here because ports send while the engine works.
    pub(crate) meter: Meter,
}

const NO_SLOT: u8 = u8::MAX;

impl<M: Memory> Outputs<M> {
    pub(crate) fn new(memory: M, meter: Meter) -> Self {
        Self {
            memory,
            meter,
            slots: Vec::with_capacity(PortId::COUNT),
            slot_of_port: [NO_SLOT; PortId::COUNT],
            waiting: 0,
            multi_segment: 0,
        }
    }

    /// Port numbers are unique; the configuration is checked before.
    pub(crate) fn add(&mut self, id: PortId, port: MemoryPort<M>, receives: bool, reports_link: bool) {
        self.slot_of_port[id.index()] = self.slots.len() as u8;
        self.multi_segment |= u64::from(port.multi_segment()) << id.index();
        let (reported_link, speed_mbps) = ((port.is_up(), port.mtu()), port.speed_mbps());
        self.slots.push(PortSlot {
            id,
            port,
            receives,
            reports_link,
            reported_link,
            speed_mbps,
            drops: Drops::default(),
            out: Batch::new(),
        });
    }

    pub(crate) fn flush(&mut self) {
        while self.waiting != 0 {
            let slot_index = self.waiting.trailing_zeros();
            self.waiting &= self.waiting - 1;
            let slot = &mut self.slots[slot_index as usize];
            slot.port.send(&mut slot.out);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.slots.iter().filter_map(|s| s.port.poll_timeout()).min()
    }

    /// Returns true if a port has received frames, or frames of other workers to send.
    pub(crate) fn ready(&self) -> bool {
        self.slots.iter().any(|s| s.port.ready())
    }

    /// The frame was received by `port` and dropped before it reached an engine.
    pub(crate) fn count_drop(&mut self, port: PortId, reason: DropReason) {
        let slot_index = self.slot_of_port[port.index()];
        if let Some(slot) = self.slots.get_mut(usize::from(slot_index)) {
            slot.drops[reason] += 1;
        }
    }
}

impl<M: Memory> Egress for Outputs<M> {
    type Buf = M::Buf;

    #[inline]
    fn replicate(&mut self, port: PortId, original: &M::Buf, header: usize) -> Option<M::Buf> {
        let multi_segment = self.multi_segment >> port.index() & 1 != 0;
        self.memory.replicate(original, header, multi_segment)
    }

    #[inline]
    fn lends(&self, ports: PortSet, length: usize) -> bool {
        self.multi_segment & ports.0 == ports.0 && self.memory.lends(length)
    }

    #[inline]
    fn lend(&mut self, original: &M::Buf, to_come: usize) -> Option<M::Buf> {
        self.memory.lend(original, to_come)
    }

    #[inline]
    fn allocate(&mut self, _: PortId, length: usize) -> Option<M::Buf> {
        self.memory.allocate(length)
    }

    #[inline]
    fn gather(&mut self, _: PortId, parts: &[&[u8]]) -> Option<M::Buf> {
        self.memory.gather(parts)
    }

    fn send(&mut self, port: PortId, frame: M::Buf) {
        let slot_index = self.slot_of_port[port.index()];
        // The engine has the same ports as this table.
        let Some(slot) = self.slots.get_mut(usize::from(slot_index)) else {
            return;
        };
        slot.out.push(frame);
        if slot.out.is_full() {
            self.meter.lap(Part::Engine);
            slot.port.send(&mut slot.out);
            self.meter.lap(Part::Send);
            self.waiting &= !(1 << slot_index);
        } else {
            self.waiting |= 1 << slot_index;
        }
    }
}

// `waiting` is one word.
const _: () = assert!(PortId::COUNT <= 64 && BATCH > 1 && PoolBuf::HEAD >= 128);
