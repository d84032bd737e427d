//! Counts of dropped frames, by reason.

use castnet_proto::v1::DropCount;
use castnet_wire::{CounterSet, Drops};

use crate::columns;
use crate::units::count;

/// The drops that are not zero.
pub fn list(drops: &Drops) -> Vec<DropCount> {
    let happened = drops.fields().filter(|(_, frames)| *frames > 0);
    let row = |(reason, frames): (&str, u64)| DropCount {
        reason: reason.to_owned(),
        frames,
    };
    happened.map(row).collect()
}

/// All drops in a line: `  drops: injected 12`.
pub fn sentence(rows: &[DropCount]) -> String {
    let drops: Vec<_> = rows
        .iter()
        .map(|d| format!("{} {}", d.reason, count(d.frames)))
        .collect();
    match drops.is_empty() {
        true => "  drops: none".to_owned(),
        false => format!("  drops: {}", drops.join(", ")),
    }
}

columns!(row: DropCount => row { reason, frames });
