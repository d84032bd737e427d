//! CommLib (EPIC 3.2, 3.3): six collectives on slices of any [`Element`], called by the ranks of a job. Switches
//! compute them or, where the network cannot provide the group, hosts ([`Communicator::path`]).
//!
//! - [`Communicator`] connects one rank, over any [`castnet_rnic::Rnic`]. [`CommConfig`] has the controller's address,
//!   the job's name, the rank and the number of ranks.
//! - [`machine`] holds the algorithms as pure machines, without I/O. The simulator and the tests use them too.
//!
//! ```no_run
//! use castnet_comm::{CommConfig, CommError, Communicator, Operation};
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
#![forbid(unsafe_code)]

mod buffers;
mod communicator;
mod config;
mod control;
mod driver;
mod element;
mod error;
mod establish;
pub mod machine;
mod shared;

pub use buffers::{Buffers, OwnedBuffers};
pub use castnet_proto::transport::Controllers;
pub use castnet_rules::{LossPolicy, StragglerPolicy};
pub use castnet_wire::control::{DataType, Operation};
pub use communicator::{Communicator, Request};
pub use config::{CommConfig, CommPath, Fallback, Progress, SECRET_VARIABLE, Secret, Timeouts};
pub use element::Element;
pub use error::{CommError, ControllerError, RankName};
pub use half::{bf16, f16};
pub use shared::SharedRnic;
