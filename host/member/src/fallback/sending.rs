//! The source of a stream from host to host.

use std::time::{Duration, Instant};

use castnet_comm::{Collectives, Communicator};
use castnet_proto::convert::reason_line;
use castnet_rnic::stream::{StreamHeader, StreamSummary};

use super::course::{Course, Next, Order, Position};
use super::{
    CHUNK, FAILED, FallbackError, Outgoing, PathReport, Ranks, UNKNOWN, broadcast, ends, positions, text,
};
use crate::config::MemberConfig;
use crate::error::MemberError;
use crate::meeting::Hosts;
use crate::safeguard::Safeguard;

/// A source whose stream is not only in its group.
pub struct Sending<'a, 'f> {
    /// The members; their source is this host.
    pub ranks: &'a mut Ranks,
    /// With which it tries the group.
    pub config: MemberConfig,
    /// How long it waits for the others after each try.
    pub patience: Duration,
    /// Of the group.
    pub guard: Option<Safeguard>,
    /// The members, connected.
    pub hosts: &'a mut Communicator,
    /// What is sent.
    pub outgoing: &'a mut Outgoing<'f>,
    /// Where it stands.
    pub course: Course,
    /// Receives which path the bytes take.
    pub path: &'a mut dyn PathReport,
    /// The begin of the times of `course`.
    pub start: Instant,
    /// Receives the bytes so far.
    pub progress: &'a mut dyn FnMut(u64),
}

/// All others get the length and the name of the stream; or [`FAILED`], and why the source has none.
fn head(hosts: &mut Communicator, ranks: &Ranks, (length, name): (u64, &str)) -> Result<(), FallbackError> {
    hosts.broadcast(&mut [length], ranks.source)?;
    text(hosts, ranks.source, name).map(drop)
}

/// In place of a stream, all others get the reason why there is none: they do not wait for it.
///
/// # Errors
/// The step fails.
pub fn cannot_send(hosts: &mut Communicator, ranks: &Ranks, why: &str) -> Result<(), FallbackError> {
    head(hosts, ranks, (FAILED, why))
}

impl Sending<'_, '_> {
    /// Sends what is left of the stream to all other members. Returns when they have it.
    ///
    /// # Errors
    /// A member does not answer, or cannot write; the bytes cannot be read, or have changed.
    pub fn run(mut self) -> Result<StreamSummary, FallbackError> {
        self.head()?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let rest = self.outgoing.rest().map_err(FallbackError::Read)?;
            match self.course.next(self.start.elapsed(), rest) {
                Next::Wait => {
                    self.hosts.progress()?;
                }
                Next::KeepAlive => {
                    self.all_positions()?;
                }
                Next::Positions => self.find_position()?,
                Next::Chunk => {
                    let offset = self.outgoing.position();
                    let filled = self.outgoing.fill(&mut chunk);
                    let filled = filled.map_err(FallbackError::Read)?;
                    let bytes = filled as u64;
                    broadcast(self.hosts, self.ranks, Order::Chunk { offset, bytes })?;
                    self.hosts.broadcast(&mut chunk[..filled], self.ranks.source)?;
                    self.course.handle_sent(bytes);
                    self.path.add_between_hosts(bytes);
                    (self.progress)(self.outgoing.position());
                }
                Next::Kept { rank, to } => {
                    let offset = self.course.position();
                    let bytes = (to - offset).min(CHUNK as u64);
                    broadcast(self.hosts, self.ranks, Order::Kept { rank, offset, bytes })?;
                    self.hosts.broadcast(&mut chunk[..bytes as usize], rank)?;
                    self.course.handle_sent(bytes);
                }
                Next::Group => {
                    // Nobody joins it who cannot write.
                    self.all_positions()?;
                    self.send_in_group()?;
                }
                Next::End => return self.end(),
            }
        }
    }

    fn head(&mut self) -> Result<(), FallbackError> {
        let StreamHeader { name, length } = &self.outgoing.header;
        head(self.hosts, self.ranks, (length.unwrap_or(UNKNOWN), name.as_str()))
    }

    /// The positions of all hosts, in the order of their ranks.
    fn all_positions(&mut self) -> Result<Vec<Position>, FallbackError> {
        broadcast(self.hosts, self.ranks, Order::Positions)?;
        let all = self.positions()?;
        self.course.handle_reported(self.start.elapsed());
        Ok(all)
    }

    fn positions(&mut self) -> Result<Vec<Position>, FallbackError> {
        let own = Position {
            bytes: self.outgoing.position(),
            keeps: false,
        };
        positions(self.hosts, self.ranks, Ok(own))
    }

    fn find_position(&mut self) -> Result<(), FallbackError> {
        let mut others = self.all_positions()?;
        others.remove(self.ranks.source.into());
        let kept = (self.outgoing.position(), self.outgoing.taken().bytes());
        let position = self.course.handle_positions(kept, &others)?;
        self.path.add_in_group(position.saturating_sub(kept.0));
        self.outgoing.skip_to(position);
        Ok(())
    }

    /// Sends in the group, until the stream or the group ends.
    fn send_in_group(&mut self) -> Result<(), FallbackError> {
        let offset = self.outgoing.position();
        broadcast(self.hosts, self.ranks, Order::Group { offset })?;
        self.path.tries_group(&self.config.host, offset);
        self.course.handle_group(self.start.elapsed());
        // The registration of the group needs the port. All others have been answered: they have sent positions since.
        self.ranks.meeting = None;
        let mut led = None;
        let tried = self.be_in_group(offset, &mut led);
        self.course.handle_left(self.start.elapsed());
        let error = match tried.err() {
            Some(error) if ends(&error) => return Err(error.into()),
            error => error,
        };
        let why = error.as_ref().map(|error| reason_line(&error.to_string()));
        let at = self.outgoing.position();
        self.path
            .leaves_group(&self.config.host, (at, at - offset), why.as_deref());
        if let Some(MemberError::NotInstalled { hosts, reason, .. }) = error {
            led = Some((hosts, reason));
        }
        if let Some((all, reason)) = led {
            let here = (self.hosts.rnic_mut(), &self.config);
            self.ranks.gather(here, (&all, &reason), self.patience)?;
        }
        Ok(())
    }

    /// `led`: those that the source has led out of it, and why.
    fn be_in_group(&mut self, offset: u64, led: &mut Option<(Hosts, String)>) -> Result<(), MemberError> {
        let Self {
            config,
            guard,
            hosts,
            outgoing,
            path,
            progress,
            ..
        } = self;
        let mut source = crate::source(config.clone(), hosts.rnic_mut())?.join()?;
        let header = StreamHeader {
            name: outgoing.header.name.clone(),
            length: outgoing.header.length.map(|length| length.saturating_sub(offset)),
        };
        let guard = guard.filter(|_| source.leads());
        let sent = source.send_guarded(&header, &mut **outgoing, guard, &mut |bytes, _| {
            progress(offset + bytes);
        });
        let left = match &sent {
            Ok(_) => {
                path.note_outside(&source.outside());
                let waited = source.await_outside(&mut |outside| path.waits_for(outside));
                source.leave().and(waited)
            }
            Err(unsent) => {
                let reason = reason_line(&unsent.error.to_string());
                let diverted = source.divert(&reason);
                diverted.map(|all| *led = all.map(|(hosts, _)| (hosts, reason)))
            }
        };
        if let Err(error) = left {
            tracing::warn!(%error, "not left");
        }
        sent.map(drop).map_err(|unsent| outgoing.take_back(unsent))
    }

    fn end(&mut self) -> Result<StreamSummary, FallbackError> {
        let summary = self.outgoing.taken().summary();
        let StreamHeader { name, length } = &self.outgoing.header;
        if length.is_some_and(|length| length != summary.bytes) {
            return Err(FallbackError::Changed {
                name: name.clone(),
                bytes: summary.bytes,
            });
        }
        let bytes = summary.bytes;
        broadcast(self.hosts, self.ranks, Order::End { bytes })?;
        let mut digest = summary.digest.0;
        self.hosts.broadcast(&mut digest, self.ranks.source)?;
        // Until all have it, or one says that it cannot keep it.
        self.positions()?;
        Ok(summary)
    }
}
