//! Consecutive contributions in a batch: fast path and slow path agree.

use std::collections::BTreeMap;

use super::batches::any_limit;
use super::collective::any_job;
use crate::common::collective::*;
use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Engine, FrameFilter, TapId};
use castnet_wire::{Batch, Opcode, Syndrome};
use proptest::prelude::*;

/// Processes a batch. Returns the sent frames by port.
fn feed_batch(engine: &mut Engine, ingress: usize, frames: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
    let mut egress = PlainEgress::default();
    let mut batch: Batch<Vec<u8>> = frames.iter().cloned().collect();
    engine.process(T0, port(ingress), &mut batch, &mut egress);
    taken(egress)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// An engine with a tap takes the slow path. Both paths give equal results for lost, repeated and corrupted frames.
    #[test]
    fn the_fast_path_does_what_the_slow_one_does(
        job in any_job(4),
        reproducible: bool,
        (rate_limit, tos) in (prop_oneof![Just(None), any_limit()], prop::array::uniform4(prop::sample::select(vec![0x68, 0x6A]))),
        steps in prop::collection::vec(
            (0usize..4, 1usize..=32, 0usize..40, prop::option::weighted(0.2, any::<prop::sample::Index>())),
            1..60,
        ),
    ) {
        let jobs = [job.clone(), job];
        let mut rule = collective_star(4).with_translated(|r| r.reproducible = reproducible);
        rule.rate_limit = rate_limit;
        let mut engines = [engine(4), engine(4)];
        engines.iter_mut().for_each(|engine| install_collective(engine, &rule));
        let [fast, slow] = &mut engines;
        let watching = TapId::all().next().unwrap();
        slow.taps.arm_trace(watching, FrameFilter::default(), u64::MAX);
        let ranks: Vec<Rank> = (0..4).map(|rank| Rank::new(rank, T0, &jobs).with_tos(tos[rank])).collect();
        let mut next = [0; 4];
        for (rank, count, back, spoiled) in steps {
            // Mostly it continues where it was.
            let from = if back < 3 { usize::saturating_sub(next[rank], back) } else { next[rank] };
            let to = (from + count).min(ranks[rank].packets.len());
            next[rank] = to.max(next[rank]);
            let mut frames: Vec<Vec<u8>> = (from..to).map(|i| ranks[rank].frame(i)).collect();
            if let (Some(at), true) = (spoiled, to > from) {
                let frame = &mut frames[at.index(to - from)];
                let bit = at.index(8 * frame.len());
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            let sent = feed_batch(fast, rank, &frames);
            prop_assert_eq!(&sent, &feed_batch(slow, rank, &frames));
            // Each rank that got something acknowledges all of it.
            let newest = sent.iter().filter(|(_, frame)| roce(frame).bth.opcode != Opcode::Ack);
            for (port, psn) in newest.map(|(port, frame)| (*port, roce(frame).bth.psn)).collect::<BTreeMap<_, _>>() {
                let ack = [ranks[port].ack(psn, Syndrome::Ack)];
                prop_assert_eq!(feed_batch(fast, port, &ack), feed_batch(slow, port, &ack));
            }
            while slow.taps.pop_trace(watching).is_some() {}
        }
        prop_assert_eq!(fast.collective_status(GROUP), slow.collective_status(GROUP));
        prop_assert_eq!(fast.totals(), slow.totals());
        prop_assert_eq!(fast.poll_timeout(), slow.poll_timeout());
        assert_conserved(fast);
    }
}
