//! One rxe source, three or seven rxe receivers.

use std::time::Instant;

use anyhow::{Result, ensure};
use castnet_softroce_tests::capture::check_order;
use castnet_softroce_tests::protocol::Op;

use crate::Scenario;
use crate::scene::{BRISK, Manner, Message, Scene};

/// The machines by name, the source first.
pub(crate) const MACHINES: [&str; 8] = ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
/// A first PSN after which the circle of PSNs is soon gone round.
const NEARLY_ROUND: u32 = 0xFF_FFE0;
/// Frames of up to so many bytes in all are looked at one by one; more would be a lot of reading.
const CAPTURED_UP_TO: usize = 1 << 20;

/// Bytes of messages: one, round a full packet, and long ones.
fn lengths(pmtu: usize) -> [usize; 7] {
    [1, pmtu - 1, pmtu, pmtu + 1, 64 << 10, 1 << 20, 4 << 20]
}

fn pmtu(scene: &Scene) -> usize {
    if scene.mtu >= 4176 { 4096 } else { 1024 }
}

/// Packets of a message: at least one.
fn packets(length: usize, pmtu: usize) -> u64 {
    length.div_ceil(pmtu).max(1) as u64
}

pub(crate) fn scenarios(add: &mut impl FnMut(String, Scenario)) {
    for receivers in [3, 7] {
        for op in Op::BOTH {
            add(
                format!("{}-to-{receivers}", op.name()),
                Box::new(move |scene| fan_out(scene, op, receivers)),
            );
        }
    }
    add("wrap".into(), Box::new(wrap));
    add("one-megabyte-to-7".into(), Box::new(one_megabyte));
}

/// Faults by name, as `--fault` takes them, and the longest message that is sent through them.
const FAULTS: [(&str, &str, usize); 3] = [
    ("loss-1", "loss=1%,seed=11", 1 << 20),
    ("loss-5", "loss=5%,seed=12", 1 << 20),
    ("disorder", "duplicate=2%,reorder=2%,seed=13", 1 << 20),
];

pub(crate) fn lossy_scenarios(add: &mut impl FnMut(String, Scenario)) {
    for (name, faults, longest) in FAULTS {
        for op in Op::BOTH {
            add(
                format!("{name}-{}", op.name()),
                Box::new(move |scene| faulty(scene, op, faults, longest)),
            );
        }
    }
}

/// One of them, for the other path MTU.
pub(crate) fn lossy_scenario(add: &mut impl FnMut(String, Scenario)) {
    let (name, faults, longest) = FAULTS[0];
    add(
        name.into(),
        Box::new(move |scene| faulty(scene, Op::Write, faults, longest)),
    );
}

/// All lengths, one after the other, over one group.
fn fan_out(scene: &mut Scene, op: Op, receivers: usize) -> Result<String> {
    let hosts = &MACHINES[..=receivers];
    scene.fabric(&[])?;
    let joined = scene.join(
        &format!("{}-to-{receivers}", op.name()),
        op,
        hosts,
        Manner::default(),
    )?;
    let (pmtu, mut data, mut answers) = (pmtu(scene), 0, 0);
    for length in lengths(pmtu) {
        let capture = if length * receivers <= CAPTURED_UP_TO {
            let before = scene.running()?.counts(&joined.group.name)?;
            Some((scene.running()?.capture(&joined.group)?, before))
        } else {
            None
        };
        scene.send(&joined, Message { op, length })?;
        data += packets(length, pmtu);
        if let Some((capture, before)) = capture {
            let after = scene.running()?.counts(&joined.group.name)?;
            let frames = capture.finish("h1", after.answers() - before.answers())?;
            answers += check_order(&frames, "h1", &hosts[1..])?;
        }
    }
    let counts = scene.running()?.counts(&joined.group.name)?;
    scene.leave(&joined)?;
    let looked_at = lengths(pmtu)
        .iter()
        .filter(|l| *l * receivers <= CAPTURED_UP_TO)
        .count();
    ensure!(
        answers >= looked_at,
        "{answers} answers to {looked_at} messages were seen"
    );
    ensure!(
        counts.data_in - counts.retransmitted_in == data,
        "{data} packets make the messages: {counts:?}"
    );
    Ok(format!(
        "{} messages, {} data frames for {data} packets, ACKs in {} out {}, {answers} answers in order",
        lengths(pmtu).len(),
        counts.data_in,
        counts.acks_in,
        counts.acks_out
    ))
}

/// PSNs that go round the circle, in the middle of a message and between two.
fn wrap(scene: &mut Scene) -> Result<String> {
    let hosts = &MACHINES[..4];
    let pmtu = pmtu(scene);
    scene.fabric(&[])?;
    let mut again = 0;
    for op in Op::BOTH {
        let manner = Manner {
            start_psn: NEARLY_ROUND,
            ..Manner::default()
        };
        let joined = scene.join("wrap", op, hosts, manner)?;
        let capture = scene.running()?.capture(&joined.group)?;
        for length in [pmtu * 16, pmtu * 64, 1] {
            scene.send(&joined, Message { op, length })?;
        }
        let counts = scene.running()?.counts(&joined.group.name)?;
        let frames = capture.finish("h1", counts.answers())?;
        check_order(&frames, "h1", &hosts[1..])?;
        let psns: Vec<u32> = frames
            .iter()
            .filter(|f| f.from_host && f.is_data())
            .filter_map(|f| f.kind().map(|(_, psn)| psn.value()))
            .collect();
        ensure!(
            psns.contains(&0xFF_FFFF) && psns.contains(&0),
            "no wrap: {psns:?}"
        );
        again += counts.retransmitted_in;
        scene.leave(&joined)?;
    }
    Ok(format!("SEND and WRITE over PSN 0xffffff, {again} again"))
}

/// The measure: 1 MB to seven receivers, ten times.
fn one_megabyte(scene: &mut Scene) -> Result<String> {
    let (op, length, times) = (Op::Write, 1 << 20, 5);
    scene.fabric(&[])?;
    let joined = scene.join("measure", op, &MACHINES, Manner::default())?;
    let start = Instant::now();
    for _ in 0..times {
        scene.send(&joined, Message { op, length })?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let counts = scene.running()?.counts(&joined.group.name)?;
    scene.leave(&joined)?;
    let least = packets(length, pmtu(scene)) * times;
    let frames = counts.data_in + counts.copies_out + counts.acks_in + counts.acks_out;
    ensure!(
        counts.data_in - counts.retransmitted_in == least,
        "{least} packets make the messages: {counts:?}"
    );
    Ok(format!(
        "{times} x 1 MiB: {} data frames of {least} at least, {} again, {} copies, ACKs in {} out {}, {:.0} frames/s through the switch",
        counts.data_in,
        counts.retransmitted_in,
        counts.copies_out,
        counts.acks_in,
        counts.acks_out,
        frames as f64 / seconds
    ))
}

/// The same bytes at three receivers, whatever the switch's ports do to frames on their way in and out.
fn faulty(scene: &mut Scene, op: Op, faults: &str, longest: usize) -> Result<String> {
    let hosts = &MACHINES[..4];
    scene.fabric(&[faults])?;
    let manner = Manner {
        timeout: BRISK,
        start_psn: NEARLY_ROUND,
        ..Manner::default()
    };
    let joined = scene.join("faulty", op, hosts, manner)?;
    let capture = scene.running()?.capture(&joined.group)?;
    let mut lengths = vec![1, 1025];
    let mut length = 16 << 10;
    while length <= longest {
        lengths.push(length);
        length *= 4;
    }
    for length in lengths {
        scene.send(&joined, Message { op, length })?;
    }
    let counts = scene.running()?.counts(&joined.group.name)?;
    check_order(&capture.finish("h1", counts.answers())?, "h1", &hosts[1..])?;
    scene.leave(&joined)?;
    Ok(format!(
        "{faults}: {} data frames, {} again, {} not repeated to those that had them, NAKs in {} out {}",
        counts.data_in, counts.retransmitted_in, counts.filtered, counts.naks_in, counts.naks_out
    ))
}
