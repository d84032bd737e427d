//! The source of a stream from host to host.

use std::time::{Duration, Instant};

use castnet_comm::{Collectives, Communicator};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::Output;
use castnet_member::{
    Hosts, MemberConfig, MemberError, Messages, Safeguard, StreamHeader, StreamSummary, Transferred,
};
use castnet_proto::convert::reason_line;
use castnet_rnic::Rnic;
use indicatif::ProgressBar;

use super::co_working;
use super::course::{Course, Next, Order, Position};
use super::meeting::joining_within;
use super::{
    CHUNK, GuardArgs, NAME_MAX, Outgoing, Ranks, Refused, UNKNOWN, Ways, broadcast, close, ends, positions,
};
use crate::receivers::Receivers;
use crate::report::TransferReport;
use crate::{MemberArgs, Stop, failure};

/// A source whose stream is not only in its group.
pub(super) struct Sending<'a, 'f> {
    pub(super) host: &'a str,
    pub(super) ranks: &'a mut Ranks,
    pub(super) config: MemberConfig,
    pub(super) patience: Duration,
    pub(super) guard: Option<Safeguard>,
    pub(super) hosts: &'a mut Communicator,
    pub(super) outgoing: &'a mut Outgoing<'f>,
    pub(super) course: Course,
    pub(super) ways: Ways,
    pub(super) start: Instant,
    pub(super) bar: ProgressBar,
}

impl Refused {
    /// Sends what is left of a file to all other members. Returns when they have it.
    pub(crate) fn send(
        mut self,
        (args, guard): (&MemberArgs, &GuardArgs),
        config: MemberConfig,
        rnic: Box<dyn Rnic>,
        (outgoing, checks): (&mut Outgoing<'_>, Option<Messages>),
        (output, stop): (Output, &Stop),
    ) -> Outcome<TransferReport> {
        let before = std::mem::take(&mut self.before);
        // The group waits for all its members, also for those that are out.
        let is_whole = before.iter().all(|one| self.hosts.names.contains(&one.host));
        let ways = Ways::new(outgoing.begun, outgoing.position(), &self.reason);
        let (mut hosts, mut ranks) = self.connect((args, &config), guard.slow.patience, rnic, stop)?;
        let bar = output.byte_bar(outgoing.header.length);
        let mut sending = Sending {
            host: &args.name,
            guard: guard.slow.safeguard(&config),
            config: joining_within(config, guard.slow.patience.join_again()),
            patience: guard.slow.patience.fallback_give_up.0,
            ranks: &mut ranks,
            hosts: &mut hosts,
            outgoing,
            course: Course::new(Duration::ZERO, guard.retry().filter(|_| is_whole)),
            ways,
            start: Instant::now(),
            bar,
        };
        let summary = sending.run();
        sending.bar.finish_and_clear();
        let summary = summary?;
        let bytes = summary.bytes;
        let elapsed = sending.outgoing.begun.elapsed();
        let ways = sending.ways;
        let transferred = Transferred { summary, elapsed };
        let report = TransferReport::of_stream(args, "source", transferred, None, hosts.rnic());
        close(hosts);
        let others = ranks.members.iter().skip(1);
        let report = report
            .by(Some(ways))
            .to(Receivers::between_hosts(others, before, bytes));
        Ok(match checks {
            Some(messages) => report.checks(args, messages),
            None => report,
        })
    }
}

impl Sending<'_, '_> {
    pub(super) fn run(&mut self) -> Outcome<StreamSummary> {
        self.head()?;
        let unread = |error| Failure::failed(format!("reading the source: {error}"));
        let mut chunk = vec![0; CHUNK];
        loop {
            let is_at_end = self.outgoing.is_at_end().map_err(unread)?;
            match self.course.next(self.start.elapsed(), is_at_end) {
                Next::Positions => self.find_position()?,
                Next::Chunk => {
                    let offset = self.outgoing.position();
                    let filled = self.outgoing.fill(&mut chunk).map_err(unread)?;
                    let bytes = filled as u64;
                    broadcast(self.hosts, self.ranks, Order::Chunk { offset, bytes })?;
                    let sent = self.hosts.broadcast(&mut chunk[..filled], self.ranks.source);
                    sent.map_err(|error| self.ranks.failed(error))?;
                    self.course.handle_sent(bytes);
                    self.ways.add_between_hosts(bytes);
                    self.bar.set_position(self.outgoing.position());
                }
                Next::Kept { rank, to } => {
                    let offset = self.course.position();
                    let bytes = (to - offset).min(CHUNK as u64);
                    broadcast(self.hosts, self.ranks, Order::Kept { rank, offset, bytes })?;
                    let sent = self.hosts.broadcast(&mut chunk[..bytes as usize], rank);
                    sent.map_err(|error| self.ranks.failed(error))?;
                    self.course.handle_sent(bytes);
                }
                Next::Group => self.send_in_group()?,
                Next::End => return self.end(),
            }
        }
    }

    /// Length and name of the stream.
    fn head(&mut self) -> Outcome {
        let failed = |error| self.ranks.failed(error);
        let mut name = self.outgoing.header.name.clone().into_bytes();
        name.truncate(NAME_MAX as usize);
        let mut head = [self.outgoing.header.length.unwrap_or(UNKNOWN), name.len() as u64];
        self.hosts
            .broadcast(&mut head, self.ranks.source)
            .map_err(failed)?;
        if !name.is_empty() {
            self.hosts
                .broadcast(&mut name, self.ranks.source)
                .map_err(failed)?;
        }
        Ok(())
    }

    fn find_position(&mut self) -> Outcome {
        broadcast(self.hosts, self.ranks, Order::Positions)?;
        let kept = (self.outgoing.position(), self.outgoing.taken().bytes());
        let own = Position {
            bytes: kept.0,
            keeps: false,
        };
        let all = positions(self.hosts, self.ranks, own)?;
        let mut others = all;
        others.remove(self.ranks.source.into());
        let position = self.course.handle_positions(kept, &others);
        let position = position.map_err(Failure::failed)?;
        self.ways.add_in_group(position.saturating_sub(kept.0));
        self.outgoing.skip_to(position);
        Ok(())
    }

    /// Sends in the group, until the stream or the group ends.
    fn send_in_group(&mut self) -> Outcome {
        let offset = self.outgoing.position();
        broadcast(self.hosts, self.ranks, Order::Group { offset })?;
        self.ways.tries_group(self.host, offset);
        self.course.handle_group(self.start.elapsed());
        // The registration of the group needs the port. All others have been answered: they have sent positions since.
        self.ranks.meeting = None;
        let mut led = None;
        let tried = self.be_in_group(offset, &mut led);
        self.course.handle_left(self.start.elapsed());
        let error = match tried.err() {
            Some(error) if ends(&error) => return Err(failure::member(error)),
            error => error,
        };
        let why = error.as_ref().map(|error| reason_line(&error.to_string()));
        let at = self.outgoing.position();
        self.ways
            .leaves_group(self.host, (at, at - offset), why.as_deref());
        if let Some(MemberError::NotInstalled { hosts, reason, .. }) = error {
            led = Some((hosts, reason));
        }
        if let Some((all, reason)) = led {
            let here = (self.hosts.rnic_mut(), &self.config);
            let gathered = self.ranks.gather(here, (&all, &reason), self.patience);
            gathered.map_err(failure::member)?;
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
            ways,
            bar,
            ..
        } = self;
        let mut source = castnet_member::source(config.clone(), hosts.rnic_mut())?.join()?;
        let header = StreamHeader {
            name: outgoing.header.name.clone(),
            length: outgoing.header.length.map(|length| length.saturating_sub(offset)),
        };
        let guard = guard.filter(|_| source.leads());
        let sent = source.send_guarded(&header, &mut **outgoing, guard, &mut |bytes, _| {
            bar.set_position(offset + bytes);
        });
        let left = match &sent {
            Ok(_) => {
                ways.note_outside(&source.outside());
                let waited = co_working::await_outside(&mut source);
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

    fn end(&mut self) -> Outcome<StreamSummary> {
        let summary = self.outgoing.taken().summary();
        let StreamHeader { name, length } = &self.outgoing.header;
        if length.is_some_and(|length| length != summary.bytes) {
            return Err(Failure::failed(format!(
                "{name} has changed while it was sent: {} bytes were read",
                summary.bytes
            )));
        }
        let bytes = summary.bytes;
        broadcast(self.hosts, self.ranks, Order::End { bytes })?;
        let mut digest = summary.digest.0;
        let sent = self.hosts.broadcast(&mut digest, self.ranks.source);
        // Until all have it.
        let ended = sent.and_then(|()| self.hosts.barrier());
        ended.map_err(|error| self.ranks.failed(error))?;
        Ok(summary)
    }
}
