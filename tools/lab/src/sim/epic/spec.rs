//! The runs of each cell of each table, and what is counted.

use castnet_comm::machine::Collective;
use castnet_rules::LossPolicy;
use castnet_wire::{CounterSet, Nanos};

use super::counts::{self, Counter, Counts};
use super::formula::{Siblings, expected};
use super::measure::{Hosts, Loss, Method, Net, RANKS, Run, Times};
use super::paper;
use super::reason::{self, Reason};

/// End of a collective. The paper is not consistent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    Arrived,
    /// Everything sent is acknowledged.
    Settled,
}

impl Counting {
    pub(crate) fn of(self, times: &Times) -> f64 {
        match self {
            Self::Arrived => times.arrived,
            Self::Settled => times.settled,
        }
    }
}

/// How a time is obtained.
#[derive(Clone, Debug)]
pub(crate) enum Sample {
    Mean(Vec<Run>),
    /// A message too long to be simulated: the time of the one of `whole` bytes, extrapolated at the rate between
    /// `half` and `whole`.
    Steady {
        half: Run,
        whole: Run,
        more: f64,
    },
}

impl Sample {
    fn of(run: Run, whole_bytes: u64) -> Self {
        if run.bytes <= whole_bytes {
            return Self::Mean(vec![run]);
        }
        let of = |bytes| Run { bytes, ..run };
        Self::Steady {
            half: of(whole_bytes / 2),
            whole: of(whole_bytes),
            more: (run.bytes - whole_bytes) as f64 / (whole_bytes - whole_bytes / 2) as f64,
        }
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        match self {
            Self::Mean(runs) => runs.clone(),
            Self::Steady { half, whole, .. } => vec![*half, *whole],
        }
    }

    pub(crate) fn times(&self, of: impl Fn(&Run) -> Times) -> Times {
        match self {
            Self::Mean(runs) => {
                let count = runs.len().max(1) as f64;
                runs.iter().fold(Times::default(), |sum, run| {
                    sum.with(of(run), |sum, time| sum + time / count)
                })
            }
            Self::Steady { half, whole, more } => {
                of(half).with(of(whole), |half, whole| whole + (whole - half) * more)
            }
        }
    }

    /// The sum of the counts of its runs, and how many they are. Of a message too long to be simulated: of the longest one that is.
    pub(crate) fn counts(&self, of: impl Fn(&Run) -> Counts) -> (Counts, usize) {
        let runs = match self {
            Self::Mean(runs) => runs.as_slice(),
            Self::Steady { whole, .. } => std::slice::from_ref(whole),
        };
        let mut sum = Counts::default();
        runs.iter().for_each(|run| sum.add(&of(run)));
        (sum, runs.len())
    }
}

/// What a cell shows of its time.
#[derive(Clone, Debug)]
pub(crate) enum Figure {
    /// This amount, divided by the time in nanoseconds, which the paper rounds up.
    Rate(f64),
    /// The same, not rounded.
    ExactRate(f64),
    /// These seconds, and the time, less that of another method.
    Seconds { base: f64, less: Sample },
    /// How many seconds less it is than that of another method.
    Saved(Sample),
}

impl Figure {
    /// A time as the paper has it.
    pub(crate) fn rounded(&self, time: f64) -> f64 {
        match self {
            Self::Rate(_) => (time / 1e3).ceil() * 1e3,
            _ => time,
        }
    }

    /// `time` is in nanoseconds.
    pub(crate) fn value(&self, time: f64, of: impl Fn(&Run) -> Times) -> f64 {
        let other = |sample: &Sample| sample.times(of).arrived;
        match self {
            Self::Rate(amount) | Self::ExactRate(amount) => amount / time,
            Self::Seconds { base, less } => base + (time - other(less)) / 1e9,
            Self::Saved(sample) => (other(sample) - time) / 1e9,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct CellSpec {
    /// NaN for a row that the paper does not have.
    pub(crate) paper: f64,
    pub(crate) figure: Figure,
    pub(crate) sample: Sample,
    pub(crate) counting: Counting,
    pub(crate) others: Vec<(Sample, Counting)>,
    /// Why the cell differs, if the row's reason does not apply.
    pub(crate) reason: Option<Reason>,
    pub(crate) lossy: Option<Lossy>,
}

/// A cell under loss. The counts of its runs say why it differs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lossy {
    /// The least that it may be, as a part of the paper's.
    pub(crate) least: f64,
    /// What the paper's appendix F.4 expects, as a part of the row's first cell, which has no loss.
    pub(crate) expected: f64,
}

impl CellSpec {
    pub(crate) fn samples(&self) -> impl Iterator<Item = &Sample> {
        let less = match &self.figure {
            Figure::Rate(_) | Figure::ExactRate(_) => None,
            Figure::Seconds { less, .. } | Figure::Saved(less) => Some(less),
        };
        let others = self.others.iter().map(|(sample, _)| sample);
        [&self.sample].into_iter().chain(less).chain(others)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RowSpec {
    pub(crate) name: &'static str,
    pub(crate) cells: Vec<CellSpec>,
    pub(crate) others: Vec<&'static str>,
    /// Why cells differ, if the paper's values match another method.
    pub(crate) reason: Option<Reason>,
}

#[derive(Clone, Debug)]
pub(crate) struct TableSpec {
    pub(crate) number: u32,
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<RowSpec>,
    /// Counts that are shown below each row.
    pub(crate) counters: &'static [Counter],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) whole_bytes: u64,
    pub(crate) seed: u64,
    pub(crate) seeds: u64,
}

pub(crate) fn tables(extent: Extent) -> Vec<TableSpec> {
    let mut tables: Vec<TableSpec> = paper::BY_SIZE.iter().map(|t| by_size(extent, t)).collect();
    tables.push(barrier());
    tables.push(by_loss_rate(extent));
    tables.push(by_lossy_links(extent));
    tables.push(training(extent));
    tables.push(slow_link(extent));
    tables
}

fn quiet(method: Method, collective: Collective, bytes: u64) -> Run {
    Run {
        method,
        hosts: Hosts::Software,
        collective,
        bytes,
        loss: Loss::NONE,
        net: Net::PAPER,
        seed: 0,
    }
}

/// A cell of Mode-I, which the paper does not simulate.
fn ours_alone(sample: Sample) -> CellSpec {
    CellSpec {
        paper: f64::NAN,
        figure: Figure::Rate(1e9),
        sample,
        counting: Counting::Arrived,
        others: Vec::new(),
        reason: None,
        lossy: None,
    }
}

fn mode_one(cells: Vec<CellSpec>) -> RowSpec {
    RowSpec {
        name: "Mode-I",
        cells,
        others: Vec::new(),
        reason: None,
    }
}

/// Gibit, to be divided by nanoseconds.
fn gibit(bytes: f64) -> f64 {
    bytes * 8.0 * 1e9 / (1u64 << 30) as f64
}

fn by_size(extent: Extent, paper: &paper::BySize) -> TableSpec {
    use Counting::{Arrived, Settled};
    let collective = paper.collective;
    let epic = Method::Epic(LossPolicy::Repair);
    let ranks = f64::from(RANKS);
    let (gathers, scatters) = (
        collective == Collective::AllGather,
        collective == Collective::ReduceScatter,
    );
    // Bits that the paper divides by the time, per byte of the message.
    let amounts = match (gathers, scatters) {
        (true, _) => [ranks, ranks, ranks - 1.0],
        (_, true) => [1.0, 1.0, (ranks - 1.0) / ranks],
        _ => [1.0; 3],
    };
    // The paper's counting and method: see `paper`.
    type Other = Option<(&'static str, Method, Reason)>;
    let in_steps: Other = Some(("in steps", Method::Steps, reason::RING_STEPS));
    let in_turn: Other = Some(("one by one", Method::InTurn, reason::IN_TURN));
    let (countings, others): ([Counting; 3], [Other; 3]) = match collective {
        Collective::AllReduce => (
            [Settled, Arrived, Arrived],
            [
                None,
                None,
                Some(("in 15 steps", Method::Steps, reason::RING_ALLREDUCE)),
            ],
        ),
        Collective::Reduce { .. } => (
            [Arrived, Arrived, Settled],
            [
                None,
                None,
                Some(("2 us a hop", Method::Steps, reason::RING_REDUCE)),
            ],
        ),
        Collective::Broadcast { .. } => ([Arrived, Arrived, Settled], [None; 3]),
        Collective::AllGather => ([Arrived; 3], [in_turn, in_turn, in_steps]),
        Collective::ReduceScatter | Collective::Barrier => ([Arrived; 3], [None, None, in_steps]),
    };
    // An AllGather moves one message from each rank. Messages below 1 MiB do not reach a steady state.
    let whole = if gathers {
        (extent.whole_bytes / u64::from(RANKS)).max(1 << 20)
    } else {
        extent.whole_bytes
    };
    let sources = [
        ("Mode-II", epic, &paper.translated),
        ("Mode-III", Method::Augmented, &paper.augmented),
        ("Ring", Method::Ring, &paper.ring),
    ];
    let rows = sources
        .into_iter()
        .enumerate()
        .map(|(i, (name, method, theirs))| {
            let cell = |(&bytes, &paper): (&u64, &f64)| CellSpec {
                paper,
                figure: Figure::Rate(gibit(bytes as f64 * amounts[i])),
                sample: Sample::of(quiet(method, collective, bytes), whole),
                counting: countings[i],
                others: others[i]
                    .iter()
                    .map(|(_, method, _)| (Sample::of(quiet(*method, collective, bytes), whole), Arrived))
                    .collect(),
                reason: None,
                lossy: None,
            };
            RowSpec {
                name,
                cells: paper::SIZES.iter().zip(theirs).map(cell).collect(),
                others: others[i].iter().map(|(name, ..)| *name).collect(),
                reason: others[i].map(|(.., reason)| reason),
            }
        });
    let terminated = |&bytes: &u64| CellSpec {
        figure: Figure::Rate(gibit(bytes as f64 * amounts[1])),
        ..ours_alone(Sample::of(quiet(Method::Terminated, collective, bytes), whole))
    };
    TableSpec {
        number: paper.number,
        title: format!("{} by message size, Gibit/s", paper.name),
        unit: "Gibit/s",
        columns: paper::SIZES.map(size_name).into(),
        rows: rows
            .chain([mode_one(paper::SIZES.iter().map(terminated).collect())])
            .collect(),
        counters: &[],
    }
}

fn barrier() -> TableSpec {
    let ways = [
        ("Mode-II", Method::Epic(LossPolicy::Repair), Counting::Settled),
        ("Mode-III", Method::Augmented, Counting::Arrived),
        ("to rank 0", Method::Ring, Counting::Settled),
    ];
    let rows = ways
        .into_iter()
        .zip(paper::BARRIER)
        .map(|((name, method, counting), paper)| RowSpec {
            name,
            cells: vec![CellSpec {
                paper,
                figure: Figure::Rate(1e9),
                sample: Sample::Mean(vec![quiet(method, Collective::Barrier, 0)]),
                counting,
                others: Vec::new(),
                reason: None,
                lossy: None,
            }],
            others: Vec::new(),
            reason: None,
        });
    TableSpec {
        number: 30,
        title: "barriers per second".into(),
        unit: "1/s",
        columns: vec!["1/s".into()],
        rows: rows
            .chain([mode_one(vec![ours_alone(Sample::Mean(vec![quiet(
                Method::Terminated,
                Collective::Barrier,
                0,
            )]))])])
            .collect(),
        counters: &[],
    }
}

/// Bands of tables 31 and 32 with the default settings: the least that each cell may be, as a part of the paper's.
struct Least {
    by_loss: [f64; 10],
    by_links: [f64; 9],
}

const SELECTIVE: Least = Least {
    by_loss: [0.97, 0.95, 0.85, 0.75, 0.65, 0.42, 0.33, 0.28, 0.24, 0.20],
    by_links: [0.97, 0.42, 0.40, 0.38, 0.37, 0.37, 0.37, 0.37, 0.37],
};
const GO_BACK: Least = Least {
    by_loss: [0.97, 0.80, 0.45, 0.35, 0.25, 0.15, 0.09, 0.06, 0.06, 0.05],
    by_links: [0.97, 0.15, 0.13, 0.12, 0.12, 0.10, 0.10, 0.10, 0.10],
};

fn by_loss_rate(extent: Extent) -> TableSpec {
    let cells = paper::BY_LOSS.map(|(percent, paper)| {
        let loss = Loss {
            links: u32::from(percent > 0.0),
            rate: percent / 100.0,
        };
        (loss, paper)
    });
    TableSpec {
        number: 31,
        title: "AllReduce of 4 MiB, loss on one link, Gibit/s".into(),
        unit: "Gibit/s",
        columns: paper::BY_LOSS.map(|(percent, _)| format!("{percent} %")).into(),
        rows: lossy(extent, &cells, |least| &least.by_loss),
        counters: counts::OF_LOSS,
    }
}

fn by_lossy_links(extent: Extent) -> TableSpec {
    let loss = |links| Loss { links, rate: 0.05 };
    let cells: Vec<_> = (0..).map(loss).zip(paper::BY_LINKS).collect();
    TableSpec {
        number: 32,
        title: "AllReduce of 4 MiB, 5 % of loss on so many links, Gibit/s".into(),
        unit: "Gibit/s",
        columns: (0..cells.len()).map(|links| links.to_string()).collect(),
        rows: lossy(extent, &cells, |least| &least.by_links),
        counters: counts::OF_LOSS,
    }
}

/// The rows of a table under loss. The paper's values are those of Mode-II and Mode-III.
fn lossy(
    extent: Extent,
    cells: &[(Loss, [f64; 2])],
    least: impl Fn(&'static Least) -> &'static [f64],
) -> Vec<RowSpec> {
    let sample = |method: Method, hosts: Hosts, loss: Loss| {
        let seeds = if loss.links == 0 { 1 } else { extent.seeds.max(1) };
        let run = |seed| Run {
            method,
            hosts,
            collective: Collective::AllReduce,
            bytes: paper::LOSS_BYTES,
            loss,
            net: Net::PAPER,
            seed,
        };
        Sample::Mean((extent.seed..extent.seed + seeds).map(run).collect())
    };
    // Losses are detected after one round trip.
    let ideal = |window| Method::Ideal {
        window,
        notice: Nanos::from_micros(4),
    };
    let repair = Method::Epic(LossPolicy::Repair);
    let reflect = Method::Epic(LossPolicy::Reflect);
    let (software, rnic) = (Hosts::Software, Hosts::GoBack);
    let rows = [
        ("Mode-II, repair, selective", repair, software, &SELECTIVE),
        ("Mode-II, repair, go back", repair, rnic, &GO_BACK),
        ("Mode-II, reflect, go back, probe", reflect, software, &GO_BACK),
        ("Mode-II, reflect, go back", reflect, rnic, &GO_BACK),
        ("Mode-III, selective", Method::Augmented, software, &SELECTIVE),
        ("Mode-III, go back", Method::Augmented, rnic, &GO_BACK),
        ("Mode-I, go back, probe", Method::Terminated, software, &GO_BACK),
        ("Mode-I, go back", Method::Terminated, rnic, &GO_BACK),
    ];
    let row =
        |(index, (name, method, hosts, band)): (usize, (&'static str, Method, Hosts, &'static Least))| {
            let (mode, siblings) = match method {
                Method::Epic(_) => (Some(0), Siblings::All),
                Method::Augmented => (Some(1), Siblings::Slowest),
                _ => (None, Siblings::Slowest),
            };
            // Ideal ranks are those of no mode: they are shown once.
            let windows: &[u32] = if index == 0 { &[24, 64] } else { &[] };
            let cell = |(&(loss, paper), &least): (&(Loss, [f64; 2]), &f64)| CellSpec {
                paper: mode.map_or(f64::NAN, |mode: usize| paper[mode]),
                figure: Figure::Rate(gibit(paper::LOSS_BYTES as f64)),
                sample: sample(method, hosts, loss),
                counting: Counting::Settled,
                others: windows
                    .iter()
                    .map(|window| (sample(ideal(*window), software, loss), Counting::Settled))
                    .collect(),
                reason: None,
                lossy: Some(Lossy {
                    least,
                    expected: on_the_star(siblings, loss),
                }),
            };
            RowSpec {
                name,
                cells: cells.iter().zip(least(band)).map(cell).collect(),
                others: if index == 0 {
                    vec!["ideal, 24", "ideal, 64"]
                } else {
                    Vec::new()
                },
                reason: None,
            }
        };
    rows.into_iter().enumerate().map(row).collect()
}

/// What appendix F.4 expects of the star: data goes up one hop, and down one.
fn on_the_star(siblings: Siblings, loss: Loss) -> f64 {
    let delivers = |link: u32| if link < loss.links { 1.0 - loss.rate } else { 1.0 };
    let links: Vec<f64> = (0..u32::from(RANKS)).map(delivers).collect();
    let hop = links.as_slice();
    expected(siblings, &[hop; 2])
}

/// An iteration ends with the AllReduce of the gradients among the ranks that have the same part of the model.
fn training(extent: Extent) -> TableSpec {
    let modes = [
        ("Mode-II", Method::Epic(LossPolicy::Repair)),
        ("Mode-III", Method::Augmented),
    ];
    let sample = |method, model: &paper::Model| {
        let ranks = model.data_parallel;
        let net = Net { ranks, ..Net::PAPER };
        let run = quiet(method, Collective::AllReduce, model.gradient_bytes());
        // A ring of so many ranks takes long to reach its steady state.
        Sample::of(Run { net, ..run }, extent.whole_bytes.max(32 << 20))
    };
    let row = |name, method, mode: Option<usize>| {
        let cell = |model: &paper::Model| {
            let ring = sample(Method::Ring, model);
            let (base, theirs) = (model.ring, mode.map_or(model.ring, |mode| model.modes[mode]));
            CellSpec {
                paper: theirs,
                figure: Figure::Seconds { base, less: ring },
                sample: sample(method, model),
                counting: Counting::Arrived,
                others: Vec::new(),
                reason: None,
                lossy: None,
            }
        };
        RowSpec {
            name,
            cells: paper::MODELS.iter().map(cell).collect(),
            others: Vec::new(),
            reason: None,
        }
    };
    let saved = |name, method, mode: usize| {
        let whole: RowSpec = row(name, method, Some(mode));
        let cells = whole.cells.into_iter().zip(&paper::MODELS);
        let cells = cells.map(|(cell, model)| CellSpec {
            paper: model.ring - cell.paper,
            figure: Figure::Saved(sample(Method::Ring, model)),
            ..cell
        });
        RowSpec {
            name,
            cells: cells.collect(),
            others: Vec::new(),
            reason: None,
        }
    };
    let [(two, translated), (three, augmented)] = modes;
    TableSpec {
        number: 34,
        title: "an iteration of training, and what it takes less than with rings, s".into(),
        unit: "s",
        columns: paper::MODELS.iter().map(|model| model.name.to_owned()).collect(),
        rows: vec![
            row(two, translated, Some(0)),
            row(three, augmented, Some(1)),
            saved("Mode-II, less", translated, 0),
            saved("Mode-III, less", augmented, 1),
        ],
        counters: &[],
    }
}

/// Links of 200 Gb/s, of which one has 100 Gb/s left.
fn slow_link(extent: Extent) -> TableSpec {
    let net = Net {
        gbps: 200,
        first_gbps: 100,
        ..Net::PAPER
    };
    let row = |name, method, theirs: &[f64; 8], reason: Option<Reason>| {
        let cell = |(&bytes, &paper): (&u64, &f64)| {
            let run = quiet(method, Collective::AllReduce, bytes);
            let sample = |net| Sample::of(Run { net, ..run }, extent.whole_bytes);
            let free = Net {
                first_gbps: net.gbps,
                ..net
            };
            CellSpec {
                paper,
                figure: Figure::ExactRate(bytes as f64 * 8.0),
                sample: sample(net),
                counting: Counting::Arrived,
                others: vec![(sample(free), Counting::Arrived)],
                // Shorter ones fit the pipe.
                reason: match bytes >> 18 {
                    0 => None,
                    1 => reason.map(|_| reason::CALLED_BACK),
                    _ => reason,
                },
                lossy: None,
            }
        };
        RowSpec {
            name,
            cells: paper::SLOW_SIZES.iter().zip(theirs).map(cell).collect(),
            others: vec!["all 200 Gb/s"],
            reason: Some(reason::FREE_LINK),
        }
    };
    let ahead = |reacts| Method::Ahead { windows: 4, reacts };
    let [without, with] = &paper::SLOW;
    TableSpec {
        number: 35,
        title: "AllReduce over seven links of 200 Gb/s and one of 100 Gb/s, Gbit/s".into(),
        unit: "Gbit/s",
        columns: paper::SLOW_SIZES.map(size_name).into(),
        rows: vec![
            row("one window", Method::Augmented, without, None),
            row("four, no CNPs", ahead(false), without, Some(reason::CALLED_BACK)),
            row("four, CNPs", ahead(true), with, Some(reason::UNDERSHOOT)),
        ],
        counters: counts::OF_SLOW_LINK,
    }
}

fn size_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{}G", b >> 30),
        b if b >= 1 << 20 => format!("{}M", b >> 20),
        b => format!("{}K", b >> 10),
    }
}
