//! Compares fast path and slow path (an engine whose tap wants all frames) for plain data and ACKs: frames and counters
//! are equal. Also replicas that share the bytes behind their heads.

use std::rc::Rc;
use std::sync::Arc;

use crate::common::*;
use castnet_engine::{Context, CountersSnapshot, Egress, Engine, FrameFilter, PortSet, TapId};
use castnet_wire::build::emit_ack;
use castnet_wire::{
    Aeth, Batch, FrameBuf, Ipv4, NakCode, Nanos, Network, Opcode, PortId, Psn, Qpn, Reth, Syndrome,
};
use proptest::prelude::*;

/// The next step of the test.
#[derive(Clone, Debug)]
enum Draw {
    /// The next data, so many times.
    Next {
        opcode: Opcode,
        length: usize,
        times: u32,
    },
    /// Data with another PSN.
    Other {
        ahead: i32,
        length: usize,
    },
    /// The next data with one bit wrong somewhere.
    Wrong {
        bit: prop::sample::Index,
        length: usize,
    },
    /// The next data, with bytes behind it that belong to Ethernet.
    Padded,
    Feedback(Answer),
    /// By another port than the source's.
    Stray {
        port: usize,
    },
    Links {
        up: u64,
    },
    /// The group is put in once more, with or without its last member.
    Install {
        fewer: bool,
    },
    Remove,
}

/// A member's ACK or NAK, of the newest data or some before.
#[derive(Clone, Debug)]
struct Answer {
    from: usize,
    back: u32,
    nak: bool,
    msn: u32,
    tos: u8,
    ttl: u8,
    ident: u16,
    sport: u16,
    wrong: Option<prop::sample::Index>,
}

impl Answer {
    fn bytes(&self, newest: u32) -> Vec<u8> {
        let syndrome = match self.nak {
            true => Syndrome::Nak(NakCode::PsnSequenceError),
            false => Syndrome::Ack,
        };
        let network = Network::V4(Ipv4 {
            tos: self.tos,
            ttl: self.ttl,
            ident: self.ident,
            ..Ipv4::udp(host_ip(self.from), MCST.0)
        });
        let mut out = vec![0; 128];
        let psn = Psn::new(newest.saturating_sub(self.back));
        let aeth = Aeth {
            syndrome,
            msn: self.msn,
        };
        let n = emit_ack(
            &mut out,
            &ethernet(self.from),
            &network,
            self.sport,
            Qpn::VIRTUAL,
            psn,
            aeth,
        )
        .unwrap();
        out.truncate(n);
        if let Some(bit) = self.wrong {
            let bit = bit.index(n * 8);
            out[bit / 8] ^= 1 << (bit % 8);
        }
        out
    }
}

fn answer() -> impl Strategy<Value = Answer> {
    let usual = (1_usize..5, 0_u32..4, prop::bool::weighted(0.15), any::<u32>());
    let fields = (
        prop_oneof![3 => Just(0_u8), 1 => any::<u8>()],
        prop_oneof![3 => Just(64_u8), 1 => any::<u8>()],
        prop_oneof![3 => Just(0_u16), 1 => any::<u16>()],
        prop_oneof![3 => Just(0xC777_u16), 1 => any::<u16>()],
    );
    let wrong = prop::option::weighted(0.1, any::<prop::sample::Index>());
    (usual, fields, wrong).prop_map(
        |((from, back, nak, msn), (tos, ttl, ident, sport), wrong)| Answer {
            from,
            back,
            nak,
            msn: msn & 0xFF_FFFF,
            tos,
            ttl,
            ident,
            sport,
            wrong,
        },
    )
}

fn draw() -> impl Strategy<Value = Draw> {
    let opcode = prop_oneof![
        4 => Just(Opcode::SendOnly),
        4 => Just(Opcode::SendMiddle),
        2 => Just(Opcode::WriteMiddle),
        1 => Just(Opcode::WriteLast),
        1 => Just(Opcode::WriteOnly),
        1 => Just(Opcode::SendOnlyImm),
    ];
    let length = || prop_oneof![4 => Just(1024_usize), 2 => Just(256), 1 => Just(0), 1 => 0_usize..1030];
    prop_oneof![
        12 => (opcode, length(), 1_u32..5).prop_map(|(opcode, length, times)| Draw::Next { opcode, length, times }),
        3 => (-4_i32..4, length()).prop_map(|(ahead, length)| Draw::Other { ahead, length }),
        3 => (any::<prop::sample::Index>(), length()).prop_map(|(bit, length)| Draw::Wrong { bit, length }),
        1 => Just(Draw::Padded),
        16 => answer().prop_map(Draw::Feedback),
        1 => (1_usize..6).prop_map(|port| Draw::Stray { port }),
        1 => any::<u64>().prop_map(|up| Draw::Links { up: up | 0x13 }),
        1 => any::<bool>().prop_map(|fewer| Draw::Install { fewer }),
        1 => Just(Draw::Remove),
    ]
}

fn data(opcode: Opcode, psn: u32, length: usize) -> DataFrame {
    let payload: Vec<u8> = (0..length).map(|i| (i as u32 + psn) as u8).collect();
    let mut frame = DataFrame::new(opcode, psn, &payload);
    frame.ident = psn as u16 ^ 0x5AA5;
    if opcode == Opcode::WriteOnly {
        frame.ext.reth = Some(Reth {
            va: VA_BASE + 64,
            rkey: 7,
            dma_len: length as u32,
        });
    }
    if opcode == Opcode::SendOnlyImm {
        frame.ext.imm = Some(psn);
    }
    frame
}

/// A source, three members, and a switch.
fn group(fewer: bool, generation: u64) -> castnet_rules::GroupRule {
    let mut paths: Vec<_> = (0..4).map(host).collect();
    paths.push(switch(4));
    if fewer {
        paths.remove(3);
    }
    castnet_rules::GroupRule {
        generation,
        ..rule(paths)
    }
}

/// All counters.
fn everything(engine: &Engine) -> String {
    let mut snapshot = CountersSnapshot::with_capacity(4, 64);
    engine.snapshot(&mut snapshot);
    format!("{snapshot:?}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn the_fast_path_does_what_the_slow_one_does(draws in prop::collection::vec(draw(), 1..60)) {
        let (mut fast, mut slow) = (engine(6), engine(6));
        // A tap that wants all frames keeps them from the fast path.
        let tap = TapId::all().next().unwrap();
        slow.taps.arm_capture(tap, FrameFilter::default(), usize::MAX, u64::MAX);
        let (mut psn, mut generation, mut now) = (100, 1, T0);
        for engine in [&mut fast, &mut slow] {
            install(engine, &group(false, generation));
        }
        for draw in draws {
            let mut frames: Vec<(usize, Vec<u8>)> = Vec::new();
            match draw {
                Draw::Next { opcode, length, times } => {
                    for _ in 0..times {
                        frames.push((0, data(opcode, psn, length).bytes()));
                        psn += 1;
                    }
                }
                Draw::Other { ahead, length } => {
                    let other = psn.saturating_add_signed(ahead);
                    frames.push((0, data(Opcode::SendMiddle, other, length).bytes()));
                    psn = psn.max(other + 1);
                }
                Draw::Wrong { bit, length } => {
                    let mut frame = data(Opcode::SendMiddle, psn, length).bytes();
                    let bit = bit.index(frame.len() * 8);
                    frame[bit / 8] ^= 1 << (bit % 8);
                    frames.push((0, frame));
                }
                Draw::Padded => {
                    let mut frame = data(Opcode::SendMiddle, psn, 0).bytes();
                    frame.resize(60 + 4, 0);
                    frames.push((0, frame));
                    psn += 1;
                }
                Draw::Feedback(answer) => frames.push((answer.from, answer.bytes(psn - 1))),
                Draw::Stray { port } => frames.push((port, data(Opcode::SendMiddle, psn, 1024).bytes())),
                Draw::Links { up } => {
                    for engine in [&mut fast, &mut slow] {
                        let tables = crate::common::tables(generation, [MCST], &[], PortSet(up));
                        engine.set_tables(now, Arc::new(tables));
                    }
                }
                Draw::Install { fewer } => {
                    generation += 1;
                    for engine in [&mut fast, &mut slow] {
                        let group = Context::compile(&group(fewer, generation), &engine.config().ports).unwrap();
                        engine.install(now, group).unwrap();
                    }
                    psn = 100;
                }
                Draw::Remove => {
                    let removed = [&mut fast, &mut slow].map(|engine| engine.remove(MCST).is_some());
                    prop_assert_eq!(removed[0], removed[1]);
                }
            }
            for (port, frame) in frames {
                now += Nanos(1000);
                let left = feed(&mut fast, now, port, &frame);
                prop_assert_eq!(&left, &feed(&mut slow, now, port, &frame));
            }
            prop_assert_eq!(everything(&fast), everything(&slow));
            let status = [&fast, &slow].map(|engine| engine.group_status(MCST));
            prop_assert_eq!(&status[0], &status[1]);
            assert_conserved(&fast);
        }
    }
}

/// A frame whose bytes behind the head others may read.
#[derive(Clone, Debug)]
struct Lent {
    head: Vec<u8>,
    rest: Rc<Vec<u8>>,
}

impl Lent {
    fn new(bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_at(bytes.len().min(128));
        Self {
            head: head.to_vec(),
            rest: Rc::new(rest.to_vec()),
        }
    }
}

impl FrameBuf for Lent {
    fn length(&self) -> usize {
        self.head.len() + self.rest.len()
    }
    fn head(&self) -> &[u8] {
        &self.head
    }
    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.head
    }
    fn trailer(&self) -> [u8; 4] {
        let all = [self.head.as_slice(), &self.rest].concat();
        all.last_chunk().copied().unwrap_or_default()
    }
    fn set_trailer(&mut self, bytes: [u8; 4]) {
        let Some(rest) = Rc::get_mut(&mut self.rest) else {
            panic!("others read this trailer");
        };
        match rest.last_chunk_mut() {
            Some(last) => *last = bytes,
            None => *self.head.last_chunk_mut().unwrap() = bytes,
        }
    }
    fn segments(&self) -> [&[u8]; 3] {
        [&self.head, &self.rest, &[]]
    }
}

#[derive(Default)]
struct Lending {
    sent: Vec<(usize, Lent)>,
    lent: usize,
    /// How many more were promised each time.
    to_come: Vec<usize>,
    /// Replicas that there is a buffer for.
    buffers: usize,
}

impl Egress for Lending {
    type Buf = Lent;
    fn replicate(&mut self, _: PortId, original: &Lent, _: usize) -> Option<Lent> {
        Some(Lent::new(&original.segments().concat()))
    }
    fn lends(&self, ports: PortSet, length: usize) -> bool {
        !ports.is_empty() && length >= 1000
    }
    fn lend(&mut self, original: &Lent, to_come: usize) -> Option<Lent> {
        self.to_come.push(to_come);
        self.buffers = self.buffers.checked_sub(1)?;
        self.lent += 1;
        Some(original.clone())
    }
    fn allocate(&mut self, _: PortId, length: usize) -> Option<Lent> {
        Some(Lent::new(&vec![0; length]))
    }
    fn gather(&mut self, _: PortId, parts: &[&[u8]]) -> Option<Lent> {
        Some(Lent::new(&parts.concat()))
    }
    fn send(&mut self, port: PortId, frame: Lent) {
        self.sent.push((port.index(), frame));
    }
}

#[test]
fn replicas_that_borrow_their_body_and_icrc_are_right_all_the_same() {
    let (mut lending, mut copying) = (engine(6), engine(6));
    for engine in [&mut lending, &mut copying] {
        install(engine, &group(false, 1));
    }
    let mut lent = 0;
    for psn in 100..160 {
        // Now and then one with another length.
        let length = if psn % 8 == 5 { 300 } else { 1024 };
        let frame = data(Opcode::SendMiddle, psn, length).bytes();
        let mut egress = Lending {
            buffers: 99,
            ..Lending::default()
        };
        let mut batch = Batch::new();
        batch.push(Lent::new(&frame));
        lending.process(T0, port(0), &mut batch, &mut egress);
        let plain = feed(&mut copying, T0, 0, &frame);
        assert_eq!(egress.sent.len(), 4);
        assert!(egress.to_come.is_empty() || egress.to_come == [2, 1, 0]);
        lent += egress.lent;
        for ((at, borrowed), (plain_at, plain)) in egress.sent.iter().zip(&plain) {
            let borrowed = borrowed.segments().concat();
            assert!(at == plain_at && is_sound(&borrowed) && is_sound(plain));
            // Identification, checksum, source port and ICRC may differ, and nothing else.
            let free = [18..20, 24..26, 34..36, plain.len() - 4..plain.len()];
            let same = |i: &usize| borrowed[*i] == plain[*i] || free.iter().any(|range| range.contains(i));
            assert!((0..plain.len()).all(|i| same(&i)), "PSN {psn}, port {at}");
            let original_icrc = borrowed.ends_with(&frame[frame.len() - 4..]);
            assert_eq!(original_icrc, egress.lent > 0 || *at == 4, "PSN {psn}, port {at}");
        }
    }
    assert!(lent > 100, "{lent}");
    assert_eq!(everything(&lending), everything(&copying));
    assert_conserved(&lending);
}

/// Routers choose among equal paths by the source port, which the packets that take the slow path keep.
#[test]
fn replicas_keep_their_source_port_where_a_switch_is_behind_routers() {
    let mut engine = engine(6);
    let rule = rule((0..4).map(host).chain([far_switch(4)]).collect());
    install(&mut engine, &rule);
    for psn in 100..110 {
        let mut egress = Lending::default();
        let mut batch = Batch::new();
        let frame = data(Opcode::SendMiddle, psn, 1024).bytes();
        batch.push(Lent::new(&frame));
        engine.process(T0, port(0), &mut batch, &mut egress);
        assert_eq!((egress.sent.len(), egress.lent), (4, 0));
        for (_, copy) in &egress.sent {
            let copy = copy.segments().concat();
            assert!(is_sound(&copy));
            assert_eq!(roce(&copy).sport, roce(&frame).sport);
        }
    }
}

#[test]
fn a_replica_without_a_buffer_is_counted_as_lost_on_the_fast_path_too() {
    let mut engine = engine(6);
    install(&mut engine, &group(false, 1));
    for psn in 100..110 {
        let mut egress = Lending {
            buffers: 2,
            ..Lending::default()
        };
        let mut batch = Batch::new();
        batch.push(Lent::new(&data(Opcode::SendMiddle, psn, 1024).bytes()));
        engine.process(T0, port(0), &mut batch, &mut egress);
        let (sent, lost) = (egress.sent.len(), engine.totals().copies_lost);
        assert_eq!((sent, lost), (3, u64::from(psn - 99)));
    }
    assert_conserved(&engine);
}
