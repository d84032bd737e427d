//! The explorations.

mod features;

use crate::bounded::{self, Bounded, Losable, Sight, sights};
use crate::fabric::Topology;
use crate::hostile::{self, Hostile};
use crate::message::{Answer, PACKETS};
use crate::report::{Outcome, Until, explore};
use crate::switch::Fault;

pub use features::{
    CONGESTION, EVICTIONS, EVICTIONS_FULL, RINGS, RINGS_FULL, SOURCES, SOURCES_FULL, SOURCES_WITH_RINGS,
    SOURCES_WITH_RINGS_FULL,
};

/// A named run.
#[derive(Clone, Copy)]
pub struct Run {
    /// Name.
    pub name: &'static str,
    /// Bounds.
    pub bounds: Bounds,
}

/// The bounds of a run.
#[derive(Clone, Copy)]
pub enum Bounds {
    /// Hosts that behave like rxe, and a bounded number of faults.
    Bounded(bounded::Config),
    /// A network that keeps every message.
    Hostile(hostile::Config),
}

impl Run {
    /// Explores all states of the run.
    pub fn explore(&self, threads: usize) -> Outcome {
        match self.bounds {
            Bounds::Bounded(config) => explore(self.name, Bounded::new(config), Until::All, threads),
            Bounds::Hostile(config) => explore(self.name, Hostile::new(config), Until::All, threads),
        }
    }
}

const ROOT: bounded::Config = bounded::Config::without_faults(Topology::RootAndLeaf);
const SPINE: bounded::Config = bounded::Config::without_faults(Topology::SpineAndLeaves);
/// The three packets are one message, as rxe sends them.
const ONE_MESSAGE: u8 = 0b100;
/// Each packet is a separate message.
const THREE_MESSAGES: u8 = 0b111;
/// Faults of one kind need at most one time-out.
const ONE_FAULT: bounded::Config = bounded::Config {
    losses: 1,
    time_outs: 1,
    ..ROOT
};

const fn bounded(name: &'static str, config: bounded::Config) -> Run {
    Run {
        name,
        bounds: Bounds::Bounded(config),
    }
}

const fn hostile(name: &'static str, topology: Topology, refusals: &'static [Answer]) -> Run {
    let config = hostile::Config {
        topology,
        packets: PACKETS,
        slots: 0,
        ticks: 0,
        restarts: 0,
        refusals,
        fault: Fault::Nothing,
    };
    Run {
        name,
        bounds: Bounds::Hostile(config),
    }
}

const FEEDBACK: &[Sight] = &[
    sights::nak_held,
    sights::nak_released,
    sights::nak_repeated,
    sights::filtered,
    sights::answered,
    sights::answered_below,
];

/// Two tiers, four hosts, three packets; a late message and another fault in one run.
pub const LATE: &[Run] = &[
    bounded(
        "root and leaf, one message: loss, late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            losses: 1,
            delays: 1,
            time_outs: 2,
            sights: FEEDBACK,
            ..ROOT
        },
    ),
    bounded(
        "root and leaf, one message: duplicate, late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            duplicates: 1,
            delays: 1,
            time_outs: 1,
            sights: FEEDBACK,
            ..ROOT
        },
    ),
];

/// A spine between two leaves, and other patterns of ACK requests.
pub const SHAPES: &[Run] = &[
    bounded("root and leaf, three messages: no faults", ROOT),
    bounded(
        "spine and leaves, one message: loss, duplicate",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            losses: 1,
            duplicates: 1,
            time_outs: 2,
            sights: &[sights::answered_below],
            ..SPINE
        },
    ),
    bounded(
        "spine and leaves, one message: late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            delays: 1,
            time_outs: 1,
            sights: &[sights::nak_released, sights::filtered],
            ..SPINE
        },
    ),
    bounded("root and leaf, three messages: loss", ONE_FAULT),
    bounded(
        "root and leaf, one message: loss",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            sights: &[sights::timed_out],
            ..ONE_FAULT
        },
    ),
    bounded(
        "root and leaf, two messages: loss",
        bounded::Config {
            ack_requests: 0b101,
            ..ONE_FAULT
        },
    ),
    bounded(
        "root and leaf: loss of a packet followed by others, no time-out",
        bounded::Config {
            losable: Losable::Followed,
            time_outs: 0,
            ..ONE_FAULT
        },
    ),
    bounded(
        "root and leaf, one message: loss, early time-out",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            early_time_outs: 1,
            ..ONE_FAULT
        },
    ),
];

/// Receivers that are not ready or end their connections.
pub const REFUSALS: &[Run] = &[
    bounded(
        "root and leaf, one message: two receivers not ready, loss",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            not_ready: [Some(1), Some(1), None],
            sights: &[sights::rnr_merged, sights::nak_held],
            time_outs: 3,
            ..ONE_FAULT
        },
    ),
    bounded(
        "root and leaf: a receiver ends its connection, loss",
        bounded::Config {
            refuses: [None, Some(1), None],
            losable: Losable::NotFromReceivers,
            sights: &[sights::fatal_repeated],
            time_outs: 2,
            ..ONE_FAULT
        },
    ),
];

/// Any number of losses, duplicates, delays and retransmissions.
pub const HOSTILE: &[Run] = &[
    hostile(
        "hostile network, root and leaf: NAK, RNR",
        Topology::RootAndLeaf,
        &[Answer::Nak, Answer::Rnr],
    ),
    hostile(
        "hostile network, root and leaf: NAK, fatal",
        Topology::RootAndLeaf,
        &[Answer::Nak, Answer::Fatal],
    ),
    hostile(
        "hostile network, spine and leaves: NAK",
        Topology::SpineAndLeaves,
        &[Answer::Nak],
    ),
    Run {
        name: "hostile network, root and leaf: two packets, NAK, a switch restarts",
        bounds: Bounds::Hostile(hostile::Config {
            topology: Topology::RootAndLeaf,
            packets: 2,
            slots: 0,
            ticks: 0,
            restarts: 1,
            refusals: &[Answer::Nak],
            fault: Fault::Nothing,
        }),
    },
];

/// Runs that are too large for the tests.
pub const FULL: &[Run] = &[
    bounded(
        "spine and leaves, three messages: loss, duplicate",
        bounded::Config {
            losses: 1,
            duplicates: 1,
            time_outs: 2,
            ..SPINE
        },
    ),
    bounded(
        "spine and leaves, three messages: late",
        bounded::Config {
            delays: 1,
            time_outs: 1,
            ..SPINE
        },
    ),
    bounded(
        "congestion, root and leaf: ageing, loss, duplicate",
        bounded::Config {
            cnps: [1, 1, 1],
            windows: 1,
            losses: 1,
            duplicates: 1,
            ..features::CONGESTED
        },
    ),
    bounded(
        "root and leaf, three messages: loss, late",
        bounded::Config {
            ack_requests: THREE_MESSAGES,
            delays: 1,
            time_outs: 2,
            ..ONE_FAULT
        },
    ),
    bounded(
        "root and leaf: two receivers not ready, loss, duplicate",
        bounded::Config {
            not_ready: [Some(1), Some(1), None],
            duplicates: 1,
            time_outs: 3,
            ..ONE_FAULT
        },
    ),
    bounded(
        "root and leaf: a receiver ends its connection, loss, duplicate",
        bounded::Config {
            refuses: [None, Some(1), None],
            losable: Losable::NotFromReceivers,
            duplicates: 1,
            time_outs: 2,
            ..ONE_FAULT
        },
    ),
    bounded(
        "root and leaf, three messages: loss, early time-out",
        bounded::Config {
            early_time_outs: 1,
            time_outs: 2,
            ..ONE_FAULT
        },
    ),
    bounded(
        "root and leaf, three messages: two losses",
        bounded::Config {
            losses: 2,
            time_outs: 2,
            ..ROOT
        },
    ),
    bounded(
        "spine and leaves, one message: loss, late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            losses: 1,
            delays: 1,
            time_outs: 2,
            ..SPINE
        },
    ),
    Run {
        name: "hostile network, root and leaf: NAK, switches restart any number of times",
        bounds: Bounds::Hostile(hostile::Config {
            topology: Topology::RootAndLeaf,
            packets: PACKETS,
            slots: 0,
            ticks: 0,
            restarts: hostile::ANY,
            refusals: &[Answer::Nak],
            fault: Fault::Nothing,
        }),
    },
    hostile(
        "hostile network, root and leaf: NAK, RNR, fatal",
        Topology::RootAndLeaf,
        &[Answer::Nak, Answer::Rnr, Answer::Fatal],
    ),
    hostile(
        "hostile network, spine and leaves: NAK, RNR",
        Topology::SpineAndLeaves,
        &[Answer::Nak, Answer::Rnr],
    ),
    bounded(
        "root and leaf, one message: loss, duplicate, late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            losses: 1,
            duplicates: 1,
            delays: 1,
            time_outs: 2,
            sights: FEEDBACK,
            ..ROOT
        },
    ),
    bounded(
        "root and leaf, two messages: loss, duplicate, late",
        bounded::Config {
            ack_requests: 0b110,
            losses: 1,
            duplicates: 1,
            delays: 1,
            time_outs: 2,
            ..ROOT
        },
    ),
    bounded(
        "root and leaf, three messages: loss, duplicate, late",
        bounded::Config {
            losses: 1,
            duplicates: 1,
            delays: 1,
            time_outs: 2,
            ..ROOT
        },
    ),
    bounded(
        "spine and leaves, one message: loss, duplicate, late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            losses: 1,
            duplicates: 1,
            delays: 1,
            time_outs: 2,
            ..SPINE
        },
    ),
];
