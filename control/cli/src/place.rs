//! A switch or the controller, for commands that both answer.

use castnet_console::connect::{AgentArgs, CONTROLLER};
use castnet_console::exit::{Failure, Outcome};
use castnet_proto::transport::Controllers;
use clap::Args;

/// A switch, unless the controller is asked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    /// The controller instead of a switch [default address: CASTNET_CONTROLLER, else http://127.0.0.1:7470]
    #[arg(long, value_name = "URL", num_args = 0..=1, help_heading = "The controller")]
    controller: Option<Option<Controllers>>,
}

impl PlaceArgs {
    /// The addresses of the controllers; `None`: the switch is asked.
    pub(crate) fn controller(&self) -> Outcome<Option<Controllers>> {
        let text = match &self.controller {
            None => return Ok(None),
            Some(Some(given)) => return Ok(Some(given.clone())),
            Some(None) => match std::env::var("CASTNET_CONTROLLER") {
                Ok(set) if !set.is_empty() => set,
                _ => CONTROLLER.to_owned(),
            },
        };
        let controllers = text
            .parse()
            .map_err(|e| Failure::usage(format!("CASTNET_CONTROLLER: {e}")))?;
        Ok(Some(controllers))
    }
}
