//! The kernel's files about RDMA devices: GIDs, interfaces and counters.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use castnet_wire::MacAddr;

/// A used entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index of the GID.
    pub index: u8,
    /// The GID.
    pub gid: Ipv6Addr,
    /// True for RoCEv2, false for RoCEv1 or InfiniBand.
    pub is_roce_v2: bool,
    /// The interface of the GID.
    pub interface: Option<String>,
}

impl GidEntry {
    /// The IPv4 address that the GID contains, if any.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.gid.to_ipv4_mapped()
    }
}

/// The root folder of the kernel's files. Tests use another one.
#[derive(Clone, Debug)]
pub(super) struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self(PathBuf::from("/sys"))
    }
}

impl Sysfs {
    #[cfg(test)]
    pub(super) fn below(root: &Path) -> Self {
        Self(root.to_owned())
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        // Unused entries of the GID table return an error.
        let text = fs::read_to_string(self.0.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The kernel's RDMA devices, with or without a driver in the library.
    pub(super) fn devices(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.join("class/infiniband"))
            .into_iter()
            .flatten();
        let mut names: Vec<_> = entries
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub(super) fn gids(&self, device: &str, port: u8, count: usize) -> Vec<GidEntry> {
        let port = format!("class/infiniband/{device}/ports/{port}");
        let entry = |index: u8| {
            let gid: Ipv6Addr = self.read(format!("{port}/gids/{index}"))?.parse().ok()?;
            let kind = self.read(format!("{port}/gid_attrs/types/{index}"))?;
            (!gid.is_unspecified()).then(|| GidEntry {
                index,
                gid,
                is_roce_v2: kind == "RoCE v2",
                interface: self.read(format!("{port}/gid_attrs/ndevs/{index}")),
            })
        };
        (0..=u8::MAX).take(count).filter_map(entry).collect()
    }

    pub(super) fn interface(&self, name: &str) -> Option<(MacAddr, usize)> {
        let mac = self.read(format!("class/net/{name}/address"))?.parse().ok()?;
        let mtu = self.read(format!("class/net/{name}/mtu"))?.parse().ok()?;
        Some((mac, mtu))
    }

    /// The counters of a port by name: those of the hardware, or of rxe.
    pub(super) fn counters(&self, device: &str, port: u8) -> BTreeMap<String, u64> {
        let folder = self
            .0
            .join(format!("class/infiniband/{device}/ports/{port}/hw_counters"));
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let value = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
                Some((entry.file_name().to_string_lossy().into_owned(), value))
            })
            .collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The files of rxe0 on an interface with 10.0.0.1 and MTU 1500.
    pub(in crate::verbs) fn rxe0() -> (tempfile::TempDir, Sysfs) {
        let folder = tempfile::tempdir().expect("a folder");
        let port = "class/infiniband/rxe0/ports/1";
        let files = [
            (
                format!("{port}/gids/0"),
                "fe80:0000:0000:0000:5054:00ff:fe00:0001\n",
            ),
            (
                format!("{port}/gids/1"),
                "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
            ),
            (
                format!("{port}/gids/2"),
                "0000:0000:0000:0000:0000:0000:0000:0000\n",
            ),
            (
                format!("{port}/gids/3"),
                "0000:0000:0000:0000:0000:ffff:0a00:0002\n",
            ),
            (format!("{port}/gid_attrs/types/0"), "RoCE v2\n"),
            (format!("{port}/gid_attrs/types/1"), "RoCE v2\n"),
            (format!("{port}/gid_attrs/types/3"), "IB/RoCE v1\n"),
            (format!("{port}/gid_attrs/ndevs/1"), "eth0\n"),
            (format!("{port}/hw_counters/sent_pkts"), "17\n"),
            ("class/net/eth0/address".to_owned(), "52:54:00:00:00:01\n"),
            ("class/net/eth0/mtu".to_owned(), "1500\n"),
        ];
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        let sysfs = Sysfs::below(folder.path());
        (folder, sysfs)
    }

    #[test]
    fn the_gid_table_has_addresses_kinds_and_interfaces() {
        let (_folder, sysfs) = rxe0();
        assert_eq!(sysfs.devices(), ["rxe0"]);
        let gids = sysfs.gids("rxe0", 1, 1024);
        let seen: Vec<_> = gids.iter().map(|g| (g.index, g.ipv4(), g.is_roce_v2)).collect();
        let ip = |last| Some(Ipv4Addr::new(10, 0, 0, last));
        assert_eq!(seen, [(0, None, true), (1, ip(1), true), (3, ip(2), false)]);
        assert_eq!(gids[1].interface.as_deref(), Some("eth0"));
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
        assert_eq!(sysfs.interface("eth0"), Some((mac, 1500)));
        assert_eq!(sysfs.counters("rxe0", 1).get("sent_pkts"), Some(&17));
    }

    #[test]
    fn a_machine_without_rdma_has_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let sysfs = Sysfs::below(folder.path());
        assert!(sysfs.devices().is_empty());
        assert!(sysfs.gids("rxe0", 1, 16).is_empty() && sysfs.interface("eth0").is_none());
        assert!(sysfs.counters("rxe0", 1).is_empty());
    }
}
