//! Groups at the edges of a static core: a switch in the middle that knows routes alone, and copies what is sent to a multicast address.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use castnet_e2e::lab::{self, Plan, Transfer};
use castnet_e2e::{Lab, net};

/// Each leaf has a McstID prefix of its own, which the core routes to it.
const LEAVES: Plan<'static> = &[
    ("core", &["leaf1", "leaf2", "leaf3"]),
    ("leaf1", &["h1", "h2"]),
    ("leaf2", &["h3"]),
    ("leaf3", &["h4", "h5"]),
];

/// The fabric as the controller sees it: the core is a router.
fn topology(lab: &Lab) -> Result<String> {
    let mac = |switch: &str, ends: &[&str]| -> Result<String> {
        let macs = ends
            .iter()
            .map(|end| Ok(format!("\"{}\"", lab.port_mac(switch, end)?)));
        Ok(macs.collect::<Result<Vec<_>>>()?.join(", "))
    };
    let (core, leaves) = LEAVES.split_first().context("a core")?;
    let ports = mac(core.0, core.1)?;
    let mut file = format!("[[switches]]\nname = \"core\"\nkind = \"router\"\nports = [{ports}]\n");
    let mut links = String::new();
    for (port, (leaf, hosts)) in leaves.iter().enumerate() {
        let ports = mac(leaf, &[hosts, &["core"][..]].concat())?;
        let prefix = format!("10.20{}.0.192/26", port + 1);
        let _ = write!(
            file,
            "[[switches]]\nname = \"{leaf}\"\nports = [{ports}]\nmcst_prefix = \"{prefix}\"\n"
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
    Ok(file + &links)
}

/// The routes to McstIDs, as of the ordinary network; those of `castnet rules core` are beside them.
fn flags(lab: &Lab, switch: &str) -> Result<Vec<String>> {
    let (base, made) = (lab.folder().join("base.toml"), lab.folder().join("core"));
    if !made.exists() {
        fs::write(&base, topology(lab)?)?;
        let paths = [&base, &made].map(|path| path.to_string_lossy());
        lab.castnet(&["rules", "core", &paths[0], "--out", &paths[1]])?;
        fs::copy(made.join("topology.toml"), lab.folder().join("topology.toml"))?;
    }
    let file = made.join(format!("{switch}.toml"));
    let mut routes = fs::read_to_string(&file).unwrap_or_default();
    let mut route = |prefix: &str, port: usize, mac: String| {
        let hop = format!("{{ port = {port}, mac = \"{mac}\" }}");
        let _ = write!(routes, "[[routes]]\nprefix = \"{prefix}\"\nnext_hops = [{hop}]\n");
    };
    let leaves = &LEAVES[1..];
    match leaves.iter().find(|(leaf, _)| *leaf == switch) {
        Some((leaf, hosts)) => route("0.0.0.0/0", hosts.len(), lab.port_mac("core", leaf)?),
        None => {
            for (port, (leaf, _)) in leaves.iter().enumerate() {
                let prefix = format!("10.20{}.0.192/26", port + 1);
                route(&prefix, port, lab.port_mac(leaf, "core")?);
            }
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
        rule.matches("\"core\":\"239.").count() == 2,
        "two leaves have an address: {rule}"
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
