//! Collective groups over real switches; what operators see of them through the binary.

use castnet_comm::{Collectives, Operation};
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase;
use castnet_worker::DataplaneConfig;
use serde_json::Value;
use tonic::{Code, Streaming};

use crate::fabric::{Fabric, PATIENCE, communicator};

pub(crate) async fn until(
    stream: &mut Streaming<v1::CollectiveState>,
    phase: CollectivePhase,
) -> v1::CollectiveState {
    loop {
        let next = tokio::time::timeout(PATIENCE, stream.message()).await;
        let state = next.expect("in time").expect("a message").expect("more to come");
        if state.phase() == phase {
            return state;
        }
        assert_eq!(state.phase(), CollectivePhase::Waiting, "{state:?}");
    }
}

/// What a switch has given away behind the controller's back is found out at the switch: half of the slots fit, and that is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_short_of_memory_has_the_last_word_and_gets_fewer_slots() {
    let fabric = Fabric::new().await;
    let mut ranks = fabric.ranks("probe", 17, v1::CollectiveSettings::default()).await;
    for rank in &mut ranks {
        until(rank, CollectivePhase::Active).await;
    }
    let leaf = fabric.switches[0].1.clone();
    let rule = leaf.rules().remove(0);
    fabric.run(vec!["group", "destroy", "probe"]).await;

    let bytes = |slots: u16| {
        let rule = rule.clone().with_translated(|kind| kind.slots = slots);
        rule.reserved_bytes()
    };
    let slots = rule.translated().expect("it computes").slots;
    let (wanted, fewest) = (bytes(slots), bytes(slots / 2));
    let max = DataplaneConfig::new(String::new(), Vec::new())
        .engine
        .memory_bytes_max as u64;
    let mut left = max;
    for n in 0..64 {
        let fits = (1..16).rev().map(|power| 1 << power);
        let Some(slots) = fits.into_iter().find(|slots| bytes(*slots) + fewest <= left) else {
            break;
        };
        let mut filler = castnet_rules::GroupRule {
            name: format!("filler{n}"),
            mcst_id: castnet_wire::McstId([10, 99, 0, n].into()),
            ..rule
                .clone()
                .with_translated(|kind| (kind.slots, kind.message_packets) = (slots, 1))
        };
        // A queue pair is in one group only.
        for endpoint in &mut filler.endpoints {
            if let castnet_rules::NextHop::Host(host) = &mut endpoint.next_hop {
                host.qpn = castnet_wire::Qpn::new(0x1000 + u32::from(n));
            }
        }
        leaf.install(&filler).expect("room");
        left -= bytes(slots);
    }
    assert!((fewest..wanted).contains(&left), "{fewest} {left} {wanted}");

    let mut ranks = fabric.ranks("job", 18, v1::CollectiveSettings::default()).await;
    for rank in &mut ranks {
        let state = until(rank, CollectivePhase::Active).await;
        assert_eq!((state.slots, state.generation), (128, 2));
        let says = format!(
            "placed again, as switch leaf0 refuses: rule.translated.slots: the group needs {wanted} bytes, {left} of {max} are left"
        );
        assert_eq!(state.reason, says);
    }
    let shown = fabric.run(vec!["group", "show", "job"]).await;
    assert!(shown.contains("placed again, as switch leaf0 refuses"), "{shown}");
    assert!(shown.contains("128 slots per switch"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collective_group_on_real_switches_is_shown_with_its_tree() {
    let fabric = Fabric::new().await;
    let settings = v1::CollectiveSettings {
        window_packets: 32,
        ..Default::default()
    };
    let mut ranks = fabric.ranks("job", 17, settings).await;
    for rank in &mut ranks {
        assert_eq!(until(rank, CollectivePhase::Active).await.slots, 128);
    }

    let leaf = fabric.switches[0].0.address().to_string();
    let listed = fabric.castnet(&["group", "list"]).await;
    let line = &listed[0];
    assert_eq!(
        (line["group"].as_str(), line["kind"].as_str()),
        (Some("job"), Some("collective"))
    );
    assert_eq!(
        (line["joined"].as_u64(), line["phase"].as_str()),
        (Some(4), Some("active"))
    );
    assert!(
        line["memory_bytes"].as_u64().expect("bytes") > 3 * 128 * 1024,
        "{line}"
    );

    let shown = fabric.castnet(&["group", "show", "job"]).await;
    assert_eq!(shown["switches"].as_array().map(Vec::len), Some(3));
    for part in shown["switches"].as_array().expect("switches") {
        assert_eq!(part["installed"], true, "{part}");
        assert_eq!(
            (&part["progress"]["slots"], &part["progress"]["slots_used"]),
            (&128.into(), &0.into())
        );
        assert_eq!(
            part["progress"]["memory_bytes"], part["memory_bytes"],
            "both count the same"
        );
    }
    assert_eq!(shown["ranks"][3]["sq_psn"], 300);
    let page = fabric.run(vec!["group", "show", "job"]).await;
    for line in [
        "├─ [leaf0] ",
        "│  └─ rank 1: h1 (10.0.0.2)",
        "   └─ rank 3: h3 (10.0.0.4)",
    ] {
        assert!(page.contains(line), "{line} in\n{page}");
    }
    for place in [
        &["group", "show", "job"][..],
        &["group", "show", "job", "--agent", &leaf],
    ] {
        let watch = ["--watch", "10ms", "--count", "2", "--output", "json"];
        let lines = fabric.run([place, &watch].concat()).await;
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("one object a line"))
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1]["group"], "job");
    }
    let members = fabric.castnet(&["group", "members", "job"]).await;
    assert_eq!(members[2]["phase"], "joined");

    // Windows that no switch has room for: refused by name, and the first group does not notice.
    let large = v1::CollectiveSettings {
        window_packets: 16_384,
        message_packets: 64,
        reproducible: Some(true),
        ..Default::default()
    };
    // Their leases must not run out before the end.
    let (mut kept, mut refused) = (Vec::new(), None);
    for group in 0.. {
        let mut ranks = fabric
            .ranks(&format!("large{group}"), 18 + group, large.clone())
            .await;
        let first = loop {
            let state = ranks[0]
                .message()
                .await
                .expect("a message")
                .expect("more to come");
            if state.phase() != CollectivePhase::Waiting {
                break state;
            }
        };
        kept.push(ranks);
        if first.phase() == CollectivePhase::Refused {
            refused = Some(first);
            break;
        }
    }
    let state = refused.expect("a switch that is full");
    assert!(state.reason.contains(" bytes for it, "), "{}", state.reason);
    assert!(
        ["leaf0", "leaf1", "spine0"].contains(&state.failed_switch.as_str()),
        "{state:?}"
    );
    let listed = fabric.castnet(&["group", "list"]).await;
    assert_eq!(listed[0]["phase"], "active");

    let topology = fabric.castnet(&["topology"]).await;
    let free = |i: usize| {
        let switch = &topology["switches"][i];
        let [max, free] = ["memory_bytes_max", "memory_bytes_free"].map(|key| switch[key].as_u64());
        assert!(free < max && max > Some(0), "{switch}");
    };
    (0..3).for_each(free);

    let gone = fabric.castnet(&["group", "destroy", "job"]).await;
    assert_eq!(gone["complete"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_creates_a_collective_group_and_ranks_fill_it() {
    let fabric = Fabric::new().await;
    let create = "job create g --ranks h0,h1,h2,h3 --window 16 --message-packets 8 --reproducible \
                  --loss-policy reflect --straggler-policy rnr --description training";
    let args: Vec<&str> = create.split_whitespace().collect();
    let created = fabric.castnet(&args).await;
    let (code, text) = fabric.refused(&args).await;
    assert!(
        code == Some(3) && text.contains(" next: castnet group list shows the groups"),
        "{text}"
    );
    let (code, text) = fabric.refused(&["group", "show", "nobody"]).await;
    assert!(
        code == Some(3) && text.contains(" next: castnet group list"),
        "{text}"
    );
    assert_eq!(
        (&created["ranks"], &created["slots"], &created["phase"]),
        (&4.into(), &64.into(), &"gathering".into())
    );
    let page = fabric.run(vec!["group", "show", "g"]).await;
    for text in [
        "Collective group g, gathering: waits for rank 0 (host h0)",
        "16 packets in messages of 8; 64 slots per switch",
        "in rank order (reproducible)",
        "not placed: it is when all ranks have joined",
    ] {
        assert!(page.contains(text), "{text} in\n{page}");
    }
    let listed = fabric.castnet(&["group", "list"]).await;
    assert_eq!(listed[0]["description"], "training");
    let mut ranks = fabric.ranks("g", 17, v1::CollectiveSettings::default()).await;
    for rank in &mut ranks {
        let settings = until(rank, CollectivePhase::Active)
            .await
            .settings
            .expect("settings");
        assert_eq!(settings.loss_policy(), v1::CollectiveLossPolicy::Reflect);
    }
    let twice = fabric
        .client
        .clone()
        .init_group(fabric.rank("g", 0, 99, Default::default()))
        .await;
    assert_eq!(twice.expect_err("taken").code(), Code::AlreadyExists);
    let shown = fabric.castnet(&["group", "show", "g"]).await;
    assert_eq!(
        (&shown["straggler_policy"], &shown["description"]),
        (&"rnr".into(), &"training".into())
    );
    fabric.castnet(&["group", "destroy", "g"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_collective_came_to_is_counted_by_group_and_endpoint() {
    const ELEMENTS: usize = 10_000;
    let fabric = Fabric::new().await;
    let (tells, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (mut ranks, mut curtains) = (Vec::new(), Vec::new());
    for rank in 0..4 {
        let (connect, tells) = (communicator(&fabric, rank), tells.clone());
        // Falls when the test has seen enough, or has failed.
        let (curtain, falls) = std::sync::mpsc::channel::<()>();
        curtains.push(curtain);
        ranks.push(tokio::task::spawn_blocking(move || {
            let mut communicator = connect();
            let mut sums = vec![f32::from(rank); ELEMENTS];
            communicator.allreduce(&mut sums, Operation::Sum).expect("sums");
            // Others may still want answers.
            communicator.barrier().expect("all have them");
            tells.send(rank).expect("a test that listens");
            drop(tells);
            assert!(falls.recv().is_err());
            communicator.close().expect("closed");
            sums
        }));
    }
    drop(tells);
    for _ in 0..4 {
        let rank = tokio::time::timeout(PATIENCE, told.recv()).await;
        rank.expect("in time").expect("all ranks have their sums");
    }
    // 40 packets of 1024 bytes from each child, and the sums from the parent.
    let packets = (ELEMENTS * 4).div_ceil(1024);
    for (index, (agent, _)) in fabric.switches.iter().enumerate() {
        let address = agent.address().to_string();
        let counters = fabric.castnet(&["counters", "--agent", &address]).await;
        let group = &counters["collectives"][0];
        let endpoints = group["endpoints"].as_array().expect("endpoints");
        let is_spine = index == 2;
        assert_eq!(endpoints.len(), if is_spine { 2 } else { 3 }, "{counters}");
        assert_eq!(group["contributions"], packets * endpoints.len(), "{counters}");
        assert_eq!(group["contribution_bytes"], ELEMENTS * 4 * endpoints.len());
        let at_least = |value: &Value, least: usize| value.as_u64() >= Some(least as u64);
        // Where somebody is slow, results are sent again.
        assert!(
            at_least(&group["results"], packets * endpoints.len()),
            "{counters}"
        );
        for endpoint in endpoints {
            // With the control messages of the sums and of the barrier.
            for key in ["contributions", "results"] {
                assert!(at_least(&endpoint[key], packets + 2), "{key} of {endpoint}");
            }
        }
        let page = fabric.run(vec!["counters", "--agent", &address]).await;
        assert!(page.contains("Endpoints of collective groups"), "{page}");
    }
    let shown = fabric.castnet(&["group", "show", "job"]).await;
    for part in shown["switches"].as_array().expect("switches") {
        assert_eq!(part["progress"]["finished"], 2, "{part}");
    }
    drop(curtains);
    for rank in ranks {
        assert_eq!(rank.await.expect("no panic"), vec![6.0; ELEMENTS]);
    }
}
