//! What is installed under a McstID: a group of one of the kinds, and the contract that each kind meets.
//!
//! A further kind is an implementation of [`Kind`] and a line in the list of [`kinds!`].

use core::net::Ipv4Addr;

use castnet_collective::Prefetch;
use castnet_reduce::prefetch;
use castnet_rules::{GroupKind, GroupRule};
use castnet_wire::{DropReason, McstId, Nanos, PortId, RoceHeader};

use crate::collective::{Collective, CollectiveGroupStatus};
use crate::config::PortInfo;
use crate::counters::CountersSnapshot;
use crate::egress::Egress;
use crate::engine::Engine;
use crate::forwarding::{Forwarding, ForwardingStatus};
use crate::group::{Group, GroupStatus, InstallError, port_count};
use crate::next_hops::NextHops;
use crate::pipeline::Cx;
use crate::trace::{Observer, Verdict};

/// What lets machines ask for memory.
pub(crate) struct Ahead;

impl Prefetch for Ahead {
    #[inline(always)]
    fn prefetch<T: ?Sized>(&self, value: &T) {
        prefetch(value);
    }
}

/// What each kind of group does: its memory, its frames, its timers, and its reports. `docs/new-kind.md` walks through it.
///
/// A function that is given the engine and a `slot` finds the group in that slot of [`Engine::groups`].
pub(crate) trait Kind: Sized {
    /// Its section of the rule.
    type Rule;
    /// Its state, for people.
    type Status;

    /// Bytes of IP header to ICRC around the payload of the largest packet that it carries.
    const OVERHEAD: usize;

    /// The group of a rule that has been checked, and whose endpoints are [in order](GroupRule::in_order), with all memory
    /// that it will ever need.
    fn new(rule: GroupRule, kind: &Self::Rule) -> Box<Self>;

    /// The same without memory for payload, for a dry run.
    fn without_payload(rule: GroupRule, kind: &Self::Rule) -> Box<Self> {
        Self::new(rule, kind)
    }

    /// Copies the state that decides what happens to a frame, without payload, from a group of the same rule. Takes no memory.
    fn copy_state(&mut self, _of: &Self) {}

    /// The rule that it runs.
    fn rule(&self) -> &GroupRule;

    /// Bytes that it takes of the memory for groups.
    fn memory_bytes(&self) -> usize;

    /// Takes places for its next hops' Ethernet addresses; gives all back where one does not fit. `own` is the switch's
    /// address, where it has one.
    fn bind(&mut self, next_hops: &mut NextHops, own: Option<Ipv4Addr>) -> Result<(), InstallError>;

    /// Gives these places back.
    fn unbind(&self, next_hops: &mut NextHops);

    /// Prefetches the memory that plain frames touch, in three steps: each needs what the one before it fetched.
    #[inline(always)]
    fn prefetch(&self, _step: usize, _ingress: PortId) {}

    /// Takes a frame whose destination is the group: finds its sender, checks it, and does what the kind does with it.
    fn frame<E: Egress, O: Observer>(
        engine: &mut Engine,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        header: &RoceHeader,
        src: Ipv4Addr,
        frame: E::Buf,
    ) -> Verdict;

    /// Its timer in one of the engine's wheels is due.
    fn timeout<E: Egress, O: Observer>(_: &mut Engine, _: &mut Cx<'_, E, O>, _slot: u32) {}

    /// Continues to send: the group is in [`Engine::emitting`].
    fn emit<E: Egress, O: Observer>(_: &mut Engine, _: &mut Cx<'_, E, O>, _slot: u32) {}

    /// Arms its timers, after it has come from another engine.
    fn resume(_: &mut Engine, _now: Nanos, _slot: u32) {}

    /// Counts a frame to the group that was dropped.
    fn note_dropped(&mut self);

    /// Puts its counters into a snapshot; `false` where there is no room.
    fn snapshot(&self, into: &mut CountersSnapshot) -> bool;

    /// Everything about it, for people. Allocates.
    fn status(&self) -> Self::Status;
}

/// Makes the two enums over all kinds, and the functions that call the one of the group's kind.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($group:ident, $status:ident) runs $rule:ident,)*) => {
        /// One group on a switch: endpoints, state and counters (EPIC 4.1). What differs is how it is realized.
        #[derive(Debug)]
        pub enum Context {
            $($(#[$doc])* $kind(Box<$group>),)*
        }

        /// A group, for people.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum ContextStatus {
            $($(#[$doc])* $kind($status),)*
        }

        $(impl From<Box<$group>> for Context {
            fn from(group: Box<$group>) -> Self {
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

        /// As [`Kind::OVERHEAD`].
        fn overhead(kind: &GroupKind) -> usize {
            match kind {
                $(GroupKind::$rule(_) => $group::OVERHEAD,)*
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
                    $(GroupKind::$rule(kind) => Self::$kind(Kind::new(rule, &kind)),)*
                })
            }

            /// The same without memory for payload, for a [dry run](crate::DryRun).
            ///
            /// # Errors
            /// As [`Context::compile`].
            pub fn compile_dry(rule: &GroupRule, ports: &[PortInfo]) -> Result<Self, InstallError> {
                check(rule, ports)?;
                let rule = rule.clone().in_order();
                Ok(match rule.kind.clone() {
                    $(GroupKind::$rule(kind) => Self::$kind(Kind::without_payload(rule, &kind)),)*
                })
            }

            /// As [`Kind::copy_state`].
            pub(crate) fn copy_state(&mut self, of: &Self) {
                match (self, of) {
                    $((Self::$kind(group), Self::$kind(of)) => group.copy_state(of),)*
                    _ => debug_assert!(false, "both run one rule"),
                }
            }

            /// The rule that it runs, endpoints in its own order: that of ports, or of the lowest ranks behind them.
            pub fn rule(&self) -> &GroupRule {
                match self {
                    $(Self::$kind(group) => Kind::rule(&**group),)*
                }
            }

            /// Bytes that it takes of the memory for groups.
            pub fn memory_bytes(&self) -> usize {
                match self {
                    $(Self::$kind(group) => Kind::memory_bytes(&**group),)*
                }
            }

            /// Everything about it, for people. Allocates.
            pub fn status(&self) -> ContextStatus {
                match self {
                    $(Self::$kind(group) => ContextStatus::$kind(Kind::status(&**group)),)*
                }
            }

            /// As [`Kind::bind`].
            pub(crate) fn bind(
                &mut self,
                next_hops: &mut NextHops,
                own: Option<Ipv4Addr>,
            ) -> Result<(), InstallError> {
                match self {
                    $(Self::$kind(group) => group.bind(next_hops, own),)*
                }
            }

            /// As [`Kind::unbind`].
            pub(crate) fn unbind(&self, next_hops: &mut NextHops) {
                match self {
                    $(Self::$kind(group) => group.unbind(next_hops),)*
                }
            }

            /// As [`Kind::prefetch`].
            #[inline(always)]
            pub(crate) fn prefetch(&self, step: usize, ingress: PortId) {
                match self {
                    $(Self::$kind(group) => Kind::prefetch(&**group, step, ingress),)*
                }
            }

            /// As [`Kind::note_dropped`].
            pub(crate) fn note_dropped(&mut self) {
                match self {
                    $(Self::$kind(group) => group.note_dropped(),)*
                }
            }

            /// As [`Kind::snapshot`].
            pub(crate) fn snapshot(&self, into: &mut CountersSnapshot) -> bool {
                match self {
                    $(Self::$kind(group) => group.snapshot(into),)*
                }
            }
        }

        /// What the group in a slot does, by its kind.
        impl Engine {
            /// As [`Kind::frame`].
            #[inline(always)]
            pub(crate) fn frame_of_kind<E: Egress, O: Observer>(
                &mut self,
                cx: &mut Cx<'_, E, O>,
                slot: u32,
                header: &RoceHeader,
                src: Ipv4Addr,
                frame: E::Buf,
            ) -> Verdict {
                match self.groups.at(slot) {
                    $(Some(Context::$kind(_)) => $group::frame(self, cx, slot, header, src, frame),)*
                    None => Verdict::Dropped(DropReason::NotMember),
                }
            }

            /// As [`Kind::timeout`].
            pub(crate) fn group_timeout<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, slot: u32) {
                match self.groups.at(slot) {
                    $(Some(Context::$kind(_)) => $group::timeout(self, cx, slot),)*
                    None => {}
                }
            }

            /// As [`Kind::emit`].
            pub(crate) fn group_emit<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, slot: u32) {
                match self.groups.at(slot) {
                    $(Some(Context::$kind(_)) => $group::emit(self, cx, slot),)*
                    None => {}
                }
            }

            /// As [`Kind::resume`].
            pub(crate) fn group_resume(&mut self, now: Nanos, slot: u32) {
                match self.groups.at(slot) {
                    $(Some(Context::$kind(_)) => $group::resume(self, now, slot),)*
                    None => {}
                }
            }
        }
    };
}

kinds! {
    /// One source, many receivers (Cepheus).
    Multicast(Group, GroupStatus) runs Multicast,
    /// Contributions meet here (EPIC).
    Collective(Collective, CollectiveGroupStatus) runs Translated,
    /// Two endpoints, each of which gets what the other one sends.
    Forwarding(Forwarding, ForwardingStatus) runs Forwarding,
}

impl ContextStatus {
    /// Of a group that multicasts.
    pub const fn multicast(&self) -> Option<&GroupStatus> {
        match self {
            Self::Multicast(status) => Some(status),
            _ => None,
        }
    }

    /// Of a group that computes.
    pub const fn collective(&self) -> Option<&CollectiveGroupStatus> {
        match self {
            Self::Collective(status) => Some(status),
            _ => None,
        }
    }
}

impl Context {
    /// Bytes that the group of a rule will take of the memory for groups, where its kind reserves memory for slots: then
    /// it is known without taking any. `None` where it is known of the compiled group alone.
    ///
    /// # Errors
    /// As [`Context::compile`].
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

    /// The group, where it multicasts.
    pub fn multicast(&self) -> Option<&Group> {
        match self {
            Self::Multicast(group) => Some(group),
            _ => None,
        }
    }

    /// The group, where it computes.
    pub fn collective(&self) -> Option<&Collective> {
        match self {
            Self::Collective(group) => Some(group),
            _ => None,
        }
    }

    /// Whether both run the very same rule.
    pub(crate) fn same_rule(&self, other: &Self) -> bool {
        self.rule() == other.rule()
    }
}

/// What can be refused of a rule on a switch with these ports before any memory is taken.
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
