//! Links and switches of a tree that are lost: what kernels and processes have to do with it. That the stream goes on is shown by the simulator,
//! which tree it gets by the tests of the controller.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, TWO_SPINES, Transfer};
use serde_json::Value;

const GROUP: &str = "moving";
pub(crate) const SPINES: [&str; 2] = ["spine1", "spine2"];

const TRANSFER: Transfer<'static> = Transfer {
    group: GROUP,
    source: "h1",
    receivers: &["h2", "h3", "h4"],
    op: "send",
    size: 0,
    seed: 11,
};

/// TWO_SPINES as a file; port numbers as the lab gives them.
fn topology(lab: &Lab) -> String {
    let mut file = String::new();
    for (switch, ports) in [("spine1", 2), ("spine2", 2), ("leaf1", 4), ("leaf2", 4)] {
        let _ = write!(file, "[[switches]]\nname = \"{switch}\"\nports = {ports}\n");
    }
    for host in 1..=4 {
        let name = format!("h{host}");
        let ip = lab.address(&name);
        let _ = write!(file, "[[hosts]]\nname = \"{name}\"\nip = \"{ip}\"\n");
        let (leaf, port) = ((host + 1) / 2, (host + 1) % 2);
        let _ = write!(
            file,
            "[[links]]\na = \"leaf{leaf}:{port}\"\nb = \"{name}\"\nmtu = 4300\n"
        );
    }
    for spine in 1..=2 {
        for leaf in 1..=2 {
            let (up, down) = (1 + spine, leaf - 1);
            let ends = format!("a = \"leaf{leaf}:{up}\"\nb = \"spine{spine}:{down}\"");
            let _ = write!(file, "[[links]]\n{ends}\nmtu = 4300\n");
        }
    }
    file
}

/// With a topology file or without; `more`: further flags of all switches.
pub(crate) fn in_two_spines(file: bool, more: &[&str], test: impl FnOnce(&mut Lab) -> Result<()>) {
    let flags = |lab: &Lab, switch: &str| {
        if file {
            fs::write(lab.folder().join("topology.toml"), topology(lab))?;
        }
        let flags = match switch {
            "leaf1" | "leaf2" => &["--no-flood", "spine2"][..],
            _ => &[],
        };
        Ok(flags.iter().chain(more).map(|flag| flag.to_string()).collect())
    };
    lab::in_lab_with("lost switches", TWO_SPINES, flags, test);
}

fn other(spine: &str) -> &'static str {
    if spine == "spine1" { "spine2" } else { "spine1" }
}

/// Starts a stream. Returns the spine that its data comes by.
fn under_way(lab: &mut Lab) -> Result<(lab::RunningTransfer, &'static str)> {
    lab.wait_for("the group was created", |lab| {
        lab.create_group_with(&TRANSFER, &["--rate", "20M"])
    })?;
    // Otherwise they would go on without the group.
    let mut running = lab.start_stream(&TRANSFER, &["--fallback", "off"])?;
    let mut spine = None;
    running.source.wait_until("data came by a spine", |_| {
        spine = SPINES.into_iter().find(|s| lab.data_in(GROUP, s) > Some(100));
        spine.is_some()
    })?;
    Ok((running, spine.context("a spine")?))
}

/// What the controller says of the group.
fn shown(lab: &Lab) -> Result<Value> {
    let controller = lab.socket("controller");
    lab.castnet_json(&["group", "show", GROUP, "--controller", &controller])
}

/// Waits until data comes by a spine. Nothing of the group comes by the other one any more.
fn moves_to(running: &mut lab::RunningTransfer, lab: &Lab, spine: &str) -> Result<()> {
    let what = format!("data came by {spine}");
    running
        .source
        .wait_until(&what, |_| lab.data_in(GROUP, spine) > Some(100))
}

/// Waits until a spine that is back has nothing of the group.
fn is_rid_of(lab: &mut Lab, spine: &str) -> Result<()> {
    let agent = lab.socket(spine);
    lab.wait_for("the lost spine had nothing of the group", |lab| {
        let left = lab.castnet(&["group", "list", "--agent", &agent])?;
        ensure!(!left.contains(GROUP), "{left}");
        Ok(())
    })
}

/// A link of the tree goes down and is mended; the spine of the other tree is killed, with carrier, and started again. Each time the group gets
/// another tree, once, and no byte is lost.
#[test]
fn a_stream_goes_on_when_a_link_is_cut_and_a_spine_is_killed() {
    in_two_spines(false, &[], |lab| {
        let (mut running, first) = under_way(lab)?;
        lab.set_link("leaf1", first, false)?;
        moves_to(&mut running, lab, other(first))?;
        lab.set_link("leaf1", first, true)?;
        is_rid_of(lab, first)?;
        lab.kill_switch(other(first))?;
        moves_to(&mut running, lab, first)?;
        lab.restart_switch(other(first))?;
        is_rid_of(lab, other(first))?;
        ensure!(
            shown(lab)?["generation"] == 3,
            "it moved twice: {:#}",
            shown(lab)?
        );
        running.finish()?;
        Ok(())
    });
}

/// With a topology file. The agent of a switch alone is not found: it forwards on (contract S3), and nothing moves. Then the switch hangs: it
/// neither forwards nor answers, and is back later with the rules that it had, which disturb nobody.
#[test]
fn a_stream_stays_when_an_agent_is_gone_and_moves_when_its_switch_hangs() {
    in_two_spines(true, &[], |lab| {
        let (mut running, spine) = under_way(lab)?;
        // The agent serves, but no new controller finds it.
        let socket = lab.folder().join(format!("{spine}.sock"));
        let hidden = socket.with_extension("hidden");
        lab.kill_controller();
        fs::rename(&socket, &hidden)?;
        lab.start_controller()?;
        lab.wait_for("the agent was missed", |lab| {
            let shown = shown(lab)?;
            ensure!(shown["phase"] == "degraded", "{shown:#}");
            Ok(())
        })?;
        let before = lab.data_in(GROUP, "leaf2");
        running.source.wait_until("data came on", |_| {
            lab.data_in(GROUP, "leaf2") > before.map(|frames| frames + 100)
        })?;
        fs::rename(&hidden, &socket)?;
        lab.wait_for("the agent was found", |lab| {
            let shown = shown(lab)?;
            ensure!(
                shown["phase"] == "active" && shown["generation"] == 1,
                "{shown:#}"
            );
            Ok(())
        })?;
        lab.switch(spine)?.stop()?;
        moves_to(&mut running, lab, other(spine))?;
        lab.switch(spine)?.go_on()?;
        is_rid_of(lab, spine)?;
        ensure!(shown(lab)?["generation"] == 2, "it moved once: {:#}", shown(lab)?);
        running.finish()?;
        Ok(())
    });
}
