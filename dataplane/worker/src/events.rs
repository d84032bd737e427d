//! What happens on a switch, told to whoever listens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use castnet_engine::EventKind;
use castnet_wire::{McstId, Nanos, PortId};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError, bounded};
use parking_lot::Mutex;

/// Something that happened on the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchEvent {
    /// When, on the dataplane's clock.
    pub at: Nanos,
    /// What.
    pub kind: SwitchEventKind,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
// The large one is what most of them are.
#[allow(clippy::large_enum_variant)]
pub enum SwitchEventKind {
    /// An engine saw it: stalls, baselines, neighbours.
    Engine(EventKind),
    /// A port's link came or went, or its MTU changed.
    Port {
        /// The port.
        port: PortId,
        /// Its name.
        name: String,
        /// Whether it has a link now.
        up: bool,
        /// Its MTU now, in bytes.
        mtu: usize,
    },
    /// A group was installed, or took the place of an older version.
    GroupInstalled {
        /// Its address.
        mcst_id: McstId,
        /// Its name.
        name: String,
        /// Which version.
        generation: u64,
    },
    /// A group was removed.
    GroupRemoved {
        /// Its address.
        mcst_id: McstId,
        /// Its name.
        name: String,
    },
    /// A group has another worker.
    GroupMoved {
        /// Its address.
        mcst_id: McstId,
        /// Its name.
        name: String,
        /// The worker that had it.
        from: usize,
        /// The worker that has it.
        to: usize,
        /// Why.
        cause: MoveCause,
    },
    /// A worker is overloaded, for the most part by this group, and no other worker could carry it. Told once until the
    /// worker is not overloaded any more.
    GroupHot {
        /// Its address.
        mcst_id: McstId,
        /// Its name.
        name: String,
        /// The worker that has it.
        worker: usize,
        /// What it takes of that worker's time, in percent.
        share_percent: u8,
    },
}

/// Why a group was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveCause {
    /// Somebody asked for it.
    Asked,
    /// Its worker was overloaded.
    Overload {
        /// The share of time that its worker was busy, in percent.
        busy_percent: u8,
    },
}

struct Listener {
    to: Sender<SwitchEvent>,
    lost: Arc<AtomicU64>,
}

/// Those who listen.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Listener>>);

impl Listeners {
    /// A new listener, for whom so many events wait at most.
    pub(crate) fn subscribe(&self, events_max: usize, before: &Arc<AtomicU64>) -> EventStream {
        let (to, from) = bounded(events_max.max(1));
        let lost = Arc::new(AtomicU64::new(0));
        self.0.lock().push(Listener {
            to,
            lost: lost.clone(),
        });
        EventStream {
            from,
            lost,
            before: before.clone(),
            before_start: before.load(Ordering::Relaxed),
        }
    }

    /// Tells all; forgets those who have gone.
    pub(crate) fn tell(&self, event: &SwitchEvent) {
        self.0
            .lock()
            .retain(|listener| match listener.to.try_send(event.clone()) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    listener.lost.fetch_add(1, Ordering::Relaxed);
                    true
                }
                Err(TrySendError::Disconnected(_)) => false,
            });
    }

    /// Ends all streams.
    pub(crate) fn close(&self) {
        self.0.lock().clear();
    }
}

/// Events from the moment of subscription on. Dropping it unsubscribes.
#[derive(Debug)]
pub struct EventStream {
    from: Receiver<SwitchEvent>,
    lost: Arc<AtomicU64>,
    /// Events that did not even get out of the workers.
    before: Arc<AtomicU64>,
    before_start: u64,
}

impl EventStream {
    /// The next event, waiting for it for `timeout` at most.
    ///
    /// # Errors
    /// `Timeout`, or `Disconnected` once the dataplane has stopped and all events have been read.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<SwitchEvent, RecvTimeoutError> {
        self.from.recv_timeout(timeout)
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// `Empty`, or `Disconnected` as above.
    pub fn try_recv(&self) -> Result<SwitchEvent, TryRecvError> {
        self.from.try_recv()
    }

    /// The channel itself, for `select!`.
    pub fn receiver(&self) -> &Receiver<SwitchEvent> {
        &self.from
    }

    /// Events that this listener has missed because too many waited.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed) + self.before.load(Ordering::Relaxed) - self.before_start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(n: u64) -> SwitchEvent {
        let kind = SwitchEventKind::Engine(EventKind::FdbFull {
            entries: n as usize,
            port: PortId::default(),
        });
        SwitchEvent { at: Nanos(n), kind }
    }

    #[test]
    fn a_slow_listener_misses_events_and_knows_how_many() {
        let (listeners, before) = (Listeners::default(), Arc::default());
        let (slow, fast) = (listeners.subscribe(2, &before), listeners.subscribe(10, &before));
        (0..5).for_each(|n| listeners.tell(&event(n)));
        before.fetch_add(1, Ordering::Relaxed);
        assert_eq!((slow.lost(), fast.lost()), (4, 1));
        assert_eq!([slow.try_recv(), slow.try_recv()], [Ok(event(0)), Ok(event(1))]);
        assert_eq!(slow.try_recv(), Err(TryRecvError::Empty));
        drop(slow);
        listeners.tell(&event(5));
        assert_eq!(listeners.0.lock().len(), 1);
        listeners.close();
        assert_eq!(fast.receiver().iter().count(), 6);
        assert_eq!(fast.try_recv(), Err(TryRecvError::Disconnected));
    }
}
