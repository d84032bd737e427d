//! The store on etcd: on the model, and where it is installed on etcd itself.

use std::collections::BTreeMap;
use std::time::Duration;

use castnet_controller::Controller;
use castnet_controller::store::etcd::{Campaign, Candidate, EtcdConfig, EtcdStore};
use castnet_controller::store::{Batch, Entry, Key, Store, StoreError, Stored, Table, Write};
use castnet_proto::transport::{Address, Security};
use tokio::time::sleep;

use crate::common::etcd::{Cluster, Etcd, POLL, campaign, store};
use crate::common::tls::Authority;
use crate::common::{Lab, serving};
use crate::store::{key, put, record, whole_or_not_at_all};
use castnet_sim_control::etcd::EtcdModel;
use castnet_sim_control::net::{Fault, Net};

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract_on_the_model() {
    keeps_the_contract(&EtcdModel::start(1).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_contract_on_etcd() {
    if let Some(cluster) = Cluster::start("etcd::it_keeps_the_contract_on_etcd") {
        keeps_the_contract(&cluster).await;
    }
}

async fn keeps_the_contract(etcd: &impl Etcd) {
    let first = store(&etcd.config()).await;
    whole_or_not_at_all(&first).await;
    first.close().await.unwrap();
    assert!(matches!(first.load().await, Err(StoreError::Closed { .. })));

    let second = store(&etcd.config()).await;
    let stored = Stored::load(&second, "first", true, false).await.unwrap();
    assert_eq!((stored.owner.as_str(), stored.epoch), ("first", 1));
    assert_eq!((stored.versions[&key("a")], stored.versions[&key("b")]), (2, 1));
    let remove = Write { was: 1, entry: None };
    second.commit([(key("b"), remove)].into()).await.unwrap();
    // As killed: its lease is not revoked.
    drop(second);
    match campaign(&etcd.config(), "http://other:1").await {
        Campaign::Lost(leader) => assert_eq!(leader, "http://here:1"),
        Campaign::Won(_) => panic!("two lead"),
    }
    etcd.end_lead();
    let third = store(&etcd.config()).await;
    let stored = Stored::load(&third, "second", true, false).await.unwrap();
    assert_eq!((stored.owner.as_str(), stored.epoch), ("first", 2));
    assert_eq!(stored.groups, [record("a")]);

    batches_of_any_size_are_written(&third).await;
    nothing_is_written_without_the_lead(etcd).await;
}

fn host(n: usize) -> Key {
    Key {
        table: Table::Hosts,
        name: format!("h/{n}"),
    }
}

/// One version of many entries, of so many bytes.
fn many(count: usize, was: u64, bytes: usize) -> Batch {
    let entry = |version| Entry {
        version,
        value: vec![b'0' + version as u8; bytes],
    };
    let write = |n| {
        (
            host(n),
            Write {
                was,
                entry: Some(entry(was + 1)),
            },
        )
    };
    (0..count).map(write).collect()
}

/// etcd takes 128 operations and 1.5 MiB at once, and answers with more than the 4 MiB that clients take by default.
async fn batches_of_any_size_are_written(store: &EtcdStore) {
    store.commit(many(1000, 0, 10)).await.unwrap();
    store.commit(many(25, 1, 200_000)).await.unwrap();
    store.commit(many(3, 2, 10)).await.unwrap();
    let mut removal = many(1000, 1, 0);
    removal.retain(|key, write| {
        write.entry = None;
        (25..1000).any(|n| *key == host(n))
    });
    store.commit(removal).await.unwrap();
    let mut expected = many(25, 1, 200_000);
    expected.extend(many(3, 2, 10));
    let expected = expected
        .into_iter()
        .map(|(key, write)| (key, write.entry.unwrap()));
    let mut found = store.load().await.unwrap();
    found.retain(|key, _| key.table == Table::Hosts);
    assert_eq!(found, expected.collect());
    let refused = store.commit(many(1, 3, 2_000_000)).await.unwrap_err().to_string();
    let says = "hosts/h/0: 2000000 bytes are more than";
    assert!(refused.contains(says), "{refused}");
    store.commit(many(1, 3, 1)).await.unwrap();
}

/// A controller whose lease has ended writes nothing, and says so.
async fn nothing_is_written_without_the_lead(etcd: &impl Etcd) {
    let late = |(key, write): (Key, Write)| {
        let name = format!("late/{}", key.name);
        (Key { name, ..key }, write)
    };
    let next = async || {
        etcd.end_lead();
        store(&etcd.config()).await
    };
    // In one transaction, and in several.
    for count in [1, 1000] {
        let (old, new) = (next().await, next().await);
        let before = new.load().await.unwrap();
        let batch = many(count, 0, 1).into_iter().map(late).collect();
        let refused = old.commit(batch).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotLeading { .. }), "{refused}");
        assert_eq!(new.load().await.unwrap(), before);
        new.commit([put(0, &record(&format!("new{count}")))].into())
            .await
            .unwrap();
    }
}

/// A leader whose member falls silent keeps the lead: it renews its lease at another one. A call that waited at the silent one sent it back
/// there.
#[tokio::test(start_paused = true)]
async fn the_lead_outlives_a_member_that_falls_silent() {
    let etcd = EtcdModel::start(1).await;
    let mut net = Net::default();
    // Two ways to the only server.
    let members = ["a", "b"].map(|member| {
        net.link("c", member, member.as_ref(), etcd.socket(0));
        Address::Unix(member.into())
    });
    let config = EtcdConfig {
        members: members.into(),
        lead_ttl: Duration::from_secs(5),
        ..etcd.config()
    };
    let store = store(&config).await;
    for (silent, name) in [("a", "x"), ("b", "y"), ("a", "z")] {
        net.fail("c", Some(silent), Fault::Held([true, true]));
        // Its failure comes before that of a renewal which waits, too.
        while let Err(error) = store.commit([put(0, &record(name))].into()).await {
            assert!(matches!(error, StoreError::Failed { .. }), "{error}");
            sleep(POLL).await;
        }
        sleep(config.lead_ttl).await;
        match campaign(&etcd.config(), "http://other:1").await {
            Campaign::Lost(leader) => assert_eq!(leader, "http://here:1"),
            Campaign::Won(_) => panic!("the lead is lost while {silent} is silent"),
        }
        net.heal();
        // What was held has arrived, and changes nothing.
        sleep(config.lead_ttl).await;
        store.commit([put(1, &record(name))].into()).await.unwrap();
    }
}

/// It gave back what was there before the large batch, which had been confirmed.
#[tokio::test(start_paused = true)]
async fn a_write_after_a_large_batch_takes_back_itself_alone() {
    let etcd = EtcdModel::start(1).await;
    let store = store(&etcd.config()).await;
    store.commit(many(300, 0, 1)).await.unwrap();
    let before = store.load().await.unwrap();
    store.commit([put(0, &record("a"))].into()).await.unwrap();
    store.commit(many(300, 1, 1)).await.unwrap();
    // It is written, and nobody says so.
    etcd.lose_answer(0);
    store.commit(many(1, 2, 1)).await.unwrap_err();
    let found = loaded(&store).await;
    assert_eq!(found.len(), before.len() + 1);
    assert!((0..300).all(|n| found[&host(n)].version == 2));
}

/// What the store has when etcd answers again.
async fn loaded(store: &EtcdStore) -> BTreeMap<Key, Entry> {
    loop {
        match store.load().await {
            Ok(found) => return found,
            Err(StoreError::Failed { .. }) => sleep(POLL).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A write that fails has happened or not when etcd answers again: not.
#[tokio::test(start_paused = true)]
async fn what_failed_is_taken_back() {
    let mut etcd = EtcdModel::start(3).await;
    let store = store(&etcd.config()).await;
    let entries = [put(0, &record("a")), put(0, &record("b"))];
    store.commit(entries.into()).await.unwrap();
    let before = store.load().await.unwrap();
    let batch = || {
        let remove = (key("b"), Write { was: 1, entry: None });
        Batch::from([put(1, &record("a")), remove, put(0, &record("c"))])
    };

    // Two of three members are away.
    etcd.kill(1).await;
    etcd.kill(2).await;
    for _ in 0..2 {
        let error = store.commit(batch()).await.unwrap_err().to_string();
        let words = "see that a majority of its members runs";
        assert!(error.contains(words), "{error}");
    }
    etcd.restart(1).await;
    assert_eq!(loaded(&store).await, before);
    // It is written, and nobody says so.
    for _ in 0..2 {
        etcd.lose_answer(0);
        store.commit(batch()).await.unwrap_err();
    }
    assert_eq!(loaded(&store).await, before);
    // It is written when the store waits for it no longer.
    etcd.hold(true);
    store.commit(batch()).await.unwrap_err();
    etcd.hold(false);
    assert_eq!(loaded(&store).await, before);
    // So is a large batch, at each of its transactions. From a point on it is valid.
    for answered in 0..16 {
        etcd.lose_answer(answered);
        let is_written = store.commit(many(300, 0, 1)).await.is_ok();
        let mut found = loaded(&store).await;
        etcd.lose_none();
        if is_written {
            let mut removal = many(300, 1, 0);
            for write in removal.values_mut() {
                write.entry = None;
            }
            assert_eq!(found.len(), before.len() + removal.len(), "{answered}");
            store.commit(removal).await.unwrap();
            found = loaded(&store).await;
        }
        assert_eq!(found, before, "{answered}");
    }

    store.commit(batch()).await.unwrap();
    let after = store.load().await.unwrap();
    assert_eq!(after.len(), before.len());
    assert!(after.contains_key(&key("c")) && !after.contains_key(&key("b")));
    // What it was before cannot be read any more: another controller takes what is there.
    etcd.lose_answer(0);
    store.commit([put(1, &record("c"))].into()).await.unwrap_err();
    etcd.compact(i64::MAX);
    let error = store.load().await.unwrap_err();
    assert!(matches!(error, StoreError::NotLeading { .. }), "{error}");
}

/// etcd serves clients with certificates of its authority. Others learn which certificate is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn over_tls_both_ends_need_certificates_of_the_authority() {
    let lab = Lab::two_tiers().await;
    let folder = |name: &str| lab.folder.path().join(name);
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = ours.issue(&folder("etcd"), &["127.0.0.1"]).tls.unwrap();
    let name = "etcd::over_tls_both_ends_need_certificates_of_the_authority";
    let Some((_cluster, port)) = Cluster::over_tls(name, &server) else {
        return;
    };
    let security = ours.issue(&folder("c0"), &["c0"]);
    let at = |host: &str, security: &Security| EtcdConfig {
        security: security.clone(),
        ..Cluster::config_of(vec![format!("https://{host}:{port}").parse().unwrap()])
    };
    let good = at("127.0.0.1", &security);
    let mut config = lab.config.clone();
    config.store = None;
    config.etcd = Some(good.clone());
    let (controller, mut client) = serving(Controller::start(config).await.unwrap()).await;
    // It may not lead yet.
    while client
        .create_group(lab.given("g", &["h0", "h2"], 17))
        .await
        .is_err()
    {}
    controller.stop().await;

    let mut unknown = theirs.issue(&folder("unknown"), &["c0"]);
    unknown.tls.as_mut().unwrap().ca = server.ca.clone();
    for (config, wrong) in [
        (at("127.0.0.1", &unknown), "does not trust the certificate"),
        (
            at("127.0.0.1", &theirs.issue(&folder("theirs"), &["c0"])),
            "invalid peer certificate",
        ),
        (at("localhost", &security), "not valid for name"),
        (at("127.0.0.1", &Security::default()), "needs certificates"),
    ] {
        let refused = Candidate::new(&config, "http://here:1")
            .campaign()
            .await
            .unwrap_err();
        assert!(refused.to_string().contains(wrong), "{refused}");
    }
}
