//! The reasons for which the switch drops a frame (contract S1).

use core::ops::{Index, IndexMut};

use crate::{CounterSet, names};

names! {
    /// Why a frame was dropped. Every frame that comes in leaves, is absorbed by a group, or is counted here. Names are in lower case,
    /// with hyphens.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum DropReason {
        /// The frame is shorter than its Ethernet header; or ARP, or a frame for a group or for the switch itself, is shorter than its headers require,
        /// breaks their rules, or has more than two VLAN tags.
        Malformed => "malformed",
        /// The IPv4 header checksum is wrong.
        BadIpChecksum => "bad-ip-checksum",
        /// The ICRC of a frame that would change group state is wrong.
        BadIcrc => "bad-icrc",
        /// Longer than the MTU of the port it should leave by.
        TooLong => "too-long",
        /// The destination is a group, but the opcode cannot be multicast (READ, atomics, other transports).
        NotMulticastable => "not-multicastable",
        /// The destination is a group, and port, address or QPN are not those of a member; a frame to a host has a group address as
        /// its source; or data of a static core comes by a port that does not lead there (contract C4).
        NotMember => "not-member",
        /// Data to a group from a member that is not its source.
        NotSource => "not-source",
        /// Feedback to a group from its own source.
        FeedbackFromSource => "feedback-from-source",
        /// An ACK or NAK for a PSN that the source has not sent. Accepting it would lose data silently.
        AckAhead => "ack-ahead",
        /// Data so far ahead of what all paths of its group have acknowledged that no source has it outstanding.
        AheadOfWindow => "ahead-of-window",
        /// Payload longer than the group's path MTU.
        OverPmtu => "over-pmtu",
        /// Data of a host beyond the rate limit of its group.
        OverRate => "over-rate",
        /// A registration packet of MRP: from a port where it is not allowed, beyond a limit, or against the state of its group.
        RegistrationRefused => "registration-refused",
        /// No route to the destination address.
        NoRoute => "no-route",
        /// A copy of multicast data that a static core has brought to a switch without members of the group: a prefix covers more switches than
        /// the group has, or a route leads on from none.
        OverCovered => "over-covered",
        /// TTL or hop limit used up.
        TtlExpired => "ttl-expired",
        /// The only egress port is the ingress port.
        SamePort => "same-port",
        /// A link-local control frame that a bridge must not forward, and that this switch does not read.
        Reserved => "reserved",
        /// There is no egress port.
        NoPort => "no-port",
        /// The port is down.
        PortDown => "port-down",
        /// The port's send queue was full.
        TxFull => "tx-full",
        /// A frame of a lossless class whose queue was full: the sender went on in spite of PAUSE, or the headroom is too small.
        PfcOverflow => "pfc-overflow",
        /// A frame of a lossless class that was paused for so long that the watchdog emptied its queue.
        PfcStorm => "pfc-storm",
        /// The hand-over ring to another worker was full.
        HandOverFull => "hand-over-full",
        /// Dropped by a fault injector.
        Injected => "injected",
        /// Data of a collective whose control message has not come from that endpoint: the call is unknown.
        ControlMissing => "control-missing",
        /// A contribution beyond the slots of the group.
        EarlyContribution => "early-contribution",
        /// The calls of the group's ranks differed: the group serves no later collective.
        GroupFailed => "group-failed",
        /// The length or position of a contribution does not match the group's path MTU and message length, or the endpoint must not
        /// contribute now.
        ContributionMismatch => "contribution-mismatch",
        /// A result or a contribution that is too old.
        Stale => "stale",
        /// A call for reduction in rank order, to a group that is not reproducible.
        NotReproducible => "not-reproducible",
    }
}

impl DropReason {
    /// The number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Its number: an index into counters.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Frames dropped, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drops([u64; DropReason::COUNT]);

impl Drops {
    /// Each reason, in the order of their numbers, and its frames.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().copied().zip(self.0)
    }

    /// Frames dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::COUNT])
    }
}

impl Index<DropReason> for Drops {
    type Output = u64;

    fn index(&self, reason: DropReason) -> &u64 {
        &self.0[reason.index()]
    }
}

impl IndexMut<DropReason> for Drops {
    fn index_mut(&mut self, reason: DropReason) -> &mut u64 {
        &mut self.0[reason.index()]
    }
}

impl CounterSet for Drops {
    fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.iter().map(|(reason, frames)| (reason.name(), frames))
    }

    fn add(&mut self, more: &Self) {
        for (sum, more) in self.0.iter_mut().zip(more.0) {
            *sum += more;
        }
    }

    fn since(&self, before: &Self) -> Self {
        let mut since = *self;
        for (now, before) in since.0.iter_mut().zip(before.0) {
            *now = now.saturating_sub(before);
        }
        since
    }
}
