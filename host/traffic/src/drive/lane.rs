//! A cheap link between two threads: whole batches are handed over.
//!
//! [`castnet_port::MemLink`] hands over single frames from any number of senders, which costs more than an ACK in the
//! switch. A lane has one sender and one receiver per direction. Each block holds a batch and has a lock, which is
//! contended only while that block is being filled.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use castnet_port::{
    BATCH, Backend, Batch, BoxPort, FrameBuf, OpenError, Pool, PoolBuf, Port, PortLink, PortSpec, PortStats,
    Sides, Sleeper, frame_max,
};
use castnet_wire::{DropReason, MacAddr, Nanos};

/// Blocks per direction. A block holds one batch.
const BLOCKS: usize = 16;

struct Block {
    bytes: Box<[u8]>,
    lengths: [u16; BATCH],
    frames: usize,
}

/// A counter on its own cache line, written by one thread.
#[repr(align(128))]
#[derive(Default)]
struct Padded(AtomicUsize);

struct Ring {
    blocks: Box<[Mutex<Block>]>,
    /// Bytes between the starts of two frames of a block.
    stride: usize,
    /// Number of blocks begun and emptied since the start.
    begun: Padded,
    emptied: Padded,
}

impl Ring {
    fn new(mtu: usize) -> Self {
        let stride = frame_max(mtu).next_multiple_of(64);
        let block = || {
            Mutex::new(Block {
                bytes: vec![0; stride * BATCH].into(),
                lengths: [0; BATCH],
                frames: 0,
            })
        };
        Self {
            blocks: (0..BLOCKS).map(|_| block()).collect(),
            stride,
            begun: Padded::default(),
            emptied: Padded::default(),
        }
    }

    fn block(&self, number: usize) -> MutexGuard<'_, Block> {
        // After a panic of the other thread a block is at worst empty.
        self.blocks[number % BLOCKS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes frames from the front of `batch` while there is capacity.
    fn push(&self, batch: &mut Batch<PoolBuf>) {
        while !batch.is_empty() {
            let begun = self.begun.0.load(Ordering::Relaxed);
            if begun > 0 {
                // The other side may have emptied the last block; check again under its lock.
                let mut last = self.block(begun - 1);
                if self.emptied.0.load(Ordering::Acquire) < begun && last.frames < BATCH {
                    self.append(&mut last, batch);
                    continue;
                }
            }
            if begun - self.emptied.0.load(Ordering::Acquire) == BLOCKS {
                return;
            }
            let mut block = self.block(begun);
            block.frames = 0;
            self.append(&mut block, batch);
            self.begun.0.store(begun + 1, Ordering::Release);
        }
    }

    fn append(&self, block: &mut Block, batch: &mut Batch<PoolBuf>) {
        let capacity = BATCH - block.frames;
        let count = batch.len().min(capacity);
        for frame in batch.drain(..count) {
            let at = block.frames * self.stride;
            let length = frame.copy_to(&mut block.bytes[at..at + self.stride]);
            block.lengths[block.frames] = length as u16;
            block.frames += 1;
        }
    }

    /// Passes the frames of the oldest block to `take`; returns their number, 0 if there are more than `capacity`.
    fn pop(&self, capacity: usize, mut take: impl FnMut(&[u8])) -> usize {
        let emptied = self.emptied.0.load(Ordering::Relaxed);
        if emptied == self.begun.0.load(Ordering::Acquire) {
            return 0;
        }
        let mut block = self.block(emptied);
        if block.frames > capacity {
            return 0;
        }
        for (i, length) in block.lengths.iter().take(block.frames).enumerate() {
            let at = i * self.stride;
            take(&block.bytes[at..at + usize::from(*length)]);
        }
        self.emptied.0.store(emptied + 1, Ordering::Release);
        std::mem::take(&mut block.frames)
    }

    fn is_empty(&self) -> bool {
        self.emptied.0.load(Ordering::Relaxed) == self.begun.0.load(Ordering::Acquire)
    }
}

/// A link over two rings in memory.
#[derive(Debug)]
pub struct Lane;

impl Lane {
    /// The switch's end drops frames that do not fit, as a port does; the host's end keeps one batch until it fits.
    /// `mac` is the switch's address, `mtu` the largest packet at layer 3.
    pub fn pair(name: &str, mac: MacAddr, mtu: usize) -> (LaneEnd, LaneEnd) {
        let (up, down) = (Arc::new(Ring::new(mtu)), Arc::new(Ring::new(mtu)));
        let end = |rx: &Arc<Ring>, tx: &Arc<Ring>, keeps| LaneEnd {
            rx: rx.clone(),
            tx: tx.clone(),
            link: PortLink {
                name: name.to_owned(),
                mac,
                mtu,
                up: true,
                device: Default::default(),
            },
            keeps,
        };
        (end(&up, &down, false), end(&down, &up, true))
    }
}

/// One end of a link, for one receiving and one sending thread.
#[derive(Clone)]
pub struct LaneEnd {
    rx: Arc<Ring>,
    tx: Arc<Ring>,
    link: PortLink,
    keeps: bool,
}

impl fmt::Debug for LaneEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl From<LaneEnd> for PortSpec {
    fn from(end: LaneEnd) -> Self {
        Self::Custom(Arc::new(end))
    }
}

impl Backend for LaneEnd {
    fn open(&self, pool: &Pool, sides: Sides) -> Result<BoxPort, OpenError> {
        Ok(Box::new(LanePort {
            end: self.clone(),
            pool: pool.clone(),
            receives: sides.receives(),
            kept: Batch::new(),
            stats: PortStats::default(),
        }))
    }

    fn text(&self) -> String {
        format!("lane:{}", self.link.name)
    }
}

struct LanePort {
    end: LaneEnd,
    pool: Pool,
    receives: bool,
    /// Frames of the host that did not fit.
    kept: Batch<PoolBuf>,
    stats: PortStats,
}

impl LanePort {
    fn push(&mut self, batch: &mut Batch<PoolBuf>) {
        let (frames, bytes) = (batch.len(), total(batch));
        self.end.tx.push(batch);
        self.stats.tx_frames += (frames - batch.len()) as u64;
        self.stats.tx_bytes += bytes - total(batch);
    }
}

fn total(batch: &Batch<PoolBuf>) -> u64 {
    batch.iter().map(|f| f.length() as u64).sum()
}

impl Port for LanePort {
    type Buf = PoolBuf;

    fn receive(&mut self, batch: &mut Batch<PoolBuf>) {
        if !self.receives || !self.pool.has_capacity() {
            return;
        }
        let (capacity, pool, stats) = (batch.remaining_capacity(), &self.pool, &mut self.stats);
        self.end.rx.pop(capacity, |bytes| match pool.copy_from(bytes) {
            Some(frame) => {
                stats.rx_frames += 1;
                stats.rx_bytes += bytes.len() as u64;
                batch.push(frame);
            }
            None => stats.rx_missed += 1,
        });
    }

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        if batch.iter().any(|f| !castnet_port::fits(f, self.end.link.mtu)) {
            let mtu = self.end.link.mtu;
            let before = batch.len();
            batch.retain(|f| castnet_port::fits(f, mtu));
            self.stats.drops[DropReason::TooLong] += (before - batch.len()) as u64;
        }
        self.push(batch);
        if self.end.keeps && self.kept.is_empty() {
            self.kept.extend(batch.drain(..));
        }
        self.stats.drops[DropReason::TxFull] += batch.len() as u64;
        batch.clear();
    }

    fn receive_with(&mut self, _: &mut [u8], take: &mut dyn FnMut(&[u8])) -> usize {
        if !self.receives {
            return 0;
        }
        let stats = &mut self.stats;
        self.end.rx.pop(BATCH, |bytes| {
            stats.rx_frames += 1;
            stats.rx_bytes += bytes.len() as u64;
            take(bytes);
        })
    }

    fn info(&self) -> PortLink {
        self.end.link.clone()
    }

    fn is_up(&self) -> bool {
        true
    }

    fn stats(&self) -> PortStats {
        self.stats
    }

    fn ready(&self) -> bool {
        self.receives && !self.end.rx.is_empty()
    }

    /// The threads at both ends poll; nothing wakes a sleeper.
    fn attach(&mut self, _: &mut Sleeper) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, _: Nanos) {
        if !self.kept.is_empty() {
            let mut kept = std::mem::take(&mut self.kept);
            self.push(&mut kept);
            self.kept = kept;
        }
    }

    fn pending(&self) -> usize {
        if self.kept.is_empty() { 0 } else { BATCH }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_port::PoolConfig;

    fn open(end: &LaneEnd) -> (Pool, BoxPort) {
        let pool = Pool::new(PoolConfig::default());
        let port = end.open(&pool, Sides::Both).expect("a port");
        (pool, port)
    }

    #[test]
    fn two_threads_exchange_all_frames_in_order() {
        const FRAMES: u32 = 200_000;
        let (switch, host) = Lane::pair("a", MacAddr::default(), 1500);
        let sender = std::thread::spawn(move || {
            let (pool, mut port) = open(&host);
            let (mut next, mut batch) = (0_u32, Batch::new());
            while next < FRAMES || port.pending() > 0 {
                port.poll(Nanos::ZERO);
                if port.pending() > 0 {
                    std::thread::yield_now();
                    continue;
                }
                for _ in 0..(next % 33).min(FRAMES - next) {
                    let mut bytes = [0; 64];
                    bytes[..4].copy_from_slice(&next.to_be_bytes());
                    batch.push(
                        pool.copy_from(&bytes[..60 + next as usize % 5])
                            .expect("a buffer"),
                    );
                    next += 1;
                }
                if batch.is_empty() && next < FRAMES {
                    batch.push(
                        pool.copy_from(&[next.to_be_bytes().as_slice(), &[0; 56]].concat())
                            .expect("a buffer"),
                    );
                    next += 1;
                }
                port.send(&mut batch);
            }
            port.stats()
        });
        let (_pool, mut port) = open(&switch);
        let (mut expected, mut batch) = (0_u32, Batch::new());
        while expected < FRAMES {
            port.receive(&mut batch);
            if batch.is_empty() {
                std::thread::yield_now();
            }
            for frame in batch.drain(..) {
                let number = frame.head().first_chunk().map(|b| u32::from_be_bytes(*b));
                assert_eq!(number, Some(expected));
                expected += 1;
            }
        }
        let sent = sender.join().expect("no panic");
        assert_eq!((sent.tx_frames, sent.drops.total()), (u64::from(FRAMES), 0));
        assert_eq!(port.stats().rx_frames, u64::from(FRAMES));
        assert_eq!(port.stats().rx_bytes, sent.tx_bytes);
    }

    #[test]
    fn at_a_full_ring_a_switch_drops_frames_and_a_host_keeps_a_batch() {
        let (switch, host) = Lane::pair("a", MacAddr::default(), 1500);
        for (end, kept) in [(switch, 0), (host, BATCH)] {
            let (pool, mut port) = open(&end);
            let mut batch = Batch::new();
            for _ in 0..=BLOCKS {
                batch.extend((0..BATCH).filter_map(|_| pool.copy_from(&[0; 60])));
                port.send(&mut batch);
            }
            assert_eq!(port.stats().tx_frames, (BLOCKS * BATCH) as u64);
            assert_eq!(
                (port.pending(), port.stats().drops[DropReason::TxFull]),
                (kept, (BATCH - kept) as u64)
            );
        }
    }
}
