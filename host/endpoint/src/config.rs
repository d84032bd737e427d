//! Configuration of an endpoint and its QPs.

use castnet_wire::{MacAddr, Nanos, Pmtu, Psn, Qpn, RateLimit};
use core::net::Ipv4Addr;

use crate::error::{OutOfRange, QpError};
use crate::pace::Pace;
use crate::reaction::ReactionConfig;

/// Addresses and limits of an endpoint. Calls that would exceed a limit return an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Ethernet address. Frames to other addresses are discarded and counted.
    pub mac: MacAddr,
    /// IPv4 address, which is the GID of all QPs.
    pub ip: Ipv4Addr,
    /// The only entry of the partition table. 0xFFFF is the default partition with full membership.
    pub pkey: u16,
    /// The maximum number of QPs.
    pub qps_max: usize,
    /// The maximum number of memory regions.
    pub regions_max: usize,
    /// Completions that are queued or to come, at most. Posting beyond it is refused, so none is ever lost.
    pub completions_max: usize,
    /// Queued ACKs and NAKs per QP, at most. Beyond it a newer ACK replaces an ACK at the end, which it includes.
    pub responses_max: usize,
    /// True to send only the newest of several queued ACKs, which includes the others (IBA 9.7.5.1.2), as hardware
    /// RNICs do. rxe sends each ACK.
    pub coalesce_acks: bool,
    /// True to send an ACK of all packets before a gap, then the NAK. The NAK acknowledges them, too, but for rxe only an ACK is progress: its
    /// QP fails after `retry_cnt` NAKs within a message. rxe sends the NAK alone.
    pub ack_before_nak: bool,
}

impl EndpointConfig {
    /// In the default partition, with limits of 1,024 QPs, 4,096 regions and 65,536 completions.
    pub const fn new(mac: MacAddr, ip: Ipv4Addr) -> Self {
        Self {
            mac,
            ip,
            pkey: 0xFFFF,
            qps_max: 1024,
            regions_max: 4096,
            completions_max: 65_536,
            responses_max: 256,
            coalesce_acks: false,
            ack_before_nak: false,
        }
    }
}

/// Capacities of a QP's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Sends that are not acknowledged.
    pub send: usize,
    /// Receives that are not completed.
    pub receive: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            send: 256,
            receive: 1024,
        }
    }
}

/// What a sequence NAK makes a requester send again. After a time-out or an RNR NAK, each sends all unacknowledged packets again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeat {
    /// All packets from there on, as rxe does.
    #[default]
    All,
    /// That packet: for groups whose switches keep what comes behind a gap. A receiver that keeps nothing sends NAKs of the next ones, too, and
    /// after three gets all that follow.
    One,
    /// Nothing. The NAK says what is acknowledged, and a repair request that comes with it names the packet: for collectives whose switches repair.
    /// Those send single packets again on request, too: the QP keeps up to 255 packets behind a gap that it receives, and asks for each missing one
    /// by a repair request, and by no NAK.
    Requested,
}

/// Configuration of a QP and its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// QP number. 0, 1 and 0xFFFFFF are reserved.
    pub qpn: Qpn,
    /// Capacities of the queues.
    pub limits: QueueLimits,
    /// The only remote address: that of another host, or the McstID of a group.
    pub remote_ip: Ipv4Addr,
    /// Ethernet address of the next hop.
    pub remote_mac: MacAddr,
    /// The remote QP; [`Qpn::VIRTUAL`] for a group.
    pub remote_qpn: Qpn,
    /// PSN of the first packet sent.
    pub sq_psn: Psn,
    /// PSN of the first packet expected.
    pub rq_psn: Psn,
    /// Payload bytes of a full packet in both directions.
    pub pmtu: Pmtu,
    /// Timeout exponent t, below 32: retransmit after 4.096 us * 2^t without an acknowledgement. 0: never.
    pub timeout: u8,
    /// Retries without progress before the QP fails, below 8. 7 means no limit, as in rxe; InfiniBand means seven.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs before the QP fails, below 8. 7 means no limit.
    pub rnr_retry: u8,
    /// Code of the delay requested from the sender when no receive is posted, below 32.
    pub min_rnr_timer: u8,
    /// The maximum number of unacknowledged PSNs.
    pub window: u32,
    /// What a sequence NAK makes it send again.
    pub repeat: Repeat,
    /// Where an answer is overdue, by the round trips measured so far, the oldest unacknowledged packet is sent again, with AckReq: a lost
    /// last packet or ACK costs some round trips and no time-out. False: only the time-out repeats, as in rxe.
    pub probes: bool,
    /// Limit of all requests, also those sent again; `None`: no limit. The burst must hold a full packet with 128 bytes of headers.
    pub rate_limit: Option<RateLimit>,
    /// Notification point: a received request with a congestion mark (ECN: CE) causes a CNP, at most one per this time. Zero: each one
    /// does. `None`: none does.
    pub cnp_interval: Option<Nanos>,
    /// Reaction point: a received CNP lowers the rate of requests. `None`: it does not. Switches mark only packets whose type of service
    /// is ECN-capable (ECT).
    pub reaction: Option<ReactionConfig>,
    /// IPv4 type of service of all frames including ACKs, but not CNPs: DSCP and ECN.
    pub tos: u8,
    /// IPv4 time to live of all frames.
    pub ttl: u8,
}

impl QpConfig {
    /// The default of `window`. rxe's constant is 128, and it sends one packet more.
    pub const WINDOW: u32 = 129;
    /// The least time between two CNPs of DCQCN's notification point, for [`QpConfig::cnp_interval`].
    pub const CNP_INTERVAL: Nanos = Nanos::from_micros(50);
    /// IPv4 type of service of CNPs: DSCP 48, as RNICs have it.
    pub(crate) const CNP_TOS: u8 = 48 << 2;

    /// With the usual values of verbs programs: PSNs start at 0, path MTU 1024, timeout 14 (67 ms), 7 retries of both
    /// kinds (no limit), RNR timer 12 (0.64 ms).
    pub fn new(qpn: Qpn, remote_ip: Ipv4Addr, remote_mac: MacAddr, remote_qpn: Qpn) -> Self {
        Self {
            qpn,
            limits: QueueLimits::default(),
            remote_ip,
            remote_mac,
            remote_qpn,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            pmtu: Pmtu::B1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            window: Self::WINDOW,
            repeat: Repeat::All,
            probes: false,
            rate_limit: None,
            cnp_interval: None,
            reaction: None,
            tos: 0,
            ttl: 64,
        }
    }

    pub(crate) fn check(&self) -> Result<(), QpError> {
        check_qpn(self.qpn)?;
        OutOfRange::check("timeout", self.timeout, 0, 31)?;
        OutOfRange::check("retry_cnt", self.retry_cnt, 0, 7)?;
        OutOfRange::check("rnr_retry", self.rnr_retry, 0, 7)?;
        OutOfRange::check("min_rnr_timer", self.min_rnr_timer, 0, 31)?;
        // A quarter of the PSN space less one. With a larger window, old and new PSNs could not be distinguished.
        OutOfRange::check("window", self.window, 1, (1 << 22) - 1)?;
        OutOfRange::check("ttl", self.ttl, 1, 255)?;
        if let Some(limit) = self.rate_limit {
            let (least, most) = (Pace::burst_min(self.pmtu), RateLimit::BURST_MAX);
            OutOfRange::check("rate_limit.burst_bytes", limit.burst_bytes, least, most)?;
        }
        if let Some(reaction) = &self.reaction {
            reaction.check(self.pmtu)?;
        }
        if self.remote_mac.is_multicast() {
            return Err(QpError::MulticastMac { mac: self.remote_mac });
        }
        Ok(())
    }
}

pub(crate) fn check_qpn(qpn: Qpn) -> Result<(), QpError> {
    if qpn.value() < 2 || qpn.value() == 0xFF_FFFF {
        Err(QpError::Reserved { qpn })
    } else {
        Ok(())
    }
}
