//! Several workers, and control operations while traffic flows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::*;
use castnet_port::{FaultControl, Faults, MemEnd};
use castnet_wire::{DropReason, MacAddr};
use castnet_worker::rules::{Route, RouteHop};
use proptest::prelude::*;

#[test]
fn groups_are_spread_and_frames_are_handed_over() {
    const PSNS: u32 = 64;
    let lab = Lab::new(4, 2);
    let mut h = lab.hosts();
    // Each host is the source of two groups, so groups of either worker receive frames on ports of either worker.
    for n in 0..8 {
        let source = n % 4;
        let ports: Vec<usize> = (0..4).map(|i| (source + i) % 4).collect();
        lab.install(&rule(n, &ports));
    }
    let groups = lab.dataplane.groups().unwrap();
    assert_eq!(
        groups.iter().map(|g| g.worker).collect::<Vec<_>>(),
        [0, 1, 0, 1, 0, 1, 0, 1]
    );

    for psn in 0..PSNS {
        for n in 0..8 {
            h[n % 4].send_one(data(n, n % 4, psn, 512));
        }
        // Data from both groups of each of the other three hosts, and ACKs for the host's own two groups,
        // which may come first.
        let mut acks = [0; 4];
        for (me, host) in h.iter_mut().enumerate() {
            let mut data = 0;
            while data < 6 {
                for frame in host.receive(1) {
                    let header = roce(&frame);
                    let group = (0..8).find(|n| header.ip.src() == mcst(*n).0);
                    assert_eq!(
                        (header.bth.psn.value(), Some(header.bth.dest_qp)),
                        (psn, group.map(|group| qpn(group, me)))
                    );
                    *(if header.aeth.is_some() {
                        &mut acks[me]
                    } else {
                        &mut data
                    }) += 1;
                }
            }
            let others = (0..8).filter(|n| n % 4 != me);
            host.send(&others.map(|n| ack(n, me, psn)).collect::<Vec<_>>());
        }
        for (host, acks) in h.iter_mut().zip(acks) {
            let more = host.receive(2 - acks);
            assert!(
                more.iter()
                    .all(|f| roce(f).aeth.is_some() && roce(f).bth.psn.value() == psn)
            );
        }
    }
    let last = lab.dataplane.stop().unwrap();
    assert_conserved(&last);
    assert_eq!(
        (last.totals.replicated, last.totals.dropped),
        (u64::from(PSNS) * 8, 0)
    );
    for n in 0..8 {
        let group = last.group(mcst(n)).unwrap();
        let (counters, _) = group.counters.multicast().unwrap();
        assert_eq!(
            (counters.data_in, counters.acks_in),
            (u64::from(PSNS), u64::from(PSNS) * 3)
        );
        assert_eq!((counters.acks_out, group.worker), (u64::from(PSNS), n % 2));
    }
    for worker in &last.workers {
        assert!(
            worker.counters.handed_over > 0 && worker.counters.taken_over > 0,
            "{worker:?}"
        );
    }
}

/// Lanes of a group are spread: at any load, no two lanes share a worker while another worker has none.
#[test]
fn lanes_of_a_group_are_on_different_workers() {
    let lab = Lab::new(4, 3);
    for n in 0..8 {
        lab.install(&rule(n, &[0, 1]));
    }
    // Workers 1 and 2 have fewer groups than worker 0.
    for n in [1, 4, 7, 2] {
        lab.dataplane.remove_group(mcst(n)).unwrap();
    }
    for lane in 0..6 {
        let mut lane_rule = rule(20 + lane, &[0, 1, 2]);
        lane_rule.name = format!("hot/{lane}");
        lab.install(&lane_rule);
    }
    let groups = lab.dataplane.groups().unwrap();
    let mut lanes = [0; 3];
    for group in groups.iter().filter(|g| g.rule.name.starts_with("hot/")) {
        lanes[group.worker] += 1;
    }
    assert_eq!(lanes, [2; 3]);
    lab.dataplane.stop().unwrap();
}

/// Sends numbered frames from host `from` to host 1, at most `window` ahead of the received frames. Counts both.
fn stream(ends: [MemEnd; 2], from: usize, window: u32, stop: &AtomicBool) -> u32 {
    let [mut near, mut far] = ends.each_ref().map(Host::new);
    // Host 1 is learned now, so its frames are not flooded.
    far.send_one(plain(host_mac(1), MacAddr::BROADCAST, 0, 60));
    near.receive(1);
    let (mut sent, mut received) = (0, 0);
    while received < sent || !stop.load(Ordering::Relaxed) {
        let more = if stop.load(Ordering::Relaxed) {
            0
        } else {
            (window - (sent - received)).min(32)
        };
        near.send(
            &(0..more)
                .map(|i| plain(host_mac(from), host_mac(1), sent + i, 200))
                .collect::<Vec<_>>(),
        );
        sent += more;
        for frame in far.receive(usize::from(received < sent)) {
            assert_eq!(number(&frame), received, "in order, none missing");
            received += 1;
        }
    }
    sent
}

/// Runs `control` repeatedly while frames stream through the switch.
fn while_traffic_flows(lab: &Lab, times: u32, control: impl Fn(u32)) -> u32 {
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = thread::spawn({
        let (stop, ends) = (stop.clone(), [lab.ends[0].clone(), lab.ends[1].clone()]);
        move || stream(ends, 0, 128, &stop)
    });
    for i in 0..times {
        // Let frames pass in between. Otherwise none could be lost.
        let before = lab.dataplane.counters().unwrap().totals.received;
        lab.wait("traffic flows", |c| c.totals.received > before);
        control(i);
    }
    stop.store(true, Ordering::Relaxed);
    traffic.join().unwrap()
}

#[test]
fn new_tables_lose_no_frame() {
    for workers in [1, 2] {
        let lab = Lab::new(2, workers);
        let before = lab.dataplane.generation();
        let sent = while_traffic_flows(&lab, 60, |i| {
            let hop = RouteHop {
                port: port(1),
                mac: host_mac(1),
            };
            let prefix = format!("10.{}.0.0/16", 100 + i % 50).parse().unwrap();
            lab.dataplane
                .add_route(Route {
                    prefix,
                    next_hops: vec![hop],
                    replicate: false,
                    copy_to: Vec::new(),
                })
                .unwrap();
        });
        assert_eq!(lab.dataplane.generation(), before + 60);
        let last = lab.dataplane.stop().unwrap();
        assert_eq!(
            (last.totals.received, last.totals.switched),
            (u64::from(sent) + 1, u64::from(sent))
        );
        assert!(last.workers.iter().all(|w| w.generation == before + 60));
        assert_conserved(&last);
    }
}

#[test]
fn installs_and_removals_lose_no_frame_of_others() {
    for workers in [1, 2] {
        let lab = Lab::new(4, workers);
        let mut h: Vec<_> = lab.ends[2..].iter().map(Host::new).collect();
        lab.install(&rule(1, &[2, 3]));
        let psn = std::cell::RefCell::new(0);
        let hosts = std::cell::RefCell::new(&mut h);
        let sent = while_traffic_flows(&lab, 40, |i| {
            let n = 10 + i as usize;
            lab.install(&rule(n, &[2, 3]));
            // Another group works meanwhile, and the new group works from its first frame.
            let (mut hosts, mut psn) = (hosts.borrow_mut(), psn.borrow_mut());
            hosts[0].send(&[data(1, 2, *psn, 100), data(n, 2, 0, 100)]);
            let got = roce_frames(&mut hosts[1], 2);
            assert_eq!(got, [*psn, 0].into_iter().collect());
            *psn += 1;
            assert!(lab.dataplane.remove_group(mcst(n)).unwrap().is_some());
        });
        let last = lab.dataplane.stop().unwrap();
        assert_eq!(last.totals.switched, u64::from(sent));
        assert_eq!((last.totals.replicated, last.totals.dropped), (80, 0));
        assert_eq!(last.groups.len(), 1);
        assert_conserved(&last);
    }
}

/// Groups that are installed together are published once. Each is a separate command, so frames pass between
/// two of them. A refused group does not delay the others.
#[test]
fn groups_installed_together_lose_no_frame_of_others() {
    const TOGETHER: usize = 100;
    for workers in [1, 2] {
        let lab = Lab::new(4, workers);
        let sent = while_traffic_flows(&lab, 4, |i| {
            let before = lab.dataplane.generation();
            let first = TOGETHER * i as usize;
            let mut rules: Vec<_> = (first..first + TOGETHER).map(|n| rule(n, &[2, 3])).collect();
            rules[TOGETHER / 2].endpoints.pop();
            let installed = lab.dataplane.install_together(|installer| {
                let each = rules.iter().map(|rule| installer.install(rule).is_ok());
                each.collect::<Vec<_>>()
            });
            let refused = installed.unwrap().iter().position(|done| !done);
            assert_eq!(refused, Some(TOGETHER / 2));
            assert_eq!(lab.dataplane.generation(), before + 1);
        });
        let last = lab.dataplane.stop().unwrap();
        assert_eq!((last.totals.switched, last.totals.dropped), (u64::from(sent), 0));
        assert_eq!(last.groups.len(), 4 * (TOGETHER - 1));
        assert_conserved(&last);
    }
}

/// The PSNs of the next RoCE frames, without those of the stream.
fn roce_frames(host: &mut Host, count: usize) -> std::collections::BTreeSet<u32> {
    let mut psns = Vec::new();
    while psns.len() < count {
        let frames = host.receive(1);
        psns.extend(
            frames
                .iter()
                .filter(|f| f[12..14] == [8, 0])
                .map(|f| roce(f).bth.psn.value()),
        );
    }
    psns.into_iter().collect()
}

#[test]
fn a_full_hand_over_ring_is_counted() {
    // Port 1 belongs to worker 1 and its frames to worker 0, which cannot take them while it runs a trace
    // command. A ring of capacity 1 therefore overflows eventually.
    let lab = Lab::with(2, 2, |config| config.hand_over = 1);
    let mut h = lab.hosts();
    let mut sent = 0;
    loop {
        h[1].send(
            &(0..256)
                .map(|i| plain(host_mac(1), host_mac(0), i, 60))
                .collect::<Vec<_>>(),
        );
        sent += 256;
        let counters = lab.wait("all received", |c| c.totals.received == sent);
        h[0].poll();
        if counters.drops[DropReason::HandOverFull] > 0 {
            break;
        }
    }
    let last = lab.dataplane.stop().unwrap();
    assert_conserved(&last);
    let port = last.port(port(1)).unwrap();
    assert_eq!(
        port.engine.drops[DropReason::HandOverFull],
        last.drops[DropReason::HandOverFull]
    );
}

/// A frame that a host may send.
fn any_frame() -> impl Strategy<Value = (usize, Vec<u8>)> {
    let host = 0usize..4;
    prop_oneof![
        (host.clone(), 0usize..5, 0usize..4, 0u32..40, 0usize..1100)
            .prop_map(|(at, group, from, psn, length)| (at, data(group, from, psn, length))),
        (host.clone(), 0usize..5, 0u32..40).prop_map(|(at, group, psn)| (at, ack(group, at, psn))),
        (host.clone(), 0usize..4, 60usize..4200)
            .prop_map(|(at, to, length)| (at, plain(host_mac(at), host_mac(to), 7, length))),
        (host.clone(), 0usize..5).prop_map(|(at, group)| (at, arp_request(at, mcst(group).0))),
        (host, prop::collection::vec(any::<u8>(), 0..200)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Contract S1 for the whole dataplane: every frame has exactly one counted outcome.
    #[test]
    fn every_frame_has_one_outcome(frames in prop::collection::vec(any_frame(), 1..300), workers in 1usize..4, seed: u64, loss in 0.0..0.3) {
        let faults = FaultControl::new(seed).with(Faults::loss(loss), Faults::NONE);
        let lab = Lab::with(4, workers, |config| {
            let spec = config.ports[3].spec.clone();
            config.ports[3].spec = spec.with_faults(faults.clone());
        });
        for n in 0..3 {
            lab.install(&rule(n, &[n, 3, (n + 1) % 3]));
        }
        let mut h = lab.hosts();
        for (at, frame) in &frames {
            h[*at].send_one(frame.clone());
        }
        let arrived = frames.len() as u64;
        lab.wait("all received", |c| c.totals.received + faults.counts()[0].lost == arrived);
        let mut last = lab.dataplane.stop().unwrap();
        let got: usize = h.iter_mut().map(|h| h.poll().len()).sum();
        prop_assert_eq!(last.ports.iter().map(|p| p.stats.tx_frames).sum::<u64>(), got as u64);
        // Frames dropped by the injector were received by the link and reached no engine.
        let lost = faults.counts()[0].lost;
        prop_assert_eq!(last.ports[3].stats.drops[DropReason::Injected], lost);
        last.ports[3].stats.rx_frames -= lost;
        last.ports[3].stats.drops[DropReason::Injected] -= lost;
        last.drops[DropReason::Injected] -= lost;
        assert_conserved(&last);
    }
}
