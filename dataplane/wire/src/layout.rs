//! Byte offsets of the header fields of a plain RoCEv2 packet: IPv4 without options, UDP, BTH.
//!
//! Offsets and ranges count from the first byte of the IPv4 header. [`in_frame`] turns a range into one that counts from
//! the start of an Ethernet frame without tags. For whole headers, use their `from_bytes` and `to_bytes`.
//!
//! ```
//! use castnet_wire::layout::{DST, PLAIN_FRAME, in_frame};
//!
//! let frame = [7; PLAIN_FRAME];
//! assert_eq!(frame[in_frame(DST)], [7; 4]);
//! ```

use core::ops::Range;

use crate::bth::Bth;
use crate::ethernet::Ethernet;
use crate::ipv4::Ipv4;
use crate::udp::Udp;

/// First byte of an IPv4 header without options: version 4, five words.
pub const VERSION_LENGTH: u8 = 0x45;
/// Type of service: DSCP and ECN.
pub const TOS: usize = 1;
/// Bytes of the IPv4 packet.
pub const TOTAL_LENGTH: Range<usize> = 2..4;
/// Identification.
pub const IDENT: Range<usize> = 4..6;
/// Flags and fragment offset.
pub const FRAGMENT: Range<usize> = 6..8;
/// Hops left.
pub const TTL: usize = 8;
/// Protocol number.
pub const PROTOCOL: usize = 9;
/// Checksum of the IPv4 header.
pub const IPV4_CHECKSUM: Range<usize> = 10..12;
/// Source address.
pub const SRC: Range<usize> = 12..16;
/// Destination address.
pub const DST: Range<usize> = 16..20;
/// The UDP header.
pub const UDP: Range<usize> = Ipv4::LEN..Ipv4::LEN + Udp::LEN;
/// UDP source port.
pub const SPORT: Range<usize> = UDP.start..UDP.start + 2;
/// UDP destination port.
pub const DPORT: Range<usize> = UDP.start + 2..UDP.start + 4;
/// Bytes of the UDP datagram.
pub const UDP_LENGTH: Range<usize> = UDP.start + 4..UDP.start + 6;
/// UDP checksum.
pub const UDP_CHECKSUM: Range<usize> = UDP.start + 6..UDP.start + 8;
/// The base transport header.
pub const BTH: Range<usize> = UDP.end..UDP.end + Bth::LEN;
/// Opcode.
pub const OPCODE: usize = BTH.start;
/// Pad count in bits 4 and 5, with flags and the transport version.
pub const PAD: usize = BTH.start + 1;
/// Destination QPN.
pub const DEST_QP: Range<usize> = BTH.start + 5..BTH.start + 8;
/// Acknowledgement request in the highest bit, then reserved bits.
pub const ACK_REQUEST: usize = BTH.start + 8;
/// PSN.
pub const PSN: Range<usize> = BTH.start + 9..BTH.start + 12;
/// Bytes of IPv4, UDP and BTH.
pub const PACKET_HEADERS: usize = BTH.end;
/// Bytes of Ethernet, IPv4, UDP and BTH: all headers of a plain frame.
pub const PLAIN_FRAME: usize = Ethernet::LEN + PACKET_HEADERS;

/// The range of a field in a frame whose Ethernet header has no tag.
#[inline(always)]
pub const fn in_frame(field: Range<usize>) -> Range<usize> {
    Ethernet::LEN + field.start..Ethernet::LEN + field.end
}
