//! Counters of frames and of the reasons for discarding them.

use castnet_wire::names;

names! {
    /// The reason why a received frame had no effect.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Discard {
        /// The destination is another Ethernet address.
        NotMyMac => "not-my-mac",
        /// Not RoCEv2 over IPv4.
        NotRoce => "not-roce",
        /// Shorter than its headers require, with an invalid header, or with an unknown opcode.
        Malformed => "malformed",
        /// The destination is another IP address.
        NotMyIp => "not-my-ip",
        /// The destination QP does not exist.
        UnknownQp => "unknown-qp",
        /// The QP is not connected or has failed.
        QpNotReady => "qp-not-ready",
        /// The opcode belongs to another transport than RC.
        WrongTransport => "wrong-transport",
        /// The source is not the IP address that the QP is connected to.
        WrongSourceIp => "wrong-source-ip",
        /// The frame belongs to another partition.
        BadPkey => "bad-pkey",
        /// The ICRC is wrong.
        BadIcrc => "bad-icrc",
        /// A packet after a gap that was already NAKed; where packets are kept, one that is kept already or that is too far behind the gap.
        OutOfOrder => "out-of-order",
        /// A duplicate READ or atomic. None was ever accepted.
        DuplicateUnsupported => "duplicate-unsupported",
        /// A READ or atomic response. None was ever requested.
        UnexpectedResponse => "unexpected-response",
        /// An ACK, a NAK or a repair request of a PSN that was already acknowledged.
        AckOld => "ack-old",
        /// An ACK or NAK of a PSN that was never sent.
        AckAhead => "ack-ahead",
        /// A second sequence NAK without an ACK or the end of a message in between.
        NakRepeated => "nak-repeated",
    }
}

/// Counters of an endpoint since its creation. They count frames unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Requests processed in order.
    pub requests_in: u64,
    /// Duplicate requests received.
    pub duplicates_in: u64,
    /// Requests sent, including retransmissions.
    pub requests_out: u64,
    /// Retransmitted requests.
    pub retransmits: u64,
    /// Requests sent with AckReq set.
    pub ack_requests_out: u64,
    /// ACKs that acknowledged new packets.
    pub acks_in: u64,
    /// ACKs sent.
    pub acks_out: u64,
    /// Sequence NAKs that started a retry.
    pub sequence_naks_in: u64,
    /// Sequence NAKs sent.
    pub sequence_naks_out: u64,
    /// Requests of a switch for one packet.
    pub repair_requests_in: u64,
    /// Requests to a switch for one packet.
    pub repair_requests_out: u64,
    /// RNR NAKs that started a wait.
    pub rnr_naks_in: u64,
    /// RNR NAKs sent.
    pub rnr_naks_out: u64,
    /// Received NAKs that failed a QP.
    pub fatal_naks_in: u64,
    /// Sent NAKs that failed a QP.
    pub fatal_naks_out: u64,
    /// Requests received with a congestion mark (ECN: CE).
    pub marked_in: u64,
    /// Congestion notifications (CNPs) sent.
    pub cnps_out: u64,
    /// Congestion notifications received.
    pub cnps_in: u64,
    /// Of these, those that lowered the rate of a QP.
    pub rate_cuts: u64,
    /// Expirations of retransmission timers.
    pub timeouts: u64,
    /// Requests sent again because an answer was overdue.
    pub probes: u64,
    /// Responses lost because the queue was full. The requester's timer recovers from it.
    pub responses_lost: u64,
    /// Calls of `poll_transmit` with a buffer shorter than a full frame.
    pub short_buffers: u64,
    /// Discarded frames by [`Discard`].
    discards: [u64; Discard::ALL.len()],
}

impl Stats {
    /// The number of frames discarded for this reason.
    pub const fn discarded(&self, reason: Discard) -> u64 {
        self.discards[reason as usize]
    }

    /// The reasons with a count other than 0.
    pub fn discards(&self) -> impl Iterator<Item = (Discard, u64)> + '_ {
        Discard::ALL
            .iter()
            .map(|&r| (r, self.discarded(r)))
            .filter(|&(_, n)| n != 0)
    }

    pub(crate) fn discard(&mut self, reason: Discard) {
        self.discards[reason as usize] += 1;
    }
}
