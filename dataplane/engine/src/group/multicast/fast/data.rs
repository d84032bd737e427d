//! The fast path of data: a plain packet of the source with the PSN that comes next.
//!
//! What replicas of one source's packets get written is the same for each packet but for the IPv4 checksum and the ICRC,
//! and these change by a constant: the checksum by one for a path, the ICRC by one for a path and a frame length (the CRC is
//! linear). So it is worked out once for a run of packets; a replica then costs its copy, five stores and an XOR. Where replicas
//! borrow what comes behind their header from one another, the ICRC included, they are rewritten so that it stays what it
//! is ([`Neutral`]). The slow twin is `replicate`.

use core::net::Ipv4Addr;

use arrayvec::ArrayVec;
use castnet_collective::PathId;
use castnet_wire::icrc::{self, HeaderDelta, Neutral};
use castnet_wire::{BATCH, FrameBuf, MacAddr, Qpn};

use crate::egress::Egress;
use crate::group::headers::{Headers, PLAIN};
use crate::group::multicast::context::Group;
use crate::group::multicast::frame as slow;
use crate::group::multicast::replicate::lose;
use crate::group::rewrite::{Leg, address_sum};
use crate::group::services::Services;
use crate::observe::trace::Observer;
use crate::output::cx::Cx;

/// Packets of the source, of the same length, that came one after the other and have been taken in: they leave path
/// by path, so that what a path needs is worked out once.
#[derive(Debug)]
struct Run<B> {
    /// Each with its IPv4 checksum and ICRC as it came in.
    frames: ArrayVec<(B, (u16, u32)), BATCH>,
    /// Of the first.
    headers: Headers,
}

impl<B: FrameBuf> Run<B> {
    #[inline(always)]
    fn push(&mut self, headers: &Headers, frame: B) {
        let icrc = u32::from_le_bytes(frame.trailer());
        self.frames.push((frame, (headers.checksum(), icrc)));
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

impl Group {
    /// Takes data of the source in, where it is plain, and as many of the `frames` behind it as are like it; returns the next one.
    ///
    /// # Errors
    /// The first frame, if it has to take the slow path; nothing has changed then.
    // Apart, as ACKs are: so the compiler finds registers for all that the loop needs.
    #[inline(never)]
    pub(super) fn try_data<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        (frame, headers): (E::Buf, &Headers),
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Result<Option<E::Buf>, E::Buf> {
        let hot = &mut self.hot;
        let all_up = hot.ports.and(services.output.ports.up) == hot.ports;
        let usual = all_up && headers.payload() <= hot.pmtu.into();
        let plain = usual && headers.is_data() && headers.is_sound(&frame);
        if !plain || !hot.machine.next_data(cx.now, headers.psn()) {
            return Err(frame);
        }
        let mut run = Run {
            frames: ArrayVec::new(),
            headers: *headers,
        };
        run.push(headers, frame);
        let mut next = None;
        for frame in frames {
            let headers = Headers::of(&frame);
            let like = headers.is_data_like(&run.headers) && headers.is_sound(&frame);
            if !like || run.frames.is_full() || !hot.machine.next_data(cx.now, headers.psn()) {
                next = Some(frame);
                break;
            }
            run.push(&headers, frame);
        }
        self.send_run(services, cx, slot, &mut run);
        Ok(next)
    }

    /// Sends a run on its way, and leaves it empty.
    #[inline(never)]
    fn send_run<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        slot: u32,
        run: &mut Run<E::Buf>,
    ) {
        let group = self;
        let Services { output, timers, .. } = services;
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
                for (frame, (checksum, _)) in &run.frames {
                    if let Some(mut copy) = cx.egress.lend(frame, others) {
                        rewrite.write_neutral(*checksum, neutral, &mut copy);
                        cx.egress.send(port, copy);
                        copies += 1;
                    }
                }
            } else {
                let change = change(&rewrite);
                for (frame, check) in &run.frames {
                    if let Some(mut copy) = cx.egress.replicate(port, frame, PLAIN) {
                        rewrite.write(*check, change, &mut copy);
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
            for (mut frame, check) in run.frames.drain(..) {
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
        slow::arm(&mut timers.coarse, cx.now, slot, &group.hot.machine);
    }
}
