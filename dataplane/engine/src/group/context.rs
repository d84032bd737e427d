//! A group of any kind, as installed under a McstID. A new kind implements [`Kind`] and has a line in each enum and `match` here.

use core::net::Ipv4Addr;

use castnet_rules::{GroupKind, GroupRule};
use castnet_wire::{MacAddr, McstId};

use crate::config::PortInfo;
use crate::group::collective::{self, Collective, CollectiveGroupStatus};
use crate::group::forwarding::{Forwarding, ForwardingStatus};
use crate::group::install::{self, InstallError, port_count};
use crate::group::kind::Kind;
use crate::group::multicast::context::{Group, GroupStatus};

/// One group on a switch: endpoints, state and counters (EPIC 4.1).
#[derive(Debug)]
pub enum Context {
    /// One source, many receivers (Cepheus).
    Multicast(Box<Group>),
    /// A collective: contributions are aggregated here (EPIC).
    Collective(Collective),
    /// Two endpoints. Frames of each endpoint go to the other one.
    Forwarding(Box<Forwarding>),
}

/// A group, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextStatus {
    /// The state of a multicast group.
    Multicast(GroupStatus),
    /// The state of a collective group.
    Collective(CollectiveGroupStatus),
    /// The state of a forwarding group.
    Forwarding(ForwardingStatus),
}

/// Evaluates an expression for the [`Kind`] of a group.
macro_rules! with_group {
    ($context:expr, $group:ident => $result:expr) => {
        match $context {
            $crate::group::context::Context::Multicast($group) => $result,
            $crate::group::context::Context::Collective(group) => match group {
                $crate::group::collective::Collective::Narrow($group) => $result,
                $crate::group::collective::Collective::Wide($group) => $result,
                $crate::group::collective::Collective::Terminated($group) => $result,
            },
            $crate::group::context::Context::Forwarding($group) => $result,
        }
    };
}
pub(crate) use with_group;

impl ContextStatus {
    /// The rule that runs, endpoints in the group's own order.
    pub const fn rule(&self) -> &GroupRule {
        match self {
            Self::Multicast(status) => &status.rule,
            Self::Collective(status) => &status.rule,
            Self::Forwarding(status) => &status.rule,
        }
    }

    /// The status of a multicast group.
    pub const fn multicast(&self) -> Option<&GroupStatus> {
        match self {
            Self::Multicast(status) => Some(status),
            _ => None,
        }
    }

    /// The status of a collective group.
    pub const fn collective(&self) -> Option<&CollectiveGroupStatus> {
        match self {
            Self::Collective(status) => Some(status),
            _ => None,
        }
    }
}

impl Context {
    /// Checks `rule` for a switch with these ports, and builds the group with all its memory: not on a worker thread.
    ///
    /// # Errors
    /// [`InstallError::Faults`], [`InstallError::NoPort`], [`InstallError::NoMac`] or [`InstallError::MtuTooSmall`].
    pub fn compile(rule: &GroupRule, ports: &[PortInfo]) -> Result<Self, InstallError> {
        Self::build(rule, ports, true)
    }

    /// Builds the group as [`Context::compile`], but without memory for payload, for a [dry run](crate::DryRun).
    pub fn compile_dry(rule: &GroupRule, ports: &[PortInfo]) -> Result<Self, InstallError> {
        Self::build(rule, ports, false)
    }

    fn build(rule: &GroupRule, ports: &[PortInfo], payload: bool) -> Result<Self, InstallError> {
        check(rule, ports)?;
        let rule = rule.clone().in_order();
        Ok(match rule.kind.clone() {
            GroupKind::Multicast(kind) => Self::Multicast(Group::new(rule, &kind, payload)),
            GroupKind::Translated(kind) => Self::Collective(Collective::new(rule, &kind, payload)),
            GroupKind::Forwarding(_) => Self::Forwarding(Forwarding::new(rule)),
        })
    }

    /// Bytes that a rule reserves for slots, checked as by [`Context::compile`]. `None` for other kinds: known only after compilation.
    pub fn reserved(rule: &GroupRule, ports: &[PortInfo]) -> Result<Option<usize>, InstallError> {
        match rule.reserved_bytes() {
            0 => Ok(None),
            bytes => check(rule, ports).map(|()| Some(bytes as usize)),
        }
    }

    /// Copies the state that decides what happens to a frame, without payload, from a group of the same rule. Does not allocate.
    pub(crate) fn copy_state(&mut self, of: &Self) {
        match (self, of) {
            (Self::Multicast(group), Self::Multicast(of)) => group.copy_state(of),
            (Self::Collective(group), Self::Collective(of)) => group.copy_state(of),
            (Self::Forwarding(group), Self::Forwarding(of)) => group.copy_state(of),
            _ => debug_assert!(false, "both groups have the same rule"),
        }
    }

    /// Takes over the state of the group that it replaces, if its rule says so. Does not allocate.
    pub(crate) fn carry_on(&mut self, old: &Self) {
        if let (Self::Multicast(group), Self::Multicast(old)) = (self, old) {
            group.carry_on(old);
        }
    }

    /// The running rule. Its endpoints are in the order of their ports, or of the lowest ranks behind them.
    pub fn rule(&self) -> &GroupRule {
        with_group!(self, group => group.rule())
    }

    /// Bytes of group memory in use.
    pub fn memory_bytes(&self) -> usize {
        with_group!(self, group => group.memory_bytes())
    }

    /// The whole state, for display. Allocates.
    pub fn status(&self) -> ContextStatus {
        match self {
            Self::Multicast(group) => ContextStatus::Multicast(group.status()),
            Self::Collective(Collective::Narrow(group)) => ContextStatus::Collective(group.status()),
            Self::Collective(Collective::Wide(group)) => ContextStatus::Collective(group.status()),
            Self::Collective(Collective::Terminated(group)) => ContextStatus::Collective(group.status()),
            Self::Forwarding(group) => ContextStatus::Forwarding(group.status()),
        }
    }

    /// Its address.
    pub fn mcst_id(&self) -> McstId {
        self.rule().mcst_id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.rule().name
    }

    /// The group, if it multicasts.
    pub fn multicast(&self) -> Option<&Group> {
        match self {
            Self::Multicast(group) => Some(group),
            _ => None,
        }
    }

    /// The group, if it is a collective.
    pub fn collective(&self) -> Option<&Collective> {
        match self {
            Self::Collective(group) => Some(group),
            _ => None,
        }
    }

    pub(crate) fn same_rule(&self, other: &Self) -> bool {
        self.rule() == other.rule()
    }
}

/// Checks the rule before any memory is allocated.
fn check(rule: &GroupRule, ports: &[PortInfo]) -> Result<(), InstallError> {
    let faults = rule.check(port_count(ports));
    if !faults.is_empty() {
        return Err(InstallError::Faults(faults));
    }
    let overhead = match rule.kind {
        GroupKind::Multicast(_) | GroupKind::Forwarding(_) => install::OVERHEAD,
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
        if endpoint.next_hop.mac() == MacAddr::UNSPECIFIED {
            return Err(InstallError::NoMac {
                endpoint: i,
                port: port.id,
                ip: endpoint.next_hop.ip().unwrap_or(Ipv4Addr::UNSPECIFIED),
            });
        }
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
