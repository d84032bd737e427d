//! Ranks that end, are late, disagree, or cannot share memory.

use std::time::Duration;

use castnet_comm::{Collectives, CommError, Operation};

use super::{job, options};
use crate::{Options, PathChoice, RankPath};

const PIECE: usize = 4 << 10;

/// Ranks 0, 1 and 3 of one host, 2 and 4 of another.
const HOSTS: [u8; 5] = [0, 0, 1, 0, 1];

#[test]
fn a_rank_that_ends_is_named_at_its_host_and_ends_the_others() {
    let ends = job(
        &HOSTS,
        |_| (),
        options(PIECE),
        |ranks| {
            let mut ranks = ranks.expect("ranks");
            let mut data = vec![1_u32; 5000];
            ranks.allreduce(&mut data, Operation::Sum).expect("a sum");
            if ranks.rank() == 3 {
                return None;
            }
            let error = ranks
                .allreduce(&mut data, Operation::Sum)
                .expect_err("rank 3 is gone");
            // The segment is not used again.
            let again = ranks.barrier().expect_err("failed before");
            assert!(matches!(again, CommError::NoHierarchy { .. }), "{again}");
            Some((ranks.rank(), error.to_string()))
        },
    );
    for (rank, error) in ends.into_iter().flatten() {
        match rank {
            0 | 1 => assert!(error.starts_with("rank 3 (h0) is gone"), "{rank}: {error}"),
            // Its leader has left the network.
            2 => assert!(error.contains("the group has failed"), "{error}"),
            _ => assert!(error.starts_with("rank 2 (h1) is gone"), "{rank}: {error}"),
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_when_the_time_is_over() {
    let short = |config: &mut castnet_comm::CommConfig| {
        config.timeouts.collective = Duration::from_millis(60);
    };
    let others = std::sync::Barrier::new(3);
    let ends = job(&[0, 0, 0], short, options(PIECE), |ranks| {
        let mut ranks = ranks.expect("ranks");
        let error = (ranks.rank() != 2).then(|| ranks.barrier().expect_err("rank 2 is late"));
        others.wait();
        error
    });
    let timed_out = ends.iter().flatten().any(|error| match error {
        CommError::TimedOut { missing, .. } => missing.iter().any(|name| name.rank == 2),
        _ => false,
    });
    assert!(timed_out, "{ends:?}");
}

#[test]
fn ranks_of_a_host_that_disagree_get_an_error() {
    let ends = job(
        &[0, 0, 0],
        |_| (),
        options(PIECE),
        |ranks| {
            let mut ranks = ranks.expect("ranks");
            let mut data = vec![1_u32; 3000];
            match ranks.rank() {
                1 => ranks.broadcast(&mut data, 1),
                _ => ranks.allreduce(&mut data, Operation::Sum),
            }
            .expect_err("other calls")
        },
    );
    assert!(
        ends.iter()
            .any(|error| matches!(error, CommError::Mismatch { .. })),
        "{ends:?}"
    );
}

/// Rank 0 has other settings than the others, so that its call is direct.
#[test]
fn ranks_on_different_paths_get_an_error() {
    let change = |config: &mut castnet_comm::CommConfig| config.reproducible = config.rank == 0;
    let ends = job(&[0, 0, 1, 1], change, Options::new(PathChoice::Auto), |ranks| {
        let mut ranks = ranks.expect("ranks");
        let (from, mut to) = (vec![1.0_f32; 1 << 20], vec![0.0; 1 << 20]);
        ranks
            .allreduce((&from, &mut to), Operation::Sum)
            .expect_err("two paths")
    });
    let is_mismatch = |error: &CommError| matches!(error, CommError::Mismatch { rank, .. } if rank.rank == 0);
    assert!(is_mismatch(&ends[1]), "{ends:?}");
}

#[test]
fn rank_order_is_kept_or_refused() {
    let reproducible = |config: &mut castnet_comm::CommConfig| config.reproducible = true;
    // In rank order: (1e8 + 1) - 1e8 + 1 = 1 in f32. As (1e8 + 1) + (-1e8 + 1) it would be 0 or 2.
    let values = [1e8_f32, 1.0, -1e8, 1.0];
    let ends = job(&[0, 0, 0, 0], reproducible, options(PIECE), |ranks| {
        let mut ranks = ranks.expect("ranks");
        let mut data = [values[usize::from(ranks.rank())]; 3000];
        ranks.allreduce(&mut data, Operation::Sum).expect("a sum");
        data.to_vec()
    });
    let in_order = values.iter().fold(None, |sum: Option<f32>, value| {
        Some(sum.map_or(*value, |sum| sum + value))
    });
    assert!(ends.iter().flatten().all(|sum| Some(*sum) == in_order));

    job(&[0, 0, 1, 1], reproducible, options(PIECE), |ranks| {
        let mut ranks = ranks.expect("ranks");
        let refused = ranks
            .allreduce(&mut [1.0_f32; 10], Operation::Sum)
            .expect_err("no order");
        assert!(refused.to_string().contains("in rank order"), "{refused}");
        // The order of these does not matter.
        ranks
            .allreduce(&mut [1.0_f32; 10], Operation::Max)
            .expect("a maximum");
        ranks.allreduce(&mut [1_i32; 10], Operation::Sum).expect("a sum");
        ranks.close().expect("closed");
    });
    job(
        &[0, 0, 1, 1],
        reproducible,
        Options::new(PathChoice::Auto),
        |ranks| {
            let ranks = ranks.expect("ranks");
            let path = |operation| {
                let f32 = castnet_comm::DataType::F32;
                ranks.path_of(
                    castnet_comm::machine::Collective::AllReduce,
                    operation,
                    f32,
                    1 << 30,
                )
            };
            assert_eq!(path(Operation::Sum).expect("a path"), RankPath::Direct);
            assert_eq!(path(Operation::Max).expect("a path"), RankPath::Hierarchical);
        },
    );
}

#[test]
fn a_call_that_does_not_block_is_direct_beside_others_or_refused() {
    for path in [PathChoice::Auto, PathChoice::Hierarchical] {
        job(
            &[0, 0, 1],
            |_| (),
            Options::new(path),
            |ranks| {
                let mut ranks = ranks.expect("ranks");
                let started = ranks.iallreduce(vec![1_u32; 300], Operation::Sum);
                let mut data = vec![2_u32; 3000];
                ranks.allreduce(&mut data, Operation::Sum).expect("a sum");
                assert_eq!(data, vec![6; 3000]);
                assert_eq!(ranks.last_path(), RankPath::Hierarchical);
                match started {
                    Ok(started) => assert_eq!(ranks.wait(started).expect("a sum"), vec![3; 300]),
                    Err(error) => assert!(matches!(error, CommError::NoHierarchy { .. }), "{error}"),
                }
                let counted = ranks.counters();
                let direct = u64::from(path == PathChoice::Auto);
                assert_eq!((counted.direct_calls, counted.hierarchical_calls), (direct, 1));
                ranks.close().expect("closed");
            },
        );
    }
}

#[test]
fn other_options_are_refused_and_hosts_of_one_rank_are_direct() {
    let ends = job(
        &[0, 1, 2],
        |_| (),
        Options::new(PathChoice::Auto),
        |ranks| {
            let ranks = ranks.expect("ranks");
            ranks.layout().map(drop).expect_err("none").to_owned()
        },
    );
    assert!(
        ends.iter().all(|end| end == "no host has several ranks"),
        "{ends:?}"
    );
    let refused = job(&[0, 1], |_| (), options(PIECE), |ranks| ranks.map(drop));
    assert!(
        refused
            .iter()
            .all(|end| matches!(end, Err(CommError::NoHierarchy { .. })))
    );
    for piece in [0, 5000, 2 << 10, 1 << 30] {
        let refused = job(&[0, 0], |_| (), options(piece), |ranks| ranks.map(drop));
        assert!(refused.iter().all(Result::is_err), "{piece}");
    }
}
