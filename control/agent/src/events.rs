//! Events of the dataplane as messages, for any number of clients.

use std::sync::{Arc, Weak};
use std::time::Duration;

use castnet_proto::convert::port_to_proto;
use castnet_proto::v1;
use castnet_proto::v1::agent_event::Event;
use castnet_rules::GroupRule;
use castnet_wire::{McstId, Nanos};
use castnet_worker::engine::{ContextStatus, EventKind};
use castnet_worker::{Dataplane, EventStream, MoveCause, SwitchEvent, SwitchEventKind};
use crossbeam::channel::RecvTimeoutError;
use tokio::sync::broadcast;

use crate::{collective, view};

/// Events that are kept for a slow client, which loses older ones.
const EVENTS_MAX: usize = 1024;
/// How often the pump checks whether agent and dataplane still exist.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Events(Arc<broadcast::Sender<v1::AgentEvent>>);

impl Events {
    /// Starts the thread that receives events of the dataplane. It ends with the dataplane or with the agent.
    pub(crate) fn pump(dataplane: &Arc<Dataplane>) -> Self {
        let all = Arc::new(broadcast::Sender::new(EVENTS_MAX));
        let (stream, weak, to) = (
            dataplane.events(),
            Arc::downgrade(dataplane),
            Arc::downgrade(&all),
        );
        let thread = std::thread::Builder::new().name("castnet-events".into());
        if let Err(error) = thread.spawn(move || pump(&stream, &weak, &to)) {
            tracing::error!(%error, "no thread for events: none will be reported");
        }
        Self(all)
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<v1::AgentEvent> {
        self.0.subscribe()
    }
}

fn pump(stream: &EventStream, dataplane: &Weak<Dataplane>, to: &Weak<broadcast::Sender<v1::AgentEvent>>) {
    let mut lost = 0;
    loop {
        let event = stream.recv_timeout(LOOK);
        let (Some(to), Some(dataplane)) = (to.upgrade(), dataplane.upgrade()) else {
            return;
        };
        let reported = match event {
            Ok(event) => message(&dataplane, event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let now_lost = stream.lost();
        let lagged = (now_lost > lost).then(|| v1::AgentEvent {
            at_ns: dataplane.now().0,
            event: Some(Event::Lagged(now_lost - lost)),
        });
        lost = now_lost;
        for event in lagged.into_iter().chain(reported) {
            // There may be no subscriber.
            let _ = to.send(event);
        }
    }
}

fn message(dataplane: &Dataplane, SwitchEvent { at, kind }: SwitchEvent) -> Option<v1::AgentEvent> {
    let event = match kind {
        SwitchEventKind::Engine(kind) => engine_event(dataplane, at, kind),
        SwitchEventKind::Port { port, name, up, mtu } => Event::Port(v1::PortChanged {
            port: port_to_proto(port),
            name,
            up,
            mtu: mtu as u32,
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

fn engine_event(dataplane: &Dataplane, at: Nanos, kind: EventKind) -> Event {
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
    let rule_of = |(mcst_id, generation)| {
        let rule = dataplane.rule(mcst_id);
        rule.filter(|r| r.generation == generation)
    };
    match kind {
        EventKind::PathStalled {
            mcst_id,
            endpoint,
            since,
        } => {
            let (group, port, next_hop) = names(dataplane.rule(mcst_id), endpoint);
            Event::PathStalled(v1::PathStalled {
                mcst_id: mcst_id.to_string(),
                group,
                port,
                next_hop,
                for_ns: at.since(since).0,
                ack_psn: ack_psn(dataplane, mcst_id, endpoint),
                ..Default::default()
            })
        }
        EventKind::BaselineLearned { mcst_id, psn } => Event::BaselineLearned(v1::BaselineLearned {
            mcst_id: mcst_id.to_string(),
            group: dataplane.rule(mcst_id).map(|rule| rule.name).unwrap_or_default(),
            psn: psn.value(),
        }),
        EventKind::MemberFailed {
            mcst_id,
            generation,
            endpoint,
            syndrome,
        } => {
            let (group, port, next_hop) = names(rule_of((mcst_id, generation)), endpoint);
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
            let (of, patience) = ((mcst_id, generation), at.since(since));
            let rule = rule_of(of);
            Event::CollectiveStalled(collective::stalled(rule.as_ref(), of, waiting_for, psn, patience))
        }
        EventKind::RankRefused {
            mcst_id,
            generation,
            endpoint,
            sequence,
            why,
        } => {
            let of = (mcst_id, generation);
            let rule = rule_of(of);
            Event::RankRefused(collective::refused(rule.as_ref(), of, endpoint, sequence, why))
        }
        EventKind::CollectiveConflict {
            mcst_id,
            generation,
            control,
        } => {
            let of = (mcst_id, generation);
            Event::CollectiveConflict(collective::conflict(rule_of(of).as_ref(), of, &control))
        }
        EventKind::NeighbourAppeared(n) | EventKind::NeighbourChanged(n) => neighbour(n, false),
        EventKind::NeighbourGone(n) => neighbour(n, true),
        EventKind::NeighboursUnreported { port, changes } => {
            let port = port_to_proto(port);
            Event::NeighboursUnreported(v1::NeighboursUnreported { port, changes })
        }
        EventKind::NeighboursFull { entries, port } => Event::NeighboursFull(full(entries, port)),
        EventKind::FdbFull { entries, port } => Event::FdbFull(full(entries, port)),
    }
}

fn names(rule: Option<GroupRule>, endpoint: u16) -> (String, u32, String) {
    let Some(rule) = rule else {
        return Default::default();
    };
    let endpoint = rule.endpoints.get(usize::from(endpoint));
    let named = endpoint.map(|e| (port_to_proto(e.port), e.next_hop.name().to_string()));
    let (port, next_hop) = named.unwrap_or_default();
    (rule.name, port, next_hop)
}

fn ack_psn(dataplane: &Dataplane, mcst_id: McstId, endpoint: u16) -> Option<u32> {
    let ContextStatus::Multicast(status) = dataplane.group(mcst_id).ok()??.status else {
        return None;
    };
    let mut paths = status.machine.paths.iter();
    let path = paths.find(|p| p.path.index() == usize::from(endpoint))?;
    path.ack_psn.map(|psn| psn.value())
}
