//! Topology files: there and back, and every fault with its place.

use castnet_topology::{End, MulticastRoute, Splitter, SwitchKind, Topology};

fn same(a: &Topology, b: &Topology) -> bool {
    a.to_toml() == b.to_toml()
        && a.switches().eq(b.switches())
        && a.hosts().eq(b.hosts())
        && a.links().map(|(_, l)| l).eq(b.links().map(|(_, l)| l))
}

#[test]
fn files_go_there_and_back() {
    let mut down = Topology::fat_tree(4).unwrap();
    down.set_switch_up("core1", false);
    let link = down.link_at(&End::host("h3")).unwrap();
    down.set_link_up(link, false);
    down.set_host_addresses("h5", None, None);
    let mut holes = Topology::new();
    holes.add_switch("odd", [(3, [2; 6]), (61, [4; 6])]).unwrap();
    let mut mixed = Topology::star(2).unwrap();
    mixed.add_plain("rack", 4).unwrap();
    mixed.set_switch_kind("s0", SwitchKind::Plain);
    mixed.add_switch("box", [(0, [2; 6])]).unwrap();
    mixed
        .connect(End::port("rack", 3), End::port("box", 0), 9000)
        .unwrap();
    let routed = Topology::from_toml(ROUTED).unwrap();
    for t in [
        Topology::new(),
        mixed,
        routed,
        Topology::star(3).unwrap(),
        Topology::leaf_spine(2, 2, 2).unwrap(),
        down,
        holes,
    ] {
        let text = t.to_toml();
        let back = Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert!(same(&t, &back), "{text}");
    }
}

#[test]
fn ports_may_be_a_number() {
    let t = Topology::from_toml("[[switches]]\nname = \"a\"\nports = 0x2\n").unwrap();
    assert_eq!(t.switch("a").unwrap().ports.len(), 2);
}

#[test]
fn switches_are_castnet_switches_unless_the_file_says_plain() {
    let text = "[[switches]]\nname = \"a\"\nports = 2\n[[switches]]\nname = \"b\"\nkind = \"plain\"\nports = 2\n\
                [[switches]]\nname = \"c\"\nkind = \"castnet\"\nports = 2\n";
    let t = Topology::from_toml(text).unwrap();
    let kinds: Vec<&str> = t.switches().map(|s| s.kind.name()).collect();
    assert_eq!(kinds, ["castnet", "plain", "castnet"]);
    assert!(t.is_plain("b") && !t.is_plain("a") && !t.is_plain("nobody"));
    let faults = Topology::from_toml(&text.replace("plain", "hub")).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "6:8: switches[1].kind: \"hub\" is not a kind of switch: \"castnet\", \"plain\" or \"router\""
    );
    let faults = Topology::from_toml(&text.replace("\"plain\"", "1")).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "6:8: switches[1].kind: a whole number where a kind of switch: \"castnet\", \"plain\" or \"router\" belongs"
    );
}

/// Two boxes with a router between them, one of them beside a plain switch, and a spine that no router leads to.
const ROUTED: &str = r#"
[[switches]]
name = "rt"
kind = "router"
ports = 4
[[switches]]
name = "rack"
kind = "plain"
ports = 4
[[switches]]
name = "a"
ports = 4
mcst_prefix = "10.201.0.192/26"
[[switches]]
name = "b"
ports = 4
mcst_prefix = "10.202.0.0/24"
[[switches]]
name = "spine"
ports = 4
[[links]]
a = "rt:0"
b = "a:0"
[[links]]
a = "rt:1"
b = "rack:0"
[[links]]
a = "rack:1"
b = "b:0"
[[links]]
a = "b:1"
b = "spine:0"
"#;

#[test]
fn routers_and_the_prefixes_behind_them() {
    let t = Topology::from_toml(ROUTED).unwrap();
    assert!(t.is_router("rt") && t.is_forwarder("rt") && !t.is_plain("rt"));
    assert!(t.is_forwarder("rack") && !t.is_router("rack") && !t.is_forwarder("a"));
    let prefix = |name| t.switch(name).and_then(|s| s.mcst_prefix).map(|p| p.to_string());
    assert_eq!(prefix("a").as_deref(), Some("10.201.0.192/26"));
    assert_eq!(prefix("spine"), None, "no router leads to it");
    assert!(t.connected("a", "spine"));
    let told = |from: &str, to: &str| {
        let text = ROUTED.replace(from, to);
        assert_ne!(text, ROUTED);
        Topology::from_toml(&text).unwrap_err().to_string()
    };
    let line = "mcst_prefix = \"10.202.0.0/24\"\n";
    assert_eq!(
        told(line, ""),
        "14:1: switches[3].mcst_prefix: missing: the prefix of McstIDs that router \"rt\" and others route to switch \"b\""
    );
    assert_eq!(
        told("10.202.0.0/24", "10.201.0.0/24"),
        "17:15: switches[3].mcst_prefix: 10.201.0.0/24 of switch \"b\" overlaps 10.201.0.192/26 of switch \"a\""
    );
    let wrong = |prefix: &str, reason: &str| {
        let expected = format!("17:15: switches[3].mcst_prefix: {reason}");
        assert_eq!(told("10.202.0.0/24", prefix), expected);
    };
    let none = "is not a prefix of IPv4 addresses, such as \"10.201.0.0/24\"";
    wrong("10.202.0.0", &format!("\"10.202.0.0\" {none}"));
    let cannot = |prefix: &str, reason: &str| {
        let says = "cannot be a prefix of McstIDs:";
        wrong(prefix, &format!("{prefix} {says} {reason}"));
    };
    cannot("10.202.0.7/24", "it has bits beyond its length");
    for (prefix, special) in [
        ("126.0.0.0/7", "127.0.0.0/8 (loopback)"),
        ("169.254.3.0/24", "169.254.0.0/16 (link-local)"),
        (
            "192.0.0.0/2",
            "198.18.0.0/15 (benchmarks), 224.0.0.0/4 (multicast), 240.0.0.0/4 (reserved)",
        ),
    ] {
        cannot(
            prefix,
            &format!("it contains addresses that no host can have: of {special}"),
        );
    }
    let of_rack = ROUTED.replace("\"plain\"\n", "\"plain\"\nmcst_prefix = \"10.9.0.0/24\"\n");
    assert_eq!(
        Topology::from_toml(&of_rack).unwrap_err().to_string(),
        "9:15: switches[1].mcst_prefix: \"rack\" runs no groups: McstIDs are routed to Castnet switches"
    );
}

#[test]
fn the_example_reads() {
    let t = Topology::from_toml(include_str!("../../examples/two-tier.toml")).unwrap();
    assert_eq!(
        (t.switches().count(), t.hosts().count(), t.links().count()),
        (3, 6, 8)
    );
    assert!(t.connected("h1", "h6"));
}

#[test]
fn every_fault_is_told_with_its_place() {
    let text = r#"
hosst = 3
[[switches]]
name = "a"
ports = 70
[[switches]]
name = "b"
ports = ["02:00:00:00:00:01", "nonsense"]
[[switches]]
name = "c"
ports = 2
colour = "red"
[[hosts]]
name = "x"
ip = "10.0.0.256"
mac = 7
[[hosts]]
ip = "10.0.0.1"
[[links]]
a = "c:0"
b = "x"
mtu = 99
[[links]]
a = "c:9"
b = "x"
[[links]]
a = "c:one"
b = "nobody"
[[links]]
a = "c:0"
b = "nobody"
up = "yes"
[[links]]
a = "a:0"
b = "x"
"#;
    let faults = Topology::from_toml(text).unwrap_err().in_file("fabric.toml");
    let expected = r#"fabric.toml:2:1: hosst: unknown field; allowed: switches, hosts, links, multicast_routes, splitters, group_addresses
fabric.toml:5:9: switches[0].ports: 70 is out of range: ports of a switch, 1 to 64
fabric.toml:8:31: switches[1].ports[1]: "nonsense" is not an Ethernet address, such as "02:00:00:00:00:01"
fabric.toml:12:1: switches[2].colour: unknown field; allowed: name, kind, ports, up, programmable, mcst_prefix
fabric.toml:15:6: hosts[0].ip: "10.0.0.256" is not an IPv4 address, such as "10.0.0.1"
fabric.toml:16:7: hosts[0].mac: a whole number where an Ethernet address, such as "02:00:00:00:00:01" belongs
fabric.toml:17:1: hosts[1].name: missing: a name in quotes
fabric.toml:22:7: links[0].mtu: 99 is out of range: an MTU in bytes, 576 to 65535
fabric.toml:24:5: links[1].a: switch "c" has no port 9
fabric.toml:27:5: links[2].a: "one" is no port: 0 to 63, as in "c":0
fabric.toml:32:6: links[3].up: a text where true or false belongs"#;
    assert_eq!(faults.to_string(), expected);
}

/// Frames to one of them would reach the other, or both.
#[test]
fn an_address_is_that_of_one_host() {
    let host = |name: &str, last: u8, mac: u8| {
        format!("[[hosts]]\nname = \"{name}\"\nip = \"10.0.0.{last}\"\nmac = \"02:00:00:00:00:{mac:02x}\"\n")
    };
    let none = "[[hosts]]\nname = \"x\"\n[[hosts]]\nname = \"y\"\n";
    let text = [host("h1", 1, 1), host("h2", 2, 2), none.to_owned()].concat();
    Topology::from_toml(&text).expect("no faults");
    let faults = Topology::from_toml(&(text + &host("h3", 1, 2))).unwrap_err();
    let expected = "15:6: hosts[4].ip: 10.0.0.1 of host \"h3\" is the address of host \"h1\" too: leave out what hosts share\n\
                    16:7: hosts[4].mac: 02:00:00:00:00:02 of host \"h3\" is the address of host \"h2\" too: leave out what hosts share";
    assert_eq!(faults.to_string(), expected);
}

#[test]
fn a_text_that_is_not_toml_tells_where() {
    let faults = Topology::from_toml("[[switches]]\nname = \n").unwrap_err();
    assert_eq!((faults.faults[0].line, faults.faults[0].field.as_str()), (2, ""));
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[\\[\\]a-z0-9=\"{}:. \n,_-]{0,200}") {
        let _ = Topology::from_toml(&text);
    }

    #[test]
    fn a_damaged_file_is_read_or_refused(cut in 0usize..700, with in "[\\[\\]a-z0-9=\"{}:. \n,_-]{0,12}") {
        let text = include_str!("../../examples/two-tier.toml");
        let cut = text.floor_char_boundary(cut);
        let _ = Topology::from_toml(&format!("{}{with}{}", &text[..cut], &text[cut..]));
    }
}

#[test]
fn multicast_routes_are_read_and_written_and_checked() {
    let route = "[[multicast_routes]]\naddress = \"239.1.0.1\"\nswitches = [\"a\", \"b\"]\n";
    let file = format!("{ROUTED}{route}");
    let t = Topology::from_toml(&file).expect("no faults");
    let routes: Vec<_> = t.multicast_routes().collect();
    let mut expected = MulticastRoute {
        switches: ["a", "b"].map(String::from).into(),
        source: None,
    };
    assert_eq!(routes, [([239, 1, 0, 1].into(), &expected)]);
    let again = Topology::from_toml(&t.to_toml()).expect("no faults");
    assert!(again.multicast_routes().eq(routes));
    let of_a = format!("{ROUTED}{route}source = \"a\"\n");
    let of_a = Topology::from_toml(&of_a).and_then(|t| Topology::from_toml(&t.to_toml()));
    expected.source = Some("a".into());
    let of_a = of_a.expect("no faults");
    assert!(of_a.multicast_routes().all(|(_, route)| *route == expected));
    for (bad, expected) in [
        (
            format!("{route}source = \"z\"\n"),
            "239.1.0.1: there is no switch \"z\"",
        ),
        (
            route.replace("239.1.0.1", "10.1.0.1"),
            "10.1.0.1: give an address of 224.0.1.0 to 239.255.255.255",
        ),
        (
            route.replace("239.1.0.1", "224.0.0.5"),
            "224.0.0.5: give an address of 224.0.1.0 to 239.255.255.255",
        ),
        (
            route.replace(", \"b\"", ""),
            "239.1.0.1: it leads to two switches or more",
        ),
        (
            route.replace("\"b\"", "\"x\""),
            "239.1.0.1: there is no switch \"x\"",
        ),
        (
            route.replace("\"b\"", "\"rt\""),
            "239.1.0.1: switch \"rt\" has no mcst_prefix, by which it is reached over routers",
        ),
    ] {
        let faults = Topology::from_toml(&format!("{ROUTED}{bad}"))
            .expect_err("a fault")
            .to_string();
        assert!(
            faults.ends_with(&format!("multicast_routes[0].address: {expected}")),
            "{faults}"
        );
    }
    let twice = Topology::from_toml(&format!("{file}{route}"))
        .expect_err("a fault")
        .to_string();
    assert!(
        twice.ends_with("multicast_routes[1].address: 239.1.0.1: it has a route already"),
        "{twice}"
    );
}

#[test]
fn splitters_are_read_and_written_and_checked() {
    let splitter =
        "[[splitters]]\nfrom = \"a\"\nlinks = [{ port = 2, to = \"b:3\" }, { port = 3, to = \"a:3\" }]\n";
    let t = Topology::from_toml(&format!("{ROUTED}{splitter}")).expect("no faults");
    let expected = Splitter {
        from: "a".into(),
        links: vec![(2, End::port("b", 3)), (3, End::port("a", 3))],
    };
    assert_eq!(t.splitters(), [expected]);
    let again = Topology::from_toml(&t.to_toml()).expect("no faults");
    assert_eq!(again.splitters(), t.splitters());
    let twice = format!("{splitter}{splitter}");
    for (bad, expected) in [
        (
            twice,
            "splitters[1].links: splitter of \"a\": it has a splitter already",
        ),
        (
            splitter.replace("b:3", "b:9"),
            "splitters[0].links: switch \"b\" has no port 9",
        ),
        (
            splitter.replace("b:3", "x:9"),
            "splitters[0].links: \"x\" is neither a switch nor a host of this fabric",
        ),
        (
            splitter.replace("b:3", "rack:3"),
            "splitters[0].links: splitter of \"a\": rack:3 is no port of a Castnet switch with an mcst_prefix",
        ),
        (splitter.replace("port = 3", "port = 2"), "port 2 is there twice"),
        (
            splitter.replace("port = 3", "port = 64"),
            "splitters[0].links[1].port: 64 is no port: 0 to 63",
        ),
    ] {
        let faults = Topology::from_toml(&format!("{ROUTED}{bad}"))
            .expect_err("a fault")
            .to_string();
        assert!(faults.contains(expected), "{faults}");
    }
}

#[test]
fn programmable_routers_and_group_addresses_are_read_and_written_and_checked() {
    let text = ROUTED.replace("kind = \"router\"", "kind = \"router\"\nprogrammable = true");
    let text = format!("group_addresses = \"239.200.0.0/16\"\n{text}");
    let t = Topology::from_toml(&text).unwrap();
    let routers = |t: &Topology| -> Vec<String> { t.programmable().map(|s| s.name.clone()).collect() };
    assert_eq!(routers(&t), ["rt"]);
    let block = t.group_addresses().unwrap();
    assert_eq!(block.to_string(), "239.200.0.0/16");
    let again = Topology::from_toml(&t.to_toml()).unwrap();
    assert_eq!(
        (routers(&again), again.group_addresses()),
        (routers(&t), Some(block))
    );
    let refused = |text: String, expected: &str| {
        let faults = Topology::from_toml(&text).unwrap_err().to_string();
        assert!(faults.contains(expected), "{faults}");
    };
    refused(
        text.replace("239.200.0.0/16", "10.0.0.0/8"),
        "1:19: group_addresses: 10.0.0.0/8 cannot be the addresses of groups: give a block of the addresses 224.0.1.0 to",
    );
    refused(
        text.replace("239.200.0.0/16", "239.200.1.0/16"),
        "1:19: group_addresses: 239.200.1.0/16 cannot be the addresses of groups: give a block",
    );
    refused(
        text.replace("name = \"b\"", "name = \"b\"\nprogrammable = true"),
        "switches[3].programmable: \"b\" is no router: only kind = \"router\" may be programmable",
    );
    let route = "[[multicast_routes]]\naddress = \"239.200.0.1\"\nswitches = [\"a\", \"b\"]\n";
    refused(
        text + route,
        "group_addresses: 239.200.0.0/16 cannot be the addresses of groups: 239.200.0.1 of it is in [[multicast_routes]]",
    );
}
