//! Prefetches what the next events touch. A network at load is larger than the caches of a processor, and each event touches another part
//! of it; but which part is known, since the events are in the queue. This changes no result.

use castnet_endpoint::Prefetch;
use castnet_reduce::prefetch;

use crate::node::{HostNode, Kind, Node, NodeId, ReceivedFrame, SwitchNode};
use crate::simulation::{Event, Simulation};
use crate::watch::Watch;

/// Events between the steps. Each step reads what the one before it has prefetched.
const STEP: usize = 4;
/// Frames of a switch whose links are prefetched.
const FRAMES: usize = 8;

struct HostPrefetch;

impl Prefetch for HostPrefetch {
    #[inline(always)]
    fn prefetch<T: ?Sized>(&self, value: &T) {
        prefetch(value);
    }
}

impl<W: Watch> Simulation<W> {
    /// Takes one step for each of several later events.
    #[inline]
    pub(crate) fn look_ahead(&self) {
        match self.queue.ahead(5 * STEP) {
            Some(Event::Arrive { direction, frame, .. }) => {
                prefetch(&self.directions[*direction as usize]);
                frame.prefetch();
            }
            Some(event) => self.node_of(event).iter().for_each(|node| prefetch(*node)),
            None => {}
        }
        if let Some(event @ Event::Arrive { .. }) = self.queue.ahead(4 * STEP) {
            self.node_of(event).iter().for_each(|node| prefetch(*node));
        }
        match self.kind_ahead(3 * STEP) {
            Some((Kind::Switch(switch), _)) => switch.prefetch(0),
            Some((Kind::Host(host), _)) => prefetch(&**host),
            Some((Kind::Elsewhere, _)) | None => {}
        }
        match self.kind_ahead(2 * STEP) {
            Some((Kind::Switch(switch), Event::Arrive { direction, frame, .. })) => {
                switch.prefetch(1);
                let engine = switch.engine.iter();
                engine.for_each(|engine| engine.prefetch(self.directions[*direction as usize].to.1, frame));
            }
            Some((Kind::Switch(_) | Kind::Elsewhere, _)) | None => {}
            Some((Kind::Host(host), _)) => self.prefetch_host(host, 0),
        }
        match self.kind_ahead(STEP) {
            // The flows of the frames that wait were prefetched when they arrived.
            Some((Kind::Switch(switch), Event::Poll(_))) => self.prefetch_egress(switch),
            Some((Kind::Switch(_) | Kind::Elsewhere, _)) | None => {}
            Some((Kind::Host(host), _)) => self.prefetch_host(host, 1),
        }
        if let Some((Kind::Host(host), _)) = self.kind_ahead(1) {
            self.prefetch_host(host, 2);
        }
    }

    fn prefetch_host(&self, host: &HostNode, step: usize) {
        host.endpoint.prefetch(step, &HostPrefetch);
        host.rank.iter().for_each(|rank| rank.prefetch(step));
        if step == 0 {
            host.out.iter().for_each(|out| prefetch(&self.directions[*out]));
        }
    }

    /// Prefetches the links by which the first waiting frames leave.
    fn prefetch_egress(&self, switch: &SwitchNode) {
        let Some(engine) = &switch.engine else { return };
        for ReceivedFrame { port, frame, .. } in switch.received.iter().take(FRAMES) {
            let egress = engine.egress_of(self.now, *port, frame);
            let out = egress.and_then(|egress| switch.out[egress.index()]);
            out.iter().for_each(|out| prefetch(&self.directions[*out]));
        }
    }

    fn kind_ahead(&self, skipped: usize) -> Option<(&Kind, &Event)> {
        let event = self.queue.ahead(skipped)?;
        Some((&self.node_of(event)?.kind, event))
    }

    fn node_of(&self, event: &Event) -> Option<&Node> {
        let NodeId(node) = self.recipient(event);
        self.nodes.get(node)
    }
}
