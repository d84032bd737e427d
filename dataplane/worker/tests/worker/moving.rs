//! Groups that move between workers under load. No frame is lost or duplicated, the frames of each connection
//! stay in order, and the output is byte for byte that of a switch without moves.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use castnet_port::Port;
use castnet_rules::{GroupRule, LossPolicy, TranslatedRule};
use castnet_wire::{
    Aeth, Bth, Call, CallFlags, Control, DataType, Ethernet, ExtHeaders, MacAddr, Network, Opcode, Operation,
    Primitive, Psn, Qpn, Syndrome, Verdict, build::emit_ack, emit_roce,
};
use castnet_worker::engine::{EventKind, InstallError as Refused};
use castnet_worker::{
    Balance, Counters, Idle, Installed, MoveCause, MoveError, Moved, SwitchEventKind, WorkerConfig,
};

/// A random number generator whose seed is printed when a test fails.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % below
    }
}

/// The sequence of frames received by one host for one group, split into data and feedback.
type Seen = BTreeMap<(usize, usize, bool), Vec<u64>>;

fn note(seen: &mut Seen, host: usize, group: usize, feedback: bool, frame: &[u8]) {
    let mut hasher = DefaultHasher::new();
    frame.hash(&mut hasher);
    seen.entry((host, group, feedback))
        .or_default()
        .push(hasher.finish());
}

const HOSTS: usize = 4;
/// Multicast groups 0 to 3. Host `n` is the source of group `n`.
const CASTS: usize = 4;
/// Collective groups 10 and 11 of hosts 0 to 2.
const SUMS: std::ops::Range<usize> = 10..12;
const RANKS: usize = 3;

fn cast(n: usize) -> GroupRule {
    rule(n, &(0..HOSTS).map(|i| (n + i) % HOSTS).collect::<Vec<_>>())
}

fn sums(n: usize) -> GroupRule {
    let kind = TranslatedRule {
        // A slow test machine causes no retransmission: neither by a switch that hears nothing for some round trips, nor by a time-out.
        loss_policy: LossPolicy::Reflect,
        ack_timeout_us: 30_000_000,
        ..TranslatedRule::root(64)
    };
    collective(n, RANKS, kind, |_| (0, 0))
}

fn headers(from: usize, group: usize) -> (Ethernet, Network) {
    let ethernet = Ethernet {
        dst: MacAddr([2; 6]),
        src: host_mac(from),
        vlan: None,
        ethertype: 0x0800,
    };
    (ethernet, Network::v4(host_ip(from), mcst(group).0))
}

/// Packet `psn` of a rank. Packets alternate between the header of a collective and its only data packet.
fn contribution(rank: usize, group: usize, psn: u32) -> Vec<u8> {
    let (ethernet, network) = headers(rank, group);
    let mut payload = vec![0; 1024];
    let imm = psn.is_multiple_of(2).then_some(Control::IMMEDIATE);
    if imm.is_some() {
        let call = Call {
            primitive: Primitive::AllReduce,
            root: 0,
            roots: 1,
            operation: Operation::Sum,
            data_type: DataType::I32,
            flags: CallFlags::default(),
            elements: 256,
            packets: 1,
        };
        let mut bytes = [0; Control::LEN];
        Control {
            sequence: psn / 2,
            rank: rank as u16,
            call,
            verdict: Verdict::Agreed,
        }
        .emit(&mut bytes);
        payload = bytes.to_vec();
    } else {
        for (i, word) in payload.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *word = (i as u32 * 7 + psn + rank as u32).to_le_bytes();
        }
    }
    let opcode = if imm.is_some() {
        Opcode::SendOnlyImm
    } else {
        Opcode::SendOnly
    };
    let bth = Bth {
        ack_request: true,
        ..Bth::new(opcode, Qpn::VIRTUAL, Psn::new(psn))
    };
    let ext = ExtHeaders {
        imm,
        ..ExtHeaders::NONE
    };
    let mut out = vec![0; payload.len() + 128];
    let n = emit_roce(&mut out, &ethernet, &network, 0xC000, &bth, &ext, &payload).unwrap();
    out.truncate(n);
    out
}

fn acknowledge(rank: usize, group: usize, psn: Psn) -> Vec<u8> {
    let (ethernet, network) = headers(rank, group);
    let aeth = Aeth {
        syndrome: Syndrome::Ack,
        msn: psn.value() + 1,
    };
    let mut out = vec![0; 128];
    let n = emit_ack(&mut out, &ethernet, &network, 0xC000, Qpn::VIRTUAL, psn, aeth).unwrap();
    out.truncate(n);
    out
}

/// Progress of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    sent: [u32; HOSTS],
    /// PSN acknowledged to the source; or, by rank, the number of results received.
    done: [u32; HOSTS],
}

/// The traffic of all hosts. Each source sends the data of its groups at most `window` packets ahead of the
/// acknowledgements, each receiver acknowledges every packet, and each rank contributes at most `window`
/// packets ahead of its results.
struct Traffic {
    hosts: Vec<Host>,
    window: u32,
    casts: [Progress; CASTS],
    sums: Vec<Progress>,
    seen: Seen,
}

impl Traffic {
    fn new(lab: &Lab, window: u32) -> Self {
        for n in 0..CASTS {
            lab.install(&cast(n));
        }
        for n in SUMS {
            lab.dataplane.install(&sums(n)).unwrap();
        }
        Self {
            hosts: lab.hosts(),
            window,
            casts: Default::default(),
            sums: vec![Progress::default(); SUMS.len()],
            seen: Seen::new(),
        }
    }

    /// One iteration of all hosts. `more` returns up to which packet the n-th group sends, multicast groups
    /// first. Returns true if all sent packets are completed.
    fn turn(&mut self, more: impl Fn(usize) -> u32) -> bool {
        let mut all_done = true;
        for n in 0..CASTS {
            let progress = &mut self.casts[n];
            let up_to = more(n).min(progress.done[0] + self.window);
            let frames: Vec<_> = (progress.sent[0]..up_to)
                .map(|psn| data(n, n, psn, 40 + 90 * (psn as usize % 11)))
                .collect();
            self.hosts[n].send(&frames);
            progress.sent[0] = progress.sent[0].max(up_to);
            all_done &= progress.done[0] == progress.sent[0];
        }
        for (i, progress) in self.sums.iter_mut().enumerate() {
            for rank in 0..RANKS {
                // A packet may be sent only if its slot is free.
                let up_to = more(CASTS + i).min(progress.done[rank] + self.window.min(32));
                let frames: Vec<_> = (progress.sent[rank]..up_to)
                    .map(|psn| contribution(rank, SUMS.start + i, psn))
                    .collect();
                self.hosts[rank].send(&frames);
                progress.sent[rank] = progress.sent[rank].max(up_to);
                all_done &= progress.done[rank] == progress.sent[rank];
            }
        }
        for me in 0..HOSTS {
            let mut answers = Vec::new();
            for frame in self.hosts[me].poll() {
                let header = roce(&frame);
                let castnet_wire::IpAddrs::V4 { src, .. } = header.ip else {
                    panic!("not a frame of a group: {header:?}")
                };
                let group = usize::from(src.octets()[3]);
                let feedback = header.aeth.is_some();
                if group < CASTS {
                    note(&mut self.seen, me, group, feedback, &frame);
                    match header.aeth {
                        Some(aeth) => {
                            assert_eq!(
                                aeth.syndrome,
                                Syndrome::Ack,
                                "no packet is lost, so none is missed"
                            );
                            self.casts[group].done[0] = header.bth.psn.value() + 1;
                        }
                        None => answers.push(ack(group, me, header.bth.psn.value())),
                    }
                } else if !feedback {
                    // The timing of a rank's own acknowledgements depends on the order of the ranks.
                    note(&mut self.seen, me, group, false, &frame);
                    self.sums[group - SUMS.start].done[me] += 1;
                    answers.push(acknowledge(me, group, header.bth.psn));
                }
            }
            self.hosts[me].send(&answers);
        }
        all_done
    }

    fn sent(&self, group: usize) -> u32 {
        match group.checked_sub(CASTS) {
            None => self.casts[group].sent[0],
            Some(i) => self.sums[i].sent.iter().copied().max().unwrap_or(0),
        }
    }

    /// Frames that all hosts have sent.
    fn frames(&self) -> u64 {
        self.hosts.iter().map(|h| h.port.stats().tx_frames).sum()
    }

    /// Continues until all ranks have sent the same number of packets and all packets are completed.
    fn finish(&mut self, lab: &Lab) {
        let upto: Vec<u32> = (0..CASTS + SUMS.len()).map(|n| self.sent(n)).collect();
        // A collective has two packets.
        let upto = |n: usize| {
            if n < CASTS {
                upto[n]
            } else {
                upto[n].next_multiple_of(2)
            }
        };
        let start = Instant::now();
        while !self.turn(upto) || (0..CASTS + SUMS.len()).any(|n| self.sent(n) < upto(n)) {
            if start.elapsed() > TIMEOUT {
                panic!(
                    "no progress: {:?}",
                    (&self.casts, &self.sums, lab.dataplane.counters().unwrap())
                );
            }
        }
        lab.wait("the last acknowledgements", |c| {
            c.totals.received == self.frames()
        });
    }
}

fn all_groups() -> Vec<usize> {
    (0..CASTS).chain(SUMS).collect()
}

/// The same traffic through a switch with one worker and no moves.
fn still(traffic: &Traffic) -> (Seen, Counters) {
    let lab = Lab::new(HOSTS, 1);
    let mut same = Traffic::new(&lab, 32);
    let start = Instant::now();
    while !same.turn(|n| traffic.sent(n)) || (0..CASTS + SUMS.len()).any(|n| same.sent(n) < traffic.sent(n)) {
        assert!(
            start.elapsed() < TIMEOUT,
            "the switch without moves makes no progress"
        );
    }
    lab.wait("the last acknowledgements", |c| {
        c.totals.received == same.frames()
    });
    (same.seen, lab.dataplane.stop().unwrap())
}

struct Case {
    workers: usize,
    hand_over: usize,
    hold: usize,
    window: u32,
    idle: Idle,
    moves: u64,
}

fn check_moves_change_no_output(seed: u64, case: &Case) {
    let lab = Lab::with(HOSTS, case.workers, |config| {
        config.hand_over = case.hand_over;
        config.hold = case.hold;
        config.workers = vec![
            WorkerConfig {
                core: None,
                idle: case.idle
            };
            case.workers
        ];
        // Rings and holds may be smaller than the traffic in flight.
        config.patient = true;
    });
    let mut traffic = Traffic::new(&lab, case.window);
    let (done, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut numbers = Numbers(seed);
            let groups = all_groups();
            while moves.load(Ordering::Relaxed) < case.moves {
                let group = groups[numbers.next(groups.len())];
                let to = numbers.next(case.workers);
                match lab.dataplane.move_group(mcst(group), to) {
                    Ok(moved) => {
                        assert_eq!(moved.to, to);
                        moves.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(MoveError::Already { worker, .. }) => assert_eq!(worker, to),
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) && !mover.is_finished() {
            traffic.turn(|_| u32::MAX);
        }
        mover.join().unwrap();
    });
    traffic.finish(&lab);
    let last = lab.dataplane.stop().unwrap();
    assert_conserved(&last);
    assert_eq!(last.totals.dropped, 0, "seed {seed}");
    let moved: u64 = last.workers.iter().map(|w| w.counters.groups_in).sum();
    assert_eq!(moved, case.moves);
    assert_eq!(
        moved,
        last.workers.iter().map(|w| w.counters.groups_out).sum::<u64>()
    );

    let (expected, one) = still(&traffic);
    assert_eq!(
        expected.keys().collect::<Vec<_>>(),
        traffic.seen.keys().collect::<Vec<_>>(),
        "seed {seed}"
    );
    for (key, frames) in &expected {
        let got = &traffic.seen[key];
        let same = got.iter().zip(frames).take_while(|(a, b)| a == b).count();
        assert!(
            same == frames.len() && got.len() == frames.len(),
            "seed {seed}: (host, group, feedback) {key:?}: frame {same} differs; received {}, expected {}",
            got.len(),
            frames.len()
        );
    }
    for n in 0..CASTS {
        let (moved, still) = (last.group(mcst(n)).unwrap(), one.group(mcst(n)).unwrap());
        assert_eq!(&moved.counters, &still.counters, "seed {seed}");
    }
    for n in SUMS {
        let of = |c: &Counters| {
            let (c, _) = c.group(mcst(n)).unwrap().counters.translated().unwrap();
            (
                c.contributions,
                c.contribution_bytes,
                c.results,
                c.result_bytes,
                c.repeats,
                c.acks_in,
                c.lost,
            )
        };
        assert_eq!(of(&last), of(&one), "seed {seed}");
    }
}

/// `CASTNET_MOVES` multiplies the number of moves.
#[test]
fn moves_under_load_change_no_output() {
    let adaptive = Idle::default();
    let cases = [
        // All frames in flight fit into rings and holds.
        Case {
            workers: 2,
            hand_over: 1024,
            hold: 1024,
            window: 32,
            idle: adaptive,
            moves: 300,
        },
        // The traffic fills the hold, so that frames wait in rings and ports.
        Case {
            workers: 2,
            hand_over: 128,
            hold: 1,
            window: 120,
            idle: adaptive,
            moves: 100,
        },
        // The traffic fills the rings as well.
        Case {
            workers: 3,
            hand_over: 4,
            hold: 1,
            window: 60,
            idle: adaptive,
            moves: 100,
        },
    ];
    let more: u64 = std::env::var("CASTNET_MOVES").map_or(1, |times| times.parse().unwrap());
    for (i, mut case) in cases.into_iter().enumerate() {
        case.moves *= more;
        check_moves_change_no_output(0xCA57 + i as u64, &case);
    }
}

#[test]
fn an_impossible_move_is_refused_and_changes_nothing() {
    let lab = Lab::with(3, 2, |config| config.engine.next_hops_max = 3);
    let move_to = |n, worker| lab.dataplane.move_group(mcst(n), worker);
    lab.install(&rule(1, &[0, 1]));
    let other = |n: usize, ports: &[usize]| {
        let mut rule = rule(n, ports);
        for path in &mut rule.endpoints {
            if let castnet_rules::NextHop::Host(host) = &mut path.next_hop {
                host.mac = MacAddr([0x02, 0xBB, 0, 0, 0, host.mac.0[5]]);
            }
        }
        rule
    };
    // The other worker already has two next hops, so only one more fits.
    lab.install(&other(2, &[0, 1]));
    assert_eq!(
        move_to(1, 1),
        Err(MoveError::Refused(Refused::NextHopsFull)),
        "one of two fits; no memory stays reserved"
    );
    assert_eq!(move_to(7, 1), Err(MoveError::NoGroup { mcst_id: mcst(7) }));
    assert_eq!(
        move_to(1, 2),
        Err(MoveError::NoWorker {
            worker: 2,
            workers: 2
        })
    );
    let already = MoveError::Already {
        name: "g1".into(),
        worker: 0,
    };
    assert_eq!(move_to(1, 0), Err(already));
    let events = lab.dataplane.events();
    let mut h = lab.hosts();
    h[0].send_one(data(1, 0, 0, 100));
    assert_eq!(h[1].receive(1).len(), 1);
    assert!(lab.dataplane.remove_group(mcst(2)).unwrap().is_some());
    assert_eq!(move_to(1, 1), Ok(Moved { from: 0, to: 1 }));
    h[0].send_one(data(1, 0, 1, 100));
    assert_eq!(roce(&h[1].receive(1)[0]).bth.psn, Psn::new(1));
    let group = lab.dataplane.group(mcst(1)).unwrap().unwrap();
    assert_eq!(
        (group.worker, group.status.multicast().unwrap().counters.data_in),
        (1, 2)
    );
    let moved = std::iter::from_fn(|| events.recv_timeout(TIMEOUT).ok()).find_map(|event| match event.kind {
        SwitchEventKind::GroupMoved {
            name,
            from,
            to,
            cause,
            ..
        } => Some((name, from, to, cause)),
        _ => None,
    });
    assert_eq!(moved, Some(("g1".into(), 0, 1, MoveCause::Asked)));
    lab.dataplane.stop();
    assert!(matches!(move_to(1, 0), Err(MoveError::Stopped(_))));
}

/// A group's timers work at its new worker.
#[test]
fn timers_move_with_the_group() {
    let lab = Lab::new(3, 2);
    let mut stalling = rule(1, &[0, 1]);
    stalling.stall_timeout_ms = 200;
    lab.install(&stalling);
    let waiting = sums(10).with_translated(|rule| rule.ack_timeout_us = 100_000);
    assert_eq!(
        lab.dataplane.install(&waiting).unwrap(),
        Installed::New { worker: 1 }
    );
    let events = lab.dataplane.events();
    let mut h = lab.hosts();
    h[0].send_one(data(1, 0, 0, 100));
    assert_eq!(h[1].receive(1).len(), 1);
    // A rank that is ahead and must wait.
    h[2].send(&[contribution(2, 10, 0), contribution(2, 10, 1)]);
    let sums = |c: &Counters| *c.group(mcst(10)).unwrap().counters.translated().unwrap().0;
    lab.wait("the contribution is there", |c| sums(c).contributions == 1);
    lab.dataplane.move_group(mcst(1), 1).unwrap();
    lab.dataplane.move_group(mcst(10), 0).unwrap();
    let kept = sums(&lab.dataplane.counters().unwrap()).keep_alives;
    let stalled = |kind: &SwitchEventKind| matches!(kind, SwitchEventKind::Engine(EventKind::PathStalled { mcst_id, .. }) if *mcst_id == mcst(1));
    while !stalled(&events.recv_timeout(TIMEOUT).expect("a stall event").kind) {}
    lab.wait("the early rank is kept waiting", |c| {
        sums(c).keep_alives > kept + 2
    });
    let group = lab.dataplane.group(mcst(10)).unwrap().unwrap();
    assert_eq!(group.worker, 0);
}

/// Groups are installed, removed and replaced while they and others move. The remaining groups are not disturbed.
#[test]
fn removing_and_replacing_work_during_moves() {
    const SEED: u64 = 0x5EED;
    let lab = Lab::with(HOSTS, 2, |config| config.patient = true);
    let mut traffic = Traffic::new(&lab, 32);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let changer = scope.spawn(|| {
            for i in 0..300 {
                let mut rule = rule(50 + i % 3, &[0, 1, 2]);
                rule.generation = i as u64 + 1;
                lab.install(&rule);
                if i % 7 == 0 {
                    let gone = lab.dataplane.remove_group(rule.mcst_id).unwrap();
                    assert_eq!(gone, Some(rule));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let mover = scope.spawn(|| {
            let mut numbers = Numbers(SEED);
            let groups: Vec<usize> = all_groups().into_iter().chain(50..53).collect();
            let mut moved = 0;
            while !done.load(Ordering::Relaxed) || moved < 100 {
                match lab
                    .dataplane
                    .move_group(mcst(groups[numbers.next(groups.len())]), numbers.next(2))
                {
                    Ok(_) => moved += 1,
                    Err(MoveError::Already { .. } | MoveError::NoGroup { .. }) => {}
                    Err(error) => panic!("seed {SEED}: {error}"),
                }
            }
        });
        while !(changer.is_finished() && mover.is_finished()) {
            traffic.turn(|_| u32::MAX);
        }
        changer.join().unwrap();
        mover.join().unwrap();
    });
    traffic.finish(&lab);
    // Control's view of the groups is correct.
    let counters = lab.dataplane.counters().unwrap();
    for group in lab.dataplane.groups().unwrap() {
        assert_eq!(counters.group(group.rule.mcst_id).unwrap().worker, group.worker);
        assert_eq!(group.status.rule().generation, group.rule.generation);
    }
    let last = lab.dataplane.stop().unwrap();
    assert_conserved(&last);
    assert_eq!(last.totals.dropped, 0);
    let (expected, _) = still(&traffic);
    assert!(expected == traffic.seen, "seed {SEED}");
}

/// Two groups on one worker get as much as their links hold, until the worker is overloaded. Then one group moves. Each frame has many copies,
/// which nobody reads: the worker has more to do than those who send, however much else the machine does.
#[test]
fn an_overloaded_worker_loses_a_group() {
    const PORTS: usize = 16;
    let lab = Lab::with(PORTS, 2, |config| {
        config.balance = Some(Balance {
            interval: Duration::from_millis(50),
            // Half of the load of a worker is below it: that is what a group takes along.
            threshold: 0.6,
        });
    });
    for n in [1, 2] {
        let receivers = (2..PORTS).collect::<Vec<_>>();
        lab.install(&rule(n, &[&[n - 1], &receivers[..]].concat()));
    }
    let workers = || [1, 2].map(|n| lab.dataplane.group(mcst(n)).unwrap().unwrap().worker);
    if workers() == [0, 1] {
        lab.dataplane.move_group(mcst(2), 0).unwrap();
    }
    let events = lab.dataplane.events();
    // Written once and repeated: sending is less work than the switch has with it.
    let frames = [1, 2].map(|n| (0..512).map(|psn| data(n, n - 1, psn, 1000)).collect::<Vec<_>>());
    let (mut h, start, mut moved) = (lab.hosts(), Instant::now(), None);
    while moved.is_none() && start.elapsed() < TIMEOUT {
        for (host, frames) in h.iter_mut().zip(&frames) {
            host.flood(frames);
        }
        while let Ok(event) = events.recv_timeout(Duration::ZERO) {
            if let SwitchEventKind::GroupMoved { from, to, cause, .. } = event.kind {
                moved = Some((from, to, cause));
            }
        }
    }
    assert!(
        matches!(moved, Some((0, 1, MoveCause::Overload { busy_percent: 60.. }))),
        "{moved:?}: {:?}",
        lab.dataplane.runtime()
    );
    assert_eq!(lab.dataplane.runtime().unwrap()[1].counters.groups_in, 1);
}
