//! Members that go: a receiver or a source that is killed, one that hangs, a group that is destroyed under way.

use anyhow::{Result, ensure};
use castnet_e2e::lab::{self, RunningTransfer, STAR, digest, part, write_random};
use castnet_e2e::process::Process;
use castnet_e2e::{Lab, Transfer};

/// A stream from h1.
const fn transfer<'a>(group: &'a str, receivers: &'a [&'a str]) -> Transfer<'a> {
    Transfer {
        group,
        source: "h1",
        receivers,
        op: "send",
        size: 0,
        seed: 9,
    }
}

/// Creates the group, and starts the stream until data is under way.
fn under_way(lab: &Lab, transfer: &Transfer<'_>, create: &[&str], flags: &[&str]) -> Result<RunningTransfer> {
    lab.create_group_with(transfer, &[&["--rate", "20M"], create].concat())?;
    let mut running = lab.start_stream(transfer, flags)?;
    running.source.wait_until("data was under way", |_| {
        lab.data_in(transfer.group, "sw") > Some(100)
    })?;
    Ok(running)
}

/// The switch says whom the group waits for, nobody takes the dead one's place unseen, and all hear of the group's end.
fn a_receiver_is_killed(lab: &Lab) -> Result<()> {
    let (agent, controller) = (lab.socket("sw"), lab.socket("controller"));
    let transfer = transfer("killed", &["h2", "h3"]);
    let mut running = under_way(lab, &transfer, &[], &["--fallback", "off"])?;
    running.receiver("h3")?.kill();
    running.source.wait_until("the killed receiver was named", |_| {
        lab.castnet(&["group", "show", "killed", "--controller", &controller])
            .is_ok_and(|shown| {
                shown
                    .lines()
                    .any(|line| line.contains("h3") && line.contains("stalled"))
            })
    })?;
    let mut successor = lab.start_host("h3", "receive", "killed", &["--out", "-"])?;
    ensure!(
        !successor.wait()?.success() && successor.output().contains("is active with the connections"),
        "a second h3 was not refused:\n{}",
        successor.output()
    );
    lab.castnet(&["group", "destroy", "killed", "--controller", &controller])?;
    ended(&mut running.source)?;
    ended(running.receiver("h2")?)?;
    let left = lab.castnet(&["group", "list", "--agent", &agent])?;
    ensure!(!left.contains("killed"), "{left}");
    Ok(())
}

/// Its call to the controller still stands when it is put out: the report of its switch counts. The others have every byte, and it
/// learns why it has not.
fn a_receiver_is_stopped(lab: &Lab) -> Result<()> {
    let controller = lab.socket("controller");
    let transfer = transfer("stopped", &["h2", "h3", "h4"]);
    let policy = ["--on-member-stall", "evict", "--member-stall-ms", "6000"];
    let mut running = under_way(lab, &transfer, &policy, &["--fallback", "off"])?;
    let mut stopped = running.take("h3")?;
    stopped.stop()?;
    let mut reason = String::new();
    running.source.wait_until("h3 was put out", |_| {
        let shown = lab.castnet_json(&["group", "show", "stopped", "--controller", &controller]);
        reason = shown.map_or_else(|e| e.to_string(), |shown| shown["reason"].to_string());
        reason.contains("host h3 stalls")
    })?;
    ensure!(reason.contains("although switch sw has sent it"), "{reason}");
    stopped.go_on()?;
    // The call to the controller that it had was kept open.
    stopped.wait()?;
    let said = stopped.output();
    ensure!(
        said.contains("put out of group stopped: host h3 stalls"),
        "{said}"
    );
    let report = running.finish_without(&["h3"])?;
    let of_h3 = &report["receivers"][1];
    ensure!(
        of_h3["outcome"] == "gone"
            && of_h3["why"]
                .as_str()
                .is_some_and(|why| why.contains("host h3 stalls")),
        "{report:#}"
    );
    ensure!(!lab.folder().join("stopped.h3.out").exists(), "it has the file");
    Ok(())
}

/// The path MTU of the group does not fit into its interface. It leaves at once, and the source names it.
fn a_receiver_gets_nothing(lab: &Lab) -> Result<()> {
    let controller = lab.socket("controller");
    let transfer = Transfer {
        size: 300_000,
        ..transfer("small", &["h2", "h3", "h4"])
    };
    lab.create_group(&transfer)?;
    let set_mtu = |mtu: &str| -> Result<()> {
        let mut ip = lab.host("h3")?.command("ip");
        let status = ip.args(["link", "set", "eth0", "mtu", mtu]).status()?;
        ensure!(status.success(), "ip link set: {status}");
        Ok(())
    };
    set_mtu("1500")?;
    let mut running = lab.start_transfer(&transfer)?;
    let mut small = running.take("h3")?;
    ensure!(!small.wait()?.success(), "{}", small.output());
    let report = running.finish_without(&["h3"])?;
    let of_h3 = &report["receivers"][1];
    ensure!(
        of_h3["outcome"] == "nothing" && of_h3["why"].as_str().is_some_and(|why| why.contains("MTU")),
        "{report:#}"
    );
    set_mtu("4200")?;
    lab.castnet(&["group", "destroy", "small", "--controller", &controller])?;
    Ok(())
}

/// How the source goes in mid-stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// `kill -9`, and it is started again at once.
    Killed,
    /// Ctrl-C: it leaves.
    Interrupted,
}

#[test]
fn members_that_are_killed_hang_or_are_started_again_are_noticed() {
    let workers = ["--worker", "any", "--worker", "any"];
    lab::in_lab("members", STAR, &workers, |lab| {
        a_receiver_is_killed(lab)?;
        a_receiver_is_stopped(lab)?;
        a_receiver_gets_nothing(lab)?;
        source_goes(lab, "again", Goes::Killed)?;
        source_goes(lab, "anew", Goes::Interrupted)
    });
}

/// The receivers are never started again, but for one that is killed too, in the place of which a new one comes. All get the
/// second file, and nothing of the first.
fn source_goes(lab: &Lab, group: &str, goes: Goes) -> Result<()> {
    let controller = lab.socket("controller");
    let transfer = transfer(group, &["h2", "h3", "h4"]);
    let mut first = under_way(lab, &transfer, &[], &[])?;
    first.receiver("h4")?.kill();
    match goes {
        Goes::Killed => first.source.kill(),
        Goes::Interrupted => {
            first.source.interrupt()?;
            first.source.wait()?;
        }
    }
    if goes != Goes::Killed {
        first
            .receiver("h2")?
            .wait_until("the group waited for its members", |_| {
                lab.castnet_json(&["group", "show", group, "--controller", &controller])
                    .is_ok_and(|group| group["phase"] == "registered")
            })?;
    }
    let file = lab.folder().join("second.bin");
    let second = write_random(&file, 3 << 20, 10)?;
    let send = ["--file", &*file.to_string_lossy()];
    let mut source = started_again(lab, group, &send)?;
    let out = lab.folder().join(format!("{group}.h4.out"));
    let mut replaced = lab.start_host("h4", "receive", group, &["--out", &out.to_string_lossy()])?;
    source.succeed()?;
    replaced.succeed()?;
    for host in ["h2", "h3"] {
        let receiver = first.receiver(host)?;
        receiver.succeed()?;
        let output = receiver.output();
        ensure!(
            output.contains("joining again") && output.replace(' ', "").contains("\"begun_again\":1,"),
            "{host} does not say that it began again:\n{output}"
        );
    }
    for host in transfer.receivers {
        let out = lab.folder().join(format!("{group}.{host}.out"));
        ensure!(digest(&out)? == second, "{host} has another file");
        ensure!(part(&out).is_none(), "{host} has left a part");
    }
    Ok(())
}

/// Starts the source until the controller has noticed that the one before is gone, and takes it.
fn started_again(lab: &Lab, group: &str, rest: &[&str]) -> Result<Process> {
    let controller = lab.socket("controller");
    for refusals in 0.. {
        let mut source = lab.start_host("h1", "send", group, rest)?;
        let is_in = source.wait_until("it was in", |_| {
            lab.castnet_json(&["group", "show", group, "--controller", &controller])
                .is_ok_and(|group| {
                    group["phase"] == "registered"
                        && group["reason"]
                            .as_str()
                            .is_some_and(|reason| !reason.contains("h1"))
                })
        });
        match is_in {
            Err(error) if refusals < 100 && error.to_string().contains("is active with") => {}
            is_in => return is_in.map(|()| source),
        }
    }
    anyhow::bail!("it is refused for ever")
}

/// Waits for a process to fail, which must be because its group was destroyed.
fn ended(process: &mut Process) -> Result<()> {
    let failed = !process.wait()?.success();
    let output = process.output();
    ensure!(
        failed && output.contains("destroyed"),
        "it does not say why:\n{output}"
    );
    Ok(())
}
