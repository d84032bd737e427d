//! A tree of machines with hosts at its ends, an unfair network between, and an oracle that knows the truth.

use super::hosts::{Receiver, Source};
use super::path;
use castnet_collective::{Effect, Effects, Event, Multicast, MulticastConfig, PathId};
use castnet_wire::{DropReason, Nanos, Psn, Syndrome};

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
    /// A switch loses its state and joins the stream again.
    Restart {
        pick: usize,
    },
}

pub struct Tree {
    start: Psn,
    source: Source,
    ack_every: i64,
    nodes: Vec<Node>,
    pub receivers: Vec<Receiver>,
    in_flight: Vec<(Peer, Packet)>,
    pub time_outs: usize,
    pub naks_to_source: usize,
}

impl Tree {
    pub fn new(shape: &Shape, start: Psn, total: i64, ack_every: i64) -> Self {
        let mut tree = Self {
            start,
            source: Source::new(total),
            ack_every,
            nodes: Vec::new(),
            receivers: Vec::new(),
            in_flight: Vec::new(),
            time_outs: 0,
            naks_to_source: 0,
        };
        tree.plant(shape, Peer::Source);
        tree
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
        let machine = self.machine(peers.len(), up, Some(self.start));
        self.nodes.push(Node {
            machine,
            peers,
            up,
            acked,
            newest: -1,
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

    fn machine(&self, paths: usize, up: usize, start_psn: Option<Psn>) -> Multicast {
        let (paths, source) = (paths as u16, path(up as u8));
        Multicast::new(MulticastConfig {
            paths,
            source,
            start_psn,
            stall_timeout: Nanos::ZERO,
        })
    }

    pub fn is_done(&self) -> bool {
        self.source.unacked == self.source.total
    }

    /// The position that the packet in flight for longest names.
    pub fn next_position(&self) -> Option<i64> {
        let (Packet::Data { psn, .. } | Packet::Feedback { psn, .. }) = self.in_flight.first()?.1;
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
            Chance::Restart { pick } => self.restart(pick % self.nodes.len()),
            _ => {}
        }
        Ok(())
    }

    /// A fair network from here on: all is delivered, in order; time-outs only where nothing else can happen.
    pub fn finish(&mut self) -> Result<(), String> {
        for _ in 0..1_000_000 {
            if !self.in_flight.is_empty() {
                let (peer, packet) = self.in_flight.remove(0);
                self.deliver(peer, packet)?;
            } else if self.is_done() {
                return Ok(());
            } else {
                self.send();
                if self.in_flight.is_empty() {
                    self.source.time_out();
                    self.time_outs += 1;
                }
            }
        }
        Err("it never ends".into())
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
        let (paths, up) = (self.nodes[index].peers.len(), self.nodes[index].up);
        let machine = self.machine(paths, up, None);
        let node = &mut self.nodes[index];
        node.machine = machine;
        node.acked.fill(i64::MIN);
        node.newest = i64::MIN;
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
        };
        self.note(index, from, packet);
        let mut out = Effects::new();
        self.nodes[index].machine.handle(Nanos::ZERO, event, &mut out);
        for effect in out {
            match effect {
                Effect::Replicate { psn } => {
                    let node = &self.nodes[index];
                    let to: Vec<usize> = node.machine.lacking(psn).map(PathId::index).collect();
                    self.check_replicas(index, packet, &to)?;
                    let peers = to.iter().map(|path| (node.peers[*path], packet));
                    self.in_flight.extend(peers);
                }
                Effect::Acknowledge {
                    to,
                    psn,
                    msn,
                    syndrome,
                } => {
                    self.check_feedback(index, self.at(psn), syndrome)?;
                    let peer = self.nodes[index].peers[to.index()];
                    self.naks_to_source += usize::from(peer == Peer::Source && syndrome != Syndrome::Ack);
                    self.in_flight
                        .push((peer, Packet::Feedback { psn, msn, syndrome }));
                }
                Effect::Absorb => {}
                // A switch that has lost its memory hears of data from before.
                Effect::Drop(DropReason::AckAhead) if self.nodes[index].acked.contains(&i64::MIN) => {}
                other => return Err(format!("{other:?} for {event:?}")),
            }
        }
        Ok(())
    }

    /// What the outsider learns from a packet before the machine sees it.
    fn note(&mut self, index: usize, from: usize, packet: Packet) {
        match packet {
            Packet::Data { psn, .. } => {
                let at = self.at(psn);
                let node = &mut self.nodes[index];
                node.newest = node.newest.max(at);
            }
            Packet::Feedback { psn, syndrome, .. } => {
                let at = self.at(psn);
                let upto = if syndrome == Syndrome::Ack { at } else { at - 1 };
                let node = &mut self.nodes[index];
                if at <= node.newest {
                    node.acked[from] = node.acked[from].max(upto);
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
        if to == wanted {
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
        let below = if syndrome == Syndrome::Ack { at + 1 } else { at };
        if below > self.source.sent {
            return Err(format!("{syndrome:?} {at} before it was sent"));
        }
        match self
            .receivers
            .iter()
            .position(|receiver| receiver.expected < below)
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
