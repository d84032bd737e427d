//! A group's way from one worker to another, as the workers see it.
//!
//! Its new worker holds frames of the group back from before the first can come until it has the group. Its old one lets
//! go of it once it has taken over all that was on the way here when the last worker began to hand frames of the group to
//! the new one, and has sent what came of it. While that lasts nobody drops a frame because a ring is full: whoever finds
//! it full keeps what he has and receives no more.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use castnet_engine::{Context, Expected, InstallError, destination};
use castnet_port::{BATCH, Batch, FrameBuf, HandOver, Memory, Port};
use castnet_wire::{DropReason, McstId, Nanos, PortId};
use crossbeam::channel::Sender;

use crate::config::DataplaneConfig;
use crate::worker::Worker;

/// How long a group waits for frames that a port holds back, and control for a worker that has fallen behind.
const CATCH_UP: Nanos = Nanos::from_millis(10);
/// How long a frame waits for a place in a ring. Only a worker that has died makes it wait so long.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// What a worker has under way for groups that move. Control moves one at a time.
pub(crate) struct Moving<B> {
    /// The group that is on its way here.
    expecting: Option<Ipv4Addr>,
    /// Frames of it, oldest first.
    held: VecDeque<(PortId, B)>,
    held_max: usize,
    /// Frames of one port, oldest first, of which the first found a ring full.
    stuck: Batch<B>,
    stuck_place: usize,
    stuck_until: Nanos,
    /// The group that is to leave, and who waits for it.
    leaving: Option<(McstId, Nanos, Sender<Option<Context>>)>,
    /// By worker: frames in its ring that must be taken over before.
    behind: Box<[usize]>,
    /// Who waits until nothing that is stuck now is so any more, and also, if it is asked for, until the rings to here are
    /// not crowded.
    settling: Option<(bool, Nanos, Sender<()>)>,
    /// Whether nothing was stuck at some moment since somebody waits for that.
    clear: bool,
}

impl<B> Moving<B> {
    /// Nothing, with room for all that may come.
    pub(crate) fn new(config: &DataplaneConfig) -> Self {
        // What is held must leave buffers for what comes of it.
        let spare = (config.pool.bodies / 2).min(config.pool.buffers / 4);
        let held_max = config.hold.min(spare).max(2 * BATCH);
        Self {
            expecting: None,
            held: VecDeque::with_capacity(held_max),
            held_max,
            stuck: Batch::new(),
            stuck_place: 0,
            stuck_until: Nanos::ZERO,
            leaving: None,
            behind: vec![0; config.workers.len()].into(),
            settling: None,
            clear: true,
        }
    }

    /// Whether a frame to `destination` must wait for its group.
    #[inline]
    pub(crate) fn wants(&self, destination: Option<Ipv4Addr>) -> bool {
        self.expecting.is_some() && self.expecting == destination
    }

    /// The same for a frame whose destination nobody has looked at yet.
    #[inline]
    pub(crate) fn wants_frame(&self, frame: &impl FrameBuf) -> bool {
        self.expecting.is_some() && self.expecting == destination(frame.head())
    }

    /// Keeps a frame for its group. There must be [room](Self::has_room).
    pub(crate) fn hold(&mut self, from: PortId, frame: B) {
        self.held.push_back((from, frame));
    }

    /// Whether so many frames can be held, where any are.
    #[inline]
    pub(crate) fn has_room(&self, frames: usize) -> bool {
        self.expecting.is_none() || self.held.len() + frames <= self.held_max
    }

    /// Whether a frame waits for a ring: then all after it do.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// Keeps a frame of the port at `place` until a ring has room.
    pub(crate) fn stick(&mut self, now: Nanos, place: usize, frame: B) {
        if self.stuck.is_empty() {
            self.stuck_until = now + PATIENCE;
        }
        self.stuck_place = place;
        self.stuck.push(frame);
    }

    /// Counts a frame that was taken over.
    #[inline]
    pub(crate) fn taken(&mut self, from: usize) {
        self.behind[from] = self.behind[from].saturating_sub(1);
    }

    /// Whether nothing is under way that goes on without being woken for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.leaving.is_none() && self.settling.is_none() && self.stuck.is_empty()
    }
}

impl<M: Memory> Worker<M> {
    /// Tries again with frames that wait for a ring.
    #[inline]
    pub(crate) fn unstick(&mut self, now: Nanos) {
        if self.moving.is_stuck() && self.moving.has_room(BATCH) {
            self.try_again(now);
        }
        // What gets stuck from here on came later.
        self.moving.clear |= !self.moving.is_stuck();
    }

    #[cold]
    fn try_again(&mut self, now: Nanos) {
        let (place, patient) = (self.moving.stuck_place, now < self.moving.stuck_until);
        std::mem::swap(&mut self.batch, &mut self.moving.stuck);
        let until = self.moving.stuck_until;
        let before = self.batch.len();
        self.hand_over(now, place, patient);
        if self.moving.stuck.len() == before {
            self.moving.stuck_until = until;
        }
        if let Some(slot) = self.outputs.slots.get(place) {
            let id = slot.id;
            self.engine.process(now, id, &mut self.batch, &mut self.outputs);
        }
    }

    /// A group is about to be moved here.
    pub(crate) fn expect(&mut self, group: &mut Expected) -> Result<(), InstallError> {
        self.engine.expect(group)?;
        self.moving.expecting = Some(group.mcst_id().0);
        Ok(())
    }

    /// It will not come. What was held for it ends here.
    pub(crate) fn unexpect(&mut self, group: Option<&Expected>) {
        if let Some(group) = group {
            self.engine.unexpect(group);
        }
        self.moving.expecting = None;
        while let Some((port, _)) = self.moving.held.pop_front() {
            self.outputs.count_drop(port, DropReason::HandOverFull);
        }
    }

    /// It is here: what was held for it goes on, in order.
    pub(crate) fn attach(
        &mut self,
        now: Nanos,
        group: Context,
        expected: &Expected,
    ) -> Result<(), (InstallError, Context)> {
        self.engine.attach(now, group, expected)?;
        self.stats.counters.groups_in += 1;
        self.moving.expecting = None;
        let mut port = None;
        while let Some((from, frame)) = self.moving.held.pop_front() {
            if let Some(before) = port.replace(from).filter(|p| *p != from || self.batch.is_full()) {
                self.engine
                    .process(now, before, &mut self.batch, &mut self.outputs);
                self.outputs.flush();
            }
            self.batch.push(frame);
        }
        if let Some(port) = port {
            self.engine.process(now, port, &mut self.batch, &mut self.outputs);
        }
        Ok(())
    }

    /// A group is to leave, once what is on its way here by now has been taken over.
    pub(crate) fn detach(&mut self, now: Nanos, mcst_id: McstId, reply: Sender<Option<Context>>) {
        for (behind, ring) in self.moving.behind.iter_mut().zip(&self.inbound) {
            *behind = ring.len();
        }
        self.moving.leaving = Some((mcst_id, now + CATCH_UP, reply));
    }

    /// Control waits until nothing is stuck here and, where this worker is to `catch_up`, until it has.
    pub(crate) fn settle(&mut self, now: Nanos, catch_up: bool, reply: Sender<()>) {
        self.moving.clear = !self.moving.is_stuck();
        self.moving.settling = Some((catch_up, now + CATCH_UP, reply));
    }

    /// Answers what can be answered by now, after all of a round was sent.
    #[inline]
    pub(crate) fn go_on_moving(&mut self, now: Nanos) {
        if !self.moving.is_idle() {
            self.answer(now);
        }
    }

    #[cold]
    fn answer(&mut self, now: Nanos) {
        if let Some((mcst_id, until, reply)) = self.moving.leaving.take() {
            let behind = self.moving.behind.iter().any(|frames| *frames > 0);
            let pending = || self.outputs.slots.iter().any(|slot| slot.port.pending() > 0);
            if behind || (now < until && pending()) {
                self.moving.leaving = Some((mcst_id, until, reply));
            } else {
                let group = self.engine.remove(mcst_id);
                self.stats.counters.groups_out += u64::from(group.is_some());
                let _ = reply.send(group);
            }
        }
        if let Some((catch_up, until, reply)) = self.moving.settling.take() {
            let crowded = || self.inbound.iter().any(|ring| 2 * ring.len() > ring.capacity());
            if !self.moving.clear || (catch_up && now < until && crowded()) {
                self.moving.settling = Some((catch_up, until, reply));
            } else {
                let _ = reply.send(());
            }
        }
    }
}
