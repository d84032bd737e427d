//! The sending side of the ports. A worker implements it over real ports, the simulator over simulated ones.

use castnet_wire::{FrameBuf, PortId};

use crate::port_set::PortSet;

/// The sending side of all ports of a switch.
pub trait Egress {
    /// A frame in a buffer of these ports.
    type Buf: FrameBuf;

    /// A replica of `original` for `port`, with a private trailer and at least `header` bytes of private head. The port decides whether
    /// the body is shared or copied. `None` if no buffer is free.
    fn replicate(&mut self, port: PortId, original: &Self::Buf, header: usize) -> Option<Self::Buf>;

    /// True if [`Egress::lend`] is the cheapest way to make replicas of `length` bytes for all these ports.
    fn lends(&self, ports: PortSet, length: usize) -> bool {
        let _ = (ports, length);
        false
    }

    /// A replica with a private head of 64 bytes. It shares all other bytes: the trailer of neither can be written while both exist.
    /// `to_come` is the number of further replicas. `None` if no buffer is free.
    fn lend(&mut self, original: &Self::Buf, to_come: usize) -> Option<Self::Buf> {
        let _ = (original, to_come);
        None
    }

    /// A new frame of `length` bytes for `port`, with a zeroed head. `None` if no buffer is free.
    fn allocate(&mut self, port: PortId, length: usize) -> Option<Self::Buf>;

    /// A new frame for `port` with the concatenated bytes of `parts`. `None` if no buffer is free.
    fn gather(&mut self, port: PortId, parts: &[&[u8]]) -> Option<Self::Buf>;

    /// Queues `frame` for sending on `port`, which counts it from here on.
    fn send(&mut self, port: PortId, frame: Self::Buf);
}
