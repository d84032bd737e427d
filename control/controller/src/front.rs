//! What clients reach: the service of the controller while it leads, otherwise refusals.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use castnet_proto::term::not_leading;
use castnet_proto::v1::controller_server::ControllerServer;
use parking_lot::RwLock;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service as Answers, http};
use tonic::server::NamedService;

use crate::core::Shared;
use crate::error::Refusal;
use crate::service::Service;

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
        Box::pin(async move {
            let mut service = ControllerServer::new(Service {
                shared: shared.clone(),
            });
            tokio::select! {
                biased;
                answer = service.call(request) => answer,
                () = shared.stopped.cancelled() => Ok(Status::from(Refusal::Stopping).into_http()),
            }
        })
    }
}
