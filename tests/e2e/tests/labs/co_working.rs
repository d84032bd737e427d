//! Groups whose tree does not reach some receivers: those get the stream from host to host, and the others stay in the network.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, Content, TWO_TIERS, digest, part};
use castnet_e2e::process::Process;
use serde_json::Value;

/// No group fits into the leaf of h4 to h6.
fn flags(switch: &str) -> &'static [&'static str] {
    match switch {
        "leaf2" => &["--memory", "1KiB"],
        _ => &[],
    }
}

/// A stream or a file under way from h1 to others.
struct Sent {
    source: Process,
    receivers: Vec<(&'static str, Process, PathBuf)>,
    content: Content,
}

impl Sent {
    /// Creates the group, and starts a stream that lasts until [`Sent::finish`].
    fn stream(lab: &Lab, group: &str, receivers: &[&'static str]) -> Result<Self> {
        let controller = lab.socket("controller");
        let members = receivers.join(",");
        let made = ["group", "create", group, "--source", "h1", "--members", &members];
        let rate = ["--pmtu", "4096", "--rate", "20M", "--controller", &controller];
        lab.castnet(&[&made[..], &rate].concat())?;
        let pipe = lab.folder().join(format!("{group}.pipe"));
        Self::start(lab, group, receivers, Content::stream(&pipe, 16)?)
    }

    /// Sends a file to a group that is there.
    fn file(lab: &Lab, group: &str, receivers: &[&'static str], bytes: usize) -> Result<Self> {
        let file = lab.folder().join("sent");
        Self::start(lab, group, receivers, Content::file(&file, bytes, 16)?)
    }

    fn start(lab: &Lab, group: &str, receivers: &[&'static str], content: Content) -> Result<Self> {
        let start = |host: &&'static str| {
            let out = lab.folder().join(format!("{group}.{host}"));
            let _ = std::fs::remove_file(&out);
            let process = lab.start_host(host, "receive", group, &["--out", &out.to_string_lossy()])?;
            Ok((*host, process, out))
        };
        let receivers = receivers.iter().map(start).collect::<Result<_>>()?;
        let file = content.path().to_string_lossy().into_owned();
        let source = lab.start_host("h1", "send", group, &["--file", &file])?;
        Ok(Self {
            source,
            receivers,
            content,
        })
    }

    /// Waits until a receiver has so many bytes of the file.
    fn wait_until_has(&mut self, host: &str, bytes: u64) -> Result<()> {
        let (_, process, out) = self
            .receivers
            .iter_mut()
            .find(|(h, ..)| *h == host)
            .context("a receiver")?;
        let out = out.clone();
        process.wait_until("it had a part", |_| {
            let part = part(&out).and_then(|part| part.metadata().ok());
            part.is_some_and(|part| part.len() >= bytes)
        })
    }

    fn take(&mut self, host: &str) -> Result<Process> {
        let at = self
            .receivers
            .iter()
            .position(|(h, ..)| *h == host)
            .context("a receiver")?;
        Ok(self.receivers.remove(at).1)
    }

    /// Waits for the end. All have each byte. Returns what the source says, what each receiver does, and how many bytes there were.
    fn finish(self) -> Result<(Value, Received, u64)> {
        self.finish_without(&[])
    }

    /// The same, where the source must report that these receivers have not everything.
    fn finish_without(mut self, missing: &[&str]) -> Result<(Value, Received, u64)> {
        let content = self.content.end().with_context(|| self.source.output())?;
        let sent = lab::without(&mut self.source, missing)?;
        let mut all = Vec::new();
        for (host, receiver, out) in &mut self.receivers {
            receiver.succeed()?;
            let received = receiver.report()?;
            ensure!(
                digest(out)? == content.digest && received["sha256"] == content.digest.as_str(),
                "{received:#}"
            );
            ensure!(received["begun_again"] == 0, "{received:#}");
            if !received["ways"].is_null() {
                let ways =
                    ["bytes_in_group", "bytes_between_hosts"].map(|way| received["ways"][way].as_u64());
                ensure!(
                    ways[0].zip(ways[1]).is_some_and(|(a, b)| a + b == content.bytes),
                    "{received:#}"
                );
            }
            all.push((*host, received));
        }
        ensure!(sent["sha256"] == content.digest.as_str(), "{sent:#}");
        Ok((sent, all, content.bytes))
    }
}

/// What each receiver reports.
type Received = Vec<(&'static str, Value)>;

/// Hosts that a report or a group lists as outside, and from whom they have the stream.
fn outside(listed: &Value) -> Vec<(&str, &str)> {
    let listed = listed.as_array().into_iter().flatten();
    listed
        .filter_map(|out| Some((out["host"].as_str()?, out["via"].as_str()?)))
        .collect()
}

/// Three of five receivers are at a leaf without memory. Each has the stream from another member; the last from one that is outside itself.
#[test]
fn receivers_whose_switch_refuses_get_the_stream_from_the_others_whoever_dies() {
    lab::in_lab_of("co-working", TWO_TIERS, flags, |lab| {
        the_others_pass_it_on(lab)?;
        members_die(lab)
    });
}

fn the_others_pass_it_on(lab: &mut Lab) -> Result<()> {
    let all = ["h2", "h3", "h4", "h5", "h6"];
    let mut sent = Sent::stream(lab, "g", &all)?;
    sent.wait_until_has("h4", 1 << 20)?;
    let controller = lab.socket("controller");
    let via = [("h4", "h2"), ("h5", "h3"), ("h6", "h4")];
    let mut shown = Value::Null;
    // A busy machine may keep a switch from answering for a while.
    lab.wait_for("the group is active", |lab| {
        shown = lab.castnet_json(&["group", "show", "g", "--controller", &controller])?;
        let as_expected = shown["phase"] == "active" && outside(&shown["outside"]) == via;
        ensure!(as_expected, "{shown:#}");
        Ok(())
    })?;
    let reason = shown["reason"].as_str().unwrap_or_default();
    ensure!(
        reason.contains("h4 from h2") && reason.contains("switch leaf2 refuses"),
        "{reason}"
    );
    let (source, receivers, bytes) = sent.finish()?;
    ensure!(
        outside(&source["ways"]["outside"]) == via && source["between_hosts"].is_null(),
        "{source:#}"
    );
    for (host, received) in receivers {
        let ways = &received["ways"];
        ensure!(outside(&ways["outside"]).len() == 3, "{received:#}");
        let passed_on = ways["bytes_passed_on"].as_u64().unwrap_or_default();
        ensure!(
            (passed_on == bytes) == ["h2", "h3", "h4"].contains(&host),
            "{received:#}"
        );
        ensure!(
            (ways["bytes_in_group"] == bytes) == ["h2", "h3"].contains(&host),
            "{received:#}"
        );
    }
    // An empty file, one of a few bytes, and again the same group: it is placed anew.
    for bytes in [0, 1000] {
        Sent::file(lab, "g", &all, bytes)?.finish()?;
    }
    Ok(())
}

/// The member that passes the stream on dies: another one does, from the byte on that the receiver has. A receiver outside dies: the others
/// go on.
fn members_die(lab: &Lab) -> Result<()> {
    let all = ["h2", "h3", "h4", "h5", "h6"];
    let mut sent = Sent::stream(lab, "mortal", &all)?;
    sent.wait_until_has("h6", 1 << 20)?;
    // h4 has it from h2, and h6 from h4.
    let mut dead = [sent.take("h2")?, sent.take("h5")?];
    dead.iter_mut().for_each(Process::kill);
    // More than was under way: it comes by another member now.
    sent.wait_until_has("h6", 6 << 20)?;
    let (_, receivers, bytes) = sent.finish_without(&["h2", "h5"])?;
    for (host, received) in receivers {
        let changes = received["ways"]["changes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let from: Vec<u64> = changes
            .iter()
            .filter_map(|change| change["at_byte"].as_u64())
            .collect();
        match host {
            "h3" => ensure!(from.is_empty(), "{received:#}"),
            "h4" => ensure!(
                from.len() == 2 && from[0] == 0 && from[1] >= 1 << 20,
                "{received:#}"
            ),
            _ => ensure!(from == [0], "{received:#}"),
        }
        ensure!(
            (received["ways"]["bytes_in_group"] == bytes) == (host == "h3"),
            "{received:#}"
        );
    }
    Ok(())
}
