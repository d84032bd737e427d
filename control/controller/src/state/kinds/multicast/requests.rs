use std::sync::Arc;
use std::time::Duration;

use castnet_proto::convert::{NewGroup, one_end_each};
use castnet_proto::v1;
use castnet_rules::HostEndpoint;
use castnet_wire::McstId;

use super::evict::Afterwards;
use super::late::Late;
use super::record::{Diverted, JoinedBy, MemberRecord, MemberState, Multicast, Received, Seat};
use super::view;
use crate::error::Refusal;
use crate::state::{
    After, Core, Ending, Ends, Event, Joining, Layout, NoPlan, Phase, Record, broken_links, planning,
};

/// What a member has asked for when it joins.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HowToJoin {
    pub(crate) lease: Option<Duration>,
    pub(crate) from_next_message: bool,
    pub(crate) co_works: bool,
    pub(crate) passes_on: bool,
}

impl Core {
    pub(crate) fn check_multicast(&self, group: &NewGroup) -> Result<(), Refusal> {
        self.free_name(&group.name)?;
        for (i, member) in group.members.iter().enumerate() {
            let field = format_args!("members[{i}].host");
            if member.ends.is_empty() {
                self.check_known(field, &member.host)?;
            }
            self.check_no_switch(field, &member.host)?;
            let field = format_args!("members[{i}].connection");
            self.check_connection(field, None, &member.ends)?;
        }
        Ok(())
    }

    /// Returns its McstID, and whether all members are in already.
    pub(crate) fn add_multicast(
        &mut self,
        record: Record,
        wanted: Option<McstId>,
        layout: Result<Layout, NoPlan>,
    ) -> Result<(McstId, bool), Refusal> {
        let (name, mcst_id) = (record.name.clone(), record.mcst_id);
        let complete = record.multicast().is_some_and(Multicast::all_joined);
        let layout = self.create(record, wanted, layout)?;
        self.settle(&name)?;
        // Nothing has changed since it was planned. The driver waits for a switch that has not reported yet.
        if let Some(mut layout) = layout.filter(|_| complete) {
            let generation = self.group(&name)?.record().generation;
            let rules = layout.plan.rules.values_mut();
            rules.for_each(|rule| rule.generation = generation);
            let _ = planning::place(self, &name, layout);
        }
        Ok((mcst_id, complete))
    }

    /// Returns the number of the call.
    pub(crate) fn take_in(
        &mut self,
        group: &str,
        host: &str,
        ends: Vec<HostEndpoint>,
        how: HowToJoin,
    ) -> Result<u64, Refusal> {
        self.give_up_connection(group, host, &ends)?;
        let (record, member) = self.member(group, host)?;
        let phase = record.phase;
        one_end_each("connection", ends.len(), record.lanes())?;
        // How it joined before with the same connection.
        let same = member.state.joined().filter(|seat| seat.ends.iter().eq(&ends));
        let same = same.map(|seat| (seat.by, seat.late));
        let not_now = |state: &str, way_out: &str| {
            Refusal::not_now("group", format!("group {group:?} {state}: {way_out}"))
        };
        match phase {
            Phase::Registered | Phase::Refused | Phase::Failed | Phase::Removing(After::Registered) => {}
            Phase::Installing | Phase::Active | Phase::Degraded if same.is_some() => {}
            Phase::Installing => {
                return Err(not_now(
                    "is being installed with another connection of this host",
                    "try again soon",
                ));
            }
            Phase::Active | Phase::Degraded if how.from_next_message && member.state.joined().is_none() => {}
            Phase::Active | Phase::Degraded | Phase::Broken => {
                let way_out = match self.multicast(group)?.1.settings.any_source.is_some() {
                    true => "it takes new connections when one of its members has left",
                    false => {
                        "it takes new connections when its source or all its receivers have left, and before that those of \
                         receivers that begin with the next message"
                    }
                };
                return Err(not_now("is active with the connections that it has", way_out));
            }
            Phase::Removing(_) => return Err(not_now("is being removed", "try again soon")),
        }
        if same.is_none() {
            self.journal.check_room()?;
        }
        self.check_joining(group, (host, same.is_some()), &ends)?;
        let joins_running = same.is_none() && phase.has_run();
        let turn = self.late_joins.turn(host, self.now);
        if joins_running && turn.is_none() {
            return Err(Refusal::TooManyJoins { host: host.into() });
        }
        // Who is back changes nothing: another host may have its address by now.
        let is_back = same.is_some_and(|(by, _)| by != JoinedBy::Creation);
        for end in ends.iter().filter(|_| !is_back) {
            self.know(end)?;
        }
        if let Some(turn) = turn.filter(|_| joins_running) {
            self.late_joins.take(host.to_owned(), turn, self.now);
        }
        self.calls += 1;
        let call = self.calls;
        self.step(group, Event::Joined, None)?;
        // A connection that was given at creation stands on no call.
        let by = same.filter(|(by, _)| *by == JoinedBy::Creation);
        let by = by.map_or(JoinedBy::Call(call), |(by, _)| by);
        let late = match same {
            Some((_, late)) => late.filter(|_| phase.has_run()),
            None => joins_running.then_some(Late::Waiting),
        };
        let lease_ms = how.lease.map(|l| l.as_millis() as u64);
        let lease_ms = lease_ms.filter(|_| by != JoinedBy::Creation);
        let seat = Ends::new(ends).map(|ends| Seat {
            ends,
            by,
            lease_ms,
            late,
            // Who leads it elsewhere must learn that it is gone.
            co_works: how.co_works && lease_ms.is_some(),
            passes_on: how.passes_on && lease_ms.is_some(),
        });
        match seat {
            Some(seat) if joins_running => self.join_running(group, host, seat)?,
            seat => self.set_member(group, host, seat.map_or(Joining::Expected, Joining::Joined))?,
        }
        if let Some(entry) = self.groups.get_mut(group).filter(|_| how.lease.is_some()) {
            entry.calls.insert(call);
        }
        self.settle(group)?;
        tracing::info!(group, host, "joined");
        Ok(call)
    }

    /// A member that comes with a new connection after its call has ended has lost the old one.
    fn give_up_connection(&mut self, group: &str, host: &str, ends: &[HostEndpoint]) -> Result<(), Refusal> {
        let (record, member) = self.member(group, host)?;
        if let Some(seat) = member.state.joined()
            && record.phase.has_run()
            && !seat.ends.iter().eq(ends)
            && self.is_away(group, seat)
        {
            let reason = format!("host {host} is back with a new connection");
            self.lose(group, host, reason)?;
        }
        Ok(())
    }

    /// A call has ended.
    pub(crate) fn ended(&mut self, group: &str, host: &str, call: u64) {
        if let Some(entry) = self.groups.get_mut(group) {
            entry.calls.remove(&call);
        }
        self.withdraw(group, host, call);
        if self.journal.check_open().is_ok() && self.group(group).is_ok_and(|e| e.record().phase.has_run()) {
            if self
                .multicast(group)
                .is_ok_and(|(_, kind)| kind.is_by(host, call))
            {
                self.give_up_joining(group, host, "its call ended");
            }
            self.run_lease(group, host, call);
        }
    }

    fn withdraw(&mut self, group: &str, host: &str, call: u64) {
        // The controller stops; the client has not gone. The join stays as it is stored.
        if self.journal.check_open().is_err() {
            return;
        }
        let Ok((entry, kind)) = self.multicast(group) else {
            return;
        };
        let phase = entry.record().phase;
        if !kind.is_by(host, call)
            || !matches!(phase, Phase::Registered | Phase::Installing | Phase::Removing(_))
        {
            return;
        }
        tracing::info!(group, host, "join withdrawn: its call ended");
        let withdrawn = self
            .set_member(group, host, Joining::Expected)
            .and_then(|()| self.step(group, Event::Withdrawn, None));
        if let Err(error) = withdrawn {
            tracing::error!(group, host, %error, "cannot withdraw a join");
        }
        let (group, host) = (group.to_owned(), host.to_owned());
        self.journal.retry(move |core| core.withdraw(&group, &host, call));
    }

    /// A receiver that leaves is none of those that are lost: the others go on without it, whatever the policy. The group
    /// waits for its members again if none are left, or if one leaves that it needs. `diverts`: why that one goes on from host to host.
    /// `received`: what a receiver has.
    pub(crate) fn leave(
        &mut self,
        group: &str,
        host: &str,
        diverts: Option<String>,
        received: Option<Received>,
    ) -> Result<v1::LeaveGroupResponse, Refusal> {
        let (record, member) = self.member(group, host)?;
        let runs = record.phase.has_run();
        let kind = self.multicast(group)?.1;
        let left = member.state.joined().is_some();
        // The source may have left before it: then the run is over, and no member is in.
        let over = !left && member.put_out.is_none() && member.received.is_none();
        let reports = received.is_some() && (over || left && runs);
        if left {
            let ends = kind.needs(host);
            let why = view::left(host, received.as_ref());
            let why = why.unwrap_or_else(|| format!("host {host} has left"));
            tracing::info!(group, host, "left");
            match (runs, ends) {
                (true, true) => {
                    let has_failed = match diverts {
                        Some(reason) => self.divert(group, host, reason)?,
                        None => false,
                    };
                    if !has_failed {
                        self.end_run(group, why)?;
                    }
                }
                (true, false) => self.evict_host(group, host, Afterwards::Member, &why)?,
                (false, _) => {
                    self.set_member(group, host, Joining::Expected)?;
                    self.step(group, Event::Withdrawn, None)?;
                }
            }
        }
        if reports {
            self.change_member(group, host, |member| member.received = received)?;
        }
        let diversion = view::diversion(self.multicast(group)?.1);
        Ok(v1::LeaveGroupResponse {
            left,
            diversion: diversion.filter(|diversion| diversion.hosts.iter().any(|other| other == host)),
        })
    }

    /// The run of a group ends without a member that it needs, or its last receiver.
    pub(super) fn end_run(&mut self, group: &str, why: impl Into<String>) -> Result<(), Refusal> {
        let generation = self.group(group)?.record().generation;
        let ending = Ending::failed(generation, None, None, why.into());
        self.step(group, Event::Ended, Some(ending))
    }

    /// Its members are to go on from host to host, without those that are cut off from the network: nobody reaches them there, either.
    /// Returns whether the group has failed instead, as its policy says of receivers that are lost.
    pub(super) fn divert(&mut self, group: &str, host: &str, reason: String) -> Result<bool, Refusal> {
        let (entry, kind) = self.multicast(group)?;
        let mut cut_off = broken_links::cut_off(self, entry);
        cut_off.retain(|other, _| other != host);
        let fails =
            kind.settings.fails_with_receiver || kind.settings.on_stall.is_some_and(|policy| policy.fails);
        if let Some(why) = cut_off.values().next().filter(|_| fails) {
            let ending = Ending::failed(entry.record().generation, None, None, why.clone());
            self.step(group, Event::Lost, Some(ending))?;
            return Ok(true);
        }
        if self.may_warn_of(group) {
            tracing::warn!(group, host, reason, "goes on from host to host");
        }
        self.change(group, |record| {
            let Some(kind) = record.multicast_mut() else {
                return;
            };
            let mut hosts = vec![host.to_owned()];
            let is_in = |m: &&mut Arc<MemberRecord>| m.state.joined().is_some() && m.host != host;
            for member in Arc::make_mut(&mut kind.members).iter_mut().filter(is_in) {
                match cut_off.get(&member.host) {
                    Some(why) => Arc::make_mut(member).put_out = Some(why.clone()),
                    None => hosts.push(member.host.clone()),
                }
            }
            kind.diverted = Some(Diverted { reason, hosts });
        })?;
        Ok(false)
    }

    fn set_member(&mut self, group: &str, host: &str, state: MemberState) -> Result<(), Refusal> {
        self.change_member(group, host, |member| match state {
            Joining::Joined(seat) => member.join(seat),
            state => member.state = state,
        })
    }

    pub(super) fn change_member(
        &mut self,
        group: &str,
        host: &str,
        change: impl FnOnce(&mut MemberRecord),
    ) -> Result<(), Refusal> {
        self.change(group, |r| {
            if let Some(member) = r.multicast_mut().and_then(|kind| kind.member_mut(host)) {
                change(member);
            }
        })
    }

    pub(super) fn member(&self, group: &str, host: &str) -> Result<(&Record, &MemberRecord), Refusal> {
        let (entry, kind) = self.multicast(group)?;
        match kind.member(host) {
            Some((_, member)) => Ok((entry.record(), member)),
            None => {
                let members = kind.members.iter().map(|m| m.host.as_str());
                Err(Refusal::not_a_member(host, group, members))
            }
        }
    }
}
