use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use castnet_proto::convert::rate_limit_from_proto;
use castnet_proto::transport::{Controllers, Security};
use castnet_proto::v1 as api;
use castnet_rnic::Repeat;
use castnet_wire::{Pmtu, Psn, Qpn, RateLimit};

use crate::error::MemberError;
use crate::registration::Registration;

/// The group, and how to join it.
#[derive(Clone, Debug)]
pub enum Group {
    /// Joined over the controller.
    Named {
        /// Name of the group.
        name: String,
        /// Addresses of the controllers.
        controller: Controllers,
        /// Transport security of the connection to the controller.
        security: Security,
        /// How long to wait for a controller that does not answer yet, and for a group that does not exist yet.
        wait: Duration,
    },
    /// Installed by a rule file. Nothing is joined.
    Fixed {
        /// This member's QPN. `None`: the device chooses it.
        qpn: Option<Qpn>,
        /// The group.
        address: GroupAddress,
    },
    /// Registered by its source with MRP. An RNIC that carries no datagrams ([`castnet_rnic::Rnic::datagrams`]) needs a kernel that has its
    /// address and a route to the McstID.
    InBand {
        /// This member's QPN. `None`: the device chooses it.
        qpn: Option<Qpn>,
        /// The group: one lane, `va_base` 0 and no rate limit. All members must be given the same.
        address: GroupAddress,
        /// How it is registered.
        registration: Registration,
    },
}

impl Group {
    /// The name of a group that is joined over the controller.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Named { name, .. } => Some(name),
            Self::Fixed { .. } | Self::InBand { .. } => None,
        }
    }
}

/// What the QPs of a member are connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAddress {
    /// One McstID for each lane.
    pub mcst_ids: Vec<Ipv4Addr>,
    /// The remote QPN, the same in all lanes.
    pub virtual_qpn: Qpn,
    /// PSN of the source's first packet.
    pub start_psn: Psn,
    /// Path MTU.
    pub pmtu: Pmtu,
    /// The source's WRITEs use virtual addresses from here on; the switches translate them.
    pub va_base: u64,
    /// Limit of what the source sends in each lane. The software RNIC keeps to it.
    pub rate_limit: Option<RateLimit>,
    /// After a NAK the software RNIC sends one packet again where the switches have what follows. Not in a group with any source: a NAK may call
    /// a member to send, when all its packets so far were dropped.
    pub repeat: Repeat,
    /// Whether hosts that send and receive synchronize their PSNs when the source changes, because the switches do not bridge them.
    pub synchronizes: bool,
}

impl TryFrom<&api::GroupState> for GroupAddress {
    type Error = MemberError;

    fn try_from(state: &api::GroupState) -> Result<Self, MemberError> {
        let invalid = |what: String| MemberError::Invalid { what };
        let limit =
            rate_limit_from_proto("", state.rate_limit).map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            mcst_ids: api::Lane::mcst_ids(&state.lanes, &state.mcst_id).map_err(invalid)?,
            // Each member of a multicast group is a host with an address of its own.
            virtual_qpn: Qpn::VIRTUAL,
            start_psn: Psn::new(state.start_psn),
            pmtu: Pmtu::from_bytes(state.pmtu).ok_or_else(|| invalid(format!("path MTU {}", state.pmtu)))?,
            va_base: state.va_base,
            rate_limit: limit.map(|limit| limit.per_lane(state.lanes.len() as u8)),
            repeat: match state.repair.is_some() && state.any_source() == api::AnySource::Unspecified {
                true => Repeat::One,
                false => Repeat::All,
            },
            synchronizes: state.any_source() == api::AnySource::Synchronized,
        })
    }
}

/// Configuration of a member. `by_write`, `message_size` and, with WRITE, `slots` must be the same at all members.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// Name of this host in the group.
    pub host: String,
    /// The group.
    pub group: Group,
    /// Whether the source uses WRITE with immediate instead of SEND with immediate.
    pub by_write: bool,
    /// Bytes of a full message, 1 KiB to 16 MiB.
    pub message_size: u32,
    /// Messages in a receiver's ring, 2 to 65,536.
    pub slots: u32,
    /// Time-out exponent of the QPs: 4.096 us * 2^t.
    pub timeout: u8,
    /// Retries of the QPs without progress. 7 means no limit, where the device reads it so.
    pub retry_cnt: u8,
    /// Retries of the QPs after receiver-not-ready NAKs. 7 means no limit.
    pub rnr_retry: u8,
    /// How long to wait for an answer to ARP for the McstID.
    pub connect_timeout: Duration,
    /// How long this member keeps its place in the group after its call to the controller broke, at most 10 minutes.
    pub lease: Duration,
    /// Whether a receiver also joins a group that runs, from the next message of the source on.
    pub from_next_message: bool,
    /// At a source: it waits for receivers that the tree does not reach ([`crate::Member::await_outside`]). At a receiver of streams: it can be
    /// one of them, and gets the stream from another member. Groups whose members do not co-work are installed for all or for none.
    pub co_works: bool,
    /// Whether a receiver of streams keeps what it receives ([`crate::Member::receive_kept`]), and passes it on to receivers that the tree does
    /// not reach.
    pub passes_on: bool,
    /// How long to wait until all members have joined and the group is active. `None`: no limit.
    pub join_within: Option<Duration>,
    /// How long a source sends without any answer before it fails. `None`: no limit.
    pub give_up: Option<Duration>,
    /// Set to true from any thread, it ends every call with [`MemberError::Interrupted`].
    pub interrupt: Option<Arc<AtomicBool>>,
}

impl MemberConfig {
    /// A member that uses SEND: messages of 64 KiB, 32 in a ring. QPs have a time-out of 67 ms and retry without limit.
    /// 5 seconds for ARP, and for the lease; a source never gives up.
    pub fn new(host: impl Into<String>, group: Group) -> Self {
        Self {
            host: host.into(),
            group,
            by_write: false,
            message_size: 64 << 10,
            slots: 32,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            connect_timeout: Duration::from_secs(5),
            lease: Duration::from_secs(5),
            from_next_message: false,
            co_works: false,
            passes_on: false,
            join_within: None,
            give_up: None,
            interrupt: None,
        }
    }

    /// Whether [`MemberConfig::interrupt`] was set.
    pub fn is_interrupted(&self) -> bool {
        self.interrupt
            .as_ref()
            .is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}
