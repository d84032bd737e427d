//! Links inside a process: two bounded rings of slots that are made once.
//!
//! An end can be sent to the thread that will use it and opened there. Several threads may send on one end; one receives.
//! A frame is copied into a slot and out of it, so that buffers never change threads.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use castnet_wire::{Batch, DropReason, FrameBuf, MacAddr};

use crate::pool::{Pool, PoolBuf};
use crate::port::{Port, PortDevice, PortLink, PortStats, RingUse, Sides, fits, frame_max};
use crate::ring::FrameRing;
use crate::sleep::Sleeper;

/// What a link is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemLinkConfig {
    /// Frames that can be under way in each direction.
    pub capacity: usize,
    /// The largest packet at layer 3, in bytes.
    pub mtu: usize,
    /// What the two ends are called.
    pub names: [String; 2],
    /// The Ethernet addresses of the two ends.
    pub macs: [MacAddr; 2],
}

impl MemLinkConfig {
    /// A link between ends of these names, whose Ethernet addresses follow from the names.
    pub fn between(a: &str, b: &str) -> Self {
        Self {
            capacity: 512,
            mtu: 4200,
            names: [a.to_owned(), b.to_owned()],
            macs: [mac_from_name(a), mac_from_name(b)],
        }
    }

    /// The same with another MTU.
    pub fn mtu(self, mtu: usize) -> Self {
        Self { mtu, ..self }
    }

    /// The same with another capacity.
    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }
}

impl Default for MemLinkConfig {
    /// Between ends called `a` and `b`: 512 frames, MTU 4200.
    fn default() -> Self {
        Self::between("a", "b")
    }
}

/// A unicast, locally administered Ethernet address that is always the same for the same name.
pub fn mac_from_name(name: &str) -> MacAddr {
    // FNV-1a, 64 bits: spreads well enough over 40 bits, and needs no more than this.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    MacAddr([0x02, a, b, c, d, e])
}

/// Makes links.
#[derive(Debug)]
pub struct MemLink;

impl MemLink {
    /// A link's two ends, with the first and the second name of `config`.
    pub fn pair(config: &MemLinkConfig) -> (MemEnd, MemEnd) {
        let frame_max = frame_max(config.mtu);
        let rings = [(); 2].map(|()| Arc::new(FrameRing::new(config.capacity, frame_max)));
        let lives = [(); 2].map(|()| Arc::new(()));
        let plugged = Arc::new(AtomicBool::new(true));
        let end = |mine: usize, other: usize| MemEnd {
            rx: rings[mine].clone(),
            tx: rings[other].clone(),
            plugged: plugged.clone(),
            _life: lives[mine].clone(),
            peer: Arc::downgrade(&lives[other]),
            name: config.names[mine].clone(),
            mac: config.macs[mine],
            mtu: Arc::new(AtomicUsize::new(config.mtu)),
            mtu_max: config.mtu,
        };
        (end(0, 1), end(1, 0))
    }
}

/// One end of a link. Clones are the same end.
#[derive(Clone, Debug)]
pub struct MemEnd {
    rx: Arc<FrameRing<()>>,
    tx: Arc<FrameRing<()>>,
    plugged: Arc<AtomicBool>,
    _life: Arc<()>,
    peer: Weak<()>,
    name: String,
    mac: MacAddr,
    mtu: Arc<AtomicUsize>,
    mtu_max: usize,
}

impl MemEnd {
    /// A port on this end, for the thread that owns `pool`. One port receives; any number may send.
    pub fn open(&self, pool: &Pool, sides: Sides) -> MemPort {
        MemPort {
            end: self.clone(),
            pool: pool.clone(),
            sides,
            stats: PortStats::default(),
        }
    }

    /// Pulls the cable (`false`) or plugs it in again, for both ends. What is under way arrives.
    pub fn set_up(&self, up: bool) {
        self.plugged.store(up, Ordering::Relaxed);
    }

    /// Changes how long packets may be that leave here, in bytes: up to what the link was made for.
    pub fn set_mtu(&self, mtu: usize) {
        self.mtu.store(mtu.min(self.mtu_max), Ordering::Relaxed);
    }

    /// Whether the cable is plugged in and the other end still exists.
    pub fn is_up(&self) -> bool {
        self.plugged.load(Ordering::Relaxed) && self.peer.strong_count() > 0
    }

    /// What this end is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// The largest packet at layer 3, in bytes.
    pub fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Frames that this end has not yet received.
    pub fn waiting(&self) -> usize {
        self.rx.len()
    }
}

/// An end of a memory link in the thread that uses it.
#[derive(Debug)]
pub struct MemPort {
    end: MemEnd,
    pool: Pool,
    sides: Sides,
    stats: PortStats,
}

impl MemPort {
    fn send_one(&mut self, frame: &PoolBuf) -> Result<(), DropReason> {
        if !fits(frame, self.end.mtu()) {
            return Err(DropReason::TooLong);
        }
        self.end.tx.push((), frame)
    }
}

impl Port for MemPort {
    type Buf = PoolBuf;

    fn receive(&mut self, batch: &mut Batch<PoolBuf>) {
        if !self.sides.receives() {
            return;
        }
        while !batch.is_full()
            && let Some(popped) = self.end.rx.pop(&self.pool)
        {
            match popped {
                Ok(((), frame)) => {
                    self.stats.count_received(frame.length());
                    batch.push(frame);
                }
                Err(((), reason)) => self.stats.count_drop(reason),
            }
        }
    }

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        if batch.is_empty() {
            return;
        }
        let up = self.end.is_up();
        for frame in batch.drain(..) {
            let sent = if up {
                self.send_one(&frame)
            } else {
                Err(DropReason::PortDown)
            };
            match sent {
                Ok(()) => self.stats.count_sent(frame.length()),
                Err(reason) => self.stats.count_drop(reason),
            }
        }
        self.end.tx.wake();
    }

    fn info(&self) -> PortLink {
        PortLink {
            name: self.end.name.clone(),
            mac: self.end.mac,
            mtu: self.end.mtu(),
            up: self.end.is_up(),
            device: PortDevice::new("memory"),
        }
    }

    fn mtu(&self) -> usize {
        self.end.mtu()
    }

    fn is_up(&self) -> bool {
        self.end.is_up()
    }

    fn stats(&self) -> PortStats {
        self.stats
    }

    fn ready(&self) -> bool {
        self.sides.receives() && !self.end.rx.is_empty()
    }

    fn receive_ring(&self) -> Option<RingUse> {
        self.sides.receives().then(|| RingUse {
            used: self.end.rx.len(),
            size: self.end.rx.capacity(),
        })
    }

    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        if self.sides.receives() {
            self.end.rx.attach(sleeper)
        } else {
            Ok(())
        }
    }
}
