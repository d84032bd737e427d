//! Algorithm 2, and figures 7(b) and 7(c).

use castnet_console::plot::Curve;
use castnet_planner::shufflecast::{Relaying, Shufflecast, Tor};

use super::{Counts, Extent, NOTHING, SAMPLES_MAX, SEED, cdf, extend, panel, percent, range, sample};
use crate::sim::report::{Cell, FigureReport, Headline, Relation, Table};

/// Percent of sources whose multicast takes no more hops after a recovery (6.3), for p from 4 to 8 in figure 7(b), where k is 3.
const UNCHANGED: (f64, f64) = (90.0, 95.0);

pub(super) fn figures(fabrics: &[Shufflecast], extent: Extent) -> Vec<FigureReport> {
    let recoveries: Vec<_> = fabrics
        .iter()
        .map(|fabric| Recoveries::of(*fabric, extent))
        .collect();
    vec![
        algorithm_2(&recoveries),
        hops(&recoveries),
        throughput(fabrics, extent),
    ]
}

/// What was seen over all failures of a Shufflecast.
struct Recoveries {
    fabric: Shufflecast,
    failures: usize,
    /// ToRs whose rules change, per failure.
    changed_tors: (f64, f64),
    /// Rules that are removed or added, per failure.
    changed_rules: (f64, f64),
    /// Other ToRs that a multicast reaches.
    reached: (f64, f64),
    copies: (f64, f64),
    hops_max: usize,
    /// Of all multicasts, those of failed ToRs left out: hops beyond `2k - 1`.
    more_hops: Counts,
    /// Sources of a column that are left at line rate at once.
    at_line_rate: (f64, f64),
}

impl Recoveries {
    fn of(fabric: Shufflecast, extent: Extent) -> Self {
        let hops = 2 * fabric.k() - 1;
        let healthy = Relaying::of(fabric);
        let group: Vec<Tor> = fabric
            .tors()
            .take(1)
            .flat_map(|tor| fabric.at_line_rate(tor))
            .collect();
        let failures = extent.tors(fabric, fabric.size() * fabric.size() / fabric.p());
        let mut seen = Self {
            fabric,
            failures: failures.len(),
            changed_tors: NOTHING,
            changed_rules: NOTHING,
            reached: NOTHING,
            copies: NOTHING,
            hops_max: hops,
            more_hops: Counts::new(),
            at_line_rate: NOTHING,
        };
        for failed in &failures {
            let update = fabric.recovery(*failed);
            extend(
                &mut seen.changed_tors,
                update.deactivated.len() + update.activated.len(),
            );
            extend(&mut seen.changed_rules, update.rules());
            let mut rules = healthy.clone();
            rules.apply(&update);
            extend(&mut seen.at_line_rate, at_line_rate(&rules, &group));
            // The multicasts of all other sources follow the rules of before.
            let sources: Vec<_> = healthy.sources(*failed).collect();
            *seen.more_hops.entry(0).or_default() += fabric.size() - sources.len();
            for source in sources.into_iter().filter(|source| source != failed) {
                let reach = rules.reach(source, Some(*failed));
                extend(&mut seen.reached, reach.reached());
                fabric
                    .tors()
                    .for_each(|tor| extend(&mut seen.copies, reach.copies(tor)));
                seen.hops_max = seen.hops_max.max(reach.hops_max());
                let more = reach.hops_max().saturating_sub(hops);
                *seen.more_hops.entry(more).or_default() += 1;
            }
        }
        seen
    }

    fn unchanged(&self) -> f64 {
        percent(
            self.more_hops.get(&0).copied().unwrap_or(0),
            self.more_hops.values().sum(),
        )
    }
}

/// Sources of a group that can multicast at line rate at once: all, or all but the one that shares a splitter. 0 if more
/// than one must stop.
fn at_line_rate(rules: &Relaying, group: &[Tor]) -> usize {
    let is_free = |sources: &[Tor]| rules.loads(sources).iter().all(|load| *load <= 1);
    let without = |left_out: &Tor| {
        let rest: Vec<Tor> = group
            .iter()
            .copied()
            .filter(|source| source != left_out)
            .collect();
        is_free(&rest)
    };
    match (is_free(group), group.iter().any(without)) {
        (true, _) => group.len(),
        (false, true) => group.len() - 1,
        (false, false) => 0,
    }
}

fn algorithm_2(all: &[Recoveries]) -> FigureReport {
    let (mut rows, mut headlines) = (Vec::new(), Vec::new());
    for of in all {
        let (fabric, k) = (of.fabric, of.fabric.k());
        let static_rules = fabric.size() * fabric.size() / fabric.p();
        rows.push(vec![
            Cell::Text(fabric.to_string()),
            Cell::Count(fabric.size()),
            Cell::Count(of.failures),
            Cell::Count(of.changed_tors.1 as usize),
            Cell::Count(of.changed_rules.1 as usize),
            Cell::Number(100.0 * of.changed_rules.1 / static_rules as f64),
            Cell::Count(of.reached.0 as usize),
            Cell::Count(of.hops_max),
        ]);
        let exact = |what: &str, paper: usize, castnet| {
            Headline::exact(&format!("{fabric}: {what}"), paper as f64, castnet)
        };
        let hops = format!("{fabric}: hops to the farthest ToR");
        headlines.extend([
            exact("other ToRs reached", fabric.size() - 1, of.reached),
            exact("copies that a ToR receives", 1, of.copies),
            exact("ToRs whose rules change", 4, of.changed_tors),
            exact(
                "sources of a column at line rate",
                fabric.p() - 1,
                of.at_line_rate,
            ),
            Headline::bound(&hops, Relation::AtMost, (3 * k - 1) as f64, of.hops_max as f64),
        ]);
    }
    FigureReport {
        name: "algorithm2",
        title: "Recovery from single failures",
        setting: "Each ToR fails in turn, of large Shufflecasts some: it no longer sends to its splitter, and Algorithm 2 updates the rules. Each other\n\
                  ToR multicasts to all. The failed ToR still receives, and is among those reached. Rules changed are the removed and the added ones."
            .to_owned(),
        table: Table {
            columns: vec![
                "fabric",
                "tors",
                "failures",
                "tors changed",
                "rules changed",
                "percent of rules",
                "tors reached",
                "most hops",
            ],
            rows,
        },
        headlines,
        events: 0,
        plot: Default::default(),
    }
}

fn hops(all: &[Recoveries]) -> FigureReport {
    let row = |of: &Recoveries, (more, count): (&usize, &usize)| {
        vec![
            Cell::Text(of.fabric.to_string()),
            Cell::Count(*more),
            Cell::Count(2 * of.fabric.k() - 1 + more),
            Cell::Number(percent(*count, of.more_hops.values().sum())),
        ]
    };
    let rows = all
        .iter()
        .flat_map(|of| of.more_hops.iter().map(move |counted| row(of, counted)));
    let drawn = |of: &&Recoveries| of.fabric.k() == 3 && [4, 6, 8].contains(&of.fabric.p());
    let unchanged = range(all.iter().filter(drawn).map(Recoveries::unchanged));
    let headlines = match all.iter().any(|of| drawn(&of)) {
        true => vec![Headline::range(
            "% of sources with as many hops, p = 4, 6, 8 and k = 3",
            UNCHANGED,
            unchanged,
        )],
        false => Vec::new(),
    };
    let curves = all
        .iter()
        .map(|of| cdf(of.fabric, &of.more_hops, |more| more as f64));
    FigureReport {
        name: "fig7b",
        title: "More hops after a recovery",
        setting: "Hops to the farthest ToR beyond those of a healthy Shufflecast, 2k - 1, for all sources but the failed ToR.".to_owned(),
        table: Table {
            columns: vec!["fabric", "more hops", "hops", "percent of sources"],
            rows: rows.collect(),
        },
        headlines,
        events: 0,
        plot: panel("Figure 7(b)", "more hops", "% of sources", curves.collect()),
    }
}

fn throughput(fabrics: &[Shufflecast], extent: Extent) -> FigureReport {
    const ACTIVE: [usize; 6] = [5, 10, 25, 50, 75, 100];
    let (mut rows, mut headlines, mut curves) = (Vec::new(), Vec::new(), Vec::new());
    for fabric in fabrics {
        let mut points = Vec::new();
        for active in ACTIVE {
            let samples = extent.samples(fabric.size() * fabric.size() / fabric.p());
            let lost = lost_throughput(*fabric, active, samples);
            rows.push(vec![
                Cell::Text(fabric.to_string()),
                Cell::Count(active),
                Cell::Number(lost),
            ]);
            points.push((active as f64, lost));
        }
        let what = format!("{fabric}: % of throughput lost, all ToRs active");
        let all = points.last().map_or(f64::NAN, |(_, lost)| *lost);
        headlines.push(Headline::single(&what, 100.0 / fabric.p() as f64, all));
        let name = fabric.to_string();
        curves.push(Curve { name, points });
    }
    FigureReport {
        name: "fig7c",
        title: "Throughput lost after a recovery",
        setting: format!(
            "So many of the ToRs multicast to all at once. The rate of one is line rate over the highest load of a splitter on its tree. Lost is the\n\
             mean over the sources of 1 - rate after / rate before; up to {SAMPLES_MAX} samples of sources and of the failed ToR, which is no source, from seed {SEED}."
        ),
        table: Table {
            columns: vec!["fabric", "percent active", "percent lost"],
            rows,
        },
        headlines,
        events: 0,
        plot: panel(
            "Figure 7(c)",
            "% of ToRs that multicast",
            "% of throughput lost",
            curves,
        ),
    }
}

/// Percent of the throughput of the active ToRs that a recovery costs, on average.
fn lost_throughput(fabric: Shufflecast, active: usize, samples: u64) -> f64 {
    let healthy = Relaying::of(fabric);
    let tors: Vec<Tor> = fabric.tors().collect();
    let lost = |seed: u64| {
        let mut sources = sample(&tors, (fabric.size() * active).div_ceil(100), seed);
        // With the same seed, it would be one of the sources.
        let failed = sample(&tors, 1, seed + SAMPLES_MAX)[0];
        sources.retain(|source| *source != failed);
        let mut rules = healthy.clone();
        rules.apply(&fabric.recovery(failed));
        let rates = healthy.rates(&sources).into_iter().zip(rules.rates(&sources));
        let lost: f64 = rates.map(|(before, after)| 1.0 - after / before).sum();
        100.0 * lost / sources.len().max(1) as f64
    };
    (SEED..SEED + samples).map(lost).sum::<f64>() / samples as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_bounds_hold_in_each_figure() {
        let fabrics = [(2, 3), (4, 3), (3, 2)].map(|(p, k)| Shufflecast::new(p, k).expect("a Shufflecast"));
        for figure in figures(&fabrics, Extent { quick: true }) {
            assert!(!figure.headlines.is_empty());
            for headline in &figure.headlines {
                assert!(headline.is_met(), "{}: {headline:?}", figure.name);
            }
        }
    }
}
