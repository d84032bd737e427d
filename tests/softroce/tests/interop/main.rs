//! The promise "interoperates with unmodified RNICs", kept by Linux SoftRoCE hosts in virtual machines.
//!
//! One lab of eight machines is booted for each interface MTU, and the scenarios take their turns in it: each says in a
//! line how it went, all failures are told at the end. Without words those of [`GATE`] run: each kind of scenario once. A word on the
//! command line picks the scenarios whose names hold it, and `all` picks all: `cargo test -p castnet-softroce-tests -- loss`.

mod blocks;
mod collectives;
mod faults;
mod files;
mod habits;
mod mixed;
mod multicast;
mod one_armed;
mod own_rank;
mod report;
mod scene;
#[path = "../../../../host/endpoint/tests/endpoint/common/script.rs"]
mod script;
mod unchanged;

use std::process::ExitCode;
use std::time::Duration;

use castnet_e2e::net;
use report::Report;
use scene::Scene;

/// Machines of a lab: one source and up to seven receivers.
const HOSTS: usize = 8;

/// Each operation, mode, fault, kind of group and repair once; all others differ from one of these in one of them.
const GATE: [&str; 22] = [
    "mtu1500/programs",
    "mtu1500/write-to-7",
    "mtu1500/wrap",
    "mtu1500/habits",
    "mtu1500/mixed-from-rxe-send",
    "mtu1500/collectives-i32",
    "mtu1500/own-rank",
    "mtu1500/castnet-host-write",
    "mtu1500/castnet-host-turns-at-once",
    "mtu1500/castnet-host-static-core-switch",
    "mtu1500/castnet-host-relays",
    "mtu1500/castnet-host-repair-h1",
    "mtu1500/blocks",
    "mtu1500/loss-5-send",
    "mtu1500/collectives-loss-3",
    "mtu1500/collectives-augmented-loss-3",
    "mtu1500/collectives-terminated-loss-3",
    "mtu1500/one-armed-send",
    "mtu1500/wrong-key",
    "mtu1500/no-receive-posted",
    "mtu1500/receiver-vanishes",
    "mtu4200/loss-1",
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|w| w == "--list") {
        return ExitCode::SUCCESS;
    }
    let mut report = Report::new(words.into_iter().filter(|w| !w.starts_with('-')).collect());
    if let Err(why) = castnet_softroce::available() {
        net::skip("softroce", &why.to_string());
        return ExitCode::SUCCESS;
    }
    // With long frames, the gate needs one source and three receivers. Each further machine takes seconds to boot.
    let long_hosts = if report.is_gate() { 4 } else { HOSTS };
    for (mtu, hosts) in [(1500, HOSTS), (4200, long_hosts)] {
        let place = format!("mtu{mtu}");
        let scenarios = scenarios(mtu);
        if !scenarios
            .iter()
            .any(|(name, _)| report.wants(&format!("{place}/{name}")))
        {
            continue;
        }
        let mut scene = match Scene::start(hosts, mtu) {
            Ok(scene) => scene,
            Err(error) => {
                report.failed(&format!("{place}/boot"), Duration::ZERO, &error);
                continue;
            }
        };
        report.note(&format!("{place}: {}", scene.boot_line()));
        for (name, scenario) in scenarios {
            report.run(&format!("{place}/{name}"), || {
                scenario(&mut scene).map_err(|error| error.context(scene.last_words()))
            });
        }
    }
    report.finish()
}

/// A scenario; what it gives is printed beside its name.
type Scenario = Box<dyn Fn(&mut Scene) -> anyhow::Result<String>>;

fn scenarios(mtu: u32) -> Vec<(String, Scenario)> {
    let mut all: Vec<(String, Scenario)> = Vec::new();
    let mut add = |name: String, scenario: Scenario| all.push((name, scenario));
    add("programs".into(), Box::new(unchanged::programs));
    multicast::scenarios(&mut add);
    if mtu == 1500 {
        add("habits".into(), Box::new(habits::habits));
        mixed::scenarios(&mut add);
        collectives::scenarios(&mut add);
        add(
            "own-rank".into(),
            Box::new(|scene| own_rank::own_rank(scene, false)),
        );
        files::scenarios(&mut add);
        add("blocks".into(), Box::new(blocks::blocks));
        // One after the other where the same frames are lost, as each other way needs a switch of its own.
        mixed::lossy_scenarios(&mut add);
        multicast::lossy_scenarios(&mut add);
        collectives::lossy_scenarios(&mut add);
        one_armed::scenarios(&mut add);
        collectives::one_armed_scenario(&mut add);
        add(
            "one-armed-own-rank".into(),
            Box::new(|scene| own_rank::own_rank(scene, true)),
        );
        // Last: the machine that vanishes does not come back.
        faults::scenarios(&mut add);
    } else {
        multicast::lossy_scenario(&mut add);
    }
    all
}
