//! Status and counters of flow control.

use castnet_wire::{TrafficClass, counters};

/// Flow control (PFC) of a lossless class at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfcClassReport {
    /// The class.
    pub class: TrafficClass,
    /// True if the peer has paused it.
    pub is_paused: bool,
    /// True if the watchdog drops its frames.
    pub has_storm: bool,
    /// True if the switch has paused the peer.
    pub is_stopping: bool,
    /// Bytes that wait to leave by the port.
    pub queued_bytes: u64,
    /// Since the start of the switch.
    pub counters: PfcCounters,
}

counters! {
    /// Flow control (PFC) of a class at a port.
    pub struct PfcCounters => copy_pfc_counters {
        /// PFC frames with this class received.
        pause_received,
        /// PFC frames with this class sent.
        pause_sent,
        /// Nanoseconds for which the peer had paused the class.
        paused_ns,
        /// Frames that have waited to leave by the port.
        held,
        /// Times that the class was paused for so long that the watchdog took its frames for lost.
        storms,
        /// Frames dropped by the watchdog.
        storm_drops,
        /// Frames dropped because the headroom of their ingress port, or the memory for waiting frames, was used up.
        overflows,
    }
}
