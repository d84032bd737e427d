//! Castnet's part of the comparison over net_pcap and net_null, briefly: it does all that it is measured for.
#![cfg(feature = "dpdk")]

use std::path::Path;
use std::time::{Duration, Instant};

use castnet_dpdk_tests::frames::{data, group, host_ip, host_mac};
use castnet_dpdk_tests::{read_pcap, write_pcap};
use castnet_peers::dpdk::{Kind, Part, Plan};
use castnet_peers::measure::{Ran, Running, measure, threads};
use castnet_wire::icrc;

const PAYLOAD: usize = 64;

struct Here(Part);

impl Running for Here {
    fn ran(&mut self) -> anyhow::Result<Ran> {
        threads(std::process::id(), "")
    }

    fn count(&mut self) -> anyhow::Result<castnet_peers::count::Count> {
        self.0.count()
    }
}

fn plan(folder: &Path, name: &str, kind: Kind, sinks: Vec<String>, end: Option<u32>) -> Plan {
    let file = folder.join("in.pcap");
    write_pcap(&file, &vec![data(0, 0, 0, PAYLOAD, false); 64]);
    let (file, out) = (file.display(), folder.join(format!("{name}-source.pcap")));
    Plan {
        kind,
        sources: vec![format!(
            "net_pcap_{name},rx_pcap={file},infinite_rx=1,tx_pcap={}",
            out.display()
        )],
        sinks,
        payload: PAYLOAD,
        cores: vec![castnet_peers::machine::Cores::choose(None).expect("cores").switch],
        hugepages: false,
        end,
    }
}

/// All in one test: a process has one DPDK.
#[test]
fn castnet_is_measured_with_all_that_it_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();

    // Two receivers that write down what they get: packets in order, each to its own connection, with the right ICRC.
    const FRAMES: u32 = 12_000;
    let files: Vec<_> = (1..=2).map(|n| folder.join(format!("out{n}.pcap"))).collect();
    let sinks = files
        .iter()
        .zip(1..)
        .map(|(f, n)| format!("net_pcap_out{n},tx_pcap={}", f.display()));
    let part = Part::start(&plan(
        folder,
        "checked",
        Kind::Switch,
        sinks.collect(),
        Some(FRAMES),
    ))
    .expect("a switch");
    let start = Instant::now();
    while part.count().expect("counts").frames_out < 2 * u64::from(FRAMES) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", part.count());
        std::thread::yield_now();
    }
    assert_eq!(part.count().expect("counts").frames_in, u64::from(FRAMES));
    let Part::Switch(dataplane, _) = part else {
        panic!("a switch was asked for")
    };
    dataplane.stop().expect("counters");
    let rule = group(0, &[0, 1, 2]);
    for (file, n) in files.iter().zip(1..) {
        let frames = read_pcap(file);
        assert_eq!(frames.len(), FRAMES as usize);
        let first = u32::from_be_bytes([0, frames[0][51], frames[0][52], frames[0][53]]);
        for (frame, count) in frames.iter().zip(0..) {
            assert!(
                icrc::verify_bytes(frame, 14, frame.len()),
                "ICRC of frame {count} at {n} in {rule:?}"
            );
            assert_eq!(frame[..6], host_mac(n).0);
            assert_eq!(frame[30..34], host_ip(n).octets());
            assert_eq!(
                u32::from_be_bytes([0, frame[51], frame[52], frame[53]]),
                first + count
            );
        }
    }
    // The source hears of both receivers' acknowledgements, as one.
    let acknowledgements = read_pcap(&folder.join("checked-source.pcap"));
    assert!(
        !acknowledgements.is_empty(),
        "no acknowledgement came to the source"
    );

    for (name, kind) in [("switch", Kind::Switch), ("copies", Kind::Copy)] {
        let sinks = (1..=4).map(|n| format!("net_null_{name}{n},no-rx=1")).collect();
        let mut here = Here(Part::start(&plan(folder, name, kind, sinks, None)).expect("a start"));
        let rate = measure(&mut here, Duration::from_millis(200)).expect("a rate");
        assert!(
            rate.mfps_in > 0.0 && rate.mfps_out > 3.5 * rate.mfps_in,
            "{name}: {rate:?}"
        );
    }
}
