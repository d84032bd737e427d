//! Receivers that the tree of their group does not reach: they are outside, and the others run.

use castnet_controller::Controller;
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed};
use castnet_proto::v1::MemberLoss;
use castnet_proto::v1::MemberPhase::{Expected, Joined};
use tonic::Status;

use crate::common::{Call, Calls, Client, Lab, PATIENCE, creation_with, next, phases, reaches, two_tiers};

const HOSTS: [&str; 4] = ["h0", "h1", "h2", "h3"];

/// All join with leases; those in `not` do not co-work.
async fn join(lab: &Lab, client: &Client, not: &[&str]) -> Vec<Call> {
    let mut calls = Vec::new();
    for host in HOSTS {
        let co_works = !not.contains(&host);
        let request = v1::JoinGroupRequest {
            co_works,
            passes_on: co_works,
            ..lab.leased("g", host, 17)
        };
        calls.push(client.join(request).await);
    }
    calls
}

async fn report(client: &Client, host: &str, out: &v1::OutsideReceiver) -> Result<(), Status> {
    let request = v1::ReportUnreachedRequest {
        group: "g".into(),
        host: host.into(),
        receiver: out.host.clone(),
        number: out.number,
        reason: "no answer".into(),
    };
    client.clone().report_unreached(request).await.map(drop)
}

fn via(state: &v1::GroupState) -> Vec<(&str, &str)> {
    let each = state.outside.iter();
    each.map(|out| (out.host.as_str(), out.via.as_str())).collect()
}

/// leaf1 refuses.
async fn with_full_leaf() -> (Lab, Controller, Client) {
    let (lab, controller, client) = two_tiers().await;
    lab.refuses("leaf1", Some(Status::resource_exhausted("full")));
    (lab, controller, client)
}

#[tokio::test(start_paused = true)]
async fn receivers_whose_switch_refuses_are_outside_and_the_others_run() {
    let (lab, controller, client) = with_full_leaf().await;
    client.create(creation_with(MemberLoss::Evict, "g", &HOSTS)).await;
    let mut calls = join(&lab, &client, &[]).await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    assert_eq!(via(&state), [("h2", "h1"), ("h3", "h2")]);
    for out in &state.outside {
        assert_eq!(out.reason, "switch leaf1 refuses: full");
    }
    let says = "from host to host gets h2 from h1, h3 from h2: switch leaf1 refuses: full";
    assert_eq!(state.reason, says);
    let placed = lab.placed();
    assert!(placed.iter().all(|p| p.starts_with("leaf0 ")), "{placed:?}");
    // Each member learns it by its call.
    for call in &mut calls {
        while via(&next(call).await).len() != 2 {}
    }
    // Also after a restart of the controller.
    let (_controller, client) = lab.restart(controller).await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    assert_eq!(via(&state), [("h2", "h1"), ("h3", "h2")]);
    let before = state.generation;
    client.leave("g", "h2").await;
    let state = reaches(&client, "g", Active).await.state.unwrap();
    assert_eq!(via(&state), [("h3", "h1")]);
    assert_eq!((state.generation, state.members[2].phase()), (before, Expected));
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_not_reached_from_host_to_host_is_lost() {
    for loss in [MemberLoss::Evict, MemberLoss::Fail] {
        let (lab, _controller, client) = with_full_leaf().await;
        client.create(creation_with(loss, "g", &HOSTS)).await;
        let _calls = join(&lab, &client, &[]).await;
        let state = reaches(&client, "g", Active).await.state.unwrap();
        let [h2, h3] = &state.outside[..] else {
            panic!("{state:?}")
        };
        // Neither another member nor an earlier choice counts.
        let earlier = v1::OutsideReceiver {
            number: h2.number + 7,
            ..h2.clone()
        };
        report(&client, "h1", h3).await.unwrap();
        report(&client, "h1", &earlier).await.unwrap();
        assert!(report(&client, "h9", h2).await.is_err(), "it is no member");
        let same = reaches(&client, "g", Active).await.state.unwrap();
        assert_eq!(same.outside, state.outside);
        report(&client, "h1", h2).await.unwrap();
        if loss == MemberLoss::Fail {
            let state = reaches(&client, "g", Failed).await.state.unwrap();
            let says = "h1 does not reach it: no answer";
            assert!(state.reason.contains(says), "{}", state.reason);
            assert!(state.outside.is_empty());
            continue;
        }
        let state = reaches(&client, "g", Active).await.state.unwrap();
        assert_eq!(via(&state), [("h3", "h1")]);
        assert_eq!(phases(&state), [Joined, Joined, Expected, Joined]);
    }
}

/// A source that does not wait for them, a receiver that takes nothing from others, and nobody in the tree who passes anything on.
#[tokio::test(start_paused = true)]
async fn a_group_whose_members_do_not_co_work_is_installed_for_all_or_none() {
    for not in ["h0", "h3", "h1"] {
        let (lab, _controller, client) = with_full_leaf().await;
        client.create(creation_with(MemberLoss::Evict, "g", &HOSTS)).await;
        let _calls = join(&lab, &client, &[not]).await;
        let state = reaches(&client, "g", Failed).await.state.unwrap();
        assert!(state.reason.contains("leaf1"), "{not}: {}", state.reason);
        assert!(state.outside.is_empty() && lab.placed().is_empty(), "{not}");
    }
}

/// Nothing flows before the group runs, so what a member says of its receiver then takes out nobody.
#[tokio::test(start_paused = true)]
async fn a_member_lost_before_the_group_runs_neither_fails_nor_evicts() {
    for loss in [MemberLoss::Evict, MemberLoss::Fail] {
        let (lab, _controller, client) = with_full_leaf().await;
        client.create(creation_with(loss, "g", &HOSTS)).await;
        let (gate, mut held) = lab.switch("leaf0").hold();
        let _calls = join(&lab, &client, &[]).await;
        // The switch of the source is the last: leaf1 has refused, and the group is placed without it.
        let held = tokio::time::timeout(PATIENCE, held.recv());
        held.await.expect("in time").unwrap();
        let state = client.get("g").await.state.unwrap();
        assert_eq!(state.phase(), v1::GroupPhase::Installing, "{state:?}");
        report(&client, "h1", &state.outside[0]).await.unwrap();
        gate.add_permits(1000);
        let state = reaches(&client, "g", Active).await.state.unwrap();
        assert_eq!(state.generation, 2);
        assert_eq!(via(&state), [("h2", "h1"), ("h3", "h2")]);
    }
}
