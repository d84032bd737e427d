//! Bytes to meaning and back: the frames of RoCEv2 and of the networks below it.
//!
//! One header per file, each with a plain `Repr` that parses from and emits to bytes. Nothing here does I/O, knows a
//! clock or allocates: time is [`Nanos`], an argument. All multi-byte fields are big endian on the wire.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod aeth;
pub mod drop;
pub mod frame;
pub mod ids;
pub mod psn;
pub mod time;

pub use aeth::{NakCode, RnrTimer, Syndrome};
pub use drop::DropReason;
pub use frame::{BATCH, Batch, FrameBuf};
pub use ids::{MacAddr, McstId, Pmtu, PortId, Qpn};
pub use psn::Psn;
pub use time::Nanos;
