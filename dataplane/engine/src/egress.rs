//! Where frames leave: what the engine asks of whoever runs it (a worker over real ports, or the simulator).

use castnet_wire::{FrameBuf, PortId};

use crate::port_set::PortSet;

/// The sending side of all ports of a switch.
pub trait Egress {
    /// How this runner's ports hold a frame.
    type Buf: FrameBuf;

    /// A frame with the bytes of `original` to leave by `port`: at least `header` bytes of private head, and a private
    /// trailer; the body may be shared, or copied: the port knows. `None` where no buffer is free.
    fn replicate(&mut self, port: PortId, original: &Self::Buf, header: usize) -> Option<Self::Buf>;

    /// Whether replicas of a frame of `length` bytes to all of these ports are best made by [`Egress::lend`].
    fn lends(&self, ports: PortSet, length: usize) -> bool {
        let _ = (ports, length);
        false
    }

    /// A replica with a private head of 64 bytes that borrows all the rest of `original`, the trailer too: while both live,
    /// neither's trailer can be written. `to_come` more replicas of it will be asked for. `None` where no buffer is free.
    fn lend(&mut self, original: &Self::Buf, to_come: usize) -> Option<Self::Buf> {
        let _ = (original, to_come);
        None
    }

    /// A fresh frame of `length` bytes to leave by `port`, its head zeroed. `None` where no buffer is free.
    fn allocate(&mut self, port: PortId, length: usize) -> Option<Self::Buf>;

    /// A fresh frame with the bytes of all `parts`, one after the other, to leave by `port`. `None` as above.
    fn gather(&mut self, port: PortId, parts: &[&[u8]]) -> Option<Self::Buf>;

    /// Queues `frame` for sending on `port`. What happens to it from here on is the port's to count.
    fn send(&mut self, port: PortId, frame: Self::Buf);
}
