//! One file to many hosts, through real switches, with nothing but their command lines.

use std::sync::Mutex;

use anyhow::Result;
use castnet_e2e::lab::{STAR, TWO_TIERS};
use castnet_e2e::{Lab, Transfer, net};

const SIZE: usize = 64 << 20;

/// Labs run one after the other: each has busy threads enough.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `test` in a lab of `plan`, or says why it cannot.
fn in_lab(plan: castnet_e2e::lab::Plan<'_>, extra: &[&str], test: impl FnOnce(&mut Lab) -> Result<()>) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(why) = net::missing() {
        net::skip("multicast", &why);
        return;
    }
    let mut lab = Lab::start(plan, extra).unwrap_or_else(|e| panic!("the lab does not start: {e:#}"));
    if let Err(error) = test(&mut lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

/// Sends 64 MiB from the first host to all others, by SEND and by WRITE, from a different source each.
fn both_ways(lab: &Lab, hosts: &[&str], seed: u64) -> Result<()> {
    for (op, source) in [("send", hosts[0]), ("write", hosts[hosts.len() - 1])] {
        let receivers: Vec<&str> = hosts.iter().copied().filter(|h| *h != source).collect();
        lab.transfer(&Transfer {
            group: op,
            source,
            receivers: &receivers,
            op,
            size: SIZE,
            seed,
        })?;
    }
    Ok(())
}

const FOUR: [&str; 4] = ["h1", "h2", "h3", "h4"];
const SIX: [&str; 6] = ["h1", "h2", "h3", "h4", "h5", "h6"];
const LOSS: [&str; 2] = ["--fault", "loss=1%,seed=42"];

#[test]
fn one_switch_four_hosts() {
    in_lab(STAR, &[], |lab| both_ways(lab, &FOUR, 1));
}

#[test]
fn one_switch_four_hosts_one_percent_loss() {
    in_lab(STAR, &LOSS, |lab| both_ways(lab, &FOUR, 2));
}

#[test]
fn three_switches_six_hosts() {
    in_lab(TWO_TIERS, &[], |lab| both_ways(lab, &SIX, 3));
}

#[test]
fn three_switches_six_hosts_one_percent_loss() {
    in_lab(TWO_TIERS, &LOSS, |lab| both_ways(lab, &SIX, 4));
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
