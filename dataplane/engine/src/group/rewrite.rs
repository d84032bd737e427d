//! Header rewriting towards one endpoint: connection bridging towards an address (Cepheus III.B), Ethernet addresses and QPN towards
//! an adjacent switch.
//!
//! The payload is never read. The IPv4 checksum and the ICRC follow from the bytes that change; a frame that came in
//! corrupted leaves corrupted, and the receiver drops it.

use core::net::Ipv4Addr;

use castnet_rules::Endpoint;
use castnet_wire::icrc::{self, HeaderDelta, Shift};
use castnet_wire::rewrite::set_macs;
use castnet_wire::{FrameBuf, PortId, Qpn, Reth, RoceHeader};

use crate::output::{Output, Ports};
use crate::tables::next_hops::NextHops;

/// How frames to one path are rewritten: nine bytes. Its port is not among them: the group's set of ports, or its table of
/// endpoints, tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leg {
    /// The address that frames to it are for: a member's, or that of a switch behind routers. Zeros, which nobody has, towards an
    /// adjacent switch.
    pub(crate) ip: [u8; 4],
    pub(crate) qpn: [u8; 3],
    next_hop: [u8; 2],
}

impl Leg {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        Self {
            ip: endpoint.next_hop.ip().map_or([0; 4], |ip| ip.octets()),
            qpn: endpoint.next_hop.qpn().to_bytes(),
            next_hop: [0; 2],
        }
    }

    /// Whether frames to it are for an address of its own, and its frames come from there.
    pub(crate) fn is_addressed(&self) -> bool {
        self.ip != [0; 4]
    }

    /// Gives it a place among the next hops' Ethernet addresses.
    pub(crate) fn bind(&mut self, place: u16) {
        self.next_hop = place.to_be_bytes();
    }

    /// Its place among the next hops' Ethernet addresses.
    pub(crate) const fn next_hop(&self) -> u16 {
        u16::from_be_bytes(self.next_hop)
    }
}

/// IPv4, UDP and BTH.
const FIXED: usize = 40;

/// What rewriting one frame needs at every leg, worked out once.
pub(super) struct Bridge<'a> {
    pub(super) header: &'a RoceHeader,
    pub(super) mcst_id: Ipv4Addr,
    /// ICRC of the frame as it came in.
    icrc: u32,
    /// How the ICRC changes by the new source address.
    from_source: HeaderDelta,
    /// The sum that the IPv4 checksum complements (RFC 1624), with the new source address and without a destination.
    sum: u32,
}

/// The RETH that a next hop with an address gets.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) in_range: bool,
}

impl Target {
    pub(super) fn as_it_came(reth: &Reth) -> Self {
        Self {
            va: reth.va,
            rkey: reth.rkey,
            in_range: true,
        }
    }
}

/// The two words of an address.
#[inline]
pub(crate) const fn address_sum(ip: Ipv4Addr) -> u32 {
    let bits = ip.to_bits();
    (bits >> 16) + (bits & 0xFFFF)
}

impl<'a> Bridge<'a> {
    #[inline(always)]
    pub(super) fn new(
        header: &'a RoceHeader,
        src: Ipv4Addr,
        mcst_id: Ipv4Addr,
        frame: &impl FrameBuf,
    ) -> Self {
        let checksum = frame
            .head()
            .get(header.l3 + 10..)
            .and_then(|b| b.first_chunk::<2>());
        let checksum = checksum.map_or(0, |b| u16::from_be_bytes(*b));
        // The McstID takes the source's place and leaves the destination's, so of addresses only the source is taken out.
        let sum = u32::from(!checksum) + 2 * 0xFFFF - address_sum(src);
        Self {
            header,
            mcst_id,
            icrc: icrc::read(frame, header.frame_len).unwrap_or_default(),
            from_source: HeaderDelta::src(src, mcst_id),
            sum,
        }
    }

    /// The IPv4 checksum with `dst` as destination.
    #[inline]
    fn checksum(&self, dst: Ipv4Addr) -> u16 {
        let sum = self.sum + address_sum(dst);
        let sum = (sum & 0xFFFF) + (sum >> 16);
        !((sum & 0xFFFF) + (sum >> 16)) as u16
    }

    /// Turns a private copy of the frame into what the next hop with an address at `leg` expects.
    #[inline(always)]
    fn write(&self, leg: &Leg, target: Option<Target>, operator: Option<&Shift>, copy: &mut impl FrameBuf) {
        let header = self.header;
        let (ip, qpn) = (Ipv4Addr::from(leg.ip), Qpn::from_bytes(leg.qpn));
        let delta = self
            .from_source
            .and(HeaderDelta::dst(self.mcst_id, ip))
            .and(HeaderDelta::dest_qp(header.bth.dest_qp, qpn));
        let Some((fixed, ext)) = copy
            .head_mut()
            .get_mut(header.l3..)
            .and_then(|b| b.split_first_chunk_mut::<FIXED>())
        else {
            debug_assert!(
                false,
                "a frame that was parsed has its headers, and so have its copies"
            );
            return;
        };
        fixed[10..12].copy_from_slice(&self.checksum(ip).to_be_bytes());
        fixed[12..16].copy_from_slice(&self.mcst_id.octets());
        fixed[16..20].copy_from_slice(&leg.ip);
        fixed[26..28].copy_from_slice(&[0; 2]);
        fixed[33..36].copy_from_slice(&leg.qpn);
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
}

impl Bridge<'_> {
    /// Turns a private copy of the frame into what an adjacent switch expects that has another QPN.
    #[cold]
    fn write_qpn(&self, qpn: Qpn, copy: &mut impl FrameBuf) {
        let header = self.header;
        let head = copy.head_mut().get_mut(header.l3..);
        let Some(fixed) = head.and_then(|b| b.first_chunk_mut::<FIXED>()) else {
            debug_assert!(
                false,
                "a frame that was parsed has its headers, and so have its copies"
            );
            return;
        };
        fixed[26..28].copy_from_slice(&[0; 2]);
        fixed[33..36].copy_from_slice(&qpn.to_bytes());
        let change = HeaderDelta::dest_qp(header.bth.dest_qp, qpn).at_bth();
        let change = icrc::shift(change, header.after_bth());
        icrc::write(copy, header.frame_len, self.icrc ^ change);
    }
}

/// Bytes between the last header that is rewritten and the ICRC.
pub(super) fn bytes_after(header: &RoceHeader) -> usize {
    header.after_reth().unwrap_or(header.after_bth())
}

/// What copies of one frame need on their way out.
pub(super) struct Way<'a> {
    pub(super) bridge: Bridge<'a>,
    /// For the bytes between the last header that is rewritten and the ICRC.
    pub(super) operator: Option<&'a Shift>,
    pub(super) ports: &'a Ports,
    pub(super) next_hops: &'a NextHops,
}

impl Way<'_> {
    /// Turns a private copy of the frame into what the next hop behind `leg` expects.
    #[inline(always)]
    pub(super) fn rewrite(&self, leg: &Leg, port: PortId, target: Option<Target>, copy: &mut impl FrameBuf) {
        set_macs(
            copy.head_mut(),
            self.next_hops.get(leg.next_hop()),
            self.ports.mac(port),
        );
        if leg.is_addressed() {
            self.bridge.write(leg, target, self.operator, copy);
            return;
        }
        let qpn = Qpn::from_bytes(leg.qpn);
        if qpn != self.bridge.header.bth.dest_qp {
            self.bridge.write_qpn(qpn, copy);
        }
    }
}

/// Makes of `frame` what the next hop behind `leg` expects: for kinds that send each frame on to one endpoint. A WRITE keeps
/// its address and key.
pub(crate) fn bridge(
    output: &mut Output,
    mcst_id: Ipv4Addr,
    (leg, port): (&Leg, PortId),
    header: &RoceHeader,
    src: Ipv4Addr,
    frame: &mut impl FrameBuf,
) {
    let way = Way {
        bridge: Bridge::new(header, src, mcst_id, frame),
        operator: output.shifts.find(bytes_after(header)),
        ports: &output.ports,
        next_hops: &output.next_hops,
    };
    way.rewrite(leg, port, header.reth.as_ref().map(Target::as_it_came), frame);
}
