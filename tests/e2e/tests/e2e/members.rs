//! Members that come, go and die: hosts in several groups at once, a receiver that is killed, a group that is destroyed
//! under way.

use anyhow::{Result, ensure};
use castnet_e2e::lab::STAR;
use castnet_e2e::process::Process;
use castnet_e2e::{Lab, Transfer, net};

/// Runs `test` in a star whose switch has two workers, or says why it cannot.
fn in_star(test: impl FnOnce(&Lab) -> Result<()>) {
    if let Some(why) = net::missing() {
        net::skip("members", &why);
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
