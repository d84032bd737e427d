//! `castnet-lab sim shufflecast`: rules, failures and costs beside the paper's.

use std::fs;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use serde_json::Value;

fn shufflecast(args: &[&str]) -> Assert {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("castnet-lab"));
    command.args(["sim", "shufflecast"]).args(args).assert()
}

fn stdout(run: &Assert) -> String {
    String::from_utf8_lossy(&run.get_output().stdout).into_owned()
}

fn stderr(run: &Assert) -> String {
    String::from_utf8_lossy(&run.get_output().stderr).into_owned()
}

#[test]
fn each_part_has_the_papers_numbers_beside_ours_and_plots() {
    let folder = tempfile::tempdir().expect("a folder");
    for (part, args, plots) in [
        ("reach", ["2,3", "--quick"].as_slice(), [""].as_slice()),
        ("failures", &["2,3", "4,2", "--quick"], &["-fig7b", "-fig7c"]),
        ("line-rate", &["2,3", "--quick"], &[""]),
        ("cost", &[], &["-fig6b", "-fig6c"]),
    ] {
        let svg = folder.path().join(format!("{part}.svg"));
        let svg = svg.to_str().expect("a path");
        let mut all = vec![part, "--svg", svg, "--output", "json"];
        all.extend(args);
        let run = shufflecast(&all).success();
        let report: Value = serde_json::from_str(&stdout(&run)).expect("JSON");
        let figures = report["figures"].as_array().expect("figures");
        assert!(!figures.is_empty(), "{part}");
        for figure in figures {
            assert!(!figure["table"].as_array().expect("rows").is_empty(), "{part}");
            for headline in figure["headlines"].as_array().expect("headlines") {
                for side in ["paper", "castnet"] {
                    assert!(headline[side][1].as_f64() > Some(0.0), "{part}: {headline}");
                }
            }
        }
        for plot in plots {
            let plot = folder.path().join(format!("{part}{plot}.svg"));
            let plot = fs::read_to_string(plot).expect("a plot");
            assert!(plot.starts_with("<svg"), "{part}");
        }
    }
}

#[test]
fn the_ratios_of_6_1_come_out_also_of_the_printed_assumptions() {
    let run = shufflecast(&["cost"]).success();
    let text = stdout(&run);
    for part in ["fig6b: ", "1.55 to 1.85", "1.57 to 1.89", "HEADLINE"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ours.toml");
    let example = stdout(&shufflecast(&["cost", "--example"]).success());
    fs::write(&file, &example).expect("written");
    let file = file.to_str().expect("a path");
    let again = shufflecast(&["cost", "--assumptions", file]).success();
    assert_eq!(stdout(&again), text);
    fs::write(file, example.replace("37.37", "74.74")).expect("written");
    let dearer = shufflecast(&["cost", "--assumptions", file]).success();
    assert_ne!(stdout(&dearer), text, "cables have a price");
    assert!(stdout(&dearer).contains("1.55 to 1.85"), "and take no power");
}

#[test]
fn a_bad_file_is_refused_with_line_and_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bad.toml");
    let example = stdout(&shufflecast(&["cost", "--example"]).success());
    fs::write(&file, example.replace("switch_ports = 32", "switch_port = 32")).expect("written");
    let file = file.to_str().expect("a path");
    let error = stderr(&shufflecast(&["cost", "--assumptions", file]).code(2));
    let line = format!("{file}:9:1: switch_port: unknown field, did you mean \"switch_ports\"?");
    assert!(error.contains(&line), "{error}");
    assert!(error.contains("--example"), "{error}");
    let error = stderr(&shufflecast(&["cost", "--assumptions", "/nowhere.toml"]).code(2));
    assert!(error.starts_with("error: cannot read /nowhere.toml: "), "{error}");
}

#[test]
fn sizes_without_a_shufflecast_are_refused() {
    for (size, reason) in [
        ("4", "is not P,K, such as 4,3"),
        ("1,3", "p: 1 is not in 2 to 64"),
        ("2,13", "a 2,13-Shufflecast has more than 65536 ToRs"),
    ] {
        let error = stderr(&shufflecast(&["reach", size]).code(2));
        assert!(error.contains(reason), "{error}");
    }
    shufflecast(&[]).code(2);
}
