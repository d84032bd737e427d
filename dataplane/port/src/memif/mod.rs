//! Shared memory between processes of one machine: memif, version 2.0, as VPP and DPDK (`net_memif`) have it.
//!
//! A link has two ends. The server listens at a Unix socket. The client connects, makes the memory of both, and passes
//! it over the socket. Then frames travel through rings in that memory, without a system call while both ends are awake.
//! Each end restarts at any time; a client connects again by itself.
//!
//! Each frame is copied once between shared and private memory in each direction, because the peer can change shared
//! memory at any time. What is parsed, verified or forwarded is private (decision 14).
//!
//! Rooms: `proto` (messages), `control` (the hand-shake as a machine), `socket` and `listener` (the control socket),
//! `shared` (mapped memory), `queue` (frames in rings), `doorbell` (waking the peer), `port` and `relay` (trait `Port`).

mod control;
mod doorbell;
#[cfg(test)]
mod hostile;
mod listener;
mod port;
mod proto;
mod queue;
mod relay;
mod ring;
mod socket;
mod text;

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use castnet_wire::{MacAddr, Nanos};

use crate::memory::mac_from_name;
use crate::pool::{Pool, PoolBuf};
use crate::port::{BoxPort, Port, Sides, frame_max};
use crate::ring::FrameRing;
use crate::sleep::WakeEvent;
use crate::spec::OpenError;

pub use port::MemifPort;
pub use proto::Secret;
pub use socket::Address;
pub(crate) use text::parse;

/// The MTU by default: enough for a path MTU of 4096.
const MTU: usize = 4200;
/// Slots of each ring by default. A larger ring costs cache, because all of it is cycled through.
const RING: usize = 256;
/// The mode of the socket's file by default.
const MODE: u32 = 0o600;
/// Interval between log lines of one kind.
const LOG_INTERVAL: Nanos = Nanos::from_secs(1);
/// Frames of other threads that wait to be sent.
const RELAYED: usize = 256;

/// The end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens. Called master by VPP.
    Server,
    /// Connects and makes the memory. Called slave by VPP.
    Client,
}

/// Users whose processes are accepted at the other end, by the credentials of the socket (SO_PEERCRED).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// This process's user, and root.
    #[default]
    Own,
    /// This user, this process's user, and root.
    User(u32),
    /// All that can open the socket.
    Any,
}

impl Peers {
    fn accept(self, uid: u32) -> bool {
        let is_own = uid == 0 || uid == nix::unistd::geteuid().as_raw();
        match self {
            Self::Own => is_own,
            Self::User(user) => is_own || uid == user,
            Self::Any => true,
        }
    }
}

/// One end of a memif link and its settings. Clones describe the same end.
#[derive(Clone, Debug)]
pub struct MemifSpec {
    /// The control socket.
    pub address: Address,
    /// `None`: server, and client as the port of an RNIC ([`MemifSpec::for_rnic`]).
    pub role: Option<Role>,
    /// The interface among those of a socket.
    pub id: u32,
    /// What a client must show. Not set by default.
    pub secret: Secret,
    /// Slots of each ring, a power of two of at most 16,384. Of the client's side, as is the next.
    pub ring: usize,
    /// Bytes of a slot's buffer. A longer frame takes several. `None`: a whole frame.
    pub buffer: Option<usize>,
    /// The largest packet at layer 3 in bytes.
    pub mtu: usize,
    /// `None`: derived from socket, id and role, or from the address of the RNIC.
    pub mac: Option<MacAddr>,
    /// The mode and the group of the socket's file, of the server's side.
    pub mode: u32,
    /// As above.
    pub group: Option<u32>,
    /// Accepted peers.
    pub peers: Peers,
    /// False to accept memory that the peer can shrink, or hugepages: then the peer can end this process.
    pub seals: bool,
    shared: Arc<Shared>,
}

/// What the threads of a port share.
#[derive(Debug, Default)]
struct Shared {
    up: AtomicBool,
    /// A client has arrived.
    attention: AtomicBool,
    wake: Arc<WakeEvent>,
    /// Frames of threads that only send.
    relayed: OnceLock<FrameRing<()>>,
}

impl MemifSpec {
    /// With the defaults: id 0, rings of 256, MTU 4200, sealed memory, own peers.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            role: None,
            id: 0,
            secret: Secret::default(),
            ring: RING,
            buffer: None,
            mtu: MTU,
            mac: None,
            mode: MODE,
            group: None,
            peers: Peers::default(),
            seals: true,
            shared: Arc::default(),
        }
    }

    /// As the port of an RNIC with this address: a client, with an Ethernet address of its own, unless configured.
    pub fn for_rnic(self, ip: Ipv4Addr) -> Self {
        let [a, b, c, d] = ip.octets();
        Self {
            role: self.role.or(Some(Role::Client)),
            // Unicast and locally administered. Containers have their sockets at equal paths, but addresses of their own.
            mac: self.mac.or(Some(MacAddr([0x02, 0xCA, a, b, c, d]))),
            ..self
        }
    }

    /// The role, by default the server's.
    pub fn role(&self) -> Role {
        self.role.unwrap_or(Role::Server)
    }

    /// Bytes of a buffer.
    pub fn buffer_bytes(&self) -> usize {
        // Whole cache lines, so that two buffers share none.
        self.buffer.unwrap_or(frame_max(self.mtu)).next_multiple_of(64)
    }

    fn mac(&self) -> MacAddr {
        let name = || format!("memif {:?} {self}", self.role());
        self.mac.unwrap_or_else(|| mac_from_name(&name()))
    }

    /// Opens the port for the thread that owns `pool`. One thread receives; any number may send, by the hands of that one.
    ///
    /// # Errors
    /// The socket cannot be made or is in use, or the kernel lacks something.
    pub fn open(&self, pool: &Pool, sides: Sides) -> Result<BoxPort, OpenError> {
        Ok(match sides {
            Sides::Both => Box::new(MemifPort::open(self, pool)?) as Box<dyn Port<Buf = PoolBuf>>,
            Sides::Send => Box::new(relay::Relay::new(self)),
        })
    }
}

impl std::fmt::Display for MemifSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.address)?;
        match self.id {
            0 => Ok(()),
            id => write!(f, ",id={id}"),
        }
    }
}
