//! Finds the endpoint that sent a frame, where the port does not tell (EPIC 4.1: LookupTable; contract C4). An exact match on ingress
//! port, destination QPN and source address, and on the source MAC address if the rule requires it.

use core::net::Ipv4Addr;

use castnet_rules::GroupRule;
use castnet_wire::{MacAddr, PortId, Qpn};

/// For several endpoints at one port, own virtual QPNs, or verified MAC addresses.
#[derive(Clone, Debug)]
pub(crate) struct LookupTable {
    keys: Box<[Key]>,
    /// Linear probing: endpoint index plus one, or 0 if free. Its length is a power of two, at least twice the number of endpoints.
    index: Box<[u16]>,
    /// The MAC address that frames of each endpoint must have; `None` for any. Empty if none verifies it.
    macs: Box<[Option<MacAddr>]>,
}

/// Port, QPN and source address, in 8, 24 and 32 bits. Address 0: any source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key(u64);

impl Key {
    #[inline(always)]
    fn new(port: PortId, qpn: Qpn, src: Ipv4Addr) -> Self {
        Self((port.index() as u64) << 56 | u64::from(qpn.value()) << 32 | u64::from(src.to_bits()))
    }

    fn port(self) -> PortId {
        PortId::new((self.0 >> 56) as u8).unwrap_or_default()
    }

    /// Where its probe sequence starts in a table of `length` entries, a power of two.
    #[inline(always)]
    fn home(self, length: usize) -> usize {
        // Fibonacci hashing: the upper bits of the product depend on the whole key.
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize & (length - 1)
    }
}

impl LookupTable {
    /// The table of a checked rule. `None` if the port is enough: each endpoint has its own port and [`Qpn::VIRTUAL`], and none
    /// verifies MAC addresses. Frames of an adjacent switch have the source address `switch`, or any if that is `None`.
    pub(crate) fn new(rule: &GroupRule, switch: Option<Ipv4Addr>) -> Option<Box<Self>> {
        let mut ports = 0_u64;
        let alone = rule.endpoints.iter().all(|endpoint| {
            let port = 1 << endpoint.port.index();
            let first = ports & port == 0;
            ports |= port;
            first && endpoint.virtual_qpn == Qpn::VIRTUAL && !endpoint.verify_mac
        });
        (!alone).then(|| Box::new(Self::of_all(rule, switch)))
    }

    pub(crate) fn of_all(rule: &GroupRule, switch: Option<Ipv4Addr>) -> Self {
        let any = Ipv4Addr::UNSPECIFIED;
        let keys = rule.endpoints.iter().map(|endpoint| {
            let src = endpoint.next_hop.ip().or(switch).unwrap_or(any);
            Key::new(endpoint.port, endpoint.virtual_qpn, src)
        });
        let keys: Box<[Key]> = keys.collect();
        let mut index = vec![0; (2 * keys.len()).next_power_of_two()].into_boxed_slice();
        for (key, number) in keys.iter().zip(1..) {
            let mut at = key.home(index.len());
            while index[at] != 0 {
                at = (at + 1) & (index.len() - 1);
            }
            index[at] = number;
        }
        let verify = rule.endpoints.iter().any(|e| e.verify_mac);
        let macs = rule.endpoints.iter().filter(|_| verify);
        let macs = macs.map(|e| e.verify_mac.then(|| e.next_hop.mac())).collect();
        Self { keys, index, macs }
    }

    /// With `None` for the MAC address, endpoints that verify it are not found.
    #[inline]
    pub(crate) fn find(
        &self,
        ingress: PortId,
        src: Ipv4Addr,
        dest_qp: Qpn,
        mac: Option<MacAddr>,
    ) -> Option<usize> {
        let exact = Key::new(ingress, dest_qp, src);
        let any = Key::new(ingress, dest_qp, Ipv4Addr::UNSPECIFIED);
        let endpoint = self.find_key(exact).or_else(|| self.find_key(any))?;
        match self.macs.get(endpoint) {
            Some(Some(needed)) if mac != Some(*needed) => None,
            _ => Some(endpoint),
        }
    }

    #[inline(always)]
    fn find_key(&self, key: Key) -> Option<usize> {
        let mut at = key.home(self.index.len());
        // At least half of the entries are free.
        while let Some(endpoint) = usize::from(*self.index.get(at)?).checked_sub(1) {
            if self.keys.get(endpoint) == Some(&key) {
                return Some(endpoint);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
        None
    }

    #[inline]
    pub(crate) fn port(&self, endpoint: usize) -> Option<PortId> {
        self.keys.get(endpoint).map(|key| key.port())
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.keys) + size_of_val(&*self.index) + size_of_val(&*self.macs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_rules::{Endpoint, HostEndpoint, HostPart, MulticastRule, NextHop};
    use castnet_wire::{MacAddr, McstId, Pmtu};
    use proptest::prelude::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn endpoint((port, qpn, host): (u8, u32, u8)) -> Endpoint {
        let mac = MAC;
        let name = String::from("x");
        Endpoint {
            port: PortId::new(port).unwrap_or_default(),
            virtual_qpn: Qpn::new(qpn),
            verify_mac: host > 3,
            joining: false,
            next_hop: match host {
                0 => NextHop::switch(name, mac),
                1 => NextHop::Switch {
                    name,
                    ip: Some([10, 0, 0, 1].into()),
                    qpn: Qpn::VIRTUAL,
                    mac,
                    ranks: Vec::new(),
                    mode: None,
                    core: None,
                },
                host => NextHop::Host(HostEndpoint {
                    name,
                    ip: [10, 0, 0, host].into(),
                    qpn: Qpn::new(17),
                    mac,
                    part: HostPart::Plain,
                }),
            },
        }
    }

    proptest! {
        /// The table finds the endpoint that a linear scan finds. An endpoint with the exact address has priority over one for any.
        #[test]
        fn the_table_finds_the_endpoint_of_a_linear_scan(
            picks in prop::collection::btree_set((0..3_u8, 1..5_u32, 0..6_u8), 1..64),
            frames in prop::collection::vec((0..4_u8, 1..6_u32, 1..8_u8, prop::sample::select(vec![None, Some(MAC), Some(MacAddr::BROADCAST)])), 64),
        ) {
            let rule = GroupRule {
                name: "g".into(),
                generation: 1,
                mcst_id: McstId([10, 9, 0, 1].into()),
                pmtu: Pmtu::B1024,
                stall_timeout_ms: 1,
                rate_limit: None,
                endpoints: picks.into_iter().map(endpoint).collect(),
                kind: MulticastRule::default().into(),
            };
            let Some(table) = LookupTable::new(&rule, None) else {
                let mut ports: Vec<_> = rule.endpoints.iter().map(|e| e.port).collect();
                ports.dedup();
                prop_assert_eq!(ports.len(), rule.endpoints.len());
                return Ok(());
            };
            for (port, qpn, last, mac) in frames {
                let (port, qpn, src) = (PortId::new(port).unwrap_or_default(), Qpn::new(qpn), Ipv4Addr::new(10, 0, 0, last));
                let walk = |by: &dyn Fn(Option<Ipv4Addr>) -> bool| {
                    rule.endpoints.iter().position(|e| {
                        e.port == port && e.virtual_qpn == qpn && by(e.next_hop.ip())
                    })
                };
                let walked = walk(&|ip| ip == Some(src)).or_else(|| walk(&|ip| ip.is_none()));
                let walked = walked.filter(|i| !rule.endpoints[*i].verify_mac || mac == Some(MAC));
                let found = table.find(port, src, qpn, mac);
                prop_assert_eq!(found, walked);
                if let Some(found) = found {
                    prop_assert_eq!(table.port(found), Some(port));
                }
            }
        }
    }
}
