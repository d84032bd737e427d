//! Two controllers on etcd, as processes, of which one is paused. In virtual time: `sim/control`, by seeds.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use castnet_controller::Controller;
use castnet_controller::store::etcd::EtcdConfig;
use castnet_proto::term::leader_of;
use castnet_proto::transport::Address;
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use tonic::Code;

use crate::common::etcd::{Cluster, Etcd};
use crate::common::{Calls, Client, Lab, reaches};
use castnet_sim_control::controllers::leader;

fn address(folder: &Path, n: usize) -> Address {
    Address::Unix(folder.join(format!("controller{n}.sock")))
}

/// Controllers, each a process.
struct Processes<'l> {
    lab: &'l Lab,
    all: Vec<Child>,
}

const FOLDER: &str = "CASTNET_TEST_FOLDER";
const MEMBER: &str = "CASTNET_TEST_MEMBER";
const NUMBER: &str = "CASTNET_TEST_NUMBER";
/// Time to live of the lead: long before the pause, and short for the test, which waits for its end.
const LEAD_TTL: Duration = Duration::from_secs(10);

/// No test by itself: the process of a controller, of a test below.
#[test]
fn process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let member = std::env::var(MEMBER).unwrap().parse().unwrap();
        let n = std::env::var(NUMBER).unwrap().parse().unwrap();
        let folder = Path::new(&folder);
        let mut config = Lab::two_tiers_config(folder);
        config.etcd = Some(EtcdConfig {
            lead_ttl: LEAD_TTL,
            ..Cluster::config_of(vec![member])
        });
        config.store = None;
        config.listen = address(folder, n);
        let _controller = Controller::start(config).await.unwrap();
        std::future::pending::<()>().await;
    });
}

impl<'l> Processes<'l> {
    fn start(lab: &'l Lab, cluster: &Cluster, count: usize) -> Self {
        let member = cluster.config().members.remove(0).to_string();
        let spawn = |n: usize| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "failover::process"])
                .env(FOLDER, lab.folder.path())
                .env(MEMBER, &member)
                .env(NUMBER, n.to_string())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let all = (0..count).map(spawn).collect();
        Self { lab, all }
    }

    /// The controller that leads, other than `not`, and a client of it.
    async fn leader(&self, not: Option<usize>) -> (usize, Client) {
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
    let processes = Processes::start(&lab, &cluster, 2);
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
