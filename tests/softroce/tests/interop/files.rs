//! `castnet host` as an operator runs it: inside the machines on the kernel's RNIC, beside them on the software RNIC, in one
//! group that all of them join by name.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use castnet_e2e::lab::{digest, write_random};
use castnet_e2e::process::{Process, castnet};
use castnet_softroce_tests::protocol::Op;

use crate::Scenario;
use crate::scene::Scene;

/// How long one of them may take.
const LONG: Duration = Duration::from_secs(120);
/// Bytes of the file, which fill no whole number of messages.
const SIZE: usize = (1 << 20) + 12_345;
/// Messages of this length, so many at a time: machines are small.
const MESSAGES: [&str; 4] = ["--message-size", "64KiB", "--slots", "16"];

pub(crate) fn scenarios(add: &mut impl FnMut(String, Scenario)) {
    for op in Op::BOTH {
        add(
            format!("castnet-host-{}", op.name()),
            Box::new(move |scene| file(scene, op)),
        );
    }
}

/// A file from h1 to h2, h3 and the software RNIC s1.
fn file(scene: &mut Scene, op: Op) -> Result<String> {
    let group = format!("file-{}", op.name());
    let fabric = scene.fabric(&[])?;
    let controller = fabric.controller()?;
    let folder = fabric.folder().to_owned();
    fabric.at_controller(&[
        "group",
        "create",
        &group,
        "--source",
        "h1",
        "--members",
        "h2,h3,s1",
        "--pmtu",
        "1024",
    ])?;
    let input = folder.join(format!("{group}.bin"));
    let sent = write_random(&input, SIZE, 7)?;
    let (program, input) = (scene.lab.share(castnet())?, scene.lab.share(&input)?);
    let common: Vec<&str> = ["--group", &group, "--controller", &controller, "--insecure"]
        .into_iter()
        .chain([
            "--op",
            op.name(),
            "--qp-timeout",
            "18",
            "--connect-timeout",
            "30s",
        ])
        .chain(MESSAGES)
        .collect();
    let line = |verb: &str, name: &str, rest: &str| {
        format!(
            "{program} host {verb} --rnic verbs --name {name} {} {rest}",
            common.join(" ")
        )
    };

    scene.forget_peer("s1");
    let out = folder.join(format!("{group}.s1"));
    let mut command = scene.lab.command(castnet());
    command.args([
        "host",
        "receive",
        "--interface",
        "s1",
        "--ip",
        "10.0.0.101/24",
        "--name",
        "s1",
    ]);
    command.args(&common).arg("--out").arg(&out);
    let mut soft = Process::start(&format!("{group}-s1"), &folder, command)?;
    let mut jobs = Vec::new();
    for name in ["h2", "h3"] {
        let script = format!(
            "{} && sha256sum out.bin && rm out.bin",
            line("receive", name, "--out out.bin")
        );
        jobs.push(scene.machine(name)?.spawn(&script)?);
    }
    let source = scene
        .machine("h1")?
        .run(&line("send", "h1", &format!("--file {input}")), LONG)?;
    ensure!(source.code == 0, "the source: {source}");
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
    ensure!(digest(Path::new(&out))? == sent, "s1 has other bytes");
    scene.running()?.at_controller(&["group", "destroy", &group])?;
    Ok(format!("{SIZE} bytes from h1 to h2, h3 and s1"))
}
