//! Groups whose source changes, over one to three tiers of the real engine and with the real endpoint. Hosts send one after the other, or two
//! at once, under loss, duplication, reordering and corruption; in a third of the runs the switches repair. No host changes its queue pair,
//! or, with the numbers of the group, each synchronizes its PSNs when the source changes (Cepheus III.E). Each host has every byte of the
//! others.

use castnet_endpoint::{
    Access, Completion, CompletionOp, LocalSlice, MemoryKey, QpConfig, QueueLimits, RecvWr, SendOp, SendWr,
    Status,
};
use castnet_engine::{CountersSnapshot, EventKind};
use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
use castnet_rules::{HostPart, MulticastRule, RemoteMemory, RepairRule};
use castnet_sim::{LinkProfile, NodeId, SimConfig, Simulation, View, Watch};
use castnet_topology::{LinkId, Topology};
use castnet_wire::{AnySource, DropReason, McstId, Nanos, Pmtu, Psn, Qpn};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const VA_BASE: u64 = 0x10_0000;
const CANARY: u8 = 0xEE;
const MCST: McstId = McstId(core::net::Ipv4Addr::new(10, 255, 0, 1));

/// A message of host `host` to all others.
#[derive(Clone, Copy, Debug)]
struct Message {
    host: usize,
    write: bool,
    /// In the bytes of all messages, at its sender and at each receiver.
    offset: u64,
    length: u32,
}

/// M1 while hosts send in turn: when a message completes at its sender, all others have it.
#[derive(Clone, Debug, Default)]
struct Delivered {
    hosts: Vec<(NodeId, Qpn)>,
    /// By message, the sender and, by host, one past the newest PSN that it must have received.
    messages: Vec<(usize, Vec<Psn>)>,
    completed: usize,
    violations: Vec<String>,
}

impl Delivered {
    fn new(hosts: Vec<(NodeId, Qpn)>, messages: &[Message], pmtu: Pmtu, first: Psn) -> Self {
        let mut next = vec![first; hosts.len()];
        let of = |m: &Message| {
            let packets = m.length.div_ceil(pmtu.bytes() as u32).max(1);
            let others = next.iter_mut().enumerate().filter(|(host, _)| *host != m.host);
            others.for_each(|(_, psn)| *psn = psn.add(packets as i32));
            (m.host, next.clone())
        };
        Self {
            hosts,
            messages: messages.iter().map(of).collect(),
            ..Self::default()
        }
    }
}

impl Watch for Delivered {
    fn completed(&mut self, view: &View<'_>, host: NodeId, completion: &Completion) {
        let sent = matches!(completion.op, CompletionOp::Send | CompletionOp::Write);
        let message = self.messages.get(completion.wr_id as usize).filter(|_| sent);
        let Some((_, next)) = message.filter(|(sender, _)| self.hosts[*sender].0 == host) else {
            return;
        };
        self.completed += 1;
        for ((node, qpn), next) in self.hosts.iter().zip(next).filter(|((node, _), _)| *node != host) {
            let expected = view
                .endpoint(*node)
                .and_then(|e| e.qp_status(*qpn).ok())
                .map(|s| s.psn_expected);
            if expected.is_none_or(|expected| expected.is_before(*next)) {
                let (id, who) = (completion.wr_id, view.name(*node));
                self.violations
                    .push(format!("M1: message {id} completes, {who} expects {expected:?}"));
            }
        }
    }
}

struct Net {
    sim: Simulation<Delivered>,
    topology: Topology,
    hosts: Vec<String>,
    /// Of each host: what it sends, memory for WRITEs, memory for SENDs.
    keys: Vec<[MemoryKey; 3]>,
    /// In the order in which they are sent.
    messages: Vec<Message>,
    bytes: Vec<u8>,
    begun: usize,
    numbers: AnySource,
    /// Of each host, when it connects.
    connections: Vec<QpConfig>,
    /// With the numbers of the group: the hosts that have sent, and have not synchronized the PSN that they expect.
    senders: Vec<usize>,
}

fn qpn(host: usize) -> Qpn {
    Qpn::new(0x20 + 7 * host as u32)
}

impl Net {
    fn new(
        seed: u64,
        topology: Topology,
        count: usize,
        messages: Vec<Message>,
        (pmtu, first, numbers): (Pmtu, Psn, AnySource),
        repair: Option<RepairRule>,
    ) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let config = SimConfig {
            trace_frames_max: 0,
            ..SimConfig::new(seed)
        };
        let mut sim = Simulation::new(&topology, config, Delivered::default()).expect("a network");
        let mut hosts: Vec<String> = topology.hosts().map(|host| host.name.clone()).collect();
        hosts.shuffle(rng);
        hosts.truncate(count);
        let total = messages
            .iter()
            .map(|m| m.offset as usize + m.length as usize)
            .max();
        let total = total.unwrap_or(0).max(1);
        let mut bytes = vec![0; total];
        rng.fill(&mut bytes[..]);
        let (mut keys, mut members) = (Vec::new(), Vec::new());
        for (i, host) in hosts.iter().enumerate() {
            let va = 0x7000_0000 + 0x1000_0000 * i as u64;
            let of_host = sim.with_endpoint(host, |endpoint, _| {
                [
                    endpoint.register_memory(0, bytes.clone(), Access::READ),
                    endpoint.register_memory(va, vec![CANARY; total], Access::REMOTE_WRITE),
                    endpoint.register_memory(0, vec![CANARY; total], Access::LOCAL),
                ]
                .map(|key| key.expect("registered"))
            });
            let of_host = of_host.expect("a host");
            let memory = RemoteMemory {
                va,
                rkey: of_host[1].rkey(),
                length: total as u64,
            };
            keys.push(of_host);
            members.push(Member {
                part: HostPart::Memory(memory),
                ..Member::new(host, qpn(i))
            });
        }
        let rule = MulticastRule {
            start_psn: Some(first),
            va_base: VA_BASE,
            any_source: Some(numbers),
            repair,
            ..MulticastRule::default()
        };
        let mcst_id = MCST;
        let request = Request::multicast("g", mcst_id, pmtu, members, rule);
        let plan = plan(&topology, &LinkLoad::new(), &RoomTable::new(), &request).expect("a plan");
        sim.install_plan(&plan).expect("installed");
        let mut connections = Vec::new();
        for (i, host) in hosts.iter().enumerate() {
            let mac = sim.first_hop_mac(host).expect("a first hop");
            let config = QpConfig {
                sq_psn: first,
                rq_psn: first,
                pmtu,
                timeout: 8,
                retry_cnt: 7,
                // As the software RNIC does, and as RNICs do.
                probes: seed.is_multiple_of(2),
                limits: QueueLimits {
                    send: 64,
                    receive: 64,
                },
                ..QpConfig::new(qpn(i), mcst_id.0, mac, Qpn::VIRTUAL)
            };
            connections.push(config.clone());
            let created = sim.with_endpoint(host, |endpoint, _| endpoint.create_qp(config));
            created.expect("a host").expect("created");
        }
        Self {
            sim,
            topology,
            hosts,
            keys,
            messages,
            bytes,
            begun: 0,
            numbers,
            connections,
            senders: Vec::new(),
        }
    }

    /// Connects the queue pair of a host again with the PSN after the first `sent` messages, without its peers.
    fn synchronize(&mut self, host: usize, sent: usize) {
        let config = &self.connections[host];
        let packets = |message: &Message| config.pmtu.packets(message.length.into());
        let before: u64 = self.messages[..sent].iter().map(packets).sum();
        let next = config.sq_psn.add(before as i32);
        let config = QpConfig {
            sq_psn: next,
            rq_psn: next,
            ..config.clone()
        };
        let later = (sent..self.messages.len()).filter(|i| self.messages[*i].host != host);
        let receives: Vec<_> = later.map(|i| self.receive(host, i)).collect();
        let name = &self.hosts[host];
        let connected = self.sim.with_endpoint(name, |endpoint, _| {
            endpoint.reset_qp(qpn(host))?;
            endpoint.connect_qp(config)
        });
        connected.expect("a host").expect("connected");
        for wr in receives {
            let posted = self.sim.with_endpoint(name, |e, _| e.post_recv(qpn(host), wr));
            posted.expect("a host").expect("posted");
        }
    }

    /// An old source expects the PSN after its own.
    fn end_turns(&mut self) {
        for host in self.senders.clone() {
            let own = |m: &&Message| m.host == host;
            let sent = self.sim.completions(&self.hosts[host]).len() - self.received(host);
            if sent == self.messages[..self.begun].iter().filter(own).count() {
                let last = self.messages[..self.begun].iter().rposition(|m| m.host == host);
                self.synchronize(host, last.map_or(0, |last| last + 1));
                self.senders.retain(|sender| *sender != host);
            }
        }
    }

    fn receive(&self, host: usize, message: usize) -> RecvWr {
        RecvWr {
            wr_id: message as u64,
            local: Self::slice(self.keys[host][2], &self.messages[message]),
        }
    }

    /// All messages are sent in turn: M1 is checked.
    fn in_turn(mut self, pmtu: Pmtu, first: Psn) -> Self {
        let node = |(i, name): (usize, &String)| (self.sim.node(name).expect("a host"), qpn(i));
        let hosts = self.hosts.iter().enumerate().map(node).collect();
        *self.sim.watch_mut() = Delivered::new(hosts, &self.messages, pmtu, first);
        self
    }

    fn faults(&mut self, rng: &mut ChaCha8Rng) {
        for link in 0..self.topology.links().count() {
            let mut some = |most: f64| {
                if rng.random_bool(0.5) {
                    rng.random_range(0.0..most)
                } else {
                    0.0
                }
            };
            let profiles = [(); 2].map(|()| LinkProfile {
                rate_bps: 10_000_000_000,
                loss: some(0.05),
                duplication: some(0.03),
                reordering: some(0.05),
                corruption: some(0.02),
                ..LinkProfile::default()
            });
            self.sim.set_profile(LinkId(link as u32), profiles);
        }
    }

    fn slice(key: MemoryKey, message: &Message) -> LocalSlice {
        match message.length {
            0 => LocalSlice::EMPTY,
            length => LocalSlice {
                key,
                offset: message.offset,
                length,
            },
        }
    }

    /// Posts the receives of all messages in the order of sending.
    fn post_receives(&mut self) {
        for (host, name) in self.hosts.iter().enumerate() {
            for (i, _) in self.messages.iter().enumerate().filter(|(_, m)| m.host != host) {
                let wr = self.receive(host, i);
                let posted = self.sim.with_endpoint(name, |e, _| e.post_recv(qpn(host), wr));
                posted.expect("a host").expect("posted");
            }
        }
    }

    /// Posts the messages of the next host: all up to that of another host.
    fn begin(&mut self) -> usize {
        let host = self.messages[self.begun].host;
        if self.numbers == AnySource::Synchronized {
            self.end_turns();
            assert!(!self.senders.contains(&host), "it has all its ACKs");
            self.synchronize(host, self.begun);
            self.senders.push(host);
        }
        while let Some(message) = self.messages.get(self.begun).filter(|m| m.host == host) {
            let (va, rkey, imm) = (VA_BASE + message.offset, 0xDEAD, self.begun as u32);
            let op = match message.write {
                true => SendOp::WriteImm { va, rkey, imm },
                false => SendOp::SendImm(imm),
            };
            let wr = SendWr::new(self.begun as u64, op, Self::slice(self.keys[host][0], message));
            let posted = self
                .sim
                .with_endpoint(&self.hosts[host], |e, _| e.post_send(qpn(host), wr));
            posted.expect("a host").expect("posted");
            self.begun += 1;
        }
        host
    }

    /// Messages that host `host` has received.
    fn received(&self, host: usize) -> usize {
        let completions = self.sim.completions(&self.hosts[host]).iter();
        completions
            .filter(|(_, c)| matches!(c.op, CompletionOp::Recv | CompletionOp::RecvWriteImm))
            .count()
    }

    fn run_until(&mut self, seed: u64, done: impl Fn(&Self) -> bool) {
        let deadline = self.sim.now() + Nanos::from_millis(500);
        while !done(self) {
            let step = self.sim.now() + Nanos::from_micros(50);
            self.sim.run_until(step, |_| false);
            self.end_turns();
            assert!(
                self.sim.now() < deadline,
                "seed {seed}: it never ends: {}",
                self.progress()
            );
        }
        let failed = |h: &String| {
            let mut all = self.sim.completions(h).iter();
            all.any(|(_, c)| c.status != Status::Success)
        };
        assert!(!self.hosts.iter().any(failed), "seed {seed}: {}", self.progress());
    }

    fn progress(&self) -> String {
        let status = |(i, h): (usize, &String)| {
            let status = self.sim.endpoint(h).and_then(|e| e.qp_status(qpn(i)).ok());
            format!("\n{h}: {} completions, {status:?}", self.sim.completions(h).len())
        };
        self.hosts.iter().enumerate().map(status).collect()
    }

    fn check(&self, seed: u64) {
        for (host, name) in self.hosts.iter().enumerate() {
            let endpoint = self.sim.endpoint(name).expect("a host");
            for (write, key) in [(true, self.keys[host][1]), (false, self.keys[host][2])] {
                let mut wanted = vec![CANARY; self.bytes.len()];
                for m in self
                    .messages
                    .iter()
                    .filter(|m| m.host != host && m.write == write)
                {
                    let range = m.offset as usize..m.offset as usize + m.length as usize;
                    wanted[range.clone()].copy_from_slice(&self.bytes[range]);
                }
                assert!(
                    endpoint.memory(key).expect("memory") == wanted,
                    "seed {seed}: {name} has other bytes"
                );
            }
        }
    }

    /// Packets that switches have repeated.
    fn resent(&self) -> u64 {
        let engines = self.topology.switches().filter_map(|s| self.sim.engine(&s.name));
        let status = engines.filter_map(|engine| engine.group_status(MCST));
        status.map(|status| status.counters.resent).sum()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        let engines = self.topology.switches().filter_map(|s| self.sim.engine(&s.name));
        let drops = engines.map(|engine| {
            let mut snapshot = CountersSnapshot::with_capacity(4, 64);
            engine.snapshot(&mut snapshot);
            snapshot.drops[reason]
        });
        drops.sum()
    }
}

fn topology(rng: &mut ChaCha8Rng) -> Topology {
    match rng.random_range(0..3) {
        0 => Topology::star(4),
        1 => Topology::leaf_spine(3, 1, 2),
        _ => Topology::fat_tree(4),
    }
    .expect("a fabric")
}

fn messages(rng: &mut ChaCha8Rng, hosts: usize, pmtu: Pmtu) -> Vec<Message> {
    let mut offset = 0;
    let mut all = Vec::new();
    for _ in 0..rng.random_range(2..8) {
        let host = rng.random_range(0..hosts);
        for _ in 0..rng.random_range(1..4) {
            let length = rng.random_range(0..pmtu.bytes() as u32 * 20);
            let write = rng.random();
            all.push(Message {
                host,
                write,
                offset,
                length,
            });
            offset += u64::from(length);
        }
    }
    all
}

/// The next host sends as soon as it has received everything, when others may still lack it.
#[test]
fn hosts_send_in_turn_under_faults() {
    let mut resent = 0;
    for seed in 0..150 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let pmtu = *[Pmtu::B256, Pmtu::B1024, Pmtu::B4096].choose(rng).expect("some");
        let first = Psn::new(if rng.random() {
            Psn::MODULUS - 20
        } else {
            rng.random()
        });
        let (topology, count) = (topology(rng), rng.random_range(2..5));
        let messages = messages(rng, count, pmtu);
        let rings = [4, 16, 256].map(|slots| RepairRule {
            slots,
            ack_timeout_us: 1_000,
        });
        let repair = seed.is_multiple_of(3).then(|| rings[seed as usize / 3 % 3]);
        // Hosts with the numbers of the group synchronize them where no switch repairs.
        let numbers = AnySource::ALL[usize::from(seed % 3 == 1)];
        let net = Net::new(seed, topology, count, messages, (pmtu, first, numbers), repair);
        let bridged = numbers == AnySource::Bridged;
        let mut net = if bridged { net.in_turn(pmtu, first) } else { net };
        if rng.random_bool(0.8) {
            net.faults(rng);
        }
        net.post_receives();
        while net.begun < net.messages.len() {
            let next = net.messages[net.begun].host;
            let before = net.messages[..net.begun]
                .iter()
                .filter(|m| m.host != next)
                .count();
            // Before it sends again, it has all ACKs and is ready to receive.
            net.run_until(seed, |net| {
                net.received(next) == before && !net.senders.contains(&next)
            });
            net.begin();
        }
        net.run_until(seed, |net| {
            let sent = net.hosts.iter().map(|h| net.sim.completions(h).len());
            sent.sum::<usize>() == net.hosts.len() * net.messages.len()
        });
        net.check(seed);
        let watch = net.sim.watch();
        assert_eq!(watch.violations, [""; 0], "seed {seed}");
        assert!(!bridged || watch.completed == net.messages.len(), "seed {seed}");
        resent += net.resent();
    }
    assert!(resent > 1000, "{resent}");
}

/// Two hosts send at once: the conflict is reported, and both messages arrive everywhere, one after the other.
#[test]
fn a_conflict_is_reported_and_nothing_is_lost() {
    for topology in [Topology::star(4), Topology::leaf_spine(2, 1, 2)] {
        let message = |host, offset| Message {
            host,
            write: true,
            offset,
            length: 100_000,
        };
        let messages = vec![message(0, 0), message(1, 100_000)];
        let mut net = Net::new(
            3,
            topology.expect("a fabric"),
            4,
            messages,
            (Pmtu::B1024, Psn::new(0), AnySource::Bridged),
            None,
        );
        net.post_receives();
        net.begin();
        net.begin();
        net.run_until(3, |net| {
            let sent = net.hosts.iter().map(|h| net.sim.completions(h).len());
            sent.sum::<usize>() == 8
        });
        net.check(3);
        assert!(net.drops(DropReason::NotSource) > 0);
        let switches: Vec<String> = net.topology.switches().map(|s| s.name.clone()).collect();
        let mut events = Vec::new();
        for switch in &switches {
            net.sim.with_engine(switch, |engine, _| {
                while let Some(event) = engine.pop_event() {
                    events.push(event.kind);
                }
            });
        }
        let conflict = |kind: &&EventKind| matches!(kind, EventKind::SourcesCompete { .. });
        assert!(events.iter().filter(conflict).count() >= 1, "{events:?}");
    }
}

/// With the numbers of the group, who sends out of turn is not heard: the source loses nothing to it, and nobody has a byte of the other one.
#[test]
fn with_the_numbers_of_the_group_who_sends_out_of_turn_is_not_heard() {
    for (seed, topology) in [(4, Topology::star(4)), (5, Topology::leaf_spine(2, 1, 2))] {
        let message = |host, offset| Message {
            host,
            write: false,
            offset,
            length: 1_000_000,
        };
        let messages = vec![message(0, 0), message(1, 1_000_000)];
        let numbers = (Pmtu::B1024, Psn::new(Psn::MODULUS - 9), AnySource::Synchronized);
        let mut net = Net::new(seed, topology.expect("a fabric"), 4, messages, numbers, None);
        net.post_receives();
        // The other one is posted by hand, and must not arrive.
        net.messages.truncate(1);
        net.begin();
        // Some packets make it the source.
        let begun = net.sim.now() + Nanos::from_micros(20);
        net.sim.run_until(begun, |_| false);
        let local = Net::slice(net.keys[1][0], &message(1, 1_000_000));
        let wr = SendWr::new(9, SendOp::Send, local);
        let posted = net
            .sim
            .with_endpoint(&net.hosts[1], |e, _| e.post_send(qpn(1), wr));
        posted.expect("a host").expect("posted");
        let through = |net: &Net| [0, 2, 3].map(|host| net.sim.completions(&net.hosts[host]).len());
        net.run_until(seed, |net| through(net) == [1, 1, 1] && net.received(1) == 1);
        net.check(seed);
        assert!(net.drops(DropReason::NotSource) > 0, "seed {seed}");
        let later = net.sim.now() + Nanos::from_millis(20);
        net.sim.run_until(later, |_| false);
        assert_eq!(through(&net), [1, 1, 1], "seed {seed}: it is heard after all");
    }
}

/// Without faults, no packet is sent twice when hosts take turns at one switch, and none is refused.
#[test]
fn turns_at_one_switch_repeat_nothing() {
    let messages = (0..8).map(|i| Message {
        host: i % 4,
        write: i % 3 == 0,
        offset: 5_000 * i as u64,
        length: 5_000,
    });
    let topology = Topology::star(4).expect("a star");
    let mut net = Net::new(
        1,
        topology,
        4,
        messages.collect(),
        (Pmtu::B1024, Psn::new(Psn::MODULUS - 7), AnySource::Bridged),
        None,
    );
    net.post_receives();
    while net.begun < net.messages.len() {
        net.begin();
        let begun = net.begun;
        net.run_until(1, |net| {
            let all = net.hosts.iter().map(|h| net.sim.completions(h).len());
            all.sum::<usize>() == 4 * begun
        });
    }
    net.check(1);
    let repeated = |h: &String| net.sim.endpoint(h).map_or(0, |e| e.stats().retransmits);
    assert_eq!(net.hosts.iter().map(repeated).sum::<u64>(), 0);
    assert_eq!(net.drops(DropReason::NotSource), 0);
}
