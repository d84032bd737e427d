//! Controllers, members of etcd and agents are killed and cut off while groups come and go, by a seed.
//!
//! `CASTNET_SEED` repeats a run, `CASTNET_CHAOS_STEPS` makes it longer: 6 steps show that it runs, hundreds find faults.

use std::collections::BTreeSet;
use std::time::Duration;

use castnet_controller::store::etcd::DEFAULT_LEAD_TTL;
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status};

use crate::common::etcd::{Cluster, LASTING, POLL};
use crate::common::faults::Random;
use crate::common::net::{Fault, Net};
use crate::common::{Client, Lab, PATIENCE, Switch, destruction};
use crate::failover::{Processes, exists};

/// Longest duration of a fault of the network: another controller leads before it ends.
const FAULT_MAX: Duration = Duration::from_secs(4);

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
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

async fn found(client: &mut Client, group: &str) -> Result<v1::Group, Status> {
    let request = v1::GetGroupRequest { group: group.into() };
    client.get_group(request).await.map(Response::into_inner)
}

async fn runs(client: &mut Client, group: &str) -> bool {
    let state = found(client, group).await.ok().and_then(|found| found.state);
    state.is_some_and(|state| state.phase() == Active)
}

/// A controller that can write: others that believe that they lead have lost the lead.
async fn writing_leader(processes: &Processes<'_>, lab: &Lab, unknown: &mut BTreeSet<String>) {
    loop {
        let (_, mut client) = processes.leader(None).await;
        let (name, qpn) = (format!("end{}", unknown.len()), 100_000 + unknown.len() as u32);
        let request = lab.given(&name, &["h1", "h3"], qpn);
        unknown.insert(name.clone());
        if client.create_group(request).await.is_ok() {
            let _ = client.destroy_group(destruction(&name)).await;
            return;
        }
    }
}

/// What was confirmed to a client stays so, what was not has happened or not; at the end nothing is left on a switch that was
/// not asked for. A group that is active all the time is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_leaks() {
    let mut net = Net::default();
    let test = "chaos::nothing_is_lost_and_nothing_leaks";
    let Some(mut cluster) = Cluster::start_over(&mut net, test, 3) else {
        return;
    };
    let (seed, steps) = (
        variable("CASTNET_SEED").unwrap_or(7),
        variable("CASTNET_CHAOS_STEPS"),
    );
    println!("CASTNET_SEED={seed}");
    let mut random = Random(seed);
    let mut lab = Lab::two_tiers().await;
    let mut switches = std::mem::take(&mut lab.switches);
    let mut processes = Processes::start_over(&mut net, &lab, &cluster, 3, DEFAULT_LEAD_TTL);
    // A leader that stands still for a moment loses the lead.
    loop {
        let (_, mut client) = processes.leader(None).await;
        let _ = client.create_group(lab.given("g", &["h0", "h2"], 17)).await;
        if runs(&mut client, "g").await {
            break;
        }
    }
    let of_g = |switch: &Switch| {
        let mut changes = switch.changes();
        changes.retain(|change| change[1..].starts_with("g."));
        changes
    };
    let before: Vec<_> = switches.values().map(|s| (s.groups(), of_g(s))).collect();
    let (mut there, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for step in 0..steps.unwrap_or(6) {
        let (leader, mut client) = processes.leader(None).await;
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
        for _ in 0..random.below(200) {
            tokio::task::yield_now().await;
        }
        let (fault, n) = (random.below(10), random.below(3) as usize);
        let switch = ["leaf0", "leaf1", "spine0"][n];
        match fault {
            0 => processes.restart(leader),
            1 => cluster.kill(n),
            2 => (0..2).for_each(|more| cluster.kill((n + more) % 3)),
            3 => switches.get_mut(switch).unwrap().stop().await,
            4 => {}
            _ => fail(&net, &mut random, leader),
        }
        // Without a quorum, a group that is being created waits for etcd.
        for _ in 0..random.below(200) {
            tokio::task::yield_now().await;
        }
        match fault {
            1 => cluster.restart(n),
            2 => (0..2).for_each(|more| cluster.restart((n + more) % 3)),
            _ => {}
        }
        // A fault of the network lasts for a moment, or until the call has ended, but not for ever.
        let mut done = None;
        if fault > 4 && random.below(2) == 0 {
            done = timeout(FAULT_MAX, &mut call).await.ok();
        }
        net.heal();
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
                let (_, mut client) = processes.leader(None).await;
                assert!(
                    !exists(&mut client, &name).await,
                    "seed {seed}, step {step}: {name} is back"
                );
            }
            (false, _) => drop(unknown.insert(name)),
        }
    }
    writing_leader(&processes, &lab, &mut unknown).await;
    for name in there.iter().map(String::as_str).chain(["g"]) {
        let is_there = async {
            while !runs(&mut processes.leader(None).await.1, name).await {
                sleep(POLL).await;
            }
        };
        let found = timeout(PATIENCE, is_there).await;
        found.unwrap_or_else(|_| panic!("seed {seed}: {name} does not run"));
    }
    for name in there.iter().chain(&unknown) {
        let ends = async {
            loop {
                let (_, mut client) = processes.leader(None).await;
                if found(&mut client, name)
                    .await
                    .is_err_and(|e| e.code() == Code::NotFound)
                {
                    return;
                }
                let _ = client.destroy_group(destruction(name)).await;
            }
        };
        let ended = timeout(PATIENCE, ends).await;
        ended.unwrap_or_else(|_| panic!("seed {seed}: {name} does not end"));
    }
    for ((name, switch), (groups, changes)) in switches.iter().zip(before) {
        // A call that was held may have installed a group after it was removed: until the next look at the switch.
        let is_clean = async {
            while switch.groups() != groups {
                tokio::task::yield_now().await;
            }
        };
        if timeout(PATIENCE, is_clean).await.is_err() {
            panic!("seed {seed}: {name} has {:?}", switch.groups());
        }
        assert_eq!(of_g(switch), changes, "seed {seed}: {name}");
    }
}

/// What a controller sends to etcd arrives after another has taken over: it changes neither the store nor a switch.
#[tokio::test(flavor = "multi_thread")]
async fn what_arrives_late_changes_nothing() {
    let mut net = Net::default();
    let Some(cluster) = Cluster::start("chaos::what_arrives_late_changes_nothing", 1) else {
        return;
    };
    let lab = Lab::two_tiers().await;
    let processes = Processes::start_over(&mut net, &lab, &cluster, 2, LASTING);
    let (_, mut client) = processes.leader(None).await;
    client
        .create_group(lab.given("g", &["h0", "h2"], 17))
        .await
        .unwrap();
    let (first, mut old) = processes.leader(None).await;
    net.fail(&format!("c{first}"), Some("e0"), Fault::Held([true, false]));
    let late = lab.given("late", &["h1", "h3"], 18);
    let late = tokio::spawn(async move { old.create_group(late).await });
    cluster.end_lead();
    let (_, mut new) = processes.leader(Some(first)).await;
    new.create_group(lab.given("new", &["h1", "h3"], 18))
        .await
        .unwrap();
    net.heal();
    late.await.unwrap().unwrap_err();
    assert!(!exists(&mut new, "late").await && exists(&mut new, "new").await);
    for name in ["leaf0", "leaf1", "spine0"] {
        let changes = lab.switch(name).changes();
        assert_eq!(changes, ["+g.1", "+new.1"], "{name}");
    }
}
