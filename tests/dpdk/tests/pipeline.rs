//! The same frames through the switch over net_pcap and over its own capture ports: every port sends the same bytes, and
//! every counter says the same. Replicas of long frames borrow from one another over DPDK, so there the fields that make up
//! for a shared ICRC differ.
#![cfg(feature = "dpdk")]

use std::path::Path;

use castnet_dpdk_tests::frames::{data, group, host_ip, host_mac, mcst, mix, plain};
use castnet_dpdk_tests::{Switch, THRESHOLDS, config, read_pcap, wait, write_pcap};
use castnet_port::PortStats;
use castnet_rules::GroupRule;
use castnet_wire::{DropReason, MacAddr, icrc};
use castnet_worker::Counters;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// What a switch sent by each port, with its own addresses made the same for all switches, and its last counters.
struct Outcome {
    sent: Vec<Vec<Vec<u8>>>,
    counters: Counters,
}

fn outcome(folder: &Path, specs: &[String], workers: usize, groups: &[GroupRule], frames: usize) -> Outcome {
    let switch = Switch::start(config(specs, workers, 512), groups);
    let macs = switch.macs();
    switch.open();
    wait(&switch.dataplane, "all frames are in", |c| {
        c.totals.received >= frames as u64
    });
    let counters = switch.dataplane.stop().expect("counters");
    let sent = macs.iter().enumerate().map(|(n, mac)| {
        let mut frames = read_pcap(&folder.join(format!("out{n}.pcap")));
        for frame in &mut frames {
            // The sender in the Ethernet header, and in an answer of ARP.
            for at in [6, 22] {
                if frame.get(at..at + 6) == Some(&mac.0) {
                    frame[at..at + 6].copy_from_slice(&[0xEE, 0, 0, 0, 0, n as u8]);
                }
            }
        }
        frames
    });
    Outcome {
        sent: sent.collect(),
        counters,
    }
}

/// A frame with the fields left out that the last hop is free to choose, where it may have chosen them; and whether its ICRC
/// is right.
fn settled(frame: &[u8]) -> (Vec<u8>, bool) {
    let mut frame = frame.to_vec();
    let right = icrc::verify_bytes(&frame, 14, frame.len());
    let replica =
        frame.len() >= THRESHOLDS.lend && frame[12..14] == [8, 0] && frame[26..29] == mcst(0).0.octets()[..3];
    if replica {
        let end = frame.len();
        for free in [18..20, 24..26, 34..36, end - 4..end] {
            frame[free].fill(0);
        }
    }
    (frame, right)
}

fn ports(stats: &Counters) -> Vec<PortStats> {
    stats.ports.iter().map(|p| p.stats).collect()
}

fn seed() -> u64 {
    let seed = std::env::var("CASTNET_SEED").ok().and_then(|s| s.parse().ok());
    let seed = seed.unwrap_or(20);
    eprintln!("CASTNET_SEED={seed}");
    seed
}

#[test]
fn dpdk_ports_send_what_capture_ports_send() {
    let (first, hosts) = (seed(), 4);
    for seed in first..first + 4 {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut total = 0;
        for n in 0..hosts {
            let frames = mix(&mut random, n, hosts, 700);
            total += frames.len();
            write_pcap(&folder.join(format!("in{n}.pcap")), &frames);
        }
        let groups = [group(0, &[0, 1, 2, 3]), group(1, &[0, 2, 3])];
        let path = folder.display();
        let theirs =
            |n| format!("dpdk:net_pcap1{n},rx_pcap={path}/in{n}.pcap,tx_pcap={path}/out{n}.pcap,mtu=9000");
        let ours = |n| format!("pcap:{path}/in{n}.pcap,{path}/out{n}.pcap,mtu=9000");
        let dpdk = outcome(
            folder,
            &(0..hosts).map(theirs).collect::<Vec<_>>(),
            1,
            &groups,
            total,
        );
        let twin = outcome(
            folder,
            &(0..hosts).map(ours).collect::<Vec<_>>(),
            1,
            &groups,
            total,
        );

        assert_eq!(dpdk.counters.totals, twin.counters.totals, "seed {seed}");
        assert_eq!(dpdk.counters.drops, twin.counters.drops, "seed {seed}");
        assert_eq!(ports(&dpdk.counters), ports(&twin.counters), "seed {seed}");
        for (n, (dpdk, twin)) in dpdk.sent.iter().zip(&twin.sent).enumerate() {
            assert_eq!(dpdk.len(), twin.len(), "seed {seed} port {n}");
            for (i, (dpdk, twin)) in dpdk.iter().zip(twin).enumerate() {
                assert_eq!(settled(dpdk), settled(twin), "seed {seed} port {n} frame {i}");
            }
        }
        let totals = &dpdk.counters.totals;
        assert!(
            totals.replicated > 100 && totals.absorbed > 100 && totals.copies > 300 && totals.flooded > 100,
            "{totals:?}"
        );
    }
}

/// Several receive queues of one port, each with the data of one group: workers receive side by side, hand over what is
/// another's, and every group's data keeps its order. Also where devices have fewer send queues than there are workers.
#[test]
fn several_queues_feed_several_workers_and_groups_keep_their_order() {
    for (workers, sends) in [(3, 1), (3, 2), (2, 2), (2, 1)] {
        feed_several_workers(workers, sends);
    }
}

fn feed_several_workers(workers: usize, sends: usize) {
    let (groups, each) = (4, 120);
    let case = format!("{workers} workers, {sends} send queues");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = folder.display().to_string();
    // net_pcap has as many queues to write to as files to write.
    let files = |n| {
        let files = (0..sends).map(|queue| match queue {
            0 => format!(",tx_pcap={path}/out{n}.pcap"),
            _ => format!(",tx_pcap={path}/also{n}_{queue}.pcap"),
        });
        files.collect::<String>() + ",rx=256,tx=256"
    };
    let mut source = format!("dpdk:net_pcap20,queues={groups}{}", files(0));
    // Groups go to workers in turn, and so do queues; one further on, none comes by the queue of its worker.
    for g in (1..groups).chain([0]) {
        let frames: Vec<_> = (0..each).map(|psn| payload(g, psn)).collect();
        write_pcap(&folder.join(format!("in{g}.pcap")), &frames);
        source += &format!(",rx_pcap={path}/in{g}.pcap");
    }
    let sink = |n| format!("dpdk:net_pcap2{n}{}", files(n));
    let rules: Vec<_> = (0..groups).map(|g| group(g, &[0, 1, 2, 3])).collect();
    let specs: Vec<_> = std::iter::once(source).chain((1..4).map(sink)).collect();
    let outcome = outcome(folder, &specs, workers, &rules, groups * each);
    let totals = &outcome.counters.totals;
    assert_eq!(
        (totals.replicated, totals.copies, totals.dropped),
        ((groups * each) as u64, (2 * groups * each) as u64, 0),
        "{case}"
    );
    let handed: u64 = outcome
        .counters
        .workers
        .iter()
        .map(|w| w.counters.handed_over)
        .sum();
    let taken: u64 = outcome
        .counters
        .workers
        .iter()
        .map(|w| w.counters.taken_over)
        .sum();
    assert!(
        handed > 0 && handed == taken,
        "not every group's data came by its own worker's queue: {handed} {taken}"
    );
    assert_eq!(outcome.counters.workers.len(), workers);
    for n in 1..4 {
        let stats = outcome.counters.ports[n].stats;
        assert_eq!(
            (stats.tx_frames, stats.drops.total()),
            ((groups * each) as u64, 0),
            "{case}"
        );
        let mut frames = outcome.sent[n].clone();
        for queue in 1..sends {
            frames.extend(read_pcap(&folder.join(format!("also{n}_{queue}.pcap"))));
        }
        assert_eq!(frames.len(), groups * each, "port {n}, {case}");
        for g in 0..groups {
            let frames: Vec<_> = frames
                .iter()
                .filter(|f| f[26..30] == mcst(g).0.octets())
                .collect();
            assert_eq!(frames.len(), each, "group {g} port {n}, {case}");
            for (psn, frame) in frames.iter().enumerate() {
                // Bridged to the host's connection, with the payload as it was and an ICRC that is right.
                let sent = payload(g, psn);
                assert_eq!(
                    frame[50..54],
                    [&[0x80], &(psn as u32).to_be_bytes()[1..]].concat(),
                    "{case}"
                );
                assert_eq!(frame[54..frame.len() - 4], sent[54..sent.len() - 4], "{case}");
                assert_eq!(
                    (&frame[..6], &frame[30..34]),
                    (&host_mac(n).0[..], &host_ip(n).octets()[..])
                );
                assert!(
                    icrc::verify_bytes(frame, 14, frame.len()),
                    "group {g} port {n} PSN {psn}, {case}"
                );
            }
        }
    }
}

/// Packet `psn` of a group: of all lengths, so that some replicas are copied and some share.
fn payload(group: usize, psn: usize) -> Vec<u8> {
    data(group, 0, psn as u32, (64 + psn * 173) % 4097, false)
}

/// The switch knows what a device carries, and says so.
#[test]
fn a_device_has_the_mtu_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    let frames = [1514, 1515].map(|n| plain(host_mac(0), MacAddr::BROADCAST, n, 1));
    write_pcap(&folder.path().join("in0.pcap"), &frames);
    let specs = [
        format!("dpdk:net_pcap30,rx_pcap={path}/in0.pcap,tx_pcap={path}/out0.pcap"),
        format!("dpdk:net_pcap31,tx_pcap={path}/out1.pcap,mtu=1500"),
    ];
    let outcome = outcome(folder.path(), &specs, 1, &[], frames.len());
    assert_eq!(outcome.sent[1].iter().map(Vec::len).collect::<Vec<_>>(), [1514]);
    let c = &outcome.counters;
    assert_eq!((c.totals.flooded, c.drops[DropReason::TooLong]), (1, 1));
    let mtus: Vec<_> = c.ports.iter().map(|p| p.link.mtu).collect();
    assert_eq!(mtus, [9000, 1500]);
}
