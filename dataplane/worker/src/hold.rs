//! The worker side of moving a group between workers (docs/decisions/0007-moving-groups.md).
//!
//! The target worker holds frames of the group until it has the group. The source worker releases the group after it
//! has processed and sent all frames that were in its rings when the last worker switched to the target. During a move
//! a worker that finds a ring full keeps the frame and stops receiving.

use std::collections::VecDeque;

use castnet_engine::{Context, Expected, GroupKey, InstallError};
use castnet_port::{BATCH, Batch, FrameBuf, HandOver, Memory};
use castnet_wire::{DropReason, McstId, Nanos, PortId};
use crossbeam::channel::Sender;

use crate::config::DataplaneConfig;
use crate::worker::Worker;

/// Longest time that a detach waits for frames queued in a port, and a barrier for rings that are crowded.
const CATCH_UP: Nanos = Nanos::from_millis(10);
/// Longest time that a frame is blocked on a full ring. Only a worker that has died causes so long a wait.
const BLOCKED_MAX: Nanos = Nanos::from_secs(1);

/// Control moves one group at a time.
pub(crate) struct MoveState<B> {
    /// The keys of the group that will be attached here: its McstID, and that for data of a static core.
    expecting: Option<[GroupKey; 2]>,
    /// Oldest first.
    held: VecDeque<(PortId, B)>,
    held_max: usize,
    /// Frames of one port, oldest first. The first of them found a ring full.
    blocked: Batch<B>,
    blocked_port: usize,
    blocked_until: Nanos,
    pending_detach: Option<(McstId, Nanos, Sender<Option<Context>>)>,
    /// By worker, the number of frames in its ring that must be processed before the group is detached.
    before_detach: Box<[usize]>,
    /// Replies once the frames blocked at its start are sent on and, if the flag is set, the inbound rings are at most
    /// half full or the deadline has passed.
    pending_barrier: Option<(bool, Nanos, Sender<()>)>,
    /// True if no frame was blocked at some moment since the barrier was requested.
    was_unblocked: bool,
}

impl<B> MoveState<B> {
    pub(crate) fn new(config: &DataplaneConfig) -> Self {
        // Held frames must leave buffers for the frames that processing them creates.
        let spare = (config.pool.bodies / 2).min(config.pool.buffers / 4);
        let held_max = config.hold.min(spare).max(2 * BATCH);
        Self {
            expecting: None,
            held: VecDeque::with_capacity(held_max),
            held_max,
            blocked: Batch::new(),
            blocked_port: 0,
            blocked_until: Nanos::ZERO,
            pending_detach: None,
            before_detach: vec![0; config.workers.len()].into(),
            pending_barrier: None,
            was_unblocked: true,
        }
    }

    /// True if the group of `key` is expected and not yet attached.
    #[inline]
    pub(crate) fn must_hold(&self, key: Option<GroupKey>) -> bool {
        self.expecting
            .is_some_and(|keys| key.is_some_and(|key| keys.contains(&key)))
    }

    /// As [`Self::must_hold`], for a frame whose key has not been read.
    #[inline]
    pub(crate) fn must_hold_frame(&self, frame: &impl FrameBuf) -> bool {
        self.expecting.is_some() && self.must_hold(GroupKey::of_frame(frame.head()))
    }

    /// The caller has checked the [capacity](Self::has_capacity).
    pub(crate) fn hold(&mut self, from: PortId, frame: B) {
        self.held.push_back((from, frame));
    }

    /// Takes held frames of one port, oldest first, as many as fit. Returns the port that they came by; `None` if none is held.
    fn take_held(&mut self, into: &mut Batch<B>) -> Option<PortId> {
        let port = self.held.front()?.0;
        while !into.is_full() && self.held.front().is_some_and(|(from, _)| *from == port) {
            into.extend(self.held.pop_front().map(|(_, frame)| frame));
        }
        Some(port)
    }

    /// Capacity for held frames. There is no limit if no group is expected.
    #[inline]
    pub(crate) fn has_capacity(&self, frames: usize) -> bool {
        self.expecting.is_none() || self.held.len() + frames <= self.held_max
    }

    /// Later frames are blocked behind the first.
    #[inline]
    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    pub(crate) fn block(&mut self, now: Nanos, port_index: usize, frame: B) {
        if self.blocked.is_empty() {
            self.blocked_until = now + BLOCKED_MAX;
        }
        self.blocked_port = port_index;
        self.blocked.push(frame);
    }

    /// From the ring of worker `from`.
    #[inline]
    pub(crate) fn count_taken(&mut self, from: usize) {
        self.before_detach[from] = self.before_detach[from].saturating_sub(1);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pending_detach.is_none() && self.pending_barrier.is_none() && self.blocked.is_empty()
    }
}

impl<M: Memory> Worker<M> {
    #[inline]
    pub(crate) fn retry_blocked(&mut self, now: Nanos) {
        if self.moving.has_blocked() && self.moving.has_capacity(BATCH) {
            self.retry(now);
        }
        // Frames that are blocked from here on arrived after the barrier was requested.
        self.moving.was_unblocked |= !self.moving.has_blocked();
    }

    #[cold]
    fn retry(&mut self, now: Nanos) {
        let (port_index, patient) = (self.moving.blocked_port, now < self.moving.blocked_until);
        std::mem::swap(&mut self.batch, &mut self.moving.blocked);
        let until = self.moving.blocked_until;
        let before = self.batch.len();
        self.hand_over(now, port_index, patient);
        if self.moving.blocked.len() == before {
            self.moving.blocked_until = until;
        }
        if let Some(slot) = self.outputs.slots.get(port_index) {
            let id = slot.id;
            self.outputs.set_ingress(Some(id));
            self.engine.process(now, id, &mut self.batch, &mut self.outputs);
        }
    }

    pub(crate) fn expect(&mut self, group: &mut Expected) -> Result<(), InstallError> {
        self.engine.expect(group)?;
        self.moving.expecting = Some(group.keys());
        Ok(())
    }

    /// Drops the held frames.
    pub(crate) fn unexpect(&mut self, group: Option<&Expected>) {
        if let Some(group) = group {
            self.engine.unexpect(group);
        }
        self.moving.expecting = None;
        while let Some((port, _)) = self.moving.held.pop_front() {
            self.outputs.count_drop(port, DropReason::HandOverFull);
        }
    }

    /// Attaches the group, then processes the held frames in order.
    pub(crate) fn attach(
        &mut self,
        now: Nanos,
        group: Context,
        expected: &Expected,
    ) -> Result<(), (InstallError, Context)> {
        self.engine.attach(now, group, expected)?;
        self.stats.counters.groups_in += 1;
        self.moving.expecting = None;
        while let Some(port) = self.moving.take_held(&mut self.batch) {
            self.process_taken(now, port);
            self.outputs.flush();
        }
        self.outputs.set_ingress(None);
        Ok(())
    }

    /// Waits until the frames now in the inbound rings have been processed.
    pub(crate) fn detach(&mut self, now: Nanos, mcst_id: McstId, reply: Sender<Option<Context>>) {
        for (before_detach, ring) in self.moving.before_detach.iter_mut().zip(&self.setup.inbound) {
            *before_detach = ring.len();
        }
        self.moving.pending_detach = Some((mcst_id, now + CATCH_UP, reply));
    }

    pub(crate) fn barrier(&mut self, now: Nanos, catch_up: bool, reply: Sender<()>) {
        self.moving.was_unblocked = !self.moving.has_blocked();
        self.moving.pending_barrier = Some((catch_up, now + CATCH_UP, reply));
    }

    /// Completes pending detaches and barriers. Called after everything of an iteration was sent.
    #[inline]
    pub(crate) fn poll_moves(&mut self, now: Nanos) {
        if !self.moving.is_idle() {
            self.complete_moves(now);
        }
    }

    #[cold]
    fn complete_moves(&mut self, now: Nanos) {
        if let Some((mcst_id, until, reply)) = self.moving.pending_detach.take() {
            let before_detach = self.moving.before_detach.iter().any(|frames| *frames > 0);
            if before_detach || (now < until && self.outputs.pending() > 0) {
                self.moving.pending_detach = Some((mcst_id, until, reply));
            } else {
                let group = self.engine.remove(mcst_id);
                self.stats.counters.groups_out += u64::from(group.is_some());
                let _ = reply.send(group);
            }
        }
        if let Some((catch_up, until, reply)) = self.moving.pending_barrier.take() {
            let crowded = || {
                self.setup
                    .inbound
                    .iter()
                    .any(|ring| 2 * ring.len() > ring.capacity())
            };
            if !self.moving.was_unblocked || (catch_up && now < until && crowded()) {
                self.moving.pending_barrier = Some((catch_up, until, reply));
            } else {
                let _ = reply.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flow control charges the frames of a batch to the port that they came by.
    #[test]
    fn held_frames_are_taken_in_order_and_only_those_of_one_port() {
        let mut moving = MoveState::new(&DataplaneConfig::new("s1", Vec::new()));
        let port = |n: u8| PortId::new(n).expect("a port");
        for (from, count) in [(0, 3), (1, BATCH + 2), (0, 1)] {
            (0..count).for_each(|n| moving.hold(port(from), (from, n)));
        }
        let (mut batch, mut taken) = (Batch::new(), Vec::new());
        while let Some(from) = moving.take_held(&mut batch) {
            taken.push((from, batch.drain(..).collect::<Vec<_>>()));
        }
        let frames = |from: u8, range: std::ops::Range<usize>| {
            (port(from), range.map(|n| (from, n)).collect::<Vec<_>>())
        };
        let expected = [
            frames(0, 0..3),
            frames(1, 0..BATCH),
            frames(1, BATCH..BATCH + 2),
            frames(0, 0..1),
        ];
        assert_eq!(taken, expected);
    }
}
