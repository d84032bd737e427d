//! Switches that are lost while their links keep their carrier, and one of which only the agent is.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::{self, TWO_SPINES, Transfer};
use castnet_e2e::{Lab, net};

const GROUP: &str = "moving";
pub(crate) const SPINES: [&str; 2] = ["spine1", "spine2"];

const TRANSFER: Transfer<'static> = Transfer {
    group: GROUP,
    source: "h1",
    receivers: &["h2", "h3", "h4"],
    op: "send",
    size: 48 << 20,
    seed: 11,
};

/// How a spine is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Killed,
    /// It neither forwards nor answers, and goes on later with the rules that it had.
    Stopped,
}

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

/// `more`: further flags of all switches.
pub(crate) fn in_two_spines(file: bool, more: &[&str], test: impl FnOnce(&mut Lab) -> Result<()>) {
    let _turn = lab::turn();
    if net::is_skipped("lost switches") {
        return;
    }
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
    let mut lab = Lab::start_with(TWO_SPINES, flags).expect("the lab starts");
    if let Err(error) = test(&mut lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

/// Starts the transfer. Returns the spine that its data comes by.
fn under_way(lab: &mut Lab) -> Result<(lab::RunningTransfer, &'static str)> {
    // Slow enough that it is still under way when a busy machine has looked at the other spine: four seconds.
    let rate = ["--rate", "100M"];
    lab.wait_for("the group was created", |lab| {
        lab.create_group_with(&TRANSFER, &rate)
    })?;
    // Otherwise they would go on without the group.
    let mut running = lab.start_transfer_with(&TRANSFER, &["--fallback", "off"])?;
    let mut spine = None;
    running.source.wait_until("data came by a spine", |_| {
        spine = SPINES.into_iter().find(|s| lab.data_in(GROUP, s) > Some(1000));
        spine.is_some()
    })?;
    Ok((running, spine.context("a spine")?))
}

fn generation(lab: &Lab) -> Result<u64> {
    let controller = lab.socket("controller");
    let shown = lab.castnet_json(&["group", "show", GROUP, "--controller", &controller])?;
    shown["generation"].as_u64().with_context(|| format!("{shown:#}"))
}

fn is_lost(file: bool, how: Lost) {
    in_two_spines(file, &[], |lab| {
        let (mut running, lost) = under_way(lab)?;
        let other = if lost == "spine1" { "spine2" } else { "spine1" };
        match how {
            Lost::Killed => lab.kill_switch(lost)?,
            Lost::Stopped => lab.switch(lost)?.stop()?,
        }
        // Or that is over before a busy machine has looked.
        lab.wait_for("data came by the other spine", |lab| {
            let goes_on = lab.data_in(GROUP, other) > Some(0) || running.source.has_ended()?;
            ensure!(goes_on, "{other} has nothing");
            Ok(())
        })?;
        match how {
            Lost::Killed => lab.restart_switch(lost)?,
            Lost::Stopped => lab.switch(lost)?.go_on()?,
        }
        running.finish()?;
        ensure!(generation(lab)? == 2, "it moved once");
        let agent = lab.socket(lost);
        lab.wait_for("the lost spine had nothing of the group", |lab| {
            let left = lab.castnet(&["group", "list", "--agent", &agent])?;
            ensure!(!left.contains(GROUP), "{left}");
            Ok(())
        })
    });
}

#[test]
fn a_group_goes_on_when_a_switch_is_killed() {
    is_lost(false, Lost::Killed);
}

#[test]
fn a_group_goes_on_when_a_switch_of_a_topology_file_is_killed() {
    is_lost(true, Lost::Killed);
}

#[test]
fn a_group_goes_on_when_a_switch_hangs_and_is_not_disturbed_when_it_is_back() {
    is_lost(true, Lost::Stopped);
}

/// It forwards on (contract S3), and nothing moves.
#[test]
fn a_group_stays_where_it_is_when_the_agent_of_a_switch_alone_is_gone() {
    for file in [false, true] {
        in_two_spines(file, &[], |lab| {
            let (running, spine) = under_way(lab)?;
            // The agent serves, but no new controller finds it.
            let socket = lab.folder().join(format!("{spine}.sock"));
            let hidden = socket.with_extension("hidden");
            lab.kill_controller();
            fs::rename(&socket, &hidden)?;
            lab.start_controller()?;
            let controller = lab.socket("controller");
            lab.wait_for("the agent was missed", |lab| {
                let shown = lab.castnet_json(&["group", "show", GROUP, "--controller", &controller])?;
                ensure!(shown["phase"] == "degraded", "{shown:#}");
                Ok(())
            })?;
            running.finish()?;
            fs::rename(&hidden, &socket)?;
            ensure!(generation(lab)? == 1, "it has moved");
            Ok(())
        });
    }
}
