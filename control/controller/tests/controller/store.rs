//! What is on the disk.

use castnet_controller::record::{GroupRecord, JoinedBy, MemberState};
use castnet_controller::store::{STORE_VERSION, Store, StoreError};
use castnet_proto::convert::new_group_from_proto;
use castnet_proto::v1;
use castnet_wire::{McstId, Psn};

fn record(name: &str) -> GroupRecord {
    let connection = |last: u8| v1::Connection {
        ip: format!("10.0.0.{last}"),
        mac: format!("02:00:00:00:00:0{last}"),
        qpn: 17,
        memory: Some(v1::RemoteMemory {
            va: u64::MAX - 1,
            rkey: u32::MAX,
            length: 1,
        }),
        more_lanes: vec![v1::LaneConnection {
            qpn: 18,
            memory: None,
        }],
    };
    let member = |host: &str, last: u8| v1::NewMember {
        host: host.into(),
        connection: Some(connection(last)),
    };
    let request = v1::CreateGroupRequest {
        name: name.into(),
        source: "a".into(),
        members: vec![member("a", 1), member("b", 2)],
        pmtu: 4096,
        lanes: 2,
        ..Default::default()
    };
    let group = new_group_from_proto(&request).unwrap();
    let lane = |n| McstId([10, 200, 0, n].into());
    GroupRecord::new(group, lane(1), vec![lane(2)], Psn::new(0xFF_FFFF))
}

#[test]
fn what_is_written_is_read_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.redb");
    let store = Store::open(&path, "first").unwrap();
    let (a, b) = (record("a"), record("b"));
    store.put_group(&a).unwrap();
    store.put_group(&b).unwrap();
    assert!(
        matches!(Store::open(&path, "second"), Err(StoreError::Database { .. })),
        "in use"
    );
    drop(store);
    let store = Store::open(&path, "second").unwrap();
    assert_eq!(store.owner(), "first", "who it is to the switches outlives it");
    assert_eq!(store.load().unwrap().groups, [a.clone(), b]);
    store.remove_group("b").unwrap();
    drop(store);
    let stored = Store::open(&path, "third").unwrap().load().unwrap();
    assert_eq!(stored.groups.as_slice(), std::slice::from_ref(&a));
    let MemberState::Joined { endpoint, more, by } = &stored.groups[0].members[1].state else {
        panic!()
    };
    assert_eq!((endpoint.qpn.value(), *by), (17, JoinedBy::Creation));
    assert_eq!((more[0].qpn.value(), stored.groups[0].lanes()), (18, 2));
}

#[test]
fn a_newer_layout_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.redb");
    drop(Store::open(&path, "us").unwrap());
    let newer = (STORE_VERSION + 1).to_string();
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let table: redb::TableDefinition<'_, &str, &str> = redb::TableDefinition::new("meta");
    transaction
        .open_table(table)
        .unwrap()
        .insert("version", newer.as_str())
        .unwrap();
    transaction.commit().unwrap();
    drop(database);
    match Store::open(&path, "us") {
        Err(StoreError::Version { found, .. }) => assert_eq!(found, newer),
        other => panic!("{other:?}"),
    }
}
