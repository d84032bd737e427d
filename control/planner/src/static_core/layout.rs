//! The routes of a static core: what its routers are given once, whatever groups come and go (PEEL 3.2).
//!
//! The switches next to one router are a pod; routers next to the same ones share it, as the aggregation switches of a fat tree. A pod has an
//! address for each block of its switches that has two or more of them, and each router of the pod has a route for it that replicates. All
//! other routers have a route for all addresses of the pod, to the nearest of its routers. Single switches are reached by their McstIDs, whose
//! routes are those of the ordinary network.

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{Ipv4Net, Route, RouteHop, is_replicable};
use castnet_topology::{Hop, MulticastRoute, NodeId, SwitchKind, Topology, Usable};
use castnet_wire::{MacAddr, PortId};

use crate::error::PlanError;
use crate::prefix::Space;

/// The routes of a static core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The multicast addresses and the switches that they lead to: `[[multicast_routes]]` of a topology file.
    pub addresses: BTreeMap<Ipv4Addr, MulticastRoute>,
    /// The routes of each router, by prefix.
    pub routes: BTreeMap<String, Vec<Route>>,
}

/// Lays out addresses of `block` over the routers of a fabric and its links that are up.
///
/// # Errors
/// [`PlanError::NoStaticCore`]: no router is next to two Castnet switches with a prefix of McstIDs, or the block is too small or no block of
/// multicast addresses.
pub fn layout(topology: &Topology, block: Ipv4Net) -> Result<Layout, PlanError> {
    let refuse = |reason: String| Err(PlanError::NoStaticCore { reason });
    let network = block.network();
    is_multicast_block(block)?;
    let fabric = Usable::new(topology, 0);
    let is_edge = |node: NodeId| {
        topology
            .switch(topology.name(node))
            .is_some_and(|s| s.mcst_prefix.is_some())
    };
    let routers: Vec<NodeId> = topology
        .switches()
        .filter_map(|switch| topology.id(&switch.name))
        .collect();
    let routers = routers
        .into_iter()
        .filter(|node| topology.kind(*node) == Some(SwitchKind::Router));
    let routers: BTreeSet<NodeId> = routers.collect();
    // By the switches of a pod, its routers.
    let mut pods: BTreeMap<Vec<NodeId>, BTreeSet<NodeId>> = BTreeMap::new();
    for router in &routers {
        let edges: BTreeSet<NodeId> = fabric
            .hops(*router)
            .map(|hop| hop.far.node)
            .filter(|node| is_edge(*node))
            .collect();
        if edges.len() > 1 {
            pods.entry(edges.into_iter().collect())
                .or_default()
                .insert(*router);
        }
    }
    if pods.is_empty() {
        return refuse("no router is next to two Castnet switches with an mcst_prefix".into());
    }
    let spaces: Result<Vec<Space>, _> = pods.keys().map(|edges| Space::new(edges.len() as u32)).collect();
    let spaces = match spaces {
        Ok(spaces) => spaces,
        Err(error) => return refuse(error.to_string()),
    };
    // The addresses of all pods have one length.
    let bits = spaces
        .iter()
        .map(|space| space.header_bits())
        .max()
        .unwrap_or_default();
    let free = 32 - block.prefix_len();
    if bits > free || pods.len() as u64 > 1 << (free - bits) {
        let (pods, need) = (
            pods.len(),
            u64::from(bits) + u64::from((pods.len() as u32 - 1).checked_ilog2().map_or(0, |b| b + 1)),
        );
        return refuse(format!(
            "{block} is too small: {pods} pods need a /{}",
            32_u64.saturating_sub(need)
        ));
    }
    let mut layout = Layout::default();
    for (number, ((edges, own), space)) in (0_u32..).zip(pods.iter().zip(spaces)) {
        let base = network.to_bits() | number << bits;
        for prefix in space.rules() {
            let ids = space.ids(prefix).filter_map(|id| edges.get(id as usize).copied());
            let inside: BTreeSet<NodeId> = ids.collect();
            if inside.len() < 2 {
                continue;
            }
            let address = Ipv4Addr::from(base | space.encode(prefix));
            for router in own {
                let mut seen = BTreeSet::new();
                let hops = fabric
                    .hops(*router)
                    .filter(|hop| inside.contains(&hop.far.node) && seen.insert(hop.far.node));
                layout.add(topology, *router, address.into(), hops, true);
            }
            let names = inside.iter().map(|node| topology.name(*node).to_owned());
            let route = MulticastRoute {
                switches: names.collect(),
                source: None,
            };
            layout.addresses.insert(address, route);
        }
        let pod = Ipv4Net::new_assert(base.into(), 32 - bits);
        for (router, hops) in nearer(&fabric, &routers, own) {
            layout.add(topology, router, pod, hops.into_iter(), false);
        }
    }
    if let Some(block) = topology.group_addresses() {
        let programmable = topology.programmable();
        let programmable = programmable
            .filter_map(|router| topology.id(&router.name))
            .collect();
        for (router, hops) in nearer(&fabric, &routers, &programmable) {
            layout.add(topology, router, block, hops.into_iter(), false);
        }
    }
    for routes in layout.routes.values_mut() {
        routes.sort_by_key(|route| route.prefix);
    }
    Ok(layout)
}

/// # Errors
/// [`PlanError::NoStaticCore`].
pub(crate) fn is_multicast_block(block: Ipv4Net) -> Result<(), PlanError> {
    match block == block.trunc() && is_replicable(&block) {
        true => Ok(()),
        false => Err(PlanError::NoStaticCore {
            reason: format!("{block} is no block of the addresses 224.0.1.0 to 239.255.255.255"),
        }),
    }
}

/// The next hop by a port to the port of a switch.
pub(crate) fn route_hop(topology: &Topology, port: u8, (switch, far): (&str, u8)) -> Option<RouteHop> {
    Some(RouteHop {
        port: PortId::new(port)?,
        mac: MacAddr(*topology.switch(switch)?.ports.get(&far)?),
    })
}

impl Layout {
    fn add<'t>(
        &mut self,
        topology: &Topology,
        router: NodeId,
        prefix: Ipv4Net,
        hops: impl Iterator<Item = &'t Hop>,
        replicate: bool,
    ) {
        let next_hop = |hop: &Hop| {
            let far = (topology.name(hop.far.node), hop.far.port);
            route_hop(topology, hop.near.port, far)
        };
        let route = Route {
            prefix,
            next_hops: hops.filter_map(next_hop).collect(),
            replicate,
            copy_to: Vec::new(),
        };
        let routes = self.routes.entry(topology.name(router).to_owned()).or_default();
        routes.push(route);
    }
}

/// The links of each other router that reaches `to` over routers, to those that are nearer.
fn nearer<'t>(
    fabric: &Usable<'t>,
    routers: &BTreeSet<NodeId>,
    to: &BTreeSet<NodeId>,
) -> BTreeMap<NodeId, Vec<&'t Hop>> {
    let mut ways: BTreeMap<NodeId, Vec<&Hop>> = BTreeMap::new();
    let (mut passed, mut layer) = (to.clone(), to.clone());
    while !layer.is_empty() {
        let far = layer
            .iter()
            .flat_map(|node| fabric.hops(*node))
            .map(|hop| hop.far.node);
        let next: BTreeSet<NodeId> = far
            .filter(|node| routers.contains(node) && !passed.contains(node))
            .collect();
        for router in &next {
            let hops = fabric.hops(*router).filter(|hop| layer.contains(&hop.far.node));
            ways.insert(*router, hops.collect());
        }
        passed.extend(&next);
        layer = next;
    }
    ways
}
