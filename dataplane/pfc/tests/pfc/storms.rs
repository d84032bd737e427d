//! The watchdog.

use castnet_pfc::{Admitted, PfcCounters};
use castnet_wire::{DropReason, Nanos};

use crate::port::{Switch, WATCHDOG, config, frame, quanta};

const START: Nanos = Nanos(1_000);

/// A switch whose peer has paused class 3 for so long that the watchdog has noticed. Returns the time.
fn in_storm(switch: &mut Switch) -> Nanos {
    switch.pause(START, u16::MAX);
    assert!(switch.poll(START));
    let begin = START + WATCHDOG + Nanos(1);
    assert!(switch.poll(begin));
    assert_eq!(switch.port.storms, [(begin, 3, true)]);
    begin
}

#[test]
fn a_storm_begins_when_the_pause_is_longer_than_the_limit() {
    let mut switch = Switch::new(&config(), 1, 16);
    switch.pause(START, u16::MAX);
    assert!(switch.poll(START));
    for number in 1..=2 {
        assert!(switch.holds(frame(3, 300, number)));
    }
    assert!(switch.poll(START + WATCHDOG));
    assert!(!switch.report(0, 3, START).has_storm);
    let begin = START + WATCHDOG + Nanos(1);
    assert!(switch.poll(begin));
    assert!(switch.report(0, 3, begin).has_storm);
    assert_eq!(switch.port.storms, [(begin, 3, true)]);
    // What waits is dropped, and what comes; other classes go on.
    assert_eq!(switch.port.drops, [DropReason::PfcStorm; 2]);
    let admitted = switch.workers[0].admit(0, 1, frame(3, 100, 3), false);
    assert!(matches!(admitted, Admitted::Dropped(DropReason::PfcStorm)));
    let admitted = switch.workers[0].admit(0, 1, frame(4, 100, 4), false);
    assert!(matches!(admitted, Admitted::Send(_)));
    // It is one storm, however long it takes.
    assert!(switch.poll(begin + WATCHDOG));
    assert_eq!(switch.port.storms.len(), 1);
    let report = switch.report(0, 3, begin + WATCHDOG);
    assert_eq!((report.queued_bytes, switch.workers[0].held()), (0, 0));
    let expected = PfcCounters {
        pause_received: 1,
        paused_ns: 2 * WATCHDOG.0 + 1,
        held: 2,
        storms: 1,
        storm_drops: 3,
        ..PfcCounters::default()
    };
    assert_eq!(report.counters, expected);
}

/// Pauses of `pause` with breaks between them, until there is a storm, or a hundred of them are over. Returns the time that passed.
fn paused_with_breaks(switch: &mut Switch, pause: Nanos, between: Nanos) -> Nanos {
    let mut now = START;
    for _ in 0..100 {
        switch.pause(now, u16::MAX);
        assert!(switch.poll(now));
        now += pause;
        assert!(switch.poll(now));
        if !switch.port.storms.is_empty() {
            break;
        }
        switch.pause(now, 0);
        assert!(!switch.poll(now));
        now += between;
    }
    now.since(START)
}

#[test]
fn a_pause_that_ends_in_between_is_not_a_storm() {
    // A thousandth of the time is break enough: a peer may be slow.
    for (pause, between) in [
        (WATCHDOG, Nanos(WATCHDOG.0 / 1_000)),
        (Nanos(100_000), Nanos(100)),
    ] {
        let mut switch = Switch::new(&config(), 1, 16);
        paused_with_breaks(&mut switch, pause, between);
        assert_eq!(switch.port.storms, []);
    }
}

#[test]
fn breaks_of_less_than_a_thousandth_do_not_hide_a_storm() {
    let mut switch = Switch::new(&config(), 1, 16);
    let (pause, between) = (Nanos(WATCHDOG.0 - 1), Nanos(1));
    let passed = paused_with_breaks(&mut switch, pause, between);
    assert_eq!((switch.port.storms.len(), passed), (1, pause + between + pause));
    // At half of what would be enough, it takes twice the time.
    let mut switch = Switch::new(&config(), 1, 16);
    let passed = paused_with_breaks(&mut switch, Nanos(100_000), Nanos(50));
    assert_eq!(switch.port.storms.len(), 1);
    assert!(
        passed > WATCHDOG + WATCHDOG && passed < WATCHDOG + WATCHDOG + Nanos(200_000),
        "{passed:?}"
    );
}

#[test]
fn a_storm_ends_after_one_whole_quiet_time() {
    let mut switch = Switch::new(&config(), 1, 16);
    let begin = in_storm(&mut switch);
    // Quiet, almost long enough; paused again; quiet.
    switch.pause(begin, 0);
    assert!(switch.poll(begin));
    assert!(switch.poll(begin + WATCHDOG));
    let again = begin + WATCHDOG;
    switch.pause(again, 1);
    assert!(switch.poll(again));
    switch.pause(again, 0);
    let quiet = again + Nanos(10);
    assert!(switch.poll(quiet));
    assert!(switch.poll(quiet + WATCHDOG));
    assert_eq!(switch.port.storms.len(), 1);
    let end = quiet + WATCHDOG + Nanos(1);
    assert!(!switch.poll(end));
    assert_eq!(switch.port.storms[1..], [(end, 3, false)]);
    assert!(!switch.report(0, 3, end).has_storm);
    assert!(!switch.holds(frame(3, 100, 1)), "frames go on");
    assert!(!switch.poll(end + WATCHDOG));
    assert_eq!(switch.workers[0].attention(), 0);
}

/// The quiet time of the first storm says nothing about the second.
#[test]
fn a_second_storm_ends_after_a_quiet_time_of_its_own() {
    let mut switch = Switch::new(&config(), 1, 16);
    let begin = in_storm(&mut switch);
    switch.pause(begin, 0);
    assert!(switch.poll(begin));
    let end = begin + WATCHDOG + Nanos(1);
    assert!(!switch.poll(end));
    switch.pause(end, u16::MAX);
    assert!(switch.poll(end));
    let second = end + WATCHDOG + Nanos(1);
    assert!(switch.poll(second));
    switch.pause(second, 0);
    assert!(switch.poll(second));
    assert!(switch.poll(second + WATCHDOG));
    assert_eq!(switch.report(0, 3, second).counters.storms, 2);
    assert!(!switch.poll(second + WATCHDOG + Nanos(1)));
    assert_eq!(
        switch.port.storms.iter().map(|at| at.2).collect::<Vec<_>>(),
        [true, false, true, false]
    );
}

/// The owner of a port may sleep: a pause that ran out is as long as it was.
#[test]
fn a_pause_that_ran_out_is_not_counted_further() {
    let mut switch = Switch::new(&config(), 1, 16);
    let mut now = START;
    for _ in 0..1_000 {
        switch.pause(now, 10);
        assert!(switch.poll(now));
        now += quanta(10) + Nanos(WATCHDOG.0 / 2);
        assert!(!switch.poll(now));
        switch.pause(now, 0);
        assert!(!switch.poll(now));
    }
    assert_eq!(switch.port.storms, []);
    assert_eq!(switch.report(0, 3, now).counters.paused_ns, 1_000 * quanta(10).0);
}

/// A peer that stops the class, then lets it go and takes nothing, in turn: neither lasts as long as the limit.
#[test]
fn pauses_between_which_nothing_leaves_are_a_storm() {
    let mut switch = Switch::new(&config(), 1, 16);
    switch.at(START);
    switch.port.room = 0;
    assert!(switch.holds_unsent(frame(3, 300, 1)));
    let (pause, between) = (Nanos(WATCHDOG.0 / 4), Nanos(WATCHDOG.0 / 8));
    let mut now = START;
    while switch.port.storms.is_empty() {
        assert!(now <= START + WATCHDOG + pause, "no storm");
        switch.pause(now, u16::MAX);
        assert!(switch.poll(now));
        now += pause;
        assert!(switch.poll(now));
        switch.pause(now, 0);
        assert!(switch.poll(now));
        now += between;
        assert!(switch.poll(now));
    }
}

#[test]
fn without_a_watchdog_there_is_no_storm() {
    let mut config = config();
    config.watchdog = None;
    let mut switch = Switch::new(&config, 1, 16);
    for n in 0..100 {
        let now = Nanos(1_000_000_000 * n);
        switch.pause(now, u16::MAX);
        assert!(switch.poll(now));
    }
    assert!(switch.holds(frame(3, 100, 1)));
    assert_eq!(switch.port.storms, []);
    assert_eq!(switch.report(0, 3, Nanos(0)).counters.paused_ns, 99_000_000_000);
}

#[test]
fn a_port_that_accepts_nothing_for_longer_than_the_limit_has_a_storm() {
    let mut switch = Switch::new(&config(), 1, 16);
    switch.port.room = 0;
    switch.at(START);
    for number in 1..=4 {
        assert!(switch.holds_unsent(frame(3, 300, number)));
    }
    assert!(switch.poll(START + WATCHDOG));
    // Progress: the time starts anew. A pause does not start it anew.
    switch.port.room = 1;
    let progress = START + WATCHDOG;
    assert!(switch.poll(progress));
    let paused = progress + Nanos(WATCHDOG.0 / 2);
    switch.pause(paused, 1);
    assert!(switch.poll(paused));
    switch.pause(paused, 0);
    assert!(switch.poll(progress + WATCHDOG));
    assert_eq!((switch.port.storms.len(), switch.port.numbers()), (0, vec![1]));
    let begin = progress + WATCHDOG + Nanos(1);
    assert!(switch.poll(begin));
    assert_eq!(switch.port.storms, [(begin, 3, true)]);
    assert_eq!(switch.port.drops, []);
    // The next iteration drops what waits. The storm ends like any other.
    assert_eq!(switch.workers[0].attention(), 1);
    assert!(switch.poll(begin));
    assert_eq!(switch.port.drops, [DropReason::PfcStorm; 3]);
    assert!(!switch.poll(begin + WATCHDOG + Nanos(1)));
    let counters = switch.report(0, 3, begin).counters;
    assert_eq!((counters.storms, counters.storm_drops), (1, 3));
}
