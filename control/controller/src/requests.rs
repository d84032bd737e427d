//! What hosts and operators ask for.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::Ipv4Addr;
use std::sync::Arc;

use castnet_proto::convert::{GivenHost, Invalid, NewGroup, one_end_each};
use castnet_rules::{FaultKind, HostEndpoint};
use castnet_wire::{McstId, Psn};
use tokio::sync::watch;

use crate::collective::lifecycle as collective;
use crate::collective::record::RankState;
use crate::core::{Core, Shared};
use crate::error::Refusal;
use crate::fabric::HostRecord;
use crate::lifecycle::{Event, Failure, Phase};
use crate::planning::{NoPlan, plan_group};
use crate::record::{GroupRecord, JoinedBy, MemberState};
use crate::view;

/// A join that stands on a call: withdrawn when dropped before the group is active.
pub(crate) struct Join {
    shared: Arc<Shared>,
    pub(crate) group: String,
    pub(crate) host: String,
    pub(crate) call: u64,
    pub(crate) changed: watch::Receiver<()>,
}

/// A number that nobody can foresee, from the seed of the standard library's hash maps.
pub(crate) fn draw() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Shared {
    /// Creates a group; whether all members are in already.
    pub(crate) fn create(self: &Arc<Self>, group: NewGroup) -> Result<bool, Refusal> {
        let mut core = self.lock();
        core.free_name(&group.name)?;
        for (i, member) in group.members.iter().enumerate() {
            let field = format!("members[{i}].host");
            // Without a file nothing says who exists; such a host is looked for when it joins.
            if core.facts.file.is_some() && member.ends.is_empty() && !core.facts.knows_host(&member.host) {
                return Err(Refusal::UnknownHost {
                    field,
                    host: member.host.clone(),
                });
            }
            if core.facts.knows_switch(&member.host) {
                return Err(Refusal::NameOfSwitch {
                    field,
                    name: member.host.clone(),
                });
            }
            check_connection(&core, &format!("members[{i}].connection"), None, &member.ends)?;
        }
        let (mcst_id, more_lanes) = self.mcst_ids_for(&core, group.mcst_id, group.lanes)?;
        let start_psn = group.start_psn.unwrap_or_else(|| Psn::new(draw() as u32));
        let record = GroupRecord::new(group, mcst_id, more_lanes, start_psn);
        // What can be known to go wrong is refused now and not when the last member joins.
        if let Err(NoPlan::Never(failure)) = plan_group(&core, &record) {
            return Err(Refusal::Failed(failure));
        }
        for member in record.members.iter().filter_map(|m| m.state.endpoint()) {
            self.know(&mut core, member)?;
        }
        let (name, complete) = (record.name.clone(), record.all_joined());
        tracing::info!(group = name, %mcst_id, lanes = record.lanes(), "created");
        core.last_mcst_id = record.mcst_ids().last();
        self.add(&mut core, record)?;
        if complete {
            self.step(&mut core, &name, Event::AllJoined)?;
        }
        Ok(complete)
    }

    /// The McstIDs of the lanes of a group: the one that somebody wants for the first, and the next of the pool after the
    /// last that was given out, round and round.
    pub(crate) fn mcst_ids_for(
        &self,
        core: &Core,
        wanted: Option<McstId>,
        lanes: u8,
    ) -> Result<(McstId, Vec<McstId>), Refusal> {
        let wanted = wanted.map(|mcst_id| wanted_mcst_id(core, mcst_id)).transpose()?;
        let pool = self.config.mcst_pool;
        let groups = core.mcst_ids().map(|(_, mcst_id)| mcst_id);
        let hosts = core.facts.all_hosts().into_iter().filter_map(|(_, ip, _)| ip);
        let used: BTreeSet<Ipv4Addr> = groups.chain(wanted).map(|m| m.0).chain(hosts).collect();
        let last = core.last_mcst_id.map(|m| m.0);
        let (earlier, later): (Vec<_>, Vec<_>) =
            pool.hosts().partition(|ip| last.is_some_and(|last| *ip <= last));
        let free = later.into_iter().chain(earlier).filter(|ip| !used.contains(ip));
        let mut mcst_ids = wanted.into_iter().chain(free.map(McstId)).take(lanes.into());
        let first = mcst_ids.next();
        let more: Vec<McstId> = mcst_ids.collect();
        let exhausted = || Refusal::PoolExhausted {
            pool,
            size: pool.hosts().count(),
        };
        let first = first.filter(|_| more.len() + 1 == usize::from(lanes));
        Ok((first.ok_or_else(exhausted)?, more))
    }

    /// Remembers a host's addresses.
    pub(crate) fn know(&self, core: &mut Core, endpoint: &HostEndpoint) -> Result<(), Refusal> {
        let HostEndpoint { name, ip, mac, .. } = endpoint;
        let record = HostRecord {
            name: name.clone(),
            ip: *ip,
            mac: mac.0,
        };
        if core.facts.hosts.get(name) != Some(&record) {
            self.with_store(|store| store.put_host(&record))?;
            core.facts.hosts.insert(name.clone(), record);
            self.fabric_changed();
        }
        Ok(())
    }

    /// A host makes itself known.
    pub(crate) fn register(&self, host: &GivenHost) -> Result<(), Refusal> {
        let mut core = self.lock();
        let GivenHost { name, ip, mac } = host.clone();
        if core.facts.knows_switch(&name) {
            return Err(Refusal::NameOfSwitch {
                field: "name".into(),
                name,
            });
        }
        let endpoint = HostEndpoint {
            name,
            ip,
            mac,
            qpn: Default::default(),
            memory: None,
        };
        check_addresses(&core, "", &endpoint)?;
        self.know(&mut core, &endpoint)
    }

    /// A member joins.
    pub(crate) fn join(
        self: &Arc<Self>,
        group: &str,
        host: String,
        ends: Vec<HostEndpoint>,
    ) -> Result<Join, Refusal> {
        let mut core = self.lock();
        let record = &core.group(group)?.record;
        let Some((_, member)) = record.member(&host) else {
            let members = record.members.iter().map(|m| m.host.clone()).collect();
            return Err(Refusal::NotAMember {
                host,
                group: group.into(),
                members,
            });
        };
        let (state, phase) = (member.state.clone(), record.phase.clone());
        one_end_each("connection", ends.len(), record.lanes())?;
        let same = matches!(&state, MemberState::Joined { .. }) && state.ends().eq(&ends);
        let not_now = |state, way_out| Refusal::NotNow {
            field: "group",
            group: group.into(),
            state,
            way_out,
        };
        match phase {
            Phase::Registered | Phase::Failed(_) => {}
            Phase::Installing | Phase::Active | Phase::Degraded if same => {}
            Phase::Installing => {
                return Err(not_now(
                    "is being installed with another connection of this host",
                    "try again soon",
                ));
            }
            Phase::Active | Phase::Degraded => {
                let way_out = "it takes new connections when its source or all its receivers have left";
                return Err(not_now("is active with the connections that it has", way_out));
            }
            Phase::Removing(_) => return Err(not_now("is being removed", "try again soon")),
        }
        check_connection(&core, "connection", Some(group), &ends)?;
        for end in &ends {
            self.know(&mut core, end)?;
        }
        core.calls += 1;
        let call = core.calls;
        self.step(&mut core, group, Event::Joined)?;
        // A connection that was given at creation stands on no call.
        let by = match state {
            MemberState::Joined {
                by: JoinedBy::Creation,
                ..
            } if same => JoinedBy::Creation,
            _ => JoinedBy::Call(call),
        };
        let joined = MemberState::joined(ends, by).unwrap_or(MemberState::Expected);
        self.change(&mut core, group, |r| {
            r.set_member(&host, joined);
        })?;
        let entry = core.group(group)?;
        let changed = entry.changed.subscribe();
        if entry.record.phase == Phase::Registered && entry.record.all_joined() {
            self.step(&mut core, group, Event::AllJoined)?;
        }
        tracing::info!(group, host, "joined");
        Ok(Join {
            shared: self.clone(),
            group: group.into(),
            host,
            call,
            changed,
        })
    }

    fn withdraw(self: &Arc<Self>, group: &str, host: &str, call: u64) {
        // A controller that stops is no client that goes: the join is as it is stored.
        if self.stopping() {
            return;
        }
        let mut core = self.lock();
        let Ok(entry) = core.group(group) else { return };
        let stands_on_it =
            |s: &MemberState| matches!(s, MemberState::Joined { by, .. } if *by == JoinedBy::Call(call));
        let phase = entry.record.phase.clone();
        if !entry
            .record
            .member(host)
            .is_some_and(|(_, m)| stands_on_it(&m.state))
            || !matches!(phase, Phase::Registered | Phase::Installing | Phase::Removing(_))
        {
            return;
        }
        tracing::info!(group, host, "join withdrawn: its call ended");
        self.try_change(&mut core, group, |r| {
            r.set_member(host, MemberState::Expected);
        });
        self.try_step(&mut core, group, Event::Withdrawn);
    }

    /// A member leaves; whether it was in.
    pub(crate) fn leave(self: &Arc<Self>, group: &str, host: &str) -> Result<bool, Refusal> {
        let mut core = self.lock();
        let record = &core.group(group)?.record;
        let Some((_, member)) = record.member(host) else {
            let members = record.members.iter().map(|m| m.host.clone()).collect();
            return Err(Refusal::NotAMember {
                host: host.into(),
                group: group.into(),
                members,
            });
        };
        let MemberState::Joined { endpoint, more, .. } = member.state.clone() else {
            return Ok(false);
        };
        let runs = record.phase.has_run();
        let state = if runs {
            MemberState::Left { endpoint, more }
        } else {
            MemberState::Expected
        };
        tracing::info!(group, host, "left");
        self.change(&mut core, group, |r| {
            r.set_member(host, state);
        })?;
        if !runs {
            self.step(&mut core, group, Event::Withdrawn)?;
        } else if core.group(group)?.record.is_over() {
            self.step(&mut core, group, Event::Ended)?;
        }
        Ok(true)
    }

    /// Has a group taken off all switches and forgotten.
    pub(crate) fn destroy(self: &Arc<Self>, group: &str) -> Result<watch::Receiver<()>, Refusal> {
        let mut core = self.lock();
        let changed = core.group(group)?.changed.subscribe();
        self.step(&mut core, group, Event::Destroy)?;
        Ok(changed)
    }

    /// Waits until a group that is to be gone is gone, or waits for switches that cannot be reached: those.
    pub(crate) async fn gone(&self, group: &str, mut changed: watch::Receiver<()>) -> Vec<String> {
        loop {
            changed.mark_unchanged();
            {
                let core = self.lock();
                let (placed, problems, removing) = match (core.groups.get(group), core.collectives.get(group))
                {
                    (Some(e), _) => {
                        let removing = matches!(e.record.phase, Phase::Removing(_));
                        (&e.record.placed, &e.problems, removing)
                    }
                    (None, Some(e)) => {
                        let removing = matches!(e.record.phase, collective::Phase::Removing(_));
                        (&e.record.placed, &e.problems, removing)
                    }
                    (None, None) => return Vec::new(),
                };
                let tried = placed.iter().all(|s| problems.contains_key(s));
                if tried && !placed.is_empty() && removing {
                    return placed.iter().cloned().collect();
                }
            }
            if changed.changed().await.is_err() {
                return Vec::new();
            }
        }
    }

    /// Waits until a group that is being installed is active or has failed.
    pub(crate) async fn installed(&self, group: &str) -> Result<(), Failure> {
        let Some(mut changed) = self.lock().group(group).ok().map(|e| e.changed.subscribe()) else {
            return Ok(());
        };
        loop {
            changed.mark_unchanged();
            match self.lock().group(group).map(|e| e.record.phase.clone()) {
                Ok(Phase::Failed(failure)) => return Err(failure),
                Ok(Phase::Installing | Phase::Removing(_)) => {}
                Ok(_) | Err(_) => return Ok(()),
            }
            if changed.changed().await.is_err() {
                return Ok(());
            }
        }
    }
}

impl Join {
    /// The group as this member sees it, and whether that is the last news; `None` where the join stands no more.
    pub(crate) fn state(&self) -> Option<(castnet_proto::v1::GroupState, bool)> {
        let core = self.shared.lock();
        let entry = core.group(&self.group).ok()?;
        let last = matches!(
            entry.record.phase,
            Phase::Active | Phase::Degraded | Phase::Failed(_)
        );
        let (_, member) = entry.record.member(&self.host)?;
        let stands = match member.state {
            MemberState::Joined {
                by: JoinedBy::Call(call),
                ..
            } => call == self.call,
            MemberState::Joined {
                by: JoinedBy::Creation,
                ..
            } => true,
            MemberState::Expected | MemberState::Left { .. } => false,
        };
        (last || stands).then(|| (view::group_state(&core, entry, Some(&self.host)), last))
    }
}

impl Drop for Join {
    fn drop(&mut self) {
        self.shared.withdraw(&self.group, &self.host, self.call);
    }
}

/// A McstID must be nobody else's.
fn wanted_mcst_id(core: &Core, mcst_id: McstId) -> Result<McstId, Refusal> {
    if let Some(group) = core.by_mcst_id(mcst_id) {
        return Err(Refusal::McstIdTaken {
            mcst_id,
            group: group.into(),
        });
    }
    match core
        .facts
        .all_hosts()
        .into_iter()
        .find(|(_, ip, _)| *ip == Some(mcst_id.0))
    {
        Some((host, ..)) => Err(Refusal::AddressTaken {
            field: "mcst_id".into(),
            ip: mcst_id.0,
            host,
        }),
        None => Ok(mcst_id),
    }
}

/// A member's ends of its connections, one for each lane, must be its own, and in no other group.
pub(crate) fn check_connection<'e>(
    core: &Core,
    field: &str,
    group: Option<&str>,
    ends: impl IntoIterator<Item = &'e HostEndpoint>,
) -> Result<(), Refusal> {
    let members = core.groups.values().flat_map(|e| {
        let ends = e.record.members.iter().flat_map(|m| m.state.ends());
        ends.map(|end| (e.record.name.as_str(), end))
    });
    let ranks = core.collectives.values().flat_map(|e| {
        let seats = e.record.ranks.iter().filter_map(|r| match &r.state {
            RankState::Joined(seat) | RankState::Left(seat) => Some(seat),
            RankState::Expected => None,
        });
        let ends = seats.flat_map(|seat| seat.ends());
        ends.map(|end| (e.record.name.as_str(), end))
    });
    let others: Vec<(&str, &HostEndpoint)> = members.chain(ranks).collect();
    for (lane, endpoint) in ends.into_iter().enumerate() {
        let field = match lane {
            0 => field.to_owned(),
            _ => format!("{field}.more_lanes[{}]", lane - 1),
        };
        check_addresses(core, &format!("{field}."), endpoint)?;
        for (name, other) in &others {
            let own = group == Some(*name) && other.name == endpoint.name;
            if !own && (other.ip, other.qpn) == (endpoint.ip, endpoint.qpn) {
                return Err(Refusal::QueuePairTaken {
                    field: format!("{field}.qpn"),
                    ip: endpoint.ip,
                    qpn: endpoint.qpn,
                    group: (*name).into(),
                });
            }
        }
    }
    Ok(())
}

/// Addresses must be those of the topology file, and no other host's or group's.
fn check_addresses(core: &Core, prefix: &str, endpoint: &HostEndpoint) -> Result<(), Refusal> {
    let HostEndpoint {
        name: host, ip, mac, ..
    } = endpoint;
    if let Some(group) = core.by_mcst_id(McstId(*ip)) {
        let field = format!("{prefix}ip");
        return Err(Refusal::AddressIsMcstId {
            field,
            ip: *ip,
            group: group.into(),
        });
    }
    if let Some(known) = core.facts.file.as_ref().and_then(|f| f.host(host)) {
        let other = |field: &str, given: String, known: Option<String>| match known {
            Some(known) if known != given => {
                let field = format!("{prefix}{field}");
                Err(Refusal::OtherAddress {
                    field,
                    host: host.clone(),
                    given,
                    known,
                })
            }
            _ => Ok(()),
        };
        other("ip", ip.to_string(), known.ip.map(|ip| ip.to_string()))?;
        other(
            "mac",
            mac.to_string(),
            known.mac.map(|m| castnet_wire::MacAddr(m).to_string()),
        )?;
    }
    let taken = core
        .facts
        .all_hosts()
        .into_iter()
        .find(|(name, theirs, _)| name != host && *theirs == Some(*ip));
    match taken {
        Some((taken, ..)) => Err(Refusal::AddressTaken {
            field: format!("{prefix}ip"),
            ip: *ip,
            host: taken,
        }),
        None => Ok(()),
    }
}

/// A field that must be given.
pub(crate) fn missing(field: &str, expected: &'static str) -> Refusal {
    Invalid::one(field, FaultKind::Missing { expected }).into()
}
