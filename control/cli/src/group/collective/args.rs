use castnet_console::api;
use castnet_console::rate::RateArgs;
use castnet_console::units::{mode, name};
use castnet_rules::{CollectiveMode, LossPolicy, StragglerPolicy};
use clap::Args;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Collective groups")]
pub(crate) struct CollectiveArgs {
    /// A collective group (AllReduce, Reduce, Broadcast ... computed in the switches) instead of a multicast group
    #[arg(
        long,
        requires = "ranks",
        conflicts_with_all = [
            "source", "members", "connection", "start_psn", "va_base", "rules", "on_member_loss", "on_member_stall",
            "member_stall_ms", "repair", "repair_slots",
        ]
    )]
    pub(crate) collective: bool,
    /// The ranks' hosts, rank 0 first; a host is one rank
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "collective", value_parser = name)]
    ranks: Vec<String>,
    /// Packets that a rank may have in flight [default: 64]; each switch has slots for two windows and two messages, if it has the memory
    #[arg(long, value_name = "PACKETS", requires = "collective", value_parser = clap::value_parser!(u32).range(2..=16_384))]
    window: Option<u32>,
    /// Packets of a full message, at most the window [default: 16]
    #[arg(long, value_name = "PACKETS", requires = "collective", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    message_packets: Option<u32>,
    /// Reduces contributions in rank order: the results are bit-identical in every run; takes memory for one more packet per rank
    /// and slot
    #[arg(long, requires = "collective")]
    reproducible: bool,
    /// How switches carry the connections: translated (the default, where switches have memory for it; else augmented, which takes half the
    /// slots), where a rank's packet is acknowledged when its receivers have the
    /// result; augmented, where each switch acknowledges and repeats what it has stored; or terminated, where each switch ends the
    /// connections and works with whole messages
    #[arg(long, value_name = "MODE", requires = "collective", value_parser = mode)]
    mode: Option<CollectiveMode>,
    /// A switch with another mode than the group's, as SWITCH=MODE; give it once for each. An edge between switches of different modes is a
    /// connection of its own
    #[arg(long, value_name = "SWITCH=MODE", requires = "collective", value_parser = switch_mode)]
    mode_at: Vec<(String, CollectiveMode)>,
    /// What repairs losses: the switch (repair, the default) or the hosts (reflect)
    #[arg(long, value_name = "POLICY", requires = "collective", value_parser = loss)]
    loss_policy: Option<LossPolicy>,
    /// What keeps the queue pairs of ranks alive that wait for a late one: keep-alive (the default), rnr or none
    #[arg(long, value_name = "POLICY", requires = "collective", value_parser = straggler)]
    straggler_policy: Option<StragglerPolicy>,
    /// The ACK time-out of the ranks' queue pairs in microseconds, one that queue pairs can have: 4.096 * 2^N [default: 67108, N = 14]
    #[arg(long, value_name = "US", requires = "collective", value_parser = ack_timeout_us)]
    ack_timeout_us: Option<u32>,
}

/// The time-out that a queue pair has with a code.
pub(super) fn timeout_us(code: u32) -> u64 {
    (4096_u64 << code) / 1000
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

impl CollectiveArgs {
    pub(crate) fn request(
        self,
        name: String,
        pmtu: u32,
        mcst_id: Option<std::net::Ipv4Addr>,
        stall_timeout_ms: u32,
        (lanes, rate): (u8, &RateArgs),
    ) -> api::CreateCollectiveRequest {
        use castnet_proto::convert::{loss_to_proto, mode_to_proto, straggler_to_proto};
        let to_proto = |(switch, mode)| api::SwitchMode {
            switch,
            mode: mode_to_proto(mode) as i32,
        };
        let settings = api::CollectiveSettings {
            pmtu,
            window_packets: self.window.unwrap_or(0),
            message_packets: self.message_packets.unwrap_or(0),
            reproducible: Some(self.reproducible),
            mode: self.mode.map_or(0, |m| mode_to_proto(m) as i32),
            modes: self.mode_at.into_iter().map(to_proto).collect(),
            loss_policy: self.loss_policy.map_or(0, |p| loss_to_proto(p) as i32),
            straggler_policy: self.straggler_policy.map_or(0, |p| straggler_to_proto(p) as i32),
            ack_timeout_us: self.ack_timeout_us.unwrap_or(0),
            stall_timeout_ms,
            lanes: lanes.into(),
            rate_limit: rate.message(),
        };
        api::CreateCollectiveRequest {
            name,
            ranks: self.ranks,
            settings: Some(settings),
            mcst_id: mcst_id.map(|ip| ip.to_string()),
        }
    }
}
