//! Collectives end to end in one process: switches with agents and a controller, hosts as threads with software RNICs, memory links
//! that lose frames.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::fabric::{Fabric, STAR, TWO_TIERS};
use castnet_comm::{
    Collectives, CommConfig, CommError, CommPath, Communicator, Element, Fallback, Operation, SharedRnic,
    bf16, f16,
};
use castnet_e2e::process::PATIENCE;
use castnet_rnic::Rnic;

/// After which a rank that is silent is dead, or a collective does not end: a busy machine is not silent for so long.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// Runs a rank's part on a thread of each host, and gives what they return, in rank order.
pub(crate) fn ranks<R: Send + 'static>(
    fabric: &Fabric,
    job: &str,
    count: usize,
    part: impl Fn(u16, CommConfig, Box<dyn Rnic>) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let part = Arc::new(part);
    let threads: Vec<_> = fabric.hosts[..count]
        .iter()
        .enumerate()
        .map(|(rank, host)| {
            let (host, part) = (host.clone(), part.clone());
            let rank = rank as u16;
            let mut config = CommConfig::new(fabric.controller(), job, rank, count as u16, host.name.clone());
            config.fallback = Fallback::Forbidden;
            std::thread::spawn(move || part(rank, config, host.rnic()))
        })
        .collect();
    threads
        .into_iter()
        .map(|t| t.join().expect("a rank's thread"))
        .collect()
}

/// What a rank contributes as element `index`: small whole numbers, exact in every type that is used here.
fn value(rank: u16, index: usize) -> i64 {
    ((index * 7 + usize::from(rank) * 3) % 8) as i64
}

fn vector<T: Element>(length: usize, of: impl Fn(i64) -> T, at: impl Fn(usize) -> i64) -> Vec<T> {
    (0..length).map(|i| of(at(i))).collect()
}

fn sum(size: u16, index: usize) -> i64 {
    (0..size).map(|rank| value(rank, index)).sum()
}

/// Every collective, of several lengths, in place and not, from all roots; that all results are right.
fn everything<T: Element>(comm: &mut Communicator, lengths: &[usize], of: fn(i64) -> T) {
    let (rank, size) = (comm.rank(), comm.size());
    let n = usize::from(size);
    for &length in lengths {
        let mine = || vector(length, of, |i| value(rank, i));
        let all = || vector(length, of, |i| sum(size, i));
        let mut data = mine();
        comm.allreduce(&mut data, Operation::Sum).expect("allreduce");
        assert_eq!(data, all(), "allreduce of {length} in place");
        let (from, mut to) = (mine(), mine());
        comm.allreduce((&from, &mut to), Operation::Sum)
            .expect("allreduce");
        assert_eq!((from, to), (mine(), all()), "allreduce of {length}");
        comm.barrier().expect("barrier");
        for root in 0..size {
            let mut data = mine();
            comm.reduce(&mut data, Operation::Sum, root).expect("reduce");
            let must = if rank == root { all() } else { mine() };
            assert_eq!(data, must, "reduce of {length} to {root}");
            let mut data = if rank == root {
                mine()
            } else {
                vector(length, of, |_| 5)
            };
            comm.broadcast(&mut data, root).expect("broadcast");
            let must = vector(length, of, |i| value(root, i));
            assert_eq!(data, must, "broadcast of {length} from {root}");
        }
        let blocks = vector(length * n, of, |i| value(rank, i));
        let own = usize::from(rank) * length;
        let mut block = vector(length, of, |_| 5);
        comm.reduce_scatter((&blocks, &mut block), Operation::Sum)
            .expect("reduce_scatter");
        let must = vector(length, of, |i| sum(size, own + i));
        assert_eq!(block, must, "reduce_scatter of {length}");
        let mut blocks = blocks;
        comm.reduce_scatter(&mut blocks, Operation::Sum)
            .expect("reduce_scatter");
        assert_eq!(
            blocks[own..own + length],
            must,
            "reduce_scatter of {length} in place"
        );
        let mut gathered = vector(length * n, of, |_| 5);
        comm.allgather((&mine(), &mut gathered)).expect("allgather");
        let must = vector(length * n, of, |i| {
            value((i / length.max(1)) as u16, i % length.max(1))
        });
        assert_eq!(gathered, must, "allgather of {length}");
        let mut gathered = vector(length * n, of, |_| 5);
        gathered[own..own + length].clone_from_slice(&mine());
        comm.allgather(&mut gathered).expect("allgather");
        assert_eq!(gathered, must, "allgather of {length} in place");
    }
}

#[test]
fn all_collectives_over_one_switch() {
    let fabric = Fabric::start(STAR, 1);
    let paths = ranks(&fabric, "all", 3, |_, config, rnic| {
        let mut comm = Communicator::connect(config, rnic).expect("connected");
        let path = comm.path();
        everything::<f32>(&mut comm, &[0, 1, 255, 256, 1000, 40_000], |v| v as f32);
        everything::<f16>(&mut comm, &[3, 2049], |v| f16::from_f64(v as f64));
        everything::<i8>(&mut comm, &[7, 5000], |v| v as i8);
        everything::<u64>(&mut comm, &[777], |v| v as u64);
        // The others of the twelve types.
        everything::<f64>(&mut comm, &[129], |v| v as f64);
        everything::<bf16>(&mut comm, &[5, 900], |v| bf16::from_f64(v as f64));
        everything::<i16>(&mut comm, &[513], |v| v as i16);
        everything::<i32>(&mut comm, &[514], |v| v as i32);
        everything::<i64>(&mut comm, &[129], |v| v);
        everything::<u8>(&mut comm, &[1025], |v| v as u8);
        everything::<u16>(&mut comm, &[511], |v| v as u16);
        everything::<u32>(&mut comm, &[257], |v| v as u32);
        comm.close().expect("closed");
        path
    });
    for path in paths {
        let CommPath::InNetwork { switches, .. } = &path else {
            panic!("{path}");
        };
        assert_eq!(switches, &["s"]);
    }
    fabric.stop();
}

#[test]
fn all_collectives_over_two_tiers_that_lose_frames() {
    let fabric = Fabric::start(TWO_TIERS, 2);
    fabric.lose(0.01);
    ranks(&fabric, "lossy", 5, |_, mut config, rnic| {
        config.qp_timeout = 14;
        let mut comm = Communicator::connect(config, rnic).expect("connected");
        // The last size is lent to the RNIC.
        everything::<i32>(&mut comm, &[0, 300, 6000, 20_000], |v| v as i32);
        comm.close().expect("closed");
    });
    fabric.stop();
}

#[test]
fn all_collectives_between_hosts_that_lose_frames() {
    let fabric = Fabric::start(TWO_TIERS, 3);
    fabric.lose(0.01);
    ranks(&fabric, "hosts", 5, |_, mut config, rnic| {
        config.fallback = Fallback::Only;
        config.qp_timeout = 14;
        let mut comm = Communicator::connect(config, rnic).expect("connected");
        assert!(matches!(comm.path(), CommPath::HostBased { reason } if reason == "asked for"));
        everything::<f64>(&mut comm, &[0, 1, 300, 20_000], |v| v as f64);
        comm.close().expect("closed");
    });
    fabric.stop();
}

#[test]
fn many_at_once_end_in_any_order_of_waiting() {
    let fabric = Fabric::start(STAR, 4);
    ranks(&fabric, "many", 3, |rank, config, rnic| {
        let mut comm = Communicator::connect(config, rnic).expect("connected");
        let mine = |length| vector(length, |v| v as i32, |i| value(rank, i));
        let all = |length| vector(length, |v| v as i32, |i| sum(3, i));
        let first = comm.iallreduce(mine(5000), Operation::Sum).expect("started");
        let second = comm.ibroadcast(mine(3000), 1).expect("started");
        let barrier = comm.ibarrier().expect("started");
        let third = comm
            .ireduce((mine(700), vec![0; 700]), Operation::Max, 2)
            .expect("started");
        // A blocking one behind them.
        let mut data = mine(10);
        comm.allreduce(&mut data, Operation::Sum).expect("allreduce");
        assert_eq!(data, all(10));
        let max = comm.wait(third).expect("reduce");
        if rank == 2 {
            let must = vector(
                700,
                |v| v as i32,
                |i| (0..3).map(|r| value(r, i)).max().unwrap_or(0),
            );
            assert_eq!(max, must);
        }
        assert!(comm.test(&barrier).expect("tested"));
        comm.wait(barrier).expect("barrier");
        let must = vector(3000, |v| v as i32, |i| value(1, i));
        assert_eq!(comm.wait(second).expect("broadcast"), must);
        assert_eq!(comm.wait(first).expect("allreduce"), all(5000));
        comm.close().expect("closed");
    });
    fabric.stop();
}

/// ReduceScatter and AllGather of two groups on the same RNICs, both under way at once.
#[test]
fn two_groups_share_an_rnic() {
    let fabric = Fabric::start(STAR, 5);
    ranks(&fabric, "left", 3, |rank, config, rnic| {
        let shared = SharedRnic::new(rnic);
        let mut other = config.clone();
        other.job = "right".to_owned();
        let mut left = Communicator::connect(config, Box::new(shared.clone())).expect("connected");
        let mut right = Communicator::connect(other, Box::new(shared)).expect("connected");
        let length = 20_000;
        let blocks = vector(3 * length, |v| v as f32, |i| value(rank, i));
        let scatter = left
            .ireduce_scatter((blocks, vec![0.0; length]), Operation::Sum)
            .expect("started");
        let own = vector(length, |v| v as f32, |i| value(rank, i));
        let gather = right.iallgather((own, vec![0.0; 3 * length])).expect("started");
        let start = Instant::now();
        while !(left.test(&scatter).expect("tested") & right.test(&gather).expect("tested")) {
            assert!(start.elapsed() < PATIENCE);
        }
        let at = usize::from(rank) * length;
        let must = vector(length, |v| v as f32, |i| sum(3, at + i));
        assert_eq!(left.wait(scatter).expect("reduce_scatter"), must);
        let must = vector(
            3 * length,
            |v| v as f32,
            |i| value((i / length) as u16, i % length),
        );
        assert_eq!(right.wait(gather).expect("allgather"), must);
        // Both must be alive until all are done with both.
        let (a, b) = (left.barrier(), right.barrier());
        a.and(b).expect("barriers");
    });
    fabric.stop();
}

#[test]
fn ranks_that_disagree_are_named_and_the_group_stays_usable() {
    let fabric = Fabric::start(TWO_TIERS, 6);
    ranks(&fabric, "odd", 5, |rank, config, rnic| {
        let mut comm = Communicator::connect(config, rnic).expect("connected");
        for round in 0..2 {
            let length = if rank == 3 { 100 } else { 200 };
            let mut data = vec![1_i32; length];
            let error = comm
                .allreduce(&mut data, Operation::Sum)
                .expect_err("ranks disagree");
            match &error {
                CommError::Conflict { first, second, .. } => {
                    assert!([first.0.rank, second.0.rank].contains(&3), "{error}");
                    assert_ne!(first.1.elements, second.1.elements);
                }
                other => panic!("rank {rank}, round {round}: {other}"),
            }
            let text = error.to_string();
            assert!(text.contains("rank 3") && text.contains("h4"), "{error}");
            assert!(text.contains("100") && text.contains("200"), "{error}");
            // The next call joins again.
            let mut data = vec![1_i32; 200];
            comm.allreduce(&mut data, Operation::Sum).expect("allreduce");
            assert_eq!(data, vec![5; 200]);
        }
        comm.close().expect("closed");
    });
    fabric.stop();
}

#[test]
fn a_rank_that_dies_is_named_to_the_others() {
    let fabric = Fabric::start(STAR, 8);
    let before = Arc::new(Barrier::new(3));
    ranks(&fabric, "dying", 3, move |rank, mut config, rnic| {
        config.timeouts.lease = LEASE;
        let mut comm = Communicator::connect(config, rnic).expect("connected");
        comm.barrier().expect("barrier");
        before.wait();
        if rank == 1 {
            return;
        }
        let mut data = vec![1_u32; 100];
        let error = comm
            .allreduce(&mut data, Operation::Sum)
            .expect_err("a rank is gone");
        let CommError::RankFailed { rank: gone, .. } = &error else {
            panic!("rank {rank}: {error}");
        };
        assert_eq!((gone.rank, gone.host.as_str()), (1, "h2"));
    });
    fabric.stop();
}

/// The others go on with who comes in its place: it has not counted how often they have joined.
#[test]
fn a_rank_that_died_is_replaced() {
    let fabric = Fabric::start(STAR, 11);
    for fallback in [Fallback::Forbidden, Fallback::Only] {
        let job = format!("replaced-{fallback:?}").to_lowercase();
        let before = Arc::new(Barrier::new(3));
        ranks(&fabric, &job, 3, move |rank, mut config, rnic| {
            config.timeouts.lease = LEASE;
            config.timeouts.collective = Duration::from_secs(8);
            config.qp_timeout = 14;
            config.fallback = fallback;
            let shared = SharedRnic::new(rnic);
            let connect =
                || Communicator::connect(config.clone(), Box::new(shared.clone())).expect("connected");
            let mut comm = connect();
            comm.barrier().expect("barrier");
            before.wait();
            if rank == 1 {
                drop(comm);
                comm = connect();
            } else {
                let mut data = vec![1_u32; 100];
                comm.allreduce(&mut data, Operation::Sum)
                    .expect_err("a rank is gone");
            }
            let mut data = vec![1_u32; 100];
            comm.allreduce(&mut data, Operation::Sum).expect("allreduce");
            assert_eq!(data, vec![3; 100]);
            comm.close().expect("closed");
        });
    }
    fabric.stop();
}

#[test]
fn a_collective_that_does_not_end_says_what_it_waited_for() {
    let fabric = Fabric::start(STAR, 9);
    let after = Arc::new(Barrier::new(3));
    ranks(&fabric, "stuck", 3, move |rank, mut config, rnic| {
        config.timeouts.collective = LEASE;
        let mut comm = Communicator::connect(config, rnic).expect("connected");
        comm.barrier().expect("barrier");
        if rank != 2 {
            let error = comm.barrier().expect_err("rank 2 does not call");
            assert!(matches!(error, CommError::TimedOut { .. }), "{error}");
            assert!(error.to_string().contains("all ranks to call"), "{error}");
        }
        after.wait();
    });
    fabric.stop();
}

/// Rank 1 stops in the middle of a call, and continues when the others have given it up.
#[test]
fn memory_of_a_call_that_was_given_up_is_not_written() {
    let fabric = Fabric::start(STAR, 12);
    let [given_up, after] = [0; 2].map(|_| Arc::new(Barrier::new(3)));
    ranks(&fabric, "given-up", 3, move |rank, mut config, rnic| {
        config.timeouts.collective = LEASE;
        let mut rnic = SharedRnic::new(rnic);
        let mut comm = Communicator::connect(config, Box::new(rnic.clone())).expect("connected");
        comm.barrier().expect("barrier");
        let mut data = vec![1_u32; 1_000_000];
        if rank == 1 {
            let _sum = comm.iallreduce(data, Operation::Sum).expect("begun");
            (0..5).for_each(|_| drop(comm.progress()));
            given_up.wait();
            (0..2000).for_each(|_| drop(comm.progress()));
            after.wait();
            return;
        }
        comm.allreduce(&mut data, Operation::Sum)
            .expect_err("rank 1 has stopped");
        let sums = data.iter().filter(|&&sum| sum == 3).count();
        println!("rank {rank} had {sums} sums");
        data.fill(7);
        given_up.wait();
        for _ in 0..2000 {
            let now = rnic.now();
            drop(rnic.poll(now));
        }
        after.wait();
        assert!(data.iter().all(|&word| word == 7));
    });
    fabric.stop();
}

#[test]
fn what_the_network_refuses_is_done_between_hosts() {
    let fabric = Fabric::start(STAR, 10);
    ranks(&fabric, "big", 3, |_, mut config, rnic| {
        // Slots for two such windows are more than a switch has.
        config.window_packets = 16_384;
        config.message_packets = 64;
        config.pmtu = castnet_wire::Pmtu::B4096;
        config.reproducible = true;
        let error = match Communicator::connect(config.clone(), rnic) {
            Err(error) => error,
            Ok(comm) => panic!("{}", comm.path()),
        };
        let CommError::Refused { switch, reason } = &error else {
            panic!("{error}");
        };
        assert!(
            switch.as_deref() == Some("s") && reason.contains("bytes"),
            "{error}"
        );
    });
    ranks(&fabric, "big2", 3, |_, mut config, rnic| {
        config.window_packets = 16_384;
        config.message_packets = 64;
        config.pmtu = castnet_wire::Pmtu::B4096;
        config.reproducible = true;
        config.fallback = Fallback::Allowed;
        let mut comm = Communicator::connect(config, rnic).expect("connected");
        let CommPath::HostBased { reason } = comm.path() else {
            panic!("{}", comm.path());
        };
        assert!(reason.contains("bytes"), "{reason}");
        everything::<i16>(&mut comm, &[0, 5000], |v| v as i16);
        comm.close().expect("closed");
    });
    fabric.stop();
}
