//! The content of a store as a document.

use std::collections::BTreeMap;

use castnet_controller::record::Record;
use castnet_controller::store::content::{Entries, ImportError, check, export, import};
use castnet_controller::store::memory::MemoryStore;
use castnet_controller::store::redb::RedbStore;
use castnet_controller::store::{Entry, Key, STORE_VERSION, Store, StoreError, Stored, Table, Write};
use serde_json::{Value, json};

/// Seconds since 1970.
const NOW: u64 = 1_700_000_000;

/// What a controller had stored: a group that runs on two lanes, one that waits, one that a switch refused; a job that runs, and one that was
/// refused; hosts.
async fn entries() -> Entries {
    let text = include_str!("stored.json");
    import(&MemoryStore::default(), text, false, NOW).await.unwrap()
}

fn exported(entries: &Entries) -> String {
    let (text, faults) = export(entries);
    assert_eq!(faults, []);
    text
}

fn document(entries: &Entries) -> Value {
    serde_json::from_str(&exported(entries)).unwrap()
}

fn lines(entries: &Entries) -> Vec<String> {
    check(entries).iter().map(ToString::to_string).collect()
}

/// Who changes what a record is changes this file, and the version of the layout unless an older controller would read it right.
#[test]
fn records_are_stored_as_they_were() {
    let document: Value = serde_json::from_str(include_str!("stored.json")).unwrap();
    assert_eq!(document["schema"], STORE_VERSION);
    for (name, stored) in document["groups"].as_object().unwrap() {
        let record: Record = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(&serde_json::to_value(record).unwrap(), stored, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_exported_is_imported_and_exported_again_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let before = entries().await;
    assert_eq!(lines(&before), [""; 0]);
    let text = exported(&before);
    assert_eq!(document(&before)["schema"], STORE_VERSION);
    let redb = RedbStore::open(&folder.path().join("new.redb")).unwrap();
    let stores: [&dyn Store; 2] = [&redb, &MemoryStore::default()];
    for store in stores {
        import(store, &text, false, NOW).await.unwrap();
        let after = store.load().await.unwrap();
        assert_eq!(exported(&after), text);
        let stored = Stored::load(store, "another", true, false).await.unwrap();
        assert_ne!(stored.owner, "another", "who it is to the switches is imported");
        assert_eq!(stored.epoch, NOW + 1, "it takes over");
        let after = store.load().await.unwrap();
        // A store that has something is left alone unless that is wanted.
        match import(store, &text, false, NOW).await {
            Err(ImportError::NotEmpty { groups, hosts }) => assert!(groups > 0 && hosts > 0),
            other => panic!("{other:?}"),
        }
        assert_eq!(store.load().await.unwrap(), after);
        // A switch has refused its controller: it takes an import to begin again.
        let write = Write::put(0, (NOW + 1).to_string().into_bytes());
        store
            .commit([(Key::meta("refused"), write)].into())
            .await
            .unwrap();
        let refused = Stored::load(store, "another", true, false).await;
        assert!(matches!(refused, Err(StoreError::Refused { epoch }) if epoch == NOW + 1));
        let found = lines(&store.load().await.unwrap());
        assert!(
            found.len() == 1
                && found[0].starts_with("meta/refused: a switch has refused")
                && found[0].ends_with("export this store, and import it again with --force"),
            "{found:?}"
        );
        assert_eq!(exported(&store.load().await.unwrap()), text);
        let empty = json!({ "schema": STORE_VERSION, "groups": {}, "hosts": {} });
        import(store, &empty.to_string(), true, NOW).await.unwrap();
        let left = store.load().await.unwrap();
        assert_eq!(document(&left)["groups"], json!({}));
        assert_eq!(lines(&left), [""; 0]);
        assert_eq!(
            Stored::load(store, "another", true, false).await.unwrap().epoch,
            NOW + 3,
            "never less"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_document_with_faults_is_refused_whole() {
    let good = document(&entries().await);
    let store = MemoryStore::default();
    for (change, word) in [
        (
            json!({ "schema": STORE_VERSION + 1 }),
            "schema 4; this version reads 3",
        ),
        (json!({ "colour": 1 }), "unknown field `colour`"),
        (json!({ "groups": [] }), "does not read"),
        (json!({ "groups": { "g": 7 } }), "groups/g: does not read"),
        (
            json!({ "hosts": { "h": { "name": "h" } } }),
            "hosts/h: does not read",
        ),
        (json!({ "meta": { "owner": 7 } }), "meta/owner: does not read"),
    ] {
        let mut bad = good.clone();
        for (field, value) in change.as_object().unwrap() {
            bad[field] = value.clone();
        }
        let error = import(&store, &bad.to_string(), true, NOW)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(word), "{error}");
    }
    for text in ["", "{}", "[1]", "{\"schema\": 3}"] {
        let error = import(&store, text, true, NOW).await.unwrap_err();
        assert!(matches!(error, ImportError::Document(_)), "{error}");
    }
    assert!(store.load().await.unwrap().is_empty());
}

/// Changes the value of an entry.
fn change(entries: &mut Entries, table: Table, name: &str, change: impl FnOnce(&mut Value)) {
    let entry = entries.get_mut(&Key::new(table, name)).unwrap();
    let mut value = serde_json::from_slice(&entry.value).unwrap();
    change(&mut value);
    entry.value = serde_json::to_vec(&value).unwrap();
}

/// What is JSON and no record would keep the whole document from being imported.
#[tokio::test(start_paused = true)]
async fn an_export_leaves_out_what_is_no_record_and_can_be_imported() {
    let mut entries = entries().await;
    let first = |table: Table| {
        let of = |key: &&Key| key.table == table;
        entries.keys().find(of).unwrap().name.clone()
    };
    let (group, host) = (first(Table::Groups), first(Table::Hosts));
    change(&mut entries, Table::Groups, &group, |value| *value = json!(7));
    change(&mut entries, Table::Hosts, &host, |value| {
        *value = json!({ "name": "h" })
    });
    let (text, faults) = export(&entries);
    let named: Vec<String> = faults.iter().map(|fault| fault.entry.clone()).collect();
    assert_eq!(named, [format!("groups/{group}"), format!("hosts/{host}")]);
    let store = MemoryStore::default();
    import(&store, &text, false, NOW).await.unwrap();
    let left = store.load().await.unwrap();
    assert!(left.keys().all(|key| key.name != group && key.name != host));
    assert_eq!(
        left.keys().filter(|key| key.table == Table::Groups).count(),
        entries.keys().filter(|key| key.table == Table::Groups).count() - 1
    );
}

#[tokio::test(start_paused = true)]
async fn all_contradictions_of_entries_are_reported() {
    let mut entries = entries().await;
    let names = |table: Table| {
        let of = |(key, _): &(&Key, &Entry)| key.table == table;
        let all = entries.iter().filter(of).map(|(key, _)| key.name.clone());
        all.collect::<Vec<String>>()
    };
    let (groups, hosts) = (names(Table::Groups), names(Table::Hosts));
    let value = |entries: &Entries, table, name: &str| -> Value {
        serde_json::from_slice(&entries[&Key::new(table, name)].value).unwrap()
    };
    let runs = groups
        .iter()
        .find(|name| value(&entries, Table::Groups, name)["phase"] == "Active");
    let runs = runs.expect("a group that runs").clone();
    let other = groups.iter().find(|name| **name != runs).unwrap().clone();
    let first = value(&entries, Table::Groups, &runs);
    let switch = first["plan"]["tree"][0]["name"].as_str().unwrap().to_owned();
    let mcst_id = first["mcst_id"].clone();
    let ip = value(&entries, Table::Hosts, &hosts[0])["ip"].clone();
    change(&mut entries, Table::Groups, &runs, |group| {
        group["placed"] = json!([]);
        group["plan"]["tree"][0]["parent"] = "nobody".into();
    });
    change(&mut entries, Table::Groups, &other, |group| {
        group["mcst_id"] = mcst_id.clone()
    });
    change(&mut entries, Table::Hosts, &hosts[1], |host| {
        host["ip"] = ip.clone();
        host["name"] = "somebody".into();
    });
    let found: BTreeMap<String, Vec<String>> =
        check(&entries)
            .into_iter()
            .fold(BTreeMap::new(), |mut all, fault| {
                let reasons: &mut Vec<String> = all.entry(fault.entry).or_default();
                reasons.push(fault.reason);
                all
            });
    let of = |entry: String| found.get(&entry).cloned().unwrap_or_default().join("; ");
    let at_runs = of(format!("groups/{runs}"));
    assert!(
        at_runs.contains(&format!("it runs on switch {switch}, but is not placed there")),
        "{found:#?}"
    );
    let says = "below nobody, which is not above it";
    assert!(at_runs.contains(says), "{found:#?}");
    let twice = [of(format!("groups/{runs}")), of(format!("groups/{other}"))].concat();
    assert!(twice.contains(" is that of groups/"), "{found:#?}");
    let host = of(format!("hosts/{}", hosts[1]));
    assert!(host.contains("its record is that of \"somebody\""), "{found:#?}");
    assert!(
        host.contains(&format!("is the address of hosts/{} too", hosts[0])),
        "{found:#?}"
    );
}

/// Sets a field of a group: `settings/` of its kind, another one of its `kind/`, or one of the group itself.
fn set(group: &mut Value, path: &str, value: &Value) {
    let kind = group["kind"].as_object().unwrap().keys().next().unwrap();
    let path = path.replace("settings/", "kind/settings/");
    let path = format!("/{}", path.replace("kind/", &format!("kind/{kind}/")));
    let (at, field) = path.rsplit_once('/').unwrap();
    group.pointer_mut(at).unwrap()[field] = value.clone();
}

/// What no call accepts, no document brings in.
#[tokio::test(start_paused = true)]
async fn a_record_that_no_call_creates_is_refused() {
    let good = entries().await;
    let one = document(&good)["groups"]["waiting"]["kind"]["Multicast"]["members"][0].clone();
    let lanes: Vec<String> = (1..17).map(|n| format!("10.201.0.{n}")).collect();
    let cases = json!([
        ["waiting", "distribution: is given in a group with any_source",
         { "settings/distribution": "static", "settings/any_source": true }],
        ["running", "lanes: 2 is not possible with any_source", { "settings/any_source": true }],
        ["waiting", "on_stall.after_ms: is 0", { "settings/on_stall": { "after_ms": 0, "fails": false } }],
        ["waiting", "on_member_stall.after_ms: 600001 ", { "settings/on_stall": { "after_ms": 600_001, "fails": false } }],
        ["waiting", "stall_timeout_ms: is 0", { "settings/stall_timeout_ms": 0 }],
        ["waiting", "repair.slots: is 0", { "settings/repair": { "slots": 0, "ack_timeout_us": 64 } }],
        ["waiting", "repair.slots: 3 is no power of two", { "settings/repair": { "slots": 3, "ack_timeout_us": 64 } }],
        ["waiting", "repair.ack_timeout_us: is 63", { "settings/repair": { "slots": 2, "ack_timeout_us": 63 } }],
        ["waiting", "lanes: 17 is no number of lanes", { "more_lanes": lanes }],
        ["waiting", "source: \"nobody\" is not", { "kind/source": "nobody" }],
        ["waiting", "members: 1 member(s)", { "kind/members": [one] }],
        ["waiting", "members[1].host: \"h1\" is the name of members[0]", { "kind/members/1/host": "h1" }],
        ["waiting", "mcst_id: \"224.0.0.1\" is not", { "mcst_id": "224.0.0.1" }],
        ["running", "mcst_id: \"127.0.0.1\" is not", { "more_lanes": ["127.0.0.1"] }],
        ["job", "settings.window_packets: is 0", { "settings/window_packets": 0 }],
        ["job", "settings.window_packets: 1 packets", { "settings/window_packets": 1 }],
        ["job", "settings.message_packets: is 0", { "settings/message_packets": 0 }],
        ["job", "settings.message_packets: 65 packets", { "settings/message_packets": 65 }],
        ["job", "settings.lanes: is 2, but the group has 1 McstID(s)", { "settings/lanes": 2 }],
        ["job", "settings.lanes: 17 is no number of lanes", { "settings/lanes": 17 }],
        ["job", "ranks: 0 rank(s)", { "kind/ranks": [] }],
    ]);
    for case in cases.as_array().unwrap() {
        let [group, fault] = [0_usize, 1].map(|column| case[column].as_str().unwrap());
        let mut bad = good.clone();
        change(&mut bad, Table::Groups, group, |group| {
            for (path, value) in case[2].as_object().unwrap() {
                set(group, path, value);
            }
        });
        let (wanted, found) = (format!("groups/{group}: {fault}"), lines(&bad));
        assert!(
            found.iter().any(|line| line.starts_with(&wanted)),
            "{wanted}: {found:#?}"
        );
    }
}

/// Switches know the groups of a controller by its owner.
#[tokio::test(start_paused = true)]
async fn a_store_with_groups_has_an_owner() {
    let mut entries = entries().await;
    change(&mut entries, Table::Meta, "owner", |owner| *owner = "".into());
    assert!(lines(&entries)[0].starts_with("meta/owner: is empty"));
    entries.retain(|key, _| key.table != Table::Meta);
    assert!(lines(&entries)[0].starts_with("meta/owner: is missing"));
    entries.retain(|key, _| key.table != Table::Groups);
    assert_eq!(lines(&entries), [""; 0]);
}
