//! Members that come to a group that exists, or are put out.

use castnet_console::api;
use castnet_console::exit::Outcome;
use castnet_console::output::{Done, Output};
use castnet_proto::transport::ControllerClient;
use serde::Serialize;

use super::{last_word, refused, still_pending};

#[derive(Debug, Serialize)]
struct Added {
    group: String,
    host: String,
    added: bool,
    phase: String,
}

#[derive(Debug, Serialize)]
struct Evicted {
    group: String,
    member: String,
    pending_switches: Vec<String>,
}

pub(super) async fn add(
    controller: &mut ControllerClient,
    group: String,
    host: String,
    output: Output,
) -> Outcome {
    let request = api::AddMemberRequest {
        group: group.clone(),
        host: host.clone(),
    };
    let answer = controller.add_member(request).await;
    let answer = answer.map_err(refused)?.into_inner();
    let next = match answer.phase() {
        api::GroupPhase::Active | api::GroupPhase::Degraded => {
            "the group runs: a receiver of messages joins with the next one (castnet host receive --late), others when the \
             group waits for its members again"
        }
        _ => "the group waits until it has joined",
    };
    output.show(&Done {
        sentence: match answer.added {
            true => format!("{host} is now a member of group {group}; {next}"),
            false => format!("{host} is a member of group {group} already"),
        },
        facts: Added {
            phase: last_word(answer.phase().as_str_name()),
            added: answer.added,
            group,
            host,
        },
    })
}

pub(super) async fn evict(
    controller: &mut ControllerClient,
    group: String,
    member: String,
    output: Output,
) -> Outcome {
    let request = api::EvictMemberRequest {
        group: group.clone(),
        member: member.clone(),
    };
    let answer = controller.evict_member(request).await;
    let pending_switches = answer.map_err(refused)?.into_inner().pending_switches;
    let later = match pending_switches.is_empty() {
        true => String::new(),
        false => format!(
            "; {} cannot be reached now, and may wait for it until then",
            pending_switches.join(", ")
        ),
    };
    let pending = still_pending(&pending_switches);
    let done = Done {
        sentence: format!("{member} is put out of group {group}{later}"),
        facts: Evicted {
            group,
            member,
            pending_switches,
        },
    };
    output.conclude(&done, pending)
}
