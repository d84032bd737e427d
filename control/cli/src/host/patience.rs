//! Why a transfer cannot end: its group is gone, or the source has left it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use castnet_console::api;
use castnet_console::exit::{Failure, Outcome};
use castnet_member::{Dial, Stop};

/// Why a transfer cannot come to its end any more, as the controller sees it; found out beside the transfer, which is
/// then stopped.
#[derive(Clone, Default)]
pub(super) struct Fate(Arc<OnceLock<Failure>>);

impl Fate {
    /// The failure that ended the transfer, instead of the one that it ended with.
    pub(super) fn or<T>(&self, outcome: Outcome<T>) -> Outcome<T> {
        outcome.map_err(|failure| self.0.get().cloned().unwrap_or(failure))
    }

    /// Stops the transfer of `host` when its group is destroyed, or when the source leaves before this receiver has all.
    pub(super) async fn watch(self, controller: Dial, group: String, host: String, stop: Stop) {
        let mut gone_for = 0;
        loop {
            tokio::time::sleep(FATE_INTERVAL).await;
            let request = api::GetGroupRequest { group: group.clone() };
            let Ok(mut client) = controller.connect().await else {
                continue;
            };
            let what = match client.get_group(request).await {
                Ok(answer) => {
                    let state = answer.into_inner().state.unwrap_or_default();
                    let source = state.members.iter().find(|m| m.host == state.source);
                    let is_in = source.is_some_and(|m| m.phase() == api::MemberPhase::Joined);
                    // What was sent last may still be on its way from the port to the file.
                    gone_for = if is_in || state.source == host {
                        0
                    } else {
                        gone_for + 1
                    };
                    if gone_for < 3 {
                        continue;
                    }
                    format!("{} has left group {group} before the end", state.source)
                }
                Err(status) if status.code() == tonic::Code::NotFound => {
                    format!("group {group} was destroyed before the end")
                }
                Err(_) => continue,
            };
            // Set before the stop is asked for: who sees the stop sees why.
            let _ = self.0.set(Failure::failed(what));
            return stop.ask();
        }
    }
}

/// How often a host asks whether its group is still there.
const FATE_INTERVAL: Duration = Duration::from_secs(1);
