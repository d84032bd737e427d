//! Header rewriting for one endpoint: connection bridging towards an address (Cepheus III.B), or new Ethernet addresses and QPN towards
//! an adjacent switch. The payload is never read. IPv4 checksum and ICRC change by difference, so a corrupted frame stays corrupted.

use core::net::Ipv4Addr;

use castnet_rules::Endpoint;
use castnet_wire::ethernet::set_macs;
use castnet_wire::icrc::{self, HeaderDelta, Shift};
use castnet_wire::layout::{DEST_QP, DST, IPV4_CHECKSUM, PACKET_HEADERS, PSN, SRC, UDP_CHECKSUM};
use castnet_wire::{FrameBuf, PortId, Psn, Qpn, Reth, RoceHeader, ipv4};

use crate::observe::counters::Counters;
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

/// The group and the old headers of a packet, or of packets alike, that copies are made of.
pub(super) struct Original {
    pub(super) mcst_id: Ipv4Addr,
    src: Ipv4Addr,
    /// The McstID, or an address of a static core.
    dst: Ipv4Addr,
    qpn: Qpn,
    from_source: HeaderDelta,
    /// Takes the old addresses from what the IPv4 checksum complements (RFC 1624).
    sum: u32,
}

/// What a copy has instead.
#[derive(Default)]
pub(super) struct Change {
    /// Source and destination.
    pub(super) addresses: [u8; 8],
    /// Added to what the IPv4 checksum complements.
    pub(super) sum: u32,
    pub(super) delta: HeaderDelta,
}

impl Original {
    #[inline(always)]
    pub(super) fn new(mcst_id: Ipv4Addr, (src, dst): (Ipv4Addr, Ipv4Addr), qpn: Qpn) -> Self {
        Self {
            mcst_id,
            src,
            dst,
            qpn,
            from_source: HeaderDelta::src(src, mcst_id),
            sum: 4 * 0xFFFF - address_sum(src) - address_sum(dst),
        }
    }

    /// Towards a next hop with an IP address, the McstID is the source of copies. Towards an adjacent switch it is their destination: `None`
    /// if the packet has all that they need.
    #[inline(always)]
    pub(super) fn change(&self, dest: &PathDestination) -> Option<Change> {
        let (src, dst, delta) = match dest.is_addressed() {
            true => (self.mcst_id, Ipv4Addr::from(dest.ip), self.from_source),
            false => (self.src, self.mcst_id, HeaderDelta::NONE),
        };
        let qpn = Qpn::from_bytes(dest.qpn);
        if (src, dst, qpn) == (self.src, self.dst, self.qpn) {
            return None;
        }
        let mut addresses = [0; 8];
        addresses[..4].copy_from_slice(&src.octets());
        addresses[4..].copy_from_slice(&dst.octets());
        Some(Change {
            addresses,
            sum: self.sum + address_sum(src) + address_sum(dst),
            delta: delta
                .and(HeaderDelta::dst(self.dst, dst))
                .and(HeaderDelta::dest_qp(self.qpn, qpn)),
        })
    }
}

/// The part of rewriting that is equal for all paths, computed once per frame.
pub(super) struct FrameRewrite<'a> {
    pub(super) header: &'a RoceHeader,
    pub(super) original: Original,
    checksum: u16,
    icrc: u32,
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
const fn address_sum(ip: Ipv4Addr) -> u32 {
    let bits = ip.to_bits();
    (bits >> 16) + (bits & 0xFFFF)
}

impl<'a> FrameRewrite<'a> {
    #[inline(always)]
    fn new(header: &'a RoceHeader, mcst_id: Ipv4Addr, frame: &impl FrameBuf) -> Self {
        let checksum = frame
            .head()
            .get(header.l3 + IPV4_CHECKSUM.start..)
            .and_then(|b| b.first_chunk::<2>());
        let addresses = header.ip.v4().unwrap_or((Ipv4Addr::UNSPECIFIED, mcst_id));
        Self {
            header,
            original: Original::new(mcst_id, addresses, header.bth.dest_qp),
            checksum: checksum.map_or(0, |b| u16::from_be_bytes(*b)),
            icrc: icrc::read(frame, header.frame_len).unwrap_or_default(),
        }
    }

    /// Rewrites the packet of a private copy. `target` is for a WRITE to a next hop with an IP address.
    #[inline(always)]
    fn write(
        &self,
        dest: &PathDestination,
        target: Option<Target>,
        operator: Option<&Shift>,
        copy: &mut impl FrameBuf,
    ) {
        let header = self.header;
        let Some(Change {
            addresses,
            sum,
            mut delta,
        }) = self.original.change(dest)
        else {
            return;
        };
        let Some((fixed, ext)) = headers_of(copy, header.l3) else {
            return;
        };
        let checksum = !ipv4::fold(u32::from(!self.checksum) + sum);
        fixed[IPV4_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        fixed[SRC.start..DST.end].copy_from_slice(&addresses);
        fixed[UDP_CHECKSUM].copy_from_slice(&[0; 2]);
        fixed[DEST_QP].copy_from_slice(&dest.qpn);
        if let (Some(target), Some(reth), Some(bytes)) = (target, header.reth, ext.first_chunk_mut::<12>()) {
            bytes[..8].copy_from_slice(&target.va.to_be_bytes());
            bytes[8..].copy_from_slice(&target.rkey.to_be_bytes());
            delta = delta
                .and(HeaderDelta::va(reth.va, target.va))
                .and(HeaderDelta::rkey(reth.rkey, target.rkey));
        }
        let register = match header.reth {
            Some(_) => delta.at_reth(),
            None => delta.at_bth(),
        };
        let change = match operator {
            Some(operator) => operator.apply(register),
            None => icrc::shift(register, bytes_after(header)),
        };
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
fn bytes_after(header: &RoceHeader) -> usize {
    header.after_reth().unwrap_or(header.after_bth())
}

/// Changes the headers of a private frame; the ICRC changes by difference.
fn change_headers(
    frame: &mut impl FrameBuf,
    header: &RoceHeader,
    change: impl FnOnce(&mut [u8; PACKET_HEADERS]) -> HeaderDelta,
) {
    let Some(icrc) = icrc::read(frame, header.frame_len) else {
        return;
    };
    let Some((fixed, _)) = headers_of(frame, header.l3) else {
        return;
    };
    fixed[UDP_CHECKSUM].copy_from_slice(&[0; 2]);
    let change = icrc::shift(change(fixed).at_bth(), header.after_bth());
    icrc::write(frame, header.frame_len, icrc ^ change);
}

/// Writes the destination `new` instead of `old` into a private frame.
pub(crate) fn set_destination(frame: &mut impl FrameBuf, header: &RoceHeader, old: Ipv4Addr, new: Ipv4Addr) {
    change_headers(frame, header, |fixed| {
        let checksum = [IPV4_CHECKSUM.start, IPV4_CHECKSUM.start + 1].map(|at| fixed[at]);
        let sum = u32::from(!u16::from_be_bytes(checksum)) + 2 * 0xFFFF - address_sum(old) + address_sum(new);
        fixed[IPV4_CHECKSUM].copy_from_slice(&(!ipv4::fold(sum)).to_be_bytes());
        fixed[DST].copy_from_slice(&new.octets());
        HeaderDelta::dst(old, new)
    });
}

/// Writes the PSN `new` instead of `old` into a private frame.
pub(super) fn set_psn(frame: &mut impl FrameBuf, header: &RoceHeader, old: Psn, new: Psn) {
    change_headers(frame, header, |fixed| {
        fixed[PSN].copy_from_slice(&new.to_bytes());
        HeaderDelta::psn(old, new)
    });
}

/// Sets AckReq in a private frame that does not request an acknowledgement.
pub(super) fn request_ack(frame: &mut impl FrameBuf, header: &RoceHeader) {
    change_headers(frame, header, |fixed| {
        fixed[PSN.start - 1] |= 0x80;
        HeaderDelta::ack_request_flips()
    });
}

pub(super) struct CopyRewriter<'a> {
    pub(super) packet: FrameRewrite<'a>,
    /// ICRC operator for the bytes between the last rewritten header and the ICRC.
    operator: Option<&'a Shift>,
    pub(super) ports: &'a Ports,
    next_hops: &'a NextHops,
    pub(super) routes: &'a Routes,
}

impl<'a> CopyRewriter<'a> {
    /// For copies of `frame`, with the counters of what is sent.
    #[inline(always)]
    pub(super) fn new(
        output: &'a mut Output,
        header: &'a RoceHeader,
        mcst_id: Ipv4Addr,
        frame: &impl FrameBuf,
    ) -> (Self, &'a mut Counters) {
        let Output {
            ports,
            next_hops,
            routes,
            shifts,
            counters,
        } = output;
        let rewriter = Self {
            packet: FrameRewrite::new(header, mcst_id, frame),
            operator: shifts.find(bytes_after(header)),
            ports,
            next_hops,
            routes,
        };
        (rewriter, counters)
    }

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
        self.packet.write(dest, target, self.operator, copy);
    }
}

/// Rewrites for kinds that forward each frame to one endpoint. A WRITE keeps its address and key.
pub(crate) fn bridge(
    output: &mut Output,
    mcst_id: Ipv4Addr,
    (dest, port): (&PathDestination, PortId),
    header: &RoceHeader,
    frame: &mut impl FrameBuf,
) {
    let (rewriter, _) = CopyRewriter::new(output, header, mcst_id, frame);
    rewriter.rewrite(dest, port, header.reth.as_ref().map(Target::unchanged), frame);
}
