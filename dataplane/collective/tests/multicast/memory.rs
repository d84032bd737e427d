//! Contract M6: state bounded by paths in use, small enough that what a frame touches stays in L2.

use crate::common::{Switch, path};
use castnet_collective::path::Paths;
use castnet_collective::{Multicast, RepairConfig};
use castnet_wire::Nanos;

const GROUPS: usize = 1000;
/// Cepheus III.D: 1,000 groups at 64 ports in 0.69 MB, that is 690 bytes per group.
const PAPER_BYTES: usize = 690_000;
const PER_PATH_MAX: usize = 8;
const HEAD_MAX: usize = 64;

#[test]
fn a_thousand_groups_are_smaller_than_the_papers() {
    for paths in [8, 64] {
        let groups: Vec<Multicast> = (0..GROUPS)
            .map(|_| Multicast::new(Switch::config(paths)))
            .collect();
        let hot: usize = groups.iter().map(Multicast::hot_bytes).sum();
        println!(
            "{GROUPS} groups, {paths:2} paths, machine only: hot {hot} bytes ({} per group), cold 0; \
             paper, 64 ports, all of its MFT: {PAPER_BYTES}",
            hot / GROUPS,
        );
        assert!(hot <= GROUPS * (HEAD_MAX + PER_PATH_MAX * paths as usize));
        assert!(hot <= PAPER_BYTES);
    }
}

#[test]
fn only_paths_in_use_take_memory() {
    let bytes = |paths| Multicast::new(Switch::config(paths)).hot_bytes();
    let per_path = bytes(3) - bytes(2);
    assert!(per_path <= PER_PATH_MAX);
    assert_eq!(bytes(64) - bytes(2), 62 * per_path);
    assert!(bytes(2) - 2 * per_path <= HEAD_MAX);
}

/// A bit for each slot, in words, and a cursor for each path.
#[test]
fn what_a_switch_needs_to_repair_grows_with_slots_and_paths() {
    let bytes = |count, slots| {
        let config = RepairConfig {
            slots,
            tick: Nanos(1000),
            switches: Paths::only(path(1)),
        };
        let repairing = Multicast::new(Switch::config(count)).with_repair(config);
        let without = Multicast::new(Switch::config(count));
        repairing.cold_bytes() - without.cold_bytes()
    };
    // Few bytes beside them.
    assert!(bytes(2, 64) < 1024);
    let cursor = bytes(3, 64) - bytes(2, 64);
    assert!((4..=24).contains(&cursor), "{cursor}");
    // The filter of CNPs is the same in both.
    assert_eq!(bytes(64, 64) - bytes(2, 64), 62 * cursor);
    assert_eq!(bytes(2, 1024) - bytes(2, 64), 15 * 8);
}
