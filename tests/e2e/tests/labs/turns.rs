//! Members of one group send one after the other, over one queue pair each.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, STAR, TWO_TIERS};
use castnet_e2e::process::Process;
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

/// Turns in a group of the controller: it ends with its members, who can join it again.
fn in_order(lab: &Lab, op: &str, order: &[&str]) -> Result<()> {
    take(lab, &HOSTS, order, |n, flags| {
        lab.start_host(HOSTS[n], "turns", "turns", &[&["--op", op], flags].concat())
    })
}

/// Each switch next to a receiver bridges the PSNs and the RETH of each sender; then the hosts synchronize their PSNs (Cepheus III.E).
#[test]
fn members_send_and_write_in_turn_over_links_that_lose() {
    lab::in_lab("turns", TWO_TIERS, &["--fault", "loss=1%,seed=11"], |lab| {
        let controller = lab.socket("controller");
        for (any_source, numbers) in [
            ("--any-source", "bridged"),
            ("--any-source=synchronized", "synchronized"),
        ] {
            create(lab, &HOSTS, &[any_source])?;
            in_order(lab, "write", &["h1", "h4", "h6", "h6"])?;
            in_order(lab, "send", &["h5", "h2", "h5"])?;
            let shown = shown(lab)?;
            ensure!(
                shown.contains("any member, h1 first") && shown.contains(numbers),
                "{shown}"
            );
            lab.castnet(&["group", "destroy", "turns", "--controller", &controller])?;
        }
        Ok(())
    });
}

/// Turns of a group that the switches have no room for.
pub(crate) fn from_host_to_host(lab: &Lab, hosts: &[&str], order: &[&str]) -> Result<()> {
    create(lab, hosts, &["--any-source"])?;
    take(lab, hosts, order, |n, flags| {
        lab.start_host(hosts[n], "turns", "turns", &[&GIVE_UP, flags].concat())
    })
}

/// Nobody leaves a group because the machine is busy.
const GIVE_UP: [&str; 4] = ["--fallback-give-up", "1m", "--fallback-after", "1m"];

/// Flags of a host: this one is not content with a group of 4 Mb/s.
fn slow_for(this: &str, host: &str) -> &'static [&'static str] {
    match this == host {
        true => &[
            "--fallback-give-up",
            "1m",
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

/// Only one host expects more of the group, and leaves it in the middle of its turns. Between two turns it is tried again.
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

/// A folder takes the place of a file that arrives. Its member ends, and still reports the turn before.
#[test]
fn a_turn_that_cannot_be_kept_takes_no_report_with_it() {
    lab::in_lab("turns that cannot be kept", TWO_TIERS, &[], |lab| {
        let hosts = &HOSTS[..3];
        // A turn takes six seconds.
        create(lab, hosts, &["--any-source", "--rate", "1M"])?;
        let mut taking = Taking::start(lab, hosts, &["h1", "h2"], |n, flags| {
            lab.start_host(hosts[n], "turns", "turns", &[&GIVE_UP, flags].concat())
        })?;
        let (h3, out) = &mut taking.members[2];
        let part = out.join("002-h2.castnet-part");
        h3.wait_until("its second turn", |_| part.exists())?;
        fs::create_dir(out.join("002-h2"))?;
        ensure!(!h3.wait()?.success(), "{}", h3.output());
        let output = h3.output();
        let report = output.lines().find_map(|line| serde_json::from_str(line).ok());
        let is_first = report.is_some_and(|report: Value| report["turn"] == 1);
        ensure!(is_first && output.contains("what arrived is in"), "{output}");
        ensure!(lab::digest(&part)? == taking.sent[1]);
        Ok(())
    });
}

/// The file of a member is gone when its turn comes. It ends, and still reports the turn before.
#[test]
fn a_turn_that_cannot_begin_takes_no_report_with_it() {
    lab::in_lab("turns that cannot begin", TWO_TIERS, &[], |lab| {
        let hosts = &HOSTS[..3];
        // The first turn takes four seconds.
        create(lab, hosts, &["--any-source", "--rate", "1M"])?;
        let mut taking = Taking::start(lab, hosts, &["h1", "h2"], |n, flags| {
            lab.start_host(hosts[n], "turns", "turns", &[&GIVE_UP, flags].concat())
        })?;
        let (h2, out) = &mut taking.members[1];
        let part = out.join("001-h1.castnet-part");
        h2.wait_until("its first turn", |_| part.exists())?;
        fs::remove_file(lab.folder().join("h2.bin"))?;
        ensure!(!h2.wait()?.success(), "{}", h2.output());
        let output = h2.output();
        let report = output.lines().find_map(|line| serde_json::from_str(line).ok());
        let is_first = report.is_some_and(|report: Value| report["turn"] == 1);
        ensure!(is_first && output.contains("cannot read"), "{output}");
        ensure!(lab::digest(&out.join("001-h1"))? == taking.sent[0]);
        Ok(())
    });
}

/// Takes turns from host to host, which fail at all three hosts: one has the error `own`, and the others say `why`. `begin` is called before a
/// host is started, and `begun` when it has checked its flags.
fn fail_between_hosts(
    lab: &Lab,
    order: &[&str],
    begin: impl Fn(&str) -> Result<()>,
    begun: impl Fn(&str) -> Result<()>,
    (host, own, why): (&str, &str, &str),
) -> Result<()> {
    let hosts = &HOSTS[..3];
    create(lab, hosts, &["--any-source"])?;
    let taking = Taking::start(lab, hosts, order, |n, flags| {
        begin(hosts[n])?;
        let qps = lab.folder().join(format!("{}.qps", hosts[n]));
        let to = qps.to_string_lossy();
        let flags = [&GIVE_UP[..], &["--qp-file", &*to], flags].concat();
        let mut process = lab.start_host(hosts[n], "turns", "turns", &flags)?;
        process.wait_until("its queue pair", |_| qps.exists())?;
        begun(hosts[n])?;
        fs::remove_file(&qps)?;
        Ok(process)
    })?;
    for ((mut process, _), at) in taking.members.into_iter().zip(hosts) {
        ensure!(!process.wait()?.success(), "{}", process.output());
        let (output, expected) = (process.output(), if *at == host { own } else { why });
        ensure!(output.contains(expected), "{at}: {output}");
    }
    let controller = lab.socket("controller");
    lab.castnet(&["group", "destroy", "turns", "--controller", &controller])
        .map(drop)
}

/// From host to host, nobody waits for one whose file cannot be opened: all learn which host it is.
#[test]
fn hosts_that_cannot_open_their_files_are_named_to_the_others() {
    lab::in_lab(
        "turns between hosts that fail",
        STAR,
        &["--memory", "1KiB"],
        |lab| {
            // Gone when its turn comes.
            let gone = |host: &str| -> Result<()> {
                if host == "h2" {
                    fs::remove_file(lab.folder().join("h2.bin"))?;
                }
                Ok(())
            };
            let failed = ("h2", "cannot read", "h2 cannot send: cannot read");
            fail_between_hosts(lab, &["h1", "h2"], |_| Ok(()), gone, failed)?;
            // A folder is where its file is to be written.
            let taken = |host: &str| -> Result<()> {
                if host == "h3" {
                    fs::create_dir_all(lab.folder().join("h3.out/001-h1.castnet-part"))?;
                }
                Ok(())
            };
            let failed = ("h3", "001-h1.castnet-part", "h3 cannot write what it receives: /");
            fail_between_hosts(lab, &["h1"], taken, |_| Ok(()), failed)
        },
    );
}
