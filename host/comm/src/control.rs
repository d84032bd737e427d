//! The connection to the controller: a thread with its own small runtime. It holds the group's lease (the stream of
//! InitGroup) as long as the rank is in the group. The rank's thread never crosses an async boundary.

use std::pin::Pin;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use castnet_proto::transport::{Address, Security, connect};
use castnet_proto::v1 as api;
use castnet_rules::LANES_MAX;
use tokio::sync::mpsc;
use tonic::Code;
use tonic::transport::Channel;

use crate::error::ControllerError;

type Client = api::controller_client::ControllerClient<Channel>;

/// Delay before a request to an unreachable controller is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Large enough for the blobs of a thousand ranks.
const ANSWER_BYTES_MAX: usize = 1 << 28;

/// The state of the lease, as shared with the rank's thread.
#[derive(Debug, Default)]
pub(crate) struct Lease(Mutex<LeaseState>);

#[derive(Debug, Default)]
struct LeaseState {
    state: Option<Arc<api::CollectiveState>>,
    error: Option<ControllerError>,
}

impl Lease {
    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> Option<Arc<api::CollectiveState>> {
        self.lock().state.clone()
    }

    /// The error that ended the stream. Returned once.
    pub(crate) fn take_error(&self) -> Option<ControllerError> {
        self.lock().error.take()
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Command {
    Join(Box<api::InitGroupRequest>, Arc<Lease>, Duration),
    Leave,
    Request(Box<dyn FnOnce(Dial) -> Work + Send>),
}

pub(crate) struct Answer<T>(Receiver<Result<T, ControllerError>>);

impl<T> Answer<T> {
    pub(crate) fn poll(&self) -> Option<Result<T, ControllerError>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(ControllerError::Ended)),
        }
    }
}

/// The connection. Dropping it ends the lease.
pub(crate) struct Control {
    commands: Option<mpsc::UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts the thread. It connects with the first request.
    pub(crate) fn start(address: Address, security: Security) -> Result<Self, ControllerError> {
        let (commands, commands_received) = mpsc::unbounded_channel();
        let failed = |e: std::io::Error| ControllerError::Invalid { what: e.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("castnet-comm".into())
            .spawn(move || runtime.block_on(serve(Dial { address, security }, commands_received)))
            .map_err(failed)?;
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    fn send(&self, command: Command) {
        // Where the thread has ended, `Answer::poll` returns an error.
        let _ = self.commands.as_ref().map(|c| c.send(command));
    }

    /// Joins a group and holds its lease. Retries for `patience` while the controller is unreachable.
    pub(crate) fn join(&self, request: api::InitGroupRequest, patience: Duration) -> Arc<Lease> {
        let lease = Arc::new(Lease::default());
        self.send(Command::Join(Box::new(request), lease.clone(), patience));
        lease
    }

    pub(crate) fn leave(&self) {
        self.send(Command::Leave);
    }

    fn request<T, F>(&self, request: impl FnOnce(Dial) -> F + Send + 'static) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ControllerError>> + Send + 'static,
    {
        let (reply, answer) = sync_channel(1);
        self.send(Command::Request(Box::new(|dial| {
            let request = request(dial);
            // The receiver is gone if the rank has given up.
            Box::pin(async move { drop(reply.send(request.await)) })
        })));
        Answer(answer)
    }

    /// Sends a blob to all ranks and returns the blobs of all.
    pub(crate) fn exchange(&self, request: api::ExchangeRequest, patience: Duration) -> Answer<Vec<Vec<u8>>> {
        self.request(move |dial| async move {
            let exchange = || {
                let (dial, request) = (dial.clone(), request.clone());
                async move { Ok(dial.client().await?.exchange(request).await?) }
            };
            Ok(retry(patience, exchange).await?.into_inner().blobs)
        })
    }

    /// Returns the number of lanes of a collective group; 1 where it does not exist yet.
    pub(crate) fn lanes(&self, group: String, patience: Duration) -> Answer<u8> {
        self.request(move |dial| async move {
            let lanes = || {
                let (dial, group) = (dial.clone(), group.clone());
                async move {
                    let request = api::GetGroupRequest { group };
                    let answer = match dial.client().await?.get_group(request).await {
                        Err(status) if status.code() == Code::NotFound => return Ok(1),
                        answer => answer?.into_inner(),
                    };
                    let state = answer.collective.and_then(|c| c.state);
                    Ok(state.map_or(1, |s| s.lanes.len().clamp(1, LANES_MAX.into()) as u8))
                }
            };
            retry(patience, lanes).await
        })
    }

    pub(crate) fn destroy(&self, group: String) -> Answer<()> {
        self.request(|dial| async move {
            let request = api::DestroyGroupRequest { group };
            match dial.client().await?.destroy_group(request).await {
                Err(status) if status.code() != Code::NotFound => Err(status.into()),
                _ => Ok(()),
            }
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that calls the controller has panicked");
        }
    }
}

#[derive(Clone)]
struct Dial {
    address: Address,
    security: Security,
}

impl Dial {
    async fn client(&self) -> Result<Client, ControllerError> {
        let channel = connect(&self.address, &self.security).await?;
        Ok(Client::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX))
    }
}

async fn serve(dial: Dial, mut commands_received: mpsc::UnboundedReceiver<Command>) {
    let mut holding: Option<tokio::task::JoinHandle<()>> = None;
    while let Some(command) = commands_received.recv().await {
        match command {
            Command::Join(request, lease, patience) => {
                if let Some(before) = holding.take() {
                    before.abort();
                }
                let dial = dial.clone();
                holding = Some(tokio::spawn(async move {
                    if let Err(error) = hold(&dial, *request, &lease, patience).await {
                        lease.lock().error = Some(error);
                    }
                }));
            }
            Command::Leave => {
                if let Some(before) = holding.take() {
                    before.abort();
                }
            }
            Command::Request(request) => drop(tokio::spawn(request(dial.clone()))),
        }
    }
}

fn is_transient(error: &ControllerError) -> bool {
    use castnet_proto::transport::TransportError::{Connect, Timeout};
    match error {
        ControllerError::Transport(error) => matches!(error, Connect { .. } | Timeout { .. }),
        ControllerError::Status { code, .. } => {
            matches!(
                code,
                Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
            )
        }
        _ => false,
    }
}

/// Holds the lease until the group fails or is refused. Once the group was active, it retries without limit: traffic
/// needs no controller.
async fn hold(
    dial: &Dial,
    mut request: api::InitGroupRequest,
    lease: &Lease,
    patience: Duration,
) -> Result<(), ControllerError> {
    let start = Instant::now();
    let mut active = None;
    loop {
        let ended = follow(dial, &request, lease, &mut active).await;
        let error = match ended {
            Ok(true) => return Ok(()),
            Ok(false) => ControllerError::Status {
                code: Code::Unavailable,
                message: "the stream has ended".into(),
            },
            Err(error) => error,
        };
        if !is_transient(&error) || active.is_none() && start.elapsed() >= patience {
            return Err(error);
        }
        tracing::debug!(%error, job = request.job, "the lease's stream broke");
        if active.is_some() {
            (request.rejoin_of, request.returns_to) = (None, active);
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Returns true if the group has failed or was refused, false if the stream ended. Stores the active generation.
async fn follow(
    dial: &Dial,
    request: &api::InitGroupRequest,
    lease: &Lease,
    active: &mut Option<u64>,
) -> Result<bool, ControllerError> {
    use api::CollectivePhase::{Active, Failed, Refused, Removing};
    let mut client = dial.client().await?;
    let mut states = client.init_group(request.clone()).await?.into_inner();
    while let Some(state) = states.message().await? {
        let phase = state.phase();
        tracing::debug!(job = request.job, ?phase, reason = state.reason, "group");
        if phase == Active {
            *active = Some(state.generation);
        }
        lease.lock().state = Some(Arc::new(state));
        if matches!(phase, Failed | Refused | Removing) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn retry<T, F: Future<Output = Result<T, ControllerError>>>(
    patience: Duration,
    request: impl Fn() -> F,
) -> Result<T, ControllerError> {
    let start = Instant::now();
    loop {
        match request().await {
            Err(error) if is_transient(&error) && start.elapsed() < patience => {}
            answer => return answer,
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
