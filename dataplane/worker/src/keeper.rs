//! The one thread beside the workers: takes what they have to tell, off their path.

use std::sync::Arc;

use castnet_engine::EngineEvent;
use castnet_wire::{Nanos, PortId};
use crossbeam::channel::{Receiver, RecvTimeoutError};

use crate::balancer::Balancer;
use crate::control::Shared;
use crate::events::{SwitchEvent, SwitchEventKind};

/// Messages that wait for the keeper at most.
pub(crate) const QUEUE: usize = 4096;

/// What a worker tells. The queue is made for the large ones, so that telling allocates nothing.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Note {
    Event(EngineEvent),
    Link {
        at: Nanos,
        port: PortId,
        up: bool,
        mtu: usize,
    },
    /// The workers have ended.
    End,
}

/// Passes events on, publishes tables anew where a link came, went or changed, and balances the workers, until these end.
pub(crate) fn keep(shared: &Arc<Shared>, notes: &Receiver<Note>) {
    let mut balancer = Balancer::new(shared);
    loop {
        let note = match &mut balancer {
            None => notes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(balancer) => {
                balancer.look(shared);
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
                shared.listeners.tell(&SwitchEvent {
                    at: event.at,
                    kind: SwitchEventKind::Engine(event.kind),
                });
            }
            Note::Link { at, port, up, mtu } => {
                shared.set_link(port, up, mtu);
                let name = shared.port_name(port);
                shared.listeners.tell(&SwitchEvent {
                    at,
                    kind: SwitchEventKind::Port { port, name, up, mtu },
                });
            }
            Note::End => break,
        }
    }
    shared.listeners.close();
}
