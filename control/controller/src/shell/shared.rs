//! What all tasks of the controller share: the state behind a lock, and what its changes ask for.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use castnet_proto::term::WithTerm;
use castnet_proto::v1;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::durable::{Batches, Ticket};
use super::exchange::Exchanges;
use super::follow::{self, Follow};
use super::link::{Link, SwitchError};
use super::plan::Turns;
use super::tasks;
use crate::config::Config;
use crate::error::Refusal;
use crate::state::core::EVENTS_MAX;
use crate::state::{Core, Effect};
use crate::store::etcd::Lead;

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

impl Locked<'_> {
    /// For the state as it is now.
    pub(crate) fn ticket(&self) -> Ticket {
        self.shared.batches.ticket(&self.core.journal)
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
            self.shared.carry_out(effect);
        }
        if self.core.journal.take_news() {
            self.shared.staged.notify_one();
        }
        let due = self.core.poll_timeout();
        let is_new = |told: &mut Option<Instant>| std::mem::replace(told, due) != due;
        self.shared.due.send_if_modified(is_new);
    }
}

pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    /// Of this controller.
    pub(crate) term: v1::ControllerTerm,
    /// Sent with each call to a switch, and with each answer to who joins.
    pub(crate) with_term: WithTerm,
    /// If there are several controllers: the lead of this one.
    lead: Option<Arc<Lead>>,
    is_superseded: AtomicBool,
    pub(crate) links: BTreeMap<String, Arc<Link>>,
    pub(crate) exchanges: Exchanges,
    pub(crate) batches: Batches,
    /// Of those who want to see plans.
    pub(crate) turns: Turns,
    /// Of hosts that want to see groups.
    pub(crate) views: Turns,
    /// Held while everything is shown to who may only read.
    pub(crate) listing: tokio::sync::Mutex<()>,
    core: Mutex<Core>,
    /// Notified when there is something to write.
    pub(crate) staged: Notify,
    pub(crate) events: broadcast::Sender<Arc<v1::ControllerEvent>>,
    /// Changes whenever switches or hosts report something new.
    pub(crate) fabric: watch::Sender<()>,
    /// When the state has something to do.
    pub(crate) due: watch::Sender<Option<Instant>>,
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the controller stops.
    pub(crate) stopped: CancellationToken,
}

impl Shared {
    pub(crate) fn new(
        config: Arc<Config>,
        term: v1::ControllerTerm,
        lead: Option<Arc<Lead>>,
        core: Core,
    ) -> Self {
        let links = config
            .switches
            .iter()
            .map(|s| (s.name.clone(), Arc::new(Link::new(s.clone()))))
            .collect();
        Self {
            config,
            with_term: WithTerm::new(&term),
            term,
            lead,
            is_superseded: AtomicBool::new(false),
            links,
            exchanges: Exchanges::default(),
            batches: Batches::default(),
            turns: Turns::default(),
            views: Turns::default(),
            listing: tokio::sync::Mutex::default(),
            core: Mutex::new(core),
            staged: Notify::new(),
            events: broadcast::Sender::new(EVENTS_MAX),
            fabric: watch::Sender::new(()),
            due: watch::Sender::new(None),
            tasks: TaskTracker::new(),
            stopped: CancellationToken::new(),
        }
    }

    pub(crate) fn lock(self: &Arc<Self>) -> Locked<'_> {
        let mut core = self.core.lock();
        // The clock of the tasks, which stands still in tests.
        core.now = tokio::time::Instant::now().into_std();
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
        self.batches.close();
    }

    /// Waits until no other controller can change the switches.
    pub(crate) async fn may_change(&self) -> Result<(), SwitchError> {
        match &self.lead {
            Some(_) if self.is_superseded() => {
                let reason = "it is left alone: a switch says that another controller leads";
                Err(SwitchError::Unreachable(reason.into()))
            }
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

    /// Fails if this controller may not know what became of a group that was joined at the controller of this term. `asks`: the client that
    /// says so.
    pub(crate) fn check_joined(&self, joined: &v1::ControllerTerm, asks: &str) -> Result<(), Refusal> {
        let v1::ControllerTerm {
            owner,
            epoch,
            instance,
            ..
        } = &self.term;
        let (of, later) = (&joined.owner, joined.epoch);
        let reason = if of == owner && later > *epoch {
            format!(
                "that controller has begun later on the store of owner {of} (epoch {later} after {epoch}): start this one with the \
                 store as it is now, or export and import it with --above {later}"
            )
        } else if of == owner && later == *epoch && joined.instance != *instance {
            format!("that controller and this one run on copies of the store of owner {of}: stop one of them")
        // What is in memory alone ends with its controller.
        } else if of == owner || joined.in_memory || self.core.lock().others.are_gone(of, asks) {
            return Ok(());
        } else {
            format!(
                "that controller has another store (owner {of}): start it again, or remove its groups with castnet group purge --owner \
                 {of} --yes"
            )
        };
        Err(Refusal::JoinedElsewhere {
            address: joined.address.clone(),
            reason,
        })
    }

    /// A switch has reported that another controller has taken over. The task that writes the store notes that, and gives up the lead.
    pub(crate) fn superseded(&self) {
        if !self.is_superseded.swap(true, Ordering::Relaxed) {
            self.staged.notify_one();
        }
    }

    /// The epoch with which a switch has refused the only controller on a store.
    pub(crate) fn refused_epoch(&self) -> Option<u64> {
        (self.lead.is_none() && self.is_superseded()).then_some(self.term.epoch)
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.is_superseded.load(Ordering::Relaxed)
    }

    /// Returns whether it is one of several.
    pub(crate) fn give_up_lead(&self) -> bool {
        self.lead.iter().for_each(|lead| lead.lose());
        self.lead.is_some()
    }

    /// The result of a change, once it is on disk; a refusal may also depend on state that is not there yet.
    pub(crate) async fn stored<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Locked<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (changed, ticket) = {
            let mut core = self.lock();
            (change(&mut core), core.ticket())
        };
        ticket.durable().await?;
        changed
    }

    /// Called between the parts of long work. Waits until its changes are on disk: the work does not stage more than the
    /// store can write, and other calls wait only for a small batch. If they were taken back, others try them again.
    pub(crate) async fn let_others(&self) {
        let _ = self.read(|_| ()).await;
        tokio::task::yield_now().await;
    }

    /// The result of `read`, once the state that it saw is on disk. If that could not be written and was taken back, it
    /// reads again.
    pub(crate) async fn read<T>(&self, mut read: impl FnMut(&Core) -> T) -> Result<T, Refusal> {
        loop {
            let (found, ticket): (T, Ticket) = {
                let core = self.core.lock();
                (read(&core), self.batches.ticket(&core.journal))
            };
            match ticket.durable().await {
                Ok(()) => return Ok(found),
                Err(Refusal::Store(_)) => {}
                Err(other) => return Err(other),
            }
        }
    }

    /// The first result of `look`, now or after a change of the group, once the state that it saw is on disk.
    /// `None`: there is none, and the group is gone.
    pub(crate) async fn find<T>(
        &self,
        mut follow: Follow,
        mut look: impl FnMut(&Core) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        loop {
            follow.changes.mark_unchanged();
            let read = |core: &Core| (look(core), follow.is_there(core));
            match self.read(read).await? {
                // It cannot fail: the sender is there.
                (None, true) => drop(follow.changes.changed().await),
                (found, _) => return Ok(found),
            }
        }
    }

    /// The state is locked.
    pub(crate) fn carry_out(self: &Arc<Self>, effect: Effect) {
        let shared = self.clone();
        match effect {
            // There may be no subscriber.
            Effect::Publish(event) => drop(self.events.send(Arc::new(*event))),
            Effect::Changed { followers, news } => follow::tell(followers, news),
            Effect::FabricChanged => {
                self.fabric.send_replace(());
            }
            Effect::Staged => self.staged.notify_one(),
            Effect::Plan(planning) => self.spawn(tasks::plan(shared, planning)),
            Effect::Sync(asked) => self.spawn(tasks::sync(shared, asked)),
            Effect::Refine(group) => self.spawn(tasks::refine_soon(shared, group)),
            Effect::Look(switch) => {
                if let Some(link) = self.links.get(&switch) {
                    link.look.notify_one();
                }
            }
            Effect::SyncRoutes(switch) => tasks::sync_routes(self, &switch, None),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::shell::write;
    use crate::state::core::tests::{core, join};
    use crate::state::{Event, Owner, Phase};

    /// Without tasks: nothing is written, and no switch is called.
    pub(crate) fn shared() -> Arc<Shared> {
        let core = core(|_| {});
        let (config, term) = (core.config.clone(), v1::ControllerTerm::default());
        Arc::new(Shared::new(config, term, None, core))
    }

    /// What is staged is written.
    pub(crate) fn end_batch(shared: &Arc<Shared>) {
        let batch = shared.lock().next_batch().expect("something is staged");
        write::ended(shared, batch, Ok(()));
    }

    /// A host could fill the memory with them: it joins with a long lease, ends its call, leaves, and joins again.
    #[tokio::test]
    async fn timers_end_with_their_group() {
        let shared = shared();
        for _ in 0..3 {
            let rank = shared.lock().init(join("job", 0, 2, ""), "h0");
            drop(rank.unwrap());
            assert!(shared.lock().poll_timeout().is_some(), "the lease runs");
            shared.lock().leave_collective("job", 0).unwrap();
            shared.lock().step("job", Event::Cleared, None).unwrap();
            end_batch(&shared);
            assert_eq!(shared.lock().poll_timeout(), None);
        }
    }

    #[tokio::test]
    async fn a_group_has_one_timer_of_its_phase() {
        let shared = shared();
        let rank = shared.lock().init(join("job", 0, 2, ""), "h0").unwrap();
        let timers = |phase| {
            let mut core = shared.lock();
            core.change("job", |r| r.phase = phase).unwrap();
            core.arm("job");
            core.group("job").unwrap().timers.keys().count()
        };
        assert_eq!(
            [Phase::Failed, Phase::Failed, Phase::Registered].map(timers),
            [1, 1, 0]
        );
        drop(rank);
    }

    /// Also when something else is due before what it waits for.
    #[tokio::test]
    async fn the_state_is_told_what_is_due() {
        let shared = shared();
        shared.spawn(tasks::keep_time(shared.clone()));
        for pause in [600_000, 1] {
            {
                let mut core = shared.lock();
                let at = core.now + Duration::from_millis(pause);
                core.timers.set(Owner::Routes, at);
            }
            tokio::task::yield_now().await;
        }
        let mut due = shared.due.subscribe();
        assert!(due.wait_for(Option::is_none).await.is_ok());
    }
}
