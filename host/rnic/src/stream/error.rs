//! Why a stream ended before its end.

use std::io;

use castnet_endpoint::Status;
use castnet_wire::Qpn;

use crate::error::{RnicError, status_text};

/// Why a stream ended before its end. The machine that says it is of no more use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The RNIC refused something.
    #[error(transparent)]
    Rnic(#[from] RnicError),
    /// A work request failed, and its QP with it.
    #[error("{}work request {wr_id} of QP {qpn} ended with {status:?}: {}", in_lane(*.lane), status_text(*.status))]
    Work {
        /// The lane, where there are several.
        lane: Option<u8>,
        /// The QP.
        qpn: Qpn,
        /// Number of the message (sender) or of the slot (receiver).
        wr_id: u64,
        /// How it ended.
        status: Status,
    },
    /// A value of the configuration is out of its bounds.
    #[error("{field} is {value}, must be {min} to {max}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// What it was.
        value: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// The last stream has not ended, or none has begun.
    #[error("{call} is not possible now: {reason}")]
    WrongOrder {
        /// What was called.
        call: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// The source had more or fewer bytes than its header said.
    #[error("the stream was declared with {declared} bytes and has {found}{}", if *.is_end { "" } else { " or more" })]
    Length {
        /// Bytes that the header said.
        declared: u64,
        /// Bytes that there are, so far.
        found: u64,
        /// Whether it has ended.
        is_end: bool,
    },
    /// A message that breaks the form of streams.
    #[error("message {number} is no part of a stream: {what}")]
    Malformed {
        /// Number of the message, counted here.
        number: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A message with another number than the next one. RC delivers in order: the two sides did not begin together.
    #[error("message {expected} was next, {found:#x} (modulo 2^30) came")]
    OutOfSequence {
        /// Number that was next.
        expected: u64,
        /// Number that came.
        found: u32,
    },
    /// The bytes that arrived are not those that were sent.
    #[error("{name}: SHA-256 of {bytes} bytes received differs from that of {sent_bytes} bytes sent")]
    Digest {
        /// The stream's name.
        name: String,
        /// Bytes received.
        bytes: u64,
        /// Bytes that the sender says it sent.
        sent_bytes: u64,
    },
    /// The source or the sink failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The caller wanted no more.
    #[error("stopped by its owner")]
    Stopped,
}

fn in_lane(lane: Option<u8>) -> String {
    lane.map_or_else(String::new, |lane| format!("lane {lane}: "))
}

/// Refuses a value outside of its bounds.
pub(crate) fn check(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), StreamError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(StreamError::OutOfRange {
            field,
            value,
            min,
            max,
        })
    }
}
