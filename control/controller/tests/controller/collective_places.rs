//! Where collective groups go: by the room that switches say they have and by what they have in truth, and when links go down.

use std::time::Duration;

use crate::common::ranks::{all, all_again, becomes, join_again, shown};
use crate::common::{Calls, Client, Events, Lab, Switch, memory, refused, start, two_tiers};
use castnet_proto::convert::refuse;
use castnet_proto::v1;
use castnet_proto::v1::CollectivePhase::{Active, Failed, Refused};
use castnet_topology::Topology;
use tonic::{Code, Status};

/// Two leaves with two hosts each, two spines.
pub(crate) async fn two_spines() -> Lab {
    Lab::new(Topology::leaf_spine(2, 2, 2).unwrap()).await
}

/// The spine that has a part of a group.
pub(crate) fn spine(lab: &Lab) -> &'static str {
    let placed = lab.placed().join(" ");
    match (placed.contains("spine0"), placed.contains("spine1")) {
        (true, false) => "spine0",
        (false, true) => "spine1",
        _ => panic!("{placed}"),
    }
}

fn full() -> Status {
    refuse(
        Code::ResourceExhausted,
        "collective",
        "2 groups are installed: no place for another",
    )
}

#[tokio::test(start_paused = true)]
async fn a_switch_that_refuses_for_lack_of_room_is_passed_by_aloud() {
    let lab = two_spines().await;
    lab.refuses("spine0", Some(full()));
    let (_controller, client) = lab.start().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    // Nobody is told of a failure: they wait a little longer, for the next generation.
    for state in all(&mut ranks, Active).await {
        assert_eq!(state.generation, 2);
        assert_eq!(
            state.reason,
            "placed again, as switch spine0 refuses: collective: 2 groups are installed: no place for another"
        );
    }
    assert_eq!(lab.placed(), ["leaf0 job.2", "leaf1 job.2", "spine1 job.2"]);
    // Those that had confirmed were cleaned before.
    assert_eq!(lab.switch("leaf1").changes(), ["+job.1", "-job.1", "+job.2"]);
    assert!(lab.switch("spine0").changes().is_empty());

    // What it said then is not held against it later.
    lab.refuses("spine0", None);
    lab.refuses("spine1", Some(full()));
    let _ranks = all_again(ranks, &client, 2).await;
    assert_eq!(spine(&lab), "spine0");
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_other_place_all_refusals_are_told() {
    let lab = two_spines().await;
    for spine in ["spine0", "spine1"] {
        lab.refuses(spine, Some(full()));
    }
    let (_controller, client) = lab.start().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    for state in all(&mut ranks, Refused).await {
        let says = "refuses: collective: 2 groups are installed: no place for another";
        let both = format!("switch spine0 {says}; switch spine1 {says}");
        assert_eq!((state.reason, &*state.failed_switch), (both, "spine1"));
    }
    becomes(&client, "job", |g| g.tree.is_empty()).await;
    assert!(lab.placed().is_empty(), "all switches or none");
}

/// The switch has less memory than it said: half of the slots fit, or those of Mode-III, and need no other place.
#[tokio::test(start_paused = true)]
async fn a_switch_short_of_memory_gets_fewer_slots() {
    let lab = Lab::two_tiers().await;
    lab.switch("spine0").with(|t| t.slots_max = Some(128));
    let (_controller, client) = lab.start().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    for state in all(&mut ranks, Active).await {
        assert_eq!((state.generation, state.slots), (2, 128));
        let says = "placed again, as switch spine0 refuses: rule.translated.slots: 256 are too many";
        assert_eq!(state.reason, says);
    }
    lab.switch("spine0").with(|t| t.slots_max = Some(64));
    let mut ranks = lab.ranks(&client, "augmented", 4, 18).await;
    for state in all(&mut ranks, Active).await {
        let mode = state.settings.unwrap().mode();
        assert_eq!((state.slots, mode), (64, v1::CollectiveMode::Augmented));
        let says = "no memory for the slots of translated: switch spine0 refuses: rule.translated.slots: 128 are too many";
        assert_eq!(state.mode_reason, says);
    }
    lab.switch("spine0").with(|t| t.slots_max = Some(32));
    let mut ranks = lab.ranks(&client, "other", 4, 19).await;
    for state in all(&mut ranks, Refused).await {
        let says = "switch spine0 refuses: rule.translated.slots: 64 are too many";
        assert_eq!((&*state.reason, &*state.failed_switch), (says, "spine0"));
    }
}

pub(crate) fn set_link(switch: &Switch, port: u32, up: bool) {
    switch.with(|t| t.ports.iter_mut().find(|p| p.port == port).unwrap().up = up);
    switch.tell();
}

#[tokio::test(start_paused = true)]
async fn a_link_of_the_tree_that_stays_down_fails_the_group_by_name_and_another_tree_is_found() {
    let mut lab = two_spines().await;
    lab.config.timeouts.link = Duration::from_millis(30);
    let (_controller, client) = lab.start().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    all(&mut ranks, Active).await;
    let before = spine(&lab);
    let number: u32 = before.trim_start_matches("spine").parse().unwrap();
    // Port 2 and 3 of a leaf lead to the spines.
    set_link(lab.switch("leaf1"), 2 + number, false);
    for state in all(&mut ranks, Failed).await {
        let says = format!(
            "link leaf1:{p} - {before}:1 has been down for 30ms: port leaf1-p{p} of switch leaf1 has no link",
            p = 2 + number
        );
        assert_eq!(state.reason, says);
        assert_eq!(state.failed_switch, "leaf1");
        assert_eq!(state.failed_rank, None);
    }
    let _ranks = all_again(ranks, &client, 1).await;
    assert_ne!(spine(&lab), before);
}

/// Within the grace time it is only said.
#[tokio::test(start_paused = true)]
async fn a_link_that_comes_back_fails_nothing() {
    let mut lab = Lab::two_tiers().await;
    lab.config.timeouts.link = Duration::from_secs(600);
    let (_controller, client) = lab.start().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    all(&mut ranks, Active).await;
    set_link(lab.switch("spine0"), 1, false);
    set_link(lab.switch("leaf0"), 1, false);
    let reason = |g: &v1::Collective| g.state.as_ref().unwrap().reason.clone();
    let group = becomes(&client, "job", |g| reason(g).matches("is down").count() == 2).await;
    assert_eq!(
        reason(&group),
        "link leaf0:1 - h1 is down: port leaf0-p1 of switch leaf0 has no link; \
         link leaf1:2 - spine0:1 is down: port spine0-p1 of switch spine0 has no link"
    );
    set_link(lab.switch("spine0"), 1, true);
    set_link(lab.switch("leaf0"), 1, true);
    becomes(&client, "job", |g| reason(g).is_empty()).await;
    tokio::time::sleep(2 * lab.config.timeouts.link).await;
    let group = shown(&client, "job").await.unwrap();
    assert_eq!(group.state.unwrap().phase(), Active);
    assert_eq!(lab.placed(), ["leaf0 job.1", "leaf1 job.1", "spine0 job.1"]);
}

#[tokio::test(start_paused = true)]
async fn a_rank_whose_link_stays_down_is_named() {
    let mut lab = Lab::two_tiers().await;
    lab.config.timeouts.link = Duration::from_millis(30);
    let (_controller, client) = lab.start().await;
    let mut ranks = lab.ranks(&client, "job", 4, 17).await;
    all(&mut ranks, Active).await;
    set_link(lab.switch("leaf1"), 1, false);
    for state in all(&mut ranks, Failed).await {
        assert_eq!(state.failed_rank, Some(3));
        let says = "link leaf1:1 - h3 has been down";
        assert!(state.reason.starts_with(says), "{}", state.reason);
    }
    // It cannot be had in the network: the ranks hear why, and may do without.
    let mut again = join_again(ranks, &client, 1).await;
    for state in all(&mut again, Refused).await {
        assert!(state.reason.contains("h3"), "{}", state.reason);
    }
    assert!(shown(&client, "job").await.is_some() && lab.placed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn memory_is_reserved_per_switch_and_a_shortage_is_named() {
    let lab = Lab::new(Topology::leaf_spine(2, 2, 2).unwrap()).await;
    let (needed, fewest) = leaf_memory(&lab).await;
    for leaf in ["leaf0", "leaf1"] {
        lab.switch(leaf).set_memory(2 * needed + needed / 8);
    }
    let (_controller, client) = lab.start().await;
    let mut first = lab.ranks(&client, "a", 4, 17).await;
    all(&mut first, Active).await;
    let mut second = lab.ranks(&client, "b", 4, 18).await;
    all(&mut second, Active).await;
    // One group at each spine.
    assert_eq!(lab.switch("spine0").groups().len(), 1);
    assert_eq!(lab.switch("spine1").groups().len(), 1);
    let mut third = lab.ranks(&client, "c", 4, 19).await;
    for state in all(&mut third, Refused).await {
        // Half of the slots would do, and fewer in Mode-III, but these are more, too.
        let says = format!("needs {fewest} bytes for it, {} are free", needed / 8);
        assert!(state.reason.contains(&says), "{}", state.reason);
        let switch = format!("switch {} ", state.failed_switch);
        assert!(state.reason.starts_with(&switch), "{}", state.reason);
    }
    let group = shown(&client, "c").await.unwrap();
    assert_eq!((group.state.unwrap().phase(), group.tree.len()), (Refused, 0));
    // What is freed can be had.
    client.destroy("a").await;
    let third = all_again(third, &client, 1).await;
    assert_eq!(third.len(), 4);
}

/// The rules of a group's switches.
async fn rules_of(client: &Client, job: &str) -> Vec<v1::GroupRule> {
    let tree = shown(client, job).await.unwrap().tree.into_iter();
    tree.map(|node| node.rule.unwrap()).collect()
}

async fn modes(client: &Client, job: &str) -> Vec<v1::CollectiveMode> {
    let rules = rules_of(client, job).await.into_iter();
    rules.map(|rule| rule.translated().unwrap().mode()).collect()
}

/// The mode that the ranks ask for is that of the rule of each switch.
#[tokio::test(start_paused = true)]
async fn a_group_is_in_the_mode_that_its_ranks_ask_for() {
    let (lab, _controller, client) = two_tiers().await;
    for (job, mode) in [
        ("one", v1::CollectiveMode::Terminated),
        ("two", v1::CollectiveMode::Translated),
        ("three", v1::CollectiveMode::Augmented),
    ] {
        let settings = v1::CollectiveSettings {
            mode: mode as i32,
            ..Default::default()
        };
        let change = |r: &mut v1::InitGroupRequest| r.settings = Some(settings.clone());
        let mut ranks = lab.ranks_with(&client, job, 17, change).await;
        all(&mut ranks, Active).await;
        assert_eq!(modes(&client, job).await, [mode; 3], "{job}");
        client.destroy(job).await;
    }
}

/// What a leaf of the two-tier fabric sets aside for four ranks with the default settings, and with the fewest slots.
async fn leaf_memory(lab: &Lab) -> (u64, u64) {
    let mut config = lab.config.clone();
    config.store = None;
    let (_controller, client) = start(config).await;
    let mut ranks = lab.ranks(&client, "probe", 4, 20).await;
    all(&mut ranks, Active).await;
    let mut rule = lab.rule("leaf0");
    let needed = memory(&rule);
    if let Some(v1::group_rule::Kind::Translated(kind)) = &mut rule.kind {
        kind.slots /= 2;
    }
    let fewest = memory(&rule);
    client.destroy("probe").await;
    (needed, fewest)
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_placed_is_refused_at_creation() {
    let lab = Lab::two_tiers().await;
    lab.switch("spine0").set_memory(1000);
    let (_controller, mut client) = lab.start().await;
    Events::of(&client).await;
    let request = |ranks: &[&str]| v1::CreateCollectiveRequest {
        name: "g".into(),
        ranks: ranks.iter().map(|r| (*r).to_owned()).collect(),
        ..Default::default()
    };
    for (ranks, field) in [
        (&["h0"][..], "ranks"),
        (&["h0", "h0"], "ranks[1]"),
        (&["h0", "x"], "ranks[1]"),
    ] {
        let status = client.create_collective(request(ranks)).await.unwrap_err();
        assert!(status.message().starts_with(&format!("{field}: ")), "{status}");
    }
    // What the switch has left is known when it has reported.
    let mut events = Events::of(&client).await;
    let mut switches = client.switches().await.into_iter();
    if switches.any(|s| s.name == "spine0" && !s.reachable) {
        events.switch("spine0", true).await;
    }
    let both = client.create_collective(request(&["h0", "h2"])).await;
    let says = "switches.spine0: switch spine0 needs ";
    let status = refused(both, Code::ResourceExhausted, says);
    assert!(status.message().starts_with(says), "{status}");
    let one = client.create_collective(request(&["h0", "h1"])).await;
    assert!(one.is_ok(), "one leaf has room");
}
