//! Each figure at a small extent.

use castnet_group::TreeShape;
use castnet_wire::Nanos;

use super::casts::{Cast, Level, Scheme, by_packets, optimal};
use super::latency::{self, multicast};
use super::machines::{Costs, PAPER};
use super::skew::{self, delays};
use super::{Extent, Figure};
use clap::ValueEnum;

fn costs() -> Costs {
    Costs::from_toml(PAPER).expect("the paper's costs")
}

fn extent() -> Extent {
    Extent {
        quick: true,
        seed: 1,
        calls: 20,
        costs: costs(),
    }
}

#[test]
fn each_figure_gives_the_same_for_the_same_seed_and_a_reason_for_each_difference() {
    for figure in Figure::value_variants() {
        let [first, again] = [(); 2].map(|()| figure.run(extent()).expect("it runs"));
        assert_eq!(
            format!("{:?}", first.table),
            format!("{:?}", again.table),
            "{figure:?}"
        );
        for headline in &first.headlines {
            assert!(
                headline.is_met() || headline.reason.is_some(),
                "{figure:?}: {headline:?}"
            );
        }
    }
}

/// A NIC takes up one request instead of one for each destination; each further copy of a long message waits for the header.
#[test]
fn a_multisend_saves_requests_and_nothing_else() {
    let time = |scheme, nodes, bytes| {
        let cast = Cast {
            scheme,
            level: Level::Gm,
            nodes,
            bytes,
        };
        cast.acknowledged(&costs()).expect("it runs").0
    };
    let star = Scheme::Nic(TreeShape::Star);
    let factor = |nodes, bytes| time(Scheme::Unicasts, nodes, bytes) / time(star, nodes, bytes);
    assert!(factor(4, 1) > 1.5);
    assert!(factor(9, 1) > factor(5, 1) && factor(5, 1) > factor(4, 1));
    assert!(factor(5, 1) > factor(5, 512) && factor(5, 512) > factor(5, 4096));
    assert!((0.9..1.0).contains(&factor(5, 16 << 10)));
    // With one destination there is nothing to save.
    assert!((time(Scheme::Unicasts, 2, 1) / time(star, 2, 1) - 1.0).abs() < 0.1);
    // Each unicast takes the NIC of the source a request, as the wire is faster.
    let more = (time(Scheme::Unicasts, 9, 1) - time(Scheme::Unicasts, 5, 1)) / 4.0;
    assert!((more - costs().nic.message.0 as f64).abs() < 1.0, "{more}");
}

#[test]
fn nics_win_more_the_more_nodes_there_are() {
    for level in [Level::Gm, Level::Mpi] {
        for bytes in [1, 512, 8 << 10] {
            let point = |nodes| multicast(&costs(), level, nodes, bytes).expect("it runs");
            let [few, more, most] = [4, 8, 16].map(|nodes| point(nodes).factor());
            assert!(
                few > 1.0 && most > few && most > more * 0.95,
                "{level:?} {bytes}: {few} {more} {most}"
            );
        }
    }
}

/// Small messages go out soonest from the source. A relay passes on the first packet of a long one before it has the last.
#[test]
fn the_optimal_tree_follows_from_the_costs() {
    let latency = |shape: Result<TreeShape, _>| match shape {
        Ok(TreeShape::Postal { latency, packets }) => (latency, packets),
        other => panic!("{other:?}"),
    };
    let (short, _) = latency(optimal(&costs(), 1));
    let (long, one) = latency(optimal(&costs(), 16 << 10));
    assert!(short > 500 && long < 200 && one == 1, "{short} {long}");
    assert_eq!(latency(by_packets(&costs(), 1)), (short, 1));
    let (packet, packets) = latency(by_packets(&costs(), 16 << 10));
    assert!(packet > long && packets == 4, "{packet}");
}

#[test]
fn nics_keep_late_processes_from_delaying_others() {
    let points = skew::points(&extent(), &[4, 16], &[4]).expect("it runs");
    let [few, few_late, many, many_late] = &points[..] else {
        panic!("{points:?}");
    };
    for (at_once, late) in [(few, few_late), (many, many_late)] {
        assert!(
            late.nic < at_once.nic && late.host > at_once.host,
            "{at_once:?} {late:?}"
        );
    }
    assert!(many_late.factor() > 2.0 * many.factor());
    assert!(many_late.factor() > few_late.factor());
}

/// 7.3: processes are late by up to half of three times the average skew, and half of them are not late.
#[test]
fn processes_are_late_as_the_paper_draws_it() {
    let all = delays(400, 16, 500, 7);
    assert_eq!(all, delays(400, 16, 500, 7));
    assert_ne!(all, delays(400, 16, 500, 8));
    let others: Vec<Nanos> = all.iter().flat_map(|delays| delays[1..].to_vec()).collect();
    assert!(all.iter().all(|delays| delays[0] == Nanos::ZERO));
    let late = others.iter().filter(|delay| **delay > Nanos::ZERO).count() as f64;
    assert!((late / others.len() as f64 - 0.5).abs() < 0.02, "{late}");
    let most = others.iter().max().copied();
    assert!(
        most <= Some(Nanos::from_micros(600)) && most > Some(Nanos::from_micros(590)),
        "{most:?}"
    );
}

#[test]
fn costs_of_other_machines_are_read_and_checked() {
    let faster = PAPER.replace("request_ns = 8800", "request_ns = 0");
    let faster = Costs::from_toml(&faster).expect("costs");
    let factor = |costs| {
        let report = latency::fig4(Extent { costs, ..extent() }).expect("it runs");
        report.headlines[0].castnet.0
    };
    // Without the cost of requests, unicasts are as good.
    assert!(factor(faster) < 1.1 && factor(costs()) > 1.9);
    for (line, wrong) in [
        ("send_ns = 800", "send_ns = -1"),
        ("rate_mbps = 2000", "rate_mbps = 0"),
        ("copy_ns = 1100", ""),
    ] {
        let faults = Costs::from_toml(&PAPER.replace(line, wrong)).expect_err(line);
        assert_eq!(faults.to_string().lines().count(), 1, "{faults}");
    }
}
