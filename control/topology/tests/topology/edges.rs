//! Edges of what a fabric is made of, and what each change changes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_topology::{
    End, MulticastRoute, Splitter, SwitchKind, Topology, TopologyError, overlaps, pool_fault,
};

/// Castnet switches `a` to `d` of eight ports, with prefixes for `a` to `c`; a router `r`, a plain switch `p`, and a host `x`.
fn parts() -> Topology {
    let mut t = Topology::new();
    for (n, name) in (0..).zip(["a", "b", "c", "d", "r"]) {
        t.add_switch(name, (0..8).map(|port| (port, [2, 0, 0, 0, n, port])))
            .unwrap();
    }
    for (n, name) in (1..).zip(["a", "b", "c"]) {
        let prefix = format!("10.200.{n}.0/24").parse().unwrap();
        t.set_mcst_prefix(name, prefix).unwrap();
    }
    assert!(t.set_switch_kind("r", SwitchKind::Router));
    t.add_plain("p", 4).unwrap();
    t.add_host("x", Some([10, 0, 0, 1].into()), None).unwrap();
    t
}

#[test]
fn names_ports_and_mtus_have_their_bounds() {
    let long = |n: usize| Topology::new().add_host(&"n".repeat(n), None, None).is_ok();
    assert_eq!([0, 1, 64, 65].map(long), [false, true, true, false]);
    let umlauts = Topology::new().add_host(&"\u{e9}".repeat(64), None, None);
    assert_eq!(umlauts, Ok(()), "characters, not bytes");
    for (port, is_good) in [(0, true), (63, true), (64, false)] {
        assert_eq!(Topology::new().add_switch("s", [(port, [2; 6])]).is_ok(), is_good);
        let mut t = parts();
        assert_eq!(t.set_switch_ports("a", BTreeMap::from([(port, [2; 6])])), is_good);
    }
    for (mtu, is_good) in [(575, false), (576, true), (65_535, true), (65_536, false)] {
        let link = parts().connect(End::port("a", 0), End::port("b", 0), mtu);
        assert_eq!(link.is_ok(), is_good, "{mtu}");
    }
}

#[test]
fn sizes_of_builders_have_their_bounds() {
    let is_good = |t: Result<Topology, TopologyError>| t.is_ok();
    for (t, expected) in [
        (Topology::star(1), true),
        (Topology::tree(63, 2), true),
        (Topology::tree(1, 8), true),
        (Topology::tree(1, 0), false),
        (Topology::tree(1, 9), false),
        (Topology::tree(41, 3), false),
        (Topology::leaf_spine(64, 1, 1), true),
        (Topology::leaf_spine(1, 0, 64), true),
        (Topology::leaf_spine(1, 64, 0), true),
        (Topology::leaf_spine(1, 0, 0), false),
        (Topology::leaf_spine(0, 1, 1), false),
        (Topology::leaf_spine(1, 65, 0), false),
        (Topology::fat_tree(2), true),
        (Topology::fat_tree(0), false),
        (Topology::three_tier(1, 32, 1), true),
        (Topology::three_tier(1, 1, 32), true),
        (Topology::three_tier(64, 1, 1), true),
        (Topology::three_tier(1, 0, 1), false),
        (Topology::three_tier(1, 1, 0), false),
    ] {
        assert_eq!(is_good(t.clone()), expected, "{:?}", t.err());
    }
}

#[test]
fn names_and_addresses_of_a_builder_follow_from_the_position() {
    let t = Topology::three_tier(2, 2, 2).unwrap();
    let host = t.host("h5").unwrap();
    assert_eq!(
        (host.ip, host.mac),
        (Some([10, 0, 0, 6].into()), Some([2, 0, 10, 0, 0, 6]))
    );
    let far = |switch: &str, port| {
        let link = t.link(t.link_at(&End::port(switch, port)).unwrap()).unwrap();
        link.far(switch).to_string()
    };
    assert_eq!(far("agg1-1", 3), "core3:1");
    assert_eq!(far("edge1-0", 3), "agg1-1:0");
    assert_eq!(far("edge1-0", 1), "h5");
    // The third switch that was created, and its second port.
    assert_eq!(t.switch("core2").unwrap().ports[&1], [0x06, 0xCA, 0, 2, 0, 1]);
    let tree = Topology::tree(2, 2).unwrap();
    let up = tree.link_at(&End::port("t1-1", 2)).unwrap();
    assert_eq!(tree.link(up).unwrap().far("t1-1").to_string(), "t0-0:1");
    assert_eq!(
        tree.attachment("h3").map(|(_, switch, port)| (switch, port)),
        Some(("t1-1", 1))
    );
}

#[test]
fn a_fabric_knows_its_forwarders_by_kind() {
    let mut t = parts();
    let kinds = |t: &Topology, name: &str| (t.is_plain(name), t.is_router(name), t.is_forwarder(name));
    assert_eq!(kinds(&t, "p"), (true, false, true));
    assert_eq!(kinds(&t, "r"), (false, true, true));
    assert_eq!(kinds(&t, "a"), (false, false, false));
    assert_eq!(kinds(&t, "x"), (false, false, false));
    let mut forwards: Vec<bool> = Vec::new();
    for name in ["p", "r", "a", "x"] {
        forwards.push(t.forwards(t.id(name).unwrap()));
    }
    assert_eq!(forwards, [true, true, false, false]);
    assert_eq!(t.switch("p").unwrap().ports[&3], [0x06, 0xCA, 0, 5, 0, 3]);
    assert!(t.has_forwarders());
    assert!(t.set_switch_kind("r", SwitchKind::Plain) && t.has_forwarders());
    assert!(t.set_switch_kind("r", SwitchKind::Castnet) && t.has_forwarders());
    assert!(t.set_switch_kind("p", SwitchKind::Castnet) && !t.has_forwarders());
    assert!(!t.set_switch_kind("x", SwitchKind::Plain) && !t.set_switch_kind("nobody", SwitchKind::Plain));
    assert!(!t.has_forwarders());
    for kind in SwitchKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    assert_eq!("hub".parse::<SwitchKind>(), Err(()));
    // Only a router is programmable; anything may be said not to be.
    let mut t = parts();
    for (name, programmable, is_good) in [
        ("r", true, true),
        ("a", true, false),
        ("p", true, false),
        ("a", false, true),
        ("x", false, false),
    ] {
        assert_eq!(t.set_programmable(name, programmable).is_ok(), is_good, "{name}");
    }
    assert_eq!(
        t.programmable().map(|s| s.name.as_str()).collect::<Vec<_>>(),
        ["r"]
    );
    t.set_programmable("r", false).unwrap();
    assert_eq!(t.programmable().count(), 0);
}

#[test]
fn linked_ports_stay() {
    let mut t = parts();
    t.connect(End::port("a", 3), End::host("x"), 1500).unwrap();
    let ports = |all: &[u8]| all.iter().map(|port| (*port, [9; 6])).collect::<BTreeMap<_, _>>();
    assert!(!t.set_switch_ports("a", ports(&[0, 1])));
    assert!(!t.set_switch_ports("x", ports(&[3])));
    assert!(!t.set_switch_ports("nobody", ports(&[3])));
    assert!(t.set_switch_ports("a", ports(&[3, 9])));
    assert_eq!(t.switch("a").unwrap().ports, ports(&[3, 9]));
}

#[test]
fn changes_are_seen_and_a_copy_does_not_see_them() {
    let mut t = parts();
    let link = t.connect(End::port("a", 0), End::port("b", 0), 1500).unwrap();
    t.connect(End::port("b", 1), End::host("x"), 9000).unwrap();
    assert_eq!((t.mtu_min(), Topology::new().mtu_min()), (1500, u32::MAX));
    assert!(t.is_indexed());
    let copy = t.clone();
    assert!(copy.same_links(&t) && copy.same_paths(&t));
    assert!(t.set_link_mtu(link, 2000));
    assert_eq!((t.mtu_min(), copy.mtu_min()), (2000, 1500));
    assert!(t.same_links(&copy) && !t.same_paths(&copy));
    assert!(t.set_link_up(link, false));
    assert_eq!((t.connected("a", "x"), copy.connected("a", "x")), (false, true));
    assert!(t.set_link_up(link, true) && t.set_switch_up("b", false));
    assert!(!t.connected("a", "x"));
    assert!(!t.set_switch_up("x", true) && !t.set_switch_up("nobody", true));
    let unknown = castnet_topology::LinkId(2);
    assert!(!t.set_link_up(unknown, true) && !t.set_link_mtu(unknown, 1500));
    t.connect(End::port("a", 1), End::port("c", 0), 1500).unwrap();
    assert!(!t.same_links(&copy));
}

#[test]
fn hosts_are_found_by_their_newest_address() {
    let mut t = parts();
    let ip = |n| Ipv4Addr::new(10, 0, 0, n);
    let found = |t: &Topology, n| t.host_with(ip(n)).map(|host| host.name.clone());
    t.add_host("w", Some(ip(2)), None).unwrap();
    assert_eq!(
        (found(&t, 1), found(&t, 2), found(&t, 3)),
        (Some("x".into()), Some("w".into()), None)
    );
    assert!(t.set_host_addresses("x", Some(ip(3)), Some([2; 6])));
    assert_eq!((found(&t, 1), found(&t, 3)), (None, Some("x".into())));
    assert_eq!(t.host("x").unwrap().mac, Some([2; 6]));
    // Of two hosts with one address, the first by name. No host has the address of none.
    assert!(t.set_host_addresses("x", Some(ip(2)), None));
    assert_eq!(found(&t, 2), Some("w".into()));
    assert!(t.set_host_addresses("x", None, None));
    assert_eq!(t.host_with(Ipv4Addr::UNSPECIFIED), None);
    assert!(!t.set_host_addresses("a", None, None) && !t.set_host_addresses("nobody", None, None));
}

#[test]
fn ends_and_nodes_are_what_their_names_say() {
    let mut t = parts();
    let link = t.connect(End::port("a", 3), End::host("x"), 1500).unwrap();
    assert_eq!(t.link_at(&End::port("a", 3)), Some(link));
    assert_eq!(t.link_at(&End::host("x")), Some(link));
    for wrong in [
        End::port("a", 0),
        End::port("x", 0),
        End::host("a"),
        End::host("nobody"),
    ] {
        assert_eq!(t.link_at(&wrong), None, "{wrong}");
    }
    let l = t.link(link).unwrap();
    assert_eq!((l.near("a"), l.far("a")), (&End::port("a", 3), &End::host("x")));
    assert_eq!((l.near("x"), l.far("x")), (&End::host("x"), &End::port("a", 3)));
    assert!(t.switch("x").is_none() && t.host("a").is_none());
    assert!(t.attachment("a").is_none());
    for name in ["a", "d", "p", "r", "x"] {
        assert_eq!(t.name(t.id(name).unwrap()), name);
    }
    assert_eq!(t.kind(t.id("r").unwrap()), Some(SwitchKind::Router));
    assert_eq!(t.kind(t.id("x").unwrap()), None);
    assert!(t.host_at(t.id("x").unwrap()).is_some() && t.host_at(t.id("a").unwrap()).is_none());
    assert_eq!(t.switch_ids().count(), 6);
    let hop = t.hops(t.id("a").unwrap())[0];
    assert_eq!(
        (t.end(hop.near), t.end(hop.far)),
        (End::port("a", 3), End::host("x"))
    );
}

#[test]
fn addresses_that_no_host_can_have_are_in_no_pool() {
    let fault = |text: &str| pool_fault(&text.parse().unwrap());
    for good in [
        "1.0.0.0/8",
        "126.0.0.0/8",
        "128.0.0.0/8",
        "169.253.0.0/16",
        "169.255.0.0/16",
        "198.17.0.0/16",
        "198.20.0.0/14",
        "223.0.0.0/8",
    ] {
        assert_eq!(fault(good), None, "{good}");
    }
    for bad in [
        "0.0.0.0/32",
        "0.255.0.0/16",
        "127.1.0.0/16",
        "169.254.9.0/24",
        "198.18.0.0/16",
        "198.19.255.0/24",
        "224.0.0.0/8",
        "239.0.0.0/8",
        "255.0.0.0/8",
        "168.0.0.0/7",
    ] {
        assert!(fault(bad).is_some(), "{bad}");
    }
    let all = fault("0.0.0.0/0").unwrap();
    assert!(all.contains("loopback") && all.contains("reserved"), "{all}");
    for (a, b, expected) in [
        ("10.0.0.0/8", "10.1.0.0/16", true),
        ("10.1.0.0/16", "10.0.0.0/8", true),
        ("10.1.0.0/16", "10.1.0.0/16", true),
        ("10.1.0.0/16", "10.2.0.0/16", false),
    ] {
        assert_eq!(overlaps(&a.parse().unwrap(), &b.parse().unwrap()), expected);
    }
}

#[test]
fn a_prefix_of_groups_belongs_to_one_castnet_switch() {
    let set = |name: &str, prefix: &str| {
        let mut t = parts();
        t.set_mcst_prefix(name, prefix.parse().unwrap())
    };
    assert_eq!(set("d", "10.200.4.0/24"), Ok(()));
    assert_eq!(set("a", "10.200.1.0/25"), Ok(()), "instead of its own");
    assert!(matches!(
        set("d", "10.200.4.1/24"),
        Err(TopologyError::BadPrefix { .. })
    ));
    assert!(matches!(
        set("d", "127.0.0.0/24"),
        Err(TopologyError::BadPrefix { .. })
    ));
    assert!(
        matches!(set("d", "10.200.2.128/25"), Err(TopologyError::PrefixesOverlap { other, .. }) if other == "b")
    );
    assert!(
        matches!(set("d", "10.200.0.0/16"), Err(TopologyError::PrefixesOverlap { other, .. }) if other == "a")
    );
    assert!(matches!(
        set("r", "10.201.0.0/24"),
        Err(TopologyError::PrefixOfForwarder { .. })
    ));
    assert!(matches!(
        set("nobody", "10.201.0.0/24"),
        Err(TopologyError::UnknownNode { .. })
    ));
}

#[test]
fn a_multicast_route_leads_to_two_switches_with_prefixes() {
    let route = |switches: &[&str], source: Option<&str>| MulticastRoute {
        switches: switches.iter().map(|s| (*s).to_owned()).collect(),
        source: source.map(str::to_owned),
    };
    let add = |address: [u8; 4], route| {
        let mut t = parts();
        t.set_group_addresses("239.200.0.0/16".parse().unwrap()).unwrap();
        t.add_multicast_route([239, 1, 0, 9].into(), self::route_of(&["a", "b"]))
            .unwrap();
        t.add_multicast_route(address.into(), route).is_ok()
    };
    for (address, given, is_good) in [
        ([239, 1, 0, 1], route(&["a", "b"], None), true),
        ([239, 1, 0, 1], route(&["a", "b"], Some("c")), true),
        ([224, 0, 1, 0], route(&["a", "b"], None), true),
        ([224, 0, 0, 255], route(&["a", "b"], None), false),
        ([239, 1, 0, 9], route(&["a", "c"], None), false),
        ([239, 200, 0, 1], route(&["a", "b"], None), false),
        ([239, 1, 0, 1], route(&["a"], None), false),
        ([239, 1, 0, 1], route(&["a", "d"], None), false),
        ([239, 1, 0, 1], route(&["a", "b"], Some("d")), false),
        ([239, 1, 0, 1], route(&["a", "x"], None), false),
    ] {
        assert_eq!(add(address, given.clone()), is_good, "{address:?} {given:?}");
    }
    // A block of group addresses has no route in it, and is one of addresses that routers forward.
    let block = |text: &str| {
        let mut t = parts();
        t.add_multicast_route([239, 1, 0, 9].into(), route_of(&["a", "b"]))
            .unwrap();
        let is_good = t.set_group_addresses(text.parse().unwrap()).is_ok();
        assert_eq!(t.group_addresses().is_some(), is_good);
        is_good
    };
    for (text, is_good) in [
        ("239.200.0.0/16", true),
        ("239.1.0.0/16", false),
        ("239.200.0.1/16", false),
        ("10.0.0.0/16", false),
        ("224.0.0.0/24", false),
    ] {
        assert_eq!(block(text), is_good, "{text}");
    }
}

fn route_of(switches: &[&str]) -> MulticastRoute {
    MulticastRoute {
        switches: switches.iter().map(|s| (*s).to_owned()).collect(),
        source: None,
    }
}

#[test]
fn a_splitter_has_free_ports_of_switches_with_prefixes_each_once() {
    let splitter = |from: &str, links: &[(u8, &str, u8)]| Splitter {
        from: from.to_owned(),
        links: links
            .iter()
            .map(|(port, far, at)| (*port, End::port(*far, *at)))
            .collect(),
    };
    for (given, is_good) in [
        (splitter("a", &[(0, "b", 0), (1, "c", 0)]), true),
        (splitter("a", &[(0, "b", 0), (0, "c", 0)]), false),
        (splitter("a", &[(0, "b", 0), (1, "d", 0)]), false),
        (splitter("d", &[(0, "b", 0), (1, "c", 0)]), false),
        (splitter("a", &[(7, "b", 0), (1, "c", 0)]), false),
        (splitter("a", &[(8, "b", 0), (1, "c", 0)]), false),
        (splitter("b", &[(0, "a", 0), (1, "c", 0)]), false),
    ] {
        let mut t = parts();
        t.connect(End::port("a", 7), End::host("x"), 1500).unwrap();
        t.add_splitter(splitter("b", &[(5, "a", 5), (6, "c", 6)]))
            .unwrap();
        assert_eq!(t.add_splitter(given.clone()).is_ok(), is_good, "{given:?}");
        let mut copy = parts();
        copy.set_core_of(&t);
        assert_eq!(copy.splitters(), t.splitters());
        assert_eq!(t.splitters().len(), 1 + usize::from(is_good));
    }
}

/// A Castnet switch that routers lead to, over plain switches too, needs a prefix; one behind another Castnet switch does not.
#[test]
fn switches_behind_routers_without_a_prefix_are_named() {
    let mut t = parts();
    let missing = |t: &Topology| -> Vec<String> {
        let all = t.prefixes_missing().into_iter();
        all.map(|error| match error {
            TopologyError::PrefixMissing { switch, router } => format!("{switch} {router}"),
            other => panic!("{other}"),
        })
        .collect()
    };
    t.connect(End::port("r", 0), End::port("p", 0), 1500).unwrap();
    t.connect(End::port("r", 1), End::port("a", 0), 1500).unwrap();
    t.connect(End::port("a", 1), End::port("d", 1), 1500).unwrap();
    assert!(missing(&t).is_empty());
    t.connect(End::port("p", 1), End::port("d", 0), 1500).unwrap();
    assert_eq!(missing(&t), ["d r"]);
}
