//! Why cells differ from the paper's by more than 10 %.

use crate::table::Table;

/// A reason, with the letter that marks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reason {
    pub(crate) letter: char,
    pub(crate) text: &'static str,
}

/// A letter for each, in the order of the tables.
pub(crate) const ROUNDED: Reason = Reason {
    letter: 'a',
    text: "The paper's times are whole microseconds, rounded up. With castnet's rounded up likewise, the cell is within 10 %.",
};
pub(crate) const RING_ALLREDUCE: Reason = Reason {
    letter: 'b',
    text: "The paper's ring is slower than its own text has it: 15 steps (2K - 1), not 2 (K - 1), and each begins only when what was \
           sent in the one before is acknowledged. CommLib's passes on what has come. Row 'in 15 steps' does it as there.",
};
pub(crate) const RING_REDUCE: Reason = Reason {
    letter: 'c',
    text: "On the paper's chain a rank passes on what the rank before it knows to have arrived: 2 us a hop, although the Broadcast of table \
           28 takes 1 us. Row '2 us a hop' does it as there.",
};
pub(crate) const RING_STEPS: Reason = Reason {
    letter: 'd',
    text: "The paper's ring begins a step when what was sent in the one before is acknowledged: 2 us a step and not 1. Row 'in steps' does \
           it as there.",
};
pub(crate) const IN_TURN: Reason = Reason {
    letter: 'e',
    text: "The paper's AllGather does its eight Broadcasts one after the other, each when the one before is acknowledged. Castnet has all of \
           them in flight at once. Row 'one by one' does it as there.",
};
pub(crate) const GO_BACK: Reason = Reason {
    letter: 'f',
    text: "The paper's ranks are no RC queue pairs: a loss costs them the time of the lost packet and no more. RC's receivers take nothing \
           out of order and its senders go back to what was lost, so each loss costs all that was under way. Rows 'ideal' have ranks that repeat \
           just what was lost, a round trip later, with windows of 24 and 64 packets; the paper's cell is among them (10 % allowed).",
};
pub(crate) const CLIFF: Reason = Reason {
    letter: 'g',
    text: "As f. Besides, the paper falls by a third from 10 % to 12 % of loss, from what ideal ranks with a window of 64 come to, to what a window \
           of 24 comes to. Why at once, its text, which names time-outs, does not tell; its Mode-III has nothing of it. That much is not \
           explained.",
};
const NOT_KNOWN: Reason = Reason {
    letter: '?',
    text: "Not explained.",
};

fn near(ratio: f64) -> bool {
    (0.9..=1.1).contains(&ratio)
}

/// What is known of a cell when its reason is sought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) paper: f64,
    pub(crate) ours: f64,
    /// With the time rounded up.
    pub(crate) rounded: f64,
    /// By the other ways, with times rounded up.
    pub(crate) others: &'a [f64],
    /// The row's reason, which holds if the paper is among the other ways.
    pub(crate) row: Option<Reason>,
    /// The cell's own.
    pub(crate) cell: Option<Reason>,
}

/// The reason of a cell that differs by more than 10 %; none for others.
pub(crate) fn of(evidence: Evidence<'_>) -> Option<Reason> {
    let Evidence { paper, others, .. } = evidence;
    if near(evidence.ours / paper) {
        return None;
    }
    if near(evidence.rounded / paper) {
        return Some(ROUNDED);
    }
    if let Some(reason) = evidence.cell {
        return Some(reason);
    }
    let lowest = others.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = others.iter().copied().fold(0.0, f64::max);
    let is_among = lowest / paper <= 1.1 && highest / paper >= 0.9;
    Some(evidence.row.filter(|_| is_among).unwrap_or(NOT_KNOWN))
}

/// All reasons that occur.
pub(crate) fn all(tables: &[Table]) -> Vec<Reason> {
    let rows = tables.iter().flat_map(|t| &t.rows);
    let mut reasons: Vec<Reason> = rows.flat_map(|r| &r.cells).filter_map(|c| c.reason).collect();
    reasons.sort();
    reasons.dedup();
    reasons
}
