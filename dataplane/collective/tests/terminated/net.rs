//! Switches and ranks, and the connections between them.

use std::collections::VecDeque;

use castnet_collective::terminated::{Effect, Inbox, Message};
use castnet_collective::{
    CollectiveMode, EndpointConfig, EndpointId, EndpointKind, EndpointSet, LossPolicy, StragglerPolicy,
    Terminated, TranslatedConfig,
};
use castnet_wire::{Call, Control, Nanos, Psn, Verdict};

use crate::program::{control, expected_ranks, items, receives, sends};
use crate::tree::{Peer, Tree};

const PMTU: u16 = 256;

/// A message, with whose contributions are in it: how often each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Letter {
    message: Message,
    /// The collective and the first packet, to see that messages of different places are never combined.
    place: (usize, u32),
    ranks: Vec<u8>,
}

/// One direction of a connection: what is on its way, and what of it is delivered but not acknowledged.
#[derive(Debug, Default)]
struct Lane {
    letters: VecDeque<(u16, Letter)>,
    unacknowledged: VecDeque<u16>,
}

struct Switch {
    machine: Terminated,
    slots: Vec<Option<Letter>>,
    /// By endpoint: the buffers, the next one to fill, and how many are posted.
    buffers: Vec<Vec<Option<Letter>>>,
    next: Vec<usize>,
    posted: Vec<usize>,
}

struct Received<'a>(&'a [Vec<Option<Letter>>]);

impl Inbox for Received<'_> {
    fn message(&self, from: EndpointId, buffer: u16) -> Message {
        let letter = self.0[from.index()][usize::from(buffer)].as_ref();
        letter
            .expect("a message is read before its buffer is free")
            .message
    }
}

pub(crate) struct Net {
    tree: Tree,
    message_packets: u16,
    switches: Vec<Switch>,
    /// By switch and endpoint: to the switch, and from it.
    lanes: Vec<Vec<[Lane; 2]>>,
    got: Vec<Vec<Letter>>,
    /// By switch.
    pub(crate) conflicts: Vec<usize>,
    dice: u64,
}

pub(crate) fn config(
    tree: &Tree,
    switch: usize,
    message_packets: u16,
    messages: u16,
    collectives: u16,
) -> TranslatedConfig {
    let kind = |endpoint: usize| match tree.endpoints[switch][endpoint] {
        Peer::Host(rank) => EndpointKind::Rank {
            rank: rank as u16,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            is_host: true,
        },
        Peer::Switch { .. } => EndpointKind::Switch,
    };
    let endpoints = (0..tree.endpoints[switch].len()).map(|endpoint| EndpointConfig {
        kind: kind(endpoint),
        ranks: tree.behind(switch, endpoint).into_iter().collect(),
    });
    TranslatedConfig {
        endpoints: endpoints.collect(),
        parent: tree.parent[switch].and_then(EndpointId::new),
        start_psn: Psn::new(0xFF_FFF0),
        slots: message_packets * messages,
        message_packets,
        pmtu: PMTU,
        reproducible: false,
        collectives_max: collectives,
        mode: CollectiveMode::Terminated,
        loss: LossPolicy::Repair,
        straggler: StragglerPolicy::KeepAlive,
        tick: Nanos::ZERO,
        stall_timeout: Nanos::from_millis(1),
    }
}

/// A connection reads the slot whenever it repeats what is not acknowledged.
fn assert_unused(lanes: &[[Lane; 2]], slot: u16) {
    for [_, lane] in lanes {
        let sent = lane.letters.iter().map(|(slot, _)| slot);
        assert!(
            sent.chain(&lane.unacknowledged).all(|sent| *sent != slot),
            "slot {slot} is filled again before what was in it is acknowledged"
        );
    }
}

impl Net {
    pub(crate) fn new(tree: Tree, message_packets: u16, messages: u16, collectives: u16, seed: u64) -> Self {
        let switches = (0..tree.endpoints.len()).map(|s| {
            let machine = Terminated::new(config(&tree, s, message_packets, messages, collectives));
            let (ring, endpoints) = (usize::from(machine.slots()), tree.endpoints[s].len());
            Switch {
                machine,
                slots: vec![None; 2 * ring],
                buffers: vec![vec![None; ring]; endpoints],
                next: vec![0; endpoints],
                posted: vec![ring; endpoints],
            }
        });
        let lanes = tree
            .endpoints
            .iter()
            .map(|all| all.iter().map(|_| Default::default()).collect());
        Self {
            switches: switches.collect(),
            lanes: lanes.collect(),
            got: vec![Vec::new(); tree.ranks.into()],
            conflicts: vec![0; tree.endpoints.len()],
            message_packets,
            dice: seed | 1,
            tree,
        }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.tree.ranks.into()
    }

    fn roll(&mut self, sides: usize) -> usize {
        // xorshift64*.
        self.dice ^= self.dice >> 12;
        self.dice ^= self.dice << 25;
        self.dice ^= self.dice >> 27;
        (self.dice.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }

    /// What a rank sends or must receive: one letter for each message.
    fn letters(
        &self,
        calls: &[Call],
        rank: u16,
        goes: fn(&Call, u16, u32) -> bool,
        sent: bool,
    ) -> Vec<Letter> {
        let mut letters: Vec<Letter> = Vec::new();
        let all = items(
            calls,
            |call, index| goes(call, rank, index),
            self.message_packets.into(),
        );
        for item in all {
            let call = &calls[item.collective];
            let bits = match (item.index, sent) {
                (None, _) => 0,
                (Some(_), true) => 1 << rank,
                (Some(index), false) => expected_ranks(call, self.tree.ranks, index),
            };
            let counts = (0..self.tree.ranks)
                .map(|rank| (bits >> rank & 1) as u8)
                .collect();
            match (item.index, item.opcode.info().starts_message()) {
                (Some(_), false) => {
                    if let Some(Letter {
                        message: Message::Data(bytes),
                        ..
                    }) = letters.last_mut()
                    {
                        *bytes += u32::from(item.payload);
                    }
                }
                (index, _) => letters.push(Letter {
                    message: match index {
                        None => {
                            Message::Control(control(item.collective, if sent { rank } else { 0 }, *call))
                        }
                        Some(_) => Message::Data(item.payload.into()),
                    },
                    place: (item.collective, index.map_or(0, |index| index + 1)),
                    ranks: counts,
                }),
            }
        }
        letters
    }

    /// Runs until nothing moves, and compares what ranks have got with what they must get.
    pub(crate) fn run(&mut self, programs: &[Vec<Call>]) -> Result<(), String> {
        for (switch, endpoints) in self.tree.endpoints.clone().iter().enumerate() {
            for (endpoint, peer) in endpoints.iter().enumerate() {
                if let Peer::Host(rank) = *peer {
                    let letters = self.letters(&programs[rank], rank as u16, sends, true);
                    self.lanes[switch][endpoint][0].letters = letters.into_iter().map(|l| (0, l)).collect();
                }
            }
        }
        while self.step() {}
        let agreed = programs.iter().all(|calls| *calls == programs[0]);
        for rank in 0..self.ranks() {
            let expected = match agreed {
                true => self.letters(&programs[0], rank as u16, receives, false),
                false => self.until_conflict(programs, rank as u16),
            };
            if self.got[rank] != expected {
                let text = format!(
                    "rank {rank} has got {:#?}\ninstead of {expected:#?}",
                    self.got[rank]
                );
                return Err(text);
            }
        }
        Ok(())
    }

    fn until_conflict(&self, programs: &[Vec<Call>], rank: u16) -> Vec<Letter> {
        let last = programs[0].len() - 1;
        let mut letters = self.letters(&programs[0][..last], rank, receives, false);
        let mut merged: Control = control(last, 0, programs[0][last]);
        for (other, calls) in (0..).zip(programs) {
            merged.merge(&control(last, other, calls[last]));
        }
        assert_ne!(merged.verdict, Verdict::Agreed);
        letters.push(Letter {
            message: Message::Control(merged),
            place: (last, 0),
            ranks: vec![0; self.ranks()],
        });
        letters
    }

    /// One event at a random place. False if nothing can happen any more.
    fn step(&mut self) -> bool {
        let places: Vec<_> = (0..self.lanes.len())
            .flat_map(|s| (0..self.lanes[s].len()).flat_map(move |e| [(s, e, 0), (s, e, 1)]))
            .filter(|&(s, e, way)| {
                self.can_deliver(s, e, way) || !self.lanes[s][e][way].unacknowledged.is_empty()
            })
            .collect();
        if places.is_empty() {
            return false;
        }
        let (s, e, way) = places[self.roll(places.len())];
        let acknowledges = !self.lanes[s][e][way].unacknowledged.is_empty();
        if self.can_deliver(s, e, way) && (!acknowledges || self.roll(2) == 0) {
            self.deliver(s, e, way);
        } else {
            self.acknowledge(s, e, way);
        }
        true
    }

    /// A lane between switches has its letters at the sending switch, in `lanes[sender][..][1]`.
    fn can_deliver(&self, s: usize, e: usize, way: usize) -> bool {
        let has = !self.lanes[s][e][way].letters.is_empty();
        has && match (way, self.tree.endpoints[s][e]) {
            (0, _) => self.switches[s].posted[e] > 0,
            (_, Peer::Host(_)) => true,
            (_, Peer::Switch { switch, endpoint }) => self.switches[switch].posted[endpoint] > 0,
        }
    }

    fn deliver(&mut self, s: usize, e: usize, way: usize) {
        let lane = &mut self.lanes[s][e][way];
        let Some((slot, letter)) = lane.letters.pop_front() else {
            return;
        };
        if way == 0 {
            return self.arrive(s, e, letter);
        }
        lane.unacknowledged.push_back(slot);
        match self.tree.endpoints[s][e] {
            Peer::Host(rank) => self.got[rank].push(letter),
            Peer::Switch { switch, endpoint } => self.arrive(switch, endpoint, letter),
        }
    }

    fn arrive(&mut self, s: usize, e: usize, letter: Letter) {
        let switch = &mut self.switches[s];
        let at = switch.next[e];
        switch.next[e] = (at + 1) % switch.buffers[e].len();
        switch.posted[e] -= 1;
        assert!(switch.buffers[e][at].is_none(), "buffers are used in turn");
        switch.buffers[e][at] = Some(letter);
        switch.machine.arrived(Nanos::ZERO, EndpointId::new(e).unwrap());
        self.work(s);
    }

    fn acknowledge(&mut self, s: usize, e: usize, way: usize) {
        if let Some(slot) = self.lanes[s][e][way].unacknowledged.pop_front() {
            let to = EndpointId::new(e).unwrap();
            self.switches[s].machine.acknowledged(Nanos::ZERO, to, slot);
            self.work(s);
        }
    }

    fn work(&mut self, s: usize) {
        loop {
            let switch = &mut self.switches[s];
            let Some(effect) = switch.machine.poll(Nanos::ZERO, &Received(&switch.buffers)) else {
                return;
            };
            match effect {
                Effect::Take {
                    slot,
                    from,
                    buffer,
                    first,
                    ..
                } => {
                    let letter = switch.buffers[from.index()][usize::from(buffer)].clone();
                    let letter = letter.expect("a message is taken before its buffer is free");
                    if first {
                        assert_unused(&self.lanes[s], slot);
                    }
                    let sum = &mut switch.slots[usize::from(slot)];
                    match (first, sum.as_mut()) {
                        (false, Some(sum)) => {
                            assert_eq!((sum.message, sum.place), (letter.message, letter.place));
                            sum.ranks
                                .iter_mut()
                                .zip(&letter.ranks)
                                .for_each(|(sum, n)| *sum += n);
                        }
                        _ => *sum = Some(letter),
                    }
                }
                Effect::Send { slot, to, .. } => {
                    let letter = switch.slots[usize::from(slot)].clone();
                    self.send(s, to, slot, &letter.expect("a slot is filled before it is sent"));
                }
                Effect::SendControl { slot, to, control } => {
                    assert_unused(&self.lanes[s], slot);
                    let letter = Letter {
                        message: Message::Control(control),
                        place: (control.sequence as usize, 0),
                        ranks: vec![0; self.tree.ranks.into()],
                    };
                    self.send(s, to, slot, &letter);
                }
                Effect::Receive { from, buffer } => {
                    let taken = switch.buffers[from.index()][usize::from(buffer)].take();
                    assert!(taken.is_some(), "each buffer is freed once");
                    switch.posted[from.index()] += 1;
                }
                Effect::Conflict { .. } => self.conflicts[s] += 1,
                Effect::Refused { .. } | Effect::Stalled { .. } => panic!("{effect:?}"),
            }
        }
    }

    fn send(&mut self, s: usize, to: EndpointSet, slot: u16, letter: &Letter) {
        for endpoint in to {
            let lane = &mut self.lanes[s][endpoint.index()][1];
            lane.letters.push_back((slot, letter.clone()));
        }
    }
}
