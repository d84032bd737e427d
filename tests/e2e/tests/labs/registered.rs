//! Groups that their source registers itself, with no controller and no rule file: `castnet host send --register-for`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, TWO_TIERS};
use castnet_e2e::process::{Process, castnet};

const MCST_ID: &str = "10.0.0.200";
const RECEIVERS: [&str; 3] = ["h2", "h4", "h6"];

pub(crate) fn start_host(lab: &Lab, host: &str, verb: &str, rest: &[&str]) -> Result<Process> {
    let mut command = lab.host(host)?.command(castnet());
    command.args(["host", verb, "--name", host, "--interface", "eth0"]);
    command.args(["--ip", &format!("{}/24", lab.address(host)), "--mcst-id", MCST_ID]);
    command.args(["--output", "json"]).args(rest);
    Process::start(&format!("{verb}-{host}"), lab.folder(), command)
}

fn transfer(lab: &mut Lab, switches: [&str; 3], op: &str, seed: u64) -> Result<()> {
    let file = lab.folder().join(format!("{op}.bin"));
    let digest = lab::write_random(&file, 3 << 20, seed)?;
    let out = |host: &str| lab.folder().join(format!("{op}-{host}.out"));
    let leader = lab.address("h1");
    let mut all = Vec::new();
    for host in RECEIVERS {
        let path = out(host);
        let rest = ["--op", op, "--leader", &leader, "--out", &path.to_string_lossy()];
        all.push(start_host(lab, host, "receive", &rest)?);
    }
    let receivers = RECEIVERS.map(|host| lab.address(host)).join(",");
    let rest = [
        "--op",
        op,
        "--register-for",
        &receivers,
        "--file",
        &file.to_string_lossy(),
    ];
    all.push(start_host(lab, "h1", "send", &rest)?);
    for process in all.iter_mut().rev() {
        process.succeed()?;
    }
    for host in RECEIVERS {
        ensure!(lab::digest(&out(host))? == digest, "{host} has another file");
    }
    // The source has withdrawn the group.
    lab.wait_for("the end of the group", |lab| {
        for switch in switches {
            let groups = lab.castnet_json(&["group", "list", "--agent", &lab.socket(switch)])?;
            let left = groups.as_array().context("a list")?.len();
            ensure!(left == 0, "{switch} has {left} groups");
        }
        Ok(())
    })
}

/// One who never comes is named.
fn missing(lab: &Lab) -> Result<()> {
    let file = lab.folder().join("write.bin");
    let rest = [
        "--register-for",
        "10.0.0.5",
        "--join-within",
        "1s",
        "--file",
        &file.to_string_lossy(),
    ];
    let mut source = start_host(lab, "h1", "send", &rest)?;
    ensure!(!source.wait()?.success(), "a transfer to nobody");
    let said = source.output();
    ensure!(
        said.contains("no connection from 10.0.0.5 within 1000 ms"),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_source_registers_its_group_by_itself_over_two_tiers_with_losses() {
    let flags = |_: &Lab, switch: &str| {
        let ports: &[&str] = match switch {
            "spine" => &["leaf1", "leaf2"],
            "leaf1" => &["h1", "spine"],
            _ => &["spine"],
        };
        let flags = ["--mrp-pool", "10.0.0.200/30", "--fault", "loss=1%,seed=5"].map(String::from);
        let ports = ports
            .iter()
            .flat_map(|port| ["--mrp-port".to_owned(), (*port).to_owned()]);
        Ok(flags.into_iter().chain(ports).collect())
    };
    // The hosts' kernels have no addresses.
    lab::in_lab_with("registration in the band", TWO_TIERS, flags, |lab| {
        let switches = ["leaf1", "spine", "leaf2"];
        transfer(lab, switches, "write", 2)?;
        missing(lab)
    });
}

/// Three switches at one ordinary switch, two hosts each.
const SEGMENT: lab::Plan<'static> = &[
    ("br1", &["leaf1", "leaf2", "leaf3"]),
    ("leaf1", &["h1", "h2"]),
    ("leaf2", &["h3", "h4"]),
    ("leaf3", &["h5", "h6"]),
];

/// The flags of a leaf: its fabric port leads to both others, and routes say which host is behind which.
fn segment_flags(lab: &Lab, leaf: &str) -> Result<Vec<String>> {
    let mut flags: Vec<String> = ["--mrp-pool", "10.0.0.200/30", "--mrp-port", "br1"]
        .map(String::from)
        .into();
    if leaf == "leaf1" {
        flags.extend(["--mrp-port", "h1"].map(String::from));
    }
    let mut rules = String::new();
    for (other, hosts) in SEGMENT.iter().skip(1).filter(|(other, _)| *other != leaf) {
        let mac = lab.port_mac(other, "br1")?;
        flags.extend(["--mrp-fabric-port".to_owned(), format!("br1={mac}")]);
        for host in *hosts {
            let hop = format!("next_hops = [{{ port = 2, mac = \"{mac}\" }}]");
            rules += &format!("[[routes]]\nprefix = \"{}/32\"\n{hop}\n", lab.address(host));
        }
    }
    let file = lab.folder().join(format!("{leaf}.toml"));
    std::fs::write(&file, rules)?;
    flags.extend(["--rules".to_owned(), file.display().to_string()]);
    Ok(flags)
}

/// No LLDP passes the ordinary switch: the fabric ports are listed.
#[test]
fn several_switches_behind_one_port_are_told_apart() {
    lab::in_lab_with("several switches behind a port", SEGMENT, segment_flags, |lab| {
        transfer(lab, ["leaf1", "leaf2", "leaf3"], "send", 3)
    });
}

fn socket(folder: &Path, name: &str) -> String {
    folder.join(format!("{name}.sock")).display().to_string()
}

/// Hosts behind memif have no interface, and no kernel carries their packets.
fn over_memif(folder: &Path) -> Result<()> {
    let mut command = Command::new(castnet());
    let agent = format!("unix:{}", socket(folder, "agent"));
    let ready = folder.join("ready");
    command.args(["switch", "--name", "sw", "--listen", &agent, "--ready-file"]);
    command
        .arg(&ready)
        .args(["--mrp-pool", "10.0.0.200/30", "--mrp-port", "h1"]);
    for host in ["h1", "h2", "h3"] {
        command.args(["--port", &format!("{host}=memif:{}", socket(folder, host))]);
    }
    let mut switch = Process::start("sw", folder, command)?;
    switch.wait_until("it was ready", |_| ready.exists())?;
    let start = |host: &str, verb: &str, rest: &[&str]| {
        let mut command = Command::new(castnet());
        let interface = format!("memif:{}", socket(folder, host));
        command.args(["host", verb, "--name", host, "--interface", &interface]);
        command.args(["--ip", &format!("{}/24", Lab::ip(host)), "--mcst-id", MCST_ID]);
        command.args(["--output", "json"]).args(rest);
        Process::start(&format!("{verb}-{host}"), folder, command)
    };
    let file = folder.join("file");
    let digest = lab::write_random(&file, 3 << 20, 6)?;
    let out = |host: &str| folder.join(format!("{host}.out"));
    let mut all = Vec::new();
    for host in ["h2", "h3"] {
        let path = out(host);
        all.push(start(
            host,
            "receive",
            &["--leader", "10.0.0.1", "--out", &path.to_string_lossy()],
        )?);
    }
    let rest = [
        "--register-for",
        "10.0.0.2,10.0.0.3",
        "--file",
        &file.to_string_lossy(),
    ];
    all.push(start("h1", "send", &rest)?);
    for process in all.iter_mut().rev() {
        process.succeed().with_context(|| switch.output())?;
    }
    for host in ["h2", "h3"] {
        ensure!(lab::digest(&out(host))? == digest, "{host} has another file");
    }
    switch.wait_until("the group was withdrawn", |_| {
        let mut command = Command::new(castnet());
        let listed = command
            .args(["group", "list", "--agent", &agent, "--output", "json"])
            .output();
        listed.is_ok_and(|out| out.status.success() && out.stdout.trim_ascii() == b"[]")
    })
}

#[test]
fn hosts_behind_memif_register_their_group() {
    let folder = tempfile::tempdir().expect("a folder");
    if let Err(error) = over_memif(folder.path()) {
        panic!("{error:#}");
    }
}
