//! What a tap device tells of the frames that the kernel sends it, and whether it takes rules. DPDK runs in this process, which
//! starts no other one meanwhile.
#![cfg(feature = "dpdk")]

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use castnet_dpdk::{Config, Hugepages, Runtime};
use castnet_dpdk_tests::PATIENCE;
use castnet_dpdk_tests::frames::{data, mcst};
use castnet_e2e::net::{self, Namespace};
use castnet_port::{Batch, FrameBuf, Memory, Pool, PoolConfig, PortSpec, Sides, Steering};
use castnet_wire::ipv4;

const TAP: &str = "a tap device's word on checksums, and its rules";

/// Frames from the kernel's side of a tap device, whose driver looks at checksums in software: what it says is what the sum says.
#[test]
fn a_device_says_which_checksums_are_right() {
    if let Some(why) = net::missing() {
        return net::skip(TAP, &why);
    }
    let inside = Namespace::new("tap").and_then(|namespace| {
        let thread = namespace.thread(tap)?;
        let outcome = thread.join().expect("a thread that does not panic");
        drop(namespace);
        outcome
    });
    if let Err(error) = inside {
        panic!("{error:#}");
    }
}

fn tap() -> Result<()> {
    let device: PortSpec = "dpdk:net_tap1,iface=castnet1,queues=2".parse()?;
    let runtime = Runtime::start(&Config {
        threads: 1,
        hand_over: 0,
        pool: PoolConfig::default(),
        hugepages: Hugepages::No,
        devices: device.dpdk().cloned().into_iter().collect(),
    })?;
    let memory = runtime.memory()?;
    let mut ours = memory.open(&device, Sides::Both, 0)?;
    let pool = Pool::new(PoolConfig::default());
    let mut theirs = "af_packet:castnet1"
        .parse::<PortSpec>()?
        .open(&pool, Sides::Send)?;
    for n in 0..64 {
        let mut frame = data(0, 0, n as u32, 200, false);
        if n % 3 == 0 {
            // The checksum, or what it is of.
            frame[14 + n % 20] ^= 0x10;
        }
        let mut batch = Batch::new();
        batch.extend(pool.copy_from(&frame));
        theirs.send(&mut batch);
    }
    let (mut good, mut bad) = (0, 0);
    let start = Instant::now();
    while good + bad < 64 {
        ensure!(
            start.elapsed() < PATIENCE,
            "{good} and {bad} of 64; {:?}",
            ours.stats()
        );
        let mut batch = Batch::new();
        ours.receive(&mut batch);
        for frame in &batch {
            // The kernel has frames of its own to send.
            if frame.head()[..6] != [2; 6] {
                continue;
            }
            let right = frame.head()[14] == 0x45 && ipv4::checksum_is_right(&frame.head()[14..]);
            let said = frame.checksum_good();
            ensure!(said <= right, "{:x?}", frame.head());
            // Copies are new frames, of which no device has said anything.
            ensure!(
                !memory
                    .gather(&frame.segments())
                    .context("a buffer")?
                    .checksum_good(),
                "a copy"
            );
            good += usize::from(said);
            bad += usize::from(!said);
        }
    }
    ensure!(good == 42, "{good} good, {bad} not");

    let table = ours.flow_table().context("two queues")?;
    let steered = table.steer(&[(mcst(0).0, 1)]);
    ensure!(steered.rules + steered.refused == 1, "{steered:?}");
    match ours.steering() {
        Steering::FlowRules => ensure!(steered.rules == 1, "{steered:?}"),
        _ => net::skip(TAP, &format!("no rules: {}", steered.reason)),
    }
    Ok(())
}
