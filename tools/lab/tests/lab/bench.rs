//! `castnet-lab bench` of a job of one rank.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

fn bench(out: impl Into<Stdio>, flags: &[&str]) -> Output {
    let line = "bench --interface memory:nowhere --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size 1 --only hosts \
                --controller unix:/nonexistent/castnet.sock --collectives allreduce --bytes 4K --budget 1ms --warmup 1";
    let mut command = Command::new(env!("CARGO_BIN_EXE_castnet-lab"));
    command.args(line.split(' ')).args(flags).stdout(out);
    command.output().expect("it runs")
}

#[test]
fn what_was_measured_outlives_a_full_disk_and_a_faulty_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let [json, svg] = ["all.json", "all.svg"].map(|name| folder.path().join(name));
    let [json_file, svg_file] = [&json, &svg].map(|path| path.display().to_string());
    let faulty = [
        "--beside",
        "faulty=exit 3",
        "--beside",
        "silent=true",
        "--beside",
        "broken=exit 4",
    ];
    let files = ["--json", &json_file, "--svg", &svg_file];
    // The second one replaces the files of the first one.
    for _ in 0..2 {
        let full = File::options().write(true).open("/dev/full").expect("a device");
        let output = bench(full, &[&faulty[..], &files].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("error: --beside faulty: exit 3"), "{said}");
        for further in [
            "also: --beside broken: exit 4",
            "also: cannot write to stdout: No space left",
        ] {
            assert!(said.contains(further), "{said}");
        }
        let rows = fs::read_to_string(&json).expect("rows");
        assert!(rows.contains("\"collective\":\"allreduce\""), "{rows}");
        assert!(fs::read_to_string(&svg).expect("a plot").starts_with("<svg"));
    }
}

#[test]
fn after_a_signal_no_further_program_runs_and_what_was_measured_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let [json, next] = ["all.json", "next"].map(|name| folder.path().join(name));
    let json_file = json.display().to_string();
    let touch = format!("next=touch {}", next.display());
    let stopped = "stopped=kill -INT $PPID; kill -INT $$";
    let programs = ["--beside", stopped, "--beside", &touch];
    let output = bench(Stdio::piped(), &[&programs[..], &["--json", &json_file]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("also: stopped by a signal"), "{said}");
    assert!(!next.exists(), "{said}");
    let rows = fs::read_to_string(&json).expect("rows");
    assert!(rows.contains("\"collective\":\"allreduce\""), "{rows}");
}

#[test]
fn files_that_cannot_be_written_are_found_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes");
    fs::write(&notes, "precious").expect("written");
    let notes_file = notes.display().to_string();
    for flag in ["--json", "--svg"] {
        for (path, reason) in [
            (notes_file.as_str(), "nothing is written over it"),
            ("/nowhere/file", "No such file"),
        ] {
            let output = bench(Stdio::piped(), &[flag, path]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(output.stdout.is_empty() && said.contains(reason), "{said}");
        }
    }
    assert_eq!(fs::read(&notes).expect("notes"), b"precious");
}
