//! Frames in, frames out.

use castnet_wire::Nanos;

use crate::endpoint::Endpoint;

impl Endpoint {
    /// Takes one whole Ethernet frame, without FCS. What it does not take, it counts by [`crate::Discard`].
    pub fn handle_frame(&mut self, now: Nanos, frame: &[u8]) {
        let _ = (now, frame);
        self.stats.frames_in += 1;
    }

    /// Writes one whole Ethernet frame, without FCS, to the start of `out`, and returns its length; `None` where there
    /// is nothing to send now. ACKs and NAKs go before requests; in both, the QPs take turns.
    ///
    /// `out` must have [`Endpoint::FRAME_MAX`] bytes; a shorter one is counted, and nothing is written.
    pub fn poll_transmit(&mut self, now: Nanos, out: &mut [u8]) -> Option<usize> {
        let _ = (now, out);
        None
    }

    /// The longest frame that [`Endpoint::poll_transmit`] writes: Ethernet 14, IPv4 20, UDP 8, BTH 12, RETH 16,
    /// immediate 4, 4096 bytes of payload, ICRC 4.
    pub const FRAME_MAX: usize = 14 + 20 + 8 + 12 + 16 + 4 + 4096 + 4;
}
