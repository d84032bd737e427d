//! Who may depend on whom, read from `cargo metadata`. The table is the one in ARCHITECTURE.md; a crate may use what it
//! names and whatever those may use in turn. Tests and benches (dev-dependencies) are held to the same table, but for
//! the crates under `tests/` and `benches/`, which may use everything, and `wrap-up` and `sim-control`, which all tests may use.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// (crate, what it may name).
const MAY_USE: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("toml-reader", &[]),
    ("rules", &["toml-reader", "wire"]),
    ("collective", &["wire"]),
    ("reduce", &["wire"]),
    ("engine", &["collective", "endpoint", "reduce", "rules", "wire"]),
    ("pfc", &["wire"]),
    ("port", &["pfc"]),
    ("dpdk-sys", &[]),
    ("dpdk", &["dpdk-sys", "port"]),
    ("worker", &["engine", "port"]),
    ("topology", &["toml-reader", "wire"]),
    ("group", &["rules"]),
    ("planner", &["group", "topology"]),
    ("mrp", &["planner"]),
    ("proto", &["group"]),
    ("agent", &["mrp", "proto", "worker"]),
    ("controller", &["proto", "planner"]),
    ("console", &["proto", "rules"]),
    ("switch", &["console", "dpdk", "worker"]),
    ("demo", &["agent", "comm", "controller", "member", "switch"]),
    ("doctor", &["rnic", "switch"]),
    ("commands", &["console", "local", "replicate"]),
    ("lab", &["commands", "sim"]),
    ("bench", &["switch", "traffic"]),
    ("endpoint", &["wire"]),
    ("rnic", &["endpoint", "port"]),
    ("comm", &["rnic", "proto", "reduce"]),
    ("member", &["comm", "mrp"]),
    ("replicate", &["member"]),
    ("runner", &["comm"]),
    ("local", &["runner"]),
    ("traffic", &["port", "rules"]),
    ("sim", &["comm", "engine", "endpoint", "pfc", "planner"]),
    ("sim-control", &["agent", "controller", "sim"]),
    ("softroce", &[]),
    ("wrap-up", &[]),
];

/// Crates that stand above the table: the binary, and the tests and benches.
const MAY_USE_ALL: &[&str] = &[
    "castnet",
    "castnet-e2e",
    "castnet-model",
    "castnet-fuzz",
    "castnet-house",
    "castnet-softroce-tests",
    "castnet-dpdk-tests",
    "castnet-benches",
    "castnet-peers",
];

/// Crates that all tests may use.
const FOR_TESTS: &[&str] = &["house", "sim-control", "wrap-up"];

/// Crates that do no I/O and know no clock: none of these may appear among their dependencies.
const PURE: &[&str] = &[
    "wire",
    "collective",
    "reduce",
    "engine",
    "pfc",
    "toml-reader",
    "rules",
    "topology",
    "group",
    "planner",
    "mrp",
    "endpoint",
];
const IMPURE: &[&str] = &[
    "tokio",
    "tonic",
    "nix",
    "libc",
    "quanta",
    "rand",
    "rand_chacha",
    "socket2",
    "tracing",
    "crossbeam",
    "parking_lot",
];

/// Crates that may use tokio and tonic, beside the binary: a frame never crosses an async boundary. In comm and
/// member they are on a thread of their own, which talks with the controller.
const ASYNC: &[&str] = &[
    "proto",
    "agent",
    "controller",
    "comm",
    "member",
    "console",
    "switch",
    "bench",
    "demo",
    "commands",
    "sim-control",
];

fn ours() -> Vec<Package> {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata");
    metadata.workspace_packages().into_iter().cloned().collect()
}

/// A crate's name without the house's prefix.
fn room(package: &str) -> &str {
    package.strip_prefix("castnet-").unwrap_or(package)
}

/// The table's closure: all that `room` may use, however indirectly.
fn closure<'a>(table: &BTreeMap<&'a str, &'a [&'a str]>, room: &str) -> BTreeSet<&'a str> {
    let mut all = BTreeSet::new();
    let mut open: Vec<&str> = table[room].to_vec();
    while let Some(next) = open.pop() {
        if all.insert(next) {
            open.extend(table[next]);
        }
    }
    all
}

#[test]
fn every_room_depends_only_on_what_the_house_allows() {
    let table: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut faults = Vec::new();
    for package in ours() {
        if MAY_USE_ALL.contains(&package.name.as_str()) {
            continue;
        }
        let name = room(&package.name);
        if !table.contains_key(name) {
            faults.push(format!(
                "{name} is not in the table of the house: add it there and to ARCHITECTURE.md"
            ));
            continue;
        }
        let allowed = closure(&table, name);
        for dependency in &package.dependencies {
            if let Some(used) = dependency.name.strip_prefix("castnet-")
                && used != name
                && !allowed.contains(used)
                && !(FOR_TESTS.contains(&used) && dependency.kind == DependencyKind::Development)
            {
                faults.push(format!("{name} uses {used}; it may use {allowed:?}"));
            }
            if dependency.name == "castnet" {
                faults.push(format!("{name} uses the binary"));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn pure_rooms_name_no_crate_that_does_io_or_reads_a_clock() {
    let mut faults = Vec::new();
    for package in ours() {
        let name = room(&package.name);
        for dependency in package
            .dependencies
            .iter()
            .filter(|d| d.kind == DependencyKind::Normal)
        {
            if PURE.contains(&name) && IMPURE.contains(&dependency.name.as_str()) {
                faults.push(format!("{name} is pure, and uses {}", dependency.name));
            }
            let table_crate = MAY_USE.iter().any(|(crate_name, _)| *crate_name == name);
            if table_crate && !ASYNC.contains(&name) && ["tokio", "tonic"].contains(&dependency.name.as_str())
            {
                faults.push(format!(
                    "{name} uses {}: it stops at {ASYNC:?} and the binary",
                    dependency.name
                ));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
