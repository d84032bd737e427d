//! `castnet host`: members of multicast groups and ranks of jobs, on the software RNIC or one of the machine. What `castnet-lab`
//! measures with is public: [`collective`], [`replicate`], [`run_until_stopped`].
#![forbid(unsafe_code)]

pub mod collective;
mod device;
pub mod failure;
mod fallback;
mod forget;
mod help;
mod interface;
mod messages;
mod ping;
mod receive;
mod receivers;
pub mod replicate;
mod report;
mod selftest;
mod send;
mod sink;
mod turns;
mod waiting;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use castnet_console::connect::{CONTROLLER, Tls};
use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::files;
use castnet_console::output::{Output, remark};
use castnet_console::program;
use castnet_console::service::{Ready, Signals};
use castnet_console::units::{Size, Span, name, number, positive_span, qpn, virtual_qpn};
use castnet_member::{
    Group, GroupAddress, Member, MemberConfig, MemberError, Others, Prepared, Registration,
};
use castnet_proto::transport::Controllers;
use castnet_rnic::Repeat;
use castnet_wire::mrp::DEFAULT_PORT;
use castnet_wire::{Pmtu, Psn, Qpn};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use tokio::runtime::Handle;

use collective::CollectiveCommand;
pub use device::Device;
use device::Kind;
use fallback::{Instead, Refused};
use forget::ForgetCommand;
use ping::PingCommand;
use receive::ReceiveCommand;
use replicate::ReplicateCommand;
use report::{connection_line, is_connection_line};
use selftest::SelftestCommand;
use send::SendCommand;
use turns::TurnsCommand;
use waiting::{Joiner, Waiting};

/// Set when a signal asks the command to stop.
pub type Stop = Arc<AtomicBool>;
/// Sends or receives a file in a group, or runs collectives, with the software RNIC or one of this machine
#[derive(Debug, Args)]
#[command(
    after_help = "Each member of a group runs one of these commands, or a program of its own that uses its RNIC. With a controller, a host joins the group by name. Without one (--mcst-id, for switches with rule files) the flags describe the group.

Examples:
  castnet host receive --interface veth0 --ip 10.0.0.2/24 --name h2 --group g --out copy.bin
  castnet host send --interface veth0 --ip 10.0.0.1/24 --name h1 --group g --file data.bin
  castnet host send ... --op write --message-size 1MiB          by RDMA WRITE; receivers need the same two flags
  castnet host receive --interface veth0 --ip 10.0.0.2/24 --name b --out copy.bin \\
      --mcst-id 10.255.0.1 --qpn 0x12 --start-psn 0 --pmtu 1024   without a controller
  castnet host send --rnic verbs --name h1 --group g --file data.bin      on a real RNIC, or the kernel's SoftRoCE
  castnet host selftest --rnic verbs                            does my RNIC do what Castnet needs?
  castnet host ping --interface veth0 --ip 10.0.0.1/24 10.0.0.2 which addresses answer ARP?
  castnet host allreduce --interface veth0 --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 4    as rank 0 of four"
)]
pub struct HostCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Sends a file to all receivers of a group
    #[command(
        after_help = "The report names each receiver: all (it has acknowledged everything; with reported it has also reported that it has everything), late (it joined with --late), part, nothing, or gone (the group went on without it). If one has not everything, or that is not known, the exit code is not 0.

Examples:
  castnet host send --interface veth0 --ip 10.0.0.1/24 --name h1 --group g --file data.bin
  tar c folder | castnet host send --interface veth0 --ip 10.0.0.1/24 --name h1 --group g --file -
  castnet host send --interface veth0 --ip 10.0.0.1/24 --name h1 --file data.bin \\
      --mcst-id 10.0.0.200 --register-for 10.0.0.2,10.0.0.3       without a controller, where switches serve MRP"
    )]
    Send(SendCommand),
    /// Receives a file from the source of a group
    #[command(
        after_help = "If the source is gone before the end, this command joins the group again, and receives from the beginning when the source is back. The file appears once it is whole. stdout, a pipe or a device cannot be begun again: after the first bytes that is an error.

Examples:
  castnet host receive --interface veth0 --ip 10.0.0.2/24 --name h2 --group g --out folder/
  castnet host receive --interface veth0 --ip 10.0.0.2/24 --name h2 --group g --out - | tar x
  castnet host receive --interface veth0 --ip 10.0.0.2/24 --name h2 --out copy.bin \\
      --mcst-id 10.0.0.200 --leader 10.0.0.1                      without a controller, where switches serve MRP"
    )]
    Receive(ReceiveCommand),
    /// Sends files of the members of a group one after the other, each to all others, over the same queue pairs
    #[command(
        after_help = "Each member runs this command with the same --order. The group must let each member send: castnet group create --any-source, or any_source = true in the rule files of its switches. With --any-source=synchronized the hosts synchronize their PSNs when the source changes, and the switches bridge none.

Examples:
  castnet group create g --source a --members b,c --any-source
  castnet host turns --interface veth0 --ip 10.0.0.1/24 --name a --group g --order a,b,a --file a.bin --out folder
  castnet host turns --interface veth0 --ip 10.0.0.2/24 --name b --group g --order a,b,a --file b.bin --out folder
  castnet host turns --interface veth0 --ip 10.0.0.3/24 --name c --group g --order a,b,a --out folder"
    )]
    Turns(TurnsCommand),
    #[command(flatten)]
    Collective(CollectiveCommand),
    Replicate(ReplicateCommand),
    /// Checks that an RNIC does what Castnet needs
    Selftest(SelftestCommand),
    /// Checks by ARP which addresses can be reached from this interface: hosts, and McstIDs of installed groups
    Ping(PingCommand),
    /// Has the controller forget a host that has gone for good
    #[command(after_help = "Examples:
  castnet host forget h7
  castnet topology                              the hosts that the controller knows")]
    Forget(ForgetCommand),
}

#[derive(Debug, Args)]
struct MemberArgs {
    #[command(flatten)]
    device: Device,
    /// Name of this host in the group
    #[arg(long, value_parser = name)]
    name: String,
    /// Operation, SEND or WRITE with immediate; the same at all members
    #[arg(long, value_enum, default_value_t = Op::Send)]
    op: Op,
    /// Bytes of a full message; the same at all members
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    message_size: Size,
    /// Messages in a receiver's ring; with WRITE the same at all members
    #[arg(long, value_name = "N", default_value_t = 32)]
    slots: u32,
    #[command(flatten)]
    qp: QpArgs,
    /// Retries of the QP after RNR NAKs; 7: no limit
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..8))]
    rnr_retry: u8,
    /// How long to wait for an answer to ARP for the group
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_span)]
    connect_timeout: Span,
    /// Before joining, writes this end of the connection (address, QPN, memory) into this file, as JSON for this user; replaces such a file, no other
    #[arg(long, value_name = "PATH")]
    qp_file: Option<PathBuf>,
    /// Writes a line into this file when the QP is connected
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    join: JoinArgs,
    #[command(flatten)]
    fixed: FixedArgs,
    #[command(flatten)]
    register: RegisterArgs,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Clone, Debug, Args)]
struct QpArgs {
    /// Time-out exponent of the QP: 4.096 us * 2^N; 14 is 67 ms. A job that its ranks create takes 8 or more
    #[arg(id = "ack_timeout_us", long = "qp-timeout", value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..32))]
    qp_timeout: u8,
    /// Retries of the QP without progress; 7: no limit with the software RNIC and SoftRoCE
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..8))]
    retry_cnt: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Op {
    Send,
    Write,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "With a controller")]
struct JoinArgs {
    /// Name of the group
    #[arg(long, required_unless_present = "mcst_id", value_parser = name)]
    group: Option<String>,
    /// Address of the controller; of several, all with commas between them
    #[arg(long, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Controllers,
    /// How long to wait for the controller to start, and for the group to be created
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: Span,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Without a controller (the values of the switch's rule file)")]
struct FixedArgs {
    /// Address of the group
    #[arg(long, value_name = "IP", conflicts_with = "group")]
    mcst_id: Option<Ipv4Addr>,
    /// QPN of this member; with --rnic verbs the device chooses it, see --qp-file
    #[arg(id = "own_qpn", long = "qpn", value_name = "QPN", value_parser = qpn)]
    qpn: Option<Qpn>,
    /// QPN that this member sends to: virtual_qpn of its endpoint [default: 1]
    #[arg(long, value_name = "QPN", requires = "mcst_id", value_parser = virtual_qpn)]
    virtual_qpn: Option<Qpn>,
    /// Start PSN of the source
    #[arg(long, value_name = "PSN", requires = "mcst_id", value_parser = clap::value_parser!(u32).range(0..1 << 24))]
    start_psn: Option<u32>,
    /// Path MTU of the group [default: 1024]
    #[arg(long, value_name = "BYTES", requires = "mcst_id")]
    pmtu: Option<Pmtu>,
    /// With --op write: base of the source's virtual addresses
    #[arg(long, value_name = "VA", requires = "mcst_id", value_parser = number)]
    va_base: Option<u64>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Without a controller and rule files, where switches serve MRP (docs/mrp.md)")]
struct RegisterArgs {
    /// UDP port of registrations [default: 4793]
    #[arg(long, value_name = "N", requires = "mcst_id", value_parser = clap::value_parser!(u16).range(1..))]
    mrp_udp_port: Option<u16>,
    /// How long the members may take to join, and then to confirm
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = positive_span)]
    join_within: Span,
}

impl HostCommand {
    /// Runs the command until it ends or a signal stops it.
    ///
    /// # Errors
    /// What the command line says wrong, and what failed.
    pub fn run(self, output: Output) -> Outcome {
        run_until_stopped(|stop| match self.verb {
            Verb::Send(command) => command.run(output, stop),
            Verb::Receive(command) => command.run(output, stop),
            Verb::Turns(command) => command.run(output, stop),
            Verb::Collective(command) => command.run(output, stop),
            Verb::Replicate(command) => command.run(output, stop),
            Verb::Selftest(command) => command.run(output),
            Verb::Ping(command) => command.run(output, stop),
            Verb::Forget(command) => Handle::current().block_on(command.run(output)),
        })
    }
}

/// Runs `work` on a thread of its own, which owns the RNIC. A signal sets what `work` gets.
///
/// # Errors
/// Those of `work`.
pub fn run_until_stopped(work: impl FnOnce(&Stop) -> Outcome + Send) -> Outcome {
    program::service(async {
        let stop = Stop::default();
        let signals = Signals::catch()?;
        let asked = stop.clone();
        tokio::spawn(async move {
            signals.first().await;
            asked.store(true, Ordering::Relaxed);
        });
        tokio::task::block_in_place(|| work(&stop))
    })
}

impl MemberArgs {
    /// `others`: of a group that is registered with MRP.
    fn config(&self, stop: &Stop, others: Option<Others>) -> Outcome<MemberConfig> {
        Ready::clear(self.ready_file.as_deref())?;
        self.check_fixed(others.is_some())?;
        let message_size = u32::try_from(self.message_size.0)
            .map_err(|_| Failure::usage(format!("--message-size {} is over 16 MiB", self.message_size)))?;
        let fixed = &self.fixed;
        let address = |mcst_id| GroupAddress {
            mcst_ids: vec![mcst_id],
            virtual_qpn: fixed.virtual_qpn.unwrap_or(Qpn::VIRTUAL),
            start_psn: Psn::new(fixed.start_psn.unwrap_or_default()),
            pmtu: fixed.pmtu.unwrap_or(Pmtu::B1024),
            va_base: fixed.va_base.unwrap_or_default(),
            rate_limit: None,
            repeat: Repeat::All,
            synchronizes: false,
        };
        let group = match (&self.join.group, fixed.mcst_id) {
            (_, Some(mcst_id)) => match others {
                Some(others) => Group::InBand {
                    qpn: fixed.qpn,
                    address: address(mcst_id),
                    registration: Registration {
                        udp_port: self.register.mrp_udp_port.unwrap_or(DEFAULT_PORT),
                        patience: self.register.join_within.0,
                        ..Registration::new(others)
                    },
                },
                None => Group::Fixed {
                    qpn: fixed.qpn,
                    address: address(mcst_id),
                },
            },
            (Some(name), None) => Group::Named {
                name: name.clone(),
                controller: self.join.controller.clone(),
                security: self.tls.security()?,
                wait: self.join.wait.0,
            },
            (None, None) => return Err(Failure::usage("which group: --group or --mcst-id?")),
        };
        Ok(MemberConfig {
            by_write: self.op == Op::Write,
            message_size,
            slots: self.slots,
            timeout: self.qp.qp_timeout,
            retry_cnt: self.qp.retry_cnt,
            rnr_retry: self.rnr_retry,
            connect_timeout: self.connect_timeout.0,
            interrupt: Some(stop.clone()),
            ..MemberConfig::new(&self.name, group)
        })
    }

    /// A software RNIC with --mcst-id needs --qpn for a rule file. A device chooses its QPN itself.
    fn check_fixed(&self, in_band: bool) -> Outcome {
        let mcst_id = self.fixed.mcst_id.filter(|_| !in_band);
        let FixedArgs {
            start_psn,
            va_base,
            virtual_qpn,
            ..
        } = &self.fixed;
        if in_band && (start_psn.is_some() || va_base.is_some() || virtual_qpn.is_some()) {
            return Err(Failure::usage(
                "--start-psn, --va-base and --virtual-qpn are of rule files: with MRP they are 0, 0 and 1",
            ));
        }
        if mcst_id.is_some() && self.fixed.start_psn.is_none() {
            return Err(Failure::usage("--mcst-id needs --start-psn").next(
                "the PSN of the switch's rule file; or --register-for and --leader, where switches serve MRP",
            ));
        }
        match (self.device.rnic, mcst_id, self.fixed.qpn) {
            (Kind::Soft, Some(_), None) => {
                Err(Failure::usage("--mcst-id needs --qpn with the software RNIC")
                    .next("the QPN that the switch's rule file has for this host"))
            }
            (Kind::Verbs, _, Some(qpn)) => Err(Failure::usage(format!(
                "an RDMA device chooses its QP numbers itself: --qpn {qpn} is not possible"
            ))
            .next("omit --qpn; --qp-file has the number, for the switch's rule file")),
            _ => Ok(()),
        }
    }

    fn group_name(&self) -> String {
        self.join
            .group
            .clone()
            .or_else(|| self.fixed.mcst_id.map(|ip| ip.to_string()))
            .unwrap_or_default()
    }

    /// [`Stopped::Refused`] if the switches cannot install the group, and `instead` allows to do without them.
    fn join_or<'r, T>(
        &self,
        instead: Instead<'_>,
        prepared: Prepared<'r, T>,
    ) -> Result<(Member<'r, T>, Ready), Stopped> {
        let connection = prepared.connection();
        if let Some(path) = &self.qp_file {
            let line = connection_line(&self.name, self.device.rnic, prepared.attributes(), connection);
            let written = files::replace_secret(path, &line, is_connection_line);
            written.map_err(|error| exit::cannot_write_flag("--qp-file", path, &error))?;
        }
        // A group that is registered with MRP has no rule file.
        if self.fixed.mcst_id.is_some() && self.fixed.start_psn.is_some() {
            if self.device.rnic == Kind::Verbs {
                remark(&format!(
                    "{}: the rule file must have: qpn = {:#x}",
                    self.name, connection.qpn
                ));
            }
            if let Some(memory) = &connection.memory {
                remark(&format!(
                    "{}: the rule file must have: memory = {{ va = {:#x}, rkey = {:#x}, length = {:#x} }}",
                    self.name, memory.va, memory.rkey, memory.length
                ));
            }
        }
        let waiting = match self.join.group.as_deref() {
            Some(group) => {
                let joiner = Joiner {
                    host: &self.name,
                    group: Some(group),
                    controllers: &self.join.controller,
                    security: &self.tls.security()?,
                };
                Some(Waiting::begin(&joiner, ProgressBar::hidden()))
            }
            None => None,
        };
        let member = prepared.join().or_else(|error| refuse(instead, error));
        drop(waiting);
        let member = member?;
        match Ready::quiet(self.ready_file.as_deref(), &member.qpns()[0].to_string()) {
            Ok(ready) => Ok((member, ready)),
            Err(failure) => {
                // The group must not wait for this member.
                if let Err(error) = member.give_up(0, &failure.what) {
                    tracing::warn!(%error, "not left");
                }
                Err(failure.into())
            }
        }
    }
}

/// Why a member has not joined.
enum Stopped {
    Failure(Failure),
    Refused(Box<Refused>),
}

impl Stopped {
    fn failure(self) -> Failure {
        match self {
            Self::Failure(failure) => failure,
            Self::Refused(refused) => failure::member((*refused).into()),
        }
    }
}

impl From<Refused> for Stopped {
    fn from(refused: Refused) -> Self {
        Self::Refused(Box::new(refused))
    }
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

fn refuse<T>(instead: Instead<'_>, error: MemberError) -> Result<T, Stopped> {
    Err(instead(error).map_or_else(|error| failure::member(error).into(), Stopped::from))
}

/// A failure is only logged: what was transferred is complete.
fn leave<T>(member: Member<'_, T>) {
    if let Err(error) = member.leave() {
        tracing::warn!(%error, "not left");
    }
}
