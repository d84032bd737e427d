//! Many groups at once: what waits for a switch goes out together, and each group fares by itself.

use castnet_controller::{Checkpoint, Checkpoints};
use castnet_proto::v1::GroupPhase::{Active, Degraded};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::common::{Client, Events, Lab, in_time, reaches, two_tiers};

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
