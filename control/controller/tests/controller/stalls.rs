//! Receivers of multicast groups that stall, and what is no such receiver.

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use castnet_proto::v1::MemberLoss;
use castnet_proto::v1::MemberPhase::{Expected, Joined};
use castnet_proto::v1::agent_event::Event::PathStalled;

use crate::common::{Calls, Client, Events, Lab, group_until, phases, reaches, two_tiers, until};

const MS: u64 = 1_000_000;

/// h0 sends; h1 is at its leaf, h2 and h3 at leaf1. Who stalls is put out.
async fn group(lab: &Lab, client: &Client) -> v1::GroupState {
    let request = v1::CreateGroupRequest {
        on_member_stall: Some(v1::StallPolicy {
            after_ms: 1000,
            then: MemberLoss::Evict.into(),
        }),
        ..lab.given("g", &["h0", "h1", "h2", "h3"], 17)
    };
    client.create(request).await;
    reaches(client, "g", Active).await.state.unwrap()
}

/// What a switch reports of a path.
pub(crate) fn stands_still(group: &v1::GroupState, next_hop: &str, for_ms: u64) -> v1::PathStalled {
    v1::PathStalled {
        mcst_id: group.mcst_id.clone(),
        group: group.name.clone(),
        next_hop: next_hop.into(),
        for_ns: for_ms * MS,
        generation: group.generation,
        ..Default::default()
    }
}

/// What the switch of a receiver reports if that stalls for as long as the policy of the group allows.
fn stalled(group: &v1::GroupState, host: &str) -> v1::PathStalled {
    v1::PathStalled {
        ack_psn: Some(123),
        tries: 4,
        ..stands_still(group, host, 1000)
    }
}

fn report(lab: &Lab, switch: &str, stalled: &v1::PathStalled) {
    lab.switch(switch).report(PathStalled(stalled.clone()));
}

/// Waits until a report has come to the controller.
async fn arrives(events: &mut Events, wanted: &v1::PathStalled) {
    let is = |event: &v1::controller_event::Event| match event {
        v1::controller_event::Event::PathStalled(s) => s.for_ns == wanted.for_ns,
        _ => false,
    };
    events.until(|event| is(event).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_stalls_is_put_out_and_all_learn_why() {
    let (lab, _controller, client) = two_tiers().await;
    let before = group(&lab, &client).await;
    assert_eq!(before.on_member_stall.map(|p| p.after_ms), Some(1000));
    let told = lab.rule("leaf1").stall_timeout_ms;
    assert_eq!(told, 1000, "it is reported in time");
    let mut events = Events::of(&client).await;
    let refusing = v1::PathStalled {
        syndrome: Some(0x21),
        ..stalled(&before, "h3")
    };
    report(&lab, "leaf1", &refusing);
    let after = loop {
        let state = events.group("g", Active).await;
        if state.generation == 2 && !state.members[3].put_out.is_empty() {
            break state;
        }
    };
    assert_eq!(phases(&after), [Joined, Joined, Joined, Expected]);
    let says = "host h3 stalls: it has acknowledged PSN 123, and no more for 1.0s, although switch leaf1 has sent it the \
                next packet 4 times again, and refuses it: it has posted no receives";
    assert_eq!((&*after.members[3].put_out, &*after.reason), (says, says));
    let is_placed = || lab.placed() == ["leaf0 g.2", "leaf1 g.2", "spine0 g.2"];
    until("all have it", is_placed).await;
    // It is no member of the running group any more, until it joins again.
    report(&lab, "leaf1", &stalled(&after, "h3"));
    let again = v1::PathStalled {
        for_ns: 2000 * MS,
        ..stalled(&after, "h2")
    };
    report(&lab, "leaf1", &again);
    let state = loop {
        let state = events.group("g", Active).await;
        if state.generation == 3 && !state.members[2].put_out.is_empty() {
            break state;
        }
    };
    assert_eq!(state.reason.matches("stalls").count(), 2, "{}", state.reason);
}

/// Each differs from a report that counts in one thing.
#[tokio::test(start_paused = true)]
async fn what_does_not_speak_against_the_receiver_changes_nothing() {
    let (lab, _controller, client) = two_tiers().await;
    let before = group(&lab, &client).await;
    let mut events = Events::of(&client).await;
    let counts = stalled(&before, "h2");
    type Spoil = fn(&mut v1::PathStalled);
    let no_reports: [(&str, u64, Spoil); 6] = [
        // Nothing arrives at its switch: the source, a link or a switch above stands still.
        ("leaf1", 9000, |s| s.tries = 3),
        ("leaf1", 999, |_| {}),
        ("leaf1", 9001, |s| s.generation = 0),
        ("leaf1", 9002, |s| s.mcst_id = "10.200.7.7".into()),
        // Not the last switch.
        ("spine0", 9003, |s| s.next_hop = "leaf1".into()),
        // Not there.
        ("leaf0", 9004, |_| {}),
    ];
    for (switch, for_ms, spoil) in no_reports {
        let mut no_report = counts.clone();
        no_report.for_ns = for_ms * MS;
        spoil(&mut no_report);
        report(&lab, switch, &no_report);
        arrives(&mut events, &no_report).await;
        let state = client.get("g").await.state.unwrap();
        assert_eq!((state.generation, &*state.reason), (1, ""), "{no_report:?}");
    }
    report(&lab, "leaf1", &counts);
    group_until(&client, "g", |state| state.generation > 1).await;
}
