//! The port of a thread that only sends: its frames go to the thread that has the link, over a ring in this process.

use std::io;
use std::sync::atomic::Ordering;

use castnet_wire::{Batch, DropReason};

use super::{MemifSpec, RELAYED, port};
use crate::pool::PoolBuf;
use crate::port::{Port, PortLink, PortStats, fits, frame_max};
use crate::ring::FrameRing;
use crate::sleep::Sleeper;

#[derive(Debug)]
pub(super) struct Relay {
    spec: MemifSpec,
    /// Frames that were dropped here. The thread that has the link counts all others.
    stats: PortStats,
}

impl Relay {
    pub(super) fn new(spec: &MemifSpec) -> Self {
        let ring = || FrameRing::new(RELAYED, frame_max(spec.mtu));
        spec.shared.relayed.get_or_init(ring);
        Self {
            spec: spec.clone(),
            stats: PortStats::default(),
        }
    }

    fn relay(&self, frame: &PoolBuf) -> Result<(), DropReason> {
        let shared = &self.spec.shared;
        if !shared.up.load(Ordering::Relaxed) {
            return Err(DropReason::PortDown);
        }
        if !fits(frame, self.spec.mtu) {
            return Err(DropReason::TooLong);
        }
        shared
            .relayed
            .get()
            .map_or(Err(DropReason::PortDown), |ring| ring.push((), frame))
    }
}

impl Port for Relay {
    type Buf = PoolBuf;

    fn receive(&mut self, _: &mut Batch<PoolBuf>) {}

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        if batch.is_empty() {
            return;
        }
        self.offer(batch);
        self.stats.drops[DropReason::TxFull] += batch.len() as u64;
        batch.clear();
    }

    fn offer(&mut self, batch: &mut Batch<PoolBuf>) {
        let mut taken = 0;
        for frame in batch.iter() {
            match self.relay(frame) {
                Ok(()) => {}
                Err(DropReason::TxFull) => break,
                Err(reason) => self.stats.count_drop(reason),
            }
            taken += 1;
        }
        batch.drain(..taken);
        self.spec.shared.wake.wake();
    }

    fn info(&self) -> PortLink {
        port::info(&self.spec)
    }

    fn mtu(&self) -> usize {
        self.spec.mtu
    }

    fn is_up(&self) -> bool {
        self.spec.shared.up.load(Ordering::Relaxed)
    }

    fn stats(&self) -> PortStats {
        self.stats
    }

    fn ready(&self) -> bool {
        false
    }

    fn attach(&mut self, _: &mut Sleeper) -> io::Result<()> {
        Ok(())
    }
}
