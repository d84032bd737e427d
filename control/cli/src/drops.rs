//! `castnet drops`: why frames ended in the switch.

use castnet_wire::{CounterSet, Drops};
use clap::Args;
use serde::Serialize;

use crate::api;
use crate::connect::AgentArgs;
use crate::exit::Outcome;
use crate::output::{Output, Rows, columns};
use crate::units::count;

/// Frames dropped by a switch, by reason
#[derive(Debug, Args)]
#[command(
    after_help = "Every frame that comes in leaves, is absorbed by a group, or is counted here.

Examples:
  castnet drops                      reasons that happened
  castnet drops --all                every reason there is
  castnet capture --drops -o d.pcapng    the dropped frames themselves"
)]
pub(crate) struct DropsCommand {
    /// Also the reasons that never happened
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    agent: AgentArgs,
}

/// Frames dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DropRow {
    pub(crate) reason: String,
    pub(crate) frames: u64,
}

impl From<api::DropCount> for DropRow {
    fn from(drop: api::DropCount) -> Self {
        Self {
            reason: drop.reason,
            frames: drop.frames,
        }
    }
}

impl DropRow {
    /// Drops that happened.
    pub(crate) fn list(drops: &Drops) -> Vec<Self> {
        let happened = drops.fields().filter(|(_, frames)| *frames > 0);
        let row = |(reason, frames): (&str, u64)| Self {
            reason: reason.to_owned(),
            frames,
        };
        happened.map(row).collect()
    }

    /// `  drops: injected 12`: all of them in a line.
    pub(crate) fn sentence(rows: &[Self]) -> String {
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

impl DropsCommand {
    /// Lists drops.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let drops = agent
            .get_drops(api::GetDropsRequest { all: self.all })
            .await?
            .into_inner()
            .drops;
        let rows = drops.into_iter().map(DropRow::from).collect();
        output.show(&Rows::new(rows, "no frame was dropped"))
    }
}
