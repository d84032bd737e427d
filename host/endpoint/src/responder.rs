//! The responder of a QP: packet order, checks, placement of data and responses, as in rxe.

use alloc::collections::VecDeque;
use castnet_wire::{NakCode, Psn, RnrTimer, Syndrome};

use crate::config::QpConfig;
use crate::memory::{Memory, MemoryKey};
use crate::packet::{Request, RequestKind, WriteTarget};
use crate::work::{CompletionOp, MESSAGE_MAX, RecvWr, Status};

/// An ACK or NAK to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) psn: Psn,
    pub(crate) msn: u32,
    pub(crate) syndrome: Syndrome,
}

/// Result of a request packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// In order and processed.
    Taken,
    /// In order, and its last packet completed a receive.
    Received(Received),
    /// No receive is posted.
    NotReady,
    /// The first packet after a gap. A NAK was queued.
    Gap,
    /// A packet after a gap that was already NAKed.
    OutOfOrder,
    /// A duplicate. It is acknowledged again.
    Duplicate,
    /// A duplicate READ or atomic.
    DuplicateUnsupported,
    /// Refused with a NAK that fails the QP. The status is that of the receive that the request would have used.
    Refused(Option<Status>),
}

/// A completed receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) wr: RecvWr,
    pub(crate) op: CompletionOp,
    pub(crate) byte_len: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidated: Option<MemoryKey>,
    pub(crate) solicited: bool,
}

/// The message that is being received.
#[derive(Clone, Copy, Debug)]
enum OpenMessage {
    Nothing,
    Send {
        received: u32,
    },
    Write {
        key: MemoryKey,
        offset: u64,
        rest: u32,
        length: u32,
    },
}

/// The reason why a packet in order was refused.
enum Refusal {
    NotReady,
    Fatal(NakCode, Option<Status>),
}

const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, None);
const NO_ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccessError, None);

#[derive(Debug)]
pub(crate) struct Responder {
    pmtu: u32,
    rnr_timer: RnrTimer,
    expected: Psn,
    /// The number of completed messages, modulo 2^24.
    msn: u32,
    /// True if the gap before `expected` was NAKed.
    nak_sent: bool,
    open_message: OpenMessage,
    queue: VecDeque<RecvWr>,
    queue_max: usize,
    answers: VecDeque<Answer>,
    answers_max: usize,
    coalesces: bool,
    answers_lost: u64,
}

impl Responder {
    pub(crate) fn new(config: &QpConfig, answers_max: usize, coalesces: bool) -> Self {
        Self {
            pmtu: config.pmtu.bytes() as u32,
            rnr_timer: RnrTimer::new(config.min_rnr_timer),
            expected: config.rq_psn,
            msn: 0,
            nak_sent: false,
            open_message: OpenMessage::Nothing,
            queue: VecDeque::new(),
            queue_max: config.limits.receive,
            answers: VecDeque::new(),
            answers_max: answers_max.max(1),
            coalesces,
            answers_lost: 0,
        }
    }

    /// Applies the parameters of a connection. Posted receives stay.
    pub(crate) fn connect(&mut self, config: &QpConfig) {
        self.pmtu = config.pmtu.bytes() as u32;
        self.rnr_timer = RnrTimer::new(config.min_rnr_timer);
        self.expected = config.rq_psn;
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

    pub(crate) fn post(&mut self, wr: RecvWr) {
        self.queue.push_back(wr);
    }

    /// The next receive of a failed QP, in order.
    pub(crate) fn pop_any(&mut self) -> Option<RecvWr> {
        self.queue.pop_front()
    }

    pub(crate) fn expected(&self) -> Psn {
        self.expected
    }

    pub(crate) fn msn(&self) -> u32 {
        self.msn
    }

    pub(crate) fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    pub(crate) fn pop_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// Returns and resets the number of responses lost because the queue was full.
    pub(crate) fn take_lost(&mut self) -> u64 {
        core::mem::take(&mut self.answers_lost)
    }

    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        let answer = Answer {
            psn,
            msn: self.msn,
            syndrome,
        };
        let has_capacity = self.answers.len() < self.answers_max;
        match self.answers.back_mut() {
            // A newer ACK includes an older one.
            Some(last)
                if (self.coalesces || !has_capacity)
                    && last.syndrome == Syndrome::Ack
                    && syndrome == Syndrome::Ack =>
            {
                *last = answer;
            }
            _ if has_capacity => self.answers.push_back(answer),
            _ => self.answers_lost += 1,
        }
    }

    /// Processes a request packet whose ICRC and addresses are verified.
    pub(crate) fn handle(&mut self, request: &Request<'_>, memory: &mut Memory) -> Verdict {
        match request.psn.diff(self.expected) {
            0 => self.nak_sent = false,
            1.. if self.nak_sent => return Verdict::OutOfOrder,
            1.. => {
                self.nak_sent = true;
                self.answer(self.expected, Syndrome::Nak(NakCode::PsnSequenceError));
                return Verdict::Gap;
            }
            _ if request.kind == RequestKind::Unsupported => return Verdict::DuplicateUnsupported,
            _ => {
                // Acknowledges the newest PSN, whichever PSN the duplicate has and whether or not it requests an ACK.
                self.answer(self.expected.prev(), Syndrome::Ack);
                return Verdict::Duplicate;
            }
        }
        match self.process_expected(request, memory) {
            Ok(received) => {
                self.expected = self.expected.next();
                if request.is_last {
                    self.msn = (self.msn + 1) % Psn::MODULUS;
                }
                if request.ack_request {
                    self.answer(request.psn, Syndrome::Ack);
                }
                received.map_or(Verdict::Taken, Verdict::Received)
            }
            Err(Refusal::NotReady) => {
                self.answer(request.psn, Syndrome::RnrNak(self.rnr_timer));
                Verdict::NotReady
            }
            Err(Refusal::Fatal(code, status)) => {
                self.answer(request.psn, Syndrome::Nak(code));
                Verdict::Refused(status)
            }
        }
    }

    /// Processes the expected packet. Nothing changes if it is refused.
    fn process_expected(
        &mut self,
        request: &Request<'_>,
        memory: &mut Memory,
    ) -> Result<Option<Received>, Refusal> {
        let wr = self.queue.front().copied();
        // In rxe's order of checks: sequence of opcodes, receive, length, key.
        match (request.kind, request.is_first, self.open_message) {
            (RequestKind::Send, true, OpenMessage::Nothing) => {
                self.process_send(request, wr.ok_or(Refusal::NotReady)?, 0, memory)
            }
            (RequestKind::Send, false, OpenMessage::Send { received }) => {
                self.process_send(request, wr.ok_or(Refusal::NotReady)?, received, memory)
            }
            (RequestKind::Write, true, OpenMessage::Nothing)
            | (RequestKind::Write, false, OpenMessage::Write { .. })
                if request.imm.is_some() && wr.is_none() =>
            {
                Err(Refusal::NotReady)
            }
            (RequestKind::Write, true, OpenMessage::Nothing) => {
                let (key, offset, length) = self.check_target(request.target, memory)?;
                self.process_write(request, key, offset, length, length, memory)
            }
            (
                RequestKind::Write,
                false,
                OpenMessage::Write {
                    key,
                    offset,
                    rest,
                    length,
                },
            ) => self.process_write(request, key, offset, rest, length, memory),
            // READ and atomics; a middle or last packet without a first; a first packet inside another message.
            _ => Err(INVALID),
        }
    }

    fn process_send(
        &mut self,
        request: &Request<'_>,
        wr: RecvWr,
        received: u32,
        memory: &mut Memory,
    ) -> Result<Option<Received>, Refusal> {
        let length = request.payload.len() as u32;
        let is_full = length == self.pmtu && request.pad == 0;
        let fits = if request.is_last {
            length <= self.pmtu
        } else {
            is_full
        };
        let is_empty_last = request.is_last && !request.is_first && length == 0;
        if !fits || is_empty_last || request.pad != pad_of(length) {
            return Err(Refusal::Fatal(
                NakCode::InvalidRequest,
                Some(Status::RemoteInvalidRequest),
            ));
        }
        let total = received.saturating_add(length);
        if total > wr.local.length {
            return Err(Refusal::Fatal(
                NakCode::InvalidRequest,
                Some(Status::LocalLengthError),
            ));
        }
        if request
            .invalidate
            .is_some_and(|rkey| !memory.may_invalidate(rkey))
        {
            return Err(Refusal::Fatal(
                NakCode::RemoteAccessError,
                Some(Status::RemoteInvalidRequest),
            ));
        }
        if memory
            .write(wr.local.key, wr.local.offset + received as u64, request.payload)
            .is_none()
        {
            return Err(Refusal::Fatal(
                NakCode::RemoteOperationalError,
                Some(Status::LocalProtectionError),
            ));
        }
        if !request.is_last {
            self.open_message = OpenMessage::Send { received: total };
            return Ok(None);
        }
        if let Some(rkey) = request.invalidate {
            memory.invalidate(rkey);
        }
        Ok(Some(self.finish(request, wr, CompletionOp::Recv, total)))
    }

    fn process_write(
        &mut self,
        request: &Request<'_>,
        key: MemoryKey,
        offset: u64,
        rest: u32,
        length: u32,
        memory: &mut Memory,
    ) -> Result<Option<Received>, Refusal> {
        let payload = request.payload.len() as u32;
        // The last packet carries the rest. Each other packet is full and leaves a rest.
        let fits = if request.is_last {
            rest <= self.pmtu
        } else {
            rest > self.pmtu
        };
        if !fits || payload != rest.min(self.pmtu) || request.pad != pad_of(payload) {
            return Err(INVALID);
        }
        memory.write(key, offset, request.payload).ok_or(NO_ACCESS)?;
        if !request.is_last {
            self.open_message = OpenMessage::Write {
                key,
                offset: offset + payload as u64,
                rest: rest - payload,
                length,
            };
            return Ok(None);
        }
        self.open_message = OpenMessage::Nothing;
        match (request.imm, self.queue.front().copied()) {
            (Some(_), Some(wr)) => Ok(Some(self.finish(request, wr, CompletionOp::RecvWriteImm, length))),
            _ => Ok(None),
        }
    }

    /// Checks the target of a WRITE. Key and address are ignored for an empty WRITE.
    fn check_target(
        &self,
        target: Option<WriteTarget>,
        memory: &Memory,
    ) -> Result<(MemoryKey, u64, u32), Refusal> {
        let Some(WriteTarget { va, rkey, length }) = target.filter(|t| t.length <= MESSAGE_MAX) else {
            return Err(INVALID);
        };
        if length == 0 {
            return Ok((MemoryKey::NONE, 0, 0));
        }
        let (key, offset) = memory.check_remote(rkey, va, length).ok_or(NO_ACCESS)?;
        Ok((key, offset, length))
    }

    fn finish(&mut self, request: &Request<'_>, wr: RecvWr, op: CompletionOp, byte_len: u32) -> Received {
        self.open_message = OpenMessage::Nothing;
        self.queue.pop_front();
        Received {
            wr,
            op,
            byte_len,
            imm: request.imm,
            invalidated: request.invalidate.map(MemoryKey::new),
            solicited: request.solicited,
        }
    }
}

/// Pad bytes that round `length` up to a multiple of four.
fn pad_of(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}
