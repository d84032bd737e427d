//! Contract S2: no allocation on the path of a frame, counted by the allocator itself.
#![allow(unsafe_code)]

#[path = "engine/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use castnet_engine::{Context, CountersSnapshot, Egress, Engine};
use castnet_rules::{ForwardingRule, GroupRule, RepairRule};
use castnet_wire::{Batch, FrameBuf, MacAddr, McstId, NakCode, Nanos, Opcode, PortId, Reth, Syndrome};
use common::*;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static FREED: Cell<u64> = const { Cell::new(0) };
    static FREED_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system's allocator unchanged; counting touches a plain thread-local number that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        let _ = BYTES.try_with(|n| n.set(n.get() + layout.size()));
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let _ = FREED.try_with(|n| n.set(n.get() + 1));
        let _ = FREED_BYTES.try_with(|n| n.set(n.get() + layout.size()));
        // SAFETY: `memory` came from `alloc` with this layout, so from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        let _ = BYTES.try_with(|n| n.set(n.get() + size));
        let _ = FREED_BYTES.try_with(|n| n.set(n.get() + layout.size()));
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An egress that takes its buffers from a stock and puts what is sent back there.
struct Recycling {
    stock: Vec<Vec<u8>>,
    sent: u64,
}

impl Egress for Recycling {
    type Buf = Vec<u8>;

    fn replicate(&mut self, _: PortId, original: &Vec<u8>, _: usize) -> Option<Vec<u8>> {
        let mut copy = self.stock.pop()?;
        copy.clear();
        copy.extend_from_slice(original.head());
        Some(copy)
    }

    fn allocate(&mut self, _: PortId, length: usize) -> Option<Vec<u8>> {
        let mut frame = self.stock.pop()?;
        frame.clear();
        frame.resize(length, 0);
        Some(frame)
    }

    fn gather(&mut self, _: PortId, parts: &[&[u8]]) -> Option<Vec<u8>> {
        let mut frame = self.stock.pop()?;
        frame.clear();
        parts.iter().for_each(|part| frame.extend_from_slice(part));
        Some(frame)
    }

    fn send(&mut self, _: PortId, frame: Vec<u8>) {
        self.sent += 1;
        self.stock.push(frame);
    }
}

#[test]
fn a_frame_costs_no_allocation() {
    count_frames(star_switch(8));
}

/// Data is kept, and sent again from the ring.
#[test]
fn a_frame_of_a_group_that_repairs_costs_no_allocation() {
    let mut engine = engine(10);
    let repair = RepairRule {
        slots: 16,
        ack_timeout_us: 640,
    };
    install(
        &mut engine,
        &rule((0..=8).map(host).collect()).with_multicast(|rule| rule.repair = Some(repair)),
    );
    let engine = count_frames(engine);
    let counters = engine.group_status(MCST).unwrap().counters;
    assert!(counters.kept > 500 && counters.resent > 500, "{counters:?}");
}

fn count_frames(mut engine: Engine) -> Engine {
    const ROUNDS: u32 = 300;
    let pair = GroupRule {
        mcst_id: McstId([10, 9, 0, 2].into()),
        kind: ForwardingRule {}.into(),
        ..rule(vec![host(0), host(1)])
    };
    install(&mut engine, &pair);
    let mut egress = Recycling {
        stock: (0..256).map(|_| Vec::with_capacity(2048)).collect(),
        sent: 0,
    };
    // All frames of all rounds, made beforehand.
    let mut rounds: Vec<Vec<(usize, Vec<u8>)>> = Vec::new();
    for i in 0..ROUNDS {
        let psn = 100 + 3 * i;
        let mut write = DataFrame::new(Opcode::WriteOnly, psn + 1, &vec![9; 4 * (i as usize % 200) + 8]);
        write.ext.reth = Some(Reth {
            va: VA_BASE + 64,
            rkey: 7,
            dma_len: 8,
        });
        let forwarded = DataFrame {
            src: host_ip(1),
            dst: pair.mcst_id.0,
            ethernet: ethernet(1),
            ..DataFrame::new(Opcode::SendOnly, psn, &[3; 256])
        };
        let mut frames = vec![
            (1, forwarded.bytes()),
            (0, send(psn, &vec![1; 1024])),
            (0, write.bytes()),
            (0, send(psn + 2, &[2; 64])),
            (0, send(psn, &vec![1; 1024])),
            (3, cnp(3)),
            (2, arp_request(2, MCST.0)),
            (2, arp_request(2, host_ip(5))),
            (
                4,
                plain_frame(
                    MacAddr([2, 0, 0, 1, (i >> 8) as u8, i as u8]),
                    peer_mac(4),
                    None,
                    300,
                ),
            ),
            (
                5,
                plain_frame(
                    MacAddr::BROADCAST,
                    MacAddr([2, 0, 0, 1, (i >> 8) as u8, i as u8]),
                    Some(3),
                    100,
                ),
            ),
            (9, send(psn, &[0; 8])),
        ];
        for n in 1..=8 {
            let gap = Syndrome::Nak(NakCode::PsnSequenceError);
            frames.push((n, ack(n, psn, i, Syndrome::Ack)));
            frames.push((
                n,
                ack(n, psn + 2, i, if n % 4 == 0 { gap } else { Syndrome::Ack }),
            ));
            frames.push((n, ack(n, psn + 2, i, Syndrome::Ack)));
        }
        rounds.push(frames);
    }
    let mut snapshot = CountersSnapshot::with_capacity(4, 64);
    let mut batch = Batch::new();
    let (mut now, mut allocations, mut frames_in) = (T0, 0, 0u64);
    for (i, frames) in rounds.iter().enumerate() {
        for (ingress, bytes) in frames {
            let mut frame = egress.stock.pop().unwrap();
            frame.clear();
            frame.extend_from_slice(bytes);
            batch.push(frame);
            let before = ALLOCATIONS.get();
            engine.process(now, port(*ingress), &mut batch, &mut egress);
            if engine.poll_timeout().is_some_and(|at| at <= now) {
                engine.handle_timeout(now, &mut egress);
            }
            // The first round fills caches of the operators that are made once.
            if i > 0 {
                allocations += ALLOCATIONS.get() - before;
                frames_in += 1;
            }
            // Frames that ended in the engine are gone from the stock: the test makes good for them.
            while egress.stock.len() < 200 {
                egress.stock.push(Vec::with_capacity(2048));
            }
        }
        let before = ALLOCATIONS.get();
        engine.snapshot(&mut snapshot);
        assert_eq!(ALLOCATIONS.get(), before, "a snapshot allocates nothing");
        now += Nanos::from_millis(40);
    }
    let totals = engine.totals();
    assert_conserved(&engine);
    assert!(
        totals.replicated > 500 && totals.flooded > 300 && totals.absorbed > 3000,
        "{totals:?}"
    );
    assert!(
        snapshot.multicast.groups[0].counters.acks_out > 100,
        "{snapshot:?}"
    );
    println!(
        "{frames_in} frames in, {} sent, {allocations} allocations",
        egress.sent
    );
    assert_eq!(allocations, 0);
    engine
}

/// The same for collectives: contributions added and kept, results, feedback both ways, repeats, and what time asks for.
#[test]
fn a_contribution_costs_no_allocation() {
    use castnet_rules::CollectiveMode::{Augmented, Terminated, Translated};
    use castnet_wire::{DataType, Primitive};
    use common::collective::*;
    const RANKS: usize = 8;
    const JOBS: usize = 60;
    for (mode, reproducible) in [
        (Translated, false),
        (Translated, true),
        (Augmented, false),
        (Terminated, false),
    ] {
        let jobs: Vec<Job> = (0..JOBS)
            .map(|_| Job {
                primitive: Primitive::AllReduce,
                root: 0,
                data_type: DataType::F32,
                elements: 256,
                data: vec![vec![0x40; 1024]; RANKS],
            })
            .collect();
        let rule =
            collective_star(RANKS).with_translated(|r| (r.mode, r.reproducible) = (mode, reproducible));
        let mut engine = engine(RANKS + 1);
        install_collective(&mut engine, &rule);
        let ranks: Vec<Rank> = (0..RANKS).map(|r| Rank::new(r, T0, &jobs)).collect();
        // All frames, made beforehand: as many packets go to each rank as come from it.
        let mut frames = Vec::new();
        for i in 0..ranks[0].packets.len() {
            let odd = &ranks[i % RANKS];
            frames.extend(ranks.iter().map(|r| (r.rank, r.frame(i))));
            frames.push((odd.rank, odd.frame(i)));
            let gap = odd.ack(
                rq_psn(odd.rank).add(i as i32),
                Syndrome::Nak(NakCode::PsnSequenceError),
            );
            frames.push((odd.rank, gap));
            frames.extend(
                ranks
                    .iter()
                    .map(|r| (r.rank, r.ack(rq_psn(r.rank).add(i as i32), Syndrome::Ack))),
            );
        }
        let mut egress = Recycling {
            stock: (0..256).map(|_| Vec::with_capacity(2048)).collect(),
            sent: 0,
        };
        let mut snapshot = CountersSnapshot::with_capacity(4, 64);
        let (mut batch, mut now, mut allocations) = (Batch::new(), T0, 0);
        for (i, (ingress, bytes)) in frames.iter().enumerate() {
            let mut frame = egress.stock.pop().unwrap();
            frame.clear();
            frame.extend_from_slice(bytes);
            batch.push(frame);
            if i % 100 == 0 {
                now += Nanos::from_millis(5);
            }
            let before = ALLOCATIONS.get();
            engine.process(now, port(*ingress), &mut batch, &mut egress);
            if engine.poll_timeout().is_some_and(|at| at <= now) {
                engine.handle_timeout(now, &mut egress);
            }
            engine.snapshot(&mut snapshot);
            // The first frames fill the cache of ICRC operators.
            if i > 200 {
                allocations += ALLOCATIONS.get() - before;
            }
            while egress.stock.len() < 200 {
                egress.stock.push(Vec::with_capacity(2048));
            }
        }
        assert_conserved(&engine);
        let counters = *engine.collective(GROUP).unwrap().counters();
        assert_eq!(counters.contributions as usize, JOBS * RANKS * 4, "{counters:?}");
        assert!(
            counters.results >= counters.contributions && counters.acks_out > 100,
            "{counters:?}"
        );
        println!(
            "{mode}: {} frames in, {} sent, {allocations} allocations",
            frames.len(),
            egress.sent
        );
        assert_eq!(allocations, 0);
    }
}

/// Copies for a static core, of which there are as many as the route to its address has next hops: more than the group has endpoints.
#[test]
fn copies_for_a_static_core_cost_no_allocation() {
    use castnet_rules::{Ipv4Net, NextHop, Route, RouteHop};
    const HOPS: usize = 8;
    let core = std::net::Ipv4Addr::new(239, 1, 0, 1);
    let edge = |n: usize| {
        let mut endpoint = switch(HOPS + 1);
        if let NextHop::Switch {
            name, ip, core: at, ..
        } = &mut endpoint.next_hop
        {
            (*name, *ip, *at) = (format!("edge{n}"), Some(far_ip(n)), Some(core));
        }
        endpoint
    };
    let mut engine = engine(HOPS + 2);
    install(&mut engine, &rule(vec![host(0), edge(1), edge(2)]));
    let mut egress = Recycling {
        stock: (0..64).map(|_| Vec::with_capacity(2048)).collect(),
        sent: 0,
    };
    let mut batch = Batch::new();
    // With one next hop, frames fill the cache of ICRC operators.
    for (psn, hops) in (100..).zip([1, 1, HOPS]) {
        let hop = |n: usize| RouteHop {
            port: port(n),
            mac: peer_mac(n),
        };
        let route = Route {
            prefix: Ipv4Net::from(core),
            next_hops: (1..=hops).map(hop).collect(),
            replicate: true,
            copy_to: Vec::new(),
        };
        let tables = tables(psn.into(), [MCST], &[route], (0..HOPS + 2).map(port));
        engine.set_tables(T0, tables.into());
        let mut frame = egress.stock.pop().unwrap();
        frame.clear();
        frame.extend_from_slice(&send(psn, &[1; 1024]));
        batch.push(frame);
        let before = (ALLOCATIONS.get(), egress.sent);
        engine.process(T0, port(0), &mut batch, &mut egress);
        assert_eq!(egress.sent - before.1, hops as u64);
        if hops == HOPS {
            assert_eq!(ALLOCATIONS.get(), before.0);
        }
    }
}

/// A capture costs the bytes that it keeps, however many endpoints the group has. What it does not want costs nothing, and neither do
/// the timers of other groups.
#[test]
fn a_capture_takes_the_memory_that_it_keeps() {
    use castnet_engine::{FrameFilter, TapId};
    use castnet_wire::{DataType, Primitive};
    use common::collective::*;
    const RECEIVERS: usize = 200;
    const KEPT: usize = 64;
    let mut engine = engine(3);
    let endpoints = (0..=RECEIVERS).map(|n| host_at(usize::from(n > 0), n));
    install(&mut engine, &rule(endpoints.collect()));
    install_collective(&mut engine, &collective_star(2));
    let mut egress = Recycling {
        stock: Vec::new(),
        sent: 0,
    };
    let tap = TapId::all().next().unwrap();
    let mut batch = Batch::new();
    // The bytes allocated for a frame, and the number of captured frames.
    let mut cost = |engine: &mut Engine, egress: &mut Recycling, ingress: usize, bytes: &[u8]| {
        egress
            .stock
            .resize_with(2 * RECEIVERS, || Vec::with_capacity(2048));
        let mut frame = egress.stock.pop().unwrap();
        frame.clear();
        frame.extend_from_slice(bytes);
        batch.push(frame);
        let before = BYTES.get();
        engine.process(T0, port(ingress), &mut batch, egress);
        let taken = BYTES.get() - before;
        let captured = std::iter::from_fn(|| engine.taps.pop_captured(tap)).count();
        (taken, captured)
    };
    let of_group = FrameFilter {
        group: Some(MCST),
        ..FrameFilter::default()
    };
    engine.taps.arm_capture(tap, of_group, KEPT, u64::MAX);
    // The queues of the subscriber grow once.
    for psn in 100..104 {
        cost(&mut engine, &mut egress, 0, &send(psn, &[1; 1024]));
    }
    let data = cost(&mut engine, &mut egress, 0, &send(104, &[1; 1024]));
    assert_eq!(data, ((1 + RECEIVERS) * KEPT, 1 + RECEIVERS));
    cost(&mut engine, &mut egress, 1, &ack(1, 104, 1, Syndrome::Ack));
    let feedback = ack(2, 104, 1, Syndrome::Ack);
    let (taken, captured) = cost(&mut engine, &mut egress, 1, &feedback);
    assert_eq!((taken, captured), (feedback.len().min(KEPT), 1));

    // Rank 0 waits for rank 1, and is kept alive.
    let job = Job {
        primitive: Primitive::AllReduce,
        root: 0,
        data_type: DataType::F32,
        elements: 64,
        data: vec![vec![0; 256]; 2],
    };
    let rank = Rank::new(0, T0, &[job]);
    assert_eq!(cost(&mut engine, &mut egress, 0, &rank.frame(0)).1, 0);
    for n in 1..=4 {
        let before = (ALLOCATIONS.get(), egress.sent);
        engine.handle_timeout(T0 + Nanos(TIMEOUT.0 * n), &mut egress);
        assert!(egress.sent > before.1);
        // The first frames fill the cache of ICRC operators.
        assert!(n < 3 || ALLOCATIONS.get() == before.0);
    }

    let drops = FrameFilter {
        drops: true,
        ..FrameFilter::default()
    };
    engine.taps.arm_capture(tap, drops, KEPT, u64::MAX);
    // Data of the group at a port without an endpoint of it.
    assert_eq!(cost(&mut engine, &mut egress, 2, &send(105, &[1; 1024])).1, 1);
    assert_eq!(
        cost(&mut engine, &mut egress, 2, &send(105, &[1; 1024])),
        (KEPT, 1)
    );
    assert_eq!(cost(&mut engine, &mut egress, 0, &send(105, &[1; 1024])), (0, 0));
}

/// A dry run of a group with as many slots as may be: payload is not copied, and where the group is, no memory is taken or
/// given back. Nothing changes.
#[test]
fn a_dry_run_costs_a_worker_no_allocation_and_never_the_payload() {
    use castnet_engine::{Context, DryRun, Verdict};
    use castnet_wire::{DataType, Primitive};
    use common::collective::*;
    const RANKS: usize = 4;
    let job = Job {
        primitive: Primitive::AllReduce,
        root: 0,
        data_type: DataType::F32,
        elements: 64 * 500,
        data: vec![vec![0x40; 256 * 500]; RANKS],
    };
    let ranks: Vec<Rank> = (0..RANKS)
        .map(|r| Rank::new(r, T0, std::slice::from_ref(&job)))
        .collect();
    let rule = collective_star(RANKS).with_translated(|rule| {
        (rule.slots, rule.reproducible) = (1 << 15, true);
    });
    let mut engine = engine(RANKS + 1);
    install_collective(&mut engine, &rule);
    for i in 0..400 {
        for rank in ranks.iter().filter(|r| r.rank > 0 || i == 0) {
            feed(&mut engine, T0, rank.rank, &rank.frame(i));
        }
    }
    let status = engine.collective_status(GROUP).unwrap();
    let totals = engine.totals();
    let frame = ranks[0].frame(1);
    let payload = rule.translated().unwrap().slot_bytes(PMTU, RANKS) as usize;

    let before = BYTES.get();
    let trace = engine.trace(T0, port(0), &frame);
    assert_eq!((trace.verdict, trace.sent.len()), (Verdict::Absorbed, RANKS));
    let taken = BYTES.get() - before;
    assert!(taken < payload / 4, "{taken} bytes for slots of {payload}");

    for (ingress, frame) in [
        (0, frame),
        (2, arp_request(2, GROUP.0)),
        (2, plain_frame(peer_mac(1), peer_mac(2), None, 60)),
    ] {
        let compile = |key| {
            let rule = (key == GROUP.into()).then_some(&rule)?;
            Some(Context::compile_dry(rule, &engine.config().ports).unwrap())
        };
        let mut dry = DryRun::new(engine.config(), port(ingress), frame, compile);
        let before = (ALLOCATIONS.get(), FREED.get());
        engine.copy_into(T0, &mut dry);
        assert_eq!((ALLOCATIONS.get(), FREED.get()), before);
        assert!(!dry.run().sent.is_empty());
    }
    assert_eq!(engine.collective_status(GROUP).unwrap(), status);
    assert_eq!(engine.totals(), totals);
}

/// A group may take hundreds of megabytes. One that is refused is not freed where frames wait.
#[test]
fn a_refused_group_comes_back_whole() {
    use castnet_engine::{EngineConfig, InstallError};
    let own = EngineConfig {
        addresses: vec![MCST.0],
        ..config(3)
    };
    let no_memory = EngineConfig {
        memory_bytes_max: 1,
        ..config(3)
    };
    let no_next_hops = EngineConfig {
        next_hops_max: 0,
        ..config(3)
    };
    for config in [own, no_memory, no_next_hops] {
        let mut engine = Engine::new(config).unwrap();
        let group = Context::compile(&star(1), &ports(3)).unwrap();
        let before = FREED.get();
        let Err((error, group)) = engine.install(Nanos::ZERO, group) else {
            panic!("it is refused");
        };
        assert_eq!(FREED.get(), before, "{error}");
        assert!(!matches!(error, InstallError::Faults(_)));
        assert_eq!((group.mcst_id(), engine.group_count()), (MCST, 0));
    }
}

/// Contract M6 counts on it: what a group says that it takes is what it has allocated.
#[test]
fn a_group_takes_the_memory_that_it_says() {
    use castnet_rules::CollectiveMode::{Augmented, Terminated, Translated};
    use common::collective::{collective_star, one_armed_star};
    let repair = RepairRule {
        slots: 64,
        ack_timeout_us: 640,
    };
    let any_source = |rule: &mut castnet_rules::MulticastRule| {
        rule.any_source = Some(castnet_wire::AnySource::Bridged);
    };
    let mut rules = vec![
        star(1),
        star(40),
        star(40).with_multicast(|rule| rule.repair = Some(repair)),
        star(9).with_multicast(any_source),
        rule((0..100).map(|n| host_at(0, n)).collect()),
    ];
    for mode in [Translated, Augmented, Terminated] {
        for group in [collective_star(3), collective_star(40), one_armed_star(100)] {
            for reproducible in [false, true] {
                let change = |rule: &mut castnet_rules::TranslatedRule| {
                    (rule.mode, rule.reproducible) = (mode, reproducible);
                };
                rules.push(group.clone().with_translated(change));
            }
        }
    }
    // With checkpoints for the collectives in flight.
    rules.push(collective_star(40).with_translated(|rule| rule.slots = 1 << 10));
    let live = || BYTES.get() - FREED_BYTES.get();
    let ports = ports(64);
    for rule in rules {
        let before = live();
        let group = Context::compile(&rule, &ports).unwrap();
        let takes = live() - before;
        let says = match (group.multicast(), group.collective()) {
            (Some(group), _) => group.hot_bytes() + group.cold_bytes(),
            (_, Some(group)) => group.footprint(),
            _ => unreachable!("of one of both kinds"),
        };
        // The counts of what copies of a machine share; of Mode-I, the tables of its connections as well.
        let unsaid = match rule.translated().map(|rule| rule.mode) {
            None => 0..=0,
            Some(Translated | Augmented) => 16..=16,
            Some(Terminated) => 0..=takes / 30,
        };
        let kind = &rule.kind;
        assert!(
            unsaid.contains(&(takes - says)),
            "says {says}, takes {takes}: {kind:?}"
        );
        let reserves = group.memory_bytes();
        assert!(takes <= reserves, "reserves {reserves}, takes {takes}: {kind:?}");
        drop(group);
        assert_eq!(live(), before);
    }
}
