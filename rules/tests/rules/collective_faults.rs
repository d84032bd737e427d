//! Every fault of a group that computes in a rule file, with its line, column and field.

use castnet_rules::RuleSet;

/// A valid leaf switch. Each test changes one line.
const GOOD: &str = r#"[[groups]]
kind = "translated"
name = "g"
mcst_id = "10.255.1.1"
pmtu = 1024
slots = 64
parent = 2

[[groups.endpoints]]
port = 0
host = { rank = 0, name = "a", ip = "10.0.0.1", qpn = 0x11, mac = "02:00:00:00:00:01", sq_psn = 1, rq_psn = 2 }

[[groups.endpoints]]
port = 1
host = { rank = 1, name = "b", ip = "10.0.0.2", qpn = 0x12, mac = "02:00:00:00:00:02", sq_psn = 1, rq_psn = 2 }

[[groups.endpoints]]
port = 2
switch = { name = "s", mac = "06:00:00:00:00:01", ranks = [2, 3] }
"#;

fn faults(text: &str) -> String {
    RuleSet::from_toml(text)
        .expect_err("the text has faults")
        .to_string()
}

#[track_caller]
fn assert_fault(from: &str, to: &str, expected: &str) {
    assert!(GOOD.contains(from), "{from}");
    assert_eq!(faults(&GOOD.replacen(from, to, 1)), expected, "{from} -> {to}");
}

/// Switches of different modes repair what is lost between them.
#[test]
fn a_switch_that_reflects_meets_none_of_another_mode() {
    let mixed = GOOD.replacen(
        ", ranks = [2, 3] }",
        ", ranks = [2, 3], mode = \"terminated\" }",
        1,
    );
    RuleSet::from_toml(&mixed).expect("modes may differ");
    let reflecting = mixed.replacen("slots = 64", "slots = 64\nloss_policy = \"reflect\"", 1);
    assert_eq!(
        faults(&reflecting),
        "20:74: groups[0].endpoints[2].switch.mode: is \"terminated\", which cannot meet a switch with the loss policy \"reflect\": losses on \
         this edge are repaired at its ends. Give \"repair\""
    );
}

#[test]
fn the_valid_file_has_no_faults() {
    let set = RuleSet::from_toml(GOOD).unwrap_or_else(|e| panic!("{e}"));
    let group = &set.groups[0];
    let rule = group.translated().expect("it computes");
    assert_eq!(
        (group.size(), rule.message_packets, rule.reproducible),
        (4, 16, false)
    );
    assert_eq!(set.check(3), []);
    assert_eq!(
        set.check(2).iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["groups[0].endpoints[2].port: port 2 is beyond this switch's 2 ports (0 to 1)"]
    );
}

#[test]
fn each_fault_has_its_position() {
    for (from, to, expected) in [
        (
            "name = \"g\"",
            "name = \"a b\"",
            "3:8: groups[0].name: \"a b\" is no name: 1 to 64 printable characters without blanks",
        ),
        (
            "10.255.1.1",
            "224.0.0.1",
            "4:11: groups[0].mcst_id: 224.0.0.1 is an IP multicast address: give a unicast address",
        ),
        (
            "1024",
            "1000",
            "5:8: groups[0].pmtu: 1000 is no path MTU: 256, 512, 1024, 2048 or 4096",
        ),
        (
            "slots = 64",
            "slots = 48",
            "6:9: groups[0].slots: 48 is no power of two from 2 to 32768",
        ),
        (
            "slots = 64",
            "slots = 65536",
            "6:9: groups[0].slots: 65536 is more than a group can have: a power of two, 2 to 32768",
        ),
        (
            "slots = 64",
            "slots = 16",
            "6:9: groups[0].slots: 16 slots are too few: messages of 16 packets need 32 or more",
        ),
        (
            "slots = 64",
            "slots = 64\nmessage_packets = 0",
            "7:19: groups[0].message_packets: is 0: a message has at least 1 packet",
        ),
        (
            "slots = 64",
            "slots = 64\nreproducible = 1",
            "7:16: groups[0].reproducible: a whole number where true or false belongs",
        ),
        (
            "slots = 64",
            "slots = 64\nloss_policy = \"hope\"",
            "7:15: groups[0].loss_policy: \"hope\" is not a policy: \"repair\" or \"reflect\"",
        ),
        (
            "slots = 64",
            "slots = 64\nmode = \"both\"",
            "7:8: groups[0].mode: \"both\" is not a mode: \"translated\", \"augmented\" or \"terminated\"",
        ),
        (
            "slots = 64",
            "slots = 64\nmode = \"augmented\"\nloss_policy = \"reflect\"",
            "8:15: groups[0].loss_policy: is \"reflect\": in the mode \"augmented\", each switch repairs. Give \"repair\", or the mode \
             \"translated\"",
        ),
        (
            "slots = 64",
            "slots = 2\nmode = \"augmented\"\nmessage_packets = 1",
            "6:9: groups[0].slots: 2 slots are too few: messages of 1 packets need 4 or more",
        ),
        (
            "slots = 64",
            "slots = 1024\nmode = \"terminated\"\nmessage_packets = 257",
            "8:19: groups[0].message_packets: is 257: in the mode \"terminated\", a switch adds whole messages, of at most 256 packets",
        ),
        (
            "slots = 64",
            "slots = 64\nack_timeout_us = 3",
            "7:18: groups[0].ack_timeout_us: is 3: give at least 4 microseconds",
        ),
        (
            "slots = 64",
            "slots = 64\nstall_timeout_ms = 0",
            "7:20: groups[0].stall_timeout_ms: is 0: give at least 1 millisecond",
        ),
        (
            "parent = 2",
            "parent = 9",
            "7:10: groups[0].parent: port 9 has no endpoint in this group; its ports: 0, 1, 2",
        ),
        (
            "parent = 2",
            "parent = 1",
            "7:10: groups[0].parent: \"b\" is a rank: the parent is a switch, and the root of the tree has none",
        ),
        (
            "parent = 2",
            "parent = \"t\"",
            "7:10: groups[0].parent: \"t\" is not among the endpoints of this group: a, b, s",
        ),
        (
            "parent = 2",
            "parent = true",
            "7:10: groups[0].parent: true or false where a whole number belongs",
        ),
        (
            "{ rank = 1",
            "{ rank = 0",
            "9:1: groups[0].endpoints: there is no endpoint for rank 1: each rank from 0 to 3 must be behind one\n\
             15:17: groups[0].endpoints[1].host.rank: rank 0 is behind endpoints[0] too",
        ),
        (
            "{ rank = 1",
            "{ rank = 1024",
            "15:17: groups[0].endpoints[1].host.rank: 1024 is no rank: 0 to 1023",
        ),
        (
            "[2, 3]",
            "[3]",
            "9:1: groups[0].endpoints: there is no endpoint for rank 2: each rank from 0 to 3 must be behind one",
        ),
        (
            "[2, 3]",
            "[2, 3, 2]",
            "19:59: groups[0].endpoints[2].switch.ranks: rank 2 is behind endpoints[2] too",
        ),
        (
            "[2, 3]",
            "[]",
            "19:59: groups[0].endpoints[2].switch.ranks: is empty: name the ranks behind this switch",
        ),
        (
            "name = \"b\"",
            "name = \"a\"",
            "15:27: groups[0].endpoints[1].host.name: \"a\" is the name of endpoints[0].host too",
        ),
        (
            "10.0.0.2",
            "10.255.1.1",
            "15:37: groups[0].endpoints[1].host.ip: 10.255.1.1 is the McstID of this group: no host has that address",
        ),
        (
            "0x12",
            "1",
            "15:55: groups[0].endpoints[1].host.qpn: 0x1 is reserved (0 and 1: management, 0xffffff: multicast); RC QPs are 0x2 to 0xfffffe",
        ),
        (
            ", ranks = [2, 3] }",
            ", ranks = [2, 3], mode = \"translated\" }",
            "19:74: groups[0].endpoints[2].switch.mode: is \"translated\", the mode here: leave it out, it is for a switch of another mode",
        ),
        (
            "host = { rank = 0",
            "hst = { rank = 0",
            "9:1: groups[0].endpoints[0]: has no next hop: give it host = { ... } or switch = { ... }\n11:1: groups[0].endpoints[0].hst: unknown field, did you mean \"host\"?; allowed: port, virtual_qpn, verify_mac, joining, host, switch",
        ),
        (
            ", rq_psn = 2 }",
            " }",
            "11:8: groups[0].endpoints[0].host.rq_psn: missing: a PSN, 0 to 0xffffff",
        ),
    ] {
        assert_fault(from, to, expected);
    }
}

/// Ranks of one host at one port, and a switch at another.
const SHARED: &str = r#"[[groups]]
kind = "translated"
name = "g"
mcst_id = "10.255.1.1"
pmtu = 1024
slots = 64
parent = "s"

[[groups.endpoints]]
port = 0
virtual_qpn = 2
host = { rank = 0, name = "a#0", ip = "10.0.0.1", qpn = 0x11, mac = "02:00:00:00:00:01", sq_psn = 1, rq_psn = 2 }

[[groups.endpoints]]
port = 0
virtual_qpn = 3
host = { rank = 1, name = "a#1", ip = "10.0.0.1", qpn = 0x12, mac = "02:00:00:00:00:01", sq_psn = 1, rq_psn = 2 }

[[groups.endpoints]]
port = 0
virtual_qpn = 2
host = { rank = 2, name = "b", ip = "10.0.0.2", qpn = 0x11, mac = "02:00:00:00:00:02", sq_psn = 1, rq_psn = 2 }

[[groups.endpoints]]
port = 0
virtual_qpn = 4
switch = { name = "s", qpn = 9, mac = "06:00:00:00:00:01", ranks = [3] }
"#;

#[test]
fn endpoints_may_share_a_port_if_qpn_or_address_differ() {
    let set = RuleSet::from_toml(SHARED).unwrap_or_else(|e| panic!("{e}"));
    let group = &set.groups[0];
    let upstream = group
        .upstream()
        .map(|e| (e.next_hop.name(), e.next_hop.qpn().value()));
    assert_eq!(upstream, Some(("s", 9)));
    assert_eq!(RuleSet::from_toml(&set.to_toml()), Ok(set.clone()));
    // The port alone does not identify an endpoint here.
    let by_port = SHARED.replace("parent = \"s\"", "parent = 0");
    assert_eq!(
        faults(&by_port),
        "7:10: groups[0].parent: port 0 has several endpoints: name the one that is meant by its host or switch"
    );
    let clash = |qpn, first| {
        format!(
            "frames to QPN {qpn} by port 0 could be of endpoints[{first}] too: give each endpoint of this port a virtual_qpn of its own"
        )
    };
    for (from, to, expected) in [
        ("virtual_qpn = 3", "virtual_qpn = 2", format!("14:1: groups[0].endpoints[1]: {}", clash("0x2", 0))),
        ("virtual_qpn = 4", "virtual_qpn = 2", format!("24:1: groups[0].endpoints[3]: {}", clash("0x2", 0))),
        (
            "qpn = 0x12",
            "qpn = 0x11",
            "17:57: groups[0].endpoints[1].host.qpn: the QP 0x11 of 10.0.0.1 is that of endpoints[0].host too".into(),
        ),
        (
            "virtual_qpn = 3",
            "virtual_qpn = 0xffffff",
            "16:15: groups[0].endpoints[1].virtual_qpn: 0xffffff is reserved (0: management, 0xffffff: multicast); a \
             switch's QPNs are 0x1 to 0xfffffe"
                .into(),
        ),
        (
            "qpn = 9",
            "qpn = 0",
            "27:30: groups[0].endpoints[3].switch.qpn: 0x0 is reserved (0: management, 0xffffff: multicast); a switch's \
             QPNs are 0x1 to 0xfffffe"
                .into(),
        ),
    ] {
        assert_eq!(faults(&SHARED.replacen(from, to, 1)), expected, "{from} -> {to}");
    }
}

/// Sorting the endpoints does not change which endpoint is the parent.
#[test]
fn a_sorted_rule_has_the_same_endpoints() {
    let mut set = RuleSet::from_toml(SHARED).unwrap_or_else(|e| panic!("{e}"));
    let group = set.groups.remove(0);
    let ordered = group.clone().in_order();
    assert_eq!(ordered, group);
    let mut mixed = group.clone().with_translated(|rule| rule.parent = Some(0));
    mixed.endpoints.rotate_right(1);
    assert_eq!(mixed.in_order(), ordered);
}

#[test]
fn more_endpoints_than_a_group_can_have_are_refused() {
    let mut set = RuleSet::from_toml(SHARED).unwrap_or_else(|e| panic!("{e}"));
    let mut group = set.groups.remove(0);
    let first = group.endpoints[0].clone();
    for n in 0..1021 {
        let mut more = first.clone();
        more.virtual_qpn = castnet_wire::Qpn::new(0x100 + n);
        group.endpoints.push(more);
    }
    let faults: Vec<String> = group.check(64).iter().map(ToString::to_string).collect();
    assert!(
        faults.contains(&"endpoints: has 1025 endpoints: a group has at most 1024 on one switch".to_string()),
        "{faults:?}"
    );
}

#[test]
fn groups_of_all_kinds_share_one_space_of_names_and_addresses() {
    let multicast = r#"
[[groups]]
name = "g"
mcst_id = "10.255.1.1"
pmtu = 1024
source = 0

[[groups.paths]]
port = 0
host = { name = "a", ip = "10.0.0.1", qpn = 0x21, mac = "02:00:00:00:00:01" }

[[groups.paths]]
port = 1
host = { name = "b", ip = "10.0.0.2", qpn = 0x12, mac = "02:00:00:00:00:02" }
"#;
    assert_eq!(
        faults(&format!("{GOOD}{multicast}")),
        "22:8: groups[1].name: \"g\" is the name of group 10.255.1.1 too\n\
         23:11: groups[1].mcst_id: 10.255.1.1 is the McstID of group \"g\" too\n\
         33:45: groups[1].endpoints[1].host.qpn: the QP 0x12 of 10.0.0.2 belongs to group \"g\" already: a QP is a \
         member of one group"
    );
}
