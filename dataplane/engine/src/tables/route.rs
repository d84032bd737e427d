//! Static IPv4 routes: longest prefix match. A hash of the flow selects among equal next hops, so that a flow keeps its path and the
//! loss of a hop moves only the flows that used it. A static replicate rule (PEEL 3.2, Shufflecast 3.2.1) is a route whose hops all get a copy.

use core::hash::BuildHasher;
use core::net::Ipv4Addr;
use core::ops::Range;

use castnet_rules::Route;
use castnet_wire::{MacAddr, PortId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::port_set::PortSet;

/// Addresses, protocol, and the ports of UDP and TCP (zeros for others) of a flow. RoCEv2 has its entropy in the UDP source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// IP protocol.
    pub protocol: u8,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

/// The next hop of a routed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Egress port.
    pub port: PortId,
    /// Destination Ethernet address.
    pub mac: MacAddr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Routed<'a> {
    Hop {
        hop: Hop,
        prefix: u8,
        of: usize,
    },
    All {
        hops: &'a [Hop],
        prefix: u8,
    },
    /// A copy to each address of this range of [`Routes::copy_to`].
    Copies(Range<u32>),
    NoRoute,
    AllDown {
        prefix: u8,
    },
}

/// A range of the hops of all routes, or of the addresses of all copies.
#[derive(Clone, Copy, Debug)]
struct Hops {
    first: u32,
    end: u32,
    takes: Takes,
}

/// Who gets a packet of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    OneHop,
    EachHop,
    /// Other addresses, by their routes.
    EachAddress,
}

/// One exact-match table for all prefix lengths, and the set of used lengths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    /// Maps (network, length) to its hops.
    table: HashMap<(u32, u8), Hops, FixedState>,
    /// Bit n is set if a prefix has length n.
    lengths: u64,
    hops: Vec<Hop>,
    copy_to: Vec<Ipv4Addr>,
    /// The ports of all next hops.
    pub(crate) ports: PortSet,
}

const fn network(address: u32, length: u8) -> u32 {
    match length {
        0 => 0,
        n => address & (u32::MAX << (32 - n as u32)),
    }
}

impl Routes {
    pub(crate) fn new(routes: &[Route]) -> Self {
        let mut compiled = Self::default();
        for route in routes {
            let (first, copies) = (compiled.hops.len() as u32, compiled.copy_to.len() as u32);
            compiled.hops.extend(route.next_hops.iter().map(|h| Hop {
                port: h.port,
                mac: h.mac,
            }));
            route
                .next_hops
                .iter()
                .for_each(|hop| compiled.ports.insert(hop.port));
            compiled.copy_to.extend(&route.copy_to);
            let length = route.prefix.prefix_len();
            let network = network(u32::from(route.prefix.addr()), length);
            let (first, end, takes) = match (route.copy_to.is_empty(), route.replicate) {
                (true, false) => (first, compiled.hops.len(), Takes::OneHop),
                (true, true) => (first, compiled.hops.len(), Takes::EachHop),
                (false, _) => (copies, compiled.copy_to.len(), Takes::EachAddress),
            };
            let end = end as u32;
            let hops = Hops { first, end, takes };
            compiled.table.insert((network, length), hops);
            compiled.lengths |= 1 << length;
        }
        compiled
    }

    /// The length of the prefix, and its hops or addresses.
    fn longest(&self, dst: Ipv4Addr) -> Option<(u8, Hops)> {
        let mut lengths = self.lengths;
        while lengths != 0 {
            let length = 63 - lengths.leading_zeros() as u8;
            lengths &= !(1 << length);
            if let Some(hops) = self.table.get(&(network(u32::from(dst), length), length)) {
                return Some((length, *hops));
            }
        }
        None
    }

    /// Whether packets to this address are replicated.
    pub(crate) fn replicates(&self, dst: Ipv4Addr) -> bool {
        self.longest(dst)
            .is_some_and(|(_, hops)| hops.takes != Takes::OneHop)
    }

    /// Whether packets to this address are copied to others.
    pub(crate) fn copies(&self, dst: Ipv4Addr) -> bool {
        self.longest(dst)
            .is_some_and(|(_, hops)| hops.takes == Takes::EachAddress)
    }

    /// An address of [`Routed::Copies`].
    pub(crate) fn copy_to(&self, at: u32) -> Option<Ipv4Addr> {
        self.copy_to.get(at as usize).copied()
    }

    /// Only hops whose port is in `up`, but for a static replicate rule. Routes to unicast addresses do not lead to multicast addresses, a
    /// default route neither.
    pub(crate) fn lookup(&self, flow: &Flow, up: PortSet) -> Routed<'_> {
        let route = self.longest(flow.dst);
        let Some((prefix, Hops { first, end, takes })) =
            route.filter(|(prefix, _)| *prefix >= 4 || !flow.dst.is_multicast())
        else {
            return Routed::NoRoute;
        };
        let hops = self.hops.get(first as usize..end as usize).unwrap_or_default();
        match takes {
            Takes::OneHop => {}
            Takes::EachHop => return Routed::All { hops, prefix },
            Takes::EachAddress => return Routed::Copies(first..end),
        }
        match hops
            .iter()
            .filter(|h| up.contains(h.port))
            .max_by_key(|h| weight(flow, h))
        {
            Some(hop) => Routed::Hop {
                hop: *hop,
                prefix,
                of: hops.len(),
            },
            None => Routed::AllDown { prefix },
        }
    }
}

/// The hop with the highest weight is used (highest random weight hashing). The same on every switch and in every run.
fn weight(flow: &Flow, hop: &Hop) -> u64 {
    FixedState::with_seed(0).hash_one((flow, hop.port.index() as u8, hop.mac.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_rules::{Ipv4Net, RouteHop};
    use proptest::prelude::*;

    fn port(n: u8) -> PortId {
        PortId::new(n).unwrap_or_default()
    }

    fn flow(dst: u32, sport: u16) -> Flow {
        Flow {
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst: dst.into(),
            protocol: 17,
            src_port: sport,
            dst_port: 4791,
        }
    }

    fn hop(n: u8) -> RouteHop {
        RouteHop {
            port: port(n),
            mac: MacAddr([2, 0, 0, 0, 0, n]),
        }
    }

    fn route(address: u32, length: u8, hops: &[u8]) -> Route {
        let prefix = Ipv4Net::new(network(address, length).into(), length).expect("a length up to 32");
        Route {
            prefix,
            next_hops: hops.iter().map(|n| hop(*n)).collect(),
            replicate: false,
            copy_to: Vec::new(),
        }
    }

    proptest! {
        #[test]
        fn the_longest_prefix_wins_as_in_a_linear_scan(
            // Few bits, so that prefixes nest and addresses hit.
            prefixes in prop::collection::btree_set((0u32..16, 0u8..=32), 0..20),
            addresses in prop::collection::vec(0u32..16, 1..50),
        ) {
            let spread = |n: u32| n << 28 | n << 13 | n;
            let mut routes: Vec<Route> = Vec::new();
            for (i, (address, length)) in prefixes.iter().enumerate() {
                let new = route(spread(*address), *length, &[i as u8]);
                if routes.iter().all(|r| r.prefix != new.prefix) {
                    routes.push(new);
                }
            }
            let compiled = Routes::new(&routes);
            for address in addresses {
                let dst = Ipv4Addr::from(spread(address));
                let expected = routes.iter().filter(|r| r.prefix.contains(&dst)).max_by_key(|r| r.prefix.prefix_len());
                let expected = expected.filter(|r| !dst.is_multicast() || r.prefix.prefix_len() >= 4);
                match (compiled.lookup(&flow(dst.into(), 1), PortSet::ALL), expected) {
                    (Routed::Hop { hop, prefix, .. }, Some(route)) => {
                        prop_assert_eq!(prefix, route.prefix.prefix_len());
                        prop_assert_eq!(hop.port, route.next_hops[0].port);
                    }
                    (Routed::NoRoute, None) => {}
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }

        #[test]
        fn only_the_flows_of_a_lost_hop_move(sports in prop::collection::vec(any::<u16>(), 1..40), lost in 0u8..4) {
            let routes = Routes::new(&[route(0, 0, &[0, 1, 2, 3])]);
            for sport in sports {
                let flow = flow(0x0102_0304, sport);
                let before = routes.lookup(&flow, PortSet::ALL);
                prop_assert_eq!(before.clone(), routes.lookup(&flow, PortSet::ALL));
                let (Routed::Hop { hop: a, .. }, Routed::Hop { hop: b, .. }) =
                    (before, routes.lookup(&flow, PortSet::ALL.without(port(lost)))) else {
                    panic!("no hop");
                };
                prop_assert!(b.port != port(lost));
                prop_assert!(a == b || a.port == port(lost));
            }
        }
    }

    #[test]
    fn flows_spread_over_equal_hops_by_their_udp_source_port() {
        let routes = Routes::new(&[route(0, 0, &[0, 1, 2, 3])]);
        let mut counts = [0u32; 4];
        for sport in 0xC000..0xC400 {
            if let Routed::Hop { hop, .. } = routes.lookup(&flow(0x0102_0304, sport), PortSet::ALL) {
                counts[hop.port.index()] += 1;
            }
        }
        assert!(
            counts.iter().all(|n| (192..320).contains(n)),
            "1024 flows over 4 hops: {counts:?}"
        );
    }

    #[test]
    fn a_route_with_every_hop_down_is_reported() {
        let routes = Routes::new(&[route(0x0A00_0000, 8, &[1])]);
        let none = PortSet::ALL.without(port(1));
        assert_eq!(
            routes.lookup(&flow(0x0A01_0203, 1), none),
            Routed::AllDown { prefix: 8 }
        );
        assert_eq!(routes.lookup(&flow(0x0B01_0203, 1), none), Routed::NoRoute);
    }
}
