//! Compares an engine that caches routed flows with one that does not, over random frames of few flows, and changes of all that a flow
//! depends on: routes, links, MTUs, groups, and addresses that move or age.

use std::sync::Arc;

use crate::common::*;
use castnet_engine::{CountersSnapshot, Engine, EngineConfig};
use castnet_rules::{Route, RouteHop};
use castnet_wire::{DropReason, McstId, Nanos, Opcode};
use proptest::prelude::*;

use super::batches::feed_batch;
use super::collective::drops;

const PORTS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// Frames that come in by one port.
    Batch(usize, Vec<Frame>),
    /// The hop of both prefixes, the ports that are up, and an MTU of all ports.
    Tables([usize; 2], u64, usize),
    /// A group with the address of a host, installed or removed.
    Group(bool),
    Wait(u64),
}

#[derive(Clone, Debug)]
struct Frame {
    mac: usize,
    src: usize,
    dst: usize,
    sport: u16,
    ttl: u8,
    payload: usize,
    to_switch: bool,
    /// This bit is flipped.
    wrong: Option<usize>,
    padding: usize,
}

/// In groups, so that most frames belong to a flow that is known.
fn frame() -> impl Strategy<Value = Frame> {
    let rarely = |odds: f64| prop::bool::weighted(odds);
    let wrong = prop::option::weighted(0.1, 0..8 * 54_usize);
    (
        (0..2_usize, 0..2_usize, 0..3_usize, 0..2_u16),
        (0..64_usize, prop::sample::select(vec![0, 1, 2, 64])),
        (rarely(0.95), wrong, rarely(0.1)),
    )
        .prop_map(
            |((mac, src, dst, sport), (payload, ttl), (to_switch, wrong, padded))| Frame {
                mac,
                src,
                dst,
                sport: 0xC000 + sport,
                ttl: if ttl < 3 && payload > 16 { 64 } else { ttl },
                payload: payload * 4,
                to_switch,
                wrong,
                padding: if padded { 6 } else { 0 },
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..2_usize, prop::collection::vec(frame(), 1..12)).prop_map(|(port, frames)| Step::Batch(port, frames)),
        1 => ([2..PORTS, 2..PORTS], 0..16_u64, prop::sample::select(vec![4200_usize, 4200, 150]))
            .prop_map(|(hops, up, mtu)| Step::Tables(hops, up | 3, mtu)),
        1 => any::<bool>().prop_map(Step::Group),
        1 => prop_oneof![0..10_u64, 0..400_u64].prop_map(Step::Wait),
    ]
}

fn bytes(ingress: usize, frame: &Frame) -> Vec<u8> {
    let mut data = DataFrame::new(Opcode::SendOnly, 1, &vec![7; frame.payload]);
    (data.src, data.dst) = (
        host_ip(frame.src),
        std::net::Ipv4Addr::new(10, 1, frame.dst as u8, 3),
    );
    (data.sport, data.ttl, data.ethernet.src) = (frame.sport, frame.ttl, peer_mac(frame.mac));
    data.ethernet.dst = if frame.to_switch {
        port_mac(ingress)
    } else {
        peer_mac(3)
    };
    let mut bytes = data.bytes();
    if let Some(bit) = frame.wrong {
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes.extend(vec![0; frame.padding]);
    bytes
}

/// As text, which shows all counters.
fn counters(engine: &Engine) -> String {
    let mut snapshot = CountersSnapshot::with_capacity(8, 64);
    engine.snapshot(&mut snapshot);
    format!("{snapshot:?}")
}

proptest! {
    #[test]
    fn cached_flows_are_routed_as_others(steps in prop::collection::vec(step(), 1..60), flows in prop::sample::select(vec![1_usize, 2, 64])) {
        let build = |flows| Engine::new(EngineConfig { flows, fdb_capacity: 3, ..config(PORTS) }).unwrap();
        let (mut cached, mut plain) = (build(flows), build(0));
        let mut now = T0;
        for (generation, step) in steps.iter().enumerate() {
            match step {
                Step::Batch(ingress, frames) => {
                    let frames: Vec<_> = frames.iter().map(|frame| bytes(*ingress, frame)).collect();
                    let [a, b] = [&mut cached, &mut plain].map(|engine| feed_batch(engine, now, *ingress, &frames));
                    prop_assert_eq!(a, b);
                }
                Step::Tables(hops, up, mtu) => {
                    let route = |prefix: &str, hop: usize| Route {
                        prefix: prefix.parse().unwrap(),
                        next_hops: vec![RouteHop { port: port(hop), mac: peer_mac(hop) }], replicate: false, copy_to: Vec::new(),
                    };
                    let routes = [route("10.1.0.0/16", hops[0]), route("10.1.1.0/24", hops[1])];
                    let up = (0..PORTS).filter(|n| up >> n & 1 == 1).map(port);
                    let mut tables = tables(generation as u64, [], &routes, up);
                    tables.mtus = (0..PORTS).map(|n| (port(n), *mtu)).collect();
                    let tables = Arc::new(tables);
                    for engine in [&mut cached, &mut plain] {
                        engine.set_tables(now, tables.clone());
                    }
                }
                Step::Group(installed) => for engine in [&mut cached, &mut plain] {
                    let mut rule = rule((0..3).map(host).collect());
                    rule.mcst_id = McstId([10, 1, 2, 3].into());
                    match installed {
                        true if engine.group(rule.mcst_id).is_some() => {}
                        true => install(engine, &rule),
                        false => drop(engine.remove(rule.mcst_id)),
                    }
                },
                Step::Wait(seconds) => now += Nanos::from_secs(*seconds),
            }
            prop_assert_eq!(counters(&cached), counters(&plain));
            prop_assert!(cached.fdb(now).eq(plain.fdb(now)));
        }
    }
}

/// To all hosts by the last port.
fn route() -> Route {
    Route {
        prefix: "10.1.0.0/16".parse().unwrap(),
        next_hops: vec![RouteHop {
            port: port(3),
            mac: peer_mac(3),
        }],
        replicate: false,
        copy_to: Vec::new(),
    }
}

/// A frame that this route covers.
fn routed(payload: usize) -> Frame {
    Frame {
        mac: 0,
        src: 0,
        dst: 0,
        sport: 0xC000,
        ttl: 64,
        payload,
        to_switch: true,
        wrong: None,
        padding: 0,
    }
}

/// The FDB has a source address for good once it has seen it twice; from then on the flow is cached, until the tables change.
#[test]
fn a_flow_is_cached_from_its_second_frame_until_the_tables_change() {
    let mut engine = engine(PORTS);
    let tables = Arc::new(tables(1, [], &[route()], (0..PORTS).map(port)));
    engine.set_tables(T0, tables.clone());
    let frame = bytes(0, &routed(64));
    for (sent, egress) in [(1, None), (2, Some(port(3))), (3, Some(port(3)))] {
        assert_eq!(
            feed_batch(&mut engine, T0, 0, std::slice::from_ref(&frame)).len(),
            1
        );
        assert_eq!(engine.egress_of(T0, port(0), &frame), egress);
        assert_eq!(engine.totals().routed, sent);
    }
    assert_eq!(engine.egress_of(T0, port(1), &frame), None);
    engine.set_tables(T0, tables);
    assert_eq!(engine.egress_of(T0, port(0), &frame), None);
}

/// Addresses that are new at other ports would make all flows slow otherwise, at a port's whole rate.
#[test]
fn a_flow_stays_cached_while_other_stations_come_until_its_own_moves() {
    let mut engine = engine(PORTS);
    engine.set_tables(T0, Arc::new(tables(1, [], &[route()], (0..PORTS).map(port))));
    let frame = bytes(0, &routed(64));
    let mut from = |n: usize, frame: &Vec<u8>| {
        feed_batch(&mut engine, T0, n, std::slice::from_ref(frame));
        engine.egress_of(T0, port(0), &bytes(0, &routed(64)))
    };
    for _ in 0..2 {
        from(0, &frame);
    }
    let new = |mac: u8| {
        let mut frame = bytes(1, &routed(64));
        frame[6..12].copy_from_slice(&[2, 9, 9, 9, 9, mac]);
        frame
    };
    for mac in 0..100 {
        assert_eq!(from(1, &new(mac)), Some(port(3)), "{mac}");
        assert_eq!(from(0, &new(100 + mac)), Some(port(3)), "{mac}");
    }
    // One of the other port's goes away, then its own.
    assert_eq!(from(2, &new(1)), Some(port(3)));
    assert_eq!(from(1, &bytes(1, &routed(64))), None);
}

/// A packet as long as the MTU of its egress port is routed, known flow or not; a longer one is dropped and counted.
#[test]
fn a_packet_longer_than_the_mtu_is_dropped() {
    let mut tables = tables(1, [], &[route()], (0..PORTS).map(port));
    // IPv4, UDP, BTH and ICRC are 44 bytes.
    tables.mtus = vec![(port(3), 300)];
    let mut engine = engine(PORTS);
    engine.set_tables(T0, Arc::new(tables));
    let mut send = |payload| {
        let sent = feed_batch(&mut engine, T0, 0, &[bytes(0, &routed(payload))]);
        (sent.len(), drops(&engine, DropReason::TooLong))
    };
    for _ in 0..3 {
        assert_eq!(send(256), (1, 0));
    }
    assert_eq!(send(260), (0, 1));
    assert_eq!(send(1024), (0, 2));
    assert_eq!(send(256), (1, 2));
}
