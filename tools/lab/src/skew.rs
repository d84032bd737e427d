//! `castnet-lab skew`: broadcasts among processes that are late (NIC-based multicast over Myrinet, 7.2 and 7.3).

use std::time::{Duration, Instant};

use castnet_comm::{Collectives, CommConfig, CommError, Communicator, Fallback, Operation, SharedRnic};
use castnet_commands::collective::{Call, HowArgs, RankArgs, Sizes, failure, median, wrong_elements};
use castnet_commands::{Stop, failure as host_failure};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::units::{self, Span, name};
use castnet_member::{Group, Member, MemberConfig, Prepared};
use castnet_rnic::stream::{Flow, StreamError};
use castnet_rnic::{Access, Completion, LocalSlice, MemoryRegion, Rnic, RnicError, SendOp, SendWr, Status};
use castnet_wire::Qpn;
use clap::Args;
use indicatif::ProgressBar;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use crate::help::SKEW_HELP;

/// Bytes after a message: its number. A receiver that reads the number there has the message.
const NUMBER: usize = 8;
/// Longest message.
const LONGEST: u64 = 1 << 20;
const SKEW_MAX: Duration = Duration::from_secs(1);
/// Between the sizes of a range.
const FACTOR: u64 = 4;
/// Measured calls of each size and skew.
const CALLS: u32 = 100;
/// Longest sleep of a process that waits.
const SLEEP_MAX: Duration = Duration::from_millis(2);

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What is measured (the same at all ranks)")]
struct SkewArgs {
    /// The multicast group: rank 0 is its source, the other ranks are its receivers
    #[arg(long, value_parser = name)]
    group: String,
    /// Bytes of a message: one, several (4K,64K) or a range (4..64K, each four times the one before); at most 1M
    #[arg(long, value_name = "SIZES", default_value = "4,2K,4K,8K")]
    bytes: Sizes,
    /// Average skew, at most 1s; of several, all with commas between them
    #[arg(
        long,
        value_name = "TIMES",
        value_delimiter = ',',
        default_value = "0,500us,1ms,2ms,4ms"
    )]
    skew: Vec<Span>,
    /// What the times are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Times of the calls of one size and skew.
#[derive(Clone, Debug, Serialize)]
struct Point {
    ranks: u16,
    bytes: u64,
    skew_us: f64,
    /// Of the group.
    multicast: Times,
    /// Of the tree or chain of hosts.
    hosts: Times,
    /// Messages that were not what rank 0 sent, at all ranks.
    wrong: u64,
}

/// In microseconds: from the call of a process until it has the data and need not pass it on any more.
#[derive(Clone, Copy, Debug, Serialize)]
struct Times {
    /// Mean of all processes and calls.
    mean_us: f64,
    /// The process that takes longest; median over calls.
    last_us: f64,
}

#[derive(Debug, Serialize)]
struct Skews {
    points: Vec<Point>,
}

impl Report for Skews {
    fn page(&self, page: &mut Page) {
        let row = |point: &Point| {
            let (group, hosts) = (point.multicast, point.hosts);
            let times = |us: f64| units::span(Duration::from_secs_f64(us / 1e6));
            let factor = |group: f64, hosts: f64| format!("{:.2}", hosts / group);
            vec![
                point.ranks.to_string(),
                units::bytes(point.bytes),
                times(point.skew_us),
                times(group.mean_us),
                times(hosts.mean_us),
                factor(group.mean_us, hosts.mean_us),
                times(group.last_us),
                times(hosts.last_us),
                factor(group.last_us, hosts.last_us),
                point.wrong.to_string(),
            ]
        };
        page.table(
            &[
                "ranks",
                "message",
                "skew",
                "group",
                "hosts",
                "factor",
                "group last",
                "hosts last",
                "factor last",
                "#wrong",
            ],
            self.points.iter().map(row).collect(),
        );
    }
}

impl SkewArgs {
    fn check(&self, rank: &RankArgs, how: &HowArgs) -> Outcome {
        if let Some(bytes) = self
            .bytes
            .list(FACTOR)
            .into_iter()
            .find(|bytes| !(1..=LONGEST).contains(bytes))
        {
            let least = units::bytes(bytes);
            return Err(Failure::usage(format!(
                "--bytes {least}: a message has 1 B to 1 MiB"
            )));
        }
        if let Some(skew) = self.skew.iter().find(|skew| skew.0 > SKEW_MAX) {
            let skew = units::span(skew.0);
            return Err(Failure::usage(format!("--skew {skew}: at most 1 s is possible")));
        }
        if rank.size < 2 {
            return Err(Failure::usage("--size 1: a broadcast has a receiver").next("--size 2 or more"));
        }
        if rank.ranks_here != 1 || how.network.runner {
            return Err(Failure::usage(
                "--ranks-here and --runner: a process of this measurement is one rank, which computes or waits",
            )
            .next("omit them, and run a process for each rank"));
        }
        Ok(())
    }
}

/// Measures broadcasts among processes that are late: over a multicast group, and in a tree of hosts
#[derive(Debug, Args)]
#[command(after_help = SKEW_HELP)]
pub(crate) struct SkewCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    what: SkewArgs,
    #[command(flatten)]
    how: HowArgs,
}

impl SkewCommand {
    pub(crate) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let Self { rank, what, how } = self;
        Call::barrier().check(&rank, &how.network)?;
        what.check(&rank, &how)?;
        measure(&rank, &what, &how, output, stop)
    }
}

fn measure(rank: &RankArgs, what: &SkewArgs, how: &HowArgs, output: Output, stop: &Stop) -> Outcome {
    let config = CommConfig {
        fallback: Fallback::Only,
        ..rank.config(how, stop)?
    };
    let group = Group::Named {
        name: what.group.clone(),
        controller: rank.controller.clone(),
        security: config.security.clone(),
        wait: rank.wait.0,
    };
    let member = MemberConfig {
        by_write: true,
        timeout: config.qp_timeout,
        retry_cnt: config.retry_cnt,
        join_within: Some(rank.wait.0),
        interrupt: Some(stop.clone()),
        ..MemberConfig::new(&rank.name, group)
    };
    let rnic = SharedRnic::new(rank.device.open()?);
    let hosts = Communicator::connect(config, Box::new(rnic.clone()));
    let hosts = hosts.map_err(|error| failure(error, &rank.job))?;
    let longest = what.bytes.list(FACTOR).into_iter().max().unwrap_or(0) as usize;
    let (mut own, mut device) = (rnic.clone(), rnic);
    let access = if rank.rank == 0 {
        Access::READ
    } else {
        Access::REMOTE_WRITE
    };
    let memory = own
        .register_memory(longest + NUMBER, access)
        .map_err(host_failure::rnic)?;
    let process = Process {
        rank,
        rnic: own,
        hosts,
        memory,
        number: 0,
        data: vec![0; longest],
        timeout: how.measure.timeout.0,
    };
    let bar = match rank.rank {
        0 => output.bar(None, "{spinner} {pos} calls, {elapsed}"),
        _ => ProgressBar::hidden(),
    };
    let calls = (how.measure.warmup, how.measure.iters.unwrap_or(CALLS));
    let points = match rank.rank {
        0 => {
            let source = castnet_member::source(member, &mut device).map_err(host_failure::member)?;
            let source = source.join().map_err(host_failure::member)?;
            let place = (source.qpns()[0], source.group().va_base);
            process.in_group(source, what, calls, Some(place), &bar)
        }
        _ => {
            let receiver = castnet_member::region(member, &mut device, memory);
            let receiver = receiver.and_then(Prepared::join).map_err(host_failure::member)?;
            process.in_group(receiver, what, calls, None, &bar)
        }
    }?;
    bar.finish_and_clear();
    let verdict = wrong_elements(points.iter().map(|point| point.wrong).sum());
    match rank.rank {
        0 => output.conclude(&Skews { points }, verdict),
        _ => verdict,
    }
}

/// A rank, its connections to other ranks, and its memory that the group writes. At rank 0 this is the memory that is sent.
struct Process<'a> {
    rank: &'a RankArgs,
    rnic: SharedRnic,
    hosts: Communicator,
    memory: MemoryRegion,
    /// Of the last message.
    number: u64,
    /// What the application sends or has received.
    data: Vec<u8>,
    timeout: Duration,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Group,
    Hosts,
}

/// Whether the group goes on, by the progress.
type Looks<'f> = &'f mut dyn FnMut(u64) -> Flow;

impl Process<'_> {
    /// All points, and leaves the group.
    fn in_group<T>(
        mut self,
        mut member: Member<'_, T>,
        what: &SkewArgs,
        calls: (u32, u32),
        to: Option<(Qpn, u64)>,
        bar: &ProgressBar,
    ) -> Outcome<Vec<Point>> {
        let (points, lost) = member.run(|_, look| {
            let mut points = Vec::new();
            for bytes in what.bytes.list(FACTOR) {
                for skew in &what.skew {
                    points.push(self.point(bytes, (skew.0, what.seed), calls, (to, look), bar)?);
                }
            }
            Ok(points)
        });
        if let Err(error) = member.leave() {
            tracing::debug!(%error, "the group has ended");
        }
        let points = points.map_err(|failure: Failure| lost.map_or(failure, host_failure::member))?;
        self.hosts
            .close()
            .map_err(|error| failure(error, &self.rank.job))?;
        Ok(points)
    }

    fn point(
        &mut self,
        bytes: u64,
        (skew, seed): (Duration, u64),
        (warmup, calls): (u32, u32),
        (to, look): (Option<(Qpn, u64)>, Looks<'_>),
        bar: &ProgressBar,
    ) -> Outcome<Point> {
        let mut rng = StdRng::seed_from_u64(seed ^ u64::from(self.rank.rank) << 32);
        let (mut times, mut wrong) = (Vec::new(), 0);
        let bytes = bytes as usize;
        for call in 0..warmup.saturating_add(calls) {
            let late = delay(skew, self.rank.rank, &mut rng);
            let mut taken = [0.0; 2];
            for (by, taken) in [By::Group, By::Hosts].into_iter().zip(&mut taken) {
                self.number += 1;
                if self.rank.rank == 0 {
                    fill(&mut self.data[..bytes], self.number);
                }
                self.barrier()?;
                self.compute(late, look)?;
                let start = Instant::now();
                match by {
                    By::Group => self.multicast(bytes, to, look)?,
                    By::Hosts => {
                        let done = self.hosts.broadcast(&mut self.data[..bytes], 0);
                        done.map_err(|error| self.failed(error))?;
                    }
                }
                *taken = start.elapsed().as_secs_f64() * 1e6;
                if let (By::Group, Some((qpn, _))) = (by, to) {
                    self.await_completion(qpn, look)?;
                }
                let mut right = vec![0; bytes];
                fill(&mut right, self.number);
                wrong += u64::from(self.data[..bytes] != right[..]);
            }
            if call >= warmup {
                times.push(taken);
            }
            bar.inc(1);
        }
        let of = |by: By| times.iter().map(move |taken| taken[by as usize]);
        let own: Vec<f64> = of(By::Group).chain(of(By::Hosts)).collect();
        let (mut sums, mut most, mut wrong) = (own.clone(), own, [wrong]);
        let gathered = self.hosts.allreduce(&mut sums[..], Operation::Sum);
        let gathered = gathered.and_then(|()| self.hosts.allreduce(&mut most[..], Operation::Max));
        let gathered = gathered.and_then(|()| self.hosts.allreduce(&mut wrong[..], Operation::Sum));
        gathered.map_err(|error| self.failed(error))?;
        let times = |calls: std::ops::Range<usize>| Times {
            mean_us: sums[calls.clone()].iter().sum::<f64>()
                / (calls.len() * usize::from(self.rank.size)) as f64,
            last_us: median(&mut most[calls]),
        };
        let calls = calls as usize;
        let [multicast, hosts] = [0..calls, calls..2 * calls].map(times);
        Ok(Point {
            ranks: self.rank.size,
            bytes: bytes as u64,
            skew_us: skew.as_secs_f64() * 1e6,
            multicast,
            hosts,
            wrong: wrong[0],
        })
    }

    fn barrier(&mut self) -> Outcome {
        self.hosts.barrier().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: CommError) -> Failure {
        failure(error, &self.rank.job)
    }

    /// The application's processor computes. The RNIC works meanwhile, for which the software RNIC has to be polled.
    fn compute(&mut self, late: Duration, look: Looks<'_>) -> Outcome {
        self.poll_until(Instant::now() + late, look, &mut |_| Ok(false))
            .map(drop)
    }

    /// A broadcast over the group: the source has posted it, or a receiver has copied it to the application's memory.
    fn multicast(&mut self, bytes: usize, to: Option<(Qpn, u64)>, look: Looks<'_>) -> Outcome {
        let (key, number) = (self.memory.key, self.number);
        let Some((qpn, va)) = to else {
            let came = self.poll_until(Instant::now() + self.timeout, look, &mut |rnic| {
                let mut found = [0; NUMBER];
                rnic.read_memory(key, bytes as u64, &mut found)?;
                Ok(u64::from_le_bytes(found) == number)
            })?;
            if !came {
                return Err(self.silent("has not come"));
            }
            let read = self.rnic.read_memory(key, 0, &mut self.data[..bytes]);
            return read.map_err(host_failure::rnic);
        };
        let mut post = || -> Result<(), RnicError> {
            self.rnic.write_memory(key, 0, &self.data[..bytes])?;
            self.rnic.write_memory(key, bytes as u64, &number.to_le_bytes())?;
            let local = LocalSlice {
                key,
                offset: 0,
                length: (bytes + NUMBER) as u32,
            };
            // The switches insert the key of each receiver.
            let op = SendOp::Write { va, rkey: 0 };
            self.rnic.post_send(qpn, SendWr::new(number, op, local))?;
            self.rnic.poll(self.rnic.now()).map(drop)
        };
        post().map_err(host_failure::rnic)
    }

    /// All receivers have the message, and the source can use its memory again.
    fn await_completion(&mut self, qpn: Qpn, look: Looks<'_>) -> Outcome {
        let mut done = None;
        self.poll_until(Instant::now() + self.timeout, look, &mut |rnic| {
            done = rnic.poll_send_completion(qpn);
            Ok(done.is_some())
        })?;
        let Some(Completion { status, wr_id, .. }) = done else {
            return Err(self.silent("is not acknowledged by all receivers"));
        };
        match status {
            Status::Success => Ok(()),
            status => Err(host_failure::stream(StreamError::Work {
                lane: None,
                qpn,
                wr_id,
                status,
            })),
        }
    }

    fn silent(&self, what: &str) -> Failure {
        let after = units::span(self.timeout);
        Failure::unreachable(format!(
            "message {} of the group {what} after {after}",
            self.number
        ))
        .next("castnet group show GROUP: which path is behind?")
    }

    /// Whether `done` before `end`.
    fn poll_until(
        &mut self,
        end: Instant,
        look: Looks<'_>,
        done: &mut dyn FnMut(&mut dyn Rnic) -> Result<bool, RnicError>,
    ) -> Outcome<bool> {
        loop {
            if done(&mut self.rnic).map_err(host_failure::rnic)? {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if look(self.number) == Flow::Stop {
                return Err(host_failure::interrupted());
            }
            self.rnic
                .poll_or_wait(left.min(SLEEP_MAX))
                .map_err(host_failure::rnic)?;
        }
    }
}

/// What the application of rank 0 sends as its message of this number. No byte is 0, so that none of it is taken for a number.
fn fill(data: &mut [u8], number: u64) {
    for (at, byte) in (number..).zip(data) {
        *byte = (at % 251) as u8 + 1;
    }
}

/// How long a rank computes before its call. As in the paper (7.3), each but the root draws from half of a maximum before to half of it
/// after the others; who draws less than 0 does not compute. The maximum is three times the average skew.
fn delay(skew: Duration, rank: u16, rng: &mut StdRng) -> Duration {
    let half = skew.as_secs_f64() * 1.5;
    let drawn = if rank == 0 {
        0.0
    } else {
        rng.random_range(-half..=half)
    };
    Duration::from_secs_f64(drawn.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_skew_is_as_asked_for_and_half_of_the_ranks_are_not_late() {
        let mut rng = StdRng::seed_from_u64(3);
        let skew = Duration::from_millis(4);
        let drawn: Vec<_> = (0..20_000).map(|_| delay(skew, 1, &mut rng)).collect();
        let late = drawn.iter().filter(|late| !late.is_zero()).count();
        // A process that draws less than 0 counts as early by as much: the mean distance is half of the greatest.
        let mean = drawn.iter().sum::<Duration>().as_secs_f64() / late as f64;
        assert!((9_700..10_300).contains(&late), "{late}");
        assert!((mean / 0.003 - 1.0).abs() < 0.03, "{mean}");
        assert!(drawn.iter().all(|late| *late <= skew.mul_f64(1.5)));
        assert_eq!(delay(skew, 0, &mut rng), Duration::ZERO);
        assert_eq!(delay(Duration::ZERO, 1, &mut rng), Duration::ZERO);
    }

    #[test]
    fn messages_differ_and_hold_no_number() {
        let message = |number| {
            let mut data = [0; 1000];
            fill(&mut data, number);
            data
        };
        assert!((1..600).all(|number| message(number) != message(number + 1)));
        assert!((1..600).all(|number| !message(number).contains(&0)));
    }
}
