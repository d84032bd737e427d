//! Flow control (PFC): paused classes wait, PAUSE travels upstream, nothing of a lossless class is lost, the watchdog ends storms.

use std::collections::VecDeque;
use std::time::Instant;

use castnet_port::{Batch, MemEnd, MemLink, MemLinkConfig, PfcConfig, Port, PortSpec, Sides};
use castnet_wire::{ClassSet, DropReason, FrameBuf, MacAddr, Nanos, Pause, PortId, TrafficClass};
use castnet_worker::{Counters, Dataplane, DataplaneConfig, PfcClassReport, PortConfig, SwitchEventKind};
use proptest::prelude::*;

use crate::common::*;

const LOSSLESS: u8 = 3;

fn class(n: u8) -> TrafficClass {
    TrafficClass::new(n).unwrap()
}

/// Class 3 is lossless. A pause is in effect for half a minute on so slow a link, and nothing ends it: no test depends on time.
fn pfc() -> PfcConfig {
    PfcConfig {
        speed_mbps: Some(1),
        watchdog: None,
        ..PfcConfig::new(ClassSet::from_iter([class(LOSSLESS)]))
    }
}

/// Tagged with the priority, and numbered.
fn frame(from: usize, to: MacAddr, priority: u8, number: u32, length: usize) -> Vec<u8> {
    let mut out = plain(host_mac(from), to, number, length);
    out.splice(12..12, [0x81, 0, priority << 5, 0]);
    out
}

fn pause(quanta: u16) -> Vec<u8> {
    let mut pause = Pause::default();
    pause.set(class(LOSSLESS), quanta);
    pause.emit(host_mac(9)).to_vec()
}

fn numbers(frames: &[Vec<u8>], priority: u8) -> Vec<u32> {
    let of = frames.iter().filter(|f| f[12..15] == [0x81, 0, priority << 5]);
    of.map(|f| u32::from_be_bytes(f[18..22].try_into().unwrap()))
        .collect()
}

fn at(counters: &Counters, n: usize) -> PfcClassReport {
    let classes = &counters.port(port(n)).unwrap().pfc;
    assert_eq!(classes.len(), 1);
    classes[0]
}

fn lab(ports: usize, workers: usize, pfc: &PfcConfig) -> Lab {
    Lab::with(ports, workers, |config| {
        config
            .ports
            .iter_mut()
            .for_each(|port| port.pfc = Some(pfc.clone()));
    })
}

/// Lets the switch learn all hosts. Groups of addresses are flooded, so each host gets the others' frames.
fn learn(lab: &Lab, hosts: &mut [Host]) {
    for (n, host) in hosts.iter_mut().enumerate() {
        host.send_one(frame(n, MacAddr::BROADCAST, 0, 0, 64));
    }
    let frames = hosts.len() as u64;
    lab.wait("all are learned", |c| c.totals.received == frames);
    for host in hosts.iter_mut() {
        host.receive(frames as usize - 1);
    }
}

#[test]
fn a_paused_class_waits_and_the_others_pass() {
    for workers in [1, 2] {
        let lab = lab(2, workers, &pfc());
        let mut h = lab.hosts();
        learn(&lab, &mut h);
        h[1].send_one(pause(u16::MAX));
        lab.wait("the class is paused", |c| at(c, 1).is_paused);
        let both = (0..100).flat_map(|n| [LOSSLESS, 5].map(|p| frame(0, host_mac(1), p, n, 600)));
        h[0].send(&both.collect::<Vec<_>>());
        let others = h[1].receive(100);
        assert_eq!(numbers(&others, 5), (0..100).collect::<Vec<_>>());
        let counters = lab.wait("the frames wait", |c| at(c, 1).counters.held == 100);
        let report = at(&counters, 1);
        assert_eq!(
            (
                report.queued_bytes,
                report.counters.pause_received,
                report.has_storm
            ),
            (60_400, 1, false)
        );
        assert_eq!(counters.drops.total(), 0);
        assert!(h[1].poll().is_empty());
        h[1].send_one(pause(0));
        let waited = h[1].receive(100);
        assert_eq!(numbers(&waited, LOSSLESS), (0..100).collect::<Vec<_>>());
        let is_over = |report: PfcClassReport| !report.is_paused && report.queued_bytes == 0;
        let report = at(&lab.wait("the pause has ended", |c| is_over(at(c, 1))), 1);
        assert_eq!(report.counters.pause_received, 2);
        assert!(report.counters.paused_ns > 0);
        // PAUSE of other classes, on a port without flow control, and 802.3x PAUSE change nothing.
        let mut link_pause = pause(u16::MAX);
        link_pause[15] = 1;
        link_pause[14] = 0;
        h[1].send_one(link_pause);
        let counters = lab.wait("it is dropped", |c| c.drops[DropReason::Reserved] == 1);
        assert!(!at(&counters, 1).is_paused);
        let mut lossy = Pause::default();
        lossy.set(class(5), u16::MAX);
        h[1].send_one(lossy.emit(host_mac(9)).to_vec());
        let counters = lab.wait("it is counted", |c| c.drops[DropReason::Reserved] == 2);
        let report = at(&counters, 1);
        assert_eq!((report.is_paused, report.counters.pause_received), (false, 2));
    }
}

#[test]
fn pause_is_not_obeyed_without_flow_control() {
    let lab = Lab::new(2, 1);
    let mut h = lab.hosts();
    learn(&lab, &mut h);
    h[1].send_one(pause(u16::MAX));
    let counters = lab.wait("it is dropped", |c| c.drops[DropReason::Reserved] == 1);
    assert!(counters.ports[1].pfc.is_empty());
    h[0].send_one(frame(0, host_mac(1), LOSSLESS, 1, 64));
    h[1].receive(1);
}

#[test]
fn a_storm_is_reported_dropped_and_ended() {
    let config = PfcConfig {
        watchdog: Some(Nanos::from_millis(20)),
        ..pfc()
    };
    let lab = lab(2, 1, &config);
    let events = lab.dataplane.events();
    let mut h = lab.hosts();
    learn(&lab, &mut h);
    let storm = |has_storm| SwitchEventKind::Storm {
        port: port(1),
        name: "p1".into(),
        class: class(LOSSLESS),
        has_storm,
    };
    let next = || loop {
        let kind = events.recv_timeout(TIMEOUT).unwrap().kind;
        if matches!(kind, SwitchEventKind::Storm { .. }) {
            return kind;
        }
    };
    h[1].send_one(pause(u16::MAX));
    lab.wait("the class is paused", |c| at(c, 1).is_paused);
    h[0].send_one(frame(0, host_mac(1), LOSSLESS, 1, 64));
    assert_eq!(next(), storm(true));
    h[0].send_one(frame(0, host_mac(1), LOSSLESS, 2, 64));
    h[0].send_one(frame(0, host_mac(1), 5, 3, 64));
    // The counters of a switch and of its classes are published one after the other.
    let counters = lab.wait("both are dropped", |c| {
        c.drops[DropReason::PfcStorm] == 2 && at(c, 1).counters.storm_drops == 2
    });
    let report = at(&counters, 1);
    assert_eq!(
        (
            report.has_storm,
            report.counters.storms,
            report.counters.storm_drops,
            report.queued_bytes
        ),
        (true, 1, 2, 0)
    );
    assert_eq!(numbers(&h[1].receive(1), 5), [3]);
    h[1].send_one(pause(0));
    assert_eq!(next(), storm(false));
    h[0].send_one(frame(0, host_mac(1), LOSSLESS, 4, 64));
    assert_eq!(numbers(&h[1].receive(1), LOSSLESS), [4]);
}

/// A sender that does not obey PAUSE loses what is beyond the headroom of its port, and nobody else does.
#[test]
fn a_port_that_ignores_pause_loses_its_own_frames_only() {
    let config = PfcConfig {
        xoff_bytes: 10_000,
        xon_bytes: 5_000,
        headroom_bytes: 10_000,
        ..pfc()
    };
    let lab = lab(3, 1, &config);
    let mut h = lab.hosts();
    learn(&lab, &mut h);
    h[2].send_one(pause(u16::MAX));
    lab.wait("the class is paused", |c| at(c, 2).is_paused);
    h[1].send_one(frame(1, host_mac(2), LOSSLESS, 7, 996));
    h[0].send(
        &(0..50)
            .map(|n| frame(0, host_mac(2), LOSSLESS, n, 996))
            .collect::<Vec<_>>(),
    );
    lab.wait("the rest is dropped", |c| {
        c.drops[DropReason::PfcOverflow] == 30 && at(c, 2).counters.overflows == 30
    });
    let stopped = |c: &Counters| [0, 1, 2].map(|n| at(c, n).is_stopping);
    lab.wait("the sender is stopped", |c| stopped(c) == [true, false, false]);
    assert_eq!(
        Pause::parse(&h[0].receive(1)[0]).unwrap().of(class(LOSSLESS)),
        Some(u16::MAX)
    );
    h[2].send_one(pause(0));
    let got = numbers(&h[2].receive(21), LOSSLESS);
    assert!(got.contains(&7) && got.contains(&19), "{got:?}");
    lab.wait("the sender may go on", |c| stopped(c) == [false; 3]);
    assert_eq!(
        Pause::parse(&h[0].receive(1)[0]).unwrap().of(class(LOSSLESS)),
        Some(0)
    );
}

/// A host that obeys PAUSE, and may send PAUSE.
struct PfcHost {
    host: Host,
    to_send: VecDeque<Vec<u8>>,
    is_paused: bool,
    got: Vec<Vec<u8>>,
}

impl PfcHost {
    fn new(end: &MemEnd, to_send: impl Iterator<Item = Vec<u8>>) -> Self {
        Self {
            host: Host::new(end),
            to_send: to_send.collect(),
            is_paused: false,
            got: Vec::new(),
        }
    }

    /// Takes up to `frames` frames from the link.
    fn take(&mut self, frames: usize) {
        let mut batch = Batch::new();
        for _ in 0..frames.div_ceil(32) {
            self.host.port.receive(&mut batch);
            for frame in batch.drain(..) {
                match Pause::parse(frame.head()).and_then(|pause| pause.of(class(LOSSLESS))) {
                    Some(quanta) => self.is_paused = quanta > 0,
                    None => self.got.push(frame.to_vec()),
                }
            }
        }
    }

    /// Sends PAUSE, or loses it if the link is full.
    fn pause(&mut self, frame: &[u8]) {
        let mut batch = Batch::new();
        batch.extend(self.host.pool.copy_from(frame));
        self.host.port.offer(&mut batch);
    }

    /// Sends up to 32 frames, as many as the link takes, but not while the class is paused.
    fn send_some(&mut self) {
        for _ in 0..32 {
            let Some(frame) = self.to_send.front().filter(|_| !self.is_paused) else {
                return;
            };
            let mut batch = Batch::new();
            batch.extend(self.host.pool.copy_from(frame));
            self.host.port.offer(&mut batch);
            if !batch.is_empty() {
                return;
            }
            self.to_send.pop_front();
        }
    }
}

fn small() -> PfcConfig {
    PfcConfig {
        xoff_bytes: 20_000,
        xon_bytes: 10_000,
        // After the frame that reaches XOFF come those of the iteration (128), of the link (1,024), of the host's burst (32), and with two
        // workers those of the ring between them (64): fewer than 1,330, of 1,082 bytes at most.
        headroom_bytes: 1_440_000,
        ..pfc()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// A group with a receiver that is slow, and pauses the switch or only lets its link fill. PAUSE frames from it are lost, duplicated
    /// and corrupted. No receiver loses a frame, in order, and the source was paused.
    #[test]
    fn no_frame_of_a_lossless_class_is_lost(
        workers in 1..3_usize,
        deeds in prop::collection::vec((0..5_u8, 0..64_usize), 1..200),
    ) {
        let lab = Lab::with(3, workers, |config| {
            config.ports.iter_mut().for_each(|port| port.pfc = Some(small()));
            // A ring that is full loses frames otherwise, of whatever class.
            (config.hand_over, config.patient) = (64, true);
        });
        lab.install(&rule(0, &[0, 1, 2]));
        let count = 2_000_usize;
        let frames = (0..count as u32).map(|psn| {
            let mut frame = data(0, 0, psn, 1024);
            // DSCP 26.
            frame[15] = 26 << 2;
            frame[24..26].fill(0);
            let sum = castnet_wire::ipv4::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            frame
        });
        let mut source = PfcHost::new(&lab.ends[0], frames);
        let mut fast = PfcHost::new(&lab.ends[1], std::iter::empty());
        let mut slow = PfcHost::new(&lab.ends[2], std::iter::empty());
        slow.pause(&pause(u16::MAX));
        lab.wait("the class is paused", |c| at(c, 2).is_paused);
        let start = Instant::now();
        while !source.is_paused {
            assert!(start.elapsed() < TIMEOUT);
            source.take(32);
            source.send_some();
            fast.take(1_024);
        }
        let (mut deed, mut taken) = (deeds.iter().cycle(), 0);
        while fast.got.len() < count || slow.got.len() < count {
            let got = (fast.got.len(), slow.got.len());
            assert!(start.elapsed() < TIMEOUT, "{got:?}: {:?}", lab.dataplane.counters().unwrap().ports);
            source.take(32);
            source.send_some();
            fast.take(1_024);
            taken += 1;
            // From some time on, nothing is in the way of the rest.
            match deed.next().filter(|_| taken <= 2_000) {
                Some((0, _)) => slow.pause(&pause(u16::MAX)),
                Some((1, _)) => (0..2).for_each(|_| slow.pause(&pause(0))),
                Some((2, byte)) => {
                    let mut frame = pause(u16::MAX);
                    frame[12 + byte % 22] ^= 1 << (byte % 8);
                    slow.pause(&frame);
                    slow.pause(&pause(0));
                }
                Some((_, frames)) => slow.take(*frames),
                None => {
                    slow.pause(&pause(0));
                    slow.take(1_024);
                }
            }
        }
        let psns = |frames: &[Vec<u8>]| frames.iter().map(|f| roce(f).bth.psn.value()).collect::<Vec<_>>();
        let all: Vec<_> = (0..count as u32).collect();
        prop_assert!(psns(&fast.got) == all);
        prop_assert!(psns(&slow.got) == all);
        let counters = lab.dataplane.counters().unwrap();
        let lost = [DropReason::TxFull, DropReason::PfcOverflow, DropReason::PfcStorm].map(|r| counters.drops[r]);
        prop_assert_eq!(lost, [0; 3]);
    }
}

fn switch(name: &str, ports: Vec<(MemEnd, bool)>, pfc: &PfcConfig) -> Dataplane {
    let ports = ports.into_iter().enumerate().map(|(n, (end, flood))| PortConfig {
        pfc: Some(pfc.clone()),
        flood,
        ..PortConfig::new(
            PortId::new(n as u8).unwrap(),
            format!("p{n}"),
            PortSpec::from(end),
        )
    });
    let mut config = DataplaneConfig::new(name, ports.collect());
    config.engine.lldp_interval = None;
    Dataplane::start(config).unwrap()
}

fn link(capacity: usize) -> (MemEnd, MemEnd) {
    MemLink::pair(&MemLinkConfig::between("a", "b").capacity(capacity))
}

fn wait(switch: &Dataplane, done: impl Fn(&Counters) -> bool) -> Counters {
    let start = Instant::now();
    loop {
        let counters = switch.counters().unwrap();
        if done(&counters) {
            return counters;
        }
        assert!(start.elapsed() < TIMEOUT, "{counters:?}");
        std::thread::yield_now();
    }
}

/// Two switches in a chain. The receiver pauses the second, that one the first, and that one the source.
#[test]
fn pause_travels_up_a_chain_to_the_source() {
    let ((h0, s0), (a, b), (s1, h1)) = (link(1_024), link(64), link(1_024));
    let first = switch("first", vec![(s0, true), (a, true)], &small());
    let second = switch("second", vec![(b, true), (s1, true)], &small());
    let mut receiver = PfcHost::new(&h1, std::iter::empty());
    receiver.host.send_one(pause(u16::MAX));
    wait(&second, |c| at(c, 1).is_paused);
    let count = 2_000;
    let mut source = PfcHost::new(&h0, (0..count).map(|n| frame(0, host_mac(1), LOSSLESS, n, 1_000)));
    let start = Instant::now();
    let is_stopped = || {
        let [first, second] = [&first, &second].map(|switch| switch.counters().unwrap());
        at(&second, 0).is_stopping && at(&first, 1).is_paused && at(&first, 0).is_stopping
    };
    // What a switch publishes comes a little later, and a pause that is not renewed ends.
    while !(source.is_paused && is_stopped()) {
        assert!(start.elapsed() < TIMEOUT);
        receiver.pause(&pause(u16::MAX));
        source.take(32);
        source.send_some();
        std::thread::yield_now();
    }
    while receiver.got.len() < count as usize {
        let counters = || [&first, &second].map(|switch| switch.counters().unwrap().ports);
        assert!(
            start.elapsed() < TIMEOUT,
            "{}: {:?}",
            receiver.got.len(),
            counters()
        );
        receiver.pause(&pause(0));
        source.take(32);
        source.send_some();
        receiver.take(32);
    }
    assert_eq!(numbers(&receiver.got, LOSSLESS), (0..count).collect::<Vec<_>>());
    for switch in [&first, &second] {
        let counters = wait(switch, |c| !at(c, 0).is_stopping);
        assert_eq!(counters.drops.total(), 0, "{counters:?}");
    }
}

/// Three switches in a ring, each with frames for the host two switches on. Each has paused the one before it, and waits for the next one.
#[test]
fn a_deadlock_is_broken_by_the_watchdog() {
    // Longer than it takes to fill the ring on a busy machine: otherwise the first switch drops its frames, and there is no deadlock.
    let config = PfcConfig {
        watchdog: Some(Nanos::from_secs(2)),
        ..small()
    };
    let hosts: Vec<_> = (0..3).map(|_| link(1_024)).collect();
    let ring: Vec<_> = (0..3).map(|_| link(64)).collect();
    // Port 0: the host; port 1: the switch before; port 2: the next switch. Nothing is flooded around the ring.
    let switches: Vec<Dataplane> = (0..3)
        .map(|n| {
            let before = ring[(n + 2) % 3].1.clone();
            let ports = vec![
                (hosts[n].0.clone(), true),
                (before, false),
                (ring[n].0.clone(), false),
            ];
            switch(&format!("s{n}"), ports, &config)
        })
        .collect();
    let pool = pool();
    let inject = |end: &MemEnd, frames: &[Vec<u8>]| {
        let mut port = end.open(&pool, Sides::Send);
        let mut batch = Batch::new();
        batch.extend(frames.iter().map(|f| pool.copy_from(f).unwrap()));
        port.send(&mut batch);
        assert_eq!(port.stats().drops.total(), 0);
    };
    for n in 0..3 {
        let next = &ring[n].1;
        let learned = [1, 2].map(|on| frame((n + on) % 3, host_mac(n), 0, 0, 64));
        inject(next, &[&learned[..], &[pause(u16::MAX)]].concat());
        wait(&switches[n], |c| at(c, 2).is_paused);
    }
    // Frames from the switch before, for the host behind the next switch.
    for n in 0..3 {
        let flow = (0..30).map(|number| frame((n + 2) % 3, host_mac((n + 1) % 3), LOSSLESS, number, 1_000));
        inject(&ring[(n + 2) % 3].0, &flow.collect::<Vec<_>>());
    }
    let stopped = |c: &Counters| at(c, 1).counters.pause_sent > 0 && at(c, 2).counters.pause_received > 1;
    switches.iter().for_each(|switch| drop(wait(switch, stopped)));
    let mut storms = 0;
    for switch in &switches {
        let counters = wait(switch, |c| {
            !at(c, 1).is_stopping && !at(c, 2).is_paused && !at(c, 2).has_storm
        });
        storms += at(&counters, 2).counters.storms;
    }
    assert!(storms > 0);
    let mut hosts: Vec<Host> = hosts.iter().map(|(_, end)| Host::new(end)).collect();
    for (n, host) in hosts.iter_mut().enumerate() {
        host.send_one(frame(n, host_mac((n + 2) % 3), LOSSLESS, 1_000, 64));
    }
    for host in &mut hosts {
        let mut got = Vec::new();
        while !got.contains(&1_000) {
            got.extend(numbers(&host.receive(1), LOSSLESS));
        }
    }
}
