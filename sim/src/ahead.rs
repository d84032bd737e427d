//! Prefetches what the next events touch. A network at load is larger than the caches of a processor, and each event touches another part
//! of it; but which part is known, since the events are in the queue. This changes no result.

use castnet_reduce::prefetch;

use crate::node::{Kind, Node, NodeId};
use crate::simulation::{Event, Simulation};
use crate::watch::Watch;

/// Events between the steps. Each step reads what the one before it has prefetched.
const STEP: usize = 4;

impl<W: Watch> Simulation<W> {
    /// Takes one step for each of several later events.
    #[inline]
    pub(crate) fn look_ahead(&self) {
        if let Some(event) = self.queue.ahead(3 * STEP) {
            match event {
                Event::Arrive { direction, frame, .. } => {
                    prefetch(&self.directions[*direction as usize]);
                    frame.prefetch();
                }
                Event::Ready(node) | Event::Poll(node) | Event::Work(node) | Event::Timer(node) => {
                    prefetch(&self.nodes[node.0]);
                }
                Event::Action(_) => {}
            }
        }
        if let Some(Event::Arrive { direction, .. }) = self.queue.ahead(2 * STEP) {
            prefetch(&self.nodes[self.directions[*direction as usize].to.0.0]);
        }
        if let Some(node) = self.node_ahead(STEP) {
            match &node.kind {
                Kind::Switch(switch) => switch.prefetch(0),
                Kind::Host(host) => prefetch(&**host),
            }
        }
        if let Some(node) = self.node_ahead(1) {
            match &node.kind {
                Kind::Switch(switch) => switch.prefetch(1),
                Kind::Host(_) => {}
            }
        }
    }

    fn node_ahead(&self, skipped: usize) -> Option<&Node> {
        let node = match self.queue.ahead(skipped)? {
            Event::Arrive { direction, .. } => self.directions[*direction as usize].to.0,
            Event::Ready(node) | Event::Poll(node) | Event::Work(node) | Event::Timer(node) => *node,
            Event::Action(_) => return None,
        };
        let NodeId(index) = node;
        self.nodes.get(index)
    }
}
