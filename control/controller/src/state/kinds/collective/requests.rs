use std::sync::Arc;
use std::time::Duration;

use castnet_group::CollectiveSettings;
use castnet_proto::convert::{NewCollective, RankJoin, check_given_by_rank, check_new_name, one_end_each};
use castnet_rules::HostEndpoint;

use super::record::{Collective, RankRecord, Seat};
use super::secret::Secret;
use super::view::{self, RankState};
use crate::error::Refusal;
use crate::state::access::check_size;
use crate::state::{
    After, Core, Due, Ending, Ends, Entry, Event, Joining, Kind, Leased, Phase, Record, Seen,
};

/// What a rank is in by a call.
pub(crate) struct Seated {
    pub(crate) group: String,
    pub(crate) rank: u16,
    pub(crate) call: u64,
    /// The generation that it is in or waits for, as far as it has looked.
    pub(crate) generation: u64,
    /// Whether it may see the other ranks.
    pub(crate) is_of_member: bool,
}

impl Core {
    pub(crate) fn check_collective(&self, new: &NewCollective) -> Result<(), Refusal> {
        self.free_name(&new.name)?;
        for (rank, host) in new.ranks.iter().enumerate() {
            let field = format!("ranks[{rank}]");
            self.check_known(&field, host)?;
            self.check_no_switch(&field, host)?;
        }
        for (i, switch) in new.settings.modes.keys().enumerate() {
            if !self.facts.knows_switch(switch) {
                let reason =
                    format!("there is no switch {switch:?}: neither the topology has it nor has it reported");
                return Err(Refusal::missing(format_args!("settings.modes[{i}]"), reason));
            }
        }
        Ok(())
    }

    pub(crate) fn seat_rank(&mut self, join: RankJoin, owner: &str) -> Result<Seated, Refusal> {
        let known = self.collective(&join.job).is_ok();
        if !known && join.returns_to.is_some() {
            // It may run on the switches, and a record that cannot be read may know it.
            return Err(self.unknown(&join.job));
        }
        if !known {
            self.free_name(&join.job)?;
        }
        self.check_secret(&join.job, join.rank, &Secret::new(&join.job, &join.secret))?;
        let seated = match self.collective(&join.job) {
            Ok((_, group)) => same_seat(group, &join).map(|seat| seat.generation),
            Err(_) => None,
        };
        if seated.is_none() {
            self.journal.check_room()?;
            self.check_no_switch("host", &join.endpoint.name)?;
            self.check_known("host", &join.endpoint.name)?;
        }
        let ends = std::iter::once(&join.endpoint).chain(&join.more);
        self.check_joining(&join.job, (join.endpoint.name.as_str(), seated.is_some()), ends)?;
        match join.returns_to {
            // It has no part in other generations: its queue pair knows that one's PSNs.
            Some(generation) if seated != Some(generation) => {
                // The store may be an older copy.
                if self.unexplained(&join.job).is_some() {
                    return Err(self.unknown(&join.job));
                }
                let (entry, group) = self.collective(&join.job)?;
                check_size(&join.job, group.ranks.len(), join.size)?;
                let ended = entry.record().ended.as_ref();
                if ended.is_some_and(|e| e.generation >= generation) {
                    // No rank that is in has call 0.
                    let mut seated = Seated::new(entry, (join.rank, 0), generation);
                    // A rank that is free again is anybody's: it learns that the group has failed, and nothing of its ranks.
                    seated.is_of_member = group.ranks[usize::from(join.rank)].host == join.endpoint.name;
                    return Ok(seated);
                }
                let reason = format!(
                    "group {:?} does not have this rank with this connection in it: join again",
                    join.job
                );
                return Err(Refusal::not_now("returns_to", reason));
            }
            Some(_) => {}
            None if known => self.check_join(&join)?,
            None => {
                let lanes = CollectiveSettings::new(&join.settings).lanes;
                // Who joins again was not asked for the name of a new job.
                check_new_name("job", &join.job, lanes)?;
                one_end_each("connection", 1 + join.more.len(), lanes)?;
                check_given_by_rank(&join.settings)?;
            }
        }
        // Who is back changes nothing: another host may have its address by now.
        if seated.is_none() {
            self.know(&join.endpoint)?;
        }
        if let Some(generation) = seated {
            tracing::info!(group = join.job, rank = join.rank, "back at its place");
            return self.attend(&join.job, join.rank, generation);
        }
        if known {
            self.give_up_place(&join)?;
        }
        self.take_place(join, owner)
    }

    fn check_join(&self, join: &RankJoin) -> Result<(), Refusal> {
        let (entry, group) = self.collective(&join.job)?;
        if entry.record().phase == Phase::Removing(After::Gone) {
            let reason = format!("group {:?} is being removed: try again soon", join.job);
            return Err(Refusal::not_now("job", reason));
        }
        check_size(&join.job, group.ranks.len(), join.size)?;
        let is = entry.record().rate_limit;
        if let Some((field, given, is)) = group.settings.differs(&join.settings, is) {
            let reason = format!(
                "group {:?} has {is}, not {given}: all ranks must ask for the same, or leave it open",
                join.job
            );
            return Err(Refusal::wrong(field, reason));
        }
        one_end_each("connection", 1 + join.more.len(), group.settings.lanes)?;
        let mut ends = std::iter::once(&join.endpoint).chain(&join.more);
        if let Some(end) = ends.find(|end| self.is_of_another_rank(group, join, end)) {
            return Err(Refusal::queue_pair_taken("connection.qpn", end, &join.job));
        }
        let place = &group.ranks[usize::from(join.rank)];
        let host = &join.endpoint.name;
        if !group.by_call && place.host != *host {
            let (rank, group) = (join.rank, &join.job);
            let reason = format!(
                "rank {rank} of group {group:?} is host {:?}, not {host:?}",
                place.host
            );
            return Err(Refusal::wrong("host", reason));
        }
        let is_open = entry.present.contains_key(&join.rank) && group.seat(join.rank).is_some();
        if is_open && join.rejoin_of.is_none() && same_seat(group, join).is_none() {
            let reason = format!(
                "rank {} of group {:?} is in already, by an open call from host {:?}",
                join.rank, join.job, place.host
            );
            return Err(Refusal::taken("rank", reason));
        }
        Ok(())
    }

    fn is_of_another_rank(&self, group: &Collective, join: &RankJoin, end: &HostEndpoint) -> bool {
        let has_it = |rank: &RankRecord| {
            let mut ends = rank.state.seat().into_iter().flat_map(|seat| seat.ends.iter());
            ends.any(|other| (other.ip, other.qpn) == (end.ip, end.qpn))
        };
        let ranks = (0..).zip(&group.ranks);
        // The walk only where some rank of this host has it.
        self.groups.has_queue_pair(end, &join.job)
            && ranks
                .into_iter()
                .any(|(rank, of)| rank != join.rank && has_it(of))
    }

    /// A rank with a new connection ends the generation that it is in.
    fn give_up_place(&mut self, join: &RankJoin) -> Result<(), Refusal> {
        let (entry, group) = self.collective(&join.job)?;
        let generation = entry.record().generation;
        let seat = group.ranks[usize::from(join.rank)].state.seat();
        let was_in = seat.is_some_and(|s| s.generation <= generation);
        match entry.record().phase {
            Phase::Installing if was_in => {
                self.change_rank(&join.job, join.rank, |rank| rank.state = Joining::Expected)?;
                self.step(&join.job, Event::Withdrawn, None)
            }
            Phase::Active => {
                let reason = format!("{} joins again with a new connection", group.rank_name(join.rank));
                // A rank that detected a failure before this controller is not at fault itself.
                let at_fault = join.rejoin_of.is_none().then_some(join.rank);
                let ending = Ending::failed(generation, at_fault, None, reason);
                self.step(&join.job, Event::Broke, Some(ending))
            }
            _ => Ok(()),
        }
    }

    fn take_place(&mut self, join: RankJoin, owner: &str) -> Result<Seated, Refusal> {
        let (job, rank) = (&join.job, join.rank);
        // Giving up its place may have ended the group as well.
        let known = self.collective(job).ok();
        let before = known.map_or(join.rejoin_of.unwrap_or(0), |(entry, _)| {
            entry.record().generation
        });
        let generation = before + 1;
        let secret = Secret::new(job, &join.secret);
        let has_secret = known.is_some_and(|(_, group)| group.secret.same(&secret));
        let sit = |place: &mut RankRecord| {
            place.host = join.endpoint.name.clone();
            place.state = Joining::Joined(Seat {
                ends: Ends {
                    endpoint: join.endpoint,
                    more: join.more,
                },
                sq_psn: join.sq_psn,
                lease_ms: join.lease.as_millis() as u64,
                generation,
            });
        };
        if known.is_some() {
            if !has_secret {
                self.change(job, |r| {
                    if let Kind::Collective(kind) = &mut r.kind {
                        kind.secret = secret;
                    }
                })?;
            }
            self.change_rank(job, rank, sit)?;
        } else {
            let settings = CollectiveSettings::new(&join.settings);
            let mcst_ids = self.mcst_ids_for(None, settings.lanes)?;
            let mut group = Collective::new(vec![String::new(); join.size.into()], settings, true);
            group.secret = secret;
            sit(Arc::make_mut(&mut group.ranks[usize::from(rank)]));
            let mut record = Record::new(job.clone(), mcst_ids, Kind::Collective(group));
            record.generation = before;
            (record.owner, record.rate_limit) = (owner.into(), join.settings.rate_limit);
            self.add(record)?;
        }
        tracing::info!(group = job, rank, generation, "rank joined");
        let seated = self.attend(job, rank, generation)?;
        self.settle(job)?;
        Ok(seated)
    }

    fn attend(&mut self, group: &str, rank: u16, generation: u64) -> Result<Seated, Refusal> {
        self.calls += 1;
        let call = self.calls;
        let Some(entry) = self.groups.get_mut(group) else {
            return Err(Refusal::UnknownGroup { name: group.into() });
        };
        entry.present.insert(rank, call);
        let seated = Seated::new(self.group(group)?, (rank, call), generation);
        self.notify_soon(group);
        Ok(seated)
    }

    pub(crate) fn away(&mut self, group: &str, rank: u16, call: u64) {
        let here = |e: &Entry| e.present.get(&rank) == Some(&call);
        if self.groups.get(group).is_some_and(here) {
            tracing::info!(group, rank, "call ended: its lease runs");
            self.lease(group, rank);
            self.notify_soon(group);
        }
    }

    fn lease(&mut self, group: &str, rank: u16) {
        let seat = self.collective(group).ok().and_then(|(_, g)| g.seat(rank));
        let lease = seat.map(|s| Duration::from_millis(s.lease_ms));
        if let Some(entry) = self.groups.get_mut(group) {
            entry.present.remove(&rank);
        }
        if let Some(lease) = lease {
            self.set_timer(group, Due::Lease(Leased::Rank(rank)), lease);
        }
    }

    pub(crate) fn lease_absent(&mut self, group: &str) {
        let Ok((entry, ranks)) = self.collective(group) else {
            return;
        };
        let absent = (0..ranks.ranks.len() as u16).filter(|rank| !entry.present.contains_key(rank));
        for rank in absent.collect::<Vec<_>>() {
            self.lease(group, rank);
        }
    }

    pub(crate) fn rank_lease_over(&mut self, name: &str, rank: u16) {
        let Ok((entry, group)) = self.collective(name) else {
            return;
        };
        if entry.present.contains_key(&rank) {
            return;
        }
        let Some(seat) = group.seat(rank) else {
            return;
        };
        let lease = Duration::from_millis(seat.lease_ms);
        let reason = format!(
            "{} is gone: its call to the controller ended, and it did not come back within {lease:?}",
            group.rank_name(rank)
        );
        let generation = entry.record().generation;
        let runs = entry.record().phase.has_run() && seat.generation <= generation;
        match runs && self.may_warn_of(name) {
            true => tracing::warn!(group = name, rank, reason, "lease ran out"),
            // A host that joins and goes again and again does not fill the log.
            false => tracing::info!(group = name, rank, reason, "lease ran out"),
        }
        let ending = Ending::failed(generation, Some(rank), None, reason);
        if let Err(error) = self.rank_gone(name, rank, Event::Lost, Some(ending)) {
            tracing::error!(group = name, rank, %error, "cannot take out a rank");
        }
    }

    /// A rank is no longer in; `then` is the event if the group is active with it.
    fn rank_gone(
        &mut self,
        group: &str,
        rank: u16,
        then: Event,
        ending: Option<Ending>,
    ) -> Result<(), Refusal> {
        let (entry, ranks) = self.collective(group)?;
        let (generation, phase) = (entry.record().generation, entry.record().phase);
        let takes_part = ranks.seat(rank).is_some_and(|s| s.generation <= generation);
        match phase {
            Phase::Active | Phase::Broken if takes_part => self.step(group, then, ending),
            _ => {
                let by_call = ranks.by_call;
                self.change_rank(group, rank, |place| {
                    place.state = Joining::Expected;
                    if by_call {
                        place.host.clear();
                    }
                })?;
                if phase == Phase::Installing && takes_part {
                    self.step(group, Event::Withdrawn, None)
                } else {
                    self.settle(group)
                }
            }
        }
    }

    /// Puts out a rank, by its number or the name of its host: the group fails at all ranks, with its name.
    pub(crate) fn evict_rank(&mut self, group: &str, member: &str) -> Result<(), Refusal> {
        let (entry, ranks) = self.collective(group)?;
        let rank = self.rank_named(group, member)?;
        if ranks.seat(rank).is_none() {
            let reason = format!("group {group:?} waits for this rank: there is none to evict");
            return Err(Refusal::not_now("member", reason));
        }
        let reason = format!("{} was evicted by an operator", ranks.rank_name(rank));
        let ending = Ending::failed(entry.record().generation, Some(rank), None, reason);
        self.rank_gone(group, rank, Event::Lost, Some(ending))
    }

    /// By its number or the name of its host, which may be a number, too.
    fn rank_named(&self, group: &str, member: &str) -> Result<u16, Refusal> {
        let (_, ranks) = self.collective(group)?;
        let Ok(number) = member.parse() else {
            return ranks.only_rank_at(group, member);
        };
        match (self.rank_of(group, number), ranks.rank_at(member)) {
            (Ok(rank), Some(other)) if rank != other => {
                let reason = format!(
                    "group {group:?} has this rank, and a host of this name that has another rank: give the name of the rank's host, \
                     or the rank of the host"
                );
                Err(Refusal::not_now("member", reason))
            }
            (Err(_), Some(_)) => ranks.only_rank_at(group, member),
            (rank, _) => rank,
        }
    }

    fn rank_of(&self, group: &str, rank: u32) -> Result<u16, Refusal> {
        let size = self.collective(group)?.1.ranks.len();
        let known = u16::try_from(rank).ok().filter(|r| usize::from(*r) < size);
        known.ok_or_else(|| {
            let last = size.saturating_sub(1);
            Refusal::missing(
                "rank",
                format!("group {group:?} has ranks 0 to {last}, no rank {rank}"),
            )
        })
    }

    pub(crate) fn leave_collective(&mut self, group: &str, rank: u32) -> Result<bool, Refusal> {
        let rank = self.rank_of(group, rank)?;
        let (entry, ranks) = self.collective(group)?;
        let Some(seat) = ranks.seat(rank).cloned() else {
            return Ok(false);
        };
        let record = entry.record();
        tracing::info!(group, rank, "left");
        if record.phase.has_run() && seat.generation <= record.generation {
            // The rules still name it, and the others may not be done.
            self.change_rank(group, rank, |place| place.state = Joining::Left(seat))?;
            self.settle(group)?;
        } else {
            self.rank_gone(group, rank, Event::Withdrawn, None)?;
        }
        Ok(true)
    }

    fn change_rank(
        &mut self,
        group: &str,
        rank: u16,
        change: impl FnOnce(&mut RankRecord),
    ) -> Result<(), Refusal> {
        self.change(group, |r| {
            if let Kind::Collective(kind) = &mut r.kind {
                change(Arc::make_mut(&mut kind.ranks[usize::from(rank)]));
            }
        })
    }
}

impl Seated {
    fn new(entry: &Entry, (rank, call): (u16, u64), generation: u64) -> Self {
        Self {
            group: entry.record().name.clone(),
            rank,
            call,
            generation,
            is_of_member: true,
        }
    }

    /// What it sees, and the generation that it is in or waits for.
    pub(crate) fn seen(&self, core: &Core) -> (Seen<RankState>, u64) {
        let Ok((entry, group)) = core.collective(&self.group) else {
            return (Seen::Nothing, self.generation);
        };
        let (rank, record) = (self.rank, entry.record());
        let seat = group.seat(rank);
        let called = entry.present.get(&rank) == Some(&self.call);
        let own = seat.filter(|_| called);
        let generation = own.map_or(self.generation, |s| s.generation);
        let state = || Box::new(view::state_for(group, core, entry, rank, generation));
        let over = record.ended.as_ref().is_some_and(|e| e.generation >= generation);
        let seen = if over || record.phase == Phase::Removing(After::Gone) {
            Seen::Last(state())
        } else if own.is_some() {
            Seen::State(state())
        } else if seat.is_none() {
            Seen::Nothing
        } else {
            Seen::Superseded(format!(
                "rank {rank} of group {:?} is in by another call",
                self.group
            ))
        };
        (seen, generation)
    }
}

/// The rank's seat, if it comes with the same connection.
fn same_seat<'r>(group: &'r Collective, join: &RankJoin) -> Option<&'r Seat> {
    let same = |seat: &&Seat| {
        let HostEndpoint { ip, mac, qpn, .. } = &seat.ends.endpoint;
        let given = &join.endpoint;
        (ip, mac, qpn, seat.sq_psn) == (&given.ip, &given.mac, &given.qpn, join.sq_psn)
            && seat.ends.endpoint.name == given.name
            && seat
                .ends
                .more
                .iter()
                .map(|e| e.qpn)
                .eq(join.more.iter().map(|e| e.qpn))
            && join.rejoin_of.is_none_or(|of| of < seat.generation)
    };
    group.seat(join.rank).filter(same)
}

#[cfg(test)]
mod tests {
    use crate::state::core::tests::{core, join};

    /// An operator who meant the host "1" put out rank 1.
    #[test]
    fn a_host_whose_name_is_a_number_is_not_taken_for_a_rank() {
        let mut core = core(|_| {});
        for (rank, host) in [(0, "1"), (1, "h1"), (2, "2"), (3, "900")] {
            let mut join = join("job", rank, 5, "");
            join.endpoint.name = host.into();
            core.seat_rank(join, "owner").map(drop).unwrap();
        }
        let named = |member: &str| core.rank_named("job", member).map_err(|why| why.to_string());
        assert!(named("1").unwrap_err().contains("a host of this name"));
        assert_eq!(
            ["0", "h1", "2", "3", "900"].map(|m| named(m).unwrap()),
            [0, 1, 2, 3, 3]
        );
        assert!(named("7").is_err() && named("h7").is_err());
    }
}
