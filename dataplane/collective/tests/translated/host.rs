//! A host as Linux rxe behaves, and the library on it: go-back-N with 129 packets in flight, an ACK only where one is asked
//! for, one NAK per gap, a requester that believes any ACK. As the software RNIC it repeats single packets, keeps what comes behind a gap and asks for
//! what is missing, and probes, too.

use crate::net::Frame;
use crate::program::{Item, Payload};
use castnet_wire::{NakCode, Nanos, Psn, RnrTimer, Syndrome};
use std::collections::{BTreeMap, VecDeque};

/// Most unacknowledged packets of rxe.
const UNACKED_MAX: u64 = 129;
/// Interval of AckReq within a message.
const ACK_EVERY: u32 = 66;

/// What a host repeats when it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// At a NAK, all that follow, as rxe does. It never asks by itself before its time-out.
    All,
    /// At a request, one packet. A NAK only acknowledges. It asks for single packets, too.
    Requested,
}

/// How long the software RNIC waits for an answer.
const OVERDUE: Nanos = Nanos::from_micros(50);

#[derive(Clone, Debug)]
pub(crate) struct HostConfig {
    pub(crate) rank: u16,
    pub(crate) sq_psn: Psn,
    pub(crate) rq_psn: Psn,
    /// The window of the library in positions, and in collectives.
    pub(crate) window: u64,
    pub(crate) collectives: usize,
    pub(crate) timeout: Nanos,
    /// 7 means no limit.
    pub(crate) retries: u32,
    pub(crate) repeats: Repeats,
    /// When the rank calls its first collective.
    pub(crate) starts: Nanos,
    /// Before this it has no receive posted.
    pub(crate) receives: Nanos,
}

#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) config: HostConfig,
    /// What it sends and receives, in order.
    pub(crate) out: Vec<Item>,
    pub(crate) into: Vec<Item>,
    /// Received packets, in order.
    pub(crate) received: Vec<Option<Payload>>,
    /// Packets behind a gap, and up to where it has asked for what is missing.
    kept: BTreeMap<u64, Frame>,
    asked: u64,
    pub(crate) posted: u64,
    pub(crate) acked: u64,
    pub(crate) next: u64,
    pub(crate) sent: u64,
    since_ack_request: u32,
    timer: Option<Nanos>,
    retries_left: u32,
    retrying: bool,
    pub(crate) rnr_until: Option<Nanos>,
    /// To repeat alone.
    again: VecDeque<u64>,
    probe_at: Option<Nanos>,
    probes: u32,
    pub(crate) timeouts: u64,
    nak_sent: bool,
    pub(crate) dead: bool,
    pub(crate) repeated: u64,
    pub(crate) naks: u64,
    /// True if it has received a conflict.
    pub(crate) failed: Option<castnet_wire::Control>,
}

/// The answer of a host.
pub(crate) struct Answer {
    pub(crate) psn: Psn,
    pub(crate) syndrome: Syndrome,
}

impl Host {
    pub(crate) fn new(config: HostConfig, out: Vec<Item>, into: Vec<Item>) -> Self {
        Self {
            retries_left: config.retries,
            config,
            out,
            into,
            received: Vec::new(),
            kept: BTreeMap::new(),
            asked: 0,
            posted: 0,
            acked: 0,
            next: 0,
            sent: 0,
            since_ack_request: 0,
            timer: None,
            retrying: false,
            rnr_until: None,
            again: VecDeque::new(),
            probe_at: None,
            probes: 0,
            timeouts: 0,
            nak_sent: false,
            dead: false,
            repeated: 0,
            naks: 0,
            failed: None,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.failed.is_some()
            || (self.received.len() == self.into.len() && self.acked == self.out.len() as u64)
    }

    /// The lowest packet that this rank has not finished: not received, or sent and not acknowledged.
    fn lowest_unfinished(&self) -> (u64, usize) {
        let item = |items: &[Item], at: usize| {
            items
                .get(at)
                .map_or((u64::MAX, usize::MAX), |i| (i.g, i.collective))
        };
        item(&self.into, self.received.len()).min(item(&self.out, self.acked as usize))
    }

    /// Posts whole messages while the window allows.
    pub(crate) fn post(&mut self, now: Nanos) {
        if now < self.config.starts || self.failed.is_some() {
            return;
        }
        let (g, collective) = self.lowest_unfinished();
        loop {
            let start = self.posted as usize;
            let Some(length) = self.out[start..].iter().position(Item::ends_message) else {
                return;
            };
            let last = &self.out[start + length];
            if last.g >= g.saturating_add(self.config.window)
                || last.collective >= collective.saturating_add(self.config.collectives)
            {
                return;
            }
            self.posted += length as u64 + 1;
        }
    }

    /// The next packet to send, with its AckReq bit.
    pub(crate) fn transmit(&mut self, now: Nanos) -> Option<(Psn, Item, bool)> {
        let waits = self.rnr_until.is_some_and(|at| now < at);
        if let Some(index) = self.again.pop_front().filter(|_| !self.dead && !waits)
            && index >= self.acked
        {
            self.repeated += 1;
            let psn = self.config.sq_psn.add(index as i32);
            return Some((psn, self.out[index as usize], true));
        }
        if self.dead || waits || self.next >= self.posted || self.next >= self.acked + UNACKED_MAX {
            return None;
        }
        self.rnr_until = None;
        let item = self.out[self.next as usize];
        let psn = self.config.sq_psn.add(self.next as i32);
        self.repeated += u64::from(self.next < self.sent);
        self.next += 1;
        self.sent = self.sent.max(self.next);
        self.since_ack_request += 1;
        let ack_request = item.ends_message() || self.since_ack_request >= ACK_EVERY;
        if ack_request {
            self.since_ack_request = 0;
        }
        if self.timer.is_none() {
            self.timer = Some(now + self.config.timeout);
        }
        if self.config.repeats != Repeats::All && self.probe_at.is_none() && self.probes == 0 {
            self.probe_at = Some(now + OVERDUE);
        }
        Some((psn, item, ack_request))
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        if self.dead {
            return None;
        }
        let start = (self.posted == 0 && !self.out.is_empty()).then_some(self.config.starts);
        let deadlines = [self.timer, self.rnr_until, self.probe_at, start];
        deadlines.into_iter().flatten().min()
    }

    pub(crate) fn on_time(&mut self, now: Nanos) {
        self.rnr_until = self.rnr_until.filter(|&at| now < at);
        if self.timer.is_some_and(|at| at <= now) {
            self.timer = None;
            if self.acked < self.sent {
                self.timeouts += 1;
                if self.retries_left == 0 {
                    self.dead = true;
                    return;
                }
                if self.config.retries < 7 {
                    self.retries_left -= 1;
                }
                self.next = self.acked;
                self.retrying = true;
                self.timer = Some(now + self.config.timeout);
            }
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probes += 1;
            let wait = Nanos(OVERDUE.0 << self.probes.min(30));
            self.probe_at = (wait < self.config.timeout && self.acked < self.sent).then(|| now + wait);
            if self.next == self.sent && self.acked < self.sent {
                self.again.push_back(self.acked);
            }
        }
    }

    /// A repair request.
    pub(crate) fn on_repair_request(&mut self, psn: Psn) {
        let index = self.acked as i64 + i64::from(psn.diff(self.config.sq_psn.add(self.acked as i32)));
        if self.config.repeats != Repeats::All && (self.acked as i64..self.next as i64).contains(&index) {
            self.again.push_back(index as u64);
        }
    }

    /// Feedback. Returns the range of packets that it believes to be received now.
    pub(crate) fn on_feedback(&mut self, now: Nanos, psn: Psn, syndrome: Syndrome) -> std::ops::Range<u64> {
        if self.acked == self.sent {
            // There is nothing to send again.
            return self.acked..self.acked;
        }
        let here = self.config.sq_psn.add(self.acked as i32);
        let ahead = psn.diff(here) + i32::from(syndrome == Syndrome::Ack);
        let before = self.acked;
        if ahead >= 0 {
            self.acked += ahead as u64;
            self.next = self.next.max(self.acked);
        }
        match syndrome {
            Syndrome::Ack => {
                if ahead > 0 {
                    self.retries_left = self.config.retries;
                    self.retrying = false;
                }
                self.timer = (self.acked < self.sent).then_some(now + self.config.timeout);
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.naks += 1;
                if self.config.repeats == Repeats::All && ahead >= 0 && !self.retrying {
                    self.retrying = true;
                    self.next = self.acked;
                }
            }
            Syndrome::RnrNak(timer) => {
                if ahead >= 0 {
                    self.next = self.acked;
                    self.rnr_until = Some(now + timer.wait());
                }
            }
            Syndrome::Nak(_) => self.dead = true,
        }
        if self.acked > before && self.config.repeats != Repeats::All {
            self.probes = 0;
            self.probe_at = (self.acked < self.sent).then_some(now + OVERDUE);
        }
        before..self.acked
    }

    /// The software RNIC keeps a packet behind a gap, and asks for each missing one; if it has it already, for the first one again. `None`: it is
    /// not such a packet, or such a host.
    pub(crate) fn keep(&mut self, psn: Psn, frame: Frame) -> Option<Vec<Psn>> {
        let (start, expected) = (self.config.rq_psn, self.received.len() as u64);
        let ahead = psn.diff(start.add(expected as i32));
        if self.config.repeats != Repeats::Requested || ahead <= 0 {
            return None;
        }
        let index = expected + ahead as u64;
        let missing = match self.kept.insert(index, frame) {
            Some(_) => expected..expected + 1,
            None => self.asked.max(expected)..index,
        };
        self.asked = self.asked.max(index + 1);
        Some(missing.map(|index| start.add(index as i32)).collect())
    }

    /// The packet that is expected now, if it was kept.
    pub(crate) fn take_kept(&mut self) -> Option<Frame> {
        self.kept.remove(&(self.received.len() as u64))
    }

    /// A request packet. The answer, if there is one; the payload is taken if it is the one expected.
    pub(crate) fn on_request(
        &mut self,
        now: Nanos,
        psn: Psn,
        payload: Option<Payload>,
        ack_request: bool,
    ) -> Option<Answer> {
        let expected = self.received.len();
        let expected_psn = self.config.rq_psn.add(expected as i32);
        let latest = Answer {
            psn: expected_psn.prev(),
            syndrome: Syndrome::Ack,
        };
        match psn.diff(expected_psn) {
            0 if now < self.config.receives => Some(Answer {
                psn,
                syndrome: Syndrome::RnrNak(RnrTimer::new(20)),
            }),
            0 => {
                assert!(expected < self.into.len(), "more than the program has: {psn}");
                self.nak_sent = false;
                self.received.push(payload);
                ack_request.then_some(Answer {
                    psn,
                    syndrome: Syndrome::Ack,
                })
            }
            ahead if ahead < 0 => Some(latest),
            _ if self.nak_sent => None,
            _ => {
                self.nak_sent = true;
                Some(Answer {
                    psn: expected_psn,
                    syndrome: Syndrome::Nak(NakCode::PsnSequenceError),
                })
            }
        }
    }
}
