//! What a controller with many groups costs others. Switches are played in this process, by gRPC; the store is on disk.
//!
//! - A switch with GROUPS groups is lost, and comes back without them: time of other calls meanwhile, compared with that
//!   before.
//! - A controller starts again with ten times GROUPS groups on a fat tree of SWITCHES switches, which have them all.
//! - What the controller knows of a fat tree of 65,536 hosts is asked for (`castnet topology`). Its switches do not run.
//!
//! `cargo bench -p castnet-controller --bench scale [-- GROUPS | topology]`

#[path = "../tests/controller/common/mod.rs"]
mod common;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_proto::transport::Address;
use castnet_proto::v1;
use castnet_topology::Topology;
use tokio::task::JoinSet;

use common::{Client, Lab};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CLIENTS: usize = 64;
/// A fat tree of 980 switches and 5,488 hosts.
const K: usize = 28;

/// A fat tree of 5,120 switches and 65,536 hosts.
const K_MAX: usize = 64;

/// Creates groups of three hosts each: two neighbours, and one that is `far` away.
async fn create(lab: &Arc<Lab>, client: &Client, groups: usize, far: usize) {
    let hosts: Vec<String> = lab.topology.hosts().map(|h| h.name.clone()).collect();
    let hosts = Arc::new(hosts);
    let mut clients = JoinSet::new();
    for first in 0..CLIENTS {
        let (lab, mut client, hosts) = (lab.clone(), client.clone(), hosts.clone());
        clients.spawn(async move {
            for n in (first..groups).step_by(CLIENTS) {
                let host = |i: usize| hosts[(n + i) % hosts.len()].as_str();
                let request = lab.given(&format!("g{n}"), &[host(0), host(1), host(far)], 17 + n as u32);
                client.create_group(request).await.expect("created");
            }
        });
    }
    clients.join_all().await;
}

/// Asks all the time; the times of the calls.
async fn probe(mut client: Client, ends: Arc<AtomicBool>) -> Vec<Duration> {
    let mut times = Vec::new();
    while !ends.load(Relaxed) {
        let began = Instant::now();
        let request = v1::GetGroupRequest { group: "g0".into() };
        client.get_group(request).await.expect("an answer");
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    times.sort();
    times
}

/// Times of other calls while `work` goes on.
async fn beside(client: &Client, work: impl Future<Output = ()>) -> Vec<Duration> {
    let ends = Arc::new(AtomicBool::new(false));
    let probe = tokio::spawn(probe(client.clone(), ends.clone()));
    work.await;
    ends.store(true, Relaxed);
    probe.await.expect("it asks on")
}

fn show(what: &str, took: Duration, times: &[Duration]) {
    let at = |part: usize| times.get(times.len() * part / 1000).or(times.last());
    let ms = |time: Option<&Duration>| time.map_or(0.0, |t| t.as_secs_f64() * 1e3);
    println!(
        "{what:>24} {:>9.3} s  {:>8.3} {:>8.3} {:>8.3}",
        took.as_secs_f64(),
        ms(at(500)),
        ms(at(990)),
        ms(times.last())
    );
}

/// Waits until the last group is in a phase: what concerns many groups goes by their names.
async fn until(client: &Client, groups: usize, phase: v1::GroupPhase) {
    let last = (0..groups).map(|n| format!("g{n}")).max().unwrap_or_default();
    let mut client = client.clone();
    loop {
        let request = v1::GetGroupRequest { group: last.clone() };
        let group = client.get_group(request).await.expect("an answer").into_inner();
        if group.state.is_some_and(|s| s.phase() == phase) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn loss(groups: usize) -> Result<(), Box<dyn Error>> {
    let mut lab = Lab::new(Topology::leaf_spine(2, 1, 3)?).await;
    lab.config.mcst_pool = "100.64.0.0/10".parse()?;
    let (_controller, client) = lab.start().await;
    let mut lab = Arc::new(lab);
    create(&lab, &client, groups, 3).await;
    println!(
        "a switch with {groups} groups\n{:>24} {:>11}  {:>8} {:>8} {:>8}  (ms, of other calls)",
        "", "took", "median", "99 %", "longest"
    );
    let began = Instant::now();
    let idle = beside(&client, tokio::time::sleep(Duration::from_secs(1))).await;
    show("idle", began.elapsed(), &idle);
    let switch = |lab: &mut Arc<Lab>| Arc::get_mut(lab).and_then(|lab| lab.switches.remove("leaf0"));
    let mut leaf = switch(&mut lab).ok_or("no leaf0")?;
    let began = Instant::now();
    let times = beside(&client, async {
        leaf.stop().await;
        until(&client, groups, v1::GroupPhase::Degraded).await;
    })
    .await;
    show("lost", began.elapsed(), &times);
    leaf.with(|toy| {
        toy.boot_id += 1;
        toy.groups.clear();
    });
    let began = Instant::now();
    let times = beside(&client, async {
        leaf.start().await;
        until(&client, groups, v1::GroupPhase::Active).await;
    })
    .await;
    show("back, without groups", began.elapsed(), &times);
    Ok(())
}

async fn restart(groups: usize) -> Result<(), Box<dyn Error>> {
    let mut lab = Lab::new(Topology::fat_tree(K)?).await;
    lab.config.mcst_pool = "100.64.0.0/10".parse()?;
    let lab = Arc::new(lab);
    let (controller, client) = lab.start().await;
    let began = Instant::now();
    // In the same pod, at another edge switch.
    create(&lab, &client, groups, K / 2).await;
    let created = began.elapsed();
    let rules: usize = lab
        .switches
        .values()
        .map(|s| s.with(|toy| toy.groups.len()))
        .sum();
    println!(
        "\n{groups} groups on {} switches, {rules} rules: created in {:.1} s, {:.0} us each",
        lab.switches.len(),
        created.as_secs_f64(),
        created.as_secs_f64() * 1e6 / groups as f64
    );
    controller.stop().await;
    let began = Instant::now();
    let controller = Controller::start(lab.config.clone()).await?;
    let serves = began.elapsed();
    let (_controller, client) = common::serving(controller).await;
    let request = v1::ListSwitchesRequest {};
    loop {
        let all = client.clone().list_switches(request).await?.into_inner().switches;
        if all.iter().all(|switch| switch.reachable) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let connected = began.elapsed();
    let client = client.max_decoding_message_size(1 << 30);
    let mut client = client.clone();
    loop {
        // A group is installed at a switch when that was asked for what it has.
        let all = client
            .list_groups(v1::ListControllerGroupsRequest {})
            .await?
            .into_inner()
            .groups;
        if all
            .iter()
            .flat_map(|group| &group.tree)
            .all(|node| node.installed)
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!(
        "started again: serves after {:.2} s, all switches connected after {:.2} s, all groups confirmed after {:.2} s",
        serves.as_secs_f64(),
        connected.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

async fn topology() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let fabric = Topology::fat_tree(K_MAX)?;
    let switch = |s: &castnet_topology::Switch| SwitchConfig {
        name: s.name.clone(),
        agent: Address::Unix(folder.path().join(format!("{}.sock", s.name))),
    };
    let config = Config {
        topology: Some(fabric.clone()),
        ..Config::new(fabric.switches().map(switch).collect())
    };
    let (_controller, client) = common::start(config).await;
    let mut client = client.max_decoding_message_size(1 << 30);
    let mut times = Vec::new();
    let mut known = v1::Topology::default();
    for _ in 0..5 {
        let began = Instant::now();
        known = client.get_topology(v1::GetTopologyRequest {}).await?.into_inner();
        times.push(began.elapsed());
    }
    println!(
        "\nthe topology: {} switches, {} hosts, {} links in {:.3} s, then {:.3} s",
        known.switches.len(),
        known.hosts.len(),
        known.links.len(),
        times[0].as_secs_f64(),
        times[1..].iter().min().copied().unwrap_or_default().as_secs_f64()
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().any(|a| a == "topology") {
        return topology().await;
    }
    let groups = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(10_000);
    loss(groups).await?;
    restart(10 * groups).await?;
    topology().await
}
