//! Frames and egress over byte vectors, for tests, the simulator and dry runs.

use castnet_wire::{FrameBuf, PortId};

use crate::egress::Egress;

/// A frame that owns all its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlainFrame(pub Vec<u8>);

impl From<&[u8]> for PlainFrame {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Vec<u8>> for PlainFrame {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl PlainFrame {
    /// A copy of any frame.
    pub fn copy_of(frame: &impl FrameBuf) -> Self {
        let mut bytes = vec![0; frame.length()];
        let n = frame.copy_to(&mut bytes);
        bytes.truncate(n);
        Self(bytes)
    }

    /// All bytes of the frame.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FrameBuf for PlainFrame {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn head(&self) -> &[u8] {
        &self.0
    }

    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn trailer(&self) -> [u8; 4] {
        self.0.last_chunk().copied().unwrap_or_default()
    }

    fn set_trailer(&mut self, bytes: [u8; 4]) {
        if let Some(last) = self.0.last_chunk_mut() {
            *last = bytes;
        }
    }

    fn segments(&self) -> [&[u8]; 3] {
        [&self.0, &[], &[]]
    }
}

/// An egress that stores sent frames in order.
#[derive(Clone, Debug, Default)]
pub struct PlainEgress {
    /// Sent frames with their egress ports, oldest first.
    pub sent: Vec<(PortId, PlainFrame)>,
    /// The number of buffers left; `None` for no limit.
    pub buffers: Option<usize>,
}

impl PlainEgress {
    /// Removes and returns the frames sent on `port`, oldest first.
    pub fn take(&mut self, port: PortId) -> Vec<PlainFrame> {
        let (mine, others) = std::mem::take(&mut self.sent)
            .into_iter()
            .partition(|(p, _)| *p == port);
        self.sent = others;
        let mine: Vec<(PortId, PlainFrame)> = mine;
        mine.into_iter().map(|(_, frame)| frame).collect()
    }

    fn take_buffer(&mut self) -> Option<()> {
        if let Some(left) = &mut self.buffers {
            *left = left.checked_sub(1)?;
        }
        Some(())
    }
}

impl Egress for PlainEgress {
    type Buf = PlainFrame;

    fn replicate(&mut self, _: PortId, original: &PlainFrame, _: usize) -> Option<PlainFrame> {
        self.take_buffer()?;
        Some(original.clone())
    }

    fn allocate(&mut self, _: PortId, length: usize) -> Option<PlainFrame> {
        self.take_buffer()?;
        Some(PlainFrame(vec![0; length]))
    }

    fn gather(&mut self, _: PortId, parts: &[&[u8]]) -> Option<PlainFrame> {
        self.take_buffer()?;
        Some(PlainFrame(parts.concat()))
    }

    fn send(&mut self, port: PortId, frame: PlainFrame) {
        self.sent.push((port, frame));
    }
}
