//! NUMA: the node of an RNIC, and the processors of a node, from `/sys`.

use std::fs;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where the kernel reports devices and nodes.
pub const SYS: &str = "/sys";

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Numbers of a list as the kernel writes it, such as `0-3,8`. `None` if it is none.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.trim().parse::<u32>().ok()?, to.trim().parse::<u32>().ok()?);
        // More than any machine has: not a list of the kernel.
        if from > to || to > 1 << 16 {
            return None;
        }
        all.extend(from..=to);
    }
    Some(all)
}

/// The node of a device, if the machine below `sys` has several nodes and knows the device's.
fn node_of(sys: &Path, device: &Path) -> Option<u32> {
    let online = list(&read(&sys.join("devices/system/node/online"))?)?;
    // -1: not known, as for virtual devices.
    let node = read(&device.join("device/numa_node"))?.parse::<u32>().ok()?;
    (online.len() > 1 && online.contains(&node)).then_some(node)
}

/// The node of a network interface. `None` on a machine of one node, and for virtual interfaces.
pub fn node_of_interface(sys: &Path, interface: &str) -> Option<u32> {
    node_of(sys, &sys.join("class/net").join(interface))
}

/// The node of an RDMA device such as `mlx5_0`, as [`node_of_interface`].
pub fn node_of_rdma_device(sys: &Path, device: &str) -> Option<u32> {
    node_of(sys, &sys.join("class/infiniband").join(device))
}

fn processors(sys: &Path, node: u32) -> Option<Vec<u32>> {
    list(&read(
        &sys.join(format!("devices/system/node/node{node}/cpulist")),
    )?)
}

/// Lets this thread run only on the processors of a node, of those on which it may run. Without any in common it changes nothing.
/// Returns true if it has been placed.
pub(crate) fn place_thread(sys: &Path, node: u32) -> bool {
    let (Some(processors), Ok(allowed)) = (processors(sys, node), sched_getaffinity(Pid::from_raw(0))) else {
        return false;
    };
    let mut set = CpuSet::new();
    let mut is_empty = true;
    for processor in processors {
        let processor = processor as usize;
        if allowed.is_set(processor).unwrap_or(false) && set.set(processor).is_ok() {
            is_empty = false;
        }
    }
    !is_empty && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as `/sys` has it.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("written");
        }
        folder
    }

    const TWO_NODES: [(&str, &str); 7] = [
        ("devices/system/node/online", "0-1\n"),
        ("devices/system/node/node0/cpulist", "0-1,4\n"),
        ("devices/system/node/node1/cpulist", "2-3,5-6\n"),
        ("class/net/eth1/device/numa_node", "1\n"),
        ("class/net/veth0/device/numa_node", "-1\n"),
        ("class/net/odd/device/numa_node", "7\n"),
        ("class/infiniband/mlx5_0/device/numa_node", "0\n"),
    ];

    #[test]
    fn the_node_of_a_device_is_read() {
        let tree = tree(&TWO_NODES);
        let sys = tree.path();
        assert_eq!(node_of_interface(sys, "eth1"), Some(1));
        assert_eq!(node_of_rdma_device(sys, "mlx5_0"), Some(0));
        // Virtual, a node that is not there, no such interface.
        for interface in ["veth0", "odd", "eth2", ""] {
            assert_eq!(node_of_interface(sys, interface), None, "{interface}");
        }
        assert_eq!(processors(sys, 1), Some(vec![2, 3, 5, 6]));
        assert_eq!(processors(sys, 2), None);
    }

    #[test]
    fn a_machine_of_one_node_has_no_choice() {
        let tree = tree(&[
            ("devices/system/node/online", "0\n"),
            ("class/net/eth1/device/numa_node", "0\n"),
        ]);
        assert_eq!(node_of_interface(tree.path(), "eth1"), None);
    }

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(list(""), Some(vec![]));
        for bad in ["x", "3-1", "0-4294967295", "-1", "1-"] {
            assert_eq!(list(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_thread_stays_where_it_may_run() {
        // Node 0 has none of this machine, node 1 all.
        let files = [
            ("devices/system/node/node0/cpulist", "65000"),
            ("devices/system/node/node1/cpulist", "0-1023"),
        ];
        let tree = tree(&files);
        let placed = std::thread::scope(|scope| {
            let thread = scope.spawn(|| [0, 1, 2].map(|node| place_thread(tree.path(), node)));
            thread.join().expect("no panic")
        });
        assert_eq!(placed, [false, true, false]);
    }
}
