//! Counters: what was sent and received, and why frames were not taken.

macro_rules! discards {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a received frame changed nothing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Discard { $($(#[$doc])* $name,)* }

        impl Discard {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Its name in tables and metrics: lower case, hyphens.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

discards! {
    /// To another Ethernet address.
    NotMyMac = "not-my-mac",
    /// No RoCEv2 over IPv4.
    NotRoce = "not-roce",
    /// Shorter than its headers say, a header that breaks its own rules, or an unknown opcode.
    Malformed = "malformed",
    /// To another IP address.
    NotMyIp = "not-my-ip",
    /// No such QP.
    UnknownQp = "unknown-qp",
    /// The QP is not connected, or has failed.
    QpNotReady = "qp-not-ready",
    /// An opcode of another transport than RC.
    WrongTransport = "wrong-transport",
    /// Not from the IP address that the QP is connected to.
    WrongSourceIp = "wrong-source-ip",
    /// Of another partition.
    BadPkey = "bad-pkey",
    /// The ICRC is wrong: damaged on its way.
    BadIcrc = "bad-icrc",
    /// After a gap that was already NAKed.
    OutOfOrder = "out-of-order",
    /// A duplicate READ or atomic; none was ever taken.
    DuplicateUnsupported = "duplicate-unsupported",
    /// A READ or atomic response; none was ever asked for.
    UnexpectedResponse = "unexpected-response",
    /// An ACK or NAK of a PSN already acknowledged.
    AckOld = "ack-old",
    /// An ACK or NAK for a PSN that was never sent.
    AckAhead = "ack-ahead",
    /// A sequence NAK after another one without progress between them: an ACK, or the end of a message.
    NakRepeated = "nak-repeated",
}

/// What an endpoint did, since it was made. All count frames, unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Received, of any kind.
    pub frames_in: u64,
    /// Sent, of any kind.
    pub frames_out: u64,
    /// Requests taken in order.
    pub requests_in: u64,
    /// Requests that had been taken before.
    pub duplicates_in: u64,
    /// Requests sent, again or not.
    pub requests_out: u64,
    /// Requests sent again.
    pub retransmits: u64,
    /// Requests sent with AckReq set.
    pub ack_requests_out: u64,
    /// ACKs that acknowledged something new.
    pub acks_in: u64,
    /// ACKs sent.
    pub acks_out: u64,
    /// Sequence NAKs that began a retry.
    pub sequence_naks_in: u64,
    /// Sequence NAKs sent.
    pub sequence_naks_out: u64,
    /// RNR NAKs that began a wait.
    pub rnr_naks_in: u64,
    /// RNR NAKs sent.
    pub rnr_naks_out: u64,
    /// NAKs that ended a QP here.
    pub fatal_naks_in: u64,
    /// NAKs sent that ended a QP here.
    pub fatal_naks_out: u64,
    /// Congestion notifications, which change nothing for now.
    pub cnps_in: u64,
    /// Times that a QP's retransmission timer ran out.
    pub timeouts: u64,
    /// Responses that found no room to wait in. The requester's timer repairs it.
    pub responses_lost: u64,
    /// Calls of `poll_transmit` with a buffer too short for a full frame.
    pub short_buffers: u64,
    /// Frames not taken, by [`Discard`].
    discards: [u64; Discard::COUNT],
}

impl Stats {
    /// Frames not taken for that reason.
    pub const fn discarded(&self, reason: Discard) -> u64 {
        self.discards[reason as usize]
    }

    /// Frames not taken, by reason, the zeros left out.
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
