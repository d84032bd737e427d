//! The parts of messages that only one kind of group has.

use crate::v1::group_rule::Kind;
use crate::v1::host_endpoint::Part;
use crate::v1::installed_group::State;
use crate::v1::{
    GroupRule, HostEndpoint, InstalledGroup, MulticastRule, MulticastState, RankPart, TranslatedRule,
    TranslatedState,
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
