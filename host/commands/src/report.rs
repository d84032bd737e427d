//! Reports of transfers, and the end of a connection for rule files.

use std::path::PathBuf;
use std::time::Duration;

use castnet_console::exit::Outcome;
use castnet_console::output::{Output, Page, Report};
use castnet_console::units::{bit_rate, bytes, count, plural, rate_of, span};
use castnet_member::{Connection, Messages, MessagesSummary, Transferred};
use castnet_rnic::{DeviceAttributes, Rnic, Traffic};
use serde::Serialize;
use serde_json::json;

use super::device::Kind;
use super::fallback::Ways;
use super::receivers::Receivers;
use super::{MemberArgs, Op};

/// What a receiver got of transfers that ended before their end, before it began again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Earlier {
    begun_again: u32,
    discarded_bytes: u64,
}

impl Earlier {
    pub(super) fn add(&mut self, bytes: u64) {
        self.begun_again += 1;
        self.discarded_bytes += bytes;
    }
}

#[derive(Debug, Serialize)]
pub(super) struct TransferReport {
    host: String,
    role: &'static str,
    group: String,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<usize>,
    #[serde(flatten)]
    content: Content,
    bytes: u64,
    sha256: String,
    seconds: f64,
    goodput_bits_per_s: f64,
    /// At a receiver.
    #[serde(flatten)]
    earlier: Option<Earlier>,
    /// Why it was sent from host to host.
    #[serde(skip_serializing_if = "Option::is_none")]
    between_hosts: Option<String>,
    /// How many bytes went which way then.
    #[serde(skip_serializing_if = "Option::is_none")]
    ways: Option<Ways>,
    /// At the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    receivers: Option<Receivers>,
    #[serde(flatten)]
    traffic: Traffic,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Content {
    Stream {
        name: String,
        /// At a receiver.
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<String>,
    },
    Messages {
        op: &'static str,
        size: u32,
        count: u32,
        /// Microseconds: at the source from post to completion, at a receiver since the first message; empty if not all were in the group.
        completions_us: Vec<f64>,
    },
}

impl Content {
    fn messages(args: &MemberArgs, messages: Messages, completions_us: Vec<f64>) -> Self {
        Self::Messages {
            op: match args.op {
                Op::Send => "SEND_WITH_IMM",
                Op::Write => "WRITE_WITH_IMM",
            },
            size: messages.size,
            count: messages.count,
            completions_us,
        }
    }
}

impl TransferReport {
    pub(super) fn of_stream(
        args: &MemberArgs,
        role: &'static str,
        transferred: Transferred,
        file: Option<PathBuf>,
        rnic: &dyn Rnic,
    ) -> Self {
        let summary = transferred.summary;
        let content = Content::Stream {
            name: summary.name,
            file: file.map(|path| path.display().to_string()),
        };
        let sha256 = summary.digest.to_string();
        Self::new(
            args,
            role,
            content,
            summary.bytes,
            sha256,
            transferred.elapsed,
            rnic,
        )
    }

    pub(super) fn of_messages(
        args: &MemberArgs,
        role: &'static str,
        messages: Messages,
        summary: MessagesSummary,
        elapsed: Duration,
        rnic: &dyn Rnic,
    ) -> Self {
        let times = summary.times.iter().map(|t| t.as_secs_f64() * 1e6);
        let content = Content::messages(args, messages, times.collect());
        let sha256 = summary.digest.to_string();
        Self::new(args, role, content, summary.bytes, sha256, elapsed, rnic)
    }

    fn new(
        args: &MemberArgs,
        role: &'static str,
        content: Content,
        bytes: u64,
        sha256: String,
        elapsed: Duration,
        rnic: &dyn Rnic,
    ) -> Self {
        let seconds = elapsed.as_secs_f64();
        Self {
            host: args.name.clone(),
            role,
            group: args.group_name(),
            turn: None,
            content,
            bytes,
            sha256,
            seconds,
            goodput_bits_per_s: rate_of(bytes, seconds),
            earlier: None,
            between_hosts: None,
            ways: None,
            receivers: None,
            traffic: rnic.traffic(),
        }
    }

    /// Of a turn, by its number from 0.
    pub(super) fn of_turn(self, turn: usize) -> Self {
        let turn = Some(turn + 1);
        Self { turn, ..self }
    }

    /// Of messages whose bytes went as a stream.
    pub(super) fn checks(self, args: &MemberArgs, messages: Messages) -> Self {
        let content = Content::messages(args, messages, Vec::new());
        Self { content, ..self }
    }

    /// Of a receiver, which may have begun again.
    pub(super) fn after(self, earlier: Earlier) -> Self {
        let earlier = Some(earlier);
        Self { earlier, ..self }
    }

    /// Of a file that was sent from host to host, or a part of it, or to a part of the receivers.
    pub(super) fn by(self, ways: Option<Ways>) -> Self {
        Self {
            between_hosts: ways.as_ref().and_then(Ways::why).map(str::to_owned),
            ways,
            ..self
        }
    }

    /// Of a source that knows what became of its receivers.
    pub(super) fn to(self, receivers: Receivers) -> Self {
        let receivers = Some(receivers);
        Self { receivers, ..self }
    }

    /// Shows it. Fails if a receiver has not everything, unless that is allowed.
    pub(super) fn end(&self, allow_missing: bool, output: Output) -> Outcome {
        let shown = output.show_next(self);
        let receivers = self.receivers.as_ref();
        let verdict = receivers.map_or(Ok(()), |receivers| receivers.check(allow_missing));
        verdict.and(shown)
    }

    fn repairs(&self) -> (&'static str, String) {
        let traffic = &self.traffic;
        let (title, counters) = if self.role == "source" {
            let counters = vec![
                ("frames again", traffic.retransmissions),
                ("NAKs", traffic.naks_received),
                ("RNR NAKs", traffic.rnr_naks_received),
                ("time-outs", traffic.timeouts),
                ("CNPs", traffic.cnps_received),
            ];
            ("retransmissions", counters)
        } else {
            let counters = vec![
                ("duplicates", traffic.duplicates_received),
                ("NAKs sent", traffic.naks_sent),
                ("RNR NAKs sent", traffic.rnr_naks_sent),
                ("CNPs sent", traffic.cnps_sent),
            ];
            ("repairs", counters)
        };
        let counted = counters
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{} {name}", count(value?))));
        let text = match counted.collect::<Vec<_>>() {
            none if none.is_empty() => "not counted by this device".to_owned(),
            counted => counted.join(", "),
        };
        (title, text)
    }
}

impl Report for TransferReport {
    fn page(&self, page: &mut Page) {
        let (host, is_source) = (&self.host, self.role == "source");
        let did = if is_source { "sent" } else { "received" };
        let turn = self
            .turn
            .map_or_else(String::new, |turn| format!("turn {turn}: "));
        page.line(
            turn + &match &self.content {
                Content::Stream { name, .. } => format!("{host} {did} {name} ({})", bytes(self.bytes)),
                Content::Messages {
                    op, size, count: n, ..
                } => format!(
                    "{host} {did} {} messages of {} by {op}",
                    count((*n).into()),
                    bytes((*size).into())
                ),
            },
        );
        let mut facts = vec![
            ("SHA-256", self.sha256.clone()),
            ("time", span(Duration::from_secs_f64(self.seconds))),
            ("goodput", bit_rate(self.goodput_bits_per_s)),
        ];
        match &self.content {
            Content::Stream { file: Some(file), .. } => facts.push(("file", file.clone())),
            Content::Messages { completions_us, .. } if is_source => {
                let mut times = completions_us.clone();
                times.sort_by(f64::total_cmp);
                let at = |i: usize| times.get(i).map_or_else(String::new, |us| format!("{us:.0} us"));
                let (middle, last) = (times.len() / 2, times.len().saturating_sub(1));
                let text = format!("{} least, {} median, {} most", at(0), at(middle), at(last));
                facts.push(("completions", text));
            }
            _ => {}
        }
        if let Some(earlier) = self.earlier.filter(|earlier| earlier.begun_again > 0) {
            let times = plural(earlier.begun_again as usize, "time");
            let discarded = bytes(earlier.discarded_bytes);
            facts.push(("begun again", format!("{times}, {discarded} discarded")));
        }
        if let Some(why) = &self.between_hosts {
            facts.push(("from host to host", why.clone()));
        }
        if let Some(ways) = &self.ways {
            facts.push(("ways", ways.text()));
        }
        for (at, text) in self.receivers.iter().flat_map(Receivers::texts).enumerate() {
            facts.push((if at == 0 { "receivers" } else { "" }, text));
        }
        facts.push(self.repairs());
        page.facts(&facts);
    }
}

/// A line of JSON.
pub(super) fn connection_line(
    host: &str,
    rnic: Kind,
    attributes: &DeviceAttributes,
    connection: &Connection,
) -> String {
    let mut line = json!({
        "host": host,
        "rnic": rnic,
        "device": attributes.name,
        "ip": connection.ip,
        "mac": connection.mac,
        "qpn": connection.qpn,
        "active_pmtu": attributes.active_pmtu.bytes(),
    });
    if let Some(memory) = &connection.memory {
        line["memory"] = json!({ "va": memory.va, "rkey": memory.rkey, "length": memory.length });
    }
    format!("{line}\n")
}

/// Whether a text is a [`connection_line`].
pub(super) fn is_connection_line(text: &str) -> bool {
    let line: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    ["host", "rnic", "qpn"]
        .iter()
        .all(|field| line.get(field).is_some())
}
