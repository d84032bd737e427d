//! Contract M6: state bounded by paths in use, small enough that what a frame touches stays in L2.

use crate::common::Switch;
use castnet_collective::Multicast;

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
