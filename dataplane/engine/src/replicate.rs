//! Copies of a data frame to paths: header rewriting at the legs whose next hop is a member (connection bridging,
//! Cepheus III.B), Ethernet addresses alone towards other switches.
//!
//! The payload is never read. The IPv4 checksum and the ICRC follow from the bytes that change; a frame that came in
//! corrupted leaves corrupted, and the receiver drops it.

use core::net::Ipv4Addr;

use castnet_collective::{PathId, PathSet};
use castnet_rules::RemoteMemory;
use castnet_wire::icrc::{self, HeaderDelta};
use castnet_wire::ipv4::ChecksumDelta;
use castnet_wire::{DropReason, FrameBuf, MacAddr, PortId, Qpn, Reth, RoceHeader};

use crate::egress::Egress;
use crate::engine::Shifts;
use crate::group::{Cold, Group, Leg};
use crate::multicast::Tools;
use crate::pipeline::Cx;
use crate::trace::{Observer, Stage, Step, Verdict};

/// IPv4, UDP and BTH.
const FIXED: usize = 40;

/// What rewriting one frame needs at every leg.
struct Bridge<'a> {
    header: &'a RoceHeader,
    mcst_id: Ipv4Addr,
    /// ICRC of the frame as it came in.
    icrc: u32,
    /// How the ICRC changes by the new source address.
    from_source: HeaderDelta,
    /// IPv4 checksum as it came in, and how it changes by the new source address.
    checksum: u16,
    checksum_from_source: ChecksumDelta,
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
        let offset = reth.va.wrapping_sub(cold.rule.va_base);
        let fits =
            |m: &&RemoteMemory| reth.va >= cold.rule.va_base && m.contains(offset, reth.dma_len.into());
        match cold.memory(path).filter(fits) {
            Some(memory) => Self {
                va: memory.va.wrapping_add(offset),
                rkey: memory.rkey,
                in_range: true,
            },
            // A WRITE of nothing touches no memory, and its key is not looked at (IBA 9.7.4.1.5).
            None if reth.dma_len == 0 => Self {
                va: reth.va,
                rkey: reth.rkey,
                in_range: true,
            },
            None => Self {
                va: u64::MAX,
                rkey: 0,
                in_range: false,
            },
        }
    }
}

impl<'a> Bridge<'a> {
    fn new(header: &'a RoceHeader, src: Ipv4Addr, mcst_id: Ipv4Addr, frame: &impl FrameBuf) -> Self {
        let checksum = frame
            .head()
            .get(header.l3 + 10..)
            .and_then(|b| b.first_chunk::<2>());
        Self {
            header,
            mcst_id,
            icrc: icrc::read(frame, header.frame_len).unwrap_or_default(),
            from_source: HeaderDelta::src(src, mcst_id),
            checksum: checksum.map_or(0, |b| u16::from_be_bytes(*b)),
            checksum_from_source: ChecksumDelta::address(src, mcst_id),
        }
    }

    /// Turns a private copy of the frame into what the member at `leg` expects.
    #[inline]
    fn write(&self, leg: &Leg, target: Option<Target>, shifts: &mut Shifts, copy: &mut impl FrameBuf) {
        let header = self.header;
        let (ip, qpn) = (Ipv4Addr::from(leg.ip), Qpn::from_bytes(leg.qpn));
        let checksum = self
            .checksum_from_source
            .and(ChecksumDelta::address(self.mcst_id, ip))
            .apply(self.checksum);
        let Some((fixed, ext)) = copy
            .head_mut()
            .get_mut(header.l3..)
            .and_then(|b| b.split_first_chunk_mut::<FIXED>())
        else {
            return;
        };
        fixed[10..12].copy_from_slice(&checksum.to_be_bytes());
        fixed[12..16].copy_from_slice(&self.mcst_id.octets());
        fixed[16..20].copy_from_slice(&leg.ip);
        fixed[26..28].copy_from_slice(&[0; 2]);
        fixed[33..36].copy_from_slice(&leg.qpn);
        let delta = self
            .from_source
            .and(HeaderDelta::dst(self.mcst_id, ip))
            .and(HeaderDelta::dest_qp(Qpn::VIRTUAL, qpn));
        let change = match (target, header.reth, ext.first_chunk_mut::<12>()) {
            (Some(target), Some(reth), Some(bytes)) => {
                bytes[..8].copy_from_slice(&target.va.to_be_bytes());
                bytes[8..].copy_from_slice(&target.rkey.to_be_bytes());
                let delta = delta
                    .and(HeaderDelta::va(reth.va, target.va))
                    .and(HeaderDelta::rkey(reth.rkey, target.rkey));
                shifts.apply(delta.at_reth(), header.after_bth() - Reth::LEN)
            }
            _ => shifts.apply(delta.at_bth(), header.after_bth()),
        };
        icrc::write(copy, header.frame_len, self.icrc ^ change);
    }
}

/// The paths of `to` whose port is up; the others are counted as lost.
#[cold]
fn reachable(group: &mut Group, tools: &mut Tools<'_>, to: PathSet) -> PathSet {
    let mut left = to;
    for (i, port) in group.hot.ports.into_iter().enumerate() {
        let Some(path) = PathId::new(i as u8).filter(|p| to.contains(*p)) else {
            continue;
        };
        if !tools.ports.up.contains(port) {
            left.remove(path);
            lose(group, tools, path);
        }
    }
    left
}

#[cold]
fn lose(group: &mut Group, tools: &mut Tools<'_>, path: PathId) {
    tools.counters.totals.copies_lost += 1;
    group.cold.exceptions.lost += 1;
    if let Some(counters) = group.cold.paths.get_mut(path.index()) {
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
    let all_up = group.hot.ports.and(tools.ports.up) == group.hot.ports;
    let to = if all_up { to } else { reachable(group, tools, to) };
    let Some(last) = to.bits().checked_ilog2() else {
        return cx.drop(Stage::Replicate, DropReason::PortDown, || {
            "the ports of all its paths are down".into()
        });
    };
    let bridge = Bridge::new(header, src, group.hot.mcst_id.0, &frame);
    // With Ethernet padding the ICRC is not the trailer: it must be in the private head.
    let padded = header.frame_len != frame.length();
    let private = if padded {
        header.frame_len
    } else {
        header.payload_at
    };
    let length = frame.length();
    let (mut ports, mut path, mut sent) = (group.hot.ports, 0, 0u64);
    while path < last {
        let Some(port) = ports.next() else { break };
        if to.bits() >> path & 1 != 0 {
            match cx.egress.replicate(port, &frame, private) {
                Some(copy) => {
                    leave(cx, tools, group, &bridge, port, path, copy);
                    sent += 1;
                }
                None => {
                    if let Some(path) = PathId::new(path as u8) {
                        cx.observer.step(|| {
                            Step::new(
                                Stage::Replicate,
                                format!("{} skipped", group.cold.describe(path)),
                                "no buffer",
                            )
                        });
                        lose(group, tools, path);
                    }
                }
            }
        }
        path += 1;
    }
    if let Some(port) = ports.next() {
        leave(cx, tools, group, &bridge, port, last, frame);
        sent += 1;
    }
    let counters = &mut group.hot.counters;
    counters.data_out += sent;
    counters.data_bytes_out += sent * length as u64;
    tools.counters.totals.copies += sent.saturating_sub(1);
    Verdict::Replicated
}

/// Rewrites a copy for its path and sends it.
#[inline]
fn leave<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    tools: &mut Tools<'_>,
    group: &mut Group,
    bridge: &Bridge<'_>,
    port: PortId,
    path: u32,
    mut copy: E::Buf,
) {
    let Some(leg) = group.hot.legs.get(path as usize) else {
        return;
    };
    set_macs(
        copy.head_mut(),
        tools.next_hops.get(leg.next_hop()),
        tools.ports.mac(port),
    );
    if leg.is_host() {
        let mut target = None;
        if let (Some(reth), Some(path)) = (&bridge.header.reth, PathId::new(path as u8)) {
            let aimed = Target::of(&group.cold, path, reth);
            if !aimed.in_range {
                group.cold.exceptions.out_of_range += 1;
                if let Some(counters) = group.cold.paths.get_mut(path.index()) {
                    counters.out_of_range += 1;
                }
            }
            target = Some(aimed);
        }
        bridge.write(leg, target, tools.shifts, &mut copy);
        cx.observer.step(|| explain(group, leg, path, target, bridge));
    } else {
        cx.observer.step(|| {
            let who = PathId::new(path as u8)
                .map(|p| group.cold.describe(p))
                .unwrap_or_default();
            Step::new(
                Stage::Replicate,
                who,
                "next hop is a switch: Ethernet addresses rewritten, the rest as it came",
            )
        });
    }
    cx.send(tools.counters, port, copy);
}

fn explain(group: &Group, leg: &Leg, path: u32, target: Option<Target>, bridge: &Bridge<'_>) -> Step {
    let who = PathId::new(path as u8)
        .map(|p| group.cold.describe(p))
        .unwrap_or_default();
    let (ip, qpn) = (Ipv4Addr::from(leg.ip), Qpn::from_bytes(leg.qpn));
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

/// Writes both Ethernet addresses.
#[inline]
pub(crate) fn set_macs(head: &mut [u8], dst: MacAddr, src: MacAddr) {
    castnet_wire::rewrite::set_macs(head, dst, src);
}
