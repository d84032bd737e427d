//! The lingua franca of Castnet: what a switch is told to do, as typed values.
//!
//! The planner produces these rules, `castnet-proto` carries them, TOML files store them, and the engine compiles and
//! executes them. A rule is either a [`GroupRule`] (one switch's part of a group: whom its McstID means here, how to bridge
//! its connections, and what its [kind](GroupKind) adds) or a [`Route`] (a static IPv4 route with equal-cost next hops).
//!
//! The types hold what cannot be confused ([`castnet_wire::Qpn`], [`castnet_wire::PortId`] ...); what types cannot say
//! is said once, in [`GroupRule::check`] and, between groups, [`GroupIndex::check`], for files, messages and installs alike. A [`Fault`] names the field and, where the rules came from a file, its line and column.
#![forbid(unsafe_code)]

mod check;
mod draft;
mod fault;
mod file;
mod generate;
mod group;
mod index;
mod kinds;
mod lane;
mod limit;
mod reader;
mod route;
mod set;
mod text;

pub use draft::{
    EndpointDraft, EndpointRef, GroupDraft, HopDraft, HostDraft, PartDraft, RankDraft, RouteDraft,
    SwitchDraft,
};
pub use fault::{Fault, FaultKind, Faults, Position};
pub use generate::{COLLECTIVE_EXAMPLE, FORWARDING_EXAMPLE, TWO_TIER_EXAMPLE};
pub use group::{
    DEFAULT_STALL_TIMEOUT_MS, ENDPOINTS_MAX, Endpoint, GroupRule, HostEndpoint, HostPart, NextHop, RankPart,
    RemoteMemory,
};
pub use index::{Claims, GroupIndex};
pub use ipnet::Ipv4Net;
pub use kinds::{
    DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, ForwardingDraft, ForwardingRule, GroupKind, KindDraft,
    LossPolicy, MulticastDraft, MulticastRule, RANKS_MAX, SLOT_ALIGN, StragglerPolicy, TranslatedDraft,
    TranslatedRule, UnknownPolicy,
};
pub use lane::{LANES_MAX, lane_name, lane_of};
pub use limit::{IP_TEXT, Limit, MAC_TEXT, PREFIX_TEXT};
pub use route::{Route, RouteHop};
pub use set::RuleSet;
