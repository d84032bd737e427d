//! A stream from host to host, where the switches cannot install its group, or it is slow (Cepheus, V.D): a chain or a binomial tree of unicast
//! connections, whichever suits the number of hosts and bytes.
//!
//! The source decides what follows ([`Course`]), and broadcasts it to the others. [`Sending`] and [`Receiving`] carry that out, over a
//! communicator of the members ([`Ranks`]).

mod checks;
mod course;
mod meeting;
mod outgoing;
mod receiving;
mod sending;

use std::io;
use std::sync::Arc;

use castnet_comm::{Collectives, CommError, Communicator};
use castnet_proto::convert::reason_line;
use castnet_rnic::stream::StreamError;

use crate::error::MemberError;
use crate::meeting::MeetingPoint;
use crate::member::Outside;

pub use checks::{Check, Pattern, begun, header};
pub use course::{Course, Retry, Unfit};
use course::{Order, Position};
pub use meeting::joining_within;
pub use outgoing::Outgoing;
pub use receiving::{Destination, Receiving, Writer};
pub use sending::{Sending, cannot_send};

/// Bytes that are sent at once. The hosts pass pieces of them on before they have all.
const CHUNK: usize = 4 << 20;
/// Longest name or reason, in bytes.
const TEXT_MAX: u64 = 512;
const UNKNOWN: u64 = u64::MAX;
/// In place of a length: the source cannot send, and what comes as its name is the reason.
const FAILED: u64 = u64::MAX - 1;
/// In place of whether a receiver keeps what it has: it cannot write. The reason follows, from the first of them.
const CANNOT_WRITE: u64 = 2;

/// Error of a stream from host to host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum FallbackError {
    /// A step of all hosts failed.
    #[error(transparent)]
    Hosts(#[from] CommError),
    /// The group that was tried again failed at this host.
    #[error(transparent)]
    Group(#[from] MemberError),
    /// What is sent cannot be read.
    #[error("reading the source: {0}")]
    Read(io::Error),
    /// What has arrived cannot be written.
    #[error("writing what arrived: {0}")]
    Write(io::Error),
    /// What has arrived, and others lack, cannot be read.
    #[error("what was received cannot be read again: {0}")]
    ReadAgain(io::Error),
    /// The source sent what this version does not know.
    #[error("the source sent {what}: all members need the same version")]
    Malformed { what: String },
    /// The receivers do not have what they must.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The source has nothing to send.
    #[error("{host} cannot send: {why}")]
    CannotSend { host: String, why: String },
    /// Another receiver cannot write.
    #[error("{host} cannot write what it receives: {why}")]
    CannotWrite { host: String, why: String },
    /// What is sent has another length than its header.
    #[error("{name} has changed while it was sent: {bytes} bytes were read")]
    Changed { name: String, bytes: u64 },
    /// Another length or digest has arrived than was sent.
    #[error("{name}: the {received} bytes that were received differ from the {sent} sent")]
    Differs { name: String, received: u64, sent: u64 },
}

impl FallbackError {
    /// Why this host cannot write, for the others.
    fn why(&self) -> String {
        reason_line(&match self {
            Self::Write(error) | Self::Group(MemberError::Stream(StreamError::Io { source: error, .. })) => {
                error.to_string()
            }
            error => error.to_string(),
        })
    }
}

/// The members of a group as the ranks of a job.
#[derive(Debug)]
pub struct Ranks {
    /// Name of the group.
    pub group: String,
    /// Names of the members, by rank.
    pub members: Vec<String>,
    /// The one that sends the stream.
    pub source: u16,
    /// Of those without a controller: a late one may still need an answer.
    meeting: Option<Arc<MeetingPoint>>,
}

impl Ranks {
    fn host(&self, rank: usize) -> String {
        let name = self.members.get(rank).map_or("a member", String::as_str);
        name.to_owned()
    }
}

/// Receives which path the bytes of a stream take: in the group, or from host to host.
pub trait PathReport {
    /// These bytes went from host to host.
    fn add_between_hosts(&mut self, bytes: u64);

    /// Bytes that all have got in the group, as is found later.
    fn add_in_group(&mut self, bytes: u64);

    /// `host` tries the group again, from this byte on.
    fn tries_group(&mut self, host: &str, at_byte: u64);

    /// `host` leaves the group, at this byte and after so many bytes there. `why`: not because the stream ended.
    fn leaves_group(&mut self, host: &str, at_and_bytes: (u64, u64), why: Option<&str>);

    /// The tree of the group does not reach these receivers.
    fn note_outside(&mut self, outside: &[Outside]);

    /// All others have the stream, and the source waits for these.
    fn waits_for(&mut self, outside: &[Outside]);

    /// This receiver has passed these bytes on to receivers that the tree does not reach.
    fn note_passed_on(&mut self, bytes: u64);
}

/// Whether the transfer cannot go on from host to host after this error in the group.
pub fn ends(error: &MemberError) -> bool {
    match error {
        MemberError::Interrupted | MemberError::Rnic(_) => true,
        MemberError::Stream(error) => !matches!(error, StreamError::Work { .. } | StreamError::Stopped),
        _ => false,
    }
}

/// All get the step that the source gives; at the others, `order` is overwritten.
fn broadcast(hosts: &mut Communicator, ranks: &Ranks, order: Order) -> Result<Order, FallbackError> {
    let mut words = order.to_words();
    hosts.broadcast(&mut words, ranks.source)?;
    Order::from_words(words).ok_or_else(|| malformed("an unknown step"))
}

/// All get a text of one of them, cut at [`TEXT_MAX`]; that of the others is not looked at.
fn text(hosts: &mut Communicator, from: u16, own: &str) -> Result<String, FallbackError> {
    let mut bytes = own.as_bytes().to_vec();
    bytes.truncate(TEXT_MAX as usize);
    let mut length = [bytes.len() as u64];
    hosts.broadcast(&mut length, from)?;
    if length[0] > TEXT_MAX {
        return Err(malformed("a text of over 512 bytes"));
    }
    bytes.resize(length[0] as usize, 0);
    if !bytes.is_empty() {
        hosts.broadcast(&mut bytes, from)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The positions of all hosts, in the order of their ranks. In place of its own, a receiver that cannot write gives the reason: then all fail.
fn positions(
    hosts: &mut Communicator,
    ranks: &Ranks,
    own: Result<Position, String>,
) -> Result<Vec<Position>, FallbackError> {
    let words = match &own {
        Ok(own) => [own.bytes, own.keeps.into()],
        Err(_) => [0, CANNOT_WRITE],
    };
    let mut all = vec![0; 2 * usize::from(hosts.size())];
    hosts.allgather((&words[..], &mut all[..]))?;
    let (pairs, _) = all.as_chunks::<2>();
    let mut ranked = (0_u16..).zip(pairs);
    if let Some((rank, _)) = ranked.find(|(_, pair)| pair[1] == CANNOT_WRITE) {
        let host = ranks.host(rank.into());
        let why = text(hosts, rank, &own.err().unwrap_or_default())?;
        return Err(FallbackError::CannotWrite { host, why });
    }
    let position = |[bytes, keeps]: &[u64; 2]| Position {
        bytes: *bytes,
        keeps: *keeps == 1,
    };
    Ok(pairs.iter().map(position).collect())
}

fn malformed(what: impl Into<String>) -> FallbackError {
    FallbackError::Malformed { what: what.into() }
}
