//! Servers and connections: addresses, the rule about plaintext, TLS.
//!
//! - `http://127.0.0.1:7471`: plaintext, on this machine only; beyond it only with [`Security::insecure`].
//! - `https://leaf1.example:7471`: TLS; both ends need certificates of the same authority.
//! - `unix:/run/castnet/leaf1.sock`: this machine only, from any network namespace. Only the owner of the file may connect.

mod address;
mod calls;
mod controllers;
mod server;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

pub use address::{Address, BadAddress};
pub use calls::{ANSWER_BYTES_MAX, Call, CallThread, ControllerClient, RETRY_DELAY, retry};
pub use controllers::{Controllers, controller};
pub use server::{Server, serve};

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
}

/// Errors of servers and connections. Addresses are as given.
#[allow(missing_docs, reason = "the messages show what the fields are")]
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("{0}: {1} cannot be resolved: {2}")]
    Resolve(Address, String, io::Error),
    #[error(
        "{0} is plaintext beyond this machine ({1} is no loopback address): use https:// with --tls-ca, --tls-cert and \
         --tls-key, or pass --insecure to accept that anybody on the way can read and change it"
    )]
    Plaintext(Address, SocketAddr),
    #[error("{0} needs certificates: pass --tls-ca, --tls-cert and --tls-key")]
    NoCertificates(Address),
    #[error("cannot read {}: {}", .0.display(), .1)]
    File(PathBuf, io::Error),
    #[error("{0}: the certificates do not work: {why}", why = chain(.1))]
    Tls(Address, tonic::transport::Error),
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, io::Error),
    #[error("cannot reach {0}: {why}", why = chain(.1))]
    Connect(Address, tonic::transport::Error),
    #[error("cannot reach {0}: no answer within {1:?}")]
    Timeout(Address, Duration),
    #[error("the controller at {0} does not lead: {1}")]
    NotLeading(Address, String),
    #[error("no controller is given")]
    NoController,
}

/// In one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Connects to `address`. The channel reconnects after a loss.
///
/// # Errors
/// The address is not allowed, the certificates do not work, or there is no answer within [`CONNECT_TIMEOUT`].
pub async fn connect(address: &Address, security: &Security) -> Result<Channel, TransportError> {
    let endpoint = endpoint(address, security).await?;
    match tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
        Ok(channel) => channel.map_err(|error| TransportError::Connect(address.clone(), error)),
        Err(_) => Err(TransportError::Timeout(address.clone(), CONNECT_TIMEOUT)),
    }
}

async fn endpoint(address: &Address, security: &Security) -> Result<Endpoint, TransportError> {
    let uri = match address {
        Address::Unix(path) => format!("unix://{}", path.display()),
        Address::Tcp { tls: true, .. } => address.to_string(),
        Address::Tcp {
            tls: false,
            host,
            port,
        } => {
            // To the addresses that were checked: the name is not resolved again.
            let all = resolve(address, host, *port).await?;
            allow_plaintext(address, security, &all)?;
            all.first().map(|a| format!("http://{a}")).unwrap_or_default()
        }
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(|error| TransportError::Connect(address.clone(), error))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    if !matches!(address, Address::Tcp { tls: true, .. }) {
        return Ok(endpoint);
    }
    let (ca, identity) = read_pem(address, security)?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(ca)
        .identity(identity)
        .timeout(CONNECT_TIMEOUT);
    let endpoint = endpoint.tls_config(tls);
    endpoint.map_err(|error| TransportError::Tls(address.clone(), error))
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
    found.map_err(|error| TransportError::Resolve(address.clone(), bare.into(), error))
}

fn allow_plaintext(address: &Address, security: &Security, all: &[SocketAddr]) -> Result<(), TransportError> {
    match all.iter().find(|a| !a.ip().to_canonical().is_loopback()) {
        Some(resolved) if !security.insecure => Err(TransportError::Plaintext(address.clone(), *resolved)),
        _ => Ok(()),
    }
}

/// The authority, and this end's certificate and key.
fn read_pem(address: &Address, security: &Security) -> Result<(Certificate, Identity), TransportError> {
    let files = security.tls.as_ref();
    let files = files.ok_or_else(|| TransportError::NoCertificates(address.clone()))?;
    let read =
        |path: &Path| std::fs::read(path).map_err(|error| TransportError::File(path.to_owned(), error));
    let ca = Certificate::from_pem(read(&files.ca)?);
    Ok((ca, Identity::from_pem(read(&files.cert)?, read(&files.key)?)))
}
