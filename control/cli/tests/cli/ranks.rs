//! `castnet host allreduce` and its like, where nobody else is.

use assert_cmd::Command;
use serde_json::Value;

use crate::cli::{NOBODY, number, stdout};
use crate::live::{castnet, words};

/// `castnet host VERB` as rank 0 of `size`, on a link that leads nowhere.
fn rank(verb: &str, size: &str, args: &[&str]) -> Command {
    let mut command = castnet();
    let this = format!(
        "host {verb} --interface memory:nowhere --ip 10.0.0.1/24 --name h1 --job j --rank 0 --size {size} --controller {NOBODY}"
    );
    command.args(words(&this)).args(args);
    command
}

#[test]
fn collectives_explain_their_flags_and_their_table() {
    for verb in [
        "allreduce",
        "reduce",
        "broadcast",
        "barrier",
        "reducescatter",
        "allgather",
    ] {
        let help = stdout(castnet().args(["host", verb, "--help"]));
        for word in [
            "Examples:",
            "This rank:",
            "How it is measured (the same at all ranks):",
            "busbw",
            "--iters <N>",
            "Exit code 0",
        ] {
            assert!(
                help.contains(word),
                "castnet host {verb} --help: no '{word}' in\n{help}"
            );
        }
        let short = stdout(castnet().args(["host", verb, "-h"]));
        assert!(
            short.contains("Examples:") && !short.contains("Exit code 0"),
            "{short}"
        );
        for (flag, verbs) in [
            ("--root <RANK>", &["reduce", "broadcast"][..]),
            ("--op <OP>", &["allreduce", "reduce", "reducescatter"]),
            (
                "--in-place",
                &["allreduce", "reduce", "broadcast", "reducescatter", "allgather"],
            ),
        ] {
            assert_eq!(help.contains(flag), verbs.contains(&verb), "{flag} of {verb}");
        }
    }
}

#[test]
fn what_no_rank_could_do_is_refused_before_anything_is_tried() {
    for (line, what, next) in [
        ("reduce 4 --root 4", "no rank 4 among 4", "--root 3"),
        (
            "allreduce 4 --ranks-here 5",
            "no 5 ranks from 0 on among 4",
            "--ranks-here 4",
        ),
        (
            "barrier 4 --ranks-here 2",
            "belongs to one thread",
            "a network interface",
        ),
        ("allreduce 4 --op bitand", "bitand is not for f32", "i32"),
        (
            "allreduce 4 --window 8 --message-packets 9",
            "does not fit",
            "1 to 8",
        ),
        (
            "allreduce 4 --window 16384",
            "1024 messages",
            "--message-packets 34",
        ),
        ("allreduce 4 --window 1", "1 is not in 2..", "--help"),
        (
            "allreduce 4 --secret-file /dev/null",
            "it is empty",
            "write a secret into it",
        ),
        ("allreduce 4 --timeout 0s", "more than 0", "--help"),
        ("allreduce 4 --type f31", "not a data type", "--help"),
        ("allreduce 4 --bytes 4M..4K", "upwards", "--help"),
        ("allreduce 4 --iters 0", "0 is not in", "--help"),
        ("barrier 4 --root 1", "unexpected argument", "--help"),
        ("allreduce 2000", "2000 is not in 1..=1024", "--help"),
    ] {
        let words = words(line);
        let (verb, size, args) = (words[0], words[1], &words[2..]);
        let output = rank(verb, size, args).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{verb} {args:?}: {text}");
        assert!(
            text.contains(what) && text.contains(next),
            "{verb} {args:?}: {text}"
        );
    }
}

#[test]
fn a_rank_without_a_controller_says_so() {
    let output = rank("allreduce", "2", &["--wait", "100ms"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains(" next: start the controller"), "{text}");
}

/// The other ranks need it. The second size ends this one with an error of its own, once it gets there.
#[test]
fn a_rank_whose_output_is_full_goes_on_to_the_end() {
    let sizes = ["--bytes", "4K,9000000T", "--iters", "2"];
    let full = std::fs::File::options().write(true).open("/dev/full");
    let rank = rank("allreduce", "1", &sizes);
    let output = std::process::Command::new(rank.get_program())
        .args(rank.get_args())
        .stdout(full.expect("a device"))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no memory for a buffer of"), "{said}");
}

#[test]
fn a_job_of_one_rank_has_its_table_for_people_and_for_machines() {
    let sizes = ["--bytes", "4K..16K", "--iters", "2"];
    let text = stdout(&mut rank("allreduce", "1", &sizes));
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with("# allreduce: 2 calls") && lines[1].starts_with("# between hosts"),
        "{text}"
    );
    let heading: Vec<_> = lines[2].split_whitespace().collect();
    assert_eq!(heading[..5], ["SIZE", "COUNT", "TYPE", "OP", "ROOT"], "{text}");
    let row: Vec<_> = lines[3].split_whitespace().collect();
    assert_eq!(row[..5], ["4096", "1024", "f32", "sum", "-"], "{text}");
    assert_eq!(row[row.len() - 2..], ["0", "direct"], "nothing is wrong: {text}");
    assert!(
        lines.last().is_some_and(|l| l.ends_with("wrong elements: 0")),
        "{text}"
    );

    let json = stdout(rank("reduce", "1", &sizes).args(["--no-verify", "--output", "json"]));
    let rows: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("one object a line"))
        .collect();
    let sizes: Vec<_> = rows.iter().map(|row| number(row, &["bytes"])).collect();
    assert_eq!(sizes, [4096, 16384]);
    for row in rows {
        assert_eq!(
            (&row["path"], &row["ranks"], &row["root"], &row["wrong"]),
            (&"between-hosts".into(), &1.into(), &0.into(), &Value::Null),
            "{row}"
        );
    }
    let barrier = stdout(&mut rank("barrier", "1", &["--iters", "2"]));
    assert_eq!(barrier.lines().count(), 4, "no sum of bandwidths: {barrier}");
}
