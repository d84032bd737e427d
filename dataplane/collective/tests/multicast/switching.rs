//! Groups whose source changes: trees of machines with hosts that count their own PSNs, in an unfair network. M1 to M3 hold, all hosts get
//! the same packets in the same order. No host changes its PSNs, or, with the numbers of the group, hosts synchronize them when the source
//! changes (Cepheus III.E). The same with switches that repair.

mod properties;

use crate::common::hosts::{Receiver, Source};
use crate::common::tree::{Shape, TICK, TICKS_MAX};
use crate::common::{path, paths};
use castnet_collective::path::Paths;
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, PathId, RepairConfig, Signal};
use castnet_wire::{AnySource, DropReason, NakCode, Nanos, Psn, Syndrome};

/// Packets of a message.
const MESSAGE: i64 = 3;

/// A packet that a host has sent: the host, and its position among those of this host.
type Content = (usize, i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Host(usize),
    Switch { index: usize, path: usize },
}

#[derive(Clone, Copy, Debug)]
enum Packet {
    Data {
        psn: Psn,
        ack_request: bool,
        content: Content,
    },
    Feedback {
        psn: Psn,
        msn: u32,
        syndrome: Syndrome,
    },
    Signal {
        signal: Signal,
        psn: Psn,
        epoch: u32,
    },
}

struct Node {
    machine: Multicast,
    peers: Vec<Peer>,
    /// By path, the newest position of the group that was acknowledged from there.
    acked: Vec<i64>,
    newest: i64,
    /// What is in the slots, where the switch repairs: PSN of the group, AckReq, content.
    ring: Vec<Option<(Psn, bool, Content)>>,
}

struct Host {
    source: Source,
    receiver: Receiver,
    log: Vec<Content>,
    /// After an RNR NAK, until its time has passed.
    rests: bool,
    /// With the numbers of the group: what is added to its positions of packets that it sends and receives.
    offsets: [i64; 2],
    /// It was the last to send, and has not synchronized the PSN that it expects.
    holds: bool,
}

impl Host {
    /// The new source takes the PSN that it expects for those that it sends.
    fn begin_turn(&mut self) {
        if !self.holds {
            self.offsets[0] = self.receiver.expected + self.offsets[1] - self.source.total;
            self.holds = true;
        }
    }

    /// The old source expects the PSN that it would send next.
    fn end_turn(&mut self) {
        if self.holds && self.source.unacked == self.source.total {
            self.offsets[1] = self.source.total + self.offsets[0] - self.receiver.expected;
            self.receiver.reset();
            self.holds = false;
        }
    }
}

/// What happens next; `pick` chooses among the packets in flight, hosts or turns.
#[derive(Clone, Copy, Debug)]
enum Chance {
    Send {
        pick: usize,
    },
    Deliver {
        pick: usize,
    },
    Lose {
        pick: usize,
    },
    Duplicate {
        pick: usize,
    },
    TimeOut {
        pick: usize,
    },
    /// The next turn begins, whether its host has received everything or not.
    Begin,
    /// The timer of a switch.
    Tick {
        pick: usize,
    },
}

struct Net {
    start: Psn,
    numbers: AnySource,
    ack_every: i64,
    nodes: Vec<Node>,
    hosts: Vec<Host>,
    in_flight: Vec<(Peer, Packet)>,
    /// Hosts that send one after the other, with the number of messages.
    turns: Vec<(usize, i64)>,
    begun: usize,
    conflicts: usize,
    time_outs: usize,
    now: Nanos,
    /// Packets that switches have repeated.
    resent: usize,
}

impl Net {
    fn new(
        shape: &Shape,
        (start, numbers): (Psn, AnySource),
        ack_every: i64,
        turns: &[(usize, i64)],
    ) -> Self {
        let mut net = Self {
            start,
            numbers,
            ack_every,
            nodes: Vec::new(),
            hosts: Vec::new(),
            in_flight: Vec::new(),
            turns: Vec::new(),
            begun: 0,
            conflicts: 0,
            time_outs: 0,
            now: Nanos::ZERO,
            resent: 0,
        };
        net.plant(shape, None);
        let hosts = net.hosts.len();
        net.turns = turns
            .iter()
            .map(|(host, messages)| (host % hosts, *messages))
            .collect();
        net
    }

    /// All switches repair with so many slots. `selective`: hosts repeat one packet after a NAK.
    fn repairing(mut self, slots: u16, selective: bool) -> Self {
        let is_switch = |(_, peer): &(usize, &Peer)| matches!(peer, Peer::Switch { .. });
        for node in &mut self.nodes {
            node.machine = node.machine.clone().with_repair(RepairConfig {
                slots,
                tick: TICK,
                switches: paths(
                    node.peers
                        .iter()
                        .enumerate()
                        .filter(is_switch)
                        .map(|(path, _)| path),
                ),
            });
            node.ring = vec![None; slots.into()];
        }
        self.hosts
            .iter_mut()
            .for_each(|host| host.source.selective = selective);
        self
    }

    /// Adds a switch and all below it. Returns its index, and whether host 0 is below it.
    fn plant(&mut self, shape: &Shape, parent: Option<Peer>) -> (usize, bool) {
        let Shape::Switch(below) = shape else {
            panic!("the root is a switch")
        };
        let (index, first) = (self.nodes.len(), usize::from(parent.is_some()));
        let count = below.len() + first;
        let config = |source: usize| MulticastConfig {
            paths: count as u16,
            source: path(source as u8),
            start_psn: Some(self.start),
            stall_timeout: Nanos::ZERO,
        };
        let machine = Multicast::new(config(0));
        self.nodes.push(Node {
            machine,
            peers: parent.into_iter().collect(),
            acked: vec![-1; count],
            newest: -1,
            ring: Vec::new(),
        });
        let (mut source, mut hosts) = (None, Vec::new());
        for (at, child) in below.iter().enumerate() {
            let path = at + first;
            let peer = match child {
                Shape::Host => {
                    let host = self.hosts.len();
                    hosts.push(PathId::new(path).expect("few paths"));
                    if host == 0 {
                        source = Some(path);
                    }
                    self.hosts.push(Host {
                        source: Source::new(0),
                        receiver: Receiver::default(),
                        log: Vec::new(),
                        rests: false,
                        offsets: [0; 2],
                        holds: false,
                    });
                    Peer::Host(host)
                }
                Shape::Switch(_) => {
                    let (child, has_source) = self.plant(child, Some(Peer::Switch { index, path }));
                    if has_source {
                        source = Some(path);
                    }
                    Peer::Switch {
                        index: child,
                        path: 0,
                    }
                }
            };
            self.nodes[index].peers.push(peer);
        }
        let config = MulticastConfig {
            paths: count as u16,
            source: path(source.unwrap_or(0) as u8),
            start_psn: Some(self.start),
            stall_timeout: Nanos::ZERO,
        };
        self.nodes[index].machine = Multicast::new(config).with_switching(self.numbers, hosts);
        (index, source.is_some())
    }

    fn step(&mut self, chance: Chance) -> Result<(), String> {
        let (flying, hosts) = (self.in_flight.len(), self.hosts.len());
        match chance {
            Chance::Send { pick } => self.send(pick % hosts),
            Chance::TimeOut { pick } => {
                let host = &mut self.hosts[pick % hosts];
                if !core::mem::take(&mut host.rests) {
                    host.source.time_out();
                }
            }
            Chance::Deliver { pick } if flying > 0 => {
                let (peer, packet) = self.in_flight.remove(pick % flying);
                return self.deliver(peer, packet);
            }
            Chance::Lose { pick } if flying > 0 => {
                self.in_flight.remove(pick % flying);
            }
            Chance::Duplicate { pick } if flying > 0 => self.in_flight.push(self.in_flight[pick % flying]),
            Chance::Begin => self.begin(),
            Chance::Tick { pick } => return self.tick(pick % self.nodes.len()),
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, index: usize) -> Result<(), String> {
        self.now += TICK;
        self.handle_timeout(index)
    }

    fn begin(&mut self) {
        if let Some((host, messages)) = self.turns.get(self.begun) {
            let host = &mut self.hosts[*host];
            if self.numbers == AnySource::Synchronized {
                host.begin_turn();
            }
            host.source.total += messages * MESSAGE;
            self.begun += 1;
        }
    }

    /// Begins the next turn, if its host has received everything that was sent before.
    fn begin_in_order(&mut self) {
        if let Some((host, _)) = self.turns.get(self.begun) {
            let before: i64 = self.hosts.iter().map(|host| host.source.total).sum();
            let next = &self.hosts[*host];
            if next.log.len() as i64 + next.source.total == before {
                self.begin();
            }
        }
    }

    /// A fair network from here on.
    fn finish(&mut self, in_order: bool) -> Result<(), String> {
        let (mut ticks, mut unacked) = (0, 0);
        for _ in 0..100_000 {
            match in_order {
                true => self.begin_in_order(),
                false => self.begin(),
            }
            if !self.in_flight.is_empty() {
                let (peer, packet) = self.in_flight.remove(0);
                self.deliver(peer, packet)?;
                let acknowledged = self.hosts.iter().map(|host| host.source.unacked).sum();
                if core::mem::replace(&mut unacked, acknowledged) != acknowledged {
                    ticks = 0;
                }
                continue;
            }
            let idle = |host: &Host| host.source.unacked == host.source.total;
            if self.begun == self.turns.len() && self.hosts.iter().all(idle) {
                return self.check_logs();
            }
            (0..self.hosts.len()).for_each(|host| self.send(host));
            if self.in_flight.is_empty() && !self.nodes[0].ring.is_empty() && ticks < TICKS_MAX {
                ticks += 1;
                (0..self.nodes.len()).try_for_each(|index| self.tick(index))?;
                continue;
            }
            let rests = |host: &mut Host| core::mem::take(&mut host.rests);
            if self.in_flight.is_empty()
                && self
                    .hosts
                    .iter_mut()
                    .filter_map(|h| rests(h).then_some(()))
                    .count()
                    == 0
            {
                (self.time_outs, ticks) = (self.time_outs + 1, 0);
                self.hosts.iter_mut().for_each(|host| host.source.time_out());
                self.time_out_switches()?;
            }
        }
        Err("it never ends".into())
    }

    fn send(&mut self, host: usize) {
        self.hosts[host].end_turn();
        let Host {
            source,
            rests,
            offsets,
            ..
        } = &mut self.hosts[host];
        if let (false, Some(at)) = (*rests, source.send()) {
            let ack_request = (at + 1) % self.ack_every == 0 || at + 1 == source.total;
            let psn = self.start.add((at + offsets[0]) as i32);
            let content = (host, at);
            let to = self.switch_of(host);
            self.in_flight.push((
                to,
                Packet::Data {
                    psn,
                    ack_request,
                    content,
                },
            ));
        }
    }

    fn deliver(&mut self, peer: Peer, packet: Packet) -> Result<(), String> {
        match (peer, packet) {
            (Peer::Host(host), Packet::Feedback { psn, msn, syndrome }) => {
                let at = self.at(psn) - self.hosts[host].offsets[0];
                self.believe(host, at, msn, syndrome)?;
                self.hosts[host].source.feedback(at, syndrome);
                self.hosts[host].rests = matches!(syndrome, Syndrome::RnrNak(_));
            }
            (
                Peer::Host(host),
                Packet::Data {
                    psn,
                    ack_request,
                    content,
                },
            ) => {
                let offset = self.hosts[host].offsets[1];
                let at = self.at(psn) - offset;
                let receiver = &mut self.hosts[host].receiver;
                let before = receiver.expected;
                let answer = receiver.data(at, ack_request);
                if receiver.expected != before {
                    self.take(host, content)?;
                }
                if let Some((at, syndrome)) = answer {
                    let psn = self.start.add((at + offset) as i32);
                    let msn = self.messages(host) as u32;
                    let to = self.switch_of(host);
                    self.in_flight.push((to, Packet::Feedback { psn, msn, syndrome }));
                }
            }
            (Peer::Switch { index, path }, packet) => self.switch(index, path, packet)?,
            (peer, packet) => return Err(format!("{packet:?} to {peer:?}")),
        }
        Ok(())
    }

    /// A host accepts a packet: each once, in the order of its sender, and whole messages.
    fn take(&mut self, host: usize, content: Content) -> Result<(), String> {
        let (sender, at) = content;
        let log = &self.hosts[host].log;
        let open = log.last().filter(|(_, at)| (at + 1) % MESSAGE != 0);
        if self.received(host, sender) != at || open.is_some_and(|(open, _)| *open != sender) {
            return Err(format!("host {host} accepts {content:?} after {:?}", log.last()));
        }
        self.hosts[host].log.push(content);
        Ok(())
    }

    fn received(&self, host: usize, sender: usize) -> i64 {
        self.hosts[host].log.iter().filter(|(s, _)| *s == sender).count() as i64
    }

    fn messages(&self, host: usize) -> i64 {
        let ends = |(_, at): &&Content| (at + 1) % MESSAGE == 0;
        self.hosts[host].log.iter().filter(ends).count() as i64
    }

    /// M1 and M2 at the host that sends, and an MSN of its own messages.
    fn believe(&self, host: usize, at: i64, msn: u32, syndrome: Syndrome) -> Result<(), String> {
        let below = if syndrome == Syndrome::Ack { at + 1 } else { at };
        if below > self.hosts[host].source.sent {
            return Err(format!("{syndrome:?} {at} at host {host}, which has not sent it"));
        }
        if self.numbers == AnySource::Bridged && i64::from(msn) != below / MESSAGE {
            return Err(format!("{syndrome:?} {at} at host {host} with MSN {msn}"));
        }
        let lacks = |other: &usize| *other != host && self.received(*other, host) < below;
        match (0..self.hosts.len()).find(lacks) {
            None => Ok(()),
            Some(other) => Err(format!(
                "M1/M2: {syndrome:?} {at} at host {host}, host {other} lacks it"
            )),
        }
    }

    fn switch(&mut self, index: usize, from: usize, packet: Packet) -> Result<(), String> {
        let (id, start) = (path(from as u8), self.start);
        let node = &mut self.nodes[index];
        let position = |psn: Psn| i64::from(psn.diff(start));
        let event = match packet {
            Packet::Data {
                psn,
                ack_request,
                content: (_, at),
            } => {
                node.machine
                    .handle_position(at % MESSAGE == 0, (at + 1) % MESSAGE == 0);
                Event::Data {
                    from: id,
                    psn: node.machine.group_psn(id, psn),
                    ack_request,
                }
            }
            Packet::Feedback { psn, msn, syndrome } => {
                let (psn, msn) = node.machine.group_feedback(id, psn, msn);
                let at = position(psn);
                let upto = if syndrome == Syndrome::Ack { at } else { at - 1 };
                if at <= node.newest && id != node.machine.source() {
                    node.acked[from] = node.acked[from].max(upto);
                }
                Event::Feedback {
                    from: id,
                    psn,
                    msn,
                    syndrome,
                }
            }
            Packet::Signal { signal, psn, epoch } => Event::Signal {
                from: id,
                signal,
                psn,
                epoch,
            },
        };
        let before = node.machine.source();
        let mut out = Effects::new();
        node.machine.handle(self.now, event, &mut out);
        if node.machine.source() != before {
            node.acked[before.index()] = node.newest;
        }
        if let Event::Data { from, psn, .. } = event
            && from == node.machine.source()
        {
            node.newest = node.newest.max(position(psn));
        }
        self.carry_out(index, Some(packet), out)
    }

    fn carry_out(&mut self, index: usize, packet: Option<Packet>, out: Effects) -> Result<(), String> {
        for effect in out {
            self.effect(index, packet, effect)?;
        }
        while let Some(resend) = self.nodes[index].machine.poll_resend() {
            let kept = self.nodes[index].ring[usize::from(resend.slot)];
            let Some((psn, asks, content)) = kept.filter(|(psn, ..)| *psn == resend.psn) else {
                return Err(format!("{resend:?} is not in its slot: {kept:?}"));
            };
            self.check_lacks(index, &[resend.path], psn)?;
            self.resent += 1;
            self.send_copy(index, resend.path, psn, (asks || resend.ack_request, content));
        }
        Ok(())
    }

    /// M3: only to paths that lack it.
    fn check_lacks(&self, index: usize, to: &[PathId], psn: Psn) -> Result<(), String> {
        let (node, at) = (&self.nodes[index], self.at(psn));
        let lacks = |p: &PathId| *p != node.machine.source() && node.acked[p.index()] < at;
        match to.iter().all(lacks) {
            true => Ok(()),
            false => Err(format!("M3: {psn} to {to:?} of switch {index}, {:?}", node.acked)),
        }
    }

    /// Time passes until the next timer of a switch, if there is one.
    fn time_out_switches(&mut self) -> Result<(), String> {
        let due = self.nodes.iter().filter_map(|node| node.machine.poll_timeout());
        self.now = due.map(|(at, _)| at).min().unwrap_or(self.now).max(self.now);
        (0..self.nodes.len()).try_for_each(|index| self.handle_timeout(index))
    }

    fn handle_timeout(&mut self, index: usize) -> Result<(), String> {
        let node = &mut self.nodes[index];
        let before = node.machine.source();
        let mut out = Effects::new();
        node.machine.handle_timeout(self.now, &mut out);
        if node.machine.source() != before {
            node.acked[before.index()] = node.newest;
        }
        self.carry_out(index, None, out)
    }

    /// Sends what a switch sends of its own.
    fn answer(&mut self, index: usize, effect: Effect) {
        let Node { machine, peers, .. } = &self.nodes[index];
        let (to, packet) = match effect {
            Effect::Acknowledge {
                to,
                psn,
                msn,
                syndrome,
            } => {
                let (psn, msn) = machine.member_feedback(to, psn, msn);
                (to, Packet::Feedback { psn, msn, syndrome })
            }
            Effect::Signal {
                to,
                signal,
                psn,
                epoch,
            } => (to, Packet::Signal { signal, psn, epoch }),
            _ => return,
        };
        self.in_flight.push((peers[to.index()], packet));
    }

    fn send_copy(&mut self, index: usize, to: PathId, psn: Psn, (ack_request, content): (bool, Content)) {
        let node = &self.nodes[index];
        let psn = node.machine.member_psn(to, psn);
        let copy = Packet::Data {
            psn,
            ack_request,
            content,
        };
        self.in_flight.push((node.peers[to.index()], copy));
    }

    fn effect(&mut self, index: usize, packet: Option<Packet>, effect: Effect) -> Result<(), String> {
        let node = &mut self.nodes[index];
        let (machine, repairs) = (&node.machine, !node.ring.is_empty());
        match effect {
            Effect::Keep { psn, slot } => {
                let Some(Packet::Data {
                    ack_request, content, ..
                }) = packet
                else {
                    return Err(format!("{packet:?} kept"));
                };
                node.ring[usize::from(slot)] = Some((psn, ack_request, content));
            }
            Effect::Replicate { psn } => {
                let Some(Packet::Data {
                    ack_request, content, ..
                }) = packet
                else {
                    return Err(format!("{packet:?} replicated"));
                };
                let paths = || (0..node.peers.len()).filter_map(PathId::new);
                let to: Vec<PathId> = paths().filter(|path| machine.takes(*path, psn)).collect();
                let at = i64::from(psn.diff(self.start));
                let lack = paths().filter(|p| *p != machine.source() && node.acked[p.index()] < at);
                // Without repair, to all of them.
                if !repairs && !lack.eq(to.iter().copied()) {
                    return Err(format!("M3: {psn} to {to:?}, {:?} of {content:?}", node.acked));
                }
                self.check_lacks(index, &to, psn)?;
                for to in to {
                    self.send_copy(index, to, psn, (ack_request, content));
                }
            }
            Effect::Acknowledge { psn, syndrome, .. } => {
                let all_kept = node.ring.len() as i64 >= Source::WINDOW;
                let kept = node.ring.iter().flatten().any(|(kept, ..)| *kept == psn);
                if all_kept && kept && syndrome == Syndrome::Nak(NakCode::PsnSequenceError) {
                    return Err(format!("NAK of {psn}, which switch {index} has"));
                }
                self.answer(index, effect);
            }
            Effect::Signal { .. } => self.answer(index, effect),
            Effect::Compete { .. } => self.conflicts += 1,
            Effect::Absorb | Effect::Drop(DropReason::NotSource | DropReason::FeedbackFromSource) => {}
            Effect::Drop(DropReason::EarlyContribution) if repairs => {}
            other => return Err(format!("{other:?} for {packet:?}")),
        }
        Ok(())
    }

    /// Whether the loss of a packet in flight is repaired by a switch: of data, but not on the link of its sender, and of feedback, but not
    /// on the link of the source.
    fn is_repaired(&self, peer: Peer, packet: Packet) -> bool {
        let of_host = match peer {
            Peer::Host(_) => false,
            Peer::Switch { index, path } => matches!(self.nodes[index].peers[path], Peer::Host(_)),
        };
        match packet {
            Packet::Data { .. } => !of_host,
            Packet::Feedback { .. } => !matches!(peer, Peer::Host(_)),
            Packet::Signal { .. } => false,
        }
    }

    /// All hosts have all packets of the others, in one order.
    fn check_logs(&self) -> Result<(), String> {
        for (i, a) in self.hosts.iter().enumerate() {
            for (j, b) in self.hosts.iter().enumerate().filter(|(j, _)| *j != i) {
                let sent = b.source.total;
                if self.received(i, j) != sent {
                    return Err(format!(
                        "host {i} has {} of {sent} packets of {j}",
                        self.received(i, j)
                    ));
                }
                let common = |log: &[Content]| -> Vec<Content> {
                    log.iter().filter(|(s, _)| *s != i && *s != j).copied().collect()
                };
                if common(&a.log) != common(&b.log) {
                    return Err(format!("hosts {i} and {j} have different orders"));
                }
            }
        }
        Ok(())
    }

    fn switch_of(&self, host: usize) -> Peer {
        let place = |(index, node): (usize, &Node)| {
            let path = node.peers.iter().position(|p| *p == Peer::Host(host))?;
            Some(Peer::Switch { index, path })
        };
        let mut places = self.nodes.iter().enumerate().filter_map(place);
        places.next().expect("each host is at a switch")
    }

    fn at(&self, psn: Psn) -> i64 {
        i64::from(psn.diff(self.start))
    }
}

/// What is copied is the whole state: of a source that has changed, with packets that the switch keeps.
#[test]
fn a_copy_has_the_whole_state() {
    let config = MulticastConfig {
        paths: 3,
        source: path(0),
        start_psn: Some(Psn::new(7)),
        stall_timeout: Nanos::ZERO,
    };
    let plain = Multicast::new(config.clone());
    let new = plain
        .clone()
        .with_switching(AnySource::Synchronized, (0..3).filter_map(PathId::new))
        .with_repair(RepairConfig {
            slots: 8,
            tick: TICK,
            switches: Paths::EMPTY,
        });
    assert!(new.is_switching() && !plain.is_switching());
    let (mut machine, mut copy, mut out) = (new.clone(), new.clone(), Effects::new());
    for (from, psn) in [(0, 7), (1, 8)] {
        machine.handle_position(true, true);
        let data = Event::Data {
            from: path(from),
            psn: Psn::new(psn),
            ack_request: true,
        };
        machine.handle(Nanos(5), data, &mut out);
        for by in (0..3).filter(|by| *by != from) {
            let ack = Event::Feedback {
                from: path(by),
                psn: Psn::new(psn),
                msn: 1,
                syndrome: Syndrome::Ack,
            };
            machine.handle(Nanos(6), ack, &mut out);
        }
        copy.copy_state(&machine);
        assert_eq!(copy, machine, "after {psn}");
        assert_ne!(copy, new);
    }
    assert_eq!(machine.source(), path(1), "{out:?}");
    // A group without receivers does not take the fast path: it has nobody to wait for.
    let mut alone = Multicast::new(MulticastConfig { paths: 1, ..config });
    assert!(!alone.next_data(Nanos(5), Psn::new(7)));
}
