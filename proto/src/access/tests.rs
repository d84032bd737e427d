use http_body::Frame;
use tonic::codegen::Bytes;

use super::*;

fn peer(names: Option<&[&str]>) -> Arc<Peer> {
    Arc::new(Peer {
        address: "192.0.2.1:7".into(),
        names: names.map(|names| names.iter().map(|n| n.to_string()).collect()),
    })
}

#[test]
fn a_certificate_is_a_hosts_unless_it_is_listed() {
    let roles = Roles {
        operators: vec!["Ops.example".into()],
        controllers: vec!["c1".into()],
        read_only: vec!["grafana".into(), "c1".into()],
    };
    let cases: [(Option<&[&str]>, Role, &str); 8] = [
        (None, Role::Operator, "192.0.2.1"),
        (Some(&["h1", "ops.example"]), Role::Operator, "ops.example"),
        (Some(&["c1", "h1", "ops.example"]), Role::Operator, "ops.example"),
        (Some(&["c1"]), Role::Controller, "c1"),
        (Some(&["grafana"]), Role::ReadOnly, "grafana"),
        (Some(&["h1", "grafana"]), Role::ReadOnly, "grafana"),
        (Some(&["h1", "h2"]), Role::Host, "h1"),
        (Some(&[]), Role::Host, "a certificate without a DNS name"),
    ];
    for (names, role, identity) in cases {
        assert_eq!(roles.of(&peer(names)), role, "{names:?}");
        assert_eq!(roles.caller(peer(names)).identity(), identity, "{names:?}");
    }
}

#[test]
fn roles_change_for_later_calls_but_never_to_nobody() {
    let roles = |operator: &str| Roles {
        operators: vec![operator.into()],
        ..Roles::default()
    };
    let access = Access::new(roles("ops"), None);
    let of = |name: &str| access.roles.borrow().of(&peer(Some(&[name])));
    let (tls, plain): (Address, Address) = (
        "https://127.0.0.1:1".parse().expect("an address"),
        "unix:/run/s".parse().expect("an address"),
    );
    assert!(access.set_roles(&tls, Roles::default()).is_err());
    assert_eq!((of("ops"), of("new")), (Role::Operator, Role::Host));
    assert!(access.set_roles(&tls, roles("new")).is_ok());
    assert_eq!((of("ops"), of("new")), (Role::Host, Role::Operator));
    // Without TLS nobody has a certificate.
    assert!(access.set_roles(&plain, Roles::default()).is_ok());
}

/// A stream of a client ends with the first roles that give it another one.
#[tokio::test]
async fn a_running_answer_ends_with_the_role_of_its_client() {
    use http_body_util::{BodyExt, StreamBody};
    let with = |read_only: &[&str]| Roles {
        operators: vec!["ops".into()],
        read_only: read_only.iter().map(ToString::to_string).collect(),
        ..Roles::default()
    };
    let tls = "https://127.0.0.1:1".parse().expect("an address");
    let access = Arc::new(Access::new(with(&["grafana"]), None));
    let (send, frames) = tokio::sync::mpsc::unbounded_channel::<Result<Frame<Bytes>, Status>>();
    let caller = Arc::new(Caller::new(peer(Some(&["grafana"])), Role::ReadOnly));
    let own = access.clone();
    let frames = tokio_stream::wrappers::UnboundedReceiverStream::new(frames);
    let body = Body::new(StreamBody::new(frames));
    let revoked = Box::pin(async move { own.role_changes(caller).await });
    let mut answer = Answer::new(body, revoked, None, None);
    let say = |text: &'static str| {
        send.send(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))
            .is_ok()
    };
    for roles in [with(&["grafana"]), with(&["other", "Grafana"])] {
        access.set_roles(&tls, roles).expect("operators");
        assert!(say("more"));
        let frame = answer.frame().await.expect("a frame").expect("no error");
        assert_eq!(frame.into_data().expect("data"), "more");
    }
    access.set_roles(&tls, with(&[])).expect("operators");
    assert!(say("secret"));
    let frame = answer.frame().await.expect("a frame").expect("no error");
    let status = Status::from_header_map(&frame.into_trailers().expect("the end")).expect("a status");
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(
        status.message(),
        "grafana (read-only, from 192.0.2.1:7) is host now: call again"
    );
    assert!(answer.frame().await.is_none() && http_body::Body::is_end_stream(&answer));
    assert!(!say("nobody listens"));
}

/// Answers once the request is there, with a body that has not ended.
#[derive(Clone)]
struct Answers;

impl Service<http::Request<Body>> for Answers {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async {
            if let Err(status) = http_body_util::BodyExt::collect(request.into_body()).await {
                return Ok(status.into_http());
            }
            let body = tokio_stream::pending::<Result<Frame<Bytes>, Status>>();
            let body = Body::new(http_body_util::StreamBody::new(body));
            Ok(http::Response::new(body))
        })
    }
}

#[tokio::test]
async fn calls_of_a_certificate_that_have_not_ended_are_limited() {
    let roles = Roles {
        read_only: vec!["a".into()],
        ..Roles::default()
    };
    let access = Arc::new(Access::new(roles, None));
    let guarded = guard(&access, |_| Some(Right::Reach), Answers);
    let names = vec!["a".to_owned()];
    let others: Vec<_> = (2..CALLS_OF_READER_MAX)
        .map(|_| access.calls.take(&names, CALLS_OF_READER_MAX))
        .collect();
    assert!(others.iter().all(Option::is_some));
    let call = |names: Option<&[&str]>| {
        let mut request = http::Request::new(Body::default());
        *request.uri_mut() = http::Uri::from_static("/castnet.v1.Service/Look");
        request.extensions_mut().insert(peer(names));
        guarded.clone().call(request)
    };
    let code = |answer: &http::Response<Body>| Status::from_header_map(answer.headers()).map(|s| s.code());
    let answer = call(Some(&["a"])).await.expect("infallible");
    let not_whole = call(Some(&["a"]));
    let refused = call(Some(&["a"])).await.expect("infallible");
    assert_eq!(
        (code(&answer), code(&refused)),
        (None, Some(Code::ResourceExhausted))
    );
    // Others, and those without a certificate, are not concerned.
    for names in [Some(&["b"][..]), None, None, None] {
        assert_eq!(code(&call(names).await.expect("infallible")), None);
    }
    drop(not_whole);
    let second = call(Some(&["a"])).await.expect("infallible");
    assert_eq!(code(&second), None);
    assert!(code(&call(Some(&["a"])).await.expect("infallible")).is_some());
    drop(answer);
    assert_eq!(code(&call(Some(&["a"])).await.expect("infallible")), None);
    // A host has more.
    let host = ["b".to_owned()];
    let many: Vec<_> = (0..CALLS_MAX)
        .map(|_| access.calls.take(&host, CALLS_MAX))
        .collect();
    assert!(many.iter().all(Option::is_some));
    assert!(code(&call(Some(&["b"])).await.expect("infallible")).is_some());
}

/// Its work runs on when it is dropped.
#[derive(Clone)]
struct Works(tokio::sync::mpsc::UnboundedSender<RunningCall>);

impl Service<http::Request<Body>> for Works {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let work = self.0.clone();
        Box::pin(async move {
            let _ = work.send(RunningCall::current());
            std::future::pending().await
        })
    }
}

#[tokio::test]
async fn work_that_outlives_its_call_counts_as_a_call() {
    let access = Arc::new(Access::default());
    let (work, mut running) = tokio::sync::mpsc::unbounded_channel();
    let mut guarded = guard(&access, |_| Some(Right::Reach), Works(work));
    let mut request = http::Request::new(Body::default());
    *request.uri_mut() = http::Uri::from_static("/castnet.v1.Service/Look");
    request.extensions_mut().insert(peer(Some(&["h1"])));
    let mut call = guarded.call(request);
    let works = tokio::select! {
        _ = &mut call => panic!("it has ended"),
        works = running.recv() => works.expect("it works"),
    };
    drop(call);
    let running = access.calls.none(&["h1".to_owned()]);
    assert_eq!(running.of_all(), 1);
    drop(works);
    assert_eq!(running.of_all(), 0);
}

#[tokio::test]
async fn who_takes_no_answers_gets_no_more() {
    let roles = Roles {
        operators: vec!["ops".into()],
        ..Roles::default()
    };
    let access = Arc::new(Access::new(roles, None));
    let guarded = guard(&access, |_| Some(Right::Reach), Answers);
    let call = |name| {
        let mut request = http::Request::new(Body::default());
        *request.uri_mut() = http::Uri::from_static("/castnet.v1.Service/Look");
        request.extensions_mut().insert(peer(Some(&[name])));
        let called = guarded.clone().call(request);
        async { Status::from_header_map(called.await.expect("infallible").headers()).map(|s| s.code()) }
    };
    let mut unread = access.answers.none(&["h9".to_owned()]);
    assert!(unread.set(ANSWERS_MAX - 1, usize::MAX));
    let (kept, begun) = (call("h9").await, call("h9"));
    assert!(unread.set(ANSWERS_MAX, usize::MAX));
    let full = Some(Code::ResourceExhausted);
    assert_eq!((kept, begun.await, call("h9").await), (None, full, full));
    assert_eq!((call("h8").await, call("ops").await), (None, None));
    drop(unread);
    assert_eq!(call("h9").await, None);
}

#[tokio::test]
async fn requests_of_hosts_are_bounded_and_not_of_operators() {
    let roles = Roles {
        operators: vec!["ops".into()],
        ..Roles::default()
    };
    let mut guarded = guard(
        &Arc::new(Access::new(roles, None)),
        |_| Some(Right::Reach),
        Answers,
    );
    for (name, code) in [("h1", Some(Code::ResourceExhausted)), ("ops", None)] {
        let body = http_body_util::Full::new(Bytes::from(vec![7; crate::bounded::REQUEST_MAX + 1]));
        let mut request = http::Request::new(Body::new(body));
        *request.uri_mut() = http::Uri::from_static("/castnet.v1.Service/Look");
        request.extensions_mut().insert(peer(Some(&[name])));
        let answer = guarded.call(request).await.expect("infallible");
        assert_eq!(
            Status::from_header_map(answer.headers()).map(|s| s.code()),
            code,
            "{name}"
        );
    }
}

#[test]
fn a_host_is_itself_and_a_refusal_says_who_and_what() {
    let caller = |names, role| Caller::new(peer(names), role);
    let host = caller(Some(&["h1", "h1.example"]), Role::Host);
    assert!(host.may_be("h1") && host.may_be("H1.example") && !host.may_be("h2"));
    assert!(caller(None, Role::Operator).may_be("h2"));
    assert!(!caller(Some(&["h1"]), Role::ReadOnly).may_be("h1"));
    assert!(!caller(Some(&[]), Role::Host).may_be(""));
    let denied = host.check_host("h2", "join").unwrap_err().to_string();
    let expected = "h1 (host, from 192.0.2.1:7) may not join as host \"h2\": a host acts as itself alone";
    assert!(denied.starts_with(expected), "{denied}");
}

/// Refuses each call with what it was sent.
#[derive(Clone)]
struct Refuses;

impl Service<http::Request<Body>> for Refuses {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let refused = crate::convert::refuse(Code::NotFound, "group", "x".repeat(100_000));
        Box::pin(ready(Ok(refused.into_http())))
    }
}

/// A host asked for a group with a name of 128 KiB in 4096 calls of a connection, and took no answer: each had the name, in message and details.
#[tokio::test]
async fn a_refusal_of_a_host_is_short() {
    let roles = Roles {
        operators: vec!["ops".into()],
        ..Roles::default()
    };
    let access = Arc::new(Access::new(roles, None));
    let rights = |method: &str| (method == "Look").then_some(Right::Reach);
    let guarded = guard(&access, rights, Refuses);
    let call = |name: &str, method: &str| {
        let mut request = http::Request::new(Body::default());
        let path = format!("/castnet.v1.Service/{method}");
        *request.uri_mut() = path.parse().expect("a path");
        request.extensions_mut().insert(peer(Some(&[name])));
        let called = guarded.clone().call(request);
        async {
            let answer = called.await.expect("infallible");
            let bytes: usize = answer.headers().values().map(http::HeaderValue::len).sum();
            let code = Status::from_header_map(answer.headers()).map(|s| s.code());
            (code, bytes <= REFUSAL_MAX)
        }
    };
    assert_eq!(call("h1", "Look").await, (Some(Code::NotFound), true));
    assert_eq!(call("ops", "Look").await, (Some(Code::NotFound), false));
    let unknown = call("h1", &"y".repeat(10_000)).await;
    assert_eq!(unknown, (Some(Code::Unimplemented), true));
}
