//! What etcd answers to the calls of the store: the model, and where it is installed etcd itself.

use castnet_proto::transport::{Security, connect};
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::common::etcd::{Cluster, Etcd, POLL};
use api::compare::{CompareTarget, TargetUnion};
use api::kv_client::KvClient;
use api::lease_client::LeaseClient;
use api::request_op::Request as Op;
use api::response_op::Response as OpResult;
use castnet_sim_control::etcd::{EtcdModel, api};

#[tokio::test(start_paused = true)]
async fn the_model_answers_as_etcd() {
    answers(&EtcdModel::start(1).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_answers_so() {
    if let Some(cluster) = Cluster::start("etcd_calls::etcd_answers_so") {
        answers(&cluster).await;
    }
}

async fn answers(etcd: &impl Etcd) {
    let member = &etcd.config().members[0];
    let calls = Calls(connect(member, &Security::default()).await.unwrap());
    revisions(&calls).await;
    refusals(&calls).await;
    leases(&calls).await;
    let now = calls.write(vec![put("a", "5", 0)]).await;
    etcd.compact(now);
    assert_eq!(calls.found(get("a", "", 0, now)).await.len(), 1);
    let compacted = calls.range(get("a", "", 0, now - 1)).await;
    is_refused(
        compacted,
        Code::OutOfRange,
        "mvcc: required revision has been compacted",
    );
}

fn op(request: Op) -> api::RequestOp {
    api::RequestOp {
        request: Some(request),
    }
}

fn put(key: &str, value: &str, lease: i64) -> api::RequestOp {
    let (key, value) = (key.into(), value.into());
    op(Op::RequestPut(api::PutRequest { key, value, lease }))
}

fn delete(key: &str, end: &str) -> api::RequestOp {
    op(Op::RequestDeleteRange(api::DeleteRangeRequest {
        key: key.into(),
        range_end: end.into(),
    }))
}

fn get(key: &str, end: &str, limit: i64, revision: i64) -> api::RangeRequest {
    api::RangeRequest {
        key: key.into(),
        range_end: end.into(),
        limit,
        revision,
    }
}

fn created(key: &str, at: i64) -> api::Compare {
    api::Compare {
        target: CompareTarget::Create.into(),
        key: key.into(),
        target_union: Some(TargetUnion::CreateRevision(at)),
    }
}

fn changed(key: &str, at: i64) -> api::Compare {
    api::Compare {
        target: CompareTarget::Mod.into(),
        key: key.into(),
        target_union: Some(TargetUnion::ModRevision(at)),
    }
}

fn is_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, why: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code);
    assert_eq!(status.message(), format!("etcdserver: {why}").as_str());
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The values that the gets of a transaction have found.
fn values(answer: &api::TxnResponse) -> Vec<String> {
    let found = answer.responses.iter().filter_map(|op| op.response.as_ref());
    found
        .flat_map(|OpResult::ResponseRange(range)| range.kvs.iter().map(|kv| text(&kv.value)))
        .collect()
}

/// A client.
struct Calls(Channel);

impl Calls {
    async fn range(&self, request: api::RangeRequest) -> Result<api::RangeResponse, Status> {
        let answer = KvClient::new(self.0.clone()).range(request).await;
        answer.map(Response::into_inner)
    }

    async fn transaction(
        &self,
        compare: Vec<api::Compare>,
        success: Vec<api::RequestOp>,
        failure: Vec<api::RequestOp>,
    ) -> Result<api::TxnResponse, Status> {
        let request = api::TxnRequest {
            compare,
            success,
            failure,
        };
        let answer = KvClient::new(self.0.clone()).txn(request).await;
        answer.map(Response::into_inner)
    }

    /// Writes without a condition. Returns the revision.
    async fn write(&self, ops: Vec<api::RequestOp>) -> i64 {
        let answer = self.transaction(Vec::new(), ops, Vec::new()).await.unwrap();
        assert!(answer.succeeded);
        answer.header.unwrap().revision
    }

    /// Keys with their values, and the revisions at which they were created and changed.
    async fn found(&self, request: api::RangeRequest) -> Vec<(String, String, i64, i64)> {
        let found = self.range(request).await.unwrap().kvs.into_iter();
        found
            .map(|kv| {
                (
                    text(&kv.key),
                    text(&kv.value),
                    kv.create_revision,
                    kv.mod_revision,
                )
            })
            .collect()
    }

    async fn grant(&self) -> api::LeaseGrantResponse {
        let request = api::LeaseGrantRequest { ttl: 1 };
        let granted = LeaseClient::new(self.0.clone()).lease_grant(request).await;
        granted.unwrap().into_inner()
    }

    async fn revoke(&self, id: i64) -> Result<Response<api::LeaseRevokeResponse>, Status> {
        let request = api::LeaseRevokeRequest { id };
        LeaseClient::new(self.0.clone()).lease_revoke(request).await
    }

    /// Returns the time to live.
    async fn keep_alive(&self, id: i64) -> i64 {
        let request = tokio_stream::once(api::LeaseKeepAliveRequest { id });
        let answers = LeaseClient::new(self.0.clone()).lease_keep_alive(request).await;
        let answer = answers.unwrap().into_inner().message().await;
        answer.unwrap().unwrap().ttl
    }
}

async fn revisions(calls: &Calls) {
    let start = calls.range(get("a", "", 0, 0)).await.unwrap();
    let start = start.header.unwrap().revision;
    let entry = |key: &str, value: &str, created: i64, changed: i64| {
        (key.to_owned(), value.to_owned(), start + created, start + changed)
    };
    let both = calls.write(vec![put("a", "1", 0), put("b", "1", 0)]).await;
    assert_eq!(both, start + 1);
    assert_eq!(calls.write(vec![put("a", "2", 0)]).await, start + 2);
    let now = calls.found(get("a", "c", 0, 0)).await;
    assert_eq!(now, [entry("a", "2", 1, 2), entry("b", "1", 1, 1)]);
    let before = calls.found(get("a", "c", 0, start + 1)).await;
    assert_eq!(before, [entry("a", "1", 1, 1), entry("b", "1", 1, 1)]);
    assert!(calls.found(get("a", "c", 0, start)).await.is_empty());
    for (limit, revision, found, more) in [(1, 0, 1, true), (2, start + 1, 2, false)] {
        let page = calls.range(get("a", "c", limit, revision)).await.unwrap();
        assert_eq!((page.kvs.len(), page.more), (found, more));
        assert_eq!(page.header.unwrap().revision, start + 2, "that of now");
    }
    let got = |key| op(Op::RequestRange(get(key, "", 0, 0)));
    let met = vec![
        created("a", start + 1),
        changed("a", start + 2),
        created("x", 0),
        changed("x", 0),
    ];
    let ops = vec![got("a"), put("a", "3", 0), got("a")];
    let answer = calls.transaction(met, ops, Vec::new()).await.unwrap();
    assert!(answer.succeeded);
    assert_eq!(values(&answer), ["2", "3"]);
    for unmet in [changed("a", start + 2), created("a", start + 3), created("a", 0)] {
        let (success, failure) = (vec![put("b", "9", 0)], vec![got("a"), got("x")]);
        let answer = calls.transaction(vec![unmet], success, failure).await.unwrap();
        assert!(!answer.succeeded);
        assert_eq!(values(&answer), ["3"]);
        assert_eq!(answer.header.unwrap().revision, start + 3);
    }
    assert_eq!(calls.write(vec![delete("x", "")]).await, start + 3);
    assert_eq!(calls.write(vec![delete("a", "c")]).await, start + 4);
    assert!(calls.found(get("a", "c", 0, 0)).await.is_empty());
    assert_eq!(calls.write(vec![put("a", "4", 0)]).await, start + 5);
    let again = calls.found(get("a", "c", 0, 0)).await;
    assert_eq!(again, [entry("a", "4", 5, 5)]);
    let before = calls.found(get("a", "c", 0, start + 3)).await;
    assert_eq!(before, [entry("a", "3", 1, 3), entry("b", "1", 1, 1)]);
}

async fn refusals(calls: &Calls) {
    let many = |count| {
        let keys = (0..count).map(|n| put(&format!("k{n}"), "", 0));
        keys.collect::<Vec<_>>()
    };
    calls.write(many(128)).await;
    let before = calls.found(get("a", "l", 0, 0)).await;
    for (ops, why) in [
        (many(129), "too many operations in txn request"),
        (
            vec![put("a", "", 0), put("a", "", 0)],
            "duplicate key given in txn request",
        ),
        (
            vec![delete("a", "c"), put("b", "", 0)],
            "duplicate key given in txn request",
        ),
        (vec![put("a", &"x".repeat(1_600_000), 0)], "request is too large"),
    ] {
        let answer = calls.transaction(Vec::new(), ops, Vec::new()).await;
        is_refused(answer, Code::InvalidArgument, why);
    }
    let of_no_lease = vec![put("b", "", 0), put("a", "", 77)];
    let answer = calls.transaction(Vec::new(), of_no_lease, Vec::new()).await;
    is_refused(answer, Code::NotFound, "requested lease not found");
    let answer = calls.range(get("", "", 0, 0)).await;
    is_refused(answer, Code::InvalidArgument, "key is not provided");
    let answer = calls.range(get("a", "", 0, i64::MAX)).await;
    is_refused(
        answer,
        Code::OutOfRange,
        "mvcc: required revision is a future revision",
    );
    assert_eq!(calls.found(get("a", "l", 0, 0)).await, before);
}

async fn leases(calls: &Calls) {
    let api::LeaseGrantResponse { id, ttl } = calls.grant().await;
    assert_eq!((ttl, calls.keep_alive(id).await), (2, 2));
    let keys = ["p/a", "p/b", "p/c"].map(|key| put(key, "", id));
    let at = calls.write(keys.into()).await;
    // It is not the lease's any more.
    calls.write(vec![put("p/c", "", 0)]).await;
    calls.revoke(id).await.unwrap();
    let left = calls.range(get("p/", "p0", 0, 0)).await.unwrap();
    assert_eq!((left.kvs.len(), left.header.unwrap().revision), (1, at + 2));
    assert_eq!(calls.keep_alive(id).await, 0);
    is_refused(
        calls.revoke(id).await,
        Code::NotFound,
        "requested lease not found",
    );
    // This one ends by itself.
    let id = calls.grant().await.id;
    calls.write(vec![put("p/d", "", id)]).await;
    while !calls.found(get("p/d", "", 0, 0)).await.is_empty() {
        sleep(POLL).await;
    }
    assert_eq!(calls.keep_alive(id).await, 0);
}
