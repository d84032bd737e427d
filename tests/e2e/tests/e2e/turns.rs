//! Members of one group send one after the other, over one queue pair each.

use std::fs;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, TWO_TIERS, Transfer};
use castnet_e2e::process::Process;

/// The hosts send in this order. `start` starts `castnet host turns` at a host, by its index.
pub(crate) fn take(
    lab: &Lab,
    hosts: &[&str],
    order: &[&str],
    start: impl Fn(usize, &[&str]) -> Result<Process>,
) -> Result<()> {
    let (mut sent, mut members) = (Vec::new(), Vec::new());
    for (n, host) in hosts.iter().enumerate() {
        let (file, out) = (
            lab.folder().join(format!("{host}.bin")),
            lab.folder().join(format!("{host}.out")),
        );
        sent.push(lab::write_random(&file, 500_001 + 300_000 * n, 6 + n as u64)?);
        fs::create_dir_all(&out)?;
        let (file, folder) = (file.to_string_lossy(), out.to_string_lossy());
        let order = order.join(",");
        let mut flags = vec!["--order", &order, "--out", &folder];
        if order.contains(host) {
            flags.extend(["--file", &file]);
        }
        members.push((start(n, &flags)?, out));
    }
    for (process, _) in &mut members {
        process.succeed()?;
    }
    for ((_, out), host) in members.iter().zip(hosts) {
        for (turn, sender) in (1..).zip(order).filter(|(_, sender)| *sender != host) {
            let path = out.join(format!("{turn:03}-{sender}"));
            let got = lab::digest(&path)?;
            let from = hosts.iter().position(|h| h == sender).context("a host")?;
            ensure!(
                got == sent[from],
                "turn {turn} at {host}: SHA-256 {got}, sent was {}",
                sent[from]
            );
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

const HOSTS: [&str; 6] = ["h1", "h2", "h3", "h4", "h5", "h6"];

fn create(lab: &Lab, hosts: &[&str], options: &[&str]) -> Result<()> {
    let (controller, members) = (lab.socket("controller"), hosts[1..].join(","));
    let create = [
        "group",
        "create",
        "turns",
        "--source",
        "h1",
        "--members",
        &members,
    ];
    let more = ["--pmtu", "4096", "--controller", &controller];
    lab.castnet(&[&create[..], &more, options].concat()).map(drop)
}

/// Turns in a group of the controller, twice: it ends with its members, who can join it again.
fn twice(any_source: &str, op: &str) {
    let fault = ["--fault", "loss=1%,seed=11"];
    lab::in_lab("turns", TWO_TIERS, &fault, |lab| {
        create(lab, &HOSTS, &[any_source])?;
        for order in [["h1", "h4", "h6", "h6"], ["h5", "h2", "h5", "h1"]] {
            take(lab, &HOSTS, &order, |n, flags| {
                let flags = [&["--op", op], flags].concat();
                lab.start_host(HOSTS[n], "turns", "turns", &flags)
            })?;
        }
        let shown = shown(lab)?;
        let (_, numbers) = any_source.split_once('=').unwrap_or(("", "bridged"));
        ensure!(
            shown.contains("any member, h1 first") && shown.contains(numbers),
            "{shown}"
        );
        Ok(())
    });
}

#[test]
fn members_of_a_group_of_the_controller_send_in_turn_twice() {
    twice("--any-source", "send");
}

#[test]
fn members_send_in_turn_where_switches_repair() {
    let fault = ["--fault", "loss=1%,seed=11"];
    lab::in_lab("turns with repair", TWO_TIERS, &fault, |lab| {
        let repair = ["--any-source", "--repair", "switch", "--repair-slots", "128"];
        create(lab, &HOSTS, &repair)?;
        take(lab, &HOSTS, &["h6", "h1", "h4"], |n, flags| {
            lab.start_host(HOSTS[n], "turns", "turns", flags)
        })?;
        let shown = shown(lab)?;
        ensure!(shown.contains("from the switches, 128 packets each"), "{shown}");
        Ok(())
    });
}

const GIVE_UP: [&str; 2] = ["--fallback-give-up", "10s"];

/// What the controller says of the group.
fn shown(lab: &Lab) -> Result<String> {
    let controller = lab.socket("controller");
    lab.castnet(&["group", "show", "turns", "--controller", &controller])
}

#[test]
fn turns_go_from_host_to_host_if_a_switch_refuses_their_group() {
    let full = ["--memory", "1", "--fault", "loss=0.5%,seed=13"];
    lab::in_lab("turns from host to host", TWO_TIERS, &full, |lab| {
        create(lab, &HOSTS, &["--any-source"])?;
        take(lab, &HOSTS, &["h4", "h1", "h6", "h6"], |n, flags| {
            lab.start_host(HOSTS[n], "turns", "turns", &[&GIVE_UP, flags].concat())
        })
    });
}

/// The first turn is in the group. The source of the second one leaves it in the middle, and the turns behind it go the same way.
#[test]
fn turns_of_a_slow_group_go_on_from_host_to_host() {
    lab::in_lab("turns from host to host", TWO_TIERS, &[], |lab| {
        create(lab, &HOSTS, &["--any-source", "--rate", "4M"])?;
        take(lab, &HOSTS, &["h1", "h4", "h6", "h4", "h1"], |n, flags| {
            let expected = ["--expect", "400M", "--fallback-after", "800ms"];
            let expected = if HOSTS[n] == "h4" { &expected[..] } else { &[] };
            lab.start_host(HOSTS[n], "turns", "turns", &[&GIVE_UP, expected, flags].concat())
        })?;
        let shown = shown(lab)?;
        ensure!(shown.contains("h4 went on from host to host"), "{shown}");
        Ok(())
    });
}

/// Each switch next to a receiver bridges the RETH of each sender to its memory.
#[test]
fn members_write_in_turn() {
    twice("--any-source", "write");
}

/// The PSN synchronization of Cepheus (III.E).
#[test]
fn members_with_the_numbers_of_the_group_send_and_write_in_turn() {
    twice("--any-source=synchronized", "send");
    twice("--any-source=synchronized", "write");
}

/// h1 and h4 both send first, as their orders differ, while another group carries a load. One of them is the source, and loses nothing. The
/// other one receives a turn before its own is acknowledged, and ends with an error.
fn at_once(any_source: &str) {
    let fault = ["--fault", "loss=0.2%,seed=12"];
    lab::in_lab("turns at once", TWO_TIERS, &fault, |lab| {
        let hosts = ["h1", "h2", "h4", "h5"];
        create(lab, &hosts, &[any_source])?;
        let load = Transfer {
            group: "load",
            source: "h3",
            receivers: &["h6"],
            op: "send",
            size: 8 << 20,
            seed: 5,
        };
        lab.create_group(&load)?;
        let load = lab.start_transfer(&load)?;
        let (mut members, mut sent) = (Vec::new(), Vec::new());
        for (n, host) in hosts.iter().enumerate() {
            let out = lab.folder().join(format!("{host}.out"));
            fs::create_dir_all(&out)?;
            let folder = out.to_string_lossy();
            let order = if *host == "h4" { "h4" } else { "h1" };
            let mut flags = vec!["--order", order, "--out", &folder];
            let file = lab.folder().join(format!("{host}.bin"));
            let path = file.to_string_lossy();
            if order == *host {
                sent.push((*host, lab::write_random(&file, 16_000_001, n as u64)?));
                flags.extend(["--file", &path]);
            }
            members.push((lab.start_host(host, "turns", "turns", &flags)?, out));
        }
        let mut source = None;
        for ((process, _), host) in members.iter_mut().zip(hosts) {
            let succeeded = process.wait()?.success();
            let is_source = succeeded && (host == "h1" || host == "h4");
            ensure!(
                succeeded || host == "h1" || host == "h4",
                "{host}: {}",
                process.output()
            );
            ensure!(
                succeeded || process.output().contains("another member sends"),
                "{host}: {}",
                process.output()
            );
            if is_source {
                ensure!(source.replace(host).is_none(), "both have sent");
            }
        }
        let source = source.context("one of them is the source")?;
        let (_, sent) = sent.iter().find(|(host, _)| *host == source).context("sent")?;
        for ((_, out), host) in members
            .iter()
            .zip(hosts)
            .filter(|(_, h)| *h != "h1" && *h != "h4")
        {
            let got = lab::digest(&out.join("001-h1"))?;
            ensure!(got == *sent, "{host} has {got}, {source} has sent {sent}");
        }
        load.finish()
    });
}

#[test]
fn of_two_members_that_send_at_once_one_is_the_source() {
    at_once("--any-source");
    at_once("--any-source=synchronized");
}
