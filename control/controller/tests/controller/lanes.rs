//! Groups of several lanes: one for whoever asks, K on the switches, all of them or none.

use crate::common::ranks::{Rank, all, shown};
use crate::common::{Calls, Lab, creation, next, phase, reaches, refused, refused_field, two_tiers, until};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use castnet_proto::v1::GroupPhase::Active;
use tonic::Code;

/// A connection with queue pairs for `lanes` lanes, counted from `qpn`.
pub(crate) fn ends(mut connection: v1::Connection, lanes: u32) -> v1::Connection {
    let more = connection.qpn + 1..connection.qpn + lanes;
    connection.more_lanes = more.map(|qpn| v1::LaneConnection { qpn, memory: None }).collect();
    connection
}

pub(crate) fn given(lab: &Lab, name: &str, members: &[&str], qpn: u32, lanes: u32) -> v1::CreateGroupRequest {
    let mut request = lab.given(name, members, qpn);
    request.lanes = lanes;
    for member in &mut request.members {
        member.connection = member.connection.take().map(|c| ends(c, lanes));
    }
    request
}

fn joining(lab: &Lab, host: &str, qpn: u32, lanes: u32) -> v1::JoinGroupRequest {
    let mut request = lab.joining("g", host, qpn);
    request.connection = request.connection.map(|c| ends(c, lanes));
    request
}

#[tokio::test(start_paused = true)]
async fn every_switch_gets_every_lane_and_destruction_leaves_none() {
    let (lab, _controller, client) = two_tiers().await;
    let group = client.create(given(&lab, "g", &["h0", "h2", "h3"], 17, 3)).await;
    assert_eq!(phase(&group), Active);
    let lanes = group.lanes.iter().map(|l| format!("{} {}", l.name, l.mcst_id));
    let wanted = (0..3).map(|lane| format!("g/{lane} 10.200.0.{}", lane + 1));
    assert!(lanes.eq(wanted), "{:?}", group.lanes);
    let more = &group.members[1].connection.as_ref().unwrap().more_lanes;
    assert_eq!(more.iter().map(|l| l.qpn).collect::<Vec<_>>(), [18, 19]);
    let order: Vec<String> = ["leaf1", "spine0", "leaf0"]
        .iter()
        .flat_map(|switch| (0..3).map(move |lane| format!("{switch} +g/{lane}.1")))
        .collect();
    assert_eq!(*lab.journal.lock(), order);
    // Each lane has its own queue pairs and address, and nothing else of its own.
    for (qpn, rule) in (17u32..).zip(lab.rules("leaf1")) {
        let hosts = rule
            .endpoints
            .iter()
            .filter_map(|endpoint| match endpoint.next_hop.as_ref()? {
                v1::endpoint::NextHop::Host(host) => Some(host.qpn),
                v1::endpoint::NextHop::Switch(_) => None,
            });
        assert_eq!(hosts.collect::<Vec<u32>>(), [qpn; 2]);
        let start_psn = rule.multicast().unwrap().start_psn;
        assert_eq!((start_psn, rule.pmtu), (Some(100), 1024));
    }
    // The next group's addresses come after all of these.
    let other = client.create(creation("other", &["h0", "h1"])).await;
    assert_eq!((other.mcst_id.as_str(), other.lanes.len()), ("10.200.0.4", 1));
    assert_eq!(other.lanes[0].name, "other");
    let destroyed = client.destroy("g").await;
    assert!(destroyed.complete && lab.placed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_lane_without_room_leaves_nothing_anywhere() {
    let lab = Lab::two_tiers().await;
    lab.switch("spine0").with(|t| t.refuse_rule = Some("g/1".into()));
    let (_controller, mut client) = lab.start().await;
    let answer = client.create_group(given(&lab, "g", &["h0", "h2"], 17, 2)).await;
    refused(answer, Code::ResourceExhausted, "no room for g/1");
    assert!(lab.placed().is_empty(), "{:?}", lab.placed());
    refused(client.try_get("g").await, Code::NotFound, "");
}

#[tokio::test(start_paused = true)]
async fn a_member_brings_as_many_queue_pairs_as_there_are_lanes() {
    let (lab, _controller, mut client) = two_tiers().await;
    let mut request = creation("g", &["h0", "h2"]);
    request.lanes = 17;
    let many = client.create_group(request.clone()).await;
    refused_field(many, Code::InvalidArgument, "lanes", "");
    request.lanes = 2;
    client.create(request).await;
    for lanes in [1, 3] {
        let answer = client.join_group(joining(&lab, "h0", 17, lanes)).await;
        refused_field(answer, Code::InvalidArgument, "connection.more_lanes", "");
    }
    let mut stream = client.join(joining(&lab, "h0", 17, 2)).await;
    assert_eq!(next(&mut stream).await.lanes.len(), 2);
    // No queue pair is in two groups, whatever the lane.
    client.create(creation("other", &["h0", "h2"])).await;
    let answer = client.join_group(lab.joining("other", "h0", 18)).await;
    refused_field(answer, Code::AlreadyExists, "connection.qpn", "");
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_the_lanes_and_a_switch_gets_all_of_them_again() {
    let (mut lab, controller, client) = two_tiers().await;
    client.create(given(&lab, "g", &["h0", "h2"], 17, 2)).await;
    let before = reaches(&client, "g", Active).await;
    let (_controller, client) = lab.restart(controller).await;
    let after = reaches(&client, "g", Active).await;
    assert_eq!(before.state.unwrap().lanes, after.state.unwrap().lanes);
    assert_eq!(lab.journal.lock().len(), 6, "the switches were left alone");
    // One lane is removed behind its back, on one switch.
    lab.switches.get_mut("spine0").unwrap().restart().await;
    until("all lanes are there", || lab.placed().len() == 6).await;
    let placed = lab.placed();
    assert!(placed.contains(&"spine0 g/1.1".to_owned()), "{placed:?}");
}

fn rank_of(lab: &Lab, rank: u32, lanes: u32) -> v1::InitGroupRequest {
    let mut request = lab.rank("job", rank, 4, 17);
    request.connection = request.connection.map(|c| ends(c, lanes));
    request.settings = Some(v1::CollectiveSettings {
        lanes,
        ..Default::default()
    });
    request
}

#[tokio::test(start_paused = true)]
async fn ranks_have_a_queue_pair_in_each_lane_and_switches_set_memory_aside_for_all() {
    let (lab, _controller, mut client) = two_tiers().await;
    let mut single = lab.ranks(&client, "single", 4, 99).await;
    all(&mut single, CollectivePhase::Active).await;
    let memory = |group: &v1::Collective| group.tree.iter().map(|n| n.memory_bytes).collect::<Vec<_>>();
    let alone = memory(&shown(&client, "single").await.unwrap());

    let requests = (0..4).map(|rank| rank_of(&lab, rank, 2));
    let mut ranks = Rank::join_all(&client, requests).await;
    let seen = all(&mut ranks, CollectivePhase::Active).await;
    let names: Vec<_> = seen[0].lanes.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["job/0", "job/1"]);
    assert_eq!(seen[0].settings.clone().unwrap().lanes, 2);
    let group = shown(&client, "job").await.unwrap();
    assert_eq!(memory(&group), alone.iter().map(|m| 2 * m).collect::<Vec<_>>());
    let mut rules = lab.rules("leaf0");
    rules.retain(|rule| rule.name.starts_with("job/"));
    assert_eq!(rules.len(), 2);
    for (qpn, rule) in (17u32..).zip(&rules) {
        for endpoint in &rule.endpoints {
            if let Some(v1::endpoint::NextHop::Host(host)) = &endpoint.next_hop {
                let Some(v1::host_endpoint::Part::Rank(part)) = &host.part else {
                    panic!("{host:?}");
                };
                assert_eq!((host.qpn, part.sq_psn), (qpn, 1000 * (part.rank + 1)));
            }
        }
    }
    assert_eq!(rules[0].translated().unwrap(), rules[1].translated().unwrap());
    // Whoever brings another number of lanes is told which the group has.
    let mut other = rank_of(&lab, 0, 3);
    other.rejoin_of = Some(1);
    let answer = client.init_group(other).await;
    refused_field(answer, Code::InvalidArgument, "settings.lanes", "");
    client.destroy("job").await;
    client.destroy("single").await;
    assert!(lab.placed().is_empty());
}
