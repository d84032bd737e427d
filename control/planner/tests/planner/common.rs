//! Random fabrics and requests.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use castnet_planner::{Edge, LinkLoad, Member, Plan, PlanError, Request, RoomTable};
use castnet_rules::{GroupRule, MulticastRule};
use castnet_topology::{End, LinkId, Topology};
use castnet_wire::{McstId, Pmtu, Qpn};
use proptest::prelude::*;
use proptest::sample::Index;

/// A fabric with some links down, a request in it, and groups that links carry already.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) topology: Topology,
    pub(crate) request: Request,
}

pub(crate) fn request(source: &str, receivers: &[&str]) -> Request {
    let member = |name: &str| Member::new(name, Qpn::new(0x11));
    let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, 1));
    let members = core::iter::once(&source)
        .chain(receivers)
        .map(|name| member(name));
    let rule = MulticastRule::default();
    Request::multicast("g", mcst_id, Pmtu::B1024, members.collect(), rule)
}

/// A plan over switches with room.
pub(crate) fn plan(topology: &Topology, load: &LinkLoad, request: &Request) -> Result<Plan, PlanError> {
    castnet_planner::plan(topology, load, &RoomTable::new(), request)
}

/// The load of one group, counted from its rules.
pub(crate) fn load_of(topology: &Topology, rules: &BTreeMap<String, GroupRule>) -> LinkLoad {
    let edges = rules.iter().flat_map(|(switch, rule)| {
        let edge = move |e| Edge::new(switch, rule, e, |name| rules.get(name));
        rule.endpoints.iter().map(edge)
    });
    let edges: Vec<Edge> = edges.collect();
    LinkLoad::from_edges(topology, edges.iter().map(|edge| (edge, 1)))
}

/// A random fabric: a random tree of switches, more links on top, hosts anywhere, a few links down.
pub(crate) fn case() -> impl Strategy<Value = Case> {
    (1usize..10, 2usize..16).prop_flat_map(|(switches, hosts)| {
        (
            proptest::collection::vec(any::<Index>(), switches),
            proptest::collection::vec((any::<Index>(), any::<Index>()), 0..12),
            proptest::collection::vec(any::<Index>(), hosts),
            proptest::collection::vec(any::<Index>(), 0..4),
            (1..hosts, Just((0..hosts).collect::<Vec<_>>()).prop_shuffle()),
        )
            .prop_map(move |(parents, extra, homes, down, (receivers, order))| {
                let mut topology = fabric(switches, &parents, &extra, &homes);
                let links = topology.links().count();
                for index in down {
                    topology.set_link_up(LinkId(index.index(links) as u32), false);
                }
                let names: Vec<String> = order.iter().map(|i| format!("h{i}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                Case {
                    topology,
                    request: request(names[0], &names[1..=receivers]),
                }
            })
    })
}

fn fabric(switches: usize, parents: &[Index], extra: &[(Index, Index)], homes: &[Index]) -> Topology {
    let mut t = Topology::new();
    let mut free = vec![0u8; switches];
    for s in 0..switches {
        let ports = (0..64).map(|p| (p, [6, 0, 0, 0, s as u8, p]));
        t.add_switch(&format!("s{s}"), ports).expect("a new name");
    }
    let mut take = |s: usize| {
        free[s] += 1;
        End::port(format!("s{s}"), free[s] - 1)
    };
    for (s, parent) in parents.iter().enumerate().skip(1) {
        let (a, b) = (take(s), take(parent.index(s)));
        t.connect(a, b, 9000).expect("free ports");
    }
    for (a, b) in extra {
        let (a, b) = (a.index(switches), b.index(switches));
        if a != b {
            let (a, b) = (take(a), take(b));
            t.connect(a, b, 9000).expect("free ports");
        }
    }
    for (h, home) in homes.iter().enumerate() {
        let ip = Ipv4Addr::new(10, 0, 0, h as u8 + 1);
        t.add_host(&format!("h{h}"), Some(ip), Some([2, 0, 0, 0, 0, h as u8]))
            .expect("a new name");
        let end = take(home.index(switches));
        t.connect(end, End::host(format!("h{h}")), 9000)
            .expect("a free port");
    }
    t
}
