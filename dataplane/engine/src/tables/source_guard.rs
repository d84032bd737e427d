//! Which sources frames may not have at ports of hosts.

use core::net::Ipv4Addr;
use std::collections::BTreeSet;

use castnet_rules::Ipv4Net;
use castnet_wire::PortId;

use crate::port_set::PortSet;

/// Addresses of groups at other switches, in whose name no host speaks. A group that passes routers has another McstID at each switch, and
/// a switch knows its own groups alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceGuard {
    ports: PortSet,
    hosts: BTreeSet<(PortId, Ipv4Addr)>,
    /// First and last addresses of prefixes, in order. None overlaps another one.
    ranges: Vec<(Ipv4Addr, Ipv4Addr)>,
}

impl SourceGuard {
    /// At the ports of these hosts nobody else may have an address within `prefixes`.
    pub fn new(hosts: impl IntoIterator<Item = (PortId, Ipv4Addr)>, prefixes: Vec<Ipv4Net>) -> Self {
        let hosts: BTreeSet<(PortId, Ipv4Addr)> = hosts.into_iter().collect();
        let mut merged = Ipv4Net::aggregate(&prefixes);
        merged.sort_unstable();
        let ranges = merged.iter().map(|prefix| (prefix.network(), prefix.broadcast()));
        Self {
            ports: hosts.iter().map(|(port, _)| *port).collect(),
            hosts,
            ranges: ranges.collect(),
        }
    }

    /// Whether a frame from `source` that comes in by `ingress` is a forgery.
    #[inline]
    pub(crate) fn refuses(&self, ingress: PortId, source: Ipv4Addr) -> bool {
        self.ports.contains(ingress) && self.covers(source) && !self.hosts.contains(&(ingress, source))
    }

    /// Whether a port is one of hosts.
    pub(crate) fn is_of_hosts(&self, port: PortId) -> bool {
        self.ports.contains(port)
    }

    fn covers(&self, source: Ipv4Addr) -> bool {
        let next = self.ranges.partition_point(|(first, _)| *first <= source);
        self.ranges[..next]
            .last()
            .is_some_and(|(_, last)| source <= *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_no_address_within_the_prefixes_but_its_own() {
        let prefixes = [
            "10.202.0.0/24",
            "10.201.0.0/25",
            "10.201.0.128/25",
            "10.204.1.1/32",
        ];
        let prefixes: Vec<Ipv4Net> = prefixes.iter().map(|p| p.parse().unwrap()).collect();
        let [host, other, core] = [2, 5, 63].map(|n| PortId::new(n).unwrap());
        let [own, outside]: [Ipv4Addr; 2] = ["10.201.0.7", "10.0.0.1"].map(|ip| ip.parse().unwrap());
        let guard = SourceGuard::new([(host, own), (other, outside)], prefixes);
        let all = [
            ("10.200.255.255", false),
            ("10.201.0.0", true),
            ("10.201.0.6", true),
            ("10.201.0.7", true),
            ("10.201.0.255", true),
            ("10.201.1.0", false),
            ("10.201.255.255", false),
            ("10.202.0.0", true),
            ("10.202.0.255", true),
            ("10.203.0.0", false),
            ("10.204.1.1", true),
            ("10.204.1.2", false),
        ];
        for (source, is_covered) in all {
            let source = source.parse().unwrap();
            assert_eq!(guard.refuses(other, source), is_covered, "{source}");
            assert_eq!(
                guard.refuses(host, source),
                is_covered && source != own,
                "{source}"
            );
            assert!(!guard.refuses(core, source));
            assert!(!SourceGuard::default().refuses(host, source));
        }
    }
}
