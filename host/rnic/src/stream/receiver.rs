use castnet_endpoint::{Access, Completion, LocalSlice, OutOfRange, RecvWr};
use castnet_wire::{Pmtu, Qpn};

use super::error::{StreamError, check_work};
use super::frame::{
    self, Digest, LANES_MAX, MESSAGE_MAX, MESSAGE_MIN, MessageKind, OpenStream, StreamHeader, StreamSummary,
};
use crate::rnic::{MemoryRegion, Rnic};

/// Configuration of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// True if the sender uses WRITE.
    pub by_write: bool,
    /// Bytes of a full message, 1 KiB to 16 MiB. The same at both sides.
    pub message_size: u32,
    /// Messages in the ring of each lane: 2 to 65,536, and at most the capacity of the QP's receive queue.
    /// With WRITE the same at the sender and all receivers.
    pub slots: u32,
}

impl ReceiverConfig {
    /// Messages of 64 KiB and 32 slots: 2 MiB.
    pub const fn new(by_write: bool) -> Self {
        Self {
            by_write,
            message_size: 64 << 10,
            slots: 32,
        }
    }
}

/// An event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A stream has begun.
    Begin(&'a StreamHeader),
    /// The next bytes of the stream.
    Data(&'a [u8]),
    /// The stream has ended, and its digest is correct.
    End(StreamSummary),
}

/// A QP and its ring of `slots` buffers of `size` bytes.
pub(crate) struct ReceiveLane {
    pub(crate) qpn: Qpn,
    pub(crate) ring: MemoryRegion,
    by_write: bool,
    size: u32,
    slots: u32,
}

impl ReceiveLane {
    /// Creates the lanes of a receiver, and posts their receives.
    pub(crate) fn all(
        rnic: &mut dyn Rnic,
        qpns: &[Qpn],
        by_write: bool,
        size: u32,
        slots: u32,
    ) -> Result<Vec<Self>, StreamError> {
        OutOfRange::check("slots", slots, 2, 1 << 16)?;
        OutOfRange::check("lanes", qpns.len() as u64, 1, LANES_MAX)?;
        let lane = |&qpn| Self::new(&mut *rnic, qpn, by_write, size, slots);
        qpns.iter().map(lane).collect()
    }

    fn new(
        rnic: &mut dyn Rnic,
        qpn: Qpn,
        by_write: bool,
        size: u32,
        slots: u32,
    ) -> Result<Self, StreamError> {
        let access = match by_write {
            true => Access::REMOTE_WRITE,
            false => Access::LOCAL,
        };
        let lane = Self {
            qpn,
            ring: rnic.register_memory(size as usize * slots as usize, access)?,
            by_write,
            size,
            slots,
        };
        for number in 0..lane.receives() {
            lane.post(rnic, number.into())?;
        }
        Ok(lane)
    }

    /// Number of posted receives: one less with WRITE, see the flow control in the module documentation.
    fn receives(&self) -> u32 {
        self.slots - u32::from(self.by_write)
    }

    fn slot(&self, number: u64) -> u64 {
        number % u64::from(self.slots)
    }

    /// Posts the receive for message `number` of the lane, or, with WRITE, an empty one.
    pub(crate) fn post(&self, rnic: &mut dyn Rnic, number: u64) -> Result<(), StreamError> {
        let wr_id = self.slot(number);
        let local = match self.by_write {
            true => LocalSlice::EMPTY,
            false => LocalSlice {
                key: self.ring.key,
                offset: wr_id * u64::from(self.size),
                length: self.size,
            },
        };
        Ok(rnic.post_recv(self.qpn, RecvWr { wr_id, local })?)
    }

    /// Copies message `number` of the lane out of its slot.
    pub(crate) fn read(&self, rnic: &dyn Rnic, number: u64, out: &mut [u8]) -> Result<(), StreamError> {
        let offset = self.slot(number) * u64::from(self.size);
        Ok(rnic.read_memory(self.ring.key, offset, out)?)
    }
}

/// The receiving side: a ring of buffers. A buffer is free again after its message was consumed. Only
/// [`StreamReceiver::next_event`] consumes messages: without calls the sender is blocked.
pub struct StreamReceiver {
    message_size: u32,
    lanes: Vec<ReceiveLane>,
    /// Messages consumed, over all streams.
    consumed: u64,
    /// Messages that this host has sent to the group: they count like those of other hosts.
    sent: u64,
    /// Turns of members that did not become the source: they count for nothing.
    discarded: u64,
    /// Packets of all messages consumed.
    packets: u64,
    pmtu: Pmtu,
    /// The turn of another member, which [`StreamReceiver::next_turn`] has found.
    pending: Option<Completion>,
    open: Option<OpenStream>,
    message: Vec<u8>,
}

/// What a member says of its turn.
#[derive(Clone, Copy)]
struct Turn {
    is_withdrawal: bool,
    /// The number of the next message minus its number.
    behind: u32,
}

impl Turn {
    /// Of a member that did not become the source.
    fn is_old(self) -> bool {
        self.behind > 0
    }
}

/// The other members that want to send next.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    turns: u32,
    withdrawals: u32,
}

impl Rivals {
    fn count(&mut self, turn: Turn) {
        match turn {
            _ if turn.is_old() => {}
            Turn {
                is_withdrawal: false, ..
            } => self.turns += 1,
            Turn {
                is_withdrawal: true, ..
            } => self.withdrawals += 1,
        }
    }

    /// Whether a turn has no withdrawal.
    pub(super) fn any(&self) -> bool {
        self.turns > self.withdrawals
    }

    #[cfg(test)]
    pub(super) fn add(&mut self, turns: u32, withdrawals: u32) {
        self.turns += turns;
        self.withdrawals += withdrawals;
    }
}

impl StreamReceiver {
    /// Creates a receiver over lanes, each with its own ring, and posts its receives. The QPs have received nothing yet
    /// and need not be connected; no other code may post receives to them. Fails if a value is out of range, or the RNIC
    /// has no capacity for the memory or receives.
    pub fn new(rnic: &mut dyn Rnic, config: ReceiverConfig, qpns: &[Qpn]) -> Result<Self, StreamError> {
        let ReceiverConfig {
            by_write,
            message_size,
            slots,
        } = config;
        OutOfRange::check("message_size", message_size, MESSAGE_MIN, MESSAGE_MAX)?;
        Ok(Self {
            lanes: ReceiveLane::all(rnic, qpns, by_write, message_size, slots)?,
            message_size,
            consumed: 0,
            sent: 0,
            discarded: 0,
            packets: 0,
            pmtu: Pmtu::B1024,
            pending: None,
            open: None,
            message: Vec::with_capacity(message_size as usize),
        })
    }

    /// The rings, one per lane. With WRITE, a member of a group publishes them as its memory.
    pub fn rings(&self) -> impl Iterator<Item = MemoryRegion> {
        self.lanes.iter().map(|lane| lane.ring)
    }

    /// Messages of all streams of the group so far: the number of the next one.
    pub fn messages(&self) -> u64 {
        self.consumed + self.sent - self.discarded
    }

    /// Packets of all messages consumed so far, of QPs whose path MTU is that of [`StreamReceiver::set_pmtu`].
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The path MTU of the QPs; 1024 before.
    pub fn set_pmtu(&mut self, pmtu: Pmtu) {
        self.pmtu = pmtu;
    }

    /// Whether the turn of another member has arrived. The next [`StreamReceiver::next_event`] consumes it.
    pub fn next_turn(&mut self, rnic: &mut dyn Rnic) -> Result<bool, StreamError> {
        while self.pending.is_none() {
            let Some(completion) = rnic.poll_recv_completion(self.lanes[0].qpn) else {
                break;
            };
            if self.turn(&completion).is_some_and(Turn::is_old) {
                self.take(rnic, 0, &completion, true)?;
            } else {
                self.pending = Some(completion);
            }
        }
        Ok(self.pending.is_some())
    }

    /// Consumes the turns and withdrawals of other members and counts those for the present turn. Returns whether another message has
    /// arrived: the member that has sent it is the source. One turn counts as a message then.
    pub(super) fn next_after_turns(
        &mut self,
        rnic: &mut dyn Rnic,
        rivals: &mut Rivals,
    ) -> Result<bool, StreamError> {
        while self.pending.is_none() {
            let Some(completion) = rnic.poll_recv_completion(self.lanes[0].qpn) else {
                break;
            };
            let Some(turn) = self.turn(&completion) else {
                self.discarded -= u64::from(rivals.turns > 0);
                self.pending = Some(completion);
                break;
            };
            rivals.count(turn);
            self.take(rnic, 0, &completion, true)?;
        }
        Ok(self.pending.is_some())
    }

    /// Posts the receives of a QP again that was reset. All messages that have arrived were consumed.
    pub fn post_again(&self, rnic: &mut dyn Rnic) -> Result<(), StreamError> {
        for lane in &self.lanes {
            let next = self.consumed / self.lanes.len() as u64;
            for number in next..next + u64::from(lane.receives()) {
                lane.post(rnic, number)?;
            }
        }
        Ok(())
    }

    /// The turn or withdrawal that arrived, if it is one.
    fn turn(&self, completion: &Completion) -> Option<Turn> {
        let (kind, found) = completion.imm.map(frame::read_immediate)?;
        let is_withdrawal = match kind {
            MessageKind::Turn => false,
            MessageKind::End if completion.byte_len == 0 => true,
            _ => return None,
        };
        let behind = (self.messages() as u32).wrapping_sub(found) & 0x3FFF_FFFF;
        (behind < 1 << 29).then_some(Turn {
            is_withdrawal,
            behind,
        })
    }

    /// This host has sent so many messages to the group, which has one lane and all of whose members number them in common.
    pub fn note_sent(&mut self, messages: u64) {
        self.sent += messages;
    }

    /// The stream that is being received, and its bytes so far.
    pub fn open_stream(&self) -> Option<(&StreamHeader, u64)> {
        self.open.as_ref().map(|open| (&open.header, open.bytes))
    }

    /// Takes the stream that is being received: no more of it will come.
    pub fn take_open_stream(&mut self) -> Option<OpenStream> {
        self.open.take()
    }

    /// Consumes the next message; `None` if none has arrived.
    ///
    /// # Errors
    /// The QP has failed, the messages do not form a stream, or bytes differ from those sent.
    pub fn next_event(&mut self, rnic: &mut dyn Rnic) -> Result<Option<Event<'_>>, StreamError> {
        let kind = loop {
            let lane_index = (self.consumed % self.lanes.len() as u64) as usize;
            let qpn = self.lanes[lane_index].qpn;
            let pending = self.pending.take();
            let Some(completion) = pending.or_else(|| rnic.poll_recv_completion(qpn)) else {
                return Ok(None);
            };
            let is_old = self.turn(&completion).is_some_and(Turn::is_old);
            match self.take(rnic, lane_index, &completion, is_old)? {
                MessageKind::Turn => {}
                _ if is_old => {}
                kind => break kind,
            }
        };
        let number = self.consumed - 1;
        let malformed = |what| StreamError::Malformed { number, what };
        match (kind, &mut self.open) {
            (MessageKind::Begin, open @ None) => {
                let header = frame::read_begin(&self.message).map_err(malformed)?;
                let open = open.insert(OpenStream::new(header));
                Ok(Some(Event::Begin(&open.header)))
            }
            (MessageKind::Data, Some(open)) => {
                open.add(&self.message);
                open.check_length(open.bytes, false)?;
                Ok(Some(Event::Data(&self.message)))
            }
            (MessageKind::End, open @ Some(_)) => {
                let end = frame::read_end(&self.message).ok_or(malformed("its end is malformed"))?;
                let ended = open.take().ok_or(malformed("an end without a begin"))?;
                finish(&ended, end).map(|summary| Some(Event::End(summary)))
            }
            (_, Some(_)) => Err(malformed("a begin inside a stream")),
            (_, None) => Err(malformed("no stream has begun")),
        }
    }

    /// Copies a message out of its slot and frees the slot. `is_discarded`: it is a turn or withdrawal that counts for nothing.
    fn take(
        &mut self,
        rnic: &mut dyn Rnic,
        lane_index: usize,
        completion: &Completion,
        is_discarded: bool,
    ) -> Result<MessageKind, StreamError> {
        let Completion { byte_len, imm, .. } = *completion;
        check_work(completion, lane_index, self.lanes.len())?;
        let number = self.consumed;
        let malformed = |what| StreamError::Malformed { number, what };
        let imm = imm.ok_or(malformed("it has no immediate"))?;
        let (kind, found) = frame::read_immediate(imm);
        let expected = self.messages();
        if !is_discarded && found != expected as u32 & 0x3FFF_FFFF {
            return Err(StreamError::OutOfSequence { expected, found });
        }
        if byte_len > self.message_size {
            return Err(malformed("it is longer than a slot"));
        }
        if kind == MessageKind::Turn && (byte_len > 0 || self.open.is_some() && !is_discarded) {
            return Err(malformed("a turn has no payload, and is in no stream"));
        }
        let lanes = self.lanes.len() as u64;
        let lane = &self.lanes[lane_index];
        // A sender of WRITEs knows how many messages the group has had, not how many of them this host has received.
        let slot = if lane.by_write { expected } else { number };
        self.message.resize(byte_len as usize, 0);
        lane.read(rnic, slot / lanes, &mut self.message)?;
        self.consumed += 1;
        self.discarded += u64::from(is_discarded);
        self.packets += self.pmtu.packets(byte_len.into());
        lane.post(rnic, number / lanes)?;
        Ok(kind)
    }

    /// Releases the memory. The QPs must have been destroyed or failed before.
    pub fn close(self, rnic: &mut dyn Rnic) -> Result<(), StreamError> {
        for lane in &self.lanes {
            rnic.deregister_memory(lane.ring.key)?;
        }
        Ok(())
    }
}

fn finish(open: &OpenStream, (sent_bytes, sent): (u64, Digest)) -> Result<StreamSummary, StreamError> {
    open.check_length(open.bytes, true)?;
    let summary = open.summary();
    if summary.digest != sent || summary.bytes != sent_bytes {
        return Err(StreamError::Digest {
            name: summary.name,
            bytes: summary.bytes,
            sent_bytes,
        });
    }
    Ok(summary)
}
