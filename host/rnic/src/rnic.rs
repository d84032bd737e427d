//! The trait that every RNIC implements: software here, libibverbs behind the same calls.

use std::net::Ipv4Addr;
use std::time::Duration;

use castnet_endpoint::{Access, Completion, MemoryKey, QpState, QueueLimits, RecvWr, SendWr};
use castnet_wire::{MacAddr, Nanos, Pmtu, Psn, Qpn};

use crate::error::RnicError;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// As the operator knows it.
    pub name: String,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its IPv4 address, the GID of its QPs.
    pub ip: Ipv4Addr,
    /// Bytes of the largest IP packet.
    pub mtu: usize,
    /// The largest path MTU that fits.
    pub active_pmtu: Pmtu,
}

/// Memory that work requests and the remote can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// What local work requests name it by.
    pub key: MemoryKey,
    /// Virtual address of the first byte: what the remote names.
    pub va: u64,
    /// What the remote names it by.
    pub rkey: u32,
    /// Bytes.
    pub length: usize,
}

/// What a QP is made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpOptions {
    /// The number that it shall have. `None`: the device chooses; hardware always does, and refuses a wish.
    pub qpn: Option<Qpn>,
    /// Depths of its queues.
    pub limits: QueueLimits,
}

/// What a QP is connected to, and how it behaves. The meaning of each field is that of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRemote {
    /// Another host's address, or a group's McstID.
    pub ip: Ipv4Addr,
    /// Ethernet address of the next hop, where it is known already. `None`: by ARP.
    pub mac: Option<MacAddr>,
    /// The remote QP; [`Qpn::VIRTUAL`] for a group.
    pub qpn: Qpn,
    /// PSN of the first packet sent.
    pub sq_psn: Psn,
    /// PSN of the first packet expected.
    pub rq_psn: Psn,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// Time-out exponent: 4.096 us * 2^t, 0 for none.
    pub timeout: u8,
    /// Retries without progress; 7 for ever, where the device reads it so.
    pub retry_cnt: u8,
    /// Retries after receiver-not-ready NAKs; 7 for ever.
    pub rnr_retry: u8,
    /// Code of the wait that is asked for where no receive is posted.
    pub min_rnr_timer: u8,
    /// IPv4 type of service.
    pub tos: u8,
    /// IPv4 time to live.
    pub ttl: u8,
}

impl QpRemote {
    /// The QP `qpn` at `ip`: PSNs from 0, path MTU 1024, time-out 16 (268 ms), 7 retries of both kinds (for ever),
    /// RNR timer 12 (0.64 ms).
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
            tos: 0,
            ttl: 64,
        }
    }
}

/// An RNIC: QPs, memory regions, completions. One thread owns it. Every QP has a completion queue for its sends and one
/// for its receives, so that users of different QPs, or of the two directions of one, do not take each other's.
pub trait Rnic {
    /// What the device is.
    fn attributes(&self) -> &DeviceAttributes;

    /// The device's clock, for [`Rnic::poll`]; its origin is the device's business.
    fn now(&self) -> Nanos;

    /// Registers `length` zero bytes.
    ///
    /// # Errors
    /// The device has no room for more regions.
    fn register_memory(&mut self, length: usize, access: Access) -> Result<MemoryRegion, RnicError>;

    /// Gives a region up.
    ///
    /// # Errors
    /// There is no such region.
    fn deregister_memory(&mut self, key: MemoryKey) -> Result<(), RnicError>;

    /// Copies bytes of a region, from `offset` on, into `out`.
    ///
    /// # Errors
    /// There is no such region, or not that many bytes.
    fn read_memory(&self, key: MemoryKey, offset: u64, out: &mut [u8]) -> Result<(), RnicError>;

    /// Copies `bytes` into a region, from `offset` on.
    ///
    /// # Errors
    /// There is no such region, or not that many bytes.
    fn write_memory(&mut self, key: MemoryKey, offset: u64, bytes: &[u8]) -> Result<(), RnicError>;

    /// Makes a QP; receives may be posted from now on.
    ///
    /// # Errors
    /// The number is taken or cannot be chosen, or there are too many QPs.
    fn create_qp(&mut self, options: &QpOptions) -> Result<Qpn, RnicError>;

    /// Connects a QP: it sends and receives from now on. Blocks until the Ethernet address of the next hop is known.
    ///
    /// # Errors
    /// The QP's state or a value of `remote` does not allow it, or nobody answers within `timeout`.
    fn connect_qp(&mut self, qpn: Qpn, remote: &QpRemote, timeout: Duration) -> Result<(), RnicError>;

    /// The state of a QP.
    ///
    /// # Errors
    /// There is no such QP.
    fn qp_state(&self, qpn: Qpn) -> Result<QpState, RnicError>;

    /// Ends a QP's traffic and flushes its work requests.
    ///
    /// # Errors
    /// There is no such QP.
    fn fail_qp(&mut self, qpn: Qpn) -> Result<(), RnicError>;

    /// Removes a QP with its work requests and completions.
    ///
    /// # Errors
    /// There is no such QP.
    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), RnicError>;

    /// Posts a send.
    ///
    /// # Errors
    /// Mostly [`RnicError::Post`]; nothing was posted then.
    fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), RnicError>;

    /// Posts a receive.
    ///
    /// # Errors
    /// Mostly [`RnicError::Post`]; nothing was posted then.
    fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), RnicError>;

    /// Shows switches where this host is, soon: one that was restarted has forgotten. It is a broadcast: once a
    /// second is often.
    ///
    /// # Errors
    /// The device or the kernel refused.
    fn announce(&mut self) -> Result<(), RnicError>;

    /// Does what is due at `now`, in bounded batches: receive, answer, send, timers. Returns whether there was anything
    /// to do; if so, call it again soon.
    ///
    /// # Errors
    /// The device failed.
    fn poll(&mut self, now: Nanos) -> Result<bool, RnicError>;

    /// The next send of the QP that ended, in order.
    fn poll_send_completion(&mut self, qpn: Qpn) -> Option<Completion>;

    /// The next receive of the QP that ended, in order.
    fn poll_recv_completion(&mut self, qpn: Qpn) -> Option<Completion>;

    /// Sleeps until there may be something to poll, or `timeout` is over. May return early without a reason.
    ///
    /// # Errors
    /// The device failed.
    fn wait(&mut self, timeout: Duration) -> Result<(), RnicError>;
}
