//! Groups that forward, at the agent: installed from a rule file's text, refused with the field, listed and counted.

use castnet_proto::convert::violations;
use castnet_proto::v1;
use castnet_proto::v1::installed_group::State;
use castnet_rules::{FORWARDING_EXAMPLE, RuleSet};
use tonic::Code;

use crate::agent::Lab;

#[tokio::test]
async fn a_group_that_forwards_is_installed_listed_and_counted() {
    let rule = RuleSet::from_toml(FORWARDING_EXAMPLE)
        .expect("the example")
        .groups
        .remove(0);
    let mut lab = Lab::new(|_| {}).await;
    let installed = lab.install(&rule, "us").await.unwrap();
    assert_eq!(installed, v1::InstallOutcome::Installed);
    let list = lab.client.list_groups(v1::ListGroupsRequest::default()).await;
    let list = list.unwrap().into_inner().groups;
    let counters = lab.client.get_counters(v1::GetCountersRequest {}).await;
    let counted = counters.unwrap().into_inner().groups;
    let endpoint = |port, next_hop: &str| v1::ForwardingEndpoint {
        port,
        next_hop: next_hop.into(),
        frames_in: 0,
        frames_out: 0,
    };
    for groups in [list, counted] {
        let [group] = &groups[..] else {
            panic!("one group: {groups:?}")
        };
        let Some(State::Forwarding(state)) = &group.state else {
            panic!("{group:?}")
        };
        assert_eq!(state.endpoints, [endpoint(0, "a"), endpoint(1, "b")]);
        assert_eq!((state.forwarded, state.dropped), (0, 0));
    }
    let mut worse = rule.clone();
    worse.generation += 1;
    let mut third = worse.endpoints[1].clone();
    third.port = castnet_wire::PortId::new(2).unwrap();
    if let castnet_rules::NextHop::Host(host) = &mut third.next_hop {
        (host.name, host.ip) = ("c".into(), [10, 0, 0, 3].into());
    }
    worse.endpoints.push(third);
    let refused = lab.install(&worse, "us").await.unwrap_err();
    let told: Vec<_> = violations(&refused).into_iter().map(|v| v.field).collect();
    assert_eq!(
        (refused.code(), told),
        (Code::InvalidArgument, vec!["rule.endpoints".into()])
    );
}
