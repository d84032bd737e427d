//! Collectives over several lanes: sub-groups of the same ranks, each with its own machine and queue pair.
//!
//! A group belongs to one worker of a switch. If one core is not enough for it, it is split into K groups, its lanes,
//! and a large collective is split into K consecutive ranges of elements, one for each lane. All ranks split alike,
//! because they all know the number of elements. A small collective and a barrier use the first lane only.
//!
//! The first lane has a part of every collective, so it detects ranks that call different ones. Its part alone does
//! not identify the total number of elements: K totals give the same part. So a barrier precedes it whose type and
//! flags encode the remainder of the division by K. Its flags never equal those of a barrier that a program calls.
//!
//! A block here is the unit of [`Task::elements`]: the whole of an AllReduce, one rank's part of a ReduceScatter or
//! AllGather. Each block is split alike, so a lane's part of a collective is one of the same kind with fewer elements.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use super::in_network::InNetwork;
use super::{
    Action, ChannelId, ChannelShape, Content, Event, Failure, Machine, Place, Target, Task, TaskId, Waiting,
};

/// Least bytes of a lane's part of a block: a shorter part costs more for its control message than it saves.
pub const LANE_BYTES_MIN: u64 = 64 << 10;

/// The part of a task in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    task: TaskId,
    /// Bytes of a block in the task (`whole`) and in this part (`part`), and offset of the part in the block.
    whole: u64,
    part: u64,
    offset: u64,
}

impl Cut {
    /// Translates an address of the part to one of the task.
    fn place(&self, place: Place) -> Place {
        let (block, within) = match self.part {
            0 => (0, place.offset),
            part => (place.offset / part, place.offset % part),
        };
        Place {
            offset: block * self.whole + self.offset + within,
            ..place
        }
    }
}

struct Lane {
    machine: InNetwork,
    cuts: BTreeMap<TaskId, Cut>,
}

/// Parts of a task that are running, and the first failure.
struct OpenTask {
    parts: usize,
    result: Result<(), Failure>,
}

/// The machine over all lanes. Channel k is the queue pair of lane k.
pub struct Laned {
    lanes: Vec<Lane>,
    tasks: u64,
    open: BTreeMap<TaskId, OpenTask>,
    has_failed: bool,
    actions: VecDeque<Action>,
    /// The lane to poll next.
    next: usize,
    /// [`LANE_BYTES_MIN`], except in tests.
    part_bytes_min: u64,
}

/// Elements of each lane's part, in order: one part only if one would have fewer than `part_bytes_min` bytes.
fn cut(task: &Task, lanes: usize, part_bytes_min: u64) -> Vec<u64> {
    let lanes = lanes.max(1) as u64;
    let (each, more) = (task.elements / lanes, task.elements % lanes);
    match each * task.data_type.size() as u64 {
        bytes if bytes < part_bytes_min.max(1) => vec![task.elements],
        _ => (0..lanes).map(|lane| each + u64::from(lane < more)).collect(),
    }
}

/// The barrier that encodes `left`, the remainder of the division of the elements by the number of lanes.
fn remainder_barrier(left: u64) -> Task {
    use castnet_wire::control::{CallFlags, DataType};
    let types = DataType::ALL.len();
    let (round, at) = (left as usize / types, left as usize % types);
    Task {
        data_type: DataType::ALL[at],
        flags: match round {
            0 => CallFlags::REPRODUCIBLE,
            _ => CallFlags::REPRODUCIBLE.with(CallFlags::SATURATE),
        },
        ..Task::BARRIER
    }
}

impl Laned {
    /// A rank whose group has one lane for each machine. All machines are configured alike.
    pub fn new(machines: Vec<InNetwork>) -> Self {
        Self::with_part_bytes_min(machines, LANE_BYTES_MIN)
    }

    pub(crate) fn with_part_bytes_min(machines: Vec<InNetwork>, part_bytes_min: u64) -> Self {
        let lane = |machine| Lane {
            machine,
            cuts: BTreeMap::new(),
        };
        Self {
            lanes: machines.into_iter().map(lane).collect(),
            tasks: 0,
            open: BTreeMap::new(),
            has_failed: false,
            actions: VecDeque::new(),
            next: 0,
            part_bytes_min,
        }
    }

    /// Translates a lane's action to one of the whole task; `None` where the executor has nothing to do.
    fn translate(&mut self, lane: usize, mut action: Action) -> Option<Action> {
        let own_channel = ChannelId(lane as u16);
        let cuts = &mut self.lanes[lane].cuts;
        match &mut action {
            Action::Receive { channel, target, .. } => {
                *channel = own_channel;
                *target = target.and_then(|target| {
                    let cut = cuts.get(&target.task)?;
                    let (task, to) = (cut.task, cut.place(target.to));
                    Some(Target { task, to, ..target })
                });
            }
            Action::Send {
                channel,
                task,
                content,
                ..
            } => {
                let cut = cuts.get(task)?;
                (*channel, *task) = (own_channel, cut.task);
                if let Content::Data { from, .. } = content {
                    *from = cut.place(*from);
                }
            }
            Action::Deliver {
                channel,
                task,
                to,
                combine,
                ..
            } => {
                let cut = cuts.get(task)?;
                (*channel, *task) = (own_channel, cut.task);
                *to = cut.place(*to);
                *combine = combine.map(|place| cut.place(place));
            }
            Action::Copy { task, from, to, .. } => {
                let cut = cuts.get(task)?;
                (*task, *from, *to) = (cut.task, cut.place(*from), cut.place(*to));
            }
            Action::Done { task, result } => {
                let cut = cuts.remove(task)?;
                return self.part_ended(lane, cut.task, *result);
            }
        }
        Some(action)
    }

    /// Ends one part, and its task if it was the last. The first part that fails ends the task and all later ones.
    fn part_ended(&mut self, lane: usize, task: TaskId, result: Result<(), Failure>) -> Option<Action> {
        let open = self.open.get_mut(&task)?;
        open.parts -= 1;
        if open.result.is_ok() {
            open.result = result.map_err(|mut failure| {
                if let Failure::Channel { lane: of, .. } = &mut failure {
                    *of = Some(lane as u8);
                }
                failure
            });
        }
        let result = open.result;
        if result.is_ok() && open.parts > 0 {
            return None;
        }
        self.open.remove(&task);
        if result.is_err() {
            self.fail_after(task);
        }
        Some(Action::Done { task, result })
    }

    /// Ends the tasks after one that has failed: other lanes would wait without end for this one.
    fn fail_after(&mut self, task: TaskId) {
        self.has_failed = true;
        let later = self.open.split_off(&task);
        self.actions.extend(
            later
                .into_keys()
                .map(|task| Action::failed(task, Failure::Aborted)),
        );
    }
}

impl Machine for Laned {
    fn shape(&self) -> ChannelShape {
        // All lanes have the same shape.
        self.lanes[0].machine.shape()
    }

    fn channels(&self) -> u16 {
        self.lanes.len() as u16
    }

    fn start(&mut self, task: Task) -> TaskId {
        let id = TaskId(self.tasks);
        self.tasks += 1;
        let checked = match self.has_failed {
            true => Err(Failure::Aborted),
            false => self.lanes[0].machine.check(&task),
        };
        if let Err(failure) = checked {
            self.actions.push_back(Action::failed(id, failure));
            return id;
        }
        let parts = cut(&task, self.lanes.len(), self.part_bytes_min);
        let is_cut = parts.len() > 1;
        let open = OpenTask {
            parts: parts.len() + usize::from(is_cut),
            result: Ok(()),
        };
        self.open.insert(id, open);
        if is_cut {
            let (left, first) = (task.elements % parts.len() as u64, &mut self.lanes[0]);
            let none = Cut {
                task: id,
                whole: 0,
                part: 0,
                offset: 0,
            };
            let own = first.machine.start(remainder_barrier(left));
            first.cuts.insert(own, none);
        }
        let mut offset = 0;
        for (lane, elements) in self.lanes.iter_mut().zip(parts) {
            let part = Task { elements, ..task };
            let cut = Cut {
                task: id,
                whole: task.bytes(),
                part: part.bytes(),
                offset,
            };
            offset += part.bytes();
            let own = lane.machine.start(part);
            lane.cuts.insert(own, cut);
        }
        id
    }

    fn scratch_bytes(&self, _: &Task) -> u64 {
        // The lanes' machines need none.
        0
    }

    fn may_send_from_tasks(&self) -> bool {
        true
    }

    fn handle(&mut self, event: Event<'_>) {
        let (Event::Sent { channel, .. } | Event::Received { channel, .. } | Event::Failed { channel, .. }) =
            event;
        if let Some(lane) = self.lanes.get_mut(usize::from(channel.0)) {
            lane.machine.handle(event);
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        let mut idle_lanes = 0;
        while idle_lanes < self.lanes.len() {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            let lane = self.next % self.lanes.len();
            match self.lanes[lane].machine.poll_action() {
                Some(action) => {
                    idle_lanes = 0;
                    if let Some(action) = self.translate(lane, action) {
                        return Some(action);
                    }
                }
                None => {
                    idle_lanes += 1;
                    self.next = lane + 1;
                }
            }
        }
        self.actions.pop_front()
    }

    fn is_drained(&self) -> bool {
        self.lanes.iter().all(|lane| lane.machine.is_drained())
    }

    fn has_failed(&self) -> bool {
        self.has_failed || self.lanes.iter().any(|lane| lane.machine.has_failed())
    }

    fn waiting_for(&self) -> Option<Waiting> {
        self.lanes.iter().find_map(|lane| lane.machine.waiting_for())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Collective;
    use super::*;

    proptest! {
        /// The parts cover the block in order, without gaps. Each of several parts has at least `part_bytes_min` bytes.
        #[test]
        fn the_parts_of_a_task_cover_it(elements in 0_u64..100_000, lanes in 1_usize..=16, part_bytes_min in 1_u64..100_000) {
            let task = Task { collective: Collective::AllReduce, elements, ..Task::BARRIER };
            let parts = cut(&task, lanes, part_bytes_min);
            prop_assert!((1..=lanes).contains(&parts.len()));
            prop_assert_eq!(parts.iter().sum::<u64>(), elements);
            let (most, fewest) = (parts.iter().max().unwrap(), parts.iter().min().unwrap());
            prop_assert!(most - fewest <= 1);
            prop_assert!(parts.len() == 1 || parts.len() == lanes && *fewest >= part_bytes_min);
        }
    }

    #[test]
    fn the_calls_of_the_first_lane_identify_the_number_of_elements() {
        let mut seen = std::collections::BTreeSet::new();
        for elements in 16..1000 {
            let task = Task {
                collective: Collective::AllReduce,
                elements,
                ..Task::BARRIER
            };
            let Task { data_type, flags, .. } = remainder_barrier(elements % 16);
            assert_ne!(flags, Task::BARRIER.flags);
            assert!(
                seen.insert((cut(&task, 16, 1)[0], data_type, flags)),
                "{elements}"
            );
        }
    }

    #[test]
    fn a_part_has_the_same_offset_in_every_block() {
        let cut = Cut {
            task: TaskId(0),
            whole: 100,
            part: 30,
            offset: 40,
        };
        let at = |offset| cut.place(Place::input(offset)).offset;
        assert_eq!([at(0), at(29), at(30), at(61)], [40, 69, 140, 241]);
    }
}
