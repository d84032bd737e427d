//! Work requests in, completions out: the shapes of verbs (InfiniBand Architecture Specification, volume 1, 10.8, 11.4).

use castnet_wire::Qpn;

use crate::memory::MemoryKey;

/// The longest RC message, in bytes (InfiniBand Architecture Specification, volume 1, 9.7.6).
pub(crate) const MESSAGE_MAX: u32 = 1 << 31;

/// Bytes of a local memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSlice {
    /// The region. Not looked at where `length` is 0.
    pub key: MemoryKey,
    /// First byte, relative to the region's start.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl LocalSlice {
    /// No bytes at all.
    pub const EMPTY: Self = Self {
        key: MemoryKey::NONE,
        offset: 0,
        length: 0,
    };
}

/// What a send work request does at the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Fills the next posted receive.
    Send,
    /// The same, with an immediate (the 32-bit word as read from the wire, big endian).
    SendImm(u32),
    /// Writes memory; nobody there is told.
    Write {
        /// Virtual address of the first byte there.
        va: u64,
        /// Key of the region there.
        rkey: u32,
    },
    /// Writes memory and completes the next posted receive with an immediate.
    WriteImm {
        /// Virtual address of the first byte there.
        va: u64,
        /// Key of the region there.
        rkey: u32,
        /// The immediate.
        imm: u32,
    },
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What it does.
    pub op: SendOp,
    /// The bytes. They must stay unchanged until the completion.
    pub local: LocalSlice,
    /// Marks the last packet: wake the receiver.
    pub solicited: bool,
    /// Whether success brings a completion. Failure always does.
    pub signaled: bool,
}

impl SendWr {
    /// A signaled, unsolicited request.
    pub const fn new(wr_id: u64, op: SendOp, local: LocalSlice) -> Self {
        Self {
            wr_id,
            op,
            local,
            solicited: false,
            signaled: true,
        }
    }
}

/// A receive work request: room for one SEND, or one WRITE with immediate (which leaves the room untouched).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The room.
    pub local: LocalSlice,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done. For a send: the responder has acknowledged it.
    Success,
    /// A SEND longer than the receive that it should fill.
    LocalLengthError,
    /// The local memory region is gone.
    LocalProtectionError,
    /// The responder refused the key or the bounds.
    RemoteAccessError,
    /// The responder refused the request as not allowed or malformed.
    RemoteInvalidRequest,
    /// The responder failed.
    RemoteOperationalError,
    /// No acknowledgement, however often it was sent.
    RetryExceeded,
    /// No receive was posted at the other side, however often it was sent.
    RnrRetryExceeded,
    /// The QP failed, or was made to, before this was done.
    Flushed,
    /// An error of an RNIC of the machine that none of the others says. The endpoint itself has no such errors.
    Device {
        /// Its number among the status numbers of verbs (`enum ibv_wc_status`).
        code: u32,
        /// What the provider's library says of it, where it says something.
        text: Option<&'static str>,
    },
}

/// Which work request a completion ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionOp {
    /// A SEND, with or without immediate.
    Send,
    /// A WRITE, with or without immediate.
    Write,
    /// A receive, by a SEND or by a flush.
    Recv,
    /// A receive, by a WRITE with immediate.
    RecvWriteImm,
}

/// The end of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The QP it was posted to.
    pub qpn: Qpn,
    /// As posted.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub op: CompletionOp,
    /// Bytes of the message: sent, received, or written by the WRITE with immediate. 0 where it failed.
    pub byte_len: u32,
    /// The immediate that came with it.
    pub imm: Option<u32>,
    /// The key that a SEND with invalidate made invalid here.
    pub invalidated: Option<MemoryKey>,
    /// The sender asked for the receiver to be woken.
    pub solicited: bool,
}
