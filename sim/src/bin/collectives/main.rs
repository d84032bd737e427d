//! EPIC's appendix K with the real engine, the real endpoint and CommLib's machines: eight ranks, 100 Gb/s, 1 us a link. Prints tables
//! 25 to 32 beside the paper's, with the ratio of each cell and a reason for each that differs by more than 10 %, and writes plots.
//!
//! `cargo run --release -p castnet-sim --bin collectives`; `--help` for the rest.
#![forbid(unsafe_code)]

mod measure;
mod paper;
mod plot;
mod reason;
mod relay;
mod table;

use std::error::Error;
use std::path::PathBuf;

use castnet_comm::machine::Collective;
use castnet_rules::LossPolicy;
use castnet_wire::Nanos;
use clap::Parser;

use measure::{Loss, Times, Way, counted, measure};
use table::{Cell, Table};

#[derive(Debug, Parser)]
#[command(about = "EPIC's appendix K: tables 25 to 32 beside the paper's")]
struct Options {
    /// Longest message, in MiB, that is simulated whole. The times of longer ones go on as between half of it and it.
    #[arg(long, default_value_t = 64)]
    whole_mib: u64,
    /// Seeds over which lossy runs are averaged.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Folder for the plots; none are written without.
    #[arg(long)]
    plots: Option<PathBuf>,
}

/// Bits per second as the paper counts them.
fn gibit(bytes: f64, time: f64) -> f64 {
    bytes * 8.0 / (time * 1e-9) / (1u64 << 30) as f64
}

/// A time as the paper's simulator tells it.
fn rounded_up(time: f64) -> f64 {
    (time / 1e3).ceil() * 1e3
}

struct Point {
    results: f64,
    settled: f64,
}

impl From<Times> for Point {
    fn from(times: Times) -> Self {
        let [results, settled] = [times.results, times.settled].map(|t: Nanos| t.0 as f64);
        Self { results, settled }
    }
}

/// A message of any length: simulated, or by the steady state of a long one.
fn time(way: Way, collective: Collective, bytes: u64, whole: u64) -> Result<Point, Box<dyn Error>> {
    // An AllGather moves a message from each rank.
    let whole = if collective == Collective::AllGather {
        whole / u64::from(measure::RANKS)
    } else {
        whole
    };
    if bytes <= whole {
        return Ok(measure(way, collective, bytes, Loss::NONE, 0)?.into());
    }
    let [half, all] = [whole / 2, whole].map(|b| measure(way, collective, b, Loss::NONE, 0).map(Point::from));
    let (half, all) = (half?, all?);
    let more = (bytes - whole) as f64 / (whole - whole / 2) as f64;
    let on = |half: f64, all: f64| all + (all - half) * more;
    Ok(Point {
        results: on(half.results, all.results),
        settled: on(half.settled, all.settled),
    })
}

fn size_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{}G", b >> 30),
        b if b >= 1 << 20 => format!("{}M", b >> 20),
        b => format!("{}K", b >> 10),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut tables = Vec::new();
    for paper in paper::BY_SIZE {
        tables.push(by_size(&options, &paper)?);
    }
    tables.push(barrier()?);
    let loss = paper::BY_LOSS.map(|(percent, gibit)| {
        let links = u32::from(percent > 0.0);
        let rate = percent / 100.0;
        (format!("{percent} %"), Loss { links, rate }, gibit)
    });
    tables.push(by_loss(
        &options,
        31,
        "AllReduce of 4 MiB, loss on one link",
        &loss,
    )?);
    let mut links = 0;
    let lossy = paper::BY_LINKS.map(|gibit| {
        let loss = Loss { links, rate: 0.05 };
        links += 1;
        (loss.links.to_string(), loss, gibit)
    });
    tables.push(by_loss(
        &options,
        32,
        "AllReduce of 4 MiB, 5 % of loss on so many links",
        &lossy,
    )?);

    println!("{}", table::HEAD);
    for table in &tables {
        println!("{table}");
    }
    println!("{}", reason::text(&tables));
    if let Some(folder) = &options.plots {
        std::fs::create_dir_all(folder)?;
        for table in &tables {
            if let Some(file) = plot::write(folder, table)? {
                println!("{}", file.display());
            }
        }
    }
    Ok(())
}

fn by_size(options: &Options, paper: &paper::BySize) -> Result<Table, Box<dyn Error>> {
    let whole = options.whole_mib << 20;
    let collective = paper.collective;
    let mut rows = Vec::new();
    for (way, name, theirs) in [
        (Way::Epic(LossPolicy::Repair), "Mode-II", &paper.epic),
        (Way::Ring, "Ring", &paper.ring),
    ] {
        let mut cells = Vec::new();
        for (bytes, &paper) in paper::SIZES.iter().zip(theirs) {
            let point = time(way, collective, *bytes, whole)?;
            let counted = counted(way, collective, *bytes);
            cells.push(Cell {
                paper,
                ours: gibit(counted, point.settled),
                rounded: gibit(counted, rounded_up(point.settled)),
                results: gibit(counted, point.results),
            });
        }
        rows.push((name.to_owned(), cells));
    }
    Ok(Table {
        number: paper.number,
        title: format!("{} by message size, Gibit/s", collective.name()),
        collective,
        columns: paper::SIZES.map(size_name).into(),
        rows,
    })
}

fn barrier() -> Result<Table, Box<dyn Error>> {
    let mut rows = Vec::new();
    for ((way, name), paper) in [
        (Way::Epic(LossPolicy::Repair), "Mode-II"),
        (Way::Ring, "to rank 0"),
    ]
    .into_iter()
    .zip(paper::BARRIER)
    {
        let point = Point::from(measure(way, Collective::Barrier, 0, Loss::NONE, 0)?);
        rows.push((
            name.to_owned(),
            vec![Cell {
                paper,
                ours: 1e9 / point.settled,
                rounded: 1e9 / rounded_up(point.settled),
                results: 1e9 / point.results,
            }],
        ));
    }
    Ok(Table {
        number: 30,
        title: "barriers per second".into(),
        collective: Collective::Barrier,
        columns: vec!["1/s".into()],
        rows,
    })
}

fn by_loss(
    options: &Options,
    number: u32,
    title: &str,
    columns: &[(String, Loss, f64)],
) -> Result<Table, Box<dyn Error>> {
    let mut rows = Vec::new();
    for (policy, name) in [
        (LossPolicy::Repair, "Mode-II, repair"),
        (LossPolicy::Reflect, "Mode-II, reflect"),
    ] {
        let way = Way::Epic(policy);
        let mut cells = Vec::new();
        for (_, loss, paper) in columns {
            let seeds = if loss.links == 0 { 1 } else { options.seeds.max(1) };
            let (mut settled, mut results) = (0.0, 0.0);
            for seed in 0..seeds {
                let times = measure(way, Collective::AllReduce, paper::LOSS_BYTES, *loss, seed)?;
                let point = Point::from(times);
                settled += point.settled / seeds as f64;
                results += point.results / seeds as f64;
            }
            let bytes = paper::LOSS_BYTES as f64;
            cells.push(Cell {
                paper: *paper,
                ours: gibit(bytes, settled),
                rounded: gibit(bytes, rounded_up(settled)),
                results: gibit(bytes, results),
            });
        }
        rows.push((name.to_owned(), cells));
    }
    Ok(Table {
        number,
        title: format!("{title}, Gibit/s"),
        collective: Collective::AllReduce,
        columns: columns.iter().map(|(name, ..)| name.clone()).collect(),
        rows,
    })
}
