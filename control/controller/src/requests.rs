use std::fmt::Display;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use castnet_proto::convert::Invalid;
use castnet_rules::HostEndpoint;
use castnet_wire::{MacAddr, McstId};
use tokio::sync::watch;

use crate::core::{Core, Shared};
use crate::error::Refusal;
use crate::fabric::HostRecord;
use crate::lifecycle::{Event, Phase};
use crate::planning::{NoPlan, plan_group};
use crate::record::{Plan, Record};

/// An unpredictable number, from the seed of the standard library's hash maps.
pub(crate) fn draw() -> u64 {
    RandomState::new().build_hasher().finish()
}

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

/// A member's call that stands while it waits for changes of its group.
pub(crate) trait StandingCall: Send + 'static {
    type State: Clone + PartialEq + Send + 'static;

    /// Notified at each change of the group.
    fn changed(&mut self) -> &mut watch::Receiver<()>;

    fn look(&mut self) -> impl Future<Output = Result<Seen<Self::State>, Refusal>> + Send;
}

impl Shared {
    /// Checks a new group: what is known to be impossible is refused now, not when the last member joins. Returns its
    /// layout, if known. If its tree passes routers, it gets McstIDs at each switch; then a `wanted` one is refused.
    pub(crate) fn check_new(
        &self,
        core: &Core,
        record: &mut Record,
        wanted: Option<McstId>,
    ) -> Result<Option<Plan>, Refusal> {
        let plan = match plan_group(core, record) {
            Ok(plan) => plan,
            Err(NoPlan::NotYet(_)) => return Ok(None),
            Err(NoPlan::Never(failure)) => return Err(Refusal::Failed(failure)),
        };
        record.own_mcst_ids = core.new_mcst_ids(record, &plan);
        match wanted.filter(|_| !record.own_mcst_ids.is_empty()) {
            Some(mcst_id) => Err(Refusal::McstIdNotOwn { mcst_id }),
            None => Ok(Some(plan)),
        }
    }

    /// McstIDs of the lanes of a group: `wanted` for the first, else the next free ones of the pool after the last one
    /// given out, cyclically.
    pub(crate) fn mcst_ids_for(
        &self,
        core: &Core,
        wanted: Option<McstId>,
        lanes: u8,
    ) -> Result<(McstId, Vec<McstId>), Refusal> {
        let wanted = wanted.map(|mcst_id| wanted_mcst_id(core, mcst_id)).transpose()?;
        let pool = core.mcst_pool;
        let free = core.free_mcst_ids(pool).filter(|m| Some(*m) != wanted);
        let mut mcst_ids = wanted.into_iter().chain(free).take(lanes.into());
        let first = mcst_ids.next();
        let more: Vec<McstId> = mcst_ids.collect();
        let exhausted = || Refusal::PoolExhausted {
            pool,
            size: pool.hosts().count(),
        };
        let first = first.filter(|_| more.len() + 1 == usize::from(lanes));
        Ok((first.ok_or_else(exhausted)?, more))
    }

    pub(crate) fn know(&self, core: &mut Core, endpoint: &HostEndpoint) -> Result<(), Refusal> {
        let HostEndpoint { name, ip, mac, .. } = endpoint;
        let same = |known: &HostRecord| (known.ip, known.mac) == (*ip, mac.0);
        if !core.facts.hosts.get(name).is_some_and(same) {
            let record = HostRecord {
                name: name.clone(),
                ip: *ip,
                mac: mac.0,
            };
            core.journal.check_open()?;
            core.journal
                .stage_host(&record, core.facts.hosts.get(name).cloned());
            core.facts.know(record);
            self.fabric_changed();
        }
        Ok(())
    }

    pub(crate) fn register(&self, host: &HostEndpoint) -> Result<(), Refusal> {
        let mut core = self.lock();
        check_no_switch(&core, "name", &host.name)?;
        check_addresses(&core, "", host)?;
        self.know(&mut core, host)
    }

    /// Starts the removal of a group from all switches; then it is forgotten.
    pub(crate) fn destroy(self: &Arc<Self>, group: &str) -> Result<watch::Receiver<()>, Refusal> {
        let mut core = self.lock();
        let changed = core.group(group)?.changed.subscribe();
        self.step(&mut core, group, Event::Destroy, None)?;
        Ok(changed)
    }

    /// Waits until a group that is being destroyed is gone or waits for unreachable switches; returns those.
    pub(crate) async fn gone(
        &self,
        group: &str,
        changed: watch::Receiver<()>,
    ) -> Result<Vec<String>, Refusal> {
        let pending = |core: &Core| {
            let Some(entry) = core.groups.get(group) else {
                return Some(Vec::new());
            };
            let placed = &entry.record().placed;
            let tried = placed.iter().all(|s| entry.problems.contains_key(s));
            let removing = matches!(entry.record().phase, Phase::Removing(_));
            (tried && !placed.is_empty() && removing).then(|| placed.iter().cloned().collect())
        };
        Ok(self.find(changed, pending).await?.unwrap_or_default())
    }
}

/// Refuses unknown hosts. Without a file any host may exist: it is looked for when it joins.
pub(crate) fn check_known(core: &Core, field: impl Display, host: &str) -> Result<(), Refusal> {
    if core.facts.file.is_some() && !core.facts.knows_host(host) {
        let (field, host) = (field.to_string(), host.into());
        return Err(Refusal::UnknownHost { field, host });
    }
    Ok(())
}

pub(crate) fn check_no_switch(core: &Core, field: impl Display, host: &str) -> Result<(), Refusal> {
    if core.facts.knows_switch(host) {
        let (field, name) = (field.to_string(), host.into());
        return Err(Refusal::NameOfSwitch { field, name });
    }
    Ok(())
}

fn wanted_mcst_id(core: &Core, mcst_id: McstId) -> Result<McstId, Refusal> {
    if let Some(entry) = core.groups.by_mcst_id(mcst_id) {
        let group = entry.record().name.clone();
        return Err(Refusal::McstIdTaken { mcst_id, group });
    }
    match core.facts.host_of(mcst_id.0, None) {
        Some(host) => Err(Refusal::AddressTaken {
            field: "mcst_id".into(),
            ip: mcst_id.0,
            host: host.into(),
        }),
        None => Ok(mcst_id),
    }
}

/// A member's ends of its connections, one per lane, must be its own and in no other group.
pub(crate) fn check_connection<'e>(
    core: &Core,
    field: impl Display,
    group: Option<&str>,
    ends: impl IntoIterator<Item = &'e HostEndpoint>,
) -> Result<(), Refusal> {
    for (lane, endpoint) in ends.into_iter().enumerate() {
        let more = lane.checked_sub(1).map(|lane| format!(".more_lanes[{lane}]"));
        let field = format_args!("{field}{}", more.as_deref().unwrap_or_default());
        check_addresses(core, format_args!("{field}."), endpoint)?;
        if let Some(other) = core.groups.of_queue_pair(endpoint, group) {
            return Err(Refusal::QueuePairTaken {
                field: format!("{field}.qpn"),
                ip: endpoint.ip,
                qpn: endpoint.qpn,
                group: other.into(),
            });
        }
    }
    Ok(())
}

/// Addresses must be those of the topology file, and of no other host or group.
fn check_addresses(core: &Core, prefix: impl Display, endpoint: &HostEndpoint) -> Result<(), Refusal> {
    let HostEndpoint {
        name: host, ip, mac, ..
    } = endpoint;
    if let Some(entry) = core.groups.by_mcst_id(McstId(*ip)) {
        let field = format!("{prefix}ip");
        return Err(Refusal::AddressIsMcstId {
            field,
            ip: *ip,
            group: entry.record().name.clone(),
        });
    }
    if let Some(known) = core.facts.file.as_ref().and_then(|f| f.host(host)) {
        let other = |field, given: &dyn Display, known: &dyn Display| Refusal::OtherAddress {
            field: format!("{prefix}{field}"),
            host: host.clone(),
            given: given.to_string(),
            known: known.to_string(),
        };
        if let Some(known) = known.ip.filter(|known| known != ip) {
            return Err(other("ip", ip, &known));
        }
        if let Some(known) = known.mac.map(MacAddr).filter(|known| known != mac) {
            return Err(other("mac", mac, &known));
        }
    }
    match core.facts.host_of(*ip, Some(host)) {
        Some(taken) => Err(Refusal::AddressTaken {
            field: format!("{prefix}ip"),
            ip: *ip,
            host: taken.into(),
        }),
        None => Ok(()),
    }
}

pub(crate) fn missing(field: &str, expected: &'static str) -> Refusal {
    Invalid::missing(field, expected).into()
}
