//! Headers of what a group sends: one connection towards each endpoint (EPIC 4.1: TranslateHeader).
//!
//! To a rank a packet goes from the McstID to the rank's address and QPN, with a PSN of the rank's own; to a switch from
//! the McstID to the McstID that the group has there, with the group's PSN. The payload's part of the ICRC is worked out once for each result, under
//! the header that the group itself would have; what differs follows by difference.

use castnet_collective::{EndpointId, EndpointSet, Translated};
use castnet_reduce::Checksum;
use castnet_rules::{Endpoint, GroupRule};
use castnet_wire::icrc::{self, HeaderDelta};
use castnet_wire::{Bth, FrameBuf, McstId, Opcode, PortId, Psn, Qpn};

use super::verify::FIXED;
use crate::egress::Egress;
use crate::group::install::feedback_sport;
use crate::observe::counters::EndpointCounters;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::acknowledge::{AckTemplate, Address, LINK_MAX, Link, MACS};
use crate::output::cx::Cx;
use castnet_wire::rewrite::set_macs;

const IMM: usize = 4;
/// AckReq, reserved bits, PSN: the end of the BTH.
const PSN_WORD: usize = 4;
/// "ECN-capable transport" (RFC 3168).
const ECT_0: u8 = 2;
/// As many bytes of zeros leave a CRC's register as it was.
const PERIOD: usize = u32::MAX as usize;
const ICRC: usize = 4;
/// The longest head: Ethernet addresses, tags, IPv4, UDP, BTH, ImmDt.
const HEAD_MAX: usize = MACS + LINK_MAX + FIXED + IMM;

/// IPv4, UDP and BTH with all filled in that is the same for each packet of one connection: lengths, TOS, checksum, opcode,
/// pad, AckReq and PSN are zeros.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    bytes: [u8; FIXED],
    /// The sum that the IPv4 checksum complements, without lengths and TOS (RFC 1071).
    sum: u32,
}

impl Template {
    pub(super) fn new(address: &Address) -> Self {
        let mut bytes = [0; FIXED];
        bytes[..20].copy_from_slice(&address.ip(0, 0).to_bytes());
        let checksum = u16::from_be_bytes([bytes[10], bytes[11]]);
        bytes[10..12].fill(0);
        bytes[20..28].copy_from_slice(&address.udp(20).to_bytes());
        bytes[28..].copy_from_slice(&Bth::new(Opcode::SendFirst, address.qpn, Psn::new(0)).to_bytes());
        // SEND_FIRST is opcode 0.
        Self {
            bytes,
            sum: u32::from(!checksum),
        }
    }

    /// The header of a packet of `length` bytes from IPv4 to ICRC.
    #[inline]
    fn write(&self, out: &mut [u8; FIXED], tos: u8, packet: &Packet<'_>, length: u16, psn: [u8; PSN_WORD]) {
        *out = self.bytes;
        out[2..4].copy_from_slice(&length.to_be_bytes());
        out[24..26].copy_from_slice(&(length - 20).to_be_bytes());
        out[28] = packet.opcode as u8;
        out[29] = packet.pad << 4;
        self.turn(out, tos, length, psn);
    }

    /// Turns the header of the same packet to another endpoint into this one's.
    #[inline]
    fn turn(&self, out: &mut [u8; FIXED], tos: u8, length: u16, psn: [u8; PSN_WORD]) {
        let sum = self.sum + u32::from(length) + u32::from(tos);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let checksum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
        out[1] = tos;
        out[10..12].copy_from_slice(&checksum.to_be_bytes());
        // Destination address and QPN.
        out[16..20].copy_from_slice(&self.bytes[16..20]);
        out[32..36].copy_from_slice(&self.bytes[32..36]);
        out[36..].copy_from_slice(&psn);
    }
}

/// The end of the BTH.
#[inline]
fn psn_word(psn: Psn, ack_request: bool) -> [u8; PSN_WORD] {
    let [a, b, c] = psn.to_bytes();
    [u8::from(ack_request) << 7, a, b, c]
}

/// The way to one endpoint.
#[derive(Clone, Debug)]
pub(super) struct Outlet {
    pub(super) port: PortId,
    /// Its place among the next hops' Ethernet addresses.
    pub(super) next_hop: u16,
    /// Whom frames to it are for; its own come from that address.
    pub(super) address: Address,
    /// VLAN tags and class of service of what it sends, and so of what it gets.
    pub(super) link: Link,
    /// What comes from it may be marked on its way (ECN: ECT), so what goes to it may be, too.
    pub(super) ect: bool,
    template: Template,
    ack: AckTemplate,
    /// The difference of its header to the group's, as far as the ICRC covers it: the register where AckReq and PSN follow.
    difference: u32,
}

impl Outlet {
    pub(super) fn new(endpoint: &Endpoint, mcst_id: McstId) -> Self {
        let own = own_address(mcst_id);
        let address = Address {
            dst: endpoint.next_hop.ip().unwrap_or(own.dst),
            qpn: endpoint.next_hop.qpn(),
            ..own
        };
        let difference =
            HeaderDelta::dst(own.dst, address.dst).and(HeaderDelta::dest_qp(own.qpn, address.qpn));
        Self {
            port: endpoint.port,
            next_hop: 0,
            address,
            link: Link::PLAIN,
            ect: false,
            template: Template::new(&address),
            ack: AckTemplate::new(&address),
            difference: icrc::shift(difference.at_bth(), PERIOD - PSN_WORD),
        }
    }

    /// TOS of data towards it.
    #[inline]
    fn tos(&self) -> u8 {
        self.link.tos() | if self.ect { ECT_0 } else { 0 }
    }

    pub(super) fn ack(&self) -> &AckTemplate {
        &self.ack
    }
}

/// From the group to itself: what adjacent switches say to each other.
pub(super) fn own_address(mcst_id: McstId) -> Address {
    Address {
        src: mcst_id.0,
        dst: mcst_id.0,
        qpn: Qpn::VIRTUAL,
        sport: feedback_sport(mcst_id),
    }
}

/// What is to be sent, whoever gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) opcode: Opcode,
    pub(super) pad: u8,
    /// Immediate data, for opcodes that have it.
    pub(super) imm: Option<u32>,
    pub(super) payload: &'a [u8],
}

impl Packet<'_> {
    /// Bytes from BTH to ICRC.
    fn after_bth(&self) -> usize {
        self.imm.map_or(0, |_| IMM) + self.payload.len() + usize::from(self.pad)
    }

    /// Bytes before the payload, where IPv4 begins at `l3`.
    fn head_length(&self, l3: usize) -> usize {
        l3 + FIXED + self.imm.map_or(0, |_| IMM)
    }

    /// Bytes from IPv4 to ICRC, with that.
    fn length(&self) -> u16 {
        (FIXED + self.after_bth() + ICRC) as u16
    }

    /// Its ICRC under the group's own header.
    pub(super) fn icrc(&self, own: &mut Own, checksum: &Checksum) -> u32 {
        let mut register = own.register(self);
        if let Some(imm) = self.imm {
            register = checksum.update(register, &imm.to_be_bytes(), &[]);
        }
        let pad = &[0; 3][..usize::from(self.pad & 3)];
        checksum.update(register, self.payload, pad)
    }
}

/// The header of what the group sends to itself.
#[derive(Clone, Debug)]
pub(super) struct Own {
    template: Template,
    /// Opcode, padding and length of the last packet, and the register at the end of its header, PSN and AckReq zero.
    last: Option<((Opcode, u8, u16), u32)>,
}

impl Own {
    pub(super) fn new(mcst_id: McstId) -> Self {
        Self {
            template: Template::new(&own_address(mcst_id)),
            last: None,
        }
    }

    fn register(&mut self, packet: &Packet<'_>) -> u32 {
        let (length, key) = (packet.length(), (packet.opcode, packet.pad, packet.length()));
        match self.last {
            Some((last, register)) if last == key => register,
            _ => {
                let mut head = [0; FIXED];
                self.template
                    .write(&mut head, 0, packet, length, psn_word(Psn::new(0), false));
                let register = icrc::full(&[&head]);
                self.last = Some((key, register));
                register
            }
        }
    }
}

/// What sending needs of a group.
pub(super) struct Way<'a, const W: usize> {
    pub(super) machine: &'a Translated<W>,
    pub(super) outlets: &'a [Outlet],
    pub(super) counters: &'a mut [EndpointCounters],
    pub(super) rule: &'a GroupRule,
}

/// Sends a packet to each endpoint of `to`, with the PSN that it has there; `icrc` is [`Packet::icrc`]. Returns how many went
/// out, and how many could not.
#[inline]
pub(super) fn send<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    way: &mut Way<'_, W>,
    packet: &Packet<'_>,
    icrc: u32,
    (g, to, ack_request): (Psn, EndpointSet<W>, bool),
) -> (u64, u64) {
    let Output {
        ports,
        next_hops,
        shifts,
        counters,
    } = output;
    let length = packet.length();
    let after_qpn = packet.after_bth() + PSN_WORD;
    let operator = shifts.find(after_qpn);
    let header = way.machine.header(g);
    let (mut sent, mut lost) = (0, 0);
    // One frame is made; the others share its payload where the port can. It leaves last.
    let mut original: Option<(&Outlet, E::Buf)> = None;
    for endpoint in to {
        let (Some(outlet), Some(per_endpoint)) = (
            way.outlets.get(endpoint.index()),
            way.counters.get_mut(endpoint.index()),
        ) else {
            counters.broken("a packet is for some of the endpoints");
            continue;
        };
        let psn = header.psn(endpoint);
        let word = psn_word(psn, ack_request);
        let change = outlet.difference ^ u32::from_le_bytes(word);
        let icrc = icrc
            ^ match operator {
                Some(operator) => operator.apply(change),
                None => icrc::shift(change, after_qpn),
            };
        let macs = (next_hops.get(outlet.next_hop), ports.mac(outlet.port));
        let frame = if !ports.up.contains(outlet.port) {
            None
        } else {
            match &original {
                Some((like, frame)) if like.link.is_like(&outlet.link) => {
                    let l3 = MACS + outlet.link.bytes().len();
                    let copy = cx.egress.replicate(outlet.port, frame, packet.head_length(l3));
                    copy.map(|mut copy| {
                        let head = copy.head_mut();
                        set_macs(head, macs.0, macs.1);
                        if let Some(fixed) = head.get_mut(l3..).and_then(|b| b.first_chunk_mut()) {
                            outlet.template.turn(fixed, outlet.tos(), length, word);
                        }
                        copy.set_trailer(icrc.to_le_bytes());
                        copy
                    })
                }
                _ => {
                    let mut bytes = [0; HEAD_MAX];
                    let head = write_head(&mut bytes, outlet, macs, packet, length, word);
                    let (pad, icrc) = (&[0; 3][..usize::from(packet.pad & 3)], icrc.to_le_bytes());
                    match pad {
                        [] => cx.egress.gather(outlet.port, &[head, packet.payload, &icrc]),
                        pad => cx.egress.gather(outlet.port, &[head, packet.payload, pad, &icrc]),
                    }
                }
            }
        };
        let Some(frame) = frame else {
            lost += 1;
            counters.totals.copies_lost += 1;
            per_endpoint.lost += 1;
            cx.observer
                .step(|| Step::new(Stage::Translate, "not sent", "no buffer, or the port is down"));
            continue;
        };
        sent += 1;
        per_endpoint.results += 1;
        cx.observer.step(|| explain(way.rule, endpoint, outlet, psn, g));
        if original.is_none() && to.len() > 1 {
            original = Some((outlet, frame));
        } else {
            cx.send(counters, outlet.port, frame);
        }
    }
    counters.totals.originated += sent;
    if let Some((outlet, frame)) = original {
        cx.send(counters, outlet.port, frame);
    }
    (sent, lost)
}

/// All bytes before the payload.
#[inline]
fn write_head<'b>(
    bytes: &'b mut [u8; HEAD_MAX],
    outlet: &Outlet,
    (dst, src): (castnet_wire::MacAddr, castnet_wire::MacAddr),
    packet: &Packet<'_>,
    length: u16,
    psn: [u8; PSN_WORD],
) -> &'b [u8] {
    let link = outlet.link.bytes();
    set_macs(bytes, dst, src);
    let l3 = MACS + link.len();
    bytes[MACS..l3].copy_from_slice(link);
    if let Some(fixed) = bytes[l3..].first_chunk_mut() {
        outlet.template.write(fixed, outlet.tos(), packet, length, psn);
    }
    if let Some(imm) = packet.imm {
        bytes[l3 + FIXED..l3 + FIXED + IMM].copy_from_slice(&imm.to_be_bytes());
    }
    bytes.get(..packet.head_length(l3)).unwrap_or_default()
}

fn explain(rule: &GroupRule, endpoint: EndpointId, outlet: &Outlet, psn: Psn, g: Psn) -> Step {
    let Address { src, dst, qpn, .. } = outlet.address;
    Step::new(
        Stage::Translate,
        super::explain::name(rule, endpoint),
        format!(
            "src {src}, dst {dst}, qpn {qpn}, PSN {psn} (the group's {g}), by port {}",
            outlet.port
        ),
    )
}
