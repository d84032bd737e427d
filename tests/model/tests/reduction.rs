//! The reduced exploration reaches the same states of each switch and host, and the same final states, as the
//! exhaustive one. Neither contains a cycle, which `eventually` of the checker would miss.

use castnet_collective::CollectiveMode::{Augmented, Terminated, Translated};
use castnet_model::bounded::{Bounded, Config};
use castnet_model::fabric::Topology;
use castnet_model::plain::{self, Parts};
use castnet_model::report::{Until, explore};
use castnet_model::switch::Fault;
use stateright::Model;
use std::fmt::Debug;
use std::hash::Hash;

const WITHOUT_FAULTS: Config = Config::without_faults(Topology::RootAndLeaf);
const ONE_MESSAGE: Config = Config {
    ack_requests: 0b100,
    ..WITHOUT_FAULTS
};

fn assert_same<M>(name: &str, reduced: &M, all: &M)
where
    M: Model,
    M::State: Parts + Hash,
    <M::State as Parts>::Rule: Debug + Ord,
{
    let reduced = plain::explore(reduced);
    let all = plain::explore(all);
    println!(
        "{name}: {} states instead of {}, {} local states, {} ends, broken {:?}",
        reduced.unique,
        all.unique,
        all.local.len(),
        all.ends.len(),
        all.broken,
    );
    assert!(!reduced.cycle && !all.cycle, "{name}: a cycle");
    assert!(
        reduced.local == all.local,
        "{name}: different states of a switch or host"
    );
    assert!(reduced.ends == all.ends, "{name}: different final states");
    assert_eq!(reduced.broken, all.broken, "{name}");
    assert!(reduced.unique < all.unique, "{name}: the reduction saves nothing");
}

fn assert_equivalent(name: &str, config: Config) {
    let reduced = Bounded::new(config);
    let exhaustive = Bounded::new(Config {
        exhaustive: true,
        ..config
    });
    assert_same(&format!("{name}, {:?}", config.fault), &reduced, &exhaustive);
    if config.fault != Fault::Nothing {
        return;
    }
    // The checker's own count of the same states.
    assert_eq!(
        explore(name, reduced.clone(), Until::All, 1).unique,
        plain::explore(&reduced).unique,
        "{name}"
    );
}

/// A barrier, whose ranks have one packet each way, in each mode.
#[test]
fn of_collectives_with_a_loss() {
    use castnet_model::collectives::{Collective, Config, Fault, with_fault};
    for modes in [
        [Translated; 3],
        [Augmented; 3],
        [Terminated, Translated, Augmented],
    ] {
        let config = Config {
            modes,
            ticks: 1,
            time_outs: 1,
            ..with_fault(Fault::Nothing, Translated, 0)
        };
        let exhaustive = Config {
            exhaustive: true,
            ..config
        };
        assert_same(
            &format!("{modes:?}"),
            &Collective::new(config),
            &Collective::new(exhaustive),
        );
    }
}

#[test]
fn with_a_loss() {
    assert_equivalent(
        "loss",
        Config {
            losses: 1,
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
}

#[test]
fn with_a_duplicate() {
    assert_equivalent(
        "duplicate",
        Config {
            duplicates: 1,
            time_outs: 1,
            ..WITHOUT_FAULTS
        },
    );
    assert_equivalent(
        "duplicate",
        Config {
            duplicates: 1,
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
}

#[test]
fn with_a_late_message() {
    assert_equivalent(
        "late",
        Config {
            packets: 2,
            ack_requests: 0b10,
            delays: 1,
            time_outs: 1,
            ..WITHOUT_FAULTS
        },
    );
}

#[test]
fn with_receivers_that_refuse() {
    assert_equivalent(
        "not ready",
        Config {
            not_ready: [None, Some(1), None],
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
    assert_equivalent(
        "refuses",
        Config {
            refuses: [None, Some(1), None],
            duplicates: 1,
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
}

#[test]
fn with_an_early_time_out() {
    assert_equivalent(
        "early time-out",
        Config {
            early_time_outs: 1,
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
}

#[test]
fn with_switches_that_repair() {
    for (slots, losses, early_ticks) in [(4, 0, 1), (4, 1, 0), (2, 1, 0)] {
        assert_equivalent(
            "rings",
            Config {
                slots,
                losses,
                time_outs: 1,
                early_ticks,
                ..ONE_MESSAGE
            },
        );
    }
}

#[test]
fn with_an_eviction() {
    assert_equivalent(
        "eviction",
        Config {
            evicts: Some(1),
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
}

#[test]
fn with_congestion() {
    assert_equivalent(
        "congestion",
        Config {
            packets: 1,
            cnps: [1, 1, 1],
            windows: 1,
            ..WITHOUT_FAULTS
        },
    );
}

#[test]
fn with_sources_that_change() {
    for at_once in [false, true] {
        assert_equivalent(
            "sources",
            Config {
                sends: [1, 0, 1, 0],
                at_once,
                losses: 1,
                time_outs: 1,
                ..WITHOUT_FAULTS
            },
        );
    }
}

#[test]
fn with_deliberate_faults() {
    for fault in [
        Fault::NakAtOnce,
        Fault::NakOnlyWithAck,
        Fault::AckOfAny,
        Fault::NoFilter,
        Fault::NoAnswer,
    ] {
        assert_equivalent(
            "loss",
            Config {
                losses: 1,
                time_outs: 1,
                fault,
                ..ONE_MESSAGE
            },
        );
    }
}
