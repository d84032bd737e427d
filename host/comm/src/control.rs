//! The line to the controller: a thread with a small runtime of its own, which holds the group's lease (the stream of InitGroup)
//! as long as the rank is in it. The rank's thread never crosses an async boundary.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
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

/// How soon a controller that is away is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// Blobs of a thousand ranks fit.
const ANSWER_BYTES_MAX: usize = 1 << 28;

/// What the rank's thread sees of its lease.
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

    /// The newest state that the controller told.
    pub(crate) fn state(&self) -> Option<Arc<api::CollectiveState>> {
        self.lock().state.clone()
    }

    /// Why the stream has ended for good, once.
    pub(crate) fn take_error(&self) -> Option<ControllerError> {
        self.lock().error.take()
    }
}

type Reply<T> = SyncSender<Result<T, ControllerError>>;

enum Command {
    Join(Box<api::InitGroupRequest>, Arc<Lease>, Duration),
    Leave,
    Exchange(Box<api::ExchangeRequest>, Duration, Reply<Vec<Vec<u8>>>),
    Destroy(String, Reply<()>),
    Lanes(String, Duration, Reply<u8>),
}

/// An answer that is to come.
pub(crate) struct Answer<T>(Receiver<Result<T, ControllerError>>);

impl<T> Answer<T> {
    /// The answer, if it is here.
    pub(crate) fn poll(&self) -> Option<Result<T, ControllerError>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(ControllerError::Ended)),
        }
    }
}

/// The line. Dropped, it ends the lease.
pub(crate) struct Control {
    commands: Option<mpsc::UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts the thread; connects only when there is something to ask.
    pub(crate) fn start(address: Address, security: Security) -> Result<Self, ControllerError> {
        let (commands, todo) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| ControllerError::Odd { what: e.to_string() })?;
        let thread = std::thread::Builder::new()
            .name("castnet-comm".into())
            .spawn(move || runtime.block_on(serve(Dial { address, security }, todo)))
            .map_err(|e| ControllerError::Odd { what: e.to_string() })?;
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    fn send(&self, command: Command) {
        // Where the thread has ended, the answer says so.
        let _ = self.commands.as_ref().map(|c| c.send(command));
    }

    /// Joins a group and stays in it. Tries for `patience` while the controller is not there.
    pub(crate) fn join(&self, request: api::InitGroupRequest, patience: Duration) -> Arc<Lease> {
        let lease = Arc::new(Lease::default());
        self.send(Command::Join(Box::new(request), lease.clone(), patience));
        lease
    }

    /// Ends the lease.
    pub(crate) fn leave(&self) {
        self.send(Command::Leave);
    }

    /// Hands a blob to all ranks.
    pub(crate) fn exchange(&self, request: api::ExchangeRequest, patience: Duration) -> Answer<Vec<Vec<u8>>> {
        let (reply, answer) = sync_channel(1);
        self.send(Command::Exchange(Box::new(request), patience, reply));
        Answer(answer)
    }

    /// How many lanes a collective group has; one where there is no such group yet.
    pub(crate) fn lanes(&self, group: String, patience: Duration) -> Answer<u8> {
        let (reply, answer) = sync_channel(1);
        self.send(Command::Lanes(group, patience, reply));
        Answer(answer)
    }

    /// Destroys a group.
    pub(crate) fn destroy(&self, group: String) -> Answer<()> {
        let (reply, answer) = sync_channel(1);
        self.send(Command::Destroy(group, reply));
        Answer(answer)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that talks with the controller has panicked");
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

async fn serve(dial: Dial, mut todo: mpsc::UnboundedReceiver<Command>) {
    let mut holding: Option<tokio::task::JoinHandle<()>> = None;
    while let Some(command) = todo.recv().await {
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
            Command::Exchange(request, patience, reply) => {
                let dial = dial.clone();
                tokio::spawn(async move {
                    // Nobody waits for it any more where the rank has given up.
                    let _ = reply.send(exchange(&dial, *request, patience).await);
                });
            }
            Command::Lanes(group, patience, reply) => {
                let dial = dial.clone();
                tokio::spawn(async move {
                    let _ = reply.send(lanes(&dial, group, patience).await);
                });
            }
            Command::Destroy(group, reply) => {
                let dial = dial.clone();
                tokio::spawn(async move {
                    let _ = reply.send(destroy(&dial, group).await);
                });
            }
        }
    }
}

/// Whether it is worth to ask again.
fn may_pass(error: &ControllerError) -> bool {
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

/// Holds the lease until the group has failed or was refused. Once the group was active, a controller that is away is waited
/// for: traffic needs none.
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
        if !may_pass(&error) || active.is_none() && start.elapsed() >= patience {
            return Err(error);
        }
        tracing::debug!(%error, job = request.job, "the lease's stream broke");
        if active.is_some() {
            (request.rejoin_of, request.returns_to) = (None, active);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// One stream, to its end; whether the group has failed or was refused. Notes the generation that was active.
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

async fn exchange(
    dial: &Dial,
    request: api::ExchangeRequest,
    patience: Duration,
) -> Result<Vec<Vec<u8>>, ControllerError> {
    let start = Instant::now();
    loop {
        let answer = async { Ok(dial.client().await?.exchange(request.clone()).await?) };
        let error: ControllerError = match answer.await {
            Ok(answer) => return Ok(answer.into_inner().blobs),
            Err(error) => error,
        };
        if !may_pass(&error) || start.elapsed() >= patience {
            return Err(error);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn lanes(dial: &Dial, group: String, patience: Duration) -> Result<u8, ControllerError> {
    let start = Instant::now();
    loop {
        let request = api::GetGroupRequest { group: group.clone() };
        let answer = async { Ok(dial.client().await?.get_group(request).await) };
        let error: ControllerError = match answer.await {
            Ok(Ok(answer)) => {
                let state = answer.into_inner().collective.and_then(|c| c.state);
                let lanes = state.map_or(1, |s| s.lanes.len().clamp(1, LANES_MAX.into()));
                return Ok(lanes as u8);
            }
            Ok(Err(status)) if status.code() == Code::NotFound => return Ok(1),
            Ok(Err(status)) => status.into(),
            Err(error) => error,
        };
        if !may_pass(&error) || start.elapsed() >= patience {
            return Err(error);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn destroy(dial: &Dial, group: String) -> Result<(), ControllerError> {
    match dial
        .client()
        .await?
        .destroy_group(api::DestroyGroupRequest { group })
        .await
    {
        Err(status) if status.code() != Code::NotFound => Err(status.into()),
        _ => Ok(()),
    }
}
