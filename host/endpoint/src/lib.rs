//! An RC endpoint as a pure machine: requester, responder, retransmission.
//!
//! It behaves as Linux rxe (SoftRoCE) does, so that a switch that works with it works with rxe. Where it differs, the
//! item says so and why. Nothing here does I/O or knows a clock: frames and the time are arguments.
//!
//! # Calling order
//!
//! 1. [`Endpoint::register_memory`], [`Endpoint::create_qp`], [`Endpoint::post_recv`], [`Endpoint::post_send`].
//! 2. For each frame that arrives: [`Endpoint::handle_frame`].
//! 3. Until it says `None`: [`Endpoint::poll_transmit`], and send what it wrote.
//! 4. Until it says `None`: [`Endpoint::poll_completion`].
//! 5. At the time of [`Endpoint::poll_timeout`]: [`Endpoint::handle_timeout`], then 3 and 4 again.
//!
//! Every `handle_*`, `post_*` and `*_qp` call may make new frames, completions and times: poll after them.
//!
//! # Protection
//!
//! All QPs and memory regions of one endpoint belong to one protection domain.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod completions;
mod config;
mod endpoint;
mod error;
mod frames;
mod memory;
mod packet;
mod requester;
mod responder;
mod state;
mod stats;
mod work;

pub use config::{EndpointConfig, QpConfig, QueueLimits};
pub use endpoint::{Endpoint, QpStatus, TimerReason};
pub use error::{MemoryError, PostError, QpError};
pub use memory::{Access, MemoryKey};
pub use state::{QpEvent, QpState};
pub use stats::{Discard, Stats};
pub use work::{Completion, CompletionOp, LocalSlice, RecvWr, SendOp, SendWr, Status};
