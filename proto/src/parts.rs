//! The parts of messages that only one kind of group has.

use crate::v1::endpoint::NextHop;
use crate::v1::group_rule::Kind;
use crate::v1::host_endpoint::Part;
use crate::v1::installed_group::State;
use crate::v1::{
    Endpoint, GroupRule, HostEndpoint, InstalledGroup, MulticastRule, MulticastState, RankPart,
    TranslatedRule, TranslatedState,
};

impl GroupRule {
    /// What a multicast group adds.
    pub fn multicast(&self) -> Option<&MulticastRule> {
        match &self.kind {
            Some(Kind::Multicast(rule)) => Some(rule),
            _ => None,
        }
    }

    /// What a group adds that computes over translated connections.
    pub fn translated(&self) -> Option<&TranslatedRule> {
        match &self.kind {
            Some(Kind::Translated(rule)) => Some(rule),
            _ => None,
        }
    }
}

impl GroupRule {
    /// The index of the endpoint towards the source or root of the tree; `None` where the root is at this switch.
    pub fn upstream_index(&self) -> Option<usize> {
        let index = match self.kind.as_ref()? {
            Kind::Multicast(rule) => rule.source,
            Kind::Translated(rule) => rule.parent?,
            Kind::Forwarding(_) => return None,
        };
        Some(index as usize)
    }

    /// That endpoint.
    pub fn upstream(&self) -> Option<&Endpoint> {
        self.endpoints.get(self.upstream_index()?)
    }

    /// All other endpoints.
    pub fn downstream(&self) -> impl Iterator<Item = &Endpoint> {
        let upstream = self.upstream_index();
        let endpoints = self.endpoints.iter().enumerate();
        endpoints
            .filter(move |(i, _)| Some(*i) != upstream)
            .map(|(_, e)| e)
    }
}

impl Endpoint {
    /// The name of its host or switch.
    pub fn name(&self) -> &str {
        match &self.next_hop {
            Some(NextHop::Host(host)) => &host.name,
            Some(NextHop::Switch(switch)) => &switch.name,
            None => "",
        }
    }

    /// The QPN that its frames are addressed to.
    pub fn virtual_qpn_or_default(&self) -> u32 {
        self.virtual_qpn.unwrap_or(castnet_wire::Qpn::VIRTUAL.value())
    }
}

impl HostEndpoint {
    /// Its rank, in a group that computes.
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
