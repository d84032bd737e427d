//! Runs the events of a simulation.

use castnet_reduce::prefetch;
use castnet_wire::{Batch, FrameBuf, Nanos, Pause, PortId};

use crate::frame::{Frame, Sent};
use crate::link::{Direction, Passage};
use crate::node::{Kind, NodeId, ReceivedFrame, Work};
use crate::queue::Key;
use crate::service::Job;
use crate::shards::Mail;
use crate::simulation::{End, Event, Simulation};
use crate::trace::TraceRecord;
use crate::watch::{Delivery, Hop, View, Watch};

impl<W: Watch> Simulation<W> {
    /// Handles events until `done` returns true (called before each), until `deadline`, or until no event is left.
    pub fn run_until(&mut self, deadline: Nanos, mut done: impl FnMut(&Self) -> bool) -> End {
        loop {
            if done(self) {
                return End::Done;
            }
            if self.next_at(deadline).is_some() {
                self.step(deadline);
            } else if self.queue.earliest().is_none() && self.actions.is_empty() {
                return End::Idle;
            } else {
                self.now = self.now.max(deadline);
                return End::Deadline;
            }
        }
    }

    /// Time of the next event or action, if it is at `limit` or before.
    pub(crate) fn next_at(&mut self, limit: Nanos) -> Option<Nanos> {
        let action = self.actions.keys().next().filter(|key| key.at <= limit);
        let event = self.queue.next(limit);
        event.into_iter().chain(action.copied()).min().map(|key| key.at)
    }

    /// Handles the next event or action, which is at `limit` or before.
    pub(crate) fn step(&mut self, limit: Nanos) {
        if let Some(action) = self.actions.first_entry()
            && self.queue.next(limit).is_none_or(|event| *action.key() < event)
        {
            return self.act();
        }
        let Some((Key { at, .. }, event)) = self.queue.pop() else {
            return;
        };
        self.now = at;
        self.events += 1;
        self.look_ahead();
        match event {
            Event::Arrive {
                direction,
                frame,
                untouched,
            } => self.arrive(direction as usize, frame, untouched),
            Event::Ready(node) => {
                if let Some(host) = self.nodes[node.0].host_mut() {
                    host.ready_waits = false;
                    self.serve_host(node);
                }
            }
            Event::Poll(node) => self.poll_switch(node),
            Event::Left(node) => self.copy_left(node),
            Event::Work(node) => self.work(node),
            Event::Timer(node) => self.timer(node),
        }
    }

    /// The node that handles an event.
    pub(crate) fn recipient(&self, event: &Event) -> NodeId {
        match event {
            Event::Arrive { direction, .. } => self.directions[*direction as usize].to.0,
            Event::Ready(node)
            | Event::Poll(node)
            | Event::Left(node)
            | Event::Work(node)
            | Event::Timer(node) => *node,
        }
    }

    /// Runs the next action.
    fn act(&mut self) {
        let Some(mut first) = self.actions.first_entry() else {
            return;
        };
        let (at, action) = (first.key().at, first.get_mut().pop_front());
        if first.get().is_empty() {
            first.remove();
        }
        self.now = at;
        self.events += 1;
        action.into_iter().for_each(|action| action(self));
    }

    /// Schedules an event that a node creates for itself.
    pub(crate) fn schedule(&mut self, at: Nanos, event: Event) {
        self.queue.push(Key::new(at, self.now, 0), event);
    }

    fn arrive(&mut self, direction: usize, frame: Frame, untouched: bool) {
        let Direction {
            to: (node, port),
            stats,
            profile,
            ..
        } = &mut self.directions[direction];
        let (node, port) = (*node, *port);
        stats.delivered += 1;
        match &mut self.nodes[node.0].kind {
            Kind::Host(host) => {
                let now = self.now;
                let pause = match &host.gate {
                    Some(_) if Pause::is_control(frame.head()) => Pause::parse(frame.head()),
                    _ => None,
                };
                if let (Some(gate), Some(pause)) = (&mut host.gate, &pause) {
                    gate.set_time(now);
                    gate.obey(pause, profile.speed_mbps());
                }
                let icrc_good = frame.is_icrc_good(&mut self.shifts);
                let nodes = &mut self.nodes;
                self.contiguous.with(&frame, |bytes| {
                    let view = View { now, nodes };
                    let delivery = Delivery {
                        to: node,
                        port,
                        frame: bytes,
                        untouched,
                    };
                    self.watch.delivered(&view, delivery);
                    if let Some(host) = nodes[node.0].host_mut().filter(|_| pause.is_none()) {
                        host.endpoint.handle_checked(now, bytes, icrc_good);
                    }
                });
                self.serve_host(node);
            }
            Kind::Switch(switch) if switch.engine.is_none() => switch.missed += 1,
            Kind::Switch(switch) => {
                switch.received.push(ReceivedFrame {
                    port,
                    frame,
                    untouched,
                });
                self.schedule_poll(node);
            }
            Kind::Elsewhere => {}
        }
    }

    fn poll_switch(&mut self, node: NodeId) {
        let now = self.now;
        let mut polled = core::mem::take(&mut self.polled);
        if let Some(switch) = self.nodes[node.0].switch_mut() {
            switch.poll_waits = false;
            if let Some(flow) = &mut switch.flow {
                flow.set_time(now);
            }
            match switch.job() {
                None => core::mem::swap(&mut polled, &mut switch.received),
                Some(Job::Frame) => polled.extend(switch.received.drain(..switch.received.len().min(1))),
                Some(Job::Copy) => self.send_copy(node),
            }
        }
        // Stable: frames of a port keep their order.
        polled.sort_by_key(|received| received.port);
        let mut sent = core::mem::take(&mut self.sent);
        let mut batch = Batch::new();
        let mut frames = polled.drain(..).peekable();
        while let Some(port) = frames.peek().map(|next| next.port) {
            let mut of_port = core::iter::from_fn(|| frames.next_if(|next| next.port == port));
            self.fill_batch(node, port, &mut of_port, &mut batch);
            if let Some(engine) = self.nodes[node.0].switch_mut().and_then(|s| s.engine.as_mut()) {
                engine.process(now, port, &mut batch, &mut sent);
            }
            match self.nodes[node.0].switch().is_some_and(|s| s.service.is_some()) {
                true => self.send_copies(node, &mut sent),
                false => self.send_all(node, Some(port), &mut sent),
            }
        }
        drop(frames);
        self.polled = polled;
        self.sent = sent;
        self.poll_flow(node);
        self.schedule_poll(node);
        self.arm(node);
    }

    /// Takes received frames of a port, until the batch is full.
    fn fill_batch(
        &mut self,
        node: NodeId,
        port: PortId,
        received: &mut impl Iterator<Item = ReceivedFrame>,
        batch: &mut Batch<Frame>,
    ) {
        let now = self.now;
        while !batch.is_full()
            && let Some(ReceivedFrame { frame, untouched, .. }) = received.next()
            && let Some(switch) = self.nodes[node.0].switch_mut()
        {
            let mut is_pause = false;
            if let Some(flow) = &mut switch.flow {
                let out = switch.out[port.index()];
                let speed_mbps = out.and_then(|out| self.directions[out].profile.speed_mbps());
                is_pause = flow.take_pause(now, port, speed_mbps, &frame);
            }
            if W::SEES_FRAMES {
                let nodes = &self.nodes;
                self.contiguous.with(&frame, |frame| {
                    let view = View { now, nodes };
                    let delivery = Delivery {
                        to: node,
                        port,
                        frame,
                        untouched,
                    };
                    self.watch.delivered(&view, delivery);
                });
            }
            if !is_pause {
                batch.push(frame);
            }
        }
    }

    /// Sends what the engine has sent because of frames of a port, or of a timer.
    fn send_all(&mut self, node: NodeId, ingress: Option<PortId>, sent: &mut Sent) {
        let Some(switch) = self.nodes[node.0].switch_mut() else {
            return;
        };
        let mut flow = switch.flow.take();
        for (port, _) in sent.frames.iter().skip(1) {
            let out = self.nodes[node.0].switch().and_then(|s| s.out[port.index()]);
            out.into_iter().for_each(|out| prefetch(&self.directions[out]));
        }
        for (port, frame) in sent.frames.drain(..) {
            let out = self.nodes[node.0].switch().and_then(|s| s.out[port.index()]);
            let Some(direction) = out else { continue };
            let frame = match &mut flow {
                None => Some(frame),
                Some(flow) => {
                    let fits = self.directions[direction].has_capacity(self.now, frame.length());
                    flow.admit(port, ingress, frame, fits)
                }
            };
            if let Some(frame) = frame {
                self.send(direction, frame);
            }
        }
        if let Some(switch) = self.nodes[node.0].switch_mut() {
            switch.flow = flow;
        }
    }

    fn timer(&mut self, node: NodeId) {
        // The old event of a rescheduled timer stays in the queue and is ignored.
        if self.nodes[node.0].timer == Some(self.now) {
            self.nodes[node.0].timer = None;
        }
        if self.nodes[node.0].poll_timeout().is_some_and(|at| at <= self.now) {
            match &mut self.nodes[node.0].kind {
                Kind::Host(host) => {
                    host.endpoint.handle_timeout(self.now);
                    return self.serve_host(node);
                }
                Kind::Switch(switch) => {
                    let mut sent = core::mem::take(&mut self.sent);
                    if let Some(flow) = &mut switch.flow {
                        flow.set_time(self.now);
                    }
                    if let Some(engine) = &mut switch.engine {
                        engine.handle_timeout(self.now, &mut sent);
                    }
                    self.send_all(node, None, &mut sent);
                    self.sent = sent;
                    self.poll_flow(node);
                }
                Kind::Elsewhere => {}
            }
        }
        self.arm(node);
    }

    /// Sends what the host has to send while its link is idle, collects completions, sets its timer.
    pub(crate) fn serve_host(&mut self, node: NodeId) {
        let Some(out) = self.nodes[node.0].host().and_then(|h| h.out) else {
            return;
        };
        // A rank may post work when other work completes.
        loop {
            self.transmit(node, out);
            if !self.collect(node) {
                break;
            }
        }
        let busy_until = self.directions[out].busy_until;
        let Some(host) = self.nodes[node.0].host_mut() else {
            return;
        };
        if busy_until > self.now && !host.ready_waits {
            host.ready_waits = true;
            self.schedule(busy_until, Event::Ready(node));
        }
        self.arm(node);
    }

    fn transmit(&mut self, node: NodeId, out: usize) {
        let now = self.now;
        while self.directions[out].is_idle(now) {
            let Some(host) = self.nodes[node.0].host_mut() else {
                return;
            };
            let waited = host.gate.as_mut().and_then(|gate| {
                gate.set_time(now);
                gate.pop()
            });
            if let Some((_, frame)) = waited {
                self.send(out, frame);
                continue;
            }
            let Some(length) = host.endpoint.poll_transmit(now, &mut self.scratch) else {
                return;
            };
            let frame = Frame::new(&self.scratch[..length]);
            let frame = match &mut host.gate {
                Some(gate) => gate.admit(frame),
                None => Some(frame),
            };
            if let Some(frame) = frame {
                self.send(out, frame);
            }
        }
    }

    /// Collects completed work requests. True if the host's rank reacted to them.
    fn collect(&mut self, node: NodeId) -> bool {
        while let Some(completion) = self.nodes[node.0]
            .host_mut()
            .and_then(|h| h.endpoint.poll_completion())
        {
            let view = View {
                now: self.now,
                nodes: &self.nodes,
            };
            self.watch.completed(&view, node, &completion);
            let takes_time = !self.host_cost.is_zero();
            match self.nodes[node.0].host_mut() {
                Some(host) if host.rank.is_some() && (takes_time || !host.work.is_empty()) => {
                    host.work.push_back(Work::Complete(completion));
                }
                Some(host) if host.rank.is_some() => {
                    if let Some(rank) = &mut host.rank {
                        rank.completed(self.now, &mut host.endpoint, &completion);
                    }
                }
                Some(host) => host.completions.push((self.now, completion)),
                None => {}
            }
        }
        let (now, cost) = (self.now, self.host_cost);
        let Some(host) = self.nodes[node.0].host_mut() else {
            return false;
        };
        let Some(rank) = &mut host.rank else { return false };
        if cost.is_zero() && host.work.is_empty() {
            return rank.carry_out(now, &mut host.endpoint, None);
        }
        // What the rank sends waits for the processor.
        let worked = rank.carry_out(now, &mut host.endpoint, Some(&mut host.work));
        if let Some(duration) = host.begin_work(cost) {
            self.schedule(now + duration, Event::Work(node));
        }
        worked
    }

    fn work(&mut self, node: NodeId) {
        let now = self.now;
        if let Some(host) = self.nodes[node.0].host_mut() {
            host.works = false;
            if let (Some(rank), Some(work)) = (&mut host.rank, host.work.pop_front()) {
                match work {
                    Work::Compute(_) => {}
                    Work::Complete(completion) => rank.completed(now, &mut host.endpoint, &completion),
                    Work::Post(post) => rank.post(now, &mut host.endpoint, post),
                }
            }
        }
        self.serve_host(node);
    }

    /// Inserts a timer event for the node, unless an earlier one exists.
    pub(crate) fn arm(&mut self, node: NodeId) {
        let Some(at) = self.nodes[node.0].poll_timeout().map(|at| at.max(self.now)) else {
            return;
        };
        if self.nodes[node.0].timer.is_none_or(|waiting| at < waiting) {
            self.nodes[node.0].timer = Some(at);
            self.schedule(at, Event::Timer(node));
        }
    }

    pub(crate) fn send(&mut self, number: usize, mut frame: Frame) {
        let direction = &mut self.directions[number];
        let Passage {
            fate,
            arrivals,
            flipped_bit,
        } = direction.pass(self.now, &mut frame, &mut self.rng);
        let ((from, from_port), (to, to_port)) = (direction.from, direction.to);
        let shard = direction.shard;
        if W::SEES_FRAMES {
            let view = View {
                now: self.now,
                nodes: &self.nodes,
            };
            let hop = Hop {
                from,
                from_port,
                to,
                to_port,
            };
            let watch = &mut self.watch;
            self.contiguous
                .with(&frame, |frame| watch.sent(&view, hop, frame, fate));
        }
        if self.trace.is_on() {
            let hop = format!(
                "{}:{from_port} > {}:{to_port}",
                self.nodes[from.0].name, self.nodes[to.0].name
            );
            self.trace.push(TraceRecord {
                at: self.now,
                hop,
                fate,
                frame: frame.to_vec(),
            });
        }
        let arrive = |frame, untouched| Event::Arrive {
            direction: number as u32,
            frame,
            untouched,
        };
        let source = if self.has_chance {
            0
        } else {
            to_port.index() as u8 + 1
        };
        let now = self.now;
        let mut push = |at, event| {
            let key = Key::new(at, now, source);
            match shard {
                None => self.queue.push(key, event),
                Some(shard) => self.outboxes[shard].push(Mail { key, event }),
            }
        };
        // The second copy is never damaged.
        if let Some(at) = arrivals[1] {
            push(at, arrive(frame.clone(), true));
        }
        if let Some(at) = arrivals[0] {
            if let Some(bit) = flipped_bit {
                frame.flip(bit);
            }
            push(at, arrive(frame, flipped_bit.is_none()));
        }
    }
}
