//! Members of multicast groups that leave.

use std::time::Duration;

use castnet_controller::Controller;
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed, Registered, Removing};
use castnet_proto::v1::MemberPhase::{Expected, Joined};
use castnet_proto::v1::{MemberLoss, MemberPhase};
use castnet_topology::{End, Topology};
use tonic::{Code, Status, Streaming};

use crate::collective_places::set_link;
use crate::common::{Client, Events, Lab, creation, moment, next, reaches};

const HOSTS: [&str; 3] = ["h0", "h1", "h2"];

type Call = Streaming<v1::GroupState>;

/// Joins with this queue pair; `lease`: also stays in the group by the call.
async fn join(lab: &Lab, client: &Client, member: (&str, &str), qpn: u32, lease: bool) -> Call {
    try_join(lab, client, member, qpn, lease).await.unwrap()
}

async fn try_join(
    lab: &Lab,
    client: &Client,
    (group, host): (&str, &str),
    qpn: u32,
    lease: bool,
) -> Result<Call, Status> {
    let request = v1::JoinGroupRequest {
        lease_ms: lease.then_some(600_000),
        ..lab.joining(group, host, qpn)
    };
    Ok(client.clone().join_group(request).await?.into_inner())
}

/// A running group; h0 sends.
async fn group(lab: &Lab, client: &Client, loss: MemberLoss, lease: bool) -> Vec<Call> {
    let request = v1::CreateGroupRequest {
        on_member_loss: loss as i32,
        ..creation("g", &HOSTS)
    };
    client.create(request).await;
    all_join(lab, client, 17, lease).await
}

async fn all_join(lab: &Lab, client: &Client, qpn: u32, lease: bool) -> Vec<Call> {
    let mut calls = Vec::new();
    for host in HOSTS {
        calls.push(join(lab, client, ("g", host), qpn, lease).await);
    }
    for call in &mut calls {
        while next(call).await.phase() != Active {}
    }
    calls
}

async fn leave(client: &Client, host: &str) -> bool {
    let (group, host, rank) = ("g".into(), host.into(), None);
    let request = v1::LeaveGroupRequest {
        group,
        host,
        rank,
        ..Default::default()
    };
    let left = client.clone().leave_group(request).await.unwrap();
    left.into_inner().left
}

fn phases(state: &v1::GroupState) -> Vec<MemberPhase> {
    state.members.iter().map(|m| m.phase()).collect()
}

/// With each policy, as a leave is no loss, and also if members have no leases. Its queue pair is free at once.
#[tokio::test(start_paused = true)]
async fn a_receiver_that_leaves_is_put_out_at_once_and_the_others_go_on() {
    for (loss, lease) in [
        (MemberLoss::Evict, true),
        (MemberLoss::Fail, true),
        (MemberLoss::Evict, false),
    ] {
        let (lab, _controller, client) = two_tiers().await;
        let mut calls = group(&lab, &client, loss, lease).await;
        let mut events = Events::of(&client).await;
        assert!(leave(&client, "h2").await);
        let state = loop {
            let state = events.group("g", Active).await;
            if phases(&state) == [Joined, Joined, Expected] && lab.placed() == ["leaf0 g.2"] {
                break state;
            }
        };
        assert_eq!((state.generation, state.reason.as_str()), (2, ""));
        let carries_on = lab.switch("leaf0").with(|toy| {
            let (rule, _) = toy.groups.values().next().expect("a group");
            rule.multicast().expect("a multicast group").carries_on
        });
        assert_eq!(carries_on, Some(1));
        assert!(!leave(&client, "h2").await, "it has left before");
        let request = creation("other", &["h2", "h3"]);
        client.create(request).await;
        let _other = join(&lab, &client, ("other", "h2"), 17, lease).await;
        if lease {
            assert_eq!(next(&mut calls[0]).await.phase(), Active);
            // Its own call ends with the state in which it is out.
            while let Some(state) = calls[2].message().await.unwrap() {
                assert_eq!(state.phase(), Active);
            }
        }
    }
}

/// The source asks for it when its stream is acknowledged. Whoever joins again has nothing of the next stream.
#[tokio::test(start_paused = true)]
async fn what_a_receiver_has_when_it_leaves_is_kept_until_it_joins_again() {
    let (lab, _controller, client) = two_tiers().await;
    let _calls = group(&lab, &client, MemberLoss::Evict, true).await;
    let leave = |host: &str, bytes, lacks: &str| {
        let received = Some(v1::Received {
            bytes,
            lacks: lacks.into(),
        });
        let request = v1::LeaveGroupRequest {
            group: "g".into(),
            host: host.into(),
            received,
            ..Default::default()
        };
        let mut client = client.clone();
        async move { client.leave_group(request).await }
    };
    let refused = leave("h2", 0, &"r".repeat(513)).await.expect_err("too long");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        leave("h2", 7, "the disk is full")
            .await
            .unwrap()
            .into_inner()
            .left
    );
    let state = reaches(&client, "g", Active).await.state.unwrap();
    let received = state.members[2].received.as_ref().expect("it has said it");
    assert_eq!((received.bytes, received.lacks.as_str()), (7, "the disk is full"));
    assert!(
        state
            .reason
            .ends_with("host h2 has left before the end: the disk is full"),
        "{}",
        state.reason
    );
    assert_eq!(state.members[1].received, None);

    // The source leaves. Who has failed since says so; who has said it does not say anything else. All join again.
    assert!(leave("h0", 0, "").await.unwrap().into_inner().left);
    reaches(&client, "g", Registered).await;
    for (host, bytes) in [("h1", 9), ("h2", 99)] {
        assert!(
            !leave(host, bytes, "the disk is full")
                .await
                .unwrap()
                .into_inner()
                .left
        );
    }
    let state = reaches(&client, "g", Registered).await.state.unwrap();
    let bytes = |n: usize| state.members[n].received.as_ref().map(|r| r.bytes);
    assert_eq!((bytes(1), bytes(2)), (Some(9), Some(7)));
    let _calls = all_join(&lab, &client, 18, true).await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    assert!(state.members.iter().all(|m| m.received.is_none()), "{state:?}");
}

/// There is nobody to send to. The source learns it by its call; all join again with new queue pairs.
#[tokio::test(start_paused = true)]
async fn without_receivers_a_group_waits_for_its_members_again() {
    for loss in [MemberLoss::Evict, MemberLoss::Fail] {
        let (lab, _controller, client) = two_tiers().await;
        let mut calls = group(&lab, &client, loss, true).await;
        for host in ["h1", "h2"] {
            assert!(leave(&client, host).await);
        }
        while !matches!(next(&mut calls[0]).await.phase(), Removing | Registered) {}
        let state = reaches(&client, "g", Registered).await.state.unwrap();
        assert_eq!(phases(&state), [Expected; 3]);
        assert!(lab.placed().is_empty());
        drop(calls);
        all_join(&lab, &client, 18, true).await;
    }
}

/// As at the end of a transfer: the rules are removed, and receivers that leave later change nothing.
#[tokio::test(start_paused = true)]
async fn receivers_that_leave_after_the_source_change_no_rules() {
    let (lab, _controller, client) = two_tiers().await;
    let _calls = group(&lab, &client, MemberLoss::Evict, true).await;
    assert!(leave(&client, "h0").await);
    for host in ["h1", "h2"] {
        assert!(!leave(&client, host).await);
    }
    let state = reaches(&client, "g", Registered).await.state.unwrap();
    assert_eq!((state.generation, phases(&state)), (1, vec![Expected; 3]));
}

/// The receivers learn why, and with whom they go on. One that has left before does not go on.
#[tokio::test(start_paused = true)]
async fn a_source_that_goes_on_from_host_to_host_takes_its_receivers_along() {
    let (lab, _controller, client) = two_tiers().await;
    let _calls = group(&lab, &client, MemberLoss::Evict, true).await;
    let divert = async |host: &str, why: &str| {
        let request = v1::LeaveGroupRequest {
            group: "g".into(),
            host: host.into(),
            diverts: Some(why.into()),
            ..Default::default()
        };
        let left = client.clone().leave_group(request).await;
        left.map(|left| left.into_inner().diversion)
    };
    for wrong in ["", "two\nlines", &"x".repeat(513)] {
        let refused = divert("h0", wrong).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    assert!(leave(&client, "h2").await);
    let on = Some(v1::Diversion {
        reason: "it is slow".into(),
        hosts: vec!["h0".into(), "h1".into()],
        put_out: Vec::new(),
    });
    assert_eq!(divert("h0", "it is slow").await.unwrap(), on);
    let state = reaches(&client, "g", Registered).await.state.unwrap();
    assert_eq!(state.diversion, on);
    assert!(
        state.reason.contains("h0 went on from host to host: it is slow"),
        "{}",
        state.reason
    );
    // A repeated request has the same answer, and a receiver that has everything learns it when it leaves.
    assert_eq!(divert("h0", "it is slow").await.unwrap(), on);
    assert_eq!(divert("h1", "no source").await.unwrap(), on);
    assert_eq!(divert("h2", "no source").await.unwrap(), None);
    let _calls = all_join(&lab, &client, 18, true).await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    assert_eq!((state.diversion, state.reason.as_str()), (None, ""));
    // A receiver takes nobody along.
    assert_eq!(divert("h2", "no source").await.unwrap(), None);
    assert_eq!(reaches(&client, "g", Active).await.state.unwrap().diversion, None);
}

/// All hosts are behind an ordinary switch, at the only port of the Castnet switch.
fn one_armed() -> Topology {
    let mut topology = Topology::new();
    topology.add_switch("box", [(0, [6, 0, 0, 0, 0, 1])]).unwrap();
    topology.add_plain("ethernet", 4).unwrap();
    let (near, far) = (End::port("ethernet", 0), End::port("box", 0));
    topology.connect(near, far, 9000).unwrap();
    for (n, host) in (1..).zip(HOSTS) {
        topology
            .add_host(host, Some([10, 0, 0, n].into()), Some([2, 0, 0, 0, 0, n]))
            .unwrap();
        let port = End::port("ethernet", n);
        topology.connect(port, End::host(host), 9000).unwrap();
    }
    topology
}

/// Time after which a link that is down is lost.
const LOST_AFTER: Duration = Duration::from_millis(20);

/// A running group, with the calls of its members, and what is down in its tree.
struct Torn {
    lab: Lab,
    _controller: Controller,
    client: Client,
    calls: Vec<Call>,
}

/// `goes`: what is lost.
async fn torn(topology: Topology, loss: MemberLoss, goes: Option<(&str, u32)>) -> Torn {
    let mut lab = Lab::new(topology).await;
    lab.config.timeouts.link = LOST_AFTER;
    let (controller, client) = lab.start().await;
    let request = v1::CreateGroupRequest {
        // A report counts for more than twice as long.
        stall_timeout_ms: 60_000,
        on_member_loss: loss as i32,
        ..creation("g", &HOSTS)
    };
    client.create(request).await;
    let calls = all_join(&lab, &client, 17, true).await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    let mut events = Events::of(&client).await;
    match goes {
        Some((switch, port)) => set_link(lab.switch(switch), port, false),
        None => {
            lab.switches.get_mut("leaf1").unwrap().stop().await;
            events.switch("leaf1", false).await;
            let stalled = v1::PathStalled {
                mcst_id: state.mcst_id,
                group: "g".into(),
                next_hop: "leaf1".into(),
                for_ns: 60_000_000_000,
                generation: state.generation,
                ..Default::default()
            };
            let stalled = v1::agent_event::Event::PathStalled(stalled);
            lab.switch("spine0").report(stalled);
        }
    }
    let is_down = |event: &v1::controller_event::Event| match event {
        v1::controller_event::Event::Group(group) => group.reason.contains(" is down: "),
        _ => false,
    };
    events.until(|event| is_down(event).then_some(())).await;
    tokio::time::sleep(LOST_AFTER).await;
    Torn {
        lab,
        _controller: controller,
        client,
        calls,
    }
}

/// The source leaves, to go on from host to host.
async fn divert(client: &Client) -> Option<v1::Diversion> {
    let request = v1::LeaveGroupRequest {
        group: "g".into(),
        host: "h0".into(),
        diverts: Some("nothing was acknowledged".into()),
        ..Default::default()
    };
    let left = client.clone().leave_group(request).await.unwrap();
    left.into_inner().diversion
}

/// Neither does a receiver that is cut off, by its own link or with its switch: all others would wait for it between the hosts.
#[tokio::test(start_paused = true)]
async fn receivers_that_are_cut_off_do_not_go_on_from_host_to_host() {
    let two_tiers = || Topology::leaf_spine(2, 1, 2).unwrap();
    for (goes, says) in [
        (
            Some(("leaf1", 0)),
            "host h2 is cut off: link leaf1:0 - h2 is down",
        ),
        (None, "host h2 is cut off: switch leaf1 is down"),
    ] {
        let mut torn = torn(two_tiers(), MemberLoss::Evict, goes).await;
        let diversion = divert(&torn.client).await.expect("it leads the others");
        assert_eq!(diversion.hosts, ["h0", "h1"]);
        let [out] = &diversion.put_out[..] else {
            panic!("{diversion:?}")
        };
        assert!(out.host == "h2" && out.reason.starts_with(says), "{out:?}");
        // It learns why, and the others may exchange their queue pairs without it.
        let state = loop {
            let state = next(&mut torn.calls[2]).await;
            if state.diversion.is_some() {
                break state;
            }
        };
        assert_eq!(state.diversion, Some(diversion.clone()));
        assert_eq!(state.members[2].put_out, out.reason);
        let state = reaches(&torn.client, "g", Registered).await.state.unwrap();
        assert!(state.reason.contains(says), "{}", state.reason);
        let exchange = |rank: u32| {
            let mut client = torn.client.clone();
            let request = v1::ExchangeRequest {
                job: "g".into(),
                among: v1::ExchangeAmong::Members.into(),
                rank,
                size: 2,
                blob: vec![rank as u8],
                timeout_ms: 600_000,
                ..Default::default()
            };
            async move { client.exchange(request).await }
        };
        let (first, second) = tokio::join!(exchange(0), exchange(1));
        for met in [first, second] {
            assert_eq!(met.unwrap().into_inner().blobs, [[0], [1]]);
        }
    }
    // As a group that is to fail with a receiver.
    let torn_of = torn(two_tiers(), MemberLoss::Fail, Some(("leaf1", 0))).await;
    assert_eq!(divert(&torn_of.client).await, None);
    let state = reaches(&torn_of.client, "g", Failed).await.state.unwrap();
    assert!(state.reason.starts_with("host h2 is cut off"), "{}", state.reason);
}

/// Behind an ordinary switch hosts reach each other without Castnet, and what was reported before the switch was lost may be past.
#[tokio::test(start_paused = true)]
async fn who_may_have_another_way_is_not_cut_off() {
    let link = Some(("box", 0));
    let torn_of = torn(one_armed(), MemberLoss::Evict, link).await;
    let all = divert(&torn_of.client).await.expect("it leads the others");
    assert_eq!(
        (all.hosts, all.put_out),
        (HOSTS.map(String::from).to_vec(), vec![])
    );
    let two_tiers = Topology::leaf_spine(2, 1, 2).unwrap();
    let mut torn_of = torn(two_tiers, MemberLoss::Evict, Some(("leaf1", 0))).await;
    let mut events = Events::of(&torn_of.client).await;
    torn_of.lab.switches.get_mut("leaf1").unwrap().stop().await;
    events.switch("leaf1", false).await;
    let all = divert(&torn_of.client).await.expect("it leads the others");
    assert_eq!(
        (all.hosts, all.put_out),
        (HOSTS.map(String::from).to_vec(), vec![])
    );
}

/// Switches cannot change the members of a group in which each may send. Its traffic ends with each way out, and all join again.
#[tokio::test(start_paused = true)]
async fn a_group_whose_members_all_send_ends_with_any_of_them() {
    let (mut lab, _controller, client) = two_tiers().await;
    let request = v1::CreateGroupRequest {
        any_source: v1::AnySource::Synchronized.into(),
        ..creation("g", &HOSTS)
    };
    client.create(request).await;
    let mut calls = all_join(&lab, &client, 17, true).await;
    for (qpn, (leaves, phase)) in (18..).zip([
        (0, Registered),
        (2, Registered),
        (3, Registered),
        (4, Failed),
        (5, Registered),
    ]) {
        let state = reaches(&client, "g", Active).await.state.unwrap();
        assert!(
            state.any_source() == v1::AnySource::Synchronized
                && state.members.iter().all(|m| m.role() == v1::Role::Member)
        );
        let rules = ["leaf0", "leaf1", "spine0"].map(|switch| {
            lab.switch(switch).with(|toy| {
                let rule = toy.groups.values().next().map(|(rule, _)| rule.clone());
                rule.and_then(|rule| rule.multicast().copied())
            })
        });
        assert!(
            rules
                .iter()
                .flatten()
                .all(|kind| kind.any_source() == v1::AnySource::Synchronized && kind.carries_on.is_none())
        );
        match leaves {
            // It is back with another queue pair before the lease of its broken call is over.
            3 => {
                drop(calls.remove(1));
                // The controller may not know yet that the call has ended.
                while let Err(status) = try_join(&lab, &client, ("g", "h1"), qpn, true).await {
                    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
                    moment().await;
                }
            }
            4 => lab.switches.get_mut("leaf0").unwrap().restart().await,
            5 => {
                let request = v1::EvictMemberRequest {
                    group: "g".into(),
                    member: "h2".into(),
                };
                client.clone().evict_member(request).await.unwrap();
            }
            member => assert!(leave(&client, HOSTS[member]).await),
        }
        let state = reaches(&client, "g", phase).await.state.unwrap();
        assert!(lab.placed().is_empty(), "{state:?}");
        if leaves == 5 {
            assert_eq!(phases(&state), [Expected; 2]);
            break;
        }
        calls = all_join(&lab, &client, qpn, true).await;
    }
    let mut running = Vec::new();
    for host in ["h0", "h1"] {
        running.push(join(&lab, &client, ("g", host), 30, true).await);
    }
    reaches(&client, "g", Active).await;
    let (group, host) = ("g".into(), "h3".into());
    client
        .clone()
        .add_member(v1::AddMemberRequest { group, host })
        .await
        .unwrap();
    let joining = v1::JoinGroupRequest {
        from_next_message: true,
        ..lab.joining("g", "h3", 31)
    };
    let refused = client.clone().join_group(joining).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.message().contains("each of its members may send"),
        "{refused}"
    );
}
