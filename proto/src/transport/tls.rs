//! TLS at both ends. The files are read again once they have changed: connections that are made later use the new ones.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Context, Poll, Service};

use super::{Address, Obstacle, Security, TlsFiles, TransportError, causes};

const HTTP2: &[u8] = b"h2";

/// What changes with each replacement of a file: its inode, its length and when it was changed.
type Stamp = (u64, u64, i64, i64);

/// Settings of one end, made from its files.
pub(super) struct Reloading<C> {
    address: Address,
    files: TlsFiles,
    make: fn(&TlsFiles) -> Result<C, Fault>,
    made: Mutex<Made<C>>,
}

struct Made<C> {
    config: Arc<C>,
    /// Of the files that were read last, also if they did not work.
    stamps: [Option<Stamp>; 3],
}

pub(super) type ServerTls = Reloading<ServerConfig>;
pub(super) type ClientTls = Reloading<ClientConfig>;

/// Why files do not work.
#[derive(Debug)]
pub(super) enum Fault {
    Read(std::path::PathBuf, io::Error),
    Unusable(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

/// The error of TLS in an error and its causes, such as a certificate that is not trusted.
pub(super) fn cause<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e rustls::Error> {
    causes(error).find_map(|error| match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref()?.downcast_ref(),
        None => error.downcast_ref(),
    })
}

/// Why a handshake fails.
pub(super) fn obstacle(error: &rustls::Error) -> Obstacle {
    use rustls::CertificateError::{BadSignature, NotValidForName, NotValidForNameContext, UnknownIssuer};
    match error {
        // Authorities of the same name differ by their keys.
        rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature) => Obstacle::Authority,
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => Obstacle::Name,
        _ => Obstacle::Tls,
    }
}

impl<C> Reloading<C> {
    fn new(
        address: &Address,
        security: &Security,
        make: fn(&TlsFiles) -> Result<C, Fault>,
    ) -> Result<Self, TransportError> {
        let files = security.tls.clone();
        let files = files.ok_or_else(|| TransportError::NoCertificates(address.clone()))?;
        let stamps = stamps(&files);
        let config = make(&files).map_err(|fault| match fault {
            Fault::Read(path, error) => TransportError::File(path, error.into()),
            Fault::Unusable(why) => TransportError::Tls(address.clone(), why),
        })?;
        Ok(Self {
            address: address.clone(),
            files,
            make,
            made: Mutex::new(Made {
                config: Arc::new(config),
                stamps,
            }),
        })
    }

    /// The settings of the files as they are now; if those do not work, of the last ones that did.
    fn current(&self) -> Arc<C> {
        let made = &mut *self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(&self.files);
        if made.stamps != stamps {
            made.stamps = stamps;
            match (self.make)(&self.files) {
                Ok(config) => {
                    made.config = Arc::new(config);
                    tracing::info!(address = %self.address, "certificates were read again");
                }
                Err(fault) => {
                    tracing::warn!(address = %self.address, %fault, "new certificates do not work: the old ones stay");
                }
            }
        }
        made.config.clone()
    }
}

impl ServerTls {
    /// Of a server: clients without a certificate of the authority are refused.
    pub(super) fn server(address: &Address, security: &Security) -> Result<Self, TransportError> {
        Self::new(address, security, |files| {
            let pem = Pem::read(files)?;
            let provider = provider();
            let clients =
                WebPkiClientVerifier::builder_with_provider(Arc::new(pem.authority), provider.clone());
            let clients = clients.build().map_err(unusable(&files.ca))?;
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|e| Fault::Unusable(e.to_string()))?
                .with_client_cert_verifier(clients);
            let mut config = config
                .with_single_cert(pem.chain, pem.key)
                .map_err(unusable(&files.cert))?;
            config.alpn_protocols = vec![HTTP2.into()];
            Ok(config)
        })
    }

    pub(super) async fn accept(&self, socket: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        TlsAcceptor::from(self.current()).accept(socket).await
    }
}

impl ClientTls {
    pub(super) fn client(address: &Address, security: &Security) -> Result<Self, TransportError> {
        Self::new(address, security, |files| {
            let pem = Pem::read(files)?;
            let config = ClientConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(|e| Fault::Unusable(e.to_string()))?
                .with_root_certificates(pem.authority);
            let mut config = config
                .with_client_auth_cert(pem.chain, pem.key)
                .map_err(unusable(&files.cert))?;
            config.alpn_protocols = vec![HTTP2.into()];
            Ok(config)
        })
    }
}

/// The content of [`TlsFiles`].
struct Pem {
    authority: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Pem {
    fn read(files: &TlsFiles) -> Result<Self, Fault> {
        let mut authority = RootCertStore::empty();
        for cert in certificates(&files.ca)? {
            authority.add(cert).map_err(unusable(&files.ca))?;
        }
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(unusable(&files.key))?;
        Ok(Self {
            authority,
            chain: certificates(&files.cert)?,
            key,
        })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let all = all.map_err(unusable(path))?;
    if all.is_empty() {
        return Err(unusable(path)("no certificate in PEM"));
    }
    Ok(all)
}

fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    fs::read(path).map_err(|error| Fault::Read(path.to_owned(), error))
}

fn unusable<E: fmt::Display>(path: &Path) -> impl Fn(E) -> Fault {
    move |error| Fault::Unusable(format!("{}: {error}", path.display()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn stamps(files: &TlsFiles) -> [Option<Stamp>; 3] {
    [&files.ca, &files.cert, &files.key].map(|path| {
        let data = fs::metadata(path).ok()?;
        Some((data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
    })
}

/// The DNS names of the certificate that a client has shown, in lower case.
pub(super) fn names(stream: &server::TlsStream<TcpStream>) -> Vec<String> {
    let (_, connection) = stream.get_ref();
    let shown = connection.peer_certificates().and_then(<[_]>::first);
    let cert = shown.and_then(|der| webpki::EndEntityCert::try_from(der).ok());
    let names = cert
        .iter()
        .flat_map(|cert| cert.valid_dns_names())
        .map(str::to_ascii_lowercase);
    names.collect()
}

/// Connects a channel over TLS, each time with the files as they are.
#[derive(Clone)]
pub(super) struct Connector {
    host: String,
    port: u16,
    name: ServerName<'static>,
    tls: Arc<ClientTls>,
}

impl Connector {
    pub(super) fn new(
        address: &Address,
        host: &str,
        port: u16,
        security: &Security,
    ) -> Result<Self, TransportError> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| TransportError::Tls(address.clone(), error.to_string()))?;
        Ok(Self {
            host: host.into(),
            port,
            name,
            tls: Arc::new(ClientTls::client(address, security)?),
        })
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<client::TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = BoxFuture<Self::Response, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let socket = TcpStream::connect((this.host.as_str(), this.port)).await?;
            let _ = socket.set_nodelay(true);
            let tls = TlsConnector::from(this.tls.current());
            Ok(TokioIo::new(tls.connect(this.name, socket).await?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_certificates_are_told_apart() {
        use rustls::CertificateError::{BadSignature, Expired, NotValidForName, UnknownIssuer};
        for (fault, told) in [
            (UnknownIssuer, Obstacle::Authority),
            (BadSignature, Obstacle::Authority),
            (NotValidForName, Obstacle::Name),
            (Expired, Obstacle::Tls),
        ] {
            assert_eq!(obstacle(&fault.clone().into()), told, "{fault:?}");
        }
    }
}
