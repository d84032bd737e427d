//! Whether frames of this machine to a group's address reach a Castnet switch.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use super::machine::output_of;
use super::{Check, Use};

/// The discard service. A frame to it only makes the kernel resolve the next hop.
const DISCARD: u16 = 9;
/// Kernels ask three times, a second apart, and may have begun before.
const PATIENCE: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    /// First router, if there is one.
    gateway: Option<Ipv4Addr>,
    interface: String,
}

/// Checks route and next hop of a McstID.
pub(crate) fn checks(mcst_id: Ipv4Addr) -> Vec<Check> {
    let route = Check::of(Use::Group, "route to the McstID");
    if output_of("ip", &["-V"]).is_none() {
        return vec![route.warn(
            "unknown: the program ip is not there".to_owned(),
            "install iproute2",
        )];
    }
    let Some(way) =
        output_of("ip", &["-4", "route", "get", &mcst_id.to_string()]).and_then(|text| way(&text))
    else {
        let advice = "take McstIDs of an interface's subnet (castnet controller --mcst-pool), or route their prefix to the \
                      Castnet switch: ip route add PREFIX via SWITCH";
        return vec![route.missing(format!("none to {mcst_id}"), advice)];
    };
    let (next_hop, found) = match way.gateway {
        None => (mcst_id, format!("on link by {}", way.interface)),
        Some(gateway) => (gateway, format!("by the router {gateway} on {}", way.interface)),
    };
    if way.interface == "lo" {
        let advice = "no host may have the address of a group: give the group another one, or take it off the interface";
        return vec![route.missing(format!("{mcst_id} is an address of this machine"), advice)];
    }
    let check = Check::of(Use::Group, "next hop of the McstID");
    let check = match (ask(mcst_id, next_hop, &way.interface), way.gateway) {
        (Some(mac), Some(_)) => {
            let advice = format!(
                "that router, and every router on the way, must route {mcst_id} to the Castnet switch: see its routes; \
                 castnet drops and castnet trace at the switch show whether frames come"
            );
            check.warn(format!("{next_hop} is at {mac}"), advice)
        }
        (Some(mac), None) => check.ok(format!("{next_hop} is at {mac}: a switch answers for it")),
        (None, gateway) => {
            let advice = match gateway {
                Some(_) => "the router is down, or not in this VLAN",
                None => {
                    "see that the group is installed (castnet group list --agent URL), that the switch's port is up and in the \
                     VLAN of this interface (castnet port), and that it sees this machine (castnet neighbours)"
                }
            };
            let found = format!("nobody answers ARP for {next_hop} on {}", way.interface);
            check.missing(found, advice)
        }
    };
    vec![route.ok(found), check]
}

/// Parses a line such as `10.9.0.1 via 10.0.0.254 dev eth0 src 10.0.0.1`.
fn way(text: &str) -> Option<Way> {
    let after = |word: &str| {
        let mut words = text.split_whitespace().skip_while(|w| *w != word);
        words.nth(1)
    };
    Some(Way {
        gateway: after("via").and_then(|ip| ip.parse().ok()),
        interface: after("dev")?.to_owned(),
    })
}

/// Ethernet address of `next_hop`, resolved by a frame to `address`.
fn ask(address: Ipv4Addr, next_hop: Ipv4Addr, interface: &str) -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        // After a failure, a kernel asks again only for a new frame. An error may be of the failure before.
        let _ = socket.send_to(&[], (address, DISCARD));
        std::thread::sleep(PAUSE);
        let text = output_of(
            "ip",
            &["-4", "neigh", "show", &next_hop.to_string(), "dev", interface],
        )?;
        let mut words = text.split_whitespace().skip_while(|w| *w != "lladdr");
        if let Some(mac) = words.nth(1).filter(|_| !text.contains("FAILED")) {
            return Some(mac.to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_as_ip_prints_them() {
        let direct = way("10.0.0.200 dev eth0 src 10.0.0.1 uid 0 \n    cache \n");
        assert_eq!(
            direct.map(|way| (way.gateway, way.interface)),
            Some((None, "eth0".to_owned()))
        );
        let routed = way("10.9.0.1 via 10.0.0.254 dev eth1 src 10.0.0.1 uid 0");
        assert_eq!(
            routed.map(|way| (way.gateway, way.interface)),
            Some((Some([10, 0, 0, 254].into()), "eth1".to_owned()))
        );
        let own = way("local 10.0.0.1 dev lo table local src 10.0.0.1");
        assert_eq!(own.map(|way| way.interface), Some("lo".to_owned()));
        assert_eq!(way("RTNETLINK answers: Network is unreachable"), None);
    }
}
