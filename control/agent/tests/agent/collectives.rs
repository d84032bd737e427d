//! Collective groups at the agent: installed, refused with the field, listed, counted, and what happens to them told.

use castnet_agent::load_rules;
use castnet_proto::convert::{rule_to_proto, violations};
use castnet_proto::v1;
use castnet_proto::v1::agent_event::Event;
use castnet_proto::v1::installed_group::State;
use castnet_rules::{COLLECTIVE_EXAMPLE, GroupRule, NextHop, RuleSet};
use castnet_wire::{PortId, Qpn};
use tonic::{Code, Status};

use crate::agent::{Lab, PATIENCE};

async fn lab(memory_bytes_max: usize) -> Lab {
    Lab::new(|config| config.engine.memory_bytes_max = memory_bytes_max).await
}

async fn free(lab: &mut Lab) -> u64 {
    let said = lab.client.get_capabilities(v1::GetCapabilitiesRequest {}).await;
    said.unwrap().into_inner().memory_bytes_free
}

fn example() -> GroupRule {
    RuleSet::from_toml(COLLECTIVE_EXAMPLE)
        .expect("the example")
        .groups
        .remove(0)
}

#[tokio::test]
async fn a_collective_group_is_installed_listed_and_removed() {
    let rule = example();
    let need = rule.reserved_bytes();
    let mut lab = lab(need as usize + 1000).await;
    let mut events = lab
        .client
        .watch_events(v1::WatchAgentEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        lab.install(&rule, "us").await.unwrap(),
        v1::InstallOutcome::Installed
    );
    assert_eq!(
        lab.install(&rule, "us").await.unwrap(),
        v1::InstallOutcome::Unchanged
    );
    assert_eq!(free(&mut lab).await, 1000);

    let list = lab
        .client
        .list_groups(v1::ListGroupsRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(list.groups.len(), 1);
    let group = &list.groups[0];
    assert_eq!(
        (group.owner.as_str(), group.rule.as_ref()),
        ("us", Some(&rule_to_proto(&rule)))
    );
    let status_of = |group: &v1::InstalledGroup| match &group.state {
        Some(State::Translated(state)) => state.clone(),
        other => panic!("{other:?}"),
    };
    let status = status_of(group);
    assert_eq!(
        (
            status.slots,
            status.slots_used,
            status.memory_bytes,
            status.failed
        ),
        (256, 0, need, false)
    );
    let names: Vec<&str> = status.endpoints.iter().map(|e| e.next_hop.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(status.endpoints[2].ranks, [2]);
    assert_eq!(status.endpoints[2].next_psn, Some(0));
    let counters = lab
        .client
        .get_counters(v1::GetCountersRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(counters.groups.len(), 1);
    assert_eq!(status_of(&counters.groups[0]).endpoints.len(), 3);

    // Refusals: another owner, an older generation, a second group without room, faults by their field.
    let field = |refused: Result<v1::InstallOutcome, Status>| {
        let status = refused.expect_err("a refusal");
        let field = violations(&status)
            .first()
            .map(|v| v.field.clone())
            .unwrap_or_default();
        (status.code(), field)
    };
    let newer = GroupRule {
        generation: 2,
        ..rule.clone()
    };
    assert_eq!(
        field(lab.install(&newer, "them").await),
        (Code::AlreadyExists, "rule.mcst_id".into())
    );
    let mut second = GroupRule {
        name: "other".into(),
        ..rule.clone()
    };
    second.mcst_id.0 = [10, 255, 1, 2].into();
    for endpoint in &mut second.endpoints {
        if let NextHop::Host(rank) = &mut endpoint.next_hop {
            rank.qpn = Qpn::new(rank.qpn.value() + 0x10);
        }
    }
    let refused = lab.install(&second, "us").await;
    assert!(
        refused.as_ref().is_err_and(|s| s.message().contains("1000 of")),
        "{refused:?}"
    );
    // It is slots that memory goes to: a controller can ask for fewer.
    assert_eq!(
        field(refused),
        (Code::ResourceExhausted, "rule.translated.slots".into())
    );
    let faulty = rule.clone().with_translated(|rule| rule.slots = 3);
    assert_eq!(
        field(lab.install(&faulty, "us").await),
        (Code::InvalidArgument, "rule.translated.slots".into())
    );
    let mut beyond = GroupRule {
        generation: 3,
        ..rule.clone()
    };
    beyond.endpoints[1].port = PortId::new(9).expect("a port");
    assert_eq!(
        field(lab.install(&beyond, "us").await),
        (Code::InvalidArgument, "rule.endpoints[1].port".into())
    );
    assert_eq!(
        lab.install(&newer, "us").await.unwrap(),
        v1::InstallOutcome::Replaced
    );

    let request = v1::RemoveGroupRequest {
        mcst_id: rule.mcst_id.to_string(),
        owner: Some("us".into()),
        generation: Some(2),
    };
    assert!(
        lab.client
            .remove_group(request)
            .await
            .unwrap()
            .into_inner()
            .removed
    );
    assert_eq!(free(&mut lab).await, need + 1000);
    let mut told = Vec::new();
    while told.last() != Some(&true) {
        let event = tokio::time::timeout(PATIENCE, events.message())
            .await
            .unwrap()
            .unwrap();
        if let Some(Event::Group(change)) = event.and_then(|e| e.event) {
            assert_eq!(change.group, "gradients");
            told.push(change.removed);
        }
    }
    assert_eq!(told, [false, false, true]);
}

#[tokio::test]
async fn a_rule_file_with_collective_groups_is_loaded() {
    let lab = lab(1 << 20).await;
    let rules = RuleSet::from_toml(COLLECTIVE_EXAMPLE).expect("the example");
    let dataplane = lab.dataplane.clone();
    let loaded = tokio::task::spawn_blocking(move || load_rules(&dataplane, &rules))
        .await
        .unwrap();
    assert!(loaded.is_ok(), "{loaded:?}");
    assert_eq!(lab.dataplane.rules(), [example()]);
}
