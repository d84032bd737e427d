//! The endpoint: QPs, memory, completions, and the order in which they get their turn.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use castnet_wire::udp::entropy_port;
use castnet_wire::{MacAddr, Nanos, Psn, Qpn};

use crate::config::{EndpointConfig, QpConfig, QueueLimits, check_qpn};
use crate::error::{MemoryError, PostError, QpError};
use crate::memory::{Access, Memory, MemoryKey};
use crate::requester::{Requester, Response};
use crate::responder::Responder;
use crate::state::{QpEvent, QpState};
use crate::stats::Stats;
use crate::work::{Completion, MESSAGE_MAX, RecvWr, SendWr, Status};

/// Why a timer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimerReason {
    /// An acknowledgement is awaited; without it the QP goes back.
    Retransmit,
    /// The remote had no receive posted; then the QP sends again.
    RnrWait,
}

/// Where a QP stands: for tables and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// Its state.
    pub state: QpState,
    /// PSN of the next packet that it sends for the first time.
    pub psn_next: Psn,
    /// Oldest PSN that it sent, or will send next, and that is not acknowledged.
    pub psn_unacked: Psn,
    /// PSN that it expects next.
    pub psn_expected: Psn,
    /// Messages that it has completed as a responder, modulo 2^24.
    pub msn: u32,
    /// Send work requests not yet done.
    pub sends: usize,
    /// Receives not yet filled.
    pub receives: usize,
}

/// A QP.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) state: QpState,
    pub(crate) config: QpConfig,
    /// UDP source port of all its frames.
    pub(crate) sport: u16,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// Whether it waits in the ring of those with answers.
    answering: bool,
    /// Whether it waits in the ring of those with requests.
    requesting: bool,
    /// Its entry among the timers.
    timer: Option<Nanos>,
}

/// An RC endpoint: many QPs at one IP and Ethernet address. See the crate's documentation for the calling order.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) config: EndpointConfig,
    pub(crate) qps: BTreeMap<Qpn, Qp>,
    pub(crate) memory: Memory,
    pub(crate) completions: VecDeque<Completion>,
    /// Work requests that are posted and not done.
    pub(crate) outstanding: usize,
    /// QPs that may have ACKs or NAKs to send, in turn.
    pub(crate) answering: VecDeque<Qpn>,
    /// QPs that may have requests to send, in turn.
    pub(crate) requesting: VecDeque<Qpn>,
    timers: BTreeSet<(Nanos, Qpn)>,
    pub(crate) stats: Stats,
    /// IPv4 identification of the next frame.
    pub(crate) ident: u16,
}

impl Endpoint {
    /// An endpoint without QPs and memory.
    pub fn new(config: EndpointConfig) -> Self {
        Self {
            memory: Memory::new(config.regions_max),
            config,
            qps: BTreeMap::new(),
            completions: VecDeque::new(),
            outstanding: 0,
            answering: VecDeque::new(),
            requesting: VecDeque::new(),
            timers: BTreeSet::new(),
            stats: Stats::default(),
            ident: 0,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// What it did so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Registers `bytes` as a region whose first byte the remote names by the virtual address `va`.
    ///
    /// # Errors
    /// [`MemoryError::TooMany`], [`MemoryError::Wraps`].
    pub fn register_memory(
        &mut self,
        va: u64,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<MemoryKey, MemoryError> {
        self.memory.register(va, bytes, access)
    }

    /// Gives the bytes of a region back. Work requests that still name it fail, and their QPs with them.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`].
    pub fn deregister_memory(&mut self, key: MemoryKey) -> Result<Vec<u8>, MemoryError> {
        self.memory.deregister(key)
    }

    /// The bytes of a region.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`].
    pub fn memory(&self, key: MemoryKey) -> Result<&[u8], MemoryError> {
        self.memory.bytes(key).ok_or(MemoryError::UnknownKey { key })
    }

    /// The bytes of a region, to be changed by their owner.
    ///
    /// # Errors
    /// [`MemoryError::UnknownKey`].
    pub fn memory_mut(&mut self, key: MemoryKey) -> Result<&mut [u8], MemoryError> {
        self.memory.bytes_mut(key).ok_or(MemoryError::UnknownKey { key })
    }

    /// A QP that is connected at once: [`Endpoint::open_qp`], then [`Endpoint::connect_qp`].
    ///
    /// # Errors
    /// As theirs; nothing has changed then.
    pub fn create_qp(&mut self, config: QpConfig) -> Result<(), QpError> {
        config.check()?;
        self.open_qp(config.qpn, config.limits)?;
        self.connect_qp(config)
    }

    /// A QP in state [`QpState::Init`]: receives may be posted, the remote is named later.
    ///
    /// # Errors
    /// [`QpError::Exists`], [`QpError::Reserved`], [`QpError::TooMany`].
    pub fn open_qp(&mut self, qpn: Qpn, limits: QueueLimits) -> Result<(), QpError> {
        check_qpn(qpn)?;
        if self.qps.contains_key(&qpn) {
            return Err(QpError::Exists { qpn });
        }
        if self.qps.len() >= self.config.qps_max {
            return Err(QpError::TooMany {
                max: self.config.qps_max,
            });
        }
        let config = QpConfig {
            limits,
            ..QpConfig::new(qpn, self.config.ip, self.config.mac, qpn)
        };
        self.qps.insert(
            qpn,
            Qp {
                state: QpState::Init,
                sport: 0,
                requester: Requester::new(&config),
                responder: Responder::new(&config, self.config.responses_max, self.config.coalesce_acks),
                config,
                answering: false,
                requesting: false,
                timer: None,
            },
        );
        Ok(())
    }

    /// Connects the QP `config.qpn`, which must be in state [`QpState::Init`]. It keeps its receives and the queue
    /// limits that it was opened with.
    ///
    /// # Errors
    /// [`QpError::Unknown`], [`QpError::WrongState`], [`QpError::OutOfRange`], [`QpError::MulticastMac`].
    pub fn connect_qp(&mut self, config: QpConfig) -> Result<(), QpError> {
        config.check()?;
        let qpn = config.qpn;
        let qp = self.qps.get_mut(&qpn).ok_or(QpError::Unknown { qpn })?;
        qp.state = qp.state.try_step(qpn, QpEvent::Connect)?;
        let config = QpConfig {
            limits: qp.config.limits,
            ..config
        };
        qp.sport = entropy_port(0, qpn, config.remote_qpn);
        qp.requester = Requester::new(&config);
        qp.responder.connect(&config);
        qp.config = config;
        Ok(())
    }

    /// The next hop towards the remote has another Ethernet address now.
    ///
    /// # Errors
    /// [`QpError::Unknown`], [`QpError::MulticastMac`].
    pub fn set_remote_mac(&mut self, qpn: Qpn, mac: MacAddr) -> Result<(), QpError> {
        if mac.is_multicast() {
            return Err(QpError::MulticastMac { mac });
        }
        let qp = self.qps.get_mut(&qpn).ok_or(QpError::Unknown { qpn })?;
        qp.config.remote_mac = mac;
        Ok(())
    }

    /// Moves a QP to [`QpState::Error`] and flushes its work requests.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn fail_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        self.status_of(qpn)?;
        self.fail(qpn, None, None);
        Ok(())
    }

    /// Takes a QP back to [`QpState::Init`]. Its work requests are forgotten; completions that wait stay.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn reset_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        let qp = self.qps.get_mut(&qpn).ok_or(QpError::Unknown { qpn })?;
        qp.state = qp.state.try_step(qpn, QpEvent::Reset)?;
        self.outstanding -= qp.requester.queued() + qp.responder.queued();
        qp.requester = Requester::new(&qp.config);
        let EndpointConfig {
            responses_max,
            coalesce_acks,
            ..
        } = self.config;
        qp.responder = Responder::new(&qp.config, responses_max, coalesce_acks);
        self.refresh(qpn);
        Ok(())
    }

    /// Removes a QP. Its work requests are forgotten; completions that wait stay.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        self.reset_qp(qpn)?;
        self.qps.remove(&qpn);
        self.answering.retain(|&q| q != qpn);
        self.requesting.retain(|&q| q != qpn);
        Ok(())
    }

    /// Where a QP stands.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn qp_status(&self, qpn: Qpn) -> Result<QpStatus, QpError> {
        self.status_of(qpn)
    }

    fn status_of(&self, qpn: Qpn) -> Result<QpStatus, QpError> {
        let qp = self.qps.get(&qpn).ok_or(QpError::Unknown { qpn })?;
        Ok(QpStatus {
            state: qp.state,
            psn_next: qp.requester.psn_next(),
            psn_unacked: qp.requester.psn_unacked(),
            psn_expected: qp.responder.expected(),
            msn: qp.responder.msn(),
            sends: qp.requester.queued(),
            receives: qp.responder.queued(),
        })
    }

    /// Posts a send. On a failed QP it is flushed at once.
    ///
    /// # Errors
    /// Any [`PostError`]; nothing was posted then.
    pub fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        let qp = self.qps.get_mut(&qpn).ok_or(PostError::UnknownQp { qpn })?;
        if qp.state == QpState::Init {
            return Err(PostError::NotConnected { qpn });
        }
        if qp.requester.is_full() {
            return Err(PostError::QueueFull {
                qpn,
                max: qp.requester.queue_max(),
            });
        }
        if wr.local.length > MESSAGE_MAX {
            return Err(PostError::TooLong {
                length: wr.local.length,
                max: MESSAGE_MAX,
            });
        }
        self.memory.check_local(wr.local, false)?;
        if self.outstanding + self.completions.len() >= self.config.completions_max {
            return Err(PostError::CompletionQueueFull {
                max: self.config.completions_max,
            });
        }
        self.outstanding += 1;
        if qp.state == QpState::Error {
            self.complete_send(qpn, &wr, Status::Flushed);
            return Ok(());
        }
        qp.requester.post(wr);
        self.refresh(qpn);
        Ok(())
    }

    /// Posts a receive. On a failed QP it is flushed at once.
    ///
    /// # Errors
    /// Any [`PostError`] but [`PostError::NotConnected`]; nothing was posted then.
    pub fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        let qp = self.qps.get_mut(&qpn).ok_or(PostError::UnknownQp { qpn })?;
        if qp.responder.is_full() {
            return Err(PostError::QueueFull {
                qpn,
                max: qp.responder.queue_max(),
            });
        }
        self.memory.check_local(wr.local, true)?;
        if self.outstanding + self.completions.len() >= self.config.completions_max {
            return Err(PostError::CompletionQueueFull {
                max: self.config.completions_max,
            });
        }
        self.outstanding += 1;
        if qp.state == QpState::Error {
            self.complete_failed_recv(qpn, &wr, Status::Flushed);
            return Ok(());
        }
        qp.responder.post(wr);
        Ok(())
    }

    /// The next work request that ended, in order of their ends; of one queue, in the order they were posted.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Completions that wait to be polled.
    pub fn completions_waiting(&self) -> usize {
        self.completions.len()
    }

    /// When [`Endpoint::handle_timeout`] must be called next, and why.
    pub fn poll_timeout(&self) -> Option<(Nanos, TimerReason)> {
        let &(at, qpn) = self.timers.first()?;
        let waits = self.qps.get(&qpn).and_then(|qp| qp.requester.rnr_deadline()) == Some(at);
        Some((
            at,
            if waits {
                TimerReason::RnrWait
            } else {
                TimerReason::Retransmit
            },
        ))
    }

    /// Lets all timers up to `now` run out.
    pub fn handle_timeout(&mut self, now: Nanos) {
        while let Some(&(at, qpn)) = self.timers.first()
            && at <= now
        {
            let Some(qp) = self.qps.get_mut(&qpn) else {
                self.timers.pop_first();
                continue;
            };
            qp.requester.handle_rnr_timeout(now);
            let response = qp.requester.handle_ack_timeout(now);
            if response.is_some() {
                self.stats.timeouts += 1;
            }
            match response {
                Some(Response::Failed(status)) => self.fail(qpn, Some((0, status)), None),
                _ => self.refresh(qpn),
            }
        }
    }

    /// Puts a QP's timer and its places in the rings right, after anything changed it.
    pub(crate) fn refresh(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let timer = match (qp.requester.ack_deadline(), qp.requester.rnr_deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if timer != qp.timer {
            if let Some(at) = qp.timer {
                self.timers.remove(&(at, qpn));
            }
            if let Some(at) = timer {
                self.timers.insert((at, qpn));
            }
            qp.timer = timer;
        }
        if qp.responder.has_answer() && !qp.answering {
            qp.answering = true;
            self.answering.push_back(qpn);
        }
        if qp.requester.can_send() && !qp.requesting {
            qp.requesting = true;
            self.requesting.push_back(qpn);
        }
    }

    /// The next QP in the ring of those with answers. It has left the ring: refresh it afterwards.
    pub(crate) fn turn_to_answer(&mut self) -> Option<Qpn> {
        let qpn = self.answering.pop_front()?;
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.answering = false;
        }
        Some(qpn)
    }

    /// The next QP in the ring of those with requests. It has left the ring: refresh it afterwards.
    pub(crate) fn turn_to_request(&mut self) -> Option<Qpn> {
        let qpn = self.requesting.pop_front()?;
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.requesting = false;
        }
        Some(qpn)
    }
}
