//! Calls to a controller that must be answered, and those that must be refused.

use castnet_proto::convert::violations;
use castnet_proto::v1;
use tonic::{Code, Status, Streaming};

use super::{Client, Events, destruction, moment, next};

/// The call by which a member joins a group.
pub(crate) type Call = Streaming<v1::GroupState>;

pub(crate) trait Calls {
    async fn try_get(&self, group: &str) -> Result<v1::Group, Status>;
    async fn get(&self, group: &str) -> v1::Group;
    async fn create(&self, request: v1::CreateGroupRequest) -> v1::GroupState;
    async fn destroy(&self, group: &str) -> v1::DestroyGroupResponse;
    async fn join(&self, request: v1::JoinGroupRequest) -> Call;
    /// Whether the host was in the group.
    async fn leave(&self, group: &str, host: &str) -> bool;
    async fn leave_rank(&self, job: &str, rank: u32) -> bool;
    /// The switches that cannot be reached.
    async fn evict(&self, group: &str, member: &str) -> Result<Vec<String>, Status>;
    /// The multicast groups.
    async fn groups(&self) -> Vec<v1::Group>;
    async fn switches(&self) -> Vec<v1::SwitchState>;
    /// Names of the hosts.
    async fn hosts(&self) -> Vec<String>;
    async fn topology(&self) -> v1::Topology;
    /// Removes what this owner has on switches: the switches and the names of the groups.
    async fn purge(&self, owner: &str) -> Vec<String>;
}

impl Calls for Client {
    async fn try_get(&self, group: &str) -> Result<v1::Group, Status> {
        let request = v1::GetGroupRequest { group: group.into() };
        Ok(self.clone().get_group(request).await?.into_inner())
    }

    async fn get(&self, group: &str) -> v1::Group {
        self.try_get(group).await.unwrap()
    }

    async fn create(&self, request: v1::CreateGroupRequest) -> v1::GroupState {
        let created = self.clone().create_group(request).await.unwrap();
        created.into_inner().group.unwrap()
    }

    async fn destroy(&self, group: &str) -> v1::DestroyGroupResponse {
        let destroyed = self.clone().destroy_group(destruction(group)).await;
        destroyed.unwrap().into_inner()
    }

    async fn join(&self, request: v1::JoinGroupRequest) -> Call {
        self.clone().join_group(request).await.unwrap().into_inner()
    }

    async fn leave(&self, group: &str, host: &str) -> bool {
        let request = v1::LeaveGroupRequest {
            group: group.into(),
            host: host.into(),
            ..Default::default()
        };
        self.clone().leave_group(request).await.unwrap().into_inner().left
    }

    async fn leave_rank(&self, job: &str, rank: u32) -> bool {
        let request = v1::LeaveGroupRequest {
            group: job.into(),
            rank: Some(rank),
            ..Default::default()
        };
        self.clone().leave_group(request).await.unwrap().into_inner().left
    }

    async fn evict(&self, group: &str, member: &str) -> Result<Vec<String>, Status> {
        let (group, member) = (group.into(), member.into());
        let request = v1::EvictMemberRequest { group, member };
        let answer = self.clone().evict_member(request).await?;
        Ok(answer.into_inner().pending_switches)
    }

    async fn groups(&self) -> Vec<v1::Group> {
        let request = v1::ListControllerGroupsRequest {};
        self.clone()
            .list_groups(request)
            .await
            .unwrap()
            .into_inner()
            .groups
    }

    async fn switches(&self) -> Vec<v1::SwitchState> {
        let request = v1::ListSwitchesRequest {};
        let listed = self.clone().list_switches(request).await.unwrap();
        listed.into_inner().switches
    }

    async fn hosts(&self) -> Vec<String> {
        let listed = self.clone().list_hosts(v1::ListHostsRequest {}).await.unwrap();
        listed.into_inner().hosts.into_iter().map(|h| h.name).collect()
    }

    async fn topology(&self) -> v1::Topology {
        let request = v1::GetTopologyRequest {};
        self.clone().get_topology(request).await.unwrap().into_inner()
    }

    async fn purge(&self, owner: &str) -> Vec<String> {
        let request = v1::PurgeGroupsRequest {
            owner: Some(owner.into()),
            remove: true,
        };
        let purged = self.clone().purge_groups(request).await.unwrap().into_inner();
        let switches = purged.switches.iter();
        let of = |left: &v1::LeftOnSwitch| {
            let removed = left.groups.iter().filter(|group| group.removed);
            let lines = removed.map(|group| format!("{} {}", left.switch_name, group.name));
            lines.collect::<Vec<_>>()
        };
        switches.flat_map(of).collect()
    }
}

/// It is refused with this code, and a message that has these words.
#[track_caller]
pub(crate) fn refused<T>(answer: Result<T, Status>, code: Code, words: &str) -> Status {
    let Err(status) = answer else {
        panic!("not refused: {words}");
    };
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(words), "{status}");
    status
}

/// It is refused for this field of the request alone.
#[track_caller]
pub(crate) fn refused_field<T>(answer: Result<T, Status>, code: Code, field: &str, words: &str) -> Status {
    let status = refused(answer, code, words);
    let fields: Vec<String> = violations(&status).into_iter().map(|v| v.field).collect();
    assert_eq!(fields, [field], "{status}");
    assert!(status.message().starts_with(&format!("{field}: ")), "{status}");
    status
}

/// All join, and wait until their group runs.
pub(crate) async fn join_all(
    client: &Client,
    requests: impl IntoIterator<Item = v1::JoinGroupRequest>,
) -> Vec<Call> {
    let mut calls = Vec::new();
    for request in requests {
        calls.push(client.join(request).await);
    }
    for call in &mut calls {
        while next(call).await.phase() != v1::GroupPhase::Active {}
    }
    calls
}

pub(crate) fn phases(state: &v1::GroupState) -> Vec<v1::MemberPhase> {
    state.members.iter().map(|m| m.phase()).collect()
}

/// Waits until a group is as wanted, now or later.
pub(crate) async fn group_until(
    client: &Client,
    name: &str,
    is: impl Fn(&v1::GroupState) -> bool,
) -> v1::Group {
    let mut events = Events::of(client).await;
    loop {
        let group = client.get(name).await;
        if is(group.state.as_ref().unwrap()) {
            return group;
        }
        events.until(|_| Some(())).await;
    }
}

/// Waits until a group is in a phase, now or later.
pub(crate) async fn reaches(client: &Client, name: &str, phase: v1::GroupPhase) -> v1::Group {
    let group = group_until(client, name, |state| state.phase() == phase).await;
    // What follows at once is done, too.
    moment().await;
    group
}
