//! Hosts that do not do what their group is for, and what stays of the group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use castnet_comm::{Collectives, Operation};
use castnet_member::{Fate, Group, MemberConfig, MemberError, ReceiverState, Role, StreamHeader};
use castnet_port::BoxPort;
use castnet_proto::states::WatchedGroups;
use castnet_proto::transport::Security;
use castnet_proto::v1;
use castnet_proto::v1::{GroupPhase, MemberPhase};
use castnet_rnic::SoftRnic;
use castnet_rnic::messages::Messages;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::timeout;

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
    let create = "job create job --ranks h0,h1,h2,h3";
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
pub(crate) fn part(
    fabric: &Fabric,
    host: usize,
) -> (impl FnOnce() -> SoftRnic<BoxPort> + Send + use<>, MemberConfig) {
    (fabric.rnic(host), config(fabric, &format!("h{host}"), "g"))
}

/// h0 sends to all others; what it has sent is acknowledged. Returns what became of them.
pub(crate) fn send(
    fabric: &Fabric,
    bytes: Vec<u8>,
    acknowledged: watch::Sender<u64>,
) -> JoinHandle<Result<Vec<ReceiverState>, MemberError>> {
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
        let receivers = source.receivers()?.expect("of a controller");
        source.leave().map(|()| receivers)
    })
}

fn state_of(host: &str, fate: Fate) -> ReceiverState {
    let host = host.to_owned();
    ReceiverState { host, fate }
}

/// The receiver joins again whenever the group ends before it has everything.
pub(crate) fn receive(fabric: &Fabric, host: usize) -> JoinHandle<Result<Vec<u8>, MemberError>> {
    let (open, config) = part(fabric, host);
    spawn_blocking(move || {
        let mut rnic = open();
        let mut prepared = castnet_member::receiver(config, &mut rnic)?;
        loop {
            let mut receiver = prepared.join()?;
            match receiver.receive(&mut |_| Ok(Vec::new()), &mut |_, _| {}) {
                Err(ended) if ended.may_join_again() => prepared = receiver.again()?,
                received => {
                    let (_, copy) = received?;
                    receiver.leave()?;
                    return Ok(copy);
                }
            }
        }
    })
}

/// How a member goes in mid-stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    /// It dies, and its lease ends at once.
    LeaseEnds,
    /// It dies, and its lease does not end here.
    Dies,
    /// It is interrupted, and leaves.
    Leaves,
}

impl Goes {
    /// A configuration with which it can go so.
    fn prepare(self, config: &mut MemberConfig) {
        match self {
            Self::LeaseEnds => config.lease = Duration::from_millis(1),
            Self::Dies => config.lease = Duration::from_secs(600),
            Self::Leaves => config.interrupt = Some(Arc::default()),
        }
    }

    /// Called as it receives or sends: it goes after so many bytes.
    fn go(self, bytes: u64, after: u64, interrupt: Option<&Arc<AtomicBool>>) {
        match interrupt {
            _ if bytes < after => {}
            Some(interrupt) => interrupt.store(true, Ordering::Relaxed),
            None => panic!("killed"),
        }
    }
}

/// A receiver that goes.
fn receive_some(fabric: &Fabric, host: usize, goes: Goes) -> JoinHandle<()> {
    let (open, mut config) = part(fabric, host);
    goes.prepare(&mut config);
    spawn_blocking(move || {
        let (mut rnic, interrupt) = (open(), config.interrupt.clone());
        let receiver = castnet_member::receiver(config, &mut rnic).expect("prepared");
        let mut receiver = receiver.join().expect("joined");
        let mut progress = |_: Option<&StreamHeader>, bytes| goes.go(bytes, 100_000, interrupt.as_ref());
        let received = receiver.receive(&mut |_| Ok(Vec::new()), &mut progress);
        assert!(matches!(received, Err(MemberError::Interrupted)), "{received:?}");
        receiver.leave().expect("left");
    })
}

/// A source that goes when the receivers have some of it: 1 MiB is under way at most.
fn send_some(fabric: &Fabric, bytes: Vec<u8>, goes: Goes) -> JoinHandle<()> {
    let (open, mut config) = part(fabric, 0);
    goes.prepare(&mut config);
    spawn_blocking(move || {
        let (mut rnic, interrupt) = (open(), config.interrupt.clone());
        let source = castnet_member::source(config, &mut rnic).expect("prepared");
        let mut source = source.join().expect("joined");
        let header = StreamHeader::default();
        let mut progress = |bytes, _| goes.go(bytes, 2_000_000, interrupt.as_ref());
        let sent = source.send(&header, &mut bytes.as_slice(), &mut progress);
        assert!(matches!(sent, Err(MemberError::Interrupted)), "{sent:?}");
        source.leave().expect("left");
    })
}

async fn has_gone(member: JoinHandle<()>, goes: Goes) {
    let gone = timeout(PATIENCE, member).await.expect("in time");
    let is_killed = gone.as_ref().is_err_and(JoinError::is_panic);
    assert_eq!(is_killed, goes != Goes::Leaves, "{gone:?}");
}

/// A receiver that has died holds the others up until an operator puts it out, or its lease ends; one that leaves does not.
/// They get every byte, over the same queue pairs. Then it is started again, and takes part in the next stream if it is a
/// member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_without_a_receiver_that_is_gone() {
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    for goes in [Goes::Dies, Goes::LeaseEnds, Goes::Leaves] {
        let fabric = Fabric::new().await;
        let policy = if goes == Goes::Leaves { "fail" } else { "evict" };
        let create = format!("group create g --source h0 --members h1,h2,h3 --on-member-loss {policy}");
        fabric.run(create.split(' ').collect()).await;
        let (acknowledged, mut progress) = watch::channel(0);
        let source = send(&fabric, content.clone(), acknowledged);
        let receivers = [1, 3].map(|host| receive(&fabric, host));
        has_gone(receive_some(&fabric, 2, goes), goes).await;
        let some = timeout(PATIENCE, progress.wait_for(|bytes| *bytes > 0)).await;
        some.expect("in time").expect("a source");
        let by_operator = goes == Goes::Dies;
        if by_operator {
            fabric.run("group evict g h2".split(' ').collect()).await;
        }
        let mut fates = source.await.expect("no panic").expect("all is acknowledged");
        fates.sort_by(|a, b| a.host.cmp(&b.host));
        let [h1, h2, h3] = &fates[..] else {
            panic!("{fates:?}")
        };
        let whole = [h1, h3].map(ReceiverState::clone);
        assert_eq!(whole, ["h1", "h3"].map(|host| state_of(host, Fate::All)));
        match (goes, &h2.fate) {
            (Goes::Dies, Fate::Gone { why }) => assert_eq!(why, "an operator has put it out"),
            (Goes::LeaseEnds, Fate::Gone { why }) => assert!(why.contains("host h2 is gone"), "{why}"),
            (Goes::Leaves, Fate::Left { bytes, why }) => {
                assert!((100_000..3_000_000).contains(bytes), "{bytes}");
                assert_eq!(why, "interrupted");
            }
            other => panic!("{other:?}"),
        }
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

/// Receivers leave after the source: until then nothing changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_changes_rules_only_at_its_begin_and_its_end() {
    let fabric = Fabric::new().await;
    fabric
        .run(
            "group create g --source h0 --members h1,h2,h3"
                .split(' ')
                .collect(),
        )
        .await;
    let request = v1::WatchControllerEventsRequest { differences: true };
    let events = fabric.client.clone().watch_events(request).await;
    let (mut events, mut groups) = (events.expect("events").into_inner(), WatchedGroups::default());
    let receivers: Vec<_> = (1..4).map(|host| receive(&fabric, host)).collect();
    let source = send(&fabric, vec![7; 1_000_000], watch::Sender::new(0));
    source.await.expect("no panic").expect("all is acknowledged");
    for receiver in receivers {
        receiver.await.expect("no panic").expect("all has come");
    }
    let (mut has_run, patience) = (false, tokio::time::sleep(PATIENCE));
    tokio::pin!(patience);
    loop {
        let event = tokio::select! {
            () = &mut patience => panic!("the group does not end"),
            event = events.message() => event.expect("events").expect("a controller"),
        };
        let event = groups.complete(event).expect("no gap").event;
        let Some(v1::controller_event::Event::Group(state)) = event else {
            continue;
        };
        assert!(state.generation <= 1, "{state:?}");
        match state.phase() {
            GroupPhase::Active => {
                has_run = true;
                assert!(state.members.iter().all(|m| m.phase() == MemberPhase::Joined));
            }
            GroupPhase::Registered if has_run => return,
            _ => {}
        }
    }
}

/// The source learns that nobody is left. The group waits for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_without_receivers_ends() {
    let content = vec![7; 3_000_000];
    for goes in [Goes::LeaseEnds, Goes::Leaves] {
        let fabric = Fabric::new().await;
        fabric
            .run("group create g --source h0 --members h1,h2".split(' ').collect())
            .await;
        let source = send(&fabric, content.clone(), watch::Sender::new(0));
        let receivers = [1, 2].map(|host| receive_some(&fabric, host, goes));
        for receiver in receivers {
            has_gone(receiver, goes).await;
        }
        let ended = source.await.expect("no panic").expect_err("nobody is left");
        assert!(
            ended.may_join_again() && ended.to_string().contains("no receivers are left: host h"),
            "{ended}"
        );
        assert_eq!(state(&fabric, "g").await.phase(), GroupPhase::Registered);
    }
}

/// Starts a member again as long as the controller takes the one before for one that is in.
async fn once_taken_in<T>(
    mut start: impl FnMut() -> JoinHandle<Result<T, MemberError>>,
) -> Result<T, MemberError> {
    loop {
        match start().await.expect("no panic") {
            Err(MemberError::Status { status, .. }) if status.message().contains("is active with") => {}
            result => return result,
        }
    }
}

/// The receivers, which are not started again, get the whole second stream and nothing of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_join_again_when_the_source_does() {
    let (first, second) = (vec![1; 3_000_000], vec![2; 2_000_000]);
    for goes in [Goes::LeaseEnds, Goes::Dies, Goes::Leaves] {
        let fabric = Fabric::new().await;
        fabric
            .run(
                "group create g --source h0 --members h1,h2,h3"
                    .split(' ')
                    .collect(),
            )
            .await;
        let receivers = [1, 3].map(|host| receive(&fabric, host));
        // A receiver is killed, too; it holds the source up until its lease ends.
        let dies = receive_some(&fabric, 2, Goes::LeaseEnds);
        let source = send_some(&fabric, first.clone(), goes);
        has_gone(dies, Goes::LeaseEnds).await;
        has_gone(source, goes).await;
        let again = async {
            let send = || send(&fabric, second.clone(), watch::Sender::new(0));
            let (sent, copy) = tokio::join!(once_taken_in(send), once_taken_in(|| receive(&fabric, 2)));
            sent.expect("all is acknowledged");
            let mut copies = vec![copy];
            for receiver in receivers {
                copies.push(receiver.await.expect("no panic"));
            }
            for copy in copies {
                let copy = copy.expect("all has come");
                assert!(copy == second, "{} bytes", copy.len());
            }
        };
        timeout(PATIENCE, again).await.expect("in time");
    }
}

const MESSAGES: Messages = Messages {
    size: 3000,
    count: 2000,
};

/// Waits until host 2 is in this phase.
async fn becomes(fabric: &Fabric, wanted: MemberPhase) {
    let is = |group: &v1::Group| {
        let mut members = group.state.iter().flat_map(|state| &state.members);
        members.any(|m| m.host == "h2" && m.phase() == wanted)
    };
    until(fabric, is).await;
}

/// Waits until the group is as wanted. No event says that a switch has its part.
async fn until(fabric: &Fabric, is: impl Fn(&v1::Group) -> bool) {
    let seen = async {
        loop {
            let request = v1::GetGroupRequest { group: "g".into() };
            let group = fabric.client.clone().get_group(request).await;
            if is(group.expect("a group").get_ref()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, seen).await.expect("in time");
}

/// The number of messages that it gets, all whole and in order.
fn receive_messages(
    open: impl FnOnce() -> SoftRnic<BoxPort> + Send + 'static,
    config: MemberConfig,
) -> JoinHandle<Result<usize, MemberError>> {
    spawn_blocking(move || {
        let mut rnic = open();
        let mut receiver = castnet_member::message_receiver(config, &mut rnic, MESSAGES)?.join()?;
        let received = receiver.receive_messages(&mut |_| {})?;
        receiver.leave()?;
        Ok(received.times.len())
    })
}

/// A receiver that has died comes back with a new queue pair, to a switch that has another receiver or none; or it was no
/// member before. It gets the rest of the stream, and the others every message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_comes_back_into_the_running_stream() {
    for (members, others, by_write) in [
        ("h1,h2,h3", vec![1, 3], false),
        ("h1,h2", vec![1], true),
        ("h1,h3", vec![1, 3], false),
    ] {
        let was_member = members.contains("h2");
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
            source.send_messages(MESSAGES, 8, None, &mut |done, _| {
                if done >= 500 {
                    pauses.send_replace(true);
                    let wait = timeout(PATIENCE, gone_on.wait_for(|go| *go));
                    let waited = runtime.block_on(async { wait.await.map(|go| *go.expect("a test")) });
                    assert!(waited.expect("in time"));
                }
            })?;
            let receivers = source.receivers()?.expect("of a controller");
            source.leave().map(|()| receivers)
        });
        let receivers: Vec<_> = others
            .into_iter()
            .map(|host| {
                let (open, config) = part(host);
                receive_messages(open, config)
            })
            .collect();
        if was_member {
            let (open, mut config) = part(2);
            config.lease = Duration::from_millis(1);
            let dies = spawn_blocking(move || {
                let mut rnic = open();
                let receiver = castnet_member::message_receiver(config, &mut rnic, MESSAGES)?;
                receiver.join().map(drop)
            });
            dies.await.expect("no panic").expect("it was in");
            becomes(&fabric, MemberPhase::Expected).await;
        }
        let half = timeout(PATIENCE, paused.wait_for(|paused| *paused));
        half.await.expect("in time").expect("a source");
        if !was_member {
            fabric.run("group add g h2".split(' ').collect()).await;
        }

        let (open, mut config) = part(2);
        config.from_next_message = true;
        if let Group::Named { wait, .. } = &mut config.group {
            *wait = PATIENCE;
        }
        let late = receive_messages(open, config);
        becomes(&fabric, MemberPhase::Joining).await;
        // Without its part of the group, its switch would let the rest of the stream pass.
        until(&fabric, |group| group.tree.iter().all(|node| node.installed)).await;
        go.send_replace(true);
        let late = late.await.expect("no panic").expect("it is in again");
        assert!((1..=1500).contains(&late), "{late} messages");
        let fates = source.await.expect("no panic").expect("all is acknowledged");
        assert!(fates.contains(&state_of("h2", Fate::Late)), "{fates:?}");
        let others = fates.iter().filter(|other| other.host != "h2");
        assert!(others.map(|other| &other.fate).all(|fate| *fate == Fate::All));
        for receiver in receivers {
            assert_eq!(receiver.await.expect("no panic").expect("all has come"), 2000);
        }
    }
}
