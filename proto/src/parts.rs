//! Accessors of messages.

use std::net::Ipv4Addr;

use castnet_wire::MacAddr;

use crate::v1::endpoint::NextHop;
use crate::v1::group_rule::Kind;
use crate::v1::host_endpoint::Part;
use crate::v1::installed_group::State;
use crate::v1::{
    Connection, Endpoint, GroupRule, HostEndpoint, InstalledGroup, Lane, LaneConnection, MulticastRule,
    MulticastState, RankPart, TranslatedRule, TranslatedState,
};

impl Connection {
    /// The connections of a host, one per lane.
    pub fn new(ip: Ipv4Addr, mac: MacAddr, lanes: impl IntoIterator<Item = LaneConnection>) -> Self {
        let mut lanes = lanes.into_iter();
        let first = lanes.next().unwrap_or_default();
        Self {
            ip: ip.to_string(),
            mac: mac.to_string(),
            qpn: first.qpn,
            memory: first.memory,
            more_lanes: lanes.collect(),
        }
    }
}

impl Lane {
    /// The McstIDs of a group's lanes. A group without lanes has its own. The error is the text that is no McstID.
    pub fn mcst_ids(lanes: &[Self], own: &str) -> Result<Vec<Ipv4Addr>, String> {
        let own = lanes.is_empty().then_some(own);
        let texts = lanes.iter().map(|lane| lane.mcst_id.as_str()).chain(own);
        texts
            .map(|text| text.parse().map_err(|_| format!("McstID '{text}'")))
            .collect()
    }
}

impl GroupRule {
    /// What a multicast group adds.
    pub fn multicast(&self) -> Option<&MulticastRule> {
        match &self.kind {
            Some(Kind::Multicast(rule)) => Some(rule),
            _ => None,
        }
    }

    /// What a group that computes over translated connections adds.
    pub fn translated(&self) -> Option<&TranslatedRule> {
        match &self.kind {
            Some(Kind::Translated(rule)) => Some(rule),
            _ => None,
        }
    }

    /// Index of the endpoint towards the source or root of the tree; `None` at the root.
    pub fn upstream_index(&self) -> Option<usize> {
        let index = match self.kind.as_ref()? {
            Kind::Multicast(rule) => rule.source,
            Kind::Translated(rule) => rule.parent?,
            Kind::Forwarding(_) => return None,
        };
        Some(index as usize)
    }

    /// The endpoint towards the source or root of the tree.
    pub fn upstream(&self) -> Option<&Endpoint> {
        self.endpoints.get(self.upstream_index()?)
    }

    /// All other endpoints.
    pub fn downstream(&self) -> impl Iterator<Item = &Endpoint> {
        let upstream = self.upstream_index();
        let endpoints = self.endpoints.iter().enumerate();
        let others = endpoints.filter(move |(i, _)| Some(*i) != upstream);
        others.map(|(_, e)| e)
    }
}

impl Endpoint {
    /// Name of its next hop.
    pub fn name(&self) -> &str {
        match &self.next_hop {
            Some(NextHop::Host(host)) => &host.name,
            Some(NextHop::Switch(switch)) => &switch.name,
            None => "",
        }
    }

    /// Destination QPN of its frames; 1 by default.
    pub fn virtual_qpn_or_default(&self) -> u32 {
        self.virtual_qpn.unwrap_or(castnet_wire::Qpn::VIRTUAL.value())
    }
}

impl HostEndpoint {
    /// Its rank in a group that computes.
    pub fn rank(&self) -> Option<&RankPart> {
        match &self.part {
            Some(Part::Rank(rank)) => Some(rank),
            _ => None,
        }
    }
}

impl InstalledGroup {
    /// The state of a multicast group.
    pub fn multicast(&self) -> Option<&MulticastState> {
        match &self.state {
            Some(State::Multicast(state)) => Some(state),
            _ => None,
        }
    }

    /// The state of a group that computes over translated connections.
    pub fn translated(&self) -> Option<&TranslatedState> {
        match &self.state {
            Some(State::Translated(state)) => Some(state),
            _ => None,
        }
    }
}
