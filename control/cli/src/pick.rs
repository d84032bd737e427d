//! What `trace` and `capture` share: the filter of frames, and how long to wait for them.

use std::net::Ipv4Addr;
use std::time::Instant;

use castnet_console::api;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::service::Signals;
use castnet_console::units::Span;
use castnet_wire::DropReason;
use clap::Args;
use tokio_stream::{Stream, StreamExt};

use crate::port::{PortNames, none_of};

/// Which frames. Without an option, all match.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Which frames")]
pub(crate) struct FilterArgs {
    /// Frames at this port: its name or number
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<String>,
    /// Frames of this group: its name or its McstID
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Frames from this address
    #[arg(long, value_name = "IP")]
    pub(crate) src: Option<Ipv4Addr>,
    /// Frames to this address
    #[arg(long, value_name = "IP")]
    pub(crate) dst: Option<Ipv4Addr>,
    /// Only frames that are dropped; with a reason, only for that one (`castnet drops --all` names them). Frames that
    /// a port drops (injected, tx-full, port-down) are counted, but cannot be seen
    #[arg(long, value_name = "REASON", num_args = 0..=1, default_missing_value = "", require_equals = true, value_parser = reason)]
    pub(crate) drops: Option<String>,
}

fn reason(text: &str) -> Result<String, String> {
    if text.is_empty() || DropReason::ALL.iter().any(|r| r.name() == text) {
        return Ok(text.to_owned());
    }
    let names: Vec<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
    Err(format!(
        "there is no reason '{text}'; there are: {}",
        names.join(", ")
    ))
}

impl FilterArgs {
    /// The filter in the switch's own terms: ports by number, groups by McstID.
    pub(crate) async fn resolve(
        &self,
        agent: &mut api::AgentClient,
        names: &PortNames,
    ) -> Outcome<api::FrameFilter> {
        let mcst_id = match &self.group {
            Some(group) => Some(mcst_id(agent, group).await?),
            None => None,
        };
        Ok(api::FrameFilter {
            port: self.port.as_deref().map(|port| names.find(port)).transpose()?,
            mcst_id,
            src_ip: self.src.map(|ip| ip.to_string()),
            dst_ip: self.dst.map(|ip| ip.to_string()),
            drops_only: self.drops.is_some(),
            drop_reason: self.drops.clone().filter(|reason| !reason.is_empty()),
        })
    }
}

/// The McstID of the group with this name or McstID on this switch.
pub(crate) async fn mcst_id(agent: &mut api::AgentClient, text: &str) -> Outcome<String> {
    if text.parse::<Ipv4Addr>().is_ok() {
        return Ok(text.to_owned());
    }
    let request = api::ListGroupsRequest {
        mcst_id: None,
        brief: true,
    };
    let listed = agent.list_groups(request).await?.into_inner();
    let rules: Vec<_> = listed.groups.into_iter().filter_map(|g| g.rule).collect();
    match rules.iter().find(|rule| rule.name == text) {
        Some(rule) => Ok(rule.mcst_id.clone()),
        None => Err(none_of(
            "group",
            text,
            rules.iter().map(|rule| rule.name.as_str()),
        )),
    }
}

/// Waits for items of a stream until a time has passed, or a signal.
#[derive(Debug)]
pub(crate) struct Deadline {
    at: Option<tokio::time::Instant>,
    started: Instant,
    signals: Signals,
    stopped: bool,
    passed: bool,
}

impl Deadline {
    pub(crate) fn new(wait: Option<Span>) -> Outcome<Self> {
        let at = wait.map(|span| tokio::time::Instant::now() + span.0);
        // From now on: a signal between two items must not be lost.
        let signals = Signals::catch()?;
        signals.end_soon();
        Ok(Self {
            at,
            started: Instant::now(),
            signals,
            stopped: false,
            passed: false,
        })
    }

    /// Whether the time has passed, and no signal came before.
    pub(crate) fn has_passed(&self) -> bool {
        self.passed
    }

    pub(crate) fn elapsed(&self) -> std::time::Duration {
        self.started.elapsed()
    }

    /// `None` after the end of the stream, the time, or a signal. Frames that were lost count in what was asked for.
    pub(crate) async fn next<T, S>(&mut self, stream: &mut S) -> Outcome<Option<T>>
    where
        S: Stream<Item = Result<T, tonic::Status>> + Unpin,
    {
        let next = self.until(stream.next()).await.flatten();
        next.transpose().map_err(Failure::from)
    }

    /// The result of `work`; `None` after the time or a signal.
    pub(crate) async fn until<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        if self.stopped {
            return None;
        }
        let over = async {
            match self.at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.signals.any() => {
                self.stopped = true;
                None
            }
            () = over => {
                self.passed = true;
                None
            }
            done = work => Some(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_does_not_exist_is_refused_with_those_that_do() {
        assert_eq!(reason("bad-icrc"), Ok("bad-icrc".to_owned()));
        assert_eq!(reason(""), Ok(String::new()));
        assert!(reason("gremlins").is_err_and(|e| e.contains("tx-full")));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_time_or_with_the_stream() {
        let mut silent = tokio_stream::pending::<Result<u8, tonic::Status>>();
        let mut deadline = Deadline::new(Some(Span(std::time::Duration::from_secs(5)))).expect("signals");
        assert_eq!(deadline.next(&mut silent).await.ok(), Some(None));
        let mut short = tokio_stream::iter([Ok::<u8, tonic::Status>(7)]);
        let mut deadline = Deadline::new(None).expect("signals");
        assert_eq!(deadline.next(&mut short).await.ok(), Some(Some(7)));
        assert_eq!(deadline.next(&mut short).await.ok(), Some(None));
    }
}
