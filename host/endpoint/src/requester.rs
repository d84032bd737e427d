//! The requester of a QP: its send queue, window, go-back-N and timers, as rxe has them.
//!
//! Inside, packets are numbered by 64-bit sequence numbers from 0; only the wire knows the 24-bit PSNs, so nothing
//! here can trip over their wrap.

use alloc::collections::VecDeque;
use castnet_wire::{NakCode, Nanos, Psn, RnrTimer, Syndrome};

use crate::config::QpConfig;
use crate::work::{LocalSlice, SendOp, SendWr, Status};

/// rxe asks for an ACK with the packet before which this many went out without asking: "more than 64".
const ASK_AFTER: u32 = 65;

/// A send work request with the sequence numbers of its packets.
#[derive(Clone, Copy, Debug)]
struct Sending {
    wr: SendWr,
    first: u64,
    last: u64,
}

/// One request packet to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) op: SendOp,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    pub(crate) psn: Psn,
    pub(crate) ack_request: bool,
    pub(crate) solicited: bool,
    /// Bytes of the whole message: RETH's length.
    pub(crate) message_length: u32,
    /// Its payload.
    pub(crate) payload: LocalSlice,
    /// It was sent before.
    pub(crate) again: bool,
    /// Place of its work request in the queue.
    pub(crate) index: usize,
}

/// What a response did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// An ACK of something new.
    Acknowledged,
    /// A sequence NAK: going back.
    GoingBack,
    /// A second sequence NAK without progress between: taken as an ACK of all before, no more.
    NakRepeated,
    /// An RNR NAK: waiting.
    Waiting,
    /// Of a PSN already acknowledged. It only re-arms the timer.
    Old,
    /// Of a PSN that was never sent. Ignored.
    Ahead,
    /// The QP has failed: the status of the oldest work request.
    Failed(Status),
}

#[derive(Debug)]
pub(crate) struct Requester {
    start_psn: Psn,
    pmtu: u64,
    window: u64,
    ask_after: u32,
    timeout: Option<Nanos>,
    retry_cnt: u8,
    rnr_retry: u8,

    queue: VecDeque<Sending>,
    queue_max: usize,
    /// One past the last packet of the queue.
    posted: u64,
    /// Oldest packet not acknowledged.
    unacked: u64,
    /// Next packet to send; behind `sent` after going back.
    next: u64,
    /// One past the newest packet ever sent.
    sent: u64,
    /// No later in the queue than the work request of `next`.
    cursor: usize,
    /// Packets since the last one with AckReq.
    unasked: u32,

    retries_left: u8,
    rnr_retries_left: u8,
    /// A retry has begun and no ACK came since, nor did a message end: sequence NAKs begin no other.
    retrying: bool,
    /// When the oldest unacknowledged packet is given up waiting for.
    ack_deadline: Option<Nanos>,
    /// Until when nothing is sent, after an RNR NAK.
    rnr_deadline: Option<Nanos>,
}

impl Requester {
    pub(crate) fn new(config: &QpConfig) -> Self {
        Self {
            start_psn: config.sq_psn,
            pmtu: config.pmtu.bytes() as u64,
            window: config.window as u64,
            // A window too small for rxe's habit would stall without ever asking.
            ask_after: if config.window > ASK_AFTER {
                ASK_AFTER
            } else {
                config.window / 2
            },
            timeout: match config.timeout {
                0 => None,
                t => Some(Nanos(4096 << t)),
            },
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            queue: VecDeque::new(),
            queue_max: config.limits.send,
            posted: 0,
            unacked: 0,
            next: 0,
            sent: 0,
            cursor: 0,
            unasked: 0,
            retries_left: config.retry_cnt,
            rnr_retries_left: config.rnr_retry,
            retrying: false,
            ack_deadline: None,
            rnr_deadline: None,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= self.queue_max
    }

    pub(crate) fn queue_max(&self) -> usize {
        self.queue_max
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn post(&mut self, wr: SendWr) {
        let packets = (wr.local.length as u64).div_ceil(self.pmtu).max(1);
        self.queue.push_back(Sending {
            wr,
            first: self.posted,
            last: self.posted + packets - 1,
        });
        self.posted += packets;
    }

    fn psn(&self, sequence: u64) -> Psn {
        self.start_psn.add((sequence % Psn::MODULUS as u64) as i32)
    }

    /// PSN of the next new packet.
    pub(crate) fn psn_next(&self) -> Psn {
        self.psn(self.sent)
    }

    /// PSN of the oldest packet not acknowledged.
    pub(crate) fn psn_unacked(&self) -> Psn {
        self.psn(self.unacked)
    }

    pub(crate) fn can_send(&self) -> bool {
        self.rnr_deadline.is_none() && self.next < self.posted && self.next - self.unacked < self.window
    }

    /// The next packet, which counts as sent with this call.
    pub(crate) fn next_packet(&mut self, now: Nanos) -> Option<Outgoing> {
        if !self.can_send() {
            return None;
        }
        let sequence = self.next;
        while self.queue.get(self.cursor)?.last < sequence {
            self.cursor += 1;
        }
        let sending = self.queue.get(self.cursor)?;
        let LocalSlice { key, offset, length } = sending.wr.local;
        let from = (sequence - sending.first) * self.pmtu;
        let is_last = sequence == sending.last;
        let ack_request = is_last || self.unasked >= self.ask_after;
        let packet = Outgoing {
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
                length: (length as u64 - from).min(self.pmtu) as u32,
            },
            again: sequence < self.sent,
            index: self.cursor,
        };
        self.unasked = if ack_request { 0 } else { self.unasked + 1 };
        self.next = sequence + 1;
        self.sent = self.sent.max(self.next);
        if self.ack_deadline.is_none() {
            self.arm(now);
        }
        Some(packet)
    }

    /// (Re-)arms the retransmission timer where something is outstanding.
    fn arm(&mut self, now: Nanos) {
        self.ack_deadline = self.timeout.filter(|_| self.unacked < self.next).map(|t| now + t);
    }

    /// An ACK or NAK. Completed work requests are then ready for [`Requester::pop_completed`].
    ///
    /// rxe believes an ACK of a PSN that it has never sent, and completes work requests whose data nobody has. This
    /// requester does not: such a response is [`Response::Ahead`] and changes nothing.
    pub(crate) fn handle_response(&mut self, now: Nanos, psn: Psn, syndrome: Syndrome) -> Response {
        let ahead = psn.diff(self.psn(self.unacked)) as i64;
        if ahead < 0 {
            // An old ACK shows that the responder lives. Switches keep waiting requesters alive with it.
            self.arm(now);
            return Response::Old;
        }
        let sequence = self.unacked + ahead as u64;
        if sequence >= self.sent {
            return Response::Ahead;
        }
        // As in rxe: a NAK is no progress, unless it lies past the end of the oldest message and so completes it.
        if self.queue.front().is_some_and(|oldest| sequence > oldest.last) {
            self.renew_retries();
        }
        let response = match syndrome {
            Syndrome::Ack => {
                self.acknowledge(sequence + 1);
                self.renew_retries();
                Response::Acknowledged
            }
            // Every NAK acknowledges what is before its PSN.
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.acknowledge(sequence);
                if self.retrying {
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
        response
    }

    /// There was progress: retries are counted anew, and a sequence NAK begins one.
    fn renew_retries(&mut self) {
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
        self.retrying = false;
    }

    /// All before `sequence` has arrived.
    fn acknowledge(&mut self, sequence: u64) {
        self.unacked = sequence;
        if self.next < sequence {
            // The answer to an earlier sending, after going back: what it covers need not go again.
            self.next = sequence;
            self.cursor = 0;
        }
    }

    /// Goes back to the oldest unacknowledged packet, if the retries allow it.
    fn retry(&mut self, done: Response) -> Response {
        if self.retries_left == 0 {
            return Response::Failed(Status::RetryExceeded);
        }
        if self.retry_cnt != 7 {
            self.retries_left -= 1;
        }
        self.retrying = true;
        if self.rnr_deadline.is_none() {
            self.go_back();
        }
        done
    }

    fn go_back(&mut self) {
        self.next = self.unacked;
        self.cursor = 0;
    }

    /// Sends nothing for a while. As in rxe, the retransmission timer keeps running meanwhile: a wait longer than it
    /// uses up retries. Unlike rxe, nothing new is sent either: it would be refused.
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

    /// The next work request that is done, in order.
    pub(crate) fn pop_completed(&mut self) -> Option<SendWr> {
        if self.queue.front()?.last >= self.unacked {
            return None;
        }
        self.cursor = self.cursor.saturating_sub(1);
        self.queue.pop_front().map(|s| s.wr)
    }

    /// The next work request of a failed QP, in order.
    pub(crate) fn pop_any(&mut self) -> Option<SendWr> {
        self.queue.pop_front().map(|s| s.wr)
    }

    pub(crate) fn ack_deadline(&self) -> Option<Nanos> {
        self.ack_deadline
    }

    pub(crate) fn rnr_deadline(&self) -> Option<Nanos> {
        self.rnr_deadline
    }

    /// Stops for good: the QP has failed.
    pub(crate) fn halt(&mut self) {
        self.posted = self.next;
        self.ack_deadline = None;
        self.rnr_deadline = None;
    }

    /// Ends an RNR wait that is over.
    pub(crate) fn handle_rnr_timeout(&mut self, now: Nanos) {
        if self.rnr_deadline.is_some_and(|at| at <= now) {
            self.rnr_deadline = None;
            self.go_back();
        }
    }

    /// Sends again if the retransmission timer has run out; `None` if it has not.
    pub(crate) fn handle_ack_timeout(&mut self, now: Nanos) -> Option<Response> {
        if self.ack_deadline.is_none_or(|at| at > now) {
            return None;
        }
        // Armed before going back, while something is outstanding: also a window that cannot be sent must time out.
        self.arm(now);
        Some(self.retry(Response::GoingBack))
    }
}
