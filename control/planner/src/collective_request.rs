//! What is asked for of a collective group, and what switches have left.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use castnet_rules::{LossPolicy, StragglerPolicy};
use castnet_wire::{MacAddr, McstId, Pmtu, Psn, Qpn};

/// A collective group that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveRequest {
    /// The group's name.
    pub name: String,
    /// The version that the rules will carry.
    pub generation: u64,
    /// The group's address; no host of the fabric has it.
    pub mcst_id: McstId,
    /// Its address at each switch, where its tree passes routers: each switch of such a tree has one of its own.
    pub mcst_ids: BTreeMap<String, McstId>,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// The group's first PSN.
    pub start_psn: Psn,
    /// Packets that a rank may have in flight; slots follow from it and from the messages' length ([`slots`]).
    pub window_packets: u16,
    /// Packets of a full message.
    pub message_packets: u16,
    /// Whether contributions are kept and added in rank order.
    pub reproducible: bool,
    /// Who repairs losses.
    pub loss_policy: LossPolicy,
    /// How ranks that wait are kept alive.
    pub straggler_policy: StragglerPolicy,
    /// The ranks' QP time-out, in microseconds.
    pub ack_timeout_us: u32,
    /// When a collective that waits is reported, in milliseconds.
    pub stall_timeout_ms: u32,
    /// The ranks, rank 0 first; at least two. Several may be at one host, each with a QP of its own.
    pub ranks: Vec<RankMember>,
}

/// A rank's QP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMember {
    /// The host's name in the fabric.
    pub host: String,
    /// Its address; where it is `None`, the fabric's.
    pub ip: Option<Ipv4Addr>,
    /// Its Ethernet address; where it is `None`, the fabric's.
    pub mac: Option<MacAddr>,
    /// Its QP.
    pub qpn: Qpn,
    /// The PSN of the first packet that it sends.
    pub sq_psn: Psn,
    /// The PSN of the first packet that it receives.
    pub rq_psn: Psn,
}

/// What a switch has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes of group state that are free.
    pub memory_free: u64,
    /// Groups that it can still take.
    pub groups_free: u64,
    /// Endpoints that one group can have there.
    pub endpoints_max: u64,
    /// Path MTUs that it carries; empty: any.
    pub pmtus: Vec<Pmtu>,
}

impl Room {
    /// That of a switch of which nothing is known.
    pub(crate) const UNKNOWN: Self = Self {
        memory_free: u64::MAX,
        groups_free: u64::MAX,
        endpoints_max: u64::MAX,
        pmtus: Vec::new(),
    };
}

/// What switches have left, by name; a switch that is not named takes anything.
pub type Rooms = BTreeMap<String, Room>;

impl CollectiveRequest {
    /// A request with the usual rest: generation 1, PSN 0, the rules' defaults, for windows of `window` packets.
    pub fn new(name: &str, mcst_id: McstId, pmtu: Pmtu, window: u16, ranks: Vec<RankMember>) -> Self {
        Self {
            name: name.into(),
            generation: 1,
            mcst_id,
            mcst_ids: BTreeMap::new(),
            pmtu,
            start_psn: Psn::new(0),
            window_packets: window,
            message_packets: castnet_rules::DEFAULT_MESSAGE_PACKETS.min(window.max(1)),
            reproducible: false,
            loss_policy: LossPolicy::default(),
            straggler_policy: StragglerPolicy::default(),
            ack_timeout_us: castnet_rules::DEFAULT_ACK_TIMEOUT_US,
            stall_timeout_ms: castnet_rules::DEFAULT_STALL_TIMEOUT_MS,
            ranks,
        }
    }
}

impl RankMember {
    /// A host's QP, with the addresses that the fabric knows.
    pub fn new(host: &str, qpn: Qpn) -> Self {
        Self {
            host: host.into(),
            ip: None,
            mac: None,
            qpn,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
        }
    }
}

/// Slots of a group at a switch with room: the smallest power of two of at least two windows and two messages, at most 32768. With
/// so many, no packet is ever early (docs/decisions/0005).
pub const fn slots(window: u16, message_packets: u16) -> u16 {
    power_of_two(2 * (window as u32 + message_packets as u32))
}

/// The fewest slots that a group can do with: the smallest power of two of at least two windows, at most 32768 (2MW of EPIC
/// 4.3). It is [`slots`], or half of that.
pub const fn slots_min(window: u16) -> u16 {
    power_of_two(2 * window as u32)
}

const fn power_of_two(at_least: u32) -> u16 {
    let power = if at_least < 2 {
        2
    } else {
        at_least.next_power_of_two()
    };
    if power > 1 << 15 { 1 << 15 } else { power as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_two_windows_and_are_a_power_of_two() {
        for (window, expected) in [
            (0, 2),
            (1, 2),
            (2, 4),
            (3, 8),
            (64, 128),
            (65, 256),
            (16_384, 32_768),
        ] {
            assert_eq!(slots_min(window), expected, "{window}");
        }
        assert_eq!(slots_min(u16::MAX), 32_768);
    }

    #[test]
    fn slots_hold_two_windows_and_two_messages_where_there_is_room() {
        for (window, message, expected) in [
            (1, 1, 4),
            (3, 1, 8),
            (4, 1, 16),
            (48, 16, 128),
            (64, 16, 256),
            (64, 64, 256),
            (16_384, 16, 32_768),
        ] {
            assert_eq!(slots(window, message), expected, "{window} {message}");
        }
        for window in 1..=16_384 {
            for message in [1, window / 2 + 1, window] {
                let (most, fewest) = (slots(window, message), slots_min(window));
                assert!(most == fewest || most == 2 * fewest, "{window} {message}");
            }
        }
    }
}
