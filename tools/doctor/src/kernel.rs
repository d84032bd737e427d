//! Checks of processor, memory, clock and privileges.

use std::net::TcpListener;

use castnet_console::units::bytes;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::machine::{Machine, allowed, online};
use super::{Check, Use};

/// All of them, in the order of the table.
pub(crate) fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        system(machine),
        memory(machine),
        loopback(machine),
        cores(machine),
        raw_sockets(machine),
        net_admin(machine),
        namespaces(machine),
        pinning(machine),
        carry_less(machine),
        clock(machine),
    ]
}

fn system(machine: &Machine) -> Check {
    let release = machine.read("/proc/sys/kernel/osrelease");
    match release {
        Some(release) => Check::ok(Use::Demo, "operating system", format!("Linux {release}")),
        None => Check::warn(
            Use::Demo,
            "operating system",
            "/proc is not there, or this is not Linux",
            "mount /proc; Castnet is built for Linux",
        ),
    }
}

/// What the demo's buffers, rings and files take with room to spare.
const MEMORY_BYTES_MIN: u64 = 1 << 30;

fn memory(machine: &Machine) -> Check {
    let available = machine
        .field("/proc/meminfo", "MemAvailable")
        .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
        .map(|kib| kib * 1024);
    match available {
        Some(n) if n >= MEMORY_BYTES_MIN => Check::ok(Use::Demo, "memory", format!("{} free", bytes(n))),
        Some(n) => Check::warn(
            Use::Demo,
            "memory",
            format!("{} free", bytes(n)),
            "end other programs, or give the demo a smaller --size",
        ),
        None => Check::warn(Use::Demo, "memory", "cannot be told", "mount /proc"),
    }
}

fn loopback(machine: &Machine) -> Check {
    let bound = if machine.real {
        TcpListener::bind(("127.0.0.1", 0)).map(|_| ())
    } else {
        Ok(())
    };
    match bound {
        Ok(()) => Check::ok(Use::Demo, "loopback TCP", "127.0.0.1 can be listened at"),
        Err(error) => Check::missing(
            Use::Demo,
            "loopback TCP",
            error.to_string(),
            "ip link set lo up: controller and agents meet at 127.0.0.1",
        ),
    }
}

fn cores(machine: &Machine) -> Check {
    let allowed = allowed(machine).or_else(|| online(machine));
    match allowed.map(|cores| cores.len()) {
        Some(n) if n >= 4 => Check::ok(Use::Demo, "cores", format!("{n} that this process may use")),
        Some(n) => Check::warn(
            Use::Demo,
            "cores",
            format!("{n} that this process may use"),
            "leave --idle adaptive: with --idle busy each worker takes a core for itself",
        ),
        None => Check::warn(Use::Demo, "cores", "cannot be told", "mount /proc and /sys"),
    }
}

/// Bits of the effective capability set.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;

fn has_capability(machine: &Machine, bit: u32) -> bool {
    let set = machine
        .field("/proc/self/status", "CapEff")
        .and_then(|s| u64::from_str_radix(&s, 16).ok());
    set.is_some_and(|set| set >> bit & 1 == 1)
}

fn raw_sockets(machine: &Machine) -> Check {
    let what = "raw sockets (AF_PACKET)";
    let advice = "run as root, or: setcap cap_net_raw+ep \"$(command -v castnet)\"";
    let tried = if machine.real {
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).map(|_| ())
    } else if has_capability(machine, CAP_NET_RAW) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    };
    match tried {
        Ok(()) => Check::ok(Use::Switch, what, "can be opened"),
        Err(Errno::EPERM | Errno::EACCES) => {
            Check::missing(Use::Switch, what, "not permitted: no CAP_NET_RAW", advice)
        }
        Err(Errno::EAFNOSUPPORT) => Check::missing(
            Use::Switch,
            what,
            "this kernel has no AF_PACKET",
            "modprobe af_packet",
        ),
        Err(error) => Check::missing(Use::Switch, what, error.desc(), advice),
    }
}

fn net_admin(machine: &Machine) -> Check {
    if has_capability(machine, CAP_NET_ADMIN) {
        Check::ok(
            Use::Lab,
            "CAP_NET_ADMIN",
            "held: interfaces can be made and set up",
        )
    } else {
        Check::missing(
            Use::Lab,
            "CAP_NET_ADMIN",
            "not held",
            "run the lab as root; a switch on interfaces that are there does not need it",
        )
    }
}

fn namespaces(machine: &Machine) -> Check {
    let what = "network namespaces";
    match (machine.has("/proc/self/ns/net"), machine.has_program("ip")) {
        (true, true) => Check::ok(Use::Lab, what, "the kernel has them, and there is `ip`"),
        (true, false) => Check::missing(
            Use::Lab,
            what,
            "no program `ip`",
            "install iproute2 (deploy/lab uses ip netns)",
        ),
        (false, _) => Check::missing(
            Use::Lab,
            what,
            "this kernel has none",
            "use a kernel with CONFIG_NET_NS, or separate machines",
        ),
    }
}

fn pinning(machine: &Machine) -> Check {
    let count = |cores: Option<Vec<usize>>| cores.map(|cores| cores.len());
    match (count(allowed(machine)), count(online(machine))) {
        (Some(allowed), Some(online)) if allowed < online => Check::warn(
            Use::Speed,
            "pinning to cores",
            format!("only {allowed} of {online} cores are allowed here"),
            "give --worker core=N only cores of this list: taskset -pc $$",
        ),
        (Some(_), _) => Check::ok(
            Use::Speed,
            "pinning to cores",
            "all cores are allowed: --worker core=N",
        ),
        _ => Check::warn(Use::Speed, "pinning to cores", "cannot be told", "mount /proc"),
    }
}

fn carry_less(machine: &Machine) -> Check {
    let flags = machine
        .field("/proc/cpuinfo", "flags")
        .or_else(|| machine.field("/proc/cpuinfo", "Features"));
    let fast = ["pclmulqdq", "pmull", "crc32"];
    match flags {
        Some(flags) => match flags.split_whitespace().find(|f| fast.contains(f)) {
            Some(flag) => Check::ok(Use::Speed, "fast ICRC", format!("the processor has {flag}")),
            None => Check::warn(
                Use::Speed,
                "fast ICRC",
                "the processor has no carry-less multiplication",
                "use a newer processor, or let the virtual machine see the host's: -cpu host",
            ),
        },
        None => Check::warn(Use::Speed, "fast ICRC", "cannot be told", "mount /proc"),
    }
}

fn clock(machine: &Machine) -> Check {
    let what = "clock source";
    match machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        Some(source) if source == "tsc" || source == "arch_sys_counter" => {
            Check::ok(Use::Speed, what, format!("{source}: read without a system call"))
        }
        Some(source) if source == "kvm-clock" => {
            Check::ok(Use::Speed, what, format!("{source}: read without a system call"))
        }
        Some(source) => Check::warn(
            Use::Speed,
            what,
            format!("{source}: slow to read"),
            "boot with clocksource=tsc tsc=reliable if the processor's counter is steady",
        ),
        None => Check::warn(Use::Speed, what, "cannot be told", "mount /sys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::machine::tests::Fake;

    fn level(checks: &[Check], what: &str) -> Level {
        checks
            .iter()
            .find(|c| c.what == what)
            .unwrap_or_else(|| panic!("no check {what}"))
            .level
    }

    #[test]
    fn a_machine_that_has_everything() {
        let fake = Fake::new(&[
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("proc/meminfo", "MemTotal: 8 kB\nMemAvailable:   8000000 kB\n"),
            (
                "proc/self/status",
                "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-7\n",
            ),
            ("proc/self/ns/net", ""),
            ("proc/cpuinfo", "processor : 0\nflags\t\t: fpu sse2 pclmulqdq\n"),
            ("sys/devices/system/cpu/online", "0-7\n"),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "tsc\n",
            ),
            ("bin/ip", ""),
        ]);
        let checks = checks(&fake.machine());
        for check in &checks {
            assert_eq!(check.level, Level::Ok, "{check:?}");
        }
    }

    #[test]
    fn a_bare_machine_is_told_what_it_lacks() {
        let fake = Fake::new(&[(
            "proc/self/status",
            "CapEff:\t0000000000000000\nCpus_allowed_list:\t0\n",
        )]);
        let checks = checks(&fake.machine());
        assert_eq!(level(&checks, "raw sockets (AF_PACKET)"), Level::Missing);
        assert_eq!(level(&checks, "CAP_NET_ADMIN"), Level::Missing);
        assert_eq!(level(&checks, "network namespaces"), Level::Missing);
        assert_eq!(level(&checks, "cores"), Level::Warn);
        assert_eq!(level(&checks, "operating system"), Level::Warn);
    }
}
