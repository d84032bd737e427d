//! Groups that their source registers itself, with no controller and no rule file: `castnet host send --register-for`.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use castnet_e2e::lab::{self, TWO_TIERS};
use castnet_e2e::process::{Process, castnet};
use castnet_e2e::{Lab, net};

const MCST_ID: &str = "10.0.0.200";
const RECEIVERS: [&str; 3] = ["h2", "h4", "h6"];

fn start_host(lab: &Lab, host: &str, verb: &str, rest: &[&str]) -> Result<Process> {
    let mut command = lab.host(host)?.command(castnet());
    command.args(["host", verb, "--name", host, "--interface", "eth0"]);
    command.args(["--ip", &format!("{}/24", lab.address(host)), "--mcst-id", MCST_ID]);
    command.args(["--output", "json"]).args(rest);
    Process::start(&format!("{verb}-{host}"), lab.folder(), command)
}

fn transfer(lab: &mut Lab, op: &str, seed: u64) -> Result<()> {
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
        for switch in ["leaf1", "spine", "leaf2"] {
            let groups = lab.castnet_json(&["group", "list", "--agent", &lab.socket(switch)])?;
            let left = groups.as_array().context("a list")?.len();
            ensure!(left == 0, "{switch} has {left} groups");
        }
        Ok(())
    })
}

/// One who never comes is named.
fn missing(lab: &Lab) -> Result<()> {
    let file = lab.folder().join("send.bin");
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
    let _turn = lab::turn();
    if let Some(why) = net::missing() {
        net::skip("registration in the band", &why);
        return;
    }
    let mut lab = Lab::start_with(TWO_TIERS, |_, switch| {
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
    })
    .expect("the lab starts");
    let mut test = || {
        for host in RECEIVERS.into_iter().chain(["h1"]) {
            let address: Ipv4Addr = lab.address(host).parse()?;
            let namespace = lab.host(host)?.name();
            net::ip(&format!("-n {namespace} addr add {address}/24 dev eth0"))?;
        }
        transfer(&mut lab, "send", 1)?;
        transfer(&mut lab, "write", 2)?;
        missing(&lab)
    };
    if let Err(error) = test() {
        panic!("{error:#}\n{}", lab.logs());
    }
}
