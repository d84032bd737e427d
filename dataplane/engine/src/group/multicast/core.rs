//! Copies for switches behind a static core: one for all with the same address of the core, which has no state of the group.

use core::net::Ipv4Addr;

use castnet_collective::PathId;
use castnet_rules::GroupRule;
use castnet_wire::ipv4::PROTOCOL_UDP;
use castnet_wire::udp::ROCE_PORT;
use castnet_wire::{MacAddr, PortId};

use crate::output::Ports;
use crate::tables::route::{Flow, Hop, Routed, Routes};

/// No path has this number.
const NONE: u16 = u16::MAX;

/// The addresses of the core that a group uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Core {
    sets: Box<[Set]>,
    /// By path, its set or [`NONE`]. Empty without any.
    set_of: Box<[u16]>,
}

/// The paths with one address.
#[derive(Clone, Debug)]
struct Set {
    address: [u8; 4],
    paths: Box<[PathId]>,
    /// The present packet was sent to the address.
    sent: bool,
}

/// How a path gets the present packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By a copy to its own address.
    Own,
    /// By a copy to this address of the core.
    Core([u8; 4]),
    /// By a copy that was sent to its address of the core already.
    Sent,
}

impl Core {
    /// `source` leads to the source, which gets no data.
    pub(super) fn new(rule: &GroupRule, source: PathId) -> Self {
        let mut sets: Vec<([u8; 4], Vec<PathId>)> = Vec::new();
        let mut set_of = vec![NONE; rule.endpoints.len()];
        for (i, endpoint) in rule.endpoints.iter().enumerate() {
            let (Some(address), Some(path)) = (endpoint.next_hop.core(), PathId::new(i)) else {
                continue;
            };
            if path == source {
                continue;
            }
            let address = address.octets();
            let at = sets.iter().position(|(other, _)| *other == address);
            let at = at.unwrap_or_else(|| {
                sets.push((address, Vec::new()));
                sets.len() - 1
            });
            sets[at].1.push(path);
            set_of[i] = at as u16;
        }
        if sets.is_empty() {
            return Self::default();
        }
        let sets = sets.into_iter().map(|(address, paths)| Set {
            address,
            paths: paths.into(),
            sent: false,
        });
        Self {
            sets: sets.collect(),
            set_of: set_of.into(),
        }
    }

    /// Whether any path has an address of the core.
    pub(super) fn is_used(&self) -> bool {
        !self.sets.is_empty()
    }

    /// Called before the paths of a packet.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.sets.iter_mut().for_each(|set| set.sent = false);
    }

    /// How `path`, which takes the present packet, gets it. A packet that only one path of an address needs is sent to that path.
    #[inline]
    pub(super) fn way(&mut self, path: PathId, takes: impl Fn(PathId) -> bool) -> Way {
        let set = self.set_of.get(path.index()).copied().unwrap_or(NONE);
        let Some(set) = self.sets.get_mut(usize::from(set)) else {
            return Way::Own;
        };
        if set.sent {
            return Way::Sent;
        }
        if set.paths.iter().filter(|path| takes(**path)).nth(1).is_none() {
            return Way::Own;
        }
        set.sent = true;
        Way::Core(set.address)
    }

    /// The paths of an address.
    pub(super) fn paths(&self, address: [u8; 4]) -> &[PathId] {
        let set = self.sets.iter().find(|set| set.address == address);
        set.map_or(&[], |set| &set.paths)
    }

    pub(super) fn bytes(&self) -> usize {
        let paths = self.sets.iter().map(|set| size_of_val(&*set.paths));
        size_of_val(&*self.sets) + size_of_val(&*self.set_of) + paths.sum::<usize>()
    }
}

/// By which ports and next hops copies to an address of the core leave: those of the switch's own route to it that are up and take a packet
/// of this length or, without any, the `port` and next hop of a path.
pub(super) fn hops<'a>(
    routes: &'a Routes,
    ports: &'a Ports,
    (mcst_id, address, src_port): (Ipv4Addr, Ipv4Addr, u16),
    packet_len: usize,
    port: PortId,
) -> impl Iterator<Item = (PortId, Option<MacAddr>)> + 'a {
    let flow = Flow {
        src: mcst_id,
        dst: address,
        protocol: PROTOCOL_UDP,
        src_port,
        dst_port: ROCE_PORT,
    };
    let (all, one) = match routes.lookup(&flow, ports.up) {
        Routed::All { hops, .. } => (hops, None),
        Routed::Hop { hop, .. } => (&[][..], Some(hop)),
        Routed::NoRoute | Routed::AllDown { .. } | Routed::Copies(_) => (&[][..], None),
    };
    let fits = move |hop: &Hop| ports.up.contains(hop.port) && packet_len <= ports.mtu(hop.port);
    let mut hops = all.iter().copied().chain(one).filter(fits).peekable();
    let own = hops.peek().is_none().then_some((port, None));
    hops.map(|hop| (hop.port, Some(hop.mac))).chain(own)
}
