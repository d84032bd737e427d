//! Stores that an earlier Castnet wrote. `layout-1.json` is what a controller of layout 1 had stored: a group that runs on
//! two lanes, one that waits, one that a switch refused; a job that runs, and one that was refused.

use std::path::Path;

use crate::common::ranks::shown;
use crate::common::{Lab, creation, reaches};
use castnet_controller::lifecycle::{After, Phase};
use castnet_controller::record::Record;
use castnet_controller::store::content::check;
use castnet_controller::store::redb::{RedbStore, content};
use castnet_controller::store::{Store, Stored};
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed, Registered};
use serde_json::Value;

/// Writes a store of layout 1, with `change` made to its values.
pub(crate) fn write_layout_1(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut all: Value = serde_json::from_str(include_str!("layout-1.json")).unwrap();
    change(&mut all);
    let database = redb::Database::create(path).unwrap();
    let transaction = database.begin_write().unwrap();
    for table in ["groups", "collectives", "hosts"] {
        let definition: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new(table);
        let mut open = transaction.open_table(definition).unwrap();
        for (name, value) in all[table].as_object().unwrap() {
            let bytes = serde_json::to_vec(value).unwrap();
            open.insert(name.as_str(), bytes.as_slice()).unwrap();
        }
    }
    let meta: redb::TableDefinition<'_, &str, &str> = redb::TableDefinition::new("meta");
    for (key, value) in all["meta"].as_object().unwrap() {
        let value = value.as_str().unwrap();
        transaction
            .open_table(meta)
            .unwrap()
            .insert(key.as_str(), value)
            .unwrap();
    }
    transaction.commit().unwrap();
}

#[tokio::test]
async fn layout_1_is_read_and_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.redb");
    write_layout_1(&path, |_| {});
    let first = RedbStore::open(&path).unwrap();
    let stored = Stored::load(&first, "us", true, false).await.unwrap();
    assert!(
        stored.owner.starts_with("controller-"),
        "who it was to the switches"
    );
    let phases: Vec<(&str, Phase)> = stored.groups.iter().map(|g| (g.name.as_str(), g.phase)).collect();
    assert_eq!(
        phases,
        [
            ("job", Phase::Active),
            ("refused", Phase::Refused),
            ("refused-job", Phase::Removing(After::Refused)),
            ("running", Phase::Active),
            ("waiting", Phase::Registered),
        ]
    );
    assert_eq!(stored.hosts.len(), 4);
    let of = |name: &str| -> &Record { stored.groups.iter().find(|g| g.name == name).unwrap() };
    let ended = of("refused").ended.as_ref().unwrap();
    assert_eq!(
        (ended.failure.field.as_str(), ended.failure.reason.as_str()),
        ("switches.spine0", "refuses: no room for refused")
    );
    assert_eq!(
        (
            of("running").lanes(),
            of("running").plan.as_ref().unwrap().rules.len()
        ),
        (2, 3)
    );
    assert_eq!(of("job").collective().unwrap().ranks.len(), 4);
    // A group without routers is stored as it was before they were known.
    let written = serde_json::to_value(of("running")).unwrap();
    assert!(written.get("own_mcst_ids").is_none());
    assert_eq!(&serde_json::from_value::<Record>(written).unwrap(), of("running"));
    drop(first);
    // Once written anew, it is read as any other.
    let again = Stored::load(&RedbStore::open(&path).unwrap(), "us", true, false)
        .await
        .unwrap();
    assert_eq!(
        (again.owner, again.groups, again.hosts),
        (stored.owner, stored.groups, stored.hosts)
    );
}

#[tokio::test]
async fn what_does_not_read_is_set_apart_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.redb");
    write_layout_1(&path, |all| all["collectives"]["job"]["phase"] = "Dancing".into());
    for _ in 0..2 {
        let faults: Vec<String> = check(&content(&path).unwrap())
            .into_iter()
            .map(|fault| fault.entry)
            .collect();
        assert_eq!(faults, ["groups/job"]);
        let store = RedbStore::open(&path).unwrap();
        let stored = Stored::load(&store, "us", true, false).await.unwrap();
        let apart: Vec<String> = stored.set_apart.keys().map(ToString::to_string).collect();
        assert_eq!((apart, stored.groups.len()), (vec!["groups/job".to_owned()], 4));
        store.close().await.unwrap();
    }
}

/// A controller takes up what one of the earlier layout left, and a group that was refused can be joined again.
#[tokio::test]
async fn a_controller_takes_up_a_store_of_layout_1() {
    let lab = Lab::two_tiers().await;
    write_layout_1(lab.config.store.as_ref().unwrap(), |_| {});
    let (_controller, mut client) = lab.start().await;
    let state = reaches(&client, "running", Active).await.state.unwrap();
    let lanes: Vec<&str> = state.lanes.iter().map(|l| l.mcst_id.as_str()).collect();
    assert_eq!((lanes, state.generation), (vec!["10.200.0.1", "10.200.0.2"], 1));
    let refused = reaches(&client, "refused", Failed).await.state.unwrap();
    assert_eq!(refused.reason, "switches.spine0: refuses: no room for refused");
    reaches(&client, "waiting", Registered).await;
    let taken = client
        .create_group(creation("running", &["h0", "h1"]))
        .await
        .unwrap_err();
    assert!(taken.message().contains("active"), "{}", taken.message());
    let mut calls = Vec::new();
    for host in ["h1", "h3"] {
        let joining = lab.joining("refused", host, 33);
        calls.push(client.join_group(joining).await.unwrap());
    }
    let state = reaches(&client, "refused", Active).await.state.unwrap();
    assert_eq!(state.generation, 2);
    // The switches of this test are new: the job's part is lost.
    let job = shown(&client, "job").await.unwrap().state.unwrap();
    assert!(matches!(
        job.phase(),
        v1::CollectivePhase::Active | v1::CollectivePhase::Failed
    ));
    let groups = client
        .list_groups(v1::ListControllerGroupsRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(groups.groups.len(), 3);
}
