//! A record as the request that would create its group: what no call accepts is a fault of the record. Its name is not looked at: groups keep
//! names that are refused by now.

use castnet_proto::convert::{
    any_source_to_proto, mode_to_proto, new_collective_from_proto, new_group_from_proto, repair_to_proto,
    unicast_mcst_id_from_proto,
};
use castnet_proto::v1;

use crate::state::kinds::Kind;
use crate::state::kinds::collective::record::Collective;
use crate::state::kinds::collective::view;
use crate::state::kinds::multicast::record::Multicast;
use crate::state::record::Record;

/// Stands for the name in the request.
const NAME: &str = "g";

/// What is wrong with settings, members and McstIDs, with the fields of the request.
pub(super) fn faults(record: &Record) -> Vec<String> {
    let lanes = 1 + record.more_lanes.len();
    let zeros = numbers(&record.kind)
        .into_iter()
        .filter(|(_, number)| *number == 0);
    let zeros = zeros.map(|(field, _)| format!("{field}: is 0, which only a request has, for the default"));
    let mut faults: Vec<String> = zeros.collect();
    let created = match &record.kind {
        Kind::Multicast(group) => new_group_from_proto(&multicast(group, lanes)).err(),
        Kind::Collective(group) => {
            let given = usize::from(group.settings.lanes);
            if given != lanes {
                let why = format!("is {given}, but the group has {lanes} McstID(s), one for each lane");
                faults.push(format!("settings.lanes: {why}"));
            }
            new_collective_from_proto(&collective(group, record)).err()
        }
    };
    let addresses = record
        .all_mcst_ids()
        .filter_map(|mcst_id| unicast_mcst_id_from_proto("mcst_id", &mcst_id.to_string()).err());
    for invalid in created.into_iter().chain(addresses) {
        faults.extend(invalid.faults().iter().map(ToString::to_string));
    }
    faults
}

/// Numbers of which 0 stands for the default in a request.
fn numbers(kind: &Kind) -> Vec<(&'static str, u32)> {
    match kind {
        Kind::Multicast(group) => {
            let settings = &group.settings;
            let mut numbers = vec![("stall_timeout_ms", settings.stall_timeout_ms)];
            numbers.extend(
                settings
                    .on_stall
                    .map(|policy| ("on_member_stall.after_ms", policy.after_ms)),
            );
            if let Some(repair) = settings.repair {
                numbers.push(("repair.slots", repair.slots.into()));
                numbers.push(("repair.ack_timeout_us", repair.ack_timeout_us));
            }
            numbers
        }
        Kind::Collective(group) => {
            let settings = &group.settings;
            vec![
                ("settings.window_packets", settings.window_packets.into()),
                ("settings.message_packets", settings.message_packets.into()),
                ("settings.ack_timeout_us", settings.ack_timeout_us),
                ("settings.stall_timeout_ms", settings.stall_timeout_ms),
                ("settings.lanes", settings.lanes.into()),
            ]
        }
    }
}

/// Without connections: where members have joined, theirs were checked when they did.
fn multicast(group: &Multicast, lanes: usize) -> v1::CreateGroupRequest {
    let settings = &group.settings;
    let member = |host: &str| v1::NewMember {
        host: host.into(),
        connection: None,
    };
    v1::CreateGroupRequest {
        name: NAME.into(),
        source: group.source.clone(),
        members: group.members.iter().map(|m| member(&m.host)).collect(),
        pmtu: settings.pmtu.bytes() as u32,
        lanes: lanes as u32,
        on_member_stall: settings.on_stall.map(|policy| v1::StallPolicy {
            after_ms: policy.after_ms,
            then: 0,
        }),
        any_source: settings
            .any_source
            .map_or(0, |numbers| any_source_to_proto(numbers).into()),
        repair: settings.repair.map(repair_to_proto),
        distribution: settings.distribution.to_string(),
        ..Default::default()
    }
}

/// Ranks that create their job by a call may share a host, and have none before that.
fn collective(group: &Collective, record: &Record) -> v1::CreateCollectiveRequest {
    let host = |(rank, host): (usize, &str)| match group.by_call {
        true => format!("rank{rank}"),
        false => host.into(),
    };
    let hosts = group.ranks.iter().map(|rank| rank.host.as_str());
    v1::CreateCollectiveRequest {
        name: NAME.into(),
        ranks: hosts.enumerate().map(host).collect(),
        settings: Some(v1::CollectiveSettings {
            // As it was asked for. The limit may be that of a tenant.
            mode: group.settings.mode.map_or(0, |mode| mode_to_proto(mode).into()),
            rate_limit: None,
            ..view::settings(&group.settings, record)
        }),
        ..Default::default()
    }
}
