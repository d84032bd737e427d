//! `castnet host turns`: the members of a group send one after the other, over the queue pair that they receive with.

use std::io;
use std::path::PathBuf;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::Output;
use castnet_console::units::Span;
use castnet_member::{Group, MemberConfig, MemberError};
use castnet_rnic::stream::StreamError;
use clap::Args;

use super::report::TransferReport;
use super::send::{remark_silence, source};
use super::sink::Target;
use super::{MemberArgs, Stop, failure, leave};

#[derive(Debug, Args)]
pub(super) struct TurnsCommand {
    #[command(flatten)]
    member: MemberArgs,
    /// Names of the members in the order in which they send; the same at all members. A name may come several times
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', required = true)]
    order: Vec<String>,
    /// File that this member sends in each of its turns; `-` is stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Folder for the files of the others: turn N of member M is NNN-M, with turns counted from 1
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Synchronizes PSNs when the source changes: for switches with any_source = "synchronized" in their rule files
    #[arg(long, requires = "mcst_id")]
    synchronize: bool,
    /// Fails after so long without an answer to what it sends; 0: never
    #[arg(long, value_name = "TIME", default_value = "1m")]
    give_up: Span,
}

impl TurnsCommand {
    /// Wrong flags, before anything is opened.
    fn check(&self) -> Outcome {
        let name = &self.member.name;
        let sends = self.order.contains(name);
        match (&self.file, sends) {
            (None, true) => Err(Failure::usage(format!(
                "{name} sends by --order: --file is missing"
            ))),
            (Some(_), false) => Err(Failure::usage(format!(
                "--file is given, but {name} is not in --order"
            ))),
            _ if !self.out.is_dir() => {
                let out = self.out.display();
                Err(Failure::usage(format!("--out {out} is not a folder")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        self.check()?;
        let args = &self.member;
        let mut config = MemberConfig {
            give_up: Some(self.give_up.0).filter(|most| !most.is_zero()),
            ..args.config(stop, None)?
        };
        if let Group::Fixed { address, .. } = &mut config.group {
            address.synchronizes = self.synchronize;
        }
        let mut rnic = args.device.open()?;
        let mut reports = Vec::new();
        let member = castnet_member::receiver(config, &mut *rnic).map_err(failure::member)?;
        let (mut member, _ready) = args.join(member)?;
        let mut turns = || -> Outcome {
            for (turn, sender) in (1..).zip(&self.order) {
                if let Some(file) = self.file.as_ref().filter(|_| *sender == args.name) {
                    let (mut file, header) = source(file)?;
                    let mut is_remarked = false;
                    let sent = member.send(&header, &mut *file, &mut |_, silent| {
                        remark_silence(&mut is_remarked, silent);
                    });
                    if let Err(error @ MemberError::Stream(StreamError::OutOfTurn)) = sent {
                        // The other one is not held up by this member.
                        let received = member.receive(&mut |_| Ok(io::sink()), &mut |_, _| {});
                        received.map_err(failure::member)?;
                        return Err(failure::member(error).while_doing(format!("turn {turn} of {sender}")));
                    }
                    reports.push(("source", sent.map_err(failure::member)?, None));
                    continue;
                }
                let target = Target(self.out.join(format!("{turn:03}-{sender}")));
                let received = member.receive(&mut |header| target.open(header), &mut |_, _| {});
                let (received, sink) = received.map_err(failure::member)?;
                let kept = sink.keep();
                let path = kept.map_err(|e| Failure::failed(format!("{}: {e}", target.0.display())))?;
                reports.push(("receiver", received, path));
            }
            Ok(())
        };
        let done = turns();
        leave(member);
        done?;
        for (role, transferred, path) in reports {
            output.show_next(&TransferReport::of_stream(args, role, transferred, path, &*rnic))?;
        }
        Ok(())
    }
}
