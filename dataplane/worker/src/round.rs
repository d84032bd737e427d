//! One round of a worker's loop: new tables, commands, frames, timers, sending, telling.

use std::sync::atomic::Ordering;

use castnet_engine::destination;
use castnet_port::{BATCH, FrameBuf, HandOver, Memory, Port, RingUse};
use castnet_wire::{DropReason, Nanos, PortId};
use crossbeam::channel::{Sender, TryRecvError, TrySendError};

use crate::command::{Command, PER_ROUND, Sink, Subscriber};
use crate::keeper::Note;
use crate::meter::Part;
use crate::report::{PortNow, Report};
use crate::worker::{Round, Worker};

/// Events that leave the engine in one round.
const TOLD_PER_ROUND: usize = 256;

/// Batches that one port may have taken in a round, while they are full: what a round costs beside its frames is spread over
/// them, and the others wait some microseconds.
const BATCHES_PER_TURN: usize = 4;

impl<M: Memory> Worker<M> {
    pub(crate) fn round(&mut self, now: Nanos) -> Round {
        if self.outputs.meter.begin(self.stats.counters.polls) {
            self.look_at_rings();
        }
        self.take_tables(now);
        let mut work = 0;
        for _ in 0..PER_ROUND {
            match self.commands.try_recv() {
                Ok(command) => {
                    work += 1;
                    self.stats.counters.commands += 1;
                    if let Some(end) = self.carry_out(now, command) {
                        return end;
                    }
                }
                Err(TryRecvError::Empty) => break,
                // Control is gone, and nobody can stop us any more.
                Err(TryRecvError::Disconnected) => return Round::End,
            }
        }
        self.outputs.meter.lap(Part::Other);
        let frames = self.receive(now) + self.take_over(now);
        work += frames;
        if self.receiving && self.engine.poll_timeout().is_some_and(|at| at <= now) {
            self.engine.handle_timeout(now, &mut self.outputs);
            self.outputs.meter.lap(Part::Engine);
        }
        self.outputs.flush();
        self.outputs.meter.lap(Part::Send);
        self.tell();
        self.go_on_moving(now);
        if now >= self.links_at {
            self.look_after_links(now);
        }
        self.outputs.meter.end(frames);
        if work > 0 { Round::Busy } else { Round::Empty }
    }

    fn take_tables(&mut self, now: Nanos) {
        let published = self.published.load();
        let generation = published.generation();
        if generation != self.seen.load(Ordering::Relaxed) {
            self.engine.set_tables(now, published.tables.clone());
            // Control frees older tables once it has read this.
            self.seen.store(generation, Ordering::Release);
        }
    }

    fn receive(&mut self, now: Nanos) -> usize {
        let mut received = 0;
        self.unstick(now);
        for place in 0..self.outputs.slots.len() {
            let slot = &mut self.outputs.slots[place];
            slot.port.poll(now);
            if !slot.receives || !self.receiving {
                continue;
            }
            for _ in 0..BATCHES_PER_TURN {
                let frames = self.receive_batch(now, place);
                received += frames;
                // What is seen of each batch is carried off before the next one, or the engine's queue runs over.
                if self.is_watched() {
                    self.tell_watched();
                }
                if frames < BATCH {
                    break;
                }
            }
        }
        self.outputs.meter.lap(Part::Receive);
        self.stats.counters.frames += received as u64;
        received
    }

    /// Receives a batch from the port at `place`, and has it go through the engine. Returns how many frames it had.
    fn receive_batch(&mut self, now: Nanos, place: usize) -> usize {
        if self.moving.is_stuck() || !self.moving.has_room(BATCH) {
            return 0;
        }
        let slot = &mut self.outputs.slots[place];
        slot.port.receive(&mut self.batch);
        let (id, frames) = (slot.id, self.batch.len());
        if frames == 0 {
            return 0;
        }
        self.stats.batch_sizes[frames] += 1;
        self.outputs.meter.lap(Part::Receive);
        if self.outbound.len() > 1 {
            self.hand_over(now, place, false);
            self.outputs.meter.lap(Part::HandOver);
        }
        self.engine.process(now, id, &mut self.batch, &mut self.outputs);
        self.outputs.meter.lap(Part::Engine);
        frames
    }

    /// Sends what is not this worker's to those whose it is; the rest stays in the batch, in order. Where a ring is full and
    /// frames are to be `patient`, or all are while a group moves, this one and those after it wait.
    pub(crate) fn hand_over(&mut self, now: Nanos, place: usize, patient: bool) {
        let slot = &mut self.outputs.slots[place];
        let published = self.published.load();
        let patient = patient || published.is_patient();
        let mut rung = 0_u64;
        for frame in self.batch.drain(..) {
            if self.moving.is_stuck() {
                self.moving.stick(now, place, frame);
                continue;
            }
            let destination = destination(frame.head());
            let owner = published.owner(destination);
            let ring = match self.outbound.get(owner) {
                Some(ring) if owner != self.index => ring,
                _ if self.moving.wants(destination) => {
                    self.moving.hold(slot.id, frame);
                    continue;
                }
                _ => {
                    self.mine.push(frame);
                    continue;
                }
            };
            match ring.push(slot.id, frame) {
                Ok(()) => {
                    self.stats.counters.handed_over += 1;
                    rung |= 1 << owner;
                }
                Err((DropReason::TxFull, frame)) if patient => self.moving.stick(now, place, frame),
                Err((DropReason::TxFull, _)) => slot.drops[DropReason::HandOverFull] += 1,
                Err((reason, _)) => slot.drops[reason] += 1,
            }
        }
        for (owner, ring) in self.outbound.iter().enumerate() {
            if rung & (1 << owner) != 0 {
                ring.wake();
            }
        }
        std::mem::swap(&mut self.batch, &mut self.mine);
    }

    /// Takes up to a batch from each other worker.
    pub(crate) fn take_over(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for from in 0..self.inbound.len() {
            if from == self.index || self.inbound[from].is_empty() {
                continue;
            }
            let mut batch: Option<PortId> = None;
            for _ in 0..BATCH {
                if !self.moving.has_room(1) {
                    break;
                }
                let Some(popped) = self.inbound[from].pop(&self.memory) else {
                    break;
                };
                taken += 1;
                self.moving.taken(from);
                let (port, frame) = match popped {
                    Ok(frame) => frame,
                    Err((port, reason)) => {
                        self.outputs.count_drop(port, reason);
                        continue;
                    }
                };
                if self.moving.wants_frame(&frame) {
                    self.moving.hold(port, frame);
                    continue;
                }
                if let Some(before) = batch.replace(port).filter(|before| *before != port) {
                    self.process_taken(now, before);
                }
                self.batch.push(frame);
            }
            if let Some(port) = batch {
                self.process_taken(now, port);
            }
        }
        self.outputs.meter.lap(Part::HandOver);
        self.stats.counters.taken_over += taken as u64;
        taken
    }

    fn process_taken(&mut self, now: Nanos, port: PortId) {
        self.outputs.meter.lap(Part::HandOver);
        self.engine.process(now, port, &mut self.batch, &mut self.outputs);
        self.outputs.meter.lap(Part::Engine);
    }

    fn carry_out(&mut self, now: Nanos, command: Command) -> Option<Round> {
        // Whoever asked may have gone; then the answer is dropped.
        match command {
            Command::Go => {}
            Command::Install(group, reply) => drop(reply.send(self.engine.install(group))),
            Command::Remove(mcst_id, reply) => drop(reply.send(self.engine.remove(mcst_id))),
            Command::Status(mcst_id, reply) => drop(reply.send(self.engine.status(mcst_id))),
            Command::Report(mut into, reply) => {
                self.report(now, &mut into);
                let _ = reply.send(into);
            }
            Command::Fdb(mut into, reply) => {
                let room = into.capacity();
                into.extend(self.engine.fdb(now).take(room));
                let _ = reply.send(into);
            }
            Command::Neighbours(mut into, reply) => {
                let room = into.capacity();
                into.extend(self.engine.neighbours(now).take(room));
                let _ = reply.send(into);
            }
            Command::DryRun(mut dry, reply) => {
                self.engine.copy_into(now, &mut dry);
                let _ = reply.send(dry);
            }
            Command::Arm(subscriber, filter, count) => {
                match &subscriber.to {
                    Sink::Traces(_) => self.engine.arm_trace(subscriber.id, filter, count),
                    Sink::Captured(_, length_max) => {
                        self.engine.arm_capture(subscriber.id, filter, *length_max, count);
                    }
                }
                self.subscribers.push(subscriber);
            }
            Command::Disarm(id) => {
                self.engine.disarm(id);
                self.subscribers.retain(|subscriber| subscriber.id != id);
            }
            Command::Expect(mut group, reply) => {
                let answer = self.expect(&mut group);
                let _ = reply.send((answer, group));
            }
            Command::Unexpect(group, reply) => {
                self.unexpect(group.as_deref());
                let _ = reply.send(());
            }
            Command::Detach(mcst_id, reply) => self.detach(now, mcst_id, reply),
            Command::Attach(group, expected, reply) => {
                let answer = self.attach(now, group, &expected);
                let _ = reply.send((answer, expected));
            }
            Command::Settle(catch_up, reply) => self.settle(now, catch_up, reply),
            Command::Sync(reply) => {
                let _ = reply.send(());
            }
            Command::Quiesce(reply) => {
                self.receiving = false;
                self.outputs.flush();
                let _ = reply.send(());
            }
            Command::Drain(reply) => {
                self.drain();
                self.tell();
                let _ = reply.send(());
            }
            Command::End => return Some(Round::End),
        }
        None
    }

    fn report(&mut self, now: Nanos, into: &mut Report) {
        into.at = now;
        self.engine.snapshot(&mut into.counters);
        into.ports.clear();
        into.ports.extend(self.outputs.slots.iter().map(|slot| PortNow {
            stats: slot.port.stats(),
            drops: slot.drops,
            link: slot.watched.then(|| (slot.speed_mbps, slot.port.steering())),
        }));
        into.rings.clear();
        into.rings.extend_from_slice(&self.rings);
        let dropped = self
            .outputs
            .slots
            .iter()
            .map(|slot| slot.drops[DropReason::HandOverFull]);
        self.stats.counters.hand_over_drops = dropped.sum();
        self.stats.clocks = self.outputs.meter.clocks();
        self.stats.groups = self.engine.group_count();
        self.stats.group_memory_bytes = self.engine.group_memory_bytes();
        self.stats.generation = self.seen.load(Ordering::Relaxed);
        self.stats.counters.lost = self.engine.events_lost() + self.engine.taps_lost();
        self.stats.pool = self.memory.stats();
        into.runtime = self.stats;
    }

    /// Remembers how full the rings are that frames are taken from.
    fn look_at_rings(&mut self) {
        let (ports, others) = self.rings.split_at_mut(self.outputs.slots.len());
        for (seen, slot) in ports.iter_mut().zip(&self.outputs.slots) {
            if slot.receives
                && let Some(ring) = slot.port.receive_ring()
            {
                seen.add(ring);
            }
        }
        for (from, (seen, ring)) in others.iter_mut().zip(&self.inbound).enumerate() {
            if from != self.index {
                let (used, size) = (ring.len(), ring.capacity());
                seen.add(RingUse { used, size });
            }
        }
    }

    /// Carries off what the engine has to tell.
    fn tell(&mut self) {
        for _ in 0..TOLD_PER_ROUND {
            let Some(event) = self.engine.pop_event() else {
                break;
            };
            if self.notes.try_send(Note::Event(event)).is_err() {
                self.events_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        if self.is_watched() {
            self.tell_watched();
        }
    }

    fn is_watched(&self) -> bool {
        !self.subscribers.is_empty()
    }

    /// Carries off what waits for subscribers, and how much they lost. Lets those go who have all that they asked for.
    fn tell_watched(&mut self) {
        let engine = &mut self.engine;
        self.subscribers.retain(|Subscriber { id, to, lost }| {
            let full = match to {
                Sink::Traces(to) => pass_on(to, || engine.pop_trace(*id)),
                Sink::Captured(to, _) => pass_on(to, || engine.pop_captured(*id)),
            };
            lost.fetch_add(full + engine.take_tap_lost(*id), Ordering::Relaxed);
            let stays = engine.tap_left(*id) > 0;
            if !stays {
                engine.disarm(*id);
            }
            stays
        });
    }

    fn look_after_links(&mut self, now: Nanos) {
        self.links_at = now + crate::worker::LINK_INTERVAL;
        for slot in self.outputs.slots.iter_mut().filter(|slot| slot.watched) {
            let link @ (up, mtu) = (slot.port.is_up(), slot.port.mtu());
            // Where the keeper has no place for it, we tell it the next time.
            if link != slot.told
                && self
                    .notes
                    .try_send(Note::Link {
                        at: now,
                        port: slot.id,
                        up,
                        mtu,
                    })
                    .is_ok()
            {
                slot.told = link;
                slot.speed_mbps = slot.port.speed_mbps();
            }
        }
    }
}

/// Empties one of the engine's queues into `to`. Returns how many found no place there.
fn pass_on<T>(to: &Sender<T>, mut pop: impl FnMut() -> Option<T>) -> u64 {
    let mut full = 0;
    while let Some(item) = pop() {
        full += u64::from(matches!(to.try_send(item), Err(TrySendError::Full(_))));
    }
    full
}
