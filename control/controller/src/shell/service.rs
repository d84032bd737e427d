use std::pin::Pin;
use std::sync::Arc;

use castnet_proto::access::{Caller, Role, RunningCall};
use castnet_proto::convert::{
    Invalid, check_received, connection_from_proto, exchange_from_proto, lease_from_proto, name_from_proto,
    new_collective_from_proto, new_group_from_proto, rank_join_from_proto, reason_from_proto,
    registration_from_proto,
};
use castnet_proto::term::has_joined;
use castnet_proto::v1;
use castnet_proto::v1::controller_server::Controller;
use castnet_proto::v1::plan_group_request::Group as Asked;
use tokio::sync::{MutexGuard, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::error::Refusal;
use crate::shell::calls::StandingCall;
use crate::shell::front::held;
use crate::shell::link::{GROUPS_TOGETHER, Link};
use crate::shell::shared::{Locked, Shared};
use crate::shell::watch::{News, Watcher};
use crate::state::foresee::Wanted;
use crate::state::kinds::multicast::record::Received;
use crate::state::kinds::multicast::requests::HowToJoin;
use crate::state::{Core, Entry, Seen, view};

/// A part of a list ends at this many members.
const MEMBERS_TOGETHER: usize = 2048;
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;
/// A state that has not been sent, and the one that was sent before.
type Step<S> = (Arc<S>, Option<Arc<S>>);

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
}

impl Service {
    async fn switches(&self) -> Result<Vec<v1::SwitchState>, Refusal> {
        let written_off = self.shared.read(Core::written_off_by_switch).await?;
        let links = self.shared.links.values();
        let show = |core: &Core, link: &Arc<Link>| {
            let groups = written_off.get(&link.config.name).into_iter().flatten();
            Some(view::switch(core, &link.config, groups.cloned().collect()))
        };
        self.in_parts(links, show).await
    }

    /// Hosts that have registered while this runs may be missing.
    async fn hosts(&self) -> Result<Vec<v1::Host>, Refusal> {
        let topology = self.shared.read(|core| core.facts.topology()).await?;
        let hosts = topology.hosts();
        self.in_parts(hosts, |core, host| view::host(core, &host.name))
            .await
    }

    /// The turn of who may only read and wants to see everything, until it is dropped: such answers take much memory until they are whole.
    async fn listing<T>(&self, request: &Request<T>) -> Result<Option<MutexGuard<'_, ()>>, Status> {
        Ok(match Caller::of(request)?.role {
            Role::ReadOnly => Some(self.shared.listing.lock().await),
            _ => None,
        })
    }

    /// Shows many things, some at a time: other calls use the lock in between.
    async fn in_parts<I: Copy, T>(
        &self,
        all: impl Iterator<Item = I>,
        show: impl Fn(&Core, I) -> Option<T>,
    ) -> Result<Vec<T>, Refusal> {
        let mut all = all.peekable();
        let mut shown = Vec::new();
        while all.peek().is_some() {
            let part: Vec<I> = all.by_ref().take(GROUPS_TOGETHER).collect();
            let show = |core: &Core| part.iter().filter_map(|i| show(core, *i)).collect::<Vec<T>>();
            shown.extend(self.shared.read(show).await?);
            tokio::task::yield_now().await;
        }
        Ok(shown)
    }

    /// `show` makes a message of what `task` has seen when the client takes it: only then is it counted.
    fn stream<S: Send + 'static, T: 'static, F: Future<Output = ()> + Send + 'static>(
        &self,
        mut show: impl FnMut(S) -> T + Send + 'static,
        task: impl FnOnce(mpsc::Sender<Result<S, Status>>) -> F,
    ) -> Answer<Messages<T>> {
        let (to, from) = mpsc::channel(1);
        self.shared.spawn(task(to));
        let stopped = self.shared.stopped.clone();
        // Not complete if the controller has stopped.
        let end = tokio_stream::once(()).filter_map(move |()| {
            let stopped = stopped.is_cancelled();
            stopped.then(|| Err(Refusal::Stopping.into()))
        });
        let messages = ReceiverStream::new(from).map(move |seen: Result<S, Status>| seen.map(&mut show));
        Ok(Response::new(Box::pin(messages.chain(end))))
    }

    fn following<C: StandingCall>(&self, call: C) -> Answer<Messages<C::Message>> {
        let messages = call.messages();
        let show = move |(state, sent): Step<C::State>| messages(&state, sent.as_deref());
        let mut answer = self.stream(show, |to| follow(call, to))?;
        self.shared.with_term.add_to(answer.metadata_mut());
        Ok(answer)
    }

    /// A response from state that is on disk.
    async fn read<T>(&self, read: impl FnMut(&Core) -> Result<T, Refusal>) -> Answer<T> {
        Ok(Response::new(self.shared.read(read).await??))
    }

    /// The result of work that is done also if the client goes, but not if the controller stops.
    async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Status> {
        let (stopped, call) = (self.shared.stopped.clone(), RunningCall::current());
        let work = async move {
            let _to_its_end = call;
            tokio::select! {
                biased;
                () = stopped.cancelled() => Err(Refusal::Stopping),
                done = work => done,
            }
        };
        let done = tokio::spawn(work).await;
        Ok(done.map_err(|error| Status::internal(error.to_string()))??)
    }
}

fn shown(core: &Core, entry: &Entry) -> v1::Group {
    entry.record().kind.behaviour().view(core, entry)
}

/// The next groups to show while the lock is held.
pub(crate) fn part<'c>(core: &'c Core, after: Option<&str>) -> impl Iterator<Item = &'c Entry> {
    let mut members = 0;
    let next = core.groups.after(after).take(GROUPS_TOGETHER);
    next.take_while(move |entry| {
        let goes = members < MEMBERS_TOGETHER;
        members += entry.record().kind.behaviour().parties().len();
        goes
    })
}

/// Sends each change of its group to the client until the last. If the client goes first, the call is dropped.
async fn follow<C: StandingCall>(mut call: C, to: mpsc::Sender<Result<Step<C::State>, Status>>) {
    let mut sent: Option<Arc<C::State>> = None;
    loop {
        tokio::select! {
            biased;
            () = to.closed() => return,
            () = call.changed() => {}
        }
        let Ok(permit) = to.reserve().await else { return };
        let Ok(seen) = call.look().await else { return };
        let (state, last) = match seen {
            Seen::State(state) => (Arc::from(state), false),
            Seen::Last(state) => (Arc::from(state), true),
            Seen::Nothing => return,
            Seen::Superseded(reason) => {
                return permit.send(Err(Status::aborted(reason)));
            }
        };
        if sent.as_ref() != Some(&state) {
            permit.send(Ok((state.clone(), sent.replace(state))));
        }
        if last {
            return;
        }
    }
}

#[tonic::async_trait]
impl Controller for Service {
    async fn create_group(
        &self,
        request: Request<v1::CreateGroupRequest>,
    ) -> Answer<v1::CreateGroupResponse> {
        let caller = Caller::of(&request)?;
        let group = new_group_from_proto(request.get_ref())?;
        caller.concerns(&group.name);
        self.shared.lists().await;
        let shared = self.shared.clone();
        // A group that cannot be installed does not stay.
        let created = async move { shared.create_multicast(group, caller.identity()).await };
        let group = Some(self.to_its_end(created).await?);
        Ok(Response::new(v1::CreateGroupResponse { group }))
    }

    type JoinGroupStream = Messages<v1::GroupState>;

    async fn join_group(&self, request: Request<v1::JoinGroupRequest>) -> Answer<Self::JoinGroupStream> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let lease = lease_from_proto(request.lease_ms)?;
        caller.concerns(format!("{} host {}", request.group, request.host));
        let host = name_from_proto("host", &request.host)?;
        let ends = connection_from_proto("connection", &host, request.connection.as_ref())?;
        caller.check_host(&host, "join")?;
        let join = |core: &mut Locked<'_>| {
            core.check_member(&caller, &request.group, "join")?;
            if let Some(end) = ends.first() {
                core.check_itself(&caller, end, Some(&request.group))?;
            }
            let how = HowToJoin {
                lease,
                from_next_message: request.from_next_message,
                co_works: request.co_works,
                passes_on: request.passes_on,
            };
            core.join(&request.group, host, ends, how)
        };
        let join = self.shared.stored(join).await;
        let mut join = join.map_err(|refused| refused.told_to(&caller))?;
        join.brief = request.brief;
        self.following(join)
    }

    async fn leave_group(&self, request: Request<v1::LeaveGroupRequest>) -> Answer<v1::LeaveGroupResponse> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let (group, host) = (name_from_proto("group", &request.group)?, &request.host);
        if request.rank.is_none() {
            name_from_proto("host", host)?;
        }
        let diverts = request
            .diverts
            .map(|why| reason_from_proto("diverts", why))
            .transpose()?;
        request.received.as_ref().map(check_received).transpose()?;
        caller.concerns(match request.rank {
            Some(rank) => format!("{group} rank {rank}"),
            None => format!("{group} host {host}"),
        });
        let leave = |core: &mut Locked<'_>| match request.rank {
            Some(rank) => {
                core.check_rank(&caller, &group, rank, "leave")?;
                let left = core.leave_collective(&group, rank)?;
                Ok(v1::LeaveGroupResponse {
                    left,
                    diversion: None,
                })
            }
            None => {
                caller.check_host(host, "leave")?;
                core.check_member(&caller, &group, "leave")?;
                core.leave(&group, host, diverts, request.received.map(Received::from))
            }
        };
        Ok(Response::new(self.shared.stored(leave).await?))
    }

    async fn report_unreached(
        &self,
        request: Request<v1::ReportUnreachedRequest>,
    ) -> Answer<v1::ReportUnreachedResponse> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let (group, host, receiver) = (&request.group, &request.host, &request.receiver);
        for (field, name) in [("group", group), ("host", host), ("receiver", receiver)] {
            name_from_proto(field, name)?;
        }
        caller.concerns(format!("{group} host {host} receiver {receiver}"));
        let reason = reason_from_proto("reason", request.reason)?;
        caller.check_host(host, "report")?;
        let report = |core: &mut Locked<'_>| {
            core.check_member(&caller, group, "report about")?;
            core.unreached(group, (host, receiver, request.number), &reason)
        };
        self.shared.stored(report).await?;
        Ok(Response::new(v1::ReportUnreachedResponse {}))
    }

    async fn destroy_group(
        &self,
        request: Request<v1::DestroyGroupRequest>,
    ) -> Answer<v1::DestroyGroupResponse> {
        Caller::of(&request)?.concerns(&request.get_ref().group);
        let v1::DestroyGroupRequest { group, force } = request.into_inner();
        let destroy = |core: &mut Locked<'_>| {
            let follow = core.follow(&group)?;
            core.destroy(&group).map(|()| follow)
        };
        let follow = self.shared.stored(destroy).await?;
        let pending = self.shared.gone(&group, follow).await?;
        let (pending_switches, written_off_switches) = match force && !pending.is_empty() {
            true => (
                Vec::new(),
                self.shared.stored(|core| core.write_off(&group)).await?,
            ),
            false => (pending, Vec::new()),
        };
        Ok(Response::new(v1::DestroyGroupResponse {
            complete: pending_switches.is_empty() && written_off_switches.is_empty(),
            pending_switches,
            written_off_switches,
        }))
    }

    async fn add_member(&self, request: Request<v1::AddMemberRequest>) -> Answer<v1::AddMemberResponse> {
        let caller = Caller::of(&request)?;
        let v1::AddMemberRequest { group, host } = request.into_inner();
        caller.concerns(format!("{group} host {host}"));
        let host = name_from_proto("host", &host)?;
        let added = self.shared.stored(|core| core.add_member(&group, &host)).await?;
        Ok(Response::new(added))
    }

    async fn evict_member(
        &self,
        request: Request<v1::EvictMemberRequest>,
    ) -> Answer<v1::EvictMemberResponse> {
        let caller = Caller::of(&request)?;
        let v1::EvictMemberRequest { group, member } = request.into_inner();
        caller.concerns(format!("{group} member {member}"));
        let evict = |core: &mut Locked<'_>| {
            let follow = core.follow(&group)?;
            core.evict(&group, &member).map(|()| follow)
        };
        let follow = self.shared.stored(evict).await?;
        let pending_switches = self.shared.updated(&group, follow).await?;
        Ok(Response::new(v1::EvictMemberResponse { pending_switches }))
    }

    async fn purge_groups(
        &self,
        request: Request<v1::PurgeGroupsRequest>,
    ) -> Answer<v1::PurgeGroupsResponse> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let owner = request.owner.as_deref().unwrap_or("all owners");
        caller.concerns(match request.remove {
            true => format!("remove the groups of {owner}"),
            false => format!("list the groups of {owner}"),
        });
        Ok(Response::new(self.shared.purge(request).await?))
    }

    async fn get_group(&self, request: Request<v1::GetGroupRequest>) -> Answer<v1::Group> {
        let caller = Caller::of(&request)?;
        let name = &request.get_ref().group;
        let is_in = has_joined(request.metadata());
        // A large group takes a while under the lock. The store is waited for without a turn.
        let mut turn = match caller.role {
            Role::Host => Some(self.shared.views.in_turn(caller.identity()).await),
            _ => None,
        };
        self.read(|core| {
            let seen = match core.unexplained(name).filter(|_| is_in) {
                Some(_) => Err(core.unknown(name)),
                None => core.seen_by(&caller, name),
            };
            turn.take();
            seen
        })
        .await
    }

    async fn list_groups(
        &self,
        request: Request<v1::ListControllerGroupsRequest>,
    ) -> Answer<v1::ListControllerGroupsResponse> {
        let _turn = self.listing(&request).await?;
        let mut listed = v1::ListControllerGroupsResponse::default();
        let mut after = None;
        loop {
            // A part at a time: other calls use the lock in between.
            let read = |core: &Core| {
                let next = part(core, after.as_deref());
                next.map(|e| (e.record().name.clone(), shown(core, e)))
                    .collect::<Vec<_>>()
            };
            let part = self.shared.read(read).await?;
            let Some((last, _)) = part.last() else {
                return Ok(Response::new(listed));
            };
            after = Some(last.clone());
            for (_, group) in part {
                match group.collective {
                    Some(collective) => listed.collectives.push(collective),
                    None => listed.groups.push(group),
                }
            }
            tokio::task::yield_now().await;
        }
    }

    async fn list_switches(
        &self,
        request: Request<v1::ListSwitchesRequest>,
    ) -> Answer<v1::ListSwitchesResponse> {
        let _turn = self.listing(&request).await?;
        let switches = self.switches().await?;
        Ok(Response::new(v1::ListSwitchesResponse { switches }))
    }

    async fn list_hosts(&self, request: Request<v1::ListHostsRequest>) -> Answer<v1::ListHostsResponse> {
        let _turn = self.listing(&request).await?;
        let hosts = self.hosts().await?;
        Ok(Response::new(v1::ListHostsResponse { hosts }))
    }

    async fn register_host(
        &self,
        request: Request<v1::RegisterHostRequest>,
    ) -> Answer<v1::RegisterHostResponse> {
        let host = registration_from_proto(request.get_ref())?;
        let caller = Caller::of(&request)?;
        caller.concerns(&host.name);
        caller.check_host(&host.name, "register")?;
        let register = |core: &mut Locked<'_>| {
            core.check_itself(&caller, &host, None)?;
            core.register(&host)
        };
        let registered = self.shared.stored(register).await;
        registered.map_err(|refused| refused.told_to(&caller))?;
        self.read(|core| {
            let known = view::host(core, &host.name);
            let host = Some(known.ok_or_else(|| Invalid::missing("name", "a host"))?);
            Ok(v1::RegisterHostResponse { host })
        })
        .await
    }

    async fn forget_host(&self, request: Request<v1::ForgetHostRequest>) -> Answer<v1::ForgetHostResponse> {
        Caller::of(&request)?.concerns(&request.get_ref().name);
        let v1::ForgetHostRequest { name } = request.into_inner();
        self.shared.stored(|core| core.forget_host(&name)).await?;
        Ok(Response::new(v1::ForgetHostResponse {}))
    }

    async fn get_topology(&self, request: Request<v1::GetTopologyRequest>) -> Answer<v1::Topology> {
        let _turn = self.listing(&request).await?;
        let (switches, hosts) = (self.switches().await?, self.hosts().await?);
        let read = |core: &Core| {
            let failure = core.store_error.as_ref();
            let topology = v1::Topology {
                from_file: core.facts.file.is_some(),
                forwarders: view::forwarders(core),
                tenants: view::tenants(core, &self.shared.config.tenants),
                store_failure: failure.map(ToString::to_string).unwrap_or_default(),
                ..Default::default()
            };
            (topology, core.facts.topology())
        };
        let (shown, topology) = self.shared.read(read).await?;
        Ok(Response::new(v1::Topology {
            switches,
            hosts,
            links: view::links(&topology),
            ..shown
        }))
    }

    async fn find_leader(&self, _: Request<v1::FindLeaderRequest>) -> Answer<v1::FindLeaderResponse> {
        let address = self.shared.term.address.clone();
        Ok(Response::new(v1::FindLeaderResponse { address }))
    }

    async fn create_collective(
        &self,
        request: Request<v1::CreateCollectiveRequest>,
    ) -> Answer<v1::CreateCollectiveResponse> {
        let caller = Caller::of(&request)?;
        let new = new_collective_from_proto(request.get_ref())?;
        caller.concerns(&new.name);
        self.shared.lists().await;
        let group = self.shared.create_collective(new, caller.identity()).await?;
        Ok(Response::new(v1::CreateCollectiveResponse { group: Some(group) }))
    }

    async fn plan_group(&self, request: Request<v1::PlanGroupRequest>) -> Answer<v1::PlanGroupResponse> {
        let caller = Caller::of(&request)?;
        let wanted = match request.get_ref().group.as_ref() {
            Some(Asked::Multicast(group)) => Wanted::Multicast(new_group_from_proto(group)?),
            Some(Asked::Collective(group)) => Wanted::Collective(new_collective_from_proto(group)?),
            None => return Err(Invalid::missing("group", "a multicast or a collective group").into()),
        };
        let shared = self.shared.clone();
        // Its turn is over when its work is.
        let planned = async move { shared.foresee(&wanted, caller.identity()).await };
        Ok(Response::new(self.to_its_end(planned).await?))
    }

    type InitGroupStream = Messages<v1::CollectiveState>;

    async fn init_group(&self, request: Request<v1::InitGroupRequest>) -> Answer<Self::InitGroupStream> {
        let caller = Caller::of(&request)?;
        let join = rank_join_from_proto(request.get_ref())?;
        let differences = request.get_ref().differences;
        caller.concerns(format!("{} rank {}", join.job, join.rank));
        caller.check_host(&join.endpoint.name, "join")?;
        self.shared.lists().await;
        let init = |core: &mut Locked<'_>| {
            core.check_rank(&caller, &join.job, join.rank.into(), "join")?;
            core.check_itself(&caller, &join.endpoint, Some(&join.job))?;
            core.init(join, caller.identity())
        };
        let attendance = self.shared.stored(init).await;
        let mut attendance = attendance.map_err(|refused| refused.told_to(&caller))?;
        attendance.differences = differences;
        self.following(attendance)
    }

    async fn exchange(&self, request: Request<v1::ExchangeRequest>) -> Answer<v1::ExchangeResponse> {
        let caller = Caller::of(&request)?;
        let call = exchange_from_proto(request.into_inner())?;
        caller.concerns(format!("{} rank {}", call.job, call.rank));
        // Nobody takes the place between the check and the blob.
        let exchange = |core: &mut Locked<'_>| {
            core.check_exchange(&caller, &call)?;
            core.shared.exchanges.exchange(call, caller.clone())
        };
        let answer = self.shared.stored(exchange).await?;
        let (answer, part) = answer.await?;
        Ok(held(answer, part))
    }

    type WatchEventsStream = Messages<v1::ControllerEvent>;

    async fn watch_events(
        &self,
        request: Request<v1::WatchControllerEventsRequest>,
    ) -> Answer<Self::WatchEventsStream> {
        let differences = request.get_ref().differences;
        // Subscribes at once: all later events are reported.
        let events = self.shared.events.subscribe();
        let shared = self.shared.clone();
        self.stream(News::event, |to| {
            Watcher::new(shared, to, differences).run(events)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use castnet_group::CollectiveSettings;
    use castnet_wire::McstId;

    use super::*;
    use crate::shell::shared::tests::shared;
    use crate::state::{Collective, Kind, Record};

    /// Each look sees a new state.
    #[derive(Default)]
    struct Restless {
        looks: Arc<AtomicUsize>,
        messages: Arc<AtomicUsize>,
    }

    impl StandingCall for Restless {
        type State = usize;
        type Message = (usize, Option<usize>);

        async fn changed(&mut self) {}

        fn messages(&self) -> impl Fn(&usize, Option<&usize>) -> Self::Message + Send + 'static {
            let messages = self.messages.clone();
            move |state, sent| {
                messages.fetch_add(1, Ordering::Relaxed);
                (*state, sent.copied())
            }
        }

        async fn look(&mut self) -> Result<Seen<usize>, Refusal> {
            let look = self.looks.fetch_add(1, Ordering::Relaxed);
            Ok(Seen::State(Box::new(look)))
        }
    }

    /// A host opened 8184 streams and took nothing: a message of 0.4 MB waited in each, uncounted.
    #[tokio::test]
    async fn a_message_is_made_when_it_is_taken() {
        let call = Restless::default();
        let (looks, messages) = (call.looks.clone(), call.messages.clone());
        let service = Service { shared: shared() };
        let mut stream = service.following(call).unwrap().into_inner();
        for taken in 0..3 {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let made = messages.load(Ordering::Relaxed);
            assert_eq!((looks.load(Ordering::Relaxed), made), (taken + 1, taken));
            let message = stream.next().await.unwrap().unwrap();
            assert_eq!(message, (taken, taken.checked_sub(1)));
        }
    }

    /// The lock was held for 256 groups, however large: a host can make many free ranks.
    #[tokio::test]
    async fn a_part_of_a_list_is_bounded_by_groups_and_by_members() {
        for (ranks, groups, parts) in [
            (1024, 5, vec![2, 2, 1]),
            (4096, 2, vec![1, 1]),
            (2, 300, vec![256, 44]),
        ] {
            let shared = shared();
            for n in 0..groups {
                let kind = Collective::new(vec![String::new(); ranks], CollectiveSettings::default(), false);
                let mcst_id = McstId((0x0ac8_0000 + n).into());
                let record = Record::new(format!("g{n:03}"), (mcst_id, Vec::new()), Kind::Collective(kind));
                shared.lock().groups.put(record);
            }
            let (mut after, mut counts, core) = (None, Vec::new(), shared.lock());
            loop {
                let names = part(&core, after.as_deref()).map(|entry| entry.record().name.clone());
                let names: Vec<String> = names.collect();
                let Some(last) = names.last() else { break };
                counts.push(names.len());
                after = Some(last.clone());
            }
            assert_eq!(counts, parts, "{ranks} ranks");
        }
    }
}
