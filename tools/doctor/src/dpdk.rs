//! Checks for DPDK: whether it is built in, hugepages, and NICs that it may drive.

use castnet_console::units::{bytes, plural};

use super::machine::Machine;
use super::{Check, Use};

/// Hugepages that a switch needs, and which switch that is.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    pub(crate) bytes: u64,
    pub(crate) of: String,
}

impl Need {
    pub(crate) fn text(&self) -> String {
        bytes(self.bytes.next_multiple_of(1 << 20))
    }
}

/// `version`: DPDK's, if it is built in. `need`: hugepages to compare with.
pub(crate) fn checks(machine: &Machine, version: Option<String>, need: Option<&Need>) -> Vec<Check> {
    let mut checks = vec![
        built_in(version),
        hugepages(machine, need),
        hugetlbfs(machine),
        iommu(machine),
        vfio(machine),
    ];
    checks.extend(nics(machine));
    checks
}

fn built_in(version: Option<String>) -> Check {
    let check = Check::of(Use::Dpdk, "DPDK");
    match version {
        Some(version) => check.ok(format!("built in: {version}")),
        None => check.missing(
            "not built in; ports of other kinds do without",
            "apt-get install libdpdk-dev, then cargo build --release -p castnet --features dpdk",
        ),
    }
}

/// Hugepages of one size on one NUMA node, or on a machine without NUMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) node: Option<u32>,
    pub(crate) page_bytes: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
}

/// All sizes, also those of which none is reserved.
pub(crate) fn pages(machine: &Machine) -> Vec<Pages> {
    const NODES: &str = "/sys/devices/system/node";
    let below = |folder: &str, node: Option<u32>| -> Vec<Pages> {
        let of = |name: String| {
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            let kib: u64 = kib.parse().ok()?;
            Some(Pages {
                node,
                page_bytes: kib << 10,
                reserved: machine.number(&format!("{folder}/{name}/nr_hugepages"))?,
                free: machine.number(&format!("{folder}/{name}/free_hugepages"))?,
            })
        };
        machine.names(folder).into_iter().filter_map(of).collect()
    };
    let nodes = machine.names(NODES);
    let nodes = nodes
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok());
    let mut all: Vec<_> = nodes
        .flat_map(|node: u32| below(&format!("{NODES}/node{node}/hugepages"), Some(node)))
        .collect();
    if all.is_empty() {
        all = below("/sys/kernel/mm/hugepages", None);
    }
    all.sort_by_key(|p| (p.page_bytes, p.node));
    all
}

/// For people.
fn listed(pages: &[Pages]) -> String {
    let reserved: Vec<_> = pages
        .iter()
        .filter(|p| p.reserved > 0)
        .map(|p| {
            let node = p.node.map_or_else(String::new, |n| format!(" on NUMA node {n}"));
            format!("{} of {}, {} free{node}", p.reserved, bytes(p.page_bytes), p.free)
        })
        .collect();
    match reserved.is_empty() {
        true => "none reserved".to_owned(),
        false => reserved.join("; "),
    }
}

/// Bytes of free hugepages.
pub(crate) fn free_bytes(pages: &[Pages]) -> u64 {
    pages.iter().map(|p| p.free * p.page_bytes).sum()
}

/// The command that reserves the missing part of `need` bytes.
pub(crate) fn reserve(pages: &[Pages], need: u64) -> String {
    const PAGE: u64 = 2 << 20;
    let missing = need.saturating_sub(free_bytes(pages)).div_ceil(PAGE);
    let two_mib = pages.iter().filter(|p| p.page_bytes == PAGE);
    let reserved: u64 = two_mib.map(|p| p.reserved).sum();
    format!(
        "sysctl -w vm.nr_hugepages={}; at each start: deploy/systemd/castnet-dpdk.service",
        reserved + missing
    )
}

fn hugepages(machine: &Machine, need: Option<&Need>) -> Check {
    let check = Check::of(Use::Dpdk, "hugepages");
    let pages = pages(machine);
    let found = listed(&pages);
    if pages.is_empty() {
        return check.warn(
            "this kernel has none",
            "use a kernel with CONFIG_HUGETLBFS; virtual devices do without: --hugepages no",
        );
    }
    // Usual need of a machine's NICs. Without DPDK built in, the real need is not known.
    const USUAL: u64 = 2 << 30;
    let bytes_needed = need.map_or(USUAL, |need| need.bytes);
    let found = match need {
        Some(need) => format!("{found}; {} needs {}", need.of, need.text()),
        None => found,
    };
    if free_bytes(&pages) >= bytes_needed {
        check.ok(found)
    } else {
        let advice = reserve(&pages, bytes_needed) + "; virtual devices do without: --hugepages no";
        check.warn(found, advice)
    }
}

fn hugetlbfs(machine: &Machine) -> Check {
    let mounts = machine.read("/proc/mounts").unwrap_or_default();
    let at = mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let at = fields.nth(1)?;
        (fields.next()? == "hugetlbfs").then(|| at.to_owned())
    });
    let found = match at {
        Some(at) => format!("mounted at {at}"),
        None => "not mounted, and not needed: Castnet takes hugepages without it; other DPDK programs want \
                 mount -t hugetlbfs none /dev/hugepages"
            .to_owned(),
    };
    Check::of(Use::Dpdk, "hugetlbfs").ok(found)
}

fn iommu(machine: &Machine) -> Check {
    let check = Check::of(Use::Dpdk, "IOMMU");
    let groups = machine.names("/sys/kernel/iommu_groups").len();
    let unsafe_mode = machine.read("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    if groups > 0 {
        return check.ok(plural(groups, "group"));
    }
    if unsafe_mode.is_some_and(|mode| mode == "Y" || mode == "1") {
        let advice = "good for a lab; else boot with intel_iommu=on iommu=pt (AMD: iommu=pt) and turn it on in the firmware";
        return check.warn(
            "none; vfio does without it: a NIC can write to all memory",
            advice,
        );
    }
    check.warn(
        "none: vfio-pci takes no NIC",
        "boot with intel_iommu=on iommu=pt (AMD: iommu=pt); in a lab without one: \
         modprobe vfio enable_unsafe_noiommu_mode=1. mlx5 and virtual devices need none",
    )
}

fn vfio(machine: &Machine) -> Check {
    let check = Check::of(Use::Dpdk, "vfio-pci");
    if machine.has("/sys/bus/pci/drivers/vfio-pci") {
        return check.ok("loaded");
    }
    check.warn(
        "not loaded",
        "modprobe vfio-pci, for NICs that DPDK takes from the kernel; mlx5 and virtual devices do not need it",
    )
}

/// Drivers by which DPDK and the kernel share a device.
const SHARED: &[&str] = &["mlx5_core", "mlx4_core", "mana"];
/// Drivers by which DPDK has a device for itself.
const TAKEN: &[&str] = &["vfio-pci", "uio_pci_generic", "igb_uio"];

/// How a PCI device is driven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nic {
    Absent,
    /// By this driver, for DPDK and the kernel at the same time.
    Shared(String),
    /// By this driver, for DPDK alone.
    Taken(String),
    /// By this driver of the kernel.
    Kernels(String),
    Unbound,
}

/// The PCI address may lack its domain.
pub(crate) fn nic(machine: &Machine, address: &str) -> Nic {
    let folder = folder(address);
    if !machine.has(&folder) {
        return Nic::Absent;
    }
    match machine.link(&format!("{folder}/driver")) {
        None => Nic::Unbound,
        Some(driver) if SHARED.contains(&driver.as_str()) => Nic::Shared(driver),
        Some(driver) if TAKEN.contains(&driver.as_str()) => Nic::Taken(driver),
        Some(driver) => Nic::Kernels(driver),
    }
}

fn folder(address: &str) -> String {
    let has_domain = address.matches(':').count() > 1;
    let domain = if has_domain { "" } else { "0000:" };
    format!("/sys/bus/pci/devices/{domain}{}", address.to_lowercase())
}

pub(crate) fn node_of(machine: &Machine, address: &str) -> Option<u32> {
    let node = machine.read(&format!("{}/numa_node", folder(address)))?;
    node.parse().ok()
}

/// Interfaces of a device, in brackets.
fn interfaces(machine: &Machine, address: &str) -> String {
    let folder = folder(address);
    let mut names = machine.names(&format!("{folder}/net"));
    // Interfaces of virtio are one level below.
    for child in machine.names(&folder).iter().filter(|n| n.starts_with("virtio")) {
        names.extend(machine.names(&format!("{folder}/{child}/net")));
    }
    match names.is_empty() {
        true => String::new(),
        false => format!(" ({})", names.join(", ")),
    }
}

/// A machine of many virtual functions has hundreds.
const NICS_SHOWN_MAX: usize = 16;

fn nics(machine: &Machine) -> Vec<Check> {
    let is_network = |address: &String| {
        let class = machine.read(&format!("{}/class", folder(address)));
        class.is_some_and(|class| class.starts_with("0x02"))
    };
    let nics: Vec<_> = machine
        .names("/sys/bus/pci/devices")
        .into_iter()
        .filter(is_network)
        .collect();
    let mut checks: Vec<_> = nics
        .iter()
        .take(NICS_SHOWN_MAX)
        .map(|address| {
            let interfaces = interfaces(machine, address);
            let node = node_of(machine, address).map_or_else(String::new, |n| format!(", NUMA node {n}"));
            let found = match nic(machine, address) {
                Nic::Taken(driver) => format!("{driver}: ready as dpdk:{address}"),
                Nic::Shared(driver) => {
                    format!("{driver}{interfaces}: ready as dpdk:{address}, the kernel keeps it as well")
                }
                Nic::Kernels(driver) => format!(
                    "{driver}{interfaces}: the kernel's. For DPDK: dpdk-devbind.py -b vfio-pci {address}"
                ),
                Nic::Unbound | Nic::Absent => {
                    format!("no driver. For DPDK: dpdk-devbind.py -b vfio-pci {address}")
                }
            };
            Check::of(Use::Dpdk, format!("NIC {address}")).ok(found + &node)
        })
        .collect();
    if nics.is_empty() {
        checks.push(
            Check::of(Use::Dpdk, "NICs").ok(
                "none on the PCI bus; virtual devices (net_memif, net_af_xdp, net_pcap) are there always",
            ),
        );
    }
    if nics.len() > NICS_SHOWN_MAX {
        let more = nics.len() - NICS_SHOWN_MAX;
        checks.push(Check::of(Use::Dpdk, "more NICs").ok(format!("{more} were not looked at")));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::machine::tests::Fake;

    fn need(mib: u64) -> Need {
        Need {
            bytes: mib << 20,
            of: "a switch of two NICs".to_owned(),
        }
    }

    fn find<'a>(checks: &'a [Check], what: &str) -> &'a Check {
        let check = checks.iter().find(|c| c.what == what);
        check.unwrap_or_else(|| panic!("no check {what}"))
    }

    #[test]
    fn a_machine_that_is_ready_for_dpdk() {
        let fake = Fake::new(&[
            (
                "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
                "512\n",
            ),
            (
                "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages",
                "500\n",
            ),
            (
                "sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages",
                "1\n",
            ),
            (
                "sys/devices/system/node/node1/hugepages/hugepages-1048576kB/free_hugepages",
                "1\n",
            ),
            (
                "proc/mounts",
                "proc /proc proc rw 0 0\nhugetlbfs /dev/hugepages hugetlbfs rw 0 0\n",
            ),
            ("sys/kernel/iommu_groups/0/x", ""),
            ("sys/bus/pci/drivers/vfio-pci/x", ""),
            ("sys/bus/pci/devices/0000:3b:00.0/class", "0x020000\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n"),
            ("sys/bus/pci/devices/0000:00:01.0/class", "0x030000\n"),
        ]);
        fake.link(
            "sys/bus/pci/devices/0000:3b:00.0/driver",
            "../../drivers/vfio-pci",
        );
        let checks = checks(&fake.machine(), Some("DPDK 22.11".to_owned()), Some(&need(1500)));
        for check in &checks {
            assert_eq!(check.level, Level::Ok, "{check:?}");
        }
        let pages = &find(&checks, "hugepages").found;
        assert!(
            pages.contains("512 of 2 MiB, 500 free on NUMA node 0; 1 of 1 GiB, 1 free on NUMA node 1"),
            "{pages}"
        );
        let nic = &find(&checks, "NIC 0000:3b:00.0").found;
        assert_eq!(nic, "vfio-pci: ready as dpdk:0000:3b:00.0, NUMA node 1");
        assert!(!checks.iter().any(|c| c.what.contains("00:01.0")), "no NIC");
    }

    #[test]
    fn what_is_missing_comes_with_the_command() {
        let fake = Fake::new(&[
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "100\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "40\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/class", "0x020000\n"),
            ("sys/bus/pci/devices/0000:3b:00.0/net/eth3/mtu", "1500\n"),
        ]);
        fake.link("sys/bus/pci/devices/0000:3b:00.0/driver", "../../drivers/ice");
        let checks = checks(&fake.machine(), None, Some(&need(100)));
        assert_eq!(find(&checks, "DPDK").level, Level::Missing);
        let pages = find(&checks, "hugepages");
        // 80 of 100 MiB are free, so ten pages more than are reserved.
        assert!(
            pages.level == Level::Warn && pages.advice.starts_with("sysctl -w vm.nr_hugepages=110;"),
            "{pages:?}"
        );
        assert_eq!(find(&checks, "IOMMU").level, Level::Warn);
        assert_eq!(find(&checks, "vfio-pci").level, Level::Warn);
        let nic = &find(&checks, "NIC 0000:3b:00.0").found;
        assert!(
            nic.contains("ice (eth3)") && nic.contains("-b vfio-pci 0000:3b:00.0"),
            "{nic}"
        );
        assert_eq!(nic_of(&fake, "3b:00.0"), Nic::Kernels("ice".to_owned()));
        assert_eq!(nic_of(&fake, "3b:00.1"), Nic::Absent);
    }

    fn nic_of(fake: &Fake, address: &str) -> Nic {
        nic(&fake.machine(), address)
    }

    #[test]
    fn without_an_iommu_vfio_may_be_told_to_do_without() {
        let fake = Fake::new(&[("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n")]);
        let check = iommu(&fake.machine());
        assert!(check.level == Level::Warn && check.found.contains("all memory"));
        assert_eq!(hugepages(&fake.machine(), None).level, Level::Warn);
    }
}
