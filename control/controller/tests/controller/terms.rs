//! Several controllers that have the same store, one after the other or on copies of it.

use std::collections::BTreeSet;
use std::time::Duration;

use castnet_controller::store::content::{export, import};
use castnet_controller::store::redb::{RedbStore, content};
use castnet_controller::store::{Store, StoreError};
use castnet_controller::{Config, Controller, StartError};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use castnet_proto::v1::GroupPhase::Active;
use tonic::Code;

use crate::common::ranks::all;
use crate::common::{Calls, Client, Events, Lab, creation, join_all, moment, reaches, refused, start};

/// The lab's configuration, with a copy of its store. Switches are looked at all the time.
fn on_a_copy(lab: &Lab) -> Config {
    let mut config = lab.config.clone();
    config.timeouts.reconcile = Duration::from_millis(1);
    let store = lab.folder.path().join("copy.redb");
    std::fs::copy(lab.config.store.as_ref().unwrap(), &store).unwrap();
    config.store = Some(store);
    config
}

/// Waits until the states of all switches are so.
async fn everywhere(client: &Client, is: impl Fn(&v1::SwitchState) -> bool) {
    let mut events = Events::of(client).await;
    while !client.topology().await.switches.iter().all(&is) {
        let changed = |event: &_| matches!(event, v1::controller_event::Event::Switch(_)).then_some(());
        events.until(changed).await;
    }
}

/// Waits until the states of all switches say who has taken over.
async fn refused_everywhere(client: &Client) {
    let taken = |s: &v1::SwitchState| !s.reachable && s.reason.contains("another controller has taken over");
    everywhere(client, taken).await;
}

/// Exports the lab's store, and imports it again with this epoch.
async fn import_again(lab: &Lab, epoch: u64) {
    let path = lab.config.store.as_ref().unwrap();
    let (text, left_out) = export(&content(path).unwrap());
    assert!(left_out.is_empty(), "{left_out:?}");
    let store = RedbStore::open(path).unwrap();
    import(&store, &text, true, epoch).await.unwrap();
    store.close().await.unwrap();
}

/// Each would remove the other's new groups, as they have the same owner.
#[tokio::test(start_paused = true)]
async fn of_two_controllers_on_copies_of_a_store_the_first_has_the_switches() {
    let mut lab = Lab::two_tiers().await;
    lab.config.timeouts.reconcile = Duration::from_millis(1);
    let (controller, _) = lab.start().await;
    controller.stop().await;
    let copy = on_a_copy(&lab);
    let (_first, client) = lab.start().await;
    let mut events = Events::of(&client).await;
    let is_reachable = |s: &v1::SwitchState| s.name == "leaf0" && s.reachable;
    if !client.topology().await.switches.iter().any(is_reachable) {
        events.switch("leaf0", true).await;
    }
    client.create(lab.given("g", &["h0", "h2"], 17)).await;

    let (second, mut other) = start(copy.clone()).await;
    let other_group = lab.given("x", &["h1", "h3"], 18);
    other.create_group(other_group).await.unwrap_err();
    refused_everywhere(&other).await;
    // Its next start would have a larger epoch.
    second.stop().await;
    let refused = Controller::start(copy).await.unwrap_err();
    assert!(
        matches!(refused, StartError::Store(StoreError::Refused { epoch: 2 })),
        "{refused}"
    );
    client.create(lab.given("h", &["h1", "h3"], 18)).await;
    reaches(&client, "g", Active).await;
    lab.all_did(&["+g.1", "+h.1"], "");
    assert!(client.topology().await.switches.iter().all(|s| s.reachable));
}

/// A copy that was made in the present term has the next epoch, as the store itself would have: no fence sees that it is older.
#[tokio::test(start_paused = true)]
async fn an_older_copy_of_the_store_ends_no_group() {
    let lab = Lab::two_tiers().await;
    let (right, client) = lab.start().await;
    client.create(creation("later", &["h1", "h3"])).await;
    let copy = on_a_copy(&lab);
    let joining = |qpn| ["h1", "h3"].map(|host| lab.joining("later", host, qpn));
    let members = join_all(&client, joining(18)).await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    let mut ranks = lab.ranks(&client, "job", 2, 19).await;
    all(&mut ranks, CollectivePhase::Active).await;
    let (before, owner) = (lab.placed(), right.owner());
    right.stop().await;
    drop(members);

    let (wrong, other) = start(copy).await;
    let back = v1::InitGroupRequest {
        returns_to: Some(1),
        ..ranks[0].request.clone()
    };
    for _ in 0..2 {
        // Before and after it has seen what the switches have.
        let not_known = "not known yet";
        refused(other.try_get("g").await, Code::Unavailable, not_known);
        let returned = other.clone().init_group(back.clone()).await;
        refused(returned, Code::Unavailable, not_known);
        moment().await;
    }
    let switches = other.switches().await.into_iter();
    let unknown: BTreeSet<_> = switches.flat_map(|s| s.unknown_groups).collect();
    assert_eq!(unknown.into_iter().collect::<Vec<_>>(), ["g", "job", "later"]);
    // It knows this one, as it was before all had joined, and does not begin it.
    let mut calls = Vec::new();
    for request in joining(18) {
        calls.push(other.join(request).await);
    }
    moment().await;
    let later = other.get("later").await.state.unwrap();
    assert_eq!((later.phase(), later.generation), (v1::GroupPhase::Registered, 0));
    // Its new groups take no address of those.
    let new = other.create(lab.given("x", &["h0", "h1"], 20)).await;
    assert_eq!(new.mcst_id, "10.200.0.4");
    let placed = lab.placed();
    assert!(before.iter().all(|rule| placed.contains(rule)), "{placed:?}");
    wrong.stop().await;

    // Switches have heard of its epoch: the right one is imported to take over.
    import_again(&lab, 9).await;
    let (right, client) = lab.start().await;
    assert_eq!(right.owner(), owner);
    reaches(&client, "g", Active).await;
    reaches(&client, "later", Active).await;
    assert_eq!(client.purge(&owner).await, ["leaf0 x"]);
    assert_eq!(lab.placed(), before);
}

/// A wrong store has the switches for some starts, and then the right one is back.
#[tokio::test(start_paused = true)]
async fn the_right_store_gets_its_groups_back_after_any_wrong_one() {
    for wrong in ["empty", "of another controller"] {
        let mut lab = Lab::two_tiers().await;
        lab.config.init = wrong != "empty";
        let mut config = lab.config.clone();
        config.store = Some(lab.folder.path().join("wrong.redb"));
        if wrong == "of another controller" {
            let (other, client) = start(config.clone()).await;
            client.create(lab.given("x", &["h1", "h3"], 18)).await;
            reaches(&client, "x", Active).await;
            other.stop().await;
        }
        let (right, client) = lab.start().await;
        client.create(lab.given("g", &["h0", "h2"], 17)).await;
        reaches(&client, "g", Active).await;
        let (before, owner) = (lab.placed(), right.owner());
        right.stop().await;
        for _ in 0..2 {
            let (other, client) = start(config.clone()).await;
            everywhere(&client, |switch| switch.reachable).await;
            // What it does with the groups that it finds is done.
            moment().await;
            other.stop().await;
        }
        assert_eq!(lab.placed(), before, "{wrong}");

        let (right, client) = lab.start().await;
        everywhere(&client, |switch| switch.reachable).await;
        reaches(&client, "g", Active).await;
        assert_eq!((lab.placed(), right.owner()), (before, owner), "{wrong}");
    }
}

/// A copy of the store of a controller that runs has a larger epoch when it starts: the older controller changes nothing
/// any more, and reports why.
#[tokio::test(start_paused = true)]
async fn a_larger_epoch_takes_over() {
    let mut lab = Lab::two_tiers().await;
    lab.config.timeouts.reconcile = Duration::from_millis(1);
    let (first, client) = lab.start().await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    first.stop().await;
    let copy = on_a_copy(&lab);
    // A second start on the copy: its epoch is larger than that of the first's second start.
    start(copy.clone()).await.0.stop().await;
    let (_first, mut client) = lab.start().await;
    reaches(&client, "g", Active).await;

    let (_second, other) = start(copy).await;
    other.create(lab.given("h", &["h1", "h3"], 18)).await;
    let late = lab.given("x", &["h1", "h3"], 19);
    client.create_group(late).await.unwrap_err();
    let destroyed = client.destroy("g").await;
    assert!(!destroyed.complete, "{destroyed:?}");
    refused_everywhere(&client).await;
    for name in ["leaf0", "leaf1", "spine0"] {
        assert_eq!(lab.switch(name).groups(), ["g.1", "h.1"], "{name}");
    }
}
