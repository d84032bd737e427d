//! The machines, their peers, the two software RNICs beside them, and the switch between all.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use castnet_e2e::net;
use castnet_softroce::{Host, Lab, LabConfig};
use castnet_softroce_tests::fabric::{Group, Member, splitters};
use castnet_softroce_tests::protocol::{Ask, Op, digest, payload};
use castnet_softroce_tests::{Fabric, Peer};

/// How long one message may take: eight machines on two cores, and time-outs of seconds where frames are lost.
pub(crate) const LONG: Duration = Duration::from_secs(90);
/// Time-out exponent of QPs where nothing is lost: 4.3 s. Machines that share two cores are slow, not dead.
pub(crate) const PATIENT: u8 = 20;
/// Time-out exponent where frames are lost: 268 ms. A lost answer waits for it.
pub(crate) const BRISK: u8 = 16;
/// The software RNICs beside the machines.
pub(crate) const SOFT: [&str; 2] = ["s1", "s2"];

pub(crate) struct Scene {
    // Peers before the lab they live in, and the fabric before its namespace.
    peers: Vec<Peer>,
    fabric: Option<(Wiring, Fabric)>,
    pub(crate) lab: Lab,
    pub(crate) mtu: u32,
    seed: u64,
}

/// What leads to the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wires {
    /// A port for each.
    Ports,
    /// One port, beside a bridge that all hosts hang on.
    OneArmed,
    /// Ports of so many switches with a static core between them.
    StaticCore(usize),
}

/// What a switch runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wiring {
    wires: Wires,
    faults: Vec<String>,
}

/// A message to send to a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) op: Op,
    pub(crate) length: usize,
}

/// A group whose members are connected.
pub(crate) struct Joined {
    pub(crate) group: Group,
    /// The source first.
    pub(crate) hosts: Vec<String>,
}

/// What may be different with a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner<'a> {
    pub(crate) start_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) bytes: usize,
    /// The host whose key the switch is told wrongly.
    pub(crate) wrong_key_at: Option<&'a str>,
}

impl Default for Manner<'_> {
    fn default() -> Self {
        Self {
            start_psn: 0x12_3456,
            timeout: PATIENT,
            bytes: 4 << 20,
            wrong_key_at: None,
        }
    }
}

/// The interfaces between edges and core, and between ToRs.
fn core_wires(edges: usize) -> Vec<(String, String)> {
    let up = (0..edges).map(|n| (format!("e{n}"), format!("c{n}")));
    let across = splitters(edges).into_iter().map(|(_, near, _, far)| (near, far));
    up.chain(across).collect()
}

impl Scene {
    pub(crate) fn start(hosts: usize, mtu: u32) -> Result<Self> {
        let lab = Lab::start(&LabConfig {
            hosts,
            mtu,
            ..LabConfig::default()
        })?;
        let scene = Self {
            peers: Vec::new(),
            fabric: None,
            lab,
            mtu,
            seed: 0,
        };
        for soft in SOFT {
            scene.ip(&format!(
                "link add sw-{soft} mtu {mtu} type veth peer name {soft} mtu {mtu}"
            ))?;
            for interface in [format!("sw-{soft}"), soft.to_string()] {
                scene.quiet_up(&interface)?;
            }
        }
        Ok(scene)
    }

    /// Takes an interface up, without IPv6 chatter: the frames of a test are the test's own.
    fn quiet_up(&self, interface: &str) -> Result<()> {
        let quiet = format!("echo 1 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        let _ = self.lab.command(Path::new("sh")).args(["-c", &quiet]).output();
        self.ip(&format!("link set {interface} up"))
    }

    /// Runs `ip` inside the lab's namespace.
    fn ip(&self, line: &str) -> Result<()> {
        net::ip(&format!("-n {} {line}", self.lab.netns())).map(|_| ())
    }

    pub(crate) fn boot_line(&self) -> String {
        format!(
            "{} machines booted in {:.1} s",
            self.lab.hosts().len(),
            self.lab.boot_time().as_secs_f64()
        )
    }

    /// What the switch said, for a failure.
    pub(crate) fn last_words(&self) -> String {
        let Some((_, fabric)) = &self.fabric else {
            return "no switch".into();
        };
        let drops = fabric.drops().map(|d| format!("{d:?}")).unwrap_or_default();
        format!("drops {drops}; the switch said: {}", fabric.log().trim())
    }

    /// The running switch with just these faults: the last one, or a new one.
    pub(crate) fn fabric(&mut self, faults: &[&str]) -> Result<&mut Fabric> {
        self.wired(false, faults)
    }

    /// The same with one port, beside an ordinary switch that all hosts hang on.
    pub(crate) fn one_armed(&mut self, faults: &[&str]) -> Result<&mut Fabric> {
        self.wired(true, faults)
    }

    /// Three switches at the edges of a static core, or the eight ToRs of a 2,2-Shufflecast.
    pub(crate) fn static_core(&mut self, edges: usize, faults: &[&str]) -> Result<&mut Fabric> {
        self.wire(Wires::StaticCore(edges), faults)
    }

    pub(crate) fn wired(&mut self, one_armed: bool, faults: &[&str]) -> Result<&mut Fabric> {
        let wires = if one_armed { Wires::OneArmed } else { Wires::Ports };
        self.wire(wires, faults)
    }

    fn wire(&mut self, wires: Wires, faults: &[&str]) -> Result<&mut Fabric> {
        let faults = faults.iter().map(|f| f.to_string()).collect();
        let wiring = Wiring { wires, faults };
        if self.fabric.as_ref().is_none_or(|(with, _)| *with != wiring) {
            match self.fabric.take().map(|(with, _)| with.wires) {
                // The interfaces that were the bridge's are their own again.
                Some(Wires::OneArmed) => ["bridge", "arm"]
                    .iter()
                    .try_for_each(|name| self.ip(&format!("link del {name}")))?,
                Some(Wires::StaticCore(edges)) => {
                    for (near, _) in core_wires(edges) {
                        self.ip(&format!("link del {near}"))?;
                    }
                }
                Some(Wires::Ports) | None => {}
            }
            let mut ports: Vec<(String, String)> = Vec::new();
            for host in self.lab.hosts() {
                ports.push((host.name().to_string(), host.tap().to_string()));
            }
            ports.extend(SOFT.map(|soft| (soft.to_string(), format!("sw-{soft}"))));
            let controller = format!("http://{}:0", self.lab.management_ip());
            if let Wires::StaticCore(edges) = wires {
                let mtu = self.mtu;
                for (near, far) in core_wires(edges) {
                    self.ip(&format!(
                        "link add {near} mtu {mtu} type veth peer name {far} mtu {mtu}"
                    ))?;
                    self.quiet_up(&near)?;
                    self.quiet_up(&far)?;
                }
                let namespace = self.lab.netns();
                let fabric = Fabric::over_core(namespace, &ports, mtu, &wiring.faults, &controller, edges)?;
                self.fabric = Some((wiring, fabric));
                return self.running();
            }
            let mut behind = Vec::new();
            if wires == Wires::OneArmed {
                let wire = ("wire".into(), self.bridge(&ports)?);
                behind = ports.into_iter().map(|(host, _)| host).collect();
                ports = vec![wire];
            }
            let fabric = Fabric::start(
                self.lab.netns(),
                &ports,
                &behind,
                self.mtu,
                &wiring.faults,
                Some(&controller),
            )?;
            self.fabric = Some((wiring, fabric));
        }
        self.running()
    }

    /// Makes these interfaces ports of a bridge; gives the interface that one more port of it leads to.
    fn bridge(&self, ports: &[(String, String)]) -> Result<String> {
        let mtu = self.mtu;
        self.ip("link add bridge type bridge")?;
        self.ip(&format!("link set bridge mtu {mtu} up"))?;
        self.ip(&format!(
            "link add arm mtu {mtu} type veth peer name arm-bridge mtu {mtu}"
        ))?;
        self.ip("link set arm up")?;
        self.ip("link set arm-bridge up")?;
        let own = ports.iter().map(|(_, interface)| interface.as_str());
        for interface in own.chain(["arm-bridge"]) {
            self.ip(&format!("link set {interface} master bridge"))?;
        }
        Ok("arm".into())
    }

    /// The switch that runs now.
    pub(crate) fn running(&mut self) -> Result<&mut Fabric> {
        self.fabric
            .as_mut()
            .map(|(_, fabric)| fabric)
            .context("no switch runs")
    }

    /// Makes sure that these hosts have a peer program.
    pub(crate) fn need_peers(&mut self, names: &[&str]) -> Result<()> {
        let missing: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| !self.peers.iter().any(|p| p.name() == *name))
            .collect();
        let program = Path::new(env!("CARGO_BIN_EXE_rdma-peer"));
        let (soft, machines): (Vec<&str>, Vec<&str>) = missing.into_iter().partition(|n| n.starts_with('s'));
        for name in soft {
            let mut command = self.lab.command(program);
            let number: u32 = name[1..].parse()?;
            command.args(["--soft", name, "--ip", &format!("10.0.0.{}", 100 + number)]);
            self.peers.push(Peer::start(name, command)?);
        }
        if machines.is_empty() {
            return Ok(());
        }
        let listener = listen(self.lab.netns(), &self.lab.management_ip().to_string())?;
        let test = listener.local_addr()?;
        let path = self.lab.share(program)?;
        let mut jobs = Vec::new();
        for name in &machines {
            jobs.push(
                self.machine(name)?
                    .spawn(&format!("exec {path} --test {test} --name {name}"))?,
            );
        }
        for _ in &machines {
            let (name, stream) = accept(&listener, LONG).with_context(|| {
                let said: Vec<String> = jobs.iter().map(|job| job.output_so_far().to_string()).collect();
                format!("waiting for the peers of {machines:?}: {}", said.join("; "))
            })?;
            self.peers.push(Peer::over(&name, stream)?);
        }
        Ok(())
    }

    /// A machine by its name.
    pub(crate) fn machine(&self, name: &str) -> Result<&Host> {
        let found = self.lab.hosts().iter().find(|h| h.name() == name);
        found.with_context(|| format!("no machine {name}"))
    }

    /// A peer that was asked for before.
    pub(crate) fn peer(&mut self, name: &str) -> Result<&mut Peer> {
        let found = self.peers.iter_mut().find(|p| p.name() == name);
        found.with_context(|| format!("no peer {name}"))
    }

    /// The peer program of a machine is no more.
    pub(crate) fn forget_peer(&mut self, name: &str) {
        self.peers.retain(|p| p.name() != name);
    }

    /// A group of these hosts, the first one as source, all of them connected to it.
    pub(crate) fn join(&mut self, what: &str, op: Op, hosts: &[&str], manner: Manner<'_>) -> Result<Joined> {
        self.need_peers(hosts)?;
        let mut members = Vec::new();
        let pmtu = if self.mtu >= 4176 { 4096 } else { 1024 };
        for host in hosts {
            let peer = self.peer(host)?;
            let at = peer.create(manner.bytes)?;
            ensure!(peer.pmtu >= pmtu, "{host} has path MTU {}", peer.pmtu);
            let rkey = if manner.wrong_key_at == Some(host) {
                at.rkey ^ 0xFF00
            } else {
                at.rkey
            };
            members.push(Member {
                host: host.to_string(),
                ip: peer.ip.clone(),
                mac: peer.mac.clone(),
                qpn: at.qpn,
                memory: (op == Op::Write).then_some((at.va, rkey, at.bytes)),
            });
        }
        let group = self
            .running()?
            .create_group(what, &members, pmtu, manner.start_psn)?;
        let connect = Ask::Connect {
            ip: group.mcst_id.clone(),
            qpn: 1,
            sq_psn: manner.start_psn,
            rq_psn: manner.start_psn,
            pmtu,
            timeout: manner.timeout,
            retry: 7,
            rnr_timer: 12,
        };
        self.all(hosts, &connect)?;
        Ok(Joined {
            group,
            hosts: hosts.iter().map(|h| h.to_string()).collect(),
        })
    }

    /// Asks all of `hosts` the same at the same time.
    pub(crate) fn all(&mut self, hosts: &[&str], ask: &Ask) -> Result<()> {
        for host in hosts {
            self.peer(host)?.ask(ask)?;
        }
        for host in hosts {
            self.peer(host)?.answer(LONG)?;
        }
        Ok(())
    }

    /// Ends a group, and the QPs of those members that are still there.
    pub(crate) fn leave(&mut self, joined: &Joined) -> Result<()> {
        self.running()?.destroy_group(&joined.group)?;
        let there: Vec<String> = self.peers.iter().map(|p| p.name().to_owned()).collect();
        let hosts: Vec<&str> = joined
            .hosts
            .iter()
            .filter(|h| there.contains(h))
            .map(String::as_str)
            .collect();
        self.all(&hosts, &Ask::Destroy)
    }

    /// Posts receives of `length` bytes, into memory that holds nothing of messages before.
    pub(crate) fn post_receives(&mut self, hosts: &[&str], length: usize) -> Result<()> {
        self.all(hosts, &Ask::Mark { length })?;
        self.all(hosts, &Ask::Receive { length })
    }

    /// Posts the message at the source, without waiting; gives what its bytes are drawn from.
    pub(crate) fn post(&mut self, joined: &Joined, message: Message) -> Result<u64> {
        self.seed += 1;
        let (seed, source) = (self.seed, joined.hosts[0].clone());
        let post = Ask::Post {
            op: message.op,
            length: message.length,
            seed,
            imm: seed as u32 | 0xA500_0000,
            va: 0,
            rkey: 0,
        };
        self.peer(&source)?.does(&post)?;
        Ok(seed)
    }

    /// Waits until these receivers have the message drawn from `seed`, whole and nothing beyond it.
    pub(crate) fn await_received(&mut self, receivers: &[&str], message: Message, seed: u64) -> Result<()> {
        let within_ms = LONG.as_millis() as u64;
        let length = message.length;
        for host in receivers {
            self.peer(host)?.ask(&Ask::AwaitReceived { length, within_ms })?;
        }
        let sent = digest(&payload(seed, length));
        let mut faults = Vec::new();
        for host in receivers {
            match self.peer(host)?.ended(LONG) {
                Err(error) => faults.push(format!("{error:#}")),
                Ok(ended) => {
                    let imm = seed as u32 | 0xA500_0000;
                    if !ended.is_success()
                        || ended.digest.as_ref() != Some(&sent)
                        || ended.bytes as usize != length
                        || ended.imm != Some(imm)
                        || !ended.untouched_beyond
                    {
                        faults.push(format!(
                            "{host} has {ended:?}, not {length} bytes {sent} with {imm:#x}"
                        ));
                    }
                }
            }
        }
        ensure!(faults.is_empty(), "{message:?}: {}", faults.join("; "));
        Ok(())
    }

    /// Waits until the source's message has ended, and demands that it did well.
    pub(crate) fn await_sent(&mut self, joined: &Joined, message: Message) -> Result<()> {
        let source = self.peer(&joined.hosts[0])?;
        source.ask(&Ask::AwaitSent {
            within_ms: LONG.as_millis() as u64,
        })?;
        let ended = source.ended(LONG)?;
        ensure!(ended.is_success(), "{message:?}: the source has {ended:?}");
        Ok(())
    }

    /// One message from the source to all receivers.
    pub(crate) fn send(&mut self, joined: &Joined, message: Message) -> Result<()> {
        let receivers: Vec<&str> = joined.hosts[1..].iter().map(String::as_str).collect();
        self.post_receives(&receivers, message.length)?;
        let seed = self.post(joined, message)?;
        self.await_received(&receivers, message, seed)?;
        self.await_sent(joined, message)
    }
}

/// A socket that listens inside a network namespace. Sockets stay in the namespace that they were made in.
fn listen(namespace: &str, ip: &str) -> Result<TcpListener> {
    let path = format!("/run/netns/{namespace}");
    let at: SocketAddr = format!("{ip}:0").parse()?;
    let thread = std::thread::spawn(move || -> Result<TcpListener> {
        let file = std::fs::File::open(&path).with_context(|| path.clone())?;
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET)?;
        Ok(TcpListener::bind(at)?)
    });
    match thread.join() {
        Ok(listener) => listener,
        Err(_) => bail!("the thread that listens has died"),
    }
}

/// The next connection, and the name that it tells first.
fn accept(listener: &TcpListener, within: Duration) -> Result<(String, TcpStream)> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                let mut name = String::new();
                // One byte at a time: what follows the name is not this function's.
                let mut reader = BufReader::with_capacity(1, stream.try_clone()?);
                reader.read_line(&mut name)?;
                return Ok((name.trim().to_owned(), stream));
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                ensure!(start.elapsed() < within, "nobody came within {within:?}");
                nix::poll::poll(&mut [], 10u8).ok();
            }
            Err(e) => return Err(e.into()),
        }
    }
}
