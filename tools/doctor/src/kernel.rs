//! Checks of processor, memory, clock and privileges.

use std::net::TcpListener;

use castnet_console::units::bytes;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::machine::{Machine, allowed, online};
use super::{Check, Use};

/// In the order of the table.
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
    let check = Check::of(Use::Demo, "operating system");
    match machine.read("/proc/sys/kernel/osrelease") {
        Some(release) => check.ok(format!("Linux {release}")),
        None => check.warn(
            "/proc is not there, or this is not Linux",
            "mount /proc; Castnet is built for Linux",
        ),
    }
}

/// More than the demo needs for buffers, rings and files.
const MEMORY_BYTES_MIN: u64 = 1 << 30;

fn memory(machine: &Machine) -> Check {
    let check = Check::of(Use::Demo, "memory");
    let available = machine
        .field("/proc/meminfo", "MemAvailable")
        .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
        .map(|kib| kib * 1024);
    match available {
        Some(n) if n >= MEMORY_BYTES_MIN => check.ok(format!("{} free", bytes(n))),
        Some(n) => check.warn(
            format!("{} free", bytes(n)),
            "end other programs, or give the demo a smaller --size",
        ),
        None => check.warn("cannot be told", "mount /proc"),
    }
}

fn loopback(machine: &Machine) -> Check {
    let check = Check::of(Use::Demo, "loopback TCP");
    let bound = machine.real.then(|| TcpListener::bind(("127.0.0.1", 0)));
    match bound.transpose() {
        Ok(_) => check.ok("a port of 127.0.0.1 can be opened"),
        Err(error) => check.missing(
            error.to_string(),
            "ip link set lo up: controller and agents use 127.0.0.1",
        ),
    }
}

fn cores(machine: &Machine) -> Check {
    let check = Check::of(Use::Demo, "cores");
    let allowed = allowed(machine).or_else(|| online(machine));
    match allowed.map(|cores| cores.len()) {
        Some(n) if n >= 4 => check.ok(format!("{n} that this process may use")),
        Some(n) => check.warn(
            format!("{n} that this process may use"),
            "leave --idle adaptive: with --idle busy each worker takes a core for itself",
        ),
        None => check.warn("cannot be told", "mount /proc and /sys"),
    }
}

/// In the effective capability set.
pub(crate) const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;

pub(crate) fn has_capability(machine: &Machine, bit: u32) -> bool {
    let set = machine
        .field("/proc/self/status", "CapEff")
        .and_then(|s| u64::from_str_radix(&s, 16).ok());
    set.is_some_and(|set| set >> bit & 1 == 1)
}

fn raw_sockets(machine: &Machine) -> Check {
    let check = Check::of(Use::Switch, "raw sockets (AF_PACKET)");
    let advice = "run as root, or: setcap cap_net_raw+ep \"$(command -v castnet)\"";
    let tried = if machine.real {
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).map(|_| ())
    } else if has_capability(machine, CAP_NET_RAW) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    };
    match tried {
        Ok(()) => check.ok("can be opened"),
        Err(Errno::EPERM | Errno::EACCES) => check.missing("not permitted: no CAP_NET_RAW", advice),
        Err(Errno::EAFNOSUPPORT) => check.missing("this kernel has no AF_PACKET", "modprobe af_packet"),
        Err(error) => check.missing(error.desc(), advice),
    }
}

fn net_admin(machine: &Machine) -> Check {
    let check = Check::of(Use::Lab, "CAP_NET_ADMIN");
    if has_capability(machine, CAP_NET_ADMIN) {
        check.ok("held: interfaces can be made and set up")
    } else {
        check.missing(
            "not held",
            "run the lab as root; a switch on interfaces that are there does not need it",
        )
    }
}

fn namespaces(machine: &Machine) -> Check {
    let check = Check::of(Use::Lab, "network namespaces");
    match (machine.has("/proc/self/ns/net"), machine.has_program("ip")) {
        (true, true) => check.ok("the kernel has them, and there is `ip`"),
        (true, false) => check.missing("no program `ip`", "install iproute2 (deploy/lab uses ip netns)"),
        (false, _) => check.missing(
            "this kernel has none",
            "use a kernel with CONFIG_NET_NS, or separate machines",
        ),
    }
}

fn pinning(machine: &Machine) -> Check {
    let check = Check::of(Use::Speed, "pinning to cores");
    let count = |cores: Option<Vec<usize>>| cores.map(|cores| cores.len());
    match (count(allowed(machine)), count(online(machine))) {
        (Some(allowed), Some(online)) if allowed < online => check.warn(
            format!("only {allowed} of {online} cores are allowed here"),
            "give --worker core=N only cores of this list: taskset -pc $$",
        ),
        (Some(_), _) => check.ok("all cores are allowed: --worker core=N"),
        _ => check.warn("cannot be told", "mount /proc"),
    }
}

fn carry_less(machine: &Machine) -> Check {
    let check = Check::of(Use::Speed, "fast ICRC");
    let flags = machine
        .field("/proc/cpuinfo", "flags")
        .or_else(|| machine.field("/proc/cpuinfo", "Features"));
    let fast = ["pclmulqdq", "pmull", "crc32"];
    match flags {
        Some(flags) => match flags.split_whitespace().find(|f| fast.contains(f)) {
            Some(flag) => check.ok(format!("the processor has {flag}")),
            None => check.warn(
                "the processor has no carry-less multiplication",
                "use a newer processor, or let the virtual machine see the host's: -cpu host",
            ),
        },
        None => check.warn("cannot be told", "mount /proc"),
    }
}

fn clock(machine: &Machine) -> Check {
    let check = Check::of(Use::Speed, "clock source");
    match machine.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        Some(source) if ["tsc", "arch_sys_counter", "kvm-clock"].contains(&source.as_str()) => {
            check.ok(format!("{source}: read without a system call"))
        }
        Some(source) => check.warn(
            format!("{source}: slow to read"),
            "boot with clocksource=tsc tsc=reliable if the processor's counter is steady",
        ),
        None => check.warn("cannot be told", "mount /sys"),
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
