//! `cargo run --release -p castnet-model` explores what the tests explore. With `full` it explores everything, which
//! takes more than an hour and several gigabytes on two cores. With `collectives` or `collectives-full` it explores
//! collectives only. A second argument selects the runs whose names contain it.

use castnet_model::runs::{
    CONGESTION, EVICTIONS, EVICTIONS_FULL, FULL, HOSTILE, LATE, REFUSALS, RINGS, RINGS_FULL, SHAPES, SOURCES,
    SOURCES_FULL, SOURCES_WITH_RINGS, SOURCES_WITH_RINGS_FULL,
};
use castnet_model::{collectives, terminated};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let multicast = [
        HOSTILE,
        SHAPES,
        REFUSALS,
        RINGS,
        CONGESTION,
        EVICTIONS,
        SOURCES,
        SOURCES_WITH_RINGS,
        LATE,
    ]
    .concat();
    let in_network = [
        collectives::REPAIR,
        collectives::REFLECT,
        collectives::STRAGGLERS,
        collectives::ASKED,
        collectives::AUGMENTED,
        collectives::SHORT,
        collectives::WITHOUT_TIMERS,
        collectives::MIXED,
    ]
    .concat();
    let of_messages = terminated::RUNS.to_vec();
    let of_messages_full = [terminated::RUNS, terminated::RUNS_FULL].concat();
    let in_network_full = [&in_network, collectives::FULL, collectives::AUGMENTED_FULL].concat();
    let (multicast, in_network, of_messages) = match std::env::args().nth(1).as_deref() {
        None => (multicast, in_network, of_messages),
        Some("collectives") => (vec![], in_network, of_messages),
        Some("collectives-full") => (vec![], in_network_full, of_messages_full),
        Some("full") => (
            [
                &multicast,
                RINGS_FULL,
                EVICTIONS_FULL,
                SOURCES_FULL,
                SOURCES_WITH_RINGS_FULL,
                FULL,
            ]
            .concat(),
            in_network_full,
            of_messages_full,
        ),
        Some(other) => {
            eprintln!("unknown argument {other}: nothing, `full`, `collectives` or `collectives-full`");
            return ExitCode::from(2);
        }
    };
    let part = std::env::args().nth(2).unwrap_or_default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let (mut states, mut unique, mut sound) = (0, 0, true);
    let multicast = multicast.iter().filter(|run| run.name.contains(&part));
    let in_network = in_network.iter().filter(|run| run.name.contains(&part));
    let outcomes = multicast.map(|run| run.explore(threads));
    let of_messages = of_messages.iter().filter(|run| run.name.contains(&part));
    let outcomes = outcomes.chain(in_network.clone().map(|run| run.explore(threads)));
    for outcome in outcomes.chain(of_messages.map(|run| run.explore(threads))) {
        println!("{outcome}");
        states += outcome.states;
        unique += outcome.unique;
        sound &= outcome.is_sound();
    }
    if states == 0 {
        eprintln!("no run has {part:?} in its name");
        return ExitCode::from(2);
    }
    if in_network.count() > 0 {
        for (primitive, states, unique) in collectives::EPIC_TABLE_8 {
            let name = format!("{primitive}: EPIC's table 8, for comparison");
            println!("{name:58} {states:>11} states {unique:>10} unique");
        }
    }
    let took = Duration::as_secs_f64(&began.elapsed());
    println!("all: {states} states, {unique} unique, {took:.1} s on {threads} threads");
    if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
