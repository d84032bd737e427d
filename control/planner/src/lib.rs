//! Pure planning: a fabric and a request become one rule per switch. No I/O, no clock, no randomness; the same input
//! gives the same plan.
//!
//! The multicast distribution tree is a shortest-path tree from the source in which replication happens as late as
//! possible (Cepheus II.C): a receiver joins the tree at its deepest switch that lies on one of the receiver's shortest
//! paths; among equal paths there, the one over the links that carry the fewest groups wins (Cepheus III.C).
//!
//! The switches of a tree are Castnet switches. An edge of it is a path of links whose inner nodes are plain switches and routers; a
//! member joins at one of the Castnet switches nearest to it. A tree may use a link several times then: a Castnet switch that
//! hangs on a plain one by a single link gets each byte by this link and sends each copy by it. Such trees are compared by how
//! many links they take, and a switch that saves none is left out.
//!
//! Where a path passes a router, its ends are in different networks: the rules leave the router's Ethernet address to the switch,
//! and the group has another McstID at each switch of its tree, since one address cannot lead to several.
//!
//! The IncTree of a collective group hangs below a switch of the lowest level from which all ranks are reached
//! (EPIC 6.2), and leaves out switches without room for it.
#![forbid(unsafe_code)]

mod error;
mod grow;
mod load;
mod overlay;
mod place;
mod plan;
mod request;
mod rules;
mod tree;

pub use error::{Lack, PlanError, Shortage};
pub use load::{Edge, LinkLoad};
pub use plan::{HEADROOM, Plan, plan};
pub use request::{Member, Request, RequestKind, Room, Rooms, slots, slots_min};
pub use tree::{Path, Role, Tree, TreeNode};
