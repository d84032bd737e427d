//! Controllers over the model of etcd: who leads is named, and etcd has no quorum.

use castnet_proto::term::leader_of;
use castnet_proto::transport::{Controllers, Security, controller};
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use std::time::Duration;
use tokio::time::sleep;
use tonic::Code;

use crate::common::{Calls, Client, Lab, moment, start};
use crate::failover::exists;
use castnet_sim_control::controllers::{Candidates, client};
use castnet_sim_control::etcd::EtcdModel;

/// Longer than a lease.
const LATE: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn those_that_do_not_lead_name_the_one_that_does() {
    let (lab, etcd) = (Lab::two_tiers().await, EtcdModel::start(1).await);
    let mut candidates = Candidates::start(&lab.config, lab.folder.path(), &etcd, 3).await;
    let mut dead = None;
    for _ in 0..2 {
        let (leads, _) = candidates.leader(dead).await;
        let leads_at = candidates.addresses[leads].clone();
        for n in (0..3).filter(|n| *n != leads && Some(*n) != dead) {
            let mut standby = client(&candidates.addresses[n]).await.unwrap();
            let refused = loop {
                let refused = standby.list_hosts(v1::ListHostsRequest {}).await.unwrap_err();
                assert_eq!(refused.code(), Code::Unavailable);
                // Until it has looked, it names none, or the one before.
                if leader_of(&refused).as_ref() == Some(&leads_at) {
                    break refused;
                }
                moment().await;
            };
            assert!(refused.message().contains("leads"), "{refused}");
            // Clients follow.
            let one = candidates.addresses[n].clone().into();
            let mut found = controller(&one, &Security::default()).await.unwrap();
            let found = found.find_leader(v1::FindLeaderRequest {}).await.unwrap();
            assert_eq!(found.into_inner().address, leads_at.to_string());
        }
        // Of a list, the one that leads is found.
        let all: Vec<String> = candidates.addresses.iter().map(ToString::to_string).collect();
        let all: Controllers = all.join(",").parse().unwrap();
        let mut found = controller(&all, &Security::default()).await.unwrap();
        let found = found.find_leader(v1::FindLeaderRequest {}).await.unwrap();
        assert_eq!(found.into_inner().address, leads_at.to_string());
        candidates.kill(leads).await;
        dead = Some(leads);
    }
}

async fn create_at_last(client: &Client, request: v1::CreateGroupRequest) {
    while client.clone().create_group(request.clone()).await.is_err() {
        moment().await;
    }
}

/// Reads go on, writes are refused with the reason; when etcd has a quorum again, so does the controller, without a restart.
#[tokio::test(start_paused = true)]
async fn without_a_quorum_reads_go_on_and_writes_are_refused() {
    let (lab, mut etcd) = (Lab::two_tiers().await, EtcdModel::start(3).await);
    let mut config = lab.config.clone();
    (config.store, config.etcd) = (None, Some(etcd.config()));
    let (_controller, mut leader) = start(config).await;
    // It may not lead yet.
    create_at_last(&leader, lab.given("g", &["h0", "h2"], 17)).await;
    etcd.kill(0).await;
    etcd.kill(1).await;
    // Longer than the lease.
    sleep(LATE).await;
    let request = lab.given("x", &["h1", "h3"], 18);
    let refused = leader.create_group(request).await.unwrap_err();
    let says = "see that a majority of its members runs";
    assert!(refused.message().contains(says), "{refused}");
    assert_eq!(leader.get("g").await.state.unwrap().phase(), Active);
    etcd.restart(0).await;
    create_at_last(&leader, lab.given("h", &["h1", "h3"], 18)).await;
    assert!(!exists(&leader, "x").await);
    lab.all_did(&["+g.1", "+h.1"], "");
}
