//! What is seen of a group, made once per change, however many see it.
//!
//! A state is numbered, and so is the last change of each member in it. What has changed since a state of another number
//! is then known without that state. Of members, only those are made anew that may have changed.

use std::any::Any;
use std::collections::VecDeque;
use std::ptr::addr_eq;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use castnet_proto::states::{Parts, State};
use castnet_proto::v1;
use castnet_proto::v1::controller_event::Event;

use crate::state::{Core, Entry, GroupKind, Plan};

/// Members that are gone and still known. If there are more, earlier states get no difference.
const GONE_MAX: usize = 1024;

/// What the state of a member is made from, beside the plan of its group and the place of its host.
pub(crate) struct Source<'r> {
    pub(crate) record: Arc<dyn Any + Send + Sync>,
    pub(crate) host: &'r str,
    /// Whether its call is open, where that is shown.
    pub(crate) is_here: bool,
}

/// What the plan of a group says about a member.
#[derive(Clone, Default)]
pub(crate) struct Planned {
    pub(crate) mcst_id: Option<String>,
    pub(crate) virtual_qpn: Option<u32>,
}

#[derive(Clone)]
struct Member {
    record: Arc<dyn Any + Send + Sync>,
    is_here: bool,
    state: Arc<v1::MemberState>,
    /// Number of its last change.
    number: u64,
}

/// The state of a group.
#[derive(Clone)]
pub(crate) struct Shown {
    /// Number of the last change.
    pub(crate) number: u64,
    /// Without the members.
    head: Event,
    /// Shared with other states: who follows a group may hold many.
    members: Vec<Arc<Member>>,
    gone: VecDeque<(u64, String)>,
    /// Earlier states get no difference.
    whole_until: u64,
    /// What it was made from: the version of the fabric, and the plan, which does not stay for it.
    fabric: u64,
    plan: (Option<Weak<Plan>>, bool),
}

/// The last state that was made, and whether the group may have changed since.
#[derive(Default)]
pub(crate) struct Cache {
    shown: Option<Arc<Shown>>,
    pub(crate) is_stale: bool,
    /// Number of the state that was last sent as an event.
    published: Option<u64>,
}

impl Core {
    /// What is seen of a group now.
    pub(crate) fn shown(&self, entry: &Entry) -> Arc<Shown> {
        self.show(entry, &mut entry.shown.lock())
    }

    fn show(&self, entry: &Entry, cache: &mut Cache) -> Arc<Shown> {
        let is_stale = std::mem::take(&mut cache.is_stale);
        let shown = match cache.shown.take() {
            Some(shown) if !is_stale && shown.fabric == self.facts.version => shown,
            Some(mut shown) => {
                Arc::make_mut(&mut shown).update(self, entry);
                shown
            }
            None => Arc::new(Shown::new(self, entry)),
        };
        cache.shown.insert(shown).clone()
    }

    /// The whole state of a group, without a cache if nobody follows the group.
    pub(crate) fn whole(&self, entry: &Entry) -> Event {
        let mut cache = entry.shown.lock();
        match cache.shown {
            Some(_) => self.show(entry, &mut cache).since(None),
            None => Shown::new(self, entry).since(None),
        }
    }

    /// What has changed since the last event of a group.
    pub(crate) fn event(&self, entry: &Entry) -> Event {
        let mut cache = entry.shown.lock();
        let shown = self.show(entry, &mut cache);
        let since = cache.published.replace(shown.number);
        shown.since(since)
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Entry {
    /// Whether its state was followed, and has another number than this, or may have.
    pub(crate) fn may_have_changed_since(&self, number: Option<u64>) -> bool {
        let cache = self.shown.lock();
        let is = |shown: &Arc<Shown>| !cache.is_stale && Some(shown.number) == number;
        number.is_some() && cache.shown.is_none() || cache.shown.as_ref().is_some_and(|shown| !is(shown))
    }
}

fn behaviour(entry: &Entry) -> &dyn GroupKind {
    entry.record().kind.behaviour()
}

fn plan(entry: &Entry) -> (Option<Weak<Plan>>, bool) {
    let plan = entry.record().plan.as_ref();
    (plan.map(Arc::downgrade), entry.foreseen.is_some())
}

impl Shown {
    fn new(core: &Core, entry: &Entry) -> Self {
        let (kind, number) = (behaviour(entry), core.next_number());
        let mut shown = Self {
            number,
            head: kind.head(entry),
            members: Vec::new(),
            gone: VecDeque::new(),
            whole_until: number,
            fabric: core.facts.version,
            plan: plan(entry),
        };
        let planned = kind.planned(entry);
        let sources = kind.sources(entry).into_iter().zip(planned);
        let member = |(at, (source, planned)): (usize, (Source<'_>, Planned))| {
            Arc::new(Member {
                state: Arc::new(state(core, entry, at, planned)),
                record: source.record,
                is_here: source.is_here,
                number,
            })
        };
        shown.members = sources.enumerate().map(member).collect();
        shown
    }

    fn update(&mut self, core: &Core, entry: &Entry) {
        let (kind, number) = (behaviour(entry), core.next_number());
        let sources = kind.sources(entry);
        let mut changed = false;
        // A rank keeps its position when a host takes it or gives it up.
        let is_member = |(source, member): (&Source<'_>, &Arc<Member>)| {
            let known = &member.state.host;
            addr_eq(Arc::as_ptr(&source.record), Arc::as_ptr(&member.record))
                || source.host == known
                || source.host.is_empty()
                || known.is_empty()
        };
        let same_members =
            sources.len() == self.members.len() && sources.iter().zip(&self.members).all(is_member);
        if !same_members {
            if !self.take_out(&sources, number) {
                *self = Self::new(core, entry);
                return;
            }
            changed = true;
        }
        let (plan, head) = (plan(entry), kind.head(entry));
        let same_plan = match (&self.plan, &plan) {
            ((Some(old), _), (Some(new), _)) => old.ptr_eq(new),
            ((None, old), (None, new)) => old == new,
            _ => false,
        };
        let mut planned = (!same_plan).then(|| kind.planned(entry));
        let moved = core.facts.moved_since(self.fabric);
        for (at, (source, member)) in sources.into_iter().zip(&mut self.members).enumerate() {
            let is_same = addr_eq(Arc::as_ptr(&source.record), Arc::as_ptr(&member.record))
                && source.is_here == member.is_here;
            if same_plan && is_same && moved.as_ref().is_some_and(|moved| !moved.contains(source.host)) {
                continue;
            }
            let planned = match &mut planned {
                Some(planned) => std::mem::take(&mut planned[at]),
                None => Planned {
                    mcst_id: member.state.mcst_id.clone(),
                    virtual_qpn: member.state.virtual_qpn,
                },
            };
            let state = state(core, entry, at, planned);
            if is_same && *member.state == state {
                continue;
            }
            let member = Arc::make_mut(member);
            (member.record, member.is_here) = (source.record, source.is_here);
            if *member.state != state {
                (member.state, member.number) = (Arc::new(state), number);
                changed = true;
            }
        }
        if changed || self.head != head {
            (self.head, self.number) = (head, number);
        }
        (self.plan, self.fabric) = (plan, core.facts.version);
    }

    /// Takes members out that are gone. Returns whether the others are those in `sources`, in their order.
    fn take_out(&mut self, sources: &[Source<'_>], number: u64) -> bool {
        let mut left = sources.iter().peekable();
        let gone = &mut self.gone;
        self.members.retain(|member| {
            let stays = left.next_if(|source| source.host == member.state.host).is_some();
            if !stays {
                gone.push_back((number, member.state.host.clone()));
            }
            stays
        });
        while self.gone.len() > GONE_MAX
            && let Some((number, _)) = self.gone.pop_front()
        {
            self.whole_until = number;
        }
        left.peek().is_none()
    }

    /// What has changed since the state of this number; the whole state, if that is not known.
    pub(crate) fn since(&self, number: Option<u64>) -> Event {
        let since = number.filter(|number| *number >= self.whole_until);
        let changed = self.members.iter().enumerate();
        let changed = changed.filter(|(_, member)| since.is_none_or(|since| member.number > since));
        let (positions, members): (Vec<u32>, _) = changed
            .map(|(at, m)| (at as u32, v1::MemberState::clone(&m.state)))
            .unzip();
        let gone = self.gone.iter().filter(|(number, _)| Some(*number) > since);
        let difference = since.map(|since| v1::Difference {
            since,
            gone: gone.map(|(_, host)| host.clone()).collect(),
            positions,
        });
        self.with(members, difference)
    }

    /// The state with these members.
    fn with(&self, members: Vec<v1::MemberState>, difference: Option<v1::Difference>) -> Event {
        let mut event = self.head.clone();
        if let Some(Parts {
            members: all,
            number,
            difference: since,
            ..
        }) = parts(&mut event)
        {
            (*all, *number, *since) = (members, self.number, difference);
        }
        event
    }

    /// The state without members.
    pub(crate) fn head(&self) -> Event {
        self.with(Vec::new(), None)
    }

    /// Its members in their order.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Arc<v1::MemberState>> {
        self.members.iter().map(|member| &member.state)
    }
}

fn state(core: &Core, entry: &Entry, at: usize, planned: Planned) -> v1::MemberState {
    v1::MemberState {
        mcst_id: planned.mcst_id,
        virtual_qpn: planned.virtual_qpn,
        ..behaviour(entry).member(core, entry, at)
    }
}

/// The parts of the state in an event about a group.
pub(crate) fn parts(event: &mut Event) -> Option<Parts<'_>> {
    match event {
        Event::Group(state) => Some(state.parts()),
        Event::Collective(state) => Some(state.parts()),
        _ => None,
    }
}

/// Of the state in an event about a group: its group, its number, and that of the state that it continues.
pub(crate) fn numbers(event: &Event) -> Option<(&str, u64, Option<u64>)> {
    let (name, number, difference) = match event {
        Event::Group(state) => (&state.name, state.number, &state.difference),
        Event::Collective(state) => (&state.name, state.number, &state.difference),
        _ => return None,
    };
    Some((
        name,
        number,
        difference.as_ref().map(|difference| difference.since),
    ))
}

#[cfg(test)]
mod tests;
