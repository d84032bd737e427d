//! The flags that select the RNIC of a host: the software one on an interface, or one of the machine by libibverbs.

use std::net::Ipv4Addr;
use std::str::FromStr;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::remark;
use castnet_local::numa;
use castnet_port::{BoxPort, port_text};
use castnet_rnic::verbs::{VerbsConfig, VerbsRnic};
use castnet_rnic::{Congestion, CongestionAlgorithm, Gateway, Rnic, SoftRnic, SoftRnicConfig};
use castnet_wire::BitRate;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{failure, interface};

/// The RNIC and its address.
#[derive(Clone, Debug, Args)]
pub struct Device {
    /// The RNIC: Castnet's own in software, or one of this machine by libibverbs
    #[arg(long, value_enum, default_value_t = Kind::Soft)]
    pub(super) rnic: Kind,
    /// With --rnic soft: the interface, or any port as `castnet switch --port` takes it (af_packet:veth0, memif:/run/castnet/h1.sock)
    /// [default: the only interface that is up, or the only one with an address]
    #[arg(short, long, value_name = "SPEC", value_parser = port_text)]
    interface: Option<String>,
    /// Address of this host; with --rnic verbs it selects the GID [default: that of the interface, or the device's first]
    #[arg(long, value_name = "IP[/BITS]")]
    ip: Option<HostIp>,
    /// With --rnic soft: next hop to addresses outside the prefix [default: all addresses are on the link]
    #[arg(long, value_name = "IP")]
    gateway: Option<Ipv4Addr>,
    /// With --rnic soft: congestion control; the same at all hosts of a group. An RDMA device has its own
    #[arg(long, value_enum, value_name = "HOW")]
    congestion: Option<CongestionArg>,
    /// With --congestion: the rate of the link, such as 25G [default: the speed of the interface, or 10G if it is unknown]
    #[arg(long, value_name = "RATE", requires = "congestion")]
    link_rate: Option<BitRate>,
    /// With --rnic verbs: the RDMA device, such as rxe0 or mlx5_0 [default: the first whose port is up and has a matching GID]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// With --rnic verbs: index of the GID [default: that of RoCEv2 with this host's address]
    #[arg(long, value_name = "N")]
    gid_index: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Castnet's own, in software, on an interface
    Soft,
    /// One of this machine, by libibverbs: hardware, or the kernel's SoftRoCE
    Verbs,
}

/// As [`CongestionAlgorithm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CongestionArg {
    /// DCQCN: receivers send a CNP for marked packets (ECN: CE), at most one in 50 us; a CNP lowers the sender's rate
    Dcqcn,
    /// DCQCN with PEEL's guard timer: receivers send a CNP for each marked packet; the sender reacts to one in 50 us
    GuardTimer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostIp {
    ip: Ipv4Addr,
    prefix_len: u8,
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
    /// Opens it.
    ///
    /// # Errors
    /// Names what this machine lacks.
    pub fn open(&self) -> Outcome<Box<dyn Rnic>> {
        match self.rnic {
            Kind::Soft => Ok(Box::new(self.open_soft()?)),
            Kind::Verbs => self.open_verbs(),
        }
    }

    /// Whether only one RNIC can use it, as a link of memif: any port that is no network interface.
    pub(super) fn is_for_one_thread(&self) -> bool {
        let spec = self.interface.as_ref();
        spec.is_some_and(|spec| !spec.starts_with("af_packet:"))
    }

    /// NUMA node of the interface or RDMA device, if it is named and the machine has several nodes.
    pub(super) fn numa_node(&self) -> Option<u32> {
        let sys = numa::SYS.as_ref();
        match (&self.interface, &self.device) {
            (Some(spec), _) => {
                let name = spec.strip_prefix("af_packet:")?;
                numa::node_of_interface(sys, name.split(',').next()?)
            }
            (None, Some(device)) => numa::node_of_rdma_device(sys, device),
            (None, None) => None,
        }
    }

    pub(super) fn open_soft(&self) -> Outcome<SoftRnic<BoxPort>> {
        if self.device.is_some() || self.gid_index.is_some() {
            return Err(Failure::usage(
                "--device and --gid-index are of RDMA devices; the software RNIC has neither",
            )
            .next("add --rnic verbs, or omit them"));
        }
        let (interface, ip) = self.soft_place()?;
        let gateway = self.gateway.map(|gateway| Gateway {
            prefix_len: ip.prefix_len,
            ip: gateway,
        });
        let congestion = self.congestion.map(|arg| Congestion {
            algorithm: match arg {
                CongestionArg::Dcqcn => CongestionAlgorithm::Dcqcn,
                CongestionArg::GuardTimer => CongestionAlgorithm::GuardTimer,
            },
            rate_max: self.link_rate,
        });
        let config = SoftRnicConfig {
            gateway,
            congestion,
            ..SoftRnicConfig::new(ip.ip)
        };
        let port = interface.parse().map_err(Failure::usage)?;
        SoftRnic::open(&port, config).map_err(failure::rnic)
    }

    /// Port and address of the software RNIC, as given or as there is no choice.
    fn soft_place(&self) -> Outcome<(String, HostIp)> {
        if let (Some(interface), Some(ip)) = (&self.interface, self.ip) {
            return Ok((interface.clone(), ip));
        }
        let all = interface::all()?;
        let spec = match &self.interface {
            Some(spec) => spec.clone(),
            None => port_text(&interface::only(&all)?.name).map_err(Failure::usage)?,
        };
        let ip = match (self.ip, spec.strip_prefix("af_packet:")) {
            (Some(ip), _) => ip,
            (None, Some(rest)) => {
                let name = rest.split(',').next().unwrap_or(rest);
                let (ip, prefix_len) = interface::only_ip(&all, name)?;
                HostIp { ip, prefix_len }
            }
            (None, None) => {
                return Err(Failure::usage(format!(
                    "port {spec} has no address: the software RNIC needs --ip"
                ))
                .next("add such as --ip 10.0.0.1/24"));
            }
        };
        remark(&format!("uses {spec}, {}", ip.ip));
        Ok((spec, ip))
    }

    fn open_verbs(&self) -> Outcome<Box<dyn Rnic>> {
        if self.congestion.is_some() {
            return Err(Failure::usage(
                "--congestion is of the software RNIC; an RDMA device has its own congestion control",
            )
            .next("omit it with --rnic verbs; deploy/lab/connectx.md shows how to switch ECN on"));
        }
        if self.interface.is_some() || self.gateway.is_some() {
            return Err(Failure::usage(
                "--interface and --gateway are the software RNIC's; an RDMA device has its interface, and the kernel routes",
            )
            .next("omit them with --rnic verbs; --device names an RDMA device"));
        }
        let config = VerbsConfig {
            device: self.device.clone(),
            ip: self.ip.map(|ip| ip.ip),
            gid_index: self.gid_index,
            ..VerbsConfig::default()
        };
        Ok(Box::new(VerbsRnic::open(config).map_err(failure::rnic)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(rnic: Kind) -> Device {
        Device {
            rnic,
            interface: None,
            ip: None,
            gateway: None,
            congestion: None,
            link_rate: None,
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
        let no_ip = Device {
            interface: Some("pcap:in.pcap,out.pcap".to_owned()),
            ..device(Kind::Soft)
        };
        let soft = refusal(&no_ip);
        assert!(soft.code() == 2 && soft.what.contains("needs --ip"), "{soft}");
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
