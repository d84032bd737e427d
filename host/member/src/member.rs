//! Members: before and after they join.

mod outside;
mod prepared;
mod receivers;
mod turns;

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use castnet_proto::convert::reason_line;
use castnet_proto::transport::Call;
use castnet_proto::v1 as api;
use castnet_rnic::messages::{self, MessageReceiver, Messages, MessagesSummary};
use castnet_rnic::stream::{
    self, Flow, OpenStream, RemoteRing, SenderConfig, SenderLane, StreamError, StreamHeader, StreamReceiver,
    StreamSender, StreamSummary, Transfer,
};
use castnet_rnic::{MemoryRegion, QpRemote, Rnic, RnicError};
use castnet_wire::{Psn, Qpn, RateLimit};
use crossbeam::channel::Receiver as Results;

use crate::config::{Group, GroupAddress, MemberConfig};
use crate::controller::{Lease, RETURN_PATIENCE, States, has_any_source};
use crate::error::MemberError;
use crate::host::{Host, SLEEP_MAX};
use crate::meeting::Hosts;
use crate::passing::Passing;
use crate::registration::Told;
use crate::safeguard::{Safeguard, Timed, Unsent, Watch};
use crate::silence::Silence;
use turns::Psns;

pub use outside::{CameFrom, Outside};
use prepared::Make;
pub use prepared::{Prepared, message_receiver, receiver, region, source};
pub(crate) use receivers::Reports;
pub use receivers::{Fate, ReceiverState};

/// Silence after which a source that has not left is taken for dead: several of its time-outs. With a controller the time of
/// a lease is added: while another receiver is lost, the source is silent, and the group needs the receivers that are left.
const QUIET: Duration = Duration::from_secs(3);

/// Longest sleep of a receiver that has everything. A frame wakes it, such as one that the source repeats.
const FINISHED_SLEEP_MAX: Duration = Duration::from_millis(50);

/// How long a connection waits for the next hop's Ethernet address before it looks whether it is interrupted.
const CONNECT_SLICE: Duration = Duration::from_millis(100);

/// The sending side of a group.
#[derive(Debug)]
pub struct Source;

/// A member with connected QPs. `T` is its side: [`Source`], [`StreamReceiver`] or [`MessageReceiver`].
pub struct Member<'r, T> {
    host: Host<'r>,
    qpns: Vec<Qpn>,
    role: api::Role,
    make: Make<T>,
    side: T,
    rings: Vec<MemoryRegion>,
    owns_rings: bool,
    group: GroupAddress,
    /// A receiver has everything; the source may still lack its last acknowledgement.
    has_all: bool,
    /// Without a controller there is none.
    lease: Option<Lease>,
    /// What a receiver has of its last stream.
    received: Option<api::Received>,
    /// To receivers outside of the tree.
    passing: Option<Passing>,
    /// What has come whole.
    whole: Option<(StreamHeader, StreamSummary)>,
    /// What has come of a stream from a member, before an error.
    outside_stream: Option<OpenStream>,
    came_from: Vec<CameFrom>,
    /// Of hosts that synchronize them when the source changes.
    psns: Option<Psns>,
    /// The sender of a turn that came after that of another member, or of a stream whose acknowledgement is missing.
    late: Option<StreamSender>,
    /// A call of the leader of a group without a controller, or its end.
    called: Option<MemberError>,
}

/// The call of a leader that goes on from host to host, or that it has withdrawn the group.
fn call(told: &Results<Told>) -> Option<MemberError> {
    told.try_recv()
        .ok()?
        .err()
        .filter(|error| matches!(error, MemberError::Diverted { .. } | MemberError::Ended { .. }))
}

/// For how long a source may be silent that has not left; `None`: for any time. `group`: with a controller, its state. A group in which any member
/// sends ends with each member: while another one gets no answer from the rest, this one must not leave first.
fn longest_silence(config: &MemberConfig, group: Option<&api::GroupState>) -> Option<Duration> {
    match group {
        None => Some(QUIET),
        Some(group) if has_any_source(group) => config.give_up.map(|give_up| give_up + QUIET + config.lease),
        Some(_) => Some(QUIET + config.lease),
    }
}

/// Called before a stream is sent: makes this member the source.
type TakeTurn<'t, T> = dyn FnMut(
        &mut dyn Rnic,
        &mut T,
        &mut StreamSender,
        &mut dyn FnMut(&dyn Rnic, u64) -> Flow,
    ) -> Result<(), StreamError>
    + 't;

/// Called when a whole stream is posted, with the number of messages: whether a message of the next source has come.
type IsFollowed<'t, T> = dyn FnMut(&mut dyn Rnic, &mut T, u64) -> Result<bool, StreamError> + 't;

/// Called often: whether a member that waits for the end of its source need not wait longer.
type IsOver<'t, T> = dyn FnMut(&mut dyn Rnic, &mut T) -> Result<bool, StreamError> + 't;

/// How a member that also receives takes its turn, and sees the next one.
struct TurnHooks<'t, T> {
    take: &'t mut TakeTurn<'t, T>,
    is_followed: &'t mut IsFollowed<'t, T>,
}

/// Result of a transfer at one host.
#[derive(Clone, Debug)]
pub struct Transferred {
    /// What was transferred.
    pub summary: StreamSummary,
    /// At the source until the last acknowledgement, at a receiver from the first message to the last byte.
    pub elapsed: Duration,
}

impl<'r, T> Member<'r, T> {
    /// Prepares to join the group again, with new QPs and memory: after an error for which
    /// [`MemberError::may_join_again`]. The next stream begins at its begin. A controller that is away is looked for for a
    /// minute at least.
    pub fn again(mut self) -> Result<Prepared<'r, T>, MemberError> {
        self.end_passing();
        self.host.end_registration();
        self.release()?;
        if let Group::Named { wait, .. } = &mut self.host.config.group {
            *wait = (*wait).max(RETURN_PATIENCE);
        }
        let mut prepared = Prepared::new(self.host, self.role, self.make)?;
        prepared.owns_rings = self.owns_rings;
        Ok(prepared)
    }
}

impl<T> Member<'_, T> {
    fn connect(&mut self) -> Result<(), MemberError> {
        if self.own_outside().is_some() {
            return Ok(());
        }
        let (lanes, qps) = (self.group.mcst_ids.len(), self.qpns.len());
        if lanes != qps {
            return Err(MemberError::Lanes { lanes, qps });
        }
        let start = self.group.start_psn;
        self.psns = self.group.synchronizes.then(|| Psns::starting_at(start));
        (0..lanes).try_for_each(|lane| self.connect_lane(lane, start))
    }

    /// `next`: its first PSN in both directions.
    fn connect_lane(&mut self, lane: usize, next: Psn) -> Result<(), MemberError> {
        let (config, group) = (&self.host.config, &self.group);
        let remote = QpRemote {
            sq_psn: next,
            rq_psn: next,
            pmtu: group.pmtu,
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            repeat: group.repeat,
            rate_limit: group.rate_limit.map(RateLimit::for_sender),
            ..QpRemote::new(group.mcst_ids[lane], group.virtual_qpn)
        };
        let (qpn, begin) = (self.qpns[lane], Instant::now());
        loop {
            let left = config.connect_timeout.saturating_sub(begin.elapsed());
            let connected = self.host.rnic.connect_qp(qpn, &remote, left.min(CONNECT_SLICE));
            return match connected {
                Ok(()) => Ok(()),
                Err(RnicError::Unreachable { .. }) if config.is_interrupted() => {
                    Err(MemberError::Interrupted)
                }
                Err(RnicError::Unreachable { .. }) if left > CONNECT_SLICE => continue,
                Err(mut error) => {
                    if let RnicError::Unreachable { waited, .. } = &mut error {
                        *waited = begin.elapsed();
                    }
                    Err(MemberError::Connect {
                        lane: (self.qpns.len() > 1).then_some(lane),
                        error,
                    })
                }
            };
        }
    }

    /// Destroys the QPs, and gives back all memory but that of the caller.
    fn release(&mut self) -> Result<(), MemberError> {
        let rings = self.rings.iter().filter(|_| self.owns_rings);
        self.host.release(&self.qpns, rings);
        self.release_late()
    }

    fn release_late(&mut self) -> Result<(), MemberError> {
        let late = self.late.take();
        Ok(late.map_or(Ok(()), |late| late.release(self.host.rnic))?)
    }

    /// QPs of this member, one for each lane.
    pub fn qpns(&self) -> &[Qpn] {
        &self.qpns
    }

    /// The group that this member is connected to.
    pub fn group(&self) -> &GroupAddress {
        &self.group
    }

    /// Polls the RNIC, or sleeps a little.
    pub fn poll(&mut self) -> Result<(), MemberError> {
        Ok(self.host.idle()?)
    }

    /// Asks the controller whether the group runs with this member. If so, it did all the time since this member joined: what the source had
    /// acknowledged before has arrived here, too. Without a controller there is nobody who could put a member out.
    pub fn confirm(&mut self) -> Result<(), MemberError> {
        match self.host.start(|controller| controller.confirm()) {
            Some(call) => self.host.await_call(call)?,
            None => Ok(()),
        }
    }

    /// Names of all members of the group, as the controller has them. `None`: the group has no controller.
    ///
    /// # Errors
    /// The controller does not answer for a minute, or this host is interrupted.
    pub fn members(&mut self) -> Result<Option<Vec<String>>, MemberError> {
        let Some(call) = self.host.start(|controller| controller.look()) else {
            return Ok(None);
        };
        let group = self.host.await_call(call)??;
        Ok(Some(group.members.into_iter().map(|m| m.host).collect()))
    }

    /// Runs `work`, which polls the RNIC and often calls the function that it gets, with its progress so far. It ends when that returns
    /// [`Flow::Stop`]: this host is interrupted, or the group goes on without this member or has ended. Then the error is returned, too.
    pub fn run<S>(
        &mut self,
        work: impl FnOnce(&mut dyn Rnic, &mut dyn FnMut(u64) -> Flow) -> S,
    ) -> (S, Option<MemberError>) {
        self.watch(|rnic, _, flow| work(rnic, flow))
    }

    /// Polls the RNIC until `done`, so that this host answers ARP and repeated requests. Fails if interrupted.
    pub fn wait_until(&mut self, done: &mut dyn FnMut() -> bool) -> Result<(), MemberError> {
        let mut is_done = false;
        self.host.poll_until(SLEEP_MAX, &mut |_| {
            is_done = done();
            is_done
        })?;
        if is_done {
            Ok(())
        } else {
            Err(MemberError::Interrupted)
        }
    }

    /// Leaves the group; the others go on without a receiver that leaves. One that has everything first waits until the
    /// source has left, or is silent for 3 seconds and the time of a lease: a lost last acknowledgement must be sent again. A group in which any
    /// member sends ends with each member, so there it waits longer, by the time after which a source gives up. If the controller cannot be
    /// reached, the group waits for this member; what was transferred is complete. The QPs and memory are released.
    ///
    /// # Errors
    /// [`MemberError::Diverted`] if this receiver has everything, and its source does not know that and goes on from host to host.
    pub fn leave(mut self) -> Result<(), MemberError> {
        let left = self.leave_group(None);
        self.release()?;
        let diverted = left?.map(|diversion| MemberError::diverted(self.group_name(), diversion));
        let diverted = diverted.or(self.called.take());
        match diverted {
            Some(diverted @ MemberError::Diverted { .. }) if self.has_all || self.whole.is_some() => {
                Err(diverted)
            }
            _ => Ok(()),
        }
    }

    /// Leaves the group as a receiver that does not get everything. Its source reports why, and the bytes that this one has of the stream.
    ///
    /// # Errors
    /// As [`Member::leave`].
    pub fn give_up(mut self, bytes: u64, why: &str) -> Result<(), MemberError> {
        self.note_lacks(bytes, why);
        // The source need not repeat anything.
        self.has_all = false;
        self.leave()
    }

    /// Leaves the group as its source, which goes on from host to host for this reason. The QPs and memory are released. Returns the hosts
    /// that go on, this one first, and the receivers that were put out. The other members get [`MemberError::Diverted`] with the same hosts,
    /// in a group that is registered in the band once they are called ([`crate::MeetingPoint::open`]). `None`: the group has ended, or its members cannot be led.
    pub fn divert(mut self, reason: &str) -> Result<Option<(Hosts, Vec<ReceiverState>)>, MemberError> {
        let left = self.leave_group(Some(reason.to_owned()));
        self.release()?;
        if let Some(roll) = self.host.roll.take() {
            self.host.end_registration();
            let hosts = Hosts::of_roll(roll, &self.host.config.host);
            return left.map(|_| Some((hosts, Vec::new())));
        }
        Ok(left?.map(|diversion| {
            let put_out = diversion.put_out.into_iter().map(receivers::put_out);
            (Hosts::named(diversion.hosts), put_out.collect())
        }))
    }

    /// Whether [`Member::divert`] can lead the other members, as far as is known.
    pub fn leads(&self) -> bool {
        self.host.config.group.name().is_some() || self.host.roll.is_some()
    }

    fn group_name(&self) -> String {
        self.host.config.group.name().unwrap_or_default().to_owned()
    }

    fn leave_group(&mut self, diverts: Option<String>) -> Result<Option<api::Diversion>, MemberError> {
        self.end_passing();
        // Who goes on from host to host is the source, also if it has received a stream before.
        let mut polled = match self.has_all && diverts.is_none() {
            true => self.await_source_left(),
            false => Ok(()),
        };
        let received = self.received.clone();
        let Some(mut call) = self.host.start(|controller| controller.leave(diverts, received)) else {
            return polled.map(|()| None);
        };
        // Not interrupted: what ended the transfer also comes here. An RNIC that has failed does not keep the member in.
        loop {
            if let Some(left) = call.poll() {
                return polled.and(left);
            }
            match polled {
                Ok(()) => polled = self.host.idle().map_err(MemberError::from),
                Err(_) => std::thread::sleep(SLEEP_MAX),
            }
        }
    }

    /// A receiver has a whole stream.
    fn note_whole(&mut self, bytes: u64) {
        let lacks = String::new();
        self.received = Some(api::Received { bytes, lacks });
    }

    /// A receiver has not got all of a stream.
    fn note_lacks(&mut self, bytes: u64, why: &str) {
        let lacks = reason_line(why);
        self.received = Some(api::Received { bytes, lacks });
    }

    fn states(&self) -> Option<States> {
        self.lease.as_ref().map(|lease| lease.states.clone())
    }

    fn await_source_left(&mut self) -> Result<(), MemberError> {
        self.await_source_left_or(&mut |_, _| Ok(false))
    }

    /// Waits until the source has left or is silent, or `is_over`.
    fn await_source_left_or(&mut self, is_over: &mut IsOver<'_, T>) -> Result<(), MemberError> {
        let states = self.states();
        let quiet = longest_silence(
            &self.host.config,
            self.lease.as_ref().map(Lease::state).as_deref(),
        );
        let source_left = self.host.start(|controller| controller.source_left(states));
        let mut silence = Silence::new(Instant::now());
        let (told, called, side) = (self.host.told(), &mut self.called, &mut self.side);
        let mut failed = Ok(());
        self.host.poll_until(FINISHED_SLEEP_MAX, &mut |rnic| {
            *called = called.take().or_else(|| told.as_ref().and_then(call));
            let has_left = called.is_some() || source_left.as_ref().is_some_and(Call::is_finished);
            let length = silence.look(Instant::now(), 0, || rnic.traffic().requests);
            let is_silent = quiet.is_some_and(|quiet| length >= quiet);
            has_left
                || is_silent
                || is_over(rnic, side).unwrap_or_else(|error| {
                    failed = Err(error);
                    true
                })
        })?;
        Ok(failed?)
    }

    /// Runs `transfer` until it ends, this host is interrupted, or the controller reports that it cannot end any more. It is
    /// called with a function that takes the progress so far.
    fn watched<S>(
        &mut self,
        transfer: impl FnOnce(&mut dyn Rnic, &mut T, &mut dyn FnMut(u64) -> Flow) -> Result<S, StreamError>,
    ) -> Result<S, MemberError> {
        let (result, lost) = self.watch(transfer);
        result.map_err(|error| match (lost, error) {
            (Some(why), _) => why,
            (None, StreamError::Stopped) => MemberError::Interrupted,
            (None, error) => error.into(),
        })
    }

    /// As [`Member::run`].
    fn watch<S>(
        &mut self,
        work: impl FnOnce(&mut dyn Rnic, &mut T, &mut dyn FnMut(u64) -> Flow) -> S,
    ) -> (S, Option<MemberError>) {
        let states = self.states();
        let lost = self.host.start(|controller| controller.lost(states));
        let told = self.host.told();
        let config = &self.host.config;
        let (mut last, mut called) = (None, None);
        let mut flow = |progress: u64| {
            // What came before the end of the group is still taken: the source may have left because all is acknowledged.
            let is_idle = last.replace(progress) == Some(progress);
            if is_idle {
                called = called.take().or_else(|| told.as_ref().and_then(call));
            }
            let is_lost = is_idle && (called.is_some() || lost.as_ref().is_some_and(Call::is_finished));
            if is_lost || config.is_interrupted() {
                Flow::Stop
            } else {
                Flow::Continue
            }
        };
        let result = work(self.host.rnic, &mut self.side, &mut flow);
        (result, lost.and_then(|mut call| call.poll()).or(called))
    }
}

impl<T> Member<'_, T> {
    fn transfer(&self) -> Transfer {
        if !self.host.config.by_write {
            return Transfer::Send;
        }
        // Any key: the switch next to each receiver inserts the receiver's.
        Transfer::Write(RemoteRing {
            va: self.group.va_base,
            rkey: 0,
            slots: self.host.config.slots,
        })
    }

    fn buffered<'s>(&self, source: &'s mut dyn Read) -> BufReader<&'s mut dyn Read> {
        BufReader::with_capacity(self.host.config.message_size as usize, source)
    }

    /// Sends one stream, whose messages begin with `first`. Returns the number of its packets, too.
    fn send_stream(
        &mut self,
        first: u64,
        header: &StreamHeader,
        source: &mut dyn BufRead,
        guard: Option<Safeguard>,
        turns: TurnHooks<'_, T>,
        progress: &mut dyn FnMut(u64, Duration),
    ) -> Result<(Transferred, u64), Box<Unsent>> {
        let transfer = self.transfer();
        let lanes: Vec<_> = self
            .qpns
            .iter()
            .map(|&qpn| SenderLane { qpn, transfer })
            .collect();
        let config = SenderConfig {
            message_size: self.host.config.message_size,
            pmtu: self.group.pmtu,
            ..SenderConfig::default()
        };
        let unsent_of = |error, stream, unacknowledged| {
            Box::new(Unsent {
                error,
                stream,
                unacknowledged,
            })
        };
        let unsent = |error| Unsent::before(error, header);
        let sender =
            StreamSender::new(self.host.rnic, config, &lanes).map_err(|error| unsent(error.into()))?;
        let mut sender = sender.beginning_at(first);
        let (start, spent) = (Instant::now(), Cell::new(Duration::ZERO));
        let mut watch = guard.map(|guard| Watch::new(guard, self.host.rnic.traffic()));
        let mut source = Timed {
            inner: source,
            spent: &spent,
        };
        let mut slow = None;
        let TurnHooks { take, is_followed } = turns;
        let sent = self.send_by(&spent, progress, |rnic, side, step| {
            take(rnic, side, &mut sender, step)?;
            stream::send_unless_followed(
                rnic,
                &mut sender,
                header,
                &mut source,
                &mut |rnic, bytes, acknowledged| {
                    let busy = start.elapsed().saturating_sub(spent.get());
                    slow = watch
                        .as_mut()
                        .and_then(|watch| watch.look(busy, acknowledged, || rnic.traffic()));
                    if slow.is_some() {
                        return Flow::Stop;
                    }
                    step(rnic, bytes)
                },
                &mut |rnic, messages| is_followed(rnic, side, messages),
            )
        });
        let (elapsed, packets) = (start.elapsed(), sender.packets());
        if let Err(MemberError::Stream(error @ StreamError::OutOfTurn)) = sent {
            self.late = Some(sender);
            return Err(unsent(error.into()));
        }
        let sent = sent.map_err(|error| {
            let error = slow.map_or(error, MemberError::Slow);
            // What cannot be read again is not sent in another way.
            match (sender.stream().cloned(), sender.unacknowledged(self.host.rnic)) {
                (Some(stream), Ok(unacknowledged)) => unsent_of(error, stream, unacknowledged),
                (None, _) => unsent(error),
                (_, Err(unread)) => unsent(unread.into()),
            }
        });
        let closed = if sent.is_ok() && sender.has_unacknowledged() {
            self.late = Some(sender);
            Ok(())
        } else {
            sender.close(self.host.rnic)
        };
        let summary = sent?;
        closed.map_err(|error| unsent(error.into()))?;
        Ok((Transferred { summary, elapsed }, packets))
    }

    /// Runs `send`, and stops it when nothing has been acknowledged for too long. `late`: the time so far in which there was nothing to
    /// send. It does not count.
    fn send_by<S>(
        &mut self,
        late: &Cell<Duration>,
        progress: &mut dyn FnMut(u64, Duration),
        send: impl FnOnce(&mut dyn Rnic, &mut T, &mut dyn FnMut(&dyn Rnic, u64) -> Flow) -> Result<S, StreamError>,
    ) -> Result<S, MemberError> {
        let give_up = self.host.config.give_up;
        let start = Instant::now();
        let (mut silence, mut silent) = (Silence::new(start), None);
        let sent = self.watched(|rnic, side, flow| {
            send(rnic, side, &mut |rnic, done| {
                let now = start + start.elapsed().saturating_sub(late.get());
                let length = silence.look(now, done, || rnic.traffic().answers);
                progress(done, length);
                silent = give_up.filter(|most| length >= *most);
                if silent.is_some() { Flow::Stop } else { flow(done) }
            })
        });
        match (sent, silent) {
            (Err(MemberError::Interrupted), Some(after)) => Err(MemberError::Silent { after }),
            (sent, _) => sent,
        }
    }
}

impl Member<'_, Source> {
    /// Sends all of `source` as one stream. Returns when every receiver has acknowledged it. `progress` receives the
    /// bytes read so far, and for how long nothing has been acknowledged. A source that waits for its bytes should return
    /// [`std::io::ErrorKind::Interrupted`] several times per second: meanwhile this member answers the others, and can be interrupted.
    pub fn send(
        &mut self,
        header: &StreamHeader,
        source: &mut dyn Read,
        progress: &mut dyn FnMut(u64, Duration),
    ) -> Result<Transferred, MemberError> {
        let source = &mut self.buffered(source);
        Ok(self.send_guarded(header, source, None, progress)?)
    }

    /// As [`Member::send`], and with a safeguard stops if the goodput is too low, with [`MemberError::Slow`]. What was taken from `source`,
    /// and is not acknowledged, is returned.
    pub fn send_guarded(
        &mut self,
        header: &StreamHeader,
        source: &mut dyn BufRead,
        guard: Option<Safeguard>,
        progress: &mut dyn FnMut(u64, Duration),
    ) -> Result<Transferred, Box<Unsent>> {
        let turns = TurnHooks {
            take: &mut |_, _, _, _| Ok(()),
            is_followed: &mut |_, _, _| Ok(false),
        };
        let sent = self.send_stream(0, header, source, guard, turns, progress);
        sent.map(|(transferred, _)| transferred)
    }

    /// Sends messages of one size, for checks, `in_flight` at once. As [`Member::send_guarded`]; `progress` receives messages that all
    /// receivers have acknowledged. Messages can be made again, so none are returned with an error.
    pub fn send_messages(
        &mut self,
        messages: Messages,
        in_flight: u32,
        guard: Option<Safeguard>,
        progress: &mut dyn FnMut(u64, Duration),
    ) -> Result<MessagesSummary, MemberError> {
        let (qpns, transfer) = (self.qpns.clone(), self.transfer());
        let mut watch = guard.map(|guard| Watch::new(guard, self.host.rnic.traffic()));
        let (start, mut slow, late) = (Instant::now(), None, Cell::default());
        let sent = self.send_by(&late, progress, |rnic, _, step| {
            messages::send(rnic, &qpns, transfer, messages, in_flight, &mut |rnic, count| {
                let bytes = count * u64::from(messages.size);
                let look = |watch: &mut Watch| watch.look(start.elapsed(), bytes, || rnic.traffic());
                slow = watch.as_mut().and_then(look);
                match slow {
                    Some(_) => Flow::Stop,
                    None => step(rnic, count),
                }
            })
        });
        sent.map_err(|error| slow.map_or(error, MemberError::Slow))
    }
}

impl Member<'_, StreamReceiver> {
    /// Takes the stream that [`Member::receive`] has begun and not ended, with its bytes so far: for what follows in another way.
    pub fn take_open_stream(&mut self) -> Option<OpenStream> {
        self.side
            .take_open_stream()
            .or_else(|| self.outside_stream.take())
    }
}

impl Member<'_, MessageReceiver> {
    /// Receives all messages, and checks every byte. `progress` receives the number of messages so far.
    pub fn receive_messages(
        &mut self,
        progress: &mut dyn FnMut(u64),
    ) -> Result<MessagesSummary, MemberError> {
        let (size, mut count) = (u64::from(self.side.message_size()), 0);
        let received = self.watched(|rnic, receiver, flow| {
            receiver.receive(rnic, &mut |messages| {
                count = messages;
                progress(messages);
                flow(messages)
            })
        });
        let summary = received.inspect_err(|error| self.note_lacks(count * size, &error.to_string()))?;
        self.note_whole(summary.bytes);
        self.has_all = true;
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_stays_while_another_one_may_wait_for_an_answer() {
        let group = Group::Named {
            name: "g".to_owned(),
            controller: "http://127.0.0.1:7470".parse().expect("an address"),
            security: Default::default(),
            wait: Duration::ZERO,
        };
        let mut config = MemberConfig::new("h1", group);
        let one = api::GroupState::default();
        let mut any = api::GroupState::default();
        any.set_any_source(api::AnySource::Bridged);
        let seconds =
            |config: &MemberConfig, group| longest_silence(config, group).map(|most| most.as_secs());
        for (give_up, of_any) in [(None, None), (Some(Duration::from_secs(60)), Some(68))] {
            config.give_up = give_up;
            assert_eq!(seconds(&config, None), Some(3));
            assert_eq!(seconds(&config, Some(&one)), Some(8));
            assert_eq!(seconds(&config, Some(&any)), of_any);
        }
    }
}
