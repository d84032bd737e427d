//! Hosts that do not do what their group is for, and what stays of the group.

use std::time::Duration;

use castnet_comm::Operation;
use castnet_member::{Group, MemberConfig, MemberError, Role, StreamHeader};
use castnet_port::BoxPort;
use castnet_proto::transport::Security;
use castnet_proto::v1;
use castnet_proto::v1::{GroupPhase, MemberPhase};
use castnet_rnic::SoftRnic;
use castnet_rnic::messages::Messages;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::fabric::{Fabric, PATIENCE, communicator};

fn config(fabric: &Fabric, host: &str, group: &str) -> MemberConfig {
    let group = Group::Named {
        name: group.into(),
        controller: fabric.controllers.clone(),
        security: Security::default(),
        wait: Duration::ZERO,
    };
    MemberConfig::new(host, group)
}

async fn state(fabric: &Fabric, group: &str) -> v1::GroupState {
    let request = v1::GetGroupRequest { group: group.into() };
    let answer = fabric.client.clone().get_group(request).await.expect("a group");
    answer.into_inner().state.expect("of multicast")
}

/// `receive` at the host that is to send: it leaves at once, and the group waits for it as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_verb_takes_no_place() {
    let fabric = Fabric::new().await;
    fabric
        .run("group create g --source h0 --members h1".split(' ').collect())
        .await;
    let (open, config) = (fabric.rnic(0), config(&fabric, "h0", "g"));
    let wrong = tokio::task::spawn_blocking(move || {
        let mut rnic = open();
        let prepared = castnet_member::receiver(config, &mut rnic);
        prepared.map(drop).expect_err("it is the source")
    });
    let wrong = wrong.await.expect("no panic");
    assert!(
        matches!(
            wrong,
            MemberError::WrongRole {
                role: Role::Source,
                ..
            }
        ),
        "{wrong}"
    );
    let state = state(&fabric, "g").await;
    assert_eq!(state.phase(), GroupPhase::Registered);
    assert!(
        state.members.iter().all(|m| m.phase() == MemberPhase::Expected),
        "{state:?}"
    );
}

/// Ranks close, rank 0 the group: one that an operator made waits for the next job, one of the job is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_leaves_the_group_of_an_operator() {
    let fabric = Fabric::new().await;
    let create = "group create job --collective --ranks h0,h1,h2,h3";
    for is_of_operator in [true, false] {
        if is_of_operator {
            fabric.run(create.split(' ').collect()).await;
        }
        let ranks = (0..4).map(|rank| {
            let connect = communicator(&fabric, rank);
            tokio::task::spawn_blocking(move || {
                let mut communicator = connect();
                communicator
                    .allreduce(&mut [1.0_f32; 8], Operation::Sum)
                    .expect("sums");
                communicator.close().expect("closed");
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            rank.await.expect("no panic");
        }
        let listed = fabric.castnet(&["group", "list"]).await;
        match is_of_operator {
            true => {
                assert_eq!(listed[0]["joined"], 0, "{listed}");
                fabric.castnet(&["group", "destroy", "job"]).await;
            }
            // The controller removes it once all have left.
            false => while fabric.castnet(&["group", "list"]).await != serde_json::json!([]) {},
        }
    }
}

/// A host's RNIC, and how it joins `g`.
fn part(fabric: &Fabric, host: usize) -> (impl FnOnce() -> SoftRnic<BoxPort> + Send + use<>, MemberConfig) {
    (fabric.rnic(host), config(fabric, &format!("h{host}"), "g"))
}

/// h0 sends to all others; what it has sent is acknowledged.
pub(crate) fn send(
    fabric: &Fabric,
    bytes: Vec<u8>,
    acknowledged: watch::Sender<u64>,
) -> JoinHandle<Result<(), MemberError>> {
    let (open, config) = part(fabric, 0);
    spawn_blocking(move || {
        let mut rnic = open();
        let mut source = castnet_member::source(config, &mut rnic)?.join()?;
        let header = StreamHeader {
            name: "bytes".into(),
            length: Some(bytes.len() as u64),
        };
        let mut tell = |bytes: u64, _| {
            acknowledged.send_replace(bytes);
        };
        source.send(&header, &mut bytes.as_slice(), &mut tell)?;
        source.leave()
    })
}

pub(crate) fn receive(fabric: &Fabric, host: usize) -> JoinHandle<Result<Vec<u8>, MemberError>> {
    let (open, config) = part(fabric, host);
    spawn_blocking(move || {
        let mut rnic = open();
        let mut receiver = castnet_member::receiver(config, &mut rnic)?.join()?;
        let (_, copy) = receiver.receive(&mut |_| Ok(Vec::new()), &mut |_, _| {})?;
        receiver.leave()?;
        Ok(copy)
    })
}

/// A receiver that has died holds the others up until an operator puts it out, or its lease ends. They get every byte,
/// over the same queue pairs. Then it is started again, and takes part in the next stream if it is a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_without_a_receiver_that_died() {
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    for by_operator in [true, false] {
        let fabric = Fabric::new().await;
        let create = "group create g --source h0 --members h1,h2,h3";
        fabric.run(create.split(' ').collect()).await;
        let (acknowledged, mut progress) = watch::channel(0);
        let source = send(&fabric, content.clone(), acknowledged);
        let receivers = [1, 3].map(|host| receive(&fabric, host));
        // It goes without a word after the first bytes.
        let (open, mut config) = part(&fabric, 2);
        if !by_operator {
            config.lease = Duration::from_millis(1);
        }
        let dead = spawn_blocking(move || {
            let mut rnic = open();
            let mut receiver = castnet_member::receiver(config, &mut rnic)?.join()?;
            let first = &mut |_: Option<&StreamHeader>, bytes| assert!(bytes < 100_000, "killed");
            receiver.receive(&mut |_| Ok(Vec::new()), first).map(drop)
        });
        assert!(dead.await.expect_err("it dies").is_panic());
        let some = tokio::time::timeout(PATIENCE, progress.wait_for(|bytes| *bytes > 0)).await;
        some.expect("in time").expect("a source");
        if by_operator {
            fabric.run("group evict g h2".split(' ').collect()).await;
        }
        source.await.expect("no panic").expect("all is acknowledged");
        for receiver in receivers {
            let copy = receiver.await.expect("no panic").expect("all has come");
            assert!(copy == content, "{} bytes", copy.len());
        }

        let hosts = if by_operator { vec![1, 3] } else { vec![1, 2, 3] };
        let receivers: Vec<_> = hosts.into_iter().map(|host| receive(&fabric, host)).collect();
        let source = send(&fabric, content.clone(), watch::Sender::new(0));
        source.await.expect("no panic").expect("all is acknowledged");
        for receiver in receivers {
            assert!(receiver.await.expect("no panic").expect("all has come") == content);
        }
    }
}

const MESSAGES: Messages = Messages {
    size: 3000,
    count: 2000,
};

/// Waits until host 2 is in this phase.
async fn becomes(fabric: &Fabric, wanted: MemberPhase) {
    let seen = async {
        let request = v1::WatchControllerEventsRequest::default();
        let events = fabric.client.clone().watch_events(request).await;
        let mut events = events.expect("events").into_inner();
        loop {
            let state = state(fabric, "g").await;
            if state
                .members
                .iter()
                .any(|m| m.host == "h2" && m.phase() == wanted)
            {
                return;
            }
            events.message().await.expect("events");
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.expect("in time");
}

/// The number of messages that it gets, all whole and in order.
fn receive_messages(
    open: impl FnOnce() -> SoftRnic<BoxPort> + Send + 'static,
    config: MemberConfig,
) -> JoinHandle<Result<usize, MemberError>> {
    spawn_blocking(move || {
        let mut rnic = open();
        let mut receiver = castnet_member::message_receiver(config, &mut rnic, MESSAGES)?.join()?;
        let received = receiver.receive_messages()?;
        receiver.leave()?;
        Ok(received.times.len())
    })
}

/// A receiver that has died comes back with a new queue pair, to a switch that has another receiver or none. It gets the
/// rest of the stream, and the others every message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_comes_back_into_the_running_stream() {
    for (members, others, by_write) in [("h1,h2,h3", vec![1, 3], false), ("h1,h2", vec![1], true)] {
        let fabric = Fabric::new().await;
        let create = format!("group create g --source h0 --members {members}");
        fabric.run(create.split(' ').collect()).await;
        let part = |host| {
            let (open, config) = part(&fabric, host);
            (open, MemberConfig { by_write, ..config })
        };
        // The source sends some of the messages, and the rest once the receiver is there again.
        let (go, mut gone_on) = watch::channel(false);
        let (pauses, mut paused) = watch::channel(false);
        let (open, config) = part(0);
        let runtime = tokio::runtime::Handle::current();
        let source = spawn_blocking(move || {
            let mut rnic = open();
            let mut source = castnet_member::source(config, &mut rnic)?.join()?;
            source.send_messages(MESSAGES, 8, &mut |done, _| {
                if done >= 500 {
                    pauses.send_replace(true);
                    let wait = tokio::time::timeout(PATIENCE, gone_on.wait_for(|go| *go));
                    let waited = runtime.block_on(async { wait.await.map(|go| *go.expect("a test")) });
                    assert!(waited.expect("in time"));
                }
            })?;
            source.leave()
        });
        let receivers: Vec<_> = others
            .into_iter()
            .map(|host| {
                let (open, config) = part(host);
                receive_messages(open, config)
            })
            .collect();
        let (open, mut config) = part(2);
        config.lease = Duration::from_millis(1);
        let dies = spawn_blocking(move || {
            let mut rnic = open();
            let receiver = castnet_member::message_receiver(config, &mut rnic, MESSAGES)?;
            receiver.join().map(drop)
        });
        dies.await.expect("no panic").expect("it was in");
        becomes(&fabric, MemberPhase::Expected).await;
        let half = tokio::time::timeout(PATIENCE, paused.wait_for(|paused| *paused));
        half.await.expect("in time").expect("a source");

        let (open, mut config) = part(2);
        config.from_next_message = true;
        if let Group::Named { wait, .. } = &mut config.group {
            *wait = PATIENCE;
        }
        let late = receive_messages(open, config);
        becomes(&fabric, MemberPhase::Joining).await;
        go.send_replace(true);
        let late = late.await.expect("no panic").expect("it is in again");
        assert!((1..=1500).contains(&late), "{late} messages");
        source.await.expect("no panic").expect("all is acknowledged");
        for receiver in receivers {
            assert_eq!(receiver.await.expect("no panic").expect("all has come"), 2000);
        }
    }
}
