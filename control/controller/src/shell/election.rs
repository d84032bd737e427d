//! One of several controllers on etcd: it leads, or waits until it can.

use std::sync::Arc;
use std::time::Duration;

use castnet_proto::transport::Address;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::error::StartError;
use crate::shell::front::Front;
use crate::shell::shared::Shared;
use crate::store::StoreError;
use crate::store::etcd::{Campaign, Candidate, EtcdConfig};

/// Pause between attempts to lead, and after one for which an operator is needed.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_REFUSED: Duration = Duration::from_secs(30);

/// The controller's state while it leads.
pub(crate) type Present = Arc<Mutex<Option<Arc<Shared>>>>;

/// Stops the controller if the election is dropped, as if killed.
struct Leads(Present);

impl Drop for Leads {
    fn drop(&mut self) {
        if let Some(shared) = self.0.lock().take() {
            shared.stop_now();
        }
    }
}

/// Leads whenever it can, until it is stopped.
pub(crate) async fn run(
    config: Config,
    etcd: EtcdConfig,
    address: Address,
    (front, present, dead): (Front, Present, CancellationToken),
    stop: CancellationToken,
) {
    let candidate = Candidate::new(&etcd, &address.to_string());
    let mut last = String::new();
    while !stop.is_cancelled() {
        let mut pause = PAUSE;
        let (why, leader) = match candidate.campaign().await {
            Ok(Campaign::Lost(leader)) => (format!("the controller at {leader} leads"), Some(leader)),
            Ok(Campaign::Won(store)) => {
                let lead = store.lead().clone();
                let store = Arc::new(store);
                match crate::begin(config.clone(), store, &address, Some(lead.clone()), &dead).await {
                    Ok(shared) => {
                        *present.lock() = Some(shared.clone());
                        let leads = Leads(present.clone());
                        front.lead(&shared);
                        tracing::warn!("this controller leads");
                        tokio::select! {
                            biased;
                            () = lead.lost() => {}
                            () = stop.cancelled() => {}
                        }
                        front.wait("the controller has lost the lead".into(), None);
                        drop(leads);
                        shared.stop().await;
                        ("the controller has lost the lead".into(), None)
                    }
                    Err(error) => {
                        lead.resign().await;
                        if matches!(
                            error,
                            StartError::Store(StoreError::Refused { .. }) | StartError::OtherFabric { .. }
                        ) {
                            pause = PAUSE_REFUSED;
                        }
                        (StartError::to_string(&error), None)
                    }
                }
            }
            Err(error) => (error.to_string(), None),
        };
        if last != why {
            tracing::warn!(why, "this controller does not lead");
            last.clone_from(&why);
        }
        front.wait(why, leader);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = sleep(pause) => {}
        }
    }
}
