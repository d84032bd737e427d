//! Collectives in the network, end to end: random trees, groups, calls and bad luck, with the real engine as switches and
//! CommLib's machine over the real endpoint as ranks. Every result is compared with plain arithmetic (C1), and every
//! collective ends (C2).
//!
//! The ordinary test runs the seeds from 0 on. `CASTNET_SEED=<n>` runs that one alone and, if it fails, shows its last
//! frames; `CASTNET_SOAK_RUNS=<n>` runs so many seeds beyond the ordinary ones, from `CASTNET_SOAK_FROM` on.

mod run;
mod scenario;
mod values;

use std::env;

use run::{Outcome, run};
use scenario::Scenario;

const RUNS: u64 = 1_500;
const SOAK_FROM: u64 = 1_000_000;
const FAILURES_MAX: usize = 10;

/// Seeds that once failed, and why.
const STORIES: [(u64, &str); 2] = [
    (
        1_003_941,
        "Reduce, reflecting: each of seven senders repeated until the root had all, and each repeat made a result again: seven \
     times what the root's slow link carries, for ever, so that what the root lacked first found the queue full.",
    ),
    (
        1_006_606,
        "Broadcasts of two ranks, reflecting: the source of the second one repeated at the same pace as that of the first, and what \
     nobody could take yet filled the queue of a slow link so that what was lacking found no room, for ever.",
    ),
];

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// Runs a seed; tells all that is needed to see it again where it fails.
fn play(seed: u64) -> Result<(Scenario, Outcome), String> {
    let scenario = Scenario::random(seed);
    match run(&scenario, 0) {
        Ok(outcome) => Ok((scenario, outcome)),
        Err(_) => {
            let frames = number("CASTNET_TRACE").unwrap_or(60) as usize;
            let wrong = run(&scenario, frames)
                .err()
                .unwrap_or_else(|| "it does not fail again".into());
            let replay = format!("CASTNET_SEED={seed} cargo test -p castnet-sim --test collectives");
            Err(format!("{}\n{wrong}\nreplay: {replay}\n", scenario.describe()))
        }
    }
}

/// What all runs together came to.
#[derive(Default)]
struct Sum {
    runs: u64,
    lossy: u64,
    by_policy: [u64; 2],
    deepest: usize,
    /// Runs with links beyond a tree.
    meshed: u64,
    largest: usize,
    /// Runs with two groups.
    pairs: u64,
    total: Outcome,
}

impl Sum {
    fn add(&mut self, scenario: &Scenario, outcome: &Outcome) {
        self.runs += 1;
        self.lossy += u64::from(scenario.lossy);
        for group in &scenario.groups {
            self.by_policy[group.request.loss_policy as usize] += 1;
            self.largest = self.largest.max(group.request.ranks.len());
        }
        self.pairs += u64::from(scenario.groups.len() > 1);
        self.deepest = self.deepest.max(outcome.switches);
        self.meshed += u64::from(scenario.is_meshed());
        let (sum, new) = (&mut self.total, outcome);
        sum.events += new.events;
        sum.calls += new.calls;
        sum.bytes += new.bytes;
        sum.retransmits += new.retransmits;
        sum.virtual_time += new.virtual_time;
        sum.links.sent += new.links.sent;
        sum.links.sent_bytes += new.links.sent_bytes;
        sum.links.delivered += new.links.delivered;
        sum.links.lost += new.links.lost;
        sum.links.queue_full += new.links.queue_full;
        sum.links.duplicated += new.links.duplicated;
        sum.links.reordered += new.links.reordered;
        sum.links.corrupted += new.links.corrupted;
    }

    fn print(&self) {
        let total = &self.total;
        println!(
            "{} runs ({} with faults, {} repair, {} reflect, up to {} switches and {} ranks in a group, {} not in a tree of links, {} with two \
             groups), {} collectives, {} bytes of results \
             compared, {} events, {} of virtual time, {} packets sent again by hosts\nlinks: {:?}",
            self.runs,
            self.lossy,
            self.by_policy[0],
            self.by_policy[1],
            self.deepest,
            self.largest,
            self.meshed,
            self.pairs,
            total.calls,
            total.bytes,
            total.events,
            total.virtual_time,
            total.retransmits,
            total.links,
        );
    }
}

/// Plays all seeds, and fails at the end if one failed, or early if many did.
fn play_all(seeds: impl Iterator<Item = u64>) -> Sum {
    let mut sum = Sum::default();
    let mut failed = Vec::new();
    for seed in seeds {
        match play(seed) {
            Ok((scenario, outcome)) => sum.add(&scenario, &outcome),
            Err(wrong) => {
                println!("{wrong}");
                failed.push(seed);
            }
        }
        assert!(
            failed.len() < FAILURES_MAX,
            "seeds {failed:?} failed; the rest was not played"
        );
    }
    sum.print();
    assert!(failed.is_empty(), "seeds {failed:?} failed, see above");
    sum
}

#[test]
fn every_result_is_right_and_every_collective_ends() {
    if let Some(seed) = number("CASTNET_SEED") {
        play_all(seed..=seed);
        return;
    }
    println!("seeds 0 to {RUNS}");
    let sum = play_all(0..RUNS);
    // That nothing went wrong says little unless the interesting states were reached.
    let links = &sum.total.links;
    for (what, count) in [
        ("lost", links.lost),
        ("queue full", links.queue_full),
        ("duplicated", links.duplicated),
        ("reordered", links.reordered),
        ("corrupted", links.corrupted),
        ("sent again", sum.total.retransmits),
        ("repair", sum.by_policy[0]),
        ("reflect", sum.by_policy[1]),
    ] {
        assert!(count > 100, "{what}: {count}");
    }
    assert!(sum.deepest >= 4, "groups over many switches");
    assert!(
        sum.largest >= 16 && sum.meshed > 100,
        "large groups, and fabrics that are no trees"
    );
}

#[test]
fn what_failed_once_holds_now() {
    for (seed, story) in STORIES {
        let scenario = Scenario::random(seed);
        let is_old = scenario.groups.len() == 1 && scenario.groups[0].request.ranks.len() <= 8;
        assert!(is_old && !scenario.is_meshed(), "it is another one now");
        if let Err(wrong) = play(seed) {
            panic!("{wrong}\nit failed before: {story}");
        }
    }
}

#[test]
fn soak() {
    if let Some(runs) = number("CASTNET_SOAK_RUNS") {
        let from = number("CASTNET_SOAK_FROM").unwrap_or(SOAK_FROM);
        println!("seeds {from} to {}", from + runs);
        play_all(from..from + runs);
    }
}
