//! Groups are planned without the lock, over a snapshot of what the plan depends on.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use castnet_planner::{Room, Rooms};
use castnet_proto::convert::{NewCollective, NewGroup};
use castnet_proto::v1;
use castnet_wire::{McstId, Psn};
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, OwnedMutexGuard};

use super::durable::Ticket;
use super::shared::{Locked, Shared};
use crate::error::Refusal;
use crate::state::foresee::{self, Wanted};
use crate::state::planning::Draft;
use crate::state::{Core, Layout, NoPlan, Phase, Record, kinds};

/// A group is planned so many times without the lock, if something has always changed meanwhile.
const PLANS_UNLOCKED: usize = 4;

/// What a plan is for, which decides what follows the last of these times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To place a group: it is planned under the lock.
    Place,
    /// To be looked at: the last plan is shown.
    Show,
}

/// The same without the lock.
struct Unlocked<'c>(&'c Arc<Shared>, &'c Record);

impl Rooms for Unlocked<'_> {
    fn room(&self, switch: &str) -> Room {
        self.0.lock().room(self.1, switch)
    }
}

/// What comes of work that is done at once if it is short, else by another thread. `None`: the controller stops.
async fn beside<T: Send + 'static>(is_short: bool, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match is_short {
        true => Some(work()),
        false => tokio::task::spawn_blocking(work).await.ok(),
    }
}

impl Shared {
    /// Plans a group over the present fabric with the load of all other groups, without the lock, and calls `then` under
    /// it. `record` gives the group, if it still is to be planned; it is called again if something that the plan depends
    /// on has changed meanwhile. Returns what stands for the state that the result depends on, which may be a refusal.
    pub(crate) async fn plan_for<T, E>(
        self: &Arc<Self>,
        purpose: Purpose,
        mut record: impl FnMut(&mut Core) -> Result<Record, E>,
        then: impl FnOnce(&mut Core, Record, Result<Layout, NoPlan>) -> Result<T, E>,
    ) -> (Result<T, E>, Ticket) {
        for left in (0..PLANS_UNLOCKED).rev() {
            let (record, draft) = {
                let mut core = self.lock();
                let record = match record(&mut core) {
                    Ok(record) => record,
                    Err(refused) => return (Err(refused), core.ticket()),
                };
                match Draft::new(&core, &record) {
                    Ok(draft) => (record, draft),
                    Err(no) => return (then(&mut core, record, Err(no)), core.ticket()),
                }
            };
            let (shared, is_short) = (self.clone(), draft.is_short());
            let plan = move || (draft.plan(&Unlocked(&shared, &record)), draft, record);
            let Some((planned, draft, record)) = beside(is_short, plan).await else {
                break;
            };
            let mut core = self.lock();
            let is_enough = purpose == Purpose::Show && left == 0;
            if is_enough || draft.is_current(&core, &record, &planned) {
                let layout = draft.layout(&core, &record, planned);
                return (then(&mut core, record, layout), core.ticket());
            }
        }
        let mut core = self.lock();
        let done = record(&mut core).and_then(|record| {
            let layout = core.plan_now(&record);
            then(&mut core, record, layout)
        });
        (done, core.ticket())
    }

    /// Plans a group to place it, for a request. Returns when the state that the answer depends on is on disk.
    async fn answer<T>(
        self: &Arc<Self>,
        record: impl FnMut(&mut Core) -> Result<Record, Refusal>,
        then: impl FnOnce(&mut Core, Record, Result<Layout, NoPlan>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (done, ticket) = self.plan_for(Purpose::Place, record, then).await;
        ticket.durable().await.and(done)
    }
}

/// Plans of a caller that are made or wait.
const PLANS_OF_CALLER_MAX: usize = 8;

/// Turns at what costs much, changes nothing, and has no quota. Of plans that are only looked at, one is made at a time, and a caller waits with
/// one among the others, however many it wants.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    all: tokio::sync::Mutex<()>,
    callers: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

impl Turns {
    /// The turn of a caller, until it is dropped, and how many it has or waits for with this one.
    fn of_caller(&self, caller: &str) -> (usize, impl Future<Output = OwnedMutexGuard<()>> + use<>) {
        let own = {
            let mut callers = self.callers.lock();
            callers.retain(|_, own| own.strong_count() > 0);
            let known = callers.get(caller).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let own = Arc::default();
                callers.insert(caller.to_owned(), Arc::downgrade(&own));
                own
            })
        };
        (Arc::strong_count(&own), own.lock_owned())
    }

    /// The turn among the plans of a caller.
    async fn own(&self, caller: &str) -> Result<OwnedMutexGuard<()>, Refusal> {
        let (plans, turn) = self.of_caller(caller);
        if plans > PLANS_OF_CALLER_MAX {
            let reason =
                format!("{PLANS_OF_CALLER_MAX} plans of this caller are not made yet: wait for them");
            return Err(Refusal::no_room("group", reason));
        }
        Ok(turn.await)
    }

    /// The turn of a caller, however many it waits for.
    pub(crate) async fn in_turn(&self, caller: &str) -> OwnedMutexGuard<()> {
        self.of_caller(caller).1.await
    }

    /// The turn among all callers, of one that has its own.
    async fn among_all(&self, _own: &OwnedMutexGuard<()>) -> MutexGuard<'_, ()> {
        self.all.lock().await
    }
}

impl Shared {
    pub(crate) async fn foresee(
        self: &Arc<Self>,
        wanted: &Wanted,
        caller: &str,
    ) -> Result<v1::PlanGroupResponse, Refusal> {
        let own = self.turns.own(caller).await?;
        let record = |core: &mut Core| wanted.record(core, "");
        let then = |core: &mut Core, record, layout: Result<Layout, NoPlan>| {
            let has_own = |layout: &Layout| !layout.new_mcst_ids.is_empty();
            match wanted.mcst_id() {
                Some(mcst_id) if layout.as_ref().is_ok_and(has_own) => Err(Refusal::McstIdNotOwn { mcst_id }),
                _ => Ok(foresee::answer(core, record, layout)),
            }
        };
        loop {
            let (done, ticket) = {
                let _turn = self.turns.among_all(&own).await;
                let (done, ticket) = self.plan_for(Purpose::Show, record, then).await;
                let done = match done {
                    Ok(foreseen) => {
                        let whole = beside(foreseen.is_short(), || foreseen.with_load()).await;
                        whole.ok_or(Refusal::Stopping)
                    }
                    Err(refused) => Err(refused),
                };
                (done, ticket)
            };
            // The others do not wait for the store.
            match ticket.durable().await {
                // What it saw was taken back.
                Err(Refusal::Store(_)) => {}
                stored => return stored.and(done),
            }
        }
    }

    pub(crate) async fn create_collective(
        self: &Arc<Self>,
        new: NewCollective,
        owner: &str,
    ) -> Result<v1::CollectiveState, Refusal> {
        let wanted = Wanted::Collective(new);
        let record = |core: &mut Core| core.draw_up(&wanted, owner);
        let then = |core: &mut Core, record: Record, layout| {
            wanted.check(core)?;
            let name = record.name.clone();
            core.create(record, wanted.mcst_id(), layout)?;
            let (entry, _) = core.collective(&name)?;
            Ok(kinds::collective::view::state(core, entry))
        };
        self.answer(record, then).await
    }

    /// The state of a new group; if all members are in, once it is active. Where it cannot be installed, nothing of it stays.
    pub(crate) async fn create_multicast(
        self: &Arc<Self>,
        mut group: NewGroup,
        owner: &str,
    ) -> Result<v1::GroupState, Refusal> {
        group
            .start_psn
            .get_or_insert_with(|| Psn::new(crate::draw() as u32));
        let (name, wanted) = (group.name.clone(), Wanted::Multicast(group));
        let record = |core: &mut Core| core.draw_up(&wanted, owner);
        let then = |core: &mut Core, record, layout| {
            wanted.check(core)?;
            core.add_multicast(record, wanted.mcst_id(), layout)
        };
        let (mcst_id, complete) = self.answer(record, then).await?;
        let created = self.created((&name, mcst_id), complete).await;
        if let Err(Refusal::Failed(_)) = created {
            self.destroy_created((&name, mcst_id)).await?;
        }
        created
    }

    async fn destroy_created(self: &Arc<Self>, (group, mcst_id): (&str, McstId)) -> Result<(), Refusal> {
        let destroy = |core: &mut Locked<'_>| {
            // It may have been destroyed already, and another one have its name.
            if !core.group(group).is_ok_and(|e| e.record().mcst_id == mcst_id) {
                return Ok(None);
            }
            let follow = core.follow(group)?;
            core.destroy(group).map(|()| Some(follow))
        };
        match self.stored(destroy).await? {
            Some(follow) => self.gone(group, follow).await.map(drop),
            None => Ok(()),
        }
    }

    /// The state of a group that was just created; if all members are in, once it is active. Fails if it cannot be installed.
    async fn created(
        self: &Arc<Self>,
        (group, mcst_id): (&str, McstId),
        complete: bool,
    ) -> Result<v1::GroupState, Refusal> {
        let gone = || Refusal::UnknownGroup { name: group.into() };
        let follow = self.lock().follow(group)?;
        let rests = |core: &Core| {
            let entry = match core.multicast(group) {
                Ok((entry, _)) if entry.record().mcst_id == mcst_id => entry,
                Ok(_) => return Some(Err(gone())),
                Err(gone) => return Some(Err(gone)),
            };
            let record = entry.record();
            match (record.phase, &record.ended) {
                (Phase::Installing | Phase::Removing(_), _) if complete => None,
                (Phase::Refused, Some(ending)) if complete => {
                    Some(Err(Refusal::Failed(ending.failure.clone())))
                }
                _ => Some(Ok(kinds::multicast::view::state(core, entry))),
            }
        };
        self.find(follow, rests).await?.unwrap_or_else(|| Err(gone()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use castnet_group::CollectiveSettings;

    use super::*;
    use crate::shell::shared::tests::{end_batch, shared};
    use crate::shell::write;
    use crate::state::core::tests::{join, new_group};
    use crate::state::{Collective, Kind};
    use crate::store::StoreError;

    /// Of a job with one rank, which is not on disk.
    fn with_rank() -> Arc<Shared> {
        let shared = shared();
        let seated = shared.lock().seat_rank(join("job", 0, 2, ""), "h0");
        seated.map(drop).unwrap();
        shared
    }

    fn wanted(name: &str) -> Wanted {
        Wanted::Multicast(new_group(name, &["h1", "h2"]))
    }

    /// Others use the lock: what is only looked at does not hold it for a plan.
    #[tokio::test]
    async fn a_plan_to_be_looked_at_is_never_made_under_the_lock() {
        for (purpose, planned) in [
            (Purpose::Place, PLANS_UNLOCKED + 1),
            (Purpose::Show, PLANS_UNLOCKED),
        ] {
            let shared = with_rank();
            let mut asked = 0;
            // Its address is another group's, so no plan of it is current.
            let record = |core: &mut Core| {
                asked += 1;
                let kind = Collective::new(Vec::new(), CollectiveSettings::default(), true);
                let mcst_id = core.group("job")?.record().mcst_id;
                Ok::<_, Refusal>(Record::new(
                    "g".into(),
                    (mcst_id, Vec::new()),
                    Kind::Collective(kind),
                ))
            };
            let (done, _) = shared.plan_for(purpose, record, |_, _, _| Ok(())).await;
            done.unwrap();
            assert_eq!(asked, planned, "{purpose:?}");
        }
    }

    /// Neither an answer nor a refusal tells what is not on disk.
    #[tokio::test]
    async fn a_plan_is_shown_when_what_it_depends_on_is_stored() {
        for (name, is_free) in [("other", true), ("job", false)] {
            let (shared, wanted) = (with_rank(), wanted(name));
            let mut shown = std::pin::pin!(shared.foresee(&wanted, "h1"));
            for _ in 0..100 {
                let waits = tokio::time::timeout(Duration::ZERO, &mut shown).await;
                assert!(waits.is_err(), "{name}");
            }
            assert!(shared.turns.all.try_lock().is_ok(), "others can make theirs");
            end_batch(&shared);
            assert_eq!(shown.await.is_ok(), is_free, "{name}");
        }
    }

    #[tokio::test]
    async fn a_plan_is_made_again_where_what_it_depended_on_was_not_stored() {
        let (shared, wanted) = (with_rank(), wanted("job"));
        let mut shown = std::pin::pin!(shared.foresee(&wanted, "h1"));
        let waits = tokio::time::timeout(Duration::ZERO, &mut shown).await;
        assert!(waits.is_err() && shared.turns.all.try_lock().is_ok());
        let batch = shared.lock().next_batch().expect("the rank is staged");
        let full = StoreError::Failed {
            store: "(faulty)".into(),
            entry: None,
            error: "no space left on device".into(),
        };
        write::ended(&shared, batch, Err(Arc::new(full)));
        assert!(shown.await.is_ok(), "the name is free");
    }

    #[tokio::test]
    async fn a_caller_who_wants_many_plans_waits_with_one_among_the_others() {
        let (turns, order) = (Arc::new(Turns::default()), Arc::new(Mutex::new(Vec::new())));
        let first = turns.own("many").await.unwrap();
        let all = turns.among_all(&first).await;
        let mut waiting = tokio::task::JoinSet::new();
        for caller in ["many", "many", "many", "one"] {
            let (turns, order) = (turns.clone(), order.clone());
            waiting.spawn(async move {
                let own = turns.own(caller).await.unwrap();
                let _turn = turns.among_all(&own).await;
                order.lock().push(caller);
            });
            tokio::task::yield_now().await;
        }
        assert!(order.lock().is_empty());
        drop((all, first));
        waiting.join_all().await;
        assert_eq!(*order.lock(), ["one", "many", "many", "many"]);
        drop(turns.own("another").await.unwrap());
        assert_eq!(turns.callers.lock().len(), 1, "those who have left are forgotten");
    }

    #[tokio::test]
    async fn a_caller_waits_with_so_many_plans_and_no_more() {
        let turns = Arc::new(Turns::default());
        let first = turns.own("many").await.unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 1..PLANS_OF_CALLER_MAX {
            let turns = turns.clone();
            waiting.spawn(async move { turns.own("many").await.map(drop) });
            tokio::task::yield_now().await;
        }
        let refused = turns.own("many").await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("8 plans"), "{refused}");
        drop(first);
        assert!(waiting.join_all().await.iter().all(Result::is_ok));
        assert!(turns.own("many").await.is_ok());
    }

    /// Its name may have another group by now, which is not touched.
    #[tokio::test]
    async fn who_creates_a_group_looks_at_no_other_of_its_name() {
        let shared = with_rank();
        end_batch(&shared);
        let own = shared.lock().group("job").unwrap().record().mcst_id;
        let other = McstId([10, 200, 9, 9].into());
        let created = shared.created(("job", other), true).await;
        assert!(matches!(created, Err(Refusal::OtherKind { .. })));
        shared.destroy_created(("job", other)).await.unwrap();
        let phase = || shared.lock().group("job").unwrap().record().phase;
        assert_eq!(phase(), Phase::Registered);
        let destroyed = tokio::time::timeout(Duration::ZERO, shared.destroy_created(("job", own))).await;
        assert!(destroyed.is_err() && phase() != Phase::Registered);
    }
}
