//! Observers of a simulation.

use castnet_endpoint::{Completion, Endpoint};
use castnet_engine::Engine;
use castnet_wire::{Nanos, PortId};

use crate::link::Fate;
use crate::node::{Node, NodeId};

/// The ends of a link that a frame travels over. A host has port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The sending node.
    pub from: NodeId,
    /// Port of the sending node.
    pub from_port: PortId,
    /// The receiving node.
    pub to: NodeId,
    /// Port of the receiving node.
    pub to_port: PortId,
}

/// A frame that reached a node, before the node handles it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The node.
    pub to: NodeId,
    /// Port of the node.
    pub port: PortId,
    /// All bytes of the frame.
    pub frame: &'a [u8],
    /// True if the last link delivered it unchanged. It may have been damaged on an earlier link.
    pub untouched: bool,
}

/// A read-only view of the nodes.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Current time.
    pub now: Nanos,
    pub(crate) nodes: &'a [Node],
}

impl<'a> View<'a> {
    /// Name of a node.
    pub fn name(&self, node: NodeId) -> &'a str {
        self.nodes.get(node.0).map_or("?", |n| &n.name)
    }

    /// Endpoint of a host.
    pub fn endpoint(&self, node: NodeId) -> Option<&'a Endpoint> {
        Some(&self.nodes.get(node.0)?.host()?.endpoint)
    }

    /// Engine of a switch, if it runs.
    pub fn engine(&self, node: NodeId) -> Option<&'a Engine> {
        self.nodes.get(node.0)?.switch()?.engine.as_ref()
    }
}

/// An observer. It sees every frame and changes nothing.
pub trait Watch {
    /// False if neither [`Watch::sent`] nor [`Watch::delivered`] does anything: they are not called then.
    const SEES_FRAMES: bool = true;

    /// True if no method does anything. Then [`Simulation::run`](crate::Simulation::run) may use several threads.
    const SEES_NOTHING: bool = false;

    /// A node sent a frame on a link, with this fate.
    fn sent(&mut self, view: &View<'_>, hop: Hop, frame: &[u8], fate: Fate) {
        let _ = (view, hop, frame, fate);
    }

    /// A frame reached a node and is about to be handled.
    fn delivered(&mut self, view: &View<'_>, delivery: Delivery<'_>) {
        let _ = (view, delivery);
    }

    /// A work request of a host has completed.
    fn completed(&mut self, view: &View<'_>, host: NodeId, completion: &Completion) {
        let _ = (view, host, completion);
    }

    /// A switch has stopped and lost its state.
    fn stopped(&mut self, switch: NodeId) {
        let _ = switch;
    }
}

impl Watch for () {
    const SEES_FRAMES: bool = false;
    const SEES_NOTHING: bool = true;
}
