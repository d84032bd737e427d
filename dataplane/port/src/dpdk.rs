//! What a DPDK device is as a port. Only its description lives here: it is opened by `castnet-dpdk`, since buffers are
//! the devices' own there.

/// A device that DPDK drives, and how to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSpec {
    /// A PCI address (`0000:3b:00.0`), or a virtual device's driver and number (`net_memif0`).
    pub device: String,
    /// The driver's own options, as DPDK writes them: `key=value`, with commas between.
    pub arguments: String,
    /// Frames that each receive queue's ring holds.
    pub rx_frames: usize,
    /// Segments that each send queue's ring holds.
    pub tx_frames: usize,
    /// Receive queues. The first goes to the worker whose turn the port is, the others to those after it.
    pub queues: usize,
    /// The largest packet at layer 3, in bytes; `None` for as much as device and buffers can, 9000 at most.
    pub mtu: Option<usize>,
    /// Whether frames to other Ethernet addresses than the device's own are taken, as a switch must.
    pub promiscuous: bool,
}

impl DpdkSpec {
    /// The device of this name with these options of its driver: rings of 1024, one receive queue, promiscuous.
    pub fn new(device: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            arguments: arguments.into(),
            rx_frames: 1024,
            tx_frames: 1024,
            queues: 1,
            mtu: None,
            promiscuous: true,
        }
    }

    /// Whether it is a device on the PCI bus.
    pub fn is_pci(&self) -> bool {
        pci(&self.device)
    }

    /// Device and options as DPDK writes them.
    pub fn devargs(&self) -> String {
        if self.arguments.is_empty() {
            self.device.clone()
        } else {
            format!("{},{}", self.device, self.arguments)
        }
    }
}

/// `[dddd:]bb:dd.f`, in hexadecimal.
fn pci(name: &str) -> bool {
    let hex = |text: &str, longest: usize| {
        (1..=longest).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let Some((address, function)) = name.rsplit_once('.') else {
        return false;
    };
    let parts: Vec<_> = address.split(':').collect();
    let address = match parts[..] {
        [bus, device] => hex(bus, 2) && hex(device, 2),
        [domain, bus, device] => hex(domain, 8) && hex(bus, 2) && hex(device, 2),
        _ => false,
    };
    address && hex(function, 1)
}

/// Whether DPDK can have a device of this name.
pub(crate) fn is_device(name: &str) -> bool {
    let virtual_device = name.starts_with("net_")
        && name.len() < 64
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    virtual_device || pci(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_on_a_bus_or_made_up() {
        for name in ["0000:3b:00.0", "3b:00.1", "0000:3b:00.f"] {
            assert!(pci(name) && is_device(name), "{name}");
        }
        for name in ["net_pcap0", "net_af_xdp12", "net_memif_a"] {
            assert!(!pci(name) && is_device(name), "{name}");
        }
        for name in [
            "",
            "eth0",
            "net_",
            "0000:3b:00",
            "zz:00.0",
            "0:0:0:0.0",
            "net_pcap0 -d x",
        ] {
            assert!(!is_device(name), "{name}");
        }
    }
}
