//! M1 to M3 and delivery, over the machines that ship. The counts go to standard error, past the harness's capture.

use castnet_model::runs::{ALL_FAULTS, HOSTILE, REFUSALS, Run, SHAPES};
use std::io::Write;

fn hold(runs: &[Run]) {
    for run in runs {
        let outcome = run.explore(1);
        // Nobody listening is no fault of the model.
        let _ = writeln!(std::io::stderr(), "{outcome}");
        assert!(outcome.is_sound(), "{outcome}");
    }
}

#[test]
fn with_a_loss_a_duplicate_and_a_late_message() {
    hold(ALL_FAULTS);
}

#[test]
fn over_a_spine_and_however_messages_ask() {
    hold(SHAPES);
}

#[test]
fn with_receivers_that_refuse() {
    hold(REFUSALS);
}

#[test]
fn whatever_a_hostile_network_does() {
    hold(HOSTILE);
}
