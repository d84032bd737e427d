//! Edges between switches of different modes: each takes the other one for a host.

use crate::net::endpoint;
use crate::program::call;
use crate::rules::{Bench, acks, config, emitted};
use castnet_collective::TranslatedConfig;
use castnet_collective::translated::CollectiveMode::{Augmented, Translated};
use castnet_wire::Primitive::AllReduce;
use castnet_wire::{NakCode, Syndrome};

const NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
const PACKETS: i32 = 12;

/// Rank 0 below, and a parent of another mode. Rank 0 has sent a message that is longer than what is unacknowledged of a paced flow.
fn below(mode: castnet_collective::translated::CollectiveMode) -> Bench {
    let mut b = Bench::new(TranslatedConfig {
        parent: Some(endpoint(1)),
        message_packets: PACKETS as u16,
        slots: 64,
        mode,
        ..config(2, 0, false)
    });
    b.control(0, 0, 0, call(AllReduce, 0, PACKETS as u32));
    (1..=PACKETS).for_each(|index| _ = b.data(0, index, false));
    b.tick();
    b
}

/// A parent of Mode-II acknowledges nothing before the result, and for that a switch of Mode-I above it needs the whole message. Which packet was
/// lost, nobody can know but the parent.
#[test]
fn a_parent_of_another_mode_gets_all_again_as_from_a_host() {
    for mode in [Translated, Augmented] {
        let mut b = below(mode);
        let all: Vec<i32> = (0..=PACKETS).collect();
        let numbers = |effects: &[_]| -> Vec<i32> {
            let each = emitted(effects).into_iter();
            each.map(|(g, to, _)| {
                assert_eq!(to, [1]);
                g as i32
            })
            .collect()
        };
        assert_eq!(numbers(&b.tick()), all, "{mode:?}");
        assert_eq!(
            numbers(&b.feedback(1, 0, NAK)),
            all,
            "{mode:?}: a NAK slows nothing down"
        );
        b.tick();
        // A keep-alive re-arms the timer, as that of a host.
        b.feedback(1, -1, Syndrome::Ack);
        assert_eq!(numbers(&b.tick()), [0; 0], "{mode:?}");
        assert_eq!(numbers(&b.tick()), all, "{mode:?}");
        b.feedback(1, 3, Syndrome::Ack);
        b.tick();
        assert_eq!(numbers(&b.tick()), all[4..], "{mode:?}");
    }
}

/// Where the end of a message is lost each time, such as in front of a short queue, no packet with AckReq arrives.
#[test]
fn a_requester_that_goes_back_is_told_what_is_there() {
    let mut b = Bench::new(TranslatedConfig {
        mode: Augmented,
        ..config(2, 0, false)
    });
    b.control(0, 0, 0, call(AllReduce, 0, 6));
    for index in 1..=3 {
        assert_eq!(acks(&b.data(0, index, false)), []);
    }
    assert_eq!(acks(&b.data(0, 1, false)), [(0, 1003, Syndrome::Ack)]);
    assert_eq!(acks(&b.data(0, 2, false)), []);
}
