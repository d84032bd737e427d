//! Castnet's dataplane, and a loop that only copies. Both run in processes of this program.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use castnet_dpdk::{Config, DpdkMemory, Hugepages, Mbuf, Runtime};
use castnet_dpdk_tests::config;
use castnet_dpdk_tests::frames::group;
use castnet_dpdk_tests::wrap::Wrapped;
use castnet_port::{Batch, DpdkSpec, FrameBuf, MemoryPort, PoolConfig, PortSpec, Sides};
use castnet_worker::{Dataplane, Idle, WorkerConfig};
use serde::{Deserialize, Serialize};

use super::endless::{Endless, Role, Roles, Stream};
use super::{Frames, NO_CAPTURE, PART, Shared, sink, source};
use crate::count::Count;
use crate::machine;
use crate::measure::{Ran, Running, threads};
use crate::options::Name;
use crate::process::{Process, mortal};
use crate::report::Setting;
use crate::run::Peer;

/// Frames that fit between two workers.
const HAND_OVER: usize = 1024;

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The copy loop.
    Copy,
    /// One worker with one group.
    Switch,
    /// Two workers with a group each.
    Two,
}

/// Parameters of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What runs.
    pub kind: Kind,
    /// Source devices, one per worker.
    pub sources: Vec<String>,
    /// Devices to send to.
    pub sinks: Vec<String>,
    /// Payload of the frames of the sources, in bytes.
    pub payload: usize,
    /// Cores of the workers.
    pub cores: Vec<usize>,
    /// Whether buffers are in hugepages.
    pub hugepages: bool,
    /// Number of frames of each source; `None`: endless.
    pub end: Option<u32>,
}

impl Plan {
    fn specs(&self) -> Result<Vec<PortSpec>> {
        let devices = self.sources.iter().chain(&self.sinks);
        let parse = |device: &String| format!("dpdk:{device}").parse().map_err(anyhow::Error::msg);
        devices.map(parse).collect()
    }

    fn runtime(&self, specs: &[PortSpec], pool: PoolConfig) -> Result<Arc<Runtime>> {
        let devices: Vec<DpdkSpec> = specs.iter().filter_map(|s| s.dpdk().cloned()).collect();
        Ok(Runtime::start(&Config {
            threads: self.cores.len(),
            hand_over: HAND_OVER,
            pool,
            hugepages: if self.hugepages {
                Hugepages::Yes
            } else {
                Hugepages::No
            },
            devices,
        })?)
    }
}

/// A switch or copy loop in this process.
pub enum Part {
    /// The switch, and the number of its source ports.
    Switch(Dataplane, usize),
    /// The copy loop.
    Copy(CopyLoop),
}

impl Part {
    /// Starts it. Fails if DPDK, a device, a core or memory is not available.
    pub fn start(plan: &Plan) -> Result<Self> {
        match plan.kind {
            Kind::Copy => Ok(Self::Copy(CopyLoop::start(plan)?)),
            Kind::Switch | Kind::Two => Ok(Self::Switch(switch(plan)?, plan.sources.len())),
        }
    }

    /// Frames from the sources and to the sinks so far. Fails if it has ended.
    pub fn count(&self) -> Result<Count> {
        let (dataplane, sources) = match self {
            Self::Copy(copies) => return copies.count(),
            Self::Switch(dataplane, sources) => (dataplane, *sources),
        };
        let counters = dataplane.counters()?;
        let (sources, sinks) = counters.ports.split_at(sources);
        Ok(Count {
            frames_in: sources.iter().map(|p| p.stats.rx_frames).sum(),
            frames_out: sinks.iter().map(|p| p.stats.tx_frames).sum(),
        })
    }
}

/// Starts a switch with a group for each source, over all sinks.
fn switch(plan: &Plan) -> Result<Dataplane> {
    let devices: Vec<_> = plan
        .sources
        .iter()
        .chain(&plan.sinks)
        .map(|d| format!("dpdk:{d}"))
        .collect();
    let mut config = config(&devices, plan.cores.len(), HAND_OVER);
    let worker = |&core| WorkerConfig {
        core: Some(core),
        idle: Idle::Busy,
    };
    config.workers = plan.cores.iter().map(worker).collect();
    let runtime = plan.runtime(&plan.specs()?, config.pool)?;
    let streams: Vec<_> = (0..plan.sources.len())
        .map(|group| {
            Arc::new(Stream {
                group,
                sent: AtomicU32::new(0),
                end: plan.end,
            })
        })
        .collect();
    let mut roles = Roles::default();
    for (at, device) in plan.sources.iter().chain(&plan.sinks).enumerate() {
        let role = match streams.get(at) {
            Some(stream) => Role::Source(stream.clone(), plan.payload),
            None => Role::Receiver(at, streams.clone()),
        };
        let name = device.split(',').next().unwrap_or_default();
        roles.roles.insert(name.to_owned(), role);
    }
    let roles = Arc::new(roles);
    let open = roles.clone();
    let make = move |_| Ok(Wrapped::new(runtime.memory()?, Endless(roles.clone())));
    let dataplane = Dataplane::start_in(config, make)?;
    for at in 0..streams.len() {
        let sinks = streams.len()..devices.len();
        let ports: Vec<_> = std::iter::once(at).chain(sinks).collect();
        dataplane.install(&group(at, &ports))?;
    }
    open.open.store(true, Ordering::Relaxed);
    Ok(dataplane)
}

/// Replicates frames as cheaply as DPDK's buffers allow, and writes header and trailer of each replica.
pub struct CopyLoop {
    counts: Arc<[AtomicU64; 2]>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl CopyLoop {
    fn start(plan: &Plan) -> Result<Self> {
        let specs = plan.specs()?;
        let runtime = plan.runtime(&specs, config(&[], 1, 1).pool)?;
        let (counts, stop) = (
            Arc::new([AtomicU64::new(0), AtomicU64::new(0)]),
            Arc::new(AtomicBool::new(false)),
        );
        let core = *plan.cores.first().context("no core")?;
        let thread = thread::Builder::new().name("copy".into()).spawn({
            let (counts, stop) = (counts.clone(), stop.clone());
            move || {
                machine::pin(core)?;
                copy(&runtime.memory()?, &specs, &counts, &stop)
            }
        })?;
        Ok(Self {
            counts,
            stop,
            thread: Some(thread),
        })
    }

    fn count(&self) -> Result<Count> {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        anyhow::ensure!(!ended, "the loop has ended");
        let [frames_in, frames_out] = [0, 1].map(|n| self.counts[n].load(Ordering::Relaxed));
        Ok(Count {
            frames_in,
            frames_out,
        })
    }
}

impl Drop for CopyLoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn copy(memory: &DpdkMemory, specs: &[PortSpec], counts: &[AtomicU64; 2], stop: &AtomicBool) -> Result<()> {
    use castnet_port::Memory;
    let open = |spec| Ok(memory.open(spec, Sides::Both, 0)?);
    let mut ports: Vec<MemoryPort<DpdkMemory>> = specs.iter().map(open).collect::<Result<_>>()?;
    let (source, sinks) = ports.split_first_mut().context("no source")?;
    let mut out: Vec<Batch<Mbuf>> = sinks.iter().map(|_| Batch::new()).collect();
    let mut batch = Batch::new();
    let (mut frames_in, mut frames_out) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        source.receive(&mut batch);
        frames_in += batch.len() as u64;
        for mut frame in batch.drain(..) {
            let (last, others) = out.split_last_mut().context("no sink")?;
            for out in others {
                let mut copy = memory.replicate(&frame, 64, true).context("no buffer")?;
                touch(&mut copy);
                out.push(copy);
            }
            touch(&mut frame);
            last.push(frame);
        }
        for (out, sink) in out.iter_mut().zip(sinks.iter_mut()) {
            frames_out += out.len() as u64;
            sink.send(out);
        }
        counts[0].store(frames_in, Ordering::Relaxed);
        counts[1].store(frames_out, Ordering::Relaxed);
    }
    Ok(())
}

fn touch(frame: &mut Mbuf) {
    if let Some(head) = frame.head_mut().first_chunk_mut::<54>() {
        head.fill(0x5A);
    }
    frame.set_trailer([0x5A; 4]);
}

pub(super) struct Castnet {
    kind: Kind,
    shared: Rc<Shared>,
}

impl Castnet {
    pub(super) fn new(kind: Kind, shared: Rc<Shared>) -> Self {
        Self { kind, shared }
    }
}

impl Peer for Castnet {
    fn name(&self) -> Name {
        match self.kind {
            Kind::Copy => Name::Copy,
            Kind::Switch => Name::Castnet,
            Kind::Two => Name::CastnetTwo,
        }
    }

    /// Two workers are compared with one in one setting.
    fn can(&self, setting: Setting) -> bool {
        self.kind != Kind::Two
            || setting
                == Setting {
                    payload: 1024,
                    fanout: 8,
                }
    }

    fn start(&self, setting: Setting) -> Result<Box<dyn Running>> {
        let cores = match self.kind {
            Kind::Two => vec![self.shared.cores.switch, self.shared.cores.other],
            _ => vec![self.shared.cores.switch],
        };
        // Every worker has a send queue at every device.
        let queues = NO_CAPTURE.repeat(cores.len());
        let file = |n| self.shared.file(Frames::Group(n), setting.payload);
        let plan = Plan {
            kind: self.kind,
            sources: (0..cores.len()).map(|n| source(n, &file(n), &queues)).collect(),
            sinks: (1..=setting.fanout).map(sink).collect(),
            payload: setting.payload,
            cores,
            hugepages: self.shared.hugepages,
            end: None,
        };
        let mut command = mortal(None, std::env::current_exe()?);
        command.arg(PART).arg(serde_json::to_string(&plan)?);
        let folder = self.shared.fresh("castnet")?;
        let process = Process::start_to_ask("castnet", &folder, command)?;
        Ok(Box::new(Remote {
            process,
            cores: plan.cores.len(),
        }))
    }
}

struct Remote {
    process: Process,
    cores: usize,
}

impl Running for Remote {
    fn ran(&mut self) -> Result<Ran> {
        threads(self.process.pid(), "")
    }

    fn count(&mut self) -> Result<Count> {
        Ok(serde_json::from_str(&self.process.ask("count")?)?)
    }

    fn cores(&self) -> usize {
        self.cores
    }
}
