//! Test bed of the benchmarks: an engine on the port's own buffers, and prepared frames.
#![allow(dead_code, unreachable_pub)]

pub mod collective;
pub mod samples;

use core::net::Ipv4Addr;
use std::hint::black_box;
use std::time::{Duration, Instant};

use castnet_engine::{Context, Egress, Engine, EngineConfig, PortInfo};
use castnet_port::{MemEnd, MemLink, MemLinkConfig, Pool, PoolBuf, PoolConfig};
use castnet_rules::{Endpoint, GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop, RepairRule};
use castnet_wire::build::{emit_ack, roce_len};
use castnet_wire::{
    Aeth, BATCH, Batch, Bth, Ethernet, ExtHeaders, FrameBuf, MacAddr, McstId, Nanos, Network, Opcode, Pmtu,
    PortId, Psn, Qpn, Syndrome, emit_roce, icrc,
};
use castnet_worker::{DataplaneConfig, PortConfig};

pub const MCST: McstId = McstId(Ipv4Addr::new(10, 9, 0, 1));
pub const NOW: Nanos = Nanos(1_000_000_000);
/// Offset of the PSN in an untagged IPv4 frame.
const PSN_AT: usize = ETHERNET + 20 + 8 + 9;
const ETHERNET: usize = 14;

pub fn port(n: usize) -> PortId {
    PortId::new(n as u8).unwrap_or_default()
}

fn mac(kind: u8, n: usize) -> MacAddr {
    MacAddr([2, kind, 0, 0, 0, n as u8])
}

fn ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1)
}

/// An egress that keeps frames until the batch is over, like a port's queue, and then drops them.
pub struct Sink {
    pub pool: Pool,
    pub sent: Vec<PoolBuf>,
}

impl Sink {
    pub fn new() -> Self {
        let config = PoolConfig {
            buffers: 8192,
            bodies: 512,
            frame_max: 4400,
        };
        Self {
            pool: Pool::new(config),
            sent: Vec::with_capacity(BATCH * 64),
        }
    }
}

impl Egress for Sink {
    type Buf = PoolBuf;

    #[inline]
    fn replicate(&mut self, _: PortId, original: &PoolBuf, _: usize) -> Option<PoolBuf> {
        original.replicate()
    }

    #[inline]
    fn allocate(&mut self, _: PortId, length: usize) -> Option<PoolBuf> {
        self.pool.allocate(length)
    }

    #[inline]
    fn gather(&mut self, _: PortId, parts: &[&[u8]]) -> Option<PoolBuf> {
        self.pool.gather(parts)
    }

    #[inline]
    fn send(&mut self, _: PortId, frame: PoolBuf) {
        self.sent.push(frame);
    }
}

/// A rule with the source at port 0 and receivers at ports 1 to `receivers`.
pub fn star(receivers: usize) -> GroupRule {
    let host = |n: usize| HostEndpoint {
        name: format!("h{n}"),
        ip: ip(n),
        qpn: Qpn::new(0x100 + n as u32),
        mac: mac(0xAA, n),
        part: HostPart::Plain,
    };
    GroupRule {
        name: "g".into(),
        generation: 1,
        mcst_id: MCST,
        pmtu: Pmtu::B4096,
        stall_timeout_ms: 2000,
        rate_limit: None,
        endpoints: (0..=receivers)
            .map(|n| Endpoint::new(port(n), NextHop::Host(host(n))))
            .collect(),
        kind: MulticastRule {
            start_psn: Some(Psn::new(0)),
            va_base: 0,
            carries_on: None,
            any_source: None,
            repair: None,
            hold_fatal_naks: false,
            source: 0,
        }
        .into(),
    }
}

pub fn engine(ports: usize) -> Engine {
    engine_with(ports, |_| ())
}

pub fn engine_with(ports: usize, change: impl FnOnce(&mut EngineConfig)) -> Engine {
    let info = |n| PortInfo {
        id: port(n),
        name: format!("p{n}"),
        mac: mac(0xCA, n),
        mtu: 4200,
        flood: true,
    };
    let mut config = EngineConfig {
        lldp_interval: None,
        ..EngineConfig::new("s1", (0..ports).map(info).collect())
    };
    change(&mut config);
    Engine::new(config).expect("a valid configuration")
}

pub fn install(engine: &mut Engine, rule: &GroupRule) {
    engine.remove(rule.mcst_id);
    let group = Context::compile(rule, &engine.config().ports).expect("a valid rule");
    engine.install(Nanos::ZERO, group).expect("room");
}

pub fn group(n: usize) -> McstId {
    let [_, a, b, c] = (n as u32 + 1).to_be_bytes();
    McstId([10, 64 + a, b, c].into())
}

/// These numbers of groups, up to the one on the command line.
pub fn group_counts(all: &[usize]) -> impl Iterator<Item = usize> {
    let most: Option<usize> = std::env::args().skip(1).find_map(|a| a.parse().ok());
    all.iter()
        .copied()
        .filter(move |&n| most.is_none_or(|most| n <= most))
}

/// A switch with `ports` memory links and capacity for `groups_max` groups, and the hosts' ends.
pub fn dataplane(name: &str, ports: usize, groups_max: usize) -> (DataplaneConfig, Vec<MemEnd>) {
    let link = |n: usize| MemLink::pair(&MemLinkConfig::between(&format!("p{n}"), &format!("h{n}")));
    let (own, hosts): (Vec<_>, _) = (0..ports).map(link).unzip();
    let own = own.into_iter().enumerate();
    let own = own.map(|(n, end)| PortConfig::new(port(n), format!("p{n}"), end));
    let mut config = DataplaneConfig::new(name, own.collect());
    config.engine.groups_max = groups_max;
    config.engine.memory_bytes_max = 8 << 30;
    (config, hosts)
}

fn ethernet(n: usize) -> Ethernet {
    Ethernet {
        dst: mac(0xCA, n),
        src: mac(0xAA, n),
        vlan: None,
        ethertype: 0x0800,
    }
}

pub fn frame(
    group: McstId,
    from: usize,
    opcode: Opcode,
    psn: u32,
    imm: Option<u32>,
    payload: &[u8],
) -> Vec<u8> {
    let (network, ethernet) = (Network::v4(ip(from), group.0), ethernet(from));
    let mut bth = Bth::new(opcode, Qpn::VIRTUAL, Psn::new(psn));
    bth.ack_request = opcode == Opcode::SendLast;
    let ext = ExtHeaders {
        imm,
        ..ExtHeaders::NONE
    };
    let mut out = vec![0; roce_len(&ethernet, &network, opcode, payload.len())];
    emit_roce(&mut out, &ethernet, &network, 0xC123, &bth, &ext, payload).expect("room");
    out
}

/// Of the source.
pub fn data(payload: usize) -> Vec<u8> {
    data_from(0, MCST, 0, payload)
}

pub fn data_from(source: usize, group: McstId, psn: u32, payload: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload).map(|i| i as u8).collect();
    frame(group, source, Opcode::SendMiddle, psn, None, &payload)
}

/// As many bytes of f32: 0, 1, 2 and so on.
pub fn floats(bytes: usize) -> Vec<u8> {
    (0..bytes / 4).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

pub fn ack(n: usize, psn: u32) -> Vec<u8> {
    ack_to(MCST, n, psn)
}

pub fn ack_to(group: McstId, n: usize, psn: u32) -> Vec<u8> {
    let mut out = vec![0; 62];
    let aeth = Aeth {
        syndrome: Syndrome::Ack,
        msn: psn,
    };
    emit_ack(
        &mut out,
        &ethernet(n),
        &Network::v4(ip(n), group.0),
        0xC777,
        Qpn::VIRTUAL,
        Psn::new(psn),
        aeth,
    )
    .expect("room");
    out
}

pub struct Bench {
    pub engine: Engine,
    pub sink: Sink,
    templates: Vec<PoolBuf>,
    receivers: usize,
    rule: GroupRule,
    /// The destination of data.
    to: McstId,
    /// Data has a VLAN tag, so that it takes the slow path.
    tagged: bool,
}

/// Of a static core.
const CORE: Ipv4Addr = Ipv4Addr::new(239, 1, 0, 1);

impl Bench {
    pub fn new(receivers: usize) -> Self {
        let engine = engine(receivers + 1);
        Self {
            engine,
            sink: Sink::new(),
            templates: Vec::new(),
            receivers,
            rule: star(receivers),
            to: MCST,
            tagged: false,
        }
    }

    /// The switch repairs losses.
    pub fn repairing(mut self) -> Self {
        self.rule = self
            .rule
            .with_multicast(|rule| rule.repair = Some(RepairRule::default()));
        self
    }

    /// Data takes the slow path.
    pub fn slow(mut self) -> Self {
        self.tagged = true;
        self
    }

    /// An endpoint becomes a switch that gets copies by an address of a static core.
    fn over_core(&mut self, endpoint: usize, address: Ipv4Addr) {
        let mut next_hop = NextHop::switch(format!("s{endpoint}"), mac(0xAA, endpoint));
        if let NextHop::Switch { ip: at, core, .. } = &mut next_hop {
            (*at, *core) = (Some(ip(endpoint)), Some(address));
        }
        self.rule.endpoints[endpoint].next_hop = next_hop;
    }

    /// The receivers are switches behind `copies` addresses of a static core.
    pub fn source_edge(mut self, copies: u32) -> Self {
        for n in 1..=self.receivers {
            self.over_core(n, (CORE.to_bits() + n as u32 % copies).into());
        }
        self
    }

    /// Data comes over a static core.
    pub fn receiver_edge(mut self) -> Self {
        self.over_core(0, CORE);
        self.to = McstId(CORE);
        self
    }

    /// Installs the group again, outside of any measured time.
    pub fn reset(&mut self) {
        install(&mut self.engine, &self.rule);
    }

    /// Data of the source.
    fn data(&self, payload: usize) -> Vec<u8> {
        let mut frame = data_from(0, self.to, 0, payload);
        if self.tagged {
            frame.splice(12..12, [0x81, 0, 0, 7]);
        }
        frame
    }

    const fn psn_at(&self) -> usize {
        PSN_AT + if self.tagged { 4 } else { 0 }
    }

    fn load(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let pool = &self.sink.pool;
        self.templates = frames
            .into_iter()
            .map(|bytes| pool.copy_from(&bytes).expect("a buffer"))
            .collect();
    }

    pub fn replicate(&mut self, payload: usize, batches: u64) -> Duration {
        self.load(vec![self.data(payload); BATCH]);
        self.timed_data(batches, |bench, batch| {
            bench.engine.process(NOW, port(0), batch, &mut bench.sink);
        })
    }

    /// Baseline without an engine: frames are made, replicated and queued as often, and released.
    pub fn move_only(&mut self, payload: usize, batches: u64) -> Duration {
        self.load(vec![self.data(payload); BATCH]);
        let receivers = self.receivers;
        self.timed_data(batches, |bench, batch| {
            for frame in batch.drain(..) {
                for n in 1..receivers {
                    if let Some(copy) = bench.sink.replicate(port(n), &frame, 54) {
                        bench.sink.send(port(n), copy);
                    }
                }
                bench.sink.send(port(receivers), frame);
            }
        })
    }

    /// Sends windows of 128 packets, each followed by an ACK of each receiver.
    /// Returns the time and the number of packets.
    pub fn windows(&mut self, payload: usize) -> (Duration, u64) {
        const WINDOWS: u32 = 32;
        let (mut frame, at) = (self.data(payload), self.psn_at());
        // The ICRC of each packet: it is verified.
        let icrc = |psn: u32| {
            frame[at..at + 3].copy_from_slice(&Psn::new(psn).to_bytes());
            let l3 = at + ETHERNET - PSN_AT;
            icrc::of_frame(&frame, l3, frame.len()).to_le_bytes()
        };
        let icrcs: Vec<_> = (0..WINDOWS * ACKS).map(icrc).collect();
        self.load((0..BATCH).map(|_| frame.clone()));
        let of_window = |window: u32| (1..=self.receivers).map(move |n| (n, ack(n, (window + 1) * ACKS - 1)));
        let acks: Vec<(usize, PoolBuf)> = (0..WINDOWS)
            .flat_map(of_window)
            .map(|(n, bytes)| (n, self.sink.pool.copy_from(&bytes).expect("a buffer")))
            .collect();
        self.reset();
        let mut batch = Batch::new();
        let start = Instant::now();
        let mut psn = 0;
        for (icrcs, acks) in icrcs.chunks(ACKS as usize).zip(acks.chunks(self.receivers)) {
            for icrcs in icrcs.chunks(BATCH) {
                for (template, icrc) in self.templates.iter().zip(icrcs) {
                    if let Some(mut frame) = template.replicate() {
                        frame.head_mut()[at..at + 3].copy_from_slice(&Psn::new(psn).to_bytes());
                        frame.set_trailer(*icrc);
                        psn += 1;
                        batch.push(frame);
                    }
                }
                self.engine.process(NOW, port(0), &mut batch, &mut self.sink);
                black_box(&mut self.sink.sent).clear();
            }
            for (n, ack) in acks {
                batch.extend(ack.replicate());
                self.engine.process(NOW, port(*n), &mut batch, &mut self.sink);
                black_box(&mut self.sink.sent).clear();
            }
        }
        let took = start.elapsed();
        let counters = self
            .engine
            .group(MCST)
            .map(|group| group.counters())
            .unwrap_or_default();
        let packets = u64::from(WINDOWS * ACKS);
        let repairs = self.rule.multicast().is_some_and(|rule| rule.repair.is_some());
        let kept = if repairs { packets } else { 0 };
        assert_eq!(
            (counters.copies_out, counters.kept),
            (packets * self.receivers as u64, kept),
            "the intended case is measured"
        );
        (took, packets)
    }

    fn timed_data(&mut self, batches: u64, mut run: impl FnMut(&mut Self, &mut Batch<PoolBuf>)) -> Duration {
        const PER_RESET: u64 = 4096;
        let (mut left, mut total) = (batches, Duration::ZERO);
        let at = self.psn_at();
        let mut batch = Batch::new();
        while left > 0 {
            self.reset();
            let (mut psn, round) = (0u32, left.min(PER_RESET));
            let start = Instant::now();
            for _ in 0..round {
                for template in &self.templates {
                    if let Some(mut frame) = template.replicate() {
                        frame.head_mut()[at..at + 3].copy_from_slice(&Psn::new(psn).to_bytes());
                        psn += 1;
                        batch.push(frame);
                    }
                }
                run(self, &mut batch);
                black_box(&mut self.sink.sent).clear();
            }
            total += start.elapsed();
            left -= round;
        }
        total
    }

    /// Sends ACKs of 128 packets by one receiver, `rounds` times. `triggers`: it is the last receiver waited for, so
    /// each ACK is forwarded to the source; otherwise none is. `engine` false: frames are only made and released.
    pub fn acks(&mut self, triggers: bool, engine: bool, rounds: u64) -> Duration {
        let from = if triggers { 1 } else { self.receivers };
        self.load((0..ACKS).map(|psn| ack(from, psn)));
        let all: Vec<(usize, Vec<u8>)> = (2..=self.receivers).map(|n| (n, ack(n, ACKS - 1))).collect();
        let mut total = Duration::ZERO;
        let mut batch = Batch::new();
        for _ in 0..rounds {
            self.prepare(if triggers { &all } else { &[] });
            let start = Instant::now();
            for chunk in self.templates.chunks(BATCH) {
                batch.extend(chunk.iter().filter_map(PoolBuf::replicate));
                if engine {
                    self.engine.process(NOW, port(from), &mut batch, &mut self.sink);
                } else {
                    black_box(&mut batch).clear();
                }
                black_box(&mut self.sink.sent).clear();
            }
            total += start.elapsed();
        }
        if engine {
            let counters = self
                .engine
                .group(MCST)
                .map(|group| group.counters())
                .unwrap_or_default();
            let expected = if triggers { u64::from(ACKS) } else { 0 };
            assert_eq!(counters.acks_out, expected, "the intended case is measured");
        }
        total
    }

    /// A new group that has seen all data, and these ACKs.
    fn prepare(&mut self, acks: &[(usize, Vec<u8>)]) {
        self.reset();
        let template = self.sink.pool.copy_from(&data(4)).expect("a buffer");
        let mut batch = Batch::new();
        for psn in 0..ACKS {
            if let Some(mut frame) = template.replicate() {
                frame.head_mut()[PSN_AT..PSN_AT + 3].copy_from_slice(&Psn::new(psn).to_bytes());
                batch.push(frame);
            }
            self.engine.process(NOW, port(0), &mut batch, &mut self.sink);
            self.sink.sent.clear();
        }
        for (from, bytes) in acks {
            batch.extend(self.sink.pool.copy_from(bytes));
            self.engine.process(NOW, port(*from), &mut batch, &mut self.sink);
            self.sink.sent.clear();
        }
    }

    /// Frames of no member: parsed, looked up, compared with the group, and dropped. `engine`: see [`Bench::acks`].
    pub fn refuse(&mut self, engine: bool, batches: u64) -> Duration {
        let mut frame = data(1024);
        // Another source address, with a corrected checksum.
        frame[14 + 12..14 + 16].copy_from_slice(&ip(200).octets());
        self.load((0..BATCH).map(|_| frame.clone()));
        self.timed_plain(engine, batches)
    }

    pub fn switch(&mut self, engine: bool, batches: u64) -> Duration {
        let mut there = data(1024);
        there[..6].copy_from_slice(&mac(0xAA, 1).0);
        there[30..34].copy_from_slice(&ip(1).octets());
        let mut back = vec![0; 60];
        Ethernet {
            dst: mac(0xAA, 0),
            src: mac(0xAA, 1),
            vlan: None,
            ethertype: 0x88B5,
        }
        .emit(&mut back)
        .expect("room");
        let mut batch = Batch::new();
        batch.extend(self.sink.pool.copy_from(&back));
        self.engine.process(NOW, port(1), &mut batch, &mut self.sink);
        self.sink.sent.clear();
        self.load((0..BATCH).map(|_| there.clone()));
        self.timed_plain(engine, batches)
    }

    fn timed_plain(&mut self, engine: bool, batches: u64) -> Duration {
        self.reset();
        let mut batch = Batch::new();
        let start = Instant::now();
        for _ in 0..batches {
            batch.extend(self.templates.iter().filter_map(PoolBuf::replicate));
            if engine {
                self.engine.process(NOW, port(0), &mut batch, &mut self.sink);
            } else {
                self.sink.sent.extend(batch.drain(..));
            }
            black_box(&mut self.sink.sent).clear();
        }
        start.elapsed()
    }
}

pub const ACKS: u32 = 128;
