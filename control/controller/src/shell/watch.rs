//! Clients that watch all groups. An event about a group has the difference since the one before. It is made once, and a
//! watcher that has the state before passes it on. One that has not, because it began later or was too slow, gets what
//! it lacks, in a state of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use castnet_proto::states::WatchedGroups;
use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Sender;
use tonic::Status;

use crate::shell::link::GROUPS_TOGETHER;
use crate::shell::shared::Shared;
use crate::state::core::Core;
use crate::state::shown;

pub(crate) struct Watcher {
    shared: Arc<Shared>,
    to: Sender<Result<v1::ControllerEvent, Status>>,
    /// Number of the last state that was sent, by group.
    sent: BTreeMap<String, u64>,
    /// For a client that takes no differences.
    whole: Option<WatchedGroups>,
}

/// The client has gone, or the controller stops.
struct Over;

impl Watcher {
    pub(crate) fn new(
        shared: Arc<Shared>,
        to: Sender<Result<v1::ControllerEvent, Status>>,
        differences: bool,
    ) -> Self {
        Self {
            shared,
            to,
            sent: BTreeMap::new(),
            whole: (!differences).then(WatchedGroups::default),
        }
    }

    pub(crate) async fn run(mut self, mut events: Receiver<Arc<v1::ControllerEvent>>) {
        let to = self.to.clone();
        let mut passed = self.send(0, Event::Started(v1::WatchStarted {})).await;
        while passed.is_ok() {
            passed = tokio::select! {
                () = to.closed() => return,
                told = events.recv() => match told {
                    Ok(told) => self.pass(&told).await,
                    Err(RecvError::Lagged(lost)) => self.lagged(0, lost).await,
                    Err(RecvError::Closed) => return,
                },
            };
        }
    }

    async fn pass(&mut self, told: &v1::ControllerEvent) -> Result<(), Over> {
        let Some(mut event) = told.event.clone() else {
            return Ok(());
        };
        match &event {
            Event::Lagged(lost) => return self.lagged(told.at_unix_ns, *lost).await,
            Event::GroupGone(name) => drop(self.sent.remove(name)),
            _ => {}
        }
        if let Some(parts) = shown::parts(&mut event) {
            let (name, number) = (parts.name.to_owned(), *parts.number);
            let since = parts.difference.as_ref().map(|difference| difference.since);
            match self.sent.get(&name).copied() {
                sent if since.is_some() && sent == since => {}
                // It was in what this watcher got instead of a difference.
                Some(sent) if sent >= number => return Ok(()),
                _ if since.is_none() => {}
                sent => {
                    let state = |core: &Core| {
                        let shown = core.groups.get(&name).map(|entry| core.shown(entry));
                        shown.map(|shown| shown.since(sent))
                    };
                    return match self.shared.read(state).await.map_err(|_| Over)? {
                        Some(state) => self.send(told.at_unix_ns, state).await,
                        // That it is gone is the next event of it.
                        None => Ok(()),
                    };
                }
            }
        }
        self.send(told.at_unix_ns, event).await
    }

    /// Events are lost: sends the present states of all groups that have changed.
    async fn lagged(&mut self, at_unix_ns: u64, lost: u64) -> Result<(), Over> {
        self.send(at_unix_ns, Event::Lagged(lost)).await?;
        let shared = self.shared.clone();
        let mut after = None;
        loop {
            // Some at a time: other calls use the lock in between.
            let part = |core: &Core| {
                let (mut last, mut states) = (None, Vec::new());
                for entry in core.groups.after(after.as_deref()).take(GROUPS_TOGETHER) {
                    let name = &entry.record().name;
                    let sent = self.sent.get(name).copied();
                    last = Some(name.clone());
                    if entry.may_have_changed_since(sent) {
                        let shown = core.shown(entry);
                        states.extend((Some(shown.number) != sent).then(|| shown.since(sent)));
                    }
                }
                (last, states)
            };
            let (last, states) = shared.read(part).await.map_err(|_| Over)?;
            for state in states {
                self.send(at_unix_ns, state).await?;
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
            self.send(at_unix_ns, Event::GroupGone(name)).await?;
        }
        Ok(())
    }

    async fn send(&mut self, at_unix_ns: u64, mut event: Event) -> Result<(), Over> {
        if let Some(parts) = shown::parts(&mut event) {
            self.sent.insert(parts.name.to_owned(), *parts.number);
        }
        let event = v1::ControllerEvent {
            at_unix_ns,
            event: Some(event),
        };
        let event = match &mut self.whole {
            Some(whole) => whole.complete(event).map_err(Status::from),
            None => Ok(event),
        };
        self.to.send(event).await.map_err(|_| Over)
    }
}
