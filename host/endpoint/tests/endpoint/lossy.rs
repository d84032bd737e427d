//! Two endpoints over a pipe that drops, duplicates, reorders and damages frames, in virtual time. Every byte arrives.
//! Each completion comes exactly once, in order, and not before the responder has the data. When the pipe fails, every
//! work request still completes.

use crate::common::pipe::{Faults, Random, World, ip, mac};
use castnet_endpoint::{
    Access, Completion, CompletionOp, Lent, LocalSlice, MemoryKey, QpConfig, QpState, RecvWr, Repeat, SendOp,
    SendWr, Status,
};
use castnet_wire::{Nanos, Pmtu, Psn, Qpn};
use proptest::prelude::*;

/// Bytes between the areas of two messages, which detect overruns.
const GAP: u64 = 16;
/// The test fails after this many steps.
const STEPS_MAX: u64 = 300_000;

#[derive(Clone, Debug)]
struct Message {
    op: u8,
    length: u32,
    /// Offset of the message's area in the sender's, the receiver's and the target's region.
    area: u64,
}

impl Message {
    fn takes_receive(&self) -> bool {
        self.op != 2
    }

    fn is_write(&self) -> bool {
        self.op >= 2
    }
}

/// One direction of one QP: its messages and their progress.
#[derive(Debug)]
struct Direction {
    qpn: Qpn,
    from: usize,
    messages: Vec<Message>,
    source: MemoryKey,
    /// Receive buffers and WRITE targets are in different regions of the responder.
    receive_region: MemoryKey,
    target: MemoryKey,
    sent: usize,
    received: usize,
    /// The time of posting the next receive.
    receive_at: Nanos,
    receives_posted: usize,
    sends_posted: usize,
    failed: bool,
}

impl Direction {
    fn to(&self) -> usize {
        1 - self.from
    }

    /// The messages that need a receive, in order.
    fn receivers(&self) -> impl Iterator<Item = (usize, &Message)> {
        self.messages
            .iter()
            .enumerate()
            .filter(|(_, m)| m.takes_receive())
    }

    fn done(&self) -> bool {
        self.sent == self.messages.len() && self.received == self.receivers().count()
    }
}

#[derive(Clone, Debug)]
struct Scenario {
    seed: u64,
    pmtu: Pmtu,
    window: u32,
    repeat: Repeat,
    probes: bool,
    faults: Faults,
    retry_cnt: u8,
    qps: u32,
    late_receives: bool,
    dead_at: Nanos,
}

const TARGET_VA: u64 = 0xFFFF_0000_0000;

fn byte(seed: u64, at: u64) -> u8 {
    (seed ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .wrapping_mul(0xBF58_476D_1CE4_E5B9)
        .to_be_bytes()[0]
}

fn random_messages(random: &mut Random, pmtu: u64) -> (Vec<Message>, u64) {
    let mut area = GAP;
    let messages = (0..1 + random.below(12))
        .map(|_| {
            let length = match random.below(8) {
                0 => 0,
                1 => 1,
                2 => pmtu - random.below(2),
                3 => pmtu + 1,
                4 => pmtu * (2 + random.below(4)) + random.below(3) - 1,
                5 if random.below(4) == 0 => pmtu * (70 + random.below(80)),
                _ => random.below(pmtu * 3),
            };
            let message = Message {
                op: random.below(4) as u8,
                length: length as u32,
                area,
            };
            area += length + GAP;
            message
        })
        .collect();
    (messages, area)
}

struct Test {
    scenario: Scenario,
    world: World,
    directions: Vec<Direction>,
}

impl Test {
    fn new(scenario: Scenario) -> Self {
        let mut world = World::new(scenario.seed, scenario.faults);
        world.dead_at = scenario.dead_at;
        let mut directions = Vec::new();
        for q in 0..scenario.qps {
            let qpns = [Qpn::new(0x11 + q), Qpn::new(0x51 + q)];
            // Half of the runs start near the PSN wrap.
            let psns = [0, 1].map(|_| match world.random.below(2) {
                0 => Psn::new(world.random.next() as u32),
                _ => Psn::new(0).add(-(world.random.below(40) as i32)),
            });
            for end in 0..2 {
                let config = QpConfig {
                    sq_psn: psns[end],
                    rq_psn: psns[1 - end],
                    pmtu: scenario.pmtu,
                    window: scenario.window,
                    repeat: scenario.repeat,
                    probes: scenario.probes,
                    timeout: 8,
                    retry_cnt: scenario.retry_cnt,
                    min_rnr_timer: 1 + world.random.below(10) as u8,
                    ..QpConfig::new(qpns[end], ip(1 - end), mac(1 - end), qpns[1 - end])
                };
                world.ends[end].create_qp(config).unwrap();
            }
            for (from, &qpn) in qpns.iter().enumerate() {
                let (messages, size) = random_messages(&mut world.random, scenario.pmtu.bytes() as u64);
                let source: Vec<u8> = (0..size).map(|at| byte(scenario.seed, at)).collect();
                let zeros = || vec![0; size as usize];
                // Memory of other owners in half of the runs.
                let (source, receive_region) = match scenario.seed % 2 {
                    0 => (
                        world.ends[from].register_memory(0, source, Access::READ).unwrap(),
                        world.ends[1 - from]
                            .register_memory(0, zeros(), Access::LOCAL)
                            .unwrap(),
                    ),
                    _ => (
                        world.ends[from].lend_memory(Lent::shared(source.leak())).unwrap(),
                        world.ends[1 - from]
                            .lend_memory(Lent::exclusive(zeros().leak()))
                            .unwrap(),
                    ),
                };
                let target = world.ends[1 - from]
                    .register_memory(TARGET_VA, zeros(), Access::REMOTE_WRITE)
                    .unwrap();
                directions.push(Direction {
                    qpn,
                    from,
                    messages,
                    source,
                    receive_region,
                    target,
                    sent: 0,
                    received: 0,
                    receive_at: Nanos::ZERO,
                    receives_posted: 0,
                    sends_posted: 0,
                    failed: false,
                });
            }
        }
        Self {
            scenario,
            world,
            directions,
        }
    }

    fn remote_qpn(qpn: Qpn) -> Qpn {
        Qpn::new(if qpn.value() < 0x51 {
            qpn.value() + 0x40
        } else {
            qpn.value() - 0x40
        })
    }

    /// Posts sends, and the receives that are due.
    fn post(&mut self) {
        let world = &mut self.world;
        for d in &mut self.directions {
            while let Some(m) = d.messages.get(d.sends_posted) {
                let (va, rkey, imm) = (TARGET_VA + m.area, d.target.rkey(), d.sends_posted as u32);
                let op = match m.op {
                    0 => SendOp::Send,
                    1 => SendOp::SendImm(imm),
                    2 => SendOp::Write { va, rkey },
                    _ => SendOp::WriteImm { va, rkey, imm },
                };
                let local = LocalSlice {
                    key: d.source,
                    offset: m.area,
                    length: m.length,
                };
                let wr = SendWr::new(d.sends_posted as u64, op, local);
                world.ends[d.from].post_send(d.qpn, wr).unwrap();
                d.sends_posted += 1;
            }
            while d.receive_at <= world.now {
                let Some((index, m)) = d.receivers().nth(d.receives_posted) else {
                    d.receive_at = Nanos::MAX;
                    break;
                };
                let length = if m.is_write() { 0 } else { m.length };
                let local = LocalSlice {
                    key: d.receive_region,
                    offset: m.area,
                    length,
                };
                let wr = RecvWr {
                    wr_id: index as u64,
                    local,
                };
                let to = d.to();
                world.ends[to].post_recv(Self::remote_qpn(d.qpn), wr).unwrap();
                d.receives_posted += 1;
                if self.scenario.late_receives {
                    d.receive_at = world.now + Nanos(world.random.below(300_000));
                }
            }
        }
    }

    /// Checks that the responder of `d` has message `index`, byte for byte.
    fn check_delivered(&self, d: &Direction, index: usize) {
        let m = &d.messages[index];
        let key = if m.is_write() { d.target } else { d.receive_region };
        let bytes = &self.world.ends[d.to()].memory(key).unwrap()[m.area as usize..][..m.length as usize];
        let right = bytes
            .iter()
            .enumerate()
            .all(|(i, &b)| b == byte(self.scenario.seed, m.area + i as u64));
        assert!(right, "message {index} is not there: {m:?}");
    }

    fn check_sent(&mut self, at: usize, c: &Completion) {
        let d = &self.directions[at];
        assert_eq!(c.wr_id, d.sent as u64, "sends complete in order, once");
        let m = &d.messages[d.sent];
        assert_eq!(
            c.op,
            if m.is_write() {
                CompletionOp::Write
            } else {
                CompletionOp::Send
            }
        );
        match c.status {
            Status::Success => {
                assert!(!d.failed, "no success after a failure");
                assert_eq!(c.byte_len, m.length);
                self.check_delivered(d, d.sent);
                let receives = d.messages[..=d.sent].iter().filter(|m| m.takes_receive()).count();
                assert!(d.received >= receives, "completed before its receive was");
            }
            Status::RetryExceeded => assert!(!d.failed),
            status => assert_eq!(status, Status::Flushed),
        }
        let d = &mut self.directions[at];
        d.failed |= c.status != Status::Success;
        d.sent += 1;
    }

    fn check_received(&mut self, at: usize, c: &Completion) {
        let d = &self.directions[at];
        let (index, m) = d
            .receivers()
            .nth(d.received)
            .expect("no more receives than posted");
        assert_eq!(c.wr_id, index as u64, "receives complete in order, once");
        if c.status == Status::Success {
            assert_eq!(c.byte_len, m.length);
            assert_eq!(c.imm, (m.op != 0).then_some(index as u32));
            assert_eq!(
                c.op,
                if m.is_write() {
                    CompletionOp::RecvWriteImm
                } else {
                    CompletionOp::Recv
                }
            );
            self.check_delivered(d, index);
        } else {
            assert_eq!(c.status, Status::Flushed);
        }
        self.directions[at].received += 1;
    }

    /// Receives first: the responder must complete a message before the requester does.
    fn completions(&mut self) {
        let mut all = Vec::new();
        for end in 0..2 {
            while let Some(c) = self.world.ends[end].poll_completion() {
                all.push((end, c));
            }
        }
        all.sort_by_key(|(_, c)| matches!(c.op, CompletionOp::Send | CompletionOp::Write));
        for (end, c) in all {
            let is_send = matches!(c.op, CompletionOp::Send | CompletionOp::Write);
            let at = self.directions.iter().position(|d| match is_send {
                true => (d.from, d.qpn) == (end, c.qpn),
                false => (d.to(), Self::remote_qpn(d.qpn)) == (end, c.qpn),
            });
            let at = at.expect("a direction");
            if is_send {
                self.check_sent(at, &c)
            } else {
                self.check_received(at, &c)
            }
        }
    }

    fn step(&mut self) -> bool {
        self.post();
        self.world.transmit();
        self.completions();
        let receive_at = self
            .directions
            .iter()
            .map(|d| d.receive_at)
            .filter(|&at| at != Nanos::MAX)
            .min();
        let Some(at) = self.world.next_at().into_iter().chain(receive_at).min() else {
            return false;
        };
        self.world.advance(at);
        assert!(self.world.steps < STEPS_MAX, "it hangs: {:?}", self.directions);
        true
    }

    fn run_until_done(&mut self) {
        let all_done = |test: &Self| test.directions.iter().all(Direction::done);
        while !all_done(self) {
            assert!(
                self.step() || all_done(self),
                "no further event: {:?}",
                self.directions
            );
        }
        // The bytes between the areas are unchanged.
        for d in &self.directions {
            for key in [d.receive_region, d.target] {
                let bytes = self.world.ends[d.to()].memory(key).unwrap();
                let mut touched = vec![false; bytes.len()];
                for m in d.messages.iter().filter(|m| m.is_write() == (key == d.target)) {
                    touched[m.area as usize..][..m.length as usize].fill(true);
                }
                assert!(
                    bytes.iter().zip(touched).all(|(&b, touched)| touched || b == 0),
                    "overrun"
                );
            }
        }
    }
}

fn faults() -> impl Strategy<Value = Faults> {
    let rate = || prop_oneof![Just(0u64), 1u64..20, 20u64..200];
    (rate(), rate(), rate(), rate()).prop_map(|(loss, duplicate, reorder, corrupt)| Faults {
        loss,
        duplicate,
        reorder,
        corrupt,
    })
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let window = prop_oneof![Just(128u32), 1u32..8, 8u32..300];
    let repeat = prop::sample::select(&[Repeat::All, Repeat::One, Repeat::Requested][..]);
    let windows = (window, repeat, any::<bool>());
    let pmtu = prop::sample::select(&Pmtu::ALL[..]);
    (any::<u64>(), pmtu, windows, faults(), 1u32..4, any::<bool>()).prop_map(
        |(seed, pmtu, (window, repeat, probes), faults, qps, late_receives)| Scenario {
            seed,
            pmtu,
            window,
            repeat,
            probes,
            faults,
            retry_cnt: 7,
            qps,
            late_receives,
            dead_at: Nanos::MAX,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_byte_arrives_and_every_work_request_completes_once(scenario in scenario()) {
        Test::new(scenario).run_until_done();
    }

    #[test]
    fn every_work_request_completes_when_the_pipe_fails(
        scenario in scenario(), dead_at in 0u64..3_000_000, retry_cnt in 0u8..7
    ) {
        let mut test = Test::new(Scenario { retry_cnt, dead_at: Nanos(dead_at), ..scenario });
        while test.step() {}
        for d in &test.directions {
            prop_assert_eq!(d.sent, d.messages.len(), "every send has its completion");
            let state = test.world.ends[d.from].qp_status(d.qpn).unwrap().state;
            prop_assert!(!d.failed || state == QpState::Error);
        }
    }
}

#[test]
fn without_faults_nothing_is_sent_twice() {
    let none = Faults {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
    };
    for seed in 0..20 {
        let mut test = Test::new(Scenario {
            seed,
            pmtu: Pmtu::B1024,
            window: 128,
            repeat: [Repeat::All, Repeat::One, Repeat::Requested][seed as usize % 3],
            probes: true,
            faults: none,
            retry_cnt: 7,
            qps: 3,
            late_receives: false,
            dead_at: Nanos::MAX,
        });
        test.run_until_done();
        for end in &test.world.ends {
            let s = end.stats();
            assert_eq!(
                (s.retransmits, s.duplicates_in, s.timeouts, s.sequence_naks_out),
                (0, 0, 0, 0)
            );
            assert_eq!(s.discards().count(), 0);
            assert_eq!(s.requests_in + s.acks_in, s.frames_in);
        }
    }
}
