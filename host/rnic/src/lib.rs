//! What a program on a host talks to: the trait [`Rnic`] with its QPs, memory regions and completions, and the two that
//! implement it. [`SoftRnic`] is the software RNIC: an [`Endpoint`](castnet_endpoint::Endpoint) on a
//! [`Port`](castnet_port::Port), with ARP. [`VerbsRnic`](verbs::VerbsRnic) is an RNIC of the machine, by libibverbs.
//!
//! [`stream`] sends files and other streams over a QP, to one receiver or, where the QP is a member of a group, to many.
//! [`messages`] sends messages of one size and nothing else, for checks.
//!
//! # Calling order
//!
//! One thread owns an RNIC. It posts work, calls [`Rnic::poll`] with the time, looks for completions, and where
//! there was nothing to do, [`Rnic::wait`]s.

pub mod conformance;
mod error;
pub mod messages;
mod neighbours;
mod rnic;
mod soft;
pub mod stream;
pub mod verbs;

pub use castnet_endpoint::{
    Access, Completion, CompletionOp, LocalSlice, MemoryKey, PostError, QpError, QpState, QueueLimits,
    RecvWr, SendOp, SendWr, Status,
};
pub use error::{RnicError, status_text};
pub use neighbours::{NeighbourConfig, NeighbourStats, Resolution};
pub use rnic::{DeviceAttributes, MemoryRegion, QpOptions, QpRemote, Rnic};
pub use soft::{Gateway, SoftRnic, SoftRnicConfig};
