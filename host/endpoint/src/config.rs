//! What an endpoint and its QPs are made with.

use castnet_wire::{MacAddr, Pmtu, Psn, Qpn};
use core::net::Ipv4Addr;

use crate::error::QpError;

/// An endpoint's addresses and bounds. All bounds are hard: beyond them calls are refused with a typed error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Its Ethernet address; frames to another are dropped and counted.
    pub mac: MacAddr,
    /// Its IPv4 address, the GID of all its QPs.
    pub ip: Ipv4Addr,
    /// The one entry of its partition table; 0xFFFF is the default partition, full member.
    pub pkey: u16,
    /// Most QPs at one time.
    pub qps_max: usize,
    /// Most memory regions at one time.
    pub regions_max: usize,
    /// Most completions that work requests may still bring, unpolled ones included. Posting is refused beyond, so the
    /// completion queue never overflows.
    pub completions_max: usize,
    /// Most ACKs and NAKs that wait to be sent, per QP. Beyond, a newer ACK takes the place of the newest waiting
    /// one, which it includes.
    pub responses_max: usize,
    /// Whether of several ACKs that wait to be sent only the newest goes, which includes the others (IBA 9.7.5.1.2), as
    /// RNICs in hardware do it; rxe sends each.
    pub coalesce_acks: bool,
}

impl EndpointConfig {
    /// An endpoint at `mac` and `ip` in the default partition, with room for 1,024 QPs, 4,096 regions and 65,536
    /// completions.
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
        }
    }
}

/// Work requests that a QP holds at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// In the send queue, until acknowledged.
    pub send: usize,
    /// In the receive queue, until filled.
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

/// A QP and what it is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Its own number; 0 and 1 are reserved (subnet and general management).
    pub qpn: Qpn,
    /// Depths of its queues.
    pub limits: QueueLimits,
    /// The only address it sends to and takes frames from: another host's, or a group's McstID.
    pub remote_ip: Ipv4Addr,
    /// The Ethernet address of the next hop towards it.
    pub remote_mac: MacAddr,
    /// The remote QP; [`Qpn::VIRTUAL`] for a group.
    pub remote_qpn: Qpn,
    /// PSN of the first packet it sends.
    pub sq_psn: Psn,
    /// PSN of the first packet it expects.
    pub rq_psn: Psn,
    /// Payload bytes of a full packet, both ways.
    pub pmtu: Pmtu,
    /// Time-out exponent, below 32: 4.096 us * 2^t without an acknowledgement, and it sends again. 0: never.
    pub timeout: u8,
    /// Sends again this many times without progress, then fails; below 8. 7: for ever, as rxe reads it (the
    /// InfiniBand specification means seven).
    pub retry_cnt: u8,
    /// The same for receiver-not-ready NAKs. 7: for ever.
    pub rnr_retry: u8,
    /// Code of the wait that it asks for where no receive is posted; below 32.
    pub min_rnr_timer: u8,
    /// Most PSNs that are sent and not acknowledged.
    pub window: u32,
    /// IPv4 type of service of all its frames, ACKs included: DSCP and ECN.
    pub tos: u8,
    /// IPv4 time to live of all its frames.
    pub ttl: u8,
}

impl QpConfig {
    /// PSNs that may be sent and not acknowledged, unless configured: rxe's constant is 128, and it lets one more out.
    pub const WINDOW: u32 = 129;

    /// A QP with the usual values of verbs programs: PSNs from 0, path MTU 1024, time-out 14 (67 ms), 7 retries of
    /// both kinds (for ever), RNR timer 12 (0.64 ms).
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
            tos: 0,
            ttl: 64,
        }
    }

    /// Refuses what does not fit its field's bounds.
    pub(crate) fn check(&self) -> Result<(), QpError> {
        check_qpn(self.qpn)?;
        let bounds = [
            ("timeout", self.timeout as u64, 0, 31),
            ("retry_cnt", self.retry_cnt as u64, 0, 7),
            ("rnr_retry", self.rnr_retry as u64, 0, 7),
            ("min_rnr_timer", self.min_rnr_timer as u64, 0, 31),
            // Half the circle less one: beyond, old and new PSNs could not be told apart.
            ("window", self.window as u64, 1, (1 << 22) - 1),
            ("ttl", self.ttl as u64, 1, 255),
        ];
        for (field, value, min, max) in bounds {
            if value < min || value > max {
                return Err(QpError::OutOfRange {
                    field,
                    value,
                    min,
                    max,
                });
            }
        }
        if self.remote_mac.is_multicast() {
            return Err(QpError::MulticastMac { mac: self.remote_mac });
        }
        Ok(())
    }
}

/// Refuses the reserved numbers.
pub(crate) fn check_qpn(qpn: Qpn) -> Result<(), QpError> {
    if qpn.value() < 2 || qpn.value() == 0xFF_FFFF {
        Err(QpError::Reserved { qpn })
    } else {
        Ok(())
    }
}
