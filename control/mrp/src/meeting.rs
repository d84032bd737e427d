//! How the members of a group that the switches do not carry meet: each gives the others a few bytes, over the leader, round by round. With them
//! they go on from host to host (Cepheus V.D). `docs/mrp.md` has the packets.

use core::net::Ipv4Addr;
use std::collections::{BTreeMap, BTreeSet};

use castnet_wire::datagram::PAYLOAD_MAX;
use castnet_wire::mrp::{GIFT_MAX, WANTED_MAX};
use castnet_wire::{McstId, MrpBody, MrpCall, MrpGift, MrpPacket, Nanos};

/// Bytes of a packet of gifts before them, and of each gift before its bytes.
const HEAD: usize = 13;
const RECORD: usize = 4;

/// Who meets, and as whom this host does. Each receiver has chosen a key, and has given it to the leader alone: packets with another one, or
/// between other addresses, are not for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roll {
    /// The leader, with the keys of all receivers. Their ranks are in the order of their addresses, from 1.
    Leader(BTreeMap<Ipv4Addr, u32>),
    /// A receiver, with its key, its rank and the number of ranks.
    Receiver {
        /// Address of the leader.
        leader: Ipv4Addr,
        /// Key of this receiver.
        key: u32,
        /// Its rank.
        rank: u16,
        /// How many ranks there are.
        size: u16,
    },
}

impl Roll {
    /// The rank of this host. The leader is 0.
    pub const fn rank(&self) -> u16 {
        match self {
            Self::Leader(_) => 0,
            Self::Receiver { rank, .. } => *rank,
        }
    }

    /// Number of ranks, this host among them.
    pub fn size(&self) -> usize {
        match self {
            Self::Leader(keys) => 1 + keys.len(),
            Self::Receiver { size, .. } => usize::from(*size),
        }
    }
}

/// A round: what this host gives, whose gifts it needs, and those that it has.
#[derive(Debug, Default)]
struct Round {
    number: u8,
    wanted: Vec<u16>,
    had: BTreeMap<u16, Vec<u8>>,
    /// All hosts have given theirs.
    is_whole: bool,
}

impl Round {
    /// The gifts in the order in which they were asked for, once all are there. Without any: once all hosts have given theirs.
    fn take(&self) -> Option<Vec<Vec<u8>>> {
        if self.wanted.is_empty() && !self.is_whole {
            return None;
        }
        self.wanted
            .iter()
            .map(|rank| self.had.get(rank).cloned())
            .collect()
    }
}

/// One host in a meeting: a machine without I/O and clock.
///
/// Call [`Meeting::handle`] for each packet to this host and [`Meeting::handle_timeout`] often; send what both return.
#[derive(Debug)]
pub struct Meeting {
    mcst_id: McstId,
    side: Side,
    round: Round,
    repeat: Nanos,
    next: Nanos,
}

#[derive(Debug)]
enum Side {
    Leader {
        /// Addresses and keys by rank, from 1.
        hosts: Vec<(Ipv4Addr, u32)>,
        reason: String,
        /// Those who have answered the call.
        heard: BTreeSet<u16>,
        /// By round and rank, those of this host, too.
        gifts: BTreeMap<(u8, u16), Vec<u8>>,
    },
    Receiver {
        leader: Ipv4Addr,
        key: u32,
        /// What this host gives in this round.
        own: Option<MrpGift>,
    },
}

impl Meeting {
    /// A leader calls all others at once, for this reason, and every `repeat` until they answer.
    pub fn new(now: Nanos, mcst_id: McstId, roll: &Roll, reason: &str, repeat: Nanos) -> Self {
        let side = match roll {
            Roll::Leader(keys) => Side::Leader {
                hosts: keys.iter().map(|(ip, key)| (*ip, *key)).collect(),
                reason: reason.to_owned(),
                heard: BTreeSet::new(),
                gifts: BTreeMap::new(),
            },
            Roll::Receiver { leader, key, .. } => Side::Receiver {
                leader: *leader,
                key: *key,
                own: None,
            },
        };
        let round = Round::default();
        Self {
            mcst_id,
            side,
            round,
            repeat,
            next: now,
        }
    }

    /// Begins a round with the gift of this host. The gifts of `wanted` are asked for; if it is empty, the round ends when all hosts have given
    /// theirs. Rounds have numbers of their own, the same at all hosts.
    ///
    /// # Errors
    /// The gift is over 1024 bytes, or over 128 are wanted. Nothing is begun.
    pub fn begin(
        &mut self,
        now: Nanos,
        (number, rank): (u8, u16),
        gift: Vec<u8>,
        wanted: &[u16],
    ) -> Result<(), TooMuch> {
        if gift.len() > GIFT_MAX || wanted.len() > WANTED_MAX {
            let (bytes, wanted) = (gift.len(), wanted.len());
            return Err(TooMuch { bytes, wanted });
        }
        self.round = Round {
            number,
            wanted: wanted.to_vec(),
            ..Round::default()
        };
        match &mut self.side {
            Side::Leader { gifts, .. } => {
                gifts.insert((number, rank), gift);
            }
            Side::Receiver { own, .. } => {
                let round = number;
                let bytes = gift;
                *own = Some(MrpGift { round, rank, bytes });
            }
        }
        self.next = now;
        Ok(())
    }

    /// What was asked for in the round that was begun last, once all is there: in the order of `wanted`.
    pub fn take(&self) -> Option<Vec<Vec<u8>>> {
        match &self.side {
            Side::Receiver { .. } => self.round.take(),
            Side::Leader { gifts, .. } if self.round.wanted.is_empty() => {
                (gifts.contains_key(&(self.round.number, 0)) && self.missing().is_empty()).then(Vec::new)
            }
            Side::Leader { gifts, .. } => {
                let wanted = self.round.wanted.iter();
                wanted
                    .map(|rank| gifts.get(&(self.round.number, *rank)).cloned())
                    .collect()
            }
        }
    }

    /// The ranks whose gifts of this round have not come, as far as this host can know.
    pub fn missing(&self) -> Vec<u16> {
        match &self.side {
            Side::Leader { hosts, gifts, .. } => {
                let ranks = 1..=hosts.len() as u16;
                ranks
                    .filter(|rank| !gifts.contains_key(&(self.round.number, *rank)))
                    .collect()
            }
            Side::Receiver { .. } => {
                let lacks = |rank: &&u16| !self.round.had.contains_key(rank);
                self.round.wanted.iter().filter(lacks).copied().collect()
            }
        }
    }

    /// Handles a packet with its source address. Returns the answers, each with the address of its host.
    pub fn handle(&mut self, from: Ipv4Addr, packet: &MrpPacket) -> Vec<(Ipv4Addr, MrpPacket)> {
        match (&mut self.side, &packet.body) {
            (
                Side::Leader {
                    hosts, heard, gifts, ..
                },
                MrpBody::Give(mcst_id, gift, wanted),
            ) => {
                let host = usize::from(gift.rank).checked_sub(1).and_then(|n| hosts.get(n));
                let is_from = |(ip, key): &&(Ipv4Addr, u32)| (*ip, *key) == (from, packet.number);
                let Some(&(ip, key)) = host.filter(is_from).filter(|_| *mcst_id == self.mcst_id) else {
                    return Vec::new();
                };
                heard.insert(gift.rank);
                gifts
                    .entry((gift.round, gift.rank))
                    .or_insert_with(|| gift.bytes.clone());
                let round = gift.round;
                let mut answers = Answers::new(self.mcst_id, (ip, key));
                for &rank in wanted {
                    if let Some(bytes) = gifts.get(&(round, rank)) {
                        let bytes = bytes.clone();
                        answers.add(MrpGift { round, rank, bytes });
                    }
                }
                let all = (0..=hosts.len() as u16).all(|rank| gifts.contains_key(&(round, rank)));
                if wanted.is_empty() && all {
                    let bytes = Vec::new();
                    answers.add(MrpGift {
                        round,
                        rank: 0,
                        bytes,
                    });
                }
                answers.packets
            }
            (Side::Receiver { leader, key, .. }, MrpBody::Take(mcst_id, gifts))
                if *mcst_id == self.mcst_id && (from, packet.number) == (*leader, *key) =>
            {
                for gift in gifts.iter().filter(|gift| gift.round == self.round.number) {
                    if self.round.wanted.contains(&gift.rank) {
                        self.round.had.insert(gift.rank, gift.bytes.clone());
                    }
                    self.round.is_whole |= self.round.wanted.is_empty();
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// The packets to be sent now, each with the address of its host.
    pub fn handle_timeout(&mut self, now: Nanos) -> Vec<(Ipv4Addr, MrpPacket)> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + self.repeat;
        match &self.side {
            Side::Leader {
                hosts, reason, heard, ..
            } => {
                let size = 1 + hosts.len() as u16;
                let call = |(rank, &(ip, number)): (u16, &(Ipv4Addr, u32))| {
                    let reason = reason.clone();
                    let body = MrpBody::Call(self.mcst_id, MrpCall { rank, size, reason });
                    (ip, MrpPacket { number, body })
                };
                let all = (1..).zip(hosts).filter(|(rank, _)| !heard.contains(rank));
                all.map(call).collect()
            }
            Side::Receiver {
                leader,
                key,
                own: Some(own),
            } if self.round.take().is_none() => {
                let body = MrpBody::Give(self.mcst_id, own.clone(), self.missing());
                vec![(*leader, MrpPacket { number: *key, body })]
            }
            Side::Receiver { .. } => Vec::new(),
        }
    }
}

/// What a host gives or wants does not fit into a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a host gives {bytes} bytes and asks {wanted} others: 1024 and 128 at most")]
pub struct TooMuch {
    bytes: usize,
    wanted: usize,
}

/// Gifts to one host, as many in a packet as fit.
struct Answers {
    mcst_id: McstId,
    to: (Ipv4Addr, u32),
    room: usize,
    packets: Vec<(Ipv4Addr, MrpPacket)>,
}

impl Answers {
    const fn new(mcst_id: McstId, to: (Ipv4Addr, u32)) -> Self {
        Self {
            mcst_id,
            to,
            room: 0,
            packets: Vec::new(),
        }
    }

    fn add(&mut self, gift: MrpGift) {
        let need = RECORD + gift.bytes.len();
        match self.packets.last_mut() {
            Some((
                _,
                MrpPacket {
                    body: MrpBody::Take(_, gifts),
                    ..
                },
            )) if self.room >= need => {
                gifts.push(gift);
                self.room -= need;
            }
            _ => {
                let (ip, number) = self.to;
                let body = MrpBody::Take(self.mcst_id, vec![gift]);
                self.packets.push((ip, MrpPacket { number, body }));
                self.room = PAYLOAD_MAX - HEAD - need;
            }
        }
    }
}
