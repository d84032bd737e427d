use castnet_topology::Topology;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::fabric::Fabric;
use super::figures::{fig7, guard};
use super::network::{BYTE, Config, DELAY, Limit, MTU, Picos, Totals, nvlink, simulate};
use super::runs::{Kind, Measured, Placement, Run};
use super::schemes::{GPUS, Planner, Scheme, train};
use crate::sim::peel::Extent;

const EACH: [Scheme; 11] = [
    Scheme::Ring,
    Scheme::Tree,
    Scheme::TreeOfGpus,
    Scheme::Optimal,
    Scheme::Orca,
    Scheme::OrcaAtOnce,
    Scheme::OrcaToHosts,
    Scheme::Peel,
    Scheme::PeelCores,
    Scheme::PeelOne,
    Scheme::PeelOneCores,
];

const BYTES: u64 = 1 << 20;

/// Completion time and totals of one broadcast in an idle fat tree.
fn alone(scheme: Scheme, members: &[u32]) -> (Picos, Totals) {
    let topology = Topology::fat_tree(8).expect("a fabric");
    let fabric = Fabric::new(&topology, 4, 4).expect("a fabric");
    let mut planner = Planner::new(&topology, &fabric, scheme);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let run = simulate(&fabric, Config::PAPER, 1, &[1000], |_| {
        planner.plan(members, BYTES, &mut rng)
    });
    let (completions, totals) = run.expect("it completes");
    (completions[0].time, totals)
}

fn run(scheme: Scheme) -> Run {
    Run {
        kind: Kind::FatTree,
        scheme,
        placement: Placement::Packed,
        gpus: 128,
        bytes: BYTES,
        load: 0.4,
        broadcasts: 12,
        parts: 1,
        seed: 5,
        config: Config::PAPER,
    }
}

/// Time of a message over so many links without other traffic: each switch waits for the first packet.
fn over_links(bytes: u64, links: u64) -> Picos {
    bytes * BYTE + (links - 1) * MTU * BYTE + links * DELAY
}

#[test]
fn one_flow_alone_takes_as_long_as_can_be_computed() {
    let inside = nvlink(train(BYTES)) * u64::from(GPUS - 1);
    for (to, links) in [(1, 2), (4, 4), (16, 6)] {
        for scheme in [
            Scheme::Optimal,
            Scheme::Tree,
            Scheme::Peel,
            Scheme::PeelOne,
            Scheme::OrcaAtOnce,
        ] {
            let (time, totals) = alone(scheme, &[0, to]);
            assert_eq!(time, over_links(BYTES, links) + inside, "{scheme:?} to {to}");
            assert_eq!(totals.marked_trains, 0, "{scheme:?} to {to}");
        }
    }
    // The GPUs of each host pass blocks on; the first block takes the way of all.
    let block = BYTES / 8;
    let (time, _) = alone(Scheme::Ring, &[0, 16]);
    assert_eq!(
        time,
        over_links(BYTES, 6) + 2 * u64::from(GPUS - 1) * nvlink(block)
    );
}

#[test]
fn each_rank_gets_each_byte_once() {
    for scheme in EACH {
        for members in [
            &[0, 1, 2, 3][..],
            &[5, 4, 6, 7, 8, 9, 10, 11, 12],
            &[2, 16, 17, 40, 41, 42, 43, 99],
        ] {
            let (_, totals) = alone(scheme, members);
            let hosts = members.len() as u64 - 1;
            match scheme {
                // Eight GPUs of a host receive over the fabric, if not from one at the same host.
                Scheme::TreeOfGpus => assert!(totals.delivered_bytes > hosts * BYTES, "{members:?}"),
                _ => assert_eq!(totals.delivered_bytes, hosts * BYTES, "{scheme:?} {members:?}"),
            }
            let may_cover_more = matches!(scheme, Scheme::PeelOne | Scheme::PeelOneCores | Scheme::PeelCores);
            assert!(may_cover_more || totals.over_bytes == 0, "{scheme:?} {members:?}");
        }
    }
}

#[test]
fn a_multicast_uses_each_link_of_its_tree_once() {
    // Two ToRs of the source's pod, and two of the next one.
    let members = [0, 1, 4, 16, 17, 20];
    let (_, totals) = alone(Scheme::Optimal, &members);
    let (up, to_pod, tors, receivers) = (3, 1, 3, 5);
    assert_eq!(totals.link_bytes, (up + to_pod + tors + receivers) * BYTES);
    // Two packets: two links more.
    let (_, peel) = alone(Scheme::Peel, &members);
    assert_eq!(peel.link_bytes, totals.link_bytes + 2 * BYTES);
    // One packet, which the core sends back to the source's pod, and so to the source's ToR.
    let (_, one) = alone(Scheme::PeelOne, &members);
    assert_eq!(one.link_bytes, totals.link_bytes + 2 * BYTES);
    assert_eq!(one.over_bytes, BYTES);
}

#[test]
fn no_scheme_is_faster_than_the_optimal_tree_in_an_idle_fabric() {
    let members: Vec<u32> = (4..36).collect();
    let time = |scheme| alone(scheme, &members).0;
    let optimal = time(Scheme::Optimal);
    assert!(optimal >= over_links(BYTES, 6));
    assert!(optimal <= over_links(BYTES, 6) + nvlink(BYTES));
    for scheme in EACH {
        assert!(time(scheme) >= optimal, "{scheme:?}");
    }
    let (peel, one, ring) = (time(Scheme::Peel), time(Scheme::PeelOne), time(Scheme::Ring));
    assert!(one <= peel && peel <= ring, "{one} {peel} {ring}");
    assert!(time(Scheme::Orca) > time(Scheme::OrcaAtOnce));
}

#[test]
fn with_load_all_broadcasts_complete_and_a_seed_gives_the_same_times_again() {
    let mut differ = false;
    for scheme in EACH {
        let one: Measured = run(scheme).measure().expect("it runs");
        assert_eq!(one.times.len(), 12);
        assert!(one.mean() <= one.tail());
        let again = run(scheme).measure().expect("it runs");
        assert_eq!(
            (&one.times, one.totals),
            (&again.times, again.totals),
            "{scheme:?}"
        );
        let other = Run {
            seed: 6,
            ..run(scheme)
        }
        .measure()
        .expect("it runs");
        differ |= other.times != one.times;
        assert!(one.times[0] * 1e12 >= over_links(BYTES, 2) as f64, "{scheme:?}");
    }
    assert!(differ);
}

#[test]
fn a_full_switch_pauses_its_neighbours_and_nothing_is_lost() {
    for scheme in [Scheme::Tree, Scheme::TreeOfGpus, Scheme::Optimal] {
        let small = Config {
            pause_bytes: 32 << 10,
            is_controlled: false,
            ..Config::PAPER
        };
        let with = |config| {
            Run {
                load: 2.0,
                config,
                ..run(scheme)
            }
            .measure()
            .expect("it runs")
        };
        let (paused, free) = (
            with(small),
            with(Config {
                is_controlled: false,
                ..Config::PAPER
            }),
        );
        assert!(paused.totals.pauses > free.totals.pauses, "{scheme:?}");
        assert_eq!(
            paused.totals.delivered_bytes, free.totals.delivered_bytes,
            "{scheme:?}"
        );
        assert_eq!(paused.totals.cuts, 0, "senders do not react");
    }
}

#[test]
fn a_guard_timer_makes_fewer_reactions() {
    let with = |multicast| {
        let config = Config {
            multicast,
            ..Config::PAPER
        };
        let run = Run {
            load: 1.0,
            bytes: 8 * BYTES,
            config,
            ..run(Scheme::Optimal)
        };
        run.measure().expect("it runs")
    };
    let (guard, receivers) = (with(Limit::Guard), with(Limit::Receivers));
    assert!(guard.totals.cuts < receivers.totals.cuts);
    assert!(guard.mean() < receivers.mean());
}

#[test]
fn each_difference_has_a_reason() {
    let extent = Extent {
        quick: true,
        seed: 3,
        draws: 4,
    };
    for report in [fig7(extent), guard(extent)] {
        let report = report.expect("it runs");
        assert!(report.events > 0 && !report.table.rows.is_empty());
        for headline in &report.headlines {
            assert!(headline.is_met() || headline.reason.is_some(), "{headline:?}");
        }
    }
}
