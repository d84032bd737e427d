//! One call over the segment of a host and between the leaders.
//!
//! Each rank moves the steps of a call through its stages, several steps at once: it writes its contribution, reduces its
//! share of the contributions of all ranks of the host, and takes the result. The leader also starts the collective of each
//! step between the leaders, and publishes its result. A stage of a step begins when the counters of the other ranks allow
//! it; a rank that can do nothing polls, then sleeps.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use castnet_comm::machine::Collective;
use castnet_comm::{CommConfig, CommError, Element, Idle, Operation, RankName, Spinner};
use castnet_reduce::{CallFlags, Kernel};
use castnet_wire::Nanos;

use crate::layout::Layout;
use crate::network::Network;
use crate::plan::{Plan, Step};
use crate::segment::{CALL_WORDS, Counter, DEPTH, FAILURE_STEP, Segment};

/// A piece up to this is reduced by the leader alone: that saves waiting for the other ranks.
const LEADER_ALONE: usize = 8 << 10;
/// Bytes that are reduced at once. Two blocks of it fit the first cache.
const BLOCK: usize = 8 << 10;
/// Shares begin at multiples of this: a cache line, and a multiple of the sizes of all types.
const SHARE_ALIGN: usize = 64;
/// Longest sleep of a leader while its collective in the network runs, and of other ranks.
const NETWORK_SLEEP: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(5);
/// How often a rank that waits looks whether the others are alive, and at its own time-out.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Input and output of a call, in bytes.
pub(crate) enum Memory<'a> {
    /// In place; input and output begin at these offsets.
    InPlace(&'a mut [u8], usize, usize),
    Apart(&'a [u8], &'a mut [u8]),
}

impl Memory<'_> {
    fn input(&self, offset: usize, length: usize) -> &[u8] {
        match self {
            Self::InPlace(all, base, _) => &all[base + offset..][..length],
            Self::Apart(from, _) => &from[offset..][..length],
        }
    }

    fn output(&mut self, offset: usize, length: usize) -> &mut [u8] {
        match self {
            Self::InPlace(all, _, base) => &mut all[*base + offset..][..length],
            Self::Apart(_, to) => &mut to[offset..][..length],
        }
    }
}

/// Why a segment is not used any more. The other ranks of the host get it as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The collective of the leader in the network failed.
    Network,
    /// A rank has made another call.
    OtherCall,
    TimedOut,
    Interrupted,
    /// A rank has ended.
    Gone,
}

impl Trouble {
    const ALL: [Self; 5] = [
        Self::Network,
        Self::OtherCall,
        Self::TimedOut,
        Self::Interrupted,
        Self::Gone,
    ];

    /// With the rank of the host that it happened to, and the first step of its call.
    fn word(self, rank: usize, first: u64) -> u64 {
        first << FAILURE_STEP | (self as u64 + 1) << 16 | rank as u64
    }

    fn from_word(word: u64) -> Option<(Self, usize, u64)> {
        let code = (word >> 16 & 0xff) as usize;
        let trouble = *Self::ALL.get(code.checked_sub(1)?)?;
        Some((trouble, (word & 0xffff) as usize, word >> FAILURE_STEP))
    }
}

/// What a rank keeps between calls.
#[derive(Debug)]
pub(crate) struct Engine {
    segment: Segment,
    /// Number of this rank on its host.
    own: usize,
    /// First step of the next call.
    first: u64,
    /// The least value of each counter over all ranks of the host, as last seen.
    least: [u64; Counter::COUNT],
    /// Calls on the direct path.
    direct: u64,
    blocks: [Vec<u8>; 2],
    spinner: Spinner,
    start: Instant,
}

/// What does not change during a call.
pub(crate) struct Call<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) config: &'a CommConfig,
    pub(crate) collective: Collective,
    pub(crate) operation: Operation,
    /// Bytes of a rank's block in ReduceScatter and AllGather, otherwise of the whole data.
    pub(crate) bytes: usize,
}

/// Where a rank is: the next step of each stage.
struct Stages {
    write: u64,
    reduce: u64,
    start: u64,
    publish: u64,
    take: u64,
    end: u64,
    /// All ranks of the host have made this call.
    agreed: bool,
}

impl Engine {
    pub(crate) fn new(segment: Segment, own: usize, config: &CommConfig) -> Self {
        Self {
            segment,
            own,
            first: 0,
            least: [0; Counter::COUNT],
            direct: 0,
            blocks: [vec![0; BLOCK], vec![0; BLOCK]],
            spinner: Spinner::new(config.progress),
            start: Instant::now(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// This rank makes a call on the direct path.
    pub(crate) fn count_direct(&mut self) {
        self.direct += 1;
        self.segment.set(self.own, Counter::Direct, self.direct);
        self.segment.notify();
    }

    /// Makes a call. `leaders` is the communicator of the leaders, at a leader of several hosts. After an error the segment
    /// cannot be used any more.
    pub(crate) fn run<T: Element, N: Network>(
        &mut self,
        call: &Call<'_>,
        mut memory: Memory<'_>,
        world: &mut N,
        leaders: Option<&mut N>,
    ) -> Result<(), CommError> {
        let plan = Plan::new(
            call.layout,
            call.collective,
            call.bytes,
            self.segment.shape().piece,
        );
        let mut flags = CallFlags::NONE;
        if call.config.saturate {
            flags.0 |= CallFlags::SATURATE.0;
        }
        let rank = call.config.rank;
        let mut run = Run::<T, N> {
            engine: self,
            plan: &plan,
            call,
            rank,
            host: call.layout.place(rank).0,
            kernel: Kernel::select(call.operation, T::DATA_TYPE, flags),
            leaders,
            pending: VecDeque::new(),
            spare: Vec::new(),
            began: Instant::now(),
        };
        run.run(&mut memory, world).map_err(|(trouble, who, error)| {
            // The other ranks of the host get it before this one waits for its collectives that run.
            let first = run.engine.first;
            run.engine.segment.fail(trouble.word(who, first));
            error
        })
    }

    /// The failure that a rank has reported, and the rank that it concerns.
    fn failure(&self) -> Option<(Trouble, usize)> {
        // A rank that fails in a later call has ended this one: what it owes to the others is there.
        let (trouble, who, _) =
            Trouble::from_word(self.segment.failure()).filter(|(_, _, first)| *first <= self.first)?;
        Some((trouble, who))
    }

    /// Why the call fails if a rank of the host has ended: what a rank has reported, which may be that one, or else its end.
    fn ended(&self, other: usize) -> Option<(Trouble, usize)> {
        let is_alive = self.segment.is_alive(other);
        (!is_alive).then(|| self.failure().unwrap_or((Trouble::Gone, other)))
    }

    /// Whether a counter of all ranks of the host is at least `value`.
    fn all(&mut self, counter: Counter, value: u64) -> bool {
        let least = &mut self.least[counter as usize];
        if *least < value {
            let ranks = 0..self.segment.shape().ranks;
            let values = ranks.map(|rank| self.segment.get(rank, counter));
            *least = values.min().unwrap_or_default();
        }
        *least >= value
    }
}

/// What happened, to which rank of the host, and the error of this rank.
type Fault = (Trouble, usize, CommError);
type End = Result<(), Fault>;

struct Run<'e, T: Element, N: Network> {
    engine: &'e mut Engine,
    plan: &'e Plan<'e>,
    call: &'e Call<'e>,
    rank: u16,
    /// Index of the host.
    host: usize,
    kernel: Kernel,
    leaders: Option<&'e mut N>,
    /// The collectives between leaders that run, in the order of their steps.
    pending: VecDeque<N::Request<T>>,
    spare: Vec<Vec<T>>,
    began: Instant,
}

impl<T: Element, N: Network> Run<'_, T, N> {
    fn run(&mut self, memory: &mut Memory<'_>, world: &mut N) -> End {
        let first = self.engine.first;
        let mut stages = Stages {
            write: first,
            reduce: first,
            start: first,
            publish: first,
            take: first,
            end: first + self.plan.steps(),
            agreed: false,
        };
        let mut checked = self.began;
        loop {
            let events = self.engine.segment.events();
            if self.advance(&mut stages, memory)? {
                self.engine.segment.notify();
                self.engine.spinner.worked();
                if stages.take == stages.end {
                    self.engine.first = stages.end;
                    return Ok(());
                }
                continue;
            }
            world.poll().map_err(|error| self.network(error))?;
            let now = self.engine.now();
            match self.engine.spinner.idle(now) {
                Idle::Spin => std::hint::spin_loop(),
                Idle::Yield => {
                    std::thread::yield_now();
                    let after = self.engine.now();
                    self.engine.spinner.yielded(now, after);
                }
                Idle::Sleep => {
                    let most = if self.pending.is_empty() {
                        SLEEP_MAX
                    } else {
                        NETWORK_SLEEP
                    };
                    self.engine.segment.sleep(events, most);
                }
            }
            if checked.elapsed() >= CHECK_INTERVAL {
                checked = Instant::now();
                self.check(&stages)?;
            }
        }
    }

    fn is_leader(&self) -> bool {
        self.engine.own == 0
    }

    fn step(&self, at: u64) -> Step {
        self.plan.step(at - self.engine.first)
    }

    fn network(&self, error: CommError) -> Fault {
        (Trouble::Network, self.engine.own, error)
    }

    /// Moves each stage by one step where it can. Returns true if one has moved.
    fn advance(&mut self, stages: &mut Stages, memory: &mut Memory<'_>) -> Result<bool, Fault> {
        let mut moved = false;
        if stages.write < stages.end && self.may_write(stages.write) {
            self.write(stages.write, memory);
            stages.write += 1;
            moved = true;
        }
        if !stages.agreed {
            if stages.write == self.engine.first || !self.engine.all(Counter::Written, self.engine.first + 1)
            {
                return Ok(moved);
            }
            self.agree()?;
            stages.agreed = true;
        }
        if stages.reduce < stages.write && self.may_reduce(stages.reduce) {
            self.reduce(stages.reduce);
            stages.reduce += 1;
            moved = true;
        }
        if self.is_leader() {
            if stages.start < stages.reduce && self.may_start(stages.start) {
                self.start(stages.start)?;
                stages.start += 1;
                moved = true;
            }
            if stages.publish < stages.start && self.publish(stages.publish)? {
                stages.publish += 1;
                moved = true;
            }
        }
        let may_take = match self.is_leader() {
            true => stages.take < stages.publish,
            false => stages.take < stages.reduce,
        };
        if may_take && self.may_take(stages.take) {
            self.take(stages.take, memory);
            stages.take += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// The memory of the step is free once all ranks have taken the step that used it before.
    fn may_write(&mut self, at: u64) -> bool {
        at < DEPTH || self.engine.all(Counter::Taken, at - DEPTH + 1)
    }

    fn write(&mut self, at: u64, memory: &Memory<'_>) {
        let (segment, own, step) = (&self.engine.segment, self.engine.own, self.step(at));
        if at == self.engine.first {
            segment.set_call(own, at, self.words());
        }
        for part in self.plan.inputs(step, self.rank) {
            let bytes = memory.input(part.in_buffer, part.length);
            match step.reduces() {
                true => segment.write_contribution(own, at, part.in_piece, bytes),
                false => segment.write_result(at, part.in_piece, bytes),
            }
        }
        segment.set(own, Counter::Written, at + 1);
    }

    /// Describes the call, so that ranks notice if they disagree.
    fn words(&self) -> [u64; CALL_WORDS] {
        let (kind, root) = match self.call.collective {
            Collective::AllReduce => (1, 0),
            Collective::Reduce { root } => (2, root),
            Collective::Broadcast { root } => (3, root),
            Collective::Barrier => (4, 0),
            Collective::ReduceScatter => (5, 0),
            Collective::AllGather => (6, 0),
        };
        let (operation, data_type) = (self.call.operation as u64, T::DATA_TYPE as u64);
        let what = kind << 32 | operation << 24 | data_type << 16 | u64::from(root);
        [what, self.call.bytes as u64]
    }

    /// Fails if another rank of the host has made another call.
    fn agree(&self) -> End {
        let (own, first) = (self.words(), self.engine.first);
        let ranks = 0..self.engine.segment.shape().ranks;
        match ranks
            .into_iter()
            .find(|rank| self.engine.segment.call(*rank, first) != own)
        {
            None => Ok(()),
            Some(other) => Err(self.other_call(other)),
        }
    }

    fn other_call(&self, other: usize) -> Fault {
        let (rank, task) = (self.name(other), self.engine.first);
        (Trouble::OtherCall, other, CommError::Mismatch { rank, task })
    }

    /// The share of a rank of the host in a piece.
    fn share(&self, step: Step) -> std::ops::Range<usize> {
        let (own, ranks, length) = (self.engine.own, self.engine.segment.shape().ranks, step.length);
        if !step.reduces() || length <= LEADER_ALONE {
            return 0..if own == 0 && step.reduces() { length } else { 0 };
        }
        let begin = |rank: usize| (length.div_ceil(SHARE_ALIGN) * rank / ranks * SHARE_ALIGN).min(length);
        begin(own)..begin(own + 1)
    }

    fn may_reduce(&mut self, at: u64) -> bool {
        self.share(self.step(at)).is_empty() || self.engine.all(Counter::Written, at + 1)
    }

    /// Reduces this rank's share of all contributions, in rank order.
    fn reduce(&mut self, at: u64) {
        let share = self.share(self.step(at));
        let Engine {
            segment, own, blocks, ..
        } = &mut *self.engine;
        let [sum, next] = blocks;
        for offset in share.clone().step_by(BLOCK) {
            let length = BLOCK.min(share.end - offset);
            let (sum, next) = (&mut sum[..length], &mut next[..length]);
            segment.read_contribution(0, at, offset, sum);
            for other in 1..segment.shape().ranks {
                segment.read_contribution(other, at, offset, next);
                self.kernel.apply(sum, next);
            }
            segment.write_result(at, offset, sum);
        }
        segment.set(*own, Counter::Reduced, at + 1);
    }

    /// Whether what the host gives to the network is complete.
    fn may_start(&mut self, at: u64) -> bool {
        let step = self.step(at);
        match step.source() {
            _ if step.reduces() => step.length <= LEADER_ALONE || self.engine.all(Counter::Reduced, at + 1),
            Some(host) if host != self.host => true,
            _ => self.engine.all(Counter::Written, at + 1),
        }
    }

    /// Starts the collective of a step between the leaders.
    fn start(&mut self, at: u64) -> End {
        let step = self.step(at);
        let Some(leaders) = &mut self.leaders else {
            return Ok(());
        };
        let mut data = self.spare.pop().unwrap_or_default();
        data.resize(step.length / size_of::<T>(), T::zeroed());
        if step.reduces() || step.source() == Some(self.host) {
            let bytes = bytemuck::cast_slice_mut(&mut data);
            self.engine.segment.read_result(at, 0, bytes);
        }
        match leaders.icall::<T>(step.collective, self.call.operation, data.into()) {
            Ok(pending) => {
                self.pending.push_back(pending);
                Ok(())
            }
            Err(error) => Err(self.network(error)),
        }
    }

    /// Writes the result of the network, if it has come. Returns false if it has not.
    fn publish(&mut self, at: u64) -> Result<bool, Fault> {
        let own = self.engine.own;
        let failed = |error| (Trouble::Network, own, error);
        if let Some(leaders) = &mut self.leaders {
            let Some(pending) = self.pending.front() else {
                return Ok(false);
            };
            if !leaders.test::<T>(pending).map_err(failed)? {
                return Ok(false);
            }
            let ended = self.pending.pop_front().map(|pending| leaders.wait::<T>(pending));
            let data = ended.transpose().map_err(failed)?.unwrap_or_default();
            let step = self.step(at);
            if step.arrives_at(self.host) {
                let bytes = bytemuck::cast_slice(&data);
                self.engine.segment.write_result(at, 0, bytes);
            }
            self.spare.push(data);
        }
        self.engine.segment.set(own, Counter::Published, at + 1);
        Ok(true)
    }

    /// Whether the result is there, or this rank gets none.
    fn may_take(&mut self, at: u64) -> bool {
        let step = self.step(at);
        if !self.plan.receives(step, self.rank) {
            return true;
        }
        // What was copied on this host is there before the network has ended.
        let is_copied_here = step.source() == Some(self.host);
        self.engine.segment.get(0, Counter::Published) > at
            || is_copied_here && self.engine.all(Counter::Written, at + 1)
    }

    fn take(&mut self, at: u64, memory: &mut Memory<'_>) {
        let (segment, step) = (&self.engine.segment, self.step(at));
        for part in self.plan.outputs(step, self.rank) {
            let bytes = memory.output(part.in_buffer, part.length);
            segment.read_result(at, part.in_piece, bytes);
        }
        segment.set(self.engine.own, Counter::Taken, at + 1);
    }

    fn name(&self, own: usize) -> RankName {
        let ranks = self.call.layout.ranks_of(self.host);
        RankName {
            rank: ranks.get(own).copied().unwrap_or(u16::MAX),
            host: self.call.config.host.clone(),
        }
    }

    /// Fails if the call cannot end: another rank has reported that, or has ended, or this one has waited for too long.
    fn check(&self, stages: &Stages) -> End {
        let (segment, own) = (&self.engine.segment, self.engine.own);
        if let Some((trouble, who)) = self.engine.failure() {
            return Err((trouble, who, self.reported(trouble, who)));
        }
        let ranks = segment.shape().ranks;
        let late = |rank: &usize| segment.get(*rank, Counter::Taken) < stages.end;
        for other in (0..ranks).filter(|rank| *rank != own).filter(late) {
            if let Some((trouble, who)) = self.engine.ended(other)
                && late(&other)
            {
                return Err((trouble, who, self.reported(trouble, who)));
            }
            if segment.get(other, Counter::Direct) > self.engine.direct {
                return Err(self.other_call(other));
            }
        }
        if self
            .call
            .config
            .interrupt
            .as_ref()
            .is_some_and(|i| i.load(std::sync::atomic::Ordering::Relaxed))
        {
            return Err((Trouble::Interrupted, own, CommError::Interrupted));
        }
        let after = self.began.elapsed();
        if after >= self.call.config.timeouts.collective {
            let (what, missing) = self.waits_for(stages);
            let error = CommError::TimedOut {
                collective: self.call.collective,
                after,
                what,
                missing,
            };
            return Err((Trouble::TimedOut, own, error));
        }
        Ok(())
    }

    /// What this rank waits for, and the ranks of the host that are known to be late.
    fn waits_for(&self, stages: &Stages) -> (String, Vec<RankName>) {
        let segment = &self.engine.segment;
        let late =
            |rank: &usize| segment.get(*rank, Counter::Written) < stages.write.max(self.engine.first + 1);
        let late: Vec<_> = (0..segment.shape().ranks)
            .filter(late)
            .map(|rank| self.name(rank))
            .collect();
        let what = match (late.is_empty(), self.pending.is_empty()) {
            (false, _) => "ranks of this host".to_owned(),
            (true, false) => "the other hosts".to_owned(),
            (true, true) if self.is_leader() => "the other ranks of this host".to_owned(),
            (true, true) => format!("{}, the leader of this host", self.name(0)),
        };
        (what, late)
    }

    /// The error of a failure that concerns rank `who` of this host.
    fn reported(&self, trouble: Trouble, who: usize) -> CommError {
        let reason = match trouble {
            Trouble::Network => "its collective between the hosts failed",
            Trouble::OtherCall => "it made another call than other ranks of its host",
            Trouble::TimedOut => "it waited for longer than its time-out",
            Trouble::Interrupted => "it was interrupted",
            Trouble::Gone => {
                "it does not use the memory of its host any more; its process has ended, or it has closed"
            }
        };
        CommError::RankFailed {
            rank: self.name(who),
            reason: reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Shape;

    /// It reads the word of a failure before it looks who is alive, so that it may find the reporter dead first.
    #[test]
    fn a_rank_that_ends_after_its_report_is_not_the_cause() {
        let shape = Shape {
            ranks: 3,
            piece: 4 << 10,
        };
        let (reporter, key) = Segment::create(shape, None).expect("a segment");
        let open = |own| Segment::open(key, shape, own).expect("the same");
        let (segment, ends) = (open(1), open(2));
        let engine = Engine::new(segment, 1, &crate::tests::config(1, 3, "h"));
        assert_eq!((engine.ended(0), engine.ended(2)), (None, None));
        drop(ends);
        assert_eq!(engine.ended(2), Some((Trouble::Gone, 2)));
        reporter.fail(Trouble::Gone.word(2, 0));
        drop(reporter);
        assert_eq!(engine.ended(0), Some((Trouble::Gone, 2)));
    }
}
