//! Several ranks of a host: they reduce over shared memory, one of them takes part in the network, and all copy the result.
//!
//! - [`Hierarchical`] is a communicator of all ranks of a job, over a [`castnet_comm::Communicator`] or a
//!   [`castnet_runner::Comm`]. Ranks are processes, or threads of one.
//! - [`choose`] is the rule for the path of a call.
//! - [`Network`] is what a communicator of the network must do; tests have one of their own.
//! - [`numa`] finds the node of an RNIC, where the memory of a host and the thread of its leader are placed.
//!
//! ```no_run
//! use castnet_comm::{Collectives, CommConfig, CommError, Communicator, Operation};
//! use castnet_local::{Hierarchical, Options, PathChoice};
//!
//! fn sum(config: CommConfig, rnic: Box<dyn castnet_rnic::Rnic>) -> Result<Vec<f32>, CommError> {
//!     let world = Communicator::connect(config.clone(), rnic)?;
//!     let mut ranks = Hierarchical::new(world, &config, Options::new(PathChoice::Auto))?;
//!     let mut values = vec![1.0_f32; 1024];
//!     ranks.allreduce(&mut values, Operation::Sum)?;
//!     println!("{}", ranks.last_path());
//!     ranks.close()?;
//!     Ok(values)
//! }
//! ```
//!
//! # The hierarchical path
//!
//! The leader of a host is its lowest rank. A call is cut into pieces. For each piece, every rank copies its contribution
//! into the memory of the host, and reduces its share of the elements over all ranks of the host, so that all cores work.
//! The leader makes the collective of the piece with the other leaders, and all ranks copy the result. Four pieces are on
//! their way at once, so the network, the reduction and the copies overlap.
//!
//! - ReduceScatter and AllGather become a Reduce or Broadcast for each host, of the blocks of its ranks. So hosts may have
//!   any number of ranks, and the ranks of a host any numbers.
//! - Results are those of a plain communicator where the order of the operands does not matter. In rank order (reproducible),
//!   floating-point sums and products, and those of integers that saturate, need [`Layout::keeps_rank_order`]. Otherwise
//!   they take the direct path, or fail if only the hierarchical one is allowed.
//! - If a rank ends, the others of its host notice it within some 10 ms and get [`castnet_comm::CommError::RankFailed`] with its name.
//!   The leader leaves the network then, and the other hosts get the error of a rank that is gone.
//! - Ranks of a host that make different calls get [`castnet_comm::CommError::Mismatch`]. Two hosts whose ranks disagree only about
//!   which rank of a third host is the root do not notice it.
#![forbid(unsafe_code)]

mod choice;
mod engine;
mod hierarchical;
mod layout;
mod network;
pub mod numa;
mod plan;
mod segment;
#[cfg(test)]
mod tests;

pub use choice::{PathChoice, RankPath, choose};
pub use hierarchical::{Hierarchical, Options, PathCounters};
pub use layout::Layout;
pub use network::Network;
