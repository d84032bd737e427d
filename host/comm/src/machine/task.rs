//! What a rank calls, and the calls on the wire that make it up.

use castnet_wire::control::{Call, CallFlags, DataType, Operation, Primitive};

use super::Place;

/// The six collectives (EPIC, appendix A). Ranks that are named must be below the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank gets the reduction of all.
    AllReduce,
    /// One rank gets it.
    Reduce {
        /// That rank.
        root: u16,
    },
    /// Every rank gets what one has.
    Broadcast {
        /// That rank.
        root: u16,
    },
    /// Nobody goes on before all have come.
    Barrier,
    /// Rank i gets the reduction of all ranks' i-th blocks.
    ReduceScatter,
    /// Every rank gets all ranks' blocks.
    AllGather,
}

impl Collective {
    /// As the command line and nccl-tests call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "allreduce",
            Self::Reduce { .. } => "reduce",
            Self::Broadcast { .. } => "broadcast",
            Self::Barrier => "barrier",
            Self::ReduceScatter => "reducescatter",
            Self::AllGather => "allgather",
        }
    }
}

/// A collective of one rank. All ranks start the same ones in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// Which.
    pub collective: Collective,
    /// How contributions become one. Not looked at by Broadcast, AllGather and Barrier.
    pub operation: Operation,
    /// Of what.
    pub data_type: DataType,
    /// How integers overflow, and whether the order of additions is fixed.
    pub flags: CallFlags,
    /// Elements: of the whole for AllReduce, Reduce and Broadcast; of one rank's block for ReduceScatter and AllGather.
    pub elements: u64,
}

impl Task {
    /// A barrier.
    pub const BARRIER: Self = Self {
        collective: Collective::Barrier,
        operation: Operation::Sum,
        data_type: DataType::U8,
        flags: CallFlags(0),
        elements: 0,
    };

    /// Whether contributions must be reduced in rank order, where there are any.
    pub const fn is_in_rank_order(&self) -> bool {
        self.flags.contains(CallFlags::REPRODUCIBLE)
            && self.elements > 0
            && matches!(
                self.collective,
                Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter
            )
    }

    /// Bytes of `elements`.
    pub const fn bytes(&self) -> u64 {
        self.elements * self.data_type.size() as u64
    }

    /// Bytes that `rank` of `size` contributes.
    pub const fn input_bytes(&self, rank: u16, size: u16) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::AllGather => self.bytes(),
            Collective::Broadcast { root } if root == rank => self.bytes(),
            Collective::ReduceScatter => self.bytes() * size as u64,
            Collective::Broadcast { .. } | Collective::Barrier => 0,
        }
    }

    /// Bytes that `rank` of `size` gets.
    pub const fn output_bytes(&self, rank: u16, size: u16) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::ReduceScatter => self.bytes(),
            Collective::Reduce { root } if root == rank => self.bytes(),
            Collective::Broadcast { root } if root != rank => self.bytes(),
            Collective::AllGather => self.bytes() * size as u64,
            Collective::Reduce { .. } | Collective::Broadcast { .. } | Collective::Barrier => 0,
        }
    }
}

/// Most packets of one call on the wire: a switch tells PSNs apart over less than half their circle of 2^24. What is longer
/// becomes several calls, which are pipelined like any others.
pub(crate) const CALL_PACKETS_MAX: u64 = 1 << 20;

/// One call on the wire that is part of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireCall {
    pub(crate) call: Call,
    /// Bytes of its data.
    pub(crate) bytes: u64,
    /// What this rank sends.
    pub(crate) sends: Option<Place>,
    /// Where to this rank receives.
    pub(crate) receives: Option<Place>,
    /// What this rank adds itself to what it receives (the root of a Reduce).
    pub(crate) adds: Option<Place>,
}

/// The calls on the wire that make up a task, in order (EPIC, appendix A: ReduceScatter is Reduces, AllGather is
/// Broadcasts, Barrier is an AllReduce of nothing).
pub(crate) fn wire_calls(task: &Task, rank: u16, size: u16, pmtu: u64) -> Vec<WireCall> {
    let mut calls = Vec::new();
    let bytes = task.bytes();
    match task.collective {
        Collective::Barrier => split(&mut calls, task, Primitive::AllReduce, 0, 0, pmtu, [None; 3]),
        Collective::AllReduce => {
            let places = [Some(Place::input(0)), Some(Place::output(0)), None];
            split(&mut calls, task, Primitive::AllReduce, 0, bytes, pmtu, places);
        }
        Collective::Reduce { root } => {
            let places = reduce_places(rank == root, Place::input(0));
            split(&mut calls, task, Primitive::Reduce, root, bytes, pmtu, places);
        }
        Collective::Broadcast { root } => {
            let places = broadcast_places(rank == root, Place::output(0));
            split(&mut calls, task, Primitive::Broadcast, root, bytes, pmtu, places);
        }
        Collective::ReduceScatter => {
            for root in 0..size {
                let places = reduce_places(rank == root, Place::input(u64::from(root) * bytes));
                split(&mut calls, task, Primitive::Reduce, root, bytes, pmtu, places);
            }
        }
        Collective::AllGather => {
            for root in 0..size {
                let places = broadcast_places(rank == root, Place::output(u64::from(root) * bytes));
                split(&mut calls, task, Primitive::Broadcast, root, bytes, pmtu, places);
            }
        }
    }
    calls
}

fn reduce_places(is_root: bool, own: Place) -> [Option<Place>; 3] {
    if is_root {
        [None, Some(Place::output(0)), Some(own)]
    } else {
        [Some(own), None, None]
    }
}

fn broadcast_places(is_root: bool, to: Place) -> [Option<Place>; 3] {
    if is_root {
        [Some(Place::input(0)), None, None]
    } else {
        [None, Some(to), None]
    }
}

/// Cuts `bytes` into calls of at most [`CALL_PACKETS_MAX`] packets; at least one, as also nothing must be agreed upon.
fn split(
    calls: &mut Vec<WireCall>,
    task: &Task,
    primitive: Primitive,
    root: u16,
    bytes: u64,
    pmtu: u64,
    [sends, receives, adds]: [Option<Place>; 3],
) {
    let most = CALL_PACKETS_MAX * pmtu;
    let mut done = 0;
    loop {
        let now = (bytes - done).min(most);
        let at = |place: Option<Place>| place.map(|p| p.plus(done));
        calls.push(WireCall {
            call: Call {
                primitive,
                root,
                operation: if primitive == Primitive::Broadcast || bytes == 0 {
                    Operation::Sum
                } else {
                    task.operation
                },
                data_type: task.data_type,
                flags: task.flags,
                elements: now / task.data_type.size() as u64,
                // At most 2^20.
                packets: now.div_ceil(pmtu) as u32,
            },
            bytes: now,
            sends: at(sends),
            receives: at(receives),
            adds: at(adds),
        });
        done += now;
        if done == bytes {
            return;
        }
    }
}
