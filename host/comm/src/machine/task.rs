//! Collectives as a rank calls them, and their calls on the wire.

use castnet_wire::control::{Call, CallFlags, DataType, Operation, Primitive};

use super::Place;

/// The six collectives (EPIC, appendix A). `root` must be below the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank receives the reduction over all ranks.
    AllReduce,
    /// One rank receives it.
    Reduce {
        /// That rank.
        root: u16,
    },
    /// Every rank receives the data of one.
    Broadcast {
        /// That rank.
        root: u16,
    },
    /// No rank continues before all have called it.
    Barrier,
    /// Rank i receives the reduction of the i-th blocks of all ranks.
    ReduceScatter,
    /// Every rank receives the blocks of all ranks.
    AllGather,
}

impl Collective {
    /// Its name on the command line, as in nccl-tests.
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
    /// The collective.
    pub collective: Collective,
    /// How contributions are combined. Ignored by Broadcast, AllGather and Barrier.
    pub operation: Operation,
    /// Type of the elements.
    pub data_type: DataType,
    /// Whether integers saturate, and whether contributions are reduced in rank order.
    pub flags: CallFlags,
    /// Number of elements: of the whole for AllReduce, Reduce and Broadcast; of one rank's block for ReduceScatter
    /// and AllGather.
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

    /// Returns true if contributions must be reduced in rank order.
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

    /// Bytes that `rank` of `size` receives.
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

/// Most packets of one call on the wire: a switch can order PSNs over less than half of their range of 2^24. A longer
/// task becomes several calls, which are pipelined.
pub(crate) const CALL_PACKETS_MAX: u64 = 1 << 20;

/// One call on the wire that is part of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireCall {
    pub(crate) call: Call,
    /// Number of data bytes.
    pub(crate) bytes: u64,
    /// Source of the data, if this rank sends.
    pub(crate) sends: Option<Place>,
    /// Destination of the data, if this rank receives.
    pub(crate) receives: Option<Place>,
    /// Bytes that this rank combines with the received ones (the root of a Reduce).
    pub(crate) adds: Option<Place>,
}

/// The calls on the wire of a task, in order (EPIC, appendix A: a ReduceScatter is one Reduce per rank, an AllGather
/// one Broadcast per rank, a Barrier an AllReduce without data).
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

/// Splits `bytes` into calls of at most [`CALL_PACKETS_MAX`] packets. Returns at least one: ranks must also agree on
/// an empty call.
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
