//! `castnet events`: what happens on a switch, as it happens.

use std::time::Duration;

use castnet_proto::convert::disagreement_from_proto;
use castnet_wire::Verdict;
use clap::Args;
use serde::Serialize;

use crate::api::{self, agent_event::Event};
use crate::connect::AgentArgs;
use crate::exit::{Failure, Outcome};
use crate::output::{Output, Page, Report};
use crate::pick::Deadline;
use crate::port::PortNames;
use crate::units::{self, Span};

/// What happens on a switch, as it happens: links, neighbours, groups, stalled paths
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  castnet events                                  until Ctrl-C
  castnet events --count 1 --wait 1m              the next one
  castnet events --output json | jq .             one object a line")]
pub(crate) struct EventsCommand {
    /// Ends after so many events
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Ends after this time
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Debug, Serialize)]
struct EventLine {
    at_ns: u64,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<String>,
    message: String,
}

impl Report for EventLine {
    fn page(&self, page: &mut Page) {
        let group = match &self.group {
            Some(group) if !self.message.contains(group.as_str()) => format!("{group}: "),
            _ => String::new(),
        };
        page.line(format!(
            "{:.6} {}: {group}{}",
            self.at_ns as f64 / 1e9,
            self.kind,
            self.message
        ));
    }
}

/// `None` for what only opens the stream.
fn line(event: api::AgentEvent, names: &PortNames) -> Option<EventLine> {
    let (kind, group, port, message) = match event.event? {
        Event::Hello(_) => return None,
        Event::Port(p) => {
            let message = format!("{} is {}", p.name, if p.up { "up" } else { "down" });
            ("port", None, Some(p.name), message)
        }
        Event::Neighbour(change) => {
            let neighbour = change.neighbour.unwrap_or_default();
            let port = names.name(neighbour.port);
            let who = match neighbour.kind {
                Some(api::neighbour::Kind::Switch(s)) => format!("switch {} ({})", s.name, s.port),
                Some(api::neighbour::Kind::Host(h)) => format!("host {} ({})", h.ip, h.mac),
                None => "somebody".to_owned(),
            };
            let message = format!(
                "{who} {} at {port}",
                if change.gone { "is gone" } else { "was seen" }
            );
            ("neighbour", None, Some(port), message)
        }
        Event::PathStalled(s) => {
            let waited = units::span(Duration::from_nanos(s.for_ns));
            let acked = s
                .ack_psn
                .map_or_else(|| "nothing".to_owned(), |psn| format!("PSN {psn}"));
            let message = format!(
                "{} has acknowledged {acked}, and no more for {waited}",
                s.next_hop
            );
            ("path-stalled", Some(s.group), Some(names.name(s.port)), message)
        }
        Event::Group(g) => {
            let what = if g.removed { "removed" } else { "installed" };
            let message = format!("{} ({}) {what}, generation {}", g.group, g.mcst_id, g.generation);
            ("group", Some(g.group), None, message)
        }
        Event::BaselineLearned(b) => {
            let message = format!("the source of {} begins at PSN {}", b.group, b.psn);
            ("baseline-learned", Some(b.group), None, message)
        }
        Event::MemberFailed(m) => {
            let message = format!("{} has failed: syndrome {:#04x}", m.next_hop, m.syndrome);
            ("member-failed", Some(m.group), Some(names.name(m.port)), message)
        }
        Event::CollectiveStalled(s) => {
            let waited = units::span(Duration::from_nanos(s.for_ns));
            let ranks: Vec<String> = s.ranks.iter().map(u32::to_string).collect();
            let message = format!(
                "PSN {} waits for {} (rank {}) for {waited}",
                s.psn,
                s.next_hops.join(", "),
                ranks.join(", ")
            );
            let ports: Vec<String> = s.ports.iter().map(|p| names.name(*p)).collect();
            (
                "collective-stalled",
                Some(s.group),
                Some(ports.join(", ")),
                message,
            )
        }
        Event::CollectiveConflict(c) => {
            let said = disagreement_from_proto("disagreement", &c.disagreement.unwrap_or_default());
            let message = match said.map(|c| (c, c.verdict)) {
                Ok((c, Verdict::Conflict { rank, call })) => format!(
                    "collective {}: rank {} says {}, rank {rank} says {call}",
                    c.sequence, c.rank, c.call
                ),
                _ => "ranks disagree".to_owned(),
            };
            ("collective-conflict", Some(c.group), None, message)
        }
        Event::GroupMoved(m) => {
            let why = m.busy_percent.map_or_else(
                || "asked for".to_owned(),
                |busy| format!("that worker was busy {busy} % of the time"),
            );
            let message = format!(
                "{} moved from worker {} to worker {}: {why}",
                m.group, m.from, m.to
            );
            ("group-moved", Some(m.group), None, message)
        }
        Event::GroupHot(h) => {
            let message = format!(
                "{} takes {} % of worker {}, which is overloaded, and no other could carry it: give it lanes",
                h.group, h.share_percent, h.worker
            );
            ("group-hot", Some(h.group), None, message)
        }
        Event::FdbFull(f) => (
            "fdb-full",
            None,
            None,
            format!("{} addresses are learnt, and no place for more", f.entries),
        ),
        Event::Lagged(l) => (
            "lagged",
            None,
            None,
            format!("{} events came too fast and are lost", l.events),
        ),
    };
    Some(EventLine {
        at_ns: event.at_ns,
        kind,
        group,
        port,
        message,
    })
}

impl EventsCommand {
    /// Prints events until there are enough.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let mut agent = self.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        let mut events = agent
            .watch_events(api::WatchAgentEventsRequest {})
            .await?
            .into_inner();
        let mut deadline = Deadline::new(self.wait)?;
        let mut seen = 0;
        while self.count.is_none_or(|most| seen < most) {
            let Some(event) = deadline.next(&mut events).await? else {
                break;
            };
            if let Some(line) = line(event, &names) {
                output.show_next(&line)?;
                seen += 1;
            }
        }
        if self.count.is_some_and(|most| seen < most) {
            return Err(Failure::failed(format!("{seen} events in that time")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_sentences_and_the_opening_is_not_told() {
        let names = PortNames::of(&["h1"]);
        let event = |event| api::AgentEvent {
            at_ns: 1_500_000_000,
            event: Some(event),
        };
        assert!(line(event(Event::Hello(api::Hello { boot_id: 1 })), &names).is_none());
        let stalled = api::PathStalled {
            group: "g".to_owned(),
            next_hop: "h2".to_owned(),
            for_ns: 2_000_000_000,
            ack_psn: Some(7),
            ..Default::default()
        };
        let line = line(event(Event::PathStalled(stalled)), &names).expect("an event");
        let mut page = Page::default();
        line.page(&mut page);
        assert_eq!(
            page.text(),
            "1.500000 path-stalled: h2 has acknowledged PSN 7, and no more for 2.00 s\n"
        );
        let moved = api::GroupMoved {
            group: "g".to_owned(),
            from: 0,
            to: 1,
            busy_percent: Some(97),
            ..Default::default()
        };
        let line = super::line(event(Event::GroupMoved(moved)), &names).expect("an event");
        assert_eq!(
            line.message,
            "g moved from worker 0 to worker 1: that worker was busy 97 % of the time"
        );
    }
}
