//! The short way of nearly all data: a plain packet with the PSN that comes next, of a source that was seen before.
//!
//! What replicas of one source's packets get written is the same for each packet but for the IPv4 checksum and the ICRC,
//! and these change by a constant: the checksum by one for a leg, the ICRC by one for a leg and a frame length (the CRC is
//! linear). So it is all worked out once for a flow and kept in a small cache; a replica then costs its copy, five stores and
//! an XOR. Where replicas borrow what comes behind their header from one another, the ICRC included, they are rewritten so
//! that it stays what it is ([`Neutral`]). Whatever is otherwise takes the long way, which does the same in general, and has the flow learned at the end.

use core::net::Ipv4Addr;

use castnet_collective::{PathId, PathSet};
use castnet_wire::icrc::{HeaderDelta, Neutral, ShiftCache};
use castnet_wire::{BATCH, Batch, FrameBuf, Opcode, PortId, Psn, Qpn, RoceHeader, ipv4};

use crate::context::Context;
use crate::egress::Egress;
use crate::engine::{Engine, Ports};
use crate::group::Group;
use crate::multicast;
use crate::next_hops::NextHops;
use crate::pipeline::Cx;
use crate::replicate::{address_sum, lose};
use crate::trace::Observer;
use crate::words::words;

/// Flows that are kept ready: 2 KiB each, of which a flow touches 36 bytes for each of its legs.
const FLOWS: usize = 64;
/// Ethernet, IPv4, UDP and BTH, nothing optional among them.
const PLAIN: usize = 14 + 20 + 8 + 12;

/// Opcodes whose BTH is followed by payload at once: one bit each.
const PLAIN_DATA: u64 = 1 << Opcode::SendFirst as u64
    | 1 << Opcode::SendMiddle as u64
    | 1 << Opcode::SendLast as u64
    | 1 << Opcode::SendOnly as u64
    | 1 << Opcode::WriteMiddle as u64
    | 1 << Opcode::WriteLast as u64;

#[inline(always)]
const fn is_plain_data(opcode: u8) -> bool {
    opcode < 64 && PLAIN_DATA >> opcode & 1 != 0
}

/// The first bytes of a plain frame, in words: all headers and two bytes more, which it has at the least.
pub(crate) type First = [u64; FIRST / 8];
const FIRST: usize = 56;

/// Bits in which packets of a flow agree that are of the same length: what says that they are plain, how long they are, whose
/// and for whom. Those of the opcode are looked at by themselves.
const SAME: First = {
    let mut bytes = [0; FIRST];
    let mut i = 0;
    let whole = [12, 13, 14, 16, 17, 21, 23, 36, 37, 38, 39, 47, 48, 49];
    while i < whole.len() {
        bytes[whole[i]] = 0xFF;
        i += 1;
    }
    let mut address = 26;
    while address < 34 {
        bytes[address] = 0xFF;
        address += 1;
    }
    // More fragments, and the upper bits of the offset; padding and transport version.
    bytes[20] = 0x3F;
    bytes[43] = 0x3F;
    words(&bytes)
};

/// The first bytes of a frame, where it is long enough to be plain.
#[inline(always)]
pub(crate) fn first(frame: &impl FrameBuf) -> Option<First> {
    frame.head().first_chunk::<FIRST>().map(words)
}

/// Source and destination address of a plain frame.
#[inline(always)]
const fn addresses(first: &First) -> u64 {
    first[3] >> 16 | first[4] << 48
}

/// What a replica at one leg gets.
#[derive(Clone, Copy, Debug, Default)]
struct Rewrite {
    /// Ethernet addresses of the next hop and of the port.
    macs: [u8; 12],
    /// IP addresses: the McstID, and the member's; zeros towards a switch, where nothing else is written.
    addresses: [u8; 8],
    qpn: [u8; 3],
    port: PortId,
    /// What is added to the complement of the IPv4 checksum.
    sum: u32,
    /// What is added (XOR) to the ICRC of a frame of the flow's length.
    icrc: u32,
    /// What is added (XOR) to other fields instead, so that it stays the same.
    neutral: Neutral,
}

impl Rewrite {
    #[inline(always)]
    fn is_host(&self) -> bool {
        let [.., a, b, c, d] = self.addresses;
        [a, b, c, d] != [0; 4]
    }

    /// Writes all but the ICRC. `sum` is added to the checksum beside what a leg adds to it.
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

    /// Into a frame whose trailer is its own; `icrc` is the original's.
    #[inline(always)]
    fn write(&self, checksum: u16, icrc: u32, copy: &mut impl FrameBuf) {
        let Some(head) = copy.head_mut().first_chunk_mut::<PLAIN>() else {
            return;
        };
        head[..12].copy_from_slice(&self.macs);
        if self.is_host() {
            self.head(head, u32::from(!checksum));
            copy.set_trailer((icrc ^ self.icrc).to_le_bytes());
        }
    }

    /// Into one whose trailer others read.
    #[inline(always)]
    fn write_neutral(&self, checksum: u16, copy: &mut impl FrameBuf) {
        let Some(head) = copy.head_mut().first_chunk_mut::<PLAIN>() else {
            return;
        };
        head[..12].copy_from_slice(&self.macs);
        if self.is_host() {
            let Neutral {
                ident: [a, b],
                sport: [c, d],
            } = self.neutral;
            let before = u16::from_be_bytes([head[18], head[19]]);
            let ident = before ^ u16::from_be_bytes([a, b]);
            self.head(head, u32::from(!checksum) + u32::from(!before) + u32::from(ident));
            head[18..20].copy_from_slice(&ident.to_be_bytes());
            head[34] ^= c;
            head[35] ^= d;
        }
    }
}

/// A source's packets to its group, by the port that they come in by.
#[derive(Clone, Debug)]
struct Flow {
    /// Source and destination address.
    addresses: u64,
    ingress: PortId,
    /// When it was learned; see [`Flows::stamp`].
    stamp: u32,
    place: u32,
    /// The last packet that went the long way.
    first: First,
    /// The length of frames that this and [`Rewrite::icrc`] are for, and another one that came last.
    length: u32,
    asked: u32,
    legs: [Rewrite; PortId::COUNT],
    /// By leg, the ICRC's register at the end of the BTH.
    registers: [u32; PortId::COUNT],
}

/// The flows that came last.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    flows: Box<[Flow]>,
    /// Flows learned before the last change of groups, next hops and ports are worth nothing.
    stamp: u32,
}

fn slot(addresses: u64, ingress: PortId) -> usize {
    let mixed = (addresses ^ ingress.index() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (64 - FLOWS.trailing_zeros())) as usize
}

impl Flows {
    pub(crate) fn new() -> Self {
        let none = Flow {
            addresses: 0,
            ingress: PortId::default(),
            stamp: 0,
            place: 0,
            first: [0; FIRST / 8],
            length: 0,
            asked: 0,
            legs: [Rewrite::default(); PortId::COUNT],
            registers: [0; PortId::COUNT],
        };
        Self {
            flows: vec![none; FLOWS].into_boxed_slice(),
            stamp: 1,
        }
    }

    /// Groups, next hops or ports have changed: all flows are to be learned again.
    pub(crate) fn forget(&mut self) {
        match self.stamp.checked_add(1) {
            Some(next) => self.stamp = next,
            None => *self = Self::new(),
        }
    }

    #[inline(always)]
    fn find(&mut self, addresses: u64, ingress: PortId) -> Option<(usize, &mut Flow)> {
        let slot = slot(addresses, ingress);
        let flow = self.flows.get_mut(slot)?;
        let known = flow.addresses == addresses && flow.ingress == ingress && flow.stamp == self.stamp;
        known.then_some((slot, flow))
    }
}

/// What [`learn`] looks at, beside the frame.
pub(crate) struct Lesson<'a> {
    pub(crate) place: u32,
    pub(crate) group: &'a Group,
    pub(crate) ports: &'a Ports,
    pub(crate) next_hops: &'a NextHops,
}

/// A packet of the source has gone the long way. Where it was plain, the next ones will take the short way: at once if the
/// flow is new, at the second time running if only the length is.
pub(crate) fn learn<const N: usize>(
    flows: &mut Flows,
    shifts: &mut ShiftCache<N>,
    lesson: &Lesson<'_>,
    (ingress, src): (PortId, Ipv4Addr),
    header: &RoceHeader,
    (first, length): (First, usize),
) {
    let hot = &lesson.group.hot;
    let plain = header.l3 == 14 && header.frame_len == length && is_plain_data(header.bth.opcode as u8);
    let all_up = hot.ports.and(lesson.ports.up) == hot.ports;
    if !plain || !all_up || hot.path(ingress) != Some(hot.source) {
        return;
    }
    let mcst_id = hot.mcst_id.0;
    let addresses = addresses(&first);
    let stamp = flows.stamp;
    let Some(flow) = flows.flows.get_mut(slot(addresses, ingress)) else {
        return;
    };
    let same = flow.addresses == addresses && flow.ingress == ingress && flow.stamp == stamp;
    if same && flow.asked != length as u32 {
        flow.asked = length as u32;
        return;
    }
    if !same {
        let from_source = HeaderDelta::src(src, mcst_id);
        let legs = hot.ports.into_iter().zip(&hot.legs);
        for ((rewrite, register), (port, leg)) in flow.legs.iter_mut().zip(&mut flow.registers).zip(legs) {
            let (dst, qpn) = (Ipv4Addr::from(leg.ip), Qpn::from_bytes(leg.qpn));
            let delta = from_source
                .and(HeaderDelta::dst(mcst_id, dst))
                .and(HeaderDelta::dest_qp(Qpn::VIRTUAL, qpn));
            *register = delta.at_bth();
            *rewrite = Rewrite {
                // The McstID takes the source's place and leaves the destination's, so of addresses only the source is
                // taken out of the sum.
                sum: 2 * 0xFFFF - address_sum(src) + address_sum(dst),
                neutral: Neutral::of(*register),
                qpn: leg.qpn,
                port,
                ..Rewrite::default()
            };
            rewrite.macs[..6].copy_from_slice(&lesson.next_hops.get(leg.next_hop()).0);
            rewrite.macs[6..].copy_from_slice(&lesson.ports.mac(port).0);
            rewrite.addresses[..4].copy_from_slice(&mcst_id.octets());
            rewrite.addresses[4..].copy_from_slice(&leg.ip);
        }
        flow.addresses = addresses;
        flow.ingress = ingress;
        flow.stamp = stamp;
        flow.place = lesson.place;
    }
    flow.first = first;
    flow.length = length as u32;
    flow.asked = 0;
    let operator = shifts.get(header.after_bth());
    for (rewrite, register) in flow.legs.iter_mut().zip(&flow.registers).take(hot.legs.len()) {
        rewrite.icrc = operator.apply(*register);
    }
}

/// Packets of one flow that came one after the other and have all been taken in: they leave leg by leg, so that what a leg
/// needs is looked up once.
#[derive(Debug)]
pub(crate) struct Run<B> {
    frames: Batch<B>,
    /// IPv4 checksum and ICRC of each as it came in.
    checks: [(u16, u32); BATCH],
    flow: usize,
    to: PathSet,
}

impl<B> Run<B> {
    pub(crate) const fn new() -> Self {
        Self {
            frames: Batch::new_const(),
            checks: [(0, 0); BATCH],
            flow: 0,
            to: PathSet::EMPTY,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

impl Engine {
    /// The short way, for a frame that nobody watches: takes it in and puts it to the `run`, which is sent before where it is
    /// another flow's. Hands back what has to take the long way; nothing has changed then.
    #[inline(always)]
    pub(crate) fn data_again<E: Egress, O: Observer>(
        &mut self,
        cx: &mut Cx<'_, E, O>,
        run: &mut Run<E::Buf>,
        frame: E::Buf,
    ) -> Option<E::Buf> {
        let Some(first) = first(&frame) else {
            return Some(frame);
        };
        let Some((slot, flow)) = self.flows.find(addresses(&first), cx.ingress) else {
            return Some(frame);
        };
        let mut wrong = u64::from(flow.length) ^ frame.length() as u64;
        for ((a, b), same) in first.iter().zip(&flow.first).zip(SAME) {
            wrong |= (a ^ b) & same;
        }
        let opcode = (first[5] >> 16) as u8;
        let header = frame.head().get(14..34).unwrap_or_default();
        let right =
            wrong == 0 && is_plain_data(opcode) && (frame.checksum_good() || ipv4::checksum_is_right(header));
        if !right {
            return Some(frame);
        }
        let Some(Context::Multicast(group)) = self.groups.at_mut(flow.place) else {
            return Some(frame);
        };
        let psn = Psn::new(((first[6] >> 24) as u32 & 0xFF_FFFF).swap_bytes() >> 8);
        let Some(to) = group.hot.machine.next_data(cx.now, psn) else {
            return Some(frame);
        };
        flow.asked = 0;
        if !run.is_empty() && run.flow != slot {
            self.send_run(cx, run);
        }
        if let Some(check) = run.checks.get_mut(run.frames.len()) {
            *check = (
                (first[3] as u16).swap_bytes(),
                u32::from_le_bytes(frame.trailer()),
            );
        }
        (run.flow, run.to) = (slot, to);
        run.frames.push(frame);
        None
    }

    /// Sends a run on its way and leaves it empty.
    pub(crate) fn send_run<E: Egress, O: Observer>(&mut self, cx: &mut Cx<'_, E, O>, run: &mut Run<E::Buf>) {
        let Some(flow) = self.flows.flows.get(run.flow) else {
            return;
        };
        let Some(Context::Multicast(group)) = self.groups.at_mut(flow.place) else {
            return;
        };
        let Some(last) = run.to.bits().checked_ilog2() else {
            return;
        };
        let (frames, length) = (run.frames.len() as u64, u64::from(flow.length));
        let mut others = run.to.bits() & !(1 << last);
        // One alone has nothing to lend.
        let lends = others != 0 && cx.egress.lends(group.hot.ports, length as usize);
        let mut sent = frames;
        while others != 0 {
            let path = others.trailing_zeros();
            others &= others - 1;
            let leg = flow.legs[path as usize % PortId::COUNT];
            let mut copies = 0;
            for (frame, (checksum, icrc)) in run.frames.iter().zip(run.checks) {
                let copy = match lends {
                    true => cx.egress.lend(frame, others.count_ones() as usize),
                    false => cx.egress.replicate(leg.port, frame, PLAIN),
                };
                let Some(mut copy) = copy else {
                    if let Some(path) = PathId::new(path as u8) {
                        lose(group, &mut self.counters, path);
                    }
                    continue;
                };
                match lends {
                    true => leg.write_neutral(checksum, &mut copy),
                    false => leg.write(checksum, icrc, &mut copy),
                }
                cx.egress.send(leg.port, copy);
                copies += 1;
            }
            self.counters.sent(leg.port, copies, copies * length);
            sent += copies;
        }
        let leg = flow.legs[last as usize % PortId::COUNT];
        for (mut frame, (checksum, icrc)) in run.frames.drain(..).zip(run.checks) {
            match lends {
                true => leg.write_neutral(checksum, &mut frame),
                false => leg.write(checksum, icrc, &mut frame),
            }
            cx.egress.send(leg.port, frame);
        }
        self.counters.sent(leg.port, frames, frames * length);

        let hot = &mut group.hot.counters;
        hot.data_in += frames;
        hot.data_bytes_in += frames * length;
        hot.data_out += sent;
        hot.data_bytes_out += sent * length;
        let totals = &mut self.counters.totals;
        totals.replicated += frames;
        totals.copies += sent - frames;
        multicast::arm(&mut self.wheel, cx.now, flow.place, &group.hot.machine);
    }
}

/// A path's place in a flow is its number, and its bit in a set.
const _: () = assert!(PortId::COUNT == 64 && size_of::<PathSet>() == 8);
