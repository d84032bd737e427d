//! Groups at the edges of a static core: a switch in the middle that knows routes alone, and copies what is sent to a multicast address.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use castnet_e2e::lab::{self, Plan, Transfer};
use castnet_e2e::{Lab, net};
use serde_json::Value;

/// Edges and a core between them.
const LEAVES: Plan<'static> = &[
    ("core", &["edge0", "edge1", "edge2"]),
    ("edge0", &["h1", "h2"]),
    ("edge1", &["h3"]),
    ("edge2", &["h4", "h5"]),
];

/// The ToRs of a 2,2-Shufflecast. A link between two of them stands for one of a splitter in each direction, where both have one; the core is the
/// ordinary network.
const TORS: Plan<'static> = &[
    (
        "core",
        &[
            "edge0", "edge1", "edge2", "edge3", "edge4", "edge5", "edge6", "edge7",
        ],
    ),
    ("edge0", &["h1", "h2", "edge4", "edge5", "edge6"]),
    ("edge1", &["edge6", "edge7", "edge4"]),
    ("edge2", &["edge4", "edge5", "edge7"]),
    ("edge3", &["h3", "edge6", "edge7", "edge5"]),
    ("edge4", &[]),
    ("edge5", &["h4"]),
    ("edge6", &["h5"]),
    ("edge7", &[]),
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

/// The prefix of an edge's McstIDs, which the core routes to it.
fn prefix(edge: &str) -> String {
    format!("10.21{}.0.192/26", edge.trim_start_matches("edge"))
}

/// The fabric as the controller sees it: the core is a router.
fn topology(lab: &Lab, plan: Plan<'static>, splitters: &str) -> Result<String> {
    let mut file = String::new();
    let mut links = String::new();
    for (switch, _) in plan {
        let macs = ends(plan, switch).into_iter();
        let macs = macs.map(|end| Ok(format!("\"{}\"", lab.port_mac(switch, end)?)));
        let macs = macs.collect::<Result<Vec<_>>>()?.join(", ");
        let kind = match *switch {
            "core" => "kind = \"router\"".to_owned(),
            edge => format!("mcst_prefix = \"{}\"", prefix(edge)),
        };
        let _ = write!(
            file,
            "[[switches]]\nname = \"{switch}\"\n{kind}\nports = [{macs}]\n"
        );
        for (at, end) in ends(plan, switch).into_iter().enumerate() {
            let far = match end {
                "core" => format!("core:{}", port(plan, "core", switch)?),
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
    Ok(file + &links + splitters)
}

/// 3.1.1: each ToR of a column to two of the other one.
fn splitters() -> Result<String> {
    let mut file = String::new();
    for tor in 0..8 {
        let first = (4 - tor / 4 * 4) + tor % 4 * 2 % 4;
        let from = format!("edge{tor}");
        let link = |to: usize| -> Result<String> {
            let to = format!("edge{to}");
            let (near, far) = (port(TORS, &from, &to)?, port(TORS, &to, &from)?);
            Ok(format!("{{ port = {near}, to = \"{to}:{far}\" }}"))
        };
        let links = [link(first)?, link(first + 1)?].join(", ");
        let _ = write!(file, "[[splitters]]\nfrom = \"{from}\"\nlinks = [{links}]\n");
    }
    Ok(file)
}

/// The routes of `castnet rules core`, and those of McstIDs as of the ordinary network. Only links to hosts and the core are flooded.
fn flags(lab: &Lab, plan: Plan<'static>, splitters: &str, switch: &str) -> Result<Vec<String>> {
    let (base, made) = (lab.folder().join("base.toml"), lab.folder().join("core"));
    if !made.exists() {
        fs::write(&base, topology(lab, plan, splitters)?)?;
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
    match switch {
        "core" => ends(plan, "core")
            .into_iter()
            .try_for_each(|edge| route(&prefix(edge), edge))?,
        _ => route("0.0.0.0/0", "core")?,
    }
    fs::write(&file, routes)?;
    let flags = ["--rules", &file.to_string_lossy(), "--fault", "loss=1%,seed=9"];
    let mut flags: Vec<String> = flags.map(String::from).into();
    // One worker hands frames over to the other one, which has the group.
    if plan.len() < TORS.len() {
        flags.extend(["--worker", "any", "--worker", "any"].map(String::from));
    }
    if switch != "core" {
        for end in ends(plan, switch)
            .into_iter()
            .filter(|end| end.starts_with("edge"))
        {
            flags.extend(["--no-flood".to_owned(), end.to_owned()]);
        }
    }
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
        size: 3_000_001,
        seed: 7,
    };
    lab.create_group_with(&transfer, &["--core", "static", "--repair", repair])?;
    let running = lab.start_transfer_with(&transfer, &["--fallback", "off"])?;
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
    running.finish()?;
    let shown = lab.castnet_json(&["group", "show", &group, "--controller", controller])?;
    ensure!(shown["core"] == "static", "{shown}");
    Ok(())
}

fn in_lab(what: &str, plan: Plan<'static>, splitters: &str, test: impl FnOnce(&mut Lab, &str) -> Result<()>) {
    if net::is_skipped(what) {
        return;
    }
    let lab = Lab::start_with(plan, |lab, switch| flags(lab, plan, splitters, switch));
    let mut lab = lab.expect("the lab starts");
    let controller = lab.socket("controller");
    if let Err(error) = test(&mut lab, &controller) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

fn counted(lab: &Lab, switch: &str, field: &str) -> Result<u64> {
    let counted = lab.castnet_json(&["counters", "--agent", &lab.socket(switch)])?;
    let number = counted["totals"][field].as_u64();
    number.with_context(|| format!("{field}: {counted}"))
}

#[test]
fn a_file_goes_over_a_core_without_state_of_its_group() {
    let _turn = lab::turn();
    in_lab("groups over a static core", LEAVES, "", |lab, controller| {
        for repair in ["source", "switch"] {
            send(lab, controller, repair, 2)?;
        }
        let groups = lab.castnet_json(&["group", "list", "--agent", &lab.socket("core")])?;
        ensure!(
            groups.as_array().is_none_or(Vec::is_empty),
            "the core has groups: {groups}"
        );
        // Each packet enters once and leaves twice.
        ensure!(counted(lab, "core", "copies")? > 1000 && counted(lab, "core", "replicated")? == 0);
        Ok(())
    });
}

/// Eight ToRs relay for each other by their static rules. Feedback and repairs go over the ordinary network.
#[test]
fn a_file_goes_over_the_relays_of_a_shufflecast() {
    // Nine switches and five hosts: too many beside other labs.
    let _alone = lab::alone();
    let splitters = splitters().expect("splitters");
    in_lab(
        "groups over a Shufflecast",
        TORS,
        &splitters,
        |lab, controller| {
            for repair in ["source", "switch"] {
                send(lab, controller, repair, 3)?;
            }
            // A relay without members of the group.
            let relayed = counted(lab, "edge4", "routed")? + counted(lab, "edge5", "copies")?;
            ensure!(relayed > 1000, "{relayed}");
            let over: Value = lab.castnet_json(&["drops", "--agent", &lab.socket("edge7")])?;
            ensure!(over.to_string().contains("over-covered"), "{over}");
            Ok(())
        },
    );
}
