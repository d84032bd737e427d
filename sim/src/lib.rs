//! A simulated network in virtual time. Its nodes are the real engine and the real endpoint.
//!
//! A [`Simulation`] is built from a topology. Each of its switches runs an [`castnet_engine::Engine`], each of its hosts an
//! [`castnet_endpoint::Endpoint`]. Frames travel over links with rate, propagation delay, a bounded queue, loss, duplication,
//! reordering and corruption, configured per direction ([`LinkProfile`]). Time jumps from event to event; events of the same
//! time are handled in the order in which they were created. All randomness comes from one seed, so a run can be repeated to
//! the nanosecond.
//!
//! A [`Watch`] observes every frame as it is sent and delivered. [`Contract`] is one: it checks M1 to M3 of the multicast
//! contract while a group runs.
//!
//! Hosts can be ranks of collectives. They run the machines of CommLib over the endpoint, either as members of a group that
//! the switches compute ([`Simulation::join_group`]) or among themselves ([`Simulation::join_hosts`]).
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

mod collective;
mod contract;
mod link;
mod node;
mod profile;
mod queue;
mod rank;
mod run;
mod simulation;
mod trace;
mod watch;

pub use collective::{ChannelEnd, RankQp};
pub use contract::{Contract, Sightings};
pub use link::{Fate, LinkStats};
pub use node::NodeId;
pub use profile::{LinkProfile, SimConfig};
pub use rank::{Rank, RankTask};
pub use simulation::{End, SimError, Simulation};
pub use trace::{Trace, TraceRecord};
pub use watch::{Delivery, Hop, View, Watch};
