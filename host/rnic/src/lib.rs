//! RNICs as a program on a host uses them: the trait [`Rnic`] with QPs, memory regions and completions.
//!
//! [`SoftRnic`] is the software RNIC: an [`Endpoint`](castnet_endpoint::Endpoint) on a [`Port`](castnet_port::Port),
//! with ARP. [`VerbsRnic`](verbs::VerbsRnic) is an RNIC of the machine, used through libibverbs. [`stream`] sends files
//! and other streams to one receiver or a group. [`messages`] sends messages of one size, for checks.
//!
//! One thread owns an RNIC: it posts work, calls [`Rnic::poll`], reads completions, and calls [`Rnic::wait`] if idle.
//!
//! ```
//! use castnet_port::{MemLink, MemLinkConfig, Pool, PoolConfig, Sides};
//! use castnet_rnic::{Rnic, SoftRnic, SoftRnicConfig};
//!
//! let (end, _other) = MemLink::pair(&MemLinkConfig::default());
//! let pool = Pool::new(PoolConfig::default());
//! let port = end.open(&pool, Sides::Both);
//! let mut rnic = SoftRnic::new(port, pool, SoftRnicConfig::new([10, 0, 0, 1].into()))?;
//! let qpn = rnic.create_qp(&Default::default())?;
//! let now = rnic.now();
//! rnic.poll(now)?;
//! assert!(rnic.poll_recv_completion(qpn).is_none());
//! # Ok::<(), castnet_rnic::RnicError>(())
//! ```

pub mod conformance;
mod datagrams;
mod error;
pub mod messages;
mod neighbours;
mod rnic;
mod soft;
pub mod stream;
pub mod verbs;

pub use castnet_endpoint::{
    Access, Completion, CompletionOp, Lent, LocalSlice, MemoryKey, OutOfRange, PostError, QpError, QpState,
    QueueLimits, RecvWr, Repeat, SendOp, SendWr, Status,
};
pub use castnet_port::Waker;
pub use datagrams::Datagrams;
pub use error::{RnicError, status_text};
pub use neighbours::{NeighbourConfig, NeighbourStats, Resolution};
pub use rnic::{DeviceAttributes, MemoryRegion, QpOptions, QpRemote, Rnic, Traffic};
pub use soft::{Congestion, CongestionAlgorithm, Gateway, SoftRnic, SoftRnicConfig};
