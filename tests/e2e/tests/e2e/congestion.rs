//! Congestion control end to end: slow links behind a switch, whose ports mark, receivers that send CNPs, and a source with DCQCN.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, STAR};
use castnet_e2e::process::Process;
use serde_json::Value;

/// Of the links to h2 and h3, in Mb/s. The one to h4 is not limited.
const SLOW_MBPS: f64 = 100.0;
/// Bytes that wait in front of a slow link; further ones are lost. A source without control has up to 138 kB in flight. The ports mark from
/// 2 kB of the kernel's memory on, and everything from 30 kB.
const QUEUE: u32 = 100_000;
const RECEIVERS: [&str; 3] = ["h2", "h3", "h4"];

struct Outcome {
    source: Value,
    receivers: Vec<Value>,
    /// CNPs that the switch has not let through, as long as the group was there.
    filtered: u64,
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key]
        .as_u64()
        .with_context(|| format!("no {key} in {value:#}"))
}

fn report(process: &mut Process) -> Result<Value> {
    process.succeed()?;
    process.report()
}

fn filtered(lab: &Lab, group: &str) -> Option<u64> {
    let counters = lab
        .castnet_json(&["counters", "--agent", &lab.socket("sw")])
        .ok()?;
    let group = counters["groups"]
        .as_array()?
        .iter()
        .find(|g| g["group"] == group)?;
    group["cnps_filtered"].as_u64()
}

fn marks(lab: &Lab, port: &str) -> Result<u64> {
    let ports = lab.castnet_json(&["port", port, "--agent", &lab.socket("sw")])?;
    number(&ports[0], "ecn_marks")
}

/// Sends a file to all receivers.
fn transfer(lab: &mut Lab, group: &str, size: usize, flags: &[&str]) -> Result<Outcome> {
    let controller = lab.socket("controller");
    let members = RECEIVERS.join(",");
    let create = [
        "group",
        "create",
        group,
        "--source",
        "h1",
        "--members",
        &members,
        "--pmtu",
        "1024",
    ];
    lab.castnet(&[&create[..], &["--controller", &controller]].concat())?;
    let file = lab.folder().join(format!("{group}.bin"));
    let digest = lab::write_random(&file, size, 11)?;
    let out = |host: &str| -> PathBuf { lab.folder().join(format!("{group}.{host}")) };
    let mut receivers = Vec::new();
    for host in RECEIVERS {
        let path = out(host).display().to_string();
        let rest = [&["--out", &path], flags].concat();
        receivers.push(lab.start_host(host, "receive", group, &rest)?);
    }
    let path = file.display().to_string();
    let rest = [&["--file", &path], flags].concat();
    let mut source = lab.start_host("h1", "send", group, &rest)?;
    let mut filtered_last = 0;
    source.wait_until("the end of the transfer", |source| {
        filtered_last = filtered(lab, group).unwrap_or(filtered_last);
        source.output().contains("goodput_bits_per_s")
    })?;
    let source = report(&mut source)?;
    let receivers = receivers.iter_mut().map(report).collect::<Result<Vec<_>>>()?;
    for host in RECEIVERS {
        ensure!(lab::digest(&out(host))? == digest, "{host} has another file");
    }
    Ok(Outcome {
        source,
        receivers,
        filtered: filtered_last,
    })
}

/// The share of its frames that the source has sent again.
fn again(outcome: &Outcome) -> Result<f64> {
    let again = number(&outcome.source, "retransmissions")? as f64;
    Ok(again / number(&outcome.source, "frames_sent")? as f64)
}

/// CNPs of each receiver.
fn cnps(outcome: &Outcome) -> Result<Vec<u64>> {
    let sent = outcome.receivers.iter();
    sent.map(|receiver| number(receiver, "cnps_sent")).collect()
}

/// Sends files until one goes as wanted: a busy machine slows down or stops any of the hosts.
fn transfer_until(
    lab: &mut Lab,
    name: &str,
    flags: &[&str],
    is_wanted: impl Fn(&Outcome) -> Result<bool>,
) -> Result<Outcome> {
    let mut seen = Vec::new();
    while seen.len() < 6 {
        let outcome = transfer(lab, &format!("{name}-{}", seen.len()), 8 << 20, flags)?;
        if is_wanted(&outcome)? {
            return Ok(outcome);
        }
        seen.push((again(&outcome)?, cnps(&outcome).ok()));
    }
    bail!("{name} control: shares of frames that were sent again, and CNPs: {seen:?}")
}

#[test]
fn a_source_follows_its_slowest_links() {
    let port = |name| format!("{name}=af_packet:{name},bypass=no,gso=off,ecn=2000:30000:100%");
    let ports = ["h1", "h2", "h3", "h4"].map(port);
    let extra: Vec<&str> = ports.iter().flat_map(|port| ["--port", port]).collect();
    lab::in_lab_alone("congestion control", STAR, &extra, |lab| {
        for host in ["h2", "h3"] {
            lab.shape("sw", host, &format!("{SLOW_MBPS}mbit"), QUEUE)?;
        }
        // Without control, what the source has in flight does not fit in front of the links.
        let without = transfer_until(lab, "without", &[], |outcome| Ok(again(outcome)? > 0.0))?;
        ensure!(marks(lab, "h2")? == 0, "its packets are not ECN-capable");

        // Nothing is lost but where a busy machine stops a host for long, and then still far less. Marks and CNPs come from the slow links;
        // bursts alone mark a little at the other one.
        let before = again(&without)?;
        let flags = ["--congestion", "dcqcn", "--link-rate", "150M"];
        let with = transfer_until(lab, "with", &flags, |outcome| {
            let sent = cnps(outcome)?;
            Ok(again(outcome)? < before / 4.0 && sent[0].min(sent[1]) > 2 * sent[2])
        })?;
        let sent = cnps(&with)?;
        let marked = RECEIVERS.map(|host| marks(lab, host)).into_iter();
        let marked = marked.collect::<Result<Vec<_>>>()?;
        ensure!(
            sent.iter().zip(&marked).all(|(sent, marked)| sent <= marked),
            "CNPs {sent:?}, marks {marked:?}"
        );
        // M4: the source gets those of the most congested path. The others are filtered.
        let (received, filtered) = (number(&with.source, "cnps_received")?, with.filtered);
        let total: u64 = sent.iter().sum();
        ensure!(
            received > 0 && filtered > 0 && received + filtered <= total,
            "received {received}, filtered {filtered} of {total} CNPs"
        );
        ensure!(
            received < total * 4 / 5,
            "the source got {received} of {total} CNPs"
        );
        let goodput = with.source["goodput_bits_per_s"].as_f64().context("goodput")?;
        let share = goodput / (SLOW_MBPS * 1e6);
        ensure!(
            (0.25..1.0).contains(&share),
            "goodput is {share} of the slow links' rate"
        );
        Ok(())
    });
}
