//! The protocol machines of groups, without payloads.
//!
//! A machine takes events and returns effects. It uses no bytes, ports or clocks: the engine executes its effects on frames, the model
//! checker on sets. [`Multicast`] is Cepheus' multicast forwarding table (III.B, III.D): one source, many paths, aggregated feedback.
//! [`Translated`] is EPIC's Mode-II (4.3) and Mode-III (4.4): AllReduce, Reduce and Broadcast over a tree of switches. [`Terminated`] is
//! its Mode-I (4.2), which works with messages.
//!
//! ```
//! use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, PathId};
//! use castnet_wire::{Nanos, Psn};
//!
//! let source = PathId::new(0).unwrap();
//! let mut machine = Multicast::new(MulticastConfig {
//!     paths: 3,
//!     source,
//!     start_psn: Some(Psn::new(0)),
//!     stall_timeout: Nanos::ZERO,
//! });
//! let mut effects = Effects::new();
//! let data = Event::Data { from: source, psn: Psn::new(0), ack_request: true };
//! machine.handle(Nanos::ZERO, data, &mut effects);
//! assert_eq!(effects.as_slice(), [Effect::Replicate { psn: Psn::new(0) }]);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod calls;
pub mod multicast;
pub mod path;
mod prefetch;
pub mod terminated;
pub mod translated;

pub use multicast::{
    Effect, Effects, Event, Multicast, MulticastConfig, MulticastStatus, PathStatus, RepairConfig,
    RepairStatus, Resend, Signal, TimerReason,
};
pub use path::{PathId, PathSet};
pub use prefetch::Prefetch;
pub use terminated::Terminated;
pub use translated::{
    CallId, CollectiveMode, EndpointConfig, EndpointId, EndpointKind, EndpointSet, EndpointStatus,
    LossPolicy, PacketShape, RankSet, StragglerPolicy, Translated, TranslatedConfig, TranslatedStatus,
};
