//! What a rank tells while it waits for its group: who is missing, or that the controller is.

use std::time::Duration;

use castnet_comm::{CommConfig, Fallback};
use castnet_console::output::{Output, remark};
use castnet_console::{api, connect};
use castnet_proto::transport::{Address, Security};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::RankArgs;

/// Nobody reads what is over sooner.
const SILENT: Duration = Duration::from_secs(2);
/// How often the controller is asked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Tells beside the thread that waits. Dropped, it says no more.
pub(super) struct Waiting {
    task: JoinHandle<()>,
    bar: ProgressBar,
}

impl Waiting {
    /// Begins to tell, in words on stderr, or on its last line where that is a terminal.
    pub(super) fn begin(rank: &RankArgs, config: &CommConfig, output: Output) -> Self {
        let bar = match ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
            Ok(style) if output.shows_progress() => ProgressBar::new_spinner().with_style(style),
            _ => ProgressBar::hidden(),
        };
        let (address, security) = (config.controller.clone(), config.security.clone());
        let (name, job, own_bar) = (rank.name.clone(), rank.job.clone(), bar.clone());
        let has_group = config.fallback != Fallback::Only;
        let task = Handle::current().spawn(async move {
            tokio::time::sleep(SILENT).await;
            let mut told = String::new();
            loop {
                let words = ask(&address, &security, &job, has_group).await;
                own_bar.set_message(format!("{name} {words}"));
                own_bar.tick();
                if own_bar.is_hidden() && words != told {
                    remark(&format!("{name} {words}"));
                    told = words;
                }
                tokio::time::sleep(INTERVAL).await;
            }
        });
        Self { task, bar }
    }

    /// There is nothing to wait for any more.
    pub(super) fn end(self) {}
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}

/// What the rank waits for, as the controller sees it.
async fn ask(address: &Address, security: &Security, job: &str, has_group: bool) -> String {
    let Ok(mut client) = connect::controller(address, security).await else {
        return format!("waits for the controller at {address}");
    };
    if !has_group {
        return "waits for the other ranks".to_owned();
    }
    let request = api::GetGroupRequest {
        group: job.to_owned(),
    };
    match client.get_group(request).await {
        Ok(answer) => words(answer.into_inner().collective.and_then(|group| group.state)),
        Err(status) if status.code() == tonic::Code::NotFound => "waits for its group".to_owned(),
        Err(status) => format!("waits for the controller: {}", status.message()),
    }
}

fn words(state: Option<api::CollectiveState>) -> String {
    match state
        .map(|state| state.reason)
        .filter(|reason| !reason.is_empty())
    {
        Some(reason) => match reason.starts_with("waits") {
            true => reason,
            false => format!("waits: {reason}"),
        },
        None => "waits for the switches".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controllers_word_is_what_is_told() {
        let state = |reason: &str| {
            let reason = reason.to_owned();
            words(Some(api::CollectiveState {
                reason,
                ..Default::default()
            }))
        };
        assert_eq!(state("waits for rank 2 (host h3)"), "waits for rank 2 (host h3)");
        assert_eq!(state("leaf1 does not answer"), "waits: leaf1 does not answer");
        assert_eq!(state(""), "waits for the switches");
        assert_eq!(words(None), "waits for the switches");
    }
}
