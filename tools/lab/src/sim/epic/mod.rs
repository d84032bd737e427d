//! EPIC's appendix K with the real engine, the real endpoint and CommLib's machines: eight ranks, 100 Gb/s, 1 us per
//! link. Prints tables 25 to 32, 34 and 35 next to the paper's, with the ratio of each cell and a reason for each that differs
//! by more than 10 %, and writes plots. Under loss the reasons come from the counts of the runs.

mod counts;
mod formula;
mod ideal;
mod machine;
mod measure;
mod paper;
mod plot;
mod pool;
mod reason;
mod relay;
mod spec;
mod steps;
mod table;

use std::path::PathBuf;

use castnet_console::exit::{Failure, Outcome, cannot_write_flag, first_failure};
use castnet_console::output::{Output, Page, Report, remark};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::parallel::processors;
use measure::Setting;
use spec::Extent;
use table::Table;

/// EPIC: collectives in the network on the simulated network, tables 25 to 35 of its appendix K
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet-lab sim epic --quick                          all tables in a short form, in seconds
  castnet-lab sim epic --table 31 --table 32            throughput under loss, with what was sent again and what waited
  castnet-lab sim epic --quick --check                  exit code 1 if a cell is not explained
  castnet-lab sim epic --plots plots                    and a plot for each table
  castnet-lab sim epic --markdown                       as in docs/appendix-k.md")]
pub(crate) struct EpicCommand {
    /// Only these tables, 25 to 35. Table 33 has the models of table 34
    #[arg(long = "table", value_name = "N", value_parser = clap::value_parser!(u32).range(25..=35))]
    tables: Vec<u32>,
    /// Longest message, in MiB, that is simulated completely. The times of longer ones are extrapolated from it and half of it
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    whole_mib: u64,
    /// Seeds over which lossy runs are averaged
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// First of these seeds
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Messages up to 1 MiB, two seeds: seconds instead of minutes
    #[arg(long)]
    quick: bool,
    /// Most packets of a rank in flight
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u32).range(2..=512))]
    window: u32,
    /// Packets of a message, whose last one requests an ACK; at most the window
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=512))]
    message_packets: u32,
    /// QP time-out exponent: 4.096 us * 2^N. The default is the shortest that is longer than a window takes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    timeout: u8,
    /// Fails if a cell that differs from the paper's by more than 10 % has no reason, or is outside of the band of its reason. Bands are
    /// those of the default window, messages and time-out
    #[arg(long)]
    check: bool,
    /// Tables in Markdown
    #[arg(long)]
    markdown: bool,
    /// Folder for the plots, one SVG file per table. Without it none are written
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Runs in parallel [default: the number of processors]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

/// All tables: as JSON, and as text.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Tables {
    json: Value,
    #[serde(skip)]
    text: String,
}

impl Report for Tables {
    fn page(&self, page: &mut Page) {
        page.line(&self.text);
    }
}

impl EpicCommand {
    fn extent(&self) -> Extent {
        Extent {
            whole_bytes: if self.quick { 1 } else { self.whole_mib } << 20,
            seed: self.seed,
            seeds: if self.quick { 2 } else { self.seeds },
        }
    }

    fn setting(&self) -> Setting {
        Setting {
            window: self.window,
            message_packets: self.message_packets.min(self.window),
            timeout: self.timeout,
        }
    }

    /// Runs what the tables need, prints them and draws them. A plot that could not be written is found before; one that cannot be drawn then is an
    /// error behind the tables.
    pub(crate) fn run(self, output: Output) -> Outcome {
        let (extent, setting) = (self.extent(), self.setting());
        let mut specs = spec::tables(extent);
        specs.retain(|t| self.tables.is_empty() || self.tables.contains(&t.number));
        if let Some(folder) = &self.plots {
            let made = std::fs::create_dir_all(folder);
            made.map_err(|error| cannot_write_flag("--plots", folder, &error))?;
            specs.iter().try_for_each(|spec| plot::check(folder, spec))?;
        }
        let cells = specs.iter().flat_map(|t| &t.rows).flat_map(|r| &r.cells);
        let runs = cells.flat_map(|c| c.samples()).flat_map(|s| s.runs()).collect();
        let jobs = self.jobs.unwrap_or_else(processors);
        let results = pool::run(setting, runs, jobs, !output.is_json()).map_err(Failure::failed)?;
        let tables: Vec<Table> = specs
            .into_iter()
            .map(|spec| Table::new(spec, |run| results.of(run)))
            .collect();
        let mut plots = Vec::new();
        let mut ends: Vec<Outcome> = Vec::new();
        if self.check {
            ends.push(reason::check(&tables));
        }
        if let Some(folder) = &self.plots {
            for table in &tables {
                ends.push(plot::write(folder, table).map(|file| plots.extend(file)));
            }
        }
        let ended = output.conclude(&self.report(&tables), first_failure(ends));
        for file in plots {
            remark(&format!("drawn: {}", file.display()));
        }
        ended
    }

    fn report(&self, tables: &[Table]) -> Tables {
        let (extent, setting) = (self.extent(), self.setting());
        let reasons = reason::all(tables);
        let seeds = format!("{} to {}", extent.seed, extent.seed + extent.seeds - 1);
        let head = format!(
            "EPIC, appendix K: 8 ranks on one switch (rings: from rank to rank), 100 Gb/s, 1 us per link. Path MTU 4096; 82 bytes of\n\
         headers, preamble and gap per packet; window of {} packets, messages of {}; QP time-out {:.1} us; no congestion control.\n\
         Hosts and switch take no time. Throughput is in Gibit/s, which the paper calls Gbps. Messages over {} MiB are\n\
         extrapolated: the time of {} MiB, continued at the rate of its second half. Lossy runs are averaged over seeds {seeds}.\n\
         'castnet' counts as the paper does: in some tables until results have arrived, in others until everything is\n\
         acknowledged. 'calls return' is what a program measures. 'F.4 expects' is the row's value without loss times what the\n\
         formula of appendix F.4 leaves of it. Ranks in rows 'selective' send single packets again, and keep what follows a lost one,\n\
         as the software RNIC does; those in rows 'go back' send all that follow, as RNICs do; with 'probe' also their oldest one where\n\
         an answer is overdue. Counts, from 'lost' on, are means of the runs. The other rows, except 'ratio', use the method that the\n\
         paper seems to use.",
            setting.window,
            setting.message_packets,
            f64::from(1u32 << setting.timeout) * 4.096,
            extent.whole_bytes >> 20,
            extent.whole_bytes >> 20,
        );
        let mut text = format!("{head}\n\n");
        for table in tables {
            text += &match self.markdown {
                true => format!("{}\n", table.markdown()),
                false => format!("{table}\n"),
            };
        }
        for reason in &reasons {
            text += &match self.markdown {
                true => format!("- **{}**: {}\n", reason.letter, reason.text),
                false => format!("{}: {}\n", reason.letter, reason.text),
            };
        }
        let reasons: Vec<_> = reasons
            .iter()
            .map(|r| json!({ "letter": r.letter.to_string(), "text": r.text }))
            .collect();
        let json = json!({
            "setting": {
                "window": setting.window,
                "message_packets": setting.message_packets,
                "timeout_us": f64::from(1u32 << setting.timeout) * 4.096,
                "whole_bytes": extent.whole_bytes,
                "seed": extent.seed,
                "seeds": extent.seeds,
            },
            "tables": tables.iter().map(Table::json).collect::<Vec<_>>(),
            "reasons": reasons,
        });
        Tables { json, text }
    }
}
