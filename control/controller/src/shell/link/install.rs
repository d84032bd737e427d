//! Brings groups on a switch to the desired state. What drivers want while the switch is busy is sent together.

use castnet_proto::convert::{install_requests, install_result_from_proto};
use castnet_proto::v1;
use castnet_rules::GroupRule;
use castnet_wire::McstId;
use tokio::sync::oneshot;
use tonic::{Code, Status};

use super::{Client, GROUPS_TOGETHER, Link, SwitchError, call};
use crate::shell::shared::Shared;
use crate::state::reconcile::Rules;
use crate::state::{Core, Entry, unexplained};

/// A group that a driver wants on the switch, and who waits for it.
pub(super) type Asked = (String, oneshot::Sender<Result<(), SwitchError>>);

/// What belongs on a switch of a group.
#[derive(Default)]
pub(super) struct Part<'g> {
    pub(super) group: &'g str,
    /// Of its rules; `None`: none belong there.
    pub(super) generation: Option<u64>,
    /// Those that the switch lacks.
    pub(super) rules: Vec<GroupRule>,
    /// Whether it has the others.
    pub(super) has_rest: bool,
    /// Addresses of its rules there, or of those that the switch may have if none belong there.
    mcst_ids: Vec<McstId>,
    /// Why nothing is done there.
    pub(super) kept: Option<String>,
}

/// Endpoints of rules that are made while the lock is held: others use it before the next ones.
const ENDPOINTS_TOGETHER: usize = 2048;

impl<'g> Part<'g> {
    /// `there`: what the switch has; `None`: it may have nothing.
    fn of(core: &Core, switch: &str, group: &'g str, there: Option<&Rules>) -> Self {
        let mut part = Self {
            group,
            ..Self::default()
        };
        let Some(record) = core.groups.get(group).map(Entry::record) else {
            return part;
        };
        let version = record.wanted_version(switch);
        part.mcst_ids = match version {
            Some(_) => record.mcst_ids_on(switch).collect(),
            None => record.mcst_ids_left_on(switch),
        };
        let mut lanes = part.mcst_ids.iter();
        let kept = lanes.find_map(|lane| core.others.unexplained_at(switch, *lane));
        part.kept = kept.map(unexplained::kept);
        if let Some(version) = version {
            let at = |lane: &McstId| there.and_then(|there| there.get(lane).copied());
            let lacks = |lane: &McstId| there.is_none() || version.is_lacking(at(lane));
            let has = |lane: &McstId| lacks(lane) || at(lane) == Some(version.generation);
            part.generation = Some(version.generation);
            part.has_rest = part.mcst_ids.iter().all(has);
            if part.kept.is_none() && part.mcst_ids.iter().any(lacks) {
                part.rules = record.wanted_on(switch);
                part.rules.retain(|rule| lacks(&rule.mcst_id));
            }
        }
        part
    }
}

impl Link {
    /// Brings one group on the switch to the desired state: installs or removes the rules of its lanes. If one is
    /// refused, the others stay until the group is removed. The task that gets the turn handles all waiting requests.
    pub(crate) async fn sync(&self, shared: &Shared, group: &str) -> Result<(), SwitchError> {
        let (done, mut result) = oneshot::channel();
        self.asked.lock().push_back((group.into(), done));
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
        let (groups, done): (Vec<String>, Vec<_>) = asked.into_iter().unzip();
        let synced = async {
            let mut client = self.client(shared).await?;
            let parts = self.parts(shared, &groups, None).await?;
            Ok::<_, SwitchError>(self.bring(&mut client, shared, parts).await)
        };
        let results: Vec<_> = match synced.await {
            Ok(synced) => synced.into_iter().map(|(_, result)| result).collect(),
            Err(error) => vec![Err(error); groups.len()],
        };
        for (done, result) in done.into_iter().zip(results) {
            // A driver that has ended needs no reply.
            let _ = done.send(result);
        }
    }

    /// What belongs on the switch of these groups, by what is on disk.
    pub(super) async fn parts<'g>(
        &self,
        shared: &Shared,
        groups: &'g [String],
        there: Option<&Rules>,
    ) -> Result<Vec<Part<'g>>, SwitchError> {
        let mut parts: Vec<Part<'g>> = Vec::new();
        while parts.len() < groups.len() {
            let left = &groups[parts.len()..];
            let read = |core: &Core| {
                let (mut made, mut endpoints) = (Vec::new(), 0);
                for group in left {
                    let part = Part::of(core, &self.config.name, group, there);
                    endpoints += part.rules.iter().map(|rule| rule.endpoints.len()).sum::<usize>();
                    made.push(part);
                    if endpoints >= ENDPOINTS_TOGETHER {
                        break;
                    }
                }
                made
            };
            parts.extend(shared.read(read).await?);
        }
        Ok(parts)
    }

    /// Removes what does not belong on the switch of these groups, and installs what it lacks. Returns the result of each.
    pub(super) async fn bring<'g>(
        &self,
        client: &mut Client,
        shared: &Shared,
        mut parts: Vec<Part<'g>>,
    ) -> Vec<(Part<'g>, Result<(), SwitchError>)> {
        // Removals first, as they make room.
        let mut results = Vec::new();
        for part in &parts {
            results.push(match (&part.kept, part.generation, results.last()) {
                (Some(reason), ..) => {
                    let refused = Status::failed_precondition(reason.as_str());
                    Err(SwitchError::Refused(Box::new(refused)))
                }
                (None, Some(_), _) => Ok(()),
                (None, None, Some(Err(lost @ SwitchError::Unreachable(_)))) => Err(lost.clone()),
                (None, None, _) => self.remove(client, shared, &part.mcst_ids, None).await,
            });
        }
        let rules = (0..).zip(&mut parts).flat_map(|(at, part)| {
            let rules = std::mem::take(&mut part.rules).into_iter();
            rules.map(move |rule| (at, rule))
        });
        let (of, rules): (Vec<usize>, Vec<GroupRule>) = rules.unzip();
        let installed = self.install(client, shared, &rules).await;
        for (at, installed) in of.into_iter().zip(installed) {
            if results[at].is_ok() {
                results[at] = installed;
            }
        }
        parts.into_iter().zip(results).collect()
    }

    /// Installs rules, as many per call as fit; returns the result of each. After a call without an answer, no more are
    /// made.
    async fn install(
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
