//! The steps of a collective: pieces of its data, each with a part on the hosts and one between their leaders. All ranks
//! compute the same steps from the call and the layout.

use castnet_comm::machine::Collective;

use crate::layout::Layout;

/// A piece of the data of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What the leaders do. Roots are indices of hosts.
    pub(crate) collective: Collective,
    /// The first byte: of the whole data, or, in ReduceScatter and AllGather, of the blocks of the ranks of one host.
    from: usize,
    /// Number of bytes.
    pub(crate) length: usize,
    /// In ReduceScatter and AllGather, the host whose ranks have or get the blocks.
    blocks_of: Option<usize>,
}

impl Step {
    /// Whether ranks contribute to a reduction. Otherwise bytes are copied, or there are none.
    pub(crate) fn reduces(&self) -> bool {
        matches!(self.collective, Collective::AllReduce | Collective::Reduce { .. })
    }

    /// In a copy, the host that has the data.
    pub(crate) fn source(&self) -> Option<usize> {
        match self.collective {
            Collective::Broadcast { root } => Some(root.into()),
            _ => None,
        }
    }

    /// Whether the leader of `host` has a result of the network for its host.
    pub(crate) fn arrives_at(&self, host: usize) -> bool {
        match self.collective {
            Collective::AllReduce => true,
            Collective::Reduce { root } => host == usize::from(root),
            Collective::Broadcast { root } => host != usize::from(root),
            _ => false,
        }
    }
}

/// Bytes of a piece that are bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Offset in the piece.
    pub(crate) in_piece: usize,
    /// Offset in the input or output of the rank.
    pub(crate) in_buffer: usize,
    /// Number of bytes.
    pub(crate) length: usize,
}

/// The steps of a call.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    layout: &'a Layout,
    collective: Collective,
    /// Bytes of a rank's block in ReduceScatter and AllGather, otherwise of the whole data.
    bytes: usize,
    /// Bytes of a full piece.
    piece: usize,
    /// For each host, the number of steps up to the end of its blocks. Empty for other calls.
    ends: Vec<u64>,
}

impl<'a> Plan<'a> {
    /// `piece` is a multiple of the size of all types.
    pub(crate) fn new(layout: &'a Layout, collective: Collective, bytes: usize, piece: usize) -> Self {
        let has_blocks = matches!(collective, Collective::ReduceScatter | Collective::AllGather) && bytes > 0;
        let blocks_of = |host: usize| layout.ranks_of(host).len() * bytes;
        let mut end = 0;
        let mut end_of = |host: usize| {
            end += blocks_of(host).div_ceil(piece) as u64;
            end
        };
        let ends = match has_blocks {
            true => (0..layout.hosts()).map(&mut end_of).collect(),
            false => Vec::new(),
        };
        Self {
            layout,
            collective,
            bytes,
            piece,
            ends,
        }
    }

    /// Number of steps, at least one.
    pub(crate) fn steps(&self) -> u64 {
        match self.ends.last() {
            Some(end) => *end,
            None => self.bytes.div_ceil(self.piece).max(1) as u64,
        }
    }

    /// Step `index`, counted from 0.
    pub(crate) fn step(&self, index: u64) -> Step {
        if self.ends.is_empty() {
            let from = index as usize * self.piece;
            let host_of = |root: u16| self.layout.place(root).0 as u16;
            return Step {
                collective: match self.collective {
                    Collective::Reduce { root } => Collective::Reduce { root: host_of(root) },
                    Collective::Broadcast { root } => Collective::Broadcast { root: host_of(root) },
                    Collective::AllReduce => Collective::AllReduce,
                    // Without data, ReduceScatter and AllGather too.
                    _ => Collective::Barrier,
                },
                from,
                length: (self.bytes - from.min(self.bytes)).min(self.piece),
                blocks_of: None,
            };
        }
        let host = self.ends.partition_point(|end| *end <= index);
        let first = host.checked_sub(1).map_or(0, |before| self.ends[before]);
        let (from, root) = ((index - first) as usize * self.piece, host as u16);
        Step {
            collective: match self.collective {
                Collective::ReduceScatter => Collective::Reduce { root },
                _ => Collective::Broadcast { root },
            },
            from,
            length: (self.layout.ranks_of(host).len() * self.bytes - from).min(self.piece),
            blocks_of: Some(host),
        }
    }

    /// The bytes that `rank` gives.
    pub(crate) fn inputs(&self, step: Step, rank: u16) -> impl Iterator<Item = Part> {
        let (whole, only) = match self.collective {
            Collective::AllReduce | Collective::Reduce { .. } => (true, None),
            Collective::Broadcast { root } => (root == rank, None),
            Collective::ReduceScatter => (false, None),
            _ => (false, Some(rank)),
        };
        self.parts(step, whole, only)
    }

    /// The bytes that `rank` gets.
    pub(crate) fn outputs(&self, step: Step, rank: u16) -> impl Iterator<Item = Part> {
        let (whole, only) = match self.collective {
            Collective::AllReduce => (true, None),
            Collective::Reduce { root } => (root == rank, None),
            Collective::Broadcast { root } => (root != rank, None),
            Collective::ReduceScatter => (false, Some(rank)),
            _ => (false, None),
        };
        self.parts(step, whole, only)
    }

    /// Whether `rank` waits for the result of a step.
    pub(crate) fn receives(&self, step: Step, rank: u16) -> bool {
        match self.collective {
            Collective::Reduce { root } => root == rank,
            Collective::Broadcast { root } => root != rank,
            Collective::ReduceScatter if step.length > 0 => self.outputs(step, rank).next().is_some(),
            _ => true,
        }
    }

    /// Either the whole piece, or the blocks in it: one part for each, or only the part of one rank, whose buffer is its block.
    fn parts(&self, step: Step, whole: bool, only: Option<u16>) -> impl Iterator<Item = Part> {
        let whole = whole.then_some(Part {
            in_piece: 0,
            in_buffer: step.from,
            length: step.length,
        });
        let ranks = step.blocks_of.map_or(&[][..], |host| self.layout.ranks_of(host));
        let (block, from, end) = (self.bytes, step.from, step.from + step.length);
        let part = move |(index, rank): (usize, &u16)| {
            let begin = index * block;
            let (first, last) = (from.max(begin), end.min(begin + block));
            if first >= last || only.is_some_and(|only| only != *rank) {
                return None;
            }
            let base = if only.is_some() {
                0
            } else {
                usize::from(*rank) * block
            };
            Some(Part {
                in_piece: first - from,
                in_buffer: base + first - begin,
                length: last - first,
            })
        };
        whole.into_iter().chain(ranks.iter().enumerate().filter_map(part))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each byte of each input is in exactly one piece, and each byte of an output comes from exactly one.
    fn covers(plan: &Plan<'_>, collective: Collective, rank: u16, ranks: usize, bytes: usize) {
        let lengths = match collective {
            Collective::ReduceScatter => (bytes * ranks, bytes),
            Collective::AllGather => (bytes, bytes * ranks),
            Collective::Barrier => (0, 0),
            Collective::AllReduce => (bytes, bytes),
            Collective::Reduce { root } => (bytes, if root == rank { bytes } else { 0 }),
            Collective::Broadcast { root } if root == rank => (bytes, 0),
            Collective::Broadcast { .. } => (0, bytes),
        };
        let (mut input, mut output) = (vec![0; lengths.0], vec![0; lengths.1]);
        for index in 0..plan.steps() {
            let step = plan.step(index);
            assert!(step.length <= plan.piece && (step.length > 0 || plan.steps() == 1));
            let mut piece = vec![0; step.length];
            for part in plan.inputs(step, rank) {
                input[part.in_buffer..part.in_buffer + part.length]
                    .iter_mut()
                    .for_each(|n| *n += 1);
                piece[part.in_piece..part.in_piece + part.length]
                    .iter_mut()
                    .for_each(|n| *n += 1);
            }
            assert!(piece.iter().all(|n| *n == 1) || !step.reduces());
            assert!(piece.iter().all(|n| *n <= 1));
            for part in plan.outputs(step, rank) {
                output[part.in_buffer..part.in_buffer + part.length]
                    .iter_mut()
                    .for_each(|n| *n += 1);
                assert!(part.in_piece + part.length <= step.length && plan.receives(step, rank));
            }
        }
        assert!(
            input.iter().chain(&output).all(|n| *n == 1),
            "{collective:?} of {bytes} at {rank}"
        );
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_piece(
            hosts in prop::collection::vec(0_u8..4, 1..9),
            bytes in prop_oneof![Just(0), 1_usize..20, 60_usize..400],
            root in 0_usize..8,
        ) {
            let (layout, ranks) = (Layout::new(&hosts), hosts.len());
            let root = (root % ranks) as u16;
            for collective in [
                Collective::AllReduce,
                Collective::Reduce { root },
                Collective::Broadcast { root },
                Collective::Barrier,
                Collective::ReduceScatter,
                Collective::AllGather,
            ] {
                let bytes = if collective == Collective::Barrier { 0 } else { bytes };
                let plan = Plan::new(&layout, collective, bytes, 64);
                for rank in 0..ranks as u16 {
                    covers(&plan, collective, rank, ranks, bytes);
                }
            }
        }
    }
}
