//! A receiver of a stream from host to host.

use std::cell::RefCell;
use std::io::{self, Write};
use std::time::Duration;

use castnet_comm::{Collectives, Communicator};
use castnet_rnic::stream::{StreamError, StreamHeader, StreamSummary};

use super::course::{Order, Position, fresh};
use super::{
    CHUNK, FAILED, FallbackError, PathReport, Ranks, UNKNOWN, broadcast, ends, malformed, positions, text,
};
use crate::config::MemberConfig;
use crate::error::MemberError;
use crate::meeting::Hosts;

/// Where a stream is written, in the group or from host to host, and what it has of it.
pub trait Destination: Write {
    /// A stream begins in a group. An earlier one that was not ended is removed, unless this goes on with it.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open(&mut self, header: &StreamHeader) -> io::Result<()>;

    /// The stream goes on from host to host with this header, if nothing of it has come.
    ///
    /// # Errors
    /// It cannot be opened.
    fn begin(&mut self, header: StreamHeader) -> io::Result<()>;

    /// Bytes of the stream that are written.
    fn position(&self) -> u64;

    /// Whether what has come can be read.
    fn keeps(&self) -> bool;

    /// Reads what has come, from an offset on. Returns how many bytes: 0 at the end of what is there.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_kept(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// What has come from host to host.
    fn summary(&self) -> Option<StreamSummary>;

    /// All has arrived.
    ///
    /// # Errors
    /// It cannot be kept.
    fn complete(&mut self, summary: StreamSummary) -> io::Result<()>;
}

/// Writes into a destination that others look at meanwhile.
pub struct Writer<'i, D>(&'i RefCell<D>);

impl<'i, D: Destination> Writer<'i, D> {
    /// As [`Destination::open`].
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(to: &'i RefCell<D>, header: &StreamHeader) -> io::Result<Self> {
        to.borrow_mut().open(header)?;
        Ok(Self(to))
    }
}

impl<D: Destination> Write for Writer<'_, D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// A receiver whose stream is not only in its group.
pub struct Receiving<'a, D> {
    /// The members.
    pub ranks: &'a mut Ranks,
    /// With which it tries the group.
    pub config: MemberConfig,
    /// How long it waits for the others after each try.
    pub patience: Duration,
    /// The members, connected.
    pub hosts: &'a mut Communicator,
    /// What is received.
    pub incoming: &'a RefCell<D>,
    /// Receives which path the bytes take.
    pub path: &'a mut dyn PathReport,
    /// Receives the length of the stream, where it is known, and the bytes so far.
    pub progress: &'a mut dyn FnMut(Option<u64>, u64),
}

impl<D: Destination> Receiving<'_, D> {
    /// Until all bytes have come, are those that were sent, and are kept.
    ///
    /// # Errors
    /// A member does not answer, or cannot write; the bytes cannot be written, or are others than were sent.
    pub fn run(mut self) -> Result<StreamSummary, FallbackError> {
        let header = self.head()?;
        let (name, length) = (header.name.clone(), header.length);
        // What fails here is reported with the next positions. Until then the rest is passed on: the others do not wait for this host.
        let begun = self.incoming.borrow_mut().begin(header);
        let mut written = begun.map_err(FallbackError::Write);
        let mut chunk = vec![0; CHUNK];
        loop {
            // What the source sends takes the place of the order given here.
            let order = broadcast(self.hosts, self.ranks, Order::Positions)?;
            match order {
                Order::Positions => {
                    self.report(written)?;
                    written = Ok(());
                }
                Order::Chunk { offset, bytes } | Order::Kept { offset, bytes, .. } => {
                    let from = match order {
                        Order::Kept { rank, .. } => rank,
                        _ => self.ranks.source,
                    };
                    let chunk = usize::try_from(bytes)
                        .ok()
                        .and_then(|bytes| chunk.get_mut(..bytes));
                    let chunk = chunk.ok_or_else(|| malformed("a chunk of over 4 MiB"))?;
                    if from == self.hosts.rank() {
                        self.read_kept(offset, chunk)?;
                    }
                    self.hosts.broadcast(chunk, from)?;
                    if written.is_err() {
                        continue;
                    }
                    let position = self.incoming.borrow().position();
                    let fresh = fresh(position, offset, chunk)
                        .ok_or_else(|| malformed(format!("bytes from {offset} on after {position}")))?;
                    let done = self.incoming.borrow_mut().write_all(fresh);
                    written = done.map_err(FallbackError::Write);
                    if written.is_ok() {
                        self.path.add_between_hosts(fresh.len() as u64);
                        (self.progress)(length, position + fresh.len() as u64);
                    }
                }
                Order::Group { offset } => written = self.receive_in_group(length, offset)?,
                Order::End { bytes } => return self.end(&name, bytes, written),
            }
        }
    }

    /// All report their positions; this host in place of its own what has failed here.
    fn report<T>(&mut self, done: Result<T, FallbackError>) -> Result<T, FallbackError> {
        let own = Position {
            bytes: self.incoming.borrow().position(),
            keeps: self.incoming.borrow().keeps(),
        };
        let own = done.as_ref().map(|_| own).map_err(FallbackError::why);
        let reported = positions(self.hosts, self.ranks, own);
        let done = done?;
        reported?;
        Ok(done)
    }

    fn read_kept(&self, offset: u64, chunk: &mut [u8]) -> Result<(), FallbackError> {
        let mut incoming = self.incoming.borrow_mut();
        let mut filled = 0;
        while filled < chunk.len() {
            let read = incoming.read_kept(offset + filled as u64, &mut chunk[filled..]);
            match read.map_err(FallbackError::ReadAgain)? {
                0 => return Err(FallbackError::ReadAgain(io::ErrorKind::UnexpectedEof.into())),
                read => filled += read,
            }
        }
        Ok(())
    }

    fn head(&mut self) -> Result<StreamHeader, FallbackError> {
        let mut length = [0_u64];
        self.hosts.broadcast(&mut length, self.ranks.source)?;
        let name = text(self.hosts, self.ranks.source, "")?;
        let [length] = length;
        if length == FAILED {
            return Err(FallbackError::CannotSend {
                host: self.ranks.host(self.ranks.source.into()),
                why: name,
            });
        }
        Ok(StreamHeader {
            name,
            length: (length != UNKNOWN).then_some(length),
        })
    }

    /// Receives in the group, until the stream or the group ends. What has come is written; otherwise returns why not, to be reported.
    fn receive_in_group(
        &mut self,
        length: Option<u64>,
        offset: u64,
    ) -> Result<Result<(), FallbackError>, FallbackError> {
        let position = self.incoming.borrow().position();
        if position != offset {
            return Err(malformed(format!("the group from {offset} on after {position}")));
        }
        self.path.tries_group(&self.config.host, offset);
        // The registration of the group needs the port.
        self.ranks.meeting = None;
        let (mut came_from, mut led) = (None, None);
        let received = self.be_in_group(length, &mut came_from, &mut led);
        let is_of_file = |error: &MemberError| matches!(error, MemberError::Stream(StreamError::Io { .. }));
        let error = match received.err() {
            Some(error) if ends(&error) && !is_of_file(&error) => return Err(error.into()),
            error => error,
        };
        let at = self.incoming.borrow().position();
        let came_from = came_from.map_or(at, |from| at.min(offset + from));
        let why = error.as_ref().filter(|error| !is_of_file(error));
        let why = why.map(ToString::to_string);
        self.path.add_between_hosts(at - came_from);
        self.path
            .leaves_group(&self.config.host, (at, came_from - offset), why.as_deref());
        let mut written = Ok(());
        match error {
            Some(MemberError::NotInstalled { hosts, .. } | MemberError::Diverted { hosts, .. }) => {
                led = Some(hosts);
            }
            Some(error) if is_of_file(&error) => written = Err(error.into()),
            _ => {}
        }
        if let Some(all) = led {
            let here = (self.hosts.rnic_mut(), &self.config);
            self.ranks.gather(here, (&all, ""), self.patience)?;
        }
        Ok(written)
    }

    /// `came_from`: from which byte of the group's stream on it came from a member. `led`: those that its source has led out of it, though
    /// this receiver has everything.
    fn be_in_group(
        &mut self,
        length: Option<u64>,
        came_from: &mut Option<u64>,
        led: &mut Option<Hosts>,
    ) -> Result<(), MemberError> {
        let Self {
            config,
            hosts,
            incoming,
            path,
            progress,
            ..
        } = self;
        let offset = incoming.borrow().position();
        let mut receiver = crate::receiver(config.clone(), hosts.rnic_mut())?.join()?;
        let mut kept = |at, out: &mut [u8]| incoming.borrow_mut().read_kept(offset + at, out);
        let mut received = receiver.receive_kept(
            &mut |header| Writer::open(incoming, header),
            &mut kept,
            &mut |_, bytes| progress(length, offset + bytes),
        );
        if received.is_ok()
            && let Err(error) = receiver.pass_on(&mut kept)
        {
            received = Err(error);
        }
        *came_from = receiver.came_from().first().map(|came| came.at_byte);
        path.note_outside(&receiver.outside());
        path.note_passed_on(receiver.passed_on());
        match receiver.leave() {
            Ok(()) => {}
            // It goes on between the hosts in any case.
            Err(MemberError::Diverted { hosts, .. }) => *led = Some(hosts),
            Err(error) => tracing::warn!(%error, "not left"),
        }
        received.map(drop)
    }

    /// Compares what has come with what was sent, and keeps it.
    fn end(
        &mut self,
        name: &str,
        bytes: u64,
        written: Result<(), FallbackError>,
    ) -> Result<StreamSummary, FallbackError> {
        let mut sent = [0_u8; 32];
        self.hosts.broadcast(&mut sent, self.ranks.source)?;
        let kept = written.and_then(|()| self.keep(name, bytes, sent));
        // The source waits for it.
        self.report(kept)
    }

    fn keep(&self, name: &str, bytes: u64, sent: [u8; 32]) -> Result<StreamSummary, FallbackError> {
        let mut incoming = self.incoming.borrow_mut();
        let same = |summary: &StreamSummary| summary.bytes == bytes && summary.digest.0 == sent;
        let summary = incoming.summary().filter(same);
        let summary = summary.ok_or_else(|| FallbackError::Differs {
            name: name.to_owned(),
            received: incoming.position(),
            sent: bytes,
        })?;
        let kept = incoming.complete(summary.clone());
        kept.map_err(FallbackError::Write)?;
        Ok(summary)
    }
}
