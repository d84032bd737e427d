//! Running multicast groups whose tree loses a link.

use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::{Active, Failed};
use castnet_proto::v1::MemberPhase::Expected;
use castnet_proto::v1::agent_event::Event::PathStalled;
use castnet_proto::v1::controller_event::Event;
use castnet_sim_control::random::Random;
use castnet_topology::Topology;

use crate::collective_places::{set_link, spine, two_spines};
use crate::common::{Calls, Client, Events, Lab, group_until, moment, reaches, seeds};
use crate::replan_routed::until_link;
use crate::stalls::stands_still;

/// Ports of a leaf that lead to the spines follow those of its two hosts.
fn uplink(spine: &str) -> u32 {
    let number: u32 = spine.trim_start_matches("spine").parse().unwrap();
    2 + number
}

fn other_than(spine: &str) -> &'static str {
    if spine == "spine0" { "spine1" } else { "spine0" }
}

/// The state of the group once it and the switches are as `is` wants.
pub(crate) async fn until(client: &Client, is: impl Fn(&v1::GroupState) -> bool) -> v1::GroupState {
    group_until(client, "g", is).await.state.unwrap()
}

async fn group(client: &Client) -> v1::GroupState {
    reaches(client, "g", Active).await.state.unwrap()
}

/// It says so, and goes on once its own link is back, or there is another tree. Members keep their connections then, switches of the old
/// tree have nothing of it, and no state is carried on.
#[tokio::test(start_paused = true)]
async fn without_another_tree_a_group_says_what_it_lacks_and_takes_the_next_one() {
    let mut lab = two_spines().await;
    // The next attempt comes after what is done here.
    lab.config.timeouts.link = std::time::Duration::from_secs(30);
    let (_controller, client) = lab.start().await;
    client.create(lab.given("g", &["h0", "h1", "h2"], 17)).await;
    let before = group(&client).await;
    let lost = spine(&lab);
    let other = other_than(lost);
    set_link(lab.switch(other), 0, false);
    until_link(&client, other, 0, false).await;
    let leaf = lab.switch("leaf1");
    for own_is_back in [true, false] {
        set_link(leaf, uplink(lost), false);
        let state = until(&client, |state| state.reason.contains("no other tree")).await;
        let says = format!("link leaf1:{} - {lost}:1 is down: port leaf1-p", uplink(lost));
        assert!(state.reason.starts_with(&says), "{}", state.reason);
        assert_eq!((state.phase(), state.generation), (Active, before.generation));
        if own_is_back {
            set_link(leaf, uplink(lost), true);
            let state = until(&client, |state| state.reason.is_empty()).await;
            assert_eq!((state.phase(), state.generation), (Active, before.generation));
        }
    }
    // No link of its tree changes.
    set_link(lab.switch(other), 0, true);
    let generation = before.generation + 1;
    let tree = ["leaf0", "leaf1", other];
    let placed = tree.map(|switch| format!("{switch} g.{generation}"));
    let is_there = |s: &v1::GroupState| s.generation == generation && lab.placed() == placed;
    let state = until(&client, is_there).await;
    assert_eq!((state.phase(), state.reason.as_str()), (Active, ""));
    assert_eq!(
        (state.mcst_id, state.start_psn, state.members),
        (before.mcst_id, before.start_psn, before.members)
    );
    for switch in tree {
        let rule = lab.rule(switch);
        let kind = rule.multicast().expect("a multicast group");
        assert_eq!((kind.start_psn, kind.carries_on), (None, None), "{switch}");
    }
}

/// What a leaf reports of its neighbours: these spines, by LLDP.
fn hear(lab: &Lab, leaf: &str, spines: &[&str]) {
    let port = leaf.trim_start_matches("leaf");
    let heard = spines.iter().map(|spine| v1::Neighbour {
        port: uplink(spine),
        age_ns: 0,
        kind: Some(v1::neighbour::Kind::Switch(v1::SwitchNeighbour {
            name: (*spine).into(),
            port: format!("{spine}-p{port}"),
            ..Default::default()
        })),
    });
    let heard = heard.collect();
    lab.switch(leaf).with(|toy| toy.neighbours = heard);
    lab.switch(leaf).tell();
}

/// Waits until the controller has looked at all groups after the last reports of a leaf: a group at a host's port that goes
/// down, and up again.
async fn seen(lab: &Lab, client: &Client, leaf: &str) {
    for up in [false, true] {
        set_link(lab.switch(leaf), 1, up);
        let port = format!("port {leaf}-p1 ");
        group_until(client, "other", |s| s.reason.contains(&port) != up).await;
    }
}

/// The spine of group g.
fn of_g(lab: &Lab) -> &'static str {
    let has = |spine: &str| lab.switch(spine).groups().iter().any(|g| g.starts_with("g."));
    ["spine0", "spine1"]
        .into_iter()
        .find(|s| has(s))
        .expect("a spine")
}

/// Nothing is heard by LLDP, as behind ordinary switches. The report comes before the agent is known to be gone, or after that.
#[tokio::test(start_paused = true)]
async fn a_group_goes_on_without_a_switch_that_it_waits_for_and_that_does_not_answer() {
    for late in [false, true] {
        let mut lab = two_spines().await;
        let (_controller, client) = lab.start().await;
        let request = v1::CreateGroupRequest {
            // A report counts for more than twice as long.
            stall_timeout_ms: 60_000,
            ..lab.given("g", &["h0", "h2"], 17)
        };
        client.create(request).await;
        let before = group(&client).await;
        let (mut events, lost) = (Events::of(&client).await, of_g(&lab));
        let stalled = stands_still(&before, lost, 2000);
        let report = |lab: &Lab| lab.switch("leaf0").report(PathStalled(stalled.clone()));
        if !late {
            // The switch answers: it is for others to say what is wrong.
            report(&lab);
            let is = |e: &Event| matches!(e, Event::PathStalled(_)).then_some(());
            events.until(is).await;
            assert_eq!(until(&client, |_| true).await.generation, before.generation);
        }
        lab.switches.get_mut(lost).unwrap().stop().await;
        if late {
            events.switch(lost, false).await;
            report(&lab);
        }
        until(&client, |s| s.generation > before.generation).await;
        let other = other_than(lost);
        let moved = format!("{other} g.");
        let has_moved = || lab.placed().iter().any(|p| p.starts_with(&moved));
        crate::common::until("the other spine has it", has_moved).await;
    }
}

/// What is lost comes back, in any order. It moves exactly when its spine is lost and there is another one.
#[tokio::test(start_paused = true)]
async fn a_group_is_where_it_can_be_whatever_is_lost() {
    #[derive(Clone, Copy)]
    struct Spine {
        answers: bool,
        is_heard: bool,
        has_link: bool,
    }
    const NAMES: [&str; 3] = ["spine0", "spine1", "spine2"];
    for seed in seeds(20) {
        println!("CASTNET_SEED={seed}");
        let mut random = Random(seed);
        let mut lab = Lab::new(Topology::leaf_spine(2, 3, 2).unwrap()).await;
        lab.config.timeouts.link = std::time::Duration::from_millis(20);
        let (_controller, client) = lab.start().await;
        for leaf in ["leaf0", "leaf1"] {
            hear(&lab, leaf, &NAMES);
        }
        client.create(lab.given("other", &["h0", "h1"], 18)).await;
        reaches(&client, "other", Active).await;
        client.create(lab.given("g", &["h0", "h2"], 17)).await;
        group(&client).await;
        // The generation, and the spine.
        let look = async || {
            let group = client.get("g").await;
            let mut names = group.tree.into_iter().map(|node| node.switch_name);
            let at = names.find_map(|name| NAMES.iter().position(|spine| *spine == name));
            (group.state.unwrap().generation, at.expect("a spine"))
        };
        let (mut generation, mut at) = look().await;
        let well = Spine {
            answers: true,
            is_heard: true,
            has_link: true,
        };
        let mut spines = [well; 3];
        for _ in 0..12 {
            let n = random.below(3) as usize;
            let (spine, name) = (&mut spines[n], NAMES[n]);
            match random.below(3) {
                0 => {
                    spine.answers = !spine.answers;
                    let (mut events, switch) =
                        (Events::of(&client).await, lab.switches.get_mut(name).unwrap());
                    match spine.answers {
                        true => switch.start().await,
                        false => switch.stop().await,
                    }
                    events.switch(name, spine.answers).await;
                }
                1 => spine.is_heard = !spine.is_heard,
                _ => {
                    spine.has_link = !spine.has_link;
                    set_link(lab.switch("leaf0"), uplink(name), spine.has_link);
                    until_link(&client, "leaf0", uplink(name), spine.has_link).await;
                }
            }
            let heard: Vec<&str> = (0..3).filter(|n| spines[*n].is_heard).map(|n| NAMES[n]).collect();
            for leaf in ["leaf1", "leaf0"] {
                hear(&lab, leaf, &heard);
            }
            // A spine that one leaf hears is not lost. The controller must know that before the next one changes.
            seen(&lab, &client, "leaf0").await;
            let is_lost = |n: usize| !spines[n].has_link || !spines[n].answers && !spines[n].is_heard;
            let is_usable = |n: usize| spines[n].has_link && spines[n].answers;
            loop {
                let (now, to) = look().await;
                if !is_lost(to) || !(0..3).any(is_usable) {
                    break;
                }
                assert!(now <= generation + 1);
                moment().await;
            }
            let (now, to) = look().await;
            let has_moved = now == generation + 1 && is_lost(at) && is_usable(to);
            assert!(now == generation || has_moved, "{now} after {generation}");
            (generation, at) = (now, to);
        }
        // Nobody has more than its part in the end.
        for (_, name) in spines.iter().zip(NAMES).filter(|(spine, _)| !spine.answers) {
            lab.switches.get_mut(name).unwrap().start().await;
        }
        let is_whole = |lab: &Lab| {
            let placed = lab.placed();
            let of_g: Vec<_> = placed.iter().filter_map(|p| p.split_once(" g.")).collect();
            of_g.len() == 3 && of_g.iter().all(|(_, generation)| *generation == of_g[0].1)
        };
        until(&client, |s| s.phase() == Active && is_whole(&lab)).await;
    }
}

/// Its switches know how many packets each host has sent, and no other switch does.
#[tokio::test(start_paused = true)]
async fn a_group_whose_members_all_send_fails_with_a_link() {
    let mut lab = two_spines().await;
    lab.config.timeouts.link = std::time::Duration::from_millis(20);
    let (_controller, client) = lab.start().await;
    let request = v1::CreateGroupRequest {
        any_source: v1::AnySource::Bridged.into(),
        ..lab.given("g", &["h0", "h2"], 17)
    };
    client.create(request).await;
    group(&client).await;
    set_link(lab.switch("leaf1"), uplink(spine(&lab)), false);
    let state = reaches(&client, "g", Failed).await.state.unwrap();
    let says = "has been down for 20ms";
    assert!(state.reason.contains(says), "{}", state.reason);
    assert!(state.members.iter().all(|m| m.phase() == Expected));
}
