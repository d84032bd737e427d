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
use crate::store::etcd::{Campaign, Candidate, EtcdConfig};
use crate::store::{Store, Stored};

/// Pause between attempts to lead, and after a switch has refused what this controller would come back with.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_REFUSED: Duration = Duration::from_secs(5);

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
    // The epoch with which a switch has refused it, and why.
    let mut refused: Option<(u64, String)> = None;
    while !stop.is_cancelled() {
        let mut pause = PAUSE;
        let (why, leader) = match candidate.campaign().await {
            Ok(Campaign::Lost(leader)) => (format!("the controller at {leader} leads"), Some(leader)),
            Ok(Campaign::Won(store)) => {
                let lead = store.lead().clone();
                let store = Arc::new(store);
                let begun = match still_refused(&*store, refused.as_ref()).await {
                    None => crate::begin(config.clone(), store, &address, Some(lead.clone()), &dead).await,
                    Some(why) => {
                        pause = PAUSE_REFUSED;
                        Err(StartError::Refused(why))
                    }
                };
                match begun {
                    Ok(shared) => {
                        *present.lock() = Some(shared.clone());
                        let leads = Leads(present.clone());
                        front.lead(&shared);
                        tracing::warn!("this controller leads");
                        tokio::select! {
                            () = lead.lost() => {}
                            () = stop.cancelled() => {}
                        }
                        front.wait("the controller has lost the lead".into(), None);
                        drop(leads);
                        shared.stop().await;
                        refused = shared.superseded.get().map(|why| (shared.epoch, why.clone()));
                        ("the controller has lost the lead".into(), None)
                    }
                    Err(error) => {
                        lead.resign().await;
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
            () = sleep(pause) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Why it would be refused again: nobody has led with this store since. Each attempt has a larger epoch, and one would be accepted at last,
/// although the groups of the other controller are not in this store.
async fn still_refused(store: &dyn Store, refused: Option<&(u64, String)>) -> Option<String> {
    let (epoch, why) = refused?;
    match Stored::epoch(store).await {
        Ok(now) if now == *epoch => Some(format!(
            "{why}. It leads elsewhere: nobody has led with the store in this etcd since epoch {epoch}, as where that is a restored snapshot, or \
             another cluster has the same store. Stop the other one, or give this store a larger epoch: castnet store export, and import with --above"
        )),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}
