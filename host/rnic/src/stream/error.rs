use std::io;

use castnet_endpoint::{Completion, OutOfRange, Status};
use castnet_wire::Qpn;

use crate::error::{RnicError, status_text};

/// Error of a stream. The sender or receiver cannot be used afterwards.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum StreamError {
    /// An error of the RNIC.
    #[error(transparent)]
    Rnic(#[from] RnicError),
    /// A work request failed, and with it its QP.
    #[error("{}work request {wr_id} of QP {qpn} ended with {status:?}: {}", in_lane(*.lane), status_text(*.status))]
    Work {
        lane: Option<u8>,
        qpn: Qpn,
        wr_id: u64,
        status: Status,
    },
    /// A value of the configuration is out of range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The call is not possible in the current state.
    #[error("{call} is not possible now: {reason}")]
    WrongOrder {
        call: &'static str,
        reason: &'static str,
    },
    /// The source has more or fewer bytes than declared.
    #[error("the stream {name:?} was declared with {declared} bytes and has {found}{}", if *.is_end { "" } else { " or more" })]
    Length {
        /// As in its header: the name of the file.
        name: String,
        /// The declared number of bytes.
        declared: u64,
        /// The number of bytes so far.
        found: u64,
        is_end: bool,
    },
    /// A message violates the format of streams.
    #[error("message {number} is no part of a stream: {what}")]
    Malformed { number: u64, what: &'static str },
    /// The number of a message is not the expected one. RC delivers in order, so the two sides did not start together.
    #[error("expected message {expected}, received {found:#x} (modulo 2^30)")]
    OutOfSequence { expected: u64, found: u32 },
    /// The received bytes differ from the sent ones.
    #[error("{name}: SHA-256 of {bytes} bytes received differs from that of {sent_bytes} bytes sent")]
    Digest {
        name: String,
        bytes: u64,
        sent_bytes: u64,
    },
    /// The source or the sink failed.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    /// Another member of the group has begun to send. This one has sent nothing that others take for a stream, and can receive.
    #[error("another member sends: members must agree on who sends next")]
    OutOfTurn,
    /// The caller stopped the loop.
    #[error("stopped by its owner")]
    Stopped,
}

fn in_lane(lane: Option<u8>) -> String {
    lane.map_or_else(String::new, |lane| format!("lane {lane}: "))
}

pub(crate) fn check_work(done: &Completion, lane: usize, lanes: usize) -> Result<(), StreamError> {
    if done.status == Status::Success {
        return Ok(());
    }
    Err(StreamError::Work {
        lane: (lanes > 1).then_some(lane as u8),
        qpn: done.qpn,
        wr_id: done.wr_id,
        status: done.status,
    })
}
