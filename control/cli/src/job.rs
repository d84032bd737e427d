//! Jobs: groups whose switches compute with what their ranks send.

use castnet_console::api;
use castnet_console::exit::Outcome;
use castnet_console::output::{Done, Output};
use castnet_console::units::{mode, name};
use castnet_proto::convert::{loss_to_proto, mode_to_proto, straggler_to_proto};
use castnet_rules::{CollectiveMode, LossPolicy, StragglerPolicy};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::group::collective::{rank_flags, timeout_us};
use crate::group::create::Common;
use crate::group::{AtController, in_lanes, job_phase, not_seen, plan, rank_addresses, refused, warning};

/// Creates jobs: groups whose switches compute with what their ranks send (AllReduce, Reduce, Broadcast ...)
#[derive(Debug, Args)]
#[command(
    after_help = "Ranks that start without a job create it (castnet host allreduce --help); one that is created before has its settings, and waits for them. castnet group lists, shows and destroys jobs like all groups.

Examples:
  castnet job plan train --ranks h1,h2,h3,h4 --window 256 --pmtu 4096      where it would be placed, and why
  castnet job create train --ranks h1,h2,h3,h4
  castnet job create train --ranks h1,h2,h3,h4 --reproducible --window 256 --pmtu 4096
  castnet group show train --watch              the tree, the slots in use and the progress of each rank
  castnet group destroy train"
)]
pub(crate) struct JobCommand {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    at: AtController,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates a job; it waits for its ranks (castnet host)
    Create(CreateJob),
    /// Where a job would be placed now, and why; nothing is installed or reserved
    Plan(CreateJob),
}

impl JobCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        match self.verb {
            Verb::Create(create) => {
                let request = create.request();
                let answer = self.at.connect().await?.create_collective(request).await;
                let state = answer.map_err(refused)?.into_inner().group;
                output.show(&created(state.unwrap_or_default(), &self.at.flag()))
            }
            Verb::Plan(create) => {
                let group = api::plan_group_request::Group::Collective(create.request());
                plan::run(&self.at, group, output).await
            }
        }
    }
}

/// A job.
#[derive(Clone, Debug, Args)]
pub(crate) struct CreateJob {
    #[command(flatten)]
    common: Common,
    /// The ranks' hosts, rank 0 first; a host is one rank
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', required = true, value_parser = name)]
    ranks: Vec<String>,
    /// Packets that a rank may have in flight [default: 64]; each switch has slots for two windows and two messages, if it has the memory
    #[arg(id = "window_packets", long = "window", value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(2..=16_384))]
    window: Option<u32>,
    /// Packets of a full message, at most the window [default: 16]
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    message_packets: Option<u32>,
    /// Reduces contributions in rank order: the results are bit-identical in every run; takes memory for one more packet per rank
    /// and slot
    #[arg(long)]
    reproducible: bool,
    /// How switches carry the connections: translated (the default, where switches have memory for it; else augmented, which takes half the
    /// slots), where a rank's packet is acknowledged when its receivers have the
    /// result; augmented, where each switch acknowledges and repeats what it has stored; or terminated, where each switch ends the
    /// connections and works with whole messages
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<CollectiveMode>,
    /// A switch with another mode than the group's, as SWITCH=MODE; give it once for each. An edge between switches of different modes is a
    /// connection of its own
    #[arg(id = "modes", long = "mode-at", value_name = "SWITCH=MODE", value_parser = switch_mode)]
    mode_at: Vec<(String, CollectiveMode)>,
    /// What repairs losses: the switch (repair, the default) or the hosts (reflect)
    #[arg(long, value_name = "POLICY", value_parser = loss)]
    loss_policy: Option<LossPolicy>,
    /// What keeps the queue pairs of ranks alive that wait for a late one: keep-alive (the default), rnr or none
    #[arg(long, value_name = "POLICY", value_parser = straggler)]
    straggler_policy: Option<StragglerPolicy>,
    /// The ACK time-out of the ranks' queue pairs in microseconds, one that queue pairs can have: 4.096 * 2^N [default: 67108, N = 14]
    #[arg(long, value_name = "US", value_parser = ack_timeout_us)]
    ack_timeout_us: Option<u32>,
}

/// A rank asks for the time-out of its queue pair, and is refused with any other.
fn ack_timeout_us(text: &str) -> Result<u32, String> {
    let given: u32 = text
        .parse()
        .map_err(|_| format!("'{text}' is no number of microseconds"))?;
    let of = timeout_us;
    let (below, above) = (1..31)
        .map(|code| (of(code), of(code + 1)))
        .find(|(_, above)| u64::from(given) <= *above)
        .unwrap_or((of(30), of(31)));
    match [below, above].contains(&given.into()) {
        true => Ok(given),
        false => Err(format!(
            "no queue pair has a time-out of {given} us: {below} and {above} are the next ones"
        )),
    }
}

fn switch_mode(text: &str) -> Result<(String, CollectiveMode), String> {
    let (switch, mode_of_it) = text
        .split_once('=')
        .filter(|(switch, _)| !switch.is_empty())
        .ok_or_else(|| format!("'{text}' is no SWITCH=MODE, such as leaf1=terminated"))?;
    Ok((switch.into(), mode(mode_of_it)?))
}

fn loss(text: &str) -> Result<LossPolicy, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is no loss policy: repair or reflect"))
}

fn straggler(text: &str) -> Result<StragglerPolicy, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is no straggler policy: keep-alive, rnr or none"))
}

impl CreateJob {
    fn request(self) -> api::CreateCollectiveRequest {
        let to_proto = |(switch, mode)| api::SwitchMode {
            switch,
            mode: mode_to_proto(mode) as i32,
        };
        let settings = api::CollectiveSettings {
            pmtu: self.common.pmtu.bytes() as u32,
            window_packets: self.window.unwrap_or(0),
            message_packets: self.message_packets.unwrap_or(0),
            reproducible: Some(self.reproducible),
            mode: self.mode.map_or(0, |m| mode_to_proto(m) as i32),
            modes: self.mode_at.into_iter().map(to_proto).collect(),
            loss_policy: self.loss_policy.map_or(0, |p| loss_to_proto(p) as i32),
            straggler_policy: self.straggler_policy.map_or(0, |p| straggler_to_proto(p) as i32),
            ack_timeout_us: self.ack_timeout_us.unwrap_or(0),
            stall_timeout_ms: self.common.stall_timeout_ms,
            lanes: self.common.lanes.into(),
            rate_limit: self.common.rate.message(),
        };
        api::CreateCollectiveRequest {
            name: self.common.name,
            ranks: self.ranks,
            settings: Some(settings),
            mcst_id: self.common.mcst_id.map(|ip| ip.to_string()),
            description: self.common.description.to_string(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Created {
    group: String,
    mcst_id: String,
    lanes: usize,
    ranks: usize,
    slots: u32,
    phase: String,
    /// Ranks' hosts that no switch has seen, where others were.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_seen: Vec<String>,
}

/// `at`: the flag that names the controller to a rank; may be empty.
pub(crate) fn created(state: api::CollectiveState, at: &str) -> Done<Created> {
    let phase = job_phase(&state);
    let reason = match state.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let mut sentence = format!(
        "collective group {} has McstID {}{} and is {phase}{reason}",
        state.name,
        rank_addresses(&state),
        in_lanes(state.lanes.len())
    );
    if let Some(first) = state.members.first() {
        let settings = state.settings.unwrap_or_default();
        sentence.push_str(&format!(
            "\neach rank joins with such as: castnet host allreduce --job {} --size {} --rank 0 --name {}{}{}",
            state.name,
            state.members.len(),
            first.host,
            rank_flags(&settings),
            at
        ));
    }
    let not_seen = not_seen(&state.members);
    sentence.push_str(&warning(&not_seen));
    Done {
        facts: Created {
            group: state.name,
            mcst_id: state.mcst_id,
            lanes: state.lanes.len().max(1),
            ranks: state.members.len(),
            slots: state.slots,
            phase,
            not_seen,
        },
        sentence,
    }
}
