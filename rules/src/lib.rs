//! The lingua franca of Castnet: what a switch is told to do, as typed values.
//!
//! The planner produces these rules, `castnet-proto` carries them, TOML files store them, and the engine compiles and
//! executes them. A rule is either a [`MulticastGroup`] (one switch's Multicast Forwarding Table of Cepheus III.A to
//! III.C: whom a McstID means here, and how to bridge its connections), a [`CollectiveGroup`] (one switch's context of an
//! IncTree, EPIC 3.3) or a [`Route`] (a static IPv4 route with equal-cost next hops).
//!
//! The types hold what cannot be confused ([`castnet_wire::Qpn`], [`castnet_wire::PortId`] ...); what types cannot say
//! is said once, in [`MulticastGroup::check`], [`CollectiveGroup::check`] and, between groups, [`GroupIndex::check`], for files,
//! messages and installs alike. A [`Fault`] names the field and, where the rules came from a file, its line and column.
#![forbid(unsafe_code)]

mod check;
mod collective;
mod collective_draft;
mod collective_file;
mod draft;
mod fault;
mod file;
mod generate;
mod group;
mod index;
mod lane;
mod limit;
mod reader;
mod route;
mod set;
mod text;

pub use collective::{
    CollectiveEndpoint, CollectiveGroup, CollectiveHop, DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS,
    LossPolicy, RANKS_MAX, RankEndpoint, SLOT_ALIGN, StragglerPolicy, UnknownPolicy,
};
pub use collective_draft::{CollectiveDraft, CollectiveHopDraft, EndpointDraft, RankDraft};
pub use draft::{GroupDraft, HopDraft, MemberDraft, PathDraft, RouteDraft};
pub use fault::{Fault, FaultKind, Faults, Position};
pub use generate::{COLLECTIVE_EXAMPLE, TWO_TIER_EXAMPLE};
pub use group::{DEFAULT_STALL_TIMEOUT_MS, HostEndpoint, MulticastGroup, NextHop, Path, RemoteMemory};
pub use index::{Claims, GroupIndex};
pub use ipnet::Ipv4Net;
pub use lane::{LANES_MAX, lane_name, lane_of};
pub use limit::{IP_TEXT, Limit, MAC_TEXT, PREFIX_TEXT};
pub use route::{Route, RouteHop};
pub use set::RuleSet;
