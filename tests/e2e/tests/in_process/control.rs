//! Controller, agents and dataplanes in one process, over memory links and loopback gRPC: what the switches report
//! makes the fabric, groups are installed on all switches or none, and the frames of their source arrive.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use castnet_agent::Agent;
use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_port::{Batch, MemEnd, MemLink, MemLinkConfig, MemPort, Pool, PoolBuf, PoolConfig, Port, Sides};
use castnet_proto::access::{Access, Roles};
use castnet_proto::convert::violations;
use castnet_proto::transport::{Address, Security, TlsFiles, connect};
use castnet_proto::v1;
use castnet_proto::v1::controller_client::ControllerClient;
use castnet_wire::build::emit_arp;
use castnet_wire::{
    Arp, Bth, Ethernet, ExtHeaders, MacAddr, Nanos, Network, Opcode, Parsed, PortId, Psn, Qpn, RoceHeader,
    emit_roce, parse_frame,
};
use castnet_worker::{Dataplane, DataplaneConfig, PortConfig};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tonic::Code;
use tonic::transport::Channel;

/// Longer than anything here takes; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Switches by their ports: who is behind each.
const FABRIC: [(&str, &[&str]); 3] = [
    ("spine", &["leaf1", "leaf2"]),
    ("leaf1", &["h1", "h2", "spine"]),
    ("leaf2", &["spine", "h3"]),
];

struct Lab {
    _agents: Vec<Agent>,
    dataplanes: Vec<Arc<Dataplane>>,
    config: Config,
    hosts: Vec<Host>,
}

/// A host, played by the test.
struct Host {
    name: &'static str,
    pool: Pool,
    port: MemPort,
    mac: MacAddr,
    ip: Ipv4Addr,
}

impl Host {
    fn new(name: &'static str, end: &MemEnd) -> Self {
        let last = name.as_bytes()[1] - b'0';
        let pool = Pool::new(PoolConfig {
            buffers: 64,
            bodies: 64,
            frame_max: 2048,
        });
        let port = end.open(&pool, Sides::Both);
        Self {
            name,
            pool,
            port,
            mac: MacAddr([2, 0, 0, 0, 0, last]),
            ip: Ipv4Addr::new(10, 0, 0, last),
        }
    }

    fn send(&mut self, frame: &[u8]) {
        let mut batch = Batch::new();
        batch.push(self.pool.copy_from(frame).unwrap());
        self.port.send(&mut batch);
    }

    /// Says who it is, as hosts do when their link comes up.
    fn announce(&mut self) {
        let mut frame = [0; 60];
        emit_arp(
            &mut frame,
            MacAddr::BROADCAST,
            &Arp::request(self.mac, self.ip, self.ip),
        )
        .unwrap();
        self.send(&frame);
    }

    fn joining(&self, group: &str, qpn: u32) -> v1::JoinGroupRequest {
        let connection = v1::Connection {
            ip: self.ip.to_string(),
            mac: self.mac.to_string(),
            qpn,
            ..Default::default()
        };
        v1::JoinGroupRequest {
            group: group.into(),
            host: self.name.into(),
            connection: Some(connection),
            ..Default::default()
        }
    }

    /// A SEND of one packet to a group.
    fn data(&self, mcst_id: Ipv4Addr, psn: u32) -> Vec<u8> {
        let ethernet = Ethernet {
            dst: MacAddr([2; 6]),
            src: self.mac,
            vlan: None,
            ethertype: 0x0800,
        };
        let bth = Bth {
            ack_request: true,
            ..Bth::new(Opcode::SendOnly, Qpn::VIRTUAL, Psn::new(psn))
        };
        let mut frame = vec![0; 256];
        let network = Network::v4(self.ip, mcst_id);
        let n = emit_roce(
            &mut frame,
            &ethernet,
            &network,
            0xC000,
            &bth,
            &ExtHeaders::NONE,
            b"to all",
        )
        .unwrap();
        frame.truncate(n);
        frame
    }

    /// The next RoCE frame.
    async fn receive(&mut self) -> RoceHeader {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut batch: Batch<PoolBuf> = Batch::new();
        loop {
            self.port.receive(&mut batch);
            for frame in batch.drain(..) {
                let bytes = frame.to_vec();
                if let Ok(Parsed::Roce(header)) = parse_frame(&bytes, bytes.len()) {
                    return header;
                }
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "nothing came to {}",
                self.name
            );
            tokio::task::yield_now().await;
        }
    }
}

impl Lab {
    async fn new(groups_max: impl Fn(&str) -> usize) -> Self {
        Self::protected("http://127.0.0.1:0", &Security::default(), groups_max).await
    }

    /// Agents and controller listen there, and are protected so.
    async fn protected(listen: &str, security: &Security, groups_max: impl Fn(&str) -> usize) -> Self {
        let listen: Address = listen.parse().unwrap();
        let mut ends: Vec<(&str, &str, MemEnd)> = Vec::new();
        for (switch, behind) in FABRIC {
            for far in behind {
                if !ends.iter().any(|(a, b, _)| (a, b) == (&switch, far)) {
                    let names =
                        MemLinkConfig::between(&format!("{switch}-{far}"), &format!("{far}-{switch}"));
                    let (near, other) = MemLink::pair(&names.mtu(1500));
                    ends.push((switch, far, near));
                    ends.push((far, switch, other));
                }
            }
        }
        let mut take = |at: &str, towards: &str| {
            let i = ends
                .iter()
                .position(|(a, b, _)| (*a, *b) == (at, towards))
                .unwrap();
            ends.remove(i).2
        };
        let (mut agents, mut dataplanes, mut switches) = (Vec::new(), Vec::new(), Vec::new());
        for (name, behind) in FABRIC {
            let port = |(n, far): (usize, &&str)| {
                PortConfig::new(
                    PortId::new(n as u8).unwrap(),
                    format!("to-{far}"),
                    take(name, far),
                )
            };
            let mut config = DataplaneConfig::new(name, behind.iter().enumerate().map(port).collect());
            config.engine.lldp_interval = Some(Nanos::from_millis(100));
            config.engine.groups_max = groups_max(name);
            let dataplane = tokio::task::spawn_blocking(move || Dataplane::start(config))
                .await
                .unwrap()
                .unwrap();
            let dataplane = Arc::new(dataplane);
            let access = Arc::new(Access::new(roles(), None));
            let agent = Agent::start_for(dataplane.clone(), &listen, security, access);
            let agent = agent.await.unwrap();
            switches.push(SwitchConfig {
                name: name.into(),
                agent: agent.address().clone(),
            });
            agents.push(agent);
            dataplanes.push(dataplane);
        }
        let hosts = [("h1", "leaf1"), ("h2", "leaf1"), ("h3", "leaf2")];
        let hosts = hosts
            .map(|(name, at)| Host::new(name, &take(name, at)))
            .into_iter()
            .collect();
        let config = Config {
            listen,
            security: security.clone(),
            roles: roles(),
            ..Config::new(switches)
        };
        Self {
            _agents: agents,
            dataplanes,
            config,
            hosts,
        }
    }

    fn rules(&self) -> usize {
        self.dataplanes.iter().map(|d| d.rules().len()).sum()
    }

    /// All hosts join, the first one as source; how that ends for each.
    async fn join(&mut self, client: &mut ControllerClient<Channel>, qpn: u32) -> Vec<v1::GroupState> {
        let mut streams = Vec::new();
        for host in &mut self.hosts {
            host.announce();
            streams.push(
                client
                    .join_group(host.joining("g", qpn))
                    .await
                    .unwrap()
                    .into_inner(),
            );
        }
        let mut last = Vec::new();
        for mut stream in streams {
            let mut state = None;
            while let Some(next) = tokio::time::timeout(PATIENCE, stream.message())
                .await
                .expect("in time")
                .unwrap()
            {
                state = Some(next);
            }
            last.push(state.expect("a state"));
        }
        last
    }
}

async fn start(config: &Config) -> (Controller, ControllerClient<Channel>) {
    let controller = Controller::start(config.clone()).await.unwrap();
    let channel = connect(controller.address().unwrap(), &config.security)
        .await
        .unwrap();
    (controller, ControllerClient::new(channel))
}

fn creation() -> v1::CreateGroupRequest {
    let member = |host: &str| v1::NewMember {
        host: host.into(),
        connection: None,
    };
    let members = vec![member("h1"), member("h2"), member("h3")];
    v1::CreateGroupRequest {
        name: "g".into(),
        source: "h1".into(),
        members,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_found_out_installed_used_kept_and_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = Lab::new(|_| 16).await;
    lab.config.store = Some(folder.path().join("controller.redb"));
    let (controller, mut client) = start(&lab.config).await;
    client.create_group(creation()).await.unwrap();
    let states = lab.join(&mut client, 0x11).await;
    for state in &states {
        assert_eq!(state.phase(), v1::GroupPhase::Active, "{}", state.reason);
    }
    assert_eq!(lab.rules(), 3);
    let (mcst_id, psn) = (states[0].mcst_id.parse().unwrap(), states[0].start_psn);

    // One frame goes in, and one comes out at each receiver, as from the group to the receiver's own queue pair.
    let frame = lab.hosts[0].data(mcst_id, psn);
    lab.hosts[0].send(&frame);
    for host in &mut lab.hosts[1..] {
        let got = host.receive().await;
        assert_eq!(
            (got.bth.dest_qp, got.bth.psn),
            (Qpn::new(0x11), Psn::new(psn)),
            "{}",
            host.name
        );
    }

    // The controller goes and comes back: tables and the group's state stay as they are.
    let tables: Vec<u64> = lab.dataplanes.iter().map(|d| d.generation()).collect();
    controller.stop().await;
    let (_controller, mut client) = start(&lab.config).await;
    let mut events = client
        .watch_events(v1::WatchControllerEventsRequest::default())
        .await
        .unwrap()
        .into_inner();
    loop {
        let group = client
            .get_group(v1::GetGroupRequest { group: "g".into() })
            .await
            .unwrap()
            .into_inner();
        if group.tree.len() == 3 && group.tree.iter().all(|n| n.installed) {
            break;
        }
        tokio::time::timeout(PATIENCE, events.message())
            .await
            .expect("in time")
            .unwrap();
    }
    assert_eq!(
        lab.dataplanes.iter().map(|d| d.generation()).collect::<Vec<_>>(),
        tables
    );
    let frame = lab.hosts[0].data(mcst_id, psn + 1);
    lab.hosts[0].send(&frame);
    assert_eq!(lab.hosts[2].receive().await.bth.psn, Psn::new(psn + 1));

    let destroyed = client
        .destroy_group(v1::DestroyGroupRequest {
            group: "g".into(),
            ..Default::default()
        })
        .await
        .unwrap();
    assert!(destroyed.into_inner().complete);
    assert_eq!(lab.rules(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_without_room_leaves_nothing_on_any() {
    let mut lab = Lab::new(|switch| if switch == "spine" { 0 } else { 16 }).await;
    let (_controller, mut client) = start(&lab.config).await;
    client.create_group(creation()).await.unwrap();
    for state in lab.join(&mut client, 0x11).await {
        assert_eq!(state.phase(), v1::GroupPhase::Failed);
        assert!(
            state
                .reason
                .starts_with("switches.spine: refuses: rule: 0 groups"),
            "{}",
            state.reason
        );
    }
    assert_eq!(lab.rules(), 0);

    // The same in one go: refused whole, with the switch as the field.
    client
        .destroy_group(v1::DestroyGroupRequest {
            group: "g".into(),
            ..Default::default()
        })
        .await
        .unwrap();
    let mut request = creation();
    for (member, host) in request.members.iter_mut().zip(&lab.hosts) {
        member.connection = host.joining("g", 0x12).connection;
    }
    let refused = client.create_group(request).await.unwrap_err();
    assert_eq!(
        (refused.code(), violations(&refused)[0].field.as_str()),
        (Code::ResourceExhausted, "switches.spine")
    );
    assert_eq!(lab.rules(), 0);
}

/// Everything over TLS with certificates at both ends; who shows one of another authority does not get in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_certificates_agents_controller_and_hosts_meet() {
    let folder = tempfile::tempdir().unwrap();
    let security = Security {
        tls: Some(certificates(folder.path())),
        ..Security::default()
    };
    let mut lab = Lab::protected("https://127.0.0.1:0", &security, |_| 16).await;
    let (controller, mut client) = start(&lab.config).await;
    client.create_group(creation()).await.unwrap();
    for state in lab.join(&mut client, 0x11).await {
        assert_eq!(state.phase(), v1::GroupPhase::Active, "{}", state.reason);
    }
    let mut files = certificates(&folder.path().join("stranger"));
    files.ca = security.tls.as_ref().unwrap().ca.clone();
    let stranger = Security {
        tls: Some(files),
        ..Security::default()
    };
    for address in [controller.address().unwrap(), &lab.config.switches[0].agent] {
        // With TLS 1.3 the refusal may come at the first call only.
        if let Ok(channel) = connect(address, &stranger).await {
            let refused = ControllerClient::new(channel)
                .list_groups(v1::ListControllerGroupsRequest {})
                .await
                .unwrap_err();
            // What a broken connection comes to, and nothing that a service says.
            assert!(
                matches!(
                    refused.code(),
                    Code::Unavailable | Code::Unknown | Code::Cancelled
                ),
                "{address}: {refused}"
            );
        }
    }
}

/// The certificate of all is an operator's.
fn roles() -> Roles {
    Roles {
        operators: vec!["lab".into()],
        ..Roles::default()
    }
}

/// One authority, and one certificate for all.
fn certificates(folder: &std::path::Path) -> TlsFiles {
    std::fs::create_dir_all(folder).unwrap();
    let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let files = TlsFiles {
        ca: folder.join("ca"),
        cert: folder.join("cert"),
        key: folder.join("key"),
    };
    std::fs::write(&files.ca, authority.self_signed(&authority_key).unwrap().pem()).unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_string(), "lab".to_string()]).unwrap();
    let cert = params
        .signed_by(&key, &Issuer::new(authority, authority_key))
        .unwrap();
    std::fs::write(&files.cert, cert.pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}
