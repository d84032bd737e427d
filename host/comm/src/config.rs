//! What a communicator is made with, and what it came to.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use castnet_proto::transport::{Address, Security};
use castnet_rules::{LossPolicy, StragglerPolicy};
use castnet_wire::{Pmtu, Psn};

use crate::error::CommError;

/// How a rank waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Polls without a pause: a busy core, the least latency.
    Spin,
    /// Sleeps where there is nothing to do.
    #[default]
    Sleep,
    /// Polls for so long, then sleeps.
    SpinThenSleep(Duration),
}

/// Whether algorithms between hosts may take the place of those in the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Where the group cannot be had in the network; it is said aloud.
    #[default]
    Allowed,
    /// Never: an error instead.
    Forbidden,
    /// Nothing else: the network is not asked.
    Only,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until all ranks have joined and the group is there.
    pub join: Duration,
    /// Until a collective has ended: then it fails with an error that names what it waited for.
    pub collective: Duration,
    /// Until the first hop has answered ARP.
    pub resolve: Duration,
    /// Until all ranks have said goodbye, in [`crate::Communicator::close`].
    pub close: Duration,
    /// How long the controller waits for a rank that it has lost before it fails the group at the others.
    pub lease: Duration,
}

impl Default for Timeouts {
    /// A minute to join and for each collective, five seconds for the rest.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            join: seconds(60),
            collective: seconds(60),
            resolve: seconds(5),
            close: seconds(5),
            lease: seconds(5),
        }
    }
}

/// What a communicator is made with. All but `rank`, `host`, `first_psn`, `timeouts`, `progress` and `interrupt` must be the
/// same at all ranks.
#[derive(Clone, Debug)]
pub struct CommConfig {
    /// Where the controller listens.
    pub controller: Address,
    /// What protects the connection to it.
    pub security: Security,
    /// The job's name, which is the group's.
    pub job: String,
    /// This rank, below `size`.
    pub rank: u16,
    /// Ranks of the job, 1 to 1024.
    pub size: u16,
    /// This host's name, as the controller knows it.
    pub host: String,
    /// How many lanes the group has, sub-groups of the same ranks that several workers of a switch share: 1 to 16. 0: as
    /// many as the group has, which one that is not there yet is made with one.
    pub lanes: u8,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// Packets that a rank may have in flight (EPIC's W times M), 2 to 16384.
    pub window_packets: u32,
    /// Packets of a full message (EPIC's M), at most the window.
    pub message_packets: u32,
    /// Sums are bit-identical for any order of arrival, for more memory in the switches.
    pub reproducible: bool,
    /// Sums of integers stop at the ends of their range instead of wrapping.
    pub saturate: bool,
    /// Who repairs losses.
    pub loss: LossPolicy,
    /// How ranks that wait for a late one are kept alive.
    pub straggler: StragglerPolicy,
    /// Time-out exponent of the queue pair: 4.096 us * 2^t; 1 to 31.
    pub qp_timeout: u8,
    /// Retries of the queue pair without progress; 7 for ever, where the device reads it so.
    pub retry_cnt: u8,
    /// PSN of the first packet that this rank sends to its group. `None`: drawn at random, so that nothing old is taken for new.
    pub first_psn: Option<Psn>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// How this rank waits.
    pub progress: Progress,
    /// Whether algorithms between hosts may be used.
    pub fallback: Fallback,
    /// Set by anybody, it ends what this rank waits for with [`CommError::Interrupted`].
    pub interrupt: Option<Arc<AtomicBool>>,
}

impl CommConfig {
    /// Rank `rank` of `size` of a job: path MTU 1024, 64 packets in flight in messages of 16, repair by the switch, 67 ms of QP
    /// time-out, sleeping, algorithms between hosts allowed.
    pub fn new(
        controller: Address,
        job: impl Into<String>,
        rank: u16,
        size: u16,
        host: impl Into<String>,
    ) -> Self {
        Self {
            controller,
            security: Security::default(),
            job: job.into(),
            rank,
            size,
            host: host.into(),
            lanes: 0,
            pmtu: Pmtu::B1024,
            window_packets: 64,
            message_packets: 16,
            reproducible: false,
            saturate: false,
            loss: LossPolicy::default(),
            straggler: StragglerPolicy::default(),
            qp_timeout: 14,
            retry_cnt: 7,
            first_psn: None,
            timeouts: Timeouts::default(),
            progress: Progress::default(),
            fallback: Fallback::default(),
            interrupt: None,
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(|i| i.load(Ordering::Relaxed))
    }

    pub(crate) fn check(&self) -> Result<(), CommError> {
        let bounds = [
            ("size", u64::from(self.size), 1, 1024),
            (
                "rank",
                self.rank.into(),
                0,
                u64::from(self.size).saturating_sub(1),
            ),
            ("lanes", self.lanes.into(), 0, castnet_rules::LANES_MAX.into()),
            ("window_packets", self.window_packets.into(), 2, 16384),
            (
                "message_packets",
                self.message_packets.into(),
                1,
                self.window_packets.into(),
            ),
            ("qp_timeout", self.qp_timeout.into(), 1, 31),
            ("retry_cnt", self.retry_cnt.into(), 0, 7),
        ];
        for (field, value, min, max) in bounds {
            if value < min || value > max {
                return Err(CommError::OutOfRange {
                    field,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

/// Which way a communicator's collectives take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommPath {
    /// Through the switches, which compute.
    InNetwork {
        /// The group's address; of several lanes that of the first.
        mcst_id: Ipv4Addr,
        /// How many lanes it has.
        lanes: u8,
        /// The generation of its rules.
        generation: u64,
        /// The switches that ranks are at, in the order of their names.
        switches: Vec<String>,
    },
    /// Between the hosts.
    HostBased {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for CommPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InNetwork {
                mcst_id,
                lanes,
                generation,
                switches,
            } => {
                write!(f, "in the network: group {mcst_id}, ")?;
                if *lanes > 1 {
                    write!(f, "{lanes} lanes, ")?;
                }
                write!(f, "generation {generation}, at {}", switches.join(", "))
            }
            Self::HostBased { reason } => {
                write!(f, "between hosts (ring, binomial tree, dissemination): {reason}")
            }
        }
    }
}
