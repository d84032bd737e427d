//! The thread that receives events of the dataplane, for any number of clients.

use std::sync::{Arc, Weak};
use std::time::Duration;

use castnet_proto::v1;
use castnet_proto::v1::agent_event::Event;
use castnet_worker::{Dataplane, EventStream};
use crossbeam::channel::RecvTimeoutError;
use tokio::sync::broadcast;

use crate::state::events::message;

/// Events that are kept for a slow client, which loses older ones.
const EVENTS_MAX: usize = 1024;
/// How often the pump checks whether agent and dataplane still exist.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) type EventSender = broadcast::Sender<v1::AgentEvent>;

/// Starts the thread. It ends with the dataplane or with the agent.
pub(crate) fn start(dataplane: &Arc<Dataplane>) -> Arc<EventSender> {
    let all = Arc::new(EventSender::new(EVENTS_MAX));
    let (stream, weak, to) = (
        dataplane.events(),
        Arc::downgrade(dataplane),
        Arc::downgrade(&all),
    );
    let thread = std::thread::Builder::new().name("castnet-events".into());
    if let Err(error) = thread.spawn(move || pump(&stream, &weak, &to)) {
        tracing::error!(%error, "no thread for events: none will be reported");
    }
    all
}

fn pump(stream: &EventStream, dataplane: &Weak<Dataplane>, to: &Weak<EventSender>) {
    let mut lost = 0;
    loop {
        let event = stream.recv_timeout(LOOK);
        let (Some(to), Some(dataplane)) = (to.upgrade(), dataplane.upgrade()) else {
            return;
        };
        let reported = match event {
            Ok(event) => message(&mut &*dataplane, event),
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
