//! `castnet host allreduce` and the other five collectives as processes in network namespaces: four ranks at one switch, one or several at a host.

use anyhow::{Context, Result, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, STAR};
use castnet_e2e::process::Process;
use serde_json::Value;

fn in_star(test: impl FnOnce(&mut Lab) -> Result<()>) {
    lab::in_lab("ranks", STAR, &[], test);
}

/// Runs a collective at hosts h1 to h`size`, and gives what rank 0 printed: a line for each size.
fn run(lab: &Lab, size: usize, verb: &str, job: &str, rest: &[&str]) -> Result<Vec<Value>> {
    let rest = [&["--iters", "3", "--warmup", "1"], rest].concat();
    rows(lab, size, verb, job, &rest)
}

fn rows(lab: &Lab, size: usize, verb: &str, job: &str, rest: &[&str]) -> Result<Vec<Value>> {
    let mut ranks = (0..size)
        .map(|rank| lab.start_rank(verb, job, rank, size, rest))
        .collect::<Result<Vec<_>>>()?;
    for rank in &mut ranks {
        rank.succeed()?;
    }
    let said = ranks[0].output();
    println!("{said}");
    said.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).context("a line of JSON"))
        .collect()
}

/// Of each size's line: its bytes, and that nothing is wrong.
fn all_right(lines: &[Value]) -> Result<Vec<u64>> {
    lines
        .iter()
        .map(|line| {
            ensure!(line["wrong"] == 0, "{line}");
            ensure!(line["time_avg_us"].as_f64().is_some_and(|t| t > 0.0), "{line}");
            line["bytes"].as_u64().context("bytes")
        })
        .collect()
}

fn six_collectives(lab: &Lab) -> Result<()> {
    let network = ["--verify", "--fallback", "forbidden", "--bytes", "0,4,1028,100K"];
    let sizes = vec![0, 4, 1028, 100 << 10];
    let with = |rest: &[&'static str]| [&network[..], rest].concat();
    let lines = run(lab, 4, "allreduce", "ar", &with(&[]))?;
    ensure!(all_right(&lines)? == sizes);
    let lines = run(
        lab,
        4,
        "allreduce",
        "ar2",
        &with(&["--type", "u8", "--op", "bitxor", "--in-place"]),
    )?;
    ensure!(all_right(&lines)? == sizes);
    let lines = run(
        lab,
        4,
        "reduce",
        "r",
        &with(&["--type", "i32", "--op", "max", "--root", "2"]),
    )?;
    ensure!(all_right(&lines)? == sizes);
    let lines = run(lab, 4, "broadcast", "b", &with(&["--root", "3"]))?;
    ensure!(all_right(&lines)? == sizes);
    // A block each: what does not divide by four ranks of four bytes is left out.
    let blocks = vec![0, 0, 1024, 100 << 10];
    let lines = run(lab, 4, "reducescatter", "rs", &with(&[]))?;
    ensure!(all_right(&lines)? == blocks);
    let lines = run(lab, 4, "allgather", "ag", &with(&["--in-place"]))?;
    ensure!(all_right(&lines)? == blocks);
    let lines = run(lab, 4, "barrier", "bar", &["--fallback", "forbidden"])?;
    ensure!(lines.len() == 1);
    Ok(())
}

/// A sweep has each collective and size on both paths, and draws them.
fn a_sweep(lab: &Lab) -> Result<()> {
    let svg = lab.folder().join("sweep.svg");
    let svg = svg.to_str().context("a path")?;
    for runner in [&[][..], &["--runner"]] {
        let job = format!("sweep{}", runner.len());
        let mut rest = vec![
            "--bytes", "4,64,20K", "--budget", "5ms", "--warmup", "2", "--svg", svg,
        ];
        rest.extend(runner);
        let lines = rows(lab, 4, "bench", &job, &rest)?;
        for path in ["in-network", "between-hosts"] {
            let of_path = lines.iter().filter(|line| line["path"] == path);
            let names: Vec<_> = of_path
                .map(|l| (l["collective"].as_str(), l["bytes"].as_u64()))
                .collect();
            ensure!(names.len() == 3 * 3 + 1 + 2 * 2, "{names:?}");
            ensure!(names.contains(&(Some("allgather"), Some(64))), "{names:?}");
        }
        for line in &lines {
            ensure!(line["wrong"] == 0 || line["collective"] == "barrier", "{line}");
            ensure!(
                line["time_median_us"].as_f64().is_some_and(|us| us > 0.0),
                "{line}"
            );
            ensure!(line["iterations"].as_u64().is_some_and(|n| n >= 3), "{line}");
        }
        let drawn = std::fs::read_to_string(svg)?;
        ensure!(drawn.contains("reducescatter") && drawn.contains("between hosts"));
        std::fs::remove_file(svg)?;
    }
    Ok(())
}

#[test]
fn six_collectives_and_a_sweep_of_them_report_what_was_done() {
    in_star(|lab| {
        six_collectives(lab)?;
        a_sweep(lab)
    });
}

/// Eight ranks at three hosts, 3, 3 and 2 of them: processes that share memory, in the namespaces of their hosts.
fn start_shared(lab: &Lab, verb: &str, job: &str, rest: &[&str]) -> Result<Vec<Process>> {
    (0..8)
        .map(|rank| lab.start_rank_at(&format!("h{}", rank % 3 + 1), verb, job, (rank, 8), rest))
        .collect()
}

fn over_shared_memory(lab: &Lab) -> Result<()> {
    let common = [
        "--fallback",
        "forbidden",
        "--iters",
        "3",
        "--warmup",
        "1",
        "--path",
    ];
    for (verb, path, more) in [
        ("allreduce", "hierarchical", &["--bytes", "0,4,1028,900K"][..]),
        ("allreduce", "direct", &["--bytes", "4,100K"]),
        (
            "reduce",
            "hierarchical",
            &["--bytes", "4,300K", "--root", "5", "--type", "i16", "--op", "max"],
        ),
        ("broadcast", "hierarchical", &["--bytes", "4,300K", "--root", "4"]),
        (
            "reducescatter",
            "hierarchical",
            &["--bytes", "32,300K", "--in-place"],
        ),
        ("allgather", "hierarchical", &["--bytes", "32,300K", "--runner"]),
        ("barrier", "hierarchical", &[]),
        ("allreduce", "auto", &["--bytes", "4,100K"]),
    ] {
        let job = format!("{verb}-{path}");
        let rest = [&common[..], &[path], more].concat();
        let mut ranks = start_shared(lab, verb, &job, &rest)?;
        for rank in &mut ranks {
            rank.succeed()?;
        }
        let said = ranks[0].output();
        println!("{said}");
        let lines = said.lines().filter(|line| line.starts_with('{'));
        let lines: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        ensure!(!lines.is_empty(), "{job}: no line");
        for line in lines {
            ensure!(line["wrong"] == 0 || verb == "barrier", "{line}");
            ensure!(path == "auto" || line["ranks_path"] == path, "{line}");
            ensure!(line["path"] == "in-network", "{line}");
        }
    }
    Ok(())
}

/// Waits until a process has ended badly. Returns its output.
fn failed(rank: &mut Process) -> Result<String> {
    let status = rank.wait()?;
    ensure!(!status.success(), "it succeeded:\n{}", rank.output());
    Ok(rank.output())
}

/// Those that share memory with it name it.
fn a_rank_is_killed(lab: &Lab) -> Result<()> {
    let rest = [
        "--fallback",
        "forbidden",
        "--path",
        "hierarchical",
        "--bytes",
        "64K",
        "--iters",
        "1000000",
        "--no-verify",
    ];
    let mut ranks = start_shared(lab, "allreduce", "killed", &rest)?;
    let controller = lab.socket("controller");
    // The leaders' group is made by their first collective, when all ranks share memory.
    ranks[0].wait_until("the leaders have a group", |_| {
        lab.castnet(&["group", "list", "--controller", &controller])
            .is_ok_and(|list| {
                list.lines()
                    .any(|line| line.contains("killed.") && line.contains("active"))
            })
    })?;
    ranks[3].kill();
    // Ranks 0 and 6 are at its host.
    for rank in [0, 6] {
        let said = failed(&mut ranks[rank])?;
        ensure!(said.contains("rank 3 (h1) is gone"), "rank {rank}: {said}");
    }
    for rank in [1, 2, 4, 5, 7] {
        failed(&mut ranks[rank])?;
    }
    Ok(())
}

/// Three ranks in one process and two in another, each a thread with a queue pair of its own.
fn several_ranks_of_a_process(lab: &Lab) -> Result<()> {
    for path in ["direct", "hierarchical"] {
        let job = format!("threads-{path}");
        let start = |host, rank, here| {
            let rest = [
                "--fallback",
                "forbidden",
                "--iters",
                "3",
                "--warmup",
                "1",
                "--bytes",
                "4,100K",
                "--path",
                path,
                "--ranks-here",
                here,
            ];
            lab.start_rank_at(host, "allreduce", &job, (rank, 5), &rest)
        };
        let mut ranks = [start("h1", 0, "3")?, start("h2", 3, "2")?];
        for process in &mut ranks {
            process.succeed()?;
        }
        let said = ranks[0].output();
        println!("{said}");
        let lines = said.lines().filter(|line| line.starts_with('{'));
        let lines: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        ensure!(lines.len() == 2, "{said}");
        for line in lines {
            ensure!(
                line["wrong"] == 0 && line["ranks"] == 5 && line["ranks_path"] == path,
                "{line}"
            );
        }
    }
    Ok(())
}

#[test]
fn several_ranks_of_a_host_share_memory_or_a_process_and_name_one_that_is_killed() {
    in_star(|lab| {
        over_shared_memory(lab)?;
        several_ranks_of_a_process(lab)?;
        a_rank_is_killed(lab)
    });
}
