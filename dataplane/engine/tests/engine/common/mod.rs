//! A switch, its group and frames for it, for the tests of this folder.
#![allow(dead_code, unreachable_pub)]

pub mod collective;

use core::net::Ipv4Addr;

use castnet_engine::plain::PlainEgress;
use castnet_engine::{Context, Engine, EngineConfig, Expected, PortInfo, Tables};
use castnet_rules::{
    Endpoint, GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop, RemoteMemory, Route,
};
use castnet_wire::build::{emit_ack, emit_arp};
use castnet_wire::{
    Aeth, Arp, Batch, BitRate, Bth, Ethernet, ExtHeaders, Ipv4, MacAddr, McstId, Nanos, Network, Opcode,
    Parsed, Pmtu, PortId, Psn, Qpn, RateLimit, RoceHeader, Syndrome, VlanTag, emit_roce, icrc, parse_frame,
};

/// The group's address.
pub const MCST: McstId = McstId(Ipv4Addr::new(10, 9, 0, 1));
/// Where the sender's virtual addresses begin.
pub const VA_BASE: u64 = 0x7000_0000_0000;
/// Bytes of memory that each member names.
pub const MEMORY: u64 = 1 << 20;

pub fn port(n: usize) -> PortId {
    PortId::new(n as u8).unwrap()
}

/// Our Ethernet address at port `n`.
pub fn port_mac(n: usize) -> MacAddr {
    MacAddr([0x02, 0xCA, 0, 0, 0, n as u8])
}

/// The Ethernet address of who is at port `n`.
pub fn peer_mac(n: usize) -> MacAddr {
    MacAddr([0x02, 0xAA, 0, 0, (n >> 8) as u8, n as u8])
}

pub fn host_ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + n as u32)
}

pub fn host_qpn(n: usize) -> Qpn {
    Qpn::new(0x100 + n as u32)
}

pub fn memory(n: usize) -> RemoteMemory {
    RemoteMemory {
        va: 0x1000_0000 * (n as u64 + 1),
        rkey: 0x4000 + n as u32,
        length: MEMORY,
    }
}

pub fn ports(count: usize) -> Vec<PortInfo> {
    (0..count)
        .map(|n| PortInfo {
            id: port(n),
            name: format!("p{n}"),
            mac: port_mac(n),
            mtu: 4200,
            flood: true,
        })
        .collect()
}

pub fn config(count: usize) -> EngineConfig {
    EngineConfig {
        lldp_interval: None,
        ..EngineConfig::new("s1", ports(count))
    }
}

pub fn engine(count: usize) -> Engine {
    Engine::new(config(count)).unwrap()
}

pub fn host(n: usize) -> Endpoint {
    host_at(n, n)
}

pub fn host_at(port_number: usize, n: usize) -> Endpoint {
    let host = HostEndpoint {
        name: format!("h{n}"),
        ip: host_ip(n),
        qpn: host_qpn(n),
        mac: peer_mac(n),
        part: HostPart::Memory(memory(n)),
    };
    Endpoint::new(port(port_number), NextHop::Host(host))
}

pub fn switch(n: usize) -> Endpoint {
    Endpoint::new(port(n), NextHop::switch(format!("s{n}"), peer_mac(n)))
}

/// The McstID at the switch behind the routers of port `n`.
pub fn far_ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 10, 0, n as u8 + 1)
}

/// A switch behind routers.
pub fn far_switch(n: usize) -> Endpoint {
    let mut endpoint = switch(n);
    if let NextHop::Switch { ip, .. } = &mut endpoint.next_hop {
        *ip = Some(far_ip(n));
    }
    endpoint
}

/// Of so many megabits per second, with this burst.
pub fn limit(mbps: u64, burst_bytes: u64) -> Option<RateLimit> {
    let rate = BitRate::new(mbps * 1_000_000).unwrap();
    Some(RateLimit { rate, burst_bytes })
}

/// A group with its source at the first of these paths.
pub fn rule(endpoints: Vec<Endpoint>) -> GroupRule {
    let kind = MulticastRule {
        start_psn: Some(Psn::new(100)),
        va_base: VA_BASE,
        carries_on: None,
        any_source: None,
        repair: None,
        hold_fatal_naks: false,
        source: 0,
    };
    GroupRule {
        name: "g".into(),
        generation: 1,
        mcst_id: MCST,
        pmtu: Pmtu::B1024,
        stall_timeout_ms: 2000,
        rate_limit: None,
        endpoints,
        kind: kind.into(),
    }
}

/// Source host at port 0, receiving hosts from port 1 on.
pub fn star(receivers: usize) -> GroupRule {
    rule((0..=receivers).map(host).collect())
}

pub fn install(engine: &mut Engine, rule: &GroupRule) {
    let group = Context::compile(rule, &engine.config().ports).unwrap();
    assert!(engine.install(Nanos::ZERO, group).unwrap().is_none());
}

/// A switch with as many ports as the star needs and one more, and the star installed.
pub fn star_switch(receivers: usize) -> Engine {
    let mut engine = engine(receivers + 2);
    install(&mut engine, &star(receivers));
    engine
}

pub fn ethernet(n: usize) -> Ethernet {
    Ethernet {
        dst: port_mac(n),
        src: peer_mac(n),
        vlan: None,
        ethertype: 0x0800,
    }
}

/// A data frame, as the host at port 0 sends it to the group.
#[derive(Clone, Debug)]
pub struct DataFrame {
    pub opcode: Opcode,
    pub psn: u32,
    pub payload: Vec<u8>,
    pub ext: ExtHeaders,
    pub ack_request: bool,
    pub solicited: bool,
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
    pub dest_qp: Qpn,
    pub ethernet: Ethernet,
    pub tos: u8,
    pub ttl: u8,
    pub ident: u16,
    pub sport: u16,
}

impl DataFrame {
    pub fn new(opcode: Opcode, psn: u32, payload: &[u8]) -> Self {
        Self {
            opcode,
            psn,
            payload: payload.to_vec(),
            ext: ExtHeaders::NONE,
            ack_request: false,
            solicited: false,
            src: host_ip(0),
            dst: MCST.0,
            dest_qp: Qpn::VIRTUAL,
            ethernet: ethernet(0),
            tos: 0x68,
            ttl: 64,
            ident: 0x1234,
            sport: 0xC123,
        }
    }

    pub fn vlan(mut self, vid: u16) -> Self {
        self.ethernet.vlan = Some(VlanTag::new(vid));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let network = Network::V4(Ipv4 {
            tos: self.tos,
            ttl: self.ttl,
            ident: self.ident,
            ..Ipv4::udp(self.src, self.dst)
        });
        let bth = Bth {
            solicited: self.solicited,
            ack_request: self.ack_request,
            ..Bth::new(self.opcode, self.dest_qp, Psn::new(self.psn))
        };
        let mut out = vec![0; self.payload.len() + 256];
        let n = emit_roce(
            &mut out,
            &self.ethernet,
            &network,
            self.sport,
            &bth,
            &self.ext,
            &self.payload,
        )
        .unwrap();
        out.truncate(n);
        out
    }
}

pub fn send(psn: u32, payload: &[u8]) -> Vec<u8> {
    DataFrame::new(Opcode::SendOnly, psn, payload).bytes()
}

/// An acknowledge packet of the host at port `n`.
pub fn ack(n: usize, psn: u32, msn: u32, syndrome: Syndrome) -> Vec<u8> {
    let mut out = vec![0; 128];
    let network = Network::v4(host_ip(n), MCST.0);
    let aeth = Aeth { syndrome, msn };
    let n = emit_ack(
        &mut out,
        &ethernet(n),
        &network,
        0xC777,
        Qpn::VIRTUAL,
        Psn::new(psn),
        aeth,
    )
    .unwrap();
    out.truncate(n);
    out
}

/// Tables with these routes, with all groups on worker 0.
pub fn tables(
    generation: u64,
    groups: impl IntoIterator<Item = McstId>,
    routes: &[Route],
    up: impl IntoIterator<Item = PortId>,
) -> Tables {
    let mut tables = Tables::default();
    (tables.generation, tables.up) = (generation, up.into_iter().collect());
    groups
        .into_iter()
        .for_each(|group| tables.owners.insert(group, 0));
    tables.set_routes(routes);
    tables
}

pub fn cnp(n: usize) -> Vec<u8> {
    let mut out = vec![0; 128];
    let network = Network::v4(host_ip(n), MCST.0);
    let bth = Bth {
        becn: true,
        ..Bth::new(Opcode::Cnp, Qpn::VIRTUAL, Psn::new(0))
    };
    let n = emit_roce(
        &mut out,
        &ethernet(n),
        &network,
        0xC777,
        &bth,
        &ExtHeaders::NONE,
        &[],
    )
    .unwrap();
    out.truncate(n);
    out
}

pub fn arp_request(n: usize, target: Ipv4Addr) -> Vec<u8> {
    let mut out = vec![0; 64];
    let arp = Arp::request(peer_mac(n), host_ip(n), target);
    let n = emit_arp(&mut out, MacAddr::BROADCAST, &arp).unwrap();
    out.truncate(n);
    out
}

/// Any Ethernet frame.
pub fn plain_frame(dst: MacAddr, src: MacAddr, vlan: Option<u16>, length: usize) -> Vec<u8> {
    let mut out = vec![0x5A; length.max(18)];
    Ethernet {
        dst,
        src,
        vlan: vlan.map(VlanTag::new),
        ethertype: 0x88B5,
    }
    .emit(&mut out)
    .unwrap();
    out
}

/// One frame through the engine: what left, by port.
pub fn feed(engine: &mut Engine, now: Nanos, ingress: usize, frame: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let mut egress = PlainEgress::default();
    feed_into(engine, now, ingress, frame, &mut egress);
    taken(egress)
}

pub fn feed_into(engine: &mut Engine, now: Nanos, ingress: usize, frame: &[u8], egress: &mut PlainEgress) {
    let mut batch = Batch::new();
    batch.push(frame.to_vec());
    engine.process(now, port(ingress), &mut batch, egress);
    assert!(batch.is_empty(), "a batch is drained");
}

/// Puts all groups into a new engine, which goes on in the place of this one.
pub fn move_on(engine: &mut Engine, now: Nanos) {
    let mut next = Engine::new(engine.config().clone()).unwrap();
    let all = engine.groups().map(|g| Expected::new(g.rule(), g.memory_bytes()));
    let all: Vec<_> = all.collect();
    for mut expected in all {
        next.expect(&mut expected).unwrap();
        let group = engine.remove(expected.mcst_id()).unwrap();
        next.attach(now, group, &expected).unwrap();
    }
    *engine = next;
}

pub fn taken(egress: PlainEgress) -> Vec<(usize, Vec<u8>)> {
    egress
        .sent
        .into_iter()
        .map(|(port, frame)| (port.index(), frame))
        .collect()
}

pub fn roce(frame: &[u8]) -> RoceHeader {
    match parse_frame(frame, frame.len()) {
        Ok(Parsed::Roce(header)) => header,
        other => panic!("not RoCEv2: {other:?}"),
    }
}

/// Returns true if the ICRC and the IPv4 checksum are right.
pub fn is_sound(frame: &[u8]) -> bool {
    let header = roce(frame);
    icrc::verify_bytes(frame, header.l3, header.frame_len)
        && castnet_wire::ipv4::checksum_is_right(&frame[header.l3..])
}

/// Contract S1, as counted.
pub fn assert_conserved(engine: &Engine) {
    let t = engine.totals();
    let ended = t.switched + t.routed + t.flooded + t.replicated + t.absorbed + t.dropped;
    assert_eq!(t.received, ended, "every frame has one end: {t:?}");
    let left = t.switched + t.routed + t.flooded + t.replicated + t.copies + t.originated;
    assert_eq!(t.sent, left, "what left is what went on and what was made: {t:?}");
}

pub const T0: Nanos = Nanos(1_000_000_000);
