//! [`MemifPort`]: a link as a port.

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use castnet_wire::{BATCH, Batch, DropReason, FrameBuf, Nanos};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::control::{self, Link, Progress, Refusal, State, Terms};
use super::doorbell::Bell;
use super::listener::{Listener, Registration, Seat};
use super::proto::Message;
use super::queue::{Fault, Receiver};
use super::socket::{Connection, Incoming};
use super::{LOG_INTERVAL, MemifSpec, Role};
use crate::pool::{Pool, PoolBuf};
use crate::port::{Port, PortDevice, PortLink, PortStats, RingUse, fits_from, frame_max};
use crate::retired::{Late, Retired};
use crate::ring::FrameRing;
use crate::sleep::Sleeper;
use crate::spec::OpenError;

/// Interval of looking at the control socket while awake.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(1);
/// The time after which a hand-shake has failed.
const HANDSHAKE_MAX: Nanos = Nanos::from_secs(5);
/// The time from a failed connection of a client to the next, doubled up to the longest.
const RETRY_FIRST: Nanos = Nanos::from_millis(10);
const RETRY_LONGEST: Nanos = Nanos::from_secs(1);
/// The longest sleep if the peer may miss that this side sleeps, see [`Link::fences`].
const UNFENCED_SLEEP: Nanos = Nanos::from_millis(1);
/// Control messages per check.
const MESSAGES_MAX: usize = 16;
/// The shortest frame: an Ethernet header.
const FRAME_MIN: usize = 14;

/// Sources of the epoll instance.
const CONTROL: u64 = 0;
const LISTENER: u64 = 1;
const EVENT: u64 = 2;

/// A link, or the attempt to have one.
#[derive(Debug)]
enum Phase {
    /// A client connects at `retry`; a server waits.
    Down,
    Handshake(Connection, State, Nanos),
    Up(Connection, Box<Link>),
}

/// A port on one end of a memif link.
#[derive(Debug)]
pub struct MemifPort {
    spec: MemifSpec,
    terms: Terms,
    phase: Phase,
    /// Of a server.
    seat: Option<Seat>,
    /// All descriptors that can wake this port. It is one descriptor for the sleeper, while these come and go.
    epoll: Epoll,
    bell: Bell,
    /// What the peer has broken since the last check.
    fault: Option<Fault>,
    now: Nanos,
    next_check: Nanos,
    /// By the last check, the memory of the last link was not unmapped yet.
    waits_for_memory: bool,
    retry: Nanos,
    retry_after: Nanos,
    next_log: Nanos,
    /// True after [`Port::ready`] has returned false: the thread may sleep, and the peer rings.
    may_sleep: Cell<bool>,
    pool: Pool,
    /// A frame in one piece.
    scratch: Box<[u8]>,
    relayed: Batch<PoolBuf>,
    stats: PortStats,
}

pub(super) fn info(spec: &MemifSpec) -> PortLink {
    PortLink {
        name: spec.to_string(),
        mac: spec.mac(),
        mtu: spec.mtu,
        up: spec.shared.up.load(Ordering::Relaxed),
        device: PortDevice {
            tx_queues: Some(1),
            multi_segment: true,
            ..PortDevice::new("memif")
        },
    }
}

impl MemifPort {
    pub(super) fn open(spec: &MemifSpec, pool: &Pool) -> Result<Self, OpenError> {
        let step = |step: &'static str, hint: &'static str| {
            move |source: io::Error| OpenError::SetUp {
                interface: format!("memif:{spec}"),
                step,
                source,
                hint,
            }
        };
        let limits = "are too many descriptors open (ulimit -n)?";
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| step("epoll", limits)(e.into()))?;
        let bell = Bell::new().map_err(step(
            "io_setup",
            "a larger /proc/sys/fs/aio-max-nr, or seccomp without a ban on it",
        ))?;
        let seat = match spec.role() {
            Role::Client => None,
            Role::Server => {
                let wants = Registration {
                    secret: spec.secret,
                    peers: spec.peers,
                    shared: spec.shared.clone(),
                };
                let place =
                    "is its folder there and writable, and no other process there? role=client connects";
                let seat = Listener::open(&spec.address, spec.mode, spec.group, spec.id, wants)
                    .map_err(step("listen", place))?;
                epoll
                    .add(&seat, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))
                    .map_err(|e| step("epoll", limits)(e.into()))?;
                Some(seat)
            }
        };
        Ok(Self {
            terms: Terms {
                id: spec.id,
                secret: spec.secret,
                log2_ring: spec.ring.ilog2() as u8,
                buffer: spec.buffer_bytes() as u32,
                seals: spec.seals,
                retired: Retired::new(),
            },
            spec: spec.clone(),
            phase: Phase::Down,
            seat,
            epoll,
            bell,
            fault: None,
            now: Nanos::ZERO,
            next_check: Nanos::ZERO,
            waits_for_memory: false,
            retry: Nanos::ZERO,
            retry_after: RETRY_FIRST,
            next_log: Nanos::ZERO,
            may_sleep: Cell::new(false),
            pool: pool.clone(),
            scratch: vec![0; frame_max(spec.mtu)].into(),
            relayed: Batch::new(),
            stats: PortStats::default(),
        })
    }

    /// The part of [`Port::poll`] with system calls.
    #[cold]
    fn check(&mut self) {
        self.next_check = self.now + CHECK_INTERVAL;
        let mut events = [EpollEvent::empty(); 4];
        // Also clears the edge of the peer's event. An error is as no event.
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let is_ready = |source| events[..count].iter().any(|event| event.data() == source);
        let (control, listener) = (is_ready(CONTROL), is_ready(LISTENER));
        if let Some(fault) = self.fault.take() {
            self.end(&fault.into());
        }
        if control {
            self.receive_messages();
        }
        if let Phase::Handshake(_, _, deadline) = &self.phase
            && *deadline <= self.now
        {
            self.end(&Refusal::Silent);
        }
        // The next link waits until the memory of the last one is unmapped.
        let is_down = matches!(self.phase, Phase::Down);
        self.waits_for_memory = is_down && !self.terms.retired.is_empty();
        let is_free = is_down && !self.waits_for_memory;
        if let Some(seat) = &self.seat {
            if listener {
                seat.serve(self.now);
            }
            if is_free && let Some((connection, state)) = seat.take() {
                self.start(connection, state);
                // Its next message may be there already.
                self.receive_messages();
            }
        } else if is_free && self.retry <= self.now {
            self.connect();
        }
    }

    fn connect(&mut self) {
        match Connection::open(&self.spec.address, &self.terms.retired) {
            Ok(connection) if !self.spec.peers.accept(connection.uid) => {
                let uid = connection.uid;
                self.failed(&Refusal::User { uid });
            }
            Ok(connection) => self.start(connection, State::Greeting),
            Err(error) => self.failed(&Refusal::io("connecting")(error)),
        }
    }

    fn start(&mut self, connection: Connection, state: State) {
        let added = self
            .epoll
            .add(&connection, EpollEvent::new(EpollFlags::EPOLLIN, CONTROL));
        self.phase = Phase::Handshake(connection, state, self.now + HANDSHAKE_MAX);
        if let Err(error) = added {
            self.end(&Refusal::io("epoll")(error.into()));
        }
    }

    fn receive_messages(&mut self) {
        for _ in 0..MESSAGES_MAX {
            let (connection, is_up) = match &self.phase {
                Phase::Down => return,
                Phase::Handshake(connection, ..) => (connection, false),
                Phase::Up(connection, _) => (connection, true),
            };
            let handled = match connection.receive() {
                Ok(Incoming::Nothing) => return,
                Ok(Incoming::Closed) => Err(Refusal::Closed),
                Ok(Incoming::Message(message, _)) if is_up => Err(control::last(message)),
                Ok(Incoming::Message(message, descriptor)) => self.handle(message, descriptor),
                Err(bad) => Err(bad.into()),
            };
            if let Err(refusal) = handled {
                self.end(&refusal);
                return;
            }
        }
    }

    fn handle(&mut self, message: Message, descriptor: Option<Late<OwnedFd>>) -> Result<(), Refusal> {
        let Phase::Handshake(connection, state, deadline) = std::mem::replace(&mut self.phase, Phase::Down)
        else {
            return Ok(());
        };
        let mut answer = |message: &Message, fd: Option<BorrowedFd<'_>>| connection.send(message, fd);
        match state.handle(&self.terms, message, descriptor, &mut answer) {
            Ok(Progress::Up(link)) => {
                self.phase = Phase::Up(connection, link);
                self.came_up()
            }
            Ok(Progress::Next(state)) => {
                self.phase = Phase::Handshake(connection, state, deadline);
                Ok(())
            }
            Err(refusal) => {
                // The connection is needed to say so.
                self.phase = Phase::Handshake(connection, State::Greeting, deadline);
                Err(refusal)
            }
        }
    }

    fn came_up(&mut self) -> Result<(), Refusal> {
        let Phase::Up(_, link) = &self.phase else {
            return Ok(());
        };
        // By edge, because the event is never read: a peer could make that wait.
        let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        self.epoll
            .add(&link.incoming, EpollEvent::new(edge, EVENT))
            .map_err(|e| Refusal::io("epoll")(e.into()))?;
        self.retry_after = RETRY_FIRST;
        self.spec.shared.up.store(true, Ordering::Relaxed);
        tracing::info!(port = %self.spec, "the memif link is up");
        Ok(())
    }

    /// Ends the connection, and the memory with it. Another thread closes and unmaps both.
    fn end(&mut self, refusal: &Refusal) {
        self.spec.shared.up.store(false, Ordering::Relaxed);
        let connection = match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Down => return,
            Phase::Handshake(connection, ..) => connection,
            Phase::Up(connection, link) => {
                let _ = self.epoll.delete(&link.incoming);
                connection
            }
        };
        if refusal.is_ours() {
            let reason = refusal.to_string();
            let _ = connection.send(&Message::Disconnect { code: 0, reason }, None);
        }
        let _ = self.epoll.delete(&connection);
        drop(connection);
        if let Some(seat) = &self.seat {
            seat.release();
        }
        self.failed(refusal);
    }

    fn failed(&mut self, refusal: &Refusal) {
        self.retry = self.now + self.retry_after;
        self.retry_after = Nanos((self.retry_after.0 * 2).min(RETRY_LONGEST.0));
        if self.now >= self.next_log {
            self.next_log = self.now + LOG_INTERVAL;
            match refusal {
                // A server that is not there yet.
                Refusal::Io { .. } => tracing::debug!(port = %self.spec, %refusal, "no memif link"),
                Refusal::Disconnected(_) | Refusal::Closed => {
                    tracing::info!(port = %self.spec, %refusal, "the memif link has ended");
                }
                _ => tracing::warn!(port = %self.spec, %refusal, "no memif link"),
            }
        }
    }

    /// Notes a fault, which ends the link at the next check.
    #[cold]
    fn note(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.next_check = Nanos::ZERO;
    }

    fn send_one(&mut self, pieces: &[&[u8]], length: usize) -> Result<(), DropReason> {
        let head = pieces.first().copied().unwrap_or_default();
        if length < FRAME_MIN {
            return Err(DropReason::Malformed);
        }
        if !fits_from(head, length, self.spec.mtu) {
            return Err(DropReason::TooLong);
        }
        match &mut self.phase {
            Phase::Up(_, link) if self.fault.is_none() => match link.sender.push(pieces) {
                Ok(result) => result,
                Err(fault) => {
                    self.note(fault);
                    Err(DropReason::PortDown)
                }
            },
            _ => Err(DropReason::PortDown),
        }
    }

    fn publish(&mut self) {
        if let Phase::Up(_, link) = &mut self.phase
            && link.sender.publish()
        {
            self.bell.ring(&link.outgoing);
        }
    }

    /// Calls `take` with the length of each of up to [`BATCH`] frames, for as long as there is capacity. Returns their number.
    fn take(
        &mut self,
        mut has_capacity: impl FnMut() -> bool,
        mut take: impl FnMut(&Receiver, usize) -> Result<(), DropReason>,
    ) -> usize {
        let Phase::Up(_, link) = &mut self.phase else {
            return 0;
        };
        if self.fault.is_some() {
            return 0;
        }
        let mut count = 0;
        while count < BATCH && has_capacity() {
            match link.receiver.next() {
                Ok(None) => break,
                Ok(Some(length)) => {
                    count += 1;
                    let taken = length.and_then(|length| match length {
                        ..FRAME_MIN => Err(DropReason::Malformed),
                        _ => take(&link.receiver, length).map(|()| length),
                    });
                    match taken {
                        Ok(length) => self.stats.count_received(length),
                        Err(reason) => self.stats.count_drop(reason),
                    }
                }
                Err(fault) => {
                    link.receiver.give_back();
                    self.note(fault);
                    return count;
                }
            }
        }
        link.receiver.give_back();
        count
    }

    /// Sends what threads without the link have for it.
    fn send_relayed(&mut self) {
        let shared = self.spec.shared.clone();
        let Some(ring) = shared.relayed.get() else { return };
        while !ring.is_empty() {
            while !self.relayed.is_full()
                && let Some(popped) = ring.pop(&self.pool)
            {
                match popped {
                    Ok(((), frame)) => self.relayed.push(frame),
                    Err(((), reason)) => self.stats.count_drop(reason),
                }
            }
            if self.relayed.is_empty() {
                return;
            }
            let mut batch = std::mem::take(&mut self.relayed);
            self.send(&mut batch);
        }
    }
}

impl Port for MemifPort {
    type Buf = PoolBuf;

    fn receive(&mut self, batch: &mut Batch<PoolBuf>) {
        let (pool, free) = (self.pool.clone(), batch.capacity() - batch.len());
        let mut left = free;
        self.take(
            || {
                let has_capacity = left > 0 && pool.has_capacity();
                left = left.saturating_sub(1);
                has_capacity
            },
            |receiver, length| {
                let frame = pool.build(length, |at, piece| receiver.copy(at, piece));
                batch.push(frame.ok_or(DropReason::TooLong)?);
                Ok(())
            },
        );
    }

    fn receive_with(&mut self, scratch: &mut [u8], with: &mut dyn FnMut(&[u8])) -> usize {
        self.take(
            || true,
            |receiver, length| {
                let whole = scratch.get_mut(..length).ok_or(DropReason::TooLong)?;
                receiver.copy(0, whole);
                with(whole);
                Ok(())
            },
        )
    }

    fn send(&mut self, batch: &mut Batch<PoolBuf>) {
        self.offer(batch);
        self.stats.drops[DropReason::TxFull] += batch.len() as u64;
        batch.clear();
    }

    fn offer(&mut self, batch: &mut Batch<PoolBuf>) {
        let mut taken = 0;
        for frame in batch.iter() {
            let sent = self.send_one(&frame.segments(), frame.length());
            if sent == Err(DropReason::TxFull) {
                break;
            }
            self.stats.count_send(frame.length(), sent);
            taken += 1;
        }
        batch.drain(..taken);
        self.publish();
    }

    fn send_in_place(
        &mut self,
        least: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>,
    ) -> Option<(usize, bool)> {
        if self.scratch.len() < least {
            self.scratch = vec![0; least].into();
        }
        // The frame is made in private memory: `fill` reads again what it has written.
        let mut scratch = std::mem::take(&mut self.scratch);
        let (mut count, mut more) = (0, false);
        while count < BATCH {
            let Phase::Up(_, link) = &mut self.phase else {
                break;
            };
            if self.fault.is_some() {
                break;
            }
            more = true;
            match link.sender.has_capacity(least) {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    self.note(fault);
                    break;
                }
            }
            let Some(length) = fill(&mut scratch) else {
                more = false;
                break;
            };
            count += 1;
            let sent = self.send_one(&[&scratch[..length]], length);
            self.stats.count_send(length, sent);
        }
        self.scratch = scratch;
        self.publish();
        Some((count, more))
    }

    fn info(&self) -> PortLink {
        info(&self.spec)
    }

    fn mtu(&self) -> usize {
        self.spec.mtu
    }

    fn is_up(&self) -> bool {
        self.spec.shared.up.load(Ordering::Relaxed)
    }

    fn stats(&self) -> PortStats {
        self.stats
    }

    /// Before it returns false, it asks the peer to ring, and looks once more.
    fn ready(&self) -> bool {
        let shared = &self.spec.shared;
        let has_work = || {
            let frames = match &self.phase {
                // A fault is found by the next receive.
                Phase::Up(_, link) => link.receiver.waiting() != Ok(0),
                _ => false,
            };
            frames
                || shared.attention.load(Ordering::Acquire)
                || shared.relayed.get().is_some_and(|ring| !ring.is_empty())
        };
        if has_work() {
            return true;
        }
        if let Phase::Up(_, link) = &self.phase
            && !self.may_sleep.get()
        {
            link.receiver.ask_for_events();
        }
        self.may_sleep.set(true);
        has_work()
    }

    fn receive_ring(&self) -> Option<RingUse> {
        let Phase::Up(_, link) = &self.phase else {
            return Some(RingUse::default());
        };
        Some(RingUse {
            used: link.receiver.waiting().map_or(0, usize::from),
            size: link.receiver.size().into(),
        })
    }

    /// A fault of the peer is found by the next frame that is sent.
    fn backlog(&self) -> Option<u64> {
        let Phase::Up(_, link) = &self.phase else {
            return Some(0);
        };
        let frames = link.sender.waiting().unwrap_or(0);
        Some(self.stats.queued_bytes(frames.into()))
    }

    fn attach(&mut self, sleeper: &mut Sleeper) -> io::Result<()> {
        sleeper.add_event(self.spec.shared.wake.clone())?;
        sleeper.add_file(Arc::new(self.epoll.0.try_clone()?))
    }

    fn poll(&mut self, now: Nanos) {
        self.now = now;
        let slept = self.may_sleep.replace(false);
        if slept && let Phase::Up(_, link) = &self.phase {
            link.receiver.mask_events();
        }
        if slept || now >= self.next_check || self.spec.shared.attention.swap(false, Ordering::Acquire) {
            self.check();
        }
        self.send_relayed();
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        match &self.phase {
            _ if self.fault.is_some() => Some(Nanos::ZERO),
            Phase::Down if self.waits_for_memory || !self.terms.retired.is_empty() => Some(self.next_check),
            Phase::Down => self.seat.is_none().then_some(self.retry),
            Phase::Handshake(_, _, deadline) => Some(*deadline),
            Phase::Up(_, link) => (!link.fences).then(|| self.now + UNFENCED_SLEEP),
        }
    }

    fn pending(&self) -> usize {
        self.spec.shared.relayed.get().map_or(0, FrameRing::len)
    }
}

impl Drop for MemifPort {
    fn drop(&mut self) {
        self.spec.shared.up.store(false, Ordering::Relaxed);
        if let Phase::Up(connection, _) | Phase::Handshake(connection, ..) = &self.phase {
            let reason = "the port was closed".to_owned();
            let _ = connection.send(&Message::Disconnect { code: 0, reason }, None);
        }
    }
}
