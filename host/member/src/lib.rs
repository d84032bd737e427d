//! A host as a member of a group: its RNIC on a port, its queue pairs, and one stream that it sends or receives. `castnet host`
//! and the hosts of `castnet demo` use it.

mod collective_failure;
mod device;
mod join;
mod silence;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use castnet_console::api;
use castnet_console::exit::{Failure, Outcome};
use castnet_port::{BoxPort, Pool, PoolConfig, PortSpec, Sides};
use castnet_rnic::stream::{
    self, Flow, ReceiverConfig, RemoteRing, SenderConfig, SenderLane, StreamError, StreamHeader,
    StreamReceiver, StreamSender, StreamSummary, Transfer,
};
use castnet_rnic::{
    MemoryRegion, NeighbourConfig, QpOptions, QpRemote, RnicError, SoftRnic, SoftRnicConfig, Status,
};
use castnet_wire::{Nanos, Pmtu, Psn, Qpn};
use tokio::runtime::Handle;

pub use collective_failure::collective_failure;
pub use device::{HostDevice, Traffic};
pub use join::{Dial, join, lanes, leave, source_left};
pub use silence::Silence;

/// The software RNIC of a host.
pub type HostRnic = SoftRnic<BoxPort>;

/// How bytes are transferred, and how QPs behave. All members of a group need the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// WRITE with immediate instead of SEND.
    pub by_write: bool,
    /// Bytes of a full message.
    pub message_size: u32,
    /// Messages in a receiver's ring.
    pub slots: u32,
    /// Time-out exponent of the source's QP.
    pub timeout: u8,
    /// Retries without progress; 7: without limit.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7: without limit.
    pub rnr_retry: u8,
    /// Time-out of the ARP request for the McstID.
    pub connect_timeout: Duration,
    /// Time without any answer after which the source gives up; `None`: never.
    pub give_up: Option<Duration>,
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

/// What a member's QPs need to know of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// One per lane.
    pub mcst_ids: Vec<Ipv4Addr>,
    /// Remote QPN of the member's QPs.
    pub virtual_qpn: Qpn,
    /// First PSN of the source.
    pub start_psn: Psn,
    /// Path MTU.
    pub pmtu: Pmtu,
    /// Virtual address that the source writes to.
    pub va_base: u64,
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

/// A flag that ends a transfer early. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Sets it.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Whether it is set.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// What a transfer shall do.
    pub fn flow(&self) -> Flow {
        if self.is_asked() {
            Flow::Stop
        } else {
            Flow::Continue
        }
    }
}

/// Interval of the host's announcements: a switch that starts after the host must learn its port before the controller
/// gives up.
const ANNOUNCE_INTERVAL: Nanos = Nanos::from_secs(2);

/// Opens a software RNIC on a port, for this thread.
///
/// # Errors
/// The port cannot be opened.
pub fn open(spec: &PortSpec, mut config: SoftRnicConfig) -> Outcome<HostRnic> {
    // Another process with this address, now or before, must have other QPNs, so that a group does not confuse them.
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

/// Longest sleep of an idle RNIC.
const NAP: Duration = Duration::from_millis(20);

/// Polls an RNIC once, and sleeps for a moment if it was idle.
fn poll_or_wait<R: HostDevice>(rnic: &mut R) -> Outcome {
    let now = rnic.now();
    if !rnic.poll(now).map_err(rnic_failure)? {
        rnic.wait(NAP).map_err(rnic_failure)?;
    }
    Ok(())
}

/// Waits for `work` and polls the RNIC meanwhile, because a host that joins must answer ARP.
///
/// # Errors
/// Those of `work` and of the RNIC; [`interrupted`].
pub fn alongside<R, T, F>(rnic: &mut R, runtime: &Handle, stop: &Stop, work: F) -> Outcome<T>
where
    R: HostDevice,
    T: Send + 'static,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    let (done, result) = sync_channel(1);
    let waker = rnic.waker();
    let task = runtime.spawn(async move {
        // The receiver is gone if the host has stopped.
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
                poll_or_wait(rnic)?;
            }
        }
    }
}

/// The failure of a transfer that was stopped.
pub fn interrupted() -> Failure {
    Failure::failed("stopped by a signal before the end")
}

/// QPs that are connected to their group, one per lane.
#[derive(Clone, Debug)]
pub struct Connected {
    /// One per lane.
    pub qpns: Vec<Qpn>,
    /// The group.
    pub group: Membership,
    /// How bytes are transferred.
    pub manner: Manner,
}

impl Connected {
    /// How its bytes are transferred.
    pub fn transfer(&self) -> Transfer {
        if !self.manner.by_write {
            return Transfer::Send;
        }
        // The switch next to each receiver replaces the key by that of the receiver.
        Transfer::Write(RemoteRing {
            va: self.group.va_base,
            rkey: 0,
            slots: self.manner.slots,
        })
    }
}

/// Connects the QPs of a member to the lanes of its group.
///
/// # Errors
/// Not as many QPs as lanes; the first hop does not answer; those of the RNIC.
pub fn connect<R: HostDevice>(
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

/// Creates the QPs for the lanes of a group. `first` is the QPN of the first one, if given.
///
/// # Errors
/// Those of the RNIC.
pub fn create_qps<R: HostDevice>(rnic: &mut R, first: Option<Qpn>, lanes: usize) -> Outcome<Vec<Qpn>> {
    let create = |lane| {
        let options = QpOptions {
            qpn: first.filter(|_| lane == 0),
            ..QpOptions::default()
        };
        rnic.create_qp(&options).map_err(rnic_failure)
    };
    (0..lanes).map(create).collect()
}

/// The receiver of a member's QPs. It is created before the group is joined, because the switch needs its memory's key.
///
/// # Errors
/// Those of the RNIC and of the stream.
pub fn receiver<R: HostDevice>(rnic: &mut R, qpns: &[Qpn], manner: &Manner) -> Outcome<StreamReceiver> {
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

/// Memory of a receiver's lanes that the source writes to; empty without WRITE.
pub fn written(receiver: &StreamReceiver) -> Vec<MemoryRegion> {
    let rings = receiver.rings().filter(|_| receiver.config().by_write);
    rings.copied().collect()
}

/// This member's ends of its connections, with the memory of each lane that the source writes to.
pub fn connection<R: HostDevice>(rnic: &R, qpns: &[Qpn], memory: &[MemoryRegion]) -> api::Connection {
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

/// Result of a transfer at one host.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What was transferred.
    pub summary: StreamSummary,
    /// From the first byte to the last acknowledgement, or to the last byte.
    pub elapsed: Duration,
}

/// Sends all of `source` as one stream.
///
/// # Errors
/// Those of the stream; [`interrupted`]; no answer for [`Manner::give_up`].
pub fn send<R: HostDevice>(
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
    let mut report = |rnic: &R, bytes| {
        progress(bytes);
        match silence.look(rnic, bytes) {
            Flow::Stop => Flow::Stop,
            Flow::Continue => stop.flow(),
        }
    };
    let sent = stream::send(rnic, &mut sender, header, source, &mut report);
    if let Some(failure) = silence.failure() {
        return Err(failure);
    }
    let summary = sent.map_err(stream_failure)?;
    let elapsed = start.elapsed();
    sender.close(rnic).map_err(stream_failure)?;
    Ok(Figures { summary, elapsed })
}

/// Receives one stream into what `open` returns, and returns that at the end of the stream.
///
/// # Errors
/// Those of the stream and of `open`; [`interrupted`].
pub fn receive<R: HostDevice, W: Write>(
    rnic: &mut R,
    receiver: &mut StreamReceiver,
    open: &mut dyn FnMut(&StreamHeader) -> io::Result<W>,
    stop: &Stop,
    progress: &mut dyn FnMut(Option<&StreamHeader>, u64),
) -> Outcome<(Figures, W)> {
    let mut begun = None;
    let mut report = |header: Option<&StreamHeader>, bytes| {
        if header.is_some() {
            begun.get_or_insert_with(Instant::now);
        }
        progress(header, bytes);
        stop.flow()
    };
    let (summary, sink) = stream::receive(rnic, receiver, open, &mut report).map_err(stream_failure)?;
    Ok((
        Figures {
            summary,
            elapsed: begun.map(|b| b.elapsed()).unwrap_or_default(),
        },
        sink,
    ))
}

/// Time without requests after which the source is done or dead: several of its time-outs.
const QUIET: Duration = Duration::from_secs(3);

/// Continues to answer, because a lost last ACK must be sent again. Ends when `is_over` returns true, when no request has
/// come for 3 s, or when `stop` is set.
///
/// # Errors
/// Those of the RNIC.
pub fn linger<R: HostDevice>(rnic: &mut R, stop: &Stop, mut is_over: impl FnMut() -> bool) -> Outcome {
    let (mut requests, mut last) = (rnic.requests(), Instant::now());
    while !stop.is_asked() && !is_over() && last.elapsed() < QUIET {
        poll_or_wait(rnic)?;
        let now = rnic.requests();
        if now != requests {
            (requests, last) = (now, Instant::now());
        }
    }
    Ok(())
}

/// The failure of an RNIC, with advice.
pub fn rnic_failure(error: RnicError) -> Failure {
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

/// The failure of a stream, with advice. The exit code distinguishes a remote end that refused from one that did not answer.
pub fn stream_failure(error: StreamError) -> Failure {
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
