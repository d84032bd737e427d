//! What a group would be, before it is created.

use crate::common::{Calls, Client, Lab, creation, moment, reaches, refused, two_tiers};
use castnet_proto::v1;
use castnet_proto::v1::GroupPhase::Active;
use castnet_proto::v1::plan_group_request::Group;
use castnet_topology::Topology;
use tonic::{Code, Status};

async fn plan(client: &Client, group: Group) -> Result<v1::PlanGroupResponse, Status> {
    let request = v1::PlanGroupRequest { group: Some(group) };
    Ok(client.clone().plan_group(request).await?.into_inner())
}

/// `leaf1 below spine0`.
fn tree(answer: &v1::PlanGroupResponse) -> Vec<String> {
    let nodes = answer.switches.iter().filter_map(|s| s.node.as_ref());
    nodes
        .map(|n| format!("{} below {}", n.switch_name, n.parent))
        .collect()
}

fn in_lanes(name: &str, lanes: u32) -> Group {
    let ranks = (0..4).map(|n| format!("h{n}")).collect();
    let settings = v1::CollectiveSettings {
        lanes,
        ..Default::default()
    };
    Group::Collective(v1::CreateCollectiveRequest {
        name: name.into(),
        ranks,
        settings: Some(settings),
        ..Default::default()
    })
}

fn passed_over(answer: &v1::PlanGroupResponse) -> Vec<String> {
    let all = answer.passed_over.iter();
    all.map(|over| format!("{} {}", over.switch_name, over.reason))
        .collect()
}

/// Waits until all switches have this state.
async fn until(client: &Client, is_so: impl Fn(&v1::SwitchState) -> bool) {
    while !client.switches().await.iter().all(&is_so) {
        moment().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_what_is_created_and_takes_nothing() {
    let (lab, _controller, mut client) = two_tiers().await;
    until(&client, |s| s.reachable).await;
    let members = ["h0", "h1", "h2"];
    let request = creation("g", &members);
    let planned = plan(&client, Group::Multicast(request.clone())).await.unwrap();
    let nodes = ["leaf0 below ", "spine0 below leaf0", "leaf1 below spine0"];
    assert_eq!(tree(&planned), nodes);
    assert_eq!((planned.refusal.as_str(), planned.lanes), ("", 1));
    let links = &planned.switches[0].links;
    let are_free = links.iter().all(|link| link.groups == 0);
    assert!(links.len() == 3 && are_free, "{links:?}");
    // Twice the same: no address is taken.
    assert_eq!(plan(&client, Group::Multicast(request)).await.unwrap(), planned);
    assert!(lab.placed().is_empty());
    assert!(client.groups().await.is_empty());

    client.create(lab.given("g", &members, 17)).await;
    let group = reaches(&client, "g", Active).await;
    assert_eq!(group.state.unwrap().mcst_id, planned.mcst_id);
    let nodes = |tree: &[v1::TreeNode]| -> Vec<(String, usize)> {
        let ends = |node: &v1::TreeNode| node.rule.as_ref().map_or(0, |rule| rule.endpoints.len());
        tree.iter()
            .map(|node| (node.switch_name.clone(), ends(node)))
            .collect()
    };
    let foreseen: Vec<v1::TreeNode> = planned.switches.iter().filter_map(|s| s.node.clone()).collect();
    assert_eq!(nodes(&foreseen), nodes(&group.tree));
    let multicast = |name: &str, members: &[&str]| Group::Multicast(creation(name, members));
    let other = plan(&client, multicast("other", &members)).await.unwrap();
    let links = &other.switches[0].links;
    assert!(links.iter().all(|link| link.groups == 1), "{other:?}");
    assert_ne!(other.mcst_id, planned.mcst_id);
    // Members that have not joined have no addresses yet; those of the fabric are known.
    let rule = other.switches[0].node.as_ref().and_then(|n| n.rule.clone());
    let text = format!("{:?}", rule.unwrap());
    assert!(!text.contains("198.18."), "{text}");

    let again = plan(&client, multicast("g", &members)).await;
    refused(again, Code::AlreadyExists, "");
    let unknown = plan(&client, multicast("g2", &["h0", "h99"])).await;
    refused(unknown, Code::NotFound, "");
    let nothing = client.plan_group(v1::PlanGroupRequest { group: None }).await;
    refused(nothing, Code::InvalidArgument, "");
}

#[tokio::test(start_paused = true)]
async fn a_plan_says_which_switches_are_full_or_down_and_why_there_is_none() {
    let mut lab = Lab::new(Topology::leaf_spine(2, 2, 2).unwrap()).await;
    lab.switch("spine0").set_memory(1000);
    for name in ["leaf0", "leaf1", "spine1"] {
        lab.switch(name).set_memory(64 << 20);
    }
    let (_controller, client) = lab.start().await;
    until(&client, |s| s.reachable && s.memory_bytes_max > 0).await;
    let planned = plan(&client, in_lanes("sums", 1)).await.unwrap();
    let nodes = ["spine1 below ", "leaf0 below spine1", "leaf1 below spine1"];
    assert_eq!(tree(&planned), nodes);
    let over = passed_over(&planned);
    let [over] = &over[..] else { panic!("{over:?}") };
    assert!(over.starts_with("spine0 needs ") && over.ends_with("1000 are free"));
    let each = " for each of the group's 2 lanes, 500 are free for each";
    let over = passed_over(&plan(&client, in_lanes("sums", 2)).await.unwrap());
    assert!(over.len() == 1 && over[0].ends_with(each), "{over:?}");
    for switch in &planned.switches {
        let (node, room) = (switch.node.as_ref().unwrap(), switch.room.unwrap());
        let is_free = room.memory_bytes_free == 64 << 20;
        assert!(node.memory_bytes > 0 && is_free, "{switch:?}");
    }

    lab.switches.get_mut("spine1").unwrap().stop().await;
    until(&client, |s| s.reachable != (s.name == "spine1")).await;
    let refused = plan(&client, in_lanes("sums", 1)).await.unwrap();
    assert!(refused.switches.is_empty() && !refused.may_come, "{refused:?}");
    for says in ["spine0 needs ", "1000 are free"] {
        assert!(refused.refusal.contains(says), "{refused:?}");
    }
    let lanes = plan(&client, in_lanes("sums", 2)).await.unwrap();
    assert!(lanes.refusal.contains(each), "{lanes:?}");
    let over = passed_over(&refused);
    let says = "spine1 cannot be reached: ";
    assert!(over.len() == 1 && over[0].starts_with(says), "{over:?}");
    assert!(lab.placed().is_empty());
}
