//! CommLib (EPIC 3.2, 3.3): groups of ranks and six collectives on slices of any [`Element`], computed in the network by the
//! switches, or between the hosts where the group cannot be had there. Which way is taken is always told:
//! [`Communicator::path`].
//!
//! - [`Communicator`] connects a rank by the controller's address, job, rank and size, over any [`castnet_rnic::Rnic`].
//! - [`machine`] has the algorithms as pure machines, for the simulator and for tests.
//!
//! # Reliability
//!
//! Every collective ends: with its result, or, at the latest after its time-out, with a [`CommError`] that names what it waited
//! for. After a failure the next call joins the group again by itself, at all ranks together.
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
pub use castnet_rules::{LossPolicy, StragglerPolicy};
pub use castnet_wire::control::{DataType, Operation};
pub use communicator::{Communicator, Request};
pub use config::{CommConfig, CommPath, Fallback, Progress, Timeouts};
pub use element::Element;
pub use error::{CommError, ControllerError, RankName};
pub use half::{bf16, f16};
pub use shared::SharedRnic;
