//! Controllers that are killed while ranks are in: what is stored says who was in, and their leases run from then on.

use crate::common::ranks::{Rank, all, becomes, shown, vanishes};
use crate::common::{Calls, Lab, two_tiers};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase::{Active, Failed};

/// Traffic goes on without a controller: ranks that come back are at their places, and no switch is told anything.
#[tokio::test(start_paused = true)]
async fn ranks_that_come_back_to_a_new_controller_are_at_their_places() {
    let (lab, controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    let before = all(&mut ranks, Active).await;
    let (_controller, client) = lab.restart(controller).await;
    let group = shown(&client, "job").await.unwrap().state.unwrap();
    assert_eq!(group.phase(), Active);
    assert!(group.members.iter().all(|m| m.phase() == v1::MemberPhase::Away));
    // They call with the same connections.
    let requests = ranks.into_iter().map(|rank| rank.request);
    let mut back = Rank::join_all(&client, requests).await;
    for (before, after) in before.iter().zip(all(&mut back, Active).await) {
        assert_eq!(after.generation, 1);
        assert_eq!(after.start_psn, before.start_psn);
        assert_eq!(after.rq_psn, before.rq_psn);
    }
    becomes(&client, "job", |g| g.tree.iter().all(|n| n.installed)).await;
    lab.all_did(&["+job.1"], "");
}

/// Where they do not come back, the group is taken off the switches.
#[tokio::test(start_paused = true)]
async fn ranks_that_died_with_the_controller_leave_nothing_behind() {
    let mut lab = Lab::two_tiers().await;
    lab.config.timeouts.linger = std::time::Duration::from_millis(1);
    let (controller, client) = lab.start().await;
    // Longer than the first controller lives; the new one counts from its start.
    let mut ranks = lab.ranks_with(&client, "job", 17, |r| r.lease_ms = 50).await;
    all(&mut ranks, Active).await;
    controller.stop().await;
    drop(ranks);
    assert_eq!(lab.placed().len(), 3);
    let (_controller, client) = lab.start().await;
    vanishes(&client, "job").await;
    assert!(lab.placed().is_empty());
}

/// Nor does a job that had failed before, while it was still shown.
#[tokio::test(start_paused = true)]
async fn a_failed_job_ends_also_after_a_restart() {
    let mut lab = Lab::two_tiers().await;
    lab.config.timeouts.linger = std::time::Duration::from_secs(3600);
    let (controller, client) = lab.start().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    all(&mut ranks, Active).await;
    client.evict("job", "2").await.unwrap();
    drop(ranks);
    let has_failed = |g: &v1::Collective| g.state.as_ref().unwrap().phase() == Failed;
    becomes(&client, "job", has_failed).await;
    controller.stop().await;
    lab.config.timeouts.linger = std::time::Duration::from_millis(1);
    let (_controller, client) = lab.start().await;
    vanishes(&client, "job").await;
}

/// A switch loses its part while the controller is away: found out when both are back.
#[tokio::test(start_paused = true)]
async fn a_part_that_was_lost_meanwhile_is_found_out() {
    let (mut lab, controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    all(&mut ranks, Active).await;
    controller.stop().await;
    lab.switches.get_mut("spine0").unwrap().restart().await;
    let (_controller, client) = lab.start().await;
    let has_failed =
        |g: &v1::Collective| g.state.as_ref().unwrap().failed_switch == "spine0" && g.tree.is_empty();
    let failed = becomes(&client, "job", has_failed).await;
    assert_eq!(failed.state.unwrap().phase(), Failed);
    assert!(lab.placed().is_empty());
}
