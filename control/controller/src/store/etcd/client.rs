//! Calls to the members of an etcd cluster.

use std::error::Error;
use std::time::Duration;

use castnet_proto::transport::{Address, Security, chain, connect};
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::{EtcdConfig, api};
use api::kv_client::KvClient;
use api::lease_client::LeaseClient;
use api::request_op::Request as Op;
use api::response_op::Response as OpResult;

/// Largest accepted response.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// Members without a quorum refuse the call at once, rather than after some seconds.
#[derive(Clone, Debug)]
pub(super) struct RequireLeader;

impl Interceptor for RequireLeader {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        Ok(request)
    }
}

type Connection = InterceptedService<Channel, RequireLeader>;

/// The members; calls go to one of them until a call fails.
#[derive(Debug)]
pub(super) struct Client {
    members: Vec<Address>,
    security: Security,
    /// Limit of a call.
    within: Duration,
    /// The number of the next attempt, and the connection that the one before made. They try one member after the other.
    present: Mutex<(usize, Option<Channel>)>,
}

impl Client {
    pub(super) fn new(config: &EtcdConfig) -> Self {
        Self {
            members: config.members.clone(),
            security: config.security.clone(),
            within: config.answer_within,
            present: Mutex::default(),
        }
    }

    /// The connection, and the number of the attempt after it.
    async fn connection(&self) -> Result<(usize, Connection), Status> {
        let (first, present) = self.present.lock().clone();
        if let Some(channel) = present {
            return Ok((first, InterceptedService::new(channel, RequireLeader)));
        }
        let mut error = Status::unavailable("no member is configured");
        for attempt in first..first + self.members.len() {
            let member = &self.members[attempt % self.members.len()];
            match timeout(self.within, connect(member, &self.security)).await {
                Ok(Ok(channel)) => {
                    // Unless others have gone on meanwhile.
                    let mut present = self.present.lock();
                    if present.0 <= attempt {
                        *present = (attempt + 1, Some(channel.clone()));
                    }
                    drop(present);
                    return Ok((attempt + 1, InterceptedService::new(channel, RequireLeader)));
                }
                Ok(Err(failed)) if failed.is_transient() => error = Status::unavailable(failed.to_string()),
                Ok(Err(failed)) => error = Status::failed_precondition(failed.to_string()),
                Err(_) => error = Status::unavailable(format!("{member}: no answer")),
            }
        }
        Err(error)
    }

    /// Performs a call. After a failure, the next call goes to another member, unless others have gone there already.
    async fn call<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        call: impl FnOnce(Connection) -> F,
    ) -> Result<T, Status> {
        self.call_within(self.within, call).await
    }

    async fn call_within<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        limit: Duration,
        call: impl FnOnce(Connection) -> F,
    ) -> Result<T, Status> {
        let (next, connection) = self.connection().await?;
        let failed = match timeout(limit, call(connection)).await {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => match status.source() {
                Some(cause) => Status::new(status.code(), self.broken(cause)),
                None => status,
            },
            Err(_) => Status::deadline_exceeded(format!("no answer within {limit:?}")),
        };
        let mut present = self.present.lock();
        if present.0 == next {
            present.1 = None;
        }
        Err(failed)
    }

    /// Why the connection broke. With TLS 1.3 a client connects before the other end has looked at its certificate.
    fn broken(&self, cause: &dyn Error) -> String {
        let is_tls = |member: &Address| matches!(member, Address::Tcp { tls: true, .. });
        let hint = match self.members.iter().any(is_tls) {
            true => " (as it is by a member that does not trust the certificate of this controller)",
            false => "",
        };
        format!("{}{hint}", chain(cause))
    }

    pub(super) async fn range(&self, request: api::RangeRequest) -> Result<api::RangeResponse, Status> {
        self.call(|c| async {
            KvClient::new(c)
                .max_decoding_message_size(ANSWER_BYTES_MAX)
                .range(request)
                .await
        })
        .await
    }

    /// A transaction. If it fails, it may be performed all the same, also later.
    pub(super) async fn transaction(&self, request: api::TxnRequest) -> Result<api::TxnResponse, Status> {
        self.call(|c| async {
            KvClient::new(c)
                .max_decoding_message_size(ANSWER_BYTES_MAX)
                .txn(request)
                .await
        })
        .await
    }

    /// Returns the lease and its time to live.
    pub(super) async fn grant(&self, ttl: Duration) -> Result<(i64, Duration), Status> {
        let ttl = ttl.as_secs().cast_signed();
        let request = api::LeaseGrantRequest { ttl };
        let granted = self.call(|c| async { LeaseClient::new(c).lease_grant(request).await });
        let api::LeaseGrantResponse { id, ttl } = granted.await?;
        Ok((id, Duration::from_secs(ttl.max(0).cast_unsigned())))
    }

    pub(super) async fn revoke(&self, id: i64) -> Result<(), Status> {
        let request = api::LeaseRevokeRequest { id };
        let revoked = self.call(|c| async { LeaseClient::new(c).lease_revoke(request).await });
        revoked.await.map(drop)
    }

    /// Returns whether the lease lives on. `limit`: of the call.
    pub(super) async fn keep_alive(&self, id: i64, limit: Duration) -> Result<bool, Status> {
        let request = tokio_stream::once(api::LeaseKeepAliveRequest { id });
        let answer = self.call_within(limit, |c| async {
            let mut answers = LeaseClient::new(c).lease_keep_alive(request).await?.into_inner();
            let answer = answers.message().await?;
            let answer = answer.ok_or_else(|| Status::unavailable("no answer"))?;
            Ok(Response::new(answer))
        });
        Ok(answer.await?.ttl > 0)
    }
}

/// Fails the transaction unless the key was created at this revision; 0: it does not exist.
pub(super) fn created_at(key: &[u8], revision: i64) -> api::Compare {
    api::Compare {
        target: api::compare::CompareTarget::Create.into(),
        key: key.into(),
        target_union: Some(api::compare::TargetUnion::CreateRevision(revision)),
    }
}

/// Fails the transaction unless the key was last changed at this revision; 0: it does not exist.
pub(super) fn changed_at(key: &[u8], revision: i64) -> api::Compare {
    api::Compare {
        target: api::compare::CompareTarget::Mod.into(),
        key: key.into(),
        target_union: Some(api::compare::TargetUnion::ModRevision(revision)),
    }
}

fn op(request: Op) -> api::RequestOp {
    api::RequestOp {
        request: Some(request),
    }
}

pub(super) fn get(key: &[u8]) -> api::RequestOp {
    op(Op::RequestRange(api::RangeRequest {
        key: key.into(),
        ..Default::default()
    }))
}

pub(super) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> api::RequestOp {
    op(Op::RequestPut(api::PutRequest { key, value, lease }))
}

pub(super) fn delete(key: Vec<u8>) -> api::RequestOp {
    let range_end = Vec::new();
    op(Op::RequestDeleteRange(api::DeleteRangeRequest { key, range_end }))
}

/// Deletes all keys that start with `prefix`.
pub(super) fn delete_all(prefix: &[u8]) -> api::RequestOp {
    op(Op::RequestDeleteRange(api::DeleteRangeRequest {
        key: prefix.into(),
        range_end: end_of(prefix),
    }))
}

/// The first key after all those that start with `prefix`, which ends with `/`.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The entries that the gets of a transaction found, one after the other.
pub(super) fn found(response: api::TxnResponse) -> impl Iterator<Item = api::KeyValue> {
    let each = response.responses.into_iter();
    each.flat_map(|op| match op.response {
        Some(OpResult::ResponseRange(range)) => range.kvs,
        None => Vec::new(),
    })
}

pub(super) fn revision(header: Option<&api::ResponseHeader>) -> i64 {
    header.map_or(0, |h| h.revision)
}
