//! The second table: flooding over veth pairs of the kernel, by its own bridge and by Castnet.
//!
//! One namespace has the switch's ends of all pairs, another the hosts' ends. A generator on another core sends frames
//! to an unknown address, at most a window ahead of what arrives, so that none is lost. The kernel's receive processing
//! is steered to the core of the switch, which so does all the work.

use std::fs;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use castnet_e2e::net::{self, Namespace};
use castnet_port::{Batch, FrameBuf, Pool, PoolConfig, Port, PortSpec, Sides};
use castnet_wire::ethernet::ETHERTYPE_IPV4;
use castnet_wire::{
    Bth, Ethernet, ExtHeaders, Ipv4, MacAddr, Network as Ip, Opcode, PortId, Psn, Qpn, emit_roce,
};
use castnet_worker::{Dataplane, DataplaneConfig, Idle, PortConfig, WorkerConfig};
use nix::unistd::gettid;
use serde::{Deserialize, Serialize};

use crate::count::{Count, in_kernel, outside_kernel, packets};
use crate::machine::{self, Cores};
use crate::measure::{Ran, Running};
use crate::options::{Name, Options};
use crate::process::{Process, missing, mortal, output, serve};
use crate::report::{HEADERS, Setting};
use crate::run::{Field, Peer};

/// First argument that makes this program run Castnet; the plan follows as JSON.
pub const PART: &str = "veth-part";
/// One to send, the others to receive.
const PAIRS: usize = 9;
const MTU: u32 = 9000;
/// Most frames in flight: fewer than any queue holds.
const WINDOW: u64 = 512;
/// Time after which a frame counts as lost.
const LOST: Duration = Duration::from_millis(20);

#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    interfaces: Vec<String>,
    core: usize,
}

/// Runs Castnet, and answers each line of input with its count, until the end of input.
pub fn part(mut words: impl Iterator<Item = String>) -> Result<()> {
    let plan: Plan = serde_json::from_str(&words.next().context("no plan")?)?;
    let port = |(n, name): (usize, &String)| {
        let id = PortId::new(n as u8).context("too many ports")?;
        let spec: PortSpec = format!("af_packet:{name}").parse().map_err(anyhow::Error::msg)?;
        Ok(PortConfig::new(id, name.clone(), spec))
    };
    let ports = plan
        .interfaces
        .iter()
        .enumerate()
        .map(port)
        .collect::<Result<_>>()?;
    let mut config = DataplaneConfig::new("peers", ports);
    config.workers = vec![WorkerConfig {
        core: Some(plan.core),
        // It must yield the core, because the kernel does its part of the work there.
        idle: Idle::default(),
    }];
    config.engine.lldp_interval = None;
    let dataplane = Dataplane::start(config)?;
    serve(|| Ok(dataplane.counters()?.totals.flooded))
}

/// Adds both switches, or the reason why they cannot be measured.
pub fn join(field: &mut Field, options: &Options, cores: Cores) {
    let all = [
        Name::CastnetVeth,
        Name::Bridge,
        Name::CastnetVethRuns,
        Name::BridgeRuns,
    ];
    let wanted = all.into_iter().filter(|&name| options.wants(name));
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() {
        return;
    }
    let network = Network::new(cores).map(Rc::new).map_err(|why| format!("{why:#}"));
    for name in wanted {
        field.add(name, options, || match &network {
            Ok(network) => Ok(OverVeth {
                name,
                network: network.clone(),
            }),
            Err(why) => bail!("{why}"),
        });
    }
}

struct Network {
    switch: Namespace,
    hosts: Namespace,
    cores: Cores,
}

impl Network {
    fn new(cores: Cores) -> Result<Self> {
        ensure!(cores.are_two(), "needs a second core, for the generator");
        if let Some(why) = net::missing() {
            bail!(why);
        }
        if let Some(why) = missing("ethtool", "ethtool") {
            bail!(why);
        }
        let (switch, hosts) = (Namespace::new("switch")?, Namespace::new("hosts")?);
        for n in 0..PAIRS {
            net::veth(&switch, &format!("p{n}"), &hosts, &format!("e{n}"), MTU)?;
        }
        // Receivers have queues of their own. They would overfill the queue of the core.
        for n in 1..PAIRS {
            let interface = format!("e{n}");
            output(hosts.command("ethtool").args(["-K", &interface, "gro", "on"]))?;
        }
        // The core of the switch processes received frames, whichever core sent them.
        let steer = format!(
            "echo {:x} > /sys/class/net/p0/queues/rx-0/rps_cpus",
            1_u128 << cores.switch
        );
        output(switch.command("sh").args(["-c", &steer])).context("steering receipt to a core")?;
        Ok(Self { switch, hosts, cores })
    }
}

struct OverVeth {
    name: Name,
    network: Rc<Network>,
}

impl Peer for OverVeth {
    fn name(&self) -> Name {
        self.name
    }

    fn can(&self, _: Setting) -> bool {
        true
    }

    fn start(&self, setting: Setting) -> Result<Box<dyn Running>> {
        let network = &self.network;
        let interfaces: Vec<_> = (0..=setting.fanout).map(|n| format!("p{n}")).collect();
        let (mut castnet, mut bridge) = (None, None);
        if matches!(self.name, Name::Bridge | Name::BridgeRuns) {
            bridge = Some(Bridge::new(network.clone(), &interfaces)?);
        } else {
            castnet = Some(self.castnet(interfaces)?);
        }
        Ok(Box::new(OverVethRunning {
            generator: Generator::start(network, setting.payload, self.name.in_runs())?,
            castnet,
            _bridge: bridge,
            core: network.cores.switch,
            fanout: setting.fanout,
        }))
    }
}

impl OverVeth {
    fn castnet(&self, interfaces: Vec<String>) -> Result<Process> {
        let folder = tempfile::Builder::new().prefix("castnet-peers-").tempdir()?;
        let core = self.network.cores.switch;
        let mut command = mortal(Some(&self.network.switch), std::env::current_exe()?);
        command
            .arg(PART)
            .arg(serde_json::to_string(&Plan { interfaces, core })?);
        let mut process = Process::start_to_ask("castnet", folder.path(), command)?;
        // It answers when it has started.
        process.ask("ready")?;
        Ok(process)
    }
}

struct Bridge(Rc<Network>);

impl Bridge {
    fn new(network: Rc<Network>, interfaces: &[String]) -> Result<Self> {
        let name = network.switch.name().to_owned();
        net::ip(&format!("-n {name} link add br0 type bridge"))?;
        let bridge = Self(network);
        net::ip(&format!("-n {name} link set br0 mtu {MTU} up"))?;
        for interface in interfaces {
            net::ip(&format!("-n {name} link set {interface} master br0"))?;
        }
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = net::ip(&format!("-n {} link del br0", self.0.switch.name()));
    }
}

struct OverVethRunning {
    // Dropped first.
    generator: Generator,
    castnet: Option<Process>,
    _bridge: Option<Bridge>,
    core: usize,
    fanout: usize,
}

impl Running for OverVethRunning {
    /// Time of the core in the kernel, and of Castnet outside the kernel. Other processes count little.
    fn ran(&mut self) -> Result<Ran> {
        let text = fs::read_to_string("/proc/stat").context("no /proc/stat")?;
        let mut ns = in_kernel(&text, self.core)?;
        if let Some(castnet) = &self.castnet {
            let stat =
                fs::read_to_string(format!("/proc/{}/stat", castnet.pid())).context("castnet is gone")?;
            ns += outside_kernel(&stat)?;
        }
        Ok([("core".to_owned(), ns)].into())
    }

    fn count(&mut self) -> Result<Count> {
        self.castnet.as_mut().map_or(Ok(()), Process::lives)?;
        let arrived = self.generator.arrived(self.fanout)?;
        Ok(Count {
            frames_in: arrived / self.fanout as u64,
            frames_out: arrived,
        })
    }
}

/// A thread in the hosts' namespace that sends as fast as frames arrive at the second pair.
struct Generator {
    /// Bytes of a frame.
    length: usize,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
    counters: String,
}

impl Generator {
    fn start(network: &Network, payload: usize, in_runs: bool) -> Result<Self> {
        let frames = frames(payload, in_runs)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (told, number) = std::sync::mpsc::channel();
        let core = network.cores.other;
        let thread = network.hosts.thread({
            let stop = stop.clone();
            move || {
                machine::pin(core)?;
                let counters = format!("/proc/self/task/{}/net/dev", gettid());
                let _ = told.send(counters.clone());
                generate(&counters, &frames, &stop)
            }
        })?;
        let counters = number.recv();
        let mut generator = Self {
            length: HEADERS + payload,
            stop,
            thread: Some(thread),
            counters: String::new(),
        };
        match counters {
            Ok(counters) => generator.counters = counters,
            Err(_) => generator.fault()?,
        }
        Ok(generator)
    }

    /// Frames received by the hosts at the first `fanout` ports.
    fn arrived(&mut self, fanout: usize) -> Result<u64> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            self.fault()?;
        }
        let text = fs::read_to_string(&self.counters).context("no counters of interfaces")?;
        (1..=fanout)
            .map(|n| packets(&text, &format!("e{n}"), self.length))
            .sum()
    }

    fn fault(&mut self) -> Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(why))) => Err(why.context("the generator")),
            _ => bail!("the generator has ended"),
        }
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Frames to send in turn. Runs are packets of one flow.
fn frames(payload: usize, in_runs: bool) -> Result<Vec<Vec<u8>>> {
    let header = Ethernet {
        // Unknown.
        dst: MacAddr([0x02, 0xBB, 0, 0, 0, 1]),
        src: MacAddr([0x02, 0xAA, 0, 0, 0, 1]),
        vlan: None,
        ethertype: if in_runs { ETHERTYPE_IPV4 } else { 0x88B5 },
    };
    let count = if in_runs { WINDOW as u16 } else { 1 };
    let frame = |ident| -> Result<Vec<u8>> {
        let mut bytes = vec![0x5A; HEADERS + payload];
        if in_runs {
            let network = Ip::V4(Ipv4 {
                ident,
                ..Ipv4::udp([198, 18, 0, 1].into(), [198, 18, 0, 2].into())
            });
            let bth = Bth::new(Opcode::SendMiddle, Qpn::new(7), Psn::new(ident.into()));
            let content = vec![0x5A; payload];
            let length = emit_roce(
                &mut bytes,
                &header,
                &network,
                0xC000,
                &bth,
                &ExtHeaders::NONE,
                &content,
            )?;
            ensure!(length == bytes.len(), "a frame of {length} bytes");
        } else {
            header.emit(&mut bytes)?;
        }
        Ok(bytes)
    };
    (0..count).map(frame).collect()
}

fn generate(counters: &str, frames: &[Vec<u8>], stop: &AtomicBool) -> Result<()> {
    let pool = Pool::new(PoolConfig {
        buffers: 1024,
        bodies: 64,
        frame_max: 9216,
    });
    let spec: PortSpec = "af_packet:e0,tx=256".parse().map_err(anyhow::Error::msg)?;
    let mut port = spec.open(&pool, Sides::Send)?;
    let length = frames.first().map_or(0, Vec::len);
    let arrived = || -> Result<u64> { packets(&fs::read_to_string(counters)?, "e1", length) };
    let mut next = frames.iter().cycle();
    let (start, mut sent, mut batch) = (arrived()?, 0, Batch::new());
    let (mut last, mut moved) = (0, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let here = arrived()? - start;
        if here != last {
            (last, moved) = (here, Instant::now());
        } else if moved.elapsed() > LOST {
            // Frames are lost, or the switch does not forward yet.
            (sent, moved) = (here, Instant::now());
        }
        for _ in 0..WINDOW.saturating_sub(sent.saturating_sub(here)) {
            let Some(frame) = next.next().and_then(|bytes| pool.copy_from(bytes)) else {
                break;
            };
            debug_assert_eq!(frame.length(), length);
            batch.push(frame);
            sent += 1;
            if batch.is_full() {
                port.send(&mut batch);
            }
        }
        port.send(&mut batch);
    }
    Ok(())
}
