//! The fast path of data: a plain packet of the source with the next expected PSN.
//!
//! The bytes written into replicas for a path are the same for each packet of the source, except for the IPv4 checksum and the ICRC.
//! These change by constants, which are computed once for a run of packets: a checksum difference for each path, and an ICRC difference
//! for each path and frame length, because the CRC is linear. A replica then costs its copy, five stores and an XOR. If replicas share
//! all bytes behind their headers, they are rewritten so that the ICRC does not change ([`Neutral`]). Slow twin: `replicate`.

use core::net::Ipv4Addr;
use core::ops::Range;

use arrayvec::ArrayVec;
use castnet_collective::PathId;
use castnet_collective::path::Paths;
use castnet_wire::ethernet::{MACS_LEN, SRC_AT};
use castnet_wire::icrc::{self, Neutral, Shift};
use castnet_wire::layout::{self, DEST_QP, DST, IPV4_CHECKSUM, SRC, UDP_CHECKSUM, in_frame};
use castnet_wire::{BATCH, FrameBuf, MacAddr, Nanos, PortId, ipv4};

use crate::egress::Egress;
use crate::group::headers::{Headers, L3, PLAIN};
use crate::group::multicast::context::Group;
use crate::group::multicast::frame as slow;
use crate::group::rewrite::{Change, Original, PathDestination};
use crate::group::services::Services;
use crate::group::verify;
use crate::observe::trace::Observer;
use crate::output::Shifts;
use crate::output::acknowledge::LinkHeader;
use crate::output::cx::Cx;

/// Consecutive accepted packets of the source with equal length. They are sent path by path, to compute the constants of a path once.
#[derive(Debug)]
pub(super) struct Run<B> {
    /// Each with its received IPv4 checksum and ICRC.
    pub(super) frames: ArrayVec<(B, (u16, u32)), BATCH>,
    pub(super) headers: Headers,
}

impl<B: FrameBuf> Run<B> {
    #[inline(always)]
    fn push(&mut self, headers: &Headers, frame: B) {
        let icrc = u32::from_le_bytes(frame.trailer());
        self.frames.push((frame, (headers.checksum(), icrc)));
    }

    /// Sends a replica of each packet by `port`. Returns how many there were buffers for. `to_come`: see [`Egress::lend`].
    #[inline(always)]
    pub(super) fn replicate<E: Egress<Buf = B>, O: Observer, const LENT: bool>(
        &self,
        cx: &mut Cx<'_, E, O>,
        port: PortId,
        rewrite: &Rewrite<LENT>,
        to_come: usize,
    ) -> u64 {
        let mut copies = 0;
        for (frame, check) in &self.frames {
            let copy = match LENT {
                true => cx.egress.lend(frame, to_come),
                false => cx.egress.replicate(port, frame, PLAIN),
            };
            if let Some(mut copy) = copy {
                rewrite.write(*check, &mut copy);
                cx.egress.send(port, copy);
                copies += 1;
            }
        }
        copies
    }

    /// Sends the packets themselves.
    #[inline(always)]
    pub(super) fn send<E: Egress<Buf = B>, O: Observer, const LENT: bool>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        port: PortId,
        rewrite: &Rewrite<LENT>,
    ) {
        for (mut frame, check) in self.frames.drain(..) {
            rewrite.write(check, &mut frame);
            cx.egress.send(port, frame);
        }
    }
}

/// What is equal for all paths of a run.
pub(super) struct RunCommon<'a> {
    original: Original,
    /// Bytes between the BTH and the ICRC.
    payload: usize,
    /// The ICRC operator for them, if it is cached.
    operator: Option<&'a Shift>,
}

impl<'a> RunCommon<'a> {
    #[inline(always)]
    pub(super) fn new(mcst_id: Ipv4Addr, shifts: &'a mut Shifts, headers: &Headers) -> Self {
        let payload = headers.payload() as usize;
        Self {
            original: Original::new(mcst_id, (headers.src(), headers.dst()), headers.qpn()),
            payload,
            operator: shifts.find(payload),
        }
    }

    /// The difference (XOR) of the ICRC for a register at the end of the BTH.
    #[inline(always)]
    fn icrc_change(&self, register: u32) -> u32 {
        match self.operator {
            Some(operator) => operator.apply(register),
            None => icrc::shift(register, self.payload),
        }
    }
}

/// What is written into the replicas for one path. `LENT`: they share all bytes behind their headers.
pub(super) struct Rewrite<const LENT: bool> {
    /// Addresses of the next hop and of the port.
    macs: [u8; MACS_LEN],
    /// Source and destination. Zeros if only Ethernet addresses are written.
    addresses: [u8; 8],
    qpn: [u8; 3],
    /// Added to the complement of the IPv4 checksum.
    sum: u32,
    /// The difference of the ICRC, if the trailer is private.
    change: u32,
    /// Keeps the ICRC, if the trailer is lent.
    neutral: Neutral,
}

impl<const LENT: bool> Rewrite<LENT> {
    #[inline(always)]
    pub(super) fn new(
        common: &RunCommon<'_>,
        dest: &PathDestination,
        (dst, src): (MacAddr, MacAddr),
    ) -> Self {
        let Change {
            addresses,
            sum,
            delta,
        } = common.original.change(dest).unwrap_or_default();
        let register = delta.at_bth();
        let (change, neutral) = match LENT {
            true => (0, Neutral::of(register)),
            false => (common.icrc_change(register), Neutral::default()),
        };
        let mut macs = [0; MACS_LEN];
        macs[..SRC_AT].copy_from_slice(&dst.0);
        macs[SRC_AT..].copy_from_slice(&src.0);
        Self {
            macs,
            addresses,
            qpn: dest.qpn,
            sum,
            change,
            neutral,
        }
    }

    /// True if more than Ethernet addresses is written.
    #[inline(always)]
    fn rewrites_packet(&self) -> bool {
        let [.., a, b, c, d] = self.addresses;
        [a, b, c, d] != [0; 4]
    }

    /// Rewrites a replica of a packet with this IPv4 checksum and ICRC.
    #[inline(always)]
    fn write(&self, (checksum, icrc): (u16, u32), copy: &mut impl FrameBuf) {
        let Some(head) = copy.head_mut().first_chunk_mut::<PLAIN>() else {
            debug_assert!(false, "a replica has all headers");
            return;
        };
        head[..MACS_LEN].copy_from_slice(&self.macs);
        if !self.rewrites_packet() {
            return;
        }
        let mut sum = u32::from(!checksum) + self.sum;
        if LENT {
            const IDENT: Range<usize> = in_frame(layout::IDENT);
            const SPORT: Range<usize> = in_frame(layout::SPORT);
            let Neutral { ident, sport: [c, d] } = self.neutral;
            let before = u16::from_be_bytes([head[IDENT.start], head[IDENT.start + 1]]);
            let ident = before ^ u16::from_be_bytes(ident);
            sum += u32::from(!before) + u32::from(ident);
            head[IDENT].copy_from_slice(&ident.to_be_bytes());
            head[SPORT.start] ^= c;
            head[SPORT.start + 1] ^= d;
        }
        head[in_frame(IPV4_CHECKSUM)].copy_from_slice(&(!ipv4::fold(sum)).to_be_bytes());
        head[in_frame(SRC.start..DST.end)].copy_from_slice(&self.addresses);
        head[in_frame(UDP_CHECKSUM)].copy_from_slice(&[0; 2]);
        head[in_frame(DEST_QP)].copy_from_slice(&self.qpn);
        if !LENT {
            copy.set_trailer((icrc ^ self.change).to_le_bytes());
        }
    }
}

impl Group {
    /// Handles plain data of the source, and the following `frames` while they are alike. Returns the next frame or, as an error with
    /// nothing changed, the first one if it needs the slow path.
    // Not inlined: the loop needs all registers.
    #[inline(never)]
    pub(super) fn try_data<E: Egress, O: Observer>(
        &mut self,
        services: &mut Services,
        cx: &mut Cx<'_, E, O>,
        (slot, repairs): (u32, bool),
        (frame, headers): (E::Buf, &Headers),
        frames: &mut impl Iterator<Item = E::Buf>,
    ) -> Result<Option<E::Buf>, E::Buf> {
        let hot = &mut self.hot;
        let all_up = hot.ports.and(services.output.ports.up) == hot.ports;
        // The number of such frames that a rate limit lets pass without a mark.
        let most = match &mut hot.meter {
            None => BATCH,
            Some(meter) => {
                meter.refill(cx.now);
                (meter.bytes_above_half() / u64::from(headers.length)).min(BATCH as u64) as usize
            }
        };
        let usual = all_up && headers.payload() <= hot.pmtu.into() && most != 0;
        let plain = usual && headers.is_data() && headers.is_sound(&frame);
        if !plain || !self.accept(cx.now, repairs, headers, &frame) {
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
            if !like || run.frames.len() >= most || !self.accept(cx.now, repairs, &headers, &frame) {
                next = Some(frame);
                break;
            }
            run.push(&headers, frame);
        }
        if let Some(meter) = &mut self.hot.meter {
            meter.take(run.frames.len() as u64 * u64::from(run.headers.length));
        }
        // Of the last one: packets of a run may differ in it.
        let last = run.frames.last().map(|(frame, _)| Headers::of(frame));
        let tos = last.map_or(headers.tos(), |last| last.tos());
        if !self.hot.is_link(tos) {
            self.note_link(LinkHeader::plain(tos));
        }
        let takes = repairs.then(|| self.hot.machine.taking());
        let (frames, length) = (run.frames.len() as u64, u64::from(run.headers.length));
        let output = &mut services.output;
        let sent = self.send_run(output, cx, &mut run, takes.as_ref());
        let hot = &mut self.hot.counters;
        hot.data_in += frames;
        hot.data_bytes_in += frames * length;
        hot.copies_out += sent;
        hot.copy_bytes_out += sent * length;
        let totals = &mut output.counters.totals;
        totals.replicated += frames;
        totals.copies += sent.saturating_sub(frames);
        if let Some(takes) = &takes {
            self.count_skipped(takes, frames);
        }
        slow::arm(&mut services.timers, cx.now, slot, &self.hot.machine);
        Ok(next)
    }

    /// True for data with the next expected PSN: the machine has counted it and, if the group repairs, it is verified and kept. The paths that
    /// take it are those of the packet before it. Otherwise nothing has changed.
    #[inline(always)]
    fn accept(&mut self, now: Nanos, repairs: bool, headers: &Headers, frame: &impl FrameBuf) -> bool {
        match repairs {
            false => self.hot.machine.next_data(now, headers.psn()),
            true => self.keep_next(now, headers, frame),
        }
    }

    // Not inlined: groups without repair need all registers.
    #[inline(never)]
    fn keep_next(&mut self, now: Nanos, headers: &Headers, frame: &impl FrameBuf) -> bool {
        let (machine, cold) = (&mut self.hot.machine, &mut self.cold);
        let Some(ring) = cold
            .ring
            .as_mut()
            .filter(|_| machine.next_psn() == Some(headers.psn()))
        else {
            return false;
        };
        if verify::is_sound_in_place(&ring.checksum, frame, L3) != Some(true) {
            return false;
        }
        let Some(slot) = machine.next_kept(now, headers.psn(), headers.ack_request()) else {
            return false;
        };
        ring.keep(slot, frame, headers.length as usize);
        cold.exceptions.kept += 1;
        true
    }

    /// Counts the paths that get the packets of a run later, from the ring.
    fn count_skipped(&mut self, takes: &Paths, frames: u64) {
        let Self { hot, paths, cold } = self;
        for (i, path) in paths.iter_mut().enumerate() {
            if PathId::new(i).is_some_and(|path| path != hot.source && !takes.contains(path)) {
                path.filtered += frames;
                cold.exceptions.filtered += frames;
            }
        }
    }
}
