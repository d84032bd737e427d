//! M1 to M3 and delivery, checked on the machines of the data plane. The numbers of states are written to standard
//! error, which the test harness does not capture.

use castnet_model::runs::{
    CONGESTION, EVICTIONS, HOSTILE, LATE, REFUSALS, RINGS, Run, SHAPES, SOURCES, SOURCES_WITH_RINGS,
};
use std::io::Write;

fn assert_sound(runs: &[Run]) {
    for run in runs {
        let outcome = run.explore(1);
        // A closed standard error is not a fault of the model.
        let _ = writeln!(std::io::stderr(), "{outcome}");
        assert!(outcome.is_sound(), "{outcome}");
    }
}

#[test]
fn with_a_late_message_and_another_fault() {
    assert_sound(LATE);
}

#[test]
fn over_a_spine_with_all_patterns_of_ack_requests() {
    assert_sound(SHAPES);
}

#[test]
fn with_receivers_that_refuse() {
    assert_sound(REFUSALS);
}

#[test]
fn in_a_hostile_network() {
    assert_sound(HOSTILE);
}

#[test]
fn with_switches_that_repair() {
    assert_sound(RINGS);
}

#[test]
fn with_a_path_that_is_evicted() {
    assert_sound(EVICTIONS);
}

#[test]
fn with_receivers_that_are_congested() {
    assert_sound(CONGESTION);
}

#[test]
fn with_sources_that_change() {
    assert_sound(SOURCES);
}

#[test]
fn with_sources_that_change_and_switches_that_repair() {
    assert_sound(SOURCES_WITH_RINGS);
}
