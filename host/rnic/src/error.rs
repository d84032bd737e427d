//! What calls are refused with.

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use castnet_endpoint::{MemoryError, PostError, QpError, Status};
use castnet_wire::{Pmtu, Qpn};

use crate::verbs::GidEntry;

/// Why an RNIC did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RnicError {
    /// A QP could not be made or changed.
    #[error(transparent)]
    Qp(#[from] QpError),
    /// A work request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A memory region could not be made or found.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Bytes outside a memory region.
    #[error("{length} bytes at {offset} are outside a memory region of {region} bytes")]
    OutOfBounds {
        /// First byte, relative to the region's start.
        offset: u64,
        /// Bytes.
        length: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// Nobody answered for the address of the next hop.
    #[error("no answer from {next_hop} to ARP, the next hop towards {remote}, within {waited:?}")]
    Unreachable {
        /// Where the QP should connect to.
        remote: Ipv4Addr,
        /// Whose Ethernet address was asked for.
        next_hop: Ipv4Addr,
        /// How long.
        waited: Duration,
    },
    /// Too many addresses are being resolved.
    #[error("all {max} entries of the neighbour table are in use")]
    NeighboursFull {
        /// The bound.
        max: usize,
    },
    /// The path MTU does not fit the port.
    #[error("path MTU {} does not fit: the port carries at most {}", .asked.bytes(), .active.bytes())]
    PmtuTooLarge {
        /// The path MTU asked for.
        asked: Pmtu,
        /// The largest that fits.
        active: Pmtu,
    },
    /// The port is too narrow for any RoCEv2 path MTU.
    #[error("the port's MTU is {mtu}; RoCEv2 needs at least {least}")]
    MtuTooSmall {
        /// Bytes at layer 3.
        mtu: usize,
        /// The least that works.
        least: usize,
    },
    /// The device gives numbers itself.
    #[error("this device does not let its user choose QP number {qpn}")]
    ChosenQpn {
        /// The number asked for.
        qpn: Qpn,
    },
    /// libibverbs is not installed, or is not what it should be.
    #[error("{library} cannot be loaded: {reason}")]
    NoVerbsLibrary {
        /// Its name or path.
        library: String,
        /// What the loader said.
        reason: String,
    },
    /// There is no RDMA device that the library can drive.
    #[error("no RDMA device{}", without_driver_text(.without_driver))]
    NoRdmaDevice {
        /// Devices that the kernel has and the library knows no driver for.
        without_driver: Vec<String>,
    },
    /// There is no device of that name.
    #[error("no RDMA device {asked}; there is {}", .devices.join(", "))]
    UnknownRdmaDevice {
        /// The name asked for.
        asked: String,
        /// Those that there are.
        devices: Vec<String>,
    },
    /// A device is there and could not be opened.
    #[error("RDMA device {device} cannot be opened: {source}")]
    VerbsOpen {
        /// The device.
        device: String,
        /// What the system said.
        source: io::Error,
    },
    /// The port is not up.
    #[error("port {port} of RDMA device {device} is not up: {state}")]
    PortDown {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// The state that it is in, IBV_PORT_*.
        state: String,
    },
    /// The port is one of InfiniBand.
    #[error("port {port} of RDMA device {device} is InfiniBand, not Ethernet: it has no RoCEv2")]
    NotEthernet {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
    },
    /// The port has no GID of RoCEv2 for the address, or the one asked for is not of that kind.
    #[error("port {port} of RDMA device {device} has no GID of RoCEv2 {}; {}", gid_text(.index, .ip), table_text(.gids))]
    NoGid {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// The address asked for.
        ip: Option<Ipv4Addr>,
        /// The number asked for.
        index: Option<u32>,
        /// The table.
        gids: Vec<GidEntry>,
    },
    /// The kernel knows no way to an address.
    #[error("the kernel has no route to {remote} by RDMA device {device} at {ip}{}", from_text(.from))]
    NoRoute {
        /// Where the QP should connect to.
        remote: Ipv4Addr,
        /// The device.
        device: String,
        /// Its address.
        ip: Ipv4Addr,
        /// The address of this host that the kernel would send from instead.
        from: Option<IpAddr>,
    },
    /// The device has failed as a whole.
    #[error("RDMA device {device} has failed: {event}")]
    DeviceFailed {
        /// The device.
        device: String,
        /// What it reported.
        event: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

fn from_text(from: &Option<IpAddr>) -> String {
    from.map_or_else(String::new, |from| format!(": its way begins at {from}"))
}

fn without_driver_text(devices: &[String]) -> String {
    if devices.is_empty() {
        return String::new();
    }
    format!(
        ": the kernel has {}, for which libibverbs finds no driver",
        devices.join(", ")
    )
}

fn gid_text(index: &Option<u32>, ip: &Option<Ipv4Addr>) -> String {
    match (index, ip) {
        (Some(index), Some(ip)) => format!("for {ip} at index {index}"),
        (Some(index), None) => format!("and IPv4 at index {index}"),
        (None, Some(ip)) => format!("for {ip}"),
        (None, None) => "for an IPv4 address".to_owned(),
    }
}

fn table_text(gids: &[GidEntry]) -> String {
    let entry = |gid: &GidEntry| {
        let kind = if gid.is_roce_v2 { "v2" } else { "v1" };
        match gid.ipv4() {
            Some(ip) => format!("{}: {ip} ({kind})", gid.index),
            None => format!("{}: {} ({kind})", gid.index, gid.gid),
        }
    };
    if gids.is_empty() {
        return "its table is empty".to_owned();
    }
    format!(
        "there is {}",
        gids.iter().map(entry).collect::<Vec<_>>().join(", ")
    )
}

/// How a work request ended, in the words of verbs (ibv_wc_status_str(3)); what only the device knows, in its own.
pub fn status_text(status: Status) -> Cow<'static, str> {
    let text = match status {
        Status::Success => "success",
        Status::LocalLengthError => "local length error",
        Status::LocalProtectionError => "local protection error",
        Status::RemoteAccessError => "remote access error",
        Status::RemoteInvalidRequest => "remote invalid request error",
        Status::RemoteOperationalError => "remote operation error",
        Status::RetryExceeded => "transport retry counter exceeded",
        Status::RnrRetryExceeded => "RNR retry counter exceeded",
        Status::Flushed => "work request flushed error",
        Status::Device { code, text } => {
            let text = text.unwrap_or("unknown to the device's library");
            return format!("{text} (status {code} of the device)").into();
        }
    };
    text.into()
}

impl RnicError {
    /// What to do about it, where that can be said: what to install, load or set.
    pub fn advice(&self) -> Option<String> {
        let advice = match self {
            Self::NoVerbsLibrary { .. } => "apt install ibverbs-providers libibverbs1".to_owned(),
            Self::NoRdmaDevice { without_driver } if without_driver.is_empty() => {
                "load the RNIC's driver (mlx5_ib, ...), or make a software device on an interface:\n\
                 modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0   (rdma is in the package iproute2)"
                    .to_owned()
            }
            Self::NoRdmaDevice { .. } => {
                "apt install ibverbs-providers; and see that /dev/infiniband/uverbs* are there (modprobe ib_uverbs)".to_owned()
            }
            Self::UnknownRdmaDevice { .. } => "rdma link, or castnet doctor, lists the devices".to_owned(),
            Self::VerbsOpen { .. } => {
                "see that /dev/infiniband/uverbs* are there (modprobe ib_uverbs) and that this user may use them".to_owned()
            }
            Self::PortDown { .. } => {
                "ip link set IF up; rdma link shows which interface a device is on, and its state".to_owned()
            }
            Self::NotEthernet { .. } => "--device with a device of Ethernet; rdma link lists them".to_owned(),
            Self::NoGid { ip, index, .. } => match (index, ip) {
                (Some(_), _) => "leave --gid-index away, or name an index of a GID of kind v2 with this host's address".to_owned(),
                (None, Some(ip)) => format!("give the device's interface the address: ip address add {ip}/24 dev IF"),
                (None, None) => "give the device's interface an address: ip address add 10.0.0.1/24 dev IF".to_owned(),
            },
            Self::NoRoute { remote, .. } => format!("a route to it on the device's interface: ip route add {remote}/32 dev IF"),
            Self::Unreachable { remote, .. } => format!(
                "see that a switch or host answers ARP for it: ping {remote}, or ip neighbour add {remote} lladdr MAC dev IF"
            ),
            Self::PmtuTooLarge { .. } => "ip link set IF mtu 4200, or a smaller path MTU".to_owned(),
            Self::ChosenQpn { .. } => "leave the number away: the device draws one and it is told".to_owned(),
            Self::DeviceFailed { .. } => "see the kernel's log: dmesg".to_owned(),
            _ => return None,
        };
        Some(advice)
    }
}
