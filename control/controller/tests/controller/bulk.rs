//! Many groups at once: what waits for a switch goes out together, and each group fares by itself.

use std::sync::Arc;

use castnet_controller::{Checkpoint, Checkpoints};
use castnet_proto::v1::GroupPhase::{Active, Degraded};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::common::{Calls, Client, Events, Lab, in_time, reaches, two_tiers};

/// Creates groups `g000` and on between h0 and h1; the outcome of each, by name.
async fn create(lab: &Lab, client: &Client, count: u32) -> Vec<(String, Result<(), Status>)> {
    let mut calls = JoinSet::new();
    for n in 0..count {
        let mut client = client.clone();
        let name = format!("g{n:03}");
        let request = lab.given(&name, &["h0", "h1"], 0x100 + n);
        calls.spawn(async move { (name, client.create_group(request).await.map(drop)) });
    }
    let mut done = in_time(calls.join_all()).await;
    done.sort_by(|a, b| a.0.cmp(&b.0));
    done
}

fn are_fine(created: &[(String, Result<(), Status>)]) -> bool {
    created.iter().all(|(_, result)| result.is_ok())
}

/// While one call is under way, others ask: they are the next call. One that is refused is refused alone.
#[tokio::test(start_paused = true)]
async fn what_is_asked_for_meanwhile_goes_out_together() {
    let mut lab = Lab::two_tiers().await;
    let (planned, mut told) = mpsc::unbounded_channel();
    lab.config.checkpoints = Checkpoints::new(move |at| {
        if *at == Checkpoint::Planned {
            let _ = planned.send(());
        }
        false
    });
    let (gate, mut waits) = lab.switch("leaf0").hold();
    lab.switch("leaf0").with(|t| t.refuse_rule = Some("g007".into()));
    let (_controller, client) = lab.start().await;
    let first = {
        let (mut client, request) = (client.clone(), lab.given("first", &["h0", "h1"], 17));
        tokio::spawn(async move { client.create_group(request).await })
    };
    waits.recv().await.unwrap();
    let (created, ()) = tokio::join!(create(&lab, &client, 20), async {
        for _ in 0..21 {
            told.recv().await.unwrap();
        }
        gate.add_permits(100);
    });
    first.await.unwrap().unwrap();
    let refusals = created
        .into_iter()
        .filter_map(|(name, result)| Some((name, result.err()?.code())));
    let refusals: Vec<(String, Code)> = refusals.collect();
    assert_eq!(refusals, [("g007".to_owned(), Code::ResourceExhausted)]);
    assert_eq!(lab.switch("leaf0").with(|t| t.calls.clone()), [1, 20]);
    assert_eq!(lab.switch("leaf0").groups().len(), 20);
}

/// A restarted switch gets more groups than one call takes, of which it refuses one: that one is degraded, and says why.
#[tokio::test(start_paused = true)]
async fn a_restarted_switch_gets_many_groups_in_few_calls() {
    let (mut lab, _controller, client) = two_tiers().await;
    assert!(are_fine(&create(&lab, &client, 300).await));
    lab.switch("leaf0").with(|t| {
        t.refuse_rule = Some("g007".into());
        t.calls.clear();
    });
    let mut events = Events::of(&client).await;
    lab.switches.get_mut("leaf0").unwrap().restart().await;
    events.group("g299", Active).await;
    assert_eq!(lab.switch("leaf0").with(|t| t.calls.clone()), [256, 44]);
    assert_eq!(lab.switch("leaf0").groups().len(), 299);
    let refused = reaches(&client, "g007", Degraded).await.state.unwrap();
    assert!(refused.reason.contains("no room for g007"), "{}", refused.reason);
    reaches(&client, "g006", Active).await;
}

/// The switch's agent is gone in the middle of a call with many rules: some are there, and none is reported to be. All
/// come about when it is back, and none twice.
#[tokio::test(start_paused = true)]
async fn a_switch_lost_in_the_middle_of_many_gets_the_rest_later() {
    let (mut lab, _controller, client) = two_tiers().await;
    assert!(are_fine(&create(&lab, &client, 40).await));
    let (gate, mut waits) = lab.switch("leaf0").hold();
    gate.add_permits(10);
    let mut events = Events::of(&client).await;
    lab.switches.get_mut("leaf0").unwrap().restart().await;
    for _ in 0..11 {
        waits.recv().await.unwrap();
    }
    assert_eq!(lab.switch("leaf0").groups().len(), 10);
    lab.switches.get_mut("leaf0").unwrap().stop().await;
    events.switch("leaf0", false).await;
    gate.add_permits(1000);
    lab.switches.get_mut("leaf0").unwrap().start().await;
    for n in 0..40 {
        reaches(&client, &format!("g{n:03}"), Active).await;
    }
    assert_eq!(lab.switch("leaf0").groups().len(), 40);
    // The first installation and the one after the restart.
    assert_eq!(lab.switch("leaf0").changes().len(), 80);
}

/// The controller is killed while a call with many rules is under way: the next one finishes all of them.
#[tokio::test(start_paused = true)]
async fn a_controller_killed_in_the_middle_of_many_finishes_them() {
    let lab = Lab::two_tiers().await;
    let (gate, mut waits) = lab.switch("leaf0").hold();
    gate.add_permits(10);
    let (controller, client) = lab.start().await;
    let lab = Arc::new(lab);
    let creation = {
        let (lab, client) = (lab.clone(), client.clone());
        tokio::spawn(async move { create(&lab, &client, 40).await })
    };
    for _ in 0..11 {
        waits.recv().await.unwrap();
    }
    controller.stop().await;
    assert!(!are_fine(&creation.await.unwrap()));
    gate.add_permits(1000);
    let (_controller, client) = lab.start().await;
    let groups = client.groups().await.into_iter();
    let names = groups.map(|g| g.state.unwrap().name);
    let mut there = 0;
    for name in names {
        reaches(&client, &name, Active).await;
        there += 1;
    }
    assert!(there >= 11, "{there}");
    let changes = lab.switch("leaf0").changes();
    assert_eq!(
        (changes.len(), lab.switch("leaf0").groups().len()),
        (there, there),
        "{changes:?}"
    );
}
