//! `castnet host send|receive --size N --count M`: messages of one size instead of a file, for checks.

use std::time::Instant;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::Output;
use castnet_console::units::Size;
use castnet_member::{MemberConfig, Messages};
use clap::Args;

use super::fallback::FallbackArg;
use super::receive::ReceiveCommand;
use super::report::{Earlier, TransferReport};
use super::send::{SendCommand, remark_silence};
use super::{Stopped, failure, leave};

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
    pub(super) fn send_messages(&self, config: MemberConfig, output: Output) -> Outcome {
        let (args, messages) = (&self.member, self.messages.messages()?);
        let mut rnic = args.device.open()?;
        let source = castnet_member::source(config, &mut *rnic).map_err(failure::member)?;
        let (mut source, _ready) = args.join(source)?;
        let (start, mut is_remarked) = (Instant::now(), false);
        let sent = source.send_messages(messages, self.messages.in_flight, &mut |_, silent| {
            remark_silence(&mut is_remarked, silent);
        });
        let elapsed = start.elapsed();
        leave(source);
        let sent = sent.map_err(failure::member)?;
        output.show_next(&TransferReport::of_messages(
            args, "source", messages, sent, elapsed, &*rnic,
        ))
    }
}

impl ReceiveCommand {
    pub(super) fn receive_messages(&self, config: MemberConfig, output: Output) -> Outcome {
        let (args, messages) = (&self.member, self.messages.messages()?);
        let mut rnic = args.device.open()?;
        let receiver =
            castnet_member::message_receiver(config, &mut *rnic, messages).map_err(failure::member)?;
        let mut earlier = Earlier::default();
        let received = self.receive(receiver, FallbackArg::Off, &mut earlier, |receiver, so_far| {
            receiver.receive_messages(&mut |count| *so_far = count * u64::from(messages.size))
        });
        let (receiver, received) = received.map_err(Stopped::failure)?;
        leave(receiver);
        let received = received.map_err(failure::member)?;
        let elapsed = received.times.last().copied().unwrap_or_default();
        let report = TransferReport::of_messages(args, "receiver", messages, received, elapsed, &*rnic);
        output.show_next(&report.after(earlier))
    }
}
