//! The network itself: time, rate, queue, faults and order. A run can be repeated to the nanosecond.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use castnet_endpoint::{Access, LocalSlice, QpConfig, RecvWr, SendOp, SendWr, Status};
use castnet_sim::{Delivery, End, Fate, Hop, LinkProfile, SimConfig, SimError, Simulation, View, Watch};
use castnet_topology::{End as LinkEnd, LinkId, Topology};
use castnet_wire::{Nanos, Psn, Qpn};
use proptest::prelude::*;

/// Arrival time, host and bytes of each frame.
type Arrivals = Vec<(Nanos, String, Vec<u8>)>;

/// Records the frames that arrive at hosts.
#[derive(Clone, Debug, Default)]
struct Log(Rc<RefCell<Arrivals>>);

impl Watch for Log {
    fn delivered(&mut self, view: &View<'_>, delivery: Delivery<'_>) {
        if view.endpoint(delivery.to).is_some() {
            let name = view.name(delivery.to).to_string();
            self.0
                .borrow_mut()
                .push((view.now, name, delivery.frame.to_vec()));
        }
    }
}

/// Two hosts at one switch with links of `profile`. Frames go from h0 to h1's MAC address.
fn pair(seed: u64, profile: LinkProfile) -> (Simulation<Log>, Log, Topology) {
    let topology = Topology::star(2).expect("a star");
    let log = Log::default();
    let config = SimConfig {
        links: profile,
        poll_delay: Nanos(0),
        trace_frames_max: 64,
        ..SimConfig::new(seed)
    };
    let sim = Simulation::new(&topology, config, log.clone()).expect("a network");
    (sim, log, topology)
}

fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0; length.max(60)];
    frame[..6].copy_from_slice(&[2, 0, 10, 0, 0, 2]);
    frame[6..12].copy_from_slice(&[2, 0, 10, 0, 0, 1]);
    // An EtherType for local experiments, switched like any other.
    frame[12..14].copy_from_slice(&[0x88, 0xB5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().expect("four bytes"))
}

#[test]
fn a_frame_takes_serialization_and_propagation_time() {
    let profile = LinkProfile {
        rate_bps: 1_000_000_000,
        delay: Nanos(700),
        ..LinkProfile::default()
    };
    let (mut sim, log, _) = pair(1, profile);
    assert!(sim.inject("h0", frame(0, 1000)));
    assert_eq!(sim.run(Nanos::from_secs(1)), End::Deadline);
    // Two links, on each 1024 bytes with preamble, FCS and gap at 1 ns a bit, and 700 ns.
    assert_eq!(log.0.borrow()[0].0, Nanos(2 * (1024 * 8 + 700)));
}

#[test]
fn frames_are_queued_and_a_full_queue_drops_new_ones() {
    let profile = LinkProfile {
        rate_bps: 1_000_000_000,
        queue_bytes: 5_000,
        ..LinkProfile::default()
    };
    let (mut sim, log, topology) = pair(1, profile);
    (0..10).for_each(|n| _ = sim.inject("h0", frame(n, 1000)));
    sim.run(Nanos::from_secs(1));
    let arrived: Vec<u32> = log.0.borrow().iter().map(|(_, _, f)| number(f)).collect();
    // The first frame leaves at once. At most 5000 bytes wait behind it, including its own remaining bits.
    assert_eq!(arrived, [0, 1, 2, 3]);
    let link = topology
        .link_at(&LinkEnd::host("h0"))
        .and_then(|l| sim.stats(l))
        .expect("a link");
    assert_eq!((link[1].sent, link[1].queue_full, link[1].delivered), (10, 6, 4));
    let times: Vec<u64> = log.0.borrow().iter().map(|(at, _, _)| at.0).collect();
    assert!(
        times.windows(2).all(|w| w[1] - w[0] == 1024 * 8),
        "back to back: {times:?}"
    );
}

#[test]
fn faults_occur_at_their_rate_and_are_counted() {
    let profile = LinkProfile {
        loss: 0.1,
        duplication: 0.2,
        reordering: 0.3,
        corruption: 0.05,
        queue_bytes: u64::MAX,
        ..LinkProfile::default()
    };
    let (mut sim, log, topology) = pair(
        7,
        LinkProfile {
            queue_bytes: u64::MAX,
            ..LinkProfile::default()
        },
    );
    let link = topology.link_at(&LinkEnd::host("h0")).expect("a link");
    sim.set_profile(link, [LinkProfile::default(), profile]);
    let count = 20_000u32;
    (0..count).for_each(|n| _ = sim.inject("h0", frame(n, 100)));
    sim.run(Nanos::from_secs(1));
    let stats = sim.stats(link).expect("a link")[1];
    let near = |what: &str, n: u64, share: f64| {
        let expected = share * f64::from(count);
        assert!(
            (n as f64 - expected).abs() < expected * 0.1,
            "{what}: {n}, about {expected}"
        );
    };
    near("lost", stats.lost, 0.1);
    near("duplicated", stats.duplicated, 0.9 * 0.2);
    near("reordered", stats.reordered, 0.9 * 0.3);
    near("corrupted", stats.corrupted, 0.9 * 0.05);
    assert_eq!(stats.delivered, u64::from(count) - stats.lost + stats.duplicated);
    let log = log.0.borrow();
    let overtaken = log
        .windows(2)
        .filter(|w| number(&w[0].2) > number(&w[1].2))
        .count();
    assert!(overtaken > 1_000, "{overtaken}");
}

#[test]
fn corruption_flips_one_bit() {
    let (mut sim, log, topology) = pair(3, LinkProfile::default());
    let link = topology.link_at(&LinkEnd::host("h1")).expect("a link");
    sim.set_profile(
        link,
        [LinkProfile {
            corruption: 1.0,
            ..LinkProfile::default()
        }; 2],
    );
    (0..50).for_each(|_| _ = sim.inject("h0", frame(9, 200)));
    sim.run(Nanos::from_secs(1));
    let sent = frame(9, 200);
    for (_, _, got) in log.0.borrow().iter() {
        let turned: u32 = sent.iter().zip(got).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!((turned, got.len()), (1, sent.len()));
    }
    assert_eq!(log.0.borrow().len(), 50);
}

#[test]
fn links_and_switches_go_down_and_come_back() {
    let (mut sim, log, topology) = pair(3, LinkProfile::default());
    let link = topology.link_at(&LinkEnd::host("h0")).expect("a link");
    let send = |sim: &mut Simulation<Log>, n| {
        sim.inject("h0", frame(n, 100));
        let at = sim.now() + Nanos::from_millis(1);
        sim.run(at);
    };
    send(&mut sim, 0);
    sim.set_link_up(link, false);
    send(&mut sim, 1);
    sim.set_link_up(link, true);
    sim.stop_switch("s0");
    send(&mut sim, 2);
    assert!(sim.engine("s0").is_none());
    assert_eq!(sim.start_switch("s0"), Ok(()));
    send(&mut sim, 3);
    assert_eq!(
        log.0
            .borrow()
            .iter()
            .map(|(_, _, f)| number(f))
            .collect::<Vec<_>>(),
        [0, 3]
    );
    assert_eq!(
        (sim.stats(link).expect("a link")[1].down, sim.missed("s0")),
        (1, 1)
    );
    assert_eq!(
        sim.start_switch("s9"),
        Err(SimError::NoSwitch { switch: "s9".into() })
    );
}

#[test]
fn actions_run_at_their_time_in_order() {
    let (mut sim, _, _) = pair(3, LinkProfile::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    for (at, what) in [(30, 'c'), (10, 'a'), (30, 'd'), (20, 'b')] {
        let seen = Arc::clone(&seen);
        sim.at(Nanos(at), move |sim| {
            seen.lock().expect("no panic").push((sim.now().0, what))
        });
    }
    let end = sim.run_until(Nanos::from_secs(1), |sim| sim.now() >= Nanos(30));
    assert_eq!(
        (end, seen.lock().expect("no panic").len()),
        (End::Done, 3),
        "the fourth waits for its time"
    );
    assert_eq!(sim.run(Nanos(31)), End::Idle);
    assert_eq!(
        *seen.lock().expect("no panic"),
        [(10, 'a'), (20, 'b'), (30, 'c'), (30, 'd')]
    );
}

#[test]
fn hosts_without_addresses_cannot_be_simulated() {
    let mut topology = Topology::star(1).expect("a star");
    topology.set_host_addresses("h0", None, None);
    let refused = Simulation::new(&topology, SimConfig::new(0), ()).err();
    assert_eq!(refused, Some(SimError::NoAddress { host: "h0".into() }));
}

/// Counts the fates of frames on one link.
#[derive(Default)]
struct Fates([u64; 2]);

impl Watch for Fates {
    fn sent(&mut self, _: &View<'_>, _: Hop, _: &[u8], fate: Fate) {
        self.0[usize::from(fate != Fate::Delivered)] += 1;
    }
}

/// A unicast RC transfer across a tree of switches, which learn the locations of the hosts. Returns the trace.
fn unicast(seed: u64) -> String {
    let topology = Topology::tree(2, 3).expect("a tree");
    let links = LinkProfile {
        loss: 0.02,
        reordering: 0.02,
        duplication: 0.02,
        ..LinkProfile::default()
    };
    let config = SimConfig {
        links,
        trace_frames_max: 100_000,
        ..SimConfig::new(seed)
    };
    let mut sim = Simulation::new(&topology, config, Fates::default()).expect("a network");
    let message: Vec<u8> = (0..50_000u32).map(|i| (i * 7 + seed as u32) as u8).collect();
    let addresses = |name: &str| topology.host(name).and_then(|h| h.ip.zip(h.mac)).expect("a host");
    let mut received = None;
    for (me, peer) in [("h0", "h7"), ("h7", "h0")] {
        let (ip, mac) = addresses(peer);
        let config = QpConfig {
            sq_psn: Psn::new(0xFF_FFF0),
            rq_psn: Psn::new(0xFF_FFF0),
            timeout: 8,
            ..QpConfig::new(Qpn::new(17), ip, castnet_wire::MacAddr(mac), Qpn::new(17))
        };
        sim.with_endpoint(me, |e, _| e.create_qp(config))
            .expect("a host")
            .expect("a QP");
    }
    let length = message.len() as u32;
    sim.with_endpoint("h7", |e, _| {
        let key = e
            .register_memory(0, vec![0; length as usize], Access::LOCAL)
            .expect("memory");
        received = Some(key);
        e.post_recv(
            Qpn::new(17),
            RecvWr {
                wr_id: 1,
                local: LocalSlice {
                    key,
                    offset: 0,
                    length,
                },
            },
        )
    })
    .expect("a host")
    .expect("posted");
    sim.with_endpoint("h0", |e, _| {
        let key = e
            .register_memory(0, message.clone(), Access::READ)
            .expect("memory");
        let wr = SendWr::new(
            2,
            SendOp::Send,
            LocalSlice {
                key,
                offset: 0,
                length,
            },
        );
        e.post_send(Qpn::new(17), wr)
    })
    .expect("a host")
    .expect("posted");
    let end = sim.run_until(Nanos::from_secs(10), |sim| !sim.completions("h0").is_empty());
    assert_eq!(end, End::Done, "seed {seed}");
    assert_eq!(sim.completions("h0")[0].1.status, Status::Success);
    assert_eq!(sim.completions("h7")[0].1.byte_len, length);
    let got = received.and_then(|key| sim.endpoint("h7").and_then(|e| e.memory(key).ok()));
    assert!(got == Some(&message[..]), "seed {seed}");
    assert!(sim.watch().0.iter().sum::<u64>() > 300, "{:?}", sim.watch().0);
    sim.trace().to_string()
}

#[test]
fn the_trace_is_written_as_a_capture_file() {
    let (mut sim, _, _) = pair(1, LinkProfile::default());
    sim.inject("h0", frame(5, 100));
    sim.run(Nanos::from_millis(1));
    let (text, pcap) = (sim.trace().to_string(), sim.trace().to_pcap());
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("h0:0 > s0:0"), "{text}");
    assert_eq!(&pcap[..4], &0xA1B2_3C4D_u32.to_le_bytes());
    assert_eq!(pcap.len(), 24 + 2 * (16 + 100));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn unicast_works_and_a_seed_determines_the_run(seed in any::<u64>()) {
        prop_assert_eq!(unicast(seed), unicast(seed));
    }

    /// Without reordering, a link never changes the order of frames, whatever their lengths.
    #[test]
    fn links_keep_order(lengths in proptest::collection::vec(60usize..1500, 1..40), loss in 0.0..0.5) {
        let (mut sim, log, _) = pair(5, LinkProfile { loss, ..LinkProfile::default() });
        lengths.iter().enumerate().for_each(|(n, length)| _ = sim.inject("h0", frame(n as u32, *length)));
        sim.run(Nanos::from_secs(1));
        let arrived: Vec<u32> = log.0.borrow().iter().map(|(_, _, f)| number(f)).collect();
        prop_assert!(arrived.windows(2).all(|w| w[0] < w[1]));
        let lost = sim.totals().lost as usize;
        prop_assert_eq!(arrived.len(), lengths.len() - lost);
    }
}

#[test]
fn links_that_do_not_exist_have_no_statistics() {
    let (mut sim, _, _) = pair(1, LinkProfile::default());
    assert!(sim.stats(LinkId(99)).is_none());
    assert!(!sim.inject("nobody", Vec::new()));
    assert!(
        sim.with_endpoint("s0", |_, _| ()).is_none(),
        "a switch is no host"
    );
    assert!(sim.with_engine("h0", |_, _| ()).is_none(), "a host is no switch");
}
