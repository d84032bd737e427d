//! Who looks on while a simulation runs.

use castnet_endpoint::{Completion, Endpoint};
use castnet_engine::Engine;
use castnet_wire::{Nanos, PortId};

use crate::link::Fate;
use crate::node::{Node, NodeId};

/// From where to where a frame travels. A host has port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The node that sends.
    pub from: NodeId,
    /// Its port.
    pub from_port: PortId,
    /// The node that receives.
    pub to: NodeId,
    /// Its port.
    pub to_port: PortId,
}

/// A frame that reached a node, just before the node takes it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The node.
    pub to: NodeId,
    /// Its port.
    pub port: PortId,
    /// All bytes.
    pub frame: &'a [u8],
    /// Whether the last link delivered it as it was given. One that was damaged further up looks untouched here.
    pub untouched: bool,
}

/// The nodes, to be looked at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The time.
    pub now: Nanos,
    pub(crate) nodes: &'a [Node],
}

impl<'a> View<'a> {
    /// A node's name.
    pub fn name(&self, node: NodeId) -> &'a str {
        self.nodes.get(node.0).map_or("?", |n| &n.name)
    }

    /// A host's endpoint.
    pub fn endpoint(&self, node: NodeId) -> Option<&'a Endpoint> {
        Some(&self.nodes.get(node.0)?.host()?.endpoint)
    }

    /// A switch's engine, where it runs.
    pub fn engine(&self, node: NodeId) -> Option<&'a Engine> {
        self.nodes.get(node.0)?.switch()?.engine.as_ref()
    }
}

/// Looks on. It sees every frame, and changes nothing.
pub trait Watch {
    /// A node gave a frame to a link, and this becomes of it.
    fn sent(&mut self, view: &View<'_>, hop: Hop, frame: &[u8], fate: Fate) {
        let _ = (view, hop, frame, fate);
    }

    /// A frame is about to be taken by a node.
    fn delivered(&mut self, view: &View<'_>, delivery: Delivery<'_>) {
        let _ = (view, delivery);
    }

    /// A host's work request has ended.
    fn completed(&mut self, view: &View<'_>, host: NodeId, completion: &Completion) {
        let _ = (view, host, completion);
    }

    /// A switch has stopped: it forgets everything.
    fn stopped(&mut self, switch: NodeId) {
        let _ = switch;
    }
}

impl Watch for () {}
