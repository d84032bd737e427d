//! The writer over links that lose, repeat, reorder and damage frames, in virtual time.

use std::net::Ipv4Addr;
use std::time::Duration;

use castnet_port::{FaultControl, Faults, Faulty, MemLink, MemLinkConfig, MemPort, Pool, PoolConfig, Sides};
use castnet_replicate::{Pace, Pattern, ReplicateError, Target, Workload, Writer};
use castnet_rnic::{
    Access, MemoryRegion, QpOptions, QpRemote, Resolution, Rnic, RnicError, SoftRnic, SoftRnicConfig,
};
use castnet_wire::{Nanos, Psn, Qpn};
use proptest::prelude::*;

const IPS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// A client and a host with the memory of several servers, on one link.
struct Net {
    rnics: [SoftRnic<Faulty<MemPort>>; 2],
    now: Nanos,
}

impl Net {
    fn new(faults: Faults, seed: u64) -> Self {
        let pool = Pool::new(PoolConfig {
            buffers: 1024,
            bodies: 1024,
            frame_max: 1518,
        });
        let (a, b) = MemLink::pair(&MemLinkConfig::between("client", "servers").mtu(1500));
        let mut ends = [a, b].into_iter().zip(0..);
        let rnics = IPS.map(|ip| {
            let (end, number) = ends.next().expect("two ends");
            let control = FaultControl::new(seed + number).with(faults, Faults::NONE);
            let port = control.wrap(end.open(&pool, Sides::Both), 0);
            SoftRnic::new(port, pool.clone(), SoftRnicConfig::new(ip)).expect("an RNIC")
        });
        let now = Nanos::from_millis(1);
        Self { rnics, now }
    }

    fn step(&mut self) {
        self.now += Nanos::from_micros(5);
        for rnic in &mut self.rnics {
            rnic.poll(self.now).expect("polled");
        }
    }

    fn connect(&mut self) -> Result<Qpn, RnicError> {
        let is_resolved = |net: &mut Self| {
            (0..2).all(|i| {
                matches!(
                    net.rnics[i].resolve(net.now, IPS[1 - i]),
                    Resolution::Reachable(_)
                )
            })
        };
        while !is_resolved(self) {
            self.step();
        }
        let qpns = [0, 1].map(|i| self.rnics[i].create_qp(&QpOptions::default()).expect("a QP"));
        for i in 0..2 {
            let remote = QpRemote {
                sq_psn: Psn::new(0xFF_FFF0),
                rq_psn: Psn::new(0xFF_FFF0),
                timeout: 10,
                ..QpRemote::new(IPS[1 - i], qpns[1 - i])
            };
            self.rnics[i].connect_qp(qpns[i], &remote, Duration::ZERO)?;
        }
        Ok(qpns[0])
    }

    /// `servers` regions, each with `lanes` connections.
    fn targets(&mut self, servers: usize, lanes: usize, bytes: usize) -> (Vec<Target>, Vec<MemoryRegion>) {
        let mut all = (Vec::new(), Vec::new());
        for server in 0..servers {
            let region = self.rnics[1]
                .register_memory(bytes, Access::REMOTE_WRITE)
                .expect("memory");
            let qpns = (0..lanes).map(|_| self.connect().expect("connected"));
            all.0.push(Target {
                server: Some(format!("h{}", server + 2)),
                qpns: qpns.collect(),
                va: region.va,
                rkey: region.rkey,
            });
            all.1.push(region);
        }
        all
    }

    fn write(&mut self, writer: &mut Writer) -> Result<(), ReplicateError> {
        for _ in 0..4_000_000 {
            writer.poll(&mut self.rnics[0], self.now)?;
            if writer.is_done(self.now) {
                return Ok(());
            }
            self.step();
        }
        panic!("no progress after {} writes", writer.acknowledged());
    }
}

/// What the memory must hold: each write carried out in order, the slow way.
fn expected(workload: Workload, writes: u64) -> Vec<u8> {
    let mut memory = vec![0; workload.span as usize];
    for write in 0..writes {
        let at = workload.block_of(write) as usize * workload.block as usize;
        workload.fill(write, &mut memory[at..at + workload.block as usize]);
    }
    memory
}

fn pace(depth: u32, count: u64) -> Pace {
    Pace {
        depth,
        quorum: None,
        count: Some(count),
        duration: None,
        rate: None,
        give_up: Nanos::from_secs(10),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After the last acknowledgement, each server's memory is as if every write was carried out once and in order, and no other
    /// byte was changed: with few blocks, writes to one block are under way at once.
    #[test]
    fn every_server_holds_every_write(
        block in prop_oneof![1u32..200, 900u32..1200, 4000u32..9000],
        blocks in 1u64..40,
        random in any::<bool>(),
        (servers, lanes, depth, quorum) in (1usize..4, 1usize..3, 1u32..40, 0usize..4),
        count in 1u64..150,
        (loss, duplicate, reorder, corrupt) in (0.0..0.03, 0.0..0.05, 0.0..0.05, 0.0..0.02),
        seed in any::<u64>(),
    ) {
        let faults = Faults { loss, duplicate, reorder, corrupt, ..Faults::NONE };
        let mut net = Net::new(faults, seed % 1_000_000);
        let workload = Workload {
            block,
            span: blocks * u64::from(block) + u64::from(block) / 2,
            pattern: if random { Pattern::Random } else { Pattern::Sequential },
            seed,
        };
        let (targets, regions) = net.targets(servers, lanes, workload.span as usize);
        let quorum = (1..=servers).contains(&quorum).then_some(quorum);
        let pace = Pace { quorum, ..pace(depth, count) };
        let mut writer = Writer::new(&mut net.rnics[0], workload, pace, targets).expect("a writer");
        net.write(&mut writer).expect("written");
        prop_assert_eq!(writer.certain(), (count, 0));
        let written = writer.finish(&mut net.rnics[0]).expect("finished");
        prop_assert_eq!((written.writes, written.latencies.len()), (count, count));
        // A write is not acknowledged all the time, so the longest takes at least the mean of the whole. Three digits are kept.
        let (longest, elapsed) = (written.latencies.max() as f64, written.elapsed.0 as f64);
        prop_assert!(longest >= 0.9 * elapsed / count as f64 && longest <= 1.01 * elapsed, "{longest} ns of {elapsed}");
        let expected = expected(workload, count);
        for region in regions {
            let mut memory = vec![0; expected.len()];
            net.rnics[1].read_memory(region.key, 0, &mut memory).expect("read");
            prop_assert!(memory == expected);
        }
    }
}

fn workload() -> Workload {
    Workload {
        block: 100,
        span: 1000,
        pattern: Pattern::Sequential,
        seed: 1,
    }
}

#[test]
fn a_rate_spreads_the_writes_and_a_duration_ends_them() {
    let mut net = Net::new(Faults::NONE, 0);
    let (targets, _) = net.targets(2, 1, 1000);
    let pace = Pace {
        count: None,
        duration: Some(Nanos::from_millis(100)),
        rate: Some(1000),
        ..pace(8, 0)
    };
    let mut writer = Writer::new(&mut net.rnics[0], workload(), pace, targets).expect("a writer");
    net.write(&mut writer).expect("written");
    let written = writer.finish(&mut net.rnics[0]).expect("finished");
    assert_eq!(written.writes, 100);
    assert!(written.elapsed >= Nanos::from_millis(99) && written.elapsed < Nanos::from_millis(101));
}

/// One of three servers never answers. Two are a majority, and the third one is known to lack everything.
#[test]
fn a_quorum_does_not_wait_for_the_slowest_server() {
    let mut net = Net::new(Faults::NONE, 0);
    let (mut targets, regions) = net.targets(3, 1, 1000);
    let deaf = net.rnics[0].create_qp(&QpOptions::default()).expect("a QP");
    let nobody = QpRemote::new(IPS[1], Qpn::new(0xABCDE));
    net.rnics[0]
        .connect_qp(deaf, &nobody, Duration::ZERO)
        .expect("connected");
    targets[2].qpns = vec![deaf];
    let pace = Pace {
        quorum: Some(2),
        ..pace(1, 10)
    };
    let mut writer = Writer::new(&mut net.rnics[0], workload(), pace, targets).expect("a writer");
    while writer.acknowledged() < 10 {
        assert!(net.now < Nanos::from_secs(1), "no progress");
        writer.poll(&mut net.rnics[0], net.now).expect("polled");
        net.step();
    }
    assert!(!writer.is_done(net.now));
    assert_eq!(writer.certain(), (0, 10));
    let written = writer.finish(&mut net.rnics[0]).expect("released");
    assert_eq!((written.writes, written.latencies.len()), (10, 10));
    for (region, writes) in regions.iter().zip([10, 10, 0]) {
        let mut memory = vec![0; 1000];
        net.rnics[1]
            .read_memory(region.key, 0, &mut memory)
            .expect("read");
        assert_eq!(memory, expected(workload(), writes));
    }
}

/// The second server refuses a write outside of its memory. What both have acknowledged before is known.
#[test]
fn a_write_that_one_server_refuses_ends_with_its_name() {
    let mut net = Net::new(Faults::NONE, 0);
    let (mut targets, regions) = net.targets(2, 1, 1000);
    let half = net.rnics[1]
        .register_memory(500, Access::REMOTE_WRITE)
        .expect("memory");
    (targets[1].va, targets[1].rkey) = (half.va, half.rkey);
    let mut writer = Writer::new(&mut net.rnics[0], workload(), pace(1, 100), targets).expect("a writer");
    let error = net.write(&mut writer).expect_err("a refusal").to_string();
    assert!(error.contains("write 5 to h3 failed"), "{error}");
    assert_eq!(writer.certain(), (5, 1));
    writer.finish(&mut net.rnics[0]).expect("released");
    let mut memory = vec![0; 500];
    for key in [regions[0].key, half.key] {
        net.rnics[1].read_memory(key, 0, &mut memory).expect("read");
        assert_eq!(memory, expected(workload(), 5)[..500]);
    }
}

#[test]
fn silence_ends_the_writing() {
    let mut net = Net::new(Faults::NONE, 0);
    let (targets, _) = net.targets(1, 1, 1000);
    let give_up = Nanos::from_millis(50);
    let pace = Pace {
        give_up,
        ..pace(4, 1000)
    };
    let mut writer = Writer::new(&mut net.rnics[0], workload(), pace, targets).expect("a writer");
    let silent = loop {
        // The server is not polled any more.
        net.now += Nanos::from_micros(50);
        net.rnics[0].poll(net.now).expect("polled");
        if let Err(error) = writer.poll(&mut net.rnics[0], net.now) {
            break error;
        }
    };
    assert!(
        matches!(silent, ReplicateError::Silent { after } if after >= Duration::from_millis(50)),
        "{silent}"
    );
    assert_eq!(writer.certain(), (0, 4));
}

#[test]
fn values_out_of_range_are_refused_before_anything_is_posted() {
    let mut net = Net::new(Faults::NONE, 0);
    let refused = |workload, pace, net: &mut Net| {
        let writer = Writer::new(&mut net.rnics[0], workload, pace, Vec::new());
        writer.map(|_| ()).map_err(|error| error.to_string())
    };
    let large = Workload {
        block: 16 << 20,
        span: 1 << 30,
        ..workload()
    };
    for (workload, pace, expected) in [
        (workload(), pace(0, 1), "depth 0"),
        (workload(), pace(257, 1), "depth 257"),
        (large, pace(65, 1), "65 writes of 16777216 bytes"),
        (
            Workload {
                span: 99,
                ..workload()
            },
            pace(1, 1),
            "99 bytes of memory",
        ),
        (
            workload(),
            Pace {
                count: None,
                ..pace(1, 1)
            },
            "needs an end",
        ),
        (
            workload(),
            Pace {
                rate: Some(0),
                ..pace(1, 1)
            },
            "0 writes per second",
        ),
        (
            workload(),
            Pace {
                quorum: Some(1),
                ..pace(1, 1)
            },
            "a quorum of 1 among 0 targets",
        ),
    ] {
        let error = refused(workload, pace, &mut net).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
}
