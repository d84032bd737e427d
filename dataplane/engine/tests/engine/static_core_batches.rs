//! Compares fast path and slow path (an engine whose tap wants all frames) at the edges of a static core, over random batches.

use core::net::Ipv4Addr;

use super::batches::feed_batch;
use super::repair::tick;
use super::static_core::{ADDRESS, CORE, FIRST, MEMBERS, UP, group, mcst, route};
use crate::common::*;
use castnet_engine::{CountersSnapshot, Engine, FrameFilter, PortSet, TapId};
use castnet_rules::{GroupRule, NextHop, Route};
use castnet_wire::{Aeth, NakCode, Nanos, Opcode, Reth, Syndrome};
use proptest::prelude::*;

/// A frame of a batch at an edge.
#[derive(Clone, Debug)]
struct Data {
    skip: i32,
    opcode: Opcode,
    length: usize,
    sport: u16,
    /// Of several addresses: that of the group more often than others.
    address: usize,
    /// So many of them, one after the other.
    times: usize,
}

#[derive(Clone, Debug)]
enum Batch {
    Data {
        ingress: usize,
        data: Vec<Data>,
        wrong: Option<(prop::sample::Index, prop::sample::Index)>,
    },
    /// Of the newest data or some before, from an edge or a host.
    Feedback { from: usize, back: Vec<(u32, bool)> },
    /// The ports that are up.
    Links(u64),
}

fn batch() -> impl Strategy<Value = Batch> {
    let skip = prop_oneof![12 => Just(0), 1 => -3..3];
    let opcode = prop::sample::select(vec![
        Opcode::SendMiddle,
        Opcode::SendMiddle,
        Opcode::WriteMiddle,
        Opcode::SendOnly,
        Opcode::WriteOnly,
    ]);
    let length = prop_oneof![4 => Just(256_usize), 1 => Just(64), 1 => 0_usize..1030];
    let sport = prop_oneof![6 => Just(0xC001), 1 => any::<u16>()];
    let address = prop_oneof![6 => Just(0_usize), 1 => 1..4_usize];
    let data = (skip, opcode, length, sport, address, 1..5_usize).prop_map(
        |(skip, opcode, length, sport, address, times)| Data {
            skip,
            opcode,
            length,
            sport,
            address,
            times,
        },
    );
    let wrong = prop::option::weighted(0.2, any::<(prop::sample::Index, prop::sample::Index)>());
    let nak = prop::bool::weighted(0.1);
    prop_oneof![
        12 => (prop_oneof![Just(0), Just(UP), 0..CORE], prop::collection::vec(data, 1..8), wrong)
            .prop_map(|(ingress, data, wrong)| Batch::Data { ingress, data, wrong }),
        12 => (0..MEMBERS, prop::collection::vec((0..4_u32, nak), 1..5))
            .prop_map(|(from, back)| Batch::Feedback { from, back }),
        1 => any::<u64>().prop_map(|up| Batch::Links(up | 0b1_0011)),
        1 => Just(Batch::Links(u64::MAX)),
    ]
}

/// Both paths at one edge.
struct Twins {
    /// The edge.
    n: usize,
    fast: Engine,
    slow: Engine,
    now: Nanos,
    /// The PSN of the next data.
    next: u32,
}

impl Twins {
    fn new(rule: &GroupRule, n: usize) -> Self {
        let mut engines = [engine(CORE), engine(CORE)];
        engines.iter_mut().for_each(|engine| install(engine, rule));
        let [fast, mut slow] = engines;
        let tap = TapId::all().next().unwrap();
        slow.taps
            .arm_capture(tap, FrameFilter::default(), usize::MAX, u64::MAX);
        Self {
            n,
            fast,
            slow,
            now: T0,
            next: FIRST,
        }
    }

    fn data(&mut self, ingress: usize, data: &Data) -> Vec<u8> {
        let psn = self.next.saturating_add_signed(data.skip);
        let mut frame = DataFrame::new(data.opcode, psn, &vec![psn as u8; data.length]);
        (frame.sport, frame.ethernet) = (data.sport, ethernet(ingress));
        let dma_len = data.length as u32;
        frame.ext.reth = (data.opcode == Opcode::WriteOnly).then_some(Reth {
            va: VA_BASE,
            rkey: 7,
            dma_len,
        });
        let others = [Ipv4Addr::new(239, 1, 0, 2), mcst(self.n).0, mcst(2).0];
        let usual = match self.n {
            0 => mcst(0).0,
            _ => ADDRESS,
        };
        frame.dst = [usual].into_iter().chain(others).nth(data.address).unwrap();
        frame.src = match self.n {
            0 => host_ip(0),
            _ => mcst(0).0,
        };
        self.next = self.next.max(psn + 1);
        frame.bytes()
    }

    fn batch(&mut self, batch: &Batch) -> Option<(usize, Vec<Vec<u8>>)> {
        match batch {
            Batch::Data { ingress, data, wrong } => {
                let all = data.iter().flat_map(|data| (0..data.times).map(move |_| data));
                let mut frames: Vec<_> = all.map(|data| self.data(*ingress, data)).collect();
                if let Some((at, bit)) = wrong {
                    let at = at.index(frames.len());
                    let bit = bit.index(8 * frames[at].len());
                    frames[at][bit / 8] ^= 1 << (bit % 8);
                }
                Some((*ingress, frames))
            }
            Batch::Feedback { from, back } => {
                // Of the source's edge: one host and three edges. Of another one: two hosts.
                let (src, ingress) = match (self.n, *from) {
                    (0, 0) => (host_ip(1), 1),
                    (0, edge) => (mcst(edge).0, UP),
                    (_, from) => (host_ip(1 + from % 2), 1 + from % 2),
                };
                let frames = back.iter().map(|(back, nak)| {
                    let psn = self.next.saturating_sub(1 + back);
                    let syndrome = match nak {
                        true => Syndrome::Nak(NakCode::PsnSequenceError),
                        false => Syndrome::Ack,
                    };
                    let mut frame = DataFrame::new(Opcode::Ack, psn, &[]);
                    frame.ext.aeth = Some(Aeth { syndrome, msn: psn });
                    (frame.src, frame.dst, frame.ethernet) = (src, mcst(self.n).0, ethernet(ingress));
                    frame.bytes()
                });
                Some((ingress, frames.collect()))
            }
            Batch::Links(_) => None,
        }
    }

    /// The counters and the group's state.
    fn states(&self) -> [String; 2] {
        [&self.fast, &self.slow].map(|engine| {
            let mut snapshot = CountersSnapshot::with_capacity(8, 64);
            engine.snapshot(&mut snapshot);
            format!(
                "{snapshot:?} {:?} {:?}",
                engine.group_status(mcst(self.n)),
                engine.poll_timeout()
            )
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// At the source's edge, whatever route there is to the address, and at that of receivers, also where it is a relay.
    #[test]
    fn the_fast_path_of_an_edge_does_with_batches_what_the_slow_one_does(
        n in 0..2_usize, repair: bool, alone: bool, hops in prop::option::of((0..CORE, 0..CORE, any::<bool>())),
        batches in prop::collection::vec(batch(), 1..40),
    ) {
        let mut rule = group(n, repair, Some(ADDRESS));
        if alone {
            // One edge has another address, and gets copies at its own.
            let core = rule.endpoints.last_mut().map(|last| &mut last.next_hop).filter(|_| n == 0);
            if let Some(NextHop::Switch { core, .. }) = core {
                *core = Some(Ipv4Addr::new(239, 1, 0, 2));
            }
            // A receiver of the other edge is an adjacent switch.
            if n == 1 {
                rule.endpoints[1] = switch(2);
            }
        }
        let hops = hops.filter(|(a, b, _)| a != b);
        let routes: Vec<_> = hops.map(|(a, b, replicate)| Route { replicate, ..route(ADDRESS, [a, b]) }).into_iter().collect();
        let mut twins = Twins::new(&rule, n);
        let links = |twins: &mut Twins, generation, up| for engine in [&mut twins.fast, &mut twins.slow] {
            engine.set_tables(twins.now, tables(generation, [mcst(n)], &routes, PortSet(up)).into());
        };
        links(&mut twins, 1, u64::MAX);
        for (generation, batch) in (2..).zip(&batches) {
            twins.now += Nanos(1000);
            if let Batch::Links(up) = batch {
                links(&mut twins, generation, *up);
            }
            if let Some((ingress, frames)) = twins.batch(batch) {
                let Twins { fast, slow, now, .. } = &mut twins;
                // A run leaves path by path, and several paths may have one port.
                let [fast_sent, slow_sent] = [&mut *fast, &mut *slow].map(|engine| {
                    let mut sent = feed_batch(engine, *now, ingress, &frames);
                    sent.sort_by_key(|(port, frame)| (*port, frame.get(30..34).map(<[u8]>::to_vec)));
                    sent
                });
                let differ = (0..fast_sent.len().max(slow_sent.len())).find(|i| fast_sent.get(*i) != slow_sent.get(*i));
                prop_assert!(differ.is_none(), "{:?}", differ.map(|i| (fast_sent.get(i), slow_sent.get(i))));
                prop_assert_eq!(tick(fast, *now), tick(slow, *now));
            }
            let [fast, slow] = twins.states();
            prop_assert_eq!(fast, slow);
            assert_conserved(&twins.fast);
        }
    }
}
