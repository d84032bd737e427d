//! Receivers of multicast groups that stall, and what is no such receiver.

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed, Registered};
use castnet_proto::v1::agent_event::Event::PathStalled;
use castnet_proto::v1::{MemberLoss, MemberPhase};

use crate::common::{Client, Events, Lab, moment, reaches};

const MS: u64 = 1_000_000;

/// h0 sends; h1 is at its leaf, h2 and h3 at leaf1.
async fn group(lab: &Lab, client: &Client, members: &[&str], policy: Option<MemberLoss>) -> v1::GroupState {
    let request = v1::CreateGroupRequest {
        on_member_stall: policy.map(|then| v1::StallPolicy {
            after_ms: 1000,
            then: then as i32,
        }),
        ..lab.given("g", members, 17)
    };
    client.create(request).await;
    reaches(client, "g", Active).await.state.unwrap()
}

/// What the switch of a receiver reports if that stalls for as long as the policy of the group allows.
fn stalled(group: &v1::GroupState, host: &str) -> v1::PathStalled {
    v1::PathStalled {
        mcst_id: group.mcst_id.clone(),
        group: group.name.clone(),
        next_hop: host.into(),
        for_ns: 1000 * MS,
        ack_psn: Some(123),
        generation: group.generation,
        tries: 4,
        ..Default::default()
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

async fn state(client: &Client) -> v1::GroupState {
    let request = v1::GetGroupRequest { group: "g".into() };
    let group = client.clone().get_group(request).await.unwrap();
    group.into_inner().state.unwrap()
}

fn phases(state: &v1::GroupState) -> Vec<MemberPhase> {
    state.members.iter().map(|m| m.phase()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_stalls_is_put_out_and_all_learn_why() {
    let (lab, _controller, client) = two_tiers().await;
    let before = group(&lab, &client, &["h0", "h1", "h2", "h3"], Some(MemberLoss::Evict)).await;
    assert_eq!(before.on_member_stall.map(|p| p.after_ms), Some(1000));
    let told = lab.switch("leaf1").with(|toy| {
        let (rule, _) = toy.groups.values().next().expect("a group");
        rule.stall_timeout_ms
    });
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
    let joined = MemberPhase::Joined;
    assert_eq!(phases(&after), [joined, joined, joined, MemberPhase::Expected]);
    let says = "host h3 stalls: it has acknowledged PSN 123, and no more for 1.0s, although switch leaf1 has sent it the \
                next packet 4 times again, and refuses it: it has posted no receives";
    assert_eq!(
        (after.members[3].put_out.as_str(), after.reason.as_str()),
        (says, says)
    );
    while lab.placed() != ["leaf0 g.2", "leaf1 g.2", "spine0 g.2"] {
        moment().await;
    }
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
    let before = group(&lab, &client, &["h0", "h1", "h2", "h3"], Some(MemberLoss::Evict)).await;
    let mut events = Events::of(&client).await;
    let counts = stalled(&before, "h2");
    let no_reports = [
        // Nothing arrives at its switch: the source, a link or a switch above stands still.
        (
            "leaf1",
            v1::PathStalled {
                tries: 3,
                for_ns: 9000 * MS,
                ..counts.clone()
            },
        ),
        (
            "leaf1",
            v1::PathStalled {
                for_ns: 999 * MS,
                ..counts.clone()
            },
        ),
        (
            "leaf1",
            v1::PathStalled {
                generation: 0,
                for_ns: 9001 * MS,
                ..counts.clone()
            },
        ),
        (
            "leaf1",
            v1::PathStalled {
                mcst_id: "10.200.7.7".into(),
                for_ns: 9002 * MS,
                ..counts.clone()
            },
        ),
        // Not the last switch.
        (
            "spine0",
            v1::PathStalled {
                next_hop: "leaf1".into(),
                for_ns: 9003 * MS,
                ..counts.clone()
            },
        ),
        // Not there.
        (
            "leaf0",
            v1::PathStalled {
                for_ns: 9004 * MS,
                ..counts.clone()
            },
        ),
    ];
    for (switch, no_report) in no_reports {
        report(&lab, switch, &no_report);
        arrives(&mut events, &no_report).await;
        let state = state(&client).await;
        assert_eq!(
            (state.generation, state.reason.as_str()),
            (1, ""),
            "{no_report:?}"
        );
    }
    report(&lab, "leaf1", &counts);
    while state(&client).await.generation == 1 {
        events.until(|_| Some(())).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_policy_a_group_waits_for_a_receiver_that_stalls() {
    let (lab, _controller, client) = two_tiers().await;
    let before = group(&lab, &client, &["h0", "h1", "h2"], None).await;
    assert_eq!(before.on_member_stall, None);
    let mut events = Events::of(&client).await;
    let report_of = stalled(&before, "h2");
    report(&lab, "leaf1", &report_of);
    arrives(&mut events, &report_of).await;
    let after = state(&client).await;
    assert_eq!(
        (after.generation, phases(&after)),
        (1, vec![MemberPhase::Joined; 3])
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_that_fails_with_a_receiver_that_stalls_says_which() {
    let (lab, _controller, client) = two_tiers().await;
    let before = group(&lab, &client, &["h0", "h1", "h2"], Some(MemberLoss::Fail)).await;
    report(&lab, "leaf0", &stalled(&before, "h1"));
    let state = reaches(&client, "g", Failed).await.state.unwrap();
    assert!(state.reason.starts_with("host h1 stalls"), "{}", state.reason);
}

/// There is nobody left to send to.
#[tokio::test(start_paused = true)]
async fn without_its_last_receiver_a_group_waits_for_its_members_again() {
    let (lab, _controller, client) = two_tiers().await;
    let before = group(&lab, &client, &["h0", "h2"], Some(MemberLoss::Evict)).await;
    report(&lab, "leaf1", &stalled(&before, "h2"));
    let state = reaches(&client, "g", Registered).await.state.unwrap();
    assert!(
        state.members[1].put_out.starts_with("host h2 stalls"),
        "{state:?}"
    );
    while !lab.placed().is_empty() {
        moment().await;
    }
}
