//! A static group from a rule file, with no controller anywhere: `castnet switch --rules FILE`.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Result, bail, ensure};
use castnet_e2e::lab::{self, STAR};
use castnet_e2e::process::{Process, castnet};
use castnet_e2e::{Lab, net};

const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];
const MCST_ID: &str = "10.0.0.200";
/// Close to the wrap, so that the transfer crosses it.
const START_PSN: &str = "16777000";

/// One switch, h1 to the others; QPN 0x1N for hN.
fn rules(lab: &Lab) -> Result<String> {
    let mut rules = format!(
        "[[groups]]\nname = \"static\"\nmcst_id = \"{MCST_ID}\"\npmtu = 1024\nstart_psn = {START_PSN}\nsource = 0\n"
    );
    for (port, host) in HOSTS.iter().enumerate() {
        let (ip, mac) = (Lab::ip(host), lab.mac(host)?);
        let qpn = 0x11 + port;
        write!(
            rules,
            "[[groups.endpoints]]\nport = {port}\nhost = {{ name = \"{host}\", ip = \"{ip}\", qpn = {qpn}, mac = \"{mac}\" }}\n"
        )?;
    }
    Ok(rules)
}

#[test]
fn a_rule_file_is_enough_for_one_sender_and_three_receivers() {
    if let Some(why) = net::missing() {
        net::skip("static rules", &why);
        return;
    }
    let mut lab = Lab::start_with(STAR, |lab| {
        let file = lab.folder().join("rules.toml");
        fs::write(&file, rules(lab)?)?;
        lab.castnet(&["rules", "check", &file.to_string_lossy()])?;
        Ok(vec!["--rules".into(), file.to_string_lossy().into_owned()])
    })
    .expect("the lab starts");
    lab.kill_controller();
    if let Err(error) = transfer(&lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

fn transfer(lab: &Lab) -> Result<()> {
    let file = lab.folder().join("static.bin");
    let sent = lab::write_random(&file, 3_000_001, 6)?;
    let start = |port: usize, verb: &str, rest: &[&str]| -> Result<Process> {
        let host = HOSTS[port];
        let mut command = lab.host(host)?.command(castnet());
        command.args([
            "host",
            verb,
            "--name",
            host,
            "--interface",
            "eth0",
            "--mcst-id",
            MCST_ID,
        ]);
        command.args([
            "--ip",
            &format!("{}/24", Lab::ip(host)),
            "--qpn",
            &(0x11 + port).to_string(),
        ]);
        command.args(["--start-psn", START_PSN]).args(rest);
        Process::start(host, lab.folder(), command)
    };
    let mut receivers = Vec::new();
    for (port, host) in HOSTS.iter().enumerate().skip(1) {
        let out = lab.folder().join(format!("{host}.out"));
        let ready = lab.folder().join(format!("{host}.ready"));
        let flags = [
            "--out",
            &out.to_string_lossy(),
            "--ready-file",
            &ready.to_string_lossy(),
        ];
        let mut process = start(port, "receive", &flags)?;
        process.wait_until("its QP was connected", |_| ready.exists())?;
        receivers.push((process, out));
    }
    start(0, "send", &["--file", &file.to_string_lossy()])?.succeed()?;
    for (process, out) in &mut receivers {
        process.succeed()?;
        let got = lab::digest(out)?;
        ensure!(got == sent, "SHA-256 {got} at {}, sent was {sent}", out.display());
    }
    let group = lab.castnet(&["group", "show", "static", "--agent", &lab.socket("sw")])?;
    if !HOSTS.iter().all(|host| group.contains(host)) {
        bail!("the switch does not show its static group:\n{group}");
    }
    Ok(())
}
