//! EPIC's appendix K with the real engine, the real endpoint and CommLib's machines: eight ranks, 100 Gb/s, 1 us per
//! link. Prints tables 25 to 32, 34 and 35 next to the paper's, with the ratio of each cell and a reason for each that differs
//! by more than 10 %, and writes plots.
//!
//! `cargo run --release -p castnet-experiments`; `--help` for the rest.
#![forbid(unsafe_code)]

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

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde_json::json;

use measure::Setting;
use spec::Extent;
use table::Table;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Markdown,
    Json,
}

#[derive(Debug, Parser)]
#[command(about = "EPIC's appendix K: tables 25 to 35 beside the paper's")]
struct Options {
    /// Only these tables, 25 to 35. Table 33 has the models of table 34.
    #[arg(long = "table", value_name = "N", value_parser = clap::value_parser!(u32).range(25..=35))]
    tables: Vec<u32>,
    /// Longest message, in MiB, that is simulated completely. The times of longer ones are extrapolated from it and
    /// half of it.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    whole_mib: u64,
    /// Seeds over which lossy runs are averaged.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// First of these seeds.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Messages up to 1 MiB, two seeds. Takes seconds; for tests.
    #[arg(long)]
    quick: bool,
    /// Most packets of a rank in flight.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(2..=512))]
    window: u32,
    /// Packets of a message; the last one requests an ACK. At most the window.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=512))]
    message_packets: u32,
    /// QP time-out exponent: 4.096 us * 2^t. The default is the shortest that is longer than a window takes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    timeout: u8,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Folder for the plots, one SVG file per table. Without it none are written.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Runs in parallel. Default: the number of processors.
    #[arg(long)]
    jobs: Option<usize>,
    /// Hide the progress bar.
    #[arg(long)]
    no_progress: bool,
}

impl Options {
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
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let (extent, setting) = (options.extent(), options.setting());
    let mut specs = spec::tables(extent);
    specs.retain(|t| options.tables.is_empty() || options.tables.contains(&t.number));
    let cells = specs.iter().flat_map(|t| &t.rows).flat_map(|r| &r.cells);
    let runs = cells.flat_map(|c| c.samples()).flat_map(|s| s.runs()).collect();
    let jobs = options
        .jobs
        .unwrap_or_else(castnet_experiments::parallel::processors);
    let results = pool::run(setting, runs, jobs, !options.no_progress).map_err(|e| e as Box<dyn Error>)?;
    let tables: Vec<Table> = specs
        .into_iter()
        .map(|spec| Table::new(spec, |run| results.times(run)))
        .collect();
    let mut plots = Vec::new();
    if let Some(folder) = &options.plots {
        std::fs::create_dir_all(folder)?;
        for table in &tables {
            plots.extend(plot::write(folder, table)?);
        }
    }
    print(&options, &tables);
    for file in plots {
        eprintln!("{}", file.display());
    }
    Ok(())
}

fn print(options: &Options, tables: &[Table]) {
    let (extent, setting) = (options.extent(), options.setting());
    let reasons = reason::all(tables);
    let seeds = format!("{} to {}", extent.seed, extent.seed + extent.seeds - 1);
    let head = format!(
        "EPIC, appendix K: 8 ranks on one switch (rings: from rank to rank), 100 Gb/s, 1 us per link. Path MTU 4096; 82 bytes of\n\
         headers, preamble and gap per packet; window of {} packets, messages of {}; QP time-out {:.1} us; no congestion control.\n\
         Hosts and switch take no time. Throughput is in Gibit/s, which the paper calls Gbps. Messages over {} MiB are\n\
         extrapolated: the time of {} MiB, continued at the rate of its second half. Lossy runs are averaged over seeds {seeds}.\n\
         'castnet' counts as the paper does: in some tables until results have arrived, in others until everything is\n\
         acknowledged. 'calls return' is what a program measures. The other rows, except 'ratio', use the method that the paper\n\
         seems to use.",
        setting.window,
        setting.message_packets,
        f64::from(1u32 << setting.timeout) * 4.096,
        extent.whole_bytes >> 20,
        extent.whole_bytes >> 20,
    );
    match options.output {
        Output::Text => {
            println!("{head}\n");
            tables.iter().for_each(|table| println!("{table}"));
            for reason in reasons {
                println!("{}: {}", reason.letter, reason.text);
            }
        }
        Output::Markdown => {
            println!("{head}\n");
            tables.iter().for_each(|table| println!("{}", table.markdown()));
            for reason in reasons {
                println!("- **{}**: {}", reason.letter, reason.text);
            }
        }
        Output::Json => {
            let reasons: Vec<_> = reasons
                .iter()
                .map(|r| json!({ "letter": r.letter.to_string(), "text": r.text }))
                .collect();
            let all = json!({
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
            println!("{all:#}");
        }
    }
}
