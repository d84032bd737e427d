//! Collectives of rxe hosts in the network: every element of every result is compared, bit by bit, at every rank. One queue pair
//! a rank serves all six, in a drawn order with drawn roots; the ranks' PSNs differ, and those of two go round the circle.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use castnet_comm::CollectiveMode;
use castnet_softroce::Job;
use castnet_softroce_tests::ranks::Told;

use crate::Scenario;
use crate::scene::{BRISK, LONG, PATIENT, Scene};

const RXE: [&str; 4] = ["h1", "h2", "h3", "h4"];
/// Three rxe hosts and the software RNIC.
const MIXED: [&str; 4] = ["h1", "s1", "h2", "h3"];
/// Each rank's first PSN; ranks 1 and 3 are soon gone round.
const FIRST_PSNS: [u32; 4] = [0x12_3456, 0xFF_FFC0, 0, 0xFF_FF00];
const SIZES: &str = "4,1028,204796,2097152";
const SMALLER: &str = "4,1028,204796";
/// How late the late rank comes. QPs of three retries and BRISK would be dead after 1.1 s.
const LATE_MS: u64 = 20_000;

/// A job of four ranks.
#[derive(Clone, Copy)]
struct Job4 {
    name: &'static str,
    hosts: [&'static str; 4],
    kind: &'static str,
    bytes: &'static str,
    one_armed: bool,
    faults: &'static [&'static str],
    timeout: u8,
    retry: u8,
    late_ms: u64,
    mode: CollectiveMode,
}

const PLAIN: Job4 = Job4 {
    name: "collectives-i32",
    hosts: RXE,
    kind: "i32",
    bytes: SIZES,
    one_armed: false,
    faults: &[],
    timeout: PATIENT,
    retry: 7,
    late_ms: 0,
    mode: CollectiveMode::Translated,
};

/// Mode-III of EPIC.
const AUGMENTED: Job4 = Job4 {
    name: "collectives-augmented",
    hosts: MIXED,
    bytes: SMALLER,
    mode: CollectiveMode::Augmented,
    ..PLAIN
};

/// Mode-I of EPIC.
const TERMINATED: Job4 = Job4 {
    name: "collectives-terminated",
    mode: CollectiveMode::Terminated,
    ..AUGMENTED
};

pub(crate) fn scenarios(add: &mut impl FnMut(String, Scenario)) {
    for job in [
        PLAIN,
        Job4 {
            name: "collectives-f32",
            kind: "f32",
            ..PLAIN
        },
        Job4 {
            name: "collectives-mixed",
            hosts: MIXED,
            kind: "f32",
            bytes: SMALLER,
            ..PLAIN
        },
        Job4 {
            name: "collectives-late",
            bytes: SMALLER,
            timeout: BRISK,
            retry: 3,
            late_ms: LATE_MS,
            ..PLAIN
        },
        AUGMENTED,
        Job4 {
            name: "collectives-augmented-late",
            hosts: RXE,
            timeout: BRISK,
            retry: 3,
            late_ms: LATE_MS,
            ..AUGMENTED
        },
        TERMINATED,
        Job4 {
            name: "collectives-terminated-late",
            hosts: RXE,
            timeout: BRISK,
            retry: 3,
            late_ms: LATE_MS,
            ..TERMINATED
        },
    ] {
        add(job.name.into(), Box::new(move |scene| collectives(scene, job)));
    }
}

/// The same where frames are lost on their way in and out, with QPs that give up after three retries.
pub(crate) fn lossy_scenarios(add: &mut impl FnMut(String, Scenario)) {
    let lossy = Job4 {
        bytes: SMALLER,
        timeout: BRISK,
        retry: 3,
        ..PLAIN
    };
    for job in [
        Job4 {
            name: "collectives-loss-1",
            faults: &["loss=1%,seed=11"],
            ..lossy
        },
        Job4 {
            name: "collectives-loss-3",
            kind: "f32",
            faults: &["loss=3%,seed=14"],
            ..lossy
        },
        Job4 {
            name: "collectives-augmented-loss-3",
            kind: "f32",
            faults: &["loss=3%,seed=14"],
            mode: CollectiveMode::Augmented,
            ..lossy
        },
        Job4 {
            name: "collectives-terminated-loss-3",
            kind: "f32",
            faults: &["loss=3%,seed=14"],
            mode: CollectiveMode::Terminated,
            ..lossy
        },
    ] {
        add(job.name.into(), Box::new(move |scene| collectives(scene, job)));
    }
}

/// Three rxe hosts and the software RNIC beside a switch with one port that loses frames.
pub(crate) fn one_armed_scenario(add: &mut impl FnMut(String, Scenario)) {
    let job = Job4 {
        name: "one-armed-collectives",
        hosts: MIXED,
        bytes: SMALLER,
        one_armed: true,
        faults: &["loss=1%,seed=16"],
        timeout: BRISK,
        ..PLAIN
    };
    add(job.name.into(), Box::new(move |scene| collectives(scene, job)));
}

/// A rank that runs, in a machine or beside them.
enum Rank {
    Machine(Box<Job>),
    Beside(Child),
}

impl Rank {
    fn told(self, host: &str) -> Result<Told> {
        let (is_good, said, words) = match self {
            Self::Machine(mut job) => {
                let ended = job.wait(LONG);
                if ended.is_err() {
                    job.kill()?;
                }
                let ended = ended?;
                (ended.code == 0, ended.stdout, ended.stderr)
            }
            Self::Beside(child) => {
                let ended = child.wait_with_output()?;
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                (ended.status.success(), text(ended.stdout), text(ended.stderr))
            }
        };
        ensure!(is_good, "{host}: {said} {}", words.trim());
        serde_json::from_str(said.trim()).with_context(|| format!("{host} said {said}"))
    }
}

fn collectives(scene: &mut Scene, job: Job4) -> Result<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_collective-rank"));
    let controller = scene.wired(job.one_armed, job.faults)?.controller()?;
    let shared = scene.lab.share(program)?;
    let mut ranks = Vec::new();
    for (rank, host) in job.hosts.into_iter().enumerate() {
        let late = if rank == 2 { job.late_ms } else { 0 };
        let line = format!(
            "--controller {controller} --name {host} --job {} --rank {rank} --size 4 --type {} --bytes {} \
             --first-psn {} --timeout {} --retry {} --mode {} --late-ms {late} --seed 7",
            job.name, job.kind, job.bytes, FIRST_PSNS[rank], job.timeout, job.retry, job.mode
        );
        ranks.push(match host.strip_prefix('s') {
            None => Rank::Machine(Box::new(
                scene.machine(host)?.spawn(&format!("exec {shared} {line}"))?,
            )),
            Some(number) => {
                let number: u32 = number.parse()?;
                let mut command = scene.lab.command(program);
                command.args(line.split_whitespace()).args(["--soft", host]);
                command.args(["--ip", &format!("10.0.0.{}", 100 + number)]);
                let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
                Rank::Beside(piped.spawn()?)
            }
        });
    }
    // All are waited for, so that none is left to the next scenario.
    let ended: Vec<Result<Told>> = ranks
        .into_iter()
        .zip(job.hosts)
        .map(|(rank, host)| rank.told(host))
        .collect();
    let faults: Vec<String> = ended
        .iter()
        .filter_map(|e| e.as_ref().err())
        .map(|e| format!("{e:#}"))
        .collect();
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    let told: Vec<Told> = ended.into_iter().flatten().collect();
    for (rank, one) in told.iter().enumerate() {
        ensure!(
            one.sq_psn == FIRST_PSNS[rank] && one.qps_created == 1 && one.qps_connected == 1,
            "{one:?}"
        );
    }
    if job.late_ms > 0 {
        let waited = Duration::from_secs_f64(told[0].slowest_s);
        ensure!(
            waited >= Duration::from_millis(job.late_ms) / 2,
            "nobody waited: {waited:?}"
        );
    }
    let sum = |name: &str| told.iter().map(|t| t.counter(name)).sum::<u64>();
    let longest = told.iter().map(|t| t.seconds).fold(0.0, f64::max);
    Ok(format!(
        "{} calls on one QP a rank in {longest:.1} s, slowest {:.1} s; {} times gone back, {} NAKs sent, {} results again",
        told[0].calls,
        told[0].slowest_s,
        // After NAKs and time-outs.
        sum("completer_retry_err"),
        sum("out_of_seq_request"),
        sum("duplicate_request")
    ))
}
