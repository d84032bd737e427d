//! Controllers that are killed, switches that restart or go away: what is wanted comes about all the same.

use std::time::Duration;

use crate::common::{
    Calls, Client, Events, Lab, creation, destruction, in_time, reaches, refused, refused_field, start,
    two_tiers,
};
use castnet_controller::store::content::{export, import};
use castnet_controller::store::redb::{RedbStore, content};
use castnet_controller::store::{Store, Write};
use castnet_controller::{Checkpoint, Checkpoints, Config};
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Degraded, Registered};
use tokio::sync::mpsc;
use tonic::Code;

/// The controller is killed at each point of an installation and started again: the group becomes active, each switch
/// was told once, and nothing is installed twice.
#[tokio::test(start_paused = true)]
async fn killed_at_any_point_of_an_installation_it_finishes() {
    let installed = ["leaf1", "spine0", "leaf0"].map(|s| Checkpoint::Installed(s.into()));
    for point in installed.into_iter().chain([Checkpoint::Planned]) {
        let lab = Lab::two_tiers().await;
        let (config, mut reached) = stands_still_at(&lab.config, point.clone());
        let (controller, mut client) = start(config).await;
        let request = lab.given("g", &["h0", "h2", "h3"], 17);
        let create = tokio::spawn(async move { client.create_group(request).await });
        reached.recv().await.unwrap();
        controller.stop().await;
        create.await.unwrap().unwrap_err();
        let (_controller, client) = lab.start().await;
        let group = reaches(&client, "g", Active).await;
        assert_eq!(group.state.unwrap().generation, 1, "{point:?}");
        lab.all_did(&["+g.1"], &format!("{point:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn killed_at_any_point_of_a_removal_it_finishes() {
    let removed = ["leaf0", "spine0", "leaf1"].map(|s| Checkpoint::Removed(s.into()));
    for point in removed.into_iter().chain([Checkpoint::Removing]) {
        let lab = Lab::two_tiers().await;
        let (config, mut reached) = stands_still_at(&lab.config, point.clone());
        let (controller, mut client) = start(config).await;
        client.create(lab.given("g", &["h0", "h2"], 17)).await;
        let destroy = tokio::spawn(async move { client.destroy_group(destruction("g")).await });
        reached.recv().await.unwrap();
        controller.stop().await;
        destroy.await.unwrap().unwrap_err();

        let (_controller, mut client) = lab.start().await;
        // Already being destroyed: that is no error, and it answers when it is done.
        match client.destroy_group(destruction("g")).await {
            Ok(answer) => assert!(answer.into_inner().complete, "{point:?}"),
            Err(status) => assert_eq!(status.code(), Code::NotFound, "{point:?}"),
        }
        assert!(lab.placed().is_empty(), "{point:?}");
        assert!(client.try_get("g").await.is_err());
    }
}

fn stands_still_at(config: &Config, point: Checkpoint) -> (Config, mpsc::UnboundedReceiver<()>) {
    let (tell, reached) = mpsc::unbounded_channel();
    let checkpoints = Checkpoints::new(move |at| {
        let here = *at == point;
        if here {
            let _ = tell.send(());
        }
        here
    });
    let config = Config {
        checkpoints,
        ..config.clone()
    };
    (config, reached)
}

/// Contract S3, seen from the switches: a controller that comes and goes changes nothing.
#[tokio::test(start_paused = true)]
async fn a_restart_of_the_controller_touches_no_switch() {
    let (lab, controller, client) = two_tiers().await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    client.create(creation("waiting", &["h1", "h3"])).await;
    let owner = controller.owner().to_string();
    let before = lab.journal.lock().clone();
    let (controller, client) = lab.restart(controller).await;
    let mut events = Events::of(&client).await;
    for switch in client.switches().await.into_iter().filter(|s| !s.reachable) {
        events.switch(&switch.name, true).await;
    }
    reaches(&client, "g", Active).await;
    assert_eq!(controller.owner(), owner);
    assert_eq!(*lab.journal.lock(), before);
    let states = client.groups().await.into_iter().map(|g| g.state.unwrap());
    let names: Vec<_> = states.map(|s| (s.name.clone(), s.phase())).collect();
    let wanted = [("g".to_owned(), Active), ("waiting".to_owned(), Registered)];
    assert_eq!(names, wanted);
    // McstIDs that are in use are not given out again.
    let next = client.create(creation("next", &["h1", "h3"])).await;
    assert_eq!(next.mcst_id, "10.200.0.3");
}

/// A restarted switch gets its groups again; as the source has long been sending, it learns the PSN from the stream.
#[tokio::test(start_paused = true)]
async fn a_restarted_switch_gets_its_groups_again() {
    let (mut lab, _controller, client) = two_tiers().await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    let mut events = Events::of(&client).await;
    lab.switches.get_mut("spine0").unwrap().restart().await;
    let state = events.group("g", Degraded).await;
    assert!(state.reason.starts_with("spine0: "), "{}", state.reason);
    events.group("g", Active).await;
    assert_eq!(lab.switch("spine0").changes(), ["+g.1", "+g.1"]);
    let psn = |name: &str| lab.rule(name).multicast().unwrap().start_psn;
    assert_eq!((psn("spine0"), psn("leaf0")), (None, Some(100)));
    assert_eq!(lab.switch("leaf0").changes(), ["+g.1"]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_moved_away_is_not_replaced_at_a_reload() {
    let lab = Lab::two_tiers().await;
    let (controller, _client) = lab.start().await;
    let config = Config {
        listen: controller.address().unwrap().clone(),
        ..lab.config.clone()
    };
    controller.check(&config).unwrap();
    let path = config.store.as_ref().unwrap();
    let backup = lab.folder.path().join("backup");
    std::fs::rename(path, &backup).unwrap();
    let refused = controller.check(&config).unwrap_err().to_string();
    assert!(refused.contains("controller.redb"), "{refused}");
    assert!(!path.exists());
    std::fs::copy(&backup, path).unwrap();
    let refused = controller.check(&config).unwrap_err().to_string();
    let says = "controller.redb: I/O error: another file stands there now: put back";
    assert!(refused.contains(says), "{refused}");
    std::fs::rename(&backup, path).unwrap();
    controller.check(&config).unwrap();
}

/// A mistyped name: the groups there counted as removed, and their addresses were given to others.
#[tokio::test(start_paused = true)]
async fn a_reload_drops_no_switch_that_has_groups() {
    let (lab, controller, client) = two_tiers().await;
    let mut config = Config {
        listen: controller.address().unwrap().clone(),
        topology: None,
        ..lab.config.clone()
    };
    let spine = config.switches.iter_mut().find(|s| s.name == "spine0").unwrap();
    spine.name = "spien0".into();
    controller.check(&config).unwrap();
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    reaches(&client, "g", Active).await;
    let refused = controller.check(&config).unwrap_err().to_string();
    let says = "switches: \"spine0\" is missing, and has group \"g\": keep it";
    assert!(refused.starts_with(says), "{refused}");
    client.destroy("g").await;
    controller.check(&config).unwrap();
}

/// Waits until what is shown of a failure of the store is so.
async fn store_failure_is(client: &Client, wanted: impl Fn(&str) -> bool) {
    let looks = async {
        while !wanted(&client.topology().await.store_failure) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    in_time(looks).await;
}

/// What is answered would be gone at the next start.
#[tokio::test(start_paused = true)]
async fn while_its_store_is_moved_away_or_cut_a_controller_takes_no_changes() {
    let (lab, _controller, mut client) = two_tiers().await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    let path = lab.config.store.clone().unwrap();
    let aside = lab.folder.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    let moved = client.create_group(creation("k", &["h0", "h2"])).await;
    refused(moved, Code::Internal, "No such file or directory");
    std::fs::copy(&aside, &path).unwrap();
    let copied = client.create_group(creation("k", &["h0", "h2"])).await;
    refused(copied, Code::Internal, "controller.redb: I/O error: ");
    store_failure_is(&client, |why| why.contains("another file stands there now")).await;
    std::fs::rename(&aside, &path).unwrap();
    store_failure_is(&client, str::is_empty).await;
    client.create(creation("k", &["h0", "h2"])).await;

    // That is noticed without a change.
    let whole = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(whole.len() as u64 / 2).unwrap();
    store_failure_is(&client, |why| why.contains("it was cut from")).await;
    let cut = client.create_group(creation("l", &["h0", "h2"])).await;
    refused(cut, Code::Internal, "restore it from a copy");
    std::fs::write(&path, whole).unwrap();
    store_failure_is(&client, str::is_empty).await;
    client.create(creation("l", &["h0", "h2"])).await;
    lab.all_did(&["+g.1"], "");
}

/// A record of the store does not read: the others go on, and nothing is taken from the members of that group.
#[tokio::test(start_paused = true)]
async fn a_group_whose_record_does_not_read_is_set_apart() {
    let (lab, controller, client) = two_tiers().await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    client.create(lab.given("k", &["h0", "h2"], 18)).await;
    controller.stop().await;
    let store = RedbStore::open(lab.config.store.as_ref().unwrap()).unwrap();
    let mut entries = store.load().await.unwrap().into_iter();
    let (key, entry) = entries.find(|(key, _)| key.name == "g").unwrap();
    let write = Write::put(entry.version, entry.value[..entry.value.len() / 2].to_vec());
    store.commit([(key, write)].into()).await.unwrap();
    store.close().await.unwrap();

    let (controller, mut client) = lab.start().await;
    reaches(&client, "k", Active).await;
    let says = "its record in the store does not read";
    refused(client.try_get("g").await, Code::Unavailable, says);
    let taken = client.create_group(lab.given("g", &["h1", "h3"], 19)).await;
    refused(taken, Code::AlreadyExists, "");
    // Its addresses are not free either.
    let new = client.create(lab.given("new", &["h1", "h3"], 19)).await;
    assert_eq!(new.mcst_id, "10.200.0.3");
    assert_eq!(lab.switch("leaf0").groups(), ["g.1", "k.1", "new.1"]);
    controller.stop().await;

    // What reads is saved; the group is given up with it.
    let path = lab.config.store.as_ref().unwrap();
    let (text, left_out) = export(&content(path).unwrap());
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    let first = left_out[0].to_string();
    assert!(first.starts_with("groups/g: does not read: EOF"), "{first}");
    let store = RedbStore::open(path).unwrap();
    import(&store, &text, true, 1).await.unwrap();
    store.close().await.unwrap();
    let (controller, client) = lab.start().await;
    reaches(&client, "k", Active).await;
    // Only a request to destroy destroys.
    assert_eq!(lab.switch("leaf0").groups(), ["g.1", "k.1", "new.1"]);
    refused(client.try_get("g").await, Code::Unavailable, "has rules of it");
    assert!(
        client
            .purge(&controller.owner())
            .await
            .contains(&"leaf0 g".into())
    );
    assert_eq!(lab.switch("leaf0").groups(), ["k.1", "new.1"]);
    refused(client.try_get("g").await, Code::NotFound, "");
}

#[tokio::test(start_paused = true)]
async fn rules_stay_that_the_store_does_not_explain_and_what_it_does_not_want_goes() {
    let (lab, controller, client) = two_tiers().await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    client.create(lab.given("local", &["h0", "h1"], 18)).await;
    let owner = controller.owner().to_string();
    controller.stop().await;
    let put = |switch: &str, mcst_id: &str, name: &str, owner: &str| {
        let group = v1::GroupRule {
            mcst_id: mcst_id.into(),
            name: name.into(),
            generation: 1,
            ..Default::default()
        };
        lab.switch(switch)
            .with(|t| t.groups.insert(mcst_id.into(), (group, owner.into())));
    };
    put("leaf0", "10.9.0.1", "from-a-file", "");
    put("leaf0", "10.9.0.2", "of-another", "controller-0");
    put("leaf0", "10.9.0.3", "orphan", &owner);
    // One of ours is missing, and one of a known group is where it is not wanted.
    lab.switch("leaf1").with(|t| t.groups.clear());
    put("leaf1", "10.200.0.2", "local", &owner);

    let (controller, mut client) = lab.start().await;
    // Both were settled before any of this was confirmed.
    let installed = |group: &v1::Group| group.tree.iter().all(|n| n.installed);
    let mut events = Events::of(&client).await;
    while !installed(&reaches(&client, "g", Active).await) {
        events.group("g", Active).await;
    }
    let expected = ["g.1", "local.1", "from-a-file.1", "of-another.1", "orphan.1"];
    assert_eq!(lab.switch("leaf0").groups(), expected);
    assert_eq!(lab.switch("leaf1").groups(), ["g.1"]);
    // It may be a group that runs: its name is taken, and operators see it.
    refused(
        client.try_get("orphan").await,
        Code::Unavailable,
        "leaf0 has rules",
    );
    let again = client.create_group(creation("orphan", &["h0", "h2"])).await;
    refused(again, Code::Unavailable, "leaf0 has rules");
    let of_switches = client.switches().await.into_iter();
    let unknown: Vec<_> = of_switches.flat_map(|s| s.unknown_groups).collect();
    assert_eq!(unknown, ["orphan"]);
    // A group cannot have the address of a stranger, where its tree does not pass that switch either.
    let wanted = v1::CreateGroupRequest {
        mcst_id: Some("10.9.0.1".into()),
        ..creation("k", &["h2", "h3"])
    };
    let answer = client.create_group(wanted).await;
    refused(answer, Code::AlreadyExists, "on switch leaf0");
    assert_eq!(client.purge(&controller.owner()).await, ["leaf0 orphan"]);
    assert_eq!(lab.switch("leaf0").groups(), expected[..4]);
    refused(client.try_get("orphan").await, Code::NotFound, "");
}

#[tokio::test(start_paused = true)]
async fn destruction_waits_for_a_switch_that_cannot_be_reached() {
    let (mut lab, _controller, mut client) = two_tiers().await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    lab.lose(&client, "leaf1").await;
    let answer = client.destroy("g").await;
    assert!(!answer.complete);
    assert_eq!(answer.pending_switches, ["leaf1"]);
    assert_eq!(lab.placed(), ["leaf1 g.1"]);
    let again = client.create_group(creation("g", &["h0", "h2"])).await;
    refused(again, Code::AlreadyExists, "");
    let mut events = Events::of(&client).await;
    lab.switches.get_mut("leaf1").unwrap().start().await;
    events.gone("g").await;
    assert!(lab.placed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_cannot_be_reached_fails_the_group() {
    let mut lab = Lab::two_tiers().await;
    lab.switches.get_mut("leaf1").unwrap().stop().await;
    let (_controller, mut client) = lab.start().await;
    let mut events = Events::of(&client).await;
    let mut switches = client.switches().await.into_iter();
    if switches.find(|s| s.name == "leaf1").unwrap().reason == "not tried yet" {
        events.switch("leaf1", false).await;
    }
    let answer = client.create_group(lab.given("g", &["h0", "h2"], 17)).await;
    // The request is right, and would succeed with the switch.
    let says = "switch leaf1 is down";
    refused_field(answer, Code::FailedPrecondition, "members[1].host", says);
    // Those that do not need it are not concerned.
    client.create(lab.given("g", &["h0", "h1"], 17)).await;
}
