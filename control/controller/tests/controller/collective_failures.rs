//! What becomes of collective groups when ranks disagree, die or hang, and when switches restart or report late.

use crate::common::ranks::{Rank, all, all_again, becomes, join_again, shown, vanishes};
use crate::common::{Calls, Client, Events, Lab, next, refused, two_tiers};
use castnet_proto::transport::{Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase::{Active, Failed, Waiting};
use tonic::Code;

/// Rank `first` calls an AllReduce where rank `second` calls a barrier.
fn disagreement(first: u32, second: u32) -> v1::Disagreement {
    let barrier = v1::CollectiveCall {
        primitive: v1::CollectivePrimitive::AllReduce.into(),
        operation: v1::CollectiveOperation::Sum.into(),
        data_type: v1::CollectiveDataType::F32.into(),
        ..Default::default()
    };
    v1::Disagreement {
        sequence: 5,
        rank: first,
        call: Some(v1::CollectiveCall {
            elements: 8,
            packets: 1,
            ..barrier
        }),
        other_rank: second,
        other_call: Some(barrier),
    }
}

fn conflict(mcst_id: &str, generation: u64, said: v1::Disagreement) -> v1::agent_event::Event {
    v1::agent_event::Event::CollectiveConflict(v1::CollectiveConflict {
        mcst_id: mcst_id.into(),
        group: "job".into(),
        generation,
        disagreement: Some(said),
        miscounting_ranks: Vec::new(),
    })
}

/// The queue pair of rank 3 refuses.
pub(crate) fn failed(mcst_id: &str) -> v1::agent_event::Event {
    v1::agent_event::Event::MemberFailed(v1::MemberFailed {
        mcst_id: mcst_id.into(),
        group: "job".into(),
        port: 1,
        next_hop: "h3".into(),
        syndrome: 0x62,
        generation: 1,
        ..Default::default()
    })
}

/// A rank that was stopped for longer than its lease comes to hear of it, and does not get between those that join again.
#[tokio::test(start_paused = true)]
async fn a_rank_that_comes_back_too_late_is_told_and_joins_nothing() {
    let (lab, _controller, client) = two_tiers().await;
    let with_lease = |r: &mut v1::InitGroupRequest| r.lease_ms = if r.rank == 2 { 1 } else { 600_000 };
    let mut ranks = lab.ranks_with(&client, "job", 17, with_lease).await;
    all(&mut ranks, Active).await;
    let late = ranks.remove(2);
    let request = late.request.clone();
    drop(late.stream);
    all(&mut ranks, Failed).await;
    let returns = v1::InitGroupRequest {
        returns_to: Some(1),
        ..request.clone()
    };
    let mut back = Rank::join(&client, returns).await;
    let state = back.until(Failed).await;
    assert_eq!((state.failed_rank, state.generation), (Some(2), 1));
    back.ends().await;
    let group = shown(&client, "job").await.unwrap().state.unwrap();
    let mut phases = group.members.iter().map(|m| m.phase());
    assert!(phases.all(|p| p == v1::MemberPhase::Expected), "{group:?}");

    // Who has no part in it sees nobody's, and no rank that there is not.
    let stranger = v1::InitGroupRequest {
        host: "h3".into(),
        connection: Some(lab.connection("h3", 0x99)),
        returns_to: Some(1),
        ..lab.rank("job", 1, 4, 0x99)
    };
    let mut seen = Rank::join(&client, stranger).await;
    let state = seen.until(Failed).await;
    assert_eq!(state.reason, "it has failed, and this rank is free: join again");
    assert_eq!(state.members.len(), 0);
    seen.ends().await;
    let beyond = v1::InitGroupRequest {
        returns_to: Some(1),
        ..lab.rank("job", 3, 1024, 0x99)
    };
    let beyond = client.clone().init_group(beyond).await.unwrap_err();
    assert!(beyond.message().contains("1024"), "{beyond}");

    // Of a group that nobody knows, or of a generation that is not over and that it is not in, it hears so.
    let nowhere = v1::InitGroupRequest {
        job: "other".into(),
        returns_to: Some(1),
        ..request.clone()
    };
    refused(client.clone().init_group(nowhere).await, Code::NotFound, "");
    let other = v1::InitGroupRequest {
        returns_to: Some(7),
        ..request
    };
    let other = client.clone().init_group(other).await;
    let other = refused(other, Code::FailedPrecondition, "");
    assert!(other.message().starts_with("returns_to: "), "{other}");
}

#[tokio::test(start_paused = true)]
async fn ranks_that_disagree_are_told_who_said_what_and_get_a_new_generation() {
    let (lab, _controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    let mcst_id = all(&mut ranks, Active).await[0].mcst_id.clone();
    let said = disagreement(0, 3);
    lab.switch("leaf1").report(conflict(&mcst_id, 1, said));
    for state in all(&mut ranks, Failed).await {
        assert_eq!(
            state.reason,
            "the ranks disagree about collective 5: rank 0 (host h0) called allreduce of 8 f32 by sum in 1 packet, \
             rank 3 (host h3) called barrier"
        );
        assert_eq!((state.failed_rank, state.conflict), (None, Some(said)));
    }
    // Another switch saw other ranks: together, the lowest rank and the lowest that differs from it.
    lab.switch("spine0")
        .report(conflict(&mcst_id, 1, disagreement(0, 2)));
    let with_second = |g: &v1::Collective| {
        let conflict = g.state.as_ref().unwrap().conflict;
        conflict.is_some_and(|c| c.other_rank == 2)
    };
    let state = becomes(&client, "job", with_second).await.state.unwrap();
    assert!(state.reason.ends_with("rank 2 (host h2) called barrier"));
    // The switches still have to tell the ranks themselves: the rules stay until all have joined again.
    assert_eq!(lab.placed(), ["leaf0 job.1", "leaf1 job.1", "spine0 job.1"]);
    let last = ranks.pop().unwrap();
    let mut some = Vec::new();
    for rank in ranks {
        let mut rank = rank.again(&client, 1).await;
        let first = next(&mut rank.stream).await;
        assert_eq!(first.phase(), Waiting);
        some.push(rank);
    }
    assert_eq!(lab.placed().len(), 3);
    some.push(last.again(&client, 1).await);
    for state in all(&mut some, Active).await {
        assert_eq!(state.generation, 2);
    }
    assert_eq!(lab.placed(), ["leaf0 job.2", "leaf1 job.2", "spine0 job.2"]);
}

/// Where nobody joins again, the memory is free when the longest lease is over, and the group is forgotten.
#[tokio::test(start_paused = true)]
async fn a_broken_group_that_nobody_wants_any_more_is_cleaned_up() {
    let mut lab = Lab::two_tiers().await;
    lab.config.timeouts.linger = std::time::Duration::from_millis(1);
    let (_controller, client) = lab.start().await;
    let mut ranks = lab.ranks_with(&client, "job", 17, |r| r.lease_ms = 1).await;
    let mcst_id = all(&mut ranks, Active).await[0].mcst_id.clone();
    let mut events = Events::of(&client).await;
    lab.switch("leaf1").report(failed(&mcst_id));
    for state in all(&mut ranks, Failed).await {
        assert_eq!(state.failed_rank, Some(3));
        let says = "rank 3 (host h3) has ended its connection, with NAK syndrome 0x62";
        assert_eq!(state.reason, says);
    }
    let told = events.until(|event| match event {
        v1::controller_event::Event::MemberFailed(m) => Some(m.clone()),
        _ => None,
    });
    let told = told.await;
    assert_eq!(told.next_hop, "h3");
    assert_eq!(told.rank, Some(3));
    assert_eq!(told.switch_name, "leaf1");
    vanishes(&client, "job").await;
    assert!(lab.placed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_restarts_fails_the_group_by_name() {
    let (mut lab, _controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    all(&mut ranks, Active).await;
    lab.switches.get_mut("leaf1").unwrap().restart().await;
    for state in all(&mut ranks, Failed).await {
        assert_eq!(state.failed_switch, "leaf1");
        assert_eq!(state.reason, "switch leaf1 has lost its part: it was restarted");
    }
    let again = all_again(ranks, &client, 1).await;
    assert_eq!(again.len(), 4);
    assert_eq!(lab.placed(), ["leaf0 job.2", "leaf1 job.2", "spine0 job.2"]);
}

/// By `castnet group destroy --agent`, or by another controller.
#[tokio::test(start_paused = true)]
async fn a_part_that_somebody_removes_is_not_taken_for_a_restart() {
    let (lab, _controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    all(&mut ranks, Active).await;
    let mut switches = lab.config.switches.iter();
    let address = &switches.find(|s| s.name == "leaf1").unwrap().agent;
    let channel = connect(address, &Security::default()).await.unwrap();
    let removal = v1::RemoveGroupRequest {
        mcst_id: lab.rule("leaf1").mcst_id,
        ..Default::default()
    };
    let mut agent = v1::agent_client::AgentClient::new(channel);
    assert!(agent.remove_group(removal).await.unwrap().into_inner().removed);
    for state in all(&mut ranks, Failed).await {
        assert_eq!(state.failed_switch, "leaf1");
        let says = "switch leaf1 has lost its part: somebody removed it there; its audit log says who";
        assert_eq!(state.reason, says);
    }
}

/// A switch that is only out of reach may well go on: the group stays active, and the ranks hear of it.
#[tokio::test(start_paused = true)]
async fn a_switch_out_of_reach_fails_nothing() {
    let (mut lab, _controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    all(&mut ranks, Active).await;
    lab.switches.get_mut("spine0").unwrap().stop().await;
    loop {
        let state = ranks[0].until(Active).await;
        if state.reason.starts_with("switch spine0: ") {
            break;
        }
    }
    lab.switches.get_mut("spine0").unwrap().start().await;
    let group = becomes(&client, "job", |g| g.state.as_ref().unwrap().reason.is_empty()).await;
    assert!(group.tree.iter().all(|n| n.installed));
    assert_eq!(lab.switch("spine0").changes(), ["+job.1"]);
}

/// Four ranks of a group that runs, and its McstID. Switches report a collective that waits for so long.
async fn with_stall_timeout(lab: &Lab, client: &Client, stall_timeout_ms: u32) -> (Vec<Rank>, String) {
    let settings = v1::CollectiveSettings {
        stall_timeout_ms,
        ..Default::default()
    };
    let change = |r: &mut v1::InitGroupRequest| r.settings = Some(settings.clone());
    let mut ranks = lab.ranks_with(client, "job", 17, change).await;
    let mcst_id = all(&mut ranks, Active).await[0].mcst_id.clone();
    (ranks, mcst_id)
}

fn stalled(mcst_id: &str, generation: u64, ranks: &[u32]) -> v1::agent_event::Event {
    v1::agent_event::Event::CollectiveStalled(v1::CollectiveStalled {
        mcst_id: mcst_id.into(),
        group: "job".into(),
        ranks: ranks.to_vec(),
        for_ns: 2_000_000_000,
        generation,
        ..Default::default()
    })
}

#[tokio::test(start_paused = true)]
async fn stalls_reach_ranks_and_operators_by_name() {
    let (lab, _controller, client) = two_tiers().await;
    // A report counts for more than twice as long: until the end of the test.
    let (mut ranks, mcst_id) = with_stall_timeout(&lab, &client, 60_000).await;
    let mut events = Events::of(&client).await;
    lab.switch("spine0").report(stalled(&mcst_id, 1, &[2, 3]));
    let told = events.until(|event| match event {
        v1::controller_event::Event::CollectiveStalled(s) => Some(s.clone()),
        _ => None,
    });
    let told = told.await;
    assert_eq!(told.ranks, [2, 3]);
    assert_eq!(told.hosts, ["h2", "h3"]);
    let state = ranks[0].until(Active).await;
    assert_eq!(state.waiting_for, [2, 3]);
    let says = "a collective waits for rank 2 (host h2), rank 3 (host h3)";
    assert_eq!(state.reason, says);
    // The ranks' own switch knows better than one that only knows who is behind a port.
    lab.switch("leaf1").report(stalled(&mcst_id, 1, &[3]));
    assert_eq!(ranks[0].until(Active).await.waiting_for, [3]);
}

/// A switch that reports no more waits no more.
#[tokio::test(start_paused = true)]
async fn a_stall_that_is_not_reported_again_is_over() {
    let (lab, _controller, client) = two_tiers().await;
    let (mut ranks, mcst_id) = with_stall_timeout(&lab, &client, 500).await;
    lab.switch("leaf1").report(stalled(&mcst_id, 1, &[3]));
    while ranks[0].until(Active).await.waiting_for != [3] {}
    while !ranks[0].until(Active).await.waiting_for.is_empty() {}
    let group = shown(&client, "job").await.unwrap().state.unwrap();
    assert_eq!((group.phase(), group.reason.as_str()), (Active, ""));
}

/// What a switch says of a generation that is over says nothing about the one that runs.
#[tokio::test(start_paused = true)]
async fn late_reports_of_an_old_generation_change_nothing() {
    let (lab, _controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    let mcst_id = all(&mut ranks, Active).await[0].mcst_id.clone();
    lab.switch("leaf0")
        .report(conflict(&mcst_id, 1, disagreement(0, 1)));
    all(&mut ranks, Failed).await;
    let mut ranks = all_again(ranks, &client, 1).await;

    let spine = lab.switch("spine0");
    spine.report(conflict(&mcst_id, 1, disagreement(1, 2)));
    spine.report(failed(&mcst_id));
    spine.report(stalled(&mcst_id, 1, &[1]));
    // They are taken in order: when this is known, those before it were seen.
    spine.report(stalled(&mcst_id, 2, &[3]));
    let state = ranks[0].until(Active).await;
    assert_eq!((state.generation, state.waiting_for), (2, vec![3]));
    let group = shown(&client, "job").await.unwrap().state.unwrap();
    assert_eq!((group.phase(), group.conflict), (Active, None));
    assert_eq!(lab.placed(), ["leaf0 job.2", "leaf1 job.2", "spine0 job.2"]);
}

/// Its connection is of the next generation: the switches go on telling the others why the present one is over.
#[tokio::test(start_paused = true)]
async fn a_rank_that_joined_again_and_goes_ends_nothing_of_the_generation_before() {
    for leaves in [true, false] {
        let (lab, _controller, client) = two_tiers().await;
        let mut ranks = lab.ranks(&client, "job", 4, 17).await;
        let mcst_id = all(&mut ranks, Active).await[0].mcst_id.clone();
        lab.switch("leaf1")
            .report(conflict(&mcst_id, 1, disagreement(0, 3)));
        all(&mut ranks, Failed).await;
        let mut first = ranks.remove(0);
        first.request.lease_ms = if leaves { 600_000 } else { 1 };
        let first = first.again(&client, 1).await;
        if leaves {
            assert!(client.leave_rank("job", 0).await);
        } else {
            drop(first.stream);
        }
        let expected = |group: &v1::Collective| {
            let state = group.state.as_ref().unwrap();
            state.members[0].phase() == v1::MemberPhase::Expected
        };
        becomes(&client, "job", expected).await;
        assert_eq!(lab.placed(), ["leaf0 job.1", "leaf1 job.1", "spine0 job.1"]);
        let mut again = vec![Rank::join(&client, lab.rank("job", 0, 4, 18)).await];
        again.extend(join_again(ranks, &client, 1).await);
        for state in all(&mut again, Active).await {
            assert_eq!(state.generation, 2);
        }
        // The rules were removed once, when all had joined again.
        assert_eq!(lab.switch("leaf0").changes(), ["+job.1", "-job.1", "+job.2"]);
    }
}
