//! Fuzzes targets for a given time, or replays one input and prints its steps.

use castnet_fuzz::driver::{Fuzzer, replay};
use castnet_fuzz::{TARGETS, Target};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: castnet-fuzz [TARGET...] [--seconds N | --runs N] [--seed N]   fuzz these targets (default: all), each on a thread
       castnet-fuzz TARGET FILE                                      replay one input and print its steps";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let named = |name: &String| TARGETS.iter().find(|t| t.name == name);
    if let [target, file] = &arguments[..]
        && let (Some(target), None, false) = (named(target), named(file), file.starts_with("--"))
    {
        match std::fs::read(file) {
            Ok(input) => replay(target, &input),
            Err(error) => return usage_error(&format!("{file}: {error}")),
        }
        return ExitCode::SUCCESS;
    }
    let (mut targets, mut bound, mut seed) = (Vec::new(), Bound::Seconds(60), 0x00CA_57E7);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || rest.next().and_then(|n| n.parse::<u64>().ok());
        match (argument.as_str(), named(argument)) {
            (_, Some(target)) => targets.push(target),
            ("--seconds", _) => match number() {
                Some(n) => bound = Bound::Seconds(n),
                None => return usage_error("--seconds takes a number"),
            },
            ("--runs", _) => match number() {
                Some(n) => bound = Bound::Runs(n),
                None => return usage_error("--runs takes a number"),
            },
            ("--seed", _) => match number() {
                Some(n) => seed = n,
                None => return usage_error("--seed takes a number"),
            },
            _ => return usage_error(&format!("{argument}: no such target")),
        }
    }
    if targets.is_empty() {
        targets.extend(TARGETS);
    }
    let passed = std::thread::scope(|scope| {
        let threads: Vec<_> = targets
            .iter()
            .map(|target| scope.spawn(move || fuzz(target, seed, bound)))
            .collect();
        let passed: Vec<bool> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(false))
            .collect();
        passed.into_iter().all(|passed| passed)
    });
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn usage_error(what: &str) -> ExitCode {
    let names: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
    eprintln!("{what}\n{USAGE}\ntargets: {}", names.join(", "));
    ExitCode::FAILURE
}

/// How long to fuzz each target. So many runs of a seed are the same on each machine.
#[derive(Clone, Copy)]
enum Bound {
    Seconds(u64),
    Runs(u64),
}

/// Returns true if no failure was found.
fn fuzz(target: &Target, seed: u64, bound: Bound) -> bool {
    let (name, begun) = (target.name, Instant::now());
    let mut fuzzer = Fuzzer::new(target, seed);
    while match bound {
        Bound::Seconds(seconds) => begun.elapsed() < Duration::from_secs(seconds),
        Bound::Runs(runs) => fuzzer.runs() < runs,
    } {
        let Err(failure) = fuzzer.step() else { continue };
        let file = target.folder().join(format!("found-{seed}-{}", failure.run));
        let hex: String = failure.input.iter().map(|b| format!("{b:02x}")).collect();
        eprintln!(
            "{name}: seed {seed}, run {} violates a rule; minimised: {hex}",
            failure.run
        );
        match std::fs::write(&file, &failure.input) {
            Ok(()) => eprintln!("see: cargo run -p castnet-fuzz -- {name} {}", file.display()),
            Err(error) => eprintln!("{}: {error}", file.display()),
        }
        return false;
    }
    let (inputs, behaviours) = fuzzer.found();
    println!(
        "{name}: seed {seed}, {} runs, {inputs} inputs reach {behaviours} behaviours",
        fuzzer.runs()
    );
    true
}
