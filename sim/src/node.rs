//! What frames travel between.

use std::collections::VecDeque;

use castnet_endpoint::{Completion, Endpoint};
use castnet_engine::plain::PlainFrame;
use castnet_engine::{Engine, EngineConfig};
use castnet_wire::{Nanos, PortId};

use crate::rank::Rank;

/// A switch or host of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) usize);

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The time of the timer event that waits in the queue, if one does.
    pub(crate) timer: Option<Nanos>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Switch(Box<SwitchNode>),
    Host(Box<HostNode>),
}

#[derive(Debug)]
pub(crate) struct SwitchNode {
    /// `None` while it is stopped.
    pub(crate) engine: Option<Engine>,
    pub(crate) config: EngineConfig,
    /// The direction that leaves by each port.
    pub(crate) out: [Option<usize>; PortId::COUNT],
    /// Frames that wait for the worker, by port, with whether they arrived as they were sent.
    pub(crate) received: Vec<(PortId, VecDeque<(PlainFrame, bool)>)>,
    pub(crate) poll_waits: bool,
    /// Frames that came while it was stopped.
    pub(crate) missed: u64,
}

#[derive(Debug)]
pub(crate) struct HostNode {
    pub(crate) endpoint: Endpoint,
    pub(crate) out: Option<usize>,
    pub(crate) ready_waits: bool,
    pub(crate) completions: Vec<(Nanos, Completion)>,
    /// Takes the completions in where there is one.
    pub(crate) rank: Option<Box<Rank>>,
}

impl Node {
    pub(crate) fn host(&self) -> Option<&HostNode> {
        match &self.kind {
            Kind::Host(host) => Some(host),
            Kind::Switch(_) => None,
        }
    }

    pub(crate) fn host_mut(&mut self) -> Option<&mut HostNode> {
        match &mut self.kind {
            Kind::Host(host) => Some(host),
            Kind::Switch(_) => None,
        }
    }

    pub(crate) fn switch(&self) -> Option<&SwitchNode> {
        match &self.kind {
            Kind::Switch(switch) => Some(switch),
            Kind::Host(_) => None,
        }
    }

    pub(crate) fn switch_mut(&mut self) -> Option<&mut SwitchNode> {
        match &mut self.kind {
            Kind::Switch(switch) => Some(switch),
            Kind::Host(_) => None,
        }
    }

    /// When it wants to be woken.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        match &self.kind {
            Kind::Switch(switch) => switch.engine.as_ref()?.poll_timeout(),
            Kind::Host(host) => host.endpoint.poll_timeout().map(|(at, _)| at),
        }
    }
}
