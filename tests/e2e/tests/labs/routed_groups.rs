//! Groups over two switches with a router between them, planned by a controller that has a topology file.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, ROUTED_LEAVES, Transfer};
use serde_json::Value;

/// Two leaves with two hosts each, and a router that routes to each leaf the McstIDs from .192 on of its network.
fn topology(lab: &Lab) -> String {
    let mut file = "[[switches]]\nname = \"rt1\"\nkind = \"router\"\nports = 2\n".to_owned();
    let mut link = String::new();
    for leaf in 1..=2 {
        let _ = write!(
            file,
            "[[switches]]\nname = \"leaf{leaf}\"\nports = 3\nmcst_prefix = \"10.20{leaf}.0.192/26\"\n"
        );
        let _ = write!(
            link,
            "[[links]]\na = \"leaf{leaf}:2\"\nb = \"rt1:{}\"\nmtu = 4300\n",
            leaf - 1
        );
        for port in 0..2 {
            let host = format!("h{}", 2 * leaf - 1 + port);
            let ip = lab.address(&host);
            let _ = write!(file, "[[hosts]]\nname = \"{host}\"\nip = \"{ip}\"\n");
            let _ = write!(
                link,
                "[[links]]\na = \"leaf{leaf}:{port}\"\nb = \"{host}\"\nmtu = 4300\n"
            );
        }
    }
    file + &link
}

/// The flags of a leaf: it loses frames, and finds the router by a route.
fn flags(lab: &Lab, leaf: &str) -> Result<Vec<String>> {
    fs::write(lab.folder().join("topology.toml"), topology(lab))?;
    let file = lab.folder().join(format!("{leaf}.toml"));
    let mac = lab.port_mac("rt1", leaf)?;
    let route = "[[routes]]\nprefix = \"0.0.0.0/0\"\nnext_hops = [{ port = 2, mac = ";
    fs::write(&file, format!("{route}\"{mac}\" }}]\n"))?;
    let flags = ["--rules", &file.to_string_lossy(), "--fault", "loss=1%,seed=9"];
    Ok(flags.map(String::from).into())
}

fn multicast(lab: &mut Lab, controller: &str) -> Result<()> {
    let transfer = Transfer {
        group: "wide",
        source: "h1",
        receivers: &["h2", "h3", "h4"],
        op: "send",
        size: 3_000_001,
        seed: 7,
    };
    lab.create_group(&transfer)?;
    let said = lab.castnet_json(&["group", "show", "wide", "--controller", controller])?;
    let own =
        [("h1", 1), ("h2", 1), ("h3", 2), ("h4", 2)].map(|(host, leaf)| (host, format!("10.20{leaf}.0.193")));
    for (host, own) in &own {
        ensure!(
            said["mcst_ids"][host] == own.as_str(),
            "before it joins {host} is told {own}: {said}"
        );
    }
    lab.start_transfer(&transfer)?.finish()?;
    let members = lab.castnet(&["group", "members", "wide", "--controller", controller])?;
    ensure!(
        own.iter()
            .all(|(_, own)| members.contains(&format!("{own} QP 0x1"))),
        "{members}"
    );
    Ok(())
}

/// A sum that each rank verifies.
fn allreduce(lab: &Lab) -> Result<()> {
    let rest = [
        "--iters",
        "3",
        "--warmup",
        "1",
        "--verify",
        "--fallback",
        "forbidden",
        "--bytes",
        "4,100K",
    ];
    let ranks = (0..4).map(|rank| lab.start_rank("allreduce", "sums", rank, 4, &rest));
    let mut ranks = ranks.collect::<Result<Vec<_>>>()?;
    ranks.iter_mut().try_for_each(|rank| rank.succeed())?;
    let said = ranks[0].output();
    let lines: Vec<Value> = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let sums = lines.iter().filter(|line| line["bytes"].is_u64()).count();
    ensure!(
        sums == 2
            && lines
                .iter()
                .all(|line| line["wrong"] == 0 || line["bytes"].is_null()),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_controller_plans_groups_over_a_router() {
    lab::in_lab_with("groups over a router", ROUTED_LEAVES, flags, all);
}

fn all(lab: &mut Lab) -> Result<()> {
    let controller = lab.socket("controller");
    let shown = lab.castnet(&["topology", "--controller", &controller])?;
    ensure!(
        shown.contains("router") && shown.contains("10.202.0.192/26"),
        "{shown}"
    );
    multicast(lab, &controller)?;
    lab.kill_controller();
    lab.start_controller()?;
    allreduce(lab)?;
    lab.castnet(&["group", "destroy", "wide", "--controller", &controller])?;
    for leaf in ["leaf1", "leaf2"] {
        let left = lab.castnet(&["group", "list", "--agent", &lab.socket(leaf)])?;
        ensure!(!left.contains("wide"), "{leaf} has a part left:\n{left}");
    }
    Ok(())
}
