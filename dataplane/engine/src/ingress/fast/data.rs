//! The fast path of data: a plain packet of the source with the PSN that comes next.
//!
//! What replicas of one source's packets get written is the same for each packet but for the IPv4 checksum and the ICRC,
//! and these change by a constant: the checksum by one for a path, the ICRC by one for a path and a frame length (the CRC is
//! linear). So it is worked out once for a run of packets; a replica then costs its copy, five stores and an XOR. Where replicas
//! borrow what comes behind their header from one another, the ICRC included, they are rewritten so that it stays what it
//! is ([`Neutral`]). The slow twin is `replicate`.

use core::net::Ipv4Addr;

use castnet_collective::PathId;
use castnet_wire::icrc::{self, HeaderDelta, Neutral};
use castnet_wire::{BATCH, Batch, DropReason, FrameBuf, MacAddr, Qpn};

use crate::egress::Egress;
use crate::engine::Engine;
use crate::group::context::Context;
use crate::group::headers::{Headers, PLAIN};
use crate::group::multicast::frame as slow;
use crate::group::multicast::replicate::lose;
use crate::group::rewrite::{Leg, address_sum};
use crate::group::services::Services;
use crate::observe::trace::{Observer, Verdict};
use crate::output::cx::Cx;

/// Packets of one source to one group, of the same length, that came one after the other and have been taken in: they leave path
/// by path, so that what a path needs is worked out once.
#[derive(Debug)]
pub(super) struct Run<B> {
    frames: Batch<B>,
    /// IPv4 checksum and ICRC of each as it came in.
    checks: [(u16, u32); BATCH],
    /// Of the group.
    slot: u32,
    /// Of the first.
    headers: Headers,
}

impl<B> Run<B> {
    pub(super) const fn new() -> Self {
        Self {
            frames: Batch::new_const(),
            checks: [(0, 0); BATCH],
            slot: 0,
            headers: Headers::NONE,
        }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// What replicas of a run have in common.
struct Common {
    mcst_id: Ipv4Addr,
    src: Ipv4Addr,
    /// The QPN that it came to.
    qpn: Qpn,
    /// How the ICRC changes by the new source address.
    from_source: HeaderDelta,
    /// The McstID takes the source's place and leaves the destination's, so of addresses only the source is taken out of the
    /// sum that the IPv4 checksum complements.
    sum: u32,
}

/// What is written into the replicas for one path.
struct Rewrite {
    /// Ethernet addresses of the next hop and of the port.
    macs: [u8; 12],
    /// IP addresses: the McstID, and the next hop's; as they came towards an adjacent switch. Zeros where nothing else is
    /// written.
    addresses: [u8; 8],
    qpn: [u8; 3],
    /// What is added to the complement of the IPv4 checksum.
    sum: u32,
    /// The register of the ICRC's change at the end of the BTH.
    register: u32,
}

impl Rewrite {
    #[inline(always)]
    fn new(common: &Common, leg: &Leg, (dst, src): (MacAddr, MacAddr)) -> Self {
        let (ip, qpn) = (Ipv4Addr::from(leg.ip), Qpn::from_bytes(leg.qpn));
        let to_qp = HeaderDelta::dest_qp(common.qpn, qpn);
        let delta = common
            .from_source
            .and(HeaderDelta::dst(common.mcst_id, ip))
            .and(to_qp);
        let mut rewrite = Self {
            macs: [0; 12],
            addresses: [0; 8],
            qpn: leg.qpn,
            sum: common.sum + address_sum(ip),
            register: delta.at_bth(),
        };
        rewrite.macs[..6].copy_from_slice(&dst.0);
        rewrite.macs[6..].copy_from_slice(&src.0);
        rewrite.addresses[..4].copy_from_slice(&common.mcst_id.octets());
        rewrite.addresses[4..].copy_from_slice(&leg.ip);
        if !leg.is_addressed() {
            rewrite.keep_addresses(common, qpn, to_qp);
        }
        rewrite
    }

    /// Towards an adjacent switch addresses stay as they came, and all else where the QPN does.
    #[inline(always)]
    fn keep_addresses(&mut self, common: &Common, qpn: Qpn, to_qp: HeaderDelta) {
        (self.sum, self.register) = (0, to_qp.at_bth());
        self.addresses = [0; 8];
        if qpn != common.qpn {
            self.addresses[..4].copy_from_slice(&common.src.octets());
            self.addresses[4..].copy_from_slice(&common.mcst_id.octets());
        }
    }

    /// Whether more than Ethernet addresses is written.
    #[inline(always)]
    fn bridges(&self) -> bool {
        let [.., a, b, c, d] = self.addresses;
        [a, b, c, d] != [0; 4]
    }

    /// Writes all but the ICRC. `sum` is added to the checksum beside what the path adds to it.
    #[inline(always)]
    fn head(&self, head: &mut [u8; PLAIN], sum: u32) {
        let sum = sum + self.sum;
        let sum = (sum & 0xFFFF) + (sum >> 16);
        let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
        head[24..26].copy_from_slice(&sum.to_be_bytes());
        head[26..34].copy_from_slice(&self.addresses);
        head[40..42].copy_from_slice(&[0; 2]);
        head[47..50].copy_from_slice(&self.qpn);
    }

    /// Into a frame whose trailer is its own. `icrc` is the original's, `change` what is added (XOR) to it.
    #[inline(always)]
    fn write(&self, (checksum, icrc): (u16, u32), change: u32, copy: &mut impl FrameBuf) {
        let Some(head) = copy.head_mut().first_chunk_mut::<PLAIN>() else {
            debug_assert!(false, "a replica has all headers");
            return;
        };
        head[..12].copy_from_slice(&self.macs);
        if self.bridges() {
            self.head(head, u32::from(!checksum));
            copy.set_trailer((icrc ^ change).to_le_bytes());
        }
    }

    /// Into one whose trailer others read.
    #[inline(always)]
    fn write_neutral(&self, checksum: u16, neutral: Neutral, copy: &mut impl FrameBuf) {
        let Some(head) = copy.head_mut().first_chunk_mut::<PLAIN>() else {
            debug_assert!(false, "a replica has all headers");
            return;
        };
        head[..12].copy_from_slice(&self.macs);
        if self.bridges() {
            let Neutral { ident, sport: [c, d] } = neutral;
            let before = u16::from_be_bytes([head[18], head[19]]);
            let ident = before ^ u16::from_be_bytes(ident);
            self.head(head, u32::from(!checksum) + u32::from(!before) + u32::from(ident));
            head[18..20].copy_from_slice(&ident.to_be_bytes());
            head[34] ^= c;
            head[35] ^= d;
        }
    }
}

impl Engine {
    /// Takes data of the group at `slot` in, where it is plain, and puts it to the `run`, which is sent before where it is another one's.
    /// Returns what has to take the slow path; nothing has changed then.
    #[inline(always)]
    pub(super) fn try_fast_data<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        run: &mut Run<E::Buf>,
        (slot, headers): (u32, &Headers),
        frame: E::Buf,
    ) -> Option<E::Buf> {
        let Some(Context::Multicast(group)) = self.groups.at_mut(slot) else {
            return Some(frame);
        };
        let hot = &mut group.hot;
        let like = !run.is_empty() && run.slot == slot && headers.is_data_like(&run.headers);
        if !like {
            let from = hot.sender(cx.ingress, headers.src(), headers.qpn(), None);
            let all_up = hot.ports.and(self.services.output.ports.up) == hot.ports;
            let usual = from == Some(hot.source) && all_up && headers.payload() <= hot.pmtu.into();
            if !usual || !headers.is_data() {
                return Some(frame);
            }
        }
        if !headers.is_sound(&frame) {
            return Some(frame);
        }
        if !hot.machine.next_data(cx.now, headers.psn()) {
            return Some(frame);
        }
        if !like {
            if !run.is_empty() {
                self.send_run(cx, run);
            }
            (run.slot, run.headers) = (slot, *headers);
        }
        if let Some(check) = run.checks.get_mut(run.frames.len()) {
            *check = (headers.checksum(), u32::from_le_bytes(frame.trailer()));
        }
        run.frames.push(frame);
        None
    }

    /// Sends a run that is not empty on its way, and leaves it empty.
    #[inline(never)]
    pub(super) fn send_run<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, run: &mut Run<E::Buf>) {
        let Some(Context::Multicast(group)) = self.groups.at_mut(run.slot) else {
            debug_assert!(false, "a run is of a group");
            for _ in run.frames.drain(..) {
                self.services
                    .output
                    .counters
                    .account(cx.ingress, Verdict::Dropped(DropReason::NotMember));
            }
            return;
        };
        let Services { output, timers, .. } = &mut self.services;
        let mcst_id = group.hot.mcst_id.0;
        let common = Common {
            mcst_id,
            src: run.headers.src(),
            qpn: run.headers.qpn(),
            from_source: HeaderDelta::src(run.headers.src(), mcst_id),
            sum: 2 * 0xFFFF - address_sum(run.headers.src()),
        };
        let (frames, length) = (run.frames.len() as u64, u64::from(run.headers.length));
        let after_bth = run.headers.payload() as usize;
        let operator = output.shifts.find(after_bth);
        let change = |rewrite: &Rewrite| match operator {
            Some(operator) => operator.apply(rewrite.register),
            None => icrc::shift(rewrite.register, after_bth),
        };
        let source = group.hot.source.index();
        // All but the source get it. The frames themselves go to the last.
        let end = group.hot.legs.len();
        let last = if source + 1 == end {
            source.saturating_sub(1)
        } else {
            end - 1
        };
        let mut others = end.saturating_sub(2);
        // One alone has nothing to lend.
        let lends = others != 0 && cx.egress.lends(group.hot.ports, length as usize);
        let mut ports = group.hot.ports;
        let mut sent = frames;
        for path in 0..last {
            let (Some(port), Some(leg)) = (group.hot.next_port(&mut ports, path), group.hot.legs.get(path))
            else {
                output.counters.broken("each path has a port and a leg");
                break;
            };
            if path == source {
                continue;
            }
            others = others.saturating_sub(1);
            let rewrite = Rewrite::new(
                &common,
                leg,
                (output.next_hops.get(leg.next_hop()), output.ports.mac(port)),
            );
            let mut copies = 0;
            if lends {
                let neutral = Neutral::of(rewrite.register);
                for (frame, &(checksum, _)) in run.frames.iter().zip(&run.checks) {
                    if let Some(mut copy) = cx.egress.lend(frame, others) {
                        rewrite.write_neutral(checksum, neutral, &mut copy);
                        cx.egress.send(port, copy);
                        copies += 1;
                    }
                }
            } else {
                let change = change(&rewrite);
                for (frame, &check) in run.frames.iter().zip(&run.checks) {
                    if let Some(mut copy) = cx.egress.replicate(port, frame, PLAIN) {
                        rewrite.write(check, change, &mut copy);
                        cx.egress.send(port, copy);
                        copies += 1;
                    }
                }
            }
            if let Some(path) = PathId::new(path).filter(|_| copies < frames) {
                (copies..frames).for_each(|_| lose(group, &mut output.counters, path));
            }
            output.counters.sent(port, copies, copies * length);
            sent += copies;
        }
        if let (Some(port), Some(leg)) = (group.hot.next_port(&mut ports, last), group.hot.legs.get(last)) {
            let rewrite = Rewrite::new(
                &common,
                leg,
                (output.next_hops.get(leg.next_hop()), output.ports.mac(port)),
            );
            let (neutral, change) = match lends {
                true => (Neutral::of(rewrite.register), 0),
                false => (Neutral::default(), change(&rewrite)),
            };
            for (mut frame, &check) in run.frames.drain(..).zip(&run.checks) {
                match lends {
                    true => rewrite.write_neutral(check.0, neutral, &mut frame),
                    false => rewrite.write(check, change, &mut frame),
                }
                cx.egress.send(port, frame);
            }
            output.counters.sent(port, frames, frames * length);
        } else {
            debug_assert!(false, "the last path is one of the group's");
            sent -= frames;
            output.counters.totals.copies_lost += run.frames.drain(..).count() as u64;
        }
        let hot = &mut group.hot.counters;
        hot.data_in += frames;
        hot.data_bytes_in += frames * length;
        hot.copies_out += sent;
        hot.copy_bytes_out += sent * length;
        let totals = &mut output.counters.totals;
        totals.replicated += frames;
        totals.copies += sent.saturating_sub(frames);
        slow::arm(&mut timers.coarse, cx.now, run.slot, &group.hot.machine);
    }
}
