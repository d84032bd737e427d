//! What keeps a worker from frames, on a switch of 100,000 groups: each call of its engine that is not for a frame alone, and frames that cost
//! more than others. Nothing but the frames themselves may take more than a millisecond (design, S8).
//!
//! `cargo bench -p castnet-benches --bench stalls [-- GROUPS]`

mod common;

use core::net::Ipv4Addr;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_engine::{Context, CountersSnapshot, DryRun, Engine, FrameFilter, Owners, Tables, TapId};
use castnet_port::{Pool, PoolBuf, PoolConfig};
use castnet_rules::{GroupRule, NextHop};
use castnet_wire::build::{emit_ack, roce_len};
use castnet_wire::{
    Aeth, BATCH, Batch, Bth, Ethernet, ExtHeaders, MacAddr, McstId, NakCode, Nanos, Network, Opcode, Psn,
    Qpn, Syndrome, emit_roce,
};
use common::collective::control_of;
use common::{MCST, NOW, Sink, data_from, engine_with, group, group_counts, install, port, star};

const PORTS: usize = 64;
/// With its source, the largest group of a switch.
const RECEIVERS: usize = 1023;
const SLOTS: u16 = 32_768;
/// The calls that a rank may be ahead.
const WINDOW: u32 = SLOTS as u32 / 2;
/// Calls of a row, unless its state allows fewer.
const SAMPLES: usize = 101;
const GOAL: Duration = Duration::from_millis(1);
const SUMS: McstId = McstId(Ipv4Addr::new(10, 8, 0, 1));
/// Of the groups that stall.
const STALL: Nanos = Nanos::from_secs(3);

struct Table {
    baseline: Duration,
}

impl Table {
    /// The median counts: what is longer is mostly another process of the machine.
    fn row(&mut self, what: &str, mut calls: Vec<Duration>) {
        calls.sort();
        let median = calls[calls.len() / 2];
        if self.baseline.is_zero() {
            self.baseline = median;
        }
        let (us, ratio) = (
            median.as_secs_f64() * 1e6,
            median.as_secs_f64() / self.baseline.as_secs_f64(),
        );
        let longest = calls[calls.len() - 1].as_secs_f64() * 1e6;
        let goal = if median <= GOAL { "met" } else { "MISSED" };
        println!(
            "{what:<58} {:>7} {us:>11.1} {ratio:>9.2} {longest:>11.1}  {goal}",
            calls.len()
        );
    }
}

fn main() {
    let groups = group_counts(&[1, 100, 10_000, 100_000]).last().unwrap_or(1);
    println!(
        "{groups} groups, one of {RECEIVERS} receivers at {PORTS} ports, and one of {SLOTS} slots. Microseconds of a call; goal: 1 ms.\n"
    );
    println!(
        "{:<58} {:>7} {:>11} {:>9} {:>11}",
        "call", "calls", "median", "ratio", "longest"
    );
    let mut table = Table {
        baseline: Duration::ZERO,
    };
    let mut switch = Switch::new(groups);

    table.row(
        "32 packets to 1,023 receivers (the frames themselves)",
        switch.packets(),
    );
    table.row("32 ACKs of one port", switch.acks(None));
    table.row("  with a trace", switch.acks(Some(Tapped::Trace)));
    table.row(
        "  with a capture of 128 bytes",
        switch.acks(Some(Tapped::Capture)),
    );
    table.row("32 NAKs that end connections", switch.fatal_naks());
    table.row(
        "32 repeated control messages, of 32,768",
        switch.repeated_controls(),
    );
    table.row(
        "status of the group of 1,023 receivers",
        switch.repeat(|switch| drop(black_box(switch.engine.status(MCST)))),
    );
    table.row(
        "status of the group of 32,768 slots",
        switch.repeat(|switch| drop(black_box(switch.engine.status(SUMS)))),
    );
    table.row(
        "copy for a dry run in the group of 1,023 receivers",
        switch.dry_runs(),
    );
    table.row("counters of 256 groups", switch.counters());
    let (installs, removals) = switch.installs();
    table.row("a group of 1,023 receivers comes", installs);
    table.row("a group of 1,023 receivers goes", removals);
    table.row("new tables", switch.tables(groups));
    table.row("timers, while all groups stall", switch.stalls(groups));
}

enum Tapped {
    Trace,
    Capture,
}

struct Switch {
    engine: Engine,
    sink: Sink,
    psn: u32,
}

fn host(n: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0A01_0000 + n as u32)
}

fn wide() -> GroupRule {
    let mut rule = star(RECEIVERS);
    for (n, endpoint) in rule.endpoints.iter_mut().enumerate() {
        endpoint.port = port(n % PORTS);
        if let NextHop::Host(next) = &mut endpoint.next_hop {
            (next.ip, next.qpn) = (host(n), Qpn::new(0x10_0000 + n as u32));
        }
    }
    rule
}

fn narrow(n: usize) -> GroupRule {
    let mut rule = GroupRule {
        name: format!("g{n}"),
        mcst_id: group(n),
        stall_timeout_ms: (STALL.0 / 1_000_000) as u32,
        ..star(1)
    };
    for endpoint in &mut rule.endpoints {
        if let NextHop::Host(next) = &mut endpoint.next_hop {
            next.qpn = Qpn::new(0x1000 + n as u32);
        }
    }
    rule
}

const HEADER: Ethernet = Ethernet {
    dst: MacAddr([2, 0, 0, 0, 0, 1]),
    src: MacAddr([2, 0, 0, 0, 0, 2]),
    vlan: None,
    ethertype: 0x0800,
};

/// A packet of the source of the wide group.
fn packet(psn: u32) -> Vec<u8> {
    let (network, payload) = (Network::v4(host(0), MCST.0), [7; 64]);
    let bth = Bth::new(Opcode::SendMiddle, Qpn::VIRTUAL, Psn::new(psn));
    let mut out = vec![0; roce_len(&HEADER, &network, bth.opcode, payload.len())];
    emit_roce(
        &mut out,
        &HEADER,
        &network,
        0xC123,
        &bth,
        &ExtHeaders::NONE,
        &payload,
    )
    .expect("room");
    out
}

/// Feedback of a receiver of the wide group.
fn feedback(receiver: usize, psn: u32, syndrome: Syndrome) -> Vec<u8> {
    let mut out = vec![0; 62];
    let aeth = Aeth { syndrome, msn: psn };
    let network = Network::v4(host(receiver), MCST.0);
    emit_ack(
        &mut out,
        &HEADER,
        &network,
        0xC777,
        Qpn::VIRTUAL,
        Psn::new(psn),
        aeth,
    )
    .expect("room");
    out
}

/// The control message of a barrier of rank 0.
fn barrier(sequence: u32) -> Vec<u8> {
    control_of(SUMS, 0, sequence, (0, 0))
}

impl Switch {
    fn new(groups: usize) -> Self {
        let mut engine = engine_with(PORTS, |config| {
            config.groups_max = groups + 3;
            config.memory_bytes_max = 8 << 30;
        });
        (0..groups).for_each(|n| install(&mut engine, &narrow(n)));
        install(&mut engine, &wide());
        let sums = common::collective::rule(SUMS, SLOTS, 256);
        install(&mut engine, &sums);
        let mut sink = Sink::new();
        sink.pool = Pool::new(PoolConfig {
            buffers: 1 << 16,
            bodies: 1 << 12,
            frame_max: 2048,
        });
        Self { engine, sink, psn: 0 }
    }

    fn load(&self, frames: impl IntoIterator<Item = Vec<u8>>) -> Batch<PoolBuf> {
        let load = |bytes: Vec<u8>| self.sink.pool.copy_from(&bytes).expect("a buffer");
        frames.into_iter().map(load).collect()
    }

    fn process(&mut self, ingress: usize, mut batch: Batch<PoolBuf>) -> Duration {
        self.engine.begin_iteration();
        let start = Instant::now();
        self.engine
            .process(NOW, port(ingress), &mut batch, &mut self.sink);
        let took = start.elapsed();
        black_box(&mut self.sink.sent).clear();
        assert_eq!(self.engine.totals().dropped, 0, "the intended case is measured");
        took
    }

    fn repeat(&mut self, mut call: impl FnMut(&mut Self)) -> Vec<Duration> {
        let timed = |_| {
            let start = Instant::now();
            call(self);
            start.elapsed()
        };
        (0..SAMPLES).map(timed).collect()
    }

    /// The next packets of the source of the wide group.
    fn data(&mut self, count: u32) -> Vec<Vec<u8>> {
        let first = self.psn;
        self.psn += count;
        (first..self.psn).map(packet).collect()
    }

    fn packets(&mut self) -> Vec<Duration> {
        let one = |_| {
            let data = self.data(BATCH as u32);
            let batch = self.load(data);
            self.process(0, batch)
        };
        (0..SAMPLES).map(one).collect()
    }

    /// The receivers of one port.
    fn of_port() -> impl Iterator<Item = usize> {
        (1..=RECEIVERS).filter(|n| n % PORTS == 1)
    }

    fn acks(&mut self, tapped: Option<Tapped>) -> Vec<Duration> {
        let (tap, filter) = (
            TapId::all().next().expect("one"),
            FrameFilter {
                group: Some(MCST),
                ..FrameFilter::default()
            },
        );
        match tapped {
            Some(Tapped::Trace) => self.engine.taps.arm_trace(tap, filter, u64::MAX),
            Some(Tapped::Capture) => self.engine.taps.arm_capture(tap, filter, 128, u64::MAX),
            None => {}
        }
        let one = |_| {
            let data = self.data(2);
            let batch = self.load(data);
            self.process(0, batch);
            while self.engine.taps.pop_trace(tap).is_some() || self.engine.taps.pop_captured(tap).is_some() {}
            let acks = [2, 1]
                .into_iter()
                .flat_map(|back| Self::of_port().map(move |n| (n, back)));
            let acks: Vec<_> = acks
                .map(|(n, back)| feedback(n, self.psn - back, Syndrome::Ack))
                .collect();
            let batch = self.load(acks.into_iter().take(BATCH));
            let start = Instant::now();
            self.process(1, batch);
            // As a worker does after each batch.
            while let Some(trace) = self.engine.taps.pop_trace(tap) {
                drop(black_box(trace));
            }
            while let Some(captured) = self.engine.taps.pop_captured(tap) {
                drop(black_box(captured));
            }
            start.elapsed()
        };
        let calls = (0..SAMPLES).map(one).collect();
        self.engine.taps.disarm(tap);
        calls
    }

    fn fatal_naks(&mut self) -> Vec<Duration> {
        let one = |_| {
            self.psn = 0;
            install(&mut self.engine, &wide());
            let data = self.data(2);
            let batch = self.load(data);
            self.process(0, batch);
            let fatal = Syndrome::Nak(NakCode::RemoteAccessError);
            let naks: Vec<_> = Self::of_port().map(|n| feedback(n, 0, fatal)).collect();
            let batch = self.load(naks.iter().chain(&naks).take(BATCH).cloned());
            let took = self.process(1, batch);
            while self.engine.pop_event().is_some() {}
            took
        };
        (0..SAMPLES).map(one).collect()
    }

    /// Rank 0 has said what it calls as far ahead as it may, and says the last again.
    fn repeated_controls(&mut self) -> Vec<Duration> {
        for first in (0..WINDOW).step_by(BATCH) {
            let batch = self.load((first..first + BATCH as u32).map(barrier));
            self.process(0, batch);
        }
        let last = barrier(WINDOW - 1);
        let one = |_| {
            let batch = self.load(vec![last.clone(); BATCH]);
            self.process(0, batch)
        };
        (0..SAMPLES).map(one).collect()
    }

    fn dry_runs(&mut self) -> Vec<Duration> {
        let config = self.engine.config().clone();
        let rule = wide();
        let one = |_| {
            let frame = feedback(1, 0, Syndrome::Ack);
            let compile = |_| Context::compile_dry(&rule, &config.ports).ok();
            let mut dry = DryRun::new(&config, port(1), frame, compile);
            let start = Instant::now();
            self.engine.copy_into(NOW, &mut dry);
            start.elapsed()
        };
        (0..SAMPLES).map(one).collect()
    }

    /// As a request for all counters asks for them, part by part.
    fn counters(&mut self) -> Vec<Duration> {
        let mut snapshot = CountersSnapshot::with_capacity(256, 2048);
        let mut calls = Vec::new();
        loop {
            let start = Instant::now();
            self.engine.snapshot(black_box(&mut snapshot));
            calls.push(start.elapsed());
            if snapshot.next_group == 0 {
                return calls;
            }
        }
    }

    fn installs(&mut self) -> (Vec<Duration>, Vec<Duration>) {
        let ports = self.engine.config().ports.clone();
        let rule = GroupRule {
            name: "other".into(),
            mcst_id: McstId([10, 7, 0, 1].into()),
            ..wide()
        };
        let one = |_| {
            let context = Context::compile(&rule, &ports).expect("a valid rule");
            let start = Instant::now();
            self.engine.install(Nanos::ZERO, context).expect("room");
            let installed = start.elapsed();
            let start = Instant::now();
            let gone = self.engine.remove(rule.mcst_id);
            let removed = start.elapsed();
            assert!(gone.is_some());
            (installed, removed)
        };
        (0..SAMPLES).map(one).unzip()
    }

    fn tables(&mut self, groups: usize) -> Vec<Duration> {
        let mut owners = Owners::default();
        (0..groups).for_each(|n| owners.insert(group(n), 0));
        let mut kept = Vec::new();
        let one = |n| {
            let mut tables = Tables::default();
            (tables.generation, tables.owners) = (n as u64 + 1, owners.clone());
            let tables = Arc::new(tables);
            // Control frees them.
            kept.push(tables.clone());
            let start = Instant::now();
            self.engine.set_tables(NOW, tables);
            start.elapsed()
        };
        (0..SAMPLES).map(one).collect()
    }

    fn stalls(&mut self, groups: usize) -> Vec<Duration> {
        for n in 0..groups {
            let batch = self.load([data_from(0, group(n), 0, 64)]);
            self.process(0, batch);
        }
        let late = NOW + STALL + STALL;
        let mut calls = Vec::new();
        while self.engine.poll_timeout().is_some_and(|at| at <= late) {
            let start = Instant::now();
            self.engine.handle_timeout(late, &mut self.sink);
            calls.push(start.elapsed());
            while self.engine.pop_event().is_some() {}
            self.sink.sent.clear();
        }
        calls
    }
}
