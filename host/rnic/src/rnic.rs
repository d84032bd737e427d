//! The trait [`Rnic`], which the software RNIC and devices behind libibverbs implement.

use std::net::Ipv4Addr;
use std::time::Duration;

use castnet_endpoint::{
    Access, Completion, Lent, MemoryError, MemoryKey, QpState, QueueLimits, RecvWr, Repeat, SendWr,
};
use castnet_port::Waker;
use castnet_wire::{MacAddr, Nanos, Pmtu, Psn, Qpn, RateLimit};
use serde::Serialize;

use crate::datagrams::Datagrams;
use crate::error::RnicError;

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Name known to the operator.
    pub name: String,
    /// Ethernet address.
    pub mac: MacAddr,
    /// IPv4 address, which is the GID of the QPs.
    pub ip: Ipv4Addr,
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// The largest path MTU that fits `mtu`.
    pub active_pmtu: Pmtu,
}

/// Memory that local work requests and the remote can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Key for local work requests.
    pub key: MemoryKey,
    /// Virtual address of the first byte, used by the remote.
    pub va: u64,
    /// Key for the remote.
    pub rkey: u32,
    /// Length in bytes.
    pub length: usize,
}

/// Options for creating a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpOptions {
    /// The requested QP number. `None` lets the device choose. Hardware always chooses and refuses a requested number.
    pub qpn: Option<Qpn>,
    /// Capacities of the queues.
    pub limits: QueueLimits,
}

/// The remote end of a connection and its parameters, with the meaning that they have in verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRemote {
    /// Address of the remote host, or the McstID of a group.
    pub ip: Ipv4Addr,
    /// Ethernet address of the next hop if known. `None` resolves it by ARP.
    pub mac: Option<MacAddr>,
    /// The remote QP; [`Qpn::VIRTUAL`] for a group.
    pub qpn: Qpn,
    /// PSN of the first packet sent.
    pub sq_psn: Psn,
    /// PSN of the first packet expected.
    pub rq_psn: Psn,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// Timeout exponent t: the timeout is 4.096 us * 2^t. 0 means no timeout.
    pub timeout: u8,
    /// Retries without progress. 7 means no limit on devices that define it so.
    pub retry_cnt: u8,
    /// Retries after receiver-not-ready NAKs. 7 means no limit.
    pub rnr_retry: u8,
    /// Code of the delay requested from the sender when no receive is posted.
    pub min_rnr_timer: u8,
    /// What this end sends again after a sequence NAK. The software RNIC does that; devices behind libibverbs do as they are set up.
    pub repeat: Repeat,
    /// Limit of what this end sends. The software RNIC keeps to it; devices behind libibverbs do not.
    pub rate_limit: Option<RateLimit>,
    /// IPv4 type of service.
    pub tos: u8,
    /// IPv4 time to live.
    pub ttl: u8,
}

impl QpRemote {
    /// The QP `qpn` at `ip`: PSNs start at 0, path MTU 1024, timeout 16 (268 ms), 7 retries of both kinds (no
    /// limit), RNR timer 12 (0.64 ms).
    pub const fn new(ip: Ipv4Addr, qpn: Qpn) -> Self {
        Self {
            ip,
            mac: None,
            qpn,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            pmtu: Pmtu::B1024,
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            repeat: Repeat::All,
            rate_limit: None,
            tos: 0,
            ttl: 64,
        }
    }
}

/// Counters since the RNIC was opened; `None` if not counted. Those of an RDMA device cover all its users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Frames sent.
    pub frames_sent: Option<u64>,
    /// Frames sent again.
    pub retransmissions: Option<u64>,
    /// Time-outs of QPs.
    pub timeouts: Option<u64>,
    /// NAKs received for a sequence error.
    pub naks_received: Option<u64>,
    /// Receiver-not-ready NAKs received.
    pub rnr_naks_received: Option<u64>,
    /// Requests received that were not new.
    pub duplicates_received: Option<u64>,
    /// NAKs sent for a sequence error.
    pub naks_sent: Option<u64>,
    /// Receiver-not-ready NAKs sent.
    pub rnr_naks_sent: Option<u64>,
    /// Congestion notifications received.
    pub cnps_received: Option<u64>,
    /// Congestion notifications sent.
    pub cnps_sent: Option<u64>,
    /// Those of the frames sent again that only asked for an acknowledgement after a silence: no sign of a loss.
    #[serde(skip)]
    pub probes: u64,
    /// Grows while remotes answer: ACKs, or completions where ACKs are not counted, and NAKs.
    #[serde(skip)]
    pub answers: u64,
    /// Grows while remotes send: requests, or completions where requests are not counted, and duplicates.
    #[serde(skip)]
    pub requests: u64,
}

/// An RNIC with QPs, memory regions and completions. One thread owns it. Each QP has a completion queue for sends and
/// one for receives, so users of different QPs or directions do not take each other's completions.
///
/// # Errors
/// Calls fail if the QP or region does not exist, the region is too short, or the device or the kernel fails.
pub trait Rnic {
    /// Properties of the device.
    fn attributes(&self) -> &DeviceAttributes;

    /// What was counted so far. May read files, so a few times per second is often enough.
    fn traffic(&self) -> Traffic;

    /// The current time of the device's clock, for [`Rnic::poll`]. The origin is unspecified.
    fn now(&self) -> Nanos;

    /// Registers a region of `length` zero bytes. Fails if the device has no capacity for further regions.
    fn register_memory(&mut self, length: usize, access: Access) -> Result<MemoryRegion, RnicError>;

    /// Releases a region.
    fn deregister_memory(&mut self, key: MemoryKey) -> Result<(), RnicError>;

    /// Makes lent memory a region for local work requests. An RNIC that cannot do this returns the memory, as in this
    /// default.
    fn lend_memory(&mut self, memory: Lent) -> Result<MemoryKey, (Lent, RnicError)> {
        Err((memory, RnicError::NoLentMemory))
    }

    /// Removes a region of lent memory and returns the memory. Work requests that still refer to the region fail.
    fn end_lending(&mut self, key: MemoryKey) -> Result<Lent, RnicError> {
        Err(MemoryError::UnknownKey { key }.into())
    }

    /// Copies bytes of a region, starting at `offset`, into `out`.
    fn read_memory(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), RnicError>;

    /// Copies `bytes` into a region, starting at `offset`.
    fn write_memory(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), RnicError>;

    /// Creates a QP, which takes receives from now on. Fails if its number is in use or cannot be chosen, or there are
    /// too many QPs.
    fn create_qp(&mut self, options: &QpOptions) -> Result<Qpn, RnicError>;

    /// Connects a QP, which then sends and receives. Blocks until the Ethernet address of the next hop is resolved.
    ///
    /// # Errors
    /// The QP's state or a value of `remote` does not allow it, or the next hop does not reply within `timeout`.
    fn connect_qp(&mut self, qpn: Qpn, remote: &QpRemote, timeout: Duration) -> Result<(), RnicError>;

    /// The state of a QP.
    fn qp_state(&self, qpn: Qpn) -> Result<QpState, RnicError>;

    /// Resets a QP to [`QpState::Init`]. It keeps its number, and can be connected again, with other PSNs. Its work requests are removed
    /// without a completion; completions stay. What arrives before it is connected again may be lost.
    fn reset_qp(&mut self, qpn: Qpn) -> Result<(), RnicError>;

    /// Moves a QP to the error state and flushes its work requests.
    fn fail_qp(&mut self, qpn: Qpn) -> Result<(), RnicError>;

    /// Removes a QP with its work requests and completions.
    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), RnicError>;

    /// Posts a send. If that fails, usually with [`RnicError::Post`], nothing was posted.
    fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), RnicError>;

    /// Posts a receive. If that fails, usually with [`RnicError::Post`], nothing was posted.
    fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), RnicError>;

    /// Opens a UDP port at the address of this RNIC. `None`: the RNIC carries no datagrams, and the kernel has its address. A
    /// port may be opened several times; all get what it receives.
    fn datagrams(&mut self, port: u16) -> Option<Datagrams>;

    /// Announces this host soon: a restarted switch has lost its table. This is a broadcast; once a second is enough.
    fn announce(&mut self) -> Result<(), RnicError>;

    /// Does the work that is due at `now`, in bounded batches. Returns true if there was work: call it again soon.
    fn poll(&mut self, now: Nanos) -> Result<bool, RnicError>;

    /// The next completion of a send on this QP, in order.
    fn poll_send_completion(&mut self, qpn: Qpn) -> Option<Completion>;

    /// The next completion of a receive on this QP, in order.
    fn poll_recv_completion(&mut self, qpn: Qpn) -> Option<Completion>;

    /// Sleeps until there may be work, [`Rnic::waker`] is used or `timeout` has passed. Does not sleep if `ready` returns
    /// true: it must look at all that is announced by the waker. It may return early.
    fn wait_unless(&mut self, timeout: Duration, ready: &dyn Fn() -> bool) -> Result<(), RnicError>;

    /// Wakes the thread of this RNIC, from any thread.
    fn waker(&self) -> Waker;

    /// [`Rnic::wait_unless`] without a condition.
    fn wait(&mut self, timeout: Duration) -> Result<(), RnicError> {
        self.wait_unless(timeout, &|| false)
    }

    /// [`Rnic::poll`], and without work [`Rnic::wait`]. Returns true if there was work.
    fn poll_or_wait(&mut self, timeout: Duration) -> Result<bool, RnicError> {
        let now = self.now();
        let worked = self.poll(now)?;
        if !worked {
            self.wait(timeout)?;
        }
        Ok(worked)
    }
}

/// Checks that `offset..offset + length` is inside a region of `region` bytes.
pub(crate) fn range(offset: u64, length: usize, region: usize) -> Result<std::ops::Range<usize>, RnicError> {
    let from = usize::try_from(offset).ok();
    let end = from
        .and_then(|from| from.checked_add(length))
        .filter(|&end| end <= region);
    match (from, end) {
        (Some(from), Some(end)) => Ok(from..end),
        _ => Err(RnicError::OutOfBounds {
            offset,
            length,
            region,
        }),
    }
}
