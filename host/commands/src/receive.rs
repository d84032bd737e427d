//! `castnet host receive`.

use std::cell::RefCell;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Instant;

use castnet_console::exit::Outcome;
use castnet_console::files;
use castnet_console::output::{Output, remark};
use castnet_member::fallback::{Destination, Writer};
use castnet_member::{Member, MemberConfig, MemberError, Others, Prepared};
use castnet_rnic::Rnic;
use clap::Args;

use super::fallback::{FallbackArg, Incoming, PatienceArgs, Watched, called, configure, show};
use super::messages::MessageArgs;
use super::report::{Earlier, TransferReport};
use super::sink::Target;
use super::{MemberArgs, Stop, Stopped, failure, leave};

#[derive(Debug, Args)]
pub(super) struct ReceiveCommand {
    #[command(flatten)]
    pub(super) member: MemberArgs,
    /// File to write, or an existing folder for a file with the sender's name; `-` is stdout
    #[arg(
        long,
        value_name = "FILE|DIR",
        required_unless_present = "size",
        conflicts_with = "size"
    )]
    out: Option<PathBuf>,
    /// Joins the group --mcst-id, which the source at this address registers
    #[arg(long, value_name = "IP", requires = "mcst_id", conflicts_with = "group")]
    leader: Option<Ipv4Addr>,
    /// Also joins while the group runs, from the next message on
    #[arg(long, requires = "size")]
    pub(super) late: bool,
    /// Ends with an error if the source is gone before the end, instead of joining again and beginning anew
    #[arg(long)]
    once: bool,
    /// What to do if the switches cannot install the group, or its source leaves it because it is slow
    #[arg(long, value_enum, value_name = "HOW", default_value_t = FallbackArg::Auto)]
    pub(super) fallback: FallbackArg,
    #[command(flatten)]
    pub(super) patience: PatienceArgs,
    #[command(flatten)]
    pub(super) messages: MessageArgs,
}

impl ReceiveCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let args = &self.member;
        let config = MemberConfig {
            from_next_message: self.late,
            ..args.config(stop, self.leader.map(Others::Leader))?
        };
        // One that begins with any message cannot go on with the stream of all.
        let fallback = if self.late {
            FallbackArg::Off
        } else {
            self.fallback
        };
        let config = called(config, fallback);
        let Some(out) = &self.out else {
            return self.receive_messages(config, output, stop);
        };
        let target = Target(out.clone());
        target.check()?;
        if target.is_stdout() {
            files::check_open(io::stdout(), "stdout", "--out")?;
        }
        let config = configure(config, self.fallback, Some(&target));
        let incoming = Incoming::new(&target);
        let mut rnic = args.device.open()?;
        let (mut begun, mut earlier) = (None, Earlier::default());
        match self.receive_file(
            config.clone(),
            &mut *rnic,
            &incoming,
            (&mut begun, &mut earlier),
            output,
        ) {
            Err(Stopped::Refused(refused)) => {
                let since = (begun.unwrap_or_else(Instant::now), earlier);
                refused.receive(
                    (args, self.patience),
                    config,
                    rnic,
                    &incoming,
                    since,
                    (output, stop),
                )
            }
            received => received.map_err(Stopped::failure),
        }
    }

    fn receive_file(
        &self,
        config: MemberConfig,
        rnic: &mut dyn Rnic,
        incoming: &RefCell<Incoming<'_>>,
        (begun, earlier): (&mut Option<Instant>, &mut Earlier),
        output: Output,
    ) -> Result<(), Stopped> {
        let args = &self.member;
        let receiver = castnet_member::receiver(config, rnic).map_err(failure::member)?;
        let mut kept = |at, out: &mut [u8]| incoming.borrow_mut().read_kept(at, out);
        let mut watched = None;
        let (mut receiver, received) =
            self.receive(receiver, self.fallback, earlier, |receiver, so_far| {
                watched = Some(Watched::begin(&args.name, receiver));
                let bar = output
                    .byte_bar(None)
                    .with_message(format!("{} receives", args.name));
                let received = receiver.receive_kept(
                    &mut |header| {
                        *begun = Some(Instant::now());
                        Writer::open(incoming, header)
                    },
                    &mut kept,
                    &mut |header, bytes| {
                        show(&bar, header.and_then(|h| h.length), bytes);
                        *so_far = bytes;
                    },
                );
                bar.finish_and_clear();
                received
            })?;
        let received = match received {
            Ok((received, _)) => received,
            Err(error) => {
                incoming.borrow_mut().go_on(receiver.take_open_stream());
                if let Some(came) = receiver.came_from().first() {
                    incoming.borrow_mut().note_from_members(came.at_byte);
                }
                leave(receiver);
                let refused = self.fallback.instead(error).map_err(failure::member)?;
                return Err(refused.into());
            }
        };
        // A complete file appears before anything else can fail.
        let target = incoming.borrow().target;
        let stored = incoming.borrow_mut().keep(received.summary.clone());
        let stored = stored.map_err(failure::sink);
        let bytes = received.summary.bytes;
        let ways = match watched.filter(|_| stored.is_ok()) {
            Some(watched) => watched.received(&mut receiver, bytes, &mut kept),
            None => Ok(None),
        };
        let left = match &stored {
            Ok(_) => receiver.leave(),
            Err(failure) => receiver.give_up(bytes, &failure.what),
        };
        let (path, ways) = (stored?, ways.map_err(failure::member)?);
        match left.map_err(|error| self.fallback.instead(error)) {
            Ok(()) => {}
            // Its source does not know that all is here.
            Err(Ok(refused)) => return Err(refused.into()),
            Err(Err(error)) => tracing::warn!(%error, "not left"),
        }
        let report = TransferReport::of_stream(args, "receiver", received, path, rnic);
        Ok(target.report(&report.by(ways).after(*earlier), output)?)
    }

    /// Joins, and receives by a function that also notes the bytes so far. If the group ends before that is complete, does
    /// so again: with what came before, nothing is mixed.
    pub(super) fn receive<'r, T, R>(
        &self,
        mut prepared: Prepared<'r, T>,
        fallback: FallbackArg,
        earlier: &mut Earlier,
        mut receive: impl FnMut(&mut Member<'r, T>, &mut u64) -> Result<R, MemberError>,
    ) -> Result<(Member<'r, T>, Result<R, MemberError>), Stopped> {
        loop {
            let (mut member, _ready) = self.member.join_or(&|error| fallback.instead(error), prepared)?;
            let mut bytes = 0;
            match receive(&mut member, &mut bytes) {
                Err(ended) if ended.may_join_again() && self.may_begin_again(bytes) => {
                    remark(&format!("{}: {ended}; joining again", self.member.name));
                    earlier.add(bytes);
                    prepared = member.again().map_err(failure::member)?;
                }
                received => return Ok((member, received)),
            }
        }
    }

    /// What has been written to stdout, a pipe or a device cannot be taken back.
    fn may_begin_again(&self, bytes: u64) -> bool {
        let is_kept = |out: &PathBuf| Target(out.clone()).is_kept();
        !self.once && (bytes == 0 || self.out.as_ref().is_none_or(is_kept))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        receive: ReceiveCommand,
    }

    #[test]
    fn what_is_in_a_pipe_cannot_be_begun_again() {
        for (out, may) in [("-", false), ("/dev/null", false), ("/tmp/new", true)] {
            let line = "receive --interface veth0 --ip 10.0.0.2/24 --name h2 --group g --out";
            let receive = Line::try_parse_from(line.split(' ').chain([out]))
                .expect("flags")
                .receive;
            assert_eq!(receive.may_begin_again(1), may, "{out}");
            assert!(receive.may_begin_again(0), "{out}");
        }
    }
}
