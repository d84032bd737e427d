//! Servers and connections: addresses, the rule about plaintext, TLS.
//!
//! - `http://127.0.0.1:7471`: plaintext, on this machine only; beyond it only with [`Security::insecure`].
//! - `https://leaf1.example:7471`: TLS; both ends need certificates of the same authority. A server knows its clients by
//!   the DNS names of their certificates ([`Peer`]). Files that are replaced are used from the next connection on.
//! - `unix:/run/castnet/leaf1.sock`: this machine only, from any network namespace. The owner of the file may connect,
//!   and whom [`SocketAccess`] lets in.

mod address;
mod calls;
mod connection;
mod controllers;
mod in_turn;
#[cfg(feature = "memory")]
pub mod memory;
mod server;
mod socket;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

pub use address::{Address, BadAddress};
pub use calls::{ANSWER_BYTES_MAX, Call, CallThread, ControllerClient, Outage, RETRY_DELAY, retry};
pub use connection::{Clients, Connection};
pub use controllers::{Controllers, controller};
use in_turn::InTurn;
pub use server::{Listener, Peer, Server, serve};
pub use socket::{SocketAccess, SocketFile, SocketMode, bind_unix};

/// Longest time until a connection is established, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of probes to a silent peer.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Time without an answer to a probe that ends the connection.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The PEM files of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority of the other end's certificate.
    pub ca: PathBuf,
    /// The certificate of this end, with its chain up to the authority.
    pub cert: PathBuf,
    /// The private key of this end.
    pub key: PathBuf,
}

/// How a connection is protected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// The files for `https://`.
    pub tls: Option<TlsFiles>,
    /// For `http://`: plaintext is allowed beyond this machine.
    pub insecure: bool,
    /// For `unix:`, at a server.
    pub socket: SocketAccess,
}

/// Errors of servers and connections. Addresses are as given.
#[allow(missing_docs, reason = "the messages show what the fields are")]
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransportError {
    #[error("{0}: {1} cannot be resolved: {2}")]
    Resolve(Address, String, Arc<io::Error>),
    #[error(
        "{0} is plaintext beyond this machine ({1} is no loopback address): use https:// with --tls-ca, --tls-cert and \
         --tls-key, or pass --insecure to accept that anybody on the way can read and change it"
    )]
    Plaintext(Address, SocketAddr),
    #[error("{0} needs certificates: pass --tls-ca, --tls-cert and --tls-key")]
    NoCertificates(Address),
    #[error("cannot read {}: {}", .0.display(), .1)]
    File(PathBuf, Arc<io::Error>),
    #[error("{0}: the certificates do not work: {1}")]
    Tls(Address, String),
    #[error(
        "nobody could change anything at {0}, as every certificate would be a host's: name the certificates of operators, \
         as operators = [\"NAME\"] in [roles] or with --operators NAME"
    )]
    NoOperators(Address),
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, Arc<io::Error>),
    #[error("cannot reach {0}: {why}", why = chain(.1))]
    Connect(Address, Arc<tonic::transport::Error>),
    #[error("cannot reach {0}: no answer within {1:?}")]
    Timeout(Address, Duration),
    #[error("the controller at {0} does not lead: {1}")]
    NotLeading(Address, String),
    #[error("no controller is given")]
    NoController,
}

/// Why a connection fails until somebody changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The other side's certificate is not of the authority in [`TlsFiles::ca`].
    Authority,
    /// The other side's certificate does not have the name of the address.
    Name,
    /// Another fault of TLS, such as a certificate that is not valid any more, or a server without TLS.
    Tls,
    /// This user may not connect to the Unix socket.
    Permission,
}

impl TransportError {
    /// Whether the same attempt may succeed later: the service is not there yet, or another controller takes over. Certificates
    /// that do not fit stay wrong.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_, error) => tls::cause(&**error).is_none(),
            Self::Timeout(..) | Self::NotLeading(..) => true,
            _ => false,
        }
    }

    /// Why there is no connection, if it is not that nobody answers.
    pub fn obstacle(&self) -> Option<Obstacle> {
        let Self::Connect(address, error) = self else {
            return None;
        };
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        match (tls::cause(&**error), address) {
            (Some(error), _) => Some(tls::obstacle(error)),
            (None, Address::Unix(_)) => causes(&**error)
                .any(|error| error.downcast_ref().is_some_and(is_denied))
                .then_some(Obstacle::Permission),
            (None, Address::Tcp { .. }) => None,
        }
    }
}

/// An error and its causes.
fn causes<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// An error and its causes in one line. Some errors end with the text of their cause already.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        if !text.ends_with(&why) {
            text.push_str(": ");
            text.push_str(&why);
        }
        cause = error.source();
    }
    text
}

/// Why a call has no answer: its connection failed, whatever the code of the status. `None`: the other side has answered with it.
pub fn lost_connection(status: &tonic::Status) -> Option<&(dyn std::error::Error + 'static)> {
    std::error::Error::source(status)
}

/// Connects to `address`. The channel reconnects after a loss.
///
/// # Errors
/// The address is not allowed, the certificates do not work, or there is no answer within [`CONNECT_TIMEOUT`].
pub async fn connect(address: &Address, security: &Security) -> Result<Channel, TransportError> {
    let connected = async {
        let channel = match address {
            Address::Tcp {
                tls: true,
                host,
                port,
            } => {
                let tls = tls::Connector::new(address, host, *port, security)?;
                endpoint(address, address.to_string())?
                    .connect_with_connector(tls)
                    .await
            }
            Address::Tcp {
                tls: false,
                host,
                port,
            } => {
                // To the addresses that were checked: the name is not resolved again.
                let all = resolve(address, host, *port).await?;
                allow_plaintext(address, security, &all)?;
                let first = all.first().map(|a| format!("http://{a}")).unwrap_or_default();
                endpoint(address, first)?.connect().await
            }
            #[cfg(feature = "memory")]
            Address::Unix(path) if memory::is_here() => {
                endpoint(address, "http://memory".into())?
                    .connect_with_connector(memory::Connector(path.clone()))
                    .await
            }
            Address::Unix(path) => {
                endpoint(address, format!("unix://{}", path.display()))?
                    .connect()
                    .await
            }
        };
        channel.map_err(|error| TransportError::Connect(address.clone(), error.into()))
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, connected).await {
        Ok(channel) => channel,
        Err(_) => Err(TransportError::Timeout(address.clone(), CONNECT_TIMEOUT)),
    }
}

fn endpoint(address: &Address, uri: String) -> Result<Endpoint, TransportError> {
    let connect = |error: tonic::transport::Error| TransportError::Connect(address.clone(), error.into());
    let mut endpoint = Endpoint::from_shared(uri).map_err(connect)?;
    if let Address::Tcp { tls: true, .. } = address {
        // The connector does TLS, not tonic.
        let origin = endpoint.uri().clone();
        let plain = origin.to_string().replacen("https:", "http:", 1);
        endpoint = Endpoint::from_shared(plain).map_err(connect)?.origin(origin);
    }
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .executor(InTurn::default())
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT))
}

async fn resolve(address: &Address, host: &str, port: u16) -> Result<Vec<SocketAddr>, TransportError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found = tokio::net::lookup_host((bare, port)).await;
    let found = found
        .map(Iterator::collect::<Vec<_>>)
        .and_then(|all| match all.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "no address")),
            false => Ok(all),
        });
    found.map_err(|error| TransportError::Resolve(address.clone(), bare.into(), error.into()))
}

fn allow_plaintext(address: &Address, security: &Security, all: &[SocketAddr]) -> Result<(), TransportError> {
    match all.iter().find(|a| !a.ip().to_canonical().is_loopback()) {
        Some(resolved) if !security.insecure => Err(TransportError::Plaintext(address.clone(), *resolved)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tonic::codegen::http::Uri;
    use tonic::codegen::{Context, Poll, Service};

    use super::*;

    /// A connector that fails.
    struct Fails(io::ErrorKind);

    impl Service<Uri> for Fails {
        type Response = TokioIo<tokio::net::UnixStream>;
        type Error = io::Error;
        type Future = std::future::Ready<io::Result<Self::Response>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Uri) -> Self::Future {
            std::future::ready(Err(self.0.into()))
        }
    }

    #[tokio::test]
    async fn the_socket_of_another_user_is_an_obstacle() {
        use io::ErrorKind::{ConnectionRefused, PermissionDenied};
        for (text, kind, obstacle) in [
            ("unix:/run/a.sock", PermissionDenied, Some(Obstacle::Permission)),
            ("unix:/run/a.sock", ConnectionRefused, None),
            ("http://127.0.0.1:1", PermissionDenied, None),
        ] {
            let endpoint = Endpoint::from_static("http://127.0.0.1:1");
            let error = endpoint.connect_with_connector(Fails(kind)).await.unwrap_err();
            let error = TransportError::Connect(text.parse().unwrap(), error.into());
            assert_eq!(error.obstacle(), obstacle, "{text}: {error}");
        }
    }

    #[test]
    fn an_error_names_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Link {
            text: &'static str,
            #[source]
            cause: Option<Box<Link>>,
        }
        let link = |text, cause: Option<Link>| Link {
            text,
            cause: cause.map(Box::new),
        };
        let refused = link("tcp connect error: refused", Some(link("refused", None)));
        assert_eq!(
            chain(&link("transport error", Some(refused))),
            "transport error: tcp connect error: refused"
        );
    }
}
