//! rxe and the software RNIC in one group, either as its source.

use anyhow::{Result, ensure};
use castnet_softroce_tests::capture::check_order;
use castnet_softroce_tests::protocol::Op;

use crate::Scenario;
use crate::scene::{BRISK, Manner, Message, Scene};

/// Who is with whom, the source first.
const GROUPS: [(&str, [&str; 4]); 2] = [
    ("mixed-from-rxe", ["h1", "h2", "s1", "h3"]),
    ("mixed-from-ours", ["s1", "h1", "h2", "s2"]),
];

pub(crate) fn scenarios(add: &mut impl FnMut(String, Scenario)) {
    for (name, hosts) in GROUPS {
        for op in Op::BOTH {
            add(
                format!("{name}-{}", op.name()),
                Box::new(move |scene| mixed(scene, name, &hosts, op, &[], Manner::default())),
            );
        }
    }
}

/// The same where frames are lost.
pub(crate) fn lossy_scenarios(add: &mut impl FnMut(String, Scenario)) {
    let brisk = Manner {
        timeout: BRISK,
        ..Manner::default()
    };
    for ((name, hosts), op) in GROUPS.into_iter().zip(Op::BOTH) {
        add(
            format!("{name}-loss-1"),
            Box::new(move |scene| mixed(scene, name, &hosts, op, &["loss=1%,seed=11"], brisk)),
        );
    }
}

fn mixed(
    scene: &mut Scene,
    name: &str,
    hosts: &[&str],
    op: Op,
    faults: &[&str],
    manner: Manner<'_>,
) -> Result<String> {
    scene.fabric(faults)?;
    let joined = scene.join(name, op, hosts, manner)?;
    let capture = scene.running()?.capture(&joined.group)?;
    for length in [1, 1023, 1024, 1025, 64 << 10, 256 << 10] {
        scene.send(&joined, Message { op, length })?;
    }
    let counts = scene.running()?.counts(&joined.group.name)?;
    check_order(
        &capture.finish(hosts[0], counts.answers())?,
        hosts[0],
        &hosts[1..],
    )?;
    let joined_frames = if hosts[0].starts_with('s') && faults.is_empty() {
        super_frames(scene, &hosts[1..])?
    } else {
        String::new()
    };
    scene.leave(&joined)?;
    Ok(format!(
        "{} to {}: {} data frames, {} again, ACKs in {} out {}{joined_frames}",
        hosts[0],
        hosts[1..].join(" "),
        counts.data_in,
        counts.retransmitted_in,
        counts.acks_in,
        counts.acks_out
    ))
}

/// Data of the software RNIC arrives in runs. The switch sends them on as super-frames to a software RNIC. At the tap of a machine
/// the kernel has taken them apart, or refused them, so that the switch sent their packets one by one.
fn super_frames(scene: &mut Scene, receivers: &[&str]) -> Result<String> {
    let ports = scene.running()?.at_switch(&["port"])?;
    let mut text = String::new();
    for name in receivers {
        let port = ports
            .as_array()
            .into_iter()
            .flatten()
            .find(|p| p["name"] == *name);
        let (gso, count) = match port {
            Some(port) => (
                port["gso"].as_str().unwrap_or_default(),
                port["tx_gso"].as_u64().unwrap_or(0),
            ),
            None => ("no such port", 0),
        };
        let is_refused = name.starts_with('h') && gso.starts_with("refused");
        ensure!(
            count > 0 || is_refused,
            "{name}: no packet left in a super-frame, and none was refused: gso {gso}"
        );
        text += &format!(", {name} {count} in super-frames ({gso})");
    }
    Ok(text)
}
