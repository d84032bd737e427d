//! The multicast contract, end to end: random trees, groups, messages and faults, with the real engine and endpoint.
//!
//! The normal test runs the seeds from 0 on. `CASTNET_SEED=<n>` runs one seed and, if it fails, prints its last
//! frames. `CASTNET_SOAK_RUNS=<n>` runs so many other seeds, from `CASTNET_SOAK_FROM` on.

mod run;
mod scenario;

use crate::seeds::{number, run_all, run_scenario, soak_seeds};
use castnet_wire::CounterSet;
use run::{Outcome, run};
use scenario::{Flavour, Scenario};

const RUNS: u64 = 3_000;

/// Seeds that failed in the past, and why.
const STORIES: [(u64, &str); 2] = [
    (
        1_000_942,
        "A switch was stopped when the ACK of all receivers below it passed. The source then went back without end: a full queue \
         dropped the same packets each time, among them all with AckReq, and the switch below answered only those.",
    ),
    (
        1_014_920,
        "The same with one receiver: it had answered every duplicate, and the switch in front of it did not.",
    ),
];

/// Totals over all runs.
#[derive(Default)]
struct Sum {
    runs: u64,
    restarts: u64,
    slow: u64,
    deepest: usize,
    total: Outcome,
}

impl Sum {
    fn add(&mut self, flavour: Flavour, outcome: &Outcome) {
        self.runs += 1;
        self.restarts += u64::from(flavour == Flavour::Restart);
        self.slow += u64::from(flavour == Flavour::SlowReceiver);
        self.deepest = self.deepest.max(outcome.tiers);
        let (sum, new) = (&mut self.total, outcome);
        sum.events += new.events;
        sum.retransmits += new.retransmits;
        sum.missed += new.missed;
        sum.virtual_time += new.virtual_time;
        sum.links.add(&new.links);
        sum.sightings.add(&new.sightings);
    }

    fn print(&self) {
        let Self {
            runs,
            restarts,
            slow,
            deepest,
            total,
        } = self;
        println!(
            "{runs} runs ({slow} with slow receivers, {restarts} with a restart, up to {deepest} tiers), {} events, {} \
             of virtual time\nlinks: {:?}\nsource: {} data frames, {} of them again; {:?}\nmissed by stopped switches: {}",
            total.events,
            total.virtual_time,
            total.links,
            total.sightings.data,
            total.retransmits,
            total.sightings,
            total.missed
        );
    }
}

fn run_seed(seed: u64) -> Result<(Scenario, Outcome), String> {
    let scenario = Scenario::random(seed);
    let description = scenario.describe();
    let outcome = run_scenario("end_to_end", seed, &description, |frames| run(&scenario, frames))?;
    Ok((scenario, outcome))
}

fn run_seeds(seeds: impl Iterator<Item = u64>) -> Sum {
    let mut sum = Sum::default();
    run_all(seeds, |seed| {
        let (scenario, outcome) = run_seed(seed)?;
        sum.add(scenario.flavour, &outcome);
        Ok(())
    });
    sum.print();
    sum
}

#[test]
fn the_contract_holds_under_all_faults() {
    if let Some(seed) = number("CASTNET_SEED") {
        run_seeds(seed..=seed);
        return;
    }
    let sum = run_seeds(0..RUNS);
    // Success means little unless the interesting states were reached.
    let seen = &sum.total.sightings;
    assert!(
        sum.deepest >= 5 && sum.restarts > 100 && sum.slow > 100,
        "every flavour, many tiers"
    );
    assert!(seen.sequence_naks > 1_000 && seen.rnr_naks > 100 && sum.total.retransmits > 1_000);
    assert!(
        seen.needed_by_some > 1_000,
        "retransmissions that only some paths needed"
    );
    assert!(seen.acks < seen.acks_of_receivers, "ACKs are aggregated");
    assert_eq!(seen.fatal_naks, 0);
    let links = &sum.total.links;
    for (what, count) in [
        ("lost", links.lost),
        ("queue full", links.queue_full),
        ("duplicated", links.duplicated),
        ("reordered", links.reordered),
        ("corrupted", links.corrupted),
        ("missed", sum.total.missed),
    ] {
        assert!(count > 100, "{what}: {count}");
    }
}

#[test]
fn seeds_that_failed_in_the_past_pass() {
    for (seed, story) in STORIES {
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
