//! MRP and the planner give a switch the same table.

use std::collections::BTreeMap;

use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
use castnet_rules::{GroupRule, HostPart, MulticastRule, NextHop, RemoteMemory};
use castnet_topology::{End, Topology, TopologyError};
use castnet_wire::{Nanos, Pmtu};
use proptest::prelude::*;

use crate::net::{Faults, MCST_ID, Net, member, memory};

/// The rules of the planner, with the names that MRP gives: it does not know those of hosts.
fn planned(topology: &Topology, load: &mut LinkLoad, members: &[String]) -> BTreeMap<String, GroupRule> {
    let of = |host: &String| {
        let own = member(topology, host, false);
        let region = memory(&own)
            .filter(|_| *host != members[0])
            .map(|m| RemoteMemory {
                va: m.va,
                rkey: m.rkey,
                length: m.length,
            });
        Member {
            part: HostPart::from(region),
            ..Member::new(host, own.qpn)
        }
    };
    let all = members.iter().map(of).collect();
    let name = castnet_mrp::group_name(MCST_ID);
    let request = Request::multicast(&name, MCST_ID, Pmtu::B1024, all, MulticastRule::default());
    let plan = plan(topology, load, &RoomTable::new(), &request).expect("a plan");
    load.add(&plan.tree);
    let mut rules = plan.rules;
    for endpoint in rules.values_mut().flat_map(|rule| &mut rule.endpoints) {
        if let NextHop::Host(host) = &mut endpoint.next_hop {
            host.name = host.ip.to_string();
        }
    }
    rules
}

/// Leaves with one port each at one ordinary switch. With `racks`, the hosts of a leaf are behind an ordinary switch as well.
fn segment(leaves: usize, hosts: usize, racks: bool) -> Result<Topology, TopologyError> {
    let mut topology = Topology::new();
    topology.add_plain("plain", leaves as u8)?;
    for leaf in 0..leaves as u8 {
        let name = format!("leaf{leaf}");
        let macs = (0..=hosts as u8).map(|port| (port, [2, 0xAA, 0, 0, leaf, port]));
        topology.add_switch(&name, macs.collect::<Vec<_>>())?;
        topology.connect(End::port(&name, 0), End::port("plain", leaf), 1500)?;
        let rack = format!("rack{leaf}");
        if racks {
            topology.add_plain(&rack, hosts as u8 + 1)?;
            topology.connect(End::port(&name, 1), End::port(&rack, 0), 1500)?;
        }
        for n in 1..=hosts as u8 {
            let host = format!("h{leaf}-{n}");
            topology.add_host(
                &host,
                Some([10, 0, leaf, n].into()),
                Some([2, 0xBB, 0, 0, leaf, n]),
            )?;
            let at = if racks { &rack } else { &name };
            topology.connect(End::host(host), End::port(at, n), 1500)?;
        }
    }
    Ok(topology)
}

fn fabric() -> impl Strategy<Value = Topology> {
    let leaf_spine = (1..5_usize, 1..4_usize, 1..5_usize);
    prop_oneof![
        leaf_spine.prop_map(|(leaves, spines, hosts)| Topology::leaf_spine(leaves, spines, hosts)),
        prop_oneof![Just(2), Just(4)].prop_map(Topology::fat_tree),
        (1..4_usize, 1..4_usize).prop_map(|(fan_out, depth)| Topology::tree(fan_out, depth)),
        (1..6_usize, 1..4_usize, any::<bool>())
            .prop_map(|(leaves, hosts, racks)| segment(leaves, hosts, racks)),
    ]
    .prop_map(|fabric| fabric.expect("a fabric"))
    .prop_filter("a source and a receiver", |fabric| fabric.hosts().count() > 1)
}

/// A fabric and members, the source first.
pub(crate) fn group() -> impl Strategy<Value = (Topology, Vec<String>)> {
    fabric().prop_flat_map(|fabric| {
        let hosts: Vec<String> = fabric.hosts().map(|h| h.name.clone()).collect();
        let members = (2..=hosts.len(), Just(hosts).prop_shuffle());
        let members = members.prop_map(|(n, mut hosts)| {
            hosts.truncate(n);
            hosts
        });
        (Just(fabric), members)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn both_ways_give_the_same_tables((fabric, members) in group()) {
        let wanted = planned(&fabric, &mut LinkLoad::default(), &members);
        let mut net = Net::new(fabric, &members, 1, Faults::default());
        net.run(Nanos::from_secs(1), true).expect("a registration");
        prop_assert!(net.leader.is_registered());
        prop_assert_eq!(net.rules(), wanted);
    }

    /// Groups of the same members use the spines in turn, as the planner does.
    #[test]
    fn further_groups_take_the_ports_that_the_fewest_groups_use((fabric, members) in group()) {
        let mut load = LinkLoad::default();
        let mut before = BTreeMap::new();
        for n in 0..3 {
            let wanted = planned(&fabric, &mut load, &members);
            let mut net = Net::new(fabric.clone(), &members, 1, Faults::default());
            for ((_, tables), groups) in net.switches.values_mut().zip(before.into_values()) {
                tables.groups = groups;
            }
            net.run(Nanos::from_secs(1), true).expect("a registration");
            prop_assert_eq!(net.rules(), wanted);
            // Under another address, it is a group that others must go around.
            let other = castnet_wire::McstId([10, 200, 1, n].into());
            before = net.switches.into_iter().map(|(name, (_, mut tables))| {
                let group = tables.groups.remove(&MCST_ID);
                tables.groups.extend(group.map(|(leader, rule)| (other, (leader, GroupRule { mcst_id: other, ..rule }))));
                (name, tables.groups)
            }).collect();
        }
    }
}
