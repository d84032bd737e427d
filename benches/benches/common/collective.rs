//! A star of ranks whose contributions one engine adds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use castnet_engine::CollectiveCounters;
use castnet_port::{Pool, PoolBuf, PoolConfig};
use castnet_reduce::Kernel;
use castnet_rules::{GroupRule, HostEndpoint, RankPart, TranslatedRule};
use castnet_wire::{Call, CallFlags, Control, DataType, Operation, Primitive, Verdict};

use super::*;

pub const RANKS: usize = 8;
/// Data packets of each rank: one batch, so that slots and frames stay in the L2 cache.
pub const PACKETS: u32 = BATCH as u32;
const SLOTS: u16 = 64;

pub struct Sums {
    engine: Engine,
    sink: Sink,
    rule: GroupRule,
    payload: usize,
    controls: Vec<PoolBuf>,
    data: Vec<Vec<PoolBuf>>,
    /// Payloads and slots of the baseline, as many as [`Sums::contributions`] uses.
    payloads: Vec<Vec<u8>>,
    slots: Vec<[u8; 64]>,
}

/// At ports 0 to 7.
pub fn rule(group: McstId, slots: u16, payload: usize) -> GroupRule {
    let rank = |n: usize| HostEndpoint {
        name: format!("h{n}"),
        ip: ip(n),
        qpn: Qpn::new(0x100 + n as u32),
        mac: mac(0xAA, n),
        part: RankPart {
            rank: n as u16,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
        }
        .into(),
    };
    let ranks = (0..RANKS).map(rank).collect();
    let rule = GroupRule::star("sum", group, Pmtu::B4096, TranslatedRule::root(slots), ranks);
    GroupRule {
        pmtu: Pmtu::from_bytes(payload as u32).unwrap_or(Pmtu::B4096),
        ..rule.expect("a valid rule")
    }
}

pub fn control(group: McstId, rank: usize, packets: u32, payload: usize) -> Vec<u8> {
    control_of(group, rank, 0, (packets, u64::from(packets) * payload as u64 / 4))
}

/// The control message of the collective `sequence`, of so many packets and elements, with that PSN: those before it are barriers.
pub fn control_of(group: McstId, rank: usize, sequence: u32, (packets, elements): (u32, u64)) -> Vec<u8> {
    let mut bytes = [0; Control::LEN];
    Control {
        sequence,
        rank: rank as u16,
        call: Call {
            primitive: Primitive::AllReduce,
            root: 0,
            roots: 1,
            operation: Operation::Sum,
            data_type: DataType::F32,
            flags: CallFlags::default(),
            elements,
            packets,
        },
        verdict: Verdict::Agreed,
    }
    .emit(&mut bytes);
    let imm = Some(Control::IMMEDIATE);
    frame(group, rank, Opcode::SendOnlyImm, sequence, imm, &bytes)
}

/// The control message has PSN 0.
pub fn contribution(rule: &GroupRule, rank: usize, psn: u32, payload: &[u8]) -> Vec<u8> {
    let message_packets = rule.translated().map_or(1, |kind| kind.message_packets);
    let opcode = match psn % u32::from(message_packets) {
        1 => Opcode::SendFirst,
        0 => Opcode::SendLast,
        _ => Opcode::SendMiddle,
    };
    frame(rule.mcst_id, rank, opcode, psn, None, payload)
}

impl Sums {
    /// `change` is what the group's rule has of its own.
    pub fn new(payload: usize, change: impl FnOnce(&mut TranslatedRule)) -> Self {
        let rule = rule(MCST, SLOTS, payload).with_translated(change);
        let engine = engine(RANKS);
        let mut sink = Sink::new();
        sink.pool = Pool::new(PoolConfig {
            buffers: 8192,
            bodies: 1024,
            frame_max: 4400,
        });
        let floats = floats(payload);
        let pool = sink.pool.clone();
        let load = |bytes: Vec<u8>| pool.copy_from(&bytes).expect("a buffer");
        let data = |rank| {
            (1..=PACKETS)
                .map(|psn| load(contribution(&rule, rank, psn, &floats)))
                .collect()
        };
        Self {
            controls: (0..RANKS)
                .map(|rank| load(control(MCST, rank, PACKETS, payload)))
                .collect(),
            data: (0..RANKS).map(data).collect(),
            engine,
            sink,
            rule,
            payload,
            payloads: vec![floats; PACKETS as usize * (RANKS - 2)],
            slots: vec![[0; 64]; PACKETS as usize * payload / 64],
        }
    }

    fn feed(&mut self, from: usize, frames: impl Fn(&Self) -> &[PoolBuf], engine: bool) {
        let mut batch = Batch::new();
        batch.extend(frames(self).iter().filter_map(PoolBuf::replicate));
        if engine {
            self.engine.begin_iteration();
            self.engine.process(NOW, port(from), &mut batch, &mut self.sink);
        } else {
            black_box(&mut batch).clear();
        }
        black_box(&mut self.sink.sent).clear();
    }

    pub fn install(&mut self) {
        install(&mut self.engine, &self.rule);
    }

    /// Installs a new group and sends it the control messages of all ranks and the data of the first `ranks`.
    fn prepare(&mut self, ranks: usize) {
        self.install();
        for rank in 0..RANKS {
            self.feed(rank, |s| &s.controls[rank..=rank], true);
        }
        for rank in 0..ranks {
            self.feed(rank, |s| &s.data[rank], true);
        }
    }

    fn counters(&self) -> CollectiveCounters {
        let group = self.engine.collective(MCST);
        group.map(|g| *g.counters()).unwrap_or_default()
    }

    /// Contributions that complete nothing. `engine` false is the baseline: frames are only moved.
    pub fn contributions(&mut self, engine: bool, rounds: u64) -> (Duration, u64) {
        let mut total = Duration::ZERO;
        for _ in 0..rounds {
            self.prepare(1);
            let start = Instant::now();
            for rank in 1..RANKS - 1 {
                self.feed(rank, |s| &s.data[rank], engine);
            }
            total += start.elapsed();
        }
        if engine {
            let counters = self.counters();
            let expected = u64::from(PACKETS) * (RANKS as u64 - 1);
            assert_eq!(
                (counters.contributions, counters.results),
                (expected, 0),
                "the intended case is measured"
            );
        }
        (total, rounds * u64::from(PACKETS) * (RANKS as u64 - 2))
    }

    /// Necessary work of any switch: the CRC of each of these payloads, and its sum with a slot.
    pub fn crc_and_add(&mut self, crc: &dyn Fn(&[u8]) -> u32, rounds: u64) -> (Duration, u64) {
        let kernel = Kernel::select(Operation::Sum, DataType::F32, CallFlags::default());
        let mut total = Duration::ZERO;
        for _ in 0..rounds {
            self.slots.fill([0; 64]);
            let start = Instant::now();
            for payloads in self.payloads.chunks(PACKETS as usize) {
                let slots = self.slots.as_flattened_mut().chunks_exact_mut(self.payload);
                for (payload, slot) in payloads.iter().zip(slots) {
                    if black_box(crc(black_box(payload))) != 0 {
                        kernel.apply(slot, payload);
                    }
                }
            }
            total += start.elapsed();
        }
        (total, rounds * self.payloads.len() as u64)
    }

    /// The last contributions: each is added, and its result sent to all ranks.
    pub fn results(&mut self, rounds: u64) -> (Duration, u64) {
        let mut total = Duration::ZERO;
        for _ in 0..rounds {
            self.prepare(RANKS - 1);
            let start = Instant::now();
            self.feed(RANKS - 1, |s| &s.data[RANKS - 1], true);
            total += start.elapsed();
        }
        let expected = u64::from(PACKETS) * RANKS as u64;
        assert_eq!(self.counters().results, expected, "the intended case is measured");
        (total, rounds * u64::from(PACKETS))
    }

    /// The ports' part of [`Sums::results`]: the batch is moved; each frame becomes a head, the payload and an ICRC,
    /// replicated to the other ranks and queued; then all are released.
    pub fn results_moved(&mut self, rounds: u64) -> (Duration, u64) {
        let payload = vec![1u8; self.payload * PACKETS as usize];
        let mut total = Duration::ZERO;
        for _ in 0..rounds {
            let start = Instant::now();
            let mut batch = Batch::new();
            batch.extend(self.data[RANKS - 1].iter().filter_map(PoolBuf::replicate));
            for (frame, payload) in batch.drain(..).zip(payload.chunks(self.payload)) {
                let head: &[u8; 54] = black_box(frame.head()).first_chunk().expect("headers");
                let Some(made) = self.sink.gather(port(0), &[head, payload, &[0; 4]]) else {
                    continue;
                };
                for n in 1..RANKS {
                    if let Some(copy) = self.sink.replicate(port(n), &made, 54) {
                        self.sink.send(port(n), copy);
                    }
                }
                self.sink.send(port(0), made);
            }
            black_box(&mut self.sink.sent).clear();
            total += start.elapsed();
        }
        (total, rounds * u64::from(PACKETS))
    }

    pub fn all(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.prepare(RANKS);
        }
    }
}
