//! Runs of what a group may have beside plain multicast: repair, evictions, congestion, and sources that change.

use super::{Bounds, ONE_MESSAGE, ROOT, Run, bounded};
use crate::bounded::{Losable, sights};
use crate::fabric::Topology;
use crate::hostile;
use crate::message::Answer;
use crate::switch::Fault;

/// One packet.
pub(super) const CONGESTED: bounded::Config = bounded::Config {
    packets: 1,
    time_outs: 2,
    ..ROOT
};

/// Each packet is a message.
const SWITCHING: bounded::Config = bounded::Config {
    losses: 1,
    time_outs: 3,
    ..ROOT
};

/// All switches repair.
const TURNS_WITH_RING: bounded::Config = bounded::Config {
    slots: 4,
    ..SWITCHING
};

/// The root evicts the leaf.
const EVICTS: bounded::Config = bounded::Config {
    losses: 1,
    time_outs: 3,
    evicts: Some(0),
    ..ROOT
};

/// Both switches repair.
const RING: bounded::Config = bounded::Config {
    slots: 4,
    losses: 1,
    time_outs: 2,
    ..ROOT
};

/// Two packets.
const fn hostile_ring(name: &'static str, ticks: u8, restarts: u8) -> Run {
    let config = hostile::Config {
        topology: Topology::RootAndLeaf,
        packets: 2,
        slots: 2,
        ticks,
        restarts,
        refusals: &[Answer::Nak],
        fault: Fault::Nothing,
    };
    Run {
        name,
        bounds: Bounds::Hostile(config),
    }
}

/// Switches that repair, with rings as long as the window and shorter ones.
pub const RINGS: &[Run] = &[
    bounded(
        "ring of 4, root and leaf: loss behind the first link",
        bounded::Config {
            losable: Losable::BehindFirst,
            sights: &[sights::resent, sights::resent_to_silent, sights::requested],
            time_outs: 0,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf, one message: loss",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            sights: &[sights::kept_behind_gap],
            ..RING
        },
    ),
    bounded("ring of 4, root and leaf, three messages: loss", RING),
    bounded(
        "ring of 4, root and leaf, window of 2: loss",
        bounded::Config { window: 2, ..RING },
    ),
    bounded(
        "ring of 2, root and leaf, three messages: loss",
        bounded::Config {
            slots: 2,
            sights: &[sights::resent],
            ..RING
        },
    ),
    bounded(
        "ring of 2, root and leaf, one message: two losses",
        bounded::Config {
            slots: 2,
            ack_requests: ONE_MESSAGE,
            losses: 2,
            sights: &[sights::beyond_ring],
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf, one message: loss, duplicate",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            duplicates: 1,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf, one message: late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            losses: 0,
            delays: 1,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf, one message: loss, early tick",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            early_ticks: 1,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf, one message: receiver not ready, loss",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            not_ready: [Some(1), None, None],
            ..RING
        },
    ),
    hostile_ring("hostile network, ring of 2, root and leaf: NAK", 0, 0),
];

/// Runs of switches that repair that are too large for the tests.
pub const RINGS_FULL: &[Run] = &[
    bounded(
        "ring of 4, root and leaf, one message: loss, duplicate, late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            duplicates: 1,
            delays: 1,
            ..RING
        },
    ),
    bounded(
        "ring of 2, root and leaf, one message: loss, duplicate, early tick",
        bounded::Config {
            slots: 2,
            ack_requests: ONE_MESSAGE,
            duplicates: 1,
            early_ticks: 1,
            ..RING
        },
    ),
    bounded(
        "ring of 4, spine and leaves, three messages: two losses",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            losses: 2,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf, four packets: two losses",
        bounded::Config {
            packets: 4,
            window: 4,
            ack_requests: 0b1000,
            losses: 2,
            ..RING
        },
    ),
    bounded(
        "ring of 2, root and leaf, four packets, window of 3: two losses",
        bounded::Config {
            packets: 4,
            window: 3,
            slots: 2,
            ack_requests: 0b1010,
            losses: 2,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf, three messages: loss, early time-out, early tick",
        bounded::Config {
            early_time_outs: 1,
            early_ticks: 1,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf: receiver ends its connection, loss",
        bounded::Config {
            refuses: [None, Some(1), None],
            losable: Losable::NotFromReceivers,
            duplicates: 1,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf: two receivers not ready, loss, duplicate",
        bounded::Config {
            not_ready: [Some(1), Some(1), None],
            duplicates: 1,
            time_outs: 3,
            ..RING
        },
    ),
    bounded(
        "ring of 4, root and leaf, one message: three losses",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            losses: 3,
            time_outs: 3,
            ..RING
        },
    ),
    hostile_ring("hostile network, ring of 2, root and leaf: NAK, ticks", 2, 0),
    hostile_ring(
        "hostile network, ring of 2, root and leaf: NAK, a switch restarts",
        0,
        1,
    ),
];

/// A switch takes a path out of the group, at any time.
pub const EVICTIONS: &[Run] = &[
    bounded(
        "eviction, root and leaf, three messages: a receiver, loss",
        bounded::Config {
            evicts: Some(1),
            sights: &[sights::evicted],
            ..EVICTS
        },
    ),
    bounded(
        "eviction, root and leaf, one message: a switch, loss, duplicate",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            duplicates: 1,
            ..EVICTS
        },
    ),
    bounded(
        "eviction, ring of 4, root and leaf, one message: a receiver, loss, duplicate",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            evicts: Some(1),
            slots: 4,
            duplicates: 1,
            ..EVICTS
        },
    ),
    bounded(
        "eviction, ring of 4, root and leaf, three messages: a switch, loss",
        bounded::Config { slots: 4, ..EVICTS },
    ),
    bounded(
        "eviction, ring of 2, root and leaf, three messages: a receiver, loss",
        bounded::Config {
            evicts: Some(1),
            slots: 2,
            ..EVICTS
        },
    ),
];

/// Runs with an eviction that are too large for the tests.
pub const EVICTIONS_FULL: &[Run] = &[
    bounded(
        "eviction, root and leaf, one message: a receiver, loss, late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            evicts: Some(1),
            delays: 1,
            ..EVICTS
        },
    ),
    bounded(
        "eviction, root and leaf, three messages: a receiver, two losses",
        bounded::Config {
            evicts: Some(1),
            losses: 2,
            ..EVICTS
        },
    ),
    bounded(
        "eviction, spine and leaves, three messages: a switch, loss, duplicate",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            duplicates: 1,
            ..EVICTS
        },
    ),
    bounded(
        "eviction, ring of 4, root and leaf, one message: a receiver, loss, late",
        bounded::Config {
            ack_requests: ONE_MESSAGE,
            evicts: Some(1),
            slots: 4,
            delays: 1,
            ..EVICTS
        },
    ),
    bounded(
        "eviction, ring of 4, root and leaf, three messages: a receiver, loss, early tick",
        bounded::Config {
            evicts: Some(1),
            slots: 4,
            early_ticks: 1,
            ..EVICTS
        },
    ),
    bounded(
        "eviction, ring of 2, spine and leaves, one message: a switch, two losses, early time-out",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            ack_requests: ONE_MESSAGE,
            slots: 2,
            losses: 2,
            early_time_outs: 1,
            ..EVICTS
        },
    ),
];

/// Receivers that send CNPs at any time, while one packet is delivered (M4).
pub const CONGESTION: &[Run] = &[
    bounded(
        "congestion, root and leaf",
        bounded::Config {
            cnps: [1, 2, 1],
            sights: &[sights::cnp_absorbed],
            ..CONGESTED
        },
    ),
    bounded(
        "congestion, root and leaf: ageing",
        bounded::Config {
            cnps: [2, 2, 0],
            windows: 2,
            sights: &[sights::cnp_overtakes],
            ..CONGESTED
        },
    ),
    bounded(
        "congestion, root and leaf: ageing, loss",
        bounded::Config {
            cnps: [1, 1, 1],
            windows: 1,
            losses: 1,
            ..CONGESTED
        },
    ),
    bounded(
        "congestion, root and leaf: ageing, eviction of a receiver",
        bounded::Config {
            cnps: [0, 2, 1],
            windows: 1,
            evicts: Some(1),
            ..CONGESTED
        },
    ),
];

/// The source changes (M5), also where two members wrongly send at once.
pub const SOURCES: &[Run] = &[
    bounded(
        "sources in turn, root and leaf: two members, loss, duplicate",
        bounded::Config {
            sends: [2, 0, 1, 0],
            duplicates: 1,
            sights: &[sights::source_changed],
            ..SWITCHING
        },
    ),
    bounded(
        "sources in turn, root and leaf: three members, loss",
        bounded::Config {
            sends: [1, 1, 1, 0],
            ..SWITCHING
        },
    ),
    bounded(
        "sources in turn, spine and leaves: two members, late",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [1, 0, 1, 0],
            losses: 0,
            delays: 1,
            ..SWITCHING
        },
    ),
    bounded(
        "sources in turn, root and leaf, one message each: loss",
        bounded::Config {
            sends: [2, 0, 2, 0],
            ack_requests: 0,
            ..SWITCHING
        },
    ),
    bounded(
        "sources at once, root and leaf: two members, loss, duplicate",
        bounded::Config {
            sends: [1, 0, 1, 0],
            at_once: true,
            duplicates: 1,
            sights: &[sights::sources_compete],
            ..SWITCHING
        },
    ),
    bounded(
        "sources at once, root and leaf, one message each: loss",
        bounded::Config {
            sends: [2, 0, 2, 0],
            at_once: true,
            ack_requests: 0,
            ..SWITCHING
        },
    ),
    bounded(
        "sources at once, spine and leaves: three members, loss",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [1, 1, 1, 0],
            at_once: true,
            ..SWITCHING
        },
    ),
];

/// The source changes, and the switches repair: the ring belongs to each source in turn (M5). Also congestion while it changes (M4).
pub const SOURCES_WITH_RINGS: &[Run] = &[
    bounded(
        "sources in turn, ring of 4, root and leaf: two members, loss behind the first link",
        bounded::Config {
            sends: [1, 0, 2, 0],
            losable: Losable::BehindFirst,
            sights: &[sights::resent, sights::resent_to_silent, sights::source_changed],
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources in turn, ring of 4, root and leaf: three members, loss",
        bounded::Config {
            sends: [1, 1, 1, 0],
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources in turn, ring of 4, spine and leaves: two members, loss",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [1, 0, 2, 0],
            ack_requests: 0,
            sights: &[sights::requested],
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources at once, ring of 4, root and leaf: two members, loss, duplicate",
        bounded::Config {
            sends: [1, 0, 1, 0],
            at_once: true,
            duplicates: 1,
            sights: &[sights::sources_compete],
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources in turn, root and leaf: congestion, ageing",
        bounded::Config {
            sends: [1, 0, 1, 0],
            losses: 0,
            cnps: [1, 1, 1],
            windows: 1,
            sights: &[sights::cnp_absorbed, sights::cnp_overtakes],
            ..SWITCHING
        },
    ),
];

/// Such runs that are too large for the tests.
pub const SOURCES_WITH_RINGS_FULL: &[Run] = &[
    bounded(
        "sources in turn, ring of 2, root and leaf, one message of another member: loss",
        bounded::Config {
            slots: 2,
            sends: [0, 0, 3, 0],
            ack_requests: 0,
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources in turn, ring of 4, root and leaf: two members, loss, duplicate, late",
        bounded::Config {
            sends: [1, 0, 1, 0],
            duplicates: 1,
            delays: 1,
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources in turn, ring of 4, spine and leaves, one message each: two losses",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [2, 0, 2, 0],
            ack_requests: 0,
            losses: 2,
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources in turn, ring of 2, root and leaf, one message each: early tick, early time-out",
        bounded::Config {
            slots: 2,
            sends: [1, 0, 1, 0],
            ack_requests: 0,
            losses: 0,
            early_ticks: 1,
            early_time_outs: 1,
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources at once, ring of 4, spine and leaves: three members, loss",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [1, 1, 1, 0],
            at_once: true,
            ..TURNS_WITH_RING
        },
    ),
    bounded(
        "sources at once, ring of 2, root and leaf, one message each: loss, duplicate",
        bounded::Config {
            slots: 2,
            sends: [2, 0, 2, 0],
            at_once: true,
            ack_requests: 0,
            duplicates: 1,
            ..TURNS_WITH_RING
        },
    ),
];

/// Runs with sources that change that are too large for the tests.
pub const SOURCES_FULL: &[Run] = &[
    bounded(
        "sources in turn, root and leaf, one message each: loss, early time-out",
        bounded::Config {
            sends: [2, 0, 2, 0],
            ack_requests: 0,
            early_time_outs: 1,
            ..SWITCHING
        },
    ),
    bounded(
        "sources in turn, root and leaf: three members, loss, duplicate, late",
        bounded::Config {
            sends: [1, 1, 1, 0],
            duplicates: 1,
            delays: 1,
            ..SWITCHING
        },
    ),
    bounded(
        "sources in turn, spine and leaves: two members, two losses, duplicate",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [2, 0, 2, 0],
            losses: 2,
            duplicates: 1,
            ..SWITCHING
        },
    ),
    bounded(
        "sources in turn, spine and leaves: three members, loss, early time-out",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [1, 0, 1, 1],
            early_time_outs: 1,
            ..SWITCHING
        },
    ),
    bounded(
        "sources at once, root and leaf: two members, loss, duplicate, late",
        bounded::Config {
            sends: [1, 0, 1, 0],
            at_once: true,
            duplicates: 1,
            delays: 1,
            ..SWITCHING
        },
    ),
    bounded(
        "sources at once, root and leaf, one message each: loss, late",
        bounded::Config {
            sends: [2, 0, 2, 0],
            at_once: true,
            ack_requests: 0,
            delays: 1,
            ..SWITCHING
        },
    ),
    bounded(
        "sources at once, spine and leaves: three members, two losses, early time-out",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [1, 1, 1, 0],
            at_once: true,
            losses: 2,
            early_time_outs: 1,
            ..SWITCHING
        },
    ),
    bounded(
        "sources at once, spine and leaves: four members, loss, duplicate",
        bounded::Config {
            topology: Topology::SpineAndLeaves,
            sends: [1, 1, 1, 1],
            at_once: true,
            duplicates: 1,
            ..SWITCHING
        },
    ),
];
