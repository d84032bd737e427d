//! The pace of a QP with a rate limit: all its requests, also those sent again, keep to a token bucket. ACKs are free.

use castnet_wire::{Nanos, Pmtu, RateLimit, TokenBucket};

/// Most bytes of headers and ICRC around a payload.
const HEADERS_MAX: u64 = 128;

#[derive(Debug)]
pub(crate) struct Pace {
    bucket: TokenBucket,
    /// A frame of the full path MTU.
    full: u64,
    /// The end of the wait for the bucket, while a packet waits.
    pub(crate) deadline: Option<Nanos>,
    /// The longest time without a request for an ACK, so that the retransmission timer does not expire between slow packets.
    patience: Option<Nanos>,
    asked_at: Nanos,
}

impl Pace {
    /// `timeout` is that of the retransmission timer.
    pub(crate) fn new(limit: RateLimit, pmtu: Pmtu, timeout: Option<Nanos>) -> Self {
        Self {
            bucket: TokenBucket::new(limit),
            full: frame_max(pmtu.bytes() as u64),
            deadline: None,
            patience: timeout.map(|timeout| Nanos(timeout.0 / 8)),
            asked_at: Nanos::ZERO,
        }
    }

    /// The least burst: a full packet.
    pub(crate) const fn burst_min(pmtu: Pmtu) -> u64 {
        frame_max(pmtu.bytes() as u64)
    }

    /// Whether a packet may be sent now. If not, it waits until the deadline.
    pub(crate) fn admits(&mut self, now: Nanos, payload: u64) -> bool {
        self.bucket.refill(now);
        let ready = self.bucket.ready_at(frame_max(payload));
        self.deadline = (ready > now).then_some(ready);
        self.deadline.is_none()
    }

    /// Whether a packet of the most bytes that is sent now must ask for an ACK. `is_first`: nothing is unacknowledged. `asks`: it
    /// asks anyway.
    pub(crate) fn asks(&mut self, now: Nanos, is_first: bool, asks: bool) -> bool {
        if is_first {
            self.asked_at = now;
        }
        let mut after = self.bucket;
        after.take(self.full);
        let next = after.ready_at(self.full);
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
    pub(crate) fn sent(&mut self, bytes: u64) {
        let taken = self.bucket.take(bytes);
        debug_assert!(taken, "the bucket had as many bytes");
    }

    pub(crate) fn handle_timeout(&mut self, now: Nanos) {
        self.deadline = self.deadline.filter(|at| *at > now);
    }
}

const fn frame_max(payload: u64) -> u64 {
    payload + HEADERS_MAX
}
