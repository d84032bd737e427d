//! Pure planning: a fabric and a request become one rule per switch. No I/O, no clock, no randomness: the same input
//! gives the same plan.
//!
//! A multicast tree is a shortest-path tree from the source that replicates as late as possible (Cepheus II.C): a
//! receiver joins at the deepest switch of the tree on one of its shortest paths; among equal paths, over the links
//! with the fewest groups (Cepheus III.C). Where links are down, each layer of switches is chosen as a small set that
//! covers the next one (PEEL 2.3).
//!
//! Nodes of a tree are Castnet switches. An edge is a path of links over plain switches and routers only; a member
//! joins at one of the Castnet switches nearest to it. A tree may use a link several times: a Castnet switch that a
//! single link joins to a plain one receives each byte and sends each copy over it. Such trees are compared by their
//! number of links, and a switch that saves none is left out.
//!
//! The ends of a path over a router are in different networks: rules leave the router's Ethernet address to the switch,
//! and the group has a McstID of its own at each switch, as one address cannot lead to several.
//!
//! [`prefix`] is the other way to a group: no state in the switches that replicate, and a packet for each block of
//! receivers (PEEL 3.2). [`mod@reference`] has the trees that plans are compared with; plans do not use it.
//!
//! Where switches are joined by forwarders alone, as relays at the hosts of an ordinary network are, the tree is a star, or has another shape
//! ([`Request::distribution`]).
//!
//! A group with a static core has no state between the switches next to its members: these are a star over routers, which replicate by
//! static routes what is sent to a multicast address ([`Request::distribution`]). [`static_core::layout`] has these addresses and routes.
//!
//! The IncTree of a collective group hangs below a switch of the lowest level that reaches all ranks (EPIC 6.2),
//! without switches that lack room.
//!
//! ```
//! use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
//! use castnet_rules::MulticastRule;
//! use castnet_topology::Topology;
//! use castnet_wire::{McstId, Pmtu, Qpn};
//!
//! let fabric = Topology::leaf_spine(2, 1, 2)?;
//! let members = ["h0", "h1", "h2"].map(|host| Member::new(host, Qpn::new(0x11)));
//! let mcst_id = McstId([10, 200, 0, 1].into());
//! let source = MulticastRule::default(); // the first member
//! let request = Request::multicast("weights", mcst_id, Pmtu::B1024, members.to_vec(), source);
//! let plan = plan(&fabric, &LinkLoad::default(), &RoomTable::new(), &request)?;
//! assert!(plan.rules.keys().eq(["leaf0", "leaf1", "spine0"]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cover;
mod error;
mod grow;
mod load;
mod overlay;
mod place;
mod plan;
pub mod prefix;
pub mod reference;
mod relay;
mod request;
mod rules;
pub mod shufflecast;
pub mod static_core;
mod tree;

pub use error::{Lack, PlanError, Shortage};
pub use load::{Edge, LinkLoad};
pub use plan::{HEADROOM, Plan, plan};
pub use relay::relay_time;
pub use request::{Member, Request, RequestKind, Room, RoomTable, Rooms, slots, slots_min};
pub use tree::{Path, Role, Tree, TreeNode};
