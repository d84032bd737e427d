//! What others have found in the crates that we use, and under which licences they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use castnet_house::commands::root;
use castnet_wrap_up::skip;
use rustsec::{Database, Lockfile};

/// A copy of the RustSec advisory database: a folder, or an archive (`.tar.gz`) of one.
const DATABASE: &str = "CASTNET_ADVISORY_DB";

/// Advisories that do not concern us, and why.
const IGNORED: &[(&str, &str)] = &[];

#[test]
fn no_crate_has_a_known_vulnerability() {
    let Some(path) = std::env::var_os(DATABASE).map(PathBuf::from) else {
        skip(
            "known vulnerabilities of dependencies",
            &format!("{DATABASE} names no copy of https://github.com/RustSec/advisory-db"),
        );
        return;
    };
    let unpacked = tempfile::tempdir().expect("a folder");
    let folder = if path.is_dir() {
        path
    } else {
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(&path).arg("-C").arg(unpacked.path());
        assert!(tar.status().expect("tar").success(), "{}", path.display());
        unpacked.path().to_owned()
    };
    let database = Database::open(&folder).expect("an advisory database");
    assert!(database.iter().count() > 500, "the database is not whole");
    let faults = vulnerable(&database, &root().join("Cargo.lock"));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));

    // The check finds what is there.
    let old = unpacked.path().join("old.lock");
    let lock = "version = 4\n\n[[package]]\nname = \"time\"\nversion = \"0.1.43\"\n\
                source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
    std::fs::write(&old, lock).expect("a file");
    let found = vulnerable(&database, &old);
    assert!(
        found.iter().any(|line| line.contains("RUSTSEC-2020-0071")),
        "{found:?}"
    );
}

fn vulnerable(database: &Database, lock: &Path) -> Vec<String> {
    let lock = Lockfile::load(lock).expect("a lock file");
    let found = database.vulnerabilities(&lock).into_iter();
    let line = |v: rustsec::Vulnerability| {
        let (id, package) = (&v.advisory.id, &v.package);
        format!("{} {}: {id}: {}", package.name, package.version, v.advisory.title)
    };
    found
        .filter(|v| !IGNORED.iter().any(|(id, _)| v.advisory.id.as_str() == *id))
        .map(line)
        .collect()
}

/// `cargo deny check` reads the same list; this test needs no other program.
#[test]
fn every_crate_is_under_a_licence_that_deny_toml_allows() {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("UTF-8");
    let list = text
        .split_once("allow = [")
        .and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.expect("a list of licences");
    let allowed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let metadata = cargo_metadata::MetadataCommand::new()
        .features(cargo_metadata::CargoOpt::AllFeatures)
        .exec()
        .expect("cargo metadata");
    let mut refused: BTreeMap<String, String> = BTreeMap::new();
    for package in &metadata.packages {
        let licence = package.license.clone().unwrap_or_default();
        if !is_allowed(&licence, &allowed) {
            refused.insert(package.name.to_string(), licence);
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Of an SPDX expression: one of each `OR`, and all of each `AND`.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let expression = expression.replace(['(', ')'], " ").replace('/', " OR ");
    expression.split(" AND ").all(|part| {
        part.split(" OR ")
            .any(|licence| allowed.contains(&licence.trim()))
    })
}

#[test]
fn a_licence_is_chosen_among_alternatives_only() {
    let allowed = ["MIT", "ISC", "Apache-2.0"];
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "(MIT OR GPL-2.0) AND ISC",
    ] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-2.0 OR GPL-3.0) AND MIT"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}
