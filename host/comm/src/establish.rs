//! Establishes a group, also after a failure: joins the group in the network, or connects the hosts.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use castnet_group::GivenSettings;
use castnet_proto::convert::{disagreement_from_proto, rate_limit_from_proto, settings_to_proto};
use castnet_proto::v1 as api;
use castnet_rnic::{QpOptions, QpRemote, QueueLimits, Repeat, Rnic};
use castnet_wire::{MacAddr, Pmtu, Psn, Qpn, Verdict};

use crate::config::{CommPath, Fallback, Rendezvous};
use crate::control::{Answer, Control, Lease};
use crate::driver::Driver;
use crate::error::{CommError, ControllerError, RankName};
use crate::group::{GRACE, Group};
use crate::machine::{HostBased, HostBasedConfig, InNetwork, InNetworkConfig, Laned, Machine, peers};

/// How much longer than a request itself its answer is waited for: the error of the controller says what is missing, ours does not.
const MARGIN: Duration = Duration::from_secs(1);
/// Longest sleep of a rank that waits for the controller. It must answer ARP in the meantime.
const SLEEP_MAX: Duration = Duration::from_millis(2);
/// Longest sleep of a rank that has waited long for an answer, such as one that has finished. A frame wakes it.
const LONG_SLEEP_MAX: Duration = Duration::from_millis(50);

/// Numbers of the exchanges, the same in each attempt: a restarted rank does not know how often the others joined.
const EXCHANGE_QUEUE_PAIRS: u8 = 0;
const EXCHANGE_CONNECTED: u8 = 1;
/// The exchange of [`Group::close`].
pub(crate) const EXCHANGE_GOODBYE: u8 = 2;

/// How often a rank that waits for its group announces its address to the switches.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT_UNIT_NS: u64 = 4096;

/// Of this process, from 1.
static ATTEMPTS: AtomicU64 = AtomicU64::new(1);

/// A random first PSN, so that packets of an earlier connection are not accepted.
fn random_psn() -> Psn {
    Psn::new(RandomState::new().build_hasher().finish() as u32 & (Psn::MODULUS - 1))
}

/// 4.096 us * 2^code in whole microseconds. Rounded down like the controller's default, because the two are compared.
/// [`castnet_proto::convert::WINDOW_MESSAGES_MAX`] follows from it.
const LIMITS: QueueLimits = QueueLimits {
    send: 1024,
    receive: 1024,
};

fn timeout_us(code: u8) -> u32 {
    let ns = TIMEOUT_UNIT_NS << u32::from(code.min(31));
    u32::try_from(ns / 1000).unwrap_or(u32::MAX)
}

/// The smallest code whose time-out is at least `us`, within one microsecond.
fn timeout_code(us: u32) -> u8 {
    let ns = u64::from(us.saturating_sub(1)) * 1000;
    (1..31).find(|&code| TIMEOUT_UNIT_NS << code >= ns).unwrap_or(31)
}

/// The next sleep of a rank that has waited for so long: it notices the end at most a quarter late.
fn sleep_after(waited: Duration) -> Duration {
    (waited / 4).clamp(SLEEP_MAX, LONG_SLEEP_MAX)
}

fn invalid(what: impl Into<String>) -> CommError {
    ControllerError::Invalid { what: what.into() }.into()
}

impl Group {
    pub(crate) fn establish(&mut self) -> Result<(), CommError> {
        self.await_failure_notice()?;
        self.release();
        self.attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        if self.config.size == 1 {
            self.connect_hosts("the job has one rank".into())?;
        } else if self.config.fallback == Fallback::Only || self.config.rendezvous.is_some() {
            self.connect_hosts("asked for".into())?;
        } else {
            match self.connect_in_network() {
                Err(CommError::Refused { reason, .. }) if self.config.fallback == Fallback::Allowed => {
                    self.connect_hosts(reason)?;
                }
                connected => connected?,
            }
        }
        self.broken = self.pending_failure.is_some();
        let (job, rank, size) = (&self.config.job, self.config.rank, self.config.size);
        match &self.path {
            CommPath::HostBased { .. } if size > 1 && self.config.fallback != Fallback::Only => {
                tracing::warn!(job, rank, size, path = %self.path, "collectives");
            }
            _ => tracing::info!(job, rank, size, path = %self.path, "collectives"),
        }
        Ok(())
    }

    /// Waits until the switches have reported why the group failed: joining again removes the old group and the report.
    fn await_failure_notice(&mut self) -> Result<(), CommError> {
        let start = Instant::now();
        while self.lease.is_some() && self.lost_group().is_none() && start.elapsed() < 2 * GRACE {
            self.idle(SLEEP_MAX)?;
        }
        self.lease = None;
        Ok(())
    }

    pub(crate) fn release(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            driver.close(&mut self.rnic);
        }
        self.broken = true;
    }

    /// Polls the RNIC, or sleeps. A rank that waits for its group goes on with the collectives of other groups.
    fn idle(&mut self, sleep_max: Duration) -> Result<(), CommError> {
        if !self.progress_others() {
            self.rnic.poll_or_wait(sleep_max)?;
        }
        Ok(())
    }

    fn control(&self) -> Result<&Control, CommError> {
        if let Some(control) = self.control.get() {
            return Ok(control);
        }
        let control = Control::new(&self.config.controller, &self.config.security)?;
        Ok(self.control.get_or_init(|| control))
    }

    fn settings(&self, lanes: usize) -> api::CollectiveSettings {
        let config = &self.config;
        settings_to_proto(&GivenSettings {
            pmtu: Some(config.pmtu),
            window_packets: config.window_packets.try_into().ok(),
            message_packets: config.message_packets.try_into().ok(),
            reproducible: Some(config.reproducible),
            mode: config.mode,
            loss_policy: Some(config.loss),
            straggler_policy: Some(config.straggler),
            ack_timeout_us: Some(timeout_us(config.qp_timeout)),
            lanes: lanes.try_into().ok(),
            rate_limit: config.rate_limit,
            ..GivenSettings::default()
        })
    }

    /// Number of lanes that the group has or will have.
    fn lanes(&mut self) -> Result<usize, CommError> {
        if self.config.lanes > 0 {
            return Ok(self.config.lanes.into());
        }
        let (job, patience) = (self.config.job.clone(), self.config.timeouts.join);
        let answer = self.control()?.lanes(job, patience);
        Ok(self.await_answer(answer, patience + MARGIN)?.into())
    }

    /// Joins the group and connects its queue pairs, one for each lane.
    fn connect_in_network(&mut self) -> Result<(), CommError> {
        let lanes = self.lanes()?;
        // An existing group may have larger settings than ours.
        let limits = LIMITS;
        let options = QpOptions {
            limits,
            ..QpOptions::default()
        };
        let mut qpns = Vec::with_capacity(lanes);
        let created = (0..lanes).try_for_each(|_| {
            qpns.push(self.rnic.create_qp(&options)?);
            Ok::<_, CommError>(())
        });
        let joined = created.and_then(|()| self.join_with(&qpns, limits));
        if joined.is_err() && self.driver.is_none() {
            (self.holding, self.lease) = (None, None);
            self.destroy_qps(&qpns, "not joined");
        }
        joined
    }

    fn destroy_qps(&mut self, qpns: &[Qpn], why: &str) {
        for &qpn in qpns {
            let destroyed = self.rnic.destroy_qp(qpn);
            tracing::debug!(?destroyed, %qpn, why, "queue pair");
        }
    }

    fn join_with(&mut self, qpns: &[Qpn], limits: QueueLimits) -> Result<(), CommError> {
        let sq_psn = self.config.first_psn.unwrap_or_else(random_psn);
        let device = self.rnic.attributes();
        let lanes = qpns.iter().map(|qpn| api::LaneConnection {
            qpn: qpn.value(),
            memory: None,
        });
        let lease_ms = self.config.timeouts.lease.as_millis().min(600_000) as u32;
        let request = api::InitGroupRequest {
            job: self.config.job.clone(),
            rank: self.config.rank.into(),
            size: self.config.size.into(),
            host: self.config.host.clone(),
            connection: Some(api::Connection::new(device.ip, device.mac, lanes)),
            sq_psn: sq_psn.value(),
            settings: Some(self.settings(qpns.len())),
            lease_ms,
            rejoin_of: self.generation,
            returns_to: None,
            secret: self.config.secret.0.clone(),
            differences: true,
        };
        let patience = self.config.timeouts.join;
        // The lease before ends first.
        self.holding = None;
        let (lease, holding) = self.control()?.join(request, patience);
        (self.holding, self.lease) = (Some(holding), Some(lease.clone()));
        let state = self.await_group(&lease)?;
        self.names = state.members.iter().map(|m| m.host.clone()).collect();
        self.generation = Some(state.generation);
        if state.phase() == api::CollectivePhase::Failed {
            self.pending_failure = Some(group_failure(&state));
            self.lease = None;
            self.destroy_qps(qpns, &state.reason);
            return Ok(());
        }
        if !state.reason.is_empty() {
            let (job, rank, reason) = (&self.config.job, self.config.rank, &state.reason);
            tracing::warn!(job, rank, reason, "the group is not as it could be");
        }
        let settings = state.settings.unwrap_or_else(|| self.settings(qpns.len()));
        let reproducible = settings.reproducible();
        if self.config.reproducible && !reproducible {
            return Err(self.not_reproducible());
        }
        let mcst_ids = api::Lane::mcst_ids(&state.lanes, &state.mcst_id).map_err(invalid)?;
        if mcst_ids.len() != qpns.len() {
            let what = format!("{} lanes for {} queue pairs", mcst_ids.len(), qpns.len());
            return Err(invalid(what));
        }
        let pmtu =
            Pmtu::from_bytes(settings.pmtu).ok_or_else(|| invalid(format!("path MTU {}", settings.pmtu)))?;
        let mut config = InNetworkConfig {
            pmtu,
            window_packets: settings.window_packets,
            message_packets: settings.message_packets,
            reproducible,
            ..InNetworkConfig::new(self.config.rank, self.config.size)
        };
        let mut machine = InNetwork::new(config);
        // A smaller window is always allowed. The length of messages must be the same at all ranks.
        while machine.shape().send_slots as usize > limits.send && config.window_packets > 1 {
            config.window_packets = (config.window_packets / 2).max(config.message_packets);
            let before = *machine.config();
            machine = InNetwork::new(config);
            if *machine.config() == before {
                break;
            }
        }
        let machine: Box<dyn Machine + Send> = match qpns.len() {
            1 => Box::new(machine),
            lanes => Box::new(Laned::new(vec![machine; lanes])),
        };
        let mut driver = Driver::new(&mut self.rnic, machine, qpns.to_vec()).map_err(CommError::from)?;
        let own = state
            .members
            .iter()
            .find(|member| member.rank == u32::from(self.config.rank));
        let virtual_qpn = own.and_then(|member| member.virtual_qpn);
        let virtual_qpn = virtual_qpn.map_or(Qpn::VIRTUAL, Qpn::new);
        let rate_limit = rate_limit_from_proto("settings", settings.rate_limit);
        let rate_limit = rate_limit.map_err(|error| invalid(error.to_string()))?;
        let lanes = qpns.len() as u8;
        let remote = |mcst_id| QpRemote {
            sq_psn,
            rq_psn: Psn::new(state.rq_psn),
            pmtu,
            timeout: timeout_code(settings.ack_timeout_us),
            retry_cnt: self.config.retry_cnt,
            repeat: repeat(&settings),
            rate_limit: rate_limit.map(|limit| limit.per_lane(lanes).for_sender()),
            ..QpRemote::new(mcst_id, virtual_qpn)
        };
        let patience = self.config.timeouts.resolve;
        let connected = driver.carry_out(&mut self.rnic).and_then(|_| {
            let mut lanes = qpns.iter().zip(&mcst_ids);
            lanes.try_for_each(|(&qpn, &mcst_id)| self.rnic.connect_qp(qpn, &remote(mcst_id), patience))
        });
        self.driver = Some(driver);
        if let Err(error) = connected {
            self.release();
            self.holding = None;
            return Err(error.into());
        }
        let switches: BTreeSet<_> = state
            .members
            .iter()
            .map(|m| m.switch_name.clone())
            .filter(|n| !n.is_empty())
            .collect();
        self.path = CommPath::InNetwork {
            mcst_id: mcst_ids[0],
            lanes: mcst_ids.len() as u8,
            generation: state.generation,
            switches: switches.into_iter().collect(),
        };
        Ok(())
    }

    /// Waits until the group is active, or has failed for a reason that the ranks caused.
    fn await_group(&mut self, lease: &Lease) -> Result<api::CollectiveState, CommError> {
        let start = Instant::now();
        let mut announced: Option<Instant> = None;
        loop {
            // The controller can only place hosts that switches have seen, and a restarted switch has seen none.
            if announced.is_none_or(|at| at.elapsed() >= ANNOUNCE_INTERVAL) {
                announced = Some(Instant::now());
                if let Err(error) = self.rnic.announce() {
                    tracing::debug!(%error, "announcing this host");
                }
            }
            let state = lease.state();
            if let Some(state) = &state {
                match state.phase() {
                    api::CollectivePhase::Active => return Ok(api::CollectiveState::clone(state)),
                    api::CollectivePhase::Refused => {
                        return Err(CommError::Refused {
                            switch: Some(state.failed_switch.clone()).filter(|s| !s.is_empty()),
                            reason: state.reason.clone(),
                        });
                    }
                    // The ranks themselves made it fail, for example by different calls. This rank sees it late.
                    api::CollectivePhase::Failed
                        if state.failed_rank.is_none() && state.failed_switch.is_empty() =>
                    {
                        return Ok(api::CollectiveState::clone(state));
                    }
                    api::CollectivePhase::Failed | api::CollectivePhase::Removing => {
                        return Err(group_failure(state));
                    }
                    _ => {}
                }
            }
            if let Some(error) = lease.take_error() {
                return Err(error.into());
            }
            if self.config.is_interrupted() {
                return Err(CommError::Interrupted);
            }
            let after = start.elapsed();
            if after >= self.config.timeouts.join {
                let (reason, missing) = match &state {
                    Some(state) => (state.reason.clone(), missing(state)),
                    None => ("the controller has not answered".to_owned(), Vec::new()),
                };
                return Err(CommError::JoinTimedOut {
                    after,
                    reason,
                    missing,
                });
            }
            self.idle(SLEEP_MAX)?;
        }
    }

    /// Waits for an answer of the controller and polls the RNIC meanwhile.
    pub(crate) fn await_answer<T>(
        &mut self,
        mut answer: Answer<T>,
        patience: Duration,
    ) -> Result<T, CommError> {
        let start = Instant::now();
        loop {
            if let Some(answer) = answer.poll() {
                return Ok(answer?);
            }
            if self.config.is_interrupted() {
                return Err(CommError::Interrupted);
            }
            if start.elapsed() >= patience {
                return Err(CommError::JoinTimedOut {
                    after: start.elapsed(),
                    reason: "the controller has not answered".into(),
                    missing: Vec::new(),
                });
            }
            if !self.poll_driver()? {
                self.idle(sleep_after(start.elapsed()))?;
            }
        }
    }

    /// The blobs of these ranks, once all have given theirs for this round. Without any, all ranks must have taken part.
    pub(crate) fn exchange(
        &mut self,
        round: u8,
        (blob, wanted): (Vec<u8>, &[u16]),
        patience: Duration,
    ) -> Result<Vec<Vec<u8>>, CommError> {
        if let Some(rendezvous) = self.config.rendezvous.clone() {
            rendezvous.begin(round, blob, wanted).map_err(invalid)?;
            return self.meet(&*rendezvous, patience);
        }
        let among = match self.config.is_of_members {
            true => api::ExchangeAmong::Members,
            false => api::ExchangeAmong::Unspecified,
        };
        let request = api::ExchangeRequest {
            job: self.config.job.clone(),
            among: among.into(),
            rank: self.config.rank.into(),
            size: self.config.size.into(),
            round: round.into(),
            blob,
            timeout_ms: patience.as_millis().min(600_000) as u32,
            secret: self.config.secret.0.clone(),
        };
        let answer = self.control()?.exchange(request, self.lease.as_deref(), patience);
        let mut blobs = self.await_answer(answer, patience + MARGIN)?;
        let taken = wanted
            .iter()
            .map(|&rank| blobs.get_mut(usize::from(rank)).map(std::mem::take));
        taken
            .collect::<Option<_>>()
            .ok_or_else(|| invalid(format!("{} blobs", blobs.len())))
    }

    fn meet(&mut self, rendezvous: &dyn Rendezvous, patience: Duration) -> Result<Vec<Vec<u8>>, CommError> {
        let start = Instant::now();
        loop {
            if let Some(blobs) = rendezvous.poll() {
                return Ok(blobs);
            }
            if self.config.is_interrupted() {
                return Err(CommError::Interrupted);
            }
            let after = start.elapsed();
            if after >= patience {
                let missing = rendezvous.missing().into_iter().map(|rank| self.name(rank));
                return Err(CommError::JoinTimedOut {
                    after,
                    reason: "not all ranks have given their queue pairs".into(),
                    missing: missing.collect(),
                });
            }
            self.idle(sleep_after(after))?;
        }
    }

    fn connect_hosts(&mut self, reason: String) -> Result<(), CommError> {
        (self.holding, self.lease) = (None, None);
        let config = HostBasedConfig::new(self.config.rank, self.config.size);
        let (depth, peers) = (config.depth as usize, peers(self.config.rank, self.config.size));
        let options = QpOptions {
            limits: QueueLimits {
                send: depth,
                receive: depth,
            },
            ..QpOptions::default()
        };
        let mut own = QueuePairs {
            ip: self.rnic.attributes().ip,
            mac: self.rnic.attributes().mac,
            entries: Vec::new(),
        };
        for peer in peers {
            let qpn = self.rnic.create_qp(&options)?;
            own.entries.push((peer, qpn, random_psn()));
        }
        let qpns = own.entries.iter().map(|entry| entry.1).collect();
        let mut driver = Driver::new(&mut self.rnic, Box::new(HostBased::new(config)), qpns)?;
        let posted = driver.carry_out(&mut self.rnic);
        // From here on `release` cleans up.
        self.driver = Some(driver);
        posted?;
        if self.config.size > 1
            && let Err(error) = self.connect_peers(&own)
        {
            self.release();
            return Err(error);
        }
        self.path = CommPath::HostBased { reason };
        Ok(())
    }

    fn connect_peers(&mut self, own: &QueuePairs) -> Result<(), CommError> {
        let patience = self.config.timeouts.join;
        let peers: Vec<u16> = own.entries.iter().map(|entry| entry.0).collect();
        let blobs = self.exchange(EXCHANGE_QUEUE_PAIRS, (own.to_bytes(), &peers), patience)?;
        for (&(peer, qpn, sq_psn), blob) in own.entries.iter().zip(&blobs) {
            let other = QueuePairs::from_bytes(blob)
                .ok_or_else(|| invalid(format!("no queue pairs of rank {peer}")))?;
            let entry = other.entries.iter().find(|e| e.0 == self.config.rank);
            let &(_, other_qpn, rq_psn) =
                entry.ok_or_else(|| invalid(format!("rank {peer} has no queue pair for this rank")))?;
            let remote = QpRemote {
                sq_psn,
                rq_psn,
                pmtu: self.config.pmtu,
                timeout: self.config.qp_timeout,
                retry_cnt: self.config.retry_cnt,
                ..QpRemote::new(other.ip, other_qpn)
            };
            self.rnic.connect_qp(qpn, &remote, self.config.timeouts.resolve)?;
        }
        // Wait until all are connected: this rank must answer ARP until then.
        self.exchange(EXCHANGE_CONNECTED, (Vec::new(), &[]), patience)
            .map(drop)
    }

    /// The error of the group, if it has failed or was removed.
    pub(crate) fn lost_group(&self) -> Option<CommError> {
        let lease = self.lease.as_ref()?;
        if let Some(error) = lease.take_error() {
            return Some(error.into());
        }
        let state = lease.state()?;
        let over = matches!(
            state.phase(),
            api::CollectivePhase::Failed | api::CollectivePhase::Removing | api::CollectivePhase::Refused
        );
        over.then(|| group_failure(&state))
    }

    /// The ranks that the switches report as missing.
    pub(crate) fn missing_ranks(&self) -> Vec<RankName> {
        let state: Option<Arc<api::CollectiveState>> = self.lease.as_ref().and_then(|l| l.state());
        let ranks = state.map(|s| s.waiting_for.clone()).unwrap_or_default();
        ranks.into_iter().map(|r| self.name(r as u16)).collect()
    }

    pub(crate) fn name(&self, rank: u16) -> RankName {
        RankName {
            rank,
            host: self.names.get(usize::from(rank)).cloned().unwrap_or_default(),
        }
    }
}

fn group_failure(state: &api::CollectiveState) -> CommError {
    let reason = match (state.reason.as_str(), state.phase()) {
        ("", api::CollectivePhase::Removing) => "it was destroyed".to_owned(),
        ("", phase) => format!("{phase:?}").to_lowercase(),
        (reason, _) => reason.to_owned(),
    };
    if let Some(conflict) = state.conflict.and_then(|c| conflict(state, &c)) {
        return conflict;
    }
    match state.failed_rank {
        Some(rank) => {
            let rank = member_name(state, rank as u16);
            CommError::RankFailed { rank, reason }
        }
        None => CommError::GroupFailed { reason },
    }
}

/// The conflict, as the group's control result would have reported it; `None` if it is invalid.
fn conflict(state: &api::CollectiveState, reported: &api::Disagreement) -> Option<CommError> {
    let castnet_wire::Control {
        sequence,
        rank,
        call,
        verdict,
    } = disagreement_from_proto("conflict", reported)
        .inspect_err(|error| tracing::debug!(%error, "a conflict that does not read"))
        .ok()?;
    let Verdict::Conflict {
        rank: other,
        call: other_call,
    } = verdict
    else {
        return None;
    };
    Some(CommError::Conflict {
        sequence,
        first: Box::new((member_name(state, rank), call)),
        second: Box::new((member_name(state, other), other_call)),
    })
}

fn member_name(state: &api::CollectiveState, rank: u16) -> RankName {
    let member = state.members.get(usize::from(rank));
    RankName {
        rank,
        host: member.map(|m| m.host.clone()).unwrap_or_default(),
    }
}

fn missing(state: &api::CollectiveState) -> Vec<RankName> {
    state
        .members
        .iter()
        .filter(|m| m.phase() != api::MemberPhase::Joined)
        .map(|m| RankName {
            rank: m.rank as u16,
            host: m.host.clone(),
        })
        .collect()
}

/// The queue pairs of a rank towards its peers. Encoding, all big endian: version 1, address (4 bytes), MAC (6), then
/// for each peer its rank (2), queue pair number (4) and first PSN (4).
struct QueuePairs {
    ip: Ipv4Addr,
    mac: MacAddr,
    entries: Vec<(u16, Qpn, Psn)>,
}

impl QueuePairs {
    const VERSION: u8 = 1;
    const HEAD: usize = 11;
    const ENTRY: usize = 10;

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![Self::VERSION];
        bytes.extend(self.ip.octets());
        bytes.extend(self.mac.0);
        for (rank, qpn, psn) in &self.entries {
            bytes.extend(rank.to_be_bytes());
            bytes.extend(qpn.value().to_be_bytes());
            bytes.extend(psn.value().to_be_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, entries) = bytes.split_at_checked(Self::HEAD)?;
        let (&version, rest) = head.split_first()?;
        let (ip, mac) = rest.split_first_chunk::<4>()?;
        if version != Self::VERSION || !entries.len().is_multiple_of(Self::ENTRY) {
            return None;
        }
        let word = |b: &[u8]| b.try_into().ok().map(u32::from_be_bytes);
        let entries = entries.chunks_exact(Self::ENTRY).map(|entry| {
            let rank = u16::from_be_bytes(entry[..2].try_into().ok()?);
            Some((rank, Qpn::new(word(&entry[2..6])?), Psn::new(word(&entry[6..])?)))
        });
        Some(Self {
            ip: Ipv4Addr::from(*ip),
            mac: MacAddr(mac.try_into().ok()?),
            entries: entries.collect::<Option<_>>()?,
        })
    }
}

/// What a NAK asks for: a switch that repairs keeps what is behind a gap, and sends a request with the NAK, which in Mode-II names the oldest
/// unacknowledged packet. It takes requests, too. Which mode the switch next to this rank has is not known where switches have modes of their own.
fn repeat(settings: &api::CollectiveSettings) -> Repeat {
    match (settings.mode(), settings.loss_policy()) {
        _ if !settings.modes.is_empty() => Repeat::All,
        (api::CollectiveMode::Augmented, _)
        | (api::CollectiveMode::Translated, api::CollectiveLossPolicy::Repair) => Repeat::Requested,
        _ => Repeat::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that has finished waits up to the time-out of closing for the others.
    #[test]
    fn a_rank_that_waits_long_sleeps_long() {
        let sleep = |waited| sleep_after(Duration::from_millis(waited)).as_millis();
        assert_eq!([0, 8, 100, 200, 10_000].map(sleep), [2, 2, 25, 50, 50]);
    }

    #[test]
    fn one_packet_is_repeated_where_all_switches_keep_what_follows() {
        use api::CollectiveLossPolicy::{Reflect, Repair};
        use api::CollectiveMode::{Augmented, Terminated, Translated, Unspecified};
        for (mode, loss, expected) in [
            (Translated, Repair, Repeat::Requested),
            (Translated, Reflect, Repeat::All),
            (Augmented, Repair, Repeat::Requested),
            (Terminated, Repair, Repeat::All),
            (Unspecified, Repair, Repeat::All),
        ] {
            let mut settings = api::CollectiveSettings {
                mode: mode.into(),
                loss_policy: loss.into(),
                ..Default::default()
            };
            assert_eq!(repeat(&settings), expected, "{mode:?} {loss:?}");
            settings.modes.push(api::SwitchMode::default());
            assert_eq!(repeat(&settings), Repeat::All, "{mode:?} {loss:?}");
        }
    }

    #[test]
    fn every_window_that_is_allowed_fits_the_queues() {
        use castnet_proto::convert::WINDOW_MESSAGES_MAX;
        for (message_packets, fits) in [(32, true), (31, false)] {
            let config = InNetworkConfig {
                window_packets: WINDOW_MESSAGES_MAX * 32,
                message_packets,
                ..InNetworkConfig::new(0, 2)
            };
            let slots = InNetwork::new(config).shape().send_slots as usize;
            assert_eq!(slots <= LIMITS.send, fits, "{slots}");
        }
    }

    #[test]
    fn time_outs_and_their_codes_match() {
        for code in 1..=20 {
            assert_eq!(timeout_code(timeout_us(code)), code);
        }
        assert_eq!(timeout_us(14), castnet_rules::DEFAULT_ACK_TIMEOUT_US);
        // Values that were rounded up instead.
        assert_eq!(timeout_code(67_109), 14);
        assert_eq!(timeout_code(70_000), 15);
    }

    /// A program sees the same error, whether the controller or the switches report it first.
    #[test]
    fn a_conflict_is_the_same_error_from_the_controller_as_in_band() {
        use castnet_wire::{Call, CallFlags, DataType, Operation, Primitive};
        let barrier = Call {
            primitive: Primitive::AllReduce,
            root: 0,
            roots: 1,
            operation: Operation::Sum,
            data_type: DataType::F32,
            flags: CallFlags::NONE,
            elements: 0,
            packets: 0,
        };
        let broadcast = Call {
            primitive: Primitive::Broadcast,
            root: 1,
            elements: 3,
            packets: 1,
            ..barrier
        };
        let control = castnet_wire::Control {
            sequence: 5,
            rank: 0,
            call: barrier,
            verdict: Verdict::Conflict {
                rank: 1,
                call: broadcast,
            },
        };
        let member = |host: &str| api::MemberState {
            host: host.into(),
            ..Default::default()
        };
        let mut state = api::CollectiveState {
            phase: api::CollectivePhase::Failed.into(),
            reason: "in words".into(),
            members: vec![member("h1"), member("h2")],
            conflict: castnet_proto::convert::disagreement_to_proto(&control),
            ..Default::default()
        };
        let CommError::Conflict {
            sequence,
            first,
            second,
        } = group_failure(&state)
        else {
            panic!("{}", group_failure(&state));
        };
        let name = |rank, host: &str| RankName {
            rank,
            host: host.into(),
        };
        assert_eq!(
            (sequence, *first, *second),
            (5, (name(0, "h1"), barrier), (name(1, "h2"), broadcast))
        );
        // An invalid conflict still fails the group, with the reason in words.
        state.conflict = Some(api::Disagreement::default());
        assert_eq!(
            group_failure(&state).to_string(),
            "the group has failed: in words"
        );
    }

    #[test]
    fn queue_pairs_are_decoded_as_encoded() {
        let own = QueuePairs {
            ip: Ipv4Addr::new(10, 0, 0, 1),
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
            entries: vec![
                (3, Qpn::new(77), Psn::new(0xFF_FFFF)),
                (900, Qpn::new(0xAB_CDEF), Psn::new(0)),
            ],
        };
        let back = QueuePairs::from_bytes(&own.to_bytes()).expect("valid bytes");
        assert_eq!((back.ip, back.mac), (own.ip, own.mac));
        assert_eq!(back.entries, own.entries);
        assert!(QueuePairs::from_bytes(&[1, 2, 3]).is_none());
        assert!(QueuePairs::from_bytes(&[&own.to_bytes()[..], &[0]].concat()).is_none());
    }
}
