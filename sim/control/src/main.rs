//! Runs scenarios of control by seed, or one with its log.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use castnet_sim_control::{Outcome, Scenario};

const USAGE: &str = "usage: castnet-sim-control [--seeds N] [--from SEED] [--steps N] [--threads N] [--until-found]
           run N scenarios (default: 1000), or until one violates a rule
       castnet-sim-control --seed SEED [--steps N]
           run one, and print what happens

Each step has some calls of clients and a fault, a host that dies, a tenant that takes all that it may have, or a group that a host
registers. A scenario that violates a rule is printed with its seed, and the exit status is 1.";
/// A run in which time stands still for so long never ends.
const STUCK: Duration = Duration::from_secs(120);
/// Pause between lines that show progress.
const SHOW: Duration = Duration::from_secs(10);

struct Options {
    from: u64,
    seeds: u64,
    steps: u64,
    threads: usize,
    one: bool,
    until_found: bool,
}

fn main() -> ExitCode {
    match options() {
        Ok(Options {
            from,
            steps,
            one: true,
            ..
        }) => show(from, &Scenario { seed: from, steps }.run()),
        Ok(options) => run(&options),
        Err(ControlFlow::Break(())) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Err(ControlFlow::Continue(wrong)) => {
            eprintln!("{wrong}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Result<Options, ControlFlow<(), String>> {
    let mut options = Options {
        from: 0,
        seeds: 1000,
        steps: 8,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        one: false,
        until_found: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if matches!(argument.as_str(), "--help" | "-h") {
            return Err(ControlFlow::Break(()));
        }
        if argument == "--until-found" {
            options.until_found = true;
            continue;
        }
        let number = arguments.next().and_then(|number| number.parse::<u64>().ok());
        let number = number.ok_or_else(|| ControlFlow::Continue(format!("{argument} takes a number")))?;
        match argument.as_str() {
            "--seeds" => options.seeds = number,
            "--from" => options.from = number,
            "--steps" => options.steps = number,
            "--threads" => options.threads = (number as usize).clamp(1, 1024),
            "--seed" => (options.from, options.one) = (number, true),
            _ => return Err(ControlFlow::Continue(format!("{argument}: no such option"))),
        }
    }
    Ok(options)
}

/// Prints what happened.
fn show(seed: u64, Outcome { log, violation }: &Outcome) -> ExitCode {
    let mut out = std::io::stdout().lock();
    for line in log {
        if writeln!(out, "{line}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    match violation {
        Some(wrong) => {
            let _ = writeln!(out, "seed {seed} violates a rule: {wrong}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn run(options: &Options) -> ExitCode {
    let &Options {
        from,
        seeds,
        steps,
        threads,
        until_found,
        ..
    } = options;
    let (next, end, failed, done) = (
        AtomicU64::new(0),
        AtomicU64::new(seeds),
        AtomicU64::new(0),
        AtomicU64::new(0),
    );
    let began = Instant::now();
    let now = || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    // Of each thread: when its scenario began, in milliseconds since the first one, and its seed.
    let marks: Vec<(AtomicU64, AtomicU64)> = (0..threads).map(|_| Default::default()).collect();
    let work = |at: &AtomicU64, running: &AtomicU64| {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= end.load(Ordering::Relaxed) {
                return at.store(u64::MAX, Ordering::Relaxed);
            }
            let seed = from.wrapping_add(n);
            running.store(seed, Ordering::Relaxed);
            at.store(now(), Ordering::Relaxed);
            let outcome = Scenario { seed, steps }.run();
            done.fetch_add(1, Ordering::Relaxed);
            if let Some(wrong) = outcome.violation {
                failed.fetch_add(1, Ordering::Relaxed);
                println!("seed {seed} violates a rule: {wrong}");
                if until_found {
                    end.fetch_min(n, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers = marks.iter();
        let workers = workers.map(|(at, running)| scope.spawn(move || work(at, running)));
        let workers: Vec<_> = workers.collect();
        let mut shown = Instant::now();
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            for (at, running) in &marks {
                let at = Duration::from_millis(at.load(Ordering::Relaxed));
                if Duration::from_millis(now()).saturating_sub(at) > STUCK {
                    let seed = running.load(Ordering::Relaxed);
                    println!("seed {seed} violates a rule: it does not end");
                    std::process::exit(1);
                }
            }
            if shown.elapsed() > SHOW {
                shown = Instant::now();
                let (done, failed) = (done.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
                eprintln!("{done} of {seeds} scenarios, {failed} failed");
            }
        }
    });
    let (done, failed) = (done.into_inner(), failed.into_inner());
    println!(
        "{done} scenarios from seed {from}, {failed} failed, {:.1?}; one with its log: castnet-sim-control --seed {from} --steps {steps}",
        began.elapsed()
    );
    ExitCode::from(u8::from(failed > 0))
}
