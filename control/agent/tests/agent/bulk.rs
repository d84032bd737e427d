//! Many rules in one call.

use castnet_proto::convert::{RULES_TOGETHER_MAX, install_result_from_proto, rule_to_proto, violations};
use castnet_proto::v1;
use castnet_rules::{Endpoint, GroupRule, NextHop};
use castnet_wire::{McstId, Qpn};
use tonic::{Code, Status};

use crate::agent::{Lab, assert_refused, mac, port, rule};

/// Another group of the same hosts.
pub(crate) fn numbered(n: u8) -> GroupRule {
    let mut rule = GroupRule {
        name: format!("g{n}"),
        mcst_id: McstId([10, 200, 0, n].into()),
        ..rule(1)
    };
    for endpoint in &mut rule.endpoints {
        if let NextHop::Host(host) = &mut endpoint.next_hop {
            host.qpn = Qpn::new(0x100 + u32::from(n));
        }
    }
    rule
}

/// Each has its own result, and those that are good are published together.
#[tokio::test]
async fn one_faulty_rule_of_many_holds_up_no_other() {
    let mut lab = Lab::new(|config| config.engine.groups_max = 4).await;
    lab.install(&numbered(1), "them").await.unwrap();
    let tables = lab.dataplane.generation();
    let no_port = GroupRule {
        endpoints: [
            &rule(1).endpoints[..2],
            &[Endpoint::new(port(7), NextHop::switch("x".into(), mac(9)))],
        ]
        .concat(),
        ..numbered(3)
    };
    let mut malformed = rule_to_proto(&numbered(4));
    malformed.mcst_id = "here".into();
    let rules = [
        numbered(1),
        numbered(2),
        no_port,
        numbered(5),
        numbered(2),
        numbered(6),
        numbered(7),
    ];
    let mut rules: Vec<_> = rules.iter().map(rule_to_proto).collect();
    rules.insert(3, malformed);
    let owner = "us".to_owned();
    let mut installing = v1::InstallGroupsRequest {
        rules,
        owner,
        stop_at_refusal: false,
    };
    let answer = lab.client.install_groups(installing.clone()).await;
    let answer = answer.unwrap().into_inner();
    let results = |answer: v1::InstallGroupsResponse| {
        let refused = |status: Status| (status.code(), violations(&status)[0].field.clone());
        let result = |result| install_result_from_proto(result).map_err(refused);
        answer.results.into_iter().map(result).collect::<Vec<_>>()
    };
    let refused = |code, field: &str| Err((code, field.to_owned()));
    assert_eq!(
        results(answer),
        [
            refused(Code::AlreadyExists, "rule.mcst_id"),
            Ok(v1::InstallOutcome::Installed),
            refused(Code::InvalidArgument, "rule.endpoints[2].port"),
            refused(Code::InvalidArgument, "rule.mcst_id"),
            Ok(v1::InstallOutcome::Installed),
            Ok(v1::InstallOutcome::Unchanged),
            Ok(v1::InstallOutcome::Installed),
            refused(Code::ResourceExhausted, "rule"),
        ]
    );
    assert_eq!(lab.dataplane.generation(), tables + 1);
    // The brief list has the same groups, without what workers would have to be asked for.
    let request = v1::ListGroupsRequest {
        brief: true,
        ..Default::default()
    };
    let listed = lab.client.list_groups(request).await.unwrap().into_inner();
    let heads = |groups: Vec<v1::InstalledGroup>| {
        let head = |g: v1::InstalledGroup| {
            let rule = g.rule.unwrap();
            (rule.mcst_id, rule.name, rule.generation, g.owner)
        };
        groups.into_iter().map(head).collect::<Vec<_>>()
    };
    assert!(listed.groups.iter().all(|g| g.state.is_none()));
    let heads_listed = heads(listed.groups);
    assert_eq!(heads_listed, heads(lab.groups().await));
    assert_eq!(heads_listed.len(), 4);
    assert_eq!(
        heads_listed[1],
        ("10.200.0.2".into(), "g2".into(), 1, "us".into())
    );
    // With `stop_at_refusal`, a group behind the first refusal is not replaced.
    installing.stop_at_refusal = true;
    installing.rules.swap(0, 1);
    installing.rules.truncate(2);
    let newer = GroupRule {
        generation: 2,
        ..numbered(5)
    };
    installing.rules.push(rule_to_proto(&newer));
    let answer = lab.client.install_groups(installing).await.unwrap().into_inner();
    assert_eq!(
        results(answer),
        [
            Ok(v1::InstallOutcome::Unchanged),
            refused(Code::AlreadyExists, "rule.mcst_id")
        ]
    );
    assert_eq!(heads_listed, heads(lab.groups().await));
}

#[tokio::test]
async fn more_rules_than_a_request_may_have_are_refused() {
    let mut lab = Lab::new(|_| {}).await;
    let request = v1::InstallGroupsRequest {
        rules: vec![v1::GroupRule::default(); RULES_TOGETHER_MAX + 1],
        ..Default::default()
    };
    let answer = lab.client.install_groups(request).await;
    assert_refused(answer, Code::InvalidArgument, "rules", "1025");
}
