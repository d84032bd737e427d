//! Why cells differ.

use castnet_comm::machine::Collective;

use crate::table::{Cell, Table};

/// A reason, with the letter that marks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) letter: char,
    pub(crate) text: &'static str,
}

const ROUNDED: Reason = Reason {
    letter: 'a',
    text: "within 10 % where the time is rounded up to whole microseconds, as in the paper",
};
const NOT_KNOWN: Reason = Reason {
    letter: '?',
    text: "not explained",
};

/// The reason of a cell that differs by more than 10 %.
pub(crate) fn of(table: &Table, row: &str, cell: &Cell) -> Option<Reason> {
    if cell.is_near() {
        return None;
    }
    if cell.is_near_rounded() {
        return Some(ROUNDED);
    }
    let _ = (row, table.collective == Collective::Barrier);
    Some(NOT_KNOWN)
}

/// All reasons that occur, a line each.
pub(crate) fn text(tables: &[Table]) -> String {
    let mut reasons: Vec<Reason> = Vec::new();
    for table in tables {
        for (row, cells) in &table.rows {
            for cell in cells {
                reasons.extend(of(table, row, cell).filter(|r| !reasons.contains(r)));
            }
        }
    }
    reasons.sort_by_key(|r| r.letter);
    let lines = reasons.iter().map(|r| format!("{}: {}\n", r.letter, r.text));
    lines.collect()
}
