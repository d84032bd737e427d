//! The requester of a QP: send queue, window, go-back-N and timers, as in rxe.
//!
//! Packets have internal 64-bit sequence numbers from 0. Only frames have 24-bit PSNs, so no code here handles a wrap.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use castnet_wire::{BitRate, NakCode, Nanos, Psn, RnrTimer, Syndrome};

use crate::config::{QpConfig, Repeat};
use crate::endpoint::Prefetch;
use crate::pace::Pace;
use crate::probe::Probe;
use crate::work::{LocalSlice, SendOp, SendWr, Status};

/// rxe requests an ACK after this many packets without a request: "more than 64".
const ACK_REQUEST_INTERVAL: u32 = 65;

/// With the sequence numbers of its packets.
#[derive(Clone, Copy, Debug)]
struct QueuedSend {
    wr: SendWr,
    first: u64,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingPacket {
    pub(crate) op: SendOp,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    pub(crate) psn: Psn,
    pub(crate) ack_request: bool,
    pub(crate) solicited: bool,
    /// The length in RETH.
    pub(crate) message_length: u32,
    pub(crate) payload: LocalSlice,
    pub(crate) is_retransmission: bool,
    /// Of the work request, in the queue.
    pub(crate) index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// An ACK that acknowledged new packets.
    Acknowledged,
    /// A sequence NAK that started a retransmission, of all that follows or of one packet.
    GoingBack,
    /// A sequence NAK that only acknowledges earlier packets: the second one without progress in between, or one with a repair request.
    NakRepeated,
    /// An RNR NAK that started a wait.
    Waiting,
    /// The PSN was already acknowledged. The response only re-arms the timer.
    Old,
    /// The PSN was never sent. The response is ignored.
    Ahead,
    /// The QP has failed, with the status of the oldest work request.
    Failed(Status),
}

/// Packets that wait to be sent again alone. Who lacks more asks again.
const REPEATS_MAX: usize = 64;

/// Packets in a row that are sent again alone. If the next one is missing, too, the receiver keeps nothing behind a gap.
const ALONE_MAX: u8 = 3;

#[derive(Clone, Debug)]
pub(crate) struct Requester {
    start_psn: Psn,
    pmtu: u64,
    window: u64,
    repeat: Repeat,
    /// Packets to send again alone.
    repeats: VecDeque<u64>,
    /// The last packet that was sent again alone, and how many before it in a row.
    repeated: Option<(u64, u8)>,
    ack_request_interval: u32,
    timeout: Option<Nanos>,
    retry_cnt: u8,
    rnr_retry: u8,
    queue: VecDeque<QueuedSend>,
    /// One past the last packet in the queue.
    posted: u64,
    /// The oldest unacknowledged packet.
    unacked: u64,
    /// Less than `sent` during a retransmission.
    next: u64,
    /// One past the newest packet ever sent.
    sent: u64,
    /// An index in the queue that is not after the work request of `next`.
    cursor: usize,
    /// Packets sent since the last AckReq.
    since_ack_request: u32,
    retries_left: u8,
    rnr_retries_left: u8,
    /// From the start of a retry until an ACK arrives or a message completes. Meanwhile sequence NAKs start no retry.
    retrying: bool,
    /// When the retransmission timer expires.
    pub(crate) ack_deadline: Option<Nanos>,
    /// End of the wait after an RNR NAK.
    pub(crate) rnr_deadline: Option<Nanos>,
    pace: Option<Box<Pace>>,
    probe: Option<Box<Probe>>,
}

impl Requester {
    pub(crate) fn new(config: &QpConfig) -> Self {
        let timeout = match config.timeout {
            0 => None,
            t => Some(Nanos(4096 << t)),
        };
        Self {
            start_psn: config.sq_psn,
            pmtu: config.pmtu.bytes() as u64,
            window: config.window as u64,
            repeat: config.repeat,
            // A probe allocates nothing.
            repeats: VecDeque::with_capacity(config.probes.into()),
            repeated: None,
            // A window smaller than rxe's interval would stall without requesting an ACK.
            ack_request_interval: if config.window > ACK_REQUEST_INTERVAL {
                ACK_REQUEST_INTERVAL
            } else {
                config.window / 2
            },
            timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            queue: VecDeque::new(),
            posted: 0,
            unacked: 0,
            next: 0,
            sent: 0,
            cursor: 0,
            since_ack_request: 0,
            retries_left: config.retry_cnt,
            rnr_retries_left: config.rnr_retry,
            retrying: false,
            ack_deadline: None,
            rnr_deadline: None,
            pace: Pace::new(config, timeout).map(Box::new),
            probe: config.probes.then(|| Box::new(Probe::new(timeout))),
        }
    }

    pub(crate) fn prefetch(&self, by: &impl Prefetch) {
        self.queue.front().iter().for_each(|oldest| by.prefetch(*oldest));
        self.queue
            .get(self.cursor)
            .iter()
            .for_each(|next| by.prefetch(*next));
    }

    pub(crate) fn footprint(&self) -> usize {
        self.queue.capacity() * size_of::<QueuedSend>()
            + self.repeats.capacity() * size_of::<u64>()
            + self.probe.as_ref().map_or(0, |_| size_of::<Probe>())
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn post(&mut self, wr: SendWr) {
        let packets = (wr.local.length as u64).div_ceil(self.pmtu).max(1);
        self.queue.push_back(QueuedSend {
            wr,
            first: self.posted,
            last: self.posted + packets - 1,
        });
        self.posted += packets;
    }

    fn psn(&self, sequence: u64) -> Psn {
        self.start_psn.add((sequence % Psn::MODULUS as u64) as i32)
    }

    pub(crate) fn psn_next(&self) -> Psn {
        self.psn(self.sent)
    }

    pub(crate) fn psn_unacked(&self) -> Psn {
        self.psn(self.unacked)
    }

    pub(crate) fn can_send(&self) -> bool {
        self.rnr_deadline.is_none()
            && self.pace_deadline().is_none()
            && (!self.repeats.is_empty() || self.next < self.posted && self.next - self.unacked < self.window)
    }

    /// True if a congestion notification has lowered the rate.
    pub(crate) fn handle_cnp(&mut self, now: Nanos) -> bool {
        let reaction = self.pace.as_mut().and_then(|pace| pace.reaction.as_mut());
        reaction.is_some_and(|reaction| reaction.handle_cnp(now))
    }

    /// The rate that congestion control allows; `None` without congestion control.
    pub(crate) fn rate(&self) -> Option<BitRate> {
        Some(self.pace.as_ref()?.reaction.as_ref()?.rate())
    }

    /// The end of the wait for the rate.
    pub(crate) fn pace_deadline(&self) -> Option<Nanos> {
        self.pace.as_ref()?.deadline
    }

    /// When the answer to what was sent is overdue.
    pub(crate) fn probe_deadline(&self) -> Option<Nanos> {
        self.probe.as_ref()?.deadline
    }

    /// A request was sent as a frame of so many bytes.
    pub(crate) fn sent_frame(&mut self, now: Nanos, bytes: usize) {
        if let Some(pace) = &mut self.pace {
            pace.sent(now, bytes as u64);
        }
    }

    pub(crate) fn handle_pace_timeout(&mut self, now: Nanos) {
        if let Some(pace) = &mut self.pace {
            pace.handle_timeout(now);
        }
    }

    /// The packet then counts as sent. `None` also if it must wait for its rate.
    pub(crate) fn next_packet(&mut self, now: Nanos) -> Option<OutgoingPacket> {
        if !self.can_send() {
            return None;
        }
        let (sequence, mut index) = match self.repeats.front() {
            Some(sequence) => (*sequence, 0),
            None => (self.next, self.cursor),
        };
        while self.queue.get(index)?.last < sequence {
            index += 1;
        }
        let sending = self.queue.get(index)?;
        let LocalSlice { key, offset, length } = sending.wr.local;
        let from = (sequence - sending.first) * self.pmtu;
        let payload = (length as u64 - from).min(self.pmtu);
        let is_last = sequence == sending.last;
        let is_due = !self.repeats.is_empty() || self.since_ack_request >= self.ack_request_interval;
        let mut ack_request = is_last || is_due;
        if let Some(pace) = &mut self.pace {
            if !pace.admits(now, payload) {
                return None;
            }
            ack_request = pace.asks(now, sequence == self.unacked, ack_request);
        }
        let packet = OutgoingPacket {
            op: sending.wr.op,
            is_first: sequence == sending.first,
            is_last,
            psn: self.psn(sequence),
            ack_request,
            solicited: is_last && sending.wr.solicited,
            message_length: length,
            payload: LocalSlice {
                key,
                offset: offset + from,
                length: payload as u32,
            },
            is_retransmission: sequence < self.sent,
            index,
        };
        self.since_ack_request = if ack_request {
            0
        } else {
            self.since_ack_request + 1
        };
        if self.repeats.pop_front().is_none() {
            (self.next, self.cursor) = (sequence + 1, index);
        }
        self.sent = self.sent.max(self.next);
        if self.ack_deadline.is_none() {
            self.arm(now);
        }
        if let Some(probe) = &mut self.probe {
            probe.sent(now, sequence, ack_request, packet.is_retransmission);
        }
        Some(packet)
    }

    fn arm(&mut self, now: Nanos) {
        self.ack_deadline = self.timeout.filter(|_| self.unacked < self.next).map(|t| now + t);
    }

    /// Completed work requests are then available from [`Requester::pop_completed`]. For a PSN that was never sent,
    /// unlike rxe, nothing changes: [`Response::Ahead`].
    pub(crate) fn handle_response(&mut self, now: Nanos, psn: Psn, syndrome: Syndrome) -> Response {
        let ahead = psn.diff(self.psn(self.unacked)) as i64;
        if ahead < 0 {
            // An old ACK shows that the responder is alive. Switches use it to keep waiting requesters alive.
            self.arm(now);
            return Response::Old;
        }
        let sequence = self.unacked + ahead as u64;
        if sequence >= self.sent {
            return Response::Ahead;
        }
        // As in rxe: a NAK is progress only if it is past the end of the oldest message and so completes it.
        if self.queue.front().is_some_and(|oldest| sequence > oldest.last) {
            self.reset_retries();
        }
        let before = self.unacked;
        let response = match syndrome {
            Syndrome::Ack => {
                self.acknowledge(sequence + 1);
                self.reset_retries();
                Response::Acknowledged
            }
            // Every NAK acknowledges the packets before its PSN.
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.acknowledge(sequence);
                let row = match self.repeated {
                    Some((last, row)) if last + 1 == sequence => row + 1,
                    Some((last, row)) if last == sequence => row,
                    _ => 0,
                };
                if self.repeat == Repeat::Requested {
                    Response::NakRepeated
                } else if self.repeat == Repeat::One && row < ALONE_MAX && self.use_retry() {
                    self.send_again(sequence);
                    self.repeated = Some((sequence, row));
                    Response::GoingBack
                } else if self.retrying {
                    Response::NakRepeated
                } else {
                    self.retry(Response::GoingBack)
                }
            }
            Syndrome::RnrNak(timer) => {
                self.acknowledge(sequence);
                self.wait_for_receiver(now, timer)
            }
            Syndrome::Nak(code) => {
                self.acknowledge(sequence);
                Response::Failed(match code {
                    NakCode::RemoteAccessError => Status::RemoteAccessError,
                    NakCode::RemoteOperationalError => Status::RemoteOperationalError,
                    NakCode::InvalidRequest | NakCode::PsnSequenceError => Status::RemoteInvalidRequest,
                })
            }
        };
        self.arm(now);
        if self.unacked > before
            && let Some(probe) = &mut self.probe
            && probe.acknowledged(now, self.unacked)
            && self.repeat == Repeat::All
            && self.next == self.sent
        {
            self.go_back();
        }
        response
    }

    /// Sends a packet again alone, unless it follows anyway or is sent again already.
    fn send_again(&mut self, sequence: u64) {
        if sequence < self.next && !self.repeats.contains(&sequence) && self.repeats.len() < REPEATS_MAX {
            self.repeats.push_back(sequence);
        }
    }

    /// A switch lacks one packet. That acknowledges nothing. False if it was never sent, or is acknowledged.
    pub(crate) fn handle_repair_request(&mut self, psn: Psn) -> bool {
        let ahead = u64::try_from(psn.diff(self.psn(self.unacked)));
        let sequence = ahead.ok().map(|ahead| self.unacked + ahead);
        let Some(sequence) = sequence.filter(|sequence| *sequence < self.sent) else {
            return false;
        };
        self.send_again(sequence);
        true
    }

    /// After progress. A sequence NAK may start a retry again.
    fn reset_retries(&mut self) {
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
        self.retrying = false;
    }

    /// Acknowledges all packets before `sequence`.
    fn acknowledge(&mut self, sequence: u64) {
        self.unacked = sequence;
        self.repeats.retain(|repeat| *repeat >= sequence);
        if self.next < sequence {
            // A response to the first transmission, during a retransmission: the covered packets are not sent again.
            self.next = sequence;
            self.cursor = 0;
        }
    }

    /// Goes back to the oldest unacknowledged packet, if retries are left.
    fn retry(&mut self, done: Response) -> Response {
        if !self.use_retry() {
            return Response::Failed(Status::RetryExceeded);
        }
        self.retrying = true;
        if self.rnr_deadline.is_none() {
            self.go_back();
        }
        done
    }

    /// False if none is left.
    fn use_retry(&mut self) -> bool {
        let left = self.retries_left > 0;
        if self.retry_cnt != 7 {
            self.retries_left = self.retries_left.saturating_sub(1);
        }
        left
    }

    fn go_back(&mut self) {
        self.next = self.unacked;
        self.cursor = 0;
        self.repeats.clear();
        self.repeated = None;
    }

    /// As in rxe, the retransmission timer runs on and uses up retries. Unlike in rxe, no new work is sent meanwhile.
    fn wait_for_receiver(&mut self, now: Nanos, timer: RnrTimer) -> Response {
        if self.rnr_retries_left == 0 {
            return Response::Failed(Status::RnrRetryExceeded);
        }
        if self.rnr_retry != 7 {
            self.rnr_retries_left -= 1;
        }
        self.rnr_deadline = Some(now + timer.wait());
        Response::Waiting
    }

    /// In order.
    pub(crate) fn pop_completed(&mut self) -> Option<SendWr> {
        if self.queue.front()?.last >= self.unacked {
            return None;
        }
        self.cursor = self.cursor.saturating_sub(1);
        self.queue.pop_front().map(|s| s.wr)
    }

    /// Of a failed QP, in order.
    pub(crate) fn pop_any(&mut self) -> Option<SendWr> {
        self.queue.pop_front().map(|s| s.wr)
    }

    pub(crate) fn halt(&mut self) {
        self.posted = self.next;
        self.repeats.clear();
        self.ack_deadline = None;
        self.rnr_deadline = None;
        if let Some(probe) = &mut self.probe {
            probe.halt();
        }
        self.handle_pace_timeout(Nanos::MAX);
    }

    pub(crate) fn handle_rnr_timeout(&mut self, now: Nanos) {
        if self.rnr_deadline.is_some_and(|at| at <= now) {
            self.rnr_deadline = None;
            self.go_back();
        }
    }

    /// Sends the oldest unacknowledged packet again if its answer is overdue, and nothing else is sent again. True if it does.
    pub(crate) fn handle_probe_timeout(&mut self, now: Nanos) -> bool {
        let is_idle = self.rnr_deadline.is_none() && self.repeats.is_empty() && self.next == self.sent;
        let Some(probe) = &mut self.probe else {
            return false;
        };
        if !probe.handle_timeout(now) || !is_idle || self.unacked == self.sent {
            return false;
        }
        probe.repeat(self.unacked);
        self.repeats.push_back(self.unacked);
        true
    }

    /// Retransmits. `None` if the retransmission timer has not expired.
    pub(crate) fn handle_ack_timeout(&mut self, now: Nanos) -> Option<Response> {
        if self.ack_deadline.is_none_or(|at| at > now) {
            return None;
        }
        // Re-armed before going back: a window that cannot be sent must time out as well.
        self.arm(now);
        Some(self.retry(Response::GoingBack))
    }
}
