//! `castnet host send|receive --size N --count M`: messages of one size instead of a file, for checks.

use std::path::PathBuf;
use std::time::Instant;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::Output;
use castnet_console::units::Size;
use castnet_member::fallback::{Outgoing, Pattern, header};
use castnet_member::{MemberConfig, Messages};
use castnet_rnic::Rnic;
use clap::Args;

use super::fallback::{FallbackArg, Incoming};
use super::receive::ReceiveCommand;
use super::receivers::Receivers;
use super::report::{Earlier, TransferReport};
use super::send::{SendCommand, known_receivers, lead_away, leads, remark_silence};
use super::sink::Target;
use super::{Stop, Stopped, failure, leave};

#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Messages of one size instead of a file, to check RNICs and switches")]
pub(super) struct MessageArgs {
    /// Bytes of each message; the same at all members. Receivers check every byte
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Number of messages; the same at all members
    #[arg(long, value_name = "N", default_value_t = 1, requires = "size")]
    count: u32,
    /// Messages that the sender has in flight at once
    #[arg(long, value_name = "N", default_value_t = 4, requires = "size")]
    in_flight: u32,
}

impl MessageArgs {
    fn messages(&self) -> Outcome<Messages> {
        let size = self.size.unwrap_or(Size(0));
        Ok(Messages {
            size: u32::try_from(size.0)
                .map_err(|_| Failure::usage(format!("--size {size} is over 1 GiB")))?,
            count: self.count,
        })
    }
}

impl SendCommand {
    pub(super) fn send_messages(&self, config: MemberConfig, output: Output, stop: &Stop) -> Outcome {
        let (args, messages) = (&self.member, self.messages.messages()?);
        let mut rnic = self.open()?;
        let mut pattern = Pattern::new(messages, 0);
        let piece = config.message_size as usize;
        let mut outgoing = Outgoing::new(&mut pattern, header(messages), piece);
        let report = match self.send_checks(config.clone(), &mut *rnic, messages, &mut outgoing) {
            Err(Stopped::Refused(refused)) => {
                let outgoing = (&mut outgoing, Some(messages));
                refused.send((args, &self.guard), config, rnic, outgoing, (output, stop))?
            }
            sent => sent.map_err(Stopped::failure)?,
        };
        report.end(self.allow_missing, output)
    }

    fn send_checks(
        &self,
        config: MemberConfig,
        rnic: &mut dyn Rnic,
        messages: Messages,
        outgoing: &mut Outgoing<'_>,
    ) -> Result<TransferReport, Stopped> {
        let (args, guard) = (&self.member, self.guard.slow.safeguard(&config));
        let source = castnet_member::source(config, rnic).map_err(failure::member)?;
        let (mut source, _ready) = args.join_or(&|error| self.guard.slow.fallback.instead(error), source)?;
        let guard = guard.filter(|_| leads(&args.name, &source));
        outgoing.begun = Instant::now();
        let (mut acknowledged, mut is_remarked) = (0, false);
        let in_flight = self.messages.in_flight;
        let sent = source.send_messages(messages, in_flight, guard, &mut |count, silent| {
            acknowledged = count;
            remark_silence(&mut is_remarked, silent);
        });
        let elapsed = outgoing.begun.elapsed();
        let (sent, receivers) = match sent {
            Err(error) if guard.is_some() && error.is_slow() => {
                let receivers = known_receivers(&mut source);
                let Some(refused) = lead_away(args, source, receivers, &error) else {
                    return Err(failure::member(error).into());
                };
                let left = outgoing.left_group(messages, (acknowledged, in_flight), error);
                left.map_err(|error| Failure::failed(format!("making the messages again: {error}")))?;
                return Err(refused.into());
            }
            Ok(sent) => {
                let receivers = Receivers::leave_and_ask(source, sent.bytes);
                (sent, receivers)
            }
            Err(error) => {
                leave(source);
                return Err(failure::member(error).into());
            }
        };
        let report = TransferReport::of_messages(args, "source", messages, sent, elapsed, rnic);
        Ok(report.to(receivers))
    }
}

impl ReceiveCommand {
    pub(super) fn receive_messages(&self, config: MemberConfig, output: Output, stop: &Stop) -> Outcome {
        let (args, messages) = (&self.member, self.messages.messages()?);
        let mut rnic = args.device.open()?;
        let (begun, mut earlier, mut bytes) = (Instant::now(), Earlier::default(), 0);
        match self.receive_checks(
            config.clone(),
            &mut *rnic,
            messages,
            (&mut earlier, &mut bytes),
            output,
        ) {
            Err(Stopped::Refused(refused)) => {
                let target = Target(PathBuf::from("messages"));
                let incoming = Incoming::checks(&target, messages, bytes);
                let incoming = incoming.map_err(|error| Failure::failed(format!("messages: {error}")))?;
                let since = (begun, earlier);
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

    /// `bytes`: of the messages that have come whole.
    fn receive_checks(
        &self,
        config: MemberConfig,
        rnic: &mut dyn Rnic,
        messages: Messages,
        (earlier, bytes): (&mut Earlier, &mut u64),
        output: Output,
    ) -> Result<(), Stopped> {
        // One that begins with any message cannot go on with the stream of all.
        let fallback = if self.late {
            FallbackArg::Off
        } else {
            self.fallback
        };
        let receiver = castnet_member::message_receiver(config, rnic, messages).map_err(failure::member)?;
        let (receiver, received) = self.receive(receiver, fallback, earlier, |receiver, so_far| {
            let received = receiver.receive_messages(&mut |count| *so_far = count * u64::from(messages.size));
            *bytes = *so_far;
            received
        })?;
        let received = match received {
            Ok(received) => received,
            Err(error) => {
                leave(receiver);
                return Err(fallback.instead(error).map_err(failure::member)?.into());
            }
        };
        match receiver.leave().map_err(|error| fallback.instead(error)) {
            Ok(()) => {}
            // Its source does not know that all is here.
            Err(Ok(refused)) => return Err(refused.into()),
            Err(Err(error)) => tracing::warn!(%error, "not left"),
        }
        let elapsed = received.times.last().copied().unwrap_or_default();
        let report = TransferReport::of_messages(&self.member, "receiver", messages, received, elapsed, rnic);
        Ok(output.show_next(&report.after(*earlier))?)
    }
}
