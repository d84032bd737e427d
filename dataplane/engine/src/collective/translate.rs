//! Headers of what a group sends: one connection towards each endpoint (EPIC 4.1: TranslateHeader).
//!
//! To a rank a packet goes from the McstID to the rank's address and QPN, with a PSN of the rank's own; to a switch from
//! the McstID to the McstID, with the group's PSN. The payload's part of the ICRC is worked out once for each result, under
//! the header that the group itself would have; what differs follows by difference.

use castnet_collective::{EndpointId, EndpointSet, Translated};
use castnet_reduce::Checksum;
use castnet_rules::{CollectiveEndpoint, CollectiveGroup, CollectiveHop};
use castnet_wire::icrc::{self, HeaderDelta};
use castnet_wire::{Bth, FrameBuf, McstId, Opcode, PortId, Psn, Qpn};

use super::verify::{FIXED, Headers};
use crate::counters::EndpointCounters;
use crate::egress::Egress;
use crate::feedback::{AckTemplate, Address, LINK_MAX, Link, MACS};
use crate::group::feedback_sport;
use crate::multicast::Tools;
use crate::pipeline::Cx;
use crate::replicate::set_macs;
use crate::trace::{Observer, Stage, Step};

const IMM: usize = 4;
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
    fn write(
        &self,
        out: &mut [u8; FIXED],
        tos: u8,
        packet: &Packet<'_>,
        length: u16,
        psn: Psn,
        ack_request: bool,
    ) {
        *out = self.bytes;
        let sum = self.sum + u32::from(length) + u32::from(tos);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let checksum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
        out[1] = tos;
        out[2..4].copy_from_slice(&length.to_be_bytes());
        out[10..12].copy_from_slice(&checksum.to_be_bytes());
        out[24..26].copy_from_slice(&(length - 20).to_be_bytes());
        out[28] = packet.opcode as u8;
        out[29] = packet.pad << 4;
        out[36] = u8::from(ack_request) << 7;
        out[37..40].copy_from_slice(&psn.to_bytes());
    }
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
    /// The headers of what comes from it.
    pub(super) headers: Headers,
    template: Template,
    ack: AckTemplate,
    /// The difference of its header to the group's, as far as the ICRC covers it; PSN and AckReq come on top.
    difference: HeaderDelta,
}

impl Outlet {
    pub(super) fn new(endpoint: &CollectiveEndpoint, mcst_id: McstId) -> Self {
        let own = own_address(mcst_id);
        let address = match &endpoint.next_hop {
            CollectiveHop::Rank(rank) => Address {
                dst: rank.ip,
                qpn: rank.qpn,
                ..own
            },
            CollectiveHop::Switch { .. } => own,
        };
        Self {
            port: endpoint.port,
            next_hop: 0,
            address,
            link: Link::PLAIN,
            headers: Headers::new(),
            template: Template::new(&address),
            ack: AckTemplate::new(&address),
            difference: HeaderDelta::dst(own.dst, address.dst)
                .and(HeaderDelta::dest_qp(own.qpn, address.qpn)),
        }
    }

    pub(super) fn ack(&self) -> &AckTemplate {
        &self.ack
    }
}

/// From the group to itself: what switches say to each other.
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

    /// Bytes from IPv4 to ICRC, with that.
    fn length(&self) -> u16 {
        (FIXED + self.after_bth() + ICRC) as u16
    }

    /// Its ICRC under the group's own header.
    pub(super) fn icrc(&self, own: &Template, checksum: &Checksum) -> u32 {
        let mut head = [0; FIXED];
        own.write(&mut head, 0, self, self.length(), Psn::new(0), false);
        let mut register = icrc::full(&[&head]);
        if let Some(imm) = self.imm {
            register = checksum.update(register, [&imm.to_be_bytes(), &[], &[]]);
        }
        let pad = &[0; 3][..usize::from(self.pad & 3)];
        if !pad.is_empty() {
            register = checksum.update(register, [self.payload, &[], &[]]);
            return checksum.update(register, [pad, &[], &[]]);
        }
        checksum.update(register, [self.payload, &[], &[]])
    }
}

/// What sending needs of a group.
pub(super) struct Way<'a> {
    pub(super) machine: &'a Translated,
    pub(super) outlets: &'a [Outlet],
    pub(super) counters: &'a mut [EndpointCounters],
    pub(super) rule: &'a CollectiveGroup,
}

/// Sends a packet to each endpoint of `to`, with the PSN that it has there; `icrc` is [`Packet::icrc`]. Returns how many went
/// out, and how many could not.
#[inline]
pub(super) fn send<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    tools: &mut Tools<'_>,
    way: &mut Way<'_>,
    packet: &Packet<'_>,
    icrc: u32,
    (g, to, ack_request): (Psn, EndpointSet, bool),
) -> (u64, u64) {
    let Tools {
        ports,
        next_hops,
        shifts,
        counters,
        ..
    } = tools;
    let (after_bth, length) = (packet.after_bth(), packet.length());
    let operator = shifts.find(after_bth);
    let asks = if ack_request {
        HeaderDelta::ack_request_flips()
    } else {
        HeaderDelta::NONE
    };
    let (mut sent, mut lost) = (0, 0);
    // One frame is made; the others share its payload where the port can. It leaves last.
    let mut original: Option<(PortId, usize, E::Buf)> = None;
    for endpoint in to {
        let Some(outlet) = way.outlets.get(endpoint.index()) else {
            continue;
        };
        let psn = way.machine.towards(endpoint, g);
        let change = outlet
            .difference
            .and(HeaderDelta::psn(Psn::new(0), psn))
            .and(asks);
        let icrc = icrc
            ^ match operator {
                Some(operator) => operator.apply(change.at_bth()),
                None => icrc::shift(change.at_bth(), after_bth),
            };
        let mut bytes = [0; HEAD_MAX];
        let head = write_head(
            &mut bytes,
            outlet,
            tools_macs(ports, next_hops, outlet),
            packet,
            length,
            psn,
            ack_request,
        );
        let frame = if !ports.up.contains(outlet.port) {
            None
        } else {
            match &original {
                Some((_, l3, frame)) if *l3 == MACS + outlet.link.bytes().len() => cx
                    .egress
                    .replicate(outlet.port, frame, head.len())
                    .map(|mut copy| {
                        if let Some(to) = copy.head_mut().get_mut(..head.len()) {
                            to.copy_from_slice(head);
                        }
                        copy.set_trailer(icrc.to_le_bytes());
                        copy
                    }),
                _ => cx.egress.gather(
                    outlet.port,
                    &[
                        head,
                        packet.payload,
                        &[0; 3][..usize::from(packet.pad & 3)],
                        &icrc.to_le_bytes(),
                    ],
                ),
            }
        };
        let Some(frame) = frame else {
            lost += 1;
            counters.totals.copies_lost += 1;
            if let Some(counters) = way.counters.get_mut(endpoint.index()) {
                counters.lost += 1;
            }
            cx.observer
                .step(|| Step::new(Stage::Translate, "not sent", "no buffer, or the port is down"));
            continue;
        };
        sent += 1;
        counters.totals.originated += 1;
        if let Some(counters) = way.counters.get_mut(endpoint.index()) {
            counters.results += 1;
        }
        cx.observer.step(|| explain(way, endpoint, outlet, psn, g));
        if original.is_none() && to.len() > 1 {
            original = Some((outlet.port, MACS + outlet.link.bytes().len(), frame));
        } else {
            cx.send(counters, outlet.port, frame);
        }
    }
    if let Some((port, _, frame)) = original {
        cx.send(counters, port, frame);
    }
    (sent, lost)
}

/// Destination and source address on the link.
#[inline]
fn tools_macs(
    ports: &crate::engine::Ports,
    next_hops: &crate::next_hops::NextHops,
    outlet: &Outlet,
) -> (castnet_wire::MacAddr, castnet_wire::MacAddr) {
    (next_hops.get(outlet.next_hop), ports.mac(outlet.port))
}

/// All bytes before the payload.
#[inline]
fn write_head<'b>(
    bytes: &'b mut [u8; HEAD_MAX],
    outlet: &Outlet,
    (dst, src): (castnet_wire::MacAddr, castnet_wire::MacAddr),
    packet: &Packet<'_>,
    length: u16,
    psn: Psn,
    ack_request: bool,
) -> &'b [u8] {
    let link = outlet.link.bytes();
    set_macs(bytes, dst, src);
    let l3 = MACS + link.len();
    bytes[MACS..l3].copy_from_slice(link);
    if let Some(fixed) = bytes[l3..].first_chunk_mut() {
        outlet
            .template
            .write(fixed, outlet.link.tos(), packet, length, psn, ack_request);
    }
    let mut end = l3 + FIXED;
    if let Some(imm) = packet.imm {
        bytes[end..end + IMM].copy_from_slice(&imm.to_be_bytes());
        end += IMM;
    }
    bytes.get(..end).unwrap_or_default()
}

fn explain(way: &Way<'_>, endpoint: EndpointId, outlet: &Outlet, psn: Psn, g: Psn) -> Step {
    let Address { src, dst, qpn, .. } = outlet.address;
    Step::new(
        Stage::Translate,
        super::explain::name(way.rule, endpoint),
        format!(
            "src {src}, dst {dst}, qpn {qpn}, PSN {psn} (the group's {g}), by port {}",
            outlet.port
        ),
    )
}
