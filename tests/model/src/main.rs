//! `cargo run --release -p castnet-model`: what the tests explore. With `full`: all there is, some ten minutes and a gigabyte
//! on two cores.

use castnet_model::runs::{ALL_FAULTS, FULL, HOSTILE, REFUSALS, SHAPES};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let full = match std::env::args().nth(1).as_deref() {
        None => &[],
        Some("full") => FULL,
        Some(other) => {
            eprintln!("unknown argument {other}: nothing, or `full`");
            return ExitCode::from(2);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let (mut states, mut unique, mut sound) = (0, 0, true);
    for run in [HOSTILE, SHAPES, REFUSALS, ALL_FAULTS, full].concat() {
        let outcome = run.explore(threads);
        println!("{outcome}");
        states += outcome.states;
        unique += outcome.unique;
        sound &= outcome.is_sound();
    }
    let took = Duration::as_secs_f64(&began.elapsed());
    println!("all: {states} states, {unique} unique, {took:.1} s on {threads} threads");
    if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
