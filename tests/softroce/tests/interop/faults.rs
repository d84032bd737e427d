//! What goes wrong at one receiver is told, repaired, or both.

use std::time::Instant;

use anyhow::{Result, ensure};
use castnet_softroce_tests::events::{Event, Events};
use castnet_softroce_tests::protocol::{Answer, Ask, Op};
use serde_json::Value;

use crate::Scenario;
use crate::scene::{BRISK, LONG, Manner, Message, Scene};

const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];

pub(crate) fn scenarios(add: &mut impl FnMut(String, Scenario)) {
    add("wrong-key".into(), Box::new(wrong_key));
    add("no-receive-posted".into(), Box::new(not_ready));
    // The last: a machine is gone after it.
    add("receiver-vanishes".into(), Box::new(vanishes));
}

/// One receiver's key is wrong: its NAK ends the source's transfer, and the switch names the receiver.
fn wrong_key(scene: &mut Scene) -> Result<String> {
    scene.fabric(&[])?;
    let manner = Manner {
        wrong_key_at: Some("h3"),
        ..Manner::default()
    };
    let joined = scene.join("wrong-key", Op::Write, &HOSTS, manner)?;
    let events = Events::watch(&scene.running()?.agent())?;
    let message = Message {
        op: Op::Write,
        length: 64 << 10,
    };
    scene.post_receives(&HOSTS[1..], message.length)?;
    let start = Instant::now();
    scene.post(&joined, message)?;
    let source = scene.peer("h1")?;
    source.ask(&Ask::AwaitSent {
        within_ms: LONG.as_millis() as u64,
    })?;
    let ended = source.ended(LONG)?;
    let took = start.elapsed();
    ensure!(ended.status == "RemoteAccessError", "the source has {ended:?}");
    let failed = events.wait_for(|e| match e {
        Event::MemberFailed(m) => Some(m.clone()),
        _ => None,
    })?;
    ensure!(failed.next_hop == "h3", "the switch names {failed:?}");
    scene.leave(&joined)?;
    Ok(format!(
        "{} after {:.1} s, h3 named",
        ended.status,
        took.as_secs_f64()
    ))
}

/// One receiver posts its receive late: the group waits, and loses nothing.
fn not_ready(scene: &mut Scene) -> Result<String> {
    scene.fabric(&[])?;
    let mut said = Vec::new();
    for op in Op::BOTH {
        let joined = scene.join("not-ready", op, &HOSTS, Manner::default())?;
        let message = Message { op, length: 64 << 10 };
        scene.post_receives(&["h2", "h4"], message.length)?;
        scene.all(
            &["h3"],
            &Ask::Mark {
                length: message.length,
            },
        )?;
        let seed = scene.post(&joined, message)?;
        let name = joined.group.name.clone();
        let seen = scene
            .running()?
            .wait_for(&name, "the source was told to wait", |c| c.rnr_naks_out > 2)?;
        let source = scene.peer("h1")?;
        source.ask(&Ask::AwaitSent { within_ms: 0 })?;
        ensure!(
            matches!(source.answer(LONG)?, Answer::Ended(None)),
            "the source is done before h3 has anything"
        );
        scene.all(
            &["h3"],
            &Ask::Receive {
                length: message.length,
            },
        )?;
        scene.await_received(&["h2", "h3", "h4"], message, seed)?;
        scene.await_sent(&joined, message)?;
        // And the group is as good as before.
        scene.send(&joined, message)?;
        scene.leave(&joined)?;
        said.push(format!(
            "{}: RNR NAKs in {} out {}",
            op.name(),
            seen.rnr_naks_in,
            seen.rnr_naks_out
        ));
    }
    Ok(said.join(", "))
}

/// A machine loses its power in mid-transfer: the switch names it, and the source is not told that all is well. The machine has no receive for
/// the second message, so that one does not end before.
fn vanishes(scene: &mut Scene) -> Result<String> {
    scene.fabric(&[])?;
    let manner = Manner {
        timeout: BRISK,
        ..Manner::default()
    };
    let joined = scene.join("vanishes", Op::Send, &HOSTS, manner)?;
    let events = Events::watch(&scene.running()?.agent())?;
    let message = Message {
        op: Op::Send,
        length: 4 << 20,
    };
    let length = message.length;
    scene.post_receives(&HOSTS[1..], length)?;
    scene.all(&["h2", "h3"], &Ask::Receive { length })?;
    for _ in 0..2 {
        scene.post(&joined, message)?;
    }
    let name = joined.group.name.clone();
    scene
        .running()?
        .wait_for(&name, "data was under way", |c| c.acks_out > 1)?;
    scene.machine("h4")?.kill_power();
    scene.forget_peer("h4");
    let start = Instant::now();
    // Another machine may be slow.
    events.wait_for(|e| match e {
        Event::PathStalled(stalled) => (stalled.next_hop == "h4").then_some(()),
        _ => None,
    })?;
    let told = start.elapsed();
    loop {
        let shown = scene.running()?.at_controller(&["group", "show", &name])?;
        let paths = shown["switches"][0]["paths"].as_array();
        let is_stalled = |path: &Value| path["next_hop"] == "h4" && path["stalled"] == true;
        if paths.is_some_and(|paths| paths.iter().any(is_stalled)) {
            break;
        }
        ensure!(start.elapsed() < 2 * LONG, "h4 is not shown as stalled: {shown}");
        nix::poll::poll(&mut [], 20u8).ok();
    }
    let source = scene.peer("h1")?;
    let mut ended = 0;
    loop {
        source.ask(&Ask::AwaitSent { within_ms: 0 })?;
        match source.answer(LONG)? {
            Answer::Ended(None) => break,
            first => ended += u32::from(matches!(first, Answer::Ended(Some(_)))),
        }
        ensure!(ended == 1, "the source is done without h4");
    }
    scene.leave(&joined)?;
    Ok(format!(
        "h4 named {:.1} s after its last breath",
        told.as_secs_f64()
    ))
}
