//! The connection of a process to the controller that leads.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Channel;

use super::controllers::{NEXT_AFTER, client, leading};
use super::{CONNECT_TIMEOUT, Call, CallThread, ControllerClient, Controllers, Security, TransportError};
use crate::term::{JoinedAt, is_joined_elsewhere};
use crate::v1::FindLeaderRequest;

static CONNECTIONS: Mutex<Vec<Weak<Connection>>> = Mutex::new(Vec::new());

/// The connection of this process to the controller that leads, and the thread that runs the calls over it. All who name the
/// same controllers and certificates share it. It ends with the last of them.
#[derive(Debug)]
pub struct Connection {
    calls: CallThread,
    shared: Arc<Shared>,
}

impl Connection {
    /// Returns the connection of this process, or starts its thread. It connects with the first call.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn to(controllers: &Controllers, security: &Security) -> io::Result<Arc<Self>> {
        let mut all = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        let fits = |known: &Arc<Self>| known.shared.fits(controllers, security);
        if let Some(known) = all.iter().filter_map(Weak::upgrade).find(fits) {
            return Ok(known);
        }
        let new = Arc::new(Self {
            calls: CallThread::start("castnet-calls")?,
            shared: Arc::new(Shared::new(controllers, security)),
        });
        all.push(Arc::downgrade(&new));
        Ok(new)
    }

    /// Starts a call.
    pub fn spawn<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> Call<T> {
        self.calls.spawn(call)
    }

    /// Clients of one member or rank, which has not joined yet, for the calls that this connection runs.
    pub fn clients(&self) -> Clients {
        Clients {
            shared: self.shared.clone(),
            joined: JoinedAt::default(),
            own: Arc::default(),
        }
    }
}

/// Clients over one connection, which work in the calls of their [`Connection`]. Clones have joined the same group.
#[derive(Clone, Debug)]
pub struct Clients {
    shared: Arc<Shared>,
    joined: JoinedAt,
    /// The channel to a controller that knows the group of this member, where the one that all others have found does not.
    own: Arc<tokio::sync::Mutex<Option<Channel>>>,
}

#[derive(Debug)]
struct Shared {
    controllers: Controllers,
    security: Security,
    /// How often the leader has been looked for.
    looks: AtomicU64,
    found: tokio::sync::Mutex<Result<Channel, TransportError>>,
}

impl Shared {
    fn new(controllers: &Controllers, security: &Security) -> Self {
        Self {
            controllers: controllers.clone(),
            security: security.clone(),
            looks: AtomicU64::new(0),
            found: tokio::sync::Mutex::new(Err(TransportError::NoController)),
        }
    }

    fn fits(&self, controllers: &Controllers, security: &Security) -> bool {
        self.controllers == *controllers && self.security == *security
    }
}

impl Clients {
    /// Where this member has joined.
    pub fn joined(&self) -> &JoinedAt {
        &self.joined
    }

    /// A client of the controller that leads; for a member that has joined, of one that knows its group, if there is one.
    ///
    /// # Errors
    /// As [`controller`](super::controller).
    pub async fn leading(&self) -> Result<ControllerClient, TransportError> {
        let mut channel = self.found().await?;
        if self.joined.is_set() && self.is_refused(&channel).await {
            channel = self.another(channel).await?;
        }
        Ok(client(channel, self.joined.clone()))
    }

    /// The channel to the controller that leads. Connects if there is no connection, or another controller leads now. Those who ask at the same
    /// time get the same answer.
    async fn found(&self) -> Result<Channel, TransportError> {
        let shared = &*self.shared;
        let looks = shared.looks.load(Ordering::Relaxed);
        let mut found = shared.found.lock().await;
        if shared.looks.load(Ordering::Relaxed) == looks {
            let leads = match &mut *found {
                Ok(channel) => leads(channel.clone(), &shared.controllers).await,
                Err(_) => false,
            };
            if !leads {
                *found = leading(&shared.controllers, &shared.security, &JoinedAt::default()).await;
            }
            shared.looks.fetch_add(1, Ordering::Relaxed);
        }
        found.clone()
    }

    /// Whether this controller has another store than the one where this member has joined.
    async fn is_refused(&self, channel: &Channel) -> bool {
        let mut client = client(channel.clone(), self.joined.clone());
        let asked = timeout(CONNECT_TIMEOUT, client.find_leader(FindLeaderRequest {})).await;
        asked.is_ok_and(|answer| answer.is_err_and(|status| is_joined_elsewhere(&status)))
    }

    /// The channel to another controller of the list, for this member alone. Without another one it stays: its refusals have the reason.
    async fn another(&self, refusing: Channel) -> Result<Channel, TransportError> {
        let shared = &*self.shared;
        if shared.controllers.only().is_some() {
            return Ok(refusing);
        }
        let mut own = self.own.lock().await;
        if let Some(channel) = &*own
            && leads(channel.clone(), &shared.controllers).await
            && !self.is_refused(channel).await
        {
            return Ok(channel.clone());
        }
        *own = None;
        let channel = leading(&shared.controllers, &shared.security, &self.joined).await?;
        Ok(own.insert(channel).clone())
    }
}

/// Whether the controller at the other end still leads.
async fn leads(channel: Channel, controllers: &Controllers) -> bool {
    let mut client = client(channel, JoinedAt::default());
    let patience = controllers.only().map_or(NEXT_AFTER, |_| CONNECT_TIMEOUT);
    match timeout(patience, client.find_leader(FindLeaderRequest {})).await {
        Ok(Err(status)) => !matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
        ),
        Ok(Ok(_)) => true,
        Err(_) => false,
    }
}
