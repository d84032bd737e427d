//! Files from one host to others over lossy links, while switches and links are lost, receivers are put out and other groups use the same
//! links. Each scenario runs with several seeds; `CASTNET_SEED` runs one of them.

mod transfer;

use castnet_rules::{GroupRule, RepairRule};
use castnet_sim::Simulation;
use castnet_topology::{LinkId, Topology};
use castnet_wire::Nanos;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use transfer::{DEADLINE, Transfer, network, place};

/// Runs the seed of the environment, or so many.
fn with_seeds(usual: u64, run: impl Fn(u64)) {
    let seed = std::env::var("CASTNET_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    match seed {
        Some(seed) => run(seed),
        None => (0..usual).for_each(run),
    }
}

/// Two tiers: three hosts at each of two leaves.
fn two_tiers() -> Topology {
    Topology::leaf_spine(2, 1, 3).expect("a fabric")
}

const SIX: [&str; 6] = ["h0", "h1", "h2", "h3", "h4", "h5"];
const REPAIR: RepairRule = RepairRule {
    slots: 256,
    ack_timeout_us: 1_000,
};

/// Most packets are lost behind the first link, as there are more links. The source repeats little more than its own link has lost, not a window
/// for each loss.
#[test]
fn where_switches_repair_the_source_repeats_little_more_than_its_own_link_loses() {
    let run = |seed, repair| {
        let topology = two_tiers();
        let mut sim = network(&topology, seed, 0.01);
        let transfer = Transfer::start(&mut sim, &topology, (1, seed), &SIX, 100, repair);
        transfer.run_until(&mut sim, 100, seed);
        transfer.check(&sim, &[], seed);
        transfer.stats(&sim)
    };
    with_seeds(20, |seed| {
        let (with, without) = (run(seed, Some(REPAIR)), run(seed, None));
        let windows = 129 * (with.timeouts + 1);
        assert!(
            with.retransmits < with.requests_out / 20 + windows,
            "seed {seed}: {with:?}"
        );
        assert!(
            4 * with.retransmits < without.retransmits,
            "seed {seed}: {} with repair, {} without",
            with.retransmits,
            without.retransmits
        );
    });
}

/// How a switch of the tree is lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// One of its links.
    Link,
    /// It stops, and starts again without rules.
    Switch,
    /// It neither forwards nor answers, and comes back with the rules that it had.
    Hangs,
}

fn link(topology: &Topology, ends: [&str; 2]) -> LinkId {
    let mut links = topology.links();
    let found = links.find(|(_, link)| ends.contains(&link.a.node()) && ends.contains(&link.b.node()));
    found.expect("a link").0
}

/// Loses a spine, or its link to `leaf`; or brings it back.
fn set_up(sim: &mut Simulation, topology: &mut Topology, (spine, leaf): (&str, &str), how: Lost, up: bool) {
    let links = ["leaf0", "leaf1"].map(|leaf| link(topology, [spine, leaf]));
    match how {
        Lost::Link => {
            let link = link(topology, [spine, leaf]);
            sim.set_link_up(link, up);
            topology.set_link_up(link, up);
        }
        Lost::Switch if up => sim.start_switch(spine).expect("started"),
        Lost::Switch => sim.stop_switch(spine),
        Lost::Hangs => links.iter().for_each(|link| sim.set_link_up(*link, up)),
    }
    if !matches!(how, Lost::Link) {
        topology.set_switch_up(spine, up);
    }
}

/// The tree loses its spine, gets another one some time later, loses that one when the first is back, and is on the first one again. What is
/// back of the old tree disturbs nobody.
#[test]
fn a_group_whose_tree_loses_its_spine_goes_on_over_another_one_and_back() {
    with_seeds(60, |seed| {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut topology = Topology::leaf_spine(2, 2, 2).expect("a fabric");
        let loss = [0.0, 0.01][rng.random_range(0..2)];
        let mut sim = network(&topology, seed, loss);
        let repair = rng.random_bool(0.5).then_some(REPAIR);
        let members = ["h0", "h1", "h2", "h3"];
        let mut transfer = Transfer::start(&mut sim, &topology, (1, seed), &members, 60, repair);
        let mut used = spine_of(
            &place(&topology, &transfer.request)
                .rules
                .keys()
                .collect::<Vec<_>>(),
        );
        let mut before: Option<(&str, &str, Lost)> = None;
        for messages in [20, 40] {
            transfer.run_until(&mut sim, messages, seed);
            if let Some((spine, leaf, how)) = before {
                set_up(&mut sim, &mut topology, (spine, leaf), how, true);
            }
            let how = [Lost::Link, Lost::Switch, Lost::Hangs][rng.random_range(0..3)];
            let leaf = ["leaf0", "leaf1"][rng.random_range(0..2)];
            set_up(&mut sim, &mut topology, (used, leaf), how, false);
            before = Some((used, leaf, how));
            // So long it takes until somebody notices.
            let later = sim.now() + Nanos::from_micros(rng.random_range(0..20_000));
            sim.run_until(later, |_| false);
            assert!(!transfer.is_done(&sim), "seed {seed}: nothing was lost");
            let plan = transfer.placed_again(&topology);
            let other = spine_of(&plan.rules.keys().collect::<Vec<_>>());
            assert_ne!(used, other, "seed {seed}");
            sim.install_plan(&plan).expect("installed");
            used = other;
        }
        sim.run_until(DEADLINE, |sim| transfer.is_done(sim));
        assert!(transfer.is_done(&sim), "seed {seed}: {:?}", transfer.stats(&sim));
        transfer.check(&sim, &[], seed);
    });
}

fn spine_of(switches: &[&String]) -> &'static str {
    let uses = |spine: &&str| switches.iter().any(|switch| switch == spine);
    let mut both = ["spine0", "spine1"].into_iter();
    both.find(uses).expect("a spine")
}

/// One after the other, in any order. Each is back later with the rule but without the state of the group, and learns from the stream.
#[test]
fn every_switch_of_the_tree_restarts_in_mid_stream_and_nothing_is_missing() {
    with_seeds(60, |seed| {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let topology = two_tiers();
        let mut sim = network(&topology, seed, [0.0, 0.005][rng.random_range(0..2)]);
        let repair = rng.random_bool(0.5).then_some(REPAIR);
        let transfer = Transfer::start(&mut sim, &topology, (1, seed), &SIX, 80, repair);
        let plan = place(&topology, &transfer.request);
        let mut switches: Vec<(String, GroupRule)> = plan.rules.into_iter().collect();
        switches.shuffle(rng);
        for (messages, (switch, rule)) in [20, 40, 60].into_iter().zip(switches) {
            transfer.run_until(&mut sim, messages, seed);
            sim.stop_switch(&switch);
            let later = sim.now() + Nanos::from_micros(rng.random_range(0..10_000));
            sim.run_until(later, |_| false);
            sim.start_switch(&switch).expect("started");
            let rule = rule.with_multicast(|rule| rule.start_psn = None);
            sim.install(&switch, &rule).expect("installed");
        }
        sim.run_until(DEADLINE, |sim| transfer.is_done(sim));
        assert!(transfer.is_done(&sim), "seed {seed}: {:?}", transfer.stats(&sim));
        transfer.check(&sim, &[], seed);
    });
}

/// It answers nothing any more. The group gets rules without it, which carry the stream on, and all others have every byte.
#[test]
fn a_receiver_that_is_silent_holds_up_the_others_until_it_is_put_out() {
    with_seeds(60, |seed| {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let topology = two_tiers();
        let mut sim = network(&topology, seed, [0.0, 0.01][rng.random_range(0..2)]);
        let repair = rng.random_bool(0.5).then_some(REPAIR);
        let transfer = Transfer::start(&mut sim, &topology, (1, seed), &SIX, 60, repair);
        transfer.run_until(&mut sim, 20, seed);
        let dead = SIX[rng.random_range(1..6)];
        let (cut, _, _) = topology.attachment(dead).expect("a link");
        sim.set_link_up(cut, false);
        let later = sim.now() + Nanos::from_millis(50);
        sim.run_until(later, |_| false);
        // What it has acknowledged before was under way.
        let held_up = transfer.completed(&sim);
        let later = sim.now() + Nanos::from_millis(50);
        sim.run_until(later, |_| false);
        assert_eq!(transfer.completed(&sim), held_up, "seed {seed}: M1");
        let mut request = transfer.request.clone();
        request.members.retain(|member| member.host != dead);
        request.generation += 1;
        for (switch, rule) in place(&topology, &request).rules {
            let rule = rule.with_multicast(|rule| rule.carries_on = Some(1));
            sim.install(&switch, &rule).expect("installed");
        }
        sim.run_until(DEADLINE, |sim| transfer.is_done(sim));
        assert!(transfer.is_done(&sim), "seed {seed}: {:?}", transfer.stats(&sim));
        transfer.check(&sim, &[dead], seed);
    });
}

/// Two groups of one source, one of a receiver of both, and one against their stream.
#[test]
fn groups_that_share_hosts_and_links_do_not_touch_each_other() {
    with_seeds(40, |seed| {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let topology = two_tiers();
        let mut sim = network(&topology, seed, [0.0, 0.01][rng.random_range(0..2)]);
        let groups = [
            &["h0", "h1", "h3", "h4"][..],
            &["h0", "h3", "h5"],
            &["h3", "h2", "h0"],
            &["h4", "h5", "h1", "h0", "h3"],
        ];
        let all: Vec<Transfer> = (1..)
            .zip(groups)
            .map(|(number, members)| {
                let repair = rng.random_bool(0.5).then_some(REPAIR);
                Transfer::start(
                    &mut sim,
                    &topology,
                    (number, seed ^ u64::from(number)),
                    members,
                    30,
                    repair,
                )
            })
            .collect();
        sim.run_until(DEADLINE, |sim| all.iter().all(|transfer| transfer.is_done(sim)));
        for transfer in &all {
            assert!(transfer.is_done(&sim), "seed {seed}: {:?}", transfer.stats(&sim));
            transfer.check(&sim, &[], seed);
        }
    });
}
