//! What goes wrong at one receiver is told, repaired, or both.

use std::time::Instant;

use anyhow::{Result, ensure};
use castnet_softroce_tests::events::{Event, Events};
use castnet_softroce_tests::fabric::STALL;
use castnet_softroce_tests::protocol::{Ask, Op};

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
            matches!(
                source.answer(LONG)?,
                castnet_softroce_tests::protocol::Answer::Ended(None)
            ),
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

/// A machine loses its power in mid-transfer: the switch names it within the group's stall time-out, and the source is
/// not told that all is well.
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
    scene.post_receives(&HOSTS[1..], message.length)?;
    scene.post(&joined, message)?;
    let name = joined.group.name.clone();
    scene
        .running()?
        .wait_for(&name, "data was under way", |c| c.acks_out > 1)?;
    scene.machine("h4")?.kill_power();
    scene.forget_peer("h4");
    let start = Instant::now();
    let stalled = events.wait_for(|e| match e {
        Event::PathStalled(s) => Some(s.clone()),
        _ => None,
    })?;
    ensure!(stalled.next_hop == "h4", "the switch names {stalled:?}");
    let told = start.elapsed();
    ensure!(told < 3 * STALL, "told after {told:?}, {STALL:?} was asked for");
    let shown = scene.running()?.at_controller(&["group", "show", &name])?;
    let stalled: Vec<&str> = shown["switches"][0]["paths"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|path| path["stalled"] == true)
        .filter_map(|path| path["next_hop"].as_str())
        .collect();
    ensure!(stalled == ["h4"], "stalled are {stalled:?}: {shown}");
    let source = scene.peer("h1")?;
    source.ask(&Ask::AwaitSent { within_ms: 0 })?;
    ensure!(
        matches!(
            source.answer(LONG)?,
            castnet_softroce_tests::protocol::Answer::Ended(None)
        ),
        "the source is done without h4"
    );
    scene.leave(&joined)?;
    Ok(format!(
        "h4 named {:.1} s after its last breath",
        told.as_secs_f64()
    ))
}
