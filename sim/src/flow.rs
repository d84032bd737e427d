//! Flow control (PFC) of the switches: the lines that a worker runs, over simulated ports.

use std::sync::Arc;

use castnet_pfc::{
    Admitted, NO_INGRESS, PausablePort, Pfc, PfcClassReport, PfcConfig, PfcCounters, PfcShared,
};
use castnet_wire::{
    Batch, CounterSet, DropReason, Drops, FrameBuf, MacAddr, Nanos, Pause, PortId, TrafficClass,
};

use crate::frame::Frame;
use crate::node::NodeId;
use crate::simulation::Simulation;
use crate::watch::Watch;

/// Frames that wait at a switch, at most: the default of a worker.
const FRAMES_MAX: usize = 4096;
/// A worker polls all the time. Here a switch that waits for the end of a pause, or repeats PAUSE, polls this often.
const POLL: Nanos = Nanos::from_micros(20);

/// The beginning or the end of a storm of PAUSE frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storm {
    /// When the watchdog found it.
    pub at: Nanos,
    /// The switch.
    pub switch: String,
    /// Its port, which the class of frames could not leave by.
    pub port: PortId,
    /// The class.
    pub class: TrafficClass,
    /// False at its end.
    pub has_storm: bool,
}

/// Flow control of a switch with one worker. The slot of a port is its number.
#[derive(Debug)]
pub(crate) struct FlowControl {
    shared: Arc<PfcShared>,
    pfc: Pfc<Frame>,
    /// Ports that may hold frames back, one bit each.
    suspended: u64,
    /// When it has to be polled.
    poll_at: Option<Nanos>,
    drops: Drops,
}

impl FlowControl {
    /// Of the ports with these bits. `None` if there are none.
    pub(crate) fn new(config: &PfcConfig, ports: u64) -> Option<Self> {
        let slots = (0..PortId::COUNT).map(|slot| (ports >> slot & 1 != 0).then_some(config));
        let shared = PfcShared::new(slots, 1);
        let pfc = Pfc::new(&shared, 0, FRAMES_MAX)?;
        Some(Self {
            shared,
            pfc,
            suspended: 0,
            poll_at: None,
            drops: Drops::default(),
        })
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.poll_at
    }

    /// At the start of an iteration.
    pub(crate) fn set_time(&mut self, now: Nanos) {
        self.pfc.set_time(now);
    }

    /// Returns true if the frame is a PFC frame: the engine does not get it.
    pub(crate) fn take_pause(
        &mut self,
        now: Nanos,
        port: PortId,
        speed_mbps: Option<u32>,
        frame: &Frame,
    ) -> bool {
        let pause = match Pause::is_control(frame.head()) {
            true => Pause::parse(frame.head()),
            false => None,
        };
        if let Some(pause) = &pause {
            self.pfc.received(port.index(), now, speed_mbps, pause);
        }
        pause.is_some()
    }

    /// Returns a frame that goes to the link now; `fits`: there it has capacity. A frame of a lossy class goes there also if it has not.
    pub(crate) fn admit(
        &mut self,
        port: PortId,
        ingress: Option<PortId>,
        frame: Frame,
        fits: bool,
    ) -> Option<Frame> {
        let slot = port.index();
        let ingress = ingress.map_or(NO_INGRESS, |port| port.index() as u8);
        let is_suspended = self.suspended >> slot & 1 != 0;
        let mut admitted = match is_suspended {
            true => self.pfc.admit(slot, ingress, frame, false),
            false => Admitted::Send(frame),
        };
        if !fits && let Admitted::Send(frame) = admitted {
            admitted = self.pfc.admit(slot, ingress, frame, true);
        }
        match admitted {
            Admitted::Send(frame) => return Some(frame),
            Admitted::Held => self.suspended |= 1 << slot,
            Admitted::Dropped(reason) => self.drops[reason] += 1,
        }
        None
    }

    fn reports(&self, now: Nanos) -> impl Iterator<Item = (PortId, PfcClassReport)> {
        let ports = (0..PortId::COUNT).filter_map(|slot| PortId::new(slot as u8));
        ports.flat_map(move |port| {
            let reports = self.shared.report(port.index(), now);
            reports.into_iter().map(move |report| (port, report))
        })
    }
}

struct SimulatedPort<'a, W> {
    sim: &'a mut Simulation<W>,
    node: NodeId,
    port: PortId,
    direction: usize,
    mac: MacAddr,
    drops: &'a mut Drops,
}

impl<W: Watch> PausablePort for SimulatedPort<'_, W> {
    type Buf = Frame;

    fn is_owner(&self) -> bool {
        true
    }

    fn speed_mbps(&self) -> Option<u32> {
        self.sim.directions[self.direction].profile.speed_mbps()
    }

    fn offer(&mut self, batch: &mut Batch<Frame>) {
        while let Some(first) = batch.first()
            && self.sim.directions[self.direction].has_capacity(self.sim.now, first.length())
            && let Some(frame) = batch.pop_at(0)
        {
            self.sim.send(self.direction, frame);
        }
    }

    fn send_pause(&mut self, pause: &Pause) -> bool {
        let frame = Frame::new(&pause.emit(self.mac));
        let fits = self.sim.directions[self.direction].has_capacity(self.sim.now, frame.length());
        if fits {
            self.sim.send(self.direction, frame);
        }
        fits
    }

    fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason] += 1;
    }

    fn report_storm(&mut self, at: Nanos, class: TrafficClass, has_storm: bool) {
        let (switch, port) = (self.sim.nodes[self.node.0].name.clone(), self.port);
        self.sim.record_storm(Storm {
            at,
            switch,
            port,
            class,
            has_storm,
        });
    }
}

impl<W: Watch> Simulation<W> {
    /// Flow control at the end of an iteration of a switch: sends what can leave again, and PAUSE.
    pub(crate) fn poll_flow(&mut self, node: NodeId) {
        let now = self.now;
        let Some(switch) = self.nodes[node.0].switch_mut() else {
            return;
        };
        let Some(mut flow) = switch.flow.take() else {
            return;
        };
        let out = switch.out;
        flow.pfc.set_time(now);
        let mut left = flow.pfc.attention() | flow.suspended;
        let mut poll_at = (left != 0).then(|| now + POLL);
        while left != 0 {
            let slot = left.trailing_zeros() as usize;
            left &= left - 1;
            let (Some(direction), Some(port)) = (out[slot], PortId::new(slot as u8)) else {
                continue;
            };
            let config = self.nodes[node.0].switch().map(|switch| &switch.config);
            let info = config.and_then(|config| config.ports.iter().find(|info| info.id == port));
            let mut at = SimulatedPort {
                mac: info.map_or_else(MacAddr::default, |info| info.mac),
                sim: self,
                node,
                port,
                direction,
                drops: &mut flow.drops,
            };
            let is_suspended = flow.pfc.poll(slot, &mut at);
            flow.suspended &= !(1 << slot);
            flow.suspended |= u64::from(is_suspended) << slot;
            // Frames that wait for capacity in the queue of the link.
            let half_empty_at = self.directions[direction].half_empty_at();
            if is_suspended && half_empty_at > now {
                poll_at = poll_at.min(Some(half_empty_at));
            }
        }
        flow.poll_at = poll_at;
        if let Some(switch) = self.nodes[node.0].switch_mut() {
            switch.flow = Some(flow);
        }
    }

    /// Flow control of the lossless classes at each port of a switch. Empty without flow control.
    pub fn flow_control(&self, switch: &str) -> Vec<(PortId, PfcClassReport)> {
        let node = self.node(switch).and_then(|node| self.nodes[node.0].switch());
        let flow = node.and_then(|switch| switch.flow.as_ref());
        flow.map_or_else(Vec::new, |flow| flow.reports(self.now).collect())
    }

    /// Sum of the counters of flow control of all switches.
    pub fn flow_totals(&self) -> PfcCounters {
        let mut sum = PfcCounters::default();
        let switches = self.nodes.iter().filter_map(|node| node.switch()?.flow.as_ref());
        for (_, report) in switches.flat_map(|flow| flow.reports(self.now)) {
            sum.add(&report.counters);
        }
        sum
    }

    /// Frames that hosts hold back because their class is paused.
    pub fn held_at_hosts(&self) -> usize {
        let gates = self.nodes.iter().filter_map(|node| node.host()?.gate.as_ref());
        gates.map(|gate| gate.held()).sum()
    }

    /// Storms of the same time are sorted by switch.
    pub(crate) fn record_storm(&mut self, storm: Storm) {
        let key = |storm: &Storm| (storm.at, storm.switch.clone());
        let new = key(&storm);
        let place = self.storms.partition_point(|old| key(old) <= new);
        self.storms.insert(place, storm);
    }

    /// The beginnings and ends of storms of PAUSE frames, oldest first.
    pub fn storms(&self) -> &[Storm] {
        &self.storms
    }
}
