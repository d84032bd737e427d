//! Work requests and completions, as in verbs (InfiniBand Architecture Specification, volume 1, 10.8, 11.4).

use castnet_wire::Qpn;

use crate::error::PostError;
use crate::memory::MemoryKey;

/// The longest RC message in bytes (InfiniBand Architecture Specification, volume 1, 9.7.6).
pub const MESSAGE_MAX: u32 = 1 << 31;

/// A slice of a local memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSlice {
    /// The region. Ignored if `length` is 0.
    pub key: MemoryKey,
    /// First byte relative to the start of the region.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

impl LocalSlice {
    /// An empty slice.
    pub const EMPTY: Self = Self {
        key: MemoryKey::NONE,
        offset: 0,
        length: 0,
    };

    /// [`PostError::OutOfBounds`] unless the slice is inside its region of `region` bytes.
    pub fn check_inside(self, region: u64) -> Result<(), PostError> {
        let Self { key, offset, length } = self;
        let end = offset.checked_add(length as u64).filter(|&end| end <= region);
        end.map(drop).ok_or(PostError::OutOfBounds {
            key,
            offset,
            length,
            region,
        })
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Fills the next posted receive of the remote.
    Send,
    /// As `Send`, with an immediate: the big-endian 32-bit word in the frame.
    SendImm(u32),
    /// Writes memory of the remote without a completion there.
    Write {
        /// Virtual address of the first byte at the remote.
        va: u64,
        /// Remote key of the region.
        rkey: u32,
    },
    /// Writes memory of the remote and completes its next posted receive with an immediate.
    WriteImm {
        /// Virtual address of the first byte at the remote.
        va: u64,
        /// Remote key of the region.
        rkey: u32,
        /// The immediate.
        imm: u32,
    },
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The bytes to send. They must not change until the completion.
    pub local: LocalSlice,
    /// Requests a solicited event at the receiver.
    pub solicited: bool,
    /// True to get a completion on success. A failure always has a completion.
    pub signaled: bool,
}

impl SendWr {
    /// Signaled, unsolicited.
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

/// A receive work request for one SEND or one WRITE with immediate. A WRITE does not change its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The buffer.
    pub local: LocalSlice,
}

/// Status of a completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Success. For a send, the responder has acknowledged it.
    Success,
    /// A SEND was longer than the receive that it would fill.
    LocalLengthError,
    /// The local memory region does not exist any more.
    LocalProtectionError,
    /// The responder refused the key or the bounds.
    RemoteAccessError,
    /// The responder refused the request as invalid.
    RemoteInvalidRequest,
    /// The responder failed.
    RemoteOperationalError,
    /// All retries were used up without an acknowledgement.
    RetryExceeded,
    /// All retries were used up while no receive was posted at the remote.
    RnrRetryExceeded,
    /// The QP failed before the request was completed.
    Flushed,
    /// An error that only a device reports and that has no other variant. The endpoint does not use it.
    Device {
        /// The status in verbs (`enum ibv_wc_status`).
        code: u32,
        /// The text of the provider's library, if it has one.
        text: Option<&'static str>,
    },
}

/// The kind of the completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionOp {
    /// A SEND, with or without immediate.
    Send,
    /// A WRITE, with or without immediate.
    Write,
    /// A receive, completed by a SEND or flushed.
    Recv,
    /// A receive, completed by a WRITE with immediate.
    RecvWriteImm,
}

/// Completion of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The QP.
    pub qpn: Qpn,
    /// The id given when it was posted.
    pub wr_id: u64,
    /// The status.
    pub status: Status,
    /// The kind.
    pub op: CompletionOp,
    /// Bytes of the message that were sent, received, or written by the WRITE with immediate. 0 after a failure.
    pub byte_len: u32,
    /// The received immediate.
    pub imm: Option<u32>,
    /// The key that a SEND with invalidate has invalidated.
    pub invalidated: Option<MemoryKey>,
    /// True if the sender requested a solicited event.
    pub solicited: bool,
}

impl Completion {
    pub(crate) const fn new(qpn: Qpn, wr_id: u64, op: CompletionOp, status: Status) -> Self {
        Self {
            qpn,
            wr_id,
            status,
            op,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
        }
    }
}
