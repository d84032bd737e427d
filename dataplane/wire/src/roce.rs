//! Parses the headers of a frame in one pass: fixed offsets, no allocation, one small result.

use crate::aeth::Aeth;
use crate::arp::Arp;
use crate::bth::Bth;
use crate::error::{Header, ParseError};
use crate::ethernet::{
    ETHERTYPE_ARP, ETHERTYPE_AT, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_LLDP, Ethernet,
};
use crate::ext::{AtomicEth, Deth, ExtHeaders, Reth};
use crate::ipv4::{FRAGMENT_OFFSET, Ipv4, MORE_FRAGMENTS, PROTOCOL_UDP};
use crate::ipv6::Ipv6;
use crate::layout::{self, PLAIN_FRAME, in_frame};
use crate::opcode::Headers;
use crate::udp::{ROCE_PORT, Udp};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A RoCEv2 packet.
    Roce(RoceHeader),
    /// ARP for IPv4.
    Arp(Arp),
    /// LLDP. [`crate::lldp::Lldp::parse`] reads the data unit.
    Lldp {
        /// Offset of the first TLV.
        at: usize,
    },
    /// IPv4, but not RoCEv2.
    Ipv4 {
        /// Offset of the IP header.
        l3: usize,
        /// The header.
        header: Ipv4,
    },
    /// IPv6, but not RoCEv2.
    Ipv6 {
        /// Offset of the IP header.
        l3: usize,
        /// The header.
        header: Ipv6,
    },
    /// Anything else that Ethernet carries.
    Other(Ethernet),
}

/// Source and destination of an IP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpAddrs {
    /// IPv4.
    V4 {
        /// Source.
        src: Ipv4Addr,
        /// Destination.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Source.
        src: Ipv6Addr,
        /// Destination.
        dst: Ipv6Addr,
    },
}

impl IpAddrs {
    /// The source.
    pub const fn src(&self) -> IpAddr {
        match *self {
            Self::V4 { src, .. } => IpAddr::V4(src),
            Self::V6 { src, .. } => IpAddr::V6(src),
        }
    }

    /// The destination.
    pub const fn dst(&self) -> IpAddr {
        match *self {
            Self::V4 { dst, .. } => IpAddr::V4(dst),
            Self::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }

    /// Source and destination where both are IPv4.
    pub const fn v4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        match *self {
            Self::V4 { src, dst } => Some((src, dst)),
            Self::V6 { .. } => None,
        }
    }
}

/// The headers of a RoCEv2 packet and their offsets. Offsets and lengths are in bytes; offsets count from the start of the frame.
///
/// All lengths agree with one another: `l4 + 8 == bth_at`, and from `payload_at` on there are `payload_len` bytes, then
/// `bth.pad` zeros, then the ICRC, which ends at `frame_len`. The parser does not check the ICRC, the IPv4 and UDP checksums, or
/// that the pad is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceHeader {
    /// Offset of the IP header.
    pub l3: usize,
    /// IP addresses.
    pub ip: IpAddrs,
    /// TOS of IPv4 or traffic class of IPv6: DSCP and, in the low two bits, ECN.
    pub tos: u8,
    /// Offset of the UDP header.
    pub l4: usize,
    /// UDP source port.
    pub sport: u16,
    /// Offset of the BTH.
    pub bth_at: usize,
    /// Base transport header.
    pub bth: Bth,
    /// Remote memory, where the opcode has it.
    pub reth: Option<Reth>,
    /// Acknowledgement, where the opcode has it.
    pub aeth: Option<Aeth>,
    /// Immediate data, where the opcode has it.
    pub imm: Option<u32>,
    /// The key to invalidate, where the opcode has it.
    pub ieth: Option<u32>,
    /// Offset of the payload; of the ICRC if there is none.
    pub payload_at: usize,
    /// Bytes of payload, pad not counted.
    pub payload_len: usize,
    /// Bytes from the start of the frame to the end of the ICRC: Ethernet padding is not counted.
    pub frame_len: usize,
}

impl RoceHeader {
    /// Offset of the ICRC.
    pub const fn icrc_at(&self) -> usize {
        self.frame_len - ICRC_LEN
    }

    /// Bytes between BTH and ICRC: the distance by which the ICRC difference of a header change is shifted.
    pub const fn after_bth(&self) -> usize {
        self.icrc_at() - self.bth_at - Bth::LEN
    }

    /// Bytes between RETH and ICRC, if there is a RETH.
    pub const fn after_reth(&self) -> Option<usize> {
        match self.reth {
            Some(_) => Some(self.after_bth() - Reth::LEN),
            None => None,
        }
    }

    /// Offset of the RETH, if there is one. It follows the BTH in every opcode that has it.
    pub const fn reth_at(&self) -> Option<usize> {
        match self.reth {
            Some(_) => Some(self.bth_at + Bth::LEN),
            None => None,
        }
    }

    /// Reads all extended headers, also those of atomics and datagrams, from the frame that the struct was parsed from.
    pub fn ext(&self, head: &[u8]) -> ExtHeaders {
        let at = self.bth_at + Bth::LEN;
        let bytes = head.get(at..self.payload_at).unwrap_or_default();
        read_ext(self.bth.opcode.info().headers, bytes).unwrap_or_default()
    }
}

/// Reads the headers of a frame.
///
/// `head` has the first bytes of the frame, at least `min(frame_len, 128)`. `frame_len` is the length of the frame with any
/// Ethernet padding, without FCS. A RoCEv2 packet is UDP to port 4791 with an opcode that this crate knows.
///
/// # Errors
/// The headers contradict each other or do not fit; a RoCEv2 packet has IPv4 options or is fragmented; the opcode is unknown. A
/// switch may still have to forward the frame: [`parse_network`] reads what it needs.
#[inline]
pub fn parse_frame(head: &[u8], frame_len: usize) -> Result<Parsed, ParseError> {
    // Fast path, for nearly every RoCEv2 frame: no tag, IPv4 without options, no fragment. All offsets are constants, so one
    // check of the length is enough. All other frames take the slow path, which also names the error.
    let Some(b) = head.first_chunk::<PLAIN_FRAME>().filter(|b| is_plain_roce(b)) else {
        return parse_any(head, frame_len);
    };
    let (l4, bth_at) = (in_frame(layout::UDP).start, in_frame(layout::BTH).start);
    let end = Ethernet::LEN + usize::from(be16(b, layout::TOTAL_LENGTH));
    let Ok(bth) = Bth::parse(&b[bth_at..]) else {
        return parse_any(head, frame_len);
    };
    let info = bth.opcode.info();
    let payload_at = bth_at + info.header_len();
    let (body, pad) = (end.wrapping_sub(payload_at + ICRC_LEN), usize::from(bth.pad));
    let fits = end <= frame_len && payload_at + ICRC_LEN <= end && payload_at <= head.len();
    let right = usize::from(be16(b, layout::UDP_LENGTH)) + l4 == end
        && body % 4 == 0
        && pad <= body
        && (info.has_payload || body == 0)
        && PLAIN_EXT.contains(info.headers);
    if !fits || !right {
        return parse_any(head, frame_len);
    }
    // Separate variables stay in registers; a struct would go through memory.
    let ext = head.get(PLAIN_FRAME..payload_at).unwrap_or_default();
    let (mut reth, mut aeth, mut imm) = (None, None, None);
    if info.headers.contains(Headers::AETH) {
        aeth = ext.first_chunk().and_then(|b| Aeth::from_bytes(b).ok());
    } else if info.headers.contains(Headers::RETH) {
        reth = ext.first_chunk().and_then(|b| Reth::from_bytes(b).ok());
    }
    if info.headers.contains(Headers::IMM) {
        imm = ext.last_chunk().map(|b| u32::from_be_bytes(*b));
    }
    if aeth.is_none() && info.headers.contains(Headers::AETH) {
        return parse_any(head, frame_len);
    }
    Ok(Parsed::Roce(RoceHeader {
        l3: Ethernet::LEN,
        ip: IpAddrs::V4 {
            src: ipv4_address(b, layout::SRC),
            dst: ipv4_address(b, layout::DST),
        },
        tos: b[Ethernet::LEN + layout::TOS],
        l4,
        sport: be16(b, layout::SPORT),
        bth_at,
        bth,
        reth,
        aeth,
        imm,
        ieth: None,
        payload_at,
        payload_len: body - pad,
        frame_len: end,
    }))
}

/// The extended headers of SEND, WRITE and ACK.
const PLAIN_EXT: Headers = Headers::RETH.union(Headers::AETH).union(Headers::IMM);

#[inline(always)]
fn be16(frame: &[u8; PLAIN_FRAME], field: Range<usize>) -> u16 {
    let at = in_frame(field).start;
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

#[inline(always)]
fn ipv4_address(frame: &[u8; PLAIN_FRAME], field: Range<usize>) -> Ipv4Addr {
    let at = in_frame(field).start;
    Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3])
}

/// Returns true for the headers of UDP to the RoCEv2 port over IPv4, without tags, options or fragments.
#[inline(always)]
fn is_plain_roce(b: &[u8; PLAIN_FRAME]) -> bool {
    let ethertype = u16::from_be_bytes([b[ETHERTYPE_AT], b[ETHERTYPE_AT + 1]]);
    let fragment = be16(b, layout::FRAGMENT) & (MORE_FRAGMENTS | FRAGMENT_OFFSET);
    ethertype == ETHERTYPE_IPV4
        && b[Ethernet::LEN] == layout::VERSION_LENGTH
        && fragment == 0
        && b[Ethernet::LEN + layout::PROTOCOL] == PROTOCOL_UDP
        && be16(b, layout::DPORT) == ROCE_PORT
}

/// [`parse_frame`] without the fast path.
#[inline(never)]
fn parse_any(head: &[u8], frame_len: usize) -> Result<Parsed, ParseError> {
    parse(head, frame_len, true)
}

/// Reads Ethernet and IP headers, and never returns [`Parsed::Roce`]. It is for frames that [`parse_frame`] refused and whose
/// destination is no group: a switch or router forwards them whatever UDP carries.
///
/// # Errors
/// The errors of [`parse_frame`] for headers up to and including IP.
pub fn parse_network(head: &[u8], frame_len: usize) -> Result<Parsed, ParseError> {
    parse(head, frame_len, false)
}

#[inline(always)]
fn parse(head: &[u8], frame_len: usize, roce: bool) -> Result<Parsed, ParseError> {
    let head = head.get(..frame_len).unwrap_or(head);
    let (ethernet, l3) = Ethernet::parse(head)?;
    let rest = head.get(l3..).unwrap_or_default();
    match ethernet.ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(head, rest, l3, frame_len, roce),
        ETHERTYPE_IPV6 => parse_ipv6(head, rest, l3, frame_len, roce),
        ETHERTYPE_ARP => Arp::parse(rest).map(Parsed::Arp),
        ETHERTYPE_LLDP => Ok(Parsed::Lldp { at: l3 }),
        _ => Ok(Parsed::Other(ethernet)),
    }
}

#[inline(always)]
fn parse_ipv4(
    head: &[u8],
    rest: &[u8],
    l3: usize,
    frame_len: usize,
    roce: bool,
) -> Result<Parsed, ParseError> {
    let (header, length) = Ipv4::parse(rest)?;
    let said = usize::from(header.total_len);
    let end = datagram_end(Header::Ipv4, "total length", l3, said, frame_len)?;
    let l4 = l3 + length;
    if !roce || header.protocol != PROTOCOL_UDP || header.flags_frag & 0x1FFF != 0 || !is_roce(head, l4, end)
    {
        return Ok(Parsed::Ipv4 { l3, header });
    }
    if length != Ipv4::LEN {
        let value = length as u32 / 4;
        return Err(ParseError::field(
            Header::Ipv4,
            "RoCE behind header length",
            value,
        ));
    }
    if header.is_fragment() {
        let value = header.flags_frag.into();
        return Err(ParseError::field(Header::Ipv4, "RoCE in fragments, flags", value));
    }
    let ip = IpAddrs::V4 {
        src: header.src,
        dst: header.dst,
    };
    parse_roce(head, (l3, l4, end), ip, header.tos)
}

fn parse_ipv6(
    head: &[u8],
    rest: &[u8],
    l3: usize,
    frame_len: usize,
    roce: bool,
) -> Result<Parsed, ParseError> {
    let header = Ipv6::parse(rest)?;
    let said = Ipv6::LEN + usize::from(header.payload_len);
    let end = datagram_end(Header::Ipv6, "payload length", l3, said, frame_len)?;
    let l4 = l3 + Ipv6::LEN;
    if !roce || header.next_header != PROTOCOL_UDP || !is_roce(head, l4, end) {
        return Ok(Parsed::Ipv6 { l3, header });
    }
    let ip = IpAddrs::V6 {
        src: header.src,
        dst: header.dst,
    };
    parse_roce(head, (l3, l4, end), ip, header.traffic_class)
}

/// Returns the offset at which the datagram ends that begins at `l3` and has `said` bytes. Bytes after it are Ethernet padding.
#[inline(always)]
fn datagram_end(
    header: Header,
    field: &'static str,
    l3: usize,
    said: usize,
    frame_len: usize,
) -> Result<usize, ParseError> {
    let found = frame_len.saturating_sub(l3);
    if said <= found {
        Ok(l3 + said)
    } else {
        Err(ParseError::length(header, field, said, found))
    }
}

/// Returns true if a UDP header to the RoCEv2 port lies at `l4`, before `end`.
#[inline(always)]
fn is_roce(head: &[u8], l4: usize, end: usize) -> bool {
    let udp = head
        .get(l4..end.min(head.len()))
        .and_then(|b| b.first_chunk::<{ Udp::LEN }>());
    udp.is_some_and(|b| u16::from_be_bytes([b[2], b[3]]) == ROCE_PORT)
}

/// Reads the headers from UDP on. `end` is the offset of the end of the datagram.
#[inline(always)]
fn parse_roce(
    head: &[u8],
    (l3, l4, end): (usize, usize, usize),
    ip: IpAddrs,
    tos: u8,
) -> Result<Parsed, ParseError> {
    let udp = Udp::parse(head.get(l4..).unwrap_or_default())?;
    let (said, found) = (usize::from(udp.length), end - l4);
    if said != found {
        return Err(ParseError::length(Header::Udp, "length", said, found));
    }

    let bth_at = l4 + Udp::LEN;
    let packet = head.get(bth_at..end.min(head.len())).unwrap_or_default();
    let bth = Bth::parse(packet)?;
    let info = bth.opcode.info();

    let (need, have) = (info.header_len() + ICRC_LEN, end - bth_at);
    let Some(body) = have.checked_sub(need) else {
        return Err(ParseError::short(Header::Icrc, need, have));
    };
    let pad = usize::from(bth.pad);
    if !info.has_payload && body != 0 {
        return Err(ParseError::length(Header::Payload, "its opcode", 0, body));
    }
    if pad > body {
        return Err(ParseError::length(Header::Bth, "pad count", pad, body));
    }
    if body % 4 != 0 {
        return Err(ParseError::field(Header::Payload, "length with pad", body as u32));
    }

    let need = info.header_len();
    let Some(ext) = packet.get(Bth::LEN..need) else {
        return Err(ParseError::short(Header::Bth, need, packet.len()));
    };
    let ext = if ext.is_empty() {
        ExtHeaders::NONE
    } else {
        read_ext(info.headers, ext)?
    };
    // The struct is large: it is built directly as the return value, so that it is not copied.
    Ok(Parsed::Roce(RoceHeader {
        l3,
        ip,
        tos,
        l4,
        sport: udp.sport,
        bth_at,
        bth,
        reth: ext.reth,
        aeth: ext.aeth,
        imm: ext.imm,
        ieth: ext.ieth,
        payload_at: bth_at + info.header_len(),
        payload_len: body - pad,
        frame_len: end,
    }))
}

/// Reads the headers of an opcode, in wire order, from exactly their bytes.
#[inline(always)]
fn read_ext(headers: Headers, bytes: &[u8]) -> Result<ExtHeaders, ParseError> {
    let mut ext = ExtHeaders::NONE;
    let mut rest = bytes;
    if headers.contains(Headers::DETH) {
        ext.deth = Some(Deth::from_bytes(take(&mut rest, Header::Deth)?)?);
    }
    if headers.contains(Headers::RETH) {
        ext.reth = Some(Reth::from_bytes(take(&mut rest, Header::Reth)?)?);
    }
    if headers.contains(Headers::ATOMIC_ETH) {
        ext.atomic_eth = Some(AtomicEth::from_bytes(take(&mut rest, Header::AtomicEth)?)?);
    }
    if headers.contains(Headers::AETH) {
        ext.aeth = Some(Aeth::from_bytes(take(&mut rest, Header::Aeth)?)?);
    }
    if headers.contains(Headers::ATOMIC_ACK_ETH) {
        ext.atomic_ack = Some(u64::from_be_bytes(*take(&mut rest, Header::AtomicAckEth)?));
    }
    if headers.contains(Headers::IMM) {
        ext.imm = Some(u32::from_be_bytes(*take(&mut rest, Header::Imm)?));
    }
    if headers.contains(Headers::IETH) {
        ext.ieth = Some(u32::from_be_bytes(*take(&mut rest, Header::Ieth)?));
    }
    Ok(ext)
}

#[inline(always)]
fn take<'a, const N: usize>(rest: &mut &'a [u8], header: Header) -> Result<&'a [u8; N], ParseError> {
    let short = ParseError::short(header, N, rest.len());
    let (first, after) = rest.split_first_chunk().ok_or(short)?;
    *rest = after;
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{Network, emit_roce};
    use crate::{MacAddr, Opcode, Psn, Qpn};
    use proptest::prelude::*;
    use std::vec;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Frames as they are sent, some with changed bytes, cut or padded.
        #[test]
        fn fast_and_slow_parser_agree(
            opcode in prop::sample::select(Opcode::ALL), payload in 0usize..90, tagged: bool,
            changes in prop::collection::vec((0usize..90, any::<u8>()), 0..3), cut in 0usize..200, more in 0usize..8,
        ) {
            let vlan = tagged.then(|| crate::VlanTag::new(5));
            let ethernet = Ethernet { dst: MacAddr([2; 6]), src: MacAddr([4; 6]), vlan, ethertype: 0 };
            let ext = ExtHeaders {
                deth: Some(Deth::default()),
                reth: Some(Reth { va: 1, rkey: 2, dma_len: 3 }),
                atomic_eth: Some(AtomicEth::default()),
                aeth: Some(Aeth { syndrome: crate::Syndrome::Ack, msn: 4 }),
                atomic_ack: Some(5),
                imm: Some(6),
                ieth: Some(7),
            };
            let payload = if opcode.info().has_payload { vec![9; payload] } else { vec![] };
            let network = Network::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            let mut frame = vec![0; 256];
            let bth = Bth::new(opcode, Qpn::new(17), Psn::new(18));
            let n = emit_roce(&mut frame, &ethernet, &network, 0xC000, &bth, &ext, &payload).unwrap();
            frame.truncate(n + more);
            for (at, value) in changes {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            let head = &frame[..cut.min(frame.len())];
            for (head, frame_len) in [(&frame[..], frame.len()), (head, head.len()), (&frame[..], head.len())] {
                prop_assert_eq!(parse_frame(head, frame_len), parse_any(head, frame_len));
            }
            let head = &frame[..frame.len().min(128)];
            prop_assert_eq!(parse_frame(head, frame.len()), parse_any(head, frame.len()));
        }
    }
}
