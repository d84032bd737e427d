//! Two switches with a router between them, compared with the same two switches without it: their hosts get the same frames, on the
//! fast path and on the slow path.

use std::collections::VecDeque;

use super::batches::feed_batch;
use super::collective::drops;
use crate::common::collective::route;
use crate::common::*;
use castnet_engine::{Engine, FrameFilter, GroupStatus, TapId};
use castnet_rules::{Endpoint, GroupRule, NextHop};
use castnet_wire::{Aeth, DropReason, McstId, NakCode, Nanos, Opcode, Psn, Qpn, Reth, RnrTimer, Syndrome};
use proptest::prelude::*;

/// The port of each switch towards the other one. The source is host 0 at switch 0; hosts 0 and 1 are there, 2 and 3 at
/// switch 1.
const LINK: usize = 4;
const HOSTS: usize = 4;

fn home(host: usize) -> usize {
    host / 2
}

/// What a host gets: all that is not the same for each frame of its switch.
#[derive(Clone, Debug, PartialEq)]
struct Got {
    host: usize,
    opcode: Opcode,
    dest_qp: Qpn,
    psn: Psn,
    ack_request: bool,
    reth: Option<Reth>,
    aeth: Option<Aeth>,
    tos: u8,
    payload: Vec<u8>,
}

struct Chain {
    engines: [Engine; 2],
    /// The group's address at each.
    mcst_ids: [McstId; 2],
    /// Frames that came to the middle.
    passed: usize,
}

impl Chain {
    fn new(routed: bool, slow: bool) -> Self {
        let mcst_ids = if routed {
            [MCST, McstId(far_ip(1))]
        } else {
            [MCST; 2]
        };
        let engines = [0, 1].map(|n| {
            let mut to_other = far_switch(LINK);
            // The QPNs that they have for each other; one of them is the usual one.
            to_other.virtual_qpn = Qpn::new(1 + n);
            let other = mcst_ids[1 - n as usize].0;
            if let NextHop::Switch { ip, qpn, .. } = &mut to_other.next_hop {
                *ip = routed.then_some(other);
                *qpn = Qpn::new(2 - n);
            }
            let hosts = (0..HOSTS).filter(|host| home(*host) == n as usize).map(host);
            let endpoints: Vec<Endpoint> = hosts.chain([to_other]).collect();
            let source = if n == 0 { 0 } else { endpoints.len() as u16 - 1 };
            let rule = GroupRule {
                mcst_id: mcst_ids[n as usize],
                ..rule(endpoints).with_multicast(|rule| rule.source = source)
            };
            let mut engine = engine(LINK + 1);
            install(&mut engine, &rule);
            if slow {
                let tap = TapId::all().next().unwrap();
                engine
                    .taps
                    .arm_capture(tap, FrameFilter::default(), usize::MAX, u64::MAX);
            }
            engine
        });
        Self {
            engines,
            mcst_ids,
            passed: 0,
        }
    }

    /// Returns true if there is a router.
    fn routed(&self) -> bool {
        self.mcst_ids[0] != self.mcst_ids[1]
    }

    /// What hosts get of frames that come to `switch` by `ingress`; of those between the switches, these are lost, in turn.
    fn feed(
        &mut self,
        now: Nanos,
        switch: usize,
        ingress: usize,
        frames: Vec<Vec<u8>>,
        lost: &[bool],
    ) -> Vec<Got> {
        let mut got = Vec::new();
        let mut queue = VecDeque::from([(switch, ingress, frames)]);
        while let Some((switch, ingress, frames)) = queue.pop_front() {
            let mut over = Vec::new();
            for (port, frame) in feed_batch(&mut self.engines[switch], now, ingress, &frames) {
                assert!(is_sound(&frame));
                if port < LINK {
                    got.push(self.got(switch, port, &frame));
                    continue;
                }
                self.passed += 1;
                if !lost[self.passed % lost.len()] {
                    over.push(self.carry(switch, frame));
                }
            }
            if !over.is_empty() {
                queue.push_back((1 - switch, LINK, over));
            }
        }
        got
    }

    fn got(&self, switch: usize, host: usize, frame: &[u8]) -> Got {
        let header = roce(frame);
        assert_eq!(header.ip.v4(), Some((self.mcst_ids[switch].0, host_ip(host))));
        Got {
            host,
            opcode: header.bth.opcode,
            dest_qp: header.bth.dest_qp,
            psn: header.bth.psn,
            ack_request: header.bth.ack_request,
            reth: header.reth,
            aeth: header.aeth,
            tos: header.tos,
            payload: frame[header.payload_at..header.payload_at + header.payload_len].to_vec(),
        }
    }

    /// Over the link, or by the router.
    fn carry(&self, from: usize, mut frame: Vec<u8>) -> Vec<u8> {
        if self.routed() {
            assert!(route(&mut frame, LINK, self.mcst_ids[1 - from]));
        }
        frame[..6].copy_from_slice(&port_mac(LINK).0);
        frame[6..12].copy_from_slice(&peer_mac(LINK).0);
        frame
    }

    fn status(&self, switch: usize) -> GroupStatus {
        self.engines[switch].group_status(self.mcst_ids[switch]).unwrap()
    }

    /// All that does not depend on what the group is called.
    fn state(&self) -> String {
        let one = |switch| {
            let GroupStatus {
                machine,
                counters,
                paths,
                ..
            } = self.status(switch);
            format!("{machine:?} {counters:?} {paths:?}")
        };
        format!("{} {}", one(0), one(1))
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The source's next packets, or some from before or after them.
    Data {
        skip: i32,
        opcode: Opcode,
        length: usize,
        offset: u64,
        times: usize,
    },
    /// Of the newest data, or of some before.
    Feedback {
        host: usize,
        back: u32,
        syndrome: Syndrome,
        times: usize,
    },
    Cnp {
        host: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let opcode = prop_oneof![
        4 => Just(Opcode::SendMiddle),
        1 => Just(Opcode::SendOnly),
        1 => Just(Opcode::WriteFirst),
        1 => Just(Opcode::WriteMiddle),
        2 => Just(Opcode::WriteOnly),
    ];
    let syndrome = prop_oneof![
        6 => Just(Syndrome::Ack),
        1 => Just(Syndrome::Nak(NakCode::PsnSequenceError)),
        1 => (0..32_u8).prop_map(|timer| Syndrome::RnrNak(RnrTimer::new(timer))),
    ];
    let skip = prop_oneof![8 => Just(0), 1 => -4..3];
    let length = prop_oneof![3 => Just(256_usize), 1 => 0..1025_usize];
    prop_oneof![
        6 => (skip, opcode, length, 0..2 * MEMORY, 1..9_usize)
            .prop_map(|(skip, opcode, length, offset, times)| Step::Data { skip, opcode, length, offset, times }),
        8 => (1..HOSTS, 0..5_u32, syndrome, 1..4_usize)
            .prop_map(|(host, back, syndrome, times)| Step::Feedback { host, back, syndrome, times }),
        1 => (1..HOSTS).prop_map(|host| Step::Cnp { host }),
    ]
}

impl Step {
    /// Who sends what, to a group of this address.
    fn frames(&self, next: u32, mcst_id: McstId) -> (usize, Vec<Vec<u8>>) {
        let frame = |host: usize, opcode, psn, payload: &[u8]| DataFrame {
            src: host_ip(host),
            dst: mcst_id.0,
            ethernet: ethernet(host),
            ..DataFrame::new(opcode, psn, payload)
        };
        match *self {
            Self::Data {
                skip,
                opcode,
                length,
                offset,
                times,
            } => {
                let first = next.saturating_add_signed(skip);
                let data = |psn: u32| {
                    let mut frame = frame(0, opcode, psn, &vec![psn as u8; length]);
                    let (va, dma_len) = (VA_BASE + offset, length as u32);
                    frame.ext.reth = Some(Reth { va, rkey: 7, dma_len });
                    frame.bytes()
                };
                (0, (first..).take(times).map(data).collect())
            }
            Self::Feedback {
                host,
                back,
                syndrome,
                times,
            } => {
                let psn = next.saturating_sub(1 + back);
                let feedback = |psn: u32| {
                    let mut frame = frame(host, Opcode::Ack, psn, &[]);
                    frame.ext.aeth = Some(Aeth { syndrome, msn: psn });
                    frame.bytes()
                };
                let psns = psn.saturating_sub(times as u32 - 1)..=psn;
                (host, psns.map(feedback).collect())
            }
            Self::Cnp { host } => (host, vec![frame(host, Opcode::Cnp, 0, &[]).bytes()]),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn a_router_between_two_switches_changes_nothing_for_their_hosts(
        steps in prop::collection::vec(step(), 1..60),
        lost in prop::collection::vec(prop::bool::weighted(0.05), 1..40),
    ) {
        let mut chains = [(false, false), (true, false), (true, true)].map(|(routed, slow)| Chain::new(routed, slow));
        let (mut now, mut next) = (T0, 100);
        for step in &steps {
            now += Nanos(1000);
            let [expected, routed @ ..] = chains.each_mut().map(|chain| {
                let (host, _) = step.frames(next, MCST);
                let (_, frames) = step.frames(next, chain.mcst_ids[home(host)]);
                chain.feed(now, home(host), host, frames, &lost)
            });
            for got in routed {
                prop_assert_eq!(&got, &expected);
            }
            if let Step::Data { skip, times, .. } = step {
                next = next.max(next.saturating_add_signed(*skip) + *times as u32);
            }
            let [expected, routed @ ..] = chains.each_ref().map(Chain::state);
            for state in routed {
                prop_assert_eq!(&state, &expected);
            }
        }
        chains.iter().flat_map(|chain| &chain.engines).for_each(assert_conserved);
    }
}

/// C4: a frame is the other switch's with its port, QPN and address alone.
#[test]
fn a_switch_behind_routers_is_believed_with_its_own_address_alone() {
    for slow in [false, true] {
        let mut strange = 0;
        for (ingress, qpn, src) in [
            (LINK, 2, host_ip(0)),
            (LINK, 2, far_ip(1)),
            (LINK, 1, MCST.0),
            (2, 2, MCST.0),
            (LINK, 2, MCST.0),
        ] {
            let mut chain = Chain::new(true, slow);
            let mut frame = DataFrame::new(Opcode::SendOnly, 100, &[1; 64]);
            (frame.src, frame.dst, frame.dest_qp) = (src, chain.mcst_ids[1].0, Qpn::new(qpn));
            frame.ethernet = ethernet(ingress);
            let right = (ingress, qpn, src) == (LINK, 2, MCST.0);
            let got = chain.feed(T0, 1, ingress, vec![frame.bytes()], &[false]);
            assert_eq!(
                got.len(),
                if right { 2 } else { 0 },
                "{src} to {qpn} by {ingress}"
            );
            strange += drops(&chain.engines[1], DropReason::NotMember);
        }
        assert_eq!(strange, 4);
    }
}
