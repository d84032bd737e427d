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
    /// Number of elements: of one rank's block for ReduceScatter and AllGather, otherwise of the whole.
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

/// Most packets of one call on the wire: a switch orders PSNs over less than 2^23. Longer tasks become several calls.
pub(crate) const CALL_PACKETS_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireCall {
    pub(crate) call: Call,
    /// Index of this block of the call. The first one carries the control message.
    pub(crate) block: u16,
    pub(crate) bytes: u64,
    /// Source of the data, if this rank sends.
    pub(crate) sends: Option<Place>,
    /// Destination of the data, if this rank receives.
    pub(crate) receives: Option<Place>,
    /// Bytes that this rank combines with the received ones (the root of a Reduce).
    pub(crate) adds: Option<Place>,
}

/// How tasks are cut into calls: equal at all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) pmtu: u64,
    /// Most packets of a call of several blocks: what one control result lets into the window.
    pub(crate) window_packets: u64,
    /// Most blocks of a call.
    pub(crate) blocks_max: u16,
}

impl Cut {
    /// Blocks of a call with blocks of `bytes`.
    fn blocks(&self, bytes: u64) -> u16 {
        let most = self.blocks_max.clamp(1, Call::ROOTS_MAX);
        match self.window_packets.checked_div(bytes.div_ceil(self.pmtu)) {
            // At most `most`, which has 16 bits.
            Some(fit) => fit.clamp(1, most.into()) as u16,
            None => 1,
        }
    }
}

/// The calls on the wire of a task, block by block (EPIC, appendix A: a ReduceScatter is one Reduce per rank, an AllGather
/// one Broadcast per rank, a Barrier an AllReduce without data). Small blocks of several roots share a call. Each call has at
/// most [`CALL_PACKETS_MAX`] packets. There is at least one: ranks must agree on an empty call.
pub(crate) fn wire_calls(
    task: &Task,
    rank: u16,
    size: u16,
    cut: Cut,
) -> impl Iterator<Item = WireCall> + use<> {
    let task = *task;
    let pmtu = cut.pmtu;
    let (bytes, roots) = match task.collective {
        Collective::Barrier => (0, 0..1),
        Collective::AllReduce => (task.bytes(), 0..1),
        Collective::Reduce { root } | Collective::Broadcast { root } => (task.bytes(), root..root + 1),
        Collective::ReduceScatter | Collective::AllGather => (task.bytes(), 0..size),
    };
    let most = CALL_PACKETS_MAX * pmtu;
    let pieces = bytes.div_ceil(most).max(1);
    let (first, end, blocks) = (roots.start, roots.end, cut.blocks(bytes));
    roots.flat_map(move |root| {
        let block = (root - first) % blocks;
        let (primitive, [sends, receives, adds]) = places(&task, rank, root);
        (0..pieces).map(move |piece| {
            let done = piece * most;
            let now = (bytes - done).min(most);
            let at = |place: Option<Place>| place.map(|p| p.plus(done));
            WireCall {
                call: Call {
                    primitive,
                    root: root - block,
                    roots: blocks.min(end - (root - block)),
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
                block,
                bytes: now,
                sends: at(sends),
                receives: at(receives),
                adds: at(adds),
            }
        })
    })
}

/// What the call with this root sends, receives, and adds to what it receives.
fn places(task: &Task, rank: u16, root: u16) -> (Primitive, [Option<Place>; 3]) {
    let block = u64::from(root) * task.bytes();
    let reduce = |own| match rank == root {
        true => [None, Some(Place::output(0)), Some(own)],
        false => [Some(own), None, None],
    };
    let broadcast = |to| match rank == root {
        true => [Some(Place::input(0)), None, None],
        false => [None, Some(to), None],
    };
    match task.collective {
        Collective::Barrier => (Primitive::AllReduce, [None; 3]),
        Collective::AllReduce => {
            let places = [Some(Place::input(0)), Some(Place::output(0)), None];
            (Primitive::AllReduce, places)
        }
        Collective::Reduce { .. } => (Primitive::Reduce, reduce(Place::input(0))),
        Collective::ReduceScatter => (Primitive::Reduce, reduce(Place::input(block))),
        Collective::Broadcast { .. } => (Primitive::Broadcast, broadcast(Place::output(0))),
        Collective::AllGather => (Primitive::Broadcast, broadcast(Place::output(block))),
    }
}
