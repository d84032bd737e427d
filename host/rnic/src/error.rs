use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use castnet_endpoint::{MemoryError, PostError, QpError, Status};
use castnet_port::OpenError;
use castnet_wire::{Pmtu, Qpn};

use crate::verbs::GidEntry;

/// Error of an RNIC.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum RnicError {
    /// A QP could not be created or changed.
    #[error(transparent)]
    Qp(#[from] QpError),
    /// A work request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A memory region could not be created or found.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The machine has too little memory for a region.
    #[error("{length} bytes of memory for a region: this machine has not so much")]
    NoMemory { length: usize },
    /// The RNIC cannot use memory of its user.
    #[error("this RNIC has no regions in memory that is lent to it")]
    NoLentMemory,
    /// An access outside a memory region.
    #[error("{length} bytes at {offset} are outside a memory region of {region} bytes")]
    OutOfBounds {
        /// First byte relative to the start of the region.
        offset: u64,
        length: usize,
        region: usize,
    },
    /// The port could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The next hop did not reply to ARP.
    #[error("no answer from {next_hop} to ARP, the next hop towards {remote}, within {} ms", .waited.as_millis())]
    Unreachable {
        remote: Ipv4Addr,
        next_hop: Ipv4Addr,
        waited: Duration,
    },
    /// Too many addresses are being resolved.
    #[error("all {max} entries of the neighbour table are in use")]
    NeighboursFull { max: usize },
    /// The path MTU is too large for the port.
    #[error("path MTU {} does not fit: the port carries at most {}", .asked.bytes(), .active.bytes())]
    PmtuTooLarge { asked: Pmtu, active: Pmtu },
    /// The port's MTU is too small for any RoCEv2 path MTU.
    #[error("the port's MTU is {mtu}; RoCEv2 needs at least {least}")]
    MtuTooSmall {
        /// MTU of the port in bytes.
        mtu: usize,
        /// The minimum in bytes.
        least: usize,
    },
    /// The device does not support chosen QP numbers.
    #[error("this device does not let its user choose QP number {qpn}")]
    ChosenQpn { qpn: Qpn },
    /// libibverbs is not installed or is not usable.
    #[error("{library} cannot be loaded: {reason}")]
    NoVerbsLibrary { library: String, reason: String },
    /// There is no RDMA device with a driver.
    #[error("no RDMA device{}", without_driver_text(.without_driver))]
    NoRdmaDevice { without_driver: Vec<String> },
    /// There is no RDMA device with this name.
    #[error("no RDMA device {asked}; there is {}", .devices.join(", "))]
    UnknownRdmaDevice { asked: String, devices: Vec<String> },
    /// An existing device could not be opened.
    #[error("RDMA device {device} cannot be opened: {source}")]
    VerbsOpen { device: String, source: io::Error },
    /// The port is not up.
    #[error("port {port} of RDMA device {device} is not up: {state}")]
    PortDown { device: String, port: u8, state: String },
    /// The port is an InfiniBand port.
    #[error("port {port} of RDMA device {device} is InfiniBand, not Ethernet: it has no RoCEv2")]
    NotEthernet { device: String, port: u8 },
    /// The port has no RoCEv2 GID for the address, or the requested GID is not RoCEv2.
    #[error("port {port} of RDMA device {device} has no GID of RoCEv2 {}; {}", gid_text(.index, .ip), table_text(.gids))]
    NoGid {
        device: String,
        port: u8,
        ip: Option<Ipv4Addr>,
        index: Option<u32>,
        gids: Vec<GidEntry>,
    },
    /// The kernel has no route to the address through the device.
    #[error("the kernel has no route to {remote} by RDMA device {device} at {ip}{}", from_text(.from))]
    NoRoute {
        remote: Ipv4Addr,
        device: String,
        ip: Ipv4Addr,
        from: Option<IpAddr>,
    },
    /// The device has failed.
    #[error("RDMA device {device} has failed: {event}")]
    DeviceFailed { device: String, event: String },
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl RnicError {
    pub(crate) fn io<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self + Copy {
        move |error| Self::Io {
            what,
            source: error.into(),
        }
    }
}

fn from_text(from: &Option<IpAddr>) -> String {
    from.map_or_else(String::new, |from| {
        format!(": its source address would be {from}")
    })
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

/// The text of a status as in verbs (ibv_wc_status_str(3)). Device-specific statuses have the device's text.
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
    /// Advice for the operator, if there is any: what to install, load or configure.
    pub fn advice(&self) -> Option<String> {
        let advice = match self {
            Self::Open(_) => "castnet doctor --for switch".to_owned(),
            Self::NoVerbsLibrary { .. } => "apt install ibverbs-providers libibverbs1".to_owned(),
            Self::NoRdmaDevice { without_driver } if without_driver.is_empty() => {
                "load the RNIC's driver (mlx5_ib, ...), or make a software device on an interface:\n\
                 modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0   (rdma is in the package iproute2)"
                    .to_owned()
            }
            Self::NoRdmaDevice { .. } => {
                "apt install ibverbs-providers; and check that /dev/infiniband/uverbs* exist (modprobe ib_uverbs)".to_owned()
            }
            Self::UnknownRdmaDevice { .. } => "rdma link, or castnet doctor, lists the devices".to_owned(),
            Self::VerbsOpen { .. } => {
                "check that /dev/infiniband/uverbs* exist (modprobe ib_uverbs) and that this user may use them".to_owned()
            }
            Self::PortDown { .. } => {
                "ip link set IF up; rdma link shows which interface a device is on, and its state".to_owned()
            }
            Self::NotEthernet { .. } => "use --device with an Ethernet device; rdma link lists them".to_owned(),
            Self::NoGid { ip, index, .. } => match (index, ip) {
                (Some(_), _) => "omit --gid-index, or name an index of a GID of kind v2 with this host's address".to_owned(),
                (None, Some(ip)) => format!("give the device's interface the address: ip address add {ip}/24 dev IF"),
                (None, None) => "give the device's interface an address: ip address add 10.0.0.1/24 dev IF".to_owned(),
            },
            Self::NoRoute { remote, .. } => format!("a route to it on the device's interface: ip route add {remote}/32 dev IF"),
            Self::Unreachable { remote, .. } => format!(
                "check that a switch or host answers ARP for it: ping {remote}, or ip neighbour add {remote} lladdr MAC dev IF"
            ),
            Self::PmtuTooLarge { .. } => "ip link set IF mtu 4200, or a smaller path MTU".to_owned(),
            Self::ChosenQpn { .. } => "omit the number: the device chooses one and it is printed".to_owned(),
            Self::DeviceFailed { .. } => "see the kernel's log: dmesg".to_owned(),
            _ => return None,
        };
        Some(advice)
    }
}
