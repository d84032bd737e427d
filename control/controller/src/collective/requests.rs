//! What ranks and operators ask for.

use std::sync::Arc;
use std::time::Duration;

use castnet_proto::convert::{NewCollective, RankJoin, one_end_each};
use castnet_proto::v1;
use castnet_rules::HostEndpoint;
use tokio::sync::watch;

use super::lifecycle::{After, Event, Phase};
use super::planning::place_group;
use super::record::{CollectiveRecord, Ending, RankState, Seat, Settings};
use super::state::Presence;
use super::view;
use crate::core::{Core, Shared};
use crate::error::Refusal;
use crate::planning::NoPlan;
use crate::requests::check_connection;

/// A rank's call, which stands for as long as it is in. Dropped, its lease begins to run.
pub(crate) struct Attendance {
    shared: Arc<Shared>,
    pub(crate) group: String,
    pub(crate) rank: u16,
    call: u64,
    /// The generation that it is in or waits for, as far as it has looked.
    generation: u64,
    pub(crate) changed: watch::Receiver<()>,
}

/// What a rank sees of its group.
pub(crate) enum Seen {
    /// This, and there may be more.
    State(Box<v1::CollectiveState>),
    /// This, and no more.
    Last(Box<v1::CollectiveState>),
    /// It has left, or the group is gone: nothing more to say.
    Nothing,
    /// Another call stands for this rank.
    Superseded,
}

impl Shared {
    /// Creates a collective group before its ranks come.
    pub(crate) fn create_collective(
        self: &Arc<Self>,
        new: NewCollective,
    ) -> Result<v1::CollectiveState, Refusal> {
        let mut core = self.lock();
        core.free_name(&new.name)?;
        for (rank, host) in new.ranks.iter().enumerate() {
            let field = format!("ranks[{rank}]");
            // Without a file nothing says who exists; such a host is looked for when it joins.
            if core.facts.file.is_some() && !core.facts.knows_host(host) {
                return Err(Refusal::UnknownHost {
                    field,
                    host: host.clone(),
                });
            }
            if core.facts.knows_switch(host) {
                return Err(Refusal::NameOfSwitch {
                    field,
                    name: host.clone(),
                });
            }
        }
        let settings = Settings::new(&new.settings);
        let mcst_ids = self.mcst_ids_for(&core, new.mcst_id, settings.lanes)?;
        let record = CollectiveRecord::new(new.name.clone(), new.ranks, settings, mcst_ids, false);
        // What can be known to go wrong is refused now and not when the last rank joins.
        if let Err(NoPlan::Never(failure)) = place_group(&core, &record) {
            return Err(Refusal::Failed(failure));
        }
        self.add_collective(&mut core, record)?;
        Ok(view::state(&core, core.collective(&new.name)?))
    }

    /// A rank joins, joins again, or comes back to its place after its call had ended.
    pub(crate) fn init(self: &Arc<Self>, join: RankJoin) -> Result<Attendance, Refusal> {
        let mut core = self.lock();
        if !core.collectives.contains_key(&join.job) {
            core.free_name(&join.job)?;
        }
        let host = join.endpoint.name.clone();
        if core.facts.knows_switch(&host) {
            let field = "host".into();
            return Err(Refusal::NameOfSwitch { field, name: host });
        }
        if core.facts.file.is_some() && !core.facts.knows_host(&host) {
            let field = "host".into();
            return Err(Refusal::UnknownHost { field, host });
        }
        let ends = std::iter::once(&join.endpoint).chain(&join.more);
        check_connection(&core, "connection", Some(&join.job), ends)?;
        if let Some(generation) = join.returns_to {
            return self.come_back(&mut core, &join, generation);
        }
        let known = core.collectives.contains_key(&join.job);
        if known {
            self.check_join(&core, &join)?;
        } else {
            let lanes = Settings::new(&join.settings).lanes;
            one_end_each("connection", 1 + join.more.len(), lanes)?;
        }
        self.know(&mut core, &join.endpoint)?;
        core.calls += 1;
        let call = core.calls;
        if known && let Some(seat) = same_seat(&core.collective(&join.job)?.record, &join) {
            let generation = seat.generation;
            tracing::info!(group = join.job, rank = join.rank, "back at its place");
            return self.attend(&mut core, &join.job, join.rank, call, generation);
        }
        if known {
            self.give_up_place(&mut core, &join)?;
        }
        self.take_place(&mut core, join, call)
    }

    /// A rank whose call had ended comes back to the generation that it is in, with the same connection; or hears what has
    /// become of that one. It has no part in any other: its queue pair knows that generation's PSNs.
    fn come_back(
        self: &Arc<Self>,
        core: &mut Core,
        join: &RankJoin,
        generation: u64,
    ) -> Result<Attendance, Refusal> {
        let entry = core.collective(&join.job)?;
        let is_here = same_seat(&entry.record, join).is_some_and(|seat| seat.generation == generation);
        let ended = entry.record.ended.as_ref();
        if !is_here && ended.is_some_and(|e| e.generation >= generation) {
            return Ok(Attendance {
                shared: self.clone(),
                group: join.job.clone(),
                rank: join.rank,
                // No call of a rank that is in.
                call: 0,
                generation,
                changed: entry.changed.subscribe(),
            });
        }
        if !is_here {
            return Err(Refusal::NotNow {
                field: "returns_to",
                group: join.job.clone(),
                state: "does not have this rank with this connection in it",
                way_out: "join again",
            });
        }
        self.know(core, &join.endpoint)?;
        core.calls += 1;
        let call = core.calls;
        tracing::info!(group = join.job, rank = join.rank, "back at its place");
        self.attend(core, &join.job, join.rank, call, generation)
    }

    /// Whether a rank can join at all, or again.
    fn check_join(&self, core: &Core, join: &RankJoin) -> Result<(), Refusal> {
        let entry = core.collective(&join.job)?;
        let record = &entry.record;
        if record.phase == Phase::Removing(After::Gone) {
            return Err(Refusal::NotNow {
                field: "job",
                group: join.job.clone(),
                state: "is being removed",
                way_out: "try again soon",
            });
        }
        if record.ranks.len() != usize::from(join.size) {
            return Err(Refusal::OtherSize {
                job: join.job.clone(),
                size: record.ranks.len() as u16,
                given: join.size,
            });
        }
        if let Some((field, given, is)) = record.settings.differs(&join.settings) {
            return Err(Refusal::OtherSetting {
                field,
                group: join.job.clone(),
                given,
                is,
            });
        }
        one_end_each("connection", 1 + join.more.len(), record.settings.lanes)?;
        let place = &record.ranks[usize::from(join.rank)];
        let host = &join.endpoint.name;
        if !record.by_call && place.host != *host {
            return Err(Refusal::OtherHost {
                group: join.job.clone(),
                rank: join.rank,
                host: place.host.clone(),
                given: host.clone(),
            });
        }
        let stands = matches!(entry.present.get(&join.rank), Some(Presence::Here(_)));
        if stands && join.rejoin_of.is_none() && same_seat(record, join).is_none() {
            return Err(Refusal::RankTaken {
                group: join.job.clone(),
                rank: join.rank,
                host: place.host.clone(),
            });
        }
        Ok(())
    }

    /// A rank that comes with a new connection ends the generation that it is in.
    fn give_up_place(self: &Arc<Self>, core: &mut Core, join: &RankJoin) -> Result<(), Refusal> {
        let record = &core.collective(&join.job)?.record;
        let was_in = match &record.ranks[usize::from(join.rank)].state {
            RankState::Joined(seat) | RankState::Left(seat) => seat.generation <= record.generation,
            RankState::Expected => false,
        };
        match record.phase {
            Phase::Installing if was_in => {
                self.change_collective(core, &join.job, |r| {
                    r.set_rank(join.rank, RankState::Expected);
                })?;
                self.step_collective(core, &join.job, Event::Withdrawn, None)
            }
            Phase::Active => {
                let reason = format!(
                    "{} joins again with a new connection",
                    record.rank_name(join.rank)
                );
                // A rank that has heard of a failure before this controller is not at fault itself.
                let at_fault = join.rejoin_of.is_none().then_some(join.rank);
                let ending = Ending::failed(record, at_fault, None, reason);
                self.step_collective(core, &join.job, Event::Broke, Some(ending))
            }
            _ => Ok(()),
        }
    }

    fn take_place(
        self: &Arc<Self>,
        core: &mut Core,
        join: RankJoin,
        call: u64,
    ) -> Result<Attendance, Refusal> {
        let RankJoin {
            job,
            rank,
            size,
            endpoint,
            more,
            sq_psn,
            settings,
            lease,
            rejoin_of,
            ..
        } = join;
        let host = endpoint.name.clone();
        let seat = |generation| Seat {
            endpoint,
            more,
            sq_psn,
            lease_ms: lease.as_millis() as u64,
            generation,
        };
        // Giving up its place may have ended the group as well.
        let generation = match core.collectives.get(&job) {
            Some(entry) => {
                let generation = entry.record.generation + 1;
                self.change_collective(core, &job, |r| {
                    if let Some(record) = r.ranks.get_mut(usize::from(rank)) {
                        record.host = host;
                        record.state = RankState::Joined(seat(generation));
                    }
                })?;
                generation
            }
            None => {
                let settings = Settings::new(&settings);
                let mcst_ids = self.mcst_ids_for(core, None, settings.lanes)?;
                let hosts = vec![String::new(); size.into()];
                let mut record = CollectiveRecord::new(job.clone(), hosts, settings, mcst_ids, true);
                record.generation = rejoin_of.unwrap_or(0);
                let generation = record.generation + 1;
                if let Some(record) = record.ranks.get_mut(usize::from(rank)) {
                    record.host = host;
                    record.state = RankState::Joined(seat(generation));
                }
                self.add_collective(core, record)?;
                generation
            }
        };
        tracing::info!(group = job, rank, generation, "rank joined");
        let attendance = self.attend(core, &job, rank, call, generation)?;
        self.settle_collective(core, &job)?;
        Ok(attendance)
    }

    /// From now on this call stands for the rank.
    fn attend(
        self: &Arc<Self>,
        core: &mut Core,
        group: &str,
        rank: u16,
        call: u64,
        generation: u64,
    ) -> Result<Attendance, Refusal> {
        let Some(entry) = core.collectives.get_mut(group) else {
            return Err(Refusal::UnknownGroup { name: group.into() });
        };
        entry.present.insert(rank, Presence::Here(call));
        let changed = entry.changed.subscribe();
        self.told_collective(core, group);
        Ok(Attendance {
            shared: self.clone(),
            group: group.into(),
            rank,
            call,
            generation,
            changed,
        })
    }

    /// A rank's call has ended: its lease runs.
    fn away(self: &Arc<Self>, group: &str, rank: u16, call: u64) {
        // A controller that stops is no client that goes.
        if self.stopping() {
            return;
        }
        let mut core = self.lock();
        let Some(entry) = core.collectives.get_mut(group) else {
            return;
        };
        if entry.present.get(&rank) != Some(&Presence::Here(call)) {
            return;
        }
        tracing::info!(group, rank, "call ended: its lease runs");
        self.lease(&mut core, group, rank, call);
        self.told_collective(&core, group);
    }

    /// Lets a rank's lease run.
    fn lease(self: &Arc<Self>, core: &mut Core, group: &str, rank: u16, call: u64) {
        let Some(entry) = core.collectives.get_mut(group) else {
            return;
        };
        let Some(lease) = entry.record.seat(rank).map(|s| s.lease_ms) else {
            return;
        };
        entry.present.insert(rank, Presence::Away(call));
        self.later(group, Duration::from_millis(lease), move |shared, core, group| {
            shared.expired(core, group, rank, call);
        });
    }

    /// Lets the leases of all ranks run: their calls ended with the controller that was before this one.
    pub(crate) fn lease_all(self: &Arc<Self>, core: &mut Core, group: &str) {
        let Ok(entry) = core.collective(group) else { return };
        let ranks = 0..entry.record.ranks.len() as u16;
        for rank in ranks {
            self.lease(core, group, rank, 0);
        }
    }

    /// A rank's lease has run out.
    fn expired(self: &Arc<Self>, core: &mut Core, group: &str, rank: u16, call: u64) {
        let Some(entry) = core.collectives.get_mut(group) else {
            return;
        };
        if entry.present.get(&rank) != Some(&Presence::Away(call)) {
            return;
        }
        let Some(seat) = entry.record.seat(rank) else {
            return;
        };
        let (record, lease) = (&entry.record, Duration::from_millis(seat.lease_ms));
        let reason = format!(
            "{} is gone: its call to the controller ended, and it did not come back within {lease:?}",
            record.rank_name(rank)
        );
        tracing::warn!(group, rank, reason, "lease ran out");
        let ending = Ending::failed(record, Some(rank), None, reason);
        if let Err(error) = self.rank_gone(core, group, rank, Event::Lost, Some(ending)) {
            tracing::error!(group, rank, %error, "cannot take out a rank");
        }
    }

    /// A rank that is in is so no more; `then` where the group is active with it.
    fn rank_gone(
        self: &Arc<Self>,
        core: &mut Core,
        group: &str,
        rank: u16,
        then: Event,
        ending: Option<Ending>,
    ) -> Result<(), Refusal> {
        let record = &core.collective(group)?.record;
        let takes_part = record
            .seat(rank)
            .is_some_and(|s| s.generation <= record.generation);
        match record.phase {
            Phase::Active | Phase::Broken if takes_part => self.step_collective(core, group, then, ending),
            phase => {
                self.change_collective(core, group, |r| {
                    r.set_rank(rank, RankState::Expected);
                    if r.by_call
                        && let Some(place) = r.ranks.get_mut(usize::from(rank))
                    {
                        place.host.clear();
                    }
                })?;
                if phase == Phase::Installing && takes_part {
                    self.step_collective(core, group, Event::Withdrawn, None)
                } else {
                    self.settle_collective(core, group)
                }
            }
        }
    }

    /// A rank leaves; whether it was in.
    pub(crate) fn leave_collective(self: &Arc<Self>, group: &str, rank: u32) -> Result<bool, Refusal> {
        let mut core = self.lock();
        let record = &core.collective(group)?.record;
        let rank = u16::try_from(rank)
            .ok()
            .filter(|r| usize::from(*r) < record.ranks.len())
            .ok_or_else(|| Refusal::UnknownRank {
                group: group.into(),
                rank,
                size: record.ranks.len(),
            })?;
        let Some(seat) = record.seat(rank).cloned() else {
            return Ok(false);
        };
        tracing::info!(group, rank, "left");
        if record.phase.has_run() && seat.generation <= record.generation {
            // The rules still name it, and the others may not be done.
            self.change_collective(&mut core, group, |r| {
                r.set_rank(rank, RankState::Left(seat));
            })?;
            self.settle_collective(&mut core, group)?;
        } else {
            self.rank_gone(&mut core, group, rank, Event::Withdrawn, None)?;
        }
        Ok(true)
    }

    /// Has a collective group taken off all switches and forgotten.
    pub(crate) fn destroy_collective(self: &Arc<Self>, group: &str) -> Result<watch::Receiver<()>, Refusal> {
        let mut core = self.lock();
        let changed = core.collective(group)?.changed.subscribe();
        self.step_collective(&mut core, group, Event::Destroy, None)?;
        Ok(changed)
    }
}

/// The rank's place, where it comes with the connection that it has.
fn same_seat<'r>(record: &'r CollectiveRecord, join: &RankJoin) -> Option<&'r Seat> {
    let same = |seat: &&Seat| {
        let HostEndpoint { ip, mac, qpn, .. } = &seat.endpoint;
        let given = &join.endpoint;
        (ip, mac, qpn, seat.sq_psn) == (&given.ip, &given.mac, &given.qpn, join.sq_psn)
            && seat.endpoint.name == given.name
            && seat
                .more
                .iter()
                .map(|e| e.qpn)
                .eq(join.more.iter().map(|e| e.qpn))
            && join.rejoin_of.is_none_or(|of| of < seat.generation)
    };
    record.seat(join.rank).filter(same)
}

impl Attendance {
    /// The group as this rank sees it.
    pub(crate) fn look(&mut self) -> Seen {
        let core = self.shared.lock();
        let Ok(entry) = core.collective(&self.group) else {
            return Seen::Nothing;
        };
        let record = &entry.record;
        let stands = entry.present.get(&self.rank) == Some(&Presence::Here(self.call));
        if stands && let Some(seat) = record.seat(self.rank) {
            self.generation = seat.generation;
        }
        let seen = Box::new(view::state_for(&core, entry, self.rank, self.generation));
        let ended = |e: &Ending| e.generation >= self.generation;
        let over = record.ended.as_ref().is_some_and(ended);
        let removing = record.phase == Phase::Removing(After::Gone);
        let left = matches!(
            record.ranks.get(usize::from(self.rank)).map(|r| &r.state),
            Some(RankState::Left(_))
        );
        match () {
            () if over || removing => Seen::Last(seen),
            () if stands => Seen::State(seen),
            () if left || record.seat(self.rank).is_none() => Seen::Nothing,
            () => Seen::Superseded,
        }
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.shared.away(&self.group, self.rank, self.call);
    }
}
