//! What members need of an RNIC beyond [`Rnic`].

use castnet_port::{BoxPort, Waker};
use castnet_rnic::{Rnic, SoftRnic};
use serde::Serialize;

/// What members need of an RNIC beyond [`Rnic`].
pub trait HostDevice: Rnic {
    /// Ends a wait.
    fn waker(&self) -> Waker;

    /// Announces the host to switches now and then, unless the RNIC does that by itself.
    fn announce(&self) {}

    /// Count of packets that answer what was sent.
    fn answers(&self) -> u64;

    /// Count of received requests, repeated ones included.
    fn requests(&self) -> u64;

    /// Counters since the RNIC was opened.
    fn traffic(&self) -> Traffic;
}

/// Counters of an RNIC since it was opened; `None` if it does not count that. Those of an RDMA device include all programs
/// that use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Frames sent.
    pub frames_sent: Option<u64>,
    /// Of these, retransmitted ones.
    pub retransmissions: Option<u64>,
    /// Time-outs.
    pub timeouts: Option<u64>,
    /// Sequence NAKs received.
    pub naks_received: Option<u64>,
    /// RNR NAKs received.
    pub rnr_naks_received: Option<u64>,
    /// Requests received again.
    pub duplicates_received: Option<u64>,
    /// Sequence NAKs sent.
    pub naks_sent: Option<u64>,
    /// RNR NAKs sent.
    pub rnr_naks_sent: Option<u64>,
}

impl HostDevice for SoftRnic<BoxPort> {
    fn waker(&self) -> Waker {
        Self::waker(self)
    }

    fn answers(&self) -> u64 {
        let stats = self.stats();
        stats.acks_in + stats.sequence_naks_in + stats.rnr_naks_in
    }

    fn requests(&self) -> u64 {
        self.stats().requests_in + self.stats().duplicates_in
    }

    fn traffic(&self) -> Traffic {
        let stats = self.stats();
        Traffic {
            frames_sent: Some(stats.frames_out),
            retransmissions: Some(stats.retransmits),
            timeouts: Some(stats.timeouts),
            naks_received: Some(stats.sequence_naks_in),
            rnr_naks_received: Some(stats.rnr_naks_in),
            duplicates_received: Some(stats.duplicates_in),
            naks_sent: Some(stats.sequence_naks_out),
            rnr_naks_sent: Some(stats.rnr_naks_out),
        }
    }
}
