//! Reasons for cells that differ from the paper's by more than 10 %.

use super::table::Table;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reason {
    pub(crate) letter: char,
    pub(crate) text: &'static str,
}

pub(crate) const ROUNDED: Reason = Reason {
    letter: 'a',
    text: "The paper's times are whole microseconds, rounded up. If castnet's are rounded up too, the cell is within 10 %.",
};
pub(crate) const RING_ALLREDUCE: Reason = Reason {
    letter: 'b',
    text: "The paper's ring is slower than its own text says: 15 steps (2K - 1), not 2 (K - 1), and each begins only when the \
           sends of the previous step are acknowledged. CommLib's ring forwards what has arrived. Row 'in 15 steps' uses the \
           paper's method.",
};
pub(crate) const RING_REDUCE: Reason = Reason {
    letter: 'c',
    text: "On the paper's chain a rank forwards only what the previous rank knows to have arrived: 2 us per hop, although the \
           Broadcast of table 28 takes 1 us. Row '2 us a hop' uses the paper's method.",
};
pub(crate) const RING_STEPS: Reason = Reason {
    letter: 'd',
    text: "The paper's ring begins a step when the sends of the previous step are acknowledged: 2 us per step and not 1. Row \
           'in steps' uses the paper's method.",
};
pub(crate) const IN_TURN: Reason = Reason {
    letter: 'e',
    text: "The eight Broadcasts of the paper's AllGather are sequential: each begins when the previous one is acknowledged. In \
           castnet all of them are in flight at once. Row 'one by one' uses the paper's method.",
};
pub(crate) const GO_BACK: Reason = Reason {
    letter: 'f',
    text: "The paper's ranks are not RC queue pairs: a loss costs them only the time of the lost packet. An RC receiver \
           accepts nothing out of order and its sender goes back to the lost packet, so each loss costs everything in flight. \
           In rows 'ideal' ranks retransmit only lost packets, one round trip later, with windows of 24 and 64 packets; the \
           paper's cell is within their range (10 % allowed).",
};
pub(crate) const CLIFF: Reason = Reason {
    letter: 'g',
    text: "As f. In addition, the paper's values drop by a third from 10 % to 12 % of loss, from those of ideal ranks with a \
           window of 64 to those of a window of 24. Its text names time-outs but does not explain the sudden drop; its \
           Mode-III does not show it. That part is not explained.",
};
pub(crate) const ONE_HOP: Reason = Reason {
    letter: 'h',
    text: "As f. In Mode-III each hop repairs its own losses, but a rank is an RC queue pair at the end of one: it drops what follows \
           a lost result, and a repetition that is lost again costs it a time-out. From 8 % on that is more than rows 'ideal' cover; \
           how much of it is time-outs was not separated.",
};
pub(crate) const FREE_LINK: Reason = Reason {
    letter: 'i',
    text: "The paper's slow link has 200 Gb/s, and background traffic takes half of it, which a single packet does not meet. Row 'all \
           200 Gb/s' has no slow link.",
};
pub(crate) const UNDERSHOOT: Reason = Reason {
    letter: 'j',
    text: "A CNP halves the rate of a rank (DCQCN), so ranks with 200 Gb/s become slower than the one that they have to wait for, and rise \
           again by steps of microseconds to milliseconds. In the paper that begins at 4 MiB, here when a rank is first ahead of the pipe. \
           How deep it goes depends on DCQCN's parameters, which the paper does not give; here they are the published ones. The \
           paper's table agrees that CNPs cost throughput; its text (7.4) has the two rows the other way round.",
};
pub(crate) const CALLED_BACK: Reason = Reason {
    letter: 'k',
    text: "A rank that was ahead of the pipe is called back by an RNR NAK, and then waits for 10 us. Without that wait 256 KiB take 24 us, with it \
           30 us. In longer messages the wait is a smaller part.",
};
const NOT_KNOWN: Reason = Reason {
    letter: '?',
    text: "Not explained.",
};

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
}

/// `None` for a cell that differs by at most 10 %.
pub(crate) fn of(evidence: Evidence<'_>) -> Option<Reason> {
    let Evidence { paper, others, .. } = evidence;
    if paper.is_nan() || near(evidence.ours / paper) {
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

pub(crate) fn all(tables: &[Table]) -> Vec<Reason> {
    let cells = tables.iter().flat_map(|t| t.cells.iter().flatten());
    let mut reasons: Vec<Reason> = cells.filter_map(|c| c.reason).collect();
    reasons.sort();
    reasons.dedup();
    reasons
}
