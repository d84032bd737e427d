//! Builds whole frames.

use crate::aeth::Aeth;
use crate::arp::Arp;
use crate::bth::Bth;
use crate::error::{EmitError, Header};
use crate::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_LLDP, Ethernet, FRAME_MIN};
use crate::ext::ExtHeaders;
use crate::icrc;
use crate::ids::{MacAddr, Qpn};
use crate::ipv4::{Ipv4, PROTOCOL_UDP};
use crate::ipv6::Ipv6;
use crate::lldp::{self, Lldp};
use crate::opcode::{Headers, Opcode};
use crate::psn::Psn;
use crate::roce::ICRC_LEN;
use crate::udp::{ROCE_PORT, Udp};
use core::net::{Ipv4Addr, Ipv6Addr};

/// The IP header of a frame to be built. Its lengths, its protocol and the checksum follow from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// IPv4.
    V4(Ipv4),
    /// IPv6.
    V6(Ipv6),
}

impl Network {
    /// IPv4 with 64 hops, not to be fragmented, and zeros for the rest.
    pub const fn v4(src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        Self::V4(Ipv4::udp(src, dst))
    }

    /// IPv6 with 64 hops, and zeros for the rest.
    pub const fn v6(src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        Self::V6(Ipv6::udp(src, dst))
    }

    /// Bytes of the header: 20 or 40.
    pub const fn length(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4::LEN,
            Self::V6(_) => Ipv6::LEN,
        }
    }

    const fn ethertype(&self) -> u16 {
        match self {
            Self::V4(_) => ETHERTYPE_IPV4,
            Self::V6(_) => ETHERTYPE_IPV6,
        }
    }

    fn emit(&self, out: &mut [u8], datagram: u16) -> Result<usize, EmitError> {
        match *self {
            Self::V4(ip) => Ipv4 {
                total_len: Ipv4::LEN as u16 + datagram,
                protocol: PROTOCOL_UDP,
                ..ip
            }
            .emit(out),
            Self::V6(ip) => Ipv6 {
                payload_len: datagram,
                next_header: PROTOCOL_UDP,
                ..ip
            }
            .emit(out),
        }
    }
}

/// Bytes that [`emit_roce`] will write.
pub fn roce_len(ethernet: &Ethernet, network: &Network, opcode: Opcode, payload_len: usize) -> usize {
    let packet = opcode.info().header_len() + payload_len.next_multiple_of(4) + ICRC_LEN;
    ethernet.length() + network.length() + Udp::LEN + packet
}

/// Writes a whole RoCEv2 frame to the start of `out` and returns its length in bytes. The EtherType follows from `network` and the
/// pad count from the payload; the fields in `ethernet` and `bth` are ignored. The function fills in lengths, IPv4 checksum and
/// ICRC. There is no UDP checksum.
///
/// A frame of less than 60 bytes is not padded. The sender on a wire pads it. Headers in `ext` that the opcode does not have are
/// ignored.
///
/// # Errors
/// `out` is too short; `ext` lacks a header of the opcode; the payload is longer than 65,000 bytes, or the opcode has no payload.
pub fn emit_roce(
    out: &mut [u8],
    ethernet: &Ethernet,
    network: &Network,
    sport: u16,
    bth: &Bth,
    ext: &ExtHeaders,
    payload: &[u8],
) -> Result<usize, EmitError> {
    let info = bth.opcode.info();
    let max = if info.has_payload { 65_000 } else { 0 };
    if payload.len() > max {
        return Err(EmitError::TooLong {
            header: Header::Payload,
            have: payload.len(),
            max,
        });
    }
    let need = roce_len(ethernet, network, bth.opcode, payload.len());
    let full = EmitError::no_room(Header::Icrc, need, out.len());
    let out = out.get_mut(..need).ok_or(full)?;

    let l3 = Ethernet {
        ethertype: network.ethertype(),
        ..*ethernet
    }
    .emit(out)?;
    let l4 = l3 + network.length();
    let datagram = (need - l4) as u16;
    network.emit(&mut out[l3..], datagram)?;
    Udp {
        sport,
        dport: ROCE_PORT,
        length: datagram,
        checksum: 0,
    }
    .emit(&mut out[l4..])?;

    let pad = payload.len().next_multiple_of(4) - payload.len();
    let mut at = l4 + Udp::LEN;
    at += Bth {
        pad: pad as u8,
        ..*bth
    }
    .emit(&mut out[at..])?;
    at += emit_ext(&mut out[at..], info.headers, ext)?;
    out[at..at + payload.len()].copy_from_slice(payload);
    at += payload.len();
    out[at..at + pad].fill(0);
    at += pad;
    let icrc = icrc::full(&[&out[l3..at]]);
    out[at..].copy_from_slice(&icrc.to_le_bytes());
    Ok(need)
}

fn emit_ext(out: &mut [u8], headers: Headers, ext: &ExtHeaders) -> Result<usize, EmitError> {
    const fn given<T: Copy>(value: Option<T>, header: Header) -> Result<T, EmitError> {
        match value {
            Some(value) => Ok(value),
            None => Err(EmitError::Missing { header }),
        }
    }
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    if headers.contains(Headers::DETH) {
        put(&given(ext.deth, Header::Deth)?.to_bytes());
    }
    if headers.contains(Headers::RETH) {
        put(&given(ext.reth, Header::Reth)?.to_bytes());
    }
    if headers.contains(Headers::ATOMIC_ETH) {
        put(&given(ext.atomic_eth, Header::AtomicEth)?.to_bytes());
    }
    if headers.contains(Headers::AETH) {
        put(&given(ext.aeth, Header::Aeth)?.to_bytes());
    }
    if headers.contains(Headers::ATOMIC_ACK_ETH) {
        put(&given(ext.atomic_ack, Header::AtomicAckEth)?.to_be_bytes());
    }
    if headers.contains(Headers::IMM) {
        put(&given(ext.imm, Header::Imm)?.to_be_bytes());
    }
    if headers.contains(Headers::IETH) {
        put(&given(ext.ieth, Header::Ieth)?.to_be_bytes());
    }
    if headers.contains(Headers::CNP) {
        put(&[0; 16]);
    }
    Ok(at)
}

/// Writes an ACK, NAK or RNR NAK: 62 bytes without a VLAN tag over IPv4. `psn` is of the requester's space.
///
/// # Errors
/// `out` is too short.
pub fn emit_ack(
    out: &mut [u8],
    ethernet: &Ethernet,
    network: &Network,
    sport: u16,
    dest_qp: Qpn,
    psn: Psn,
    aeth: Aeth,
) -> Result<usize, EmitError> {
    let ext = ExtHeaders {
        aeth: Some(aeth),
        ..ExtHeaders::NONE
    };
    emit_roce(
        out,
        ethernet,
        network,
        sport,
        &Bth::new(Opcode::Ack, dest_qp, psn),
        &ext,
        &[],
    )
}

/// Returns the padded length.
fn pad_frame(out: &mut [u8], length: usize) -> Result<usize, EmitError> {
    let padded = length.max(FRAME_MIN);
    let full = EmitError::no_room(Header::Payload, padded, out.len());
    out.get_mut(length..padded).ok_or(full)?.fill(0);
    Ok(padded)
}

/// Writes an ARP frame, padded to 60 bytes, and returns its length. The Ethernet source is the sender in the packet.
///
/// # Errors
/// `out` is too short.
pub fn emit_arp(out: &mut [u8], dst: MacAddr, arp: &Arp) -> Result<usize, EmitError> {
    let at = Ethernet {
        dst,
        src: arp.sender_mac,
        vlan: None,
        ethertype: ETHERTYPE_ARP,
    }
    .emit(out)?;
    let length = arp.emit(&mut out[at..])?;
    pad_frame(out, at + length)
}

/// Writes an LLDP frame to the nearest bridge, padded to 60 bytes, and returns its length.
///
/// # Errors
/// `out` is too short.
pub fn emit_lldp(out: &mut [u8], src: MacAddr, lldp: &Lldp<'_>) -> Result<usize, EmitError> {
    let dst = lldp::NEAREST_BRIDGE;
    let at = Ethernet {
        dst,
        src,
        vlan: None,
        ethertype: ETHERTYPE_LLDP,
    }
    .emit(out)?;
    let length = lldp.emit(&mut out[at..])?;
    pad_frame(out, at + length)
}
