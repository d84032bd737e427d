//! The exploration that leaves out what cannot matter takes each switch and host through the same states, and ends in the
//! same, as the one that leaves out nothing; and neither runs in a circle, where the checker's `eventually` would be blind.

use castnet_model::bounded::{Bounded, Config};
use castnet_model::fabric::Topology;
use castnet_model::plain;
use castnet_model::report::{Until, explore};
use castnet_model::switch::Spoil;

const CALM: Config = Config::calm(Topology::RootAndLeaf);
const ONE_MESSAGE: Config = Config {
    ack_requests: 0b100,
    ..CALM
};

fn alike(name: &str, config: Config) {
    let reduced = plain::explore(&Bounded::new(config));
    let all = plain::explore(&Bounded::new(Config {
        exhaustive: true,
        ..config
    }));
    println!(
        "{name}, {:?}: {} states instead of {}, {} local states, {} ends, broken {:?}",
        config.spoil,
        reduced.unique,
        all.unique,
        all.local.len(),
        all.ends.len(),
        all.broken,
    );
    assert!(!reduced.cycle && !all.cycle, "{name}: a cycle");
    assert!(
        reduced.local == all.local,
        "{name}: other states of a switch or host"
    );
    assert!(reduced.ends == all.ends, "{name}: other ends");
    assert_eq!(reduced.broken, all.broken, "{name}");
    assert!(reduced.unique < all.unique, "{name}: nothing saved");
    if config.spoil != Spoil::Nothing {
        return;
    }
    // The checker's own count, of the same states.
    assert_eq!(
        explore(name, Bounded::new(config), Until::All, 1).unique,
        reduced.unique,
        "{name}"
    );
}

#[test]
fn with_a_loss() {
    alike(
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
    alike(
        "duplicate",
        Config {
            duplicates: 1,
            time_outs: 1,
            ..CALM
        },
    );
    alike(
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
    alike(
        "late",
        Config {
            delays: 1,
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
}

#[test]
fn with_receivers_that_refuse() {
    alike(
        "not ready",
        Config {
            not_ready: [None, Some(1), None],
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
    alike(
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
    alike(
        "early time-out",
        Config {
            early_time_outs: 1,
            time_outs: 1,
            ..ONE_MESSAGE
        },
    );
}

#[test]
fn with_faults_put_in_on_purpose() {
    for spoil in [
        Spoil::NakAtOnce,
        Spoil::NakOnlyWithAck,
        Spoil::AckOfAny,
        Spoil::NoFilter,
        Spoil::NoAnswer,
    ] {
        alike(
            "loss",
            Config {
                losses: 1,
                time_outs: 1,
                spoil,
                ..ONE_MESSAGE
            },
        );
    }
}
