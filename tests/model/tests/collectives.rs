//! C1 and C2 of collectives in the network, checked on the machines of the data plane. The numbers of states are
//! written to standard error, which the test harness does not capture. Ranks send fewer packets here than the three
//! of EPIC's appendix H, which `cargo run --release -p castnet-model -- collectives` explores.

use castnet_collective::translated::CollectiveMode::{Augmented, Terminated, Translated};
use castnet_model::collectives::{
    ASKED, AUGMENTED, Collective, Config, Fault, Losable, MIXED, REFLECT, REPAIR, Run, SHORT, STRAGGLERS,
    WITHOUT_TIMERS, short, with_fault, without_timers,
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
fn switches_that_ask() {
    assert_sound(ASKED, 1);
}

#[test]
fn switches_that_acknowledge_at_each_hop() {
    assert_sound(AUGMENTED, 1);
}

#[test]
fn pipes_that_are_short() {
    assert_sound(SHORT, 2);
}

#[test]
fn losses_that_need_no_timer() {
    assert_sound(WITHOUT_TIMERS, 1);
}

#[test]
fn switches_of_several_modes() {
    assert_sound(MIXED, 1);
}

/// An ACK of a contribution that was not accepted, at a leaf of Mode-II below or beside Mode-I.
#[test]
fn a_premature_ack_is_found_beside_other_modes() {
    for modes in [
        [Terminated, Translated, Augmented],
        [Augmented, Translated, Terminated],
    ] {
        let config = with_fault(Fault::AckAtOnce, Translated, 1);
        assert_finds(Config { modes, ..config }, "C2");
    }
}

/// Between switches of Mode-II, a contribution of an AllReduce is acknowledged by its result only. Mode-I waits for an ACK.
#[test]
fn an_edge_between_modes_that_is_no_connection_is_found() {
    let config = with_fault(Fault::OneMode, Translated, 1);
    let modes = [Translated, Terminated, Augmented];
    assert_finds(Config { modes, ..config }, "C2");
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

fn assert_finds(config: Config, property: &str) {
    let outcome: Outcome = explore(
        format!("{:?}", config.fault),
        Collective::new(config),
        Until::Fault,
        1,
    );
    println!("{outcome}");
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
        with_fault(Fault::AckAtOnce, Translated, 3),
        "nothing is acknowledged before",
    );
}

/// Also in Mode-III, where what is acknowledged and not stored never comes again.
#[test]
fn an_ack_of_what_was_not_accepted_is_found() {
    assert_finds(with_fault(Fault::AckAtOnce, Augmented, 3), "C2");
}

/// Without CheckDuplicate a repeated contribution is added twice.
#[test]
fn a_contribution_that_is_added_twice_is_found() {
    assert_finds(with_fault(Fault::AddAgain, Translated, 3), "C1");
    assert_finds(with_fault(Fault::AddAgain, Augmented, 1), "C1");
}

/// EPIC 5.1 and H.4, window synchronization: the slots of a faster rank are recycled when a packet before them is complete.
#[test]
fn slots_that_are_recycled_without_regard_to_windows_are_found() {
    assert_finds(with_fault(Fault::RecycleWhenComplete, Augmented, 3), "C1");
}

/// EPIC 5.1 and H.4, window synchronization: without the range of the pipe, two packets share a slot.
#[test]
fn a_contribution_beyond_the_range_of_the_pipe_is_found() {
    assert_finds(short(with_fault(Fault::AddBeyondRange, Augmented, 3)), "C1");
}

/// EPIC H.4, root-specific treatment: the root overwrites a result that a rank still lacks.
#[test]
fn a_sum_that_is_copied_over_a_result_in_use_is_found() {
    let config = Config {
        losable: Losable::Results,
        ..short(with_fault(Fault::HandOverAtOnce, Augmented, 3))
    };
    assert_finds(config, "C1");
}

/// EPIC H.4, rate limiting of NAKs: each packet behind a gap causes one.
#[test]
fn a_nak_for_each_packet_behind_a_gap_is_found() {
    for mode in [Translated, Augmented] {
        // What is on its way to a rank arrives at once in the reduced exploration.
        let exhaustive = Config {
            exhaustive: true,
            ..with_fault(Fault::NakEach, mode, 2)
        };
        assert_finds(exhaustive, "a gap causes one NAK");
    }
}

/// EPIC H.4, necessity of NAKs: without them, a loss is repaired by a timer only.
#[test]
fn a_loss_that_waits_for_a_timer_is_found() {
    for mode in [Translated, Augmented] {
        assert_finds(without_timers(with_fault(Fault::NoNak, mode, 2)), "C2");
    }
}
