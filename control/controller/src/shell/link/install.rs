//! Groups that drivers want on a switch. Requests that arrive while the switch is busy are sent together.

use castnet_proto::convert::{install_requests, install_result_from_proto};
use castnet_proto::v1;
use castnet_rules::GroupRule;
use castnet_wire::McstId;
use tokio::sync::oneshot;
use tonic::{Code, Status};

use super::{Client, GROUPS_TOGETHER, Link, SwitchError, call};
use crate::shell::shared::Shared;
use crate::state::{Core, Entry, unexplained};

pub(super) struct Asked {
    group: String,
    done: oneshot::Sender<Result<(), SwitchError>>,
}

/// What belongs on a switch of a group.
#[derive(Default)]
struct Part {
    rules: Vec<GroupRule>,
    /// Addresses of rules that the switch may have.
    mcst_ids: Vec<McstId>,
    /// Why nothing is done there.
    kept: Option<String>,
}

/// Endpoints of rules that are made while the lock is held.
const ENDPOINTS_TOGETHER: usize = 2048;

/// As many as have so many endpoints in their rules, one at least: others use the lock before the next ones.
pub(super) fn some<T>(all: impl Iterator<Item = T>, rules: impl Fn(&T) -> &[GroupRule]) -> Vec<T> {
    let (mut made, mut endpoints) = (Vec::new(), 0);
    for one in all {
        endpoints += rules(&one).iter().map(|rule| rule.endpoints.len()).sum::<usize>();
        made.push(one);
        if endpoints >= ENDPOINTS_TOGETHER {
            break;
        }
    }
    made
}

impl Link {
    /// Brings one group on the switch to the desired state: installs or removes the rules of its lanes. If one is
    /// refused, the others stay until the group is removed. The task that gets the turn handles all waiting requests.
    pub(crate) async fn sync(&self, shared: &Shared, group: &str) -> Result<(), SwitchError> {
        let (done, mut result) = oneshot::channel();
        let group = group.into();
        self.asked.lock().push_back(Asked { group, done });
        loop {
            tokio::select! {
                biased;
                result = &mut result => {
                    let stops = || Err(SwitchError::Unreachable("the controller stops".into()));
                    return result.unwrap_or_else(|_| stops());
                }
                _turn = self.turn.lock() => self.sync_asked(shared).await,
            }
        }
    }

    async fn sync_asked(&self, shared: &Shared) {
        let asked: Vec<Asked> = {
            let mut asked = self.asked.lock();
            let count = asked.len().min(GROUPS_TOGETHER);
            asked.drain(..count).collect()
        };
        let mut results = match self.sync_all(shared, &asked).await {
            Ok(results) => results,
            Err(error) => vec![Err(error); asked.len()],
        };
        for (asked, result) in asked.into_iter().zip(results.drain(..)) {
            // A driver that has ended needs no reply.
            let _ = asked.done.send(result);
        }
    }

    async fn sync_all(
        &self,
        shared: &Shared,
        asked: &[Asked],
    ) -> Result<Vec<Result<(), SwitchError>>, SwitchError> {
        let mut client = self.client(shared).await?;
        let switch = &self.config.name;
        let on = |core: &Core, asked: &Asked| {
            let Some(record) = core.groups.get(&asked.group).map(Entry::record) else {
                return Part::default();
            };
            let mcst_ids = record.mcst_ids_left_on(switch);
            let mut lanes = mcst_ids.iter();
            let kept = lanes.find_map(|lane| core.others.unexplained_at(switch, *lane));
            Part {
                rules: record.wanted_on(switch),
                kept: kept.map(unexplained::kept),
                mcst_ids,
            }
        };
        let mut groups: Vec<Part> = Vec::new();
        while groups.len() < asked.len() {
            let left = asked.iter().skip(groups.len());
            let read = |core: &Core| {
                some(left.clone().map(|asked| on(core, asked)), |part| {
                    part.rules.as_slice()
                })
            };
            groups.extend(shared.read(read).await?);
        }
        // Removals first, as they make room.
        let mut results = Vec::new();
        for part in &groups {
            results.push(match (&part.kept, part.rules.is_empty(), results.last()) {
                (Some(reason), ..) => {
                    let refused = Status::failed_precondition(reason.as_str());
                    Err(SwitchError::Refused(Box::new(refused)))
                }
                (None, false, _) => Ok(()),
                (None, true, Some(Err(lost @ SwitchError::Unreachable(_)))) => Err(lost.clone()),
                (None, true, _) => self.remove(&mut client, shared, &part.mcst_ids, None).await,
            });
        }
        let rules = (0..).zip(groups).flat_map(|(at, part)| {
            let rules = part.kept.is_none().then_some(part.rules);
            rules.into_iter().flatten().map(move |rule| (at, rule))
        });
        let (of, rules): (Vec<usize>, Vec<GroupRule>) = rules.unzip();
        let installed = self.install(&mut client, shared, &rules).await;
        for (at, installed) in of.into_iter().zip(installed) {
            if results[at].is_ok() {
                results[at] = installed;
            }
        }
        Ok(results)
    }

    /// Installs rules, as many per call as fit; returns the result of each. After a call without an answer, no more are
    /// made.
    pub(super) async fn install(
        &self,
        client: &mut Client,
        shared: &Shared,
        rules: &[GroupRule],
    ) -> Vec<Result<(), SwitchError>> {
        let mut results = Vec::with_capacity(rules.len());
        for request in install_requests(&shared.term.owner, rules) {
            let end = results.len() + request.rules.len();
            let request = async {
                shared.may_change().await?;
                call(shared, client.install_groups(request)).await
            };
            let error = match request.await {
                Ok(answer) => {
                    let result = |r| install_result_from_proto(r).map(drop).map_err(SwitchError::from);
                    results.extend(answer.results.into_iter().map(result));
                    SwitchError::Unreachable("its answer is not one for each rule".into())
                }
                Err(error) => error,
            };
            results.resize(end, Err(error));
            if matches!(results.last(), Some(Err(SwitchError::Unreachable(_)))) {
                break;
            }
        }
        if let Some(last) = results.last().cloned() {
            results.resize(rules.len(), last);
        }
        results
    }

    pub(super) async fn remove(
        &self,
        client: &mut Client,
        shared: &Shared,
        mcst_ids: &[McstId],
        generation: Option<u64>,
    ) -> Result<(), SwitchError> {
        for mcst_id in mcst_ids {
            shared.may_change().await?;
            let request = v1::RemoveGroupRequest {
                mcst_id: mcst_id.to_string(),
                owner: Some(shared.term.owner.clone()),
                generation,
            };
            match call(shared, client.remove_group(request)).await {
                // Another owner has the group now: ours is gone.
                Err(SwitchError::Refused(status)) if status.code() == Code::FailedPrecondition => {}
                done => {
                    done?;
                }
            }
        }
        Ok(())
    }
}
