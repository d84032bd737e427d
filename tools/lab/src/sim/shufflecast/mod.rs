//! The figures of Shufflecast (sections 3, 6.1 and 6.3): what the planner's static rules and their update reach, the load
//! of splitters, and the paper's model of power and cost. Nothing is simulated: no frame is sent.
//! docs/shufflecast.md has the results.

mod assumptions;
mod cost;
mod failures;
mod line_rate;
mod reach;

use std::collections::BTreeMap;
use std::path::PathBuf;

use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use castnet_console::plot::{Axes, Curve, Panel};
use castnet_planner::shufflecast::{Shufflecast, Tor};
use clap::{Args, Subcommand};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::sim::figures;
use crate::sim::report::{FigureReport, Plot, Reports};

/// The figures of Shufflecast: static relays behind splitters, and what they cost
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Nothing is simulated: the rules are followed from ToR to ToR.

Examples:
  castnet-lab sim shufflecast reach                      hops to all ToRs, and what a failed relay cuts off
  castnet-lab sim shufflecast failures 4,4 --svg 4-4.svg one Shufflecast, with plots
  castnet-lab sim shufflecast line-rate --quick          loads of splitters, from few samples
  castnet-lab sim shufflecast cost                       power and cost beside IP multicast"
)]
pub(crate) struct ShufflecastCommand {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Hops of a multicast to all ToRs, and what a failed relay cuts off before a recovery (lemma 3.1, figure 7a)
    #[command(after_help = "Examples:
  castnet-lab sim shufflecast reach
  castnet-lab sim shufflecast reach 2,3 8,4 --svg reach.svg")]
    Reach(Fabrics),
    /// Single failures after the recovery by Algorithm 2: rules, hops, throughput (figures 7b and 7c)
    #[command(after_help = "Examples:
  castnet-lab sim shufflecast failures --quick
  castnet-lab sim shufflecast failures 4,4 --output json")]
    Failures(Fabrics),
    /// Rates of ToRs that multicast at once (lemma 3.3)
    #[command(after_help = "Examples:
  castnet-lab sim shufflecast line-rate
  castnet-lab sim shufflecast line-rate 4,3 --svg rates.svg")]
    LineRate(Fabrics),
    /// Power and capital cost beside a peer-to-peer overlay and IP multicast (6.1, figures 6b and 6c)
    Cost(cost::CostCommand),
}

#[derive(Debug, Args)]
struct Fabrics {
    /// Each is a p,k-Shufflecast. Default: those of figure 7, and 4,4 with 1,024 ToRs
    #[arg(value_name = "P,K", default_values = ["4,3", "6,3", "8,3", "4,4"])]
    fabrics: Vec<Shufflecast>,
    /// Fewer failures and samples
    #[arg(long)]
    quick: bool,
    /// Draws a plot; of several figures one each, with the name of the figure before the extension
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

type Figures = fn(&[Shufflecast], Extent) -> Vec<FigureReport>;

impl ShufflecastCommand {
    pub(crate) fn run(self, output: Output) -> Outcome {
        // With the figures that have a plot.
        let (fabrics, run, drawn): (_, Figures, &[&str]) = match self.part {
            Part::Reach(fabrics) => (fabrics, reach::figures, &["fig7a"]),
            Part::Failures(fabrics) => (fabrics, failures::figures, &["fig7b", "fig7c"]),
            Part::LineRate(fabrics) => (fabrics, line_rate::figures, &["lemma33"]),
            Part::Cost(command) => return command.run(output),
        };
        let Fabrics { fabrics, quick, svg } = fabrics;
        if let Some(svg) = &svg {
            figures::check(svg, drawn)?;
        }
        Reports::of(run(&fabrics, Extent { quick })).show(svg, output)
    }
}

/// How much is tried.
#[derive(Clone, Copy, Debug)]
struct Extent {
    quick: bool,
}

impl Extent {
    /// The ToRs that fail one after the other, or multicast: all, or so many of them, evenly spread, that `steps` for each
    /// take seconds. All ToRs of a Shufflecast are alike: their digits can be shifted by constants, and their columns.
    fn tors(self, fabric: Shufflecast, steps: usize) -> Vec<Tor> {
        let count = self.times(steps).min(fabric.size());
        let every = fabric.size().div_ceil(count);
        fabric.tors().step_by(every).collect()
    }

    /// Number of samples, of which each takes `steps`.
    fn samples(self, steps: usize) -> u64 {
        let most = if self.quick { 3 } else { SAMPLES_MAX };
        most.min(self.times(steps) as u64)
    }

    fn times(self, steps: usize) -> usize {
        let steps_max: usize = if self.quick { 1 << 23 } else { 1 << 30 };
        (steps_max / steps).max(1)
    }
}

const SAMPLES_MAX: u64 = 20;
/// The first sample of a kind is drawn with this seed, the next with the next.
const SEED: u64 = 1;

/// `count` of the ToRs.
fn sample(tors: &[Tor], count: usize, seed: u64) -> Vec<Tor> {
    let mut tors = tors.to_vec();
    let (drawn, _) = tors.partial_shuffle(&mut ChaCha8Rng::seed_from_u64(seed), count);
    drawn.to_vec()
}

/// Least and greatest of nothing.
const NOTHING: (f64, f64) = (f64::MAX, 0.0);

/// Least and greatest.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold(NOTHING, |(least, greatest), value| {
        (value.min(least), value.max(greatest))
    })
}

fn extend(range: &mut (f64, f64), value: usize) {
    *range = (range.0.min(value as f64), range.1.max(value as f64));
}

/// Values and how often each occurs.
type Counts = BTreeMap<usize, usize>;

/// Share of what was counted, in percent.
fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all as f64
}

/// A cumulative distribution in steps. `x` scales the values.
fn cdf(fabric: Shufflecast, counts: &Counts, x: impl Fn(usize) -> f64) -> Curve {
    let all = counts.values().sum();
    let (mut points, mut below) = (vec![(0.0, 0.0)], 0);
    for (value, count) in counts {
        points.push((x(*value), percent(below, all)));
        below += count;
        points.push((x(*value), percent(below, all)));
    }
    let name = fabric.to_string();
    Curve { name, points }
}

/// One panel with linear axes.
fn panel(title: &str, x: &'static str, y: &'static str, curves: Vec<Curve>) -> Plot {
    let title = title.to_owned();
    Plot {
        axes: Axes::linear(x, y),
        panels: vec![Panel { title, curves }],
    }
}
