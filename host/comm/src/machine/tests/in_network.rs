//! Collectives over a switch in memory.

use castnet_reduce::Kernel;
use castnet_rnic::Status;
use castnet_wire::Pmtu;
use castnet_wire::control::{Call, CallFlags, Control, Primitive, Verdict};
use proptest::prelude::*;

use super::super::{ChannelId, Collective, Event, Failure, InNetwork, InNetworkConfig, Laned, Task, Waiting};
use super::rank::Rank;
use super::{Choices, any_task, expected};
use crate::machine::task::Cut;

const ONE_BLOCK: Cut = Cut {
    pmtu: 1024,
    window_packets: 64,
    blocks_max: 1,
};

/// A call as the switch sees it.
struct CallState {
    g: u64,
    controls: Vec<Option<Control>>,
    /// By message and rank.
    data: Vec<Vec<Option<Vec<u8>>>>,
    /// By rank: whether it has the control result.
    control_done: Vec<bool>,
    /// By message and rank: whether it has the result.
    done: Vec<Vec<bool>>,
}

/// Position of a rank's next send or receive: the call, and in it the control message (0) or data message n - 1.
#[derive(Clone, Copy, Default)]
struct At {
    call: usize,
    item: usize,
}

impl At {
    /// The position after this one, in a call with so many data messages, of which some go to or from the rank.
    fn next(self, messages: usize, goes: impl Fn(usize) -> bool) -> Self {
        match (self.item..messages).find(|&message| goes(message)) {
            Some(message) => Self {
                item: message + 1,
                ..self
            },
            None => Self {
                call: self.call + 1,
                item: 0,
            },
        }
    }
}

/// One switch with reliable links.
struct Switch {
    config: InNetworkConfig,
    calls: Vec<CallState>,
    sends: Vec<At>,
    receives: Vec<At>,
    /// Messages of each rank that are received and not acknowledged.
    unacknowledged: Vec<Vec<(u64, At)>>,
    failed_at: Option<usize>,
}

impl Switch {
    fn new(config: InNetworkConfig) -> Self {
        let size = usize::from(config.size);
        Self {
            config,
            calls: Vec::new(),
            sends: vec![At::default(); size],
            receives: vec![At::default(); size],
            unacknowledged: vec![Vec::new(); size],
            failed_at: None,
        }
    }

    fn call(&self, index: usize) -> Option<&Call> {
        let state = self.calls.get(index)?;
        state.controls.iter().flatten().map(|c| &c.call).next()
    }

    fn block_messages(&self, call: &Call) -> usize {
        call.packets.div_ceil(self.config.message_packets) as usize
    }

    /// Data messages of all blocks.
    fn messages(&self, call: &Call) -> usize {
        self.block_messages(call) * usize::from(call.roots)
    }

    /// Packets of the call up to the end of a message.
    fn packets_upto(&self, call: &Call, message: usize) -> u64 {
        let (block, nth) = (
            message / self.block_messages(call),
            message % self.block_messages(call),
        );
        let most = u64::from(self.config.message_packets);
        let packets = u64::from(call.packets);
        block as u64 * packets + ((nth as u64 + 1) * most).min(packets)
    }

    fn sends_data(&self, call: &Call, rank: usize, message: usize) -> bool {
        let root = usize::from(call.root) + message / self.block_messages(call);
        match call.primitive {
            Primitive::AllReduce => true,
            Primitive::Reduce => rank != root,
            Primitive::Broadcast => rank == root,
        }
    }

    fn receives_data(&self, call: &Call, rank: usize, message: usize) -> bool {
        call.primitive == Primitive::AllReduce || !self.sends_data(call, rank, message)
    }

    /// The lowest number that some receiver lacks.
    fn base(&self) -> u64 {
        for (index, state) in self.calls.iter().enumerate() {
            if !state.control_done.iter().all(|&d| d) {
                return state.g;
            }
            let call = self.call(index).expect("all have called");
            for (message, done) in state.done.iter().enumerate() {
                let has = |rank: usize| done[rank] || !self.receives_data(call, rank, message);
                if !(0..done.len()).all(has) {
                    let before = message.checked_sub(1).map_or(0, |m| self.packets_upto(call, m));
                    return state.g + 1 + before;
                }
            }
        }
        let packets = self
            .call(self.calls.len().wrapping_sub(1))
            .map_or(0, Call::all_packets);
        self.calls.last().map_or(0, |s| s.g + 1 + packets)
    }

    fn receive(&mut self, rank: usize, message: super::rank::Message) {
        let size = self.sends.len();
        let at = self.sends[rank];
        let base = self.base();
        if message.immediate == Some(Control::IMMEDIATE) {
            assert_eq!(at.item, 0, "rank {rank}: data is missing");
            let control = Control::parse(&message.bytes).expect("a control message");
            assert_eq!((control.rank, control.sequence), (rank as u16, at.call as u32));
            if self.calls.len() == at.call {
                let g = self.calls.last().map_or(0, |last| {
                    let call = last.controls.iter().flatten().next().expect("one has called");
                    last.g + 1 + call.call.all_packets()
                });
                let messages = self.messages(&control.call);
                self.calls.push(CallState {
                    g,
                    controls: vec![None; size],
                    data: vec![vec![None; size]; messages],
                    control_done: vec![false; size],
                    done: vec![vec![false; size]; messages],
                });
            }
            let state = &mut self.calls[at.call];
            let slots = 2 * u64::from(self.config.window_packets);
            assert!(state.g < base + slots, "beyond two windows");
            state.controls[rank] = Some(control);
        } else {
            assert_eq!(message.immediate, None);
            let index = at.item - 1;
            let control = self.calls[at.call].controls[rank].expect("a control message before");
            let upto = self.packets_upto(&control.call, index);
            let state = &mut self.calls[at.call];
            let last = state.g + upto;
            assert!(
                last < base + 2 * u64::from(self.config.window_packets),
                "beyond two windows"
            );
            // On disagreement a call may have more messages than the first caller announced. They are ignored.
            if let Some(data) = state.data.get_mut(index) {
                data[rank] = Some(message.bytes);
            }
        }
        self.unacknowledged[rank].push((message.wr, at));
        let own = self.calls[at.call].controls[rank].expect("has called").call;
        self.sends[rank] = at.next(self.messages(&own), |message| {
            self.sends_data(&own, rank, message)
        });
    }

    /// The next message for a rank, in order, if it is complete.
    fn next_for(&self, rank: usize) -> Option<(Vec<u8>, Option<u32>)> {
        let at = self.receives[rank];
        if self
            .failed_at
            .is_some_and(|failed| at.call > failed || at.call == failed && at.item > 0)
        {
            return None;
        }
        let state = self.calls.get(at.call)?;
        if at.item == 0 {
            let controls: Option<Vec<Control>> = state.controls.iter().copied().collect();
            let controls = controls?;
            let mut merged = controls[0];
            controls[1..].iter().for_each(|c| merged.merge(c));
            let mut bytes = [0; Control::LEN];
            merged.emit(&mut bytes);
            return Some((bytes.to_vec(), Some(Control::IMMEDIATE)));
        }
        let call = self.call(at.call)?;
        let data = state.data.get(at.item - 1)?;
        let from: Vec<&Vec<u8>> = (0..data.len())
            .filter(|&r| self.sends_data(call, r, at.item - 1))
            .map(|r| data[r].as_ref())
            .collect::<Option<_>>()?;
        let kernel = Kernel::select(call.operation, call.data_type, call.flags);
        let mut sum = from[0].clone();
        from[1..].iter().for_each(|b| kernel.apply(&mut sum, b));
        Some((sum, None))
    }

    /// Records that the rank has received the message of [`Switch::next_for`].
    fn received_by(&mut self, rank: usize) {
        let at = self.receives[rank];
        let call = *self.call(at.call).expect("all have called");
        let state = &mut self.calls[at.call];
        if at.item == 0 {
            state.control_done[rank] = true;
            if state.controls.iter().flatten().any(|c| c.call != call) {
                self.failed_at = Some(at.call);
            }
        } else {
            state.done[at.item - 1][rank] = true;
        }
        self.receives[rank] = at.next(self.messages(&call), |message| {
            self.receives_data(&call, rank, message)
        });
    }

    /// Number of messages of a rank that can be acknowledged now.
    fn acknowledgeable(&self, rank: usize) -> usize {
        let is_over = |at: &At| {
            let state = &self.calls[at.call];
            if at.item == 0 {
                return state.control_done[rank];
            }
            let Some(call) = self.call(at.call) else {
                return false;
            };
            let Some(done) = state.done.get(at.item - 1) else {
                return false;
            };
            if call.primitive == Primitive::AllReduce {
                done[rank]
            } else {
                (0..done.len()).all(|r| done[r] || !self.receives_data(call, r, at.item - 1))
            }
        };
        self.unacknowledged[rank]
            .iter()
            .take_while(|(_, at)| is_over(at))
            .count()
    }
}

/// Runs the programs until nothing progresses. Rank `late` starts only when the others cannot continue.
fn run(
    ranks: &mut [Rank],
    config: InNetworkConfig,
    tasks: &[Vec<(Task, bool)>],
    seed: u64,
    late: Option<usize>,
) {
    // One switch for each lane, independent of the others.
    let lanes = ranks[0].wires.len();
    let mut switches: Vec<Switch> = (0..lanes).map(|_| Switch::new(config)).collect();
    let mut choices = Choices::new(seed);
    let mut idle = 0;
    while idle < 3000 {
        idle += 1;
        let at = choices.below(ranks.len());
        let may_start = late != Some(at) || idle > 500;
        let rank = &mut ranks[at];
        let lane = choices.below(lanes);
        let (channel, switch) = (ChannelId(lane as u16), &mut switches[lane]);
        match choices.below(4) {
            0 if may_start && rank.tasks.len() < tasks[at].len() => {
                let (task, in_place) = tasks[at][rank.tasks.len()];
                rank.start(task, in_place);
                idle = 0;
            }
            1 => {
                if let Some(message) = rank.wires[lane].sends.pop_front() {
                    switch.receive(at, message);
                    idle = 0;
                }
            }
            2 => {
                if !rank.wires[lane].receives.is_empty()
                    && let Some((bytes, immediate)) = switch.next_for(at)
                {
                    let slot = rank.wires[lane].receives.pop_front().expect("a receive");
                    rank.wires[lane].arrived[slot as usize].clone_from(&bytes);
                    switch.received_by(at);
                    rank.executor.machine.handle(Event::Received {
                        channel,
                        slot,
                        length: bytes.len() as u32,
                        immediate,
                        head: &bytes[..bytes.len().min(64)],
                    });
                    rank.carry_out();
                    idle = 0;
                }
            }
            _ => {
                let most = switch.acknowledgeable(at);
                if most > 0 {
                    let many = 1 + choices.below(most);
                    let (wr, _) = switch.unacknowledged[at][many - 1];
                    switch.unacknowledged[at].drain(..many);
                    rank.wires[lane].in_use.retain(|u| u.0 > wr);
                    rank.executor.machine.handle(Event::Sent { channel, wr });
                    rank.carry_out();
                    idle = 0;
                }
            }
        }
    }
}

/// Ranks of a group with `lanes` lanes. A part of a collective has at least `least` bytes.
fn laned(config: InNetworkConfig, lanes: usize, least: u64) -> Vec<Rank> {
    let machine = |rank| InNetwork::new(InNetworkConfig { rank, ..config });
    let laned = |rank| Laned::with_part_bytes_min(vec![machine(rank); lanes], least);
    (0..config.size)
        .map(|rank| Rank::new(rank, config.size, Box::new(laned(rank))))
        .collect()
}

fn ranks(config: InNetworkConfig) -> Vec<Rank> {
    let machine = |rank| InNetwork::new(InNetworkConfig { rank, ..config });
    (0..config.size)
        .map(|rank| Rank::new(rank, config.size, Box::new(machine(rank))))
        .collect()
}

fn any_config() -> impl Strategy<Value = InNetworkConfig> {
    (2_u16..7, 2_u32..20, 1_u32..9, 1_u32..10).prop_map(|(size, window_packets, message, calls_max)| {
        InNetworkConfig {
            pmtu: Pmtu::B256,
            window_packets,
            message_packets: message.min(window_packets),
            calls_max,
            ..InNetworkConfig::new(0, size)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_collective_returns_the_expected_output(
        (config, tasks, places) in any_config().prop_flat_map(|config| (
            Just(config),
            prop::collection::vec(any_task(config.size, 1200), 1..5),
            prop::collection::vec(any::<bool>(), 5),
        )),
        late in any::<bool>(),
        seed: u64,
    ) {
        let mut all = ranks(config);
        let program: Vec<_> = tasks.iter().copied().zip(places.iter().copied()).collect();
        run(&mut all, config, &vec![program; config.size.into()], seed, late.then_some(0));
        for rank in &all {
            prop_assert!(rank.is_done(), "rank {} waits for {:?}", rank.number, rank.executor.machine.waiting_for());
            prop_assert!(rank.executor.machine.is_drained());
            for (number, task) in tasks.iter().enumerate() {
                prop_assert_eq!(rank.tasks[number].result, Some(Ok(())));
                let must = expected(task, number, rank.number, config.size);
                prop_assert_eq!(rank.output(number), must, "rank {} task {:?}", rank.number, task);
            }
        }
    }

    /// One rank makes another call at one point: all report it, naming two ranks that called differently. Earlier
    /// tasks succeed and later ones fail.
    #[test]
    fn a_rank_that_disagrees_is_named(
        config in any_config(),
        before in 0_usize..3,
        odd in 0_u16..7,
        more in 1_u64..400,
        seed: u64,
    ) {
        let odd = odd % config.size;
        let task = |elements| Task { collective: Collective::AllReduce, elements, ..Task::BARRIER };
        let program = |rank: u16| -> Vec<(Task, bool)> {
            let mut tasks = vec![task(300); before];
            tasks.push(if rank == odd { task(300 + more) } else { task(300) });
            tasks.push(Task::BARRIER);
            tasks.into_iter().map(|t| (t, false)).collect()
        };
        let mut all = ranks(config);
        let programs: Vec<_> = (0..config.size).map(program).collect();
        run(&mut all, config, &programs, seed, None);
        for rank in &all {
            for number in 0..before {
                prop_assert_eq!(rank.tasks[number].result, Some(Ok(())));
            }
            let Some(Err(Failure::Conflict { sequence, first, second })) = rank.tasks[before].result else {
                return Err(TestCaseError::fail(format!("{:?}", rank.tasks[before].result)));
            };
            prop_assert_eq!(sequence as usize, before);
            prop_assert!((first.0 == odd) != (second.0 == odd), "{first:?} {second:?}");
            prop_assert_ne!(first.1, second.1);
            prop_assert_eq!(rank.tasks[before + 1].result, Some(Err(Failure::Aborted)));
            prop_assert!(rank.executor.machine.has_failed());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Over several lanes every collective returns the same bytes as over one.
    #[test]
    fn results_are_equal_over_several_lanes(
        (config, tasks, places) in any_config().prop_flat_map(|config| (
            Just(config),
            prop::collection::vec(any_task(config.size, 1200), 1..5),
            prop::collection::vec(any::<bool>(), 5),
        )),
        (lanes, least) in (2_usize..6, prop_oneof![Just(1_u64), 1_u64..3000]),
        seeds: (u64, u64),
    ) {
        let program: Vec<_> = tasks.iter().copied().zip(places.iter().copied()).collect();
        let programs = vec![program; config.size.into()];
        let (mut one, mut many) = (ranks(config), laned(config, lanes, least));
        run(&mut one, config, &programs, seeds.0, None);
        run(&mut many, config, &programs, seeds.1, None);
        for (rank, other) in many.iter().zip(&one) {
            prop_assert!(rank.is_done(), "rank {} waits for {:?}", rank.number, rank.executor.machine.waiting_for());
            prop_assert!(rank.executor.machine.is_drained() && !rank.executor.machine.has_failed());
            for (number, task) in tasks.iter().enumerate() {
                prop_assert_eq!(rank.tasks[number].result, Some(Ok(())));
                prop_assert_eq!(rank.output(number), other.output(number), "rank {} task {:?}", rank.number, task);
            }
        }
    }

    /// Ranks that disagree detect it, whichever lanes each of them used.
    #[test]
    fn disagreement_is_detected_over_lanes(
        config in any_config(), lanes in 2_usize..5, before in 0_usize..3, odd in 0_u16..7, more in 1_u64..2000, seed: u64,
    ) {
        disagree_over_lanes(config, lanes, before, (odd % config.size, more), seed)?;
    }
}

/// After `before` equal calls, rank `odd.0` makes a call with `odd.1` more elements.
fn disagree_over_lanes(
    config: InNetworkConfig,
    lanes: usize,
    before: usize,
    odd: (u16, u64),
    seed: u64,
) -> Result<(), TestCaseError> {
    let task = |elements| Task {
        collective: Collective::AllReduce,
        elements,
        ..Task::BARRIER
    };
    let program = |rank: u16| -> Vec<(Task, bool)> {
        let mut tasks = vec![task(300); before];
        tasks.push(task(if rank == odd.0 { 300 + odd.1 } else { 300 }));
        tasks.push(task(300));
        tasks.into_iter().map(|t| (t, false)).collect()
    };
    let mut all = laned(config, lanes, 200);
    let programs: Vec<_> = (0..config.size).map(program).collect();
    run(&mut all, config, &programs, seed, None);
    for rank in &all {
        for number in 0..before {
            prop_assert_eq!(rank.tasks[number].result, Some(Ok(())));
        }
        let conflict = matches!(rank.tasks[before].result, Some(Err(Failure::Conflict { .. })));
        prop_assert!(conflict, "{:?}", rank.tasks[before].result);
        prop_assert_eq!(rank.tasks[before + 1].result, Some(Err(Failure::Aborted)));
        prop_assert!(rank.executor.machine.has_failed());
    }
    Ok(())
}

/// Rank 1 uses both lanes and so begins with an empty call in the first. The call of rank 0 at that point has two
/// packets. In the switch's numbering rank 1 was then more than two windows ahead of rank 2, which had not finished a
/// call yet.
#[test]
fn a_longer_call_at_another_rank_keeps_a_rank_within_two_windows() {
    let config = InNetworkConfig {
        pmtu: Pmtu::B256,
        window_packets: 5,
        message_packets: 1,
        calls_max: 2,
        ..InNetworkConfig::new(0, 3)
    };
    disagree_over_lanes(config, 2, 2, (1, 213), 16_443_945_553_686_430_635).expect("detected");
}

/// Such a task used to be sent, and the sum depended on the order of arrival.
#[test]
fn rank_order_is_refused_in_a_group_that_is_not_reproducible() {
    let config = InNetworkConfig::new(0, 2);
    let task = |collective, elements| Task {
        collective,
        elements,
        flags: CallFlags::REPRODUCIBLE,
        ..Task::BARRIER
    };
    let reproducible = InNetworkConfig {
        reproducible: true,
        ..config
    };
    for (config, refused) in [(config, true), (reproducible, false)] {
        for mut rank in [ranks(config).remove(0), laned(config, 2, 1).remove(0)] {
            for collective in [
                Collective::AllReduce,
                Collective::Reduce { root: 1 },
                Collective::ReduceScatter,
            ] {
                rank.start(task(collective, 9), false);
                let result = rank.tasks.last().expect("a task").result;
                assert_eq!(result == Some(Err(Failure::NotReproducible)), refused);
            }
            let sent = rank.wires.iter().any(|wire| !wire.sends.is_empty());
            assert_eq!((sent, rank.executor.machine.has_failed()), (!refused, false));
            // AllGather reduces nothing, so any order is valid.
            rank.start(task(Collective::AllGather, 9), false);
            assert_eq!(rank.tasks.last().expect("a task").result, None);
        }
    }
}

#[test]
fn a_failed_lane_is_named_and_ends_all_tasks() {
    let mut rank = laned(InNetworkConfig::new(0, 2), 3, 1).remove(0);
    let task = Task {
        collective: Collective::AllReduce,
        elements: 1000,
        ..Task::BARRIER
    };
    rank.start(task, false);
    rank.start(Task::BARRIER, false);
    let status = castnet_rnic::Status::RetryExceeded;
    rank.executor.machine.handle(Event::Failed {
        channel: ChannelId(2),
        status,
    });
    rank.carry_out();
    rank.start(task, false);
    let results: Vec<_> = rank.tasks.iter().map(|t| t.result).collect();
    let failure = Failure::Channel {
        peer: None,
        lane: Some(2),
        status,
    };
    assert_eq!(
        results,
        [
            Some(Err(failure)),
            Some(Err(Failure::Aborted)),
            Some(Err(Failure::Aborted))
        ]
    );
    assert!(failure.to_string().contains("lane 2"), "{failure}");
}

#[test]
fn ranks_wait_for_a_late_rank_and_report_it() {
    let config = InNetworkConfig::new(0, 3);
    let mut all = ranks(config);
    let task = Task {
        collective: Collective::AllReduce,
        elements: 100_000,
        ..Task::BARRIER
    };
    let programs = vec![vec![(task, false)], vec![(task, false)], Vec::new()];
    run(&mut all, config, &programs, 1, None);
    assert_eq!(
        all[0].executor.machine.waiting_for(),
        Some(Waiting::Calls { sequence: 0 })
    );
    assert!(!all[0].executor.machine.is_drained());
    assert_eq!(all[2].executor.machine.waiting_for(), None);
}

#[test]
fn invalid_messages_end_the_group() {
    let machine = |bytes: &[u8], immediate| {
        let mut rank = Rank::new(0, 2, Box::new(InNetwork::new(InNetworkConfig::new(0, 2))));
        rank.start(Task::BARRIER, false);
        let slot = rank.wires[0].receives.pop_front().expect("a receive");
        rank.executor.machine.handle(Event::Received {
            channel: ChannelId(0),
            slot,
            length: bytes.len() as u32,
            immediate,
            head: bytes,
        });
        rank.carry_out();
        rank.tasks[0].result
    };
    let is_protocol = |result| matches!(result, Some(Err(Failure::Protocol { .. })));
    assert!(is_protocol(machine(&[0; 64], None)));
    assert!(is_protocol(machine(&[0; 64], Some(Control::IMMEDIATE))));
    assert!(is_protocol(machine(&[0; 10], Some(Control::IMMEDIATE))));
    let mut control = Control {
        sequence: 0,
        rank: 0,
        call: super::super::task::wire_calls(&Task::BARRIER, 0, 2, ONE_BLOCK)
            .next()
            .expect("one call")
            .call,
        verdict: Verdict::Agreed,
    };
    let bytes = |control: &Control| {
        let mut bytes = [0; Control::LEN];
        control.emit(&mut bytes);
        bytes
    };
    assert_eq!(machine(&bytes(&control), Some(Control::IMMEDIATE)), Some(Ok(())));
    control.sequence = 1;
    assert!(is_protocol(machine(&bytes(&control), Some(Control::IMMEDIATE))));
}

/// A source and a contributor end when all agree and their data is posted. What fails after that is told to the next task.
#[test]
fn what_only_sends_ends_before_it_is_acknowledged() {
    for (collective, rank) in [
        (Collective::Broadcast { root: 0 }, 0),
        (Collective::Reduce { root: 1 }, 0),
    ] {
        let config = InNetworkConfig::new(rank, 2);
        let mut rank = Rank::new(rank, 2, Box::new(InNetwork::new(config)));
        let task = Task {
            collective,
            elements: 5000,
            ..Task::BARRIER
        };
        rank.start(task, false);
        assert_eq!(rank.tasks[0].result, None, "before the control result");
        let slot = rank.wires[0].receives.pop_front().expect("a receive");
        let control = Control {
            sequence: 0,
            rank: 0,
            call: super::super::task::wire_calls(&task, 0, 2, ONE_BLOCK)
                .next()
                .expect("a call")
                .call,
            verdict: Verdict::Agreed,
        };
        let mut head = [0; Control::LEN];
        control.emit(&mut head);
        rank.executor.machine.handle(Event::Received {
            channel: ChannelId(0),
            slot,
            length: head.len() as u32,
            immediate: Some(Control::IMMEDIATE),
            head: &head,
        });
        rank.carry_out();
        assert_eq!(rank.tasks[0].result, Some(Ok(())));
        assert!(!rank.executor.machine.is_drained());
        let (channel, status) = (ChannelId(0), Status::RetryExceeded);
        rank.executor.machine.handle(Event::Failed { channel, status });
        rank.carry_out();
        assert_eq!(rank.tasks[0].result, Some(Ok(())), "told once");
        assert!(rank.executor.machine.has_failed());
        rank.start(Task::BARRIER, false);
        let cause = Failure::Channel {
            peer: None,
            lane: None,
            status,
        };
        assert_eq!(rank.tasks[1].result, Some(Err(cause)));
    }
}

/// Blocks share a call as long as all its packets fit into the window, at most as many as may be.
#[test]
fn small_blocks_share_a_call() {
    let roots = |blocks_max, bytes, collective| -> Vec<(u16, u16, u16)> {
        let task = Task {
            collective,
            elements: bytes,
            ..Task::BARRIER
        };
        let cut = Cut {
            blocks_max,
            ..ONE_BLOCK
        };
        super::super::task::wire_calls(&task, 3, 6, cut)
            .map(|c| (c.call.root, c.call.roots, c.block))
            .collect()
    };
    let pairs = |n: u16| -> Vec<_> {
        (0..6)
            .map(|r| (r - r % n, n.min(6 - (r - r % n)), r % n))
            .collect()
    };
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        assert_eq!(roots(4, 100, collective), pairs(4));
        assert_eq!(roots(u16::MAX, 16 * 1024, collective), pairs(4));
        assert_eq!(roots(u16::MAX, 16 * 1024 + 1, collective), pairs(3));
        assert_eq!(roots(u16::MAX, 1, collective), pairs(6));
        assert_eq!(roots(8, 33 * 1024, collective), pairs(1));
        assert_eq!(roots(8, 0, collective), pairs(1));
    }
    assert_eq!(roots(8, 100, Collective::Broadcast { root: 5 }), [(5, 1, 0)]);
    assert_eq!(roots(8, 100, Collective::AllReduce), [(0, 1, 0)]);
}

#[test]
fn long_tasks_are_split_into_calls() {
    let task = Task {
        collective: Collective::AllReduce,
        data_type: castnet_wire::control::DataType::F32,
        flags: CallFlags::default(),
        elements: (5 << 30) / 4 + 7,
        ..Task::BARRIER
    };
    let calls: Vec<_> = super::super::task::wire_calls(&task, 0, 2, ONE_BLOCK).collect();
    let packets: Vec<u32> = calls.iter().map(|c| c.call.packets).collect();
    assert_eq!(packets, [1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1]);
    assert_eq!(calls.iter().map(|c| c.call.elements).sum::<u64>(), task.elements);
    assert_eq!(calls[5].sends.map(|p| p.offset), Some(5 << 30));
}
