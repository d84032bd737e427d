//! Flow steering: selection of a device's receive queue by destination address.

use std::net::Ipv4Addr;

/// A device's table of destination address to receive queue. For control only: a rule may take milliseconds.
pub trait FlowTable: Send + Sync {
    /// Replaces all rules of the device. Each entry of `wanted` maps an address to the `queue` given to
    /// [`Memory::open`](crate::Memory::open) by the thread that must receive it. The addresses are in order.
    /// An address whose thread does not receive from this port gets no rule. Without a rule the device
    /// selects a queue by its hash, and the workers hand the frames over.
    fn steer(&self, wanted: &[(Ipv4Addr, usize)]) -> Steered;
}

/// Result of flow steering at one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steered {
    /// The number of rules that are installed.
    pub rules: usize,
    /// The number of addresses whose rule the device refused.
    pub refused: usize,
    /// The driver's message for one refused rule. Empty if none was refused.
    pub reason: String,
}
