//! Pool buffers compared with plain byte vectors.

use castnet_port::{FrameBuf, Pool, PoolBuf, PoolConfig};
use proptest::prelude::*;

fn pool() -> Pool {
    Pool::new(PoolConfig {
        buffers: 64,
        bodies: 16,
        frame_max: 600,
    })
}

/// Asserts that a frame has these bytes in every view.
fn assert_is(frame: &PoolBuf, bytes: &[u8]) {
    assert_eq!(frame.length(), bytes.len());
    assert_eq!(frame.segments().concat(), bytes);
    assert!(frame.head().len() >= bytes.len().min(PoolBuf::HEAD));
    assert_eq!(frame.head(), &bytes[..frame.head().len()]);
    let trailer = bytes.last_chunk::<4>().copied().unwrap_or_default();
    assert_eq!(frame.trailer(), trailer);
    let mut out = vec![0; bytes.len()];
    assert_eq!(frame.copy_to(&mut out), bytes.len());
    assert_eq!(out, bytes);
    assert_eq!(
        (frame.byte(bytes.len()), frame.byte(0)),
        (None, bytes.first().copied())
    );
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..=600, 124usize..=140]
}

/// An operation on a frame.
#[derive(Clone, Debug)]
enum Op {
    Head { at: usize, value: u8 },
    Trailer([u8; 4]),
    Write { at: usize, bytes: Vec<u8> },
    Replicate,
    Drop,
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let op = prop_oneof![
        (0usize..128, any::<u8>()).prop_map(|(at, value)| Op::Head { at, value }),
        any::<[u8; 4]>().prop_map(Op::Trailer),
        (0usize..600, prop::collection::vec(any::<u8>(), 0..200))
            .prop_map(|(at, bytes)| Op::Write { at, bytes }),
        Just(Op::Replicate),
        Just(Op::Drop),
    ];
    (any::<prop::sample::Index>().prop_map(|i| i.index(8)), op)
}

proptest! {
    #[test]
    fn a_copy_has_the_same_bytes(bytes in length().prop_flat_map(|n| prop::collection::vec(any::<u8>(), n)), cut in 0usize..700) {
        let pool = pool();
        let frame = pool.copy_from(&bytes).unwrap();
        assert_is(&frame, &bytes);
        let (a, b) = bytes.split_at(cut.min(bytes.len()));
        assert_is(&pool.gather(&[a, &[], b]).unwrap(), &bytes);
        assert_is(&pool.copy_of(&frame).unwrap(), &bytes);
        assert_is(&pool.allocate(bytes.len()).unwrap(), &vec![0; bytes.len()]);
    }

    /// The model of a frame is a `Vec`. An operation on one frame never changes another.
    #[test]
    fn frames_behave_as_separate_vectors(
        bytes in length().prop_flat_map(|n| prop::collection::vec(any::<u8>(), n)),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let pool = pool();
        let mut twins = vec![(pool.copy_from(&bytes).unwrap(), bytes.clone())];
        for (which, op) in ops {
            let which = which % twins.len();
            let (frame, twin) = &mut twins[which];
            match op {
                Op::Head { at, value } => {
                    if let Some(byte) = frame.head_mut().get_mut(at) {
                        *byte = value;
                        twin[at] = value;
                    }
                }
                Op::Trailer(new) => {
                    frame.set_trailer(new);
                    if let Some(trailer) = twin.last_chunk_mut() {
                        *trailer = new;
                    }
                }
                Op::Write { at, bytes } => {
                    let fits = at + bytes.len() <= twin.len();
                    prop_assert_eq!(frame.write_at(at, &bytes), fits);
                    if fits {
                        twin[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                }
                Op::Replicate if twins.len() < 10 => {
                    let (frame, twin) = &twins[which];
                    let replica = (frame.replicate().unwrap(), twin.clone());
                    twins.push(replica);
                }
                Op::Drop if twins.len() > 1 => drop(twins.swap_remove(which)),
                Op::Replicate | Op::Drop => {}
            }
            for (frame, twin) in &twins {
                assert_is(frame, twin);
            }
        }
        drop(twins);
        let stats = pool.stats();
        prop_assert_eq!((stats.buffers_free, stats.bodies_free), (64, 16), "everything came back");
    }
}

#[test]
fn an_exhausted_pool_counts_failures_and_recovers() {
    let pool = Pool::new(PoolConfig {
        buffers: 3,
        bodies: 1,
        frame_max: 1000,
    });
    let long = pool.copy_from(&[1; 500]).unwrap();
    assert!(pool.copy_from(&[2; 500]).is_none(), "no body");
    assert_eq!(
        (pool.stats().exhausted, pool.stats().buffers_free),
        (1, 2),
        "the buffer was freed"
    );
    assert!(!pool.has_capacity());
    let mut replica = long.replicate().unwrap();
    assert!(
        !replica.write_at(200, &[9]),
        "the shared body cannot be made private"
    );
    assert_eq!(replica.to_vec(), [1; 500]);
    let short = pool.copy_from(&[3; 60]).unwrap();
    assert!(
        long.replicate().is_none() && pool.allocate(10).is_none(),
        "no buffer"
    );
    assert_eq!(pool.stats().exhausted, 4);
    drop((long, short));
    assert!(replica.write_at(200, &[9]), "alone, it owns the body");
    drop(replica);
    assert!(pool.has_capacity());
    assert_eq!((pool.stats().buffers_free, pool.stats().bodies_free), (3, 1));
    assert!(pool.copy_from(&[0; 1001]).is_none(), "over the longest frame");
    assert_eq!(pool.stats().exhausted, 4, "which is not for want of buffers");
}

#[test]
fn frames_outlive_the_pool_handle() {
    let frame = pool().copy_from(&[7; 400]).unwrap();
    assert_eq!(frame.replicate().unwrap().to_vec(), [7; 400]);
}
