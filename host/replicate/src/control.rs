//! The control connection between a client and a server: lines of JSON over TCP or a Unix socket. It is not
//! authenticated, as the connections of RDMA are not: who reaches it may write the served memory.

use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use castnet_proto::transport::{SocketFile, bind_unix};
use serde::{Deserialize, Serialize};

use crate::error::ReplicateError;

/// The TCP port of servers.
pub const DEFAULT_PORT: u16 = 4794;
/// Of the messages.
pub(crate) const VERSION: u32 = 1;
/// Longest line in bytes.
const LINE_MAX: u64 = 1 << 20;
/// Lines that were received and not looked at, at most.
const QUEUE: usize = 16;
/// How often a connection looks at the flag to stop.
const TICK: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for which a message may stay unsent.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host's name or address, and a TCP port.
    Tcp(String, u16),
    /// A socket of this machine.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || {
            format!(
                "'{text}' is no address of a server: write such as 10.0.0.2, h2:{DEFAULT_PORT} or unix:/run/h2.sock"
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err(fault()),
                false => Ok(Self::Unix(path.into())),
            };
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| fault())?),
            None => (text, DEFAULT_PORT),
        };
        if host.is_empty() || host.contains([':', '/']) || host.contains(char::is_whitespace) {
            return Err(fault());
        }
        Ok(Self::Tcp(host.to_owned(), port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One end of an RC connection between a client and a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) ip: Ipv4Addr,
    pub(crate) qpn: u32,
    /// PSN of its first packet.
    pub(crate) psn: u32,
    /// Bytes; the connection has the client's.
    pub(crate) pmtu: u32,
}

/// A message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// The first one.
    Hello { version: u32, client: String },
    /// Join this group as a receiver. `Failed` or `Ready` answers once the group runs.
    Join { group: String },
    /// Connect a QP with this one.
    Connect(End),
    /// Is the server there?
    Ping,
    /// In a group: have you been its member all the time? What was acknowledged before the answer is at this server.
    Confirm,
    /// All is written: leave the group, or destroy the QP.
    Finish,
    /// SHA-256 of `count` blocks of `block` bytes from block `first` on.
    Digests { block: u32, first: u64, count: u32 },
}

/// A message of a server. Each but `Failed` answers a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Hello {
        version: u32,
        server: String,
        /// Bytes that can be written.
        bytes: u64,
        file: Option<String>,
        /// The largest path MTU in bytes.
        pmtu: u32,
    },
    /// The server is connected to the group.
    Ready,
    Connected {
        end: End,
        va: u64,
        rkey: u32,
    },
    Pong,
    Confirmed,
    Finished {
        /// Processor time of the server since `Ready` or `Connected`.
        cpu_seconds: f64,
        /// Bytes written to the file.
        saved: Option<u64>,
    },
    /// In hexadecimal.
    Digests(Vec<String>),
    /// The last message: the server cannot go on.
    Failed {
        what: String,
    },
}

trait Stream: Read + Write + Send {
    fn twin(&self) -> io::Result<Box<dyn Stream>>;
    fn set_timeouts(&self) -> io::Result<()>;
    fn end(&self);
}

macro_rules! stream {
    ($stream:ty) => {
        impl Stream for $stream {
            fn twin(&self) -> io::Result<Box<dyn Stream>> {
                Ok(Box::new(self.try_clone()?))
            }

            fn set_timeouts(&self) -> io::Result<()> {
                self.set_nonblocking(false)?;
                self.set_read_timeout(Some(TICK))?;
                self.set_write_timeout(Some(SEND_TIMEOUT))
            }

            fn end(&self) {
                // It may have ended already.
                let _ = self.shutdown(std::net::Shutdown::Both);
            }
        }
    };
}

stream!(TcpStream);
stream!(UnixStream);

/// Accepts clients without blocking. The file of a Unix socket is removed on drop.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self, ReplicateError> {
        let bound = match address {
            Address::Tcp(host, port) => TcpListener::bind((host.as_str(), *port)).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }),
            Address::Unix(path) => bind_unix(path).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener, SocketFile::new(path)?))
            }),
        };
        bound.map_err(|error| ReplicateError::Listen {
            address: address.to_string(),
            error,
        })
    }

    /// The address, with the port that the kernel has chosen if port 0 was asked for.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| String::new(), |at| at.to_string()),
            Self::Unix(_, file) => Address::Unix(file.path().to_owned()).to_string(),
        }
    }

    /// A client that waits. Errors of one connection are no errors of the listener.
    pub(crate) fn accept(&self, stop: &Arc<AtomicBool>) -> Option<Control> {
        let stream: Box<dyn Stream> = match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().ok()?;
                stream.set_nodelay(true).ok();
                Box::new(stream)
            }
            Self::Unix(listener, _) => Box::new(listener.accept().ok()?.0),
        };
        // It has its own flag: the end of a connection is not the end of the server.
        Control::new("the client".to_owned(), stream, stop.clone(), Arc::default())
            .inspect_err(|error| tracing::warn!(%error, "a client's connection"))
            .ok()
    }
}

/// A connection. A thread reads its lines.
pub(crate) struct Control {
    /// Name of the other end.
    pub(crate) peer: String,
    stream: Box<dyn Stream>,
    lines: Receiver<io::Result<Vec<u8>>>,
    /// Set when the connection has ended, or the program is to stop.
    pub(crate) over: Arc<AtomicBool>,
}

impl Control {
    /// Connects to a server. `over` is set when the connection ends or `stop` is set.
    pub(crate) fn connect(
        address: &Address,
        stop: &Arc<AtomicBool>,
        over: &Arc<AtomicBool>,
    ) -> Result<Self, ReplicateError> {
        let connected = match address {
            Address::Tcp(host, port) => connect_tcp(host, *port).map(|s| Box::new(s) as Box<dyn Stream>),
            Address::Unix(path) => UnixStream::connect(path).map(|s| Box::new(s) as Box<dyn Stream>),
        };
        let control =
            connected.and_then(|stream| Self::new(address.to_string(), stream, stop.clone(), over.clone()));
        control.map_err(|error| ReplicateError::Connect {
            address: address.to_string(),
            error,
        })
    }

    fn new(
        peer: String,
        stream: Box<dyn Stream>,
        stop: Arc<AtomicBool>,
        over: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        stream.set_timeouts()?;
        let (sender, lines) = sync_channel(QUEUE);
        let (twin, set) = (stream.twin()?, over.clone());
        thread::Builder::new()
            .name("replicate-control".to_owned())
            .spawn(move || {
                read_lines(twin, &sender, &stop);
                set.store(true, Ordering::Relaxed);
            })?;
        Ok(Self {
            peer,
            stream,
            lines,
            over,
        })
    }

    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), ReplicateError> {
        let line = serde_json::to_string(message).map(|line| line + "\n");
        let sent = line
            .map_err(io::Error::from)
            .and_then(|line| self.stream.write_all(line.as_bytes()));
        sent.map_err(|error| self.gone(&error.to_string()))
    }

    /// The next message, if one has come.
    pub(crate) fn poll<T: for<'a> Deserialize<'a>>(&mut self) -> Result<Option<T>, ReplicateError> {
        match self.lines.try_recv() {
            Ok(Ok(line)) => match serde_json::from_slice(&line) {
                Ok(message) => Ok(Some(message)),
                Err(error) => Err(ReplicateError::Malformed {
                    server: self.peer.clone(),
                    what: error.to_string(),
                }),
            },
            Ok(Err(error)) => Err(self.gone(&error.to_string())),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.gone("")),
        }
    }

    fn gone(&self, why: &str) -> ReplicateError {
        ReplicateError::Gone {
            server: self.peer.clone(),
            why: why.to_owned(),
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stream.end();
    }
}

fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "it has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Reads lines until the end of the stream, an error or `stop`.
fn read_lines(stream: impl Read, lines: &SyncSender<io::Result<Vec<u8>>>, stop: &AtomicBool) {
    let (mut stream, mut line) = (BufReader::new(stream), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let rest = LINE_MAX.saturating_sub(line.len() as u64);
        let read = stream.by_ref().take(rest).read_until(b'\n', &mut line);
        let send = match read {
            Ok(_) if line.ends_with(b"\n") => Ok(std::mem::take(&mut line)),
            Ok(_) if line.len() as u64 >= LINE_MAX => {
                Err(io::Error::new(ErrorKind::InvalidData, "a message over 1 MiB"))
            }
            Ok(_) => return,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => Err(error),
        };
        let is_end = send.is_err();
        if lines.send(send).is_err() || is_end {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Control, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let control = Control::new("h2".to_owned(), Box::new(ours), Arc::default(), Arc::default());
        (control.expect("a thread"), theirs)
    }

    fn await_reply(control: &mut Control) -> Result<Reply, ReplicateError> {
        loop {
            if let Some(reply) = control.poll()? {
                return Ok(reply);
            }
            thread::yield_now();
        }
    }

    #[test]
    fn addresses_are_hosts_with_ports_or_sockets() {
        let parsed = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(parsed("10.0.0.2"), Ok("10.0.0.2:4794".to_owned()));
        assert_eq!(parsed("h2:17"), Ok("h2:17".to_owned()));
        assert_eq!(parsed("unix:/run/x"), Ok("unix:/run/x".to_owned()));
        for bad in ["", ":17", "unix:", "h2:x", "h2:70000", "a b", "http://h2"] {
            assert!(
                parsed(bad).is_err_and(|error| error.contains("10.0.0.2")),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_socket_that_a_killed_server_has_left_is_replaced_and_that_of_a_running_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let address = Address::Unix(folder.path().join("h2.sock"));
        let left = Listener::bind(&address).expect("bound");
        let refused = Listener::bind(&address)
            .map(|_| ())
            .expect_err("it is in use")
            .to_string();
        assert!(refused.contains("h2.sock"), "{refused}");
        drop(left);
        // As of a process that is killed: the file stays.
        let path = folder.path().join("left.sock");
        drop(UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        Listener::bind(&Address::Unix(path)).expect("replaced");
    }

    /// Each read gives the next piece, or times out.
    struct Pieces(Vec<Option<&'static [u8]>>);

    impl Read for Pieces {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            match self.0.is_empty() {
                true => Ok(0),
                false => match self.0.remove(0) {
                    Some(piece) => (&*piece).read(out),
                    None => Err(ErrorKind::WouldBlock.into()),
                },
            }
        }
    }

    #[test]
    fn a_line_in_pieces_is_one_message() {
        let pieces = [
            Some(&b"\"po"[..]),
            None,
            None,
            Some(b"ng\"\n\"re"),
            None,
            Some(b"ady\"\n"),
            Some(b"\"pong\""),
        ];
        let (sender, lines) = sync_channel(QUEUE);
        read_lines(Pieces(pieces.to_vec()), &sender, &AtomicBool::new(false));
        drop(sender);
        let lines: Vec<_> = lines.iter().map(|line| line.expect("a line")).collect();
        assert_eq!(lines, [&b"\"pong\"\n"[..], b"\"ready\"\n"]);
    }

    #[test]
    fn what_is_no_message_is_an_error_that_names_the_peer() {
        for (sent, expected) in [
            (&b"{}\n"[..], "no message"),
            (b"\xFF\xFE\n", "no message"),
            (&[b'x'; 1 << 20][..], "over 1 MiB"),
            (b"\"pong", "ended its connection"),
            (b"", "ended its connection"),
        ] {
            let (mut control, mut theirs) = pair();
            theirs.write_all(sent).expect("sent");
            drop(theirs);
            let error = await_reply(&mut control).expect_err("an error").to_string();
            assert!(error.starts_with("h2") && error.contains(expected), "{error}");
            while !control.over.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        }
    }
}
