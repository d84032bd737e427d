//! What a controller reports.

use castnet_proto::states::WatchedGroups;
use castnet_proto::v1;
use tonic::Streaming;

use super::{Client, next};

/// What happens at a controller, from when it was made.
pub(crate) struct Events(Streaming<v1::ControllerEvent>, WatchedGroups);

impl Events {
    pub(crate) async fn of(client: &Client) -> Self {
        let request = v1::WatchControllerEventsRequest { differences: true };
        let mut events = client.clone().watch_events(request).await.unwrap().into_inner();
        next(&mut events).await;
        Self(events, WatchedGroups::default())
    }

    /// Waits until an event is as wanted.
    pub(crate) async fn until<T>(&mut self, wanted: impl Fn(&v1::controller_event::Event) -> Option<T>) -> T {
        loop {
            let event = self.1.complete(next(&mut self.0).await).unwrap();
            if let Some(found) = event.event.as_ref().and_then(&wanted) {
                return found;
            }
        }
    }

    pub(crate) async fn group(&mut self, name: &str, phase: v1::GroupPhase) -> v1::GroupState {
        self.until(|event| match event {
            v1::controller_event::Event::Group(g) if g.name == name && g.phase() == phase => Some(g.clone()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn gone(&mut self, name: &str) {
        self.until(|event| {
            matches!(event, v1::controller_event::Event::GroupGone(n) if n == name).then_some(())
        })
        .await;
    }

    pub(crate) async fn switch(&mut self, name: &str, reachable: bool) -> v1::SwitchState {
        self.until(|event| match event {
            v1::controller_event::Event::Switch(s) if s.name == name && s.reachable == reachable => {
                Some(s.clone())
            }
            _ => None,
        })
        .await
    }
}
