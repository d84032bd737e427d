//! The rules that a Castnet switch executes, as typed values.
//!
//! The planner makes them, `castnet-proto` and TOML files carry them, and the engine executes them. A rule is one of:
//!
//! - a [`GroupRule`]: a switch's part of a group: McstID, endpoints there, and the fields of its [kind](GroupKind).
//! - a [`Route`]: a static IPv4 route with equal-cost next hops.
//!
//! [`GroupRule::check`] checks what the types cannot express and [`GroupIndex::check`] what holds between groups;
//! files, messages and installs use both. A [`Fault`] names the field. [`Faults`] of a file also have line and column.
//!
//! ```
//! use castnet_rules::RuleSet;
//!
//! let rules = RuleSet::from_toml(RuleSet::schema_example()).expect("no faults");
//! assert!(rules.check(64).is_empty());
//! assert_eq!(RuleSet::from_toml(&rules.to_toml()), Ok(rules));
//!
//! let faults = RuleSet::from_toml("groups = 3").expect_err("not a list");
//! assert_eq!(faults.faults[0].to_string(), "1:10: groups: a whole number where a list of groups: [[groups]] belongs");
//! ```
#![forbid(unsafe_code)]

mod check;
mod fault;
mod file;
mod generate;
mod group;
mod index;
mod kinds;
mod lane;
mod limit;
mod route;
mod set;
pub mod text;

pub use castnet_toml_reader::Faults;
pub use castnet_wire::{AnySource, BitRate, CollectiveMode, LossPolicy, RateLimit, StragglerPolicy};
pub use check::{MRP_PREFIX, Unread, ambiguous_name, bad_burst, check_routes, is_replicable};
pub use fault::{Fault, FaultKind};
pub use generate::{COLLECTIVE_EXAMPLE, FORWARDING_EXAMPLE, TWO_TIER_EXAMPLE};
pub use group::{
    DEFAULT_STALL_TIMEOUT_MS, ENDPOINTS_MAX, Endpoint, GroupRule, HostEndpoint, HostPart, NextHop, RankPart,
    RemoteMemory,
};
pub use index::{GroupIndex, NamedBy};
pub use ipnet::Ipv4Net;
pub use kinds::{
    DEFAULT_ACK_TIMEOUT_US, DEFAULT_MESSAGE_PACKETS, DEFAULT_REPAIR_SLOTS, ForwardingRule, GroupKind,
    MulticastRule, RANKS_MAX, RepairRule, SLOT_ALIGN, TranslatedRule,
};
pub use lane::{LANES_MAX, lane_name, lane_of};
pub use limit::{IP_TEXT, Limit, MAC_TEXT, PREFIX_TEXT, RATE_TEXT};
pub use route::{Route, RouteHop};
pub use set::RuleSet;
