//! Lemma 3.1 and figure 7(a).

use castnet_planner::shufflecast::{Relaying, Shufflecast};

use super::{Counts, Extent, NOTHING, cdf, extend, panel, percent};
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Table};

/// Percent of sources that lose nothing, as the text of 6.3 has it for each p.
const UNHARMED: [(usize, f64); 3] = [(4, 75.0), (6, 83.0), (8, 88.0)];

pub(super) fn figures(fabrics: &[Shufflecast], extent: Extent) -> Vec<FigureReport> {
    vec![hops(fabrics, extent), cut_off(fabrics, extent)]
}

fn hops(fabrics: &[Shufflecast], extent: Extent) -> FigureReport {
    let (mut rows, mut headlines) = (Vec::new(), Vec::new());
    for fabric in fabrics {
        let (p, k) = (fabric.p(), fabric.k());
        let rules = Relaying::of(*fabric);
        let (mut longest, mut copies, mut static_rules) = (NOTHING, NOTHING, NOTHING);
        let mut by_hops = Vec::new();
        for source in extent.tors(*fabric, fabric.size()) {
            let reach = rules.reach(source, None);
            extend(&mut longest, reach.hops_max());
            fabric
                .tors()
                .for_each(|tor| extend(&mut copies, reach.copies(tor)));
            extend(&mut static_rules, rules.sources(source).count());
            by_hops = reach.by_hops();
        }
        let mut reached = 0;
        for (hops, tors) in by_hops.into_iter().enumerate() {
            reached += tors;
            rows.push(vec![
                Cell::Text(fabric.to_string()),
                Cell::Count(hops),
                Cell::Count(tors),
                Cell::Count(reached),
                Cell::Number(percent(reached, fabric.size())),
            ]);
        }
        let exact = |what: &str, paper: usize, castnet| {
            Headline::exact(&format!("{fabric}: {what}"), paper as f64, castnet)
        };
        headlines.extend([
            exact("hops to the farthest ToR", 2 * k - 1, longest),
            exact("copies that a ToR receives", 1, copies),
            exact("static rules of a ToR", k * p.pow(k as u32 - 1), static_rules),
        ]);
    }
    FigureReport {
        name: "lemma31",
        title: "Hops of a multicast to all ToRs",
        setting: "Static rules of Algorithm 1, from each ToR in turn, of large Shufflecasts from some. The table shows the last.".to_owned(),
        table: Table {
            columns: vec!["fabric", "hops", "tors", "tors so far", "percent"],
            rows,
        },
        headlines,
        events: 0,
        plot: Plot::default(),
    }
}

fn cut_off(fabrics: &[Shufflecast], extent: Extent) -> FigureReport {
    let (mut rows, mut headlines, mut curves) = (Vec::new(), Vec::new(), Vec::new());
    for fabric in fabrics {
        let others = fabric.size() - 1;
        let rules = Relaying::of(*fabric);
        let mut lost = Counts::new();
        let failures = extent.tors(*fabric, fabric.size() * fabric.size() / fabric.p());
        for failed in &failures {
            // For all other sources it is a leaf.
            let sources: Vec<_> = rules.sources(*failed).collect();
            *lost.entry(0).or_default() += fabric.size() - sources.len();
            for source in sources {
                let reached = rules.reach(source, Some(*failed)).reached();
                *lost.entry(others - reached).or_default() += 1;
            }
        }
        let expected = by_3_3_1(*fabric);
        let all = failures.len() * fabric.size();
        for (value, count) in &lost {
            rows.push(vec![
                Cell::Text(fabric.to_string()),
                Cell::Count(*value),
                Cell::Number(percent(*value, others)),
                Cell::Number(*count as f64 / failures.len() as f64),
                Cell::Count(expected.get(value).copied().unwrap_or(0)),
                Cell::Number(percent(*count, all)),
            ]);
        }
        let unharmed = percent(lost.get(&0).copied().unwrap_or(0), all);
        if let Some((_, paper)) = UNHARMED.iter().find(|(p, _)| *p == fabric.p()) {
            let what = format!("{fabric}: % of sources that lose nothing");
            headlines.push(Headline::single(&what, *paper, unharmed));
        }
        curves.push(cdf(*fabric, &lost, |value| percent(value, others)));
    }
    FigureReport {
        name: "fig7a",
        title: "What a failed relay cuts off, before a recovery",
        setting: "Each ToR fails in turn, of large Shufflecasts some: it no longer sends to its splitter. Each ToR multicasts to all, the failed one too.\n\
                  Sources are counted per failure, beside the count that 3.3.1 gives."
            .to_owned(),
        table: Table {
            columns: vec!["fabric", "tors lost", "percent lost", "sources", "sources by 3.3.1", "percent of sources"],
            rows,
        },
        headlines,
        events: 0,
        plot: panel("Figure 7(a)", "% of ToRs lost", "% of sources", curves),
    }
}

/// Lost ToRs, and for how many sources, by the position of the failed relay on their trees (3.3.1).
fn by_3_3_1(fabric: Shufflecast) -> Counts {
    let (p, k) = (fabric.p(), fabric.k());
    let power = |i: usize| p.pow(i as u32);
    let mut counts = Counts::new();
    let mut add = |lost, sources| *counts.entry(lost).or_default() += sources;
    // In an island: k islands, whose p - 1 trees have p^depth ToRs at each depth.
    for depth in 0..k {
        let below = (1..k - depth).map(power).sum();
        add(below, k * (p - 1) * power(depth));
    }
    // On the major spine, from its root: the islands and the spine below it.
    for i in 0..k {
        add((k - i) * power(k) - 1, 1);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_3_3_1_is_that_of_figure_4() {
        let fabric = Shufflecast::new(2, 3).expect("a Shufflecast");
        let paper = [(0, 12), (2, 6), (6, 3), (7, 1), (15, 1), (23, 1)];
        assert_eq!(by_3_3_1(fabric), Counts::from(paper));
    }

    #[test]
    fn each_failure_cuts_off_what_3_3_1_counts() {
        let fabrics = [(2, 3), (3, 3), (5, 2)].map(|(p, k)| Shufflecast::new(p, k).expect("a Shufflecast"));
        let [hops, cut_off] =
            <[_; 2]>::try_from(figures(&fabrics, Extent { quick: true })).expect("two figures");
        for row in &cut_off.table.rows {
            let [Cell::Number(ours), Cell::Count(paper)] = &row[3..5] else {
                panic!("{row:?}");
            };
            assert!((ours - *paper as f64).abs() < 1e-9, "{row:?}");
        }
        assert!(
            hops.headlines.iter().all(Headline::is_met),
            "{:?}",
            hops.headlines
        );
    }
}
