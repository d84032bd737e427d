//! `castnet host send`.

use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::files;
use castnet_console::output::{Output, remark};
use castnet_console::service::is_stopped;
use castnet_console::units::Span;
use castnet_member::fallback::Outgoing;
use castnet_member::{
    Fate, Member, MemberConfig, MemberError, Others, ReceiverState, Source, StreamHeader, Unsent,
};
use castnet_proto::convert::reason_line;
use castnet_rnic::Rnic;
use clap::Args;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, poll};

use super::fallback::{GuardArgs, Refused, Watched, called, configure};
use super::messages::MessageArgs;
use super::receivers::Receivers;
use super::report::TransferReport;
use super::{MemberArgs, Stop, Stopped, failure, leave};

/// Silence after which a source reports that it waits.
const REMARK_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct SendCommand {
    #[command(flatten)]
    pub(super) member: MemberArgs,
    /// File to send; `-` is stdin
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "size",
        conflicts_with = "size"
    )]
    file: Option<PathBuf>,
    /// Registers --mcst-id as a group of these receivers: their addresses, with commas between them
    #[arg(
        long,
        value_name = "IP",
        requires = "mcst_id",
        conflicts_with = "group",
        value_delimiter = ','
    )]
    register_for: Vec<Ipv4Addr>,
    /// Fails after so long without an answer; 0: never
    #[arg(long, value_name = "TIME", default_value = "1m")]
    give_up: Span,
    /// Ends with success although a receiver got nothing, or is gone before it had everything
    #[arg(long)]
    pub(super) allow_missing: bool,
    #[command(flatten)]
    pub(super) guard: GuardArgs,
    #[command(flatten)]
    pub(super) messages: MessageArgs,
}

pub(super) fn remark_silence(is_remarked: &mut bool, silent: Duration) {
    let is_long = silent >= REMARK_AFTER;
    if is_long && !*is_remarked {
        remark(
            "nothing has been acknowledged for 5 s: castnet group show lists the receivers that are behind",
        );
    }
    *is_remarked = is_long;
}

/// A closed stdin would be sent as an empty file.
pub(super) fn check_stdin(file: &Path) -> Outcome {
    match file == Path::new("-") {
        true => files::check_open(io::stdin(), "stdin", "--file"),
        false => Ok(()),
    }
}

/// The header has the file's name, and its length if it is a regular file.
pub(super) fn source(path: &Path) -> Outcome<(Box<dyn Read>, StreamHeader)> {
    if path == Path::new("-") {
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        return Ok((
            Box::new(Pipe(stdin.map_err(|e| exit::cannot_read(path, &e))?.into())),
            StreamHeader {
                name: "stdin".to_owned(),
                length: None,
            },
        ));
    }
    let open = || {
        let mut options = File::options();
        options.read(true);
        if files::is_pipe(path) {
            // Without a writer its bytes are late. To wait for one here would hold up the other members of a group.
            options.custom_flags(OFlag::O_NONBLOCK.bits());
        }
        let file = options.open(path)?;
        let meta = file.metadata()?;
        if meta.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
        }
        Ok((file, meta.is_file().then_some(meta.len())))
    };
    let (file, length) = open().map_err(|e| exit::cannot_read(path, &e))?;
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let file: Box<dyn Read> = match length {
        Some(_) => Box::new(file),
        None => Box::new(Pipe(file)),
    };
    Ok((file, StreamHeader { name, length }))
}

/// Longest wait of a source for its bytes. Then its reader looks after its other work, and a signal can end it.
const LOOK_MS: u8 = 50;

/// A file whose bytes may be late, such as a pipe: [`io::ErrorKind::Interrupted`] while there are none. A signal ends the wait for them.
struct Pipe(File);

impl Read for Pipe {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if is_stopped() {
            return Err(files::stopped());
        }
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, LOOK_MS)? == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.0.read(out).map_err(|error| match error.kind() {
            // Another reader has taken them.
            io::ErrorKind::WouldBlock => io::ErrorKind::Interrupted.into(),
            _ => error,
        })
    }
}

impl SendCommand {
    fn others(&self) -> Option<Others> {
        let receivers = self.register_for.iter().copied().collect();
        (!self.register_for.is_empty()).then_some(Others::Receivers(receivers))
    }

    pub(super) fn open(&self) -> Outcome<Box<dyn Rnic>> {
        let rnic = self.member.device.open()?;
        let ip = rnic.attributes().ip;
        match self.register_for.contains(&ip) {
            true => Err(Failure::usage(format!(
                "--register-for has {ip}, which is this host's address: it sends"
            ))),
            false => Ok(rnic),
        }
    }

    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let args = &self.member;
        let config = MemberConfig {
            give_up: Some(self.give_up.0).filter(|most| !most.is_zero()),
            ..args.config(stop, self.others())?
        };
        let config = called(config, self.guard.slow.fallback);
        let Some(file) = &self.file else {
            return self.send_messages(config, output, stop);
        };
        check_stdin(file)?;
        let config = configure(config, self.guard.slow.fallback, None);
        let (mut file, header) = source(file)?;
        let mut rnic = self.open()?;
        let mut outgoing = Outgoing::new(&mut *file, header, config.message_size as usize);
        let report = match self.send(config.clone(), &mut *rnic, &mut outgoing, output) {
            Err(Stopped::Refused(refused)) => refused.send(
                (args, &self.guard),
                config,
                rnic,
                (&mut outgoing, None),
                (output, stop),
            )?,
            sent => sent.map_err(Stopped::failure)?,
        };
        report.end(self.allow_missing, output)
    }

    fn send(
        &self,
        config: MemberConfig,
        rnic: &mut dyn Rnic,
        outgoing: &mut Outgoing<'_>,
        output: Output,
    ) -> Result<TransferReport, Stopped> {
        let args = &self.member;
        let guard = self.guard.slow.safeguard(&config);
        let source = castnet_member::source(config, rnic).map_err(failure::member)?;
        let (mut source, _ready) = args.join_or(&|error| self.guard.slow.fallback.instead(error), source)?;
        let guard = guard.filter(|_| leads(&args.name, &source));
        let watched = Watched::begin(&args.name, &source);
        let header = outgoing.header.clone();
        let bar = output
            .byte_bar(header.length)
            .with_message(format!("{} sends", args.name));
        let mut is_remarked = false;
        outgoing.begun = Instant::now();
        let sent = source.send_guarded(&header, outgoing, guard, &mut |bytes, silent| {
            bar.set_position(bytes);
            remark_silence(&mut is_remarked, silent);
        });
        bar.finish_and_clear();
        let (sent, ways, receivers) = match sent {
            Ok(sent) => {
                let ways = watched.sent(&mut source, sent.summary.bytes);
                let receivers = Receivers::leave_and_ask(source, sent.summary.bytes);
                (sent, ways.map_err(failure::member)?, receivers)
            }
            Err(unsent) if guard.is_some() && unsent.is_slow() => {
                return Err(self.divert(source, unsent, outgoing));
            }
            Err(unsent) => {
                leave(source);
                return Err(failure::member(unsent.error).into());
            }
        };
        let report = TransferReport::of_stream(args, "source", sent, None, rnic);
        Ok(report.by(ways).to(receivers))
    }

    /// Leaves a group that is slow, with all its receivers.
    fn divert(
        &self,
        mut source: Member<'_, Source>,
        unsent: Box<Unsent>,
        outgoing: &mut Outgoing<'_>,
    ) -> Stopped {
        let receivers = known_receivers(&mut source);
        match lead_away(&self.member, source, receivers, &unsent.error) {
            Some(refused) => {
                outgoing.take_back(unsent);
                Stopped::from(refused)
            }
            None => Stopped::Failure(failure::member(unsent.error)),
        }
    }
}

/// Whether the source can lead its receivers from host to host, or else a remark.
pub(super) fn leads(host: &str, source: &Member<'_, Source>) -> bool {
    if !source.leads() {
        remark(&format!(
            "{host}: stays in the group, however slow that is: a receiver has --fallback off"
        ));
    }
    source.leads()
}

/// What has become of the receivers so far, before the source leaves a group that is slow.
pub(super) fn known_receivers(source: &mut Member<'_, Source>) -> Vec<ReceiverState> {
    match source.receivers() {
        Ok(receivers) => receivers.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "who has been put out so far is not known");
            Vec::new()
        }
    }
}

/// Leaves a group with all its other members. `receivers`: what became of them so far, where this host knows. `None`: they cannot be led from
/// host to host.
pub(super) fn lead_away<T>(
    args: &MemberArgs,
    source: Member<'_, T>,
    mut receivers: Vec<ReceiverState>,
    error: &MemberError,
) -> Option<Refused> {
    let why = reason_line(&error.to_string());
    match source.divert(&why) {
        Ok(Some((hosts, put_out))) if hosts.names.len() > 1 => {
            receivers.retain(|receiver| put_out.iter().all(|out| out.host != receiver.host));
            receivers.extend(put_out);
            Some(Refused::diverted(args.group_name(), why, hosts).knowing(receivers))
        }
        Ok(left) => {
            for out in left.map_or_else(Vec::new, |(_, put_out)| put_out) {
                if let Fate::Gone { why } = out.fate {
                    remark(&format!("{} was put out: {why}", out.host));
                }
            }
            None
        }
        Err(error) => {
            tracing::warn!(%error, "the other members could not be led from host to host");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::OwnedFd;

    use super::*;

    /// Its reader could do nothing else until the bytes came.
    #[test]
    fn a_pipe_without_bytes_returns_to_its_reader() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let mut source = BufReader::new(Pipe(File::from(OwnedFd::from(reader))));
        for _ in 0..2 {
            let late = source.fill_buf().expect_err("there are no bytes");
            assert_eq!(late.kind(), io::ErrorKind::Interrupted);
        }
        writer.write_all(b"12345").expect("written");
        drop(writer);
        let mut all = Vec::new();
        source.read_to_end(&mut all).expect("read");
        assert_eq!(all, b"12345");
    }

    /// A member whose turn had come waited in open(2), and the others for it.
    #[test]
    fn a_named_pipe_without_a_writer_has_bytes_that_are_late() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let (opened, returned) = std::sync::mpsc::channel();
        let reader = std::thread::spawn({
            let path = path.clone();
            move || {
                let (pipe, header) = source(&path).expect("a pipe");
                assert_eq!((header.name.as_str(), header.length), ("pipe", None));
                let mut pipe = BufReader::new(pipe);
                for _ in 0..2 {
                    let late = pipe.fill_buf().expect_err("it has no writer");
                    assert_eq!(late.kind(), io::ErrorKind::Interrupted);
                }
                opened.send(()).expect("the test waits");
                let mut all = Vec::new();
                pipe.read_to_end(&mut all).map(|_| all)
            }
        });
        let returned = returned.recv_timeout(Duration::from_secs(60));
        returned.expect("it does not wait for the writer");
        let mut writer = File::options()
            .write(true)
            .open(&path)
            .expect("there is a reader");
        writer.write_all(b"12345").expect("written");
        drop(writer);
        assert_eq!(reader.join().expect("a thread").expect("read"), b"12345");
    }

    #[test]
    fn a_file_is_known_by_its_name_and_length_and_a_folder_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.bin");
        std::fs::write(&path, b"12345").expect("written");
        let (_, header) = source(&path).expect("a file");
        assert_eq!((header.name.as_str(), header.length), ("a.bin", Some(5)));
        assert_eq!(source(folder.path()).map(|_| ()).map_err(|f| f.code()), Err(2));
        assert_eq!(source(Path::new("-")).map(|(_, h)| h.length).ok(), Some(None));
    }
}
