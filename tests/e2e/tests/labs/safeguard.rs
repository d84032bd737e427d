//! Groups that get slow: their stream goes on from host to host, and back (Cepheus, V.D).

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, Content, STAR, digest, write_random};
use castnet_e2e::process::Process;
use serde_json::Value;

const RECEIVERS: [&str; 3] = ["h2", "h3", "h4"];
/// Silence of so long is a stall, not a busy machine.
const AFTER: [&str; 2] = ["--fallback-after", "800ms"];

/// How long members wait for one that is dead.
const GIVE_UP: [&str; 2] = ["--fallback-give-up", "6s"];

/// A file under way from h1 to the others.
struct Sent {
    source: Process,
    receivers: Vec<(Process, PathBuf)>,
    content: Content,
}

impl Sent {
    /// So many bytes, or a stream that lasts until [`Sent::finish`]. `both`: flags of all; `flags`: of the source.
    fn start(
        lab: &Lab,
        (group, both): (&str, &[&str]),
        create: &[&str],
        bytes: Option<usize>,
        flags: &[&str],
    ) -> Result<Self> {
        let controller = lab.socket("controller");
        let made = [
            "--source",
            "h1",
            "--members",
            "h2,h3,h4",
            "--pmtu",
            "4096",
            "--controller",
            &controller,
        ];
        lab.castnet(&[&["group", "create", group], &made[..], create].concat())?;
        let file = lab.folder().join(format!("{group}.sent"));
        let content = match bytes {
            Some(bytes) => Content::file(&file, bytes, 16)?,
            None => Content::stream(&file, 16)?,
        };
        let receivers = RECEIVERS.map(|host| {
            let (out, ready) = (
                lab.folder().join(format!("{group}.{host}")),
                lab.folder().join(format!("{host}.ready")),
            );
            let files = [
                "--out",
                &out.to_string_lossy(),
                "--ready-file",
                &ready.to_string_lossy(),
            ];
            let flags = [&files[..], both].concat();
            Ok((lab.start_host(host, "receive", group, &flags)?, out))
        });
        let receivers = receivers.into_iter().collect::<Result<_>>()?;
        let file = file.to_string_lossy();
        let flags = [&["--file", &file], &AFTER[..], both, flags].concat();
        let source = lab.start_host("h1", "send", group, &flags)?;
        Ok(Self {
            source,
            receivers,
            content,
        })
    }

    fn wait_until_said(&mut self, what: &str) -> Result<()> {
        self.wait_until_said_times(what, 1)
    }

    fn wait_until_said_times(&mut self, what: &str, times: usize) -> Result<()> {
        self.source
            .wait_until(what, |source| source.output().matches(what).count() >= times)
    }

    /// Waits for the end. All have each byte, and say the same about the ways of the bytes. Returns what the source says.
    fn finish(mut self) -> Result<Value> {
        let content = self.content.end().with_context(|| self.source.output())?;
        self.source.succeed()?;
        let sent = self.source.report()?;
        let all = content.bytes;
        for (receiver, out) in &mut self.receivers {
            receiver.succeed()?;
            let received = receiver.report()?;
            ensure!(
                digest(out)? == content.digest && received["sha256"] == content.digest.as_str(),
                "{received:#}"
            );
            ensure!(received["begun_again"] == 0, "{received:#}");
            ensure!(ways(&received)?.iter().sum::<u64>() == all, "{received:#}");
            ensure!(received["between_hosts"] == sent["between_hosts"], "{received:#}");
        }
        ensure!(sent["sha256"] == content.digest.as_str(), "{sent:#}");
        ensure!(ways(&sent)?.iter().sum::<u64>() == all, "{sent:#}");
        Ok(sent)
    }
}

/// Bytes in the group, and between hosts.
fn ways(report: &Value) -> Result<[u64; 2]> {
    let bytes = |name: &str| {
        report["ways"][name]
            .as_u64()
            .with_context(|| format!("{name}: {report:#}"))
    };
    Ok([bytes("bytes_in_group")?, bytes("bytes_between_hosts")?])
}

/// The group has a tenth of the rate that is expected of it.
fn a_group_is_slow(lab: &Lab) -> Result<()> {
    let expected = ["--expect", "400M", "--fallback-retry", "0"];
    let sent = Sent::start(lab, ("slow", &[]), &["--rate", "40M"], Some(12 << 20), &expected)?;
    let report = sent.finish()?;
    let why = report["between_hosts"].as_str().unwrap_or_default();
    // On a busy machine nothing at all may be acknowledged for so long.
    let is_slow = why.contains("goodput was too low") && why.contains("expected 400.00 Mb/s");
    ensure!(
        is_slow || why.contains("nothing was acknowledged for"),
        "{report:#}"
    );
    ensure!(ways(&report)?[1] > 0, "{report:#}");
    let changes = report["ways"]["changes"].as_array().map_or(0, Vec::len);
    ensure!(changes == 1, "{report:#}");
    let controller = lab.socket("controller");
    let shown = lab.castnet(&["group", "show", "slow", "--controller", &controller])?;
    ensure!(shown.contains("h1 went on from host to host"), "{shown}");
    Ok(())
}

/// Messages of a check are made again, from the first one on that not all have acknowledged.
fn a_check_goes_on(lab: &Lab) -> Result<()> {
    let controller = lab.socket("controller");
    let made = [
        "group",
        "create",
        "check",
        "--source",
        "h1",
        "--members",
        "h2,h3",
        "--rate",
        "40M",
    ];
    lab.castnet(&[&made[..], &["--controller", &controller]].concat())?;
    let size = ["--size", "30000", "--count", "400"];
    let mut all = Vec::new();
    for host in ["h2", "h3"] {
        all.push(lab.start_host(host, "receive", "check", &size)?);
    }
    let expected = ["--expect", "400M", "--fallback-retry", "0"];
    all.push(lab.start_host("h1", "send", "check", &[&size[..], &AFTER, &expected].concat())?);
    for process in &mut all {
        process.succeed()?;
        let report = process.report()?;
        let [in_group, between_hosts] = ways(&report)?;
        ensure!(in_group + between_hosts == 400 * 30_000, "{report:#}");
        ensure!(between_hosts > 0 && report["count"] == 400, "{report:#}");
    }
    Ok(())
}

/// It stays slow: each time it is tried again, the stream comes back from it.
fn it_is_tried_again(lab: &Lab) -> Result<()> {
    let expected = ["--expect", "400M", "--fallback-retry", "1ms"];
    let mut sent = Sent::start(lab, ("again", &[]), &["--rate", "40M"], None, &expected)?;
    sent.wait_until_said_times("goes on from host to host", 2)?;
    let report = sent.finish()?;
    let changes = report["ways"]["changes"].as_array().cloned().unwrap_or_default();
    let to: Vec<_> = changes
        .iter()
        .filter_map(|change| change["to"].as_str())
        .collect();
    ensure!(to.starts_with(&["hosts", "group", "hosts"]), "{report:#}");
    Ok(())
}

/// The switch stands still in the middle of the stream. Nothing is expected of the group but to deliver something.
fn the_group_is_well_again(lab: &Lab) -> Result<()> {
    let mut sent = Sent::start(
        lab,
        ("back", &["--op", "write"]),
        &["--rate", "20M"],
        None,
        &["--fallback-retry", "1ms"],
    )?;
    let under_way = |lab: &Lab| lab.data_in("back", "sw") > Some(100);
    sent.source.wait_until("data was under way", |_| under_way(lab))?;
    lab.switch("sw")?.stop()?;
    sent.wait_until_said("goes on from host to host")?;
    lab.switch("sw")?.go_on()?;
    sent.wait_until_said("tries its group again")?;
    sent.source
        .wait_until("data came in the group", |_| under_way(lab))?;
    let report = sent.finish()?;
    let why = report["between_hosts"].as_str().unwrap_or_default();
    ensure!(why.contains("nothing was acknowledged"), "{report:#}");
    ensure!(report["ways"]["changes"][1]["to"] == "group", "{report:#}");
    ensure!(ways(&report)?.iter().all(|bytes| *bytes > 0), "{report:#}");
    Ok(())
}

/// A receiver dies when the source has left the group, or when all are to join it again. Nobody takes the others' part for the whole.
fn a_receiver_dies(lab: &Lab) -> Result<()> {
    for (group, said) in [
        ("one", "goes on from host to host"),
        ("two", "tries its group again"),
    ] {
        let flags = ["--expect", "400M", "--fallback-retry", "1ms"];
        let mut sent = Sent::start(lab, (group, &GIVE_UP), &["--rate", "40M"], None, &flags)?;
        sent.wait_until_said(said)?;
        let (mut dead, _) = sent.receivers.remove(1);
        dead.kill();
        let mut said = Vec::new();
        let others = sent
            .receivers
            .iter_mut()
            .map(|(process, out)| (process, Some(out)));
        for (process, out) in others.chain([(&mut sent.source, None)]) {
            let status = process.wait()?;
            let is_whole = out.is_some_and(|out| out.exists());
            let output = process.output();
            ensure!(!status.success() && !is_whole, "{output}");
            said.push(output);
        }
        // Ranks that come late may miss others, too.
        let is_missed = |of: &str| of.split([' ', ',', ':']).any(|word| word == "2");
        let names = |output: &String| {
            let missed = output
                .split_once("rank ")
                .is_some_and(|(_, ranks)| is_missed(ranks));
            missed && output.contains("2 is h3")
        };
        ensure!(said.iter().any(names), "nobody names h3: {}", said.join("\n"));
    }
    Ok(())
}

/// A receiver that is not to go on from host to host says so, and the others name it.
fn a_receiver_has_no_fallback(lab: &Lab) -> Result<()> {
    let controller = lab.socket("controller");
    let group = [
        "group",
        "create",
        "off",
        "--source",
        "h1",
        "--members",
        "h2",
        "--rate",
        "40M",
    ];
    lab.castnet(&[&group[..], &["--controller", &controller]].concat())?;
    let file = lab.folder().join("sent");
    write_random(&file, 12 << 20, 16)?;
    let out = lab.folder().join("out");
    let mut receiver = lab.start_host(
        "h2",
        "receive",
        "off",
        &["--fallback", "off", "--out", &out.to_string_lossy()],
    )?;
    let send = ["--file", &file.to_string_lossy(), "--expect", "400M"];
    let source = lab.start_host("h1", "send", "off", &[&send, &AFTER[..]].concat())?;
    let status = receiver.wait()?;
    let said = receiver.output();
    ensure!(
        !status.success() && said.contains("goes on from host to host"),
        "{said}"
    );
    ensure!(said.contains("--fallback auto") && !out.exists(), "{said}");
    // It would wait a minute for the receiver.
    drop(source);
    Ok(())
}

#[test]
fn a_stream_leaves_a_group_that_is_slow_or_silent_and_comes_back_to_it() {
    lab::in_lab("safeguard", STAR, &[], |lab| {
        a_group_is_slow(lab)?;
        it_is_tried_again(lab)?;
        a_check_goes_on(lab)?;
        the_group_is_well_again(lab)
    });
}

#[test]
fn a_receiver_that_dies_between_hosts_or_may_not_go_there_is_an_error_of_all() {
    lab::in_lab("safeguard", STAR, &[], |lab| {
        a_receiver_dies(lab)?;
        a_receiver_has_no_fallback(lab)
    });
}
