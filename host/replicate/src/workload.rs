//! The sequence of writes: where each goes, and its bytes.

use castnet_rnic::messages;
use serde::Serialize;

use crate::error::ReplicateError;

/// Largest block in bytes.
pub(crate) const BLOCK_MAX: u32 = 16 << 20;
/// The maximum number of blocks. The client stores one number per block to verify.
const BLOCKS_MAX: u64 = 1 << 24;

/// The order of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One after the other, and again from the first one.
    Sequential,
    /// Drawn uniformly, with repetition.
    Random,
}

/// The sequence of writes of a client. It is a function of these values: whoever has them can verify the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Bytes of each write, 1 to 16 MiB. Writes begin at multiples of it.
    pub block: u32,
    /// Bytes that are written, from the begin of the servers' memory. A remainder below `block` is not written.
    pub span: u64,
    /// The order of the blocks.
    pub pattern: Pattern,
    /// What order and bytes are drawn from.
    pub seed: u64,
}

impl Workload {
    /// Fails if a value is out of range.
    pub fn check(&self) -> Result<(), ReplicateError> {
        let Self { block, span, .. } = *self;
        let range = |what: String| Err(ReplicateError::OutOfRange { what });
        if block == 0 || block > BLOCK_MAX {
            return range(format!("a write of {block} bytes: 1 byte to 16 MiB are possible"));
        }
        match self.blocks() {
            0 => range(format!("{span} bytes of memory hold no write of {block} bytes")),
            blocks if blocks > BLOCKS_MAX => range(format!(
                "{span} bytes are {blocks} blocks of {block} bytes: at most {BLOCKS_MAX} are possible"
            )),
            _ => Ok(()),
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.span / u64::from(self.block.max(1))
    }

    /// Block of a write.
    pub fn block_of(&self, write: u64) -> u64 {
        match self.pattern {
            Pattern::Sequential => write % self.blocks().max(1),
            Pattern::Random => {
                let state = self
                    .seed
                    .wrapping_add(write.wrapping_add(1).wrapping_mul(messages::MIX_STEP));
                let drawn = u128::from(messages::mix(state)) * u128::from(self.blocks());
                (drawn >> 64) as u64
            }
        }
    }

    /// Fills `bytes` with those of a write. The bytes of two writes differ.
    pub fn fill(&self, write: u64, bytes: &mut [u8]) {
        messages::fill(write ^ self.seed.rotate_right(24), bytes);
    }

    /// What each block holds after the first `writes` writes, if `under_way` more may have arrived, wholly or in part. Calls `meanwhile`
    /// once in a while: of many writes it takes long.
    pub(crate) fn contents(
        &self,
        writes: u64,
        under_way: u64,
        meanwhile: &mut dyn FnMut() -> Result<(), ReplicateError>,
    ) -> Result<Vec<Content>, ReplicateError> {
        const AT_ONCE: u64 = 1 << 24;
        let mut blocks = vec![Content::Unwritten; self.blocks() as usize];
        let all = writes.saturating_add(under_way);
        for write in 0..all {
            if write.is_multiple_of(AT_ONCE) {
                meanwhile()?;
            }
            let content = match write < writes {
                true => Content::Of(write),
                false => Content::Unknown,
            };
            blocks[self.block_of(write) as usize] = content;
        }
        Ok(blocks)
    }
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Unwritten,
    /// The bytes of this write.
    Of(u64),
    /// A write to it has not been acknowledged.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(pattern: Pattern, seed: u64) -> Workload {
        Workload {
            block: 64,
            span: 1000,
            pattern,
            seed,
        }
    }

    #[test]
    fn every_block_is_written_and_none_beyond() {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            let workload = workload(pattern, 7);
            let contents = workload.contents(200, 0, &mut || Ok(())).expect("not ended");
            assert_eq!((workload.blocks(), contents.len()), (15, 15));
            assert!(
                contents.iter().all(|content| *content != Content::Unwritten),
                "{contents:?}"
            );
        }
    }

    #[test]
    fn a_block_holds_its_last_write_or_is_unknown() {
        let workload = workload(Pattern::Sequential, 0);
        let contents = workload.contents(17, 2, &mut || Ok(())).expect("not ended");
        assert_eq!(contents[0], Content::Of(15));
        assert_eq!(contents[1], Content::Of(16));
        assert_eq!(contents[2..4], [Content::Unknown; 2]);
        assert_eq!(contents[4], Content::Of(4));
    }

    #[test]
    fn seeds_give_other_orders_and_bytes() {
        let order = |seed| -> Vec<u64> {
            let workload = workload(Pattern::Random, seed);
            (0..50).map(|write| workload.block_of(write)).collect()
        };
        assert_ne!(order(1), order(2));
        assert_eq!(order(1), order(1));
        let bytes = |seed, write| {
            let mut bytes = [0; 64];
            workload(Pattern::Random, seed).fill(write, &mut bytes);
            bytes
        };
        assert_ne!(bytes(1, 0), bytes(2, 0));
        assert_ne!(bytes(1, 0), bytes(1, 1));
    }

    #[test]
    fn sizes_out_of_range_are_refused_with_their_numbers() {
        let refused = |block, span| {
            let workload = Workload {
                block,
                span,
                ..workload(Pattern::Random, 0)
            };
            workload.check().map_err(|error| error.to_string())
        };
        assert_eq!(refused(1 << 24, 1 << 40), Ok(()));
        assert_eq!(refused(1, 1 << 24), Ok(()));
        assert!(refused(0, 10).is_err_and(|e| e.contains("0 bytes")));
        assert!(refused((1 << 24) + 1, 1 << 40).is_err());
        assert!(refused(8192, 8191).is_err_and(|e| e.contains("8191 bytes of memory hold no write of 8192")));
        assert!(refused(1, (1 << 24) + 1).is_err_and(|e| e.contains("16777217 blocks")));
    }
}
