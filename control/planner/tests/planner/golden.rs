//! A plan is what it was, in random fabrics with failures, plain switches and routers: also where the planner looks for it in another way.

use std::path::Path;

use crate::random::digest;

/// Number of fabrics, each with several groups.
const SEEDS: u64 = 400;

/// `golden.txt` has a digest for each seed. Set `CASTNET_RECORD=1` to write it anew, if other plans are wanted.
#[test]
fn plans_stay_the_same() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planner/golden.txt");
    let now: String = (0..SEEDS)
        .map(|seed| format!("{seed} {:016x}\n", digest(seed)))
        .collect();
    if std::env::var_os("CASTNET_RECORD").is_some() {
        std::fs::write(&path, &now).expect("a writable file");
    }
    let golden = std::fs::read_to_string(&path).expect("golden digests");
    let differ = now
        .lines()
        .zip(golden.lines())
        .filter(|(now, golden)| now != golden);
    let differ: Vec<&str> = differ.map(|(now, _)| now).collect();
    assert!(differ.is_empty(), "other plans than before for {differ:?}");
    assert_eq!(now.len(), golden.len());
}
