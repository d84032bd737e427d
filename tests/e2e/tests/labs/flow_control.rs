//! Flow control (PFC) of a switch between network namespaces, with a host that sends PAUSE.

use anyhow::{Result, anyhow, ensure};
use castnet_e2e::lab::{self, STAR};
use castnet_e2e::{Lab, Transfer};
use castnet_port::{Batch, Pool, Port, PortSpec, Sides};
use castnet_wire::{MacAddr, Pause, TrafficClass};
use serde_json::Value;

/// The software RNIC sends with DSCP 0. A pause lasts half a minute on a link of 1 Mb/s.
const PFC: &str = "pfc=3,pfc.dscp=0:3,pfc.speed=1,pfc.xoff=65536,pfc.headroom=8000000,pfc.watchdog=off";

/// Sends PAUSE for class 3 out of a host.
fn pause(lab: &Lab, host: &str, quanta: u16) -> Result<()> {
    let send = move || {
        let mut pause = Pause::default();
        TrafficClass::new(3)
            .into_iter()
            .for_each(|class| pause.set(class, quanta));
        let pool = Pool::new(Default::default());
        let mut port = "af_packet:eth0,offloads=keep"
            .parse::<PortSpec>()?
            .open(&pool, Sides::Send)?;
        let mut batch = Batch::new();
        batch.extend(pool.copy_from(&pause.emit(MacAddr([2, 0, 0, 0, 0, 9]))));
        port.send(&mut batch);
        ensure!(port.stats().tx_frames == 1);
        Ok(())
    };
    let thread = lab.host(host)?.thread(send)?;
    thread
        .join()
        .map_err(|_| anyhow!("the thread that sends PAUSE has panicked"))?
}

/// Class 3 of the port.
fn class_at(lab: &Lab, port: &str) -> Result<Value> {
    let ports = lab.castnet_json(&["port", port, "--agent", &lab.socket("sw")])?;
    Ok(ports[0]["pfc"][0].clone())
}

/// One receiver of three pauses the switch: its frames wait, the source is paused, and after the end of the pause all get the file.
#[test]
fn a_paused_receiver_stops_the_source_of_its_group() {
    let ports = ["h1", "h2", "h3", "h4"].map(|port| format!("{port}=af_packet:{port},{PFC}"));
    let extra: Vec<&str> = ports.iter().flat_map(|port| ["--port", port]).collect();
    lab::in_lab("flow control", STAR, &extra, |lab| {
        let transfer = Transfer {
            group: "paused",
            source: "h1",
            receivers: &["h2", "h3", "h4"],
            op: "send",
            size: 16 << 20,
            seed: 7,
        };
        lab.create_group(&transfer)?;
        pause(lab, "h3", u16::MAX)?;
        lab.wait_for("h3 is paused", |lab| {
            ensure!(class_at(lab, "h3")?["paused"] == true);
            Ok(())
        })?;
        let running = lab.start_transfer(&transfer)?;
        lab.wait_for("the source is paused", |lab| {
            // The one before may be over.
            pause(lab, "h3", u16::MAX)?;
            let (receiver, source) = (class_at(lab, "h3")?, class_at(lab, "h1")?);
            ensure!(receiver["queued_bytes"].as_u64() >= Some(65_536), "{receiver}");
            ensure!(
                source["stopping"] == true && source["pause_sent"].as_u64() >= Some(1),
                "{source}"
            );
            Ok(())
        })?;
        let page = lab.castnet(&["port", "--agent", &lab.socket("sw")])?;
        ensure!(
            page.contains("Flow control") && page.contains("stopping"),
            "{page}"
        );
        pause(lab, "h3", 0)?;
        running.finish()?;
        lab.wait_for("the pause has ended", |lab| {
            for port in ["h1", "h2", "h3", "h4"] {
                let class = class_at(lab, port)?;
                let is_idle = class["paused"] == false && class["stopping"] == false;
                // The longer the pause, the more the source repeats, whose port does not obey PAUSE: that may overflow.
                ensure!(is_idle && class["storms"] == 0, "{port}: {class}");
            }
            let receiver = class_at(lab, "h3")?;
            ensure!(
                receiver["pause_received"].as_u64() >= Some(2) && receiver["queued_bytes"] == 0,
                "{receiver}"
            );
            Ok(())
        })
    });
}
