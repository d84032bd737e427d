//! Members of one group send one after the other, over one queue pair each.

use std::fs;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, TWO_TIERS};
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

/// The group ends with its members, who can join it again. So does one whose switches repair losses.
#[test]
fn members_of_a_group_of_the_controller_send_in_turn_twice() {
    let fault = ["--fault", "loss=1%,seed=11"];
    lab::in_lab("turns", TWO_TIERS, &fault, |lab| {
        let hosts = ["h1", "h2", "h3", "h4", "h5", "h6"];
        let controller = lab.socket("controller");
        let members = hosts[1..].join(",");
        let create = |group, more: &[&str]| {
            let mut create = vec!["group", "create", group, "--source", "h1", "--members", &members];
            create.extend(["--any-source", "--pmtu", "4096", "--controller", &controller]);
            create.extend(more);
            lab.castnet(&create)
        };
        create("turns", &[])?;
        for order in [["h1", "h4", "h6", "h6"], ["h5", "h2", "h5", "h1"]] {
            take(lab, &hosts, &order, |n, flags| {
                lab.start_host(hosts[n], "turns", "turns", flags)
            })?;
        }
        let shown = lab.castnet(&["group", "show", "turns", "--controller", &controller])?;
        ensure!(shown.contains("any member, h1 first"), "{shown}");
        lab.castnet(&["group", "destroy", "turns", "--controller", &controller])?;

        create("repaired", &["--repair", "switch", "--repair-slots", "128"])?;
        take(lab, &hosts, &["h6", "h1", "h4"], |n, flags| {
            lab.start_host(hosts[n], "repaired", "repaired", flags)
        })?;
        let shown = lab.castnet(&["group", "show", "repaired", "--controller", &controller])?;
        ensure!(shown.contains("from the switches, 128 packets each"), "{shown}");
        Ok(())
    });
}
