//! Lemma 3.3: how many ToRs multicast at line rate at once.

use std::collections::BTreeSet;

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_planner::shufflecast::{Relaying, Shufflecast, Tor};

use super::{Extent, SAMPLES_MAX, SEED, range, sample};
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Table};

/// Highest loads of a splitter with so many sources, for each way to choose them.
struct Loads {
    sources: usize,
    /// In groups of `p` without a common digit, as the lemma has them.
    chosen: usize,
    /// At random, from one column; mean of the samples.
    column: f64,
    /// At random, from all.
    any: f64,
}

pub(super) fn figures(fabrics: &[Shufflecast], extent: Extent) -> Vec<FigureReport> {
    let (mut rows, mut panels, mut headlines) = (Vec::new(), Vec::new(), Vec::new());
    let all: Vec<_> = fabrics
        .iter()
        .map(|fabric| (*fabric, loads(*fabric, extent)))
        .collect();
    for (fabric, loads) in &all {
        for at in loads {
            rows.push(vec![
                Cell::Text(fabric.to_string()),
                Cell::Count(at.sources),
                Cell::Number(lemma(*fabric, at.sources)),
                Cell::Number(1.0 / at.chosen as f64),
                Cell::Count(at.chosen),
                Cell::Number(at.column),
                Cell::Number(at.any),
            ]);
        }
        let curve = |name: &str, load: fn(&Loads) -> f64| Curve {
            name: name.to_owned(),
            points: loads.iter().map(|at| (at.sources as f64, load(at))).collect(),
        };
        panels.push(Panel {
            title: format!("{fabric}-Shufflecast"),
            curves: vec![
                curve("groups of p", |at| at.chosen as f64),
                curve("of a column", |at| at.column),
                curve("any", |at| at.any),
            ],
        });
    }
    for groups in 1..=3 {
        let rate = |(fabric, loads): &(Shufflecast, Vec<Loads>)| {
            let at = loads.iter().find(|at| at.sources == groups * fabric.p())?;
            Some(1.0 / at.chosen as f64)
        };
        let rates: Vec<f64> = all.iter().filter_map(rate).collect();
        if !rates.is_empty() {
            let paper = 1.0 / groups as f64;
            let what = format!("rate of {groups} p ToRs of a column");
            headlines.push(Headline::exact(&what, paper, range(rates.into_iter())));
        }
    }
    for (fabric, loads) in &all {
        if let Some(column) = loads.last() {
            let what = format!("{fabric}: rate of a whole column");
            let paper = lemma(*fabric, column.sources);
            let rate = 1.0 / column.chosen as f64;
            headlines.push(Headline::exact(&what, paper, (rate, rate)));
        }
    }
    vec![FigureReport {
        name: "lemma33",
        title: "Rates of ToRs that multicast to all at once",
        setting: format!(
            "A splitter carries the multicasts of all sources for which its ToR relays; the load is their number. The rate of the slowest source is line\n\
             rate over the highest load. Sources of a column in groups of p that share no digit, as lemma 3.3 has them, and beside them the highest\n\
             loads with sources at random: the mean of up to {SAMPLES_MAX} samples, from seed {SEED}."
        ),
        table: Table {
            columns: vec![
                "fabric",
                "sources",
                "rate by 3.3",
                "rate",
                "load",
                "random of column",
                "random of all",
            ],
            rows,
        },
        headlines,
        events: 0,
        plot: Plot {
            axes: Axes::logarithmic("sources", "highest load"),
            panels,
        },
    }]
}

/// Share of line rate by lemma 3.3.
fn lemma(fabric: Shufflecast, sources: usize) -> f64 {
    1.0 / sources.div_ceil(fabric.p()) as f64
}

fn loads(fabric: Shufflecast, extent: Extent) -> Vec<Loads> {
    let rules = Relaying::of(fabric);
    let highest = |sources: &[Tor]| rules.loads(sources).into_iter().max().unwrap_or(0);
    let all: Vec<Tor> = fabric.tors().collect();
    let column: Vec<Tor> = fabric.tors().filter(|tor| fabric.column(*tor) == 0).collect();
    let first = column.iter().filter(|tor| fabric.partition(**tor) == 0);
    let groups: Vec<Tor> = first.flat_map(|tor| fabric.at_line_rate(*tor)).collect();
    let p = fabric.p();
    let counts = BTreeSet::from([1, 2, p, 2 * p, 3 * p, 4 * p, column.len() / 2, column.len()]);
    let counts = counts.into_iter().filter(|count| *count <= column.len());
    let samples = extent.samples(fabric.size());
    let at = |sources| {
        let mean = |tors: &[Tor]| {
            let loads = (SEED..SEED + samples).map(|seed| highest(&sample(tors, sources, seed)));
            loads.sum::<usize>() as f64 / samples as f64
        };
        Loads {
            sources,
            chosen: highest(&groups[..sources]),
            column: mean(&column),
            any: mean(&all),
        }
    };
    counts.map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_sources_have_the_rates_of_the_lemma_and_no_others_have_more() {
        let fabrics = [(2, 2), (2, 4), (4, 3)].map(|(p, k)| Shufflecast::new(p, k).expect("a Shufflecast"));
        for fabric in fabrics {
            for at in loads(fabric, Extent { quick: true }) {
                assert!((1.0 / at.chosen as f64 - lemma(fabric, at.sources)).abs() < 1e-9);
                assert!(at.column >= at.chosen as f64 && at.any >= at.chosen as f64);
            }
        }
        let figures = figures(&fabrics, Extent { quick: true });
        assert!(
            figures[0].headlines.iter().all(Headline::is_met),
            "{:?}",
            figures[0].headlines
        );
    }
}
