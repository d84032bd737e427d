//! Groups of several lanes: one for whoever asks, K on the switches, all of them or none.

use crate::common::ranks::{Rank, all, shown};
use crate::common::{Lab, creation, destruction, last, moment, next, phase, reaches, start};
use castnet_controller::{Checkpoint, Checkpoints, Config};
use castnet_proto::convert::violations;
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use castnet_proto::v1::GroupPhase::{Active, Failed, Registered};
use tonic::{Code, Status};

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

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, field: &str) {
    let status = answer.unwrap_err();
    let fields: Vec<String> = violations(&status).into_iter().map(|v| v.field).collect();
    assert_eq!(
        (status.code(), fields),
        (code, vec![field.to_owned()]),
        "{status}"
    );
}

#[tokio::test(start_paused = true)]
async fn every_switch_gets_every_lane_and_destruction_leaves_none() {
    let (lab, _controller, mut client) = two_tiers().await;
    let created = client.create(given(&lab, "g", &["h0", "h2", "h3"], 17, 3)).await;
    let group = created;
    assert_eq!(phase(&group), Active);
    let lanes: Vec<_> = group
        .lanes
        .iter()
        .map(|l| (l.name.as_str(), l.mcst_id.as_str()))
        .collect();
    assert_eq!(
        lanes,
        [
            ("g/0", "10.200.0.1"),
            ("g/1", "10.200.0.2"),
            ("g/2", "10.200.0.3")
        ]
    );
    let more = &group.members[1].connection.as_ref().unwrap().more_lanes;
    assert_eq!(more.iter().map(|l| l.qpn).collect::<Vec<_>>(), [18, 19]);
    let order: Vec<String> = ["leaf1", "spine0", "leaf0"]
        .iter()
        .flat_map(|switch| (0..3).map(move |lane| format!("{switch} +g/{lane}.1")))
        .collect();
    assert_eq!(*lab.journal.lock(), order);
    // Each lane has its own queue pairs and address, and nothing else of its own.
    lab.switch("leaf1").with(|toy| {
        let rules: Vec<&v1::GroupRule> = toy.groups.values().map(|(rule, _)| rule).collect();
        for (lane, rule) in rules.iter().enumerate() {
            let hosts: Vec<u32> = rule
                .endpoints
                .iter()
                .filter_map(|endpoint| match endpoint.next_hop.as_ref()? {
                    v1::endpoint::NextHop::Host(host) => Some(host.qpn),
                    v1::endpoint::NextHop::Switch(_) => None,
                })
                .collect();
            assert_eq!(hosts, [17 + lane as u32; 2]);
            assert_eq!(
                (rule.multicast().unwrap().start_psn, rule.pmtu),
                (Some(100), 1024)
            );
        }
    });
    // The next group's addresses come after all of these.
    let other = client.create(creation("other", &["h0", "h1"])).await;
    let other = other;
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
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("no room for g/1"), "{status}");
    assert!(lab.placed().is_empty(), "{:?}", lab.placed());
    let gone = client.try_get("g").await;
    assert_eq!(gone.unwrap_err().code(), Code::NotFound);

    // Members that join hear why, and may try again.
    let mut request = creation("g", &["h0", "h2"]);
    request.lanes = 2;
    client.create(request).await;
    for (round, expected) in [(0, Failed), (1, Active)] {
        let mut streams = Vec::new();
        for host in ["h0", "h2"] {
            let mut joining = lab.joining("g", host, 30 + round * 2);
            joining.connection = joining.connection.map(|c| ends(c, 2));
            streams.push(client.join(joining).await);
        }
        for stream in &mut streams {
            assert_eq!(phase(&last(stream).await), expected);
        }
        if expected == Failed {
            assert!(lab.placed().is_empty());
        }
        lab.switch("spine0").with(|t| t.refuse_rule = None);
    }
    assert_eq!(lab.placed().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_member_brings_as_many_queue_pairs_as_there_are_lanes() {
    let (lab, _controller, mut client) = two_tiers().await;
    let mut request = creation("g", &["h0", "h2"]);
    request.lanes = 17;
    refused(
        client.create_group(request.clone()).await,
        Code::InvalidArgument,
        "lanes",
    );
    request.lanes = 2;
    client.create(request).await;
    for lanes in [1, 3] {
        let mut joining = lab.joining("g", "h0", 17);
        joining.connection = joining.connection.map(|c| ends(c, lanes));
        let answer = client.join_group(joining).await;
        refused(answer, Code::InvalidArgument, "connection.more_lanes");
    }
    let mut joining = lab.joining("g", "h0", 17);
    joining.connection = joining.connection.map(|c| ends(c, 2));
    let mut stream = client.join(joining).await;
    assert_eq!(next(&mut stream).await.lanes.len(), 2);
    // No queue pair is in two groups, whatever the lane.
    client
        .create_group(creation("other", &["h0", "h2"]))
        .await
        .unwrap();
    let answer = client.join_group(lab.joining("other", "h0", 18)).await;
    refused(answer, Code::AlreadyExists, "connection.qpn");
}

#[tokio::test(start_paused = true)]
async fn when_all_have_left_all_lanes_go_and_come_again() {
    let (lab, _controller, mut client) = two_tiers().await;
    client.create(given(&lab, "g", &["h0", "h1"], 17, 2)).await;
    assert_eq!(lab.placed(), ["leaf0 g/0.1", "leaf0 g/1.1"]);
    let leave = v1::LeaveGroupRequest {
        group: "g".into(),
        host: "h0".into(),
        rank: None,
        ..Default::default()
    };
    client.leave_group(leave).await.unwrap();
    reaches(&client, "g", Registered).await;
    assert!(lab.placed().is_empty());
    let mut streams = Vec::new();
    for host in ["h0", "h1"] {
        let mut joining = lab.joining("g", host, 27);
        joining.connection = joining.connection.map(|c| ends(c, 2));
        streams.push(client.join(joining).await);
    }
    for stream in &mut streams {
        assert_eq!(phase(&last(stream).await), Active);
    }
    assert_eq!(lab.placed(), ["leaf0 g/0.2", "leaf0 g/1.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_the_lanes_and_a_switch_gets_all_of_them_again() {
    let (mut lab, controller, mut client) = two_tiers().await;
    client.create(given(&lab, "g", &["h0", "h2"], 17, 2)).await;
    let before = reaches(&client, "g", Active).await;
    controller.stop().await;
    let (_controller, client) = lab.start().await;
    let after = reaches(&client, "g", Active).await;
    assert_eq!(before.state.unwrap().lanes, after.state.unwrap().lanes);
    assert_eq!(lab.journal.lock().len(), 6, "the switches were left alone");
    // One lane is removed behind its back, on one switch.
    lab.switches.get_mut("spine0").unwrap().restart().await;
    let mut placed = lab.placed();
    while placed.len() < 6 {
        moment().await;
        placed = lab.placed();
    }
    assert!(placed.contains(&"spine0 g/1.1".to_owned()), "{placed:?}");
}

/// The controller is killed when a switch has its lanes: all have them, once, when it comes back.
#[tokio::test(start_paused = true)]
async fn killed_half_way_it_finishes_all_lanes() {
    for switch in ["leaf1", "spine0", "leaf0"] {
        let lab = Lab::two_tiers().await;
        let (reached, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let point = Checkpoint::Installed(switch.into());
        let config = Config {
            checkpoints: Checkpoints::new(move |at| *at == point && reached.send(()).is_ok()),
            ..lab.config.clone()
        };
        let (controller, mut client) = start(config).await;
        let request = given(&lab, "g", &["h0", "h2"], 17, 2);
        let create = tokio::spawn(async move { client.create_group(request).await });
        seen.recv().await.unwrap();
        controller.stop().await;
        create.await.unwrap().unwrap_err();
        let (_controller, client) = lab.start().await;
        reaches(&client, "g", Active).await;
        for name in ["leaf0", "leaf1", "spine0"] {
            assert_eq!(
                lab.switch(name).changes(),
                ["+g/0.1", "+g/1.1"],
                "{switch} {name}"
            );
        }
    }
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

    let mut ranks = Vec::new();
    for rank in 0..4 {
        ranks.push(Rank::join(&client, rank_of(&lab, rank, 2)).await);
    }
    let seen = all(&mut ranks, CollectivePhase::Active).await;
    let names: Vec<_> = seen[0].lanes.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(
        (names, seen[0].settings.clone().unwrap().lanes),
        (vec!["job/0", "job/1"], 2)
    );
    let group = shown(&client, "job").await.unwrap();
    assert_eq!(memory(&group), alone.iter().map(|m| 2 * m).collect::<Vec<_>>());
    lab.switch("leaf0").with(|toy| {
        let rules = toy.groups.values().map(|(rule, _)| rule);
        let rules: Vec<_> = rules.filter(|r| r.name.starts_with("job/")).collect();
        assert_eq!(rules.len(), 2);
        for (lane, rule) in rules.iter().enumerate() {
            for endpoint in &rule.endpoints {
                if let Some(v1::endpoint::NextHop::Host(host)) = &endpoint.next_hop {
                    let Some(v1::host_endpoint::Part::Rank(part)) = &host.part else {
                        panic!("{host:?}");
                    };
                    assert_eq!(
                        (host.qpn, part.sq_psn),
                        (17 + lane as u32, 1000 * (part.rank + 1))
                    );
                }
            }
        }
        assert_eq!(rules[0].translated().unwrap(), rules[1].translated().unwrap());
    });
    // Whoever brings another number of lanes is told which the group has.
    let mut other = rank_of(&lab, 0, 3);
    other.rejoin_of = Some(1);
    refused(
        client.init_group(other).await,
        Code::InvalidArgument,
        "settings.lanes",
    );
    client.destroy("job").await;
    client.destroy("single").await;
    assert!(lab.placed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_collective_group_is_placed_with_all_its_lanes_or_not_at_all() {
    let lab = Lab::two_tiers().await;
    lab.switch("leaf1").with(|t| t.refuse_rule = Some("job/1".into()));
    let (_controller, client) = lab.start().await;
    let mut ranks = Vec::new();
    for rank in 0..4 {
        ranks.push(Rank::join(&client, rank_of(&lab, rank, 2)).await);
    }
    let seen = all(&mut ranks, CollectivePhase::Refused).await;
    assert!(seen[0].reason.contains("no room for job/1"), "{}", seen[0].reason);
    let mut left = lab.placed();
    while !left.is_empty() {
        moment().await;
        left = lab.placed();
    }
}
