//! Frames of lossless classes that wait at their egress ports, and the ingress ports that must be stopped because of them.
//!
//! Each frame is charged to its ingress port at its egress port and class. If one of these sums passes XOFF, the ingress port is stopped
//! for the class, until all of them are down at XON. So the slowest egress port of a group stops the source of the group (Cepheus,
//! section III.E), and a port that sends elsewhere goes on.

use castnet_wire::{ClassSet, FrameBuf, Nanos, TrafficClass};

use crate::config::PfcConfig;

/// The least charge of a frame in bytes: small frames take a buffer too.
const CELL: u64 = 256;
/// Ports by slot index, and [`NO_INGRESS`].
const SLOTS: usize = 65;
/// The slot index of frames that a timer or control has sent.
pub const NO_INGRESS: u8 = 64;
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node<B> {
    frame: Option<B>,
    ingress: u8,
    next: u32,
}

/// The frames of one egress port and class, oldest first.
#[derive(Debug)]
struct Queue {
    head: u32,
    tail: u32,
    charged: Box<[u64; SLOTS]>,
    /// Since when no frame has left, whether the class is paused or not.
    stuck_since: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    xoff: u64,
    xon: u64,
    most: u64,
}

impl Limits {
    fn of(config: &PfcConfig) -> Self {
        Self {
            xoff: config.xoff_bytes,
            xon: config.xon_bytes,
            most: config.xoff_bytes.saturating_add(config.headroom_bytes),
        }
    }
}

/// The queues of one worker. All memory is reserved at the start.
#[derive(Debug)]
pub(crate) struct Queues<B> {
    nodes: Vec<Node<B>>,
    free: u32,
    frames: usize,
    /// By slot index and class. `None` for classes that are not lossless.
    queues: Vec<Option<Queue>>,
    /// By slot index. `None` for ports without flow control.
    limits: Vec<Option<Limits>>,
    /// Classes with frames, by slot index.
    waiting: Vec<ClassSet>,
    /// By ingress slot and class: the egress slots where the ingress port is over XOFF, one bit each.
    over: Vec<[u64; TrafficClass::COUNT]>,
    /// By class: the ingress slots that are over XOFF anywhere.
    over_any: [u64; TrafficClass::COUNT],
    /// By ingress slot and class: the frames that wait, at whichever egress port.
    held: Vec<[u32; TrafficClass::COUNT]>,
    /// By class: the ingress slots with frames that wait.
    held_any: [u64; TrafficClass::COUNT],
    /// True from half of the frames on, until a quarter: all ingress ports are stopped whose frames wait. Those of others leave at once, so a
    /// crowd that two ports make for each other does not stop them.
    is_crowded: bool,
}

impl<B: FrameBuf> Queues<B> {
    /// `ports` in slot order. `capacity` is in frames.
    pub(crate) fn new<'c>(ports: impl Iterator<Item = Option<&'c PfcConfig>>, capacity: usize) -> Self {
        let capacity = capacity.min(NONE as usize);
        let (mut queues, mut limits) = (Vec::new(), Vec::new());
        for config in ports {
            limits.push(config.map(Limits::of));
            queues.extend(TrafficClass::all().map(|class| {
                config.filter(|config| config.classes.has(class)).map(|_| Queue {
                    head: NONE,
                    tail: NONE,
                    charged: Box::new([0; SLOTS]),
                    stuck_since: Nanos::ZERO,
                })
            }));
        }
        let node = |n: usize| Node {
            frame: None,
            ingress: NO_INGRESS,
            next: if n + 1 < capacity { n as u32 + 1 } else { NONE },
        };
        Self {
            nodes: (0..capacity).map(node).collect(),
            free: if capacity > 0 { 0 } else { NONE },
            frames: 0,
            queues,
            waiting: vec![ClassSet::default(); limits.len()],
            limits,
            over: vec![[0; TrafficClass::COUNT]; SLOTS],
            over_any: [0; TrafficClass::COUNT],
            held: vec![[0; TrafficClass::COUNT]; SLOTS],
            held_any: [0; TrafficClass::COUNT],
            is_crowded: false,
        }
    }

    /// Appends a frame to the queue of a lossless class.
    ///
    /// # Errors
    /// The frame, if the headroom of its ingress port or the memory is used up, or the class is not lossless.
    pub(crate) fn push(
        &mut self,
        slot: usize,
        class: TrafficClass,
        ingress: u8,
        frame: B,
        now: Nanos,
    ) -> Result<(), B> {
        let most = self.limits(slot, ingress).most;
        let Some(Some(queue)) = self.queues.get_mut(index(slot, class)) else {
            return Err(frame);
        };
        if self.free == NONE || queue.charged[usize::from(ingress)] + charge(&frame) > most {
            return Err(frame);
        }
        if queue.head == NONE {
            queue.stuck_since = now;
        }
        self.insert(slot, class, ingress, frame, false);
        Ok(())
    }

    /// Puts a frame that was just [taken](Self::pop) back to the front.
    pub(crate) fn put_back(&mut self, slot: usize, class: TrafficClass, ingress: u8, frame: B) {
        self.insert(slot, class, ingress, frame, true);
    }

    /// There is a free node.
    fn insert(&mut self, slot: usize, class: TrafficClass, ingress: u8, frame: B, at_front: bool) {
        let (charge, xoff) = (charge(&frame), self.limits(slot, ingress).xoff);
        let Some(Some(queue)) = self.queues.get_mut(index(slot, class)) else {
            return;
        };
        let taken = self.free;
        let Some(node) = self.nodes.get_mut(taken as usize) else {
            return;
        };
        self.free = node.next;
        let next = if at_front { queue.head } else { NONE };
        *node = Node {
            frame: Some(frame),
            ingress,
            next,
        };
        if at_front || queue.head == NONE {
            queue.head = taken;
        } else if let Some(tail) = self.nodes.get_mut(queue.tail as usize) {
            tail.next = taken;
        }
        if next == NONE {
            queue.tail = taken;
        }
        let at = usize::from(ingress);
        queue.charged[at] += charge;
        if queue.charged[at] >= xoff {
            self.over[at][class.index()] |= 1 << slot;
            self.over_any[class.index()] |= bit(ingress);
        }
        self.held[at][class.index()] += 1;
        self.held_any[class.index()] |= bit(ingress);
        self.waiting[slot].insert(class);
        self.frames += 1;
        self.is_crowded |= 2 * self.frames >= self.nodes.len();
    }

    /// Takes the oldest frame of a class, and its ingress slot. Ingress ports stay stopped until the queue is [settled](Self::settle):
    /// the frame may be put back.
    pub(crate) fn pop(&mut self, slot: usize, class: TrafficClass) -> Option<(u8, B)> {
        let queue = self.queues.get_mut(index(slot, class))?.as_mut()?;
        let taken = queue.head;
        let node = self.nodes.get_mut(taken as usize)?;
        let (ingress, frame) = (node.ingress, node.frame.take()?);
        queue.head = node.next;
        node.next = self.free;
        self.free = taken;
        if queue.head == NONE {
            self.waiting[slot].remove(class);
        }
        queue.charged[usize::from(ingress)] -= charge(&frame);
        let held = &mut self.held[usize::from(ingress)][class.index()];
        *held -= 1;
        if *held == 0 {
            self.held_any[class.index()] &= !bit(ingress);
        }
        self.frames -= 1;
        Some((ingress, frame))
    }

    /// The frames popped from a queue have left: ends the stop of ingress ports that are down at XON there.
    pub(crate) fn settle(&mut self, slot: usize, class: TrafficClass) {
        self.is_crowded &= 4 * self.frames > self.nodes.len();
        let mut stopped = self.over_any[class.index()];
        while stopped != 0 {
            let ingress = stopped.trailing_zeros() as u8;
            stopped &= stopped - 1;
            let xon = self.limits(slot, ingress).xon;
            let queue = self.queues.get(index(slot, class)).and_then(Option::as_ref);
            if queue.is_some_and(|queue| queue.charged[usize::from(ingress)] > xon) {
                continue;
            }
            let over = &mut self.over[usize::from(ingress)][class.index()];
            *over &= !(1 << slot);
            if *over == 0 {
                self.over_any[class.index()] &= !bit(ingress);
            }
        }
    }

    /// Frames in all queues.
    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    /// The classes of a port that have frames.
    pub(crate) fn waiting(&self, slot: usize) -> ClassSet {
        self.waiting[slot]
    }

    /// The ingress slots that must be stopped for a class, one bit each.
    pub(crate) fn stopped(&self, class: TrafficClass) -> u64 {
        match self.is_crowded {
            true => self.over_any[class.index()] | self.held_any[class.index()],
            false => self.over_any[class.index()],
        }
    }

    /// Since when the class has frames that did not leave. `None` if it has none.
    pub(crate) fn stuck_since(&self, slot: usize, class: TrafficClass) -> Option<Nanos> {
        let queue = self.queues.get(index(slot, class))?.as_ref()?;
        (queue.head != NONE).then_some(queue.stuck_since)
    }

    /// A frame has left.
    pub(crate) fn not_stuck(&mut self, slot: usize, class: TrafficClass, now: Nanos) {
        if let Some(Some(queue)) = self.queues.get_mut(index(slot, class)) {
            queue.stuck_since = now;
        }
    }

    /// The thresholds of the ingress port, or those of the egress port if it has none.
    fn limits(&self, slot: usize, ingress: u8) -> Limits {
        let of = |slot: usize| self.limits.get(slot).copied().flatten();
        of(usize::from(ingress)).or_else(|| of(slot)).unwrap_or_default()
    }
}

fn index(slot: usize, class: TrafficClass) -> usize {
    slot * TrafficClass::COUNT + class.index()
}

/// 0 for [`NO_INGRESS`].
fn bit(ingress: u8) -> u64 {
    1_u64.checked_shl(ingress.into()).unwrap_or(0)
}

fn charge(frame: &impl FrameBuf) -> u64 {
    (frame.length() as u64).max(CELL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const PORTS: usize = 3;

    fn classes() -> [TrafficClass; 3] {
        [2, 3, 4].map(|n| TrafficClass::new(n).expect("a class"))
    }

    fn queues(capacity: usize) -> Queues<Vec<u8>> {
        let mut config = PfcConfig::new(classes()[1..].iter().copied().collect());
        (config.xoff_bytes, config.xon_bytes, config.headroom_bytes) = (2_000, 1_000, 1_500);
        // The last port has no flow control.
        let ports = [Some(&config), Some(&config), None];
        Queues::new(ports.into_iter(), capacity)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize, usize, u8, usize),
        Pop(usize, usize, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = (0..PORTS, 0..3_usize);
        let ingress = prop_oneof![4 => 0..3_u8, 1 => Just(NO_INGRESS)];
        // Half of the lengths add up to the thresholds themselves.
        let length = prop_oneof![14..1_200_usize, Just(500), Just(1_000)];
        prop_oneof![
            3 => (at.clone(), ingress, length).prop_map(|((s, c), i, l)| Step::Push(s, c, i, l)),
            2 => (at, any::<bool>()).prop_map(|((s, c), back)| Step::Pop(s, c, back)),
        ]
    }

    proptest! {

        /// Against plain queues: order, limits, and who is stopped, with XOFF, XON and the memory.
        #[test]
        fn queues_hold_and_stop_as_plain_ones_do(steps in prop::collection::vec(step(), 0..300), capacity in 0..24_usize) {
            let mut queues = queues(capacity);
            let mut plain: Vec<VecDeque<(u8, Vec<u8>)>> = vec![VecDeque::new(); PORTS * 3];
            let mut over = std::collections::BTreeSet::new();
            let (mut number, mut crowded) = (0_u32, false);
            for step in steps {
                let held: usize = plain.iter().map(VecDeque::len).sum();
                let (slot, c) = match step {
                    Step::Push(slot, c, ..) | Step::Pop(slot, c, _) => (slot, c),
                };
                let queue = &mut plain[slot * 3 + c];
                let sum = |queue: &VecDeque<(u8, Vec<u8>)>, ingress| -> u64 {
                    queue.iter().filter(|(i, _)| *i == ingress).map(|(_, f)| charge(f)).sum()
                };
                match step {
                    Step::Push(_, _, ingress, length) => {
                        number += 1;
                        let mut frame = vec![0; length];
                        frame[..4].copy_from_slice(&number.to_be_bytes());
                        let fits = sum(queue, ingress) + charge(&frame) <= 3_500 && held < capacity;
                        let expected = fits && c > 0 && slot < 2;
                        let result = queues.push(slot, classes()[c], ingress, frame.clone(), Nanos(5));
                        prop_assert_eq!(result.is_ok(), expected);
                        if expected {
                            queue.push_back((ingress, frame));
                            crowded |= 2 * (held + 1) >= capacity;
                        }
                        if sum(queue, ingress) >= 2_000 {
                            over.insert((ingress, c, slot));
                        }
                    }
                    Step::Pop(_, _, back) => {
                        let popped = queues.pop(slot, classes()[c]);
                        prop_assert_eq!(&popped, &queue.front().cloned());
                        if let Some((ingress, frame)) = popped {
                            if back {
                                queues.put_back(slot, classes()[c], ingress, frame);
                            } else {
                                queue.pop_front();
                                crowded &= 4 * (held - 1) > capacity;
                            }
                            if sum(queue, ingress) <= 1_000 {
                                over.remove(&(ingress, c, slot));
                            }
                        }
                        queues.settle(slot, classes()[c]);
                    }
                }
                prop_assert_eq!(queues.len(), plain.iter().map(VecDeque::len).sum::<usize>());
                for (c, class) in classes().into_iter().enumerate() {
                    let mut stopped = 0;
                    for (ingress, ..) in over.iter().filter(|(_, at, _)| *at == c) {
                        stopped |= bit(*ingress);
                    }
                    for (ingress, _) in (0..PORTS).flat_map(|slot| &plain[slot * 3 + c]) {
                        stopped |= if crowded { bit(*ingress) } else { 0 };
                    }
                    prop_assert_eq!(queues.stopped(class), stopped);
                    for slot in 0..PORTS {
                        prop_assert_eq!(queues.waiting(slot).has(class), !plain[slot * 3 + c].is_empty());
                    }
                }
            }
        }
    }
}
