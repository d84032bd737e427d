//! `castnet host` as an operator runs it: inside the machines on the kernel's RNIC, beside them on the software RNIC, in one
//! group that all of them join by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::{digest, write_random};
use castnet_e2e::process::{Process, castnet};
use castnet_softroce::Job;
use castnet_softroce_tests::protocol::Op;
use serde_json::Value;

use crate::Scenario;
use crate::scene::Scene;

/// How long one of them may take, also where the machines share two cores and are emulated.
const LONG: Duration = Duration::from_secs(300);
/// Bytes of the file, which fill no whole number of messages.
const SIZE: usize = (1 << 20) + 12_345;
/// Messages of this length, so many at a time: machines are small.
const MESSAGES: [&str; 4] = ["--message-size", "64KiB", "--slots", "16"];
/// A source waits for its receivers for any time: machines are slow.
const PATIENT: [&str; 2] = ["--give-up", "0"];
/// What the script of a member in a machine prints when that is connected.
const JOINED: &str = "is ready for its turns";
/// What `castnet host turns` writes then.
const READY: &str = "turns.ready";
/// A pipe in a machine.
const PIPE: &str = "turn.pipe";

pub(crate) fn scenarios(add: &mut impl FnMut(String, Scenario)) {
    for op in Op::BOTH {
        add(
            format!("castnet-host-{}", op.name()),
            Box::new(move |scene| file(scene, op)),
        );
    }
    for numbers in ["bridged", "synchronized"] {
        add(
            format!("castnet-host-turns-{numbers}"),
            Box::new(move |scene| turns(scene, numbers)),
        );
    }
    add("castnet-host-turns-at-once".into(), Box::new(turns_at_once));
    for repair in ["source", "switch"] {
        add(
            format!("castnet-host-static-core-{repair}"),
            Box::new(move |scene| over_static_core(scene, repair)),
        );
    }
    add("castnet-host-relays".into(), Box::new(over_relays));
    add("castnet-host-shufflecast".into(), Box::new(over_shufflecast));
    for source in ["s1", "h1"] {
        add(
            format!("castnet-host-repair-{source}"),
            Box::new(move |scene| repaired(scene, source)),
        );
    }
}

/// What all members of a group need to run `castnet host`.
struct Members {
    folder: PathBuf,
    /// In the machines.
    program: String,
    flags: Vec<String>,
}

impl Members {
    /// Creates a group of h1, h2, h3 and the software RNIC s1 at one switch; `source` sends first.
    fn of(scene: &mut Scene, group: (&str, &str), faults: &[&str], create: &[&str], op: Op) -> Result<Self> {
        scene.fabric(faults)?;
        Self::of_running(scene, group, create, op)
    }

    /// The same at the switches that run.
    fn of_running(scene: &mut Scene, (group, source): (&str, &str), create: &[&str], op: Op) -> Result<Self> {
        let fabric = scene.running()?;
        let controller = fabric.controller()?;
        let folder = fabric.folder().to_owned();
        let mut others = vec!["h1", "h2", "h3", "s1"];
        others.retain(|name| *name != source);
        let others = others.join(",");
        let members = ["group", "create", group, "--source", source, "--members", &others];
        fabric.at_controller(&[&members[..], &["--pmtu", "1024"], create].concat())?;
        let flags = [
            "--group",
            group,
            "--controller",
            &controller,
            "--insecure",
            "--op",
            op.name(),
        ];
        let flags = flags
            .into_iter()
            .chain([
                "--qp-timeout",
                "18",
                "--connect-timeout",
                "5m",
                "--fallback",
                "off",
            ])
            .chain(MESSAGES);
        scene.forget_peer("s1");
        Ok(Self {
            folder,
            program: scene.lab.share(castnet())?,
            flags: flags.map(String::from).collect(),
        })
    }

    /// The command line in a machine.
    fn line(&self, verb: &str, name: &str, rest: &str) -> String {
        let flags = self.flags.join(" ");
        format!(
            "{} host {verb} --rnic verbs --name {name} {flags} {rest}",
            self.program
        )
    }

    /// Starts s1, beside the machines.
    fn soft(&self, scene: &Scene, verb: &str, rest: &[&str]) -> Result<Process> {
        let mut command = scene.lab.command(castnet());
        command.args(["host", verb, "--interface", "s1", "--ip", "10.0.0.101/24"]);
        command.args(["--name", "s1"]).args(&self.flags).args(rest);
        Process::start(&format!("{verb}-s1"), &self.folder, command)
    }
}

/// A file from h1 to h2, h3 and the software RNIC s1.
fn file(scene: &mut Scene, op: Op) -> Result<String> {
    let group = format!("file-{}", op.name());
    let members = Members::of(scene, (&group, "h1"), &[], &[], op)?;
    transfer(scene, &group, "h1", &members)?;
    scene.running()?.at_controller(&["group", "destroy", &group])?;
    Ok(format!("{SIZE} bytes from h1 to h2, h3 and s1"))
}

/// A file from h1 to machines and a software RNIC at other edges of a static core, with losses on each link.
fn over_static_core(scene: &mut Scene, repair: &str) -> Result<String> {
    scene.static_core(3, &["loss=1%,seed=23"])?;
    let group = format!("core-{repair}");
    let create = ["--distribution", "static", "--repair", repair];
    let members = Members::of_running(scene, (&group, "h1"), &create, Op::Write)?;
    transfer(scene, &group, "h1", &members)?;
    let fabric = scene.running()?;
    let core = fabric.at_other("core", &["counters"])?;
    let totals = &core["totals"];
    let copies = totals["copies"].as_u64().unwrap_or(0);
    // Where switches repair, new data goes to single switches, not to the address, while one of them is silent: on a slow machine, often.
    let least = match repair {
        "switch" => 1,
        _ => SIZE as u64 / 1024,
    };
    ensure!(
        copies >= least && totals["replicated"] == 0,
        "the core copies each packet once: {core}"
    );
    fabric.at_controller(&["group", "destroy", &group])?;
    Ok(format!(
        "{SIZE} bytes from h1 to h2, h3 and s1; {copies} copies in the core"
    ))
}

/// A file from h1 to machines and a software RNIC at other ToRs of a 2,2-Shufflecast, over its relays, with losses on each link. The controller
/// gives the ToRs their routes.
fn over_shufflecast(scene: &mut Scene) -> Result<String> {
    scene.static_core(8, &["loss=1%,seed=23"])?;
    let create = ["--distribution", "static"];
    let members = Members::of_running(scene, ("shufflecast", "h1"), &create, Op::Write)?;
    transfer(scene, "shufflecast", "h1", &members)?;
    let fabric = scene.running()?;
    // One that has no members.
    let relay = fabric.at_other("edge4", &["counters"])?;
    let routed = relay["totals"]["routed"].as_u64().unwrap_or(0);
    // What one ToR alone lacks goes to it over the ordinary network.
    ensure!(routed >= SIZE as u64 / 2048, "edge4 relays what is new: {relay}");
    fabric.at_controller(&["group", "destroy", "shufflecast"])?;
    Ok(format!(
        "{SIZE} bytes from h1 to h2, h3 and s1; {routed} packets over a relay without members"
    ))
}

/// The same without multicast addresses: the edges pass it on to each other in a chain, and the core routes.
fn over_relays(scene: &mut Scene) -> Result<String> {
    scene.static_core(3, &["loss=1%,seed=23"])?;
    let copied = |scene: &mut Scene| -> Result<u64> {
        let core = scene.running()?.at_other("core", &["counters"])?;
        core["totals"]["copies"]
            .as_u64()
            .with_context(|| core.to_string())
    };
    let (group, before) = ("relays", copied(scene)?);
    let create = ["--distribution", "edge:chain", "--repair", "switch"];
    let members = Members::of_running(scene, (group, "h1"), &create, Op::Write)?;
    transfer(scene, group, "h1", &members)?;
    let copies = copied(scene)? - before;
    // Some frames of other protocols are flooded, more of them the longer it takes. Copies of data would be twice as many.
    ensure!(copies < SIZE as u64 / 2048, "the core copies {copies} packets");
    scene.running()?.at_controller(&["group", "destroy", group])?;
    Ok(format!(
        "{SIZE} bytes from h1 to h2, h3 and s1, over one edge after the other"
    ))
}

/// A file through a switch that repairs, where three frames of a hundred are lost each way. No queue pair dies. The software RNIC as the
/// source repeats what its own link has lost; what is more comes from NAKs that cross what they ask for.
fn repaired(scene: &mut Scene, source: &'static str) -> Result<String> {
    let group = format!("repair-{source}");
    let (faults, create) = (["loss=3%,seed=17"], ["--repair", "switch"]);
    let members = Members::of(scene, (&group, source), &faults, &create, Op::Send)?;
    let said = transfer(scene, &group, source, &members)?;
    let report: Value = serde_json::from_str(said.trim()).context(said.clone())?;
    let counted = |what: &str| report[what].as_u64();
    let packets = SIZE as u64 / 1024;
    // A time-out, when the last ACK is lost, repeats up to a window.
    let few = packets / 12 + counted("timeouts").unwrap_or(0) * 129;
    ensure!(
        source != "s1" || counted("retransmissions").is_some_and(|again| again <= few),
        "the source repeated what the switch had: {said}"
    );
    scene.running()?.at_controller(&["group", "destroy", &group])?;
    let [seconds, again, time_outs] = ["seconds", "retransmissions", "timeouts"].map(|what| &report[what]);
    Ok(format!(
        "{packets} packets from {source} at 3 % in {seconds} s: {again} again, {time_outs} time-outs"
    ))
}

/// A file from `source` to the others of the group; all have its bytes in the end.
fn transfer(scene: &mut Scene, group: &str, source: &str, members: &Members) -> Result<String> {
    let input = members.folder.join(format!("{group}.bin"));
    let sent = write_random(&input, SIZE, 7)?;
    let out = members.folder.join(format!("{group}.s1"));
    let shared = scene.lab.share(&input)?;
    let (input, to) = (input.to_string_lossy(), out.to_string_lossy());
    let soft_sends = source == "s1";
    let mut soft = match soft_sends {
        true => {
            let flags = [&["--file", &input, "--output", "json"][..], &PATIENT].concat();
            members.soft(scene, "send", &flags)?
        }
        false => members.soft(scene, "receive", &["--out", &to])?,
    };
    let mut jobs = Vec::new();
    for name in ["h1", "h2", "h3"].into_iter().filter(|name| *name != source) {
        let script = format!(
            "{} && sha256sum out.bin && rm out.bin",
            members.line("receive", name, "--out out.bin")
        );
        jobs.push(scene.machine(name)?.spawn(&script)?);
    }
    let said = if soft_sends {
        None
    } else {
        let rest = format!("--file {shared} --output json {}", PATIENT.join(" "));
        let line = members.line("send", source, &rest);
        let said = scene.machine(source)?.run(&line, LONG)?;
        ensure!(said.code == 0, "the source: {said}");
        Some(said.stdout)
    };
    for job in &mut jobs {
        let name = job.host().name().to_owned();
        let said = job.wait(LONG).with_context(|| name.clone())?;
        ensure!(said.code == 0, "{name}: {said}");
        ensure!(
            said.stdout.contains(&sent),
            "{name} has other bytes than {sent}: {said}"
        );
    }
    soft.succeed()?;
    ensure!(soft_sends || digest(&out)? == sent, "s1 has other bytes");
    said.map_or_else(|| Ok(soft.report()?.to_string()), Ok)
}

/// A member of `castnet host turns` in a machine, with its part of the files in `turns`. `file`: what it sends, in the machine. Prints [`JOINED`],
/// and the digests of what it has received.
fn takes_turns(
    scene: &Scene,
    members: &Members,
    name: &'static str,
    order: &str,
    file: Option<&str>,
) -> Result<Job> {
    let file = file.map_or_else(String::new, |file| format!("--file {file}"));
    let patient = PATIENT.join(" ");
    let flags = format!("--order {order} --out turns --ready-file /root/{READY} {patient} {file}");
    let line = members.line("turns", name, &flags);
    let script = format!(
        "rm -f {READY}; mkdir turns && {{ (until [ -s {READY} ]; do sleep 0.1; done; echo {JOINED}) & joins=$!
         {line}; code=$?; kill $joins 2>/dev/null; sha256sum turns/*; rm -r turns; exit $code; }}"
    );
    Ok(scene.machine(name)?.spawn(&script)?)
}

/// Two machines and the software RNIC send in turn, over the queue pairs that they receive with. If the switch bridges PSNs, no PSN of the
/// kernel's is changed; otherwise the hosts synchronize them (Cepheus, III.E).
fn turns(scene: &mut Scene, numbers: &'static str) -> Result<String> {
    const ORDER: [&str; 5] = ["h1", "h2", "s1", "h2", "h1"];
    let (group, any_source) = (format!("turns-{numbers}"), format!("--any-source={numbers}"));
    let members = Members::of(scene, (&group, "h1"), &[], &[&any_source], Op::Send)?;
    let (mut sent, mut inputs) = (BTreeMap::new(), BTreeMap::new());
    for (n, name) in (1..).zip(["h1", "h2", "s1"]) {
        let input = members.folder.join(format!("turn-{name}.bin"));
        sent.insert(name, write_random(&input, SIZE / n, 7 + n as u64)?);
        inputs.insert(name, input);
    }
    let order = ORDER.join(",");
    let mut jobs = Vec::new();
    for name in ["h1", "h2", "h3"] {
        let file = match inputs.get(name) {
            Some(input) => Some(scene.lab.share(input)?),
            None => None,
        };
        jobs.push(takes_turns(scene, &members, name, &order, file.as_deref())?);
    }
    let (mut soft, out) = soft_turns(scene, &members, &group, &order, Some(&inputs["s1"]))?;
    let others = |name: &'static str| (1..).zip(ORDER).filter(move |(_, sender)| *sender != name);
    for (job, name) in jobs.iter_mut().zip(["h1", "h2", "h3"]) {
        let said = job.wait(LONG).context(name)?;
        ensure!(said.code == 0, "{name}: {said}");
        for (turn, sender) in others(name) {
            let line = format!("{}  turns/{turn:03}-{sender}", sent[sender]);
            ensure!(said.stdout.contains(&line), "{name} lacks {line}: {said}");
        }
    }
    soft.succeed()?;
    for (turn, sender) in others("s1") {
        let got = digest(&out.join(format!("{turn:03}-{sender}")))?;
        ensure!(got == sent[sender], "turn {turn}: s1 has other bytes");
    }
    scene.running()?.at_controller(&["group", "destroy", &group])?;
    Ok(format!("files of {order} to all others, one after the other"))
}

/// The same at the software RNIC, and the folder of what it receives. It writes [`READY`] beside that folder.
fn soft_turns(
    scene: &Scene,
    members: &Members,
    group: &str,
    order: &str,
    input: Option<&Path>,
) -> Result<(Process, PathBuf)> {
    let out = members.folder.join(group);
    std::fs::create_dir(&out)?;
    let (folder, ready) = (out.to_string_lossy(), members.folder.join(READY));
    let ready = ready.to_string_lossy();
    let mut flags = vec!["--order", order, "--out", &folder, "--ready-file", &ready];
    flags.extend(PATIENT);
    let file = input.map(|input| input.to_string_lossy());
    flags.extend(file.iter().flat_map(|file| ["--file", file]));
    Ok((members.soft(scene, "turns", &flags)?, out))
}

/// Two machines send at once, where frames are lost. One of them is the source and loses nothing, the other one ends with an error; its file
/// reaches nobody. A rival's turn begins when it opens its file: a pipe, which has no writer before all members are connected.
fn turns_at_once(scene: &mut Scene) -> Result<String> {
    const RIVALS: [&str; 2] = ["h1", "h2"];
    // More than the slots of a member take. So no file is sent before the other rival takes its part, and sees that it is late.
    const LENGTH: usize = 2 * SIZE;
    let faults = ["loss=0.5%,seed=19"];
    let members = Members::of(scene, ("at-once", "h1"), &faults, &["--any-source"], Op::Send)?;
    let (mut sent, mut inputs, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
    for (n, name) in (21..).zip(RIVALS) {
        let input = members.folder.join(format!("at-once-{name}.bin"));
        sent.push(write_random(&input, LENGTH, n)?);
        inputs.push(scene.lab.share(&input)?);
        let made = scene.machine(name)?.run(&format!("mkfifo {PIPE}"), LONG)?;
        ensure!(made.code == 0, "{name}: {made}");
        jobs.push(takes_turns(scene, &members, name, name, Some(PIPE))?);
    }
    jobs.push(takes_turns(scene, &members, "h3", "h1", None)?);
    let (mut soft, out) = soft_turns(scene, &members, "at-once", "h1", None)?;
    for job in &mut jobs {
        job.wait_for_output(JOINED, LONG)?;
    }
    let ready = members.folder.join(READY);
    soft.wait_until("it had joined", |_| ready.exists())?;
    let mut writers = Vec::new();
    for (name, input) in RIVALS.into_iter().zip(&inputs) {
        let script = format!("cat {input} >{PIPE}; rm {PIPE}");
        writers.push(scene.machine(name)?.spawn(&script)?);
    }
    let said = jobs
        .iter_mut()
        .map(|job| job.wait(LONG))
        .collect::<Result<Vec<_>, _>>()?;
    // That of the late one ends with its reader.
    for writer in &mut writers {
        writer.wait(LONG)?;
    }
    soft.succeed()?;
    let late = said[..2].iter().position(|said| said.code != 0);
    let late = late.with_context(|| format!("both have sent: {} {}", said[0], said[1]))?;
    let (source, late) = (1 - late, &said[late]);
    ensure!(
        said[source].code == 0,
        "neither has sent: {} {late}",
        said[source]
    );
    ensure!(late.stderr.contains("another member sends"), "{late}");
    let line = format!("{}  turns/001-h1", sent[source]);
    ensure!(
        said[2].code == 0 && said[2].stdout.contains(&line),
        "h3 lacks {line}: {}",
        said[2]
    );
    ensure!(digest(&out.join("001-h1"))? == sent[source], "s1 has other bytes");
    scene.running()?.at_controller(&["group", "destroy", "at-once"])?;
    let drops = scene.running()?.drops()?;
    let refused = drops.iter().find(|(reason, _)| reason == "not-source");
    let refused = refused.map_or(0, |(_, frames)| *frames);
    Ok(format!(
        "{} has sent, the other one has seen that; {refused} packets of members that waited",
        RIVALS[source],
    ))
}
