//! Sends copies of data to paths. Copies to a member (connection bridging, Cepheus III.B) or to a switch behind routers get new headers,
//! copies to adjacent switches new Ethernet addresses and, if it differs, a new QPN.

use core::net::Ipv4Addr;

use castnet_collective::PathId;
use castnet_rules::RemoteMemory;
use castnet_wire::ethernet::set_macs;
use castnet_wire::{DropReason, FrameBuf, MacAddr, PortId, Qpn, Reth, RoceHeader};

use crate::egress::Egress;
use crate::group::multicast::context::{Cold, Group};
use crate::group::multicast::core::{Way, hops};
use crate::group::rewrite::{CopyRewriter, FrameRewrite, PathDestination, Target, set_psn};
use crate::observe::counters::{Counters, PathCounters};
use crate::observe::trace::{Observer, Stage, Step, Verdict};
use crate::output::Output;
use crate::output::copies::Copies;
use crate::output::cx::Cx;

#[cold]
pub(crate) fn count_lost_copy(group: &mut Group, counters: &mut Counters, path: PathId) {
    counters.totals.copies_lost += 1;
    group.cold.exceptions.lost += 1;
    if let Some(counters) = group.paths.get_mut(path.index()) {
        counters.lost += 1;
    }
}

/// Of a copy to a path or, for an address of a static core, to all its paths.
#[cold]
pub(super) fn count_lost_copies(
    group: &mut Group,
    counters: &mut Counters,
    (path, core): (PathId, Option<[u8; 4]>),
) {
    let Some(address) = core else {
        return count_lost_copy(group, counters, path);
    };
    for i in 0..group.cold.core.paths(address).len() {
        if let Some(path) = group.cold.core.paths(address).get(i).copied() {
            count_lost_copy(group, counters, path);
        }
    }
}

/// A copy that is to be sent.
#[derive(Clone, Copy)]
struct Leg {
    path: PathId,
    /// To an address of a static core; with the next hop's Ethernet address if that is not the path's.
    core: Option<([u8; 4], Option<MacAddr>)>,
}

/// The copies of one packet.
struct Legs<'a, B> {
    rewriter: CopyRewriter<'a>,
    copies: Copies<B, Leg>,
}

impl<B: FrameBuf> Legs<'_, B> {
    #[inline(always)]
    fn add<E: Egress<Buf = B>, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        counters: &mut Counters,
        group: &mut Group,
        (port, leg): (PortId, Leg),
    ) {
        let Some((port, leg, copy)) = self.copies.add(cx.egress, port, leg) else {
            return;
        };
        if let Some(copy) = copy {
            return self.rewriter.send_copy(cx, counters, group, (port, leg), copy);
        }
        let who = || format!("{} skipped", group.cold.describe(leg.path));
        cx.observer
            .step(|| Step::new(Stage::Replicate, who(), "no buffer"));
        let core = leg.core.map(|(address, _)| address);
        count_lost_copies(group, counters, (leg.path, core));
    }

    /// One copy for each next hop of the switch's own route to the address, or one by the path's port.
    fn add_core<E: Egress<Buf = B>, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        counters: &mut Counters,
        group: &mut Group,
        (port, leg): (PortId, Leg),
        address: [u8; 4],
    ) {
        let CopyRewriter {
            packet,
            ports,
            routes,
            ..
        } = &self.rewriter;
        let addresses = (packet.original.mcst_id, address.into(), packet.header.sport);
        let packet_len = self.copies.frame().length().saturating_sub(packet.header.l3);
        for (port, mac) in hops(routes, ports, addresses, packet_len, port) {
            let core = Some((address, mac));
            self.add(cx, counters, group, (port, Leg { core, ..leg }));
        }
    }
}

/// Sends to all paths that take it, those that have not acknowledged it: copies, and the frame itself to the last path.
#[inline]
pub(crate) fn replicate<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    group: &mut Group,
    header: &RoceHeader,
    frame: E::Buf,
) -> Verdict {
    // With padding the ICRC is not in the trailer: it must lie in the private head.
    let padded = header.frame_len != frame.length();
    let private = if padded {
        header.frame_len
    } else {
        header.payload_at
    };
    let length = frame.length();
    let (rewriter, counters) = CopyRewriter::new(output, header, group.hot.mcst_id.0, &frame);
    let mut legs = Legs {
        rewriter,
        copies: Copies::new(frame, private),
    };
    let mut members = group.hot.ports;
    group.cold.core.begin();
    for path in (0..group.hot.destinations.len()).map_while(PathId::new) {
        let Some(port) = group.hot.next_port(&mut members, path.index()) else {
            counters.invariant_violated("each path has a port");
            break;
        };
        if !group.hot.machine.takes(path, header.bth.psn) {
            continue;
        }
        if !legs.rewriter.ports.up.contains(port) {
            count_lost_copy(group, counters, path);
            continue;
        }
        let machine = &group.hot.machine;
        let takes = |path| machine.takes(path, header.bth.psn);
        let way = group.cold.core.way(path, takes);
        let leg = (port, Leg { path, core: None });
        match way {
            Way::Own => legs.add(cx, counters, group, leg),
            Way::Core(address) => legs.add_core(cx, counters, group, leg, address),
            Way::Sent => {}
        }
    }
    let Legs { rewriter, copies } = legs;
    let copied = copies.sent;
    let Some((port, leg, frame)) = copies.finish() else {
        return cx.drop(Stage::Replicate, DropReason::PortDown, || {
            "the ports of all its paths are down".into()
        });
    };
    rewriter.send_copy(cx, counters, group, (port, leg), frame);
    let hot = &mut group.hot.counters;
    hot.copies_out += copied + 1;
    hot.copy_bytes_out += (copied + 1) * length as u64;
    counters.totals.copies += copied;
    Verdict::Replicated
}

/// Sends a private copy to one path.
pub(super) fn send_one<E: Egress, O: Observer>(
    cx: &mut Cx<'_, E, O>,
    output: &mut Output,
    group: &mut Group,
    header: &RoceHeader,
    (port, path): (PortId, PathId),
    copy: E::Buf,
) {
    let (rewriter, counters) = CopyRewriter::new(output, header, group.hot.mcst_id.0, &copy);
    let leg = (port, Leg { path, core: None });
    rewriter.send_copy(cx, counters, group, leg, copy);
}

impl Target {
    /// The address and key of a WRITE for a path. The sender's address is relative to the group's base.
    ///
    /// A WRITE outside the member's memory gets an invalid key and address, so that the receiver refuses it (NAK, remote access error)
    /// and the source's connection fails with that error. If it were dropped here, the source would repeat it until its retries are
    /// used up. Towards a switch the RETH does not change: the switch next to a member has its memory.
    fn of(cold: &Cold, path: PathId, reth: &Reth) -> Self {
        let Some(host) = cold.host(path) else {
            return Self::unchanged(reth);
        };
        let offset = reth.va.wrapping_sub(cold.va_base);
        let fits = |m: &&RemoteMemory| reth.va >= cold.va_base && m.contains(offset, reth.dma_len.into());
        match host.memory().filter(fits) {
            Some(memory) => Self {
                va: memory.va.wrapping_add(offset),
                rkey: memory.rkey,
                in_range: true,
            },
            // No key is checked, because no memory is touched (IBA 9.7.4.1.5).
            None if reth.dma_len == 0 => Self::unchanged(reth),
            None => Self {
                va: u64::MAX,
                rkey: 0,
                in_range: false,
            },
        }
    }
}

impl CopyRewriter<'_> {
    #[inline(always)]
    fn send_copy<E: Egress, O: Observer>(
        &self,
        cx: &mut Cx<'_, E, O>,
        counters: &mut Counters,
        group: &mut Group,
        (port, Leg { path, core }): (PortId, Leg),
        mut copy: E::Buf,
    ) {
        let Some(dest) = group.hot.destinations.get(path.index()) else {
            return counters.invariant_violated("each path has a leg");
        };
        if let Some((address, mac)) = core {
            let target = self.packet.header.reth.as_ref().map(Target::unchanged);
            self.rewrite(&dest.with_ip(address), port, target, &mut copy);
            if let Some(mac) = mac {
                set_macs(copy.head_mut(), mac, self.ports.mac(port));
            }
            cx.observer.step(|| explain_core(&group.cold, dest, address));
            return cx.send(counters, port, copy);
        }
        let reth = self.packet.header.reth.as_ref().filter(|_| dest.is_addressed());
        let target = reth.map(|reth| write_target(&mut group.cold, &mut group.paths, path, reth));
        self.rewrite(dest, port, target, &mut copy);
        let psn = self.packet.header.bth.psn;
        let own = group.hot.machine.member_psn(path, psn);
        if own != psn {
            set_psn(&mut copy, self.packet.header, psn, own);
        }
        cx.observer
            .step(|| explain(&group.cold, path, dest, target, &self.packet));
        cx.send(counters, port, copy);
    }
}

/// The address and key for `path`. Counts a WRITE outside the member's memory.
fn write_target(cold: &mut Cold, paths: &mut [PathCounters], path: PathId, reth: &Reth) -> Target {
    let target = Target::of(cold, path, reth);
    if !target.in_range {
        cold.exceptions.out_of_range += 1;
        if let Some(counters) = paths.get_mut(path.index()) {
            counters.out_of_range += 1;
        }
    }
    target
}

fn explain_core(cold: &Cold, dest: &PathDestination, address: [u8; 4]) -> Step {
    let (paths, qpn) = (cold.core.paths(address), Qpn::from_bytes(dest.qpn));
    let what = format!("one copy for {} paths", paths.len());
    let why = "next hop is a static core: addressed to the multicast address that leads to all of them";
    let mut facts = vec![format!("dst {}, qpn {qpn}", Ipv4Addr::from(address))];
    facts.extend(paths.iter().map(|path| cold.describe(*path)));
    Step::new(Stage::Replicate, what, why).with(facts)
}

fn explain(
    cold: &Cold,
    path: PathId,
    dest: &PathDestination,
    target: Option<Target>,
    packet: &FrameRewrite<'_>,
) -> Step {
    let (who, ip, qpn) = (
        cold.describe(path),
        Ipv4Addr::from(dest.ip),
        Qpn::from_bytes(dest.qpn),
    );
    let mcst_id = packet.original.mcst_id;
    if !dest.is_addressed() {
        let why = match packet.original.change(dest) {
            None => "next hop is a switch: Ethernet addresses rewritten, the rest as it came".into(),
            Some(_) => format!("next hop is a switch: rewritten, dst {mcst_id}, qpn {qpn}"),
        };
        return Step::new(Stage::Replicate, who, why);
    }
    let mut facts = vec![format!(
        "src {mcst_id}, dst {ip}, qpn {qpn}; checksum and ICRC by difference"
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
    let why = match cold.host(path) {
        Some(_) => "next hop is a member: connection bridged",
        None => "next hop is a switch behind routers: addressed to it",
    };
    Step::new(Stage::Replicate, who, why).with(facts)
}
