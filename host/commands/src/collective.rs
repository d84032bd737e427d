//! A rank of a job. Runs a collective over a range of sizes, checks and measures it, as nccl-tests do.

mod caller;
mod failure;
mod measure;
mod numbers;
mod sizes;
mod table;
mod threads;

use std::path::PathBuf;
use std::time::Duration;

use castnet_comm::machine::Collective;
use castnet_comm::{
    CollectiveMode, CommConfig, DataType, Fallback, LossPolicy, Operation, Progress, Secret, StragglerPolicy,
    Timeouts,
};
use castnet_console::connect::{CONTROLLER, Tls};
use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::files;
use castnet_console::output::{Output, write_stdout};
use castnet_console::units::{self, Span};
use castnet_local::PathChoice;
use castnet_proto::convert::{WINDOW_MESSAGES_MAX, too_many_messages};
use castnet_proto::transport::Controllers;
use castnet_rules::DEFAULT_MESSAGE_PACKETS;
use castnet_wire::Pmtu;
use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;

use super::device::Device;
use super::help::{
    ALL_GATHER_HELP, ALL_REDUCE_HELP, BARRIER_HELP, BROADCAST_HELP, REDUCE_HELP, REDUCE_SCATTER_HELP,
    TABLE_HELP,
};
use super::{QpArgs, Stop};
pub use caller::{Caller, Callers};
use castnet_console::rate::RateArgs;
use castnet_console::units::{name, positive_span};
pub use failure::failure;
pub use measure::{Calls, Measure, Trouble, median};
pub use sizes::Sizes;
pub use table::Row;
use table::Table;
pub use threads::each_rank;

/// The rank, and where its job is found.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "This rank")]
pub struct RankArgs {
    /// Name of this host, as the controller knows it
    #[arg(id = "host", long = "name", value_name = "NAME", value_parser = name)]
    pub name: String,
    /// Name of the job, and of its group
    #[arg(long, value_parser = name)]
    pub job: String,
    /// This rank: 0 to size - 1
    #[arg(long, value_name = "N")]
    pub rank: u16,
    /// Number of ranks of the job
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub size: u16,
    /// Number of ranks in this process, from --rank on: a thread and a queue pair for each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub ranks_here: u16,
    /// Address of the controller; of several, all with commas between them
    #[arg(long, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    pub controller: Controllers,
    /// How long to wait for the controller, and for all ranks to join
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = positive_span)]
    pub wait: Span,
    /// The RNIC.
    #[command(flatten)]
    pub device: Device,
}

/// How calls are measured and how they travel.
#[derive(Clone, Debug, Args)]
pub struct HowArgs {
    /// How calls are measured.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// How data travels.
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    tls: Tls,
}

/// How calls are measured.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How it is measured (the same at all ranks)")]
pub struct MeasureArgs {
    /// Measured calls per size [default: 20; 100 for skew; for bench as many as fit in --budget]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: Option<u32>,
    /// Calls before them that are not measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub warmup: u32,
    /// Omits the extra call per size in which every element is checked
    #[arg(long)]
    pub no_verify: bool,
    /// Checks; the default
    #[arg(long, hide = true, overrides_with = "no_verify")]
    verify: bool,
    /// Time after which a collective fails
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = positive_span)]
    pub timeout: Span,
}

/// How data travels.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How they travel (the same at all ranks)")]
pub struct NetworkArgs {
    /// Algorithms between hosts: allowed if the network cannot provide the group, forbidden, or only these
    #[arg(long, value_enum, default_value_t = FallbackArg::Allowed)]
    fallback: FallbackArg,
    /// Lanes of the group, 1 to 16, which several workers of a switch can share [default: those of an existing group, 1 for
    /// a new one]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..=16))]
    lanes: Option<u8>,
    /// Payload bytes of a full packet: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = Pmtu::B1024)]
    pub pmtu: Pmtu,
    /// Packets that a rank may have in flight
    #[arg(id = "window_packets", long = "window", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=16_384))]
    window: u32,
    /// Packets of a full message, at most the window [default: 16, or the window if it is smaller]
    #[arg(long, value_name = "N")]
    message_packets: Option<u32>,
    #[command(flatten)]
    rate: RateArgs,
    /// Adds in rank order, so that results are bit-identical for any order of arrival
    #[arg(long)]
    reproducible: bool,
    /// Integer sums saturate instead of wrapping
    #[arg(long)]
    pub saturate: bool,
    /// How switches carry the connections: translated (a rank's packet is acknowledged when its receivers have the result), augmented
    /// (each switch acknowledges and repeats what it has stored) or terminated (each switch works with whole messages) [default: as an
    /// existing group does; in a new one, translated or, where switches have no memory for that, augmented]
    #[arg(long, value_name = "MODE", value_parser = units::mode)]
    mode: Option<CollectiveMode>,
    /// Which side repairs losses: repair (the switch) or reflect (the hosts)
    #[arg(id = "loss_policy", long = "loss", value_name = "POLICY", default_value_t = LossPolicy::Repair)]
    loss: LossPolicy,
    /// How the ranks that wait for a late one are kept alive: keep-alive, rnr or none
    #[arg(id = "straggler_policy", long = "straggler", value_name = "POLICY", default_value_t = StragglerPolicy::KeepAlive)]
    straggler: StragglerPolicy,
    /// A file with the secret of the job, which keeps ranks of others out; at most 256 bytes [default: CASTNET_JOB_SECRET]
    #[arg(id = "secret", long = "secret-file", value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    qp: QpArgs,
    /// How long to poll before sleeping; a long time keeps a core busy and gives the lowest latency [default: a short time
    /// while no other thread needs the core]
    #[arg(long, value_name = "TIME")]
    spin: Option<Span>,
    /// The RNIC and the collectives have a thread of their own, as in programs that compute meanwhile
    #[arg(long)]
    pub runner: bool,
    /// How the ranks of a host work together: direct (each takes part in the network), hierarchical (over shared memory, and
    /// one of them takes part) or auto (the faster for each call)
    #[arg(long, value_name = "PATH", default_value_t = PathChoice::Direct)]
    path: PathChoice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FallbackArg {
    Allowed,
    Forbidden,
    Only,
}

/// Elements, their type and number.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What is computed (the same at all ranks)")]
pub(crate) struct DataArgs {
    /// Type of an element: f32, f16, bf16, f64, i8 to i64, u8 to u64
    #[arg(long = "type", value_name = "TYPE", default_value_t = DataType::F32)]
    data_type: DataType,
    /// Sizes in bytes: one, several (4K,1M) or a range (4K..4M). As in nccl-tests, the size of all ranks' blocks together for
    /// reducescatter and allgather
    #[arg(long, value_name = "SIZES", default_value = "4K..4M")]
    bytes: Sizes,
    /// Factor between the sizes of a range
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// The result overwrites the contribution
    #[arg(long)]
    in_place: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What is computed (the same at all ranks)")]
pub(super) struct RootArgs {
    /// The rank that gets the result of a reduce, or whose data a broadcast sends
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u16,
}

/// The collectives.
#[derive(Debug, Subcommand)]
pub(super) enum CollectiveCommand {
    /// Collective: all ranks receive the reduction of all ranks' data; checked and measured
    #[command(name = "allreduce", after_help = ALL_REDUCE_HELP, after_long_help = [ALL_REDUCE_HELP, TABLE_HELP].concat())]
    AllReduce(RankCommand<ReducingArgs>),
    /// Collective: one rank (--root) receives the reduction of all ranks' data; checked and measured
    #[command(after_help = REDUCE_HELP, after_long_help = [REDUCE_HELP, TABLE_HELP].concat())]
    Reduce(RankCommand<ReduceArgs>),
    /// Collective: all ranks receive the data of one rank (--root); checked and measured
    #[command(after_help = BROADCAST_HELP, after_long_help = [BROADCAST_HELP, TABLE_HELP].concat())]
    Broadcast(RankCommand<BroadcastArgs>),
    /// Collective: no rank continues before all have called it; measured
    #[command(after_help = BARRIER_HELP, after_long_help = [BARRIER_HELP, TABLE_HELP].concat())]
    Barrier(RankCommand<()>),
    /// Collective: each rank receives its block of the reduction of all ranks' data; checked and measured
    #[command(name = "reducescatter", after_help = REDUCE_SCATTER_HELP, after_long_help = [REDUCE_SCATTER_HELP, TABLE_HELP].concat())]
    ReduceScatter(RankCommand<ReducingArgs>),
    /// Collective: all ranks receive all ranks' blocks; checked and measured
    #[command(name = "allgather", after_help = ALL_GATHER_HELP, after_long_help = [ALL_GATHER_HELP, TABLE_HELP].concat())]
    AllGather(RankCommand<DataArgs>),
}

/// A collective of one rank. `W` has the flags of what is computed.
#[derive(Debug, Args)]
pub(crate) struct RankCommand<W: Args> {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    what: W,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What is computed (the same at all ranks)")]
pub(super) struct ReducingArgs {
    #[command(flatten)]
    data: DataArgs,
    /// The operation: sum, min, max, prod; for integers also bitand, bitor, bitxor, and, or, xor
    #[arg(long, value_name = "OP", default_value_t = Operation::Sum)]
    op: Operation,
}

#[derive(Debug, Args)]
pub(super) struct ReduceArgs {
    #[command(flatten)]
    reducing: ReducingArgs,
    #[command(flatten)]
    root: RootArgs,
}

#[derive(Debug, Args)]
pub(super) struct BroadcastArgs {
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    root: RootArgs,
}

impl CollectiveCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        match self {
            Self::AllReduce(command) => command.run(output, stop, |what| what.call(Collective::AllReduce)),
            Self::Reduce(command) => command.run(output, stop, |what| {
                let root = what.root.root;
                what.reducing.call(Collective::Reduce { root })
            }),
            Self::Broadcast(command) => command.run(output, stop, |what| {
                let root = what.root.root;
                Call::unreduced(Collective::Broadcast { root }, Some(what.data))
            }),
            Self::Barrier(command) => {
                command.run(output, stop, |()| Call::unreduced(Collective::Barrier, None))
            }
            Self::ReduceScatter(command) => {
                command.run(output, stop, |what| what.call(Collective::ReduceScatter))
            }
            Self::AllGather(command) => command.run(output, stop, |data| {
                Call::unreduced(Collective::AllGather, Some(data))
            }),
        }
    }
}

impl<W: Args> RankCommand<W> {
    fn run(self, output: Output, stop: &Stop, call: impl FnOnce(W) -> Call) -> Outcome {
        call(self.what).run(&self.rank, &self.how, output, stop)
    }
}

impl ReducingArgs {
    fn call(self, collective: Collective) -> Call {
        Call {
            collective,
            operation: self.op,
            data: Some(self.data),
        }
    }
}

/// A collective to call.
#[derive(Debug)]
pub struct Call {
    collective: Collective,
    operation: Operation,
    data: Option<DataArgs>,
}

impl Call {
    /// A call that adds nothing up.
    pub(crate) fn unreduced(collective: Collective, data: Option<DataArgs>) -> Self {
        Self {
            collective,
            operation: Operation::Sum,
            data,
        }
    }

    fn data_type(&self) -> DataType {
        self.data.as_ref().map_or(DataType::U8, |d| d.data_type)
    }

    /// A call without data, to check the flags of a rank with.
    pub fn barrier() -> Self {
        Self::unreduced(Collective::Barrier, None)
    }

    /// Checks rank, root, operation and window against each other.
    ///
    /// # Errors
    /// Names the flag, and what to write instead.
    pub fn check(&self, rank: &RankArgs, network: &NetworkArgs) -> Outcome {
        let (size, data_type) = (rank.size, self.data_type());
        let last = size.saturating_sub(1);
        if u32::from(rank.rank) + u32::from(rank.ranks_here) > u32::from(size) && rank.rank < size {
            return Err(Failure::usage(format!(
                "--ranks-here {}: there are no {} ranks from {} on among {size}",
                rank.ranks_here, rank.ranks_here, rank.rank
            ))
            .next(format!("--ranks-here {} or less", size - rank.rank)));
        }
        if rank.rank >= size {
            return Err(
                Failure::usage(format!("there is no rank {} among {size}", rank.rank))
                    .next(format!("ranks are counted from 0: --rank 0 to --rank {last}")),
            );
        }
        if let Collective::Reduce { root } | Collective::Broadcast { root } = self.collective
            && root >= size
        {
            return Err(
                Failure::usage(format!("there is no rank {root} among {size} to be the root"))
                    .next(format!("--root 0 to --root {last}")),
            );
        }
        if !self.operation.supports(data_type) {
            let fitting = DataType::ALL.iter().filter(|t| self.operation.supports(**t));
            let fitting: Vec<_> = fitting.map(|t| t.name()).collect();
            return Err(
                Failure::usage(format!("{} is not for {data_type}", self.operation)).next(format!(
                    "--type {}, or another --op: sum, min, max, prod",
                    fitting.join("|")
                )),
            );
        }
        let (window, message) = (network.window, network.message_packets.unwrap_or(1));
        if message == 0 || message > window {
            return Err(Failure::usage(format!(
                "--message-packets {message} does not fit --window {window}"
            ))
            .next(format!("a message has 1 to {window} packets")));
        }
        let message = network.message_packets.unwrap_or(DEFAULT_MESSAGE_PACKETS.into());
        if too_many_messages(window, message) {
            let what = format!(
                "--window {window} in messages of {message} packets is {} messages: a rank can have {WINDOW_MESSAGES_MAX} in flight",
                window.div_ceil(message)
            );
            let least = window.div_ceil(WINDOW_MESSAGES_MAX);
            return Err(Failure::usage(what).next(format!("--message-packets {least} or more")));
        }
        Ok(())
    }

    fn run(&self, rank: &RankArgs, how: &HowArgs, output: Output, stop: &Stop) -> Outcome {
        self.check(rank, &how.network)?;
        each_rank(rank, stop, |rank| self.run_rank(rank, how, output, stop))
    }

    fn run_rank(&self, rank: &RankArgs, how: &HowArgs, output: Output, stop: &Stop) -> Outcome {
        let config = rank.config(how, stop)?;
        let callers = Callers::open(&rank.device, &how.network)?;
        let mut caller = callers.connect(rank, config, output)?;
        let path = caller.path().map_err(|error| failure(error, &rank.job))?;

        let sizes = match &self.data {
            Some(data) => data.bytes.list(data.factor),
            None => vec![0],
        };
        let args = &how.measure;
        let is_first = rank.rank == 0;
        let calls_per_size = u64::from(args.warmup) + u64::from(args.iters());
        let bar = match is_first {
            true => output.bar(
                Some(calls_per_size * sizes.len() as u64),
                "{msg} {bar:30} {pos}/{len} calls, {elapsed}, {eta} to go",
            ),
            false => ProgressBar::hidden(),
        };
        let mut table = Table::new(self.collective, args);
        // The other ranks need this one to the end, also if its output is closed or full.
        let mut shown = Ok(());
        for bytes in sizes {
            let measure = Measure {
                collective: self.collective,
                operation: self.operation,
                data_type: self.data_type(),
                bytes,
                calls: Calls::Exactly(args.iters()),
                warmup: args.warmup,
                saturate: how.network.saturate,
                verify: !args.no_verify && self.collective != Collective::Barrier,
                in_place: self.data.as_ref().is_some_and(|d| d.in_place),
            };
            bar.set_message(format!("{} {}", self.collective.name(), units::bytes(bytes)));
            let row = measure
                .run(&mut caller, &mut || bar.inc(1))
                .map_err(|error| error.failure(&rank.job))?;
            let text = table.take(&row, &path);
            if is_first && shown.is_ok() {
                shown = bar.suspend(|| match output.is_json() {
                    true => output.show_next(&row),
                    false => write_stdout(&text),
                });
            }
        }
        bar.finish_and_clear();
        let calls = caller.counters();
        caller.close().map_err(|error| failure(error, &rank.job))?;
        if is_first && !output.is_json() && shown.is_ok() {
            shown = write_stdout(&table.end(calls));
        }
        wrong_elements(table.wrong).and(shown)
    }
}

/// Fails if elements are wrong.
///
/// # Errors
/// Says how many.
pub fn wrong_elements(wrong: u64) -> Outcome {
    if wrong == 0 {
        return Ok(());
    }
    Err(Failure::failed(format!("{wrong} elements are wrong"))
        .next("this is a fault: castnet capture --group JOB -o frames.pcapng at each switch, and report it"))
}

impl MeasureArgs {
    fn iters(&self) -> u32 {
        self.iters.unwrap_or(20)
    }
}

impl RankArgs {
    /// The communicator that the flags describe.
    ///
    /// # Errors
    /// A file with a secret or a key cannot be read, or has none.
    pub fn config(&self, how: &HowArgs, stop: &Stop) -> Outcome<CommConfig> {
        let network = &how.network;
        let mut config = CommConfig::new(
            self.controller.clone(),
            &self.job,
            self.rank,
            self.size,
            &self.name,
        );
        config.security = how.tls.security()?;
        if let Some(path) = &how.network.secret_file {
            config.secret = Secret(files::read(path).map_err(|e| exit::cannot_read(path, &e))?);
            // Such a job is open to everybody.
            if config.secret.0.is_empty() {
                let what = format!(
                    "--secret-file {}: it is empty, which is no secret",
                    path.display()
                );
                return Err(Failure::usage(what).next("write a secret into it, the same for all ranks"));
            }
        }
        config.pmtu = network.pmtu;
        config.lanes = network.lanes.unwrap_or(0);
        config.window_packets = network.window;
        config.message_packets = network
            .message_packets
            .unwrap_or(config.message_packets.min(network.window));
        config.rate_limit = network.rate.limit();
        config.reproducible = network.reproducible;
        config.saturate = network.saturate;
        config.mode = network.mode;
        config.loss = network.loss;
        config.straggler = network.straggler;
        config.qp_timeout = network.qp.qp_timeout;
        config.retry_cnt = network.qp.retry_cnt;
        config.timeouts = Timeouts {
            join: self.wait.0,
            collective: how.measure.timeout.0,
            ..Timeouts::default()
        };
        config.progress = match network.spin {
            None => Progress::Adaptive,
            Some(Span(Duration::ZERO)) => Progress::Sleep,
            Some(Span(spin)) => Progress::SpinThenSleep(spin),
        };
        config.fallback = match network.fallback {
            FallbackArg::Allowed => Fallback::Allowed,
            FallbackArg::Forbidden => Fallback::Forbidden,
            FallbackArg::Only => Fallback::Only,
        };
        config.interrupt = Some(stop.clone());
        Ok(config)
    }
}
