//! Copies of payload and allocations at a rank, and the time of a call: over shared memory (memif), in one process, with the
//! real switch, agent and controller. Memory that is lent to the RNIC is compared with memory whose messages pass through
//! slots.
//!
//! `cargo bench -p castnet-benches --bench copies`. Copies are counted where `memcpy` is called with at least 256 bytes, by
//! the threads that own an RNIC; allocations are counted in these threads and in those that call. The CRC is no copy.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::error::Error;
use std::ffi::c_void;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use castnet_agent::Agent;
use castnet_comm::{Collectives, CommConfig, CommError, Communicator, Fallback, Operation};
use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_port::PortSpec;
use castnet_proto::transport::{Address, Security};
use castnet_rnic::{Rnic, RnicError, SoftRnic, SoftRnicConfig};
use castnet_runner::{Comm, Runner};
use castnet_wire::{Pmtu, PortId};
use castnet_worker::{Dataplane, DataplaneConfig, PortConfig};
use tokio::runtime::Runtime;

const RANKS: u16 = 4;
/// Shorter copies are headers.
const PAYLOAD_MIN: usize = 256;
const WARM_UP: usize = 20;

thread_local! {
    /// What this thread counts into; 0: nothing.
    static ROLE: Cell<usize> = const { Cell::new(0) };
}
const CALLER: usize = 1;
const RNIC: usize = 2;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTING.load(Ordering::Relaxed) && ROLE.get() != 0 {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's guarantees are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` with this layout, so from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

unsafe extern "C" {
    fn memmove(to: *mut c_void, from: *const c_void, length: usize) -> *mut c_void;
}

/// All copies of this program that are calls.
///
/// # Safety
/// As in C.
// SAFETY: it does what C requires of a function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, length: usize) -> *mut c_void {
    if length >= PAYLOAD_MIN && COUNTING.load(Ordering::Relaxed) && ROLE.get() == RNIC {
        COPIED.fetch_add(length as u64, Ordering::Relaxed);
    }
    // SAFETY: the caller's guarantees are more than those that this function needs.
    unsafe { memmove(to, from, length) }
}

/// How a rank calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A blocking call: the memory is lent.
    Lent,
    /// A non-blocking call that owns its memory: messages pass through slots.
    Slots,
    /// A blocking call of another thread than the RNIC's: the memory is lent.
    Runner,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Collective {
    AllReduce,
    Broadcast,
}

enum Rank {
    Own(Box<Communicator>),
    Runner(Comm, Runner),
}

fn open(folder: &Path, rank: u16) -> Result<Box<dyn Rnic>, RnicError> {
    ROLE.set(RNIC);
    let socket = folder.join(format!("h{}.sock", rank + 1));
    let spec: PortSpec = format!("memif:{}", socket.display()).parse().expect("a port");
    let config = SoftRnicConfig::new([10, 0, 0, rank as u8 + 1].into());
    Ok(Box::new(SoftRnic::open(&spec, config)?))
}

impl Rank {
    fn join(
        folder: &Path,
        rank: u16,
        config: CommConfig,
        way: Way,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        if way != Way::Runner {
            let rnic = open(folder, rank)?;
            return Ok(Self::Own(Box::new(Communicator::connect(config, rnic)?)));
        }
        ROLE.set(CALLER);
        let folder = folder.to_owned();
        let runner = Runner::start(move || open(&folder, rank))?;
        Ok(Self::Runner(runner.connect(config)?, runner))
    }

    fn call(&mut self, way: Way, collective: Collective, memory: &mut Vec<f32>) -> Result<(), CommError> {
        match (self, way, collective) {
            (Self::Own(comm), Way::Slots, Collective::AllReduce) => {
                let request = comm.iallreduce(std::mem::take(memory), Operation::Sum)?;
                *memory = comm.wait(request)?;
                Ok(())
            }
            (Self::Own(comm), Way::Slots, Collective::Broadcast) => {
                let request = comm.ibroadcast(std::mem::take(memory), 0)?;
                *memory = comm.wait(request)?;
                Ok(())
            }
            (Self::Own(comm), _, Collective::AllReduce) => comm.allreduce(memory, Operation::Sum),
            (Self::Own(comm), _, Collective::Broadcast) => comm.broadcast(memory, 0),
            (Self::Runner(comm, _), _, Collective::AllReduce) => comm.allreduce(memory, Operation::Sum),
            (Self::Runner(comm, _), _, Collective::Broadcast) => comm.broadcast(memory, 0),
        }
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        match self {
            Self::Own(comm) => comm.barrier(),
            Self::Runner(comm, _) => comm.barrier(),
        }
    }

    fn close(self) -> Result<(), CommError> {
        match self {
            Self::Own(comm) => comm.close(),
            Self::Runner(comm, _runner) => comm.close(),
        }
    }
}

struct Figures {
    /// Bytes in a call of one rank.
    copied: u64,
    /// In all calls of one rank.
    allocations: u64,
    calls: u64,
    median_us: f64,
}

/// Counts at all ranks, at rank 0 (`Some(true)`), or at the others. The time is that of rank 0. The ranks call until about
/// 8 MiB are through, but 10 to 300 times.
fn measure(
    controller: &Address,
    folder: &Path,
    way: Way,
    collective: Collective,
    bytes: usize,
    only: Option<bool>,
) -> Figures {
    let calls = (8 << 20) / bytes;
    let all = Arc::new(Barrier::new(RANKS.into()));
    let calls = calls.clamp(10, 300);
    let rank = |rank: u16| {
        let mut config = CommConfig::new(
            controller.clone(),
            format!("copies{bytes}"),
            rank,
            RANKS,
            format!("h{}", rank + 1),
        );
        (config.fallback, config.pmtu) = (Fallback::Forbidden, Pmtu::B4096);
        let (folder, all) = (folder.to_owned(), all.clone());
        std::thread::spawn(move || {
            let mut comm = Rank::join(&folder, rank, config, way).expect("joined");
            let mut memory = vec![0.0_f32; bytes / 4];
            for _ in 0..WARM_UP {
                comm.call(way, collective, &mut memory).expect("a call");
            }
            let role = ROLE.get();
            let mut times = Vec::with_capacity(calls);
            let is_counted = only.is_none_or(|only| only == (rank == 0));
            if !is_counted {
                ROLE.set(0);
            }
            comm.barrier().expect("a barrier");
            all.wait();
            COUNTING.store(true, Ordering::Relaxed);
            for _ in 0..calls {
                let start = Instant::now();
                comm.call(way, collective, &mut memory).expect("a call");
                times.push(start.elapsed());
            }
            comm.barrier().expect("a barrier");
            COUNTING.store(false, Ordering::Relaxed);
            ROLE.set(role);
            all.wait();
            comm.close().expect("closed");
            times.sort();
            times[calls / 2]
        })
    };
    COPIED.store(0, Ordering::Relaxed);
    ALLOCATIONS.store(0, Ordering::Relaxed);
    let threads: Vec<_> = (0..RANKS).map(rank).collect();
    let times: Vec<_> = threads.into_iter().map(|t| t.join().expect("a rank")).collect();
    let counted = match only {
        None => u64::from(RANKS),
        Some(true) => 1,
        Some(false) => u64::from(RANKS) - 1,
    };
    Figures {
        copied: COPIED.load(Ordering::Relaxed) / counted / calls as u64,
        allocations: ALLOCATIONS.load(Ordering::Relaxed) / counted,
        calls: calls as u64,
        median_us: times[0].as_secs_f64() * 1e6,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let runtime = Runtime::new()?;
    let ports = (0..RANKS).zip((0..).filter_map(PortId::new)).map(|(rank, id)| {
        let name = format!("h{}", rank + 1);
        let socket = folder.path().join(format!("{name}.sock"));
        let spec: PortSpec = format!("memif:{}", socket.display()).parse().expect("a port");
        PortConfig::new(id, name, spec)
    });
    let dataplane = Arc::new(Dataplane::start(DataplaneConfig::new("sw", ports.collect()))?);
    let listen: Address = "http://127.0.0.1:0".parse()?;
    let agent = runtime.block_on(Agent::start(dataplane.clone(), &listen, &Security::default()))?;
    let switch = SwitchConfig {
        name: "sw".to_owned(),
        agent: agent.address().clone(),
    };
    let controller = runtime.block_on(Controller::start(Config::new(vec![switch])))?;
    let address = controller.address().ok_or("no address")?.clone();
    println!("{RANKS} ranks and a switch over memif, path MTU 4096, f32 in place\n");
    println!(
        "{:<40} {:>9} {:>14} {:>12} {:>10}",
        "", "BYTES", "COPIES A BYTE", "ALLOCATIONS", "MEDIAN US"
    );
    let ways = [
        (Way::Slots, "through slots"),
        (Way::Lent, "lent"),
        (Way::Runner, "lent to a runner"),
    ];
    let cases = [
        (Collective::AllReduce, None, "allreduce, out and in"),
        (Collective::Broadcast, Some(true), "broadcast, out"),
        (Collective::Broadcast, Some(false), "broadcast, in"),
    ];
    let mut missed = false;
    for (collective, only, what) in cases {
        for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
            if collective == Collective::Broadcast && bytes != 1 << 20 {
                continue;
            }
            for (way, name) in ways {
                if way == Way::Runner && only.is_some() {
                    continue;
                }
                let figures = measure(&address, folder.path(), way, collective, bytes, only);
                let (copies, allocations) = (figures.copied as f64 / bytes as f64, figures.allocations);
                // One copy each way, control messages and repeats apart.
                let directions = if only.is_none() { 2.0 } else { 1.0 };
                // Queues may still grow.
                let is_met = copies < 1.1 * directions && allocations * 4 < figures.calls;
                let has_goal = way != Way::Slots && bytes >= 64 << 10;
                missed |= has_goal && !is_met;
                println!(
                    "{:<40} {bytes:>9} {copies:>14.2} {allocations:>12} {:>10.0}  {}",
                    format!("{what}, {name}"),
                    figures.median_us,
                    match (has_goal, is_met) {
                        (false, _) => "",
                        (true, true) => "met",
                        (true, false) => "MISSED",
                    }
                );
            }
        }
    }
    runtime.block_on(controller.stop());
    runtime.block_on(agent.stop());
    dataplane.stop();
    match missed {
        true => Err(
            "a goal is missed: at most one copy of a byte each way, and no allocation for each call".into(),
        ),
        false => Ok(()),
    }
}
