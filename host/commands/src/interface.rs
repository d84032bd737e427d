//! The interface and address of the software RNIC, where the command line leaves them out.

use std::net::Ipv4Addr;

use castnet_console::exit::{Failure, Outcome};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

/// An interface that is up, other than loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    /// Its addresses, each with the bits of its prefix.
    pub(super) ips: Vec<(Ipv4Addr, u8)>,
}

/// Those of this network namespace.
pub(super) fn all() -> Outcome<Vec<Interface>> {
    let mut all: Vec<Interface> = Vec::new();
    for entry in getifaddrs().map_err(Failure::failed)? {
        let (up, not) = (InterfaceFlags::IFF_UP, InterfaceFlags::IFF_LOOPBACK);
        if !entry.flags.contains(up) || entry.flags.intersects(not) {
            continue;
        }
        let name = entry.interface_name;
        let at = all
            .iter()
            .position(|known| known.name == name)
            .unwrap_or_else(|| {
                let ips = Vec::new();
                all.push(Interface { name, ips });
                all.len() - 1
            });
        let ip = entry
            .address
            .as_ref()
            .and_then(|a| Some(a.as_sockaddr_in()?.ip()));
        let mask = entry
            .netmask
            .as_ref()
            .and_then(|a| Some(a.as_sockaddr_in()?.ip()));
        if let Some(ip) = ip {
            let bits = mask.map_or(32, |mask| u32::from(mask).leading_ones() as u8);
            all[at].ips.push((ip, bits));
        }
    }
    Ok(all)
}

/// The only interface; where there are several, the only one with an address.
pub(super) fn only(all: &[Interface]) -> Outcome<&Interface> {
    let with_ip: Vec<&Interface> = all.iter().filter(|i| !i.ips.is_empty()).collect();
    match (all, &with_ip[..]) {
        ([one], _) => Ok(one),
        (_, [one]) => Ok(*one),
        ([], _) => Err(
            Failure::usage("the software RNIC needs an interface, and none is up")
                .next("ip link shows them; or use an RDMA device: --rnic verbs"),
        ),
        _ => {
            let names: Vec<&str> = all.iter().map(|i| i.name.as_str()).collect();
            let what = format!(
                "the software RNIC needs --interface: this machine has {}",
                names.join(", ")
            );
            Err(Failure::usage(what)
                .next("add such as --interface eth0, or use an RDMA device: --rnic verbs"))
        }
    }
}

/// The only address of an interface.
pub(super) fn only_ip(all: &[Interface], name: &str) -> Outcome<(Ipv4Addr, u8)> {
    let found = all.iter().find(|i| i.name == name);
    // One that is down, or loopback, is there.
    if found.is_none() && if_nametoindex(name).is_err_and(|errno| errno == Errno::ENODEV) {
        let what = format!("there is no interface {name} in this network namespace");
        return Err(Failure::usage(what).next("ip link lists those there are"));
    }
    let ips = found.map_or(&[][..], |i| &i.ips);
    match ips {
        [one] => Ok(*one),
        _ => {
            let has = match ips.len() {
                0 => "no address".to_owned(),
                several => format!("{several} addresses"),
            };
            Err(Failure::usage(format!(
                "the software RNIC needs --ip: interface {name} has {has}"
            ))
            .next("add such as --ip 10.0.0.1/24"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ips: &[[u8; 4]]) -> Interface {
        Interface {
            name: name.to_owned(),
            ips: ips.iter().map(|ip| ((*ip).into(), 24)).collect(),
        }
    }

    #[test]
    fn the_interface_is_taken_if_there_is_no_choice() {
        let (bare, one) = (interface("eth0", &[]), interface("eth1", &[[10, 0, 0, 1]]));
        let two = interface("eth2", &[[10, 0, 1, 1], [10, 0, 2, 1]]);
        let name = |all: &[Interface]| only(all).map(|i| i.name.clone()).map_err(|f| f.what);
        assert_eq!(name(std::slice::from_ref(&bare)), Ok("eth0".to_owned()));
        assert_eq!(name(&[bare.clone(), one.clone()]), Ok("eth1".to_owned()));
        let all = [bare, one, two];
        assert!(name(&all).is_err_and(|why| why.contains("eth0, eth1, eth2")));
        assert!(name(&[]).is_err_and(|why| why.contains("none is up")));
        let ip = |name: &str| only_ip(&all, name).map_err(|f| f.what);
        assert_eq!(ip("eth1"), Ok(([10, 0, 0, 1].into(), 24)));
        assert!(ip("nope").is_err_and(|why| why.contains("no interface nope")));
        for (name, has) in [
            ("eth0", "no address"),
            ("eth2", "2 addresses"),
            ("lo", "no address"),
        ] {
            assert!(
                ip(name).is_err_and(|why| why.contains("--ip") && why.contains(has)),
                "{name}"
            );
        }
    }
}
