//! Parses and writes RoCEv2 frames and the headers below them: Ethernet, ARP, LLDP, IPv4, IPv6, UDP, BTH and the extended headers.
//!
//! Main types: [`RoceHeader`] (all headers of a RoCEv2 packet, from [`parse_frame`]), one plain struct per header ([`Ethernet`],
//! [`Ipv4`], [`Bth`], [`Reth`], [`Aeth`], ...), [`Opcode`] with its table, [`Psn`] arithmetic, the [`icrc`] module, and
//! [`FrameBuf`], the trait of a frame in a buffer. Each header has its own file.
//!
//! The crate does no I/O and reads no clock: time is an argument of type [`Nanos`]. Parsing and writing frames does not allocate.
//! Multi-byte fields are big endian on the wire.
//!
//! ```
//! use castnet_wire::{Bth, Ethernet, ExtHeaders, MacAddr, Network, Opcode, Parsed, Psn, Qpn, emit_roce, parse_frame};
//!
//! let ethernet = Ethernet { dst: MacAddr([2; 6]), src: MacAddr([4; 6]), ..Ethernet::default() };
//! let network = Network::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
//! let bth = Bth::new(Opcode::SendOnly, Qpn::new(17), Psn::new(5));
//! let mut frame = [0; 256];
//! let length = emit_roce(&mut frame, &ethernet, &network, 0xC000, &bth, &ExtHeaders::NONE, b"data").unwrap();
//!
//! let Ok(Parsed::Roce(header)) = parse_frame(&frame, length) else { panic!("a RoCEv2 frame") };
//! assert_eq!((header.bth.psn, header.payload_len), (Psn::new(5), 4));
//! ```
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
pub mod datagram;
pub mod describe;
pub mod drop;
pub mod error;
pub mod ethernet;
pub mod ext;
pub mod filter;
pub mod frame;
pub mod icrc;
pub mod ids;
pub mod ipv4;
pub mod ipv6;
pub mod layout;
pub mod limit;
pub mod lldp;
pub mod mrp;
mod names;
pub mod opcode;
pub mod pause;
pub mod policy;
pub mod psn;
pub mod rate;
pub mod red;
pub mod roce;
pub mod round_trip;
pub mod spin;
pub mod time;
pub mod udp;

pub use aeth::{Aeth, NakCode, RnrTimer, Syndrome};
pub use arp::{Arp, ArpOp};
pub use bth::Bth;
pub use build::{Network, emit_roce};
pub use control::{Call, CallFlags, Control, DataType, Operation, Primitive, UnknownName, Verdict};
pub use counters::CounterSet;
pub use datagram::Datagram;
pub use describe::describe;
pub use drop::{DropReason, Drops};
pub use error::{EmitError, Header, ParseError};
pub use ethernet::{Ethernet, VlanTag};
pub use ext::{AtomicEth, Deth, ExtHeaders, Reth};
pub use filter::FrameFilter;
pub use frame::{BATCH, Batch, FrameBuf};
pub use ids::{BadPmtu, MacAddr, McstId, Pmtu, PortId, Qpn};
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use limit::Limit;
pub use lldp::{Lldp, LldpId};
pub use mrp::{MrpBody, MrpCall, MrpGift, MrpMember, MrpMemory, MrpPacket, MrpPart, MrpReason, MrpRefusal};
pub use opcode::{Headers, Kind, Opcode, OpcodeInfo, Position, Transport};
pub use pause::{ClassMap, ClassSet, Pause, TrafficClass};
pub use policy::{AnySource, CollectiveMode, LossPolicy, MulticastRepair, StragglerPolicy, UnknownPolicy};
pub use psn::Psn;
pub use rate::{BitRate, NotARate, RateLimit, TokenBucket};
pub use roce::{IpAddrs, Parsed, RoceHeader, parse_frame, parse_network};
pub use round_trip::RoundTrip;
pub use time::Nanos;
pub use udp::Udp;
