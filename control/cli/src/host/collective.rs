//! `castnet host allreduce` and its five brothers: this host as a rank of a job, which runs one collective over a range of sizes,
//! checks the results and measures them, as nccl-tests and the OSU benchmarks do.

mod measure;
mod numbers;
mod sizes;

use std::time::Duration;

use castnet_comm::{
    CommConfig, CommError, Communicator, ControllerError, DataType, Fallback, LossPolicy, Operation,
    Progress, StragglerPolicy, Timeouts,
};
use castnet_proto::transport::Address;
use castnet_wire::Pmtu;
use clap::{Args, ValueEnum};

use super::device::{Device, HostDevice};
use super::member::{self, Stop};
use crate::connect::{self, CONTROLLER, Tls};
use crate::exit::{Failure, Outcome};
use crate::group::pmtu;
use crate::output::{Output, remark, write_stdout};
use crate::units::Span;
use measure::{Measure, Row};
use sizes::Sizes;

/// What all ranks do alike, and this rank's part.
#[derive(Clone, Debug, Args)]
pub(super) struct RankArgs {
    #[command(flatten)]
    device: Device,
    /// This host's name, as the controller knows it
    #[arg(long)]
    name: String,
    /// The job; the group of its ranks has this name
    #[arg(long)]
    job: String,
    /// This rank: 0 to size - 1
    #[arg(long, value_name = "N")]
    rank: u16,
    /// Ranks of the job
    #[arg(long, value_name = "N")]
    size: u16,
    /// The controller
    #[arg(long, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Address,
    /// Waits so long for all ranks to join
    #[arg(long, value_name = "TIME", default_value = "1m")]
    wait: Span,
    /// A collective fails when it has not ended within this time
    #[arg(long, value_name = "TIME", default_value = "1m")]
    timeout: Span,
    /// Calls that are measured, per size
    #[arg(long, value_name = "N", default_value_t = 20)]
    iters: u32,
    /// Calls before them
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u32,
    /// Checks every element of one more call
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    tls: Tls,
}

/// How the collectives travel; the same at all ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How they travel (the same at all ranks)")]
struct NetworkArgs {
    /// Whether algorithms between hosts may be used: where the group cannot be had in the network, never, or only they
    #[arg(long, value_enum, default_value_t = FallbackArg::Allowed)]
    fallback: FallbackArg,
    /// Path MTU
    #[arg(long, value_name = "BYTES", value_parser = pmtu, default_value = "1024")]
    pmtu: u32,
    /// Packets that a rank may have in flight
    #[arg(long, value_name = "N", default_value_t = 64)]
    window: u32,
    /// Packets of a full message
    #[arg(long, value_name = "N", default_value_t = 16)]
    message_packets: u32,
    /// Adds in rank order: bit-identical results for any order of arrival
    #[arg(long)]
    reproducible: bool,
    /// Sums of integers stop at the ends of their range
    #[arg(long)]
    saturate: bool,
    /// Who repairs losses: repair (the switch) or reflect (the hosts)
    #[arg(long, value_name = "POLICY", default_value_t = LossPolicy::Repair)]
    loss: LossPolicy,
    /// What keeps ranks alive that wait: keep-alive, rnr or none
    #[arg(long, value_name = "POLICY", default_value_t = StragglerPolicy::KeepAlive)]
    straggler: StragglerPolicy,
    /// Time-out exponent of the QP: 4.096 us * 2^N; 14 is 67 ms
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..32))]
    qp_timeout: u8,
    /// Retries of the QP without progress; 7 is for ever with the software RNIC and SoftRoCE
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(0..8))]
    retry_cnt: u8,
    /// Polls so long before it sleeps; `0s` sleeps at once, a long time keeps a core busy for the least latency
    #[arg(long, value_name = "TIME", default_value = "0s")]
    spin: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FallbackArg {
    Allowed,
    Forbidden,
    Only,
}

/// What is sent.
#[derive(Clone, Debug, Args)]
pub(super) struct DataArgs {
    /// Type of an element: f32, f16, bf16, f64, i8 to i64, u8 to u64
    #[arg(long = "type", value_name = "TYPE", default_value_t = DataType::F32)]
    data_type: DataType,
    /// Sizes: one, several (4K,1M) or a range (4K..4M). Of the whole, as nccl-tests counts: of all ranks' blocks together for
    /// reducescatter and allgather
    #[arg(long, value_name = "SIZES", default_value = "4K..4M")]
    bytes: Sizes,
    /// What each size of a range is times the one before
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// The result takes the place of the contribution
    #[arg(long)]
    in_place: bool,
}

/// How it is reduced.
#[derive(Clone, Debug, Args)]
pub(super) struct OperationArgs {
    /// The operation: sum, min, max, prod; for integers also bitand, bitor, bitxor, and, or, xor
    #[arg(long, value_name = "OP", default_value_t = Operation::Sum)]
    op: Operation,
}

/// Who gets it, or has it.
#[derive(Clone, Debug, Args)]
pub(super) struct RootArgs {
    /// The rank that gets the result of a reduce, or whose data a broadcast sends
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u16,
}

/// `castnet host allreduce`, `castnet host reducescatter`.
#[derive(Clone, Debug, Args)]
pub(super) struct ReducingCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    operation: OperationArgs,
}

/// `castnet host reduce`.
#[derive(Clone, Debug, Args)]
pub(super) struct ReduceCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    operation: OperationArgs,
    #[command(flatten)]
    root: RootArgs,
}

/// `castnet host broadcast`.
#[derive(Clone, Debug, Args)]
pub(super) struct BroadcastCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    root: RootArgs,
}

/// `castnet host allgather`.
#[derive(Clone, Debug, Args)]
pub(super) struct GatherCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    data: DataArgs,
}

/// `castnet host barrier`.
#[derive(Clone, Debug, Args)]
pub(super) struct BarrierCommand {
    #[command(flatten)]
    rank: RankArgs,
}

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    AllReduce,
    Reduce,
    Broadcast,
    Barrier,
    ReduceScatter,
    AllGather,
}

impl Which {
    const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "allreduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::ReduceScatter => "reducescatter",
            Self::AllGather => "allgather",
        }
    }
}

impl ReducingCommand {
    pub(super) fn run(self, which: Which, output: Output, stop: &Stop) -> Outcome {
        run(
            which,
            &self.rank,
            Some(&self.data),
            self.operation.op,
            0,
            output,
            stop,
        )
    }
}

impl ReduceCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let (op, root) = (self.operation.op, self.root.root);
        run(
            Which::Reduce,
            &self.rank,
            Some(&self.data),
            op,
            root,
            output,
            stop,
        )
    }
}

impl BroadcastCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let root = self.root.root;
        run(
            Which::Broadcast,
            &self.rank,
            Some(&self.data),
            Operation::Sum,
            root,
            output,
            stop,
        )
    }
}

impl GatherCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        run(
            Which::AllGather,
            &self.rank,
            Some(&self.data),
            Operation::Sum,
            0,
            output,
            stop,
        )
    }
}

impl BarrierCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        run(Which::Barrier, &self.rank, None, Operation::Sum, 0, output, stop)
    }
}

impl RankArgs {
    fn config(&self, stop: &Stop) -> Outcome<CommConfig> {
        let network = &self.network;
        let mut config = CommConfig::new(
            self.controller.clone(),
            &self.job,
            self.rank,
            self.size,
            &self.name,
        );
        config.security = self.tls.security()?;
        config.pmtu = Pmtu::from_bytes(network.pmtu).unwrap_or(Pmtu::B1024);
        config.window_packets = network.window;
        config.message_packets = network.message_packets;
        config.reproducible = network.reproducible;
        config.saturate = network.saturate;
        config.loss = network.loss;
        config.straggler = network.straggler;
        config.qp_timeout = network.qp_timeout;
        config.retry_cnt = network.retry_cnt;
        config.timeouts = Timeouts {
            join: self.wait.0,
            collective: self.timeout.0,
            ..Timeouts::default()
        };
        config.progress = match network.spin.0 {
            Duration::ZERO => Progress::Sleep,
            spin => Progress::SpinThenSleep(spin),
        };
        config.fallback = match network.fallback {
            FallbackArg::Allowed => Fallback::Allowed,
            FallbackArg::Forbidden => Fallback::Forbidden,
            FallbackArg::Only => Fallback::Only,
        };
        config.interrupt = Some(stop.flag());
        Ok(config)
    }
}

fn run(
    which: Which,
    args: &RankArgs,
    data: Option<&DataArgs>,
    operation: Operation,
    root: u16,
    output: Output,
    stop: &Stop,
) -> Outcome {
    let config = args.config(stop)?;
    let rnic = args.device.open()?;
    rnic.announce();
    let mut communicator = Communicator::connect(config, Box::new(rnic)).map_err(failure)?;
    remark(&format!("{}: {}", args.name, communicator.path()));
    let is_first = args.rank == 0;
    if is_first && !output.is_json() {
        write_stdout(&Row::heading(args.verify))?;
    }
    let sizes = data.map_or_else(|| vec![0], |d| d.bytes.list(d.factor));
    let mut wrong = 0;
    for bytes in sizes {
        let measure = Measure {
            which,
            operation,
            root,
            data_type: data.map_or(DataType::U8, |d| d.data_type),
            bytes,
            iters: args.iters.max(1),
            warmup: args.warmup,
            verify: args.verify && which != Which::Barrier,
            in_place: data.is_some_and(|d| d.in_place),
        };
        let row = measure.run(&mut communicator).map_err(failure)?;
        wrong += row.wrong.unwrap_or(0);
        if is_first {
            if output.is_json() {
                output.show_next(&row)?;
            } else {
                write_stdout(&row.line(args.verify))?;
            }
        }
    }
    communicator.close().map_err(failure)?;
    if wrong > 0 {
        return Err(Failure::failed(format!("{wrong} elements are wrong")));
    }
    Ok(())
}

/// What a failed collective means for the user.
pub(crate) fn failure(error: CommError) -> Failure {
    match error {
        CommError::Interrupted => member::interrupted(),
        CommError::Rnic(error) => member::rnic_failure(error),
        CommError::Controller(ControllerError::Transport(error)) => connect::failure(
            &error,
            "start the controller (castnet controller --help), or say where it is: --controller URL or CASTNET_CONTROLLER",
        ),
        error @ (CommError::OutOfRange { .. }
        | CommError::NoSuchRank { .. }
        | CommError::Unsupported { .. }
        | CommError::Lengths { .. }) => Failure::usage(error),
        error @ CommError::Refused { .. } => {
            Failure::refused(error).next("--fallback allowed uses algorithms between hosts instead")
        }
        error @ CommError::Controller(_) => Failure::refused(error),
        error @ CommError::JoinTimedOut { .. } => {
            Failure::unreachable(error).next("start the missing ranks, or wait longer: --wait 5m")
        }
        error @ CommError::TimedOut { .. } => Failure::failed(error)
            .next("see who is late: castnet group show JOB; or wait longer: --timeout 5m"),
        error @ (CommError::Conflict { .. } | CommError::Mismatch { .. }) => {
            Failure::failed(error).next("all ranks need the same command with the same flags")
        }
        other => Failure::failed(other),
    }
}
