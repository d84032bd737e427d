//! What rules of all kinds need of the fabric, and of each other.

use std::collections::BTreeMap;

use castnet_rules::{Endpoint, GroupRule, HostEndpoint, NextHop};
use castnet_topology::Topology;
use castnet_wire::{MacAddr, McstId, PortId, Qpn};

use crate::tree::{Tree, TreeLink};

/// A switch as next hop, by the path to it and the port at its end. Its QPN is given by [`number`], its McstID behind routers by
/// [`address`]; the switch that sends there finds the router's Ethernet address itself.
pub(crate) fn switch_hop(
    topology: &Topology,
    name: &str,
    (path, port): (&TreeLink, PortId),
    ranks: Vec<u16>,
) -> NextHop {
    let ports = topology.switch(name).map(|s| &s.ports);
    let mac = ports.and_then(|ports| ports.get(&(port.index() as u8)).copied().map(MacAddr));
    NextHop::Switch {
        name: name.into(),
        ip: None,
        qpn: Qpn::VIRTUAL,
        mac: mac.filter(|_| !path.is_routed()).unwrap_or(MacAddr::UNSPECIFIED),
        ranks,
    }
}

/// A member as next hop, by the path to it.
pub(crate) fn host_hop(host: &HostEndpoint, path: &TreeLink) -> NextHop {
    let mut hop = NextHop::Host(host.clone());
    if path.is_routed() {
        hop.set_mac(MacAddr::UNSPECIFIED);
    }
    hop
}

/// Gives each switch of a tree that passes routers its own McstID. Neighbours name that of each other. A tree without routers stays
/// as it is.
///
/// # Errors
/// The switch that has no McstID of its own.
pub(crate) fn address(
    tree: &Tree,
    own: &BTreeMap<String, McstId>,
    rules: &mut BTreeMap<String, GroupRule>,
) -> Result<(), String> {
    if !tree.is_routed() {
        return Ok(());
    }
    for (switch, rule) in rules.iter_mut() {
        rule.mcst_id = *own.get(switch).ok_or_else(|| switch.clone())?;
        for endpoint in &mut rule.endpoints {
            if let NextHop::Switch { name, ip, .. } = &mut endpoint.next_hop {
                *ip = Some(own.get(name).ok_or_else(|| name.clone())?.0);
            }
        }
    }
    Ok(())
}

/// Gives the endpoints of a group their QPNs. Those that port and source address do not tell from the others of their switch get
/// 2, 3 and so on at each port: the switches at a port with others, and the members of one host. Both ends of an edge
/// between switches know the QPN of the other.
///
/// `host_of` is the name of a member's host: members of one host have one address, but the request may not know it yet and
/// have another for each.
pub(crate) fn number<'r>(
    rules: &mut BTreeMap<String, GroupRule>,
    host_of: impl Fn(&HostEndpoint) -> Option<&'r str>,
) {
    let mut known: BTreeMap<(String, String), Qpn> = BTreeMap::new();
    for (switch, rule) in rules.iter_mut() {
        let alike = |x: &Endpoint, y: &Endpoint| {
            let same_sender = match (x.next_hop.host(), y.next_hop.host()) {
                (Some(x), Some(y)) => x.ip == y.ip || host_of(x) == host_of(y),
                (host, _) => host.is_none(),
            };
            x.port == y.port && same_sender
        };
        let all = &rule.endpoints;
        let shared: Vec<bool> = all
            .iter()
            .map(|x| all.iter().any(|y| !core::ptr::eq(x, y) && alike(x, y)))
            .collect();
        let mut last: BTreeMap<PortId, u32> = BTreeMap::new();
        for (endpoint, shared) in rule.endpoints.iter_mut().zip(shared) {
            if shared {
                let qpn = last.entry(endpoint.port).or_insert(Qpn::VIRTUAL.value());
                *qpn += 1;
                endpoint.virtual_qpn = Qpn::new(*qpn);
            }
            if let NextHop::Switch { name, .. } = &endpoint.next_hop {
                known.insert((switch.clone(), name.clone()), endpoint.virtual_qpn);
            }
        }
    }
    for (switch, rule) in rules.iter_mut() {
        for endpoint in &mut rule.endpoints {
            if let NextHop::Switch { name, qpn, .. } = &mut endpoint.next_hop
                && let Some(own) = known.get(&(name.clone(), switch.clone()))
            {
                *qpn = *own;
            }
        }
    }
}
