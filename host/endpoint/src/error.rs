//! Errors of the endpoint's calls.

use castnet_wire::{MacAddr, Qpn};

use crate::memory::MemoryKey;
use crate::state::{QpEvent, QpState};

/// Error of creating or changing a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum QpError {
    /// The number is in use.
    #[error("QP {qpn} exists already")]
    Exists { qpn: Qpn },
    /// The QP does not exist.
    #[error("no QP {qpn}")]
    Unknown { qpn: Qpn },
    /// QPNs 0, 1 and 0xFFFFFF are reserved.
    #[error("QP number {qpn} is reserved")]
    Reserved { qpn: Qpn },
    /// The maximum number of QPs exists.
    #[error("all {max} QPs are in use")]
    TooMany { max: usize },
    /// The QP's state does not allow the event.
    #[error("QP {qpn} is in state {state:?}, which has no step {event:?}")]
    WrongState {
        qpn: Qpn,
        state: QpState,
        event: QpEvent,
    },
    /// A field of the configuration is out of range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The next hop of an RC connection must be a unicast address.
    #[error("the next hop {mac} is a multicast address")]
    MulticastMac { mac: MacAddr },
}

/// A value is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, must be {min} to {max}")]
#[allow(missing_docs, reason = "the message shows what the fields are")]
pub struct OutOfRange {
    pub field: &'static str,
    pub value: u64,
    pub min: u64,
    pub max: u64,
}

impl OutOfRange {
    /// Checks that `value` is `min` to `max`.
    pub fn check(field: &'static str, value: impl Into<u64>, min: u64, max: u64) -> Result<(), Self> {
        let value = value.into();
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self {
            field,
            value,
            min,
            max,
        })
    }
}

/// Error of posting a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum PostError {
    /// The QP does not exist.
    #[error("no QP {qpn}")]
    UnknownQp { qpn: Qpn },
    /// Sends need a connected QP.
    #[error("QP {qpn} is not connected")]
    NotConnected { qpn: Qpn },
    /// The queue is full.
    #[error("the queue of QP {qpn} is full, {max} work requests")]
    QueueFull { qpn: Qpn, max: usize },
    /// The completion queue has no capacity left. Polling completions frees capacity.
    #[error("all {max} completions are spoken for")]
    CompletionQueueFull { max: usize },
    /// No region has this key.
    #[error("no memory region has key {key}")]
    UnknownKey { key: MemoryKey },
    /// The slice is not inside the region.
    #[error("{length} bytes at {offset} are outside region {key} of {region} bytes")]
    OutOfBounds {
        key: MemoryKey,
        /// First byte relative to the start of the region.
        offset: u64,
        /// Length in bytes.
        length: u32,
        region: u64,
    },
    /// A receive needs a writable region.
    #[error("region {key} may not be written locally")]
    NotWritable { key: MemoryKey },
    /// The message exceeds the maximum of RC.
    #[error("a message of {length} bytes, at most {max}")]
    TooLong {
        /// Length in bytes.
        length: u32,
        max: u32,
    },
}

/// Error of creating or finding a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum MemoryError {
    /// The maximum number of regions exists.
    #[error("all {max} memory regions are in use")]
    TooMany { max: usize },
    /// No region has this key.
    #[error("no memory region has key {key}")]
    UnknownKey { key: MemoryKey },
    /// The region was lent for sends only.
    #[error("memory region {key} is lent for sends only")]
    ReadOnly { key: MemoryKey },
    /// The virtual addresses of the region exceed 2^64 - 1.
    #[error("{length} bytes at virtual address {va:#x} go beyond the address space")]
    Wraps {
        /// Virtual address of the first byte.
        va: u64,
        /// Length in bytes.
        length: usize,
    },
}
