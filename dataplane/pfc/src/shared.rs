//! What all workers of a switch share of the flow control of its ports.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use castnet_wire::{ClassSet, Nanos, TrafficClass};

use crate::config::PfcConfig;
use crate::report::{PfcClassReport, PfcCounters};

const CLASSES: usize = TrafficClass::COUNT;

/// Flow control of the ports of a switch, in slot order.
#[derive(Debug)]
pub struct PfcShared {
    ports: Box<[Option<PfcPort>]>,
    pub(crate) workers: usize,
    /// Slots with a class that is paused or has a storm, one bit each.
    pub(crate) suspended: AtomicU64,
    /// Slots that send PAUSE or have to end it, one bit each.
    pub(crate) stopping: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct PfcPort {
    pub(crate) config: PfcConfig,
    pub(crate) classes: [ClassState; CLASSES],
    pub(crate) storms: AtomicU8,
}

/// Times are nanoseconds on the clock of the switch.
#[derive(Debug, Default)]
pub(crate) struct ClassState {
    /// The time until which the peer has paused the class; 0: it has not.
    pub(crate) until: AtomicU64,
    /// Workers that want the peer to stop, one bit each.
    pub(crate) stopped_by: AtomicU64,
    pub(crate) queued_bytes: AtomicU64,
    pub(crate) pause_received: AtomicU64,
    pub(crate) pause_sent: AtomicU64,
    pub(crate) paused_ns: AtomicU64,
    pub(crate) held: AtomicU64,
    pub(crate) storms: AtomicU64,
    pub(crate) storm_drops: AtomicU64,
    pub(crate) overflows: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl PfcShared {
    /// Of `ports` in slot order, `None` for those without flow control, for a switch with so many workers.
    pub fn new<'c>(ports: impl Iterator<Item = Option<&'c PfcConfig>>, workers: usize) -> Arc<Self> {
        let port = |pfc: &PfcConfig| PfcPort {
            config: pfc.clone(),
            classes: Default::default(),
            storms: AtomicU8::new(0),
        };
        Arc::new(Self {
            ports: ports.map(|pfc| pfc.map(port)).collect(),
            workers,
            suspended: AtomicU64::new(0),
            stopping: AtomicU64::new(0),
        })
    }

    /// The flow control of all ports in slot order, `None` for ports without.
    pub(crate) fn configs(&self) -> impl Iterator<Item = Option<&PfcConfig>> {
        self.ports
            .iter()
            .map(|port| port.as_ref().map(|port| &port.config))
    }

    /// Slots of ports with flow control, one bit each.
    pub(crate) fn slots(&self) -> u64 {
        let ports = self.ports.iter().enumerate();
        ports.fold(0, |bits, (slot, port)| bits | u64::from(port.is_some()) << slot)
    }

    /// The flow control of a port.
    pub(crate) fn port(&self, slot: usize) -> Option<&PfcPort> {
        self.ports.get(slot)?.as_ref()
    }

    /// The lossless classes of a port. None if it has no flow control.
    pub fn report(&self, slot: usize, now: Nanos) -> Vec<PfcClassReport> {
        let Some(port) = self.port(slot) else {
            return Vec::new();
        };
        let (paused, storms) = (port.paused(now), port.storms());
        let classes = port.config.classes.iter().map(|class| {
            let state = &port.classes[class.index()];
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            PfcClassReport {
                class,
                is_paused: paused.has(class),
                has_storm: storms.has(class),
                is_stopping: count(&state.stopped_by) != 0,
                queued_bytes: count(&state.queued_bytes),
                counters: PfcCounters {
                    pause_received: count(&state.pause_received),
                    pause_sent: count(&state.pause_sent),
                    paused_ns: count(&state.paused_ns),
                    held: count(&state.held),
                    storms: count(&state.storms),
                    storm_drops: count(&state.storm_drops),
                    overflows: count(&state.overflows),
                },
            }
        });
        classes.collect()
    }
}

impl PfcPort {
    /// The classes that the peer has paused, also those with a storm.
    pub(crate) fn paused(&self, now: Nanos) -> ClassSet {
        let is_paused =
            |class: &TrafficClass| self.classes[class.index()].until.load(Ordering::Relaxed) > now.0;
        self.config.classes.iter().filter(is_paused).collect()
    }

    pub(crate) fn storms(&self) -> ClassSet {
        ClassSet(self.storms.load(Ordering::Relaxed))
    }
}
