//! A tree of machines with hosts at its ends, an unfair network between, and an oracle that knows the truth.

use super::hosts::{Receiver, Source};
use super::{path, paths};
use castnet_collective::path::Paths;
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, RepairConfig, Signal};
use castnet_wire::{DropReason, NakCode, Nanos, Psn, Syndrome};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Where a path of a switch leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Source,
    Host(usize),
    Switch { index: usize, path: usize },
}

#[derive(Clone, Copy, Debug)]
enum Packet {
    Data { psn: Psn, ack_request: bool },
    Feedback { psn: Psn, msn: u32, syndrome: Syndrome },
    Resend { psn: Psn },
}

/// One switch, and what an outsider can know of it.
struct Node {
    machine: Multicast,
    peers: Vec<Peer>,
    up: usize,
    /// By path, the newest position that feedback from there has acknowledged since the machine began.
    acked: Vec<i64>,
    /// The newest data since the machine began.
    newest: i64,
    /// Whether the switch was restarted, and whether the source has gone back since.
    restarted: bool,
    went_back: bool,
    /// What is in the slots, where the switch repairs.
    ring: Vec<Option<(Psn, bool)>>,
    /// All data that has come from its source.
    received: BTreeSet<i64>,
}

/// The shape of a tree: a switch is the list of what is below it.
#[derive(Clone, Debug)]
pub enum Shape {
    Host,
    Switch(Vec<Shape>),
}

/// What the network does next; `pick` chooses among the packets in flight.
#[derive(Clone, Copy, Debug)]
pub enum Chance {
    Send,
    Deliver {
        pick: usize,
    },
    Lose {
        pick: usize,
    },
    Duplicate {
        pick: usize,
    },
    TimeOut,
    /// The timer of a switch.
    Tick {
        pick: usize,
    },
    /// A switch loses its state and joins the stream again.
    Restart {
        pick: usize,
    },
    /// The controller takes out a receiver that its switch reports as failed.
    Evict,
}

pub struct Tree {
    start: Psn,
    source: Source,
    ack_every: i64,
    nodes: Vec<Node>,
    pub receivers: Vec<Receiver>,
    /// Receivers that the group goes on without.
    pub evicted: BTreeSet<usize>,
    in_flight: Vec<(Peer, Packet)>,
    pub time_outs: usize,
    pub naks_to_source: usize,
    /// Slots of each switch; 0 where the source repairs.
    slots: u16,
    now: Nanos,
}

/// The tick of switches that repair.
pub const TICK: Nanos = Nanos(1000);
/// Ticks without progress until the source times out.
pub const TICKS_MAX: usize = 64;

impl Tree {
    pub fn new(shape: &Shape, start: Psn, total: i64, ack_every: i64) -> Self {
        Self::repairing(shape, start, total, ack_every, 0)
    }

    /// A tree whose switches repair with so many slots.
    pub fn repairing(shape: &Shape, start: Psn, total: i64, ack_every: i64, slots: u16) -> Self {
        let mut tree = Self {
            start,
            source: Source::new(total),
            ack_every,
            nodes: Vec::new(),
            receivers: Vec::new(),
            evicted: BTreeSet::new(),
            in_flight: Vec::new(),
            time_outs: 0,
            naks_to_source: 0,
            slots,
            now: Nanos::ZERO,
        };
        tree.plant(shape, Peer::Source);
        tree
    }

    /// A source that repeats one packet after a NAK.
    pub fn with_selective_source(mut self, selective: bool) -> Self {
        self.source.selective = selective;
        self
    }

    /// Adds the switch of `shape` and all below it; its index.
    fn plant(&mut self, shape: &Shape, parent: Peer) -> usize {
        let Shape::Switch(below) = shape else {
            panic!("the root is a switch")
        };
        let index = self.nodes.len();
        // The way up lies between the ways down if it can.
        let up = below.len().min(1);
        let peers = vec![parent; below.len() + 1];
        let acked = vec![-1; peers.len()];
        let is_switch = |at: &usize| match at.cmp(&up) {
            Ordering::Less => matches!(below[*at], Shape::Switch(_)),
            Ordering::Equal => matches!(parent, Peer::Switch { .. }),
            Ordering::Greater => matches!(below[at - 1], Shape::Switch(_)),
        };
        let switches = paths((0..peers.len()).filter(is_switch));
        let machine = self.machine(switches, peers.len(), up, Some(self.start));
        self.nodes.push(Node {
            machine,
            peers,
            up,
            acked,
            newest: -1,
            restarted: false,
            went_back: false,
            ring: vec![None; self.slots.into()],
            received: BTreeSet::new(),
        });
        for (at, child) in below.iter().enumerate() {
            let path = if at < up { at } else { at + 1 };
            self.nodes[index].peers[path] = match child {
                Shape::Host => {
                    self.receivers.push(Receiver::default());
                    Peer::Host(self.receivers.len() - 1)
                }
                Shape::Switch(_) => {
                    let child_index = self.plant(child, Peer::Switch { index, path });
                    Peer::Switch {
                        index: child_index,
                        path: self.nodes[child_index].up,
                    }
                }
            };
        }
        index
    }

    fn machine(&self, switches: Paths, paths: usize, up: usize, start_psn: Option<Psn>) -> Multicast {
        let hosts = Paths::first(paths).minus(switches).without(path(up as u8));
        let (paths, source) = (paths as u16, path(up as u8));
        let machine = Multicast::new(MulticastConfig {
            paths,
            source,
            start_psn,
            stall_timeout: Nanos::ZERO,
        });
        let machine = machine.with_held_naks(hosts);
        if self.slots == 0 {
            return machine;
        }
        machine.with_repair(RepairConfig {
            slots: self.slots,
            tick: TICK,
            switches,
        })
    }

    /// Packets that the source has sent.
    pub fn sends(&self) -> usize {
        self.source.sends
    }

    pub fn is_done(&self) -> bool {
        self.source.unacked == self.source.total
    }

    /// Whether the packet in flight for longest is on the link of the source.
    pub fn next_is_at_source(&self) -> bool {
        let root = Peer::Switch {
            index: 0,
            path: self.nodes[0].up,
        };
        let first = self.in_flight.first().map(|(peer, _)| *peer);
        first == Some(Peer::Source) || first == Some(root)
    }

    /// The position that the packet in flight for longest names.
    pub fn next_position(&self) -> Option<i64> {
        let (Packet::Data { psn, .. } | Packet::Feedback { psn, .. } | Packet::Resend { psn }) =
            self.in_flight.first()?.1;
        Some(self.at(psn))
    }

    /// One step of the unfair network; `Err` tells what the contract forbids.
    pub fn step(&mut self, chance: Chance) -> Result<(), String> {
        let flying = self.in_flight.len();
        match chance {
            Chance::Send => self.send(),
            Chance::TimeOut => self.source.time_out(),
            Chance::Deliver { pick } if flying > 0 => {
                let (peer, packet) = self.in_flight.remove(pick % flying);
                return self.deliver(peer, packet);
            }
            Chance::Lose { pick } if flying > 0 => {
                self.in_flight.remove(pick % flying);
            }
            Chance::Duplicate { pick } if flying > 0 => self.in_flight.push(self.in_flight[pick % flying]),
            Chance::Tick { pick } => return self.tick(pick % self.nodes.len()),
            Chance::Restart { pick } => self.restart(pick % self.nodes.len()),
            Chance::Evict => self.evict(false),
            _ => {}
        }
        Ok(())
    }

    /// A fair network from here on: all is delivered, in order; time-outs only where nothing else can happen.
    pub fn finish(&mut self) -> Result<(), String> {
        let (mut ticks, mut unacked) = (0, 0);
        for _ in 0..1_000_000 {
            if !self.in_flight.is_empty() {
                let (peer, packet) = self.in_flight.remove(0);
                self.deliver(peer, packet)?;
                if core::mem::replace(&mut unacked, self.source.unacked) != self.source.unacked {
                    ticks = 0;
                }
            } else if self.is_done() {
                return Ok(());
            } else {
                self.send();
                if self.in_flight.is_empty() && self.slots != 0 && ticks < TICKS_MAX {
                    ticks += 1;
                    (0..self.nodes.len()).try_for_each(|index| self.tick(index))?;
                } else if self.in_flight.is_empty() {
                    ticks = 0;
                    self.evict(true);
                    self.source.time_out();
                    self.time_outs += 1;
                }
            }
        }
        Err(format!(
            "it never ends: {:?} {:?} {:?}",
            self.source,
            self.receivers,
            self.nodes.iter().map(|node| &node.machine).collect::<Vec<_>>()
        ))
    }

    fn send(&mut self) {
        if let Some(at) = self.source.send() {
            let ack_request = (at + 1) % self.ack_every == 0 || at + 1 == self.source.total;
            let to = Peer::Switch {
                index: 0,
                path: self.nodes[0].up,
            };
            self.in_flight.push((
                to,
                Packet::Data {
                    psn: self.psn(at),
                    ack_request,
                },
            ));
        }
    }

    fn restart(&mut self, index: usize) {
        let Node { peers, up, .. } = &self.nodes[index];
        let is_switch = |path: &usize| matches!(peers[*path], Peer::Switch { .. });
        let switches = paths((0..peers.len()).filter(is_switch));
        let machine = self.machine(switches, peers.len(), *up, None);
        let node = &mut self.nodes[index];
        node.machine = machine;
        node.acked.fill(i64::MIN);
        node.newest = i64::MIN;
        (node.restarted, node.went_back) = (true, false);
        node.ring.fill(None);
        node.received.clear();
    }

    /// Lets a receiver end its connection with a NAK of this packet, if its switch has others.
    pub fn break_receiver(&mut self, host: usize, at: i64) {
        if let Peer::Switch { index, .. } = self.place_of(Peer::Host(host))
            && self.nodes[index].peers.len() > 2
        {
            self.receivers[host].breaks_at = Some(at);
        }
    }

    /// Takes out the receiver that has ended its connection, if its switch knows; or if it `stalls`, as when its NAK was lost.
    fn evict(&mut self, stalls: bool) {
        let goes = |host: &usize| self.receivers[*host].broken && !self.evicted.contains(host);
        let Some(host) = (0..self.receivers.len()).find(goes) else {
            return;
        };
        if let Peer::Switch { index, path: gone } = self.place_of(Peer::Host(host))
            && (stalls || self.nodes[index].machine.has_failed(path(gone as u8)))
        {
            self.evicted.insert(host);
            self.take_out(index, gone);
        }
    }

    /// The switch gets a rule without this path, and carries on.
    fn take_out(&mut self, index: usize, gone: usize) {
        let old = &self.nodes[index];
        let (mut peers, up) = (old.peers.clone(), old.up - usize::from(gone < old.up));
        let host = peers.remove(gone);
        let is_switch = |at: &usize| matches!(peers[*at], Peer::Switch { .. });
        let switches = paths((0..peers.len()).filter(is_switch));
        let mut machine = self.machine(switches, peers.len(), up, Some(self.start));
        let kept = (0..peers.len()).map(|now| {
            let before = now + usize::from(now >= gone);
            (path(now as u8), path(before as u8))
        });
        machine.carry_on(&old.machine, kept);
        let node = &mut self.nodes[index];
        (node.machine, node.peers, node.up) = (machine, peers, up);
        node.acked.remove(gone);
        node.ring.fill(None);
        node.received.clear();
        let place = Peer::Switch { index, path: gone };
        self.in_flight.retain(|(peer, _)| *peer != host && *peer != place);
        let in_flight = self.in_flight.iter_mut().map(|(peer, _)| peer);
        let all = in_flight.chain(self.nodes.iter_mut().flat_map(|node| &mut node.peers));
        for peer in all {
            if let Peer::Switch { index: at, path } = peer
                && *at == index
                && *path > gone
            {
                *path -= 1;
            }
        }
    }

    fn tick(&mut self, index: usize) -> Result<(), String> {
        self.now += TICK;
        let mut out = Effects::new();
        self.nodes[index].machine.handle_timeout(self.now, &mut out);
        self.carry_out(index, None, out)
    }

    fn deliver(&mut self, peer: Peer, packet: Packet) -> Result<(), String> {
        match (peer, packet) {
            (Peer::Source, Packet::Feedback { psn, syndrome, .. }) => {
                let at = self.at(psn);
                self.believe(at, syndrome)?;
                self.source.feedback(at, syndrome);
            }
            (Peer::Host(host), Packet::Data { psn, ack_request }) => {
                let at = self.at(psn);
                if let Some((at, syndrome)) = self.receivers[host].data(at, ack_request) {
                    let psn = self.psn(at);
                    let msn = self.receivers[host].expected as u32;
                    let to = self.place_of(Peer::Host(host));
                    self.in_flight.push((to, Packet::Feedback { psn, msn, syndrome }));
                }
            }
            (Peer::Switch { index, path }, packet) => self.switch(index, path, packet)?,
            (peer, packet) => return Err(format!("{packet:?} to {peer:?}")),
        }
        Ok(())
    }

    fn switch(&mut self, index: usize, from: usize, packet: Packet) -> Result<(), String> {
        let event = match packet {
            Packet::Data { psn, ack_request } => Event::Data {
                from: path(from as u8),
                psn,
                ack_request,
            },
            Packet::Feedback { psn, msn, syndrome } => Event::Feedback {
                from: path(from as u8),
                psn,
                msn,
                syndrome,
            },
            Packet::Resend { psn } => Event::Signal {
                from: path(from as u8),
                signal: Signal::Resend,
                psn,
                epoch: 0,
            },
        };
        self.note(index, from, packet);
        let (now, machine) = (self.now, &mut self.nodes[index].machine);
        let (mut fast, mut out) = (machine.clone(), Effects::new());
        machine.handle(now, event, &mut out);
        check_fast(now, &mut fast, event, (machine, &out))?;
        self.carry_out(index, Some(packet), out)
    }

    fn carry_out(&mut self, index: usize, packet: Option<Packet>, out: Effects) -> Result<(), String> {
        for effect in out {
            match (effect, packet) {
                (Effect::Keep { psn, slot }, Some(Packet::Data { psn: at, ack_request })) if psn == at => {
                    self.nodes[index].ring[usize::from(slot)] = Some((psn, ack_request));
                }
                (Effect::Replicate { psn }, Some(packet)) => {
                    let node = &self.nodes[index];
                    let paths = (0..node.peers.len()).filter(|p| node.machine.takes(path(*p as u8), psn));
                    let to: Vec<usize> = paths.collect();
                    self.check_replicas(index, packet, &to)?;
                    let peers = to.iter().map(|path| (node.peers[*path], packet));
                    self.in_flight.extend(peers);
                }
                (
                    Effect::Acknowledge {
                        to,
                        psn,
                        msn,
                        syndrome,
                    },
                    _,
                ) => {
                    self.check_feedback(index, self.at(psn), syndrome)?;
                    self.check_nak(index, self.at(psn), syndrome)?;
                    let peer = self.nodes[index].peers[to.index()];
                    self.naks_to_source += usize::from(peer == Peer::Source && syndrome != Syndrome::Ack);
                    self.in_flight
                        .push((peer, Packet::Feedback { psn, msn, syndrome }));
                }
                (Effect::Signal { to, psn, .. }, _) => {
                    let peer = self.nodes[index].peers[to.index()];
                    self.in_flight.push((peer, Packet::Resend { psn }));
                }
                (Effect::Absorb, _) => {}
                (Effect::Drop(DropReason::EarlyContribution), _) if self.slots != 0 => {}
                // A switch that has lost its memory hears of data from before.
                (Effect::Drop(DropReason::AckAhead), _) if self.nodes[index].acked.contains(&i64::MIN) => {}
                other => return Err(format!("{other:?}")),
            }
        }
        while let Some(resend) = self.nodes[index].machine.poll_resend() {
            let node = &self.nodes[index];
            let (to, psn) = (resend.path.index(), resend.psn);
            let Some((kept, ack_request)) = node.ring[usize::from(resend.slot)].filter(|kept| kept.0 == psn)
            else {
                return Err(format!("{psn} is not in slot {}", resend.slot));
            };
            if to == node.up || node.acked[to] >= self.at(psn) {
                return Err(format!("M3: {psn} from the ring to path {to}"));
            }
            let ack_request = ack_request || resend.ack_request;
            let packet = Packet::Data {
                psn: kept,
                ack_request,
            };
            self.in_flight.push((node.peers[to], packet));
        }
        Ok(())
    }

    /// With a ring as long as the window, the source gets a NAK only of what the switch next to it lacks.
    fn check_nak(&self, index: usize, at: i64, syndrome: Syndrome) -> Result<(), String> {
        let node = &self.nodes[index];
        let all_kept = i64::from(self.slots) >= Source::WINDOW && !node.acked.contains(&i64::MIN);
        let nak = syndrome == Syndrome::Nak(NakCode::PsnSequenceError);
        match index == 0 && all_kept && nak && node.received.contains(&at) {
            true => Err(format!("NAK of {at}, which the switch has")),
            false => Ok(()),
        }
    }

    /// What the outsider learns from a packet before the machine sees it.
    fn note(&mut self, index: usize, from: usize, packet: Packet) {
        match packet {
            Packet::Data { psn, .. } => {
                let at = self.at(psn);
                let node = &mut self.nodes[index];
                node.went_back |= node.restarted && at <= node.newest;
                node.newest = node.newest.max(at);
                node.received.insert(at);
            }
            Packet::Resend { .. } => {}
            Packet::Feedback { psn, syndrome, .. } => {
                let at = self.at(psn);
                let upto = if syndrome == Syndrome::Ack { at } else { at - 1 };
                let node = &mut self.nodes[index];
                if at <= node.newest {
                    node.acked[from] = node.acked[from].max(upto);
                } else if node.went_back {
                    // It was ahead when the machine began, and has all that has come since.
                    node.acked[from] = node.newest;
                }
            }
        }
    }

    /// M3, exactly: to all that have not acknowledged it, and to no one else.
    fn check_replicas(&self, index: usize, packet: Packet, to: &[usize]) -> Result<(), String> {
        let Packet::Data { psn, .. } = packet else {
            return Err(format!("{packet:?} replicated"));
        };
        let node = &self.nodes[index];
        let lacking = |p: &usize| *p != node.up && node.acked[*p] < self.at(psn);
        let wanted: Vec<usize> = (0..node.peers.len()).filter(lacking).collect();
        let repairs = self.slots != 0 && to.iter().all(|p| wanted.contains(p));
        if to == wanted || repairs {
            Ok(())
        } else {
            Err(format!("M3: {psn} to {to:?} instead of {wanted:?}"))
        }
    }

    /// M1 and M2 at one switch: every path has acknowledged all that is acknowledged upwards.
    fn check_feedback(&self, index: usize, at: i64, syndrome: Syndrome) -> Result<(), String> {
        let upto = if syndrome == Syndrome::Ack { at } else { at - 1 };
        let node = &self.nodes[index];
        let lagging = (0..node.peers.len()).find(|p| *p != node.up && node.acked[*p] < upto);
        match lagging {
            None => Ok(()),
            Some(path) => Err(format!(
                "M1/M2: switch {index} says {syndrome:?} {at}, path {path} lacks it"
            )),
        }
    }

    /// M1 and M2 at the source, against the truth.
    fn believe(&self, at: i64, syndrome: Syndrome) -> Result<(), String> {
        if matches!(syndrome, Syndrome::Nak(code) if code.is_fatal()) {
            return Err(format!("{syndrome} {at} ends the source's connection"));
        }
        let below = if syndrome == Syndrome::Ack { at + 1 } else { at };
        if below > self.source.sent {
            return Err(format!("{syndrome:?} {at} before it was sent"));
        }
        match self
            .receivers
            .iter()
            .enumerate()
            .position(|(host, receiver)| receiver.expected < below && !self.evicted.contains(&host))
        {
            None => Ok(()),
            Some(host) => Err(format!(
                "M1/M2: {syndrome:?} {at} at the source, host {host} lacks it"
            )),
        }
    }

    fn place_of(&self, peer: Peer) -> Peer {
        let place = |(index, node): (usize, &Node)| {
            let path = node.peers.iter().position(|p| *p == peer)?;
            Some(Peer::Switch { index, path })
        };
        self.nodes
            .iter()
            .enumerate()
            .find_map(place)
            .expect("every host hangs on a switch")
    }

    fn psn(&self, at: i64) -> Psn {
        self.start.add(at as i32)
    }

    fn at(&self, psn: Psn) -> i64 {
        psn.diff(self.start) as i64
    }
}

/// What the fast path does with data, if it takes it, is what `machine` has done: `out`.
fn check_fast(
    now: Nanos,
    fast: &mut Multicast,
    event: Event,
    (machine, out): (&Multicast, &Effects),
) -> Result<(), String> {
    let Event::Data {
        from,
        psn,
        ack_request,
    } = event
    else {
        return Ok(());
    };
    if from != fast.source() {
        return Ok(());
    }
    let replicate = Effect::Replicate { psn };
    let effects: Vec<Effect> = match fast.next_kept(now, psn, ack_request) {
        Some(slot) => vec![Effect::Keep { psn, slot }, replicate],
        None if fast.next_data(now, psn) => vec![replicate],
        None => return Ok(()),
    };
    match effects == out.as_slice() && fast == machine {
        true => Ok(()),
        false => Err(format!(
            "{effects:?} on the fast path, {out:?} on the slow one: {fast:?} {machine:?}"
        )),
    }
}
