//! Groups that hosts register with MRP, through real switches: two leaves below a spine, each with two hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use castnet_agent::Agent;
use castnet_mrp::{Leader, LeaderConfig, Limits, Receiver};
use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
use castnet_port::{Batch, FrameBuf, MemEnd, MemLink, MemLinkConfig, MemPort, Pool, PoolConfig, Port, Sides};
use castnet_proto::convert::rule_to_proto;
use castnet_proto::transport::{Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use castnet_rules::{GroupRule, MulticastRule};
use castnet_topology::{End, Topology};
use castnet_wire::build::{emit_arp, emit_lldp};
use castnet_wire::mrp::DEFAULT_PORT;
use castnet_wire::{
    Arp, Datagram, DropReason, Lldp, LldpId, MacAddr, McstId, MrpBody, MrpMember, MrpPacket, MrpReason,
    MrpRefusal, Nanos, Pmtu, PortId, Qpn,
};
use castnet_worker::engine::{PortSet, RegistrationConfig, Said};
use castnet_worker::{Dataplane, DataplaneConfig, PortConfig};
use tonic::Code;

use crate::agent::{PATIENCE, mac, port};

const MCST_ID: McstId = McstId(Ipv4Addr::new(10, 200, 0, 1));

struct Host {
    pool: Pool,
    port: MemPort,
    n: usize,
    batch: Batch<castnet_port::PoolBuf>,
}

impl Host {
    fn new(end: &MemEnd, n: usize) -> Self {
        let pool = Pool::new(PoolConfig {
            buffers: 256,
            bodies: 256,
            frame_max: 2048,
        });
        let port = end.open(&pool, Sides::Both);
        Self {
            pool,
            port,
            n,
            batch: Batch::new(),
        }
    }

    fn send(&mut self, frame: &[u8]) {
        let mut batch = Batch::new();
        batch.push(self.pool.copy_from(frame).expect("a buffer"));
        self.port.send(&mut batch);
    }

    /// Lets all switches know this host.
    fn announce(&mut self) {
        let mut frame = [0; 60];
        let request = Arp::request(mac(self.n), ip(self.n), [10, 0, 0, 99].into());
        emit_arp(&mut frame, MacAddr::BROADCAST, &request).expect("a frame");
        self.send(&frame);
    }

    fn send_packet(&mut self, to: (MacAddr, Ipv4Addr), packet: &MrpPacket) {
        let datagram = Datagram {
            macs: (to.0, mac(self.n)),
            from: (ip(self.n), DEFAULT_PORT),
            to: (to.1, DEFAULT_PORT),
            payload: &packet.to_bytes(),
        };
        self.send(&datagram.to_frame());
    }

    /// The packets to this host, with their source addresses.
    fn receive(&mut self) -> Vec<(Ipv4Addr, MrpPacket)> {
        self.port.receive(&mut self.batch);
        let frames = self.batch.drain(..).map(|frame| frame.segments().concat());
        let packet = |frame: Vec<u8>| {
            let datagram = Datagram::parse(&frame).ok()?;
            let own = datagram.to == (ip(self.n), DEFAULT_PORT) && datagram.macs.0 == mac(self.n);
            let packet = MrpPacket::parse(datagram.payload).ok().filter(|_| own)?;
            Some((datagram.from.0, packet))
        };
        frames.filter_map(packet).collect()
    }
}

fn ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1)
}

fn member(n: usize) -> MrpMember {
    MrpMember {
        ip: ip(n),
        qpn: Qpn::new(0x100 + n as u32),
        source: n == 0,
    }
}

struct Lab {
    switches: BTreeMap<&'static str, (Arc<Dataplane>, Agent)>,
    hosts: Vec<Host>,
    started: Instant,
}

impl Lab {
    /// Hosts 0 and 1 at `leaf0`, 2 and 3 at `leaf1`, each at the port of its parity. Leaders may be at port 0 of a leaf.
    async fn new(limits: Limits) -> Self {
        let link = |a: &str, b: &str| MemLink::pair(&MemLinkConfig::between(a, b).mtu(1500));
        let mut ends: BTreeMap<&str, Vec<MemEnd>> = BTreeMap::new();
        let mut hosts = Vec::new();
        for n in 0..4 {
            let leaf = ["leaf0", "leaf1"][n / 2];
            let (ours, theirs) = link(&format!("{leaf}-{n}"), &format!("h{n}"));
            ends.entry(leaf).or_default().push(ours);
            hosts.push(Host::new(&theirs, n));
        }
        for leaf in ["leaf0", "leaf1"] {
            let (down, up) = link(leaf, &format!("spine-{leaf}"));
            ends.entry(leaf).or_default().push(down);
            ends.entry("spine").or_default().push(up);
        }
        let mut switches = BTreeMap::new();
        for (name, ends) in ends {
            let ports = ends.into_iter().enumerate();
            let ports = ports.map(|(n, end)| PortConfig::new(port(n), format!("p{n}"), end));
            let mut config = DataplaneConfig::new(name, ports.collect());
            config.engine.lldp_interval = Some(Nanos::from_millis(100));
            let all: PortSet = (0..3).map(port).collect();
            config.engine.registration = Some(RegistrationConfig {
                udp_port: DEFAULT_PORT,
                ports: if name == "spine" {
                    all
                } else {
                    all.without(port(1))
                },
                fabric: PortSet::default(),
                pool: vec!["10.200.0.0/16".parse().expect("a prefix")],
            });
            let start = tokio::task::spawn_blocking(move || Dataplane::start(config));
            let dataplane = Arc::new(start.await.unwrap().unwrap());
            let listen = "http://127.0.0.1:0".parse().unwrap();
            let agent = Agent::start(dataplane.clone(), &listen, &Security::default())
                .await
                .unwrap();
            agent.serve_mrp(limits, Vec::new()).expect("a thread");
            switches.insert(name, (dataplane, agent));
        }
        let mut lab = Self {
            switches,
            hosts,
            started: Instant::now(),
        };
        lab.until("all know each other", |lab| {
            lab.hosts.iter_mut().for_each(Host::announce);
            lab.switches.iter().all(|(name, (dataplane, _))| {
                let said: Vec<Said> = dataplane.neighbours().unwrap().iter().map(|n| n.said).collect();
                let switches = said
                    .iter()
                    .filter(|said| matches!(said, Said::Lldp { .. }))
                    .count();
                said.len() - switches == 4 && switches == if *name == "spine" { 2 } else { 1 }
            })
        });
        lab
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "not in time: {what}");
            std::thread::yield_now();
        }
    }

    fn dataplane(&self, name: &str) -> Arc<Dataplane> {
        self.switches[name].0.clone()
    }

    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// Sends a packet of host `n` to the address of a group.
    fn send_up(&mut self, n: usize, mcst_id: McstId, packet: &MrpPacket) {
        let leaf = self.dataplane(["leaf0", "leaf1"][n / 2]);
        let mac = leaf.port_mac(port(n % 2)).expect("a port");
        self.hosts[n].send_packet((mac, mcst_id.0), packet);
    }

    fn leader(&self, number: u32) -> Leader {
        let config = LeaderConfig {
            mcst_id: MCST_ID,
            number,
            pmtu: Pmtu::B1024,
            source: member(0),
            receivers: (1..4).map(ip).collect(),
            repeat: Nanos::from_millis(50),
            refresh: Nanos::from_millis(200),
            patience: Nanos::from_secs(20),
            refusals: Nanos::from_secs(20),
        };
        Leader::new(self.now(), config)
    }

    /// One step of the leader and of the receivers.
    fn step(&mut self, leader: &mut Leader, receivers: &mut BTreeMap<usize, Receiver>) {
        let now = self.now();
        let packets = leader.handle_timeout(now).expect("a registration").to_vec();
        packets.iter().for_each(|packet| self.send_up(0, MCST_ID, packet));
        for (from, packet) in self.hosts[0].receive() {
            leader.handle(now, from, &packet);
        }
        for (n, receiver) in receivers {
            let host = &mut self.hosts[*n];
            let join = receiver.handle_timeout(now).expect("in time");
            let received = host.receive().into_iter();
            let answers: Vec<MrpPacket> = received
                .filter_map(|(from, packet)| receiver.handle(from, &packet))
                .collect();
            for packet in join.iter().chain(&answers) {
                host.send_packet((mac(0), ip(0)), packet);
            }
        }
    }

    fn register(&mut self, number: u32) -> Leader {
        let mut leader = self.leader(number);
        let times = (Nanos::from_millis(50), Nanos::from_secs(20));
        let group = (MCST_ID, ip(0));
        let receiver = |n| (n, Receiver::new(self.now(), group, (member(n), None), times));
        let mut receivers: BTreeMap<usize, Receiver> = (1..4).map(receiver).collect();
        self.until("registration", |lab| {
            lab.step(&mut leader, &mut receivers);
            leader.is_registered()
        });
        leader
    }

    fn rules(&self) -> BTreeMap<&'static str, GroupRule> {
        let rules = self
            .switches
            .iter()
            .filter_map(|(name, (d, _))| Some((*name, d.rule(MCST_ID)?)));
        rules.collect()
    }

    /// The same fabric for the planner, with hosts named as MRP names them.
    fn topology(&self) -> Topology {
        let mut topology = Topology::new();
        for (name, (dataplane, _)) in &self.switches {
            let macs = (0..3).filter_map(|n| Some((n, dataplane.port_mac(PortId::new(n)?)?.0)));
            topology
                .add_switch(name, macs.collect::<Vec<_>>())
                .expect("a switch");
        }
        for n in 0..4 {
            let (name, leaf) = (ip(n).to_string(), ["leaf0", "leaf1"][n / 2]);
            topology
                .add_host(&name, Some(ip(n)), Some(mac(n).0))
                .expect("a host");
            topology
                .connect(End::host(name), End::port(leaf, n as u8 % 2), 1500)
                .expect("a link");
        }
        for (n, leaf) in ["leaf0", "leaf1"].into_iter().enumerate() {
            topology
                .connect(End::port(leaf, 2), End::port("spine", n as u8), 1500)
                .expect("a link");
        }
        topology
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registered_group_has_the_tables_that_the_controllers_plan_installs() {
    let mut lab = Lab::new(Limits::default()).await;
    lab.register(7);
    let members = (0..4)
        .map(|n| Member::new(&ip(n).to_string(), member(n).qpn))
        .collect();
    let name = castnet_mrp::group_name(MCST_ID);
    let mut request = Request::multicast(&name, MCST_ID, Pmtu::B1024, members, MulticastRule::default());
    request.generation = 7;
    let plan = plan(&lab.topology(), &LinkLoad::default(), &RoomTable::new(), &request).expect("a plan");
    assert!(
        lab.rules()
            .keys()
            .copied()
            .eq(plan.rules.keys().map(String::as_str))
    );
    for (switch, rule) in &plan.rules {
        // The path of the controller, in the name of the leader: nothing changes.
        let (_, agent) = &lab.switches[switch.as_str()];
        let mut client = AgentClient::new(connect(agent.address(), &Security::default()).await.unwrap());
        let mut request = v1::InstallGroupRequest {
            rule: Some(rule_to_proto(rule)),
            owner: format!("MRP leader {}", ip(0)),
        };
        let answer = client.install_group(request.clone()).await.unwrap_or_else(|e| {
            panic!(
                "{switch} runs {:?}, planned is {rule:?}: {e}",
                lab.rules()[switch.as_str()]
            )
        });
        assert_eq!(answer.into_inner().outcome(), v1::InstallOutcome::Unchanged);
        // Others cannot take it over.
        request.owner = "controller".into();
        assert_eq!(
            client.install_group(request).await.unwrap_err().code(),
            Code::AlreadyExists
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_register_is_limited_and_what_is_refused_is_counted() {
    let limits = Limits {
        groups_per_leader: 1,
        ..Limits::default()
    };
    let mut lab = Lab::new(limits).await;
    let mut leader = lab.register(1);
    let leaf = lab.dataplane("leaf0");
    let refused = || leaf.drops().unwrap()[DropReason::RegistrationRefused];
    let registration = |n: usize| MrpPacket {
        number: 9,
        body: MrpBody::Members(
            castnet_wire::MrpPart {
                sequence: 0,
                total: 1,
                pmtu: Pmtu::B1024,
            },
            vec![
                MrpMember {
                    source: true,
                    ..member(n)
                },
                MrpMember {
                    source: false,
                    ..member(3)
                },
            ],
        ),
    };
    // A second group of the same leader: it gets the reason.
    let other = McstId([10, 200, 0, 2].into());
    let refusal = MrpBody::Refuse(other, MrpRefusal::of(MrpReason::TooManyGroups));
    let before = refused();
    lab.send_up(0, other, &registration(0));
    lab.until("a refusal", |lab| {
        let mut received = lab.hosts[0].receive().into_iter();
        received.any(|(from, packet)| (from, packet.body) == (other.0, refusal.clone()))
    });
    lab.until("a count", |_| refused() == before + 1);
    // From a port without the right. Other addresses are switched as ever.
    lab.send_up(1, other, &registration(1));
    lab.until("a count", |_| refused() == before + 2);
    assert_eq!(leaf.rule(other), None);
    // A packet that is none, with right checksums.
    let malformed = || leaf.drops().unwrap()[DropReason::Malformed];
    let before = malformed();
    let to = leaf.port_mac(port(0)).expect("a port");
    let frame = Datagram {
        macs: (to, mac(0)),
        from: (ip(0), DEFAULT_PORT),
        to: (MCST_ID.0, DEFAULT_PORT),
        payload: b"no packet",
    };
    lab.hosts[0].send(&frame.to_frame());
    lab.until("a count", |_| malformed() == before + 1);
    // Withdrawal frees the state on all switches.
    let withdraw = leader.withdraw();
    lab.send_up(0, MCST_ID, &withdraw);
    // It also reaches all receivers. If it came later, the receivers of the next registration would take it for theirs.
    let mut informed = BTreeSet::new();
    lab.until("withdrawn", |lab| {
        for n in 1..4 {
            let packets = lab.hosts[n].receive();
            if packets.iter().any(|(_, packet)| packet.body == MrpBody::Withdraw) {
                informed.insert(n);
            }
        }
        lab.rules().is_empty() && informed.len() == 3
    });
    leader = lab.register(2);
    assert!(leader.is_registered() && lab.rules().len() == 3);
}

/// LLDP of a host made it a switch, which speaks for any leader, and whose groups do not count at its port.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_the_topology_file_is_no_switch_by_lldp() {
    let mut lab = Lab::new(Limits::default()).await;
    let leaf = lab.dataplane("leaf0");
    let mut frame = [0; 512];
    let said = Lldp {
        chassis: LldpId::Text("s9"),
        port: LldpId::Text("p0"),
        ttl_secs: 120,
        system_name: "s9",
    };
    let length = emit_lldp(&mut frame, mac(0), &said).expect("a frame");
    lab.hosts[0].send(&frame[..length]);
    lab.until("LLDP", |_| {
        let neighbours = leaf.neighbours().unwrap();
        let mut there = neighbours.iter().filter(|n| n.port == port(0));
        there.any(|n| matches!(n.said, Said::Lldp { .. }))
    });
    let address = lab.switches["leaf0"].1.address().clone();
    let mut client = AgentClient::new(connect(&address, &Security::default()).await.unwrap());
    let guard = v1::SetSourceGuardRequest {
        hosts: vec![v1::HostPort {
            port: 0,
            ip: ip(0).to_string(),
        }],
        prefixes: Vec::new(),
    };
    client.set_source_guard(guard).await.unwrap();
    let leader = MrpMember {
        source: true,
        ..member(8)
    };
    let part = castnet_wire::MrpPart {
        sequence: 0,
        total: 1,
        pmtu: Pmtu::B1024,
    };
    let registration = MrpPacket {
        number: 9,
        body: MrpBody::Members(part, vec![leader, member(3)]),
    };
    let frame = Datagram {
        macs: (leaf.port_mac(port(0)).expect("a port"), mac(0)),
        from: (leader.ip, DEFAULT_PORT),
        to: (MCST_ID.0, DEFAULT_PORT),
        payload: &registration.to_bytes(),
    };
    lab.hosts[0].send(&frame.to_frame());
    lab.until("a refusal", |_| {
        assert_eq!(leaf.rule(MCST_ID), None);
        leaf.drops().unwrap()[DropReason::RegistrationRefused] == 1
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_without_its_leader_expires() {
    let limits = Limits {
        lifetime: Nanos::from_secs(1),
        ..Limits::default()
    };
    let mut lab = Lab::new(limits).await;
    lab.register(1);
    lab.until("expiry", |lab| lab.rules().is_empty());
    assert_eq!(lab.dataplane("spine").groups_per_port(), [0; PortId::COUNT]);
}
