//! Multicast from a program: a host joins a group as its source or as a receiver, and sends or receives a stream. The
//! switches copy what the source sends; it is done when every receiver has acknowledged everything.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use castnet_member::{Group, MemberConfig, MemberError, StreamHeader};
//! use castnet_rnic::{SoftRnic, SoftRnicConfig};
//!
//! fn group() -> Group {
//!     Group::Named {
//!         name: "weights".into(),
//!         controller: "http://127.0.0.1:7470".parse().expect("an address"),
//!         security: Default::default(),
//!         wait: Duration::from_secs(60),
//!     }
//! }
//!
//! fn send(bytes: &[u8]) -> Result<(), MemberError> {
//!     let port = "af_packet:eth0".parse().expect("a port");
//!     let mut rnic = SoftRnic::open(&port, SoftRnicConfig::new([10, 0, 0, 1].into()))?;
//!     let mut source = castnet_member::source(MemberConfig::new("h1", group()), &mut rnic)?.join()?;
//!     let header = StreamHeader { name: "weights.bin".into(), length: Some(bytes.len() as u64) };
//!     source.send(&header, &mut &*bytes, &mut |_, _| {})?;
//!     source.leave()
//! }
//!
//! fn receive() -> Result<Vec<u8>, MemberError> {
//!     let port = "af_packet:eth0".parse().expect("a port");
//!     let mut rnic = SoftRnic::open(&port, SoftRnicConfig::new([10, 0, 0, 2].into()))?;
//!     let mut receiver = castnet_member::receiver(MemberConfig::new("h2", group()), &mut rnic)?.join()?;
//!     let (_, bytes) = receiver.receive(&mut |_| Ok(Vec::new()), &mut |_, _| {})?;
//!     receiver.leave()?;
//!     Ok(bytes)
//! }
//! ```
//!
//! 1. [`source`], [`receiver`] or [`message_receiver`] creates the QPs, one for each lane, and a receiver's memory.
//! 2. [`Prepared::join`] joins over the controller and waits until the group is active, or uses the given address
//!    ([`Group::Fixed`], for switches with rule files), or registers the group in the band ([`Group::InBand`], for switches that serve
//!    MRP). It connects the QPs.
//! 3. [`Member`] sends or receives; [`Member::leave`] ends the membership. With [`Member::leave_and_ask`], the source learns who has
//!    everything, as the group goes on without receivers that are lost. If the group ends before the transfer, as without
//!    its source, [`MemberError::may_join_again`] is true, and [`Member::again`] prepares to join with new QPs.
//! 4. [`Member::send_guarded`] stops in a group that is slow, and returns what is left. [`Member::divert`] then leads the receivers to what
//!    follows: their calls fail with [`MemberError::Diverted`].
//! 5. With [`MemberConfig::co_works`], a receiver that the tree does not reach gets the stream from another member, and
//!    [`Member::await_outside`] waits for it.
//! 6. Where the switches do not carry the group, or its source has led its members out of it, [`fallback`] sends the stream from host to host.
//!
//! All calls block. They poll the RNIC, so that the host answers ARP and acknowledges. Calls to the controller run on a
//! thread of their own, over one connection for all members and ranks of the process that name the same controllers and
//! certificates. Do not call from an async task.
#![forbid(unsafe_code)]

mod config;
mod controller;
mod error;
pub mod fallback;
mod host;
mod meeting;
mod member;
mod passing;
mod registration;
mod safeguard;
mod silence;

pub use castnet_mrp::{Roll, TooMuch};
pub use castnet_proto::transport::{Address, Controllers, Security};
pub use castnet_proto::v1::{Connection, Role};
pub use castnet_rnic::messages::{MessageReceiver, Messages, MessagesSummary};
pub use castnet_rnic::stream::{OpenStream, StreamHeader, StreamReceiver, StreamSummary};
pub use config::{Group, GroupAddress, MemberConfig};
pub use error::MemberError;
pub use meeting::{Hosts, MeetingPoint};
pub use member::{
    CameFrom, Fate, Member, Outside, Prepared, ReceiverState, Source, Transferred, message_receiver,
    receiver, region, source,
};
pub use registration::{Others, Registration};
pub use safeguard::{Safeguard, Slowness, Unsent};
