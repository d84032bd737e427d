//! From which length a replica reads its original's bytes rather than having a copy of them. CPUs differ by a factor of two in
//! what either costs, so both are measured where the dataplane runs.

use std::fmt;
use std::time::{Duration, Instant};

use castnet_port::Memory;

use crate::fence::mbuf::Mbuf;
use crate::memory::DpdkMemory;

/// Bytes of the frames that are tried.
const LENGTHS: [usize; 7] = [512, 1024, 1536, 2048, 3072, 4096, 8192];
/// Frames of a round, and replicas of each: no more buffers than a thread always has.
const ORIGINALS: usize = 8;
const REPLICAS: usize = 7;
/// Rounds of each length: the best counts, since whatever else runs on the core takes time from the others.
const ROUNDS: usize = 32;

/// Bytes from which on a frame's replicas share its body, shorter ones being copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// For replicas that [borrow](Memory::lend) all behind their heads: two buffers.
    pub lend: usize,
    /// For replicas with a trailer of their own: three buffers.
    pub share: usize,
}

impl Thresholds {
    /// Measures on this thread, in some milliseconds. What a device adds for each segment that it sends is not in it.
    pub(crate) fn measure(memory: &DpdkMemory) -> Self {
        let (mut lend, mut share) = (Vec::new(), Vec::new());
        for length in LENGTHS.into_iter().filter(|&l| l <= memory.room()) {
            let bytes = vec![0x5A; length];
            let [copied, lent, shared] = best(memory, &bytes);
            lend.push((length, copied, lent));
            share.push((length, copied, shared));
        }
        Self {
            lend: threshold(&lend),
            share: threshold(&share),
        }
    }
}

impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = |f: &mut fmt::Formatter<'_>, bytes| match bytes {
            usize::MAX => f.write_str("never"),
            bytes => write!(f, "from {bytes} bytes on"),
        };
        f.write_str("borrow ")?;
        from(f, self.lend)?;
        f.write_str(", share ")?;
        from(f, self.share)
    }
}

/// Makes a replica of a frame, with so many more to come.
type Way = fn(&DpdkMemory, &Mbuf, usize) -> Option<Mbuf>;

/// The least time of a round with copies, borrowers and sharers of a frame of these bytes.
fn best(memory: &DpdkMemory, bytes: &[u8]) -> [Duration; 3] {
    let ways: [Way; 3] = [
        |memory, frame, _| memory.copy(frame),
        |memory, frame, to_come| memory.lend(frame, to_come),
        |memory, frame, _| memory.share(frame),
    ];
    let mut best = [Duration::MAX; 3];
    let mut replicas = Vec::with_capacity(ORIGINALS * REPLICAS);
    for _ in 0..ROUNDS {
        for (way, best) in ways.iter().zip(&mut best) {
            // How a frame lends its bytes is settled by the first replica, so each round has frames of its own.
            let frames: Vec<Mbuf> = (0..ORIGINALS).filter_map(|_| memory.copy_from(bytes)).collect();
            let start = Instant::now();
            for frame in &frames {
                replicas.extend(
                    (0..REPLICAS)
                        .rev()
                        .filter_map(|to_come| way(memory, frame, to_come)),
                );
            }
            let made = replicas.len();
            replicas.clear();
            // Replicas that could not be made cost nothing.
            if made == ORIGINALS * REPLICAS {
                *best = start.elapsed().min(*best);
            }
        }
    }
    best
}

/// The shortest length from which on sharing costs no more than a copy, of (length, cost of a copy, cost of sharing).
fn threshold(costs: &[(usize, Duration, Duration)]) -> usize {
    let cheaper = costs.iter().rev().take_while(|(_, copy, share)| share <= copy);
    cheaper.last().map_or(usize::MAX, |&(length, ..)| length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_from_the_threshold_on_cost_no_more_shared_than_copied() {
        let chosen = |shared: [u64; 4]| {
            let copied = [10, 20, 30, 40].map(Duration::from_nanos);
            let shared = shared.map(Duration::from_nanos);
            let lengths = [512, 1024, 2048, 4096];
            threshold(&std::array::from_fn::<_, 4, _>(|i| {
                (lengths[i], copied[i], shared[i])
            }))
        };
        assert_eq!(chosen([25; 4]), 2048);
        assert_eq!(chosen([20; 4]), 1024);
        assert_eq!(chosen([5, 25, 25, 25]), 2048, "one short length is no reason");
        assert_eq!(chosen([5; 4]), 512);
        assert_eq!(chosen([5, 5, 5, 50]), usize::MAX);
        assert_eq!(threshold(&[]), usize::MAX);
    }

    #[test]
    fn thresholds_are_told_in_words() {
        let thresholds = Thresholds {
            lend: 1024,
            share: usize::MAX,
        };
        assert_eq!(thresholds.to_string(), "borrow from 1024 bytes on, share never");
    }
}
