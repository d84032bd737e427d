//! Members that are put out of their groups.

use castnet_proto::v1::{CollectivePhase, GroupPhase};
use tonic::Code;

use crate::common::ranks::all;
use crate::common::{Calls, Events, Lab, creation, next, reaches, refused, two_tiers, until};

/// What a switch has for the only group: its generation, first PSN, and endpoints.
fn rule(lab: &Lab, switch: &str) -> (u64, Option<u32>, Vec<String>) {
    let rule = lab.rule(switch);
    let endpoints = rule.endpoints.iter().map(|e| e.name().to_owned());
    let start_psn = rule.multicast().and_then(|kind| kind.start_psn);
    (rule.generation, start_psn, endpoints.collect())
}

/// Its queue pairs and PSNs stay: switches learn where the stream is.
#[tokio::test(start_paused = true)]
async fn a_group_goes_on_without_a_receiver() {
    let (lab, _controller, client) = two_tiers().await;
    client.create(lab.given("g", &["h0", "h1", "h2", "h3"], 17)).await;
    let before = reaches(&client, "g", GroupPhase::Active).await.state.unwrap();

    assert_eq!(client.evict("g", "h3").await.unwrap(), [""; 0]);
    let words = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(rule(&lab, "leaf1"), (2, None, words(&["h2", "spine0"])));
    assert_eq!(rule(&lab, "leaf0"), (2, None, words(&["h0", "h1", "spine0"])));
    let group = reaches(&client, "g", GroupPhase::Active).await.state.unwrap();
    assert_eq!(group.mcst_id, before.mcst_id);
    assert_eq!(group.start_psn, before.start_psn);
    let members = group.members.iter().map(|m| m.host.as_str());
    assert_eq!(members.collect::<Vec<_>>(), ["h0", "h1", "h2"]);

    // Switches that served only the receiver have nothing of the group any more.
    assert_eq!(client.evict("g", "h2").await.unwrap(), [""; 0]);
    assert_eq!(lab.placed(), ["leaf0 g.3"]);
    assert_eq!(rule(&lab, "leaf0").2, ["h0", "h1"]);
    reaches(&client, "g", GroupPhase::Active).await;

    for (host, what) in [("h1", "last receiver"), ("h0", "source")] {
        refused(client.evict("g", host).await, Code::FailedPrecondition, what);
    }
    refused(client.evict("g", "h3").await, Code::NotFound, "");
}

/// Also where the controller is another process then.
#[tokio::test(start_paused = true)]
async fn a_switch_that_cannot_be_reached_learns_of_it_when_it_returns() {
    for restarts in [false, true] {
        let mut lab = Lab::two_tiers().await;
        let (mut controller, mut client) = lab.start().await;
        client.create(lab.given("g", &["h0", "h1", "h2", "h3"], 17)).await;
        lab.lose(&client, "leaf1").await;
        assert_eq!(client.evict("g", "h3").await.unwrap(), ["leaf1"]);
        assert_eq!(lab.placed(), ["leaf0 g.2", "leaf1 g.1", "spine0 g.2"]);
        if restarts {
            controller.stop().await;
            (controller, client) = lab.start().await;
        }
        let mut events = Events::of(&client).await;
        lab.switches.get_mut("leaf1").unwrap().start().await;
        events.switch("leaf1", true).await;
        let has_new = || lab.switch("leaf1").groups() == ["g.2"];
        until("leaf1 has the new rule", has_new).await;
        reaches(&client, "g", GroupPhase::Active).await;
        drop(controller);
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_does_not_wait_for_a_member_that_is_put_out() {
    let (lab, _controller, client) = two_tiers().await;
    client.create(creation("g", &["h0", "h1", "h2"])).await;
    let mut joins = Vec::new();
    for host in ["h0", "h1"] {
        joins.push(client.join(lab.joining("g", host, 17)).await);
    }
    client.evict("g", "h2").await.unwrap();
    while next(&mut joins[0]).await.phase() != GroupPhase::Active {}
    assert_eq!(lab.placed(), ["leaf0 g.1"]);
}

#[tokio::test(start_paused = true)]
async fn a_collective_group_fails_with_the_name_of_the_rank() {
    let (lab, _controller, client) = two_tiers().await;
    for member in ["2", "h2"] {
        let mut ranks = lab.ranks(&client, member, 4, 17).await;
        all(&mut ranks, CollectivePhase::Active).await;
        client.evict(member, member).await.unwrap();
        for rank in &mut ranks {
            loop {
                let state = next(&mut rank.stream).await;
                if state.phase() == CollectivePhase::Active {
                    continue;
                }
                let reason = "rank 2 (host h2) was evicted by an operator";
                assert_eq!((state.failed_rank, state.reason.as_str()), (Some(2), reason));
                break;
            }
        }
    }
    refused(client.evict("2", "7").await, Code::NotFound, "");
}
