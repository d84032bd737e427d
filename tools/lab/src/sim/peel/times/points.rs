//! Points of the figures: runs of several schemes, their tables and plots.

use castnet_console::plot::{Axes, Curve, Panel};

use super::network::Config;
use super::runs::{Kind, Measured, Placement, Run};
use super::schemes::Scheme;
use crate::sim::figures::Failed;
use crate::sim::parallel;
use crate::sim::peel::Extent;
use crate::sim::report::{Cell, Plot, Table};

/// The load of the paper's figure 5.
pub(super) const LOAD: f64 = 0.3;
/// Broadcasts of a run with load, at most. One at a time needs fewer: only set-up delays and paths differ.
const BROADCASTS_MAX: u32 = 300;

/// What the points of a figure have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) kind: Kind,
    pub(super) placement: Placement,
    pub(super) gpus: u32,
    pub(super) bytes: u64,
}

impl Setting {
    pub(super) fn new(gpus: u32, bytes: u64) -> Self {
        Self {
            kind: Kind::FatTree,
            placement: Placement::Packed,
            gpus,
            bytes,
        }
    }

    /// A run of this setting. A load of 0: one broadcast after the other.
    pub(super) fn run(self, scheme: Scheme, load: f64, extent: Extent) -> Run {
        let with_load = extent.draws.clamp(2, BROADCASTS_MAX);
        let broadcasts = match (scheme, load > 0.0) {
            // It has 30 times as many events as the others, and varies little.
            (Scheme::TreeOfGpus, _) => (with_load / 60).max(2),
            (_, true) => with_load,
            (_, false) => (with_load / 3).max(2),
        };
        let parts = match self.kind {
            Kind::FatTree => 1,
            // With load, a part must be longer than the network takes to fill.
            Kind::LeafSpine { .. } if load > 0.0 => (broadcasts / 100).max(1),
            Kind::LeafSpine { .. } => (broadcasts / 10).max(1),
        };
        Run {
            kind: self.kind,
            scheme,
            placement: self.placement,
            gpus: self.gpus,
            bytes: self.bytes,
            load,
            broadcasts,
            parts,
            seed: extent.seed,
            config: Config::PAPER,
        }
    }
}

/// The results of all runs, in order.
pub(super) fn measure(runs: &[Run]) -> Result<Vec<Measured>, Failed> {
    // Long runs first, so that none remains for a single processor at the end.
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(runs[*index].cost()));
    let measured = parallel::map(&order, parallel::processors(), true, |index| {
        runs[*index].measure()
    })?;
    let mut all: Vec<(usize, Measured)> = order.into_iter().zip(measured).collect();
    all.sort_by_key(|(index, _)| *index);
    Ok(all.into_iter().map(|(_, measured)| measured).collect())
}

/// One scheme at one place of the x axis.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) x: u32,
    pub(super) scheme: Scheme,
    /// One broadcast after the other.
    pub(super) alone: Measured,
    /// With [`LOAD`]; not for the tree of GPUs, which has more traffic than the links carry then.
    pub(super) loaded: Option<Measured>,
}

/// All points of a figure.
#[derive(Clone, Debug)]
pub(super) struct Points(pub(super) Vec<Point>);

impl Points {
    /// Runs all schemes in all settings, alone and with load.
    pub(super) fn of(
        settings: &[(u32, Setting)],
        schemes: &[Scheme],
        extent: Extent,
    ) -> Result<Self, Failed> {
        let mut runs = Vec::new();
        let mut points = Vec::new();
        for (x, setting) in settings {
            for scheme in schemes {
                let is_loaded = *scheme != Scheme::TreeOfGpus;
                runs.push(setting.run(*scheme, 0.0, extent));
                if is_loaded {
                    runs.push(setting.run(*scheme, LOAD, extent));
                }
                points.push((*x, *scheme, is_loaded));
            }
        }
        let mut measured = measure(&runs)?.into_iter();
        let mut next = || measured.next().ok_or("a result for each run");
        let point = |(x, scheme, is_loaded): (u32, Scheme, bool)| {
            Ok(Point {
                x,
                scheme,
                alone: next()?,
                loaded: if is_loaded { Some(next()?) } else { None },
            })
        };
        let points: Result<Vec<Point>, Failed> = points.into_iter().map(point).collect();
        Ok(Self(points?))
    }

    pub(super) fn events(&self) -> u64 {
        let both = self
            .0
            .iter()
            .flat_map(|point| point.loaded.iter().chain([&point.alone]));
        both.map(|measured| measured.totals.events).sum()
    }

    fn at(&self, x: u32, scheme: Scheme) -> Option<&Point> {
        self.0.iter().find(|point| point.x == x && point.scheme == scheme)
    }

    /// A value alone. NaN if there is no such point.
    pub(super) fn alone(&self, x: u32, scheme: Scheme, value: fn(&Measured) -> f64) -> f64 {
        self.at(x, scheme).map_or(f64::NAN, |point| value(&point.alone))
    }

    /// And with load.
    pub(super) fn loaded(&self, x: u32, scheme: Scheme, value: fn(&Measured) -> f64) -> f64 {
        let point = self.at(x, scheme).and_then(|point| point.loaded.as_ref());
        point.map_or(f64::NAN, value)
    }

    /// A line for each point. Times are in milliseconds.
    pub(super) fn table(&self, x: &'static str) -> Table {
        let number = |value: Option<f64>| value.map_or(Cell::Text("-".to_owned()), Cell::Number);
        let row = |point: &Point| {
            let over = |value: f64, optimal: f64| (!optimal.is_nan()).then_some(value / optimal);
            let optimal = self.alone(point.x, Scheme::Optimal, Measured::mean);
            let mean = point.loaded.as_ref().map(Measured::mean);
            let tail = point.loaded.as_ref().map(Measured::tail);
            let [of_mean, of_tail] =
                [Measured::mean, Measured::tail].map(|value| self.loaded(point.x, Scheme::Optimal, value));
            vec![
                Cell::Count(point.x as usize),
                Cell::Text(point.scheme.name().to_owned()),
                Cell::Number(point.alone.mean() * 1e3),
                number(over(point.alone.mean(), optimal)),
                number(mean.map(|mean| mean * 1e3)),
                number(mean.and_then(|mean| over(mean, of_mean))),
                number(tail.map(|tail| tail * 1e3)),
                number(tail.and_then(|tail| over(tail, of_tail))),
                Cell::Number(point.alone.links),
            ]
        };
        Table {
            columns: vec![
                x,
                "scheme",
                "alone ms",
                "over optimal",
                "mean ms",
                "mean over optimal",
                "p99 ms",
                "p99 over optimal",
                "links",
            ],
            rows: self.0.iter().map(row).collect(),
        }
    }

    /// Times in milliseconds over x: alone, means and tails with load.
    pub(super) fn plot(&self, axes: Axes) -> Plot {
        type Value = fn(&Point) -> Option<f64>;
        let values: [(&str, Value); 3] = [
            ("one at a time, mean", |point| Some(point.alone.mean())),
            ("30 % load, mean", |point| Some(point.loaded.as_ref()?.mean())),
            ("30 % load, 99th percentile", |point| {
                Some(point.loaded.as_ref()?.tail())
            }),
        ];
        let mut schemes: Vec<Scheme> = self.0.iter().map(|point| point.scheme).collect();
        schemes.sort_unstable();
        schemes.dedup();
        let panel = |(title, value): (&str, Value)| {
            let curve = |scheme: &Scheme| Curve {
                name: scheme.name().to_owned(),
                points: self
                    .0
                    .iter()
                    .filter(|point| point.scheme == *scheme)
                    .filter_map(|point| Some((f64::from(point.x), value(point)? * 1e3)))
                    .collect(),
            };
            Panel {
                title: title.to_owned(),
                curves: schemes.iter().map(curve).collect(),
            }
        };
        Plot {
            axes,
            panels: values.map(panel).to_vec(),
        }
    }
}
