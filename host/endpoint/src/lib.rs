//! An RC endpoint as a pure machine: requester, responder, retransmission.
//!
//! It behaves as Linux rxe (SoftRoCE) does, so that a switch that works with it works with rxe. `tests/data` holds scripts
//! that were played to an rxe of Linux 6.1, with the frames that passed; its own frames must be those, and the
//! interoperability tests play the same scripts to a living rxe. Nothing here does I/O or knows a clock: frames and the
//! time are arguments.
//!
//! # Where it differs from rxe, on purpose
//!
//! - An ACK or NAK of a PSN that was never sent changes nothing. rxe believes it, and completes work whose data nobody has.
//! - After an RNR NAK nothing new is sent until the wait is over, as the InfiniBand
//!   specification has it. rxe goes on with new work, which is refused.
//! - After going back, an answer to the first sending cuts the second short. rxe ignores it until the message has gone out
//!   again.
//! - A SEND whose FIRST or MIDDLE is no full packet, or whose LAST is empty, is refused with NAK 0x61. rxe of
//!   Linux 6.1 takes it; later ones refuse it too.
//! - A SEND longer than its receive is refused with NAK 0x61. rxe of Linux 6.1 says 0x63; later ones 0x61.
//! - READ and atomics are refused with NAK 0x61.
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
