//! Links inside a process. A link has two bounded rings whose slots are allocated once.
//!
//! An end of a link can be sent to the thread that will use it. Several threads may send on an end; one
//! thread receives. Each frame is copied into a slot and out of it, so that buffers never change threads.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use castnet_wire::{Batch, DropReason, FrameBuf, MacAddr};

use crate::pool::{Pool, PoolBuf};
use crate::port::{Port, PortDevice, PortLink, PortStats, RingUse, Sides, fits, frame_max};
use crate::ring::FrameRing;
use crate::sleep::Sleeper;

/// Configuration of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemLinkConfig {
    /// Capacity in frames of each direction.
    pub capacity: usize,
    /// The largest packet at layer 3 in bytes.
    pub mtu: usize,
    /// Names of the two ends.
    pub names: [String; 2],
    /// Ethernet addresses of the two ends.
    pub macs: [MacAddr; 2],
}

impl MemLinkConfig {
    /// Names of the ends, and Ethernet addresses that are derived from them.
    pub fn between(a: &str, b: &str) -> Self {
        Self {
            capacity: 512,
            mtu: 4200,
            names: [a.to_owned(), b.to_owned()],
            macs: [mac_from_name(a), mac_from_name(b)],
        }
    }

    /// Sets the MTU.
    pub fn mtu(self, mtu: usize) -> Self {
        Self { mtu, ..self }
    }

    /// Sets the capacity.
    pub fn capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }
}

impl Default for MemLinkConfig {
    /// Ends named `a` and `b`, 512 frames, MTU 4200.
    fn default() -> Self {
        Self::between("a", "b")
    }
}

/// Derives a unicast, locally administered Ethernet address from a name. The same name always gives the same address.
pub fn mac_from_name(name: &str) -> MacAddr {
    // FNV-1a with 64 bits spreads well enough over 40 bits.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    MacAddr([0x02, a, b, c, d, e])
}

/// Constructor of links.
#[derive(Debug)]
pub struct MemLink;

impl MemLink {
    /// Creates a link and returns its two ends, in the order of the names in `config`.
    pub fn pair(config: &MemLinkConfig) -> (MemEnd, MemEnd) {
        let frame_max = frame_max(config.mtu);
        let rings = [(); 2].map(|()| Arc::new(FrameRing::new(config.capacity, frame_max)));
        let alive = [(); 2].map(|()| Arc::new(()));
        let connected = Arc::new(AtomicBool::new(true));
        let end = |mine: usize, other: usize| MemEnd {
            rx: rings[mine].clone(),
            tx: rings[other].clone(),
            connected: connected.clone(),
            _alive: alive[mine].clone(),
            peer: Arc::downgrade(&alive[other]),
            name: config.names[mine].clone(),
            mac: config.macs[mine],
            mtu: Arc::new(AtomicUsize::new(config.mtu)),
            mtu_max: config.mtu,
        };
        (end(0, 1), end(1, 0))
    }
}

/// One end of a link. Clones are handles to the same end.
#[derive(Clone, Debug)]
pub struct MemEnd {
    rx: Arc<FrameRing<()>>,
    tx: Arc<FrameRing<()>>,
    connected: Arc<AtomicBool>,
    _alive: Arc<()>,
    peer: Weak<()>,
    name: String,
    mac: MacAddr,
    mtu: Arc<AtomicUsize>,
    mtu_max: usize,
}

impl MemEnd {
    /// Opens a port on this end for the thread that owns `pool`. One port receives; any number may send.
    pub fn open(&self, pool: &Pool, sides: Sides) -> MemPort {
        MemPort {
            end: self.clone(),
            pool: pool.clone(),
            sides,
            stats: PortStats::default(),
        }
    }

    /// Connects or disconnects the cable for both ends. Frames in flight still arrive.
    pub fn set_up(&self, up: bool) {
        self.connected.store(up, Ordering::Relaxed);
    }

    /// Changes the MTU in bytes for frames sent from this end. The maximum is the MTU at creation.
    pub fn set_mtu(&self, mtu: usize) {
        self.mtu.store(mtu.min(self.mtu_max), Ordering::Relaxed);
    }

    /// Returns true if the cable is connected and the other end exists.
    pub fn is_up(&self) -> bool {
        self.connected.load(Ordering::Relaxed) && self.peer.strong_count() > 0
    }

    /// Name of this end.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ethernet address of this end.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// The largest packet at layer 3 in bytes.
    pub fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed)
    }

    /// The number of frames that this end has not received yet.
    pub fn waiting(&self) -> usize {
        self.rx.len()
    }
}

/// A port on one end of a memory link.
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
        self.offer(batch);
        self.stats.drops[DropReason::TxFull] += batch.len() as u64;
        batch.clear();
    }

    fn offer(&mut self, batch: &mut Batch<PoolBuf>) {
        if batch.is_empty() {
            return;
        }
        let (up, mut taken) = (self.end.is_up(), 0);
        for frame in batch.iter() {
            let sent = match up {
                true => self.send_one(frame),
                false => Err(DropReason::PortDown),
            };
            if sent == Err(DropReason::TxFull) {
                break;
            }
            self.stats.count_send(frame.length(), sent);
            taken += 1;
        }
        batch.drain(..taken);
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

    fn backlog(&self) -> Option<u64> {
        Some(self.stats.queued_bytes(self.end.tx.len()))
    }

    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        if self.sides.receives() {
            self.end.rx.attach(sleeper)
        } else {
            Ok(())
        }
    }
}
