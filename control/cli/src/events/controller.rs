//! Events of the controller, also over its restarts.

use std::collections::BTreeMap;
use std::time::Duration;

use castnet_console::api::{self, controller_event::Event};
use castnet_console::connect;
use castnet_console::exit::{Failure, Kind, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::units;
use castnet_proto::states::WatchedGroups;
use castnet_proto::transport::{Controllers, Security};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

use super::Selection;
use crate::group::{job_phase, last_word};
use crate::pick::Deadline;

/// First and longest pause before the next attempt to reach the controller again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

#[derive(Debug, Serialize)]
struct ControllerEventLine {
    at_unix_ns: u64,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    switch: Option<String>,
    message: String,
    /// Its fields depend on the kind. Quantities have their unit in their name.
    #[serde(flatten)]
    facts: Value,
}

impl Report for ControllerEventLine {
    fn page(&self, page: &mut Page) {
        let at = match self.at_unix_ns {
            0 => "--:--:--.------".to_owned(),
            at => clock(at),
        };
        page.line(format!("{at} {}: {}", self.kind, self.message));
    }
}

/// The time of the day in UTC, which is that of the controller's log.
fn clock(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    let micros = unix_ns / 1000 % 1_000_000;
    format!("{hours:02}:{minutes:02}:{:02}.{micros:06}Z", seconds % 60)
}

fn because(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}

fn comma(numbers: &[u32]) -> String {
    let all: Vec<String> = numbers.iter().map(u32::to_string).collect();
    all.join(", ")
}

impl ControllerEventLine {
    /// `None` for the event that only opens the stream.
    fn new(event: api::ControllerEvent) -> Option<Self> {
        let waited = |ns| units::span(Duration::from_nanos(ns));
        let (kind, group, switch, message, facts) = match event.event? {
            Event::Started(_) => return None,
            Event::Group(g) => {
                let (phase, members) = (last_word(g.phase().as_str_name()), g.members.len());
                let (joined, absent) = (joined(&g.members), absent(&g));
                let facts = json!({
                    "phase": phase, "reason": g.reason, "mcst_id": g.mcst_id, "generation": g.generation,
                    "members": members, "joined": joined, "absent": absent,
                });
                let message = format!(
                    "group {} is {phase}, {joined} of {members} members are in{}{}",
                    g.name,
                    without(&absent),
                    because(&g.reason)
                );
                ("group", Some(g.name), None, message, facts)
            }
            Event::Collective(g) => {
                let (phase, ranks) = (job_phase(&g), g.members.len());
                let joined = joined(&g.members);
                let facts = json!({
                    "phase": phase, "reason": g.reason, "mcst_id": g.mcst_id, "generation": g.generation,
                    "ranks": ranks, "joined": joined, "failed_rank": g.failed_rank,
                    "waiting_for": g.waiting_for,
                });
                let message = format!(
                    "group {} is {phase}, {joined} of {ranks} ranks are in{}",
                    g.name,
                    because(&g.reason)
                );
                let switch = Some(g.failed_switch).filter(|name| !name.is_empty());
                ("collective", Some(g.name), switch, message, facts)
            }
            Event::GroupGone(name) => {
                let message = format!("group {name} is gone");
                ("group-gone", Some(name), None, message, json!({}))
            }
            Event::Switch(s) => {
                let facts = json!({ "reachable": s.reachable, "reason": s.reason, "groups": s.groups });
                let state = if s.reachable {
                    "is reachable"
                } else {
                    "cannot be reached"
                };
                let message = format!("switch {} {state}{}", s.name, because(&s.reason));
                ("switch", None, Some(s.name), message, facts)
            }
            Event::PathStalled(s) => {
                let facts = json!({
                    "port": s.port, "next_hop": s.next_hop, "ack_psn": s.ack_psn, "waited_ns": s.for_ns, "tries": s.tries,
                });
                let psn = s
                    .ack_psn
                    .map_or_else(|| "nothing".to_owned(), |psn| format!("PSN {psn}"));
                let message = format!(
                    "{} has acknowledged {psn} of group {} at switch {}, and no more for {}{}",
                    s.next_hop,
                    s.group,
                    s.switch_name,
                    waited(s.for_ns),
                    super::tries(s.tries)
                );
                ("path-stalled", Some(s.group), Some(s.switch_name), message, facts)
            }
            Event::CollectiveStalled(s) => {
                let facts = json!({
                    "generation": s.generation, "ranks": s.ranks, "hosts": s.hosts, "next_hops": s.next_hops,
                    "psn": s.psn, "waited_ns": s.for_ns,
                });
                let message = format!(
                    "switch {} waits for rank {} ({}) of group {} for {}",
                    s.switch_name,
                    comma(&s.ranks),
                    s.hosts.join(", "),
                    s.group,
                    waited(s.for_ns)
                );
                (
                    "collective-stalled",
                    Some(s.group),
                    Some(s.switch_name),
                    message,
                    facts,
                )
            }
            Event::MemberFailed(m) => {
                let facts = json!({
                    "generation": m.generation, "next_hop": m.next_hop, "rank": m.rank, "syndrome": m.syndrome,
                });
                let message = format!(
                    "{} of group {} has failed at switch {}: syndrome {:#04x}",
                    m.next_hop, m.group, m.switch_name, m.syndrome
                );
                (
                    "member-failed",
                    Some(m.group),
                    Some(m.switch_name),
                    message,
                    facts,
                )
            }
            Event::RelayChanged(r) => {
                let facts = json!({
                    "failed": !r.reason.is_empty(), "reason": r.reason, "mirror": r.mirror, "rules": r.rules,
                    "not_covered": r.not_covered,
                });
                let message = match r.reason.is_empty() {
                    true => format!("switch {} relays again", r.switch_name),
                    false => {
                        let others = match r.not_covered.is_empty() {
                            true => String::new(),
                            false => format!("; nobody relays in the place of {}", r.not_covered.join(", ")),
                        };
                        let rules = match r.rules {
                            // Others have failed since.
                            0 => String::new(),
                            rules => format!(" ({} changed)", units::plural(rules as usize, "rule")),
                        };
                        format!(
                            "switch {} no longer relays, {} does in its place{rules}: {}{others}",
                            r.switch_name, r.mirror, r.reason
                        )
                    }
                };
                ("relay", None, Some(r.switch_name), message, facts)
            }
            Event::Lagged(lost) => {
                let message = super::too_fast(lost);
                ("lagged", None, None, message, json!({ "events": lost }))
            }
        };
        Some(Self {
            at_unix_ns: event.at_unix_ns,
            kind,
            group,
            switch,
            message,
            facts,
        })
    }

    /// About the connection to the controller.
    fn connection(kind: &'static str, message: String) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            at_unix_ns: now.map_or(0, |now| now.as_nanos() as u64),
            kind,
            group: None,
            switch: None,
            message,
            facts: json!({}),
        }
    }
}

/// Members that a running group goes on without: they were lost, or have left.
fn absent(group: &api::GroupState) -> Vec<&str> {
    let runs = matches!(group.phase(), api::GroupPhase::Active | api::GroupPhase::Degraded);
    let is_out = |m: &&api::MemberState| runs && m.phase() == api::MemberPhase::Expected;
    let absent = group.members.iter().filter(is_out);
    absent.map(|m| m.host.as_str()).collect()
}

/// The names of a few, and how many more there are.
fn without(absent: &[&str]) -> String {
    const NAMES_MAX: usize = 8;
    match absent.is_empty() {
        true => String::new(),
        false => format!(", without {}", units::first_of(absent.iter(), NAMES_MAX)),
    }
}

fn joined(members: &[api::MemberState]) -> usize {
    let is_in = |m: &&api::MemberState| m.phase() == api::MemberPhase::Joined;
    members.iter().filter(is_in).count()
}

async fn open(controllers: &Controllers, security: &Security) -> Outcome<Streaming<api::ControllerEvent>> {
    let mut controller = connect::controller(controllers, security).await?;
    let request = api::WatchControllerEventsRequest { differences: true };
    Ok(controller.watch_events(request).await?.into_inner())
}

/// Shows events until the selection ends. If the controller goes away, says so and connects again.
pub(super) async fn run(
    controllers: &Controllers,
    security: &Security,
    selection: &Selection,
    output: Output,
) -> Outcome<u64> {
    let mut deadline = Deadline::new(selection.wait)?;
    let (mut seen, mut pause, mut is_lost) = (0, PAUSE.0, false);
    // A switch that cannot be reached is reported at each attempt.
    let mut switches: BTreeMap<String, (bool, String)> = BTreeMap::new();
    loop {
        let opened = match deadline.until(open(controllers, security)).await {
            None => return Ok(seen),
            Some(opened) => opened,
        };
        let why = match opened {
            Ok(mut events) => {
                if std::mem::take(&mut is_lost) {
                    let message = "connected again; what happened meanwhile was not reported".to_owned();
                    output.show_next(&ControllerEventLine::connection("connected", message))?;
                }
                pause = PAUSE.0;
                let mut groups = WatchedGroups::default();
                loop {
                    if selection.is_complete(seen) {
                        return Ok(seen);
                    }
                    match deadline.until(events.next()).await {
                        None => return Ok(seen),
                        Some(Some(Ok(event))) => {
                            let event = match groups.complete(event) {
                                Ok(event) => event,
                                Err(gap) => break Failure::from(Status::from(gap)),
                            };
                            if let Some(Event::Switch(s)) = &event.event {
                                let now = (s.reachable, s.reason.clone());
                                if switches.insert(s.name.clone(), now.clone()) == Some(now) {
                                    continue;
                                }
                            }
                            let line = ControllerEventLine::new(event);
                            let line = line.filter(|line| selection.wants(line.group.as_deref()));
                            if let Some(line) = line {
                                output.show_next(&line)?;
                                seen += 1;
                            }
                        }
                        Some(Some(Err(status))) => break Failure::from(status),
                        Some(None) => break Failure::unreachable("the controller ended the stream"),
                    }
                }
            }
            // Only one that was there is waited for, and a refusal stays one.
            Err(failure) if !is_lost || matches!(failure.kind, Kind::Usage | Kind::Refused) => {
                return Err(failure);
            }
            Err(failure) => failure,
        };
        if !std::mem::replace(&mut is_lost, true) {
            let message = format!(
                "the connection to {controllers} is lost: {}; trying again",
                why.what
            );
            output.show_next(&ControllerEventLine::connection("disconnected", message))?;
        }
        if deadline.until(tokio::time::sleep(pause)).await.is_none() {
            return Ok(seen);
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(event: Event) -> Option<ControllerEventLine> {
        ControllerEventLine::new(api::ControllerEvent {
            at_unix_ns: 1_700_000_000_123_456_789,
            event: Some(event),
        })
    }

    fn text(line: &ControllerEventLine) -> String {
        let mut page = Page::default();
        line.page(&mut page);
        page.text().to_owned()
    }

    #[test]
    fn many_members_that_are_out_are_not_all_named() {
        assert_eq!(without(&[]), "");
        assert_eq!(without(&["h1", "h2"]), ", without h1, h2");
        let many = without(&["h"; 1000]);
        assert!(many.ends_with(", h and 992 more") && many.len() < 60, "{many}");
    }

    #[test]
    fn events_are_sentences_with_facts_and_the_opening_is_not_shown() {
        assert!(line(Event::Started(api::WatchStarted {})).is_none());
        let group = line(Event::Group(api::GroupState {
            name: "g".to_owned(),
            phase: api::GroupPhase::Degraded.into(),
            reason: "switch leaf1 cannot be reached".to_owned(),
            generation: 3,
            members: vec![
                api::MemberState {
                    phase: api::MemberPhase::Joined.into(),
                    ..Default::default()
                },
                api::MemberState {
                    host: "h4".to_owned(),
                    phase: api::MemberPhase::Expected.into(),
                    ..Default::default()
                },
            ],
            ..Default::default()
        }))
        .expect("an event");
        assert_eq!(
            text(&group),
            "22:13:20.123456Z group: group g is degraded, 1 of 2 members are in, without h4: \
             switch leaf1 cannot be reached\n"
        );
        let json = serde_json::to_value(&group).expect("JSON");
        assert_eq!(
            (&json["group"], &json["phase"], &json["joined"]),
            (&json!("g"), &json!("degraded"), &json!(1))
        );
        let stalled = line(Event::CollectiveStalled(api::CollectiveStalled {
            group: "sums".to_owned(),
            switch_name: "leaf1".to_owned(),
            ranks: vec![2, 5],
            hosts: vec!["h2".to_owned(), "h5".to_owned()],
            for_ns: 2_000_000_000,
            ..Default::default()
        }))
        .expect("an event");
        assert!(
            text(&stalled).ends_with("switch leaf1 waits for rank 2, 5 (h2, h5) of group sums for 2.00 s\n")
        );
        let switch = line(Event::Switch(api::SwitchState {
            name: "leaf1".to_owned(),
            reason: "connection refused".to_owned(),
            ..Default::default()
        }))
        .expect("an event");
        assert!(text(&switch).ends_with("switch: switch leaf1 cannot be reached: connection refused\n"));
    }
}
