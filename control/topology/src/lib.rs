//! The fabric as a graph: switches with ports, hosts, and links, each up or down.
//!
//! Build a [`Topology`] by hand, by [`Topology::star`], [`Topology::tree`], [`Topology::leaf_spine`] or
//! [`Topology::fat_tree`], or from a TOML file ([`Topology::from_toml`]). The planner queries neighbours, distances,
//! equal-cost next hops, and where a path is cut. Results have a fixed order: equal fabrics give equal plans.
//!
//! For fabrics of tens of thousands of hosts there are queries by number ([`NodeId`], [`Hop`]), and [`Usable`], the part
//! of a fabric that a group may use. Distances to a switch are computed when they are first needed, and shared.
//!
//! [`SwitchKind`] says which switches run groups. A Castnet switch behind routers has a prefix of McstIDs that they
//! route to it ([`Switch::mcst_prefix`]). A host is one network interface with one link.
//!
//! ```
//! use castnet_topology::Topology;
//!
//! let mut fabric = Topology::leaf_spine(2, 1, 2)?;
//! let to_h3 = fabric.distances("h3");
//! assert_eq!(fabric.distance("h0", &to_h3), Some(4));
//! fabric.set_switch_up("spine0", false);
//! assert!(!fabric.connected("h0", "h3"));
//! # Ok::<(), castnet_topology::TopologyError>(())
//! ```
#![forbid(unsafe_code)]

mod build;
mod chunks;
mod error;
mod file;
mod graph;
mod index;
mod query;
mod usable;

pub use castnet_toml_reader::Faults;
pub use chunks::Chunks;
pub use error::TopologyError;
pub use graph::{
    DEFAULT_MTU, End, Host, Link, LinkId, MulticastRoute, PORTS_MAX, Splitter, Switch, SwitchKind, Topology,
    overlaps, pool_fault,
};
pub use index::{EndId, Hop, NodeId, Row, links_from};
pub use query::{Cut, Distances, Down, Neighbour};
pub use usable::Usable;
