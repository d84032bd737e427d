use castnet_wire::{DropReason, FrameBuf, Nanos, PortId};

use crate::egress::Egress;
use crate::observe::counters::Counters;
use crate::observe::trace::{Observer, Stage, Step, Verdict};

/// What the stages of one frame share.
pub(crate) struct Cx<'a, E, O> {
    pub(crate) now: Nanos,
    pub(crate) ingress: PortId,
    pub(crate) egress: &'a mut E,
    pub(crate) observer: &'a mut O,
}

impl<E: Egress, O: Observer> Cx<'_, E, O> {
    #[inline(always)]
    pub(crate) fn send(&mut self, counters: &mut Counters, port: PortId, frame: E::Buf) {
        self.observer.sent(port, &frame);
        counters.sent(port, 1, frame.length() as u64);
        self.egress.send(port, frame);
    }

    /// Records the drop of a frame, and returns the verdict.
    #[inline]
    pub(crate) fn drop(&mut self, stage: Stage, reason: DropReason, why: impl FnOnce() -> String) -> Verdict {
        self.observer
            .step(|| Step::new(stage, format!("drop ({reason})"), why()));
        Verdict::Dropped(reason)
    }
}
