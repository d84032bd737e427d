//! Shufflecast: what its paper says of one fabric, and what holds in all.

use std::collections::BTreeSet;

use castnet_planner::shufflecast::{FAN_OUT_MAX, Relaying, Shufflecast, ShufflecastError, Tor, layout};
use castnet_rules::Ipv4Net;
use castnet_topology::{End, Splitter, Topology};
use proptest::prelude::*;

fn fabric(p: usize, k: usize) -> Shufflecast {
    Shufflecast::new(p, k).expect("a Shufflecast")
}

/// All up to 4,4, the largest of them with 1,024 ToRs.
fn up_to_4_4() -> impl Iterator<Item = Shufflecast> {
    (2..=4).flat_map(|p| (2..=4).map(move |k| fabric(p, k)))
}

fn any_fabric() -> impl Strategy<Value = Shufflecast> {
    let sizes = (2..=9_usize, 2..=8_usize);
    let allowed = sizes.prop_filter("at most 2,000 ToRs", |(p, k)| k * p.pow(*k as u32) <= 2_000);
    allowed.prop_map(|(p, k)| fabric(p, k))
}

/// A fabric and two of its ToRs.
fn any_tors() -> impl Strategy<Value = (Shufflecast, Tor, Tor)> {
    any_fabric().prop_flat_map(|fabric| {
        let tor = (0..fabric.size()).prop_map(move |number| fabric.tor(number).expect("a ToR"));
        (Just(fabric), tor.clone(), tor)
    })
}

fn numbers(tors: impl IntoIterator<Item = Tor>) -> Vec<usize> {
    tors.into_iter().map(Tor::number).collect()
}

/// The slow twin of [`Relaying::reach`]: each copy is sent on, also a second one. By ToR, the hops of its copies.
fn flood(fabric: Shufflecast, rules: &Relaying, source: Tor, failed: Option<Tor>) -> Vec<Vec<usize>> {
    let mut arrived = vec![Vec::new(); fabric.size()];
    let mut copies = vec![(source, 0)];
    let mut handled = 0;
    while let Some((at, hops)) = copies.pop() {
        handled += 1;
        assert!(handled <= 2 * fabric.size(), "copies circulate");
        let is_back = at == source && hops > 0;
        if is_back || Some(at) == failed || !rules.is_relay(at, source) {
            continue;
        }
        for to in fabric.splitter(at) {
            arrived[to.number()].push(hops + 1);
            copies.push((to, hops + 1));
        }
    }
    arrived
}

/// ToRs that a failed relay cuts off from a source, by its position on the tree of the source (3.3.1).
fn cut_off(fabric: Shufflecast, source: Tor, failed: Tor) -> usize {
    let (p, k) = (fabric.p(), fabric.k());
    let route = fabric.route(source, failed);
    // The spine: the ToRs that are reached with digits of the source only.
    let mut spine = vec![source];
    for i in 1..k {
        let digit = fabric.digit(source, k - i);
        let next = fabric.splitter(spine[i - 1]).nth(digit);
        spine.push(next.expect("a digit"));
    }
    if let Some(i) = spine.iter().position(|tor| *tor == failed) {
        return (k - i) * p.pow(k as u32) - 1;
    }
    let on_spine = route.iter().take_while(|tor| spine.contains(tor)).count();
    let depth = route.len() - 1 - on_spine;
    (1..k - depth).map(|i| p.pow(i as u32)).sum()
}

#[test]
fn ids_and_splitters_are_those_of_figure_2() {
    let fabric = fabric(2, 2);
    let tor = |number| fabric.tor(number).expect("a ToR");
    assert_eq!(
        (fabric.size(), fabric.column(tor(6)), fabric.row(tor(6))),
        (8, 1, 0b10)
    );
    assert_eq!((fabric.digit(tor(6), 1), fabric.digit(tor(6), 0)), (1, 0));
    let partition = |id| numbers(fabric.tors().filter(|tor| fabric.partition(*tor) == id));
    assert_eq!(partition(0), [0, 1, 4, 5]);
    let splitters: Vec<_> = fabric.tors().map(|tor| numbers(fabric.splitter(tor))).collect();
    assert_eq!(splitters[..4], [[4, 5], [6, 7], [4, 5], [6, 7]]);
    assert_eq!(splitters[4..], [[0, 1], [2, 3], [0, 1], [2, 3]]);
}

#[test]
fn routes_and_relays_are_those_of_figure_3() {
    let fabric = fabric(2, 2);
    let tor = |number| fabric.tor(number).expect("a ToR");
    let routes = |from: usize| -> Vec<Vec<usize>> {
        let others = (0..8).filter(|to| *to != from);
        others
            .map(|to| numbers(fabric.route(tor(from), tor(to))))
            .collect()
    };
    let from_0: [&[usize]; 7] = [
        &[0, 4, 1],
        &[0, 5, 2],
        &[0, 5, 3],
        &[0, 4],
        &[0, 5],
        &[0, 4, 1, 6],
        &[0, 4, 1, 7],
    ];
    let from_3: [&[usize]; 7] = [
        &[3, 6, 0],
        &[3, 6, 1],
        &[3, 7, 2],
        &[3, 7, 2, 4],
        &[3, 7, 2, 5],
        &[3, 6],
        &[3, 7],
    ];
    assert_eq!(routes(0), from_0);
    assert_eq!(routes(3), from_3);
    let relays = |source| {
        numbers(
            fabric
                .tors()
                .filter(|tor| fabric.is_relay(*tor, tor_of(fabric, source))),
        )
    };
    assert_eq!(relays(0), [0, 1, 4, 5]);
    assert_eq!(relays(3), [2, 3, 6, 7]);
}

fn tor_of(fabric: Shufflecast, number: usize) -> Tor {
    fabric.tor(number).expect("a ToR")
}

#[test]
fn a_failed_relay_cuts_off_what_figure_4_shows() {
    let fabric = fabric(2, 3);
    let rules = Relaying::of(fabric);
    let failed = tor_of(fabric, 8);
    let lost = |source| 23 - rules.reach(source, Some(failed)).reached();
    let mut all: Vec<_> = fabric.tors().map(lost).collect();
    assert_eq!((all[16], all[0], all[8]), (7, 15, 23));
    all.sort_unstable();
    let sources = [(0, 12), (2, 6), (6, 3), (7, 1), (15, 1), (23, 1)];
    let paper: Vec<usize> = sources.iter().flat_map(|(lost, n)| vec![*lost; *n]).collect();
    assert_eq!(all, paper);
}

#[test]
fn the_recovery_changes_the_relays_of_figure_5() {
    let fabric = fabric(2, 3);
    let update = fabric.recovery(tor_of(fabric, 8));
    let rules = |part: &std::collections::BTreeMap<Tor, BTreeSet<Tor>>| -> Vec<(usize, Vec<usize>)> {
        part.iter()
            .map(|(relay, sources)| (relay.number(), numbers(sources.clone())))
            .collect()
    };
    let of_8 = numbers(Relaying::of(fabric).sources(tor_of(fabric, 8)));
    assert_eq!(rules(&update.deactivated), [(2, vec![0, 16]), (8, of_8.clone())]);
    assert_eq!(rules(&update.activated), [(6, vec![0, 16]), (12, of_8)]);
}

#[test]
fn each_tor_has_as_many_rules_as_3_2_1_says() {
    for fabric in up_to_4_4() {
        let rules = fabric.k() * fabric.p().pow(fabric.k() as u32 - 1);
        let relaying = Relaying::of(fabric);
        for tor in fabric.tors().step_by(7) {
            assert_eq!(relaying.sources(tor).count(), rules);
            assert_eq!(relaying.relays(tor).count(), rules);
        }
    }
    let largest = fabric(4, 4);
    assert_eq!(Relaying::of(largest).sources(tor_of(largest, 0)).count(), 256);
}

/// All failures; of more than 200 ToRs with a sixteenth of the sources that relay there, and those whose major spine fails.
#[test]
fn each_single_failure_is_recovered() {
    for fabric in up_to_4_4() {
        let (n, k) = (fabric.size(), fabric.k());
        let step = if n > 200 { 16 } else { 1 };
        for failed in fabric.tors() {
            let update = fabric.recovery(failed);
            assert_eq!(update.rules(), 2 * (n / fabric.p() + k - 1));
            assert_eq!((update.deactivated.len(), update.activated.len()), (2, 2));
            let healthy = Relaying::of(fabric);
            let mut rules = healthy.clone();
            rules.apply(&update);
            assert_eq!(rules.sources(failed).count(), 0);
            let precedent = update.deactivated.iter().find(|(relay, _)| **relay != failed);
            let on_spine = precedent.map(|(_, sources)| sources.iter().copied());
            let sampled = healthy
                .sources(failed)
                .step_by(step)
                .filter(|source| *source != failed);
            for source in on_spine.into_iter().flatten().chain(sampled) {
                let reach = rules.reach(source, Some(failed));
                assert_eq!(reach.reached(), n - 1, "{failed} fails for {source}");
                assert!(reach.hops_max() < 3 * k);
                assert!(fabric.tors().all(|tor| reach.copies(tor) == 1));
            }
        }
    }
}

#[test]
fn sizes_that_no_shufflecast_has_are_refused() {
    let text = |p, k| Shufflecast::new(p, k).expect_err("refused").to_string();
    assert_eq!(text(1, 3), "p: 1 is not in 2 to 64");
    assert_eq!(text(FAN_OUT_MAX + 1, 2), "p: 65 is not in 2 to 64");
    assert_eq!(text(4, 1), "k: 1 is not in 2 to 16");
    assert_eq!(
        text(4, usize::MAX),
        format!("k: {} is not in 2 to 16", usize::MAX)
    );
    assert_eq!(
        text(64, 16),
        "a 64,16-Shufflecast has more than 65536 ToRs: give a smaller p or k"
    );
    assert_eq!(
        text(2, 13),
        "a 2,13-Shufflecast has more than 65536 ToRs: give a smaller p or k"
    );
    assert_eq!(fabric(2, 12).size(), 49_152);
    assert_eq!("4,3".parse(), Ok(fabric(4, 3)));
    assert_eq!(fabric(4, 3).to_string(), "4,3");
    for given in ["4", "4,3,2", "4;3", "-4,3", ""] {
        let given = given.to_owned();
        let parsed: Result<Shufflecast, _> = given.parse();
        assert_eq!(parsed, Err(ShufflecastError::NotASize { given }));
    }
    assert_eq!(
        fabric(2, 2).tor(8),
        Err(ShufflecastError::NoSuchTor { number: 8, tors: 8 })
    );
}

proptest! {
    /// Lemmas 3.1 and 3.2: the static rules are the relays of Algorithm 1's routes to all others.
    #[test]
    fn routes_end_in_time_and_their_relays_are_the_static_rules((fabric, source, _) in any_tors()) {
        let reach = Relaying::of(fabric).reach(source, None);
        let mut relays: BTreeSet<Tor> = BTreeSet::new();
        for dest in fabric.tors().filter(|tor| *tor != source) {
            let route = fabric.route(source, dest);
            prop_assert_eq!(route.last(), Some(&dest));
            prop_assert_eq!(Some(route.len() - 1), reach.hops(dest));
            for link in route.windows(2) {
                prop_assert!(fabric.splitter(link[0]).any(|tor| tor == link[1]));
            }
            relays.extend(&route[..route.len() - 1]);
        }
        let ruled = fabric.tors().filter(|tor| fabric.is_relay(*tor, source));
        prop_assert!(relays.into_iter().eq(ruled));
    }

    /// Each ToR receives one copy, in at most 2k - 1 hops: p^h ToRs in h < k hops, then the rest of each column.
    #[test]
    fn a_multicast_reaches_each_tor_once((fabric, source, _) in any_tors()) {
        let (p, k) = (fabric.p(), fabric.k());
        let rules = Relaying::of(fabric);
        let reach = rules.reach(source, None);
        prop_assert!(fabric.tors().all(|tor| reach.copies(tor) == 1));
        let first = (0..k).map(|hop| p.pow(hop as u32));
        let second = (0..k).map(|hop| p.pow(k as u32) - p.pow(hop as u32));
        prop_assert_eq!(reach.by_hops(), first.chain(second).collect::<Vec<_>>());
        prop_assert_eq!(reach.hops_max(), 2 * k - 1);
    }

    #[test]
    fn a_failure_cuts_off_what_3_3_1_counts_and_no_more((fabric, source, failed) in any_tors()) {
        let rules = Relaying::of(fabric);
        let reach = rules.reach(source, Some(failed));
        let lost = fabric.size() - 1 - reach.reached();
        let expected = match fabric.is_relay(failed, source) {
            true => cut_off(fabric, source, failed),
            false => 0,
        };
        prop_assert_eq!(lost, expected);
    }

    #[test]
    fn reach_is_that_of_copies_sent_on_one_by_one((fabric, source, failed) in any_tors(), recovers: bool) {
        let mut rules = Relaying::of(fabric);
        if recovers {
            rules.apply(&fabric.recovery(failed));
        }
        let reach = rules.reach(source, Some(failed));
        let slow = flood(fabric, &rules, source, Some(failed));
        let relays: BTreeSet<Tor> = rules.relays(source).collect();
        for tor in fabric.tors() {
            prop_assert_eq!(relays.contains(&tor), rules.is_relay(tor, source));
            prop_assert_eq!(slow[tor.number()].len(), reach.copies(tor));
            if tor != source {
                prop_assert_eq!(slow[tor.number()].iter().copied().min(), reach.hops(tor));
            }
        }
    }

    /// The hops grow for those sources alone for which the failed relay was reached in fewer than k hops.
    #[test]
    fn hops_grow_after_a_recovery_only_in_the_first_cycle((fabric, source, failed) in any_tors()) {
        prop_assume!(source != failed);
        let k = fabric.k();
        let before = Relaying::of(fabric).reach(source, None);
        let mut rules = Relaying::of(fabric);
        rules.apply(&fabric.recovery(failed));
        let after = rules.reach(source, Some(failed));
        prop_assert_eq!(after.reached(), fabric.size() - 1);
        let grows = fabric.is_relay(failed, source) && before.hops(failed) < Some(k);
        prop_assert_eq!(after.hops_max() > 2 * k - 1, grows);
        prop_assert!(after.hops_max() < 3 * k);
    }

    /// Lemma 3.3: p ToRs of a column at line rate, two such groups at half of it, the column at 1 / p^(k-1).
    #[test]
    fn p_tors_of_a_column_multicast_at_line_rate((fabric, tor, other) in any_tors()) {
        let rules = Relaying::of(fabric);
        let group: Vec<Tor> = fabric.at_line_rate(tor).collect();
        prop_assert!(group.iter().all(|t| fabric.column(*t) == fabric.column(tor)));
        prop_assert_eq!(group.iter().collect::<BTreeSet<_>>().len(), fabric.p());
        prop_assert!(rules.loads(&group).iter().all(|load| *load == 1));
        let both: Vec<Tor> = group.iter().copied().chain(fabric.at_line_rate(other)).collect();
        prop_assert!(rules.loads(&both).iter().all(|load| *load == 2));
        let column = fabric.tors().filter(|t| fabric.column(*t) == fabric.column(tor));
        let share = fabric.p().pow(fabric.k() as u32 - 1);
        prop_assert!(rules.loads(&column.collect::<Vec<_>>()).iter().all(|load| *load == share));
    }

    /// 6.3: after a recovery p - 1 of them are left at line rate.
    #[test]
    fn one_fewer_multicasts_at_line_rate_after_a_recovery((fabric, tor, failed) in any_tors()) {
        let mut rules = Relaying::of(fabric);
        rules.apply(&fabric.recovery(failed));
        let group: Vec<Tor> = fabric.at_line_rate(tor).collect();
        prop_assert_eq!(rules.loads(&group).into_iter().max(), Some(2));
        let rest = group.iter().copied().filter(|source| !fabric.is_relay(failed, *source));
        let rest: Vec<Tor> = rest.collect();
        prop_assert_eq!(rest.len(), fabric.p() - 1);
        prop_assert_eq!(rules.loads(&rest).into_iter().max(), Some(1));
        prop_assert!(rules.rates(&rest).iter().all(|rate| (rate - 1.0).abs() < 1e-9));
    }
}

/// A fabric with the splitters of a Shufflecast: port 0 to `p - 1` of ToR `n` lead to its splitter, the others come from splitters.
fn splitters(fabric: Shufflecast) -> Topology {
    let mut t = Topology::new();
    let name = |tor: Tor| format!("tor{tor}");
    for tor in fabric.tors() {
        let n = tor.number() as u8;
        t.add_switch(
            &name(tor),
            (0..2 * fabric.p() as u8).map(|port| (port, [2, 0, 0, 0, n, port])),
        )
        .unwrap();
        t.set_mcst_prefix(&name(tor), Ipv4Net::new_assert([10, 1, n, 0].into(), 24))
            .unwrap();
    }
    for tor in fabric.tors() {
        let port = fabric.p() + fabric.partition(tor);
        let links = (0..)
            .zip(fabric.splitter(tor))
            .map(|(n, to)| (n, End::port(name(to), port as u8)));
        let from = name(tor);
        let links = links.collect();
        t.add_splitter(Splitter { from, links }).unwrap();
    }
    t
}

/// 3.2.1: what a ToR sends to its own address comes once to each other one, and back to it, where no route leads on.
#[test]
fn the_routes_of_a_layout_bring_one_copy_to_each_other_tor() {
    let block: Ipv4Net = "239.0.0.0/8".parse().unwrap();
    for fabric in [fabric(2, 2), fabric(3, 2), fabric(2, 3)] {
        let t = splitters(fabric);
        let layout = layout(&t, block).unwrap();
        let rules = fabric.k() * fabric.p().pow(fabric.k() as u32 - 1);
        assert!(layout.routes.values().all(|routes| routes.len() == rules));
        assert_eq!(layout.addresses.len(), fabric.size());
        for (address, route) in &layout.addresses {
            let source = route.source.clone().unwrap();
            let (mut got, mut open) = (Vec::new(), vec![source.clone()]);
            while let Some(tor) = open.pop() {
                let own = layout.routes[&tor]
                    .iter()
                    .filter(|route| route.prefix.contains(address));
                for hop in own.flat_map(|route| &route.next_hops) {
                    // By the Ethernet address of a port, the ToR of that port.
                    let to = format!("tor{}", hop.mac.0[4]);
                    got.push(to.clone());
                    open.extend((to != source).then_some(to));
                }
            }
            got.retain(|tor| *tor != source);
            got.sort();
            assert!(got.iter().eq(&route.switches), "{source} of {fabric}: {got:?}");
        }
    }
}

#[test]
fn splitters_that_form_no_shufflecast_are_refused() {
    let block: Ipv4Net = "239.0.0.0/8".parse().unwrap();
    let t = splitters(fabric(2, 2));
    let said = |t: &Topology, block: Ipv4Net| layout(t, block).unwrap_err().to_string();
    assert_eq!(
        said(&t, "239.0.0.0/30".parse().unwrap()),
        "distribution: 239.0.0.0/30 is too small: 8 ToRs have an address each"
    );
    let first = |from: &str, to: &str| Topology::from_toml(&t.to_toml().replacen(from, to, 1)).unwrap();
    let wrong = first("{ port = 0, to = \"tor4:2\" }", "{ port = 0, to = \"tor6:2\" }");
    assert_eq!(
        said(&wrong, block),
        "distribution: the splitter of \"tor0\" leads to {\"tor5\", \"tor6\"}; ToR 0 of a 2,2-Shufflecast has {\"tor4\", \"tor5\"}"
    );
    let fewer = first(
        "[[splitters]]\nfrom = \"tor7\"\nlinks = [{ port = 0, to = \"tor2:3\" }, { port = 1, to = \"tor3:3\" }]",
        "",
    );
    assert_eq!(
        said(&fewer, block),
        "distribution: 7 [[splitters]] with 2 links each are no Shufflecast, which has k * 2^k ToRs for a k from 2 on"
    );
}
