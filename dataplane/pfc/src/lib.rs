//! Priority-based flow control (PFC, IEEE 802.1Qbb; docs/decisions/0017-flow-control.md) of a switch and of a host. It does no I/O, and time is
//! an argument: the workers of a switch, the ports of software RNICs and the simulator run the same lines.
//!
//! - [`PfcShared`] is what all workers of a switch share of their ports, [`Pfc`] what one worker does at them, over [`PausablePort`]s.
//! - [`Gate`] holds the frames of a host back while the switch has paused their class.
#![forbid(unsafe_code)]

mod config;
mod gate;
mod queues;
mod report;
mod shared;
mod switch;

pub use config::PfcConfig;
pub use gate::Gate;
pub use queues::NO_INGRESS;
pub use report::{PfcClassReport, PfcCounters};
pub use shared::PfcShared;
pub use switch::{Admitted, PausablePort, Pfc};
