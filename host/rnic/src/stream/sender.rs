use castnet_endpoint::{Access, LocalSlice, OutOfRange, SendOp, SendWr};
use castnet_wire::{Pmtu, Qpn};

use super::error::{StreamError, check_work};
use super::frame::{
    self, LANES_MAX, MESSAGE_MAX, MESSAGE_MIN, MessageKind, OpenStream, StreamHeader, StreamSummary,
};
use crate::rnic::{MemoryRegion, Rnic};

/// The receivers' ring as WRITEs address it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRing {
    /// Virtual address of the first byte. For a group its base address, which switches translate per receiver.
    pub va: u64,
    /// Remote key. For a group any value; switches insert each receiver's key.
    pub rkey: u32,
    /// Slots of `message_size` bytes. The same at all receivers.
    pub slots: u32,
}

/// The operation that transfers the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// SEND with immediate.
    Send,
    /// WRITE with immediate.
    Write(RemoteRing),
}

impl Transfer {
    /// The operation for message `number` of a lane. Slots have `size` bytes.
    pub(crate) fn op(self, number: u64, size: u32, imm: u32) -> SendOp {
        match self {
            Self::Send => SendOp::SendImm(imm),
            Self::Write(RemoteRing { va, rkey, slots }) => {
                let slot = number % u64::from(slots.max(1));
                let va = va.wrapping_add(slot * u64::from(size));
                SendOp::WriteImm { va, rkey, imm }
            }
        }
    }
}

/// A QP that carries a part of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderLane {
    /// The QP. No other code may post sends to it.
    pub qpn: Qpn,
    /// The transfer. All lanes use the same operation.
    pub transfer: Transfer,
}

/// Configuration of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Bytes of a full message, 1 KiB to 16 MiB. The same at both sides.
    pub message_size: u32,
    /// Most unacknowledged messages per lane, 1 to 4096: at most the QP's send queue; the sender has memory for them.
    pub in_flight: u32,
    /// Path MTU of the QPs, to count packets.
    pub pmtu: Pmtu,
}

impl Default for SenderConfig {
    /// Messages of 64 KiB, 16 in flight.
    fn default() -> Self {
        Self {
            message_size: 64 << 10,
            in_flight: 16,
            pmtu: Pmtu::B1024,
        }
    }
}

struct Lane {
    at: SenderLane,
    posted: u64,
    acknowledged: u64,
}

/// The sending side. Call [`StreamSender::start`], then [`StreamSender::write`] until all bytes are accepted, then
/// [`StreamSender::finish`]. In between, and until [`StreamSender::is_drained`], call [`Rnic::poll`] and
/// [`StreamSender::poll`]. Then the next stream may start. Messages are numbered, so all receivers must exist before
/// the first stream.
pub struct StreamSender {
    pub(super) config: SenderConfig,
    lanes: Vec<Lane>,
    /// `in_flight` messages per lane.
    staging: MemoryRegion,
    /// Number of its first message.
    first: u64,
    /// Messages posted, over all streams.
    posted: u64,
    /// Of them, turns and withdrawals that receivers discard: all but one turn.
    discarded: u64,
    /// Packets of these messages.
    packets: u64,
    /// Bytes in the message that is being filled.
    filled: u32,
    /// Number of messages posted before the present or last stream.
    before: u64,
    open: Option<OpenStream>,
    /// The last stream, after its end.
    ended: Option<OpenStream>,
}

impl StreamSender {
    /// Creates a sender over lanes, whose order must be the same at all receivers. Their QPs are connected and have sent
    /// nothing yet. Fails if a value is out of range or memory is short.
    pub fn new(rnic: &mut dyn Rnic, config: SenderConfig, lanes: &[SenderLane]) -> Result<Self, StreamError> {
        OutOfRange::check("message_size", config.message_size, MESSAGE_MIN, MESSAGE_MAX)?;
        OutOfRange::check("in_flight", config.in_flight, 1, 4096)?;
        OutOfRange::check("lanes", lanes.len() as u64, 1, LANES_MAX)?;
        let lane = |&at| Lane {
            at,
            posted: 0,
            acknowledged: 0,
        };
        let lanes: Vec<Lane> = lanes.iter().map(lane).collect();
        for lane in &lanes {
            if let Transfer::Write(ring) = lane.at.transfer {
                OutOfRange::check("slots", ring.slots, 2, 1 << 16)?;
            }
        }
        let bytes = config.message_size as usize * config.in_flight as usize;
        let staging = rnic.register_memory(bytes * lanes.len(), Access::READ)?;
        Ok(Self {
            config,
            lanes,
            staging,
            first: 0,
            posted: 0,
            discarded: 0,
            packets: 0,
            filled: 0,
            before: 0,
            open: None,
            ended: None,
        })
    }

    /// The first message has this number: other hosts have sent the messages before, in a group with one lane.
    #[must_use]
    pub fn beginning_at(mut self, number: u64) -> Self {
        self.first = number;
        self
    }

    fn next_lane(&self) -> usize {
        (self.posted % self.lanes.len() as u64) as usize
    }

    fn has_capacity(&self) -> bool {
        let lane = &self.lanes[self.next_lane()];
        lane.posted - lane.acknowledged < u64::from(self.config.in_flight)
    }

    fn staged_at(&self) -> u64 {
        let lane = self.next_lane();
        self.slot(lane, self.lanes[lane].posted)
    }

    /// Offset of message `number` of a lane in the staging memory.
    fn slot(&self, lane: usize, number: u64) -> u64 {
        let in_flight = u64::from(self.config.in_flight);
        (lane as u64 * in_flight + number % in_flight) * u64::from(self.config.message_size)
    }

    /// Messages posted so far, over all streams, without those that receivers discard.
    pub fn messages_posted(&self) -> u64 {
        self.posted - self.discarded
    }

    /// Messages acknowledged by all receivers so far, over all streams.
    pub fn messages_acknowledged(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.acknowledged).sum()
    }

    /// Whether messages are under way.
    pub fn has_unacknowledged(&self) -> bool {
        self.posted != self.messages_acknowledged()
    }

    /// Packets of all messages posted so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Posts the turn of this member, before its first stream.
    pub(super) fn post_turn(&mut self, rnic: &mut dyn Rnic) -> Result<(), StreamError> {
        self.post(rnic, MessageKind::Turn)
    }

    /// Withdraws the turn.
    pub(super) fn post_withdrawal(&mut self, rnic: &mut dyn Rnic) -> Result<(), StreamError> {
        self.discarded += 1;
        self.post(rnic, MessageKind::End)
    }

    /// Posts the turn after its withdrawal. It has the same number.
    pub(super) fn post_turn_again(&mut self, rnic: &mut dyn Rnic) -> Result<(), StreamError> {
        self.discarded += 1;
        self.post(rnic, MessageKind::Turn)
    }

    /// The present stream, or the last one.
    pub fn stream(&self) -> Option<&OpenStream> {
        self.open.as_ref().or(self.ended.as_ref())
    }

    /// Bytes from the begin of the present or last stream that all receivers have acknowledged.
    pub fn bytes_acknowledged(&self) -> u64 {
        let lanes = self.lanes.len() as u64;
        // The first message of each lane that is not acknowledged.
        let first = (0..)
            .zip(&self.lanes)
            .map(|(at, lane)| lane.acknowledged * lanes + at);
        let messages = first.min().unwrap_or(0).saturating_sub(self.before + 1);
        let bytes = self.stream().map_or(0, |stream| stream.bytes);
        messages
            .saturating_mul(self.config.message_size.into())
            .min(bytes)
    }

    /// The bytes that were accepted after those of [`StreamSender::bytes_acknowledged`]. Some receivers may have some of them.
    pub fn unacknowledged(&self, rnic: &dyn Rnic) -> Result<Vec<u8>, StreamError> {
        let (from, size) = (self.bytes_acknowledged(), u64::from(self.config.message_size));
        let all = self.stream().map_or(0, |stream| stream.bytes);
        let mut bytes = vec![0; (all - from) as usize];
        // Each is in its slot until it is acknowledged. All but the last are full.
        for (number, out) in (from / size..).zip(bytes.chunks_mut(size as usize)) {
            let message = self.before + 1 + number;
            let lanes = self.lanes.len() as u64;
            let slot = self.slot((message % lanes) as usize, message / lanes);
            rnic.read_memory(self.staging.key, slot, out)?;
        }
        Ok(bytes)
    }

    /// True if no stream is open and all posted messages are acknowledged.
    pub fn is_drained(&self) -> bool {
        !self.has_unacknowledged() && self.open.is_none()
    }

    /// Starts a stream. Returns false if there is no capacity for its first message; poll and call again.
    ///
    /// # Errors
    /// A stream is already open, its name is longer than 512 bytes, or a work request was refused.
    pub fn start(&mut self, rnic: &mut dyn Rnic, header: &StreamHeader) -> Result<bool, StreamError> {
        if self.open.is_some() {
            let (call, reason) = ("start", "a stream is open");
            return Err(StreamError::WrongOrder { call, reason });
        }
        let bytes = frame::begin(header)?;
        if !self.has_capacity() {
            return Ok(false);
        }
        self.before = self.posted;
        self.post_whole(rnic, MessageKind::Begin, &bytes)?;
        self.ended = None;
        self.open = Some(OpenStream::new(header.clone()));
        Ok(true)
    }

    /// Accepts bytes up to the capacity and returns their number, which may be 0.
    ///
    /// # Errors
    /// No stream is open, the stream would exceed its declared length, or a work request was refused.
    pub fn write(&mut self, rnic: &mut dyn Rnic, bytes: &[u8]) -> Result<usize, StreamError> {
        let open = self.open("write")?;
        open.check_length(open.bytes + bytes.len() as u64, false)?;
        let mut rest = bytes;
        while !rest.is_empty() && self.has_capacity() {
            let capacity = self.config.message_size - self.filled;
            let (now, later) = rest.split_at(rest.len().min(capacity as usize));
            rnic.write_memory(self.staging.key, self.staged_at() + u64::from(self.filled), now)?;
            if let Some(open) = &mut self.open {
                open.add(now);
            }
            self.filled += now.len() as u32;
            if self.filled == self.config.message_size {
                self.post(rnic, MessageKind::Data)?;
            }
            rest = later;
        }
        Ok(bytes.len() - rest.len())
    }

    /// Ends the stream. Returns `None` if there is no capacity for its last messages; poll and call again.
    ///
    /// # Errors
    /// No stream is open, the stream is shorter than declared, or a work request was refused.
    pub fn finish(&mut self, rnic: &mut dyn Rnic) -> Result<Option<StreamSummary>, StreamError> {
        let open = self.open("finish")?;
        open.check_length(open.bytes, true)?;
        let summary = open.summary();
        if self.filled > 0 {
            if !self.has_capacity() {
                return Ok(None);
            }
            self.post(rnic, MessageKind::Data)?;
        }
        if !self.has_capacity() {
            return Ok(None);
        }
        self.post_whole(rnic, MessageKind::End, &frame::end(summary.bytes, summary.digest))?;
        self.ended = self.open.take();
        Ok(Some(summary))
    }

    /// Reads acknowledgements. Returns the number of newly acknowledged messages. Fails if the QP has failed.
    pub fn poll(&mut self, rnic: &mut dyn Rnic) -> Result<u64, StreamError> {
        let (mut acknowledged, lanes) = (0, self.lanes.len());
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            while let Some(completion) = rnic.poll_send_completion(lane.at.qpn) {
                check_work(&completion, number, lanes)?;
                lane.acknowledged += 1;
                acknowledged += 1;
            }
        }
        Ok(acknowledged)
    }

    /// Releases the memory. Fails QPs that have unacknowledged messages first.
    pub fn close(self, rnic: &mut dyn Rnic) -> Result<(), StreamError> {
        for lane in self.lanes.iter().filter(|l| l.posted != l.acknowledged) {
            rnic.fail_qp(lane.at.qpn)?;
        }
        self.release(rnic)
    }

    /// Releases the memory. The QPs have no more of its messages, as after a reset.
    pub fn release(self, rnic: &mut dyn Rnic) -> Result<(), StreamError> {
        Ok(rnic.deregister_memory(self.staging.key)?)
    }

    fn open(&self, call: &'static str) -> Result<&OpenStream, StreamError> {
        let reason = "no stream is open";
        self.open.as_ref().ok_or(StreamError::WrongOrder { call, reason })
    }

    /// Posts a message with these bytes. The caller has checked the capacity, and no message is partly filled.
    fn post_whole(
        &mut self,
        rnic: &mut dyn Rnic,
        kind: MessageKind,
        bytes: &[u8],
    ) -> Result<(), StreamError> {
        rnic.write_memory(self.staging.key, self.staged_at(), bytes)?;
        self.filled = bytes.len() as u32;
        self.post(rnic, kind)
    }

    fn post(&mut self, rnic: &mut dyn Rnic, kind: MessageKind) -> Result<(), StreamError> {
        let imm = frame::immediate(kind, self.first + self.messages_posted());
        let lane_index = self.next_lane();
        let SenderLane { qpn, transfer } = self.lanes[lane_index].at;
        let number = self.lanes[lane_index].posted;
        // With several lanes, `first` is 0.
        let op = transfer.op(
            self.first + number - self.discarded,
            self.config.message_size,
            imm,
        );
        let local = LocalSlice {
            key: self.staging.key,
            offset: self.staged_at(),
            length: self.filled,
        };
        let wr = SendWr {
            solicited: kind == MessageKind::End,
            ..SendWr::new(self.posted, op, local)
        };
        rnic.post_send(qpn, wr)?;
        self.lanes[lane_index].posted += 1;
        self.posted += 1;
        self.packets += self.config.pmtu.packets(self.filled.into());
        self.filled = 0;
        Ok(())
    }
}
