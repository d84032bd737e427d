//! What is on the disk.

use std::collections::BTreeMap;
use std::path::Path;

use castnet_controller::kinds::Kind;
use castnet_controller::kinds::multicast::record::{JoinedBy, MemberState, Multicast, Seat};
use castnet_controller::record::Record;
use castnet_controller::store::memory::MemoryStore;
use castnet_controller::store::redb::RedbStore;
use castnet_controller::store::{Batch, Entry, Key, Store, StoreError, Stored, Table, Write};
use castnet_proto::convert::new_group_from_proto;
use castnet_proto::v1;
use castnet_wire::{McstId, Psn};

pub(crate) fn record(name: &str) -> Record {
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
    let kind = Kind::Multicast(Multicast::new(group, Psn::new(0xFF_FFFF), 100));
    Record::new(name.into(), (lane(1), vec![lane(2)]), kind)
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(Table::Groups, name)
}

/// Writes a group in place of version `was`.
pub(crate) fn put(was: u64, record: &Record) -> (Key, Write) {
    let value = serde_json::to_vec(record).unwrap();
    (key(&record.name), Write::put(was, value))
}

/// A larger epoch, as of an import with `--above`, is another one.
#[tokio::test(start_paused = true)]
async fn a_store_whose_last_controller_was_refused_takes_another_epoch() {
    let store = MemoryStore::default();
    let set = |name: &str, was, number: u64| {
        let value = number.to_string().into_bytes();
        (Key::meta(name), Write::put(was, value))
    };
    let load = async || Stored::load(&store, "us", true, false).await;
    assert_eq!(load().await.unwrap().epoch, 1);
    store.commit([set("refused", 0, 1)].into()).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(load().await, Err(StoreError::Refused { epoch: 1 })));
    }
    store.commit([set("epoch", 1, 7)].into()).await.unwrap();
    assert_eq!(load().await.unwrap().epoch, 8);
}

/// A store on a full disk, and which file it is.
#[derive(Debug)]
struct Full(MemoryStore, Option<&'static str>);

#[tonic::async_trait]
impl Store for Full {
    async fn load(&self) -> Result<BTreeMap<Key, Entry>, StoreError> {
        self.0.load().await
    }

    async fn commit(&self, _: Batch) -> Result<(), StoreError> {
        Err(StoreError::Failed {
            store: "(full)".into(),
            entry: None,
            error: "no space left on device".into(),
        })
    }

    fn identity(&self) -> Option<String> {
        self.1.map(Into::into)
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The controller of the other one may run: both would have the same term, which switches take for one controller.
#[tokio::test(start_paused = true)]
async fn a_copy_that_cannot_be_written_does_not_continue_the_term() {
    let store = MemoryStore::default();
    assert_eq!(Stored::load(&store, "us", true, false).await.unwrap().epoch, 1);
    let file = (Key::meta("file"), Write::put(0, br#""1:7""#.to_vec()));
    store.commit([file].into()).await.unwrap();
    let load = async |file| {
        let full = Full(store.clone(), Some(file));
        Stored::load(&full, "us", true, false).await
    };
    assert_eq!(load("1:7").await.unwrap().epoch, 1);
    assert!(matches!(load("1:8").await, Err(StoreError::Failed { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_store_notes_at_each_start_which_file_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let [path, copy] = ["c.redb", "copy.redb"].map(|name| folder.path().join(name));
    let noted = async |path: &Path| {
        let store = RedbStore::open(path).unwrap();
        Stored::load(&store, "us", true, false).await.unwrap();
        let entries = store.load().await.unwrap();
        store.close().await.unwrap();
        entries[&Key::meta("file")].value.clone()
    };
    let first = noted(path.as_path()).await;
    assert_eq!(noted(path.as_path()).await, first);
    std::fs::copy(&path, &copy).unwrap();
    assert_ne!(noted(copy.as_path()).await, first);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_read_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.redb");
    let store = RedbStore::open(&path).unwrap();
    let stored = Stored::load(&store, "first", true, false).await.unwrap();
    assert_eq!(stored.owner, "first");
    let (a, b) = (record("a"), record("b"));
    store.commit([put(0, &a), put(0, &b)].into()).await.unwrap();
    match RedbStore::open(&path) {
        Err(StoreError::Failed { store, .. }) => assert!(store.ends_with("c.redb"), "in use: {store}"),
        other => panic!("{other:?}"),
    }
    store.close().await.unwrap();
    assert!(matches!(store.load().await, Err(StoreError::Closed { .. })));
    let store = RedbStore::open(&path).unwrap();
    let stored = Stored::load(&store, "second", true, false).await.unwrap();
    assert_eq!(stored.owner, "first", "who it is to the switches outlives it");
    assert_eq!(stored.groups, [a.clone(), b]);
    assert_eq!(stored.versions[&key("b")], 1);
    let remove = Write { was: 1, entry: None };
    store.commit([(key("b"), remove)].into()).await.unwrap();
    drop(store);
    let stored = Stored::load(&RedbStore::open(&path).unwrap(), "third", true, false)
        .await
        .unwrap();
    assert_eq!(stored.groups.as_slice(), std::slice::from_ref(&a));
    let MemberState::Joined(Seat { ends, by, .. }) = &stored.groups[0].multicast().unwrap().members[1].state
    else {
        panic!()
    };
    assert_eq!((ends.endpoint.qpn.value(), *by), (17, JoinedBy::Creation));
    assert_eq!((ends.more[0].qpn.value(), stored.groups[0].lanes()), (18, 2));
}

/// Two who write to one store: the second to write is refused, by the name of the entry, and nothing of its batch stays.
#[tokio::test(start_paused = true)]
async fn a_batch_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let redb = RedbStore::open(&folder.path().join("c.redb")).unwrap();
    whole_or_not_at_all(&redb).await;
    whole_or_not_at_all(&MemoryStore::default()).await;
}

pub(crate) async fn whole_or_not_at_all(store: &dyn Store) {
    store.commit([put(0, &record("a"))].into()).await.unwrap();
    let before = store.load().await.unwrap();
    for was in [0, 2] {
        let batch = [put(0, &record("b")), put(was, &record("a")), put(0, &record("c"))];
        match store.commit(batch.into()).await {
            Err(StoreError::Conflict {
                entry,
                expected,
                found,
                ..
            }) => {
                assert_eq!(entry.to_string(), "groups/a");
                assert_eq!(expected, was);
                assert_eq!(found, 1);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(store.load().await.unwrap(), before);
    }
    store
        .commit([put(1, &record("a")), put(0, &record("b"))].into())
        .await
        .unwrap();
    assert_eq!(store.load().await.unwrap()[&key("a")].version, 2);
}
