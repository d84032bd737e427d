//! Controllers that have been replaced change nothing.

use castnet_proto::convert::rule_to_proto;
use castnet_proto::term::{WithTerm, is_term_over};
use castnet_proto::transport::{Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use tonic::Request;
use tonic::metadata::BinaryMetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::agent::{Lab, rule};

type Client = AgentClient<InterceptedService<Channel, WithTerm>>;

async fn controller(lab: &Lab, epoch: u64, instance: u64) -> Client {
    controller_of(lab, "us", epoch, instance).await
}

pub(crate) async fn controller_of(lab: &Lab, owner: &str, epoch: u64, instance: u64) -> Client {
    let term = v1::ControllerTerm {
        owner: owner.into(),
        epoch,
        instance,
        address: format!("http://c{instance}:7470"),
        in_memory: false,
    };
    let channel = connect(lab.address(), &Security::default()).await.unwrap();
    AgentClient::with_interceptor(channel, WithTerm::new(&term))
}

fn installation() -> v1::InstallGroupsRequest {
    v1::InstallGroupsRequest {
        rules: vec![rule_to_proto(&rule(1))],
        owner: "us".into(),
        ..Default::default()
    }
}

/// All calls that change groups are refused, and the groups stay as they are; reads go on. A new controller that has only
/// connected has taken over already.
#[tokio::test]
async fn a_controller_of_an_older_epoch_or_on_a_copy_of_the_store_changes_nothing() {
    let mut lab = Lab::new(|_| ()).await;
    let mut old = controller(&lab, 1, 1).await;
    old.install_groups(installation()).await.unwrap();
    let mut new = controller(&lab, 2, 2).await;
    new.get_capabilities(v1::GetCapabilitiesRequest {}).await.unwrap();
    for (mut late, why) in [
        (old, "http://c2:7470 has taken over"),
        (controller(&lab, 2, 3).await, "a copy"),
    ] {
        let remove = v1::RemoveGroupRequest {
            mcst_id: "10.200.0.1".into(),
            owner: Some("us".into()),
            generation: None,
        };
        let install = v1::InstallGroupRequest {
            rule: Some(rule_to_proto(&rule(2))),
            owner: "us".into(),
        };
        let refused = [
            late.get_capabilities(v1::GetCapabilitiesRequest {})
                .await
                .map(drop),
            late.install_group(install).await.map(drop),
            late.install_groups(installation()).await.map(drop),
            late.remove_group(remove).await.map(drop),
        ];
        for refused in refused {
            let status = refused.unwrap_err();
            assert!(
                is_term_over(&status) && status.message().contains(why),
                "{status}"
            );
        }
        late.list_groups(v1::ListGroupsRequest::default()).await.unwrap();
    }
    assert_eq!(lab.groups().await.len(), 1);
    new.install_groups(installation()).await.unwrap();
}

#[tokio::test]
async fn a_term_that_does_not_read_is_refused() {
    let mut lab = Lab::new(|_| ()).await;
    let mut request = Request::new(v1::GetCapabilitiesRequest {});
    let bad = BinaryMetadataValue::from_bytes(&[0xFF]);
    request.metadata_mut().insert_bin("castnet-term-bin", bad);
    let refused = lab.client.get_capabilities(request).await.unwrap_err();
    assert!(refused.message().starts_with("castnet-term-bin: "), "{refused}");
}

/// Owner "them" neither removes the groups of "us" without a word, nor installs for them.
#[tokio::test]
async fn a_controller_touches_the_groups_of_its_owner_only() {
    let mut lab = Lab::new(|_| ()).await;
    let mut ours = controller_of(&lab, "us", 1, 1).await;
    let mut theirs = controller_of(&lab, "them", 1, 2).await;
    ours.install_groups(installation()).await.unwrap();
    let refused = theirs.install_groups(installation()).await.unwrap_err();
    assert!(
        refused
            .message()
            .contains("the controller of \"them\" installs no groups of \"us\""),
        "{refused}"
    );
    let remove = || v1::RemoveGroupRequest {
        mcst_id: "10.200.0.1".into(),
        ..Default::default()
    };
    let refused = theirs.remove_group(remove()).await.unwrap_err();
    assert!(
        refused.message().contains("is of \"us\", not of \"them\""),
        "{refused}"
    );
    assert_eq!(lab.groups().await.len(), 1);
    assert!(ours.remove_group(remove()).await.unwrap().into_inner().removed);
}
