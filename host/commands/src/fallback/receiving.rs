//! A receiver of a stream from host to host.

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use castnet_comm::{Collectives, Communicator};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::Output;
use castnet_member::{Hosts, MemberConfig, MemberError, StreamHeader, StreamSummary, Transferred};
use castnet_rnic::Rnic;
use indicatif::ProgressBar;

use super::course::{Order, Position, fresh};
use super::meeting::joining_within;
use super::{
    CHUNK, Incoming, NAME_MAX, PatienceArgs, Ranks, Refused, UNKNOWN, Ways, broadcast, close, ends,
    malformed, positions,
};
use crate::report::{Earlier, TransferReport};
use crate::{MemberArgs, Stop, failure};

/// A receiver whose stream is not only in its group.
pub(super) struct Receiving<'a, 't> {
    pub(super) host: &'a str,
    pub(super) ranks: &'a mut Ranks,
    pub(super) config: MemberConfig,
    pub(super) patience: Duration,
    pub(super) hosts: &'a mut Communicator,
    pub(super) incoming: &'a RefCell<Incoming<'t>>,
    pub(super) ways: Ways,
    pub(super) bar: ProgressBar,
}

impl Refused {
    /// Receives what is left of a file.
    pub(crate) fn receive(
        self,
        (args, patience): (&MemberArgs, PatienceArgs),
        config: MemberConfig,
        rnic: Box<dyn Rnic>,
        incoming: &RefCell<Incoming<'_>>,
        (begun, earlier): (Instant, Earlier),
        (output, stop): (Output, &Stop),
    ) -> Outcome {
        let (in_group, from_members) = incoming.borrow().came();
        let mut ways = Ways::new(begun, in_group, &self.reason);
        ways.add_between_hosts(from_members);
        let (mut hosts, mut ranks) = self.connect((args, &config), patience, rnic, stop)?;
        let mut receiving = Receiving {
            host: &args.name,
            ranks: &mut ranks,
            // So that the source is the first to give up.
            config: MemberConfig {
                join_within: Some(patience.join_again() * 2),
                ..joining_within(config, patience.join_again())
            },
            patience: patience.fallback_give_up.0,
            hosts: &mut hosts,
            incoming,
            ways,
            bar: output.byte_bar(None),
        };
        let received = receiving.run();
        receiving.bar.finish_and_clear();
        let (summary, path) = received?;
        let ways = receiving.ways;
        let elapsed = begun.elapsed();
        let transferred = Transferred { summary, elapsed };
        let report = TransferReport::of_stream(args, "receiver", transferred, path, hosts.rnic());
        close(hosts);
        let report = report.by(Some(ways)).after(earlier);
        let incoming = incoming.borrow();
        match incoming.messages() {
            Some(messages) => output.show_next(&report.checks(args, messages)),
            None => incoming.target.report(&report, output),
        }
    }
}

impl Receiving<'_, '_> {
    fn keep(&self, summary: &StreamSummary) -> Outcome<Option<PathBuf>> {
        let kept = self.incoming.borrow_mut().keep(summary.clone());
        kept.map_err(failure::sink)
    }

    /// Until all bytes have come, are those that were sent, and are kept.
    pub(super) fn run(&mut self) -> Outcome<(StreamSummary, Option<PathBuf>)> {
        let summary = self.take()?;
        let path = self.keep(&summary)?;
        // The source waits for it.
        let ended = self.hosts.barrier();
        ended.map_err(|error| self.ranks.failed(error))?;
        Ok((summary, path))
    }

    fn take(&mut self) -> Outcome<StreamSummary> {
        let header = self.head()?;
        let name = header.name.clone();
        if let Some(length) = header.length {
            self.bar.set_length(length);
        }
        let begun = self.incoming.borrow_mut().begin(header);
        begun.map_err(failure::sink)?;
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
                    positions(self.hosts, self.ranks, own)?;
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
                    let sent = self.hosts.broadcast(chunk, from);
                    sent.map_err(|error| self.ranks.failed(error))?;
                    let position = self.incoming.borrow().position();
                    let fresh = fresh(position, offset, chunk)
                        .ok_or_else(|| malformed(&format!("bytes from {offset} on after {position}")))?;
                    let written = self.incoming.borrow_mut().write_all(fresh);
                    written.map_err(failure::sink)?;
                    self.ways.add_between_hosts(fresh.len() as u64);
                    self.bar.set_position(position + fresh.len() as u64);
                }
                Order::Group { offset } => self.receive_in_group(offset)?,
                Order::End { bytes } => return self.end(&name, bytes),
            }
        }
    }

    fn read_kept(&self, offset: u64, chunk: &mut [u8]) -> Outcome {
        let mut incoming = self.incoming.borrow_mut();
        let mut filled = 0;
        while filled < chunk.len() {
            let read = incoming.read_kept(offset + filled as u64, &mut chunk[filled..]);
            match read.map_err(|error| self.cannot_read(error))? {
                0 => return Err(self.cannot_read(std::io::ErrorKind::UnexpectedEof.into())),
                read => filled += read,
            }
        }
        Ok(())
    }

    fn cannot_read(&self, error: std::io::Error) -> Failure {
        Failure::failed(format!("what was received cannot be read again: {error}"))
    }

    fn head(&mut self) -> Outcome<StreamHeader> {
        let failed = |error| self.ranks.failed(error);
        let mut head = [0_u64; 2];
        self.hosts
            .broadcast(&mut head, self.ranks.source)
            .map_err(failed)?;
        if head[1] > NAME_MAX {
            return Err(malformed("a name of over 512 bytes"));
        }
        let mut name = vec![0_u8; head[1] as usize];
        if !name.is_empty() {
            self.hosts
                .broadcast(&mut name, self.ranks.source)
                .map_err(failed)?;
        }
        Ok(StreamHeader {
            name: String::from_utf8_lossy(&name).into_owned(),
            length: (head[0] != UNKNOWN).then_some(head[0]),
        })
    }

    /// Receives in the group, until the stream or the group ends. What has come is written.
    fn receive_in_group(&mut self, offset: u64) -> Outcome {
        let position = self.incoming.borrow().position();
        if position != offset {
            return Err(malformed(&format!("the group from {offset} on after {position}")));
        }
        self.ways.tries_group(self.host, offset);
        // The registration of the group needs the port.
        self.ranks.meeting = None;
        let (mut came_from, mut led) = (None, None);
        let received = self.be_in_group(&mut came_from, &mut led);
        let error = match received.err() {
            Some(error) if ends(&error) => return Err(failure::member(error)),
            error => error,
        };
        let at = self.incoming.borrow().position();
        let came_from = came_from.map_or(at, |from| at.min(offset + from));
        let why = error.as_ref().map(ToString::to_string);
        self.ways.add_between_hosts(at - came_from);
        self.ways
            .leaves_group(self.host, (at, came_from - offset), why.as_deref());
        if let Some(MemberError::NotInstalled { hosts, .. } | MemberError::Diverted { hosts, .. }) = error {
            led = Some(hosts);
        }
        if let Some(all) = led {
            let here = (self.hosts.rnic_mut(), &self.config);
            let gathered = self.ranks.gather(here, (&all, ""), self.patience);
            gathered.map_err(failure::member)?;
        }
        Ok(())
    }

    /// `came_from`: from which byte of the group's stream on it came from a member. `led`: those that its source has led out of it, though
    /// this receiver has everything.
    fn be_in_group(
        &mut self,
        came_from: &mut Option<u64>,
        led: &mut Option<Hosts>,
    ) -> Result<(), MemberError> {
        let Self {
            config,
            hosts,
            incoming,
            ways,
            bar,
            ..
        } = self;
        let offset = incoming.borrow().position();
        let mut receiver = castnet_member::receiver(config.clone(), hosts.rnic_mut())?.join()?;
        let mut kept = |at, out: &mut [u8]| incoming.borrow_mut().read_kept(offset + at, out);
        let mut received = receiver.receive_kept(
            &mut |header| Incoming::open(incoming, header),
            &mut kept,
            &mut |_, bytes| bar.set_position(offset + bytes),
        );
        if received.is_ok()
            && let Err(error) = receiver.pass_on(&mut kept)
        {
            received = Err(error);
        }
        *came_from = receiver.came_from().first().map(|came| came.at_byte);
        ways.note_outside(&receiver.outside());
        ways.note_passed_on(receiver.passed_on());
        match receiver.leave() {
            Ok(()) => {}
            // It goes on between the hosts in any case.
            Err(MemberError::Diverted { hosts, .. }) => *led = Some(hosts),
            Err(error) => tracing::warn!(%error, "not left"),
        }
        received.map(drop)
    }

    /// Compares what has come with what was sent.
    fn end(&mut self, name: &str, bytes: u64) -> Outcome<StreamSummary> {
        let mut sent = [0_u8; 32];
        let digest = self.hosts.broadcast(&mut sent, self.ranks.source);
        digest.map_err(|error| self.ranks.failed(error))?;
        let summary = self.incoming.borrow().summary();
        let same = |summary: &StreamSummary| summary.bytes == bytes && summary.digest.0 == sent;
        summary.filter(same).ok_or_else(|| {
            let received = self.incoming.borrow().position();
            Failure::failed(format!(
                "{name}: the {received} bytes that were received differ from the {bytes} sent"
            ))
        })
    }
}
