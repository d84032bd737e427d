//! Controllers, members of etcd and agents are killed and cut off while groups come and go, by a seed.
//!
//! `CASTNET_SEED` repeats a run, `CASTNET_CHAOS_STEPS` makes it longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use tokio::time::{sleep, timeout};
use tonic::{Code, Response, Status};

use crate::common::candidates::Candidates;
use crate::common::etcd::{Cluster, POLL};
use crate::common::etcd_model::EtcdModel;
use crate::common::faults::{Random, seeds};
use crate::common::net::{Fault, Net};
use crate::common::{Client, Lab, PATIENCE, Switch, destruction};
use crate::failover::{Processes, exists};

/// Longest duration of a fault of the network or of etcd, in milliseconds: another controller leads before it ends.
const FAULT_MS_MAX: u64 = 4000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Three controllers and three members of etcd.
trait Parties {
    /// Kinds of faults: as below, and some more.
    const FAULTS: u64;

    fn net(&self) -> &Net;

    /// The controller that leads, and a client of it.
    async fn leader(&self) -> (usize, Client);

    /// Kills a controller, and starts it again.
    async fn restart(&mut self, n: usize);

    async fn kill_member(&mut self, n: usize);

    async fn restart_member(&mut self, n: usize);

    /// A part of a call passes.
    async fn pass(&self, random: &mut Random);

    /// A fault of etcd, one of those that only the model has.
    fn fail_etcd(&self, _: u64, _: &mut Random) {}

    /// Ends faults of the network and of etcd.
    fn heal(&self) {
        self.net().heal();
    }
}

/// All real but the switches.
struct Real<'l> {
    net: Net,
    cluster: Cluster,
    processes: Processes<'l>,
}

impl Parties for Real<'_> {
    const FAULTS: u64 = 10;

    fn net(&self) -> &Net {
        &self.net
    }

    async fn leader(&self) -> (usize, Client) {
        self.processes.leader(None).await
    }

    async fn restart(&mut self, n: usize) {
        self.processes.restart(n);
    }

    async fn kill_member(&mut self, n: usize) {
        self.cluster.kill(n);
    }

    async fn restart_member(&mut self, n: usize) {
        self.cluster.restart(n);
    }

    async fn pass(&self, random: &mut Random) {
        for _ in 0..random.below(200) {
            tokio::task::yield_now().await;
        }
    }
}

/// In one thread, in virtual time.
struct Modelled {
    candidates: Candidates,
    etcd: EtcdModel,
}

impl Parties for Modelled {
    const FAULTS: u64 = 14;

    fn net(&self) -> &Net {
        &self.candidates.net
    }

    async fn leader(&self) -> (usize, Client) {
        self.candidates.leader(None).await
    }

    async fn restart(&mut self, n: usize) {
        self.candidates.restart(n).await;
    }

    async fn kill_member(&mut self, n: usize) {
        self.etcd.kill(n).await;
    }

    async fn restart_member(&mut self, n: usize) {
        self.etcd.restart(n).await;
    }

    async fn pass(&self, random: &mut Random) {
        sleep(Duration::from_millis(random.below(30))).await;
    }

    fn fail_etcd(&self, fault: u64, random: &mut Random) {
        println!("fault {fault} of etcd");
        match fault {
            0 => self.etcd.slow(Duration::from_millis(random.below(1500))),
            1 => self.etcd.hold(true),
            _ => self.etcd.lose_answer(random.below(4) as usize),
        }
    }

    fn heal(&self) {
        self.net().heal();
        self.etcd.slow(Duration::ZERO);
        self.etcd.hold(false);
        self.etcd.lose_none();
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

async fn found(client: &mut Client, group: &str) -> Result<v1::Group, Status> {
    let request = v1::GetGroupRequest { group: group.into() };
    client.get_group(request).await.map(Response::into_inner)
}

async fn runs(client: &mut Client, group: &str) -> bool {
    let state = found(client, group).await.ok().and_then(|found| found.state);
    state.is_some_and(|state| state.phase() == Active)
}

/// A controller that can write: others that believe that they lead have lost the lead.
async fn writing_leader(parties: &impl Parties, lab: &Lab, unknown: &mut BTreeSet<String>) {
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
async fn nothing_is_lost<P: Parties>(
    seed: u64,
    steps: u64,
    lab: &Lab,
    mut switches: BTreeMap<String, Switch>,
    parties: &mut P,
) {
    println!("CASTNET_SEED={seed}");
    let mut random = Random(seed);
    // A leader that stands still for a moment loses the lead.
    loop {
        let (_, mut client) = parties.leader().await;
        let _ = client.create_group(lab.given("g", &["h0", "h2"], 17)).await;
        if runs(&mut client, "g").await {
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
        parties.pass(&mut random).await;
        let (fault, n) = (random.below(P::FAULTS), random.below(3) as usize);
        let switch = ["leaf0", "leaf1", "spine0"][n];
        match fault {
            0 => parties.restart(leader).await,
            1 => parties.kill_member(n).await,
            2 => {
                parties.kill_member(n).await;
                parties.kill_member((n + 1) % 3).await;
            }
            3 => switches.get_mut(switch).unwrap().stop().await,
            4 => {}
            5..10 => fail(parties.net(), &mut random, leader),
            _ => parties.fail_etcd(fault - 10, &mut random),
        }
        // Without a quorum, a group that is being created waits for etcd.
        parties.pass(&mut random).await;
        match fault {
            1 => parties.restart_member(n).await,
            2 => {
                parties.restart_member(n).await;
                parties.restart_member((n + 1) % 3).await;
            }
            _ => {}
        }
        // A fault of the network or of etcd lasts for a moment, or until the call has ended, but not for ever.
        let mut done = None;
        if fault > 4 && random.below(2) == 0 {
            let lasts = Duration::from_millis(random.below(FAULT_MS_MAX));
            done = timeout(lasts, &mut call).await.ok();
        }
        parties.heal();
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
                let (_, mut client) = parties.leader().await;
                assert!(
                    !exists(&mut client, &name).await,
                    "seed {seed}, step {step}: {name} is back"
                );
            }
            (false, _) => drop(unknown.insert(name)),
        }
    }
    writing_leader(parties, lab, &mut unknown).await;
    for name in there.iter().map(String::as_str).chain(["g"]) {
        let is_there = async {
            while !runs(&mut parties.leader().await.1, name).await {
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
                if found(&mut client, name)
                    .await
                    .is_err_and(|e| e.code() == Code::NotFound)
                {
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

/// The seed decides what happens and when; which of several tasks goes on first at one moment is tokio's choice.
#[test]
fn nothing_is_lost_and_nothing_leaks() {
    for seed in seeds(5) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(async {
            let mut lab = Lab::two_tiers().await;
            // Calls that are held end soon.
            lab.config.timeouts.switch = Duration::from_secs(1);
            lab.config.timeouts.reconcile = Duration::from_secs(1);
            let etcd = EtcdModel::start(3).await;
            let candidates = Candidates::start(&lab, &etcd, 3).await;
            let (switches, mut parties) = (std::mem::take(&mut lab.switches), Modelled { candidates, etcd });
            let steps = variable("CASTNET_CHAOS_STEPS").unwrap_or(8);
            nothing_is_lost(seed, steps, &lab, switches, &mut parties).await;
        });
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
    let mut parties = Real {
        net,
        cluster,
        processes,
    };
    let seed = variable("CASTNET_SEED").unwrap_or(7);
    let steps = variable("CASTNET_CHAOS_STEPS").unwrap_or(3);
    nothing_is_lost(seed, steps, &lab, switches, &mut parties).await;
}
