//! Header rewriting for one endpoint: connection bridging towards an address (Cepheus III.B), or new Ethernet addresses and QPN towards
//! an adjacent switch. The payload is never read. IPv4 checksum and ICRC change by difference, so a corrupted frame stays corrupted.

use core::net::Ipv4Addr;

use castnet_rules::Endpoint;
use castnet_wire::ethernet::set_macs;
use castnet_wire::icrc::{self, HeaderDelta, Shift};
use castnet_wire::layout::{DEST_QP, DST, IPV4_CHECKSUM, PACKET_HEADERS, PSN, SRC, UDP_CHECKSUM};
use castnet_wire::{FrameBuf, PortId, Psn, Qpn, Reth, RoceHeader, ipv4};

use crate::group::headers::L3;
use crate::output::{Output, Ports};
use crate::tables::next_hops::NextHops;
use crate::tables::route::Routes;

/// The destination of frames to one path, in nine bytes. The group's set of ports or its look-up table has the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathDestination {
    /// Address of a member or of a switch behind routers. Zeros for an adjacent switch.
    pub(crate) ip: [u8; 4],
    pub(crate) qpn: [u8; 3],
    next_hop: [u8; 2],
}

impl PathDestination {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        Self {
            ip: endpoint.next_hop.ip().map_or([0; 4], |ip| ip.octets()),
            qpn: endpoint.next_hop.qpn().to_bytes(),
            next_hop: [0; 2],
        }
    }

    /// The same next hop, with a copy for another address.
    pub(super) const fn with_ip(self, ip: [u8; 4]) -> Self {
        Self { ip, ..self }
    }

    /// True if the next hop has an IP address, the source of its frames. False for an adjacent switch.
    pub(crate) fn is_addressed(&self) -> bool {
        self.ip != [0; 4]
    }

    pub(crate) fn bind(&mut self, index: u16) {
        self.next_hop = index.to_be_bytes();
    }

    pub(crate) const fn next_hop(&self) -> u16 {
        u16::from_be_bytes(self.next_hop)
    }
}

/// The part of rewriting that is equal for all paths, computed once per frame.
pub(super) struct FrameRewrite<'a> {
    pub(super) header: &'a RoceHeader,
    pub(super) mcst_id: Ipv4Addr,
    icrc: u32,
    from_source: HeaderDelta,
    /// What the IPv4 checksum complements (RFC 1624), with the new source address and without a destination.
    sum: u32,
}

/// Address and key of the RETH for a next hop with an IP address.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) in_range: bool,
}

impl Target {
    pub(super) fn unchanged(reth: &Reth) -> Self {
        Self {
            va: reth.va,
            rkey: reth.rkey,
            in_range: true,
        }
    }
}

#[inline]
pub(crate) const fn address_sum(ip: Ipv4Addr) -> u32 {
    let bits = ip.to_bits();
    (bits >> 16) + (bits & 0xFFFF)
}

impl<'a> FrameRewrite<'a> {
    #[inline(always)]
    pub(super) fn new(
        header: &'a RoceHeader,
        src: Ipv4Addr,
        mcst_id: Ipv4Addr,
        frame: &impl FrameBuf,
    ) -> Self {
        let checksum = frame
            .head()
            .get(header.l3 + IPV4_CHECKSUM.start..)
            .and_then(|b| b.first_chunk::<2>());
        let checksum = checksum.map_or(0, |b| u16::from_be_bytes(*b));
        // The McstID moves from destination to source, so only the old source is subtracted.
        let sum = u32::from(!checksum) + 2 * 0xFFFF - address_sum(src);
        Self {
            header,
            mcst_id,
            icrc: icrc::read(frame, header.frame_len).unwrap_or_default(),
            from_source: HeaderDelta::src(src, mcst_id),
            sum,
        }
    }

    #[inline]
    fn checksum(&self, dst: Ipv4Addr) -> u16 {
        !ipv4::fold(self.sum + address_sum(dst))
    }

    /// Rewrites a private copy for a next hop with an IP address.
    #[inline(always)]
    fn write(
        &self,
        dest: &PathDestination,
        target: Option<Target>,
        operator: Option<&Shift>,
        copy: &mut impl FrameBuf,
    ) {
        let header = self.header;
        let (ip, qpn) = (Ipv4Addr::from(dest.ip), Qpn::from_bytes(dest.qpn));
        let delta = self
            .from_source
            .and(HeaderDelta::dst(self.mcst_id, ip))
            .and(HeaderDelta::dest_qp(header.bth.dest_qp, qpn));
        let Some((fixed, ext)) = headers_of(copy, header.l3) else {
            return;
        };
        fixed[IPV4_CHECKSUM].copy_from_slice(&self.checksum(ip).to_be_bytes());
        fixed[SRC].copy_from_slice(&self.mcst_id.octets());
        fixed[DST].copy_from_slice(&dest.ip);
        fixed[UDP_CHECKSUM].copy_from_slice(&[0; 2]);
        fixed[DEST_QP].copy_from_slice(&dest.qpn);
        let register = match (target, header.reth, ext.first_chunk_mut::<12>()) {
            (Some(target), Some(reth), Some(bytes)) => {
                bytes[..8].copy_from_slice(&target.va.to_be_bytes());
                bytes[8..].copy_from_slice(&target.rkey.to_be_bytes());
                let memory =
                    HeaderDelta::va(reth.va, target.va).and(HeaderDelta::rkey(reth.rkey, target.rkey));
                delta.and(memory).at_reth()
            }
            _ => delta.at_bth(),
        };
        let change = match operator {
            Some(operator) => operator.apply(register),
            None => icrc::shift(register, bytes_after(header)),
        };
        icrc::write(copy, header.frame_len, self.icrc ^ change);
    }

    /// Rewrites a private copy for an adjacent switch with another QPN.
    #[cold]
    fn write_qpn(&self, qpn: Qpn, copy: &mut impl FrameBuf) {
        let header = self.header;
        let Some((fixed, _)) = headers_of(copy, header.l3) else {
            return;
        };
        fixed[UDP_CHECKSUM].copy_from_slice(&[0; 2]);
        fixed[DEST_QP].copy_from_slice(&qpn.to_bytes());
        let change = HeaderDelta::dest_qp(header.bth.dest_qp, qpn).at_bth();
        let change = icrc::shift(change, header.after_bth());
        icrc::write(copy, header.frame_len, self.icrc ^ change);
    }
}

#[inline(always)]
fn headers_of(copy: &mut impl FrameBuf, l3: usize) -> Option<(&mut [u8; PACKET_HEADERS], &mut [u8])> {
    let head = copy.head_mut().get_mut(l3..);
    let headers = head.and_then(|b| b.split_first_chunk_mut());
    debug_assert!(
        headers.is_some(),
        "a frame that was parsed has its headers, and so have its copies"
    );
    headers
}

/// Bytes between the last rewritten header and the ICRC.
pub(super) fn bytes_after(header: &RoceHeader) -> usize {
    header.after_reth().unwrap_or(header.after_bth())
}

/// Writes the destination `new` instead of `old` into a private frame; checksum and ICRC change by difference.
pub(crate) fn set_destination(frame: &mut impl FrameBuf, header: &RoceHeader, old: Ipv4Addr, new: Ipv4Addr) {
    let Some(icrc) = icrc::read(frame, header.frame_len) else {
        return;
    };
    replace_destination(frame, header.l3, old, new);
    let change = icrc::shift(HeaderDelta::dst(old, new).at_bth(), header.after_bth());
    icrc::write(frame, header.frame_len, icrc ^ change);
}

/// The same for a plain frame. `change` is the difference of its ICRC.
#[inline(always)]
pub(crate) fn set_plain_destination(
    frame: &mut impl FrameBuf,
    change: u32,
    (old, new): (Ipv4Addr, Ipv4Addr),
) {
    let icrc = u32::from_le_bytes(frame.trailer());
    replace_destination(frame, L3, old, new);
    frame.set_trailer((icrc ^ change).to_le_bytes());
}

/// Leaves the ICRC.
#[inline(always)]
fn replace_destination(frame: &mut impl FrameBuf, l3: usize, old: Ipv4Addr, new: Ipv4Addr) {
    let Some((fixed, _)) = headers_of(frame, l3) else {
        return;
    };
    let [high, low] = fixed[IPV4_CHECKSUM] else {
        return;
    };
    let sum = u32::from(!u16::from_be_bytes([high, low])) + 2 * 0xFFFF - address_sum(old) + address_sum(new);
    fixed[IPV4_CHECKSUM].copy_from_slice(&(!ipv4::fold(sum)).to_be_bytes());
    fixed[DST].copy_from_slice(&new.octets());
    fixed[UDP_CHECKSUM].copy_from_slice(&[0; 2]);
}

/// Writes the PSN `new` instead of `old` into a private frame; the ICRC changes by difference.
pub(super) fn set_psn(frame: &mut impl FrameBuf, header: &RoceHeader, old: Psn, new: Psn) {
    let Some(icrc) = icrc::read(frame, header.frame_len) else {
        return;
    };
    let Some((fixed, _)) = headers_of(frame, header.l3) else {
        return;
    };
    fixed[UDP_CHECKSUM].copy_from_slice(&[0; 2]);
    fixed[PSN].copy_from_slice(&new.to_bytes());
    let change = icrc::shift(HeaderDelta::psn(old, new).at_bth(), header.after_bth());
    icrc::write(frame, header.frame_len, icrc ^ change);
}

/// Sets AckReq in a private frame that does not request an acknowledgement; the ICRC changes by difference.
pub(super) fn request_ack(frame: &mut impl FrameBuf, header: &RoceHeader) {
    let Some(icrc) = icrc::read(frame, header.frame_len) else {
        return;
    };
    let Some((fixed, _)) = headers_of(frame, header.l3) else {
        return;
    };
    fixed[UDP_CHECKSUM].copy_from_slice(&[0; 2]);
    fixed[PSN.start - 1] |= 0x80;
    let change = icrc::shift(HeaderDelta::ack_request_flips().at_bth(), header.after_bth());
    icrc::write(frame, header.frame_len, icrc ^ change);
}

pub(super) struct CopyRewriter<'a> {
    pub(super) packet: FrameRewrite<'a>,
    /// ICRC operator for the bytes between the last rewritten header and the ICRC.
    pub(super) operator: Option<&'a Shift>,
    pub(super) ports: &'a Ports,
    pub(super) next_hops: &'a NextHops,
    pub(super) routes: &'a Routes,
}

impl CopyRewriter<'_> {
    /// Rewrites a private copy of the frame.
    #[inline(always)]
    pub(super) fn rewrite(
        &self,
        dest: &PathDestination,
        port: PortId,
        target: Option<Target>,
        copy: &mut impl FrameBuf,
    ) {
        set_macs(
            copy.head_mut(),
            self.next_hops.get(dest.next_hop()),
            self.ports.mac(port),
        );
        if dest.is_addressed() {
            self.packet.write(dest, target, self.operator, copy);
            return;
        }
        let qpn = Qpn::from_bytes(dest.qpn);
        if qpn != self.packet.header.bth.dest_qp {
            self.packet.write_qpn(qpn, copy);
        }
    }
}

/// Rewrites for kinds that forward each frame to one endpoint. A WRITE keeps its address and key.
pub(crate) fn bridge(
    output: &mut Output,
    mcst_id: Ipv4Addr,
    (dest, port): (&PathDestination, PortId),
    header: &RoceHeader,
    src: Ipv4Addr,
    frame: &mut impl FrameBuf,
) {
    let rewriter = CopyRewriter {
        packet: FrameRewrite::new(header, src, mcst_id, frame),
        operator: output.shifts.find(bytes_after(header)),
        ports: &output.ports,
        next_hops: &output.next_hops,
        routes: &output.routes,
    };
    rewriter.rewrite(dest, port, header.reth.as_ref().map(Target::unchanged), frame);
}
