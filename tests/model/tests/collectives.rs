//! C1 and C2 of collectives in the network, checked on the machines of the data plane. The numbers of states are
//! written to standard error, which the test harness does not capture. Ranks send fewer packets here than the three
//! of EPIC's appendix H, which `cargo run --release -p castnet-model -- collectives` explores.

use castnet_collective::translated::CollectiveMode::{self, Augmented, Translated};
use castnet_model::collectives::{
    AUGMENTED, Collective, Fault, REFLECT, REPAIR, Run, STRAGGLERS, with_fault,
};
use castnet_model::report::{Outcome, Until, explore};
use castnet_model::terminated;
use std::io::Write;

fn assert_sound(runs: &[Run], packets: u8) {
    for run in runs {
        let mut run = *run;
        run.config.packets = run.config.packets.min(packets);
        let outcome = run.explore(1);
        // A closed standard error is not a fault of the model.
        let _ = writeln!(std::io::stderr(), "{outcome}");
        assert!(outcome.is_sound(), "{outcome}");
    }
}

#[test]
fn switches_that_repair() {
    assert_sound(REPAIR, 2);
}

#[test]
fn losses_that_are_reflected() {
    assert_sound(REFLECT, 1);
}

#[test]
fn late_ranks_barriers_and_ranks_that_disagree() {
    assert_sound(STRAGGLERS, 2);
}

#[test]
fn switches_that_acknowledge_at_each_hop() {
    assert_sound(AUGMENTED, 1);
}

#[test]
fn switches_that_end_connections() {
    for run in terminated::RUNS {
        let outcome = run.explore(1);
        let _ = writeln!(std::io::stderr(), "{outcome}");
        assert!(outcome.is_sound(), "{outcome}");
    }
}

/// A message that is taken twice, and a buffer that is filled while its message is needed.
#[test]
fn faults_of_switches_that_end_connections_are_found() {
    for fault in [terminated::Fault::TakeTwice, terminated::Fault::PostEarly] {
        let outcome = terminated::Run::find(fault);
        let found = outcome.faults.iter().find(|(name, _)| name.starts_with("C1"));
        assert!(found.is_some_and(|(_, steps)| !steps.is_empty()), "{outcome}");
    }
}

fn assert_finds(fault: Fault, (mode, packets): (CollectiveMode, u8), property: &str) {
    let outcome: Outcome = explore(
        format!("{fault:?}"),
        Collective::new(with_fault(fault, mode, packets)),
        Until::Fault,
        1,
    );
    let found = outcome.faults.iter().find(|(name, _)| name.starts_with(property));
    assert!(
        found.is_some_and(|(_, steps)| !steps.is_empty()),
        "{property}: {outcome}"
    );
}

/// The checker can fail: with hop-by-hop acknowledgements, data is lost after its sender got the ACK.
#[test]
fn a_premature_ack_is_found() {
    assert_finds(
        Fault::AckAtOnce,
        (Translated, 3),
        "nothing is acknowledged before",
    );
}

/// Also in Mode-III, where what is acknowledged and not stored never comes again.
#[test]
fn an_ack_of_what_was_not_accepted_is_found() {
    assert_finds(Fault::AckAtOnce, (Augmented, 3), "C2");
}

/// Without CheckDuplicate a repeated contribution is added twice.
#[test]
fn a_contribution_that_is_added_twice_is_found() {
    assert_finds(Fault::AddAgain, (Translated, 3), "C1");
    assert_finds(Fault::AddAgain, (Augmented, 1), "C1");
}
