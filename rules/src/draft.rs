//! Groups that may lack fields, so that one bad field does not hide the faults of its neighbours.

use core::net::Ipv4Addr;

use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};

use ipnet::Ipv4Net;

use crate::group::{HostEndpoint, MulticastGroup, NextHop, Path, RemoteMemory};
use crate::route::{Route, RouteHop};

/// A [`MulticastGroup`] of which some fields could not be read: `None` there, and the checker is silent about them.
/// Who reads groups from elsewhere fills a draft, [checks](Self::check) it and [finishes](Self::finish) it, and so
/// reports all faults at once.
#[derive(Clone, Debug, Default)]
pub struct GroupDraft {
    /// See [`MulticastGroup::name`].
    pub name: Option<String>,
    /// See [`MulticastGroup::generation`].
    pub generation: Option<u64>,
    /// See [`MulticastGroup::mcst_id`].
    pub mcst_id: Option<McstId>,
    /// See [`MulticastGroup::pmtu`].
    pub pmtu: Option<Pmtu>,
    /// See [`MulticastGroup::start_psn`]; the inner `None` is the group's.
    pub start_psn: Option<Option<Psn>>,
    /// See [`MulticastGroup::va_base`].
    pub va_base: Option<u64>,
    /// See [`MulticastGroup::source`].
    pub source: Option<PortId>,
    /// See [`MulticastGroup::paths`]; `None` where the list itself could not be read.
    pub paths: Option<Vec<PathDraft>>,
    /// See [`MulticastGroup::stall_timeout_ms`].
    pub stall_timeout_ms: Option<u32>,
}

/// A [`Path`] of which some fields could not be read.
#[derive(Clone, Debug, Default)]
pub struct PathDraft {
    /// See [`Path::port`].
    pub port: Option<PortId>,
    /// See [`Path::next_hop`].
    pub next_hop: Option<HopDraft>,
}

/// A [`NextHop`] of which some fields could not be read.
#[derive(Clone, Debug)]
pub enum HopDraft {
    /// See [`NextHop::Host`].
    Host(MemberDraft),
    /// See [`NextHop::Switch`].
    Switch {
        /// Its name.
        name: Option<String>,
        /// Its address.
        mac: Option<MacAddr>,
    },
}

/// A [`HostEndpoint`] of which some fields could not be read.
#[derive(Clone, Debug, Default)]
pub struct MemberDraft {
    /// See [`HostEndpoint::name`].
    pub name: Option<String>,
    /// See [`HostEndpoint::ip`].
    pub ip: Option<Ipv4Addr>,
    /// See [`HostEndpoint::qpn`].
    pub qpn: Option<Qpn>,
    /// See [`HostEndpoint::mac`].
    pub mac: Option<MacAddr>,
    /// See [`HostEndpoint::memory`]; the inner `None` is a member without memory.
    pub memory: Option<Option<RemoteMemory>>,
}

impl GroupDraft {
    /// The group, where no field is lacking.
    pub fn finish(self) -> Option<MulticastGroup> {
        Some(MulticastGroup {
            name: self.name?,
            generation: self.generation?,
            mcst_id: self.mcst_id?,
            pmtu: self.pmtu?,
            start_psn: self.start_psn?,
            va_base: self.va_base?,
            source: self.source?,
            paths: self
                .paths?
                .into_iter()
                .map(PathDraft::finish)
                .collect::<Option<_>>()?,
            stall_timeout_ms: self.stall_timeout_ms?,
        })
    }
}

impl PathDraft {
    fn finish(self) -> Option<Path> {
        let next_hop = match self.next_hop? {
            HopDraft::Host(member) => NextHop::Host(HostEndpoint {
                name: member.name?,
                ip: member.ip?,
                qpn: member.qpn?,
                mac: member.mac?,
                memory: member.memory?,
            }),
            HopDraft::Switch { name, mac } => NextHop::Switch {
                name: name?,
                mac: mac?,
            },
        };
        Some(Path {
            port: self.port?,
            next_hop,
        })
    }
}

impl From<&MulticastGroup> for GroupDraft {
    fn from(group: &MulticastGroup) -> Self {
        Self {
            name: Some(group.name.clone()),
            generation: Some(group.generation),
            mcst_id: Some(group.mcst_id),
            pmtu: Some(group.pmtu),
            start_psn: Some(group.start_psn),
            va_base: Some(group.va_base),
            source: Some(group.source),
            paths: Some(group.paths.iter().map(PathDraft::from).collect()),
            stall_timeout_ms: Some(group.stall_timeout_ms),
        }
    }
}

impl From<&Path> for PathDraft {
    fn from(path: &Path) -> Self {
        let next_hop = match &path.next_hop {
            NextHop::Host(host) => HopDraft::Host(MemberDraft {
                name: Some(host.name.clone()),
                ip: Some(host.ip),
                qpn: Some(host.qpn),
                mac: Some(host.mac),
                memory: Some(host.memory),
            }),
            NextHop::Switch { name, mac } => HopDraft::Switch {
                name: Some(name.clone()),
                mac: Some(*mac),
            },
        };
        Self {
            port: Some(path.port),
            next_hop: Some(next_hop),
        }
    }
}

/// A [`Route`] of which some fields could not be read.
#[derive(Clone, Debug, Default)]
pub struct RouteDraft {
    /// See [`Route::prefix`].
    pub prefix: Option<Ipv4Net>,
    /// See [`Route::next_hops`]: port and address of each; `None` where the list itself could not be read.
    pub next_hops: Option<Vec<(Option<PortId>, Option<MacAddr>)>>,
}

impl RouteDraft {
    /// The route, where no field is lacking.
    pub fn finish(self) -> Option<Route> {
        let hops = self.next_hops?.into_iter().map(|(port, mac)| {
            Some(RouteHop {
                port: port?,
                mac: mac?,
            })
        });
        Some(Route {
            prefix: self.prefix?,
            next_hops: hops.collect::<Option<_>>()?,
        })
    }
}

impl From<&Route> for RouteDraft {
    fn from(route: &Route) -> Self {
        let hops = route.next_hops.iter().map(|hop| (Some(hop.port), Some(hop.mac)));
        Self {
            prefix: Some(route.prefix),
            next_hops: Some(hops.collect()),
        }
    }
}
