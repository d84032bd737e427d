//! Pauses that a switch obeys, and those that it sends.

use castnet_pfc::{Admitted, NO_INGRESS, PfcCounters};
use castnet_wire::{DropReason, Nanos};

use crate::port::{Port, Switch, config, frame, pause_of, quanta};

#[test]
fn frames_wait_until_the_pause_is_over_to_the_nanosecond() {
    // Configured speed; that of the device; neither: 10 Gb/s.
    for (configured, device, time) in [
        (Some(1_000), Some(100), 512),
        (None, Some(100), 5_120),
        (None, None, 51),
    ] {
        let mut config = config();
        config.speed_mbps = configured;
        let mut switch = Switch::new(&config, 1, 16);
        let start = Nanos(1_000);
        switch.workers[0].received(0, start, device, &pause_of(&[(3, 1)]));
        assert!(switch.poll(Nanos(1_000 + time - 1)));
        assert!(switch.report(0, 3, Nanos(1_000 + time - 1)).is_paused);
        assert!(switch.holds(frame(3, 100, 1)));
        assert!(switch.poll(Nanos(1_000 + time - 1)));
        assert_eq!(switch.port.numbers(), []);
        assert!(!switch.report(0, 3, Nanos(1_000 + time)).is_paused);
        assert!(!switch.poll(Nanos(1_000 + time)));
        assert_eq!(switch.port.numbers(), [1]);
        assert!(!switch.holds(frame(3, 100, 2)));
    }
}

#[test]
fn a_pause_stops_its_lossless_classes_at_its_port_and_nothing_else() {
    let mut switch = Switch::new(&config(), 1, 16);
    let pause = pause_of(&[(3, 100), (5, 100)]);
    switch.workers[0].received(0, Nanos(1), None, &pause);
    switch.workers[0].received(2, Nanos(1), None, &pause);
    assert_eq!(switch.workers[0].attention(), 0b1);
    assert_eq!(switch.workers[0].slots(), 0b11);
    assert!(switch.poll(Nanos(1)));
    let port = &mut switch.port;
    assert!(!switch.workers[0].poll(1, port));
    assert!(!switch.workers[0].poll(2, port));
    for (slot, class, waits) in [
        (0, 3, true),
        (0, 4, false),
        (0, 5, false),
        (1, 3, false),
        (2, 3, false),
    ] {
        let admitted = switch.workers[0].admit(slot, 1, frame(class, 100, 0), false);
        assert_eq!(
            matches!(admitted, Admitted::Held),
            waits,
            "port {slot}, class {class}"
        );
    }
    // What a port has not accepted waits if its class is lossless.
    assert!(switch.holds_unsent(frame(4, 100, 0)));
    assert!(!switch.holds_unsent(frame(5, 100, 0)));
    assert_eq!(switch.workers[0].held(), 2);
    // Frames behind one that waits do too, though their class is not paused.
    assert!(switch.holds(frame(4, 100, 0)));
    assert!(switch.shared.report(2, Nanos(1)).is_empty());
    assert!(switch.shared.report(3, Nanos(1)).is_empty());
}

#[test]
fn a_time_of_zero_ends_a_pause_at_once() {
    let mut switch = Switch::new(&config(), 1, 16);
    switch.pause(Nanos(5), u16::MAX);
    assert!(switch.poll(Nanos(5)));
    switch.pause(Nanos(900), 0);
    assert!(
        !switch.report(0, 3, Nanos(6)).is_paused,
        "also for a clock that lags"
    );
    assert!(!switch.poll(Nanos(905)));
    let counters = switch.report(0, 3, Nanos(905)).counters;
    let expected = PfcCounters {
        pause_received: 2,
        paused_ns: 900,
        ..PfcCounters::default()
    };
    assert_eq!(counters, expected);
}

#[test]
fn paused_time_is_counted_once_over_repeated_and_separate_pauses() {
    let mut switch = Switch::new(&config(), 1, 16);
    switch.pause(Nanos(1_000), 2);
    assert!(switch.poll(Nanos(1_000)));
    assert!(switch.poll(Nanos(1_500)));
    switch.pause(Nanos(1_600), 2);
    assert!(switch.poll(Nanos(1_700)));
    // It has ended at 2,624; the worker sees that later.
    assert!(!switch.poll(Nanos(2_700)));
    assert_eq!(switch.report(0, 3, Nanos(2_700)).counters.paused_ns, 1_624);
    assert!(!switch.poll(Nanos(9_000)));
    switch.pause(Nanos(10_000), 2);
    assert!(switch.poll(Nanos(10_000)));
    assert!(!switch.poll(Nanos(11_024)));
    let counters = switch.report(0, 3, Nanos(11_024)).counters;
    assert_eq!((counters.paused_ns, counters.pause_received), (2_648, 3));
}

#[test]
fn what_a_port_does_not_accept_waits_in_order_and_is_counted_by_its_bytes() {
    let mut switch = Switch::new(&config(), 1, 16);
    for (number, length) in [(1, 300), (2, 400), (3, 500), (4, 600)] {
        assert!(switch.holds_unsent(frame(3, length, number)));
    }
    assert_eq!(switch.report(0, 3, Nanos(0)).queued_bytes, 1_800);
    for (room, sent, queued) in [
        (0, vec![], 1_800),
        (1, vec![1], 1_500),
        (2, vec![2, 3], 600),
        (9, vec![4], 0),
    ] {
        switch.port.room = room;
        assert_eq!(switch.poll(Nanos(0)), queued > 0);
        assert_eq!(switch.port.numbers(), sent);
        let report = switch.report(0, 3, Nanos(0));
        assert_eq!((report.queued_bytes, report.counters.held), (queued, 4));
    }
    assert_eq!(switch.workers[0].held(), 0);
}

/// A port that takes a part of a batch is not asked again in this iteration.
#[test]
fn a_port_that_takes_a_part_is_left_alone_until_the_next_iteration() {
    let mut switch = Switch::new(&config(), 1, 16);
    for number in 1..=3 {
        assert!(switch.holds_unsent(frame(3, 100, number)));
    }
    switch.port.at_once = 1;
    for number in 1..=3 {
        assert_eq!(switch.poll(Nanos(0)), number < 3);
        assert_eq!(switch.port.numbers(), [number]);
    }
}

/// Frames are charged to their ingress also after a part of them was put back.
#[test]
fn frames_put_back_keep_their_ingress() {
    let mut switch = Switch::new(&config(), 1, 16);
    for (ingress, number) in [(NO_INGRESS, 1), (0, 2), (1, 3), (1, 4)] {
        let admitted = switch.workers[0].admit(0, ingress, frame(3, 1_000, number), true);
        assert!(matches!(admitted, Admitted::Held));
    }
    switch.port.room = 1;
    assert!(switch.poll(Nanos(0)));
    assert!(switch.report(1, 3, Nanos(0)).is_stopping);
    assert!(!switch.report(0, 3, Nanos(0)).is_stopping);
    switch.port.room = 1;
    assert!(switch.poll(Nanos(0)));
    assert!(switch.report(1, 3, Nanos(0)).is_stopping);
    switch.port.room = 1;
    assert!(switch.poll(Nanos(0)));
    assert!(!switch.report(1, 3, Nanos(0)).is_stopping);
    assert_eq!(switch.port.numbers(), [1, 2, 3]);
}

#[test]
fn an_iteration_sends_four_batches_of_a_class_at_most() {
    for (frames, sent) in [(127, 127), (128, 128), (129, 128)] {
        let mut config = config();
        config.headroom_bytes = 1 << 20;
        let mut switch = Switch::new(&config, 1, 512);
        for n in 0..frames {
            assert!(switch.holds_unsent(frame(3, 100, n as u8)));
        }
        assert_eq!(switch.poll(Nanos(0)), sent < frames);
        assert_eq!(switch.port.numbers().len(), sent);
        assert_eq!(
            switch.report(0, 3, Nanos(0)).queued_bytes,
            100 * (frames - sent) as u64
        );
    }
}

#[test]
fn pause_is_sent_at_xoff_again_at_half_of_its_time_and_ended_at_xon() {
    let mut switch = Switch::new(&config(), 1, 16);
    let mut upstream = Port::new();
    switch.at(Nanos(0));
    assert!(switch.holds_unsent(frame(3, 1_000, 1)));
    assert!(switch.holds_unsent(frame(3, 999, 2)));
    assert_eq!((switch.workers[0].wakes(), switch.workers[0].attention()), (0, 0));
    assert!(switch.holds_unsent(frame(3, 300, 3)));
    assert_eq!(
        (switch.workers[0].wakes(), switch.workers[0].attention()),
        (1, 0b10)
    );
    assert_eq!(switch.workers[0].wakes(), 0, "the owner is woken once");
    let half = Nanos(quanta(u16::MAX).0 / 2);
    for (now, sent) in [
        (Nanos(0), vec![vec![(3, u16::MAX)]]),
        (Nanos(1), vec![]),
        (Nanos(half.0 - 1), vec![]),
        (half, vec![vec![(3, u16::MAX)]]),
        (Nanos(2 * half.0 - 1), vec![]),
        (Nanos(2 * half.0), vec![vec![(3, u16::MAX)]]),
    ] {
        let worker = switch.at(now);
        worker.poll(1, &mut upstream);
        assert_eq!(upstream.take_pauses(), sent, "at {now:?}");
        assert_eq!(worker.attention(), 0b10);
        assert!(worker.poll_timeout().is_some_and(|at| at > now));
    }
    // 1,000 bytes remain after two frames: 999 and 300 are more, 300 are fewer.
    switch.port.room = 1;
    switch.poll(Nanos(2 * half.0));
    switch.workers[0].poll(1, &mut upstream);
    assert_eq!(upstream.take_pauses(), Vec::<Vec<(u8, u16)>>::new());
    switch.port.room = 1;
    switch.poll(Nanos(2 * half.0));
    assert!(!switch.report(1, 3, Nanos(0)).is_stopping);
    assert_eq!(switch.workers[0].wakes(), 1);
    switch.workers[0].poll(1, &mut upstream);
    assert_eq!(upstream.take_pauses(), [[(3, 0)]]);
    switch.workers[0].poll(1, &mut upstream);
    assert_eq!(upstream.take_pauses(), Vec::<Vec<(u8, u16)>>::new());
    assert_eq!(switch.workers[0].attention(), 0);
    assert_eq!(switch.report(1, 3, Nanos(0)).counters.pause_sent, 4);
    // The last frame still waits. Then the worker has nothing to look for.
    assert!(switch.workers[0].poll_timeout().is_some());
    switch.port.room = 1;
    assert!(!switch.poll(Nanos(2 * half.0)));
    assert_eq!(switch.workers[0].poll_timeout(), None);
}

#[test]
fn a_pause_that_does_not_fit_is_sent_by_a_later_iteration() {
    let mut switch = Switch::new(&config(), 1, 16);
    let mut upstream = Port::new();
    upstream.takes_pauses = false;
    for number in 0..2 {
        assert!(switch.holds_unsent(frame(3, 1_000, number)));
    }
    switch.workers[0].poll(1, &mut upstream);
    assert_eq!(switch.report(1, 3, Nanos(0)).counters.pause_sent, 0);
    upstream.takes_pauses = true;
    switch.workers[0].poll(1, &mut upstream);
    assert_eq!(upstream.take_pauses(), [[(3, u16::MAX)]]);
    // Neither does its end.
    switch.poll(Nanos(0));
    upstream.takes_pauses = false;
    switch.workers[0].poll(1, &mut upstream);
    assert_eq!(switch.workers[0].attention(), 0b10);
    upstream.takes_pauses = true;
    switch.workers[0].poll(1, &mut upstream);
    assert_eq!(upstream.take_pauses(), [[(3, 0)]]);
    assert_eq!(switch.report(1, 3, Nanos(0)).counters.pause_sent, 2);
}

/// The refresh follows the speed of the link: of the device, if none is configured.
#[test]
fn a_pause_is_sent_again_sooner_on_a_faster_link() {
    for (device, half) in [
        (Some(100), 16_776_960 * 10),
        (Some(10_000), 1_677_696),
        (None, 1_677_696),
    ] {
        let mut config = config();
        config.speed_mbps = None;
        let mut switch = Switch::new(&config, 1, 16);
        let mut upstream = Port::new();
        upstream.speed_mbps = device;
        for number in 0..2 {
            assert!(switch.holds_unsent(frame(3, 1_000, number)));
        }
        for (now, sent) in [(0, 1), (half - 1, 0), (half, 1)] {
            switch.at(Nanos(now)).poll(1, &mut upstream);
            assert_eq!(upstream.take_pauses().len(), sent, "{device:?} at {now}");
        }
    }
}

#[test]
fn one_frame_pauses_all_classes_that_are_over_xoff() {
    let mut switch = Switch::new(&config(), 1, 16);
    let mut upstream = Port::new();
    for number in 0..2 {
        assert!(switch.holds_unsent(frame(3, 1_000, number)));
        assert!(switch.holds_unsent(frame(4, 1_000, number)));
    }
    switch.workers[0].poll(1, &mut upstream);
    assert_eq!(upstream.take_pauses(), [[(3, u16::MAX), (4, u16::MAX)]]);
}

/// Worker 0 owns port 0, worker 1 owns port 1.
#[test]
fn a_port_is_stopped_as_long_as_any_worker_wants_that() {
    let mut switch = Switch::new(&config(), 2, 16);
    let mut upstream = Port::new();
    for worker in &mut switch.workers {
        for number in 0..2 {
            let admitted = worker.admit(0, 1, frame(3, 1_000, number), true);
            assert!(matches!(admitted, Admitted::Held));
        }
        assert_eq!(worker.wakes(), 0b10);
    }
    for (drained, is_stopping, sent) in [
        (None, true, vec![vec![(3, u16::MAX)]]),
        (Some(0), true, vec![]),
        (Some(1), false, vec![vec![(3, 0)]]),
    ] {
        if let Some(n) = drained {
            let mut port = Port::new();
            port.is_owner = false;
            assert!(!switch.workers[n].poll(0, &mut port));
            assert_eq!(switch.workers[n].wakes(), 0b10);
        }
        switch.workers[1].poll(1, &mut upstream);
        assert_eq!(upstream.take_pauses(), sent);
        assert_eq!(switch.report(1, 3, Nanos(0)).is_stopping, is_stopping);
    }
}

#[test]
fn only_the_owner_of_a_port_sends_pause_and_counts_pauses() {
    let mut switch = Switch::new(&config(), 2, 16);
    for number in 0..2 {
        let admitted = switch.workers[0].admit(0, 0, frame(3, 1_000, number), true);
        assert!(matches!(admitted, Admitted::Held));
    }
    switch.pause(Nanos(1), 100);
    switch.port.is_owner = false;
    switch.poll(Nanos(1));
    switch.poll(Nanos(2));
    let counters = switch.report(0, 3, Nanos(2)).counters;
    assert_eq!((counters.pause_sent, counters.paused_ns), (0, 0));
    assert!(switch.port.pauses.is_empty());
    assert_eq!(switch.workers[0].attention(), 0b1, "it is left to the owner");
}

#[test]
fn frames_over_the_headroom_or_the_memory_are_dropped_and_counted() {
    // XOFF and headroom are 3,500 bytes together.
    for (lengths, frames_max, drops) in [
        (&[2_000, 1_500][..], 16, 0),
        (&[2_000, 1_501], 16, 1),
        (&[300, 300], 2, 0),
        (&[300, 300, 300], 2, 1),
        (&[300], 0, 1),
    ] {
        let mut switch = Switch::new(&config(), 1, frames_max);
        for (n, length) in lengths.iter().enumerate() {
            match switch.workers[0].admit(0, 1, frame(3, *length, 0), true) {
                Admitted::Held => assert!(n + drops < lengths.len()),
                Admitted::Dropped(reason) => {
                    assert_eq!(reason, DropReason::PfcOverflow);
                    assert_eq!(n + 1, lengths.len());
                }
                Admitted::Send(_) => panic!("it was not accepted"),
            }
        }
        let counters = switch.report(0, 3, Nanos(0)).counters;
        let held = (lengths.len() - drops) as u64;
        assert_eq!((counters.held, counters.overflows), (held, drops as u64));
        assert_eq!(switch.workers[0].held() as u64, held);
    }
}

/// Half of the memory is in use: ports whose frames wait are stopped, until a quarter is.
#[test]
fn ports_whose_frames_wait_are_stopped_while_memory_is_scarce() {
    let mut switch = Switch::new(&config(), 1, 8);
    let stopped = |switch: &Switch| [0, 1].map(|slot| switch.report(slot, 3, Nanos(0)).is_stopping);
    for held in 1..=4 {
        assert!(switch.holds_unsent(frame(3, 100, held)));
        assert_eq!(stopped(&switch), [false, held >= 4], "{held} frames");
    }
    let admitted = switch.workers[0].admit(0, 0, frame(3, 100, 5), false);
    assert!(matches!(admitted, Admitted::Held));
    assert_eq!(stopped(&switch), [true; 2]);
    for left in [4, 3, 2] {
        switch.port.room = 1;
        switch.poll(Nanos(0));
        assert_eq!(stopped(&switch), [left > 2; 2], "{left} frames");
    }
}

/// What a port was paused for and what it stops are two things.
#[test]
fn a_port_may_be_paused_and_stop_its_peer_at_once() {
    let mut switch = Switch::new(&config(), 1, 16);
    let now = Nanos(7_000);
    switch.pause(now, 100);
    assert!(switch.poll(now));
    assert_eq!(switch.workers[0].poll_timeout(), None, "nothing waits");
    for number in 0..2 {
        let admitted = switch.workers[0].admit(0, 0, frame(3, 1_000, number), false);
        assert!(matches!(admitted, Admitted::Held));
    }
    assert_eq!(switch.workers[0].attention(), 0b1);
    let retry = Nanos::from_micros(20);
    assert_eq!(switch.workers[0].poll_timeout(), Some(now + retry));
    assert!(switch.poll(now));
    assert_eq!(switch.port.take_pauses(), [[(3, u16::MAX)]]);
    assert_eq!(switch.workers[0].attention(), 0b1);
}
