//! A discrete-event network in virtual time whose nodes are the real engine and the real endpoint.
//!
//! A [`Simulation`] is made of a fabric: each of its switches runs an [`castnet_engine::Engine`], each of its hosts an
//! [`castnet_endpoint::Endpoint`], and frames travel over links with rate, propagation delay, a bounded queue, loss,
//! duplication, reordering and corruption, per direction ([`LinkProfile`]). Time jumps from event to event; everything
//! that is random comes from one seed, so a run can be repeated to the nanosecond.
//!
//! A [`Watch`] sees every frame as it is sent and delivered. [`Contract`] is one: it holds a multicast group against
//! M1 to M3 of the contract while it runs.
//!
//! Hosts can be ranks of collectives: the machines of CommLib over the endpoint, either as members of a group that the switches
//! compute ([`Simulation::join_group`]) or between themselves ([`Simulation::join_hosts`]).
//!
//! Events of one time happen in the order in which they were made.
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

pub use collective::{RankQp, Wire};
pub use contract::{Contract, Sightings};
pub use link::{Fate, LinkStats};
pub use node::NodeId;
pub use profile::{LinkProfile, SimConfig};
pub use rank::{Rank, RankTask};
pub use simulation::{End, SimError, Simulation};
pub use trace::{Trace, TraceRecord};
pub use watch::{Delivery, Hop, View, Watch};
