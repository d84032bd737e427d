//! Receivers that the tree of a group does not reach, from a member's point of view: it is one of them, it passes its stream on to them, or it
//! is the source and waits for them.

use std::cell::RefCell;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use castnet_proto::v1 as api;
use castnet_rnic::stream::{
    self, Flow, OpenStream, ReceiverConfig, StreamError, StreamHeader, StreamReceiver, StreamSummary,
};
use castnet_rnic::{QpOptions, Rnic};
use castnet_wire::Qpn;

use super::{Member, Source, Transferred};
use crate::controller::{Lease, States, has_source};
use crate::error::MemberError;
use crate::host::SLEEP_MAX;
use crate::passing::{Have, Passing, Peer, ReadKept, Settings, trailer};

/// How long a receiver outside waits for the member that is to pass the stream on.
const MEET_PATIENCE: Duration = Duration::from_secs(60);

/// A receiver that the tree of its group does not reach. It gets the stream from host to host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The host.
    pub host: String,
    /// Why it is not in the tree.
    pub reason: String,
    /// The member that passes the stream on to it; empty: there is none.
    pub via: String,
    number: u64,
}

impl From<&api::OutsideReceiver> for Outside {
    fn from(out: &api::OutsideReceiver) -> Self {
        Self {
            host: out.host.clone(),
            reason: out.reason.clone(),
            via: out.via.clone(),
            number: out.number,
        }
    }
}

/// From which byte on a stream came from another member.
#[derive(Clone, Debug)]
pub struct CameFrom {
    /// The member.
    pub via: String,
    /// Why the tree does not reach this one.
    pub reason: String,
    /// The first byte.
    pub at_byte: u64,
    /// When it was met.
    pub at: Instant,
}

type Open<'o, W> = dyn FnMut(&StreamHeader) -> io::Result<W> + 'o;
type Progress<'p> = dyn FnMut(Option<&StreamHeader>, u64) + 'p;

/// What a receiver has of a stream.
struct Got<W> {
    sink: RefCell<Option<W>>,
    /// Counts what comes from a member. In the tree, the receiver of the queue pairs counts.
    stream: RefCell<Option<OpenStream>>,
    begun: Option<Instant>,
}

/// Writes into the sink of a stream, and counts the bytes if they are counted here.
struct Writer<'g, W>(&'g RefCell<Option<W>>, Option<&'g RefCell<Option<OpenStream>>>);

impl<W: Write> Write for Writer<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sink = self.0.borrow_mut();
        sink.as_mut()
            .ok_or(io::ErrorKind::NotConnected)?
            .write_all(bytes)?;
        if let Some(stream) = self.1
            && let Some(stream) = stream.borrow_mut().as_mut()
        {
            stream.add(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().as_mut().map_or(Ok(()), Write::flush)
    }
}

fn find(state: &api::GroupState, host: &str) -> Option<Outside> {
    let mut outside = state.outside.iter();
    outside.find(|out| out.host == host).map(Outside::from)
}

impl<T> Member<'_, T> {
    /// Receivers that the tree of the group does not reach, and that have not left.
    pub fn outside(&self) -> Vec<Outside> {
        let lease = self.lease.as_ref();
        lease.map_or_else(Vec::new, |lease| {
            lease.states.borrow().outside.iter().map(Outside::from).collect()
        })
    }

    /// This member, if the tree does not reach it.
    pub fn own_outside(&self) -> Option<Outside> {
        let lease = self.lease.as_ref().filter(|lease| !lease.has_ended())?;
        find(&lease.states.borrow(), &self.host.config.host)
    }

    fn settings(&self) -> Settings {
        let config = &self.host.config;
        Settings {
            message_size: config.message_size,
            pmtu: self.group.pmtu,
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            connect_timeout: config.connect_timeout,
        }
    }

    /// `None`: this member passes nothing on.
    fn take_passing(&mut self) -> Option<Passing> {
        let config = &self.host.config;
        let lease = self.lease.as_ref().filter(|_| config.passes_on)?;
        self.passing.take().or_else(|| {
            let caller = self.host.caller()?;
            let (host, states) = (config.host.clone(), lease.states.clone());
            Some(Passing::new(host, caller, states, self.settings()))
        })
    }

    /// Bytes that this member has passed on to receivers outside of the tree, to all together.
    pub fn passed_on(&self) -> u64 {
        self.passing.as_ref().map_or(0, |passing| passing.bytes)
    }

    pub(super) fn end_passing(&mut self) {
        if let Some(passing) = self.passing.take() {
            passing.close(self.host.rnic);
        }
    }
}

impl Member<'_, Source> {
    /// Waits until all receivers outside of the tree have left: each does when it has everything. `changed` receives those that are left, at
    /// once and whenever they change. Call it after the stream; in a group without such receivers it returns at once.
    pub fn await_outside(&mut self, changed: &mut dyn FnMut(&[Outside])) -> Result<(), MemberError> {
        let mut seen = Vec::new();
        loop {
            let outside = self.outside();
            if outside.is_empty() {
                return Ok(());
            }
            if self.lease.as_ref().is_some_and(Lease::has_ended) {
                self.confirm()?;
                let group = self.group_name();
                return Err(MemberError::NotActive { group });
            }
            if outside != seen {
                changed(&outside);
                seen = outside;
            }
            if self.host.config.is_interrupted() {
                return Err(MemberError::Interrupted);
            }
            self.host.idle()?;
        }
    }
}

impl Member<'_, StreamReceiver> {
    /// Receives one stream into what `open` returns, and returns that when all is in it. `progress` receives the header
    /// when it has arrived, and the bytes so far.
    pub fn receive<W: Write>(
        &mut self,
        open: &mut dyn FnMut(&StreamHeader) -> io::Result<W>,
        progress: &mut dyn FnMut(Option<&StreamHeader>, u64),
    ) -> Result<(Transferred, W), MemberError> {
        let mut kept = |_, _: &mut [u8]| Err(io::ErrorKind::Unsupported.into());
        self.receive_kept(open, &mut kept, progress)
    }

    /// As [`Member::receive`], for a member that passes the stream on ([`crate::MemberConfig::passes_on`]). `kept` reads what was written, from
    /// an offset on, and returns how many bytes; then call [`Member::pass_on`], too.
    pub fn receive_kept<W: Write>(
        &mut self,
        open: &mut dyn FnMut(&StreamHeader) -> io::Result<W>,
        kept: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
        progress: &mut dyn FnMut(Option<&StreamHeader>, u64),
    ) -> Result<(Transferred, W), MemberError> {
        let mut got = Got {
            sink: RefCell::new(None),
            stream: RefCell::new(None),
            begun: None,
        };
        self.came_from.clear();
        let mut passing = self.take_passing();
        let mut so_far = 0;
        let received = self.receive_by(&mut got, &mut passing, open, kept, &mut |header, bytes| {
            so_far = bytes;
            progress(header, bytes);
        });
        self.passing = passing;
        let summary = received.inspect_err(|error| {
            self.outside_stream = got.stream.take();
            self.note_lacks(so_far, &error.to_string());
        })?;
        self.note_whole(summary.bytes);
        let elapsed = got.begun.map(|begun| begun.elapsed()).unwrap_or_default();
        let group = self.group_name();
        // Without a stream that has begun, nothing is received.
        let sink = got.sink.into_inner().ok_or(MemberError::NotActive { group })?;
        Ok((Transferred { summary, elapsed }, sink))
    }

    fn receive_by<W: Write>(
        &mut self,
        got: &mut Got<W>,
        passing: &mut Option<Passing>,
        open: &mut Open<'_, W>,
        kept: &mut ReadKept<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<StreamSummary, MemberError> {
        if self.own_outside().is_none() {
            self.begin_to_receive()?;
            if let Some(summary) = self.receive_in_tree(got, passing, open, kept, progress)? {
                self.note_received();
                self.has_all = true;
                return Ok(summary);
            }
            got.stream.replace(self.side.take_open_stream());
        }
        loop {
            let Some(own) = self.own_outside() else {
                self.confirm()?;
                let group = self.group_name();
                return Err(MemberError::NotActive { group });
            };
            if own.via.is_empty() {
                let (host, reason) = (own.host, own.reason);
                return Err(MemberError::NotPassedOn { host, reason });
            }
            let position = got.stream.borrow().as_ref().map_or(0, OpenStream::bytes);
            let Some((qpn, mut receiver)) = self.meet(&own, position)? else {
                continue;
            };
            let from = (&own, position, &mut receiver);
            let received = self.receive_from(from, (got, passing), open, kept, progress);
            self.host.destroy_qps(&[qpn]);
            let closed = receiver.close(self.host.rnic);
            let received = received?;
            closed?;
            if let Some(summary) = received {
                return Ok(summary);
            }
        }
    }

    /// `None`: the tree does not reach this member any more.
    fn receive_in_tree<W: Write>(
        &mut self,
        got: &mut Got<W>,
        passing: &mut Option<Passing>,
        open: &mut Open<'_, W>,
        kept: &mut ReadKept<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Option<StreamSummary>, MemberError> {
        let (host, states) = (self.host.config.host.clone(), self.states());
        let Got { sink, begun, .. } = got;
        let mut is_outside = false;
        let mut whole = None;
        let received = self.watched(|rnic, receiver, flow| {
            stream::receive(
                rnic,
                receiver,
                &mut |header| {
                    whole = Some(header.clone());
                    sink.replace(Some(open(header)?));
                    Ok(Writer(sink, None))
                },
                &mut |rnic, header, bytes| {
                    if header.is_some() {
                        begun.get_or_insert_with(Instant::now);
                    }
                    progress(header, bytes);
                    if let Some(passing) = passing {
                        passing.step(rnic, Have::begun(header, bytes), kept);
                    }
                    is_outside = is_now_outside(states.as_ref(), &host);
                    if is_outside {
                        return Flow::Stop;
                    }
                    flow(bytes + u64::from(header.is_some()))
                },
            )
        });
        match received {
            Ok((summary, _)) => {
                self.whole = whole.map(|header| (header, summary.clone()));
                Ok(Some(summary))
            }
            Err(MemberError::Interrupted) if is_outside => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Meets the member that passes the stream on. `None`: it is another one by now.
    fn meet(&mut self, own: &Outside, position: u64) -> Result<Option<(Qpn, StreamReceiver)>, MemberError> {
        let config = ReceiverConfig {
            by_write: false,
            message_size: self.host.config.message_size,
            slots: self.host.config.slots,
        };
        let rnic = &mut *self.host.rnic;
        let qpn = rnic.create_qp(&QpOptions::default())?;
        let receiver = StreamReceiver::new(rnic, config, &[qpn])?;
        let (number, peer) = (own.number, Peer::of(rnic, qpn, position));
        let call = self
            .host
            .start(|controller| controller.meet(0, number, peer, MEET_PATIENCE));
        let (mut call, lease) = match (call, &self.lease) {
            (Some(call), Some(lease)) => (call, lease),
            _ => return Err(MemberError::Interrupted),
        };
        let (states, has_ended) = (lease.states.clone(), || lease.has_ended());
        self.host.poll_until(SLEEP_MAX, &mut |_| {
            call.is_finished() || has_ended() || !is_present(&states, own)
        })?;
        let met = match call.poll() {
            _ if has_ended() || !is_present(&states, own) => Ok(None),
            Some(Ok(peer)) => {
                let connected = self.settings().connect(self.host.rnic, qpn, &peer);
                connected.map(|()| Some(()))
            }
            Some(Err(error)) => Err(error),
            None => Err(MemberError::Interrupted),
        };
        match met {
            Ok(Some(())) => Ok(Some((qpn, receiver))),
            other => {
                self.host.destroy_qps(&[qpn]);
                receiver.close(self.host.rnic)?;
                other.map(|_| None)
            }
        }
    }

    /// `None`: it comes from another member from now on.
    fn receive_from<W: Write>(
        &mut self,
        (own, position, receiver): (&Outside, u64, &mut StreamReceiver),
        (got, passing): (&mut Got<W>, &mut Option<Passing>),
        open: &mut Open<'_, W>,
        kept: &mut ReadKept<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Option<StreamSummary>, MemberError> {
        tracing::info!(
            via = own.via,
            position,
            reason = own.reason,
            "outside of the tree"
        );
        self.came_from.push(CameFrom {
            via: own.via.clone(),
            reason: own.reason.clone(),
            at_byte: position,
            at: Instant::now(),
        });
        let states = self.states();
        let Got { sink, stream, begun } = got;
        let mut has_moved = false;
        let (received, lost) = self.watch(|rnic, _, flow| {
            let mut step = |rnic: &mut dyn Rnic| {
                let stream = stream.borrow();
                let header = stream.as_ref().map(OpenStream::header);
                let bytes = stream.as_ref().map_or(0, OpenStream::bytes);
                progress(header, bytes);
                if let Some(passing) = passing {
                    passing.step(rnic, Have::begun(header, bytes), kept);
                }
                has_moved = states.as_ref().is_some_and(|states| !is_present(states, own));
                if has_moved {
                    return Flow::Stop;
                }
                flow(bytes + u64::from(header.is_some()))
            };
            stream::receive(
                rnic,
                receiver,
                &mut |header| {
                    begun.get_or_insert_with(Instant::now);
                    if stream.borrow().is_none() {
                        let whole = StreamHeader {
                            name: header.name.clone(),
                            length: header.length.map(|length| length.saturating_add(position)),
                        };
                        sink.replace(Some(open(&whole)?));
                        stream.replace(Some(OpenStream::new(whole)));
                    }
                    Ok(Writer(sink, Some(stream)))
                },
                &mut |rnic, _, _| step(rnic),
            )?;
            let mut digest = |_: &StreamHeader| Ok(Vec::new());
            stream::receive(rnic, receiver, &mut digest, &mut |rnic, _, _| step(rnic))
        });
        // The queue pair is destroyed by the caller; its last acknowledgement may be lost, as the member that passes the stream on sees this
        // one leave.
        let sent = match (received, lost) {
            (Ok((_, sent)), _) => sent,
            (Err(StreamError::Stopped), _) if has_moved => return Ok(None),
            (Err(_), Some(why)) => return Err(why),
            (Err(StreamError::Stopped), None) => return Err(MemberError::Interrupted),
            (Err(error), None) => return Err(error.into()),
        };
        let open = stream.take();
        let summary = open.as_ref().map(OpenStream::summary);
        match (open, summary) {
            (Some(open), Some(summary)) if sent == trailer(&summary) => {
                self.whole = Some((open.header().clone(), summary.clone()));
                Ok(Some(summary))
            }
            (open, _) => {
                stream.replace(open);
                let via = own.via.clone();
                Err(MemberError::Differs { via })
            }
        }
    }

    /// From whom the last stream came while the tree did not reach this member.
    pub fn came_from(&self) -> &[CameFrom] {
        &self.came_from
    }

    /// After everything has come: passes it on to those to whom this member does, until they have it. A member in the tree also waits until
    /// nobody is outside, as it may have to take the place of another one.
    pub fn pass_on(
        &mut self,
        kept: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) -> Result<(), MemberError> {
        let Some(mut passing) = self.take_passing() else {
            return Ok(());
        };
        let passed = self.pass_on_by(&mut passing, kept);
        self.passing = Some(passing);
        passed
    }

    fn pass_on_by(&mut self, passing: &mut Passing, kept: &mut ReadKept<'_>) -> Result<(), MemberError> {
        let (Some((header, whole)), Some(states)) = (self.whole.clone(), self.states()) else {
            return Ok(());
        };
        let have = Have {
            header: Some(&header),
            bytes: whole.bytes,
            whole: Some(&whole),
        };
        loop {
            let is_over = self.lease.as_ref().is_none_or(Lease::has_ended) || {
                let state = states.borrow();
                let waits = |out: &api::OutsideReceiver| self.has_all || out.via == self.host.config.host;
                !(has_source(&state) && state.outside.iter().any(waits))
            };
            if is_over {
                return Ok(());
            }
            if self.host.config.is_interrupted() {
                return Err(MemberError::Interrupted);
            }
            passing.step(self.host.rnic, have, kept);
            self.host.idle()?;
        }
    }
}

fn is_now_outside(states: Option<&States>, host: &str) -> bool {
    states.is_some_and(|states| states.borrow().outside.iter().any(|out| out.host == host))
}

/// Whether a receiver is outside, and gets the stream from the same member.
fn is_present(states: &States, own: &Outside) -> bool {
    let state = states.borrow();
    state
        .outside
        .iter()
        .any(|out| (&out.host, out.number) == (&own.host, own.number))
}
