//! Reasons for cells that differ from the paper's by more than 10 %. Each has a band, and those of what happened in a run need its counts.

use castnet_console::exit::{Failure, Outcome};

use super::counts::Counts;
use super::table::Table;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reason {
    pub(crate) letter: char,
    pub(crate) text: &'static str,
    /// Least and greatest ratio to the paper's that it explains.
    pub(crate) band: [f64; 2],
    /// What must not be zero.
    counter: Option<fn(&Counts) -> u64>,
}

impl Reason {
    fn holds(&self, ratio: f64, counts: &Counts) -> bool {
        let [least, most] = self.band;
        (least..=most).contains(&ratio) && self.counter.is_none_or(|counter| counter(counts) > 0)
    }
}

pub(crate) const ROUNDED: Reason = Reason {
    letter: 'a',
    text: "The paper's times are whole microseconds, rounded up. If castnet's are rounded up too, the cell is within 10 %.",
    band: [0.9, 2.0],
    counter: None,
};
pub(crate) const RING_ALLREDUCE: Reason = Reason {
    letter: 'b',
    text: "The paper's ring is slower than its own text says: 15 steps (2K - 1), not 2 (K - 1), and each begins only when the \
           sends of the previous step are acknowledged. CommLib's ring forwards what has arrived. Row 'in 15 steps' uses the \
           paper's method.",
    band: [0.9, 2.2],
    counter: None,
};
pub(crate) const RING_REDUCE: Reason = Reason {
    letter: 'c',
    text: "On the paper's chain a rank forwards only what the previous rank knows to have arrived: 2 us per hop, although the \
           Broadcast of table 28 takes 1 us. Row '2 us a hop' uses the paper's method.",
    band: [0.9, 1.8],
    counter: None,
};
pub(crate) const RING_STEPS: Reason = Reason {
    letter: 'd',
    text: "The paper's ring begins a step when the sends of the previous step are acknowledged: 2 us per step and not 1. Row \
           'in steps' uses the paper's method.",
    band: [0.9, 2.1],
    counter: None,
};
pub(crate) const IN_TURN: Reason = Reason {
    letter: 'e',
    text: "The eight Broadcasts of the paper's AllGather are sequential: each begins when the previous one is acknowledged. In \
           castnet all of them are in flight at once. Row 'one by one' uses the paper's method.",
    band: [0.9, 8.0],
    counter: None,
};
const BY_HOST: Reason = Reason {
    letter: 'f',
    text: "On the first lossy link, what its rank has sent again takes longer than what the switch has, and than either kind of wait.",
    ..NOT_KNOWN
};
const BY_SWITCH: Reason = Reason {
    letter: 'g',
    text: "On the first lossy link, what the switch has sent again takes longer than what the rank has, and than either kind of wait.",
    ..NOT_KNOWN
};
const TIMED_OUT: Reason = Reason {
    letter: 'h',
    text: "The first lossy link was idle for longer than it took to send anything again, and QP time-outs ran for most of that.",
    ..NOT_KNOWN
};
const WAITED: Reason = Reason {
    letter: 'l',
    text: "The first lossy link was idle for longer than it took to send anything again, mostly without a QP time-out: its rank waited for what \
           it had sent to be asked for or acknowledged, or for other ranks.",
    ..NOT_KNOWN
};
pub(crate) const FREE_LINK: Reason = Reason {
    letter: 'i',
    text: "The paper's slow link has 200 Gb/s, and background traffic takes half of it, which a single packet does not meet. Row 'all \
           200 Gb/s' has no slow link.",
    band: [0.8, 1.1],
    counter: None,
};
pub(crate) const UNDERSHOOT: Reason = Reason {
    letter: 'j',
    text: "A CNP halves the rate of a rank (DCQCN), so ranks with 200 Gb/s become slower than the one that they have to wait for, and rise \
           again by steps of microseconds to milliseconds. In the paper that begins at 4 MiB, here when a rank is first ahead of the pipe. \
           Row 'rate cuts' has how often. How deep it goes depends on DCQCN's parameters, which the paper does not give; here they are the published ones. The \
           paper's table agrees that CNPs cost throughput; its text (7.4) has the two rows the other way round.",
    band: [0.9, 5.0],
    counter: Some(|counts| counts.rate_cuts),
};
pub(crate) const CALLED_BACK: Reason = Reason {
    letter: 'k',
    text: "A rank that was ahead of the pipe is called back by an RNR NAK, and then waits for 10 us: row 'RNR waits'. In longer messages the \
           wait is a smaller part.",
    band: [0.7, 1.1],
    counter: Some(|counts| counts.rnr_waits),
};
const NOT_KNOWN: Reason = Reason {
    letter: '?',
    text: "Not explained: no other method and no count says why, or the ratio is outside of the band of its reason.",
    band: [0.9, 1.1],
    counter: None,
};
/// The greatest ratio under loss. The paper's values fall by a third from 10 % to 12 % of loss.
const LOSSY_MOST: f64 = 2.0;

/// The reason of a cell under loss: what has cost the first lossy link most. `None` if nothing has.
pub(crate) fn counted(counts: &Counts, least: f64) -> Option<Reason> {
    let costs = counts.costs();
    let reasons = [
        (costs.by_host, BY_HOST),
        (costs.by_switch, BY_SWITCH),
        (costs.timeouts, TIMED_OUT),
        (costs.waits, WAITED),
    ];
    let (cost, reason) = reasons.into_iter().max_by_key(|(cost, _)| *cost)?;
    let band = [least, LOSSY_MOST];
    (cost > 0).then_some(Reason { band, ..reason })
}

fn near(ratio: f64) -> bool {
    (0.9..=1.1).contains(&ratio)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) paper: f64,
    pub(crate) ours: f64,
    /// Value with the time rounded up.
    pub(crate) rounded: f64,
    /// Values of the other methods, with times rounded up.
    pub(crate) others: &'a [f64],
    /// Reason of the row. It applies if the paper matches one of the other methods.
    pub(crate) row: Option<Reason>,
    pub(crate) cell: Option<Reason>,
    pub(crate) counts: &'a Counts,
}

/// `None` for a cell that differs by at most 10 %. Without a reason that holds: [`NOT_KNOWN`], with the band of the one that does not.
pub(crate) fn of(evidence: Evidence<'_>) -> Option<Reason> {
    let Evidence { paper, others, .. } = evidence;
    let ratio = evidence.ours / paper;
    if paper.is_nan() || near(ratio) {
        return None;
    }
    let lowest = others.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = others.iter().copied().fold(0.0, f64::max);
    let is_among = lowest / paper <= 1.1 && highest / paper >= 0.9;
    let reason = match near(evidence.rounded / paper) {
        true => Some(ROUNDED),
        false => evidence.cell.or(evidence.row.filter(|_| is_among)),
    };
    let unexplained = Reason {
        band: reason.map_or(NOT_KNOWN.band, |reason| reason.band),
        ..NOT_KNOWN
    };
    Some(
        reason
            .filter(|reason| reason.holds(ratio, evidence.counts))
            .unwrap_or(unexplained),
    )
}

pub(crate) fn all(tables: &[Table]) -> Vec<Reason> {
    let cells = tables.iter().flat_map(|t| t.cells.iter().flatten());
    let mut reasons: Vec<Reason> = cells.filter_map(|c| c.reason).collect();
    reasons.sort_by_key(|reason| reason.letter);
    reasons.dedup_by_key(|reason| reason.letter);
    reasons
}

/// Fails with all cells that are not explained.
pub(crate) fn check(tables: &[Table]) -> Outcome {
    let mut wrong = Vec::new();
    for table in tables {
        for (row, cells) in table.rows() {
            for (column, cell) in table.spec.columns.iter().zip(cells) {
                let Some(reason) = cell.reason.filter(|reason| reason.letter == NOT_KNOWN.letter) else {
                    continue;
                };
                let ([least, most], ratio) = (reason.band, cell.ratio());
                wrong.push(format!(
                    "table {}, {}, {column}: {ratio:.2} of the paper's is not explained (band {least:.2} to {most:.2})",
                    table.spec.number, row.name
                ));
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(wrong.join("\n"))
            .next("see the counts below the ratio of such a row, if it has any")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(ours: f64, cell: Option<Reason>, counts: &Counts) -> Option<char> {
        let evidence = Evidence {
            paper: 100.0,
            ours,
            rounded: ours,
            others: &[],
            row: None,
            cell,
            counts,
        };
        of(evidence).map(|reason| reason.letter)
    }

    /// A run of 400 us, whose first link was busy for 300.
    const RUN: Counts = Counts {
        lost: 0,
        by_hosts: 0,
        by_switch: 0,
        naks: 0,
        requests: 0,
        probes: 0,
        rnr_waits: 0,
        timeouts: 0,
        timeouts_ns: 0,
        rate_cuts: 0,
        elapsed_ns: 400_000,
        up_ns: 300_000,
        down_ns: 200_000,
        link_by_host: 0,
        link_by_switch: 0,
    };

    #[test]
    fn what_has_cost_most_is_the_reason_and_only_within_its_band() {
        // A packet takes 334 ns.
        let by_host = Counts {
            link_by_host: 600,
            link_by_switch: 500,
            ..RUN
        };
        let by_switch = Counts {
            link_by_switch: 700,
            ..by_host
        };
        let timed_out = Counts {
            timeouts_ns: 60_000,
            ..RUN
        };
        let waited = Counts {
            timeouts_ns: 40_000,
            ..RUN
        };
        for (counts, expected) in [(by_host, 'f'), (by_switch, 'g'), (timed_out, 'h'), (waited, 'l')] {
            let of = |ours: f64| letter(ours, counted(&counts, 0.4), &counts);
            assert_eq!(
                [0.0, 39.0, 41.0, 95.0, 210.0].map(of),
                [Some('?'), Some('?'), Some(expected), None, Some('?')]
            );
        }
        let nothing = Counts::default();
        assert_eq!(letter(50.0, counted(&nothing, 0.4), &nothing), Some('?'));
    }

    #[test]
    fn a_reason_that_the_run_has_not_counted_does_not_hold() {
        let called_back = Counts { rnr_waits: 1, ..RUN };
        assert_eq!(letter(80.0, Some(CALLED_BACK), &called_back), Some('k'));
        assert_eq!(letter(80.0, Some(CALLED_BACK), &RUN), Some('?'));
        assert_eq!(letter(60.0, Some(CALLED_BACK), &called_back), Some('?'));
        let slowed = Counts { rate_cuts: 1, ..RUN };
        assert_eq!(letter(200.0, Some(UNDERSHOOT), &slowed), Some('j'));
        assert_eq!(letter(200.0, Some(UNDERSHOOT), &RUN), Some('?'));
    }
}
