//! The static rules of a fabric's Shufflecast, as routes of its ToRs: a multicast address names the source (3.2.1).

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use castnet_rules::{Ipv4Net, Route, RouteHop};
use castnet_topology::{End, MulticastRoute, Splitter, Topology};

use super::{Relaying, Shufflecast, Tor};
use crate::error::PlanError;
use crate::static_core::{Layout, is_multicast_block, route_hop};

/// The relays of a fabric: its ToRs, by number, what their splitters lead to, and the address of each as a source.
#[derive(Clone, Debug)]
pub struct Relays {
    fabric: Shufflecast,
    splitters: Vec<Splitter>,
    addresses: Vec<Ipv4Addr>,
}

impl Relays {
    /// The relays of a fabric with `[[splitters]]` and `[[multicast_routes]]`; `None`: it has no splitters.
    ///
    /// # Errors
    /// [`PlanError::NoStaticCore`]: the splitters form no Shufflecast, or a ToR has no address as a source.
    pub fn of(topology: &Topology) -> Result<Option<Self>, PlanError> {
        if topology.splitters().is_empty() {
            return Ok(None);
        }
        let routes = topology.multicast_routes();
        let by_source = routes.filter_map(|(address, route)| Some((route.source.as_deref()?, address)));
        let by_source: BTreeMap<&str, Ipv4Addr> = by_source.collect();
        let address = |tor: &Splitter| by_source.get(tor.from.as_str()).copied();
        Self::new(topology, address).map(Some)
    }

    fn new(topology: &Topology, address: impl Fn(&Splitter) -> Option<Ipv4Addr>) -> Result<Self, PlanError> {
        let refuse = |reason: String| PlanError::NoStaticCore { reason };
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
        let address = |tor: &Splitter| {
            let none = || refuse(format!("no [[multicast_routes]] has the source {:?}", tor.from));
            address(tor).ok_or_else(none)
        };
        Ok(Self {
            fabric,
            splitters: splitters.to_vec(),
            addresses: splitters.iter().map(address).collect::<Result<_, _>>()?,
        })
    }

    /// The Shufflecast that the ToRs form.
    pub fn fabric(&self) -> Shufflecast {
        self.fabric
    }

    /// The ToRs with their splitters.
    pub fn tors(&self) -> impl Iterator<Item = (Tor, &Splitter)> {
        self.fabric.tors().zip(&self.splitters)
    }

    /// The ToR of a name.
    pub fn tor(&self, name: &str) -> Option<Tor> {
        let mut tors = self.tors();
        tors.find(|(_, splitter)| splitter.from == name)
            .map(|(tor, _)| tor)
    }

    /// The name of a ToR.
    pub fn name(&self, tor: Tor) -> &str {
        &self.splitters[tor.number()].from
    }

    /// What is sent to these is relayed.
    pub fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }

    /// The routes of a relay: to the links of its splitter, for each source that it relays for.
    pub fn routes(&self, topology: &Topology, relaying: &Relaying, relay: Tor) -> Vec<Route> {
        let links = self.splitters[relay.number()].links.iter();
        let hops: Vec<RouteHop> = links.filter_map(|(port, to)| hop(topology, *port, to)).collect();
        let route = |source: Tor| Route {
            prefix: self.addresses[source.number()].into(),
            next_hops: hops.clone(),
            replicate: true,
            copy_to: Vec::new(),
        };
        relaying.sources(relay).map(route).collect()
    }
}

/// An address of `block` for each ToR, its number, and for each source that a ToR relays for a route to the links of its splitter. For its own
/// servers it is the source.
///
/// # Errors
/// [`PlanError::NoStaticCore`]: the splitters of the fabric form no Shufflecast, or the block is too small or not of multicast addresses.
pub fn layout(topology: &Topology, block: Ipv4Net) -> Result<Layout, PlanError> {
    is_multicast_block(block)?;
    let (tors, free) = (topology.splitters().len(), 32 - u32::from(block.prefix_len()));
    if tors as u64 > 1 << free {
        let reason = format!("{block} is too small: {tors} ToRs have an address each");
        return Err(PlanError::NoStaticCore { reason });
    }
    let numbers = topology.splitters().iter().map(|splitter| splitter.from.as_str());
    let numbers: BTreeMap<&str, u32> = numbers.zip(0..).collect();
    let relays = Relays::new(topology, |tor| {
        let number = numbers.get(tor.from.as_str())?;
        Some(Ipv4Addr::from(block.network().to_bits() | number))
    })?;
    let relaying = Relaying::of(relays.fabric);
    let mut layout = Layout::default();
    for (tor, splitter) in relays.tors() {
        let routes = relays.routes(topology, &relaying, tor);
        layout.routes.insert(splitter.from.clone(), routes);
        let others = relays.tors().filter(|(other, _)| *other != tor);
        let route = MulticastRoute {
            switches: others.map(|(_, other)| other.from.clone()).collect(),
            source: Some(splitter.from.clone()),
        };
        layout.addresses.insert(relays.addresses[tor.number()], route);
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
