//! Copies of a data frame to paths: header rewriting at the legs whose next hop is a member (connection bridging,
//! Cepheus III.B), Ethernet addresses alone towards other switches.
//!
//! The payload is never read. The IPv4 checksum and the ICRC follow from the bytes that change; a frame that came in
//! corrupted leaves corrupted, and the receiver drops it.

use core::net::Ipv4Addr;

use castnet_collective::{PathId, PathSet};
use castnet_rules::RemoteMemory;
use castnet_wire::icrc::{self, HeaderDelta, Shift};
use castnet_wire::{DropReason, FrameBuf, MacAddr, PortId, Qpn, Reth, RoceHeader};

use crate::counters::{Counters, PathCounters};
use crate::egress::Egress;
use crate::engine::Ports;
use crate::group::{Cold, Group, Leg};
use crate::multicast::Tools;
use crate::next_hops::NextHops;
use crate::pipeline::Cx;
use crate::port_set::PortSet;
use crate::trace::{Observer, Stage, Step, Verdict};

/// IPv4, UDP and BTH.
const FIXED: usize = 40;

/// What rewriting one frame needs at every leg, worked out once.
struct Bridge<'a> {
    header: &'a RoceHeader,
    mcst_id: Ipv4Addr,
    /// ICRC of the frame as it came in.
    icrc: u32,
    /// How the ICRC changes by the new source address.
    from_source: HeaderDelta,
    /// The sum that the IPv4 checksum complements (RFC 1624), with the new source address and without a destination.
    sum: u32,
}

/// The RETH that a member gets.
#[derive(Clone, Copy)]
struct Target {
    va: u64,
    rkey: u32,
    in_range: bool,
}

impl Target {
    /// The sender's address is relative to the group's base. A WRITE outside the memory that the member named leaves with
    /// a key and an address that no memory has, so that the receiver itself refuses it (NAK, remote access error) and the
    /// source's connection hears of it; were it dropped here, the source would repeat it until its retries are used up.
    fn of(cold: &Cold, path: PathId, reth: &Reth) -> Self {
        let offset = reth.va.wrapping_sub(cold.va_base);
        let fits = |m: &&RemoteMemory| reth.va >= cold.va_base && m.contains(offset, reth.dma_len.into());
        match cold.memory(path).filter(fits) {
            Some(memory) => Self {
                va: memory.va.wrapping_add(offset),
                rkey: memory.rkey,
                in_range: true,
            },
            // A WRITE of nothing touches no memory, and its key is not looked at (IBA 9.7.4.1.5).
            None if reth.dma_len == 0 => Self::as_it_came(reth),
            None => Self {
                va: u64::MAX,
                rkey: 0,
                in_range: false,
            },
        }
    }

    fn as_it_came(reth: &Reth) -> Self {
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
    fn new(header: &'a RoceHeader, src: Ipv4Addr, mcst_id: Ipv4Addr, frame: &impl FrameBuf) -> Self {
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

    /// Turns a private copy of the frame into what the member at `leg` expects.
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
    /// Turns a private copy of the frame into what the switch at `leg` expects, where the QPN is another there.
    #[cold]
    fn write_qpn(&self, qpn: Qpn, copy: &mut impl FrameBuf) {
        let header = self.header;
        let head = copy.head_mut().get_mut(header.l3..);
        let Some(fixed) = head.and_then(|b| b.first_chunk_mut::<FIXED>()) else {
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
fn bytes_after(header: &RoceHeader) -> usize {
    header.after_reth().unwrap_or(header.after_bth())
}

/// The paths of `to` whose port is up; the others are counted as lost.
#[cold]
fn reachable(group: &mut Group, up: PortSet, counters: &mut Counters, to: PathSet) -> PathSet {
    let mut left = to;
    for path in to {
        if group.hot.port(path).is_none_or(|port| !up.contains(port)) {
            left.remove(path);
            lose(group, counters, path);
        }
    }
    left
}

#[cold]
pub(crate) fn lose(group: &mut Group, counters: &mut Counters, path: PathId) {
    counters.totals.copies_lost += 1;
    group.cold.exceptions.lost += 1;
    if let Some(counters) = group.paths.get_mut(path.index()) {
        counters.lost += 1;
    }
}

/// Sends `frame` to the paths of `to`: copies to all but the last, the frame itself to that.
#[inline]
pub(crate) fn replicate<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    tools: &mut Tools<'_>,
    group: &mut Group,
    header: &RoceHeader,
    src: Ipv4Addr,
    to: PathSet,
    frame: E::Buf,
) -> Verdict {
    let Tools {
        ports,
        next_hops,
        shifts,
        counters,
        ..
    } = tools;
    let all_up = group.hot.ports.and(ports.up) == group.hot.ports;
    let to = if all_up {
        to
    } else {
        reachable(group, ports.up, counters, to)
    };
    let Some(last) = to.bits().checked_ilog2() else {
        return cx.drop(Stage::Replicate, DropReason::PortDown, || {
            "the ports of all its paths are down".into()
        });
    };
    let way = Way {
        bridge: Bridge::new(header, src, group.hot.mcst_id.0, &frame),
        operator: shifts.find(bytes_after(header)),
        ports,
        next_hops,
    };
    // With Ethernet padding the ICRC is not the trailer: it must be in the private head.
    let padded = header.frame_len != frame.length();
    let private = if padded {
        header.frame_len
    } else {
        header.payload_at
    };
    let length = frame.length();
    let (mut members, mut sent) = (group.hot.ports, 0u64);
    for path in 0..last {
        let Some(port) = group.hot.next_port(&mut members, path as usize) else {
            break;
        };
        if to.bits() >> path & 1 == 0 {
            continue;
        }
        if let Some(copy) = cx.egress.replicate(port, &frame, private) {
            way.leave(cx, counters, group, port, path, copy);
            sent += 1;
        } else if let Some(path) = PathId::new(path as u8) {
            let who = || format!("{} skipped", group.cold.describe(path));
            cx.observer
                .step(|| Step::new(Stage::Replicate, who(), "no buffer"));
            lose(group, counters, path);
        }
    }
    if let Some(port) = group.hot.next_port(&mut members, last as usize) {
        way.leave(cx, counters, group, port, last, frame);
        sent += 1;
    }
    let hot = &mut group.hot.counters;
    hot.copies_out += sent;
    hot.copy_bytes_out += sent * length as u64;
    counters.totals.copies += sent.saturating_sub(1);
    Verdict::Replicated
}

/// What copies of one frame need on their way out.
struct Way<'a> {
    bridge: Bridge<'a>,
    /// For the bytes between the last header that is rewritten and the ICRC.
    operator: Option<&'a Shift>,
    ports: &'a Ports,
    next_hops: &'a NextHops,
}

impl Way<'_> {
    /// Turns a private copy of the frame into what the next hop behind `leg` expects.
    #[inline(always)]
    fn rewrite(&self, leg: &Leg, port: PortId, target: Option<Target>, copy: &mut impl FrameBuf) {
        set_macs(
            copy.head_mut(),
            self.next_hops.get(leg.next_hop()),
            self.ports.mac(port),
        );
        if leg.is_host() {
            self.bridge.write(leg, target, self.operator, copy);
            return;
        }
        let qpn = Qpn::from_bytes(leg.qpn);
        if qpn != self.bridge.header.bth.dest_qp {
            self.bridge.write_qpn(qpn, copy);
        }
    }

    /// Rewrites a copy for its path and sends it.
    #[inline(always)]
    fn leave<E: Egress, O: Observer>(
        &self,
        cx: &mut Cx<'_, E, O>,
        counters: &mut Counters,
        group: &mut Group,
        port: PortId,
        path: u32,
        mut copy: E::Buf,
    ) {
        let Some(leg) = group.hot.legs.get(path as usize) else {
            return;
        };
        let reth = self.bridge.header.reth.as_ref().filter(|_| leg.is_host());
        let target = reth.and_then(|reth| aim(&mut group.cold, &mut group.paths, path, reth));
        self.rewrite(leg, port, target, &mut copy);
        cx.observer.step(|| {
            let who = PathId::new(path as u8).map(|p| group.cold.describe(p));
            explain(who.unwrap_or_default(), leg, target, &self.bridge)
        });
        cx.send(counters, port, copy);
    }
}

/// Where a WRITE lands at the member behind `path`; counts it where that is nowhere.
fn aim(cold: &mut Cold, paths: &mut [PathCounters], path: u32, reth: &Reth) -> Option<Target> {
    let target = Target::of(cold, PathId::new(path as u8)?, reth);
    if !target.in_range {
        cold.exceptions.out_of_range += 1;
        if let Some(counters) = paths.get_mut(path as usize) {
            counters.out_of_range += 1;
        }
    }
    Some(target)
}

fn explain(who: String, leg: &Leg, target: Option<Target>, bridge: &Bridge<'_>) -> Step {
    let (ip, qpn) = (Ipv4Addr::from(leg.ip), Qpn::from_bytes(leg.qpn));
    if !leg.is_host() {
        let why = match qpn == bridge.header.bth.dest_qp {
            true => "next hop is a switch: Ethernet addresses rewritten, the rest as it came".into(),
            false => format!("next hop is a switch: Ethernet addresses and QPN rewritten, qpn {qpn}"),
        };
        return Step::new(Stage::Replicate, who, why);
    }
    let mut facts = vec![format!(
        "src {}, dst {ip}, qpn {qpn}; checksum and ICRC by difference",
        bridge.mcst_id
    )];
    match target {
        Some(Target {
            va,
            rkey,
            in_range: true,
        }) => facts.push(format!("RETH va {va:#x}, rkey {rkey:#x}")),
        Some(_) => facts.push("WRITE outside the member's memory: sent without a valid key".into()),
        None => {}
    }
    Step::new(Stage::Replicate, who, "next hop is a member: connection bridged").with(facts)
}

/// Makes of `frame` what the next hop behind `leg` expects: for kinds that send each frame on to one endpoint. A WRITE keeps
/// its address and key.
pub(crate) fn bridge(
    tools: &mut Tools<'_>,
    mcst_id: Ipv4Addr,
    (leg, port): (&Leg, PortId),
    header: &RoceHeader,
    src: Ipv4Addr,
    frame: &mut impl FrameBuf,
) {
    let way = Way {
        bridge: Bridge::new(header, src, mcst_id, frame),
        operator: tools.shifts.find(bytes_after(header)),
        ports: tools.ports,
        next_hops: tools.next_hops,
    };
    way.rewrite(leg, port, header.reth.as_ref().map(Target::as_it_came), frame);
}

/// Writes both Ethernet addresses.
#[inline]
pub(crate) fn set_macs(head: &mut [u8], dst: MacAddr, src: MacAddr) {
    castnet_wire::rewrite::set_macs(head, dst, src);
}
