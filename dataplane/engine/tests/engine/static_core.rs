//! A group at the edges of a static core (PEEL, Shufflecast): a switch in the middle with routes alone. One copy of each packet goes to
//! an address of the core, which leads to all edges with members and to one without; repairs and feedback have unicast addresses.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;

use super::collective::drops;
use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, Engine, FrameFilter, TapId};
use castnet_rules::{Endpoint, GroupRule, Ipv4Net, NextHop, RepairRule, Route, RouteHop};
use castnet_wire::{
    Aeth, DropReason, McstId, NakCode, Nanos, Opcode, Parsed, Reth, RoceHeader, Syndrome, parse_frame,
};
use proptest::prelude::*;

/// The edges with members: the first one is next to the source.
pub(super) const MEMBERS: usize = 4;
/// The edge that the address covers, but that has no members.
pub(super) const OTHER: usize = MEMBERS;
/// The core. Its port `n` leads to edge `n`.
pub(super) const CORE: usize = MEMBERS + 1;
/// The port of each edge towards the core.
pub(super) const UP: usize = 4;
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(239, 1, 0, 1);
pub(super) const FIRST: u32 = 100;
const WINDOW: u32 = 16;
const TIMEOUT: Nanos = Nanos::from_millis(2);

pub(super) fn mcst(edge: usize) -> McstId {
    McstId([10, 20, 0, edge as u8 + 1].into())
}

fn edge(n: usize, core: Option<Ipv4Addr>) -> Endpoint {
    let mut endpoint = switch(UP);
    if let NextHop::Switch {
        name, ip, core: at, ..
    } = &mut endpoint.next_hop
    {
        (*name, *ip, *at) = (format!("edge{n}"), Some(mcst(n).0), core);
    }
    endpoint
}

pub(super) fn group(n: usize, repair: bool, core: Option<Ipv4Addr>) -> GroupRule {
    let endpoints: Vec<_> = match n {
        0 => [host(0), host(1)]
            .into_iter()
            .chain((1..MEMBERS).map(|n| edge(n, core)))
            .collect(),
        _ => vec![host(1), host(2), edge(0, core)],
    };
    let repair = repair.then_some(RepairRule {
        slots: 64,
        ack_timeout_us: 4000,
    });
    let source = if n == 0 { 0 } else { 2 };
    GroupRule {
        mcst_id: mcst(n),
        ..rule(endpoints).with_multicast(|rule| (rule.source, rule.repair) = (source, repair))
    }
}

/// A multicast address gets a copy by each port.
pub(super) fn route(to: Ipv4Addr, ports: impl IntoIterator<Item = usize>) -> Route {
    let hop = |n: usize| RouteHop {
        port: port(n),
        mac: peer_mac(n),
    };
    Route {
        prefix: Ipv4Net::from(to),
        next_hops: ports.into_iter().map(hop).collect(),
        replicate: to.is_multicast(),
        copy_to: Vec::new(),
    }
}

fn routes() -> Vec<Route> {
    let unicast = (0..MEMBERS).map(|n| route(mcst(n).0, [n]));
    unicast.chain([route(ADDRESS, 0..CORE)]).collect()
}

/// Probabilities in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lose: u64,
    repeat: u64,
    delay: u64,
    flip: u64,
}

/// A receiving host: a responder.
struct Receiver {
    expected: u32,
    nak_sent: bool,
    bytes: Vec<u8>,
}

struct Net {
    engines: Vec<Engine>,
    /// Frames under way, by arrival.
    queue: BTreeMap<(Nanos, u64), (usize, usize, Vec<u8>)>,
    receivers: BTreeMap<(usize, usize), Receiver>,
    faults: Faults,
    random: u64,
    sent: u64,
    now: Nanos,
    /// Of the source: the next packet, the first that is not acknowledged, and when it goes back.
    next: u32,
    acknowledged: u32,
    retry_at: Nanos,
    /// Data frames from the source's edge to the core: to the address of the core, and to edges.
    to_core: usize,
    to_edges: usize,
    /// Frames that came whole to the edge without members.
    over_covered: u64,
}

impl Net {
    fn new(repair: bool, slow: bool, faults: Faults, seed: u64) -> Self {
        let mut engines: Vec<Engine> = (0..=CORE).map(|_| engine(CORE)).collect();
        for (n, engine) in engines.iter_mut().enumerate().take(MEMBERS) {
            install(engine, &group(n, repair, Some(ADDRESS)));
        }
        engines[CORE].set_tables(T0, tables(1, [], &routes(), (0..CORE).map(port)).into());
        let tap = TapId::all().next().unwrap();
        for engine in engines.iter_mut().filter(|_| slow) {
            let all = FrameFilter::default();
            engine.taps.arm_capture(tap, all, usize::MAX, u64::MAX);
        }
        let at = |n: usize| if n == 0 { 1..2 } else { 1..3 };
        let receivers = (0..MEMBERS).flat_map(|n| at(n).map(move |port| (n, port)));
        let receiver = |at| {
            let new = Receiver {
                expected: FIRST,
                nak_sent: false,
                bytes: Vec::new(),
            };
            (at, new)
        };
        Self {
            engines,
            queue: BTreeMap::new(),
            receivers: receivers.map(receiver).collect(),
            faults,
            random: seed,
            sent: 0,
            now: T0,
            next: FIRST,
            acknowledged: FIRST,
            retry_at: T0,
            to_core: 0,
            to_edges: 0,
            over_covered: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) % below
    }

    /// Over a link that loses, repeats, delays and corrupts.
    fn over(&mut self, node: usize, ingress: usize, mut frame: Vec<u8>) {
        frame[..6].copy_from_slice(&port_mac(ingress).0);
        frame[6..12].copy_from_slice(&peer_mac(ingress).0);
        let Faults {
            lose,
            repeat,
            delay,
            flip,
        } = self.faults;
        if self.draw(1000) < lose {
            return;
        }
        let times = 1 + u64::from(self.draw(1000) < repeat);
        for _ in 0..times {
            let mut copy = frame.clone();
            if self.draw(1000) < flip {
                let bit = 14 * 8 + self.draw(copy.len() as u64 * 8 - 14 * 8) as usize;
                copy[bit / 8] ^= 1 << (bit % 8);
            }
            let more = if self.draw(1000) < delay {
                self.draw(40_000)
            } else {
                0
            };
            self.sent += 1;
            let at = self.now + Nanos(2_000 + more);
            self.queue.insert((at, self.sent), (node, ingress, copy));
        }
    }

    /// Carries what a node has sent to the other end of each link.
    fn carry(&mut self, node: usize, frames: Vec<(usize, Vec<u8>)>) {
        for (egress, frame) in frames {
            match (node, egress) {
                (CORE, edge) => self.over(edge, UP, frame),
                (edge, UP) => {
                    let header = roce(&frame);
                    if edge == 0 && header.aeth.is_none() {
                        match header.ip.v4().unwrap().1 {
                            ADDRESS => self.to_core += 1,
                            _ => self.to_edges += 1,
                        }
                    }
                    self.over(CORE, edge, frame);
                }
                (0, 0) => self.source_gets(&frame),
                at => self.receiver_gets(at, &frame),
            }
        }
    }

    fn source_gets(&mut self, frame: &[u8]) {
        let Some((header, Aeth { syndrome, .. })) = whole(frame).and_then(|h| Some((h, h.aeth?))) else {
            return;
        };
        let psn = header.bth.psn.value();
        let through = match syndrome {
            Syndrome::Ack => psn + 1,
            Syndrome::Nak(_) | Syndrome::RnrNak(_) => psn,
        };
        if through > self.acknowledged {
            (self.acknowledged, self.retry_at) = (through, self.now + TIMEOUT);
            self.next = self.next.max(through);
        }
        if syndrome == Syndrome::Nak(NakCode::PsnSequenceError) {
            self.next = self.acknowledged;
        }
    }

    fn receiver_gets(&mut self, at: (usize, usize), frame: &[u8]) {
        let Some(header) = whole(frame) else { return };
        let receiver = self.receivers.get_mut(&at).unwrap();
        let payload = &frame[header.payload_at..header.payload_at + header.payload_len];
        let psn = header.bth.psn.value();
        let (psn, syndrome) = if psn > receiver.expected {
            if std::mem::replace(&mut receiver.nak_sent, true) {
                return;
            }
            (receiver.expected, Syndrome::Nak(NakCode::PsnSequenceError))
        } else {
            if psn == receiver.expected {
                receiver.bytes.extend_from_slice(payload);
                receiver.expected += 1;
                receiver.nak_sent = false;
            }
            (receiver.expected - 1, Syndrome::Ack)
        };
        let (node, port) = at;
        let msn = receiver.expected - FIRST;
        let mut answer = DataFrame::new(Opcode::Ack, psn, &[]);
        answer.ext.aeth = Some(Aeth { syndrome, msn });
        (answer.src, answer.dst) = (host_ip(port), mcst(node).0);
        self.over(node, port, answer.bytes());
    }

    /// Sends so many packets and returns when all are acknowledged.
    fn run(&mut self, packets: u32) {
        let end = self.next + packets;
        for _ in 0..400_000 {
            if self.acknowledged == end {
                return;
            }
            if self.next < end.min(self.acknowledged + WINDOW) {
                let psn = self.next;
                let opcode = [Opcode::SendOnly, Opcode::WriteOnly][psn as usize % 2];
                let mut frame = DataFrame::new(opcode, psn, &payload(psn));
                let dma_len = frame.payload.len() as u32;
                frame.ext.reth = (opcode == Opcode::WriteOnly).then_some(Reth {
                    va: VA_BASE,
                    rkey: 7,
                    dma_len,
                });
                (frame.dst, frame.ack_request) = (mcst(0).0, true);
                self.over(0, 0, frame.bytes());
                self.next += 1;
                if psn == self.acknowledged {
                    self.retry_at = self.now + TIMEOUT;
                }
                continue;
            }
            let timers = self.engines.iter().filter_map(Engine::poll_timeout);
            let arrival = self.queue.first_key_value().map(|(key, _)| key.0);
            let at = timers.chain(arrival).chain([self.retry_at]).min().unwrap();
            self.now = self.now.max(at);
            for node in 0..=CORE {
                let engine = &mut self.engines[node];
                if engine.poll_timeout().is_some_and(|at| at <= self.now) {
                    let mut egress = PlainEgress::default();
                    engine.handle_timeout(self.now, &mut egress);
                    self.carry(node, taken(egress));
                }
            }
            if self.retry_at <= self.now {
                (self.next, self.retry_at) = (self.acknowledged, self.now + TIMEOUT);
            }
            while let Some(first) = self.queue.first_entry().filter(|first| first.key().0 <= self.now) {
                let (node, ingress, frame) = first.remove();
                self.over_covered += u64::from(node == OTHER && whole(&frame).is_some());
                let sent = feed(&mut self.engines[node], self.now, ingress, &frame);
                self.carry(node, sent);
            }
        }
        panic!("{} of {end} packets acknowledged", self.acknowledged);
    }
}

fn payload(psn: u32) -> Vec<u8> {
    (0..psn % 200).map(|i| (i + psn) as u8).collect()
}

/// The header of a frame that a host accepts.
fn whole(frame: &[u8]) -> Option<RoceHeader> {
    match parse_frame(frame, frame.len()) {
        Ok(Parsed::Roce(header)) if is_sound(frame) => Some(header),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// All receivers get all data in order, whatever is lost, repeated, late or wrong on any link.
    #[test]
    fn all_receivers_get_all_data_over_a_static_core(
        (lose, repeat, delay, flip) in (0..60_u64, 0..40_u64, 0..100_u64, 0..40_u64), seed in any::<u64>(),
        repair in any::<bool>(), slow in any::<bool>(),
    ) {
        let packets = 120;
        let mut net = Net::new(repair, slow, Faults { lose, repeat, delay, flip }, seed);
        net.run(packets);
        let expected: Vec<u8> = (FIRST..FIRST + packets).flat_map(payload).collect();
        for (at, receiver) in &net.receivers {
            prop_assert!(receiver.bytes == expected, "{at:?}: {} packets", receiver.expected - FIRST);
        }
        net.engines.iter().for_each(assert_conserved);
        // A wrong bit may have made it look like a frame of no core.
        prop_assert!(drops(&net.engines[OTHER], DropReason::OverCovered) >= net.over_covered);
        prop_assert_eq!(net.engines[CORE].group_count(), 0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The next packet or one before or after it, with a bit wrong behind the IP header.
    Data {
        skip: i32,
        opcode: Opcode,
        length: usize,
        flip: Option<prop::sample::Index>,
        ingress: usize,
    },
    /// Of the newest data or some before.
    Feedback { host: usize, back: u32, nak: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let skip = prop_oneof![8 => Just(0), 1 => -4..3];
    let opcode = prop::sample::select(vec![
        Opcode::SendOnly,
        Opcode::SendMiddle,
        Opcode::WriteOnly,
        Opcode::WriteFirst,
        Opcode::SendOnlyImm,
        Opcode::ReadRequest,
    ]);
    let flip = prop::option::weighted(0.1, any::<prop::sample::Index>());
    prop_oneof![
        3 => (skip, opcode, 0..1030_usize, flip, 0..CORE)
            .prop_map(|(skip, opcode, length, flip, ingress)| Step::Data { skip, opcode, length, flip, ingress }),
        2 => (1..3_usize, 0..4_u32, prop::bool::weighted(0.2))
            .prop_map(|(host, back, nak)| Step::Feedback { host, back, nak }),
    ]
}

proptest! {
    /// A frame of the core is handled as the same frame from the switch next to the source, which has the group's McstID.
    #[test]
    fn data_of_the_core_is_as_data_of_the_source_switch(
        steps in prop::collection::vec(step(), 1..80), repair in any::<bool>(), adjacent in any::<bool>(),
    ) {
        let mut engines = [engine(CORE), engine(CORE)];
        let mut rule = group(1, repair, Some(ADDRESS));
        if adjacent {
            // Its copies have the McstID as destination.
            rule.endpoints[1] = switch(2);
        }
        for engine in &mut engines {
            install(engine, &rule);
            lead_to_core(engine, 1, 0..CORE);
        }
        let mut next = FIRST;
        for step in &steps {
            let frames = match step {
                Step::Data { skip, opcode, length, flip, ingress } => {
                    let psn = next.saturating_add_signed(*skip);
                    let payload = if *opcode == Opcode::ReadRequest { 0 } else { *length };
                    let mut frame = DataFrame::new(*opcode, psn, &vec![psn as u8; payload]);
                    (frame.src, frame.ack_request) = (mcst(0).0, psn % 3 == 0);
                    frame.ext.reth = Some(Reth { va: VA_BASE, rkey: 7, dma_len: *length as u32 });
                    frame.ext.imm = Some(psn);
                    next = next.max(psn + 1);
                    [(ADDRESS, *ingress), (mcst(1).0, UP)].map(|(dst, ingress)| {
                        (frame.dst, frame.ethernet) = (dst, ethernet(ingress));
                        let mut bytes = frame.bytes();
                        if let Some(flip) = flip {
                            let bit = 34 * 8 + flip.index((bytes.len() - 34) * 8);
                            bytes[bit / 8] ^= 1 << (bit % 8);
                        }
                        (ingress, bytes)
                    })
                }
                Step::Feedback { host, back, nak } => {
                    let psn = next.saturating_sub(1 + back);
                    let syndrome = match nak {
                        true => Syndrome::Nak(NakCode::PsnSequenceError),
                        false => Syndrome::Ack,
                    };
                    let mut frame = DataFrame::new(Opcode::Ack, psn, &[]);
                    frame.ext.aeth = Some(Aeth { syndrome, msn: psn });
                    (frame.src, frame.dst, frame.ethernet) = (host_ip(*host), mcst(1).0, ethernet(*host));
                    [(*host, frame.bytes()), (*host, frame.bytes())]
                }
            };
            let mut sent = engines.iter_mut().zip(&frames).map(|(engine, (ingress, bytes))| {
                let mut sent = feed(engine, T0, *ingress, bytes);
                // Of UDP: zero, if an address was written.
                sent.iter_mut().for_each(|(_, frame)| frame[40..42].fill(0));
                sent
            });
            let (of_core, of_switch) = (sent.next().unwrap(), sent.next().unwrap());
            prop_assert_eq!(of_core, of_switch, "{:?}", step);
            let [of_core, of_switch] = engines.each_ref().map(|engine| {
                let status = engine.group_status(mcst(1)).unwrap();
                (status.machine, status.counters, status.paths)
            });
            prop_assert_eq!(of_core, of_switch, "{:?}", step);
        }
        engines.iter().for_each(assert_conserved);
    }
}

/// A wrong bit made it a frame of no group, with a route of this switch for the address: the data that follows does not take that route.
#[test]
fn a_corrupted_frame_of_the_core_takes_no_data_along() {
    let mut engine = engine(CORE);
    install(&mut engine, &group(1, false, Some(ADDRESS)));
    let up = Route {
        replicate: false,
        ..route(ADDRESS, [3])
    };
    engine.set_tables(T0, tables(1, [mcst(1)], &[up], (0..CORE).map(port)).into());
    let good = of_core(mcst(0).0, ADDRESS, UP);
    let mut wrong = good.clone();
    wrong[42] = 0xFF;
    for _ in 0..3 {
        assert!(feed(&mut engine, T0, UP, &wrong).is_empty());
    }
    assert_eq!(drops(&engine, DropReason::NotMulticastable), 3);
    let ports: Vec<_> = feed(&mut engine, T0, UP, &good)
        .iter()
        .map(|(port, _)| *port)
        .collect();
    assert_eq!(ports, [1, 2]);
}

/// A copy that there is no buffer for is lacked by all paths of its address.
#[test]
fn a_copy_for_the_core_that_is_lost_is_lost_for_all_its_paths() {
    for slow in [false, true] {
        let mut net = Net::new(false, slow, Faults::default(), 1);
        let mut frame = DataFrame::new(Opcode::SendOnly, FIRST, &[7; 64]);
        frame.dst = mcst(0).0;
        let route = route(ADDRESS, [2, 3]);
        let edge = &mut net.engines[0];
        edge.set_tables(T0, tables(1, [mcst(0)], &[route], (0..CORE).map(port)).into());
        // One for the receiver here, none for the first of the two next hops; the other one gets the frame itself.
        let mut egress = PlainEgress {
            buffers: Some(1),
            ..PlainEgress::default()
        };
        feed_into(edge, T0, 0, &frame.bytes(), &mut egress);
        let ports: Vec<_> = taken(egress).iter().map(|(port, _)| *port).collect();
        assert_eq!(ports, [1, 3]);
        let status = edge.group_status(mcst(0)).unwrap();
        let lost: Vec<_> = status.paths.iter().map(|path| path.counters.lost).collect();
        assert_eq!(lost, [0, 0, 1, 1, 1]);
        assert_eq!(edge.totals().copies_lost, 3);
    }
}

/// Without losses, the source's edge sends one copy of each packet to the core, and the edge without members drops it.
#[test]
fn one_copy_of_each_packet_enters_the_core() {
    for (repair, slow) in [(false, false), (false, true), (true, false)] {
        let mut net = Net::new(repair, slow, Faults::default(), 1);
        net.run(50);
        assert_eq!((net.to_core, net.to_edges), (50, 0));
        assert_eq!(drops(&net.engines[OTHER], DropReason::OverCovered), 50);
        let status = net.engines[0].group_status(mcst(0)).unwrap();
        // One for its own receiver, one for the core.
        assert_eq!(status.counters.copies_out, 100);
        assert!(
            status
                .paths
                .iter()
                .all(|path| path.source || path.copies_out == 50)
        );
    }
}

fn of_core(src: Ipv4Addr, dst: Ipv4Addr, ingress: usize) -> Vec<u8> {
    let mut frame = DataFrame::new(Opcode::SendOnly, FIRST, &[7; 64]);
    (frame.src, frame.dst, frame.ethernet) = (src, dst, ethernet(ingress));
    frame.bytes()
}

/// The edge `n` has a route by each of these ports, so the core may bring data there.
pub(super) fn lead_to_core(engine: &mut Engine, n: usize, ports: impl IntoIterator<Item = usize>) {
    let up = Route {
        replicate: false,
        ..route(Ipv4Addr::new(10, 21, 0, 1), ports)
    };
    engine.set_tables(T0, tables(1, [mcst(n)], &[up], (0..CORE).map(port)).into());
}

/// Data of the core comes by any port that leads there, but with the address of its group and from the source's edge alone.
#[test]
fn data_of_the_core_is_found_by_its_source_and_address() {
    let other = Ipv4Addr::new(239, 1, 0, 2);
    for (src, dst, ingress, copies, reason) in [
        (mcst(0).0, ADDRESS, UP, 2, None),
        (mcst(0).0, ADDRESS, 3, 2, None),
        (mcst(0).0, other, UP, 0, Some(DropReason::OverCovered)),
        (mcst(2).0, ADDRESS, UP, 0, Some(DropReason::OverCovered)),
        (mcst(0).0, mcst(1).0, 3, 0, Some(DropReason::NotMember)),
    ] {
        let mut engine = engine(CORE);
        install(&mut engine, &group(1, false, Some(ADDRESS)));
        lead_to_core(&mut engine, 1, [3, UP]);
        let frame = of_core(src, dst, ingress);
        let trace = engine.trace(T0, port(ingress), &frame);
        assert_eq!(trace.sent.len(), copies, "{trace}");
        let sent = feed(&mut engine, T0, ingress, &frame);
        assert!(sent.iter().all(|(_, frame)| is_sound(frame)));
        assert_eq!(sent.len(), copies, "{src} to {dst} by {ingress}");
        if let Some(reason) = reason {
            assert_eq!(drops(&engine, reason), 1, "{src} to {dst} by {ingress}");
        }
    }
}

/// The source's edge takes its own route to the address, if it has one: a relay of its own, or one of several routers. Another one is left if
/// that is down.
#[test]
fn the_copy_for_the_core_takes_the_route_to_its_address() {
    let route = |replicate| Route {
        prefix: Ipv4Net::new_assert([239, 0, 0, 0].into(), 8),
        replicate,
        ..route(ADDRESS, [2, 3])
    };
    let mut data = DataFrame::new(Opcode::WriteOnly, FIRST, &[7; 64]);
    data.dst = mcst(0).0;
    data.ext.reth = Some(Reth {
        va: VA_BASE,
        rkey: 7,
        dma_len: 64,
    });
    for (replicate, up, expected) in [
        (true, 0..5, vec![2, 3]),
        (true, 3..5, vec![3]),
        (true, 4..5, vec![UP]),
        (false, 2..3, vec![2]),
        (false, 3..4, vec![3]),
        (false, 4..5, vec![UP]),
    ] {
        let mut source = engine(CORE);
        install(&mut source, &group(0, false, Some(ADDRESS)));
        let up = [0, 1, UP].into_iter().chain(up).map(port);
        source.set_tables(T0, tables(1, [mcst(0)], &[route(replicate)], up).into());
        assert_eq!(
            source.trace(T0, port(0), &data.bytes()).sent.len(),
            1 + expected.len()
        );
        let sent = feed(&mut source, T0, 0, &data.bytes());
        let (own, core): (Vec<_>, Vec<_>) = sent.into_iter().partition(|(port, _)| *port == 1);
        assert_eq!(own.len(), 1);
        for (port, frame) in &core {
            assert!(is_sound(frame) && frame[..6] == peer_mac(*port).0 && frame[6..12] == port_mac(*port).0);
            assert_eq!(roce(frame).ip.v4(), Some((mcst(0).0, ADDRESS)));
        }
        let ports: Vec<usize> = core.iter().map(|(port, _)| *port).collect();
        assert_eq!(ports, expected, "{replicate}");
        assert_conserved(&source);
    }
}

/// A relay of Shufflecast has members and sends the data on, with its address. The switch next to the source sends no own data on.
#[test]
fn a_relay_delivers_and_sends_on_but_not_what_its_own_hosts_have_sent() {
    let route = route(ADDRESS, [3, UP]);
    let relay = |n: usize| {
        let mut engine = engine(CORE);
        install(&mut engine, &group(n, false, Some(ADDRESS)));
        let tables = tables(1, [mcst(n)], std::slice::from_ref(&route), (0..CORE).map(port));
        engine.set_tables(T0, tables.into());
        engine
    };
    for (ttl, sent_on, lost) in [(64, 1, 0), (1, 0, 1)] {
        let mut engine = relay(1);
        let mut frame = DataFrame::new(Opcode::SendOnly, FIRST, &[7; 64]);
        (frame.src, frame.dst, frame.ethernet, frame.ttl) = (mcst(0).0, ADDRESS, ethernet(UP), ttl);
        let sent = feed(&mut engine, T0, UP, &frame.bytes());
        assert!(sent.iter().all(|(_, frame)| is_sound(frame)));
        let to: Vec<_> = sent
            .iter()
            .map(|(port, frame)| (*port, roce(frame).ip.v4().unwrap()))
            .collect();
        let on = (3, (mcst(0).0, ADDRESS));
        let own = [1, 2].map(|n| (n, (mcst(1).0, host_ip(n))));
        assert_eq!(to, [&[on][..sent_on], &own].concat());
        assert_eq!(engine.totals().copies_lost, lost);
        assert_conserved(&engine);
    }
    let mut source = relay(0);
    assert!(feed(&mut source, T0, UP, &of_core(mcst(0).0, ADDRESS, UP)).is_empty());
    assert_eq!(drops(&source, DropReason::NotMember), 1);
    // For a source without members here, it only sends on.
    let other = of_core(mcst(3).0, ADDRESS, UP);
    assert_eq!(feed(&mut source, T0, UP, &other).len(), 1);
}

/// A packet that one edge alone lacks goes to that edge.
#[test]
fn a_packet_for_one_edge_is_no_burden_for_the_others() {
    let mut source = engine(CORE);
    install(&mut source, &group(0, false, Some(ADDRESS)));
    let mut data = DataFrame::new(Opcode::SendOnly, FIRST, &[7; 64]);
    data.dst = mcst(0).0;
    let to = |sent: Vec<(usize, Vec<u8>)>| -> Vec<Ipv4Addr> {
        sent.iter()
            .map(|(_, frame)| roce(frame).ip.v4().unwrap().1)
            .collect()
    };
    assert_eq!(to(feed(&mut source, T0, 0, &data.bytes())), [host_ip(1), ADDRESS]);
    let feedback = |src: Ipv4Addr, ingress: usize| {
        let mut frame = DataFrame::new(Opcode::Ack, FIRST, &[]);
        frame.ext.aeth = Some(Aeth {
            syndrome: Syndrome::Ack,
            msn: 1,
        });
        (frame.src, frame.dst, frame.ethernet) = (src, mcst(0).0, ethernet(ingress));
        frame.bytes()
    };
    feed(&mut source, T0, 1, &feedback(host_ip(1), 1));
    for n in 1..MEMBERS {
        // What is left to send again, as more and more have it.
        let left = match MEMBERS - n {
            1 => vec![mcst(n).0],
            _ => vec![ADDRESS],
        };
        assert_eq!(to(feed(&mut source, T0, 0, &data.bytes())), left);
        feed(&mut source, T0, UP, &feedback(mcst(n).0, UP));
    }
}

/// Routes to unicast addresses lead no copy on, a default route neither.
#[test]
fn an_over_covered_copy_does_not_follow_the_default_route() {
    let mut engine = engine(CORE);
    let default = Route {
        prefix: Ipv4Net::default(),
        next_hops: vec![RouteHop {
            port: port(UP),
            mac: peer_mac(UP),
        }],
        replicate: false,
        copy_to: Vec::new(),
    };
    engine.set_tables(T0, tables(1, [], &[default], (0..CORE).map(port)).into());
    assert!(feed(&mut engine, T0, UP, &of_core(mcst(0).0, ADDRESS, UP)).is_empty());
    assert_eq!(drops(&engine, DropReason::OverCovered), 1);
    assert_eq!(
        feed(&mut engine, T0, 1, &of_core(host_ip(1), mcst(0).0, 1)).len(),
        1
    );
}

/// The look-up by source is of the group that is installed, and moves with it.
#[test]
fn the_source_of_a_removed_or_replaced_group_finds_nothing() {
    let mut engine = engine(CORE);
    let frame = of_core(mcst(0).0, ADDRESS, UP);
    let copies = |engine: &mut Engine| feed(engine, T0, UP, &frame).len();
    install(&mut engine, &group(1, false, Some(ADDRESS)));
    move_on(&mut engine, T0);
    assert_eq!(copies(&mut engine), 2);
    // Without the address, only unicast data belongs to it.
    for (generation, core, expected) in [(2, None, 0), (3, Some(ADDRESS), 2)] {
        let new = GroupRule {
            generation,
            ..group(1, false, core)
        };
        let new = Context::compile(&new, &ports(CORE)).unwrap();
        assert!(engine.install(T0, new).unwrap().is_some());
        assert_eq!(copies(&mut engine), expected);
    }
    engine.remove(mcst(1));
    assert_eq!(copies(&mut engine), 0);
    assert_eq!(drops(&engine, DropReason::OverCovered), 2);
}
