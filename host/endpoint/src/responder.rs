//! The responder of a QP: packet order, checks, placement of data and responses, as in rxe.

use alloc::collections::VecDeque;
use castnet_wire::{NakCode, Nanos, Psn, Qpn, Reth, RnrTimer, Syndrome};

use crate::config::{EndpointConfig, QpConfig, Repeat};
use crate::kept::Kept;
use crate::memory::{Memory, MemoryKey};
use crate::packet::{Request, RequestKind};
use crate::reaction::Notifier;
use crate::work::{Completion, CompletionOp, MESSAGE_MAX, RecvWr, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) psn: Psn,
    pub(crate) msn: u32,
    pub(crate) syndrome: Syndrome,
    /// A repair request of this PSN. It acknowledges nothing.
    pub(crate) is_request: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// In order and processed.
    Taken,
    /// In order, and its last packet completed a receive.
    Received(Completion),
    /// No receive is posted.
    NotReady,
    /// The first packet after a gap. A NAK was queued.
    Gap,
    /// A packet after a gap that was already NAKed, that is kept already or too far behind the gap to be kept.
    OutOfOrder,
    /// Kept behind a gap. What is missing was asked for.
    Kept,
    /// A duplicate. It is acknowledged again.
    Duplicate,
    /// A duplicate READ or atomic.
    DuplicateUnsupported,
    /// With a NAK that fails the QP. The status is that of the receive that the request would have used.
    Refused(Option<Status>),
}

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

enum Refusal {
    NotReady,
    Fatal(NakCode, Option<Status>),
}

const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, None);
const NO_ACCESS: Refusal = Refusal::Fatal(NakCode::RemoteAccessError, None);

#[derive(Clone, Debug)]
pub(crate) struct Responder {
    qpn: Qpn,
    pmtu: u32,
    rnr_timer: RnrTimer,
    pub(crate) expected: Psn,
    /// Completed messages, modulo 2^24.
    pub(crate) msn: u32,
    /// True if the gap before `expected` was NAKed.
    nak_sent: bool,
    open_message: OpenMessage,
    pub(crate) queue: VecDeque<RecvWr>,
    pub(crate) answers: VecDeque<Answer>,
    answers_max: usize,
    coalesces: bool,
    ack_before_nak: bool,
    /// Packets behind a gap are kept, and what is missing is asked for by repair requests and no NAK.
    keeps: bool,
    pub(crate) kept: Kept,
    /// Because the queue was full.
    pub(crate) answers_lost: u64,
    pub(crate) notifier: Option<Notifier>,
}

impl Responder {
    pub(crate) fn new(config: &QpConfig, endpoint: &EndpointConfig) -> Self {
        Self {
            qpn: config.qpn,
            pmtu: config.pmtu.bytes() as u32,
            rnr_timer: RnrTimer::new(config.min_rnr_timer),
            expected: config.rq_psn,
            msn: 0,
            nak_sent: false,
            open_message: OpenMessage::Nothing,
            queue: VecDeque::new(),
            answers: VecDeque::new(),
            answers_max: endpoint.responses_max.max(1),
            coalesces: endpoint.coalesce_acks,
            ack_before_nak: endpoint.ack_before_nak,
            keeps: config.repeat == Repeat::Requested,
            kept: Kept::default(),
            answers_lost: 0,
            notifier: config.cnp_interval.map(Notifier::new),
        }
    }

    /// Posted receives stay.
    pub(crate) fn connect(&mut self, config: &QpConfig) {
        self.pmtu = config.pmtu.bytes() as u32;
        self.rnr_timer = RnrTimer::new(config.min_rnr_timer);
        self.expected = config.rq_psn;
        self.keeps = config.repeat == Repeat::Requested;
        self.notifier = config.cnp_interval.map(Notifier::new);
    }

    pub(crate) fn footprint(&self) -> usize {
        self.queue.capacity() * size_of::<RecvWr>()
            + self.answers.capacity() * size_of::<Answer>()
            + self.kept.footprint()
    }

    /// True if an ACK, a NAK or a CNP must be sent.
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty() || self.notifier.as_ref().is_some_and(Notifier::is_due)
    }

    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        self.queue_answer(Answer {
            psn,
            msn: self.msn,
            syndrome,
            is_request: false,
        });
    }

    fn queue_answer(&mut self, answer: Answer) {
        let has_capacity = self.answers.len() < self.answers_max;
        match self.answers.back_mut() {
            // A newer ACK includes an older one.
            Some(last)
                if (self.coalesces || !has_capacity)
                    && (last.syndrome, last.is_request) == (Syndrome::Ack, false)
                    && (answer.syndrome, answer.is_request) == (Syndrome::Ack, false) =>
            {
                *last = answer;
            }
            _ if has_capacity => self.answers.push_back(answer),
            _ => self.answers_lost += 1,
        }
    }

    /// Queues a NAK for an invalid request.
    pub(crate) fn refuse(&mut self) {
        self.answer(self.expected, Syndrome::Nak(NakCode::InvalidRequest));
    }

    /// ICRC and addresses of the request are verified.
    pub(crate) fn handle(&mut self, now: Nanos, request: &Request<'_>, memory: &mut Memory) -> Verdict {
        match request.psn.diff(self.expected) {
            0 => self.nak_sent = false,
            ahead @ 1.. if self.keeps => return self.keep(now, request, ahead as usize),
            1.. if self.nak_sent => return Verdict::OutOfOrder,
            1.. => {
                self.nak_sent = true;
                if self.ack_before_nak {
                    self.answer(self.expected.prev(), Syndrome::Ack);
                }
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
                self.kept.advance(now);
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

    fn keep(&mut self, now: Nanos, request: &Request<'_>, ahead: usize) -> Verdict {
        let is_new = self.kept.insert(now, request, ahead);
        while let Some(missing) = self.kept.next_to_ask(now) {
            self.queue_answer(Answer {
                psn: self.expected.add(missing as i32),
                msn: 0,
                syndrome: Syndrome::Ack,
                is_request: true,
            });
        }
        match is_new {
            true => Verdict::Kept,
            false => Verdict::OutOfOrder,
        }
    }

    /// Nothing changes if the packet is refused.
    fn process_expected(
        &mut self,
        request: &Request<'_>,
        memory: &mut Memory,
    ) -> Result<Option<Completion>, Refusal> {
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
    ) -> Result<Option<Completion>, Refusal> {
        let fatal = |code, status| Err(Refusal::Fatal(code, Some(status)));
        let length = request.payload.len() as u32;
        let fits = match request.is_last {
            true => length <= self.pmtu,
            false => length == self.pmtu && request.pad == 0,
        };
        let is_empty_last = request.is_last && !request.is_first && length == 0;
        if !fits || is_empty_last || request.pad != pad_of(length) {
            return fatal(NakCode::InvalidRequest, Status::RemoteInvalidRequest);
        }
        let total = received.saturating_add(length);
        if total > wr.local.length {
            return fatal(NakCode::InvalidRequest, Status::LocalLengthError);
        }
        if request
            .invalidate
            .is_some_and(|rkey| !memory.may_invalidate(rkey))
        {
            return fatal(NakCode::RemoteAccessError, Status::RemoteInvalidRequest);
        }
        if memory
            .write(wr.local.key, wr.local.offset + received as u64, request.payload)
            .is_none()
        {
            return fatal(NakCode::RemoteOperationalError, Status::LocalProtectionError);
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
    ) -> Result<Option<Completion>, Refusal> {
        let payload = request.payload.len() as u32;
        // The last packet carries the rest. Each other packet is full and leaves a rest.
        let is_rest = rest <= self.pmtu;
        if request.is_last != is_rest || payload != rest.min(self.pmtu) || request.pad != pad_of(payload) {
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

    /// Key and address are ignored for an empty WRITE.
    fn check_target(&self, target: Option<Reth>, memory: &Memory) -> Result<(MemoryKey, u64, u32), Refusal> {
        let target = target.filter(|t| t.dma_len <= MESSAGE_MAX).ok_or(INVALID)?;
        let (va, rkey, length) = (target.va, target.rkey, target.dma_len);
        if length == 0 {
            return Ok((MemoryKey::NONE, 0, 0));
        }
        let (key, offset) = memory.check_remote(rkey, va, length).ok_or(NO_ACCESS)?;
        Ok((key, offset, length))
    }

    fn finish(&mut self, request: &Request<'_>, wr: RecvWr, op: CompletionOp, byte_len: u32) -> Completion {
        self.open_message = OpenMessage::Nothing;
        self.queue.pop_front();
        Completion {
            byte_len,
            imm: request.imm,
            invalidated: request.invalidate.map(MemoryKey::new),
            solicited: request.solicited,
            ..Completion::new(self.qpn, wr.wr_id, op, Status::Success)
        }
    }
}

fn pad_of(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}
