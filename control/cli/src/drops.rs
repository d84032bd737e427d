use castnet_console::api;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Rows};
use clap::Args;

/// Frames dropped by a switch, by reason
#[derive(Debug, Args)]
#[command(
    after_help = "Every frame that a switch receives is sent, absorbed by a group, or counted here under one reason.

Examples:
  castnet drops                      reasons with drops
  castnet drops --all                all reasons
  castnet capture --drops -o d.pcapng    the dropped frames themselves"
)]
pub(crate) struct DropsCommand {
    /// Also the reasons without drops
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    agent: AgentArgs,
}

impl DropsCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let drops = agent
            .get_drops(api::GetDropsRequest { all: self.all })
            .await?
            .into_inner()
            .drops;
        output.show(&Rows::new(drops, "no frame was dropped"))
    }
}
