//! Members of multicast groups that leave.

use std::time::Duration;

use castnet_controller::Controller;
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed, Registered, Removing};
use castnet_proto::v1::MemberLoss;
use castnet_proto::v1::MemberPhase::{Expected, Joined};
use castnet_proto::v1::agent_event::Event::PathStalled;
use castnet_topology::{End, Topology};
use tonic::{Code, Status};

use crate::collective_places::set_link;
use crate::common::{
    Call, Calls, Client, Events, Lab, creation, creation_with, join_all, last, moment, next, phases, reaches,
    refused, two_tiers,
};
use crate::stalls::stands_still;

const HOSTS: [&str; 3] = ["h0", "h1", "h2"];

/// A running group; h0 sends.
async fn group(lab: &Lab, client: &Client, loss: MemberLoss) -> Vec<Call> {
    client.create(creation_with(loss, "g", &HOSTS)).await;
    all_join(lab, client, 17).await
}

async fn all_join(lab: &Lab, client: &Client, qpn: u32) -> Vec<Call> {
    join_all(client, HOSTS.map(|host| lab.leased("g", host, qpn))).await
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
        let join = |group: &str, host: &str| v1::JoinGroupRequest {
            lease_ms: lease.then_some(600_000),
            ..lab.joining(group, host, 17)
        };
        client.create(creation_with(loss, "g", &HOSTS)).await;
        let mut calls = join_all(&client, HOSTS.map(|host| join("g", host))).await;
        let mut events = Events::of(&client).await;
        assert!(client.leave("g", "h2").await);
        let state = loop {
            let state = events.group("g", Active).await;
            if phases(&state) == [Joined, Joined, Expected] && lab.placed() == ["leaf0 g.2"] {
                break state;
            }
        };
        assert_eq!((state.generation, state.reason.as_str()), (2, ""));
        let rule = lab.rule("leaf0");
        assert_eq!(rule.multicast().unwrap().carries_on, Some(1));
        assert!(!client.leave("g", "h2").await, "it has left before");
        client.create(creation("other", &["h2", "h3"])).await;
        let _other = client.join(join("other", "h2")).await;
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
    let _calls = group(&lab, &client, MemberLoss::Evict).await;
    let leave = async |host: &str, bytes: u64, lacks: &str| {
        let request = v1::LeaveGroupRequest {
            group: "g".into(),
            host: host.into(),
            received: Some(v1::Received {
                bytes,
                lacks: lacks.into(),
            }),
            ..Default::default()
        };
        let left = client.clone().leave_group(request).await;
        left.map(|left| left.into_inner().left)
    };
    let too_long = leave("h2", 0, &"r".repeat(513)).await;
    refused(too_long, Code::InvalidArgument, "");
    assert!(leave("h2", 7, "the disk is full").await.unwrap());
    let state = reaches(&client, "g", Active).await.state.unwrap();
    let received = state.members[2].received.as_ref().expect("it has said it");
    assert_eq!((received.bytes, received.lacks.as_str()), (7, "the disk is full"));
    let says = "host h2 has left before the end: the disk is full";
    assert!(state.reason.ends_with(says), "{}", state.reason);
    assert_eq!(state.members[1].received, None);

    // The source leaves, and all learn that. Who has failed since says so; who has said it does not say anything else. All join again.
    assert!(leave("h0", 0, "").await.unwrap());
    reaches(&client, "g", Registered).await;
    for (host, bytes) in [("h1", 9), ("h2", 99)] {
        assert!(!leave(host, bytes, "the disk is full").await.unwrap());
    }
    let state = reaches(&client, "g", Registered).await.state.unwrap();
    let bytes = |n: usize| state.members[n].received.as_ref().map(|r| r.bytes);
    assert_eq!((bytes(1), bytes(2)), (Some(9), Some(7)));
    assert_eq!(state.ended, "host h0 has left");
    let _calls = all_join(&lab, &client, 18).await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    assert!(state.members.iter().all(|m| m.received.is_none()), "{state:?}");
}

/// There is nobody to send to. The source learns it by its call; all join again with new queue pairs.
#[tokio::test(start_paused = true)]
async fn without_receivers_a_group_waits_for_its_members_again() {
    for loss in [MemberLoss::Evict, MemberLoss::Fail] {
        let (lab, _controller, client) = two_tiers().await;
        let mut calls = group(&lab, &client, loss).await;
        for host in ["h1", "h2"] {
            assert!(client.leave("g", host).await);
        }
        while !matches!(next(&mut calls[0]).await.phase(), Removing | Registered) {}
        let state = reaches(&client, "g", Registered).await.state.unwrap();
        assert_eq!(phases(&state), [Expected; 3]);
        assert_eq!(state.ended, "no receivers are left: host h2 has left");
        assert!(lab.placed().is_empty());
        drop(calls);
        all_join(&lab, &client, 18).await;
    }
}

/// A member leaves, to go on from host to host.
async fn divert(client: &Client, host: &str, why: &str) -> Result<Option<v1::Diversion>, Status> {
    let request = v1::LeaveGroupRequest {
        group: "g".into(),
        host: host.into(),
        diverts: Some(why.into()),
        ..Default::default()
    };
    let left = client.clone().leave_group(request).await;
    left.map(|left| left.into_inner().diversion)
}

/// The receivers learn why, and with whom they go on. One that has left before does not go on.
#[tokio::test(start_paused = true)]
async fn a_source_that_goes_on_from_host_to_host_takes_its_receivers_along() {
    let (lab, _controller, client) = two_tiers().await;
    let _calls = group(&lab, &client, MemberLoss::Evict).await;
    let divert = async |host: &str, why: &str| divert(&client, host, why).await;
    for wrong in ["", "two\nlines", &"x".repeat(513)] {
        refused(divert("h0", wrong).await, Code::InvalidArgument, "");
    }
    assert!(client.leave("g", "h2").await);
    let on = Some(v1::Diversion {
        reason: "it is slow".into(),
        hosts: vec!["h0".into(), "h1".into()],
        put_out: Vec::new(),
    });
    assert_eq!(divert("h0", "it is slow").await.unwrap(), on);
    let state = reaches(&client, "g", Registered).await.state.unwrap();
    assert_eq!(state.diversion, on);
    let says = "h0 went on from host to host: it is slow";
    assert!(state.reason.contains(says), "{}", state.reason);
    // A repeated request has the same answer, and a receiver that has everything learns it when it leaves.
    assert_eq!(divert("h0", "it is slow").await.unwrap(), on);
    assert_eq!(divert("h1", "no source").await.unwrap(), on);
    assert_eq!(divert("h2", "no source").await.unwrap(), None);
    let _calls = all_join(&lab, &client, 18).await;
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

impl Torn {
    /// The source goes on from host to host.
    async fn diversion(&self) -> Option<v1::Diversion> {
        let diversion = divert(&self.client, "h0", "nothing was acknowledged").await;
        diversion.unwrap()
    }

    async fn all_go_on(&self) {
        let all = self.diversion().await.expect("it leads the others");
        assert_eq!(all.hosts, HOSTS);
        assert!(all.put_out.is_empty(), "{all:?}");
    }
}

/// `goes`: what is lost.
async fn torn(topology: Topology, loss: MemberLoss, goes: Option<(&str, u32)>) -> Torn {
    let mut lab = Lab::new(topology).await;
    lab.config.timeouts.link = LOST_AFTER;
    let (controller, client) = lab.start().await;
    let request = v1::CreateGroupRequest {
        // A report counts for more than twice as long.
        stall_timeout_ms: 60_000,
        ..creation_with(loss, "g", &HOSTS)
    };
    client.create(request).await;
    let calls = all_join(&lab, &client, 17).await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    let mut events = Events::of(&client).await;
    match goes {
        Some((switch, port)) => set_link(lab.switch(switch), port, false),
        None => {
            lab.switches.get_mut("leaf1").unwrap().stop().await;
            events.switch("leaf1", false).await;
            let stalled = stands_still(&state, "leaf1", 60_000);
            lab.switch("spine0").report(PathStalled(stalled));
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

/// Neither does a receiver that is cut off, by its own link or with its switch: all others would wait for it between the hosts.
#[tokio::test(start_paused = true)]
async fn receivers_that_are_cut_off_do_not_go_on_from_host_to_host() {
    let fabric = || Topology::leaf_spine(2, 1, 2).unwrap();
    for (goes, says) in [
        (
            Some(("leaf1", 0)),
            "host h2 is cut off: link leaf1:0 - h2 is down",
        ),
        (None, "host h2 is cut off: switch leaf1 is down"),
    ] {
        let mut torn = torn(fabric(), MemberLoss::Evict, goes).await;
        let diversion = torn.diversion().await.expect("it leads the others");
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
    let torn_of = torn(fabric(), MemberLoss::Fail, Some(("leaf1", 0))).await;
    assert_eq!(torn_of.diversion().await, None);
    let state = reaches(&torn_of.client, "g", Failed).await.state.unwrap();
    assert!(state.reason.starts_with("host h2 is cut off"), "{}", state.reason);
}

/// Behind an ordinary switch hosts reach each other without Castnet, and what was reported before the switch was lost may be past.
#[tokio::test(start_paused = true)]
async fn who_may_have_another_way_is_not_cut_off() {
    let link = Some(("box", 0));
    let torn_of = torn(one_armed(), MemberLoss::Evict, link).await;
    torn_of.all_go_on().await;
    let fabric = Topology::leaf_spine(2, 1, 2).unwrap();
    let mut torn_of = torn(fabric, MemberLoss::Evict, Some(("leaf1", 0))).await;
    torn_of.lab.lose(&torn_of.client, "leaf1").await;
    torn_of.all_go_on().await;
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
    let mut calls = all_join(&lab, &client, 17).await;
    for (qpn, (leaves, phase, why)) in (18..).zip([
        (0, Registered, "host h0 has left"),
        (2, Registered, "host h2 has left before the end: its disk is full"),
        (3, Registered, "host h1 is back with a new connection"),
        (4, Failed, "switch leaf0 has lost its part: it was restarted"),
        (5, Registered, "an operator has put host h2 out"),
    ]) {
        let state = reaches(&client, "g", Active).await.state.unwrap();
        assert_eq!(state.ended, "");
        assert!(
            state.any_source() == v1::AnySource::Synchronized
                && state.members.iter().all(|m| m.role() == v1::Role::Member)
        );
        for rule in ["leaf0", "leaf1", "spine0"]
            .iter()
            .flat_map(|switch| lab.rules(switch))
        {
            let kind = rule.multicast().unwrap();
            assert!(kind.any_source() == v1::AnySource::Synchronized && kind.carries_on.is_none());
        }
        match leaves {
            // It is back with another queue pair before the lease of its broken call is over.
            3 => {
                drop(calls.remove(1));
                // The controller may not know yet that the call has ended.
                while let Err(status) = client.clone().join_group(lab.leased("g", "h1", qpn)).await {
                    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
                    moment().await;
                }
            }
            4 => lab.switches.get_mut("leaf0").unwrap().restart().await,
            5 => drop(client.evict("g", "h2").await.unwrap()),
            member => {
                let lacks = if member == 2 { "its disk is full" } else { "" };
                let request = v1::LeaveGroupRequest {
                    group: "g".into(),
                    host: HOSTS[member].into(),
                    received: Some(v1::Received {
                        bytes: 7,
                        lacks: lacks.into(),
                    }),
                    ..Default::default()
                };
                let left = client.clone().leave_group(request).await.unwrap();
                assert!(left.into_inner().left);
                // The last state says it all: a member may miss those before.
                let state = last(&mut calls[1]).await;
                assert_eq!((phases(&state)[1], state.ended.as_str()), (Expected, why));
            }
        }
        let state = reaches(&client, "g", phase).await.state.unwrap();
        assert!(lab.placed().is_empty(), "{state:?}");
        assert_eq!(state.ended, why);
        if leaves == 5 {
            assert_eq!(phases(&state), [Expected; 2]);
            break;
        }
        calls = all_join(&lab, &client, qpn).await;
    }
    let _running = join_all(&client, ["h0", "h1"].map(|host| lab.leased("g", host, 30))).await;
    let (group, host) = ("g".into(), "h3".into());
    let request = v1::AddMemberRequest { group, host };
    client.clone().add_member(request).await.unwrap();
    let joining = v1::JoinGroupRequest {
        from_next_message: true,
        ..lab.joining("g", "h3", 31)
    };
    let late = client.clone().join_group(joining).await;
    let says = "each of its members may send";
    refused(late, Code::FailedPrecondition, says);
}
