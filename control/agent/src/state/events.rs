//! Events of the dataplane as messages.

use std::collections::BTreeSet;

use castnet_proto::convert::{disagreement_to_proto, port_to_proto};
use castnet_proto::v1;
use castnet_proto::v1::agent_event::Event;
use castnet_proto::v1::rank_refused::Rule;
use castnet_rules::{Endpoint, GroupRule};
use castnet_wire::{McstId, Nanos, PortId};
use castnet_worker::engine::{ContextStatus, EndpointId, EventKind, Refusal};
use castnet_worker::{MoveCause, SwitchEvent, SwitchEventKind};

use crate::state::pipeline::Pipeline;
use crate::state::view;
use crate::state::view::collective;

/// The message for clients. `None`: the event is not for them.
pub fn message(pipeline: &mut dyn Pipeline, SwitchEvent { at, kind }: SwitchEvent) -> Option<v1::AgentEvent> {
    let event = match kind {
        SwitchEventKind::Engine(kind) => engine_event(pipeline, at, kind),
        SwitchEventKind::Port {
            port,
            name,
            up,
            mtu,
            reason,
        } => Event::Port(v1::PortChanged {
            port: port_to_proto(port),
            name,
            up,
            mtu: mtu as u32,
            reason,
        }),
        SwitchEventKind::Storm {
            port,
            name,
            class,
            has_storm,
        } => Event::PfcStorm(v1::PfcStorm {
            port: port_to_proto(port),
            name,
            traffic_class: class.index() as u32,
            ended: !has_storm,
        }),
        SwitchEventKind::GroupInstalled {
            mcst_id,
            name,
            generation,
        } => Event::Group(v1::GroupChanged {
            mcst_id: mcst_id.to_string(),
            group: name,
            generation,
            removed: false,
        }),
        SwitchEventKind::GroupRemoved { mcst_id, name } => Event::Group(v1::GroupChanged {
            mcst_id: mcst_id.to_string(),
            group: name,
            generation: 0,
            removed: true,
        }),
        SwitchEventKind::GroupMoved {
            mcst_id,
            name,
            from,
            to,
            cause,
        } => Event::GroupMoved(v1::GroupMoved {
            mcst_id: mcst_id.to_string(),
            group: name,
            from: from as u32,
            to: to as u32,
            busy_percent: match cause {
                MoveCause::Asked => None,
                MoveCause::Overload { busy_percent } => Some(busy_percent.into()),
            },
        }),
        SwitchEventKind::GroupHot {
            mcst_id,
            name,
            worker,
            share_percent,
        } => Event::GroupHot(v1::GroupHot {
            mcst_id: mcst_id.to_string(),
            group: name,
            worker: worker as u32,
            share_percent: share_percent.into(),
        }),
        _ => return None,
    };
    Some(v1::AgentEvent {
        at_ns: at.0,
        event: Some(event),
    })
}

fn engine_event(pipeline: &mut dyn Pipeline, at: Nanos, kind: EventKind) -> Event {
    let neighbour = |n, gone| {
        Event::Neighbour(v1::NeighbourChanged {
            neighbour: Some(view::neighbour(&n, at)),
            gone,
        })
    };
    let full = |entries: usize, port| v1::TableFull {
        entries: entries as u64,
        port: port_to_proto(port),
    };
    match kind {
        EventKind::PathStalled {
            mcst_id,
            generation,
            endpoint,
            since,
            tries,
        } => {
            let (group, port, next_hop) = names(pipeline, (mcst_id, generation), endpoint);
            let (ack_psn, syndrome) = last_feedback(pipeline, mcst_id, endpoint).unwrap_or_default();
            Event::PathStalled(v1::PathStalled {
                mcst_id: mcst_id.to_string(),
                group,
                port,
                next_hop,
                for_ns: at.since(since).0,
                ack_psn,
                generation,
                tries: tries.into(),
                syndrome,
                ..Default::default()
            })
        }
        EventKind::BaselineLearned { mcst_id, psn } => {
            let mut group = String::new();
            pipeline.read_rule(mcst_id, &mut |rule| group.clone_from(&rule.name));
            Event::BaselineLearned(v1::BaselineLearned {
                mcst_id: mcst_id.to_string(),
                group,
                psn: psn.value(),
            })
        }
        EventKind::PathJoined {
            mcst_id,
            generation,
            endpoint,
            psn,
        } => {
            let (group, port, next_hop) = names(pipeline, (mcst_id, generation), endpoint);
            Event::PathJoined(v1::PathJoined {
                mcst_id: mcst_id.to_string(),
                group,
                generation,
                port,
                next_hop,
                psn: psn.value(),
            })
        }
        EventKind::SourcesCompete {
            mcst_id,
            generation,
            endpoint,
        } => {
            let (group, port, next_hop) = names(pipeline, (mcst_id, generation), endpoint);
            Event::SourcesCompete(v1::SourcesCompete {
                mcst_id: mcst_id.to_string(),
                group,
                generation,
                port,
                next_hop,
            })
        }
        EventKind::MemberFailed {
            mcst_id,
            generation,
            endpoint,
            syndrome,
        } => {
            let (group, port, next_hop) = names(pipeline, (mcst_id, generation), endpoint);
            Event::MemberFailed(v1::MemberFailed {
                mcst_id: mcst_id.to_string(),
                group,
                port,
                next_hop,
                syndrome: syndrome.into(),
                generation,
                ..Default::default()
            })
        }
        EventKind::CollectiveStalled {
            mcst_id,
            generation,
            waiting_for,
            psn,
            since,
        } => {
            let read = |rule: &GroupRule| {
                let waited = (0..).map_while(EndpointId::new).zip(&rule.endpoints);
                let waited = waited.filter(|(id, _)| waiting_for.contains(*id));
                let waited: Vec<&Endpoint> = waited.map(|(_, endpoint)| endpoint).collect();
                let ports: BTreeSet<PortId> = waited.iter().map(|e| e.port).collect();
                v1::CollectiveStalled {
                    group: rule.name.clone(),
                    ports: ports.into_iter().map(port_to_proto).collect(),
                    next_hops: waited.iter().map(|e| e.next_hop.name().to_string()).collect(),
                    ranks: waited.iter().flat_map(|e| collective::ranks(e)).collect(),
                    ..Default::default()
                }
            };
            Event::CollectiveStalled(v1::CollectiveStalled {
                mcst_id: mcst_id.to_string(),
                psn: psn.value(),
                for_ns: at.since(since).0,
                generation,
                ..of_rule(pipeline, (mcst_id, generation), read)
            })
        }
        EventKind::RankRefused {
            mcst_id,
            generation,
            endpoint,
            sequence,
            why,
        } => {
            let ((group, port, next_hop), rank) = of_rule(pipeline, (mcst_id, generation), |rule| {
                let found = rule.endpoints.get(usize::from(endpoint));
                let rank = found.and_then(|e| collective::ranks(e).first().copied());
                (names_in(rule, endpoint), rank)
            });
            Event::RankRefused(v1::RankRefused {
                mcst_id: mcst_id.to_string(),
                port,
                next_hop,
                rank,
                group,
                generation,
                sequence,
                rule: Some(match why {
                    Refusal::NotReproducible => Rule::NotReproducible(true),
                    Refusal::Cut {
                        packet,
                        found,
                        expected,
                    } => Rule::Cut(v1::MiscutPacket {
                        packet,
                        opcode: found.opcode.to_string(),
                        payload_bytes: found.payload.into(),
                        expected_opcode: expected.opcode.to_string(),
                        expected_payload_bytes: expected.payload.into(),
                    }),
                }),
            })
        }
        EventKind::CollectiveConflict {
            mcst_id,
            generation,
            control,
        } => {
            let (group, miscounting_ranks) = of_rule(pipeline, (mcst_id, generation), |rule| {
                (rule.name.clone(), collective::miscounting(&control, rule.pmtu))
            });
            Event::CollectiveConflict(v1::CollectiveConflict {
                mcst_id: mcst_id.to_string(),
                group,
                generation,
                disagreement: disagreement_to_proto(&control),
                miscounting_ranks,
            })
        }
        EventKind::NeighbourAppeared(n) | EventKind::NeighbourChanged(n) => neighbour(n, false),
        EventKind::NeighbourGone(n) => neighbour(n, true),
        EventKind::AddressClaimed { claim, at: port } => Event::AddressClaimed(v1::AddressClaimed {
            claim: Some(view::neighbour(&claim, at)),
            seen_at: port_to_proto(port),
        }),
        EventKind::NeighboursUnreported { port, changes } => {
            let port = port_to_proto(port);
            Event::NeighboursUnreported(v1::NeighboursUnreported { port, changes })
        }
        EventKind::NeighboursFull { entries, port } => Event::NeighboursFull(full(entries, port)),
        EventKind::FdbFull { entries, port } => Event::FdbFull(full(entries, port)),
    }
}

/// What `read` finds in this generation of a group's rule; the default if it is not installed any more.
fn of_rule<T: Default>(
    pipeline: &mut dyn Pipeline,
    (mcst_id, generation): (McstId, u64),
    read: impl Fn(&GroupRule) -> T,
) -> T {
    let mut found = T::default();
    pipeline.read_rule(mcst_id, &mut |rule| {
        if rule.generation == generation {
            found = read(rule);
        }
    });
    found
}

fn names(pipeline: &mut dyn Pipeline, of: (McstId, u64), endpoint: u16) -> (String, u32, String) {
    of_rule(pipeline, of, |rule| names_in(rule, endpoint))
}

fn names_in(rule: &GroupRule, endpoint: u16) -> (String, u32, String) {
    let endpoint = rule.endpoints.get(usize::from(endpoint));
    let named = endpoint.map(|e| (port_to_proto(e.port), e.next_hop.name().to_string()));
    let (port, next_hop) = named.unwrap_or_default();
    (rule.name.clone(), port, next_hop)
}

/// AckPSN of a path and the syndrome of its refusal, as far as they are known.
fn last_feedback(
    pipeline: &mut dyn Pipeline,
    mcst_id: McstId,
    endpoint: u16,
) -> Option<(Option<u32>, Option<u32>)> {
    let ContextStatus::Multicast(status) = pipeline.group(mcst_id).ok()??.status else {
        return None;
    };
    let mut paths = status.machine.paths.iter();
    let path = paths.find(|p| p.path.index() == usize::from(endpoint))?;
    let ack_psn = path.ack_psn.map(|psn| psn.value());
    Some((ack_psn, path.refusal.map(|syndrome| syndrome.byte().into())))
}
