//! What a rule file must not say, an installation over gRPC must not either: each fault is refused both ways, with the
//! same words for the same field.

use castnet_agent::{LoadError, load_rules};
use castnet_proto::convert::{route_to_proto, rule_to_proto, violations};
use castnet_proto::v1;
use castnet_rules::{
    GroupKind, GroupRule, HostEndpoint, HostPart, NextHop, RankPart, RemoteMemory, Route, RuleSet,
    TranslatedRule,
};
use castnet_wire::{MacAddr, McstId, Qpn};
use tonic::{Code, Status};

use crate::agent::{Lab, port};

const PORTS: usize = 3;

/// What is installed, and what is to be: a group of each kind, and a route.
const RULES: &str = r#"
[[groups]]
name = "held"
mcst_id = "10.200.0.1"
pmtu = 1024
source = 0
paths = [
  { port = 0, host = { name = "a", ip = "10.0.0.1", qpn = 0x11, mac = "02:00:00:00:00:01" } },
  { port = 1, host = { name = "b", ip = "10.0.0.2", qpn = 0x11, mac = "02:00:00:00:00:02" } },
]

[[groups]]
name = "g"
mcst_id = "10.200.0.3"
pmtu = 1024
source = 0
paths = [
  { port = 0, host = { name = "a", ip = "10.0.0.1", qpn = 0x13, mac = "02:00:00:00:00:01" } },
  { port = 1, host = { name = "b", ip = "10.0.0.2", qpn = 0x13, mac = "02:00:00:00:00:02" } },
]

[[collectives]]
name = "held-sums"
mcst_id = "10.200.0.2"
pmtu = 1024
slots = 64
endpoints = [
  { port = 0, rank = { rank = 0, name = "a", ip = "10.0.0.1", qpn = 0x12, mac = "02:00:00:00:00:01", sq_psn = 0, rq_psn = 0 } },
  { port = 1, rank = { rank = 1, name = "b", ip = "10.0.0.2", qpn = 0x12, mac = "02:00:00:00:00:02", sq_psn = 0, rq_psn = 0 } },
]

[[collectives]]
name = "c"
mcst_id = "10.200.0.4"
pmtu = 1024
slots = 64
parent = 2
endpoints = [
  { port = 0, rank = { rank = 0, name = "a", ip = "10.0.0.1", qpn = 0x14, mac = "02:00:00:00:00:01", sq_psn = 0, rq_psn = 0 } },
  { port = 1, rank = { rank = 1, name = "b", ip = "10.0.0.2", qpn = 0x14, mac = "02:00:00:00:00:02", sq_psn = 0, rq_psn = 0 } },
  { port = 2, switch = { name = "s", mac = "06:00:00:00:00:01", ranks = [2] } },
]

[[routes]]
prefix = "10.1.0.0/16"
next_hops = [{ port = 2, mac = "06:00:00:00:00:01" }]

[[routes]]
prefix = "10.2.0.0/16"
next_hops = [{ port = 2, mac = "06:00:00:00:00:01" }]
"#;

fn rules() -> RuleSet {
    RuleSet::from_toml(RULES).unwrap_or_else(|faults| panic!("{faults}"))
}

/// A switch with the first group of each kind.
async fn switch() -> Lab {
    let mut lab = Lab::new(|_| ()).await;
    let rules = rules();
    install(&mut lab, rule_to_proto(&rules.groups[0])).await.unwrap();
    install(&mut lab, rule_to_proto(&rules.groups[2])).await.unwrap();
    lab
}

async fn install(lab: &mut Lab, rule: v1::GroupRule) -> Result<(), Status> {
    let (rule, owner) = (Some(rule), "us".into());
    let request = v1::InstallGroupRequest { rule, owner };
    lab.client.install_group(request).await.map(|_| ())
}

type Faults = Vec<(String, String)>;

/// What is wrong with a rule file.
fn of_file(text: &str) -> Faults {
    let mut faults: Faults = match RuleSet::from_toml(text) {
        Ok(rules) => {
            let faults = rules.check(PORTS).into_iter();
            faults.map(|f| (f.field, f.kind.to_string())).collect()
        }
        Err(found) => {
            let faults = found.faults.into_iter();
            faults.map(|f| (f.field, f.message)).collect()
        }
    };
    faults.sort();
    faults
}

/// What is wrong with a request, in the words of a file whose fields are called `file` where the request's are called
/// `message`.
fn of_request(refused: Result<(), Status>, message: &str, file: &str) -> Faults {
    let status = refused.expect_err(file);
    let expected = [Code::InvalidArgument, Code::AlreadyExists];
    assert!(expected.contains(&status.code()), "{status}");
    let renamed = violations(&status).into_iter().map(|violation| {
        // Messages have what a kind adds below its name.
        let field = violation
            .field
            .replace("multicast.", "")
            .replace("translated.", "");
        let field = field.strip_prefix(message).map(|rest| format!("{file}{rest}"));
        (field.unwrap_or(violation.field), violation.reason)
    });
    let mut faults: Faults = renamed.collect();
    faults.sort();
    faults
}

fn host(group: &mut GroupRule, endpoint: usize) -> &mut HostEndpoint {
    match &mut group.endpoints[endpoint].next_hop {
        NextHop::Host(host) => host,
        NextHop::Switch { .. } => panic!("a switch"),
    }
}

fn rank(group: &mut GroupRule, endpoint: usize) -> &mut RankPart {
    match &mut host(group, endpoint).part {
        HostPart::Rank(rank) => rank,
        other => panic!("{other:?}"),
    }
}

fn ranks(group: &mut GroupRule, behind: &[u16]) {
    if let NextHop::Switch { ranks, .. } = &mut group.endpoints[2].next_hop {
        *ranks = behind.to_vec();
    }
}

fn sums(group: &mut GroupRule) -> &mut TranslatedRule {
    match &mut group.kind {
        GroupKind::Translated(rule) => rule,
        other => panic!("{other:?}"),
    }
}

fn memory(va: u64, length: u64) -> HostPart {
    HostPart::Memory(RemoteMemory { va, rkey: 1, length })
}

/// What a fault is, and what makes it.
type Case<T> = (&'static str, fn(&mut T));
/// A line of a file, what takes its place there, and what does the same to a message.
type Broken = (&'static str, &'static str, fn(&mut v1::GroupRule));

const GROUPS: [Case<GroupRule>; 19] = [
    ("is no name", |g| g.name = "a b".into()),
    ("is the name of group 10.200.0.1", |g| g.name = "held".into()),
    ("an IP multicast address", |g| g.mcst_id.0 = [224, 0, 0, 1].into()),
    ("is the McstID of group \"held\"", |g| {
        g.mcst_id.0 = [10, 200, 0, 1].into()
    }),
    ("is the address of a member of group \"held\"", |g| {
        host(g, 1).ip = [10, 0, 0, 9].into();
        g.mcst_id = McstId([10, 0, 0, 2].into());
    }),
    ("is the McstID of this group", |g| host(g, 1).ip = g.mcst_id.0),
    ("is the McstID of group \"held\"", |g| {
        host(g, 1).ip = [10, 200, 0, 1].into()
    }),
    ("belongs to group \"held\" already", |g| {
        host(g, 1).qpn = Qpn::new(0x11)
    }),
    ("is reserved", |g| host(g, 1).qpn = Qpn::new(1)),
    ("a loopback address", |g| host(g, 1).ip = [127, 0, 0, 1].into()),
    ("is that of endpoints[0].host too", |g| {
        let first = host(g, 0).clone();
        (host(g, 1).ip, host(g, 1).qpn) = (first.ip, first.qpn);
    }),
    ("is the name of endpoints[0].host", |g| {
        host(g, 1).name = "a".into()
    }),
    ("a multicast address", |g| {
        host(g, 1).mac = MacAddr([3, 0, 0, 0, 0, 2])
    }),
    ("leave memory out", |g| host(g, 1).part = memory(0, 0)),
    ("run over the end", |g| host(g, 1).part = memory(u64::MAX, 2)),
    ("give at least 1 millisecond", |g| g.stall_timeout_ms = 0),
    ("could be of endpoints[0] too", |g| {
        g.endpoints[1].port = port(0);
        host(g, 1).ip = [10, 0, 0, 1].into();
        host(g, 1).qpn = Qpn::new(0x15);
    }),
    ("0xffffff is reserved", |g| {
        g.endpoints[1].virtual_qpn = Qpn::new(0xFF_FFFF)
    }),
    ("is beyond this switch's 3 ports", |g| {
        g.endpoints[1].port = port(7)
    }),
];

/// Clashes with the collective group that is installed. In a file that group comes after all multicast groups, and is the
/// one at fault.
const GROUPS_BESIDE_SUMS: [Case<GroupRule>; 4] = [
    ("is the name of group 10.200.0.2", |g| g.name = "held-sums".into()),
    ("is the McstID of group \"held-sums\"", |g| {
        g.mcst_id.0 = [10, 200, 0, 2].into()
    }),
    ("is the McstID of group \"held-sums\"", |g| {
        host(g, 1).ip = [10, 200, 0, 2].into()
    }),
    ("belongs to group \"held-sums\" already", |g| {
        host(g, 1).qpn = Qpn::new(0x12)
    }),
];

const SUMS: [Case<GroupRule>; 19] = [
    ("is the name of group 10.200.0.1", |g| g.name = "held".into()),
    ("is the McstID of group \"held-sums\"", |g| {
        g.mcst_id.0 = [10, 200, 0, 2].into()
    }),
    ("is the address of a member of group \"held\"", |g| {
        host(g, 1).ip = [10, 0, 0, 9].into();
        g.mcst_id = McstId([10, 0, 0, 2].into());
    }),
    ("is the McstID of group \"held\"", |g| {
        host(g, 1).ip = [10, 200, 0, 1].into()
    }),
    ("belongs to group \"held\" already", |g| {
        host(g, 1).qpn = Qpn::new(0x11)
    }),
    ("belongs to group \"held-sums\" already", |g| {
        host(g, 1).qpn = Qpn::new(0x12)
    }),
    ("is reserved", |g| host(g, 1).qpn = Qpn::new(0xFF_FFFF)),
    ("is that of endpoints[0].host too", |g| {
        let first = host(g, 0).clone();
        (host(g, 1).ip, host(g, 1).qpn) = (first.ip, first.qpn);
    }),
    ("is no power of two", |g| sums(g).slots = 48),
    ("16 slots are too few", |g| sums(g).slots = 16),
    ("a message has at least 1 packet", |g| sums(g).message_packets = 0),
    ("give at least 4 microseconds", |g| sums(g).ack_timeout_us = 3),
    ("give at least 1 millisecond", |g| g.stall_timeout_ms = 0),
    ("\"b\" is a rank", |g| sums(g).parent = Some(1)),
    ("could be of endpoints[0] too", |g| g.endpoints[2].port = port(0)),
    ("is beyond this switch's 3 ports", |g| {
        g.endpoints[1].port = port(7)
    }),
    ("is behind endpoints[0] too", |g| rank(g, 1).rank = 0),
    ("there is no endpoint for rank 2", |g| ranks(g, &[3])),
    ("name the ranks behind this switch", |g| ranks(g, &[])),
];

const ROUTES: [Case<Route>; 5] = [
    ("has bits set beyond its length", |r| {
        r.prefix = "10.2.0.1/16".parse().unwrap()
    }),
    ("is routed by routes[0] already", |r| {
        r.prefix = "10.1.0.0/16".parse().unwrap()
    }),
    ("at least one next hop", |r| r.next_hops.clear()),
    ("list each next hop once", |r| r.next_hops.push(r.next_hops[0])),
    ("is beyond this switch's 3 ports", |r| {
        r.next_hops[0].port = port(7)
    }),
];

#[tokio::test]
async fn each_fault_is_refused_both_ways_with_the_same_words() {
    let mut lab = switch().await;
    let before = lab.dataplane.generation();
    let same = |file: Faults, request: Faults, says: &str| {
        assert!(
            file.iter().any(|(_, text)| text.contains(says)),
            "{says}: {file:?}"
        );
        assert_eq!(file, request, "{says}");
    };
    for (says, spoil) in GROUPS {
        let mut rules = rules();
        spoil(&mut rules.groups[1]);
        // In a file they come after, and would clash with what is spoiled here.
        rules.groups.truncate(2);
        let refused = install(&mut lab, rule_to_proto(&rules.groups[1])).await;
        let request = of_request(refused, "rule.", "groups[1].");
        same(of_file(&rules.to_toml()), request, says);
    }
    for (says, spoil) in GROUPS_BESIDE_SUMS {
        let mut group = rules().groups.remove(1);
        spoil(&mut group);
        let refused = install(&mut lab, rule_to_proto(&group)).await;
        let request = of_request(refused, "", "");
        assert!(request[0].1.contains(says), "{request:?}");
    }
    for (says, spoil) in SUMS {
        let mut rules = rules();
        spoil(&mut rules.groups[3]);
        let refused = install(&mut lab, rule_to_proto(&rules.groups[3])).await;
        let request = of_request(refused, "rule.", "groups[3].");
        same(of_file(&rules.to_toml()), request, says);
    }
    for (says, spoil) in ROUTES {
        let mut rules = rules();
        spoil(&mut rules.routes[1]);
        let routes = rules.routes.iter().map(route_to_proto).collect();
        let request = v1::SetRoutesRequest { routes };
        let refused = lab.client.set_routes(request).await.map(|_| ());
        same(of_file(&rules.to_toml()), of_request(refused, "", ""), says);
    }
    assert_eq!(lab.dataplane.generation(), before, "nothing was published");
}

/// Of numbers and texts that the types of a rule cannot hold: in the file, and in the message.
const VALUES: [Broken; 6] = [
    ("mcst_id = \"10.200.0.3\"", "mcst_id = \"10.200.0\"", |g| {
        g.mcst_id = "10.200.0".into()
    }),
    ("pmtu = 1024", "pmtu = 1500", |g| g.pmtu = 1500),
    ("source = 0", "source = 0\nstart_psn = 16777216", |g| {
        message_kind(g).start_psn = Some(1 << 24)
    }),
    ("qpn = 0x13", "qpn = 0x1000000", |g| message_host(g).qpn = 1 << 24),
    ("ip = \"10.0.0.1\"", "ip = \"here\"", |g| {
        message_host(g).ip = "here".into()
    }),
    ("mac = \"02:00:00:00:00:01\"", "mac = \"02\"", |g| {
        message_host(g).mac = "02".into()
    }),
];

fn message_host(group: &mut v1::GroupRule) -> &mut v1::HostEndpoint {
    match &mut group.endpoints[0].next_hop {
        Some(v1::endpoint::NextHop::Host(host)) => host,
        _ => panic!("no host"),
    }
}

fn message_kind(group: &mut v1::GroupRule) -> &mut v1::MulticastRule {
    match &mut group.kind {
        Some(v1::group_rule::Kind::Multicast(rule)) => rule,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_no_type_can_hold_is_refused_both_ways_with_the_same_words() {
    let mut lab = switch().await;
    let text = RULES.split("[[collectives]]").next().unwrap();
    let (held, mine) = text.split_at(text.rfind("[[groups]]").unwrap());
    for (from, to, spoil) in VALUES {
        let mut message = rule_to_proto(&rules().groups[1]);
        spoil(&mut message);
        let refused = install(&mut lab, message).await;
        let request = of_request(refused, "rule.", "groups[1].");
        let file = of_file(&format!("{held}{}", mine.replacen(from, to, 1)));
        assert!(file.len() == 1 && file == request, "{to}: {file:?} {request:?}");
    }
}

/// A new version of a group may have the name, address and QPs of the one that it replaces, and what a group had is free
/// when it is gone.
#[tokio::test]
async fn a_group_does_not_clash_with_itself_nor_with_what_is_gone() {
    let mut lab = switch().await;
    let mut held = rules().groups.remove(0);
    held.generation += 1;
    host(&mut held, 1).qpn = Qpn::new(0x15);
    install(&mut lab, rule_to_proto(&held)).await.unwrap();
    let mut other = rules().groups.remove(1);
    host(&mut other, 1).qpn = Qpn::new(0x15);
    assert!(install(&mut lab, rule_to_proto(&other)).await.is_err());
    // The first version's QP is nobody's any more.
    host(&mut other, 1).qpn = Qpn::new(0x11);
    install(&mut lab, rule_to_proto(&other)).await.unwrap();
    let request = v1::RemoveGroupRequest {
        mcst_id: held.mcst_id.to_string(),
        owner: None,
        generation: None,
    };
    lab.client.remove_group(request).await.unwrap();
    let mut heir = rules().groups.remove(3);
    (heir.name, heir.mcst_id) = ("held".into(), held.mcst_id);
    host(&mut heir, 1).qpn = Qpn::new(0x15);
    install(&mut lab, rule_to_proto(&heir)).await.unwrap();
    let kinds: Vec<&str> = lab
        .dataplane
        .rules()
        .iter()
        .map(|rule| rule.kind.name())
        .collect();
    assert_eq!(kinds, ["translated", "translated", "multicast"]);
}

/// Of a file that clashes with what runs, nothing is installed, and what ran before runs on.
#[tokio::test]
async fn a_file_that_clashes_with_what_runs_changes_nothing() {
    let lab = switch().await;
    let before = lab.dataplane.rules();
    let mut rules = rules();
    rules.groups[0].generation += 1;
    rules.groups.remove(2);
    host(&mut rules.groups[2], 1).qpn = Qpn::new(0x12);
    let loaded = {
        let dataplane = lab.dataplane.clone();
        tokio::task::spawn_blocking(move || load_rules(&dataplane, &rules))
    };
    let refused = loaded.await.unwrap();
    assert!(
        matches!(&refused, Err(LoadError::Group { name, .. }) if name == "c"),
        "{refused:?}"
    );
    assert_eq!(lab.dataplane.rules(), before);
    assert!(lab.dataplane.routes().is_empty());
}
