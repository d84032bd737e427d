//! One file to many hosts, through real switches, with nothing but their command lines.

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::{self, ONE_ARMED, STAR, TWO_SPINES, TWO_TIERS};
use castnet_e2e::{Lab, Transfer};

const SIZE: usize = 64 << 20;

/// Runs `test` in a lab of `plan`, or says why it cannot.
fn in_lab(plan: castnet_e2e::lab::Plan<'_>, extra: &[&str], test: impl FnOnce(&mut Lab) -> Result<()>) {
    lab::in_lab("multicast", plan, extra, test);
}

/// Sends a file from the first host to all others, by SEND and by WRITE, from a different source each.
fn both_ways(lab: &Lab, hosts: &[&str], seed: u64) -> Result<()> {
    both_ways_of(SIZE, lab, hosts, seed)
}

fn both_ways_of(size: usize, lab: &Lab, hosts: &[&str], seed: u64) -> Result<()> {
    for (op, source) in [("send", hosts[0]), ("write", hosts[hosts.len() - 1])] {
        let receivers: Vec<&str> = hosts.iter().copied().filter(|h| *h != source).collect();
        lab.transfer(&Transfer {
            group: op,
            source,
            receivers: &receivers,
            op,
            size,
            seed,
        })?;
    }
    Ok(())
}

const FOUR: [&str; 4] = ["h1", "h2", "h3", "h4"];
const EIGHT: [&str; 8] = ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
const SIX: [&str; 6] = ["h1", "h2", "h3", "h4", "h5", "h6"];
const LOSS: [&str; 2] = ["--fault", "loss=1%,seed=42"];

#[test]
fn one_switch_four_hosts() {
    in_lab(STAR, &[], |lab| both_ways(lab, &FOUR, 1));
}

#[test]
fn one_switch_four_hosts_one_percent_loss() {
    in_lab(STAR, &LOSS, |lab| both_ways_of(SIZE / 4, lab, &FOUR, 2));
}

#[test]
fn three_switches_six_hosts() {
    in_lab(TWO_TIERS, &[], |lab| both_ways(lab, &SIX, 3));
}

#[test]
fn three_switches_six_hosts_one_percent_loss() {
    in_lab(TWO_TIERS, &LOSS, |lab| both_ways_of(SIZE / 4, lab, &SIX, 4));
}

/// The switches repeat what links lose: the source repeats little more than its own link has lost, not a window for each loss.
#[test]
fn three_switches_six_hosts_one_percent_loss_with_repair() {
    in_lab(TWO_TIERS, &LOSS, |lab| {
        let transfer = Transfer {
            group: "repaired",
            source: SIX[0],
            receivers: &SIX[1..],
            op: "send",
            size: SIZE,
            seed: 5,
        };
        lab.create_group_with(&transfer, &["--repair", "switch"])?;
        let mut running = lab.start_transfer(&transfer)?;
        running.source.wait_until("the first switch keeps packets", |_| {
            let agent = lab.socket("leaf1");
            lab.castnet(&["group", "show", "repaired", "--agent", &agent])
                .is_ok_and(|shown| shown.contains("of at most 256 packets"))
        })?;
        running.source.succeed()?;
        let report = running.source.report()?;
        running.finish()?;
        let [sent, again, time_outs] = ["frames_sent", "retransmissions", "timeouts"]
            .map(|what| report[what].as_u64().unwrap_or(u64::MAX));
        ensure!(again < sent / 20 + time_outs.saturating_mul(129), "{report}");
        Ok(())
    });
}

/// One port beside an ordinary switch serves eight hosts: it answers ARP for the group, and what comes in by the port leaves by it.
#[test]
fn one_armed_eight_hosts_one_percent_loss() {
    in_lab(ONE_ARMED, &LOSS, |lab| both_ways_of(SIZE / 4, lab, &EIGHT, 6));
}

/// `castnet doctor` at a host tells what is wrong where nobody answers for a group, and that all is well once it is installed.
#[test]
fn doctor_tells_whether_a_group_is_reached() {
    in_lab(ONE_ARMED, &[], |lab| {
        const MCST_ID: &str = "10.0.0.200";
        let doctor = || -> Result<(Option<i32>, String)> {
            let mut command = lab.host("h1")?.command(castnet_e2e::process::castnet());
            let out = command.args(["doctor", "--mcst-id", MCST_ID]).output()?;
            Ok((
                out.status.code(),
                String::from_utf8_lossy(&out.stdout).into_owned(),
            ))
        };
        let told = doctor()?;
        ensure!(
            told.0 == Some(1) && told.1.contains("none to 10.0.0.200"),
            "{told:?}"
        );
        let address = ["addr", "add", "10.0.0.99/24", "dev", "eth0"];
        lab.host("h1")?.command("ip").args(address).output()?;
        let told = doctor()?;
        ensure!(
            told.0 == Some(1) && told.1.contains("nobody answers ARP"),
            "{told:?}"
        );
        let member = |name: &str, last: u8| {
            format!(
                "[[groups.endpoints]]\nport = 0\nhost = {{ name = \"{name}\", ip = \"10.0.0.{last}\", qpn = 17, mac = \
                 \"02:00:00:00:00:0{last}\" }}\n"
            )
        };
        let rules = format!(
            "[[groups]]\nname = \"g\"\nmcst_id = \"{MCST_ID}\"\npmtu = 1024\nsource = \"a\"\n{}{}",
            member("a", 1),
            member("b", 2)
        );
        let file = lab.folder().join("rules.toml");
        std::fs::write(&file, rules)?;
        let (file, agent) = (file.to_string_lossy(), lab.socket("sw"));
        lab.castnet(&["group", "create", "--rules", &file, "--agent", &agent])?;
        let told = doctor()?;
        ensure!(
            told.0 == Some(0) && told.1.contains("a switch answers for it"),
            "{told:?}"
        );
        Ok(())
    });
}

/// The link of the tree at one leaf goes down, is mended, and then the one of the other tree at the other leaf: each time the
/// group gets another tree, and no byte is lost.
#[test]
fn a_group_that_loses_links_of_its_tree_goes_on_over_another_spine() {
    let flags = |switch: &str| match switch {
        "leaf1" | "leaf2" => &["--no-flood", "spine2"][..],
        _ => &[],
    };
    lab::in_lab_of("multicast", TWO_SPINES, flags, |lab| {
        let transfer = Transfer {
            group: "moving",
            source: "h1",
            receivers: &FOUR[1..],
            op: "write",
            size: 4 * SIZE,
            seed: 7,
        };
        lab.create_group(&transfer)?;
        let mut running = lab.start_transfer(&transfer)?;
        let mut lost = None;
        for leaf in ["leaf1", "leaf2"] {
            let mut spine = None;
            running.source.wait_until("data came by a spine", |_| {
                let mut others = ["spine1", "spine2"].into_iter().filter(|s| lost != Some(*s));
                spine = others.find(|s| lab.data_in("moving", s) > Some(1000));
                spine.is_some()
            })?;
            if let Some(before) = lost {
                lab.set_link("leaf1", before, true)?;
            }
            lost = spine;
            lab.set_link(leaf, spine.context("a spine")?, false)?;
        }
        running.finish()
    });
}

/// Contract S3: control can go and come while traffic flows. The controller is killed while the file is under way, comes
/// back on its store, still knows the group, and can take it off the switches.
#[test]
fn the_controller_is_killed_and_comes_back_in_mid_transfer() {
    in_lab(TWO_TIERS, &[], |lab| {
        let receivers = &SIX[1..];
        let transfer = Transfer {
            group: "s3",
            source: "h1",
            receivers,
            op: "send",
            size: 4 * SIZE,
            seed: 5,
        };
        lab.create_group(&transfer)?;
        let mut running = lab.start_transfer(&transfer)?;
        let spine = lab.socket("spine");
        running
            .source
            .wait_until("data was under way", |_| lab.data_in("s3", "spine") > Some(1000))?;
        lab.kill_controller();
        lab.start_controller()?;
        let controller = lab.socket("controller");
        let group = lab.castnet(&["group", "show", "s3", "--controller", &controller])?;
        anyhow::ensure!(group.contains("h6"), "the group is not what it was:\n{group}");
        running.finish()?;
        lab.castnet(&["group", "destroy", "s3", "--controller", &controller])?;
        let left = lab.castnet(&["group", "list", "--agent", &spine])?;
        anyhow::ensure!(!left.contains("s3"), "the spine still has the group:\n{left}");
        Ok(())
    });
}
