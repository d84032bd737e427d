//! [`Endpoint`]: QPs, memory, completions, and the order in which QPs send.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use castnet_wire::udp::entropy_port;
use castnet_wire::{BitRate, MacAddr, Nanos, Psn, Qpn};

use crate::config::{EndpointConfig, QpConfig, QueueLimits, check_qpn};
use crate::error::{MemoryError, PostError, QpError};
use crate::lent::Lent;
use crate::memory::{Access, Memory, MemoryKey};
use crate::qps::Qps;
use crate::requester::{Requester, Response};
use crate::responder::Responder;
use crate::state::{QpEvent, QpState};
use crate::stats::Stats;
use crate::timers::Timers;
use crate::work::{Completion, MESSAGE_MAX, RecvWr, SendWr, Status};

/// Reason of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimerReason {
    /// Waits for an acknowledgement.
    Retransmit,
    /// The same, until the acknowledgement is overdue.
    Probe,
    /// The wait after an RNR NAK. The QP retransmits afterwards.
    RnrWait,
    /// The wait for the rate of the QP: its limit, or what congestion control allows.
    Pace,
}

/// Status of a QP, for tables and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// State of the QP.
    pub state: QpState,
    /// PSN of the next new packet.
    pub psn_next: Psn,
    /// The oldest unacknowledged PSN, or `psn_next` if there is none.
    pub psn_unacked: Psn,
    /// The next expected PSN.
    pub psn_expected: Psn,
    /// The number of messages completed as a responder, modulo 2^24.
    pub msn: u32,
    /// Send work requests that are not completed.
    pub sends: usize,
    /// Posted receives that are not completed.
    pub receives: usize,
    /// The rate that congestion control allows: the largest one if there is no congestion. `None` without congestion control.
    pub rate: Option<BitRate>,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) state: QpState,
    pub(crate) config: QpConfig,
    /// Of all frames of the QP.
    pub(crate) sport: u16,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// True if the QP is in `Endpoint::answering`.
    answering: bool,
    /// True if the QP is in `Endpoint::requesting`.
    requesting: bool,
    /// As in `Endpoint::timers`.
    timer: Option<Nanos>,
}

impl Qp {
    fn prefetch(&self, by: &impl Prefetch) {
        self.responder
            .queue
            .front()
            .iter()
            .for_each(|next| by.prefetch(*next));
        self.requester.prefetch(by);
    }
}

/// Prefetches memory, for a crate that forbids unsafe code. Changes nothing.
pub trait Prefetch {
    /// Prefetches `value`.
    fn prefetch<T: ?Sized>(&self, value: &T);
}

/// Many QPs at one IP and Ethernet address. The crate documentation describes the calling order.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) config: EndpointConfig,
    pub(crate) qps: Qps<Qp>,
    pub(crate) memory: Memory,
    pub(crate) completions: VecDeque<Completion>,
    /// Posted work requests that are not completed.
    pub(crate) outstanding: usize,
    /// QPs that may have ACKs, NAKs or CNPs to send, round robin.
    pub(crate) answering: VecDeque<Qpn>,
    /// QPs that may have requests to send, round robin.
    pub(crate) requesting: VecDeque<Qpn>,
    timers: Timers,
    pub(crate) stats: Stats,
    /// IPv4 identification of the next frame.
    pub(crate) ident: u16,
}

impl Endpoint {
    /// Without QPs and memory.
    pub fn new(config: EndpointConfig) -> Self {
        Self {
            memory: Memory::new(config.regions_max),
            config,
            qps: Qps::default(),
            completions: VecDeque::new(),
            outstanding: 0,
            answering: VecDeque::new(),
            requesting: VecDeque::new(),
            timers: Timers::default(),
            stats: Stats::default(),
            ident: 0,
        }
    }

    /// Copies the state of the QPs of an endpoint with the same QPs and regions, without bytes of memory.
    pub fn copy_state(&mut self, of: &Self) {
        self.qps.copy_each(&of.qps, |qp, of| {
            qp.requester.clone_from(&of.requester);
            qp.responder.clone_from(&of.responder);
            (qp.state, qp.answering, qp.requesting, qp.timer) =
                (of.state, of.answering, of.requesting, of.timer);
            qp.config.tos = of.config.tos;
        });
        self.answering.clone_from(&of.answering);
        self.requesting.clone_from(&of.requesting);
        self.timers.clone_from(&of.timers);
        (self.outstanding, self.ident) = (of.outstanding, of.ident);
    }

    /// Bytes of memory without regions.
    pub fn footprint(&self) -> usize {
        let qp = |qp: &Qp| size_of::<Qp>() + qp.requester.footprint() + qp.responder.footprint();
        size_of::<Self>()
            + self
                .qps
                .iter()
                .map(|(_, of)| size_of::<Qpn>() + 8 + qp(of))
                .sum::<usize>()
    }

    /// The configuration.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// Counters since creation.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Registers `bytes` as a region. `va` is the virtual address of the first byte, which the remote uses.
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

    /// Registers a region of `length` bytes, at virtual address 0, that are not stored: they are read as zeros, and what is
    /// written is discarded. For measurements with messages that are longer than the memory. [`Endpoint::memory`] is empty, and
    /// the region stays.
    ///
    /// # Errors
    /// [`MemoryError::TooMany`].
    pub fn register_void(&mut self, length: u64, access: Access) -> Result<MemoryKey, MemoryError> {
        self.memory.register_void(length, access)
    }

    /// Removes a region and returns its bytes. Work requests that still refer to it fail, and their QPs with them.
    pub fn deregister_memory(&mut self, key: MemoryKey) -> Result<Vec<u8>, MemoryError> {
        self.memory.deregister(key)
    }

    /// Makes lent memory a region for local work requests. Allocates nothing once as many regions have existed at once.
    ///
    /// # Errors
    /// [`MemoryError::TooMany`], with the memory.
    pub fn lend_memory(&mut self, memory: Lent) -> Result<MemoryKey, (Lent, MemoryError)> {
        self.memory.lend(memory)
    }

    /// Removes a region of lent memory and returns the memory. Nothing accesses it after that: work requests that still
    /// refer to the region fail, and their QPs with them.
    pub fn end_lending(&mut self, key: MemoryKey) -> Result<Lent, MemoryError> {
        self.memory.end_lending(key)
    }

    /// The bytes of a region.
    pub fn memory(&self, key: MemoryKey) -> Result<&[u8], MemoryError> {
        self.memory.bytes(key).ok_or(MemoryError::UnknownKey { key })
    }

    /// The bytes of a region. [`MemoryError::ReadOnly`] if it was lent for sends only.
    pub fn memory_mut(&mut self, key: MemoryKey) -> Result<&mut [u8], MemoryError> {
        self.memory.bytes_mut(key)
    }

    /// [`Endpoint::open_qp`], then [`Endpoint::connect_qp`], with their errors. Nothing has changed after an error.
    pub fn create_qp(&mut self, config: QpConfig) -> Result<(), QpError> {
        config.check()?;
        self.open_qp(config.qpn, config.limits)?;
        self.connect_qp(config)
    }

    /// Creates a QP in state [`QpState::Init`]. Receives may be posted. The remote is set when the QP is connected.
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
                responder: Responder::new(&config, &self.config),
                config,
                answering: false,
                requesting: false,
                timer: None,
            },
        );
        Ok(())
    }

    /// Connects the QP `config.qpn`, which must be in state [`QpState::Init`]. It keeps its receives and queue limits.
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

    /// Changes the Ethernet address of the next hop, which must be unicast.
    pub fn set_remote_mac(&mut self, qpn: Qpn, mac: MacAddr) -> Result<(), QpError> {
        if mac.is_multicast() {
            return Err(QpError::MulticastMac { mac });
        }
        let qp = self.qps.get_mut(&qpn).ok_or(QpError::Unknown { qpn })?;
        qp.config.remote_mac = mac;
        Ok(())
    }

    /// Changes the type of service of all further frames but CNPs.
    pub fn set_tos(&mut self, qpn: Qpn, tos: u8) -> Result<(), QpError> {
        let qp = self.qps.get_mut(&qpn).ok_or(QpError::Unknown { qpn })?;
        qp.config.tos = tos;
        Ok(())
    }

    /// Moves a QP to [`QpState::Error`] and flushes its work requests.
    pub fn fail_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        self.qp_status(qpn)?;
        self.fail(qpn, None, None);
        Ok(())
    }

    /// Refuses what the remote has sent: a NAK for an invalid request ends its QP, and this one fails as by [`Endpoint::fail_qp`].
    pub fn refuse_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        let qp = self.qps.get_mut(&qpn).ok_or(QpError::Unknown { qpn })?;
        qp.responder.refuse();
        self.fail_qp(qpn)
    }

    /// Resets a QP to [`QpState::Init`]. Its work requests are removed; completions stay until they are polled.
    pub fn reset_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        let qp = self.qps.get_mut(&qpn).ok_or(QpError::Unknown { qpn })?;
        qp.state = qp.state.try_step(qpn, QpEvent::Reset)?;
        self.outstanding -= qp.requester.queued() + qp.responder.queue.len();
        qp.requester = Requester::new(&qp.config);
        qp.responder = Responder::new(&qp.config, &self.config);
        self.refresh(qpn);
        Ok(())
    }

    /// Removes a QP and its work requests. Completions stay until they are polled.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), QpError> {
        self.reset_qp(qpn)?;
        self.qps.remove(&qpn);
        self.answering.retain(|&q| q != qpn);
        self.requesting.retain(|&q| q != qpn);
        Ok(())
    }

    /// Status of a QP.
    pub fn qp_status(&self, qpn: Qpn) -> Result<QpStatus, QpError> {
        let qp = self.qps.get(&qpn).ok_or(QpError::Unknown { qpn })?;
        Ok(QpStatus {
            state: qp.state,
            psn_next: qp.requester.psn_next(),
            psn_unacked: qp.requester.psn_unacked(),
            psn_expected: qp.responder.expected,
            msn: qp.responder.msn,
            sends: qp.requester.queued(),
            receives: qp.responder.queue.len(),
            rate: qp.requester.rate(),
        })
    }

    /// Posts a send. On a failed QP it is flushed immediately. After an error nothing is posted.
    pub fn post_send(&mut self, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        let qp = self.qps.get_mut(&qpn).ok_or(PostError::UnknownQp { qpn })?;
        if qp.state == QpState::Init {
            return Err(PostError::NotConnected { qpn });
        }
        check_queue(qpn, qp.requester.queued(), qp.config.limits.send)?;
        if wr.local.length > MESSAGE_MAX {
            return Err(PostError::TooLong {
                length: wr.local.length,
                max: MESSAGE_MAX,
            });
        }
        self.memory.check_local(wr.local, false)?;
        let completions = self.outstanding + self.completions.len();
        check_completions(completions, self.config.completions_max)?;
        self.outstanding += 1;
        if qp.state == QpState::Error {
            self.complete_send(qpn, &wr, Status::Flushed);
            return Ok(());
        }
        qp.requester.post(wr);
        self.refresh(qpn);
        Ok(())
    }

    /// Posts a receive, also before connecting. On a failed QP it is flushed immediately. After an error nothing is
    /// posted.
    pub fn post_recv(&mut self, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        let qp = self.qps.get_mut(&qpn).ok_or(PostError::UnknownQp { qpn })?;
        check_queue(qpn, qp.responder.queue.len(), qp.config.limits.receive)?;
        self.memory.check_local(wr.local, true)?;
        let completions = self.outstanding + self.completions.len();
        check_completions(completions, self.config.completions_max)?;
        self.outstanding += 1;
        if qp.state == QpState::Error {
            self.complete_failed_recv(qpn, &wr, Status::Flushed);
            return Ok(());
        }
        qp.responder.queue.push_back(wr);
        Ok(())
    }

    /// Prefetches what the next packet of the first QPs touches, in three steps. Each reads what the one before it has prefetched.
    pub fn prefetch(&self, step: usize, by: &impl Prefetch) {
        let first = self.qps.first(2);
        match step {
            0 => by.prefetch(first),
            1 => first.iter().for_each(|(_, qp)| by.prefetch(&**qp)),
            _ => first.iter().for_each(|(_, qp)| qp.prefetch(by)),
        }
    }

    /// The next completion. Completions of one queue are in the order of posting.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// When and why [`Endpoint::handle_timeout`] must be called next.
    pub fn poll_timeout(&self) -> Option<(Nanos, TimerReason)> {
        let (at, qpn) = self.timers.first()?;
        let requester = self.qps.get(&qpn).map(|qp| &qp.requester);
        let reason = match requester {
            Some(requester) if requester.rnr_deadline == Some(at) => TimerReason::RnrWait,
            Some(requester) if requester.pace_deadline() == Some(at) => TimerReason::Pace,
            Some(requester) if requester.probe_deadline() == Some(at) => TimerReason::Probe,
            _ => TimerReason::Retransmit,
        };
        Some((at, reason))
    }

    /// Processes all timers that expire at or before `now`.
    pub fn handle_timeout(&mut self, now: Nanos) {
        while let Some((at, qpn)) = self.timers.first()
            && at <= now
        {
            let Some(qp) = self.qps.get_mut(&qpn) else {
                self.timers.change(qpn, Some(at), None);
                continue;
            };
            qp.requester.handle_rnr_timeout(now);
            qp.requester.handle_pace_timeout(now);
            self.stats.probes += u64::from(qp.requester.handle_probe_timeout(now));
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

    /// Updates a QP's timer and its membership in the send queues after a change.
    pub(crate) fn refresh(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let requester = &qp.requester;
        // Tag and value of a deadline were written one by one a moment ago. Read as one word of 16 bytes, as a copy would, they are
        // not there before all copies of payload that were written in between.
        let mut timer = requester.pace_deadline();
        let probe = requester.probe_deadline();
        for deadline in [&requester.ack_deadline, &requester.rnr_deadline, &probe] {
            if let Some(at) = *deadline
                && timer.is_none_or(|earliest| at < earliest)
            {
                timer = Some(at);
            }
        }
        if timer != qp.timer {
            self.timers.change(qpn, qp.timer, timer);
            qp.timer = timer;
        }
        if qp.responder.has_answers() && !qp.answering {
            qp.answering = true;
            self.answering.push_back(qpn);
        }
        if qp.requester.can_send() && !qp.requesting {
            qp.requesting = true;
            self.requesting.push_back(qpn);
        }
    }

    /// The caller must refresh the QP afterwards.
    pub(crate) fn pop_answering(&mut self) -> Option<Qpn> {
        let qpn = self.answering.pop_front()?;
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.answering = false;
        }
        Some(qpn)
    }

    /// The caller must refresh the QP afterwards.
    pub(crate) fn pop_requesting(&mut self) -> Option<Qpn> {
        let qpn = self.requesting.pop_front()?;
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.requesting = false;
        }
        Some(qpn)
    }
}

fn check_queue(qpn: Qpn, queued: usize, max: usize) -> Result<(), PostError> {
    if queued < max {
        Ok(())
    } else {
        Err(PostError::QueueFull { qpn, max })
    }
}

fn check_completions(pending: usize, max: usize) -> Result<(), PostError> {
    if pending < max {
        Ok(())
    } else {
        Err(PostError::CompletionQueueFull { max })
    }
}
