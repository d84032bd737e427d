//! An RC endpoint as a pure machine: requester, responder and retransmission.
//!
//! The main type is [`Endpoint`]. It behaves as Linux rxe (SoftRoCE), so a switch that works with it also works with
//! rxe: `tests/data` contains scripts with the frames that the rxe of Linux 6.1 sent, and the endpoint must send the
//! same. The interoperability tests play the scripts to a running rxe. The crate does no I/O and has no clock: frames
//! and times are arguments. All QPs and memory regions of one endpoint belong to one protection domain.
//!
//! # Intended differences from rxe
//!
//! - An ACK or NAK of a PSN that was never sent changes nothing. rxe completes work whose data was not delivered.
//! - After an RNR NAK nothing new is sent until the wait is over, as the InfiniBand specification requires. rxe sends
//!   new work, which is refused.
//! - During a retransmission, a response to the first transmission shortens it. rxe ignores the response until the
//!   message was sent again.
//! - A SEND whose FIRST or MIDDLE is not a full packet, or whose LAST is empty, is refused with NAK 0x61. rxe of Linux
//!   6.1 accepts it; later versions refuse it as well.
//! - A SEND longer than its receive is refused with NAK 0x61. rxe of Linux 6.1 sends 0x63; later versions send 0x61.
//! - READ and atomics are refused with NAK 0x61.
//!
//! # Calling order
//!
//! 1. [`Endpoint::register_memory`], [`Endpoint::create_qp`], [`Endpoint::post_recv`], [`Endpoint::post_send`].
//! 2. For each received frame: [`Endpoint::handle_frame`].
//! 3. Until it returns `None`: [`Endpoint::poll_transmit`], and send the frame.
//! 4. Until it returns `None`: [`Endpoint::poll_completion`].
//! 5. At the time of [`Endpoint::poll_timeout`]: [`Endpoint::handle_timeout`], then steps 3 and 4.
//!
//! Every `handle_*`, `post_*` and `*_qp` call may create frames, completions and timers, so poll after it.
//!
//! ```
//! use castnet_endpoint::{Access, Endpoint, EndpointConfig, LocalSlice, QpConfig, SendOp, SendWr};
//! use castnet_wire::{MacAddr, Nanos, Qpn};
//!
//! let mac = MacAddr([2, 0, 0, 0, 0, 1]);
//! let mut endpoint = Endpoint::new(EndpointConfig::new(mac, [10, 0, 0, 1].into()));
//! let key = endpoint.register_memory(0x1000, b"hello".to_vec(), Access::LOCAL).unwrap();
//! let (qpn, remote_mac) = (Qpn::new(0x11), MacAddr([2, 0, 0, 0, 0, 2]));
//! endpoint.create_qp(QpConfig::new(qpn, [10, 0, 0, 2].into(), remote_mac, Qpn::new(0x12))).unwrap();
//!
//! let local = LocalSlice { key, offset: 0, length: 5 };
//! endpoint.post_send(qpn, SendWr::new(1, SendOp::Send, local)).unwrap();
//! let mut frame = [0; Endpoint::FRAME_MAX];
//! let length = endpoint.poll_transmit(Nanos::ZERO, &mut frame);
//! assert!(length.is_some());
//! ```
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
mod kept;
mod lent;
mod memory;
mod pace;
mod packet;
mod probe;
mod qps;
mod reaction;
mod requester;
mod responder;
mod state;
mod stats;
mod timers;
mod work;

pub use config::{EndpointConfig, QpConfig, QueueLimits, Repeat};
pub use endpoint::{Endpoint, Prefetch, QpStatus, TimerReason};
pub use error::{MemoryError, OutOfRange, PostError, QpError};
pub use lent::Lent;
pub use memory::{Access, MemoryKey};
pub use reaction::{Reaction, ReactionConfig};
pub use state::{QpEvent, QpState};
pub use stats::{Discard, Stats};
pub use work::{Completion, CompletionOp, LocalSlice, MESSAGE_MAX, RecvWr, SendOp, SendWr, Status};
