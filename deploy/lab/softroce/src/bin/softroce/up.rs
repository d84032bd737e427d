//! `softroce up`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use castnet_softroce::{Host, Lab, LabConfig, LabError};

use crate::{Steps, Up, signals};

pub(crate) fn up(ask: &Up) -> Result<ExitCode, LabError> {
    let booting = Arc::new(AtomicBool::new(true));
    let (sender, end) = channel();
    let still_booting = Arc::clone(&booting);
    signals::on_end(move || {
        if still_booting.load(Ordering::Relaxed) {
            eprintln!("softroce: taking the half-booted lab down");
            // The lab's reaper does it, as soon as this process is gone.
            std::process::exit(130);
        }
        let _ = sender.send(());
    })?;
    if ask.cache.cache.is_none() {
        castnet_softroce::available()?;
    }
    let config = LabConfig {
        hosts: ask.hosts,
        mtu: ask.mtu,
        memory_mib: ask.memory,
        boot_timeout: Duration::from_secs(ask.boot_timeout),
        cache: ask.cache.cache.clone(),
        bridge: ask.bridge,
        name: Some(ask.name.clone()),
    };
    let steps = Steps::new();
    let lab = Lab::start_with(&config, &|step| steps.say(step))?;
    for program in &ask.share {
        steps.say(&format!("sharing {}", program.display()));
        lab.share(program)?;
    }
    drop(steps);
    booting.store(false, Ordering::Relaxed);
    explain(&lab, ask);
    let mut lost = BTreeSet::new();
    while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        for host in lab.hosts().iter().filter(|host| !host.is_up()) {
            if lost.insert(host.index()) {
                eprintln!(
                    "softroce: {} is gone; its console ends:\n{}",
                    host.name(),
                    host.console()
                );
            }
        }
    }
    lab.stop()?;
    println!("The lab is gone.");
    Ok(ExitCode::SUCCESS)
}

fn mac(host: &Host) -> String {
    host.mac().map(|byte| format!("{byte:02x}")).join(":")
}

fn explain(lab: &Lab, ask: &Up) {
    let seconds = lab.boot_time().as_secs_f32();
    println!("The lab {} is up after {seconds:.1} s.\n", lab.netns());
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["host", "eth0, rxe0", "MAC", "tap", "eth1 (management)"]);
    for host in lab.hosts() {
        table.add_row([
            host.name().to_owned(),
            host.ip().to_string(),
            mac(host),
            host.tap().to_owned(),
            host.management_ip().to_string(),
        ]);
    }
    println!("{table}\n");
    println!("In another terminal, as root:\n");
    if !ask.bridge {
        println!("{}\n", switch_command(lab));
    }
    println!("  softroce run h1 -- ibv_devinfo");
    if lab.hosts().len() > 1 {
        println!("  softroce run h1 -- ping -c 3 {}", lab.host(2).ip());
    }
    println!("  softroce shell h1");
    println!(
        "  ip netns exec {} bash          # where the taps are, and {} for the guests",
        lab.netns(),
        lab.management_ip()
    );
    println!(
        "  cp PROGRAM {}/share/bin/       # the guests have it in their PATH",
        lab.directory().display()
    );
    println!("\nCtrl-C takes all of it away.");
}

/// The command that starts a Castnet switch on the lab's taps.
fn switch_command(lab: &Lab) -> String {
    let ports: Vec<String> = lab
        .hosts()
        .iter()
        .map(|h| format!("--port {0}=af_packet:{0}", h.tap()))
        .collect();
    let castnet = std::env::current_exe()
        .ok()
        .and_then(|file| Some(file.parent()?.join("castnet")))
        .filter(|file| file.exists())
        .unwrap_or_else(|| PathBuf::from("castnet"));
    format!(
        "  ip netns exec {} {} switch --name {} --listen unix:{}/switch.sock \\\n      {}",
        lab.netns(),
        castnet.display(),
        lab.netns(),
        lab.directory().display(),
        ports.join(" ")
    )
}
