//! The static rules of a fabric's Shufflecast, as routes of its ToRs: a multicast address names the source (3.2.1).

use core::net::Ipv4Addr;
use std::collections::BTreeSet;

use castnet_rules::{Ipv4Net, Route, RouteHop};
use castnet_topology::{End, MulticastRoute, Splitter, Topology};

use super::{Relaying, Shufflecast, Tor};
use crate::error::PlanError;
use crate::static_core::{Layout, is_multicast_block, route_hop};

/// An address of `block` for each ToR, its number, and for each source that a ToR relays for a route to the links of its splitter. For its own
/// servers it is the source.
///
/// # Errors
/// [`PlanError::NoStaticCore`]: the splitters of the fabric form no Shufflecast, or the block is too small or not of multicast addresses.
pub fn layout(topology: &Topology, block: Ipv4Net) -> Result<Layout, PlanError> {
    let refuse = |reason: String| PlanError::NoStaticCore { reason };
    is_multicast_block(block)?;
    let splitters = topology.splitters();
    let fabric = shape(splitters).map_err(refuse)?;
    let name = |tor: Tor| splitters[tor.number()].from.as_str();
    for (tor, splitter) in fabric.tors().zip(splitters) {
        let expected: BTreeSet<&str> = fabric.splitter(tor).map(name).collect();
        let found: BTreeSet<&str> = splitter.links.iter().map(|(_, end)| end.node()).collect();
        if expected != found {
            let from = &splitter.from;
            return Err(refuse(format!(
                "the splitter of {from:?} leads to {found:?}; ToR {tor} of a {fabric}-Shufflecast has {expected:?}"
            )));
        }
    }
    let free = 32 - u32::from(block.prefix_len());
    if fabric.size() as u64 > 1 << free {
        let tors = fabric.size();
        return Err(refuse(format!(
            "{block} is too small: {tors} ToRs have an address each"
        )));
    }
    let address = |tor: Tor| Ipv4Addr::from(block.network().to_bits() | tor.number() as u32);
    let relaying = Relaying::of(fabric);
    let mut layout = Layout::default();
    for (tor, splitter) in fabric.tors().zip(splitters) {
        let hops: Vec<RouteHop> = splitter
            .links
            .iter()
            .filter_map(|(port, to)| hop(topology, *port, to))
            .collect();
        let routes = relaying.sources(tor).map(|source| Route {
            prefix: address(source).into(),
            next_hops: hops.clone(),
            replicate: true,
            copy_to: Vec::new(),
        });
        layout.routes.insert(splitter.from.clone(), routes.collect());
        let others = fabric.tors().filter(|other| *other != tor);
        let route = MulticastRoute {
            switches: others.map(|tor| name(tor).to_owned()).collect(),
            source: Some(splitter.from.clone()),
        };
        layout.addresses.insert(address(tor), route);
    }
    Ok(layout)
}

/// `p` and `k` by the number of links of a splitter and of splitters.
fn shape(splitters: &[Splitter]) -> Result<Shufflecast, String> {
    let (p, tors) = (
        splitters.first().map_or(0, |first| first.links.len()),
        splitters.len(),
    );
    let fabrics = (2..=16).map_while(|k| Shufflecast::new(p, k).ok());
    let mut fabrics = fabrics.take_while(|fabric| fabric.size() <= tors);
    fabrics.find(|fabric| fabric.size() == tors).ok_or_else(|| {
        format!("{tors} [[splitters]] with {p} links each are no Shufflecast, which has k * {p}^k ToRs for a k from 2 on")
    })
}

fn hop(topology: &Topology, port: u8, to: &End) -> Option<RouteHop> {
    match to {
        End::Switch { switch, port: far } => route_hop(topology, port, (switch, *far)),
        End::Host(_) => None,
    }
}
