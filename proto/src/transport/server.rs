use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tokio_util::either::Either;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::service::Routes;
use tonic::transport::ServerTlsConfig;
use tonic::transport::server::Connected;

use super::{
    Address, CONNECT_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, Security, TransportError,
    allow_plaintext, read_pem, resolve,
};

/// How long calls may run on after a stop. Watchers do not end by themselves.
const STOP_GRACE: Duration = Duration::from_millis(300);

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

/// Serves `routes` until the [`Server`] is stopped or dropped. Clients can connect when this returns.
///
/// # Errors
/// The address is not allowed or not free, or the certificates do not work.
pub async fn serve(address: &Address, security: &Security, routes: Routes) -> Result<Server, TransportError> {
    let (sockets, address) = bind(address, security).await?;
    let mut builder = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT));
    if matches!(address, Address::Tcp { tls: true, .. }) {
        // Clients without a certificate of the authority are refused.
        let (ca, identity) = read_pem(&address, security)?;
        let tls = ServerTlsConfig::new()
            .identity(identity)
            .client_ca_root(ca)
            .timeout(CONNECT_TIMEOUT);
        let with_tls = builder.tls_config(tls);
        builder = with_tls.map_err(|error| TransportError::Tls(address.clone(), error))?;
    }
    let (stop, cut) = (CancellationToken::new(), CancellationToken::new());
    let incoming = sockets.map({
        let cut = cut.clone();
        move |socket| {
            socket.map(|socket| Connection {
                socket,
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
    Ok(Server {
        address,
        stop,
        cut,
        task: Some(task),
    })
}

type Socket = Either<TcpStream, UnixStream>;
type Sockets = Pin<Box<dyn Stream<Item = io::Result<Socket>> + Send>>;

/// Removes the file of a Unix socket when its listener ends.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the accepted sockets, and the address with the real port.
async fn bind(address: &Address, security: &Security) -> Result<(Sockets, Address), TransportError> {
    let failed = |error| TransportError::Listen(address.clone(), error);
    match address {
        Address::Tcp { tls, host, port } => {
            let all = resolve(address, host, *port).await?;
            if !tls {
                allow_plaintext(address, security, &all)?;
            }
            let listener = TcpListener::bind(all.as_slice()).await.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            let sockets = TcpListenerStream::new(listener).map(|socket| {
                let socket = socket?;
                // Messages are small, and each waits for the one before it: Nagle's algorithm only delays them.
                let _ = socket.set_nodelay(true);
                Ok(Either::Left(socket))
            });
            Ok((Box::pin(sockets), Address::tcp(*tls, bound)))
        }
        Address::Unix(path) => {
            let listener = bind_unix(path).map_err(failed)?;
            let file = SocketFile(path.clone());
            let sockets = UnixListenerStream::new(listener).map(move |socket| {
                let _until_the_end = &file;
                socket.map(Either::Right)
            });
            Ok((Box::pin(sockets), address.clone()))
        }
    }
}

/// Replaces the socket of a dead process, but not that of a running server.
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

/// An accepted connection. It ends when `cut` fires.
struct Connection {
    socket: Socket,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
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
