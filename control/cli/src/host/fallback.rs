//! A file from host to host, where the switches cannot install its group (Cepheus, V.D): a chain or a binomial tree of unicast connections,
//! whichever suits the number of hosts and bytes.

use std::io::{Read, Write};
use std::time::Instant;

use castnet_comm::{CommConfig, CommError, Communicator, Fallback};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report, remark};
use castnet_member::{MemberError, StreamHeader, StreamSummary, Transferred};
use castnet_rnic::Rnic;
use castnet_rnic::stream::Digest;
use clap::ValueEnum;
use sha2::{Digest as _, Sha256};

use super::collective::failure;
use super::report::TransferReport;
use super::sink::Target;
use super::{MemberArgs, Stop};

/// Bytes that are sent at once. The hosts pass pieces of them on before they have all.
const CHUNK: usize = 4 << 20;
const NAME_MAX: u64 = 512;
const UNKNOWN: u64 = u64::MAX;

/// What to do if the switches cannot install the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FallbackArg {
    /// Send from host to host, over unicast connections. All members need it
    Auto,
    /// Fail
    Off,
}

/// A group that could not be installed.
#[derive(Debug)]
pub(super) struct Refused {
    group: String,
    reason: String,
    /// The source first.
    members: Vec<String>,
}

impl FallbackArg {
    /// The group, if its members are to send from host to host instead; otherwise the error.
    pub(super) fn instead(self, error: MemberError) -> Result<Refused, MemberError> {
        match error {
            MemberError::NotInstalled {
                group,
                reason,
                members,
            } if self == Self::Auto => Ok(Refused {
                group,
                reason,
                members,
            }),
            error => Err(error),
        }
    }
}

impl From<Refused> for MemberError {
    fn from(refused: Refused) -> Self {
        let Refused {
            group,
            reason,
            members,
        } = refused;
        Self::NotInstalled {
            group,
            reason,
            members,
        }
    }
}

impl Refused {
    fn connect(&self, args: &MemberArgs, rnic: Box<dyn Rnic>, stop: &Stop) -> Outcome<Communicator> {
        let Self {
            group,
            reason,
            members,
        } = self;
        remark(&format!(
            "{}: group {group} could not be installed: {reason}; it is sent from host to host",
            args.name
        ));
        let rank = members.iter().position(|host| *host == args.name);
        let rank =
            rank.ok_or_else(|| Failure::failed(format!("{} is no member of group {group}", args.name)))?;
        let job = format!("{group}.hosts");
        let config = CommConfig {
            security: args.tls.security()?,
            qp_timeout: args.qp.qp_timeout,
            retry_cnt: args.qp.retry_cnt,
            fallback: Fallback::Only,
            interrupt: Some(stop.clone()),
            ..CommConfig::new(
                args.join.controller.clone(),
                job,
                rank as u16,
                members.len() as u16,
                &args.name,
            )
        };
        Communicator::connect(config, rnic).map_err(|error| failure(error, group))
    }

    fn show(
        self,
        args: &MemberArgs,
        role: &'static str,
        transferred: Transferred,
        file: Option<std::path::PathBuf>,
        rnic: &dyn Rnic,
    ) -> TransferReport {
        TransferReport::of_stream(args, role, transferred, file, rnic).between_hosts(self.reason)
    }

    /// Sends a file to all other members. Returns when they have it.
    pub(super) fn send(
        self,
        args: &MemberArgs,
        rnic: Box<dyn Rnic>,
        (file, header): (&mut dyn Read, &StreamHeader),
        (output, stop): (Output, &Stop),
    ) -> Outcome {
        let mut hosts = self.connect(args, rnic, stop)?;
        let (start, bar) = (Instant::now(), output.byte_bar(header.length));
        let summary = send(&mut hosts, &self.group, (file, header), &mut |bytes| {
            bar.set_position(bytes)
        });
        bar.finish_and_clear();
        let summary = summary?;
        let elapsed = start.elapsed();
        let report = self.show(
            args,
            "source",
            Transferred { summary, elapsed },
            None,
            hosts.rnic(),
        );
        close(hosts);
        output.show_next(&report)
    }

    /// Receives a file.
    pub(super) fn receive(
        self,
        args: &MemberArgs,
        rnic: Box<dyn Rnic>,
        target: &Target,
        (output, stop): (Output, &Stop),
    ) -> Outcome {
        let mut hosts = self.connect(args, rnic, stop)?;
        let (start, bar) = (Instant::now(), output.byte_bar(None));
        let received = receive(&mut hosts, &self.group, target, &mut |bytes| {
            bar.set_position(bytes)
        });
        bar.finish_and_clear();
        let (summary, path) = received?;
        let elapsed = start.elapsed();
        let report = self.show(
            args,
            "receiver",
            Transferred { summary, elapsed },
            path,
            hosts.rnic(),
        );
        close(hosts);
        if target.is_stdout() {
            let mut page = Page::default();
            report.page(&mut page);
            remark(page.text().trim_end());
            return Ok(());
        }
        output.show_next(&report)
    }
}

/// What was transferred is complete.
fn close(hosts: Communicator) {
    if let Err(error) = hosts.close() {
        tracing::warn!(%error, "not closed");
    }
}

/// Header, chunks and digest. Each chunk is preceded by its length; the last one is empty.
fn send(
    hosts: &mut Communicator,
    group: &str,
    (file, header): (&mut dyn Read, &StreamHeader),
    progress: &mut dyn FnMut(u64),
) -> Outcome<StreamSummary> {
    let failed = |error: CommError| failure(error, group);
    let mut name = header.name.clone().into_bytes();
    name.truncate(NAME_MAX as usize);
    let mut head = [header.length.unwrap_or(UNKNOWN), name.len() as u64];
    hosts.broadcast(&mut head, 0).map_err(failed)?;
    if !name.is_empty() {
        hosts.broadcast(&mut name, 0).map_err(failed)?;
    }
    let (mut chunk, mut bytes, mut hasher) = (vec![0; CHUNK], 0, Sha256::new());
    loop {
        let filled = fill(file, &mut chunk)
            .map_err(|error| Failure::failed(format!("reading the source: {error}")))?;
        hosts.broadcast(&mut [filled as u64], 0).map_err(failed)?;
        if filled == 0 {
            break;
        }
        hasher.update(&chunk[..filled]);
        hosts.broadcast(&mut chunk[..filled], 0).map_err(failed)?;
        bytes += filled as u64;
        progress(bytes);
    }
    if header.length.is_some_and(|length| length != bytes) {
        return Err(Failure::failed(format!(
            "{} has changed while it was sent: {bytes} bytes were read",
            header.name
        )));
    }
    let mut digest: [u8; 32] = hasher.finalize().into();
    hosts.broadcast(&mut digest, 0).map_err(failed)?;
    // Until all have it.
    hosts.barrier().map_err(failed)?;
    Ok(StreamSummary {
        name: header.name.clone(),
        bytes,
        digest: Digest(digest),
    })
}

/// Reads until the chunk is full or the source ends.
fn fill(file: &mut dyn Read, chunk: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match file.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn receive(
    hosts: &mut Communicator,
    group: &str,
    target: &Target,
    progress: &mut dyn FnMut(u64),
) -> Outcome<(StreamSummary, Option<std::path::PathBuf>)> {
    let failed = |error: CommError| failure(error, group);
    let malformed = |what: &str| {
        Failure::failed(format!(
            "the source sent {what}: all members need the same version"
        ))
    };
    let cannot_write = |error| Failure::failed(format!("{}: {error}", target.0.display()));
    let mut head = [0_u64; 2];
    hosts.broadcast(&mut head, 0).map_err(failed)?;
    if head[1] > NAME_MAX {
        return Err(malformed("a name of over 512 bytes"));
    }
    let mut name = vec![0_u8; head[1] as usize];
    if !name.is_empty() {
        hosts.broadcast(&mut name, 0).map_err(failed)?;
    }
    let header = StreamHeader {
        name: String::from_utf8_lossy(&name).into_owned(),
        length: (head[0] != UNKNOWN).then_some(head[0]),
    };
    let mut sink = target.open(&header).map_err(cannot_write)?;
    let (mut chunk, mut bytes, mut hasher) = (vec![0; CHUNK], 0, Sha256::new());
    loop {
        let mut filled = [0_u64];
        hosts.broadcast(&mut filled, 0).map_err(failed)?;
        let filled = filled[0] as usize;
        if filled > CHUNK {
            return Err(malformed("a chunk of over 4 MiB"));
        }
        if filled == 0 {
            break;
        }
        hosts.broadcast(&mut chunk[..filled], 0).map_err(failed)?;
        hasher.update(&chunk[..filled]);
        sink.write_all(&chunk[..filled]).map_err(cannot_write)?;
        bytes += filled as u64;
        progress(bytes);
    }
    let mut sent = [0_u8; 32];
    hosts.broadcast(&mut sent, 0).map_err(failed)?;
    let digest: [u8; 32] = hasher.finalize().into();
    if digest != sent {
        return Err(Failure::failed(format!(
            "{}: the {bytes} bytes that were received differ from those sent",
            header.name
        )));
    }
    let path = sink.keep().map_err(cannot_write)?;
    hosts.barrier().map_err(failed)?;
    let name = header.name;
    let digest = Digest(digest);
    Ok((StreamSummary { name, bytes, digest }, path))
}
