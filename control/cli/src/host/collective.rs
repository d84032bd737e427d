//! `castnet host allreduce` and the other five collectives: this host as a rank of a job, which runs one collective over a range of sizes,
//! checks the results and measures them, as nccl-tests and the OSU benchmarks do.

mod failure;
mod measure;
mod numbers;
mod sizes;
mod table;
mod waiting;

use std::time::Duration;

use castnet_comm::{
    CommConfig, Communicator, DataType, Fallback, LossPolicy, Operation, Progress, StragglerPolicy, Timeouts,
};
use castnet_console::connect::{CONTROLLER, Tls};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, remark, write_stdout};
use castnet_console::units::{self, Span};
use castnet_proto::transport::Address;
use castnet_wire::Pmtu;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::Stop;
use super::device::Device;
use castnet_console::units::pmtu;
pub(crate) use failure::failure;
use measure::Measure;
use sizes::Sizes;
use table::Table;
use waiting::Waiting;

/// Who this rank is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "This rank")]
pub(super) struct RankArgs {
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    size: u16,
    /// The controller
    #[arg(long, value_name = "URL", env = "CASTNET_CONTROLLER", default_value = CONTROLLER)]
    controller: Address,
    /// Waits so long for the controller, and for all ranks to join
    #[arg(long, value_name = "TIME", default_value = "1m")]
    wait: Span,
    #[command(flatten)]
    device: Device,
}

/// How often, how long, and how it travels.
#[derive(Clone, Debug, Args)]
pub(super) struct HowArgs {
    #[command(flatten)]
    measure: MeasureArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    tls: Tls,
}

/// How it is measured.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How it is measured (the same at all ranks)")]
struct MeasureArgs {
    /// Calls that are measured, per size
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Calls before them
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: u32,
    /// Leaves out the check of every element of one more call, per size
    #[arg(long)]
    no_verify: bool,
    /// Checks, which is so by default
    #[arg(long, hide = true, overrides_with = "no_verify")]
    verify: bool,
    /// A collective fails when it has not ended within this time
    #[arg(long, value_name = "TIME", default_value = "1m")]
    timeout: Span,
}

/// How the collectives travel; the same at all ranks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How they travel (the same at all ranks)")]
struct NetworkArgs {
    /// Whether algorithms between hosts may be used: where the group cannot be had in the network, never, or only they
    #[arg(long, value_enum, default_value_t = FallbackArg::Allowed)]
    fallback: FallbackArg,
    /// Lanes of a group that is not there yet, 1 to 16: several workers of a switch share it [default: as many as the group
    /// has, 1 where the job makes it]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..=16))]
    lanes: Option<u8>,
    /// Payload bytes of a full packet: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", value_parser = pmtu, default_value = "1024")]
    pmtu: u32,
    /// Packets that a rank may have in flight
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=16_384))]
    window: u32,
    /// Packets of a full message, at most the window [default: 16, or the window where it is smaller]
    #[arg(long, value_name = "N")]
    message_packets: Option<u32>,
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
#[command(next_help_heading = "What is computed (the same at all ranks)")]
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
#[command(next_help_heading = "What is computed (the same at all ranks)")]
pub(super) struct OperationArgs {
    /// The operation: sum, min, max, prod; for integers also bitand, bitor, bitxor, and, or, xor
    #[arg(long, value_name = "OP", default_value_t = Operation::Sum)]
    op: Operation,
}

/// Who gets it, or has it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What is computed (the same at all ranks)")]
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
    #[command(flatten)]
    how: HowArgs,
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
    #[command(flatten)]
    how: HowArgs,
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
    #[command(flatten)]
    how: HowArgs,
}

/// `castnet host allgather`.
#[derive(Clone, Debug, Args)]
pub(super) struct GatherCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    how: HowArgs,
}

/// `castnet host barrier`.
#[derive(Clone, Debug, Args)]
pub(super) struct BarrierCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    how: HowArgs,
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
        let call = Call::new(which, Some(self.data)).by(self.operation.op);
        run(&call, &self.rank, &self.how, output, stop)
    }
}

impl ReduceCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let call = Call::new(Which::Reduce, Some(self.data)).by(self.operation.op);
        run(&call.of(self.root.root), &self.rank, &self.how, output, stop)
    }
}

impl BroadcastCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let call = Call::new(Which::Broadcast, Some(self.data)).of(self.root.root);
        run(&call, &self.rank, &self.how, output, stop)
    }
}

impl GatherCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let call = Call::new(Which::AllGather, Some(self.data));
        run(&call, &self.rank, &self.how, output, stop)
    }
}

impl BarrierCommand {
    pub(super) fn run(self, output: Output, stop: &Stop) -> Outcome {
        run(
            &Call::new(Which::Barrier, None),
            &self.rank,
            &self.how,
            output,
            stop,
        )
    }
}

/// What all ranks call.
struct Call {
    which: Which,
    data: Option<DataArgs>,
    operation: Operation,
    root: u16,
}

impl Call {
    fn new(which: Which, data: Option<DataArgs>) -> Self {
        Self {
            which,
            data,
            operation: Operation::Sum,
            root: 0,
        }
    }

    fn by(self, operation: Operation) -> Self {
        Self { operation, ..self }
    }

    fn of(self, root: u16) -> Self {
        Self { root, ..self }
    }

    fn data_type(&self) -> DataType {
        self.data.as_ref().map_or(DataType::U8, |d| d.data_type)
    }

    /// What is wrong whatever the other ranks do: said before anything is opened.
    fn check(&self, rank: &RankArgs, network: &NetworkArgs) -> Outcome {
        let (size, data_type) = (rank.size, self.data_type());
        let last = size.saturating_sub(1);
        if rank.rank >= size {
            return Err(
                Failure::usage(format!("there is no rank {} among {size}", rank.rank))
                    .next(format!("ranks are counted from 0: --rank 0 to --rank {last}")),
            );
        }
        if self.root >= size {
            return Err(Failure::usage(format!(
                "there is no rank {} among {size} to be the root",
                self.root
            ))
            .next(format!("--root 0 to --root {last}")));
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
        Ok(())
    }
}

impl RankArgs {
    fn config(&self, how: &HowArgs, stop: &Stop) -> Outcome<CommConfig> {
        let network = &how.network;
        let mut config = CommConfig::new(
            self.controller.clone(),
            &self.job,
            self.rank,
            self.size,
            &self.name,
        );
        config.security = how.tls.security()?;
        config.pmtu = Pmtu::from_bytes(network.pmtu).unwrap_or(Pmtu::B1024);
        config.lanes = network.lanes.unwrap_or(0);
        config.window_packets = network.window;
        config.message_packets = network
            .message_packets
            .unwrap_or(config.message_packets.min(network.window));
        config.reproducible = network.reproducible;
        config.saturate = network.saturate;
        config.loss = network.loss;
        config.straggler = network.straggler;
        config.qp_timeout = network.qp_timeout;
        config.retry_cnt = network.retry_cnt;
        config.timeouts = Timeouts {
            join: self.wait.0,
            collective: how.measure.timeout.0,
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
        config.interrupt = Some(stop.clone());
        Ok(config)
    }
}

/// Calls of one size, the first ones, those with the clock and the check included.
fn calls(measure: &MeasureArgs) -> u64 {
    u64::from(measure.warmup) + u64::from(measure.iters) + u64::from(!measure.no_verify)
}

fn run(call: &Call, rank: &RankArgs, how: &HowArgs, output: Output, stop: &Stop) -> Outcome {
    call.check(rank, &how.network)?;
    let config = rank.config(how, stop)?;
    let rnic = rank.device.open()?;
    let waiting = Waiting::begin(rank, &config, output);
    let connected = Communicator::connect(config, rnic);
    waiting.end();
    let mut communicator = connected.map_err(|error| failure(error, &rank.job))?;
    remark(&format!("{}: {}", rank.name, communicator.path()));

    let sizes = match &call.data {
        Some(data) => data.bytes.list(data.factor),
        None => vec![0],
    };
    let is_first = rank.rank == 0;
    let bar = bar(output, is_first, calls(&how.measure) * sizes.len() as u64);
    let mut table = Table::new(call.which, &how.measure);
    let measured = sizes.into_iter().try_for_each(|bytes| {
        let measure = Measure {
            which: call.which,
            operation: call.operation,
            root: call.root,
            data_type: call.data_type(),
            bytes,
            iters: how.measure.iters,
            warmup: how.measure.warmup,
            verify: !how.measure.no_verify && call.which != Which::Barrier,
            in_place: call.data.as_ref().is_some_and(|d| d.in_place),
        };
        bar.set_message(format!("{} {}", call.which.name(), units::bytes(bytes)));
        let row = measure
            .run(&mut communicator, &mut || bar.inc(1))
            .map_err(|error| error.told(&rank.job))?;
        let text = table.take(&row, communicator.path());
        if !is_first {
            return Ok(());
        }
        bar.suspend(|| match output.is_json() {
            true => output.show_next(&row),
            false => write_stdout(&text),
        })
    });
    bar.finish_and_clear();
    measured?;
    communicator.close().map_err(|error| failure(error, &rank.job))?;
    if is_first && !output.is_json() {
        write_stdout(&table.end())?;
    }
    if table.wrong > 0 {
        let what = format!("{} elements are wrong", table.wrong);
        return Err(Failure::failed(what).next(
            "this must not be: castnet capture --group JOB -o frames.pcapng at each switch, and report it",
        ));
    }
    Ok(())
}

/// How far the calls are, at the first rank, where somebody sees it.
fn bar(output: Output, is_first: bool, calls: u64) -> ProgressBar {
    if !is_first || !output.shows_progress() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(calls);
    match ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} calls, {elapsed}, {eta} to go") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
