//! An ideal transport that the paper's lossy ranks may have used: senders retransmit only lost packets, and receivers
//! accept packets in any order. No RC queue pair does that. This model covers an AllReduce on the star only.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use castnet_sim::LinkProfile;
use castnet_wire::Nanos;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Frame lengths in bytes, without preamble, FCS and gap: a full data packet, and an ACK.
pub(crate) const DATA: usize = 4154;
const ACK: usize = 62;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ideal {
    pub(crate) ranks: usize,
    pub(crate) packets: usize,
    /// Most packets of a rank in flight, above its oldest unacknowledged one.
    pub(crate) window: usize,
    /// Time until a loss is detected, from the end of the packet on its wire or the loss of a result.
    pub(crate) notice: Nanos,
    /// Probability of loss, for data towards the switch and results from it. ACKs are not lost.
    pub(crate) loss: f64,
    pub(crate) lossy_links: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The link of the rank is idle.
    Ready(usize),
    Contribution(usize, usize),
    Result(usize, usize),
    /// The ACK of the rank reached the switch, which reflects it.
    Ack(usize, usize),
    /// The reflected ACK reached the rank.
    Acknowledged(usize, usize),
    LossDetected(usize, usize),
}

#[derive(Clone, Default)]
struct Rank {
    next: usize,
    base: usize,
    acknowledged: Vec<bool>,
    lost: VecDeque<usize>,
    acks: VecDeque<usize>,
    up: Nanos,
    down: Nanos,
    is_waiting: bool,
}

struct Model {
    ideal: Ideal,
    link: LinkProfile,
    now: Nanos,
    number: u64,
    queue: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    rng: ChaCha8Rng,
    ranks: Vec<Rank>,
    contributed: Vec<u64>,
}

pub(crate) fn allreduce(ideal: Ideal, link: LinkProfile, seed: u64) -> Nanos {
    let rank = Rank {
        acknowledged: vec![false; ideal.packets],
        ..Rank::default()
    };
    let mut model = Model {
        ideal,
        link,
        now: Nanos::ZERO,
        number: 0,
        queue: BinaryHeap::new(),
        rng: ChaCha8Rng::seed_from_u64(seed),
        ranks: vec![rank; ideal.ranks],
        contributed: vec![0; ideal.packets],
    };
    (0..ideal.ranks).for_each(|r| model.ready(r));
    while let Some(Reverse((at, _, event))) = model.queue.pop() {
        model.now = at;
        model.handle(event);
        if model.ranks.iter().all(|r| r.base == ideal.packets) {
            break;
        }
    }
    model.now
}

impl Model {
    fn at(&mut self, at: Nanos, event: Event) {
        self.number += 1;
        self.queue.push(Reverse((at, self.number, event)));
    }

    fn is_lost(&mut self, rank: usize) -> bool {
        rank < self.ideal.lossy_links && self.rng.random_bool(self.ideal.loss)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ready(rank) => {
                self.ranks[rank].is_waiting = false;
                self.ready(rank);
            }
            Event::Contribution(rank, packet) => {
                let all = (1 << self.ideal.ranks) - 1;
                let before = self.contributed[packet];
                self.contributed[packet] |= 1 << rank;
                if before == all {
                    self.result(rank, packet);
                } else if self.contributed[packet] == all {
                    (0..self.ideal.ranks).for_each(|r| self.result(r, packet));
                }
            }
            Event::Result(rank, packet) => {
                self.ranks[rank].acks.push_back(packet);
                self.ready(rank);
            }
            Event::Ack(rank, packet) => {
                let at = self.downwards(rank, ACK);
                self.at(at, Event::Acknowledged(rank, packet));
            }
            Event::Acknowledged(rank, packet) => {
                let here = &mut self.ranks[rank];
                here.acknowledged[packet] = true;
                while here.acknowledged.get(here.base) == Some(&true) {
                    here.base += 1;
                }
                self.ready(rank);
            }
            Event::LossDetected(rank, packet) => {
                self.ranks[rank].lost.push_back(packet);
                self.ready(rank);
            }
        }
    }

    fn downwards(&mut self, rank: usize, bytes: usize) -> Nanos {
        let down = &mut self.ranks[rank].down;
        *down = (*down).max(self.now) + self.link.serialization(bytes);
        *down + self.link.delay
    }

    fn result(&mut self, rank: usize, packet: usize) {
        let at = self.downwards(rank, DATA);
        let event = match self.is_lost(rank) {
            false => (at, Event::Result(rank, packet)),
            true => (at + self.ideal.notice, Event::LossDetected(rank, packet)),
        };
        self.at(event.0, event.1);
    }

    /// Sends while the link is idle: ACKs first, then retransmissions, then new packets.
    fn ready(&mut self, rank: usize) {
        loop {
            let here = &mut self.ranks[rank];
            if here.up > self.now {
                let up = here.up;
                if !std::mem::replace(&mut here.is_waiting, true) {
                    self.at(up, Event::Ready(rank));
                }
                return;
            }
            if let Some(packet) = here.acks.pop_front() {
                here.up = self.now + self.link.serialization(ACK);
                let at = here.up + self.link.delay;
                self.at(at, Event::Ack(rank, packet));
                continue;
            }
            let lost = loop {
                match here.lost.pop_front() {
                    Some(packet) if here.acknowledged[packet] => {}
                    packet => break packet,
                }
            };
            let packet = match lost {
                Some(packet) => packet,
                None if here.next < self.ideal.packets && here.next < here.base + self.ideal.window => {
                    here.next += 1;
                    here.next - 1
                }
                None => return,
            };
            here.up = self.now + self.link.serialization(DATA);
            let sent = here.up;
            let event = match self.is_lost(rank) {
                false => (sent + self.link.delay, Event::Contribution(rank, packet)),
                true => (sent + self.ideal.notice, Event::LossDetected(rank, packet)),
            };
            self.at(event.0, event.1);
        }
    }
}
