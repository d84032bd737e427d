//! What is installed under a McstID: a group that multicasts, or one that computes.

use core::net::Ipv4Addr;

use castnet_collective::Prefetch;
use castnet_reduce::prefetch;
use castnet_rules::{GroupKind, GroupRule};
use castnet_wire::{McstId, PortId};

use crate::collective::{self, Collective, CollectiveGroupStatus};
use crate::config::PortInfo;
use crate::group::{self, Group, GroupStatus, InstallError, port_count};
use crate::next_hops::NextHops;

/// What lets machines ask for memory.
pub(crate) struct Ahead;

impl Prefetch for Ahead {
    #[inline(always)]
    fn prefetch<T: ?Sized>(&self, value: &T) {
        prefetch(value);
    }
}

/// One group on a switch: endpoints, state and counters (EPIC 4.1). What differs is how it is realized.
#[derive(Debug)]
pub enum Context {
    /// One source, many receivers (Cepheus).
    Multicast(Box<Group>),
    /// Contributions meet here (EPIC).
    Collective(Box<Collective>),
}

/// A group, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextStatus {
    /// Of one that multicasts.
    Multicast(GroupStatus),
    /// Of one that computes.
    Collective(CollectiveGroupStatus),
}

impl ContextStatus {
    /// The rule that runs, endpoints in the group's own order.
    pub const fn rule(&self) -> &GroupRule {
        match self {
            Self::Multicast(status) => &status.rule,
            Self::Collective(status) => &status.rule,
        }
    }

    /// Of a group that multicasts.
    pub const fn multicast(&self) -> Option<&GroupStatus> {
        match self {
            Self::Multicast(status) => Some(status),
            Self::Collective(_) => None,
        }
    }

    /// Of a group that computes.
    pub const fn collective(&self) -> Option<&CollectiveGroupStatus> {
        match self {
            Self::Collective(status) => Some(status),
            Self::Multicast(_) => None,
        }
    }
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
    /// Checks `rule` against a switch with these ports and builds the group. All its memory is taken here, so call it
    /// where time does not matter and hand the result to the engine.
    ///
    /// # Errors
    /// [`InstallError::Faults`], [`InstallError::NoPort`] or [`InstallError::MtuTooSmall`].
    pub fn compile(rule: &GroupRule, ports: &[PortInfo]) -> Result<Self, InstallError> {
        check(rule, ports)?;
        let rule = rule.clone().in_order();
        Ok(match rule.kind.clone() {
            GroupKind::Multicast(kind) => Group::new(rule, &kind).into(),
            GroupKind::Translated(kind) => Collective::new(rule, &kind).into(),
        })
    }

    /// The same without memory for payload, for a [dry run](crate::DryRun).
    ///
    /// # Errors
    /// As [`Context::compile`].
    pub fn compile_dry(rule: &GroupRule, ports: &[PortInfo]) -> Result<Self, InstallError> {
        match &rule.kind {
            GroupKind::Translated(kind) => {
                check(rule, ports)?;
                let rule = rule.clone().in_order();
                Ok(Collective::without_payload(rule, kind).into())
            }
            GroupKind::Multicast(_) => Self::compile(rule, ports),
        }
    }

    /// Bytes that the group of a rule will take of the memory for groups, where its kind reserves memory for slots: then
    /// it is known without taking any. `None` where it is known of the compiled group alone.
    ///
    /// # Errors
    /// As [`Context::compile`].
    pub fn reserved(rule: &GroupRule, ports: &[PortInfo]) -> Result<Option<usize>, InstallError> {
        match &rule.kind {
            GroupKind::Translated(_) => {
                check(rule, ports)?;
                Ok(Some(rule.reserved_bytes() as usize))
            }
            GroupKind::Multicast(_) => Ok(None),
        }
    }

    /// The rule that it runs, endpoints in its own order: that of ports, or of the lowest ranks behind them.
    pub fn rule(&self) -> &GroupRule {
        match self {
            Self::Multicast(group) => group.rule(),
            Self::Collective(group) => group.rule(),
        }
    }

    /// Its address.
    pub fn mcst_id(&self) -> McstId {
        match self {
            Self::Multicast(group) => group.mcst_id(),
            Self::Collective(group) => group.mcst_id(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.rule().name
    }

    /// Asks for the memory that plain frames touch, in three steps: each needs what the one before it asked for.
    #[inline(always)]
    pub(crate) fn prefetch(&self, step: usize, ingress: PortId) {
        match (self, step) {
            (Self::Multicast(group), 0) => prefetch(&**group),
            (Self::Multicast(group), 1) => group.prefetch(ingress),
            (Self::Multicast(_), _) => {}
            (Self::Collective(group), 0) => group.prefetch_self(ingress),
            (Self::Collective(group), 1) => group.prefetch(ingress),
            (Self::Collective(group), _) => group.prefetch_next(ingress),
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
        self.rule() == other.rule()
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

    /// Everything about it, for people. Allocates.
    pub fn status(&self) -> ContextStatus {
        match self {
            Self::Multicast(group) => ContextStatus::Multicast(group.status()),
            Self::Collective(group) => ContextStatus::Collective(group.status()),
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

/// What can be refused of a rule on a switch with these ports before any memory is taken.
fn check(rule: &GroupRule, ports: &[PortInfo]) -> Result<(), InstallError> {
    let faults = rule.check(port_count(ports));
    if !faults.is_empty() {
        return Err(InstallError::Faults(faults));
    }
    let overhead = match &rule.kind {
        GroupKind::Multicast(_) => group::OVERHEAD,
        GroupKind::Translated(_) => collective::OVERHEAD,
    };
    let (pmtu, need) = (rule.pmtu.bytes(), rule.pmtu.bytes() + overhead);
    for (i, endpoint) in rule.endpoints.iter().enumerate() {
        let Some(port) = ports.iter().find(|p| p.id == endpoint.port) else {
            return Err(InstallError::NoPort {
                endpoint: i,
                port: endpoint.port,
            });
        };
        if port.mtu < need {
            return Err(InstallError::MtuTooSmall {
                port: port.id,
                pmtu,
                need,
                mtu: port.mtu,
            });
        }
    }
    Ok(())
}
