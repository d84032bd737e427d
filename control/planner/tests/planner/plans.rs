//! Plans of known fabrics, and every refusal.

use std::net::Ipv4Addr;

use castnet_planner::{LinkLoad, PlanError};
use castnet_rules::RemoteMemory;
use castnet_topology::{Cut, Down, End, Topology};
use castnet_wire::{MacAddr, McstId, Pmtu, Qpn};

use crate::common::{plan, request};

#[test]
fn the_tree_is_drawn() {
    let t = Topology::leaf_spine(3, 2, 2).unwrap();
    let p = plan(&t, &LinkLoad::new(), &request("h0", &["h5", "h1", "h2", "h3"])).unwrap();
    let expected = "\
h0 10.0.0.1 QP 0x11, source
└─[0] leaf0
   ├─[1]─ h1 10.0.0.2 QP 0x11
   └─[2]─[0] spine0
      ├─[1]─[2] leaf1
      │  ├─[0]─ h2 10.0.0.3 QP 0x11
      │  └─[1]─ h3 10.0.0.4 QP 0x11
      └─[2]─[2] leaf2
         └─[1]─ h5 10.0.0.6 QP 0x11";
    assert_eq!(p.tree.to_string(), expected);
    assert_eq!((p.tree.tiers(), p.tree.links().len(), p.rules.len()), (3, 8, 4));
    let spine = &p.rules["spine0"];
    assert_eq!(
        (
            spine.multicast().map(|m| m.source),
            spine.endpoints.len(),
            spine.hosts().count()
        ),
        (Some(0), 3, 0)
    );
}

#[test]
fn replication_is_as_late_as_possible_across_a_fat_tree() {
    let t = Topology::fat_tree(4).unwrap();
    // h12 and h13 share an edge switch, h14 is at the next one of the same pod.
    let p = plan(&t, &LinkLoad::new(), &request("h0", &["h12", "h13", "h14"])).unwrap();
    // h0-edge-agg-core-agg, then to two edges, then three hosts.
    assert_eq!(p.tree.links().len(), 4 + 2 + 3);
    assert_eq!(p.tree.tiers(), 5);
}

#[test]
fn groups_spread_over_equal_paths() {
    let t = Topology::leaf_spine(2, 4, 1).unwrap();
    let mut load = LinkLoad::new();
    for _ in 0..32 {
        let p = plan(&t, &load, &request("h0", &["h1"])).unwrap();
        load.add(&p.tree);
    }
    for spine in 0..4u8 {
        let link = t.link_at(&End::port("leaf0", 1 + spine)).unwrap();
        assert_eq!(load.get(link), 8, "spine {spine}");
    }
}

#[test]
fn groups_spread_over_a_fat_tree_evenly_to_one() {
    let t = Topology::fat_tree(4).unwrap();
    let mut load = LinkLoad::new();
    for _ in 0..10 {
        let p = plan(&t, &load, &request("h0", &["h15", "h8"])).unwrap();
        load.add(&p.tree);
    }
    for edge in ["edge0-0", "edge3-1"] {
        let uplinks = [2, 3].map(|port| load.get(t.link_at(&End::port(edge, port)).unwrap()));
        assert_eq!(uplinks, [5, 5], "{edge}");
    }
}

#[test]
fn what_members_say_outweighs_the_fabric() {
    let t = Topology::star(2).unwrap();
    let mut wanted = request("h0", &["h1"]);
    let memory = Some(RemoteMemory {
        va: 0x1000,
        rkey: 7,
        length: 64,
    });
    wanted.members[1].ip = Some(Ipv4Addr::new(192, 168, 0, 9));
    wanted.members[1].mac = Some(MacAddr([2, 9, 9, 9, 9, 9]));
    wanted.members[1].part = memory.into();
    let p = plan(&t, &LinkLoad::new(), &wanted).unwrap();
    let (_, member) = p.rules["s0"].hosts().find(|(_, m)| m.name == "h1").unwrap();
    assert_eq!(
        (member.ip.octets()[0], member.mac.0[1], member.memory()),
        (192, 9, memory.as_ref())
    );
}

#[test]
fn every_refusal_names_the_field_and_the_fact() {
    let t = Topology::leaf_spine(2, 1, 2).unwrap();
    let refused = |r: castnet_planner::Request| {
        let e = plan(&t, &LinkLoad::new(), &r).unwrap_err();
        (e.field(), e.to_string())
    };
    let pair = |field: &str, text: &str| (field.to_string(), text.to_string());
    assert_eq!(
        refused(request("h0", &[])),
        pair(
            "members",
            "members: 1 member(s); a group needs a source and at least one receiver"
        )
    );
    assert_eq!(
        refused(request("h0", &["h1", "spine0"])),
        pair("members[2]", "members[2]: the fabric has no host \"spine0\"")
    );
    assert_eq!(
        refused(request("h0", &["h1", "h2", "h1"])),
        pair(
            "members[3]",
            "members[3]: host \"h1\" is members[1] already; a host is a member of a group once"
        )
    );
    assert_eq!(
        refused(request("h0", &["h1", "h0"])),
        pair("members[2]", "members[2]: host \"h0\" is the source")
    );
    let mut bad = request("h0", &["h1", "h2"]);
    bad.members[2].qpn = Qpn::new(1);
    bad.name = "no good".into();
    let (field, text) = refused(bad);
    assert_eq!(field, "name");
    assert!(text.contains("members[2].qpn: 0x1 is reserved"), "{text}");
    let mut bad = request("h0", &["h1"]);
    bad.mcst_id = McstId(Ipv4Addr::new(10, 0, 0, 3));
    assert_eq!(
        refused(bad),
        pair("mcst_id", "mcst_id: 10.0.0.3 is the address of host \"h2\"")
    );
    let mut bad = request("h0", &["h1"]);
    bad.members[1].ip = Some(bad.mcst_id.0);
    assert_eq!(refused(bad).0, "members[1].ip");
    let mut bad = request("h0", &["h1", "h2"]);
    bad.members[0].ip = Some(Ipv4Addr::new(10, 0, 0, 2));
    assert_eq!(refused(bad).0, "members[1].qpn", "two members with one QP");
}

#[test]
fn hosts_of_unknown_address_are_refused() {
    let mut t = Topology::star(2).unwrap();
    t.set_host_addresses("h1", None, Some([2; 6]));
    let e = plan(&t, &LinkLoad::new(), &request("h0", &["h1"])).unwrap_err();
    assert_eq!(
        e.to_string(),
        "members[1]: the IP address of host \"h1\" is not known; give it in the request"
    );
    t.set_host_addresses("h1", Some(Ipv4Addr::new(10, 0, 0, 2)), None);
    let e = plan(&t, &LinkLoad::new(), &request("h1", &["h0"])).unwrap_err();
    assert_eq!(
        e.to_string(),
        "members[0]: the Ethernet address of host \"h1\" is not known; give it in the request"
    );
}

#[test]
fn a_cut_is_named() {
    let mut t = Topology::leaf_spine(2, 1, 1).unwrap();
    t.add_host("loose", Some(Ipv4Addr::new(10, 0, 1, 1)), Some([2; 6]))
        .unwrap();
    let wanted = request("h0", &["h1"]);
    let link = t.link_at(&End::port("leaf1", 1)).unwrap();
    t.set_link_up(link, false);
    let e = plan(&t, &LinkLoad::new(), &wanted).unwrap_err();
    assert_eq!(
        e.to_string(),
        "members[1]: no path from \"h0\" to \"h1\": link leaf1:1 - spine0:1 is down"
    );
    t.set_link_up(link, true);
    t.set_switch_up("spine0", false);
    let e = plan(&t, &LinkLoad::new(), &wanted).unwrap_err();
    assert!(
        matches!(&e, PlanError::NoPath { cut: Cut::Down(d), .. } if *d == [Down::Switch("spine0".into())])
    );
    let e = plan(&t, &LinkLoad::new(), &request("h0", &["loose"])).unwrap_err();
    assert!(e.to_string().ends_with("the fabric does not link them"), "{e}");
}

#[test]
fn a_narrow_link_is_named_if_the_tree_needs_it() {
    let mut t = Topology::new();
    t.add_switch("a", (0..3).map(|p| (p, [6, 0, 0, 0, 0, p])))
        .unwrap();
    for (i, mtu) in [(0u8, 9000), (1, 1500), (2, 1103)] {
        let name = format!("h{i}");
        t.add_host(
            &name,
            Some(Ipv4Addr::new(10, 0, 0, i + 1)),
            Some([2, 0, 0, 0, 0, i]),
        )
        .unwrap();
        t.connect(End::port("a", i), End::host(name), mtu).unwrap();
    }
    assert!(plan(&t, &LinkLoad::new(), &request("h0", &["h1"])).is_ok());
    let e = plan(&t, &LinkLoad::new(), &request("h0", &["h1", "h2"])).unwrap_err();
    assert_eq!(
        e.to_string(),
        "pmtu: 1024 needs an MTU of 1104 on every link, but a:2 - h2 has 1103"
    );
    let mut wide = request("h0", &["h1"]);
    wide.pmtu = Pmtu::B2048;
    assert!(matches!(
        plan(&t, &LinkLoad::new(), &wide),
        Err(PlanError::PmtuTooLarge { needed: 2128, .. })
    ));
}
