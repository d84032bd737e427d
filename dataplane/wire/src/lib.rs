//! Bytes to meaning and back: the frames of RoCEv2 and of the networks below it.
//!
//! One header per file, each with a plain `Repr` that parses from and emits to bytes. Nothing here does I/O or
//! knows a clock (time is [`Nanos`], an argument), and nothing on a frame's way allocates. All multi-byte fields are big endian on the wire.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod aeth;
pub mod arp;
pub mod bth;
pub mod build;
pub mod control;
pub mod counters;
pub mod describe;
pub mod drop;
pub mod error;
pub mod ethernet;
pub mod ext;
pub mod frame;
pub mod icrc;
pub mod ids;
pub mod ipv4;
pub mod ipv6;
pub mod lldp;
pub mod opcode;
pub mod psn;
pub mod rewrite;
pub mod roce;
pub mod time;
pub mod udp;

pub use aeth::{Aeth, NakCode, RnrTimer, Syndrome};
pub use arp::{Arp, ArpOp};
pub use bth::Bth;
pub use build::{Network, emit_roce};
pub use control::{Call, CallFlags, Control, DataType, Operation, Primitive, UnknownName, Verdict};
pub use counters::CounterSet;
pub use describe::describe;
pub use drop::{DropReason, Drops};
pub use error::{EmitError, Header, ParseError};
pub use ethernet::{Ethernet, VlanTag};
pub use ext::{AtomicEth, Deth, ExtHeaders, Reth};
pub use frame::{BATCH, Batch, FrameBuf};
pub use ids::{MacAddr, McstId, Pmtu, PortId, Qpn};
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use lldp::{Lldp, LldpId};
pub use opcode::{Headers, Kind, Opcode, OpcodeInfo, Position, Transport};
pub use psn::Psn;
pub use rewrite::RoceV4Mut;
pub use roce::{IpAddrs, Parsed, RoceHeader, parse_frame, parse_network};
pub use time::Nanos;
pub use udp::Udp;
