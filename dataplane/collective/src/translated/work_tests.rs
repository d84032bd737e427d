//! Work is bounded: an acknowledgement of a whole window of collectives is taken in steps, and has the same outcome as many small ones.

use super::{
    CollectiveMode, Effect, Effects, EndpointConfig, EndpointId, EndpointKind, Event, LossPolicy,
    PacketShape, RankSet, StragglerPolicy, Translated, TranslatedConfig,
};
use crate::calls::VISITED;
use castnet_wire::{
    Call, CallFlags, Control, DataType, NakCode, Nanos, Operation, Primitive, Psn, RnrTimer, Syndrome,
    Verdict,
};
use std::vec;
use std::vec::Vec;

const RANKS: u16 = 32;
const CALLS: u32 = 512;
/// Collectives looked at in one call of the machine, searches included. Without steps it is each of the 512 for each rank.
const VISITS_MAX: u32 = 14_000;

fn id(rank: u16) -> EndpointId {
    EndpointId::new(rank.into()).expect("an endpoint")
}

/// A switch whose ranks have contributed to all collectives and got all results, with no acknowledgement yet.
struct WideLab<const W: usize> {
    machine: Translated<W>,
    out: Effects<W>,
    ranks: u16,
    /// Packets sent by each rank, and to it.
    sent: Vec<u32>,
    got: Vec<u32>,
    /// The last acknowledgement to each rank.
    told: Vec<Option<(Psn, u32, Syndrome)>>,
    /// What was sent to rank 0, by position.
    to_first: Vec<u32>,
    most: u32,
    /// Packets may be refused.
    refuses: bool,
}

type Lab = WideLab<1>;

impl Lab {
    fn new(mode: CollectiveMode, calls: u32, of: impl Fn(u32) -> Primitive) -> Self {
        Self::with(mode, LossPolicy::Repair, calls, of)
    }

    fn with(mode: CollectiveMode, loss: LossPolicy, calls: u32, of: impl Fn(u32) -> Primitive) -> Self {
        let mut lab = Self::idle(RANKS, mode, loss);
        for sequence in 0..calls {
            let (primitive, root) = (of(sequence), sequence as u16 % RANKS);
            lab.contribute(sequence, primitive, root);
        }
        (lab.most, lab.to_first) = (0, Vec::new());
        lab
    }
}

impl<const W: usize> WideLab<W> {
    fn idle(ranks: u16, mode: CollectiveMode, loss: LossPolicy) -> Self {
        let zero = Psn::new(0);
        let endpoint = |rank| EndpointConfig {
            kind: EndpointKind::Rank {
                rank,
                sq_psn: zero,
                rq_psn: zero,
                is_host: true,
            },
            ranks: RankSet::only(rank),
        };
        let each = usize::from(ranks);
        Self {
            machine: Translated::new(TranslatedConfig {
                endpoints: (0..ranks).map(endpoint).collect(),
                parent: None,
                start_psn: zero,
                slots: 1 << 12,
                message_packets: 0,
                pmtu: 0,
                reproducible: false,
                collectives_max: 1 << 10,
                mode,
                loss,
                straggler: StragglerPolicy::None,
                tick: Nanos::from_secs(1),
                stall_timeout: Nanos::ZERO,
            }),
            out: Effects::new(),
            ranks,
            sent: vec![0; each],
            got: vec![0; each],
            told: vec![None; each],
            to_first: Vec::new(),
            most: 0,
            refuses: false,
        }
    }

    fn contribute(&mut self, sequence: u32, primitive: Primitive, root: u16) {
        let call = Self::call(primitive, root);
        (0..self.ranks).for_each(|rank| self.control(sequence, rank, call));
        for rank in 0..self.ranks {
            let sends = match primitive {
                Primitive::AllReduce => true,
                Primitive::Reduce => rank != root,
                Primitive::Broadcast => rank == root,
            };
            if sends {
                self.data(rank);
            }
        }
    }

    fn call(primitive: Primitive, root: u16) -> Call {
        Call {
            primitive,
            root,
            roots: 1,
            operation: Operation::Sum,
            data_type: DataType::U8,
            flags: CallFlags::default(),
            elements: 8,
            packets: 1,
        }
    }

    fn control(&mut self, sequence: u32, rank: u16, call: Call) {
        let psn = self.next(rank);
        self.handle(Event::Control {
            from: id(rank),
            psn,
            control: Self::agreed(sequence, rank, call),
            ack_request: false,
        });
    }

    fn agreed(sequence: u32, rank: u16, call: Call) -> Control {
        Control {
            sequence,
            rank,
            call,
            verdict: Verdict::Agreed,
        }
    }

    fn data(&mut self, rank: u16) {
        let psn = self.next(rank);
        self.data_at(rank, psn, false);
    }

    /// As a requester does that has got no ACK.
    fn repeat(&mut self, rank: u16, psn: Psn) {
        self.data_at(rank, psn, true);
    }

    fn data_at(&mut self, rank: u16, psn: Psn, ack_request: bool) {
        let shape = PacketShape {
            payload: 8,
            ..PacketShape::default()
        };
        self.handle(Event::Data {
            from: id(rank),
            psn,
            shape,
            ack_request,
        });
    }

    fn next(&mut self, rank: u16) -> Psn {
        let sent = &mut self.sent[usize::from(rank)];
        *sent += 1;
        Psn::new(*sent - 1)
    }

    fn feedback(&mut self, rank: u16, psn: u32, syndrome: Syndrome) {
        self.handle(Event::Feedback {
            from: id(rank),
            psn: Psn::new(psn),
            msn: 0,
            syndrome,
        });
    }

    /// One frame, and all that follows from it.
    fn handle(&mut self, event: Event) {
        VISITED.set(0);
        self.machine.handle(Nanos(1), event, &mut self.out);
        loop {
            self.most = self.most.max(VISITED.get());
            for effect in &self.out {
                match *effect {
                    Effect::Acknowledge {
                        to,
                        psn,
                        msn,
                        syndrome,
                    } => {
                        self.told[to.index()] = Some((psn, msn, syndrome));
                    }
                    Effect::Emit { to, g, .. } | Effect::EmitControl { to, g, .. } => {
                        to.iter().for_each(|e| self.got[e.index()] += 1);
                        if to.contains(id(0)) {
                            self.to_first.push(g.value());
                        }
                    }
                    Effect::Drop(reason) if !self.refuses => panic!("{reason}"),
                    _ => {}
                }
            }
            VISITED.set(0);
            if !self.machine.poll_emit(Nanos(1), &mut self.out) && !self.machine.catch_up() {
                break;
            }
        }
    }
}

fn mixed(sequence: u32) -> Primitive {
    [Primitive::Reduce, Primitive::Broadcast, Primitive::AllReduce][sequence as usize % 3]
}

#[test]
fn an_acknowledgement_of_all_is_taken_in_steps_and_is_many_small_ones() {
    for mode in [CollectiveMode::Translated, CollectiveMode::Augmented] {
        for of in [
            mixed,
            |_| Primitive::Reduce,
            |_| Primitive::Broadcast,
            |_| Primitive::AllReduce,
        ] {
            let [mut at_once, mut one_by_one] = [(); 2].map(|()| Lab::new(mode, CALLS, of));
            let got = at_once.got.clone();
            for rank in 0..RANKS {
                let last = got[usize::from(rank)] - 1;
                at_once.feedback(rank, last, Syndrome::Ack);
                for psn in 0..=last {
                    one_by_one.feedback(rank, psn, Syndrome::Ack);
                }
            }
            assert!(
                at_once.most < VISITS_MAX,
                "{mode:?}: {} collectives in one call",
                at_once.most
            );
            assert_eq!(at_once.machine.status(), one_by_one.machine.status(), "{mode:?}");
            assert!(!at_once.machine.is_active(), "{mode:?}: all is acknowledged");
            assert_eq!(at_once.got, got, "nothing is sent again");
            if mode == CollectiveMode::Translated {
                assert_eq!(at_once.told, one_by_one.told);
                let all = at_once.sent.iter().map(|sent| Psn::new(sent - 1));
                assert!(at_once.told.iter().map(|told| told.unwrap().0).eq(all));
            }
        }
    }
}

/// Where hundreds of collectives behind a Reduce send nothing by its pipe, each is looked at once, not once for each rank.
#[test]
fn the_end_of_a_window_is_found_in_one_walk() {
    let of = |sequence| match sequence {
        0 => Primitive::Reduce,
        _ => Primitive::AllReduce,
    };
    let mut lab = Lab::new(CollectiveMode::Augmented, CALLS, of);
    lab.feedback(0, 1, Syndrome::Ack);
    assert!(lab.most < 3 * CALLS, "{} collectives in one call", lab.most);
}

/// All ranks wait for one ACK of one rank, behind which hundreds of collectives are decided.
#[test]
fn one_small_acknowledgement_that_decides_much_is_taken_in_steps() {
    let of = |sequence| match sequence {
        0 => Primitive::Reduce,
        _ => Primitive::AllReduce,
    };
    for mode in [CollectiveMode::Translated, CollectiveMode::Augmented] {
        let mut lab = Lab::new(mode, CALLS, of);
        for rank in 1..RANKS {
            let last = lab.got[usize::from(rank)] - 1;
            lab.feedback(rank, last, Syndrome::Ack);
        }
        lab.most = 0;
        lab.feedback(0, 1, Syndrome::Ack);
        assert!(
            lab.most < VISITS_MAX,
            "{mode:?}: {} collectives in one call",
            lab.most
        );
        let last = lab.got[0] - 1;
        lab.feedback(0, last, Syndrome::Ack);
        assert!(
            lab.most < VISITS_MAX,
            "{mode:?}: {} collectives in one call",
            lab.most
        );
        assert!(!lab.machine.is_active() && !lab.machine.is_behind());
        assert_eq!(lab.machine.calls.iter().count(), 0, "all are removed");
    }
}

/// Each ACK by the root of a Reduce decides about a packet of all other ranks. A batch of them is as much work as one.
#[test]
fn acknowledgements_that_concern_many_ranks_are_taken_together() {
    const MANY: u16 = 256;
    const PACKETS: u32 = 32;
    let mut lab = WideLab::<4>::idle(MANY, CollectiveMode::Translated, LossPolicy::Repair);
    let call = Call {
        packets: PACKETS,
        elements: u64::from(8 * PACKETS),
        ..Lab::call(Primitive::Reduce, 0)
    };
    (0..MANY).for_each(|rank| lab.control(0, rank, call));
    (0..MANY).for_each(|rank| lab.feedback(rank, 0, Syndrome::Ack));
    for _ in 0..PACKETS {
        (1..MANY).for_each(|rank| lab.data(rank));
    }
    VISITED.set(0);
    for psn in 1..=PACKETS {
        let ack = Event::Feedback {
            from: id(0),
            psn: Psn::new(psn),
            msn: 0,
            syndrome: Syndrome::Ack,
        };
        lab.machine.handle(Nanos(1), ack, &mut lab.out);
    }
    let visited = VISITED.get();
    assert!(visited < 4 * u32::from(MANY), "{visited} collectives");
    assert!(lab.machine.is_behind());
    // Whatever comes next, all are told.
    lab.feedback(0, PACKETS, Syndrome::Ack);
    let all = Some((Psn::new(PACKETS), 2, Syndrome::Ack));
    assert!(lab.told[1..].iter().all(|told| *told == all));
    assert!(!lab.machine.is_active() && !lab.machine.is_behind());
}

/// A NAK acknowledges all before it, and the packet that it names is sent again when that has been taken.
#[test]
fn a_nak_behind_much_is_answered_when_all_before_it_is_taken() {
    for mode in [CollectiveMode::Translated, CollectiveMode::Augmented] {
        let [mut at_once, mut one_by_one] = [(); 2].map(|()| Lab::new(mode, CALLS, mixed));
        let missing = at_once.got[0] - 7;
        let nak = Syndrome::Nak(NakCode::PsnSequenceError);
        for rank in 1..RANKS {
            let last = at_once.got[usize::from(rank)] - 1;
            for lab in [&mut at_once, &mut one_by_one] {
                lab.feedback(rank, last, Syndrome::Ack);
            }
        }
        for psn in 0..missing {
            one_by_one.feedback(0, psn, Syndrome::Ack);
        }
        for lab in [&mut at_once, &mut one_by_one] {
            assert_eq!(lab.to_first, []);
            lab.feedback(0, missing, nak);
            assert_eq!(lab.to_first.len(), 7, "{mode:?}: {:?}", lab.to_first);
        }
        assert_eq!(at_once.to_first, one_by_one.to_first);
        assert_eq!(at_once.machine.status(), one_by_one.machine.status(), "{mode:?}");
    }
}

/// The same where NAKs are reflected: the senders learn of it, once all before it is confirmed to them.
#[test]
fn a_reflected_nak_behind_much_is_the_last_that_senders_are_told() {
    let lab = || {
        Lab::with(CollectiveMode::Translated, LossPolicy::Reflect, CALLS, |_| {
            Primitive::AllReduce
        })
    };
    let [mut at_once, mut one_by_one] = [(); 2].map(|()| lab());
    let missing = at_once.got[0] - 7;
    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
    for psn in 0..missing {
        one_by_one.feedback(0, psn, Syndrome::Ack);
    }
    for lab in [&mut at_once, &mut one_by_one] {
        lab.feedback(0, missing, nak);
        let told = lab.told[0].expect("it contributes");
        assert_eq!(told.2, nak, "{told:?}");
    }
    assert_eq!(at_once.told, one_by_one.told);
}

/// What was received behind a gap is counted in one walk, not by a search for each packet.
#[test]
fn a_gap_before_a_whole_window_is_closed_in_one_walk() {
    const PACKETS: u32 = 1000;
    for mode in [CollectiveMode::Translated, CollectiveMode::Augmented] {
        let mut lab = Lab::new(mode, 0, mixed);
        let call = Call {
            packets: PACKETS,
            elements: u64::from(8 * PACKETS),
            ..Lab::call(Primitive::AllReduce, 0)
        };
        (0..RANKS).for_each(|rank| lab.control(0, rank, call));
        let first = lab.next(3);
        (1..PACKETS).for_each(|_| lab.data(3));
        lab.most = 0;
        lab.data_at(3, first, false);
        assert!(lab.most < 100, "{mode:?}: {} collectives in one call", lab.most);
        let expected = lab.machine.endpoint(id(3)).receiving.expected;
        assert_eq!(expected, lab.machine.calls.end(), "{mode:?}");
    }
}

/// A packet of a late Broadcast is repeated while nobody has acknowledged the earlier ones, which each receiver needs first.
#[test]
fn a_result_is_repeated_for_those_alone_who_can_take_it() {
    let mut lab = Lab::new(CollectiveMode::Translated, CALLS, |_| Primitive::Broadcast);
    let root = (CALLS - 1) as u16 % RANKS;
    let last = Psn::new(lab.sent[usize::from(root)] - 1);
    let before = lab.got.clone();
    lab.repeat(root, last);
    assert_eq!(lab.got, before);
    let all_but_one = lab.got[1] - 2;
    lab.feedback(1, all_but_one, Syndrome::Ack);
    let before = lab.got.clone();
    lab.repeat(root, last);
    let repeated: Vec<u32> = lab.got.iter().zip(before).map(|(now, then)| now - then).collect();
    assert_eq!(
        (repeated[1], repeated.iter().sum::<u32>()),
        (1, 1),
        "{repeated:?}"
    );
}

/// A rank breaks a rule behind a whole window that is not confirmed to it yet.
#[test]
fn a_refusal_behind_much_is_told_when_all_before_it_is_taken() {
    let mut lab = Lab::new(CollectiveMode::Translated, CALLS, |_| Primitive::AllReduce);
    for rank in 0..RANKS {
        let ack = Event::Feedback {
            from: id(rank),
            psn: Psn::new(lab.got[usize::from(rank)] - 1),
            msn: 0,
            syndrome: Syndrome::Ack,
        };
        lab.machine.handle(Nanos(1), ack, &mut lab.out);
    }
    let call = Call {
        flags: CallFlags::REPRODUCIBLE,
        ..Lab::call(Primitive::AllReduce, 0)
    };
    let psn = lab.next(3);
    let wrong = Event::Control {
        from: id(3),
        psn,
        control: Lab::agreed(CALLS, 3, call),
        ack_request: false,
    };
    let confirmed = |lab: &Lab| lab.machine.endpoint(id(3)).receiving.confirmed;
    let before = confirmed(&lab);
    lab.machine.handle(Nanos(1), wrong, &mut lab.out);
    let more = confirmed(&lab) - before;
    assert!(
        more < u64::from(CALLS) / 2,
        "{more} packets are confirmed in one call"
    );
    lab.refuses = true;
    (0..2).for_each(|_| lab.handle(wrong));
    let nak = Syndrome::Nak(NakCode::InvalidRequest);
    assert_eq!(lab.told[3].map(|(psn, _, said)| (psn, said)), Some((psn, nak)));
}

/// Where it decides nothing, it is looked at in part all the same: whom the rest concerns is found out in steps.
#[test]
fn an_acknowledgement_of_a_whole_window_looks_at_a_part_of_it() {
    let mut lab = Lab::new(CollectiveMode::Translated, CALLS, |_| Primitive::AllReduce);
    let last = lab.got[0] - 1;
    lab.feedback(0, last, Syndrome::Ack);
    assert!(lab.most < CALLS * 5 / 4, "{} collectives in one call", lab.most);
}

/// Who has acknowledged nothing keeps the others waiting, and they are not asked about it for each acknowledgement.
#[test]
fn an_acknowledgement_is_reflected_to_those_alone_whom_it_concerns() {
    const RANKS: u16 = 1000;
    let mut lab = WideLab::<16>::idle(RANKS, CollectiveMode::Translated, LossPolicy::Reflect);
    (0..2).for_each(|sequence| lab.contribute(sequence, Primitive::AllReduce, 0));
    lab.most = 0;
    for rank in 1..RANKS {
        let all = lab.got[usize::from(rank)];
        lab.feedback(rank, 1, Syndrome::Ack);
        lab.feedback(rank, all - 1, Syndrome::RnrNak(RnrTimer::new(1)));
    }
    assert!(lab.most < 2500, "{} collectives in one call", lab.most);
    let naks = lab.told.iter().flatten();
    assert_eq!(naks.filter(|(.., said)| *said != Syndrome::Ack).count(), 999);
}

/// A silent job of 1,000 ranks whose ticks are due all the time.
#[test]
fn a_tick_looks_at_some_endpoints_in_one_call() {
    let mut lab = WideLab::<16>::idle(1000, CollectiveMode::Translated, LossPolicy::Repair);
    lab.control(0, 0, WideLab::<16>::call(Primitive::AllReduce, 0));
    let (at, _) = lab.machine.poll_timeout().expect("a tick");
    let mut calls = 0;
    while lab.machine.poll_timeout().is_some_and(|(next, _)| next <= at) {
        lab.machine.handle_timeout(at, &mut lab.out);
        calls += 1;
    }
    assert_eq!(calls, 1000_usize.div_ceil(64));
}
