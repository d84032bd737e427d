//! What clients reach: the service of the controller while it leads, otherwise refusals.

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use castnet_proto::access::Caller;
use castnet_proto::term::{joined_at, not_leading};
use castnet_proto::v1::controller_server::ControllerServer;
use http_body_util::BodyExt;
use parking_lot::RwLock;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service as Answers, http};
use tonic::server::NamedService;
use tonic::{Response, Status};

use crate::error::Refusal;
use crate::shell::service::Service;
use crate::shell::shared::Shared;

#[derive(Clone)]
pub(crate) struct Front(Arc<RwLock<State>>);

enum State {
    Leads(Arc<Shared>),
    /// Why not, and the address of the controller that leads.
    Waits(String, Option<String>),
}

impl Front {
    pub(crate) fn new() -> Self {
        let state = State::Waits("the controller is starting".into(), None);
        Self(Arc::new(RwLock::new(state)))
    }

    pub(crate) fn lead(&self, shared: &Arc<Shared>) {
        *self.0.write() = State::Leads(shared.clone());
    }

    pub(crate) fn wait(&self, why: String, leader: Option<String>) {
        *self.0.write() = State::Waits(why, leader);
    }
}

/// What a call takes until its answer is sent.
#[derive(Clone)]
struct Held {
    _until_then: Arc<dyn Any + Send + Sync>,
}

/// An answer that keeps `what` until it is sent, or its client has gone.
pub(crate) fn held<T>(answer: T, what: impl Any + Send + Sync) -> Response<T> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(Held {
        _until_then: Arc::new(what),
    });
    response
}

fn hold(mut response: http::Response<Body>) -> http::Response<Body> {
    let Some(held) = response.extensions_mut().remove::<Held>() else {
        return response;
    };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _until_the_end = &held;
            frame
        }))
    })
}

impl NamedService for Front {
    const NAME: &'static str = <ControllerServer<Service> as NamedService>::NAME;
}

impl Answers<http::Request<Body>> for Front {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let shared = match &*self.0.read() {
            State::Leads(shared) => shared.clone(),
            State::Waits(why, leader) => {
                let refused = not_leading(why, leader.as_deref());
                return Box::pin(async move { Ok(refused.into_http()) });
            }
        };
        let known = joined_at(request.headers()).map_err(Refusal::from);
        let caller = request.extensions().get::<Arc<Caller>>();
        let asks = caller.map_or("", |caller| caller.identity());
        let known = known.and_then(|joined| match joined {
            Some(joined) => shared.check_joined(&joined, asks),
            None => Ok(()),
        });
        if let Err(refused) = known {
            return Box::pin(async move { Ok(Status::from(refused).into_http()) });
        }
        Box::pin(async move {
            let mut service = ControllerServer::new(Service {
                shared: shared.clone(),
            });
            tokio::select! {
                biased;
                answer = service.call(request) => answer.map(hold),
                () = shared.stopped.cancelled() => Ok(Status::from(Refusal::Stopping).into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use prost::bytes::Bytes;

    use super::*;

    #[test]
    fn what_an_answer_takes_is_held_until_its_body_is_gone() {
        let what = Arc::new(());
        let (_, _, extensions) = held((), what.clone()).into_parts();
        let mut response = http::Response::new(Body::new(Full::new(Bytes::from_static(b"answer"))));
        *response.extensions_mut() = extensions;
        let response = hold(response);
        assert_eq!(Arc::strong_count(&what), 2);
        drop(response);
        assert_eq!(Arc::strong_count(&what), 1);
    }
}
