//! Sub-communicators end to end in one process: what ranks are split into, and which groups that takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::collectives::{LEASE, ranks};
use crate::fabric::{Fabric, STAR, TWO_TIERS};
use crate::programs::{self, Line, Open};
use castnet_comm::{
    Collectives, CommConfig, CommError, CommPath, Communicator, Fallback, Operation, Request, SharedRnic,
};
use castnet_e2e::process::PATIENCE;
use castnet_proto::transport;
use castnet_proto::v1::ListControllerGroupsRequest;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Communicators that a drawn program has at once, at most.
const LIVE_MAX: usize = 6;

/// One step of a drawn program, the same at all ranks. Communicators are numbered in the order in which they are made.
#[derive(Clone, Debug)]
enum Step {
    /// Colour and key of each rank of a communicator.
    Split(usize, Vec<(Option<u32>, i32)>),
    Dup(usize),
    Collective(usize, Line),
    Drop(usize),
}

/// The plain model: the ranks of the job in each communicator, in order.
#[derive(Clone, Debug, Default)]
struct Model(BTreeMap<usize, Vec<u16>>, usize);

impl Model {
    fn add(&mut self, members: Vec<u16>) -> usize {
        self.0.insert(self.1, members);
        self.1 += 1;
        self.1 - 1
    }

    /// The new communicators, by colour.
    fn split(&mut self, of: usize, given: &[(Option<u32>, i32)]) -> BTreeMap<u32, usize> {
        let members = self.0[&of].clone();
        let colours: BTreeSet<u32> = given.iter().filter_map(|(colour, _)| *colour).collect();
        let part = |colour: u32| {
            let mut part: Vec<(i32, usize)> = Vec::new();
            for (rank, (own, key)) in given.iter().enumerate() {
                if *own == Some(colour) {
                    part.push((*key, rank));
                }
            }
            part.sort_unstable();
            part.into_iter().map(|(_, rank)| members[rank]).collect()
        };
        let parts: Vec<_> = colours.into_iter().map(|colour| (colour, part(colour))).collect();
        parts
            .into_iter()
            .map(|(colour, part)| (colour, self.add(part)))
            .collect()
    }
}

fn program(random: &mut ChaCha8Rng, size: u16) -> Vec<Step> {
    let mut model = Model::default();
    model.add((0..size).collect());
    let mut steps = Vec::new();
    for _ in 0..random.random_range(10..40) {
        let live: Vec<usize> = model.0.keys().copied().collect();
        let of = live[random.random_range(0..live.len())];
        let ranks = model.0[&of].len();
        let step = match random.random_range(0..8) {
            0 | 1 if live.len() + 2 <= LIVE_MAX => {
                let mut one = || {
                    let colour = random
                        .random_range(0..5_u32)
                        .checked_sub(1)
                        .map(|c| c % 2 * 0xFFFF_FFFF);
                    (colour, random.random_range(-2..2))
                };
                let given: Vec<_> = (0..ranks).map(|_| one()).collect();
                model.split(of, &given);
                Step::Split(of, given)
            }
            2 if live.len() < LIVE_MAX => {
                model.add(model.0[&of].clone());
                Step::Dup(of)
            }
            3 if of > 0 => {
                model.0.remove(&of);
                Step::Drop(of)
            }
            _ => Step::Collective(of, programs::line(random, ranks as u16)),
        };
        steps.push(step);
    }
    steps
}

/// A communicator, and the collectives that it has not waited for.
type Own = (Communicator, Vec<Open<Request<i32>>>);

fn follow(steps: &[Step], world: Communicator) {
    let rank = world.rank();
    let mut model = Model::default();
    model.add(world.members().to_vec());
    let mut own: BTreeMap<usize, Own> = [(0, (world, Vec::new()))].into();
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Split(of, given) => {
                let at = model.0[of].iter().position(|member| *member == rank);
                let new = model.split(*of, given);
                let Some(at) = at else { continue };
                let (colour, key) = given[at];
                let parent = &mut own.get_mut(of).expect("a communicator").0;
                let child = parent.split(colour, key).expect("split");
                let id = colour.map(|colour| new[&colour]);
                assert_eq!(child.is_some(), id.is_some(), "{step:?}");
                if let (Some(child), Some(id)) = (child, id) {
                    assert_eq!(child.members(), model.0[&id], "{step:?}");
                    assert_eq!(child.members()[usize::from(child.rank())], rank, "{step:?}");
                    assert_eq!(child.members().len(), usize::from(child.size()));
                    own.insert(id, (child, Vec::new()));
                }
            }
            Step::Dup(of) => {
                let id = model.add(model.0[of].clone());
                if let Some((comm, _)) = own.get(of) {
                    let twin = comm.dup();
                    assert_eq!((twin.rank(), twin.members()), (comm.rank(), comm.members()));
                    own.insert(id, (twin, Vec::new()));
                }
            }
            Step::Collective(of, line) => {
                if let Some((comm, open)) = own.get_mut(of) {
                    let (request, must) = programs::start(comm, number, *line);
                    open.push((number, *line, request, must));
                    if line.blocking {
                        programs::check(comm, open);
                    }
                }
            }
            Step::Drop(of) => {
                model.0.remove(of);
                if let Some((mut comm, mut open)) = own.remove(of) {
                    programs::check(&mut comm, &mut open);
                }
            }
        }
    }
    for (comm, open) in own.values_mut() {
        programs::check(comm, open);
    }
    let mut comms = own.into_values();
    let (world, _) = comms.next().expect("the communicator of the job");
    drop(comms);
    world.close().expect("closed");
}

fn run(seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (plan, size) = if random.random() {
        (STAR, 3_u16)
    } else {
        (TWO_TIERS, 5)
    };
    let steps = Arc::new(program(&mut random, size));
    let loss = [0.0, 0.005][random.random_range(0..2)];
    let hosts_only = random.random_range(0..4) == 0;
    println!("seed {seed}: {size} ranks, loss {loss}, between hosts {hosts_only}, {steps:?}");
    let fabric = Fabric::start(plan, seed);
    fabric.lose(loss);
    ranks(&fabric, "split", size.into(), move |_, mut config, rnic| {
        config.qp_timeout = 14;
        // As many as a program can use: those before are freed.
        config.groups_max = LIVE_MAX as u16;
        if hosts_only {
            config.fallback = Fallback::Only;
        }
        follow(&steps, Communicator::connect(config, rnic).expect("connected"));
    });
    fabric.stop();
}

#[test]
fn drawn_splits_are_those_of_the_model() {
    programs::seeds(12, run);
}

/// The groups that the controller has.
fn groups(config: &CommConfig) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = transport::controller(&config.controller, &config.security).await;
        let request = ListControllerGroupsRequest {};
        let listed = client.expect("a controller").list_groups(request).await;
        let all = listed.expect("listed").into_inner().collectives;
        all.into_iter()
            .map(|one| one.state.unwrap_or_default().name)
            .collect()
    })
}

/// Polls until the controller has these groups.
fn await_groups(world: &mut Communicator, must: &[&str]) {
    let start = Instant::now();
    loop {
        let now = groups(world.config());
        if now == must {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{now:?} instead of {must:?}");
        world.progress().expect("progress");
    }
}

/// That the ranks of a communicator work together.
fn sum(comm: &mut Communicator) {
    let must: u32 = comm.members().iter().map(|rank| u32::from(*rank) + 1).sum();
    let own = u32::from(comm.members()[usize::from(comm.rank())]) + 1;
    let mut data = vec![own; 700];
    comm.allreduce(&mut data, Operation::Sum).expect("allreduce");
    assert_eq!(data, vec![must; 700]);
}

#[test]
fn a_group_is_made_at_the_first_use_and_shared_by_equal_members() {
    let fabric = Fabric::start(STAR, 21);
    ranks(&fabric, "shared", 3, |rank, config, rnic| {
        let mut world = Communicator::connect(config, rnic).expect("connected");
        let mut pair = world.split((rank > 0).then_some(0), 0).expect("split");
        assert_eq!(groups(world.config()), ["shared"]);
        world.barrier().expect("barrier");
        if let Some(pair) = &mut pair {
            assert_eq!(pair.path(), CommPath::Unused);
            sum(pair);
        }
        world.barrier().expect("barrier");
        assert_eq!(groups(world.config()), ["shared", "shared.2.1"]);
        world.barrier().expect("barrier");
        // The same members in the same order: the same group, for each colour.
        let mut again = world
            .split(Some(u32::from(rank > 0)), 7)
            .expect("split")
            .expect("a part");
        sum(&mut again);
        if let Some(pair) = &pair {
            assert_eq!(again.path(), pair.path());
        }
        let mut whole = world.split(Some(3), 0).expect("split").expect("a part");
        sum(&mut whole);
        sum(&mut world.dup());
        assert_eq!(whole.path(), world.path());
        // Another order is another group.
        let mut turned = world
            .split(Some(0), -i32::from(rank))
            .expect("split")
            .expect("a part");
        assert_eq!((turned.rank(), turned.members()), (2 - rank, &[2, 1, 0][..]));
        sum(&mut turned);
        world.barrier().expect("barrier");
        assert_eq!(groups(world.config()), ["shared", "shared.2.1", "shared.5.0"]);
        world.barrier().expect("barrier");
        // A group that is closed is gone; one whose communicators are dropped is kept.
        turned.close().expect("closed");
        drop((again, pair));
        await_groups(&mut world, &["shared", "shared.2.1"]);
        world.barrier().expect("barrier");
        // The others go on with a group that one of its communicators leaves.
        whole.close().expect("closed");
        sum(&mut world);
        world.close().expect("closed");
    });
    fabric.stop();
}

#[test]
fn collectives_of_parent_and_part_are_interleaved() {
    let fabric = Fabric::start(TWO_TIERS, 22);
    fabric.lose(0.005);
    ranks(&fabric, "between", 5, |rank, mut config, rnic| {
        config.qp_timeout = 14;
        let mut world = Communicator::connect(config, rnic).expect("connected");
        let mut part = world
            .split(Some(u32::from(rank % 2)), 0)
            .expect("split")
            .expect("a part");
        // Larger than a window: it needs the ranks that wait in their part already, which has no group yet.
        let large = vec![1_u32; 100_000];
        let waits_at_once = rank == 3;
        let sums = world.iallreduce(large, Operation::Sum).expect("started");
        let sums = match waits_at_once {
            true => Err(world.wait(sums).expect("allreduce")),
            false => Ok(sums),
        };
        sum(&mut part);
        let sums = sums.map_or_else(|sums| sums, |sums| world.wait(sums).expect("allreduce"));
        assert_eq!(sums, vec![5; 100_000]);
        part.close().expect("closed");
        world.close().expect("closed");
    });
    fabric.stop();
}

#[test]
fn a_split_beyond_the_limit_fails_at_all_ranks_and_dropped_groups_make_room() {
    let fabric = Fabric::start(STAR, 23);
    ranks(&fabric, "bounded", 3, |rank, mut config, rnic| {
        config.groups_max = 2;
        let mut world = Communicator::connect(config, rnic).expect("connected");
        let colour = |members: [u16; 2]| members.contains(&rank).then_some(0);
        let mut first = world.split(colour([0, 1]), 0).expect("split");
        first.iter_mut().for_each(sum);
        // Rank 2 has room, but the ranks of the new group must all have it.
        for _ in 0..2 {
            let Err(error) = world.split(colour([1, 2]), 0) else {
                panic!("rank {rank} has more groups than it may");
            };
            assert_eq!(
                error.to_string(),
                "rank 1 (h2) has 2 groups of job \"bounded\" in use, which is its limit (groups_max): drop communicators, or \
                 raise it"
            );
        }
        // What needs no new group is no matter of the limit.
        sum(&mut world.split(Some(1), 0).expect("split").expect("a part"));
        let mut alone = world.split(Some(rank.into()), 0).expect("split").expect("a part");
        sum(&mut alone);
        drop(first);
        let mut second = world.split(colour([1, 2]), 0).expect("split");
        second.iter_mut().for_each(sum);
        // Rank 0 has kept its end of the first group, which rank 1 has left.
        await_groups(&mut world, &["bounded", "bounded.2.0", "bounded.7.1"]);
        world.barrier().expect("barrier");
        drop(second);
        let mut third = world.split(colour([0, 1]), 0).expect("split");
        third.iter_mut().for_each(sum);
        drop(third);
        world.close().expect("closed");
    });
    fabric.stop();
}

#[test]
fn a_rank_that_dies_is_named_in_its_part_and_all_split_again_with_its_successor() {
    let fabric = Fabric::start(STAR, 24);
    let before = Arc::new(Barrier::new(3));
    ranks(&fabric, "mortal", 3, move |rank, mut config, rnic| {
        config.timeouts.lease = LEASE;
        let shared = SharedRnic::new(rnic);
        let connect = || Communicator::connect(config.clone(), Box::new(shared.clone())).expect("connected");
        let mut world = connect();
        let split = |world: &mut Communicator| {
            let part = world.split((rank > 0).then_some(4), -i32::from(rank));
            let mut part = part.expect("split");
            part.iter_mut().for_each(sum);
            part
        };
        let part = split(&mut world);
        before.wait();
        if rank == 1 {
            drop((part, world));
            world = connect();
        } else {
            if let Some(mut part) = part {
                let error = part.barrier().expect_err("a rank is gone");
                let CommError::RankFailed { rank: gone, .. } = &error else {
                    panic!("rank {rank}: {error}");
                };
                assert_eq!((gone.rank, gone.host.as_str()), (1, "h2"), "the second of [2, 1]");
            }
            world.barrier().expect_err("a rank is gone");
        }
        drop(split(&mut world));
        world.close().expect("closed");
    });
    fabric.stop();
}

#[test]
fn ranks_that_do_not_split_as_the_others_are_named() {
    let fabric = Fabric::start(STAR, 25);
    for fallback in [Fallback::Forbidden, Fallback::Only] {
        let job = format!("odd-{fallback:?}").to_lowercase();
        ranks(&fabric, &job, 3, move |rank, mut config, rnic| {
            config.fallback = fallback;
            if fallback == Fallback::Only {
                // Of ranks that differ, some only wait.
                config.timeouts.collective = Duration::from_secs(8);
            }
            let mut world = Communicator::connect(config, rnic).expect("connected");
            let error = match rank {
                1 => world.barrier().expect_err("the others split"),
                _ => world
                    .split(Some(0), 0)
                    .map(drop)
                    .expect_err("rank 1 does not split"),
            };
            if fallback == Fallback::Forbidden {
                assert!(matches!(error, CommError::Conflict { .. }), "{error}");
                assert!(error.to_string().contains("rank 1 (h2) called"), "{error}");
            }
            let mut part = world
                .split(Some(u32::from(rank / 2)), 0)
                .expect("split")
                .expect("a part");
            sum(&mut part);
            // As many bytes as a split exchanges.
            if rank == 1 {
                world
                    .allgather((&[0_u64; 6][..], &mut [0; 18][..]))
                    .expect("allgather");
            } else {
                let error = world
                    .split(Some(0), 0)
                    .map(drop)
                    .expect_err("rank 1 does not split");
                assert!(
                    matches!(&error, CommError::NotASplit { rank } if rank.rank == 1),
                    "{error}"
                );
            }
            sum(&mut part);
            part.close().expect("closed");
            world.close().expect("closed");
        });
    }
    fabric.stop();
}
