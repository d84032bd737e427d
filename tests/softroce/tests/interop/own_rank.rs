//! docs/write-your-own-rank.md, followed to the letter: its example in C is compiled by its command, and ranks of it in three
//! machines make a group of its rule, installed by its commands.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use castnet_e2e::net;
use castnet_softroce::{Job, Output};

use crate::scene::{LONG, PATIENT, Scene};

const PAGE: &str = include_str!("../../../../docs/write-your-own-rank.md");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const SIZE: usize = 3;
/// What a rank's line in the rule begins with.
const LINE: &str = "host = {";

/// Three generations of one group: of i32, of f32, and one in which a rank calls something else. Beside an ordinary switch all of them
/// are at the one port.
pub(crate) fn own_rank(scene: &mut Scene, one_armed: bool) -> Result<String> {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        net::skip("the example in C", "apt-get install gcc libibverbs-dev");
        return Ok("skipped".into());
    }
    scene.wired(one_armed, &[])?;
    let program = scene.running()?.folder().join("rank");
    compile(&program)?;
    let program = scene.lab.share(&program)?;
    for (generation, kind) in [(1, "i32"), (2, "f32")] {
        let ranks = start(scene, &program, one_armed, generation, |_| {
            format!("--type {kind}")
        })?;
        for (rank, ended) in finish(ranks)?.into_iter().enumerate() {
            let right = format!(
                "rank {rank} of {SIZE}: allreduce, reduce, broadcast of 100000 {kind} and a barrier: all elements are right"
            );
            ensure!(ended.code == 0 && ended.stdout.contains(&right), "{ended}");
        }
    }
    let ranks = start(scene, &program, one_armed, 3, |rank| {
        format!("--elements {}", if rank == 1 { 8 } else { 7 })
    })?;
    for ended in finish(ranks)? {
        let disagree = "ranks disagree on collective 0: \
                        rank 0 said allreduce of 7 elements, type 7, operation 1, root 0, 1 packets; \
                        rank 1 said allreduce of 8 elements, type 7, operation 1, root 0, 1 packets";
        ensure!(ended.code == 1 && ended.stderr.contains(disagree), "{ended}");
    }
    castnet(scene, "group destroy mine --agent URL")?;
    Ok(format!("{SIZE} ranks in C: i32, f32, and one that disagrees"))
}

/// As the page says, but for the place of the program.
fn compile(program: &Path) -> Result<()> {
    let mut lines = PAGE.lines().filter_map(|line| line.strip_prefix("$ cc "));
    let arguments = lines.next().context("the page compiles nothing")?;
    ensure!(arguments.contains("-o rank "), "{arguments}");
    let arguments = arguments.split_whitespace().map(|word| match word {
        "rank" => program.as_os_str(),
        word => word.as_ref(),
    });
    let out = Command::new("cc").args(arguments).current_dir(ROOT).output()?;
    ensure!(
        out.status.success(),
        "examples/rank.c: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(())
}

/// Starts a rank at each of the first machines, installs the rule with their lines, and lets them go on.
fn start(
    scene: &mut Scene,
    program: &str,
    one_armed: bool,
    generation: u32,
    more: impl Fn(usize) -> String,
) -> Result<Vec<Job>> {
    let command = "rank --rank 0 --size 3 --group 10.0.0.200 --timeout 20";
    ensure!(
        PAGE.contains(command) && PATIENT == 20,
        "the page no longer says {command}"
    );
    // What a person's Enter is in a terminal.
    let enter = format!("enter-{generation}");
    let mut ranks = Vec::new();
    for rank in 0..SIZE {
        let command = command.replace("rank --rank 0", &format!("{program} --rank {rank}"));
        let script = format!(
            "(until [ -e /share/bin/{enter} ]; do sleep 0.1; done; echo) | {command} {}",
            more(rank)
        );
        let host = format!("h{}", rank + 1);
        ranks.push(scene.machine(&host)?.spawn(&script)?);
    }
    let mut lines = Vec::new();
    for rank in &mut ranks {
        let said = rank.wait_for_output("press Enter", LONG)?.stdout;
        let line = said.lines().find(|line| line.starts_with(LINE));
        lines.push(line.context("no line for the rule")?.to_owned());
    }
    let rules = scene.running()?.folder().join("rules.toml");
    let mut rule = rule(generation, &lines)?;
    if one_armed {
        (1..SIZE).for_each(|port| rule = rule.replace(&format!("port = {port}"), "port = 0"));
    }
    fs::write(&rules, rule)?;
    for command in ["rules check rules.toml", "group install rules.toml --agent URL"] {
        castnet(scene, command)?;
    }
    let enter = scene.running()?.folder().join(enter);
    fs::write(&enter, "")?;
    scene.lab.share(&enter)?;
    Ok(ranks)
}

/// The page's rule with the ranks' own lines, of a generation, with the lab's time-out.
fn rule(generation: u32, lines: &[String]) -> Result<String> {
    let rule = PAGE
        .split_once("```toml\n")
        .and_then(|(_, rest)| rest.split_once("```"));
    let (rule, _) = rule.context("the page has no rule")?;
    let (short, long) = ("ack_timeout_us = 67108", "ack_timeout_us = 4294967");
    ensure!(
        rule.contains(short) && PAGE.contains(long),
        "the page's time-outs"
    );
    let mut lines = lines.iter();
    let mut own = String::new();
    for line in rule.lines() {
        match line.starts_with(LINE) {
            true => own += lines.next().context("more ranks on the page than here")?,
            false => own += line,
        }
        own += "\n";
    }
    ensure!(lines.next().is_none(), "fewer ranks on the page than here");
    Ok(own
        .replace(short, long)
        .replace("generation = 1", &format!("generation = {generation}")))
}

/// A command of the page, with the lab's agent and files.
fn castnet(scene: &mut Scene, command: &str) -> Result<()> {
    ensure!(
        PAGE.contains(&format!("castnet {command}")),
        "the page no longer says {command}"
    );
    let fabric = scene.running()?;
    let (agent, rules) = (fabric.agent(), fabric.folder().join("rules.toml"));
    let words: Vec<String> = command
        .split(' ')
        .map(|word| match word {
            "URL" => agent.clone(),
            "rules.toml" => rules.display().to_string(),
            word => word.to_owned(),
        })
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    fabric.castnet(&words).map(drop)
}

/// How each rank ended; none is left to the next scenario.
fn finish(ranks: Vec<Job>) -> Result<Vec<Output>> {
    let ended: Vec<_> = ranks
        .into_iter()
        .map(|mut rank| {
            let ended = rank.wait(LONG);
            if ended.is_err() {
                rank.kill()?;
            }
            ended
        })
        .collect();
    Ok(ended.into_iter().collect::<Result<_, _>>()?)
}
