//! The rooms of the engine stand in a straight order: none uses one above it. Those of the controller and of the agent are two: what decides, and
//! what acts.

use std::path::Path;

use crate::fences::{root, sources};

/// Lowest first (ARCHITECTURE.md, "Rooms of the engine").
const ENGINE: [&str; 14] = [
    "address", "port_set", "config", "egress", "plain", "observe", "tables", "output", "group", "bridge",
    "engine", "ingress", "dry_run", "moving",
];

/// The same within `group`.
const GROUP: [&str; 14] = [
    "install",
    "meter",
    "lookup",
    "classify",
    "headers",
    "verify",
    "services",
    "kind",
    "rewrite",
    "multicast",
    "collective",
    "forwarding",
    "context",
    "table",
];

/// The rooms, of `order`, that come after `prefix` in a text.
fn used<'t>(text: &'t str, prefix: &str, order: &[&str]) -> Vec<&'t str> {
    let names = text.split(prefix).skip(1);
    let names = names.map(|rest| rest.split(|c: char| c != '_' && !c.is_alphanumeric()).next());
    names.flatten().filter(|name| order.contains(name)).collect()
}

fn upward(folder: &Path, prefix: &str, order: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    sources(folder, &mut files);
    let mut found = Vec::new();
    let place = |room: &str| order.iter().position(|r| *r == room);
    for file in files {
        let within = file.strip_prefix(folder).expect("within");
        let room = within.iter().next().and_then(|r| r.to_str()).unwrap_or_default();
        let room = room.trim_end_matches(".rs");
        if matches!(room, "lib" | "mod") {
            continue;
        }
        let own = place(room).unwrap_or_else(|| panic!("{}: a room that has no place", file.display()));
        let text = std::fs::read_to_string(&file).expect("a text");
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let text = match within.iter().count() {
            1 => text.replace("super::", prefix),
            _ => text.to_string(),
        };
        let grouped = text.contains(&format!("{prefix}{{"));
        assert!(!grouped, "{}: name each room by a use of its own", file.display());
        let above = used(&text, prefix, order)
            .into_iter()
            .filter(|r| place(r) > Some(own));
        found.extend(above.map(|r| format!("{} uses {r}", within.display())));
    }
    found
}

#[test]
fn no_room_of_the_engine_uses_one_above_it() {
    let engine = root().join("dataplane/engine/src");
    assert_eq!(upward(&engine, "crate::", &ENGINE), [""; 0]);
    assert_eq!(upward(&engine.join("group"), "crate::group::", &GROUP), [""; 0]);
}

/// What a state may not have: it decides, and the shell acts.
const ACTS: [&str; 7] = [
    "crate::shell",
    "Instant::now",
    "SystemTime",
    "spawn(",
    "std::fs",
    "tokio",
    "RandomState",
];

/// What the state of the agent may not have either. That of the controller caches behind locks.
const SHARES: [&str; 4] = ["tonic", "Mutex", "RwLock", "thread"];

fn acts(text: &str, more: &[&'static str]) -> Vec<&'static str> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let words = ACTS.into_iter().chain(more.iter().copied());
    words.filter(|word| text.contains(word)).collect()
}

#[test]
fn a_state_uses_no_shell_no_clock_and_no_task() {
    for (of, least, more) in [("controller", 40, &SHARES[..0]), ("agent", 12, &SHARES[..])] {
        let mut files = Vec::new();
        sources(&root().join(format!("control/{of}/src/state")), &mut files);
        assert!(files.len() > least, "{of}: {} files", files.len());
        let is_code = |file: &&std::path::PathBuf| !file.ends_with("tests.rs");
        for file in files.iter().filter(is_code) {
            let text = std::fs::read_to_string(file).expect("a text");
            assert_eq!(acts(&text, more), [""; 0], "{}", file.display());
        }
    }
    assert_eq!(acts("let at = Instant::now();", &[]), ["Instant::now"]);
    assert_eq!(acts("use parking_lot::Mutex;", &["Mutex"]), ["Mutex"]);
}

#[test]
fn a_use_of_a_room_above_is_seen() {
    assert_eq!(
        used("use crate::engine::Engine;\nuse crate::{x};", "crate::", &ENGINE),
        ["engine"]
    );
}
