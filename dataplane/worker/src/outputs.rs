//! A worker's side of all ports: where it receives, and what it has gathered for sending.

use castnet_engine::{Egress, PortSet};
use castnet_port::{BATCH, Batch, FrameBuf, Memory, MemoryPort, PoolBuf, Port};
use castnet_wire::{DropReason, Drops, Nanos, PortId};

use crate::meter::{Meter, Part};

/// One port as this worker has it open.
pub(crate) struct Slot<M: Memory> {
    pub(crate) id: PortId,
    pub(crate) port: MemoryPort<M>,
    /// Whether this worker receives from it.
    pub(crate) receives: bool,
    /// Whether this worker tells control about its link.
    pub(crate) watched: bool,
    /// What control was last told about its link: whether there is one, and the MTU.
    pub(crate) told: (bool, usize),
    /// Its link's speed, as last seen.
    pub(crate) speed_mbps: Option<u32>,
    /// Frames that ended between this port and an engine.
    pub(crate) drops: Drops,
    out: Batch<M::Buf>,
}

/// All ports of the switch, in the order of the configuration.
pub(crate) struct Outputs<M: Memory> {
    pub(crate) slots: Vec<Slot<M>>,
    /// The place of each port among the slots; [`NOWHERE`] for those that the switch does not have.
    places: [u8; PortId::COUNT],
    /// Slots that have something to send: one bit each.
    waiting: u64,
    /// Ports that send frames of several segments: one bit each, by number.
    multi_segment: u64,
    memory: M,
    /// Here, since ports send while the engine works.
    pub(crate) meter: Meter,
}

const NOWHERE: u8 = u8::MAX;

impl<M: Memory> Outputs<M> {
    pub(crate) fn new(memory: M, meter: Meter) -> Self {
        Self {
            memory,
            meter,
            slots: Vec::with_capacity(PortId::COUNT),
            places: [NOWHERE; PortId::COUNT],
            waiting: 0,
            multi_segment: 0,
        }
    }

    /// Adds a port. Of two with one number the later counts; configurations with such are refused before.
    pub(crate) fn add(&mut self, id: PortId, port: MemoryPort<M>, receives: bool, watched: bool) {
        self.places[id.index()] = self.slots.len() as u8;
        self.multi_segment |= u64::from(port.multi_segment()) << id.index();
        let (told, speed_mbps) = ((port.is_up(), port.mtu()), port.speed_mbps());
        self.slots.push(Slot {
            id,
            port,
            receives,
            watched,
            told,
            speed_mbps,
            drops: Drops::default(),
            out: Batch::new(),
        });
    }

    /// Sends all that was gathered.
    pub(crate) fn flush(&mut self) {
        while self.waiting != 0 {
            let place = self.waiting.trailing_zeros();
            self.waiting &= self.waiting - 1;
            let slot = &mut self.slots[place as usize];
            slot.port.send(&mut slot.out);
        }
    }

    /// When a port has something to do by itself.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.slots.iter().filter_map(|s| s.port.poll_timeout()).min()
    }

    /// Whether a port has something: received frames, or what other workers want sent.
    pub(crate) fn ready(&self) -> bool {
        self.slots.iter().any(|s| s.port.ready())
    }

    /// Counts a frame that came in by `port` and ended before it reached an engine.
    pub(crate) fn count_drop(&mut self, port: PortId, reason: DropReason) {
        if let Some(slot) = self.slot(port) {
            slot.drops[reason] += 1;
        }
    }

    fn slot(&mut self, port: PortId) -> Option<&mut Slot<M>> {
        self.slots.get_mut(usize::from(self.places[port.index()]))
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
        let place = self.places[port.index()];
        // The engine knows the same ports as this table.
        let Some(slot) = self.slots.get_mut(usize::from(place)) else {
            return;
        };
        slot.out.push(frame);
        if slot.out.is_full() {
            self.meter.lap(Part::Engine);
            slot.port.send(&mut slot.out);
            self.meter.lap(Part::Send);
            self.waiting &= !(1 << place);
        } else {
            self.waiting |= 1 << place;
        }
    }
}

// The set of waiting slots is one word.
const _: () = assert!(PortId::COUNT <= 64 && BATCH > 1 && PoolBuf::HEAD >= 128);
