//! A rank of a collective group that runs one AllReduce after another.

use castnet_wire::{FrameBuf, NakCode, Nanos, Psn, Syndrome};

use crate::counts::FlowCounts;
use crate::seen::{AFTER_BTH, Seen};
use crate::source::{ACK_TIMEOUT, Positions, position};
use crate::template::{Ready, aeth};

/// Data packets of one AllReduce. One frame in 1025 is then a control message.
pub(crate) const PACKETS: u32 = 1024;
/// After a stop, a rank gives up when it has gone back so many times without progress.
const FUTILE_RETURNS_MAX: u32 = 3;

/// Packet `i` of the flow has the PSN `sq + i` upstream; its result has `rq + i`. Every 1025th packet, including the
/// first, is a control message.
pub(crate) struct Rank<B> {
    config: RankConfig<B>,
    /// Packets sent since the rank last went back, and the highest number ever sent.
    sent: u64,
    most: u64,
    /// Results received without a gap.
    results: u64,
    ack_due: bool,
    nak_due: bool,
    nak_sent: bool,
    limit: u64,
    moved: Nanos,
    futile_returns: u32,
    endless: bool,
}

pub(crate) struct RankConfig<B> {
    pub(crate) control: Ready<B>,
    /// See [`crate::source::Positions`].
    pub(crate) data: Positions<B>,
    pub(crate) answer: Ready<B>,
    /// Payload of every result.
    pub(crate) result: Vec<u8>,
    pub(crate) sq: Psn,
    pub(crate) rq: Psn,
    pub(crate) window: u64,
    pub(crate) message: u64,
}

impl<B: FrameBuf> Rank<B> {
    pub(crate) fn new(config: RankConfig<B>) -> Self {
        Self {
            config,
            sent: 0,
            most: 0,
            results: 0,
            ack_due: false,
            nak_due: false,
            nak_sent: false,
            limit: u64::MAX,
            moved: Nanos::ZERO,
            futile_returns: 0,
            endless: false,
        }
    }

    /// Most packets to send, the same at all ranks: otherwise the last packets get no result.
    pub(crate) fn limit(&mut self, packets: u64) {
        self.limit = packets;
    }

    /// Results are not waited for.
    pub(crate) fn unbind(&mut self) {
        self.endless = true;
    }

    #[inline]
    pub(crate) fn answer(
        &mut self,
        counts: &mut FlowCounts,
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> Option<B> {
        let (psn, syndrome) = if self.ack_due {
            (wire(self.config.rq, self.results).prev(), Syndrome::Ack)
        } else if self.nak_due {
            (
                wire(self.config.rq, self.results),
                Syndrome::Nak(NakCode::PsnSequenceError),
            )
        } else {
            return None;
        };
        let frame = self
            .config
            .answer
            .frame(psn, false, [aeth(syndrome, 0), 0], make)?;
        if self.ack_due {
            self.ack_due = false;
            counts.acks_sent += 1;
        } else {
            self.nak_due = false;
            counts.naks_sent += 1;
        }
        Some(frame)
    }

    /// The next packet, and whether it is new.
    #[inline]
    pub(crate) fn next(
        &mut self,
        now: Nanos,
        stopped: bool,
        counts: &mut FlowCounts,
        make: &mut impl FnMut(&B) -> Option<B>,
    ) -> Option<(B, bool)> {
        // At the end some packets lack contributions of others and get no result.
        let gives_up = stopped && self.futile_returns >= FUTILE_RETURNS_MAX;
        if !self.endless && self.sent > self.results && now.0 > self.moved.0 + ACK_TIMEOUT.0 && !gives_up {
            counts.timeouts += u64::from(!stopped);
            self.futile_returns += 1;
            self.moved = now;
            self.sent = self.results;
        }
        let new = self.sent == self.most;
        if (new && (stopped || self.most >= self.limit))
            || (!self.endless && self.sent - self.results >= self.config.window)
        {
            return None;
        }
        let (call, place) = (
            self.sent / u64::from(PACKETS + 1),
            self.sent % u64::from(PACKETS + 1),
        );
        let psn = wire(self.config.sq, self.sent);
        let frame = if place == 0 {
            self.config.control.frame(psn, true, [call as u32, 0], make)?
        } else {
            let in_message = (place - 1) % self.config.message;
            let last = in_message + 1 == self.config.message || place == u64::from(PACKETS);
            self.config.data[position(in_message == 0, last)]
                .as_ref()?
                .frame(psn, last, [0; 2], make)?
        };
        if self.sent == self.results {
            self.moved = now;
        }
        self.sent += 1;
        if new {
            self.most = self.sent;
            counts.data_sent += 1;
            counts.data_sent_bytes += frame.length() as u64;
        } else {
            counts.repeated += 1;
        }
        Some((frame, new))
    }

    pub(crate) fn feedback(&mut self, seen: &Seen, counts: &mut FlowCounts) {
        match seen.syndrome() {
            Some(Syndrome::Ack) => counts.acks_received += 1,
            Some(_) => {
                counts.naks_received += 1;
                // The switch lacks this packet: retransmit from there on.
                let back = wire(self.config.sq, self.sent).diff(seen.psn);
                if let Ok(back) = u64::try_from(back)
                    && back <= self.sent - self.results
                {
                    self.sent -= back;
                }
            }
            None => {}
        }
    }

    pub(crate) fn take(
        &mut self,
        now: Nanos,
        seen: &Seen,
        frame: &impl FrameBuf,
        check: bool,
        counts: &mut FlowCounts,
    ) {
        counts.data_received += 1;
        counts.data_received_bytes += frame.length() as u64;
        let ahead = seen.psn.diff(wire(self.config.rq, self.results));
        if ahead == 0 {
            let control = self.results.is_multiple_of(u64::from(PACKETS + 1));
            if check && !control && !has_payload(frame, &self.config.result) {
                counts.wrong_results += 1;
            }
            self.results += 1;
            self.sent = self.sent.max(self.results);
            self.most = self.most.max(self.sent);
            self.nak_sent = false;
            self.futile_returns = 0;
            self.moved = now;
            self.ack_due |= seen.ack_request;
        } else if ahead < 0 {
            counts.repeats += 1;
            self.ack_due |= seen.ack_request;
        } else if !self.nak_sent {
            counts.missing += 1;
            self.nak_sent = true;
            self.nak_due = true;
        }
    }
}

fn wire(start: Psn, index: u64) -> Psn {
    start.add(Psn::new(index as u32).value() as i32)
}

fn has_payload(frame: &impl FrameBuf, payload: &[u8]) -> bool {
    let (mut at, mut left) = (0, payload);
    for segment in frame.segments() {
        let skipped = AFTER_BTH.saturating_sub(at).min(segment.len());
        let part = &segment[skipped..];
        let (mine, rest) = left.split_at(part.len().min(left.len()));
        if part[..mine.len()] != *mine {
            return false;
        }
        (at, left) = (at + segment.len(), rest);
    }
    left.is_empty()
}
