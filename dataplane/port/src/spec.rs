//! What a port is, before a thread opens it.

use std::io;
use std::path::PathBuf;

use crate::memory::MemEnd;
use crate::pool::Pool;
use crate::port::{BoxPort, Sides};

/// Why a port could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such interface in this network namespace.
    #[error("no interface `{0}` in this network namespace: `ip link` lists those there are")]
    NoSuchInterface(String),
    /// The process may not open raw sockets.
    #[error(
        "no permission to open a raw socket on `{interface}`: needs CAP_NET_RAW; run as root, or `setcap cap_net_raw+ep` the program"
    )]
    NoPermission {
        /// The interface.
        interface: String,
    },
    /// The kernel refused a step of the set-up.
    #[error("cannot set up `{interface}` ({step}): {source}; {hint}")]
    SetUp {
        /// The interface.
        interface: String,
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What to do next.
        hint: &'static str,
    },
    /// A file cannot be read or written.
    #[error("cannot open `{}`: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no capture of Ethernet frames.
    #[error("`{}` is no pcap or pcapng file of Ethernet frames: {reason}", .path.display())]
    NotACapture {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Any other backend's reason.
    #[error("cannot open port `{name}`: {reason}")]
    Other {
        /// The port.
        name: String,
        /// Why.
        reason: String,
    },
}

/// What a port is. It can be sent to the thread that will use it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PortSpec {
    /// An end of a link inside this process.
    Memory(MemEnd),
}

impl PortSpec {
    /// Opens the port for the thread that owns `pool`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, pool: &Pool, sides: Sides) -> Result<BoxPort, OpenError> {
        match self {
            Self::Memory(end) => Ok(Box::new(end.open(pool, sides))),
        }
    }
}

impl From<MemEnd> for PortSpec {
    fn from(end: MemEnd) -> Self {
        Self::Memory(end)
    }
}
