//! Collectives in the network, end to end: random trees, groups, calls and faults, with the real engine as switches
//! and CommLib's machine over the real endpoint as ranks. Every result is compared with plain arithmetic (C1), and
//! every collective ends (C2).
//!
//! The normal test runs the seeds from 0 on. `CASTNET_SEED=<n>` runs one seed and, if it fails, prints its last
//! frames. `CASTNET_SOAK_RUNS=<n>` runs so many other seeds, from `CASTNET_SOAK_FROM` on.

mod faults;
mod run;
mod scenario;
mod values;

use crate::seeds::{number, run_all, run_scenario, soak_seeds};
use castnet_rules::CollectiveMode;
use castnet_wire::CounterSet;
use run::{Outcome, run};
use scenario::Scenario;

const RUNS: u64 = 1_500;

/// Seeds that failed in the past, and why.
const STORIES: [(u64, &str); 2] = [
    (
        1_003_941,
        "Reduce with the policy reflect: each of seven senders retransmitted until the root had everything, and each retransmission \
         produced a result again. That was seven times the rate of the root's slow link, without end, so what the root needed first \
         always found the queue full.",
    ),
    (
        1_006_606,
        "Broadcasts of two ranks with the policy reflect: the source of the second one retransmitted at the same pace as that of the \
         first. Packets that no receiver could accept yet filled the queue of a slow link, so the missing ones were dropped, without \
         end.",
    ),
];

/// Totals over all runs.
#[derive(Default)]
struct Sum {
    runs: u64,
    lossy: u64,
    by_policy: [u64; 2],
    by_mode: [u64; 3],
    /// Groups whose switches may have different modes.
    mixed: u64,
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
            self.by_policy[group.rule().loss_policy as usize] += 1;
            self.by_mode[group.rule().mode as usize] += 1;
            self.mixed += u64::from(!group.request.modes.is_empty());
            self.largest = self.largest.max(group.request.members.len());
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
        sum.links.add(&new.links);
    }

    fn print(&self) {
        let total = &self.total;
        println!(
            "{} runs ({} with faults, {} repair, {} reflect, {} augmented, {} terminated, {} mixed, up to {} switches and {} ranks in a group, {} not in a tree of links, {} with two \
             groups), {} collectives, {} bytes of results \
             compared, {} events, {} of virtual time, {} packets sent again by hosts\nlinks: {:?}",
            self.runs,
            self.lossy,
            self.by_policy[0],
            self.by_policy[1],
            self.by_mode[CollectiveMode::Augmented as usize],
            self.by_mode[CollectiveMode::Terminated as usize],
            self.mixed,
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

fn run_seed(seed: u64) -> Result<(Scenario, Outcome), String> {
    let scenario = Scenario::random(seed);
    let description = scenario.describe();
    let outcome = run_scenario("collectives", seed, &description, |frames| run(&scenario, frames))?;
    Ok((scenario, outcome))
}

fn run_seeds(seeds: impl Iterator<Item = u64>) -> Sum {
    let mut sum = Sum::default();
    run_all(seeds, |seed| {
        let (scenario, outcome) = run_seed(seed)?;
        sum.add(&scenario, &outcome);
        Ok(())
    });
    sum.print();
    sum
}

#[test]
fn every_result_is_right_and_every_collective_ends() {
    if let Some(seed) = number("CASTNET_SEED") {
        run_seeds(seed..=seed);
        return;
    }
    println!("seeds 0 to {RUNS}");
    let sum = run_seeds(0..RUNS);
    // Success means little unless the interesting states were reached.
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
        ("augmented", sum.by_mode[CollectiveMode::Augmented as usize]),
        ("terminated", sum.by_mode[CollectiveMode::Terminated as usize]),
        ("mixed", sum.mixed),
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
fn seeds_that_failed_in_the_past_pass() {
    for (seed, story) in STORIES {
        let scenario = Scenario::random(seed);
        let is_old = scenario.groups.len() == 1 && scenario.groups[0].request.members.len() <= 8;
        assert!(
            is_old && !scenario.is_meshed(),
            "the seed gives another scenario now"
        );
        if let Err(wrong) = run_seed(seed) {
            panic!("{wrong}\nit failed before: {story}");
        }
    }
}

#[test]
fn soak() {
    if let Some(seeds) = soak_seeds() {
        run_seeds(seeds);
    }
}
