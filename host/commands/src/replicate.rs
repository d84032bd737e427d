//! `castnet host replicate`: a client writes blocks into the memory of several servers, and checks what they hold.

mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use castnet_console::connect::{CONTROLLER, Tls};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, remark};
use castnet_console::service::Ready;
use castnet_console::units::{Size, Span, name, positive_span};
use castnet_member::{Group, MemberConfig};
use castnet_proto::transport::Controllers;
use castnet_replicate::{
    Address, Client, DEFAULT_PORT, Pace, Pattern, ReplicateError, ServerConfig, ServerEvent, Way, Workload,
};
use castnet_rnic::Rnic;
use castnet_wire::{Limit, Nanos, Pmtu};
use clap::{Args, Subcommand, ValueEnum};

use super::device::Device;
use super::{QpArgs, Stop, failure};
use report::{Comparison, VerifyReport};
pub use report::{Latency, WriteReport};

/// Remarks of a server: clients can come and go at will.
const REMARKS: Limit = Limit::new(4096, Nanos::from_secs(1));

/// Replicated block writes: a client writes the memory of several servers, and has them prove what they hold
#[derive(Debug, Args)]
#[command(
    after_help = "Servers first; the client connects to them by TCP (port 4794) or a Unix socket. The connection is not protected, as RDMA is not: whoever
reaches a server may write its memory.

Examples:
  castnet group create blocks --source h1 --members h2,h3,h4 --pmtu 4096
  castnet host replicate serve --name h2 --size 1GiB                       at h2, and so at h3 and h4
  castnet host replicate write --name h1 --servers 10.0.0.2,10.0.0.3,10.0.0.4 --group blocks --size 8KiB --duration 10s
  castnet host replicate compare --name h1 --servers ... --group blocks    as Table I of Cepheus: one server, three connections, multicast
  castnet host replicate verify --name h1 --servers ... --count 5000       that the servers still hold what `write --count 5000` wrote"
)]
pub(super) struct ReplicateCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serves memory, or a copy of a file in memory, that a client writes
    Serve(ServeCommand),
    /// Writes blocks to all servers, and checks that they hold them
    Write(WriteCommand),
    /// Writes to one server, to all over connections of their own, and to all by multicast, and compares these ways
    Compare(CompareCommand),
    /// Checks that all servers hold what an earlier `write` with these values wrote
    Verify(VerifyCommand),
}

/// This host.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// The RNIC.
    #[command(flatten)]
    pub device: Device,
    /// Name of this host, also in the group
    #[arg(long, value_parser = name)]
    name: String,
    #[command(flatten)]
    qp: QpArgs,
    /// How long to wait for answers to ARP
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_span)]
    connect_timeout: Span,
    /// Address of the controller; of several, all with commas between them
    #[arg(long, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Controllers,
    #[command(flatten)]
    tls: Tls,
}

impl HostArgs {
    fn member(&self, group: &str) -> Outcome<MemberConfig> {
        let group = Group::Named {
            name: group.to_owned(),
            controller: self.controller.clone(),
            security: self.tls.security()?,
            wait: Duration::ZERO,
        };
        Ok(MemberConfig {
            timeout: self.qp.qp_timeout,
            retry_cnt: self.qp.retry_cnt,
            connect_timeout: self.connect_timeout.0,
            ..MemberConfig::new(&self.name, group)
        })
    }
}

#[derive(Debug, Args)]
struct ServeCommand {
    #[command(flatten)]
    host: HostArgs,
    /// Bytes of memory; for a file that is not empty, its length [default: as many as the file has]
    #[arg(long, value_name = "SIZE", required_unless_present = "file")]
    size: Option<Size>,
    /// File that the memory is read from at the start. It is saved to when a client has finished, and at the end. Made if --size is given
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Where clients connect: IP:PORT or unix:PATH [default: port 4794 of the RNIC's address]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// Writes a line into this file when clients can connect
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
}

/// The servers.
#[derive(Debug, Args)]
pub struct ServersArgs {
    /// Addresses of the servers, with commas between them: IP, IP:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',', required = true)]
    pub servers: Vec<Address>,
}

/// The blocks that are written.
#[derive(Debug, Args)]
pub struct BlocksArgs {
    /// The first bytes of each server's memory that are written [default: as many as the smallest has]
    #[arg(long, value_name = "SIZE")]
    pub span: Option<Size>,
    /// The order of the blocks
    #[arg(long, value_enum, default_value_t = PatternArg::Random)]
    pub pattern: PatternArg,
    /// What order and bytes are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The order of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PatternArg {
    /// One after the other, and again from the first one
    Sequential,
    /// Drawn uniformly
    Random,
}

/// How many writes, and how fast.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The blocks.
    #[command(flatten)]
    pub blocks: BlocksArgs,
    /// Writes under way at once, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub depth: u32,
    /// As in [`Pace`], over connections.
    #[arg(skip)]
    pub quorum: Option<usize>,
    /// Ends after so many writes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Ends after this time [default: 5s without --count]
    #[arg(long, value_name = "TIME", value_parser = positive_span)]
    pub duration: Option<Span>,
    /// Most writes per second [default: as many as possible]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Does not check what the servers hold afterwards
    #[arg(long)]
    pub no_verify: bool,
    /// Fails if no write is acknowledged for so long
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = positive_span)]
    pub give_up: Span,
    /// Path MTU of connections to single servers; a group has its own
    #[arg(long, value_name = "BYTES", default_value_t = Pmtu::B4096)]
    pub pmtu: Pmtu,
}

/// How the client reaches the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// One connection to --group, whose receivers are the servers
    Multicast,
    /// A connection to each server; the client sends each block on all of them
    Unicasts,
    /// A connection to the first server only
    One,
}

impl By {
    /// In the order of Table I.
    const ALL: [Self; 3] = [Self::One, Self::Unicasts, Self::Multicast];

    /// As in reports.
    pub fn text(self) -> &'static str {
        match self {
            Self::Multicast => "multicast",
            Self::Unicasts => "unicasts",
            Self::One => "one",
        }
    }
}

#[derive(Debug, Args)]
struct WriteCommand {
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    servers: ServersArgs,
    /// How the client reaches the servers
    #[arg(long, value_enum, default_value_t = By::Multicast)]
    by: By,
    /// The group: this host is its source, and the servers are its receivers
    #[arg(long, value_parser = name, required_if_eq("by", "multicast"), required_unless_present = "by")]
    group: Option<String>,
    /// Bytes of each write
    #[arg(long, value_name = "SIZE", default_value = "8KiB")]
    size: Size,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Debug, Args)]
struct CompareCommand {
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    servers: ServersArgs,
    /// The group: this host is its source, and the servers are its receivers
    #[arg(long, value_parser = name)]
    group: String,
    /// Bytes of each write; of several sizes, all with commas between them
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "8KiB")]
    size: Vec<Size>,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Debug, Args)]
struct VerifyCommand {
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    servers: ServersArgs,
    /// Bytes of each write
    #[arg(long, value_name = "SIZE", default_value = "8KiB")]
    size: Size,
    #[command(flatten)]
    blocks: BlocksArgs,
    /// Number of acknowledged writes, as the client reported it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Writes that were under way when the client failed: their blocks are not checked
    #[arg(long, value_name = "N", default_value_t = 0)]
    under_way: u64,
}

impl ReplicateCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        match self.verb {
            Verb::Serve(command) => command.run(output, stop),
            Verb::Write(command) => command.run(output, stop),
            Verb::Compare(command) => command.run(output, stop),
            Verb::Verify(command) => command.run(output, stop),
        }
    }
}

impl ServeCommand {
    fn run(self, output: Output, stop: &Stop) -> Outcome {
        Ready::clear(self.ready_file.as_deref())?;
        let mut rnic = self.host.device.open()?;
        let ip = rnic.attributes().ip.to_string();
        let config = ServerConfig {
            name: self.host.name.clone(),
            bytes: self.size.map(|size| size.0),
            file: self.file.clone(),
            listen: self.listen.unwrap_or(Address::Tcp(ip, DEFAULT_PORT)),
            // The client names the group.
            member: self.host.member("")?,
        };
        let (mut ready, mut failed) = (None, None);
        let (begun, mut limit) = (Instant::now(), REMARKS);
        let mut say = |text: String| {
            let now = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if limit.allows(Nanos(now)) {
                remark(&text);
            }
        };
        let served = castnet_replicate::serve(&mut *rnic, &config, stop, &mut |event| match event {
            ServerEvent::Ready { address, .. } => {
                match Ready::announce(output, &config.name, &address, self.ready_file.as_deref()) {
                    Ok(announced) => ready = Some(announced),
                    Err(error) => {
                        failed = Some(error);
                        stop.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            }
            ServerEvent::Client { name } => say(format!("{}: client {name} is here", config.name)),
            ServerEvent::Left { name, error: None } => {
                say(format!("{}: client {name} has finished", config.name));
            }
            ServerEvent::Left {
                name,
                error: Some(error),
            } => say(format!("{}: client {name}: {error}", config.name)),
        });
        drop(ready);
        served.map_err(replicate)?;
        failed.map_or(Ok(()), Err)
    }
}

impl BlocksArgs {
    fn workload(&self, size: Size, client: &Client) -> Outcome<Workload> {
        let least = client.servers().map(|server| server.bytes).min();
        Ok(Workload {
            block: u32::try_from(size.0)
                .map_err(|_| Failure::usage(format!("--size {size} is over 16 MiB")))?,
            span: self.span.map(|span| span.0).or(least).unwrap_or_default(),
            pattern: match self.pattern {
                PatternArg::Sequential => Pattern::Sequential,
                PatternArg::Random => Pattern::Random,
            },
            seed: self.seed,
        })
    }
}

impl LoadArgs {
    fn pace(&self) -> Pace {
        let nanos = |span: Span| Nanos(u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX));
        let duration = match (self.duration, self.count) {
            (None, None) => Some(Span(Duration::from_secs(5))),
            (duration, _) => duration,
        };
        Pace {
            depth: self.depth,
            quorum: self.quorum,
            count: self.count,
            duration: duration.map(nanos),
            rate: self.rate,
            give_up: nanos(self.give_up),
        }
    }

    /// One run. `turn` changes the seed, so that what an earlier run has left is no proof for this one.
    ///
    /// # Errors
    /// A server or the group failed.
    pub fn run(
        &self,
        rnic: &mut dyn Rnic,
        host: &HostArgs,
        servers: &[Address],
        (by, group): (By, Option<&str>),
        (size, turn): (Size, u64),
        stop: &Stop,
    ) -> Outcome<WriteReport> {
        let servers = match by {
            By::One => &servers[..1],
            By::Multicast | By::Unicasts => servers,
        };
        let way = match by {
            By::Multicast => Way::Multicast(Box::new(host.member(group.unwrap_or_default())?)),
            By::Unicasts | By::One => Way::Unicasts {
                pmtu: self.pmtu,
                timeout: host.qp.qp_timeout,
                retry_cnt: host.qp.retry_cnt,
                connect_timeout: host.connect_timeout.0,
            },
        };
        let mut client = Client::connect(&host.name, servers, stop).map_err(replicate)?;
        let workload = self.blocks.workload(size, &client)?;
        let workload = Workload {
            seed: workload.seed.wrapping_add(turn),
            ..workload
        };
        let before = rnic.traffic();
        let work = client.write(rnic, &way, workload, self.pace(), &mut |_| {});
        let work = work.map_err(replicate)?;
        let traffic = (before, rnic.traffic());
        let writes = work.written.writes;
        let checked = match self.no_verify {
            true => None,
            false => Some(client.verify(rnic, workload, writes, 0).map_err(replicate)?),
        };
        let servers: Vec<_> = client.servers().cloned().collect();
        Ok(WriteReport::new(
            by.text(),
            (workload, self.depth),
            work,
            &servers,
            checked,
            traffic,
        ))
    }
}

impl WriteCommand {
    fn run(self, output: Output, stop: &Stop) -> Outcome {
        let mut rnic = self.host.device.open()?;
        let way = (self.by, self.group.as_deref());
        let report = self.load.run(
            &mut *rnic,
            &self.host,
            &self.servers.servers,
            way,
            (self.size, 0),
            stop,
        )?;
        output.conclude(&report, report.verdict())
    }
}

impl CompareCommand {
    fn run(self, output: Output, stop: &Stop) -> Outcome {
        let mut rnic = self.host.device.open()?;
        let mut rows = Vec::new();
        for size in &self.size {
            for by in By::ALL {
                let way = (by, Some(self.group.as_str()));
                let turn = (*size, rows.len() as u64);
                rows.push(
                    self.load
                        .run(&mut *rnic, &self.host, &self.servers.servers, way, turn, stop)?,
                );
            }
        }
        let comparison = Comparison { rows };
        let verdict = comparison.rows.iter().try_for_each(WriteReport::verdict);
        output.conclude(&comparison, verdict)
    }
}

impl VerifyCommand {
    fn run(self, output: Output, stop: &Stop) -> Outcome {
        let mut rnic = self.host.device.open()?;
        let mut client = Client::connect(&self.host.name, &self.servers.servers, stop).map_err(replicate)?;
        let workload = self.blocks.workload(self.size, &client)?;
        let checked = client.verify(&mut *rnic, workload, self.count, self.under_way);
        let report = VerifyReport {
            block_bytes: workload.block,
            servers: checked.map_err(replicate)?,
        };
        output.conclude(&report, report.verdict())
    }
}

fn replicate(error: ReplicateError) -> Failure {
    let what = error.to_string();
    match error {
        ReplicateError::Rnic(error) => failure::rnic(error),
        ReplicateError::Member(error) => failure::member(error),
        ReplicateError::Broken {
            error,
            acknowledged,
            under_way,
        } => {
            let failure = Failure {
                what,
                ..replicate(*error)
            };
            match acknowledged {
                0 => failure,
                _ => failure.next(format!(
                    "check what the other servers hold: castnet host replicate verify --count {acknowledged} --under-way {under_way}, \
                     with the same --size, --span, --pattern and --seed"
                )),
            }
        }
        ReplicateError::OutOfRange { .. }
        | ReplicateError::TooSmall { .. }
        | ReplicateError::SameServer { .. } => Failure::usage(what),
        ReplicateError::Connect { .. } => {
            Failure::unreachable(what).next("castnet host replicate serve must run there first")
        }
        ReplicateError::Gone { .. } | ReplicateError::NoAnswer { .. } | ReplicateError::Silent { .. } => {
            Failure::unreachable(what)
        }
        ReplicateError::Server { .. } => Failure::refused(what),
        ReplicateError::Interrupted => failure::interrupted(),
        _ => Failure::failed(what),
    }
}
