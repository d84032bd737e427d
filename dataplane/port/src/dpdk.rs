//! Description of a DPDK device. The crate `castnet-dpdk` opens the device, because its frames live in DPDK's buffers.

/// A DPDK device and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSpec {
    /// PCI address (`0000:3b:00.0`), or driver and number of a virtual device (`net_memif0`).
    pub device: String,
    /// Options of the driver in DPDK's form: `key=value`, separated by commas.
    pub arguments: String,
    /// Capacity of each receive queue in frames.
    pub rx_frames: usize,
    /// Capacity of each send queue in segments.
    pub tx_frames: usize,
    /// Receive queues: the first is for the worker to which the port is assigned, the others for the next workers.
    pub queues: usize,
    /// The largest packet at layer 3 in bytes. `None`: the most that device and buffers support, up to 9000.
    pub mtu: Option<usize>,
    /// True to receive frames to all Ethernet addresses, as a switch must.
    pub promiscuous: bool,
}

impl DpdkSpec {
    /// A device with these driver options: rings of 1024, one receive queue, promiscuous.
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

    /// Returns true if the device is on the PCI bus.
    pub fn is_pci(&self) -> bool {
        pci(&self.device)
    }

    /// Device and options in DPDK's form.
    pub fn devargs(&self) -> String {
        if self.arguments.is_empty() {
            self.device.clone()
        } else {
            format!("{},{}", self.device, self.arguments)
        }
    }
}

/// Returns true if `name` has the form `[dddd:]bb:dd.f` in hexadecimal.
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
    fn device_names_are_pci_or_virtual() {
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
