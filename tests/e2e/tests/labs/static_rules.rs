//! A static group from a rule file, with no controller anywhere: `castnet switch --rules FILE`.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, Plan, ROUTED, ROUTED_LEAVES, STAR};
use castnet_e2e::process::{Process, castnet};

use crate::turns;

const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];
/// Close to the wrap, so that the transfer crosses it.
const START_PSN: &str = "16777000";
const LOSS: [&str; 2] = ["--fault", "loss=1%,seed=9"];

/// A group of all hosts, and where they are.
struct Group {
    switches: Vec<Switch>,
    /// By host.
    members: Vec<Member>,
}

/// The group at one switch.
struct Switch {
    name: &'static str,
    mcst_id: &'static str,
    /// The endpoint towards h1, and another switch, as rule files have them.
    source: &'static str,
    next: Option<String>,
    /// Port and Ethernet address of the router, where there is one: rules of what is behind it leave the address out.
    router: Option<(usize, String)>,
}

struct Member {
    /// The switch's index.
    switch: usize,
    port: usize,
    virtual_qpn: u32,
    ip: String,
    gateway: Option<String>,
    /// Its Ethernet address, where no router is between.
    mac: Option<String>,
}

impl Group {
    fn at_one(mcst_id: &'static str, router: Option<(usize, String)>, members: Vec<Member>) -> Self {
        let switch = Switch {
            name: "sw",
            mcst_id,
            source: "h1",
            next: None,
            router,
        };
        Self {
            switches: vec![switch],
            members,
        }
    }

    /// Each host at a port of its own.
    fn at_ports(lab: &Lab) -> Result<Self> {
        let member = |(port, host): (usize, &&str)| {
            Ok(Member {
                switch: 0,
                port,
                virtual_qpn: 1,
                ip: Lab::ip(host),
                gateway: None,
                mac: Some(lab.mac(host)?),
            })
        };
        let members = HOSTS.iter().enumerate().map(member).collect::<Result<_>>()?;
        Ok(Self::at_one("10.0.0.200", None, members))
    }

    /// All behind a router at the only port, each in a network of its own.
    fn routed(lab: &Lab) -> Result<Self> {
        let mac = lab.port_mac("rt1", "sw")?;
        let member = |number: u32| Member {
            switch: 0,
            port: 0,
            virtual_qpn: 1 + number,
            ip: format!("10.0.{number}.1"),
            gateway: Some(format!("10.0.{number}.254")),
            mac: None,
        };
        let members = (1..).map(member).take(HOSTS.len()).collect();
        Ok(Self::at_one("10.200.0.7", Some((0, mac)), members))
    }

    /// Two at each of two switches, with a router between the switches.
    fn at_routed_leaves(lab: &Lab) -> Result<Self> {
        let leaves = [("leaf1", "10.201.0.200"), ("leaf2", "10.202.0.200")];
        let switch = |own: usize, source| -> Result<Switch> {
            let ((name, mcst_id), (other, ip)) = (leaves[own], leaves[1 - own]);
            let mac = lab.port_mac("rt1", name)?;
            let next =
                format!("port = 2\nverify_mac = true\nswitch = {{ name = \"{other}\", ip = \"{ip}\" }}");
            Ok(Switch {
                name,
                mcst_id,
                source,
                next: Some(next),
                router: Some((2, mac)),
            })
        };
        let member = |(n, host): (usize, &&str)| {
            let switch = n / 2;
            Ok(Member {
                switch,
                port: n % 2,
                virtual_qpn: 1,
                ip: format!("10.20{}.0.{}", 1 + switch, 1 + n),
                gateway: None,
                mac: Some(lab.mac(host)?),
            })
        };
        Ok(Self {
            switches: vec![switch(0, "h1")?, switch(1, "leaf1")?],
            members: HOSTS.iter().enumerate().map(member).collect::<Result<_>>()?,
        })
    }

    /// The rules of a switch: h1 to the others, or with `any_source` each to the others; QPN 0x1N for hN.
    fn rules(&self, switch: &str, any_source: &str) -> Result<String> {
        let at = self.switches.iter().position(|s| s.name == switch);
        let at = at.context("a switch of the group")?;
        let Switch {
            mcst_id,
            source,
            next,
            router,
            ..
        } = &self.switches[at];
        let mut rules = format!(
            "[[groups]]\nname = \"static\"\nmcst_id = \"{mcst_id}\"\npmtu = 1024\nstart_psn = {START_PSN}\nsource = \
             \"{source}\"\nany_source = {any_source}\n"
        );
        for (n, (host, member)) in HOSTS.iter().zip(&self.members).enumerate() {
            if member.switch != at {
                continue;
            }
            let Member {
                port,
                virtual_qpn,
                ip,
                mac,
                ..
            } = member;
            let qpn = 0x11 + n;
            let mac = mac
                .as_ref()
                .map_or_else(String::new, |mac| format!(", mac = \"{mac}\""));
            write!(
                rules,
                "[[groups.endpoints]]\nport = {port}\nvirtual_qpn = {virtual_qpn}\nhost = {{ name = \"{host}\", ip = \"{ip}\", \
                 qpn = {qpn}{mac} }}\n"
            )?;
        }
        if let Some(next) = next {
            write!(rules, "[[groups.endpoints]]\n{next}\n")?;
        }
        if let Some((port, mac)) = router {
            write!(
                rules,
                "[[routes]]\nprefix = \"0.0.0.0/0\"\nnext_hops = [{{ port = {port}, mac = \"{mac}\" }}]\n"
            )?;
        }
        Ok(rules)
    }

    fn start(&self, lab: &Lab, n: usize, verb: &str, rest: &[&str]) -> Result<Process> {
        let (host, member) = (HOSTS[n], &self.members[n]);
        let mut command = lab.host(host)?.command(castnet());
        command.args(["host", verb, "--name", host, "--interface", "eth0"]);
        let mcst_id = self.switches[member.switch].mcst_id;
        command.args(["--mcst-id", mcst_id, "--ip", &format!("{}/24", member.ip)]);
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
        for (at, switch) in self.switches.iter().enumerate() {
            let group = lab.castnet(&["group", "show", "static", "--agent", &lab.socket(switch.name)])?;
            let mut own = HOSTS
                .iter()
                .zip(&self.members)
                .filter(|(_, member)| member.switch == at);
            if !own.all(|(host, _)| group.contains(host)) {
                bail!("{} does not show its static group:\n{group}", switch.name);
            }
        }
        Ok(())
    }
}

/// Transfers over the static group of a lab with no controller, its switches with these flags as well, from one host or, with `any_source`, from
/// each.
fn run(plan: Plan<'_>, flags: &[&str], group: fn(&Lab) -> Result<Group>, any_source: &str) {
    let flags = |lab: &Lab, switch: &str| {
        let file = lab.folder().join(format!("{switch}.toml"));
        fs::write(&file, group(lab)?.rules(switch, any_source)?)?;
        lab.castnet(&["rules", "check", &file.to_string_lossy()])?;
        let flags = flags.iter().map(|flag| flag.to_string());
        Ok(["--rules".into(), file.to_string_lossy().into_owned()]
            .into_iter()
            .chain(flags)
            .collect())
    };
    lab::in_lab_with("static rules", plan, flags, |lab| {
        lab.kill_controller();
        let group = group(lab)?;
        if any_source == "false" {
            return group.transfer(lab);
        }
        turns::take(lab, &HOSTS, &["h1", "h3", "h2", "h4", "h4", "h1"], |n, flags| {
            let synchronize = any_source.contains("synchronized").then_some("--synchronize");
            let flags: Vec<_> = flags.iter().copied().chain(synchronize).collect();
            group.start(lab, n, "turns", &flags)
        })
    });
}

/// One-armed in layer 3: the groups' addresses are routed to the switch, and each host has another network and QPN.
#[test]
fn hosts_behind_a_router_are_served_by_one_port() {
    run(ROUTED, &LOSS, Group::routed, "false");
}

/// The switch does not bridge PSNs: each host synchronizes its own, without switch, peers or a controller.
#[test]
fn hosts_with_the_numbers_of_the_group_send_one_after_the_other() {
    run(STAR, &LOSS, Group::at_ports, "\"synchronized\"");
}

/// A router between the switches: each has an address of its own for the group, and hosts at both. Each host sends in its turn, over the queue
/// pair that it receives with, and no PSN of a host is changed.
#[test]
fn hosts_at_several_switches_with_a_router_between_them_send_one_after_the_other() {
    run(ROUTED_LEAVES, &LOSS, Group::at_routed_leaves, "true");
}
