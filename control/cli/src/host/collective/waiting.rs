//! Reports what a rank waits for while it joins: missing ranks, or the controller.

use std::sync::Arc;
use std::time::Duration;

use castnet_comm::{CommConfig, Fallback};
use castnet_console::api;
use castnet_console::output::{Output, remark};
use castnet_proto::transport::{Call, Clients, Connection, Controllers};
use indicatif::ProgressBar;

use super::RankArgs;

const SILENT: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(1);

/// Reports beside the thread that waits, until it is dropped, over the connection with which that joins.
pub(super) struct Waiting {
    reports: Option<(Call<()>, Arc<Connection>)>,
    bar: ProgressBar,
}

impl Waiting {
    pub(super) fn begin(rank: &RankArgs, config: &CommConfig, output: Output) -> Self {
        let bar = output.bar(None, "{spinner} {elapsed} {wide_msg}");
        let (name, job, own_bar) = (rank.name.clone(), rank.job.clone(), bar.clone());
        let has_group = config.fallback != Fallback::Only;
        let controllers = config.controller.clone();
        let report = |clients: Clients| async move {
            tokio::time::sleep(SILENT).await;
            let mut last = String::new();
            loop {
                let words = ask(&clients, &controllers, &job, has_group).await;
                own_bar.set_message(format!("{name} {words}"));
                own_bar.tick();
                if own_bar.is_hidden() && words != last {
                    remark(&format!("{name} {words}"));
                    last = words;
                }
                tokio::time::sleep(INTERVAL).await;
            }
        };
        // Without it, joining fails as well, and says why.
        let connection = Connection::to(&config.controller, &config.security).ok();
        let reports =
            connection.map(|connection| (connection.spawn(report(connection.clients().clone())), connection));
        Self { reports, bar }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.reports = None;
        self.bar.finish_and_clear();
    }
}

async fn ask(clients: &Clients, controllers: &Controllers, job: &str, has_group: bool) -> String {
    let Ok(mut client) = clients.leading().await else {
        return format!("waits for the controller at {controllers}");
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
    fn the_controllers_reason_is_reported() {
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
