//! Groups at the edges of a static core: a switch in the middle that knows routes alone, and copies what is sent to a multicast address.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, Plan, Transfer};
use serde_json::Value;

/// Edges and a core between them.
const LEAVES: Plan<'static> = &[
    ("core", &["edge0", "edge1", "edge2"]),
    ("edge0", &["h1", "h2"]),
    ("edge1", &["h3"]),
    ("edge2", &["h4", "h5"]),
];

/// Two pods, each of an aggregation switch with two edges, and a programmable core switch between them.
const PODS: Plan<'static> = &[
    ("top", &["agg0", "agg1"]),
    ("agg0", &["edge0", "edge1"]),
    ("agg1", &["edge2", "edge3"]),
    ("edge0", &["h1", "h2"]),
    ("edge1", &["h3"]),
    ("edge2", &["h4"]),
    ("edge3", &["h5"]),
];

/// What the ports of a switch lead to, in their order.
fn ends(plan: Plan<'static>, switch: &str) -> Vec<&'static str> {
    let own = plan.iter().filter(|(name, _)| *name == switch);
    let own = own.flat_map(|(_, ends)| ends.iter().copied());
    let up = plan.iter().filter(|(_, ends)| ends.contains(&switch));
    own.chain(up.map(|(name, _)| *name)).collect()
}

fn port(plan: Plan<'static>, switch: &str, end: &str) -> Result<usize> {
    let at = ends(plan, switch).iter().position(|other| *other == end);
    at.with_context(|| format!("{switch} has no link to {end}"))
}

fn is_edge(name: &str) -> bool {
    name.starts_with("edge")
}

fn is_router(name: &str) -> bool {
    !is_edge(name) && !name.starts_with('h')
}

/// The next switch on the way over routers to an edge.
fn towards(plan: Plan<'static>, from: &str, edge: &str) -> Option<&'static str> {
    let (mut seen, mut layer) = (vec![edge], vec![edge]);
    while !layer.is_empty() {
        let near = |end: &&str| ends(plan, from).contains(end);
        if let Some(next) = layer.iter().find(|end| near(end)) {
            return ends(plan, from).into_iter().find(|end| end == next);
        }
        let next = layer.iter().flat_map(|at| ends(plan, at));
        let next: Vec<&str> = next.filter(|end| is_router(end) && !seen.contains(end)).collect();
        seen.extend(&next);
        layer = next;
    }
    None
}

/// The prefix of an edge's McstIDs, which the core routes to it.
fn prefix(edge: &str) -> String {
    format!("10.21{}.0.192/26", edge.trim_start_matches("edge"))
}

/// The fabric as the controller sees it: the core is a router.
fn topology(lab: &Lab, plan: Plan<'static>) -> Result<String> {
    let mut file = String::new();
    let mut links = String::new();
    for (switch, _) in plan {
        let macs = ends(plan, switch).into_iter();
        let macs = macs.map(|end| Ok(format!("\"{}\"", lab.port_mac(switch, end)?)));
        let macs = macs.collect::<Result<Vec<_>>>()?.join(", ");
        let kind = match *switch {
            "top" => "kind = \"router\"\nprogrammable = true".to_owned(),
            router if is_router(router) => "kind = \"router\"".to_owned(),
            edge => format!("mcst_prefix = \"{}\"", prefix(edge)),
        };
        let _ = write!(
            file,
            "[[switches]]\nname = \"{switch}\"\n{kind}\nports = [{macs}]\n"
        );
        for (at, end) in ends(plan, switch).into_iter().enumerate() {
            let far = match end {
                router if is_router(router) && is_edge(switch) => {
                    format!("{router}:{}", port(plan, router, switch)?)
                }
                below if *switch == "top" => format!("{below}:{}", port(plan, below, switch)?),
                host if host.starts_with('h') => {
                    let ip = lab.address(host);
                    let _ = write!(file, "[[hosts]]\nname = \"{host}\"\nip = \"{ip}\"\n");
                    host.to_owned()
                }
                _ => continue,
            };
            let _ = write!(
                links,
                "[[links]]\na = \"{switch}:{at}\"\nb = \"{far}\"\nmtu = 4300\n"
            );
        }
    }
    let addresses = match plan.iter().any(|(name, _)| *name == "top") {
        true => "group_addresses = \"239.200.0.0/16\"\n",
        false => "",
    };
    Ok(addresses.to_owned() + &file + &links)
}

/// The routes of `castnet rules core`, and those of McstIDs as of the ordinary network.
fn flags(lab: &Lab, plan: Plan<'static>, switch: &str) -> Result<Vec<String>> {
    let (base, made) = (lab.folder().join("base.toml"), lab.folder().join("core"));
    if !made.exists() {
        fs::write(&base, topology(lab, plan)?)?;
        let paths = [&base, &made].map(|path| path.to_string_lossy());
        lab.castnet(&["rules", "core", &paths[0], "--out", &paths[1]])?;
        fs::copy(made.join("topology.toml"), lab.folder().join("topology.toml"))?;
    }
    let file = made.join(format!("{switch}.toml"));
    let mut routes = fs::read_to_string(&file).unwrap_or_default();
    let mut route = |prefix: &str, to: &str| -> Result<()> {
        let (port, mac) = (port(plan, switch, to)?, lab.port_mac(to, switch)?);
        let hop = format!("{{ port = {port}, mac = \"{mac}\" }}");
        let _ = write!(routes, "[[routes]]\nprefix = \"{prefix}\"\nnext_hops = [{hop}]\n");
        Ok(())
    };
    let edges = plan.iter().map(|(name, _)| *name).filter(|name| is_edge(name));
    match is_edge(switch) {
        true => {
            let up = ends(plan, switch).into_iter().find(|end| is_router(end));
            route("0.0.0.0/0", up.context("a router")?)?;
        }
        false => {
            for edge in edges {
                let next = towards(plan, switch, edge).context("a way to each edge")?;
                route(&prefix(edge), next)?;
            }
        }
    }
    fs::write(&file, routes)?;
    let flags = ["--rules", &file.to_string_lossy(), "--fault", "loss=1%,seed=9"];
    let mut flags: Vec<String> = flags.map(String::from).into();
    // One worker hands frames over to the other one, which has the group.
    flags.extend(["--worker", "any", "--worker", "any"].map(String::from));
    Ok(flags)
}

/// A file to all other hosts. The first edge sends one copy of each packet to an address for the `edges` others, and repairs to single ones.
fn send(lab: &mut Lab, controller: &str, repair: &str, edges: usize) -> Result<()> {
    let group = format!("wide-{repair}");
    let transfer = Transfer {
        group: &group,
        source: "h1",
        receivers: &["h2", "h3", "h4", "h5"],
        op: "write",
        size: 0,
        seed: 7,
    };
    let create = ["--distribution", "static", "--repair", repair, "--rate", "20M"];
    lab.create_group_with(&transfer, &create)?;
    let running = lab.start_stream(&transfer, &["--fallback", "off"])?;
    let mut seen = None;
    lab.wait_for("the first edge has the group", |lab| {
        let agent = lab.socket("edge0");
        seen = Some(lab.castnet_json(&["group", "show", &group, "--agent", &agent])?);
        Ok(())
    })?;
    let rule = seen.unwrap_or_default().to_string();
    ensure!(
        rule.matches("\"core\":\"239.").count() == edges,
        "{edges} edges have an address: {rule}"
    );
    // Each packet enters the core once and leaves it twice.
    let before = counted(lab, "core", "copies")?;
    lab.wait_for("the core copies", |lab| {
        let copies = counted(lab, "core", "copies")?;
        ensure!(copies > before + 1000, "{copies} after {before}");
        Ok(())
    })?;
    running.finish()?;
    let shown = lab.castnet_json(&["group", "show", &group, "--controller", controller])?;
    ensure!(shown["distribution"] == "static", "{shown}");
    Ok(())
}

fn in_lab(what: &str, plan: Plan<'static>, test: impl FnOnce(&mut Lab, &str) -> Result<()>) {
    let flags = |lab: &Lab, switch: &str| flags(lab, plan, switch);
    lab::in_lab_with(what, plan, flags, |lab| {
        let controller = lab.socket("controller");
        test(lab, &controller)
    });
}

fn counted(lab: &Lab, switch: &str, field: &str) -> Result<u64> {
    let counted = lab.castnet_json(&["counters", "--agent", &lab.socket(switch)])?;
    let number = counted["totals"][field].as_u64();
    number.with_context(|| format!("{field}: {counted}"))
}

#[test]
fn a_file_goes_over_a_core_without_state_of_its_group() {
    in_lab("groups over a static core", LEAVES, |lab, controller| {
        for repair in ["source", "switch"] {
            send(lab, controller, repair, 2)?;
        }
        let groups = lab.castnet_json(&["group", "list", "--agent", &lab.socket("core")])?;
        ensure!(
            groups.as_array().is_none_or(Vec::is_empty),
            "the core has groups: {groups}"
        );
        ensure!(counted(lab, "core", "replicated")? == 0);
        Ok(())
    });
}

/// PEEL 3.3: a file begins with a copy for each address of the cover. In its middle, the programmable core gets a rule for the group, and the
/// source's edge sends one copy. The core loses the rule with a restart, and gets it again; it is gone with the group.
#[test]
fn a_programmable_core_takes_over_the_copies_in_the_middle_of_a_stream() {
    in_lab("groups in a programmable core", PODS, |lab, controller| {
        let transfer = Transfer {
            group: "wide",
            source: "h1",
            receivers: &["h2", "h3", "h4", "h5"],
            op: "write",
            size: 0,
            seed: 7,
        };
        let create = ["--distribution", "static", "--repair", "switch", "--rate", "20M"];
        lab.create_group_with(&transfer, &create)?;
        let running = lab.start_stream(&transfer, &["--fallback", "off"])?;
        let mut refinement = Value::Null;
        lab.wait_for("the core has the group", |lab| {
            let shown = lab.castnet_json(&["group", "show", "wide", "--controller", controller])?;
            refinement = shown["refinement"].clone();
            let copies = refinement["copies"].as_array().map_or(0, Vec::len);
            ensure!(copies == 2, "the address of pod 1, and edge1: {shown:#}");
            Ok(())
        })?;
        let address = refinement["address"].as_str().unwrap_or_default().to_owned();
        let routes = |lab: &Lab| -> Result<String> {
            Ok(lab
                .castnet_json(&["route", "list", "--agent", &lab.socket("top")])?
                .to_string())
        };
        ensure!(routes(lab)?.contains(&format!("{address}/")), "{}", routes(lab)?);
        // Its copies, beside those of loss.
        lab.wait_for("packets take the core", |lab| {
            let copies = counted(lab, "top", "copies")?;
            ensure!(copies > 300, "{copies}");
            Ok(())
        })?;
        lab.restart_switch("top")?;
        lab.wait_for("the core has the group again", |lab| {
            let copies = counted(lab, "top", "copies")?;
            ensure!(
                copies > 300 && routes(lab)?.contains(&format!("{address}/")),
                "{copies}"
            );
            Ok(())
        })?;
        running.finish()?;
        lab.castnet(&["group", "destroy", "wide", "--controller", controller])?;
        lab.wait_for("the core has forgotten the group", |lab| {
            ensure!(!routes(lab)?.contains("239.200."), "{}", routes(lab)?);
            Ok(())
        })
    });
}
