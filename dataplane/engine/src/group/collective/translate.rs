//! Writes the headers of packets that a group sends: one connection for each endpoint (EPIC 4.1: TranslateHeader).
//!
//! A packet to a rank has the rank's address and QPN, and a PSN of the rank's own space; one to an adjacent switch has the McstID and
//! the group's PSN. The source is always the McstID. The ICRC is computed once for each result, with a header from the group to itself;
//! that for each endpoint follows by difference.

use crate::egress::Egress;
use crate::group::install::feedback_sport;
use crate::observe::counters::EndpointCounters;
use crate::observe::trace::{Observer, Stage, Step};
use crate::output::Output;
use crate::output::acknowledge::{AckTemplate, Address, LINK_MAX, LinkHeader, MACS};
use crate::output::cx::Cx;
use castnet_collective::{EndpointId, EndpointSet, Translated};
use castnet_reduce::Checksum;
use castnet_rules::{Endpoint, GroupRule};
use castnet_wire::ethernet::set_macs;
use castnet_wire::icrc::{self, HeaderDelta, Shift};
use castnet_wire::layout::{self, IPV4_CHECKSUM, PACKET_HEADERS as FIXED};
use castnet_wire::roce::ICRC_LEN;
use castnet_wire::{Bth, FrameBuf, Ipv4, McstId, Opcode, PortId, Psn, Qpn, ipv4};

const IMM: usize = 4;
/// AckReq, reserved bits, PSN: the end of the BTH.
const PSN_WORD: usize = 4;
pub(super) const ECT_0: u8 = 2;
/// So many zero bytes do not change the register of a CRC.
const PERIOD: usize = u32::MAX as usize;
/// From the identification to AckReq and PSN.
static IDENT: Shift = Shift::by_bytes(layout::ACK_REQUEST - layout::IDENT.start);
/// Ethernet addresses, tags, IPv4, UDP, BTH, ImmDt.
const HEAD_MAX: usize = MACS + LINK_MAX + FIXED + IMM;

/// IPv4, UDP and BTH of a connection. Lengths, identification, TOS, checksum, opcode, pad, AckReq and PSN are zeros.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    bytes: [u8; FIXED],
    /// What the IPv4 checksum complements, without lengths, identification and TOS (RFC 1071).
    sum: u32,
}

impl Template {
    pub(super) fn new(address: &Address) -> Self {
        let bth = Bth::new(Opcode::SendFirst, address.qpn, Psn::new(0));
        let mut bytes = address.headers(0, 0, &bth);
        let checksum = [IPV4_CHECKSUM.start, IPV4_CHECKSUM.start + 1].map(|at| bytes[at]);
        let checksum = u16::from_be_bytes(checksum);
        bytes[IPV4_CHECKSUM].fill(0);
        Self {
            bytes,
            sum: u32::from(!checksum),
        }
    }

    #[inline]
    fn write(
        &self,
        out: &mut [u8; FIXED],
        tos: u8,
        packet: &Packet<'_>,
        length: u16,
        ident: u16,
        psn: [u8; PSN_WORD],
    ) {
        *out = self.bytes;
        out[layout::IDENT].copy_from_slice(&ident.to_be_bytes());
        out[layout::TOTAL_LENGTH].copy_from_slice(&length.to_be_bytes());
        out[layout::UDP_LENGTH].copy_from_slice(&(length - Ipv4::LEN as u16).to_be_bytes());
        out[layout::OPCODE] = packet.opcode as u8;
        out[layout::PAD] = packet.pad << 4;
        self.readdress(out, tos, length, ident, psn);
    }

    /// Changes the header to another endpoint into the header for this one.
    #[inline]
    fn readdress(&self, out: &mut [u8; FIXED], tos: u8, length: u16, ident: u16, psn: [u8; PSN_WORD]) {
        let checksum = !ipv4::fold(self.sum + u32::from(length) + u32::from(ident) + u32::from(tos));
        out[layout::TOS] = tos;
        out[IPV4_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        out[layout::DST].copy_from_slice(&self.bytes[layout::DST]);
        out[layout::DEST_QP].copy_from_slice(&self.bytes[layout::DEST_QP]);
        out[layout::ACK_REQUEST..].copy_from_slice(&psn);
    }
}

#[inline]
fn psn_word(psn: Psn, ack_request: bool) -> [u8; PSN_WORD] {
    let [a, b, c] = psn.to_bytes();
    [u8::from(ack_request) << 7, a, b, c]
}

/// The connection to one endpoint: addresses and prepared headers.
#[derive(Clone, Debug)]
pub(super) struct EndpointConnection {
    pub(super) port: PortId,
    pub(super) next_hop: u16,
    /// Addresses of frames to the endpoint. The source of its own frames is the destination here.
    pub(super) address: Address,
    /// VLAN tags and class of service, from the last frame of the endpoint.
    pub(super) link: LinkHeader,
    /// Data of the endpoint is ECN-capable. Data to it then is, too.
    pub(super) ect: bool,
    template: Template,
    pub(super) ack: AckTemplate,
    /// ICRC difference between its header and the group header, as a register before AckReq and PSN.
    difference: u32,
}

impl EndpointConnection {
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
            link: LinkHeader::PLAIN,
            ect: false,
            template: Template::new(&address),
            ack: AckTemplate::new(&address),
            difference: icrc::shift(difference.at_bth(), PERIOD - PSN_WORD),
        }
    }

    #[inline]
    fn tos(&self) -> u8 {
        self.link.tos() | if self.ect { ECT_0 } else { 0 }
    }
}

/// Addresses of packets from the group to itself, which adjacent switches use.
pub(super) fn own_address(mcst_id: McstId) -> Address {
    Address {
        src: mcst_id.0,
        dst: mcst_id.0,
        qpn: Qpn::VIRTUAL,
        sport: feedback_sport(mcst_id),
    }
}

/// A packet to send, without the fields that differ between endpoints.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) opcode: Opcode,
    pub(super) pad: u8,
    pub(super) imm: Option<u32>,
    pub(super) payload: &'a [u8],
}

impl Packet<'_> {
    /// Bytes after the BTH, with the ICRC.
    fn after_bth(&self) -> usize {
        self.imm.map_or(0, |_| IMM) + self.payload.len() + usize::from(self.pad)
    }

    /// Bytes before the payload, with the IPv4 header at `l3`.
    fn head_length(&self, l3: usize) -> usize {
        l3 + FIXED + self.imm.map_or(0, |_| IMM)
    }

    /// Bytes from IPv4 to ICRC.
    fn length(&self) -> u16 {
        (FIXED + self.after_bth() + ICRC_LEN) as u16
    }

    pub(super) fn icrc(&self, group_header: &mut GroupHeader, checksum: &Checksum) -> u32 {
        let mut register = group_header.register(self);
        if let Some(imm) = self.imm {
            register = checksum.update(register, &imm.to_be_bytes(), &[]);
        }
        let pad = &[0; 3][..usize::from(self.pad & 3)];
        checksum.update(register, self.payload, pad)
    }
}

/// The header of a packet from the group to itself, with a cache of its CRC.
#[derive(Clone, Debug)]
pub(super) struct GroupHeader {
    template: Template,
    /// Of the last packet: opcode, padding, length, and the register at the end of its header with zeros for identification,
    /// PSN and AckReq.
    last: Option<((Opcode, u8, u16), u32)>,
}

impl GroupHeader {
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
                    .write(&mut head, 0, packet, length, 0, psn_word(Psn::new(0), false));
                let register = icrc::full(&[&head]);
                self.last = Some((key, register));
                register
            }
        }
    }
}

pub(super) struct SendContext<'a, const W: usize> {
    pub(super) machine: &'a Translated<W>,
    pub(super) connections: &'a [EndpointConnection],
    pub(super) counters: &'a mut [EndpointCounters],
    pub(super) rule: &'a GroupRule,
}

/// Sends a packet to each endpoint of `to`. `icrc` is [`Packet::icrc`]. Returns the numbers of sent and of lost packets.
#[inline]
pub(super) fn send<E: Egress, O: Observer, const W: usize>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    send_cx: &mut SendContext<'_, W>,
    packet: &Packet<'_>,
    icrc: u32,
    (g, to, ack_request): (Psn, EndpointSet<W>, bool),
) -> (u64, u64) {
    let Output {
        ports,
        next_hops,
        shifts,
        counters,
        ..
    } = output;
    let length = packet.length();
    let after_qpn = packet.after_bth() + PSN_WORD;
    let operator = shifts.find(after_qpn);
    let header = send_cx.machine.header(g);
    // Consecutive results have consecutive identifications, so ports can send them as super-frames.
    let [a, b] = (g.value() as u16).to_be_bytes();
    let ident = u16::from_be_bytes([a, b]);
    let ident_change = IDENT.apply(u32::from_le_bytes([a, b, 0, 0]));
    let (mut sent, mut lost) = (0, 0);
    // The first frame is the original, and sent last; the others share its payload if the port can.
    let mut original: Option<(&EndpointConnection, E::Buf)> = None;
    for endpoint in to {
        let (Some(connection), Some(per_endpoint)) = (
            send_cx.connections.get(endpoint.index()),
            send_cx.counters.get_mut(endpoint.index()),
        ) else {
            counters.invariant_violated("a packet is for some of the endpoints");
            continue;
        };
        let psn = header.psn(endpoint);
        let word = psn_word(psn, ack_request);
        let change = connection.difference ^ ident_change ^ u32::from_le_bytes(word);
        let icrc = icrc
            ^ match operator {
                Some(operator) => operator.apply(change),
                None => icrc::shift(change, after_qpn),
            };
        let macs = (next_hops.get(connection.next_hop), ports.mac(connection.port));
        let frame = if !ports.up.contains(connection.port) {
            None
        } else {
            match &original {
                Some((like, frame)) if like.link.is_like(&connection.link) => {
                    let l3 = MACS + connection.link.bytes().len();
                    let copy = cx
                        .egress
                        .replicate(connection.port, frame, packet.head_length(l3));
                    copy.map(|mut copy| {
                        let head = copy.head_mut();
                        set_macs(head, macs.0, macs.1);
                        if let Some(fixed) = head.get_mut(l3..).and_then(|b| b.first_chunk_mut()) {
                            connection
                                .template
                                .readdress(fixed, connection.tos(), length, ident, word);
                        }
                        copy.set_trailer(icrc.to_le_bytes());
                        copy
                    })
                }
                _ => {
                    let mut bytes = [0; HEAD_MAX];
                    let head = write_head(&mut bytes, connection, macs, packet, (length, ident), word);
                    let (pad, icrc) = (&[0; 3][..usize::from(packet.pad & 3)], icrc.to_le_bytes());
                    match pad {
                        [] => cx.egress.gather(connection.port, &[head, packet.payload, &icrc]),
                        pad => cx
                            .egress
                            .gather(connection.port, &[head, packet.payload, pad, &icrc]),
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
        cx.observer
            .step(|| explain(send_cx.rule, endpoint, connection, psn, g));
        if original.is_none() && to.len() > 1 {
            original = Some((connection, frame));
        } else {
            cx.send(counters, connection.port, frame);
        }
    }
    counters.totals.originated += sent;
    if let Some((connection, frame)) = original {
        cx.send(counters, connection.port, frame);
    }
    (sent, lost)
}

#[inline]
fn write_head<'b>(
    bytes: &'b mut [u8; HEAD_MAX],
    connection: &EndpointConnection,
    (dst, src): (castnet_wire::MacAddr, castnet_wire::MacAddr),
    packet: &Packet<'_>,
    (length, ident): (u16, u16),
    psn: [u8; PSN_WORD],
) -> &'b [u8] {
    let link = connection.link.bytes();
    set_macs(bytes, dst, src);
    let l3 = MACS + link.len();
    bytes[MACS..l3].copy_from_slice(link);
    if let Some(fixed) = bytes[l3..].first_chunk_mut() {
        connection
            .template
            .write(fixed, connection.tos(), packet, length, ident, psn);
    }
    if let Some(imm) = packet.imm {
        bytes[l3 + FIXED..l3 + FIXED + IMM].copy_from_slice(&imm.to_be_bytes());
    }
    bytes.get(..packet.head_length(l3)).unwrap_or_default()
}

fn explain(
    rule: &GroupRule,
    endpoint: EndpointId,
    connection: &EndpointConnection,
    psn: Psn,
    g: Psn,
) -> Step {
    let Address { src, dst, qpn, .. } = connection.address;
    Step::new(
        Stage::Translate,
        super::explain::name(rule, endpoint),
        format!(
            "src {src}, dst {dst}, qpn {qpn}, PSN {psn} (the group's {g}), by port {}",
            connection.port
        ),
    )
}
