//! Controllers, members of etcd and agents are killed while groups come and go, by a seed.
//!
//! `CASTNET_SEED` repeats a run, `CASTNET_CHAOS_STEPS` makes it longer.

use std::collections::BTreeSet;

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;

use crate::common::etcd::Cluster;
use crate::common::faults::Random;
use crate::common::{Lab, reaches};
use crate::failover::{Processes, exists};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn destruction(group: &str) -> v1::DestroyGroupRequest {
    v1::DestroyGroupRequest {
        group: group.into(),
        ..Default::default()
    }
}

/// What was confirmed to a client stays so, what was not has happened or not; at the end nothing is left on a switch that was
/// not asked for. A group that is active all the time is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_leaks() {
    let Some(mut cluster) = Cluster::start("chaos::nothing_is_lost_and_nothing_leaks", 3) else {
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
    let mut processes = Processes::start(&lab, &cluster, 3);
    let (_, mut client) = processes.leader(None).await;
    client
        .create_group(lab.given("g", &["h0", "h2"], 17))
        .await
        .unwrap();
    let (mut there, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for step in 0..steps.unwrap_or(8) {
        let (leader, mut client) = processes.leader(None).await;
        let victim = there.iter().nth(random.below(4) as usize).cloned();
        let name = victim.clone().unwrap_or_else(|| format!("g{step}"));
        let request = lab.given(&name, &["h1", "h3"], 100 + step as u32);
        let call = tokio::spawn({
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
        let (fault, n) = (random.below(5), random.below(3) as usize);
        let switch = ["leaf0", "leaf1", "spine0"][n];
        match fault {
            0 => processes.restart(leader),
            1 => cluster.kill(n),
            2 => (0..2).for_each(|more| cluster.kill((n + more) % 3)),
            3 => switches.get_mut(switch).unwrap().stop().await,
            _ => {}
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
        let done = call.await.unwrap();
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
    let (_, mut client) = processes.leader(None).await;
    for name in there.iter().map(String::as_str).chain(["g"]) {
        reaches(&client, name, Active).await;
    }
    for name in there.iter().chain(&unknown) {
        while exists(&mut client, name).await {
            let _ = client.destroy_group(destruction(name)).await;
        }
    }
    for (name, switch) in switches {
        assert_eq!(switch.groups(), ["g.1"], "seed {seed}: {name}");
        let mut changes = switch.changes();
        changes.retain(|change| change.ends_with("g.1"));
        assert_eq!(changes, ["+g.1"], "seed {seed}: {name}");
    }
}
