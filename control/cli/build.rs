//! Puts commit and features into the version, of castnet and of castnet-lab. Git is asked only if this is a checkout of its own: sources from an
//! archive build too.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the program is made of; a change of it may change whether the checkout is as committed.
const SOURCES: [&str; 10] = [
    "Cargo.lock",
    "Cargo.toml",
    "control",
    "dataplane",
    "host",
    "proto",
    "rules",
    "sim",
    "toml-reader",
    "tools",
];

fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(args);
    let output = git.env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The commit, marked if a file differs from it.
fn commit(root: &Path) -> Option<String> {
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root {
        return None;
    }
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(root, &["rev-parse", "--git-path", file]).map(|path| root.join(path))
            && path.exists()
        {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let hash = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--untracked-files=no", "--"];
    status.extend(SOURCES);
    let is_changed = git(root, &status).is_none_or(|changes| !changes.is_empty());
    Some(match is_changed {
        true => format!("commit {hash} with changes"),
        false => format!("commit {hash}"),
    })
}

fn main() {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = manifest.and_then(|folder| folder.join("../..").canonicalize().ok());
    let root = root.unwrap_or_default();
    // This file is among them.
    for source in SOURCES
        .map(|name| root.join(name))
        .iter()
        .filter(|path| path.exists())
    {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    let features = std::env::vars_os().filter_map(|(name, _)| {
        let name = name.into_string().ok()?;
        Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase())
    });
    let mut features: Vec<String> = features.filter(|name| name != "default").collect();
    features.sort();
    let features = match features.is_empty() {
        true => "no features".to_owned(),
        false => format!("features: {}", features.join(", ")),
    };
    let parts: Vec<String> = commit(&root).into_iter().chain([features]).collect();
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!(
        "cargo::rustc-env=CASTNET_VERSION={version} ({})",
        parts.join("; ")
    );
}
