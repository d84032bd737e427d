//! Groups that are destroyed by force while a switch cannot be reached.

use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;
use castnet_topology::Topology;
use tonic::Code;

use crate::common::{Calls, Client, Events, Lab, creation, refused, two_tiers};

const LOST: &str = "leaf1";

async fn by_force(client: &Client, group: &str) -> v1::DestroyGroupResponse {
    let request = v1::DestroyGroupRequest {
        group: group.into(),
        force: true,
    };
    client.clone().destroy_group(request).await.unwrap().into_inner()
}

/// Creates `g` over all switches and destroys it by force while one is lost. Returns its McstID.
async fn written_off(lab: &mut Lab, client: &Client) -> String {
    let request = lab.given("g", &["h0", "h2"], 17);
    let created = client.create(request).await;
    lab.lose(client, LOST).await;
    let answer = by_force(client, "g").await;
    assert!(!answer.complete && answer.pending_switches.is_empty());
    assert_eq!(answer.written_off_switches, [LOST]);
    created.mcst_id
}

/// Creates a group with this McstID between hosts that are not at the lost switch.
async fn with_mcst_id(client: &Client, name: &str, mcst_id: &str) -> Result<(), tonic::Status> {
    let request = v1::CreateGroupRequest {
        mcst_id: Some(mcst_id.into()),
        ..creation(name, &["h0", "h1"])
    };
    client.clone().create_group(request).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn the_name_is_free_at_once_and_the_mcst_id_when_the_switch_has_returned() {
    let (mut lab, controller, client) = two_tiers().await;
    let mcst_id = written_off(&mut lab, &client).await;
    refused(client.try_get("g").await, Code::NotFound, "");
    assert_eq!(lab.placed(), ["leaf1 g.1"]);

    let created = client.create(creation("g", &["h0", "h1"])).await;
    assert_ne!(created.mcst_id, mcst_id);
    let taken = with_mcst_id(&client, "x", &mcst_id).await;
    let says = "switch leaf1 may still have it";
    refused(taken, Code::AlreadyExists, says);

    // That survives the controller.
    let (_controller, client) = lab.restart(controller).await;
    with_mcst_id(&client, "x", &mcst_id).await.unwrap_err();
    let mut switches = client.switches().await.into_iter();
    let lost = switches.find(|s| s.name == LOST).unwrap();
    assert_eq!(lost.written_off, ["g"]);

    let mut events = Events::of(&client).await;
    lab.switches.get_mut(LOST).unwrap().start().await;
    let is_clean = |event: &Event| match event {
        Event::Switch(s) if s.name == LOST && s.reachable && s.written_off.is_empty() => Some(()),
        _ => None,
    };
    events.until(is_clean).await;
    assert_eq!(lab.switch(LOST).changes(), ["+g.1", "-g.1"]);
    with_mcst_id(&client, "x", &mcst_id).await.unwrap();
}

/// The next free address is not that of the group, however few there are.
#[tokio::test(start_paused = true)]
async fn the_mcst_id_is_not_handed_out() {
    let mut lab = Lab::two_tiers().await;
    lab.config.mcst_pool = "10.200.0.0/30".parse().unwrap();
    let (_controller, mut client) = lab.start().await;
    let mcst_id = written_off(&mut lab, &client).await;
    let other = client.create(creation("other", &["h0", "h1"])).await;
    assert_ne!(other.mcst_id, mcst_id);
    let third = client.create_group(creation("third", &["h0", "h1"])).await;
    refused(third, Code::ResourceExhausted, "");
}

/// A switch that is taken out of the configuration never returns.
#[tokio::test(start_paused = true)]
async fn without_the_switch_the_mcst_id_is_free() {
    let (mut lab, controller, client) = two_tiers().await;
    let mcst_id = written_off(&mut lab, &client).await;
    controller.stop().await;
    lab.config.switches.retain(|s| s.name != LOST);
    lab.config.topology = Some(Topology::leaf_spine(1, 1, 2).unwrap());
    let (_controller, client) = lab.start().await;
    with_mcst_id(&client, "x", &mcst_id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn where_all_switches_are_reached_nothing_is_written_off() {
    let (lab, _controller, client) = two_tiers().await;
    client.create(lab.given("g", &["h0", "h2"], 17)).await;
    let answer = by_force(&client, "g").await;
    assert!(answer.complete && answer.written_off_switches.is_empty());
    assert!(lab.placed().is_empty());
}
