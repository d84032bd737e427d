//! Checks of interfaces, offloads, RDMA devices and the RoCEv2 port.

use castnet_rnic::RnicError;
use castnet_rnic::verbs::{self, VerbsDevice};

use super::kernel::{CAP_NET_ADMIN, has_capability};
use super::machine::Machine;
use super::{Check, Use};

pub(crate) fn checks(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![roce_port(machine)];
    checks.extend(rdma_devices(machine));
    let mut interfaces = machine.names("/sys/class/net");
    interfaces.retain(|name| name != "lo");
    if interfaces.is_empty() {
        checks.push(Check::of(Use::Switch, "interfaces").warn(
            "none but loopback",
            "add an interface, or make a pair: ip link add a type veth peer name b",
        ));
    }
    let is_down = |name: &String| {
        let state = machine.read(&format!("/sys/class/net/{name}/operstate"));
        state.is_some_and(|state| state == "down")
    };
    let (down, interfaces): (Vec<_>, Vec<_>) = interfaces.into_iter().partition(is_down);
    if !down.is_empty() {
        checks.push(Check::of(Use::Switch, "interfaces that are down").ok(down.join(", ")));
    }
    for name in interfaces.iter().take(INTERFACES_SHOWN_MAX) {
        checks.push(mtu(machine, name));
        checks.extend(ethtool(machine, name).map(|features| offloads(name, &features)));
    }
    if !machine.has_program("ethtool") {
        checks.push(
            Check::of(Use::Switch, "offloads").warn("cannot be told without ethtool", "install ethtool"),
        );
    }
    checks.extend(receive_buffer(machine));
    if interfaces.len() > INTERFACES_SHOWN_MAX {
        let more = interfaces.len() - INTERFACES_SHOWN_MAX;
        checks.push(Check::of(Use::Switch, "more interfaces").ok(format!("{more} were not looked at")));
    }
    checks
}

/// Super-frames wait in the receive buffer of a socket, which may exceed this limit only with CAP_NET_ADMIN.
fn receive_buffer(machine: &Machine) -> Option<Check> {
    const WANTED: u64 = 8 << 20;
    let limit = machine
        .read("/proc/sys/net/core/rmem_max")?
        .trim()
        .parse::<u64>()
        .ok()?;
    let check = Check::of(Use::Switch, "receive buffers");
    Some(if has_capability(machine, CAP_NET_ADMIN) {
        check.ok("as large as a port wants: CAP_NET_ADMIN is held")
    } else if limit < WANTED {
        check.warn(
            format!(
                "at most {limit} bytes without CAP_NET_ADMIN: bursts of super-frames (UDP GSO) may be lost"
            ),
            format!("sysctl net.core.rmem_max={WANTED}, or give CAP_NET_ADMIN"),
        )
    } else {
        check.ok(format!("up to {limit} bytes"))
    })
}

/// A machine of many containers has hundreds.
const INTERFACES_SHOWN_MAX: usize = 16;
/// UDP port of RoCEv2, as in /proc/net/udp.
const ROCE_PORT_HEX: &str = "12B7";

fn roce_port(machine: &Machine) -> Check {
    let check = Check::of(Use::Switch, "UDP port 4791");
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|path| machine.read(path));
    let Some(v4) = &tables[0] else {
        return check.warn("cannot be told", "mount /proc");
    };
    let held = is_bound(v4) || tables[1].as_deref().is_some_and(is_bound);
    let rxe = machine.has("/sys/module/rdma_rxe");
    match (held, rxe) {
        (false, _) => check.ok("free; `castnet host` holds it while it runs"),
        (true, true) => {
            let advice = "run `castnet host` on another interface or in another network namespace than rxe: both would answer";
            check.warn("held by the kernel's SoftRoCE (rdma_rxe)", advice)
        }
        (true, false) => {
            let advice = "see which one: ss -ulpn 'sport = :4791'; another `castnet host` does no harm";
            check.warn("held by a program", advice)
        }
    }
}

/// Whether the local port of a line is that of RoCEv2.
fn is_bound(table: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let local = line.split_whitespace().nth(1);
        local
            .and_then(|l| l.rsplit_once(':'))
            .is_some_and(|(_, port)| port.eq_ignore_ascii_case(ROCE_PORT_HEX))
    })
}

/// The library, and whether each device can be a host's RNIC. None is needed: there is the software RNIC.
fn rdma_devices(machine: &Machine) -> Vec<Check> {
    let check = Check::of(Use::Switch, "RDMA devices");
    let names = machine.names("/sys/class/infiniband");
    let looked_at = if machine.real {
        verbs::devices()
    } else {
        Err(RnicError::NoRdmaDevice {
            without_driver: names.clone(),
        })
    };
    match looked_at {
        Ok(devices) => devices.into_iter().map(rdma_device).collect(),
        Err(error) if names.is_empty() => {
            let found = format!("{error}; not needed: `castnet host` has a software RNIC of its own");
            vec![check.ok(found)]
        }
        Err(error) => {
            let found = format!("{}: {error}", names.join(", "));
            let advice = error.advice().unwrap_or_else(|| "dmesg".to_owned());
            vec![check.warn(found, advice)]
        }
    }
}

fn rdma_device(device: VerbsDevice) -> Check {
    let check = Check::of(Use::Switch, format!("RDMA device {}", device.name));
    match device.state {
        Ok(attributes) => {
            let found = format!(
                "{}, path MTU {}: castnet host --rnic verbs --device {}",
                attributes.ip,
                attributes.active_pmtu.bytes(),
                device.name
            );
            check.ok(found)
        }
        Err(error) => {
            let advice = device.advice.unwrap_or_else(|| "dmesg".to_owned());
            check.warn(error, advice)
        }
    }
}

/// IPv4, UDP, BTH, RETH, ImmDt and ICRC; Linux reserves a little more, so that RNICs agree on the same path MTU.
const HEADERS_BYTES: u64 = 80;

/// Largest RoCE path MTU that fits an interface.
fn pmtu_of(mtu: u64) -> Option<usize> {
    let all = castnet_wire::Pmtu::ALL.into_iter().rev();
    let mut bytes = all.map(castnet_wire::Pmtu::bytes);
    bytes.find(|pmtu| *pmtu as u64 + HEADERS_BYTES <= mtu)
}

fn mtu(machine: &Machine, name: &str) -> Check {
    let check = Check::of(Use::Speed, format!("{name}: MTU"));
    let state = machine
        .read(&format!("/sys/class/net/{name}/operstate"))
        .unwrap_or_else(|| "unknown".to_owned());
    let Some(mtu) = machine.number(&format!("/sys/class/net/{name}/mtu")) else {
        return check.warn("cannot be told", "mount /sys");
    };
    let advice = format!("for path MTU 4096, on every interface of the path: ip link set {name} mtu 4200");
    match pmtu_of(mtu) {
        Some(4096) => check.ok(format!("{mtu}, so path MTU 4096; link {state}")),
        Some(pmtu) => check.warn(format!("{mtu}, so path MTU {pmtu}; link {state}"), advice),
        None => {
            let found = format!("{mtu}: too small for any RoCE path MTU; link {state}");
            check.warn(found, advice)
        }
    }
}

/// Output of `ethtool -k`; `None` if it is missing or fails.
fn ethtool(machine: &Machine, name: &str) -> Option<String> {
    if !machine.real || !machine.has_program("ethtool") {
        return None;
    }
    super::machine::output_of("ethtool", &["-k", name])
}

/// Offloads that merge frames, which a port takes apart again.
const HARMFUL: [(&str, &str); 2] = [
    ("generic-receive-offload", "gro"),
    ("large-receive-offload", "lro"),
];

fn offloads(name: &str, features: &str) -> Check {
    let check = Check::of(Use::Switch, format!("{name}: offloads"));
    let is_on = |long: &str| {
        features.lines().any(|line| {
            line.trim()
                .split_once(':')
                .is_some_and(|(key, value)| key == long && value.trim().starts_with("on"))
        })
    };
    let on: Vec<_> = HARMFUL
        .iter()
        .filter(|(long, _)| is_on(long))
        .map(|(_, short)| *short)
        .collect();
    if on.is_empty() {
        return check.ok(match is_on("tx-udp-segmentation") {
            true => "none that merges frames; runs of packets can be sent as one (tx-udp-segmentation)",
            false => "none that merges frames; tx-udp-segmentation is off, so packets are sent one by one",
        });
    }
    let off: String = on.iter().map(|short| format!(" {short} off")).collect();
    check.warn(
        format!(
            "{} on: frames are merged, and a switch on this port takes them apart again",
            on.join(", ")
        ),
        format!("ethtool -K {name}{off} (a switch with CAP_NET_ADMIN turns gro off by itself)"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::machine::tests::Fake;

    #[test]
    fn the_roce_port_is_found_in_the_kernels_table() {
        let free = "  sl  local_address rem_address   st\n  1: 00000000:0044 00000000:0000 07\n";
        let held = "  sl  local_address rem_address   st\n  1: 00000000:12B7 00000000:0000 07\n";
        let remote = "  sl  local_address rem_address   st\n  1: 00000000:0044 00000000:12B7 07\n";
        assert_eq!([free, held, remote].map(is_bound), [false, true, false]);
    }

    #[test]
    fn path_mtus_leave_room_for_the_headers() {
        assert_eq!(pmtu_of(1500), Some(1024));
        assert_eq!(pmtu_of(4175), Some(2048));
        assert_eq!(pmtu_of(4176), Some(4096));
        assert_eq!(pmtu_of(9000), Some(4096));
        assert_eq!(pmtu_of(300), None);
    }

    #[test]
    fn offloads_that_are_on_are_named_with_the_way_to_turn_them_off() {
        let text = "Features for eth0:\nrx-checksumming: on\ngeneric-receive-offload: on\nlarge-receive-offload: off [fixed]\n";
        let check = offloads("eth0", text);
        assert_eq!(check.level, Level::Warn);
        assert!(
            check.advice.starts_with("ethtool -K eth0 gro off "),
            "{}",
            check.advice
        );
        assert_eq!(offloads("eth0", "").level, Level::Ok);
        let segmentation = offloads("eth0", "tx-udp-segmentation: on\n");
        assert!(
            segmentation.found.contains("sent as one"),
            "{}",
            segmentation.found
        );
    }

    #[test]
    fn small_receive_buffers_are_no_matter_with_the_capability() {
        let level = |capabilities: &str, limit: &str| {
            let status = format!("CapEff:\t{capabilities}\n");
            let fake = Fake::new(&[
                ("proc/sys/net/core/rmem_max", limit),
                ("proc/self/status", status.as_str()),
            ]);
            receive_buffer(&fake.machine()).map(|check| check.level)
        };
        assert_eq!(level("0000000000000000", "4194304"), Some(Level::Warn));
        assert_eq!(level("0000000000000000", "8388608"), Some(Level::Ok));
        assert_eq!(level("0000000000001000", "4194304"), Some(Level::Ok));
    }

    #[test]
    fn interfaces_are_read_from_sysfs() {
        let fake = Fake::new(&[
            ("proc/net/udp", "head\n"),
            ("sys/class/net/eth7/mtu", "9000\n"),
            ("sys/class/net/eth7/operstate", "up\n"),
            ("sys/class/net/lo/mtu", "65536\n"),
        ]);
        let checks = checks(&fake.machine());
        let mtu = checks
            .iter()
            .find(|c| c.what == "eth7: MTU")
            .expect("the interface");
        assert_eq!(
            (mtu.level, mtu.found.as_str()),
            (Level::Ok, "9000, so path MTU 4096; link up")
        );
        assert!(!checks.iter().any(|c| c.what.starts_with("lo")));
    }
}
