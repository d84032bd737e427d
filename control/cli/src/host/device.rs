//! Which RNIC a host has: the software one on an interface, or one of the machine by libibverbs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::str::FromStr;
use std::time::{Duration, Instant};

use castnet_console::exit::{Failure, Outcome};
use castnet_member::{self as member, HostDevice, Traffic};
use castnet_port::{BoxPort, PortSpec, Waker};
use castnet_rnic::verbs::{VerbsConfig, VerbsRnic};
use castnet_rnic::{
    Access, Completion, DeviceAttributes, Gateway, MemoryKey, MemoryRegion, QpOptions, QpRemote, QpState,
    RecvWr, Rnic, RnicError, SendWr, SoftRnic, SoftRnicConfig,
};
use castnet_switch::config::port_text;
use castnet_wire::{Nanos, Qpn};
use clap::{Args, ValueEnum};
use serde::Serialize;

/// The RNIC and its address.
#[derive(Clone, Debug, Args)]
pub(crate) struct Device {
    /// The RNIC: Castnet's own in software, or one of this machine by libibverbs
    #[arg(long, value_enum, default_value_t = Kind::Soft)]
    pub(super) rnic: Kind,
    /// With --rnic soft: the interface, or any port as `castnet switch --port` takes it (af_packet:veth0, pcap:in.pcap,out.pcap)
    #[arg(short, long, value_name = "SPEC", value_parser = port_text)]
    interface: Option<String>,
    /// This host's address on it; with --rnic verbs: the address whose GID is taken [default: the device's first]
    #[arg(long, value_name = "IP[/BITS]")]
    ip: Option<HostIp>,
    /// With --rnic soft: the next hop to addresses beyond the prefix; without it, all are looked for on the link
    #[arg(long, value_name = "IP")]
    gateway: Option<Ipv4Addr>,
    /// With --rnic verbs: the RDMA device, such as rxe0 or mlx5_0 [default: the first whose port is up and has a fitting GID]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// With --rnic verbs: number of the GID [default: that of RoCEv2 with this host's address]
    #[arg(long, value_name = "N")]
    gid_index: Option<u32>,
}

/// Which RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Castnet's own, in software, on an interface
    Soft,
    /// One of this machine, by libibverbs: hardware, or the kernel's SoftRoCE
    Verbs,
}

/// An address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostIp {
    pub(super) ip: Ipv4Addr,
    pub(super) prefix_len: u8,
}

impl FromStr for HostIp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("'{text}' is no address of a host: write such as 10.0.0.1/24");
        let (ip, bits) = text.split_once('/').unwrap_or((text, "32"));
        let ip: Ipv4Addr = ip.parse().map_err(|_| fault())?;
        let prefix_len = bits.parse().ok().filter(|b| *b <= 32).ok_or_else(fault)?;
        if ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() {
            Err(fault())
        } else {
            Ok(Self { ip, prefix_len })
        }
    }
}

impl Device {
    /// Opens the RNIC.
    pub(super) fn open(&self) -> Outcome<AnyRnic> {
        match self.rnic {
            Kind::Soft => self.open_soft().map(|(rnic, held)| AnyRnic::Soft {
                rnic: Box::new(rnic),
                _held: held,
            }),
            Kind::Verbs => self.open_verbs(),
        }
    }

    /// Opens the software RNIC. The socket holds the RoCEv2 port at the kernel where the kernel has the address too: it
    /// would answer each frame with an ICMP error otherwise. Nobody reads it, and what comes beyond its buffer is lost.
    pub(super) fn open_soft(&self) -> Outcome<(SoftRnic<BoxPort>, Option<UdpSocket>)> {
        if self.device.is_some() || self.gid_index.is_some() {
            return Err(Failure::usage(
                "--device and --gid-index are of RDMA devices; the software RNIC has neither",
            )
            .next("add --rnic verbs, or leave them away"));
        }
        let (Some(interface), Some(ip)) = (&self.interface, self.ip) else {
            return Err(
                Failure::usage("the software RNIC needs --interface and --ip").next(
                    "add such as --interface eth0 --ip 10.0.0.1/24, or take an RDMA device: --rnic verbs",
                ),
            );
        };
        let held = UdpSocket::bind((ip.ip, castnet_wire::udp::ROCE_PORT));
        if let Err(error) = &held {
            tracing::debug!(%error, ip = %ip.ip, "the kernel's UDP port 4791 is not held");
        }
        let spec = match interface.parse().map_err(Failure::usage)? {
            PortSpec::AfPacket(spec) => PortSpec::AfPacket(spec.for_rnic()),
            other => other,
        };
        let gateway = self.gateway.map(|gateway| Gateway {
            prefix_len: ip.prefix_len,
            ip: gateway,
        });
        let config = SoftRnicConfig {
            gateway,
            ..SoftRnicConfig::new(ip.ip)
        };
        Ok((member::open(&spec, config)?, held.ok()))
    }

    fn open_verbs(&self) -> Outcome<AnyRnic> {
        if self.interface.is_some() || self.gateway.is_some() {
            return Err(Failure::usage(
                "--interface and --gateway are the software RNIC's; an RDMA device has its interface, and the kernel routes",
            )
            .next("leave them away with --rnic verbs; --device names an RDMA device"));
        }
        let config = VerbsConfig {
            device: self.device.clone(),
            ip: self.ip.map(|ip| ip.ip),
            gid_index: self.gid_index,
            ..VerbsConfig::default()
        };
        let rnic = VerbsRnic::open(config).map_err(member::rnic_failure)?;
        Ok(AnyRnic::Verbs(Box::new(Hardware::new(rnic))))
    }
}

/// How often an RDMA device's host says where it is, while it waits to join; as the software RNIC.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// How long a look at the kernel's counters is good for.
const COUNTERS_FOR: Duration = Duration::from_millis(250);

/// An RDMA device with its counters, which the kernel keeps in files: those as it was opened, and the last look.
pub(crate) struct Hardware {
    rnic: VerbsRnic,
    before: BTreeMap<String, u64>,
    seen: Cell<(Instant, u64, u64)>,
    announced: Cell<Option<Instant>>,
}

/// Names of counters, rxe's first, then those of mlx5.
const NAKS_RECEIVED: &[&str] = &["rcvd_seq_err", "packet_seq_err"];
const RNR_NAKS_RECEIVED: &[&str] = &["rcvd_rnr_err", "rnr_nak_retry_err"];
const DUPLICATES: &[&str] = &["duplicate_request"];
const NAKS_SENT: &[&str] = &["out_of_seq_request", "out_of_sequence"];
const RNR_NAKS_SENT: &[&str] = &["send_rnr_err", "out_of_buffer"];

impl Hardware {
    fn new(rnic: VerbsRnic) -> Self {
        let before = rnic.counters();
        Self {
            rnic,
            before,
            seen: Cell::new((Instant::now(), 0, 0)),
            announced: Cell::new(None),
        }
    }

    /// By how much a counter has grown, under the first of these names that the device has.
    fn grown(&self, now: &BTreeMap<String, u64>, names: &[&str]) -> Option<u64> {
        let (name, now) = names.iter().find_map(|name| Some((*name, now.get(*name)?)))?;
        Some(now.wrapping_sub(self.before.get(name).copied().unwrap_or(0)))
    }

    /// NAKs that were received, and requests that were not new.
    fn counted(&self) -> (u64, u64) {
        let (at, naks, requests) = self.seen.get();
        if at.elapsed() < COUNTERS_FOR {
            return (naks, requests);
        }
        let now = self.rnic.counters();
        let sum = |all: &[&[&str]]| all.iter().filter_map(|names| self.grown(&now, names)).sum();
        let naks = sum(&[NAKS_RECEIVED, RNR_NAKS_RECEIVED]);
        let requests = sum(&[DUPLICATES, NAKS_SENT, RNR_NAKS_SENT]);
        self.seen.set((Instant::now(), naks, requests));
        (naks, requests)
    }
}

impl HostDevice for Hardware {
    fn announce(&self) {
        if self
            .announced
            .get()
            .is_some_and(|at| at.elapsed() < ANNOUNCE_INTERVAL)
        {
            return;
        }
        self.announced.set(Some(Instant::now()));
        if let Err(error) = self.rnic.announce() {
            tracing::warn!(%error, "switches may not see where this host is until it sends something itself");
        }
    }

    fn waker(&self) -> Waker {
        self.rnic.waker()
    }

    fn answers(&self) -> u64 {
        self.rnic.completions() + self.counted().0
    }

    fn requests(&self) -> u64 {
        self.rnic.completions() + self.counted().1
    }

    fn traffic(&self) -> Traffic {
        let now = self.rnic.counters();
        Traffic {
            frames_sent: self.grown(&now, &["sent_pkts"]),
            retransmissions: None,
            timeouts: self.grown(&now, &["local_ack_timeout_err"]),
            naks_received: self.grown(&now, NAKS_RECEIVED),
            rnr_naks_received: self.grown(&now, RNR_NAKS_RECEIVED),
            duplicates_received: self.grown(&now, DUPLICATES),
            naks_sent: self.grown(&now, NAKS_SENT),
            rnr_naks_sent: self.grown(&now, RNR_NAKS_SENT),
        }
    }
}

/// The RNIC of a host.
pub(crate) enum AnyRnic {
    Soft {
        rnic: Box<SoftRnic<BoxPort>>,
        /// Holds the kernel's port.
        _held: Option<UdpSocket>,
    },
    Verbs(Box<Hardware>),
}

impl AnyRnic {
    fn rnic(&self) -> &dyn Rnic {
        match self {
            Self::Soft { rnic, .. } => &**rnic,
            Self::Verbs(hardware) => &hardware.rnic,
        }
    }

    fn rnic_mut(&mut self) -> &mut dyn Rnic {
        match self {
            Self::Soft { rnic, .. } => &mut **rnic,
            Self::Verbs(hardware) => &mut hardware.rnic,
        }
    }

    fn device(&self) -> &dyn HostDevice {
        match self {
            Self::Soft { rnic, .. } => &**rnic,
            Self::Verbs(hardware) => &**hardware,
        }
    }
}

impl HostDevice for AnyRnic {
    fn announce(&self) {
        HostDevice::announce(self.device());
    }

    fn waker(&self) -> Waker {
        self.device().waker()
    }

    fn answers(&self) -> u64 {
        self.device().answers()
    }

    fn requests(&self) -> u64 {
        self.device().requests()
    }

    fn traffic(&self) -> Traffic {
        self.device().traffic()
    }
}

/// Hands each call on.
macro_rules! hand_on {
    ($ty:ty, $own:ident, $get:expr, $get_mut:expr) => {
        impl Rnic for $ty {
            fn attributes(&self) -> &DeviceAttributes {
                let $own = self;
                $get.attributes()
            }
            fn now(&self) -> Nanos {
                let $own = self;
                $get.now()
            }
            fn register_memory(&mut self, length: usize, access: Access) -> Result<MemoryRegion, RnicError> {
                let $own = self;
                $get_mut.register_memory(length, access)
            }
            fn deregister_memory(&mut self, key: MemoryKey) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.deregister_memory(key)
            }
            fn read_memory(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), RnicError> {
                let $own = self;
                $get.read_memory(key, offset, out)
            }
            fn write_memory(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.write_memory(key, offset, bytes)
            }
            fn create_qp(&mut self, options: &QpOptions) -> Result<Qpn, RnicError> {
                let $own = self;
                $get_mut.create_qp(options)
            }
            fn connect_qp(
                &mut self,
                qpn: Qpn,
                remote: &QpRemote,
                timeout: Duration,
            ) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.connect_qp(qpn, remote, timeout)
            }
            fn qp_state(&self, qpn: Qpn) -> Result<QpState, RnicError> {
                let $own = self;
                $get.qp_state(qpn)
            }
            fn fail_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.fail_qp(qpn)
            }
            fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.destroy_qp(qpn)
            }
            fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.post_send(qpn, wr)
            }
            fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.post_recv(qpn, wr)
            }
            fn announce(&mut self) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.announce()
            }
            fn poll(&mut self, now: Nanos) -> Result<bool, RnicError> {
                let $own = self;
                $get_mut.poll(now)
            }
            fn poll_send_completion(&mut self, qpn: Qpn) -> Option<Completion> {
                let $own = self;
                $get_mut.poll_send_completion(qpn)
            }
            fn poll_recv_completion(&mut self, qpn: Qpn) -> Option<Completion> {
                let $own = self;
                $get_mut.poll_recv_completion(qpn)
            }
            fn wait(&mut self, timeout: Duration) -> Result<(), RnicError> {
                let $own = self;
                $get_mut.wait(timeout)
            }
        }
    };
}

hand_on!(AnyRnic, own, own.rnic(), own.rnic_mut());
hand_on!(Hardware, own, own.rnic, own.rnic);

#[cfg(test)]
mod tests {
    use super::*;

    fn device(rnic: Kind) -> Device {
        Device {
            rnic,
            interface: None,
            ip: None,
            gateway: None,
            device: None,
            gid_index: None,
        }
    }

    fn refusal(device: &Device) -> Failure {
        match device.open() {
            Ok(_) => panic!("it opened"),
            Err(failure) => failure,
        }
    }

    #[test]
    fn a_hosts_address_is_a_unicast_one() {
        let ip = |text: &str| text.parse::<HostIp>().map(|h| (h.ip, h.prefix_len));
        assert_eq!(ip("10.0.0.1/24"), Ok((Ipv4Addr::new(10, 0, 0, 1), 24)));
        assert_eq!(ip("10.0.0.1"), Ok((Ipv4Addr::new(10, 0, 0, 1), 32)));
        for bad in [
            "",
            "10.0.0",
            "10.0.0.1/33",
            "10.0.0.1/x",
            "0.0.0.0",
            "239.1.1.1",
            "255.255.255.255",
            "fe80::1",
        ] {
            assert!(ip(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_rnic_refuses_what_is_the_others() {
        let soft = refusal(&device(Kind::Soft));
        assert_eq!(soft.code(), 2);
        assert!(soft.what.contains("--interface and --ip"), "{soft}");
        let with_device = Device {
            device: Some("rxe0".to_owned()),
            ..device(Kind::Soft)
        };
        assert!(refusal(&with_device).what.contains("--device"));
        let with_interface = Device {
            interface: Some("eth0".to_owned()),
            ..device(Kind::Verbs)
        };
        let failure = refusal(&with_interface);
        assert!(
            failure.code() == 2 && failure.what.contains("--interface"),
            "{failure}"
        );
    }

    #[test]
    fn a_device_that_is_not_there_is_a_failure_with_advice() {
        let unknown = Device {
            device: Some("no-such-device".to_owned()),
            ..device(Kind::Verbs)
        };
        let failure = refusal(&unknown);
        assert_eq!(failure.code(), 1);
        assert!(failure.next.is_some(), "{failure}");
    }
}
