//! A static group from a rule file, with no controller anywhere: `castnet switch --rules FILE`.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Result, bail, ensure};
use castnet_e2e::lab::{self, Plan, ROUTED, STAR};
use castnet_e2e::process::{Process, castnet};
use castnet_e2e::{Lab, net};

const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];
/// Close to the wrap, so that the transfer crosses it.
const START_PSN: &str = "16777000";

/// A group of all hosts, and where they are.
struct Group {
    mcst_id: &'static str,
    /// By host.
    members: Vec<Member>,
}

struct Member {
    port: usize,
    virtual_qpn: u32,
    ip: String,
    gateway: Option<String>,
    /// The Ethernet address of the next hop.
    mac: String,
}

impl Group {
    /// Each host at a port of its own.
    fn at_ports(lab: &Lab) -> Result<Self> {
        let member = |(port, host): (usize, &&str)| {
            Ok(Member {
                port,
                virtual_qpn: 1,
                ip: Lab::ip(host),
                gateway: None,
                mac: lab.mac(host)?,
            })
        };
        Ok(Self {
            mcst_id: "10.0.0.200",
            members: HOSTS.iter().enumerate().map(member).collect::<Result<_>>()?,
        })
    }

    /// All behind a router at the only port, each in a network of its own.
    fn routed(lab: &Lab) -> Result<Self> {
        let mac = lab.port_mac("rt1", "sw")?;
        let member = |number: u32| Member {
            port: 0,
            virtual_qpn: 1 + number,
            ip: format!("10.0.{number}.1"),
            gateway: Some(format!("10.0.{number}.254")),
            mac: mac.clone(),
        };
        Ok(Self {
            mcst_id: "10.200.0.7",
            members: (1..).map(member).take(HOSTS.len()).collect(),
        })
    }

    /// h1 to the others; QPN 0x1N for hN.
    fn rules(&self) -> Result<String> {
        let mut rules = format!(
            "[[groups]]\nname = \"static\"\nmcst_id = \"{}\"\npmtu = 1024\nstart_psn = {START_PSN}\nsource = \"h1\"\n",
            self.mcst_id
        );
        for (n, (host, member)) in HOSTS.iter().zip(&self.members).enumerate() {
            let Member {
                port,
                virtual_qpn,
                ip,
                mac,
                ..
            } = member;
            let qpn = 0x11 + n;
            write!(
                rules,
                "[[groups.endpoints]]\nport = {port}\nvirtual_qpn = {virtual_qpn}\nhost = {{ name = \"{host}\", ip = \"{ip}\", \
                 qpn = {qpn}, mac = \"{mac}\" }}\n"
            )?;
        }
        Ok(rules)
    }

    fn start(&self, lab: &Lab, n: usize, verb: &str, rest: &[&str]) -> Result<Process> {
        let (host, member) = (HOSTS[n], &self.members[n]);
        let mut command = lab.host(host)?.command(castnet());
        command.args(["host", verb, "--name", host, "--interface", "eth0"]);
        command.args(["--mcst-id", self.mcst_id, "--ip", &format!("{}/24", member.ip)]);
        command.args(["--qpn", &(0x11 + n).to_string(), "--start-psn", START_PSN]);
        command.args(["--virtual-qpn", &member.virtual_qpn.to_string()]);
        if let Some(gateway) = &member.gateway {
            command.args(["--gateway", gateway]);
        }
        command.args(rest);
        Process::start(host, lab.folder(), command)
    }

    fn transfer(&self, lab: &Lab) -> Result<()> {
        let file = lab.folder().join("static.bin");
        let sent = lab::write_random(&file, 3_000_001, 6)?;
        let mut receivers = Vec::new();
        for (n, host) in HOSTS.iter().enumerate().skip(1) {
            let out = lab.folder().join(format!("{host}.out"));
            let ready = lab.folder().join(format!("{host}.ready"));
            let flags = [
                "--out",
                &out.to_string_lossy(),
                "--ready-file",
                &ready.to_string_lossy(),
            ];
            let mut process = self.start(lab, n, "receive", &flags)?;
            process.wait_until("its QP was connected", |_| ready.exists())?;
            receivers.push((process, out));
        }
        self.start(lab, 0, "send", &["--file", &file.to_string_lossy()])?
            .succeed()?;
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
}

/// A transfer over the static group of a lab, with no controller, its switch with these flags as well.
fn over(plan: Plan<'_>, flags: &[&str], group: fn(&Lab) -> Result<Group>) {
    let _turn = lab::turn();
    if let Some(why) = net::missing() {
        net::skip("static rules", &why);
        return;
    }
    let mut lab = Lab::start_with(plan, |lab| {
        let file = lab.folder().join("rules.toml");
        fs::write(&file, group(lab)?.rules()?)?;
        lab.castnet(&["rules", "check", &file.to_string_lossy()])?;
        let flags = flags.iter().map(|flag| flag.to_string());
        Ok(["--rules".into(), file.to_string_lossy().into_owned()]
            .into_iter()
            .chain(flags)
            .collect())
    })
    .expect("the lab starts");
    lab.kill_controller();
    if let Err(error) = group(&lab).and_then(|group| group.transfer(&lab)) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

#[test]
fn a_rule_file_is_enough_for_one_sender_and_three_receivers() {
    over(STAR, &[], Group::at_ports);
}

/// One-armed in layer 3: the groups' addresses are routed to the switch, and each host has another network and QPN.
#[test]
fn hosts_behind_a_router_are_served_by_one_port() {
    over(ROUTED, &["--fault", "loss=1%,seed=9"], Group::routed);
}
