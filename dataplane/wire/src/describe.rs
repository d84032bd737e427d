//! Describes a frame as text: for traces, captures and test differences.

use crate::control::Control;
use crate::ethernet::Ethernet;
use crate::ipv4;
use crate::lldp::Lldp;
use crate::opcode::Opcode;
use crate::roce::{IpAddrs, Parsed, RoceHeader, parse_frame};
use core::fmt;

/// Displays the headers of a frame: `{}` on one line, `{:#}` with a line for each layer. The arguments are those of
/// [`parse_frame`]. If a frame cannot be parsed, the error follows the headers that can.
pub const fn describe(head: &[u8], frame_len: usize) -> Describe<'_> {
    Describe { head, frame_len }
}

/// What [`describe`] returns.
#[derive(Clone, Copy, Debug)]
pub struct Describe<'a> {
    head: &'a [u8],
    frame_len: usize,
}

impl fmt::Display for Describe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ethernet, at) = match Ethernet::parse(self.head) {
            Ok(parsed) => parsed,
            Err(error) => return write!(f, "not read: {error}, {} bytes", self.frame_len),
        };
        write!(f, "{} > {}", ethernet.src, ethernet.dst)?;
        if let Some(tag) = ethernet.vlan {
            write!(f, " vlan {}", tag.vid)?;
        }
        next(f)?;
        match parse_frame(self.head, self.frame_len) {
            Ok(Parsed::Roce(header)) => self.roce(f, &header),
            Ok(Parsed::Arp(arp)) => write!(
                f,
                "ARP {:?} sender {} {} target {} {}",
                arp.op, arp.sender_ip, arp.sender_mac, arp.target_ip, arp.target_mac
            ),
            Ok(Parsed::Lldp { .. }) => match Lldp::parse(self.head.get(at..).unwrap_or_default()) {
                Ok(l) => {
                    let (name, ttl) = (l.system_name, l.ttl_secs);
                    write!(
                        f,
                        "LLDP chassis {} port {} name {name:?} ttl {ttl} s",
                        l.chassis, l.port
                    )
                }
                Err(error) => write!(f, "not read: {error}"),
            },
            Ok(Parsed::Ipv4 { header: h, .. }) => {
                write!(
                    f,
                    "IPv4 {} > {} protocol {} ttl {}",
                    h.src, h.dst, h.protocol, h.ttl
                )
            }
            Ok(Parsed::Ipv6 { header: h, .. }) => {
                write!(
                    f,
                    "IPv6 {} > {} protocol {} hops {}",
                    h.src, h.dst, h.next_header, h.hop_limit
                )
            }
            Ok(Parsed::Other(e)) => write!(f, "ethertype {:#06x}", e.ethertype),
            Err(error) => write!(f, "not read: {error}"),
        }?;
        write!(f, ", {} bytes", self.frame_len)
    }
}

fn next(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(if f.alternate() { "\n  " } else { " | " })
}

impl Describe<'_> {
    fn roce(&self, f: &mut fmt::Formatter<'_>, h: &RoceHeader) -> fmt::Result {
        write!(f, "{} > {}", h.ip.src(), h.ip.dst())?;
        if h.tos != 0 {
            write!(f, " tos {:#04x}", h.tos)?;
        }
        write!(f, " sport {}", h.sport)?;
        if let IpAddrs::V4 { .. } = h.ip
            && !ipv4::checksum_is_right(self.head.get(h.l3..).unwrap_or_default())
        {
            f.write_str(" BAD IPv4 CHECKSUM")?;
        }
        next(f)?;
        let bth = &h.bth;
        write!(f, "{} qp {} psn {}", bth.opcode, bth.dest_qp, bth.psn)?;
        let flags = [
            (bth.ack_request, "ackreq"),
            (bth.solicited, "solicited"),
            (bth.mig_req, "migreq"),
            (bth.fecn, "fecn"),
            (bth.becn, "becn"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            write!(f, " {name}")?;
        }
        if bth.pkey != crate::bth::PKEY_DEFAULT {
            write!(f, " pkey {:#06x}", bth.pkey)?;
        }
        self.ext(f, h)?;
        if h.payload_len != 0 {
            next(f)?;
            write!(f, "payload {}", h.payload_len)?;
            if bth.pad != 0 {
                write!(f, " pad {}", bth.pad)?;
            }
        }
        self.control(f, h)?;
        if let Some(bytes) = self.head.get(h.icrc_at()..).and_then(|b| b.first_chunk()) {
            next(f)?;
            write!(f, "icrc {:08x}", u32::from_le_bytes(*bytes))?;
            if !crate::icrc::verify_bytes(self.head, h.l3, h.frame_len) {
                f.write_str(" BAD")?;
            }
        }
        Ok(())
    }

    /// Writes the control message of a collective, if the payload is one and `head` has all of it.
    fn control(&self, f: &mut fmt::Formatter<'_>, h: &RoceHeader) -> fmt::Result {
        let payload = self.head.get(h.payload_at..h.payload_at + h.payload_len);
        match payload {
            Some(payload) if h.imm == Some(Control::IMMEDIATE) && h.bth.opcode == Opcode::SendOnlyImm => {
                next(f)?;
                match Control::parse(payload) {
                    Ok(_) if payload.len() != Control::LEN => {
                        write!(
                            f,
                            "control message of {} bytes, not {}",
                            payload.len(),
                            Control::LEN
                        )
                    }
                    Ok(control) => write!(f, "{control}"),
                    Err(error) => write!(f, "malformed {error}"),
                }
            }
            _ => Ok(()),
        }
    }

    fn ext(&self, f: &mut fmt::Formatter<'_>, h: &RoceHeader) -> fmt::Result {
        let ext = h.ext(self.head);
        if let Some(deth) = ext.deth {
            next(f)?;
            write!(f, "qkey {:#x} from qp {}", deth.qkey, deth.source_qp)?;
        }
        if let Some(reth) = ext.reth {
            next(f)?;
            write!(
                f,
                "va {:#x} rkey {:#x} dma_len {}",
                reth.va, reth.rkey, reth.dma_len
            )?;
        }
        if let Some(a) = ext.atomic_eth {
            next(f)?;
            write!(
                f,
                "va {:#x} rkey {:#x} swap_add {:#x} compare {:#x}",
                a.va, a.rkey, a.swap_add, a.compare
            )?;
        }
        if let Some(aeth) = ext.aeth {
            next(f)?;
            write!(f, "{} msn {}", aeth.syndrome, aeth.msn)?;
        }
        if let Some(original) = ext.atomic_ack {
            write!(f, " original {original:#x}")?;
        }
        if let Some(imm) = ext.imm {
            next(f)?;
            write!(f, "imm {imm:#010x}")?;
        }
        if let Some(rkey) = ext.ieth {
            next(f)?;
            write!(f, "invalidate {rkey:#x}")?;
        }
        Ok(())
    }
}
