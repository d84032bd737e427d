//! The search for the end of a gap, from packets that a host repeats behind it.

use super::{
    CollectiveMode, Effect, Effects, EndpointConfig, EndpointId, EndpointKind, Event, LossPolicy,
    PacketShape, RankSet, StragglerPolicy, Translated, TranslatedConfig,
};
use crate::calls::VISITED;
use castnet_wire::{Call, CallFlags, Control, DataType, Nanos, Operation, Primitive, Psn, Syndrome, Verdict};
use std::vec::Vec;

const SLOTS: u32 = 1 << 12;

/// Two ranks; the first one has sent the control message of a collective of a whole window.
struct Lab {
    machine: Translated<1>,
    out: Effects<1>,
}

impl Lab {
    fn new() -> Self {
        let start = Psn::new(0);
        let endpoint = |rank: u16| EndpointConfig {
            kind: EndpointKind::Rank {
                rank,
                sq_psn: start,
                rq_psn: start,
                is_host: true,
            },
            ranks: RankSet::only(rank),
        };
        let machine = Translated::new(TranslatedConfig {
            endpoints: (0..2).map(endpoint).collect(),
            parent: None,
            start_psn: start,
            slots: SLOTS as u16,
            message_packets: 0,
            pmtu: 0,
            reproducible: false,
            collectives_max: 2,
            mode: CollectiveMode::Translated,
            loss: LossPolicy::Repair,
            straggler: StragglerPolicy::None,
            tick: Nanos::from_secs(1),
            stall_timeout: Nanos::ZERO,
        });
        let control = Control {
            sequence: 0,
            rank: 0,
            call: Call {
                primitive: Primitive::AllReduce,
                root: 0,
                roots: 1,
                operation: Operation::Sum,
                data_type: DataType::U8,
                flags: CallFlags::default(),
                elements: SLOTS.into(),
                packets: SLOTS,
            },
            verdict: Verdict::Agreed,
        };
        let mut lab = Self {
            machine,
            out: Effects::new(),
        };
        let (from, psn, ack_request) = (EndpointId::default(), start, false);
        lab.machine.handle(
            Nanos::ZERO,
            Event::Control {
                from,
                psn,
                control,
                ack_request,
            },
            &mut lab.out,
        );
        lab
    }

    /// Data of the first rank. Returns how many missing positions were looked at, and whether a NAK was sent.
    fn data(&mut self, psn: u32) -> (u64, bool) {
        let from = EndpointId::default();
        let before = self.machine.endpoint(from).receiving.missing_to.0;
        let event = Event::Data {
            from,
            psn: Psn::new(psn),
            shape: PacketShape::default(),
            ack_request: false,
        };
        VISITED.set(0);
        self.machine.handle(Nanos::ZERO, event, &mut self.out);
        assert!(VISITED.get() < 100, "{psn}: {} collectives", VISITED.get());
        let receiving = &self.machine.endpoint(from).receiving;
        let searched = receiving
            .missing_to
            .0
            .saturating_sub(before.max(receiving.expected));
        let is_nak =
            |e: &Effect| matches!(e, Effect::Acknowledge { syndrome, .. } if *syndrome != Syndrome::Ack);
        (searched, self.out.iter().any(is_nak))
    }
}

/// A rank repeats the last packet of its window, and nothing before it.
#[test]
fn a_gap_is_searched_once_however_often_the_packet_behind_it_comes() {
    let mut lab = Lab::new();
    let last = SLOTS - 1;
    assert_eq!(lab.data(last), (0, true));
    let steps: Vec<_> = (0..SLOTS).map(|_| lab.data(last).0).collect();
    assert!(steps.iter().all(|step| *step <= 64));
    assert_eq!(steps.iter().sum::<u64>(), u64::from(last - 1));
}

/// Each two new packets before a wide gap begin the search for its end again.
#[test]
fn packets_before_a_gap_bring_a_short_search_each() {
    let mut lab = Lab::new();
    let last = SLOTS - 1;
    lab.data(last);
    for next in (1..1000).step_by(2) {
        let behind_the_end = SLOTS + 3;
        for psn in [next + 1, next, behind_the_end, last] {
            let (searched, _) = lab.data(psn);
            assert!(searched <= 64, "{psn}: {searched}");
        }
    }
}

/// A host has gone back, and the whole gap was lost again.
#[test]
fn a_gap_of_several_steps_is_asked_for_again_once() {
    let mut lab = Lab::new();
    let behind = 202..210;
    let naks = |lab: &mut Lab| behind.clone().filter(|psn| lab.data(*psn).1).collect::<Vec<_>>();
    assert_eq!(naks(&mut lab), [202]);
    // Three steps are not enough.
    assert_eq!(naks(&mut lab), [205]);
    assert_eq!(naks(&mut lab), [202]);
}
