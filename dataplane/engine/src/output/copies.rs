//! Copies of one frame. Who is named last gets the frame itself.

use castnet_wire::{FrameBuf, PortId};

use crate::egress::Egress;

pub(crate) struct Copies<B, T> {
    frame: B,
    /// Bytes of a private head.
    private: usize,
    waiting: Option<(PortId, T)>,
    /// Without the frame itself.
    pub(crate) sent: u64,
}

impl<B: FrameBuf, T> Copies<B, T> {
    pub(crate) fn new(frame: B, private: usize) -> Self {
        Self {
            frame,
            private,
            waiting: None,
            sent: 0,
        }
    }

    pub(crate) fn frame(&self) -> &B {
        &self.frame
    }

    /// Names who gets one. Returns who was named before, with a copy if a buffer is free.
    #[inline(always)]
    pub(crate) fn add<E: Egress<Buf = B>>(
        &mut self,
        egress: &mut E,
        port: PortId,
        to: T,
    ) -> Option<(PortId, T, Option<B>)> {
        let (port, to) = self.waiting.replace((port, to))?;
        let copy = egress.replicate(port, &self.frame, self.private);
        self.sent += u64::from(copy.is_some());
        Some((port, to, copy))
    }

    /// Who was named last, and the frame.
    pub(crate) fn finish(self) -> Option<(PortId, T, B)> {
        let (port, to) = self.waiting?;
        Some((port, to, self.frame))
    }
}
