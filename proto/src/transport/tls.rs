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

/// What changes with each replacement of a file, and with its owner and mode: its inode, its length and its ctime with nanoseconds.
type Stamp = (u64, u64, i64, i64);

/// The most sets of files whose settings are kept for connections. A process has one or two.
const CLIENTS_MAX: usize = 16;

/// What the connections of this process use, by their files: if new files do not work, a new connection has the old ones.
static CLIENTS: Mutex<Vec<Arc<ClientTls>>> = Mutex::new(Vec::new());

/// Settings of one end, made from its files.
pub(super) struct Reloading<C> {
    files: TlsFiles,
    make: fn(&TlsFiles) -> Result<C, Fault>,
    made: Mutex<Made<C>>,
}

struct Made<C> {
    config: Arc<C>,
    /// Of the files that were read last, also if they did not work.
    stamps: [Option<Stamp>; 3],
    /// Of the files that could not be read last.
    unread: Option<[Option<Stamp>; 3]>,
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
        files: &TlsFiles,
        make: fn(&TlsFiles) -> Result<C, Fault>,
    ) -> Result<Self, TransportError> {
        let stamps = stamps(files);
        let config = make(files).map_err(|fault| match fault {
            Fault::Read(path, error) => TransportError::File(path, error.into()),
            Fault::Unusable(why) => TransportError::Tls(address.clone(), why),
        })?;
        Ok(Self {
            files: files.clone(),
            make,
            made: Mutex::new(Made {
                config: Arc::new(config),
                stamps,
                unread: None,
            }),
        })
    }

    /// The settings of the files as they are now; if those do not work, of the last ones that did.
    fn current(&self) -> Arc<C> {
        let made = &mut *self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(&self.files);
        if made.stamps != stamps {
            let cert = self.files.cert.display();
            match (self.make)(&self.files) {
                Ok(config) => {
                    (made.config, made.stamps) = (Arc::new(config), stamps);
                    tracing::info!(%cert, "certificates were read again");
                }
                // They may be readable later without a change, as once there are descriptors again.
                Err(fault @ Fault::Read(..)) => {
                    if made.unread.replace(stamps) != Some(stamps) {
                        tracing::warn!(%cert, %fault, "new certificates cannot be read: the old ones stay until they can");
                    }
                }
                Err(fault) => {
                    made.stamps = stamps;
                    tracing::warn!(%cert, %fault, "new certificates do not work: the old ones stay until the files change");
                }
            }
        }
        made.config.clone()
    }
}

impl ServerTls {
    /// Of a server: clients without a certificate of the authority are refused.
    pub(super) fn server(address: &Address, security: &Security) -> Result<Self, TransportError> {
        Self::new(address, files(address, security)?, |files| {
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
    /// Of a client: one for each set of files.
    pub(super) fn client(address: &Address, security: &Security) -> Result<Arc<Self>, TransportError> {
        let files = files(address, security)?;
        let mut kept = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tls) = kept.iter().find(|tls| tls.files == *files) {
            return Ok(tls.clone());
        }
        let tls = Arc::new(Self::make(address, files)?);
        if kept.len() == CLIENTS_MAX {
            kept.remove(0);
        }
        kept.push(tls.clone());
        Ok(tls)
    }

    fn make(address: &Address, files: &TlsFiles) -> Result<Self, TransportError> {
        Self::new(address, files, |files| {
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

fn files<'s>(address: &Address, security: &'s Security) -> Result<&'s TlsFiles, TransportError> {
    let files = security.tls.as_ref();
    files.ok_or_else(|| TransportError::NoCertificates(address.clone()))
}

fn stamps(files: &TlsFiles) -> [Option<Stamp>; 3] {
    [&files.ca, &files.cert, &files.key].map(|path| {
        let data = fs::metadata(path).ok()?;
        Some((data.ino(), data.len(), data.ctime(), data.ctime_nsec()))
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
            tls: ClientTls::client(address, security)?,
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
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// How often the key was read, by its mode: nobody is refused as root.
    static READS: AtomicUsize = AtomicUsize::new(0);

    fn mode_of_key(files: &TlsFiles) -> Result<u32, Fault> {
        READS.fetch_add(1, Relaxed);
        let mode = fs::metadata(&files.key).unwrap().mode() & 0o777;
        match mode {
            0o600 => Err(Fault::Unusable("of another user".into())),
            mode => Ok(mode),
        }
    }

    #[test]
    fn a_key_that_gets_another_mode_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| folder.path().join(name));
        let set_mode = |mode| fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        // The clock of a file system goes in steps.
        let change = |mode, files: &TlsFiles| {
            let before = stamps(files);
            let changed = (0..10_000_000).any(|_| {
                set_mode(mode);
                stamps(files) != before
            });
            assert!(changed, "{mode:o}");
        };
        fs::write(&key, "").unwrap();
        set_mode(0o440);
        let files = TlsFiles {
            ca,
            cert,
            key: key.clone(),
        };
        let address = "https://127.0.0.1:1".parse().unwrap();
        let tls = Reloading::new(&address, &files, mode_of_key).unwrap();
        for (mode, used, reads) in [(0o440, 0o440, 1), (0o600, 0o440, 2), (0o640, 0o640, 3)] {
            if mode != 0o440 {
                change(mode, &files);
            }
            for _ in 0..2 {
                assert_eq!((*tls.current(), READS.load(Relaxed)), (used, reads), "{mode:o}");
            }
        }
    }

    /// A process without descriptors cannot read them for a while.
    #[test]
    fn files_that_could_not_be_read_are_read_again_without_a_change() {
        thread_local!(static CAN_READ: std::cell::Cell<bool> = const { std::cell::Cell::new(true) });
        let folder = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| folder.path().join(name));
        for path in [&ca, &cert, &key] {
            fs::write(path, "1").unwrap();
        }
        let tls = Reloading::new(
            &"https://localhost:1".parse().unwrap(),
            &TlsFiles {
                ca,
                cert,
                key: key.clone(),
            },
            |files| match CAN_READ.get() {
                true => Ok(fs::read_to_string(&files.key).unwrap()),
                false => Err(Fault::Read(files.key.clone(), io::ErrorKind::Other.into())),
            },
        );
        let tls = tls.unwrap();
        CAN_READ.set(false);
        fs::write(&key, "22").unwrap();
        for _ in 0..2 {
            assert_eq!(*tls.current(), "1");
        }
        CAN_READ.set(true);
        assert_eq!(*tls.current(), "22");
    }

    #[test]
    fn a_client_goes_on_with_its_files_where_new_ones_do_not_work() {
        let folder = tempfile::tempdir().unwrap();
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| folder.path().join(name));
        let made = rcgen::generate_simple_self_signed(["h1".to_owned()]).unwrap();
        fs::write(&ca, made.cert.pem()).unwrap();
        fs::write(&cert, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = Some(TlsFiles {
            ca,
            cert,
            key: key.clone(),
        });
        let security = Security {
            tls,
            ..Security::default()
        };
        let client = |at: &str| ClientTls::client(&at.parse().unwrap(), &security).unwrap();
        let first = client("https://leaf1:1").current();
        fs::write(&key, "nonsense").unwrap();
        assert!(Arc::ptr_eq(&first, &client("https://leaf2:1").current()));
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        assert!(!Arc::ptr_eq(&first, &client("https://leaf1:1").current()));
    }

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
