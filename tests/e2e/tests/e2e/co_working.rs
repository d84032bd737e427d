//! Groups whose tree does not reach some receivers: those get the stream from host to host, and the others stay in the network.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, TWO_TIERS, digest, write_random};
use castnet_e2e::process::Process;
use serde_json::Value;

/// No group fits into the leaf of h4 to h6.
fn flags(switch: &str) -> &'static [&'static str] {
    match switch {
        "leaf2" => &["--memory", "1"],
        _ => &[],
    }
}

/// A file under way from h1 to others.
struct Sent {
    source: Process,
    receivers: Vec<(&'static str, Process, PathBuf)>,
    bytes: u64,
    digest: String,
}

impl Sent {
    fn start(
        lab: &Lab,
        group: &str,
        receivers: &[&'static str],
        bytes: usize,
        create: &[&str],
    ) -> Result<Self> {
        let controller = lab.socket("controller");
        let members = receivers.join(",");
        let made = ["group", "create", group, "--source", "h1", "--members", &members];
        let made = [
            &made[..],
            &["--pmtu", "4096", "--controller", &controller],
            create,
        ]
        .concat();
        lab.castnet(&made)?;
        Self::again(lab, group, receivers, bytes, &[])
    }

    fn again(
        lab: &Lab,
        group: &str,
        receivers: &[&'static str],
        bytes: usize,
        flags: &[&str],
    ) -> Result<Self> {
        let file = lab.folder().join("sent");
        let digest = write_random(&file, bytes, 16)?;
        let start = |host: &&'static str| {
            let out = lab.folder().join(format!("{group}.{host}"));
            let _ = std::fs::remove_file(&out);
            let process = lab.start_host(host, "receive", group, &["--out", &out.to_string_lossy()])?;
            Ok((*host, process, out))
        };
        let receivers = receivers.iter().map(start).collect::<Result<_>>()?;
        let file = file.to_string_lossy();
        let send = [&["--file", &*file][..], flags].concat();
        let source = lab.start_host("h1", "send", group, &send)?;
        let bytes = bytes as u64;
        Ok(Self {
            source,
            receivers,
            bytes,
            digest,
        })
    }

    /// Waits until a receiver has so many bytes of the file.
    fn wait_until_has(&mut self, host: &str, bytes: u64) -> Result<()> {
        let (_, process, out) = self
            .receivers
            .iter_mut()
            .find(|(h, ..)| *h == host)
            .context("a receiver")?;
        let part = out.with_extension(format!("{host}.part"));
        process.wait_until("it had a part", |_| {
            std::fs::metadata(&part).is_ok_and(|part| part.len() >= bytes)
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

    /// Waits for the end. All have each byte. Returns what the source says, and what each receiver does.
    fn finish(mut self) -> Result<(Value, Vec<(&'static str, Value)>)> {
        self.source.succeed()?;
        let mut all = Vec::new();
        for (host, receiver, out) in &mut self.receivers {
            receiver.succeed()?;
            let received = receiver.report()?;
            ensure!(
                digest(out)? == self.digest && received["sha256"] == self.digest.as_str(),
                "{received:#}"
            );
            ensure!(received["begun_again"] == 0, "{received:#}");
            if !received["ways"].is_null() {
                let ways =
                    ["bytes_in_group", "bytes_between_hosts"].map(|way| received["ways"][way].as_u64());
                ensure!(
                    ways[0].zip(ways[1]).is_some_and(|(a, b)| a + b == self.bytes),
                    "{received:#}"
                );
            }
            all.push((*host, received));
        }
        let sent = self.source.report()?;
        ensure!(sent["sha256"] == self.digest.as_str(), "{sent:#}");
        Ok((sent, all))
    }
}

/// Hosts that a report or a group lists as outside, and from whom they have the stream.
fn outside(listed: &Value) -> Vec<(&str, &str)> {
    let listed = listed.as_array().into_iter().flatten();
    listed
        .filter_map(|out| Some((out["host"].as_str()?, out["via"].as_str()?)))
        .collect()
}

/// Three of five receivers are at a leaf without memory. Each has the stream from another member; the last from one that is outside itself.
#[test]
fn receivers_whose_switch_refuses_get_the_stream_from_the_others() {
    lab::in_lab_of("co-working", TWO_TIERS, flags, |lab| {
        let all = ["h2", "h3", "h4", "h5", "h6"];
        let mut sent = Sent::start(lab, "g", &all, 24 << 20, &["--rate", "100M"])?;
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
        let bytes = sent.bytes;
        let (source, receivers) = sent.finish()?;
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
            Sent::again(lab, "g", &all, bytes, &[])?.finish()?;
        }
        Ok(())
    });
}

/// The member that passes the stream on dies: another one does, from the byte on that the receiver has. A receiver outside dies: the others
/// go on.
#[test]
fn a_stream_goes_on_from_another_member_when_one_dies() {
    lab::in_lab_of("co-working", TWO_TIERS, flags, |lab| {
        let all = ["h2", "h3", "h4", "h5", "h6"];
        let mut sent = Sent::start(lab, "g", &all, 48 << 20, &["--rate", "40M"])?;
        sent.wait_until_has("h6", 1 << 20)?;
        // h4 has it from h2, and h6 from h4.
        let mut dead = [sent.take("h2")?, sent.take("h5")?];
        dead.iter_mut().for_each(Process::kill);
        let bytes = sent.bytes;
        let (_, receivers) = sent.finish()?;
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
    });
}

/// The group is slow, and a receiver outside is behind what the source can repeat: another receiver has what it lacks.
#[test]
fn a_receiver_that_is_behind_gets_what_it_lacks_when_all_go_on_from_host_to_host() {
    lab::in_lab_of("co-working", TWO_TIERS, flags, |lab| {
        let controller = lab.socket("controller");
        let made = [
            "group",
            "create",
            "g",
            "--source",
            "h1",
            "--members",
            "h2,h4",
            "--rate",
            "100M",
        ];
        lab.castnet(&[&made[..], &["--controller", &controller]].concat())?;
        let slow = [
            "--expect",
            "900M",
            "--fallback-after",
            "2s",
            "--fallback-retry",
            "0",
        ];
        let mut sent = Sent::again(lab, "g", &["h2", "h4"], 64 << 20, &slow)?;
        sent.wait_until_has("h4", 1 << 16)?;
        let (_, behind, _) = sent.receivers.last().context("h4")?;
        behind.stop()?;
        let said = "goes on from host to host";
        sent.source
            .wait_until(said, |source| source.output().contains(said))?;
        let (_, behind, _) = sent.receivers.last().context("h4")?;
        behind.go_on()?;
        let (_, receivers) = sent.finish()?;
        let between = |at: usize| receivers[at].1["ways"]["bytes_between_hosts"].as_u64();
        ensure!(between(1) > between(0), "{receivers:#?}");
        Ok(())
    });
}
