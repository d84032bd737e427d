//! How both ends meet: addresses, the rule about plaintext, TLS, one function to serve and one to connect.
//!
//! - `http://127.0.0.1:7471`: plaintext, on this machine only. Beyond it only where [`Security::insecure`] allows it.
//! - `https://leaf1.example:7471`: TLS; both ends show certificates of the same authority.
//! - `unix:/run/castnet/leaf1.sock`: this machine only, in whatever network namespace; the file's mode decides who may
//!   connect (its owner).

mod address;
mod server;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};

pub use address::{Address, BadAddress};
pub use server::{Server, serve};

/// How long a connection may take to come about, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A silent peer is asked for a sign of life this often.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// And is given up after this long without one.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The PEM files of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority that the other end's certificate must come from.
    pub ca: PathBuf,
    /// This end's certificate, with what leads to the authority.
    pub cert: PathBuf,
    /// This end's private key.
    pub key: PathBuf,
}

/// What protects a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// For `https://`: this end's files.
    pub tls: Option<TlsFiles>,
    /// For `http://`: plaintext is allowed beyond this machine.
    pub insecure: bool,
}

/// Why two ends did not meet.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The name has no address.
    #[error("{address}: {host} cannot be resolved: {error}")]
    Resolve {
        /// As given.
        address: Address,
        /// The host part.
        host: String,
        /// Why.
        error: std::io::Error,
    },
    /// The rule about plaintext.
    #[error(
        "{address} is plaintext beyond this machine ({resolved} is no loopback address): use https:// with --tls-ca, \
         --tls-cert and --tls-key, or pass --insecure to accept that anybody on the way can read and change it"
    )]
    Plaintext {
        /// As given.
        address: Address,
        /// What it stands for.
        resolved: SocketAddr,
    },
    /// TLS without files.
    #[error("{address} needs certificates: pass --tls-ca, --tls-cert and --tls-key")]
    NoCertificates {
        /// As given.
        address: Address,
    },
    /// A PEM file that cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The certificates do not make a working set.
    #[error("{address}: the certificates do not work: {}", chain(error))]
    Tls {
        /// As given.
        address: Address,
        /// Why.
        error: tonic::transport::Error,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {error}")]
    Listen {
        /// As given.
        address: Address,
        /// Why.
        error: std::io::Error,
    },
    /// Nobody answers, or not as expected.
    #[error("cannot reach {address}: {}", chain(error))]
    Connect {
        /// As given.
        address: Address,
        /// Why.
        error: tonic::transport::Error,
    },
    /// Nobody answers in time.
    #[error("cannot reach {address}: no answer within {within:?}")]
    Timeout {
        /// As given.
        address: Address,
        /// How long was waited.
        within: Duration,
    },
}

/// An error with what caused it, in one line.
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

/// Connects to `address`; the channel connects again by itself when the connection is lost.
///
/// # Errors
/// The address is not allowed, the certificates do not work, or nobody answers within [`CONNECT_TIMEOUT`].
pub async fn connect(address: &Address, security: &Security) -> Result<Channel, TransportError> {
    let endpoint = endpoint(address, security).await?;
    match tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(TransportError::Connect {
            address: address.clone(),
            error,
        }),
        Err(_) => Err(TransportError::Timeout {
            address: address.clone(),
            within: CONNECT_TIMEOUT,
        }),
    }
}

async fn endpoint(address: &Address, security: &Security) -> Result<Endpoint, TransportError> {
    let failed = |error| TransportError::Connect {
        address: address.clone(),
        error,
    };
    let uri = match address {
        Address::Unix(path) => format!("unix://{}", path.display()),
        Address::Tcp { tls: true, .. } => address.to_string(),
        Address::Tcp {
            tls: false,
            host,
            port,
        } => {
            // What was checked is what is connected to: the name is not asked again.
            let all = resolve(address, host, *port).await?;
            allow_plaintext(address, security, &all)?;
            all.first().map(|a| format!("http://{a}")).unwrap_or_default()
        }
    };
    let mut endpoint = Endpoint::from_shared(uri)
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    if matches!(address, Address::Tcp { tls: true, .. }) {
        let pem = Pem::read(address, security)?;
        let tls = ClientTlsConfig::new()
            .ca_certificate(pem.ca)
            .identity(pem.identity)
            .timeout(CONNECT_TIMEOUT);
        let failed = |error| TransportError::Tls {
            address: address.clone(),
            error,
        };
        endpoint = endpoint.tls_config(tls).map_err(failed)?;
    }
    Ok(endpoint)
}

async fn resolve(address: &Address, host: &str, port: u16) -> Result<Vec<SocketAddr>, TransportError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let failed = |error| TransportError::Resolve {
        address: address.clone(),
        host: bare.into(),
        error,
    };
    let all: Vec<SocketAddr> = tokio::net::lookup_host((bare, port))
        .await
        .map_err(failed)?
        .collect();
    if all.is_empty() {
        return Err(failed(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            "no address",
        )));
    }
    Ok(all)
}

fn allow_plaintext(address: &Address, security: &Security, all: &[SocketAddr]) -> Result<(), TransportError> {
    match all.iter().find(|a| !a.ip().to_canonical().is_loopback()) {
        Some(resolved) if !security.insecure => Err(TransportError::Plaintext {
            address: address.clone(),
            resolved: *resolved,
        }),
        _ => Ok(()),
    }
}

struct Pem {
    ca: Certificate,
    identity: Identity,
}

impl Pem {
    fn read(address: &Address, security: &Security) -> Result<Self, TransportError> {
        let Some(files) = &security.tls else {
            return Err(TransportError::NoCertificates {
                address: address.clone(),
            });
        };
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| TransportError::File {
                path: path.to_owned(),
                error,
            })
        };
        let ca = Certificate::from_pem(read(&files.ca)?);
        let identity = Identity::from_pem(read(&files.cert)?, read(&files.key)?);
        Ok(Self { ca, identity })
    }

    /// A server's side: who shows no certificate of the authority is turned away.
    fn server(self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(self.identity)
            .client_ca_root(self.ca)
            .timeout(CONNECT_TIMEOUT)
    }
}
