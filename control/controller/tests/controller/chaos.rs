//! Controllers, members of etcd and agents are killed and cut off while groups come and go, by a seed.
//!
//! `CASTNET_SEED` repeats a run, `CASTNET_CHAOS_STEPS` makes it longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use castnet_proto::v1::GroupPhase::Active;
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::common::etcd::{Cluster, POLL};
use crate::common::{Calls, Client, Lab, PATIENCE, Switch, destruction};
use crate::failover::{Processes, exists};
use castnet_sim_control::net::{Fault, Net};
use castnet_sim_control::random::Random;

/// Longest duration of a fault of the network or of etcd, in milliseconds: another controller leads before it ends.
const FAULT_MS_MAX: u64 = 4000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Three controllers and three members of etcd, all real. In virtual time: `castnet-sim-control`.
struct Parties<'l> {
    net: Net,
    cluster: Cluster,
    processes: Processes<'l>,
}

impl Parties<'_> {
    /// The controller that leads, and a client of it.
    async fn leader(&self) -> (usize, Client) {
        self.processes.leader(None).await
    }
}

/// A part of a call passes.
async fn pass(random: &mut Random) {
    for _ in 0..random.below(200) {
        tokio::task::yield_now().await;
    }
}

/// A fault between two nodes, or between one and all others. Half of them concern the leader.
fn fail(net: &Net, random: &mut Random, leader: usize) {
    let nodes = net.nodes();
    let mut pick = || nodes[random.below(nodes.len() as u64) as usize].as_str();
    let (any, other) = (pick(), pick());
    let leader = format!("c{leader}");
    let node = if random.below(2) == 0 { &leader } else { any };
    let ways = [[true, true], [true, false], [false, true]];
    let fault = match random.below(4) {
        3 => Fault::Cut,
        way => Fault::Held(ways[way as usize]),
    };
    let other = Some(other).filter(|_| random.below(2) == 0);
    println!("{fault:?} between {node} and {}", other.unwrap_or("all"));
    net.fail(node, other, fault);
}

async fn runs(client: &Client, group: &str) -> bool {
    let found = client.try_get(group).await;
    let state = found.ok().and_then(|found| found.state);
    state.is_some_and(|state| state.phase() == Active)
}

/// A controller that can write: others that believe that they lead have lost the lead.
async fn writing_leader(parties: &Parties<'_>, lab: &Lab, unknown: &mut BTreeSet<String>) {
    loop {
        let (_, mut client) = parties.leader().await;
        let (name, qpn) = (format!("end{}", unknown.len()), 100_000 + unknown.len() as u32);
        let request = lab.given(&name, &["h1", "h3"], qpn);
        unknown.insert(name.clone());
        if client.create_group(request).await.is_ok() {
            let _ = client.destroy_group(destruction(&name)).await;
            return;
        }
        sleep(POLL).await;
    }
}

/// What was confirmed to a client stays so, what was not has happened or not; at the end nothing is left on a switch that was
/// not asked for. A group that is active all the time is not touched.
async fn nothing_is_lost(
    seed: u64,
    steps: u64,
    lab: &Lab,
    mut switches: BTreeMap<String, Switch>,
    parties: &mut Parties<'_>,
) {
    println!("CASTNET_SEED={seed}");
    let mut random = Random(seed);
    // A leader that stands still for a moment loses the lead.
    loop {
        let (_, mut client) = parties.leader().await;
        let _ = client.create_group(lab.given("g", &["h0", "h2"], 17)).await;
        if runs(&client, "g").await {
            break;
        }
        sleep(POLL).await;
    }
    let of_g = |switch: &Switch| {
        let mut changes = switch.changes();
        changes.retain(|change| change[1..].starts_with("g."));
        changes
    };
    let before: Vec<_> = switches.values().map(|s| (s.groups(), of_g(s))).collect();
    let (mut there, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for step in 0..steps {
        let (leader, mut client) = parties.leader().await;
        let victim = there.iter().nth(random.below(4) as usize).cloned();
        let name = victim.clone().unwrap_or_else(|| format!("g{step}"));
        let request = lab.given(&name, &["h1", "h3"], 100 + step as u32);
        let mut call = tokio::spawn({
            let name = name.clone();
            async move {
                match victim {
                    Some(_) => client
                        .destroy_group(destruction(&name))
                        .await
                        .is_ok_and(|a| a.into_inner().complete),
                    None => client.create_group(request).await.is_ok(),
                }
            }
        });
        pass(&mut random).await;
        let (fault, n) = (random.below(10), random.below(3) as usize);
        let switch = ["leaf0", "leaf1", "spine0"][n];
        match fault {
            0 => parties.processes.restart(leader),
            1 => parties.cluster.kill(n),
            2 => {
                parties.cluster.kill(n);
                parties.cluster.kill((n + 1) % 3);
            }
            3 => switches.get_mut(switch).unwrap().stop().await,
            4 => {}
            _ => fail(&parties.net, &mut random, leader),
        }
        // Without a quorum, a group that is being created waits for etcd.
        pass(&mut random).await;
        match fault {
            1 => parties.cluster.restart(n),
            2 => {
                parties.cluster.restart(n);
                parties.cluster.restart((n + 1) % 3);
            }
            _ => {}
        }
        // A fault of the network or of etcd lasts for a moment, or until the call has ended, but not for ever.
        let mut done = None;
        if fault > 4 && random.below(2) == 0 {
            let lasts = Duration::from_millis(random.below(FAULT_MS_MAX));
            done = timeout(lasts, &mut call).await.ok();
        }
        parties.net.heal();
        let done = match done {
            Some(done) => done.unwrap(),
            None => call.await.unwrap(),
        };
        if fault == 3 {
            switches.get_mut(switch).unwrap().start().await;
        }
        let was_there = there.remove(&name);
        match (done, was_there) {
            (true, false) => drop(there.insert(name)),
            (true, true) => {
                let (_, client) = parties.leader().await;
                let is_back = exists(&client, &name).await;
                assert!(!is_back, "seed {seed}, step {step}: {name} is back");
            }
            (false, _) => drop(unknown.insert(name)),
        }
    }
    writing_leader(parties, lab, &mut unknown).await;
    for name in there.iter().map(String::as_str).chain(["g"]) {
        let is_there = async {
            while !runs(&parties.leader().await.1, name).await {
                sleep(POLL).await;
            }
        };
        let found = timeout(PATIENCE, is_there).await;
        found.unwrap_or_else(|_| panic!("seed {seed}: {name} does not run"));
    }
    for name in there.iter().chain(&unknown) {
        let ends = async {
            loop {
                let (_, mut client) = parties.leader().await;
                let found = client.try_get(name).await;
                if found.is_err_and(|e| e.code() == Code::NotFound) {
                    return;
                }
                let _ = client.destroy_group(destruction(name)).await;
                sleep(POLL).await;
            }
        };
        let ended = timeout(PATIENCE, ends).await;
        ended.unwrap_or_else(|_| panic!("seed {seed}: {name} does not end"));
    }
    for ((name, switch), (groups, changes)) in switches.iter().zip(before) {
        // A call that was held may have installed a group after it was removed: until the next look at the switch.
        let is_clean = async {
            while switch.groups() != groups {
                sleep(POLL).await;
            }
        };
        if timeout(PATIENCE, is_clean).await.is_err() {
            panic!("seed {seed}: {name} has {:?}", switch.groups());
        }
        assert_eq!(of_g(switch), changes, "seed {seed}: {name}");
    }
}

/// With processes and real servers: 3 steps show that it runs, hundreds find faults.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_processes_is_lost() {
    let mut net = Net::default();
    let test = "chaos::nothing_of_processes_is_lost";
    let Some(cluster) = Cluster::start_over(&mut net, test, 3) else {
        return;
    };
    let mut lab = Lab::two_tiers().await;
    let switches = std::mem::take(&mut lab.switches);
    let processes = Processes::start_over(&mut net, &lab, &cluster, 3);
    let mut parties = Parties {
        net,
        cluster,
        processes,
    };
    let seed = variable("CASTNET_SEED").unwrap_or(76);
    let steps = variable("CASTNET_CHAOS_STEPS").unwrap_or(3);
    nothing_is_lost(seed, steps, &lab, switches, &mut parties).await;
}
