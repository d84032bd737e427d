//! Open calls of members, and of clients that wait for what they have asked for.

use std::sync::Arc;
use std::time::Duration;

use castnet_proto::convert::RankJoin;
use castnet_proto::v1;
use castnet_rules::HostEndpoint;

use super::follow::Follow;
use super::shared::{Locked, Shared};
use crate::error::Refusal;
use crate::state::kinds::collective::requests::Seated;
use crate::state::kinds::collective::secret::Secret;
use crate::state::kinds::collective::view::{self as ranks, RankState};
use crate::state::kinds::multicast::record::JoinedBy;
use crate::state::kinds::multicast::requests::HowToJoin;
use crate::state::kinds::multicast::view::{self, MemberView};
use crate::state::{Core, Joining, Phase, Seen};

/// A member learns within this time for each member of its group who else has joined, left or lost its call. What it needs
/// at once comes at once, see [`Views::news`].
///
/// [`Views::news`]: crate::state::kinds::Views::news
const PAUSE_PER_MEMBER: Duration = Duration::from_millis(1);

/// The changes of a group, as a member sees them.
struct Changes {
    follow: Follow,
    /// Shortest time from the last look to the next, if there is no news: each of n members gets a state.
    pause: Duration,
}

impl Changes {
    /// `at_once`: whether the member does not wait for its first look.
    fn of(core: &mut Locked<'_>, group: &str, at_once: bool) -> Result<Self, Refusal> {
        let mut follow = core.follow(group)?;
        follow.changes.mark_changed();
        if at_once {
            follow.news.mark_changed();
        }
        let members = core.group(group)?.record().kind.behaviour().parties().len();
        Ok(Self {
            follow,
            pause: PAUSE_PER_MEMBER * members as u32,
        })
    }

    async fn next(&mut self) {
        let Follow { changes, news, .. } = &mut self.follow;
        let later = async {
            tokio::time::sleep(self.pause).await;
            changes.changed().await
        };
        // They cannot fail: the senders are there.
        let _ = tokio::select! {
            biased;
            news = news.changed() => news,
            change = later => change,
        };
    }

    fn mark_seen(&mut self) {
        self.follow.changes.mark_unchanged();
        self.follow.news.mark_unchanged();
    }
}

/// A member's call, open while it waits for changes of its group.
pub(crate) trait StandingCall: Send + 'static {
    /// Small: a client that takes no messages leaves one waiting.
    type State: PartialEq + Send + Sync + 'static;
    type Message: Send + 'static;

    /// Waits until the member is to look; at first, there is something to see.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Makes the message of a state, of which the client has the one that was sent before.
    fn messages(&self) -> impl Fn(&Self::State, Option<&Self::State>) -> Self::Message + Send + 'static;

    fn look(&mut self) -> impl Future<Output = Result<Seen<Self::State>, Refusal>> + Send;
}

/// A rank's call, open while it is in. When it is dropped, the rank's lease starts to run.
pub(crate) struct Attendance {
    shared: Arc<Shared>,
    seated: Seated,
    changes: Changes,
    /// Whether it gets differences.
    pub(crate) differences: bool,
}

impl Locked<'_> {
    /// A rank joins, joins again, or returns to its seat after its call had ended.
    pub(crate) fn init(&mut self, join: RankJoin, owner: &str) -> Result<Attendance, Refusal> {
        // Who returns creates no group, and ends no rounds.
        if join.returns_to.is_none() && self.group(&join.job).is_err() {
            let secret = Secret::new(&join.job, &join.secret);
            self.shared
                .exchanges
                .check_secret(&join.job, join.rank, &secret)?;
        }
        let seated = self.seat_rank(join, owner)?;
        let at_once = !ranks::waits(self.group(&seated.group)?);
        Ok(Attendance {
            changes: Changes::of(self, &seated.group, at_once)?,
            shared: self.shared.clone(),
            seated,
            differences: false,
        })
    }
}

impl StandingCall for Attendance {
    type State = RankState;
    type Message = v1::CollectiveState;

    async fn changed(&mut self) {
        self.changes.next().await;
    }

    fn messages(&self) -> impl Fn(&RankState, Option<&RankState>) -> v1::CollectiveState + Send + 'static {
        let (differences, is_of_member) = (self.differences, self.seated.is_of_member);
        move |state, sent| {
            let state = state.since(sent.filter(|_| differences));
            match is_of_member {
                true => state,
                false => v1::CollectiveState {
                    name: state.name,
                    phase: state.phase,
                    generation: state.generation,
                    rank: state.rank,
                    failed_rank: state.failed_rank,
                    reason: "it has failed, and this rank is free: join again".into(),
                    ..Default::default()
                },
            }
        }
    }

    async fn look(&mut self) -> Result<Seen<RankState>, Refusal> {
        self.changes.mark_seen();
        let (follow, seated) = (&self.changes.follow, &self.seated);
        let look = |core: &Core| match follow.is_there(core) {
            true => seated.seen(core),
            // The name may be that of a later job.
            false => (Seen::Nothing, seated.generation),
        };
        let (seen, generation) = self.shared.read(look).await?;
        self.seated.generation = generation;
        Ok(seen)
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        // If the controller stops, the client has not gone.
        if !self.shared.stopped.is_cancelled() {
            let Seated {
                group, rank, call, ..
            } = &self.seated;
            self.shared.lock().away(group, *rank, *call);
        }
    }
}

/// A join that stands on a call: withdrawn if dropped before the group is active. Then the lease runs, if there is one.
pub(crate) struct Join {
    shared: Arc<Shared>,
    group: String,
    host: String,
    call: u64,
    has_lease: bool,
    changes: Changes,
    /// Whether it sees of the members only itself and the source.
    pub(crate) brief: bool,
}

impl Locked<'_> {
    pub(crate) fn join(
        &mut self,
        group: &str,
        host: String,
        ends: Vec<HostEndpoint>,
        how: HowToJoin,
    ) -> Result<Join, Refusal> {
        let has_lease = how.lease.is_some();
        let call = self.take_in(group, &host, ends, how)?;
        let changes = Changes::of(self, group, true)?;
        Ok(Join {
            shared: self.shared.clone(),
            group: group.into(),
            host,
            call,
            has_lease,
            changes,
            brief: false,
        })
    }
}

impl StandingCall for Join {
    type State = MemberView;
    type Message = v1::GroupState;

    async fn changed(&mut self) {
        self.changes.next().await;
    }

    fn messages(&self) -> impl Fn(&MemberView, Option<&MemberView>) -> v1::GroupState + Send + 'static {
        |state, _| state.message()
    }

    async fn look(&mut self) -> Result<Seen<MemberView>, Refusal> {
        self.changes.mark_seen();
        let looked = self
            .shared
            .read(|core| (self.seen(core), self.is_replaced(core)))
            .await?;
        let (seen, is_replaced) = looked;
        Ok(seen.unwrap_or_else(|| {
            let (host, group) = (&self.host, &self.group);
            Seen::Superseded(match is_replaced {
                true => {
                    format!("another call has joined group {group:?} as host {host:?}, and this one is over")
                }
                false => format!("host {host:?} is not in group {group:?} by this call any more"),
            })
        }))
    }
}

impl Join {
    /// Whether the member is in by a later call.
    fn is_replaced(&self, core: &Core) -> bool {
        let kind = core.multicast(&self.group).ok().map(|(_, kind)| kind);
        let member = kind.and_then(|kind| kind.member(&self.host));
        member.is_some_and(|(_, member)| {
            matches!(&member.state, Joining::Joined(seat) if seat.by != JoinedBy::Call(self.call))
        })
    }

    /// What the member sees; `None` if the join no longer stands.
    fn seen(&self, core: &Core) -> Option<Seen<MemberView>> {
        if !self.changes.follow.is_there(core) {
            return None;
        }
        let (entry, kind) = core.multicast(&self.group).ok()?;
        let (_, member) = kind.member(&self.host)?;
        let state = || Box::new(view::state_for(kind, core, entry, &self.host, self.brief));
        let by = [JoinedBy::Creation, JoinedBy::Call(self.call)];
        let is_open = matches!(&member.state, Joining::Joined(seat) if by.contains(&seat.by));
        match entry.record().phase {
            phase if is_open && phase.has_run() && kind.is_waiting(&self.host) => Some(Seen::State(state())),
            Phase::Active | Phase::Degraded if self.has_lease && is_open => Some(Seen::State(state())),
            // It was put out, unless another call is open for it.
            _ if self.has_lease && matches!(member.state, Joining::Expected) => Some(Seen::Last(state())),
            Phase::Active | Phase::Degraded | Phase::Refused => Some(Seen::Last(state())),
            _ => is_open.then(|| Seen::State(state())),
        }
    }
}

impl Drop for Join {
    fn drop(&mut self) {
        self.shared.lock().ended(&self.group, &self.host, self.call);
    }
}

impl Shared {
    /// Waits until the switches have the changed rules of a running group; returns those that cannot be reached.
    pub(crate) async fn updated(&self, group: &str, follow: Follow) -> Result<Vec<String>, Refusal> {
        let pending = |core: &Core| {
            let Some(entry) = core.groups.get(group).filter(|e| e.record().phase.has_run()) else {
                return Some(Vec::new());
            };
            let lacks = |switch: &&String| match entry.record().wanted_rule(switch) {
                Some(_) => !entry.confirmed.contains(*switch),
                None => true,
            };
            let pending: Vec<String> = entry.record().placed.iter().filter(lacks).cloned().collect();
            let tried = pending.iter().all(|s| entry.problems.contains_key(s));
            tried.then_some(pending)
        };
        Ok(self.find(follow, pending).await?.unwrap_or_default())
    }

    /// Waits until a group that is being destroyed is gone or waits for unreachable switches; returns those.
    pub(crate) async fn gone(&self, group: &str, follow: Follow) -> Result<Vec<String>, Refusal> {
        let pending = |core: &Core| {
            let Some(entry) = core.groups.get(group) else {
                return Some(Vec::new());
            };
            let placed = &entry.record().placed;
            let tried = entry.work.is_none() && placed.iter().all(|s| entry.problems.contains_key(s));
            let removing = matches!(entry.record().phase, Phase::Removing(_));
            (tried && !placed.is_empty() && removing).then(|| placed.iter().cloned().collect())
        };
        Ok(self.find(follow, pending).await?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::shared::tests::{end_batch, shared};
    use crate::state::Ending;
    use crate::state::core::tests::join;
    use crate::state::journal::WAITING_MAX;

    /// Each call adds to what waits for a slow store.
    #[tokio::test]
    async fn members_are_refused_while_too_much_waits_for_the_store() {
        let shared = shared();
        let call = |job| shared.lock().init(join(job, 0, 2, ""), "h0");
        let first = call("a").unwrap();
        for _ in 0..WAITING_MAX {
            shared.lock().journal.log(|| {});
        }
        assert!(matches!(call("b"), Err(Refusal::StoreBehind { .. })));
        assert!(call("a").is_ok(), "it returns to its seat before its lease ends");
        end_batch(&shared);
        assert!(call("b").is_ok());
        drop(first);
    }

    /// A host that once was in a job, and was slow to take its states, saw the ranks of others in a later job of that name.
    #[tokio::test]
    async fn a_call_does_not_see_a_later_job_of_the_same_name() {
        let shared = shared();
        let mut old = shared.lock().init(join("job", 0, 2, ""), "h0").unwrap();
        end_batch(&shared);
        assert!(matches!(old.look().await, Ok(Seen::State(_))));
        shared.lock().forget("job").unwrap();
        end_batch(&shared);
        {
            let mut core = shared.lock();
            let mut other = join("job", 2, 3, "");
            (other.rank, other.size) = (0, 2);
            core.seat_rank(other, "h2").map(drop).unwrap();
            core.seat_rank(join("job", 1, 2, ""), "h1").map(drop).unwrap();
            let ending = Ending::failed(1, None, None, "a link is down".into());
            core.change("job", |r| r.ended = Some(ending)).unwrap();
        }
        end_batch(&shared);
        assert!(matches!(old.look().await, Ok(Seen::Nothing)));
    }
}
