//! Every fault of a rule file, with its line, column and field.

use castnet_rules::{Faults, RuleSet};

fn faults(text: &str) -> Faults {
    RuleSet::from_toml(text)
        .expect_err("the text has faults")
        .in_file("rules.toml")
}

/// A valid group. Each test changes one line.
const GOOD: &str = r#"[[groups]]
name = "g"
mcst_id = "10.255.0.1"
pmtu = 1024
start_psn = 7
source = 0

[[groups.endpoints]]
port = 0
host = { name = "a", ip = "10.0.0.1", qpn = 0x11, mac = "02:00:00:00:00:01" }

[[groups.endpoints]]
port = 1
host = { name = "b", ip = "10.0.0.2", qpn = 0x12, mac = "02:00:00:00:00:02", memory = { va = 0x1000, rkey = 1, length = 64 } }

[[groups.endpoints]]
port = 2
switch = { name = "s", mac = "06:00:00:00:00:01" }

[[routes]]
prefix = "10.1.0.0/16"
next_hops = [{ port = 4, mac = "06:00:00:00:00:02" }]
"#;

#[track_caller]
fn assert_fault(from: &str, to: &str, expected: &str) {
    assert!(GOOD.contains(from), "{from}");
    assert_eq!(
        faults(&GOOD.replacen(from, to, 1)).to_string(),
        expected,
        "{from} -> {to}"
    );
}

#[test]
fn the_valid_file_has_no_faults() {
    assert_eq!(
        RuleSet::from_toml(GOOD).map(|s| (s.groups.len(), s.routes.len())),
        Ok((1, 1))
    );
    assert_eq!(RuleSet::from_toml(""), Ok(RuleSet::default()));
}

#[test]
fn unknown_fields_come_with_a_suggestion() {
    assert_fault(
        "pmtu = 1024",
        "pmtu = 1024\nstart_pns = 3",
        "rules.toml:5:1: groups[0].start_pns: unknown field, did you mean \"start_psn\"?; allowed: kind, name, \
         generation, mcst_id, pmtu, stall_timeout_ms, rate_limit, start_psn, va_base, carries_on, any_source, repair, \
         hold_fatal_naks, source, endpoints",
    );
    assert_fault(
        "[[routes]]",
        "[[route]]",
        "rules.toml:20:3: route: unknown field, did you mean \"routes\"?; allowed: groups, routes",
    );
    assert_fault(
        "rkey = 1",
        "rkey = 1, colour = 2",
        "rules.toml:14:112: groups[0].endpoints[1].host.memory.colour: unknown field; allowed: va, rkey, length",
    );
}

#[test]
fn wrong_types_and_values_out_of_range() {
    for (from, to, expected) in [
        (
            "0x12",
            "0x1000000",
            "14:45: groups[0].endpoints[1].host.qpn: 0x1000000 is over the 24 bits of a QPN",
        ),
        (
            "0x12",
            "-3",
            "14:45: groups[0].endpoints[1].host.qpn: -3 is negative: give 0 or more",
        ),
        (
            "0x12",
            "1",
            "14:45: groups[0].endpoints[1].host.qpn: 0x1 is reserved (0 and 1: management, 0xffffff: multicast); RC QPs \
             are 0x2 to 0xfffffe",
        ),
        (
            "0x12",
            "\"18\"",
            "14:45: groups[0].endpoints[1].host.qpn: a text where a whole number belongs",
        ),
        (
            "port = 1",
            "port = 1\nverify_mac = 1",
            "14:14: groups[0].endpoints[1].verify_mac: a whole number where true or false belongs",
        ),
        (
            "start_psn = 7",
            "start_psn = 16777216",
            "5:13: groups[0].start_psn: 16777216 is over the 24 bits of a PSN",
        ),
        (
            "pmtu = 1024",
            "pmtu = 1500",
            "4:8: groups[0].pmtu: 1500 is no path MTU: 256, 512, 1024, 2048 or 4096",
        ),
        (
            "pmtu = 1024",
            "pmtu = 99999999999999999999999",
            "4:8: groups[0].pmtu: 99999999999999999999999 is no path MTU: 256, 512, 1024, 2048 or 4096",
        ),
        (
            "port = 2",
            "port = 64",
            "17:8: groups[0].endpoints[2].port: 64 is no port: 0 to 63",
        ),
        (
            "rkey = 1",
            "rkey = 0x100000000",
            "14:109: groups[0].endpoints[1].host.memory.rkey: 0x100000000 is over 32 bits",
        ),
        (
            "name = \"g\"",
            "name = 3",
            "2:8: groups[0].name: a whole number where a text in quotes belongs",
        ),
        (
            "\"10.255.0.1\"",
            "\"10.255.0\"",
            "3:11: groups[0].mcst_id: \"10.255.0\" is not an IPv4 address, such as \"10.0.0.1\"",
        ),
        (
            "\"02:00:00:00:00:02\"",
            "\"02-00-00-00-00-02\"",
            "14:57: groups[0].endpoints[1].host.mac: \"02-00-00-00-00-02\" is not an Ethernet address, such as \
             \"02:00:00:00:00:01\"",
        ),
        (
            "\"10.1.0.0/16\"",
            "\"10.1.0.0/33\"",
            "21:10: routes[0].prefix: \"10.1.0.0/33\" is not an IPv4 prefix, such as \
             \"10.0.1.0/24\"",
        ),
        (
            "[{ port = 4, mac = \"06:00:00:00:00:02\" }]",
            "4",
            "22:13: routes[0].next_hops: a whole number where a list \
             of { port, mac } belongs",
        ),
    ] {
        assert_fault(from, to, &format!("rules.toml:{expected}"));
    }
}

#[test]
fn missing_fields() {
    for (from, to, expected) in [
        (
            "mcst_id = \"10.255.0.1\"\n",
            "",
            "1:1: groups[0].mcst_id: missing: an IPv4 address, such as \"10.0.0.1\"",
        ),
        (
            ", mac = \"06:00:00:00:00:01\"",
            "",
            "18:10: groups[0].endpoints[2].switch.mac: missing: an Ethernet address, such as \"02:00:00:00:00:01\"",
        ),
        (
            "switch = { name = \"s\", mac = \"06:00:00:00:00:01\" }",
            "",
            "16:1: groups[0].endpoints[2]: has no next hop: give \
             it host = { ... } or switch = { ... }",
        ),
        (
            "next_hops = [{ port = 4, mac = \"06:00:00:00:00:02\" }]",
            "",
            "20:1: routes[0].next_hops: missing: a list of \
             { port, mac }",
        ),
    ] {
        assert_fault(from, to, &format!("rules.toml:{expected}"));
    }
}

#[test]
fn faults_that_types_do_not_prevent() {
    for (from, to, expected) in [
        (
            "name = \"g\"",
            "name = \"a b\"",
            "2:8: groups[0].name: \"a b\" is no name: 1 to 64 printable characters \
             without blanks",
        ),
        (
            "name = \"g\"",
            "name = \"10.200.0.56\"",
            "2:8: groups[0].name: \"10.200.0.56\" reads as an IPv4 address or a folder: give the group a name with a \
             letter, such as \"g1\"",
        ),
        (
            "name = \"g\"",
            "name = \"..\"",
            "2:8: groups[0].name: \"..\" reads as an IPv4 address or a folder: give the group a name with a letter, such \
             as \"g1\"",
        ),
        (
            "10.255.0.1",
            "224.0.0.1",
            "3:11: groups[0].mcst_id: 224.0.0.1 is an IP multicast address: give a unicast \
             address",
        ),
        (
            "10.255.0.1",
            "255.255.255.255",
            "3:11: groups[0].mcst_id: 255.255.255.255 is a broadcast or reserved \
             address: give a unicast address",
        ),
        (
            "10.255.0.1",
            "0.0.0.0",
            "3:11: groups[0].mcst_id: 0.0.0.0 is not an address of a host (0.0.0.0/8): give a \
             unicast address",
        ),
        (
            "10.255.0.1",
            "127.0.0.1",
            "3:11: groups[0].mcst_id: 127.0.0.1 is a loopback address: give a unicast address",
        ),
        (
            "10.255.0.1",
            "10.0.0.2",
            "14:27: groups[0].endpoints[1].host.ip: 10.0.0.2 is the McstID of this group: no host \
             has that address",
        ),
        (
            "source = 0",
            "source = 9",
            "6:10: groups[0].source: port 9 has no endpoint in this group; its ports: 0, 1, 2",
        ),
        (
            "port = 2",
            "port = 1",
            "16:1: groups[0].endpoints[2]: frames to QPN 0x1 by port 1 could be of endpoints[1] too: give each endpoint of \
             this port a virtual_qpn of its own",
        ),
        (
            "name = \"b\"",
            "name = \"a\"",
            "14:17: groups[0].endpoints[1].host.name: \"a\" is the name of endpoints[0].host too",
        ),
        (
            "\"02:00:00:00:00:02\"",
            "\"03:00:00:00:00:02\"",
            "14:57: groups[0].endpoints[1].host.mac: 03:00:00:00:00:02 is a \
             multicast address: give the address of a station",
        ),
        (
            "\"02:00:00:00:00:02\"",
            "\"00:00:00:00:00:00\"",
            "14:57: groups[0].endpoints[1].host.mac: 00:00:00:00:00:00 is \
             no address: give the address of a station",
        ),
        (
            "\"06:00:00:00:00:01\"",
            "\"00:00:00:00:00:00\"",
            "18:30: groups[0].endpoints[2].switch.mac: 00:00:00:00:00:00 is \
             no address: give the address of a station",
        ),
        (
            "length = 64",
            "length = 0",
            "14:121: groups[0].endpoints[1].host.memory.length: is 0: leave memory out where a \
             member takes no WRITEs",
        ),
        (
            "va = 0x1000",
            "va = 0xffffffffffffffff",
            "14:133: groups[0].endpoints[1].host.memory.length: 64 bytes from \
             0xffffffffffffffff on run over the end of the 64-bit address space",
        ),
        (
            "source = 0",
            "source = 0\nstall_timeout_ms = 0",
            "7:20: groups[0].stall_timeout_ms: is 0: give at least 1 \
             millisecond",
        ),
        (
            "source = 0",
            "source = 0\nrate_limit = \"10 furlongs\"",
            "7:14: groups[0].rate_limit: \"10 furlongs\" is not a rate in bits per second, 1k to 1T, such as \"10G\" or \"400M\"",
        ),
        (
            "source = 0",
            "source = 0\nrate_limit = { burst_bytes = 1000 }",
            "7:14: groups[0].rate_limit.rate: missing: a rate in bits per second, 1k to 1T, such as \"10G\" or \"400M\"",
        ),
        (
            "source = 0",
            "source = 0\nrate_limit = { rate = \"1G\", burst_bytes = 1151 }",
            "7:43: groups[0].rate_limit.burst_bytes: is 1151: a burst has 1152 bytes or more, so that it holds a full packet of each lane, \
             and 1073741824 or fewer",
        ),
        (
            "10.1.0.0/16",
            "10.1.0.1/16",
            "21:10: routes[0].prefix: 10.1.0.1/16 has bits set beyond its length: \
             10.1.0.0/16 is the network",
        ),
        (
            "prefix = \"10.1.0.0/16\"",
            "replicate = true\nprefix = \"224.0.0.0/16\"",
            "21:13: routes[0].replicate: is only for multicast addresses that routers forward, 224.0.1.0 to \
             239.255.255.255; 224.0.0.0/16 has others",
        ),
        (
            "prefix = \"10.1.0.0/16\"",
            "copy_to = [\"10.9.0.1\"]\nprefix = \"239.1.0.0/16\"",
            "21:11: routes[0].copy_to: gives copies, so the route has no next hops and does not replicate: each copy takes \
             another route\nrules.toml:21:11: routes[0].copy_to: is for one multicast address, such as 239.200.0.1/32; 239.1.0.0/16 has more, or others",
        ),
        (
            "[{ port = 4, mac = \"06:00:00:00:00:02\" }]",
            "[]",
            "22:13: routes[0].next_hops: is empty: a route needs at \
             least one next hop",
        ),
        (
            "[{ port = 4,",
            "[{ port = 4, mac = \"06:00:00:00:00:02\" }, { port = 4,",
            "22:55: routes[0].next_hops[1]: is \
             next_hops[0] again: list each next hop once",
        ),
        (
            "switch = {",
            "host = { name = \"c\", ip = \"10.0.0.3\", qpn = 5, mac = \"02:00:00:00:00:03\" }\nswitch = {",
            "16:1: groups[0].endpoints[2]: has two next hops: give it host or switch, not both",
        ),
    ] {
        assert_fault(from, to, &format!("rules.toml:{expected}"));
    }
}

/// A switch behind routers is identified by its address, the McstID of the group there.
#[test]
fn the_address_of_a_switch_must_be_unique() {
    let switch = "name = \"s\", mac";
    for (ip, expected) in [
        (
            "\"10.256.0.1\"",
            "18:29: groups[0].endpoints[2].switch.ip: \"10.256.0.1\" is not an IPv4 address, such as \"10.0.0.1\"",
        ),
        (
            "\"224.0.0.9\"",
            "18:29: groups[0].endpoints[2].switch.ip: 224.0.0.9 is an IP multicast address: give a unicast address",
        ),
        (
            "\"10.255.0.1\"",
            "18:29: groups[0].endpoints[2].switch.ip: 10.255.0.1 is the McstID of this group here: give its McstID at that switch, \
             or leave ip out where no router lies between",
        ),
        (
            "\"10.0.0.2\", qpn = 0x12",
            "18:47: groups[0].endpoints[2].switch.qpn: the QP 0x12 of 10.0.0.2 is that of endpoints[1].host too",
        ),
    ] {
        let far = format!("name = \"s\", ip = {ip}, mac");
        assert_fault(switch, &far, &format!("rules.toml:{expected}"));
    }
    // At one port with a host, in both orders.
    let far = GOOD
        .replace(switch, "name = \"s\", ip = \"10.255.9.1\", mac")
        .replace("port = 2", "port = 1");
    assert_eq!(RuleSet::from_toml(&far).map(|s| s.groups.len()), Ok(1));
    let both = far.replace("10.255.9.1", "10.0.0.2");
    assert_eq!(
        faults(&both).to_string(),
        "rules.toml:16:1: groups[0].endpoints[2]: frames to QPN 0x1 by port 1 could be of endpoints[1] too: give each endpoint of \
         this port a virtual_qpn of its own"
    );
    // Only one of two groups can have a QP of the other switch, and no group here can have its address.
    let second = |text: &str| {
        text.split("[[routes]]")
            .next()
            .unwrap_or_default()
            .replace("\"g\"", "\"h\"")
            .replace("10.255.0.1", "10.255.0.2")
            .replace("qpn = 0x1", "qpn = 0x2")
    };
    let two = format!("{far}{}", second(&far));
    assert_eq!(
        faults(&two).to_string(),
        "rules.toml:40:10: groups[1].endpoints[2].switch.qpn: the QP 0x1 of 10.255.9.1 belongs to group \"g\" already: a QP is a \
         member of one group"
    );
    let two = format!("{far}{}", second(&far.replace("10.255.9.1", "10.255.0.7")))
        .replace("10.255.0.2", "10.255.9.1");
    assert_eq!(
        faults(&two).to_string(),
        "rules.toml:25:11: groups[1].mcst_id: 10.255.9.1 is the address of a member of group \"g\": no host has the address of a \
         group"
    );
}

#[test]
fn an_unknown_kind_is_the_only_fault_of_its_group() {
    assert_fault(
        "pmtu = 1024",
        "pmtu = 1024\nkind = \"broadcast\"\ncolour = 3",
        "rules.toml:5:8: groups[0].kind: \"broadcast\" is no kind of group; kinds: multicast, translated, forwarding",
    );
}

#[test]
fn a_group_without_endpoints_is_refused() {
    let text = "[[groups]]\nname = \"g\"\nmcst_id = \"10.255.0.1\"\npmtu = 256\nsource = 0\nendpoints = []\n";
    assert_eq!(
        faults(text).to_string(),
        "rules.toml:5:10: groups[0].source: port 0 has no endpoint in this group; its ports: none\n\
         rules.toml:6:13: groups[0].endpoints: has 0 endpoint(s): a group needs at least two"
    );
}

#[test]
fn conflicts_between_groups_and_routes() {
    let text = format!("{GOOD}{GOOD}");
    let found = faults(&text).to_string();
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(
        lines,
        [
            "rules.toml:24:8: groups[1].name: \"g\" is the name of group 10.255.0.1 too",
            "rules.toml:25:11: groups[1].mcst_id: 10.255.0.1 is the McstID of group \"g\" too",
            "rules.toml:32:45: groups[1].endpoints[0].host.qpn: the QP 0x11 of 10.0.0.1 belongs to group \"g\" already: a QP \
             is a member of one group",
            "rules.toml:36:45: groups[1].endpoints[1].host.qpn: the QP 0x12 of 10.0.0.2 belongs to group \"g\" already: a QP \
             is a member of one group",
            "rules.toml:43:10: routes[1].prefix: 10.1.0.0/16 is routed by routes[0] already: list all its next hops \
             there",
        ]
    );
    let other = GOOD
        .replace("\"g\"", "\"h\"")
        .replace("10.255.0.1", "10.0.0.2")
        .replace("qpn = 0x1", "qpn = 0x2");
    let other = other
        .replace("10.0.0.2\", qpn", "10.0.0.9\", qpn")
        .split("[[routes]]")
        .next()
        .unwrap_or("")
        .to_string();
    assert_eq!(
        faults(&format!("{GOOD}{other}")).to_string(),
        "rules.toml:25:11: groups[1].mcst_id: 10.0.0.2 is the address of a member of group \"g\": no host has the address of \
         a group"
    );
}

#[test]
fn all_faults_are_reported_at_once_in_order() {
    let text = GOOD
        .replace("start_psn = 7", "start_psn = -1")
        .replace("source = 0", "source = 5")
        .replace("0x12", "0x1000000")
        .replace("port = 2", "prot = 2")
        .replace("length = 64", "length = 0")
        .replace("10.1.0.0/16", "10.1.0.0/99")
        .replace("port = 4", "port = true");
    let found: Vec<String> = faults(&text).faults.iter().map(|f| f.field.clone()).collect();
    assert_eq!(
        found,
        [
            "groups[0].start_psn",
            // Nothing about `source`: the unread port may be 5.
            "groups[0].endpoints[1].host.qpn",
            "groups[0].endpoints[1].host.memory.length",
            "groups[0].endpoints[2].port",
            "groups[0].endpoints[2].prot",
            "routes[0].prefix",
            "routes[0].next_hops[0].port",
        ]
    );
}

#[test]
fn syntax_errors_have_positions() {
    let found = faults(&GOOD.replace("pmtu = 1024", "pmtu = "));
    assert_eq!(found.faults[0].line, 4, "{found}");
    assert_eq!(found.faults[0].field, "");
    let found = faults(&GOOD.replace("pmtu = 1024", "pmtu = 1024\npmtu = 512"));
    assert_eq!(found.faults[0].line, 5, "{found}");
}

#[test]
fn columns_count_characters() {
    let found = faults(&GOOD.replace("name = \"a\", ip = \"10.0.0.1\"", "name = \"ä\", ip = \"10.0.0\""));
    assert_eq!(
        (found.faults[0].line, found.faults[0].column),
        (10, 27),
        "{found}"
    );
}

#[test]
fn a_switch_checks_with_its_own_number_of_ports() {
    let set = RuleSet::from_toml(GOOD).expect("good");
    assert_eq!(set.check(5), []);
    let found: Vec<String> = set.check(2).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "groups[0].endpoints[2].port: port 2 is beyond this switch's 2 ports (0 to 1)",
            "routes[0].next_hops[0].port: port 4 is beyond this switch's 2 ports (0 to 1)",
        ]
    );
}

#[test]
fn a_group_with_any_source_needs_a_start_and_keeps_its_members() {
    assert_fault(
        "start_psn = 7",
        "any_source = true",
        "rules.toml:1:1: groups[0].start_psn: is missing: a group with any_source needs it, as each switch counts the packets of \
         each host from there\n\
         rules.toml:10:8: groups[0].endpoints[0].host.memory: is missing: a group with any_source in which one host has memory is \
         written by each of them, so all have it",
    );
    assert_fault(
        "start_psn = 7",
        "start_psn = 7\nany_source = true\ncarries_on = 1",
        "rules.toml:7:14: groups[0].carries_on: is given in a group with any_source, whose members and state cannot change: give \
         it a new generation instead\n\
         rules.toml:12:8: groups[0].endpoints[0].host.memory: is missing: a group with any_source in which one host has memory is \
         written by each of them, so all have it",
    );
    assert_fault(
        "start_psn = 7",
        "start_psn = 7\nany_source = \"bridge\"",
        "rules.toml:6:14: groups[0].any_source: \"bridge\" is not true, false, \"bridged\" or \"synchronized\"",
    );
    let joins = GOOD
        .replacen("start_psn = 7", "start_psn = 7\nany_source = \"synchronized\"", 1)
        .replacen("port = 1", "port = 1\njoining = true", 1);
    let fault = faults(&joins).to_string();
    assert!(
        fault.contains(
            "rules.toml:15:11: groups[0].endpoints[1].joining: is given in a group with any_source"
        ),
        "{fault}"
    );
}

/// [`GOOD`] with a switch behind a core at port 2.
fn over_core(core: &str) -> String {
    let far = format!(
        r#"{{ name = "s", ip = "10.255.0.2", core = "{core}" }}

[[groups.endpoints]]
port = 2
switch = {{ name = "t", ip = "10.255.0.3", core = "239.1.0.1" }}"#
    );
    GOOD.replacen(r#"{ name = "s", mac = "06:00:00:00:00:01" }"#, &far, 1)
}

#[test]
fn an_address_of_a_static_core_is_a_multicast_address_of_switches_behind_routers() {
    let file = over_core("239.1.0.1");
    let set = RuleSet::from_toml(&file).expect("no faults");
    let cores: Vec<_> = set.groups[0]
        .endpoints
        .iter()
        .map(|e| e.next_hop.core())
        .collect();
    let core = Some([239, 1, 0, 1].into());
    assert_eq!(cores, [None, None, core, core]);
    assert_eq!(set.groups[0].core_source(), None);
    let at = |from: &str, to: &str| {
        assert!(file.contains(from), "{from}");
        faults(&file.replacen(from, to, 1)).to_string()
    };
    for address in ["10.0.0.1", "224.0.0.9", "240.0.0.1"] {
        assert_eq!(
            faults(&over_core(address)).to_string(),
            format!(
                "rules.toml:18:50: groups[0].endpoints[2].switch.core: {address} is no multicast address that routers forward: give \
                 one of 224.0.1.0 to 239.255.255.255"
            )
        );
    }
    let near = at(r#"ip = "10.255.0.2""#, r#"mac = "06:00:00:00:00:01""#);
    let says = "groups[0].endpoints[2].switch.core: is given for a switch without ip: a core lies between switches behind routers";
    assert!(near.contains(says), "{near}");
    assert_eq!(
        at(r#"ip = "10.255.0.3""#, r#"ip = "10.255.0.3", qpn = 7"#),
        "rules.toml:22:59: groups[0].endpoints[3].switch.core: is the address of endpoints[2].switch too, which has another qpn: \
         one copy is for both"
    );
    let any = at("start_psn = 7", "start_psn = 7\nany_source = true");
    let says = "groups[0].endpoints[3].switch.core: is given in a group with any_source: a static core leads from one source";
    assert!(any.contains(says), "{any}");
    let forwards = at("start_psn = 7\nsource = 0", "kind = \"forwarding\"");
    let says = "groups[0].endpoints[3].switch.core: is given in a group that is not of kind \"multicast\": leave it out";
    assert!(forwards.contains(says), "{forwards}");
}

/// Data of the core is told by its source alone.
#[test]
fn two_groups_have_no_common_source_behind_a_core() {
    let file = over_core("239.1.0.1").replacen("source = 0", "source = \"s\"", 1);
    let one = RuleSet::from_toml(&file).expect("no faults");
    assert_eq!(one.groups[0].core_source(), Some([10, 255, 0, 2].into()));
    let other = file
        .replacen("\"g\"", "\"h\"", 1)
        .replacen("10.255.0.1", "10.255.0.9", 1)
        .replace("qpn = 0x1", "qpn = 0x3")
        .replace("core =", "qpn = 2, core =");
    let other = other.split("[[routes]]").next().expect("the group");
    assert_eq!(
        faults(&format!("{other}{file}")).to_string(),
        "rules.toml:41:29: groups[1].endpoints[2].switch.ip: 10.255.0.2 is the source of group \"h\", too: data to the core's address \
         belongs to one group"
    );
}
