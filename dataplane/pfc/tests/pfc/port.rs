//! Ports, workers and frames.

use std::sync::Arc;

use castnet_pfc::{Admitted, PausablePort, Pfc, PfcClassReport, PfcConfig, PfcShared};
use castnet_wire::pause::quanta_time;
use castnet_wire::{Batch, DropReason, Nanos, Pause, TrafficClass};

/// Mb/s: a quantum takes 512 ns.
pub(crate) const SPEED: u32 = 1_000;
pub(crate) const WATCHDOG: Nanos = Nanos(1_000_000);

pub(crate) fn class(n: u8) -> TrafficClass {
    TrafficClass::new(n).expect("a class")
}

/// Classes 3 and 4 are lossless. XOFF at 2,000 bytes, XON at 1,000, 1,500 of headroom.
pub(crate) fn config() -> PfcConfig {
    let mut config = PfcConfig::new([3, 4].map(class).into_iter().collect());
    (config.xoff_bytes, config.xon_bytes, config.headroom_bytes) = (2_000, 1_000, 1_500);
    (config.speed_mbps, config.watchdog) = (Some(SPEED), Some(WATCHDOG));
    config
}

/// An IPv4 frame of a class, with a number in its last byte.
pub(crate) fn frame(class: u8, length: usize, number: u8) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[12..16].copy_from_slice(&[0x08, 0, 0x45, class << 5]);
    frame[length - 1] = number;
    frame
}

pub(crate) fn pause_of(classes: &[(u8, u16)]) -> Pause {
    let mut pause = Pause::default();
    for (n, quanta) in classes {
        pause.set(class(*n), *quanta);
    }
    pause
}

pub(crate) fn quanta(n: u16) -> Nanos {
    quanta_time(n, SPEED)
}

/// What a port has been asked to do.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) is_owner: bool,
    pub(crate) speed_mbps: Option<u32>,
    /// Frames that still fit in the send queue.
    pub(crate) room: usize,
    /// Frames of one batch that it takes, at most.
    pub(crate) at_once: usize,
    pub(crate) takes_pauses: bool,
    pub(crate) sent: Vec<Vec<u8>>,
    pub(crate) pauses: Vec<Pause>,
    pub(crate) drops: Vec<DropReason>,
    pub(crate) storms: Vec<(Nanos, u8, bool)>,
}

impl Port {
    pub(crate) fn new() -> Self {
        Self {
            is_owner: true,
            speed_mbps: None,
            room: usize::MAX,
            at_once: usize::MAX,
            takes_pauses: true,
            sent: Vec::new(),
            pauses: Vec::new(),
            drops: Vec::new(),
            storms: Vec::new(),
        }
    }

    /// The numbers of the frames sent since the last call.
    pub(crate) fn numbers(&mut self) -> Vec<u8> {
        let numbers = self.sent.iter().map(|frame| frame[frame.len() - 1]);
        let numbers = numbers.collect();
        self.sent.clear();
        numbers
    }

    /// The PFC frames sent since the last call, as classes and quanta.
    pub(crate) fn take_pauses(&mut self) -> Vec<Vec<(u8, u16)>> {
        let times = |pause: &Pause| {
            let classes = (0..8).map(|n| (n, pause.of(class(n))));
            classes.filter_map(|(n, quanta)| Some((n, quanta?))).collect()
        };
        std::mem::take(&mut self.pauses).iter().map(times).collect()
    }
}

impl PausablePort for Port {
    type Buf = Vec<u8>;

    fn is_owner(&self) -> bool {
        self.is_owner
    }

    fn speed_mbps(&self) -> Option<u32> {
        self.speed_mbps
    }

    fn offer(&mut self, batch: &mut Batch<Vec<u8>>) {
        let taken = batch.len().min(self.room).min(self.at_once);
        self.room -= taken;
        self.sent.extend(batch.drain(..taken));
    }

    fn send_pause(&mut self, pause: &Pause) -> bool {
        if self.takes_pauses {
            self.pauses.push(*pause);
        }
        self.takes_pauses
    }

    fn count_drop(&mut self, reason: DropReason) {
        self.drops.push(reason);
    }

    fn report_storm(&mut self, now: Nanos, class: TrafficClass, has_storm: bool) {
        self.storms.push((now, class.index() as u8, has_storm));
    }
}

/// Workers of a switch with flow control at the ports 0 and 1, and none at port 2.
pub(crate) struct Switch {
    pub(crate) shared: Arc<PfcShared>,
    pub(crate) workers: Vec<Pfc<Vec<u8>>>,
    pub(crate) port: Port,
}

impl Switch {
    pub(crate) fn new(config: &PfcConfig, workers: usize, frames_max: usize) -> Self {
        let shared = PfcShared::new([Some(config), Some(config), None].into_iter(), workers);
        let worker = |n| Pfc::new(&shared, n, frames_max).expect("ports with flow control");
        let workers = (0..workers).map(worker).collect();
        let port = Port::new();
        Self {
            shared,
            workers,
            port,
        }
    }

    pub(crate) fn at(&mut self, now: Nanos) -> &mut Pfc<Vec<u8>> {
        for worker in &mut self.workers {
            worker.set_time(now);
        }
        &mut self.workers[0]
    }

    /// An iteration of the first worker at port 0. True if the port stays suspended.
    pub(crate) fn poll(&mut self, now: Nanos) -> bool {
        self.at(now);
        self.workers[0].poll(0, &mut self.port)
    }

    /// The peer of port 0 pauses class 3.
    pub(crate) fn pause(&mut self, now: Nanos, quanta: u16) {
        self.workers[0].received(0, now, None, &pause_of(&[(3, quanta)]));
    }

    /// A frame from port 1 to port 0. True if it waits.
    pub(crate) fn holds(&mut self, frame: Vec<u8>) -> bool {
        matches!(self.workers[0].admit(0, 1, frame, false), Admitted::Held)
    }

    /// A frame from port 1 that port 0 has not accepted. True if it waits.
    pub(crate) fn holds_unsent(&mut self, frame: Vec<u8>) -> bool {
        matches!(self.workers[0].admit(0, 1, frame, true), Admitted::Held)
    }

    pub(crate) fn report(&self, slot: usize, n: u8, now: Nanos) -> PfcClassReport {
        let reports = self.shared.report(slot, now);
        let report = reports.iter().find(|report| report.class == class(n));
        *report.expect("a lossless class")
    }
}
