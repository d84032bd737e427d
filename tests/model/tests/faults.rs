//! The checker can fail: each deliberate fault is found, as a violation of the right property.

use castnet_model::bounded::{Bounded, Config, Losable};
use castnet_model::fabric::Topology;
use castnet_model::hostile::{self, Hostile};
use castnet_model::message::Answer;
use castnet_model::report::{Outcome, Until, explore};
use castnet_model::switch::Fault;

const ONE_LOSS: Config = Config {
    losses: 1,
    time_outs: 2,
    ..Config::without_faults(Topology::RootAndLeaf)
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
