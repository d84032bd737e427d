//! CommLib (EPIC 3.2, 3.3): six collectives on slices of any [`Element`], called by the ranks of a job. Switches
//! compute them or, where the network cannot provide the group, hosts ([`Communicator::path`]).
//!
//! - [`Collectives`] has the calls. Communicators of this thread, of a runner, and of several ranks of a host make them.
//! - [`Communicator`] connects one rank, over any [`castnet_rnic::Rnic`]. [`CommConfig`] has the controller's address,
//!   the job's name, the rank and the number of ranks.
//! - All communicators of a process that name the same controllers and certificates share one connection to the controller,
//!   also with the members of multicast groups.
//! - [`machine`] holds the algorithms as pure machines, without I/O, and [`executor`] executes their actions. The simulator uses both, too.
//!
//! ```no_run
//! use castnet_comm::{Collectives, CommConfig, CommError, Communicator, Operation};
//!
//! fn sum(config: CommConfig, rnic: Box<dyn castnet_rnic::Rnic>) -> Result<Vec<f32>, CommError> {
//!     let mut communicator = Communicator::connect(config, rnic)?;
//!     let mut values = vec![1.0_f32; 1024];
//!     communicator.allreduce(&mut values, Operation::Sum)?;
//!     communicator.close()?;
//!     Ok(values)
//! }
//! ```
//!
//! Every collective ends: with its result, or at its time-out with a [`CommError`] that names what it waited for. After
//! a failure the next call joins the group again, at all ranks together.
//!
//! # Sub-communicators
//!
//! [`Communicator::split`] and [`Communicator::dup`] make communicators of some or all ranks. Each communicator belongs to a
//! group: the connection of its members, in the network or between hosts.
//!
//! - **Groups are shared**: communicators with the same members in the same order have one group. Therefore all ranks call
//!   the collectives of all communicators of a job in the same order. While a rank waits in one group, the collectives
//!   that it has started in others progress.
//! - **A group is made when it is first used.** A split makes none in the network.
//! - **Groups are bounded** by [`CommConfig::groups_max`] at each rank. A group that no communicator uses any more is
//!   kept for the next communicator of the same members. The oldest of these are left when there is no room, and all when
//!   the communicator of the whole job is closed. A split that would give a rank too many groups that are in use
//!   fails at all ranks, with the name of that rank. In the fabric, the groups of a job are bounded by the quotas of its
//!   tenant.
//! - **How ranks agree**: a split is two AllGathers of the parent, which need no controller. In the first, each rank gives
//!   colour, key, the next free number of a group at this rank, and how many groups it has. In the second, it gives the
//!   number of the group that it has for its new members. If all members have the same, they share it. Otherwise they have
//!   a new group, whose number is the largest that a rank of the parent gave. So no two groups of a rank have the same
//!   number, even where a rank was replaced or has left a group that others keep.
//! - **Names**: the group of the whole job has the name of the job. Other groups are JOB.NUMBER.RANK, with the lowest rank of
//!   the job that is a member. So the groups that one split makes have different names.
//! - Errors name the ranks of the group that they come from; [`Communicator::members`] has their ranks in the job. If a
//!   rank is replaced by another process, all split again: the new process has no sub-communicators.

mod buffers;
mod collectives;
mod communicator;
mod config;
mod control;
mod driver;
mod element;
mod error;
mod establish;
pub mod executor;
mod group;
mod job;
mod lend;
pub mod machine;
mod shared;
mod split;

pub use buffers::{Buffers, CallLayout, LentBytes, OwnedBuffers};
pub use castnet_proto::transport::Controllers;
pub use castnet_rules::{CollectiveMode, LossPolicy, StragglerPolicy};
pub use castnet_wire::control::{DataType, Operation};
pub use castnet_wire::spin::{Idle, Progress, Spinner};
pub use collectives::Collectives;
pub use communicator::{Communicator, Request, Running};
pub use config::{CommConfig, CommPath, Fallback, Rendezvous, SECRET_VARIABLE, Secret, Timeouts};
pub use element::Element;
pub use error::{CommError, ControllerError, RankName};
pub use half::{bf16, f16};
pub use lend::lend;
pub use shared::SharedRnic;
