//! Checks of a switch's configuration against this machine: does it start, and run as meant?

use std::collections::BTreeMap;

use castnet_console::units::{bytes, plural};
use castnet_port::memif::{Address, MemifSpec, Role};
use castnet_port::{DpdkSpec, PortSpec};
use castnet_switch::dpdk::Hugepages;
use castnet_worker::{DataplaneConfig, Idle};

use super::cpu::siblings_of;
use super::dpdk::{Need, Nic, free_bytes, nic, node_of, pages, reserve};
use super::machine::{Machine, allowed, cores, online};
use super::{Check, Use};

/// `need` is DPDK's, where it is `built_in` and used.
pub(crate) fn checks(
    machine: &Machine,
    config: &DataplaneConfig,
    hugepages: Hugepages,
    built_in: bool,
    need: Option<&Need>,
) -> Vec<Check> {
    let mut checks = workers(machine, config);
    for port in &config.ports {
        checks.push(port_check(machine, &port.name, &port.spec));
        if let Some(spec) = port.spec.dpdk() {
            if !built_in {
                let what = format!("port {}: DPDK", port.name);
                let advice = "cargo build --release -p castnet --features dpdk (docs/dpdk.md)";
                checks.push(Check::of(Use::File, what).missing("not built in", advice));
            }
            checks.extend(queues(&port.name, spec, config.workers.len()));
        }
    }
    checks.extend(without_port(config));
    checks.extend(numa(machine, config));
    if let Some(need) = need {
        checks.push(memory(machine, config, hugepages, need));
    }
    checks
}

fn workers(machine: &Machine, config: &DataplaneConfig) -> Vec<Check> {
    let (online, allowed) = (online(machine), allowed(machine));
    let busy = config.workers.iter().any(|w| w.idle == Idle::Busy);
    let mut checks = Vec::new();
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    for (index, core) in config.workers.iter().enumerate() {
        let check = Check::of(Use::File, format!("worker {index}"));
        let Some(core) = core.core else {
            checks.push(match busy && config.workers.len() > 1 {
                true => check.warn(
                    "on any core, which it keeps busy all the time",
                    "give each worker its core: --worker core=N",
                ),
                false => check.ok("on any core"),
            });
            continue;
        };
        let among = |list: &Option<Vec<usize>>| list.as_ref().is_none_or(|list| list.contains(&core));
        let there = online.as_ref().map_or(0, Vec::len);
        let shared = taken
            .iter()
            .find(|(other, _)| siblings_of(machine, core).contains(other));
        checks.push(if !among(&online) {
            let found = format!("core {core} is not there; {} are online", plural(there, "core"));
            check.missing(found, "--worker core=N, with one of lscpu --extended")
        } else if !among(&allowed) {
            let advice = "see taskset -pc $$, and what started this shell";
            check.missing(format!("core {core} is not allowed for this process"), advice)
        } else if let Some(other) = taken.get(&core) {
            let found = format!("core {core} is worker {other}'s already");
            check.missing(found, "give each worker a core of its own")
        } else if let Some((core_of_other, other)) = shared {
            let found =
                format!("core {core} is a hardware thread beside core {core_of_other} of worker {other}");
            let advice = "two workers on one processor core are hardly faster than one: take another core";
            check.warn(found, advice)
        } else {
            check.ok(format!("core {core}"))
        });
        taken.entry(core).or_insert(index);
    }
    checks
}

fn port_check(machine: &Machine, name: &str, spec: &PortSpec) -> Check {
    let check = Check::of(Use::File, format!("port {name}"));
    match spec {
        PortSpec::Marking(inner, _) | PortSpec::Faulty(inner, _) | PortSpec::Pfc(inner, _) => {
            port_check(machine, name, inner)
        }
        PortSpec::AfPacket(packet) => interface(machine, check, &packet.interface),
        PortSpec::Dpdk(spec) => device(machine, check, spec),
        PortSpec::Memif(link) => memif(machine, check, link),
        PortSpec::Pcap(files) => match &files.input {
            Some(path) if !machine.has(&path.to_string_lossy()) => {
                no_file(check, &path.display().to_string())
            }
            _ => check.ok(spec.to_string()),
        },
        other => check.ok(other.to_string()),
    }
}

/// A server makes its socket in a folder; a client connects when there is one.
fn memif(machine: &Machine, check: Check, link: &MemifSpec) -> Check {
    if let (Role::Server, Address::Path(path)) = (link.role(), &link.address)
        && let Some(folder) = path.parent().filter(|f| f.is_absolute())
        && !machine.has(&folder.to_string_lossy())
    {
        let (found, advice) = (
            folder.display(),
            "install -d -m 0755 that folder, or RuntimeDirectory= of the unit",
        );
        return check.missing(format!("no folder {found} for its socket"), advice);
    }
    check.ok(format!("memif:{link}"))
}

fn no_file(check: Check, path: &str) -> Check {
    let advice = "give the path from the folder that the switch runs in";
    check.missing(format!("no file {path}"), advice)
}

fn interface(machine: &Machine, check: Check, name: &str) -> Check {
    let folder = format!("/sys/class/net/{name}");
    if !machine.has(&folder) {
        let found = format!("no interface {name} in this network namespace");
        return check.missing(found, "ip link lists those there are");
    }
    match machine.read(&format!("{folder}/operstate")).as_deref() {
        Some("down" | "lowerlayerdown") => check.warn(
            format!("interface {name} is down"),
            format!("ip link set {name} up, and see the cable"),
        ),
        _ => check.ok(format!("interface {name}")),
    }
}

fn device(machine: &Machine, check: Check, spec: &DpdkSpec) -> Check {
    let address = &spec.device;
    if !spec.is_pci() {
        return virtual_device(machine, check, spec);
    }
    let bind = format!("dpdk-devbind.py -b vfio-pci {address} (deploy/README.md)");
    match nic(machine, address) {
        Nic::Absent => check.missing(
            format!("no device {address} on the PCI bus"),
            "dpdk-devbind.py --status-dev net lists those there are",
        ),
        Nic::Taken(driver) | Nic::Shared(driver) => check.ok(format!("{address}, driver {driver}")),
        Nic::Kernels(driver) => check.missing(format!("{address} is the kernel's, by driver {driver}"), bind),
        Nic::Unbound => check.missing(format!("{address} has no driver"), bind),
    }
}

/// AF_XDP needs its interface, and pcap its input. DPDK creates all other virtual devices.
fn virtual_device(machine: &Machine, check: Check, spec: &DpdkSpec) -> Check {
    let argument = |key: &str| {
        let mut given = spec.arguments.split(',').filter_map(|a| a.split_once('='));
        given.find(|(k, _)| *k == key).map(|(_, value)| value)
    };
    if let Some(name) = argument("iface").filter(|_| spec.device.starts_with("net_af_")) {
        return interface(machine, check, name);
    }
    if let Some(path) = argument("rx_pcap").filter(|path| !machine.has(path)) {
        return no_file(check, path);
    }
    check.ok(format!("virtual device {}", spec.device))
}

fn queues(name: &str, spec: &DpdkSpec, workers: usize) -> Option<Check> {
    (spec.queues > workers).then(|| {
        let found = format!(
            "{} for {}",
            plural(spec.queues, "receive queue"),
            plural(workers, "worker")
        );
        let advice = format!("queues={workers}: more than workers cost memory and gain nothing");
        Check::of(Use::File, format!("port {name}: queues")).warn(found, advice)
    })
}

/// Workers without a receive queue: they only get frames from other workers.
fn without_port(config: &DataplaneConfig) -> Option<Check> {
    let workers = config.workers.len();
    let idle: Vec<_> = (0..workers)
        .filter(|worker| {
            let receives = |(place, port): (usize, &castnet_worker::PortConfig)| {
                // Workers take the first queues of a port in turn; further queues go to the workers after.
                let rank = (worker + workers - place % workers) % workers;
                rank < port.spec.receivers()
            };
            !config.ports.iter().enumerate().any(receives)
        })
        .map(|worker| worker.to_string())
        .collect();
    (!idle.is_empty()).then(|| {
        let found = format!(
            "of worker {}: none of a port; it gets frames only from other workers",
            idle.join(", ")
        );
        let advice = "give a DPDK port queues=N, or take fewer workers";
        Check::of(Use::File, "queues").warn(found, advice)
    })
}

/// NICs and the workers that receive from them should be on one NUMA node.
fn numa(machine: &Machine, config: &DataplaneConfig) -> Vec<Check> {
    const NODES: &str = "/sys/devices/system/node";
    let core_node = |core: usize| {
        let nodes = machine.names(NODES);
        nodes.into_iter().find_map(|name| {
            let node: u32 = name.strip_prefix("node")?.parse().ok()?;
            let list = machine.read(&format!("{NODES}/{name}/cpulist"))?;
            cores(&list)?.contains(&core).then_some(node)
        })
    };
    let mut checks = Vec::new();
    for (place, port) in config.ports.iter().enumerate() {
        let Some(spec) = port.spec.dpdk().filter(|spec| spec.is_pci()) else {
            continue;
        };
        let worker = place % config.workers.len().max(1);
        let core = config.workers.get(worker).and_then(|w| w.core);
        let (Some(core), Some(device)) = (core, node_of(machine, &spec.device)) else {
            continue;
        };
        if let Some(node) = core_node(core).filter(|node| *node != device) {
            let found = format!("NIC on node {device}, its worker {worker} (core {core}) on node {node}");
            let advice = format!("each frame crosses between nodes: take a core of node {device} (lscpu)");
            checks.push(Check::of(Use::File, format!("port {}: NUMA", port.name)).warn(found, advice));
        }
    }
    checks
}

fn memory(machine: &Machine, config: &DataplaneConfig, hugepages: Hugepages, need: &Need) -> Check {
    let check = Check::of(Use::File, "hugepages for it");
    let nics = config
        .ports
        .iter()
        .filter_map(|p| p.spec.dpdk())
        .any(DpdkSpec::is_pci);
    let pages = pages(machine);
    let free = free_bytes(&pages);
    let found = format!("{} needed, {} free", need.text(), bytes(free));
    match hugepages {
        Hugepages::No if nics => check.warn(
            "hugepages = \"no\", but most NICs need them",
            "hugepages = \"auto\"",
        ),
        Hugepages::No => check.ok("none are asked for"),
        _ if free >= need.bytes => check.ok(found),
        Hugepages::Auto if !nics => check.warn(
            format!("{found}: buffers will be in ordinary memory, which is slower"),
            reserve(&pages, need.bytes),
        ),
        _ => check.missing(found, reserve(&pages, need.bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::PortId;
    use castnet_worker::{PortConfig, WorkerConfig};

    use crate::Level;
    use crate::machine::tests::Fake;

    fn config(ports: &[(&str, &str)], cores: &[Option<usize>]) -> DataplaneConfig {
        let port = |(n, (name, spec)): (usize, &(&str, &str))| {
            let id = PortId::new(n as u8).expect("a number");
            PortConfig::new(id, *name, spec.parse::<PortSpec>().expect("a port"))
        };
        let mut config = DataplaneConfig::new("s", ports.iter().enumerate().map(port).collect());
        config.workers = cores
            .iter()
            .map(|core| WorkerConfig {
                core: *core,
                idle: Idle::Busy,
            })
            .collect();
        config
    }

    fn machine() -> Fake {
        let fake = Fake::new(&[
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("proc/self/status", "Cpus_allowed_list:\t0-2\n"),
            (
                "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
                "0,2\n",
            ),
            (
                "sys/devices/system/cpu/cpu2/topology/thread_siblings_list",
                "0,2\n",
            ),
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node1/cpulist", "2-3\n"),
            ("sys/class/net/eth1/operstate", "up\n"),
            ("sys/class/net/eth2/operstate", "down\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n"),
            ("sys/bus/pci/devices/0000:3b:00.1/numa_node", "1\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "64\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "64\n"),
            ("in.pcap", ""),
        ]);
        fake.link("sys/bus/pci/devices/0000:3b:00.0/driver", "../drivers/mlx5_core");
        fake.link("sys/bus/pci/devices/0000:3b:00.1/driver", "../drivers/ixgbe");
        fake
    }

    fn level(checks: &[Check], what: &str) -> Level {
        let check = checks.iter().find(|c| c.what == what);
        check
            .unwrap_or_else(|| panic!("no check {what} in {checks:?}"))
            .level
    }

    #[test]
    fn cores_are_there_allowed_and_nobody_elses() {
        let fake = machine();
        let at = |cores: &[Option<usize>]| workers(&fake.machine(), &config(&[], cores));
        let checks = at(&[Some(0), Some(1), Some(2), Some(3), Some(9), Some(1), None]);
        let levels: Vec<_> = checks.iter().map(|c| c.level).collect();
        use Level::{Missing, Ok, Warn};
        // 2 is a thread of 0's core, 3 is not allowed, 9 is not there, 1 is taken, and the last spins anywhere.
        assert_eq!(levels, [Ok, Ok, Warn, Missing, Missing, Missing, Warn]);
        assert!(checks[4].found.contains("4 cores are online"), "{:?}", checks[4]);
    }

    #[test]
    fn ports_are_looked_for_where_their_kind_is() {
        let ports = [
            ("up", "af_packet:eth1,loss=1%"),
            ("down", "af_packet:eth2"),
            ("gone", "af_packet:eth3"),
            ("shared", "dpdk:3b:00.0"),
            ("kernels", "dpdk:0000:3b:00.1"),
            ("absent", "dpdk:0000:af:00.0"),
            ("file", "dpdk:net_pcap0,rx_pcap=in.pcap"),
            ("nofile", "dpdk:net_pcap1,rx_pcap=out.pcap"),
            ("xdp", "dpdk:net_af_xdp0,iface=eth3"),
            ("null", "dpdk:net_null0"),
            ("pcap", "pcap:gone.pcap"),
            ("nofolder", "memif:/no/such/folder/s"),
            ("client", "memif:/no/such/folder/s,role=client"),
        ];
        let fake = machine();
        let checks = checks(
            &fake.machine(),
            &config(&ports, &[Some(0)]),
            Hugepages::Auto,
            true,
            None,
        );
        for (name, expected) in [
            ("up", Level::Ok),
            ("down", Level::Warn),
            ("gone", Level::Missing),
            ("shared", Level::Ok),
            ("nofolder", Level::Missing),
            ("client", Level::Ok),
            ("kernels", Level::Missing),
            ("absent", Level::Missing),
            ("file", Level::Ok),
            ("nofile", Level::Missing),
            ("xdp", Level::Missing),
            ("null", Level::Ok),
            ("pcap", Level::Missing),
        ] {
            assert_eq!(level(&checks, &format!("port {name}")), expected, "{name}");
        }
        assert_eq!(
            level(&checks, "port shared: NUMA"),
            Level::Warn,
            "core 0 is on node 0"
        );
        for check in &checks {
            assert_eq!(check.level == Level::Ok, check.advice.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn queues_go_with_workers() {
        let fake = machine();
        let with = |ports: &[(&str, &str)], workers: usize| {
            let config = super::tests::config(ports, &vec![None; workers]);
            checks(&fake.machine(), &config, Hugepages::Auto, true, None)
        };
        let many = with(&[("a", "dpdk:net_null0,queues=4")], 2);
        assert_eq!(level(&many, "port a: queues"), Level::Warn);
        let few = with(&[("a", "dpdk:net_null0"), ("b", "dpdk:net_null1")], 3);
        assert!(
            few.iter()
                .any(|c| c.what == "queues" && c.found.contains("worker 2"))
        );
        let config = config(&[("a", "dpdk:net_null0")], &[None]);
        let bare = checks(&fake.machine(), &config, Hugepages::Auto, false, None);
        assert_eq!(level(&bare, "port a: DPDK"), Level::Missing);
        let right = with(&[("a", "dpdk:net_null0,queues=2")], 2);
        assert!(!right.iter().any(|c| c.what.contains("queues")));
    }

    #[test]
    fn hugepages_must_be_enough_where_nics_need_them() {
        let fake = machine();
        let memory = |port: &str, hugepages, mib: u64| {
            let need = Need {
                bytes: mib << 20,
                of: String::new(),
            };
            super::memory(
                &fake.machine(),
                &config(&[("p", port)], &[None]),
                hugepages,
                &need,
            )
        };
        let (nic, made_up) = ("dpdk:0000:3b:00.0", "dpdk:net_null0");
        assert_eq!(memory(nic, Hugepages::Auto, 128).level, Level::Ok);
        let missing = memory(nic, Hugepages::Auto, 200);
        assert!(
            missing.level == Level::Missing && missing.advice.contains("vm.nr_hugepages=100;"),
            "{missing:?}"
        );
        assert_eq!(memory(made_up, Hugepages::Auto, 200).level, Level::Warn);
        assert_eq!(memory(made_up, Hugepages::Yes, 200).level, Level::Missing);
        assert_eq!(memory(made_up, Hugepages::No, 200).level, Level::Ok);
        assert_eq!(memory(nic, Hugepages::No, 1).level, Level::Warn);
    }
}
