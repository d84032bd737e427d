//! Congestion control: marked packets cause CNPs, CNPs lower the rate, and all is sent in the end.

use crate::common::pipe::{Faults, Random, World, ip, mac};
use crate::common::*;
use castnet_endpoint::{
    Access, Endpoint, LocalSlice, QpConfig, ReactionConfig, RecvWr, SendOp, SendWr, Status, TimerReason,
};
use castnet_wire::{BitRate, Nanos, Opcode, Parsed, Pmtu, Qpn, ipv4, parse_frame};
use proptest::prelude::*;

const US: Nanos = Nanos::from_micros(1);

fn rate(bits_per_second: u64) -> BitRate {
    BitRate::new(bits_per_second).unwrap()
}

/// The frame with a congestion mark.
fn marked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[15] |= 2;
    let ip = &mut frame[14..34];
    [ip[10], ip[11]] = [0, 0];
    let sum = ipv4::checksum(ip);
    [ip[10], ip[11]] = sum.to_be_bytes();
    assert!(ipv4::mark_congestion(ip));
    frame
}

fn notifying(interval: Nanos) -> Bench {
    let mut b = Bench::new(QpConfig {
        cnp_interval: Some(interval),
        ..config()
    });
    b.post_recv(1, 8);
    b
}

fn feed_marked(b: &mut Bench, psn: u32) {
    let frame = Packet::request(Opcode::SendMiddle, psn, 1024).frame();
    b.endpoint.handle_frame(b.now, &marked(frame));
}

fn cnp() -> Packet {
    let mut cnp = Packet::new(Opcode::Cnp, 0);
    cnp.bth.becn = true;
    cnp
}

#[test]
fn a_mark_causes_a_cnp_and_others_within_the_interval_none() {
    let mut b = notifying(QpConfig::CNP_INTERVAL);
    // Also packets behind a gap are marked.
    for (after, expected) in [(0, 1), (49, 0), (1, 1), (1, 0), (200, 1)] {
        b.now += Nanos(after * US.0);
        for _ in 0..3 {
            feed_marked(&mut b, 5);
        }
        let cnps = b.drain().iter().filter(|line| line.starts_with("CNP")).count();
        assert_eq!(cnps, expected, "{after} us later");
    }
    let stats = b.endpoint.stats();
    assert_eq!((stats.marked_in, stats.cnps_out), (15, 3));
    // Without congestion control nothing is said.
    let mut b = bench_without();
    feed_marked(&mut b, 5);
    assert_eq!(b.drain().iter().filter(|line| line.starts_with("CNP")).count(), 0);
    assert_eq!(
        (b.endpoint.stats().marked_in, b.endpoint.stats().cnps_out),
        (1, 0)
    );
}

fn bench_without() -> Bench {
    Bench::new(config())
}

/// With the sender's guard timer, each marked packet causes a CNP; a bounded number of them waits.
#[test]
fn without_an_interval_each_mark_causes_a_cnp() {
    let mut b = notifying(Nanos::ZERO);
    for (marks, cnps) in [(1, 1), (3, 3), (1000, 64)] {
        (0..marks).for_each(|_| feed_marked(&mut b, 5));
        let sent = b.drain().iter().filter(|line| line.starts_with("CNP")).count();
        assert_eq!(sent, cnps);
    }
}

/// The frame is that of an RNIC, but for addresses: `tests/golden`, `a-cnp`.
#[test]
fn a_cnp_has_the_form_that_rnics_send() {
    let mut b = notifying(QpConfig::CNP_INTERVAL);
    feed_marked(&mut b, 5);
    let mut out = [0; Endpoint::FRAME_MAX];
    let length = b.endpoint.poll_transmit(b.now, &mut out).unwrap();
    let frame = &out[..length];
    let Ok(Parsed::Roce(header)) = parse_frame(frame, length) else {
        panic!("no RoCE");
    };
    assert_eq!((length, header.tos >> 2), (74, 48));
    assert!(header.bth.becn && !header.bth.fecn && !header.bth.ack_request);
    assert_eq!((header.bth.dest_qp, header.bth.psn.value()), (PEER_QPN, 0));
    assert_eq!(frame[54..70], [0; 16]);
    assert!(castnet_wire::icrc::verify_bytes(
        frame,
        header.l3,
        header.frame_len
    ));
}

#[test]
fn a_marked_packet_with_a_wrong_icrc_says_nothing() {
    let mut b = notifying(QpConfig::CNP_INTERVAL);
    let mut frame = marked(Packet::request(Opcode::SendMiddle, 5, 1024).frame());
    frame[100] ^= 1;
    b.endpoint.handle_frame(b.now, &frame);
    b.sends(&[]);
    assert_eq!(b.endpoint.stats().marked_in, 0);
}

fn reacting(change: impl FnOnce(&mut ReactionConfig)) -> Bench {
    let mut reaction = ReactionConfig::new(rate(1_000_000_000));
    change(&mut reaction);
    Bench::new(QpConfig {
        reaction: Some(reaction),
        window: 1000,
        ..config()
    })
}

fn allowed(b: &Bench) -> u64 {
    let status = b.endpoint.qp_status(MY_QPN).unwrap();
    status.rate.unwrap().bits_per_second()
}

#[test]
fn a_cnp_halves_the_rate_and_it_recovers_in_five_steps() {
    let mut b = reacting(|_| {});
    assert_eq!(allowed(&b), 1_000_000_000);
    b.feed(&cnp());
    assert_eq!(allowed(&b), 500_000_000);
    b.post(1, SendOp::Send, 32 * 1024);
    // The burst of 16 KiB; then each packet waits for its turn, or for the rate to rise.
    let before = b.drain().len();
    assert_eq!(before, 15);
    let (at, reason) = b.endpoint.poll_timeout().unwrap();
    assert_eq!(reason, TimerReason::Pace);
    assert!(at.since(b.now) <= Nanos(1152 * 8 * 2));
    let start = b.now;
    let mut rates = vec![allowed(&b)];
    while b.now.since(start) < Nanos(7 * 55 * US.0) {
        b.wait();
        b.drain();
        b.now = b.now.max(start);
        if allowed(&b) != rates[rates.len() - 1] {
            rates.push(allowed(&b));
        }
        if b.endpoint.qp_status(MY_QPN).unwrap().psn_next.value() == 32 {
            break;
        }
    }
    // Halfway to the former rate at each step.
    let expected = [
        500_000_000,
        750_000_000,
        875_000_000,
        937_500_000,
        968_750_000,
        984_375_000,
    ];
    assert_eq!(rates, expected[..rates.len()]);
    assert!(rates.len() > 2);
    let stats = b.endpoint.stats();
    assert_eq!((stats.cnps_in, stats.rate_cuts, stats.timeouts), (1, 1, 0));
}

/// PEEL's guard timer: of the CNPs of many receivers, one in 50 us is reacted to.
#[test]
fn the_guard_timer_ignores_the_cnps_of_a_time() {
    let mut b = reacting(|reaction| reaction.guard = ReactionConfig::GUARD);
    for (after, cuts) in [(0, 1), (49, 1), (1, 2), (49, 2), (1, 3)] {
        b.now += Nanos(after * US.0);
        for _ in 0..10 {
            b.feed(&cnp());
        }
        assert_eq!(b.endpoint.stats().rate_cuts, cuts, "after {after} us more");
    }
    assert_eq!(b.endpoint.stats().cnps_in, 50);
}

#[test]
fn parameters_are_checked() {
    type Change = fn(&mut ReactionConfig);
    let line = rate(1_000_000);
    let refused = |change: Change| {
        let mut reaction = ReactionConfig::new(line);
        change(&mut reaction);
        let mut b = Bench::new(config());
        let qp = QpConfig {
            qpn: Qpn::new(0x99),
            pmtu: Pmtu::B4096,
            reaction: Some(reaction),
            ..config()
        };
        b.endpoint.create_qp(qp).err().map(|error| error.to_string())
    };
    assert_eq!(refused(|_| {}), None);
    let changes: [(&str, Change); 8] = [
        ("rate_min", |r| r.rate_min = rate(1_000_001)),
        ("burst_bytes", |r| r.burst_bytes = 4223),
        ("gain_shift", |r| r.gain_shift = 0),
        ("gain_shift", |r| r.gain_shift = 17),
        ("guard", |r| r.guard = Nanos::MAX),
        ("alpha_interval", |r| r.alpha_interval = Nanos::ZERO),
        ("increase_interval", |r| r.increase_interval = Nanos(999)),
        ("increase_bytes", |r| r.increase_bytes = 0),
    ];
    for (field, change) in changes {
        let refused = refused(change).expect(field);
        assert!(refused.contains(&format!("reaction.{field} is")), "{refused}");
    }
}

proptest! {
    /// Two endpoints over a pipe that marks, loses, duplicates, reorders and damages frames, CNPs included: everything arrives, no period
    /// has more than the largest rate, and the receiver sends at most one CNP per interval.
    #[test]
    fn everything_arrives_however_many_cnps_there_are(
        seed: u64, marks in 0..1001_u64, faults in (0..60_u64, 0..60_u64, 0..60_u64, 0..40_u64),
        line in prop_oneof![1_000_000..20_000_000_u64, 1_000_000_000..10_000_000_000_u64],
        guard in any::<bool>(), length in 0..200_000_u32,
    ) {
        let (loss, duplicate, reorder, corrupt) = faults;
        let mut world = World::new(seed, Faults { loss, duplicate, reorder, corrupt });
        let mut dice = Random(seed ^ 0xE5);
        let (mut reaction, qpn) = (ReactionConfig::new(rate(line)), |end: usize| Qpn::new(0x20 + end as u32));
        let interval = if guard { Nanos::ZERO } else { QpConfig::CNP_INTERVAL };
        reaction.guard = if guard { ReactionConfig::GUARD } else { Nanos::ZERO };
        let bytes: Vec<u8> = (0..length as usize).map(pattern).collect();
        let mut keys = Vec::new();
        for end in 0..2 {
            world.ends[end].create_qp(QpConfig {
                cnp_interval: Some(interval),
                reaction: Some(reaction),
                tos: 2,
                timeout: 12,
                ..QpConfig::new(qpn(end), ip(1 - end), mac(1 - end), qpn(1 - end))
            }).unwrap();
            let memory = if end == 0 { bytes.clone() } else { vec![0; bytes.len()] };
            keys.push(world.ends[end].register_memory(0, memory, Access::LOCAL).unwrap());
        }
        let slice = |key| LocalSlice { key, offset: 0, length };
        world.ends[1].post_recv(qpn(1), RecvWr { wr_id: 1, local: slice(keys[1]) }).unwrap();
        world.ends[0].post_send(qpn(0), SendWr::new(1, SendOp::Send, slice(keys[0]))).unwrap();
        let (mut sent, mut cnps): (Vec<(Nanos, u64)>, Vec<Nanos>) = Default::default();
        let mut done = 0;
        while done < 2 {
            prop_assert!(world.steps < 300_000, "it ends");
            world.transmit_with(|now, from, frame| {
                let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) else { return };
                match header.bth.opcode {
                    Opcode::Ack => {}
                    Opcode::Cnp => cnps.push(now),
                    _ => {
                        sent.push((now, frame.len() as u64));
                        if dice.permille(marks) {
                            assert_eq!(from, 0);
                            ipv4::mark_congestion(&mut frame[14..]);
                        }
                    }
                }
            });
            for end in &mut world.ends {
                while let Some(completion) = end.poll_completion() {
                    prop_assert_eq!(completion.status, Status::Success);
                    done += 1;
                }
            }
            if let Some(at) = world.next_at() {
                world.advance(at);
            }
        }
        prop_assert_eq!(world.ends[1].memory(keys[1]).unwrap(), &bytes[..]);
        if !guard {
            prop_assert!(cnps.windows(2).all(|pair| pair[1].since(pair[0]) >= QpConfig::CNP_INTERVAL));
        }
        let stats = [world.ends[0].stats(), world.ends[1].stats()];
        prop_assert!(stats[1].cnps_out <= stats[1].marked_in && stats[0].rate_cuts <= stats[0].cnps_in);
        // Limited or not, a period after a reaction has at most what the largest rate gives, and the burst.
        let status = world.ends[0].qp_status(qpn(0)).unwrap();
        let allowed = status.rate.unwrap();
        prop_assert!((reaction.rate_min..=reaction.rate_max).contains(&allowed));
        prop_assert!(marks > 0 || allowed == reaction.rate_max);
    }
}
