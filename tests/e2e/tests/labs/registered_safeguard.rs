//! Groups that their source registers itself, and that the switches refuse, or that are slow: their members go on from host to host, without a
//! controller.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, Content, STAR, digest, write_random};
use castnet_e2e::process::Process;
use serde_json::Value;

use crate::registered::start_host;

const RECEIVERS: [&str; 3] = ["h2", "h3", "h4"];
const MRP: [&str; 4] = ["--mrp-pool", "10.0.0.200/30", "--mrp-port", "h1"];
const GIVE_UP: [&str; 2] = ["--fallback-give-up", "5s"];
/// A goodput that no group reaches.
const SLOW: [&str; 4] = ["--expect", "900G", "--fallback-after", "400ms"];

/// A file under way from h1 to the others.
struct Sent {
    source: Process,
    receivers: Vec<(Process, PathBuf)>,
    content: Content,
}

impl Sent {
    /// So many bytes, or a stream that lasts until [`Sent::finish`]. `both`: flags of all; `flags`: of the source; `last`: of the last receiver.
    fn start(lab: &Lab, bytes: Option<usize>, both: &[&str], flags: &[&str], last: &[&str]) -> Result<Self> {
        let file = lab.folder().join("sent");
        // Of the step before.
        let _ = std::fs::remove_file(&file);
        let content = match bytes {
            Some(bytes) => Content::file(&file, bytes, 61)?,
            None => Content::stream(&file, 61)?,
        };
        let leader = lab.address("h1");
        let receivers = RECEIVERS.map(|host| {
            let out = lab.folder().join(format!("{host}.out"));
            let _ = std::fs::remove_file(&out);
            let text = out.to_string_lossy().into_owned();
            let own = if host == "h4" { last } else { &[] };
            let rest = [&["--leader", &leader, "--out", &text], both, own].concat();
            Ok((start_host(lab, host, "receive", &rest)?, out))
        });
        let receivers = receivers.into_iter().collect::<Result<_>>()?;
        let source = start_source(lab, &file, &[both, flags].concat())?;
        Ok(Self {
            source,
            receivers,
            content,
        })
    }

    /// All have each byte, and know why it did not come in the group. Returns what the source says.
    fn finish(mut self) -> Result<Value> {
        let content = self.content.end().with_context(|| self.source.output())?;
        self.source.succeed()?;
        let sent = self.source.report()?;
        for (receiver, out) in &mut self.receivers {
            receiver.succeed()?;
            let received = receiver.report()?;
            ensure!(digest(out)? == content.digest, "{received:#}");
            ensure!(
                received["between_hosts"] == sent["between_hosts"],
                "{received:#}\n{sent:#}"
            );
            ensure!(all_ways(&received)? == content.bytes, "{received:#}");
        }
        ensure!(all_ways(&sent)? == content.bytes, "{sent:#}");
        Ok(sent)
    }
}

/// Starts the source of a file that is there.
fn start_source(lab: &Lab, file: &Path, flags: &[&str]) -> Result<Process> {
    let to = RECEIVERS.map(|host| lab.address(host)).join(",");
    let rest = ["--register-for", &to, "--file", &file.to_string_lossy()];
    start_host(lab, "h1", "send", &[&rest, flags].concat())
}

/// Waits until more than a few packets have gone in the group.
fn wait_for_data(lab: &Lab, source: &mut Process) -> Result<()> {
    let carries = |_: &Process| lab.data_in("mrp-10.0.0.200", "sw") > Some(100);
    source.wait_until("data in the group", carries)
}

fn way(report: &Value, name: &str) -> Result<u64> {
    let bytes = report["ways"][name].as_u64();
    bytes.with_context(|| format!("{name}: {report:#}"))
}

fn all_ways(report: &Value) -> Result<u64> {
    Ok(way(report, "bytes_in_group")? + way(report, "bytes_between_hosts")?)
}

/// From host to host, over links that lose.
fn it_goes_from_host_to_host(lab: &Lab) -> Result<()> {
    let sent = Sent::start(lab, Some(5 << 20), &["--join-within", "6s"], &[], &[])?.finish()?;
    let why = sent["between_hosts"].as_str().unwrap_or_default();
    ensure!(why.contains("no confirmation from"), "{sent:#}");
    ensure!(why.contains("a switch says: "), "{sent:#}");
    ensure!(way(&sent, "bytes_in_group")? == 0, "{sent:#}");
    Ok(())
}

/// One that takes no calls keeps the others in the group: the registration is an error, as without fallback.
fn one_receiver_has_no_fallback(lab: &Lab) -> Result<()> {
    let off = ["--fallback", "off"];
    let mut sent = Sent::start(lab, Some(1 << 20), &["--join-within", "6s"], &[], &off)?;
    ensure!(!sent.source.wait()?.success(), "sent");
    let said = sent.source.output();
    ensure!(said.contains("registration: no confirmation from"), "{said}");
    for (receiver, _) in &mut sent.receivers {
        ensure!(!receiver.wait()?.success(), "received");
        let said = receiver.output();
        ensure!(said.contains("the leader has not registered this host"), "{said}");
    }
    Ok(())
}

/// The same at the source: what it says is of MRP.
fn the_source_has_no_fallback(lab: &Lab) -> Result<()> {
    let off = ["--fallback", "off"];
    let mut sent = Sent::start(lab, Some(1 << 20), &["--join-within", "6s"], &off, &[])?;
    ensure!(!sent.source.wait()?.success(), "sent");
    let said = sent.source.output();
    ensure!(said.contains("registration: no confirmation from"), "{said}");
    ensure!(
        said.contains("--mrp-port") && said.contains("--fallback auto"),
        "{said}"
    );
    ensure!(!said.contains("castnet group show"), "{said}");
    Ok(())
}

#[test]
fn a_registration_that_a_switch_refuses_goes_from_host_to_host_or_is_an_error() {
    let flags = [&MRP[..], &["--memory", "1KiB", "--fault", "loss=1%,seed=42"]].concat();
    lab::in_lab("fallback without a controller", STAR, &flags, |lab| {
        it_goes_from_host_to_host(lab)?;
        one_receiver_has_no_fallback(lab)?;
        the_source_has_no_fallback(lab)
    });
}

/// It is slow, left, registered anew, and left again; the members find out of it each time.
fn it_is_tried_again(lab: &Lab) -> Result<()> {
    let flags = [&SLOW[..], &["--fallback-retry", "1ms"]].concat();
    let mut sent = Sent::start(lab, None, &[], &flags, &[])?;
    sent.source.wait_until("it was left twice", |source| {
        source.output().matches("goes on from host to host").count() == 2
    })?;
    let sent = sent.finish()?;
    let changes = sent["ways"]["changes"].as_array().context("changes")?;
    let to: Vec<_> = changes
        .iter()
        .filter_map(|change| change["to"].as_str())
        .collect();
    ensure!(to.starts_with(&["hosts", "group", "hosts"]), "{sent:#}");
    // It was left again for the same reason as the first time.
    let why = changes[2]["why"].as_str().unwrap_or_default();
    ensure!(why.contains(" for 400ms"), "{sent:#}");
    Ok(())
}

/// The error of the source names it.
fn a_receiver_dies(lab: &Lab) -> Result<()> {
    let ready = lab.folder().join("ready");
    let flags = [
        "--fallback-after",
        "400ms",
        "--ready-file",
        &ready.to_string_lossy(),
    ];
    let both = [&GIVE_UP[..], &["--op", "write"]].concat();
    let mut sent = Sent::start(lab, None, &both, &flags, &[])?;
    let is_ready = |_: &Process| ready.exists();
    sent.source.wait_until("it was registered", is_ready)?;
    sent.receivers[2].0.kill();
    ensure!(!sent.source.wait()?.success(), "a transfer to one that is dead");
    let said = sent.source.output();
    ensure!(said.contains("nothing was acknowledged for 400ms"), "{said}");
    ensure!(said.contains(&format!("3 is {}", lab.address("h4"))), "{said}");
    Ok(())
}

/// It withdraws the group. The receivers begin anew with the next source.
fn the_source_is_interrupted(lab: &Lab) -> Result<()> {
    let mut sent = Sent::start(lab, None, &[], &[], &[])?;
    wait_for_data(lab, &mut sent.source)?;
    sent.source.interrupt()?;
    ensure!(!sent.source.wait()?.success(), "sent");
    for (receiver, _) in &mut sent.receivers {
        receiver.wait_until("it joins again", |receiver| {
            receiver.output().contains("joining again")
        })?;
    }
    let second = lab.folder().join("second");
    let digest_sent = write_random(&second, 3 << 20, 62)?;
    start_source(lab, &second, &[])?.succeed()?;
    for (receiver, out) in &mut sent.receivers {
        receiver.succeed()?;
        let received = receiver.report()?;
        ensure!(digest(out)? == digest_sent, "{received:#}");
        ensure!(received["begun_again"] == 1, "{received:#}");
    }
    Ok(())
}

/// The switch stands still, and nobody answers the source that has left the group for the second time.
fn the_source_waits_for_the_others(lab: &Lab) -> Result<()> {
    let both = ["--fallback-give-up", "10m"];
    let flags = ["--fallback-after", "800ms", "--fallback-retry", "1ms"];
    let mut sent = Sent::start(lab, None, &both, &flags, &[])?;
    let source = &mut sent.source;
    for (times, says) in [(1, ""), (2, "tries its group again")] {
        lab.switch("sw")?.go_on()?;
        source.wait_until("it is in the group", |source| source.output().contains(says))?;
        wait_for_data(lab, source)?;
        lab.switch("sw")?.stop()?;
        source.wait_until("it has left the group", |source| {
            source.output().matches("goes on from host to host").count() == times
        })?;
    }
    source.interrupt()?;
    ensure!(!source.wait()?.success(), "sent");
    let said = source.output();
    ensure!(said.contains("stopped by a signal"), "{said}");
    Ok(())
}

#[test]
fn a_registered_group_is_left_joined_again_and_withdrawn_whoever_goes() {
    lab::in_lab("fallback without a controller", STAR, &MRP, |lab| {
        it_is_tried_again(lab)?;
        a_receiver_dies(lab)?;
        the_source_is_interrupted(lab)?;
        the_source_waits_for_the_others(lab)
    });
}
