//! A receiver of a stream from host to host.

use std::cell::RefCell;
use std::io::{self, Write};
use std::time::Duration;

use castnet_comm::{Collectives, Communicator};
use castnet_rnic::stream::{StreamHeader, StreamSummary};

use super::course::{Order, Position, fresh};
use super::{
    CHUNK, FAILED, FallbackError, NAME_MAX, PathReport, Ranks, UNKNOWN, broadcast, ends, malformed, positions,
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
        let summary = self.take()?;
        let kept = self.incoming.borrow_mut().complete(summary.clone());
        kept.map_err(FallbackError::Write)?;
        // The source waits for it.
        self.hosts.barrier()?;
        Ok(summary)
    }

    fn take(&mut self) -> Result<StreamSummary, FallbackError> {
        let header = self.head()?;
        let (name, length) = (header.name.clone(), header.length);
        let begun = self.incoming.borrow_mut().begin(header);
        if let Err(error) = begun {
            // Positions are the first step. The others learn it there, and do not wait for this host.
            if broadcast(self.hosts, self.ranks, Order::Positions).is_ok() {
                let _ = positions(self.hosts, self.ranks, None);
            }
            return Err(FallbackError::Write(error));
        }
        let mut chunk = vec![0; CHUNK];
        loop {
            // What the source sends takes the place of the order given here.
            let order = broadcast(self.hosts, self.ranks, Order::Positions)?;
            match order {
                Order::Positions => {
                    let own = Position {
                        bytes: self.incoming.borrow().position(),
                        keeps: self.incoming.borrow().keeps(),
                    };
                    positions(self.hosts, self.ranks, Some(own))?;
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
                    let position = self.incoming.borrow().position();
                    let fresh = fresh(position, offset, chunk)
                        .ok_or_else(|| malformed(format!("bytes from {offset} on after {position}")))?;
                    let written = self.incoming.borrow_mut().write_all(fresh);
                    written.map_err(FallbackError::Write)?;
                    self.path.add_between_hosts(fresh.len() as u64);
                    (self.progress)(length, position + fresh.len() as u64);
                }
                Order::Group { offset } => self.receive_in_group(length, offset)?,
                Order::End { bytes } => return self.end(&name, bytes),
            }
        }
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
        let mut head = [0_u64; 2];
        self.hosts.broadcast(&mut head, self.ranks.source)?;
        if head[1] > NAME_MAX {
            return Err(malformed("a name of over 512 bytes"));
        }
        let mut name = vec![0_u8; head[1] as usize];
        if !name.is_empty() {
            self.hosts.broadcast(&mut name, self.ranks.source)?;
        }
        let name = String::from_utf8_lossy(&name).into_owned();
        if head[0] == FAILED {
            return Err(FallbackError::CannotSend {
                host: self.ranks.host(self.ranks.source.into()),
                why: name,
            });
        }
        Ok(StreamHeader {
            name,
            length: (head[0] != UNKNOWN).then_some(head[0]),
        })
    }

    /// Receives in the group, until the stream or the group ends. What has come is written.
    fn receive_in_group(&mut self, length: Option<u64>, offset: u64) -> Result<(), FallbackError> {
        let position = self.incoming.borrow().position();
        if position != offset {
            return Err(malformed(format!("the group from {offset} on after {position}")));
        }
        self.path.tries_group(&self.config.host, offset);
        // The registration of the group needs the port.
        self.ranks.meeting = None;
        let (mut came_from, mut led) = (None, None);
        let received = self.be_in_group(length, &mut came_from, &mut led);
        let error = match received.err() {
            Some(error) if ends(&error) => return Err(error.into()),
            error => error,
        };
        let at = self.incoming.borrow().position();
        let came_from = came_from.map_or(at, |from| at.min(offset + from));
        let why = error.as_ref().map(ToString::to_string);
        self.path.add_between_hosts(at - came_from);
        self.path
            .leaves_group(&self.config.host, (at, came_from - offset), why.as_deref());
        if let Some(MemberError::NotInstalled { hosts, .. } | MemberError::Diverted { hosts, .. }) = error {
            led = Some(hosts);
        }
        if let Some(all) = led {
            let here = (self.hosts.rnic_mut(), &self.config);
            self.ranks.gather(here, (&all, ""), self.patience)?;
        }
        Ok(())
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

    /// Compares what has come with what was sent.
    fn end(&mut self, name: &str, bytes: u64) -> Result<StreamSummary, FallbackError> {
        let mut sent = [0_u8; 32];
        self.hosts.broadcast(&mut sent, self.ranks.source)?;
        let summary = self.incoming.borrow().summary();
        let same = |summary: &StreamSummary| summary.bytes == bytes && summary.digest.0 == sent;
        summary.filter(same).ok_or_else(|| FallbackError::Differs {
            name: name.to_owned(),
            received: self.incoming.borrow().position(),
            sent: bytes,
        })
    }
}
