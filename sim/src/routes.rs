//! Routes between the hosts of a simulation.

use std::collections::BTreeMap;
use std::sync::Arc;

use castnet_engine::Tables;
use castnet_rules::{Ipv4Net, Route, RouteHop};
use castnet_topology::{Distances, End, Topology};
use castnet_wire::{MacAddr, PortId};

use crate::simulation::{SimError, Simulation};
use crate::watch::Watch;

/// Routes from each switch of a topology to each host, along a shortest path.
///
/// Of several next hops, a switch with hosts selects by the port of the destination at its switch, any other switch by the
/// number of that switch. So traffic to the hosts of one switch uses all paths alike, and the result has no chance in it
/// (destination-modulo routing of fat trees; a hash of the flow would give some links several flows).
#[derive(Clone, Debug)]
pub struct Routes(Vec<(String, Arc<Tables>)>);

/// A switch with hosts.
struct Edge<'a> {
    distances: Distances,
    /// Name of each host, and its port.
    hosts: Vec<(&'a str, u8)>,
}

impl Routes {
    /// The routes between all hosts that have addresses.
    pub fn new(topology: &Topology) -> Self {
        let mut edges: BTreeMap<&str, Edge<'_>> = BTreeMap::new();
        for host in topology.hosts() {
            let Some((_, switch, port)) = topology.attachment(&host.name) else {
                continue;
            };
            let edge = edges.entry(switch).or_insert_with(|| Edge {
                distances: topology.distances(switch),
                hosts: Vec::new(),
            });
            edge.hosts.push((&host.name, port));
        }
        let tables = |switch: &str| {
            let mut tables = Tables::default();
            tables.set_routes(&routes_of(topology, switch, &edges));
            Arc::new(tables)
        };
        let switches = topology.switches();
        Self(switches.map(|s| (s.name.clone(), tables(&s.name))).collect())
    }
}

fn routes_of(topology: &Topology, switch: &str, edges: &BTreeMap<&str, Edge<'_>>) -> Vec<Route> {
    let has_hosts = edges.contains_key(switch);
    let mut routes = Vec::new();
    for (number, (edge_name, edge)) in edges.iter().enumerate() {
        let hops = topology.next_hops(switch, &edge.distances);
        for (host, port) in &edge.hosts {
            let index = if has_hosts { usize::from(*port) } else { number };
            let hop = hops.get(index % hops.len().max(1));
            let (near, mac) = match hop.map(|hop| (&hop.near, &hop.far)) {
                _ if *edge_name == switch => (*port, topology.host(host).and_then(|h| h.mac)),
                Some((End::Switch { port: near, .. }, End::Switch { switch, port })) => {
                    let far = topology.switch(switch);
                    (*near, far.and_then(|s| s.ports.get(port).copied()))
                }
                _ => continue,
            };
            routes.extend(route(topology, host, near, mac));
        }
    }
    routes
}

fn route(topology: &Topology, host: &str, port: u8, mac: Option<[u8; 6]>) -> Option<Route> {
    Some(Route {
        prefix: Ipv4Net::from(topology.host(host)?.ip?),
        next_hops: vec![RouteHop {
            port: PortId::new(port)?,
            mac: MacAddr(mac?),
        }],
        replicate: false,
        copy_to: Vec::new(),
    })
}

impl<W: Watch> Simulation<W> {
    /// Makes the switches route between hosts. Without routes they learn and flood, which a fabric with loops does not survive.
    /// Ranks that join after it send to their first hop. Fails with [`SimError::NoSwitch`].
    pub fn install_routes(&mut self, routes: &Routes) -> Result<(), SimError> {
        for (switch, tables) in &routes.0 {
            self.with_engine(switch, |engine, now| engine.set_tables(now, tables.clone()))
                .ok_or_else(|| SimError::NoSwitch {
                    switch: switch.clone(),
                })?;
        }
        self.is_routed = true;
        Ok(())
    }
}
