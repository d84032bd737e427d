//! Leases of members of multicast groups: what becomes of a group when one ends.

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed, Removing};
use castnet_proto::v1::MemberPhase::{Expected, Joined};
use castnet_proto::v1::{CollectivePhase, MemberLoss};
use tonic::Code;

use crate::common::ranks::{Rank, all};
use crate::common::{
    Call, Calls, Client, Events, Lab, creation, creation_with, group_until, join_all, moment, next, phases,
    reaches, refused, two_tiers,
};

/// A lease that does not end here.
const LONG: Option<u32> = Some(600_000);
/// One that ends at once.
const SHORT: Option<u32> = Some(1);
const HOSTS: [&str; 3] = ["h0", "h1", "h2"];

/// A group of three whose members have these leases; their calls.
async fn group(lab: &Lab, client: &Client, loss: MemberLoss, leases: [Option<u32>; 3]) -> Vec<Call> {
    client.create(creation_with(loss, "g", &HOSTS)).await;
    let joins = HOSTS.into_iter().zip(leases);
    let joins = joins.map(|(host, lease_ms)| v1::JoinGroupRequest {
        lease_ms,
        ..lab.joining("g", host, 17)
    });
    join_all(client, joins).await
}

#[tokio::test(start_paused = true)]
async fn a_group_that_fails_with_a_receiver_says_which() {
    let (lab, _controller, client) = two_tiers().await;
    let mut calls = group(&lab, &client, MemberLoss::Fail, [LONG, LONG, SHORT]).await;
    drop(calls.pop());
    let state = reaches(&client, "g", Failed).await.state.unwrap();
    assert!(state.reason.starts_with("host h2 is gone"), "{state:?}");
    assert_eq!(phases(&state), [Expected; 3]);
    assert!(lab.placed().is_empty());
    // The others learn of it by their calls.
    while !matches!(next(&mut calls[0]).await.phase(), Removing | Failed) {}
}

/// It need not wait for its old lease.
#[tokio::test(start_paused = true)]
async fn a_source_that_is_back_with_a_new_queue_pair_opens_the_group() {
    let (lab, _controller, mut client) = two_tiers().await;
    let mut calls = group(&lab, &client, MemberLoss::Evict, [LONG; 3]).await;
    // While its call is open, it is in.
    let taken = client.join_group(lab.joining("g", "h0", 18)).await;
    refused(taken, Code::FailedPrecondition, "");
    drop(calls.remove(0));
    let mut source = loop {
        // Until the controller has noticed that the call ended.
        match client.join_group(lab.leased("g", "h0", 18)).await {
            Ok(call) => break call.into_inner(),
            Err(status) => assert_eq!(status.code(), Code::FailedPrecondition),
        }
        moment().await;
    };
    let _receivers = join_all(&client, ["h1", "h2"].map(|host| lab.leased("g", host, 18))).await;
    while next(&mut source).await.phase() != Active {}
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
        let state = next(&mut client.join(lab.leased("g", host, 17)).await).await;
        assert_eq!((state.phase(), state.generation), (Active, 1), "{host}");
    }
    for rank in ranks {
        let mut back = Rank::join(&client, rank.request).await;
        assert_eq!(back.until(CollectivePhase::Active).await.generation, 1);
    }
    // Nobody comes with that address for the first time.
    client.create(creation("other", &HOSTS)).await;
    let other = client.join_group(lab.joining("other", "h2", 19)).await;
    refused(other, Code::InvalidArgument, "");
}

/// As clients that know of no leases: the call ends, and the member stays.
#[tokio::test(start_paused = true)]
async fn without_a_lease_a_member_stays() {
    let (lab, _controller, mut client) = two_tiers().await;
    let mut calls = group(&lab, &client, MemberLoss::Evict, [None, None, SHORT]).await;
    assert!(calls[0].message().await.unwrap().is_none());
    let mut events = Events::of(&client).await;
    calls.clear();
    while events.group("g", Active).await.members[2].phase() == Joined {}
    let state = client.get("g").await.state.unwrap();
    assert_eq!(phases(&state)[..2], [Joined; 2]);
    // The one that is out cannot join as if the group did not run.
    let again = client.join_group(lab.joining("g", "h2", 18)).await;
    refused(again, Code::FailedPrecondition, "");
}

/// A call with the same connection renews the lease, also at a controller that was started again.
#[tokio::test(start_paused = true)]
async fn after_a_restart_of_the_controller_members_call_again() {
    let (lab, controller, client) = two_tiers().await;
    let calls = group(&lab, &client, MemberLoss::Evict, [LONG, LONG, Some(500)]).await;
    controller.stop().await;
    drop(calls);
    let (_controller, client) = lab.start().await;
    let mut back = Vec::new();
    for host in ["h0", "h1"] {
        let mut call = client.join(lab.leased("g", host, 17)).await;
        assert_eq!(next(&mut call).await.phase(), Active);
        back.push(call);
    }
    // The third does not, and its lease ends.
    let is_out = |s: &v1::GroupState| phases(s) == [Joined, Joined, Expected];
    group_until(&client, "g", is_out).await;
}
