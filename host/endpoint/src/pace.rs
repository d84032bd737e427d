//! The pace of a QP with a rate limit or congestion control: all its requests, also those sent again, keep to token buckets. ACKs are free.

use castnet_wire::{Nanos, Pmtu, TokenBucket};

use crate::config::QpConfig;
use crate::reaction::Reaction;

/// Most bytes of headers and ICRC around a payload.
const HEADERS_MAX: u64 = 128;

#[derive(Clone, Debug)]
pub(crate) struct Pace {
    limit: Option<TokenBucket>,
    pub(crate) reaction: Option<Reaction>,
    /// A frame of the full path MTU.
    full: u64,
    /// The end of the wait for the buckets, while a packet waits.
    pub(crate) deadline: Option<Nanos>,
    /// The longest time without a request for an ACK, so that the retransmission timer does not expire between slow packets.
    patience: Option<Nanos>,
    asked_at: Nanos,
}

impl Pace {
    /// `timeout` is that of the retransmission timer. `None` if the QP has neither a limit nor congestion control.
    pub(crate) fn new(config: &QpConfig, timeout: Option<Nanos>) -> Option<Self> {
        if config.rate_limit.is_none() && config.reaction.is_none() {
            return None;
        }
        Some(Self {
            limit: config.rate_limit.map(TokenBucket::new),
            reaction: config.reaction.map(Reaction::new),
            full: frame_max(config.pmtu.bytes() as u64),
            deadline: None,
            patience: timeout.map(|timeout| Nanos(timeout.0 / 8)),
            asked_at: Nanos::ZERO,
        })
    }

    /// The least burst: a full packet.
    pub(crate) const fn burst_min(pmtu: Pmtu) -> u64 {
        frame_max(pmtu.bytes() as u64)
    }

    /// The buckets that requests keep to now.
    fn buckets(&self) -> impl Iterator<Item = &TokenBucket> {
        let reaction = self.reaction.as_ref().and_then(Reaction::bucket);
        self.limit.iter().chain(reaction)
    }

    /// Whether a packet may be sent now. If not, it waits until the deadline.
    pub(crate) fn admits(&mut self, now: Nanos, payload: u64) -> bool {
        if let Some(limit) = &mut self.limit {
            limit.refill(now);
        }
        if let Some(reaction) = &mut self.reaction {
            reaction.advance(now);
        }
        let wait = |bucket: &TokenBucket| Some(bucket.ready_at(frame_max(payload))).filter(|at| *at > now);
        let limit = self.limit.as_ref().and_then(wait);
        // At a higher rate the wait is shorter.
        let reaction = self.reaction.as_ref();
        let slowed = reaction.and_then(|r| Some(wait(r.bucket()?)?.min(r.next_increase())));
        self.deadline = limit.max(slowed);
        self.deadline.is_none()
    }

    /// Whether a packet of the most bytes that is sent now must ask for an ACK. `is_first`: nothing is unacknowledged. `asks`: it
    /// asks anyway.
    pub(crate) fn asks(&mut self, now: Nanos, is_first: bool, asks: bool) -> bool {
        if is_first {
            self.asked_at = now;
        }
        let after = |bucket: &TokenBucket| {
            let mut after = *bucket;
            after.take(self.full);
            after.ready_at(self.full)
        };
        let next = self.buckets().map(after).max().unwrap_or(now);
        let asks = asks
            || self
                .patience
                .is_some_and(|most| next.since(self.asked_at) >= most);
        if asks {
            self.asked_at = now;
        }
        asks
    }

    /// A frame was sent.
    pub(crate) fn sent(&mut self, now: Nanos, bytes: u64) {
        if let Some(limit) = &mut self.limit {
            let taken = limit.take(bytes);
            debug_assert!(taken, "the bucket had as many bytes");
        }
        if let Some(reaction) = &mut self.reaction {
            reaction.sent(now, bytes);
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Nanos) {
        self.deadline = self.deadline.filter(|at| *at > now);
    }
}

const fn frame_max(payload: u64) -> u64 {
    payload + HEADERS_MAX
}
