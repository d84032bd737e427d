//! A host as a member of a group: an RNIC on a port, the way into the group, one stream out or in. `castnet host` and the
//! demo's hosts are this.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use castnet_console::api;
use castnet_console::connect;
use castnet_console::exit::{Failure, Outcome};
use castnet_port::{BoxPort, Pool, PoolConfig, PortSpec, Sides};
use castnet_proto::transport::{Address, Security};
use castnet_rnic::stream::{
    self, Flow, ReceiverConfig, RemoteRing, SenderConfig, SenderLane, StreamError, StreamHeader,
    StreamReceiver, StreamSender, StreamSummary, Transfer,
};
use castnet_rnic::{
    MemoryRegion, NeighbourConfig, QpOptions, QpRemote, RnicError, SoftRnic, SoftRnicConfig, Status,
};
use castnet_wire::{Nanos, Pmtu, Psn, Qpn};
use tokio::runtime::Handle;

use crate::host::device::HostDevice;
use crate::host::patience::Silence;

/// A host's RNIC in software.
pub(crate) type HostRnic = SoftRnic<BoxPort>;

/// How bytes travel, and how QPs behave: the same at all members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// By WRITE with immediate instead of SEND.
    pub(crate) by_write: bool,
    /// Bytes of a full message.
    pub(crate) message_size: u32,
    /// Messages in a receiver's ring.
    pub(crate) slots: u32,
    /// Time-out exponent of the source's QP.
    pub(crate) timeout: u8,
    /// Retries without progress, and after RNR NAKs; 7 for ever.
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// How long the first hop may take to answer ARP for the McstID.
    pub(crate) connect_timeout: Duration,
    /// How long the source goes on while nobody answers; `None`: for ever.
    pub(crate) give_up: Option<Duration>,
}

impl Default for Manner {
    fn default() -> Self {
        let usual = ReceiverConfig::new(Qpn::VIRTUAL, false);
        Self {
            by_write: false,
            message_size: usual.message_size,
            slots: usual.slots,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            connect_timeout: Duration::from_secs(5),
            give_up: None,
        }
    }
}

/// A group, as far as a member's QPs are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// One for each lane.
    pub(crate) mcst_ids: Vec<Ipv4Addr>,
    /// What the QPs are connected to there.
    pub(crate) virtual_qpn: Qpn,
    pub(crate) start_psn: Psn,
    pub(crate) pmtu: Pmtu,
    pub(crate) va_base: u64,
}

impl TryFrom<&api::GroupState> for Membership {
    type Error = Failure;

    fn try_from(state: &api::GroupState) -> Outcome<Self> {
        let odd = |what: String| Failure::failed(format!("the controller's answer makes no sense: {what}"));
        let mcst_id = |text: &String| text.parse().map_err(|_| odd(format!("McstID '{text}'")));
        let lanes = state.lanes.iter().map(|lane| mcst_id(&lane.mcst_id));
        Ok(Self {
            mcst_ids: match state.lanes.len() {
                0 => vec![mcst_id(&state.mcst_id)?],
                _ => lanes.collect::<Outcome<_>>()?,
            },
            // Members of a multicast group are hosts, each with an address of its own.
            virtual_qpn: Qpn::VIRTUAL,
            start_psn: Psn::new(state.start_psn),
            pmtu: Pmtu::from_bytes(state.pmtu).ok_or_else(|| odd(format!("path MTU {}", state.pmtu)))?,
            va_base: state.va_base,
        })
    }
}

/// How to reach the controller.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    pub(crate) address: Address,
    pub(crate) security: Security,
}

impl Dial {
    pub(super) async fn connect(&self) -> Outcome<api::ControllerClient> {
        connect::controller(&self.address, &self.security).await
    }
}

/// Set by somebody who wants the transfer to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks for the end.
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The bit itself.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Whether the end was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn flow(&self) -> Flow {
        if self.is_asked() {
            Flow::Stop
        } else {
            Flow::Continue
        }
    }
}

/// How often a host says where it is: a switch that starts later than the host must learn it before the controller
/// gives up to look for it.
const ANNOUNCE_INTERVAL: Nanos = Nanos::from_secs(2);

/// An RNIC at `ip` on a port, for this thread.
pub(crate) fn open(spec: &PortSpec, mut config: SoftRnicConfig) -> Outcome<HostRnic> {
    // Another process at this address, now or before, has another QP: a group must not take one for the other, and each
    // is to be in a group of its own.
    config.first_qpn = Qpn::new(RandomState::new().hash_one(config.ip) as u32);
    config.neighbours = NeighbourConfig {
        announce_interval: ANNOUNCE_INTERVAL,
        ..config.neighbours
    };
    let pool = Pool::new(PoolConfig::default());
    let port = spec
        .open(&pool, Sides::Both)
        .map_err(|e| Failure::failed(e).next("castnet doctor --for switch"))?;
    SoftRnic::new(port, pool, config).map_err(rnic_failure)
}

/// How long an idle RNIC sleeps before its thread looks at other things.
const NAP: Duration = Duration::from_millis(20);

/// Polls an RNIC once, and lets its thread sleep a moment where there was nothing to do.
fn turn<R: HostDevice>(rnic: &mut R) -> Outcome {
    let now = rnic.now();
    if !rnic.poll(now).map_err(rnic_failure)? {
        rnic.wait(NAP).map_err(rnic_failure)?;
    }
    Ok(())
}

/// Waits for `work`, and polls the RNIC meanwhile: who joins must answer ARP.
pub(crate) fn alongside<R, T, F>(rnic: &mut R, runtime: &Handle, stop: &Stop, work: F) -> Outcome<T>
where
    R: HostDevice,
    T: Send + 'static,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    let (done, result) = sync_channel(1);
    let waker = rnic.waker();
    let task = runtime.spawn(async move {
        // Nobody waits for it any more where the host has stopped.
        let _ = done.send(work.await);
        waker.wake();
    });
    loop {
        match result.try_recv() {
            Ok(result) => return result,
            Err(TryRecvError::Disconnected) => {
                return Err(Failure::failed("a task of this process has died"));
            }
            Err(TryRecvError::Empty) if stop.is_asked() => {
                task.abort();
                return Err(interrupted());
            }
            Err(TryRecvError::Empty) => {
                HostDevice::announce(rnic);
                turn(rnic)?;
            }
        }
    }
}

/// The failure of what its owner stopped.
pub(crate) fn interrupted() -> Failure {
    Failure::failed("stopped by a signal before the end")
}

/// Joins a group with this end of a connection, and waits until the source may send. Tries again for `patience` where
/// the controller cannot be reached or does not know the group yet.
pub(crate) async fn join(
    controller: Dial,
    request: api::JoinGroupRequest,
    patience: Duration,
) -> Outcome<api::GroupState> {
    let start = Instant::now();
    loop {
        let failure = match join_once(&controller, request.clone()).await {
            Ok(state) => return Ok(state),
            Err(JoinFailure::Final(failure)) => return Err(failure),
            Err(JoinFailure::Early(failure)) => failure,
        };
        if start.elapsed() >= patience {
            return Err(failure);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// How many lanes the group has: a member brings a QP for each. Waits for a group that is not there yet as [`join`] does.
pub(crate) async fn lanes(controller: Dial, group: String, patience: Duration) -> Outcome<usize> {
    let start = Instant::now();
    loop {
        let request = api::GetGroupRequest { group: group.clone() };
        let failure = match controller.connect().await {
            Ok(mut client) => match client.get_group(request).await {
                Ok(answer) => {
                    let state = answer.into_inner().state.unwrap_or_default();
                    return Ok(state.lanes.len().max(1));
                }
                Err(status) => not_joined(status, &group),
            },
            Err(failure) => JoinFailure::Early(failure),
        };
        match failure {
            JoinFailure::Early(_) if start.elapsed() < patience => {}
            JoinFailure::Early(failure) | JoinFailure::Final(failure) => return Err(failure),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What a status says to who joins.
fn not_joined(status: tonic::Status, group: &str) -> JoinFailure {
    let code = status.code();
    let failure = Failure::from(status).while_doing(format!("joining group {group}"));
    match code {
        tonic::Code::Unavailable => JoinFailure::Early(failure),
        tonic::Code::NotFound => JoinFailure::Early(failure.next(format!(
            "castnet group create {group} --source HOST --members HOST,...\nor wait for it: --wait 1m"
        ))),
        _ => JoinFailure::Final(failure),
    }
}

enum JoinFailure {
    /// Perhaps it is only too early.
    Early(Failure),
    Final(Failure),
}

async fn join_once(
    controller: &Dial,
    request: api::JoinGroupRequest,
) -> Result<api::GroupState, JoinFailure> {
    let group = request.group.clone();
    let joining = |status| not_joined(status, &group);
    let mut client = controller.connect().await.map_err(JoinFailure::Early)?;
    let mut states = client.join_group(request).await.map_err(joining)?.into_inner();
    while let Some(state) = states.message().await.map_err(joining)? {
        match state.phase() {
            api::GroupPhase::Active | api::GroupPhase::Degraded => return Ok(state),
            api::GroupPhase::Failed => {
                let failure =
                    Failure::refused(format!("group {group} could not be installed: {}", state.reason));
                return Err(JoinFailure::Final(
                    failure.next(format!("castnet group show {group}")),
                ));
            }
            _ => tracing::debug!(group, phase = ?state.phase(), reason = state.reason, "waiting"),
        }
    }
    let failure = Failure::failed(format!(
        "the controller ended the call before group {group} was active"
    ));
    Err(JoinFailure::Early(
        failure.next("castnet group show tells who is missing"),
    ))
}

/// QPs that are connected to their group, one in each lane.
#[derive(Clone, Debug)]
pub(crate) struct Connected {
    pub(crate) qpns: Vec<Qpn>,
    pub(crate) group: Membership,
    pub(crate) manner: Manner,
}

impl Connected {
    /// How its bytes travel.
    pub(crate) fn transfer(&self) -> Transfer {
        if !self.manner.by_write {
            return Transfer::Send;
        }
        // Any key: the switch next to each receiver puts that receiver's own.
        Transfer::Write(RemoteRing {
            va: self.group.va_base,
            rkey: 0,
            slots: self.manner.slots,
        })
    }
}

/// Connects a member's QPs to its group, each to its lane.
pub(crate) fn connect<R: HostDevice>(
    rnic: &mut R,
    qpns: Vec<Qpn>,
    group: Membership,
    manner: Manner,
) -> Outcome<Connected> {
    if qpns.len() != group.mcst_ids.len() {
        let (lanes, qps) = (group.mcst_ids.len(), qpns.len());
        return Err(Failure::failed(format!(
            "the group has {lanes} lanes, and {qps} QPs were made for it"
        )));
    }
    for (lane, (qpn, mcst_id)) in qpns.iter().zip(&group.mcst_ids).enumerate() {
        let remote = QpRemote {
            sq_psn: group.start_psn,
            rq_psn: group.start_psn,
            pmtu: group.pmtu,
            timeout: manner.timeout,
            retry_cnt: manner.retry_cnt,
            rnr_retry: manner.rnr_retry,
            ..QpRemote::new(*mcst_id, group.virtual_qpn)
        };
        let connected = connect_qp(rnic, *qpn, &remote, manner.connect_timeout);
        connected.map_err(|failure| match qpns.len() {
            1 => failure,
            _ => failure.while_doing(format!("connecting lane {lane}")),
        })?;
    }
    Ok(Connected { qpns, group, manner })
}

fn connect_qp<R: HostDevice>(rnic: &mut R, qpn: Qpn, remote: &QpRemote, patience: Duration) -> Outcome {
    rnic.connect_qp(qpn, remote, patience).map_err(|e| match e {
        RnicError::Unreachable { .. } => Failure::unreachable(e).next(
            "see that this interface is a port of a switch, and that the switch has the group:\n\
             castnet port; castnet group list --agent URL",
        ),
        RnicError::PmtuTooLarge { .. } => {
            Failure::failed(e).next("ip link set IF mtu 4200, or a group with a smaller --pmtu")
        }
        other => rnic_failure(other),
    })
}

/// QPs for the lanes of a group, the first of its own number or of the number asked for.
pub(crate) fn create_qps<R: HostDevice>(rnic: &mut R, first: Option<Qpn>, lanes: usize) -> Outcome<Vec<Qpn>> {
    let create = |lane| {
        let options = QpOptions {
            qpn: first.filter(|_| lane == 0),
            ..QpOptions::default()
        };
        rnic.create_qp(&options).map_err(rnic_failure)
    };
    (0..lanes).map(create).collect()
}

/// The receiving machine of a member's QPs; its memory is there before the group is joined, so that the switch can name it.
pub(crate) fn receiver<R: HostDevice>(
    rnic: &mut R,
    qpns: &[Qpn],
    manner: &Manner,
) -> Outcome<StreamReceiver> {
    let (first, more) = qpns
        .split_first()
        .ok_or_else(|| Failure::failed("a group has at least one lane"))?;
    let config = ReceiverConfig {
        message_size: manner.message_size,
        slots: manner.slots,
        ..ReceiverConfig::new(*first, manner.by_write)
    };
    StreamReceiver::over_lanes(rnic, config, more).map_err(stream_failure)
}

/// The memory of a receiver's lanes that the source writes; none where it sends.
pub(crate) fn written(receiver: &StreamReceiver) -> Vec<MemoryRegion> {
    let rings = receiver.rings().filter(|_| receiver.config().by_write);
    rings.copied().collect()
}

/// This member's ends of its connections, with the memory of each lane that the source writes.
pub(crate) fn connection<R: HostDevice>(rnic: &R, qpns: &[Qpn], memory: &[MemoryRegion]) -> api::Connection {
    let device = rnic.attributes();
    let mut ends = qpns.iter().enumerate().map(|(lane, qpn)| {
        let memory = memory.get(lane).map(|region| api::RemoteMemory {
            va: region.va,
            rkey: region.rkey,
            length: region.length as u64,
        });
        api::LaneConnection {
            qpn: qpn.value(),
            memory,
        }
    });
    let first = ends.next().unwrap_or_default();
    api::Connection {
        ip: device.ip.to_string(),
        mac: device.mac.to_string(),
        qpn: first.qpn,
        memory: first.memory,
        more_lanes: ends.collect(),
    }
}

/// What a transfer came to at one host.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) summary: StreamSummary,
    /// From the first byte to the last acknowledgement, or to the last byte.
    pub(crate) elapsed: Duration,
}

/// Sends all of `source` as one stream.
pub(crate) fn send<R: HostDevice>(
    rnic: &mut R,
    at: &Connected,
    header: &StreamHeader,
    source: &mut dyn Read,
    stop: &Stop,
    progress: &mut dyn FnMut(u64),
) -> Outcome<Figures> {
    let transfer = at.transfer();
    let lanes: Vec<SenderLane> = at.qpns.iter().map(|&qpn| SenderLane { qpn, transfer }).collect();
    let (first, more) = lanes
        .split_first()
        .ok_or_else(|| Failure::failed("a group has at least one lane"))?;
    let config = SenderConfig {
        message_size: at.manner.message_size,
        ..SenderConfig::new(first.qpn, transfer)
    };
    let mut sender = StreamSender::over_lanes(rnic, config, more).map_err(stream_failure)?;
    let start = Instant::now();
    let mut silence = Silence::new(at.manner.give_up);
    let mut told = |rnic: &R, bytes| {
        progress(bytes);
        match silence.look(rnic, bytes) {
            Flow::Stop => Flow::Stop,
            Flow::Continue => stop.flow(),
        }
    };
    let sent = stream::send(rnic, &mut sender, header, source, &mut told);
    if let Some(failure) = silence.failure() {
        return Err(failure);
    }
    let summary = sent.map_err(stream_failure)?;
    let elapsed = start.elapsed();
    sender.close(rnic).map_err(stream_failure)?;
    Ok(Figures { summary, elapsed })
}

/// Receives one stream into what `open` makes, and gives that back when all is in it.
pub(crate) fn receive<R: HostDevice, W: Write>(
    rnic: &mut R,
    receiver: &mut StreamReceiver,
    open: &mut dyn FnMut(&StreamHeader) -> io::Result<W>,
    stop: &Stop,
    progress: &mut dyn FnMut(Option<&StreamHeader>, u64),
) -> Outcome<(Figures, W)> {
    let mut begun = None;
    let mut told = |header: Option<&StreamHeader>, bytes| {
        if header.is_some() {
            begun.get_or_insert_with(Instant::now);
        }
        progress(header, bytes);
        stop.flow()
    };
    let (summary, sink) = stream::receive(rnic, receiver, open, &mut told).map_err(stream_failure)?;
    Ok((
        Figures {
            summary,
            elapsed: begun.map(|b| b.elapsed()).unwrap_or_default(),
        },
        sink,
    ))
}

/// Silence after which a source that is not done has died: several of its time-outs.
const QUIET: Duration = Duration::from_secs(3);

/// Goes on answering until `is_over` says that the source has every acknowledgement, or until nothing has come for so
/// long that it cannot still be asking: a last ACK that is lost must be sent again.
pub(crate) fn linger<R: HostDevice>(rnic: &mut R, stop: &Stop, mut is_over: impl FnMut() -> bool) -> Outcome {
    let (mut heard, mut last) = (rnic.requests(), Instant::now());
    while !stop.is_asked() && !is_over() && last.elapsed() < QUIET {
        turn(rnic)?;
        let now = rnic.requests();
        if now != heard {
            (heard, last) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Waits until the source of a group has left it: it has every acknowledgement then.
pub(crate) async fn source_left(controller: Dial, group: String) -> Outcome {
    let mut controller = controller.connect().await?;
    loop {
        let request = api::GetGroupRequest { group: group.clone() };
        match controller.get_group(request).await {
            Ok(answer) => {
                let state = answer.into_inner().state.unwrap_or_default();
                let source = state.members.iter().find(|m| m.host == state.source);
                if source.is_none_or(|m| m.phase() != api::MemberPhase::Joined) {
                    return Ok(());
                }
            }
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(()),
            // A controller that is away may come back; silence on the wire ends the waiting otherwise.
            Err(status) => tracing::debug!(group, %status, "asking whether the source has left"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Leaves a group; a controller that is away is waited for a moment.
pub(crate) async fn leave(controller: Dial, group: String, host: String) -> Outcome {
    let mut tries = 0;
    loop {
        tries += 1;
        let request = api::LeaveGroupRequest {
            group: group.clone(),
            host: host.clone(),
            rank: None,
        };
        let failure = match controller.connect().await {
            Ok(mut client) => match client.leave_group(request).await {
                Ok(_) => return Ok(()),
                // Somebody has destroyed it: left as well.
                Err(status) if status.code() == tonic::Code::NotFound => return Ok(()),
                Err(status) => Failure::from(status),
            },
            Err(failure) => failure,
        };
        if tries == 5 {
            return Err(failure.while_doing(format!("leaving group {group}")));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The failure of an RNIC, and what to do about it.
pub(crate) fn rnic_failure(error: RnicError) -> Failure {
    let advice = error.advice();
    let failure = match error {
        RnicError::Unreachable { .. } | RnicError::NoRoute { .. } => Failure::unreachable(error),
        other => Failure::failed(other),
    };
    match advice {
        Some(advice) => failure.next(advice),
        None => failure,
    }
}

/// The failure of a stream, and what its reader can do. Where the other side did not answer, or said no, the exit code
/// tells.
pub(crate) fn stream_failure(error: StreamError) -> Failure {
    match error {
        StreamError::Stopped => interrupted(),
        StreamError::Rnic(error) => rnic_failure(error),
        StreamError::Work { status, .. } => work_failure(status, &error),
        StreamError::OutOfRange { .. } => Failure::usage(error),
        StreamError::Malformed { .. } | StreamError::OutOfSequence { .. } => Failure::failed(error)
            .next("all members need the same --op and --message-size, and a group that was not used before"),
        other => Failure::failed(other),
    }
}

fn work_failure(status: Status, error: &StreamError) -> Failure {
    const ALIKE: &str =
        "all members need the same --op, --message-size and --slots; see what each receiver says";
    const DROPS: &str =
        "the QP has failed; see what the switches dropped: castnet drops; castnet group show GROUP";
    match status {
        Status::RemoteInvalidRequest | Status::RemoteAccessError => Failure::refused(error).next(ALIKE),
        Status::RemoteOperationalError => Failure::refused(error)
            .next("a receiver has failed, or the group has ended: castnet group show GROUP; castnet events"),
        Status::RnrRetryExceeded => Failure::refused(error)
            .next("a receiver has posted no receives for too long; --rnr-retry 7 waits for ever"),
        Status::RetryExceeded => Failure::unreachable(error).next(DROPS),
        Status::LocalLengthError => Failure::failed(error).next(ALIKE),
        Status::Success | Status::LocalProtectionError | Status::Flushed | Status::Device { .. } => {
            Failure::failed(error).next(DROPS)
        }
    }
}
