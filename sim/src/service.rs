//! A switch whose processor takes time for each frame, as that of a NIC that relays.

use std::collections::VecDeque;

use castnet_engine::PortSet;
use castnet_wire::{FrameBuf, Nanos, OpcodeInfo, Parsed, PortId, parse_frame};

use crate::frame::{Frame, Sent};
use crate::node::{NodeId, ReceivedFrame, SwitchNode};
use crate::simulation::{Event, Simulation};
use crate::watch::Watch;

/// Time that the processor of a switch takes for frames, one after the other in the order of their arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCost {
    /// For the first packet of a message from a host: a NIC takes up a request to send.
    pub message: Nanos,
    /// For each other packet with data.
    pub packet: Nanos,
    /// For each other frame.
    pub control: Nanos,
    /// For a further copy of a frame. The processor makes it when the copy before it has left. Copies to hosts come first, and take no time.
    pub copy: Nanos,
}

/// What the processor is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// The oldest received frame.
    Frame,
    /// The next copy.
    Copy,
}

/// A frame that leaves after others.
#[derive(Debug)]
struct Waiting {
    port: PortId,
    frame: Frame,
    /// When its copies to hosts have left.
    after: Nanos,
    /// It is not the first copy of a frame.
    is_further: bool,
}

/// State of the first of the waiting frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copying {
    /// It can be taken up.
    Idle,
    /// Another copy has to leave before it.
    Leaving,
    /// The processor has to make it.
    Making,
}

#[derive(Debug)]
pub(crate) struct Service {
    cost: SwitchCost,
    /// The ports that hosts are connected to.
    hosts: PortSet,
    /// All copies of a frame come before those of the next one.
    waiting: VecDeque<Waiting>,
    copying: Copying,
    job: Job,
}

impl Service {
    pub(crate) fn new(cost: SwitchCost, hosts: PortSet) -> Self {
        Self {
            cost,
            hosts,
            waiting: VecDeque::new(),
            copying: Copying::Idle,
            job: Job::Frame,
        }
    }

    /// Forgets what waits.
    pub(crate) fn stop(&mut self) {
        *self = Self::new(self.cost, self.hosts);
    }

    fn begin(&mut self, oldest: Option<&ReceivedFrame>) -> Option<Nanos> {
        let is_making = self.copying == Copying::Making && !self.waiting.is_empty();
        self.job = if is_making { Job::Copy } else { Job::Frame };
        match self.job {
            Job::Copy => Some(self.cost.copy),
            Job::Frame => oldest.map(|oldest| self.time(oldest)),
        }
    }

    /// Time that the processor takes for a frame.
    fn time(&self, ReceivedFrame { port, frame, .. }: &ReceivedFrame) -> Nanos {
        match request(frame) {
            Some(info) if info.starts_message() && self.hosts.contains(*port) => self.cost.message,
            Some(_) => self.cost.packet,
            None => self.cost.control,
        }
    }
}

/// The opcode of a RoCEv2 frame with data.
fn request(frame: &Frame) -> Option<&'static OpcodeInfo> {
    match parse_frame(frame.head(), frame.length()) {
        Ok(Parsed::Roce(roce)) => Some(roce.bth.opcode.info()).filter(|info| info.is_request()),
        _ => None,
    }
}

impl SwitchNode {
    /// What the processor has done; `None`: the switch has no costs.
    pub(crate) fn job(&self) -> Option<Job> {
        self.service.as_ref().map(|service| service.job)
    }

    /// Time until the processor has done its next job, or until the poll; `None`: there is nothing to do.
    fn begin_job(&mut self, poll_delay: Nanos) -> Option<Nanos> {
        match &mut self.service {
            Some(service) => service.begin(self.received.first()),
            None => (!self.received.is_empty()).then_some(poll_delay),
        }
    }
}

impl<W: Watch> Simulation<W> {
    /// Schedules the next poll of a switch, if it has something to do.
    pub(crate) fn schedule_poll(&mut self, node: NodeId) {
        let poll_delay = self.poll_delay;
        if let Some(switch) = self.nodes[node.0].switch_mut().filter(|s| !s.poll_waits)
            && let Some(delay) = switch.begin_job(poll_delay)
        {
            switch.poll_waits = true;
            self.schedule(self.now + delay, Event::Poll(node));
        }
    }

    /// Sends what a switch with costs sends because of one frame: to hosts at once, then the other copies, one after the other.
    pub(crate) fn send_copies(&mut self, node: NodeId, sent: &mut Sent) {
        let (mut after, mut is_further) = (self.now, false);
        let is_single = sent.frames.len() == 1;
        let to_host =
            |switch: &SwitchNode, port| switch.service.as_ref().is_some_and(|s| s.hosts.contains(port));
        if let Some(switch) = self.nodes[node.0].switch() {
            sent.frames.sort_by_key(|(port, _)| !to_host(switch, *port));
        }
        for (port, frame) in sent.frames.drain(..) {
            let Some(switch) = self.nodes[node.0].switch_mut() else {
                continue;
            };
            if is_single || to_host(switch, port) {
                after = self.send_now(node, port, frame);
            } else if let Some(service) = &mut switch.service {
                service.waiting.push_back(Waiting {
                    port,
                    frame,
                    after,
                    is_further,
                });
            }
            is_further = true;
        }
        self.advance_copies(node);
    }

    /// Returns when the frame has left.
    fn send_now(&mut self, node: NodeId, port: PortId, frame: Frame) -> Nanos {
        let out = self.nodes[node.0].switch().and_then(|s| s.out[port.index()]);
        out.map_or(self.now, |direction| {
            self.send(direction, frame);
            self.directions[direction].busy_until
        })
    }

    /// Takes up the next copy.
    fn advance_copies(&mut self, node: NodeId) {
        let now = self.now;
        let service = self.nodes[node.0].switch_mut().and_then(|s| s.service.as_mut());
        let Some(service) = service.filter(|service| service.copying == Copying::Idle) else {
            return;
        };
        match service.waiting.front() {
            None => {}
            Some(next) if next.after > now => {
                service.copying = Copying::Leaving;
                let at = next.after;
                self.schedule(at, Event::Left(node));
            }
            Some(next) if next.is_further => {
                service.copying = Copying::Making;
                self.schedule_poll(node);
            }
            Some(_) => self.send_copy(node),
        }
    }

    /// Sends the copy that the processor has made.
    pub(crate) fn send_copy(&mut self, node: NodeId) {
        let service = self.nodes[node.0].switch_mut().and_then(|s| s.service.as_mut());
        if let Some(service) = service
            && let Some(Waiting { port, frame, .. }) = service.waiting.pop_front()
        {
            service.copying = Copying::Leaving;
            let left = self.send_now(node, port, frame);
            self.schedule(left, Event::Left(node));
        }
    }

    /// A copy has left a switch.
    pub(crate) fn copy_left(&mut self, node: NodeId) {
        if let Some(service) = self.nodes[node.0].switch_mut().and_then(|s| s.service.as_mut()) {
            service.copying = Copying::Idle;
        }
        self.advance_copies(node);
    }
}
