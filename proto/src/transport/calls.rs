//! Calls to the controller, also from threads that never cross an async boundary.

use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::term::JoinedAt;
use crate::v1::controller_client;

/// Delay before a failed call is repeated.
pub const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Time after which an outage is logged.
const OUTAGE_SAID: Duration = Duration::from_secs(10);
/// Largest accepted response. The counters of 100,000 groups exceed the default of gRPC, 4 MiB.
pub const ANSWER_BYTES_MAX: usize = 1 << 30;

/// Client of the controller. The calls of a member say where it has joined.
pub type ControllerClient = controller_client::ControllerClient<InterceptedService<Channel, JoinedAt>>;

/// A time in which all calls fail. It is logged once, after 10 s.
#[derive(Debug)]
pub struct Outage {
    since: Instant,
    is_said: bool,
}

impl Outage {
    /// It begins now.
    pub fn begin() -> Self {
        Self {
            since: Instant::now(),
            is_said: false,
        }
    }

    /// A further call has failed. Returns whether to log it.
    pub fn lasts(&mut self) -> bool {
        let says = !self.is_said && self.since.elapsed() >= OUTAGE_SAID;
        self.is_said |= says;
        says
    }
}

/// Repeats `call` for `patience` while it fails with a transient error.
pub async fn retry<T, E: Display, F: Future<Output = Result<T, E>>>(
    patience: Duration,
    is_transient: fn(&E) -> bool,
    call: impl Fn() -> F,
) -> Result<T, E> {
    let start = Instant::now();
    loop {
        match call().await {
            Err(error) if is_transient(&error) && start.elapsed() < patience => {
                tracing::debug!(%error, "trying again");
                tokio::time::sleep(RETRY_DELAY).await;
            }
            result => return result,
        }
    }
}

/// A thread that runs calls beside a thread without async code. Dropping it cancels them.
#[derive(Debug)]
pub struct CallThread {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl CallThread {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// Starts a call.
    pub fn spawn<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> Call<T> {
        Call(self.handle.spawn(call))
    }
}

impl Drop for CallThread {
    fn drop(&mut self) {
        match self.runtime.take() {
            // An async task may not block.
            Some(runtime) if Handle::try_current().is_ok() => runtime.shutdown_background(),
            runtime => drop(runtime),
        }
    }
}

/// A running call. Dropping it cancels the call.
#[derive(Debug)]
pub struct Call<T>(JoinHandle<T>);

impl<T> Call<T> {
    /// Returns true if the call has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// The result, once; `None` while the call runs. Panics if the call has panicked.
    pub fn poll(&mut self) -> Option<T> {
        match Pin::new(&mut self.0).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(result)) => Some(result),
            Poll::Ready(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            Poll::Pending => None,
        }
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
