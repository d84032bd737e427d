//! The host's side of flow control: paused classes wait, others pass, nothing of a lossless class is lost.

use castnet_port::{
    Batch, MemLink, MemLinkConfig, Obeying, PfcConfig, Pool, PoolBuf, PoolConfig, Port, PortSpec, Sides,
};
use castnet_wire::{ClassSet, DropReason, FrameBuf, MacAddr, Nanos, Pause, TrafficClass};
use proptest::prelude::*;

fn class(n: u8) -> TrafficClass {
    TrafficClass::new(n).unwrap()
}

fn pool() -> Pool {
    Pool::new(PoolConfig {
        buffers: 1024,
        bodies: 64,
        frame_max: 1600,
    })
}

/// Tagged with the priority, and numbered.
fn frame(priority: u8, number: u32) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..18].copy_from_slice(&[0x81, 0, priority << 5, 0, 0x88, 0xB5]);
    frame[18..22].copy_from_slice(&number.to_be_bytes());
    frame
}

fn pause(priority: u8, quanta: u16) -> Vec<u8> {
    let mut pause = Pause::default();
    pause.set(class(priority), quanta);
    pause.emit(MacAddr([2; 6])).to_vec()
}

fn send(port: &mut impl Port<Buf = PoolBuf>, pool: &Pool, frame: &[u8]) {
    let mut batch = Batch::new();
    batch.extend(pool.copy_from(frame));
    port.send(&mut batch);
}

/// Priority and number of each frame that has arrived.
fn arrived(port: &mut impl Port<Buf = PoolBuf>) -> Vec<(u8, u32)> {
    let (mut got, mut batch) = (Vec::new(), Batch::new());
    loop {
        port.receive(&mut batch);
        if batch.is_empty() {
            return got;
        }
        let read = |f: &PoolBuf| {
            (
                f.head()[14] >> 5,
                u32::from_be_bytes(f.head()[18..22].try_into().unwrap()),
            )
        };
        got.extend(batch.drain(..).map(|f| read(&f)));
    }
}

#[test]
fn an_rnic_s_port_obeys_pause_until_it_runs_out_or_ends() {
    let spec: PortSpec = "memory:obeying,pfc=3,pfc.speed=1000".parse().unwrap();
    let peer: PortSpec = "memory:obeying".parse().unwrap();
    let pool = pool();
    let (mut port, mut peer) = (
        spec.open(&pool, Sides::Both).unwrap(),
        peer.open(&pool, Sides::Both).unwrap(),
    );
    let mut scratch = [0; 1600];
    // 1000 quanta at 1 Gb/s are 512 us.
    port.poll(Nanos(1_000));
    send(&mut peer, &pool, &pause(3, 1_000));
    send(&mut peer, &pool, &pause(4, 1_000));
    send(&mut peer, &pool, &frame(0, 7));
    let mut taken = 0;
    assert_eq!(port.receive_with(&mut scratch, &mut |_| taken += 1), 3);
    assert_eq!(taken, 1, "PFC frames are not for the RNIC");
    for (priority, number) in [(3, 1), (4, 2), (3, 3)] {
        send(&mut port, &pool, &frame(priority, number));
    }
    assert_eq!(arrived(&mut peer), [(4, 2)], "class 4 is not lossless");
    assert_eq!((port.pending(), port.poll_timeout()), (2, Some(Nanos(513_000))));
    port.poll(Nanos(512_999));
    assert_eq!(arrived(&mut peer), []);
    port.poll(Nanos(513_000));
    assert_eq!(arrived(&mut peer), [(3, 1), (3, 3)]);
    send(&mut peer, &pool, &pause(3, u16::MAX));
    let mut batch = Batch::new();
    port.receive(&mut batch);
    send(&mut port, &pool, &frame(3, 4));
    assert!(batch.is_empty() && arrived(&mut peer).is_empty());
    send(&mut peer, &pool, &pause(3, 0));
    port.receive(&mut batch);
    port.poll(Nanos(513_001));
    assert_eq!(
        (arrived(&mut peer), port.pending(), port.poll_timeout()),
        (vec![(3, 4)], 0, None)
    );
}

#[derive(Clone, Debug)]
enum Step {
    Send(u8),
    Pause(u8, u16),
    /// Microseconds pass.
    Wait(u64),
    /// The peer takes what has arrived.
    Take,
}

proptest! {

    #[test]
    fn lossless_classes_keep_their_frames_and_their_order(
        steps in prop::collection::vec(prop_oneof![
            6 => (2..5_u8).prop_map(Step::Send),
            2 => (2..5_u8, prop_oneof![Just(0), 1..300_u16]).prop_map(|(p, q)| Step::Pause(p, q)),
            2 => (0..100_u64).prop_map(Step::Wait),
            2 => Just(Step::Take),
        ], 0..200),
        capacity in 1..24_usize,
    ) {
        let pool = pool();
        let (a, b) = MemLink::pair(&MemLinkConfig::default().capacity(capacity));
        let config = PfcConfig {
            speed_mbps: Some(1_000),
            ..PfcConfig::new(ClassSet::from_iter([3, 4].map(class)))
        };
        let mut port = Obeying::new(a.open(&pool, Sides::Both), config);
        let mut peer = b.open(&pool, Sides::Both);
        let (mut now, mut until, mut number) = (Nanos(1), [Nanos::ZERO; 8], 0);
        let (mut sent, mut got) = (vec![Vec::new(); 8], vec![Vec::new(); 8]);
        let end = [Step::Wait(1_000_000), Step::Take].into_iter().cycle().take(100);
        for step in steps.into_iter().chain(end) {
            let paused_before = until.map(|until| until > now);
            let before: Vec<usize> = got.iter().map(Vec::len).collect();
            match step {
                Step::Send(priority) => {
                    number += 1;
                    sent[usize::from(priority)].push(number);
                    send(&mut port, &pool, &frame(priority, number));
                }
                Step::Pause(priority, quanta) => {
                    // What is on the link is not paused.
                    for (priority, number) in arrived(&mut peer) {
                        got[usize::from(priority)].push(number);
                    }
                    send(&mut peer, &pool, &pause(priority, quanta));
                    let mut batch = Batch::new();
                    port.receive(&mut batch);
                    prop_assert!(batch.is_empty());
                    if priority > 2 {
                        until[usize::from(priority)] = now + Nanos(u64::from(quanta) * 512);
                    }
                    continue;
                }
                Step::Wait(micros) => now += Nanos::from_micros(micros),
                Step::Take => {
                    for (priority, number) in arrived(&mut peer) {
                        got[usize::from(priority)].push(number);
                    }
                }
            }
            for p in (0..8).filter(|p| paused_before[*p] && matches!(step, Step::Take)) {
                prop_assert_eq!(got[p].len(), before[p], "class {} is paused", p);
            }
            port.poll(now);
        }
        prop_assert_eq!(&got[3..], &sent[3..]);
        let lost = port.stats().drops[DropReason::TxFull] as usize;
        prop_assert_eq!(got[2].len() + lost, sent[2].len());
        prop_assert_eq!((port.pending(), port.stats().drops.total() as usize), (0, lost));
    }
}
