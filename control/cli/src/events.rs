mod controller;

use std::time::Duration;

use castnet_console::api::{self, agent_event::Event, rank_refused::Rule as BrokenRule};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report};
use castnet_console::units::{self, Span};
use castnet_proto::convert::{call_from_proto, disagreement_from_proto};
use castnet_rules::lane_of;
use castnet_wire::Verdict;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use crate::pick::Deadline;
use crate::place::PlaceArgs;
use crate::port::PortNames;

/// Events of a switch or of the controller as they happen: links, neighbours, groups, stalled paths
#[derive(Debug, Args)]
#[command(
    after_help = "The controller reports groups of all switches, and switches that come and go. If it goes away, that is said, and it is connected to again as soon as it is back.

Examples:
  castnet events                                  of the switch, until Ctrl-C
  castnet events --count 1 --wait 1m              the next one
  castnet events --controller                     of the controller
  castnet events --controller --group g           of one group
  castnet events --output json | jq .             one object a line"
)]
pub(crate) struct EventsCommand {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Args)]
struct Selection {
    /// Ends after so many events
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Ends after this time
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    /// Only of this group and its lanes
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
}

impl Selection {
    fn wants(&self, group: Option<&str>) -> bool {
        let of = |group| lane_of(group).map_or(group, |(name, _)| name);
        self.group
            .as_deref()
            .is_none_or(|wanted| group.map(of) == Some(wanted) || group == Some(wanted))
    }

    fn is_complete(&self, seen: u64) -> bool {
        self.count.is_some_and(|most| seen >= most)
    }
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
    /// Its fields depend on the kind. Quantities have their unit in their name.
    #[serde(flatten)]
    facts: Value,
}

impl Report for EventLine {
    fn page(&self, page: &mut Page) {
        let is_named = matches!(
            self.kind,
            "group" | "baseline-learned" | "group-moved" | "group-hot"
        );
        let group = match &self.group {
            Some(group) if !is_named => format!("{group}: "),
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

/// How often a switch has sent a packet again that a path has not acknowledged.
fn tries(count: u32) -> String {
    match count {
        0 => String::new(),
        1 => "; the next packet was sent again once".to_owned(),
        count => format!("; the next packet was sent again {count} times"),
    }
}

/// Events are lost.
fn too_fast(lost: u64) -> String {
    format!(
        "{} came too fast to be told",
        units::plural(lost as usize, "event")
    )
}

fn who(neighbour: Option<api::neighbour::Kind>) -> String {
    match neighbour {
        Some(api::neighbour::Kind::Switch(s)) => format!("switch {} ({})", s.name, s.port),
        Some(api::neighbour::Kind::Host(h)) => format!("host {} ({})", h.ip, h.mac),
        None => "unknown neighbour".to_owned(),
    }
}

impl EventLine {
    /// `None` for the event that only opens the stream.
    fn new(event: api::AgentEvent, ports: &PortNames) -> Option<Self> {
        let name = |port| Some(ports.name(port));
        let waited = |ns| units::span(Duration::from_nanos(ns));
        let (kind, group, port, message, facts) = match event.event? {
            Event::Hello(_) => return None,
            Event::Port(p) => {
                let facts = json!({ "up": p.up, "mtu": p.mtu, "reason": p.reason });
                let state = if p.up { "up" } else { "down" };
                let reason = p.reason.map_or_else(String::new, |reason| format!(": {reason}"));
                let message = format!("{} is {state}, MTU {}{reason}", p.name, p.mtu);
                ("port", None, Some(p.name), message, facts)
            }
            Event::Neighbour(change) => {
                let facts = json!({ "gone": change.gone });
                let neighbour = change.neighbour.unwrap_or_default();
                let port = ports.name(neighbour.port);
                let who = who(neighbour.kind);
                let change = if change.gone { "is gone" } else { "was seen" };
                let message = format!("{who} {change} at {port}");
                ("neighbour", None, Some(port), message, facts)
            }
            Event::AddressClaimed(claimed) => {
                let claim = claimed.claim.unwrap_or_default();
                let (port, seen_at) = (ports.name(claim.port), ports.name(claimed.seen_at));
                let message = format!(
                    "{} claims at {port} the address of a host at {seen_at}, which keeps it if it answers, or is a member of a group",
                    who(claim.kind)
                );
                let facts = json!({ "seen_at": seen_at });
                ("address-claimed", None, Some(port), message, facts)
            }
            Event::PathStalled(s) => {
                let facts = json!({
                    "next_hop": s.next_hop, "ack_psn": s.ack_psn, "waited_ns": s.for_ns, "tries": s.tries,
                });
                let acknowledged = s
                    .ack_psn
                    .map_or_else(|| "nothing".to_owned(), |psn| format!("PSN {psn}"));
                let message = format!(
                    "{} has acknowledged {acknowledged}, and no more for {}{}",
                    s.next_hop,
                    waited(s.for_ns),
                    tries(s.tries)
                );
                ("path-stalled", Some(s.group), name(s.port), message, facts)
            }
            Event::Group(g) => {
                let facts = json!({ "mcst_id": g.mcst_id, "generation": g.generation, "removed": g.removed });
                let what = if g.removed { "removed" } else { "installed" };
                let message = format!("{} ({}) {what}, generation {}", g.group, g.mcst_id, g.generation);
                ("group", Some(g.group), None, message, facts)
            }
            Event::BaselineLearned(b) => {
                let facts = json!({ "psn": b.psn });
                let message = format!("the source of {} begins at PSN {}", b.group, b.psn);
                ("baseline-learned", Some(b.group), None, message, facts)
            }
            Event::PathJoined(j) => {
                let facts = json!({ "generation": j.generation, "next_hop": j.next_hop, "psn": j.psn });
                let message = format!("{} joins at PSN {}", j.next_hop, j.psn);
                ("path-joined", Some(j.group), name(j.port), message, facts)
            }
            Event::SourcesCompete(c) => {
                let facts = json!({ "generation": c.generation, "next_hop": c.next_hop });
                let message = format!("{} wants to send while another member sends", c.next_hop);
                ("sources-compete", Some(c.group), name(c.port), message, facts)
            }
            Event::MemberFailed(m) => {
                let facts =
                    json!({ "generation": m.generation, "next_hop": m.next_hop, "syndrome": m.syndrome });
                let message = format!("{} has failed: syndrome {:#04x}", m.next_hop, m.syndrome);
                ("member-failed", Some(m.group), name(m.port), message, facts)
            }
            Event::CollectiveStalled(s) => {
                let facts = json!({
                    "generation": s.generation,
                    "ranks": s.ranks,
                    "next_hops": s.next_hops,
                    "psn": s.psn,
                    "waited_ns": s.for_ns,
                });
                let ranks: Vec<String> = s.ranks.iter().map(u32::to_string).collect();
                let at: Vec<String> = s.ports.iter().map(|p| ports.name(*p)).collect();
                let message = format!(
                    "PSN {} waits for {} (rank {}) for {}",
                    s.psn,
                    s.next_hops.join(", "),
                    ranks.join(", "),
                    waited(s.for_ns)
                );
                let at = Some(at.join(", "));
                ("collective-stalled", Some(s.group), at, message, facts)
            }
            Event::CollectiveConflict(c) => {
                let (message, facts) = conflict(&c);
                ("collective-conflict", Some(c.group), None, message, facts)
            }
            Event::RankRefused(r) => {
                let (message, facts) = refusal(&r);
                ("rank-refused", Some(r.group), name(r.port), message, facts)
            }
            Event::GroupMoved(m) => {
                let facts =
                    json!({ "from_worker": m.from, "to_worker": m.to, "busy_percent": m.busy_percent });
                let why = m.busy_percent.map_or_else(
                    || "asked for".to_owned(),
                    |busy| format!("that worker was busy {busy} % of the time"),
                );
                let message = format!(
                    "{} moved from worker {} to worker {}: {why}",
                    m.group, m.from, m.to
                );
                ("group-moved", Some(m.group), None, message, facts)
            }
            Event::GroupHot(h) => {
                let facts = json!({ "worker": h.worker, "share_percent": h.share_percent });
                let message = format!(
                    "{} takes {} % of worker {}, which is overloaded, and no other could carry it: give it lanes",
                    h.group, h.share_percent, h.worker
                );
                ("group-hot", Some(h.group), None, message, facts)
            }
            Event::PfcStorm(s) => {
                let facts = json!({ "traffic_class": s.traffic_class, "ended": s.ended });
                let what = match s.ended {
                    true => "is no longer paused, and its frames pass again",
                    false => "was paused for too long: its frames are dropped until the pause ends",
                };
                let message = format!("class {} at {} {what}", s.traffic_class, s.name);
                ("pfc-storm", None, Some(s.name), message, facts)
            }
            Event::NeighboursUnreported(n) => {
                let facts = json!({ "changes": n.changes });
                let port = ports.name(n.port);
                let message = format!(
                    "{} more neighbours came, changed or went at {port}, too fast to report each",
                    n.changes
                );
                ("neighbours-unreported", None, Some(port), message, facts)
            }
            Event::NeighboursFull(f) => {
                let facts = json!({ "neighbours": f.entries });
                let message = full("neighbours", f.entries, &ports.name(f.port));
                ("neighbours-full", None, name(f.port), message, facts)
            }
            Event::FdbFull(f) => {
                let facts = json!({ "addresses": f.entries });
                let message = full("Ethernet addresses", f.entries, &ports.name(f.port));
                ("fdb-full", None, name(f.port), message, facts)
            }
            Event::Lagged(l) => {
                let message = too_fast(l);
                ("lagged", None, None, message, json!({ "events": l }))
            }
        };
        Some(Self {
            at_ns: event.at_ns,
            kind,
            group,
            port,
            message,
            facts,
        })
    }
}

fn conflict(c: &api::CollectiveConflict) -> (String, Value) {
    let d = c.disagreement.unwrap_or_default();
    let mut message = match disagreement_from_proto("disagreement", &d).map(|c| (c, c.verdict)) {
        Ok((c, Verdict::Conflict { rank, call })) => format!(
            "collective {}: rank {} says {}, rank {rank} says {call}",
            c.sequence, c.rank, c.call
        ),
        _ => "ranks disagree".to_owned(),
    };
    for rank in &c.miscounting_ranks {
        message += &format!("; rank {rank} counts its packets otherwise than the path MTU demands");
    }
    let said = |rank: u32, call: Option<api::CollectiveCall>| {
        let call = call.and_then(|call| call_from_proto("call", &call).ok());
        json!({ "rank": rank, "call": call.map(|call| call.to_string()) })
    };
    let facts = json!({
        "generation": c.generation,
        "collective": d.sequence,
        "ranks": [d.rank, d.other_rank],
        "said": [said(d.rank, d.call), said(d.other_rank, d.other_call)],
        "miscounting_ranks": c.miscounting_ranks,
    });
    (message, facts)
}

fn refusal(r: &api::RankRefused) -> (String, Value) {
    let rank = r.rank.map(|rank| format!("rank {rank} ")).unwrap_or_default();
    let who = format!("{rank}({})", r.next_hop);
    let (message, rule) = match &r.rule {
        Some(BrokenRule::Cut(cut)) => {
            let message = format!(
                "{who} does not cut its data as the group does: packet {} of collective {} is {} of {} bytes and must be {} of {} bytes",
                cut.packet,
                r.sequence,
                cut.opcode,
                cut.payload_bytes,
                cut.expected_opcode,
                cut.expected_payload_bytes
            );
            (message, json!({ "cut": cut }))
        }
        Some(BrokenRule::NotReproducible(_)) => {
            let message = format!(
                "{who} asks for rank order in collective {}, and the group is not reproducible: create it so, and join it so at all ranks",
                r.sequence
            );
            (message, json!("not-reproducible"))
        }
        None => {
            let message = format!("{who} breaks a rule of the group in collective {}", r.sequence);
            (message, Value::Null)
        }
    };
    let facts = json!({
        "generation": r.generation,
        "collective": r.sequence,
        "ranks": r.rank.into_iter().collect::<Vec<u32>>(),
        "next_hop": r.next_hop,
        "rule": rule,
    });
    (message, facts)
}

fn full(what: &str, entries: u64, port: &str) -> String {
    format!(
        "the table of {what} is full with {entries}: most are at {port}, and new ones replace the oldest there"
    )
}

impl EventsCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let selection = &self.selection;
        let seen = match self.place.controller()? {
            Some(address) => {
                let security = self.place.agent.tls.security()?;
                controller::run(&address, &security, selection, output).await?
            }
            None => self.at_switch(output).await?,
        };
        if selection.count.is_some() && !selection.is_complete(seen) {
            let seen = units::plural(seen as usize, "event");
            return Err(Failure::failed(format!("{seen} in that time")));
        }
        Ok(())
    }

    /// Returns the number of events.
    async fn at_switch(&self, output: Output) -> Outcome<u64> {
        let mut agent = self.place.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        let mut events = agent
            .watch_events(api::WatchAgentEventsRequest {})
            .await?
            .into_inner();
        let mut deadline = Deadline::new(self.selection.wait)?;
        let mut seen = 0;
        while !self.selection.is_complete(seen) {
            let Some(event) = deadline.next(&mut events).await? else {
                break;
            };
            let line = EventLine::new(event, &names);
            if let Some(line) = line.filter(|line| self.selection.wants(line.group.as_deref())) {
                output.show_next(&line)?;
                seen += 1;
            }
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_fields_and_quantities_have_units() {
        let names = PortNames::of(&["h1"]);
        let json = |event| {
            let event = api::AgentEvent {
                at_ns: 1,
                event: Some(event),
            };
            serde_json::to_value(EventLine::new(event, &names).expect("an event")).expect("JSON")
        };
        let port = json(Event::Port(api::PortChanged {
            up: true,
            mtu: 1500,
            ..Default::default()
        }));
        assert_eq!((&port["up"], &port["mtu"]), (&json!(true), &json!(1500)));
        let gone = json(Event::Port(api::PortChanged {
            name: "h1".to_owned(),
            mtu: 1500,
            reason: Some("the interface is gone".to_owned()),
            ..Default::default()
        }));
        assert_eq!(gone["reason"], json!("the interface is gone"));
        assert_eq!(
            gone["message"],
            json!("h1 is down, MTU 1500: the interface is gone")
        );
        let stalled = json(Event::CollectiveStalled(api::CollectiveStalled {
            ranks: vec![2, 5],
            psn: 9,
            for_ns: 2_000_000_000,
            ..Default::default()
        }));
        assert_eq!((&stalled["ranks"], &stalled["psn"]), (&json!([2, 5]), &json!(9)));
        assert_eq!(stalled["waited_ns"], json!(2_000_000_000_u64));
        let call = |elements, packets| {
            Some(api::CollectiveCall {
                primitive: api::CollectivePrimitive::AllReduce.into(),
                operation: api::CollectiveOperation::Sum.into(),
                data_type: api::CollectiveDataType::F32.into(),
                elements,
                packets,
                ..Default::default()
            })
        };
        let conflict = json(Event::CollectiveConflict(api::CollectiveConflict {
            disagreement: Some(api::Disagreement {
                sequence: 3,
                rank: 0,
                call: call(512, 2),
                other_rank: 4,
                other_call: call(512, 4),
            }),
            miscounting_ranks: vec![4],
            ..Default::default()
        }));
        assert_eq!(conflict["ranks"], json!([0, 4]));
        assert_eq!(
            conflict["said"][1],
            json!({ "rank": 4, "call": "allreduce of 512 f32 by sum in 4 packets" })
        );
        assert_eq!(conflict["miscounting_ranks"], json!([4]));
        let message = conflict["message"].as_str().expect("a message");
        assert!(message.ends_with("rank 4 counts its packets otherwise than the path MTU demands"));
    }

    #[test]
    fn events_are_sentences_and_the_opening_is_not_told() {
        let names = PortNames::of(&["h1"]);
        let event = |event| api::AgentEvent {
            at_ns: 1_500_000_000,
            event: Some(event),
        };
        assert!(EventLine::new(event(Event::Hello(api::Hello { boot_id: 1 })), &names).is_none());
        let stalled = api::PathStalled {
            group: "g".to_owned(),
            next_hop: "h2".to_owned(),
            for_ns: 2_000_000_000,
            ack_psn: Some(7),
            tries: 3,
            ..Default::default()
        };
        let line = EventLine::new(event(Event::PathStalled(stalled)), &names).expect("an event");
        let mut page = Page::default();
        line.page(&mut page);
        assert_eq!(
            page.text(),
            "1.500000 path-stalled: g: h2 has acknowledged PSN 7, and no more for 2.00 s; the next packet was sent again 3 times\n"
        );
        let refused = api::RankRefused {
            group: "g".to_owned(),
            next_hop: "h2".to_owned(),
            rank: Some(1),
            sequence: 7,
            rule: Some(BrokenRule::Cut(api::MiscutPacket {
                packet: 3,
                opcode: "SEND_ONLY".to_owned(),
                payload_bytes: 512,
                expected_opcode: "SEND_FIRST".to_owned(),
                expected_payload_bytes: 1024,
            })),
            ..Default::default()
        };
        let line = EventLine::new(event(Event::RankRefused(refused)), &names).expect("an event");
        assert_eq!(
            line.message,
            "rank 1 (h2) does not cut its data as the group does: packet 3 of collective 7 is SEND_ONLY of 512 bytes and must be \
             SEND_FIRST of 1024 bytes"
        );
        let json = serde_json::to_value(&line).expect("JSON");
        assert_eq!((&json["ranks"], &json["collective"]), (&json!([1]), &json!(7)));
        assert_eq!(json["rule"]["cut"]["expected_payload_bytes"], json!(1024));
        let moved = api::GroupMoved {
            group: "g".to_owned(),
            from: 0,
            to: 1,
            busy_percent: Some(97),
            ..Default::default()
        };
        let line = EventLine::new(event(Event::GroupMoved(moved)), &names).expect("an event");
        assert_eq!(
            line.message,
            "g moved from worker 0 to worker 1: that worker was busy 97 % of the time"
        );
        let mut page = Page::default();
        line.page(&mut page);
        assert!(page.text().contains(" group-moved: g moved "), "{}", page.text());
        let compete = api::SourcesCompete {
            group: "g".to_owned(),
            generation: 3,
            next_hop: "h2".to_owned(),
            ..Default::default()
        };
        let line = EventLine::new(event(Event::SourcesCompete(compete)), &names).expect("an event");
        let json = serde_json::to_value(&line).expect("JSON");
        assert_eq!(
            (&json["kind"], &json["group"]),
            (&json!("sources-compete"), &json!("g"))
        );
        assert_eq!(line.message, "h2 wants to send while another member sends");
        let claim = api::Neighbour {
            port: 1,
            kind: Some(api::neighbour::Kind::Host(api::HostNeighbour {
                ip: "10.0.0.1".to_owned(),
                mac: "02:00:00:00:00:09".to_owned(),
            })),
            ..Default::default()
        };
        let claimed = api::AddressClaimed {
            claim: Some(claim),
            seen_at: 0,
        };
        let line = EventLine::new(event(Event::AddressClaimed(claimed)), &names).expect("an event");
        assert!(
            line.message
                .starts_with("host 10.0.0.1 (02:00:00:00:00:09) claims at ")
                && line.message.contains("of a host at h1, which"),
            "{}",
            line.message
        );
        let lost = |events| EventLine::new(event(Event::Lagged(events)), &names).map(|line| line.message);
        assert_eq!(lost(1).as_deref(), Some("1 event came too fast to be told"));
        assert_eq!(lost(2).as_deref(), Some("2 events came too fast to be told"));
        let full = api::TableFull {
            entries: 1024,
            port: 0,
        };
        let line = EventLine::new(event(Event::NeighboursFull(full)), &names).expect("an event");
        assert_eq!(
            (line.port.as_deref(), line.message.as_str()),
            (
                Some("h1"),
                "the table of neighbours is full with 1024: most are at h1, and new ones replace the oldest there"
            )
        );
    }
}
