//! The known pitfalls of multicast over RC, each as a test with an explanation.

use crate::common::{Switch, Told, ack, fatal, nak, path, replicate, rnr};
use castnet_collective::path::{PATHS_MAX, Paths};
use castnet_collective::{Effect, Event, Multicast, MulticastConfig, PathId, RepairConfig, TimerReason};
use castnet_wire::{DropReason, NakCode, Nanos, Psn, RnrTimer, Syndrome};

const WRAP: u32 = Psn::MODULUS;

/// The paper triggers the aggregated ACK, and with it the look at MePSN, on an ACK of the path that held the minimum. A
/// NACK from that same path leaves its AckPSN unchanged: by the letter it is never sent on, and only a time-out saves
/// the transfer.
#[test]
fn nak_of_the_lowest_path_is_sent_on_at_once() {
    let mut s = Switch::new(3, WRAP - 1);
    s.data(WRAP - 1, 3);
    assert_eq!(s.feedback(1, ack(WRAP - 1)), [Effect::Absorb]);
    assert_eq!(s.feedback(2, nak(WRAP - 1)), [nak(WRAP - 1).up(0)]);
}

/// A NAK acknowledges all before it. Forwarded immediately, it would complete data that another receiver never got (M2).
#[test]
fn nak_waits_until_all_have_what_is_before_it() {
    let mut s = Switch::new(3, WRAP - 2);
    s.data(WRAP - 2, 4);
    assert_eq!(s.feedback(1, nak(WRAP)), [Effect::Absorb]);
    assert_eq!(s.feedback(2, ack(WRAP - 2)), [ack(WRAP - 2).up(0)]);
    assert_eq!(
        s.feedback(2, ack(WRAP + 1)),
        [ack(WRAP - 1).up(0), nak(WRAP).up(0)]
    );
}

/// NACK inter-covering: R1 lost p1, R2 lost the later p2. If p2's NAK went first, the source would never resend p1.
#[test]
fn the_lower_of_two_naks_goes_first_whatever_their_order() {
    for lower_first in [true, false] {
        let mut s = Switch::new(3, 10);
        s.data(10, 5);
        if lower_first {
            assert_eq!(s.feedback(1, nak(10)), [nak(10).up(0)]);
            assert_eq!(s.feedback(2, nak(12)), [Effect::Absorb]);
        } else {
            assert_eq!(s.feedback(2, nak(12)), [Effect::Absorb]);
            assert_eq!(s.feedback(1, nak(10)), [nak(10).up(0)]);
        }
        // The source goes back to 10 and sends 12 again as well: its NAK is served, not sent.
        assert_eq!(s.retransmit(10), [replicate(&[1])]);
        assert_eq!(s.retransmit(11), [replicate(&[1])]);
        assert_eq!(s.feedback(1, ack(11)), [ack(11).up(0)]);
        assert_eq!(s.retransmit(12), [replicate(&[1, 2])]);
        assert_eq!(s.feedback(2, ack(14)), [Effect::Absorb]);
        assert_eq!(s.feedback(1, ack(14)), [ack(14).up(0)]);
    }
}

/// With one MePSN per group, the NAK of R2 is lost when R1's lower one turns out to be void: R1's packet was only late.
#[test]
fn a_nak_outlives_a_lower_one_that_became_void() {
    let mut s = Switch::new(4, 0);
    s.data(0, 6);
    assert_eq!(s.feedback(1, nak(1)), [Effect::Absorb]);
    assert_eq!(s.feedback(2, nak(3)), [Effect::Absorb]);
    assert_eq!(s.status().me_psn, Some(Psn::new(1)));
    assert_eq!(s.feedback(1, ack(5)), [Effect::Absorb]);
    assert_eq!(s.status().me_psn, Some(Psn::new(3)));
    assert_eq!(s.feedback(3, ack(5)), [ack(2).up(0), nak(3).up(0)]);
}

/// All have acknowledged the packet since: its NAK must not make the source go back.
#[test]
fn a_nak_that_all_have_passed_is_void() {
    let mut s = Switch::new(3, 0);
    s.data(0, 4);
    assert_eq!(s.feedback(1, nak(2)), [Effect::Absorb]);
    assert_eq!(s.feedback(1, ack(3)), [Effect::Absorb]);
    assert_eq!(s.feedback(2, ack(3)), [ack(3).up(0)]);
    assert_eq!(s.feedback(1, nak(2)), [Effect::Absorb]);
    assert_eq!(s.status().me_psn, None);
}

/// One NAK per gap, or one loss becomes a storm.
#[test]
fn one_nak_goes_up_until_the_source_goes_back() {
    let mut s = Switch::new(4, 0);
    s.data(0, 4);
    s.feedback(1, ack(0));
    s.feedback(2, ack(0));
    assert_eq!(s.feedback(3, nak(1)), [ack(0).up(0), nak(1).up(0)]);
    for path in [1, 2, 3, 3] {
        assert_eq!(s.feedback(path, nak(1)), [Effect::Absorb]);
    }
    // A retransmission from further on is not what the NAK asked for.
    s.retransmit(2);
    assert_eq!(s.feedback(3, nak(1)), [Effect::Absorb]);
    s.retransmit(1);
    assert_eq!(s.feedback(3, nak(1)), [nak(1).up(0)]);
}

/// rxe counts retries anew on an ACK only, and ignores a second NAK before one.
#[test]
fn an_ack_goes_before_the_nak_that_makes_progress() {
    let mut s = Switch::new(2, WRAP - 1);
    s.data(WRAP - 1, 4);
    assert_eq!(
        s.feedback(1, nak(WRAP + 1).msn(7)),
        [ack(WRAP).msn(7).up(0), nak(WRAP + 1).msn(7).up(0)]
    );
}

/// A requester accepts any ACK, even of PSNs that it never sent: an ACK ahead of the data loses data silently.
#[test]
fn feedback_ahead_of_the_data_is_dropped() {
    let mut s = Switch::new(2, WRAP - 1);
    let ahead = [Effect::Drop(DropReason::AckAhead)];
    assert_eq!(s.feedback(1, ack(WRAP - 1)), ahead);
    assert_eq!(s.feedback(1, nak(WRAP - 1)), ahead);
    s.data(WRAP - 1, 2);
    assert_eq!(s.feedback(1, ack(WRAP + 1)), ahead);
    assert_eq!(s.feedback(1, nak(WRAP + 1)), ahead);
    assert_eq!(s.feedback(1, rnr(WRAP + 1, 3)), ahead);
    assert_eq!(s.feedback(1, ack(WRAP)), [ack(WRAP).up(0)]);
}

/// A packet that no source has outstanding would make the genuine ones look repeated, and be waited for until its group stalls.
#[test]
fn data_far_ahead_of_what_is_acknowledged_changes_nothing() {
    const WINDOW: u32 = 1 << 20;
    let dropped = [Effect::Drop(DropReason::AheadOfWindow)];
    let mut s = Switch::new(3, WRAP - 1);
    s.data(WRAP - 1, 2);
    let before = s.machine.clone();
    for ahead in [WINDOW - 1, WINDOW + 7, 1 << 22, (1 << 23) - 3] {
        assert_eq!(s.data(WRAP + ahead, 1), dropped, "{ahead}");
    }
    assert_eq!(s.machine, before);
    assert_eq!(s.data(WRAP + WINDOW - 2, 1), [replicate(&[1, 2])]);
    // The next packet in order is new, however long nobody has acknowledged any.
    assert_eq!(s.data(WRAP + WINDOW - 1, 1), [replicate(&[1, 2])]);
    assert_eq!(s.data(WRAP + WINDOW + 1, 1), dropped);
    // It counts from what all paths have.
    s.feedback(1, ack(WRAP + 2));
    assert_eq!(s.data(WRAP + WINDOW + 1, 1), dropped);
    s.feedback(2, ack(WRAP + 1));
    assert_eq!(s.data(WRAP + WINDOW + 2, 1), dropped);
    assert_eq!(s.data(WRAP + WINDOW + 1, 1), [replicate(&[1, 2])]);

    // Where the start is not known, from the first data on.
    let mut s = Switch::with(MulticastConfig {
        start_psn: None,
        ..Switch::config(3)
    });
    s.data(WRAP - 1, 1);
    assert_eq!(s.data(WRAP + WINDOW, 1), dropped);
    assert_eq!(s.data(WRAP + WINDOW - 1, 1), [replicate(&[1, 2])]);
}

/// A repeated finished packet means that the source has missed its ACK: the ACK must be sent again.
#[test]
fn a_retransmission_that_all_have_is_answered_with_the_newest_ack() {
    let mut s = Switch::new(3, WRAP - 2);
    s.data(WRAP - 2, 4);
    s.feedback(1, ack(WRAP + 1).msn(9));
    s.feedback(2, ack(WRAP).msn(8));
    assert_eq!(s.retransmit(WRAP - 2), [Effect::Absorb]);
    assert_eq!(s.retransmit_asking(WRAP - 1), [ack(WRAP).msn(8).up(0)]);
    assert_eq!(s.retransmit_asking(WRAP + 1), [replicate(&[2])]);
}

/// A source that goes back asks only now and then, and a full queue can drop the same packets each time, those that ask
/// among them. A receiver answers every duplicate; a switch that stands for its receivers and stays silent would stop
/// the transfer for good. The last packet that all have is answered even if it does not ask: a source that goes back
/// always comes by it.
#[test]
fn a_source_that_goes_back_gets_the_newest_ack_without_a_request() {
    let mut s = Switch::new(3, WRAP - 2);
    s.data(WRAP - 2, 6);
    s.feedback(1, ack(WRAP + 1).msn(9));
    s.feedback(2, ack(WRAP).msn(8));
    assert_eq!(s.retransmit(WRAP - 2), [Effect::Absorb]);
    assert_eq!(s.retransmit(WRAP - 1), [Effect::Absorb]);
    assert_eq!(s.retransmit(WRAP), [ack(WRAP).msn(8).up(0)]);
    assert_eq!(s.retransmit(WRAP + 1), [replicate(&[2])]);
}

/// Before anything was acknowledged, AggAckPSN is only where counting begins. A source that starts below it (set up
/// wrongly) must not be told that all is well: nobody has its data.
#[test]
fn the_baseline_is_never_acknowledged() {
    for start in [Some(Psn::new(100)), None] {
        let mut s = Switch::with(MulticastConfig {
            start_psn: start,
            ..Switch::config(3)
        });
        if start.is_none() {
            s.data(100, 1);
        }
        let far_back = 100u32.wrapping_sub(1 << 22);
        for psn in [far_back, far_back.wrapping_sub(5), 99, 90] {
            for effect in s.retransmit_asking(psn) {
                assert!(
                    !matches!(effect, Told::Effect(Effect::Acknowledge { .. })),
                    "{start:?} {psn}"
                );
            }
        }
    }
}

/// A switch that restarts in mid-stream sees first some packet `u`. To take `u - 1` as acknowledged would filter the
/// retransmission of an older packet away from the receiver that lacks it.
#[test]
fn a_switch_that_joins_in_mid_stream_assumes_nothing() {
    let mut s = Switch::with(MulticastConfig {
        start_psn: None,
        ..Switch::config(3)
    });
    assert_eq!((s.machine.next_psn(), s.status().newest_psn), (None, None));
    assert_eq!(s.feedback(1, ack(3)), [Effect::Drop(DropReason::AckAhead)]);
    assert_eq!(s.data(5, 1), [replicate(&[1, 2])]);
    assert_eq!(s.machine.next_psn(), Some(Psn::new(6)));
    assert_eq!(s.retransmit(3), [replicate(&[1, 2])]);
    assert_eq!(s.feedback(1, ack(5)), [Effect::Absorb]);
    assert_eq!(s.retransmit(3), [replicate(&[2])]);
    assert_eq!(s.status().agg_ack_psn, None);
    assert_eq!(s.feedback(2, nak(4)), [ack(3).up(0), nak(4).up(0)]);
    assert_eq!(s.retransmit(4), [replicate(&[2])]);
    assert_eq!(s.feedback(2, ack(5)), [ack(5).up(0)]);
}

/// A path was ahead when the switch joined, and the source goes back before it reaches the position of that path. The source must get ACKs of
/// what it repeats. Feedback that was sent before the switch joined must not count.
#[test]
fn a_path_that_is_ahead_of_a_stream_that_goes_back_has_what_comes() {
    let mut s = Switch::with(MulticastConfig {
        start_psn: None,
        ..Switch::config(3)
    });
    let dropped = [Effect::Drop(DropReason::AckAhead)];
    s.data(WRAP - 1, 2);
    assert_eq!(s.feedback(1, ack(WRAP + 20).msn(9)), dropped);
    assert_eq!(s.feedback(2, ack(WRAP - 1).msn(4)), [Effect::Absorb]);
    s.retransmit(WRAP - 1);
    assert_eq!(s.feedback(1, ack(WRAP + (1 << 16) + 1)), dropped);
    assert_eq!(s.feedback(1, ack(WRAP + 20).msn(9)), [ack(WRAP - 1).msn(4).up(0)]);
    assert_eq!(s.feedback(2, ack(WRAP).msn(5)), [ack(WRAP).msn(5).up(0)]);
    // It lacks nothing up to there, and gets the rest as all do.
    s.data(WRAP + 1, 1);
    assert_eq!(s.feedback(1, nak(WRAP + 3).msn(10)), [Effect::Absorb]);
    assert_eq!(s.retransmit(WRAP + 1), [replicate(&[2])]);
    assert_eq!(s.feedback(2, ack(WRAP + 1).msn(6)), [ack(WRAP + 1).msn(6).up(0)]);

    // Where the start is known, no path can be ahead.
    let mut s = Switch::new(2, WRAP - 1);
    s.data(WRAP - 1, 2);
    s.retransmit(WRAP - 1);
    assert_eq!(s.feedback(1, ack(WRAP + 1)), dropped);
}

/// Coming again after the wait serves a gap too, and too early would be refused again.
#[test]
fn rnr_wins_over_a_gap_and_the_longer_wait_over_the_shorter() {
    // Code 0 is the longest wait of all.
    for (first, second, wins) in [
        (nak(3), rnr(3, 1), rnr(3, 1)),
        (rnr(3, 1), nak(3), rnr(3, 1)),
        (rnr(3, 5), rnr(3, 9), rnr(3, 9)),
        (rnr(3, 0), rnr(3, 31), rnr(3, 0)),
    ] {
        let mut s = Switch::new(4, 0);
        s.data(0, 5);
        assert_eq!(s.feedback(1, first), [Effect::Absorb]);
        assert_eq!(s.feedback(2, second), [Effect::Absorb]);
        assert_eq!(s.feedback(3, ack(2)), [ack(2).up(0), wins.up(0)]);
    }
}

/// A refusal of a lower PSN goes first even where a stronger one of a higher PSN waits.
#[test]
fn a_lower_psn_goes_before_a_stronger_refusal() {
    let mut s = Switch::new(3, 0);
    s.data(0, 5);
    assert_eq!(s.feedback(1, fatal(3)), [Effect::Absorb]);
    assert_eq!(s.feedback(2, nak(1)), [ack(0).up(0), nak(1).up(0)]);
    assert_eq!(s.retransmit(1), [replicate(&[2])]);
    assert_eq!(s.feedback(2, ack(4)), [ack(2).up(0), fatal(3).up(0)]);
}

/// A receiver that has ended its connection sends one NAK and nothing more: the switch stores and repeats it. Otherwise a lost
/// NAK would leave the source to run through its retries.
#[test]
fn a_fatal_nak_is_repeated_to_a_source_that_comes_back() {
    let mut s = Switch::new(3, WRAP - 1);
    s.data(WRAP - 1, 3);
    s.feedback(2, ack(WRAP + 1).msn(2));
    assert_eq!(
        s.feedback(1, fatal(WRAP).msn(1)),
        [ack(WRAP - 1).msn(1).up(0), fatal(WRAP).msn(1).up(0)]
    );
    assert_eq!(s.feedback(1, fatal(WRAP)), [Effect::Absorb]);
    // The source missed both: it starts further back, asks, and later comes to the packet itself.
    let both = [ack(WRAP - 1).msn(1).up(0), fatal(WRAP).msn(1).up(0)];
    assert_eq!(s.retransmit(WRAP - 1), both);
    assert_eq!(s.retransmit_asking(WRAP - 1), both);
    assert_eq!(
        s.retransmit(WRAP),
        [replicate(&[1]), fatal(WRAP).msn(1).up(0).into()]
    );
    assert_eq!(s.retransmit(WRAP + 1), [replicate(&[1])]);
}

/// One receiver that refuses ends the stream for nobody else: the source goes back, and gets neither its NAK nor an ACK of what it lacks.
/// Without it the stream goes on from there.
#[test]
fn a_held_nak_is_not_sent_and_acknowledges_nothing_more() {
    let mut s = Switch::new(4, 0);
    s.machine = s.machine.with_held_naks([path(1)]);
    s.data(0, 5);
    s.feedback(2, ack(4).msn(2));
    s.feedback(3, nak(3).msn(2));
    assert_eq!(s.feedback(1, fatal(2).msn(1)), [ack(1).msn(1).up(0)]);
    assert_eq!(s.feedback(1, fatal(2)), [Effect::Absorb]);
    assert!(s.machine.has_failed(path(1)));
    assert_eq!(s.status().paths[0].refusal, Some(fatal(2).syndrome));
    for psn in [0, 1] {
        assert_eq!(s.retransmit_asking(psn), [ack(1).msn(1).up(0)]);
    }
    assert_eq!(s.retransmit_asking(2), [replicate(&[1])]);
    assert_eq!(s.feedback(3, ack(4).msn(2)), [Effect::Absorb]);
    // Of a path that is not named, as one to a switch, it is sent.
    s.data(5, 1);
    assert_eq!(s.feedback(2, fatal(5).msn(2)), [Effect::Absorb]);
    let mut without = Switch::new(3, 0);
    let kept = [(0, 0), (1, 2), (2, 3)].map(|(now, before)| (path(now), path(before)));
    without.machine.carry_on(&s.machine, kept);
    let both = [ack(4).msn(2).up(0), fatal(5).msn(2).up(0)];
    assert_eq!(without.retransmit_asking(2), both);
}

#[test]
fn only_the_source_sends_data_and_only_the_others_answer() {
    let mut s = Switch::new(3, 0);
    s.data(0, 1);
    let before = s.machine.clone();
    let data = |from| Event::Data {
        from: path(from),
        psn: Psn::new(1),
        ack_request: true,
    };
    assert_eq!(s.event(data(1)), [Effect::Drop(DropReason::NotSource)]);
    assert_eq!(s.event(data(3)), [Effect::Drop(DropReason::NotMember)]);
    assert_eq!(
        s.feedback(0, ack(0)),
        [Effect::Drop(DropReason::FeedbackFromSource)]
    );
    assert_eq!(s.feedback(63, ack(0)), [Effect::Drop(DropReason::NotMember)]);
    assert_eq!(
        s.event(Event::Cnp { from: path(0) }),
        [Effect::Drop(DropReason::FeedbackFromSource)]
    );
    assert_eq!(
        s.event(Event::Cnp { from: path(9) }),
        [Effect::Drop(DropReason::NotMember)]
    );
    assert_eq!(s.machine, before);
    assert_eq!(
        s.event(Event::Cnp { from: path(2) }),
        [Effect::Cnp { to: path(0) }]
    );
}

#[test]
fn a_gap_in_the_data_is_passed_on_for_the_receivers_to_refuse() {
    let mut s = Switch::new(3, 0);
    s.data(0, 1);
    assert_eq!(s.data(2, 1), [replicate(&[1, 2])]);
    assert_eq!(s.machine.next_psn(), Some(Psn::new(3)));
    assert_eq!(s.feedback(1, nak(1)), [Effect::Absorb]);
    assert_eq!(s.feedback(2, nak(1)), [ack(0).up(0), nak(1).up(0)]);
    assert_eq!(s.retransmit(1), [replicate(&[1, 2])]);
}

#[test]
fn a_stall_names_the_path_waited_for_once_per_interval() {
    let stall = Nanos::from_millis(10);
    let mut s = Switch::with(MulticastConfig {
        stall_timeout: stall,
        ..Switch::config(3)
    });
    assert_eq!(s.machine.poll_timeout(), None);
    s.now = Nanos::from_millis(1);
    s.data(0, 2);
    let at = |ms| Some((Nanos::from_millis(ms), TimerReason::Stall));
    assert_eq!(s.machine.poll_timeout(), at(11));
    s.now = Nanos::from_millis(4);
    s.feedback(1, ack(1));
    assert_eq!(s.machine.poll_timeout(), at(11), "not the path waited for");
    s.feedback(2, ack(0));
    assert_eq!(s.machine.poll_timeout(), at(14));
    assert!(s.timeout(Nanos::from_millis(13)).is_empty());
    let after = |tries| Effect::Stalled {
        path: path(2),
        since: Nanos::from_millis(4),
        tries,
    };
    let stalled = after(0);
    assert_eq!(s.timeout(Nanos::from_millis(15)), [stalled]);
    assert!(s.timeout(Nanos::from_millis(16)).is_empty());
    assert_eq!(s.machine.poll_timeout(), at(25));
    assert_eq!(
        s.timeout(Nanos::from_millis(60)),
        [stalled],
        "one report for all that was slept through"
    );
    // What it lacks is sent to it again; later data does not count.
    for psn in [1, 1, 1] {
        s.retransmit(psn);
    }
    s.data(2, 1);
    s.retransmit(2);
    assert_eq!(s.timeout(Nanos::from_millis(70)), [after(3)]);
    s.feedback(1, ack(2));
    s.feedback(2, ack(1));
    assert_eq!(s.timeout(Nanos::from_millis(80)), [after(0)], "another packet");
    s.feedback(2, ack(2));
    assert_eq!(s.machine.poll_timeout(), None);
    // Idle for long, then data: the time runs from the data.
    s.now = Nanos::from_millis(500);
    s.data(3, 1);
    assert_eq!(s.machine.poll_timeout(), at(510));
}

/// A receiver that posts no receives answers, and gets its packet again and again. One whose switch gets nothing for it must not be
/// taken for it.
#[test]
fn a_stall_says_how_often_a_receiver_that_refuses_was_sent_its_packet() {
    let stall = Nanos::from_millis(10);
    let mut s = Switch::with(MulticastConfig {
        stall_timeout: stall,
        ..Switch::config(3)
    });
    s.data(0, 2);
    s.feedback(1, ack(1));
    let stalled = |tries| Effect::Stalled {
        path: path(2),
        since: Nanos::ZERO,
        tries,
    };
    assert_eq!(
        s.timeout(stall),
        [stalled(0)],
        "its last packets asked for no ACK"
    );
    for _ in 0..5 {
        s.feedback(2, rnr(0, 12));
        s.retransmit_asking(0);
        s.retransmit_asking(1);
    }
    assert_eq!(s.timeout(Nanos::from_millis(20)), [stalled(5)]);
}

/// The switch itself repeats what a silent path lacks.
#[test]
fn with_repair_the_tries_are_those_of_the_switch() {
    let mut s = Switch::with(MulticastConfig {
        stall_timeout: Nanos::from_millis(10),
        ..Switch::config(3)
    });
    s.machine = s.machine.with_repair(RepairConfig {
        slots: 8,
        tick: Nanos::from_millis(1),
        switches: Paths::only(path(0)),
    });
    s.data(0, 2);
    s.retransmit_asking(2);
    s.feedback(1, ack(2));
    s.feedback(2, ack(0));
    let tick = |ms| {
        let told = s.timeout(Nanos::from_millis(ms));
        while s.machine.poll_resend().is_some() {}
        told
    };
    let told: Vec<Told> = (1..=10).flat_map(tick).collect();
    let stalled = Effect::Stalled {
        path: path(2),
        since: Nanos::ZERO,
        // After 2, 4 and 8 ticks.
        tries: 3,
    };
    assert_eq!(told, [stalled]);
}

#[test]
fn a_group_with_only_a_source_sends_nothing() {
    let mut s = Switch::new(1, 0);
    assert_eq!(s.data(0, 1), [Effect::Absorb]);
    assert_eq!(s.feedback(1, ack(0)), [Effect::Drop(DropReason::NotMember)]);
}

#[test]
fn as_many_paths_as_there_can_be_are_served() {
    let source = PathId::new(40).unwrap();
    let config = |paths| MulticastConfig {
        paths,
        source,
        ..Switch::config(2)
    };
    let mut s = Switch::with(config(PATHS_MAX as u16));
    let all: Vec<usize> = (0..PATHS_MAX).filter(|path| *path != 40).collect();
    assert_eq!(s.data(0, 1), [Told::Replicate(all.clone())]);
    let mut told = all.iter().map(|path| {
        s.event(Event::Feedback {
            from: PathId::new(*path).unwrap(),
            psn: Psn::new(0),
            msn: 0,
            syndrome: Syndrome::Ack,
        })
    });
    assert!(
        told.by_ref()
            .take(PATHS_MAX - 2)
            .all(|told| told == [Effect::Absorb])
    );
    assert_eq!(told.next(), Some(vec![ack(0).up(40).into()]));
    // A Path Table shorter than the source's own index is made long enough, one that is too long is cut.
    let paths = |paths| Multicast::new(config(paths)).status().paths.len();
    assert_eq!((paths(3), paths(u16::MAX)), (40, PATHS_MAX - 1));
}

#[test]
fn status_reports_only_known_values() {
    let mut s = Switch::new(3, 5);
    s.data(5, 3);
    s.feedback(1, rnr(7, 12).msn(2));
    let status = s.status();
    assert_eq!((status.newest_psn, status.agg_ack_psn), (Some(Psn::new(7)), None));
    assert_eq!(
        (status.me_psn, status.waiting_for),
        (Some(Psn::new(7)), Some(path(2)))
    );
    assert_eq!(
        (status.paths[0].ack_psn, status.paths[0].msn),
        (Some(Psn::new(6)), 2)
    );
    assert_eq!(status.paths[0].refusal, Some(Syndrome::RnrNak(RnrTimer::new(12))));
    assert_eq!((status.paths[1].ack_psn, status.paths[1].refusal), (None, None));
    s.feedback(2, ack(7));
    assert_eq!(
        (s.status().agg_ack_psn, s.status().nak_sent),
        (Some(Psn::new(6)), true)
    );
    s.feedback(1, ack(7));
    let status = s.status();
    assert_eq!(
        (status.waiting_for, status.since, status.nak_sent),
        (None, None, false)
    );
    assert!(!NakCode::PsnSequenceError.is_fatal());
}
