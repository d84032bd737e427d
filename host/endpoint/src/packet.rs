//! What a frame means to an RC endpoint, apart from its bytes.

use castnet_wire::{Psn, Syndrome};

/// What a request does. Kept apart from opcodes: the responder's rules are about this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Send,
    Write,
    /// READ and atomics: known, and refused.
    Unsupported,
}

/// RETH: what a WRITE names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) va: u64,
    pub(crate) rkey: u32,
    pub(crate) length: u32,
}

/// One request packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) kind: RequestKind,
    /// FIRST or ONLY.
    pub(crate) is_first: bool,
    /// LAST or ONLY.
    pub(crate) is_last: bool,
    pub(crate) psn: Psn,
    pub(crate) ack_request: bool,
    pub(crate) solicited: bool,
    /// Pad bytes after the payload, 0 to 3.
    pub(crate) pad: u8,
    pub(crate) target: Option<Target>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidate: Option<u32>,
    pub(crate) payload: &'a [u8],
}

/// What a frame of the QP's transport is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meaning<'a> {
    Request(Request<'a>),
    /// ACK, NAK or RNR NAK.
    Acknowledge {
        psn: Psn,
        syndrome: Syndrome,
    },
    /// A READ or atomic response.
    DataResponse,
    /// Congestion notification.
    Cnp,
}
