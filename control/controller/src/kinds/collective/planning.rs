//! From a collective group to a placement.

use castnet_planner::{CollectiveRequest, PlaceError, RankMember, Shortage, place};
use castnet_wire::Qpn;

use super::record::{Collective, RankState};
use crate::core::Core;
use crate::detour::Detours;
use crate::lifecycle::{Cause, Failure};
use crate::planning::{NoPlan, load, locate, stand_in, tree_switches};
use crate::record::{Plan, Record};

/// Places a group on the fabric as it is known now, beside the groups that are laid out already.
///
/// A rank that has not joined yet is planned for with a stand-in for its queue pair.
pub(crate) fn plan(group: &Collective, core: &Core, record: &Record) -> Result<Plan, NoPlan> {
    locate(core, record)?;
    let topology = core.facts.topology();
    let load = load(core, &topology, record);
    let mut rooms = core.rooms(record);
    let none = Detours::default();
    let detours = core.groups.get(&record.name).map_or(&none, |e| &e.detours);
    detours.apply(&mut rooms);
    let request = CollectiveRequest {
        mcst_ids: core.first_offers(record),
        ..request(group, record)
    };
    let plan = place(&topology, &load, &rooms, &request).map_err(|error| {
        let cause = match error {
            PlaceError::NoRoom { .. } => Cause::NoRoom,
            _ => Cause::Unfit,
        };
        let failure = Failure {
            cause,
            field: error.field(),
            reason: match &error {
                PlaceError::NoRoom { shortages } => told(shortages, detours),
                _ => error.reason(),
            },
        };
        // Reports trickle in; a file is complete from the start.
        match error {
            PlaceError::NoMcstId { switch } => NoPlan::Never(core.no_mcst_id(record, &switch)),
            PlaceError::NoPath { .. } if core.facts.file.is_none() && detours.is_empty() => {
                NoPlan::NotYet(failure)
            }
            _ => NoPlan::Never(detours.end(failure)),
        }
    })?;
    Ok(Plan {
        tree: tree_switches(&plan.tree),
        rules: plan.rules,
    })
}

/// What switches lack: in their own words, where they have said so.
fn told(shortages: &[Shortage], detours: &Detours) -> String {
    let each = shortages
        .iter()
        .map(|s| detours.of(&s.switch).unwrap_or_else(|| s.to_string()));
    each.collect::<Vec<_>>().join("; ")
}

fn request(group: &Collective, record: &Record) -> CollectiveRequest {
    let settings = &group.settings;
    let ranks = group.ranks.iter().enumerate().map(|(i, rank)| match &rank.state {
        RankState::Joined(seat) | RankState::Left(seat) => RankMember {
            host: rank.host.clone(),
            ip: Some(seat.endpoint.ip),
            mac: Some(seat.endpoint.mac),
            qpn: seat.endpoint.qpn,
            sq_psn: seat.sq_psn,
            rq_psn: rank.rq_psn,
        },
        RankState::Expected => {
            let (ip, mac) = stand_in(i);
            RankMember {
                ip: Some(ip),
                mac: Some(mac),
                ..RankMember::new(&rank.host, Qpn::new(2))
            }
        }
    });
    CollectiveRequest {
        generation: record.generation,
        start_psn: group.start_psn,
        message_packets: settings.message_packets,
        reproducible: settings.reproducible,
        loss_policy: settings.loss_policy,
        straggler_policy: settings.straggler_policy,
        ack_timeout_us: settings.ack_timeout_us,
        stall_timeout_ms: settings.stall_timeout_ms,
        ..CollectiveRequest::new(
            &record.name,
            record.mcst_id,
            settings.pmtu,
            settings.window_packets,
            ranks.collect(),
        )
    }
}
