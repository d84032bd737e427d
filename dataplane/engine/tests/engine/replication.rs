//! Replication by difference, compared with its slow twin: parse the frame, and build each copy with a full ICRC.

use std::cell::Cell;

use crate::common::*;
use castnet_engine::plain::PlainEgress;
use castnet_engine::{Egress, Engine};
use castnet_rules::{Endpoint, GroupRule, HostPart, NextHop};
use castnet_wire::{
    Batch, DropReason, Ethernet, ExtHeaders, FrameBuf, IpAddrs, Ipv4, Network, Opcode, Pmtu, PortId, Psn,
    Reth, Syndrome, VlanTag, emit_roce,
};
use proptest::prelude::*;

const DATA: [Opcode; 12] = [
    Opcode::SendFirst,
    Opcode::SendMiddle,
    Opcode::SendLast,
    Opcode::SendLastImm,
    Opcode::SendOnly,
    Opcode::SendOnlyImm,
    Opcode::WriteFirst,
    Opcode::WriteMiddle,
    Opcode::WriteLast,
    Opcode::WriteLastImm,
    Opcode::WriteOnly,
    Opcode::WriteOnlyImm,
];

/// The expected copy for a path, built from the parsed original.
pub(crate) fn twin(original: &[u8], rule: &GroupRule, path: &Endpoint) -> Vec<u8> {
    let header = roce(original);
    let (link, l3) = Ethernet::parse(original).unwrap();
    let (ip, _) = Ipv4::parse(&original[l3..]).unwrap();
    let ethernet = Ethernet {
        dst: path.next_hop.mac(),
        src: port_mac(path.port.index()),
        ..link
    };
    let IpAddrs::V4 { src, dst } = header.ip else {
        panic!("IPv4")
    };
    let mut bth = header.bth;
    bth.dest_qp = path.next_hop.qpn();
    let mut ext: ExtHeaders = header.ext(original);
    let (mut src, mut dst) = (src, dst);
    if let Some(ip) = path.next_hop.ip() {
        (src, dst) = (rule.mcst_id.0, ip);
    }
    let reth = (&mut ext.reth, rule.multicast(), path.next_hop.host());
    if let (Some(reth), Some(kind), Some(host)) = reth {
        let offset = reth.va.checked_sub(kind.va_base);
        let memory = host.memory().filter(|m| {
            offset
                .and_then(|o| o.checked_add(reth.dma_len.into()))
                .is_some_and(|e| e <= m.length)
        });
        match (memory, offset) {
            (Some(memory), Some(offset)) => (reth.va, reth.rkey) = (memory.va + offset, memory.rkey),
            _ if reth.dma_len == 0 => {}
            _ => (reth.va, reth.rkey) = (u64::MAX, 0),
        }
    }
    let network = Network::V4(Ipv4 {
        tos: ip.tos,
        ttl: ip.ttl,
        ident: ip.ident,
        ..Ipv4::udp(src, dst)
    });
    let payload = &original[header.payload_at..header.payload_at + header.payload_len];
    let mut out = vec![0; original.len() + 64];
    let length = emit_roce(&mut out, &ethernet, &network, header.sport, &bth, &ext, payload).unwrap();
    out.truncate(length);
    // Ethernet padding stays, but behind a packet that is longer than a head.
    if header.frame_len <= 128 {
        out.extend_from_slice(&original[header.frame_len..]);
    }
    out
}

fn any_path(n: usize) -> impl Strategy<Value = Endpoint> {
    (
        prop::sample::select(vec![host, switch, far_switch]),
        any::<bool>(),
    )
        .prop_map(move |(hop, has_memory)| {
            let mut path = hop(n);
            if let (NextHop::Host(host), false) = (&mut path.next_hop, has_memory) {
                host.part = HostPart::Plain;
            }
            path
        })
}

fn any_group() -> impl Strategy<Value = GroupRule> {
    (2usize..12, any::<prop::sample::Index>())
        .prop_flat_map(|(n, source)| ((0..n).map(any_path).collect::<Vec<_>>(), Just(source)))
        .prop_map(|(paths, source)| {
            let source = source.index(paths.len()) as u16;
            GroupRule {
                pmtu: Pmtu::B4096,
                ..rule(paths).with_multicast(|rule| rule.source = source)
            }
        })
}

pub(crate) fn any_frame() -> impl Strategy<Value = DataFrame> {
    let reth = (
        0u64..2 * MEMORY,
        any::<u32>(),
        prop_oneof![Just(0u32), 0u32..8192, any::<u32>()],
        any::<bool>(),
    );
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        (any::<u8>(), 0usize..=4096).prop_map(|(byte, n)| vec![byte; n]),
    ];
    (
        prop::sample::select(&DATA[..]),
        payload,
        reth,
        any::<u32>(),
        (
            any::<bool>(),
            any::<bool>(),
            any::<u8>(),
            any::<u8>(),
            any::<u16>(),
            any::<u16>(),
        ),
        prop::option::of(0u16..4096),
    )
        .prop_map(
            |(
                opcode,
                payload,
                (offset, rkey, dma_len, below),
                imm,
                (ack, se, tos, ttl, ident, sport),
                vid,
            )| {
                let va = if below {
                    VA_BASE.wrapping_sub(offset)
                } else {
                    VA_BASE + offset
                };
                let ext = ExtHeaders {
                    reth: Some(Reth { va, rkey, dma_len }),
                    imm: Some(imm),
                    ..ExtHeaders::NONE
                };
                let mut frame = DataFrame {
                    ext,
                    tos,
                    ttl,
                    ident,
                    sport,
                    ..DataFrame::new(opcode, 0, &payload)
                };
                (frame.ack_request, frame.solicited) = (ack, se);
                frame.ethernet.vlan = vid.map(VlanTag::new);
                frame
            },
        )
}

fn source(rule: &GroupRule) -> PortId {
    rule.upstream().unwrap().port
}

/// Gives the frame to the group's source.
fn from_source(mut frame: DataFrame, rule: &GroupRule, psn: u32) -> DataFrame {
    frame.psn = psn;
    let source = source(rule);
    let n = source.index();
    (frame.ethernet.dst, frame.ethernet.src) = (port_mac(n), peer_mac(n));
    // Behind an adjacent switch the sender may be anybody.
    let ip = rule.upstream().unwrap().next_hop.ip();
    frame.src = ip.unwrap_or([10, 7, 7, 7].into());
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_copy_is_what_building_it_anew_gives(
        rule in any_group(), frames in prop::collection::vec((any_frame(), any::<bool>(), 0usize..3), 1..8),
    ) {
        let mut engine = engine(12);
        install(&mut engine, &rule);
        let mut psn = 100;
        for (frame, gap, padding) in frames {
            psn += u32::from(gap);
            let mut original = from_source(frame, &rule, psn).bytes();
            psn += 1;
            original.resize(original.len() + padding, 0xEE);
            let sent = feed(&mut engine, T0, source(&rule).index(), &original);
            let mut receivers: Vec<&Endpoint> = rule.endpoints.iter().filter(|e| e.port != source(&rule)).collect();
            receivers.sort_by_key(|p| p.port);
            prop_assert_eq!(sent.len(), receivers.len());
            for ((port, copy), path) in sent.iter().zip(receivers) {
                prop_assert_eq!(*port, path.port.index());
                prop_assert_eq!(copy, &twin(&original, &rule, path), "{:?}", path);
                prop_assert!(is_sound(copy));
            }
        }
        assert_conserved(&engine);
    }

    /// One bit of what the ICRC covers, or of the ICRC itself, is wrong: no copy may look right, and of the machine's
    /// state no more may change than the count of new data.
    #[test]
    fn corruption_stays_corruption(frame in any_frame(), at in any::<prop::sample::Index>(), bit in 0u8..8, psn in 98u32..104) {
        let rule = GroupRule { pmtu: Pmtu::B4096, ..star(3) };
        let mut engine = engine(5);
        install(&mut engine, &rule);
        for psn in 100..102 {
            feed(&mut engine, T0, 0, &send(psn, b"first"));
        }
        feed(&mut engine, T0, 1, &ack(1, 100, 1, Syndrome::Ack));
        let mut bytes = from_source(frame, &rule, psn).bytes();
        let header = roce(&bytes);
        let masked = [1, 8, 10, 11, 26, 27, 32].map(|at| header.l3 + at);
        let at = header.l3 + at.index(bytes.len() - header.l3);
        prop_assume!(!masked.contains(&at));
        bytes[at] ^= 1 << bit;
        let before = engine.group_status(MCST).unwrap().machine;
        let sent = feed(&mut engine, T0, 0, &bytes);
        for (_, copy) in &sent {
            // The frame stays wrong in every case. A changed address bit may have made it a frame of no group.
            if let Ok(castnet_wire::Parsed::Roce(h)) = castnet_wire::parse_frame(copy, copy.len()) {
                prop_assert!(!castnet_wire::icrc::verify_bytes(copy, h.l3, h.frame_len));
            }
        }
        let mut after = engine.group_status(MCST).unwrap().machine;
        if after.newest_psn == before.newest_psn.map(Psn::next) {
            (after.newest_psn, after.since, after.waiting_for) = (before.newest_psn, before.since, before.waiting_for);
        }
        prop_assert_eq!(after, before);
        assert_conserved(&engine);
    }
}

#[test]
fn a_retransmission_goes_only_where_it_is_needed() {
    let mut engine = star_switch(3);
    for psn in 100..103 {
        assert_eq!(feed(&mut engine, T0, 0, &send(psn, &[1; 64])).len(), 3);
    }
    feed(&mut engine, T0, 2, &ack(2, 101, 1, Syndrome::Ack));
    let sent = feed(&mut engine, T0, 0, &send(101, &[1; 64]));
    assert_eq!(sent.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 3]);
    let status = engine.group_status(MCST).unwrap();
    assert_eq!(
        (status.counters.retransmitted_in, status.counters.filtered),
        (1, 1)
    );
    let out: Vec<u64> = status.paths.iter().map(|p| p.copies_out).collect();
    assert_eq!(out, [0, 4, 3, 4]);
    assert_eq!(status.counters.copies_out, out.iter().sum::<u64>());
}

#[test]
fn a_path_whose_port_is_down_is_counted_as_lost() {
    let mut engine = star_switch(3);
    let up = (0..5).filter(|n| *n != 3).map(port);
    engine.set_tables(T0, std::sync::Arc::new(crate::common::tables(1, [MCST], &[], up)));
    let sent = feed(&mut engine, T0, 0, &send(100, &[1; 64]));
    assert_eq!(sent.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 2]);
    let status = engine.group_status(MCST).unwrap();
    assert_eq!(
        (status.paths[3].counters.lost, status.counters.copies_out),
        (1, 2)
    );
    assert_conserved(&engine);
}

#[test]
fn without_buffers_the_original_still_leaves() {
    let mut engine = star_switch(4);
    let mut egress = PlainEgress {
        buffers: Some(1),
        ..PlainEgress::default()
    };
    feed_into(&mut engine, T0, 0, &send(100, &[1; 64]), &mut egress);
    let sent = taken(egress);
    assert_eq!(sent.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 4]);
    assert!(sent.iter().all(|(_, frame)| is_sound(frame)));
    assert_eq!(engine.totals().copies_lost, 2);
    assert_conserved(&engine);
}

/// A frame as DPDK holds it: all of it is its head until a replica reads its body; then only the first 128 bytes and the
/// last four are its own.
struct Shared {
    bytes: Vec<u8>,
    shared: Cell<bool>,
}

impl Shared {
    fn new(bytes: Vec<u8>, shared: bool) -> Self {
        let shared = Cell::new(shared);
        Self { bytes, shared }
    }

    fn private(&self) -> usize {
        let length = self.bytes.len();
        if self.shared.get() {
            length.min(128)
        } else {
            length
        }
    }
}

impl FrameBuf for Shared {
    fn length(&self) -> usize {
        self.bytes.len()
    }
    fn head(&self) -> &[u8] {
        &self.bytes[..self.private()]
    }
    fn head_mut(&mut self) -> &mut [u8] {
        let private = self.private();
        &mut self.bytes[..private]
    }
    fn trailer(&self) -> [u8; 4] {
        self.bytes.trailer()
    }
    fn set_trailer(&mut self, bytes: [u8; 4]) {
        self.bytes.set_trailer(bytes);
    }
    fn segments(&self) -> [&[u8]; 3] {
        let (head, body) = self.bytes.split_at(self.private());
        [head, body, &[]]
    }
}

#[derive(Default)]
struct Sharing {
    sent: Vec<(usize, Vec<u8>)>,
    full: bool,
}

impl Egress for Sharing {
    type Buf = Shared;
    fn replicate(&mut self, _: PortId, original: &Shared, header: usize) -> Option<Shared> {
        original.shared.set(true);
        (header <= Shared::HEAD).then(|| Shared::new(original.bytes.clone(), true))
    }
    fn allocate(&mut self, _: PortId, length: usize) -> Option<Shared> {
        Some(Shared::new(vec![0; length], false))
    }
    fn gather(&mut self, _: PortId, parts: &[&[u8]]) -> Option<Shared> {
        (!self.full).then(|| Shared::new(parts.concat(), false))
    }
    fn send(&mut self, port: PortId, frame: Shared) {
        self.sent.push((port.index(), frame.bytes));
    }
}

/// `in_pool`: as the pool holds a frame, of which never more than 128 bytes are the head.
fn feed_shared(engine: &mut Engine, bytes: Vec<u8>, in_pool: bool, full: bool) -> Vec<(usize, Vec<u8>)> {
    let (mut batch, mut egress) = (
        Batch::new(),
        Sharing {
            full,
            ..Sharing::default()
        },
    );
    batch.push(Shared::new(bytes, in_pool));
    engine.process(T0, port(0), &mut batch, &mut egress);
    egress.sent
}

#[test]
fn bytes_behind_a_long_packet_are_left_behind_and_all_members_get_it() {
    for in_pool in [false, true] {
        let mut engine = star_switch(3);
        for (psn, payload, rest) in [(100, 1024, 20), (101, 72, 1), (102, 64, 500), (103, 1024, 0)] {
            let frame = send(psn, &vec![7; payload]);
            let bytes = [frame.clone(), vec![0xEE; rest]].concat();
            let sent = feed_shared(&mut engine, bytes.clone(), in_pool, false);
            assert_eq!(sent.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 2, 3]);
            for (n, copy) in &sent {
                assert_eq!(
                    *copy,
                    twin(&bytes, &star(3), &host(*n)),
                    "payload {payload}, in a pool {in_pool}"
                );
                assert!(is_sound(copy));
            }
        }
        assert_eq!(engine.totals().copies_lost, 0);
        // Without a buffer it ends as a whole, and the source sends it again.
        let bytes = [send(104, &[7; 1024]), vec![0xEE; 20]].concat();
        assert_eq!(feed_shared(&mut engine, bytes.clone(), in_pool, true), []);
        assert_eq!(engine.totals().dropped, 1);
        assert_eq!(feed_shared(&mut engine, bytes, in_pool, false).len(), 3);
        assert_conserved(&engine);
    }
}

#[test]
fn a_write_outside_the_members_memory_leaves_without_a_valid_key_and_is_counted() {
    let mut engine = star_switch(2);
    let reth = Reth {
        va: VA_BASE + MEMORY - 4,
        rkey: 0xABCD,
        dma_len: 8,
    };
    let mut frame = DataFrame::new(Opcode::WriteOnly, 100, &[7; 8]);
    frame.ext.reth = Some(reth);
    let sent = feed(&mut engine, T0, 0, &frame.bytes());
    assert_eq!(sent.len(), 2);
    for (_, copy) in &sent {
        let reth = roce(copy).reth.unwrap();
        assert_eq!((reth.va, reth.rkey, reth.dma_len), (u64::MAX, 0, 8));
        assert!(is_sound(copy));
    }
    assert_eq!(engine.group_status(MCST).unwrap().counters.out_of_range, 2);
}

#[test]
fn two_tags_are_kept() {
    let mut engine = star_switch(1);
    let plain = send(100, &[1; 64]);
    let mut tagged = plain[..12].to_vec();
    tagged.extend([0x88, 0xA8, 0, 5, 0x81, 0, 0, 9]);
    tagged.extend(&plain[12..]);
    let sent = feed(&mut engine, T0, 0, &tagged);
    assert_eq!(sent[0].1[12..22], tagged[12..22]);
    assert_eq!(sent[0].1[..6], peer_mac(1).0);
    assert!(is_sound(&sent[0].1));
    let mut reply = ack(1, 100, 1, Syndrome::Ack);
    reply.splice(12..12, [0x88, 0xA8, 0, 5, 0x81, 0, 0, 9]);
    let up = feed(&mut engine, T0, 1, &reply);
    assert_eq!(up[0].1[12..22], tagged[12..22]);
    assert!(is_sound(&up[0].1));
}

#[test]
fn what_cannot_be_multicast_is_named() {
    let mut engine = star_switch(2);
    let drops = |engine: &castnet_engine::Engine, reason: DropReason| {
        let mut snapshot = castnet_engine::CountersSnapshot::with_capacity(1, 8);
        engine.snapshot(&mut snapshot);
        snapshot.drops[reason]
    };
    let reth = Reth {
        va: VA_BASE,
        rkey: 1,
        dma_len: 64,
    };
    let mut read = DataFrame::new(Opcode::ReadRequest, 100, &[]);
    read.ext.reth = Some(reth);
    let mut invalidate = DataFrame::new(Opcode::SendOnlyInv, 100, &[1; 8]);
    invalidate.ext.ieth = Some(5);
    let unreliable = DataFrame::new(Opcode::UcSendOnly, 100, &[1; 8]);
    let mut unknown = send(100, &[1; 8]);
    unknown[14 + 28] = 0xA4;
    for frame in [read.bytes(), invalidate.bytes(), unreliable.bytes(), unknown] {
        assert_eq!(feed(&mut engine, T0, 0, &frame), []);
    }
    assert_eq!(drops(&engine, DropReason::NotMulticastable), 4);
    let mut ping = send(100, &[1; 8]);
    ping[14 + 9] = 1;
    feed(&mut engine, T0, 0, &ping);
    assert_eq!(drops(&engine, DropReason::NotMulticastable), 5);
    feed(&mut engine, T0, 0, &send(100, &[1; 1028]));
    assert_eq!(drops(&engine, DropReason::OverPmtu), 1);
    let mut bad = send(100, &[1; 8]);
    bad[14 + 10] ^= 1;
    feed(&mut engine, T0, 0, &bad);
    assert_eq!(drops(&engine, DropReason::BadIpChecksum), 1);
    assert_eq!(engine.group_status(MCST).unwrap().counters.dropped, 7);
    assert_conserved(&engine);
}
