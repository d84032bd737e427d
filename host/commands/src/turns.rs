//! `castnet host turns`: the members of a group send one after the other, over the queue pair that they receive with.

use std::io;
use std::path::{Path, PathBuf};

use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::files;
use castnet_console::output::{Output, remark};
use castnet_console::units::Span;
use castnet_member::fallback::{Outgoing, Writer};
use castnet_member::{Group, Member, MemberConfig, MemberError};
use castnet_rnic::Rnic;
use castnet_rnic::stream::StreamError;
use clap::Args;
use nix::unistd::{AccessFlags, eaccess};

use super::fallback::{GuardArgs, Held, Incoming, Instead, Turns};
use super::report::TransferReport;
use super::send::{check_stdin, lead_away, remark_silence, source};
use super::sink::Target;
use super::{MemberArgs, Stop, Stopped, failure, refuse};

#[derive(Debug, Args)]
pub(super) struct TurnsCommand {
    #[command(flatten)]
    member: MemberArgs,
    /// Names of the members in the order in which they send; the same at all members. A name may come several times
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', required = true)]
    order: Vec<String>,
    /// File that this member sends in each of its turns; `-` is stdin. For several turns it cannot be stdin or a pipe
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
    #[command(flatten)]
    guard: GuardArgs,
}

/// Whether the bytes of a file are gone once they are read.
fn is_read_once(file: &Path) -> bool {
    file == Path::new("-") || files::is_pipe(file)
}

/// Whether a file can be read. It is not opened: the writer of a pipe would lose its reader.
fn check_readable(file: &Path) -> Outcome {
    if file == Path::new("-") {
        return Ok(());
    }
    let readable = match file.is_dir() {
        true => Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder")),
        false => eaccess(file, AccessFlags::R_OK).map_err(io::Error::from),
    };
    readable.map_err(|error| exit::cannot_read(file, &error))
}

/// The failure, if one of the order is no member of the group.
fn stranger(order: &[String], members: &[String], args: &MemberArgs) -> Option<Failure> {
    let stranger = order.iter().find(|name| !members.contains(name))?;
    let (group, members) = (args.group_name(), members.join(", "));
    let what =
        format!("--order has {stranger}, which is no member of group {group}: its members are {members}");
    Some(Failure::usage(what).next(format!(
        "castnet group add {group} {stranger}, or another --order at all members"
    )))
}

/// Leaves the group, and reports why. The others do not wait for this member.
fn give_up<T>(member: Member<'_, T>, failure: &Failure) {
    if let Err(error) = member.give_up(0, &failure.what) {
        tracing::warn!(%error, "not left");
    }
}

impl TurnsCommand {
    /// Wrong flags, before anything is opened.
    fn check(&self) -> Outcome {
        let name = &self.member.name;
        let turns = self.order.iter().filter(|sender| *sender == name).count();
        match (&self.file, turns) {
            (None, 1..) => Err(Failure::usage(format!(
                "{name} sends by --order: --file is missing"
            ))),
            (Some(_), 0) => Err(Failure::usage(format!(
                "--file is given, but {name} is not in --order"
            ))),
            (Some(file), 2..) if is_read_once(file) => {
                let what = format!("{name} sends {turns} times, and stdin and pipes can be read once");
                Err(Failure::usage(what).next("give a file"))
            }
            _ if self.order.iter().any(String::is_empty) => Err(Failure::usage("--order has an empty name")),
            _ if !self.out.is_dir() => {
                let out = self.out.display();
                Err(Failure::usage(format!("--out {out} is not a folder")).next(format!("mkdir {out}")))
            }
            // This member's turn may come late.
            (file, _) => {
                file.as_deref().map_or(Ok(()), check_readable)?;
                Target(self.out.clone()).check()
            }
        }
    }

    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        self.check()?;
        self.file.as_deref().map_or(Ok(()), check_stdin)?;
        let args = &self.member;
        let mut config = MemberConfig {
            give_up: Some(self.give_up.0).filter(|most| !most.is_zero()),
            ..args.config(stop, None)?
        };
        if let Group::Fixed { address, .. } = &mut config.group {
            address.synchronizes = self.synchronize;
        }
        let targets = (1..).zip(&self.order);
        let targets: Vec<_> = targets
            .map(|(turn, sender)| Target(self.out.join(format!("{turn:03}-{sender}"))))
            .collect();
        let mut rnic = args.device.open()?;
        let mut held = Held {
            turn: 0,
            outgoing: None,
            incoming: None,
        };
        let mut reports = Vec::new();
        let instead = |error| self.guard.slow.fallback.instead(error);
        let taken = (&mut held, &mut reports);
        let taken = self.in_group(&config, &mut *rnic, &targets, taken, &instead);
        let ended = match taken {
            Err(Stopped::Refused(refused)) => {
                let turns = Turns {
                    order: &self.order,
                    open: &|| self.open(&config),
                    incoming: &|turn| Incoming::new(&targets[turn]),
                    in_group: &|config, rnic, taken, instead| {
                        self.in_group(config, rnic, &targets, taken, instead)
                    },
                };
                let between = ((args, &self.guard), &config, rnic);
                refused.take_turns(between, (held, &mut reports), turns, (output, stop))
            }
            taken => taken.map_err(Stopped::failure),
        };
        // Those that are over are whole.
        let shown = reports.iter().try_for_each(|report| output.show_next(report));
        ended.and(shown)
    }

    /// What this member sends.
    fn open(&self, config: &MemberConfig) -> Outcome<Outgoing<'static>> {
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| Failure::usage("--file is missing"))?;
        let (file, header) = source(file)?;
        Ok(Outgoing::new(file, header, config.message_size as usize))
    }

    /// Takes all turns that are left in the group, and reports each one; or those before it is left.
    fn in_group<'t>(
        &self,
        config: &MemberConfig,
        rnic: &mut dyn Rnic,
        targets: &'t [Target],
        (held, reports): (&mut Held<'t>, &mut Vec<TransferReport>),
        instead: Instead<'_>,
    ) -> Result<(), Stopped> {
        let (args, guard) = (&self.member, self.guard.slow.safeguard(config));
        let member = castnet_member::receiver(config.clone(), rnic);
        let member = member.or_else(|error| refuse(instead, error))?;
        let (mut member, _ready) = args.join_or(instead, member)?;
        // All would wait for the turn of one that never comes.
        let stranger = match member.members() {
            Ok(members) => members.and_then(|members| stranger(&self.order[held.turn..], &members, args)),
            Err(MemberError::Interrupted) => Some(failure::interrupted()),
            Err(error) => {
                tracing::warn!(%error, "whether --order has members only is not known");
                None
            }
        };
        if let Some(failure) = stranger {
            give_up(member, &failure);
            return Err(failure.into());
        }
        let mut done = Vec::new();
        let mut ended = Ok(());
        // What fails at this member alone, and whether it has received the turn of a member that was faster.
        let (mut failed, mut was_late) = (None, false);
        // The bytes of a turn that has arrived and could not be kept.
        let mut unkept = None;
        for (turn, sender) in self.order.iter().enumerate().skip(held.turn) {
            held.turn = turn;
            if *sender == args.name {
                let outgoing = match self.open(config) {
                    Ok(outgoing) => held.outgoing.insert(outgoing),
                    Err(failure) => {
                        failed = Some(failure);
                        break;
                    }
                };
                let (header, mut is_remarked) = (outgoing.header.clone(), false);
                let sent = member.send_guarded(&header, outgoing, guard, &mut |_, silent| {
                    remark_silence(&mut is_remarked, silent);
                });
                match sent {
                    Ok(sent) => done.push((turn, "source", sent, None)),
                    Err(unsent) if matches!(unsent.error, MemberError::Stream(StreamError::OutOfTurn)) => {
                        // The other one is not held up by this member.
                        let received = member.receive(&mut |_| Ok(io::sink()), &mut |_, _| {});
                        let doing = format!("turn {} of {sender}", turn + 1);
                        was_late = received.is_ok();
                        failed = Some(match received {
                            Ok(_) => failure::member(unsent.error).while_doing(doing),
                            Err(error) => failure::member(error),
                        });
                        break;
                    }
                    Err(unsent) => {
                        ended = Err(outgoing.take_back(unsent));
                        break;
                    }
                }
                held.outgoing = None;
                continue;
            }
            let (_, incoming) = held.incoming.insert((turn, Incoming::new(&targets[turn])));
            let incoming: &_ = incoming;
            let received = member.receive(&mut |header| Writer::open(incoming, header), &mut |_, _| {});
            match received {
                Ok((received, _)) => {
                    let kept = incoming.borrow_mut().keep(received.summary.clone());
                    match kept {
                        Ok(path) => done.push((turn, "receiver", received, path)),
                        Err(source) => {
                            let what = "writing what arrived";
                            ended = Err(StreamError::Io { what, source }.into());
                            unkept = Some(received.summary.bytes);
                            break;
                        }
                    }
                }
                Err(error) => {
                    incoming.borrow_mut().go_on(member.take_open_stream());
                    ended = Err(error);
                    break;
                }
            }
        }
        let refused = match (ended, &failed) {
            (_, Some(failure)) if was_late => {
                remark(&format!(
                    "{}: {}; it leaves when the other one has left, goes on or is silent",
                    args.name, failure.what
                ));
                if let Err(error) = member.leave_out_of_turn(&failure.what) {
                    tracing::warn!(%error, "not left");
                }
                None
            }
            (_, Some(failure)) => {
                give_up(member, failure);
                None
            }
            (Ok(()), None) => {
                held.turn = self.order.len();
                // Another one may not know that all is here.
                member.leave().map_err(instead).err()
            }
            (Err(error), None) if guard.is_some() && error.is_slow() => {
                let refused = lead_away(args, member, Vec::new(), &error);
                Some(refused.map_or_else(|| instead(error), Ok))
            }
            (Err(error), None) => {
                let left = match unkept {
                    Some(bytes) => member.give_up(bytes, &error.to_string()),
                    None => member.leave(),
                };
                if let Err(error) = left {
                    tracing::warn!(%error, "not left");
                }
                Some(instead(error))
            }
        };
        reports.extend(done.into_iter().map(|(turn, role, transferred, path)| {
            TransferReport::of_stream(args, role, transferred, path, rnic).of_turn(turn)
        }));
        if let Some(failure) = failed {
            return Err(failure.into());
        }
        match refused {
            None => Ok(()),
            Some(Ok(refused)) => Err(refused.into()),
            Some(Err(error)) if held.turn == self.order.len() => {
                tracing::warn!(%error, "not left");
                Ok(())
            }
            Some(Err(error)) => Err(failure::member(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        turns: TurnsCommand,
    }

    #[test]
    fn who_is_to_send_is_a_member() {
        let line = "turns --interface veth0 --ip 10.0.0.1/24 --name h1 --group w --order h1,h9,h3 --out /tmp";
        let turns = Line::try_parse_from(line.split(' ')).expect("flags").turns;
        let stranger = |members: &[&str]| {
            let members: Vec<_> = members.iter().map(|&name| name.to_owned()).collect();
            stranger(&turns.order, &members, &turns.member).map(|failure| failure.text())
        };
        assert_eq!(stranger(&["h1", "h2", "h3", "h9"]), None);
        let text = stranger(&["h1", "h2", "h3"]).expect("h9 is no member");
        assert!(
            text.contains("h9, which is no member of group w") && text.contains("castnet group add w h9"),
            "{text}"
        );
    }

    /// It is opened when the turn begins: its writer would lose its reader before.
    #[test]
    fn a_pipe_is_sent_in_one_turn_and_not_opened_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo").success());
        let check = |order: &str, file: &Path| {
            let line = "turns --interface veth0 --ip 10.0.0.1/24 --name a --group g --order";
            let line = line.split(' ').chain([order]).map(OsStr::new);
            let out = folder.path().as_os_str();
            let paths = [OsStr::new("--file"), file.as_os_str(), OsStr::new("--out"), out];
            let line = Line::try_parse_from(line.chain(paths)).expect("flags");
            line.turns.check().map_err(|failure| failure.text())
        };
        check("a,b", &pipe).expect("one turn");
        check("a,b", Path::new("-")).expect("one turn");
        for (order, file, why) in [
            ("a,b,a", pipe.as_path(), "can be read once"),
            ("a,b,a", Path::new("-"), "can be read once"),
            ("a,b", folder.path(), "cannot read"),
            ("a,b", Path::new("/nonexistent"), "cannot read"),
        ] {
            let text = check(order, file).expect_err(why);
            assert!(text.contains(why), "{text}");
        }
    }
}
