//! One iteration of a worker's loop: tables, commands, frames, timers, sending, events.

use std::sync::atomic::Ordering;

use castnet_engine::GroupKey;
use castnet_port::{BATCH, FrameBuf, HandOver, Memory, Port, RingUse};
use castnet_wire::{CounterSet, DropReason, Nanos, Pause, PortId};
use crossbeam::channel::{Sender, TryRecvError, TrySendError};

use crate::command::{Command, PER_ITERATION, Sink, Subscriber};
use crate::housekeeping::Note;
use crate::meter::Part;
use crate::report::{PortNow, Report};
use crate::worker::{Iteration, Worker};

const EVENTS_PER_ITERATION: usize = 256;
/// Several batches amortize the fixed cost of an iteration. The other ports wait some microseconds.
const BATCHES_PER_ITERATION: usize = 4;

impl<M: Memory> Worker<M> {
    pub(crate) fn iterate(&mut self, now: Nanos) -> Iteration {
        if self.outputs.meter.begin(self.stats.counters.polls) {
            self.sample_rings();
        }
        self.take_tables(now);
        self.engine.begin_iteration();
        self.outputs.poll_pfc(now);
        let mut work = 0;
        for _ in 0..PER_ITERATION {
            match self.setup.commands.try_recv() {
                Ok(command) => {
                    work += 1;
                    self.stats.counters.commands += 1;
                    if let Some(end) = self.execute(now, command) {
                        return end;
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Iteration::End,
            }
        }
        self.outputs.meter.lap(Part::Other);
        let frames = self.receive(now) + self.take_over(now);
        work += frames;
        self.outputs.set_ingress(None);
        if self.receiving && self.engine.poll_timeout().is_some_and(|at| at <= now) {
            self.engine.handle_timeout(now, &mut self.outputs);
            self.outputs.meter.lap(Part::Engine);
        }
        self.outputs.flush();
        self.wake_owners();
        self.outputs.meter.lap(Part::Send);
        self.send_events();
        self.poll_moves(now);
        if now >= self.next_link_check {
            self.check_links(now);
        }
        self.outputs.meter.end(frames);
        if work > 0 {
            Iteration::Busy
        } else {
            Iteration::Empty
        }
    }

    fn take_tables(&mut self, now: Nanos) {
        let published = self.published.load();
        let generation = published.generation();
        if generation != self.setup.generation_in_use.load(Ordering::Relaxed) {
            self.engine.set_tables(now, published.tables.clone());
            // Control frees older tables after it reads this generation.
            self.setup.generation_in_use.store(generation, Ordering::Release);
        }
    }

    fn receive(&mut self, now: Nanos) -> usize {
        let mut received = 0;
        self.retry_blocked(now);
        for port_index in 0..self.outputs.slots.len() {
            let slot = &mut self.outputs.slots[port_index];
            slot.port.poll(now);
            if !slot.receives || !self.receiving {
                continue;
            }
            for _ in 0..BATCHES_PER_ITERATION {
                let frames = self.receive_batch(now, port_index);
                received += frames;
                // Empty the engine's tap queues before the next batch, or they overflow.
                if self.has_subscribers() {
                    self.send_taps();
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

    /// Receives a batch and processes it. Returns the number of frames.
    fn receive_batch(&mut self, now: Nanos, port_index: usize) -> usize {
        if self.moving.has_blocked() || !self.moving.has_capacity(BATCH) {
            return 0;
        }
        let slot = &mut self.outputs.slots[port_index];
        slot.port.receive(&mut self.batch);
        let (id, frames) = (slot.id, self.batch.len());
        if frames == 0 {
            return 0;
        }
        self.stats.batch_sizes[frames] += 1;
        if self.outputs.pfc_slots >> port_index & 1 != 0 {
            self.take_pauses(now, port_index);
        }
        self.outputs.meter.lap(Part::Receive);
        if self.setup.outbound.len() > 1 {
            self.hand_over(now, port_index, false);
            self.outputs.meter.lap(Part::HandOver);
        }
        self.outputs.set_ingress(Some(id));
        self.engine.process(now, id, &mut self.batch, &mut self.outputs);
        self.outputs.meter.lap(Part::Engine);
        frames
    }

    /// Takes PFC frames of lossless classes out of the batch. Other MAC control frames stay in it: the engine drops and counts them.
    fn take_pauses(&mut self, now: Nanos, port_index: usize) {
        let (slot, Some(pfc)) = (&self.outputs.slots[port_index], &self.outputs.pfc) else {
            return;
        };
        if !self.batch.iter().any(|frame| Pause::is_control(frame.head())) {
            return;
        }
        let config = self.setup.config.ports.get(port_index);
        let classes = config.and_then(|port| port.pfc.as_ref()).map(|pfc| pfc.classes);
        let classes = classes.unwrap_or_default();
        self.batch.retain(|frame| match Pause::parse(frame.head()) {
            Some(pause) if classes.iter().any(|class| pause.of(class).is_some()) => {
                pfc.received(port_index, now, slot.speed_mbps, &pause);
                false
            }
            _ => true,
        });
    }

    /// Wakes the owners of ports that must send PAUSE, or end one.
    fn wake_owners(&mut self) {
        let mut wakes = self.outputs.pfc.as_mut().map_or(0, |pfc| pfc.wakes());
        while wakes != 0 {
            let owner = wakes.trailing_zeros() as usize;
            wakes &= wakes - 1;
            if let Some(ring) = self
                .setup
                .outbound
                .get(owner)
                .filter(|_| owner != self.setup.index)
            {
                ring.wake();
            }
        }
    }

    /// Hands frames of other workers over. The rest stays in the batch, in order. If a ring is full, the frame and all
    /// after it are blocked when `patient` is set or a group is being moved. Otherwise the frame is dropped.
    pub(crate) fn hand_over(&mut self, now: Nanos, port_index: usize, patient: bool) {
        let published = self.published.load();
        let patient = patient || published.patient;
        // With one port, there is nobody to leave a part to.
        let whole = patient
            || self
                .outputs
                .slots
                .iter()
                .filter(|slot| slot.receives)
                .nth(1)
                .is_none();
        let slot = &mut self.outputs.slots[port_index];
        // What this port may still push for one owner.
        let (mut sharing, mut share) = (usize::MAX, 0);
        let mut woken = 0_u64;
        for frame in self.batch.drain(..) {
            if self.moving.has_blocked() {
                self.moving.block(now, port_index, frame);
                continue;
            }
            let key = GroupKey::of_frame(frame.head());
            let owner = published.owner(key);
            let ring = match self.setup.outbound.get(owner) {
                Some(ring) if owner != self.setup.index => ring,
                _ if self.moving.must_hold(key) => {
                    self.moving.hold(slot.id, frame);
                    continue;
                }
                _ => {
                    self.own_frames.push(frame);
                    continue;
                }
            };
            if sharing != owner {
                (sharing, share) = (owner, if whole { usize::MAX } else { ring.share(slot.id) });
            }
            let pushed = match share {
                0 => Err((DropReason::TxFull, frame)),
                _ => ring.push(slot.id, frame),
            };
            match pushed {
                Ok(()) => {
                    share -= 1;
                    self.stats.counters.handed_over += 1;
                    woken |= 1 << owner;
                }
                Err((DropReason::TxFull, frame)) if patient => self.moving.block(now, port_index, frame),
                Err((DropReason::TxFull, _)) => slot.drops[DropReason::HandOverFull] += 1,
                Err((reason, _)) => slot.drops[reason] += 1,
            }
        }
        for (owner, ring) in self.setup.outbound.iter().enumerate() {
            if woken & (1 << owner) != 0 {
                ring.wake();
            }
        }
        std::mem::swap(&mut self.batch, &mut self.own_frames);
    }

    /// Processes up to a batch from each other worker's ring.
    pub(crate) fn take_over(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for from in 0..self.setup.inbound.len() {
            if from == self.setup.index || self.setup.inbound[from].is_empty() {
                continue;
            }
            let mut batch: Option<PortId> = None;
            for _ in 0..BATCH {
                if !self.moving.has_capacity(1) {
                    break;
                }
                let Some(popped) = self.setup.inbound[from].pop(&self.memory) else {
                    break;
                };
                taken += 1;
                self.moving.count_taken(from);
                let (port, frame) = match popped {
                    Ok(frame) => frame,
                    Err((port, reason)) => {
                        self.outputs.count_drop(port, reason);
                        continue;
                    }
                };
                if self.moving.must_hold_frame(&frame) {
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

    pub(crate) fn process_taken(&mut self, now: Nanos, port: PortId) {
        self.outputs.meter.lap(Part::HandOver);
        self.outputs.set_ingress(Some(port));
        self.engine.process(now, port, &mut self.batch, &mut self.outputs);
        self.outputs.meter.lap(Part::Engine);
    }

    fn execute(&mut self, now: Nanos, command: Command) -> Option<Iteration> {
        // A reply is dropped if the caller is gone.
        match command {
            Command::Go => {}
            Command::Install(group, reply) => drop(reply.send(self.engine.install(now, group))),
            Command::Remove(mcst_id, reply) => drop(reply.send(self.engine.remove(mcst_id))),
            Command::Status(mcst_id, reply) => drop(reply.send(self.engine.status(mcst_id))),
            Command::Report(mut into, reply) => {
                self.report(now, &mut into);
                let _ = reply.send(into);
            }
            Command::Fdb(mut into, reply) => {
                let capacity = into.capacity();
                into.extend(self.engine.fdb(now).take(capacity));
                let _ = reply.send(into);
            }
            Command::Neighbours(mut into, reply) => {
                let capacity = into.capacity();
                into.extend(self.engine.neighbours(now).take(capacity));
                let _ = reply.send(into);
            }
            Command::DryRun(mut dry, reply) => {
                self.engine.copy_into(now, &mut dry);
                let _ = reply.send(dry);
            }
            Command::Arm(subscriber, filter, count) => {
                match &subscriber.to {
                    Sink::Traces(_) => self.engine.taps.arm_trace(subscriber.id, filter, count),
                    Sink::Captured(_, length_max) => {
                        self.engine
                            .taps
                            .arm_capture(subscriber.id, filter, *length_max, count);
                    }
                }
                self.subscribers.push(subscriber);
            }
            Command::Disarm(id) => {
                self.engine.taps.disarm(id);
                self.subscribers.retain(|subscriber| subscriber.id != id);
            }
            Command::Transmit(frames, reply) => {
                for (port, frame) in &frames {
                    self.engine.transmit(*port, frame, &mut self.outputs);
                }
                let _ = reply.send(frames);
            }
            Command::CountDrop(port, reason) => self.outputs.count_drop(port, reason),
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
            Command::Barrier(catch_up, reply) => self.barrier(now, catch_up, reply),
            Command::Sync(reply) => {
                // What was published before it is in use when it is answered.
                self.take_tables(now);
                let _ = reply.send(());
            }
            Command::Quiesce(reply) => {
                self.receiving = false;
                self.outputs.flush();
                let _ = reply.send(());
            }
            Command::Drain(reply) => {
                self.drain();
                self.send_events();
                let _ = reply.send(());
            }
            Command::End => return Some(Iteration::End),
        }
        None
    }

    fn report(&mut self, now: Nanos, into: &mut Report) {
        into.at = now;
        self.engine.snapshot(&mut into.counters);
        into.ports.clear();
        into.ports.extend(self.outputs.slots.iter().map(|slot| PortNow {
            stats: {
                let mut stats = slot.port.stats();
                stats.drops.add(&slot.unsent);
                stats
            },
            drops: slot.drops,
            link: slot.reports_link.then(|| {
                let port = &slot.port;
                (slot.speed_mbps, port.steering(), port.segmentation())
            }),
        }));
        into.rings.clear();
        into.rings.extend_from_slice(&self.rings);
        let slots = self.outputs.slots.iter();
        let dropped = slots.map(|slot| slot.drops[DropReason::HandOverFull]);
        self.stats.counters.hand_over_drops = dropped.sum();
        self.stats.clocks = self.outputs.meter.clocks();
        self.stats.groups = self.engine.group_count();
        self.stats.group_memory_bytes = self.engine.group_memory_bytes();
        self.stats.generation = self.setup.generation_in_use.load(Ordering::Relaxed);
        self.stats.counters.lost = self.engine.events_lost() + self.engine.taps.lost();
        self.stats.pool = self.memory.stats();
        into.runtime = self.stats;
    }

    fn sample_rings(&mut self) {
        let (ports, others) = self.rings.split_at_mut(self.outputs.slots.len());
        for (occupancy, slot) in ports.iter_mut().zip(&self.outputs.slots) {
            if slot.receives
                && let Some(ring) = slot.port.receive_ring()
            {
                occupancy.add(ring);
            }
        }
        for (from, (occupancy, ring)) in others.iter_mut().zip(&self.setup.inbound).enumerate() {
            if from != self.setup.index {
                let (used, size) = (ring.len(), ring.capacity());
                occupancy.add(RingUse { used, size });
            }
        }
    }

    fn send_events(&mut self) {
        for _ in 0..EVENTS_PER_ITERATION {
            let Some(event) = self.engine.pop_event() else {
                break;
            };
            if self.setup.notes.try_send(Note::Event(event)).is_err() {
                self.setup.events_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        // While control is behind, packets stay in the engine's queue, which drops and counts what it cannot hold.
        while !self.setup.registrations.is_full()
            && let Some(frame) = self.engine.pop_registration()
        {
            let _ = self.setup.registrations.try_send(frame);
        }
        if self.has_subscribers() {
            self.send_taps();
        }
    }

    fn has_subscribers(&self) -> bool {
        !self.subscribers.is_empty()
    }

    /// Removes subscribers that have received all requested frames.
    fn send_taps(&mut self) {
        let engine = &mut self.engine;
        self.subscribers.retain(|Subscriber { id, to, lost }| {
            let full = match to {
                Sink::Traces(to) => forward(to, || engine.taps.pop_trace(*id)),
                Sink::Captured(to, _) => forward(to, || engine.taps.pop_captured(*id)),
            };
            let (full_before, skipped) = engine.taps.take_lost(*id);
            lost.skipped.fetch_add(skipped, Ordering::Relaxed);
            lost.full.fetch_add(full + full_before, Ordering::Release);
            let active = engine.taps.left(*id) > 0;
            if !active {
                engine.taps.disarm(*id);
            }
            active
        });
    }

    fn check_links(&mut self, now: Nanos) {
        self.next_link_check = now + crate::worker::LINK_INTERVAL;
        for slot in self.outputs.slots.iter_mut().filter(|slot| slot.reports_link) {
            // Another thread may learn it after the link has changed.
            slot.speed_mbps = slot.port.speed_mbps();
            let link @ (up, mtu) = (slot.port.is_up(), slot.port.mtu());
            if link == slot.reported_link {
                continue;
            }
            let (at, port) = (now, slot.id);
            // If the queue is full, report at the next check.
            if self
                .setup
                .notes
                .try_send(Note::Link { at, port, up, mtu })
                .is_ok()
            {
                slot.reported_link = link;
            }
        }
    }
}

/// Returns how many items of the engine's queue were lost because `to` was full.
fn forward<T>(to: &Sender<T>, mut pop: impl FnMut() -> Option<T>) -> u64 {
    let mut lost = 0;
    while let Some(item) = pop() {
        lost += u64::from(matches!(to.try_send(item), Err(TrySendError::Full(_))));
    }
    lost
}
