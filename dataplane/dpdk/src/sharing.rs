//! From which length a replica reads its original's bytes rather than having a copy of them. CPUs differ by a factor of two in
//! what either costs, so both are measured where the dataplane runs.

use std::fmt;
use std::time::{Duration, Instant};

use castnet_port::{BATCH, Batch, Memory};

use crate::fence::mbuf::Mbuf;
use crate::memory::DpdkMemory;

/// Bytes of the frames that are tried.
const LENGTHS: [usize; 7] = [512, 1024, 1536, 2048, 3072, 4096, 8192];
/// Replicas of each frame.
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
            let [by_leg, lent] = best(memory, &bytes, leg_by_leg, [copied, lent]);
            lend.push((length, by_leg, lent));
            let [by_frame, shared] = best(memory, &bytes, frame_by_frame, [copied, shared]);
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

/// Makes a replica of a frame, with so many more to come.
type Way = fn(&DpdkMemory, &Mbuf, usize) -> Option<Mbuf>;

fn copied(memory: &DpdkMemory, frame: &Mbuf, _: usize) -> Option<Mbuf> {
    memory.copy(frame)
}

fn lent(memory: &DpdkMemory, frame: &Mbuf, to_come: usize) -> Option<Mbuf> {
    memory.lend(frame, to_come)
}

fn shared(memory: &DpdkMemory, frame: &Mbuf, _: usize) -> Option<Mbuf> {
    memory.share(frame)
}

/// Makes all replicas of these frames, and gives them away batch by batch; whether each could be made. All are asked for in any
/// case: a frame that was promised more borrowers than come is lost ([`Memory::lend`]).
type Order = fn(&DpdkMemory, &[Mbuf], Way) -> bool;

/// As plain data of one flow leaves: by the time that a frame's next replica is made, the frame may have left the
/// first-level cache.
fn leg_by_leg(memory: &DpdkMemory, frames: &[Mbuf], way: Way) -> bool {
    let mut made = 0;
    for to_come in (0..REPLICAS).rev() {
        let mut sent = Batch::<Mbuf>::new();
        sent.extend(frames.iter().filter_map(|frame| way(memory, frame, to_come)));
        made += sent.len();
    }
    made == REPLICAS * frames.len()
}

/// As all others leave.
fn frame_by_frame(memory: &DpdkMemory, frames: &[Mbuf], way: Way) -> bool {
    let mut made = 0;
    for frames in frames.chunks(BATCH / REPLICAS) {
        let mut sent = Batch::<Mbuf>::new();
        for frame in frames {
            sent.extend(
                (0..REPLICAS)
                    .rev()
                    .filter_map(|to_come| way(memory, frame, to_come)),
            );
        }
        made += sent.len();
    }
    made == REPLICAS * frames.len()
}

/// The least time of a round of frames of these bytes in each of two ways.
fn best(memory: &DpdkMemory, bytes: &[u8], order: Order, ways: [Way; 2]) -> [Duration; 2] {
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (way, best) in ways.into_iter().zip(&mut best) {
            // How a frame lends its bytes is settled by the first replica, so each round has frames of its own.
            let frames: Vec<Mbuf> = (0..BATCH).filter_map(|_| memory.copy_from(bytes)).collect();
            let start = Instant::now();
            let made = order(memory, &frames, way);
            let elapsed = start.elapsed();
            // What could not be made costs nothing.
            if made && frames.len() == BATCH {
                *best = elapsed.min(*best);
            }
        }
    }
    best
}

/// The shortest length from which on sharing costs no more than a copy, of (length, cost of a copy, cost of sharing). A cost that
/// could not be measured is [`Duration::MAX`].
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
        assert_eq!(threshold(&[(512, Duration::MAX, Duration::MAX)]), usize::MAX);
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
