//! Some ten thousand mutations of the corpus in every ordinary test run: the poor man's fuzzer, for machines without one.

use castnet_fuzz::TARGETS;
use std::fs;
use std::path::Path;

/// Changes the run; printed with the file and round where a mutation fails.
const SEED: u64 = 0x00CA_57E7;
const ROUNDS: u64 = 400;

/// splitmix64: small, and the same everywhere.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn mutate(data: &mut Vec<u8>, state: &mut u64) {
    for _ in 0..=next(state) % 3 {
        if data.is_empty() {
            return;
        }
        // Headers are where the rules are: most changes go there.
        let reach = if next(state).is_multiple_of(4) {
            data.len()
        } else {
            data.len().min(80)
        };
        let at = next(state) as usize % reach;
        let byte = next(state) as u8;
        match next(state) % 6 {
            0 => data[at] ^= 1 << (byte % 8),
            1 => data[at] = byte,
            2 => data[at] = data[at].wrapping_add(byte % 9).wrapping_sub(4),
            3 => data.truncate(at),
            4 => data.insert(at, byte),
            _ => drop(data.remove(at)),
        }
    }
}

#[test]
fn mutations_of_every_corpus_pass() {
    println!("seed {SEED:#x}");
    for (name, target) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let mut files: Vec<_> = fs::read_dir(folder)
            .expect("a corpus")
            .map(|e| e.expect("an entry of it").path())
            .collect();
        files.sort();
        let mut state = SEED;
        for file in files {
            let seed = fs::read(&file).expect("a file of the corpus");
            for round in 0..ROUNDS {
                let mut data = seed.clone();
                mutate(&mut data, &mut state);
                if std::panic::catch_unwind(|| target(&data)).is_err() {
                    panic!("{name}: {} in round {round}: {data:02x?}", file.display());
                }
            }
        }
    }
}
