//! `castnet-lab bench`: all collectives over a range of sizes, in the network, between hosts, and by other programs.

use std::path::PathBuf;

use castnet_comm::machine::Collective;
use castnet_comm::{CommPath, DataType, Fallback, Operation};
use castnet_commands::Stop;
use castnet_commands::collective::{
    Call, Caller, Callers, Calls, HowArgs, Measure, RankArgs, Sizes, each_rank, failure, wrong_elements,
};
use castnet_console::exit::{Outcome, cannot_write_flag, first_failure, interrupted};
use castnet_console::output::{Output, remark, write_stdout};
use castnet_console::service::is_stopped;
use castnet_console::units::{Span, positive_span};
use castnet_console::{files, plot};
use clap::{Args, ValueEnum};

use crate::beside::{Beside, Sides, Time, are_rows};
use crate::help::BENCH_HELP;

/// The job of the collectives between hosts: that of the rank, with this at its end.
const HOSTS_SUFFIX: &str = "-hosts";

/// Barriers before the first measurement. Until threads have settled on their cores, calls take up to five times as long.
const SETTLING: u32 = 500;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What is measured (the same at all ranks)")]
struct BenchArgs {
    /// The collectives
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', default_values_t = Name::value_variants().to_vec())]
    collectives: Vec<Name>,
    /// Sizes in bytes: one, several (4K,1M) or a range (4K..4M); that of all ranks' blocks together for reducescatter and allgather
    #[arg(long, value_name = "SIZES", default_value = "4..4M")]
    bytes: Sizes,
    /// Factor between the sizes of a range
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Type of an element
    #[arg(long = "type", value_name = "TYPE", default_value_t = DataType::F32)]
    data_type: DataType,
    /// Time for the measured calls of each size and path; at least 3 calls, at most 1000
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = positive_span)]
    budget: Span,
    /// Measures one path only
    #[arg(long, value_enum)]
    only: Option<Path>,
    /// Rank 0 draws a plot
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Rank 0 writes all times into this file, as --output json prints them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Then rank 0 runs COMMAND in a shell, and takes the times that it prints; for each further LABEL another
    #[arg(long, value_name = "LABEL=COMMAND")]
    beside: Vec<Beside>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum Name {
    AllReduce,
    Reduce,
    Broadcast,
    Barrier,
    ReduceScatter,
    AllGather,
}

impl Name {
    const fn collective(self) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::Reduce => Collective::Reduce { root: 0 },
            Self::Broadcast => Collective::Broadcast { root: 0 },
            Self::Barrier => Collective::Barrier,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::AllGather => Collective::AllGather,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Path {
    Network,
    Hosts,
}

impl Path {
    const fn label(self) -> &'static str {
        match self {
            Self::Network => "in the network",
            Self::Hosts => "between hosts",
        }
    }
}

/// All collectives over a range of sizes, in the network beside those between hosts; as table, JSON and plot
#[derive(Debug, Args)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct BenchCommand {
    #[command(flatten)]
    rank: RankArgs,
    #[command(flatten)]
    what: BenchArgs,
    #[command(flatten)]
    how: HowArgs,
}

impl BenchCommand {
    pub(crate) fn run(self, output: Output, stop: &Stop) -> Outcome {
        let Self { rank, what, how } = self;
        Call::barrier().check(&rank, &how.network)?;
        if rank.rank == 0 {
            what.check_files()?;
        }
        each_rank(&rank, stop, |rank| run_rank(rank, &what, &how, output, stop))
    }
}

fn run_rank(rank: &RankArgs, what: &BenchArgs, how: &HowArgs, output: Output, stop: &Stop) -> Outcome {
    let callers = Callers::open(&rank.device, &how.network)?;
    let mut own = Vec::new();
    for &path in Path::value_variants() {
        if what.only.is_some_and(|only| only != path) {
            continue;
        }
        let mut config = rank.config(how, stop)?;
        (config.fallback, config.job) = match path {
            Path::Network => (Fallback::Forbidden, config.job),
            Path::Hosts => (Fallback::Only, config.job + HOSTS_SUFFIX),
        };
        own.push((path, callers.connect(rank, config, output)?));
    }
    let is_first = rank.rank == 0;
    let labels = own.iter().map(|(path, _)| path.label().to_owned());
    let mut sides = Sides::new(labels.chain(what.beside.iter().map(|beside| beside.label.clone())));
    // With other programs, lines are complete only at the end.
    let prints_lines = is_first && !output.is_json() && what.beside.is_empty();
    // The other ranks need this one to the end, and files get what was measured, also if its output is closed or full.
    let mut shown = Ok(());
    if is_first && !output.is_json() {
        let title = title(&own, what.data_type).map_err(|error| failure(error, &rank.job))?;
        shown = write_stdout(&title);
    }
    if prints_lines {
        shown = shown.and_then(|()| write_stdout(&sides.heading()));
    }
    for (_, caller) in &mut own {
        (0..SETTLING)
            .try_for_each(|_| caller.barrier())
            .map_err(|error| failure(error, &rank.job))?;
    }
    let calls = what.calls(rank.size);
    for &(collective, bytes) in &calls {
        let measure = Measure {
            collective,
            operation: Operation::Sum,
            data_type: what.data_type,
            bytes,
            calls: how
                .measure
                .iters
                .map_or(Calls::Within(what.budget.0), Calls::Exactly),
            warmup: how.measure.warmup,
            verify: !how.measure.no_verify && collective != Collective::Barrier,
            saturate: how.network.saturate,
            in_place: false,
        };
        let mut size = bytes;
        for (side, (_, caller)) in own.iter_mut().enumerate() {
            let row = measure.run(caller, &mut || {});
            let row = row.map_err(|error| error.failure(&rank.job))?;
            if is_first && output.is_json() {
                shown = shown.and_then(|()| output.show_next(&row));
            }
            size = row.bytes;
            sides.add(side, Time::of(&row), &row)?;
        }
        if prints_lines {
            shown = shown.and_then(|()| write_stdout(&sides.line(collective.name(), size)));
        }
    }
    let count = own.len();
    for (_, caller) in own {
        caller.close().map_err(|error| failure(error, &rank.job))?;
    }
    if !is_first {
        return wrong_elements(sides.wrong());
    }
    let mut ran: Vec<Outcome> = Vec::new();
    for (side, beside) in (count..).zip(&what.beside) {
        // The flag of this command is also set if another rank fails.
        if is_stopped() {
            ran.push(Err(interrupted()));
            break;
        }
        remark(&format!("measuring {}", beside.label));
        let rows = match beside.run(what.budget.0, &calls) {
            Ok(rows) => rows,
            Err(failure) => {
                ran.push(Err(failure));
                continue;
            }
        };
        for row in rows {
            if output.is_json() {
                shown = shown.and_then(|()| output.show_next(&row));
            }
            sides.add(side, row.time(), &row)?;
        }
    }
    if !output.is_json() && !prints_lines {
        shown = shown.and_then(|()| write_stdout(&sides.table()));
    }
    let written = what.json.as_ref().map_or(Ok(()), |file| sides.write(file));
    let drawn = what.svg.as_ref().map_or(Ok(()), |file| sides.draw(file));
    let ends = [wrong_elements(sides.wrong())].into_iter().chain(ran);
    first_failure(ends.chain([written, drawn, shown]))
}

impl BenchArgs {
    /// Fails if a file that is asked for could not be written now.
    fn check_files(&self) -> Outcome {
        if let Some(file) = &self.json {
            let checked = files::check_replaceable(file, are_rows);
            checked.map_err(|error| cannot_write_flag("--json", file, &error))?;
        }
        if let Some(file) = &self.svg {
            plot::check(file).map_err(|error| cannot_write_flag("--svg", file, &error))?;
        }
        Ok(())
    }

    /// Collectives and bytes, of `ranks` ranks.
    fn calls(&self, ranks: u16) -> Vec<(Collective, u64)> {
        let mut calls = Vec::new();
        for name in &self.collectives {
            let collective = name.collective();
            let mut sizes = match collective {
                Collective::Barrier => vec![0],
                _ => self.bytes.list(self.factor),
            };
            if matches!(collective, Collective::ReduceScatter | Collective::AllGather) {
                // A block has an element.
                let least = u64::from(ranks) * self.data_type.size() as u64;
                sizes.retain(|&bytes| bytes >= least);
            }
            calls.extend(sizes.into_iter().map(|bytes| (collective, bytes)));
        }
        calls
    }
}

fn title(sides: &[(Path, Caller)], data_type: DataType) -> Result<String, castnet_comm::CommError> {
    let mut text = format!("# medians over calls in microseconds, {data_type}\n");
    for (_, caller) in sides {
        let reason = match caller.path()? {
            CommPath::HostBased { .. } => {
                "between hosts: ring, chain, binomial tree, dissemination".to_owned()
            }
            other => other.to_string(),
        };
        text.push_str(&format!("# {} ranks, {reason}\n", caller.size()));
    }
    Ok(text)
}
