//! The scripts of `host/endpoint/tests/data`, played to a living rxe: frame by frame, it sends what our endpoint sends in the
//! same place. So the endpoint's own tests, which replay the recordings, stay true to the kernel.
//!
//! With CASTNET_RECORD set, what passes is written beside the scripts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use castnet_softroce_tests::protocol::{Ask, Op};
use castnet_softroce_tests::raw::Raw;
use castnet_wire::{MacAddr, Qpn};

use crate::scene::Scene;
use crate::script::{self, Ends, Script, Step, Twin, line, settled};

const SCRIPT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x55]);
const SCRIPT_QPN: Qpn = Qpn::new(0x4321);
/// How long rxe may take for a frame that it owes.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long it must be silent after a step, and after the last one: it owes nothing. Scripts have time-outs that are much
/// longer. What comes later than that is found out by the next step.
const SILENCE: Duration = Duration::from_millis(40);
const LAST_SILENCE: Duration = Duration::from_millis(200);
/// How often a script with timers is played before its fault counts: rxe's run in real time, and this machine may be busy.
const PLAYS: usize = 8;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../host/endpoint/tests/data")
}

/// All scripts, one after the other.
pub(crate) fn habits(scene: &mut Scene) -> Result<String> {
    scene.fabric(&[])?;
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "script"))
        .collect();
    scripts.sort();
    let only = std::env::var("CASTNET_SCRIPT").ok();
    let (mut faults, mut played) = (Vec::new(), 0);
    for path in scripts {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let script = Script::parse(&text).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
        let plays = if script.steps.contains(&Step::Timer) {
            PLAYS
        } else {
            1
        };
        let (mut frames, mut outcome) = play(scene, &script)?;
        for _ in 1..plays {
            if outcome.is_ok() {
                break;
            }
            (frames, outcome) = play(scene, &script)?;
        }
        if std::env::var_os("CASTNET_RECORD").is_some() {
            std::fs::write(path.with_extension("pcap"), script::write_pcap(&frames))?;
        }
        if let Err(error) = outcome {
            faults.push(format!("{name}: {error:#}"));
        }
        played += 1;
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(format!("{played} scripts, every frame as our endpoint sends it"))
}

/// Plays one script; all frames that passed, and whether they were those of our endpoint.
fn play(scene: &mut Scene, script: &Script) -> Result<(Vec<Vec<u8>>, Result<()>)> {
    let script_ip = "10.0.0.155".parse()?;
    scene.forget_peer("s2");
    scene.need_peers(&["h1"])?;
    let raw = Raw::open(scene.lab.netns(), "s2", SCRIPT_MAC, script_ip)?;
    let peer = scene.peer("h1")?;
    let at = peer.create(script::REGION)?;
    let ends = Ends {
        mac: peer.mac.parse().map_err(|e| anyhow::anyhow!("{e}"))?,
        ip: peer.ip.parse()?,
        qpn: Qpn::new(at.qpn),
        va: at.va,
        rkey: at.rkey,
        script_mac: SCRIPT_MAC,
        script_ip,
        script_qpn: SCRIPT_QPN,
    };
    peer.does(&Ask::Connect {
        ip: script_ip.to_string(),
        qpn: SCRIPT_QPN.value(),
        sq_psn: script.sq,
        rq_psn: script.rq,
        pmtu: script.pmtu,
        timeout: script.timeout,
        retry: script.retry,
        rnr_timer: script.rnr_timer,
    })?;
    let mut twin = Twin::new(script, &ends);
    let mut frames = Vec::new();
    let mut outcome = Ok(());
    for (number, step) in script.steps.iter().enumerate() {
        let there = || format!("step {number}, {step:?}");
        match step {
            Step::Post { by_write, length } => {
                scene.peer("h1")?.does(&Ask::Post {
                    op: if *by_write { Op::Write } else { Op::Send },
                    length: *length,
                    seed: 0,
                    imm: script::IMM,
                    va: script::THEIR_VA,
                    rkey: script::THEIR_RKEY,
                })?;
            }
            Step::Receive { length } => {
                scene.peer("h1")?.does(&Ask::Receive { length: *length })?;
            }
            Step::Timer | Step::Response { .. } | Step::Request(_) => {}
        }
        let frame = ends.frame(script, step);
        if let Some(frame) = &frame {
            raw.send(frame.clone())?;
            frames.push(frame.clone());
        }
        let frame = match (step, frame) {
            (Step::Request(r), Some(frame)) if !r.bad_key => Some(script::with_key(&frame, twin.rkey())),
            (_, frame) => frame,
        };
        let expected = twin.step(step, frame.as_deref());
        // A timer that ends in silence must be waited for all the same.
        let silence = if *step == Step::Timer && expected.is_empty() {
            2 * Duration::from_nanos(4096 << script.timeout)
        } else if number + 1 == script.steps.len() {
            LAST_SILENCE
        } else {
            SILENCE
        };
        for ours in expected {
            let Some(rxe) = raw.next(PATIENCE)? else {
                outcome = outcome.and(Err(anyhow::anyhow!(
                    "{}: rxe did not send {}",
                    there(),
                    line(&ours)
                )));
                break;
            };
            frames.push(rxe.clone());
            if settled(&ours) != settled(&rxe) {
                let fault = format!("{}: ours {}, rxe {}", there(), line(&ours), line(&rxe));
                outcome = outcome.and(Err(anyhow::anyhow!("{fault}")));
            }
        }
        while let Some(rxe) = raw.next(silence)? {
            let fault = format!("{}: rxe also sent {}", there(), line(&rxe));
            frames.push(rxe);
            outcome = outcome.and(Err(anyhow::anyhow!("{fault}")));
            if frames.len() > 2000 {
                bail!("rxe does not stop: {fault}");
            }
        }
    }
    scene
        .peer("h1")?
        .does(&Ask::Destroy)
        .context("the end of a script")?;
    Ok((frames, outcome))
}
