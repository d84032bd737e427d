//! The probe timer of a requester: where an answer is overdue, the oldest unacknowledged packet is sent again, with AckReq. So a lost last
//! packet, ACK or NAK costs some round trips, and no retransmission time-out.

use castnet_wire::{Nanos, RoundTrip};

#[derive(Clone, Debug)]
pub(crate) struct Probe {
    round_trip: RoundTrip,
    /// A packet with AckReq that was sent once, and when.
    timed: Option<(u64, Nanos)>,
    /// One past the newest packet with AckReq, and when one was sent last. Without a request, silence means nothing.
    asked: u64,
    asked_at: Nanos,
    /// Probes since the last progress: each waits twice as long as the one before.
    count: u8,
    /// The retransmission time-out. What takes so long is left to it.
    most: Nanos,
    pub(crate) deadline: Option<Nanos>,
    /// The packet that the last probe has sent again.
    repeated: Option<u64>,
}

impl Probe {
    /// Without a retransmission timer.
    const MOST: Nanos = Nanos::from_secs(1);

    pub(crate) fn new(timeout: Option<Nanos>) -> Self {
        Self {
            round_trip: RoundTrip::default(),
            timed: None,
            asked: 0,
            asked_at: Nanos::ZERO,
            count: 0,
            most: timeout.unwrap_or(Self::MOST),
            deadline: None,
            repeated: None,
        }
    }

    /// A packet was sent.
    pub(crate) fn sent(&mut self, now: Nanos, sequence: u64, ack_request: bool, is_retransmission: bool) {
        // Nobody knows which of two transmissions is answered (Karn).
        if is_retransmission && self.timed.is_some_and(|(timed, _)| sequence <= timed) {
            self.timed = None;
        }
        if !ack_request {
            return;
        }
        if !is_retransmission && self.timed.is_none() {
            self.timed = Some((sequence, now));
        }
        (self.asked, self.asked_at) = (self.asked.max(sequence + 1), now);
        if self.deadline.is_none() && self.count == 0 {
            self.deadline = Some(now + self.patience());
        }
    }

    /// All packets before `unacked` are acknowledged. True if a probe has shown that the receiver lacks those that follow, too: the packet
    /// that it has sent again is the last one that is acknowledged.
    pub(crate) fn acknowledged(&mut self, now: Nanos, unacked: u64) -> bool {
        if let Some((timed, at)) = self.timed
            && timed < unacked
        {
            self.round_trip.measure(now.since(at));
            self.timed = None;
        }
        self.count = 0;
        self.deadline = (unacked < self.asked).then(|| now + self.patience());
        let repeated = self.repeated.take();
        repeated.is_some_and(|repeated| repeated + 1 == unacked)
    }

    /// True if a probe is due. The next one waits twice as long; at the retransmission time-out there is none.
    pub(crate) fn handle_timeout(&mut self, now: Nanos) -> bool {
        if self.deadline.is_none_or(|at| at > now) {
            return false;
        }
        // The timer is not changed for each packet.
        let patience = self.patience();
        let at = self.asked_at + patience;
        if at > now || patience == self.most {
            self.deadline = Some(at).filter(|at| *at > now);
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.deadline = Some(now + self.patience());
        true
    }

    /// The probe sends this packet again.
    pub(crate) fn repeat(&mut self, sequence: u64) {
        self.repeated = Some(sequence);
    }

    pub(crate) fn halt(&mut self) {
        self.deadline = None;
    }

    fn patience(&self) -> Nanos {
        self.round_trip.patience(self.count, self.most)
    }
}
