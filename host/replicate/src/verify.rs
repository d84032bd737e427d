//! What the servers hold, compared with what was written.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::error::ReplicateError;
use crate::server::{DIGESTS_MAX, hex};
use crate::workload::{Content, Workload};

/// Most blocks that are named of each server.
const NAMED_MAX: usize = 16;

/// Result of the comparison at one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The server.
    pub server: String,
    /// Blocks that were compared: those that were written, and whose last write was acknowledged.
    pub blocks: u64,
    /// Blocks that differ from what was written.
    pub differing: u64,
    /// The first of them: their numbers, and the writes that they should hold.
    pub first: Vec<Difference>,
}

/// A block that does not hold its last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Number of the block. It begins at the byte of this number times the block's size.
    pub block: u64,
    /// The last write to it.
    pub write: u64,
}

/// A comparison, range by range.
pub(crate) struct Check {
    workload: Workload,
    contents: Vec<Content>,
    /// Where the next range begins.
    next: u64,
    servers: Vec<(u64, Vec<Difference>)>,
    blocks: u64,
    buffer: Vec<u8>,
}

impl Check {
    /// Calls `meanwhile` once in a while, and fails if that does.
    pub(crate) fn new(
        workload: Workload,
        writes: u64,
        under_way: u64,
        servers: usize,
        meanwhile: &mut dyn FnMut() -> Result<(), ReplicateError>,
    ) -> Result<Self, ReplicateError> {
        let contents = workload.contents(writes, under_way, meanwhile)?;
        let is_compared = |content: &&Content| matches!(content, Content::Of(_));
        Ok(Self {
            workload,
            blocks: contents.iter().filter(is_compared).count() as u64,
            contents,
            next: 0,
            servers: vec![(0, Vec::new()); servers],
            buffer: vec![0; workload.block as usize],
        })
    }

    /// First block and number of blocks of the next range with something to compare.
    pub(crate) fn next_range(&mut self) -> Option<(u64, u32)> {
        let rest = self.contents.get(self.next as usize..)?;
        let skipped = rest
            .iter()
            .position(|content| matches!(content, Content::Of(_)))?;
        let first = self.next + skipped as u64;
        // At most 16 MiB: a server answers within its client's patience.
        let most = u64::from(DIGESTS_MAX)
            .min((16 << 20) / u64::from(self.workload.block))
            .max(1);
        let count = most.min(self.contents.len() as u64 - first);
        self.next = first + count;
        Some((first, count as u32))
    }

    /// The last write to each block of a range, and the digest of its bytes. `None` where nothing is compared.
    pub(crate) fn expected(&mut self, first: u64, count: u32) -> Vec<Option<(u64, String)>> {
        let Self {
            workload,
            contents,
            buffer,
            ..
        } = self;
        let mut expected = |content: &Content| match *content {
            Content::Of(write) => {
                workload.fill(write, buffer);
                Some((write, hex(&Sha256::digest(&buffer))))
            }
            Content::Unwritten | Content::Unknown => None,
        };
        let first = first as usize;
        contents[first..first + count as usize]
            .iter()
            .map(&mut expected)
            .collect()
    }

    /// Compares the digests of a server with the expected ones, from block `first` on.
    pub(crate) fn compare(
        &mut self,
        server: usize,
        first: u64,
        expected: &[Option<(u64, String)>],
        digests: &[String],
    ) {
        let (differing, named) = &mut self.servers[server];
        for (block, (expected, digest)) in (first..).zip(expected.iter().zip(digests)) {
            let Some((write, expected)) = expected else {
                continue;
            };
            if expected != digest {
                *differing += 1;
                if named.len() < NAMED_MAX {
                    named.push(Difference { block, write: *write });
                }
            }
        }
    }

    pub(crate) fn finish(self, names: Vec<String>) -> Vec<Checked> {
        let checked = |(server, (differing, first))| Checked {
            server,
            blocks: self.blocks,
            differing,
            first,
        };
        names.into_iter().zip(self.servers).map(checked).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    #[test]
    fn each_written_block_is_compared_once_and_differences_are_named() {
        let workload = Workload {
            block: 8,
            span: 8 * 5000,
            pattern: Pattern::Random,
            seed: 3,
        };
        let (writes, under_way) = (3000, 16);
        let contents = workload
            .contents(writes, under_way, &mut || Ok(()))
            .expect("not ended");
        let check = Check::new(workload, writes, under_way, 2, &mut || Ok(()));
        let mut check = check.expect("not ended");
        let mut memory = vec![[0; 8]; 5000];
        for write in 0..writes {
            workload.fill(write, &mut memory[workload.block_of(write) as usize]);
        }
        let wrong: Vec<u64> = (0..5000)
            .filter(|block| matches!(contents[*block as usize], Content::Of(w) if w % 100 == 1))
            .collect();
        let mut seen = 0;
        while let Some((first, count)) = check.next_range() {
            assert!(count <= DIGESTS_MAX && first >= seen);
            seen = first + u64::from(count);
            let expected = check.expected(first, count);
            let digest = |block: u64| hex(&Sha256::digest(memory[block as usize]));
            let right: Vec<_> = (first..seen).map(digest).collect();
            check.compare(0, first, &expected, &right);
            let broken: Vec<_> = (first..seen)
                .map(|block| {
                    if wrong.contains(&block) {
                        "00".to_owned()
                    } else {
                        digest(block)
                    }
                })
                .collect();
            check.compare(1, first, &expected, &broken);
        }
        let compared = contents
            .iter()
            .filter(|content| matches!(content, Content::Of(_)))
            .count() as u64;
        let checked = check.finish(vec!["h2".into(), "h3".into()]);
        assert_eq!((checked[0].blocks, checked[0].differing), (compared, 0));
        assert_eq!(
            (checked[1].differing, checked[1].first.len()),
            (wrong.len() as u64, NAMED_MAX)
        );
        assert_eq!(checked[1].first[0].block, wrong[0]);
    }
}
