//! The store on etcd, with real servers.

use std::time::Duration;

use castnet_controller::Controller;
use castnet_controller::store::etcd::{Campaign, Candidate, EtcdConfig};
use castnet_controller::store::{Batch, Entry, Key, Store, StoreError, Stored, Table, Write};
use castnet_proto::transport::{Address, Security};

use crate::common::etcd::Cluster;
use crate::common::net::{Fault, Net};
use crate::common::tls::Authority;
use crate::common::{Lab, serving};
use crate::store::{key, put, record, whole_or_not_at_all};

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_contract_of_a_store() {
    let Some(cluster) = Cluster::start("etcd::it_keeps_the_contract_of_a_store", 1) else {
        return;
    };
    let store = cluster.store().await;
    whole_or_not_at_all(&store).await;
    store.close().await.unwrap();
    assert!(matches!(store.load().await, Err(StoreError::Closed { .. })));

    // Long for what follows, and short for the end of the test, which waits for it.
    let brief = EtcdConfig {
        lead_ttl: Duration::from_secs(10),
        ..cluster.config()
    };
    let store = Cluster::store_of(&brief).await;
    let first = Stored::load(&store, "first", true, false).await.unwrap();
    assert_eq!((first.owner.as_str(), first.epoch), ("first", 1));
    assert_eq!((first.versions[&key("a")], first.versions[&key("b")]), (2, 1));
    let remove = Write { was: 1, entry: None };
    store.commit([(key("b"), remove)].into()).await.unwrap();
    drop(store);
    // As killed: the next leads when the lease has ended.
    let store = cluster.store().await;
    let second = Stored::load(&store, "second", true, false).await.unwrap();
    assert_eq!((second.owner.as_str(), second.epoch), ("first", 2));
    assert_eq!(second.groups, [record("a")]);
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

/// etcd takes 128 operations and 1.5 MiB at once.
#[tokio::test(flavor = "multi_thread")]
async fn batches_of_any_size_are_written_and_an_entry_that_is_too_large_is_refused() {
    let name = "etcd::batches_of_any_size_are_written_and_an_entry_that_is_too_large_is_refused";
    let Some(cluster) = Cluster::start(name, 1) else {
        return;
    };
    let store = cluster.store().await;
    store.commit(many(1000, 0, 10)).await.unwrap();
    store.commit(many(20, 1, 200_000)).await.unwrap();
    store.commit(many(3, 2, 10)).await.unwrap();
    let mut removal = many(1000, 1, 0);
    removal.retain(|key, write| {
        write.entry = None;
        (20..1000).any(|n| *key == host(n))
    });
    store.commit(removal).await.unwrap();
    let mut expected = many(20, 1, 200_000);
    expected.extend(many(3, 2, 10));
    let expected = expected
        .into_iter()
        .map(|(key, write)| (key, write.entry.unwrap()));
    assert_eq!(store.load().await.unwrap(), expected.collect());
    let refused = store.commit(many(1, 3, 2_000_000)).await.unwrap_err().to_string();
    assert!(
        refused.contains("hosts/h/0: 2000000 bytes are more than"),
        "{refused}"
    );
    store.commit(many(1, 3, 1)).await.unwrap();
}

/// A controller whose lease has ended writes nothing, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_lead_nothing_is_written() {
    let Some(cluster) = Cluster::start("etcd::without_the_lead_nothing_is_written", 1) else {
        return;
    };
    let old = cluster.store().await;
    old.commit([put(0, &record("a"))].into()).await.unwrap();
    match cluster.campaign("http://other:1").await {
        Campaign::Lost(leader) => assert_eq!(leader, "http://here:1"),
        Campaign::Won(_) => panic!("two lead"),
    }
    cluster.end_lead();
    let new = cluster.store().await;
    let before = new.load().await.unwrap();
    for batch in [[put(1, &record("a"))].into(), many(1000, 0, 1)] {
        let refused = old.commit(batch).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotLeading { .. }), "{refused}");
    }
    assert_eq!(new.load().await.unwrap(), before);
    new.commit([put(1, &record("a"))].into()).await.unwrap();
}

/// A leader whose member falls silent keeps the lead: it renews its lease at another one.
#[tokio::test(flavor = "multi_thread")]
async fn the_lead_outlives_a_member_that_falls_silent() {
    let Some(cluster) = Cluster::start("etcd::the_lead_outlives_a_member_that_falls_silent", 1) else {
        return;
    };
    // A machine that stands still for a part of the lease loses the lead, too.
    let mut attempts = 0..5;
    while !outlives_silence(&cluster).await {
        assert!(attempts.next().is_some(), "the lead is lost each time");
    }
}

/// Whether a leader keeps its lead while one of its members is silent, then the other one.
async fn outlives_silence(cluster: &Cluster) -> bool {
    let (mut net, folder) = (Net::default(), tempfile::tempdir().unwrap());
    // Two ways to the only server.
    let members = ["a", "b"].map(|member| {
        let at = folder.path().join(member);
        net.link("c", member, &at, cluster.socket(0));
        Address::Unix(at)
    });
    let config = EtcdConfig {
        // A connection to a silent member ends by itself after 7 s.
        lead_ttl: Duration::from_secs(5),
        ..Cluster::config_of(members.into())
    };
    let store = Cluster::store_of(&config).await;
    for silent in ["a", "b", "a"] {
        net.fail("c", Some(silent), Fault::Held([true, true]));
        // The call ends with its connection, when the lease of the fault's start is over.
        let first = store.commit([put(0, &record(silent))].into()).await;
        let is_lost = matches!(first, Err(StoreError::NotLeading { .. }));
        let other = cluster.campaign("http://other:1").await;
        net.heal();
        if let Campaign::Won(other) = other {
            other.close().await.unwrap();
            return false;
        }
        if is_lost {
            return false;
        }
    }
    true
}

/// Writes fail while two of three members are away, and have happened or not when they are back: not.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_writes_fail_and_what_failed_is_taken_back() {
    let name = "etcd::without_a_quorum_writes_fail_and_what_failed_is_taken_back";
    let Some(mut cluster) = Cluster::start(name, 3) else {
        return;
    };
    let store = cluster.store().await;
    store
        .commit([put(0, &record("a")), put(0, &record("b"))].into())
        .await
        .unwrap();
    let before = store.load().await.unwrap();
    cluster.kill(1);
    cluster.kill(2);
    for _ in 0..2 {
        let batch = [
            put(1, &record("a")),
            (key("b"), Write { was: 1, entry: None }),
            put(0, &record("c")),
        ];
        let error = store.commit(batch.into()).await.unwrap_err().to_string();
        assert!(
            error.contains("see that a majority of its members runs"),
            "{error}"
        );
    }
    cluster.restart(1);
    let found = loop {
        match store.load().await {
            Ok(found) => break found,
            Err(StoreError::Failed { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(found, before);
    store
        .commit([put(1, &record("a")), put(0, &record("c"))].into())
        .await
        .unwrap();
    assert_eq!(store.load().await.unwrap().len(), 3);
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
