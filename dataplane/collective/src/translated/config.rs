//! What a group is made of, as far as the machine must know.

use super::EndpointId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use castnet_wire::{Nanos, Psn};

/// The context of one group at one switch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TranslatedConfig {
    /// At most as many as the machine has room for, and two or more for anything to flow. In rank order where results are to be reproducible.
    pub endpoints: Vec<EndpointConfig>,
    /// The endpoint towards the root of the tree; `None` at the root.
    pub parent: Option<EndpointId>,
    /// The group's PSN of the first collective's control message.
    pub start_psn: Psn,
    /// Packets that can be in flight: at least two windows of the hosts, and two messages where nothing shall ever be refused
    /// (hosts acknowledge at the ends of messages). Taken up to a power of two from 2 to 32768.
    pub slots: u16,
    /// Packets of a full message, the paper's `M`; 0 where a collective's data is one message.
    pub message_packets: u16,
    /// Bytes of payload of a full packet. With `message_packets` it prescribes how data is cut; 0: contributions to one packet need
    /// only be alike.
    pub pmtu: u16,
    /// Contributions are kept and reduced in rank order: a call may ask for it only then.
    pub reproducible: bool,
    /// Collectives that can be in flight. Each takes a slot at least, so with as many as there are slots none is ever refused
    /// for want of them. Taken up to a power of two from 2 to 32768.
    pub collectives_max: u16,
    /// Who repairs losses.
    pub loss: LossPolicy,
    /// What keeps a rank that waits for another one alive.
    pub straggler: StragglerPolicy,
    /// A quarter of the hosts' time-out. Zero, of use to model checkers only, is always due while something is in flight.
    pub tick: Nanos,
    /// How long nothing may be finished before [`super::Effect::Stalled`]; zero for never.
    pub stall_timeout: Nanos,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointConfig {
    /// What is at its other end.
    pub kind: EndpointKind,
    /// The ranks behind it: of a rank, itself.
    pub ranks: RankSet,
}

/// What is at the other end of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointKind {
    /// A host.
    Rank {
        /// Which one.
        rank: u16,
        /// Where `u` starts: the first PSN that it sends.
        sq_psn: Psn,
        /// Where `d` starts: the first PSN that it expects.
        rq_psn: Psn,
    },
    /// Another switch of the tree, which has the group's own PSNs.
    Switch,
}

/// Ranks, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankSet(Box<[u16]>);

impl RankSet {
    /// Returns true if `rank` is one of them.
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

/// Who repairs what was lost towards a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LossPolicy {
    /// The switch: it keeps results until all have acknowledged them, and asks for contributions that it misses.
    #[default]
    Repair,
    /// The hosts, as in the paper: NAKs are reflected, and what they repeat is answered.
    Reflect,
}

/// What keeps the QP of a rank alive that waits for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StragglerPolicy {
    /// The last ACK again, each tick: it re-arms the requester's timer.
    #[default]
    KeepAlive,
    /// An RNR NAK, each tick. On rxe only an RNR retry count of 7 and a retry count of 7 outlast that.
    Rnr,
    /// Nothing: the host's own retries must do.
    None,
}
