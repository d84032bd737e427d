//! Streams over a QP: a file, or anything else that is read and written in order, to one receiver or to a whole group.
//!
//! [`StreamSender`] and [`StreamReceiver`] are machines over an [`Rnic`]: they never block, hold bounded memory, and are
//! driven by their owner, who polls the RNIC between their calls. [`send`] and [`receive`] are the loops round them.
//!
//! # On the wire
//!
//! A stream is a row of messages, each one SEND or WRITE with immediate, of at most `message_size` bytes. The
//! immediate is the message's kind (upper two bits) and number (lower 30 bits, counted over all streams of the QP):
//!
//! | kind | message | payload |
//! |---|---|---|
//! | 0 | begin | "CNST", version, three zero bytes, length (8 bytes; all ones: not known), name's length (2), name |
//! | 1 | data | the bytes |
//! | 2 | end | bytes in all (8), SHA-256 of them (32) |
//!
//! Numbers are big endian. The digest comes last, so the sender reads its source once.
//!
//! # Lanes
//!
//! A group that is too hot for one core of a switch is several groups of the same members, its lanes, with a QP of each
//! member in each. A stream over K lanes is the same row of messages: message k goes by lane k modulo K, and receivers
//! take them from the lanes in that order, so that no message is looked for and none waits for more than its turn. What a
//! stream has in flight, and a receiver's ring, are for each lane; in the flow control below, k is counted within the lane.
//!
//! # Flow control
//!
//! An RC acknowledgement says that bytes arrived, not that anybody has looked at them. So the receiver's posted
//! receives are the credit. It has a ring of `slots` buffers; message k goes to slot k modulo `slots`.
//!
//! - With SEND, `slots` receives are posted, one per buffer, and each is posted again once its message was consumed.
//! - With WRITE, the sender names the slot's address, and each message's immediate takes an (empty) receive. But only
//!   the last packet of a message needs the receive; the packets before it are written without. So `slots - 1` receives
//!   are posted, not `slots`: where c messages are consumed, at most c + slots - 1 are complete, so the next one that
//!   may begin is number c + slots - 1, and the one that had its slot before, number c - 1, is consumed.
//!
//! Without a receive, the responder answers RNR NAK and the sender comes again after `min_rnr_timer`. The slowest member
//! of a group thus holds all back, and nothing is lost. Where the sender's `rnr_retry` is not 7 (for ever), a
//! consumer that is slow for long fails the QP.

mod error;
mod frame;
mod receiver;
mod sender;
mod transfer;

pub use error::StreamError;
pub(crate) use error::check;
pub use frame::{Digest, StreamHeader, StreamSummary};
pub use receiver::{Event, ReceiverConfig, StreamReceiver};
pub use sender::{RemoteRing, SenderConfig, SenderLane, StreamSender, Transfer};
pub(crate) use transfer::turn;
pub use transfer::{Flow, receive, send};

#[cfg(doc)]
use crate::Rnic;
