use std::collections::BTreeMap;
use std::path::PathBuf;

use castnet_console::api;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report, remark};
use castnet_console::units::{self, Span, count};
use clap::Args;
use serde::Serialize;

use crate::packets;
use crate::pick::{self, FilterArgs};
use crate::port::{AtPort, PortNames};

/// Shows, stage by stage, what a switch does with a frame and why
#[derive(Debug, Args)]
#[command(
    after_help = "A dry run (--hex or --pcap) changes nothing on the switch. Without one of them, the next live frames that match are traced.

Examples:
  castnet trace --port h1 --hex 02000000000102...      what would happen to this frame?
  castnet trace --port h1 --pcap bad.pcapng --frame 7  ... to the seventh frame of a file?
  castnet trace --group g --count 3                    the next three frames of a group
  castnet trace --drops --count 1 --wait 30s           the next frame that is dropped"
)]
pub(crate) struct TraceCommand {
    /// Dry run: the frame from its Ethernet header on, without FCS, in hexadecimal
    #[arg(long, value_name = "DIGITS", requires = "port", conflicts_with = "pcap")]
    hex: Option<String>,
    /// Dry run: take the frame from this pcap or pcapng file; `-` is stdin
    #[arg(long, value_name = "FILE", requires = "port")]
    pcap: Option<PathBuf>,
    /// The frame of the file, from 1
    #[arg(long, value_name = "N", requires = "pcap", default_value_t = 1)]
    frame: usize,
    /// How many live frames
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u32,
    /// How long to wait for live frames; fewer than --count are a failure then. Without it, until Ctrl-C
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    agent: AgentArgs,
}

/// More steps of one stage and more frames sent than this are only counted. JSON has all.
const LIKE_MAX: usize = 4;

#[derive(Debug, Serialize)]
struct TraceReport {
    #[serde(flatten)]
    trace: api::FrameTrace,
    ingress_name: String,
    outputs: Vec<AtPort<api::TraceOutput>>,
}

impl TraceReport {
    fn new(mut trace: api::FrameTrace, names: &PortNames) -> Self {
        let outputs = std::mem::take(&mut trace.outputs).into_iter();
        Self {
            ingress_name: names.name(trace.ingress),
            outputs: outputs.map(|out| names.at(out.port, out)).collect(),
            trace,
        }
    }
}

impl Report for TraceReport {
    fn page(&self, page: &mut Page) {
        page.line(format!("in at {}: {}", self.ingress_name, self.trace.summary));
        let steps = &self.trace.steps;
        let width = steps.iter().map(|s| s.stage.chars().count()).max();
        let width = width.unwrap_or(0);
        let mut of_stage: BTreeMap<&str, usize> = BTreeMap::new();
        for step in steps {
            let seen = of_stage.entry(&step.stage).or_default();
            *seen += 1;
            if *seen > LIKE_MAX {
                continue;
            }
            let colon = if step.reason.is_empty() { "" } else { ": " };
            page.line(format!(
                "  {:width$}  {}{colon}{}",
                step.stage, step.decision, step.reason
            ));
        }
        for (stage, seen) in of_stage {
            if let more @ 1.. = seen.saturating_sub(LIKE_MAX) {
                page.line(format!("  {stage:width$}  {more} more like these"));
            }
        }
        for out in self.outputs.iter().take(LIKE_MAX) {
            page.line(format!("  => out at {}: {}", out.port_name, out.of.summary));
            if !out.of.rewrite.is_empty() {
                page.line(format!("       {}", out.of.rewrite));
            }
        }
        let others = self.outputs.iter().skip(LIKE_MAX);
        let ports: Vec<&str> = others.map(|out| out.port_name.as_str()).collect();
        if !ports.is_empty() {
            page.line(format!(
                "  => {} more like these, out at {}",
                ports.len(),
                ports.join(", ")
            ));
        }
        match &self.trace.drop_reason {
            Some(reason) => page.line(format!("  => dropped: {reason}")),
            None if self.outputs.is_empty() => page.line("  => absorbed"),
            None => {}
        }
    }
}

impl TraceCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let given = match (&self.hex, &self.pcap) {
            (Some(digits), _) => {
                Some(units::from_hex(digits).map_err(|e| Failure::usage(format!("--hex: {e}")))?)
            }
            (None, Some(file)) => Some(packets::frame(file, self.frame)?),
            (None, None) => None,
        };
        let mut agent = self.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        let filter = self.filter.resolve(&mut agent, &names).await?;
        let (what, wanted) = match given {
            Some(bytes) => {
                let port = filter.port.unwrap_or_default();
                (
                    api::trace_request::What::Frame(api::GivenFrame { port, bytes }),
                    1,
                )
            }
            None => (api::trace_request::What::Filter(filter), self.count.max(1)),
        };
        let request = api::TraceRequest {
            what: Some(what),
            frames_max: wanted,
        };
        let mut traces = agent.trace(request).await?.into_inner();
        let mut deadline = pick::Deadline::new(self.wait)?;
        let (mut seen, mut lost) = (0, 0);
        let ended = loop {
            if seen >= wanted {
                break Ok(());
            }
            let trace = match deadline.next(&mut traces).await {
                Ok(Some(trace)) => trace,
                Ok(None) => break Ok(()),
                Err(failure) => break Err(failure),
            };
            if seen > 0 && !output.is_json() {
                castnet_console::output::write_stdout("\n")?;
            }
            lost = trace.lost;
            output.show_next(&TraceReport::new(trace, &names))?;
            seen += 1;
        };
        if lost > 0 {
            remark(&format!("{} more came too fast to be traced", count(lost)));
        }
        if ended.is_ok() && is_too_few(seen, wanted, deadline.has_passed()) {
            return Err(Failure::failed(format!("{seen} of {wanted} frames matched"))
                .next("castnet counters --watch 1s\nshows whether frames come in at all"));
        }
        if seen < wanted {
            remark(&format!("{seen} of {wanted} frames seen"));
        }
        ended
    }
}

/// Who stops it has seen enough, but for nothing, and so has who is too slow for the rest: a switch ends the stream then.
fn is_too_few(seen: u32, wanted: u32, has_passed: bool) -> bool {
    seen == 0 || has_passed && seen < wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_frames_than_asked_for_are_a_failure() {
        for (seen, has_passed, wanted) in [
            (3, true, false),
            (2, true, true),
            (2, false, false),
            (0, false, true),
            (0, true, true),
        ] {
            let is = is_too_few(seen, 3, has_passed);
            assert_eq!(is, wanted, "{seen} seen, passed: {has_passed}");
        }
    }

    fn trace(drop: Option<&str>, outputs: Vec<api::TraceOutput>) -> String {
        let step = api::TraceStep {
            stage: "classify".to_owned(),
            decision: "group g, data".to_owned(),
            reason: "dst 239.1.1.1".to_owned(),
        };
        let trace = api::FrameTrace {
            at_ns: 1,
            ingress: 0,
            summary: "RC SEND_ONLY psn 5".to_owned(),
            steps: vec![step],
            outputs,
            drop_reason: drop.map(str::to_owned),
            lost: 0,
        };
        let mut page = Page::default();
        TraceReport::new(trace, &PortNames::of(&["h1", "h2"])).page(&mut page);
        page.text().to_owned()
    }

    #[test]
    fn a_trace_ends_with_what_became_of_the_frame() {
        assert!(trace(Some("bad-icrc"), vec![]).ends_with("=> dropped: bad-icrc\n"));
        assert!(trace(None, vec![]).ends_with("=> absorbed\n"));
        let out = api::TraceOutput {
            port: 1,
            summary: "RC SEND_ONLY".to_owned(),
            rewrite: "dst ip".to_owned(),
        };
        let text = trace(None, vec![out]);
        assert_eq!(
            text,
            "in at h1: RC SEND_ONLY psn 5\n  classify  group g, data: dst 239.1.1.1\n  => out at h2: RC SEND_ONLY\n       dst ip\n"
        );
    }

    /// A frame that makes as many leave as a switch has ports is told in a screen of lines.
    #[test]
    fn a_trace_with_many_steps_alike_stays_short() {
        let steps = (0..128).map(|n| api::TraceStep {
            stage: if n % 2 == 0 { "translate" } else { "send" }.to_owned(),
            decision: format!("endpoint {}", n / 2),
            reason: String::new(),
        });
        let outputs = (0..64).map(|n| api::TraceOutput {
            port: n,
            ..Default::default()
        });
        let trace = api::FrameTrace {
            steps: steps.collect(),
            outputs: outputs.collect(),
            ..Default::default()
        };
        let names: Vec<String> = (0..64).map(|n| format!("h{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let report = TraceReport::new(trace, &PortNames::of(&names));
        let mut page = Page::default();
        report.page(&mut page);
        let text = page.text();
        assert!(text.lines().count() < 24, "{text}");
        assert!(text.contains("\n  translate  60 more like these\n"), "{text}");
        assert!(
            text.contains("\n  => 60 more like these, out at h4, h5, "),
            "{text}"
        );
        assert_eq!((report.trace.steps.len(), report.outputs.len()), (128, 64));
    }
}
