//! What is installed under a McstID: a group that multicasts, or one that computes.

use core::net::Ipv4Addr;

use castnet_wire::McstId;

use crate::collective::Collective;
use crate::group::{Group, InstallError};
use crate::next_hops::NextHops;

/// One group on a switch: endpoints, state and counters (EPIC 4.1). What differs is how it is realized.
#[derive(Debug)]
pub enum Context {
    /// One source, many receivers (Cepheus).
    Multicast(Box<Group>),
    /// Contributions meet here (EPIC).
    Collective(Box<Collective>),
}

impl From<Box<Group>> for Context {
    fn from(group: Box<Group>) -> Self {
        Self::Multicast(group)
    }
}

impl From<Box<Collective>> for Context {
    fn from(group: Box<Collective>) -> Self {
        Self::Collective(group)
    }
}

impl Context {
    /// Its address.
    pub fn mcst_id(&self) -> McstId {
        match self {
            Self::Multicast(group) => group.mcst_id(),
            Self::Collective(group) => group.mcst_id(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Multicast(group) => &group.rule().name,
            Self::Collective(group) => &group.rule().name,
        }
    }

    /// Bytes that it takes of the memory for groups.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Multicast(group) => group.memory_bytes(),
            Self::Collective(group) => group.memory_bytes(),
        }
    }

    /// The group, where it multicasts.
    pub fn multicast(&self) -> Option<&Group> {
        match self {
            Self::Multicast(group) => Some(group),
            Self::Collective(_) => None,
        }
    }

    /// The group, where it computes.
    pub fn collective(&self) -> Option<&Collective> {
        match self {
            Self::Collective(group) => Some(group),
            Self::Multicast(_) => None,
        }
    }

    /// Whether both run the very same rule.
    pub(crate) fn same_rule(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Multicast(a), Self::Multicast(b)) => a.rule() == b.rule(),
            (Self::Collective(a), Self::Collective(b)) => a.rule() == b.rule(),
            _ => false,
        }
    }

    /// As [`Collective::copy_state`].
    pub(crate) fn copy_state(&mut self, of: &Self) {
        match (self, of) {
            (Self::Multicast(group), Self::Multicast(of)) => group.hot.machine.copy_state(&of.hot.machine),
            (Self::Collective(group), Self::Collective(of)) => group.copy_state(of),
            _ => debug_assert!(false, "both run one rule"),
        }
    }

    /// Takes places for its next hops' Ethernet addresses; gives all back where one does not fit.
    pub(crate) fn bind(
        &mut self,
        next_hops: &mut NextHops,
        own: Option<Ipv4Addr>,
    ) -> Result<(), InstallError> {
        match self {
            Self::Multicast(group) => group.bind(next_hops, own),
            Self::Collective(group) => group.bind(next_hops),
        }
    }

    /// Gives them back.
    pub(crate) fn unbind(&self, next_hops: &mut NextHops) {
        match self {
            Self::Multicast(group) => group.unbind(next_hops),
            Self::Collective(group) => group.unbind(next_hops),
        }
    }

    /// Counts a frame that ended before it was anybody's.
    pub(crate) fn note_dropped(&mut self) {
        match self {
            Self::Multicast(group) => group.cold.exceptions.dropped += 1,
            Self::Collective(group) => group.note_dropped(),
        }
    }
}
