//! `castnet switch`: stub
pub(crate) mod config;
use crate::{exit::Outcome, output::Output};
use clap::Args;
/// Runs a switch
#[derive(Debug, Args)]
#[command(after_help = "Examples:")]
pub(crate) struct SwitchCommand {}
impl SwitchCommand {
    pub(crate) async fn run(self, _: Output) -> Outcome {
        let c = config::SwitchConfig::default();
        c.port_specs()?;
        c.listen();
        config::SwitchConfig::read(std::path::Path::new("x"))?.or(c);
        Ok(())
    }
}
