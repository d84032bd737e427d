//! Clients that watch all groups. An event about a group has the difference since the one before. It is made once, and a
//! watcher that has the state before passes it on. One that has not, because it began later or was too slow, gets what
//! it lacks, in a state of its own. One that takes no differences gets the present state instead.

use std::collections::BTreeMap;
use std::sync::Arc;

use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Sender;
use tonic::Status;

use crate::shell::service::part;
use crate::shell::shared::Shared;
use crate::state::Core;
use crate::state::shown::{self, Shown};

/// What a watcher is sent, shared until it is taken.
pub(crate) enum News {
    Event(Arc<v1::ControllerEvent>),
    /// What has changed in a group since the state of a number.
    State(u64, Arc<Shown>, Option<u64>),
}

impl News {
    pub(crate) fn event(self) -> v1::ControllerEvent {
        match self {
            Self::Event(event) => Arc::unwrap_or_clone(event),
            Self::State(at_unix_ns, shown, since) => v1::ControllerEvent {
                at_unix_ns,
                event: Some(shown.since(since)),
            },
        }
    }
}

pub(crate) struct Watcher {
    shared: Arc<Shared>,
    to: Sender<Result<News, Status>>,
    /// Number of the last state that was sent, by group.
    sent: BTreeMap<String, u64>,
    differences: bool,
}

/// The client has gone, or the controller stops.
struct Over;

impl Watcher {
    pub(crate) fn new(shared: Arc<Shared>, to: Sender<Result<News, Status>>, differences: bool) -> Self {
        Self {
            shared,
            to,
            sent: BTreeMap::new(),
            differences,
        }
    }

    pub(crate) async fn run(mut self, mut events: Receiver<Arc<v1::ControllerEvent>>) {
        let to = self.to.clone();
        let mut passed = self.send_event(0, Event::Started(v1::WatchStarted {})).await;
        while passed.is_ok() {
            passed = tokio::select! {
                biased;
                () = to.closed() => return,
                told = events.recv() => match told {
                    Ok(told) => self.pass(told).await,
                    Err(RecvError::Lagged(lost)) => self.lagged(0, lost).await,
                    Err(RecvError::Closed) => return,
                },
            };
        }
    }

    async fn pass(&mut self, told: Arc<v1::ControllerEvent>) -> Result<(), Over> {
        match &told.event {
            None => return Ok(()),
            Some(Event::Lagged(lost)) => return self.lagged(told.at_unix_ns, *lost).await,
            Some(Event::GroupGone(name)) => drop(self.sent.remove(name)),
            _ => {}
        }
        if let Some((name, number, since)) = told.event.as_ref().and_then(shown::numbers) {
            match self.sent.get(name).copied() {
                sent if self.differences && since.is_some() && sent == since => {}
                // It was in what this watcher got instead of a difference.
                Some(sent) if sent >= number => return Ok(()),
                _ if since.is_none() => {}
                sent => {
                    let state = |core: &Core| core.groups.get(name).map(|entry| core.shown(entry));
                    return match self.shared.read(state).await.map_err(|_| Over)? {
                        Some(shown) => self.send_state(told.at_unix_ns, name, shown, sent).await,
                        // That it is gone is the next event of it.
                        None => Ok(()),
                    };
                }
            }
            self.sent.insert(name.to_owned(), number);
        }
        self.send(News::Event(told)).await
    }

    /// Events are lost: sends the present states of all groups that have changed.
    async fn lagged(&mut self, at_unix_ns: u64, lost: u64) -> Result<(), Over> {
        self.send_event(at_unix_ns, Event::Lagged(lost)).await?;
        let shared = self.shared.clone();
        let mut after = None;
        loop {
            // Some at a time: other calls use the lock in between.
            let read = |core: &Core| {
                let (mut last, mut states) = (None, Vec::new());
                for entry in part(core, after.as_deref()) {
                    let name = &entry.record().name;
                    let sent = self.sent.get(name).copied();
                    last = Some(name.clone());
                    if entry.may_have_changed_since(sent) {
                        let shown = core.shown(entry);
                        states.extend((Some(shown.number) != sent).then(|| (name.clone(), shown, sent)));
                    }
                }
                (last, states)
            };
            let (last, states) = shared.read(read).await.map_err(|_| Over)?;
            for (name, shown, sent) in states {
                self.send_state(at_unix_ns, &name, shown, sent).await?;
            }
            match last {
                Some(last) => after = Some(last),
                None => break,
            }
        }
        let gone = |core: &Core| {
            let gone = self.sent.keys().filter(|name| core.groups.get(name).is_none());
            gone.cloned().collect::<Vec<_>>()
        };
        for name in shared.read(gone).await.map_err(|_| Over)? {
            self.sent.remove(&name);
            self.send_event(at_unix_ns, Event::GroupGone(name)).await?;
        }
        Ok(())
    }

    /// What a group's state has that the state which was sent has not.
    async fn send_state(
        &mut self,
        at_unix_ns: u64,
        name: &str,
        shown: Arc<Shown>,
        sent: Option<u64>,
    ) -> Result<(), Over> {
        self.sent.insert(name.to_owned(), shown.number);
        let since = sent.filter(|_| self.differences);
        self.send(News::State(at_unix_ns, shown, since)).await
    }

    async fn send_event(&self, at_unix_ns: u64, event: Event) -> Result<(), Over> {
        let event = v1::ControllerEvent {
            at_unix_ns,
            event: Some(event),
        };
        self.send(News::Event(Arc::new(event))).await
    }

    async fn send(&self, news: News) -> Result<(), Over> {
        self.to.send(Ok(news)).await.map_err(|_| Over)
    }
}

#[cfg(test)]
mod tests {
    use castnet_group::CollectiveSettings;
    use castnet_wire::McstId;
    use tokio::sync::mpsc;

    use super::*;
    use crate::shell::shared::tests::shared;
    use crate::state::{Collective, Kind, Phase, Record};

    /// 64 watchers each kept the states of all groups, and 64 whole events.
    #[tokio::test]
    async fn watchers_that_take_no_differences_share_the_states() {
        let shared = shared();
        let settings = CollectiveSettings::default();
        let kind = Kind::Collective(Collective::new(vec![String::new(); 3], settings, false));
        let mut record = Record::new("g".into(), (McstId([10, 200, 0, 1].into()), Vec::new()), kind);
        let told = |record: &Record| {
            let mut core = shared.lock();
            core.groups.put(record.clone());
            let event = core.event(core.groups.get("g").unwrap());
            Arc::new(v1::ControllerEvent {
                at_unix_ns: 7,
                event: Some(event),
            })
        };
        let first = told(&record);
        record.phase = Phase::Active;
        let second = told(&record);
        let mut states = Vec::new();
        for _ in 0..2 {
            let (to, mut from) = mpsc::channel(1);
            let mut watcher = Watcher::new(shared.clone(), to, false);
            assert!(watcher.pass(first.clone()).await.is_ok());
            let Some(Ok(News::Event(event))) = from.recv().await else {
                panic!("the event itself")
            };
            assert!(Arc::ptr_eq(&event, &first));
            assert!(watcher.pass(second.clone()).await.is_ok());
            let Some(Ok(News::State(at, shown, since))) = from.recv().await else {
                panic!("the present state")
            };
            states.push(shown.clone());
            let event = News::State(at, shown, since).event();
            let Some(Event::Collective(state)) = event.event else {
                panic!("a state")
            };
            assert_eq!(
                (event.at_unix_ns, state.members.len(), &state.difference),
                (7, 3, &None)
            );
            assert_eq!(state.phase(), v1::CollectivePhase::Active);
            // It has been in that state.
            assert!(watcher.pass(second.clone()).await.is_ok() && from.try_recv().is_err());
        }
        assert!(Arc::ptr_eq(&states[0], &states[1]));
    }
}
