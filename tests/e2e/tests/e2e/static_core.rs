//! Groups at the edges of a static core: a switch in the middle that knows routes alone, and copies what is sent to a multicast address.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use castnet_e2e::lab::{self, Plan, Transfer};
use castnet_e2e::{Lab, net};
use serde_json::Value;

/// Each leaf has a McstID prefix of its own, which the core routes to it.
const LEAVES: Plan<'static> = &[
    ("core", &["leaf1", "leaf2", "leaf3"]),
    ("leaf1", &["h1", "h2"]),
    ("leaf2", &["h3"]),
    ("leaf3", &["h4", "h5"]),
];

/// The fabric as the controller sees it: the core is a router, which leads 239.1.0.1 to two leaves.
fn topology(lab: &Lab) -> String {
    let mut file = "[[switches]]\nname = \"core\"\nkind = \"router\"\nports = 3\n".to_owned();
    let mut links = String::new();
    for (port, (leaf, hosts)) in LEAVES[1..].iter().enumerate() {
        let ports = hosts.len() + 1;
        let prefix = format!("10.20{}.0.192/26", port + 1);
        let _ = write!(
            file,
            "[[switches]]\nname = \"{leaf}\"\nports = {ports}\nmcst_prefix = \"{prefix}\"\n"
        );
        let mut link = |at: usize, to: &str| {
            let _ = write!(
                links,
                "[[links]]\na = \"{leaf}:{at}\"\nb = \"{to}\"\nmtu = 4300\n"
            );
        };
        for (at, host) in hosts.iter().enumerate() {
            let ip = lab.address(host);
            let _ = write!(file, "[[hosts]]\nname = \"{host}\"\nip = \"{ip}\"\n");
            link(at, host);
        }
        link(hosts.len(), &format!("core:{port}"));
    }
    file + &links + "[[multicast_routes]]\naddress = \"239.1.0.1\"\nswitches = [\"leaf2\", \"leaf3\"]\n"
}

fn flags(lab: &Lab, switch: &str) -> Result<Vec<String>> {
    fs::write(lab.folder().join("topology.toml"), topology(lab))?;
    let file = lab.folder().join(format!("{switch}.toml"));
    let mut routes = String::new();
    let mut route = |prefix: &str, hops: &[String], more: &str| {
        let hops = hops.join(", ");
        let _ = write!(
            routes,
            "[[routes]]\nprefix = \"{prefix}\"\nnext_hops = [{hops}]\n{more}\n"
        );
    };
    let hop = |port: usize, mac: String| format!("{{ port = {port}, mac = \"{mac}\" }}");
    match LEAVES[1..].iter().find(|(leaf, _)| *leaf == switch) {
        Some((leaf, hosts)) => {
            let mac = lab.port_mac("core", leaf)?;
            route("0.0.0.0/0", &[hop(hosts.len(), mac)], "");
        }
        None => {
            let hops = LEAVES[1..].iter().enumerate();
            let hops = hops.map(|(port, (leaf, _))| Ok(hop(port, lab.port_mac(leaf, "core")?)));
            let hops = hops.collect::<Result<Vec<_>>>()?;
            for (n, hop) in (1..).zip(&hops) {
                route(&format!("10.20{n}.0.192/26"), std::slice::from_ref(hop), "");
            }
            route("239.1.0.1/32", &hops[1..], "replicate = true");
        }
    }
    fs::write(&file, routes)?;
    let flags = ["--rules", &file.to_string_lossy(), "--fault", "loss=1%,seed=9"];
    Ok(flags.map(String::from).into())
}

/// A file to all other hosts. The first leaf sends one copy of each packet to the core, and repairs to single leaves.
fn send(lab: &mut Lab, controller: &str, repair: &str) -> Result<()> {
    let group = format!("wide-{repair}");
    let transfer = Transfer {
        group: &group,
        source: "h1",
        receivers: &["h2", "h3", "h4", "h5"],
        op: "write",
        size: 3_000_001,
        seed: 7,
    };
    lab.create_group_with(&transfer, &["--core", "static", "--repair", repair])?;
    let running = lab.start_transfer_with(&transfer, &["--fallback", "off"])?;
    let mut seen = None;
    lab.wait_for("the first leaf has the group", |lab| {
        let agent = lab.socket("leaf1");
        seen = Some(lab.castnet_json(&["group", "show", &group, "--agent", &agent])?);
        Ok(())
    })?;
    let rule = seen.unwrap_or_default().to_string();
    ensure!(
        rule.matches("239.1.0.1").count() == 2,
        "two leaves have the address: {rule}"
    );
    running.finish()?;
    let shown = lab.castnet_json(&["group", "show", &group, "--controller", controller])?;
    ensure!(shown["core"] == "static", "{shown}");
    Ok(())
}

#[test]
fn a_file_goes_over_a_core_without_state_of_its_group() {
    let _turn = lab::turn();
    if let Some(why) = net::missing() {
        net::skip("groups over a static core", &why);
        return;
    }
    let mut lab = Lab::start_with(LEAVES, flags).expect("the lab starts");
    let controller = lab.socket("controller");
    let all = |lab: &mut Lab| -> Result<()> {
        lab.wait_for_links()?;
        for repair in ["source", "switch"] {
            send(lab, &controller, repair)?;
        }
        let agent = lab.socket("core");
        let groups = lab.castnet_json(&["group", "list", "--agent", &agent])?;
        ensure!(
            groups.as_array().is_none_or(Vec::is_empty),
            "the core has groups: {groups}"
        );
        let counted = lab.castnet_json(&["counters", "--agent", &agent])?;
        // Each packet enters once and leaves twice.
        let of = |field: &str| {
            counted["totals"][field]
                .as_u64()
                .context(format!("{field}: {counted}"))
        };
        ensure!(of("copies")? > 1000 && of("replicated")? == 0, "{counted}");
        Ok(())
    };
    if let Err(error) = all(&mut lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}
