//! A switch with one port beside a bridge of the kernel, which all machines hang on: it answers ARP for the groups, and what comes in
//! by the port leaves by it.

use anyhow::{Result, ensure};
use castnet_softroce_tests::protocol::Op;

use crate::Scenario;
use crate::multicast::MACHINES;
use crate::scene::{BRISK, Manner, Message, Scene};

const FAULTS: &str = "loss=1%,seed=15";

pub(crate) fn scenarios(add: &mut impl FnMut(String, Scenario)) {
    for op in Op::BOTH {
        add(
            format!("one-armed-{}", op.name()),
            Box::new(move |scene| fan_out(scene, op)),
        );
    }
}

/// The first machine to all others, through a port that loses frames.
fn fan_out(scene: &mut Scene, op: Op) -> Result<String> {
    scene.one_armed(&[FAULTS])?;
    let manner = Manner {
        timeout: BRISK,
        ..Manner::default()
    };
    let joined = scene.join("one-armed", op, &MACHINES, manner)?;
    for length in [1, 1025, 64 << 10, 256 << 10] {
        scene.send(&joined, Message { op, length })?;
    }
    let counts = scene.running()?.counts(&joined.group.name)?;
    scene.leave(&joined)?;
    ensure!(
        counts.retransmitted_in > 0,
        "nothing was lost, so nothing was proved: {counts:?}"
    );
    Ok(format!(
        "{FAULTS}: {} data frames in by the port, {} copies out by it, {} again",
        counts.data_in, counts.copies_out, counts.retransmitted_in
    ))
}
