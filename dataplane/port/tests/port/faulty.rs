//! The fault injector is repeatable, has the configured rates, and counts every lost frame.

use castnet_port::{
    Batch, FaultControl, FaultCounts, Faults, Faulty, MemLink, MemLinkConfig, MemPort, Pool, PoolBuf,
    PoolConfig, Port, Sides,
};
use castnet_wire::{DropReason, Nanos};
use proptest::prelude::*;

fn pool() -> Pool {
    Pool::new(PoolConfig {
        buffers: 2048,
        bodies: 1024,
        frame_max: 600,
    })
}

struct Net {
    pool: Pool,
    near: Faulty<MemPort>,
    far: MemPort,
}

fn net(control: &FaultControl) -> Net {
    let pool = pool();
    let (near, far) = MemLink::pair(&MemLinkConfig::default().capacity(1024).mtu(560));
    Net {
        near: control.wrap(near.open(&pool, Sides::Both), 0),
        far: far.open(&pool, Sides::Both),
        pool,
    }
}

fn frame(number: u32) -> Vec<u8> {
    let mut bytes = vec![0; 100 + (number as usize * 7) % 400];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn drain(port: &mut impl Port<Buf = PoolBuf>) -> Vec<Vec<u8>> {
    let (mut frames, mut batch) = (Vec::new(), Batch::new());
    loop {
        port.receive(&mut batch);
        if batch.is_empty() {
            return frames;
        }
        frames.extend(batch.drain(..).map(|f| f.to_vec()));
    }
}

/// Sends `count` frames through the injector in batches of `per_batch`, a microsecond apart, until no frame
/// is delayed any more. Returns the frames that arrived.
fn through(net: &mut Net, count: u32, per_batch: usize, sent: bool) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    let mut now = Nanos(1_000);
    let numbers: Vec<u32> = (0..count).collect();
    let mut step = |net: &mut Net, now: Nanos, numbers: &[u32]| {
        net.near.poll(now);
        let mut batch = Batch::new();
        batch.extend(numbers.iter().map(|&n| net.pool.copy_from(&frame(n)).unwrap()));
        if sent {
            net.near.send(&mut batch);
            arrived.extend(drain(&mut net.far));
        } else {
            net.far.send(&mut batch);
            arrived.extend(drain(&mut net.near));
        }
    };
    for numbers in numbers.chunks(per_batch) {
        step(net, now, numbers);
        now += Nanos(1_000);
    }
    while let Some(due) = net.near.poll_timeout() {
        assert!(net.near.held()[usize::from(sent)] > 0);
        now = now.max(due);
        step(net, now, &[]);
    }
    assert_eq!((net.near.held(), net.near.pending()), ([0, 0], 0));
    arrived
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[..4].try_into().unwrap())
}

const ALL: Faults = Faults {
    loss: 0.1,
    duplicate: 0.1,
    reorder: 0.1,
    corrupt: 0.1,
    delay: Nanos(3_000),
    jitter: Nanos(5_000),
};

#[test]
fn equal_seeds_give_equal_faults() {
    let run = |seed| through(&mut net(&FaultControl::new(seed).with(ALL, ALL)), 500, 8, true);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn faults_depend_on_the_frame_number_only() {
    let lost = |control: &FaultControl, per_batch, sent| {
        let arrived = through(&mut net(control), 2_000, per_batch, sent);
        let arrived: Vec<u32> = arrived.iter().map(|f| number(f)).collect();
        (0..2_000).filter(|n| !arrived.contains(n)).collect::<Vec<_>>()
    };
    let loss = Faults::loss(0.2);
    let control = || FaultControl::new(7);
    let one_by_one = lost(&control().with(Faults::NONE, loss), 1, true);
    assert_eq!(
        one_by_one,
        lost(&control().with(loss, loss), 32, true),
        "independent of the batches"
    );
    let others = Faults {
        loss: 0.2,
        duplicate: 0.3,
        reorder: 0.3,
        ..Faults::NONE
    };
    assert_eq!(
        one_by_one,
        lost(&control().with(loss, others), 32, true),
        "independent of other faults"
    );
    assert_ne!(
        one_by_one,
        lost(&control().with(loss, loss), 32, false),
        "the directions are independent"
    );
}

#[test]
fn rates_are_as_configured() {
    let control = FaultControl::new(3).with(
        Faults::NONE,
        Faults {
            delay: Nanos(0),
            jitter: Nanos(0),
            ..ALL
        },
    );
    let mut net = net(&control);
    through(&mut net, 20_000, 32, true);
    let [rx, tx] = control.counts();
    assert_eq!((tx.frames, rx), (20_000, FaultCounts::default()));
    // A tenth of the frames that are not lost. Six standard deviations are 250.
    for (what, count, expected) in [
        ("lost", tx.lost, 2_000_u64),
        ("duplicated", tx.duplicated, 1_800),
        ("reordered", tx.reordered, 1_800),
        ("corrupted", tx.corrupted, 1_800),
    ] {
        assert!(count.abs_diff(expected) < 250, "{what}: {count} for {expected}");
    }
    assert_eq!(net.near.stats().drops[DropReason::Injected], tx.lost);
}

#[test]
fn probabilities_0_and_1_are_exact_and_can_change_at_run_time() {
    let control = FaultControl::new(9);
    let mut net = net(&control);
    assert!(control.is_idle());
    assert_eq!(through(&mut net, 100, 32, true).len(), 100);
    control.set_tx(Faults::loss(1.0));
    assert_eq!(through(&mut net, 100, 32, true).len(), 0);
    assert_eq!(through(&mut net, 100, 32, false).len(), 100);
    control.set_tx(Faults {
        duplicate: 1.0,
        ..Faults::NONE
    });
    assert_eq!(through(&mut net, 100, 32, true).len(), 200);
    assert_eq!(control.faults()[1].duplicate, 1.0);
}

#[test]
fn a_corrupted_frame_differs_in_one_bit_and_its_replicas_do_not() {
    let control = FaultControl::new(5).with(
        Faults::NONE,
        Faults {
            corrupt: 1.0,
            ..Faults::NONE
        },
    );
    let mut net = net(&control);
    let original = vec![0; 500];
    let mut hit = [false; 5];
    for _ in 0..300 {
        let kept = net.pool.copy_from(&original).unwrap();
        let mut batch = Batch::new();
        batch.push(kept.replicate().unwrap());
        net.near.send(&mut batch);
        assert_eq!(kept.to_vec(), original);
        let arrived = drain(&mut net.far).remove(0);
        assert_eq!(arrived.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        let at = arrived.iter().position(|&b| b != 0).unwrap();
        hit[at / 100] = true;
    }
    assert_eq!(hit, [true; 5], "anywhere in the frame");
}

#[test]
fn a_delay_is_exact_and_keeps_the_order() {
    let delay = Faults {
        delay: Nanos(10_000),
        ..Faults::NONE
    };
    let control = FaultControl::new(5).with(delay, Faults::NONE);
    let mut net = net(&control);
    let mut batch = Batch::new();
    batch.extend((0..3).map(|n| net.pool.copy_from(&frame(n)).unwrap()));
    net.far.send(&mut batch);
    net.near.poll(Nanos(500));
    assert!(drain(&mut net.near).is_empty());
    assert_eq!(
        (net.near.poll_timeout(), net.near.held()),
        (Some(Nanos(10_500)), [3, 0])
    );
    net.near.poll(Nanos(10_499));
    assert!(!net.near.ready() && drain(&mut net.near).is_empty());
    net.near.poll(Nanos(10_500));
    assert!(net.near.ready());
    assert_eq!(drain(&mut net.near), [frame(0), frame(1), frame(2)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Received frames plus copies equal delivered plus lost frames. Nothing else changes.
    #[test]
    fn every_lost_frame_is_counted(
        seed: u64, loss in 0.0..0.5, duplicate in 0.0..0.5, reorder in 0.0..0.5, delay in 0u64..5_000, jitter in 0u64..5_000, sent: bool,
    ) {
        let faults = Faults { loss, duplicate, reorder, corrupt: 0.0, delay: Nanos(delay), jitter: Nanos(jitter) };
        let control = FaultControl::new(seed).with(faults, faults);
        let mut net = net(&control);
        let arrived = through(&mut net, 300, 16, sent);
        let counts = control.counts()[usize::from(sent)];
        prop_assert_eq!(counts.frames, 300);
        prop_assert_eq!(arrived.len() as u64, 300 + counts.duplicated - counts.lost);
        for bytes in &arrived {
            prop_assert_eq!(bytes, &frame(number(bytes)));
        }
        prop_assert_eq!(net.pool.stats().buffers_free, 2048, "no buffer is kept");
    }

    /// A reordered frame is overtaken by at most eight frames and their duplicates.
    #[test]
    fn reordering_is_bounded(seed: u64) {
        let control = FaultControl::new(seed).with(Faults::NONE, Faults { reorder: 0.3, ..Faults::NONE });
        let arrived = through(&mut net(&control), 300, 32, true);
        for (place, bytes) in arrived.iter().enumerate() {
            let overtaken_by = arrived[..place].iter().filter(|f| number(f) > number(bytes)).count();
            prop_assert!(overtaken_by <= 8, "{} by {}", number(bytes), overtaken_by);
        }
        prop_assert!(control.counts()[1].reordered > 40);
    }
}
