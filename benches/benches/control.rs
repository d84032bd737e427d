//! Time per group from the controller to the switch, over the number of groups: a real controller and agent in one
//! process, with gRPC over Unix sockets, and memory links. Many requests create groups concurrently; each waits until
//! its group is active. Then the switch restarts and all groups are installed again. The baseline is the first row.
//! `cpu` is the processor time of all of them together.
//!
//! `cargo bench -p castnet-benches --bench control [-- GROUPS_MAX]`

mod common;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_agent::Agent;
use castnet_controller::store::Store;
use castnet_controller::store::memory::MemoryStore;
use castnet_controller::store::redb::RedbStore;
use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_port::MemEnd;
use castnet_proto::transport::{Address, Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::controller_client::ControllerClient;
use castnet_topology::Topology;
use castnet_wire::MacAddr;
use castnet_worker::Dataplane;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tonic::transport::Channel;

const COUNTS: [usize; 3] = [1_000, 10_000, 100_000];
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RECEIVERS: usize = 8;
const CLIENTS: usize = 256;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Client = ControllerClient<Channel>;

#[tokio::main]
async fn main() -> Outcome<()> {
    println!("Microseconds per group of {RECEIVERS} receivers; {CLIENTS} requests at a time.\n");
    println!(
        "{:>8} {:>8} {:>28} {:>28}",
        "store", "groups", "created", "reinstalled"
    );
    for name in ["memory", "redb"] {
        let mut first = None;
        for groups in common::group_counts(&COUNTS) {
            let folder = tempfile::tempdir()?;
            let store: Arc<dyn Store> = match name {
                "redb" => Arc::new(RedbStore::open(&folder.path().join("bench.redb"))?),
                _ => Arc::new(MemoryStore::default()),
            };
            let times = measure(folder.path(), store, groups).await?;
            let each = times.map(|took| took.map(|time| time.as_secs_f64() * 1e6 / groups as f64));
            let first = *first.get_or_insert(each);
            let cell = |i: usize| {
                let [time, cpu] = each[i];
                format!("{time:.1} ({:.2} x), cpu {cpu:.1}", time / first[i][0])
            };
            println!("{name:>8} {groups:>8} {:>28} {:>28}", cell(0), cell(1));
        }
    }
    Ok(())
}

struct Since(Instant, Duration);

impl Since {
    fn now() -> Outcome<Self> {
        Ok(Self(Instant::now(), cpu()?))
    }

    fn elapsed(&self) -> Outcome<[Duration; 2]> {
        Ok([self.0.elapsed(), cpu()?.saturating_sub(self.1)])
    }
}

fn cpu() -> Outcome<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let spent = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(spent.num_microseconds().try_into()?))
}

/// Time and processor time to create so many groups, and to install them on a switch that has lost them.
async fn measure(folder: &Path, store: Arc<dyn Store>, groups: usize) -> Outcome<[[Duration; 2]; 2]> {
    let topology = Topology::star(RECEIVERS + 1)?;
    let at = Address::Unix(folder.join("agent"));
    let before = switch(&at, groups).await?;
    let mut config = Config::new(vec![SwitchConfig {
        name: "s0".into(),
        agent: at.clone(),
    }]);
    config.listen = Address::Unix(folder.join("controller"));
    config.topology = Some(topology.clone());
    config.mcst_pool = "100.64.0.0/10".parse()?;
    config.timeouts.backoff = (Duration::from_millis(1), Duration::from_millis(10));
    let controller = Controller::start_with(config, store).await?;
    let address = controller.address().ok_or("not listening")?;
    let client = ControllerClient::new(connect(address, &Security::default()).await?);

    let began = Since::now()?;
    create(&client, &topology, groups).await?;
    let created = began.elapsed()?;

    before.agent.stop().await;
    let began = Since::now()?;
    let after = switch(&at, groups).await?;
    // Groups become active in the order of their names.
    for phase in [v1::GroupPhase::Degraded, v1::GroupPhase::Active] {
        while state(&client, &name(groups - 1)).await? != phase {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let installed = began.elapsed()?;
    after.agent.stop().await;
    controller.stop().await;
    Ok([created, installed])
}

/// The links are up while the hosts' ends exist.
struct Switch {
    agent: Agent,
    _hosts: Vec<MemEnd>,
}

async fn switch(at: &Address, groups: usize) -> Outcome<Switch> {
    let (config, hosts) = common::dataplane("s0", RECEIVERS + 1, groups);
    let dataplane = tokio::task::spawn_blocking(|| Dataplane::start(config)).await??;
    let agent = Agent::start(Arc::new(dataplane), at, &Security::default()).await?;
    Ok(Switch { agent, _hosts: hosts })
}

async fn create(client: &Client, topology: &Topology, groups: usize) -> Outcome<()> {
    let mut clients = tokio::task::JoinSet::new();
    for first in 0..CLIENTS.min(groups) {
        let (mut client, topology) = (client.clone(), topology.clone());
        clients.spawn(async move {
            for n in (first..groups).step_by(CLIENTS) {
                let request = request(&topology, n).ok_or("a host without address")?;
                client.create_group(request).await?;
            }
            Outcome::Ok(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

fn name(n: usize) -> String {
    format!("g{n:06}")
}

/// Each host has a queue pair for each group.
fn request(topology: &Topology, n: usize) -> Option<v1::CreateGroupRequest> {
    let member = |i: usize| {
        let host = topology.host(&format!("h{i}"))?;
        let connection = v1::Connection {
            ip: host.ip?.to_string(),
            mac: MacAddr(host.mac?).to_string(),
            qpn: 0x100 + n as u32,
            ..Default::default()
        };
        Some(v1::NewMember {
            host: host.name.clone(),
            connection: Some(connection),
        })
    };
    Some(v1::CreateGroupRequest {
        name: name(n),
        source: "h0".into(),
        members: (0..=RECEIVERS).map(member).collect::<Option<_>>()?,
        ..Default::default()
    })
}

async fn state(client: &Client, group: &str) -> Outcome<v1::GroupPhase> {
    let request = v1::GetGroupRequest { group: group.into() };
    let group = client.clone().get_group(request).await?.into_inner();
    Ok(group.state.unwrap_or_default().phase())
}
