//! Routes: an operator's, and those to multicast addresses that controllers set.

use castnet_proto::v1;
use tonic::Code;

use crate::agent::{Lab, assert_refused, mac};
use crate::terms::controller_of;

#[tokio::test]
async fn routes_are_added_replaced_and_removed() {
    let mut lab = Lab::new(|_| {}).await;
    let route = |prefix: &str, at: u32| v1::Route {
        prefix: prefix.into(),
        next_hops: vec![v1::RouteHop {
            port: at,
            mac: mac(9).to_string(),
        }],
        ..Default::default()
    };
    let routes = vec![route("10.1.0.0/16", 0), route("10.2.0.0/16", 1)];
    lab.client
        .set_routes(v1::SetRoutesRequest {
            routes: routes.clone(),
        })
        .await
        .unwrap();
    let added = lab
        .client
        .add_route(v1::AddRouteRequest {
            route: Some(route("10.2.0.0/16", 2)),
        })
        .await
        .unwrap();
    assert!(added.into_inner().replaced);
    let bad = lab
        .client
        .add_route(v1::AddRouteRequest {
            route: Some(route("10.2.0.0/16", 64)),
        })
        .await;
    assert_refused(bad, Code::InvalidArgument, "route.next_hops[0].port", "64");
    let beyond = lab
        .client
        .add_route(v1::AddRouteRequest {
            route: Some(route("10.3.0.0/16", 5)),
        })
        .await;
    assert_refused(beyond, Code::InvalidArgument, "route.next_hops[0].port", "5");
    let removal = v1::RemoveRouteRequest {
        prefix: "10.1.0.0/16".into(),
        owner: None,
    };
    assert!(
        lab.client
            .remove_route(removal.clone())
            .await
            .unwrap()
            .into_inner()
            .removed
    );
    assert!(
        !lab.client
            .remove_route(removal)
            .await
            .unwrap()
            .into_inner()
            .removed
    );
    let left = lab
        .client
        .list_routes(v1::ListRoutesRequest {})
        .await
        .unwrap()
        .into_inner()
        .routes;
    assert_eq!(left, [route("10.2.0.0/16", 2)]);
}

/// What controllers may set of routes: those to multicast addresses, within a scope, of which they give all.
#[tokio::test]
async fn multicast_routes_are_set_within_their_scope_alone() {
    let mut lab = Lab::new(|_| {}).await;
    let route = |prefix: &str, copy_to: &[&str]| v1::Route {
        prefix: prefix.into(),
        next_hops: match copy_to {
            [] => vec![v1::RouteHop {
                port: 1,
                mac: mac(9).to_string(),
            }],
            _ => Vec::new(),
        },
        replicate: prefix.starts_with("239.1."),
        copy_to: copy_to.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let operators = [route("10.1.0.0/16", &[]), route("239.7.0.0/16", &[])];
    for own in &operators {
        let request = v1::AddRouteRequest {
            route: Some(own.clone()),
        };
        lab.client.add_route(request).await.unwrap();
    }
    let request = |scope: &[&str], routes: &[v1::Route]| v1::SetMulticastRoutesRequest {
        scope: scope.iter().map(ToString::to_string).collect(),
        routes: routes.to_vec(),
    };
    let (pod, group) = (
        route("239.1.0.4/32", &[]),
        route("239.200.0.1/32", &["239.1.0.4", "10.1.0.7"]),
    );
    let both = ["239.1.0.0/16", "239.200.0.0/16"];
    for (scope, routes, expected, has) in [
        (&both[..], vec![pod.clone(), group.clone()], (2, 0), 4),
        (&both[..], vec![pod.clone(), group.clone()], (0, 0), 4),
        (&both[1..], vec![], (0, 1), 3),
        (&["239.1.0.4/32"][..], vec![], (0, 1), 2),
        (&both[..], vec![], (0, 0), 2),
    ] {
        let done = lab
            .client
            .set_multicast_routes(request(scope, &routes))
            .await
            .unwrap();
        let done = done.into_inner();
        assert_eq!((done.added, done.removed), expected);
        let listed = lab.client.list_routes(v1::ListRoutesRequest {}).await.unwrap();
        assert_eq!(listed.into_inner().routes.len(), has);
    }
    for (scope, routes, field, says) in [
        (&["10.0.0.0/8"][..], vec![], "scope[0]", "10.0.0.0/8"),
        (&["239"][..], vec![], "scope[0]", "239"),
        (
            &both[1..],
            vec![pod.clone()],
            "routes[0].prefix",
            "outside of the scope",
        ),
        (
            &both[..],
            vec![route("239.200.0.0/24", &["10.1.0.7"])],
            "routes[0].copy_to",
            "one multicast address",
        ),
        (
            &both[..],
            vec![route("239.200.0.1/32", &["10.1.0.7", "10.1.0.7"])],
            "routes[0].copy_to[1]",
            "there twice",
        ),
        (
            &both[..],
            vec![route("239.200.0.1/32", &["239.200.0.1"])],
            "routes[0].copy_to[0]",
            "route itself",
        ),
        (
            &both[..],
            vec![route("239.200.0.1/32", &["here"])],
            "routes[0].copy_to[0]",
            "here",
        ),
        (
            &both[..],
            vec![v1::Route {
                replicate: true,
                ..group.clone()
            }],
            "routes[0].copy_to",
            "no next hops",
        ),
    ] {
        let bad = lab.client.set_multicast_routes(request(scope, &routes)).await;
        assert_refused(bad, Code::InvalidArgument, field, says);
    }
    let listed = lab.client.list_routes(v1::ListRoutesRequest {}).await.unwrap();
    assert_eq!(listed.into_inner().routes, operators);
}

/// Two controllers on one programmable router took each other's routes.
#[tokio::test]
async fn controllers_leave_the_routes_of_each_other() {
    let mut lab = Lab::new(|_| {}).await;
    let (mut a, mut b) = (
        controller_of(&lab, "a", 1, 1).await,
        controller_of(&lab, "b", 1, 2).await,
    );
    let route = |last: u8| v1::Route {
        prefix: format!("239.200.0.{last}/32"),
        copy_to: vec!["10.1.0.7".into()],
        ..Default::default()
    };
    let request = |routes: &[u8]| v1::SetMulticastRoutesRequest {
        scope: vec!["239.200.0.0/16".into()],
        routes: routes.iter().map(|last| route(*last)).collect(),
    };
    let there = async |lab: &mut Lab| {
        let listed = lab.client.list_routes(v1::ListRoutesRequest {}).await.unwrap();
        let routes = listed.into_inner().routes.into_iter();
        routes
            .map(|route| (route.prefix, route.owner))
            .collect::<Vec<_>>()
    };
    let named = |all: &[(u8, &str)]| -> Vec<(String, String)> {
        let each = all.iter();
        each.map(|(last, owner)| (format!("239.200.0.{last}/32"), (*owner).to_owned()))
            .collect()
    };
    a.set_multicast_routes(request(&[1, 2])).await.unwrap();
    b.set_multicast_routes(request(&[3])).await.unwrap();
    assert_eq!(there(&mut lab).await, named(&[(1, "a"), (2, "a"), (3, "b")]));
    let taken = b.set_multicast_routes(request(&[2, 3])).await;
    assert_refused(taken, Code::AlreadyExists, "routes", "239.200.0.2/32 is of a");
    a.set_multicast_routes(request(&[2])).await.unwrap();
    assert_eq!(there(&mut lab).await, named(&[(2, "a"), (3, "b")]));
    // A purge names the owner. Without that each removes its own.
    let removal = |last: u8, owner: Option<&str>| v1::RemoveRouteRequest {
        prefix: format!("239.200.0.{last}/32"),
        owner: owner.map(Into::into),
    };
    for owner in [None, Some("b"), Some("")] {
        let kept = b.remove_route(removal(2, owner)).await;
        assert_refused(
            kept,
            Code::FailedPrecondition,
            "owner",
            "is of \"a\", not of \"b\"",
        );
    }
    let kept = lab.client.remove_route(removal(2, Some("b"))).await;
    assert_refused(
        kept,
        Code::FailedPrecondition,
        "owner",
        "is of \"a\", not of \"b\"",
    );
    for (last, owner, expected) in [(2, Some("a"), true), (2, Some("a"), false), (3, None, true)] {
        let done = b.remove_route(removal(last, owner)).await.unwrap();
        assert_eq!(done.into_inner().removed, expected);
    }
    a.set_multicast_routes(request(&[2])).await.unwrap();
    b.set_multicast_routes(request(&[3])).await.unwrap();
    // An operator decides.
    let own = v1::AddRouteRequest {
        route: Some(route(2)),
    };
    lab.client.add_route(own).await.unwrap();
    assert_eq!(there(&mut lab).await, named(&[(2, ""), (3, "b")]));
    for owner in [None, Some("a"), Some("")] {
        let kept = a.remove_route(removal(2, owner)).await;
        assert_refused(
            kept,
            Code::FailedPrecondition,
            "owner",
            "is of an operator, not of \"a\"",
        );
    }
    b.set_multicast_routes(request(&[])).await.unwrap();
    assert_eq!(there(&mut lab).await, []);
}

/// The sources that hosts may not have are checked, replaced as a whole, and said to the dataplane.
#[tokio::test]
async fn the_source_guard_names_what_is_wrong_and_is_replaced_as_a_whole() {
    let mut lab = Lab::new(|_| {}).await;
    let request = |port, ip: &str, prefix: &str| v1::SetSourceGuardRequest {
        hosts: vec![v1::HostPort { port, ip: ip.into() }],
        prefixes: vec![prefix.into()],
    };
    for (port, ip, prefix, field, says) in [
        (64, "10.0.0.1", "10.201.0.0/24", "hosts[0].port", "64"),
        (0, "10.0.0", "10.201.0.0/24", "hosts[0].ip", "10.0.0"),
        (0, "10.0.0.1", "10.201.0.0/33", "prefixes[0]", "10.201.0.0/33"),
    ] {
        let bad = lab.client.set_source_guard(request(port, ip, prefix)).await;
        assert_refused(bad, Code::InvalidArgument, field, says);
    }
    for guard in [request(0, "10.0.0.1", "10.201.0.0/24"), Default::default()] {
        lab.client.set_source_guard(guard).await.unwrap();
    }
}
