//! One rank of a job: calls all six collectives over one queue pair, in an order drawn from a seed that all ranks share, and
//! compares every element with what it must be, bit by bit. Ends with one line of JSON, or with an error.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use castnet_comm::{
    CollectiveMode, Collectives, CommConfig, Communicator, Element, Fallback, LossPolicy, Operation, Request,
};
use castnet_port::{Pool, PoolConfig, PortSpec, Sides};
use castnet_proto::transport::{Controllers, Security};
use castnet_rnic::{
    Access, Completion, Datagrams, DeviceAttributes, MemoryKey, MemoryRegion, QpOptions, QpRemote, QpState,
    RecvWr, Rnic, RnicError, SendWr, SoftRnic, SoftRnicConfig, Traffic, Waker,
};
use castnet_softroce_tests::ranks::Told;
use castnet_wire::{Nanos, Pmtu, Psn, Qpn};
use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    I32,
    F32,
}

#[derive(Debug, Parser)]
struct Options {
    /// The software RNIC on this interface; without it, the machine's RDMA device
    #[arg(long)]
    soft: Option<String>,
    /// Its address, where it is the software RNIC
    #[arg(long, default_value = "0.0.0.0")]
    ip: Ipv4Addr,
    #[arg(long)]
    controller: Controllers,
    #[arg(long)]
    name: String,
    #[arg(long)]
    job: String,
    #[arg(long)]
    rank: u16,
    #[arg(long)]
    size: u16,
    /// f32 is added in rank order
    #[arg(long = "type", value_enum)]
    kind: Kind,
    /// Bytes of a rank's block
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<usize>,
    #[arg(long, default_value_t = 1024)]
    pmtu: usize,
    #[arg(long)]
    first_psn: u32,
    #[arg(long)]
    timeout: u8,
    #[arg(long)]
    retry: u8,
    #[arg(long, default_value_t = LossPolicy::Repair)]
    loss: LossPolicy,
    #[arg(long)]
    mode: Option<CollectiveMode>,
    /// Calls nothing for so long once all are connected, while the others wait
    #[arg(long, default_value_t = 0)]
    late_ms: u64,
    #[arg(long)]
    seed: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    match options.kind {
        Kind::I32 => run::<i32>(&options),
        Kind::F32 => run::<f32>(&options),
    }
}

/// Elements whose sums depend on nothing but the order.
trait Number: Element + Copy {
    fn drawn(bits: u32) -> Self;
    fn plus(self, other: Self) -> Self;
    fn is(self, other: Self) -> bool;
}

impl Number for i32 {
    fn drawn(bits: u32) -> Self {
        bits.cast_signed()
    }
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    fn is(self, other: Self) -> bool {
        self == other
    }
}

impl Number for f32 {
    /// Of all signs and many magnitudes, so that another order of adding would show.
    fn drawn(bits: u32) -> Self {
        Self::from_bits(bits & 0x81FF_FFFF | 0x3C00_0000)
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn is(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

/// What `rank` contributes as element `index` of call `number`.
fn value<T: Number>(rank: u16, number: usize, index: usize) -> T {
    let mixed = (index as u32)
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add(u32::from(rank) << 20)
        .wrapping_add((number as u32) << 8)
        .wrapping_mul(0x85EB_CA6B);
    T::drawn(mixed ^ mixed >> 15)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    AllReduce,
    Reduce(u16),
    Broadcast(u16),
    ReduceScatter,
    AllGather,
    Barrier,
}

/// Of call `number`: the result, and what must be in it.
struct Open<T> {
    number: usize,
    step: Step,
    length: usize,
    request: Request<T>,
}

/// Small steps of a generator of pseudo-random numbers (SplitMix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ z >> 31) % bound as u64) as usize
    }
}

/// All six at each size, in a drawn order, with drawn roots.
fn program(options: &Options) -> Vec<(Step, usize)> {
    let mut draw = Draw(options.seed);
    let size = usize::from(options.size);
    let mut all = Vec::new();
    for &bytes in &options.bytes {
        let length = bytes / 4;
        let (to, from) = (draw.below(size) as u16, draw.below(size) as u16);
        all.extend([(Step::AllReduce, length), (Step::Barrier, 0)]);
        all.extend([(Step::Reduce(to), length), (Step::Broadcast(from), length)]);
        // Of the whole, as the other sizes are.
        all.extend([Step::ReduceScatter, Step::AllGather].map(|step| (step, length.div_ceil(size))));
    }
    for last in (1..all.len()).rev() {
        all.swap(last, draw.below(last + 1));
    }
    all
}

fn run<T: Number>(options: &Options) -> Result<()> {
    let begun = Instant::now();
    let made = Made::default();
    let inner = open(options)?;
    let device = inner.attributes().name.clone();
    let counters = hardware(&device);
    let rnic = Watched {
        inner,
        made: made.clone(),
    };
    let mut config = CommConfig::new(
        options.controller.clone(),
        &options.job,
        options.rank,
        options.size,
        &options.name,
    );
    config.security = Security {
        insecure: true,
        ..Security::default()
    };
    config.pmtu = Pmtu::from_bytes(options.pmtu as u32).context("a path MTU")?;
    config.reproducible = options.kind == Kind::F32;
    config.fallback = Fallback::Forbidden;
    config.first_psn = Some(Psn::new(options.first_psn));
    config.qp_timeout = options.timeout;
    config.retry_cnt = options.retry;
    config.loss = options.loss;
    config.mode = options.mode;
    config.timeouts.resolve = Duration::from_secs(20);
    let mut comm = Communicator::connect(config, Box::new(rnic))?;
    // All are connected; who is late does nothing at all now, not even with its RNIC.
    comm.barrier()?;
    let connected = begun.elapsed();
    std::thread::sleep(Duration::from_millis(options.late_ms));
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    let steps = program(options);
    let mut open: Vec<Open<T>> = Vec::new();
    // One after the other, or two at once.
    for (number, &(step, length)) in steps.iter().enumerate() {
        let call = Instant::now();
        let request =
            begin::<T>(&mut comm, number, step, length).with_context(|| format!("{number}: {step:?}"))?;
        open.push(Open {
            number,
            step,
            length,
            request,
        });
        if number % 3 != 0 {
            check(&mut comm, &mut open)?;
        }
        slowest = slowest.max(call.elapsed());
    }
    check(&mut comm, &mut open)?;
    let seconds = start.elapsed().as_secs_f64();
    let qps = (made.created.get(), made.connected.get());
    ensure!(qps == (1, 1), "QPs created and connected: {qps:?}");
    comm.close()?;
    let told = Told {
        rank: options.rank,
        calls: steps.len(),
        connected_s: connected.as_secs_f64(),
        seconds,
        slowest_s: slowest.as_secs_f64(),
        qps_created: made.created.get(),
        qps_connected: made.connected.get(),
        sq_psn: made.psns.get().0,
        rq_psn: made.psns.get().1,
        counters: hardware(&device)
            .into_iter()
            .map(|(name, now)| {
                let before = counters.get(&name).copied().unwrap_or(0);
                (name, now.wrapping_sub(before))
            })
            .filter(|(_, grown)| *grown > 0)
            .collect(),
    };
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

fn begin<T: Number>(
    comm: &mut Communicator,
    number: usize,
    step: Step,
    length: usize,
) -> Result<Request<T>, castnet_comm::CommError> {
    let (rank, ranks, sum) = (comm.rank(), usize::from(comm.size()), Operation::Sum);
    let mine = |length: usize| {
        (0..length)
            .map(|i| value::<T>(rank, number, i))
            .collect::<Vec<_>>()
    };
    let empty = |length: usize| vec![T::drawn(7); length];
    match step {
        Step::AllReduce => comm.iallreduce(mine(length), sum),
        Step::Reduce(root) => comm.ireduce((mine(length), empty(length)), sum, root),
        Step::Broadcast(root) if root == rank => comm.ibroadcast(mine(length), root),
        Step::Broadcast(root) => comm.ibroadcast(empty(length), root),
        Step::ReduceScatter => comm.ireduce_scatter((mine(length * ranks), empty(length)), sum),
        Step::AllGather => comm.iallgather((mine(length), empty(length * ranks))),
        Step::Barrier => {
            comm.barrier()?;
            comm.iallreduce(Vec::new(), sum)
        }
    }
}

fn check<T: Number>(comm: &mut Communicator, open: &mut Vec<Open<T>>) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    for Open {
        number,
        step,
        length,
        request,
    } in open.drain(..)
    {
        let got = comm
            .wait(request)
            .with_context(|| format!("{number}: {step:?} of {length}"))?;
        let all = |index: usize| {
            let values = (0..size).map(|r| value::<T>(r, number, index));
            values.reduce(T::plus).unwrap_or(T::drawn(0))
        };
        // Rank order as the switch has it: the root's own, which stays at home, is the last.
        let at_root = |root: u16, index: usize| {
            let values = (0..size)
                .filter(|r| *r != root)
                .map(|r| value::<T>(r, number, index));
            let own = value::<T>(root, number, index);
            values.reduce(T::plus).map_or(own, |sum| sum.plus(own))
        };
        let must = |index: usize| match step {
            Step::AllReduce | Step::Barrier => all(index),
            Step::Reduce(root) => at_root(root, index),
            Step::Broadcast(root) => value(root, number, index),
            Step::ReduceScatter => at_root(rank, usize::from(rank) * length + index),
            Step::AllGather => value((index / length) as u16, number, index % length),
        };
        match step {
            Step::Reduce(root) if root != rank => continue,
            Step::AllGather => ensure!(got.len() == length * usize::from(size)),
            _ => ensure!(got.len() == length),
        }
        if let Some(index) = (0..got.len()).find(|&i| !got[i].is(must(i))) {
            let (got, must) = (got[index], must(index));
            bail!("{number}: {step:?} of {length}: element {index} is {got:?}, not {must:?}");
        }
    }
    Ok(())
}

/// The kernel's counters of an RDMA device; none of the software RNIC.
fn hardware(device: &str) -> BTreeMap<String, u64> {
    let folder = format!("/sys/class/infiniband/{device}/ports/1/hw_counters");
    let Ok(files) = std::fs::read_dir(folder) else {
        return BTreeMap::new();
    };
    let read = |file: std::fs::DirEntry| {
        let value = std::fs::read_to_string(file.path()).ok()?.trim().parse().ok()?;
        Some((file.file_name().to_string_lossy().into_owned(), value))
    };
    files.flatten().filter_map(read).collect()
}

fn open(options: &Options) -> Result<Box<dyn Rnic>> {
    let Some(interface) = &options.soft else {
        return castnet_softroce_tests::device::open();
    };
    let spec: PortSpec = format!("af_packet:{interface},rx=1024,tx=128").parse()?;
    let pool = Pool::new(PoolConfig::default());
    let port = spec.for_rnic(options.ip).open(&pool, Sides::Both)?;
    Ok(Box::new(SoftRnic::new(
        port,
        pool,
        SoftRnicConfig::new(options.ip),
    )?))
}

/// How often an RNIC was asked for what changes a queue pair's state.
#[derive(Clone, Default)]
struct Made {
    created: Rc<Cell<u32>>,
    connected: Rc<Cell<u32>>,
    psns: Rc<Cell<(u32, u32)>>,
}

/// An RNIC that counts that.
struct Watched {
    inner: Box<dyn Rnic>,
    made: Made,
}

impl Rnic for Watched {
    fn attributes(&self) -> &DeviceAttributes {
        self.inner.attributes()
    }
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
    fn now(&self) -> Nanos {
        self.inner.now()
    }
    fn register_memory(&mut self, length: usize, access: Access) -> Result<MemoryRegion, RnicError> {
        self.inner.register_memory(length, access)
    }
    fn deregister_memory(&mut self, key: MemoryKey) -> Result<(), RnicError> {
        self.inner.deregister_memory(key)
    }
    fn read_memory(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), RnicError> {
        self.inner.read_memory(key, offset, out)
    }
    fn write_memory(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), RnicError> {
        self.inner.write_memory(key, offset, bytes)
    }
    fn create_qp(&mut self, options: &QpOptions) -> Result<Qpn, RnicError> {
        self.made.created.set(self.made.created.get() + 1);
        self.inner.create_qp(options)
    }
    fn connect_qp(&mut self, qpn: Qpn, remote: &QpRemote, timeout: Duration) -> Result<(), RnicError> {
        self.made.connected.set(self.made.connected.get() + 1);
        self.made.psns.set((remote.sq_psn.value(), remote.rq_psn.value()));
        self.inner.connect_qp(qpn, remote, timeout)
    }
    fn qp_state(&self, qpn: Qpn) -> Result<QpState, RnicError> {
        self.inner.qp_state(qpn)
    }
    fn reset_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        self.inner.reset_qp(qpn)
    }
    fn fail_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        self.inner.fail_qp(qpn)
    }
    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), RnicError> {
        self.inner.destroy_qp(qpn)
    }
    fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), RnicError> {
        self.inner.post_send(qpn, wr)
    }
    fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), RnicError> {
        self.inner.post_recv(qpn, wr)
    }
    fn datagrams(&mut self, port: u16) -> Option<Datagrams> {
        self.inner.datagrams(port)
    }
    fn announce(&mut self) -> Result<(), RnicError> {
        self.inner.announce()
    }
    fn poll(&mut self, now: Nanos) -> Result<bool, RnicError> {
        self.inner.poll(now)
    }
    fn poll_send_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.inner.poll_send_completion(qpn)
    }
    fn poll_recv_completion(&mut self, qpn: Qpn) -> Option<Completion> {
        self.inner.poll_recv_completion(qpn)
    }
    fn wait_unless(&mut self, timeout: Duration, ready: &dyn Fn() -> bool) -> Result<(), RnicError> {
        self.inner.wait_unless(timeout, ready)
    }
    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
