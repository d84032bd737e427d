use std::time::Duration;

use castnet_console::api;
use castnet_console::connect::{self, NO_AGENT, NO_CONTROLLER};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Done, Output};
use castnet_console::units::{self, Span, positive_span};
use castnet_proto::process::FOR_MS_MAX;
use clap::Args;
use serde::Serialize;

use crate::place::PlaceArgs;

/// Shows or sets the log filter of a running switch or controller
#[derive(Debug, Args)]
#[command(
    after_help = "The log is on stderr of the service (journalctl -u castnet-switch). A filter is a level (off, error, warn, info, debug, trace), or levels by target, as in RUST_LOG. A level alone is that of the libraries, too: clients can fill the log with their warnings, so write castnet=debug for Castnet alone. It lasts until the service ends, or with --for until that time is over.

Examples:
  castnet log-level                                            of the switch
  castnet log-level castnet=debug --for 10m                    and in ten minutes what it is now
  castnet log-level castnet=info,castnet_agent=debug           more of some of it
  castnet log-level castnet=info --controller                  of the controller"
)]
pub(crate) struct LogLevelCommand {
    /// The new filter; without it, the present one is shown
    filter: Option<String>,
    /// Puts the present filter back after this time, 24h at most
    #[arg(long = "for", value_name = "TIME", requires = "filter", value_parser = positive_span)]
    within: Option<Span>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Serialize)]
struct Shown {
    filter: String,
    /// What it will be again.
    then: Option<String>,
    then_in_ms: Option<u64>,
}

impl LogLevelCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let security = self.place.agent.tls.security()?;
        let (address, not_there) = match self.place.controller()? {
            Some(controllers) => {
                let one = controllers.only().cloned().ok_or_else(|| {
                    Failure::usage("each controller has its own log filter")
                        .next("give one: --controller URL")
                })?;
                (one, NO_CONTROLLER)
            }
            None => (self.place.agent.agent.clone(), NO_AGENT),
        };
        let mut process = connect::process(&address, &security, not_there).await?;
        let answer = match self.filter {
            None => process.get_log_filter(api::GetLogFilterRequest {}).await,
            Some(filter) => {
                let within = self.within.map_or(Duration::ZERO, |span| span.0);
                let for_ms = within.as_nanos().div_ceil(1_000_000);
                let for_ms = u32::try_from(for_ms).ok().filter(|ms| *ms <= FOR_MS_MAX);
                let for_ms = for_ms.ok_or_else(|| Failure::usage("--for is at most 24h"))?;
                process
                    .set_log_filter(api::SetLogFilterRequest { filter, for_ms })
                    .await
            }
        };
        let api::LogFilter {
            filter,
            then,
            then_in_ms,
        } = answer?.into_inner();
        let back = then.as_ref().map_or(String::new(), |then| {
            let left = units::span(Duration::from_millis(then_in_ms));
            format!("; in {left} it is {then} again")
        });
        output.show(&Done {
            sentence: format!("the log filter is {filter}{back}"),
            facts: Shown {
                filter,
                then_in_ms: then.as_ref().map(|_| then_in_ms),
                then,
            },
        })
    }
}
