//! Addresses of switches and the controller, and the protection of connections.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use castnet_proto::access::Roles;
use castnet_proto::transport::{
    self, Address, Controllers, Obstacle, Security, SocketAccess, SocketMode, TlsFiles, TransportError,
};
use clap::Args;

use crate::api::{AgentClient, ControllerClient, ProcessClient};
use crate::exit::{Failure, Outcome};

/// Of several controllers, another one leads within this time after the leader has failed.
const TAKES_OVER_WITHIN: Duration = Duration::from_secs(5);

/// Default address of the agent of a switch.
pub const AGENT: &str = "http://127.0.0.1:7471";
/// Default address of the controller.
pub const CONTROLLER: &str = "http://127.0.0.1:7470";
/// The next step if the switch does not answer.
pub const NO_AGENT: &str =
    "start the switch (castnet switch --help), or say where it is: --agent URL or CASTNET_AGENT";
/// The next step if the controller does not answer.
pub const NO_CONTROLLER: &str = "start the controller (castnet controller --help), or say where it is: --controller URL or CASTNET_CONTROLLER";

/// Protection of a connection: the same files at both ends.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Security (https:// addresses need all three files)")]
pub struct Tls {
    /// PEM: the authority that the other side's certificate must come from
    #[arg(long = "tls-ca", global = true, value_name = "FILE", env = "CASTNET_TLS_CA")]
    pub ca: Option<PathBuf>,
    /// PEM: this side's certificate
    #[arg(
        long = "tls-cert",
        global = true,
        value_name = "FILE",
        env = "CASTNET_TLS_CERT"
    )]
    pub cert: Option<PathBuf>,
    /// PEM: this side's private key
    #[arg(long = "tls-key", global = true, value_name = "FILE", env = "CASTNET_TLS_KEY")]
    pub key: Option<PathBuf>,
    /// Accepts plaintext beyond this machine: anybody on the way can read and change it
    #[arg(long, global = true)]
    pub insecure: bool,
}

impl Tls {
    /// The set fields of `self`, the others from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            ca: self.ca.or(other.ca),
            cert: self.cert.or(other.cert),
            key: self.key.or(other.key),
            insecure: self.insecure || other.insecure,
        }
    }

    /// As the type of the transport.
    pub fn security(&self) -> Outcome<Security> {
        let tls = match (&self.ca, &self.cert, &self.key) {
            (Some(ca), Some(cert), Some(key)) => Some(TlsFiles {
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
            }),
            (None, None, None) => None,
            _ => {
                return Err(Failure::usage("only a part of the certificates is given")
                    .next("give all three: --tls-ca, --tls-cert and --tls-key"));
            }
        };
        Ok(Security {
            tls,
            insecure: self.insecure,
            socket: SocketAccess::default(),
        })
    }
}

/// Who may call a service, besides [`Tls`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Who may call (over https://, other certificates are hosts')")]
pub struct ServeArgs {
    /// A DNS name of the certificate of an operator, who may do everything; may be given again
    #[arg(long, value_name = "NAME")]
    pub operators: Vec<String>,
    /// A DNS name of the certificate of a client that may only read; may be given again
    #[arg(long, value_name = "NAME")]
    pub read_only: Vec<String>,
    /// With unix:, the group that may connect
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// With unix:, the mode of the file [default: 0660 with a group, else 0600]
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<SocketMode>,
    /// A file with a line for each call that is more than reading
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
}

impl ServeArgs {
    /// The set fields of `self`, the others from `other`.
    pub fn or(self, other: Self) -> Self {
        let list = |mine: Vec<String>, other| if mine.is_empty() { other } else { mine };
        Self {
            operators: list(self.operators, other.operators),
            read_only: list(self.read_only, other.read_only),
            socket_group: self.socket_group.or(other.socket_group),
            socket_mode: self.socket_mode.or(other.socket_mode),
            audit_log: self.audit_log.or(other.audit_log),
        }
    }

    /// The roles, without controllers.
    pub fn roles(&self) -> Roles {
        Roles {
            operators: self.operators.clone(),
            controllers: Vec::new(),
            read_only: self.read_only.clone(),
        }
    }

    /// Who may connect to a Unix socket.
    pub fn socket(&self) -> SocketAccess {
        SocketAccess {
            group: self.socket_group.clone(),
            mode: self.socket_mode,
        }
    }
}

/// The switch to ask.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "The switch")]
pub struct AgentArgs {
    /// Where its agent listens: http://127.0.0.1:PORT, https://HOST:PORT or unix:/PATH
    #[arg(long, global = true, value_name = "URL", env = "CASTNET_AGENT", default_value = AGENT)]
    pub agent: Address,
    #[command(flatten)]
    /// Files that protect the connection.
    pub tls: Tls,
}

impl AgentArgs {
    /// Connects to the switch's agent.
    pub async fn connect(&self) -> Outcome<AgentClient> {
        agent(&self.agent, &self.tls.security()?).await
    }
}

/// Connects to the agent of a switch.
pub async fn agent(address: &Address, security: &Security) -> Outcome<AgentClient> {
    let channel = transport::connect(address, security).await;
    let channel = channel.map_err(|e| failure(&e, NO_AGENT))?;
    Ok(AgentClient::new(channel).max_decoding_message_size(transport::ANSWER_BYTES_MAX))
}

/// Connects to the controller that leads. If several are given, it waits for one that takes over.
pub async fn controller(controllers: &Controllers, security: &Security) -> Outcome<ControllerClient> {
    let patience = match controllers.only() {
        Some(_) => Duration::ZERO,
        None => TAKES_OVER_WITHIN,
    };
    let client = || transport::controller(controllers, security);
    let client = transport::retry(patience, TransportError::is_transient, client).await;
    client.map_err(|e| failure(&e, NO_CONTROLLER))
}

/// Connects to the process of a switch or controller. `not_there` is the next step if it does not answer.
pub async fn process(address: &Address, security: &Security, not_there: &str) -> Outcome<ProcessClient> {
    let channel = transport::connect(address, security).await;
    Ok(ProcessClient::new(channel.map_err(|e| failure(&e, not_there))?))
}

/// The failure of a connection. `not_there` is the next step if there was no answer.
pub fn failure(error: &TransportError, not_there: &str) -> Failure {
    match error {
        // These messages already contain the next step.
        TransportError::Plaintext { .. }
        | TransportError::NoCertificates { .. }
        | TransportError::NoOperators { .. } => Failure::usage(error),
        TransportError::File { .. } | TransportError::Tls { .. } => Failure::usage(error)
            .next("see that the PEM files are whole, belong together and can be read by this user"),
        TransportError::Listen { .. } => listen_failure(error),
        TransportError::NotLeading { .. } => Failure::unreachable(error)
            .next("give all controllers: --controller A,B,C; if none leads, see that etcd runs"),
        TransportError::Connect(address, _) => Failure::unreachable(error).next(match error.obstacle() {
            Some(obstacle) => remedy(obstacle, address),
            None => not_there.into(),
        }),
        TransportError::Resolve { .. } | TransportError::Timeout { .. } | TransportError::NoController => {
            Failure::unreachable(error).next(not_there)
        }
    }
}

/// The next step of a client that is not let in, or that does not trust the server.
fn remedy(obstacle: Obstacle, address: &Address) -> String {
    match obstacle {
        Obstacle::Authority => "give the authority of the other side's certificate: --tls-ca FILE or CASTNET_TLS_CA".into(),
        Obstacle::Name => "write an address with a name of the other side's certificate, or issue it with this name: \
                           castnet pki issue DIR NAME --san HOST --force"
            .into(),
        Obstacle::Tls => "see that the other side is at https://, and that both certificates are of one authority (--tls-ca) \
                          and valid now"
            .into(),
        Obstacle::Permission => format!(
            "join the group of {address}, or start the service with --socket-group or --socket-mode; its folder must let \
             this user in, too"
        ),
    }
}

/// The failure of a service that is to listen at the address of an error.
pub fn listen_failure(error: &TransportError) -> Failure {
    match error {
        TransportError::Resolve { .. } => Failure::usage(error).next(
            "give --listen an address of this machine, such as http://127.0.0.1:PORT, https://HOST:PORT or unix:/PATH",
        ),
        TransportError::Listen(Address::Tcp { .. }, _) => {
            Failure::failed(error).next(
                "see whether it runs already: two switches on the same interfaces forward each frame twice; else choose another address with --listen",
            )
        }
        TransportError::Listen(Address::Unix(_), why) if why.kind() == ErrorKind::AddrInUse => {
            Failure::failed(error).next(
                "see whether it runs already: stop that one first, or choose another path with --listen; the file of the socket stays as it is",
            )
        }
        // As the standard library has it for a path that does not fit into an address.
        TransportError::Listen(Address::Unix(_), why) if why.kind() == ErrorKind::InvalidInput => {
            Failure::usage(error).next("give --listen a shorter path: a socket's has at most 107 bytes")
        }
        TransportError::Listen(Address::Unix(_), _) => Failure::failed(error).next(
            "give --listen a path in a folder that this user may write to, and --socket-group a group of this user",
        ),
        _ => failure(error, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_come_together_or_not_at_all() {
        let some = |name: &str| Some(PathBuf::from(name));
        let part = Tls {
            ca: some("ca.pem"),
            ..Tls::default()
        };
        assert_eq!(part.security().map_err(|f| f.code()), Err(2));
        let file = Tls {
            ca: None,
            cert: some("c.pem"),
            key: some("k.pem"),
            insecure: false,
        };
        let whole = part.or(file).security().expect("three files");
        assert_eq!(whole.tls.map(|t| t.key), some("k.pem"));
        assert!(
            Tls::default()
                .security()
                .is_ok_and(|s| s.tls.is_none() && !s.insecure)
        );
    }

    #[test]
    fn a_service_that_cannot_listen_is_told_what_to_write() {
        let of_kind = |kind: ErrorKind| std::sync::Arc::new(std::io::Error::from(kind));
        let error = || of_kind(ErrorKind::NotFound);
        let address = |text: &str| text.parse::<Address>().expect("an address");
        let tcp = address("http://nowhere:1");
        for (error, code, next) in [
            (
                TransportError::Resolve(tcp.clone(), "nowhere".into(), error()),
                2,
                "https://HOST:PORT",
            ),
            (TransportError::Listen(tcp, error()), 1, "whether it runs already"),
            (
                TransportError::Listen(address("unix:/a/b"), error()),
                1,
                "--socket-group",
            ),
            (
                TransportError::Listen(address("unix:/a/b"), of_kind(ErrorKind::AddrInUse)),
                1,
                "stop that one first",
            ),
            (
                TransportError::Listen(address("unix:/a/b"), of_kind(ErrorKind::InvalidInput)),
                2,
                "107 bytes",
            ),
        ] {
            let failure = listen_failure(&error);
            let text = failure.text();
            assert!(failure.code() == code && text.contains(next), "{text}");
        }
    }

    #[test]
    fn each_obstacle_has_its_remedy() {
        let address = "unix:/run/a.sock".parse().expect("an address");
        for (obstacle, part) in [
            (Obstacle::Authority, "--tls-ca"),
            (Obstacle::Name, "--san"),
            (Obstacle::Tls, "https://"),
            (Obstacle::Permission, "the group of unix:/run/a.sock"),
        ] {
            let next = remedy(obstacle, &address);
            assert!(next.contains(part), "{obstacle:?}: {next}");
        }
    }

    #[test]
    fn the_default_addresses_are_addresses() {
        assert!(AGENT.parse::<Address>().is_ok() && CONTROLLER.parse::<Address>().is_ok());
    }
}
