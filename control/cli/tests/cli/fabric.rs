//! Real switches with memory links, their agents and a controller, in this process, and the hosts at them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use assert_cmd::Command;
use castnet_agent::Agent;
use castnet_comm::{CommConfig, Communicator, Fallback};
use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_port::{BoxPort, MemEnd, MemLink, MemLinkConfig, Pool, PoolConfig, PortSpec, Sides};
use castnet_proto::transport::{Controllers, Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::controller_client::ControllerClient;
use castnet_rnic::{SoftRnic, SoftRnicConfig};
use castnet_topology::Topology;
use castnet_wire::{MacAddr, PortId, Qpn};
use castnet_worker::{Dataplane, DataplaneConfig, PortConfig};
use serde_json::Value;
use tonic::Streaming;
use tonic::transport::Channel;

/// Longer than anything here takes; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Two leaves with two hosts each, one spine.
pub(crate) struct Fabric {
    pub(crate) topology: Topology,
    /// Of the controller.
    pub(crate) config: Config,
    controller: Option<Controller>,
    /// Where hosts find it.
    pub(crate) controllers: Controllers,
    pub(crate) client: ControllerClient<Channel>,
    pub(crate) switches: Vec<(Agent, Arc<Dataplane>)>,
    pub(crate) hosts: Vec<MemEnd>,
}

impl Fabric {
    pub(crate) async fn new() -> Self {
        let topology = Topology::leaf_spine(2, 1, 2).expect("a fabric");
        let link = |a: &str, b: &str| {
            let mut config = MemLinkConfig::between(a, b).mtu(1500);
            if let Some(mac) = topology.host(b).and_then(|host| host.mac) {
                config.macs[1] = MacAddr(mac);
            }
            MemLink::pair(&config)
        };
        let (mut leaves, mut hosts, mut spine) = (Vec::new(), Vec::new(), Vec::new());
        for leaf in 0..2 {
            let mut ends = Vec::new();
            for host in 0..2 {
                let (ours, theirs) = link(&format!("leaf{leaf}p{host}"), &format!("h{}", 2 * leaf + host));
                ends.push(ours);
                hosts.push(theirs);
            }
            let (ours, theirs) = link(&format!("leaf{leaf}p2"), &format!("spine0p{leaf}"));
            ends.push(ours);
            spine.push(theirs);
            leaves.push((format!("leaf{leaf}"), ends));
        }
        leaves.push(("spine0".to_owned(), spine));
        let (mut switches, mut configs) = (Vec::new(), Vec::new());
        for (name, ends) in leaves {
            let port = |(n, end): (usize, MemEnd)| {
                let id = PortId::new(n as u8).expect("a port");
                PortConfig::new(id, format!("{name}p{n}"), end)
            };
            let ports = ends.into_iter().enumerate().map(port).collect();
            let config = DataplaneConfig::new(name.clone(), ports);
            let start = tokio::task::spawn_blocking(move || Dataplane::start(config));
            let dataplane = Arc::new(start.await.expect("no panic").expect("a switch"));
            let listen = "http://127.0.0.1:0".parse().expect("an address");
            let agent = Agent::start(dataplane.clone(), &listen, &Security::default())
                .await
                .expect("an agent");
            configs.push(SwitchConfig {
                name,
                agent: agent.address().clone(),
            });
            switches.push((agent, dataplane));
        }
        let mut config = Config::new(configs);
        config.topology = Some(topology.clone());
        let (controller, client) = start(&config).await;
        Self {
            topology,
            client,
            controllers: controller.address().expect("an address").clone().into(),
            config,
            controller: Some(controller),
            switches,
            hosts,
        }
    }

    pub(crate) fn controller(&self) -> &Controller {
        self.controller.as_ref().expect("it runs")
    }

    /// Stops the controller. Hosts find the next one only if they know its address.
    pub(crate) async fn stop_controller(&mut self) {
        self.controller.take().expect("it runs").stop().await;
    }

    /// Starts a controller with [`Self::config`] instead of the one that was stopped.
    pub(crate) async fn start_controller(&mut self) {
        let (controller, client) = start(&self.config).await;
        (self.controller, self.client) = (Some(controller), client);
    }

    pub(crate) fn rank(
        &self,
        job: &str,
        rank: u32,
        qpn: u32,
        settings: v1::CollectiveSettings,
    ) -> v1::InitGroupRequest {
        let host = format!("h{rank}");
        let known = self.topology.host(&host).expect("a host");
        let connection = v1::Connection {
            ip: known.ip.expect("an address").to_string(),
            mac: MacAddr(known.mac.expect("an address")).to_string(),
            qpn,
            ..Default::default()
        };
        v1::InitGroupRequest {
            job: job.into(),
            rank,
            size: 4,
            host,
            connection: Some(connection),
            sq_psn: 100 * rank,
            settings: Some(settings),
            lease_ms: 600_000,
            ..Default::default()
        }
    }

    pub(crate) async fn ranks(
        &self,
        job: &str,
        qpn: u32,
        settings: v1::CollectiveSettings,
    ) -> Vec<Streaming<v1::CollectiveState>> {
        let mut ranks = Vec::new();
        for rank in 0..4 {
            let request = self.rank(job, rank, qpn, settings.clone());
            let stream = self.client.clone().init_group(request).await.expect("a rank");
            ranks.push(stream.into_inner());
        }
        ranks
    }

    /// Opens the RNIC of a host, over its end of the link.
    pub(crate) fn rnic(&self, host: usize) -> impl FnOnce() -> SoftRnic<BoxPort> + Send + use<> {
        let end = self.hosts[host].clone();
        let known = self.topology.host(&format!("h{host}"));
        let ip = known.and_then(|h| h.ip).expect("an address");
        // As on a real host: a process that is started again has other queue pairs.
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let first_qpn = Qpn::new(0x100 * (1 + OPENED.fetch_add(1, Ordering::Relaxed)));
        move || {
            let pool = Pool::new(PoolConfig::default());
            let port = PortSpec::from(end).open(&pool, Sides::Both).expect("a port");
            let config = SoftRnicConfig {
                first_qpn,
                ..SoftRnicConfig::new(ip)
            };
            SoftRnic::new(port, pool, config).expect("an RNIC")
        }
    }

    /// What the binary says, as JSON.
    pub(crate) async fn castnet(&self, args: &[&str]) -> Value {
        let out = self.run([args, &["--output", "json"]].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
    }

    /// The exit code, and what stands on stderr.
    pub(crate) async fn refused(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::cargo_bin("castnet").expect("the binary");
        let address = self.controller().address().expect("an address").to_string();
        command.env("CASTNET_CONTROLLER", address).args(args);
        let run = move || command.output().expect("it runs");
        let output = tokio::task::spawn_blocking(run).await.expect("no panic");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    /// What the binary says.
    pub(crate) async fn run(&self, args: Vec<&str>) -> String {
        let mut command = Command::cargo_bin("castnet").expect("the binary");
        let address = self.controller().address().expect("an address").to_string();
        command
            .env("CASTNET_CONTROLLER", address)
            .env_remove("RUST_LOG")
            .args(args);
        let run = move || {
            let done = command.assert().success();
            String::from_utf8(done.get_output().stdout.clone()).expect("text")
        };
        tokio::task::spawn_blocking(run).await.expect("no panic")
    }
}

async fn start(config: &Config) -> (Controller, ControllerClient<Channel>) {
    let controller = Controller::start(config.clone()).await.expect("a controller");
    let address = controller.address().expect("an address");
    let channel = connect(address, &Security::default()).await;
    let client = ControllerClient::new(channel.expect("a connection"));
    (controller, client)
}

/// Rank `rank` of four as a program has it, over its end of the link.
pub(crate) fn communicator(fabric: &Fabric, rank: u16) -> impl FnOnce() -> Communicator + Send + use<> {
    let controller = fabric.controllers.clone();
    let (host, open) = (format!("h{rank}"), fabric.rnic(rank.into()));
    move || {
        let rnic = open();
        let config = CommConfig::new(controller, "job", rank, 4, host);
        let config = CommConfig {
            fallback: Fallback::Forbidden,
            ..config
        };
        Communicator::connect(config, Box::new(rnic)).expect("a group")
    }
}
