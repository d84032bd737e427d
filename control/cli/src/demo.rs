//! stub
use crate::{exit::Outcome, output::Output};
use clap::Args;
/// Stub
#[derive(Debug, Args)]
#[command(after_help = "Examples:")]
pub(crate) struct DemoCommand {}
impl DemoCommand {
    pub(crate) async fn run(self, _: Output) -> Outcome {
        Ok(())
    }
}
