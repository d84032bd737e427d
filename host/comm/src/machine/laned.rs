//! Collectives over several lanes: sub-groups of the same ranks, each with a machine and a queue pair of its own.
//!
//! A group belongs to one worker of a switch. One that is too hot for a core is split into K groups, its lanes, and large
//! collectives are cut into K parts of elements that follow one another, one for each lane. All ranks cut alike, as they all
//! know the number of elements. What is small takes the first lane alone, and so does a barrier.
//!
//! Ranks that call different collectives are found out in the first lane, which has a part of every one. Its part alone does
//! not tell how many elements the whole has: K numbers come to the same. So a barrier goes before it whose type and flags
//! say what is left of the elements when each lane has had as many; its flags are never those of a barrier that is called.
//!
//! What is called block here is the unit of [`Task::elements`]: the whole of an AllReduce, one rank's part of a
//! ReduceScatter or AllGather. Each block is cut alike, so a lane's part of a collective is one of the same kind with fewer
//! elements, and only the places of its bytes differ.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use super::in_network::InNetwork;
use super::{
    Action, ChannelId, ChannelShape, Content, Event, Failure, Machine, Place, Task, TaskId, Waiting,
};

/// The least bytes of a lane's part of a block: below, its control message costs more than it spares.
pub const LANE_BYTES_MIN: u64 = 64 << 10;

/// A lane's part of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    task: TaskId,
    /// Bytes of a block, of the whole task and of this part, and where the part is in it.
    whole: u64,
    part: u64,
    offset: u64,
}

impl Cut {
    /// A place of the part in the task's memory.
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

/// A machine for each lane.
struct Lane {
    machine: InNetwork,
    /// Its tasks that are under way.
    cuts: BTreeMap<TaskId, Cut>,
}

/// How much of a task is still to come, and whether it has failed.
struct Open {
    parts: usize,
    result: Result<(), Failure>,
}

/// The machine: channel k is that of lane k.
pub struct Laned {
    lanes: Vec<Lane>,
    tasks: u64,
    open: BTreeMap<TaskId, Open>,
    has_failed: bool,
    actions: VecDeque<Action>,
    /// The lane that is asked next for something to do.
    next: usize,
    /// [`LANE_BYTES_MIN`], but in tests.
    least: u64,
}

/// The elements of each lane's part, in order; the first alone has them where not all would have `least` bytes.
fn cut(task: &Task, lanes: usize, least: u64) -> Vec<u64> {
    let lanes = lanes.max(1) as u64;
    let (each, more) = (task.elements / lanes, task.elements % lanes);
    match each * task.data_type.size() as u64 {
        bytes if bytes < least.max(1) => vec![task.elements],
        _ => (0..lanes).map(|lane| each + u64::from(lane < more)).collect(),
    }
}

/// The barrier that says how many elements are left when each lane has had as many: fewer than lanes.
fn rest(left: u64) -> Task {
    use castnet_wire::control::{CallFlags, DataType as T};
    const TYPES: [T; 12] = [
        T::F32,
        T::F16,
        T::Bf16,
        T::F64,
        T::I8,
        T::I16,
        T::I32,
        T::I64,
        T::U8,
        T::U16,
        T::U32,
        T::U64,
    ];
    let (round, at) = (left as usize / TYPES.len(), left as usize % TYPES.len());
    Task {
        data_type: TYPES[at],
        flags: match round {
            0 => CallFlags::REPRODUCIBLE,
            _ => CallFlags::REPRODUCIBLE.with(CallFlags::SATURATE),
        },
        ..Task::BARRIER
    }
}

impl Laned {
    /// A rank whose group has a lane for each of these machines, all alike.
    pub fn new(machines: Vec<InNetwork>) -> Self {
        Self::with_least(machines, LANE_BYTES_MIN)
    }

    pub(crate) fn with_least(machines: Vec<InNetwork>, least: u64) -> Self {
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
            least,
        }
    }

    /// A lane's action as one of the whole; `None` where there is nothing to be done for it yet.
    fn lift(&mut self, lane: usize, action: Action) -> Option<Action> {
        let channel = ChannelId(lane as u16);
        let cuts = &mut self.lanes[lane].cuts;
        let cut = |task: &TaskId| cuts.get(task).copied();
        Some(match action {
            Action::Receive { slot, .. } => Action::Receive { channel, slot },
            Action::Send {
                wr,
                slot,
                task,
                content,
                immediate,
                ..
            } => {
                let cut = cut(&task)?;
                let content = match content {
                    Content::Control(bytes) => Content::Control(bytes),
                    Content::Data { from, length } => Content::Data {
                        from: cut.place(from),
                        length,
                    },
                };
                Action::Send {
                    channel,
                    wr,
                    slot,
                    task: cut.task,
                    content,
                    immediate,
                }
            }
            Action::Deliver {
                slot,
                task,
                to,
                length,
                combine,
                ..
            } => {
                let cut = cut(&task)?;
                Action::Deliver {
                    channel,
                    slot,
                    task: cut.task,
                    to: cut.place(to),
                    length,
                    combine: combine.map(|place| cut.place(place)),
                }
            }
            Action::Copy {
                task,
                from,
                to,
                length,
            } => {
                let cut = cut(&task)?;
                Action::Copy {
                    task: cut.task,
                    from: cut.place(from),
                    to: cut.place(to),
                    length,
                }
            }
            Action::Done { task, result } => {
                let cut = cuts.remove(&task)?;
                return self.ended(lane, cut.task, result);
            }
        })
    }

    /// A part has ended, and perhaps its task with it. The first part that fails ends the task, and all that come after.
    fn ended(&mut self, lane: usize, task: TaskId, result: Result<(), Failure>) -> Option<Action> {
        let open = self.open.get_mut(&task)?;
        open.parts -= 1;
        if open.result.is_ok() {
            open.result = result.map_err(|failure| in_lane(failure, lane));
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

    /// Ends the tasks behind one that has failed: other lanes may go on for ever without this one.
    fn fail_after(&mut self, task: TaskId) {
        self.has_failed = true;
        for (task, _) in self.open.split_off(&task) {
            self.actions.push_back(Action::Done {
                task,
                result: Err(Failure::Aborted),
            });
        }
    }
}

/// A queue pair is named with its lane.
fn in_lane(failure: Failure, lane: usize) -> Failure {
    match failure {
        Failure::Channel { peer, status, .. } => Failure::Channel {
            peer,
            lane: Some(lane as u8),
            status,
        },
        other => other,
    }
}

impl Machine for Laned {
    fn shape(&self) -> ChannelShape {
        // All lanes are alike.
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
            self.actions.push_back(Action::Done {
                task: id,
                result: Err(failure),
            });
            return id;
        }
        let parts = cut(&task, self.lanes.len(), self.least);
        let is_cut = parts.len() > 1;
        let open = Open {
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
            let own = first.machine.start(rest(left));
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
        // As the lanes' machines: they need none.
        0
    }

    fn handle(&mut self, event: Event<'_>) {
        let (Event::Sent { channel, .. } | Event::Received { channel, .. } | Event::Failed { channel, .. }) =
            event;
        if let Some(lane) = self.lanes.get_mut(usize::from(channel.0)) {
            lane.machine.handle(event);
        }
    }

    fn poll_action(&mut self) -> Option<Action> {
        let mut quiet = 0;
        while quiet < self.lanes.len() {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            let lane = self.next % self.lanes.len();
            match self.lanes[lane].machine.poll_action() {
                Some(action) => {
                    quiet = 0;
                    if let Some(action) = self.lift(lane, action) {
                        return Some(action);
                    }
                }
                None => {
                    quiet += 1;
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
        /// The parts are all of the block, in order, without gaps; each but a single one has its least bytes.
        #[test]
        fn a_task_is_cut_whole(elements in 0_u64..100_000, lanes in 1_usize..=16, least in 1_u64..100_000) {
            let task = Task { collective: Collective::AllReduce, elements, ..Task::BARRIER };
            let parts = cut(&task, lanes, least);
            prop_assert!((1..=lanes).contains(&parts.len()));
            prop_assert_eq!(parts.iter().sum::<u64>(), elements);
            let (most, fewest) = (parts.iter().max().unwrap(), parts.iter().min().unwrap());
            prop_assert!(most - fewest <= 1);
            prop_assert!(parts.len() == 1 || parts.len() == lanes && *fewest >= least);
        }
    }

    #[test]
    fn what_the_first_lane_hears_tells_the_whole() {
        let mut heard = std::collections::BTreeSet::new();
        for elements in 16..1000 {
            let task = Task {
                collective: Collective::AllReduce,
                elements,
                ..Task::BARRIER
            };
            let Task { data_type, flags, .. } = rest(elements % 16);
            assert_ne!(flags, Task::BARRIER.flags);
            assert!(
                heard.insert((cut(&task, 16, 1)[0], data_type, flags)),
                "{elements}"
            );
        }
    }

    #[test]
    fn a_part_lies_in_every_block_at_the_same_place() {
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
