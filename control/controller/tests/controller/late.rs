//! Receivers that join a multicast group while its stream runs.

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Installing, Registered};
use castnet_proto::v1::MemberPhase::{Expected, Joined, Joining};
use castnet_proto::v1::{MemberLoss, MemberPhase};
use tonic::{Code, Status};

use crate::common::{
    Call, Calls, Client, Events, Lab, creation, creation_with, group_until, join_all, joined_by, moment,
    next, phases, reaches, refused, two_tiers,
};

const HOSTS: [&str; 4] = ["h0", "h1", "h2", "h3"];

/// From the next message on, if the group runs.
fn joining(lab: &Lab, host: &str, qpn: u32) -> v1::JoinGroupRequest {
    v1::JoinGroupRequest {
        from_next_message: true,
        ..lab.leased("g", host, qpn)
    }
}

async fn try_join(client: &Client, request: v1::JoinGroupRequest) -> Result<Call, Status> {
    Ok(client.clone().join_group(request).await?.into_inner())
}

/// Joins once the switches have what changed before.
async fn join(lab: &Lab, client: &Client, host: &str, qpn: u32) -> Call {
    loop {
        match try_join(client, joining(lab, host, qpn)).await {
            Ok(call) => return call,
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
        moment().await;
    }
}

/// A running group of these hosts; the first sends.
async fn group(lab: &Lab, client: &Client, hosts: &[&str], loss: MemberLoss) -> Vec<Call> {
    client.create(creation_with(loss, "g", hosts)).await;
    join_all(client, hosts.iter().map(|host| joining(lab, host, 17))).await
}

/// Waits until the members are in these phases.
async fn becomes(client: &Client, wanted: &[MemberPhase]) -> v1::Group {
    group_until(client, "g", |state| phases(state) == wanted).await
}

/// Waits until the switches have exactly these generations of the group.
async fn placed(lab: &Lab, client: &Client, wanted: &[&str]) {
    group_until(client, "g", |_| lab.placed() == wanted).await;
}

/// The generation of a switch's rule, the one from which it carries on, its first PSN, and who joins.
fn rule(lab: &Lab, switch: &str) -> (u64, Option<u64>, Option<u32>, Vec<String>) {
    let rule = lab.rule(switch);
    let kind = rule.multicast().expect("a multicast group");
    let joining = rule.endpoints.iter().filter(|e| e.joining);
    let joining = joining.map(|e| e.name().to_owned()).collect();
    (rule.generation, kind.carries_on, kind.start_psn, joining)
}

fn joined(state: &v1::GroupState, generation: u64, psn: u32) -> v1::agent_event::Event {
    v1::agent_event::Event::PathJoined(v1::PathJoined {
        mcst_id: state.mcst_id.clone(),
        group: "g".into(),
        generation,
        port: 0,
        next_hop: "h2".into(),
        psn,
    })
}

/// It is at a leaf that has no other receiver, and that served it before.
#[tokio::test(start_paused = true)]
async fn a_receiver_that_was_lost_comes_back_while_the_others_go_on() {
    let (lab, controller, client) = two_tiers().await;
    let mut calls = group(&lab, &client, &HOSTS[..3], MemberLoss::Evict).await;
    let before = client.get("g").await.state.unwrap();

    // Its old call has ended: it need not wait for its lease.
    drop(calls.pop());
    let mut late = loop {
        match try_join(&client, joining(&lab, "h2", 18)).await {
            Ok(call) => break call,
            Err(status) => {
                let early = [Code::FailedPrecondition, Code::Unavailable];
                assert!(early.contains(&status.code()), "{status}");
            }
        }
        moment().await;
    };
    let state = next(&mut late).await;
    assert_eq!(state.phase(), Installing);
    assert!(state.reason.contains("next message of h0"), "{}", state.reason);
    becomes(&client, &[Joined, Joined, Joining]).await;
    placed(&lab, &client, &["leaf0 g.3", "leaf1 g.3", "spine0 g.3"]).await;
    assert_eq!(rule(&lab, "leaf0"), (3, Some(1), None, vec![]));
    assert_eq!(rule(&lab, "leaf1"), (3, Some(1), None, vec!["h2".into()]));
    assert_eq!(client.get("g").await.state.unwrap().phase(), Active);

    // Only the switch next to it can say, and only of the present rules.
    lab.switch("spine0").report(joined(&before, 3, 6));
    lab.switch("leaf1").report(joined(&before, 2, 7));
    lab.switch("leaf1").report(joined(&before, 3, 777));
    lab.switch("leaf1").report(joined(&before, 3, 999));
    let state = loop {
        let state = next(&mut late).await;
        if state.phase() == Active {
            break state;
        }
    };
    assert_eq!((state.start_psn, state.mcst_id), (777, before.mcst_id.clone()));
    let group = becomes(&client, &[Joined; 3]).await;
    let whole = group.state.unwrap();
    assert_eq!(whole.start_psn, before.start_psn);
    let late = whole.members.iter().filter(|m| m.from_psn.is_some());
    let late: Vec<_> = late.map(|m| (m.host.as_str(), m.from_psn)).collect();
    assert_eq!(late, [("h2", Some(777))]);
    let rules = group.tree.iter().flat_map(|node| &node.rule);
    let mut endpoints = rules.flat_map(|rule| &rule.endpoints);
    assert!(endpoints.all(|endpoint| !endpoint.joining));

    // It calls again with the same connection, also at another controller.
    let (_controller, client) = lab.restart(controller).await;
    let mut again = join(&lab, &client, "h2", 18).await;
    let state = next(&mut again).await;
    assert_eq!((state.phase(), state.start_psn), (Active, 777));
    assert_eq!(lab.placed(), ["leaf0 g.3", "leaf1 g.3", "spine0 g.3"]);
}

#[tokio::test(start_paused = true)]
async fn one_whose_call_ends_before_the_next_message_is_put_out() {
    for loss in [MemberLoss::Evict, MemberLoss::Fail] {
        let (lab, _controller, client) = two_tiers().await;
        let _calls = group(&lab, &client, &HOSTS, loss).await;
        client.leave("g", "h2").await;
        let late = join(&lab, &client, "h2", 18).await;
        becomes(&client, &[Joined, Joined, Joining, Joined]).await;
        placed(&lab, &client, &["leaf0 g.3", "leaf1 g.3", "spine0 g.3"]).await;
        drop(late);
        becomes(&client, &[Joined, Joined, Expected, Joined]).await;
        placed(&lab, &client, &["leaf0 g.4", "leaf1 g.4", "spine0 g.4"]).await;
        assert_eq!(rule(&lab, "leaf1"), (4, Some(1), None, vec![]));
        reaches(&client, "g", Active).await;
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_name_the_reason() {
    let (lab, _controller, client) = two_tiers().await;
    let mut calls = group(&lab, &client, &HOSTS[..3], MemberLoss::Evict).await;
    drop(calls.pop());
    // Until the controller has noticed that the call ended, and the switches have the rules without it.
    let status = loop {
        let request = v1::JoinGroupRequest {
            lease_ms: None,
            ..joining(&lab, "h2", 18)
        };
        let status = try_join(&client, request).await.unwrap_err();
        if status.message().contains("while it runs") {
            break status;
        }
        moment().await;
    };
    assert_eq!(status.code(), Code::FailedPrecondition);
    let wanted = "host h2 cannot join group g while it runs: join with a lease";
    assert!(status.message().replace('"', "").contains(wanted), "{status}");

    client.evict("g", "h2").await.unwrap();
    // It is no member any more.
    let answer = try_join(&client, joining(&lab, "h2", 18)).await;
    refused(answer, Code::NotFound, "");
}

/// leaf1 goes on serving h3 by its old rule, and gets the new one late: one that joins now would be carried on from a rule that leaf1 never had.
#[tokio::test(start_paused = true)]
async fn a_late_join_waits_while_switches_are_being_changed() {
    let (lab, _controller, client) = two_tiers().await;
    let _calls = group(&lab, &client, &HOSTS, MemberLoss::Evict).await;
    let (gate, mut held) = lab.switch("leaf1").hold();
    client.leave("g", "h2").await;
    held.recv().await.unwrap();
    let early = try_join(&client, joining(&lab, "h2", 18)).await;
    refused(early, Code::Unavailable, "try again soon");
    gate.add_permits(1000);
    let _late = join(&lab, &client, "h2", 18).await;
    placed(&lab, &client, &["leaf0 g.3", "leaf1 g.3", "spine0 g.3"]).await;
}

async fn add(client: &Client, group: &str, host: &str) -> Result<v1::AddMemberResponse, Status> {
    let (group, host) = (group.into(), host.into());
    let request = v1::AddMemberRequest { group, host };
    Ok(client.clone().add_member(request).await?.into_inner())
}

/// It was no member when the group was created. Nothing changes for the others before it joins.
#[tokio::test(start_paused = true)]
async fn a_new_member_joins_the_running_stream() {
    let (lab, controller, client) = two_tiers().await;
    let _calls = group(&lab, &client, &HOSTS[..2], MemberLoss::Evict).await;
    let mut events = Events::of(&client).await;
    let added = add(&client, "g", "h2").await.unwrap();
    assert_eq!((added.added, added.phase()), (true, Active));
    while events.group("g", Active).await.members.len() < 3 {}
    let again = add(&client, "g", "h2").await.unwrap();
    assert_eq!((again.added, again.phase()), (false, Active));
    let before = becomes(&client, &[Joined, Joined, Expected]).await.state.unwrap();
    assert_eq!(lab.placed(), ["leaf0 g.1"]);

    let mut late = join(&lab, &client, "h2", 18).await;
    placed(&lab, &client, &["leaf0 g.2", "leaf1 g.2", "spine0 g.2"]).await;
    assert_eq!(rule(&lab, "leaf1"), (2, Some(1), None, vec!["h2".into()]));
    lab.switch("leaf1").report(joined(&before, 2, 777));
    while next(&mut late).await.phase() != Active {}
    becomes(&client, &[Joined; 3]).await;
    let (_controller, client) = lab.restart(controller).await;
    becomes(&client, &[Joined; 3]).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_waits_for_a_new_member() {
    let (lab, _controller, client) = two_tiers().await;
    let request = creation("g", &HOSTS[..2]);
    client.create(request).await;
    let mut calls = vec![join(&lab, &client, "h0", 17).await];
    let added = add(&client, "g", "h2").await.unwrap();
    assert_eq!((added.added, added.phase()), (true, Registered));
    calls.push(join(&lab, &client, "h1", 17).await);
    let state = becomes(&client, &[Joined, Joined, Expected]).await.state.unwrap();
    assert_eq!(state.phase(), Registered);
    assert!(state.reason.contains("h2"), "{}", state.reason);
    calls.push(join(&lab, &client, "h2", 17).await);
    for call in &mut calls {
        while next(call).await.phase() != Active {}
    }
    assert_eq!(lab.placed(), ["leaf0 g.1", "leaf1 g.1", "spine0 g.1"]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_added_is_named() {
    let (lab, _controller, client) = two_tiers().await;
    let request = creation("g", &HOSTS[..2]);
    client.create(request).await;
    let _ranks = lab.ranks(&client, "sums", 2, 17).await;
    for (group, host, code, what) in [
        ("g", "leaf0", Code::AlreadyExists, "\"leaf0\" is a switch"),
        ("g", "no name", Code::InvalidArgument, "host"),
        ("none", "h2", Code::NotFound, "none"),
        ("sums", "h2", Code::FailedPrecondition, "is a collective group"),
    ] {
        refused(add(&client, group, host).await, code, what);
    }
    becomes(&client, &[Expected; 2]).await;
}

/// The switches to which the rule of a switch sends by addresses of the core, with these addresses.
fn cores(lab: &Lab, switch: &str) -> Vec<String> {
    let core = |endpoint: v1::Endpoint| match endpoint.next_hop? {
        v1::endpoint::NextHop::Switch(to) => Some(format!("{} {}", to.name, to.core?)),
        v1::endpoint::NextHop::Host(_) => None,
    };
    lab.rule(switch).endpoints.into_iter().filter_map(core).collect()
}

#[tokio::test(start_paused = true)]
async fn a_receiver_leaves_a_group_with_a_static_core_and_comes_back() {
    let mut file = joined_by(&[("rt", "router")], 4, 1);
    for (last, switches) in [
        (1, "\"leaf1\", \"leaf3\""),
        (2, "\"leaf1\", \"leaf2\", \"leaf3\""),
    ] {
        file += &format!("[[multicast_routes]]\naddress = \"239.1.0.{last}\"\nswitches = [{switches}]\n");
    }
    let lab = Lab::new(castnet_topology::Topology::from_toml(&file).unwrap()).await;
    let (controller, client) = lab.start().await;
    let request = v1::CreateGroupRequest {
        distribution: "static".into(),
        ..creation("g", &HOSTS)
    };
    client.create(request).await;
    let _calls = join_all(&client, HOSTS.map(|host| joining(&lab, host, 17))).await;
    let all = ["leaf1", "leaf2", "leaf3"].map(|leaf| format!("{leaf} 239.1.0.2"));
    assert_eq!(cores(&lab, "leaf0"), all);
    client.leave("g", "h2").await;
    placed(&lab, &client, &["leaf0 g.2", "leaf1 g.2", "leaf3 g.2"]).await;
    let few = cores(&lab, "leaf0");
    let _late = join(&lab, &client, "h2", 18).await;
    becomes(&client, &[Joined, Joined, Joining, Joined]).await;
    let third = ["leaf0 g.3", "leaf1 g.3", "leaf2 g.3", "leaf3 g.3"];
    placed(&lab, &client, &third).await;
    assert_eq!(cores(&lab, "leaf0"), all);
    assert_eq!(cores(&lab, "leaf2"), ["leaf0 239.1.0.2"]);
    // The others go on as before: leaf2 drops its copies.
    assert_eq!(few, ["leaf1 239.1.0.2", "leaf3 239.1.0.2"]);
    // Another controller knows it.
    let (_controller, client) = lab.restart(controller).await;
    assert_eq!(client.get("g").await.state.unwrap().distribution, "static");
}
