//! Groups that their source registers itself, and that the switches refuse, or that are slow: their members go on from host to host, without a
//! controller.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, STAR, digest, write_random};
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
    digest: String,
    bytes: u64,
}

impl Sent {
    /// `both`: flags of all; `flags`: of the source; `last`: of the last receiver.
    fn start(lab: &Lab, bytes: usize, both: &[&str], flags: &[&str], last: &[&str]) -> Result<Self> {
        let file = lab.folder().join("sent");
        let digest = write_random(&file, bytes, 61)?;
        let leader = lab.address("h1");
        let receivers = RECEIVERS.map(|host| {
            let out = lab.folder().join(format!("{host}.out"));
            let text = out.to_string_lossy().into_owned();
            let own = if host == "h4" { last } else { &[] };
            let rest = [&["--leader", &leader, "--out", &text], both, own].concat();
            Ok((start_host(lab, host, "receive", &rest)?, out))
        });
        let receivers = receivers.into_iter().collect::<Result<_>>()?;
        let source = start_source(lab, &[both, flags].concat())?;
        let bytes = bytes as u64;
        Ok(Self {
            source,
            receivers,
            digest,
            bytes,
        })
    }

    /// All have each byte, and know why it did not come in the group. Returns what the source says.
    fn finish(mut self) -> Result<Value> {
        self.source.succeed()?;
        let sent = self.source.report()?;
        for (receiver, out) in &mut self.receivers {
            receiver.succeed()?;
            let received = receiver.report()?;
            ensure!(digest(out)? == self.digest, "{received:#}");
            ensure!(
                received["between_hosts"] == sent["between_hosts"],
                "{received:#}\n{sent:#}"
            );
            ensure!(all_ways(&received)? == self.bytes, "{received:#}");
        }
        ensure!(all_ways(&sent)? == self.bytes, "{sent:#}");
        Ok(sent)
    }
}

/// Starts the source of a file that is there.
fn start_source(lab: &Lab, flags: &[&str]) -> Result<Process> {
    let to = RECEIVERS.map(|host| lab.address(host)).join(",");
    let file = lab.folder().join("sent");
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

#[test]
fn a_group_that_a_switch_refuses_goes_from_host_to_host() {
    let flags = [&MRP[..], &["--memory", "1", "--fault", "loss=1%,seed=42"]].concat();
    lab::in_lab("fallback without a controller", STAR, &flags, |lab| {
        let sent = Sent::start(lab, 5 << 20, &["--join-within", "2s"], &[], &[])?.finish()?;
        let why = sent["between_hosts"].as_str().unwrap_or_default();
        ensure!(why.contains("no confirmation from"), "{sent:#}");
        ensure!(why.contains("a switch says: "), "{sent:#}");
        ensure!(way(&sent, "bytes_in_group")? == 0, "{sent:#}");
        Ok(())
    });
}

#[test]
fn a_registered_group_that_is_slow_is_left_in_the_middle_of_its_stream() {
    let flags = [&MRP[..], &["--fault", "loss=1%,seed=43"]].concat();
    lab::in_lab("fallback without a controller", STAR, &flags, |lab| {
        let flags = [&SLOW[..], &["--fallback-retry", "0"]].concat();
        let sent = Sent::start(lab, 8 << 20, &[], &flags, &[])?.finish()?;
        let why = sent["between_hosts"].as_str().unwrap_or_default();
        // A busy machine may acknowledge nothing in the last eighth of the time.
        let whys = [
            "goodput was too low for 400ms",
            "nothing was acknowledged for 400ms",
        ];
        ensure!(whys.iter().any(|slow| why.contains(slow)), "{sent:#}");
        ensure!(way(&sent, "bytes_between_hosts")? > 1 << 20, "{sent:#}");
        let changes = sent["ways"]["changes"].as_array().map_or(0, Vec::len);
        ensure!(changes == 1, "{sent:#}");
        // The source has withdrawn it.
        lab.wait_for("the end of the group", |lab| {
            let groups = lab.castnet_json(&["group", "list", "--agent", &lab.socket("sw")])?;
            ensure!(groups.as_array().is_some_and(Vec::is_empty), "{groups:#}");
            Ok(())
        })
    });
}

/// It is registered anew each time, and the members find out of it again.
#[test]
fn a_registered_group_is_tried_again() {
    lab::in_lab("fallback without a controller", STAR, &MRP, |lab| {
        let flags = [&SLOW[..], &["--fallback-retry", "1ms"]].concat();
        let sent = Sent::start(lab, 96 << 20, &[], &flags, &[])?.finish()?;
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
    });
}

/// The error of the source names it.
#[test]
fn a_receiver_that_dies_in_a_registered_group_is_named() {
    lab::in_lab("fallback without a controller", STAR, &MRP, |lab| {
        let ready = lab.folder().join("ready");
        let flags = [
            "--fallback-after",
            "400ms",
            "--ready-file",
            &ready.to_string_lossy(),
        ];
        let both = [&GIVE_UP[..], &["--op", "write"]].concat();
        let mut sent = Sent::start(lab, 256 << 20, &both, &flags, &[])?;
        let is_ready = |_: &Process| ready.exists();
        sent.source.wait_until("it was registered", is_ready)?;
        sent.receivers[2].0.kill();
        ensure!(!sent.source.wait()?.success(), "a transfer to one that is dead");
        let said = sent.source.output();
        ensure!(said.contains("nothing was acknowledged for 400ms"), "{said}");
        ensure!(said.contains(&format!("3 is {}", lab.address("h4"))), "{said}");
        Ok(())
    });
}

/// One that takes no calls keeps the others in the group: the registration is an error, as without fallback.
#[test]
fn without_fallback_at_one_receiver_a_refused_registration_is_an_error() {
    let flags = [&MRP[..], &["--memory", "1"]].concat();
    lab::in_lab("fallback without a controller", STAR, &flags, |lab| {
        let off = ["--fallback", "off"];
        let mut sent = Sent::start(lab, 1 << 20, &["--join-within", "1s"], &[], &off)?;
        ensure!(!sent.source.wait()?.success(), "sent");
        let said = sent.source.output();
        ensure!(said.contains("registration: no confirmation from"), "{said}");
        for (receiver, _) in &mut sent.receivers {
            ensure!(!receiver.wait()?.success(), "received");
            let said = receiver.output();
            ensure!(said.contains("the leader has not registered this host"), "{said}");
        }
        Ok(())
    });
}

/// The same at the source: what it says is of MRP.
#[test]
fn a_source_without_fallback_says_what_refuses_its_registration() {
    let flags = [&MRP[..], &["--memory", "1"]].concat();
    lab::in_lab("fallback without a controller", STAR, &flags, |lab| {
        let off = ["--fallback", "off"];
        let mut sent = Sent::start(lab, 1 << 20, &["--join-within", "1s"], &off, &[])?;
        ensure!(!sent.source.wait()?.success(), "sent");
        let said = sent.source.output();
        ensure!(said.contains("registration: no confirmation from"), "{said}");
        ensure!(
            said.contains("--mrp-port") && said.contains("--fallback auto"),
            "{said}"
        );
        ensure!(!said.contains("castnet group show"), "{said}");
        Ok(())
    });
}

/// The switch stands still, and nobody answers the source that has left the group for the second time.
#[test]
fn a_source_that_waits_for_the_others_can_be_interrupted() {
    lab::in_lab("fallback without a controller", STAR, &MRP, |lab| {
        let both = ["--fallback-give-up", "10m"];
        let flags = ["--fallback-after", "800ms", "--fallback-retry", "1ms"];
        let mut sent = Sent::start(lab, 256 << 20, &both, &flags, &[])?;
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
    });
}

/// It withdraws the group. The receivers begin anew with the next source.
#[test]
fn receivers_join_again_after_their_source_was_interrupted() {
    lab::in_lab("fallback without a controller", STAR, &MRP, |lab| {
        let mut sent = Sent::start(lab, 256 << 20, &[], &[], &[])?;
        wait_for_data(lab, &mut sent.source)?;
        sent.source.interrupt()?;
        ensure!(!sent.source.wait()?.success(), "sent");
        for (receiver, _) in &mut sent.receivers {
            receiver.wait_until("it joins again", |receiver| {
                receiver.output().contains("joining again")
            })?;
        }
        start_source(lab, &[])?.succeed()?;
        for (receiver, out) in &mut sent.receivers {
            receiver.succeed()?;
            let received = receiver.report()?;
            ensure!(digest(out)? == sent.digest, "{received:#}");
            ensure!(received["begun_again"] == 1, "{received:#}");
        }
        Ok(())
    });
}
