//! Streams over a QP: a file or other sequential data, to one receiver or to a group.
//!
//! [`StreamSender`] and [`StreamReceiver`] are machines over an [`Rnic`]. They never block and use bounded memory.
//! Their owner polls the RNIC between the calls. The functions [`send`] and [`receive`] are complete loops.
//!
//! # On the wire
//!
//! A stream is a sequence of messages: SENDs or WRITEs with immediate of at most `message_size` bytes. The immediate is
//! the kind (upper two bits) and the number (lower 30 bits, counted over all streams of the QP):
//!
//! | kind | message | payload |
//! |---|---|---|
//! | 0 | begin | "CNST", version, three zero bytes, length (8 bytes; all ones: not known), name's length (2), name |
//! | 1 | data | the bytes |
//! | 2 | end | bytes in all (8), SHA-256 of them (32); none: a turn is withdrawn |
//! | 3 | turn | none: in a group whose source changes, the next stream is of the sender of this message |
//!
//! Numbers are big endian. The digest is last, so the sender reads its source only once.
//!
//! # Lanes
//!
//! A group that is too hot for one core of a switch is split into several groups with the same members, its lanes. Each
//! member has a QP in each lane. A stream over K lanes has the same sequence of messages: message k uses lane k modulo
//! K. Receivers read the lanes in that order, so they never search for a message. The limit of messages in flight and
//! the receiver's ring apply per lane. In the flow control below, k is counted within the lane.
//!
//! # Turns
//!
//! In a group whose source changes, with one lane, members number their messages in common. A member sends its stream after its turn
//! message is acknowledged. If several members send a turn at once, with the same number, the switches order them, and a member has the turns
//! before its own when that is acknowledged. It may have a later one, too, so a member with the turn of another one does not send: it
//! withdraws by an end without payload, and takes its turn again after a random time, unless the other one sends. A member whose turn is
//! acknowledged sends when all turns that it has received are withdrawn. Without bridging, only one of the turns arrives.
//! Receivers count the first turn, and discard withdrawals and turns with the number of an earlier message. They have no payload, so a WRITE
//! of them changes no memory. A message of the next source also says that the stream before it has arrived everywhere, if the acknowledgement
//! of that is lost.
//!
//! # Flow control
//!
//! An RC acknowledgement means that bytes have arrived, not that they were consumed. Therefore the receiver's posted
//! receives are the credit. The receiver has a ring of `slots` buffers. Message k uses slot k modulo `slots`.
//!
//! - With SEND, `slots` receives are posted, one per buffer. Each is posted again after its message was consumed.
//! - With WRITE, the sender addresses the slot, and the immediate of each message takes an empty receive. Only the last
//!   packet of a message needs the receive; earlier packets are written without it. Therefore `slots - 1` receives are
//!   posted. When c messages are consumed, at most c + slots - 1 are complete. The next message that may start is
//!   number c + slots - 1, and the previous message in its slot, number c - 1, is consumed.
//!
//! Without a receive, the responder replies with an RNR NAK and the sender retries after `min_rnr_timer`. So
//! the slowest member of a group slows down all, and no message is lost. If the sender's `rnr_retry` is not 7
//! (no limit), a consumer that is slow for too long fails the QP.

mod error;
mod frame;
mod receiver;
mod sender;
mod transfer;
mod turn;

pub use error::StreamError;
pub(crate) use error::check_work;
pub(crate) use frame::LANES_MAX;
pub use frame::{Digest, OpenStream, StreamHeader, StreamSummary};
pub(crate) use receiver::ReceiveLane;
pub use receiver::{Event, ReceiverConfig, StreamReceiver};
pub use sender::{RemoteRing, SenderConfig, SenderLane, StreamSender, Transfer};
pub(crate) use transfer::WAIT;
pub use transfer::{Flow, Progress, receive, send, send_unless_followed};
pub use turn::take_turn;

#[cfg(doc)]
use crate::Rnic;
