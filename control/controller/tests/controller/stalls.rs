//! Receivers of multicast groups that stall or refuse the stream, and what is no such receiver.

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use castnet_proto::v1::MemberLoss;
use castnet_proto::v1::MemberPhase::{Expected, Joined};
use castnet_proto::v1::agent_event::Event::{MemberFailed, PathStalled};

use crate::common::{Calls, Client, Events, Lab, group_until, phases, reaches, two_tiers, until};

const MS: u64 = 1_000_000;
const EVICT: Option<MemberLoss> = Some(MemberLoss::Evict);

/// h0 sends; h1 is at its leaf, h2 and h3 at leaf1.
async fn group(lab: &Lab, client: &Client, policy: Option<MemberLoss>) -> v1::GroupState {
    let request = v1::CreateGroupRequest {
        on_member_stall: policy.map(|then| v1::StallPolicy {
            after_ms: 1000,
            then: then.into(),
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
    let before = group(&lab, &client, EVICT).await;
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
    let before = group(&lab, &client, EVICT).await;
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

/// A switch reports that a receiver has ended its connection, with this AETH syndrome byte. Returns when the controller has the report.
async fn fails(lab: &Lab, switch: &str, events: &mut Events, failed: v1::MemberFailed) {
    lab.switch(switch).report(MemberFailed(failed));
    let is =
        |event: &v1::controller_event::Event| matches!(event, v1::controller_event::Event::MemberFailed(_));
    events.until(|event| is(event).then_some(())).await;
}

fn refusing(group: &v1::GroupState, host: &str, syndrome: u32) -> v1::MemberFailed {
    v1::MemberFailed {
        mcst_id: group.mcst_id.clone(),
        group: group.name.clone(),
        next_hop: host.into(),
        syndrome,
        generation: group.generation,
        ..Default::default()
    }
}

fn holds_naks(lab: &Lab, switch: &str) -> bool {
    lab.rule(switch).multicast().unwrap().hold_fatal_naks
}

/// Both failed in one generation: the report of the second is as good after the first was put out.
#[tokio::test(start_paused = true)]
async fn receivers_that_refuse_are_put_out_at_once_and_the_others_go_on() {
    let (lab, _controller, client) = two_tiers().await;
    let before = group(&lab, &client, EVICT).await;
    assert!(
        ["leaf0", "spine0", "leaf1"]
            .iter()
            .all(|switch| holds_naks(&lab, switch))
    );
    let mut events = Events::of(&client).await;
    let right = refusing(&before, "h3", 0x62);
    type Spoil = fn(&mut v1::MemberFailed);
    let no_reports: [(&str, Spoil); 5] = [
        // A gap.
        ("leaf1", |f| f.syndrome = 0x60),
        ("leaf1", |f| f.generation = 0),
        ("leaf1", |f| f.mcst_id = "10.200.7.7".into()),
        ("spine0", |f| f.next_hop = "leaf1".into()),
        // Not there.
        ("leaf0", |_| {}),
    ];
    for (switch, spoil) in no_reports {
        let mut no_report = right.clone();
        spoil(&mut no_report);
        fails(&lab, switch, &mut events, no_report.clone()).await;
        let state = client.get("g").await.state.unwrap();
        assert_eq!((state.generation, &*state.reason), (1, ""), "{no_report:?}");
    }
    fails(&lab, "leaf1", &mut events, right).await;
    fails(&lab, "leaf1", &mut events, refusing(&before, "h2", 0x61)).await;
    let is_without = |state: &v1::GroupState| state.generation == 3 && !state.members[2].put_out.is_empty();
    let after = group_until(&client, "g", is_without).await.state.unwrap();
    assert_eq!(phases(&after), [Joined, Joined, Expected, Expected]);
    assert_eq!(
        after.members[2].put_out,
        "host h2 sent a fatal NAK: invalid request"
    );
    assert_eq!(
        after.members[3].put_out,
        "host h3 sent a fatal NAK: remote access error"
    );
    until("h0 sends to h1", || lab.placed() == ["leaf0 g.3"]).await;
}

/// As when the report of the NAK was lost. It needs neither time nor tries.
#[tokio::test(start_paused = true)]
async fn a_path_that_stalls_behind_a_fatal_nak_is_put_out() {
    let (lab, _controller, client) = two_tiers().await;
    let before = group(&lab, &client, EVICT).await;
    let stalls = v1::PathStalled {
        syndrome: Some(0x63),
        ..stands_still(&before, "h2", 1)
    };
    report(&lab, "leaf1", &stalls);
    let is_without = |state: &v1::GroupState| !state.members[2].put_out.is_empty();
    let after = group_until(&client, "g", is_without).await.state.unwrap();
    assert_eq!(
        after.members[2].put_out,
        "host h2 sent a fatal NAK: remote operational error"
    );
}

/// The source gets the NAK, and with it the true error.
#[tokio::test(start_paused = true)]
async fn a_group_that_does_not_go_on_without_a_receiver_leaves_the_nak_to_the_source() {
    for policy in [None, Some(MemberLoss::Fail)] {
        let (lab, _controller, client) = two_tiers().await;
        let before = group(&lab, &client, policy).await;
        assert!(!holds_naks(&lab, "leaf1"));
        let mut events = Events::of(&client).await;
        fails(&lab, "leaf1", &mut events, refusing(&before, "h2", 0x62)).await;
        let after = client.get("g").await.state.unwrap();
        assert_eq!((after.generation, phases(&after)), (1, vec![Joined; 4]));
    }
}
