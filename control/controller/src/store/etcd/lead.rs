//! Which of several controllers leads: the one that has created the key PREFIX/leader, under a lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::api;
use super::client::{Client, created_at, found, get, put};

/// Pause between renewals of the lease.
const RENEWAL: Duration = Duration::from_millis(400);
/// Pause after a renewal that failed.
const AGAIN: Duration = Duration::from_millis(50);

/// The lead of this controller.
#[derive(Debug)]
pub(crate) struct Lead {
    pub(super) client: Arc<Client>,
    pub(super) key: Vec<u8>,
    pub(super) lease: i64,
    /// Revision at which the key was created.
    pub(super) created: i64,
    /// How other controllers and their clients reach this one.
    pub(super) address: String,
    /// Until then no other controller can have the lead.
    holds_until: watch::Sender<Instant>,
    lost: CancellationToken,
}

/// Takes the lead unless another controller has it; then returns its address. `ttl`: of the lease, in whole seconds.
pub(super) async fn campaign(
    client: &Arc<Client>,
    key: Vec<u8>,
    address: &str,
    ttl: Duration,
) -> Result<Result<Arc<Lead>, String>, Status> {
    let range = api::RangeRequest {
        key: key.clone(),
        ..Default::default()
    };
    if let Some(leader) = client.range(range).await?.kvs.pop() {
        return Ok(Err(text(leader.value)));
    }
    let began = Instant::now();
    let (lease, ttl) = client.grant(ttl).await?;
    let request = api::TxnRequest {
        compare: vec![created_at(&key, 0)],
        success: vec![put(key.clone(), address.into(), lease)],
        failure: vec![get(&key)],
    };
    let answer = match client.transaction(request).await {
        Ok(answer) => answer,
        Err(status) => {
            // The key may be there, but ends with its lease.
            let _ = client.revoke(lease).await;
            return Err(status);
        }
    };
    if !answer.succeeded {
        let _ = client.revoke(lease).await;
        let leader = found(answer).next().map(|leader| text(leader.value));
        return Ok(Err(leader.unwrap_or_default()));
    }
    let lead = Arc::new(Lead {
        client: client.clone(),
        key,
        lease,
        created: super::client::revision(answer.header.as_ref()),
        address: address.into(),
        holds_until: watch::Sender::new(began + ttl),
        lost: CancellationToken::new(),
    });
    tokio::spawn(renew(Arc::downgrade(&lead), ttl));
    Ok(Ok(lead))
}

fn text(value: Vec<u8>) -> String {
    String::from_utf8_lossy(&value).into_owned()
}

/// Renews the lease until the lead is lost or dropped. If etcd cannot be reached, it goes on: without a quorum, no other
/// controller can get the lead, and the lease goes on when there is one again.
async fn renew(lead: std::sync::Weak<Lead>, ttl: Duration) {
    let mut pause = RENEWAL;
    loop {
        sleep(pause).await;
        let Some(lead) = lead.upgrade() else { return };
        if lead.lost.is_cancelled() {
            return;
        }
        let began = Instant::now();
        // A member that does not answer leaves time for another one.
        let renewed = lead.client.keep_alive(lead.lease, ttl / 2).await;
        pause = if renewed.is_ok() { RENEWAL } else { AGAIN };
        match renewed {
            Ok(true) => drop(lead.holds_until.send_replace(began + ttl)),
            Ok(false) => lead.lose(),
            Err(error) => tracing::debug!(%error, "lease not renewed"),
        }
    }
}

impl Lead {
    /// Another controller may lead from now on.
    pub(crate) fn lose(&self) {
        self.lost.cancel();
    }

    /// Returns when the lead is lost.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Waits at most for `within` until no other controller can have the lead. Returns whether that is so.
    pub(crate) async fn holds(&self, within: Duration) -> bool {
        let mut renewed = self.holds_until.subscribe();
        let holds = renewed.wait_for(|until| Instant::now() < *until);
        !self.is_lost() && matches!(tokio::time::timeout(within, holds).await, Ok(Ok(_)))
    }

    /// Gives up the lead for another controller.
    pub(crate) async fn resign(&self) {
        self.lose();
        if let Err(error) = self.client.revoke(self.lease).await {
            tracing::debug!(%error, "lease not revoked: it ends by itself");
        }
    }
}
