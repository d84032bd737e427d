//! Time to create a group over the number of groups: by gRPC, many clients at once, each group with its own queue pair.
//! The baseline is the first thousand groups of the same run.
//!
//! `cargo bench -p castnet-controller --bench creation [-- GROUPS]`

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use castnet_controller::store::Store;
use castnet_controller::store::memory::MemoryStore;
use castnet_controller::store::redb::RedbStore;
use castnet_controller::{Config, Controller, SwitchConfig, Timeouts};
use castnet_proto::transport::{Address, Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::controller_client::ControllerClient;
use castnet_topology::Topology;
use castnet_wire::MacAddr;
use tonic::transport::Channel;

/// Requests under way at one time.
const CLIENTS: u64 = 32;
/// Groups that one time is the mean of.
const BLOCK: u64 = 200;
/// The fastest of this many blocks counts: other programs slow some down.
const BLOCKS: usize = 5;

type Client = ControllerClient<Channel>;

fn request(topology: &Topology, n: u64) -> Option<v1::CreateGroupRequest> {
    let host = topology.host("h0")?;
    let connection = v1::Connection {
        ip: host.ip?.to_string(),
        mac: MacAddr(host.mac?).to_string(),
        qpn: 2 + n as u32,
        ..Default::default()
    };
    // The other member does not join: no switch is needed.
    let member = |host: &str, connection| v1::NewMember {
        host: host.into(),
        connection,
    };
    Some(v1::CreateGroupRequest {
        name: format!("g{n}"),
        source: "h0".into(),
        members: vec![member("h0", Some(connection)), member("h2", None)],
        ..Default::default()
    })
}

/// Creates a block of groups; returns the time per group.
async fn create(client: &Client, topology: &Arc<Topology>, from: u64) -> Result<Duration, tonic::Status> {
    let began = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for first in 0..CLIENTS {
        let (mut client, topology) = (client.clone(), topology.clone());
        clients.spawn(async move {
            for n in (from + first..from + BLOCK).step_by(CLIENTS as usize) {
                if let Some(request) = request(&topology, n) {
                    client.create_group(request).await?;
                }
            }
            Ok::<(), tonic::Status>(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done.map_err(|e| tonic::Status::internal(e.to_string()))??;
    }
    Ok(began.elapsed() / BLOCK as u32)
}

async fn measure(what: &str, store: Arc<dyn Store>, groups: u64) -> Result<(), Box<dyn std::error::Error>> {
    let topology = Arc::new(Topology::leaf_spine(2, 1, 2)?);
    let folder = tempfile::tempdir()?;
    let agent = |name: &str| SwitchConfig {
        name: name.into(),
        agent: Address::Unix(folder.path().join(name)),
    };
    // The agents never answer, so the switches count as not yet tried, and groups are planned over them.
    let mut silent = Vec::new();
    for switch in topology.switches() {
        silent.push(UnixListener::bind(folder.path().join(&switch.name))?);
    }
    let switches = topology.switches().map(|s| agent(&s.name)).collect();
    let timeouts = Timeouts {
        switch: Duration::from_secs(3600),
        ..Timeouts::default()
    };
    let config = Config {
        timeouts,
        listen: Address::Unix(folder.path().join("controller")),
        topology: Some((*topology).clone()),
        mcst_pool: "100.64.0.0/10".parse()?,
        ..Config::new(switches)
    };
    let controller = Controller::start_with(config, store).await?;
    let address = controller.address().ok_or("not listening")?;
    let client = ControllerClient::new(connect(address, &Security::default()).await?);
    let mut baseline = None;
    println!(
        "{what}, {CLIENTS} clients, best of {BLOCKS} blocks of {BLOCK}\n{:>10}  {:>12}  ratio",
        "groups", "per creation"
    );
    let figures = [1000, 2000, 5000, 10_000, 20_000, 50_000, groups];
    let mut blocks = Vec::new();
    for from in (0..groups).step_by(BLOCK as usize) {
        blocks.push(create(&client, &topology, from).await?);
        let there = from + BLOCK;
        let last = blocks.len().saturating_sub(BLOCKS);
        if let Some(best) = blocks[last..].iter().min().filter(|_| figures.contains(&there)) {
            let best = best.as_secs_f64();
            let ratio = best / *baseline.get_or_insert(best);
            println!("{there:>10}  {:>9.1} us  {ratio:.2}", best * 1e6);
        }
    }
    controller.stop().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let groups = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(100_000);
    measure("store in memory", Arc::new(MemoryStore::default()), groups).await?;
    let folder = tempfile::tempdir()?;
    let store = RedbStore::open(&folder.path().join("bench.redb"))?;
    measure("redb", Arc::new(store), groups).await
}
