//! `castnet host send|receive --size N --count M`: messages of one size instead of a file, for checks.

use std::time::{Duration, Instant};

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::units::{Size, bit_rate, bytes, count, rate_of, span};
use castnet_member::{self as member, HostDevice, Silence, Stop, Traffic};
use castnet_rnic::messages::{self, MessageReceiver, Messages, MessagesSummary};
use castnet_rnic::stream::Flow;
use clap::Args;
use serde::Serialize;
use tokio::runtime::Handle;

use super::report::repairs;
use super::{MemberArgs, Op, ReceiveCommand, SendCommand};

/// What messages.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Messages of one size instead of a file, to check RNICs and switches")]
pub(super) struct MessageArgs {
    /// Bytes of each; the same at all members. Their bytes are a pattern that receivers know
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 1, requires = "size")]
    count: u32,
    /// Under way at once, at the sender
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

/// What messages came to at one host.
#[derive(Debug, Serialize)]
struct MessagesReport {
    host: String,
    role: &'static str,
    group: String,
    op: &'static str,
    size: u32,
    count: u32,
    bytes: u64,
    sha256: String,
    seconds: f64,
    goodput_bits_per_s: f64,
    /// Microseconds; at the source from post to completion, at a receiver from the first message on.
    completions_us: Vec<f64>,
    #[serde(flatten)]
    traffic: Traffic,
}

impl Report for MessagesReport {
    fn page(&self, page: &mut Page) {
        let did = if self.role == "source" { "sent" } else { "received" };
        let (n, size) = (count(self.count.into()), bytes(self.size.into()));
        page.line(format!(
            "{} {did} {n} messages of {size} by {}",
            self.host, self.op
        ));
        let mut facts = vec![
            ("SHA-256", self.sha256.clone()),
            ("time", span(Duration::from_secs_f64(self.seconds))),
            ("goodput", bit_rate(self.goodput_bits_per_s)),
        ];
        if self.role == "source" {
            let mut times = self.completions_us.clone();
            times.sort_by(f64::total_cmp);
            let at = |i: usize| times.get(i).map_or_else(String::new, |us| format!("{us:.0} us"));
            let (middle, last) = (times.len() / 2, times.len().saturating_sub(1));
            let text = format!("{} least, {} median, {} most", at(0), at(middle), at(last));
            facts.push(("completions", text));
        }
        facts.push(repairs(&self.traffic, self.role));
        page.facts(&facts);
    }
}

fn report(
    args: &MemberArgs,
    role: &'static str,
    what: Messages,
    summary: MessagesSummary,
    elapsed: Duration,
    rnic: &impl HostDevice,
) -> MessagesReport {
    let seconds = elapsed.as_secs_f64();
    MessagesReport {
        host: args.name.clone(),
        role,
        group: args.group_name(),
        op: match args.op {
            Op::Send => "SEND_WITH_IMM",
            Op::Write => "WRITE_WITH_IMM",
        },
        size: what.size,
        count: what.count,
        bytes: summary.bytes,
        sha256: summary.digest.to_string(),
        seconds,
        goodput_bits_per_s: rate_of(summary.bytes, seconds),
        completions_us: summary.times.iter().map(|t| t.as_secs_f64() * 1e6).collect(),
        traffic: rnic.traffic(),
    }
}

impl SendCommand {
    /// Sends messages instead of a file.
    pub(super) fn send_messages(&self, output: Output, runtime: &Handle, stop: &Stop) -> Outcome {
        let (args, what) = (&self.member, self.messages.messages()?);
        let (mut member, _) = args.join::<()>(runtime, stop, None)?;
        let (fate, watch) = args.watch(runtime, stop)?;
        let mut silence = Silence::new(Some(self.give_up.0).filter(|most| !most.is_zero()));
        let (at, rnic, start) = (member.at, &mut member.rnic, Instant::now());
        let sent = messages::send(
            rnic,
            &at.qpns,
            at.transfer(),
            what,
            self.messages.in_flight,
            &mut |rnic, done| match silence.look(rnic, done) {
                Flow::Stop => Flow::Stop,
                Flow::Continue => stop.flow(),
            },
        );
        let elapsed = start.elapsed();
        watch.abort();
        args.leave(rnic, runtime)?;
        let sent = match silence.failure() {
            Some(failure) => Err(failure),
            None => sent.map_err(member::stream_failure),
        };
        let summary = fate.or(sent)?;
        output.show_next(&report(args, "source", what, summary, elapsed, rnic))
    }
}

impl ReceiveCommand {
    /// Receives messages instead of a file.
    pub(super) fn receive_messages(&self, output: Output, runtime: &Handle, stop: &Stop) -> Outcome {
        let (args, what) = (&self.member, self.messages.messages()?);
        let by_write = args.op == Op::Write;
        let (mut member, receiver) = args.join(
            runtime,
            stop,
            Some(&|rnic, qpns, manner| {
                let receiver = MessageReceiver::new(rnic, qpns, by_write, what, manner.slots)
                    .map_err(member::stream_failure)?;
                let rings = receiver.rings().iter().filter(|_| by_write);
                let memory = rings.copied().collect();
                Ok((receiver, memory))
            }),
        )?;
        let Some(mut receiver) = receiver else {
            return Err(Failure::failed("no receiver was made"));
        };
        let (fate, watch) = args.watch(runtime, stop)?;
        let received = receiver
            .receive(&mut member.rnic, &mut |_, _| stop.flow())
            .map_err(member::stream_failure);
        watch.abort();
        if received.is_ok() {
            self.answer_until_the_source_is_done(&mut member, runtime, stop)?;
        }
        args.leave(&mut member.rnic, runtime)?;
        let summary = fate.or(received)?;
        let elapsed = summary.times.last().copied().unwrap_or_default();
        output.show_next(&report(args, "receiver", what, summary, elapsed, &member.rnic))
    }
}
