use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use castnet_mrp::{LeaderError, ReceiverError};
use castnet_proto::transport::TransportError;
use castnet_proto::v1::{Diversion, Role};
use castnet_rnic::stream::StreamError;
use castnet_rnic::{RnicError, Status};

use crate::meeting::Hosts;
use crate::safeguard::Slowness;

/// Error of a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum MemberError {
    /// The RNIC returned an error.
    #[error(transparent)]
    Rnic(#[from] RnicError),
    /// A QP could not be connected to its group.
    #[error("{}{error}", lane_text(*.lane))]
    Connect { lane: Option<usize>, error: RnicError },
    /// The transfer failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The thread that calls the controller could not be started.
    #[error("cannot start the thread that calls the controller: {0}")]
    Thread(io::Error),
    /// The controller could not be reached.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The controller refused.
    #[error("{doing} group {group}: {}", .status.message())]
    Status {
        doing: &'static str,
        group: String,
        status: Box<tonic::Status>,
    },
    /// The socket for registration packets could not be opened.
    #[error("registration needs UDP port {port} of {ip}: {error}")]
    Socket {
        ip: Ipv4Addr,
        port: u16,
        error: io::Error,
    },
    /// The group could not be registered.
    #[error("registration: {0}")]
    Leader(#[from] LeaderError),
    /// This receiver is not registered.
    #[error("registration: {0}")]
    Receiver(#[from] ReceiverError),
    /// The controller's answer is invalid.
    #[error("invalid answer of the controller: {what}")]
    Invalid { what: String },
    /// The number of lanes changed while this member joined.
    #[error("the group has {lanes} lanes, and {qps} QPs were made for it")]
    Lanes { lanes: usize, qps: usize },
    /// The switches could not install the group.
    #[error("group {group} could not be installed: {reason}")]
    NotInstalled {
        group: String,
        reason: String,
        /// All members.
        hosts: Hosts,
    },
    /// The controller ended the call too early.
    #[error("the controller ended the call before group {group} was active")]
    NotActive { group: String },
    /// Not all members have joined in time ([`crate::MemberConfig::join_within`]).
    #[error("group {group} was not active within {after:?}")]
    NotInTime { group: String, after: Duration },
    /// The group has another role for this host.
    #[error("{host} is the {} of group {group}", .role.as_str_name().trim_start_matches("ROLE_").to_lowercase())]
    WrongRole { host: String, group: String, role: Role },
    /// A receiver cannot send to this group next.
    #[error("a receiver cannot send to this group: {why}")]
    CannotSend { why: &'static str },
    /// The source has sent for so long without an answer ([`crate::MemberConfig::give_up`]).
    #[error("nothing has been acknowledged for {after:?}")]
    Silent { after: Duration },
    /// The goodput was too low for too long ([`crate::Member::send_guarded`]).
    #[error("{0}")]
    Slow(Slowness),
    /// The source has left the group, and goes on from host to host ([`crate::Member::divert`]).
    #[error("the source of group {group} goes on from host to host: {reason}")]
    Diverted {
        group: String,
        reason: String,
        /// Those that go on.
        hosts: Hosts,
    },
    /// The tree does not reach this receiver, and no member can pass the stream on ([`crate::MemberConfig::passes_on`]).
    #[error("no member can pass the stream on to {host}, which is outside of the tree: {reason}")]
    NotPassedOn { host: String, reason: String },
    /// What another member has passed on is not what it has.
    #[error("what {via} has passed on differs from what it has")]
    Differs { via: String },
    /// The group ended during the transfer, and waits for its members: [`crate::Member::again`].
    #[error("group {group} has ended before the transfer, and waits for its members again: {reason}")]
    Ended { group: String, reason: String },
    /// The group was destroyed during the transfer.
    #[error("group {group} was destroyed before the end")]
    Destroyed { group: String },
    /// The group goes on without this member.
    #[error("{host} was put out of group {group}{}", because(reason))]
    Evicted {
        host: String,
        group: String,
        /// Why; empty: an operator has put it out.
        reason: String,
    },
    /// [`crate::MemberConfig::interrupt`] was set.
    #[error("interrupted")]
    Interrupted,
}

fn because(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}

impl MemberError {
    pub(crate) fn diverted(group: String, diversion: Diversion) -> Self {
        let Diversion { reason, hosts, .. } = diversion;
        let hosts = Hosts::named(hosts);
        Self::Diverted { group, reason, hosts }
    }

    /// Whether the network is the reason why a source has stopped, and the receivers may be reached in another way.
    pub fn is_slow(&self) -> bool {
        match self {
            Self::Slow(_) => true,
            Self::Stream(StreamError::Work { status, .. }) => *status == Status::RetryExceeded,
            _ => false,
        }
    }

    /// Whether the group waits for its members: [`crate::Member::again`] prepares to join it with new QPs.
    pub fn may_join_again(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}

fn lane_text(lane: Option<usize>) -> String {
    lane.map_or_else(String::new, |lane| format!("connecting lane {lane}: "))
}
