//! The protocol machines, payload-free.
//!
//! A machine takes events, gives effects, and knows neither bytes, ports nor clocks: the engine carries its effects out
//! on frames, the model checker on sets. The same lines run in the switch, the simulator, the checker and the fuzzer.
//!
//! [`Multicast`] is Cepheus' multicast forwarding table (III.B, III.D): one source, many paths, feedback gathered.
//! [`Translated`] is EPIC's Mode-II (4.3): AllReduce, Reduce and Broadcast over a tree of switches.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod multicast;
pub mod path;
mod prefetch;
pub mod translated;

pub use multicast::{
    Effect, Effects, Event, Multicast, MulticastConfig, MulticastStatus, PathStatus, TimerReason,
};
pub use path::{PathId, PathSet};
pub use prefetch::Prefetch;
pub use translated::{
    CallId, EndpointConfig, EndpointId, EndpointKind, EndpointSet, EndpointStatus, LossPolicy, PacketShape,
    RankSet, StragglerPolicy, Translated, TranslatedConfig, TranslatedStatus,
};
