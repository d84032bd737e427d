//! The serving end.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic::transport::server::Connected;

use super::{
    Address, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, Pem, Security, TransportError, allow_plaintext, resolve,
};

/// What calls under way are given to end when the server stops; watchers never end by themselves.
const STOP_GRACE: Duration = Duration::from_millis(300);

/// A running server. Dropped, it closes its socket and cuts its connections off at once.
#[derive(Debug)]
pub struct Server {
    address: Address,
    stop: CancellationToken,
    cut: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Server {
    /// Where it is; with the real port where 0 was asked for.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Takes no more calls, gives those under way a moment, then cuts them off.
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

/// Serves `routes` at `address` until the [`Server`] is stopped or dropped. When this returns, clients can connect.
///
/// # Errors
/// The address is not allowed or not free, or the certificates do not work.
pub async fn serve(address: &Address, security: &Security, routes: Routes) -> Result<Server, TransportError> {
    let (listener, address) = Listener::bind(address, security).await?;
    let mut builder = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT));
    if matches!(address, Address::Tcp { tls: true, .. }) {
        let tls = Pem::read(&address, security)?.server();
        builder = builder.tls_config(tls).map_err(|error| TransportError::Tls {
            address: address.clone(),
            error,
        })?;
    }
    let (stop, cut) = (CancellationToken::new(), CancellationToken::new());
    let incoming = listener.connections(cut.clone());
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
    Ok(Server {
        address,
        stop,
        cut,
        task: Some(task),
    })
}

enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

/// Removes the file of a Unix socket when its listener ends.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Whoever took it away already has done this work.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    async fn bind(address: &Address, security: &Security) -> Result<(Self, Address), TransportError> {
        let failed = |error| TransportError::Listen {
            address: address.clone(),
            error,
        };
        match address {
            Address::Tcp { tls, host, port } => {
                let all = resolve(address, host, *port).await?;
                if !tls {
                    allow_plaintext(address, security, &all)?;
                }
                let listener = TcpListener::bind(all.as_slice()).await.map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                Ok((Self::Tcp(listener), Address::tcp(*tls, bound)))
            }
            Address::Unix(path) => {
                let listener = bind_unix(path).map_err(failed)?;
                let file = SocketFile(path.clone());
                Ok((
                    Self::Unix {
                        listener,
                        _file: file,
                    },
                    address.clone(),
                ))
            }
        }
    }

    fn connections(self, cut: CancellationToken) -> impl Stream<Item = io::Result<Connection>> {
        Accepting(self).map(move |socket| socket.map(|s| Connection::new(s, cut.clone())))
    }
}

struct Accepting(Listener);

impl Stream for Accepting {
    type Item = io::Result<Socket>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = match &self.0 {
            Listener::Tcp(listener) => listener.poll_accept(cx).map_ok(|(s, _)| Socket::Tcp(s)),
            Listener::Unix { listener, .. } => listener.poll_accept(cx).map_ok(|(s, _)| Socket::Unix(s)),
        };
        accepted.map(|socket| {
            if let Ok(Socket::Tcp(stream)) = &socket {
                // Small messages, one waiting for the other; without it they only get slower.
                let _ = stream.set_nodelay(true);
            }
            Some(socket)
        })
    }
}

/// Listens at `path`; a socket that a dead process left behind is replaced, one that somebody serves is not.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// An accepted connection that ends when the server cuts it off.
struct Connection {
    socket: Socket,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    fn new(socket: Socket, cut: CancellationToken) -> Self {
        Self {
            socket,
            cut: Box::pin(cut.cancelled_owned()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();
    fn connect_info(&self) -> Self::ConnectInfo {}
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
        match &mut self.socket {
            Socket::Tcp(s) => pin!(s).poll_read(cx, buf),
            Socket::Unix(s) => pin!(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.socket {
            Socket::Tcp(s) => pin!(s).poll_write(cx, buf),
            Socket::Unix(s) => pin!(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(s) => pin!(s).poll_flush(cx),
            Socket::Unix(s) => pin!(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(s) => pin!(s).poll_shutdown(cx),
            Socket::Unix(s) => pin!(s).poll_shutdown(cx),
        }
    }
}
