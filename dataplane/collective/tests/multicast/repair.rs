//! Trees whose switches repair, in an unfair network: M1, M2 and M3 on the way, delivery in the end, and what the source must repeat.

use crate::common::Told;
use crate::common::tree::{Chance, Shape, Tree};
use crate::common::{Switch, ack, nak, path, replicate};
use crate::tree::{case, chance, not_ready};
use castnet_collective::path::Paths;
use castnet_collective::{Effect, MulticastConfig, RepairConfig};
use castnet_wire::{Nanos, Psn};
use proptest::prelude::*;
use std::collections::VecDeque;

fn with_ticks(restarts: bool) -> impl Strategy<Value = Chance> {
    prop_oneof![
        10 => chance(restarts),
        1 => (0usize..8).prop_map(|pick| Chance::Tick { pick }),
    ]
}

/// Rings shorter and longer than the window.
fn slots() -> impl Strategy<Value = u16> {
    prop_oneof![Just(128u16), (0u32..5).prop_map(|bits| 1u16 << bits)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn m1_m2_m3_hold_and_all_is_delivered(
        case in case(with_ticks(false)), (slots, selective) in (slots(), any::<bool>()), not_ready in not_ready(),
    ) {
        let tree = case.tree(slots).with_selective_source(selective);
        case.delivers(tree, not_ready)?;
    }

    #[test]
    fn switches_may_restart_in_mid_stream(
        case in case(with_ticks(true)), (slots, selective) in (slots(), any::<bool>()),
    ) {
        let tree = case.tree(slots).with_selective_source(selective);
        case.delivers(tree, Vec::new())?;
    }
}

/// One loss anywhere: the source repeats nothing, unless its own link has lost a packet or an ACK.
#[test]
fn one_loss_beyond_the_first_link_costs_the_source_nothing() {
    let leaf = || Shape::Switch(vec![Shape::Host; 3]);
    let shape = Shape::Switch(vec![Shape::Switch(vec![leaf(), leaf()]), Shape::Host]);
    for ack_every in [1, 8] {
        for lost in 0..200 {
            let mut tree = Tree::repairing(&shape, Psn::new(Psn::MODULUS - 4), 8, ack_every, 128);
            for _ in 0..8 {
                tree.step(Chance::Send).expect("nothing delivered");
            }
            for _ in 0..lost {
                tree.step(Chance::Deliver { pick: 0 }).expect("contract");
            }
            let own = tree.next_is_at_source();
            tree.step(Chance::Lose { pick: 0 }).expect("nothing delivered");
            tree.finish().expect("contract");
            let repeated = tree.sends() - 8;
            assert!(
                own || (repeated, tree.time_outs) == (0, 0),
                "loss {lost}: {repeated} repeated"
            );
            assert!(
                tree.is_done() && tree.naks_to_source <= 1 && tree.time_outs <= 1,
                "loss {lost}"
            );
        }
    }
}

fn repairing(start_psn: Option<u32>) -> Switch {
    let mut switch = Switch::with(MulticastConfig {
        start_psn: start_psn.map(Psn::new),
        ..Switch::config(2)
    });
    switch.machine = switch.machine.with_repair(RepairConfig {
        slots: 128,
        tick: Nanos(1000),
        switches: Paths::EMPTY,
    });
    switch
}

/// A responder need not acknowledge what does not request it, and a slow source sends little in a tick.
#[test]
fn a_path_that_was_not_asked_for_an_ack_is_not_silent() {
    let mut switch = repairing(Some(10));
    let repeated = |switch: &mut Switch, ticks: core::ops::Range<u64>| {
        ticks
            .flat_map(|tick| {
                switch.timeout(Nanos(1000 * tick));
                let each = core::iter::from_fn(|| switch.machine.poll_resend());
                each.map(|resend| resend.psn.value()).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    switch.data(10, 2);
    assert_eq!(repeated(&mut switch, 1..40), []);
    switch.retransmit_asking(12);
    assert_eq!(repeated(&mut switch, 40..42), [10]);
    // It is asked with that.
    assert_eq!(repeated(&mut switch, 42..44), [10, 11]);
    switch.feedback(1, ack(12));
    switch.data(13, 1);
    assert_eq!(repeated(&mut switch, 44..80), []);
}

/// A path gets a packet that it was sent before only if the source requests an ACK with it, or if a packet before it was lost.
#[test]
fn a_packet_that_was_sent_is_not_repeated_without_a_reason() {
    let mut switch = repairing(Some(10));
    switch.data(10, 3);
    let is_sent = |effects: Vec<_>| effects.contains(&replicate(&[1]));
    for psn in 10..13 {
        assert!(!is_sent(switch.retransmit(psn)), "{psn}");
    }
    assert!(is_sent(switch.retransmit_asking(12)));
    // The path has acknowledged this one.
    switch.feedback(1, ack(11));
    assert!(!is_sent(switch.retransmit_asking(11)));
    // 13 is lost. 14 comes again: 13 was lost again too.
    switch.data(14, 1);
    assert!(is_sent(switch.retransmit(14)));
}

/// An ACK of more than was repeated says that the time-out came too early: what was sent before is not sent again.
#[test]
fn a_time_out_that_came_too_early_repeats_one_packet() {
    let mut switch = repairing(Some(10));
    switch.data(10, 5);
    switch.retransmit_asking(15);
    let resent = |switch: &mut Switch| {
        let each = core::iter::from_fn(|| switch.machine.poll_resend());
        each.map(|resend| resend.psn.value()).collect::<Vec<_>>()
    };
    for tick in 1..3 {
        switch.timeout(Nanos(1000 * tick));
    }
    assert_eq!(resent(&mut switch), [10]);
    // What came meanwhile was not sent to the path.
    switch.data(16, 2);
    assert_eq!(resent(&mut switch), []);
    switch.feedback(1, ack(12));
    assert_eq!(resent(&mut switch), [16, 17]);
    // It gets the next one with all others, and again what it refuses.
    assert_eq!(switch.data(18, 1)[1], replicate(&[1]));
    switch.feedback(1, nak(13));
    assert_eq!(resent(&mut switch), [13, 14, 15, 16, 17, 18]);
}

/// A host cannot use what is behind a packet that it lacks. A switch may lack nothing, and wait for a receiver below it.
#[test]
fn a_silent_switch_gets_one_packet_again_and_what_is_new() {
    let mut switch = Switch::with(Switch::config(3));
    switch.machine = switch.machine.with_repair(RepairConfig {
        slots: 128,
        tick: Nanos(1000),
        switches: Paths::only(path(2)),
    });
    let resent = |switch: &mut Switch| {
        let each = core::iter::from_fn(|| switch.machine.poll_resend());
        each.map(|resend| (resend.path.index(), resend.psn.value()))
            .collect::<Vec<_>>()
    };
    switch.data(0, 3);
    switch.retransmit_asking(3);
    for tick in 1..3 {
        switch.timeout(Nanos(1000 * tick));
    }
    assert_eq!(resent(&mut switch), [(1, 0), (2, 0)]);
    assert_eq!(switch.data(4, 1)[1], replicate(&[2]));
    switch.feedback(1, ack(3));
    switch.feedback(2, ack(0));
    // It has what was repeated, and lacks what follows.
    assert_eq!(resent(&mut switch), [(1, 4), (2, 1), (2, 2), (2, 3), (2, 4)]);
    // One that says nothing at all may have lost its state.
    let all: Vec<_> = (3..40)
        .flat_map(|tick| {
            switch.timeout(Nanos(1000 * tick));
            resent(&mut switch)
        })
        .filter(|(path, _)| *path == 2)
        .map(|(_, psn)| psn)
        .collect();
    assert!(all.starts_with(&[1, 1, 1, 2, 3, 4]), "{all:?}");
}

/// The source goes back after a NAK: ACKs wait until they cover all that it sent before. A source that repeats one packet gets each.
#[test]
fn acks_are_withheld_from_a_source_that_goes_back() {
    for goes_back in [true, false] {
        let mut switch = repairing(Some(10));
        switch.data(10, 1);
        switch.feedback(1, ack(10));
        switch.data(12, 1);
        switch.data(13, 1);
        switch.data(11, 1);
        if goes_back {
            switch.data(12, 1);
        }
        let acked = switch.feedback(1, ack(11)).contains(&ack(11).up(0).into());
        assert_ne!(acked, goes_back);
        assert_eq!(switch.feedback(1, ack(13)), [ack(13).up(0)]);
    }
}

/// A source that repeats one packet is sent a NAK of each gap. One that goes back repeats the second gap unasked.
#[test]
fn a_second_gap_is_asked_for_if_the_source_does_not_go_back() {
    for goes_back in [true, false] {
        let mut switch = repairing(Some(10));
        for psn in [10, 12, 14] {
            switch.data(psn, 1);
        }
        switch.feedback(1, ack(10));
        switch.data(11, 1);
        if goes_back {
            switch.data(12, 1);
        }
        let asked = switch.feedback(1, ack(12)).contains(&nak(13).up(0).into());
        assert_ne!(asked, goes_back);
    }
}

/// A NAK that was lost, or what it asked for, is sent again after 2, 4 and 8 ticks; then the source must time out.
#[test]
fn a_nak_is_repeated_three_times() {
    let mut switch = repairing(Some(10));
    switch.data(10, 1);
    let naks = |told: Vec<Told>| told.iter().filter(|told| **told == nak(11).up(0)).count();
    assert_eq!(naks(switch.data(12, 1)), 0);
    // The receiver is late.
    assert!((1..100).all(|tick| naks(switch.timeout(Nanos(tick * 1000))) == 0));
    assert_eq!(naks(switch.feedback(1, ack(10))), 1);
    let at: Vec<u64> = (100..300)
        .filter(|tick| naks(switch.timeout(Nanos(tick * 1000))) == 1)
        .collect();
    assert_eq!(at, [101, 103, 107]);
}

/// The source goes back, and loses again what it was asked for, and the packet after it: it does not know, and must be asked.
#[test]
fn what_a_source_that_goes_back_loses_again_is_asked_for_again() {
    for goes_back in [true, false] {
        let mut switch = repairing(Some(10));
        switch.data(10, 1);
        switch.data(13, 1);
        let naks = |told: Vec<Told>| told.iter().filter(|told| **told == nak(11).up(0)).count();
        assert_eq!(naks(switch.feedback(1, ack(10))), 1);
        if goes_back {
            assert_eq!(naks(switch.data(13, 1)), 0, "11 and 12 may be on their way");
        }
        let at: Vec<u64> = (1..200)
            .filter(|tick| naks(switch.timeout(Nanos(tick * 1000))) == 1)
            .collect();
        assert_eq!(at, [2, 4, 8], "{goes_back}");
    }
}

/// Seed 3 of the property test: a switch had acknowledged 11 to the source and then lost its state. It waited for 11, which the source
/// does not send again, and kept what the source repeated from 12 on.
#[test]
fn a_restarted_switch_does_not_wait_for_what_the_source_has_forgotten() {
    let mut switch = repairing(None);
    assert_eq!(switch.data(10, 1), [replicate(&[1])]);
    switch.feedback(1, ack(10));
    let kept = Effect::Keep {
        psn: Psn::new(12),
        slot: 12,
    };
    assert_eq!(switch.data(12, 1), [kept, nak(11).up(0)]);
    assert_eq!(switch.data(12, 1)[0], replicate(&[1]));
    assert_eq!(switch.feedback(1, ack(12)), [ack(12).up(0)]);
    assert_eq!(switch.status().repair.and_then(|ring| ring.missing), None);
}

/// A path of 40 packets there and back, beside a source that sends at the rate of the link. Eight packets at a time would be a fifth of it,
/// and the path would never catch up: the source waits for it, and goes on at its rate.
#[test]
fn a_path_that_repeats_catches_up_with_a_source_at_full_rate() {
    const TRIP: u32 = 40;
    const WINDOW: u32 = 128;
    const SENT: u32 = 4000;
    let mut switch = Switch::new(2, 0);
    switch.machine = switch.machine.with_repair(RepairConfig {
        slots: 256,
        tick: Nanos(1000),
        switches: Paths::EMPTY,
    });
    let (mut next, mut acked, mut expected, mut refused) = (0, 0, 0, None);
    let mut link = VecDeque::new();
    let mut answers = VecDeque::new();
    for time in 0..SENT {
        while let Some((_, feedback)) = answers.pop_front_if(|(at, _)| *at <= time) {
            let _: Vec<_> = switch.feedback(1, feedback);
            acked = feedback.psn.value();
        }
        if next < acked + WINDOW {
            if switch.data(next, 1).contains(&replicate(&[1])) {
                link.push_back(next);
            }
            next += 1;
        }
        while let Some(resend) = switch.machine.poll_resend() {
            link.push_back(resend.psn.value());
        }
        let Some(psn) = link.pop_front().filter(|_| time != 100) else {
            continue;
        };
        if psn == expected {
            expected += 1;
            answers.push_back((time + TRIP, ack(psn)));
        } else if psn > expected && refused != Some(expected) {
            refused = Some(expected);
            answers.push_back((time + TRIP, nak(expected)));
        }
    }
    assert!(expected > SENT - 10 * TRIP, "{expected} of {SENT}");
}
