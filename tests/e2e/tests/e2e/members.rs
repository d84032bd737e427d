//! Members that come, go and die: hosts in several groups at once, a receiver or a source that is killed, a group that is
//! destroyed under way.

use anyhow::{Result, ensure};
use castnet_e2e::lab::{self, STAR, TWO_TIERS, digest, write_random};
use castnet_e2e::process::Process;
use castnet_e2e::{Lab, Transfer, net};

/// Runs `test` in a star whose switch has two workers, or says why it cannot.
fn in_star(test: impl FnOnce(&Lab) -> Result<()>) {
    if net::is_skipped("members") {
        return;
    }
    let lab = Lab::start(STAR, &["--worker", "any", "--worker", "any"]).expect("the lab starts");
    if let Err(error) = test(&lab) {
        panic!("{error:#}\n{}", lab.logs());
    }
}

const fn transfer<'a>(
    group: &'a str,
    source: &'a str,
    receivers: &'a [&'a str],
    op: &'a str,
    size: usize,
) -> Transfer<'a> {
    Transfer {
        group,
        source,
        receivers,
        op,
        size,
        seed: 9,
    }
}

/// Each process has a QP of its own: two groups of the same source, and one against the stream of both.
#[test]
fn three_groups_at_once_share_hosts_and_links() {
    in_star(|lab| {
        let transfers = [
            transfer("a", "h1", &["h2", "h3", "h4"], "send", 8 << 20),
            transfer("b", "h1", &["h3", "h4"], "write", 8 << 20),
            transfer("c", "h4", &["h1", "h2"], "send", 8 << 20),
        ];
        for transfer in &transfers {
            lab.create_group(transfer)?;
        }
        let running: Vec<_> = transfers
            .iter()
            .map(|transfer| lab.start_transfer(transfer))
            .collect::<Result<_>>()?;
        running.into_iter().try_for_each(|transfer| transfer.finish())
    });
}

/// The switch says whom the group waits for, nobody takes the dead one's place unseen, and all hear of the group's end.
#[test]
fn a_killed_receiver_is_named_and_a_destroyed_group_ends_its_members() {
    in_star(|lab| {
        let (agent, controller) = (lab.socket("sw"), lab.socket("controller"));
        // More than can be through before somebody looks.
        let transfer = transfer("g", "h1", &["h2", "h3"], "send", 256 << 20);
        lab.create_group(&transfer)?;
        let mut running = lab.start_transfer(&transfer)?;
        running.source.wait_until("data was under way", |_| {
            lab.castnet_json(&["group", "show", "g", "--agent", &agent])
                .is_ok_and(|group| !group["counters"]["data_in"].is_null())
        })?;
        running.receiver("h3")?.kill();
        running.source.wait_until("the killed receiver was named", |_| {
            lab.castnet(&["group", "show", "g", "--controller", &controller])
                .is_ok_and(|shown| {
                    shown
                        .lines()
                        .any(|line| line.contains("h3") && line.contains("stalled"))
                })
        })?;
        let mut successor = lab.start_host("h3", "receive", "g", &["--out", "-"])?;
        ensure!(
            !successor.wait()?.success() && successor.output().contains("is active with the connections"),
            "a second h3 was not refused:\n{}",
            successor.output()
        );
        lab.castnet(&["group", "destroy", "g", "--controller", &controller])?;
        ended(&mut running.source)?;
        ended(running.receiver("h2")?)
    });
}

/// Its call to the controller still stands when it is put out: the report of its switch counts. The others have every byte, and it
/// learns why it has not.
#[test]
fn a_receiver_that_is_stopped_is_put_out_and_the_others_go_on() {
    lab::in_lab("members", TWO_TIERS, &[], |lab| {
        let controller = lab.socket("controller");
        let transfer = transfer("g", "h1", &["h2", "h4", "h5", "h6"], "send", 64 << 20);
        let policy = ["--on-member-stall", "evict", "--member-stall-ms", "3000"];
        lab.create_group_with(&transfer, &policy)?;
        let mut running = lab.start_transfer_with(&transfer, &["--fallback", "off"])?;
        running
            .source
            .wait_until("data was under way", |_| lab.data_in("g", "leaf2") > Some(1000))?;
        let mut stopped = running.take("h5")?;
        stopped.stop()?;
        let mut reason = String::new();
        running.source.wait_until("h5 was put out", |_| {
            let shown = lab.castnet_json(&["group", "show", "g", "--controller", &controller]);
            reason = shown.map_or_else(|e| e.to_string(), |shown| shown["reason"].to_string());
            reason.contains("host h5 stalls")
        })?;
        ensure!(reason.contains("although switch leaf2 has sent it"), "{reason}");
        stopped.go_on()?;
        running.finish()?;
        // If all was over before it looked, it waits for the next file.
        let is_told = |stopped: &Process| {
            let said = stopped.output();
            said.contains("put out of group g: host h5 stalls") || said.contains("joining again")
        };
        let waited = stopped.wait_until("it learned that it is out", is_told);
        ensure!(waited.is_ok() || is_told(&stopped), "{}", stopped.output());
        ensure!(!lab.folder().join("g.h5.out").exists(), "it has the file");
        Ok(())
    });
}

/// How the source goes in mid-stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// `kill -9`, and it is started again at once.
    Killed,
    /// `kill -9`, and it is started again when its lease has ended.
    KilledForLong,
    /// Ctrl-C: it leaves.
    Interrupted,
}

/// The receivers are never started again, but for one that is killed too, in the place of which a new one comes. All get the
/// second file, and nothing of the first.
#[test]
fn receivers_join_again_when_their_source_is_started_again() {
    for goes in [Goes::Killed, Goes::KilledForLong, Goes::Interrupted] {
        in_star(|lab| source_goes(lab, goes));
    }
}

fn source_goes(lab: &Lab, goes: Goes) -> Result<()> {
    let (agent, controller) = (lab.socket("sw"), lab.socket("controller"));
    // More than can be through before the source goes.
    let transfer = transfer("g", "h1", &["h2", "h3", "h4"], "send", 256 << 20);
    lab.create_group(&transfer)?;
    let mut first = lab.start_transfer(&transfer)?;
    first.source.wait_until("data was under way", |_| {
        lab.castnet_json(&["group", "show", "g", "--agent", &agent])
            .is_ok_and(|group| !group["counters"]["data_in"].is_null())
    })?;
    first.receiver("h4")?.kill();
    match goes {
        Goes::Killed | Goes::KilledForLong => first.source.kill(),
        Goes::Interrupted => {
            first.source.interrupt()?;
            first.source.wait()?;
        }
    }
    if goes != Goes::Killed {
        first
            .receiver("h2")?
            .wait_until("the group waited for its members", |_| {
                lab.castnet_json(&["group", "show", "g", "--controller", &controller])
                    .is_ok_and(|group| group["phase"] == "registered")
            })?;
    }
    let file = lab.folder().join("second.bin");
    let second = write_random(&file, 3 << 20, 10)?;
    let send = ["--file", &*file.to_string_lossy()];
    let mut source = started_again(lab, &send)?;
    let out = lab.folder().join("g.h4.out");
    let mut replaced = lab.start_host("h4", "receive", "g", &["--out", &out.to_string_lossy()])?;
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
        let out = lab.folder().join(format!("g.{host}.out"));
        ensure!(digest(&out)? == second, "{host} has another file");
        ensure!(!out.with_extension("out.part").exists(), "{host} has left a part");
    }
    Ok(())
}

/// Starts the source until the controller has noticed that the one before is gone, and takes it.
fn started_again(lab: &Lab, rest: &[&str]) -> Result<Process> {
    let controller = lab.socket("controller");
    for refusals in 0.. {
        let mut source = lab.start_host("h1", "send", "g", rest)?;
        let is_in = source.wait_until("it was in", |_| {
            lab.castnet_json(&["group", "show", "g", "--controller", &controller])
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
