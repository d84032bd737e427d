//! The configuration of a group, as the machine needs it.

use super::EndpointId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use castnet_wire::{CollectiveMode, LossPolicy, Nanos, Psn, StragglerPolicy};

/// The context of one group at one switch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TranslatedConfig {
    /// The endpoints: at least two, and at most the capacity of the machine. In rank order if results must be reproducible.
    pub endpoints: Vec<EndpointConfig>,
    /// The endpoint towards the root of the tree; `None` at the root.
    pub parent: Option<EndpointId>,
    /// The group's PSN of the first collective's control message.
    pub start_psn: Psn,
    /// Slots, rounded up to a power of two from 2 to 32768. In Mode-II, at least two windows of the hosts: with two messages more, no
    /// packet is ever refused, because hosts acknowledge at the ends of messages. In Mode-III, half of them belong to each pipe.
    pub slots: u16,
    /// Packets of a full message, the paper's `M`; 0 if the data of a collective is one message.
    pub message_packets: u16,
    /// Payload bytes of a full packet; with `message_packets`, the required shapes. 0: contributions to a packet need only equal shapes.
    pub pmtu: u16,
    /// True if contributions are stored separately and reduced in rank order. Only then may a call require that order.
    pub reproducible: bool,
    /// Most collectives in flight, rounded as `slots`. With the value of `slots` none is ever refused, since each needs a slot.
    pub collectives_max: u16,
    /// Mode-II or Mode-III.
    pub mode: CollectiveMode,
    /// The policy of loss repair. Mode-III always repairs.
    pub loss: LossPolicy,
    /// The policy for ranks that wait for another one.
    pub straggler: StragglerPolicy,
    /// A quarter of the hosts' time-out. With zero, the tick is always due while something is in flight, for model checkers.
    pub tick: Nanos,
    /// Time without a finished packet before [`super::Effect::Stalled`]; zero for never.
    pub stall_timeout: Nanos,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointConfig {
    /// What is at its other end.
    pub kind: EndpointKind,
    /// The ranks behind it. For a host, its own rank.
    pub ranks: RankSet,
}

/// What is at the other end of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointKind {
    /// A host, or a switch of another mode: an RC connection with PSNs of its own.
    Rank {
        /// Its rank; for a switch, the lowest one behind it.
        rank: u16,
        /// Start of `u`: the first PSN that it sends.
        sq_psn: Psn,
        /// Start of `d`: the first PSN that it expects.
        rq_psn: Psn,
        /// False for a switch: that one may repeat a NAK on purpose.
        is_host: bool,
    },
    /// Another switch of the tree with this mode, which uses the PSNs of the group.
    Switch,
}

/// A sorted set of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankSet(Box<[u16]>);

impl RankSet {
    /// True if the set contains `rank`.
    pub fn contains(&self, rank: u16) -> bool {
        self.0.binary_search(&rank).is_ok()
    }

    /// The ranks, lowest first.
    pub fn as_slice(&self) -> &[u16] {
        &self.0
    }

    /// Only `rank`.
    pub fn only(rank: u16) -> Self {
        [rank].into_iter().collect()
    }
}

impl FromIterator<u16> for RankSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ranks: I) -> Self {
        let mut ranks: Vec<u16> = ranks.into_iter().collect();
        ranks.sort_unstable();
        ranks.dedup();
        Self(ranks.into_boxed_slice())
    }
}
