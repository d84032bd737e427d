//! Who may what at a switch, over TLS.

#[path = "../../../../proto/tests/common/authority.rs"]
mod authority;

use std::path::Path;
use std::sync::Arc;

use authority::Authority;
use castnet_agent::Agent;
use castnet_proto::access::{Access, Roles};
use castnet_proto::term::WithTerm;
use castnet_proto::transport::{Address, connect};
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use castnet_worker::{Dataplane, DataplaneConfig};
use tonic::service::Interceptor;
use tonic::transport::Channel;
use tonic::{Code, Request};

async fn client(authority: &Authority, folder: &Path, agent: &Agent, name: &str) -> AgentClient<Channel> {
    let security = authority.issue(&folder.join(name), &[name]);
    AgentClient::new(connect(agent.address(), &security).await.unwrap())
}

fn with_term<T>(term: &v1::ControllerTerm, message: T) -> Request<T> {
    let (metadata, extensions, ()) = WithTerm::new(term).call(Request::new(())).unwrap().into_parts();
    Request::from_parts(metadata, extensions, message)
}

#[tokio::test]
async fn a_switch_takes_orders_of_its_controllers_and_operators_only() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = DataplaneConfig::new("leaf", Vec::new());
    let start = tokio::task::spawn_blocking(move || Dataplane::start(config));
    let dataplane = Arc::new(start.await.unwrap().unwrap());
    let authority = Authority::new();
    let listen: Address = "https://127.0.0.1:0".parse().unwrap();
    let own = authority.issue(&folder.join("own"), &["127.0.0.1"]);
    let refused = Agent::start(dataplane.clone(), &listen, &own).await.unwrap_err();
    assert!(refused.to_string().contains("nobody"), "{refused}");
    let roles = Roles {
        operators: vec!["ops".into()],
        controllers: vec!["c1".into()],
        read_only: vec!["grafana".into()],
    };
    let access = Arc::new(Access::new(roles, None));
    let agent = Agent::start_for(dataplane, &listen, &own, access).await.unwrap();

    let remove = || v1::RemoveGroupRequest {
        mcst_id: "10.200.0.1".into(),
        ..Default::default()
    };
    let route = || v1::RemoveRouteRequest {
        prefix: "239.200.0.1/32".into(),
        owner: Some("gone".into()),
    };
    let routes = || v1::SetRoutesRequest::default();
    let ports = || v1::ListPortsRequest::default();
    let term = v1::ControllerTerm {
        owner: "us".into(),
        epoch: u64::MAX,
        ..Default::default()
    };
    // Reads, removes groups and routes with a term and without one, sets routes, takes the term of a controller.
    for (name, may) in [
        ("ops", [true, true, true, true, true, true, true]),
        ("c1", [true, true, false, true, false, false, true]),
        ("grafana", [true, false, false, false, false, false, false]),
        ("h1", [false, false, false, false, false, false, false]),
    ] {
        let mut client = client(&authority, folder, &agent, name).await;
        let answers = [
            client.list_ports(ports()).await.map(drop),
            client.remove_group(with_term(&term, remove())).await.map(drop),
            client.remove_group(remove()).await.map(drop),
            client.remove_route(with_term(&term, route())).await.map(drop),
            client.remove_route(route()).await.map(drop),
            client.set_routes(routes()).await.map(drop),
            client
                .get_capabilities(with_term(&term, v1::GetCapabilitiesRequest {}))
                .await
                .map(drop),
        ];
        assert_eq!(answers.each_ref().map(|a| a.is_ok()), may, "{name}: {answers:?}");
        for status in answers.into_iter().filter_map(Result::err) {
            assert_eq!(status.code(), Code::PermissionDenied, "{status}");
            assert!(status.message().starts_with(&format!("{name} (")), "{status}");
        }
    }
}
