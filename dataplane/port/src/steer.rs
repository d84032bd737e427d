//! Which receive queue of a device the frames of a group come in by.

use std::net::Ipv4Addr;

/// A device that can be told, for an address, the receive queue of what is sent to it. Control holds it; no worker calls it,
/// as a device may take milliseconds for a rule.
pub trait FlowTable: Send + Sync {
    /// Makes these the device's rules, which take the place of those of before: what is sent to an address goes to the queue
    /// of the thread that opened the port as the one of this number (the `queue` of [`Memory::open`](crate::Memory::open)).
    /// The addresses are in order. Where that thread does not receive from the port, there is no rule.
    ///
    /// What the device refuses is left to its hash, and after that to the workers, which hand over what is not theirs.
    fn steer(&self, wanted: &[(Ipv4Addr, usize)]) -> Steered;
}

/// What came of the rules for a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steered {
    /// Rules that the device has now.
    pub rules: usize,
    /// Addresses that it has no rule for, though it was to have.
    pub refused: usize,
    /// Why it refused one of them, in the driver's words; empty where there is none.
    pub reason: String,
}
