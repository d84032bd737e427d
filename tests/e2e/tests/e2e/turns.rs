//! Members of one group send one after the other, over one queue pair each.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, STAR, TWO_TIERS, Transfer};
use castnet_e2e::process::{Process, castnet};
use serde_json::Value;

/// Members that take turns, and the digests of what they send.
struct Taking<'a> {
    hosts: &'a [&'a str],
    order: &'a [&'a str],
    members: Vec<(Process, PathBuf)>,
    sent: Vec<String>,
}

impl<'a> Taking<'a> {
    /// The hosts send in this order. `start` starts `castnet host turns` at a host, by its index.
    fn start(
        lab: &Lab,
        hosts: &'a [&'a str],
        order: &'a [&'a str],
        start: impl Fn(usize, &[&str]) -> Result<Process>,
    ) -> Result<Self> {
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
        Ok(Self {
            hosts,
            order,
            members,
            sent,
        })
    }

    /// All have each turn. Returns the members.
    fn finish(mut self) -> Result<Vec<Process>> {
        for (process, _) in &mut self.members {
            process.succeed()?;
        }
        for ((_, out), host) in self.members.iter().zip(self.hosts) {
            for (turn, sender) in (1..).zip(self.order).filter(|(_, sender)| *sender != host) {
                let path = out.join(format!("{turn:03}-{sender}"));
                let got = lab::digest(&path)?;
                let from = self.hosts.iter().position(|h| h == sender).context("a host")?;
                ensure!(
                    got == self.sent[from],
                    "turn {turn} at {host}: SHA-256 {got}, sent was {}",
                    self.sent[from]
                );
                fs::remove_file(path)?;
            }
        }
        Ok(self.members.into_iter().map(|(process, _)| process).collect())
    }
}

/// The hosts send in this order, as [`Taking::start`].
pub(crate) fn take(
    lab: &Lab,
    hosts: &[&str],
    order: &[&str],
    start: impl Fn(usize, &[&str]) -> Result<Process>,
) -> Result<()> {
    Taking::start(lab, hosts, order, start)?.finish().map(drop)
}

/// Whether bytes of each turn went from host to host, as all members report it.
fn went_between_hosts(members: &[Process]) -> Result<Vec<bool>> {
    let of = |member: &Process| {
        let output = member.output();
        let reports = output.lines().filter_map(|line| serde_json::from_str(line).ok());
        let went = (1..).zip(reports).map(|(turn, report): (u32, Value)| {
            ensure!(report["turn"] == turn, "{report:#}");
            let of = |name: &str| report["ways"][name].as_u64();
            let (Some(in_group), Some(between_hosts)) = (of("bytes_in_group"), of("bytes_between_hosts"))
            else {
                return Ok(false);
            };
            ensure!(report["bytes"] == in_group + between_hosts, "{report:#}");
            Ok(between_hosts > 0)
        });
        went.collect::<Result<Vec<_>>>()
    };
    let first = of(&members[0])?;
    for member in members {
        ensure!(of(member)? == first, "{first:?}, and not at {}", member.output());
    }
    Ok(first)
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

/// Flags of a host: this one is not content with a group of 4 Mb/s.
fn slow_for(this: &str, host: &str) -> &'static [&'static str] {
    match this == host {
        true => &[
            "--fallback-give-up",
            "10s",
            "--expect",
            "400M",
            "--fallback-after",
            "800ms",
        ],
        false => &GIVE_UP,
    }
}

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

/// The first turn is in the group. The source of the second one leaves it in the middle, and the turns behind it go the same way, as one
/// member would not try the group again.
#[test]
fn turns_of_a_slow_group_go_on_from_host_to_host() {
    lab::in_lab("turns from host to host", TWO_TIERS, &[], |lab| {
        create(lab, &HOSTS, &["--any-source", "--rate", "4M"])?;
        let order = ["h1", "h4", "h6", "h4", "h1"];
        let taking = Taking::start(lab, &HOSTS, &order, |n, flags| {
            let retry = ["--fallback-retry", if HOSTS[n] == "h5" { "0" } else { "1ms" }];
            let flags = [slow_for("h4", HOSTS[n]), &retry, flags].concat();
            lab.start_host(HOSTS[n], "turns", "turns", &flags)
        })?;
        let went = went_between_hosts(&taking.finish()?)?;
        ensure!(went == [false, true, true, true, true], "{went:?}");
        let shown = shown(lab)?;
        ensure!(shown.contains("h4 went on from host to host"), "{shown}");
        Ok(())
    });
}

/// Only this host expects more of the group. Between two turns it is tried again.
#[test]
fn turns_come_back_to_their_group_and_leave_it_again() {
    lab::in_lab("turns from host to host", TWO_TIERS, &[], |lab| {
        create(lab, &HOSTS, &["--any-source", "--rate", "4M"])?;
        let order = ["h1", "h4", "h6", "h4", "h1"];
        let taking = Taking::start(lab, &HOSTS, &order, |n, flags| {
            let flags = [slow_for("h4", HOSTS[n]), &["--fallback-retry", "1ms"], flags].concat();
            lab.start_host(HOSTS[n], "turns", "turns", &flags)
        })?;
        let went = went_between_hosts(&taking.finish()?)?;
        ensure!(went == [false, true, false, true, false], "{went:?}");
        Ok(())
    });
}

/// The switch has memory for one group, and another one has it until the turns have begun.
#[test]
fn turns_come_to_their_group_when_the_switch_has_room_for_it() {
    lab::in_lab("turns from host to host", STAR, &["--memory", "6MiB"], |lab| {
        let controller = lab.socket("controller");
        let mut ends = Vec::new();
        for host in ["h1", "h2"] {
            // The switch must have seen it.
            let ip = lab.address(host);
            let mut ping = lab.host(host)?.command(castnet());
            ping.args(["host", "ping", "--interface", "eth0", "--ip", &format!("{ip}/24")]);
            ping.arg(lab.address("h3")).output()?;
            ends.push(format!("{host}={ip},{},99", lab.mac(host)?));
        }
        let large = ["--pmtu", "4096", "--repair", "switch", "--repair-slots", "1024"];
        let other = ["group", "create", "other", "--source", "h1", "--members", "h2"];
        let ends = ["--connection", &ends[0], "--connection", &ends[1]];
        lab.castnet(&[&other[..], &large, &ends, &["--controller", &controller]].concat())?;
        let hosts = &HOSTS[..4];
        create(lab, hosts, &[&["--any-source"], &large[2..]].concat())?;
        let order = ["h4", "h1", "h2", "h1", "h4", "h2", "h1"];
        let mut taking = Taking::start(lab, hosts, &order, |n, flags| {
            let flags = [&GIVE_UP, &["--fallback-retry", "1ms"], flags].concat();
            lab.start_host(hosts[n], "turns", "turns", &flags)
        })?;
        let (last, _) = &mut taking.members[3];
        let begins = "it is sent from host to host";
        last.wait_until(begins, |last| last.output().contains(begins))?;
        last.stop()?;
        let destroy = ["group", "destroy", "other", "--controller", &controller];
        lab.castnet(&destroy)?;
        taking.members[3].0.go_on()?;
        let went = went_between_hosts(&taking.finish()?)?;
        ensure!(went[0] && !went[order.len() - 1], "{went:?}");
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
