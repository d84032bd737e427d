//! Groups and routes whose fields may be missing, so that one bad field does not hide the faults of the others.
#![allow(missing_docs, reason = "the fields of a draft are those of its rule")]

use core::net::Ipv4Addr;

use castnet_toml_reader::Value;
use castnet_wire::{MacAddr, McstId, Pmtu, PortId, Psn, Qpn};
use ipnet::Ipv4Net;

use crate::fault::FaultKind;
use crate::file::port;
use crate::group::{Endpoint, GroupRule, HostEndpoint, HostPart, NextHop, RankPart, RemoteMemory};
use crate::kinds::KindDraft;
use crate::route::{Route, RouteHop};

/// A [`GroupRule`] that is being read. A field is `None` if it could not be read; it has a fault already. A reader
/// fills a draft, then calls [`check`](Self::check) and [`finish`](Self::finish), and so reports all faults at once.
#[derive(Clone, Debug, Default)]
pub struct GroupDraft {
    pub name: Option<String>,
    pub generation: Option<u64>,
    pub mcst_id: Option<McstId>,
    pub pmtu: Option<Pmtu>,
    pub stall_timeout_ms: Option<u32>,
    /// `None` if the list itself could not be read.
    pub endpoints: Option<Vec<EndpointDraft>>,
    pub kind: Option<KindDraft>,
}

/// An [`Endpoint`] that is being read.
#[derive(Clone, Debug, Default)]
pub struct EndpointDraft {
    pub port: Option<PortId>,
    pub virtual_qpn: Option<Qpn>,
    pub verify_mac: Option<bool>,
    pub next_hop: Option<HopDraft>,
}

/// A reference to an endpoint: in rules an index; in files a name, or a port with only one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointRef {
    /// Index in the group's list.
    Index(u16),
    /// Port of the endpoint.
    Port(PortId),
    /// The name of its host or switch.
    Name(String),
}

impl EndpointRef {
    pub(crate) const EXPECTED: &'static str =
        "the name of one of its endpoints, or a port that only one is at";

    /// A name in quotes, or a port number.
    pub(crate) fn read(value: Value<'_>) -> Option<Self> {
        match value.is_text() {
            true => value.string().map(Self::Name),
            false => port(value).map(Self::Port),
        }
    }

    /// `None` if an endpoint that could not be read may be the one.
    pub(crate) fn find(&self, endpoints: &[EndpointDraft]) -> Result<Option<u16>, FaultKind> {
        let (mut found, kind) = match self {
            Self::Index(index) if usize::from(*index) < endpoints.len() => return Ok(Some(*index)),
            Self::Index(index) => {
                let (index, endpoints) = (*index, endpoints.len());
                return Err(FaultKind::NoSuchEndpoint { index, endpoints });
            }
            Self::Port(port) => {
                let Some(ports) = endpoints.iter().map(|e| e.port).collect::<Option<Vec<_>>>() else {
                    return Ok(None);
                };
                let found: Vec<_> = (0..)
                    .zip(&ports)
                    .filter(|(_, p)| *p == port)
                    .map(|(i, _)| i)
                    .collect();
                let port = *port;
                (found, FaultKind::NoEndpointAt { port, ports })
            }
            Self::Name(name) => {
                let names = endpoints
                    .iter()
                    .map(|e| e.next_hop.as_ref()?.name().map(String::from));
                let Some(names) = names.collect::<Option<Vec<_>>>() else {
                    return Ok(None);
                };
                let found: Vec<_> = (0..)
                    .zip(&names)
                    .filter(|(_, n)| *n == name)
                    .map(|(i, _)| i)
                    .collect();
                let name = name.clone();
                (found, FaultKind::NoEndpointOf { name, names })
            }
        };
        match (self, found.pop(), found.is_empty()) {
            (_, None, _) => Err(kind),
            (Self::Port(port), Some(_), false) => Err(FaultKind::SeveralEndpointsAt { port: *port }),
            // Equal names are a fault of their own.
            (_, index, _) => Ok(index),
        }
    }
}

impl HopDraft {
    /// The inner `None` is that of an adjacent switch.
    pub(crate) fn ip(&self) -> Option<Option<Ipv4Addr>> {
        match self {
            Self::Host(host) => host.ip.map(Some),
            Self::Switch(switch) => switch.ip,
        }
    }

    /// Destination address and QPN of frames to it, unique at a switch. `None` without an address.
    pub(crate) fn qp(&self) -> Option<(Ipv4Addr, Qpn)> {
        let qpn = match self {
            Self::Host(host) => host.qpn,
            Self::Switch(switch) => switch.qpn,
        };
        self.ip().flatten().zip(qpn)
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Host(host) => host.name.as_deref(),
            Self::Switch(switch) => switch.name.as_deref(),
        }
    }
}

/// A [`NextHop`] that is being read.
#[derive(Clone, Debug)]
pub enum HopDraft {
    Host(HostDraft),
    Switch(SwitchDraft),
}

/// A [`HostEndpoint`] that is being read.
#[derive(Clone, Debug, Default)]
pub struct HostDraft {
    pub name: Option<String>,
    pub ip: Option<Ipv4Addr>,
    pub qpn: Option<Qpn>,
    pub mac: Option<MacAddr>,
    pub part: Option<PartDraft>,
}

/// A [`HostPart`] that is being read.
#[derive(Clone, Copy, Debug)]
pub enum PartDraft {
    Plain,
    Memory(RemoteMemory),
    Rank(RankDraft),
}

/// A [`RankPart`] that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub struct RankDraft {
    pub rank: Option<u16>,
    pub sq_psn: Option<Psn>,
    pub rq_psn: Option<Psn>,
}

/// [`NextHop::Switch`] while it is being read.
#[derive(Clone, Debug, Default)]
pub struct SwitchDraft {
    pub name: Option<String>,
    /// The inner `None` is that of an adjacent switch.
    pub ip: Option<Option<Ipv4Addr>>,
    pub qpn: Option<Qpn>,
    pub mac: Option<MacAddr>,
    pub ranks: Option<Vec<u16>>,
}

impl GroupDraft {
    /// `None` if a field is missing.
    pub fn finish(self) -> Option<GroupRule> {
        let endpoints = self.endpoints?;
        let kind = self.kind?.finish(&endpoints)?;
        let endpoints = endpoints.into_iter().map(EndpointDraft::finish);
        Some(GroupRule {
            name: self.name?,
            generation: self.generation?,
            mcst_id: self.mcst_id?,
            pmtu: self.pmtu?,
            stall_timeout_ms: self.stall_timeout_ms?,
            endpoints: endpoints.collect::<Option<_>>()?,
            kind,
        })
    }
}

impl EndpointDraft {
    fn finish(self) -> Option<Endpoint> {
        let next_hop = match self.next_hop? {
            HopDraft::Host(host) => NextHop::Host(host.finish()?),
            HopDraft::Switch(switch) => NextHop::Switch {
                name: switch.name?,
                ip: switch.ip?,
                qpn: switch.qpn?,
                mac: switch.mac?,
                ranks: switch.ranks?,
            },
        };
        Some(Endpoint {
            port: self.port?,
            virtual_qpn: self.virtual_qpn?,
            verify_mac: self.verify_mac?,
            next_hop,
        })
    }
}

impl HostDraft {
    /// `None` if a field is missing.
    pub fn finish(self) -> Option<HostEndpoint> {
        Some(HostEndpoint {
            name: self.name?,
            ip: self.ip?,
            qpn: self.qpn?,
            mac: self.mac?,
            part: match self.part? {
                PartDraft::Plain => HostPart::Plain,
                PartDraft::Memory(memory) => HostPart::Memory(memory),
                PartDraft::Rank(RankDraft { rank, sq_psn, rq_psn }) => HostPart::Rank(RankPart {
                    rank: rank?,
                    sq_psn: sq_psn?,
                    rq_psn: rq_psn?,
                }),
            },
        })
    }
}

impl From<&GroupRule> for GroupDraft {
    fn from(group: &GroupRule) -> Self {
        Self {
            name: Some(group.name.clone()),
            generation: Some(group.generation),
            mcst_id: Some(group.mcst_id),
            pmtu: Some(group.pmtu),
            stall_timeout_ms: Some(group.stall_timeout_ms),
            endpoints: Some(group.endpoints.iter().map(EndpointDraft::from).collect()),
            kind: Some((&group.kind).into()),
        }
    }
}

impl From<&Endpoint> for EndpointDraft {
    fn from(endpoint: &Endpoint) -> Self {
        let next_hop = match &endpoint.next_hop {
            NextHop::Host(host) => HopDraft::Host(host.into()),
            NextHop::Switch {
                name,
                ip,
                qpn,
                mac,
                ranks,
            } => HopDraft::Switch(SwitchDraft {
                name: Some(name.clone()),
                ip: Some(*ip),
                qpn: Some(*qpn),
                mac: Some(*mac),
                ranks: Some(ranks.clone()),
            }),
        };
        Self {
            port: Some(endpoint.port),
            virtual_qpn: Some(endpoint.virtual_qpn),
            verify_mac: Some(endpoint.verify_mac),
            next_hop: Some(next_hop),
        }
    }
}

impl From<&HostEndpoint> for HostDraft {
    fn from(host: &HostEndpoint) -> Self {
        let part = match host.part {
            HostPart::Plain => PartDraft::Plain,
            HostPart::Memory(memory) => PartDraft::Memory(memory),
            HostPart::Rank(RankPart { rank, sq_psn, rq_psn }) => PartDraft::Rank(RankDraft {
                rank: Some(rank),
                sq_psn: Some(sq_psn),
                rq_psn: Some(rq_psn),
            }),
        };
        Self {
            name: Some(host.name.clone()),
            ip: Some(host.ip),
            qpn: Some(host.qpn),
            mac: Some(host.mac),
            part: Some(part),
        }
    }
}

/// A [`Route`] that is being read.
#[derive(Clone, Debug, Default)]
pub struct RouteDraft {
    pub prefix: Option<Ipv4Net>,
    /// `None` if the list itself could not be read.
    pub next_hops: Option<Vec<(Option<PortId>, Option<MacAddr>)>>,
}

impl RouteDraft {
    /// `None` if a field is missing.
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
