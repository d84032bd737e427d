//! A dataplane over memory links. The test acts as the hosts at the other ends.
#![allow(dead_code, unreachable_pub)]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use castnet_port::{
    Batch, MemEnd, MemLink, MemLinkConfig, MemPort, Pool, PoolBuf, PoolConfig, Port, Sides, Sleeper,
};
use castnet_rules::{
    Endpoint, GroupRule, HostEndpoint, HostPart, MulticastRule, NextHop, RankPart, TranslatedRule,
};
use castnet_wire::build::{emit_ack, emit_arp};
use castnet_wire::{
    Aeth, Arp, Bth, Ethernet, ExtHeaders, MacAddr, McstId, Network, Opcode, Parsed, Pmtu, PortId, Psn, Qpn,
    RoceHeader, Syndrome, emit_roce, parse_frame,
};
use castnet_worker::{Counters, Dataplane, DataplaneConfig, PortConfig, WorkerConfig};

/// The time after which a test fails.
pub const TIMEOUT: Duration = Duration::from_secs(120);

pub fn port(n: usize) -> PortId {
    PortId::new(n as u8).unwrap()
}

pub fn host_mac(n: usize) -> MacAddr {
    MacAddr([0x02, 0xAA, 0, 0, 0, n as u8])
}

pub fn host_ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1)
}

pub fn mcst(n: usize) -> McstId {
    McstId(Ipv4Addr::new(10, 200, (n >> 8) as u8, n as u8))
}

pub fn pool() -> Pool {
    Pool::new(PoolConfig {
        buffers: 512,
        bodies: 256,
        frame_max: 4400,
    })
}

/// A host's end of its link.
pub struct Host {
    pub pool: Pool,
    pub port: MemPort,
    sleeper: Sleeper,
    /// Received frames that have not been returned.
    got: Vec<Vec<u8>>,
}

impl Host {
    pub fn new(end: &MemEnd) -> Self {
        let pool = pool();
        let (mut port, mut sleeper) = (end.open(&pool, Sides::Both), Sleeper::new().unwrap());
        port.attach(&mut sleeper).unwrap();
        Self {
            pool,
            port,
            sleeper,
            got: Vec::new(),
        }
    }

    /// Sends frames, as many as the link and the pool have capacity for.
    pub fn flood(&mut self, frames: &[Vec<u8>]) -> usize {
        let mut sent = 0;
        for frames in frames.chunks(32) {
            let mut batch = Batch::new();
            batch.extend(frames.iter().map_while(|f| self.pool.copy_from(f)));
            sent += batch.len();
            self.port.send(&mut batch);
        }
        sent
    }

    /// Sends frames. The link must have capacity for them.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        assert_eq!(
            self.flood(frames),
            frames.len(),
            "the test sends more than the pool has"
        );
        assert_eq!(
            self.port.stats().drops.total(),
            0,
            "the test sends more than the link holds"
        );
    }

    pub fn send_one(&mut self, frame: Vec<u8>) {
        self.send(&[frame]);
    }

    /// Returns the frames that have arrived.
    pub fn poll(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        loop {
            self.port.receive(&mut batch);
            if batch.is_empty() {
                return std::mem::take(&mut self.got);
            }
            self.got.extend(batch.drain(..).map(|f: PoolBuf| f.to_vec()));
        }
    }

    /// Waits for `count` frames.
    pub fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (start, mut frames) = (Instant::now(), self.poll());
        while frames.len() < count {
            assert!(
                start.elapsed() < TIMEOUT,
                "received {} of {count} frames",
                frames.len()
            );
            self.sleeper
                .sleep(Duration::from_millis(50), || self.port.ready());
            frames.extend(self.poll());
        }
        frames
    }
}

/// A switch with `ports` ports.
pub struct Lab {
    pub dataplane: Dataplane,
    pub ends: Vec<MemEnd>,
}

impl Lab {
    pub fn new(ports: usize, workers: usize) -> Self {
        Self::with(ports, workers, |_| {})
    }

    pub fn with(ports: usize, workers: usize, change: impl FnOnce(&mut DataplaneConfig)) -> Self {
        let links: Vec<_> = (0..ports)
            .map(|n| {
                MemLink::pair(&MemLinkConfig::between(&format!("s-p{n}"), &format!("h{n}")).capacity(1024))
            })
            .collect();
        let (ours, ends): (Vec<MemEnd>, Vec<MemEnd>) = links.into_iter().unzip();
        let ours = ours.into_iter().enumerate();
        let ours = ours
            .map(|(n, end)| PortConfig::new(port(n), format!("p{n}"), end))
            .collect();
        let mut config = DataplaneConfig::new("s1", ours);
        config.engine.lldp_interval = None;
        // Groups stay at the workers that a test expects.
        config.balance = None;
        config.workers = vec![WorkerConfig::default(); workers];
        config.pool = PoolConfig {
            buffers: 2048,
            bodies: 512,
            frame_max: 4400,
        };
        change(&mut config);
        Self {
            dataplane: Dataplane::start(config).unwrap(),
            ends,
        }
    }

    pub fn hosts(&self) -> Vec<Host> {
        self.ends.iter().map(Host::new).collect()
    }

    pub fn install(&self, rule: &GroupRule) {
        self.dataplane.install(rule).unwrap();
    }

    /// Waits until `done` accepts the counters.
    pub fn wait(&self, what: &str, done: impl Fn(&Counters) -> bool) -> Counters {
        let start = Instant::now();
        loop {
            let counters = self.dataplane.counters().unwrap();
            if done(&counters) {
                return counters;
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "{what}: {:?} {:?}",
                counters.totals,
                counters.drops
            );
            std::thread::yield_now();
        }
    }
}

/// Group `n` with a source host and receiving hosts at these ports.
pub fn rule(n: usize, ports: &[usize]) -> GroupRule {
    GroupRule {
        name: format!("g{n}"),
        generation: 1,
        mcst_id: mcst(n),
        pmtu: Pmtu::B1024,
        stall_timeout_ms: 60_000,
        rate_limit: None,
        endpoints: ports
            .iter()
            .map(|&p| Endpoint::new(port(p), NextHop::Host(host(n, p))))
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

/// Collective group `n` of the first `ranks` hosts. `psns` returns the first PSNs that a rank sends and receives.
pub fn collective(n: usize, ranks: usize, kind: TranslatedRule, psns: fn(u32) -> (u32, u32)) -> GroupRule {
    let rank = |r: usize| {
        let (sq_psn, rq_psn) = psns(r as u32);
        let part = RankPart {
            rank: r as u16,
            sq_psn: Psn::new(sq_psn),
            rq_psn: Psn::new(rq_psn),
        };
        HostEndpoint {
            part: part.into(),
            ..host(n, r)
        }
    };
    let ranks = (0..ranks).map(rank).collect();
    GroupRule::star(&format!("c{n}"), mcst(n), Pmtu::B1024, kind, ranks).unwrap()
}

/// The QP of the host at port `n` in group `group`.
pub fn qpn(group: usize, n: usize) -> Qpn {
    Qpn::new(0x100 * (group as u32 + 1) + n as u32)
}

fn host(group: usize, n: usize) -> HostEndpoint {
    HostEndpoint {
        name: format!("h{n}"),
        ip: host_ip(n),
        qpn: qpn(group, n),
        mac: host_mac(n),
        part: HostPart::Plain,
    }
}

/// A SEND of the host at port `from` to group `group`.
pub fn data(group: usize, from: usize, psn: u32, length: usize) -> Vec<u8> {
    let ethernet = Ethernet {
        dst: MacAddr([2; 6]),
        src: host_mac(from),
        vlan: None,
        ethertype: 0x0800,
    };
    let network = Network::v4(host_ip(from), mcst(group).0);
    let bth = Bth {
        ack_request: true,
        ..Bth::new(Opcode::SendOnly, Qpn::VIRTUAL, Psn::new(psn))
    };
    let payload: Vec<u8> = (0..length).map(|i| (i as u32 + psn) as u8).collect();
    let mut out = vec![0; length + 128];
    let n = emit_roce(
        &mut out,
        &ethernet,
        &network,
        0xC000,
        &bth,
        &ExtHeaders::NONE,
        &payload,
    )
    .unwrap();
    out.truncate(n);
    out
}

/// An ACK of the host at port `from` to group `group`.
pub fn ack(group: usize, from: usize, psn: u32) -> Vec<u8> {
    let ethernet = Ethernet {
        dst: MacAddr([2; 6]),
        src: host_mac(from),
        vlan: None,
        ethertype: 0x0800,
    };
    let network = Network::v4(host_ip(from), mcst(group).0);
    let aeth = Aeth {
        syndrome: Syndrome::Ack,
        msn: psn + 1,
    };
    let mut out = vec![0; 128];
    let n = emit_ack(
        &mut out,
        &ethernet,
        &network,
        0xC000,
        Qpn::VIRTUAL,
        Psn::new(psn),
        aeth,
    )
    .unwrap();
    out.truncate(n);
    out
}

pub fn arp_request(from: usize, target: Ipv4Addr) -> Vec<u8> {
    let mut out = vec![0; 64];
    let arp = Arp::request(host_mac(from), host_ip(from), target);
    let n = emit_arp(&mut out, MacAddr::BROADCAST, &arp).unwrap();
    out.truncate(n);
    out
}

/// An Ethernet frame with an EtherType that no switch parses, and with a number.
pub fn plain(from: MacAddr, to: MacAddr, number: u32, length: usize) -> Vec<u8> {
    let mut out = vec![0x5A; length.max(60)];
    Ethernet {
        dst: to,
        src: from,
        vlan: None,
        ethertype: 0x88B5,
    }
    .emit(&mut out)
    .unwrap();
    out[14..18].copy_from_slice(&number.to_be_bytes());
    out
}

pub fn number(plain: &[u8]) -> u32 {
    u32::from_be_bytes(plain[14..18].try_into().unwrap())
}

pub fn roce(frame: &[u8]) -> RoceHeader {
    match parse_frame(frame, frame.len()) {
        Ok(Parsed::Roce(header)) => header,
        other => panic!("not RoCEv2: {other:?}"),
    }
}

/// Contract S1 over the whole dataplane, when all traffic has ended.
pub fn assert_conserved(c: &Counters) {
    let t = &c.totals;
    assert_eq!(
        t.received,
        t.switched + t.routed + t.flooded + t.replicated + t.absorbed + t.dropped,
        "{t:?}"
    );
    assert_eq!(
        t.sent,
        t.switched + t.routed + t.flooded + t.replicated + t.copies + t.originated,
        "{t:?}"
    );
    let rx: u64 = c.ports.iter().map(|p| p.stats.rx_frames).sum();
    let tx: u64 = c
        .ports
        .iter()
        .map(|p| p.stats.tx_frames + p.stats.drops.total())
        .sum();
    assert_eq!(
        t.received, rx,
        "what ports received, engines received, or it ended on the way: {c:?}"
    );
    assert_eq!(t.sent, tx, "what engines sent, ports sent or dropped: {c:?}");
    let in_engines: u64 = c.ports.iter().map(|p| p.engine.drops.total()).sum();
    assert_eq!(t.dropped, in_engines);
    assert_eq!(
        c.drops.total(),
        in_engines + c.ports.iter().map(|p| p.stats.drops.total()).sum::<u64>()
    );
}
