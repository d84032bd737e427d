//! Scenarios of control by seed. `CASTNET_SEED` runs one, and prints what happens; `CASTNET_RUNS` runs so many.

use castnet_sim_control::Scenario;

const RUNS: u64 = 40;
const STEPS: u64 = 6;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// No two groups share an address, what was confirmed is stored and runs, what ends leaves nothing, only the controller of the latest
/// epoch changes switches, and running traffic outlives all of it: by another path if a link is down. A member is put out only if the
/// policy of its group says so, no tenant has more than its quota, and what hosts have registered stays.
#[test]
fn the_contract_of_control_holds_under_faults() {
    let seeds = match number("CASTNET_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CASTNET_RUNS").unwrap_or(RUNS),
    };
    let shows = seeds.end - seeds.start == 1;
    for seed in seeds {
        let outcome = Scenario { seed, steps: STEPS }.run();
        if shows {
            println!("{}", outcome.log.join("\n"));
        }
        if let Some(wrong) = outcome.violation {
            panic!(
                "seed {seed}: {wrong}\nwhat happens: cargo run -p castnet-sim-control -- --seed {seed} --steps {STEPS}"
            );
        }
    }
}
