//! The lab's network namespace: a tap for each interface of each machine, and the bridge of the management network.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::error::LabError;
use crate::process::{inside, ip};

/// Address of the namespace in the management network. Guests reach what listens there or on all addresses.
pub const MANAGEMENT_IP: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 254);
/// Frames that a tap queues while its machine is busy: more than rxe has in flight, so a slow guest loses none.
const TAP_QUEUE_FRAMES: u32 = 4096;

// `index` of a machine is from 1.
pub(crate) fn data_ip(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, index as u8)
}

pub(crate) fn management_ip(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 100, index as u8)
}

pub(crate) fn data_mac(index: usize) -> [u8; 6] {
    [0x02, 0xca, 0x57, 0, 0, index as u8]
}

pub(crate) fn management_mac(index: usize) -> [u8; 6] {
    [0x02, 0xca, 0x57, 1, 0, index as u8]
}

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

pub(crate) fn data_tap(index: usize) -> String {
    format!("h{index}")
}

pub(crate) fn management_tap(index: usize) -> String {
    format!("m{index}")
}

/// Makes the namespace with its interfaces. On failure they are removed with the namespace.
pub(crate) fn build(netns: &str, hosts: usize, mtu: u32, bridge: bool) -> Result<(), LabError> {
    ip(&format!("netns add {netns}"))?;
    // Without IPv6 the taps carry only frames of the guests. A kernel without IPv6 has no such file.
    let quiet = "for which in all default; do echo 1 >/proc/sys/net/ipv6/conf/$which/disable_ipv6; done 2>/dev/null; true";
    crate::process::run(inside(netns, "sh").args(["-c", quiet]))?;

    let mut lines = vec![
        "link set lo up".to_owned(),
        "link add mgmt type bridge".into(),
        format!("addr add {MANAGEMENT_IP}/24 brd + dev mgmt"),
        "link set mgmt up".into(),
    ];
    if bridge {
        lines.push("link add lan type bridge".into());
        lines.push("link set lan up".into());
    }
    for index in 1..=hosts {
        let (data, management) = (data_tap(index), management_tap(index));
        lines.push(format!("tuntap add dev {data} mode tap"));
        lines.push(format!("link set {data} mtu {mtu} txqueuelen {TAP_QUEUE_FRAMES}"));
        if bridge {
            lines.push(format!("link set {data} master lan"));
        }
        lines.push(format!("link set {data} up"));
        lines.push(format!("tuntap add dev {management} mode tap"));
        lines.push(format!("link set {management} master mgmt"));
        lines.push(format!("link set {management} up"));
    }
    batch(netns, &lines)
}

fn batch(netns: &str, lines: &[String]) -> Result<(), LabError> {
    let failed = LabError::io("running ip -batch");
    let run = || {
        let mut child = Command::new("ip")
            .args(["-n", netns, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // If ip has ended early, its stderr says more than the broken pipe.
            let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
        }
        child.wait_with_output()
    };
    let out = run().map_err(failed)?;
    if out.status.success() {
        return Ok(());
    }
    Err(LabError::Command {
        command: format!("ip -n {netns} -batch -"),
        status: out.status.to_string(),
        stderr: String::from_utf8_lossy(&out.stderr).trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_from_the_index() {
        assert_eq!(data_ip(16).to_string(), "10.0.0.16");
        assert_eq!(management_ip(3).to_string(), "192.168.100.3");
        assert_eq!(mac_text(data_mac(16)), "02:ca:57:00:00:10");
        assert_ne!(data_mac(1), management_mac(1));
    }
}
