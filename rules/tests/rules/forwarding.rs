//! The fields of a forwarding group (none), and the checks of its endpoints.

use castnet_rules::{FORWARDING_EXAMPLE as GOOD, ForwardingRule, GroupKind, NextHop, RankPart, RuleSet};

#[test]
fn a_forwarding_group_is_read_and_written_and_reserves_no_memory() {
    let set = RuleSet::from_toml(GOOD).unwrap_or_else(|e| panic!("{e}"));
    let group = &set.groups[0];
    assert_eq!(group.kind, GroupKind::Forwarding(ForwardingRule {}));
    assert_eq!(
        (group.kind.name(), group.upstream(), group.reserved_bytes()),
        ("forwarding", None, 0)
    );
    assert_eq!(RuleSet::from_toml(&set.to_toml()), Ok(set));
}

#[test]
fn each_fault_has_its_position() {
    let third = "\n[[groups.endpoints]]\nport = 2\nswitch = { name = \"s\", mac = \"06:00:00:00:00:02\" }\n";
    let faulty = [
        (
            GOOD.replace("pmtu = 1024", "pmtu = 1024\nsource = \"a\""),
            "9:1: groups[0].source: unknown field; allowed: ",
        ),
        (
            format!("{GOOD}{third}"),
            "10:1: groups[0].endpoints: has 3 endpoints: a group that forwards has exactly two",
        ),
        (
            GOOD[..GOOD.rfind("[[").expect("two endpoints")].into(),
            "10:1: groups[0].endpoints: has 1 endpoint(s): a group needs at least two",
        ),
        (
            GOOD.replace("name = \"a\"", "rank = 0, name = \"a\""),
            "12:10: groups[0].endpoints[0].host.rank: unknown field; allowed: ",
        ),
    ];
    for (text, expected) in faulty {
        let found = RuleSet::from_toml(&text)
            .expect_err("the text has a fault")
            .to_string();
        assert!(found.starts_with(expected) && !found.contains('\n'), "{found}");
    }
    // Messages can contain faults that files cannot.
    let mut set = RuleSet::from_toml(GOOD).unwrap_or_else(|e| panic!("{e}"));
    if let NextHop::Host(host) = &mut set.groups[0].endpoints[1].next_hop {
        let psn = castnet_wire::Psn::new(0);
        host.part = RankPart {
            rank: 0,
            sq_psn: psn,
            rq_psn: psn,
        }
        .into();
    }
    let found: Vec<_> = set.check(2).iter().map(ToString::to_string).collect();
    let expected =
        "groups[0].endpoints[1].host.rank: is given in a group that does not compute: leave it out";
    assert_eq!(found, [expected]);
}
