//! Nothing is seen before it is on disk, and what cannot be written is refused whole: over a store that fails and delays.

use std::sync::Arc;

use crate::collective_failures::failed;
use crate::common::ranks::all;
use crate::common::{
    Calls, Client, Events, Lab, creation, destruction, in_time, moment, reaches, refused, start_with,
};
use castnet_controller::Controller;
use castnet_controller::store::memory::MemoryStore;
use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;
use castnet_sim_control::store::FaultyStore;
use tonic::{Code, Status};

/// A controller that has just begun waits for what its switches have, if its store has no groups.
async fn exists(client: &Client, group: &str) -> bool {
    let known = async {
        loop {
            match client.try_get(group).await {
                Ok(_) => return true,
                Err(status) if status.code() == Code::NotFound => return false,
                Err(status) if status.code() == Code::Unavailable => moment().await,
                Err(status) => panic!("{status}"),
            }
        }
    };
    in_time(known).await
}

/// Creates a group when the store works again.
async fn create_again(client: &mut Client, request: v1::CreateGroupRequest) {
    let created = async {
        while let Err(status) = client.create_group(request.clone()).await {
            says_why(&status);
            moment().await;
        }
    };
    in_time(created).await;
}

fn says_why(status: &Status) {
    refused(Err::<(), _>(status.clone()), Code::Internal, "no space left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_whose_writer_has_panicked_says_so() {
    let (_lab, store, controller, mut client) = lab_with_faults().await;
    let (gate, mut waits) = store.hold();
    let asks = tokio::spawn(async move { client.create_group(creation("g", &["h0", "h2"])).await });
    in_time(waits.recv()).await.unwrap();
    // The store does not expect that.
    gate.close();
    in_time(controller.ended()).await;
    let asked = in_time(asks).await;
    assert!(asked.unwrap().is_err());
    in_time(controller.stop()).await;
}

async fn lab_with_faults() -> (Lab, FaultyStore, Controller, Client) {
    let lab = Lab::two_tiers().await;
    let store = FaultyStore::new(Arc::new(MemoryStore::default()));
    let (controller, client) = start_with(lab.config.clone(), Arc::new(store.clone())).await;
    (lab, store, controller, client)
}

/// While a change is being written, no answer, no event and no switch knows of it; where it is not written, none ever does.
#[tokio::test(start_paused = true)]
async fn nobody_sees_a_change_before_it_is_written() {
    let (lab, store, _controller, mut client) = lab_with_faults().await;
    let mut events = Events::of(&client).await;
    let (gate, mut waits) = store.hold();
    store.fail(&[1]);
    let request = lab.given("g", &["h0", "h2"], 17);
    let mut other = client.clone();
    let create = tokio::spawn(async move { other.create_group(request).await });
    in_time(waits.recv()).await;
    // A client that asks for it waits too, and so does one that would be refused for it.
    let (asking, mut twin) = (client.clone(), client.clone());
    let asks = tokio::spawn(async move { exists(&asking, "g").await });
    let same = creation("g", &["h0", "h2"]);
    let twice = tokio::spawn(async move { twin.create_group(same).await });
    let mut comes = client.clone();
    let host = v1::RegisterHostRequest {
        name: "host".into(),
        ip: "10.9.0.1".into(),
        mac: "02:00:00:09:00:01".into(),
    };
    let registers = tokio::spawn(async move { comes.register_host(host).await });
    moment().await;
    assert!(!create.is_finished() && !asks.is_finished() && !twice.is_finished());
    assert!(!registers.is_finished());
    assert!(lab.journal.lock().is_empty());
    gate.add_permits(1000);
    says_why(&create.await.unwrap().unwrap_err());
    assert!(!asks.await.unwrap());
    says_why(&twice.await.unwrap().unwrap_err());
    says_why(&registers.await.unwrap().unwrap_err());
    assert!(!client.hosts().await.contains(&"host".into()));
    assert!(lab.journal.lock().is_empty());
    create_again(&mut client, lab.given("h", &["h0", "h2"], 17)).await;
    let first = events.until(|event| match event {
        Event::Group(group) => Some(group.name.clone()),
        _ => None,
    });
    assert_eq!(first.await, "h");
    assert_eq!(lab.placed(), ["leaf0 h.1", "leaf1 h.1", "spine0 h.1"]);
}

/// What comes while a batch is being written is written together.
#[tokio::test(start_paused = true)]
async fn changes_that_come_at_once_are_written_at_once() {
    const GROUPS: usize = 64;
    let (_lab, store, _controller, client) = lab_with_faults().await;
    let (gate, mut waits) = store.hold();
    let mut creates = Vec::new();
    for n in 0..GROUPS {
        let (mut client, request) = (client.clone(), creation(&format!("g{n}"), &["h0", "h2"]));
        creates.push(tokio::spawn(async move { client.create_group(request).await }));
    }
    let before = store.commits();
    in_time(waits.recv()).await;
    // Meanwhile the others reach the controller.
    moment().await;
    gate.add_permits(1000);
    for create in creates {
        create.await.unwrap().unwrap();
    }
    let commits = store.commits() - before;
    assert!(commits <= 4, "{commits} commits for {GROUPS} groups");
    assert_eq!(client.groups().await.len(), GROUPS);
}

/// A switch has told what it has, and is brought to what it should have, while groups end. What they have there stays the work of
/// their drivers: they were forgotten, and their rules stayed. Who comes first after a write is by chance, hence several groups.
#[tokio::test(start_paused = true)]
async fn groups_that_end_while_a_switch_is_reconciled_leave_nothing_there() {
    let (lab, store, controller, client) = lab_with_faults().await;
    let names: Vec<String> = (0..8).map(|n| format!("g{n}")).collect();
    for (name, qpn) in names.iter().zip(17..) {
        client.create(lab.given(name, &["h0", "h2"], qpn)).await;
        reaches(&client, name, v1::GroupPhase::Active).await;
    }
    controller.stop().await;
    let (guard, mut asked) = lab.switch("leaf1").hold_guard();
    let (_controller, client) = start_with(lab.config.clone(), Arc::new(store.clone())).await;
    in_time(asked.recv()).await;
    let (gate, mut waits) = store.hold();
    let mut ends = Vec::new();
    for name in &names {
        let (mut client, request) = (client.clone(), destruction(name));
        ends.push(tokio::spawn(async move { client.destroy_group(request).await }));
    }
    in_time(waits.recv()).await;
    guard.add_permits(1000);
    // Meanwhile the others reach the controller, and it goes on with the switch.
    moment().await;
    gate.add_permits(1000);
    for end in ends {
        end.await.unwrap().unwrap();
    }
    assert!(lab.placed().is_empty(), "{:?}", lab.placed());
}

/// What happens only once and that no client waits for (a switch's report, a call that ended, a switch that is lost) is
/// written though the first writes fail.
#[tokio::test(start_paused = true)]
async fn what_is_reported_once_is_not_lost_with_a_write() {
    let (mut lab, store, _controller, client) = lab_with_faults().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    let states = all(&mut ranks, v1::CollectivePhase::Active).await;
    store.fail(&[1, 2]);
    lab.switch("leaf1").report(failed(&states[0].mcst_id));
    for state in all(&mut ranks, v1::CollectivePhase::Failed).await {
        assert_eq!(state.failed_rank, Some(3));
    }
    client.create(creation("g", &["h0", "h2"])).await;
    let joining = lab.joining("g", "h0", 18);
    let call = client.join(joining).await;
    let mut events = Events::of(&client).await;
    store.fail(&[1, 2]);
    drop(call);
    let expected = |event: &Event| match event {
        Event::Group(g) => (g.reason == "waits for h0, h2").then_some(()),
        _ => None,
    };
    events.until(expected).await;

    client.create(lab.given("lasting", &["h0", "h2"], 19)).await;
    store.fail(&[1, 2]);
    lab.switches.get_mut("spine0").unwrap().stop().await;
    let state = events.group("lasting", v1::GroupPhase::Degraded).await;
    assert!(state.reason.starts_with("spine0: "), "{}", state.reason);
    store.fail(&[1, 2]);
    lab.switches.get_mut("spine0").unwrap().start().await;
    let state = events.group("lasting", v1::GroupPhase::Active).await;
    assert_eq!(state.reason, "");
}

/// Only probes reach a store that fails, whatever happens; when it works again, nothing is missing.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_left_alone() {
    let (mut lab, store, _controller, mut client) = lab_with_faults().await;
    let names: Vec<String> = (0..40).map(|n| format!("g{n}")).collect();
    for (name, qpn) in names.iter().zip(17..) {
        client.create(lab.given(name, &["h0", "h2"], qpn)).await;
        reaches(&client, name, v1::GroupPhase::Active).await;
    }
    store.set_broken(true);
    let before = store.commits_of_groups();
    lab.lose(&client, "spine0").await;
    for _ in 0..20 {
        let refused = client.create_group(creation("refused", &["h0", "h1"])).await;
        says_why(&refused.unwrap_err());
    }
    assert_eq!(store.commits_of_groups() - before, 1);
    let groups = client.groups().await;
    assert_eq!(groups.len(), names.len());
    for group in groups {
        assert_eq!(group.state.unwrap().phase(), v1::GroupPhase::Active);
    }
    store.set_broken(false);
    for name in &names {
        reaches(&client, name, v1::GroupPhase::Degraded).await;
    }
}
