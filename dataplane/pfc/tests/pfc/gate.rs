//! The host's side.

use castnet_pfc::Gate;
use castnet_wire::Nanos;

use crate::port::{class, config, frame, pause_of, quanta};

fn gate() -> Gate<Vec<u8>> {
    Gate::new(config())
}

#[test]
fn frames_wait_until_the_pause_is_over_and_leave_in_order() {
    let mut gate = gate();
    gate.set_time(Nanos(1_000));
    gate.obey(&pause_of(&[(3, 2), (5, 9)]), None);
    assert!(gate.is_suspended());
    assert_eq!(gate.admit(frame(3, 100, 1)), None);
    assert_eq!(gate.admit(frame(3, 100, 2)), None);
    for other in [4, 5] {
        assert_eq!(gate.admit(frame(other, 100, 9)), Some(frame(other, 100, 9)));
    }
    let end = Nanos(1_000) + quanta(2);
    assert_eq!((gate.held(), gate.pop()), (2, None));
    assert_eq!((gate.poll_timeout(), gate.pause_ends()), (Some(end), Some(end)));
    gate.set_time(Nanos(end.0 - 1));
    assert_eq!(gate.pop(), None);
    gate.set_time(end);
    assert_eq!((gate.poll_timeout(), gate.pause_ends()), (Some(end), None));
    // A frame behind one that waits does too.
    assert_eq!(gate.admit(frame(3, 100, 3)), None);
    assert_eq!(gate.pop(), Some((class(3), frame(3, 100, 1))));
    let (class, second) = gate.pop().expect("a frame");
    assert_eq!(gate.held(), 1);
    gate.put_back(class, second);
    assert_eq!(gate.held(), 2);
    for number in [2, 3] {
        assert!(gate.is_suspended());
        assert_eq!(gate.pop(), Some((class, frame(3, 100, number))));
    }
    assert_eq!((gate.held(), gate.pop(), gate.poll_timeout()), (0, None, None));
    assert!(!gate.is_suspended());
    assert_eq!(gate.admit(frame(3, 100, 4)), Some(frame(3, 100, 4)));
}

#[test]
fn the_speed_is_the_configured_one_or_that_of_the_device() {
    for (configured, device, time) in [
        (Some(1_000), Some(100), 512),
        (None, Some(100), 5_120),
        (None, None, 51),
    ] {
        let mut config = config();
        config.speed_mbps = configured;
        let mut gate = Gate::<Vec<u8>>::new(config);
        gate.obey(&pause_of(&[(3, 1)]), device);
        gate.set_time(Nanos(time - 1));
        assert!(gate.is_suspended());
        gate.set_time(Nanos(time));
        assert!(!gate.is_suspended());
    }
}

#[test]
fn a_time_of_zero_ends_a_pause_and_another_class_stays_paused() {
    let mut gate = gate();
    gate.obey(&pause_of(&[(3, 10), (4, 20)]), None);
    assert_eq!(gate.admit(frame(4, 100, 4)), None);
    assert_eq!(gate.admit(frame(3, 100, 3)), None);
    assert_eq!(
        (gate.poll_timeout(), gate.pause_ends()),
        (Some(quanta(10)), Some(quanta(10)))
    );
    gate.set_time(Nanos(1));
    gate.obey(&pause_of(&[(3, 0)]), None);
    assert_eq!(
        (gate.poll_timeout(), gate.pause_ends()),
        (Some(Nanos(1)), Some(quanta(20)))
    );
    assert_eq!(gate.pop(), Some((class(3), frame(3, 100, 3))));
    assert_eq!((gate.pop(), gate.held()), (None, 1));
}

#[test]
fn what_does_not_fit_in_the_send_queue_waits_if_its_class_is_lossless() {
    let mut gate = gate();
    assert_eq!(gate.keep_unsent(frame(5, 100, 1)), Some(frame(5, 100, 1)));
    assert!(!gate.is_suspended());
    assert_eq!(gate.keep_unsent(frame(3, 100, 2)), None);
    assert!(gate.is_suspended());
    assert_eq!(
        (gate.poll_timeout(), gate.pause_ends()),
        (Some(Nanos::ZERO), None)
    );
}

#[test]
fn at_most_4096_frames_wait_in_all_classes_together() {
    let mut gate = gate();
    for n in 0..4096_u16 {
        assert_eq!(gate.keep_unsent(frame(3 + (n % 2) as u8, 64, 0)), None);
    }
    assert_eq!((gate.held(), gate.drops()), (4096, 0));
    assert_eq!(gate.keep_unsent(frame(3, 64, 0)), None);
    assert_eq!((gate.held(), gate.drops()), (4096, 1));
    assert!(gate.pop().is_some());
    assert_eq!(gate.keep_unsent(frame(4, 64, 0)), None);
    assert_eq!((gate.held(), gate.drops()), (4096, 1));
}
