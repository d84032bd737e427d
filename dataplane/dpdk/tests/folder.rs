//! What the start of DPDK leaves on the disk. A process starts DPDK once, and this one has a folder of its own for it.
#![cfg(feature = "dpdk")]
#![allow(unsafe_code)]

use std::fs;

use castnet_dpdk::{Config, Hugepages, Runtime};
use castnet_port::PoolConfig;

#[test]
fn a_start_leaves_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: no other thread of this process uses the environment: this is its only test.
    unsafe { std::env::set_var("RUNTIME_DIRECTORY", folder.path()) };
    let runtime = Runtime::start(&Config {
        threads: 1,
        pool: PoolConfig::default(),
        hand_over: 0,
        hugepages: Hugepages::No,
        devices: Vec::new(),
    });
    runtime.unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
