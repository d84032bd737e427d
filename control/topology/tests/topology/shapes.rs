//! The builders' shapes, and what the queries say about them.

use castnet_topology::{Cut, Down, End, Topology, TopologyError};

fn counts(t: &Topology) -> (usize, usize, usize) {
    (t.switches().count(), t.hosts().count(), t.links().count())
}

#[test]
fn builders_have_the_sizes_that_their_formulas_say() {
    assert_eq!(counts(&Topology::star(4).unwrap()), (1, 4, 4));
    assert_eq!(
        counts(&Topology::tree(3, 3).unwrap()),
        (1 + 3 + 9, 27, 3 + 9 + 27)
    );
    assert_eq!(counts(&Topology::leaf_spine(4, 2, 3).unwrap()), (6, 12, 8 + 12));
    for k in [2, 4, 8] {
        let hosts = k * k * k / 4;
        assert_eq!(
            counts(&Topology::fat_tree(k).unwrap()),
            (5 * k * k / 4, hosts, 3 * hosts),
            "k = {k}"
        );
    }
}

#[test]
fn a_three_tier_fabric_has_as_many_links_upwards_as_hosts_in_each_tier() {
    let t = Topology::three_tier(4, 8, 32).unwrap();
    assert_eq!(counts(&t), (32 + 128 + 256, 1024, 3 * 1024));
    assert!(t.switches().all(|s| s.ports.len() <= 64));
    let lengths = ["h1", "h32", "h256"].map(|to| t.distance("h0", &t.distances(to)));
    assert_eq!(lengths, [Some(2), Some(4), Some(6)]);
}

#[test]
fn builders_refuse_what_no_switch_has_ports_for() {
    for bad in [
        Topology::star(0),
        Topology::star(65),
        Topology::tree(64, 2),
        Topology::tree(2, 9),
        Topology::leaf_spine(65, 1, 1),
        Topology::leaf_spine(2, 60, 5),
        Topology::fat_tree(3),
        Topology::fat_tree(66),
        Topology::three_tier(65, 8, 32),
        Topology::three_tier(4, 33, 32),
        Topology::three_tier(4, 8, 33),
        Topology::three_tier(0, 8, 32),
        Topology::tree(usize::MAX, 2),
        Topology::leaf_spine(1, 1, usize::MAX),
    ] {
        assert!(matches!(bad, Err(TopologyError::BadSize { .. })), "{bad:?}");
    }
    assert!(Topology::star(64).is_ok());
}

#[test]
fn addresses_are_unique_and_those_of_stations() {
    let t = Topology::fat_tree(8).unwrap();
    let mut macs: Vec<[u8; 6]> = t.hosts().filter_map(|h| h.mac).collect();
    macs.extend(t.switches().flat_map(|s| s.ports.values().copied()));
    let count = macs.len();
    assert!(
        macs.iter().all(|m| m[0] & 1 == 0 && m[0] & 2 != 0),
        "unicast, locally administered"
    );
    macs.sort_unstable();
    macs.dedup();
    assert_eq!(macs.len(), count);
    let mut ips: Vec<_> = t.hosts().filter_map(|h| h.ip).collect();
    let count = ips.len();
    ips.dedup();
    assert_eq!((ips.len(), count), (128, 128));
}

#[test]
fn equal_cost_next_hops_come_in_the_order_of_ports() {
    let t = Topology::leaf_spine(3, 4, 2).unwrap();
    let to = t.distances("h4");
    let ports: Vec<String> = t
        .next_hops("leaf0", &to)
        .iter()
        .map(|n| n.near.to_string())
        .collect();
    assert_eq!(ports, ["leaf0:2", "leaf0:3", "leaf0:4", "leaf0:5"]);
    assert_eq!(t.distance("h0", &to), Some(4));
    assert_eq!(
        t.next_hops("leaf2", &to)
            .iter()
            .map(|n| n.far.node())
            .collect::<Vec<_>>(),
        ["h4"]
    );
    assert!(t.next_hops("h4", &to).is_empty());
}

#[test]
fn what_is_down_carries_nothing_and_is_named() {
    let mut t = Topology::leaf_spine(2, 2, 1).unwrap();
    assert_eq!(t.cut("h0", "h1"), None);
    assert!(t.set_switch_up("spine0", false));
    assert!(t.connected("h0", "h1"), "the other spine is there");
    assert_eq!(t.next_hops("leaf0", &t.distances("h1")).len(), 1);
    let link = t.link_at(&End::port("leaf1", 2)).unwrap();
    assert!(t.set_link_up(link, false));
    assert!(!t.connected("h0", "h1"));
    let cut = t.cut("h0", "h1").unwrap();
    let Cut::Down(down) = &cut else { panic!("{cut:?}") };
    assert_eq!(down.len(), 1, "one repair is enough: {down:?}");
    assert_eq!(down[0].to_string(), "link leaf1:2 - spine1:1 is down");
    t.set_switch_up("spine0", true);
    assert!(t.connected("h0", "h1"));
    t.set_switch_up("leaf1", false);
    assert_eq!(
        t.cut("h0", "h1"),
        Some(Cut::Down(vec![Down::Switch("leaf1".into())]))
    );
}

#[test]
fn hosts_do_not_forward_and_strangers_are_never_linked() {
    let mut t = Topology::new();
    t.add_switch("a", [(0, [2; 6]), (1, [4; 6])]).unwrap();
    t.add_host("x", None, None).unwrap();
    t.add_host("y", None, None).unwrap();
    t.connect(End::port("a", 0), End::host("x"), 1500).unwrap();
    assert_eq!(t.cut("x", "y"), Some(Cut::NeverLinked));
    assert!(!t.connected("x", "nobody"));
    assert_eq!(
        t.attachment("x").map(|(_, s, p)| (s.to_string(), p)),
        Some(("a".into(), 0))
    );
    assert_eq!(t.attachment("y"), None);
}

#[test]
fn links_that_cannot_be_are_refused_with_the_facts() {
    let mut t = Topology::star(2).unwrap();
    t.add_switch("b", (0..3).map(|p| (p, [2, 0, 0, 0, 9, p])))
        .unwrap();
    t.add_host("x", None, None).unwrap();
    let mut refused = |a: End, b: End| t.connect(a, b, 1500).unwrap_err().to_string();
    assert_eq!(
        refused(End::port("b", 0), End::port("s0", 1)),
        "s0:1 is linked to h1 already"
    );
    assert_eq!(
        refused(End::port("b", 0), End::host("h1")),
        "h1 is linked to s0:1 already"
    );
    assert_eq!(
        refused(End::port("b", 7), End::host("x")),
        "switch \"b\" has no port 7"
    );
    assert_eq!(
        refused(End::port("b", 0), End::port("b", 1)),
        "a link from b:0 to its own switch"
    );
    assert_eq!(
        refused(End::host("b"), End::host("x")),
        "\"b\" is a switch: say which port, such as b:0"
    );
    assert_eq!(
        refused(End::port("x", 0), End::port("b", 0)),
        "\"x\" is a host: it has one interface and no port numbers"
    );
    assert!(refused(End::port("b", 0), End::host("z")).contains("\"z\" is neither"));
    assert!(matches!(
        t.connect(End::port("b", 0), End::host("x"), 100),
        Err(TopologyError::BadMtu { .. })
    ));
    assert_eq!(
        t.add_host("b", None, None),
        Err(TopologyError::DuplicateNode { name: "b".into() })
    );
    for bad in ["", "a b", "a:1", "\n"] {
        assert_eq!(
            t.add_host(bad, None, None),
            Err(TopologyError::BadName { name: bad.into() })
        );
    }
    assert!(matches!(
        t.add_switch("c", [(64, [2; 6])]),
        Err(TopologyError::PortBeyondLimit { port: 64, .. })
    ));
}

#[test]
fn parallel_links_are_two_next_hops() {
    let mut t = Topology::new();
    for name in ["a", "b"] {
        t.add_switch(name, (0..3).map(|p| (p, [2, 0, 0, 0, 0, p])))
            .unwrap();
    }
    t.add_host("x", None, None).unwrap();
    t.connect(End::port("b", 2), End::host("x"), 1500).unwrap();
    t.connect(End::port("a", 1), End::port("b", 0), 1500).unwrap();
    t.connect(End::port("a", 0), End::port("b", 1), 1500).unwrap();
    let hops = t.next_hops("a", &t.distances("x"));
    assert_eq!(
        hops.iter().map(|h| h.near.to_string()).collect::<Vec<_>>(),
        ["a:0", "a:1"]
    );
}
