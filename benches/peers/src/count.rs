//! Parses the counters of switches and of the kernel.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Frames since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Frames that came in.
    pub frames_in: u64,
    /// Frames that went out, of all ports together.
    pub frames_out: u64,
}

impl Count {
    /// Adds the frames of another port.
    pub fn add(&mut self, other: Self) {
        self.frames_in += other.frames_in;
        self.frames_out += other.frames_out;
    }
}

/// The devices of a DPDK process, from its answer to `/ethdev/list`.
pub fn devices(answer: &[u8]) -> Result<Vec<u64>> {
    let answer: Value = serde_json::from_slice(answer).context("no JSON from DPDK's telemetry")?;
    let list = answer["/ethdev/list"].as_array().context("no list of devices")?;
    list.iter()
        .map(|id| id.as_u64().context("a device without a number"))
        .collect()
}

/// Frames of one device, from the answer to `/ethdev/stats,N`.
pub fn device_stats(answer: &[u8]) -> Result<Count> {
    let answer: Value = serde_json::from_slice(answer).context("no JSON from DPDK's telemetry")?;
    let stats = &answer["/ethdev/stats"];
    let number = |name| {
        stats[name]
            .as_u64()
            .with_context(|| format!("no {name} of a device"))
    };
    Ok(Count {
        frames_in: number("ipackets")?,
        frames_out: number("opackets")?,
    })
}

/// Frames of all ports of an Open vSwitch bridge except its own, from `ovs-ofctl dump-ports`.
pub fn dump_ports(text: &str) -> Result<Count> {
    let mut sum = Count::default();
    let mut counted = false;
    let mut ports = 0;
    for line in text.lines() {
        if let Some((port, _)) = line
            .trim_start()
            .strip_prefix("port ")
            .and_then(|l| l.split_once(':'))
        {
            counted = port.trim() != "LOCAL";
            ports += usize::from(counted);
        }
        if counted {
            sum.frames_in += after(line, "rx pkts=").unwrap_or(0);
            sum.frames_out += after(line, "tx pkts=").unwrap_or(0);
        }
    }
    anyhow::ensure!(ports > 0, "no ports in what ovs-ofctl says: {text}");
    Ok(sum)
}

fn after(line: &str, what: &str) -> Option<u64> {
    let digits = line.split_once(what)?.1;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Packets of `length` bytes that a veth device with NAPI has received, as single frames or in super-frames, from
/// `/proc/net/dev`. A super-frame counts as one frame there, and has the headers once. Bytes are without the Ethernet header.
/// Fails if there is no such interface.
pub fn packets(text: &str, name: &str, length: usize) -> Result<u64> {
    const ETHERNET: u64 = 14;
    const HEADERS: u64 = 20 + 8;
    let line = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    let line = line.with_context(|| format!("no interface {name}"))?;
    let column = |n: usize| -> Option<u64> { line.split_whitespace().nth(n)?.parse().ok() };
    let bytes = column(0).context("no bytes that were received")?;
    let frames = column(1).context("no frames that were received")?;
    Ok(bytes.saturating_sub(HEADERS * frames) / (length as u64 - ETHERNET - HEADERS))
}

/// Run time of a thread in nanoseconds, from its `schedstat`.
pub fn schedstat(text: &str) -> Result<u64> {
    let first = text.split_whitespace().next().and_then(|n| n.parse().ok());
    first.context("no time in schedstat")
}

/// A tick of the kernel's accounting, in nanoseconds.
const TICK: u64 = 10_000_000;

/// Nanoseconds of a core in the kernel, with interrupts, from `/proc/stat`. Fails if there is no such core.
pub fn in_kernel(text: &str, core: usize) -> Result<u64> {
    let name = format!("cpu{core}");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
    let line = line.with_context(|| format!("no {name} in /proc/stat"))?;
    // user nice system idle iowait irq softirq steal, and guests.
    let ticks: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
    let of_kernel = [2, 5, 6].map(|n| ticks.get(n).unwrap_or(&0));
    Ok(of_kernel.into_iter().sum::<u64>() * TICK)
}

/// Nanoseconds of a process outside the kernel, from its `stat`.
pub fn outside_kernel(text: &str) -> Result<u64> {
    // The name may contain anything, and ends with the last parenthesis. The state is field 3, the time field 14.
    let rest = text.rsplit_once(')').context("no name in stat")?.1;
    let ticks = rest
        .split_whitespace()
        .nth(11)
        .and_then(|n| n.parse::<u64>().ok());
    Ok(ticks.context("no time in stat")? * TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telemetry_names_devices_and_their_frames() {
        assert_eq!(
            devices(br#"{"/ethdev/list":[0,1,8]}"#).expect("a list"),
            [0, 1, 8]
        );
        let stats =
            br#"{"/ethdev/stats":{"ipackets":70,"opackets":512,"ibytes":1,"obytes":2,"q_ipackets":[70]}}"#;
        let expected = Count {
            frames_in: 70,
            frames_out: 512,
        };
        assert_eq!(device_stats(stats).expect("counts"), expected);
        for wrong in [&b""[..], b"{}", b"{\"/ethdev/stats\":{\"ipackets\":-1}}"] {
            assert!(devices(wrong).is_err() && device_stats(wrong).is_err());
        }
    }

    #[test]
    fn ovs_counts_ports_but_its_own() {
        let text = "OFPST_PORT reply (OF1.3) (xid=0x2): 3 ports\n  \
            port  8: rx pkts=0, bytes=0, drop=0, errs=0, frame=?, over=?, crc=?\n           \
            tx pkts=1379339, bytes=0, drop=0, errs=0, coll=?\n           duration=3.735s\n  \
            port LOCAL: rx pkts=9, bytes=0, drop=0, errs=0, frame=0, over=0, crc=0\n           \
            tx pkts=4, bytes=0, drop=9760, errs=0, coll=0\n           duration=7.774s\n  \
            port  1: rx pkts=1753056, bytes=1896806592, drop=0, errs=0, frame=?, over=?, crc=?\n           \
            tx pkts=1, bytes=0, drop=0, errs=0, coll=?\n";
        let expected = Count {
            frames_in: 1_753_056,
            frames_out: 1_379_340,
        };
        assert_eq!(dump_ports(text).expect("counts"), expected);
        assert!(dump_ports("ovs-ofctl: no bridge").is_err());
    }

    #[test]
    fn the_kernel_counts_interfaces() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
            lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n    \
            e1: 335216      12    0    0    0     0          0         0      555      77    0    1    0     0       0          0\n";
        // Ten super-frames of 32 packets of 1 KiB, and two single ones.
        assert_eq!(packets(text, "e1", 58 + 1024).expect("counts"), 322);
        assert!(packets(text, "e", 1082).is_err() && packets(text, "e11", 1082).is_err());
        assert_eq!(schedstat("107661 52157 2\n").expect("a time"), 107_661);
        assert!(schedstat("").is_err());
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu1 1 2 3 400 500 6 7 8 90 0\ncpu10 5 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(in_kernel(stat, 1).expect("a core"), 16 * TICK);
        assert!(in_kernel(stat, 2).is_err());
        let stat = "77 (a b) c) S 1 77 77 0 -1 4194560 9 0 0 0 321 45 0 0 20 0 3 0 100";
        assert_eq!(outside_kernel(stat).expect("a time"), 321 * TICK);
        assert!(outside_kernel("77 (x) S 1").is_err());
    }
}
