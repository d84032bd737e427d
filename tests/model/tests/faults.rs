//! The checker can fail: each fault put in on purpose is found, under the property that it breaks.

use castnet_model::bounded::{Bounded, Config, Losable};
use castnet_model::fabric::Topology;
use castnet_model::hostile::{self, Hostile};
use castnet_model::message::Answer;
use castnet_model::report::{Outcome, Until, explore};
use castnet_model::switch::Spoil;

const ONE_LOSS: Config = Config {
    losses: 1,
    time_outs: 2,
    ..Config::calm(Topology::RootAndLeaf)
};

fn found(outcome: &Outcome, property: &str) {
    println!("{outcome}");
    let found = outcome.faults.iter().find(|(name, _)| name.starts_with(property));
    assert!(
        found.is_some_and(|(_, steps)| !steps.is_empty()),
        "{property}: {outcome}"
    );
}

fn bounded(config: Config, property: &str) {
    found(
        &explore(
            format!("{:?}", config.spoil),
            Bounded::new(config),
            Until::Fault,
            1,
        ),
        property,
    );
}

fn in_hostile_network(spoil: Spoil, property: &str) {
    let config = hostile::Config {
        topology: Topology::RootAndLeaf,
        restarts: u8::from(spoil == Spoil::JoinAsIfDone),
        refusals: &[Answer::Nak],
        spoil,
    };
    found(
        &explore(format!("{spoil:?}"), Hostile::new(config), Until::All, 1),
        property,
    );
}

#[test]
fn a_nak_passed_on_as_it_comes_breaks_m2() {
    bounded(
        Config {
            spoil: Spoil::NakAtOnce,
            ..ONE_LOSS
        },
        "M2",
    );
    in_hostile_network(Spoil::NakAtOnce, "M2");
}

#[test]
fn an_ack_passed_on_as_it_comes_breaks_m1() {
    bounded(
        Config {
            spoil: Spoil::AckOfAny,
            ..ONE_LOSS
        },
        "M1",
    );
    in_hostile_network(Spoil::AckOfAny, "M1");
}

#[test]
fn a_retransmission_to_all_breaks_m3() {
    bounded(
        Config {
            spoil: Spoil::NoFilter,
            ..ONE_LOSS
        },
        "M3",
    );
    in_hostile_network(Spoil::NoFilter, "M3");
}

/// What came before the restart is not there because the switch has forgotten who lacks it.
#[test]
fn a_switch_that_joins_as_if_all_were_done_breaks_m2() {
    in_hostile_network(Spoil::JoinAsIfDone, "M2");
}

/// By the letter of the paper, only a time-out saves the transfer: without one it never ends.
#[test]
fn a_nak_looked_for_on_acks_only_is_not_enough() {
    let config = Config {
        losable: Losable::Followed,
        time_outs: 0,
        ..ONE_LOSS
    };
    bounded(
        Config {
            spoil: Spoil::NakOnlyWithAck,
            ..config
        },
        "no end but with all delivered",
    );
    let shipped = explore("shipped", Bounded::new(config), Until::All, 1);
    assert!(shipped.is_sound(), "{shipped}");
}

/// A lost ACK is never made good where retransmissions are only filtered away.
#[test]
fn a_source_that_missed_the_ack_must_be_answered() {
    bounded(
        Config {
            spoil: Spoil::NoAnswer,
            ..ONE_LOSS
        },
        "no end but with all delivered",
    );
}
