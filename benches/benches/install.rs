//! Time to install a group over the number of installed groups: on the worker's thread, in a running dataplane, and
//! from a rule file. The baseline is the first 1,000 groups.
//!
//! `cargo bench -p castnet-benches --bench install [-- GROUPS_MAX]`

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_agent::load_rules;
use castnet_engine::{Context, Owners, Tables};
use castnet_rules::{GroupRule, NextHop, RuleSet};
use castnet_wire::{Nanos, Qpn};
use castnet_worker::Dataplane;
use common::{NOW, engine_with, group, group_counts, star};

const COUNTS: [usize; 3] = [1_000, 10_000, 100_000];
const RECEIVERS: usize = 8;

fn main() {
    println!("Microseconds per group of {RECEIVERS} receivers; the worker's time, mean and longest.\n");
    println!(
        "{:>8} {:>12} {:>12} {:>24} {:>24}",
        "groups", "worker", "longest", "dataplane, one by one", "rule file, read and run"
    );
    let mut one = None;
    for count in group_counts(&COUNTS) {
        let rules: Vec<GroupRule> = (0..count).map(rule).collect();
        let (mean, longest) = worker(&rules);
        let row = [dataplane(&rules), file(&rules)];
        let one = *one.get_or_insert(row);
        let per = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        let first = |time: Duration| time.as_secs_f64() * 1e6 / COUNTS[0] as f64;
        let cell = |i: usize| format!("{:.1} ({:.2} x)", per(row[i]), per(row[i]) / first(one[i]));
        println!(
            "{count:>8} {:>12.2} {:>12.1} {:>24} {:>24}",
            mean * 1e6,
            longest * 1e6,
            cell(0),
            cell(1)
        );
    }
}

/// Each host has a queue pair for each group.
fn rule(n: usize) -> GroupRule {
    let mut rule = GroupRule {
        name: format!("g{n}"),
        mcst_id: group(n),
        ..star(RECEIVERS)
    };
    for endpoint in &mut rule.endpoints {
        if let NextHop::Host(host) = &mut endpoint.next_hop {
            host.qpn = Qpn::new(0x100 + n as u32);
        }
    }
    rule
}

/// Mean and longest time per group, in seconds: the engine adds the group and takes new tables.
fn worker(rules: &[GroupRule]) -> (f64, f64) {
    let mut engine = engine_with(RECEIVERS + 1, |config| {
        config.groups_max = rules.len();
        config.memory_bytes_max = 8 << 30;
    });
    let ports = engine.config().ports.clone();
    let (mut owners, mut total, mut longest) = (Owners::default(), 0.0, 0.0_f64);
    for (n, rule) in rules.iter().enumerate() {
        let group = Context::compile(rule, &ports).expect("a valid rule");
        owners.insert(rule.mcst_id, 0);
        let mut tables = Tables::default();
        (tables.generation, tables.owners) = (n as u64 + 1, owners.clone());
        let tables = Arc::new(tables);
        let start = Instant::now();
        engine.install(Nanos::ZERO, group).expect("room");
        engine.set_tables(NOW, tables);
        let time = start.elapsed().as_secs_f64();
        (total, longest) = (total + time, longest.max(time));
    }
    (total / rules.len() as f64, longest)
}

fn start(groups_max: usize) -> Dataplane {
    let (config, _) = common::dataplane("bench", RECEIVERS + 1, groups_max);
    Dataplane::start(config).expect("it starts")
}

fn dataplane(rules: &[GroupRule]) -> Duration {
    let dataplane = start(rules.len());
    let start = Instant::now();
    for rule in rules {
        dataplane.install(rule).expect("room");
    }
    start.elapsed()
}

fn file(rules: &[GroupRule]) -> Duration {
    let set = RuleSet {
        groups: rules.to_vec(),
        ..RuleSet::default()
    };
    let text = set.to_toml();
    let dataplane = start(rules.len());
    let start = Instant::now();
    let read = RuleSet::from_toml(&text).unwrap_or_else(|faults| panic!("{faults}"));
    load_rules(&dataplane, &read).expect("room");
    start.elapsed()
}
