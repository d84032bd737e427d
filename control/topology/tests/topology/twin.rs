//! Distances against a slow search by names, in any fabric with any links and switches down.

use std::collections::{BTreeMap, BTreeSet};

use castnet_topology::{Cut, Down, End, LinkId, Topology, Usable, links_from};
use proptest::prelude::*;

/// Up to nine switches, and a host at each of the first four.
fn fabric() -> impl Strategy<Value = Topology> {
    let links = prop::collection::vec((0..9_usize, 0..9_usize, any::<u8>()), 0..30);
    (5..10_usize, links, prop::collection::vec(0..9_usize, 0..3)).prop_map(|(switches, links, down)| {
        let mut t = Topology::new();
        // Numbers of nodes follow from names: not in the order of creation.
        let name = |n: usize| format!("s{}", n * 7 % 10);
        for n in 0..switches {
            let ports = (0..64).map(|port| (port, [2, 0, 0, 0, n as u8, port]));
            t.add_switch(&name(n), ports).unwrap();
        }
        for n in 0..4 {
            let host = format!("h{n}");
            t.add_host(&host, None, None).unwrap();
            t.connect(End::port(name(n), 63), End::host(host), 9000).unwrap();
        }
        for (port, (a, b, state)) in (0..).zip(links) {
            if a < switches && b < switches && a != b {
                let mtu = if state % 3 == 0 { 1500 } else { 9000 };
                let link = t
                    .connect(End::port(name(a), port), End::port(name(b), port), mtu)
                    .unwrap();
                t.set_link_up(link, state % 5 != 0);
            }
        }
        for n in down {
            t.set_switch_up(&name(n), false);
        }
        t
    })
}

fn is_up(t: &Topology, name: &str) -> bool {
    t.switch(name).is_none_or(|switch| switch.up)
}

/// Links to each node that can be reached. Hosts do not forward, and what is not `usable` carries nothing.
fn search(t: &Topology, from: &str, usable: impl Fn(LinkId, &str) -> bool) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    let mut layer = BTreeSet::from([from.to_owned()]);
    for distance in 0.. {
        layer.retain(|name| !found.contains_key(name));
        if layer.is_empty() || !is_up(t, from) {
            break;
        }
        found.extend(layer.iter().map(|name| (name.clone(), distance)));
        let forwards = |name: &&String| *name == from || t.switch(name).is_some();
        let next = layer.iter().filter(forwards).flat_map(|name| t.neighbours(name));
        let next = next.filter(|n| usable(n.link, n.far.node()));
        layer = next.map(|n| n.far.node().to_owned()).collect();
    }
    found
}

fn nodes(t: &Topology) -> Vec<String> {
    let switches = t.switches().map(|switch| switch.name.clone());
    switches.chain(t.hosts().map(|host| host.name.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn distances_and_next_hops_are_those_of_a_search(t in fabric()) {
        let usable = |link, far: &str| t.link(link).unwrap().up && is_up(&t, far);
        for to in nodes(&t) {
            let (slow, fast) = (search(&t, &to, usable), t.distances(&to));
            for from in nodes(&t).iter().filter(|from| is_up(&t, from)) {
                let distance = slow.get(from).copied();
                prop_assert_eq!(t.distance(from, &fast), distance, "{} to {}", from, to);
                prop_assert_eq!(t.connected(from, &to), distance.is_some());
                let closer = |far: &str| distance.is_some_and(|d| d > 0 && slow.get(far) == Some(&(d - 1)));
                let mut expected = t.neighbours(from);
                expected.retain(|n| usable(n.link, n.far.node()) && closer(n.far.node()));
                prop_assert_eq!(t.next_hops(from, &fast), expected);
            }
        }
    }

    #[test]
    fn usable_distances_leave_out_small_links_and_what_is_excluded(t in fabric(), mtu in prop::sample::select(vec![576_u32, 1500, 1501, 9000, 9001]), out in prop::option::of(0..9_usize)) {
        let switches: Vec<String> = t.switches().map(|switch| switch.name.clone()).collect();
        let mut view = Usable::new(&t, mtu);
        let without = out.and_then(|out| switches.get(out));
        view.without.extend(without.and_then(|name| t.id(name)));
        let usable = |link, far: &str| {
            let link = t.link(link).unwrap();
            link.up && link.mtu >= mtu && is_up(&t, far) && Some(&far.to_owned()) != without
        };
        let to: Vec<&String> = switches.iter().filter(|name| is_up(&t, name) && Some(*name) != without).collect();
        let ids: Vec<_> = to.iter().map(|name| t.id(name).unwrap()).collect();
        for ((name, id), row) in to.iter().zip(&ids).zip(view.distances(&ids)) {
            prop_assert!(view.has_switch(*id));
            let slow = search(&t, name, usable);
            for from in switches.iter().filter(|from| is_up(&t, from) && Some(*from) != without) {
                let fast = links_from(t.id(from).unwrap(), &row);
                prop_assert_eq!(fast, slow.get(from).copied(), "{} to {}", from, name);
            }
            let ends = t.neighbours(name).into_iter().filter(|n| usable(n.link, n.far.node()));
            let ends: Vec<End> = ends.map(|n| n.near).collect();
            prop_assert_eq!(view.hops(*id).map(|hop| t.end(hop.near)).collect::<Vec<_>>(), ends.clone());
            for hop in t.hops(*id) {
                prop_assert_eq!(view.hop(hop.near).is_some(), ends.contains(&t.end(hop.near)));
            }
        }
        for name in &switches {
            prop_assert_eq!(view.has_switch(t.id(name).unwrap()), is_up(&t, name) && Some(name) != without);
        }
    }

    /// What a cut names leads to a connection if it is repaired, and no part of it does alone.
    #[test]
    fn repairing_a_cut_connects(t in fabric(), from in 0..4_usize, to in 0..4_usize) {
        let (from, to) = (format!("h{from}"), format!("h{to}"));
        let repair = |t: &mut Topology, what: &Down| match what {
            Down::Switch(name) => assert!(t.set_switch_up(name, true)),
            Down::Link { a, .. } => {
                let link = t.link_at(a).unwrap();
                assert!(t.set_link_up(link, true));
            }
        };
        match t.cut(&from, &to) {
            None => prop_assert!(t.connected(&from, &to)),
            Some(Cut::NeverLinked) => {
                let linked = search(&t, &from, |_, _| true);
                prop_assert!(!linked.contains_key(&to));
            }
            Some(Cut::Down(down)) => {
                prop_assert!(!down.is_empty() && !t.connected(&from, &to));
                for left in 0..=down.len() {
                    let mut repaired = t.clone();
                    for (i, what) in down.iter().enumerate() {
                        if i != left {
                            repair(&mut repaired, what);
                        }
                    }
                    prop_assert_eq!(repaired.connected(&from, &to), left == down.len(), "{:?}", down);
                }
            }
        }
    }
}
