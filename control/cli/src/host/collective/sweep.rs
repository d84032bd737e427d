//! `castnet host bench`: all collectives over a range of sizes, in the network and between hosts.

use std::path::PathBuf;

use castnet_comm::machine::Collective;
use castnet_comm::{CommPath, DataType, Fallback, Operation};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, write_stdout};
use castnet_console::plot::{self, Curve, Panel};
use castnet_console::units::{self, Span, positive_span};
use clap::{Args, ValueEnum};

use super::caller::{Caller, Callers};
use super::failure::failure;
use super::measure::{Calls, Measure};
use super::sizes::Sizes;
use super::table::Row;
use super::{HowArgs, RankArgs, wrong_elements};
use crate::host::Stop;

/// The job of the collectives between hosts: that of the rank, with this at its end.
const HOSTS_SUFFIX: &str = "-hosts";

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What is measured (the same at all ranks)")]
pub(in crate::host) struct SweepArgs {
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

pub(super) fn run(rank: &RankArgs, what: &SweepArgs, how: &HowArgs, output: Output, stop: &Stop) -> Outcome {
    super::Call::unreduced(Collective::Barrier, None).check(rank, &how.network)?;
    let callers = Callers::open(&rank.device, how.network.runner)?;
    let mut sides = Vec::new();
    for &path in Path::value_variants() {
        if what.only.is_some_and(|only| only != path) {
            continue;
        }
        let mut config = rank.config(how, stop)?;
        (config.fallback, config.job) = match path {
            Path::Network => (Fallback::Forbidden, config.job),
            Path::Hosts => (Fallback::Only, config.job + HOSTS_SUFFIX),
        };
        sides.push((path, callers.connect(rank, config, output)?));
    }
    let is_first = rank.rank == 0;
    let mut rows = Rows::default();
    if is_first && !output.is_json() {
        write_stdout(
            &rows
                .heading(&sides, what.data_type)
                .map_err(|error| failure(error, &rank.job))?,
        )?;
    }
    for name in &what.collectives {
        let collective = name.collective();
        let mut sizes = match collective {
            Collective::Barrier => vec![0],
            _ => what.bytes.list(what.factor),
        };
        if matches!(collective, Collective::ReduceScatter | Collective::AllGather) {
            // A block has an element.
            let least = u64::from(rank.size) * what.data_type.size() as u64;
            sizes.retain(|&bytes| bytes >= least);
        }
        for bytes in sizes {
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
            let mut line = Vec::new();
            for (path, caller) in &mut sides {
                let row = measure.run(caller, &mut || {});
                line.push((*path, row.map_err(|error| error.failure(&rank.job))?));
            }
            if is_first {
                match output.is_json() {
                    true => line.iter().try_for_each(|(_, row)| output.show_next(row))?,
                    false => write_stdout(&Rows::line(&line))?,
                }
            }
            rows.0.extend(line);
        }
    }
    for (_, caller) in sides {
        caller.close().map_err(|error| failure(error, &rank.job))?;
    }
    if is_first && let Some(file) = &what.svg {
        rows.draw(file)?;
    }
    wrong_elements(rows.0.iter().filter_map(|(_, row)| row.wrong).sum())
}

#[derive(Default)]
struct Rows(Vec<(Path, Row)>);

impl Rows {
    fn heading(
        &self,
        sides: &[(Path, Caller)],
        data_type: DataType,
    ) -> Result<String, castnet_comm::CommError> {
        let mut text = format!("# medians over calls in microseconds, {data_type}\n");
        for (_, caller) in sides {
            let reason = match caller.path()? {
                CommPath::HostBased { .. } => "between hosts: ring, binomial tree, dissemination".to_owned(),
                other => other.to_string(),
            };
            text.push_str(&format!("# {} ranks, {reason}\n", caller.size()));
        }
        text.push_str(&format!("{:<14}{:>10}", "COLLECTIVE", "SIZE"));
        for (path, _) in sides {
            text.push_str(&format!("{:>18}", path.label().to_uppercase()));
        }
        if sides.len() > 1 {
            text.push_str(&format!("{:>10}", "SPEED-UP"));
        }
        Ok(text + &format!("{:>8}\n", "#WRONG"))
    }

    /// The rows of one size.
    fn line(rows: &[(Path, Row)]) -> String {
        let Some((_, first)) = rows.first() else {
            return String::new();
        };
        let mut text = format!("{:<14}{:>10}", first.collective, units::bytes(first.bytes));
        for (_, row) in rows {
            text.push_str(&format!("{:>18.1}", row.time_median_us));
        }
        if let [(_, network), (_, hosts)] = rows {
            text.push_str(&format!(
                "{:>10.2}",
                hosts.time_median_us / network.time_median_us
            ));
        }
        let wrong = rows.iter().map(|(_, row)| row.wrong).sum::<Option<u64>>();
        text + &format!("{:>8}\n", wrong.map_or("-".to_owned(), |wrong| wrong.to_string()))
    }

    fn draw(&self, file: &std::path::Path) -> Outcome {
        let mut panels: Vec<Panel> = Vec::new();
        for (path, row) in &self.0 {
            if row.bytes == 0 {
                continue;
            }
            if panels.last().is_none_or(|panel| panel.title != row.collective) {
                panels.push(Panel {
                    title: row.collective.to_owned(),
                    curves: Vec::new(),
                });
            }
            let Some(panel) = panels.last_mut() else { continue };
            let point = (row.bytes as f64, row.time_median_us);
            match panel.curves.iter_mut().find(|curve| curve.name == path.label()) {
                Some(curve) => curve.points.push(point),
                None => panel.curves.push(Curve {
                    name: path.label().to_owned(),
                    points: vec![point],
                }),
            }
        }
        plot::write(file, "bytes", "microseconds per call", &panels)
            .map_err(|error| Failure::failed(format!("cannot draw {}: {error}", file.display())))
    }
}
