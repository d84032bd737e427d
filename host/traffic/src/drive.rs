//! Hosts on ports: a thread that plays hosts, and a port that plays a host inside a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use castnet_port::{BATCH, Batch, Memory, MemoryPort, Port, PortStats};
use castnet_wire::{CounterSet, Nanos};

use crate::counts::Counts;
use crate::host::{Host, HostReport};
use crate::seen::ReadOnlyFrame;
use crate::template::HEADER;

mod in_core;
mod lane;

pub use in_core::InCore;
pub use lane::{Lane, LaneEnd};

/// Iterations without work before a thread yields its core.
const SPINS: u32 = 64;

/// Start and stop signals for all threads that play hosts, and their common clock.
#[derive(Debug)]
pub struct Stage {
    go: AtomicBool,
    stop: AtomicBool,
    end: AtomicBool,
    start: Instant,
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}

impl Stage {
    /// A stage on which no host sends yet.
    pub fn new() -> Self {
        Self {
            go: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            end: AtomicBool::new(false),
            start: Instant::now(),
        }
    }

    /// Starts all hosts.
    pub fn go(&self) {
        self.go.store(true, Ordering::Release);
    }

    /// Ends new traffic. Received frames are still counted and answered.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Ends the threads, which then return their reports.
    pub fn end(&self) {
        self.stop();
        self.end.store(true, Ordering::Release);
    }

    /// Time since the stage was created.
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Totals of a host while it runs, shared with observers.
#[derive(Debug, Default)]
pub struct Live {
    driven: AtomicU64,
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    others: AtomicU64,
}

impl Live {
    /// Totals of 0.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    #[inline]
    fn publish(&self, counts: &Counts) {
        self.driven.store(counts.driven, Ordering::Relaxed);
        self.sent.store(counts.sent, Ordering::Relaxed);
        self.sent_bytes.store(counts.sent_bytes, Ordering::Relaxed);
        self.received.store(counts.received, Ordering::Relaxed);
        self.received_bytes
            .store(counts.received_bytes, Ordering::Relaxed);
        self.others.store(counts.others, Ordering::Relaxed);
    }

    /// The last published totals. Each counter is valid, but they may be of different moments.
    pub fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            driven: read(&self.driven),
            sent: read(&self.sent),
            sent_bytes: read(&self.sent_bytes),
            received: read(&self.received),
            received_bytes: read(&self.received_bytes),
            others: read(&self.others),
        }
    }
}

/// Final report of a host and its port.
#[derive(Clone, Debug)]
pub struct Played {
    /// The host.
    pub host: HostReport,
    /// Counters of its port. Drops are frames that did not reach the switch.
    pub port: PortStats,
}

/// A host with its port, owned by the thread that plays it.
pub struct Seat<M: Memory> {
    /// The host.
    pub host: Host<M::Buf>,
    /// The port.
    pub port: MemoryPort<M>,
    /// Target of its published totals.
    pub live: Arc<Live>,
}

/// Plays hosts on their ports until the stage ends. Never sleeps, but yields the core when idle.
pub fn play<M: Memory>(memory: &M, seats: &mut [Seat<M>], stage: &Stage) -> Vec<Played> {
    let mut scratch = vec![0; 16 * 1024];
    let mut batch = Batch::new();
    let (mut idle, mut stopped) = (0, false);
    let before: Vec<PortStats> = seats.iter().map(|s| s.port.stats()).collect();
    let segments: Vec<bool> = seats.iter().map(|s| s.port.multi_segment()).collect();
    while !stage.end.load(Ordering::Acquire) {
        let now = stage.now();
        let started = stage.go.load(Ordering::Acquire);
        if !stopped && stage.stop.load(Ordering::Acquire) {
            stopped = true;
            seats.iter_mut().for_each(|s| s.host.stop());
        }
        let mut moved = 0;
        for (seat, segments) in seats.iter_mut().zip(&segments) {
            let Seat { host, port, live } = seat;
            port.poll(now);
            let received =
                port.receive_with(&mut scratch, &mut |bytes| host.take(now, &ReadOnlyFrame(bytes)));
            let mut sent = 0;
            if started && port.pending() < BATCH {
                host.fill(now, &mut batch, |original| {
                    memory.replicate(original, HEADER, *segments)
                });
                sent = batch.len();
                port.send(&mut batch);
            }
            if received + sent > 0 {
                live.publish(host.counts());
                moved += received + sent;
            }
        }
        idle = if moved > 0 { 0 } else { idle + 1 };
        if idle > SPINS {
            thread::yield_now();
        }
    }
    let played = seats.iter().zip(before).map(|(seat, before)| Played {
        host: seat.host.report(),
        port: seat.port.stats().since(&before),
    });
    played.collect()
}
