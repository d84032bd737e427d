//! Leases of members of multicast groups: what becomes of a group when one ends.

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed, Registered, Removing};
use castnet_proto::v1::{CollectivePhase, MemberLoss, MemberPhase};
use tonic::{Code, Streaming};

use crate::common::ranks::{Rank, all};
use crate::common::{Client, Events, Lab, creation, moment, next, reaches};

/// A lease that does not end here.
const LONG: Option<u32> = Some(600_000);
/// One that ends at once.
const SHORT: Option<u32> = Some(1);
const HOSTS: [&str; 3] = ["h0", "h1", "h2"];

type Call = Streaming<v1::GroupState>;

async fn join(lab: &Lab, client: &Client, host: &str, qpn: u32, lease_ms: Option<u32>) -> Call {
    let request = v1::JoinGroupRequest {
        lease_ms,
        ..lab.joining("g", host, qpn)
    };
    client.join(request).await
}

/// A group of three whose members have these leases; their calls.
async fn group(lab: &Lab, client: &Client, loss: MemberLoss, leases: [Option<u32>; 3]) -> Vec<Call> {
    let request = v1::CreateGroupRequest {
        on_member_loss: loss as i32,
        ..creation("g", &HOSTS)
    };
    client.create(request).await;
    let mut calls = Vec::new();
    for (host, lease) in HOSTS.into_iter().zip(leases) {
        calls.push(join(lab, client, host, 17, lease).await);
    }
    for call in &mut calls {
        while next(call).await.phase() != Active {}
    }
    calls
}

fn phases(state: &v1::GroupState) -> Vec<MemberPhase> {
    state.members.iter().map(|m| m.phase()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_receiver_whose_lease_ends_is_put_out_and_the_others_go_on() {
    let (lab, _controller, mut client) = two_tiers().await;
    let mut calls = group(&lab, &client, MemberLoss::Evict, [LONG, LONG, SHORT]).await;
    let mut events = Events::of(&client).await;
    drop(calls.pop());
    let wanted = [MemberPhase::Joined, MemberPhase::Joined, MemberPhase::Expected];
    loop {
        let state = events.group("g", Active).await;
        if phases(&state) == wanted && lab.placed() == ["leaf0 g.2"] {
            break;
        }
    }
    // The streams of the others stay, and a member that is in is not taken twice.
    assert_eq!(next(&mut calls[0]).await.phase(), Active);
    let again = client.join_group(lab.joining("g", "h2", 18)).await.unwrap_err();
    assert_eq!(again.code(), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_fails_with_a_receiver_says_which() {
    let (lab, _controller, client) = two_tiers().await;
    let mut calls = group(&lab, &client, MemberLoss::Fail, [LONG, LONG, SHORT]).await;
    drop(calls.pop());
    let state = reaches(&client, "g", Failed).await.state.unwrap();
    assert!(state.reason.starts_with("host h2 is gone"), "{state:?}");
    assert_eq!(phases(&state), [MemberPhase::Expected; 3]);
    assert!(lab.placed().is_empty());
    // The others learn of it by their calls.
    while !matches!(next(&mut calls[0]).await.phase(), Removing | Failed) {}
}

/// Its receivers come again with new queue pairs, and so does a source.
#[tokio::test(start_paused = true)]
async fn without_its_source_a_group_waits_for_its_members_again() {
    let (lab, _controller, client) = two_tiers().await;
    let mut calls = group(&lab, &client, MemberLoss::Evict, [SHORT, LONG, LONG]).await;
    drop(calls.remove(0));
    reaches(&client, "g", Registered).await;
    assert!(lab.placed().is_empty());
    drop(calls);
    let mut calls = Vec::new();
    for host in HOSTS {
        calls.push(join(&lab, &client, host, 18, LONG).await);
    }
    let state = reaches(&client, "g", Active).await.state.unwrap();
    assert_eq!(state.generation, 2);
}

/// It need not wait for its old lease.
#[tokio::test(start_paused = true)]
async fn a_source_that_is_back_with_a_new_queue_pair_opens_the_group() {
    let (lab, _controller, mut client) = two_tiers().await;
    let mut calls = group(&lab, &client, MemberLoss::Evict, [LONG; 3]).await;
    // While its call stands, it is in.
    let taken = client.join_group(lab.joining("g", "h0", 18)).await.unwrap_err();
    assert_eq!(taken.code(), Code::FailedPrecondition);
    drop(calls.remove(0));
    let mut source = loop {
        let request = v1::JoinGroupRequest {
            lease_ms: LONG,
            ..lab.joining("g", "h0", 18)
        };
        // Until the controller has noticed that the call ended.
        match client.join_group(request).await {
            Ok(call) => break call.into_inner(),
            Err(status) => assert_eq!(status.code(), Code::FailedPrecondition),
        }
        moment().await;
    };
    let _receivers = [
        join(&lab, &client, "h1", 18, LONG).await,
        join(&lab, &client, "h2", 18, LONG).await,
    ];
    while next(&mut source).await.phase() != Active {}
    reaches(&client, "g", Active).await;
}

/// The file that a restart takes over has another address for a host that is in.
#[tokio::test(start_paused = true)]
async fn a_slip_in_the_topology_file_puts_nobody_out() {
    let (mut lab, controller, client) = two_tiers().await;
    let calls = group(&lab, &client, MemberLoss::Fail, [LONG; 3]).await;
    let mut ranks = lab.ranks(&client, "job", 4, 18).await;
    all(&mut ranks, CollectivePhase::Active).await;
    controller.stop().await;
    let mac = lab.topology.host("h2").unwrap().mac;
    let file = lab.config.topology.as_mut().unwrap();
    assert!(file.set_host_addresses("h2", Some([10, 99, 0, 1].into()), mac));
    let (_controller, mut client) = lab.start().await;
    drop(calls);
    for host in HOSTS {
        let state = next(&mut join(&lab, &client, host, 17, LONG).await).await;
        assert_eq!((state.phase(), state.generation), (Active, 1), "{host}");
    }
    for rank in ranks {
        let mut back = Rank::join(&client, rank.request).await;
        assert_eq!(back.until(CollectivePhase::Active).await.generation, 1);
    }
    // Nobody comes with that address for the first time.
    client.create_group(creation("other", &HOSTS)).await.unwrap();
    let refused = client
        .join_group(lab.joining("other", "h2", 19))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}

/// As clients that know of no leases: the call ends, and the member stays.
#[tokio::test(start_paused = true)]
async fn without_a_lease_a_member_stays() {
    let (lab, _controller, mut client) = two_tiers().await;
    let mut calls = group(&lab, &client, MemberLoss::Evict, [None, None, SHORT]).await;
    assert!(calls[0].message().await.unwrap().is_none());
    let mut events = Events::of(&client).await;
    calls.clear();
    while events.group("g", Active).await.members[2].phase() == MemberPhase::Joined {}
    let request = v1::GetGroupRequest { group: "g".into() };
    let state = client
        .get_group(request)
        .await
        .unwrap()
        .into_inner()
        .state
        .unwrap();
    assert_eq!(phases(&state)[..2], [MemberPhase::Joined; 2]);
}

/// A call with the same connection renews the lease, also at a controller that was started again.
#[tokio::test(start_paused = true)]
async fn after_a_restart_of_the_controller_members_call_again() {
    let (lab, controller, client) = two_tiers().await;
    let calls = group(&lab, &client, MemberLoss::Evict, [LONG, LONG, Some(500)]).await;
    controller.stop().await;
    drop(calls);
    let (_controller, client) = lab.start().await;
    let mut events = Events::of(&client).await;
    let mut source = join(&lab, &client, "h0", 17, LONG).await;
    let mut receiver = join(&lab, &client, "h1", 17, LONG).await;
    for call in [&mut source, &mut receiver] {
        assert_eq!(next(call).await.phase(), Active);
    }
    // The third does not, and its lease ends.
    loop {
        let state = events.until(|event| match event {
            v1::controller_event::Event::Group(g) => Some(g.clone()),
            _ => None,
        });
        let state = state.await;
        if phases(&state) == [MemberPhase::Joined, MemberPhase::Joined, MemberPhase::Expected] {
            break;
        }
    }
}
