//! The fabric as a graph: switches with ports, hosts, and links, each up or down.
//!
//! A [`Topology`] is built by hand, by one of the builders ([`Topology::star`], [`Topology::tree`],
//! [`Topology::leaf_spine`], [`Topology::fat_tree`]) or from a TOML file ([`Topology::from_toml`]). A planner queries
//! neighbours, distances, equal-cost next hops, and where a path is cut. Results have a fixed order, so that the same
//! fabric gives the same plan.
//!
//! A switch is a Castnet switch, which runs groups, or a plain one or a router, which only forward ([`SwitchKind`]). A Castnet
//! switch that routers lead to has a prefix of McstIDs, which they route to it ([`Switch::mcst_prefix`]).
//! A host is one network interface with one link. Names of switches and hosts share one name space.
#![forbid(unsafe_code)]

mod build;
mod error;
mod file;
mod graph;
mod query;

pub use castnet_toml_reader::Faults;
pub use error::TopologyError;
pub use graph::{DEFAULT_MTU, End, Host, Link, LinkId, PORTS_MAX, Switch, SwitchKind, Topology, overlaps};
pub use query::{Cut, Distances, Down, Neighbour};
