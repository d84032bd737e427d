//! One file to many hosts, through real switches, with nothing but their command lines.

use anyhow::{Result, ensure};
use castnet_e2e::lab::{self, ONE_ARMED, TWO_TIERS};
use castnet_e2e::process::castnet;
use castnet_e2e::{Lab, Transfer};

use crate::collective_lab::ten_ranks_at_eight_hosts;

const EIGHT: [&str; 8] = ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];

/// `castnet doctor` at a host tells what is wrong where nobody answers for a group, and that all is well once it is installed.
fn the_doctor_is_asked(lab: &Lab) -> Result<()> {
    const MCST_ID: &str = "10.0.0.200";
    let doctor = || -> Result<(Option<i32>, String)> {
        let mut command = lab.host("h1")?.command(castnet());
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
    lab.castnet(&["group", "install", &file, "--agent", &agent])?;
    let told = doctor()?;
    ensure!(
        told.0 == Some(0) && told.1.contains("a switch answers for it"),
        "{told:?}"
    );
    lab.castnet(&["group", "destroy", "g", "--agent", &agent])?;
    Ok(())
}

/// One port beside an ordinary switch serves eight hosts: it answers ARP for the group, and what comes in by the port leaves by it. The file
/// is sent by SEND and by WRITE, from a different source each; and ten ranks at the hosts have a group.
#[test]
fn a_switch_with_one_port_is_found_by_the_doctor_and_serves_eight_hosts() {
    lab::in_lab("multicast, one-armed", ONE_ARMED, &[], |lab| {
        the_doctor_is_asked(lab)?;
        for (op, source) in [("send", "h1"), ("write", "h8")] {
            let receivers: Vec<&str> = EIGHT.into_iter().filter(|h| *h != source).collect();
            lab.transfer(&Transfer {
                group: op,
                source,
                receivers: &receivers,
                op,
                size: 4 << 20,
                seed: 6,
            })?;
        }
        ten_ranks_at_eight_hosts(lab)
    });
}

/// Whether the controller takes the group as installed on all its switches.
fn is_active(lab: &Lab, group: &str) -> bool {
    let controller = lab.socket("controller");
    lab.castnet_json(&["group", "show", group, "--controller", &controller])
        .is_ok_and(|shown| shown["phase"] == "active")
}

/// Contract S3: control can go and come while traffic flows. The controller is killed in mid-stream, comes back on its store, and still knows the
/// group. Each switch of the tree is killed; the controller installs its part again, and the switch takes up the stream where it is.
#[test]
fn a_stream_goes_on_when_the_controller_and_each_switch_are_killed() {
    lab::in_lab(
        "kills in mid-stream",
        TWO_TIERS,
        &["--fault", "loss=0.2%,seed=3"],
        |lab| {
            let transfer = Transfer {
                group: "s3",
                source: "h1",
                receivers: &["h2", "h3", "h4", "h5", "h6"],
                op: "write",
                size: 0,
                seed: 8,
            };
            lab.create_group_with(&transfer, &["--rate", "20M"])?;
            // On a busy machine the safeguard would be faster than a switch.
            let mut running = lab.start_stream(&transfer, &["--fallback", "off"])?;
            running
                .source
                .wait_until("data was under way", |_| lab.data_in("s3", "leaf2") > Some(100))?;
            lab.kill_controller();
            lab.start_controller()?;
            let controller = lab.socket("controller");
            let group = lab.castnet(&["group", "show", "s3", "--controller", &controller])?;
            ensure!(group.contains("h6"), "the group is not what it was:\n{group}");
            for switch in ["spine", "leaf2", "leaf1"] {
                lab.restart_switch(switch)?;
                let back = format!("{switch} was back in the stream, and the group whole");
                running.source.wait_until(&back, |_| {
                    lab.data_in("s3", switch) > Some(100) && is_active(lab, "s3")
                })?;
            }
            running.finish()?;
            lab.castnet(&["group", "destroy", "s3", "--controller", &controller])?;
            let left = lab.castnet(&["group", "list", "--agent", &lab.socket("spine")])?;
            ensure!(!left.contains("s3"), "the spine still has the group:\n{left}");
            Ok(())
        },
    );
}
