//! The checker can fail: each deliberate fault is found, as a violation of the right property.

use castnet_model::bounded::{Bounded, Config, Losable};
use castnet_model::fabric::Topology;
use castnet_model::hostile::{self, Hostile};
use castnet_model::message::{Answer, PACKETS};
use castnet_model::report::{Outcome, Until, explore};
use castnet_model::switch::Fault;

const ONE_LOSS: Config = Config {
    losses: 1,
    time_outs: 2,
    ..Config::without_faults(Topology::RootAndLeaf)
};

/// Switches that repair. Nothing between the source and the switch next to it is lost.
const RING: Config = Config {
    slots: 4,
    losable: Losable::BehindFirst,
    time_outs: 0,
    ..ONE_LOSS
};

fn assert_found(outcome: &Outcome, property: &str) {
    println!("{outcome}");
    let assert_found = outcome.faults.iter().find(|(name, _)| name.starts_with(property));
    assert!(
        assert_found.is_some_and(|(_, steps)| !steps.is_empty()),
        "{property}: {outcome}"
    );
}

fn bounded(config: Config, property: &str) {
    assert_found(
        &explore(
            format!("{:?}", config.fault),
            Bounded::new(config),
            Until::Fault,
            1,
        ),
        property,
    );
}

fn in_hostile_network(fault: Fault, property: &str) {
    let config = hostile::Config {
        topology: Topology::RootAndLeaf,
        packets: PACKETS,
        slots: 0,
        ticks: 0,
        restarts: u8::from(fault == Fault::JoinAsIfDone),
        refusals: &[Answer::Nak],
        fault,
    };
    assert_found(
        &explore(format!("{fault:?}"), Hostile::new(config), Until::All, 1),
        property,
    );
}

#[test]
fn a_nak_forwarded_at_once_violates_m2() {
    bounded(
        Config {
            fault: Fault::NakAtOnce,
            ..ONE_LOSS
        },
        "M2",
    );
    in_hostile_network(Fault::NakAtOnce, "M2");
}

#[test]
fn an_ack_forwarded_at_once_violates_m1() {
    bounded(
        Config {
            fault: Fault::AckOfAny,
            ..ONE_LOSS
        },
        "M1",
    );
    in_hostile_network(Fault::AckOfAny, "M1");
}

#[test]
fn a_retransmission_to_all_paths_violates_m3() {
    bounded(
        Config {
            fault: Fault::NoFilter,
            ..ONE_LOSS
        },
        "M3",
    );
    in_hostile_network(Fault::NoFilter, "M3");
}

/// A switch that has forgotten which paths lack data must not assume that they have it.
#[test]
fn a_restarted_switch_that_assumes_delivery_violates_m2() {
    in_hostile_network(Fault::JoinAsIfDone, "M2");
}

/// Read literally, the paper's rule leaves the transfer to a time-out: without one it does not end.
#[test]
fn a_nak_sent_only_with_an_ack_is_not_enough() {
    let config = Config {
        losable: Losable::Followed,
        time_outs: 0,
        ..ONE_LOSS
    };
    bounded(
        Config {
            fault: Fault::NakOnlyWithAck,
            ..config
        },
        "everything is delivered in final states",
    );
    let shipped = explore("shipped", Bounded::new(config), Until::All, 1);
    assert!(shipped.is_sound(), "{shipped}");
}

/// If retransmissions are only filtered, a lost ACK is never repaired.
#[test]
fn a_source_that_missed_the_ack_must_be_answered() {
    bounded(
        Config {
            fault: Fault::NoAnswer,
            ..ONE_LOSS
        },
        "everything is delivered in final states",
    );
}

/// What a switch keeps is not delivered: end to end, only receivers acknowledge.
#[test]
fn an_ack_of_what_a_ring_has_violates_m1() {
    bounded(
        Config {
            fault: Fault::AckOfKept,
            ..RING
        },
        "M1",
    );
}

#[test]
fn a_packet_from_the_ring_on_all_paths_violates_m3() {
    bounded(
        Config {
            fault: Fault::ResendToAll,
            ..RING
        },
        "M3",
    );
}

#[test]
fn a_nak_of_what_a_ring_has_is_found() {
    let config = Config {
        fault: Fault::NakAtOnce,
        ..RING
    };
    let outcome = explore("NAK of kept", Bounded::new(config), Until::All, 1);
    assert_found(&outcome, "repair");
}

/// Without the tick, a lost ACK is repaired by a time-out only.
#[test]
fn a_switch_that_does_not_look_for_silent_paths_is_found() {
    bounded(
        Config {
            fault: Fault::NoTick,
            ..RING
        },
        "everything is delivered in final states",
    );
}

/// What a path lacks that stays in the group, it lacks after an eviction, too.
#[test]
fn an_eviction_that_forgets_what_the_others_lack_is_found() {
    bounded(
        Config {
            fault: Fault::EvictAsIfDone,
            evicts: Some(1),
            time_outs: 3,
            ..ONE_LOSS
        },
        "everything is delivered in final states",
    );
}

#[test]
fn cnps_of_all_paths_violate_m4() {
    for fault in [Fault::AllCnps, Fault::NoAgeing] {
        bounded(
            Config {
                packets: 1,
                cnps: [2, 2, 0],
                windows: 1,
                fault,
                ..ONE_LOSS
            },
            "M4: only",
        );
    }
}

/// Two members send at once. The first packet of each gets the same position in the group.
#[test]
fn a_source_known_by_its_path_only_violates_m5() {
    bounded(
        Config {
            sends: [1, 0, 1, 0],
            at_once: true,
            fault: Fault::TurnAtOnce,
            ..ONE_LOSS
        },
        "M5",
    );
}

/// A host that has sent a packet expects the next one of the others with its own PSN.
#[test]
fn psns_that_are_not_bridged_are_found() {
    bounded(
        Config {
            sends: [1, 0, 1, 0],
            fault: Fault::NoBridging,
            ..ONE_LOSS
        },
        "everything is delivered in final states",
    );
}

/// A late duplicate of a grant makes a second source.
#[test]
fn a_grant_of_an_older_epoch_that_counts_is_found() {
    let config = Config {
        sends: [1, 0, 1, 0],
        at_once: true,
        duplicates: 1,
        delays: 1,
        fault: Fault::AnyEpoch,
        ..ONE_LOSS
    };
    bounded(config, "M5");
}

/// What is true of rings holds for each source: the second one has sent the packets that are lost.
#[test]
fn faults_of_rings_are_found_in_each_turn() {
    let turns = Config {
        sends: [1, 0, 2, 0],
        time_outs: 3,
        ..RING
    };
    for (fault, property) in [
        (Fault::AckOfKept, "M1"),
        (Fault::ResendToAll, "M3"),
        (Fault::NoTick, "everything is delivered in final states"),
        (Fault::NoBridging, "everything is delivered in final states"),
    ] {
        // A time-out would hide that nobody looks for silent paths.
        let time_outs = if fault == Fault::NoTick {
            0
        } else {
            turns.time_outs
        };
        bounded(
            Config {
                fault,
                time_outs,
                ..turns
            },
            property,
        );
    }
}

/// The source is behind another path than at first: it is asked there.
#[test]
fn requests_towards_the_first_source_are_found() {
    bounded(
        Config {
            topology: Topology::SpineAndLeaves,
            sends: [1, 0, 2, 0],
            ack_requests: 0,
            time_outs: 3,
            fault: Fault::RequestToFirst,
            ..RING
        },
        "every message is expected where it arrives",
    );
}

/// A member that was congested, and sends now, must not hide the congestion of others.
#[test]
fn cnps_of_all_paths_violate_m4_after_the_source_has_changed() {
    bounded(
        Config {
            sends: [1, 0, 1, 0],
            cnps: [1, 1, 1],
            losses: 0,
            fault: Fault::NoAgeing,
            windows: 1,
            ..ONE_LOSS
        },
        "M4: only",
    );
}
