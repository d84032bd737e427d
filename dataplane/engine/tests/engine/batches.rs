//! Compares fast path and slow path (an engine whose taps want all frames) over random batches: several groups of both
//! kinds on the same ports, one that repairs, mixed data, ACKs and contributions, and groups that are installed and removed between
//! batches. The same frames are sent, in the same order at each port, and counters and the state of all groups are equal.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::collective::any_job;
use super::repair::tick;
use crate::common::collective::*;
use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, CountersSnapshot, Engine, FrameFilter, PortSet, TapId};
use castnet_rules::{GroupRule, NextHop, RepairRule};
use castnet_wire::{Aeth, Batch, ExtHeaders, McstId, NakCode, Nanos, Opcode, RateLimit, Syndrome};
use proptest::prelude::*;

/// Multicast groups: the source of group `n` is at port `n`.
pub(super) const GROUPS: usize = 3;
/// Ranks of the collective group, at the first ports.
pub(super) const RANKS: usize = 4;
pub(super) const PORTS: usize = 7;

pub(super) fn mcst(n: usize) -> McstId {
    McstId([10, 9, 0, n as u8 + 1].into())
}

/// Members at ports 0 to 3, a switch at port 4, and one behind routers at port 5.
pub(super) fn group(n: usize, generation: u64) -> GroupRule {
    let mut paths: Vec<_> = (0..4).map(host).collect();
    paths.extend([switch(4), far_switch(5)]);
    if let NextHop::Switch { ip, .. } = &mut paths[5].next_hop {
        *ip = Some(far_ip(n));
    }
    GroupRule {
        mcst_id: mcst(n),
        generation,
        ..rule(paths).with_multicast(|rule| rule.source = n as u16)
    }
}

/// The address that frames of a group come from by a port.
fn speaker(ingress: usize, group: usize) -> Ipv4Addr {
    match ingress {
        5 => far_ip(group),
        _ => host_ip(ingress),
    }
}

/// One frame of a batch that comes in by one port.
#[derive(Clone, Debug)]
pub(super) enum Frame {
    /// The source's next data, or some before or after it.
    Data {
        group: usize,
        skip: i32,
        opcode: Opcode,
        length: usize,
    },
    /// Of the newest data, or some before.
    Ack {
        group: usize,
        back: u32,
        nak: bool,
        tos: u8,
        ident: u16,
    },
    /// The rank's next packet, or some before it.
    Contribution { back: usize },
    /// The rank acknowledges what it got last.
    Result,
    /// To an address of no group.
    Stranger { group: u8 },
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Batch {
        ingress: usize,
        frames: Vec<Frame>,
        wrong: Option<(prop::sample::Index, prop::sample::Index)>,
    },
    Links {
        up: u64,
    },
    Install {
        group: usize,
    },
    Remove {
        group: usize,
    },
    Collective,
}

fn frame() -> impl Strategy<Value = Frame> {
    let opcode = prop_oneof![
        6 => Just(Opcode::SendMiddle),
        2 => Just(Opcode::SendOnly),
        2 => Just(Opcode::WriteMiddle),
        1 => Just(Opcode::SendOnlyImm),
    ];
    let skip = prop_oneof![12 => Just(0), 1 => -3..3];
    let length = prop_oneof![4 => Just(256_usize), 1 => Just(64), 1 => 0_usize..1030];
    let ack = (
        0..GROUPS,
        0..6_u32,
        prop::bool::weighted(0.1),
        prop_oneof![3 => Just(0), 1 => any::<u8>()],
    );
    prop_oneof![
        6 => (0..GROUPS, skip, opcode, length)
            .prop_map(|(group, skip, opcode, length)| Frame::Data { group, skip, opcode, length }),
        6 => (ack, prop_oneof![3 => Just(0), 1 => any::<u16>()])
            .prop_map(|((group, back, nak, tos), ident)| Frame::Ack { group, back, nak, tos, ident }),
        8 => prop_oneof![8 => Just(0_usize), 1 => 0..4_usize].prop_map(|back| Frame::Contribution { back }),
        2 => Just(Frame::Result),
        1 => any::<u8>().prop_map(|group| Frame::Stranger { group }),
    ]
}

/// Frames often come in runs.
fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let runs = prop::collection::vec((frame(), prop_oneof![2 => Just(1_usize), 1 => 2..9_usize]), 1..12);
    runs.prop_map(|runs| {
        let all = runs.into_iter().flat_map(|(frame, times)| vec![frame; times]);
        all.take(32).collect()
    })
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let wrong = prop::option::weighted(0.2, any::<(prop::sample::Index, prop::sample::Index)>());
    prop_oneof![
        24 => (0..PORTS, frames(), wrong)
            .prop_map(|(ingress, frames, wrong)| Step::Batch { ingress, frames, wrong }),
        1 => any::<u64>().prop_map(|up| Step::Links { up: up | 0x3F }),
        1 => any::<u64>().prop_map(|up| Step::Links { up: up | 0x33 }),
        1 => (0..GROUPS).prop_map(|group| Step::Install { group }),
        1 => (0..GROUPS).prop_map(|group| Step::Remove { group }),
        1 => Just(Step::Collective),
    ]
}

/// The state of the hosts.
pub(super) struct Hosts {
    /// By multicast group, the PSN of its next data.
    psns: [u32; GROUPS],
    ranks: Vec<Rank>,
    /// By rank, its next packet, and the PSN of what it got last.
    next: [usize; RANKS],
    got: BTreeMap<usize, castnet_wire::Psn>,
}

impl Frame {
    /// Returns true if the destination is no group.
    pub(super) fn is_strange(&self) -> bool {
        matches!(self, Self::Stranger { .. })
    }
}

impl Hosts {
    pub(super) fn new(ranks: Vec<Rank>) -> Self {
        Self {
            psns: [100; GROUPS],
            ranks,
            next: [0; RANKS],
            got: BTreeMap::new(),
        }
    }

    /// Restarts a multicast group.
    pub(super) fn restart(&mut self, group: usize) {
        self.psns[group] = 100;
    }

    /// The collective group does.
    pub(super) fn restart_ranks(&mut self) {
        (self.next, self.got) = ([0; RANKS], BTreeMap::new());
    }

    /// Frames sent to the port of each rank.
    pub(super) fn take(&mut self, sent: &[(usize, Vec<u8>)]) {
        for (port, frame) in sent
            .iter()
            .filter(|(port, frame)| *port < RANKS && is_ours(frame))
        {
            if roce(frame).bth.opcode != Opcode::Ack {
                self.got.insert(*port, roce(frame).bth.psn);
            }
        }
    }

    pub(super) fn bytes(&mut self, ingress: usize, frame: &Frame) -> Option<Vec<u8>> {
        match *frame {
            Frame::Data {
                group,
                skip,
                opcode,
                length,
            } => {
                let psn = self.psns[group].saturating_add_signed(skip);
                let mut frame = DataFrame::new(opcode, psn, &vec![psn as u8; length]);
                (frame.src, frame.dst) = (speaker(ingress, group), mcst(group).0);
                frame.ethernet = ethernet(ingress);
                // Packets of one run may have several classes of service.
                if psn.is_multiple_of(7) {
                    frame.tos = 0x20;
                }
                // A limited group marks what may be marked.
                frame.tos |= [0, 2, 2, 1, 3][psn as usize % 5];
                frame.ext.imm = (opcode == Opcode::SendOnlyImm).then_some(7);
                if ingress == group {
                    self.psns[group] = self.psns[group].max(psn + 1);
                }
                Some(frame.bytes())
            }
            Frame::Ack {
                group,
                back,
                nak,
                tos,
                ident,
            } => {
                let psn = self.psns[group].saturating_sub(1 + back);
                let mut frame = DataFrame::new(Opcode::Ack, psn, &[]);
                (frame.src, frame.dst) = (speaker(ingress, group), mcst(group).0);
                (frame.ethernet, frame.tos, frame.ident) = (ethernet(ingress), tos, ident);
                let syndrome = match nak {
                    true => Syndrome::Nak(NakCode::PsnSequenceError),
                    false => Syndrome::Ack,
                };
                frame.ext = ExtHeaders {
                    aeth: Some(Aeth { syndrome, msn: psn }),
                    ..ExtHeaders::NONE
                };
                Some(frame.bytes())
            }
            Frame::Contribution { back } => {
                let (rank, next) = (self.ranks.get(ingress)?, self.next.get_mut(ingress)?);
                let at = next.saturating_sub(back);
                if at >= rank.packets.len() {
                    return None;
                }
                *next = (at + 1).max(*next);
                Some(rank.frame(at))
            }
            Frame::Result => {
                let psn = *self.got.get(&ingress)?;
                Some(self.ranks.get(ingress)?.ack(psn, Syndrome::Ack))
            }
            Frame::Stranger { group } => {
                let mut frame = DataFrame::new(Opcode::SendMiddle, 1, &[1; 64]);
                frame.dst = [10, 9, 7, group].into();
                frame.ethernet = ethernet(ingress);
                Some(frame.bytes())
            }
        }
    }
}

pub(super) fn feed_batch(
    engine: &mut Engine,
    now: Nanos,
    ingress: usize,
    frames: &[Vec<u8>],
) -> Vec<(usize, Vec<u8>)> {
    let mut egress = PlainEgress::default();
    let mut batch: Batch<Vec<u8>> = frames.iter().cloned().collect();
    engine.process(now, port(ingress), &mut batch, &mut egress);
    assert!(batch.is_empty(), "a batch is drained");
    // In the order of each port: a run of data leaves path by path.
    let mut sent = taken(egress);
    sent.sort_by_key(|(port, _)| *port);
    sent
}

/// All counters, and the state of all groups.
fn everything(engine: &Engine) -> String {
    let mut snapshot = CountersSnapshot::with_capacity(8, 64);
    engine.snapshot(&mut snapshot);
    let groups: Vec<_> = (0..GROUPS).map(|n| engine.group_status(mcst(n))).collect();
    format!(
        "{snapshot:?} {groups:?} {:?} {:?}",
        engine.collective_status(GROUP),
        engine.poll_timeout()
    )
}

fn fresh_collective(engine: &mut Engine, reproducible: bool, rate_limit: Option<RateLimit>) {
    engine.remove(GROUP);
    let mut rule = collective_star(RANKS).with_translated(|rule| rule.reproducible = reproducible);
    rule.rate_limit = rate_limit;
    let group = Context::compile(&rule, &engine.config().ports).unwrap();
    engine.install(Nanos::ZERO, group).unwrap();
}

/// A limit that some of the frames of a few batches exceed.
pub(super) fn any_limit() -> impl Strategy<Value = Option<RateLimit>> {
    let rate = prop_oneof![1..200_u64, 1000..100_000_u64];
    (rate, prop_oneof![1152..4000_u64, 4000..40_000_u64]).prop_map(|(mbps, burst)| limit(mbps, burst))
}

/// The filter of a subscriber that wants few frames.
fn filter() -> impl Strategy<Value = FrameFilter> {
    let group = prop_oneof![(0..GROUPS).prop_map(mcst), Just(GROUP)];
    let address = prop_oneof![
        (0..GROUPS).prop_map(|n| mcst(n).0),
        Just(GROUP.0),
        (0..PORTS).prop_map(host_ip)
    ];
    let port = prop::option::weighted(0.3, (0..PORTS).prop_map(port));
    let src = prop::option::weighted(0.1, (0..PORTS).prop_map(host_ip));
    let dst = prop::option::weighted(0.3, address);
    (
        port,
        prop::option::weighted(0.6, group),
        src,
        dst,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(port, group, src, dst, drops)| FrameFilter {
            port,
            group,
            src,
            dst,
            drops,
            ..FrameFilter::default()
        })
}

/// All traces and captured frames of two subscribers.
fn seen(engine: &mut Engine, [trace, capture]: [TapId; 2]) -> String {
    let traces: Vec<_> = core::iter::from_fn(|| engine.taps.pop_trace(trace)).collect();
    let captured: Vec<_> = core::iter::from_fn(|| engine.taps.pop_captured(capture)).collect();
    format!(
        "{traces:?} {captured:?} {:?}",
        [trace, capture].map(|id| engine.taps.left(id))
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_fast_path_does_with_batches_what_the_slow_one_does(
        jobs in [any_job(RANKS), any_job(RANKS)],
        steps in prop::collection::vec(step(), 1..60),
        reproducible: bool,
        limits in prop::option::of([any_limit(), any_limit()]),
        narrow in prop::option::of((filter(), filter(), 1..100_u64)),
        slots in prop::option::weighted(0.8, (1..7_u32).prop_map(|bits| 1_u16 << bits)),
    ) {
        let mut engines = [engine(PORTS), engine(PORTS)];
        let [data_limit, limit] = limits.unwrap_or_default();
        let repair = |n| slots.filter(|_| n == 2).map(|slots| RepairRule { slots, ack_timeout_us: 640 });
        let group = |n, generation| GroupRule {
            rate_limit: data_limit.filter(|_| n != 0),
            ..group(n, generation).with_multicast(|rule| rule.repair = repair(n))
        };
        for engine in &mut engines {
            (0..GROUPS).for_each(|n| install(engine, &group(n, 1)));
            fresh_collective(engine, reproducible, limit);
        }
        let [mut fast, mut slow] = engines;
        let [tap, narrower @ ..] = core::array::from_fn::<_, 3, _>(|n| TapId::all().nth(n).unwrap());
        slow.taps.arm_capture(tap, FrameFilter::default(), usize::MAX, u64::MAX);
        // Narrow subscribers get the same frames, whether the others are recorded or not.
        if let Some((traced, captured, count)) = narrow {
            for engine in [&mut fast, &mut slow] {
                engine.taps.arm_trace(narrower[0], traced, count);
                engine.taps.arm_capture(narrower[1], captured, 100, count);
            }
        }
        let tos = [0x68, 0x6A, 0x69, 0];
        let rank = |rank| Rank::new(rank, T0, &jobs).with_tos(tos[rank]);
        let ranks: Vec<Rank> = (0..RANKS).map(rank).collect();
        let mut hosts = Hosts::new(ranks);
        let (mut now, mut generation) = (T0, 1);
        for step in steps {
            now += Nanos(1000);
            generation += 1;
            match step {
                Step::Batch { ingress, frames, wrong } => {
                    let mut frames: Vec<_> = frames.iter().filter_map(|f| hosts.bytes(ingress, f)).collect();
                    if let (Some((at, bit)), false) = (wrong, frames.is_empty()) {
                        let at = at.index(frames.len());
                        let bit = bit.index(8 * frames[at].len());
                        frames[at][bit / 8] ^= 1 << (bit % 8);
                    }
                    let sent = feed_batch(&mut fast, now, ingress, &frames);
                    prop_assert_eq!(&sent, &feed_batch(&mut slow, now, ingress, &frames));
                    prop_assert_eq!(tick(&mut fast, now), tick(&mut slow, now));
                    hosts.take(&sent);
                }
                Step::Links { up } => for engine in [&mut fast, &mut slow] {
                    let mcst_ids = (0..GROUPS).map(mcst).chain([GROUP]);
                    let tables = crate::common::tables(generation, mcst_ids, &[], PortSet(up));
                    engine.set_tables(now, Arc::new(tables));
                },
                Step::Install { group: n } => {
                    for engine in [&mut fast, &mut slow] {
                        let group = Context::compile(&group(n, generation), &engine.config().ports).unwrap();
                        engine.install(now, group).unwrap();
                    }
                    hosts.restart(n);
                }
                Step::Remove { group } => {
                    let removed = [&mut fast, &mut slow].map(|engine| engine.remove(mcst(group)).is_some());
                    prop_assert_eq!(removed[0], removed[1]);
                }
                Step::Collective => {
                    [&mut fast, &mut slow].into_iter().for_each(|engine| fresh_collective(engine, reproducible, limit));
                    hosts.restart_ranks();
                }
            }
            prop_assert_eq!(everything(&fast), everything(&slow));
            prop_assert_eq!(seen(&mut fast, narrower), seen(&mut slow, narrower));
            assert_conserved(&fast);
        }
    }
}
