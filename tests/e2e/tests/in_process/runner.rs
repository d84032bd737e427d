//! Collectives of runners: threads that own the RNIC, called from other threads.

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};

use castnet_comm::{Collectives, CommConfig, CommError, Fallback, Operation};
use castnet_runner::{Comm, Pending, Runner};

use crate::fabric::{Fabric, Host, STAR};

fn config(fabric: &Fabric, job: &str, rank: u16, size: u16) -> CommConfig {
    let host = fabric.hosts[usize::from(rank)].name.clone();
    let mut config = CommConfig::new(fabric.controller(), job, rank, size, host);
    config.fallback = Fallback::Forbidden;
    config
}

fn start(host: &Host) -> Runner {
    let host = host.clone();
    Runner::start::<()>(move || Ok(host.rnic())).expect("a runner")
}

/// Runs `part` at each of three ranks, each with its own runner.
fn at_ranks(job: &'static str, seed: u64, part: impl Fn(u16, &Runner, Comm) + Send + Sync + 'static) {
    let (fabric, part) = (Fabric::start(STAR, seed), Arc::new(part));
    let threads: Vec<_> = (0..3)
        .map(|rank| {
            let (host, part) = (fabric.hosts[usize::from(rank)].clone(), part.clone());
            let config = config(&fabric, job, rank, 3);
            std::thread::spawn(move || {
                let runner = start(&host);
                let comm = runner.connect(config).expect("connected");
                part(rank, &runner, comm);
            })
        })
        .collect();
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    assert!(ended.iter().all(Result::is_ok));
    fabric.stop();
}

/// More than two windows: no switch could hold it while a rank answers nobody.
const LONG: usize = 100_000;

#[test]
fn a_rank_that_computes_takes_part() {
    let others_are_done = Arc::new(Barrier::new(3));
    at_ranks("computes", 31, move |rank, _, mut comm| {
        let sums: Vec<Pending<u32>> = (0..3)
            .map(|_| {
                let sum = comm.iallreduce(vec![u32::from(rank) + 1; LONG], Operation::Sum);
                sum.expect("started")
            })
            .collect();
        if rank > 0 {
            for sum in sums {
                assert_eq!(sum.wait().expect("a sum"), vec![6; LONG]);
            }
            others_are_done.wait();
        } else {
            // This thread does nothing for its collectives while the others wait for all of them.
            others_are_done.wait();
            for mut sum in sums {
                let mut context = Context::from_waker(Waker::noop());
                let sum = loop {
                    match Future::poll(std::pin::Pin::new(&mut sum), &mut context) {
                        Poll::Ready(sum) => break sum,
                        Poll::Pending => std::thread::yield_now(),
                    }
                };
                assert_eq!(sum.expect("a sum"), vec![6; LONG]);
            }
        }
        comm.close().expect("closed");
    });
}

#[test]
fn threads_share_a_runner() {
    at_ranks("shared", 32, move |rank, runner, comm| {
        let mut halves = comm.split(Some(0), 0).expect("split").expect("a part");
        let mut dup = comm.dup().expect("dup");
        // A communicator for each thread. Each pair has a group of its own, so their calls need no order.
        let pair = (rank < 2).then_some(0);
        let mut pair = comm.split(pair, 0).expect("split");
        let (rank, own) = (u32::from(rank), u32::from(rank) + 1);
        std::thread::scope(|scope| {
            if let Some(pair) = &mut pair {
                let sum = move || {
                    for round in 0..20 {
                        let mut sum = vec![own + round; 300];
                        pair.allreduce(&mut sum, Operation::Sum).expect("a sum");
                        assert_eq!(sum, vec![3 + 2 * round; 300]);
                    }
                };
                scope.spawn(sum);
            }
            for round in 0..20 {
                let (from, mut to) = (vec![rank; 700], vec![0; 700]);
                halves
                    .allreduce((&from, &mut to), Operation::Max)
                    .expect("a maximum");
                assert_eq!(to, vec![2; 700]);
                let mut block = vec![0; 3];
                dup.allgather((&[rank + round][..], &mut block[..]))
                    .expect("gathered");
                assert_eq!(block, [round, round + 1, round + 2]);
            }
        });
        drop((halves, dup, pair));
        assert!(
            comm.path()
                .expect("a path")
                .to_string()
                .contains("in the network")
        );
        comm.close().expect("closed");
        assert!(runner_ends(runner));
    });
}

/// Whether a runner without communicators still answers.
fn runner_ends(runner: &Runner) -> bool {
    let bad = CommConfig::new(
        "http://127.0.0.1:1"
            .parse::<castnet_comm::Controllers>()
            .expect("an address"),
        "none",
        7,
        3,
        "h1",
    );
    runner.connect(bad).is_err()
}

#[test]
fn a_runner_that_stops_ends_its_calls() {
    let fabric = Fabric::start(STAR, 33);
    let (started, has_started) = channel();
    let threads: Vec<_> = (0..3)
        .map(|rank| {
            let host = fabric.hosts[usize::from(rank)].clone();
            let (config, started) = (config(&fabric, "stops", rank, 3), started.clone());
            std::thread::spawn(move || {
                let runner = start(&host);
                let mut comm = runner.connect(config).expect("connected");
                comm.barrier().expect("barrier");
                if rank == 0 {
                    return;
                }
                // Rank 0 never calls it.
                let sum = comm
                    .iallreduce(vec![1_u64; LONG], Operation::Sum)
                    .expect("started");
                let mut other = comm.clone();
                let waits = std::thread::spawn(move || other.barrier());
                started.send(()).expect("a test");
                drop(runner);
                assert!(matches!(sum.wait(), Err(CommError::Interrupted)));
                assert!(matches!(
                    waits.join().expect("joined"),
                    Err(CommError::Interrupted)
                ));
                assert!(matches!(comm.barrier(), Err(CommError::Interrupted)));
                assert!(matches!(comm.split(None, 0), Err(CommError::Interrupted)));
            })
        })
        .collect();
    (0..2).for_each(|_| has_started.recv().expect("a rank"));
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    assert!(ended.iter().all(Result::is_ok));
    fabric.stop();
}

#[test]
fn an_rnic_that_cannot_be_opened_is_an_error_of_the_runner() {
    let error = castnet_rnic::RnicError::NoRdmaDevice {
        without_driver: Vec::new(),
    };
    let text = error.to_string();
    assert_eq!(
        Runner::start(move || Err(error))
            .expect_err("refused")
            .to_string(),
        text
    );
}
