//! What calls are refused with. Each error carries the facts.

use castnet_wire::{MacAddr, Qpn};

use crate::memory::MemoryKey;
use crate::state::{QpEvent, QpState};

/// Why a QP could not be made or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpError {
    /// The number is taken.
    #[error("QP {qpn} exists already")]
    Exists {
        /// The number asked for.
        qpn: Qpn,
    },
    /// There is no such QP.
    #[error("no QP {qpn}")]
    Unknown {
        /// The number asked for.
        qpn: Qpn,
    },
    /// QPNs 0, 1 and 0xFFFFFF have their own meaning.
    #[error("QP number {qpn} is reserved")]
    Reserved {
        /// The number asked for.
        qpn: Qpn,
    },
    /// As many QPs as the endpoint may have.
    #[error("all {max} QPs are in use")]
    TooMany {
        /// The bound.
        max: usize,
    },
    /// Its state does not allow that step.
    #[error("QP {qpn} is in state {state:?}, which has no step {event:?}")]
    WrongState {
        /// The QP.
        qpn: Qpn,
        /// The state it is in.
        state: QpState,
        /// The step asked for.
        event: QpEvent,
    },
    /// A field of the configuration is out of its bounds.
    #[error("{field} is {value}, must be {min} to {max}")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// What it was.
        value: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// RC frames go to one station.
    #[error("the next hop {mac} is a multicast address")]
    MulticastMac {
        /// The address asked for.
        mac: MacAddr,
    },
}

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// There is no such QP.
    #[error("no QP {qpn}")]
    UnknownQp {
        /// The number asked for.
        qpn: Qpn,
    },
    /// Sends need a connected QP.
    #[error("QP {qpn} is not connected")]
    NotConnected {
        /// The QP.
        qpn: Qpn,
    },
    /// The queue holds as many as it may.
    #[error("the queue of QP {qpn} is full, {max} work requests")]
    QueueFull {
        /// The QP.
        qpn: Qpn,
        /// The queue's bound.
        max: usize,
    },
    /// Polling completions makes room.
    #[error("all {max} completions are spoken for")]
    CompletionQueueFull {
        /// The bound.
        max: usize,
    },
    /// No region has that key.
    #[error("no memory region has key {key}")]
    UnknownKey {
        /// The key asked for.
        key: MemoryKey,
    },
    /// The bytes are not all inside the region.
    #[error("{length} bytes at {offset} are outside region {key} of {region} bytes")]
    OutOfBounds {
        /// The region's key.
        key: MemoryKey,
        /// First byte, relative to the region's start.
        offset: u64,
        /// Bytes.
        length: u32,
        /// Bytes of the region.
        region: u64,
    },
    /// A receive needs a region that may be written.
    #[error("region {key} may not be written locally")]
    NotWritable {
        /// The region's key.
        key: MemoryKey,
    },
    /// Longer than an RC message may be.
    #[error("a message of {length} bytes, at most {max}")]
    TooLong {
        /// Bytes asked for.
        length: u32,
        /// The bound: 2^31.
        max: u32,
    },
}

/// Why a memory region could not be made or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// As many regions as the endpoint may have.
    #[error("all {max} memory regions are in use")]
    TooMany {
        /// The bound.
        max: usize,
    },
    /// No region has that key.
    #[error("no memory region has key {key}")]
    UnknownKey {
        /// The key asked for.
        key: MemoryKey,
    },
    /// The last byte's virtual address would be beyond 2^64 - 1.
    #[error("{length} bytes at virtual address {va:#x} go beyond the address space")]
    Wraps {
        /// Virtual address of the first byte.
        va: u64,
        /// Bytes.
        length: usize,
    },
}
