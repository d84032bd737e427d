//! An egress over byte vectors, for tests, the simulator and dry runs.

use castnet_wire::PortId;

use crate::egress::Egress;

/// An egress that stores sent frames in order.
#[derive(Clone, Debug, Default)]
pub struct PlainEgress {
    /// Sent frames with their egress ports, oldest first.
    pub sent: Vec<(PortId, Vec<u8>)>,
    /// The number of buffers left; `None` for no limit.
    pub buffers: Option<usize>,
}

impl PlainEgress {
    fn take_buffer(&mut self) -> Option<()> {
        if let Some(left) = &mut self.buffers {
            *left = left.checked_sub(1)?;
        }
        Some(())
    }
}

impl Egress for PlainEgress {
    type Buf = Vec<u8>;

    fn replicate(&mut self, _: PortId, original: &Vec<u8>, _: usize) -> Option<Vec<u8>> {
        self.take_buffer()?;
        Some(original.clone())
    }

    fn allocate(&mut self, _: PortId, length: usize) -> Option<Vec<u8>> {
        self.take_buffer()?;
        Some(vec![0; length])
    }

    fn gather(&mut self, _: PortId, parts: &[&[u8]]) -> Option<Vec<u8>> {
        self.take_buffer()?;
        Some(parts.concat())
    }

    fn send(&mut self, port: PortId, frame: Vec<u8>) {
        self.sent.push((port, frame));
    }
}
