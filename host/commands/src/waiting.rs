//! Reports what a rank or a member of a group waits for while it joins: missing hosts, or the controller.

use std::sync::Arc;
use std::time::Duration;

use castnet_console::api;
use castnet_console::output::remark;
use castnet_proto::transport::{Call, Clients, Connection, Controllers, Security};
use indicatif::ProgressBar;

const SILENT: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(1);

/// Reports beside the thread that waits, until it is dropped, over the connection with which that joins.
pub(super) struct Waiting {
    reports: Option<(Call<()>, Arc<Connection>)>,
    bar: ProgressBar,
}

/// Who joins what.
pub(super) struct Joiner<'a> {
    pub(super) host: &'a str,
    /// Name of the group; `None`: there is none, and the others are waited for.
    pub(super) group: Option<&'a str>,
    pub(super) controllers: &'a Controllers,
    pub(super) security: &'a Security,
}

impl Waiting {
    /// Shown by the bar or, if that is hidden, as lines on stderr.
    pub(super) fn begin(joiner: &Joiner<'_>, bar: ProgressBar) -> Self {
        let (host, group, own_bar) = (
            joiner.host.to_owned(),
            joiner.group.map(str::to_owned),
            bar.clone(),
        );
        let controllers = joiner.controllers.clone();
        let report = |clients: Clients| async move {
            tokio::time::sleep(SILENT).await;
            let mut last = String::new();
            loop {
                let words = ask(&clients, &controllers, group.as_deref()).await;
                own_bar.set_message(format!("{host} {words}"));
                own_bar.tick();
                if own_bar.is_hidden() && words != last {
                    remark(&format!("{host} {words}"));
                    last = words;
                }
                tokio::time::sleep(INTERVAL).await;
            }
        };
        // Without it, joining fails as well, and says why.
        let connection = Connection::to(joiner.controllers, joiner.security).ok();
        let reports =
            connection.map(|connection| (connection.spawn(report(connection.clients())), connection));
        Self { reports, bar }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.reports = None;
        self.bar.finish_and_clear();
    }
}

async fn ask(clients: &Clients, controllers: &Controllers, group: Option<&str>) -> String {
    let Ok(mut client) = clients.leading().await else {
        return format!("waits for the controller at {controllers}");
    };
    let Some(group) = group else {
        return "waits for the other ranks".to_owned();
    };
    let request = api::GetGroupRequest {
        group: group.to_owned(),
    };
    match client.get_group(request).await {
        Ok(answer) => {
            let group = answer.into_inner();
            let of_ranks = group.collective.and_then(|group| group.state);
            let reason = of_ranks.map(|state| state.reason);
            words(
                &reason
                    .or(group.state.map(|state| state.reason))
                    .unwrap_or_default(),
            )
        }
        Err(status) if status.code() == tonic::Code::NotFound => "waits for its group".to_owned(),
        Err(status) => format!("waits for the controller: {}", status.message()),
    }
}

fn words(reason: &str) -> String {
    match reason {
        "" => "waits for the switches".to_owned(),
        reason if reason.starts_with("waits") => reason.to_owned(),
        reason => format!("waits: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controllers_reason_is_reported() {
        for (reason, expected) in [
            ("waits for rank 2 (host h3)", "waits for rank 2 (host h3)"),
            ("leaf1 does not answer", "waits: leaf1 does not answer"),
            ("", "waits for the switches"),
        ] {
            assert_eq!(words(reason), expected);
        }
    }
}
