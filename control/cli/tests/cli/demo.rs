//! `castnet demo` as any visitor runs it.

use serde_json::Value;

use crate::cli::{number, stdout};
use crate::live::castnet;

/// Runs the demo and checks what any visitor would; returns its figures.
fn demo(args: &[&str]) -> Value {
    let report: Value =
        serde_json::from_str(&stdout(castnet().args(["demo", "--output", "json"]).args(args))).expect("JSON");
    assert_eq!(report["ok"], true);
    for act in report["collectives"].as_array().expect("acts of collectives") {
        assert_eq!(act["ok"], true, "{act}");
        let ranks = act["ranks"].as_array().expect("ranks");
        assert_eq!(ranks.len(), 5);
        for rank in ranks {
            assert_eq!((&rank["wrong"], &rank["elements"]), (&0.into(), &act["elements"]));
        }
        assert_eq!(act["links"].as_array().map(Vec::len), Some(7));
        assert_eq!(act["switches"].as_array().map(Vec::len), Some(3), "{act}");
    }
    let sent = report["sha256"].as_str().expect("a digest");
    assert_eq!(sent.len(), 64);
    let acts = report["acts"].as_array().expect("acts");
    assert_eq!(acts.len(), 2);
    for act in acts {
        let receivers = act["receivers"].as_array().expect("receivers");
        assert_eq!(receivers.len(), 4);
        for receiver in receivers {
            assert_eq!(receiver["sha256"], sent, "{receiver}");
            assert_eq!(receiver["bytes"], report["size"], "{receiver}");
        }
        assert_eq!(act["switches"].as_array().map(Vec::len), Some(3));
    }
    report
}

#[test]
fn the_demo_reaches_every_receiver_without_and_with_losses() {
    let report = demo(&[
        "--size",
        "1MiB",
        "--loss",
        "2%",
        "--seed",
        "7",
        "--allreduce",
        "1MiB",
    ]);
    let [clean, lossy] = [0, 1].map(|i| &report["acts"][i]);
    assert_eq!(
        clean["drops"],
        Value::Array(vec![]),
        "nothing is dropped where nothing is injected"
    );
    assert!(number(lossy, &["source", "retransmissions"]) > 0);
    assert_eq!(lossy["drops"][0]["reason"], "injected");
    // What a single stream is for: the source sent one copy, and four arrived.
    assert!(number(clean, &["bytes_received"]) > 3 * number(clean, &["source", "bytes_sent"]));
    let leaf = clean["switches"]
        .as_array()
        .expect("switches")
        .iter()
        .find(|s| s["switch"] == "leaf1")
        .expect("leaf1");
    // How often receivers acknowledge is a matter of time; of the last packet's ACKs, one for each of three paths, one goes on.
    assert!(
        number(leaf, &["acks_in"]) >= number(leaf, &["acks_out"]) + 2,
        "ACKs are aggregated: {leaf}"
    );

    // What sums in the switches are for: each link carries each byte once in each direction, and in a ring 1.6 times.
    let [clean, lossy] = [0, 1].map(|i| &report["collectives"][i]);
    assert_eq!(number(clean, &["bytes"]), 1 << 20);
    assert_eq!(clean["drops"], Value::Array(vec![]));
    let all = |key| -> u64 {
        let switches = clean["switches"].as_array().expect("switches").iter();
        switches.map(|switch| number(switch, &[key])).sum()
    };
    // A rank that was late on a busy machine asks again, and a switch sends again.
    let [given, sent, repeats] = ["contributions", "results", "repeats"].map(all);
    assert!(given > 0 && sent >= given, "{clean}");
    let is_sent_once = sent == given && repeats == 0;
    for link in clean["links"].as_array().expect("links") {
        let [times, ring] = ["times", "ring_times"].map(|key| link[key].as_f64().expect("a figure"));
        assert!(
            times >= 1.0 && (times < 1.1 || !is_sent_once),
            "headers and little else: {link}"
        );
        assert!(ring >= 1.6, "2 (n - 1) / n, and headers: {link}");
    }
    assert_eq!(clean["switches"][0]["switch"], "spine");
    // Where a control message is lost, data behind it is dropped, too.
    let reasons: Vec<_> = lossy["drops"]
        .as_array()
        .expect("drops")
        .iter()
        .map(|d| &d["reason"])
        .collect();
    assert!(reasons.contains(&&Value::from("injected")), "{reasons:?}");
    let repeats = lossy["switches"].as_array().expect("switches").iter();
    assert!(
        repeats.map(|s| number(s, &["repeats"])).sum::<u64>() > 0,
        "{lossy}"
    );
    assert_eq!(
        report["collective_tree"]["children"].as_array().map(Vec::len),
        Some(2)
    );
}

#[test]
fn the_demo_sends_files_of_any_length_with_any_path_mtu() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("odd.bin");
    for (length, pmtu) in [(0usize, "4096"), (100_001, "256")] {
        let bytes: Vec<u8> = (0..length).map(|i| (i * 7 % 251) as u8).collect();
        std::fs::write(&file, bytes).expect("written");
        let report = demo(&[
            "--file",
            &file.display().to_string(),
            "--pmtu",
            pmtu,
            "--loss",
            "0",
            "--allreduce",
            // Whole elements are given, and the last packet is not full.
            &(length / 10).to_string(),
        ]);
        assert_eq!(number(&report, &["size"]), length as u64);
        let acts = report["collectives"].as_array().expect("acts of collectives");
        assert_eq!(acts.len(), if length == 0 { 0 } else { 3 });
        assert!(acts.iter().all(|act| number(act, &["elements"]) == 2500));
    }
}

#[test]
fn the_demo_draws_its_tree_for_people() {
    let text = stdout(castnet().args(["demo", "--size", "64KiB", "--allreduce", "64KiB"]));
    for part in [
        "└─ [leaf1]",
        "[spine]",
        "h5 (10.0.0.5)",
        "Act 2: 1% loss",
        "│  ├─ rank 0: h1 (10.0.0.1)",
        "Act 3: AllReduce, no loss (group demo-sums-1, ",
        "RING TIMES",
        "Act 4: AllReduce, 1% loss",
        "Act 5: AllReduce, repaired at each hop, 1% loss",
        "Every receiver has every byte, 2 times out of 2.",
        "Every rank has every sum, bit for bit, 3 times out of 3.",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}
