//! The controller's state in memory, shared by all its tasks.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use castnet_proto::term::WithTerm;
use castnet_proto::v1;
use castnet_rules::Ipv4Net;
use castnet_wire::McstId;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broken_links::Changed;
use crate::config::Config;
use crate::effect::Effect;
use crate::error::Refusal;
use crate::fabric::{Fabric, Reach};
use crate::foresee::Turns;
use crate::journal::{Journal, Ticket};
use crate::kinds::collective::exchange::Exchanges;
use crate::kinds::collective::record::Collective;
use crate::kinds::multicast::record::Multicast;
use crate::link::{Link, SwitchError};
use crate::lost_switches::Signs;
use crate::multicast_routes::MulticastRoutes;
use crate::others::Others;
use crate::record::Record;
use crate::state::Postponed;
use crate::store::StoreError;
use crate::store::etcd::Lead;
use crate::table::{Entry, Groups, Usage};
use crate::written_off::AllWrittenOff;

/// Events that a slow reader may lag behind before it loses some.
pub(crate) const EVENTS_MAX: usize = 1024;

pub(crate) struct Core {
    pub(crate) config: Arc<Config>,
    /// What is to be done outside, in order.
    pub(crate) effects: Vec<Effect>,
    /// The time, and the same since 1970 in nanoseconds, as of the start of a change.
    pub(crate) now: Instant,
    pub(crate) unix_ns: u64,
    /// Whether there is anybody who gets events.
    pub(crate) is_watched: bool,
    pub(crate) facts: Fabric,
    /// Last report of each switch about itself, and what other owners use of it.
    pub(crate) capabilities: BTreeMap<String, (v1::Capabilities, Usage)>,
    pub(crate) groups: Groups,
    pub(crate) written_off: AllWrittenOff,
    /// Groups whose records in the store do not read, and why. What switches have of them stays as it is.
    pub(crate) set_apart: BTreeMap<String, String>,
    pub(crate) others: Others,
    /// Number of the last call to join.
    pub(crate) calls: u64,
    /// Number of the last state of a group that was shown.
    pub(crate) numbers: AtomicU64,
    /// Pool of McstIDs that are not of one switch.
    pub(crate) mcst_pool: Ipv4Net,
    /// McstID given out last, per pool: the search continues after it, so that none is used again soon.
    pub(crate) last_mcst_ids: BTreeMap<Ipv4Net, McstId>,
    /// Changes that are not on disk yet.
    pub(crate) journal: Journal,
    /// Why the store cannot be written now.
    pub(crate) store_error: Option<Arc<StoreError>>,
    pub(crate) postponed: Postponed,
    pub(crate) links_changed: Changed,
    pub(crate) signs: Signs,
    pub(crate) multicast_routes: MulticastRoutes,
}

impl Core {
    pub(crate) fn group(&self, name: &str) -> Result<&Entry, Refusal> {
        self.groups.get(name).ok_or_else(|| self.unknown(name))
    }

    /// There is no such group; or it may exist, and a member must not be told that it is gone.
    pub(crate) fn unknown(&self, name: &str) -> Refusal {
        let unread = self
            .set_apart
            .get(name)
            .map(|why| format!("its record in the store {why}"));
        match unread.or_else(|| self.others.doubt()) {
            Some(reason) => Refusal::NotKnown {
                name: name.into(),
                reason,
            },
            None => Refusal::UnknownGroup { name: name.into() },
        }
    }

    /// Whether a switch that answers has not told yet what it has, while that is of interest.
    fn waits_for_lists(&self) -> bool {
        let down = |switch: &String| {
            let known = self.facts.switches.get(switch);
            known.is_some_and(|(reach, _)| matches!(reach, Reach::Down(_)))
        };
        self.others.unasked().any(|switch| !down(switch))
    }

    pub(crate) fn multicast(&self, name: &str) -> Result<(&Entry, &Multicast), Refusal> {
        self.of_kind(name, Record::multicast)
    }

    pub(crate) fn collective(&self, name: &str) -> Result<(&Entry, &Collective), Refusal> {
        self.of_kind(name, Record::collective)
    }

    fn of_kind<K>(&self, name: &str, kind: fn(&Record) -> Option<&K>) -> Result<(&Entry, &K), Refusal> {
        let entry = self.group(name)?;
        let kind = kind(entry.record()).ok_or_else(|| Refusal::UnknownGroup { name: name.into() })?;
        Ok((entry, kind))
    }

    pub(crate) fn collective_by_mcst_id(&self, mcst_id: &str) -> Option<(&Entry, &Collective)> {
        let entry = self.groups.by_mcst_id(mcst_id.parse().ok().map(McstId)?)?;
        Some((entry, entry.record().collective()?))
    }

    /// Whether a group may be created with this name.
    pub(crate) fn free_name(&self, name: &str) -> Result<(), Refusal> {
        let taken = |phase| {
            Err(Refusal::DuplicateGroup {
                name: name.into(),
                phase,
            })
        };
        match (self.groups.get(name), self.others.wrong_store()) {
            (Some(entry), _) => taken(entry.phase_name()),
            (None, _) if self.set_apart.contains_key(name) => taken("its record does not read"),
            (None, Some(reason)) => Err(Refusal::WrongStore { reason }),
            (None, None) => Ok(()),
        }
    }
}

/// The locked state. What its changes ask for outside is carried out before it is free.
pub(crate) struct Locked<'s> {
    pub(crate) shared: &'s Arc<Shared>,
    core: MutexGuard<'s, Core>,
}

impl Deref for Locked<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        for effect in std::mem::take(&mut self.core.effects) {
            self.shared.carry_out(&self.core, effect);
        }
    }
}

impl Core {
    /// Sends an event to all subscribers, once the changes staged so far are on disk.
    pub(crate) fn publish(&mut self, event: v1::controller_event::Event) {
        let event = v1::ControllerEvent {
            at_unix_ns: self.unix_ns,
            event: Some(event),
        };
        if let Some(event) = self.journal.hold_back(event) {
            self.effects.push(Effect::Publish(Box::new(event)));
        }
    }
}

pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) owner: String,
    /// Sent with each call to a switch.
    pub(crate) term: WithTerm,
    /// Where clients reach it.
    pub(crate) address: String,
    /// If there are several controllers: the lead of this one.
    lead: Option<Arc<Lead>>,
    pub(crate) links: BTreeMap<String, Arc<Link>>,
    pub(crate) exchanges: Exchanges,
    /// Of those who want to see plans.
    pub(crate) turns: Turns,
    core: Mutex<Core>,
    /// Notified when there is something to write.
    pub(crate) staged: Arc<Notify>,
    pub(crate) events: broadcast::Sender<Arc<v1::ControllerEvent>>,
    /// Changes whenever switches or hosts report something new.
    pub(crate) fabric: watch::Sender<()>,
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the controller stops.
    pub(crate) stopped: CancellationToken,
}

impl Shared {
    pub(crate) fn new(
        config: Arc<Config>,
        term: &v1::ControllerTerm,
        lead: Option<Arc<Lead>>,
        core: Core,
        staged: Arc<Notify>,
    ) -> Self {
        let links = config
            .switches
            .iter()
            .map(|s| (s.name.clone(), Arc::new(Link::new(s.clone()))))
            .collect();
        Self {
            config,
            owner: term.owner.clone(),
            term: WithTerm::new(term),
            address: term.address.clone(),
            lead,
            links,
            exchanges: Exchanges::default(),
            turns: Turns::default(),
            core: Mutex::new(core),
            staged,
            events: broadcast::Sender::new(EVENTS_MAX),
            fabric: watch::Sender::new(()),
            tasks: TaskTracker::new(),
            stopped: CancellationToken::new(),
        }
    }

    pub(crate) fn lock(self: &Arc<Self>) -> Locked<'_> {
        let mut core = self.core.lock();
        core.now = Instant::now();
        core.unix_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64);
        core.is_watched = self.events.receiver_count() > 0;
        Locked { shared: self, core }
    }

    /// Runs `task` until the controller stops, then drops it, as if the process had been killed.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stopped.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stopped.cancelled() => {}
                () = task => {}
            }
        });
    }

    pub(crate) async fn stop(&self) {
        self.stop_now();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Like [`Shared::stop`], without waiting.
    pub(crate) fn stop_now(&self) {
        self.core.lock().journal.close();
        self.stopped.cancel();
    }

    /// Waits until no other controller can change the switches.
    pub(crate) async fn may_change(&self) -> Result<(), SwitchError> {
        match &self.lead {
            Some(lead) if !lead.holds(self.config.timeouts.switch).await => {
                let reason = "it is left alone: another controller may lead, as etcd does not answer";
                Err(SwitchError::Unreachable(reason.into()))
            }
            _ => Ok(()),
        }
    }

    /// Waits, where what switches have decides whether a group may be created, until they have told it.
    pub(crate) async fn lists(self: &Arc<Self>) {
        let mut fabric = self.fabric.subscribe();
        let told = async {
            while self.lock().waits_for_lists() {
                if fabric.changed().await.is_err() {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(self.config.timeouts.switch, told).await;
    }

    /// A switch has reported that another controller has taken over.
    pub(crate) fn superseded(&self) {
        if let Some(lead) = &self.lead {
            lead.lose();
        }
    }

    pub(crate) fn release(&self, event: v1::ControllerEvent) {
        // There may be no subscriber.
        let _ = self.events.send(Arc::new(event));
    }

    /// Waits until all changes so far are on disk.
    pub(crate) async fn durable(&self) -> Result<(), Refusal> {
        let ticket = self.core.lock().journal.ticket();
        ticket.durable().await
    }

    /// Called between the parts of long work. Waits until its changes are on disk: the work does not stage more than the
    /// store can write, and other calls wait only for a small batch. If they were taken back, others try them again.
    pub(crate) async fn let_others(&self) {
        let _ = self.durable().await;
        tokio::task::yield_now().await;
    }

    /// The result of `read`, once the state that it saw is on disk. If that could not be written and was taken back, it
    /// reads again.
    pub(crate) async fn read<T>(&self, mut read: impl FnMut(&Core) -> T) -> Result<T, Refusal> {
        loop {
            let (found, ticket): (T, Ticket) = {
                let core = self.core.lock();
                (read(&core), core.journal.ticket())
            };
            match ticket.durable().await {
                Ok(()) => return Ok(found),
                Err(Refusal::Store(_)) => {}
                Err(other) => return Err(other),
            }
        }
    }

    /// The first result of `look`, now or after a change that `changed` reports, once the state that it saw is on disk.
    /// `None`: there is none after the last change.
    pub(crate) async fn find<T>(
        &self,
        mut changed: watch::Receiver<()>,
        mut look: impl FnMut(&Core) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        loop {
            changed.mark_unchanged();
            if let Some(found) = self.read(&mut look).await? {
                return Ok(Some(found));
            }
            if changed.changed().await.is_err() {
                return self.read(&mut look).await;
            }
        }
    }
}
