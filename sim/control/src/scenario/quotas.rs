//! Tenants, and what they may have.

use std::time::Duration;

use castnet_controller::Tenant;
use castnet_proto::v1;
use castnet_wire::BitRate;
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::{LOOK, Loss, PATIENCE, World};

/// A tenant has the groups whose source is its host.
struct Party {
    name: &'static str,
    host: &'static str,
    /// Its quota, as refusals name it.
    quota: &'static str,
}

/// So many groups are within each quota.
const GROUPS_MAX: usize = 3;
const PARTIES: [Party; 2] = [
    Party {
        name: "few",
        host: "h2",
        quota: "3 groups",
    },
    Party {
        name: "slow",
        host: "h3",
        quota: "3Gb/s of bandwidth",
    },
];
/// After this time who has lost the lead knows it.
const LEAD_IS_CLEAR: Duration = Duration::from_secs(2);

/// The first one has a quota of groups, the second one of bandwidth, with a limit for each group.
pub(super) fn tenants() -> Vec<Tenant> {
    let tenants = PARTIES.map(|Party { name, host, .. }| Tenant {
        name: name.into(),
        members: vec![host.into()],
        ..Tenant::default()
    });
    let [mut few, mut slow] = tenants;
    few.groups = Some(GROUPS_MAX as u64);
    slow.bandwidth = BitRate::new(3_000_000_000);
    slow.group_bandwidth = BitRate::new(1_000_000_000);
    vec![few, slow]
}

impl World {
    /// A tenant creates groups until it is refused, as often as another controller leads. What it deletes it may have again.
    pub(super) async fn fill_quota(&mut self, step: u64) -> Result<(), String> {
        let party = self.random.one(&PARTIES);
        self.log
            .line(format_args!("tenant {} takes all that it may have", party.name));
        sleep(LEAD_IS_CLEAR).await;
        let mark = self.mark()?;
        let (mut own, mut number) = (Vec::new(), 0);
        for is_last in [false, true] {
            loop {
                let name = format!("{}{step}.{number}", party.name);
                number += 1;
                if !self.creates(party, &name).await? {
                    break;
                }
                own.push(name);
                if own.len() > GROUPS_MAX {
                    return Err(format!("tenant {} has {own:?}: more than its quota", party.name));
                }
            }
            self.check_quotas().await?;
            if !is_last {
                self.kill_leader().await;
            }
        }
        // Other groups may have had all of the quota.
        if let Some(gone) = own.pop() {
            self.ends(&gone).await?;
            let name = format!("{}{step}.{number}", party.name);
            if !self.creates(party, &name).await? {
                return Err(format!(
                    "{gone} was deleted, and counts for tenant {}",
                    party.name
                ));
            }
            own.push(name);
        }
        for name in &own {
            self.ends(name).await?;
        }
        self.check_since(mark, Loss::Nothing)
    }

    /// Creates a group that waits for its members. Returns false if the quota has no room for it.
    async fn creates(&mut self, party: &Party, name: &str) -> Result<bool, String> {
        let member = |host: &str| v1::NewMember {
            host: host.into(),
            connection: None,
        };
        let request = v1::CreateGroupRequest {
            name: name.into(),
            source: party.host.into(),
            members: [party.host, "h0"].map(member).into(),
            ..Default::default()
        };
        self.unknown.insert(name.into());
        let created = timeout(PATIENCE, async {
            loop {
                let (_, mut leader) = self.candidates.leader(None).await;
                match leader.create_group(request.clone()).await {
                    Ok(_) => return Ok(()),
                    Err(status) => match status.code() {
                        // An answer was lost.
                        Code::AlreadyExists => return Ok(()),
                        Code::ResourceExhausted => return Err(status),
                        _ => sleep(LOOK).await,
                    },
                }
            }
        });
        let created = created.await;
        let created = created.map_err(|_| format!("the call that creates {name} does not end"))?;
        let Err(refused) = created else {
            return Ok(true);
        };
        let Party {
            name: tenant, quota, ..
        } = party;
        match refused
            .message()
            .contains(&format!("tenant {tenant:?} may have {quota}, has "))
        {
            true => Ok(false),
            false => Err(format!(
                "{name} is refused without the quota of {tenant}: {refused}"
            )),
        }
    }

    /// The groups of each tenant are within its quota, as the controller that leads lists and counts them.
    pub(super) async fn check_quotas(&self) -> Result<(), String> {
        let (_, mut leader) = self.candidates.leader(None).await;
        let listed = leader.list_groups(v1::ListControllerGroupsRequest {}).await;
        let counted = leader.get_topology(v1::GetTopologyRequest {}).await;
        // It may have lost the lead since.
        let (Ok(listed), Ok(counted)) = (listed, counted) else {
            return Ok(());
        };
        let groups = listed.into_inner().groups;
        for Party { name, host, quota } in PARTIES {
            let states = groups.iter().filter_map(|group| group.state.as_ref());
            let own = states.filter(|state| state.source == host).count();
            if own > GROUPS_MAX {
                return Err(format!("tenant {name} has {own} groups: more than {quota}"));
            }
        }
        for tenant in counted.into_inner().tenants {
            let groups = (tenant.groups, tenant.groups_max);
            let bandwidth = (tenant.bandwidth, tenant.bandwidth_max);
            let exceeds = |(used, most): (u64, Option<u64>)| most.is_some_and(|most| used > most);
            if [groups, bandwidth].into_iter().any(exceeds) {
                return Err(format!("more than its quota is counted of {tenant:?}"));
            }
        }
        Ok(())
    }
}
