use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tokio_util::either::Either;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic::transport::server::Connected;

use super::{
    Address, CONNECT_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, Security, TransportError,
    allow_plaintext, resolve, socket, tls,
};
use crate::shares::{Share, Shares};

/// How long calls may run on after a stop. Watchers do not end by themselves.
const STOP_GRACE: Duration = Duration::from_millis(300);
/// TLS handshakes at the same time, and of one address.
const HANDSHAKES_MAX: usize = 256;
const HANDSHAKES_OF_ADDRESS_MAX: usize = 64;
/// Connections with one certificate. All ranks and members of a process share one.
const CONNECTIONS_OF_CERTIFICATE_MAX: usize = 256;
/// Running calls of a connection. A process has one for each of its ranks and groups; a further call waits.
const CALLS_MAX: u32 = 4096;
/// Delay before the next connection is accepted, if descriptors are used up.
const ACCEPT_DELAY: Duration = Duration::from_millis(500);

/// A running server. Dropping it closes its socket and connections at once.
#[derive(Debug)]
pub struct Server {
    address: Address,
    stop: CancellationToken,
    cut: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Server {
    /// The address, with the real port if it was started with port 0.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Accepts no more calls, waits a moment for running calls, then closes their connections.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let Some(mut task) = self.task.take() else {
            return;
        };
        if tokio::time::timeout(STOP_GRACE, &mut task).await.is_err() {
            self.cut.cancel();
            if let Err(error) = task.await {
                tracing::error!(address = %self.address, %error, "server task failed");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        self.cut.cancel();
    }
}

/// An address that is taken. Clients can connect, and wait until something is served there.
pub struct Listener {
    sockets: Sockets,
    address: Address,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.address).finish()
    }
}

impl Listener {
    /// Takes an address.
    ///
    /// # Errors
    /// It is not allowed or not free, or the certificates do not work.
    pub async fn bind(address: &Address, security: &Security) -> Result<Self, TransportError> {
        let (sockets, address) = bind(address, security).await?;
        Ok(Self { sockets, address })
    }

    /// Serves `routes` until the [`Server`] is stopped or dropped.
    pub fn serve(self, routes: Routes) -> Server {
        let Self { sockets, address } = self;
        let mut builder = tonic::transport::Server::builder()
            .max_concurrent_streams(CALLS_MAX)
            .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT));
        let (stop, cut) = (CancellationToken::new(), CancellationToken::new());
        let incoming = sockets.map({
            let cut = cut.clone();
            move |socket| {
                socket.map(|(socket, peer, share)| Connection {
                    socket,
                    peer: Arc::new(peer),
                    _share: share,
                    cut: Box::pin(cut.clone().cancelled_owned()),
                })
            }
        });
        let router = builder.add_routes(routes);
        let task = tokio::spawn({
            let (address, stop) = (address.clone(), stop.clone());
            async move {
                if let Err(error) = router
                    .serve_with_incoming_shutdown(incoming, stop.cancelled())
                    .await
                {
                    tracing::error!(%address, %error, "serving ended");
                }
            }
        });
        Server {
            address,
            stop,
            cut,
            task: Some(task),
        }
    }
}

/// [`Listener::bind`] and [`Listener::serve`].
///
/// # Errors
/// As [`Listener::bind`].
pub async fn serve(address: &Address, security: &Security, routes: Routes) -> Result<Server, TransportError> {
    Ok(Listener::bind(address, security).await?.serve(routes))
}

/// The last is for tests and simulations.
type Local = Either<UnixStream, DuplexStream>;
type Socket = Either<Either<TcpStream, Local>, TlsStream<TcpStream>>;
type Sockets = Pin<Box<dyn Stream<Item = io::Result<(Socket, Peer, Option<Share>)>> + Send>>;

/// The client of a connection. An extension of each of its requests, as `Arc<Peer>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its IP address and port, or `uid N` at a Unix socket.
    pub address: String,
    /// The DNS names of its certificate, in lower case. `None` for a Unix socket or plaintext: nobody has vouched for it.
    pub names: Option<Vec<String>>,
}

impl Peer {
    fn of_socket(socket: &TcpStream, names: Option<Vec<String>>) -> Self {
        let address = socket.peer_addr();
        Self {
            address: address.map_or_else(|_| "unknown".into(), |a| a.to_string()),
            names,
        }
    }

    fn of_unix(socket: &UnixStream) -> Self {
        let uid = socket.peer_cred().map(|cred| format!("uid {}", cred.uid()));
        Self {
            address: uid.unwrap_or_else(|_| "unknown".into()),
            names: None,
        }
    }
}

/// Returns the accepted sockets, and the address with the real port.
async fn bind(address: &Address, security: &Security) -> Result<(Sockets, Address), TransportError> {
    let failed = |error: io::Error| TransportError::Listen(address.clone(), error.into());
    match address {
        Address::Tcp { tls, host, port } => {
            let all = resolve(address, host, *port).await?;
            if !tls {
                allow_plaintext(address, security, &all)?;
            }
            let protection = match tls {
                true => Some(tls::ServerTls::server(address, security)?),
                false => None,
            };
            let listener = TcpListener::bind(all.as_slice()).await.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            let sockets: Sockets = match protection {
                Some(protection) => Box::pin(handshakes(listener, protection)),
                None => {
                    let unaccepted = Unaccepted::default();
                    let sockets = TcpListenerStream::new(listener)
                        .then(move |accepted| unaccepted.clone().patient(accepted))
                        .map(|socket| {
                            let socket = undelayed(socket?);
                            let peer = Peer::of_socket(&socket, None);
                            Ok((Either::Left(Either::Left(socket)), peer, None))
                        });
                    Box::pin(sockets)
                }
            };
            Ok((sockets, Address::tcp(*tls, bound)))
        }
        #[cfg(feature = "memory")]
        Address::Unix(path) if super::memory::is_here() => {
            let sockets = super::memory::listen(path).map_err(failed)?;
            let peer = Peer {
                address: "memory".into(),
                names: None,
            };
            let sockets = sockets.map(move |socket| {
                Ok((
                    Either::Left(Either::Right(Either::Right(socket))),
                    peer.clone(),
                    None,
                ))
            });
            Ok((Box::pin(sockets), address.clone()))
        }
        Address::Unix(path) => {
            let (listener, file) = socket::bind(path, &security.socket).map_err(failed)?;
            let unaccepted = Unaccepted::default();
            let sockets = UnixListenerStream::new(listener)
                .then(move |accepted| unaccepted.clone().patient(accepted))
                .map(move |socket| {
                    let _until_the_end = &file;
                    let socket = socket?;
                    let peer = Peer::of_unix(&socket);
                    Ok((Either::Left(Either::Right(Either::Left(socket))), peer, None))
                });
            Ok((Box::pin(sockets), address.clone()))
        }
    }
}

/// Messages are small, and each waits for the one before it: Nagle's algorithm only delays them.
fn undelayed(socket: TcpStream) -> TcpStream {
    let _ = socket.set_nodelay(true);
    socket
}

/// Accepts in a row that have failed because descriptors or memory are used up.
#[derive(Clone, Default)]
struct Unaccepted(Arc<AtomicU64>);

impl Unaccepted {
    /// A failed accept. Descriptors and memory that are used up are waited for, and reported once until a connection is accepted.
    async fn handle_failed(&self, error: &io::Error) {
        let used_up = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
        let Some(errno) = used_up
            .into_iter()
            .find(|e| error.raw_os_error() == Some(*e as i32))
        else {
            return tracing::info!(%error, "a connection ended before it was accepted");
        };
        let advice = match errno {
            Errno::EMFILE => {
                ": raise the limit of open files (ulimit -n, LimitNOFILE), or see who has so many connections"
            }
            _ => "",
        };
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("no connections are accepted now: {error}{advice}");
        }
        tokio::time::sleep(ACCEPT_DELAY).await;
    }

    fn handle_accepted(&self) {
        let failures = self.0.swap(0, Ordering::Relaxed);
        if failures > 0 {
            tracing::warn!(failures, "connections are accepted again");
        }
    }

    /// Waits after sockets that could not be accepted.
    async fn patient<S>(self, accepted: io::Result<S>) -> io::Result<S> {
        match &accepted {
            Ok(_) => self.handle_accepted(),
            Err(error) => self.handle_failed(error).await,
        }
        accepted
    }
}

/// TLS handshakes in progress, the oldest of each address first.
#[derive(Default)]
struct Handshakes {
    by_address: BTreeMap<IpAddr, VecDeque<(u64, AbortHandle)>>,
    begun: u64,
}

impl Handshakes {
    /// Who begins many handshakes and ends none must not keep others out: where there are too many, the oldest one ends of the addresses
    /// that have most.
    fn begin(&mut self, address: IpAddr, spawn: impl FnOnce(u64) -> AbortHandle) {
        let own = self.by_address.get(&address).map_or(0, VecDeque::len);
        let all: usize = self.by_address.values().map(VecDeque::len).sum();
        let most = || {
            self.by_address
                .iter()
                .max_by_key(|(_, of)| (of.len(), Reverse(of.front().map(|(number, _)| *number))))
                .map(|(of, _)| *of)
        };
        let gives_way = match own >= HANDSHAKES_OF_ADDRESS_MAX {
            true => Some(address),
            false if all >= HANDSHAKES_MAX => most(),
            false => None,
        };
        if let Some(client) = gives_way
            && let Some((_, oldest)) = self.by_address.get_mut(&client).and_then(VecDeque::pop_front)
        {
            tracing::info!(%client, "no connection: the TLS handshake gave way to a later one");
            oldest.abort();
        }
        self.begun += 1;
        let handshake = (self.begun, spawn(self.begun));
        self.by_address.entry(address).or_default().push_back(handshake);
    }

    fn end(&mut self, address: IpAddr, number: u64) {
        if let Some(of) = self.by_address.get_mut(&address) {
            of.retain(|(n, _)| *n != number);
            if of.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }
}

/// A handshake of an address, with its number, until it is dropped.
struct Handshake(Arc<Mutex<Handshakes>>, IpAddr, u64);

impl Drop for Handshake {
    fn drop(&mut self) {
        let Self(running, client, number) = self;
        running.lock().end(*client, *number);
    }
}

/// Most connections with one certificate: a quarter of the descriptors that this process may have, if those are few.
fn connections_max() -> usize {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((u64::MAX, u64::MAX));
    CONNECTIONS_OF_CERTIFICATE_MAX.min(usize::try_from(soft / 4).unwrap_or(usize::MAX))
}

/// Connections after their TLS handshakes, which run beside each other.
fn handshakes(
    listener: TcpListener,
    protection: tls::ServerTls,
) -> impl Stream<Item = io::Result<(Socket, Peer, Option<Share>)>> + Send {
    let (to, from) = mpsc::channel(HANDSHAKES_MAX);
    let (protection, handshakes) = (Arc::new(protection), Arc::new(Mutex::new(Handshakes::default())));
    let (connections, most) = (Shares::default(), connections_max());
    let unaccepted = Unaccepted::default();
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                () = to.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let (socket, client) = match accepted {
                Ok((socket, client)) => {
                    unaccepted.handle_accepted();
                    (undelayed(socket), client)
                }
                Err(error) => {
                    unaccepted.handle_failed(&error).await;
                    continue;
                }
            };
            let (protection, to) = (protection.clone(), to.clone());
            let (running, connections) = (handshakes.clone(), connections.clone());
            let spawn = |number| {
                let handshake = async move {
                    // Also if it gives way.
                    let _until_the_end = Handshake(running, client.ip(), number);
                    let shaken = tokio::select! {
                        () = to.closed() => return,
                        shaken = tokio::time::timeout(CONNECT_TIMEOUT, protection.accept(socket)) => shaken,
                    };
                    match shaken {
                        Ok(Ok(socket)) => {
                            let names = tls::names(&socket);
                            let Some(share) = connections.take(&names, most) else {
                                return tracing::info!(%client, ?names, "no connection: there are too many with this certificate");
                            };
                            let peer = Peer::of_socket(socket.get_ref().0, Some(names));
                            let _ = to.send(Ok((Either::Right(socket), peer, Some(share)))).await;
                        }
                        Ok(Err(error)) => {
                            tracing::info!(%client, %error, "no connection: the TLS handshake failed")
                        }
                        Err(_) => tracing::info!(%client, "no connection: the TLS handshake took too long"),
                    }
                };
                tokio::spawn(handshake).abort_handle()
            };
            handshakes.lock().begin(client.ip(), spawn);
        }
    });
    ReceiverStream::new(from)
}

/// An accepted connection. It ends when `cut` fires.
struct Connection {
    socket: Socket,
    peer: Arc<Peer>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _share: Option<Share>,
}

impl Connected for Connection {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
