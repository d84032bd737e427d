//! The life of collective groups: ranks that come, go and come again, and what they ask for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::ranks::{Rank, all, becomes, shown, vanishes};
use crate::common::{Calls, Lab, next, refused, two_tiers};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase::{Active, Failed, Removing, Waiting};
use tonic::Code;

#[tokio::test(start_paused = true)]
async fn ranks_join_switches_confirm_and_destruction_leaves_nothing() {
    let (lab, _controller, client) = two_tiers().await;
    let mut ranks = Vec::new();
    for rank in 0..4 {
        let mut joined = Rank::join(&client, lab.rank("job", rank, 4, 17)).await;
        if rank < 3 {
            let first = next(&mut joined.stream).await;
            assert_eq!((first.phase(), first.rank), (Waiting, Some(rank)));
            assert!(first.reason.ends_with("rank 3"), "{}", first.reason);
        }
        ranks.push(joined);
    }
    let seen = all(&mut ranks, Active).await;
    // Leaves first.
    let wanted = ["leaf1 +job.1", "leaf0 +job.1", "spine0 +job.1"];
    assert_eq!(*lab.journal.lock(), wanted);
    for (rank, state) in seen.iter().enumerate() {
        assert_eq!(state.generation, 1);
        assert_eq!(state.slots, 256);
        assert_eq!(state.reason, "");
        assert_eq!(state.mcst_id, "10.200.0.1");
        assert_eq!(state.start_psn, seen[0].start_psn);
        let member = &state.members[rank];
        assert_eq!(state.rq_psn, member.rq_psn);
        assert_eq!(member.sq_psn, 1000 * (rank as u32 + 1));
        assert_eq!(member.host, format!("h{rank}"));
        assert_eq!(member.phase(), v1::MemberPhase::Joined);
        let settings = state.settings.clone().unwrap();
        assert_eq!(settings.pmtu, 1024);
        assert_eq!(settings.window_packets, 64);
        assert_eq!(settings.message_packets, 16);
        assert_eq!(settings.loss_policy(), v1::CollectiveLossPolicy::Repair);
        assert_eq!(settings.ack_timeout_us, 67_108);
        assert_eq!(settings.reproducible, Some(false));
    }
    let group = shown(&client, "job").await.unwrap();
    let node = |n: &v1::TreeNode| {
        let (name, parent) = (n.switch_name.clone(), n.parent.clone());
        (name, parent, n.installed, n.memory_bytes > 0)
    };
    let tree: Vec<_> = group.tree.iter().map(node).collect();
    let node = |name: &str, parent: &str| (name.to_owned(), parent.to_owned(), true, true);
    let leaves = ["leaf0", "leaf1"].map(|leaf| node(leaf, "spine0"));
    assert_eq!((&tree[0], &tree[1..]), (&node("spine0", ""), &leaves[..]));
    let rule = group.tree[2].rule.clone().unwrap();
    let kind = rule.translated().unwrap();
    assert_eq!(kind.parent, Some(0));
    assert_eq!(rule.endpoints.len(), 3);
    assert_eq!(kind.start_psn, seen[0].start_psn);
    let Some(v1::endpoint::NextHop::Host(host)) = &rule.endpoints[1].next_hop else {
        panic!("{rule:?}");
    };
    let Some(v1::host_endpoint::Part::Rank(rank)) = &host.part else {
        panic!("{rule:?}");
    };
    assert_eq!((rank.rank, rank.sq_psn, rank.rq_psn), (2, 3000, seen[2].rq_psn));

    let done = client.destroy("job").await;
    assert!(done.complete && lab.placed().is_empty());
    for mut rank in ranks {
        let last = loop {
            let state = next(&mut rank.stream).await;
            if state.phase() != Active {
                break state;
            }
        };
        assert_eq!(last.phase(), Removing);
        rank.ends().await;
    }
    assert!(shown(&client, "job").await.is_none());
}

/// A rank of 1,024 gets at most one state per second while others come and go, and the end of the group at once.
#[tokio::test(start_paused = true)]
async fn a_rank_of_many_learns_of_the_others_together_and_of_the_end_at_once() {
    let (lab, _controller, client) = two_tiers().await;
    let began = tokio::time::Instant::now();
    let mut first = Rank::join(&client, lab.rank("job", 0, 1024, 17)).await;
    let mut stay = Vec::new();
    for round in 1..4 {
        for rank in round..4 {
            let request = lab.rank("job", rank, 1024, 17);
            let _joined = Rank::join(&client, request).await;
            assert!(client.leave_rank("job", rank).await);
        }
        stay.push(Rank::join(&client, lab.rank("job", round, 1024, 17)).await);
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    client.destroy("job").await;
    let mut states = Vec::new();
    while let Ok(Some(state)) = first.stream.message().await {
        states.push(state.phase());
    }
    let seconds = began.elapsed().as_secs() as usize;
    let count = states.len();
    assert!((4..=2 + seconds).contains(&count), "{states:?} in {seconds} s");
    assert_eq!(states.last(), Some(&Removing));
}

#[tokio::test(start_paused = true)]
async fn a_rank_whose_lease_runs_out_fails_the_group_by_name_and_frees_its_memory() {
    let (lab, _controller, client) = two_tiers().await;
    let with_lease = |r: &mut v1::InitGroupRequest| r.lease_ms = if r.rank == 2 { 1 } else { 600_000 };
    let mut ranks = lab.ranks_with(&client, "job", 17, with_lease).await;
    let before = all(&mut ranks, Active).await;
    let dead = ranks.remove(2);
    drop(dead.stream);
    for state in all(&mut ranks, Failed).await {
        assert_eq!((state.failed_rank, state.generation), (Some(2), 1));
        let says =
            "rank 2 (host h2) is gone: its call to the controller ended, and it did not come back within 1ms";
        assert_eq!(state.reason, says);
    }
    becomes(&client, "job", |g| g.tree.is_empty()).await;
    assert!(lab.placed().is_empty());

    // Its successor and the others join again, in any order.
    drop(ranks);
    let rejoining = |rank| v1::InitGroupRequest {
        rejoin_of: Some(1),
        ..lab.rank("job", rank, 4, 18)
    };
    let mut again = Rank::join_all(&client, (0..4).rev().map(rejoining)).await;
    let after = all(&mut again, Active).await;
    assert_eq!(after[0].generation, 2);
    assert_eq!(after[0].mcst_id, before[0].mcst_id);
    let psns = |seen: &[v1::CollectiveState]| {
        seen.iter()
            .map(|s| s.rq_psn)
            .chain([seen[0].start_psn])
            .collect::<BTreeSet<u32>>()
    };
    assert!(psns(&before).is_disjoint(&psns(&after)), "drawn anew");
    assert_eq!(lab.switch("spine0").changes(), ["+job.1", "-job.1", "+job.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_comes_back_within_its_lease_is_at_its_place() {
    let (lab, _controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    let before = all(&mut ranks, Active).await;
    let one = ranks.remove(1);
    drop(one.stream);
    let is = |phase: v1::MemberPhase| {
        move |g: &v1::Collective| g.state.as_ref().unwrap().members[1].phase() == phase
    };
    becomes(&client, "job", is(v1::MemberPhase::Away)).await;
    let request = v1::InitGroupRequest {
        returns_to: Some(1),
        ..one.request
    };
    let mut back = Rank::join(&client, request).await;
    let state = back.until(Active).await;
    assert_eq!((state.generation, state.rq_psn), (1, before[1].rq_psn));
    becomes(&client, "job", is(v1::MemberPhase::Joined)).await;
    assert_eq!(lab.switch("leaf0").changes(), ["+job.1"]);
}

/// A rank goes while switches are being told: the others wait for the next generation, without a failure.
#[tokio::test(start_paused = true)]
async fn a_rank_that_goes_before_the_group_is_active_is_waited_for() {
    let lab = Lab::two_tiers().await;
    let (gate, mut told) = lab.switch("leaf0").hold();
    let (_controller, client) = lab.start().await;
    let with_lease = |r: &mut v1::InitGroupRequest| r.lease_ms = if r.rank == 3 { 1 } else { 600_000 };
    let mut ranks = lab.ranks_with(&client, "job", 17, with_lease).await;
    told.recv().await.unwrap();
    let gone = ranks.pop().unwrap();
    drop(gone.stream);
    becomes(&client, "job", |g| {
        let state = g.state.as_ref().unwrap();
        state.generation == 1 && state.members[3].phase() == v1::MemberPhase::Expected
    })
    .await;
    gate.add_permits(8);
    ranks.push(Rank::join(&client, lab.rank("job", 3, 4, 18)).await);
    for state in all(&mut ranks, Active).await {
        assert_eq!(state.generation, 2);
    }
    assert_eq!(lab.placed(), ["leaf0 job.2", "leaf1 job.2", "spine0 job.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_created_first_settles_its_shape_and_outlives_its_ranks() {
    let (lab, _controller, mut client) = two_tiers().await;
    let settings = v1::CollectiveSettings {
        pmtu: 4096,
        window_packets: 100,
        reproducible: Some(true),
        ..Default::default()
    };
    let request = v1::CreateCollectiveRequest {
        name: "g".into(),
        ranks: vec!["h2".into(), "h0".into()],
        settings: Some(settings),
        mcst_id: Some("10.200.7.7".into()),
        ..Default::default()
    };
    let created = client.create_collective(request.clone()).await.unwrap();
    let created = created.into_inner().group.unwrap();
    assert_eq!(created.phase(), Waiting);
    assert_eq!(created.slots, 256);
    assert_eq!(created.mcst_id, "10.200.7.7");
    assert_eq!(created.reason, "waits for rank 0 (host h2), rank 1 (host h0)");
    let twice = client.create_collective(request).await;
    refused(twice, Code::AlreadyExists, "");

    let at = |rank: u32, host: &str, qpn: u32| v1::InitGroupRequest {
        host: host.into(),
        connection: Some(lab.connection(host, qpn)),
        ..lab.rank("g", rank, 2, qpn)
    };
    let other_host = client.init_group(at(0, "h0", 17)).await.unwrap_err();
    let says = "host: rank 0 of group \"g\" is host \"h2\", not \"h0\"";
    assert_eq!(other_host.message(), says);
    let other_size = v1::InitGroupRequest {
        size: 3,
        ..at(0, "h2", 17)
    };
    let other_size = client.init_group(other_size).await.unwrap_err();
    assert!(other_size.message().starts_with("size: "), "{other_size}");
    let mut other = at(0, "h2", 17);
    other.settings = Some(v1::CollectiveSettings {
        window_packets: 64,
        ..Default::default()
    });
    let other_window = client.init_group(other).await.unwrap_err();
    assert_eq!(
        other_window.message(),
        "settings.window_packets: group \"g\" has 100, not 64: all ranks must ask for the same, or leave it open"
    );

    let mut ranks = Rank::join_all(&client, [at(0, "h2", 17), at(1, "h0", 17)]).await;
    let seen = all(&mut ranks, Active).await;
    assert_eq!(seen[0].settings.clone().unwrap().pmtu, 4096);
    let taken = client.init_group(at(0, "h2", 99)).await;
    let taken = refused(taken, Code::AlreadyExists, "");
    assert!(taken.message().starts_with("rank: "), "{taken}");
    for rank in [0, 1] {
        assert!(client.leave_rank("g", rank).await);
        assert!(!client.leave_rank("g", rank).await, "already gone");
    }
    let group = becomes(&client, "g", |g| g.tree.is_empty()).await.state.unwrap();
    assert_eq!((group.phase(), group.generation), (Waiting, 1));
    assert!(lab.placed().is_empty());
    // It takes ranks again.
    let mut ranks = Rank::join_all(&client, [at(0, "h2", 18), at(1, "h0", 18)]).await;
    assert_eq!(all(&mut ranks, Active).await[1].generation, 2);
}

/// A group that ranks made is forgotten when the last has left; it never failed.
#[tokio::test(start_paused = true)]
async fn ranks_that_leave_end_the_group_without_a_failure() {
    let (lab, _controller, client) = two_tiers().await;
    let mut ranks = lab.ranks(&client, "job", 3, 17).await;
    all(&mut ranks, Active).await;
    for (i, mut rank) in ranks.into_iter().enumerate() {
        assert!(client.leave_rank("job", i as u32).await);
        while let Some(state) = rank.stream.message().await.unwrap() {
            assert!(matches!(state.phase(), Active | Removing), "{state:?}");
        }
    }
    vanishes(&client, "job").await;
    assert!(lab.placed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn bad_requests_are_refused_whole() {
    let (lab, _controller, mut client) = two_tiers().await;
    client.create(lab.given("m", &["h0", "h2"], 40)).await;
    type Spoil = fn(&mut v1::InitGroupRequest);
    // Faults of the request alone are tests of `castnet_proto::convert`.
    let cases: [(Code, &str, Spoil); 5] = [
        (Code::AlreadyExists, "name", |r| r.job = "m".into()),
        (Code::InvalidArgument, "rank", |r| r.rank = 4),
        (Code::NotFound, "host", |r| r.host = "h9".into()),
        (Code::AlreadyExists, "host", |r| r.host = "leaf0".into()),
        (Code::AlreadyExists, "connection.qpn", |r| {
            r.connection.as_mut().unwrap().qpn = 40
        }),
    ];
    for (code, field, spoil) in cases {
        let mut request = lab.rank("job", 0, 4, 17);
        spoil(&mut request);
        let status = refused(client.init_group(request).await, code, "");
        assert!(status.message().starts_with(&format!("{field}: ")), "{status}");
    }
    assert!(shown(&client, "job").await.is_none(), "nothing stays");
    // Ranks of one host are told apart by the QPNs that they speak to; of one queue pair there can be but one.
    let mut ranks = vec![Rank::join(&client, lab.rank("job", 0, 2, 17)).await];
    let at_h0 = |qpn| v1::InitGroupRequest {
        host: "h0".into(),
        connection: Some(lab.connection("h0", qpn)),
        ..lab.rank("job", 1, 2, qpn)
    };
    ranks.push(Rank::join(&client, at_h0(18)).await);
    for state in all(&mut ranks, Active).await {
        let qpns: Vec<Option<u32>> = state.members.iter().map(|m| m.virtual_qpn).collect();
        assert_eq!(qpns, [Some(2), Some(3)]);
    }
    let twice = |rank| v1::InitGroupRequest {
        job: "twice".into(),
        ..lab.rank("job", rank, 2, 20)
    };
    let mut ranks = vec![Rank::join(&client, twice(0)).await];
    let again = v1::InitGroupRequest {
        host: "h0".into(),
        connection: Some(lab.connection("h0", 20)),
        ..twice(1)
    };
    let answer = client.init_group(again.clone()).await;
    refused(answer, Code::AlreadyExists, "0x14 of");
    // It is the own one of this rank.
    let back = Rank::join(&client, twice(0)).await;
    ranks.push(back);
    let other = v1::InitGroupRequest {
        connection: Some(lab.connection("h0", 21)),
        ..again
    };
    ranks.push(Rank::join(&client, other).await);
    for rank in &mut ranks[1..] {
        rank.until(Active).await;
    }
}
