//! Nothing is seen before it is on disk, what was answered is there after a restart, and what cannot be written is refused
//! whole: over every store, and over stores that fail and delay.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::collective_failures::failed;
use crate::common::ranks::all;
use crate::common::{
    Calls, Client, Events, Lab, creation, destruction, in_time, moment, reaches, refused, seeds, start_with,
};
use castnet_controller::Controller;
use castnet_controller::store::Store;
use castnet_controller::store::memory::MemoryStore;
use castnet_controller::store::redb::RedbStore;
use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;
use castnet_sim_control::random::Random;
use castnet_sim_control::store::FaultyStore;
use tokio::sync::mpsc;
use tonic::{Code, Status};

/// The kinds of stores that outlive a controller: each call opens the same one.
type Open = Box<dyn Fn() -> Arc<dyn Store>>;

fn memory() -> Open {
    let store = MemoryStore::default();
    Box::new(move || Arc::new(store.clone()))
}

fn redb(folder: &Path) -> Open {
    let path = folder.join("durable.redb");
    Box::new(move || Arc::new(RedbStore::open(&path).unwrap()))
}

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

async fn destroy(client: &Client, group: &str) -> Result<bool, Status> {
    let answer = client.clone().destroy_group(destruction(group)).await?;
    Ok(answer.into_inner().complete)
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

/// What a client knows by the answers that it got.
#[derive(Clone, Debug, Default)]
struct Known {
    groups: BTreeMap<String, bool>,
    hosts: BTreeSet<String>,
    /// Asked for, and not answered yet.
    open: Option<String>,
}

/// Creates and destroys groups and registers hosts, until the controller is gone.
async fn ask(
    client: Client,
    worker: u64,
    seed: u64,
    known: Arc<parking_lot::Mutex<Known>>,
    tell: mpsc::UnboundedSender<()>,
) {
    let mut random = Random(seed ^ (worker << 32));
    for n in 0.. {
        let name = format!("w{worker}-{}", random.below(3));
        let was = known.lock().groups.get(&name).copied().unwrap_or(false);
        known.lock().open = Some(name.clone());
        let answer = match (random.below(5), was) {
            (0, _) => {
                let host = format!("host-{worker}-{n}");
                let request = v1::RegisterHostRequest {
                    name: host.clone(),
                    // Of its own: a host that comes with the addresses of another one replaces it.
                    ip: format!("10.{}.{}.{}", worker + 9, n / 200, n % 200 + 1),
                    mac: format!("02:00:00:{worker:02x}:{:02x}:{:02x}", n / 200, n % 200 + 1),
                };
                let answer = client.clone().register_host(request).await.map(drop);
                if answer.is_ok() {
                    known.lock().hosts.insert(host);
                }
                answer.map(|()| was)
            }
            (_, false) => {
                let request = creation(&name, &["h0", "h2"]);
                client.clone().create_group(request).await.map(|_| true)
            }
            (_, true) => destroy(&client, &name).await.map(|complete| {
                assert!(complete);
                false
            }),
        };
        match answer {
            Ok(is) => {
                known.lock().groups.insert(name.clone(), is);
                let _ = tell.send(());
            }
            Err(status) if status.code() == Code::Internal && status.message().contains("no space left") => {
                // Refused whole: it is as it was.
                match client.try_get(&name).await {
                    Ok(group) => {
                        assert!(was, "seed {seed}: {name}");
                        let phase = group.state.unwrap().phase();
                        assert_eq!(phase, v1::GroupPhase::Registered, "seed {seed}: {name}");
                    }
                    Err(status) if status.code() == Code::NotFound => assert!(!was, "seed {seed}: {name}"),
                    Err(_) => return,
                }
                moment().await;
            }
            // The controller is gone.
            Err(_) => return,
        }
        known.lock().open = None;
    }
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

/// Clients ask at once, the controller is killed at some moment, and the next one knows what was answered.
async fn what_was_answered_is_there(open: &Open, faulty: bool, seed: u64) {
    let lab = Lab::two_tiers().await;
    let store = FaultyStore::new(open());
    let (controller, client) = start_with(lab.config.clone(), Arc::new(store.clone())).await;
    store.seed(faulty.then_some(seed));
    let (tell, mut answers) = mpsc::unbounded_channel();
    let mut clients = Vec::new();
    for worker in 0..4 {
        let known = Arc::new(parking_lot::Mutex::new(Known::default()));
        let asks = ask(client.clone(), worker, seed, known.clone(), tell.clone());
        clients.push((known, tokio::spawn(asks)));
    }
    for _ in 0..20 + Random(seed).below(20) {
        in_time(answers.recv()).await.unwrap();
    }
    controller.stop().await;
    drop(client);
    let mut all: Vec<Known> = Vec::new();
    for (known, asks) in clients {
        asks.await.unwrap();
        all.push(known.lock().clone());
    }
    drop(store);

    let (controller, client) = start_with(lab.config.clone(), open()).await;
    let hosts: BTreeSet<String> = client.hosts().await.into_iter().collect();
    for known in all {
        let lacks: Vec<&String> = known.hosts.difference(&hosts).collect();
        assert!(lacks.is_empty(), "seed {seed}: {lacks:?}");
        let mut answered = known.groups.clone();
        answered.retain(|name, _| known.open.as_ref() != Some(name));
        for (name, is) in answered {
            assert_eq!(exists(&client, &name).await, is, "seed {seed}: {name}");
        }
    }
    let groups = client.groups().await;
    let mcst_ids = groups.iter().map(|g| &g.state.as_ref().unwrap().mcst_id);
    let mcst_ids: BTreeSet<&String> = mcst_ids.collect();
    // Each has its own McstID.
    assert_eq!(mcst_ids.len(), groups.len(), "seed {seed}");
    controller.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_is_there_in_memory() {
    for seed in seeds(2) {
        what_was_answered_is_there(&memory(), false, seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_is_there_in_redb() {
    for seed in seeds(2) {
        let folder = tempfile::tempdir().unwrap();
        what_was_answered_is_there(&redb(folder.path()), false, seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_is_there_though_the_store_fails() {
    for seed in seeds(3) {
        what_was_answered_is_there(&memory(), true, seed).await;
    }
    for seed in seeds(1) {
        let folder = tempfile::tempdir().unwrap();
        what_was_answered_is_there(&redb(folder.path()), true, seed).await;
    }
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
    moment().await;
    assert!(!create.is_finished() && !asks.is_finished() && !twice.is_finished());
    assert!(lab.journal.lock().is_empty());
    gate.add_permits(1000);
    says_why(&create.await.unwrap().unwrap_err());
    assert!(!asks.await.unwrap());
    says_why(&twice.await.unwrap().unwrap_err());
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

/// Each commit of an installation and of a removal fails once: what was refused leaves nothing behind, and what was not is
/// done all the same.
#[tokio::test(start_paused = true)]
async fn whichever_write_fails_a_group_comes_and_goes() {
    for number in 1..8 {
        let (lab, store, _controller, mut client) = lab_with_faults().await;
        store.fail(&[number]);
        let before = store.commits();
        match client.create_group(lab.given("g", &["h0", "h2"], 17)).await {
            Ok(_) => drop(reaches(&client, "g", v1::GroupPhase::Active).await),
            Err(status) => {
                says_why(&status);
                assert_eq!(number, 1, "later ones are not the client's affair");
                assert!(!exists(&client, "g").await && lab.journal.lock().is_empty());
                create_again(&mut client, lab.given("g", &["h0", "h2"], 17)).await;
            }
        }
        assert!(store.commits() > before);
        let placed = ["leaf0 g.1", "leaf1 g.1", "spine0 g.1"];
        assert_eq!(lab.placed(), placed, "write {number}");
        store.fail(&[number]);
        if let Err(status) = destroy(&client, "g").await {
            says_why(&status);
            assert_eq!(number, 1, "later ones are not the client's affair");
            reaches(&client, "g", v1::GroupPhase::Active).await;
            assert_eq!(lab.placed().len(), 3);
            // The store works again.
            create_again(&mut client, creation("h", &["h0", "h2"])).await;
            assert!(destroy(&client, "g").await.unwrap());
        }
        let is_left = exists(&client, "g").await || !lab.placed().is_empty();
        assert!(!is_left, "write {number}");
    }
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
