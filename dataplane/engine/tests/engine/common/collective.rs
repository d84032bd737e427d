//! Ranks with whole frames, switches of a collective group, and a network between them that loses, doubles, reorders and
//! corrupts. Everything follows from a seed.

use std::collections::BTreeMap;

use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, Engine};
use castnet_rules::{
    CollectiveMode, Endpoint, GroupRule, HostEndpoint, LossPolicy, NextHop, RankPart, StragglerPolicy,
    TranslatedRule,
};
use castnet_wire::{
    Aeth, Batch, Call, CallFlags, Control, DataType, ExtHeaders, Ipv4, Kind, NakCode, Nanos, Opcode,
    Operation, Pmtu, Primitive, Psn, Syndrome, Verdict, icrc,
};

use super::*;

/// The group's address.
pub const GROUP: McstId = McstId(Ipv4Addr::new(10, 9, 1, 1));
/// Bytes of a full packet in these tests.
pub const PMTU: Pmtu = Pmtu::B256;
/// When ranks and switches repeat.
pub const TIMEOUT: Nanos = Nanos::from_millis(8);
/// Packets per message.
const MSG: usize = 4;

pub fn rank_host(rank: usize) -> HostEndpoint {
    let part = RankPart {
        rank: rank as u16,
        sq_psn: sq_psn(rank),
        rq_psn: rq_psn(rank),
    };
    HostEndpoint {
        name: format!("h{rank}"),
        ip: host_ip(rank),
        qpn: host_qpn(rank),
        mac: peer_mac(rank),
        part: part.into(),
    }
}

/// Near the wrap, and different for each.
pub fn sq_psn(rank: usize) -> Psn {
    Psn::new(0xFF_FFF0 + 7 * rank as u32)
}

pub fn rq_psn(rank: usize) -> Psn {
    Psn::new(0xFF_FFFC + 3 * rank as u32)
}

pub fn rank_at(port_number: usize, rank: usize) -> Endpoint {
    Endpoint::new(port(port_number), NextHop::Host(rank_host(rank)))
}

pub fn switch_at(port_number: usize, ranks: &[u16]) -> Endpoint {
    Endpoint::new(
        port(port_number),
        NextHop::Switch {
            name: format!("s{port_number}"),
            ip: None,
            qpn: Qpn::VIRTUAL,
            mac: peer_mac(port_number),
            ranks: ranks.to_vec(),
            mode: None,
            core: None,
        },
    )
}

/// `parent` is the port of one of the endpoints.
pub fn collective_rule(endpoints: Vec<Endpoint>, parent: Option<usize>) -> GroupRule {
    let parent = parent.map(|parent| endpoints.iter().position(|e| e.port == port(parent)));
    let kind = TranslatedRule {
        start_psn: Psn::new(0xFF_FFFA),
        slots: 32,
        message_packets: MSG as u16,
        reproducible: false,
        mode: CollectiveMode::Translated,
        loss_policy: LossPolicy::Repair,
        straggler_policy: StragglerPolicy::KeepAlive,
        ack_timeout_us: (TIMEOUT.0 / 1000) as u32,
        parent: parent.map(|index| index.expect("an endpoint at its port") as u16),
    };
    GroupRule {
        name: "sum".into(),
        generation: 1,
        mcst_id: GROUP,
        pmtu: PMTU,
        stall_timeout_ms: 500,
        rate_limit: None,
        endpoints,
        kind: kind.into(),
    }
}

/// Ranks 0 to `ranks - 1` at the ports of these numbers.
pub fn collective_star(ranks: usize) -> GroupRule {
    collective_rule((0..ranks).map(|r| rank_at(r, r)).collect(), None)
}

/// The same behind one port.
pub fn one_armed_star(ranks: usize) -> GroupRule {
    collective_rule((0..ranks).map(|r| rank_at(0, r)).collect(), None)
}

pub fn install_collective(engine: &mut Engine, rule: &GroupRule) {
    let group = Context::compile(rule, &engine.config().ports).unwrap();
    assert!(engine.install(Nanos::ZERO, group).unwrap().is_none());
}

/// One collective that all ranks call, and what each brings.
#[derive(Clone, Debug)]
pub struct Job {
    pub primitive: Primitive,
    pub root: usize,
    pub data_type: DataType,
    pub elements: usize,
    /// By rank.
    pub data: Vec<Vec<u8>>,
}

impl Job {
    pub fn call(&self) -> Call {
        let bytes = self.elements * self.data_type.size();
        Call {
            primitive: self.primitive,
            root: if self.primitive == Primitive::AllReduce {
                0
            } else {
                self.root as u16
            },
            roots: 1,
            operation: Operation::Sum,
            data_type: self.data_type,
            flags: CallFlags::default(),
            elements: self.elements as u64,
            packets: bytes.div_ceil(PMTU.bytes()) as u32,
        }
    }

    pub fn sends(&self, rank: usize) -> bool {
        match self.primitive {
            Primitive::AllReduce => true,
            Primitive::Reduce => rank != self.root,
            Primitive::Broadcast => rank == self.root,
        }
    }

    pub fn receives(&self, rank: usize) -> bool {
        match self.primitive {
            Primitive::AllReduce => true,
            Primitive::Reduce => rank == self.root,
            Primitive::Broadcast => rank != self.root,
        }
    }

    /// What `rank` must get, computed plainly in one place: in the order of ranks.
    pub fn expected(&self, rank: usize) -> Vec<u8> {
        if !self.receives(rank) {
            return Vec::new();
        }
        let senders = (0..self.data.len()).filter(|r| self.sends(*r));
        let sum = senders
            .map(|r| self.data[r].clone())
            .reduce(|a, b| add(self.data_type, &a, &b));
        sum.unwrap_or_default()
    }
}

/// The sum, element by element.
pub fn add(data_type: DataType, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! sum {
        ($t:ty, $n:literal, $add:expr) => {
            a.as_chunks::<$n>()
                .0
                .iter()
                .zip(b.as_chunks::<$n>().0)
                .flat_map(|(a, b)| $add(<$t>::from_le_bytes(*a), <$t>::from_le_bytes(*b)).to_le_bytes())
                .collect()
        };
    }
    match data_type {
        DataType::F32 => sum!(f32, 4, |a: f32, b: f32| a + b),
        DataType::I32 => sum!(i32, 4, i32::wrapping_add),
        DataType::U64 => sum!(u64, 8, u64::wrapping_add),
        DataType::F64 => sum!(f64, 8, |a: f64, b: f64| a + b),
        DataType::U8 => sum!(u8, 1, u8::wrapping_add),
        other => unreachable!("not in these tests: {other:?}"),
    }
}

/// One packet that a rank sends or has got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub opcode: Opcode,
    pub imm: Option<u32>,
    pub payload: Vec<u8>,
}

/// A rank: an RC QP with one thing to do, as plainly as can be.
#[derive(Debug)]
pub struct Rank {
    pub rank: usize,
    pub starts: Nanos,
    /// All that it sends, in order; packet `i` has PSN `sq_psn + i`.
    pub packets: Vec<Sent>,
    next: usize,
    pub acked: usize,
    /// All that it has got, in order; packet `i` had PSN `rq_psn + i`.
    pub got: Vec<Sent>,
    /// Identification that the next packet has, if it continues a message.
    ident_next: u16,
    nak_sent: bool,
    pub deadline: Nanos,
    window: usize,
    pub vlan: Option<u16>,
    /// Of its data.
    pub tos: u8,
    /// The group's address at its switch.
    pub mcst_id: McstId,
}

impl Rank {
    pub fn new(rank: usize, starts: Nanos, jobs: &[Job]) -> Self {
        let mut packets = Vec::new();
        for (sequence, job) in jobs.iter().enumerate() {
            packets.push(control(sequence as u32, rank as u16, job.call()));
            if !job.sends(rank) {
                continue;
            }
            let chunks: Vec<&[u8]> = job.data[rank].chunks(PMTU.bytes()).collect();
            for (i, chunk) in chunks.iter().enumerate() {
                let (first, last) = (i % MSG == 0, i % MSG == MSG - 1 || i + 1 == chunks.len());
                packets.push(Sent {
                    opcode: match (first, last) {
                        (true, true) => Opcode::SendOnly,
                        (true, false) => Opcode::SendFirst,
                        (false, false) => Opcode::SendMiddle,
                        (false, true) => Opcode::SendLast,
                    },
                    imm: None,
                    payload: chunk.to_vec(),
                });
            }
        }
        Self {
            rank,
            starts,
            packets,
            next: 0,
            acked: 0,
            got: Vec::new(),
            ident_next: 0,
            nak_sent: false,
            deadline: starts + TIMEOUT,
            window: 14,
            vlan: None,
            tos: 0x68,
            mcst_id: GROUP,
        }
    }

    /// With this TOS.
    pub fn with_tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// What it may send now.
    fn send(&mut self, out: &mut Vec<Vec<u8>>) {
        while self.next < self.packets.len() && self.next < self.acked + self.window {
            out.push(self.frame(self.next));
            self.next += 1;
        }
    }

    pub fn frame(&self, i: usize) -> Vec<u8> {
        let sent = &self.packets[i];
        let psn = sq_psn(self.rank).add(i as i32).value();
        let mut frame = DataFrame::new(sent.opcode, psn, &sent.payload);
        (frame.src, frame.dst) = (host_ip(self.rank), self.mcst_id.0);
        frame.ethernet = ethernet(self.rank);
        frame.ack_request = matches!(
            sent.opcode,
            Opcode::SendLast | Opcode::SendOnly | Opcode::SendOnlyImm
        );
        (frame.ext.imm, frame.tos) = (sent.imm, self.tos);
        match self.vlan {
            Some(vid) => frame.vlan(vid).bytes(),
            None => frame.bytes(),
        }
    }

    /// Feedback of this rank.
    pub fn ack(&self, psn: Psn, syndrome: Syndrome) -> Vec<u8> {
        let mut frame = DataFrame::new(Opcode::Ack, psn.value(), &[]);
        (frame.src, frame.dst) = (host_ip(self.rank), self.mcst_id.0);
        frame.ethernet = ethernet(self.rank);
        frame.ext = ExtHeaders {
            aeth: Some(Aeth { syndrome, msn: 0 }),
            ..ExtHeaders::NONE
        };
        match self.vlan {
            Some(vid) => frame.vlan(vid).bytes(),
            None => frame.bytes(),
        }
    }

    /// A frame came in; corrupted ones end here.
    fn receive(&mut self, now: Nanos, bytes: &[u8], out: &mut Vec<Vec<u8>>) {
        let Ok(Parsed::Roce(header)) = parse_frame(bytes, bytes.len()) else {
            return;
        };
        let addressed = header.ip.v4() == Some((self.mcst_id.0, host_ip(self.rank)))
            && header.bth.dest_qp == host_qpn(self.rank);
        if !addressed || !icrc::verify_bytes(bytes, header.l3, header.frame_len) {
            return;
        }
        // It goes back at the NAK. Before its call, it has sent nothing that could be lost.
        if header.bth.opcode == Opcode::RepairRequest || header.aeth.is_some() && self.next == 0 {
            return;
        }
        if let Some(aeth) = header.aeth {
            let ahead = header.bth.psn.diff(sq_psn(self.rank).add(self.acked as i32));
            let acknowledged = match aeth.syndrome {
                Syndrome::Ack => ahead + 1,
                _ => ahead,
            };
            assert!(
                self.acked as i32 + acknowledged <= self.next as i32,
                "rank {}: an acknowledgement of what was never sent",
                self.rank
            );
            if acknowledged > 0 {
                self.acked += acknowledged as usize;
                self.next = self.next.max(self.acked);
            }
            if acknowledged >= 0 {
                self.deadline = now + TIMEOUT;
            }
            if matches!(aeth.syndrome, Syndrome::Nak(_)) && acknowledged >= 0 {
                self.next = self.acked;
            }
            return self.send(out);
        }
        // A CNP asks it to slow down. It does not.
        if header.bth.opcode == Opcode::Cnp {
            return;
        }
        assert_eq!(header.bth.opcode.info().kind, Kind::Send);
        let expected = rq_psn(self.rank).add(self.got.len() as i32);
        match header.bth.psn.diff(expected) {
            0 => {
                let ident = u16::from_be_bytes([bytes[header.l3 + 4], bytes[header.l3 + 5]]);
                if matches!(header.bth.opcode, Opcode::SendMiddle | Opcode::SendLast) {
                    assert_eq!(ident, self.ident_next, "ports can join the packets of a result");
                }
                self.ident_next = ident.wrapping_add(1);
                let end = header.payload_at + header.payload_len;
                self.got.push(Sent {
                    opcode: header.bth.opcode,
                    imm: header.imm,
                    payload: bytes[header.payload_at..end].to_vec(),
                });
                self.nak_sent = false;
                if header.bth.ack_request {
                    out.push(self.ack(expected, Syndrome::Ack));
                }
            }
            n if n < 0 => out.push(self.ack(expected.prev(), Syndrome::Ack)),
            _ if !self.nak_sent => {
                self.nak_sent = true;
                out.push(self.ack(expected, Syndrome::Nak(NakCode::PsnSequenceError)));
            }
            _ => {}
        }
    }

    fn timeout(&mut self, now: Nanos, out: &mut Vec<Vec<u8>>) {
        self.deadline = now + TIMEOUT;
        self.next = self.acked;
        self.send(out);
    }

    /// What it has got of each collective: the control result, and the data.
    pub fn results(&self, jobs: &[Job]) -> Vec<(Control, Vec<u8>)> {
        let mut got = self.got.iter();
        let mut results = Vec::new();
        for job in jobs {
            let Some(first) = got.next() else { break };
            assert_eq!(first.imm, Some(Control::IMMEDIATE));
            let control = Control::parse(&first.payload).expect("a control message");
            let packets = if job.receives(self.rank) {
                job.call().packets
            } else {
                0
            };
            let data = got
                .by_ref()
                .take(packets as usize)
                .flat_map(|p| p.payload.clone());
            results.push((control, data.collect()));
        }
        results
    }

    pub fn is_done(&self, jobs: &[Job]) -> bool {
        let expected: usize = jobs
            .iter()
            .map(|j| {
                1 + if j.receives(self.rank) {
                    j.call().packets as usize
                } else {
                    0
                }
            })
            .sum();
        self.acked == self.packets.len() && self.got.len() == expected
    }
}

pub fn control(sequence: u32, rank: u16, call: Call) -> Sent {
    let control = Control {
        sequence,
        rank,
        call,
        verdict: Verdict::Agreed,
    };
    let mut bytes = [0; Control::LEN];
    control.emit(&mut bytes);
    Sent {
        opcode: Opcode::SendOnlyImm,
        imm: Some(Control::IMMEDIATE),
        payload: bytes.to_vec(),
    }
}

/// Returns true if a switch of the group made this frame: what is corrupted on its way to the group may be switched elsewhere.
pub fn is_ours(frame: &[u8]) -> bool {
    is_from(GROUP, frame)
}

/// The same where the group has this address at the switch.
fn is_from(mcst_id: McstId, frame: &[u8]) -> bool {
    match parse_frame(frame, frame.len()) {
        Ok(Parsed::Roce(header)) => header.ip.v4().is_some_and(|(src, _)| src == mcst_id.0),
        _ => false,
    }
}

/// Numbers from a seed (xorshift, Marsaglia 2003).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below.max(1)
    }
}

/// Faults, in parts of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lost: u64,
    pub doubled: u64,
    pub delayed: u64,
    pub corrupted: u64,
}

/// Where a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Rank(usize),
    Port(usize, usize),
}

/// Takes a frame that left a switch by `port` on to the switch that `to` is routed to, as a router does. False if it is
/// for nobody there.
pub fn route(frame: &mut [u8], port: usize, to: McstId) -> bool {
    const L3: usize = 14;
    let for_router = frame[..6] == peer_mac(port).0;
    match Ipv4::parse(&frame[L3..]) {
        Ok((ip, Ipv4::LEN)) if for_router && ip.dst == to.0 && ip.ttl > 1 => {
            let next = Ipv4 {
                ttl: ip.ttl - 1,
                ..ip
            };
            frame[L3..L3 + Ipv4::LEN].copy_from_slice(&next.to_bytes());
            true
        }
        _ => false,
    }
}

/// Switches and ranks.
pub struct Net {
    pub engines: Vec<Engine>,
    pub ranks: Vec<Rank>,
    links: BTreeMap<End, End>,
    queue: BTreeMap<(Nanos, u64), (End, Vec<u8>)>,
    order: u64,
    dice: Dice,
    pub faults: Faults,
    /// Where given, switches now and then move their groups to another engine, and that many times they have.
    pub moving: Option<(Dice, u64)>,
    /// Where routers lie between all switches, the group's address at each.
    routed: Option<[McstId; 3]>,
    pub now: Nanos,
    /// Frames corrupted on the way.
    pub corrupted: u64,
}

impl Net {
    pub fn new(engines: Vec<Engine>, ranks: Vec<Rank>, links: &[(End, End)], seed: u64) -> Self {
        let mut both = BTreeMap::new();
        for (a, b) in links {
            both.insert(*a, *b);
            both.insert(*b, *a);
        }
        Self {
            engines,
            ranks,
            links: both,
            queue: BTreeMap::new(),
            order: 0,
            dice: Dice::new(seed),
            faults: Faults::default(),
            moving: None,
            routed: None,
            now: T0,
            corrupted: 0,
        }
    }

    /// One switch with all ranks.
    pub fn star(rule: &GroupRule, jobs: &[Job], seed: u64) -> Self {
        let count = rule.endpoints.len();
        let mut engine = engine(count + 1);
        install_collective(&mut engine, rule);
        let mut dice = Dice::new(seed ^ 0x5EED);
        let ranks = (0..count)
            .map(|r| Rank::new(r, T0 + Nanos::from_micros(dice.roll(3000)), jobs))
            .collect();
        let links: Vec<_> = (0..count).map(|r| (End::Rank(r), End::Port(0, r))).collect();
        Self::new(vec![engine], ranks, &links, seed)
    }

    /// The same with all ranks behind one port, which knows them by their addresses.
    pub fn one_armed(rule: &GroupRule, jobs: &[Job], seed: u64) -> Self {
        let mut engine = engine(1);
        install_collective(&mut engine, rule);
        let ranks: Vec<Rank> = (0..rule.endpoints.len())
            .map(|r| Rank::new(r, T0, jobs))
            .collect();
        let mut net = Self::new(vec![engine], ranks, &[], seed);
        let links = (0..rule.endpoints.len()).map(|r| (End::Rank(r), End::Port(0, 0)));
        net.links.extend(links);
        net
    }

    /// Where a frame goes from here.
    fn peer(&self, from: End, frame: &[u8]) -> Option<End> {
        self.links.get(&from).copied().or_else(|| {
            let Ok(Parsed::Roce(header)) = parse_frame(frame, frame.len()) else {
                return None;
            };
            let (_, dst) = header.ip.v4()?;
            let rank = self.ranks.iter().position(|r| host_ip(r.rank) == dst);
            rank.map(End::Rank)
        })
    }

    /// Two leaves and a spine: ranks 0 and 1, ranks 2, 3 and 4, and rank 5 at the spine itself.
    pub fn two_tiers(change: impl Fn(&mut TranslatedRule), jobs: &[Job], seed: u64) -> Self {
        Self::tiers(None, change, jobs, seed)
    }

    /// The same with a router in each link between switches, and so with another address of the group at each switch.
    pub fn routed_tiers(change: impl Fn(&mut TranslatedRule), jobs: &[Job], seed: u64) -> Self {
        let mcst_ids = [2, 3, 1].map(|last| McstId(Ipv4Addr::new(10, 9, 1, last)));
        Self::tiers(Some(mcst_ids), change, jobs, seed)
    }

    fn tiers(
        routed: Option<[McstId; 3]>,
        change: impl Fn(&mut TranslatedRule),
        jobs: &[Job],
        seed: u64,
    ) -> Self {
        // A next hop of a leaf is the spine; those of the spine are the leaves, in their order.
        let far = |rule: &mut GroupRule, own: usize| {
            let Some(mcst_ids) = routed else { return };
            rule.mcst_id = mcst_ids[own];
            let mut others = if own == 2 { vec![1, 0] } else { vec![2] };
            for endpoint in &mut rule.endpoints {
                if let NextHop::Switch { ip, .. } = &mut endpoint.next_hop {
                    *ip = others.pop().map(|other| mcst_ids[other].0);
                }
            }
        };
        let leaf_a = collective_rule(
            vec![rank_at(0, 0), rank_at(1, 1), switch_at(9, &[2, 3, 4, 5])],
            Some(9),
        );
        let leaf_b = collective_rule(
            vec![
                rank_at(2, 2),
                rank_at(3, 3),
                rank_at(4, 4),
                switch_at(9, &[0, 1, 5]),
            ],
            Some(9),
        );
        let spine = collective_rule(
            vec![switch_at(0, &[0, 1]), switch_at(1, &[2, 3, 4]), rank_at(5, 5)],
            None,
        );
        let rules = [(leaf_a, 0), (leaf_b, 1), (spine, 2)];
        let engines = rules.map(|(rule, own)| {
            let mut rule = rule.with_translated(&change);
            far(&mut rule, own);
            let mut engine = engine(10);
            install_collective(&mut engine, &rule);
            engine
        });
        let mut dice = Dice::new(seed ^ 0x5EED);
        let home = |r| match r {
            0 | 1 => 0,
            5 => 2,
            _ => 1,
        };
        let ranks = (0..6).map(|r| Rank {
            mcst_id: routed.map_or(GROUP, |mcst_ids| mcst_ids[home(r)]),
            ..Rank::new(r, T0 + Nanos::from_micros(dice.roll(3000)), jobs)
        });
        let ranks = ranks.collect();
        let mut links: Vec<_> = (0..6).map(|r| (End::Rank(r), End::Port(home(r), r))).collect();
        links.push((End::Port(0, 9), End::Port(2, 0)));
        links.push((End::Port(1, 9), End::Port(2, 1)));
        Self {
            routed,
            ..Self::new(engines.into(), ranks, &links, seed)
        }
    }

    fn put(&mut self, from: End, mut frame: Vec<u8>) {
        let Some(to) = self.peer(from, &frame) else {
            return;
        };
        if let (Some(mcst_ids), End::Port(_, port), End::Port(next, _)) = (self.routed, from, to)
            && !route(&mut frame, port, mcst_ids[next])
        {
            return;
        }
        if self.dice.roll(1000) < self.faults.lost {
            return;
        }
        let copies = if self.dice.roll(1000) < self.faults.doubled {
            2
        } else {
            1
        };
        if self.dice.roll(1000) < self.faults.corrupted {
            self.corrupted += 1;
            let bit = self.dice.roll(8 * frame.len() as u64) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        for _ in 0..copies {
            let mut delay = 5_000;
            if self.dice.roll(1000) < self.faults.delayed {
                delay += self.dice.roll(60_000);
            }
            self.order += 1;
            self.queue
                .insert((self.now + Nanos(delay), self.order), (to, frame.clone()));
        }
    }

    fn leave(&mut self, from: usize, egress: PlainEgress) {
        let own = self.routed.map_or(GROUP, |mcst_ids| mcst_ids[from]);
        for (port, frame) in egress.sent {
            assert!(
                !is_from(own, &frame) || is_sound(&frame),
                "what a switch makes is sound"
            );
            self.put(End::Port(from, port.index()), frame);
        }
    }

    fn leave_rank(&mut self, rank: usize, frames: Vec<Vec<u8>>) {
        frames
            .into_iter()
            .for_each(|frame| self.put(End::Rank(rank), frame));
    }

    /// Runs until all ranks are done and nothing is under way, or `until`. Whether they are.
    pub fn run(&mut self, jobs: &[Job], until: Nanos) -> bool {
        while self.now < until {
            let frame = self.queue.keys().next().map(|(at, _)| *at);
            let timers = self.engines.iter().filter_map(Engine::poll_timeout);
            let ranks = self.ranks.iter().filter(|r| r.acked < r.packets.len()).map(|r| {
                if r.next == 0 && r.acked == 0 {
                    r.starts.min(r.deadline)
                } else {
                    r.deadline
                }
            });
            let done = self.ranks.iter().all(|r| r.is_done(jobs));
            if done && self.queue.is_empty() {
                return true;
            }
            let Some(next) = frame.into_iter().chain(timers).chain(ranks).min() else {
                return done;
            };
            self.now = self.now.max(next);
            self.step();
        }
        false
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (to, frame) = entry.remove();
            match to {
                End::Rank(rank) => {
                    let mut out = Vec::new();
                    self.ranks[rank].receive(now, &frame, &mut out);
                    self.leave_rank(rank, out);
                }
                End::Port(switch, ingress) => {
                    if let Some((dice, moves)) = &mut self.moving
                        && dice.roll(4) == 0
                    {
                        *moves += 1;
                        move_on(&mut self.engines[switch], now);
                    }
                    let mut egress = PlainEgress::default();
                    let mut batch = Batch::new();
                    batch.push(frame);
                    self.engines[switch].process(now, port(ingress), &mut batch, &mut egress);
                    self.leave(switch, egress);
                }
            }
        }
        for switch in 0..self.engines.len() {
            if self.engines[switch].poll_timeout().is_some_and(|at| at <= now) {
                let mut egress = PlainEgress::default();
                self.engines[switch].handle_timeout(now, &mut egress);
                self.leave(switch, egress);
            }
        }
        for rank in 0..self.ranks.len() {
            let host = &mut self.ranks[rank];
            let mut out = Vec::new();
            if host.acked < host.packets.len() {
                if host.next == 0 && host.acked == 0 && now >= host.starts {
                    host.deadline = now + TIMEOUT;
                    host.send(&mut out);
                } else if now >= host.deadline {
                    host.timeout(now, &mut out);
                }
            }
            self.leave_rank(rank, out);
        }
    }

    /// Every rank has just what it must have.
    pub fn assert_results(&self, jobs: &[Job]) {
        for rank in &self.ranks {
            let results = rank.results(jobs);
            assert_eq!(results.len(), jobs.len());
            for (i, (job, (control, data))) in jobs.iter().zip(results).enumerate() {
                assert_eq!((control.sequence, control.call), (i as u32, job.call()));
                assert_eq!(control.verdict, Verdict::Agreed);
                assert!(
                    data == job.expected(rank.rank),
                    "rank {}, collective {i}: {:?}",
                    rank.rank,
                    job.call()
                );
            }
        }
    }
}
