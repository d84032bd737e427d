//! Host-based algorithms as schedules: the sends and receives of one rank, and on which receives each send depends.
//!
//! Messages are split into pieces of one slot. A piece is sent once the pieces that it depends on have arrived, so long
//! messages fill the ring or tree. Messages between two ranks are matched by order, on which all schedules agree.

use std::ops::Range;

use super::{Action, BroadcastAlgorithm, Collective, Place, Task, TaskId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Send {
        to: u16,
        from: Place,
        length: u32,
        /// A signal, and how often it must have been given.
        after: Option<(u32, u32)>,
    },
    Receive {
        from: u16,
        to: Place,
        length: u32,
        combine: bool,
        /// The signals that this step gives.
        signals: Range<u32>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyStep {
    pub(super) from: Place,
    pub(super) to: Place,
    pub(super) length: u64,
}

impl CopyStep {
    pub(super) fn action(self, task: TaskId) -> Action {
        let Self { from, to, length } = self;
        Action::Copy {
            task,
            from,
            to,
            length,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Copied before all steps.
    pub(super) first: Option<CopyStep>,
    /// Executed in this order for each peer.
    pub(super) steps: Vec<Step>,
    pub(super) signals: u32,
    /// Copied after all steps.
    pub(super) last: Option<CopyStep>,
}

impl Schedule {
    fn send(&mut self, to: u16, from: Place, length: u32, after: Option<(u32, u32)>) {
        self.steps.push(Step::Send {
            to,
            from,
            length,
            after,
        });
    }

    fn receive(&mut self, from: u16, to: Place, length: u32, combine: bool, signals: Range<u32>) {
        self.signals = self.signals.max(signals.end);
        self.steps.push(Step::Receive {
            from,
            to,
            length,
            combine,
            signals,
        });
    }

    fn first(from: Place, to: Place, length: u64) -> Self {
        Self {
            first: Some(CopyStep { from, to, length }),
            ..Self::default()
        }
    }
}

/// Splits a range into pieces of at most `piece` bytes. An empty range has none.
fn pieces(bytes: Range<u64>, piece: u32) -> impl Iterator<Item = (u64, u32)> {
    let step = u64::from(piece.max(1));
    let count = (bytes.end - bytes.start).div_ceil(step);
    (0..count).map(move |i| {
        let offset = bytes.start + i * step;
        (offset, (bytes.end - offset).min(step) as u32)
    })
}

pub(super) fn schedule(
    task: &Task,
    rank: u16,
    size: u16,
    piece: u32,
    broadcast: BroadcastAlgorithm,
) -> Schedule {
    let piece = piece - piece % task.data_type.size() as u32;
    let plan = Plan {
        rank: rank.into(),
        size: size.max(1).into(),
        piece,
    };
    match task.collective {
        Collective::AllReduce => plan.ring_allreduce(task),
        Collective::ReduceScatter => plan.ring_reduce_scatter(task),
        Collective::AllGather => plan.ring_allgather(task),
        Collective::Broadcast { root } => {
            let pieces = task.bytes().div_ceil(piece.max(1).into());
            plan.broadcast(task, plan.forwards(root.into(), broadcast, pieces))
        }
        Collective::Reduce { root } => plan.tree_reduce(task, root.into()),
        Collective::Barrier => plan.dissemination(),
    }
}

#[derive(Clone, Copy)]
struct Plan {
    rank: u32,
    size: u32,
    piece: u32,
}

impl Plan {
    /// The rank that is `steps` before this one in the ring.
    fn behind(&self, steps: u32) -> u32 {
        (self.rank + self.size - steps % self.size) % self.size
    }

    fn next(&self) -> u16 {
        ((self.rank + 1) % self.size) as u16
    }

    fn prev(&self) -> u16 {
        self.behind(1) as u16
    }

    /// `size - 1` steps round the ring. Step s sends the block `first - s` and receives the block `first - s - 1`.
    /// `base` is the signal of the first piece of the first block, if that block depends on earlier steps.
    fn ring(
        &self,
        out: &mut Schedule,
        first: u32,
        block: impl Fn(u32) -> Range<u64>,
        place: impl Fn(u64) -> Place,
        combine: bool,
        base: Option<u32>,
    ) {
        let mut received_signal = base;
        for step in 0..self.size - 1 {
            let sent_block = (first + 2 * self.size - step) % self.size;
            let received_block = (sent_block + self.size - 1) % self.size;
            for (index, (offset, length)) in pieces(block(sent_block), self.piece).enumerate() {
                let after = received_signal.map(|signal| (signal + index as u32, 1));
                out.send(self.next(), place(offset), length, after);
            }
            received_signal = Some(out.signals);
            for (offset, length) in pieces(block(received_block), self.piece) {
                let signal = out.signals;
                out.receive(self.prev(), place(offset), length, combine, signal..signal + 1);
            }
        }
    }

    /// The bytes of a rank's block within all elements.
    fn share(&self, task: &Task, block: u32) -> Range<u64> {
        let size = task.data_type.size() as u64;
        let at = |block: u32| {
            (u128::from(task.elements) * u128::from(block) / u128::from(self.size)) as u64 * size
        };
        at(block)..at(block + 1)
    }

    fn ring_allreduce(&self, task: &Task) -> Schedule {
        let mut out = Schedule::first(Place::input(0), Place::output(0), task.bytes());
        let block = |b| self.share(task, b);
        // Ends with this rank's own block reduced. Its pieces gave the last signals.
        self.ring(&mut out, self.behind(1), block, Place::output, true, None);
        let own = pieces(block(self.rank), self.piece).count() as u32;
        let base = (self.size > 1).then(|| out.signals - own);
        self.ring(&mut out, self.rank, block, Place::output, false, base);
        out
    }

    fn ring_reduce_scatter(&self, task: &Task) -> Schedule {
        let (bytes, size) = (task.bytes(), u64::from(self.size));
        let mut out = Schedule {
            last: Some(CopyStep {
                from: Place::scratch(u64::from(self.rank) * bytes),
                to: Place::output(0),
                length: bytes,
            }),
            ..Schedule::first(Place::input(0), Place::scratch(0), bytes * size)
        };
        let block = |b| u64::from(b) * bytes..u64::from(b + 1) * bytes;
        self.ring(&mut out, self.behind(1), block, Place::scratch, true, None);
        out
    }

    fn ring_allgather(&self, task: &Task) -> Schedule {
        let bytes = task.bytes();
        let own = Place::output(u64::from(self.rank) * bytes);
        let mut out = Schedule::first(Place::input(0), own, bytes);
        let block = |b| u64::from(b) * bytes..u64::from(b + 1) * bytes;
        self.ring(&mut out, self.rank, block, Place::output, false, None);
        out
    }

    /// This rank's parent in the binomial tree of `root`, and its children, those with the largest subtrees first.
    fn tree(&self, root: u32) -> (Option<u16>, Vec<u16>) {
        let own = (self.rank + self.size - root) % self.size;
        let real = |relative: u32| ((relative + root) % self.size) as u16;
        // The children of a rank have the bits below its lowest set bit. The root may have children at all bits.
        let low = if own == 0 {
            self.size.next_power_of_two()
        } else {
            own & own.wrapping_neg()
        };
        let parent = (own != 0).then(|| real(own - low));
        let mut children = Vec::new();
        let mut bit = low / 2;
        while bit > 0 {
            if own + bit < self.size {
                children.push(real(own + bit));
            }
            bit /= 2;
        }
        (parent, children)
    }

    /// The rank from which this rank receives a Broadcast, and those to which it forwards it.
    fn forwards(&self, root: u32, algorithm: BroadcastAlgorithm, pieces: u64) -> (Option<u16>, Vec<u16>) {
        let is_root = self.rank == root % self.size;
        match algorithm {
            BroadcastAlgorithm::ByLength if self.suits_chain(pieces) => {
                self.forwards(root, BroadcastAlgorithm::Chain, pieces)
            }
            BroadcastAlgorithm::BinomialTree | BroadcastAlgorithm::ByLength => self.tree(root),
            BroadcastAlgorithm::Chain => {
                let is_last = u32::from(self.next()) == root % self.size;
                let next = (!is_last).then(|| self.next());
                ((!is_root).then(|| self.prev()), next.into_iter().collect())
            }
            BroadcastAlgorithm::Unicasts if is_root => {
                let others = (1..self.size).map(|i| ((self.rank + i) % self.size) as u16);
                (None, others.collect())
            }
            BroadcastAlgorithm::Unicasts => (Some((root % self.size) as u16), Vec::new()),
        }
    }

    /// Whether a chain takes less time than the binomial tree. A rank of the chain sends each piece once, and the last rank is far from the root.
    /// The root of the tree sends each piece to all its children, and all ranks are near.
    fn suits_chain(&self, pieces: u64) -> bool {
        let children = u64::from(self.size.next_power_of_two().trailing_zeros());
        pieces + u64::from(self.size.saturating_sub(2)) < pieces * children
    }

    fn broadcast(&self, task: &Task, (parent, children): (Option<u16>, Vec<u16>)) -> Schedule {
        let mut out = Schedule::default();
        let place = if parent.is_none() {
            Place::input
        } else {
            Place::output
        };
        for (index, (offset, length)) in pieces(0..task.bytes(), self.piece).enumerate() {
            let index = index as u32;
            if let Some(from) = parent {
                out.receive(from, place(offset), length, false, index..index + 1);
            }
            for &to in &children {
                out.send(to, place(offset), length, parent.map(|_| (index, 1)));
            }
        }
        out
    }

    fn tree_reduce(&self, task: &Task, root: u32) -> Schedule {
        let (parent, children) = self.tree(root);
        let place = match (parent, children.is_empty()) {
            (None, _) => Place::output,
            (Some(_), false) => Place::scratch,
            (Some(_), true) => Place::input,
        };
        let mut out = Schedule::first(Place::input(0), place(0), task.bytes());
        out.first = out.first.filter(|copy| copy.from != copy.to);
        for (index, (offset, length)) in pieces(0..task.bytes(), self.piece).enumerate() {
            let index = index as u32;
            for &from in children.iter().rev() {
                out.receive(from, place(offset), length, true, index..index + 1);
            }
            if let Some(to) = parent {
                let after = (!children.is_empty()).then_some((index, children.len() as u32));
                out.send(to, place(offset), length, after);
            }
        }
        out
    }

    /// In round k this rank sends an empty message to rank + 2^k, after those of all earlier rounds have arrived.
    fn dissemination(&self) -> Schedule {
        let mut out = Schedule::default();
        let rounds = self.size.next_power_of_two().trailing_zeros();
        for round in 0..rounds {
            let distance = 1 << round;
            let to = ((self.rank + distance) % self.size) as u16;
            let after = round.checked_sub(1).map(|before| (before, round));
            out.send(to, Place::input(0), 0, after);
            let from = self.behind(distance) as u16;
            // Signal j is given by all rounds up to j.
            out.receive(from, Place::input(0), 0, false, round..rounds);
        }
        out
    }
}

/// The ranks that `rank` of `size` needs a connection to, in order: those at distances that are powers of two, in both
/// directions.
pub fn peers(rank: u16, size: u16) -> Vec<u16> {
    let (rank, size) = (u32::from(rank), u32::from(size.max(1)));
    let mut all: Vec<u16> = (0..16)
        .map(|bit| 1 << bit)
        .take_while(|&distance| distance < size)
        .flat_map(|distance: u32| [(rank + distance) % size, (rank + size - distance) % size])
        .map(|rank| rank as u16)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}
