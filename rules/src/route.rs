//! Static IPv4 routes.

use castnet_wire::{MacAddr, PortId};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::text;

/// Where packets to a prefix go. The longest prefix wins; among several next hops the flow's hash chooses (ECMP).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The destinations; no bits set beyond its length.
    pub prefix: Ipv4Net,
    /// Next hops of equal cost: at least one, none twice.
    pub next_hops: Vec<RouteHop>,
}

/// One next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteHop {
    /// The port to leave by.
    #[serde(with = "text::port")]
    pub port: PortId,
    /// The Ethernet address of who is there.
    #[serde(with = "text::display")]
    pub mac: MacAddr,
}
