//! The housekeeping thread processes the workers' notes and balances their load.

use std::sync::Arc;

use castnet_engine::EngineEvent;
use castnet_wire::{Nanos, PortId, TrafficClass};
use crossbeam::channel::{Receiver, RecvTimeoutError};

use crate::balancer::Balancer;
use crate::control::SharedControl;
use crate::events::{SwitchEvent, SwitchEventKind};

pub(crate) const QUEUE: usize = 4096;

/// The queue is allocated once for the largest variant, so that sending allocates nothing.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Note {
    Event(EngineEvent),
    Link {
        at: Nanos,
        port: PortId,
        up: bool,
        mtu: usize,
    },
    /// The port has no interface, for this reason, or has one again.
    Interface {
        at: Nanos,
        port: PortId,
        reason: Option<String>,
    },
    Storm {
        at: Nanos,
        port: PortId,
        class: TrafficClass,
        has_storm: bool,
    },
    End,
}

/// Forwards events, publishes tables when a link or MTU changes, and balances the workers, until they end.
pub(crate) fn run(shared: &Arc<SharedControl>, notes: &Receiver<Note>) {
    let mut balancer = Balancer::new(shared);
    loop {
        let note = match &mut balancer {
            None => notes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(balancer) => {
                balancer.run_if_due(shared);
                notes.recv_deadline(balancer.due())
            }
        };
        let note = match note {
            Ok(note) => note,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match note {
            Note::Event(event) => {
                shared.subscribers.send(&SwitchEvent {
                    at: event.at,
                    kind: SwitchEventKind::Engine(event.kind),
                });
            }
            Note::Link { at, port, up, mtu } => {
                if let Some(kind) = shared.set_link(port, up, mtu) {
                    shared.subscribers.send(&SwitchEvent { at, kind });
                }
            }
            Note::Interface { at, port, reason } => {
                match &reason {
                    Some(reason) => tracing::warn!(port = shared.port_name(port), %reason, "port is down"),
                    // At the level of the end: who sees that one waits for this one.
                    None => tracing::warn!(port = shared.port_name(port), "port has an interface again"),
                }
                if let Some(kind) = shared.set_interface(port, reason) {
                    shared.subscribers.send(&SwitchEvent { at, kind });
                }
            }
            Note::Storm {
                at,
                port,
                class,
                has_storm,
            } => {
                let name = shared.port_name(port);
                shared.subscribers.send(&SwitchEvent {
                    at,
                    kind: SwitchEventKind::Storm {
                        port,
                        name,
                        class,
                        has_storm,
                    },
                });
            }
            Note::End => break,
        }
    }
    shared.subscribers.close();
}
