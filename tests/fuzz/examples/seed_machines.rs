//! Writes the seeds of the corpora `engine`, `multicast` and `translated`. The name of each file says what it tests.
//! The targets define the bytes of a record.

use castnet_fuzz::{engine, multicast, translated};
use std::fs;
use std::path::Path;

/// A record of `N` bytes. The first ones are given, the others are 0.
fn record<const N: usize>(bytes: &[u8]) -> Vec<u8> {
    let mut record = bytes.to_vec();
    record.resize(N, 0);
    record
}

/// The same record for each number of `from`, which becomes its second byte.
fn each<const N: usize>(from: impl IntoIterator<Item = u8>, bytes: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    for n in from {
        let mut one = record::<N>(bytes);
        one[1] = n;
        records.extend(one);
    }
    records
}

fn write(target: &str, seeds: &[(&str, Vec<Vec<u8>>)]) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&corpus).expect("the corpus");
    for (name, records) in seeds {
        fs::write(corpus.join(name), records.concat()).expect("a file of the corpus");
    }
}

/// Bytes: kind (0 data, 2 data of any path, 3 feedback, 7 time), from, distance, scale and AckReq, syndrome, its
/// code.
fn multicast() {
    const N: usize = multicast::RECORD;
    let star = record::<N>(&[2, 0, 1, 1]);
    let data = |count| record::<N>(&[0, 0, 0, 1]).repeat(count);
    let feedback = |from, syndrome| each::<N>(from, &[3, 0, 0, 0, syndrome]);
    let time = || record::<N>(&[7]);
    write(
        "multicast",
        &[
            (
                "acknowledged",
                vec![
                    star.clone(),
                    data(3),
                    feedback(1..4, 0),
                    data(1),
                    feedback(1..4, 0),
                ],
            ),
            (
                "gap-at-one",
                vec![
                    star.clone(),
                    data(2),
                    feedback(1..3, 0),
                    feedback(3..4, 4),
                    data(1),
                    feedback(1..4, 0),
                ],
            ),
            (
                "not-ready",
                vec![
                    star.clone(),
                    data(1),
                    feedback(1..4, 6),
                    data(1),
                    feedback(1..4, 0),
                ],
            ),
            (
                "fatal",
                vec![
                    star.clone(),
                    data(2),
                    feedback(1..3, 0),
                    feedback(3..4, 7),
                    data(1),
                ],
            ),
            (
                "joined-late",
                vec![
                    record::<N>(&[1]),
                    data(2),
                    feedback(1..4, 0),
                    data(1),
                    feedback(1..4, 0),
                ],
            ),
            (
                "stalled",
                vec![star.clone(), data(1), time(), feedback(1..3, 0), time(), time()],
            ),
            (
                "not-the-source",
                vec![star, each::<N>(0..5, &[2]), feedback(0..5, 0)],
            ),
        ],
    );
}

/// Bytes: kind (0 data, 5 control, 8 feedback, 12 CNP, 13 mark, 14 timer, 15 time), from, distance, scale and AckReq;
/// then for a control message primitive, packets, root and fault, for feedback the syndrome.
fn translated() {
    const N: usize = translated::RECORD;
    // Shape, policies, slots, message, start, collectives in flight, stall.
    let stars = record::<N>(&[0, 0, 3, 4, 1, 1, 1]);
    let reflecting = record::<N>(&[0, 1, 3, 4, 1, 1, 1]);
    let tree = record::<N>(&[1, 0, 3, 4, 1, 1, 1]);
    let root = record::<N>(&[2, 0, 3, 4, 1, 1, 1]);
    let control = |from, primitive, packets, root| each::<N>(from, &[5, 0, 0, 1, primitive, packets, root]);
    let data = |from| each::<N>(from, &[0, 0, 0, 1]);
    let acks = |from| each::<N>(from, &[8]);
    let naks = |from| each::<N>(from, &[8, 0, 0, 0, 4]);
    let not_ready = |from| each::<N>(from, &[8, 0, 0, 0, 6, 3]);
    let timer = || record::<N>(&[14]);
    write(
        "translated",
        &[
            (
                "allreduce",
                vec![
                    stars.clone(),
                    control(0..5, 0, 2, 0),
                    data(0..5),
                    acks(0..5),
                    data(0..5),
                    acks(0..5),
                ],
            ),
            (
                "reduce",
                vec![
                    stars.clone(),
                    control(0..5, 1, 2, 1),
                    acks(0..5),
                    data(0..5),
                    data(0..5),
                    acks(1..2),
                ],
            ),
            (
                "broadcast",
                vec![
                    stars.clone(),
                    control(0..5, 2, 2, 1),
                    acks(0..5),
                    data(1..2),
                    data(1..2),
                    acks(0..5),
                ],
            ),
            (
                "barriers",
                [
                    vec![stars.clone()],
                    vec![[control(0..5, 0, 0, 0), acks(0..5)].concat(); 5],
                ]
                .concat(),
            ),
            (
                "straggler",
                vec![
                    stars.clone(),
                    control(0..4, 0, 2, 0),
                    timer(),
                    timer(),
                    timer(),
                    control(4..5, 0, 2, 0),
                    acks(0..5),
                ],
            ),
            (
                "loss-repaired",
                vec![
                    stars.clone(),
                    control(0..5, 0, 2, 0),
                    naks(0..2),
                    acks(2..5),
                    timer(),
                    acks(0..5),
                    data(0..5),
                    not_ready(0..1),
                    timer(),
                    acks(0..5),
                ],
            ),
            (
                "loss-reflected",
                vec![
                    reflecting,
                    control(0..5, 2, 2, 1),
                    acks(0..5),
                    data(1..2),
                    naks(0..1),
                    acks(2..5),
                    data(1..2),
                    acks(0..5),
                ],
            ),
            (
                "leaf",
                vec![
                    tree.clone(),
                    control(0..2, 0, 1, 0),
                    control(2..3, 0, 1, 0),
                    acks(0..2),
                    data(0..2),
                    data(2..3),
                    acks(0..3),
                ],
            ),
            (
                "leaf-reduces-upwards",
                vec![
                    tree,
                    control(0..3, 1, 1, 3),
                    acks(0..3),
                    data(0..2),
                    acks(2..3),
                    timer(),
                ],
            ),
            (
                "root",
                vec![
                    root.clone(),
                    control(0..3, 0, 1, 0),
                    acks(0..3),
                    data(0..3),
                    naks(1..2),
                    acks(0..3),
                    timer(),
                ],
            ),
            (
                "disagreement",
                vec![
                    stars.clone(),
                    control(0..4, 0, 1, 0),
                    each::<N>(4..5, &[5, 0, 0, 1, 1, 3, 2, 1]),
                    acks(0..5),
                    data(0..5),
                ],
            ),
            (
                "congestion",
                vec![
                    stars.clone(),
                    control(0..5, 1, 1, 1),
                    data(0..5),
                    each::<N>(0..5, &[12]),
                    each::<N>(0..5, &[13]),
                ],
            ),
            (
                "ahead-of-all",
                vec![
                    stars,
                    each::<N>(0..5, &[0, 0, 9, 0xC0]),
                    each::<N>(0..5, &[8, 0, 9, 0xC0]),
                    acks(0..5),
                ],
            ),
        ],
    );
}

/// Bytes: kind (0 data, 3 control, 5 feedback, 8 CNP, 9 other, 10 repeated, 11 timer, 12 time, 13 groups, 14 ports,
/// 15 garbage), port, group, distance, scale with burst and AckReq, opcode or syndrome, length, source, tags; then
/// for a control message kind, packets, root and fault; then position, value and kind of the fault of the frame.
fn engine() {
    const N: usize = engine::RECORD;
    let data = |ports, group| each::<N>(ports, &[0, 0, group, 0, 0x11]);
    let acks = |ports, group| each::<N>(ports, &[5, 0, group]);
    let naks = |ports, group| each::<N>(ports, &[5, 0, group, 0, 0, 4]);
    let control = |ports, group, primitive, packets, root| {
        each::<N>(ports, &[3, 0, group, 0, 1, 0, 0, 0, 0, primitive, packets, root])
    };
    let timer = || record::<N>(&[11]);
    let groups = |group, what| record::<N>(&[13, 0, group, 0, 0, what]);
    let with_fault = |bytes: &[u8], how| {
        let mut with_fault = record::<N>(bytes);
        with_fault[13..].copy_from_slice(&[70, 0x40, how]);
        with_fault
    };
    write(
        "engine",
        &[
            (
                "multicast",
                vec![
                    data(0..1, 0),
                    acks(1..4, 0),
                    data(0..1, 0),
                    naks(1..2, 0),
                    acks(2..4, 0),
                    data(0..1, 0),
                ],
            ),
            (
                "multicasts-in-turn",
                vec![
                    data(0..1, 0),
                    data(1..2, 1),
                    data(0..1, 2),
                    acks(0..4, 0),
                    acks(0..4, 1),
                    acks(2..4, 2),
                ],
            ),
            (
                "multicast-moves",
                vec![
                    data(0..1, 0),
                    groups(0, 200),
                    data(0..1, 0),
                    acks(1..4, 0),
                    groups(0, 200),
                    timer(),
                ],
            ),
            (
                "allreduce",
                vec![
                    control(0..3, 3, 0, 2, 0),
                    acks(0..3, 3),
                    data(0..3, 3),
                    acks(0..3, 3),
                    acks(0..3, 3),
                ],
            ),
            (
                "allreduce-moves",
                vec![
                    control(0..3, 3, 0, 2, 0),
                    acks(0..3, 3),
                    data(0..2, 3),
                    groups(3, 200),
                    data(2..3, 3),
                    acks(0..3, 3),
                    timer(),
                ],
            ),
            (
                "allreduces-in-turn",
                vec![
                    control(0..3, 3, 0, 2, 0),
                    control(0..4, 5, 0, 2, 0),
                    acks(0..3, 3),
                    acks(0..4, 5),
                    data(0..3, 3),
                    data(0..4, 5),
                    acks(0..3, 3),
                    acks(0..4, 5),
                ],
            ),
            (
                "leaf",
                vec![
                    control(0..3, 4, 0, 2, 0),
                    control(5..6, 4, 0, 2, 0),
                    acks(0..6, 4),
                    data(0..3, 4),
                    data(5..6, 4),
                    acks(0..6, 4),
                    timer(),
                ],
            ),
            (
                "reduce",
                vec![
                    control(0..4, 5, 1, 2, 1),
                    acks(0..4, 5),
                    data(0..4, 5),
                    acks(1..2, 5),
                ],
            ),
            (
                "broadcast",
                vec![
                    control(0..4, 5, 2, 2, 1),
                    acks(0..4, 5),
                    data(1..2, 5),
                    acks(0..4, 5),
                ],
            ),
            (
                "corrupted-contribution",
                vec![
                    control(0..3, 3, 0, 2, 0),
                    acks(0..3, 3),
                    with_fault(&[0, 0, 3], 1),
                    data(0..3, 3),
                    acks(0..3, 3),
                ],
            ),
            (
                "corrupted-feedback",
                vec![
                    data(0..1, 0),
                    with_fault(&[5, 1, 0], 1),
                    acks(2..4, 0),
                    with_fault(&[5, 2, 0], 2),
                ],
            ),
            (
                "strangers",
                vec![
                    data(4..6, 0),
                    acks(4..6, 0),
                    control(4..6, 3, 0, 1, 0),
                    each::<N>(0..6, &[0, 0, 0, 0, 0, 0, 0, 11]),
                    each::<N>(0..6, &[5, 0, 3, 0, 0, 0, 0, 13]),
                ],
            ),
            (
                "in-the-name-of-a-group",
                vec![
                    each::<N>(0..6, &[9, 0, 0, 0, 0, 4]),
                    each::<N>(0..6, &[9, 0, 3, 0, 0, 12]),
                    each::<N>(0..2, &[9]),
                ],
            ),
            (
                "in-the-name-of-a-group-three-tags",
                vec![each::<N>(0..6, &[9, 0, 0, 0, 0, 4, 0, 0, 224])],
            ),
            (
                "gone-and-back",
                vec![
                    data(0..1, 0),
                    groups(0, 0),
                    acks(1..4, 0),
                    groups(0, 64),
                    data(0..1, 0),
                    acks(1..4, 0),
                ],
            ),
            (
                "ports-down",
                vec![
                    data(0..1, 0),
                    record::<N>(&[14, 0, 0, 0, 0, 3]),
                    data(0..1, 0),
                    record::<N>(&[14, 0, 0, 0, 0, 0xFF]),
                    acks(1..4, 0),
                ],
            ),
            (
                "again-from-elsewhere",
                vec![
                    data(0..1, 0),
                    record::<N>(&[10]),
                    record::<N>(&[10, 2, 0, 0, 0, 1, 0, 0xC0]),
                    acks(1..4, 0),
                ],
            ),
            (
                "garbage",
                vec![
                    each::<N>(0..6, &[15]),
                    each::<N>(0..6, &[9, 0, 0, 0, 0, 2, 7, 0, 0, 60]),
                ],
            ),
        ],
    );
}

fn main() {
    multicast();
    translated();
    engine();
}
