//! A worker's ports: the receive sides and the batches gathered for sending.

use castnet_engine::{Egress, PortSet};
use castnet_pfc::{Admitted, NO_INGRESS, PausablePort, Pfc};
use castnet_port::{BATCH, Batch, FrameBuf, Memory, MemoryPort, PoolBuf, Port, PortLink};
use castnet_wire::{DropReason, Drops, MacAddr, Nanos, Pause, PortId, TrafficClass};
use crossbeam::channel::Sender;

use crate::housekeeping::Note;
use crate::meter::{Meter, Part};

pub(crate) struct PortSlot<M: Memory> {
    pub(crate) id: PortId,
    pub(crate) mac: MacAddr,
    pub(crate) port: MemoryPort<M>,
    pub(crate) receives: bool,
    pub(crate) reports_link: bool,
    /// Up or not, and the MTU, as last reported to control.
    pub(crate) reported_link: (bool, usize),
    pub(crate) speed_mbps: Option<u32>,
    /// Between this port and an engine.
    pub(crate) drops: Drops,
    /// Between an engine and this port.
    pub(crate) unsent: Drops,
    out: Batch<M::Buf>,
    /// The ingress slots of the frames in `out`.
    ingresses: [u8; BATCH],
}

/// A port as flow control sees it.
struct PausableSlot<'a, M: Memory> {
    slot: &'a mut PortSlot<M>,
    memory: &'a M,
    notes: &'a Sender<Note>,
}

impl<M: Memory> PausablePort for PausableSlot<'_, M> {
    type Buf = M::Buf;

    fn is_owner(&self) -> bool {
        self.slot.reports_link
    }

    fn speed_mbps(&self) -> Option<u32> {
        self.slot.speed_mbps
    }

    fn offer(&mut self, batch: &mut Batch<M::Buf>) {
        self.slot.port.offer(batch);
    }

    fn send_pause(&mut self, pause: &Pause) -> bool {
        let mut batch = Batch::new();
        batch.extend(self.memory.gather(&[&pause.emit(self.slot.mac)]));
        let is_made = !batch.is_empty();
        self.slot.port.offer(&mut batch);
        is_made && batch.is_empty()
    }

    fn count_drop(&mut self, reason: DropReason) {
        self.slot.unsent[reason] += 1;
    }

    /// If the queue of events is full, the counter alone shows the storm.
    fn report_storm(&mut self, at: Nanos, class: TrafficClass, has_storm: bool) {
        let port = self.slot.id;
        let _ = self.notes.try_send(Note::Storm {
            at,
            port,
            class,
            has_storm,
        });
    }
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
    /// Slot of the port that the engine processes frames of.
    ingress: u8,
    /// `None` if no port has flow control.
    pub(crate) pfc: Option<Box<Pfc<M::Buf>>>,
    /// Slots with flow control, and those of them that may hold frames back, one bit each.
    pub(crate) pfc_slots: u64,
    suspended: u64,
    memory: M,
    notes: Sender<Note>,
    /// The meter is here because ports send while the engine works.
    pub(crate) meter: Meter,
}

const NO_SLOT: u8 = u8::MAX;

impl<M: Memory> Outputs<M> {
    pub(crate) fn new(memory: M, meter: Meter, pfc: Option<Pfc<M::Buf>>, notes: Sender<Note>) -> Self {
        Self {
            memory,
            notes,
            meter,
            ingress: NO_INGRESS,
            pfc_slots: pfc.as_ref().map_or(0, Pfc::slots),
            pfc: pfc.map(Box::new),
            suspended: 0,
            slots: Vec::with_capacity(PortId::COUNT),
            slot_of_port: [NO_SLOT; PortId::COUNT],
            waiting: 0,
            multi_segment: 0,
        }
    }

    /// Port numbers are unique; the configuration is checked before. `link`: as the switch knows it, whatever it has become since.
    pub(crate) fn add(
        &mut self,
        id: PortId,
        port: MemoryPort<M>,
        link: &PortLink,
        receives: bool,
        reports_link: bool,
    ) {
        self.slot_of_port[id.index()] = self.slots.len() as u8;
        self.multi_segment |= u64::from(port.multi_segment()) << id.index();
        let (reported_link, speed_mbps) = ((link.up, link.mtu), port.speed_mbps());
        self.slots.push(PortSlot {
            id,
            mac: link.mac,
            port,
            receives,
            reports_link,
            reported_link,
            speed_mbps,
            drops: Drops::default(),
            unsent: Drops::default(),
            out: Batch::new(),
            ingresses: [NO_INGRESS; BATCH],
        });
    }

    pub(crate) fn flush(&mut self) {
        while self.waiting != 0 {
            let slot_index = self.waiting.trailing_zeros();
            self.waiting &= self.waiting - 1;
            self.send_out(slot_index as usize);
        }
    }

    #[inline]
    fn send_out(&mut self, slot_index: usize) {
        let slot = &mut self.slots[slot_index];
        if self.pfc_slots >> slot_index & 1 == 0 {
            return slot.port.send(&mut slot.out);
        }
        let offered = slot.out.len();
        slot.port.offer(&mut slot.out);
        if !slot.out.is_empty() {
            self.keep_unsent(slot_index, offered);
        }
    }

    /// The port has not accepted the last ones of `offered` frames. Those of lossless classes wait, the others are dropped.
    #[cold]
    fn keep_unsent(&mut self, slot_index: usize, offered: usize) {
        let (slot, Some(pfc)) = (&mut self.slots[slot_index], &mut self.pfc) else {
            return;
        };
        let first = offered - slot.out.len();
        for (frame, ingress) in slot.out.drain(..).zip(&slot.ingresses[first..]) {
            match pfc.admit(slot_index, *ingress, frame, true) {
                Admitted::Send(_) => slot.unsent[DropReason::TxFull] += 1,
                Admitted::Held => self.suspended |= 1 << slot_index,
                Admitted::Dropped(reason) => slot.unsent[reason] += 1,
            }
        }
    }

    /// Frames that the engine sends from now on are caused by frames of this port. `None`: by a timer or by control.
    #[inline]
    pub(crate) fn set_ingress(&mut self, port: Option<PortId>) {
        self.ingress = port.map_or(NO_INGRESS, |port| self.slot_of_port[port.index()].min(NO_INGRESS));
    }

    /// Flow control at the start of an iteration: sends what can leave again, and PAUSE. No frames are gathered.
    #[inline]
    pub(crate) fn poll_pfc(&mut self, now: Nanos) {
        if let Some(pfc) = &mut self.pfc {
            pfc.set_time(now);
            let slots = (pfc.attention() & self.pfc_slots) | self.suspended;
            if slots != 0 {
                self.poll_suspended(slots);
            }
        }
    }

    #[cold]
    fn poll_suspended(&mut self, mut slots: u64) {
        let Some(pfc) = &mut self.pfc else { return };
        while slots != 0 {
            let slot_index = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            let mut port = PausableSlot {
                slot: &mut self.slots[slot_index],
                memory: &self.memory,
                notes: &self.notes,
            };
            let is_suspended = pfc.poll(slot_index, &mut port);
            self.suspended &= !(1 << slot_index);
            self.suspended |= u64::from(is_suspended) << slot_index;
        }
    }

    /// Frames that wait for a port, here or in the port.
    pub(crate) fn pending(&self) -> usize {
        let ports: usize = self.slots.iter().map(|slot| slot.port.pending()).sum();
        ports + self.pfc.as_ref().map_or(0, |pfc| pfc.held())
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let ports = self.slots.iter().filter_map(|s| s.port.poll_timeout());
        let pfc = self.pfc.as_ref().and_then(|pfc| pfc.poll_timeout());
        ports.chain(pfc).min()
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

    fn send(&mut self, port: PortId, mut frame: M::Buf) {
        let slot_index = self.slot_of_port[port.index()];
        // The engine has the same ports as this table.
        let Some(slot) = self.slots.get_mut(usize::from(slot_index)) else {
            return;
        };
        if self.suspended >> slot_index & 1 != 0
            && let Some(pfc) = &mut self.pfc
        {
            frame = match pfc.admit(slot_index.into(), self.ingress, frame, false) {
                Admitted::Send(frame) => frame,
                Admitted::Held => return,
                Admitted::Dropped(reason) => return slot.unsent[reason] += 1,
            };
        }
        slot.ingresses[slot.out.len()] = self.ingress;
        slot.out.push(frame);
        if slot.out.is_full() {
            self.meter.lap(Part::Engine);
            self.send_out(slot_index.into());
            self.meter.lap(Part::Send);
            self.waiting &= !(1 << slot_index);
        } else {
            self.waiting |= 1 << slot_index;
        }
    }
}

// `waiting` is one word.
const _: () = assert!(PortId::COUNT <= 64 && BATCH > 1 && PoolBuf::HEAD >= 128);
