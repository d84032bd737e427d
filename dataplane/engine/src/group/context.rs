//! A group of any kind, as installed under a McstID.
//!
//! A new kind needs an implementation of [`Kind`] and a line in the list of [`kinds!`].

use core::net::Ipv4Addr;

use castnet_rules::{GroupKind, GroupRule};
use castnet_wire::{MacAddr, McstId, Nanos, PortId, RoceHeader};

use crate::config::PortInfo;
use crate::egress::Egress;
use crate::group::collective::{Collective, CollectiveGroupStatus};
use crate::group::forwarding::{Forwarding, ForwardingStatus};
use crate::group::install::{InstallError, port_count};
use crate::group::kind::Kind;
use crate::group::multicast::context::{Group, GroupStatus};
use crate::group::services::Services;
use crate::observe::counters::CountersSnapshot;
use crate::observe::trace::{Observer, Off, Verdict};
use crate::output::cx::Cx;
use crate::tables::next_hops::{NextHops, NextHopsFull};

/// Defines the two enums over all kinds, and functions that dispatch to the implementation of [`Kind`].
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($group:ty, $status:ident) runs $rule:ident,)*) => {
        /// One group on a switch: endpoints, state and counters (EPIC 4.1).
        #[derive(Debug)]
        pub enum Context {
            $($(#[$doc])* $kind($group),)*
        }

        /// A group, for display.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum ContextStatus {
            $($(#[$doc])* $kind($status),)*
        }

        $(impl From<$group> for Context {
            fn from(group: $group) -> Self {
                Self::$kind(group)
            }
        })*

        impl ContextStatus {
            /// The rule that runs, endpoints in the group's own order.
            pub const fn rule(&self) -> &GroupRule {
                match self {
                    $(Self::$kind(status) => &status.rule,)*
                }
            }
        }

        /// See [`Kind::OVERHEAD`].
        fn overhead(kind: &GroupKind) -> usize {
            match kind {
                $(GroupKind::$rule(_) => <$group as Kind>::OVERHEAD,)*
            }
        }

        impl Context {
            /// Checks `rule` for a switch with these ports and builds the group. Allocates all memory of the group, so call it
            /// outside the worker threads.
            ///
            /// # Errors
            /// [`InstallError::Faults`], [`InstallError::NoPort`], [`InstallError::NoMac`] or [`InstallError::MtuTooSmall`].
            pub fn compile(rule: &GroupRule, ports: &[PortInfo]) -> Result<Self, InstallError> {
                check(rule, ports)?;
                let rule = rule.clone().in_order();
                Ok(match rule.kind.clone() {
                    $(GroupKind::$rule(kind) => Self::$kind(Kind::new(rule, &kind)),)*
                })
            }

            /// Builds the group without memory for payload, for a [dry run](crate::DryRun).
            ///
            /// # Errors
            /// The errors of [`Context::compile`].
            pub fn compile_dry(rule: &GroupRule, ports: &[PortInfo]) -> Result<Self, InstallError> {
                check(rule, ports)?;
                let rule = rule.clone().in_order();
                Ok(match rule.kind.clone() {
                    $(GroupKind::$rule(kind) => Self::$kind(Kind::without_payload(rule, &kind)),)*
                })
            }

            /// See [`Kind::copy_state`].
            pub(crate) fn copy_state(&mut self, of: &Self) {
                match (self, of) {
                    $((Self::$kind(group), Self::$kind(of)) => group.copy_state(of),)*
                    _ => debug_assert!(false, "both groups have the same rule"),
                }
            }

            /// The running rule. Its endpoints are in the order of their ports, or of the lowest ranks behind them.
            pub fn rule(&self) -> &GroupRule {
                match self {
                    $(Self::$kind(group) => Kind::rule(group),)*
                }
            }

            /// Bytes of group memory that the group uses.
            pub fn memory_bytes(&self) -> usize {
                match self {
                    $(Self::$kind(group) => Kind::memory_bytes(group),)*
                }
            }

            /// The whole state of the group, for display. Allocates.
            pub fn status(&self) -> ContextStatus {
                match self {
                    $(Self::$kind(group) => ContextStatus::$kind(Kind::status(group)),)*
                }
            }

            /// See [`Kind::bind`].
            pub(crate) fn bind(
                &mut self,
                next_hops: &mut NextHops,
                own: Option<Ipv4Addr>,
            ) -> Result<(), NextHopsFull> {
                match self {
                    $(Self::$kind(group) => group.bind(next_hops, own),)*
                }
            }

            /// See [`Kind::unbind`].
            pub(crate) fn unbind(&self, next_hops: &mut NextHops) {
                match self {
                    $(Self::$kind(group) => group.unbind(next_hops),)*
                }
            }

            /// See [`Kind::prefetch`].
            #[inline(always)]
            pub(crate) fn prefetch(&self, step: usize, ingress: PortId) {
                match self {
                    $(Self::$kind(group) => Kind::prefetch(group, step, ingress),)*
                }
            }

            /// See [`Kind::note_dropped`].
            pub(crate) fn note_dropped(&mut self) {
                match self {
                    $(Self::$kind(group) => group.note_dropped(),)*
                }
            }

            /// See [`Kind::snapshot`].
            pub(crate) fn snapshot(&self, into: &mut CountersSnapshot) -> bool {
                match self {
                    $(Self::$kind(group) => group.snapshot(into),)*
                }
            }
        }

        impl Context {
            /// See [`Kind::fast_frames`].
            #[inline(always)]
            pub(crate) fn fast_frames<E: Egress>(
                &mut self,
                services: &mut Services,
                cx: &mut Cx<'_, E, Off>,
                slot: u32,
                frames: &mut impl Iterator<Item = E::Buf>,
            ) -> Option<E::Buf> {
                match self {
                    $(Self::$kind(group) => Kind::fast_frames(group, services, cx, slot, frames),)*
                }
            }

            /// See [`Kind::frame`].
            #[inline(always)]
            pub(crate) fn frame<E: Egress, O: Observer>(
                &mut self,
                services: &mut Services,
                cx: &mut Cx<'_, E, O>,
                slot: u32,
                header: &RoceHeader,
                src: Ipv4Addr,
                frame: E::Buf,
            ) -> Verdict {
                match self {
                    $(Self::$kind(group) => group.frame(services, cx, slot, header, src, frame),)*
                }
            }

            /// See [`Kind::timeout`].
            pub(crate) fn timeout<E: Egress, O: Observer>(
                &mut self,
                services: &mut Services,
                cx: &mut Cx<'_, E, O>,
                slot: u32,
            ) {
                match self {
                    $(Self::$kind(group) => group.timeout(services, cx, slot),)*
                }
            }

            /// See [`Kind::emit`].
            pub(crate) fn emit<E: Egress, O: Observer>(
                &mut self,
                services: &mut Services,
                cx: &mut Cx<'_, E, O>,
                slot: u32,
            ) {
                match self {
                    $(Self::$kind(group) => group.emit(services, cx, slot),)*
                }
            }

            /// See [`Kind::resume`].
            pub(crate) fn resume(&mut self, services: &mut Services, now: Nanos, slot: u32) {
                match self {
                    $(Self::$kind(group) => group.resume(services, now, slot),)*
                }
            }
        }
    };
}

kinds! {
    /// One source, many receivers (Cepheus).
    Multicast(Box<Group>, GroupStatus) runs Multicast,
    /// A collective: contributions are aggregated here (EPIC).
    Collective(Collective, CollectiveGroupStatus) runs Translated,
    /// Two endpoints. Frames of each endpoint go to the other one.
    Forwarding(Box<Forwarding>, ForwardingStatus) runs Forwarding,
}

impl ContextStatus {
    /// The status, if the group multicasts.
    pub const fn multicast(&self) -> Option<&GroupStatus> {
        match self {
            Self::Multicast(status) => Some(status),
            _ => None,
        }
    }

    /// The status, if the group is a collective.
    pub const fn collective(&self) -> Option<&CollectiveGroupStatus> {
        match self {
            Self::Collective(status) => Some(status),
            _ => None,
        }
    }
}

impl Context {
    /// Returns the bytes of group memory for a rule whose kind reserves memory for slots, without allocating them. `None` for other
    /// kinds: their size is known only after compilation.
    ///
    /// # Errors
    /// The errors of [`Context::compile`].
    pub fn reserved(rule: &GroupRule, ports: &[PortInfo]) -> Result<Option<usize>, InstallError> {
        match rule.reserved_bytes() {
            0 => Ok(None),
            bytes => check(rule, ports).map(|()| Some(bytes as usize)),
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

    /// Returns true if both groups have equal rules.
    pub(crate) fn same_rule(&self, other: &Self) -> bool {
        self.rule() == other.rule()
    }
}

/// Checks a rule for a switch with these ports, before any memory is allocated.
fn check(rule: &GroupRule, ports: &[PortInfo]) -> Result<(), InstallError> {
    let faults = rule.check(port_count(ports));
    if !faults.is_empty() {
        return Err(InstallError::Faults(faults));
    }
    let (pmtu, need) = (rule.pmtu.bytes(), rule.pmtu.bytes() + overhead(&rule.kind));
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
