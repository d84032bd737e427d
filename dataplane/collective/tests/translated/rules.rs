//! The rules that real hosts taught, and the pitfalls that are known, each by name on a machine driven by hand.

use crate::net::endpoint;
use crate::program::{call, control};
use castnet_collective::translated::{CollectiveMode, Effect, Effects, Event, TimerReason};
use castnet_collective::{
    EndpointConfig, EndpointKind, EndpointSet, LossPolicy, PacketShape, RankSet, StragglerPolicy, Translated,
    TranslatedConfig,
};
use castnet_wire::Primitive::{AllReduce, Broadcast, Reduce};
use castnet_wire::{Call, DropReason, NakCode, Nanos, Opcode, Psn, RnrTimer, Syndrome, Verdict};

pub(crate) const TICK: Nanos = Nanos::from_millis(1);
const NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

/// A switch with ranks at its first endpoints and switches at the rest, of which the first may be the parent. Rank `r` sends
/// from `1000 (r + 1)` and receives from `5000 (r + 1)`; the group begins at 2.
pub(crate) struct Bench {
    pub(crate) machine: Translated,
    pub(crate) now: Nanos,
    ranks: usize,
}

pub(crate) fn config(ranks: u16, children: usize, parent: bool) -> TranslatedConfig {
    let mut endpoints: Vec<_> = (0..ranks)
        .map(|rank| EndpointConfig {
            kind: EndpointKind::Rank {
                rank,
                sq_psn: u_start(usize::from(rank)),
                rq_psn: d_start(usize::from(rank)),
                is_host: true,
            },
            ranks: RankSet::only(rank),
        })
        .collect();
    // Rank 50 is above; rank 60 + i below the child i.
    let above = parent.then(|| RankSet::only(50));
    let below = (0..children).map(|i| RankSet::only(60 + i as u16));
    endpoints.extend(above.into_iter().chain(below).map(|ranks| EndpointConfig {
        kind: EndpointKind::Switch,
        ranks,
    }));
    TranslatedConfig {
        endpoints,
        parent: parent.then(|| endpoint(usize::from(ranks))),
        start_psn: Psn::new(2),
        slots: 16,
        message_packets: 4,
        pmtu: 0,
        reproducible: false,
        collectives_max: 8,
        mode: CollectiveMode::Translated,
        loss: LossPolicy::Repair,
        straggler: StragglerPolicy::KeepAlive,
        tick: TICK,
        stall_timeout: Nanos::ZERO,
    }
}

pub(crate) fn u_start(rank: usize) -> Psn {
    Psn::new(1000 * (rank as u32 + 1))
}

fn d_start(rank: usize) -> Psn {
    Psn::new(5000 * (rank as u32 + 1))
}

pub(crate) fn shape() -> PacketShape {
    PacketShape {
        opcode: Opcode::SendMiddle,
        payload: 256,
        pad: 0,
    }
}

impl Bench {
    pub(crate) fn new(config: TranslatedConfig) -> Self {
        let rank = |e: &&EndpointConfig| matches!(e.kind, EndpointKind::Rank { .. });
        Self {
            ranks: config.endpoints.iter().filter(rank).count(),
            machine: Translated::new(config),
            now: Nanos::ZERO,
        }
    }

    /// The PSN of an endpoint's own numbers.
    fn psn(&self, from: usize, index: i32) -> Psn {
        if from < self.ranks {
            u_start(from).add(index)
        } else {
            Psn::new(2).add(index)
        }
    }

    pub(crate) fn event(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Effects::new();
        crate::paths::handle(&mut self.machine, self.now, event, &mut out);
        let mut all = out.to_vec();
        while self.machine.poll_emit(self.now, &mut out) || self.machine.catch_up() {
            all.retain(|e| *e != Effect::Absorb);
            all.extend(out.iter().copied());
        }
        all
    }

    pub(crate) fn control(&mut self, from: usize, index: i32, sequence: usize, call: Call) -> Vec<Effect> {
        let rank = match from.checked_sub(self.ranks) {
            None => from as u16,
            Some(0) if self.machine.status().endpoints[from].is_parent => 50,
            Some(i) => 60 + i as u16 - u16::from(self.machine.status().endpoints[self.ranks].is_parent),
        };
        let psn = self.psn(from, index);
        self.event(Event::Control {
            from: endpoint(from),
            psn,
            control: control(sequence, rank, call),
            ack_request: true,
        })
    }

    pub(crate) fn data(&mut self, from: usize, index: i32, ack_request: bool) -> Vec<Effect> {
        let psn = self.psn(from, index);
        self.event(Event::Data {
            from: endpoint(from),
            psn,
            shape: shape(),
            ack_request,
        })
    }

    pub(crate) fn feedback(&mut self, from: usize, index: i32, syndrome: Syndrome) -> Vec<Effect> {
        let start = if from < self.ranks {
            d_start(from)
        } else {
            Psn::new(2)
        };
        self.event(Event::Feedback {
            from: endpoint(from),
            psn: start.add(index),
            msn: 0,
            syndrome,
        })
    }

    pub(crate) fn tick(&mut self) -> Vec<Effect> {
        let (mut all, mut out) = (Vec::new(), Effects::new());
        // With so short a tick, nothing is asked before it.
        while let Some((at, TimerReason::Silence)) = self.machine.poll_timeout() {
            self.now = self.now.max(at);
            self.machine.handle_timeout(self.now, &mut out);
            assert!(out.is_empty());
        }
        let (at, reason) = self.machine.poll_timeout().expect("something in flight");
        assert_eq!(reason, TimerReason::Tick);
        self.now = self.now.max(at);
        while self.machine.poll_timeout().is_some_and(|(at, _)| at <= self.now) {
            self.machine.handle_timeout(self.now, &mut out);
            all.extend(out.iter().copied());
            while self.machine.poll_emit(self.now, &mut out) || self.machine.catch_up() {
                all.extend(out.iter().copied());
            }
        }
        all
    }

    /// The control messages of all ranks, and their acknowledgements.
    pub(crate) fn agree(&mut self, sequence: usize, index: i32, call: Call) {
        for rank in 0..self.ranks {
            self.control(rank, index, sequence, call);
        }
        for rank in 0..self.ranks {
            self.feedback(rank, index, Syndrome::Ack);
        }
    }
}

pub(crate) fn acks(effects: &[Effect]) -> Vec<(usize, u32, Syndrome)> {
    let ack = |e: &Effect| match *e {
        Effect::Acknowledge {
            to, psn, syndrome, ..
        } => Some((to.index(), psn.value(), syndrome)),
        _ => None,
    };
    effects.iter().filter_map(ack).collect()
}

/// The position and the receivers of what goes out, and whether it asks for an ACK.
pub(crate) fn emitted(effects: &[Effect]) -> Vec<(u32, Vec<usize>, bool)> {
    let list = |to: EndpointSet| to.iter().map(|e| e.index()).collect();
    let emit = |e: &Effect| match *e {
        Effect::Emit {
            g, to, ack_request, ..
        } => Some((g.value() - 2, list(to), ack_request)),
        Effect::EmitControl { g, to, .. } => Some((g.value() - 2, list(to), true)),
        _ => None,
    };
    effects.iter().filter_map(emit).collect()
}

pub(crate) fn drops(effects: &[Effect]) -> Vec<DropReason> {
    let drop = |e: &Effect| match *e {
        Effect::Drop(reason) => Some(reason),
        _ => None,
    };
    effects.iter().filter_map(drop).collect()
}

#[test]
fn senders_of_a_reduce_are_acknowledged_by_its_root_alone() {
    let mut b = Bench::new(config(3, 0, false));
    b.agree(0, 0, call(Reduce, 0, 2));
    assert_eq!(
        b.data(1, 1, true)[0],
        Effect::Aggregate {
            slot: 1,
            from: endpoint(1),
            first: true,
            kernel: Default::default()
        }
    );
    assert_eq!(emitted(&b.data(2, 1, true)), [(1, vec![0], true)]);
    assert_eq!(
        acks(&b.feedback(0, 1, Syndrome::Ack)),
        [(1, 2001, Syndrome::Ack), (2, 3001, Syndrome::Ack)]
    );
}

#[test]
fn an_allreduce_is_reflected_to_each_host_by_itself() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 2));
    b.data(0, 1, true);
    assert_eq!(emitted(&b.data(1, 1, false)), [(1, vec![0, 1], true)]);
    assert_eq!(acks(&b.feedback(1, 1, Syndrome::Ack)), [(1, 2001, Syndrome::Ack)]);
    assert_eq!(acks(&b.feedback(0, 1, Syndrome::Ack)), [(0, 1001, Syndrome::Ack)]);
}

#[test]
fn a_broadcast_is_acknowledged_by_the_least_of_all() {
    let mut b = Bench::new(config(3, 0, false));
    b.agree(0, 0, call(Broadcast, 2, 3));
    for i in 1..=3 {
        b.data(2, i, false);
    }
    assert_eq!(acks(&b.feedback(0, 3, Syndrome::Ack)), []);
    assert_eq!(acks(&b.feedback(1, 1, Syndrome::Ack)), [(2, 3001, Syndrome::Ack)]);
    assert_eq!(acks(&b.feedback(1, 3, Syndrome::Ack)), [(2, 3003, Syndrome::Ack)]);
}

/// A NAK at the true gap would acknowledge what was not delivered yet, and the group would hang.
#[test]
fn a_gap_is_told_at_the_first_unacknowledged_packet_after_an_ack_and_once() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 8));
    b.data(0, 1, false);
    assert_eq!(
        acks(&b.data(0, 3, false)),
        [(0, 1000, Syndrome::Ack), (0, 1001, NAK)]
    );
    assert_eq!(acks(&b.data(0, 4, false)), []);
    // Gone back to, filled, and a new gap: told again.
    b.data(0, 1, false);
    b.data(0, 2, false);
    assert_eq!(
        acks(&b.data(0, 6, false)),
        [(0, 1000, Syndrome::Ack), (0, 1001, NAK)]
    );
}

/// A Broadcast's slot is complete before the control message ahead of it: sent as they come, results make NAKs at no loss.
#[test]
fn results_go_out_in_order_though_they_complete_out_of_it() {
    let mut b = Bench::new(config(3, 0, false));
    let call = call(Broadcast, 0, 2);
    b.control(0, 0, 0, call);
    assert_eq!(emitted(&b.data(0, 1, false)), []);
    assert_eq!(emitted(&b.data(0, 2, true)), []);
    b.control(1, 0, 0, call);
    let effects = b.control(2, 0, 0, call);
    assert_eq!(
        emitted(&effects),
        [
            (0, vec![0, 1, 2], true),
            (1, vec![1, 2], false),
            (2, vec![1, 2], true)
        ]
    );
}

#[test]
fn a_nak_makes_the_switch_go_back_for_that_host_alone() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 4));
    for i in 1..=4 {
        b.data(0, i, false);
        b.data(1, i, i == 4);
    }
    let effects = b.feedback(0, 2, NAK);
    assert_eq!(acks(&effects), [(0, 1001, Syndrome::Ack)]);
    // Whether contributions asked for it or not: what comes back lets more go.
    assert_eq!(emitted(&effects), [2, 3, 4].map(|g| (g, vec![0], true)));
}

/// All at once, and the next loss would make as much worthless again.
#[test]
fn what_goes_again_goes_as_it_is_acknowledged() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 270));
    for i in 1..=12 {
        b.data(0, i, false);
        b.data(1, i, false);
    }
    let again = |g: u32| (g, vec![0], true);
    let effects = b.feedback(0, 2, NAK);
    assert_eq!(emitted(&effects), (2..10).map(again).collect::<Vec<_>>());
    assert_eq!(emitted(&b.feedback(0, 3, Syndrome::Ack)), [again(10), again(11)]);
    // What has come meanwhile waits for its turn; others have it at once.
    b.data(0, 13, false);
    assert_eq!(emitted(&b.data(1, 13, false)), [(13, vec![1], false)]);
    let effects = b.feedback(0, 8, Syndrome::Ack);
    assert_eq!(emitted(&effects), [again(12), again(13)]);
    // It has caught up, but where one packet is lost more may be: 256 new ones are paced, too.
    for g in 14..270 {
        b.feedback(0, g - 1, Syndrome::Ack);
        b.feedback(1, g - 1, Syndrome::Ack);
        b.data(0, g, false);
        let paced = g <= 12 + 256;
        let effects = b.data(1, g, false);
        assert_eq!(emitted(&effects), [(g as u32, vec![0, 1], paced)]);
    }
}

/// A switch of Mode-II names one PSN for several gaps, and any switch again the packet that it had no room for.
#[test]
fn a_nak_that_a_switch_of_another_mode_repeats_is_served_again() {
    for mode in [CollectiveMode::Translated, CollectiveMode::Augmented] {
        let mut config = TranslatedConfig {
            mode,
            slots: 32,
            ..config(2, 0, false)
        };
        let EndpointKind::Rank { is_host, .. } = &mut config.endpoints[0].kind else {
            unreachable!()
        };
        *is_host = false;
        let mut b = Bench::new(config);
        b.agree(0, 0, call(AllReduce, 0, 6));
        for i in 1..=6 {
            b.data(0, i, false);
            b.data(1, i, false);
        }
        for _ in 0..3 {
            let sent: Vec<_> = emitted(&b.feedback(0, 2, NAK)).iter().map(|(g, ..)| *g).collect();
            assert_eq!(sent, [2, 3, 4, 5, 6]);
        }
    }
}

/// Each NAK would bring eight packets. A conforming host sends one for each gap, and a timer finds what is lost once more.
#[test]
fn a_nak_of_the_same_packet_is_served_once_until_progress_or_a_timer() {
    for mode in [CollectiveMode::Translated, CollectiveMode::Augmented] {
        let mut b = Bench::new(TranslatedConfig {
            mode,
            slots: 32,
            ..config(2, 0, false)
        });
        b.agree(0, 0, call(AllReduce, 0, 6));
        for i in 1..=6 {
            b.data(0, i, false);
            b.data(1, i, false);
        }
        let sent = |effects: Vec<Effect>| emitted(&effects).iter().map(|(g, ..)| *g).collect::<Vec<_>>();
        assert_eq!(sent(b.feedback(0, 2, NAK)), [2, 3, 4, 5, 6]);
        assert_eq!(sent(b.feedback(0, 2, NAK)), []);
        // It acknowledges what is before.
        assert_eq!(sent(b.feedback(0, 4, NAK)), [4, 5, 6]);
        assert_eq!(sent(b.feedback(0, 4, NAK)), []);
        b.tick();
        assert_eq!(
            sent(b.feedback(0, 4, NAK)),
            [],
            "there was progress since the last tick"
        );
        assert_eq!(sent(b.tick()).first(), Some(&4));
        assert_eq!(sent(b.feedback(0, 4, NAK)), [4, 5, 6]);
        // The wait for a receive is a timer, too.
        let rnr = Syndrome::RnrNak(RnrTimer::new(1));
        assert_eq!(sent(b.feedback(0, 4, rnr)), []);
        assert_eq!(sent(b.feedback(0, 4, NAK)), []);
        b.now += RnrTimer::new(1).wait();
        let mut out = Effects::new();
        b.machine.handle_timeout(b.now, &mut out);
        assert_eq!(sent(b.feedback(0, 4, NAK)), [4, 5, 6]);
    }
}

#[test]
fn what_is_lost_once_more_is_asked_for_once_more() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 8));
    b.data(0, 1, false);
    let asked = [(0, 1000, Syndrome::Ack), (0, 1001, NAK)];
    assert_eq!(acks(&b.data(0, 3, false)), asked);
    assert_eq!(acks(&b.data(0, 4, false)), []);
    // It goes back to 1, and 2 is lost again.
    assert_eq!(acks(&b.data(0, 1, false)), []);
    assert_eq!(acks(&b.data(0, 3, false)), asked);
    assert_eq!(acks(&b.data(0, 4, false)), []);
    assert_eq!(acks(&b.data(0, 5, false)), []);
    // And this time it comes.
    assert_eq!(acks(&b.data(0, 2, false)), []);
    assert_eq!(acks(&b.data(0, 4, false)), []);
}

#[test]
fn what_is_acknowledged_is_acknowledged_again() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 1));
    for rank in 0..2 {
        b.data(rank, 1, true);
    }
    for rank in 0..2 {
        b.feedback(rank, 1, Syndrome::Ack);
    }
    assert_eq!(b.machine.poll_timeout(), None);
    assert_eq!(acks(&b.data(0, 1, false)), [(0, 1001, Syndrome::Ack)]);
    assert_eq!(
        acks(&b.control(0, 0, 0, call(AllReduce, 0, 1))),
        [(0, 1001, Syndrome::Ack)]
    );
}

/// Only dropped as a duplicate, it would leave the sender to die where the result or its ACK was lost.
#[test]
fn a_contribution_to_a_finished_slot_brings_the_result_again() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 1));
    b.data(0, 1, false);
    assert_eq!(emitted(&b.data(1, 1, false)), [(1, vec![0, 1], false)]);
    // AckReq may come only with the repeat.
    assert_eq!(emitted(&b.data(1, 1, true)), [(1, vec![1], true)]);
    assert_eq!(emitted(&b.data(0, 1, false)), []);
}

#[test]
fn data_beyond_an_unknown_control_message_is_dropped() {
    let mut b = Bench::new(config(2, 0, false));
    b.control(0, 0, 0, call(AllReduce, 0, 3));
    let effects = b.data(1, 1, false);
    assert_eq!(drops(&effects), [DropReason::ControlMissing]);
    assert_eq!(acks(&effects), [(1, 1999, Syndrome::Ack), (1, 2000, NAK)]);
    assert_eq!(
        drops(&b.data(1, 0, false)),
        [DropReason::ControlMissing],
        "not a control message"
    );
}

#[test]
fn an_ack_ahead_of_the_data_is_dropped() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 3));
    b.data(0, 1, true);
    b.data(1, 1, true);
    assert_eq!(drops(&b.feedback(0, 2, Syndrome::Ack)), [DropReason::AckAhead]);
    assert_eq!(acks(&b.feedback(0, 1, Syndrome::Ack)), [(0, 1001, Syndrome::Ack)]);
}

#[test]
fn a_fatal_nak_is_told_once_and_only_of_what_was_sent() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 3));
    b.data(0, 1, true);
    b.data(1, 1, true);
    let fatal = Syndrome::Nak(NakCode::RemoteAccessError);
    let failed = |effects: &[Effect]| {
        let each = effects.iter().filter_map(|effect| match effect {
            Effect::MemberFailed { from, .. } => Some(from.index()),
            _ => None,
        });
        each.collect::<Vec<_>>()
    };
    assert_eq!(drops(&b.feedback(0, 2, fatal)), [DropReason::AckAhead]);
    assert_eq!(failed(&b.feedback(0, 1, fatal)), [0]);
    assert_eq!(b.feedback(0, 1, fatal), [Effect::Absorb]);
    assert_eq!(b.feedback(1, 0, fatal), [Effect::Absorb], "acknowledged");
    assert_eq!(failed(&b.feedback(1, 1, fatal)), [1]);
}

#[test]
fn what_there_is_no_room_for_is_refused_and_asked_for_when_there_is() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 40));
    for i in 1..=16 {
        assert_eq!(drops(&b.data(0, i, false)), []);
    }
    assert_eq!(drops(&b.data(0, 17, false)), [DropReason::EarlyContribution]);
    b.data(1, 1, true);
    b.feedback(1, 1, Syndrome::Ack);
    let effects = b.feedback(0, 1, Syndrome::Ack);
    assert_eq!(acks(&effects), [(0, 1001, Syndrome::Ack), (0, 1002, NAK)]);
    assert_eq!(drops(&b.data(0, 17, false)), []);
}

#[test]
fn more_collectives_than_the_ring_holds_are_refused() {
    let mut b = Bench::new(config(2, 0, false));
    for k in 0..8 {
        assert_eq!(drops(&b.control(0, k, k as usize, call(AllReduce, 0, 0))), []);
    }
    let ninth = b.control(0, 8, 8, call(AllReduce, 0, 0));
    assert_eq!(drops(&ninth), [DropReason::EarlyContribution]);
}

/// Each host counts only what it sends and receives itself.
#[test]
fn children_never_share_a_send_psn() {
    let mut b = Bench::new(config(3, 0, false));
    b.agree(0, 0, call(Reduce, 0, 5));
    for i in 1..=5 {
        b.data(1, i, true);
        b.data(2, i, true);
    }
    b.feedback(0, 5, Syndrome::Ack);
    let call = call(AllReduce, 0, 1);
    b.control(0, 1, 1, call);
    b.control(1, 6, 1, call);
    let effects = b.control(2, 6, 1, call);
    assert_eq!(emitted(&effects), [(6, vec![0, 1, 2], true)]);
    let to = |e| b.machine.header(Psn::new(8)).psn(endpoint(e)).value();
    assert_eq!((to(0), to(1), to(2)), (5006, 10_001, 15_001));
}

#[test]
fn whoever_speaks_for_others_is_no_member() {
    let mut b = Bench::new(config(2, 1, false));
    for (from, rank) in [(0, 1), (2, 0), (7, 0)] {
        let event = Event::Control {
            from: endpoint(from),
            psn: if from == 0 { Psn::new(1000) } else { Psn::new(2) },
            control: control(0, rank, call(AllReduce, 0, 1)),
            ack_request: true,
        };
        assert_eq!(b.event(event), [Effect::Drop(DropReason::NotMember)]);
    }
    assert_eq!(
        drops(&b.control(0, 0, 0, call(Reduce, 9, 1))),
        [DropReason::Malformed],
        "no such rank"
    );
    assert_eq!(
        drops(&b.control(0, 0, 3, call(AllReduce, 0, 1))),
        [DropReason::ContributionMismatch]
    );
}

/// Up, the sum of the children; down, the result; both in one slot.
#[test]
fn a_switch_below_the_root_sends_up_and_then_down() {
    let mut b = Bench::new(config(2, 0, true));
    let call = call(AllReduce, 0, 1);
    b.control(0, 0, 0, call);
    assert_eq!(emitted(&b.control(1, 0, 0, call)), [(0, vec![2], true)]);
    assert_eq!(emitted(&b.control(2, 0, 0, call)), [(0, vec![0, 1], true)]);
    b.data(0, 1, true);
    assert_eq!(emitted(&b.data(1, 1, false)), [(1, vec![2], true)]);
    let effects = b.data(2, 1, true);
    assert_eq!(effects[0], Effect::Store { slot: 1 });
    assert_eq!(emitted(&effects), [(1, vec![0, 1], true)]);
    b.feedback(0, 1, Syndrome::Ack);
    // The least of the children goes up.
    assert_eq!(
        acks(&b.feedback(1, 1, Syndrome::Ack)),
        [(1, 2001, Syndrome::Ack), (2, 3, Syndrome::Ack)]
    );
    assert_eq!(
        acks(&b.data(2, 1, true)),
        [(2, 3, Syndrome::Ack)],
        "its ACK was lost"
    );
}

/// Whoever silences the timers of hosts takes over their duty.
#[test]
fn what_waits_above_is_repeated_upwards_each_tick_and_the_hosts_are_kept_alive() {
    let mut b = Bench::new(config(2, 0, true));
    b.control(0, 0, 0, call(AllReduce, 0, 3));
    b.control(1, 0, 0, call(AllReduce, 0, 3));
    for i in 1..=3 {
        b.data(0, i, false);
        b.data(1, i, false);
    }
    let first = b.tick();
    assert_eq!(emitted(&first), [], "sent since the last one");
    let second = b.tick();
    assert_eq!(
        emitted(&second),
        [(0, vec![2], true), (3, vec![2], true)],
        "oldest and newest"
    );
    assert_eq!(acks(&second), [(0, 999, Syndrome::Ack), (1, 1999, Syndrome::Ack)]);
}

/// It waits for its timer: the rest may be lost, or an RNR NAK came between. Others may need the rest, as a switch of Mode-I above does.
#[test]
fn a_host_that_stops_in_the_middle_of_a_message_is_not_kept_alive() {
    let mut b = Bench::new(config(2, 0, true));
    b.control(0, 0, 0, call(AllReduce, 0, 6));
    b.control(1, 0, 0, call(AllReduce, 0, 6));
    // Messages of four packets: rank 0 has sent one, rank 1 a half.
    for i in 1..=4 {
        b.data(0, i, false);
    }
    b.data(1, 1, false);
    let kept = |effects: &[Effect]| acks(effects).iter().map(|(to, ..)| *to).collect::<Vec<_>>();
    assert_eq!(kept(&b.tick()), [0, 1], "it sends");
    b.data(1, 2, false);
    assert_eq!(kept(&b.tick()), [0, 1]);
    assert_eq!(kept(&b.tick()), [0]);
    assert_eq!(kept(&b.tick()), [0]);
    b.data(1, 3, false);
    b.data(1, 4, false);
    assert_eq!(kept(&b.tick()), [0, 1], "the whole message");
    assert_eq!(kept(&b.tick()), [0, 1]);
}

#[test]
fn a_parent_answers_a_repeat_to_a_finished_slot_with_the_result() {
    let mut b = Bench::new(config(1, 1, false));
    b.control(0, 0, 0, call(AllReduce, 0, 2));
    b.control(1, 0, 0, call(AllReduce, 0, 2));
    b.feedback(0, 0, Syndrome::Ack);
    b.feedback(1, 0, Syndrome::Ack);
    b.data(0, 1, true);
    assert_eq!(emitted(&b.data(1, 1, true)), [(1, vec![0, 1], true)]);
    assert_eq!(emitted(&b.data(1, 1, true)), [(1, vec![1], true)]);
}

#[test]
fn between_switches_a_nak_asks_for_one_packet_and_acknowledges_nothing() {
    let mut b = Bench::new(config(1, 0, true));
    b.control(0, 0, 0, call(Broadcast, 0, 4));
    for i in 1..=4 {
        b.data(0, i, false);
    }
    b.control(1, 0, 0, call(Broadcast, 0, 4));
    b.feedback(0, 0, Syndrome::Ack);
    let effects = b.feedback(1, 3, NAK);
    assert_eq!(
        (emitted(&effects), acks(&effects)),
        (vec![(3, vec![1], false)], vec![])
    );
    assert_eq!(acks(&b.feedback(1, 2, Syndrome::Ack)), [(0, 1002, Syndrome::Ack)]);
}

/// All that came behind a lost control message was refused.
#[test]
fn between_switches_a_nak_of_a_control_message_asks_for_all_from_there() {
    let mut b = Bench::new(config(1, 0, true));
    b.control(0, 0, 0, call(Broadcast, 0, 2));
    b.data(0, 1, false);
    b.data(0, 2, false);
    let sent: Vec<_> = emitted(&b.feedback(1, 0, NAK))
        .into_iter()
        .map(|(g, ..)| g)
        .collect();
    assert_eq!(sent, [0, 1, 2]);
}

/// One NAK at a time, each as soon as the gap before it is filled.
#[test]
fn gaps_on_a_link_between_switches_are_asked_for_one_by_one() {
    let mut b = Bench::new(config(1, 1, false));
    b.control(1, 0, 0, call(Broadcast, 60, 8));
    assert_eq!(acks(&b.data(1, 3, false)), [(1, 3, NAK)]);
    assert_eq!(acks(&b.data(1, 6, false)), []);
    assert_eq!(acks(&b.data(1, 1, false)), [(1, 4, NAK)]);
    assert_eq!(acks(&b.data(1, 2, false)), [(1, 6, NAK)]);
    b.data(1, 4, false);
    assert_eq!(acks(&b.data(1, 5, false)), []);
}

/// Lost at the end, where no gap is ever seen: the oldest goes again with AckReq, and an answer of less than all shows how
/// much was lost.
#[test]
fn a_partial_answer_to_a_probe_brings_all_the_rest() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(AllReduce, 0, 4));
    for i in 1..=4 {
        b.data(0, i, i == 4);
        b.data(1, i, i == 4);
    }
    b.feedback(1, 4, Syndrome::Ack);
    b.tick();
    assert_eq!(emitted(&b.tick()), [(1, vec![0], true)]);
    let sent: Vec<_> = emitted(&b.feedback(0, 1, Syndrome::Ack))
        .into_iter()
        .map(|(g, ..)| g)
        .collect();
    assert_eq!(sent, [2, 3, 4]);
    assert_eq!(acks(&b.feedback(0, 4, Syndrome::Ack)), [(0, 1004, Syndrome::Ack)]);
}

#[test]
fn a_host_without_a_receive_is_waited_for() {
    let mut b = Bench::new(config(2, 0, false));
    b.agree(0, 0, call(Broadcast, 1, 2));
    b.data(1, 1, false);
    let rnr = Syndrome::RnrNak(RnrTimer::new(12));
    assert_eq!(emitted(&b.feedback(0, 1, rnr)), []);
    assert_eq!(emitted(&b.data(1, 2, true)), []);
    let (at, reason) = b.machine.poll_timeout().unwrap();
    assert_eq!((at, reason), (RnrTimer::new(12).wait(), TimerReason::Rnr));
    b.now = at;
    let mut out = Effects::new();
    b.machine.handle_timeout(at, &mut out);
    let mut sent = Vec::new();
    while b.machine.poll_emit(at, &mut out) || b.machine.catch_up() {
        sent.extend(emitted(&out));
    }
    assert_eq!(sent, [(1, vec![0], true), (2, vec![0], true)]);
}

#[test]
fn who_said_what_goes_to_all_and_nothing_after_it() {
    let mut b = Bench::new(config(3, 0, false));
    let (one, other) = (call(AllReduce, 0, 3), call(AllReduce, 0, 4));
    b.control(0, 0, 0, one);
    b.control(2, 0, 0, other);
    let last = b.control(1, 0, 0, one);
    let Some(Effect::EmitControl { control, .. }) =
        last.iter().find(|e| matches!(e, Effect::EmitControl { .. }))
    else {
        panic!("{last:?}")
    };
    assert_eq!((control.rank, control.call), (0, one));
    assert_eq!(control.verdict, Verdict::Conflict { rank: 2, call: other });
    assert_eq!(drops(&b.data(0, 1, false)), [DropReason::GroupFailed]);
    for rank in 0..3 {
        assert_eq!(acks(&b.feedback(rank, 0, Syndrome::Ack)).len(), 1);
    }
    assert_eq!(b.machine.poll_timeout(), None);
}

/// For a model checker: what happened in another order is the same state.
#[test]
fn states_do_not_remember_the_order_of_contributions() {
    let run = |order: [usize; 3]| {
        let mut b = Bench::new(config(3, 0, false));
        b.agree(0, 0, call(AllReduce, 0, 2));
        for rank in order {
            b.data(rank, 1, true);
        }
        for rank in order {
            b.feedback(rank, 1, Syndrome::Ack);
        }
        b.machine
    };
    assert_eq!(run([0, 1, 2]), run([2, 0, 1]));
}
