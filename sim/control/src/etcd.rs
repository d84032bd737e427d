//! A model of etcd: the calls that the store makes, with etcd's revisions, leases, limits and errors. Its members have no sockets, and its
//! time is that of the test.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use castnet_controller::store::Table;
use castnet_controller::store::etcd::{DEFAULT_LEAD_TTL, EtcdConfig};
use castnet_proto::transport::memory::Network;
use castnet_proto::transport::{Address, Security, Server, serve};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use api::compare::{CompareTarget, TargetUnion};
use api::kv_server::{Kv, KvServer};
use api::lease_server::{Lease, LeaseServer};
use api::request_op::Request as Op;
use api::response_op::Response as OpResult;

/// The messages, clients and servers of `etcd.proto`.
#[allow(missing_docs, clippy::all)]
pub mod api {
    tonic::include_proto!("etcdserverpb");
}

/// Below it are the keys of the controllers.
const PREFIX: &str = "castnet";

/// Operations of a transaction, or comparisons.
const OPS_MAX: usize = 128;
/// Bytes of a transaction that writes.
const REQUEST_BYTES_MAX: usize = 3 << 19;
/// How long an election takes after a leader has died.
const ELECTION: Duration = Duration::from_millis(1500);
/// How long a call waits for a leader that does not say that it will not (`hasleader`).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(7);
/// The shortest time to live of a lease, in seconds: one and a half times an election.
const TTL_MIN: i64 = 2;

/// A cluster, until it is dropped.
pub struct EtcdModel {
    shared: Arc<Shared>,
    members: Vec<Option<Server>>,
    _network: Network,
}

/// What the members have in common.
struct Shared {
    state: Mutex<State>,
    /// Calls wait, as for a quorum.
    held: watch::Sender<bool>,
}

impl EtcdModel {
    /// A cluster of so many members, all running.
    pub async fn start(size: usize) -> Self {
        let state = State {
            revision: 1,
            ..State::default()
        };
        let mut model = Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                held: watch::Sender::new(false),
            }),
            members: (0..size).map(|_| None).collect(),
            _network: Network::join(),
        };
        for n in 0..size {
            model.restart(n).await;
        }
        model
    }

    /// Where member `n` serves.
    pub fn socket(&self, n: usize) -> PathBuf {
        format!("etcd{n}").into()
    }

    /// As `kill -9`. Calls that have arrived are performed nevertheless.
    pub async fn kill(&mut self, n: usize) {
        drop(self.members[n].take());
        self.elect();
        // All who were connected know it then.
        sleep(Duration::from_millis(10)).await;
    }

    /// Starts a member that was killed.
    ///
    /// # Panics
    /// It runs.
    pub async fn restart(&mut self, n: usize) {
        let service = Service(self.shared.clone());
        let routes = Routes::new(KvServer::new(service.clone())).add_service(LeaseServer::new(service));
        let address = Address::Unix(self.socket(n));
        self.members[n] = Some(serve(&address, &Security::default(), routes).await.unwrap());
        self.elect();
    }

    fn elect(&self) {
        let is_running: Vec<bool> = self.members.iter().map(Option::is_some).collect();
        self.shared.state.lock().elect(&is_running);
    }

    /// From now on calls take so long.
    pub fn slow(&self, delay: Duration) {
        self.shared.state.lock().delay = delay;
    }

    /// Calls wait from now on, or those that wait are performed, although nobody may wait for their answers any more. No lease ends
    /// meanwhile.
    pub fn hold(&self, held: bool) {
        let mut state = self.shared.state.lock();
        match (self.shared.held.send_replace(held), held) {
            (false, true) => state.end_leases(),
            (true, false) => state.extend_leases(),
            _ => {}
        }
    }

    /// A transaction, the one after so many, is performed, but its client learns nothing of it.
    pub fn lose_answer(&self, answered: usize) {
        self.shared.state.lock().answered = Some(answered);
    }

    /// All clients learn all from now on.
    pub fn lose_none(&self) {
        self.shared.state.lock().answered = None;
    }
}

impl EtcdModel {
    /// What a controller needs to be on it.
    pub fn config(&self) -> EtcdConfig {
        let member = |n| Address::Unix(self.socket(n));
        EtcdConfig {
            members: (0..self.members.len()).map(member).collect(),
            prefix: PREFIX.into(),
            security: Security::default(),
            answer_within: Duration::from_secs(2),
            lead_ttl: DEFAULT_LEAD_TTL,
        }
    }

    /// Ends the lead of a controller, as the end of its lease does.
    pub fn end_lead(&self) {
        let leader = format!("{PREFIX}/leader");
        let mut state = self.shared.state.lock();
        if let Some(lease) = state.latest(leader.as_bytes()).map(|change| change.lease) {
            state.end_lease(lease);
        }
    }

    /// Earlier revisions cannot be read from now on.
    pub fn compact(&self, revision: i64) {
        self.shared.state.lock().compacted = revision;
    }

    /// What it has stored.
    pub fn history(&self) -> History {
        History(self.shared.clone())
    }
}

/// What a cluster has stored.
#[derive(Clone)]
pub struct History(Arc<Shared>);

impl History {
    /// Whether the controllers have ever stored an entry.
    pub fn has_had(&self, table: Table, name: &str) -> bool {
        let key = format!("{PREFIX}/{}/{name}", table.name());
        self.0.state.lock().keys.contains_key(key.as_bytes())
    }
}

impl std::fmt::Debug for EtcdModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdModel")
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}

/// A change of a key.
struct Change {
    /// Revision at which the key was created.
    created: i64,
    /// Revision of the change.
    at: i64,
    /// `None`: the key was deleted.
    value: Option<Vec<u8>>,
    /// 0: none.
    lease: i64,
}

struct Granted {
    ttl: Duration,
    ends: Instant,
}

#[derive(Default)]
struct State {
    revision: i64,
    /// Earlier revisions cannot be read.
    compacted: i64,
    /// The changes of each key, the oldest first.
    keys: BTreeMap<Vec<u8>, Vec<Change>>,
    leases: BTreeMap<i64, Granted>,
    /// The last lease.
    lease: i64,
    /// The member that leads; `None`: there is no quorum.
    leader: Option<usize>,
    /// There is no leader until then: an election.
    elected: Option<Instant>,
    /// Time that calls take.
    delay: Duration,
    /// After so many transactions, one gets no answer.
    answered: Option<usize>,
}

fn refused(text: &str) -> Status {
    Status::invalid_argument(format!("etcdserver: {text}"))
}

fn no_lease() -> Status {
    Status::not_found("etcdserver: requested lease not found")
}

/// Whether a range has a key.
fn is_within(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        _ => key >= start && key < end,
    }
}

impl State {
    /// Without a quorum nothing is performed, and no lease ends. A new leader extends all leases.
    fn elect(&mut self, is_running: &[bool]) {
        if self.leader.is_some() {
            self.end_leases();
        }
        let running: Vec<usize> = (0..is_running.len()).filter(|n| is_running[*n]).collect();
        let same = self.leader.filter(|leader| running.contains(leader));
        let leader = same.or(running.first().copied());
        let leader = leader.filter(|_| running.len() * 2 > is_running.len());
        if leader != self.leader {
            let is_first = self.elected.is_none();
            let takes = if is_first { Duration::ZERO } else { ELECTION };
            self.elected = Some(Instant::now() + takes);
            self.extend_leases();
        }
        self.leader = leader;
    }

    fn has_leader(&self) -> bool {
        self.leader.is_some() && self.elected.is_none_or(|at| at <= Instant::now())
    }

    fn perform<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, Status>) -> Result<T, Status> {
        if !self.has_leader() {
            return Err(Status::unavailable("etcdserver: no leader"));
        }
        self.end_leases();
        act(self)
    }

    /// The last change of a key that exists.
    fn latest(&self, key: &[u8]) -> Option<&Change> {
        let last = self.keys.get(key)?.last();
        last.filter(|change| change.value.is_some())
    }

    fn check_range(&self, request: &api::RangeRequest) -> Result<(), Status> {
        let out_of_range = |text| {
            Err(Status::out_of_range(format!(
                "etcdserver: mvcc: required revision {text}"
            )))
        };
        if request.key.is_empty() {
            return Err(refused("key is not provided"));
        }
        match request.revision {
            at if at > self.revision => out_of_range("is a future revision"),
            at if at > 0 && at < self.compacted => out_of_range("has been compacted"),
            _ => Ok(()),
        }
    }

    fn range(&self, request: &api::RangeRequest) -> api::RangeResponse {
        // A transaction sees its own writes.
        let at = match request.revision {
            ..=0 => i64::MAX,
            at => at,
        };
        let found = |(key, changes): (&Vec<u8>, &Vec<Change>)| {
            let change = changes.iter().rev().find(|change| change.at <= at)?;
            Some(api::KeyValue {
                key: key.clone(),
                create_revision: change.created,
                mod_revision: change.at,
                value: change.value.clone()?,
            })
        };
        let all = self.keys.range(request.key.clone()..);
        let all = all.take_while(|(key, _)| is_within(key, &request.key, &request.range_end));
        let mut kvs: Vec<api::KeyValue> = all.filter_map(found).collect();
        let limit = match usize::try_from(request.limit) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(limit) => limit,
        };
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        api::RangeResponse {
            header: self.header(),
            kvs,
            more,
        }
    }

    fn header(&self) -> Option<api::ResponseHeader> {
        Some(api::ResponseHeader {
            revision: self.revision,
        })
    }

    /// Writes or deletes a key at the next revision. Returns whether that is a change.
    fn write(&mut self, key: &[u8], value: Option<Vec<u8>>, lease: i64) -> bool {
        let at = self.revision + 1;
        let created = match self.latest(key) {
            Some(change) => change.created,
            None if value.is_none() => return false,
            None => at,
        };
        let changes = self.keys.entry(key.to_vec()).or_default();
        changes.push(Change {
            created,
            at,
            value,
            lease,
        });
        true
    }

    /// Deletes those of these keys that exist. Returns whether there was one.
    fn delete(&mut self, is_one: impl Fn(&[u8], &Change) -> bool) -> bool {
        let is_one = |(key, changes): &(&Vec<u8>, &Vec<Change>)| {
            let last = changes.last().filter(|change| change.value.is_some());
            last.is_some_and(|change| is_one(key, change))
        };
        let all = self.keys.iter().filter(is_one);
        let keys: Vec<Vec<u8>> = all.map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.write(key, None, 0);
        }
        !keys.is_empty()
    }

    /// What etcd refuses whatever it has stored.
    fn check(request: &api::TxnRequest) -> Result<(), Status> {
        let lists = [&request.success, &request.failure];
        if request.compare.len() > OPS_MAX || lists.iter().any(|ops| ops.len() > OPS_MAX) {
            return Err(refused("too many operations in txn request"));
        }
        let mut writes = false;
        for ops in lists {
            let (mut puts, mut deletes) = (Vec::new(), Vec::new());
            for op in ops {
                match &op.request {
                    Some(Op::RequestPut(put)) => puts.push(&put.key),
                    Some(Op::RequestDeleteRange(delete)) => deletes.push(delete),
                    Some(Op::RequestRange(_)) | None => {}
                }
            }
            writes |= !puts.is_empty() || !deletes.is_empty();
            let all = puts.len();
            puts.sort();
            puts.dedup();
            let is_deleted = |key: &&Vec<u8>| deletes.iter().any(|d| is_within(key, &d.key, &d.range_end));
            if puts.len() < all || puts.iter().any(is_deleted) {
                return Err(refused("duplicate key given in txn request"));
            }
        }
        match writes && request.encoded_len() > REQUEST_BYTES_MAX {
            true => Err(refused("request is too large")),
            false => Ok(()),
        }
    }

    fn is_met(&self, compare: &api::Compare) -> Result<bool, Status> {
        let (created, at) = self
            .latest(&compare.key)
            .map_or((0, 0), |change| (change.created, change.at));
        match (compare.target(), compare.target_union) {
            (CompareTarget::Create, Some(TargetUnion::CreateRevision(wanted))) => Ok(created == wanted),
            (CompareTarget::Mod, Some(TargetUnion::ModRevision(wanted))) => Ok(at == wanted),
            other => Err(Status::unimplemented(format!(
                "the model does not compare {other:?}"
            ))),
        }
    }

    fn transaction(&mut self, request: api::TxnRequest) -> Result<api::TxnResponse, Status> {
        Self::check(&request)?;
        let mut succeeded = true;
        for compare in &request.compare {
            succeeded &= self.is_met(compare)?;
        }
        let ops = match succeeded {
            true => request.success,
            false => request.failure,
        };
        for op in &ops {
            match &op.request {
                Some(Op::RequestRange(range)) => self.check_range(range)?,
                Some(Op::RequestPut(put)) if put.lease != 0 && !self.leases.contains_key(&put.lease) => {
                    return Err(no_lease());
                }
                _ => {}
            }
        }
        let (mut is_changed, mut responses) = (false, Vec::new());
        for op in ops {
            let response = match op.request {
                Some(Op::RequestRange(range)) => Some(OpResult::ResponseRange(self.range(&range))),
                Some(Op::RequestPut(put)) => {
                    is_changed |= self.write(&put.key, Some(put.value), put.lease);
                    None
                }
                Some(Op::RequestDeleteRange(range)) => {
                    is_changed |= self.delete(|key, _| is_within(key, &range.key, &range.range_end));
                    None
                }
                None => None,
            };
            responses.push(api::ResponseOp { response });
        }
        self.revision += i64::from(is_changed);
        Ok(api::TxnResponse {
            header: self.header(),
            succeeded,
            responses,
        })
    }

    fn grant(&mut self, ttl: i64) -> api::LeaseGrantResponse {
        let ttl = ttl.max(TTL_MIN);
        self.lease += 1;
        let granted = Granted {
            ttl: Duration::from_secs(ttl.cast_unsigned()),
            ends: Instant::now(),
        };
        self.leases.insert(self.lease, granted);
        self.renew(self.lease);
        api::LeaseGrantResponse { id: self.lease, ttl }
    }

    fn renew(&mut self, id: i64) -> api::LeaseKeepAliveResponse {
        let Some(lease) = self.leases.get_mut(&id) else {
            return api::LeaseKeepAliveResponse { ttl: 0 };
        };
        lease.ends = Instant::now() + lease.ttl;
        let ttl = lease.ttl.as_secs().cast_signed();
        api::LeaseKeepAliveResponse { ttl }
    }

    fn revoke(&mut self, id: i64) -> Result<api::LeaseRevokeResponse, Status> {
        match self.leases.contains_key(&id) {
            true => self.end_lease(id),
            false => return Err(no_lease()),
        }
        Ok(api::LeaseRevokeResponse {})
    }

    /// Ends a lease, and its keys with it.
    fn end_lease(&mut self, id: i64) {
        self.leases.remove(&id);
        let is_changed = self.delete(|_, change| change.lease == id);
        self.revision += i64::from(is_changed);
    }

    fn end_leases(&mut self) {
        let now = Instant::now();
        let over = self.leases.iter().filter(|(_, lease)| lease.ends <= now);
        let over: Vec<i64> = over.map(|(id, _)| *id).collect();
        for id in over {
            self.end_lease(id);
        }
    }

    /// From the end of an election on, if there is one.
    fn extend_leases(&mut self) {
        let from = self
            .elected
            .map_or_else(Instant::now, |at| at.max(Instant::now()));
        for lease in self.leases.values_mut() {
            lease.ends = from + lease.ttl;
        }
    }
}

/// A member.
#[derive(Clone)]
struct Service(Arc<Shared>);

impl Service {
    async fn perform<T: Send + 'static>(
        &self,
        metadata: &MetadataMap,
        act: impl FnOnce(&mut State) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let shared = self.0.clone();
        if !metadata.contains_key("hasleader") && !shared.state.lock().has_leader() {
            sleep(REQUEST_TIMEOUT).await;
            return Err(Status::unavailable("etcdserver: request timed out"));
        }
        // It goes on if its client has gone.
        let performed = tokio::spawn(async move {
            let delay = shared.state.lock().delay;
            if !delay.is_zero() {
                sleep(delay).await;
            }
            let mut held = shared.held.subscribe();
            let _ = held.wait_for(|held| !held).await;
            shared.state.lock().perform(act)
        });
        performed.await.unwrap().map(Response::new)
    }
}

#[tonic::async_trait]
impl Kv for Service {
    async fn range(
        &self,
        request: Request<api::RangeRequest>,
    ) -> Result<Response<api::RangeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.perform(&metadata, move |state| {
            state.check_range(&request)?;
            Ok(state.range(&request))
        })
        .await
    }

    async fn txn(&self, request: Request<api::TxnRequest>) -> Result<Response<api::TxnResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.perform(&metadata, move |state| {
            let answer = state.transaction(request)?;
            match state.answered {
                Some(0) => {
                    state.answered = None;
                    Err(Status::unavailable("etcdserver: request timed out"))
                }
                answered => {
                    state.answered = answered.map(|answered| answered - 1);
                    Ok(answer)
                }
            }
        })
        .await
    }
}

#[tonic::async_trait]
impl Lease for Service {
    async fn lease_grant(
        &self,
        request: Request<api::LeaseGrantRequest>,
    ) -> Result<Response<api::LeaseGrantResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.perform(&metadata, move |state| Ok(state.grant(request.ttl)))
            .await
    }

    async fn lease_revoke(
        &self,
        request: Request<api::LeaseRevokeRequest>,
    ) -> Result<Response<api::LeaseRevokeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.perform(&metadata, move |state| state.revoke(request.id))
            .await
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<api::LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<api::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (metadata, _, mut requests) = request.into_parts();
        let service = self.clone();
        let (to, from) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let renewed = service.perform(&metadata, move |state| Ok(state.renew(request.id)));
                let renewed = renewed.await;
                let goes_on = renewed.is_ok();
                if to.send(renewed.map(Response::into_inner)).await.is_err() || !goes_on {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(from)))
    }
}
