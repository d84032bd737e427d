//! Counts of dropped frames, by reason.

use castnet_proto::v1::DropCount;
use castnet_wire::{CounterSet, Drops};
use serde::Serialize;

use crate::columns;
use crate::units::count;

/// Frames dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DropRow {
    /// Name of the reason.
    pub reason: String,
    /// Number of frames.
    pub frames: u64,
}

impl From<DropCount> for DropRow {
    fn from(drop: DropCount) -> Self {
        Self {
            reason: drop.reason,
            frames: drop.frames,
        }
    }
}

impl DropRow {
    /// The drops that are not zero.
    pub fn list(drops: &Drops) -> Vec<Self> {
        let happened = drops.fields().filter(|(_, frames)| *frames > 0);
        let row = |(reason, frames): (&str, u64)| Self {
            reason: reason.to_owned(),
            frames,
        };
        happened.map(row).collect()
    }

    /// All drops in a line: `  drops: injected 12`.
    pub fn sentence(rows: &[Self]) -> String {
        let drops: Vec<_> = rows
            .iter()
            .map(|d| format!("{} {}", d.reason, count(d.frames)))
            .collect();
        match drops.is_empty() {
            true => "  drops: none".to_owned(),
            false => format!("  drops: {}", drops.join(", ")),
        }
    }
}

columns!(row: DropRow => row { reason, frames });
