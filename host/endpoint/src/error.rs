//! Errors of the endpoint's calls.

use castnet_wire::{MacAddr, Qpn};

use crate::memory::MemoryKey;
use crate::state::{QpEvent, QpState};

/// Error of creating or changing a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpError {
    /// The number is in use.
    #[error("QP {qpn} exists already")]
    Exists {
        /// The requested number.
        qpn: Qpn,
    },
    /// The QP does not exist.
    #[error("no QP {qpn}")]
    Unknown {
        /// The requested number.
        qpn: Qpn,
    },
    /// QPNs 0, 1 and 0xFFFFFF are reserved.
    #[error("QP number {qpn} is reserved")]
    Reserved {
        /// The requested number.
        qpn: Qpn,
    },
    /// The maximum number of QPs exists.
    #[error("all {max} QPs are in use")]
    TooMany {
        /// The maximum.
        max: usize,
    },
    /// The QP's state does not allow the event.
    #[error("QP {qpn} is in state {state:?}, which has no step {event:?}")]
    WrongState {
        /// The QP.
        qpn: Qpn,
        /// The state of the QP.
        state: QpState,
        /// The requested event.
        event: QpEvent,
    },
    /// A field of the configuration is out of range.
    #[error("{field} is {value}, must be {min} to {max}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// The value.
        value: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// The next hop of an RC connection must be a unicast address.
    #[error("the next hop {mac} is a multicast address")]
    MulticastMac {
        /// The requested address.
        mac: MacAddr,
    },
}

impl QpError {
    /// Checks field, value, minimum and maximum: [`QpError::OutOfRange`] with the first value that is out of range.
    pub fn check_bounds(bounds: &[(&'static str, u64, u64, u64)]) -> Result<(), Self> {
        for &(field, value, min, max) in bounds {
            if value < min || value > max {
                return Err(Self::OutOfRange {
                    field,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

/// Error of posting a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The QP does not exist.
    #[error("no QP {qpn}")]
    UnknownQp {
        /// The requested number.
        qpn: Qpn,
    },
    /// Sends need a connected QP.
    #[error("QP {qpn} is not connected")]
    NotConnected {
        /// The QP.
        qpn: Qpn,
    },
    /// The queue is full.
    #[error("the queue of QP {qpn} is full, {max} work requests")]
    QueueFull {
        /// The QP.
        qpn: Qpn,
        /// Capacity of the queue.
        max: usize,
    },
    /// The completion queue has no capacity left. Polling completions frees capacity.
    #[error("all {max} completions are spoken for")]
    CompletionQueueFull {
        /// The maximum.
        max: usize,
    },
    /// No region has this key.
    #[error("no memory region has key {key}")]
    UnknownKey {
        /// The given key.
        key: MemoryKey,
    },
    /// The slice is not inside the region.
    #[error("{length} bytes at {offset} are outside region {key} of {region} bytes")]
    OutOfBounds {
        /// Key of the region.
        key: MemoryKey,
        /// First byte relative to the start of the region.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// Bytes of the region.
        region: u64,
    },
    /// A receive needs a writable region.
    #[error("region {key} may not be written locally")]
    NotWritable {
        /// Key of the region.
        key: MemoryKey,
    },
    /// The message exceeds the maximum of RC.
    #[error("a message of {length} bytes, at most {max}")]
    TooLong {
        /// Length in bytes.
        length: u32,
        /// The maximum: 2^31.
        max: u32,
    },
}

/// Error of creating or finding a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The maximum number of regions exists.
    #[error("all {max} memory regions are in use")]
    TooMany {
        /// The maximum.
        max: usize,
    },
    /// No region has this key.
    #[error("no memory region has key {key}")]
    UnknownKey {
        /// The given key.
        key: MemoryKey,
    },
    /// The virtual addresses of the region exceed 2^64 - 1.
    #[error("{length} bytes at virtual address {va:#x} go beyond the address space")]
    Wraps {
        /// Virtual address of the first byte.
        va: u64,
        /// Length in bytes.
        length: usize,
    },
}
