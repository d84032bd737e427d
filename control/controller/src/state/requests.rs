use std::fmt::Display;

use castnet_rules::HostEndpoint;
use castnet_wire::{MacAddr, McstId};

use crate::error::Refusal;
use crate::state::foresee::Wanted;
use crate::state::kinds::multicast::evict::Afterwards;
use crate::state::written_off::WrittenOff;
use crate::state::{Core, Event, Kind, Layout, NoPlan, Record};

pub(crate) enum Seen<S> {
    /// More may follow.
    State(Box<S>),
    /// No more follow.
    Last(Box<S>),
    /// It has left, or the group is gone.
    Nothing,
    /// The call no longer stands for the member; with the reason.
    Superseded(String),
}

impl Core {
    /// McstIDs of the lanes of a group: `wanted` for the first, else the next free ones of the pool after the last one
    /// given out, cyclically.
    pub(crate) fn mcst_ids_for(
        &self,
        wanted: Option<McstId>,
        lanes: u8,
    ) -> Result<(McstId, Vec<McstId>), Refusal> {
        if let Some(mcst_id) = wanted {
            self.check_mcst_id(mcst_id)?;
        }
        let pool = self.mcst_pool;
        let free = self.free_mcst_ids(pool).filter(|m| Some(*m) != wanted);
        let mut mcst_ids = wanted.into_iter().chain(free).take(lanes.into());
        let first = mcst_ids.next();
        let more: Vec<McstId> = mcst_ids.collect();
        let first = first.filter(|_| more.len() + 1 == usize::from(lanes));
        let exhausted = || {
            let size = pool.hosts().count();
            let reason = format!("the pool {pool} is used up: all {size} McstIDs are in use");
            Refusal::no_room("mcst_id", reason)
        };
        Ok((first.ok_or_else(exhausted)?, more))
    }

    /// Refuses unknown hosts. Without a file any host may exist: it is looked for when it joins.
    pub(crate) fn check_known(&self, field: impl Display, host: &str) -> Result<(), Refusal> {
        if self.facts.file.is_some() && !self.facts.knows_host(host) {
            let reason =
                format!("there is no host {host:?}: neither the topology has it nor has it been registered");
            return Err(Refusal::missing(field, reason));
        }
        Ok(())
    }

    pub(crate) fn check_no_switch(&self, field: impl Display, host: &str) -> Result<(), Refusal> {
        if self.facts.knows_switch(host) {
            return Err(Refusal::taken(field, format!("{host:?} is a switch")));
        }
        Ok(())
    }

    fn check_mcst_id(&self, mcst_id: McstId) -> Result<(), Refusal> {
        if let Some(entry) = self.groups.by_mcst_id(mcst_id) {
            let reason = format!("{mcst_id} is the McstID of group {:?}", entry.record().name);
            return Err(Refusal::taken("mcst_id", reason));
        }
        if let Some(WrittenOff { group, switches }) = self.written_off.get(&mcst_id) {
            let switches: Vec<&str> = switches.iter().map(String::as_str).collect();
            let reason = format!(
                "{mcst_id} was the McstID of group {group:?}, which was destroyed by force: switch {} may still have it",
                switches.join(", ")
            );
            return Err(Refusal::taken("mcst_id", reason));
        }
        if let Some(switch) = self.others.switch_with(mcst_id) {
            let reason = format!(
                "{mcst_id} is the McstID of a group on switch {switch} that this controller does not have (of a rule file, an operator or \
                 another controller): give another one, or none"
            );
            return Err(Refusal::taken("mcst_id", reason));
        }
        match self.facts.host_of(mcst_id.0, None) {
            Some(host) => Err(Refusal::address_taken("mcst_id", mcst_id.0, host)),
            None => Ok(()),
        }
    }

    /// A member's ends of its connections, one per lane, must be its own and in no other group.
    pub(crate) fn check_connection<'e>(
        &self,
        field: impl Display,
        group: Option<&str>,
        ends: impl IntoIterator<Item = &'e HostEndpoint>,
    ) -> Result<(), Refusal> {
        for (lane, endpoint) in ends.into_iter().enumerate() {
            let more = lane.checked_sub(1).map(|lane| format!(".more_lanes[{lane}]"));
            let field = format_args!("{field}{}", more.as_deref().unwrap_or_default());
            self.check_addresses(format_args!("{field}."), endpoint)?;
            if let Some(other) = self.groups.of_queue_pair(endpoint, group) {
                let field = format_args!("{field}.qpn");
                return Err(Refusal::queue_pair_taken(field, endpoint, other));
            }
        }
        Ok(())
    }

    /// As [`Core::check_connection`] for who joins `group`. Who is back with the connection that it has was checked when it came: a slip in a
    /// topology file that was taken over since puts nobody out.
    pub(crate) fn check_joining<'e>(
        &mut self,
        group: &str,
        (host, is_back): (&str, bool),
        ends: impl IntoIterator<Item = &'e HostEndpoint>,
    ) -> Result<(), Refusal> {
        match self.check_connection("connection", Some(group), ends) {
            Err(refusal) if is_back => {
                if self.may_warn(host) {
                    tracing::warn!(group, %refusal, "a member is back with a connection that it could not join with now");
                }
                Ok(())
            }
            checked => checked,
        }
    }

    /// Addresses must be those of the topology file, and of no other host or group.
    fn check_addresses(&self, prefix: impl Display, endpoint: &HostEndpoint) -> Result<(), Refusal> {
        let HostEndpoint {
            name: host, ip, mac, ..
        } = endpoint;
        if self.groups.by_mcst_id(McstId(*ip)).is_some() {
            // Not of which group: a host may not know it.
            let reason = format!("{ip} is the McstID of a group, so no host can have it");
            return Err(Refusal::wrong(format_args!("{prefix}ip"), reason));
        }
        if let Some(known) = self.facts.file.as_ref().and_then(|f| f.host(host)) {
            let other = |field: &str, given: &dyn Display, known: &dyn Display| {
                let reason = format!("the topology says that host {host:?} has {known}, not {given}");
                Refusal::wrong(format_args!("{prefix}{field}"), reason)
            };
            if let Some(known) = known.ip.filter(|known| known != ip) {
                return Err(other("ip", ip, &known));
            }
            if let Some(known) = known.mac.map(MacAddr).filter(|known| known != mac) {
                return Err(other("mac", mac, &known));
            }
        }
        match self.facts.host_of(*ip, Some(host)) {
            Some(taken) if self.gives_way(taken, *mac) => Ok(()),
            Some(taken) => Err(Refusal::address_taken(format_args!("{prefix}ip"), *ip, taken)),
            None => Ok(()),
        }
    }

    /// A group that a client wants. Its McstIDs are not given to others at once, even if it is never added.
    pub(crate) fn draw_up(&mut self, wanted: &Wanted, owner: &str) -> Result<Record, Refusal> {
        let record = wanted.record(self, owner)?;
        if let Some(last) = record.mcst_ids().last() {
            let pool = self.mcst_pool;
            self.last_mcst_ids.insert(pool, last);
        }
        Ok(record)
    }

    /// Adds a group for a request to create it. What is known to be impossible is refused now, not when the last member
    /// joins. Returns its layout, if known. If its tree passes routers, it gets McstIDs at each switch; then a `wanted`
    /// one is refused.
    pub(crate) fn create(
        &mut self,
        mut record: Record,
        wanted: Option<McstId>,
        layout: Result<Layout, NoPlan>,
    ) -> Result<Option<Layout>, Refusal> {
        let layout = match layout {
            Ok(layout) => Some(layout),
            Err(NoPlan::NotYet(_)) => None,
            Err(NoPlan::Never(failure)) => return Err(Refusal::Failed(failure)),
        };
        let own = layout.as_ref().map(|layout| layout.new_mcst_ids.clone());
        record.own_mcst_ids = own.unwrap_or_default();
        let has_own = !record.own_mcst_ids.is_empty();
        if let Some(mcst_id) = wanted.filter(|_| has_own) {
            return Err(Refusal::McstIdNotOwn { mcst_id });
        }
        // All or none.
        let parties = record.kind.behaviour().parties();
        let ends = || parties.iter().filter_map(|party| party.ends);
        ends().try_for_each(|ends| self.host_change(&ends.endpoint).map(drop))?;
        ends().try_for_each(|ends| self.know(&ends.endpoint))?;
        drop(parties);
        let name = record.name.clone();
        self.add(record)?;
        if let Some(entry) = self.groups.get_mut(&name).filter(|_| has_own) {
            // Members get their McstIDs before the installation.
            entry.foreseen = layout.as_ref().map(|layout| layout.plan.clone());
        }
        Ok(layout)
    }

    pub(crate) fn register(&mut self, host: &HostEndpoint) -> Result<(), Refusal> {
        self.check_no_switch("name", &host.name)?;
        self.check_addresses("", host)?;
        self.know(host)
    }

    /// Puts a member out of a group of any kind.
    pub(crate) fn evict(&mut self, group: &str, member: &str) -> Result<(), Refusal> {
        match self.group(group)?.record().kind {
            Kind::Multicast(_) => {
                let why = format!("an operator has put host {member} out");
                self.evict_host(group, member, Afterwards::Gone, &why)?;
            }
            Kind::Collective(_) => self.evict_rank(group, member)?,
        }
        tracing::info!(group, member, "evicted");
        Ok(())
    }

    /// Starts the removal of a group from all switches; then it is forgotten.
    pub(crate) fn destroy(&mut self, group: &str) -> Result<(), Refusal> {
        self.step(group, Event::Destroy, None)
    }
}
