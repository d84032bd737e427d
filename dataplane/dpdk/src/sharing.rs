//! Measures the frame length from which on a replica shares its original's bytes instead of copying them. The costs
//! differ by a factor of two between CPUs.

use std::fmt;
use std::time::{Duration, Instant};

use castnet_port::{BATCH, Batch, Memory};

use crate::fence::mbuf::Mbuf;
use crate::memory::DpdkMemory;

/// In bytes.
const LENGTHS: [usize; 7] = [512, 1024, 1536, 2048, 3072, 4096, 8192];
const REPLICAS: usize = 7;
/// Per length. The best one counts, because other threads on the core disturb the others.
const ITERATIONS: usize = 32;

/// Frame lengths in bytes from which on replicas share the body. Replicas of shorter frames are copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// For replicas that [borrow](Memory::lend) everything behind their head (two buffers).
    pub lend: usize,
    /// For replicas with their own trailer (three buffers).
    pub share: usize,
}

impl Thresholds {
    /// On this thread, in some milliseconds. The cost of a device per sent segment is not included.
    pub(crate) fn measure(memory: &DpdkMemory) -> Self {
        let (mut lend, mut share) = (Vec::new(), Vec::new());
        for length in LENGTHS.into_iter().filter(|&l| l <= memory.capacity()) {
            let bytes = vec![0x5A; length];
            let [by_path, lent] = best_times(memory, &bytes, path_by_path, [copied, lent]);
            lend.push((length, by_path, lent));
            let [by_frame, shared] = best_times(memory, &bytes, frame_by_frame, [copied, shared]);
            share.push((length, by_frame, shared));
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

/// Creates a replica. The number is that of the replicas still to come.
type Replicate = fn(&DpdkMemory, &Mbuf, usize) -> Option<Mbuf>;

fn copied(memory: &DpdkMemory, frame: &Mbuf, _: usize) -> Option<Mbuf> {
    memory.copy(frame)
}

fn lent(memory: &DpdkMemory, frame: &Mbuf, to_come: usize) -> Option<Mbuf> {
    memory.lend(frame, to_come)
}

fn shared(memory: &DpdkMemory, frame: &Mbuf, _: usize) -> Option<Mbuf> {
    memory.share(frame)
}

/// Creates all replicas of the frames and frees them in batches. Returns true if all were created. It requests all of
/// them in any case, because a frame leaks if fewer borrowers are created than announced ([`Memory::lend`]).
type Schedule = fn(&DpdkMemory, &[Mbuf], Replicate) -> bool;

/// As for plain data of one flow: all frames for one path, then for the next. A frame may have left the first-level
/// cache when its next replica is created.
fn path_by_path(memory: &DpdkMemory, frames: &[Mbuf], replicate: Replicate) -> bool {
    let mut made = 0;
    for to_come in (0..REPLICAS).rev() {
        let mut sent = Batch::<Mbuf>::new();
        sent.extend(
            frames
                .iter()
                .filter_map(|frame| replicate(memory, frame, to_come)),
        );
        made += sent.len();
    }
    made == REPLICAS * frames.len()
}

/// As for all other frames: all replicas of one frame, then of the next.
fn frame_by_frame(memory: &DpdkMemory, frames: &[Mbuf], replicate: Replicate) -> bool {
    let mut made = 0;
    for frames in frames.chunks(BATCH / REPLICAS) {
        let mut sent = Batch::<Mbuf>::new();
        for frame in frames {
            sent.extend(
                (0..REPLICAS)
                    .rev()
                    .filter_map(|to_come| replicate(memory, frame, to_come)),
            );
        }
        made += sent.len();
    }
    made == REPLICAS * frames.len()
}

/// Of an iteration with each of two functions.
fn best_times(
    memory: &DpdkMemory,
    bytes: &[u8],
    schedule: Schedule,
    functions: [Replicate; 2],
) -> [Duration; 2] {
    let mut best = [Duration::MAX; 2];
    for _ in 0..ITERATIONS {
        for (replicate, best) in functions.into_iter().zip(&mut best) {
            // The first replica decides how a frame is lent, so each iteration has new frames.
            let frames: Vec<Mbuf> = (0..BATCH).filter_map(|_| memory.copy_from(bytes)).collect();
            let start = Instant::now();
            let made = schedule(memory, &frames, replicate);
            let elapsed = start.elapsed();
            if made && frames.len() == BATCH {
                *best = elapsed.min(*best);
            }
        }
    }
    best
}

/// The shortest length from which on sharing costs no more than copying, given (length, cost of copying, cost of
/// sharing). [`Duration::MAX`] means that a cost could not be measured.
fn threshold(costs: &[(usize, Duration, Duration)]) -> usize {
    let cheaper = costs
        .iter()
        .rev()
        .take_while(|(_, copy, share)| share <= copy && *share < Duration::MAX);
    cheaper.last().map_or(usize::MAX, |&(length, ..)| length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_length_above_the_threshold_is_cheaper_to_copy() {
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
        assert_eq!(chosen([5, 25, 25, 25]), 2048, "one short length is not enough");
        assert_eq!(chosen([5; 4]), 512);
        assert_eq!(chosen([5, 5, 5, 50]), usize::MAX);
        assert_eq!(threshold(&[]), usize::MAX);
        assert_eq!(threshold(&[(512, Duration::MAX, Duration::MAX)]), usize::MAX);
    }

    #[test]
    fn thresholds_are_displayed() {
        let thresholds = Thresholds {
            lend: 1024,
            share: usize::MAX,
        };
        assert_eq!(thresholds.to_string(), "borrow from 1024 bytes on, share never");
    }
}
