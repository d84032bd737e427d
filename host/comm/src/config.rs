//! Configuration of a communicator, and the path that it uses.

use std::fmt;
use std::net::Ipv4Addr;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use castnet_proto::convert::{WINDOW_MESSAGES_MAX, WINDOW_PACKETS_MAX, WINDOW_PACKETS_MIN};
use castnet_proto::transport::{Controllers, Security};
use castnet_rnic::OutOfRange;
use castnet_rules::{CollectiveMode, LossPolicy, StragglerPolicy};
use castnet_wire::spin::Progress;
use castnet_wire::{Pmtu, Psn, RateLimit};

/// Each group has an open call, and a server may limit these for one connection.
const GROUPS_MAX: u64 = 128;

/// Whether host-based algorithms may replace those in the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Where the network cannot provide the group. A warning is logged.
    #[default]
    Allowed,
    /// Never. The call fails instead.
    Forbidden,
    /// Always. The network is not asked.
    Only,
}

/// Time-outs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until all ranks have joined and the group is active.
    pub join: Duration,
    /// Until a collective has ended. It then fails with an error that names what it waited for.
    pub collective: Duration,
    /// Until the first hop has answered ARP.
    pub resolve: Duration,
    /// Until all ranks have called [`crate::Communicator::close`].
    pub close: Duration,
    /// How long the controller waits for a rank that lost its connection before it fails the group.
    pub lease: Duration,
}

impl Default for Timeouts {
    /// One minute to join and for each collective, five seconds for the others.
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

/// Where the ranks of a job meet that has no controller. Each gives the others a few bytes, round by round; it must not block. Such a job is
/// between hosts ([`Fallback::Only`]).
pub trait Rendezvous: fmt::Debug + Send + Sync {
    /// Begins a round with the bytes that this rank gives. Those of `wanted` are asked for; if it is empty, all ranks must have given theirs.
    ///
    /// # Errors
    /// The bytes or the ranks are too many.
    fn begin(&self, round: u8, gift: Vec<u8>, wanted: &[u16]) -> Result<(), String>;
    /// What was asked for, once all is there.
    fn poll(&self) -> Option<Vec<Vec<u8>>>;
    /// The ranks that have not given anything in this round, as far as is known.
    fn missing(&self) -> Vec<u16>;
}

/// The secret of a job. Not shown in logs.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "..." })
    }
}

/// Name of the environment variable with the secret of the job.
pub const SECRET_VARIABLE: &str = "CASTNET_JOB_SECRET";

/// Configuration of a communicator. All fields but `rank`, `host`, `first_psn`, `timeouts`, `progress` and
/// `interrupt` must be the same at all ranks.
#[derive(Clone, Debug)]
pub struct CommConfig {
    /// Addresses of the controllers.
    pub controller: Controllers,
    /// Takes the place of the controller in a job between hosts.
    pub rendezvous: Option<Arc<dyn Rendezvous>>,
    /// Transport security of the connection to the controller.
    pub security: Security,
    /// Name of the job, which is also the name of the group.
    pub job: String,
    /// Whether the ranks are the members of the multicast group of this name, who go on from host to host: each has its own place, and
    /// `fallback` must be [`Fallback::Only`].
    pub is_of_members: bool,
    /// This rank, below `size`.
    pub rank: u16,
    /// Number of ranks of the job, 1 to 1024.
    pub size: u16,
    /// Name of this host, as the controller knows it.
    pub host: String,
    /// Keeps ranks of others out of the job, if not empty; at most 256 bytes. [`CommConfig::new`] takes it from the environment
    /// variable [`SECRET_VARIABLE`].
    pub secret: Secret,
    /// Number of lanes of the group, 1 to 16. Lanes are sub-groups of the same ranks; each may belong to another
    /// worker of a switch. 0: as many as an existing group has; a new group gets one.
    pub lanes: u8,
    /// Payload bytes of a full packet.
    pub pmtu: Pmtu,
    /// Packets that a rank may have in flight (EPIC's W times M), 2 to 16384, and at most 496 messages.
    pub window_packets: u32,
    /// Packets of a full message (EPIC's M), at most the window.
    pub message_packets: u32,
    /// Most that each rank sends to the group, all lanes together. `None`: as an existing group has, or the tenant of a new one.
    pub rate_limit: Option<RateLimit>,
    /// Whether sums are bit-identical for any order of arrival. Uses more memory in the switches.
    pub reproducible: bool,
    /// Whether integer sums saturate instead of wrapping.
    pub saturate: bool,
    /// How switches carry the connections of the group. `None`: as an existing group does; in a new one the controller chooses.
    pub mode: Option<CollectiveMode>,
    /// Which side repairs losses.
    pub loss: LossPolicy,
    /// How the ranks that wait for a late one are kept alive.
    pub straggler: StragglerPolicy,
    /// Time-out exponent of the queue pair: 4.096 us * 2^t; 1 to 31.
    pub qp_timeout: u8,
    /// Retries of the queue pair without progress. 7 means no limit, where the device reads it so.
    pub retry_cnt: u8,
    /// PSN of the first packet to the group. `None`: random, so that packets of an earlier connection are refused.
    pub first_psn: Option<Psn>,
    /// Groups of several ranks that this rank may have in the job at once, that of the whole job included; 1 to 128. See
    /// [`crate::Communicator::split`].
    pub groups_max: u16,
    /// Time-outs.
    pub timeouts: Timeouts,
    /// How this rank waits.
    pub progress: Progress,
    /// Whether host-based algorithms may be used.
    pub fallback: Fallback,
    /// Set to true from any thread, it ends every wait of this rank with [`crate::CommError::Interrupted`].
    pub interrupt: Option<Arc<AtomicBool>>,
}

impl CommConfig {
    /// Rank `rank` of `size` of a job. Path MTU 1024, 64 packets in flight in messages of 16, repair by the switch,
    /// 67 ms of QP time-out, 64 groups, adaptive polling, host-based algorithms allowed.
    pub fn new(
        controller: impl Into<Controllers>,
        job: impl Into<String>,
        rank: u16,
        size: u16,
        host: impl Into<String>,
    ) -> Self {
        Self {
            controller: controller.into(),
            rendezvous: None,
            security: Security::default(),
            job: job.into(),
            is_of_members: false,
            rank,
            size,
            host: host.into(),
            secret: Secret(
                std::env::var_os(SECRET_VARIABLE)
                    .map(OsStringExt::into_vec)
                    .unwrap_or_default(),
            ),
            lanes: 0,
            pmtu: Pmtu::B1024,
            window_packets: 64,
            message_packets: 16,
            rate_limit: None,
            reproducible: false,
            saturate: false,
            mode: None,
            loss: LossPolicy::default(),
            straggler: StragglerPolicy::default(),
            qp_timeout: 14,
            retry_cnt: 7,
            first_psn: None,
            groups_max: 64,
            timeouts: Timeouts::default(),
            progress: Progress::default(),
            fallback: Fallback::default(),
            interrupt: None,
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(|i| i.load(Ordering::Relaxed))
    }

    pub(crate) fn check(&self) -> Result<(), OutOfRange> {
        let rank_max = u64::from(self.size).saturating_sub(1);
        OutOfRange::check("size", self.size, 1, 1024)?;
        OutOfRange::check("rank", self.rank, 0, rank_max)?;
        OutOfRange::check("groups_max", self.groups_max, 1, GROUPS_MAX)?;
        OutOfRange::check("lanes", self.lanes, 0, castnet_rules::LANES_MAX.into())?;
        let (least, most) = (WINDOW_PACKETS_MIN.into(), WINDOW_PACKETS_MAX.into());
        OutOfRange::check("window_packets", self.window_packets, least, most)?;
        let message = u64::from(self.message_packets);
        OutOfRange::check("message_packets", message, 1, self.window_packets.into())?;
        let most = u64::from(WINDOW_MESSAGES_MAX) * message;
        OutOfRange::check("window_packets", self.window_packets, least, most)?;
        OutOfRange::check("qp_timeout", self.qp_timeout, 1, 31)?;
        OutOfRange::check("retry_cnt", self.retry_cnt, 0, 7)
    }
}

/// The path that the collectives of a communicator take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommPath {
    /// The switches compute.
    InNetwork {
        /// Address of the group; with several lanes, of the first lane.
        mcst_id: Ipv4Addr,
        /// Number of lanes.
        lanes: u8,
        /// Generation of the group's rules.
        generation: u64,
        /// Switches that ranks are attached to, ordered by name.
        switches: Vec<String>,
    },
    /// The hosts compute among themselves.
    HostBased {
        /// Why the network is not used.
        reason: String,
    },
    /// No collective has been called yet.
    Unused,
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
                write!(
                    f,
                    "between hosts (ring, chain, binomial tree, dissemination): {reason}"
                )
            }
            Self::Unused => f.write_str("none yet: no collective has been called"),
        }
    }
}
