//! Several controllers on etcd, as processes that are killed and paused. What they decide then is in `several.rs`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use castnet_controller::Controller;
use castnet_controller::store::etcd::{DEFAULT_LEAD_TTL, EtcdConfig};
use castnet_proto::term::leader_of;
use castnet_proto::transport::Address;
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use tonic::Code;

use crate::common::etcd::{Cluster, Etcd};
use crate::common::{Calls, Client, Lab, reaches};
use castnet_sim_control::controllers::leader;
use castnet_sim_control::net::Net;

fn address(folder: &Path, n: usize) -> Address {
    Address::Unix(folder.join(format!("controller{n}.sock")))
}

/// Controllers, each a process.
pub(crate) struct Processes<'l> {
    lab: &'l Lab,
    /// Of each: the folder with the sockets of its switches, and the members of etcd.
    ways: Vec<(PathBuf, String)>,
    /// Time to live of the lead.
    lead_ttl: Duration,
    all: Vec<Child>,
}

const FOLDER: &str = "CASTNET_TEST_FOLDER";
const SWITCHES: &str = "CASTNET_TEST_SWITCHES";
const MEMBERS: &str = "CASTNET_TEST_MEMBERS";
const LEAD_SECONDS: &str = "CASTNET_TEST_LEAD_SECONDS";
const NUMBER: &str = "CASTNET_TEST_NUMBER";

/// No test by itself: the process of a controller, of a test below.
#[test]
fn process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let members = std::env::var(MEMBERS).unwrap();
        let n = std::env::var(NUMBER).unwrap().parse().unwrap();
        let folder = Path::new(&folder);
        let switches = PathBuf::from(std::env::var(SWITCHES).unwrap());
        let mut config = Lab::two_tiers_config(&switches);
        let lead_ttl = Duration::from_secs(std::env::var(LEAD_SECONDS).unwrap().parse().unwrap());
        if lead_ttl == DEFAULT_LEAD_TTL {
            // Calls that are held end soon.
            config.timeouts.switch = Duration::from_secs(1);
            config.timeouts.reconcile = Duration::from_secs(1);
        }
        config.etcd = Some(EtcdConfig {
            lead_ttl,
            ..Cluster::config_of(members.split(',').map(|m| m.parse().unwrap()).collect())
        });
        config.store = None;
        config.listen = address(folder, n);
        let _controller = Controller::start(config).await.unwrap();
        std::future::pending::<()>().await;
    });
}

impl<'l> Processes<'l> {
    fn start(lab: &'l Lab, cluster: &Cluster, count: usize, lead_ttl: Duration) -> Self {
        let members = text(&cluster.config().members);
        let way = (lab.folder.path().to_owned(), members);
        Self::run(lab, vec![way; count], lead_ttl)
    }

    /// They reach switches and etcd by `net`, as nodes `c0`, `c1` ..., and bear faults that do not end.
    pub(crate) fn start_over(net: &mut Net, lab: &'l Lab, cluster: &Cluster, count: usize) -> Self {
        let etcd = cluster.config().members;
        let way = |n: usize| {
            let (folder, members) =
                net.surround(&format!("c{n}"), lab.folder.path(), &lab.config.switches, &etcd);
            (folder, text(&members))
        };
        Self::run(lab, (0..count).map(way).collect(), DEFAULT_LEAD_TTL)
    }

    fn run(lab: &'l Lab, ways: Vec<(PathBuf, String)>, lead_ttl: Duration) -> Self {
        let mut processes = Self {
            lab,
            ways,
            lead_ttl,
            all: Vec::new(),
        };
        for n in 0..processes.ways.len() {
            let process = processes.spawn(n);
            processes.all.push(process);
        }
        processes
    }

    fn spawn(&self, n: usize) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "failover::process"])
            .env(FOLDER, self.lab.folder.path())
            .env(SWITCHES, &self.ways[n].0)
            .env(MEMBERS, &self.ways[n].1)
            .env(LEAD_SECONDS, self.lead_ttl.as_secs().to_string())
            .env(NUMBER, n.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Kills one, and starts it again.
    pub(crate) fn restart(&mut self, n: usize) {
        self.all[n].kill().unwrap();
        self.all[n].wait().unwrap();
        self.all[n] = self.spawn(n);
    }

    /// The controller that leads, other than `not`, and a client of it.
    pub(crate) async fn leader(&self, not: Option<usize>) -> (usize, Client) {
        let folder = self.lab.folder.path();
        let all: Vec<Address> = (0..self.all.len()).map(|n| address(folder, n)).collect();
        leader(&all, not).await
    }

    fn signal(&self, n: usize, signal: &str) {
        let pid = self.all[n].id().to_string();
        let status = Command::new("sh")
            .args(["-c", &format!("kill -{signal} {pid}")])
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Processes<'_> {
    fn drop(&mut self) {
        for process in &mut self.all {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn text(members: &[Address]) -> String {
    let members: Vec<String> = members.iter().map(Address::to_string).collect();
    members.join(",")
}

pub(crate) async fn exists(client: &Client, group: &str) -> bool {
    client.try_get(group).await.is_ok()
}

/// A leader that was paused until another has taken over writes nothing and installs nothing when it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_paused_changes_nothing() {
    let Some(cluster) = Cluster::start("failover::a_leader_that_was_paused_changes_nothing") else {
        return;
    };
    let lab = Lab::two_tiers().await;
    // Long before the pause, and short for the test, which waits for its end.
    let processes = Processes::start(&lab, &cluster, 2, Duration::from_secs(10));
    let (first, mut old) = processes.leader(None).await;
    old.create(lab.given("g", &["h0", "h2"], 17)).await;
    // It is paused between the switches of a group.
    let (gate, mut told) = lab.switch("spine0").hold();
    let late = lab.given("late", &["h1", "h3"], 18);
    let late = tokio::spawn({
        let mut old = old.clone();
        async move { old.create_group(late).await }
    });
    told.recv().await.unwrap();
    processes.signal(first, "STOP");
    gate.add_permits(100);
    let (_, new) = processes.leader(Some(first)).await;
    reaches(&new, "late", Active).await;
    new.destroy("late").await;
    let request = lab.given("x", &["h1", "h3"], 19);
    let x = tokio::spawn({
        let mut old = old.clone();
        async move { old.create_group(request).await }
    });
    processes.signal(first, "CONT");
    // The group did run, by the other controller: on a busy machine the paused one has said so, once. What counts is below.
    if let Ok(said) = late.await.unwrap() {
        let state = said.into_inner().group.unwrap();
        assert_eq!(state.phase(), Active, "{state:?}");
    }
    // It knows that it does not lead any more, or etcd tells it when it writes, or it has heard nothing of its switches for too long.
    let refused = x.await.unwrap().unwrap_err();
    assert!(
        matches!(refused.code(), Code::Unavailable | Code::Internal) || refused.message().contains("is down"),
        "{refused}"
    );
    // It says who leads. On a busy machine that may be itself again.
    while let Err(refused) = old.find_leader(v1::FindLeaderRequest {}).await {
        if leader_of(&refused).is_some() {
            break;
        }
    }
    let (_, mut new) = processes.leader(None).await;
    assert!(!exists(&new, "x").await && !exists(&new, "late").await);
    // On a busy machine, a controller that has just begun to lead takes switches for down.
    while let Err(refused) = new.create_group(lab.given("h", &["h1", "h3"], 18)).await {
        assert!(refused.message().contains("is down"), "{refused}");
    }
    let wanted = ["+g.1", "+late.1", "-late.1", "+h.1"];
    assert_eq!(lab.switch("leaf0").changes(), wanted);
}
