use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, PortId};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::text;

/// A route. The longest prefix wins. A hash of the flow selects one of several next hops (ECMP), or each gets a copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Destination; no bits are set beyond its length.
    pub prefix: Ipv4Net,
    /// At least one, each different.
    pub next_hops: Vec<RouteHop>,
    /// A static replicate rule: each next hop gets a copy, but none leaves by the port that the packet came in by. Only for multicast
    /// addresses.
    #[serde(default)]
    pub replicate: bool,
    /// A rule for one multicast address, without next hops: a copy of each RoCEv2 packet goes to each of these addresses, by the other routes
    /// of the switch. It names the group's part of a static core (PEEL 3.3).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy_to: Vec<Ipv4Addr>,
}

/// One next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteHop {
    /// Egress port.
    #[serde(with = "text::port")]
    pub port: PortId,
    /// MAC address of the next hop.
    #[serde(with = "text::display")]
    pub mac: MacAddr,
}
