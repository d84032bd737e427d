//! The requested group, and the room of switches.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use castnet_group::Distribution;
use castnet_rules::{DEFAULT_STALL_TIMEOUT_MS, HostPart, MulticastRule, TranslatedRule};
use castnet_wire::{CollectiveMode, MacAddr, McstId, Pmtu, Qpn, RateLimit};

/// A requested group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the group.
    pub name: String,
    /// Version of its rules.
    pub generation: u64,
    /// Its address; no host of the fabric has it.
    pub mcst_id: McstId,
    /// Its address at each switch, if the tree passes routers.
    pub mcst_ids: BTreeMap<String, McstId>,
    /// Whether the switches have these addresses also in a tree that passes no routers: its members have connected to them.
    pub own_addresses: bool,
    /// For a multicast group. With a static core, the switch next to the source sends to those next to receivers, over routers: one copy to the
    /// multicast addresses of the fabric that lead to several of them
    /// ([`Topology::multicast_routes`](castnet_topology::Topology::multicast_routes)).
    pub distribution: Distribution,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// Milliseconds after which a stalled path or collective is reported.
    pub stall_timeout_ms: u32,
    /// Limit of the data of each sender, of one lane.
    pub rate_limit: Option<RateLimit>,
    /// Switches at which a collective group has another mode than its own.
    pub modes: BTreeMap<String, CollectiveMode>,
    /// Whether a collective group is placed in Mode-III, with half the slots, if no switch has memory for it in its mode.
    pub may_augment: bool,
    /// Its members; for a collective group the ranks, rank 0 first.
    pub members: Vec<Member>,
    /// The fields of its kind.
    pub kind: RequestKind,
}

/// Kind of a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// One source, many receivers, each host once. `source` is an index into the members.
    Multicast(MulticastRule),
    /// At least two ranks. A host may have several, each with its own QP.
    Collective {
        /// Packets that a rank may have in flight. With the length of messages they give the slots ([`slots`]).
        window_packets: u16,
        /// The rest. The planner sets `slots` and `parent`.
        rule: TranslatedRule,
    },
}

/// The QP of a host in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the host in the fabric.
    pub host: String,
    /// Its address; `None`: as in the fabric.
    pub ip: Option<Ipv4Addr>,
    /// Its Ethernet address; `None`: as in the fabric.
    pub mac: Option<MacAddr>,
    /// Its QP.
    pub qpn: Qpn,
    /// Its memory, or the first PSNs of a rank. The planner sets the rank.
    pub part: HostPart,
}

/// Room of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free bytes of group state.
    pub memory_free: u64,
    /// Number of further groups.
    pub groups_free: u64,
    /// Maximum number of endpoints of a group there.
    pub endpoints_max: u64,
    /// Path MTUs that it carries; empty: any.
    pub pmtus: Vec<Pmtu>,
}

impl Room {
    /// No limit, for a switch that has not reported.
    pub const UNKNOWN: Self = Self {
        memory_free: u64::MAX,
        groups_free: u64::MAX,
        endpoints_max: u64::MAX,
        pmtus: Vec::new(),
    };
}

/// The room of switches: the planner asks for those that it would use.
pub trait Rooms {
    /// The room of a switch; [`Room::UNKNOWN`]: no limit.
    fn room(&self, switch: &str) -> Room;
}

/// Room by name of the switch; no entry: no limit.
pub type RoomTable = BTreeMap<String, Room>;

impl Rooms for RoomTable {
    fn room(&self, switch: &str) -> Room {
        self.get(switch).cloned().unwrap_or(Room::UNKNOWN)
    }
}

impl Request {
    /// A multicast group with generation 1 and the default stall time-out.
    pub fn multicast(
        name: &str,
        mcst_id: McstId,
        pmtu: Pmtu,
        members: Vec<Member>,
        rule: MulticastRule,
    ) -> Self {
        Self {
            name: name.into(),
            generation: 1,
            mcst_id,
            mcst_ids: BTreeMap::new(),
            own_addresses: false,
            distribution: Distribution::default(),
            pmtu,
            stall_timeout_ms: DEFAULT_STALL_TIMEOUT_MS,
            rate_limit: None,
            modes: BTreeMap::new(),
            may_augment: false,
            members,
            kind: RequestKind::Multicast(rule),
        }
    }

    /// A collective group with generation 1 and the default stall time-out.
    pub fn collective(
        name: &str,
        mcst_id: McstId,
        pmtu: Pmtu,
        members: Vec<Member>,
        (window_packets, rule): (u16, TranslatedRule),
    ) -> Self {
        Self {
            kind: RequestKind::Collective { window_packets, rule },
            ..Self::multicast(name, mcst_id, pmtu, members, MulticastRule::default())
        }
    }

    /// The rule of a collective group, without the fields that the planner sets.
    pub fn translated(&self) -> Option<&TranslatedRule> {
        match &self.kind {
            RequestKind::Multicast(_) => None,
            RequestKind::Collective { rule, .. } => Some(rule),
        }
    }

    pub(crate) fn field(&self, member: usize) -> String {
        match self.kind {
            RequestKind::Multicast(_) => format!("members[{member}]"),
            RequestKind::Collective { .. } => format!("ranks[{member}]"),
        }
    }
}

impl Member {
    /// The QP of a host, with the addresses of the fabric and without memory.
    pub fn new(host: &str, qpn: Qpn) -> Self {
        Self {
            host: host.into(),
            ip: None,
            mac: None,
            qpn,
            part: HostPart::Plain,
        }
    }
}

/// Slots at a switch with room: the smallest power of two of at least two windows and two messages, at most 32768. Then
/// no packet is ever early (docs/decisions/0005). In Mode-III a window in each pipe (docs/decisions/0019). In Mode-I a window and a message
/// in each ring (docs/decisions/0020).
pub const fn slots(window: u16, message_packets: u16, mode: CollectiveMode) -> u16 {
    match mode {
        CollectiveMode::Translated => power_of_two(2 * (window as u32 + message_packets as u32)),
        CollectiveMode::Augmented => pipes(2 * window as u32),
        CollectiveMode::Terminated => slots_min(window, message_packets, mode),
    }
}

/// The fewest slots that a group can work with: the smallest power of two of at least two windows, at most 32768 (2MW
/// of EPIC 4.3); in Mode-III half a window in each pipe; in Mode-I as [`slots`]. Either [`slots`] or half of that.
pub const fn slots_min(window: u16, message_packets: u16, mode: CollectiveMode) -> u16 {
    match mode {
        CollectiveMode::Translated => power_of_two(2 * window as u32),
        CollectiveMode::Augmented => pipes(window as u32),
        CollectiveMode::Terminated => power_of_two(window as u32 + message_packets as u32),
    }
}

/// Slots of both pipes: two for each at least.
const fn pipes(at_least: u32) -> u16 {
    power_of_two(if at_least < 4 { 4 } else { at_least })
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
    use CollectiveMode::{Augmented, Terminated, Translated};

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
            assert_eq!(slots_min(window, 1, Translated), expected, "{window}");
        }
        assert_eq!(slots_min(u16::MAX, 1, Translated), 32_768);
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
            assert_eq!(slots(window, message, Translated), expected, "{window} {message}");
        }
        for window in 1..=16_384 {
            for message in [1, window / 2 + 1, window] {
                for mode in [Translated, Augmented, Terminated] {
                    let (most, fewest) = (slots(window, message, mode), slots_min(window, message, mode));
                    assert!(most == fewest || most == 2 * fewest, "{window} {message}");
                }
                let (two, three) = (
                    slots(window, message, Translated),
                    slots(window, message, Augmented),
                );
                assert!(three <= two.max(4), "{window} {message}");
                let halves = window.is_power_of_two() && (2..16_384).contains(&window);
                assert!(!halves || two == 2 * three, "{window} {message}");
            }
        }
    }
}
