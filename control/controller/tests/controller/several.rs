//! Controllers over the model of etcd: who leads is named, and etcd has no quorum.

use castnet_proto::term::leader_of;
use castnet_proto::transport::{Controllers, Security, controller};
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use castnet_topology::Topology;
use std::time::Duration;
use tokio::time::sleep;
use tonic::Code;

use crate::common::{Calls, Client, Lab, creation, in_time, moment, reaches, start};
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

/// Two fabrics have one prefix by mistake. Neither ends groups of the other; without any, the store is free for both.
#[tokio::test(start_paused = true)]
async fn a_controller_does_not_lead_where_only_groups_of_another_fabric_run() {
    let (lab, etcd) = (Lab::two_tiers().await, EtcdModel::start(1).await);
    let other = Lab::new(Topology::star(2).unwrap()).await;
    let mut right = Candidates::start(&lab.config, lab.folder.path(), &etcd, 1).await;
    let (_, leader) = right.leader(None).await;
    leader.create(lab.given("g", &["h0", "h2"], 17)).await;
    reaches(&leader, "g", Active).await;
    let wrong = Candidates::start(&other.config, other.folder.path(), &etcd, 1).await;
    right.kill(0).await;
    let mut standby = client(&wrong.addresses[0]).await.unwrap();
    let refused = async {
        loop {
            let refused = standby.list_hosts(v1::ListHostsRequest {}).await.unwrap_err();
            if refused.message().contains("belongs to another fabric") {
                return refused;
            }
            moment().await;
        }
    };
    let refused = in_time(refused).await;
    let says = "none of the switches of group \"g\" (leaf0, leaf1, spine0) is configured here";
    assert!(refused.message().contains(says), "{refused}");
    // It is tried again now and then: the right one takes the lead in between.
    right.restart(0).await;
    let (_, leader) = right.leader(None).await;
    reaches(&leader, "g", Active).await;
    lab.all_did(&["+g.1"], "");
    leader.destroy("g").await;
    right.kill(0).await;
    let (_, leader) = wrong.leader(None).await;
    leader.create(creation("h", &["h0", "h1"])).await;
    lab.all_did(&["+g.1", "-g.1"], "");
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
