//! C1 and C2 of collectives in the network, over the machines that ship. The counts go to standard error, past the
//! harness's capture. Here ranks send fewer packets than the three of EPIC's appendix H, which the command explores:
//! `cargo run --release -p castnet-model -- collectives`.

use castnet_model::collectives::{Collective, REFLECT, REPAIR, Run, STRAGGLERS, Spoil, spoiled};
use castnet_model::report::{Outcome, Until, explore};
use std::io::Write;

fn hold(runs: &[Run], packets: u8) {
    for run in runs {
        let mut run = *run;
        run.config.packets = run.config.packets.min(packets);
        let outcome = run.explore(1);
        // Nobody listening is no fault of the model.
        let _ = writeln!(std::io::stderr(), "{outcome}");
        assert!(outcome.is_sound(), "{outcome}");
    }
}

#[test]
fn switches_that_repair() {
    hold(REPAIR, 2);
}

#[test]
fn losses_that_are_reflected() {
    hold(REFLECT, 1);
}

#[test]
fn late_ranks_barriers_and_ranks_that_disagree() {
    hold(STRAGGLERS, 2);
}

fn finds(spoil: Spoil, property: &str) {
    let outcome: Outcome = explore(
        format!("{spoil:?}"),
        Collective::new(spoiled(spoil)),
        Until::Fault,
        1,
    );
    let found = outcome.faults.iter().find(|(name, _)| name.starts_with(property));
    assert!(
        found.is_some_and(|(_, steps)| !steps.is_empty()),
        "{property}: {outcome}"
    );
}

/// The checker can fail: acknowledged hop by hop, data is lost that the sender was told had arrived.
#[test]
fn an_ack_at_once_is_found() {
    finds(Spoil::AckAtOnce, "nothing is acknowledged");
}

/// Without CheckDuplicate a repeat is added twice.
#[test]
fn a_repeat_that_is_added_again_is_found() {
    finds(Spoil::AddAgain, "C1");
}
