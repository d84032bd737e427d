//! A simulated network in virtual time. Its nodes are the real engine and the real endpoint.
//!
//! In a [`Simulation`] each switch of a topology runs a [`castnet_engine::Engine`], each host a
//! [`castnet_endpoint::Endpoint`]. Links have rate, propagation delay, a bounded queue, loss, duplication, reordering
//! and corruption, per direction ([`LinkProfile`]). Time jumps from event to event; events of the same time are handled
//! in order of creation, and those that nodes create at the same time by the port at which they arrive, unless links have
//! faults. All randomness comes from one seed, so a run can be repeated to the nanosecond.
//!
//! [`Simulation::run`] uses several threads if it may ([`SimConfig::threads`]). Their number changes no result.
//!
//! With flow control (PFC, [`SimConfig::pfc`]), switches run the lines of a worker and hosts obey PAUSE, so that lossless classes lose nothing.
//!
//! A [`Watch`] observes every frame as it is sent and delivered. One is [`Contract`], which checks M1 to M3 of a group.
//!
//! Hosts can be ranks of collectives, with CommLib's machines over the endpoint: as members of a group
//! ([`Simulation::join_group`], [`Simulation::join_multicast`]) or among themselves ([`Simulation::join_hosts`]).
//!
//! ```
//! use castnet_sim::{End, SimConfig, Simulation};
//! use castnet_topology::Topology;
//! use castnet_wire::Nanos;
//!
//! let topology = Topology::leaf_spine(2, 1, 2).expect("a valid fabric");
//! let mut sim = Simulation::new(&topology, SimConfig::new(7), ()).expect("all switches start");
//! assert_eq!(sim.run(Nanos::from_secs(1)), End::Idle);
//! ```
#![forbid(unsafe_code)]

mod ahead;
mod collective;
mod contract;
mod flow;
mod frame;
mod link;
mod node;
mod profile;
mod queue;
mod rank;
mod routes;
mod run;
mod service;
mod shards;
mod simulation;
mod task_memory;
mod trace;
mod watch;

pub use collective::{ChannelEnd, RankQp};
pub use contract::{Contract, Sightings};
pub use flow::Storm;
pub use link::{Fate, LinkStats};
pub use node::NodeId;
pub use profile::{HostCost, LinkProfile, SimConfig};
pub use rank::{Rank, RankTask};
pub use routes::Routes;
pub use service::SwitchCost;
pub use simulation::{End, SimError, Simulation};
pub use task_memory::TaskMemory;
pub use trace::{Trace, TraceRecord};
pub use watch::{Delivery, Hop, View, Watch};
