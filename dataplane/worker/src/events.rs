//! Events of a switch and their subscribers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use castnet_engine::EventKind;
use castnet_wire::{McstId, Nanos, PortId, TrafficClass};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use parking_lot::Mutex;

/// An event of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchEvent {
    /// Time of the event on the dataplane's clock.
    pub at: Nanos,
    /// The event.
    pub kind: SwitchEventKind,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
// Most events are of the large variant.
#[allow(clippy::large_enum_variant)]
pub enum SwitchEventKind {
    /// Reported by an engine: stalls, baselines, neighbours.
    Engine(EventKind),
    /// A port went up or down, or its MTU or the reason why it is down changed.
    Port {
        /// The port.
        port: PortId,
        /// Name of the port.
        name: String,
        /// True if the link is up.
        up: bool,
        /// The MTU in bytes.
        mtu: usize,
        /// Why the port has no interface. `None` if it has one.
        reason: Option<String>,
    },
    /// A lossless class was paused for so long that its frames are dropped, or no longer is (the watchdog of flow control).
    Storm {
        /// The port.
        port: PortId,
        /// Name of the port.
        name: String,
        /// The class.
        class: TrafficClass,
        /// True at the start of the storm, false at its end.
        has_storm: bool,
    },
    /// A group was installed, or replaced an older version.
    GroupInstalled {
        /// McstID of the group.
        mcst_id: McstId,
        /// Name of the group.
        name: String,
        /// Generation of the group's rule.
        generation: u64,
    },
    /// A group was removed.
    GroupRemoved {
        /// McstID of the group.
        mcst_id: McstId,
        /// Name of the group.
        name: String,
    },
    /// A group was moved to another worker.
    GroupMoved {
        /// McstID of the group.
        mcst_id: McstId,
        /// Name of the group.
        name: String,
        /// The worker that had the group.
        from: usize,
        /// The worker that has the group now.
        to: usize,
        /// The reason for the move.
        cause: MoveCause,
    },
    /// A worker is overloaded mainly by this group, and no other worker could carry it. Reported once per overload.
    GroupHot {
        /// McstID of the group.
        mcst_id: McstId,
        /// Name of the group.
        name: String,
        /// The worker that has the group.
        worker: usize,
        /// The group's share of that worker's time, in percent.
        share_percent: u8,
    },
}

/// The reason for a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveCause {
    /// An operator requested it.
    Asked,
    /// The worker was overloaded.
    Overload {
        /// The load of the worker in percent.
        busy_percent: u8,
    },
}

struct EventSubscriber {
    to: Sender<SwitchEvent>,
    lost: Arc<AtomicU64>,
}

/// The subscribers to events.
#[derive(Default)]
pub(crate) struct Subscribers(Mutex<Vec<EventSubscriber>>);

impl Subscribers {
    /// `before` counts events lost inside the workers.
    pub(crate) fn subscribe(&self, events_max: usize, before: &Arc<AtomicU64>) -> EventStream {
        let (to, from) = bounded(events_max.max(1));
        let lost = Arc::new(AtomicU64::new(0));
        self.0.lock().push(EventSubscriber {
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

    /// Sends an event to all subscribers and removes those that are gone.
    pub(crate) fn send(&self, event: &SwitchEvent) {
        self.0
            .lock()
            .retain(|subscriber| match subscriber.to.try_send(event.clone()) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    subscriber.lost.fetch_add(1, Ordering::Relaxed);
                    true
                }
                Err(TrySendError::Disconnected(_)) => false,
            });
    }

    pub(crate) fn close(&self) {
        self.0.lock().clear();
    }
}

/// A stream of events that starts at the subscription. Dropping it unsubscribes.
#[derive(Debug)]
pub struct EventStream {
    from: Receiver<SwitchEvent>,
    lost: Arc<AtomicU64>,
    before: Arc<AtomicU64>,
    before_start: u64,
}

impl EventStream {
    /// Waits up to `timeout` for an event. `Disconnected` once the dataplane has stopped and all events are read.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<SwitchEvent, RecvTimeoutError> {
        self.from.recv_timeout(timeout)
    }

    /// The number of events that this subscriber missed because a queue was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed) + self.before.load(Ordering::Relaxed) - self.before_start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam::channel::TryRecvError;

    fn event(n: u64) -> SwitchEvent {
        let kind = SwitchEventKind::Engine(EventKind::FdbFull {
            entries: n as usize,
            port: PortId::default(),
        });
        SwitchEvent { at: Nanos(n), kind }
    }

    #[test]
    fn a_slow_subscriber_loses_events_and_counts_them() {
        let (subscribers, before) = (Subscribers::default(), Arc::default());
        let (slow, fast) = (
            subscribers.subscribe(2, &before),
            subscribers.subscribe(10, &before),
        );
        (0..5).for_each(|n| subscribers.send(&event(n)));
        before.fetch_add(1, Ordering::Relaxed);
        assert_eq!((slow.lost(), fast.lost()), (4, 1));
        assert_eq!(
            [slow.from.try_recv(), slow.from.try_recv()],
            [Ok(event(0)), Ok(event(1))]
        );
        assert_eq!(slow.from.try_recv(), Err(TryRecvError::Empty));
        drop(slow);
        subscribers.send(&event(5));
        assert_eq!(subscribers.0.lock().len(), 1);
        subscribers.close();
        assert_eq!(fast.from.iter().count(), 6);
        assert_eq!(fast.from.try_recv(), Err(TryRecvError::Disconnected));
    }
}
