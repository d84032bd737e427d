//! Some thousand mutations of each corpus in every normal test run. For longer runs: `cargo run -p castnet-fuzz`.

use castnet_fuzz::TARGETS;
use castnet_fuzz::driver::Fuzzer;

/// Determines the run. Printed if a mutation fails.
const SEED: u64 = 0x00CA_57E7;

#[test]
fn mutations_of_every_corpus_pass() {
    for target in TARGETS {
        let runs = match target.name {
            "engine" => 500,
            "translated" => 3_000,
            _ => 10_000,
        };
        let mut fuzzer = Fuzzer::new(target, SEED);
        for _ in 0..runs {
            if let Err(failure) = fuzzer.step() {
                panic!(
                    "{}, seed {SEED}, run {}: {:02x?}",
                    target.name, failure.run, failure.input
                );
            }
        }
    }
}
