//! Rings from one worker to another. All ports of the first one share them.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use castnet_port::{HandOver, Memory, Popped};
use castnet_wire::{DropReason, PortId};
use crossbeam::utils::CachePadded;

/// Most frames of one port for each slot that is free. A port that floods leaves a third of the ring to the others; several leave less, but
/// never nothing.
const SHARE: usize = 2;

/// Frames by port. One thread counts.
type Counts = CachePadded<[AtomicU32; PortId::COUNT]>;

/// For frames from one worker to another, each with its ingress port.
pub(crate) struct Ring<M: Memory> {
    frames: M::HandOver,
    pushed: Counts,
    popped: Counts,
}

fn counts() -> Counts {
    [const { AtomicU32::new(0) }; PortId::COUNT].into()
}

fn count(counts: &Counts, port: PortId) {
    let of_port = &counts[port.index()];
    of_port.store(of_port.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

impl<M: Memory> Ring<M> {
    pub(crate) fn new(capacity: usize, frame_max: usize) -> Self {
        Self {
            frames: M::HandOver::new(capacity, frame_max),
            pushed: counts(),
            popped: counts(),
        }
    }

    /// The number of further frames of this port for which there is room: with them it has [`SHARE`] in the ring for each slot that is free.
    pub(crate) fn share(&self, port: PortId) -> usize {
        let [pushed, popped] =
            [&self.pushed, &self.popped].map(|counts| counts[port.index()].load(Ordering::Relaxed));
        let free = self.frames.capacity().saturating_sub(self.frames.len());
        let most = (SHARE * free).saturating_sub(pushed.wrapping_sub(popped) as usize);
        most.div_ceil(SHARE + 1)
    }

    /// As [`HandOver::push`]. The caller keeps to the share of the port.
    ///
    /// # Errors
    /// As [`HandOver::push`].
    #[inline]
    pub(crate) fn push(&self, port: PortId, frame: M::Buf) -> Result<(), (DropReason, M::Buf)> {
        self.frames.push(port, frame)?;
        count(&self.pushed, port);
        Ok(())
    }

    /// As [`HandOver::pop`].
    #[inline]
    pub(crate) fn pop(&self, memory: &M) -> Option<Popped<PortId, M::Buf>> {
        let popped = self.frames.pop(memory)?;
        let (Ok((port, _)) | Err((port, _))) = &popped;
        count(&self.popped, *port);
        Some(popped)
    }
}

impl<M: Memory> Deref for Ring<M> {
    type Target = M::HandOver;

    fn deref(&self) -> &Self::Target {
        &self.frames
    }
}

#[cfg(test)]
mod tests {
    use castnet_port::{Pool, PoolConfig};

    use super::*;

    #[test]
    fn a_port_that_floods_leaves_a_part_of_the_ring_to_each_other_one() {
        let pool = Pool::new(PoolConfig::default());
        let ring: Ring<Pool> = Ring::new(90, 64);
        let port = |n: u8| PortId::new(n).unwrap();
        let fill = |n: u8| {
            let share = ring.share(port(n));
            let frame = || pool.gather(&[&[n; 60]]).unwrap();
            assert!((0..share).all(|_| ring.push(port(n), frame()).is_ok()));
            assert_eq!(ring.share(port(n)), 0);
            share
        };
        assert_eq!([0, 1, 2, 3].map(fill), [60, 20, 7, 2]);
        // What is taken out makes room, first for who has little in it.
        for _ in 0..30 {
            let (from, _) = ring.pop(&pool).unwrap().unwrap();
            assert_eq!(from, port(0));
        }
        assert_eq!([0, 3].map(fill), [11, 13]);
        assert_eq!((ring.len(), ring.share(port(4))), (83, 5));
    }
}
